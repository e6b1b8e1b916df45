/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the maps against an array that is searched from end to end: long random runs of
 * put, get and remove over few keys, so that probe runs collide, wrap and are repaired. */
#include "common/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/fault.h"

enum {
    CAPACITY = 48, /* exactly 3/4 of 64 slots: the fullest that a map gets */
    N_KEYS = 80,
    N_STEPS = 60000,
};

static uint32_t next_random(uint32_t *x)
{
    *x = *x * 1664525 + 1013904223;
    return *x >> 8;
}

/* The oracle: value of key i, 0 for "not there". */
typedef struct oracle {
    uint64_t values[N_KEYS];
    size_t len;
} oracle;

static uint64_t key64(size_t i)
{
    return i * i * 4096; /* with 0, and with little in the low bits */
}

static bt_hash128 key128(size_t i)
{
    return (bt_hash128){{i % 3, (uint64_t)i << 60 | i / 7}};
}

static void check_all64(const bt_map64 *map, const oracle *o)
{
    assert_int_equal(bt_map64_len(map), o->len);
    for (size_t i = 0; i < N_KEYS; i++) {
        uint64_t value = 0;
        assert_int_equal(bt_map64_get(map, key64(i), &value), o->values[i] != 0);
        assert_int_equal(value, o->values[i]);
    }
}

static void map64_agrees_with_an_array(void **state)
{
    (void)state;
    bt_map64 *map;
    oracle o = {.len = 0};
    uint32_t seed = 7;
    assert_int_equal(bt_map64_create(CAPACITY, &map), BT_OK);
    for (uint64_t step = 1; step <= N_STEPS; step++) {
        const size_t i = next_random(&seed) % N_KEYS;
        if (next_random(&seed) % 100 < 60) {
            const bool full = o.len == CAPACITY && o.values[i] == 0;
            assert_int_equal(bt_map64_put(map, key64(i), step), full ? BT_AGAIN : BT_OK);
            o.len += !full && o.values[i] == 0;
            o.values[i] = full ? 0 : step;
        } else {
            uint64_t value = 0;
            assert_int_equal(bt_map64_remove(map, key64(i), &value), o.values[i] != 0);
            assert_int_equal(value, o.values[i]);
            o.len -= o.values[i] != 0;
            o.values[i] = 0;
        }
        if (step % 64 == 0) {
            check_all64(map, &o);
        }
    }
    bt_map64_destroy(map);
}

static void map128_agrees_with_an_array(void **state)
{
    (void)state;
    bt_map128 *map;
    oracle o = {.len = 0};
    uint32_t seed = 11;
    assert_int_equal(bt_map128_create(CAPACITY, &map), BT_OK);
    for (uint64_t step = 1; step <= N_STEPS; step++) {
        const size_t i = next_random(&seed) % N_KEYS;
        uint64_t value = 0;
        assert_int_equal(bt_map128_get(map, key128(i), &value), o.values[i] != 0);
        assert_int_equal(value, o.values[i]);
        if (next_random(&seed) % 2) {
            const bool full = o.len == CAPACITY && o.values[i] == 0;
            assert_int_equal(bt_map128_put(map, key128(i), step), full ? BT_AGAIN : BT_OK);
            o.len += !full && o.values[i] == 0;
            o.values[i] = full ? 0 : step;
        } else {
            assert_int_equal(bt_map128_remove(map, key128(i), NULL), o.values[i] != 0);
            o.len -= o.values[i] != 0;
            o.values[i] = 0;
        }
        assert_int_equal(bt_map128_len(map), o.len);
    }
    bt_map128_destroy(map);
}

static void walk_meets_each_entry_once(void **state)
{
    (void)state;
    bt_map64 *map;
    bt_map128 *wide;
    assert_int_equal(bt_map64_create(100, &map), BT_OK);
    assert_int_equal(bt_map128_create(100, &wide), BT_OK);
    assert_int_equal(bt_map64_capacity(map), 100);
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(bt_map64_put(map, i, i + 1000), BT_OK);
        assert_int_equal(bt_map128_put(wide, (bt_hash128){{i, ~i}}, i + 1000), BT_OK);
    }
    uint64_t sum = 0;
    uint64_t key;
    uint64_t value;
    bt_hash128 key_wide;
    size_t n = 0;
    for (size_t cursor = 0; bt_map64_next(map, &cursor, &key, &value); n++) {
        assert_int_equal(value, key + 1000);
        sum += key;
    }
    for (size_t cursor = 0; bt_map128_next(wide, &cursor, &key_wide, &value); n++) {
        assert_true(key_wide.w[1] == ~key_wide.w[0]);
        assert_int_equal(value, key_wide.w[0] + 1000);
        sum += key_wide.w[0];
    }
    assert_int_equal(n, 200);
    assert_int_equal(sum, 2 * 99 * 50);
    bt_map64_clear(map);
    bt_map128_clear(wide);
    size_t cursor = 0;
    assert_false(bt_map64_next(map, &cursor, &key, &value));
    assert_int_equal(bt_map128_len(wide), 0);
    assert_false(bt_map64_get(map, 5, NULL));
    bt_map64_destroy(map);
    bt_map128_destroy(wide);
}

static void pointers_survive_as_values(void **state)
{
    (void)state;
    bt_map64 *map;
    int here;
    uint64_t value;
    assert_int_equal(bt_map64_create(1, &map), BT_OK);
    assert_int_equal(bt_map64_put(map, 3, bt_map_of_ptr(&here)), BT_OK);
    assert_int_equal(bt_map64_put(map, 4, 0), BT_AGAIN);
    assert_int_equal(bt_map64_put(map, 3, bt_map_of_ptr(&here)),
                     BT_OK); /* replacing is no new one */
    assert_true(bt_map64_get(map, 3, &value));
    assert_ptr_equal(bt_map_to_ptr(value), &here);
    bt_map64_destroy(map);
}

static void absurd_sizes_and_lack_of_memory_are_answers(void **state)
{
    (void)state;
    bt_map64 *map = NULL;
    bt_map128 *wide = NULL;
    assert_int_equal(bt_map64_create(0, &map), BT_EINVAL);
    assert_int_equal(bt_map128_create(SIZE_MAX, &wide), BT_EINVAL);
    bt_map64_destroy(NULL);
    bt_map128_destroy(NULL);
    if (!bt_fault_available()) {
        return;
    }
    for (size_t n = 1;; n++) {
        bt_fault_fail_nth(n);
        const bt_status status = bt_map128_create(10, &wide);
        if (!bt_fault_disarm()) {
            assert_int_equal(status, BT_OK);
            break;
        }
        assert_int_equal(status, BT_ENOMEM);
    }
    bt_fault_trap(true); /* no other call allocates */
    const bt_status status = bt_map128_put(wide, (bt_hash128){{1, 2}}, 3);
    const bool removed = bt_map128_remove(wide, (bt_hash128){{1, 2}}, NULL);
    bt_fault_trap(false);
    assert_int_equal(status, BT_OK);
    assert_true(removed);
    bt_map128_destroy(wide);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(map64_agrees_with_an_array),
        cmocka_unit_test(map128_agrees_with_an_array),
        cmocka_unit_test(walk_meets_each_entry_once),
        cmocka_unit_test(pointers_survive_as_values),
        cmocka_unit_test(absurd_sizes_and_lack_of_memory_are_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
