/* SPDX-License-Identifier: Apache-2.0 */
/* A run here, and what moves it on ("engine" and "source" say who still has it):
 *
 *   on_run --RUN--> waiting   engine
 *   STARTED ------> offered   engine, source     blocks are reserved and offered to the puller
 *     PART*                                      announced to the source as they come
 *   TOKEN --------> computed  engine, source     token to the router; completion to the source
 *   released -----> released  engine             RELEASE is posted: nobody reads the blocks
 *   DONE ---------> finished                     FINISHED to the router
 *
 * Stopped early (bt_worker_stop_run): CANCEL is posted at once, and the source, if it has the
 * run, gives its readers up and then calls released. The engine owns the blocks from STARTED
 * until RELEASE, so every path past STARTED posts exactly one RELEASE: in released(), or,
 * when there is no source to wait for, where the run is stopped. A run stopped while waiting has no
 * STARTED: CANCEL alone brings DONE. Both can cross in the queues, and both ways end well. A pull
 * that waits for a run which is stopped before its offer is refused.
 *
 * When the puller goes away before the token is sampled, the rest of the prompt is not computed. A
 * run without a puller (a request for one token, or for the scores of its prompt) is never
 * offered: RELEASE follows TOKEN.
 */
#include "prefill/worker.h"

#include <stdlib.h>

#include "common/check.h"
#include "common/clock.h"
#include "prefill/scheduler.h"
#include "worker/first_token.h"

enum { COMMANDS_PER_RUN = 3 }; /* RUN, CANCEL, RELEASE */

struct bt_prefill_worker {
    bt_worker *base;
    bt_prefill_scheduler *scheduler;
    bt_kv_source *source;
    bt_kv_sink *sink;       /* of cached prefixes alone */
    bt_prefill_stats stats; /* of the newest step */
};

static bt_kv_transfer transfer_of(const bt_worker_run *run)
{
    return (bt_kv_transfer){.request = run->id, .attempt = run->attempt};
}

static void post(bt_prefill_worker *worker, bt_prefill_command_kind kind, bt_sequence *seq)
{
    const bt_prefill_command command = {.kind = kind, .seq = seq};
    bt_worker_post(worker->base, &command);
}

static void step_chain(bt_kv_chain *chain, void *ctx)
{
    bt_prefill_worker *worker = ctx;
    const bt_prefill_command command = {.kind = BT_PREFILL_COMMAND_CHAIN, .chain = chain};
    bt_worker_post(worker->base, &command);
}

static void post_cancel(bt_prefill_worker *worker, bt_worker_run *run)
{
    if (run->in_engine && !run->cancelled) {
        run->cancelled = true;
        post(worker, BT_PREFILL_COMMAND_CANCEL, run->seq);
    }
}

static void post_release(bt_prefill_worker *worker, bt_worker_run *run)
{
    BT_ASSERT(run->lent);
    BT_ASSERT(!run->in_transfer);
    run->lent = false;
    post(worker, BT_PREFILL_COMMAND_RELEASE, run->seq);
}

/* ------------------------------------------------------------------- from the routers ---- */

static void on_run(bt_worker_run *run, void *ctx)
{
    bt_prefill_worker *worker = ctx;
    run->in_engine = true;
    post(worker, BT_PREFILL_COMMAND_RUN, run->seq);
}

static void on_stop(bt_worker_run *run, void *ctx)
{
    bt_prefill_worker *worker = ctx;
    post_cancel(worker, run);
    if (run->in_transfer) {
        /* NOTFOUND: released already, its callback is on its way. */
        (void)bt_kv_source_cancel(worker->source, transfer_of(run), run->status, run->error.text);
        return;
    }
    if (run->has_peer) {
        /* EEXISTS: it was offered, and its puller has been told. */
        (void)bt_kv_source_refuse(worker->source, transfer_of(run), run->status, run->error.text);
    }
    if (run->lent) {
        post_release(worker, run);
    }
}

/* -------------------------------------------------------------------- from the engine ---- */

static void on_started(bt_prefill_worker *worker, bt_worker_run *run)
{
    BT_ASSERT(!run->started);
    run->started = true;
    run->lent = true;
    run->started_ns = bt_clock_now_ns();
    if (run->stopping) {
        post_release(worker, run);
        return;
    }
    if (!run->has_peer) {
        return;
    }
    BT_ASSERT(run->seq->n_blocks >= run->n_blocks);
    const bt_kv_offer offer = {
        .transfer = transfer_of(run),
        .block_ids = run->seq->blocks,
        .n_blocks = run->n_blocks,
        .n_tokens = run->n_tokens,
        .deadline_ns = run->deadline_ns == INT64_MAX ? 0 : run->deadline_ns,
    };
    bt_error err = {{0}};
    const bt_status status = bt_kv_source_offer(worker->source, &offer, &err);
    if (status == BT_OK) {
        run->in_transfer = true;
        return;
    }
    bt_worker_stop_run(worker->base, run, status == BT_AGAIN ? BT_EEXHAUSTED : status,
                       "cannot offer the KV cache: %s", err.text); /* releases */
}

static void on_part(bt_prefill_worker *worker, const bt_worker_run *run,
                    const bt_prefill_part *part)
{
    if (!run->in_transfer || run->stopping) {
        return;
    }
    const bt_kv_transfer transfer = transfer_of(run);
    /* A cached prefix comes with all layers at once. */
    const bt_status status =
        part->n_layers > 1 ? bt_kv_source_announce_blocks(worker->source, transfer,
                                                          part->block_first, part->n_blocks)
                           : bt_kv_source_announce(worker->source, transfer, part->layer_first,
                                                   part->block_first, part->n_blocks);
    BT_ASSERT(status == BT_OK || status == BT_ENOTFOUND);
}

static void on_token(bt_prefill_worker *worker, bt_worker_run *run, const bt_prefill_event *event)
{
    run->computed_ns = bt_clock_now_ns();
    run->reason = event->finish;
    run->ends = event->finish != BT_FINISH_NONE;
    if (run->stopping) {
        return;
    }
    const bt_first_token first = {.index = run->generated_before, .result = event->u.token};
    bt_worker_run_token(worker->base, run, first.index, false, &first.result);
    if (run->in_transfer) {
        uint8_t blob[BT_FIRST_TOKEN_BYTES_MAX];
        const size_t blob_bytes = bt_first_token_pack(&first, blob);
        const bt_status status =
            bt_kv_source_complete(worker->source, transfer_of(run), blob, blob_bytes, run->ends);
        BT_ASSERT(status == BT_OK || status == BT_ENOTFOUND);
    } else if (run->lent) {
        post_release(worker, run);
    }
}

static void on_done(bt_prefill_worker *worker, bt_worker_run *run, const bt_prefill_event *event)
{
    BT_ASSERT(!run->lent);
    run->in_engine = false;
    if (run->reason == BT_FINISH_NONE) {
        run->reason = event->finish;
    }
    if (event->status != BT_OK && !run->stopping) {
        bt_worker_stop_run(worker->base, run, event->status, "the prompt could not be computed: %s",
                           bt_status_text(event->status));
    }
    bt_worker_finish_run(worker->base, run);
}

static void report(bt_prefill_worker *worker, const bt_prefill_stats *stats)
{
    worker->stats = *stats;
    const bt_kv_source_counters *kv = bt_kv_source_counters_get(worker->source);
    const bt_worker_tally tally = {
        .load =
            {
                .blocks_free = stats->blocks_free,
                .blocks_cached = stats->blocks_cached,
                .requests_running = stats->n_computing + stats->n_held,
                .requests_waiting = stats->n_waiting,
                .waiting_tokens = stats->waiting_tokens,
                .prefill_tokens = stats->n_prefill_tokens,
                .decode_tokens = stats->n_decode_tokens,
                .prefix_hit_tokens = stats->n_cached_tokens,
                .prefix_miss_tokens = stats->n_missed_tokens,
                .blocks_stored = stats->n_blocks_stored,
                .blocks_evicted = stats->n_blocks_evicted,
                .prefix_queries = stats->n_prefix_queries,
                .prefix_hits = stats->n_prefix_hits,
                .bytes_served = kv->bytes_sent,
            },
        .leases_expired = kv->expired,
        .parts_unknown = kv->frames_rejected,
        .handshakes_refused = kv->handshakes_refused,
    };
    bt_worker_report(worker->base, &tally);
}

static void on_event(const void *item, void *ctx)
{
    bt_prefill_worker *worker = ctx;
    const bt_prefill_event *event = item;
    bt_worker_run *run = event->seq != NULL ? event->seq->user : NULL;
    switch (event->kind) {
    case BT_PREFILL_EVENT_STARTED:
        on_started(worker, run);
        break;
    case BT_PREFILL_EVENT_PART:
        on_part(worker, run, &event->u.part);
        break;
    case BT_PREFILL_EVENT_ECHO:
        if (!run->stopping) {
            bt_worker_run_token(worker->base, run, event->index, true, &event->u.token);
        }
        break;
    case BT_PREFILL_EVENT_TOKEN:
        on_token(worker, run, event);
        break;
    case BT_PREFILL_EVENT_DONE:
        on_done(worker, run, event);
        break;
    case BT_PREFILL_EVENT_BLOCK:
        bt_worker_block(worker->base, event->u.block.stored, &event->u.block.identity);
        break;
    case BT_PREFILL_EVENT_STATS:
        report(worker, &event->u.stats);
        break;
    case BT_PREFILL_EVENT_AUDIT:
        bt_worker_audited(worker->base, event->status);
        break;
    case BT_PREFILL_EVENT_CHAIN:
        bt_worker_chains_stepped(bt_worker_get_chains(worker->base), event->u.chain);
        break;
    }
}

static void audit(void *ctx)
{
    post(ctx, BT_PREFILL_COMMAND_AUDIT, NULL);
}

/* -------------------------------------------------------------------- from the source ---- */

static void on_wanted(bt_kv_transfer transfer, const bt_hash128 *identities, uint32_t n,
                      int64_t deadline_ns, void *ctx)
{
    const bt_prefill_worker *worker = ctx;
    bt_worker_chains_serve(bt_worker_get_chains(worker->base), transfer, identities, n,
                           deadline_ns);
}

static void on_released(bt_kv_transfer transfer, bt_kv_outcome outcome, const char *text, void *ctx)
{
    bt_prefill_worker *worker = ctx;
    if (bt_worker_chains_released(bt_worker_get_chains(worker->base), transfer)) {
        return;
    }
    bt_worker_run *run = bt_worker_find(worker->base, transfer);
    BT_ASSERT(run != NULL);
    BT_ASSERT(run->in_transfer);
    run->in_transfer = false;
    if (run->computed_ns != 0) {
        run->transfer_ns = (uint64_t)(bt_clock_now_ns() - run->computed_ns);
    }
    /* A request that ended with its first token is done, whatever its puller says. */
    const bt_status status = run->ends ? BT_OK : bt_worker_status_of(run, outcome);
    if (status != BT_OK) {
        bt_worker_stop_run(worker->base, run, status, "the KV cache was not pulled: %s",
                           text != NULL ? text : "");
    }
    if (run->lent) { /* stopping it now has released it already */
        post_release(worker, run);
    }
}

/* -------------------------------------------------- from the sink: cached prefixes alone ---- */

static void on_offered(bt_kv_transfer transfer, uint32_t n_blocks, void *ctx)
{
    const bt_prefill_worker *worker = ctx;
    (void)bt_worker_chains_offered(bt_worker_get_chains(worker->base), transfer, n_blocks);
}

static void on_pulled(const bt_kv_done *done, void *ctx)
{
    const bt_prefill_worker *worker = ctx;
    (void)bt_worker_chains_done(bt_worker_get_chains(worker->base), done);
}

static void on_failed(bt_kv_transfer transfer, bt_status status, const char *text, void *ctx)
{
    const bt_prefill_worker *worker = ctx;
    (void)bt_worker_chains_failed(bt_worker_get_chains(worker->base), transfer, status, text);
}

static void on_trace(const bt_kv_trace *event, void *ctx)
{
    bt_prefill_worker *worker = ctx;
    const bt_worker_options *o = bt_worker_get_options(worker->base);
    o->kv_trace(event, o->kv_trace_ctx);
}

/* ------------------------------------------------------------------------------- life ---- */

static const bt_worker_role_ops role_ops = {
    .modes = 1u << BT_LINK_MODE_PREFILL,
    .command_bytes = sizeof(bt_prefill_command),
    .event_bytes = sizeof(bt_prefill_event),
    .commands_per_run = COMMANDS_PER_RUN,
    .run = on_run,
    .stop = on_stop,
    .event = on_event,
    .chain = step_chain,
    .audit = audit,
};

static bt_status make_scheduler(bt_prefill_worker *worker, bt_error *err)
{
    const bt_worker_options *o = bt_worker_get_options(worker->base);
    const bt_prefill_scheduler_options options = {
        .cache = bt_worker_cache(worker->base),
        .engine = bt_worker_engine(worker->base),
        .params = bt_worker_params(worker->base),
        .token_budget = o->token_budget,
        .chunk = o->chunk,
        .computing_max = o->running_max,
    };
    const bt_status status = bt_prefill_scheduler_create(&options, &worker->scheduler);
    if (status != BT_OK) {
        return bt_error_set(err, status, "cannot make the scheduler: %s", bt_status_text(status));
    }
    bt_kv_cache_set_changed(bt_worker_cache(worker->base), bt_prefill_scheduler_block_changed,
                            worker->scheduler);
    return BT_OK;
}

static bt_status make_source(bt_prefill_worker *worker, bt_loop *loop, bt_error *err)
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

static bt_status make_sink(bt_prefill_worker *worker, bt_loop *loop, bt_error *err)
{
    bt_kv_sink_options options = bt_worker_sink_options(worker->base);
    options.max_transfers = BT_WORKER_CHAINS_MAX;
    const bt_kv_sink_callbacks callbacks = {
        .offered = on_offered,
        .done = on_pulled,
        .failed = on_failed,
        .ctx = worker,
    };
    return bt_kv_sink_create(loop, &options, &callbacks, &worker->sink, err);
}

bt_status bt_prefill_worker_create(bt_loop *loop, bt_rpc *rpc, const bt_worker_options *options,
                                   bt_prefill_worker **out, bt_error *err)
{
    bt_prefill_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) {
        return bt_error_set(err, BT_ENOMEM, "cannot make a prefill worker: out of memory");
    }
    bt_worker_options with_role = *options;
    with_role.role = BT_LINK_ROLE_PREFILL;
    bt_status status =
        bt_worker_create(loop, rpc, &with_role, &role_ops, worker, &worker->base, err);
    if (status == BT_OK) {
        status = make_scheduler(worker, err);
    }
    if (status == BT_OK) {
        status = make_source(worker, loop, err);
    }
    if (status == BT_OK) {
        status = make_sink(worker, loop, err);
    }
    if (status == BT_OK) {
        status = bt_worker_hand_prefixes_on(worker->base, worker->source, worker->sink, err);
    }
    if (status != BT_OK) {
        bt_prefill_worker_destroy(worker);
        return status;
    }
    *out = worker;
    return BT_OK;
}

bt_status bt_prefill_worker_start(bt_prefill_worker *worker, bt_error *err)
{
    const bt_engine_scheduler table = bt_prefill_scheduler_table(worker->scheduler);
    bt_kv_peer peer;
    bt_kv_source_peer(worker->source, &peer);
    return bt_worker_start(worker->base, &table, &peer, err);
}

void bt_prefill_worker_stop(bt_prefill_worker *worker, uint64_t grace_ms, bt_loop_fn done,
                            void *ctx)
{
    bt_worker_stop(worker->base, grace_ms, done, ctx);
}

void bt_prefill_worker_destroy(bt_prefill_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    bt_worker_halt(worker->base);
    bt_kv_sink_destroy(worker->sink);
    bt_kv_source_destroy(worker->source);
    bt_prefill_scheduler_destroy(worker->scheduler);
    bt_worker_destroy(worker->base);
    free(worker);
}

void bt_prefill_worker_get_health(const bt_prefill_worker *worker, bt_worker_health *out)
{
    bt_worker_get_health(worker->base, out);
}

void bt_prefill_worker_kv_peer(const bt_prefill_worker *worker, bt_kv_peer *out)
{
    bt_kv_source_peer(worker->source, out);
}

const bt_kv_source_counters *bt_prefill_worker_kv_counters(const bt_prefill_worker *worker)
{
    return bt_kv_source_counters_get(worker->source);
}

void bt_prefill_worker_tick(bt_prefill_worker *worker)
{
    bt_worker_tick(worker->base);
    bt_kv_sink_tick(worker->sink);
    bt_kv_source_tick(worker->source);
}
