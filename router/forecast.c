/* SPDX-License-Identifier: Apache-2.0 */
/* The line is a least-squares fit with forgetting: each sample shrinks the older ones by KEEP. Its
 * slope is kept between 0 and the mean through the origin, so that noise can't make more sequences
 * cheaper, nor fewer free of charge. */
#include "router/forecast.h"

static const double KEEP = 0.98;
static const double LIMIT_MIN = 1.5;    /* steps of one sequence */
static const double VARIANCE_MIN = 0.1; /* of the sequences; below it there is no slope to see */

void bt_router_step_line_add(bt_router_step_line *line, uint32_t n, uint64_t step_ns)
{
    const double x = n;
    const double y = (double)step_ns;
    *line = (bt_router_step_line){
        .weight = line->weight * KEEP + 1,
        .x = line->x * KEEP + x,
        .y = line->y * KEEP + y,
        .xx = line->xx * KEEP + x * x,
        .xy = line->xy * KEEP + x * y,
    };
}

/* step(n) = base + slope * n. */
static void fit(const bt_router_step_line *line, double *base, double *slope)
{
    const double mean_x = line->x / line->weight;
    const double mean_y = line->y / line->weight;
    const double variance = line->xx / line->weight - mean_x * mean_x;
    const double steepest = mean_x > 0 ? mean_y / mean_x : 0;
    double s = steepest / 2;
    if (variance > VARIANCE_MIN) {
        s = (line->xy / line->weight - mean_x * mean_y) / variance;
        s = s < 0 ? 0 : s > steepest ? steepest : s;
    }
    *slope = s;
    *base = mean_y - s * mean_x;
}

double bt_router_step_line_at(const bt_router_step_line *line, uint32_t n)
{
    if (line->weight <= 0) {
        return 0;
    }
    double base;
    double slope;
    fit(line, &base, &slope);
    return base + slope * n;
}

uint32_t bt_router_step_line_places(const bt_router_step_line *line, double limit_ns,
                                    uint32_t n_max)
{
    if (line->weight <= 0 || n_max == 0) {
        return n_max;
    }
    double base;
    double slope;
    fit(line, &base, &slope);
    const double least_ns = LIMIT_MIN * (base + slope);
    limit_ns = limit_ns > least_ns ? limit_ns : least_ns;
    if (base + slope * n_max <= limit_ns) {
        return n_max;
    }
    const double places = slope > 0 ? (limit_ns - base) / slope : 1;
    return places < 1 ? 1 : places < n_max ? (uint32_t)places : n_max;
}

/* ---------------------------------------------------------------------------- forecast ---- */

typedef struct sums {
    uint32_t n; /* workers that compute prompts */
    uint32_t n_known;
    double tokens_per_ns; /* of those whose speed is known */
    double queued_tokens; /* of all */
    uint32_t rest_tokens; /* of the newcomer's prompt, where most of it is cached */
} sums;

static void add_prefill(sums *s, const bt_router_worker_view *w,
                        const bt_router_policy_request *request)
{
    const uint64_t matched =
        request->bypass_cache ? 0 : (uint64_t)w->matched_blocks * request->block_tokens;
    const uint32_t rest =
        matched < request->prompt_tokens ? request->prompt_tokens - (uint32_t)matched : 0;
    if (s->n == 0 || rest < s->rest_tokens) {
        s->rest_tokens = rest;
    }
    s->n++;
    s->queued_tokens += (double)w->queued_prefill_tokens;
    if (w->prefill_token_ns > 0) {
        s->n_known++;
        s->tokens_per_ns += 1 / (double)w->prefill_token_ns;
    }
}

/* Prompts are computed by prefill workers and combined ones; by decode workers without those. */
static sums sum_prefill(const bt_router_worker_view *workers, size_t n_workers,
                        const bt_router_policy_request *request)
{
    sums s = {0};
    for (size_t i = 0; i < n_workers; i++) {
        if (workers[i].ready && workers[i].role != BT_ROUTER_WORKER_ROLE_DECODE) {
            add_prefill(&s, &workers[i], request);
        }
    }
    for (size_t i = 0; s.n == 0 && i < n_workers; i++) {
        if (workers[i].ready) {
            add_prefill(&s, &workers[i], request);
            break;
        }
    }
    return s;
}

/* How long until a place on a decode worker is free, and what a step will take there. */
static double decode_wait_ns(const bt_router_worker_view *workers, size_t n_workers,
                             const bt_router_backlog *backlog, int64_t *step_ns)
{
    uint64_t n_places = 0;
    uint64_t n_free = 0;
    uint64_t step_min_ns = 0;
    for (size_t i = 0; i < n_workers; i++) {
        const bt_router_worker_view *w = &workers[i];
        if (!w->ready || w->role == BT_ROUTER_WORKER_ROLE_PREFILL) {
            continue;
        }
        if (w->n_places == 0) {
            n_free = UINT64_MAX; /* it has no bound */
        } else if (n_free != UINT64_MAX) {
            n_places += w->n_places;
            n_free += w->n_taken < w->n_places ? w->n_places - w->n_taken : 0;
        }
        if (w->step_ns > 0 && (step_min_ns == 0 || w->step_ns < step_min_ns)) {
            step_min_ns = w->step_ns;
        }
    }
    *step_ns = (int64_t)step_min_ns;
    if (n_places == 0 || (uint64_t)backlog->n_requests < n_free) {
        return 0;
    }
    const double stay_ns = (double)backlog->stay_tokens * (double)step_min_ns;
    return (double)(backlog->n_requests + 1 - n_free) * stay_ns / (double)n_places;
}

void bt_router_forecast_make(const bt_router_worker_view *workers, size_t n_workers,
                             const bt_router_policy_request *request,
                             const bt_router_backlog *backlog, bt_router_forecast *out)
{
    const sums s = sum_prefill(workers, n_workers, request);
    double prefill_wait_ns = 0;
    double own_ns = 0;
    if (s.n_known > 0) {
        const double mean_rate = s.tokens_per_ns / s.n_known;
        prefill_wait_ns = (s.queued_tokens + (double)backlog->n_tokens) / (mean_rate * s.n);
        own_ns = s.rest_tokens / mean_rate;
    }
    int64_t step_ns;
    const double place_wait_ns = decode_wait_ns(workers, n_workers, backlog, &step_ns);
    const double wait_ns = prefill_wait_ns > place_wait_ns ? prefill_wait_ns : place_wait_ns;
    *out = (bt_router_forecast){
        .wait_ns = (int64_t)wait_ns,
        .ttft_ns = (int64_t)(wait_ns + own_ns),
        .step_ns = step_ns,
    };
}
