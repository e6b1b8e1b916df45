/* SPDX-License-Identifier: Apache-2.0 */
/* Ten thousand wrong sessions against a source and as many against a sink, over loopback: a
 * valid session, some of whose frames are changed, doubled, dropped, swapped, cut or mixed
 * with garbage. Half of them by an outsider, who changes bytes on the way and can't sign
 * them; half by an insider, who has the key and signs what he has changed.
 *
 * Whatever comes: one callback for each offer and each open, the right bytes in the sink's
 * blocks when it says done, nothing outside them, no connection and no transfer left behind,
 * and an honest pull in between that works. Seeds are fixed, so a failure repeats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/hash.h"
#include "common/log.h"
#include "kvtransfer/frame.h"
#include "kvtransfer/session.h"
#include "kvtransfer/sink.h"
#include "kvtransfer/source.h"
#include "kvtransfer/transport.h"

enum {
    CASES = 10000,
    HONEST_EACH = 250, /* an honest pull after so many cases */
    POOL_BLOCKS = 16,
    LAYERS = 2,
    BLOCKS = 3,
    FIRST = 5, /* block of either pool */
    UNTOUCHED = 0xA5,
    FRAMES_MAX = 12,
    TAG_AT = BT_FRAME_HEADER_BYTES - BT_FRAME_TAG_BYTES,
    SUM_AT = 36,
};

typedef struct rig {
    bt_loop *loop;
    bt_wake *wake;
    int n_turns;
    bt_kv_loopback *hub;
    bt_kv_terms terms;
    bt_mapping source_pool, sink_pool;
    bt_kv_source *source;
    bt_kv_sink *sink;
    bt_listener *listener; /* of the source by hand */
    bt_kv_peer peer;
    uint32_t number; /* of the transfer */
    int n_done, n_failed, n_released;
    bool ends;
    uint64_t seed;
} rig;

/* The other end, by hand. */
typedef struct hand {
    bt_conn *conn;
    bool broken;
    bt_session session;
    uint64_t n_sent;
    uint8_t in[1 << 16];
    size_t in_len;
    uint32_t ops[FRAMES_MAX]; /* READs that came */
    bt_plan_rect rects[FRAMES_MAX];
    size_t n_ops;
    /* what is to be done to the session */
    bool insider;
    int n_changes;
    size_t at; /* the frame that is changed first */
    uint8_t kept[BT_FRAME_BYTES_MAX];
    size_t kept_len; /* a frame that was held back */
} hand;

static uint32_t next_random(rig *r, uint32_t below)
{
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->seed >> 33) % below;
}

/* ---- turns of the loop ---- */

static void on_wake(void *ctx)
{
    rig *r = ctx;
    if (--r->n_turns <= 0) {
        bt_loop_stop(r->loop);
    } else {
        bt_wake_ring(r->wake);
    }
}

static void turn(rig *r, int n)
{
    r->n_turns = n;
    bt_wake_ring(r->wake);
    bt_loop_run(r->loop);
}

/* ---- callbacks ---- */

static void on_released(bt_kv_transfer transfer, bt_kv_outcome outcome, const char *text, void *ctx)
{
    rig *r = ctx;
    (void)outcome;
    (void)text;
    assert_int_equal(transfer.request.lo, r->number);
    r->n_released++;
}

static void on_done(const bt_kv_done *done, void *ctx)
{
    rig *r = ctx;
    assert_int_equal(done->transfer.request.lo, r->number);
    r->ends = done->ends;
    r->n_done++;
}

static void on_failed(bt_kv_transfer transfer, bt_status status, const char *text, void *ctx)
{
    rig *r = ctx;
    assert_int_equal(transfer.request.lo, r->number);
    assert_true(status < 0);
    assert_true(strlen(text) < BT_KV_TEXT_BYTES);
    r->n_failed++;
}

static bt_kv_transfer name_of(const rig *r)
{
    return (bt_kv_transfer){.request = {.hi = 7, .lo = r->number}, .attempt = 1};
}

/* ---- set-up ---- */

static void start_source(rig *r)
{
    const bt_kv_source_options options = {
        .terms = r->terms,
        .incarnation = 11,
        .pool_base = r->source_pool.base,
        .n_blocks = POOL_BLOCKS,
        .pool_fd = -1,
        .loopback = r->hub,
        .max_transfers = 4,
        .max_transfer_blocks = 8,
        .max_peers = 4,
    };
    const bt_kv_source_callbacks callbacks = {.released = on_released, .ctx = r};
    assert_int_equal(bt_kv_source_create(r->loop, &options, &callbacks, &r->source, NULL), BT_OK);
    bt_kv_source_peer(r->source, &r->peer);
}

static void start_sink(rig *r)
{
    const bt_kv_sink_options options = {
        .terms = r->terms,
        .incarnation = 22,
        .pool_base = r->sink_pool.base,
        .n_blocks = POOL_BLOCKS,
        .transport = BT_KV_TRANSPORT_LOOPBACK,
        .loopback = r->hub,
        .max_transfers = 4,
        .max_transfer_blocks = 8,
        .max_peers = 4,
    };
    const bt_kv_sink_callbacks callbacks = {.done = on_done, .failed = on_failed, .ctx = r};
    assert_int_equal(bt_kv_sink_create(r->loop, &options, &callbacks, &r->sink, NULL), BT_OK);
}

static rig *rig_create(uint64_t seed)
{
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    bt_log_init(BT_ERROR, BT_LOG_FORMAT_TEXT, "");
    r->seed = seed;
    r->terms = (bt_kv_terms){.numerics_id = {1}, .cluster_key = {{2}}};
    assert_true(bt_kv_layout_init(&r->terms.layout, LAYERS, 1, 8, BT_KV_FORMAT_BF16));
    assert_int_equal(bt_loop_create(&r->loop), BT_OK);
    assert_int_equal(bt_wake_create(r->loop, on_wake, r, &r->wake), BT_OK);
    assert_int_equal(bt_kv_loopback_create(r->loop, &r->hub), BT_OK);
    const size_t bytes = POOL_BLOCKS * r->terms.layout.block_bytes;
    assert_int_equal(bt_alloc_map_anon(bytes, &r->source_pool, NULL), BT_OK);
    assert_int_equal(bt_alloc_map_anon(bytes, &r->sink_pool, NULL), BT_OK);
    uint8_t *b = r->source_pool.base;
    for (size_t i = 0; i < bytes; i++) {
        b[i] = (uint8_t)(i * 37 + i / 251);
    }
    memset(r->sink_pool.base, UNTOUCHED, bytes);
    return r;
}

static void rig_destroy(rig *r)
{
    if (r->listener) {
        r->listener->ops->unlisten(r->listener);
    }
    bt_kv_sink_destroy(r->sink);
    bt_kv_source_destroy(r->source);
    bt_kv_loopback_destroy(r->hub);
    bt_wake_destroy(r->wake);
    bt_loop_destroy(r->loop);
    bt_alloc_unmap(&r->source_pool);
    bt_alloc_unmap(&r->sink_pool);
    free(r);
}

static void begin_case(rig *r)
{
    r->number++;
    r->n_done = r->n_failed = r->n_released = 0;
    r->ends = false;
}

static uint8_t *block_of(const rig *r, const bt_mapping *pool, uint32_t block)
{
    return (uint8_t *)pool->base + block * r->terms.layout.block_bytes;
}

/* The blocks of a pull are right if it is done; no other block was written. */
static void check_sink_pool(rig *r)
{
    const size_t bytes = r->terms.layout.block_bytes;
    if (r->n_done == 1 && !r->ends) {
        assert_memory_equal(block_of(r, &r->sink_pool, FIRST), block_of(r, &r->source_pool, FIRST),
                            BLOCKS * bytes);
    }
    memset(block_of(r, &r->sink_pool, FIRST), UNTOUCHED, BLOCKS * bytes);
    const uint8_t *all = r->sink_pool.base;
    for (size_t i = 0; i < POOL_BLOCKS * bytes; i++) {
        if (all[i] != UNTOUCHED) {
            fail_msg("byte %zu of the pool was written", i);
        }
    }
}

static void offer(rig *r)
{
    const bt_block_id ids[] = {FIRST, FIRST + 1, FIRST + 2};
    const bt_kv_offer o = {.transfer = name_of(r),
                           .block_ids = ids,
                           .n_blocks = BLOCKS,
                           .n_tokens = BLOCKS * BT_KV_BLOCK_TOKENS};
    assert_int_equal(bt_kv_source_offer(r->source, &o, NULL), BT_OK);
    assert_int_equal(bt_kv_source_announce_blocks(r->source, o.transfer, 0, BLOCKS), BT_OK);
    assert_int_equal(bt_kv_source_complete(r->source, o.transfer, "token", 5, false), BT_OK);
}

static void pull(rig *r)
{
    const bt_block_id ids[] = {FIRST, FIRST + 1, FIRST + 2};
    const int64_t deadline_ns = bt_clock_now_ns() + 3600 * (int64_t)1000000000;
    assert_int_equal(bt_kv_sink_open(r->sink, name_of(r), &r->peer, deadline_ns, NULL), BT_OK);
    assert_int_equal(bt_kv_sink_pull(r->sink, name_of(r), ids, BLOCKS, 0, NULL), BT_OK);
}

/* ---- signing, as the formula in session.h has it and without its assertions ---- */

static void repair_sum(uint8_t *wire, size_t n)
{
    const uint32_t sum = bt_crc32c(bt_crc32c(0, wire, SUM_AT), wire + BT_FRAME_HEADER_BYTES,
                                   n - BT_FRAME_HEADER_BYTES);
    for (size_t i = 0; i < 4; i++) {
        wire[SUM_AT + i] = (uint8_t)(sum >> (8 * i));
    }
}

static void sign(hand *h, uint8_t *wire, size_t n)
{
    repair_sum(wire, n);
    memset(wire + TAG_AT, 0, BT_FRAME_TAG_BYTES);
    if (h->session.open) {
        bt_hash128_to_bytes(bt_hash128_of(&h->session.own, wire, n), wire + TAG_AT);
    }
}

/* ---- changing ---- */

static void change_bytes(rig *r, uint8_t *wire, size_t n)
{
    static const uint8_t edges[] = {0, 1, 0x7F, 0x80, 0xFE, 0xFF};
    const size_t at = next_random(r, (uint32_t)n);
    switch (next_random(r, 4)) {
    case 0:
        wire[at] ^= (uint8_t)(1 << next_random(r, 8));
        break;
    case 1:
        wire[at] = (uint8_t)next_random(r, 256);
        break;
    case 2:
        wire[at] = edges[next_random(r, BT_ARRAY_LEN(edges))];
        break;
    default: /* a whole number becomes large or small */
        memset(wire + at / 4 * 4, edges[next_random(r, BT_ARRAY_LEN(edges))],
               bt_size_min(4, n - at / 4 * 4));
        break;
    }
}

/* ---- the hand's connection ---- */

static void send_bytes(rig *r, hand *h, const uint8_t *bytes, size_t n)
{
    const struct iovec iov = {(void *)(uintptr_t)bytes, n};
    size_t sent = 0;
    if (n == 0 || h->broken) {
        return;
    }
    if (h->conn->ops->send(h->conn, &iov, 1, &sent) != BT_OK) {
        h->broken = true;
    }
    turn(r, 3);
}

static bool is_changed(const hand *h, size_t frame_idx)
{
    return h->n_changes > 0 && frame_idx >= h->at && frame_idx < h->at + (size_t)h->n_changes;
}

static void put(rig *r, hand *h, const bt_frame *frame)
{
    uint8_t wire[2 * BT_FRAME_BYTES_MAX];
    const size_t frame_idx = h->n_sent;
    size_t n = bt_frame_encode(frame, h->n_sent, wire);
    h->n_sent++;
    bt_session_seal(&h->session, wire, n);
    if (!is_changed(h, frame_idx)) {
        send_bytes(r, h, wire, n);
        send_bytes(r, h, h->kept, h->kept_len);
        h->kept_len = 0;
        return;
    }
    switch (next_random(r, 8)) {
    case 0: /* twice */
        send_bytes(r, h, wire, n);
        send_bytes(r, h, wire, n);
        return;
    case 1: /* not at all; what follows takes its number if he can sign */
        h->n_sent -= h->insider;
        return;
    case 2: /* after the next one */
        memcpy(h->kept, wire, n);
        h->kept_len = n;
        return;
    case 3: /* cut */
        send_bytes(r, h, wire, next_random(r, (uint32_t)n));
        h->broken = next_random(r, 2) == 0;
        return;
    case 4: /* garbage before it */
        for (size_t i = 0; i < 20; i++) {
            wire[n + i] = (uint8_t)next_random(r, 256);
        }
        send_bytes(r, h, wire + n, 1 + next_random(r, 20));
        break;
    default:
        for (uint32_t i = next_random(r, 3) + 1; i > 0; i--) {
            change_bytes(r, wire, n);
        }
        if (h->insider) {
            sign(h, wire, n);
        } else if (next_random(r, 2) == 0) {
            repair_sum(wire, n); /* anybody can */
        }
        break;
    }
    send_bytes(r, h, wire, n);
}

static void get(hand *h)
{
    const struct iovec iov = {h->in + h->in_len, sizeof h->in - h->in_len};
    size_t got = 0;
    if (iov.iov_len > 0 && h->conn->ops->recv(h->conn, &iov, 1, &got) == BT_OK) {
        h->in_len += got;
    }
}

/* The next frame, checked by the session. */
static bool next_frame(hand *h, bt_frame *frame)
{
    static uint8_t wire[BT_FRAME_BYTES_MAX];
    bt_frame_header header;
    get(h);
    if (h->in_len < BT_FRAME_HEADER_BYTES) {
        return false;
    }
    assert_int_equal(bt_frame_decode_header(h->in, &header, NULL), BT_OK);
    const size_t n = BT_FRAME_HEADER_BYTES + header.body_bytes;
    assert_true(n <= h->in_len);
    memcpy(wire, h->in, n);
    h->in_len -= n;
    memmove(h->in, h->in + n, h->in_len);
    if (bt_session_check(&h->session, wire, &header, NULL) != BT_OK) {
        return false; /* our own HELLO or CHALLENGE arrived as another one */
    }
    assert_int_equal(bt_frame_decode_body(&header, wire, frame, NULL), BT_OK);
    return true;
}

static void plan_changes(rig *r, hand *h, uint32_t n_frames)
{
    h->insider = next_random(r, 2) == 0;
    h->n_changes = 1 + (int)next_random(r, 2);
    h->at = next_random(r, n_frames);
}

/* ---- against a source ---- */

static void mutate_a_sink(rig *r, bool honest)
{
    hand *h = bt_alloc_array(1, sizeof *h);
    bt_frame frame;
    const bt_transport_env env = {.loop = r->loop, .loopback = r->hub};
    assert_non_null(h);
    begin_case(r);
    offer(r);
    assert_int_equal(bt_transport_loopback.connect(&env, &r->peer, &h->conn, NULL), BT_OK);
    bt_session_init(&h->session, BT_SESSION_SINK, &r->terms.cluster_key);
    if (!honest) {
        plan_changes(r, h, 7);
    }
    bt_frame hello = {.type = BT_FRAME_HELLO};
    bt_frame_hello_set(&hello.u.hello, &r->terms, 22, POOL_BLOCKS);
    hello.u.hello.expected = 11;
    hello.u.hello.auth = BT_KV_AUTH_FRAMES;
    bt_hash_random(hello.u.hello.nonce, sizeof hello.u.hello.nonce);
    put(r, h, &hello);
    if (next_frame(h, &frame) && frame.type == BT_FRAME_CHALLENGE) {
        const bt_frame frames[] = {
            {.type = BT_FRAME_PROOF},
            {.type = BT_FRAME_PULL, .transfer = name_of(r), .u.pull = {.deadline_ms = 50000}},
            {.type = BT_FRAME_RENEW},
            {.type = BT_FRAME_READ,
             .transfer = name_of(r),
             .u.read = {.op = 0, .rect = {0, BLOCKS, 0, LAYERS}}},
            {.type = BT_FRAME_READ,
             .transfer = name_of(r),
             .u.read = {.op = 1, .rect = {1, 2, 1, 1}}},
            {.type = BT_FRAME_END, .transfer = name_of(r), .u.end = {.text = ""}},
        };
        for (size_t i = 0; i < BT_ARRAY_LEN(frames); i++) {
            put(r, h, &frames[i]);
        }
    }
    h->conn->ops->close(h->conn);
    turn(r, 4);
    if (honest) {
        assert_int_equal(r->n_released, 1);
    }
    if (r->n_released == 0) { /* it was never linked */
        assert_int_equal(bt_kv_source_cancel(r->source, name_of(r), BT_ECANCELLED, ""), BT_OK);
        turn(r, 2);
    }
    assert_int_equal(r->n_released, 1);
    const bt_kv_source_counters *c = bt_kv_source_counters_get(r->source);
    assert_int_equal(c->transfers_open + c->transfers_parked + c->peers_open, 0);
    free(h);
}

static void pull_honestly(rig *r)
{
    begin_case(r);
    pull(r);
    offer(r);
    for (int i = 0; i < 50 && r->n_done + r->n_failed == 0; i++) {
        turn(r, 4);
    }
    for (int i = 0; i < 50 && r->n_released == 0; i++) {
        turn(r, 4);
    }
    assert_int_equal(r->n_done, 1);
    assert_int_equal(r->n_released, 1);
    check_sink_pool(r);
}

static void ten_thousand_wrong_sinks_harm_no_source(void **state)
{
    (void)state;
    rig *r = rig_create(2024);
    start_source(r);
    for (int i = 0; i < CASES; i++) {
        mutate_a_sink(r, i == 0);
        if (i % HONEST_EACH == 0) {
            start_sink(r);
            pull_honestly(r);
            bt_kv_sink_destroy(r->sink);
            r->sink = NULL;
            turn(r, 4);
        }
    }
    const bt_kv_source_counters *c = bt_kv_source_counters_get(r->source);
    assert_true(c->frames_rejected > CASES / 4);
    assert_true(c->handshakes_refused > CASES / 20);
    assert_true(c->pulled > CASES / 20);
    rig_destroy(r);
}

/* ---- against a sink ---- */

static void on_accept(bt_conn *conn, void *ctx)
{
    hand **accepted = ctx;
    if (*accepted && !(*accepted)->conn) {
        (*accepted)->conn = conn;
    } else {
        conn->ops->close(conn);
    }
}

/* Answers what has come: READs by filling what was posted. */
static void serve_reads(rig *r, hand *h)
{
    bt_frame frame;
    while (next_frame(h, &frame)) {
        if (frame.type != BT_FRAME_READ || h->n_ops == FRAMES_MAX) {
            continue;
        }
        const bt_plan_rect rect = frame.u.read.rect;
        const uint32_t op = frame.u.read.op;
        const bt_block_id ids[] = {FIRST, FIRST + 1, FIRST + 2};
        bt_plan_set set;
        uint64_t words[4] = {0};
        bt_plan_set_init(&set, words, BLOCKS, LAYERS);
        h->n_ops++;
        if (!bt_plan_set_holds(&set, &rect)) {
            continue; /* of an offer that was changed */
        }
        struct iovec iov[BLOCKS * LAYERS];
        bt_plan_region regions[BLOCKS * LAYERS];
        uint64_t sum = 0;
        const size_t n = bt_plan_regions(&r->terms.layout, ids, &rect, 0, UINT64_MAX, regions,
                                         BT_ARRAY_LEN(regions), &sum);
        for (size_t i = 0; i < n; i++) {
            iov[i] = (struct iovec){(uint8_t *)r->source_pool.base + regions[i].offset,
                                    (size_t)regions[i].bytes};
        }
        if (h->conn->ops->fill(h->conn, op, iov, n) != BT_OK) {
            continue;
        }
        const bt_frame data = {.type = BT_FRAME_DATA,
                               .transfer = name_of(r),
                               .u.data = {.op = op, .bytes = (uint32_t)sum}};
        put(r, h, &data);
    }
}

static uint32_t sum_of(const rig *r, uint32_t block, uint32_t layer)
{
    const uint8_t *base = r->source_pool.base;
    return bt_crc32c(0, base + bt_kv_part_offset(&r->terms.layout, FIRST + block, layer),
                     r->terms.layout.layer_bytes);
}

static void play_source(rig *r, hand *h)
{
    bt_frame frame;
    uint32_t sums[BLOCKS * LAYERS];
    bt_frame challenge = {.type = BT_FRAME_CHALLENGE,
                          .u.challenge = {.auth = BT_KV_AUTH_FRAMES, .incarnation = 11}};
    bt_frame welcome = {.type = BT_FRAME_WELCOME};
    bt_frame_hello_set(&welcome.u.hello, &r->terms, 11, POOL_BLOCKS);
    bt_hash_random(challenge.u.challenge.nonce, sizeof challenge.u.challenge.nonce);
    for (uint32_t i = 0; i < BLOCKS * LAYERS; i++) {
        sums[i] = sum_of(r, i / LAYERS, i % LAYERS);
    }
    const bt_frame frames[] = {
        {.type = BT_FRAME_OFFER,
         .transfer = name_of(r),
         .u.offer = {.n_tokens = BLOCKS * BT_KV_BLOCK_TOKENS, .n_blocks = BLOCKS}},
        {.type = BT_FRAME_ANNOUNCE,
         .transfer = name_of(r),
         .u.announce = {.rect = {0, 2, 0, LAYERS}, .sums = sums}},
        {.type = BT_FRAME_RENEW},
        {.type = BT_FRAME_ANNOUNCE,
         .transfer = name_of(r),
         .u.announce = {.rect = {2, 1, 0, LAYERS}, .sums = sums + 2 * LAYERS}},
        {.type = BT_FRAME_COMPLETE,
         .transfer = name_of(r),
         .u.complete = {.blob = "token", .blob_bytes = 5}},
    };
    if (!next_frame(h, &frame) || frame.type != BT_FRAME_HELLO) {
        return;
    }
    put(r, h, &challenge);
    put(r, h, &welcome);
    serve_reads(r, h);
    for (size_t i = 0; i < BT_ARRAY_LEN(frames); i++) {
        put(r, h, &frames[i]);
        serve_reads(r, h);
    }
}

static void mutate_a_source(rig *r, hand **accepted, bool honest)
{
    hand *h = bt_alloc_array(1, sizeof *h);
    assert_non_null(h);
    begin_case(r);
    *accepted = h;
    bt_session_init(&h->session, BT_SESSION_SOURCE, &r->terms.cluster_key);
    if (!honest) {
        plan_changes(r, h, 10);
    }
    pull(r);
    turn(r, 4);
    assert_non_null(h->conn);
    play_source(r, h);
    if (honest) {
        assert_int_equal(r->n_done, 1);
    }
    h->conn->ops->close(h->conn);
    *accepted = NULL;
    turn(r, 5);
    assert_int_equal(r->n_done + r->n_failed, 1);
    check_sink_pool(r);
    const bt_kv_sink_counters *c = bt_kv_sink_counters_get(r->sink);
    assert_int_equal(c->transfers_open + c->peers_open, 0);
    free(h);
}

static void ten_thousand_wrong_sources_harm_no_sink(void **state)
{
    (void)state;
    rig *r = rig_create(77);
    hand *accepted = NULL;
    const bt_transport_env env = {.loop = r->loop, .loopback = r->hub};
    start_sink(r);
    for (int i = 0; i < CASES; i++) {
        if (i % HONEST_EACH == 0) {
            if (r->listener) {
                r->listener->ops->unlisten(r->listener);
                r->listener = NULL;
            }
            start_source(r);
            pull_honestly(r);
            bt_kv_source_destroy(r->source);
            r->source = NULL;
            turn(r, 4);
            assert_int_equal(bt_transport_loopback.listen(&env, &r->peer, on_accept, &accepted,
                                                          &r->listener, NULL),
                             BT_OK);
        }
        mutate_a_source(r, &accepted, i == 0);
    }
    const bt_kv_sink_counters *c = bt_kv_sink_counters_get(r->sink);
    assert_true(c->frames_rejected > CASES / 4);
    assert_true(c->done > CASES / 20);
    assert_true(c->rejected_corrupt > 0);
    rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_thousand_wrong_sinks_harm_no_source),
        cmocka_unit_test(ten_thousand_wrong_sources_harm_no_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
