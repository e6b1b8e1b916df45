/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that a worker's measure of a prompt's token is the mean of recent ones, weighed by tokens,
 * and that one step in which the process stood still does not spoil it. */
#include "worker/meter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const uint64_t second_ns = 1000000000;

typedef struct fixture {
    bt_meter *meter;
    bt_engine_stats engine;
    bt_worker_tally tally;
} fixture;

/* A step with so many rows of prompts; the measure after it. */
static uint64_t step(fixture *f, uint64_t n_rows, uint64_t busy_ns)
{
    f->engine.n_steps++;
    f->engine.n_rows += n_rows;
    f->engine.busy_ns += busy_ns;
    f->tally.load.prefill_tokens += n_rows;
    bt_link_load load;
    bt_meter_update(f->meter, &f->tally, &f->engine, &load);
    return load.prefill_token_ns;
}

static void a_token_takes_the_mean_of_recent_ones(void **state)
{
    (void)state;
    fixture f = {0};
    assert_int_equal(bt_meter_create(NULL, 8, 64, &f.meter), BT_OK);
    assert_int_equal(step(&f, 100, second_ns), second_ns / 100);
    assert_int_equal(step(&f, 100, second_ns), second_ns / 100);
    uint64_t token_ns = 0;
    for (int i = 0; i < 200; i++) {
        token_ns = step(&f, 100, second_ns / 10);
    }
    assert_in_range(token_ns, second_ns / 1000, second_ns / 999);
    bt_meter_destroy(f.meter);
}

/* Most of their time is that of reading the weights. */
static void short_prompts_do_not_make_a_long_one_look_slow(void **state)
{
    (void)state;
    fixture f = {0};
    assert_int_equal(bt_meter_create(NULL, 8, 64, &f.meter), BT_OK);
    uint64_t token_ns = 0;
    for (int i = 0; i < 50; i++) {
        token_ns = step(&f, 12, second_ns / 50);
        assert_true(token_ns > 0 && token_ns <= second_ns / 50 / 32);
    }
    assert_true(step(&f, 512, second_ns / 4) < token_ns);
    bt_meter_destroy(f.meter);
    /* Where long prompts come in pieces of 16, such a step is all that there is. */
    f = (fixture){0};
    assert_int_equal(bt_meter_create(NULL, 8, 16, &f.meter), BT_OK);
    assert_int_equal(step(&f, 16, second_ns / 50), second_ns / 50 / 16);
    bt_meter_destroy(f.meter);
}

static void a_step_that_was_stopped_counts_as_a_slow_one(void **state)
{
    (void)state;
    fixture f = {0};
    assert_int_equal(bt_meter_create(NULL, 8, 64, &f.meter), BT_OK);
    uint64_t before_ns = 0;
    for (int i = 0; i < 50; i++) {
        before_ns = step(&f, 100, second_ns / 10);
    }
    assert_true(step(&f, 100, 100 * second_ns) < 2 * before_ns);
    /* A machine that is as slow from now on is believed soon. */
    uint64_t slow_ns = 0;
    for (int i = 0; i < 60; i++) {
        slow_ns = step(&f, 100, 100 * second_ns);
    }
    assert_true(slow_ns > second_ns / 2);
    bt_meter_destroy(f.meter);
}

static void a_first_step_that_was_stopped_is_forgotten_by_the_next(void **state)
{
    (void)state;
    fixture f = {0};
    assert_int_equal(bt_meter_create(NULL, 8, 64, &f.meter), BT_OK);
    (void)step(&f, 100, 100 * second_ns);
    assert_int_equal(step(&f, 100, second_ns / 10), second_ns / 1000);
    bt_link_load load;
    bt_meter_update(f.meter, &f.tally, &f.engine, &load);
    assert_int_equal(load.step_ns, second_ns / 10);
    bt_meter_destroy(f.meter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_takes_the_mean_of_recent_ones),
        cmocka_unit_test(short_prompts_do_not_make_a_long_one_look_slow),
        cmocka_unit_test(a_step_that_was_stopped_counts_as_a_slow_one),
        cmocka_unit_test(a_first_step_that_was_stopped_is_forgotten_by_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
