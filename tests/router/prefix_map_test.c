/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that the map agrees with a table of (worker, block) kept by brute force over random
 * stores, evictions and departures, and that its memory is bounded: a full map forgets what
 * nobody asked for. Ids collide on purpose in their low bits, so that probes and shifts run. */
#include "router/prefix_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N_IDS = 64, N_WORKERS = 5 };

static const uint32_t worker_slots[N_WORKERS] = {0, 1, 63, 64, 127};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Many ids share a home slot, near the table's end too. */
static bt_block_hash id_of(size_t i)
{
    return (bt_block_hash){.w = {i % 2 == 0 ? i % 8 : UINT64_MAX - i % 6, i}};
}

static bt_router_prefix_map *make_map(size_t entries_max)
{
    bt_router_prefix_map *map = NULL;
    assert_int_equal(bt_router_prefix_map_create(entries_max, &map), BT_OK);
    return map;
}

static uint32_t matched_by(bt_router_prefix_map *map, const bt_block_hash *chain, size_t n,
                           uint32_t slot)
{
    uint32_t matched[BT_ROUTER_WORKERS_MAX];
    bt_router_prefix_map_match(map, chain, n, matched);
    return matched[slot];
}

static void leading_blocks_count_and_a_gap_ends_them(void **state)
{
    (void)state;
    bt_router_prefix_map *map = make_map(100);
    bt_block_hash chain[5];
    for (size_t i = 0; i < 5; i++) {
        chain[i] = id_of(i);
    }
    bt_router_prefix_map_store(map, 3, chain, 5);
    bt_router_prefix_map_store(map, 100, chain, 2);
    bt_router_prefix_map_store(map, 100, chain + 3, 2);
    assert_int_equal(matched_by(map, chain, 5, 3), 5);
    assert_int_equal(matched_by(map, chain, 5, 100), 2);
    assert_int_equal(matched_by(map, chain, 5, 4), 0);
    bt_router_prefix_map_evict(map, 3, chain, 1);
    assert_int_equal(matched_by(map, chain, 5, 3), 0);
    assert_int_equal(matched_by(map, chain, 5, 100), 2);
    assert_int_equal(matched_by(map, chain, 0, 100), 0);
    bt_router_prefix_map_destroy(map);
}

static void check_against(bt_router_prefix_map *map, bool held[N_WORKERS][N_IDS], uint64_t *random)
{
    bt_block_hash chain[6];
    size_t picks[6];
    for (size_t i = 0; i < 6; i++) {
        picks[i] = next_random(random) % N_IDS;
        chain[i] = id_of(picks[i]);
    }
    for (size_t w = 0; w < N_WORKERS; w++) {
        uint32_t want = 0;
        while (want < 6 && held[w][picks[want]]) {
            want++;
        }
        assert_int_equal(matched_by(map, chain, 6, worker_slots[w]), want);
    }
}

static void random_events_agree_with_a_plain_table(void **state)
{
    (void)state;
    static bool held[N_WORKERS][N_IDS];
    memset(held, 0, sizeof held);
    bt_router_prefix_map *map = make_map(N_IDS);
    uint64_t random = 7;
    for (int round = 0; round < 50000; round++) {
        const size_t w = next_random(&random) % N_WORKERS;
        const size_t i = next_random(&random) % N_IDS;
        const bt_block_hash id = id_of(i);
        const uint64_t what = next_random(&random) % 100;
        if (what == 0) {
            bt_router_prefix_map_drop_worker(map, worker_slots[w]);
            memset(held[w], 0, sizeof held[w]);
        } else if (what < 50) {
            bt_router_prefix_map_store(map, worker_slots[w], &id, 1);
            held[w][i] = true;
        } else {
            bt_router_prefix_map_evict(map, worker_slots[w], &id, 1);
            held[w][i] = false;
        }
        check_against(map, held, &random);
    }
    size_t n_held = 0;
    for (size_t i = 0; i < N_IDS; i++) {
        bool any = false;
        for (size_t w = 0; w < N_WORKERS; w++) {
            any = any || held[w][i];
        }
        n_held += any;
    }
    assert_int_equal(bt_router_prefix_map_get_stats(map).n_entries, n_held);
    assert_int_equal(bt_router_prefix_map_get_stats(map).n_given_up, 0);
    bt_router_prefix_map_destroy(map);
}

static void a_full_map_keeps_what_is_asked_for(void **state)
{
    (void)state;
    bt_router_prefix_map *map = make_map(1000);
    uint64_t random = 99;
    bt_block_hash hot = {.w = {next_random(&random), 1}};
    bt_router_prefix_map_store(map, 9, &hot, 1);
    for (uint64_t i = 0; i < 100000; i++) {
        const bt_block_hash cold = {.w = {next_random(&random), i + 2}};
        bt_router_prefix_map_store(map, (uint32_t)(i % 9), &cold, 1);
        assert_int_equal(matched_by(map, &hot, 1, 9), 1);
    }
    const bt_router_prefix_map_stats stats = bt_router_prefix_map_get_stats(map);
    assert_int_equal(stats.n_entries, 1000);
    assert_int_equal(stats.n_given_up, 100001 - 1000);
    bt_router_prefix_map_destroy(map);
}

static void an_empty_size_is_refused(void **state)
{
    (void)state;
    bt_router_prefix_map *map = NULL;
    assert_int_equal(bt_router_prefix_map_create(0, &map), BT_EINVAL);
    assert_int_equal(bt_router_prefix_map_create(SIZE_MAX, &map), BT_EINVAL);
    assert_null(map);
    bt_router_prefix_map_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leading_blocks_count_and_a_gap_ends_them),
        cmocka_unit_test(random_events_agree_with_a_plain_table),
        cmocka_unit_test(a_full_map_keeps_what_is_asked_for),
        cmocka_unit_test(an_empty_size_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
