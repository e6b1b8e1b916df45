/* SPDX-License-Identifier: Apache-2.0 */
/* Serving: what comes from routers, engine and timers while a worker runs (its life is in
 * worker_life.c).
 *
 * A run is open from open_run() until finish_run() finds that neither the engine nor a transfer
 * has it any more; then FINISHED goes out, exactly once. Whatever ends a run early (router,
 * deadline, shutdown, a failed transfer) goes through bt_worker_stop_run(), where the first
 * reason wins.
 *
 * One timer serves all deadlines: it is set to the earliest and looks through the open runs when
 * it rings. Runs that end earlier leave it alone; then it rings in vain, once.
 */
#include "worker/worker_int.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"

enum { EVENTS_PER_WAKE = 4096 }; /* then the loop gets its turn */

static void arm_deadline(bt_worker *worker);
static size_t on_explain(const char *request, bt_link_timeline *out, void *ctx);

/* ------------------------------------------------------------------- from the routers ---- */

static void flush(bt_worker *worker)
{
    if (!worker->in_events && worker->link != NULL) {
        bt_link_worker_flush(worker->link);
    }
}

static void refuse(bt_worker *worker, const bt_link_run *run, bt_status status,
                   const bt_error *error)
{
    bt_link_finished finished = {
        .id = run->id,
        .attempt = run->attempt,
        .status = status,
        .draining = worker->state != BT_WORKER_STATE_SERVING,
        .reason = BT_FINISH_ERROR,
        .prompt_tokens = run->n_prompt,
    };
    finished.error = *error;
    bt_log(BT_INFO,
           "request refused: req=%s id=%016" PRIx64 "%016" PRIx64 " attempt=%" PRIu32
           " status=%s why=\"%s\"",
           run->label != NULL && run->label[0] != '\0' ? run->label : "-", run->id.hi, run->id.lo,
           run->attempt, bt_status_name(status), error->text);
    bt_link_worker_finished(worker->link, &finished);
    flush(worker);
}

static bt_status open_run(bt_worker *worker, const bt_link_run *request, bt_worker_run **out,
                          bt_error *err)
{
    if (worker->state != BT_WORKER_STATE_SERVING) {
        return bt_error_set(err, BT_EPEER, "worker '%s' is shutting down", worker->name);
    }
    bt_status status = bt_admission_check(&worker->admission, request, err);
    if (status != BT_OK) {
        return status;
    }
    status = bt_run_table_open(worker->runs, request, bt_clock_now_ns(), out);
    if (status == BT_AGAIN) {
        return bt_error_set(err, BT_EEXHAUSTED,
                            "worker '%s' has %" PRIu32 " requests open, which is its limit",
                            worker->name, worker->options.requests_max);
    }
    if (status == BT_EEXISTS) {
        return bt_error_set(err, status, "this attempt of the request is running already");
    }
    return status;
}

static void on_run(const bt_link_run *request, void *ctx)
{
    bt_worker *worker = ctx;
    bt_worker_run *run = NULL;
    bt_error err = {{0}};
    const bt_status status = open_run(worker, request, &run, &err);
    if (status != BT_OK) {
        refuse(worker, request, status, &err);
        return;
    }
    if (run->deadline_ns < worker->deadline_ns) {
        arm_deadline(worker);
    }
    worker->ops->run(run, worker->ctx);
}

static void on_cancel(bt_request_id id, uint32_t attempt, void *ctx)
{
    bt_worker *worker = ctx;
    bt_worker_run *run = bt_run_table_find(worker->runs, id, attempt);
    if (run != NULL) {
        bt_worker_stop_run(worker, run, BT_ECANCELLED, "cancelled by the router");
    }
}

static void on_park(bt_request_id id, uint32_t attempt, uint32_t next_attempt, void *ctx)
{
    bt_worker *worker = ctx;
    bt_worker_run *run = bt_run_table_find(worker->runs, id, attempt);
    if (run == NULL || run->stopping) {
        return; /* FINISHED is on its way */
    }
    if (worker->ops->park == NULL) {
        bt_worker_parked(worker, run, BT_EUNSUPPORTED, "a prefill worker hands over by itself");
    } else {
        worker->ops->park(run, next_attempt, worker->ctx);
    }
    flush(worker);
}

static void on_resume(bt_request_id id, uint32_t attempt, void *ctx)
{
    bt_worker *worker = ctx;
    bt_worker_run *run = bt_run_table_find(worker->runs, id, attempt);
    if (run != NULL && worker->ops->resume != NULL) {
        worker->ops->resume(run, worker->ctx);
    }
}

static void on_drain(void *ctx)
{
    const bt_worker *worker = ctx;
    if (worker->state == BT_WORKER_STATE_SERVING && worker->options.drain != NULL) {
        worker->options.drain(worker->options.drain_ctx);
    }
}

static void on_fetch(uint32_t router, const bt_link_fetch *fetch, void *ctx)
{
    bt_worker *worker = ctx;
    if (worker->state == BT_WORKER_STATE_SERVING && worker->chains != NULL) {
        bt_worker_chains_fetch(worker->chains, router, fetch);
    } else {
        bt_link_fetched refused = {.id = fetch->id, .attempt = fetch->attempt};
        refused.status =
            bt_error_set(&refused.error, BT_EPEER, "worker '%s' takes nothing new", worker->name);
        bt_worker_on_fetched(router, &refused, worker);
    }
}

static void on_leave(void *ctx)
{
    bt_worker_stop_when_empty(ctx);
}

const bt_link_worker_callbacks bt_worker_link_callbacks = {
    .on_run = on_run,
    .on_cancel = on_cancel,
    .on_explain = on_explain,
    .on_park = on_park,
    .on_resume = on_resume,
    .on_drain = on_drain,
    .on_fetch = on_fetch,
    .on_leave = on_leave,
};

/* -------------------------------------------------------------------- from the engine ---- */

void bt_worker_ring(void *ctx)
{
    bt_worker *worker = ctx;
    bt_wake_ring(worker->wake);
}

static void tell_blocks(bt_worker *worker)
{
    if (worker->n_blocks > 0) {
        bt_link_worker_blocks(
            worker->link, worker->blocks_stored ? BT_LINK_BLOCKS_STORED : BT_LINK_BLOCKS_EVICTED,
            worker->blocks, worker->n_blocks);
        worker->n_blocks = 0;
    }
}

void bt_worker_on_fetched(uint32_t router, const bt_link_fetched *fetched, void *ctx)
{
    bt_worker *worker = ctx;
    tell_blocks(worker); /* what it has got comes first */
    bt_link_worker_fetched(worker->link, router, fetched);
    flush(worker);
}

void bt_worker_on_wake(void *ctx)
{
    bt_worker *worker = ctx;
    if (worker->link == NULL || worker->state == BT_WORKER_STATE_STOPPED) {
        return;
    }
    worker->in_events = true;
    uint32_t n = 0;
    while (n < EVENTS_PER_WAKE && bt_engine_next_event(worker->engine, worker->event)) {
        worker->ops->event(worker->event, worker->ctx);
        n++;
    }
    tell_blocks(worker);
    worker->in_events = false;
    flush(worker);
    if (n == EVENTS_PER_WAKE) {
        bt_wake_ring(worker->wake);
    }
}

void bt_worker_block(bt_worker *worker, bool stored, const bt_hash128 *identity)
{
    if (worker->n_blocks == BT_WORKER_BLOCKS_BATCH || worker->blocks_stored != stored) {
        tell_blocks(worker);
    }
    worker->blocks_stored = stored;
    worker->blocks[worker->n_blocks++] = *identity;
}

/* Age of the oldest run that the engine has not begun. */
static uint64_t oldest_waiting_ns(const bt_worker *worker, int64_t now_ns)
{
    for (const bt_worker_run *run = bt_run_table_next(worker->runs, NULL); run != NULL;
         run = bt_run_table_next(worker->runs, run)) {
        if (run->in_engine && !run->started && !run->stopping) {
            return (uint64_t)(now_ns - run->arrived_ns);
        }
    }
    return 0;
}

/* Requests that nothing but the engine keeps from going on: those that decode, and those that wait
 * while it has no other that may hold their blocks. */
static uint32_t count_ready(const bt_worker *worker)
{
    uint32_t n_waiting = 0;
    for (const bt_worker_run *run = bt_run_table_next(worker->runs, NULL); run != NULL;
         run = bt_run_table_next(worker->runs, run)) {
        if (run->in_engine && (run->started || run->stopping)) {
            return worker->load.requests_decoding;
        }
        n_waiting += run->in_engine;
    }
    return worker->load.requests_decoding + n_waiting;
}

/* What changes though no step ends. */
static void fill_ages(bt_worker *worker)
{
    const int64_t now_ns = bt_clock_now_ns();
    const int64_t since_ns = worker->watchdog.stuck_since_ns;
    worker->load.oldest_waiting_ns = oldest_waiting_ns(worker, now_ns);
    worker->load.step_age_ns = (uint64_t)bt_watchdog_age_ns(&worker->watchdog);
    worker->load.stuck_ns = since_ns == 0 ? 0 : (uint64_t)(now_ns - since_ns) + 1;
    worker->load.running_max = worker->options.running_max;
}

void bt_worker_on_watch(void *ctx)
{
    bt_worker *worker = ctx;
    if (worker->state == BT_WORKER_STATE_CREATED || worker->state >= BT_WORKER_STATE_CLOSING) {
        return;
    }
    bt_engine_stats engine;
    bt_engine_get_stats(worker->engine, &engine);
    const int64_t now_ns = bt_clock_now_ns();
    const bool changed = bt_watchdog_look(&worker->watchdog, &engine, count_ready(worker), now_ns);
    const bool is_stuck = worker->watchdog.stuck_since_ns != 0;
    if (changed && is_stuck) {
        bt_log(BT_ERROR,
               "engine stuck: runs=%" PRIu32 " commands=%" PRIu64 " for_ms=%" PRId64 " why=\"%s\"",
               bt_run_table_n_open(worker->runs), engine.n_commands,
               bt_watchdog_age_ns(&worker->watchdog) / 1000000, worker->watchdog.text);
    } else if (changed) {
        bt_log(BT_WARN, "engine moves again: runs=%" PRIu32, bt_run_table_n_open(worker->runs));
    }
    bt_meter_set_stuck(worker->meter, is_stuck);
    fill_ages(worker);
    bt_link_worker_load(worker->link, &worker->load); /* leaves with the link's next report */
    if (changed) {
        flush(worker);
    }
    bt_worker_stop_when_empty(worker); /* nobody may have wanted its prefixes for long enough */
}

void bt_worker_report(bt_worker *worker, const bt_worker_tally *tally)
{
    bt_engine_stats engine;
    bt_engine_get_stats(worker->engine, &engine);
    bt_meter_update(worker->meter, tally, &engine, &worker->load);
    fill_ages(worker);
    worker->load.draining = worker->state != BT_WORKER_STATE_SERVING;
    tell_blocks(worker);
    bt_link_worker_load(worker->link, &worker->load);
}

/* ------------------------------------------------------------------------- one run ---- */

void bt_worker_post(bt_worker *worker, const void *command)
{
    const bt_status status = bt_engine_post(worker->engine, command);
    BT_ASSERT(status == BT_OK); /* commands_max is sized for all */
}

void bt_worker_stop_run(bt_worker *worker, bt_worker_run *run, bt_status status, const char *fmt,
                        ...)
{
    BT_ASSERT(status < 0);
    if (run->stopping) {
        return;
    }
    run->stopping = true;
    run->status = status;
    va_list args;
    va_start(args, fmt);
    vsnprintf(run->error.text, sizeof run->error.text, fmt, args);
    va_end(args);
    worker->ops->stop(run, worker->ctx);
}

void bt_worker_run_token(bt_worker *worker, bt_worker_run *run, uint32_t index, bool is_prompt,
                         const bt_token_result *result)
{
    if (!is_prompt && run->max_tokens == 0) {
        return; /* only the prompt's scores were asked for */
    }
    if (!is_prompt) {
        run->n_passed_on++;
        run->first_token_ns = run->first_token_ns != 0 ? run->first_token_ns : bt_clock_now_ns();
    }
    const bt_link_tokens tokens = {
        .id = run->id,
        .attempt = run->attempt,
        .first_index = index,
        .is_prompt = is_prompt,
        .results = result,
        .n_results = 1,
    };
    bt_link_worker_tokens(worker->link, &tokens);
}

static uint64_t span_ns(int64_t from_ns, int64_t to_ns)
{
    return from_ns > 0 && to_ns > from_ns ? (uint64_t)(to_ns - from_ns) : 0;
}

/* The engine's own moments, where it has noted them: its events may have waited for the loop. */
static int64_t started_of(const bt_worker_run *run)
{
    return run->seq->started_ns != 0 ? run->seq->started_ns : run->started_ns;
}

static int64_t computed_of(const bt_worker_run *run)
{
    const bool computes = run->mode != BT_LINK_MODE_DECODE;
    return computes && run->seq->first_token_ns != 0 ? run->seq->first_token_ns : run->computed_ns;
}

static void fill_times(const bt_worker_run *run, int64_t now_ns, bt_link_finished *finished)
{
    const int64_t started_ns = started_of(run);
    const int64_t computed_ns = computed_of(run);
    finished->queue_ns = span_ns(run->arrived_ns, started_ns != 0 ? started_ns : now_ns);
    if (run->mode != BT_LINK_MODE_DECODE) {
        finished->prefill_ns = span_ns(started_ns, computed_ns);
    }
    if (run->mode != BT_LINK_MODE_PREFILL) {
        finished->decode_ns = span_ns(computed_ns, now_ns);
    }
    finished->transfer_ns = run->transfer_ns;
}

static bt_finish_reason reason_of(const bt_worker_run *run)
{
    if (run->status == BT_OK) {
        return run->reason;
    }
    const bool cancelled = run->status == BT_ECANCELLED || run->status == BT_EDEADLINE;
    return cancelled ? BT_FINISH_CANCELLED : BT_FINISH_ERROR;
}

static void fill_finished(const bt_worker_run *run, int64_t now_ns, bt_link_finished *finished)
{
    const bt_sequence *seq = run->seq;
    *finished = (bt_link_finished){
        .id = run->id,
        .attempt = run->attempt,
        .status = run->status,
        .error = run->error,
        .reason = reason_of(run),
        .prompt_tokens = run->n_prompt,
        .cached_tokens = seq->n_cached,
        .generated_tokens = run->max_tokens == 0 ? 0 : seq->n_tokens - seq->n_prompt,
        .blocks_total = run->n_blocks,
        .blocks_moved = run->blocks_moved,
        .blocks_skipped = run->blocks_skipped,
        .bytes_moved = run->bytes_moved,
        .preemptions = seq->n_preempted,
    };
    if (finished->reason == BT_FINISH_STOP && finished->generated_tokens > 0) {
        finished->has_stop_token = true;
        finished->stop_token = seq->tokens[seq->n_tokens - 1];
    }
    snprintf(finished->transport, sizeof finished->transport, "%s", run->transport);
    fill_times(run, now_ns, finished);
}

static uint64_t until_ns(const bt_worker_run *run, int64_t moment_ns)
{
    return moment_ns == 0 ? 0 : span_ns(run->arrived_ns, moment_ns);
}

/* What the loop thread knows of a run without its sequence, which may be the engine's. */
static void fill_timeline(const bt_worker_run *run, int64_t now_ns, bt_link_timeline *t)
{
    *t = (bt_link_timeline){
        .id = run->id,
        .attempt = run->attempt,
        .mode = run->mode,
        .open = true,
        .status = run->status,
        .error = run->error,
        .reason = run->reason,
        .arrived_unix_ns = (uint64_t)(bt_clock_wall_ns() - (now_ns - run->arrived_ns)),
        .started_ns = until_ns(run, run->started_ns),
        .computed_ns = until_ns(run, run->computed_ns),
        .first_token_ns = until_ns(run, run->first_token_ns),
        .ended_ns = until_ns(run, now_ns),
        .prompt_tokens = run->n_prompt,
        .generated_tokens = run->n_passed_on,
        .blocks_moved = run->blocks_moved,
        .blocks_skipped = run->blocks_skipped,
        .bytes_moved = run->bytes_moved,
    };
    if (run->mode == BT_LINK_MODE_PREFILL && run->transfer_ns > 0) {
        t->transferred_ns = t->computed_ns + run->transfer_ns;
    }
    snprintf(t->label, sizeof t->label, "%s", run->label);
    snprintf(t->transport, sizeof t->transport, "%s", run->transport);
    if (run->has_peer) {
        snprintf(t->peer, sizeof t->peer, "%s", run->peer.name);
    }
}

static void remember(bt_worker *worker, const bt_worker_run *run, const bt_link_finished *f,
                     int64_t now_ns)
{
    bt_link_timeline t;
    fill_timeline(run, now_ns, &t);
    t.open = false;
    t.reason = f->reason;
    t.started_ns = until_ns(run, started_of(run));
    t.computed_ns = until_ns(run, computed_of(run));
    t.cached_tokens = f->cached_tokens;
    t.generated_tokens = f->generated_tokens;
    t.preemptions = f->preemptions;
    bt_timeline_ring_add(worker->ring, &t);
}

/* Runs that are open first: who asks while a request hangs wants to see where. */
static size_t on_explain(const char *request, bt_link_timeline *out, void *ctx)
{
    const bt_worker *worker = ctx;
    size_t n = 0;
    for (const bt_worker_run *run = bt_run_table_next(worker->runs, NULL);
         run != NULL && n < BT_LINK_TIMELINES_MAX; run = bt_run_table_next(worker->runs, run)) {
        if (bt_link_is_request(request, run->id, run->label)) {
            fill_timeline(run, bt_clock_now_ns(), &out[n++]);
        }
    }
    return n + bt_timeline_ring_find(worker->ring, request, out + n, BT_LINK_TIMELINES_MAX - n);
}

static void log_finished(const bt_worker_run *run, const bt_link_finished *f)
{
    static const char *const modes[] = {
        [BT_LINK_MODE_PREFILL] = "prefill",
        [BT_LINK_MODE_DECODE] = "decode",
        [BT_LINK_MODE_WHOLE] = "whole",
    };
    bt_log(BT_INFO,
           "request done: req=%s id=%016" PRIx64 "%016" PRIx64 " attempt=%" PRIu32
           " mode=%s status=%s prompt=%" PRIu32 " cached=%" PRIu32 " generated=%" PRIu32
           " queue_us=%" PRIu64 " prefill_us=%" PRIu64 " transfer_us=%" PRIu64 " decode_us=%" PRIu64
           " blocks=%" PRIu32 " bytes=%" PRIu64 " parts_left=%" PRIu32 " why=\"%s\"",
           run->label[0] != '\0' ? run->label : "-", f->id.hi, f->id.lo, f->attempt,
           modes[run->mode], bt_status_name(f->status), f->prompt_tokens, f->cached_tokens,
           f->generated_tokens, f->queue_ns / 1000, f->prefill_ns / 1000, f->transfer_ns / 1000,
           f->decode_ns / 1000, f->blocks_moved, f->bytes_moved, run->parts_left, f->error.text);
}

bool bt_worker_finish_run(bt_worker *worker, bt_worker_run *run)
{
    if (run->in_engine || run->in_transfer) {
        return false;
    }
    bt_link_finished finished;
    const int64_t now_ns = bt_clock_now_ns();
    fill_finished(run, now_ns, &finished);
    finished.draining = run->status == BT_EPEER && worker->state == BT_WORKER_STATE_STOPPING;
    log_finished(run, &finished);
    remember(worker, run, &finished, now_ns);
    bt_meter_run(worker->meter, run->mode, &finished);
    bt_link_worker_finished(worker->link, &finished);
    bt_run_table_close(worker->runs, run);
    flush(worker);
    bt_worker_stop_when_empty(worker);
    return true;
}

void bt_worker_parked(bt_worker *worker, const bt_worker_run *run, bt_status status,
                      const char *fmt, ...)
{
    bt_link_parked parked = {
        .id = run->id,
        .attempt = run->attempt,
        .status = status,
    };
    if (status == BT_OK) { /* it stands still; else the engine may be at work on it */
        parked.generated_tokens = run->seq->n_tokens - run->seq->n_prompt;
    }
    va_list args;
    va_start(args, fmt);
    vsnprintf(parked.error.text, sizeof parked.error.text, fmt, args);
    va_end(args);
    bt_link_worker_parked(worker->link, &parked);
}

bt_worker_run *bt_worker_find_parked(const bt_worker *worker, bt_kv_transfer transfer)
{
    for (bt_worker_run *run = bt_run_table_next(worker->runs, NULL); run != NULL;
         run = bt_run_table_next(worker->runs, run)) {
        const bt_kv_transfer name = {.request = run->id, .attempt = run->next_attempt};
        if (run->parked && bt_kv_transfer_equal(name, transfer)) {
            return run;
        }
    }
    return NULL;
}

bt_worker_run *bt_worker_find(const bt_worker *worker, bt_kv_transfer transfer)
{
    return bt_run_table_find(worker->runs, transfer.request, transfer.attempt);
}

/* ------------------------------------------------------------------------ deadlines ---- */

static void arm_deadline(bt_worker *worker)
{
    worker->deadline_ns = bt_run_table_deadline(worker->runs);
    if (worker->deadline_ns == INT64_MAX) {
        bt_timer_stop(worker->deadline_timer);
        return;
    }
    const int64_t left_ns = worker->deadline_ns - bt_clock_now_ns();
    const uint64_t left_ms = left_ns <= 0 ? 0 : (uint64_t)left_ns / 1000000 + 1;
    bt_timer_start(worker->deadline_timer, left_ms, 0);
}

void bt_worker_on_deadline(void *ctx)
{
    bt_worker *worker = ctx;
    const int64_t now_ns = bt_clock_now_ns();
    bt_worker_run *next = NULL;
    for (bt_worker_run *run = bt_run_table_next(worker->runs, NULL); run != NULL; run = next) {
        next = bt_run_table_next(worker->runs, run);
        if (run->deadline_ns <= now_ns) {
            bt_worker_stop_run(worker, run, BT_EDEADLINE, "the request's deadline passed");
        }
    }
    arm_deadline(worker);
}
