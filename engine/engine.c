/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's loop:
 *
 *   take all commands -> plan -> empty? -- yes --> sleep until a command or idle_ns
 *         ^                       no
 *         `---- results <- forward (layer_done after each layer)
 *
 * Events of a step are pushed as they arise; the loop thread is rung when the first of them
 * finds the queue empty and once more after the step, so that parts can be announced while the
 * step goes on. */
#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/queue.h"

struct bt_engine {
    bt_engine_options options;
    bt_engine_scheduler scheduler;
    bt_queue *commands;
    bt_queue *events;
    bt_batch *batch;
    uint8_t *command; /* one command, taken out of the queue */
    pthread_t thread;
    bool started;
    /* Set by stop(), read by the thread; nothing else hangs on it. */
    atomic_bool stopping;
    /* Written by the engine thread, read by any: each stands alone. */
    _Atomic uint64_t n_steps;
    _Atomic uint64_t n_rows;
    _Atomic uint64_t busy_ns;
    /* n_moves << 32 | layer << 8 | phase, in one word: a reader sees what belongs together. */
    _Atomic uint64_t place;
};

static const char *const phase_names[] = {
    [BT_ENGINE_PHASE_IDLE] = "idle",
    [BT_ENGINE_PHASE_COMMANDS] = "commands",
    [BT_ENGINE_PHASE_PLAN] = "plan",
    [BT_ENGINE_PHASE_FORWARD] = "forward",
    [BT_ENGINE_PHASE_RESULTS] = "results",
    [BT_ENGINE_PHASE_EVENTS_FULL] = "events full",
};

const char *bt_engine_phase_name(bt_engine_phase phase)
{
    return (size_t)phase < BT_ARRAY_LEN(phase_names) ? phase_names[phase] : "unknown";
}

/* The engine thread alone writes the word. */
static void move_to(bt_engine *engine, bt_engine_phase phase, uint32_t layer)
{
    const uint64_t old = atomic_load_explicit(&engine->place, memory_order_relaxed);
    const uint64_t n_moves = (old >> 32) + 1;
    atomic_store_explicit(&engine->place,
                          n_moves << 32 | (uint64_t)(layer & 0xFFFFFF) << 8 | (uint64_t)phase,
                          memory_order_relaxed);
}

static bool is_stopping(bt_engine *engine)
{
    return atomic_load_explicit(&engine->stopping, memory_order_acquire);
}

static void take_commands(bt_engine *engine)
{
    move_to(engine, BT_ENGINE_PHASE_COMMANDS, 0);
    while (bt_queue_pop(engine->commands, engine->command)) {
        engine->scheduler.command(engine->scheduler.ctx, engine->command);
    }
}

static void ring(bt_engine *engine)
{
    if (engine->options.ring) {
        engine->options.ring(engine->options.ring_ctx);
    }
}

static void on_layer(void *ctx, const bt_batch *batch, uint32_t layer)
{
    bt_engine *engine = ctx;
    const bt_engine_scheduler *s = &engine->scheduler;
    if (s->layer_done) {
        s->layer_done(s->ctx, batch, layer);
    }
    move_to(engine, BT_ENGINE_PHASE_FORWARD, layer + 1);
}

static void run_step(bt_engine *engine)
{
    const bt_engine_scheduler *s = &engine->scheduler;
    const int64_t began_ns = bt_clock_now_ns();
    move_to(engine, BT_ENGINE_PHASE_FORWARD, 0);
    const float *logits = bt_model_forward(engine->options.model, engine->batch,
                                           engine->options.pool, on_layer, engine);
    move_to(engine, BT_ENGINE_PHASE_RESULTS, 0);
    s->results(s->ctx, engine->batch, logits);
    atomic_fetch_add_explicit(&engine->busy_ns, (uint64_t)(bt_clock_now_ns() - began_ns),
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&engine->n_rows, engine->batch->n_rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&engine->n_steps, 1, memory_order_relaxed);
    ring(engine);
}

static void *run_engine(void *arg)
{
    bt_engine *engine = arg;
    const bt_engine_scheduler *s = &engine->scheduler;
    while (!is_stopping(engine)) {
        take_commands(engine);
        bt_batch_clear(engine->batch);
        move_to(engine, BT_ENGINE_PHASE_PLAN, 0);
        s->plan(s->ctx, engine->batch);
        if (engine->batch->n_rows > 0) {
            run_step(engine);
        } else {
            ring(engine);
            move_to(engine, BT_ENGINE_PHASE_IDLE, 0);
            (void)bt_queue_wait(engine->commands, s->idle_ns ? s->idle_ns(s->ctx) : -1);
        }
    }
    return NULL;
}

bt_status bt_engine_create(const bt_engine_options *options, bt_engine **out)
{
    bt_engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        return BT_ENOMEM;
    }
    engine->options = *options;
    engine->command = calloc(1, options->command_bytes);
    bt_status status = engine->command ? BT_OK : BT_ENOMEM;
    if (status == BT_OK) {
        status = bt_queue_create(options->command_bytes, options->commands_max, &engine->commands);
    }
    if (status == BT_OK) {
        status = bt_queue_create(options->event_bytes, options->events_max, &engine->events);
    }
    if (status == BT_OK) {
        status = bt_batch_create(options->rows_max, options->spans_max, options->logits_max,
                                 &engine->batch);
    }
    if (status != BT_OK) {
        bt_engine_destroy(engine);
        return status;
    }
    *out = engine;
    return BT_OK;
}

bt_status bt_engine_start(bt_engine *engine, const bt_engine_scheduler *scheduler)
{
    BT_ASSERT(!engine->started);
    engine->scheduler = *scheduler;
    if (pthread_create(&engine->thread, NULL, run_engine, engine) != 0) {
        return BT_EINTERNAL;
    }
    engine->started = true;
    return BT_OK;
}

void bt_engine_stop(bt_engine *engine)
{
    if (!engine->started) {
        return;
    }
    atomic_store_explicit(&engine->stopping, true, memory_order_release);
    bt_queue_wake(engine->commands);
    (void)pthread_join(engine->thread, NULL);
    engine->started = false;
}

void bt_engine_destroy(bt_engine *engine)
{
    if (!engine) {
        return;
    }
    bt_engine_stop(engine);
    bt_queue_destroy(engine->commands);
    bt_queue_destroy(engine->events);
    bt_batch_destroy(engine->batch);
    free(engine->command);
    free(engine);
}

bt_status bt_engine_post(bt_engine *engine, const void *command)
{
    return bt_queue_push(engine->commands, command);
}

bool bt_engine_next_event(bt_engine *engine, void *event)
{
    return bt_queue_pop(engine->events, event);
}

void bt_engine_emit(bt_engine *engine, const void *event)
{
    const bool was_empty = bt_queue_len(engine->events) == 0;
    uint64_t place_before = UINT64_MAX;
    while (bt_queue_push(engine->events, event) == BT_AGAIN) {
        if (is_stopping(engine)) {
            return; /* nobody will read it */
        }
        if (place_before == UINT64_MAX) {
            place_before = atomic_load_explicit(&engine->place, memory_order_relaxed);
            move_to(engine, BT_ENGINE_PHASE_EVENTS_FULL, 0);
        }
        ring(engine);
        const struct timespec pause = {.tv_sec = 0, .tv_nsec = 100000};
        (void)nanosleep(&pause, NULL);
    }
    if (place_before != UINT64_MAX) {
        move_to(engine, (bt_engine_phase)(place_before & 0xFF),
                (uint32_t)(place_before >> 8) & 0xFFFFFF);
    }
    if (was_empty) {
        ring(engine);
    }
}

void bt_engine_get_stats(bt_engine *engine, bt_engine_stats *out)
{
    out->n_steps = atomic_load_explicit(&engine->n_steps, memory_order_relaxed);
    out->n_rows = atomic_load_explicit(&engine->n_rows, memory_order_relaxed);
    out->busy_ns = atomic_load_explicit(&engine->busy_ns, memory_order_relaxed);
    const uint64_t place = atomic_load_explicit(&engine->place, memory_order_relaxed);
    out->phase = (bt_engine_phase)(place & 0xFF);
    out->layer = (uint32_t)(place >> 8) & 0xFFFFFF;
    out->n_moves = place >> 32;
    out->n_commands = bt_queue_len(engine->commands);
}
