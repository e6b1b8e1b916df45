/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of a source. Frames are put, and answers to incoming ones too, only
 * between pieces of parts; while a piece is under way nothing is read either. So an
 * incoming END or READ waits for at most one piece, and a transfer that has ended is never
 * in the middle of one.
 *
 *   accept        HELLO ok                PROOF ok             lose
 *   -------> NEW ----------> CHALLENGED -----------> READY ------------> FREE
 *             | refused           | refused                               ^
 *             +-------------------+---------> LEAVING --------------------+ REFUSE is out
 *
 * Before READY nothing but CHALLENGE and REFUSE goes out. Who is not READY 3 s after accept is
 * thrown out, and of those without a right HELLO there are STRANGERS_MAX at most: when all
 * places are taken a new connection takes that of the oldest stranger, or else of the oldest
 * that owes its PROOF. So who connects and says nothing keeps nobody else out, and many
 * workers that connect at once do not push each other out.
 */
#include <inttypes.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "kvtransfer/source_int.h"

enum {
    TURN_BYTES = 512 * 1024,  /* sent to one peer in one turn of the loop */
    PIECE_BYTES = 256 * 1024, /* in one DATA frame */
    PIECE_BYTES_MIN = 4096,   /* under a rate limit */
    STRANGERS_LOGGED_S = 5,   /* lines about connections without a proof, each second */
    COALESCE_BYTES = 1 << 20, /* parts that are announced at once even if early */
    COALESCE_NS = 1000000,    /* announcements of a peer are this far apart otherwise */
    REGIONS_MAX = BT_TRANSPORT_IOV_MAX - 1,
};

static const int64_t MS = 1000000; /* ns */

/* ---- READs ---- */

static uint64_t rect_bytes(const bt_source_peer *peer, const bt_plan_rect *rect)
{
    return bt_plan_rect_parts(rect) * peer->source->options.terms.layout.layer_bytes;
}

static bt_source_read *read_at(bt_source_peer *peer, size_t i)
{
    return &peer->reads[(peer->reads_head + i) % BT_SOURCE_READS_MAX];
}

static void pop_read(bt_source_peer *peer)
{
    BT_ASSERT(peer->n_reads > 0);
    peer->reads_head = (peer->reads_head + 1) % BT_SOURCE_READS_MAX;
    peer->n_reads--;
}

static void purge_reads(bt_source_peer *peer, const bt_source_transfer *t)
{
    BT_ASSERT(peer->piece_left == 0);
    size_t kept = 0;
    for (size_t i = 0; i < peer->n_reads; i++) {
        if (read_at(peer, i)->transfer != t) {
            *read_at(peer, kept++) = *read_at(peer, i);
        }
    }
    peer->n_reads = kept;
}

/* ---- life of a connection ---- */

void bt_source_peer_lose(bt_source_peer *peer, const char *text)
{
    bt_kv_source *source = peer->source;
    BT_ASSERT(peer->state != BT_SOURCE_PEER_FREE);
    bt_channel_close(&peer->channel);
    peer->piece_left = 0;
    peer->n_reads = 0;
    if (peer->n_transfers > 0) {
        source->counters.peers_lost++;
        bt_log(BT_WARN, "kv sink lost: transfers=%u reason=\"%s\"", peer->n_transfers, text);
    }
    for (size_t i = 0; i < source->n_open; i++) {
        if (source->open[i]->peer == peer) {
            bt_source_sink_ended(source, source->open[i], BT_KV_OUTCOME_FAILED, text);
        }
    }
    BT_ASSERT(peer->n_transfers == 0);
    for (uint32_t i = 0; i < source->options.max_transfers; i++) {
        if (source->parked[i].peer == peer) {
            bt_source_parked_free(source, &source->parked[i]);
        }
    }
    peer->state = BT_SOURCE_PEER_FREE;
    source->counters.peers_open--;
}

static void reject(bt_source_peer *peer, const bt_error *err)
{
    bt_kv_source *source = peer->source;
    source->counters.frames_rejected++;
    bt_log_limited(&source->strangers_limit, STRANGERS_LOGGED_S, BT_WARN,
                   "kv sink rejected: proven=%d reason=\"%s\"", peer->state == BT_SOURCE_PEER_READY,
                   err->text);
    bt_source_peer_lose(peer, err->text);
}

static void put_end(bt_source_peer *peer, bt_frame_type type, bt_kv_transfer transfer,
                    bt_status status, const char *text)
{
    const bt_frame frame = {
        .type = type,
        .transfer = transfer,
        .u.end = {.status = status, .text = text, .text_bytes = (uint32_t)strlen(text)},
    };
    bt_channel_put(&peer->channel, &frame);
}

/* ---- frames in: BT_EPROTOCOL closes the connection ---- */

static void refuse(bt_source_peer *peer, bt_status status, const char *text)
{
    bt_kv_source *source = peer->source;
    source->counters.handshakes_refused++;
    bt_log_limited(&source->strangers_limit, STRANGERS_LOGGED_S, BT_WARN,
                   "kv sink refused: reason=\"%s\"", text);
    put_end(peer, BT_FRAME_REFUSE, (bt_kv_transfer){0}, status, text);
    peer->state = BT_SOURCE_PEER_LEAVING;
}

static void put_challenge(bt_source_peer *peer, bt_kv_auth wish)
{
    const bt_kv_source_options *o = &peer->source->options;
    const bool is_stream = (peer->channel.ops->caps & BT_TRANSPORT_STREAM) != 0;
    const bt_kv_auth auth = is_stream && o->auth > wish ? o->auth : wish;
    bt_frame frame = {
        .type = BT_FRAME_CHALLENGE,
        .u.challenge = {.auth = (uint32_t)auth, .incarnation = o->incarnation},
    };
    bt_hash_random(frame.u.challenge.nonce, sizeof frame.u.challenge.nonce);
    bt_channel_put(&peer->channel, &frame);
    peer->tags_parts = is_stream && auth == BT_KV_AUTH_FULL;
    peer->state = BT_SOURCE_PEER_CHALLENGED;
}

/* Its tag was right: the sink has the key, or repeats one that had. */
static bt_status on_hello(bt_source_peer *peer, const bt_frame_hello *hello, bt_error *err)
{
    const bt_kv_source_options *o = &peer->source->options;
    bt_status status = bt_frame_hello_check(hello, &o->terms, err);
    if (status == BT_OK && hello->expected != o->incarnation) {
        status = bt_error_set(err, BT_EMISMATCH,
                              "this address belongs to another incarnation of the worker, which "
                              "has restarted. Ask the router for its new address.");
    }
    if (status == BT_OK && hello->auth != BT_KV_AUTH_FRAMES && hello->auth != BT_KV_AUTH_FULL) {
        status = bt_error_set(err, BT_EPROTOCOL, "a HELLO with an unknown wish");
    }
    if (status == BT_EPROTOCOL) {
        return status;
    }
    if (status != BT_OK) {
        refuse(peer, status, err->text);
    } else {
        put_challenge(peer, (bt_kv_auth)hello->auth);
    }
    return BT_OK;
}

/* A HELLO (`key_error` says that its tag is wrong), or the PROOF's tag is wrong. */
static bt_status on_stranger(bt_source_peer *peer, const bt_frame *frame, bt_error *key_error)
{
    bt_error err = *key_error;
    if (peer->state == BT_SOURCE_PEER_NEW) {
        const bt_status status = bt_frame_hello_check_version(&frame->u.hello, &err);
        if (status == BT_EPROTOCOL) {
            *key_error = err;
            return status;
        }
        refuse(peer, BT_EMISMATCH, err.text);
    } else {
        refuse(peer, BT_EPERMISSION, "the proof of the cluster key is wrong");
    }
    return BT_OK;
}

static size_t count_ready(const bt_kv_source *source)
{
    size_t n = 0;
    for (size_t i = 0; i < source->n_peers; i++) {
        n += source->peers[i].state == BT_SOURCE_PEER_READY;
    }
    return n;
}

/* Its tag was right: the sink has the key. */
static void on_proof(bt_source_peer *peer)
{
    bt_kv_source *source = peer->source;
    const bt_kv_source_options *o = &source->options;
    if (count_ready(source) == o->max_peers) {
        refuse(peer, BT_EEXHAUSTED, "the source has too many peers");
        return;
    }
    bt_frame frame = {.type = BT_FRAME_WELCOME};
    bt_frame_hello_set(&frame.u.hello, &o->terms, o->incarnation, o->n_blocks);
    frame.u.hello.lease_ms = o->lease_ms;
    if (peer->channel.ops->caps & BT_TRANSPORT_ONE_SIDED) {
        peer->channel.ops->share(peer->channel.conn, source->share_fd);
    }
    bt_channel_put(&peer->channel, &frame);
    peer->state = BT_SOURCE_PEER_READY;
}

static bt_source_parked *free_parked(bt_kv_source *source)
{
    for (uint32_t i = 0; i < source->options.max_transfers; i++) {
        if (!source->parked[i].peer) {
            return &source->parked[i];
        }
    }
    return NULL;
}

/* A PULL by identity is parked as one that came before its offer, which the owner now makes. */
static void ask_for_cached(bt_kv_source *source, const bt_frame *frame, int64_t deadline_ns)
{
    if (!source->callbacks.wanted) {
        (void)bt_kv_source_refuse(source, frame->transfer, BT_EUNSUPPORTED,
                                  "this worker hands no cached blocks on");
        return;
    }
    bt_hash128 identities[BT_KV_WANTED_MAX];
    const uint32_t n = frame->u.pull.n_wanted;
    for (uint32_t i = 0; i < n; i++) {
        identities[i] = bt_hash128_from_bytes(frame->u.pull.wire + 16 * (size_t)i);
    }
    source->callbacks.wanted(frame->transfer, identities, n, deadline_ns, source->callbacks.ctx);
}

static void on_pull(bt_source_peer *peer, const bt_frame *frame)
{
    bt_kv_source *source = peer->source;
    bt_source_transfer *t = bt_source_find(source, frame->transfer);
    if (t && t->state == BT_SOURCE_OFFERED && frame->u.pull.n_wanted == 0) {
        bt_source_link(t, peer);
        return;
    }
    if (t) {
        put_end(peer, BT_FRAME_REVOKE, frame->transfer, BT_EEXISTS,
                "another worker pulls this transfer");
        return;
    }
    const bt_source_recent *recent = bt_source_find_recent(source, frame->transfer);
    if (recent) {
        source->counters.pulls_unknown++;
        const bool was_refused = recent->status != BT_OK;
        put_end(peer, BT_FRAME_REVOKE, frame->transfer, was_refused ? recent->status : BT_ENOTFOUND,
                was_refused ? recent->text : "the source has released these blocks already");
        return;
    }
    bt_source_parked *parked = free_parked(source);
    if (!parked) {
        put_end(peer, BT_FRAME_REVOKE, frame->transfer, BT_EEXHAUSTED,
                "too many pulls are waiting for their offer at the source");
        return;
    }
    *parked = (bt_source_parked){
        .peer = peer,
        .name = frame->transfer,
        .deadline_ns = bt_clock_now_ns() + frame->u.pull.deadline_ms * MS,
    };
    source->n_parked++;
    source->counters.transfers_parked++;
    source->counters.pulls_parked++;
    if (frame->u.pull.n_wanted > 0) {
        ask_for_cached(source, frame, parked->deadline_ns);
    }
}

static bt_status on_read(bt_source_peer *peer, const bt_frame *frame, bt_error *err)
{
    const bt_plan_rect *rect = &frame->u.read.rect;
    const uint32_t caps = peer->channel.ops->caps;
    if (caps & BT_TRANSPORT_ONE_SIDED) {
        return bt_error_set(err, BT_EPROTOCOL, "a READ over a one-sided transport");
    }
    bt_source_transfer *t = bt_source_find(peer->source, frame->transfer);
    if (!t || t->peer != peer || t->state != BT_SOURCE_LINKED) {
        return BT_OK; /* crossed with our REVOKE */
    }
    if (!bt_plan_set_holds(&t->told, rect)) {
        return bt_error_set(err, BT_EPROTOCOL, "a READ outside the offer");
    }
    for (uint32_t b = rect->block_idx; b < rect->block_idx + rect->n_blocks; b++) {
        for (uint32_t layer = rect->layer; layer < rect->layer + rect->n_layers; layer++) {
            if (!bt_plan_set_has(&t->told, b, layer)) {
                return bt_error_set(err, BT_EPROTOCOL, "a READ of a part not announced");
            }
        }
    }
    if ((caps & BT_TRANSPORT_TWO_SIDED) &&
        (rect->n_blocks > REGIONS_MAX || rect_bytes(peer, rect) > BT_FRAME_DATA_BYTES_MAX)) {
        return bt_error_set(err, BT_EPROTOCOL, "a READ of too many bytes");
    }
    if (peer->n_reads == BT_SOURCE_READS_MAX) {
        return bt_error_set(err, BT_EPROTOCOL, "more than %d READs", BT_SOURCE_READS_MAX);
    }
    *read_at(peer, peer->n_reads++) =
        (bt_source_read){.transfer = t, .op = frame->u.read.op, .rect = *rect};
    return BT_OK;
}

static void on_end(bt_source_peer *peer, const bt_frame *frame)
{
    bt_kv_source *source = peer->source;
    const bt_status status = frame->u.end.status;
    for (uint32_t i = 0; i < source->options.max_transfers && source->n_parked > 0; i++) {
        bt_source_parked *parked = &source->parked[i];
        if (parked->peer == peer && bt_kv_transfer_equal(parked->name, frame->transfer)) {
            bt_source_parked_free(source, parked);
            return;
        }
    }
    bt_source_transfer *t = bt_source_find(source, frame->transfer);
    if (!t || t->peer != peer) {
        return; /* answers a REVOKE of something that never was here */
    }
    char text[BT_KV_TEXT_BYTES];
    const size_t n = bt_size_min(frame->u.end.text_bytes, sizeof text - 1);
    memcpy(text, frame->u.end.text, n);
    text[n] = '\0';
    purge_reads(peer, t);
    const bt_kv_outcome outcome = status == BT_OK           ? BT_KV_OUTCOME_PULLED
                                  : status == BT_ECANCELLED ? BT_KV_OUTCOME_CANCELLED
                                                            : BT_KV_OUTCOME_FAILED;
    bt_source_sink_ended(source, t, outcome, text);
}

static bt_status on_frame(bt_source_peer *peer, const bt_frame *frame, bt_error *err)
{
    if (frame->type == BT_FRAME_HELLO && peer->state == BT_SOURCE_PEER_NEW) {
        return on_hello(peer, &frame->u.hello, err);
    }
    if (frame->type == BT_FRAME_PROOF && peer->state == BT_SOURCE_PEER_CHALLENGED) {
        on_proof(peer);
        return BT_OK;
    }
    if (peer->state != BT_SOURCE_PEER_READY) {
        return bt_error_set(err, BT_EPROTOCOL, "a %s frame before the handshake was over",
                            bt_frame_type_name(frame->type));
    }
    const bt_frame renew = {.type = BT_FRAME_RENEW};
    switch (frame->type) {
    case BT_FRAME_PULL:
        on_pull(peer, frame);
        return BT_OK;
    case BT_FRAME_RENEW:
        bt_channel_put(&peer->channel, &renew);
        return BT_OK;
    case BT_FRAME_READ:
        return on_read(peer, frame, err);
    case BT_FRAME_END:
        on_end(peer, frame);
        return BT_OK;
    default:
        return bt_error_set(err, BT_EPROTOCOL, "a %s frame from a sink",
                            bt_frame_type_name(frame->type));
    }
}

static bool may_handle(const bt_source_peer *peer)
{
    return peer->piece_left == 0 && bt_channel_has_room(&peer->channel) &&
           peer->state != BT_SOURCE_PEER_LEAVING;
}

/* False: the connection was lost. */
static bool handle_input(bt_source_peer *peer)
{
    while (may_handle(peer)) {
        bt_frame frame;
        bt_error err;
        bt_status status = bt_channel_next(&peer->channel, &frame, &err);
        if (status == BT_AGAIN) {
            break;
        }
        if (status == BT_OK) {
            peer->heard_ns = bt_clock_now_ns();
            status = on_frame(peer, &frame, &err);
        } else if (status == BT_EPERMISSION && peer->state != BT_SOURCE_PEER_READY) {
            status = on_stranger(peer, &frame, &err);
        }
        if (status != BT_OK) {
            reject(peer, &err);
            return false;
        }
    }
    return true;
}

/* ---- frames out ---- */

/* True: the offer has been told in whole. */
static bool put_offer(bt_source_peer *peer, bt_source_transfer *t)
{
    const bool with_ids = (peer->channel.ops->caps & BT_TRANSPORT_ONE_SIDED) != 0;
    while (!t->offer_told && bt_channel_has_room(&peer->channel)) {
        const uint32_t left = with_ids ? t->n_blocks - t->n_ids_told : 0;
        const uint32_t n = left < BT_FRAME_IDS_MAX ? left : BT_FRAME_IDS_MAX;
        const bt_frame frame = {
            .type = BT_FRAME_OFFER,
            .transfer = t->name,
            .u.offer = {.n_tokens = t->n_tokens,
                        .n_blocks = t->n_blocks,
                        .first = t->n_ids_told,
                        .n_ids = n,
                        .ids = t->ids + t->n_ids_told},
        };
        bt_channel_put(&peer->channel, &frame);
        t->n_ids_told += n;
        t->offer_told = n == left;
    }
    return t->offer_told;
}

static void put_announce(bt_source_peer *peer, bt_source_transfer *t)
{
    bt_kv_source *source = peer->source;
    uint32_t sums[BT_FRAME_SUMS_MAX];
    bt_plan_rect rect;
    while (bt_channel_has_room(&peer->channel) &&
           bt_plan_next(&t->summed, &t->told, 0, BT_FRAME_SUMS_MAX, &rect)) {
        size_t n = 0;
        for (uint32_t b = rect.block_idx; b < rect.block_idx + rect.n_blocks; b++) {
            memcpy(sums + n, t->sums + (size_t)b * t->told.n_layers + rect.layer,
                   rect.n_layers * sizeof *sums);
            n += rect.n_layers;
        }
        const bt_frame frame = {
            .type = BT_FRAME_ANNOUNCE,
            .transfer = t->name,
            .u.announce = {.rect = rect, .sums = sums},
        };
        bt_channel_put(&peer->channel, &frame);
        t->n_told += bt_plan_set_add(&t->told, &rect);
        source->counters.announce_frames++;
    }
}

static void put_complete(bt_source_peer *peer, bt_source_transfer *t)
{
    /* Parts that are final go first, unless nobody wants them. */
    const bool all_told = t->n_told == t->n_final;
    if (t->has_blob && !t->blob_told && (all_told || t->ends) &&
        bt_channel_has_room(&peer->channel)) {
        const bt_frame frame = {
            .type = BT_FRAME_COMPLETE,
            .transfer = t->name,
            .u.complete = {.ends = t->ends, .blob = t->blob, .blob_bytes = t->blob_bytes},
        };
        bt_channel_put(&peer->channel, &frame);
        t->blob_told = true;
    }
}

/* Announcements gather for COALESCE_NS after the last ones, except when there is much to
 * say or the computation is over. */
static bool announce_is_due(bt_source_peer *peer, int64_t now)
{
    bt_kv_source *source = peer->source;
    uint64_t waiting = 0;
    for (size_t i = 0; i < source->n_open; i++) {
        const bt_source_transfer *t = source->open[i];
        if (t->peer == peer && t->state == BT_SOURCE_LINKED) {
            waiting += t->n_summed - t->n_told;
            if (t->has_blob && !t->blob_told) {
                return true;
            }
        }
    }
    if (waiting == 0) {
        return false;
    }
    const int64_t since = now - peer->told_ns;
    if (waiting * source->options.terms.layout.layer_bytes >= COALESCE_BYTES ||
        since >= COALESCE_NS || since < 0) {
        return true;
    }
    bt_source_pump_soon(source, COALESCE_NS - since);
    return false;
}

static void put_refusals(bt_source_peer *peer)
{
    bt_kv_source *source = peer->source;
    for (uint32_t i = 0; i < source->options.max_transfers && source->n_parked > 0; i++) {
        bt_source_parked *parked = &source->parked[i];
        if (parked->peer == peer && parked->refusal != BT_OK &&
            bt_channel_has_room(&peer->channel)) {
            put_end(peer, BT_FRAME_REVOKE, parked->name, parked->refusal, parked->text);
            bt_source_parked_free(source, parked);
        }
    }
}

static void put_frames(bt_source_peer *peer)
{
    bt_kv_source *source = peer->source;
    if (peer->state != BT_SOURCE_PEER_READY) {
        return;
    }
    put_refusals(peer);
    const int64_t now = bt_clock_now_ns();
    const bool is_due = peer->n_transfers > 0 && announce_is_due(peer, now);
    for (size_t i = 0; i < source->n_open; i++) {
        bt_source_transfer *t = source->open[i];
        if (t->peer != peer) {
            continue;
        }
        if (t->state == BT_SOURCE_STOPPING && !t->revoke_told &&
            bt_channel_has_room(&peer->channel)) {
            put_end(peer, BT_FRAME_REVOKE, t->name, t->status, t->text);
            t->revoke_told = true;
            if (!(peer->channel.ops->caps & BT_TRANSPORT_ONE_SIDED)) {
                purge_reads(peer, t); /* we were the only reader */
                bt_source_sink_ended(source, t, t->outcome, t->text);
                continue;
            }
        }
        if (t->state == BT_SOURCE_LINKED && put_offer(peer, t)) {
            if (is_due) {
                put_announce(peer, t);
                peer->told_ns = now;
            }
            put_complete(peer, t);
        }
    }
}

/* ---- parts out ---- */

static size_t piece_iov(bt_source_peer *peer, const bt_source_read *read, uint64_t at,
                        uint64_t bytes, struct iovec *iov)
{
    const bt_kv_source_options *o = &peer->source->options;
    bt_plan_region regions[REGIONS_MAX];
    uint64_t sum;
    const size_t n = bt_plan_regions(&o->terms.layout, read->transfer->ids, &read->rect, at, bytes,
                                     regions, REGIONS_MAX, &sum);
    for (size_t i = 0; i < n; i++) {
        /* The transport only reads it. */
        const uint8_t *from = (const uint8_t *)o->pool_base + regions[i].offset;
        iov[i] = (struct iovec){(void *)(uintptr_t)from, (size_t)regions[i].bytes};
    }
    return n;
}

/* Of the parts that follow the DATA frame that is put next. */
static void tag_piece(bt_source_peer *peer, const bt_source_read *read, uint64_t bytes,
                      uint8_t tag[BT_FRAME_TAG_BYTES])
{
    const bt_kv_source_options *o = &peer->source->options;
    bt_mac mac;
    bt_channel_start_put_parts(&peer->channel, &mac);
    for (uint64_t at = 0; at < bytes;) {
        bt_plan_region regions[REGIONS_MAX];
        uint64_t sum;
        const size_t n = bt_plan_regions(&o->terms.layout, read->transfer->ids, &read->rect,
                                         read->sent + at, bytes - at, regions, REGIONS_MAX, &sum);
        BT_ASSERT(sum > 0);
        for (size_t i = 0; i < n; i++) {
            bt_mac_update(&mac, (const uint8_t *)o->pool_base + regions[i].offset,
                          (size_t)regions[i].bytes);
        }
        at += sum;
    }
    bt_mac_final(&mac, tag);
}

static uint64_t piece_bytes_max(const bt_source_peer *peer)
{
    const uint64_t bytes_s = peer->source->rate.bytes_s;
    if (bytes_s == 0) {
        return PIECE_BYTES;
    }
    const uint64_t in_1_ms = bytes_s / 1000;
    return in_1_ms < PIECE_BYTES_MIN ? PIECE_BYTES_MIN
           : in_1_ms > PIECE_BYTES   ? PIECE_BYTES
                                     : in_1_ms;
}

static void finish_piece(bt_source_peer *peer)
{
    const bt_source_read *read = read_at(peer, 0);
    if (read->sent == rect_bytes(peer, &read->rect)) {
        pop_read(peer);
    }
}

/* Starts to serve the oldest READ. BT_OK: *bytes were put or filled. BT_AGAIN: nothing to do
 * now. Failures are the peer's. */
static bt_status start_piece(bt_source_peer *peer, uint64_t *bytes)
{
    bt_kv_source *source = peer->source;
    while (peer->n_reads > 0 && read_at(peer, 0)->transfer->state != BT_SOURCE_LINKED) {
        pop_read(peer); /* it is stopping: the sink will answer REVOKE */
    }
    if (peer->n_reads == 0 || !bt_channel_has_room(&peer->channel)) {
        return BT_AGAIN;
    }
    const int64_t now = bt_clock_now_ns();
    const int64_t wait = bt_rate_wait(&source->rate, now);
    if (wait > 0) {
        bt_source_pump_soon(source, wait);
        return BT_AGAIN;
    }
    bt_source_read *read = read_at(peer, 0);
    const bool two_sided = (peer->channel.ops->caps & BT_TRANSPORT_TWO_SIDED) != 0;
    const uint64_t left = rect_bytes(peer, &read->rect) - read->sent;
    const uint64_t most = two_sided ? left : piece_bytes_max(peer);
    const uint64_t n = left < most ? left : most;
    if (two_sided) {
        struct iovec iov[REGIONS_MAX];
        const size_t n_iov = piece_iov(peer, read, 0, n, iov);
        const bt_status status = peer->channel.ops->fill(peer->channel.conn, read->op, iov, n_iov);
        if (status != BT_OK) {
            return status;
        }
    }
    bt_frame frame = {
        .type = BT_FRAME_DATA,
        .transfer = read->transfer->name,
        .u.data = {.op = read->op, .bytes = (uint32_t)n, .offset = read->sent},
    };
    if (peer->tags_parts) {
        tag_piece(peer, read, n, frame.u.data.tag);
    }
    bt_channel_put(&peer->channel, &frame);
    peer->piece_at = read->sent;
    peer->piece_left = two_sided ? 0 : n;
    read->sent += n;
    source->counters.bytes_sent += n;
    bt_rate_charge(&source->rate, now, n);
    if (two_sided) {
        finish_piece(peer);
    }
    *bytes = n;
    return BT_OK;
}

/* One send. BT_OK: it took all that was tried of the frames. */
static bt_status send_some(bt_source_peer *peer)
{
    struct iovec iov[REGIONS_MAX];
    iov[0] = (struct iovec){0};
    size_t n = 0;
    if (peer->piece_left > 0) {
        n = piece_iov(peer, read_at(peer, 0), peer->piece_at, peer->piece_left, iov);
    }
    size_t sent = 0;
    const bt_status status = bt_channel_flush(&peer->channel, iov, n, &sent);
    BT_ASSERT(sent <= peer->piece_left);
    peer->piece_at += sent;
    peer->piece_left -= sent;
    if (n > 0 && peer->piece_left == 0) {
        finish_piece(peer);
    }
    return status;
}

static void want(bt_source_peer *peer, bool write)
{
    const bool read = may_handle(peer);
    bt_channel_want(&peer->channel,
                    (read ? BT_WATCH_READ : 0) | (write || !read ? BT_WATCH_WRITE : 0));
}

bool bt_source_peer_serve(bt_source_peer *peer)
{
    uint64_t left = TURN_BYTES;
    for (;;) {
        uint64_t bytes = 0;
        if (peer->piece_left == 0) {
            if (!handle_input(peer)) {
                return false;
            }
            put_frames(peer);
            const bt_status status = start_piece(peer, &bytes);
            if (status < 0) {
                bt_source_peer_lose(peer, "the transport failed");
                return false;
            }
        }
        const bool idle = peer->piece_left == 0 && bt_channel_is_flushed(&peer->channel);
        if (idle && peer->state == BT_SOURCE_PEER_LEAVING) {
            bt_source_peer_lose(peer, "refused");
            return false;
        }
        if (idle || left < bytes) {
            want(peer, false);
            return !idle;
        }
        left -= bytes;
        const bt_status status = send_some(peer);
        if (status == BT_EPEER) {
            bt_source_peer_lose(peer, "the connection broke");
            return false;
        }
        if (status == BT_AGAIN) {
            want(peer, true);
            return false;
        }
    }
}

static void on_event(int events, void *ctx)
{
    bt_source_peer *peer = ctx;
    if ((events & BT_WATCH_READ) && may_handle(peer)) {
        size_t got;
        const bt_status status = bt_channel_fill(&peer->channel, NULL, 0, &got);
        if (status == BT_EPEER) {
            bt_source_peer_lose(peer, "the connection was closed");
            return;
        }
    }
    if (bt_source_peer_serve(peer)) {
        bt_wake_ring(peer->source->wake);
    }
}

static bt_source_peer *older(bt_source_peer *a, bt_source_peer *b)
{
    return !a || b->since_ns < a->since_ns ? b : a;
}

/* A place for a new connection: a free one, or that of the oldest which has shown least. */
static bt_source_peer *take_place(bt_kv_source *source)
{
    bt_source_peer *unused = NULL;
    bt_source_peer *stranger = NULL;
    bt_source_peer *challenged = NULL;
    size_t n_strangers = 0;
    for (size_t i = 0; i < source->n_peers; i++) {
        bt_source_peer *peer = &source->peers[i];
        switch (peer->state) {
        case BT_SOURCE_PEER_FREE:
            unused = unused ? unused : peer;
            break;
        case BT_SOURCE_PEER_NEW:
        case BT_SOURCE_PEER_LEAVING:
            stranger = older(stranger, peer);
            n_strangers++;
            break;
        case BT_SOURCE_PEER_CHALLENGED:
            challenged = older(challenged, peer);
            break;
        case BT_SOURCE_PEER_READY:
            break;
        }
    }
    if (unused && n_strangers < BT_SOURCE_STRANGERS_MAX) {
        return unused;
    }
    bt_source_peer *out = stranger ? stranger : challenged;
    BT_ASSERT(out); /* READY are at most max_peers */
    source->counters.handshakes_refused++;
    bt_log_limited(&source->strangers_limit, STRANGERS_LOGGED_S, BT_WARN,
                   "kv sink turned away: reason=\"too many connections without a proof\"");
    bt_source_peer_lose(out, "too many connections without a proof");
    return out;
}

void bt_source_peer_accept(bt_conn *conn, void *ctx)
{
    bt_kv_source *source = ctx;
    bt_source_peer *peer = take_place(source);
    const bt_channel_options options = {.side = BT_SESSION_SOURCE,
                                        .cluster_key = &source->options.terms.cluster_key,
                                        .fn = on_event,
                                        .ctx = peer,
                                        .fault = source->options.fault};
    source->counters.connections++;
    if (bt_channel_open(&peer->channel, conn, &options) != BT_OK) {
        source->counters.handshakes_refused++;
        return;
    }
    peer->state = BT_SOURCE_PEER_NEW;
    peer->since_ns = bt_clock_now_ns();
    peer->heard_ns = peer->since_ns;
    peer->told_ns = peer->heard_ns - COALESCE_NS;
    peer->tags_parts = false;
    peer->n_transfers = 0;
    peer->reads_head = peer->n_reads = 0;
    peer->piece_left = 0;
    source->counters.peers_open++;
    bt_channel_want(&peer->channel, BT_WATCH_READ);
}
