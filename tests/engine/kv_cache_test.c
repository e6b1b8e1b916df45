/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the prefix cache: matches equal a brute-force search over all chains that are resident,
 * eviction takes the least recently used tail first, and every block comes home. */
#include "engine/kv_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_BLOCKS = 24, CHAIN_MAX = 6, N_CHAINS = 40, N_STEPS = 20000 };

typedef struct fixture {
    bt_kv_pool *pool;
    bt_kv_cache *cache;
} fixture;

static void open_fixture(fixture *f, uint32_t cached_blocks_max)
{
    bt_kv_layout layout;
    assert_true(bt_kv_layout_init(&layout, 2, 1, 8, BT_KV_FORMAT_BF16));
    assert_int_equal(bt_kv_pool_create(&layout, N_BLOCKS, false, &f->pool, NULL), BT_OK);
    const bt_kv_cache_options options = {.pool = f->pool, .cached_blocks_max = cached_blocks_max};
    assert_int_equal(bt_kv_cache_create(&options, &f->cache), BT_OK);
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

static bt_block_hash identity(uint64_t chain, uint64_t position)
{
    return (bt_block_hash){.w = {chain * 1000 + position, 77}};
}

/* Acquires a chain of n blocks and publishes all of them. */
static void hold_chain(fixture *f, uint64_t chain, uint32_t n, bt_block_id *ids)
{
    assert_int_equal(bt_kv_cache_acquire(f->cache, n, ids), BT_OK);
    for (uint32_t i = 0; i < n; i++) {
        const bt_block_hash id = identity(chain, i);
        const bt_block_hash parent = identity(chain, i - 1);
        bt_kv_cache_publish(f->cache, ids[i], &id, i > 0 ? &parent : NULL);
    }
}

static uint32_t match_chain(fixture *f, uint64_t chain, uint32_t n, bt_block_id *ids)
{
    bt_block_hash wanted[CHAIN_MAX];
    for (uint32_t i = 0; i < n; i++) {
        wanted[i] = identity(chain, i);
    }
    return bt_kv_cache_match(f->cache, wanted, n, ids);
}

static void shared_block_survives_first_release(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, UINT32_MAX);
    bt_block_id ids[2];
    bt_block_id again[2];
    hold_chain(&f, 1, 2, ids);
    assert_int_equal(match_chain(&f, 1, 2, again), 2);
    assert_memory_equal(ids, again, sizeof ids);
    bt_kv_cache_release(f.cache, ids, 2);
    assert_int_equal(bt_kv_pool_refs(f.pool, ids[0]), 1);
    assert_int_equal(bt_kv_cache_n_cached(f.cache), 0);
    bt_kv_cache_release(f.cache, again, 2);
    assert_int_equal(bt_kv_cache_n_cached(f.cache), 2);
    close_fixture(&f);
}

static void all_or_none_is_acquired(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, UINT32_MAX);
    bt_block_id ids[N_BLOCKS + 1];
    assert_int_equal(bt_kv_cache_acquire(f.cache, N_BLOCKS + 1, ids), BT_AGAIN);
    assert_int_equal(bt_kv_cache_n_available(f.cache), N_BLOCKS);
    assert_int_equal(bt_kv_cache_acquire(f.cache, N_BLOCKS, ids), BT_OK);
    bt_block_id more;
    assert_int_equal(bt_kv_cache_acquire(f.cache, 1, &more), BT_AGAIN);
    bt_kv_cache_release(f.cache, ids, N_BLOCKS);
    close_fixture(&f);
}

static void eviction_takes_the_oldest_tail_first(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, UINT32_MAX);
    bt_block_id ids[N_BLOCKS];
    hold_chain(&f, 1, 4, ids);
    bt_kv_cache_release(f.cache, ids, 4);
    hold_chain(&f, 2, 4, ids);
    bt_kv_cache_release(f.cache, ids, 4);
    /* 16 are free: 2 more than that evict the two last blocks of the older chain. */
    assert_int_equal(bt_kv_cache_acquire(f.cache, N_BLOCKS - 8 + 2, ids), BT_OK);
    bt_block_id found[CHAIN_MAX];
    assert_int_equal(match_chain(&f, 1, 4, found), 2);
    bt_kv_cache_release(f.cache, found, 2);
    assert_int_equal(match_chain(&f, 2, 4, found), 4);
    bt_kv_cache_release(f.cache, found, 4);
    bt_kv_cache_release(f.cache, ids, N_BLOCKS - 8 + 2);
    assert_int_equal(bt_kv_cache_get_stats(f.cache)->n_evicted, 2);
    close_fixture(&f);
}

static void second_copy_of_an_identity_stays_without(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, UINT32_MAX);
    bt_block_id first;
    bt_block_id second;
    hold_chain(&f, 1, 1, &first);
    hold_chain(&f, 1, 1, &second);
    bt_block_id found;
    assert_int_equal(match_chain(&f, 1, 1, &found), 1);
    assert_int_equal(found, first);
    bt_kv_cache_release(f.cache, &found, 1);
    bt_kv_cache_release(f.cache, &second, 1);
    assert_int_equal(bt_kv_cache_n_cached(f.cache), 0);
    bt_kv_cache_release(f.cache, &first, 1);
    assert_int_equal(bt_kv_cache_n_cached(f.cache), 1);
    close_fixture(&f);
}

static void cap_bounds_what_stays(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 3);
    bt_block_id ids[5];
    hold_chain(&f, 1, 5, ids);
    bt_kv_cache_release(f.cache, ids, 5);
    assert_int_equal(bt_kv_cache_n_cached(f.cache), 3);
    bt_block_id found[5];
    assert_int_equal(match_chain(&f, 1, 5, found), 3);
    bt_kv_cache_release(f.cache, found, 3);
    close_fixture(&f);
}

/* The oracle: which identities were told as stored and not yet as evicted. */
typedef struct oracle {
    bool resident[N_CHAINS][CHAIN_MAX];
} oracle;

static void note_change(void *ctx, bool stored, const bt_block_hash *id)
{
    oracle *o = ctx;
    bool *resident = &o->resident[id->w[0] / 1000][id->w[0] % 1000];
    assert_int_equal(*resident, !stored);
    *resident = stored;
}

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % n);
}

static void random_use_agrees_with_a_list_of_what_is_resident(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, UINT32_MAX);
    oracle o = {0};
    bt_kv_cache_set_changed(f.cache, note_change, &o);
    struct {
        bt_block_id ids[CHAIN_MAX];
        uint32_t n;
    } held[5] = {0};
    uint64_t random = 1;
    for (size_t step = 0; step < N_STEPS; step++) {
        const size_t slot = draw(&random, BT_ARRAY_LEN(held));
        if (held[slot].n > 0) {
            bt_kv_cache_release(f.cache, held[slot].ids, held[slot].n);
            held[slot].n = 0;
            continue;
        }
        const uint64_t chain = draw(&random, N_CHAINS);
        const uint32_t n = 1 + draw(&random, CHAIN_MAX);
        uint32_t want = 0;
        while (want < n && o.resident[chain][want]) {
            want++;
        }
        const uint32_t found = match_chain(&f, chain, n, held[slot].ids);
        assert_int_equal(found, want);
        if (bt_kv_cache_acquire(f.cache, n - found, held[slot].ids + found) != BT_OK) {
            bt_kv_cache_release(f.cache, held[slot].ids, found);
            continue;
        }
        held[slot].n = n;
        for (uint32_t i = found; i < n; i++) {
            const bt_block_hash id = identity(chain, i);
            const bt_block_hash parent = identity(chain, i - 1);
            bt_kv_cache_publish(f.cache, held[slot].ids[i], &id, i > 0 ? &parent : NULL);
        }
        if (step % 64 == 0) {
            audit(&f);
        }
    }
    assert_true(bt_kv_cache_get_stats(f.cache)->n_evicted > 100);
    assert_true(bt_kv_cache_get_stats(f.cache)->n_hits > 100);
    for (size_t i = 0; i < BT_ARRAY_LEN(held); i++) {
        bt_kv_cache_release(f.cache, held[i].ids, held[i].n);
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_block_survives_first_release),
        cmocka_unit_test(all_or_none_is_acquired),
        cmocka_unit_test(eviction_takes_the_oldest_tail_first),
        cmocka_unit_test(second_copy_of_an_identity_stays_without),
        cmocka_unit_test(cap_bounds_what_stays),
        cmocka_unit_test(random_use_agrees_with_a_list_of_what_is_resident),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
