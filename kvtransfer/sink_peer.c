/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of a sink.
 *
 *          get            connect, HELLO put        CHALLENGE right          WELCOME fits
 *   FREE ------> DIALING ------------------> HELLO ---------------> PROVEN -------------> READY
 *     ^             ^  |                      |  |     PROOF put      |                     |
 *     |             +--+-- next candidate ----+  | refused            | refused             | lose
 *     +------------------------------------------+--------------------+---------------------+
 *
 * The stream carries frames, and behind a DATA frame parts (piece_left bytes of them), which
 * are read into their blocks in steps of READ_BYTES and checksummed while they are in the
 * cache. Where parts are authenticated, the tag of a piece is checked before its last part
 * counts, which the transfer needs to be done. A piece whose transfer has ended (piece_op
 * NULL) is read into scratch. */
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/log.h"
#include "kvtransfer/sink_int.h"

enum {
    READ_BYTES = 256 * 1024, /* read from a stream in one turn of the loop */
    REGIONS_MAX = BT_TRANSPORT_IOV_MAX - 1,
};

_Static_assert((int)READ_BYTES <= (int)BT_SINK_SCRATCH_BYTES, "scratch takes one read");

static const int64_t MS = 1000000; /* ns */

static uint64_t rect_bytes(const bt_sink_peer *peer, const bt_plan_rect *rect)
{
    return bt_plan_rect_parts(rect) * peer->sink->options.terms.layout.layer_bytes;
}

static bt_sink_op *op_at(bt_sink_peer *peer, size_t i)
{
    return &peer->ops[(peer->ops_head + i) % BT_SINK_OPS_MAX];
}

static void drop_holes(bt_sink_peer *peer)
{
    while (peer->n_ops > 0 && !op_at(peer, 0)->transfer) {
        peer->ops_head = (peer->ops_head + 1) % BT_SINK_OPS_MAX;
        peer->n_ops--;
    }
}

static void close_op(bt_sink_peer *peer, bt_sink_op *op)
{
    const uint64_t left = rect_bytes(peer, &op->rect) - op->received;
    BT_ASSERT(peer->bytes_in_flight >= left);
    peer->bytes_in_flight -= left;
    op->transfer = NULL;
    if (peer->piece_op == op) {
        peer->piece_op = NULL;
    }
}

void bt_sink_peer_forget(bt_sink_peer *peer, const bt_sink_transfer *t)
{
    for (size_t i = 0; i < peer->n_ops; i++) {
        bt_sink_op *op = op_at(peer, i);
        if (op->transfer == t) {
            if (peer->channel.ops->caps & BT_TRANSPORT_TWO_SIDED) {
                peer->channel.ops->unpost(peer->channel.conn, op->op);
            }
            close_op(peer, op);
        }
    }
}

/* ---- life of a connection ---- */

static void on_event(int events, void *ctx);

static bt_sink_peer *idle_peer(bt_kv_sink *sink)
{
    bt_sink_peer *best = NULL;
    for (uint32_t i = 0; i < sink->options.max_peers; i++) {
        bt_sink_peer *peer = &sink->peers[i];
        if (peer->state == BT_SINK_PEER_FREE) {
            return peer;
        }
        if (peer->n_transfers == 0 && (!best || peer->idle_since_ns < best->idle_since_ns)) {
            best = peer;
        }
    }
    return best;
}

bt_status bt_sink_peer_get(bt_kv_sink *sink, const bt_kv_peer *address, bt_sink_peer **out,
                           bt_error *err)
{
    for (uint32_t i = 0; i < sink->options.max_peers; i++) {
        bt_sink_peer *peer = &sink->peers[i];
        if (peer->state != BT_SINK_PEER_FREE && peer->address.incarnation == address->incarnation) {
            *out = peer;
            return BT_OK;
        }
    }
    const bt_transport_ops *candidates[3];
    const size_t n = bt_transport_choose(&sink->choice, address, candidates, err);
    if (n == 0) {
        return BT_EINVAL;
    }
    bt_sink_peer *peer = idle_peer(sink);
    if (!peer) {
        return bt_error_set(err, BT_EEXHAUSTED, "pulls from %u workers are under way already",
                            sink->options.max_peers);
    }
    if (peer->state != BT_SINK_PEER_FREE) {
        bt_sink_peer_lose(peer, BT_ECANCELLED, "idle");
    }
    peer->state = BT_SINK_PEER_DIALING;
    peer->address = *address;
    memcpy(peer->candidates, candidates, sizeof candidates);
    peer->n_candidates = n;
    peer->candidate = 0;
    peer->since_ns = bt_clock_now_ns();
    peer->n_transfers = 0;
    peer->source_base = NULL;
    sink->counters.peers_open++;
    *out = peer;
    return BT_OK;
}

static void clear_stream(bt_sink_peer *peer)
{
    peer->next_op = 0;
    peer->ops_head = peer->n_ops = 0;
    peer->bytes_in_flight = 0;
    peer->piece_left = 0;
    peer->piece_op = NULL;
    peer->source_base = NULL;
    peer->tags_parts = false;
}

void bt_sink_peer_lose(bt_sink_peer *peer, bt_status status, const char *text)
{
    bt_kv_sink *sink = peer->sink;
    BT_ASSERT(peer->state != BT_SINK_PEER_FREE);
    if (peer->state != BT_SINK_PEER_READY && status == BT_EPEER &&
        peer->candidate + 1 < peer->n_candidates) {
        bt_channel_close(&peer->channel);
        clear_stream(peer);
        peer->candidate++;
        peer->state = BT_SINK_PEER_DIALING;
        peer->since_ns = bt_clock_now_ns();
        bt_wake_ring(sink->wake);
        return;
    }
    if (peer->n_transfers > 0) {
        sink->counters.peers_lost++;
        bt_log(BT_WARN, "kv source lost: peer=%016llx transport=%s transfers=%u reason=\"%s\"",
               (unsigned long long)peer->address.incarnation,
               peer->candidates[peer->candidate]->name, peer->n_transfers, text);
    }
    for (size_t i = 0; i < sink->n_open; i++) {
        bt_sink_transfer *t = sink->open[i];
        if (t->peer == peer) {
            bt_sink_fail(sink, t, status, text);
            t->peer = NULL;
            peer->n_transfers--;
        }
    }
    BT_ASSERT(peer->n_transfers == 0);
    bt_channel_close(&peer->channel);
    clear_stream(peer);
    peer->state = BT_SINK_PEER_FREE;
    sink->counters.peers_open--;
    bt_wake_ring(sink->wake);
}

static void reject(bt_sink_peer *peer, const bt_error *err)
{
    peer->sink->counters.frames_rejected++;
    bt_sink_peer_lose(peer, BT_EPROTOCOL, err->text);
}

/* False: this candidate failed. */
static bool dial(bt_sink_peer *peer)
{
    bt_kv_sink *sink = peer->sink;
    const bt_kv_sink_options *o = &sink->options;
    const bt_transport_env env = {.loop = sink->loop, .loopback = o->loopback};
    const bt_transport_ops *ops = peer->candidates[peer->candidate];
    bt_conn *conn;
    bt_error err;
    bt_status status = ops->connect(&env, &peer->address, &conn, &err);
    if (status == BT_OK) {
        const bt_channel_options options = {.side = BT_SESSION_SINK,
                                            .cluster_key = &o->terms.cluster_key,
                                            .fn = on_event,
                                            .ctx = peer,
                                            .fault = o->fault};
        status = bt_channel_open(&peer->channel, conn, &options);
        if (status != BT_OK) {
            (void)bt_error_set(&err, status, "the source belongs to another user");
        }
    }
    if (status != BT_OK) {
        bt_sink_peer_lose(peer, BT_EPEER, err.text);
        return false;
    }
    clear_stream(peer);
    bt_sink_hello(peer);
    sink->counters.connections++;
    return true;
}

/* ---- frames in: a failure closes the connection ---- */

static bt_status on_offer(bt_sink_peer *peer, bt_sink_transfer *t, const bt_frame *frame,
                          bt_error *err)
{
    bt_kv_sink *sink = peer->sink;
    const uint32_t n_blocks = frame->u.offer.n_blocks;
    const uint32_t n_ids = frame->u.offer.n_ids;
    const bool one_sided = (peer->channel.ops->caps & BT_TRANSPORT_ONE_SIDED) != 0;
    if (n_blocks == 0 || n_blocks != bt_div_ceil(frame->u.offer.n_tokens, BT_KV_BLOCK_TOKENS) ||
        t->offered || frame->u.offer.first != t->n_ids || (!one_sided && n_ids > 0) ||
        (t->n_blocks != 0 && t->n_blocks != n_blocks) || n_ids > n_blocks - t->n_ids) {
        return bt_error_set(err, BT_EPROTOCOL, "an OFFER that does not add up");
    }
    if (n_blocks > sink->options.max_transfer_blocks) {
        bt_sink_fail(sink, t, BT_EEXHAUSTED, "the offer has more blocks than a transfer may have");
        return BT_OK;
    }
    if (t->n_blocks == 0) {
        const uint32_t n_layers = sink->options.terms.layout.n_layers;
        t->n_blocks = n_blocks;
        t->n_tokens = frame->u.offer.n_tokens;
        bt_plan_set_init(&t->announced, t->words[0], n_blocks, n_layers);
        bt_plan_set_init(&t->asked, t->words[1], n_blocks, n_layers);
        bt_plan_set_init(&t->right, t->words[2], n_blocks, n_layers);
    }
    for (uint32_t i = 0; i < n_ids; i++) {
        const bt_block_id id = bt_frame_u32(frame->u.offer.wire, i);
        if (id >= peer->source_blocks) {
            return bt_error_set(err, BT_EPROTOCOL, "an OFFER of a block outside the pool");
        }
        t->source_ids[t->n_ids++] = id;
    }
    if (!one_sided || t->n_ids == n_blocks) {
        t->offered = true;
        t->stats.linked_ns = bt_clock_now_ns();
        t->stats.transport = peer->channel.ops->id;
        t->stats.mixed_numerics = peer->mixed_numerics;
        bt_sink_check(sink, t);
        bt_wake_ring(sink->wake); /* deliver() passes it on */
    }
    return BT_OK;
}

static bt_status on_announce(bt_sink_peer *peer, bt_sink_transfer *t, const bt_frame *frame,
                             bt_error *err)
{
    bt_kv_sink *sink = peer->sink;
    const bt_plan_rect *rect = &frame->u.announce.rect;
    if (!t->offered || !bt_plan_set_holds(&t->announced, rect)) {
        return bt_error_set(err, BT_EPROTOCOL, "an ANNOUNCE outside the offer");
    }
    uint64_t at = 0;
    for (uint32_t b = rect->block_idx; b < rect->block_idx + rect->n_blocks; b++) {
        for (uint32_t layer = rect->layer; layer < rect->layer + rect->n_layers; layer++, at++) {
            if (bt_plan_set_has(&t->announced, b, layer)) {
                sink->counters.rejected_duplicate++; /* the first checksum stands */
            } else {
                t->sums[(size_t)b * t->announced.n_layers + layer] =
                    bt_frame_u32(frame->u.announce.wire, at);
            }
        }
    }
    (void)bt_plan_set_add(&t->announced, rect);
    bt_sink_trace(sink, BT_KV_TRACE_ANNOUNCED, t->name, rect);
    bt_wake_ring(sink->wake);
    return BT_OK;
}

static bt_status on_complete(bt_sink_peer *peer, bt_sink_transfer *t, const bt_frame *frame,
                             bt_error *err)
{
    if (!t->offered || t->complete) {
        return bt_error_set(err, BT_EPROTOCOL, "a COMPLETE out of order");
    }
    t->complete = true;
    t->ends = frame->u.complete.ends;
    t->blob_bytes = frame->u.complete.blob_bytes;
    memcpy(t->blob, frame->u.complete.blob, t->blob_bytes);
    t->stats.complete_ns = bt_clock_now_ns();
    const uint64_t all = (uint64_t)t->n_blocks * t->announced.n_layers;
    t->stats.parts_left_at_complete = (uint32_t)((t->began ? t->n_wanted : all) - t->n_right);
    const bt_plan_rect none = {0};
    bt_sink_trace(peer->sink, BT_KV_TRACE_COMPLETE, t->name, &none);
    bt_sink_check(peer->sink, t);
    return BT_OK;
}

static bool piece_is_right(bt_sink_peer *peer)
{
    uint8_t tag[BT_FRAME_TAG_BYTES];
    bt_mac_final(&peer->piece_mac, tag);
    return bt_hash_equal_secret(tag, peer->piece_tag, sizeof tag);
}

/* n bytes of the piece lie in their blocks. False: they are not what the source sent. */
static bool landed(bt_sink_peer *peer, uint64_t n)
{
    bt_kv_sink *sink = peer->sink;
    const bt_kv_layout *layout = &sink->options.terms.layout;
    BT_ASSERT(n <= peer->piece_left);
    peer->piece_left -= n;
    bt_sink_op *op = peer->piece_op;
    while (n > 0 && op && peer->piece_op == op) {
        bt_sink_transfer *t = op->transfer;
        const uint64_t part = op->received / layout->layer_bytes;
        const uint64_t at = op->received % layout->layer_bytes;
        const uint64_t len = n < layout->layer_bytes - at ? n : layout->layer_bytes - at;
        const uint32_t b = op->rect.block_idx + (uint32_t)(part / op->rect.n_layers);
        const uint32_t layer = op->rect.layer + (uint32_t)(part % op->rect.n_layers);
        const uint8_t *bytes = (const uint8_t *)sink->options.pool_base +
                               bt_kv_part_offset(layout, t->ids[b], layer) + at;
        op->sum = bt_crc32c(at == 0 ? 0 : op->sum, bytes, (size_t)len);
        op->received += len;
        peer->bytes_in_flight -= len;
        n -= len;
        if (peer->tags_parts) {
            bt_mac_update(&peer->piece_mac, bytes, (size_t)len);
            if (n == 0 && peer->piece_left == 0 && !piece_is_right(peer)) {
                return false;
            }
        }
        if (op->received == rect_bytes(peer, &op->rect)) {
            bt_sink_trace(sink, BT_KV_TRACE_MOVED, t->name, &op->rect);
            close_op(peer, op);
        }
        if (at + len == layout->layer_bytes) {
            bt_sink_part(sink, t, b, layer, op->sum);
        }
    }
    if (peer->piece_left == 0) {
        peer->piece_op = NULL;
    }
    return true;
}

static bt_status on_data(bt_sink_peer *peer, const bt_frame *frame, bt_error *err)
{
    const uint32_t caps = peer->channel.ops->caps;
    const uint32_t id = frame->u.data.op;
    if ((caps & BT_TRANSPORT_ONE_SIDED) || (int32_t)(id - peer->next_op) >= 0) {
        return bt_error_set(err, BT_EPROTOCOL, "a DATA frame that nobody asked for");
    }
    bt_sink_op *op = NULL;
    for (size_t i = 0; i < peer->n_ops && !op; i++) {
        op = op_at(peer, i)->op == id && op_at(peer, i)->transfer ? op_at(peer, i) : NULL;
    }
    if (op) {
        const uint64_t left = rect_bytes(peer, &op->rect) - op->received;
        const bool whole = !(caps & BT_TRANSPORT_TWO_SIDED) || frame->u.data.bytes == left;
        if (!bt_kv_transfer_equal(op->transfer->name, frame->transfer) ||
            frame->u.data.offset != op->received || frame->u.data.bytes > left || !whole) {
            return bt_error_set(err, BT_EPROTOCOL, "a DATA frame that does not fit its READ");
        }
    } else {
        peer->sink->counters.rejected_late++;
    }
    peer->piece_op = op;
    if (caps & BT_TRANSPORT_STREAM) {
        peer->piece_left = frame->u.data.bytes;
        if (peer->tags_parts) {
            bt_channel_start_got_parts(&peer->channel, &peer->piece_mac);
            memcpy(peer->piece_tag, frame->u.data.tag, sizeof peer->piece_tag);
        }
    } else if (op) {
        peer->piece_left = frame->u.data.bytes;
        (void)landed(peer, frame->u.data.bytes); /* no tag: it is true */
        peer->piece_left = 0;                    /* also when the transfer failed on the way */
    }
    return BT_OK;
}

static bt_status on_transfer_frame(bt_sink_peer *peer, const bt_frame *frame, bt_error *err)
{
    bt_kv_sink *sink = peer->sink;
    bt_sink_transfer *t = bt_sink_find(sink, frame->transfer);
    if (!t || t->peer != peer) {
        if (bt_sink_was_ended(sink, frame->transfer)) {
            sink->counters.rejected_late++;
        } else {
            sink->counters.rejected_unknown++;
        }
        return BT_OK;
    }
    char text[BT_KV_TEXT_BYTES];
    switch (frame->type) {
    case BT_FRAME_OFFER:
        return on_offer(peer, t, frame, err);
    case BT_FRAME_ANNOUNCE:
        return on_announce(peer, t, frame, err);
    case BT_FRAME_COMPLETE:
        return on_complete(peer, t, frame, err);
    default: /* REVOKE */
        bt_sink_copy_text(text, frame);
        bt_sink_fail(sink, t, frame->u.end.status, text);
        return BT_OK;
    }
}

static bt_status on_frame(bt_sink_peer *peer, const bt_frame *frame, bt_error *err)
{
    if (peer->state != BT_SINK_PEER_READY || frame->type == BT_FRAME_REFUSE) {
        return bt_sink_on_handshake(peer, frame, err);
    }
    switch (frame->type) {
    case BT_FRAME_RENEW:
        return BT_OK;
    case BT_FRAME_DATA:
        return on_data(peer, frame, err);
    case BT_FRAME_OFFER:
    case BT_FRAME_ANNOUNCE:
    case BT_FRAME_COMPLETE:
    case BT_FRAME_REVOKE:
        return on_transfer_frame(peer, frame, err);
    default:
        return bt_error_set(err, BT_EPROTOCOL, "a %s frame from a source",
                            bt_frame_type_name(frame->type));
    }
}

/* Where the next bytes of the piece belong: at most READ_BYTES. */
static size_t piece_iov(bt_sink_peer *peer, struct iovec *iov)
{
    bt_kv_sink *sink = peer->sink;
    const uint64_t most = peer->piece_left < READ_BYTES ? peer->piece_left : READ_BYTES;
    if (!peer->piece_op) {
        iov[0] = (struct iovec){sink->scratch, (size_t)most};
        return 1;
    }
    const bt_sink_op *op = peer->piece_op;
    bt_plan_region regions[REGIONS_MAX];
    uint64_t sum;
    const size_t n = bt_plan_regions(&sink->options.terms.layout, op->transfer->ids, &op->rect,
                                     op->received, most, regions, REGIONS_MAX, &sum);
    for (size_t i = 0; i < n; i++) {
        iov[i] = (struct iovec){(uint8_t *)sink->options.pool_base + regions[i].offset,
                                (size_t)regions[i].bytes};
    }
    return n;
}

static void reject_piece(bt_sink_peer *peer)
{
    bt_error err;
    (void)bt_error_set(&err, BT_EPROTOCOL, "KV parts were changed on the way: their tag is wrong");
    peer->sink->counters.rejected_corrupt++;
    reject(peer, &err);
}

/* Parts that came into the buffer along with their DATA frame. False: their tag is wrong. */
static bool take_buffered(bt_sink_peer *peer)
{
    struct iovec iov[REGIONS_MAX];
    size_t got = 1;
    while (peer->piece_left > 0 && got > 0) {
        (void)piece_iov(peer, iov);
        got = bt_channel_take(&peer->channel, iov[0].iov_base, iov[0].iov_len);
        if (!landed(peer, got)) {
            return false;
        }
    }
    return true;
}

/* False: the connection was lost. */
static bool handle_input(bt_sink_peer *peer)
{
    for (;;) {
        if (!take_buffered(peer)) {
            reject_piece(peer);
            return false;
        }
        if (peer->piece_left > 0) {
            return true;
        }
        bt_frame frame;
        bt_error err;
        bt_status status = bt_channel_next(&peer->channel, &frame, &err);
        if (status == BT_AGAIN) {
            return true;
        }
        if (status == BT_OK) {
            peer->heard_ns = bt_clock_now_ns();
            status = on_frame(peer, &frame, &err);
        } else if (status == BT_EPERMISSION) {
            status = bt_sink_on_wrong_tag(peer, &err);
        }
        if (status == BT_EPROTOCOL) {
            reject(peer, &err);
            return false;
        }
        if (status != BT_OK) {
            bt_sink_peer_lose(peer, status, err.text);
            return false;
        }
    }
}

static void on_event(int events, void *ctx)
{
    bt_sink_peer *peer = ctx;
    if (events & BT_WATCH_READ) {
        struct iovec iov[REGIONS_MAX];
        const size_t n = peer->piece_left > 0 ? piece_iov(peer, iov) : 0;
        size_t got;
        const bt_status status = bt_channel_fill(&peer->channel, iov, n, &got);
        if (status == BT_EPEER) {
            bt_sink_peer_lose(peer, BT_EPEER, "the connection to the source broke");
            return;
        }
        if (got > 0) {
            peer->heard_ns = bt_clock_now_ns();
            if (!landed(peer, got)) {
                reject_piece(peer);
                return;
            }
        }
        if (!handle_input(peer)) {
            return;
        }
    }
    bt_sink_peer_serve(peer);
}

/* ---- frames out ---- */

/* One READ moves as a whole over a two-sided transport: with a rate limit it has to be small. */
static uint64_t op_parts_max(const bt_sink_peer *peer)
{
    const bt_kv_sink *sink = peer->sink;
    const bool two_sided = (peer->channel.ops->caps & BT_TRANSPORT_TWO_SIDED) != 0;
    uint64_t bytes = BT_SINK_OP_BYTES;
    if (two_sided && sink->rate.bytes_s != 0 && sink->rate.bytes_s / 1000 < bytes) {
        bytes = sink->rate.bytes_s / 1000;
    }
    const uint64_t n = bytes / sink->options.terms.layout.layer_bytes;
    return n > 0 ? n : 1;
}

static bt_status post_op(bt_sink_peer *peer, bt_sink_transfer *t, uint32_t op,
                         const bt_plan_rect *rect)
{
    bt_kv_sink *sink = peer->sink;
    struct iovec iov[REGIONS_MAX];
    bt_plan_region regions[REGIONS_MAX];
    uint64_t sum;
    const size_t n = bt_plan_regions(&sink->options.terms.layout, t->ids, rect, 0,
                                     rect_bytes(peer, rect), regions, REGIONS_MAX, &sum);
    BT_ASSERT(sum == rect_bytes(peer, rect));
    for (size_t i = 0; i < n; i++) {
        iov[i] = (struct iovec){(uint8_t *)sink->options.pool_base + regions[i].offset,
                                (size_t)regions[i].bytes};
    }
    return peer->channel.ops->post(peer->channel.conn, op, iov, n);
}

/* Asks for parts of `t`; false: nothing (more) can be asked for now. */
static bool ask(bt_sink_peer *peer, bt_sink_transfer *t)
{
    bt_kv_sink *sink = peer->sink;
    drop_holes(peer);
    bt_plan_rect rect;
    if (peer->n_ops == BT_SINK_OPS_MAX || !bt_channel_has_room(&peer->channel) ||
        peer->bytes_in_flight >= sink->options.max_bytes_in_flight ||
        !bt_plan_next(&t->announced, &t->asked, 0, op_parts_max(peer), &rect)) {
        return false;
    }
    if (peer->channel.ops->caps & BT_TRANSPORT_TWO_SIDED) {
        rect.n_blocks = rect.n_blocks < REGIONS_MAX ? rect.n_blocks : REGIONS_MAX;
        if (post_op(peer, t, peer->next_op, &rect) != BT_OK) {
            return false;
        }
    }
    (void)bt_plan_set_add(&t->asked, &rect);
    bt_sink_op *op = op_at(peer, peer->n_ops++);
    *op = (bt_sink_op){.transfer = t, .op = peer->next_op, .rect = rect};
    peer->bytes_in_flight += rect_bytes(peer, &rect);
    const bt_frame frame = {
        .type = BT_FRAME_READ, .transfer = t->name, .u.read = {.op = op->op, .rect = rect}};
    bt_channel_put(&peer->channel, &frame);
    peer->next_op++;
    return true;
}

static void put_pull(bt_sink_peer *peer, bt_sink_transfer *t)
{
    const int64_t left_ms = (t->deadline_ns - bt_clock_now_ns()) / MS;
    const bt_frame frame = {
        .type = BT_FRAME_PULL,
        .transfer = t->name,
        .u.pull = {.deadline_ms = left_ms < 0            ? 0
                                  : left_ms > UINT32_MAX ? UINT32_MAX
                                                         : (uint32_t)left_ms,
                   .n_wanted = t->n_ids_wanted,
                   .wanted = t->wanted},
    };
    bt_channel_put(&peer->channel, &frame);
    t->pull_told = true;
}

static void put_end(bt_sink_peer *peer, bt_sink_transfer *t)
{
    const bt_frame frame = {
        .type = BT_FRAME_END,
        .transfer = t->name,
        .u.end = {.status = t->status, .text = t->text, .text_bytes = (uint32_t)strlen(t->text)},
    };
    bt_channel_put(&peer->channel, &frame);
    t->end_told = true;
    bt_wake_ring(peer->sink->wake); /* deliver() frees it */
}

static void put_frames(bt_sink_peer *peer)
{
    bt_kv_sink *sink = peer->sink;
    if (peer->state != BT_SINK_PEER_READY) {
        return;
    }
    const int64_t now = bt_clock_now_ns();
    if (now - peer->renewed_ns >= peer->lease_ms * MS / 4 && bt_channel_has_room(&peer->channel)) {
        const bt_frame renew = {.type = BT_FRAME_RENEW};
        bt_channel_put(&peer->channel, &renew);
        peer->renewed_ns = now;
    }
    const bool asks = !(peer->channel.ops->caps & BT_TRANSPORT_ONE_SIDED);
    for (size_t i = 0; i < sink->n_open; i++) {
        bt_sink_transfer *t = sink->open[(sink->next_open + i) % sink->n_open];
        if (t->peer != peer || !bt_channel_has_room(&peer->channel)) {
            continue;
        }
        if (t->state == BT_SINK_OPEN && !t->pull_told) {
            put_pull(peer, t);
        } else if (t->state != BT_SINK_OPEN && t->pull_told && !t->end_told) {
            put_end(peer, t);
        }
        while (asks && bt_sink_is_moving(t) && ask(peer, t)) {
        }
    }
}

void bt_sink_peer_serve(bt_sink_peer *peer)
{
    if (peer->state == BT_SINK_PEER_DIALING && !dial(peer)) {
        return;
    }
    for (;;) {
        put_frames(peer);
        if (bt_channel_is_flushed(&peer->channel)) {
            bt_channel_want(&peer->channel, BT_WATCH_READ);
            return;
        }
        size_t sent;
        const bt_status status = bt_channel_flush(&peer->channel, NULL, 0, &sent);
        if (status == BT_EPEER) {
            bt_sink_peer_lose(peer, BT_EPEER, "the source can't be reached");
            return;
        }
        if (status == BT_AGAIN) {
            bt_channel_want(&peer->channel, BT_WATCH_READ | BT_WATCH_WRITE);
            return;
        }
    }
}
