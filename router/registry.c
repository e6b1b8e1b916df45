/* SPDX-License-Identifier: Apache-2.0 */
/* A fixed table of slots; searching it is a scan, since it is short and asked rarely. A
 * worker's `numerics` is the lowest slot of those with the same numerics id when it attached,
 * or of its own: equal ids have equal numbers as long as one of them is attached. */
#include "router/registry.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

enum {
    PROMPTS_MIN = 2, /* that a worker has at a time, however long: they share its steps */
    STEPS_AHEAD = 2, /* of prompts it has in its queue: then it never waits for the router */
};

/* Steps are kept below this share of the limit: the time to the second token counts as well. */
static const double STEP_SHARE = 0.8;

/* A step counts as so many expected ones at most: one in which the worker was stopped tells little
 * of the next. Before there was any, nothing was expected: one alone says nothing yet, and what the
 * first ones said is forgotten when one of the next shows that they were so much too long. */
static const double STEPS_PER_STEP_MAX = 8;
static const double STEPS_FIRST = 4;
static const double STEPS_MIN = 1.5; /* weight: two of them */

struct bt_router_registry {
    uint64_t n_sessions;
    uint32_t n_workers;
    bt_router_worker workers[BT_ROUTER_WORKERS_MAX];
};

bt_status bt_router_registry_create(bt_router_registry **out)
{
    bt_router_registry *registry = calloc(1, sizeof *registry);
    if (registry == NULL) {
        return BT_ENOMEM;
    }
    for (uint32_t i = 0; i < BT_ROUTER_WORKERS_MAX; i++) {
        registry->workers[i].slot = i;
    }
    *out = registry;
    return BT_OK;
}

void bt_router_registry_destroy(bt_router_registry *registry)
{
    free(registry);
}

static bool is_free(const bt_router_worker *worker)
{
    return worker->session == 0;
}

static bool same_numerics(const bt_link_hello *a, const bt_link_hello *b)
{
    return memcmp(a->numerics_id, b->numerics_id, BT_LINK_ID_BYTES) == 0;
}

/* A number that no worker of another numerics id has. */
static uint32_t numerics_of(const bt_router_registry *registry, const bt_link_hello *hello)
{
    bool taken[BT_ROUTER_WORKERS_MAX] = {false};
    for (uint32_t i = 0; i < BT_ROUTER_WORKERS_MAX; i++) {
        const bt_router_worker *other = &registry->workers[i];
        if (is_free(other)) {
            continue;
        }
        if (same_numerics(&other->hello, hello)) {
            return other->numerics;
        }
        taken[other->numerics] = true;
    }
    uint32_t number = 0;
    while (taken[number]) {
        number++;
    }
    return number;
}

bt_status bt_router_registry_add(bt_router_registry *registry, bt_link_peer *peer,
                                 const bt_link_hello *hello, uint32_t model_idx, int64_t now_ns,
                                 bt_router_worker **out, bt_error *err)
{
    if (hello->block_tokens != BT_BLOCK_HASH_TOKENS) {
        return bt_error_set(err, BT_EMISMATCH,
                            "worker '%s' has blocks of %u tokens, this router knows only %d",
                            hello->kv.name, hello->block_tokens, (int)BT_BLOCK_HASH_TOKENS);
    }
    if (registry->n_workers == BT_ROUTER_WORKERS_MAX) {
        return bt_error_set(err, BT_EEXHAUSTED,
                            "worker '%s' is refused: %d workers are attached, that is the most",
                            hello->kv.name, (int)BT_ROUTER_WORKERS_MAX);
    }
    uint32_t slot = 0;
    while (!is_free(&registry->workers[slot])) {
        slot++;
    }
    const uint32_t numerics = numerics_of(registry, hello);
    registry->workers[slot] = (bt_router_worker){
        .slot = slot,
        .session = ++registry->n_sessions,
        .peer = peer,
        .hello = *hello,
        .model_idx = model_idx,
        .numerics = numerics,
        .attached_ns = now_ns,
        .report_ns = now_ns,
    };
    registry->n_workers++;
    *out = &registry->workers[slot];
    return BT_OK;
}

void bt_router_registry_remove(bt_router_registry *registry, bt_router_worker *worker)
{
    BT_ASSERT(!is_free(worker));
    BT_ASSERT(worker->n_requests == 0);
    BT_ASSERT(registry->n_workers > 0);
    registry->n_workers--;
    *worker = (bt_router_worker){.slot = worker->slot};
}

void bt_router_registry_unreachable(bt_router_worker *worker)
{
    worker->unreachable = true;
}

/* A sample each ten seconds, so that the oldest kept one is a minute old. */
static void sample_evictions(bt_router_worker *worker, uint64_t n, int64_t now_ns)
{
    const uint32_t newest = worker->n_evictions + BT_ROUTER_EVICTION_SAMPLES - 1;
    const int64_t step_ns = INT64_C(60000000000) / (BT_ROUTER_EVICTION_SAMPLES - 1);
    if (worker->n_evictions == 0 ||
        now_ns - worker->evictions[newest % BT_ROUTER_EVICTION_SAMPLES].time_ns >= step_ns) {
        worker->evictions[worker->n_evictions++ % BT_ROUTER_EVICTION_SAMPLES] =
            (bt_router_eviction_sample){.time_ns = now_ns, .n = n};
    }
}

uint64_t bt_router_worker_evicted_last_minute(const bt_router_worker *worker)
{
    if (worker->n_evictions == 0) {
        return 0;
    }
    const uint32_t oldest =
        worker->n_evictions <= BT_ROUTER_EVICTION_SAMPLES ? 0 : worker->n_evictions;
    return worker->load.blocks_evicted - worker->evictions[oldest % BT_ROUTER_EVICTION_SAMPLES].n;
}

static void learn_step(bt_router_step_line *line, uint32_t n, uint64_t step_ns)
{
    const double expected_ns = bt_router_step_line_at(line, n);
    const double most_ns = STEPS_PER_STEP_MAX * expected_ns;
    if (line->weight < STEPS_FIRST && expected_ns > STEPS_PER_STEP_MAX * (double)step_ns) {
        *line = (bt_router_step_line){0};
    }
    const bool is_odd = most_ns > 0 && (double)step_ns > most_ns;
    bt_router_step_line_add(line, n, is_odd ? (uint64_t)most_ns : step_ns);
}

void bt_router_registry_report(bt_router_worker *worker, const bt_link_load *load, int64_t now_ns)
{
    sample_evictions(worker, load->blocks_evicted, now_ns);
    if (load->decode_tokens > worker->load.decode_tokens && load->requests_decoding > 0 &&
        load->last_step_ns > 0) {
        learn_step(&worker->step_line, load->requests_decoding, load->last_step_ns);
    }
    worker->load = *load;
    worker->unreachable = false;
    worker->has_load = true;
    worker->report_ns = now_ns;
}

void bt_router_registry_bind(bt_router_worker *worker, uint64_t prefill_tokens,
                             uint64_t live_tokens)
{
    worker->n_requests++;
    worker->n_prefilling += prefill_tokens > 0;
    worker->prefill_tokens += prefill_tokens;
    worker->live_tokens += live_tokens;
}

void bt_router_registry_unbind(bt_router_worker *worker, uint64_t prefill_tokens,
                               uint64_t live_tokens)
{
    BT_ASSERT(worker->n_requests > 0);
    BT_ASSERT(worker->prefill_tokens >= prefill_tokens);
    BT_ASSERT(worker->live_tokens >= live_tokens);
    BT_ASSERT(worker->n_prefilling >= (prefill_tokens > 0));
    worker->n_requests--;
    worker->n_prefilling -= prefill_tokens > 0;
    worker->prefill_tokens -= prefill_tokens;
    worker->live_tokens -= live_tokens;
}

void bt_router_registry_decoding(bt_router_worker *worker, bool begins)
{
    BT_ASSERT(begins || worker->n_decoding > 0);
    worker->n_decoding = begins ? worker->n_decoding + 1 : worker->n_decoding - 1;
}

bt_router_worker *bt_router_registry_at(const bt_router_registry *registry, uint32_t slot)
{
    BT_ASSERT(slot < BT_ROUTER_WORKERS_MAX);
    const bt_router_worker *worker = &registry->workers[slot];
    return is_free(worker) ? NULL : (bt_router_worker *)worker;
}

uint32_t bt_router_registry_count(const bt_router_registry *registry)
{
    return registry->n_workers;
}

bool bt_router_worker_is_alive(const bt_router_worker *worker, int64_t now_ns, int64_t silence_ns)
{
    return !is_free(worker) && !worker->unreachable && now_ns - worker->report_ns <= silence_ns &&
           !bt_router_worker_is_draining(worker) && worker->load.stuck_ns == 0;
}

bool bt_router_worker_is_draining(const bt_router_worker *worker)
{
    return worker->load.draining || worker->drain_asked;
}

static bt_router_worker_role role_of(const bt_link_hello *hello)
{
    switch (hello->role) {
    case BT_LINK_ROLE_PREFILL:
        return BT_ROUTER_WORKER_ROLE_PREFILL;
    case BT_LINK_ROLE_DECODE:
        return BT_ROUTER_WORKER_ROLE_DECODE;
    case BT_LINK_ROLE_BOTH:
    default:
        return BT_ROUTER_WORKER_ROLE_BOTH;
    }
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Sequences that may decode there at a time; 0: as many as it takes, which wait on it. */
static uint32_t places_of(const bt_router_worker *worker, const bt_router_view_options *options)
{
    /* The steps of a combined worker have prompts in them: they tell nothing about sequences. */
    if (worker->hello.role != BT_LINK_ROLE_DECODE || options->tpot_limit_ns <= 0) {
        return 0;
    }
    const uint32_t n_max =
        worker->load.running_max > 0 ? worker->load.running_max : worker->hello.requests_max;
    return bt_router_step_line_places(&worker->step_line,
                                      STEP_SHARE * (double)options->tpot_limit_ns, n_max);
}

/* Sequences that decode there, and half of those that are on the way: others will have ended when
 * they arrive. */
static uint64_t taken_of(const bt_router_worker *worker)
{
    const uint64_t n_coming = worker->n_requests - worker->n_decoding;
    return max_u64(worker->n_decoding, worker->load.requests_decoding) + (n_coming + 1) / 2;
}

/* It has as many requests, prompts or sequences as it takes for now. Its queue of prompts is kept
 * short, so that what waits can be ordered, cancelled and placed by this router. */
static bool is_full(const bt_router_worker *worker, const bt_router_worker_view *view)
{
    const bt_link_hello *hello = &worker->hello;
    if (hello->requests_max > 0 && view->n_requests >= hello->requests_max) {
        return true;
    }
    if (view->n_places > 0 && view->n_taken >= view->n_places) {
        return true;
    }
    return hello->step_tokens_max > 0 && worker->n_prefilling >= PROMPTS_MIN &&
           view->queued_prefill_tokens >= (uint64_t)STEPS_AHEAD * hello->step_tokens_max;
}

static bt_router_worker_view view_of(const bt_router_worker *worker,
                                     const bt_router_view_options *options)
{
    const bt_link_hello *hello = &worker->hello;
    const bt_link_load *load = &worker->load;
    const uint64_t reported = (uint64_t)load->requests_running + load->requests_waiting;
    const uint64_t n_requests = max_u64(worker->n_requests, reported);
    const uint32_t n_free = load->blocks_free + load->blocks_cached;
    const uint32_t n_live =
        worker->has_load && n_free < hello->pool_blocks ? hello->pool_blocks - n_free : 0;
    const uint64_t n_taken = taken_of(worker);
    bt_router_worker_view view = {
        .role = role_of(hello),
        .ready = bt_router_worker_is_alive(worker, options->now_ns, options->silence_ns),
        .numerics = worker->numerics,
        .context_tokens = hello->context_tokens,
        .queued_prefill_tokens = max_u64(worker->prefill_tokens, load->waiting_tokens),
        .live_tokens = max_u64(worker->live_tokens, (uint64_t)n_live * hello->block_tokens),
        .n_requests = n_requests > UINT32_MAX ? UINT32_MAX : (uint32_t)n_requests,
        .n_blocks = hello->pool_blocks,
        .n_free_blocks = worker->has_load ? n_free : hello->pool_blocks,
        .prefill_token_ns = load->prefill_token_ns,
        .n_taken = n_taken > UINT32_MAX ? UINT32_MAX : (uint32_t)n_taken,
        .n_places = places_of(worker, options),
    };
    if (worker->step_line.weight > STEPS_MIN) {
        view.step_ns = (uint64_t)bt_router_step_line_at(&worker->step_line, view.n_taken + 1);
    }
    view.full = options->need_room && is_full(worker, &view);
    return view;
}

size_t bt_router_registry_view(const bt_router_registry *registry,
                               const bt_router_view_options *options,
                               bt_router_worker_view views[BT_ROUTER_WORKERS_MAX],
                               uint32_t slots[BT_ROUTER_WORKERS_MAX])
{
    size_t n = 0;
    for (uint32_t i = 0; i < BT_ROUTER_WORKERS_MAX; i++) {
        const bt_router_worker *worker = &registry->workers[i];
        if (!is_free(worker) && worker->model_idx == options->model_idx) {
            views[n] = view_of(worker, options);
            slots[n] = i;
            n++;
        }
    }
    return n;
}

size_t bt_router_registry_numerics_ids(const bt_router_registry *registry, uint32_t model_idx,
                                       size_t n_max, uint8_t (*ids)[BT_LINK_ID_BYTES])
{
    bool seen[BT_ROUTER_WORKERS_MAX] = {false};
    size_t n = 0;
    for (uint32_t i = 0; i < BT_ROUTER_WORKERS_MAX && n < n_max; i++) {
        const bt_router_worker *worker = &registry->workers[i];
        if (is_free(worker) || worker->model_idx != model_idx || seen[worker->numerics]) {
            continue;
        }
        seen[worker->numerics] = true;
        memcpy(ids[n++], worker->hello.numerics_id, BT_LINK_ID_BYTES);
    }
    return n;
}
