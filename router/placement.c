/* SPDX-License-Identifier: Apache-2.0 */
/* Where a request runs: the policy chooses among the workers in the view, and their runs are sent
 * at once under one (id, attempt). What workers say of it is heard in events.c; what follows when
 * one fails is in recovery.c. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "router/router_int.h"

static const int64_t ms_ns = 1000000;

/* ------------------------------------------------------------------------------- view ---- */

size_t bt_router_view(const bt_router *router, uint32_t model_idx, bool need_room,
                      bt_router_worker_view views[BT_ROUTER_WORKERS_MAX],
                      uint32_t slots[BT_ROUTER_WORKERS_MAX])
{
    const bt_router_view_options options = {
        .model_idx = model_idx,
        .now_ns = bt_clock_now_ns(),
        .silence_ns = (int64_t)router->options.worker_timeout_ms * ms_ns,
        .need_room = need_room,
        .tpot_limit_ns = router->tpot_limit_ns,
    };
    return bt_router_registry_view(router->registry, &options, views, slots);
}

bt_router_policy_options bt_router_policy_options_of(const bt_router *router)
{
    return (bt_router_policy_options){
        .local_prefill = router->options.local_prefill,
        .local_prefill_tokens = router->options.local_prefill_tokens,
        .allow_mixed_numerics = router->options.allow_mixed_numerics,
    };
}

bool bt_router_model_is_ready(const bt_router *router, uint32_t model_idx)
{
    bt_router_worker_view views[BT_ROUTER_WORKERS_MAX];
    uint32_t slots[BT_ROUTER_WORKERS_MAX];
    const size_t n = bt_router_view(router, model_idx, false, views, slots);
    const bt_router_policy_options options = bt_router_policy_options_of(router);
    return bt_router_policy_can_serve(views, n, &options);
}

bt_status bt_router_describe_shortage(bt_router *router, uint32_t model_idx, bt_error *err)
{
    bt_router_worker_view views[BT_ROUTER_WORKERS_MAX];
    uint32_t slots[BT_ROUTER_WORKERS_MAX];
    const size_t n = bt_router_view(router, model_idx, false, views, slots);
    uint32_t n_ready[3] = {0};
    for (size_t i = 0; i < n; i++) {
        n_ready[views[i].role] += views[i].ready;
    }
    const bt_router_policy_options options = bt_router_policy_options_of(router);
    const char *model = bt_router_models_at(router->models, model_idx)->name;
    if (bt_router_policy_can_serve(views, n, &options)) {
        return bt_error_set(err, BT_EEXHAUSTED,
                            "all workers of model '%.60s' have as many requests as they take",
                            model);
    }
    return bt_error_set(err, BT_EPEER,
                        "no workers are ready for model '%.60s': there are %" PRIu32 " prefill, "
                        "%" PRIu32 " decode and %" PRIu32 " combined ones",
                        model, n_ready[BT_ROUTER_WORKER_ROLE_PREFILL],
                        n_ready[BT_ROUTER_WORKER_ROLE_DECODE], n_ready[BT_ROUTER_WORKER_ROLE_BOTH]);
}

/* How much of this prompt each worker holds. Hashes depend on the numerics id, so the map is
 * asked once for each. */
void bt_router_request_match(const bt_router_request *request, bt_router_worker_view *views,
                             const uint32_t *slots, size_t n)
{
    const bt_router *router = request->router;
    bool done[BT_ROUTER_WORKERS_MAX] = {false};
    uint32_t matched[BT_ROUTER_WORKERS_MAX];
    for (size_t i = 0; i < n; i++) {
        if (done[i]) {
            continue;
        }
        const bt_router_worker *worker = bt_router_registry_at(router->registry, slots[i]);
        const bt_router_chain *chain =
            bt_router_prompt_chain(request->prompt, worker->hello.numerics_id);
        memset(matched, 0, sizeof matched);
        if (chain != NULL) {
            bt_router_prefix_map_match(router->prefix_map, chain->ids, chain->n, matched);
        }
        for (size_t k = i; k < n; k++) {
            if (views[k].numerics == views[i].numerics) {
                views[k].matched_blocks = matched[slots[k]];
                done[k] = true;
            }
        }
    }
}

bool bt_router_request_has_failed(const bt_router_request *request, uint64_t session)
{
    const uint32_t n = request->n_failed < BT_ROUTER_FAILED_MAX ? request->n_failed
                                                                : (uint32_t)BT_ROUTER_FAILED_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (request->failed[i] == session) {
            return true;
        }
    }
    return false;
}

void bt_router_request_note_failed(bt_router_request *request, uint64_t session)
{
    if (session != 0 && !bt_router_request_has_failed(request, session)) {
        request->failed[request->n_failed++ % BT_ROUTER_FAILED_MAX] = session;
    }
}

typedef struct choice {
    bt_router_placement_kind kind;
    bt_router_worker *p; /* NULL unless SPLIT or PREFILL */
    bt_router_worker *d; /* NULL with PREFILL */
    uint32_t p_matched_tokens;
} choice;

uint32_t bt_router_request_count_output(const bt_router_request *request)
{
    uint32_t n;
    (void)bt_router_reply_tokens(request->reply, &n);
    return n;
}

bool bt_router_request_wants_echo(const bt_router_request *request)
{
    return request->sampling.echo && bt_router_reply_lacks_prompt(request->reply);
}

/* BT_ENOTFOUND: a stream that has begun fits nobody who is here: none of its numerics is, or none
 * that could hold it. Others need not wait behind it. */
static bt_status choose(bt_router_request *request, uint32_t n_tokens, choice *out)
{
    bt_router *router = request->router;
    bt_router_worker_view views[BT_ROUTER_WORKERS_MAX];
    uint32_t slots[BT_ROUTER_WORKERS_MAX];
    const size_t n = bt_router_view(router, request->model_idx, true, views, slots);
    const bt_sampling *s = &request->sampling;
    const bool scores_prompt = bt_router_request_wants_echo(request) && s->logprobs;
    if (!scores_prompt) {
        bt_router_request_match(request, views, slots, n);
    }
    bt_router_policy_request wanted = {
        .prompt_tokens = n_tokens,
        .max_tokens = s->max_tokens - (n_tokens - request->n_prompt),
        .block_tokens = BT_BLOCK_HASH_TOKENS,
        .prefill_only = s->max_tokens <= 1 + (n_tokens - request->n_prompt),
        .bypass_cache = scores_prompt,
    };
    const bool has_begun = bt_router_request_count_output(request) > 0;
    for (size_t i = 0; i < n; i++) {
        const bt_router_worker *worker = bt_router_registry_at(router->registry, slots[i]);
        views[i].excluded = bt_router_request_has_failed(request, worker->session);
        if (has_begun && memcmp(worker->hello.numerics_id, request->summary.numerics_id,
                                BT_LINK_ID_BYTES) == 0) {
            wanted.has_numerics = true;
            wanted.numerics = views[i].numerics;
        }
    }
    if (has_begun && !wanted.has_numerics && !router->options.allow_mixed_numerics) {
        return BT_ENOTFOUND;
    }
    const bt_router_policy_options options = bt_router_policy_options_of(router);
    bt_router_placement placement;
    const bt_status status = bt_router_policy_place(views, n, &wanted, &options, &placement);
    if (status == BT_EINVAL && has_begun) {
        return BT_ENOTFOUND; /* too long for those who are left */
    }
    if (status != BT_OK) {
        return status;
    }
    const bool has_p = placement.kind != BT_ROUTER_PLACEMENT_WHOLE;
    const bool has_d = placement.kind != BT_ROUTER_PLACEMENT_PREFILL;
    *out = (choice){
        .kind = placement.kind,
        .p = has_p ? bt_router_registry_at(router->registry, slots[placement.p_idx]) : NULL,
        .d = has_d ? bt_router_registry_at(router->registry, slots[placement.d_idx]) : NULL,
        .p_matched_tokens = placement.p_matched_blocks * BT_BLOCK_HASH_TOKENS,
    };
    return BT_OK;
}

/* ------------------------------------------------------------------------------- legs ---- */

void bt_router_leg_open(bt_router_leg *leg, bt_router_worker *worker, uint32_t attempt,
                        uint64_t prefill_tokens, uint64_t live_tokens)
{
    *leg = (bt_router_leg){
        .worker = worker,
        .open = true,
        .used = true,
        .attempt = attempt,
        .session = worker->session,
        .prefill_tokens = prefill_tokens,
        .live_tokens = live_tokens,
    };
    memcpy(leg->name, worker->hello.kv.name, sizeof leg->name);
    memcpy(leg->numerics_id, worker->hello.numerics_id, sizeof leg->numerics_id);
    bt_router_registry_bind(worker, prefill_tokens, live_tokens);
}

void bt_router_leg_unbind(bt_router_request *request, bt_router_leg *leg)
{
    if (!leg->open) {
        return;
    }
    bt_router_registry_unbind(leg->worker, leg->prefill_tokens, leg->live_tokens);
    if (leg->decoding) {
        bt_router_registry_decoding(leg->worker, false);
    }
    leg->open = false;
    leg->decoding = false;
    leg->worker = NULL;
    bt_wake_ring(request->router->queue_wake);
}

bool bt_router_request_has_open_leg(const bt_router_request *request)
{
    for (int i = 0; i < BT_ROUTER_LEGS; i++) {
        if (request->legs[i].open) {
            return true;
        }
    }
    return false;
}

void bt_router_request_close_legs(bt_router_request *request)
{
    bt_router_move_end(request);
    for (int i = 0; i < BT_ROUTER_LEGS; i++) {
        bt_router_leg *leg = &request->legs[i];
        if (leg->open) {
            bt_link_router_cancel(leg->worker->peer, request->id, leg->attempt);
            bt_router_leg_unbind(request, leg);
        }
    }
}

/* ------------------------------------------------------------------------------ place ---- */

bt_status bt_router_request_collect(const bt_router_request *request, const int32_t **tokens,
                                    uint32_t *n, int32_t **to_free)
{
    uint32_t n_prompt;
    uint32_t n_output;
    const int32_t *prompt = bt_router_prompt_tokens(request->prompt, &n_prompt);
    const int32_t *output = bt_router_reply_tokens(request->reply, &n_output);
    if (bt_router_request_wants_echo(request)) {
        n_output = 0;
    }
    *to_free = NULL;
    *tokens = prompt;
    *n = n_prompt + n_output;
    if (n_output > 0) {
        int32_t *both = malloc(*n * sizeof *both);
        if (both == NULL) {
            return BT_ENOMEM;
        }
        memcpy(both, prompt, n_prompt * sizeof *both);
        memcpy(both + n_prompt, output, n_output * sizeof *both);
        *tokens = both;
        *to_free = both;
    }
    return BT_OK;
}

bt_link_run bt_router_request_run(const bt_router_request *request)
{
    const int64_t left_ns = request->deadline_ns - bt_clock_now_ns();
    return (bt_link_run){
        .id = request->id,
        .n_prompt = request->n_prompt,
        .deadline_left_ns = left_ns > 0 ? left_ns : 1,
        .priority = request->priority,
        .ttft_target_ms = request->ttft_target_ms,
        .tpot_target_ms = request->tpot_target_ms,
        .label = request->label,
    };
}

bt_status bt_router_send_run(bt_router_worker *worker, const bt_link_run *run)
{
    const bt_status status = bt_link_router_run(worker->peer, run);
    if (status == BT_EPEER || status == BT_AGAIN) {
        bt_router_registry_unreachable(worker);
    }
    return status;
}

/* Sends one run and opens its leg. */
static bt_status send_run(bt_router_request *request, bt_router_worker *worker,
                          const bt_link_run *run, int leg_idx, uint64_t prefill_tokens)
{
    const bt_status status = bt_router_send_run(worker, run);
    if (status != BT_OK) {
        bt_router_request_note_failed(request, worker->session);
        return status;
    }
    const uint64_t live = leg_idx == BT_ROUTER_LEG_D ? run->n_tokens : 0;
    bt_router_leg_open(&request->legs[leg_idx], worker, run->attempt, prefill_tokens, live);
    return BT_OK;
}

static bt_status send_runs(bt_router_request *request, const choice *c, const int32_t *tokens,
                           uint32_t n_tokens)
{
    bt_sampling sampling = request->sampling;
    sampling.echo = bt_router_request_wants_echo(request);
    const uint64_t rest =
        n_tokens - (c->p_matched_tokens < n_tokens ? c->p_matched_tokens : n_tokens);
    bt_link_run run = bt_router_request_run(request);
    run.attempt = request->attempt;
    run.tokens = tokens;
    run.n_tokens = n_tokens;
    run.sampling = &sampling;
    bt_status status = BT_OK;
    if (c->p != NULL) {
        const bt_router_chain *chain =
            bt_router_prompt_chain(request->prompt, c->p->hello.numerics_id);
        if (chain == NULL) {
            return BT_ENOMEM;
        }
        run.mode = BT_LINK_MODE_PREFILL;
        run.chain_root = chain->root;
        run.has_peer = c->d != NULL;
        if (c->d != NULL) {
            run.peer = c->d->hello.kv;
        }
        status = send_run(request, c->p, &run, BT_ROUTER_LEG_P, rest);
    }
    if (status == BT_OK && c->d != NULL) {
        const bt_router_chain *chain =
            bt_router_prompt_chain(request->prompt, c->d->hello.numerics_id);
        if (chain == NULL) {
            return BT_ENOMEM;
        }
        run.mode = c->p != NULL ? BT_LINK_MODE_DECODE : BT_LINK_MODE_WHOLE;
        run.chain_root = chain->root;
        run.has_peer = c->p != NULL;
        if (c->p != NULL) {
            run.peer = c->p->hello.kv;
            sampling.echo = false; /* P reports the prompt */
        }
        status = send_run(request, c->d, &run, BT_ROUTER_LEG_D, c->p != NULL ? 0 : rest);
    }
    return status;
}

static void note_numerics(bt_router_request *request, const choice *c)
{
    const bt_router_worker *first = c->p != NULL ? c->p : c->d;
    if (bt_router_request_count_output(request) > 0 &&
        memcmp(request->summary.numerics_id, first->hello.numerics_id, BT_LINK_ID_BYTES) != 0) {
        request->summary.mixed_numerics = true;
    }
    memcpy(request->summary.numerics_id, first->hello.numerics_id, BT_LINK_ID_BYTES);
    request->summary.has_numerics = true;
    if (c->p != NULL && c->d != NULL && c->p->numerics != c->d->numerics) {
        request->summary.mixed_numerics = true;
    }
}

/* One attempt. BT_AGAIN, BT_ENOTFOUND, BT_EINVAL: as of choose(); else what the link said. */
static bt_status try_once(bt_router_request *request)
{
    const int32_t *tokens;
    uint32_t n_tokens;
    int32_t *to_free;
    bt_status status = bt_router_request_collect(request, &tokens, &n_tokens, &to_free);
    if (status != BT_OK) {
        return status;
    }
    choice c;
    status = choose(request, n_tokens, &c);
    if (status == BT_OK) {
        request->attempt++;
        request->n_fruitless++;
        request->n_before = bt_router_request_count_output(request);
        request->n_resumed = n_tokens - request->n_prompt;
        request->decode_done = false;
        memset(request->legs, 0, sizeof request->legs);
        note_numerics(request, &c);
        status = send_runs(request, &c, tokens, n_tokens);
        if (status == BT_AGAIN) {
            status = BT_EPEER; /* its outbox is full: this worker does not read */
        }
        if (status != BT_OK) {
            bt_router_request_close_legs(request);
        }
    }
    free(to_free);
    return status;
}

bt_status bt_router_request_place(bt_router_request *request)
{
    const bt_router_options *options = &request->router->options;
    while (request->n_fruitless < options->attempts_max) {
        const bt_status status = try_once(request);
        switch (status) {
        case BT_OK:
            request->state = BT_ROUTER_REQUEST_PREFILLING;
            bt_router_report_placed(request);
            bt_router_note_hot(request);
            if (request->first_token_ns == 0) {
                request->placed_ns = bt_clock_now_ns();
            }
            bt_router_request_arm(request);
            if (request->attempt == 1 && bt_router_reply_prompt_count(request->reply) > 0) {
                bt_router_request_notify(request); /* the echoed prompt */
            }
            return BT_OK;
        case BT_AGAIN:
        case BT_ENOTFOUND:
            return status;
        case BT_EPEER:
            request->last_failure_status =
                bt_error_set(&request->last_failure, status, "a worker could not be reached");
            break;
        case BT_EINVAL:
            bt_router_request_fail(request, BT_EINVAL,
                                   "the prompt has %" PRIu32 " tokens: more than any worker that "
                                   "is ready can hold",
                                   request->n_prompt);
            return BT_OK;
        case BT_EEXHAUSTED:
            bt_router_request_fail(request, BT_EINVAL,
                                   "the request is too large to be sent to a worker");
            return BT_OK;
        default:
            bt_router_request_fail(request, status, "the router could not place the request: %s",
                                   bt_status_text(status));
            return BT_OK;
        }
    }
    bt_router_request_give_up(request);
    return BT_OK;
}
