/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h - the engine thread: commands in, steps, events out.
 *
 * The thread owns the model, the block pool and the scheduler. It works at its own pace: take
 * commands, plan one step, run it, hand out its results; it sleeps when there is neither a
 * command nor a step. What to run is the scheduler's say: a table that a worker fills in, so
 * that this floor knows neither prefill nor decode.
 *
 * Commands and events are fixed-size items of the scheduler's own types, through two bounded
 * queues. The command queue is sized by the worker so that it can't fill (each request owes a
 * bounded number of commands); events that find the queue full make the thread wait for the
 * loop thread, which is the one place where it does.
 *
 * Threading: post, next_event: loop thread. emit: engine thread. create .. start, stop ..
 *            destroy: the thread that made it.
 * Memory:    create only.
 */
#ifndef BT_ENGINE_ENGINE_H
#define BT_ENGINE_ENGINE_H

#include "common/status.h"
#include "engine/batch.h"
#include "engine/model.h"

typedef struct bt_engine bt_engine;

/* The scheduler's table; every call on the engine thread. */
typedef struct bt_engine_scheduler {
    void *ctx;
    /* Takes one command. */
    void (*command)(void *ctx, const void *command);
    /* Fills an empty batch with the next step; leaves it empty when there is nothing to run. */
    void (*plan)(void *ctx, bt_batch *batch);
    /* K and V of `layer` for all rows of the batch are in their blocks. Posts, no more. NULL:
     * not wanted. */
    void (*layer_done)(void *ctx, const bt_batch *batch, uint32_t layer);
    /* The step is done; logits of batch->logit_rows are [n_logits, n_vocab], valid during the
     * call. */
    void (*results)(void *ctx, const bt_batch *batch, const float *logits);
    /* Tells how long to sleep at most when idle, in ns; negative: until the next command. NULL:
     * negative. For deadlines. */
    int64_t (*idle_ns)(void *ctx);
} bt_engine_scheduler;

typedef struct bt_engine_options {
    bt_model *model;         /* borrowed until destroy */
    uint8_t *pool;           /* KV pool's base */
    uint32_t rows_max;       /* most rows of a step */
    uint32_t spans_max;      /* most sequences of a step */
    uint32_t logits_max;     /* most logit rows of a step */
    size_t command_bytes;    /* size of a command */
    size_t commands_max;     /* capacity */
    size_t event_bytes;      /* size of an event */
    size_t events_max;       /* capacity */
    void (*ring)(void *ctx); /* any thread: events wait; called once for a step's events */
    void *ring_ctx;
} bt_engine_options;

BT_MUST_CHECK bt_status bt_engine_create(const bt_engine_options *options, bt_engine **out);

/* Starts the thread. The scheduler's table is copied. BT_EINTERNAL: no thread to be had. */
BT_MUST_CHECK bt_status bt_engine_start(bt_engine *engine, const bt_engine_scheduler *scheduler);

/* Ends the thread after its present step; queued commands are left. Idempotent. */
void bt_engine_stop(bt_engine *engine);
void bt_engine_destroy(bt_engine *engine);

/* Loop thread. BT_AGAIN: the queue is full. */
BT_MUST_CHECK bt_status bt_engine_post(bt_engine *engine, const void *command);

/* Loop thread: the oldest event into *event. false: none. */
bool bt_engine_next_event(bt_engine *engine, void *event);

/* Engine thread: hands out an event (copied). */
void bt_engine_emit(bt_engine *engine, const void *event);

/* What the thread is at. */
typedef enum bt_engine_phase {
    BT_ENGINE_PHASE_IDLE, /* sleeps until a command comes */
    BT_ENGINE_PHASE_COMMANDS,
    BT_ENGINE_PHASE_PLAN,
    BT_ENGINE_PHASE_FORWARD,
    BT_ENGINE_PHASE_RESULTS,
    BT_ENGINE_PHASE_EVENTS_FULL, /* waits for the loop thread to take events */
} bt_engine_phase;

/* "forward" */
const char *bt_engine_phase_name(bt_engine_phase phase);

/* What the thread is doing, for status, metrics and the watchdog. Any thread. */
typedef struct bt_engine_stats {
    uint64_t n_steps;
    uint64_t n_rows;  /* rows computed */
    uint64_t busy_ns; /* time inside steps */
    bt_engine_phase phase;
    uint32_t layer;   /* FORWARD: layers that are done in this step */
    uint64_t n_moves; /* grows with each change of phase or layer: the same twice is no progress */
    uint64_t n_commands; /* that wait */
} bt_engine_stats;

void bt_engine_get_stats(bt_engine *engine, bt_engine_stats *out);

#endif /* BT_ENGINE_ENGINE_H */
