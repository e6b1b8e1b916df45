/* SPDX-License-Identifier: Apache-2.0 */
/* Proves a worker's memory of its runs: the newest, all attempts of a request, by id or label. */
#include "worker/timeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static void add(bt_timeline_ring *ring, uint64_t lo, uint32_t attempt, const char *label)
{
    bt_link_timeline t = {.id = {.hi = 1, .lo = lo}, .attempt = attempt};
    snprintf(t.label, sizeof t.label, "%s", label);
    bt_timeline_ring_add(ring, &t);
}

static void all_attempts_are_found_the_newest_first(void **state)
{
    (void)state;
    bt_timeline_ring *ring;
    bt_link_timeline found[4];
    assert_int_equal(bt_timeline_ring_create(4, &ring), BT_OK);
    add(ring, 7, 1, "job");
    add(ring, 8, 1, "other");
    add(ring, 7, 2, "job");
    assert_int_equal(bt_timeline_ring_find(ring, "job", found, 4), 2);
    assert_int_equal(found[0].attempt, 2);
    assert_int_equal(found[1].attempt, 1);
    assert_int_equal(bt_timeline_ring_find(ring, "00000000000000010000000000000007", found, 1), 1);
    assert_int_equal(found[0].attempt, 2);
    assert_int_equal(bt_timeline_ring_find(ring, "nobody", found, 4), 0);
    bt_timeline_ring_destroy(ring);
}

static void oldest_runs_give_way(void **state)
{
    (void)state;
    bt_timeline_ring *ring;
    bt_link_timeline found[4];
    assert_int_equal(bt_timeline_ring_create(2, &ring), BT_OK);
    add(ring, 1, 1, "a");
    add(ring, 2, 1, "b");
    add(ring, 3, 1, "c");
    assert_int_equal(bt_timeline_ring_find(ring, "a", found, 4), 0);
    assert_int_equal(bt_timeline_ring_find(ring, "b", found, 4), 1);
    assert_int_equal(bt_timeline_ring_find(ring, "c", found, 4), 1);
    bt_timeline_ring_destroy(ring);
}

static void run_without_a_label_is_found_by_its_id_alone(void **state)
{
    (void)state;
    bt_timeline_ring *ring;
    bt_link_timeline found[4];
    assert_int_equal(bt_timeline_ring_create(2, &ring), BT_OK);
    add(ring, 9, 1, "");
    assert_int_equal(bt_timeline_ring_find(ring, "", found, 4), 0);
    assert_int_equal(bt_timeline_ring_find(ring, "00000000000000010000000000000009", found, 4), 1);
    bt_timeline_ring_destroy(ring);
    assert_int_equal(bt_timeline_ring_create(0, &ring), BT_OK);
    add(ring, 9, 1, "x");
    assert_int_equal(bt_timeline_ring_find(ring, "x", found, 4), 0);
    bt_timeline_ring_destroy(ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_attempts_are_found_the_newest_first),
        cmocka_unit_test(oldest_runs_give_way),
        cmocka_unit_test(run_without_a_label_is_found_by_its_id_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
