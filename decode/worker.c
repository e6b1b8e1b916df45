/* SPDX-License-Identifier: Apache-2.0 */
/* A run that pulls, and what moves it on ("engine" and "sink" say who still has it):
 *
 *   on_run --open------------> linked    sink           its lease is renewed from now on
 *   offered --RUN_PULL-------> queued    engine, sink   the source has blocks for it
 *   PULL --------------------> pulling   engine, sink   blocks are reserved: the sink fills them
 *   done --------------------> running   engine         PULLED with the first token
 *     TOKEN*                                            to the router
 *   DONE --------------------> finished                 FINISHED to the router
 *
 * The engine hears of a run only when its source has reserved blocks: so none is reserved here for
 * what waits there, and no two workers wait for each other's blocks.
 *
 * Exactly one of PULLED and PULL_DROPPED is posted after RUN_PULL, and only when the sink has
 * called back for the last time: then nobody writes the blocks, whether PULL has come yet or not.
 * So whatever stops a run before that (router, deadline, shutdown) only cancels the sink; the
 * sink's failed() then posts PULL_DROPPED, and DONE ends the run. A PULL that crosses PULL_DROPPED
 * in the queues is left alone. Once it runs, CANCEL stops it.
 *
 * The first token goes to the router from here too: should the prefill worker die between telling
 * us and telling the router, nothing is missing. The router drops duplicates. A request that ended
 * with it (`ends`) drops its pull and is done here; whichever worker is first to tell its end, the
 * reason is the same.
 *
 * A whole run is RUN_WHOLE, TOKEN*, DONE; CANCEL stops it at any time.
 *
 * A run that a router wants to be handed over:
 *
 *   on_park --PARK---------> parking   engine
 *   PARKED ----------------> parked    engine, source   offered under the next attempt's name, with
 *                                                       the newest token as its "first"
 *   released --RELEASE-----> handed    engine           another worker has it, or nobody wants it
 *   DONE ------------------> finished                   FINISHED to the router
 *
 * From PARKED to RELEASE the blocks are lent to the source; what stops the run meanwhile cancels
 * the offer, and released() posts RELEASE. A resume does the same, and released() posts RESUME. A
 * run that has nothing to hand over (it is pulled, waits, or computes a prompt) answers so and goes
 * on; what comes of it is the router's to decide.
 */
#include "decode/worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "decode/scheduler.h"
#include "worker/first_token.h"

enum {
    COMMANDS_PER_RUN = 4, /* RUN or RESUME, PULLED or PULL_DROPPED, PARK, CANCEL or RELEASE */
    PULL_S_MAX = 86400,   /* of a request without a deadline; the sink wants one */
};

struct bt_decode_worker {
    bt_worker *base;
    bt_decode_scheduler *scheduler;
    bt_kv_sink *sink;
    bt_kv_source *source;
};

static bt_kv_transfer transfer_of(const bt_worker_run *run)
{
    return (bt_kv_transfer){.request = run->id, .attempt = run->attempt};
}

static void post(bt_decode_worker *worker, const bt_decode_command *command)
{
    bt_worker_post(worker->base, command);
}

/* ------------------------------------------------------------------- from the routers ---- */

/* Why a run can't begin whose pull can't. That its peer can't be reached from here is no fault of
 * the request: it runs elsewhere, or with another peer. */
static bt_status status_of_open(bt_status status)
{
    return status == BT_AGAIN ? BT_EEXHAUSTED : status == BT_EINVAL ? BT_EMISMATCH : status;
}

static bt_status open_pull(bt_decode_worker *worker, const bt_worker_run *run, bt_error *err)
{
    bt_kv_peer peer;
    bt_worker_chains_peer(&run->peer, &peer);
    const int64_t deadline_ns = run->deadline_ns != INT64_MAX
                                    ? run->deadline_ns
                                    : run->arrived_ns + PULL_S_MAX * INT64_C(1000000000);
    return bt_kv_sink_open(worker->sink, transfer_of(run), &peer, deadline_ns, err);
}

static void on_run(bt_worker_run *run, void *ctx)
{
    bt_decode_worker *worker = ctx;
    if (run->mode == BT_LINK_MODE_DECODE) {
        bt_error err = {{0}};
        const bt_status status = open_pull(worker, run, &err);
        if (status != BT_OK) {
            bt_worker_stop_run(worker->base, run, status_of_open(status),
                               "cannot pull the KV cache from '%s': %s", run->peer.name, err.text);
            return;
        }
        run->in_transfer = true;
        return;
    }
    run->in_engine = true;
    const bt_decode_command command = {.kind = BT_DECODE_COMMAND_RUN_WHOLE, .seq = run->seq};
    post(worker, &command);
}

static bt_kv_transfer next_transfer_of(const bt_worker_run *run)
{
    return (bt_kv_transfer){.request = run->id, .attempt = run->next_attempt};
}

static void on_stop(bt_worker_run *run, void *ctx)
{
    bt_decode_worker *worker = ctx;
    if (run->in_transfer && run->parked) {
        /* NOTFOUND: released already, its callback is on its way. */
        (void)bt_kv_source_cancel(worker->source, next_transfer_of(run), run->status,
                                  run->error.text);
    } else if (run->in_transfer) {
        /* NOTFOUND: ended already, its callback is on its way. */
        (void)bt_kv_sink_cancel(worker->sink, transfer_of(run));
    } else if (run->in_engine && !run->lent && !run->cancelled) { /* it runs, or is whole */
        run->cancelled = true;
        const bt_decode_command command = {.kind = BT_DECODE_COMMAND_CANCEL, .seq = run->seq};
        post(worker, &command);
    }
    bt_worker_finish_run(worker->base, run);
}

static void on_park(bt_worker_run *run, uint32_t next_attempt, void *ctx)
{
    bt_decode_worker *worker = ctx;
    if (run->parking || run->parked) {
        return; /* it is answered once */
    }
    if (!run->in_engine || run->lent) {
        bt_worker_parked(worker->base, run, BT_AGAIN, "its KV cache has not been pulled yet");
        return;
    }
    run->parking = true;
    run->next_attempt = next_attempt;
    const bt_decode_command command = {.kind = BT_DECODE_COMMAND_PARK, .seq = run->seq};
    post(worker, &command);
}

static void on_resume(bt_worker_run *run, void *ctx)
{
    bt_decode_worker *worker = ctx;
    if (run->parked && !run->stopping) {
        run->resuming = true;
        (void)bt_kv_source_cancel(worker->source, next_transfer_of(run), BT_ECANCELLED,
                                  "the run goes on where it was");
    }
}

/* -------------------------------------------------------------------- from the source ---- */

static void on_wanted(bt_kv_transfer transfer, const bt_hash128 *identities, uint32_t n,
                      int64_t deadline_ns, void *ctx)
{
    const bt_decode_worker *worker = ctx;
    bt_worker_chains_serve(bt_worker_get_chains(worker->base), transfer, identities, n,
                           deadline_ns);
}

static void on_released(bt_kv_transfer transfer, bt_kv_outcome outcome, const char *text, void *ctx)
{
    bt_decode_worker *worker = ctx;
    if (bt_worker_chains_released(bt_worker_get_chains(worker->base), transfer)) {
        return;
    }
    bt_worker_run *run = bt_worker_find_parked(worker->base, transfer);
    BT_ASSERT(run != NULL);
    BT_ASSERT(run->in_transfer);
    BT_ASSERT(run->lent);
    const bt_status status = bt_worker_status_of(run, outcome);
    run->in_transfer = false;
    if (status != BT_OK && run->resuming && !run->stopping) {
        run->resuming = run->parked = run->lent = false;
        const bt_decode_command command = {.kind = BT_DECODE_COMMAND_RESUME, .seq = run->seq};
        post(worker, &command);
        return;
    }
    if (status != BT_OK) {
        bt_worker_stop_run(worker->base, run, status, "the KV cache was not pulled: %s",
                           text != NULL ? text : "");
    }
    run->parked = run->lent = false;
    const bt_decode_command command = {
        .kind = BT_DECODE_COMMAND_RELEASE, .status = status, .seq = run->seq};
    post(worker, &command);
}

/* ---------------------------------------------------------------------- from the sink ---- */

/* Ends the run if neither engine nor sink has it any more. A request that ended with its first
 * token gets it here: nothing else does, since its pull was dropped. */
static void finish(bt_decode_worker *worker, bt_worker_run *run)
{
    const bool is_free = !run->in_engine && !run->in_transfer;
    if (is_free && run->ends && !run->stopping) {
        const bt_model_params *p = bt_worker_params(worker->base);
        run->reason = bt_sequence_append(run->seq, run->last_token, p->eos, p->n_eos);
    }
    bt_worker_finish_run(worker->base, run);
}

/* The pull is over without its KV: the engine gives the blocks back, if it has any. */
static void drop(bt_decode_worker *worker, bt_worker_run *run)
{
    run->in_transfer = false;
    if (!run->in_engine) {
        finish(worker, run);
        return;
    }
    BT_ASSERT(run->lent);
    run->lent = false;
    const bt_decode_command command = {
        .kind = BT_DECODE_COMMAND_PULL_DROPPED, .status = run->status, .seq = run->seq};
    post(worker, &command);
}

static void post_pulled(bt_decode_worker *worker, bt_worker_run *run, int32_t token,
                        bool mixed_numerics)
{
    BT_ASSERT(run->lent);
    BT_ASSERT(run->started);
    run->in_transfer = false;
    run->lent = false;
    const bt_decode_command command = {
        .kind = BT_DECODE_COMMAND_PULLED,
        .seq = run->seq,
        .token = token,
        .mixed_numerics = mixed_numerics,
    };
    post(worker, &command);
}

static void take_stats(bt_worker_run *run, const bt_kv_pull_stats *stats)
{
    run->transport = bt_kv_transport_name(stats->transport);
    run->bytes_moved = stats->bytes;
    run->blocks_moved = stats->blocks_moved;
    run->blocks_skipped = stats->blocks_skipped;
    run->parts_left = stats->parts_left_at_complete;
    /* What the transfer added: from where both the prompt was computed and the blocks were
     * here to take it. */
    const int64_t ready_ns =
        stats->complete_ns > stats->pulled_ns ? stats->complete_ns : stats->pulled_ns;
    run->transfer_ns = stats->done_ns > ready_ns ? (uint64_t)(stats->done_ns - ready_ns) : 0;
}

static bt_worker_run *find_run(bt_decode_worker *worker, bt_kv_transfer transfer)
{
    bt_worker_run *run = bt_worker_find(worker->base, transfer);
    BT_ASSERT(run != NULL);
    BT_ASSERT(run->in_transfer);
    return run;
}

static void on_offered(bt_kv_transfer transfer, uint32_t n_blocks, void *ctx)
{
    bt_decode_worker *worker = ctx;
    if (bt_worker_chains_offered(bt_worker_get_chains(worker->base), transfer, n_blocks)) {
        return;
    }
    bt_worker_run *run = find_run(worker, transfer);
    BT_ASSERT(!run->in_engine);
    if (run->stopping) {
        return; /* failed() is on its way */
    }
    run->in_engine = true;
    run->lent = true;
    const bt_decode_command command = {.kind = BT_DECODE_COMMAND_RUN_PULL, .seq = run->seq};
    post(worker, &command);
}

static void on_pulled(const bt_kv_done *done, void *ctx)
{
    bt_decode_worker *worker = ctx;
    if (bt_worker_chains_done(bt_worker_get_chains(worker->base), done)) {
        return;
    }
    bt_worker_run *run = find_run(worker, done->transfer);
    take_stats(run, done->stats);
    run->ends = done->ends;
    if (run->stopping) {
        drop(worker, run);
        return;
    }
    bt_first_token first;
    const bt_status status = bt_first_token_unpack(done->blob, done->blob_bytes,
                                                   bt_worker_params(worker->base)->n_vocab, &first);
    if (status != BT_OK || first.index != run->generated_before) {
        bt_worker_stop_run(worker->base, run, BT_EPROTOCOL,
                           "'%s' sent a first token that makes no sense", run->peer.name);
        drop(worker, run);
        return;
    }
    run->computed_ns = bt_clock_now_ns();
    run->last_result = first.result;
    bt_worker_run_token(worker->base, run, first.index, false, &first.result);
    if (done->ends) {
        run->last_token = first.result.token;
        drop(worker, run);
        return;
    }
    post_pulled(worker, run, first.result.token, done->stats->mixed_numerics);
}

static void on_failed(bt_kv_transfer transfer, bt_status status, const char *text, void *ctx)
{
    bt_decode_worker *worker = ctx;
    if (bt_worker_chains_failed(bt_worker_get_chains(worker->base), transfer, status, text)) {
        return;
    }
    bt_worker_run *run = find_run(worker, transfer);
    bt_worker_stop_run(worker->base, run, status, "the KV cache could not be pulled from '%s': %s",
                       run->peer.name, text != NULL ? text : bt_status_text(status));
    drop(worker, run);
}

static void on_trace(const bt_kv_trace *event, void *ctx)
{
    bt_decode_worker *worker = ctx;
    const bt_worker_options *o = bt_worker_get_options(worker->base);
    o->kv_trace(event, o->kv_trace_ctx);
}

/* -------------------------------------------------------------------- from the engine ---- */

static void on_pull(bt_decode_worker *worker, bt_worker_run *run, uint32_t n_skip)
{
    run->started = true;
    run->started_ns = bt_clock_now_ns();
    if (!run->in_transfer) {
        return; /* dropped meanwhile */
    }
    BT_ASSERT(run->seq->n_blocks >= run->n_blocks);
    bt_error err = {{0}};
    const bt_status status = bt_kv_sink_pull(worker->sink, transfer_of(run), run->seq->blocks,
                                             run->n_blocks, n_skip, &err);
    if (status != BT_OK && status != BT_ENOTFOUND) {
        bt_worker_stop_run(worker->base, run, status, "cannot pull the KV cache: %s", err.text);
    }
}

static void on_token(bt_decode_worker *worker, bt_worker_run *run, const bt_decode_event *event)
{
    run->started = true;
    run->reason = event->finish;
    run->last_result = event->u.token;
    if (run->computed_ns == 0) {
        run->computed_ns = bt_clock_now_ns();
    }
    if (!run->stopping) {
        bt_worker_run_token(worker->base, run, event->index, false, &event->u.token);
    }
}

static bt_status offer(bt_decode_worker *worker, bt_worker_run *run, uint32_t n_positions,
                       bt_error *err)
{
    const bt_kv_offer what = {
        .transfer = next_transfer_of(run),
        .block_ids = run->seq->blocks,
        .n_blocks = (uint32_t)bt_div_ceil(n_positions, BT_KV_BLOCK_TOKENS),
        .n_tokens = n_positions,
        .deadline_ns = run->deadline_ns == INT64_MAX ? 0 : run->deadline_ns,
    };
    const bt_first_token newest = {
        .index = n_positions - run->n_prompt,
        .result = run->last_result,
    };
    uint8_t blob[BT_FIRST_TOKEN_BYTES_MAX];
    const size_t blob_bytes = bt_first_token_pack(&newest, blob);
    return bt_kv_source_offer_whole(worker->source, &what, blob, blob_bytes, err);
}

/* The sequence stands still, n_positions are in its blocks; or it has nothing to hand over. */
static void on_parked(bt_decode_worker *worker, bt_worker_run *run, const bt_decode_event *event)
{
    BT_ASSERT(run->parking);
    run->parking = false;
    if (run->stopping) {
        return; /* CANCEL is posted, DONE follows */
    }
    if (event->status != BT_OK) {
        bt_worker_parked(worker->base, run, event->status, "it waits, or computes its prompt");
        return;
    }
    BT_ASSERT(run->seq->n_tokens == event->index + 1);
    bt_error err = {{0}};
    const bt_status status = offer(worker, run, event->index, &err);
    if (status != BT_OK) {
        const bt_decode_command command = {.kind = BT_DECODE_COMMAND_RESUME, .seq = run->seq};
        post(worker, &command);
        bt_worker_parked(worker->base, run, BT_EEXHAUSTED, "cannot offer its KV cache: %s",
                         err.text);
        return;
    }
    run->parked = run->lent = run->in_transfer = true;
    bt_worker_parked(worker->base, run, BT_OK, "%s", "");
}

static void on_done(bt_decode_worker *worker, bt_worker_run *run, const bt_decode_event *event)
{
    run->in_engine = false;
    run->parking = false;
    run->lent = false; /* still set: the engine refused it, and the sink is yet to be told */
    if (event->status != BT_OK && !run->stopping) {
        bt_worker_stop_run(worker->base, run, event->status, "the request could not be run: %s",
                           bt_status_text(event->status));
        return; /* on_stop() saw to the rest */
    }
    run->reason = event->finish;
    finish(worker, run);
}

static void report(bt_decode_worker *worker, const bt_decode_stats *stats)
{
    const bt_kv_sink_counters *kv = bt_kv_sink_counters_get(worker->sink);
    const bt_kv_source_counters *served = bt_kv_source_counters_get(worker->source);
    const bt_worker_tally tally = {
        .load =
            {
                .blocks_free = stats->blocks_free,
                .blocks_cached = stats->blocks_cached,
                .requests_running = stats->n_running + stats->n_pulling + stats->n_parked,
                .requests_parked = stats->n_parked,
                .runs_handed_over = stats->n_handed_over,
                .requests_waiting = stats->n_waiting,
                .requests_decoding = stats->n_running,
                .waiting_tokens = stats->waiting_tokens,
                .prefill_tokens = stats->n_prefill_tokens,
                .recomputed_tokens = stats->n_recomputed_tokens,
                .decode_tokens = stats->n_decode_tokens,
                .prefix_hit_tokens = stats->n_cached_tokens,
                .prefix_miss_tokens = stats->n_missed_tokens,
                .blocks_stored = stats->n_blocks_stored,
                .blocks_evicted = stats->n_blocks_evicted,
                .prefix_queries = stats->n_prefix_queries,
                .prefix_hits = stats->n_prefix_hits,
                .slots_written = stats->slots_written,
                .slots_allocated = stats->slots_allocated,
                .preemptions = stats->n_preemptions,
                .pulls = kv->done,
                .partial_pulls = stats->n_partial_pulls,
                .blocks_pulled = kv->blocks_moved,
                .bytes_pulled = kv->bytes,
                .pulls_failed = kv->failed,
                .bytes_served = served->bytes_sent,
            },
        .leases_expired = served->expired,
        .parts_corrupt = kv->rejected_corrupt,
        .parts_duplicate = kv->rejected_duplicate,
        .parts_late = kv->rejected_late,
        .parts_unknown = kv->rejected_unknown + kv->frames_rejected + served->frames_rejected,
        .handshakes_refused = kv->handshakes_refused + served->handshakes_refused,
    };
    bt_worker_report(worker->base, &tally);
}

static void on_event(const void *item, void *ctx)
{
    bt_decode_worker *worker = ctx;
    const bt_decode_event *event = item;
    bt_worker_run *run = event->seq != NULL ? event->seq->user : NULL;
    switch (event->kind) {
    case BT_DECODE_EVENT_PULL:
        on_pull(worker, run, event->index);
        break;
    case BT_DECODE_EVENT_ECHO:
        run->started = true;
        if (!run->stopping) {
            bt_worker_run_token(worker->base, run, event->index, true, &event->u.token);
        }
        break;
    case BT_DECODE_EVENT_TOKEN:
        on_token(worker, run, event);
        break;
    case BT_DECODE_EVENT_PARKED:
        on_parked(worker, run, event);
        break;
    case BT_DECODE_EVENT_DONE:
        on_done(worker, run, event);
        break;
    case BT_DECODE_EVENT_BLOCK:
        bt_worker_block(worker->base, event->u.block.stored, &event->u.block.identity);
        break;
    case BT_DECODE_EVENT_STATS:
        report(worker, &event->u.stats);
        break;
    case BT_DECODE_EVENT_AUDIT:
        bt_worker_audited(worker->base, event->status);
        break;
    case BT_DECODE_EVENT_CHAIN:
        bt_worker_chains_stepped(bt_worker_get_chains(worker->base), event->u.chain);
        break;
    }
}

static void step_chain(bt_kv_chain *chain, void *ctx)
{
    const bt_decode_command command = {.kind = BT_DECODE_COMMAND_CHAIN, .chain = chain};
    post(ctx, &command);
}

static void audit(void *ctx)
{
    const bt_decode_command command = {.kind = BT_DECODE_COMMAND_AUDIT};
    post(ctx, &command);
}

/* ------------------------------------------------------------------------------- life ---- */

static const bt_worker_role_ops role_ops = {
    .modes = 1u << BT_LINK_MODE_DECODE | 1u << BT_LINK_MODE_WHOLE,
    .command_bytes = sizeof(bt_decode_command),
    .event_bytes = sizeof(bt_decode_event),
    .commands_per_run = COMMANDS_PER_RUN,
    .run = on_run,
    .stop = on_stop,
    .park = on_park,
    .resume = on_resume,
    .event = on_event,
    .chain = step_chain,
    .audit = audit,
};

static bt_status make_scheduler(bt_decode_worker *worker, bt_error *err)
{
    const bt_worker_options *o = bt_worker_get_options(worker->base);
    const bt_decode_scheduler_options options = {
        .cache = bt_worker_cache(worker->base),
        .engine = bt_worker_engine(worker->base),
        .params = bt_worker_params(worker->base),
        .token_budget = o->token_budget,
        .chunk = o->chunk,
        .running_max = o->running_max,
    };
    const bt_status status = bt_decode_scheduler_create(&options, &worker->scheduler);
    if (status != BT_OK) {
        return bt_error_set(err, status, "cannot make the scheduler: %s", bt_status_text(status));
    }
    bt_kv_cache_set_changed(bt_worker_cache(worker->base), bt_decode_scheduler_block_changed,
                            worker->scheduler);
    return BT_OK;
}

static bt_status make_sink(bt_decode_worker *worker, bt_loop *loop, bt_error *err)
{
    const bt_worker_options *o = bt_worker_get_options(worker->base);
    const bt_kv_sink_options options = bt_worker_sink_options(worker->base);
    const bt_kv_sink_callbacks callbacks = {
        .offered = on_offered,
        .done = on_pulled,
        .failed = on_failed,
        .trace = o->kv_trace != NULL ? on_trace : NULL,
        .ctx = worker,
    };
    return bt_kv_sink_create(loop, &options, &callbacks, &worker->sink, err);
}

static bt_status make_source(bt_decode_worker *worker, bt_loop *loop, bt_error *err)
{
    const bt_worker_options *o = bt_worker_get_options(worker->base);
    const bt_kv_source_options options = bt_worker_source_options(worker->base);
    const bt_kv_source_callbacks callbacks = {
        .released = on_released,
        .wanted = on_wanted,
        .trace = o->kv_trace != NULL ? on_trace : NULL,
        .ctx = worker,
    };
    return bt_kv_source_create(loop, &options, &callbacks, &worker->source, err);
}

bt_status bt_decode_worker_create(bt_loop *loop, bt_rpc *rpc, const bt_worker_options *options,
                                  bt_decode_worker **out, bt_error *err)
{
    if (options->role != BT_LINK_ROLE_DECODE && options->role != BT_LINK_ROLE_BOTH) {
        return bt_error_set(err, BT_EINVAL, "a decode worker's role is decode or both");
    }
    bt_decode_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) {
        return bt_error_set(err, BT_ENOMEM, "cannot make a decode worker: out of memory");
    }
    bt_status status = bt_worker_create(loop, rpc, options, &role_ops, worker, &worker->base, err);
    if (status == BT_OK) {
        status = make_scheduler(worker, err);
    }
    if (status == BT_OK) {
        status = make_sink(worker, loop, err);
    }
    if (status == BT_OK) {
        status = make_source(worker, loop, err);
    }
    if (status == BT_OK) {
        status = bt_worker_hand_prefixes_on(worker->base, worker->source, worker->sink, err);
    }
    if (status != BT_OK) {
        bt_decode_worker_destroy(worker);
        return status;
    }
    *out = worker;
    return BT_OK;
}

bt_status bt_decode_worker_start(bt_decode_worker *worker, bt_error *err)
{
    const bt_engine_scheduler table = bt_decode_scheduler_table(worker->scheduler);
    bt_kv_peer peer;
    bt_kv_source_peer(worker->source, &peer);
    return bt_worker_start(worker->base, &table, &peer, err);
}

void bt_decode_worker_stop(bt_decode_worker *worker, uint64_t grace_ms, bt_loop_fn done, void *ctx)
{
    bt_worker_stop(worker->base, grace_ms, done, ctx);
}

void bt_decode_worker_destroy(bt_decode_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    bt_worker_halt(worker->base);
    bt_kv_sink_destroy(worker->sink);
    bt_kv_source_destroy(worker->source);
    bt_decode_scheduler_destroy(worker->scheduler);
    bt_worker_destroy(worker->base);
    free(worker);
}

void bt_decode_worker_get_health(const bt_decode_worker *worker, bt_worker_health *out)
{
    bt_worker_get_health(worker->base, out);
}

const bt_kv_sink_counters *bt_decode_worker_kv_counters(const bt_decode_worker *worker)
{
    return bt_kv_sink_counters_get(worker->sink);
}

const bt_kv_source_counters *bt_decode_worker_source_counters(const bt_decode_worker *worker)
{
    return bt_kv_source_counters_get(worker->source);
}

void bt_decode_worker_tick(bt_decode_worker *worker)
{
    bt_worker_tick(worker->base);
    bt_kv_sink_tick(worker->sink);
    bt_kv_source_tick(worker->source);
}
