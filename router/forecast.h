/* SPDX-License-Identifier: Apache-2.0 */
/* forecast.h - how long a newcomer would wait: pure functions from a view of the cluster.
 *
 * Times are the workers' own measurements (proto/link.h: prefill_token_ns, step_ns), so the
 * forecast follows the machine, the model and the load. Two things can keep a newcomer waiting:
 *
 *   prefill  (tokens queued on workers + tokens of those before it here) / tokens per second
 *   decode   no place is free on any decode worker: those before it and it itself each wait for
 *            one, and a place is given back each (mean reply x step / places)
 *
 * Prefill goes on while a place is waited for, so the longer one counts, and then the newcomer's
 * own prompt. What has not been measured yet counts nothing: a cluster that has served nobody
 * refuses nobody.
 *
 * A decode step's time is learned as a line over the sequences in it, so that the router can tell
 * what one more would cost the others (bt_router_step_line).
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_ROUTER_FORECAST_H
#define BT_ROUTER_FORECAST_H

#include "router/policy.h"

/* Weighted sums of (sequences, step time); older samples weigh less. All zero: nothing is known. */
typedef struct bt_router_step_line {
    double weight;
    double x;
    double y;
    double xx;
    double xy;
} bt_router_step_line;

/* A step of `n` sequences took step_ns. */
void bt_router_step_line_add(bt_router_step_line *line, uint32_t n, uint64_t step_ns);

/* The expected time of a step of `n` sequences, in ns; 0: unknown. While all samples are of one
 * `n`, half of the time is taken to grow with it. */
double bt_router_step_line_at(const bt_router_step_line *line, uint32_t n);

/* The most sequences (1..n_max) whose step stays within limit_ns; n_max when nothing is known. A
 * limit below 1.5 steps of one sequence is taken for that: a worker that can't keep it anyhow would
 * do next to nothing for nobody's good. */
uint32_t bt_router_step_line_places(const bt_router_step_line *line, double limit_ns,
                                    uint32_t n_max);

typedef struct bt_router_backlog {
    uint32_t n_requests;  /* that go before the newcomer in the router's queue */
    uint64_t n_tokens;    /* of their prompts */
    uint32_t stay_tokens; /* mean length of a reply; 0: unknown */
} bt_router_backlog;

typedef struct bt_router_forecast {
    int64_t wait_ns; /* until its prompt is begun */
    int64_t ttft_ns; /* until its first token */
    int64_t step_ns; /* of a decode step, with it; 0: unknown */
} bt_router_forecast;

/* What a request of `prompt_tokens` would meet in this view. O(n). */
void bt_router_forecast_make(const bt_router_worker_view *workers, size_t n_workers,
                             const bt_router_policy_request *request,
                             const bt_router_backlog *backlog, bt_router_forecast *out);

#endif /* BT_ROUTER_FORECAST_H */
