/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that a real worker whose engine thread hangs says so, by its health and its load, while
 * the thread still hangs, and takes it back when the thread moves on. The engine is a real one
 * under a scheduler that blocks in its first command until the test lets it go. */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/side.h"
#include "tests/support/tiny_model.h"
#include "worker/worker.h"

typedef struct stuck {
    bt_loop *loop;
    bt_rpc *rpc;
    bt_metrics *metrics;
    bt_worker *worker;
    bt_timer *poll;
    sem_t go;
    bool want_ready;
    bool stopped;
} stuck;

static void on_command(void *ctx, const void *command)
{
    (void)command;
    (void)sem_wait(&((stuck *)ctx)->go);
}

static void plan(void *ctx, bt_batch *batch)
{
    (void)ctx;
    (void)batch;
}

static void results(void *ctx, const bt_batch *batch, const float *logits)
{
    (void)ctx;
    (void)batch;
    (void)logits;
}

static void on_run(bt_worker_run *run, void *ctx)
{
    (void)run;
    (void)ctx;
}

static void on_event(const void *event, void *ctx)
{
    (void)event;
    (void)ctx;
}

static void audit(void *ctx)
{
    bt_worker_audited(((stuck *)ctx)->worker, BT_OK);
}

static const bt_worker_role_ops ops = {
    .modes = 1U << BT_LINK_MODE_WHOLE,
    .command_bytes = sizeof(int),
    .event_bytes = sizeof(int),
    .commands_per_run = 1,
    .run = on_run,
    .stop = on_run,
    .event = on_event,
    .audit = audit,
};

static bt_worker_health health_of(const stuck *s)
{
    bt_worker_health health;
    bt_worker_get_health(s->worker, &health);
    return health;
}

static void on_poll(void *ctx)
{
    stuck *s = ctx;
    if (s->stopped || health_of(s).ready == s->want_ready) {
        bt_loop_stop(s->loop);
    }
}

static void wait_ready(stuck *s, bool ready)
{
    s->want_ready = ready;
    bt_timer_start(s->poll, 0, 5);
    bt_loop_run(s->loop);
    bt_timer_stop(s->poll);
}

static void on_stopped(void *ctx)
{
    stuck *s = ctx;
    s->stopped = true;
    bt_loop_stop(s->loop);
}

static void an_engine_that_hangs_is_told_and_taken_back(void **state)
{
    (void)state;
    stuck s = {0};
    assert_int_equal(sem_init(&s.go, 0, 0), 0);
    assert_int_equal(bt_loop_create(&s.loop), BT_OK);
    assert_int_equal(bt_rpc_create(s.loop, &s.rpc), BT_OK);
    assert_int_equal(bt_metrics_create(&s.metrics), BT_OK);
    bt_model *model = bt_side_load(&bt_tiny_model_odd, "reference", 1, 64, 8);
    const char *const routers[] = {"127.0.0.1:1"}; /* nobody: health depends on no router */
    const bt_worker_options options = {
        .name = "w",
        .routers = routers,
        .n_routers = 1,
        .role = BT_LINK_ROLE_BOTH,
        .model = model,
        .pool_blocks = 8,
        .requests_max = 4,
        .running_max = 4,
        .token_budget = 64,
        .chunk = 16,
        .load_ms = 10,
        .stuck_after_ms = 100,
        .metrics = s.metrics,
    };
    bt_error err;
    assert_int_equal(bt_worker_create(s.loop, s.rpc, &options, &ops, &s, &s.worker, &err), BT_OK);
    const bt_engine_scheduler table = {
        .ctx = &s, .command = on_command, .plan = plan, .results = results};
    assert_int_equal(bt_worker_start(s.worker, &table, NULL, &err), BT_OK);
    assert_int_equal(bt_timer_create(s.loop, on_poll, &s, &s.poll), BT_OK);
    wait_ready(&s, true);
    const int command = 1;
    bt_worker_post(s.worker, &command);
    wait_ready(&s, false);
    const bt_worker_health health = health_of(&s);
    assert_string_equal(health.text, "the engine does not move");
    assert_true(health.load.stuck_ns > 0);
    assert_true(health.load.step_age_ns >= 100000000);
    const bt_gauge *gauge = bt_metrics_gauge(s.metrics, "baton_worker_stuck", "", BT_NO_LABELS);
    assert_true(bt_gauge_value(gauge) > 0);
    assert_int_equal(sem_post(&s.go), 0);
    wait_ready(&s, true);
    assert_int_equal(health_of(&s).load.stuck_ns, 0);
    assert_false(bt_gauge_value(gauge) > 0);
    bt_worker_stop(s.worker, 0, on_stopped, &s);
    bt_loop_run(s.loop);
    bt_worker_halt(s.worker);
    bt_worker_destroy(s.worker);
    bt_model_destroy(model);
    bt_timer_destroy(s.poll);
    bt_rpc_destroy(s.rpc);
    bt_loop_destroy(s.loop);
    bt_metrics_destroy(s.metrics);
    (void)sem_destroy(&s.go);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_that_hangs_is_told_and_taken_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
