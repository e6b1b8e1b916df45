/* SPDX-License-Identifier: Apache-2.0 */
/* A sink's side of the handshake (session.h): HELLO out, CHALLENGE in, PROOF out, WELCOME in.
 * What differs is said by the side that sees it first: the source about terms and keys (a
 * REFUSE, which nobody has signed), the sink about a source without the key and its terms. */
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "kvtransfer/sink_int.h"

void bt_sink_hello(bt_sink_peer *peer)
{
    const bt_kv_sink_options *o = &peer->sink->options;
    const bool is_stream = (peer->channel.ops->caps & BT_TRANSPORT_STREAM) != 0;
    peer->auth = is_stream ? bt_transport_auth(o->auth, peer->address.tcp) : BT_KV_AUTH_FRAMES;
    bt_frame frame = {.type = BT_FRAME_HELLO};
    bt_frame_hello_set(&frame.u.hello, &o->terms, o->incarnation, o->n_blocks);
    frame.u.hello.expected = peer->address.incarnation;
    frame.u.hello.lease_ms = o->lease_ms;
    frame.u.hello.auth = (uint32_t)peer->auth;
    bt_hash_random(frame.u.hello.nonce, sizeof frame.u.hello.nonce);
    bt_channel_put(&peer->channel, &frame);
    peer->state = BT_SINK_PEER_HELLO;
}

void bt_sink_copy_text(char out[BT_KV_TEXT_BYTES], const bt_frame *frame)
{
    const size_t n = bt_size_min(frame->u.end.text_bytes, BT_KV_TEXT_BYTES - 1);
    memcpy(out, frame->u.end.text, n);
    out[n] = '\0';
}

static bt_status map_source(bt_sink_peer *peer, uint32_t n_blocks, bt_error *err)
{
    size_t bytes;
    if (!bt_size_mul(n_blocks, peer->sink->options.terms.layout.block_bytes, &bytes) ||
        bytes == 0) {
        return bt_error_set(err, BT_EPROTOCOL, "a pool of %u blocks", n_blocks);
    }
    const bt_status status =
        peer->channel.ops->map(peer->channel.conn, bytes, &peer->source_base, err);
    return status == BT_OK ? BT_OK : BT_EPEER; /* another transport may still do */
}

static bt_status check_incarnation(const bt_sink_peer *peer, uint64_t incarnation, bt_error *err)
{
    return incarnation == peer->address.incarnation
               ? BT_OK
               : bt_error_set(err, BT_EMISMATCH,
                              "the source has restarted. Ask the router for its new address.");
}

/* Its tag was right: the source has the key, and heard just now what we said. */
static bt_status on_challenge(bt_sink_peer *peer, const bt_frame *frame, bt_error *err)
{
    const bt_status status = check_incarnation(peer, frame->u.challenge.incarnation, err);
    if (status != BT_OK) {
        peer->sink->counters.handshakes_refused++;
        return status;
    }
    if (frame->u.challenge.auth < (uint32_t)peer->auth) {
        return bt_error_set(err, BT_EPROTOCOL, "a CHALLENGE for less than was asked for");
    }
    peer->auth = (bt_kv_auth)frame->u.challenge.auth;
    peer->tags_parts =
        peer->auth == BT_KV_AUTH_FULL && (peer->channel.ops->caps & BT_TRANSPORT_STREAM) != 0;
    const bt_frame proof = {.type = BT_FRAME_PROOF};
    bt_channel_put(&peer->channel, &proof);
    peer->state = BT_SINK_PEER_PROVEN;
    return BT_OK;
}

static bt_status on_welcome(bt_sink_peer *peer, const bt_frame_hello *hello, bt_error *err)
{
    bt_kv_sink *sink = peer->sink;
    bt_status status = bt_frame_hello_check(hello, &sink->options.terms, err);
    if (status == BT_OK) {
        status = check_incarnation(peer, hello->incarnation, err);
    }
    if (status == BT_OK && (peer->channel.ops->caps & BT_TRANSPORT_ONE_SIDED)) {
        status = map_source(peer, hello->n_blocks, err);
    }
    if (status != BT_OK) {
        sink->counters.handshakes_refused++;
        return status;
    }
    peer->source_blocks = hello->n_blocks;
    peer->mixed_numerics =
        memcmp(hello->numerics_id, sink->options.terms.numerics_id, sizeof hello->numerics_id) != 0;
    peer->lease_ms = sink->options.lease_ms;
    if (hello->lease_ms > 0 && hello->lease_ms < peer->lease_ms) {
        peer->lease_ms = hello->lease_ms;
    }
    peer->renewed_ns = bt_clock_now_ns();
    peer->idle_since_ns = peer->renewed_ns;
    peer->state = BT_SINK_PEER_READY;
    return BT_OK;
}

/* Nobody has signed it: it can end the handshake, for the reasons that a source has, and no
 * more. */
static bt_status on_refuse(bt_sink_peer *peer, const bt_frame *frame, bt_error *err)
{
    const bt_status status = frame->u.end.status;
    if (peer->state != BT_SINK_PEER_HELLO && peer->state != BT_SINK_PEER_PROVEN) {
        return bt_error_set(err, BT_EPROTOCOL, "a REFUSE frame after WELCOME");
    }
    if (status != BT_EMISMATCH && status != BT_EEXHAUSTED && status != BT_EPERMISSION) {
        return bt_error_set(err, BT_EPROTOCOL, "a REFUSE frame for no reason");
    }
    char text[BT_KV_TEXT_BYTES];
    bt_sink_copy_text(text, frame);
    peer->sink->counters.handshakes_refused++;
    /* Not this request, but this pair of workers: another source may serve it. */
    return bt_error_set(err, status == BT_EPERMISSION ? BT_EMISMATCH : status, "%s", text);
}

bt_status bt_sink_on_handshake(bt_sink_peer *peer, const bt_frame *frame, bt_error *err)
{
    if (frame->type == BT_FRAME_REFUSE) {
        return on_refuse(peer, frame, err);
    }
    if (frame->type == BT_FRAME_CHALLENGE && peer->state == BT_SINK_PEER_HELLO) {
        return on_challenge(peer, frame, err);
    }
    if (frame->type == BT_FRAME_WELCOME && peer->state == BT_SINK_PEER_PROVEN) {
        return on_welcome(peer, &frame->u.hello, err);
    }
    return bt_error_set(err, BT_EPROTOCOL, "a %s frame before WELCOME",
                        bt_frame_type_name(frame->type));
}

bt_status bt_sink_on_wrong_tag(bt_sink_peer *peer, bt_error *err)
{
    if (peer->state != BT_SINK_PEER_HELLO) {
        return BT_EPROTOCOL;
    }
    peer->sink->counters.handshakes_refused++;
    return bt_error_set(err, BT_EMISMATCH,
                        "the source does not have this cluster's key. Give every member the same "
                        "key file.");
}
