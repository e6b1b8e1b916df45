/* SPDX-License-Identifier: Apache-2.0 */
/* Proves what the watchdog takes for progress and what not. Time and the engine's state are
 * arguments. */
#include "worker/watchdog.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const int64_t second_ns = 1000000000;

static bt_watchdog watchdog_of(void)
{
    bt_watchdog w;
    bt_watchdog_init(&w, 10 * second_ns, second_ns);
    return w;
}

/* Looks each second for `n_seconds`; returns how often the verdict changed. */
static int look_on(bt_watchdog *w, bt_engine_stats *engine, uint32_t n_ready, int n_seconds,
                   bool moves)
{
    int n_changes = 0;
    for (int i = 0; i < n_seconds; i++) {
        engine->n_moves += moves;
        n_changes += bt_watchdog_look(w, engine, n_ready, w->looked_ns + second_ns);
    }
    return n_changes;
}

static void an_idle_engine_is_never_stuck(void **state)
{
    (void)state;
    bt_watchdog w = watchdog_of();
    bt_engine_stats engine = {.phase = BT_ENGINE_PHASE_IDLE};
    assert_int_equal(look_on(&w, &engine, 0, 1000, false), 0);
    assert_int_equal(bt_watchdog_age_ns(&w), 0);
}

static void a_long_step_whose_layers_pass_is_not_stuck(void **state)
{
    (void)state;
    bt_watchdog w = watchdog_of();
    bt_engine_stats engine = {.phase = BT_ENGINE_PHASE_FORWARD};
    for (int i = 0; i < 10; i++) {
        assert_int_equal(look_on(&w, &engine, 1, 9, false), 0);
        assert_int_equal(look_on(&w, &engine, 1, 1, true), 0);
    }
}

static void a_step_that_stands_still_is_stuck_until_it_moves(void **state)
{
    (void)state;
    bt_watchdog w = watchdog_of();
    bt_engine_stats engine = {.phase = BT_ENGINE_PHASE_FORWARD, .layer = 7, .n_steps = 3};
    assert_int_equal(look_on(&w, &engine, 0, 10, false), 0);
    assert_int_equal(look_on(&w, &engine, 0, 1, false), 1);
    assert_true(w.stuck_since_ns != 0);
    assert_int_equal(bt_watchdog_age_ns(&w), 10 * second_ns);
    assert_non_null(strstr(w.text, "phase=forward layer=7 steps=3"));
    assert_int_equal(look_on(&w, &engine, 0, 50, false), 0);
    assert_int_equal(look_on(&w, &engine, 0, 1, true), 1);
    assert_int_equal(w.stuck_since_ns, 0);
}

static void an_engine_that_sleeps_over_work_is_stuck(void **state)
{
    (void)state;
    bt_watchdog w = watchdog_of();
    bt_engine_stats engine = {.phase = BT_ENGINE_PHASE_IDLE};
    assert_int_equal(look_on(&w, &engine, 2, 12, false), 1);
    assert_non_null(strstr(w.text, "the engine sleeps: 2 requests could run"));
    assert_int_equal(look_on(&w, &engine, 0, 1, false), 1);
    engine.n_commands = 1;
    assert_int_equal(look_on(&w, &engine, 0, 12, false), 1);
    assert_non_null(strstr(w.text, "1 commands wait"));
}

static void time_in_which_nobody_looked_does_not_count(void **state)
{
    (void)state;
    bt_watchdog w = watchdog_of();
    bt_engine_stats engine = {.phase = BT_ENGINE_PHASE_FORWARD};
    assert_int_equal(look_on(&w, &engine, 0, 5, false), 0);
    assert_false(bt_watchdog_look(&w, &engine, 0, w.looked_ns + 3600 * second_ns)); /* stopped */
    assert_int_equal(look_on(&w, &engine, 0, 3, false), 0);
    assert_int_equal(look_on(&w, &engine, 0, 3, false), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_engine_is_never_stuck),
        cmocka_unit_test(a_long_step_whose_layers_pass_is_not_stuck),
        cmocka_unit_test(a_step_that_stands_still_is_stuck_until_it_moves),
        cmocka_unit_test(an_engine_that_sleeps_over_work_is_stuck),
        cmocka_unit_test(time_in_which_nobody_looked_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
