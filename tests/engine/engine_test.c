/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the engine thread: commands reach the scheduler in order, steps run while it plans rows,
 * events come out in order and ring, an idle thread wakes up for a command, a full event queue
 * loses nothing, and stop ends the thread wherever it is. The scheduler is one of the test's. */
#include "engine/engine.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/kv_pool.h"
#include "tests/support/side.h"
#include "tests/support/tiny_model.h"

enum { EVENTS_MAX = 8 };

typedef struct command {
    uint32_t n_steps;  /* to run */
    uint32_t n_events; /* to emit in each */
} command;

typedef struct event {
    uint32_t step;
    uint32_t number;
} event;

typedef struct fixture {
    bt_kv_pool *pool;
    bt_engine *engine;
    sem_t rung;
    /* the scheduler's, on the engine thread */
    uint32_t n_left;
    uint32_t n_events;
    uint32_t n_step;
    uint32_t n_layers_seen;
    bt_block_id block;
    int32_t token;
} fixture;

static bt_model *model; /* loaded once */

static void take_command(void *ctx, const void *bytes)
{
    fixture *f = ctx;
    const command *c = bytes;
    f->n_left += c->n_steps;
    f->n_events = c->n_events;
}

static void plan(void *ctx, bt_batch *batch)
{
    fixture *f = ctx;
    if (f->n_left > 0) {
        bt_batch_add(batch, f, &f->token, 1, 0, &f->block);
    }
}

static void layer_done(void *ctx, const bt_batch *batch, uint32_t layer)
{
    fixture *f = ctx;
    assert_int_equal(batch->n_rows, 1);
    assert_int_equal(layer, f->n_layers_seen++ % bt_model_get_params(model)->n_layers);
}

static void take_results(void *ctx, const bt_batch *batch, const float *logits)
{
    (void)batch;
    (void)logits;
    fixture *f = ctx;
    f->n_left--;
    for (uint32_t i = 0; i < f->n_events; i++) {
        const event e = {.step = f->n_step, .number = i};
        bt_engine_emit(f->engine, &e);
    }
    f->n_step++;
}

static void ring(void *ctx)
{
    (void)sem_post(&((fixture *)ctx)->rung);
}

static void open_fixture(fixture *f)
{
    *f = (fixture){.token = 65};
    assert_int_equal(sem_init(&f->rung, 0, 0), 0);
    assert_int_equal(bt_kv_pool_create(bt_model_kv_layout(model), 1, true, &f->pool, NULL), BT_OK);
    const bt_engine_options options = {
        .model = model,
        .pool = bt_kv_pool_base(f->pool),
        .rows_max = 4,
        .spans_max = 4,
        .logits_max = 4,
        .command_bytes = sizeof(command),
        .commands_max = 4,
        .event_bytes = sizeof(event),
        .events_max = EVENTS_MAX,
        .ring = ring,
        .ring_ctx = f,
    };
    assert_int_equal(bt_engine_create(&options, &f->engine), BT_OK);
    const bt_engine_scheduler table = {
        .ctx = f,
        .command = take_command,
        .plan = plan,
        .layer_done = layer_done,
        .results = take_results,
    };
    assert_int_equal(bt_engine_start(f->engine, &table), BT_OK);
}

static void close_fixture(fixture *f)
{
    bt_engine_stop(f->engine);
    bt_engine_destroy(f->engine);
    bt_kv_pool_destroy(f->pool);
    (void)sem_destroy(&f->rung);
}

/* Waits for the next event, as a loop thread does: by its bell. */
static event next_event(fixture *f)
{
    event e;
    while (!bt_engine_next_event(f->engine, &e)) {
        (void)sem_wait(&f->rung);
    }
    return e;
}

static void post(fixture *f, uint32_t n_steps, uint32_t n_events)
{
    const command c = {.n_steps = n_steps, .n_events = n_events};
    assert_int_equal(bt_engine_post(f->engine, &c), BT_OK);
}

static void steps_run_and_events_come_in_order(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    for (uint32_t round = 0; round < 20; round++) { /* idle in between: each command wakes it */
        post(&f, 2, 3);
        for (uint32_t i = 0; i < 6; i++) {
            const event e = next_event(&f);
            assert_int_equal(e.step, round * 2 + i / 3);
            assert_int_equal(e.number, i % 3);
        }
    }
    bt_engine_stop(f.engine);
    bt_engine_stats stats;
    bt_engine_get_stats(f.engine, &stats);
    assert_int_equal(stats.n_steps, 40);
    assert_int_equal(stats.n_rows, 40);
    assert_int_equal(f.n_layers_seen, 40 * bt_model_get_params(model)->n_layers);
    close_fixture(&f);
}

static void full_event_queue_loses_nothing(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    post(&f, 3, 5 * EVENTS_MAX);
    for (uint32_t i = 0; i < 3 * 5 * EVENTS_MAX; i++) {
        const event e = next_event(&f);
        assert_int_equal(e.step, i / (5 * EVENTS_MAX));
        assert_int_equal(e.number, i % (5 * EVENTS_MAX));
    }
    close_fixture(&f);
}

static void stop_ends_a_thread_that_waits_for_room(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    post(&f, 1, 5 * EVENTS_MAX);
    (void)next_event(&f);
    close_fixture(&f); /* nobody takes the rest */
}

static void stop_without_work_and_twice_is_fine(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    bt_engine_stop(f.engine);
    close_fixture(&f);
}

static int load_model(void **state)
{
    (void)state;
    model = bt_side_load(&bt_tiny_model_odd, "portable", 1, 4, 4);
    return 0;
}

static int unload_model(void **state)
{
    (void)state;
    bt_model_destroy(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_run_and_events_come_in_order),
        cmocka_unit_test(full_event_queue_loses_nothing),
        cmocka_unit_test(stop_ends_a_thread_that_waits_for_room),
        cmocka_unit_test(stop_without_work_and_twice_is_fine),
    };
    return cmocka_run_group_tests(tests, load_model, unload_model);
}
