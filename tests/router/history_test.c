/* SPDX-License-Identifier: Apache-2.0 */
/* Proves what a router remembers: the newest requests by id and by label, the newest attempts. */
#include "router/history.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static bt_router_timeline timeline(uint64_t lo, const char *label)
{
    bt_router_timeline t = {.id = {.hi = 0xabc, .lo = lo}, .state = "stop", .ended_ns = lo};
    snprintf(t.label, sizeof t.label, "%s", label);
    return t;
}

static void newest_requests_are_found_by_id_and_by_label(void **state)
{
    (void)state;
    bt_router_history *history;
    assert_int_equal(bt_router_history_create(3, &history), BT_OK);
    assert_null(bt_router_history_find(history, "one"));
    const char *const labels[] = {"one", "two", "three", "four"};
    for (uint64_t i = 0; i < 4; i++) {
        const bt_router_timeline t = timeline(i + 1, labels[i]);
        bt_router_history_add(history, &t);
    }
    assert_null(bt_router_history_find(history, "one"));
    assert_null(bt_router_history_find(history, "0000000000000abc0000000000000001"));
    assert_int_equal(bt_router_history_find(history, "two")->id.lo, 2);
    assert_int_equal(bt_router_history_find(history, "0000000000000abc0000000000000004")->id.lo, 4);
    assert_null(bt_router_history_find(history, ""));
    bt_router_history_destroy(history);
}

static void of_one_label_the_newest_counts(void **state)
{
    (void)state;
    bt_router_history *history;
    assert_int_equal(bt_router_history_create(8, &history), BT_OK);
    for (uint64_t i = 1; i <= 3; i++) {
        const bt_router_timeline t = timeline(i, "again");
        bt_router_history_add(history, &t);
    }
    assert_int_equal(bt_router_history_find(history, "again")->id.lo, 3);
    bt_router_history_destroy(history);
}

static void history_of_no_size_remembers_nothing(void **state)
{
    (void)state;
    bt_router_history *history;
    assert_int_equal(bt_router_history_create(0, &history), BT_OK);
    const bt_router_timeline t = timeline(1, "one");
    bt_router_history_add(history, &t);
    assert_null(bt_router_history_find(history, "one"));
    bt_router_history_destroy(history);
}

static void newest_attempts_are_kept_in_order(void **state)
{
    (void)state;
    bt_router_attempts attempts = {0};
    assert_null(bt_router_attempts_newest(&attempts));
    for (uint32_t i = 1; i <= BT_ROUTER_ATTEMPTS_KEPT + 2; i++) {
        bt_router_attempts_add(&attempts)->number = i;
        assert_int_equal(bt_router_attempts_newest(&attempts)->number, i);
    }
    assert_int_equal(bt_router_attempts_kept(&attempts), BT_ROUTER_ATTEMPTS_KEPT);
    for (uint32_t i = 0; i < BT_ROUTER_ATTEMPTS_KEPT; i++) {
        assert_int_equal(bt_router_attempts_at(&attempts, i)->number, i + 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(newest_requests_are_found_by_id_and_by_label),
        cmocka_unit_test(of_one_label_the_newest_counts),
        cmocka_unit_test(history_of_no_size_remembers_nothing),
        cmocka_unit_test(newest_attempts_are_kept_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
