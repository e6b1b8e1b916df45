/* SPDX-License-Identifier: Apache-2.0 */
/* How it works. For each decode worker the best way to run the request with it is found (split
 * with the cheapest prefill worker of its numerics, or whole), then the best of these wins.
 * Ways are compared by rank first, by cost second:
 *   rank 0  as intended: split; or whole, on a worker of role BOTH or for a short rest
 *   rank 1  whole on a decode worker, since no prefill worker is ready
 *   rank 2  split with a prefill worker that failed this request before
 *   +4      the decode worker failed this request before
 * Costs are integers, in tokens; there is no mode that drops locality under load: a cached
 * prefix and a queue are weighed against each other in the same unit at all times. */
#include "router/policy.h"

enum {
    RANK_INTENDED = 0,
    RANK_LOCAL = 1,
    RANK_FAILED_P = 2,
    RANK_FAILED_D = 4, /* added */

    PULL_TOKENS_PER_COMPUTED = 8, /* tokens pulled for the price of one computed */
    STEP_TOKENS_PER_REQUEST = 16, /* a sequence in the batch costs a step as much context */
    FULL_POOL_FACTOR = 4,         /* tokens that must wait for room cost this many times more */
};

typedef struct way {
    bt_router_placement placement;
    uint32_t rank;
    uint64_t cost;
    uint32_t n_requests; /* of both workers: breaks ties */
} way;

static bool can_prefill(const bt_router_worker_view *worker)
{
    return worker->ready && worker->role != BT_ROUTER_WORKER_ROLE_DECODE;
}

static bool can_decode(const bt_router_worker_view *worker)
{
    return worker->ready && worker->role != BT_ROUTER_WORKER_ROLE_PREFILL;
}

/* Whether the worker could hold `n_tokens` of one sequence if it had nothing else. */
static bool fits(const bt_router_worker_view *worker, const bt_router_policy_request *request,
                 uint64_t n_tokens)
{
    const uint64_t pool_tokens = (uint64_t)worker->n_blocks * request->block_tokens;
    return n_tokens <= worker->context_tokens && (worker->n_blocks == 0 || n_tokens <= pool_tokens);
}

static uint32_t cached_tokens(const bt_router_worker_view *worker,
                              const bt_router_policy_request *request)
{
    if (request->bypass_cache) {
        return 0;
    }
    const uint64_t tokens = (uint64_t)worker->matched_blocks * request->block_tokens;
    return tokens < request->prompt_tokens ? (uint32_t)tokens : request->prompt_tokens;
}

/* Tokens computed there before this request's first one. */
static uint64_t prefill_cost(const bt_router_worker_view *worker,
                             const bt_router_policy_request *request)
{
    return worker->queued_prefill_tokens + request->prompt_tokens - cached_tokens(worker, request);
}

/* What decoding there costs: the context that a step reads, and room. */
static uint64_t decode_cost(const bt_router_worker_view *worker,
                            const bt_router_policy_request *request)
{
    uint64_t cost = worker->live_tokens + (uint64_t)worker->n_requests * STEP_TOKENS_PER_REQUEST;
    if (worker->n_blocks > 0) {
        const uint64_t need = request->prompt_tokens - cached_tokens(worker, request) + 1;
        const uint64_t room = (uint64_t)worker->n_free_blocks * request->block_tokens;
        if (need > room) {
            cost += (need - room) * FULL_POOL_FACTOR;
        }
    }
    return cost;
}

static uint64_t pull_cost(const bt_router_worker_view *d, const bt_router_policy_request *request)
{
    return (request->prompt_tokens - cached_tokens(d, request)) / PULL_TOKENS_PER_COMPUTED;
}

static bool may_pair(const bt_router_worker_view *a, const bt_router_worker_view *b,
                     const bt_router_policy_options *options)
{
    return options->allow_mixed_numerics || a->numerics == b->numerics;
}

/* The cheapest prefill worker for d, among those that failed before or the others; n: none.
 * *all_full: there are some, but all of them are full. A worker of role BOTH is no half of a
 * split request: it serves no KV to others. */
static size_t cheapest_prefill(const bt_router_worker_view *workers, size_t n_workers, size_t d_idx,
                               const bt_router_policy_request *request,
                               const bt_router_policy_options *options, bool excluded,
                               bool *all_full)
{
    size_t best = n_workers;
    bool some_full = false;
    for (size_t i = 0; i < n_workers; i++) {
        const bt_router_worker_view *p = &workers[i];
        if (p->role != BT_ROUTER_WORKER_ROLE_PREFILL || !p->ready || p->excluded != excluded ||
            !fits(p, request, request->prompt_tokens) || !may_pair(p, &workers[d_idx], options)) {
            continue;
        }
        if (p->full) {
            some_full = true;
            continue;
        }
        if (best == n_workers) {
            best = i;
            continue;
        }
        const uint64_t cost = prefill_cost(p, request);
        const uint64_t best_cost = prefill_cost(&workers[best], request);
        if (cost < best_cost || (cost == best_cost && p->n_requests < workers[best].n_requests)) {
            best = i;
        }
    }
    *all_full = some_full && best == n_workers;
    return best;
}

static way whole_way(const bt_router_worker_view *workers, size_t d_idx,
                     const bt_router_policy_request *request, uint32_t rank)
{
    const bt_router_worker_view *d = &workers[d_idx];
    const uint32_t matched = request->bypass_cache ? 0 : d->matched_blocks;
    return (way){
        .placement = {.kind = BT_ROUTER_PLACEMENT_WHOLE,
                      .d_idx = (uint32_t)d_idx,
                      .p_idx = (uint32_t)d_idx,
                      .p_matched_blocks = matched,
                      .d_matched_blocks = matched},
        .rank = rank,
        .cost = prefill_cost(d, request) + decode_cost(d, request),
        .n_requests = d->n_requests,
    };
}

static way split_way(const bt_router_worker_view *workers, size_t d_idx, size_t p_idx,
                     const bt_router_policy_request *request, uint32_t rank)
{
    const bt_router_worker_view *d = &workers[d_idx];
    const bt_router_worker_view *p = &workers[p_idx];
    return (way){
        .placement = {.kind = BT_ROUTER_PLACEMENT_SPLIT,
                      .d_idx = (uint32_t)d_idx,
                      .p_idx = (uint32_t)p_idx,
                      .p_matched_blocks = request->bypass_cache ? 0 : p->matched_blocks,
                      .d_matched_blocks = request->bypass_cache ? 0 : d->matched_blocks},
        .rank = rank,
        .cost = prefill_cost(p, request) + pull_cost(d, request) + decode_cost(d, request),
        .n_requests = d->n_requests + p->n_requests,
    };
}

/* The best way to run the request with this decode worker. false: there is none now. */
static bool best_way(const bt_router_worker_view *workers, size_t n_workers, size_t d_idx,
                     const bt_router_policy_request *request,
                     const bt_router_policy_options *options, way *out)
{
    const bt_router_worker_view *d = &workers[d_idx];
    const uint32_t failed_before = d->excluded ? RANK_FAILED_D : 0;
    const bool rest_is_short =
        options->local_prefill && prefill_cost(d, request) < options->local_prefill_tokens;
    if (d->role == BT_ROUTER_WORKER_ROLE_BOTH || rest_is_short) {
        *out = whole_way(workers, d_idx, request, failed_before + RANK_INTENDED);
        return true;
    }
    bool all_full;
    size_t p_idx = cheapest_prefill(workers, n_workers, d_idx, request, options, false, &all_full);
    if (p_idx < n_workers) {
        *out = split_way(workers, d_idx, p_idx, request, failed_before + RANK_INTENDED);
        return true;
    }
    if (all_full) {
        return false;
    }
    if (options->local_prefill) {
        *out = whole_way(workers, d_idx, request, failed_before + RANK_LOCAL);
        return true;
    }
    p_idx = cheapest_prefill(workers, n_workers, d_idx, request, options, true, &all_full);
    if (p_idx < n_workers) {
        *out = split_way(workers, d_idx, p_idx, request, failed_before + RANK_FAILED_P);
        return true;
    }
    return false;
}

static bool is_better(const way *a, const way *b)
{
    if (a->rank != b->rank) {
        return a->rank < b->rank;
    }
    if (a->cost != b->cost) {
        return a->cost < b->cost;
    }
    return a->n_requests < b->n_requests;
}

/* A request without decode goes where its prompt is computed first. BT_ENOTFOUND: there is no
 * prefill worker for it; BT_AGAIN: all of them are full. */
static bt_status place_prefill(const bt_router_worker_view *workers, size_t n_workers,
                               const bt_router_policy_request *request,
                               const bt_router_policy_options *options, bt_router_placement *out)
{
    size_t best = n_workers;
    bool some_full = false;
    for (size_t i = 0; i < n_workers; i++) {
        const bt_router_worker_view *p = &workers[i];
        if (!can_prefill(p) || p->excluded || !fits(p, request, request->prompt_tokens) ||
            (request->has_numerics && !options->allow_mixed_numerics &&
             p->numerics != request->numerics)) {
            continue;
        }
        if (p->full) {
            some_full = true;
            continue;
        }
        if (best == n_workers || prefill_cost(p, request) < prefill_cost(&workers[best], request)) {
            best = i;
        }
    }
    if (best == n_workers) {
        return some_full ? BT_AGAIN : BT_ENOTFOUND;
    }
    const uint32_t matched = request->bypass_cache ? 0 : workers[best].matched_blocks;
    *out = (bt_router_placement){
        .kind = workers[best].role == BT_ROUTER_WORKER_ROLE_BOTH ? BT_ROUTER_PLACEMENT_WHOLE
                                                                 : BT_ROUTER_PLACEMENT_PREFILL,
        .d_idx = (uint32_t)best,
        .p_idx = (uint32_t)best,
        .p_matched_blocks = matched,
        .d_matched_blocks = matched,
    };
    return BT_OK;
}

bt_status bt_router_policy_place(const bt_router_worker_view *workers, size_t n_workers,
                                 const bt_router_policy_request *request,
                                 const bt_router_policy_options *options, bt_router_placement *out)
{
    if (request->prefill_only) {
        const bt_status status = place_prefill(workers, n_workers, request, options, out);
        if (status != BT_ENOTFOUND) {
            return status;
        }
    }
    way best = {0};
    bool found = false;
    bool too_long = false;
    bool some_fit = false;
    for (size_t i = 0; i < n_workers; i++) {
        const bt_router_worker_view *d = &workers[i];
        if (!can_decode(d) || (request->has_numerics && !options->allow_mixed_numerics &&
                               d->numerics != request->numerics)) {
            continue;
        }
        /* All that may come, or a sequence could outgrow the pool and never end. */
        const uint64_t n_new = request->max_tokens > 0 ? request->max_tokens : 1;
        if (!fits(d, request, request->prompt_tokens + n_new)) {
            too_long = true;
            continue;
        }
        some_fit = true;
        way candidate;
        if (!d->full && best_way(workers, n_workers, i, request, options, &candidate) &&
            (!found || is_better(&candidate, &best))) {
            best = candidate;
            found = true;
        }
    }
    if (found) {
        *out = best.placement;
        return BT_OK;
    }
    return too_long && !some_fit ? BT_EINVAL : BT_AGAIN;
}

bt_status bt_router_policy_move(const bt_router_worker_view *workers, size_t n_workers,
                                const bt_router_policy_request *request,
                                const bt_router_policy_options *options, uint32_t *d_idx)
{
    size_t best = n_workers;
    uint64_t best_cost = 0;
    for (size_t i = 0; i < n_workers; i++) {
        const bt_router_worker_view *d = &workers[i];
        const uint64_t room = (uint64_t)d->n_free_blocks * request->block_tokens;
        if (!can_decode(d) || d->excluded || d->full ||
            (!options->allow_mixed_numerics && d->numerics != request->numerics) ||
            !fits(d, request, (uint64_t)request->prompt_tokens + request->max_tokens) ||
            room < (uint64_t)request->prompt_tokens + request->block_tokens) {
            continue;
        }
        const uint64_t cost = pull_cost(d, request) + decode_cost(d, request);
        if (best == n_workers || cost < best_cost ||
            (cost == best_cost && d->n_requests < workers[best].n_requests)) {
            best = i;
            best_cost = cost;
        }
    }
    *d_idx = (uint32_t)best;
    return best == n_workers ? BT_AGAIN : BT_OK;
}

bool bt_router_policy_can_serve(const bt_router_worker_view *workers, size_t n_workers,
                                const bt_router_policy_options *options)
{
    const bt_router_policy_request one = {.prompt_tokens = 1, .max_tokens = 1, .block_tokens = 16};
    bt_router_placement unused;
    return bt_router_policy_place(workers, n_workers, &one, options, &unused) == BT_OK;
}

uint32_t bt_router_policy_context_max(const bt_router_worker_view *workers, size_t n_workers,
                                      const bt_router_policy_options *options)
{
    const bt_router_policy_request one = {.prompt_tokens = 1, .max_tokens = 1, .block_tokens = 16};
    uint32_t longest = 0;
    for (size_t i = 0; i < n_workers; i++) {
        way found;
        if (!can_decode(&workers[i]) || !best_way(workers, n_workers, i, &one, options, &found)) {
            continue;
        }
        uint64_t most = workers[i].context_tokens;
        const uint64_t pool_tokens = (uint64_t)workers[i].n_blocks * one.block_tokens;
        if (pool_tokens > 0 && pool_tokens < most) {
            most = pool_tokens;
        }
        longest = most > longest ? (uint32_t)most : longest;
    }
    return longest;
}
