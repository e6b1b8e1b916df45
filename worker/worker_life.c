/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's life, and who moves it on:
 *
 *   CREATED --start--> SERVING --stop--> DRAINING --grace over--> STOPPING
 *                                            `---- no run open ----'-----> AUDITING
 *   AUDITING --bt_worker_audited--> CLOSING --sessions ended--> STOPPED, done(ctx)
 *
 * Commands can't meet a full queue: a run has at most commands_per_run of them under way, and its
 * slot is used again only after the engine gave its sequence back, having taken its commands up
 * to the one that ended it; what may lie behind that (a late CANCEL) is the one more counted here.
 */
#include "worker/worker_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/name.h"

enum {
    REQUESTS_MAX_DEFAULT = 256,
    RUNNING_MAX_DEFAULT = 64,
    TOKEN_BUDGET_DEFAULT = 512,
    CHUNK_DEFAULT = 256,
    KV_PEERS_MAX_DEFAULT = 64,
    LOAD_MS_DEFAULT = 200,
    RING_RUNS_DEFAULT = 1024,
    EVENTS_MAX = 8192,   /* of the engine's queue */
    LINK_GRACE_MS = 500, /* for the last messages */
    STUCK_AFTER_MS_DEFAULT = 10000,
    KEPT_MS = 1000, /* a router that begins no fetch of a draining worker's prefixes for so long */
    SCORED_ROWS_MAX = 64, /* rows of a prompt that a step can score (echo); a block at least */
};

static void on_grace_over(void *ctx);

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value == 0 ? otherwise : value;
}

static bt_worker_options with_defaults(const bt_worker_options *options)
{
    bt_worker_options o = *options;
    o.requests_max = or_default(o.requests_max, REQUESTS_MAX_DEFAULT);
    o.running_max = or_default(o.running_max, RUNNING_MAX_DEFAULT);
    o.token_budget = or_default(o.token_budget, TOKEN_BUDGET_DEFAULT);
    o.chunk = or_default(o.chunk, CHUNK_DEFAULT);
    o.kv_peers_max = or_default(o.kv_peers_max, KV_PEERS_MAX_DEFAULT);
    o.lease_ms = or_default(o.lease_ms, BT_KV_LEASE_MS);
    o.load_ms = or_default(o.load_ms, LOAD_MS_DEFAULT);
    o.stuck_after_ms = or_default(o.stuck_after_ms, STUCK_AFTER_MS_DEFAULT);
    o.cached_blocks_max = or_default(o.cached_blocks_max, UINT32_MAX);
    o.ring_runs = or_default(o.ring_runs, RING_RUNS_DEFAULT);
    /* A step has room for a row of each sequence and one more block of a prompt. */
    if (o.token_budget > BT_KV_BLOCK_TOKENS &&
        o.running_max > o.token_budget - BT_KV_BLOCK_TOKENS) {
        o.running_max = o.token_budget - BT_KV_BLOCK_TOKENS;
    }
    return o;
}

void bt_worker_size_model(const bt_worker_options *options, bt_model_options *model)
{
    const bt_worker_options o = with_defaults(options);
    model->rows_max = o.token_budget;
    model->spans_max = o.running_max;
    model->logits_max = o.running_max + SCORED_ROWS_MAX;
}

/* ---------------------------------------------------------------------- start and stop ---- */

static bt_status check_options(const bt_worker_options *o, bt_error *err)
{
    const bt_status status = bt_name_check("a worker's name", o->name, BT_LINK_NAME_MAX, err);
    if (status != BT_OK) {
        return status;
    }
    if (o->n_routers == 0 || o->n_routers > BT_LINK_ROUTERS_MAX) {
        return bt_error_set(err, BT_EINVAL, "a worker needs 1 to %d router addresses",
                            BT_LINK_ROUTERS_MAX);
    }
    if (o->pool_blocks == 0) {
        return bt_error_set(err, BT_EINVAL, "the KV pool has no block. Make it larger");
    }
    if (o->chunk % BT_KV_BLOCK_TOKENS != 0) {
        return bt_error_set(err, BT_EINVAL, "a chunk is a multiple of %d tokens, not %" PRIu32,
                            BT_KV_BLOCK_TOKENS, o->chunk);
    }
    if (o->token_budget <= BT_KV_BLOCK_TOKENS) {
        return bt_error_set(err, BT_EINVAL, "a step has room for %d tokens at least",
                            BT_KV_BLOCK_TOKENS + 1);
    }
    return BT_OK;
}

static bt_status make_engine(bt_worker *worker)
{
    const bt_worker_options *o = &worker->options;
    const bt_engine_options options = {
        .model = o->model,
        .pool = bt_kv_pool_base(worker->pool),
        .rows_max = o->token_budget,
        .spans_max = o->running_max,
        .logits_max = o->running_max + SCORED_ROWS_MAX,
        .command_bytes = worker->ops->command_bytes,
        .commands_max = (size_t)o->requests_max * (worker->ops->commands_per_run + 1) +
                        BT_WORKER_CHAINS_MAX + 16,
        .event_bytes = worker->ops->event_bytes,
        .events_max = EVENTS_MAX,
        .ring = bt_worker_ring,
        .ring_ctx = worker,
    };
    return bt_engine_create(&options, &worker->engine);
}

static bt_status make_memory(bt_worker *worker, bt_error *err)
{
    const bt_worker_options *o = &worker->options;
    bt_status status = bt_kv_pool_create(bt_model_kv_layout(o->model), o->pool_blocks,
                                         o->pool_touch, &worker->pool, err);
    if (status != BT_OK) {
        return status;
    }
    const bt_kv_cache_options cache = {
        .pool = worker->pool,
        .cached_blocks_max = o->no_prefix_cache ? 0 : o->cached_blocks_max,
    };
    status = bt_kv_cache_create(&cache, &worker->cache);
    if (status == BT_OK) {
        status =
            bt_run_table_create(o->requests_max, bt_worker_params(worker)->context, &worker->runs);
    }
    if (status == BT_OK) {
        status = bt_meter_create(o->metrics, o->pool_blocks,
                                 o->chunk < o->token_budget ? o->chunk : o->token_budget,
                                 &worker->meter);
    }
    if (status == BT_OK) {
        status =
            bt_timeline_ring_create(o->ring_runs == UINT32_MAX ? 0 : o->ring_runs, &worker->ring);
    }
    if (status == BT_OK) {
        worker->event = calloc(1, worker->ops->event_bytes);
        status = worker->event == NULL ? BT_ENOMEM : make_engine(worker);
    }
    if (status != BT_OK) {
        bt_error_set(err, status, "cannot take the memory for %" PRIu32 " requests: %s",
                     o->requests_max, bt_status_text(status));
    }
    return status;
}

static bt_status make_handles(bt_worker *worker, bt_error *err)
{
    bt_status status = bt_wake_create(worker->loop, bt_worker_on_wake, worker, &worker->wake);
    if (status == BT_OK) {
        status =
            bt_timer_create(worker->loop, bt_worker_on_deadline, worker, &worker->deadline_timer);
    }
    if (status == BT_OK) {
        status = bt_timer_create(worker->loop, on_grace_over, worker, &worker->grace_timer);
    }
    if (status == BT_OK) {
        status = bt_timer_create(worker->loop, bt_worker_on_watch, worker, &worker->watch_timer);
    }
    if (status != BT_OK) {
        bt_error_set(err, status, "cannot make the worker's timers: %s", bt_status_text(status));
    }
    return status;
}

bt_status bt_worker_create(bt_loop *loop, bt_rpc *rpc, const bt_worker_options *options,
                           const bt_worker_role_ops *ops, void *ctx, bt_worker **out, bt_error *err)
{
    bt_worker_options with = with_defaults(options);
    bt_status status = check_options(&with, err);
    if (status != BT_OK) {
        return status;
    }
    bt_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) {
        return bt_error_set(err, BT_ENOMEM, "cannot make a worker: out of memory");
    }
    worker->loop = loop;
    worker->rpc = rpc;
    worker->options = with;
    worker->ops = ops;
    worker->ctx = ctx;
    worker->deadline_ns = INT64_MAX;
    bt_watchdog_init(&worker->watchdog, (int64_t)with.stuck_after_ms * 1000000,
                     (int64_t)with.load_ms * 1000000);
    snprintf(worker->name, sizeof worker->name, "%s", options->name);
    worker->options.name = worker->name;
    do {
        bt_hash_random(&worker->incarnation, sizeof worker->incarnation);
    } while (worker->incarnation == 0);
    worker->admission = (bt_admission){
        .modes = ops->modes,
        .context = bt_worker_params(worker)->context,
        .n_vocab = bt_worker_params(worker)->n_vocab,
        .pool_blocks = with.pool_blocks,
    };
    status = make_memory(worker, err);
    if (status == BT_OK) {
        status = make_handles(worker, err);
    }
    if (status != BT_OK) {
        bt_worker_halt(worker);
        bt_worker_destroy(worker);
        return status;
    }
    *out = worker;
    return BT_OK;
}

static void fill_hello(const bt_worker *worker, const bt_kv_peer *kv, bt_link_hello *hello)
{
    const bt_worker_options *o = &worker->options;
    const bt_kv_terms terms = bt_worker_terms(worker);
    *hello = (bt_link_hello){
        .role = o->role,
        .kv.incarnation = worker->incarnation,
        .block_tokens = BT_KV_BLOCK_TOKENS,
        .pool_blocks = o->pool_blocks,
        .block_bytes = terms.layout.block_bytes,
        .requests_max = o->requests_max,
        .context_tokens = bt_worker_params(worker)->context,
        .step_tokens_max = o->token_budget,
    };
    snprintf(hello->kv.name, sizeof hello->kv.name, "%s", worker->name);
    if (kv != NULL) {
        snprintf(hello->kv.kv_tcp, sizeof hello->kv.kv_tcp, "%s", kv->tcp);
        snprintf(hello->kv.kv_unix, sizeof hello->kv.kv_unix, "%s", kv->shm);
        memcpy(hello->kv.boot_id, kv->boot_id, sizeof hello->kv.boot_id);
    }
    snprintf(hello->kernels, sizeof hello->kernels, "%s", bt_model_kernels(o->model));
    snprintf(hello->model, sizeof hello->model, "%s",
             o->model_name != NULL ? o->model_name : bt_model_name(o->model));
    memcpy(hello->numerics_id, terms.numerics_id, sizeof hello->numerics_id);
    bt_hash128_to_bytes(bt_model_fingerprint(o->model), hello->model_fingerprint);
    memcpy(hello->tokenizer_hash, o->tokenizer_hash, sizeof hello->tokenizer_hash);
}

bt_status bt_worker_start(bt_worker *worker, const bt_engine_scheduler *table, const bt_kv_peer *kv,
                          bt_error *err)
{
    BT_ASSERT(worker->state == BT_WORKER_STATE_CREATED);
    bt_link_hello hello;
    fill_hello(worker, kv, &hello);
    const bt_link_worker_options link = {
        .hello = &hello,
        .routers = worker->options.routers,
        .n_routers = worker->options.n_routers,
        .cluster_key = worker->options.cluster_key,
        .tls = worker->options.router_tls,
        .runs_max = worker->options.requests_max,
        .load_ms = worker->options.load_ms,
        .callbacks = &bt_worker_link_callbacks,
        .ctx = worker,
    };
    bt_status status = bt_link_worker_create(worker->loop, worker->rpc, &link, &worker->link, err);
    if (status != BT_OK) {
        return status;
    }
    worker->load.blocks_free = worker->options.pool_blocks;
    worker->load.running_max = worker->options.running_max;
    bt_link_worker_load(worker->link, &worker->load);
    status = bt_engine_start(worker->engine, table);
    if (status != BT_OK) {
        return bt_error_set(err, status, "cannot start the engine's thread: %s",
                            bt_status_text(status));
    }
    worker->state = BT_WORKER_STATE_SERVING;
    bt_timer_start(worker->watch_timer, worker->options.load_ms, worker->options.load_ms);
    bt_log(BT_INFO, "worker started: name=%s kernels=%s pool_blocks=%" PRIu32 " routers=%" PRIu32,
           worker->name, hello.kernels, hello.pool_blocks, worker->options.n_routers);
    return BT_OK;
}

static void post_chain(bt_kv_chain *chain, void *ctx)
{
    bt_worker *worker = ctx;
    worker->ops->chain(chain, worker->ctx);
}

static void on_chain_ended(void *ctx)
{
    bt_worker_stop_when_empty(ctx);
}

bt_status bt_worker_hand_prefixes_on(bt_worker *worker, bt_kv_source *source, bt_kv_sink *sink,
                                     bt_error *err)
{
    const bt_worker_chains_options options = {
        .source = source,
        .sink = sink,
        .blocks_max = (uint32_t)bt_size_min(bt_worker_sequence_blocks(worker), BT_KV_WANTED_MAX),
        .post = post_chain,
        .fetched = bt_worker_on_fetched,
        .ended = on_chain_ended,
        .ctx = worker,
    };
    const bt_status status = bt_worker_chains_create(&options, &worker->chains);
    return status == BT_OK ? BT_OK
                           : bt_error_set(err, status, "cannot make a worker: out of memory");
}

bt_worker_chains *bt_worker_get_chains(const bt_worker *worker)
{
    return worker->chains;
}

static void stop_all_runs(bt_worker *worker)
{
    bt_worker_run *next = NULL;
    for (bt_worker_run *run = bt_run_table_next(worker->runs, NULL); run != NULL; run = next) {
        next = bt_run_table_next(worker->runs, run);
        bt_worker_stop_run(worker, run, BT_EPEER, "worker '%s' is shutting down", worker->name);
    }
}

static void on_grace_over(void *ctx)
{
    bt_worker *worker = ctx;
    if (worker->state == BT_WORKER_STATE_DRAINING) {
        worker->state = BT_WORKER_STATE_STOPPING;
        stop_all_runs(worker);
        bt_worker_chains_stop(worker->chains);
        bt_worker_stop_when_empty(worker);
    }
}

/* A router may want its cached prefixes to be fetched by others. */
static bool is_kept(const bt_worker *worker)
{
    const int64_t moved_ns = bt_worker_chains_get_stats(worker->chains).moved_ns;
    const int64_t since_ns = moved_ns > worker->draining_ns ? moved_ns : worker->draining_ns;
    return worker->state == BT_WORKER_STATE_DRAINING && worker->load.blocks_cached > 0 &&
           bt_link_worker_is_kept(worker->link) &&
           bt_clock_now_ns() - since_ns < KEPT_MS * INT64_C(1000000);
}

void bt_worker_stop_when_empty(bt_worker *worker)
{
    const bool draining =
        worker->state == BT_WORKER_STATE_DRAINING || worker->state == BT_WORKER_STATE_STOPPING;
    if (draining && bt_run_table_n_open(worker->runs) == 0 &&
        bt_worker_chains_get_stats(worker->chains).n_open == 0 && !is_kept(worker)) {
        worker->state = BT_WORKER_STATE_AUDITING;
        bt_worker_chains_stop(worker->chains);
        bt_timer_stop(worker->grace_timer);
        worker->ops->audit(worker->ctx);
    }
}

static void on_link_closed(void *ctx)
{
    bt_worker *worker = ctx;
    bt_engine_stop(worker->engine);
    worker->state = BT_WORKER_STATE_STOPPED;
    bt_log(BT_INFO, "worker stopped: name=%s audit=%s", worker->name,
           bt_status_name(worker->audit));
    worker->stopped(worker->stopped_ctx);
}

void bt_worker_audited(bt_worker *worker, bt_status status)
{
    if (worker->state != BT_WORKER_STATE_AUDITING) {
        return;
    }
    worker->audit = status;
    worker->state = BT_WORKER_STATE_CLOSING;
    bt_link_worker_shutdown(worker->link, LINK_GRACE_MS, on_link_closed, worker);
}

void bt_worker_stop(bt_worker *worker, uint64_t grace_ms, bt_loop_fn done, void *ctx)
{
    BT_ASSERT(worker->state == BT_WORKER_STATE_SERVING);
    worker->stopped = done;
    worker->stopped_ctx = ctx;
    worker->state = BT_WORKER_STATE_DRAINING;
    worker->draining_ns = bt_clock_now_ns();
    worker->load.draining = true;
    bt_link_worker_load(worker->link, &worker->load);
    bt_link_worker_flush(worker->link);
    bt_timer_start(worker->grace_timer, grace_ms, 0);
    bt_worker_stop_when_empty(worker);
}

void bt_worker_halt(bt_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    BT_ASSERT(worker->state == BT_WORKER_STATE_CREATED || worker->state == BT_WORKER_STATE_STOPPED);
    bt_link_worker_destroy(worker->link);
    worker->link = NULL;
    if (worker->engine != NULL) {
        bt_engine_stop(worker->engine);
    }
    bt_wake_destroy(worker->wake);
    bt_timer_destroy(worker->deadline_timer);
    bt_timer_destroy(worker->grace_timer);
    bt_timer_destroy(worker->watch_timer);
    worker->wake = NULL;
    worker->deadline_timer = NULL;
    worker->grace_timer = NULL;
    worker->watch_timer = NULL;
}

void bt_worker_destroy(bt_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    BT_ASSERT(worker->link == NULL);
    bt_engine_destroy(worker->engine);
    bt_run_table_destroy(worker->runs);
    bt_kv_cache_destroy(worker->cache);
    bt_kv_pool_destroy(worker->pool);
    bt_meter_destroy(worker->meter);
    bt_timeline_ring_destroy(worker->ring);
    bt_worker_chains_destroy(worker->chains);
    free(worker->event);
    free(worker);
}

/* ------------------------------------------------------------------------- queries ---- */

bt_kv_terms bt_worker_terms(const bt_worker *worker)
{
    const bt_worker_options *o = &worker->options;
    bt_kv_terms terms = {
        .layout = *bt_model_kv_layout(o->model),
        .allow_mixed_numerics = o->allow_mixed_numerics,
    };
    bt_hash128_to_bytes(bt_model_numerics_id(o->model), terms.numerics_id);
    terms.cluster_key = o->cluster_key.key;
    return terms;
}

bt_kv_source_options bt_worker_source_options(const bt_worker *worker)
{
    const bt_worker_options *o = &worker->options;
    return (bt_kv_source_options){
        .terms = bt_worker_terms(worker),
        .incarnation = worker->incarnation,
        .pool_base = bt_kv_pool_base(worker->pool),
        .n_blocks = bt_kv_pool_n_blocks(worker->pool),
        .pool_fd = bt_kv_pool_fd(worker->pool),
        .tcp_address = o->kv_tcp,
        .shm_address = o->kv_unix,
        .advertise_host = o->kv_advertise_host,
        .auth = o->kv_auth,
        .loopback = o->kv_loopback,
        .max_transfers = o->requests_max + BT_WORKER_CHAINS_MAX,
        .max_transfer_blocks = bt_worker_sequence_blocks(worker),
        .max_peers = o->kv_peers_max,
        .lease_ms = o->lease_ms,
        .rate_limit_bytes_s = o->kv_rate_limit_bytes_s,
        .fault = o->kv_fault,
    };
}

bt_kv_sink_options bt_worker_sink_options(const bt_worker *worker)
{
    const bt_worker_options *o = &worker->options;
    return (bt_kv_sink_options){
        .terms = bt_worker_terms(worker),
        .incarnation = worker->incarnation,
        .pool_base = bt_kv_pool_base(worker->pool),
        .n_blocks = bt_kv_pool_n_blocks(worker->pool),
        .transport = o->kv_transport,
        .auth = o->kv_auth,
        .loopback = o->kv_loopback,
        .max_transfers = o->requests_max + BT_WORKER_CHAINS_MAX,
        .max_transfer_blocks = bt_worker_sequence_blocks(worker),
        .max_peers = o->kv_peers_max,
        .lease_ms = o->lease_ms,
        .rate_limit_bytes_s = o->kv_rate_limit_bytes_s,
        .fault = o->kv_fault,
    };
}

bt_status bt_worker_status_of(const bt_worker_run *run, bt_kv_outcome outcome)
{
    switch (outcome) {
    case BT_KV_OUTCOME_PULLED:
        return BT_OK;
    case BT_KV_OUTCOME_CANCELLED:
        return BT_ECANCELLED;
    case BT_KV_OUTCOME_EXPIRED:
        return run->deadline_ns <= bt_clock_now_ns() ? BT_EDEADLINE : BT_EPEER;
    case BT_KV_OUTCOME_FAILED:
        break;
    }
    return BT_EPEER;
}

uint64_t bt_worker_incarnation(const bt_worker *worker)
{
    return worker->incarnation;
}

bt_kv_pool *bt_worker_pool(const bt_worker *worker)
{
    return worker->pool;
}

bt_kv_cache *bt_worker_cache(const bt_worker *worker)
{
    return worker->cache;
}

bt_engine *bt_worker_engine(const bt_worker *worker)
{
    return worker->engine;
}

const bt_model_params *bt_worker_params(const bt_worker *worker)
{
    return bt_model_get_params(worker->options.model);
}

uint32_t bt_worker_sequence_blocks(const bt_worker *worker)
{
    const size_t n = bt_div_ceil(bt_worker_params(worker)->context, BT_KV_BLOCK_TOKENS);
    return (uint32_t)bt_size_min(n, worker->options.pool_blocks);
}

const bt_worker_options *bt_worker_get_options(const bt_worker *worker)
{
    return &worker->options;
}

static const char *why_not_ready(const bt_worker *worker)
{
    if (worker->state == BT_WORKER_STATE_CREATED) {
        return "starting";
    }
    if (worker->state != BT_WORKER_STATE_SERVING) {
        return "shutting down";
    }
    return worker->watchdog.stuck_since_ns != 0 ? "the engine does not move" : NULL;
}

void bt_worker_get_health(const bt_worker *worker, bt_worker_health *out)
{
    const char *why = why_not_ready(worker);
    *out = (bt_worker_health){
        .ready = why == NULL,
        .text = why == NULL ? "ready" : why,
        .runs_open = bt_run_table_n_open(worker->runs),
        .audit = worker->audit,
        .load = worker->load,
    };
    if (worker->link != NULL) {
        out->routers_up = bt_link_worker_get_stats(worker->link).routers_up;
    }
}

void bt_worker_tick(bt_worker *worker)
{
    bt_worker_on_deadline(worker);
    bt_worker_on_watch(worker);
}
