/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that a chain of blocks moves from cache to cache with its order intact: who fetches takes
 * free blocks alone, half of them at most, evicts nothing, and shows nothing before PUBLISH; both
 * caches pass their audits after each step. */
#include "engine/kv_chain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_BLOCKS = 24, N = 6 };

typedef struct fixture {
    bt_kv_pool *pool;
    bt_kv_cache *cache;
    bt_block_hash ids[N];
    bt_block_id blocks[N];
    bt_kv_chain chain;
    uint32_t n_stored, n_evicted;
} fixture;

static void on_changed(void *ctx, bool stored, const bt_block_hash *identity)
{
    fixture *f = ctx;
    (void)identity;
    f->n_stored += stored;
    f->n_evicted += !stored;
}

static void open_fixture(fixture *f, uint32_t cached_blocks_max)
{
    memset(f, 0, sizeof *f);
    bt_kv_layout layout;
    assert_true(bt_kv_layout_init(&layout, 2, 1, 8, BT_KV_FORMAT_BF16));
    assert_int_equal(bt_kv_pool_create(&layout, N_BLOCKS, false, &f->pool, NULL), BT_OK);
    const bt_kv_cache_options options = {.pool = f->pool, .cached_blocks_max = cached_blocks_max};
    assert_int_equal(bt_kv_cache_create(&options, &f->cache), BT_OK);
    bt_kv_cache_set_changed(f->cache, on_changed, f);
    for (uint32_t i = 0; i < N; i++) {
        f->ids[i] = (bt_block_hash){.w = {i + 100, 7}};
    }
    f->chain = (bt_kv_chain){.identities = f->ids, .n = N, .blocks = f->blocks};
}

static void audit(const fixture *f)
{
    bt_error err = {""};
    if (bt_kv_cache_audit(f->cache, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
}

static void close_fixture(fixture *f)
{
    audit(f);
    assert_int_equal(bt_kv_cache_n_available(f->cache), N_BLOCKS);
    bt_kv_cache_destroy(f->cache);
    bt_kv_pool_destroy(f->pool);
}

static bt_status step(fixture *f, bt_kv_chain_op op)
{
    f->chain.op = op;
    bt_kv_chain_step(&f->chain, f->cache);
    audit(f);
    return f->chain.status;
}

/* Takes n blocks; a chain of their own, if `first` is not 0. */
static void hold(fixture *f, uint32_t n, uint64_t first, bt_block_id *ids)
{
    assert_int_equal(bt_kv_cache_acquire(f->cache, n, ids), BT_OK);
    for (uint32_t i = 0; i < n && first != 0; i++) {
        const bt_block_hash id = {.w = {first + i, 7}};
        const bt_block_hash parent = {.w = {first + i - 1, 7}};
        bt_kv_cache_publish(f->cache, ids[i], &id, i > 0 ? &parent : NULL);
    }
}

static void a_reserved_chain_is_found_after_publish_alone(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, UINT32_MAX);
    assert_int_equal(step(&f, BT_KV_CHAIN_PIN), BT_ENOTFOUND);
    assert_int_equal(step(&f, BT_KV_CHAIN_RESERVE), BT_OK);
    assert_int_equal(f.chain.n_blocks, N);
    assert_int_equal(f.chain.n_held, 0);
    bt_block_id found[N];
    assert_int_equal(bt_kv_cache_match(f.cache, f.ids, N, found), 0);
    assert_int_equal(f.n_stored, 0);
    assert_int_equal(step(&f, BT_KV_CHAIN_PUBLISH), BT_OK);
    assert_int_equal(f.n_stored, N);
    assert_int_equal(bt_kv_cache_n_cached(f.cache), N);
    assert_int_equal(step(&f, BT_KV_CHAIN_PIN), BT_OK);
    assert_int_equal(f.chain.n_blocks, N);
    assert_int_equal(bt_kv_cache_n_cached(f.cache), 0); /* pinned: nothing evicts it */
    assert_int_equal(step(&f, BT_KV_CHAIN_RELEASE), BT_OK);
    assert_int_equal(bt_kv_cache_n_cached(f.cache), N);
    close_fixture(&f);
}

static void a_released_reservation_leaves_nothing(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, UINT32_MAX);
    assert_int_equal(step(&f, BT_KV_CHAIN_RESERVE), BT_OK);
    assert_int_equal(step(&f, BT_KV_CHAIN_RELEASE), BT_OK);
    assert_int_equal(bt_kv_cache_n_cached(f.cache), 0);
    assert_int_equal(f.n_stored, 0);
    close_fixture(&f);
}

static void what_is_held_already_is_shared(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, UINT32_MAX);
    bt_block_id ids[2];
    hold(&f, 2, 100, ids);
    bt_kv_cache_release(f.cache, ids, 2);
    assert_int_equal(step(&f, BT_KV_CHAIN_RESERVE), BT_OK);
    assert_int_equal(f.chain.n_held, 2);
    assert_int_equal(f.blocks[0], ids[0]);
    assert_int_equal(f.blocks[1], ids[1]);
    assert_int_equal(step(&f, BT_KV_CHAIN_PUBLISH), BT_OK);
    assert_int_equal(bt_kv_cache_n_cached(f.cache), N);
    close_fixture(&f);
}

/* Another sequence computes a part of it meanwhile. */
static void what_was_published_meanwhile_is_not_stored_twice(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= N; n++) {
        fixture f;
        open_fixture(&f, UINT32_MAX);
        assert_int_equal(step(&f, BT_KV_CHAIN_RESERVE), BT_OK);
        bt_block_id ids[N];
        hold(&f, n, 100, ids);
        bt_kv_cache_release(f.cache, ids, n);
        assert_int_equal(step(&f, BT_KV_CHAIN_PUBLISH), BT_OK);
        assert_int_equal(f.n_stored, N);
        assert_int_equal(bt_kv_cache_n_cached(f.cache), N);
        close_fixture(&f);
    }
}

static void it_takes_half_of_the_free_blocks_and_evicts_nothing(void **state)
{
    (void)state;
    for (uint32_t n_free = 2 * N - 2; n_free <= 2 * N; n_free++) {
        fixture f;
        open_fixture(&f, UINT32_MAX);
        bt_block_id live[N_BLOCKS];
        hold(&f, N_BLOCKS - n_free - 2, 0, live);
        bt_block_id cached[2];
        hold(&f, 2, 500, cached);
        bt_kv_cache_release(f.cache, cached, 2);
        const bool fits = n_free >= 2 * N;
        assert_int_equal(step(&f, BT_KV_CHAIN_RESERVE), fits ? BT_OK : BT_AGAIN);
        assert_int_equal(f.chain.n_blocks, fits ? N : 0);
        if (fits) {
            assert_int_equal(step(&f, BT_KV_CHAIN_PUBLISH), BT_OK);
        }
        assert_int_equal(f.n_evicted, 0);
        bt_kv_cache_release(f.cache, live, N_BLOCKS - n_free - 2);
        close_fixture(&f);
    }
}

static void a_cap_on_cached_blocks_holds(void **state)
{
    (void)state;
    for (uint32_t max = 0; max <= 2 * N; max += N) {
        fixture f;
        open_fixture(&f, max);
        assert_int_equal(step(&f, BT_KV_CHAIN_RESERVE), max == 2 * N ? BT_OK : BT_AGAIN);
        assert_int_equal(step(&f, BT_KV_CHAIN_RELEASE), BT_OK);
        close_fixture(&f);
    }
}

/* The blocks before the hole are pinned, those behind it are not reachable. */
static void a_pin_ends_at_the_first_hole(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, UINT32_MAX);
    bt_block_id ids[3];
    hold(&f, 3, 100, ids);
    bt_kv_cache_release(f.cache, ids, 3);
    assert_int_equal(step(&f, BT_KV_CHAIN_PIN), BT_OK);
    assert_int_equal(f.chain.n_blocks, 3);
    assert_int_equal(step(&f, BT_KV_CHAIN_RELEASE), BT_OK);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reserved_chain_is_found_after_publish_alone),
        cmocka_unit_test(a_released_reservation_leaves_nothing),
        cmocka_unit_test(what_is_held_already_is_shared),
        cmocka_unit_test(what_was_published_meanwhile_is_not_stored_twice),
        cmocka_unit_test(it_takes_half_of_the_free_blocks_and_evicts_nothing),
        cmocka_unit_test(a_cap_on_cached_blocks_holds),
        cmocka_unit_test(a_pin_ends_at_the_first_hole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
