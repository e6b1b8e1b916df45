/* SPDX-License-Identifier: Apache-2.0 */
/* One table names each total's metric and where it is in the tally; update() adds growth. */
#include "worker/meter.h"

#include <stddef.h>
#include <stdlib.h>

#include "common/check.h"

typedef struct total_spec {
    const char *name;
    const char *help;
    const char *label; /* NULL: none */
    const char *value;
    size_t offset; /* of a uint64_t in bt_worker_tally */
} total_spec;

#define LOAD(field) (offsetof(bt_worker_tally, load) + offsetof(bt_link_load, field))
#define TALLY(field) offsetof(bt_worker_tally, field)

static const total_spec totals[] = {
    {"baton_worker_tokens_total", "Tokens by how they came to be.", "kind", "prefill",
     LOAD(prefill_tokens)},
    {"baton_worker_tokens_total", "", "kind", "cached", LOAD(prefix_hit_tokens)},
    {"baton_worker_tokens_total", "", "kind", "recomputed", LOAD(recomputed_tokens)},
    {"baton_worker_tokens_total", "", "kind", "decode", LOAD(decode_tokens)},
    {"baton_worker_prefix_queries_total", "Requests looked up in the prefix cache.", NULL, NULL,
     LOAD(prefix_queries)},
    {"baton_worker_prefix_hits_total", "Requests that found a block there at least.", NULL, NULL,
     LOAD(prefix_hits)},
    {"baton_worker_prefix_tokens_total", "Prompt tokens looked up in the prefix cache.", "found",
     "yes", LOAD(prefix_hit_tokens)},
    {"baton_worker_prefix_tokens_total", "", "found", "no", LOAD(prefix_miss_tokens)},
    {"baton_worker_blocks_stored_total", "KV blocks that joined the prefix cache.", NULL, NULL,
     LOAD(blocks_stored)},
    {"baton_worker_blocks_evicted_total", "KV blocks that left the prefix cache.", NULL, NULL,
     LOAD(blocks_evicted)},
    {"baton_worker_slots_total", "KV slots of the sequences of each step, summed over steps.",
     "kind", "written", LOAD(slots_written)},
    {"baton_worker_slots_total", "", "kind", "allocated", LOAD(slots_allocated)},
    {"baton_worker_preemptions_total", "Sequences that lost their blocks.", NULL, NULL,
     LOAD(preemptions)},
    {"baton_worker_pulls_total", "KV pulls by how they ended.", "outcome", "done", LOAD(pulls)},
    {"baton_worker_pulls_total", "", "outcome", "failed", LOAD(pulls_failed)},
    {"baton_worker_partial_pulls_total", "KV pulls that left out blocks held already.", NULL, NULL,
     LOAD(partial_pulls)},
    {"baton_worker_runs_handed_over_total", "Runs in mid-stream that another decode worker pulled.",
     NULL, NULL, LOAD(runs_handed_over)},
    {"baton_worker_pulled_blocks_total", "KV blocks moved here.", NULL, NULL, LOAD(blocks_pulled)},
    {"baton_worker_transfer_bytes_total", "KV bytes moved.", "direction", "pulled",
     LOAD(bytes_pulled)},
    {"baton_worker_transfer_bytes_total", "", "direction", "served", LOAD(bytes_served)},
    {"baton_worker_transfer_rejected_total", "KV parts and frames refused.", "cause", "corrupt",
     TALLY(parts_corrupt)},
    {"baton_worker_transfer_rejected_total", "", "cause", "duplicate", TALLY(parts_duplicate)},
    {"baton_worker_transfer_rejected_total", "", "cause", "late", TALLY(parts_late)},
    {"baton_worker_transfer_rejected_total", "", "cause", "unknown", TALLY(parts_unknown)},
    {"baton_worker_kv_handshakes_refused_total", "Connections for KV that were refused.", NULL,
     NULL, TALLY(handshakes_refused)},
    {"baton_worker_leases_expired_total", "KV leases that nobody claimed or renewed.", NULL, NULL,
     TALLY(leases_expired)},
};

enum {
    N_TOTALS = BT_ARRAY_LEN(totals),
    TIMES_MAX = 8,
    SAMPLES_FIRST = 4,
    ROWS_MANY = 32, /* as a decode step's, whose time is mostly that of the weights */
};

typedef enum run_end {
    RUN_OK,
    RUN_CANCELLED,
    RUN_DEADLINE,
    RUN_FAILED,
    N_RUN_ENDS,
} run_end;

static const char *const run_ends[N_RUN_ENDS] = {"ok", "cancelled", "deadline", "failed"};

struct bt_meter {
    /* fixed after create */
    uint32_t blocks_total;
    bt_counter *counters[N_TOTALS];
    bt_gauge *blocks_free;
    bt_gauge *blocks_cached;
    bt_gauge *blocks_live;
    bt_gauge *running;
    bt_gauge *waiting;
    bt_gauge *parked;
    bt_gauge *stuck;
    bt_histogram *step;
    bt_counter *runs[N_RUN_ENDS];
    bt_histogram *queue;
    bt_histogram *prefill;
    bt_histogram *transfer;
    bt_histogram *decode;

    uint64_t seen[N_TOTALS];
    bt_engine_stats engine;
    uint64_t prefill_tokens;
    uint64_t step_ns;
    uint64_t last_step_ns;
    uint64_t prefill_token_ns;
    uint32_t rows_min;       /* that a step with prompts counts as */
    uint32_t n_step_samples; /* up to SAMPLES_FIRST */
    uint32_t n_prefill_samples;
    /* of recent steps with prompts, older ones weighing less; and their time */
    double prefill_rows;
    double prefill_busy_ns;
};

static uint64_t total_of(const bt_worker_tally *tally, size_t i)
{
    return *(const uint64_t *)(const void *)((const char *)tally + totals[i].offset);
}

/* What the first samples said is forgotten when one of the next shows that it was many times too
 * much: they may be of a step in which the process was stopped. */
static bool is_misled(uint32_t *n_samples, uint64_t mean, uint64_t value)
{
    if (*n_samples == SAMPLES_FIRST) {
        return false;
    }
    ++*n_samples;
    return mean / TIMES_MAX > value;
}

/* The newest of a series weighs 1/16; the first stands alone. */
static uint64_t blend(uint64_t mean, uint64_t value)
{
    return mean == 0 ? value : mean - mean / 16 + value / 16;
}

static bt_histogram *latency(bt_metrics *metrics, const char *name, const char *help)
{
    return bt_metrics_histogram(metrics, name, help, bt_metric_bounds_latency, BT_NO_LABELS);
}

static void register_runs(bt_meter *meter, bt_metrics *metrics)
{
    for (int i = 0; i < N_RUN_ENDS; i++) {
        meter->runs[i] = bt_metrics_counter(metrics, "baton_worker_runs_total",
                                            "Parts of requests that ended here, by how.",
                                            BT_LABELS({"end", run_ends[i]}));
    }
    meter->queue =
        latency(metrics, "baton_worker_queue_seconds", "Time from arrival until a run had blocks.");
    meter->prefill =
        latency(metrics, "baton_worker_prefill_seconds", "Time of computing a prompt here.");
    meter->transfer = latency(metrics, "baton_worker_transfer_seconds",
                              "Decode: time from when a prompt was computed and there was room for "
                              "its KV until it was here. Prefill: until nobody read it any more.");
    meter->decode = latency(metrics, "baton_worker_decode_seconds",
                            "Time from a prompt's KV to the last token.");
}

static void register_metrics(bt_meter *meter, bt_metrics *metrics)
{
    for (size_t i = 0; i < N_TOTALS; i++) {
        const total_spec *spec = &totals[i];
        const bt_metric_label label = {spec->label, spec->value};
        meter->counters[i] =
            bt_metrics_counter(metrics, spec->name, spec->help, spec->label == NULL ? NULL : &label,
                               spec->label == NULL ? 0 : 1);
    }
    static const char blocks[] = "baton_worker_blocks";
    static const char blocks_help[] = "KV blocks of the pool by state.";
    meter->blocks_free =
        bt_metrics_gauge(metrics, blocks, blocks_help, BT_LABELS({"state", "free"}));
    meter->blocks_cached =
        bt_metrics_gauge(metrics, blocks, blocks_help, BT_LABELS({"state", "cached"}));
    meter->blocks_live =
        bt_metrics_gauge(metrics, blocks, blocks_help, BT_LABELS({"state", "live"}));
    static const char requests[] = "baton_worker_requests";
    static const char requests_help[] = "Open requests by state.";
    meter->running =
        bt_metrics_gauge(metrics, requests, requests_help, BT_LABELS({"state", "running"}));
    meter->waiting =
        bt_metrics_gauge(metrics, requests, requests_help, BT_LABELS({"state", "waiting"}));
    meter->parked =
        bt_metrics_gauge(metrics, requests, requests_help, BT_LABELS({"state", "parked"}));
    meter->stuck = bt_metrics_gauge(metrics, "baton_worker_stuck",
                                    "1: the engine has work and does not move.", BT_NO_LABELS);
    meter->step =
        bt_metrics_histogram(metrics, "baton_worker_step_seconds", "Time of an engine step.",
                             bt_metric_bounds_latency, BT_NO_LABELS);
}

/* What the rows of a prompt took counts as so many times the present mean at most: a step in which
 * the process was stopped tells little of the next. */
static double trusted_busy_ns(const bt_meter *meter, uint64_t n_rows, uint64_t busy_ns)
{
    const double most_ns = TIMES_MAX * (double)meter->prefill_token_ns * (double)n_rows;
    return most_ns > 0 && (double)busy_ns > most_ns ? most_ns : (double)busy_ns;
}

/* Steps since the last update; several may have gone by, of which the mean counts once each. */
static void update_times(bt_meter *meter, const bt_engine_stats *engine, uint64_t prefill_tokens)
{
    const uint64_t n_steps = engine->n_steps - meter->engine.n_steps;
    const uint64_t n_rows = engine->n_rows - meter->engine.n_rows;
    const uint64_t busy_ns = engine->busy_ns - meter->engine.busy_ns;
    if (n_steps == 0) {
        return;
    }
    meter->last_step_ns = busy_ns / n_steps;
    if (is_misled(&meter->n_step_samples, meter->step_ns, busy_ns / n_steps)) {
        meter->step_ns = 0;
    }
    for (uint64_t i = 0; i < n_steps && i < 16; i++) {
        meter->step_ns = blend(meter->step_ns, busy_ns / n_steps);
        bt_histogram_observe_ns(meter->step, (int64_t)(busy_ns / n_steps));
    }
    if (prefill_tokens != meter->prefill_tokens) {
        /* A step of few rows takes nearly as long as one of more, and would make a token look so
         * slow that who is let in by these times never lets a long prompt show the truth. */
        const uint64_t n_counted =
            n_rows > n_steps * meter->rows_min ? n_rows : n_steps * meter->rows_min;
        if (is_misled(&meter->n_prefill_samples, meter->prefill_token_ns, busy_ns / n_counted)) {
            meter->prefill_token_ns = 0;
            meter->prefill_rows = 0;
            meter->prefill_busy_ns = 0;
        }
        /* Weighed by rows: a step of few rows costs much for each, and says little of the next. */
        meter->prefill_rows += (double)n_counted - meter->prefill_rows / 16;
        meter->prefill_busy_ns +=
            trusted_busy_ns(meter, n_counted, busy_ns) - meter->prefill_busy_ns / 16;
        meter->prefill_token_ns = (uint64_t)(meter->prefill_busy_ns / meter->prefill_rows);
    }
    meter->engine = *engine;
    meter->prefill_tokens = prefill_tokens;
}

bt_status bt_meter_create(bt_metrics *metrics, uint32_t blocks_total, uint32_t rows_max,
                          bt_meter **out)
{
    bt_meter *meter = calloc(1, sizeof *meter);
    if (meter == NULL) {
        return BT_ENOMEM;
    }
    meter->blocks_total = blocks_total;
    meter->rows_min = rows_max < ROWS_MANY ? rows_max : ROWS_MANY;
    if (metrics != NULL) {
        register_metrics(meter, metrics);
        register_runs(meter, metrics);
    }
    bt_gauge_set(meter->blocks_free, blocks_total);
    *out = meter;
    return BT_OK;
}

void bt_meter_destroy(bt_meter *meter)
{
    free(meter);
}

void bt_meter_set_stuck(bt_meter *meter, bool is_stuck)
{
    bt_gauge_set(meter->stuck, is_stuck ? 1 : 0);
}

void bt_meter_update(bt_meter *meter, const bt_worker_tally *tally, const bt_engine_stats *engine,
                     bt_link_load *load)
{
    for (size_t i = 0; i < N_TOTALS; i++) {
        const uint64_t total = total_of(tally, i);
        BT_ASSERT(total >= meter->seen[i]);
        bt_counter_add(meter->counters[i], total - meter->seen[i]);
        meter->seen[i] = total;
    }
    const bt_link_load *now = &tally->load;
    BT_ASSERT(now->blocks_free + now->blocks_cached <= meter->blocks_total);
    bt_gauge_set(meter->blocks_free, now->blocks_free);
    bt_gauge_set(meter->blocks_cached, now->blocks_cached);
    bt_gauge_set(meter->blocks_live, meter->blocks_total - now->blocks_free - now->blocks_cached);
    BT_ASSERT(now->requests_parked <= now->requests_running);
    bt_gauge_set(meter->running, now->requests_running - now->requests_parked);
    bt_gauge_set(meter->parked, now->requests_parked);
    bt_gauge_set(meter->waiting, now->requests_waiting);
    update_times(meter, engine, now->prefill_tokens);
    *load = *now;
    load->step_ns = meter->step_ns;
    load->last_step_ns = meter->last_step_ns;
    load->prefill_token_ns = meter->prefill_token_ns;
}

static run_end end_of(bt_status status)
{
    switch (status) {
    case BT_OK:
        return RUN_OK;
    case BT_ECANCELLED:
        return RUN_CANCELLED;
    case BT_EDEADLINE:
        return RUN_DEADLINE;
    default:
        return RUN_FAILED;
    }
}

void bt_meter_run(bt_meter *meter, bt_link_mode mode, const bt_link_finished *finished)
{
    bt_counter_add(meter->runs[end_of(finished->status)], 1);
    if (finished->status != BT_OK) {
        return;
    }
    bt_histogram_observe_ns(meter->queue, (int64_t)finished->queue_ns);
    if (mode != BT_LINK_MODE_DECODE) {
        bt_histogram_observe_ns(meter->prefill, (int64_t)finished->prefill_ns);
    }
    if (finished->transfer_ns > 0) {
        bt_histogram_observe_ns(meter->transfer, (int64_t)finished->transfer_ns);
    }
    if (mode != BT_LINK_MODE_PREFILL) {
        bt_histogram_observe_ns(meter->decode, (int64_t)finished->decode_ns);
    }
}
