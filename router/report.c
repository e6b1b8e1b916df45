/* SPDX-License-Identifier: Apache-2.0 */
/* What is said about a request once it is over: its summary for the client, one log line with
 * its timeline, and the metrics. Counters and gauges are made at create, so nothing here
 * allocates. Times come from the router's clock, but for what only a worker can know (its own
 * queue, prefill and transfer), which its report brings. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "router/router_int.h"

typedef enum end_kind {
    END_STOP,
    END_LENGTH,
    END_INVALID,
    END_EXHAUSTED,
    END_DEADLINE,
    END_CANCELLED,
    END_SLOW_CLIENT,
    END_UNAVAILABLE,
    END_UNAUTHENTICATED,
    END_ERROR,
    N_ENDS,
} end_kind;

static const char *const end_names[N_ENDS] = {
    "stop",      "length",      "invalid",     "exhausted",       "deadline",
    "cancelled", "slow_client", "unavailable", "unauthenticated", "error",
};

/* Of living requests; "reading": it is over, and the client has not taken all of its reply. */
static const char *const state_names[] = {
    [BT_ROUTER_REQUEST_FREE] = "free",         [BT_ROUTER_REQUEST_TOKENIZING] = "tokenizing",
    [BT_ROUTER_REQUEST_QUEUED] = "queued",     [BT_ROUTER_REQUEST_PREFILLING] = "prefilling",
    [BT_ROUTER_REQUEST_DECODING] = "decoding", [BT_ROUTER_REQUEST_ENDING] = "ending",
    [BT_ROUTER_REQUEST_DONE] = "reading",
};

enum { N_STATES = BT_ARRAY_LEN(state_names) };

struct bt_router_meters {
    bt_counter *ends[N_ENDS];
    bt_counter *retries;
    bt_counter *recoveries;
    bt_counter *moves;
    bt_counter *moves_failed;
    bt_counter *prefix_blocks;
    bt_counter *prefixes_failed;
    bt_counter *prompt_tokens;
    bt_counter *cached_tokens;
    bt_counter *generated_tokens;
    bt_counter *blocks_moved;
    bt_counter *bytes_moved;
    bt_histogram *ttft;
    bt_histogram *tpot;
    bt_histogram *total;
    bt_histogram *queue;
    bt_histogram *prefill;
    bt_histogram *transfer;
    bt_histogram *tokenize;
    bt_histogram *inter_token;
    bt_gauge *states[N_STATES];
    bt_histogram *refusal;
    bt_gauge *queued;
    bt_gauge *running;
    bt_gauge *workers;
    bt_gauge *prefix_entries;
};

static bt_histogram *latency(bt_metrics *m, const char *name, const char *help)
{
    return bt_metrics_histogram(m, name, help, bt_metric_bounds_latency, BT_NO_LABELS);
}

bt_status bt_router_meters_create(bt_metrics *m, bt_router_meters **out)
{
    bt_router_meters *meters = calloc(1, sizeof *meters);
    if (meters == NULL) {
        return BT_ENOMEM;
    }
    for (int i = 0; i < N_ENDS; i++) {
        meters->ends[i] =
            bt_metrics_counter(m, "baton_router_requests_total", "Requests that ended, by how.",
                               BT_LABELS({"end", end_names[i]}));
    }
    meters->retries = bt_metrics_counter(m, "baton_router_retries_total",
                                         "Placements after a failed one.", BT_NO_LABELS);
    meters->recoveries = bt_metrics_counter(
        m, "baton_router_recoveries_total",
        "Streams that had begun and were resumed on other workers.", BT_NO_LABELS);
    meters->moves =
        bt_metrics_counter(m, "baton_router_moves_total",
                           "Streams handed on in mid-stream, by how.", BT_LABELS({"end", "done"}));
    meters->moves_failed = bt_metrics_counter(m, "baton_router_moves_total",
                                              "Streams handed on in mid-stream, by how.",
                                              BT_LABELS({"end", "failed"}));
    meters->prefix_blocks = bt_metrics_counter(
        m, "baton_router_prefix_blocks_handed_on_total",
        "Cached KV blocks of draining workers that others pulled.", BT_NO_LABELS);
    meters->prefixes_failed =
        bt_metrics_counter(m, "baton_router_prefixes_not_handed_on_total",
                           "Prefixes of draining workers that could not be pulled.", BT_NO_LABELS);
    meters->prompt_tokens = bt_metrics_counter(m, "baton_router_prompt_tokens_total",
                                               "Prompt tokens of requests.", BT_NO_LABELS);
    meters->cached_tokens =
        bt_metrics_counter(m, "baton_router_cached_tokens_total",
                           "Prompt tokens found in a prefix cache.", BT_NO_LABELS);
    meters->generated_tokens = bt_metrics_counter(m, "baton_router_generated_tokens_total",
                                                  "Tokens generated.", BT_NO_LABELS);
    meters->blocks_moved = bt_metrics_counter(m, "baton_router_kv_blocks_moved_total",
                                              "KV blocks moved between workers.", BT_NO_LABELS);
    meters->bytes_moved = bt_metrics_counter(m, "baton_router_kv_bytes_moved_total",
                                             "KV bytes moved between workers.", BT_NO_LABELS);
    meters->ttft = latency(m, "baton_router_ttft_seconds", "Time to the first token.");
    meters->tpot = latency(m, "baton_router_tpot_seconds",
                           "Mean time per token after the first, of one request.");
    meters->total = latency(m, "baton_router_request_seconds", "Whole time of a request.");
    meters->queue = latency(m, "baton_router_queue_seconds", "Time until prefill began.");
    meters->prefill = latency(m, "baton_router_prefill_seconds", "Time of computing the prompt.");
    meters->transfer = latency(m, "baton_router_transfer_seconds",
                               "Time from the prompt's end until decode held its KV.");
    meters->refusal = latency(m, "baton_router_refusal_seconds",
                              "Time until a request was refused for lack of room.");
    meters->tokenize = latency(m, "baton_router_tokenize_seconds",
                               "Time until a prompt was rendered and tokenized.");
    meters->inter_token =
        latency(m, "baton_router_inter_token_seconds",
                "Time between two arrivals of tokens of one request from its worker.");
    for (int i = BT_ROUTER_REQUEST_TOKENIZING; i < N_STATES; i++) {
        meters->states[i] =
            bt_metrics_gauge(m, "baton_router_requests", "Requests that live, by state.",
                             BT_LABELS({"state", state_names[i]}));
    }
    meters->queued = bt_metrics_gauge(m, "baton_router_requests_queued",
                                      "Requests that wait for workers.", BT_NO_LABELS);
    meters->running = bt_metrics_gauge(m, "baton_router_requests_running",
                                       "Requests that live, queued ones apart.", BT_NO_LABELS);
    meters->workers =
        bt_metrics_gauge(m, "baton_router_workers", "Workers that are attached.", BT_NO_LABELS);
    meters->prefix_entries = bt_metrics_gauge(m, "baton_router_prefix_map_entries",
                                              "KV blocks known to the prefix map.", BT_NO_LABELS);
    *out = meters;
    return BT_OK;
}

void bt_router_meters_destroy(bt_router_meters *meters)
{
    free(meters);
}

static end_kind end_of(bt_status status, bt_finish_reason reason)
{
    switch (status) {
    case BT_OK:
        return reason == BT_FINISH_LENGTH ? END_LENGTH : END_STOP;
    case BT_EINVAL:
    case BT_ERANGE:
    case BT_EUNSUPPORTED:
    case BT_ENOTFOUND:
        return END_INVALID;
    case BT_EEXHAUSTED:
        return END_EXHAUSTED;
    case BT_EDEADLINE:
        return END_DEADLINE;
    case BT_ECANCELLED:
        return END_CANCELLED;
    case BT_EABORTED:
        return END_SLOW_CLIENT;
    case BT_EPEER:
        return END_UNAVAILABLE;
    case BT_EPERMISSION:
        return END_UNAUTHENTICATED;
    default:
        return END_ERROR;
    }
}

static double ms_between(int64_t from_ns, int64_t to_ns)
{
    return from_ns == 0 || to_ns <= from_ns ? 0 : (double)(to_ns - from_ns) / 1e6;
}

static double ms_of(uint64_t ns)
{
    return (double)ns / 1e6;
}

/* The leg that computed the prompt, and the one that decoded. */
static void fill_route(const bt_router_request *request, bt_router_summary *s)
{
    const bt_router_leg *p = &request->legs[BT_ROUTER_LEG_P];
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    const bt_router_leg *prefill = p->used ? p : d;
    const bt_router_leg *decode = d->used ? d : p;
    memcpy(s->prefill_worker, prefill->name, sizeof s->prefill_worker);
    memcpy(s->decode_worker, decode->name, sizeof s->decode_worker);
    if (prefill->has_report) {
        s->blocks_total = prefill->report.blocks_total;
        s->preemptions = prefill->report.preemptions;
    }
    /* After a recovery the prompt's part of it is what the first one said: the prompt counts once,
     * and what that attempt computed is no hit of the next one. */
    const bt_link_finished *first = request->has_first_report ? &request->first_report
                                    : prefill->has_report     ? &prefill->report
                                                              : NULL;
    if (first != NULL) {
        s->cached_tokens =
            first->cached_tokens < request->n_prompt ? first->cached_tokens : request->n_prompt;
        s->queue_ms += ms_of(first->queue_ns);
        s->prefill_ms = ms_of(first->prefill_ns);
    }
    if (p->used && d->used && d->has_report) {
        s->transfer_ms = ms_of(d->report.transfer_ns);
        s->blocks_total = d->report.blocks_total;
        s->blocks_moved = d->report.blocks_moved;
        s->blocks_skipped = d->report.blocks_skipped;
        s->bytes_moved = d->report.bytes_moved;
        s->preemptions += d->report.preemptions;
        memcpy(s->transport, d->report.transport, sizeof s->transport);
    }
}

static void fill_summary(bt_router_request *request)
{
    bt_router_summary *s = &request->summary;
    const int64_t now_ns = bt_clock_now_ns();
    uint32_t n_output = 0;
    (void)bt_router_reply_tokens(request->reply, &n_output);
    s->prompt_tokens = request->n_prompt;
    s->generated_tokens = n_output;
    s->attempts = request->attempt;
    s->recoveries = request->n_recoveries;
    s->queue_ms =
        ms_between(request->received_ns, request->placed_ns == 0 ? now_ns : request->placed_ns);
    s->ttft_ms = ms_between(request->received_ns, request->first_token_ns);
    s->tpot_ms = n_output < 2 ? 0
                              : ms_between(request->first_token_ns, request->last_token_ns) /
                                    (double)(n_output - 1);
    s->total_ms = ms_between(request->received_ns, now_ns);
    if (request->attempt > 0) {
        fill_route(request, s);
    }
}

static void count_end(const bt_router_request *request, end_kind end)
{
    bt_router *router = request->router;
    bt_router_counts *counts = &router->counts;
    const bt_router_meters *meters = router->meters;
    const bt_router_summary *s = &request->summary;
    counts->prompt_tokens += s->prompt_tokens;
    counts->generated_tokens += s->generated_tokens;
    counts->n_refused += end == END_EXHAUSTED;
    counts->n_cancelled += end == END_CANCELLED;
    counts->n_failed +=
        end == END_UNAVAILABLE || end == END_ERROR || end == END_DEADLINE || end == END_SLOW_CLIENT;
    bt_counter_add(meters->ends[end], 1);
    bt_counter_add(meters->prompt_tokens, s->prompt_tokens);
    bt_counter_add(meters->cached_tokens, s->cached_tokens);
    bt_counter_add(meters->generated_tokens, s->generated_tokens);
    bt_counter_add(meters->blocks_moved, s->blocks_moved);
    bt_counter_add(meters->bytes_moved, s->bytes_moved);
    if (end == END_EXHAUSTED) {
        bt_histogram_observe(meters->refusal, s->total_ms / 1e3);
    }
    if (request->status != BT_OK) {
        return;
    }
    bt_histogram_observe(meters->total, s->total_ms / 1e3);
    bt_histogram_observe(meters->queue, s->queue_ms / 1e3);
    bt_histogram_observe(meters->tokenize,
                         ms_between(request->received_ns, request->tokenized_ns) / 1e3);
    if (s->generated_tokens > 0) {
        bt_histogram_observe(meters->ttft, s->ttft_ms / 1e3);
        bt_histogram_observe(meters->prefill, s->prefill_ms / 1e3);
    }
    if (s->generated_tokens > 1) {
        bt_histogram_observe(meters->tpot, s->tpot_ms / 1e3);
    }
    if (s->blocks_moved > 0) {
        bt_histogram_observe(meters->transfer, s->transfer_ms / 1e3);
    }
}

/* ----------------------------------------------------------------------------- timeline ---- */

static uint64_t since_received_ns(const bt_router_request *request, int64_t moment_ns)
{
    return moment_ns <= request->received_ns ? 0 : (uint64_t)(moment_ns - request->received_ns);
}

void bt_router_report_placed(bt_router_request *request)
{
    bt_router_attempt *attempt = bt_router_attempts_add(&request->attempts);
    const bt_router_leg *from = &request->legs[BT_ROUTER_LEG_FROM];
    const bt_router_leg *p = from->open ? from : &request->legs[BT_ROUTER_LEG_P];
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    attempt->number = request->attempt;
    attempt->moved = from->open;
    attempt->placed_ns = since_received_ns(request, bt_clock_now_ns());
    snprintf(attempt->prefill_worker, sizeof attempt->prefill_worker, "%s", p->used ? p->name : "");
    snprintf(attempt->decode_worker, sizeof attempt->decode_worker, "%s", d->used ? d->name : "");
}

void bt_router_report_attempt_failed(bt_router_request *request, const char *why)
{
    bt_router_attempt *attempt = bt_router_attempts_newest(&request->attempts);
    if (attempt != NULL && attempt->failed_ns == 0) {
        attempt->failed_ns = since_received_ns(request, bt_clock_now_ns());
        snprintf(attempt->why, sizeof attempt->why, "%s", why);
    }
}

void bt_router_report_tokens(bt_router_request *request, int64_t now_ns)
{
    if (request->last_token_ns != 0) {
        bt_histogram_observe_ns(request->router->meters->inter_token,
                                now_ns - request->last_token_ns);
    }
}

void bt_router_report_timeline(const bt_router_request *request, bt_router_timeline *out)
{
    const int64_t now_ns = bt_clock_now_ns();
    const bt_router_summary *s = &request->summary;
    const bool is_over = request->state == BT_ROUTER_REQUEST_DONE;
    uint32_t n_output = 0;
    if (request->reply != NULL) {
        (void)bt_router_reply_tokens(request->reply, &n_output);
    }
    *out = (bt_router_timeline){
        .id = request->id,
        .state =
            is_over ? end_names[end_of(request->status, s->reason)] : state_names[request->state],
        .open = !is_over,
        .received_unix_ns = (uint64_t)(bt_clock_wall_ns() - (now_ns - request->received_ns)),
        .tokenized_ns = since_received_ns(request, request->tokenized_ns),
        .first_token_ns = since_received_ns(request, request->first_token_ns),
        .last_token_ns = since_received_ns(request, request->last_token_ns),
        .ended_ns = since_received_ns(request, now_ns),
        .prompt_tokens = request->n_prompt,
        .cached_tokens = s->cached_tokens,
        .generated_tokens = n_output,
        .recoveries = request->n_recoveries,
        .attempts = request->attempts,
    };
    memcpy(out->label, request->label, sizeof out->label);
    snprintf(out->model, sizeof out->model, "%.63s",
             bt_router_models_at(request->router->models, request->model_idx)->name);
    if (is_over && request->status != BT_OK) {
        snprintf(out->why, sizeof out->why, "%.159s", request->error.text);
    }
}

static void remember(const bt_router_request *request)
{
    bt_router_timeline timeline;
    bt_router_report_timeline(request, &timeline);
    bt_router_history_add(bt_router_explains_history(request->router->explains), &timeline);
}

/* Moments of the timeline, in ms since the request came; a worker's own are its durations from when
 * the last attempt was sent to it. 0: not reached, or not known. */
typedef struct moments {
    double tokenized;
    double placed;
    double prefill_start;
    double prefill_end;
    double transferred;
} moments;

/* The newest attempt that computed the prompt: one that only moved the stream did not. */
static const bt_router_attempt *find_prefill_attempt(const bt_router_attempts *attempts)
{
    for (uint32_t i = bt_router_attempts_kept(attempts); i > 0; i--) {
        const bt_router_attempt *attempt = bt_router_attempts_at(attempts, i - 1);
        if (!attempt->moved) {
            return attempt;
        }
    }
    return NULL;
}

static moments moments_of(const bt_router_request *request)
{
    const bt_router_leg *p = &request->legs[BT_ROUTER_LEG_P];
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    const bt_router_leg *prefill = p->used ? p : d;
    const bt_router_attempt *attempt = find_prefill_attempt(&request->attempts);
    moments m = {.tokenized = ms_between(request->received_ns, request->tokenized_ns),
                 .placed = attempt == NULL ? 0 : ms_of(attempt->placed_ns)};
    if (attempt == NULL || (!p->used && d->attempt != attempt->number)) {
        return m;
    }
    if (prefill->has_report && prefill->report.prefill_ns > 0) {
        m.prefill_start = m.placed + ms_of(prefill->report.queue_ns);
        m.prefill_end = m.prefill_start + ms_of(prefill->report.prefill_ns);
    }
    const bool was_pulled = p->used && d->has_report && d->attempt == attempt->number;
    if (m.prefill_end > 0 && was_pulled && d->report.transfer_ns > 0) {
        m.transferred = m.prefill_end + ms_of(d->report.transfer_ns);
    }
    return m;
}

void bt_router_report_end(bt_router_request *request)
{
    fill_summary(request);
    const bt_router_summary *s = &request->summary;
    const end_kind end = end_of(request->status, s->reason);
    count_end(request, end);
    remember(request);
    const moments m = moments_of(request);
    bt_log(
        BT_INFO,
        "request done: req=%s id=%016" PRIx64 "%016" PRIx64
        " client=%s end=%s model=%s prompt_tokens=%" PRIu32 " cached_tokens=%" PRIu32
        " generated_tokens=%" PRIu32 " queue_ms=%.1f prefill_ms=%.1f transfer_ms=%.1f"
        " ttft_ms=%.1f tpot_ms=%.2f total_ms=%.1f tokenized_at=%.1f placed_at=%.1f"
        " prefill_start_at=%.1f prefill_end_at=%.1f transferred_at=%.1f"
        " prefill_worker=%s decode_worker=%s"
        " attempts=%" PRIu32 " recoveries=%" PRIu32 " blocks_moved=%" PRIu32 " bytes_moved=%" PRIu64
        " preemptions=%" PRIu32 "%s%s%s",
        request->label, request->id.hi, request->id.lo,
        request->client != NULL ? request->client->name : "-", end_names[end],
        bt_router_models_at(request->router->models, request->model_idx)->name, s->prompt_tokens,
        s->cached_tokens, s->generated_tokens, s->queue_ms, s->prefill_ms, s->transfer_ms,
        s->ttft_ms, s->tpot_ms, s->total_ms, m.tokenized, m.placed, m.prefill_start, m.prefill_end,
        m.transferred, s->prefill_worker[0] != '\0' ? s->prefill_worker : "-",
        s->decode_worker[0] != '\0' ? s->decode_worker : "-", s->attempts, s->recoveries,
        s->blocks_moved, s->bytes_moved, s->preemptions, request->status != BT_OK ? " why=\"" : "",
        request->status != BT_OK ? request->error.text : "", request->status != BT_OK ? "\"" : "");
}

void bt_router_report_refusal(bt_router *router, bt_status status)
{
    router->counts.n_total++;
    router->counts.n_refused++;
    bt_counter_add(router->meters->ends[end_of(status, BT_FINISH_ERROR)], 1);
}

void bt_router_report_refusal_time(bt_router *router, int64_t ns)
{
    bt_histogram_observe_ns(router->meters->refusal, ns);
}

void bt_router_report_retry(bt_router *router, bool is_recovery)
{
    router->counts.n_retries++;
    bt_counter_add(router->meters->retries, 1);
    if (is_recovery) {
        router->counts.n_recoveries++;
        bt_counter_add(router->meters->recoveries, 1);
    }
}

void bt_router_report_move(bt_router *router, bool done)
{
    router->counts.n_moves += done;
    bt_counter_add(done ? router->meters->moves : router->meters->moves_failed, 1);
}

void bt_router_report_fetched(bt_router *router, bool done, uint32_t n_blocks)
{
    if (done) {
        bt_counter_add(router->meters->prefix_blocks, n_blocks);
    } else {
        bt_counter_add(router->meters->prefixes_failed, 1);
    }
}

void bt_router_report_tick(bt_router *router)
{
    const bt_router_meters *meters = router->meters;
    const bt_router_counts *counts = &router->counts;
    uint32_t n_by_state[N_STATES] = {0};
    uint32_t n_seen = 0; /* low slots are taken first, so this ends early */
    for (uint32_t i = 0; i < router->options.requests_max && n_seen < counts->n_live; i++) {
        const bt_router_request_state state = router->requests[i].state;
        n_by_state[state]++;
        n_seen += state != BT_ROUTER_REQUEST_FREE;
    }
    for (int i = BT_ROUTER_REQUEST_TOKENIZING; i < N_STATES; i++) {
        bt_gauge_set(meters->states[i], n_by_state[i]);
    }
    bt_gauge_set(meters->queued, counts->n_queued);
    bt_gauge_set(meters->running, (double)(counts->n_live - counts->n_queued));
    bt_gauge_set(meters->workers, bt_router_registry_count(router->registry));
    bt_gauge_set(meters->prefix_entries,
                 (double)bt_router_prefix_map_get_stats(router->prefix_map).n_entries);
}
