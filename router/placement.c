/* SPDX-License-Identifier: Apache-2.0 */
/* Where a request runs and what its workers say about it.
 *
 * An attempt has up to two legs, P and D (a request that is not split has one). Both runs are
 * sent at once under one (id, attempt), and every event names them, so what an older attempt
 * still says is told apart and dropped. What a leg's end means:
 *
 *   leg, its end                          it brought no token      it brought some
 *   P  ok, goes on at D                   D decides                D decides
 *   P  ok, the first token was the last   complete                 complete
 *   P  failed or lost                     retry without this P     D decides
 *   D  ok                                 wait for P's token       complete
 *   D  failed: its peer                   retry without this P     recover without this P
 *   D  failed or lost                     retry without this D     recover without this D
 *   any: the request itself is wrong      fail                     fail
 *
 * A third leg, FROM, is the decode worker that holds a stream while D pulls it (move.c): however it
 * ends, D decides.
 *
 * "Without" is a preference: with nobody else left, the policy takes a failed worker again.
 *
 * A retry and a recovery are one thing, the next attempt: its run has the prompt and the tokens so
 * far, and its first token has the index of the next one. They are counted apart: attempts_max
 * bounds the attempts in a row that bring nothing, recoveries_max how often a stream breaks off
 * that had got on. A stream that broke off behind its last token is complete. If parts of an
 * echoed prompt are missing yet, the attempt begins from the start: what it says again is the
 * same, and dropped. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "router/router_int.h"

enum { LOGS_PER_S = 5 };

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

static void note_failed(bt_router_request *request, uint64_t session)
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

static void unbind_leg(bt_router_request *request, bt_router_leg *leg)
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
            unbind_leg(request, leg);
        }
    }
}

/* The prompt is computed: it is no load of a prefill queue any more. */
static void settle_prefill(bt_router_request *request)
{
    for (int i = 0; i < BT_ROUTER_LEGS; i++) {
        bt_router_leg *leg = &request->legs[i];
        if (leg->open && leg->prefill_tokens > 0) {
            bt_router_registry_unbind(leg->worker, leg->prefill_tokens, 0);
            bt_router_registry_bind(leg->worker, 0, 0);
            leg->prefill_tokens = 0;
            bt_wake_ring(request->router->queue_wake);
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

/* Sends one run and opens its leg. */
static bt_status send_run(bt_router_request *request, bt_router_worker *worker,
                          const bt_link_run *run, int leg_idx, uint64_t prefill_tokens)
{
    const bt_status status = bt_link_router_run(worker->peer, run);
    if (status != BT_OK) {
        note_failed(request, worker->session);
        if (status == BT_EPEER || status == BT_AGAIN) {
            bt_router_registry_unreachable(worker);
        }
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
    const int64_t left_ns = request->deadline_ns - bt_clock_now_ns();
    bt_link_run run = {
        .id = request->id,
        .attempt = request->attempt,
        .tokens = tokens,
        .n_tokens = n_tokens,
        .n_prompt = request->n_prompt,
        .sampling = &sampling,
        .deadline_left_ns = left_ns > 0 ? left_ns : 1,
        .priority = request->priority,
        .ttft_target_ms = request->ttft_target_ms,
        .tpot_target_ms = request->tpot_target_ms,
        .label = request->label,
    };
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

/* All attempts are used up. Refused for lack of room is the client's business: it may wait. */
static void give_up(bt_router_request *request)
{
    const uint32_t n_output = bt_router_request_count_output(request);
    if (n_output > 0) {
        bt_router_request_fail(request, BT_EPEER,
                               "the reply broke off after %" PRIu32 " tokens and could not be "
                               "resumed (recoveries: %" PRIu32 ", attempts: %" PRIu32 "); the last "
                               "reason: %.120s",
                               n_output, request->n_recoveries, request->attempt,
                               request->last_failure.text);
        return;
    }
    const bt_status status =
        request->last_failure_status == BT_EEXHAUSTED ? BT_EEXHAUSTED : BT_EPEER;
    bt_router_request_fail(request, status,
                           "no worker could run this request in %" PRIu32
                           " attempts; the last one: %.150s",
                           request->attempt, request->last_failure.text);
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
    give_up(request);
    return BT_OK;
}

/* ------------------------------------------------------------------------ leg's failure ---- */

/* Failures that every worker would answer alike. */
static bool is_the_requests_own(bt_status status)
{
    return status == BT_EINVAL || status == BT_ERANGE || status == BT_EUNSUPPORTED ||
           status == BT_EDEADLINE || status == BT_EPERMISSION;
}

/* What the prefill worker of the first attempt that got on said, for the usage. */
void bt_router_request_keep_report(bt_router_request *request)
{
    const bt_router_leg *p = &request->legs[BT_ROUTER_LEG_P];
    const bt_router_leg *leg = p->used ? p : &request->legs[BT_ROUTER_LEG_D];
    const bool is_first = request->n_recoveries == 0 && !request->has_first_report;
    if (is_first && leg->has_report && leg->report.status == BT_OK) {
        request->first_report = leg->report;
        request->has_first_report = true;
    }
}

static void retry(bt_router_request *request, uint64_t bad_session)
{
    bt_router *router = request->router;
    note_failed(request, bad_session);
    bt_router_report_attempt_failed(request, request->last_failure.text);
    bt_router_request_close_legs(request);
    const uint32_t n_output = bt_router_request_count_output(request);
    const bool is_recovery = n_output > request->n_before;
    if (is_recovery && request->n_recoveries >= router->options.recoveries_max) {
        give_up(request);
        return;
    }
    if (is_recovery) {
        bt_router_request_keep_report(request);
        request->n_recoveries++;
        request->n_fruitless = 0;
    }
    if (request->n_fruitless >= router->options.attempts_max) {
        give_up(request);
        return;
    }
    bt_router_report_retry(router, is_recovery);
    bt_log(BT_WARN,
           "request retried: req=%s id=%016" PRIx64 "%016" PRIx64 " attempt=%" PRIu32
           " recoveries=%" PRIu32 " generated_tokens=%" PRIu32 " why=\"%s\"",
           request->label, request->id.hi, request->id.lo, request->attempt, request->n_recoveries,
           n_output, request->last_failure.text);
    bt_router_request_enqueue(request);
    bt_wake_ring(router->queue_wake);
}

void bt_router_request_replace(bt_router_request *request, const char *why)
{
    bt_router *router = request->router;
    const uint32_t n_output = bt_router_request_count_output(request);
    if (n_output > request->n_before) {
        bt_router_request_keep_report(request);
        request->n_fruitless = 0;
    } else if (request->n_fruitless > 0) {
        request->n_fruitless--; /* it is no attempt's fault */
    }
    bt_router_report_attempt_failed(request, why);
    bt_router_request_close_legs(request);
    bt_log(BT_INFO,
           "request placed anew: req=%s attempt=%" PRIu32 " generated_tokens=%" PRIu32
           " why=\"%s\"",
           request->label, request->attempt, n_output, why);
    bt_router_request_enqueue(request);
    bt_wake_ring(router->queue_wake);
}

/* All tokens had come before their worker went, only its last word had not. */
static bool complete_if_over(bt_router_request *request)
{
    uint32_t n_output;
    const int32_t *tokens = bt_router_reply_tokens(request->reply, &n_output);
    if (n_output == 0 || bt_router_reply_has_gap(request->reply)) {
        return false;
    }
    const bool has_end = bt_router_reply_has_end(request->reply);
    if (!has_end && n_output < request->sampling.max_tokens) {
        return false;
    }
    if (has_end) {
        request->summary.has_stop_token = true;
        request->summary.stop_token = tokens[n_output - 1];
    }
    bt_router_request_complete(request, has_end ? BT_FINISH_STOP : BT_FINISH_LENGTH);
    return true;
}

/* A leg ended badly (its own report, or its worker is lost); it is unbound already. */
static void leg_failed(bt_router_request *request, int leg_idx, bt_status status, const char *text,
                       bool is_lost)
{
    if (request->state == BT_ROUTER_REQUEST_ENDING) {
        bt_router_request_check_ending(request);
        return;
    }
    BT_ASSERT(request->state == BT_ROUTER_REQUEST_PREFILLING ||
              request->state == BT_ROUTER_REQUEST_DECODING);
    const bt_router_leg *leg = &request->legs[leg_idx];
    const bt_router_leg *p = &request->legs[BT_ROUTER_LEG_P];
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    const uint32_t n_output = bt_router_request_count_output(request);
    request->last_failure_status =
        bt_error_set(&request->last_failure, status, "%s worker '%s': %.160s",
                     leg_idx == BT_ROUTER_LEG_P ? "prefill" : "decode", leg->name, text);
    if (is_the_requests_own(status)) {
        bt_router_request_fail(request, status, "%s", text);
        return;
    }
    if (leg_idx == BT_ROUTER_LEG_P && n_output > request->n_resumed && d->open &&
        !bt_router_reply_lacks_prompt(request->reply)) {
        return; /* D has the KV already, or will say that it has not */
    }
    if (complete_if_over(request)) {
        return;
    }
    const bt_router_leg *from = &request->legs[BT_ROUTER_LEG_FROM];
    const bt_router_leg *peer = from->used ? from : p;
    const bool peers_fault = leg_idx == BT_ROUTER_LEG_D && !is_lost && peer->used &&
                             n_output <= request->n_resumed + 1 && /* D was not decoding yet */
                             bt_status_scope_of(status) == BT_STATUS_SCOPE_PEER;
    if (peers_fault && peer->has_report && peer->report.draining) {
        bt_router_request_replace(request, request->last_failure.text);
        return;
    }
    retry(request, peers_fault ? peer->session : leg->session);
}

/* A leg's worker drains, and gave the run back: that is no failure of anybody's. */
static void leg_refused(bt_router_request *request, int leg_idx, const char *text)
{
    if (request->state == BT_ROUTER_REQUEST_ENDING) {
        bt_router_request_check_ending(request);
        return;
    }
    const bool has_token = bt_router_request_count_output(request) > request->n_resumed;
    if (leg_idx == BT_ROUTER_LEG_P && has_token && request->legs[BT_ROUTER_LEG_D].open &&
        !bt_router_reply_lacks_prompt(request->reply)) {
        return; /* D has the KV already, or will say that it has not */
    }
    if (!complete_if_over(request)) {
        bt_router_request_replace(request, text);
    }
}

/* ----------------------------------------------------------------------------- events ---- */

bt_router_leg *bt_router_find_leg(bt_router *router, const bt_router_worker *worker,
                                  bt_request_id id, uint32_t attempt, bt_router_request **out)
{
    bt_router_request *request = bt_router_request_find(router, id);
    if (request != NULL) {
        for (int i = 0; i < BT_ROUTER_LEGS; i++) {
            bt_router_leg *leg = &request->legs[i];
            if (leg->open && leg->worker == worker && leg->attempt == attempt) {
                *out = request;
                return leg;
            }
        }
    }
    router->counts.late_events++;
    return NULL;
}

static void check_mismatches(bt_router_request *request, const bt_router_worker *worker)
{
    const uint64_t n = bt_router_reply_mismatches(request->reply);
    if (n > request->n_mismatches) {
        bt_log_limited(&request->router->mismatch_limit, LOGS_PER_S, BT_ERROR,
                       "token differs from its duplicate: req=%s worker=%s attempt=%" PRIu32
                       " n=%" PRIu64,
                       request->label, worker->hello.kv.name, request->attempt, n);
        request->router->counts.mismatches += n - request->n_mismatches;
        request->n_mismatches = n;
    }
}

/* D said that it is through: complete, unless an earlier token is on its way from P. */
static void finish_decode(bt_router_request *request)
{
    const bt_router_leg *p = &request->legs[BT_ROUTER_LEG_P];
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    const bool has_token = bt_router_request_count_output(request) > request->n_resumed;
    const bool is_whole = (has_token || request->sampling.max_tokens == 0) &&
                          !bt_router_reply_has_gap(request->reply);
    if (is_whole) {
        request->summary.has_stop_token = d->report.has_stop_token;
        request->summary.stop_token = d->report.stop_token;
        bt_router_request_complete(request, d->report.reason);
    } else if (p->open) {
        request->decode_done = true;
    } else {
        leg_failed(request, BT_ROUTER_LEG_P, BT_EPROTOCOL, "not all of its tokens came", false);
    }
}

/* What follows from tokens; the request may be gone afterwards. */
static void after_tokens(bt_router_request *request, bool is_prompt, uint32_t n_output_before)
{
    const uint32_t n_output = bt_router_request_count_output(request);
    if (n_output > n_output_before) {
        const int64_t now_ns = bt_clock_now_ns();
        bt_router_report_tokens(request, now_ns);
        request->last_token_ns = now_ns;
    }
    if (n_output > 0 && !is_prompt) {
        if (request->state == BT_ROUTER_REQUEST_PREFILLING) {
            request->state = BT_ROUTER_REQUEST_DECODING;
            settle_prefill(request);
            bt_router_request_arm(request);
        }
        if (request->first_token_ns == 0) {
            request->first_token_ns = request->last_token_ns;
            bt_router_note_wait(request, request->first_token_ns - request->received_ns);
        }
        bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
        if (d->open && !d->decoding) {
            d->decoding = true;
            bt_router_registry_decoding(d->worker, true);
        }
    }
    const bool waits_for_echo =
        bt_router_reply_lacks_prompt(request->reply) &&
        request->legs[request->legs[BT_ROUTER_LEG_P].used ? BT_ROUTER_LEG_P : BT_ROUTER_LEG_D].open;
    if (bt_router_reply_stop_idx(request->reply) >= 0 && !waits_for_echo) {
        for (int i = 0; i < BT_ROUTER_LEGS; i++) {
            const bt_router_leg *leg = &request->legs[i];
            if (leg->open) {
                bt_link_router_cancel(leg->worker->peer, request->id, leg->attempt);
            }
        }
        bt_router_request_complete(request, BT_FINISH_STOP);
        return;
    }
    bt_error err;
    bt_router_request_count_unread(request, false);
    if (bt_router_request_check_unread(request, &err) != BT_OK) {
        bt_router_request_fail(request, BT_EABORTED, "%s", err.text);
        return;
    }
    if (request->decode_done) {
        finish_decode(request);
        return;
    }
    bt_router_request_notify(request);
}

void bt_router_on_tokens(bt_router *router, bt_router_worker *worker, const bt_link_tokens *tokens)
{
    bt_router_request *request;
    bt_router_leg *leg = bt_router_find_leg(router, worker, tokens->id, tokens->attempt, &request);
    if (leg == NULL || request->state == BT_ROUTER_REQUEST_ENDING) {
        return;
    }
    bt_status status;
    const uint32_t n_output = bt_router_request_count_output(request);
    if (tokens->is_prompt) {
        status =
            bt_router_reply_push_prompt(request->reply, tokens->first_index, tokens->results,
                                        tokens->n_results, bt_router_prompt_added(request->prompt));
    } else {
        status = bt_router_reply_push(request->reply, tokens->first_index, tokens->results,
                                      tokens->n_results);
    }
    check_mismatches(request, worker);
    if (status == BT_ENOMEM) {
        bt_router_request_fail(request, status, "the router is out of memory");
        return;
    }
    if (status != BT_OK) {
        bt_log_limited(&router->malformed_limit, LOGS_PER_S, BT_ERROR,
                       "tokens make no sense: req=%s worker=%s first_index=%" PRIu32 " n=%" PRIu32,
                       request->label, worker->hello.kv.name, tokens->first_index,
                       tokens->n_results);
        bt_link_router_cancel(worker->peer, request->id, tokens->attempt);
        const int leg_idx = (int)(leg - request->legs);
        unbind_leg(request, leg);
        leg_failed(request, leg_idx, BT_EPROTOCOL, "it sent tokens that make no sense", false);
        return;
    }
    if (request->move == BT_ROUTER_MOVE_PULLING && leg == &request->legs[BT_ROUTER_LEG_D]) {
        bt_router_move_done(request);
    }
    after_tokens(request, tokens->is_prompt, n_output);
}

/* P is through and D goes on, or the first token was the last. */
static void finish_prefill(bt_router_request *request, const bt_link_finished *finished)
{
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    const bool has_token = bt_router_request_count_output(request) > request->n_resumed ||
                           request->sampling.max_tokens == 0;
    if (!has_token) {
        leg_failed(request, BT_ROUTER_LEG_P, BT_EPROTOCOL, "it finished without a token", false);
        return;
    }
    if (finished->reason == BT_FINISH_STOP || finished->reason == BT_FINISH_LENGTH || !d->used) {
        request->summary.has_stop_token = finished->has_stop_token;
        request->summary.stop_token = finished->stop_token;
        if (d->open) {
            bt_link_router_cancel(d->worker->peer, request->id, d->attempt);
        }
        bt_router_request_complete(request, finished->reason == BT_FINISH_NONE ? BT_FINISH_LENGTH
                                                                               : finished->reason);
        return;
    }
    if (request->decode_done) {
        finish_decode(request); /* what is missing now never comes */
    } else if (!d->open) {      /* D said that the first token was the last one */
        leg_failed(request, BT_ROUTER_LEG_P, BT_EPROTOCOL, "it finished without a reason", false);
    }
}

void bt_router_on_finished(bt_router *router, bt_router_worker *worker,
                           const bt_link_finished *finished)
{
    bt_router_request *request;
    bt_router_leg *leg =
        bt_router_find_leg(router, worker, finished->id, finished->attempt, &request);
    if (leg == NULL) {
        return;
    }
    const int leg_idx = (int)(leg - request->legs);
    leg->report = *finished;
    leg->has_report = true;
    unbind_leg(request, leg);
    if (request->state == BT_ROUTER_REQUEST_ENDING) {
        bt_router_request_check_ending(request);
        return;
    }
    if (leg_idx == BT_ROUTER_LEG_FROM) {
        bt_router_move_left(request);
        return;
    }
    if (finished->status != BT_OK && finished->draining) {
        worker->load.draining = true;
        leg_refused(request, leg_idx, finished->error.text);
        return;
    }
    if (finished->status != BT_OK) {
        const bool has_text = finished->error.text[0] != '\0';
        leg_failed(request, leg_idx, finished->status,
                   has_text ? finished->error.text : bt_status_text(finished->status), false);
        return;
    }
    if (finished->reason == BT_FINISH_CANCELLED || finished->reason == BT_FINISH_ERROR) {
        leg_failed(request, leg_idx, BT_ECANCELLED, "it gave the request up", false);
        return;
    }
    if (leg_idx == BT_ROUTER_LEG_P) {
        finish_prefill(request, finished);
        return;
    }
    if (finished->reason == BT_FINISH_NONE && request->legs[BT_ROUTER_LEG_P].open) {
        return; /* the first token was the last: why is P's to tell, which may come later */
    }
    if (finished->reason == BT_FINISH_NONE) {
        leg_failed(request, leg_idx, BT_EPROTOCOL, "it finished without a reason", false);
        return;
    }
    finish_decode(request);
}

void bt_router_on_worker_lost(bt_router *router, bt_router_worker *worker, const char *reason,
                              bool is_gone)
{
    for (uint32_t i = 0; i < router->options.requests_max; i++) {
        bt_router_request *request = &router->requests[i];
        if (request->state == BT_ROUTER_REQUEST_FREE) {
            continue;
        }
        for (int k = 0; k < BT_ROUTER_LEGS; k++) {
            bt_router_leg *leg = &request->legs[k];
            if (leg->open && leg->worker == worker) {
                if (!is_gone) {
                    bt_link_router_cancel(worker->peer, request->id, leg->attempt);
                }
                unbind_leg(request, leg);
                char text[160];
                snprintf(text, sizeof text, "%s%.120s", is_gone ? "it is gone: " : "", reason);
                if (k == BT_ROUTER_LEG_FROM && request->state != BT_ROUTER_REQUEST_ENDING) {
                    bt_router_move_left(request);
                } else if (bt_router_worker_is_draining(worker)) {
                    leg_refused(request, k, text); /* it may never have seen the run */
                } else {
                    leg_failed(request, k, BT_EPEER, text, true);
                }
                break; /* the request may be in other hands now */
            }
        }
    }
    BT_ASSERT(worker->n_requests == 0);
}
