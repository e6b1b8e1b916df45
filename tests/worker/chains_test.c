/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of cached blocks between two workers' ends, with real caches, source and sink over
 * loopback and an engine that the test plays: what is fetched is what was served, byte by byte, and
 * whatever goes wrong (no room, evicted, a deadline, another numerics id, wrong bytes, an end in
 * its midst) each fetch has one answer, and both pools pass their audits with every block home. */
#include "worker/chains.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "kvtransfer/transport.h"

enum { N_BLOCKS = 40, N = 6, POLLS_MAX = 10000 };

typedef struct side {
    bt_kv_pool *pool;
    bt_kv_cache *cache;
    bt_kv_source *source;
    bt_kv_sink *sink;
    bt_worker_chains *chains;
    bt_kv_chain *posted[BT_WORKER_CHAINS_MAX];
    uint32_t n_posted;
    bool held; /* its engine does not come to it */
    bt_link_fetched last;
    uint32_t n_fetched;
    uint32_t n_ended;
} side;

typedef struct fixture {
    bt_loop *loop;
    bt_timer *poll;
    bt_kv_loopback *hub;
    bt_kv_fault fault; /* of the one that fetches */
    side from, to;
    bt_block_hash ids[BT_WORKER_CHAINS_MAX + 1][N];
    bool (*until)(struct fixture *f);
    uint32_t n_polls;
} fixture;

/* ---- a side ---- */

static void post(bt_kv_chain *chain, void *ctx)
{
    side *s = ctx;
    assert_true(s->n_posted < BT_WORKER_CHAINS_MAX);
    s->posted[s->n_posted++] = chain;
}

static void on_fetched(uint32_t router, const bt_link_fetched *fetched, void *ctx)
{
    side *s = ctx;
    assert_int_equal(router, 3);
    s->last = *fetched;
    s->n_fetched++;
}

static void on_ended(void *ctx)
{
    ((side *)ctx)->n_ended++;
}

static void on_wanted(bt_kv_transfer transfer, const bt_hash128 *identities, uint32_t n,
                      int64_t deadline_ns, void *ctx)
{
    side *s = ctx;
    bt_worker_chains_serve(s->chains, transfer, identities, n, deadline_ns);
}

static void on_released(bt_kv_transfer transfer, bt_kv_outcome outcome, const char *text, void *ctx)
{
    (void)outcome;
    (void)text;
    assert_true(bt_worker_chains_released(((side *)ctx)->chains, transfer));
}

static void on_offered(bt_kv_transfer transfer, uint32_t n_blocks, void *ctx)
{
    assert_true(bt_worker_chains_offered(((side *)ctx)->chains, transfer, n_blocks));
}

static void on_done(const bt_kv_done *done, void *ctx)
{
    assert_true(bt_worker_chains_done(((side *)ctx)->chains, done));
}

static void on_failed(bt_kv_transfer transfer, bt_status status, const char *text, void *ctx)
{
    assert_true(bt_worker_chains_failed(((side *)ctx)->chains, transfer, status, text));
}

static void audit(const side *s)
{
    bt_error err = {""};
    if (bt_kv_cache_audit(s->cache, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
}

/* What its engine was posted is done, and told. */
static void step(side *s)
{
    bt_kv_chain *posted[BT_WORKER_CHAINS_MAX];
    const uint32_t n = s->n_posted;
    memcpy(posted, s->posted, n * sizeof(bt_kv_chain *));
    s->n_posted = 0;
    for (uint32_t i = 0; i < n; i++) {
        bt_kv_chain_step(posted[i], s->cache);
        audit(s);
        bt_worker_chains_stepped(s->chains, posted[i]);
    }
}

static void open_side(fixture *f, side *s, uint64_t incarnation, bool mixed)
{
    bt_kv_terms terms = {.numerics_id = {mixed ? (uint8_t)incarnation : 1},
                         .cluster_key = {{2}},
                         .allow_mixed_numerics = mixed};
    assert_true(bt_kv_layout_init(&terms.layout, 2, 1, 8, BT_KV_FORMAT_BF16));
    assert_int_equal(bt_kv_pool_create(&terms.layout, N_BLOCKS, true, &s->pool, NULL), BT_OK);
    const bt_kv_cache_options cache = {.pool = s->pool, .cached_blocks_max = UINT32_MAX};
    assert_int_equal(bt_kv_cache_create(&cache, &s->cache), BT_OK);
    const bt_kv_source_options source = {
        .terms = terms,
        .incarnation = incarnation,
        .pool_base = bt_kv_pool_base(s->pool),
        .n_blocks = N_BLOCKS,
        .pool_fd = -1,
        .loopback = f->hub,
        .max_transfers = BT_WORKER_CHAINS_MAX + 1,
        .max_transfer_blocks = 16,
        .max_peers = 2,
    };
    const bt_kv_source_callbacks source_callbacks = {
        .released = on_released, .wanted = on_wanted, .ctx = s};
    assert_int_equal(bt_kv_source_create(f->loop, &source, &source_callbacks, &s->source, NULL),
                     BT_OK);
    const bt_kv_sink_options sink = {
        .terms = terms,
        .incarnation = incarnation,
        .pool_base = bt_kv_pool_base(s->pool),
        .n_blocks = N_BLOCKS,
        .loopback = f->hub,
        .max_transfers = BT_WORKER_CHAINS_MAX + 1,
        .max_transfer_blocks = 16,
        .max_peers = 2,
        .fault = &f->fault,
    };
    const bt_kv_sink_callbacks sink_callbacks = {
        .offered = on_offered, .done = on_done, .failed = on_failed, .ctx = s};
    assert_int_equal(bt_kv_sink_create(f->loop, &sink, &sink_callbacks, &s->sink, NULL), BT_OK);
    const bt_worker_chains_options chains = {
        .source = s->source,
        .sink = s->sink,
        .blocks_max = 16,
        .post = post,
        .fetched = on_fetched,
        .ended = on_ended,
        .ctx = s,
    };
    assert_int_equal(bt_worker_chains_create(&chains, &s->chains), BT_OK);
}

static void close_side(side *s)
{
    assert_int_equal(bt_worker_chains_get_stats(s->chains).n_open, 0);
    assert_int_equal(s->n_posted, 0);
    audit(s);
    assert_int_equal(bt_kv_cache_n_available(s->cache), N_BLOCKS);
    bt_kv_sink_destroy(s->sink);
    bt_kv_source_destroy(s->source);
    bt_worker_chains_destroy(s->chains);
    bt_kv_cache_destroy(s->cache);
    bt_kv_pool_destroy(s->pool);
}

/* ---- both ---- */

static void on_poll(void *ctx)
{
    fixture *f = ctx;
    if (!f->from.held) {
        step(&f->from);
    }
    if (!f->to.held) {
        step(&f->to);
    }
    if (f->until(f) || ++f->n_polls > POLLS_MAX) {
        bt_loop_stop(f->loop);
    }
}

static void run(fixture *f, bool (*until)(fixture *f))
{
    f->until = until;
    f->n_polls = 0;
    bt_timer_start(f->poll, 1, 1);
    bt_loop_run(f->loop);
    bt_timer_stop(f->poll);
    assert_true(until(f));
}

static bool is_quiet(fixture *f)
{
    return bt_worker_chains_get_stats(f->from.chains).n_open == 0 &&
           bt_worker_chains_get_stats(f->to.chains).n_open == 0;
}

static bool wants_blocks(fixture *f)
{
    return f->to.n_posted > 0;
}

static bool is_asked(fixture *f)
{
    return f->from.n_posted > 0;
}

static bool is_fetched(fixture *f)
{
    return f->to.n_fetched > 0;
}

static int set_up_any(void **state, bool mixed)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(bt_loop_create(&f->loop), BT_OK);
    assert_int_equal(bt_timer_create(f->loop, on_poll, f, &f->poll), BT_OK);
    assert_int_equal(bt_kv_loopback_create(f->loop, &f->hub), BT_OK);
    open_side(f, &f->from, 11, mixed);
    open_side(f, &f->to, 22, mixed);
    for (uint32_t k = 0; k <= BT_WORKER_CHAINS_MAX; k++) {
        for (uint32_t i = 0; i < N; i++) {
            f->ids[k][i] = (bt_block_hash){.w = {(k + 1) * 1000 + i, 7}};
        }
    }
    *state = f;
    return 0;
}

static int set_up(void **state)
{
    return set_up_any(state, false);
}

static int set_up_mixed(void **state)
{
    return set_up_any(state, true);
}

static int tear_down(void **state)
{
    fixture *f = *state;
    close_side(&f->from);
    close_side(&f->to);
    bt_kv_loopback_destroy(f->hub);
    bt_timer_destroy(f->poll);
    bt_loop_destroy(f->loop);
    free(f);
    return 0;
}

static uint8_t *block(const side *s, bt_block_id id)
{
    return bt_kv_pool_base(s->pool) + id * bt_kv_pool_layout(s->pool)->block_bytes;
}

/* The first n blocks of chain k are cached, with bytes of their own. */
static void cache(side *s, const bt_block_hash *ids, uint32_t n)
{
    bt_block_id blocks[N];
    assert_int_equal(bt_kv_cache_acquire(s->cache, n, blocks), BT_OK);
    for (uint32_t i = 0; i < n; i++) {
        memset(block(s, blocks[i]), (int)(ids[i].w[0] % 251),
               bt_kv_pool_layout(s->pool)->block_bytes);
        bt_kv_cache_publish(s->cache, blocks[i], &ids[i], i > 0 ? &ids[i - 1] : NULL);
    }
    bt_kv_cache_release(s->cache, blocks, n);
}

static void expect_cached(side *s, const bt_block_hash *ids, uint32_t n)
{
    bt_block_id blocks[N];
    assert_int_equal(bt_kv_cache_match(s->cache, ids, N, blocks), n);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *bytes = block(s, blocks[i]);
        for (uint32_t b = 0; b < bt_kv_pool_layout(s->pool)->block_bytes; b++) {
            assert_int_equal(bytes[b], ids[i].w[0] % 251);
        }
    }
    bt_kv_cache_release(s->cache, blocks, n);
}

static void fetch_for(fixture *f, uint32_t k, uint32_t deadline_ms)
{
    bt_kv_peer peer;
    bt_kv_source_peer(f->from.source, &peer);
    bt_link_fetch fetch = {
        .id = {.hi = 5, .lo = k + 1},
        .peer = {.incarnation = peer.incarnation},
        .ids = f->ids[k],
        .n_ids = N,
        .deadline_left_ms = deadline_ms,
    };
    bt_worker_chains_fetch(f->to.chains, 3, &fetch);
}

static void fetch(fixture *f, uint32_t k)
{
    fetch_for(f, k, 5000);
}

static void expect_failed(fixture *f, bt_status status)
{
    run(f, is_quiet);
    assert_int_equal(f->to.n_fetched, 1);
    assert_int_equal(f->to.last.status, status);
    assert_string_not_equal(f->to.last.error.text, "");
    assert_int_equal(f->to.last.blocks_moved, 0);
}

static void what_is_fetched_is_what_was_served(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[0], N);
    fetch(f, 0);
    run(f, is_quiet);
    assert_int_equal(f->to.n_fetched, 1);
    assert_int_equal(f->to.last.status, BT_OK);
    assert_int_equal(f->to.last.id.lo, 1);
    assert_int_equal(f->to.last.blocks_moved, N);
    assert_true(f->to.last.bytes_moved > 0);
    expect_cached(&f->to, f->ids[0], N);
    expect_cached(&f->from, f->ids[0], N);
    assert_true(bt_worker_chains_get_stats(f->from.chains).moved_ns > 0);
}

static void what_is_there_already_is_not_moved(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[0], N);
    cache(&f->to, f->ids[0], 2);
    fetch(f, 0);
    run(f, is_quiet);
    assert_int_equal(f->to.last.blocks_moved, N - 2);
    assert_int_equal(f->to.last.blocks_skipped, 2);
    expect_cached(&f->to, f->ids[0], N);
}

static void the_leading_part_that_is_held_is_served(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[0], N - 2);
    fetch(f, 0);
    run(f, is_quiet);
    assert_int_equal(f->to.last.status, BT_OK);
    assert_int_equal(f->to.last.blocks_moved, N - 2);
    expect_cached(&f->to, f->ids[0], N - 2);
}

static void what_was_evicted_is_refused(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[1], N);
    fetch(f, 0);
    expect_failed(f, BT_ENOTFOUND);
}

/* Between the look-up and the release nothing evicts it. */
static void what_is_served_is_pinned(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[0], N);
    f->to.held = true;
    fetch(f, 0);
    run(f, wants_blocks);
    bt_block_id all[N_BLOCKS];
    assert_int_equal(bt_kv_cache_acquire(f->from.cache, N_BLOCKS - N + 1, all), BT_AGAIN);
    assert_int_equal(bt_kv_cache_acquire(f->from.cache, N_BLOCKS - N, all), BT_OK);
    f->to.held = false;
    run(f, is_quiet);
    bt_kv_cache_release(f->from.cache, all, N_BLOCKS - N);
    expect_cached(&f->to, f->ids[0], N);
}

static void without_room_nothing_is_taken(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[0], N);
    cache(&f->to, f->ids[1], N);
    bt_block_id live[N_BLOCKS];
    const uint32_t n_live = N_BLOCKS - N - 2 * N + 1;
    assert_int_equal(bt_kv_cache_acquire(f->to.cache, n_live, live), BT_OK);
    fetch(f, 0);
    expect_failed(f, BT_EEXHAUSTED);
    bt_kv_cache_release(f->to.cache, live, n_live);
    expect_cached(&f->to, f->ids[1], N); /* nothing was evicted for it */
    expect_cached(&f->to, f->ids[0], 0);
}

static void too_many_at_a_time_are_refused(void **state)
{
    fixture *f = *state;
    f->from.held = true;
    for (uint32_t k = 0; k <= BT_WORKER_CHAINS_MAX; k++) {
        fetch(f, k);
    }
    assert_int_equal(f->to.n_fetched, 1);
    assert_int_equal(f->to.last.status, BT_EEXHAUSTED);
    f->from.held = false;
    run(f, is_quiet);
    assert_int_equal(f->to.n_fetched, BT_WORKER_CHAINS_MAX + 1);
}

/* Its engine is busy past the deadline, on either side. */
static void a_deadline_while_an_engine_is_busy_frees_all(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[0], N);
    f->from.held = true;
    fetch_for(f, 0, 60);
    run(f, is_fetched);
    assert_int_equal(f->to.last.status, BT_EDEADLINE);
    f->from.held = false;
    run(f, is_quiet);
    f->to.n_fetched = 0;
    f->to.held = true;
    fetch_for(f, 1, 60); /* not there: refused before */
    expect_failed(f, BT_ENOTFOUND);
    cache(&f->from, f->ids[2], N);
    f->to.n_fetched = 0;
    fetch_for(f, 2, 100);
    run(f, wants_blocks);
    const int64_t until_ns = bt_clock_now_ns() + 200 * INT64_C(1000000);
    while (bt_clock_now_ns() < until_ns) {
        run(f, wants_blocks);
    }
    f->to.held = false;
    expect_failed(f, BT_EDEADLINE);
    expect_cached(&f->to, f->ids[2], 0);
}

static void blocks_of_other_numerics_get_no_identity(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[0], N);
    fetch(f, 0);
    expect_failed(f, BT_EMISMATCH);
    expect_cached(&f->to, f->ids[0], 0);
}

static void a_wrong_part_is_fetched_again(void **state)
{
    fixture *f = *state;
    f->fault.spoil_at = 3;
    cache(&f->from, f->ids[0], N);
    fetch(f, 0);
    run(f, is_quiet);
    assert_int_equal(f->to.last.status, BT_OK);
    expect_cached(&f->to, f->ids[0], N);
}

static void a_connection_that_breaks_frees_all(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[0], N);
    f->to.held = true;
    fetch(f, 0);
    run(f, wants_blocks);
    bt_kv_fault_cut(&f->fault);
    run(f, wants_blocks);
    f->to.held = false;
    expect_failed(f, BT_EPEER);
    expect_cached(&f->to, f->ids[0], 0);
}

/* At each point, on each side; then it serves no more. */
static void a_stop_ends_what_is_under_way(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[0], N);
    f->to.held = true;
    fetch(f, 0);
    run(f, wants_blocks); /* offered */
    f->from.held = true;
    fetch(f, 1);
    run(f, is_asked); /* to be pinned */
    bt_worker_chains_stop(f->from.chains);
    f->from.held = f->to.held = false;
    run(f, is_quiet);
    assert_int_equal(f->to.n_fetched, 2);
    assert_int_equal(f->to.last.status, BT_EPEER);
    f->to.n_fetched = 0;
    fetch(f, 2);
    expect_failed(f, BT_EPEER);
}

static void a_stop_of_who_fetches_gives_its_blocks_back(void **state)
{
    fixture *f = *state;
    cache(&f->from, f->ids[0], N);
    f->to.held = true;
    fetch(f, 0);
    run(f, wants_blocks);
    bt_worker_chains_stop(f->to.chains);
    f->to.held = false;
    expect_failed(f, BT_ECANCELLED);
    expect_cached(&f->to, f->ids[0], 0);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(what_is_fetched_is_what_was_served),
        CASE(what_is_there_already_is_not_moved),
        CASE(the_leading_part_that_is_held_is_served),
        CASE(what_was_evicted_is_refused),
        CASE(what_is_served_is_pinned),
        CASE(without_room_nothing_is_taken),
        CASE(too_many_at_a_time_are_refused),
        CASE(a_deadline_while_an_engine_is_busy_frees_all),
        cmocka_unit_test_setup_teardown(blocks_of_other_numerics_get_no_identity, set_up_mixed,
                                        tear_down),
        CASE(a_wrong_part_is_fetched_again),
        CASE(a_connection_that_breaks_frees_all),
        CASE(a_stop_ends_what_is_under_way),
        CASE(a_stop_of_who_fetches_gives_its_blocks_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
