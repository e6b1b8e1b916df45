/* SPDX-License-Identifier: Apache-2.0 */
/* Two workers that each have a source and a sink on one pool, as decode workers that hand
 * sequences over to one another: both directions at once, over every transport, and what
 * came in over one direction goes on over the other. */
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
#include "common/hash.h"
#include "kvtransfer/sink.h"
#include "kvtransfer/source.h"
#include "kvtransfer/transport.h"

enum { POOL_BLOCKS = 256, LAYERS = 3, BLOCKS = 40, TRANSFERS = 3, TURNS_MAX = 10000 };

typedef struct node {
    struct duo *duo;
    bt_mapping pool;
    bt_kv_source *source;
    bt_kv_sink *sink;
    bt_kv_peer peer;
    int n_done, n_failed, n_released, n_pulled;
} node;

typedef struct duo {
    bt_loop *loop;
    bt_timer *timer;
    bt_kv_loopback *hub;
    bt_kv_terms terms;
    node nodes[2];
    int expected; /* ends of each kind at both nodes together */
    int n_turns;
} duo;

static void on_done(const bt_kv_done *done, void *ctx)
{
    node *n = ctx;
    assert_int_equal(done->stats->blocks_moved, BLOCKS);
    n->n_done++;
}

static void on_failed(bt_kv_transfer transfer, bt_status status, const char *text, void *ctx)
{
    node *n = ctx;
    (void)transfer;
    (void)fprintf(stderr, "failed: %d %s\n", (int)status, text);
    n->n_failed++;
}

static void on_released(bt_kv_transfer transfer, bt_kv_outcome outcome, const char *text, void *ctx)
{
    node *n = ctx;
    (void)transfer;
    (void)text;
    n->n_released++;
    n->n_pulled += outcome == BT_KV_OUTCOME_PULLED;
}

static void on_turn(void *ctx)
{
    duo *d = ctx;
    int n_ends = 0;
    for (int i = 0; i < 2; i++) {
        n_ends += d->nodes[i].n_done + d->nodes[i].n_failed + d->nodes[i].n_released;
    }
    if (n_ends == 2 * d->expected || ++d->n_turns == TURNS_MAX) {
        bt_loop_stop(d->loop);
    }
}

static void start_node(duo *d, int i, bt_kv_transport transport, bt_kv_auth auth)
{
    node *n = &d->nodes[i];
    char name[64];
    uint64_t number;
    bt_hash_random(&number, sizeof number);
    (void)snprintf(name, sizeof name, "@baton-pair-%016llx", (unsigned long long)number);
    const bt_memfd_options memfd = {.name = "pair",
                                    .bytes = POOL_BLOCKS * d->terms.layout.block_bytes};
    n->duo = d;
    assert_int_equal(bt_alloc_map_memfd(&memfd, &n->pool, NULL), BT_OK);
    const bool loopback = transport == BT_KV_TRANSPORT_LOOPBACK;
    const bt_kv_source_options source = {
        .terms = d->terms,
        .incarnation = 100 + (uint64_t)i,
        .pool_base = n->pool.base,
        .n_blocks = POOL_BLOCKS,
        .pool_fd = n->pool.fd,
        .tcp_address = transport == BT_KV_TRANSPORT_TCP ? "127.0.0.1:0" : NULL,
        .shm_address = transport == BT_KV_TRANSPORT_SHM ? name : NULL,
        .loopback = loopback ? d->hub : NULL,
        .auth = auth,
        .max_transfers = 8,
        .max_transfer_blocks = 48,
        .max_peers = 2,
    };
    const bt_kv_sink_options sink = {
        .terms = d->terms,
        .incarnation = 100 + (uint64_t)i,
        .pool_base = n->pool.base,
        .n_blocks = POOL_BLOCKS,
        .transport = transport,
        .loopback = loopback ? d->hub : NULL,
        .max_transfers = 8,
        .max_transfer_blocks = 48,
        .max_peers = 2,
    };
    const bt_kv_source_callbacks of_source = {.released = on_released, .ctx = n};
    const bt_kv_sink_callbacks of_sink = {.done = on_done, .failed = on_failed, .ctx = n};
    assert_int_equal(bt_kv_source_create(d->loop, &source, &of_source, &n->source, NULL), BT_OK);
    assert_int_equal(bt_kv_sink_create(d->loop, &sink, &of_sink, &n->sink, NULL), BT_OK);
    bt_kv_source_peer(n->source, &n->peer);
}

static void start(duo *d, bt_kv_transport transport, bt_kv_auth auth)
{
    memset(d, 0, sizeof *d);
    d->terms = (bt_kv_terms){.numerics_id = {1}, .cluster_key = {{2}}};
    assert_true(bt_kv_layout_init(&d->terms.layout, LAYERS, 2, 8, BT_KV_FORMAT_BF16));
    assert_int_equal(bt_loop_create(&d->loop), BT_OK);
    assert_int_equal(bt_timer_create(d->loop, on_turn, d, &d->timer), BT_OK);
    assert_int_equal(bt_kv_loopback_create(d->loop, &d->hub), BT_OK);
    for (int i = 0; i < 2; i++) {
        start_node(d, i, transport, auth);
    }
}

static void stop(duo *d)
{
    for (int i = 0; i < 2; i++) {
        bt_kv_sink_destroy(d->nodes[i].sink);
        bt_kv_source_destroy(d->nodes[i].source);
        bt_alloc_unmap(&d->nodes[i].pool);
    }
    bt_kv_loopback_destroy(d->hub);
    bt_timer_destroy(d->timer);
    bt_loop_destroy(d->loop);
}

static uint8_t *block_of(node *n, uint32_t block)
{
    return (uint8_t *)n->pool.base + block * n->duo->terms.layout.block_bytes;
}

/* Moves blocks [first, +BLOCKS) of `from` into [into, +BLOCKS) of `to`. */
static void move(node *from, node *to, uint64_t number, uint32_t first, uint32_t into)
{
    const bt_kv_transfer name = {.request = {.lo = number}, .attempt = 1};
    bt_block_id ids[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        ids[i] = first + i;
    }
    const bt_kv_offer offer = {.transfer = name,
                               .block_ids = ids,
                               .n_blocks = BLOCKS,
                               .n_tokens = BLOCKS * BT_KV_BLOCK_TOKENS};
    const int64_t deadline_ns = bt_clock_now_ns() + 60 * (int64_t)1000000000;
    assert_int_equal(bt_kv_sink_open(to->sink, name, &from->peer, deadline_ns, NULL), BT_OK);
    assert_int_equal(bt_kv_source_offer(from->source, &offer, NULL), BT_OK);
    assert_int_equal(bt_kv_source_announce_blocks(from->source, name, 0, BLOCKS), BT_OK);
    assert_int_equal(bt_kv_source_complete(from->source, name, "t", 1, false), BT_OK);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        ids[i] = into + i;
    }
    assert_int_equal(bt_kv_sink_pull(to->sink, name, ids, BLOCKS, 0, NULL), BT_OK);
    from->duo->expected++;
}

static void run(duo *d)
{
    d->n_turns = 0;
    bt_timer_start(d->timer, 1, 1);
    bt_loop_run(d->loop);
    bt_timer_stop(d->timer);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(d->nodes[i].n_failed, 0);
        assert_int_equal(d->nodes[i].n_pulled, d->nodes[i].n_released);
    }
    assert_int_equal(d->nodes[0].n_done + d->nodes[1].n_done, d->expected);
    assert_int_equal(d->nodes[0].n_released + d->nodes[1].n_released, d->expected);
}

static void fill(node *n, uint32_t first, uint64_t seed)
{
    uint8_t *bytes = block_of(n, first);
    for (size_t i = 0; i < BLOCKS * n->duo->terms.layout.block_bytes; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(seed >> 40);
    }
}

static void expect_equal(node *a, uint32_t first, node *b, uint32_t second)
{
    assert_memory_equal(block_of(a, first), block_of(b, second),
                        BLOCKS * a->duo->terms.layout.block_bytes);
}

/* Pool of each: [0, 120) its own sequences, [120, 240) those that come. */
static void both_directions_at_once(bt_kv_transport transport, bt_kv_auth auth)
{
    duo *d = malloc(sizeof *d);
    assert_non_null(d);
    start(d, transport, auth);
    node *a = &d->nodes[0];
    node *b = &d->nodes[1];
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        fill(a, BLOCKS * i, 100 + i);
        fill(b, BLOCKS * i, 200 + i);
        move(a, b, 1 + i, BLOCKS * i, 120 + BLOCKS * i);
        move(b, a, 10 + i, BLOCKS * i, 120 + BLOCKS * i);
    }
    run(d);
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        expect_equal(a, BLOCKS * i, b, 120 + BLOCKS * i);
        expect_equal(b, BLOCKS * i, a, 120 + BLOCKS * i);
    }
    /* There and back again, into other blocks, while others come. */
    const bt_mapping before = a->pool;
    move(b, a, 20, 120, 80);
    move(a, b, 21, 120, 80);
    fill(b, 0, 300);
    move(b, a, 22, 0, 160);
    run(d);
    assert_ptr_equal(before.base, a->pool.base);
    expect_equal(a, 80, a, 0);
    expect_equal(b, 80, a, 120);
    expect_equal(a, 160, b, 0);
    stop(d);
    free(d);
}

static void two_workers_pull_from_each_other_over_shm(void **state)
{
    (void)state;
    both_directions_at_once(BT_KV_TRANSPORT_SHM, BT_KV_AUTH_AUTO);
}

static void two_workers_pull_from_each_other_over_tcp(void **state)
{
    (void)state;
    both_directions_at_once(BT_KV_TRANSPORT_TCP, BT_KV_AUTH_AUTO);
    both_directions_at_once(BT_KV_TRANSPORT_TCP, BT_KV_AUTH_FULL);
}

static void two_workers_pull_from_each_other_over_loopback(void **state)
{
    (void)state;
    both_directions_at_once(BT_KV_TRANSPORT_LOOPBACK, BT_KV_AUTH_AUTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_workers_pull_from_each_other_over_shm),
        cmocka_unit_test(two_workers_pull_from_each_other_over_tcp),
        cmocka_unit_test(two_workers_pull_from_each_other_over_loopback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
