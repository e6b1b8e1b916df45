/* SPDX-License-Identifier: Apache-2.0 */
/* How a request comes in: it is checked and given a slot, its prompt is tokenized on the work pool,
 * its lengths are settled, and it joins the queue (request.c has the whole of its life). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/hash.h"
#include "router/router_int.h"

static const int64_t ms_ns = 1000000;

static bt_status refuse(bt_router *router, bt_status status, int64_t began_ns)
{
    bt_router_report_refusal(router, status);
    if (status == BT_EEXHAUSTED) {
        bt_router_report_refusal_time(router, bt_clock_now_ns() - began_ns);
    }
    return status;
}

/* Whether there is room for it, as far as can be said before its prompt is known. */
static bt_status check_room(bt_router *router, const bt_router_front_request *in,
                            uint32_t model_idx, int64_t now_ns, bt_error *err,
                            uint64_t *retry_after_ms)
{
    if (router->stopping) {
        return bt_error_set(err, BT_EPEER, "the router is shutting down");
    }
    *retry_after_ms = router->options.retry_pushback_ms;
    const bt_status status = bt_router_check_client(router, in, err);
    if (status != BT_OK) {
        return status;
    }
    if (router->n_free == 0) {
        *retry_after_ms = bt_router_pushback_ms(router, model_idx);
        return bt_error_set(err, BT_EEXHAUSTED,
                            "%" PRIu32 " requests are running, the router's limit. Try again later",
                            router->counts.n_live);
    }
    if (router->queue_head != NULL && router->counts.n_queued >= router->options.queue_max) {
        *retry_after_ms = bt_router_pushback_ms(router, model_idx);
        return bt_error_set(err, BT_EEXHAUSTED,
                            "%" PRIu32 " requests are waiting for a worker, the router's limit. "
                            "Try again later",
                            router->counts.n_queued);
    }
    return bt_router_check_backlog(router, model_idx, in->priority, now_ns, err, retry_after_ms);
}

static bt_status copy_stops(bt_router_request *request, const bt_router_front_request *in)
{
    size_t total = 0;
    for (size_t i = 0; i < in->n_stops; i++) {
        total += in->stop_lens[i] + 1;
    }
    request->n_stops = in->n_stops;
    if (total == 0) {
        return BT_OK;
    }
    request->stop_bytes = malloc(total);
    if (request->stop_bytes == NULL) {
        return BT_ENOMEM;
    }
    char *to = request->stop_bytes;
    for (size_t i = 0; i < in->n_stops; i++) {
        memcpy(to, in->stops[i], in->stop_lens[i]);
        request->stops[i] = to;
        request->stop_lens[i] = in->stop_lens[i];
        to += in->stop_lens[i];
        *to++ = '\0'; /* for those who take C strings */
    }
    return BT_OK;
}

static bt_status create_prompt(bt_router_request *request, const bt_router_front_request *in,
                               const bt_router_model_card *model)
{
    bt_router *router = request->router;
    uint8_t numerics[BT_ROUTER_CHAINS_MAX][BT_LINK_ID_BYTES];
    uint8_t tenant_salt[BT_BLOCK_SALT_BYTES];
    const bool is_tenant = in->client != NULL && !in->client_shares;
    if (is_tenant) {
        bt_block_id_tenant_salt(&router->options.cluster_key, in->client, in->cache_salt,
                                in->cache_salt_len, tenant_salt);
    }
    const bt_router_prompt_scope scope = {
        .key = &router->options.cluster_key,
        .salt = is_tenant ? (const char *)tenant_salt : in->cache_salt,
        .salt_len = is_tenant ? sizeof tenant_salt : in->cache_salt_len,
        .numerics_ids = (const uint8_t(*)[BT_LINK_ID_BYTES])numerics,
        .n_numerics = bt_router_registry_numerics_ids(router->registry, request->model_idx,
                                                      BT_ROUTER_CHAINS_MAX, numerics),
    };
    return bt_router_prompt_create(model, &in->prompt, &scope, &request->prompt);
}

/* Token ids in the sampling options must be of the vocabulary. */
static bt_status check_token_ids(const bt_sampling *s, const bt_tokenizer *tokenizer, bt_error *err)
{
    const uint32_t n_vocab = bt_tokenizer_vocab_size(tokenizer);
    for (uint32_t i = 0; i < s->n_stop_tokens; i++) {
        if (s->stop_tokens[i] < 0 || (uint32_t)s->stop_tokens[i] >= n_vocab) {
            return bt_error_set(err, BT_EINVAL,
                                "sampling.stop_token_ids[%" PRIu32 "] is %" PRId32
                                ": the vocabulary has %" PRIu32 " tokens",
                                i, s->stop_tokens[i], n_vocab);
        }
    }
    for (uint32_t i = 0; i < s->n_logit_bias; i++) {
        if (s->logit_bias[i].token < 0 || (uint32_t)s->logit_bias[i].token >= n_vocab) {
            return bt_error_set(err, BT_EINVAL,
                                "sampling.logit_bias has token %" PRId32
                                ": the vocabulary has %" PRIu32 " tokens",
                                s->logit_bias[i].token, n_vocab);
        }
    }
    return BT_OK;
}

static void fill_request(bt_router_request *request, const bt_router_front_request *in,
                         uint32_t model_idx)
{
    const bt_router_options *options = &request->router->options;
    const int64_t longest_ns = (int64_t)options->request_time_ms * ms_ns;
    bt_timer *timer = request->timer;
    *request = (bt_router_request){
        .router = request->router,
        .slot = request->slot,
        .timer = timer,
        .state = BT_ROUTER_REQUEST_TOKENIZING,
        .model_idx = model_idx,
        .sampling = in->sampling,
        .has_max_tokens = in->has_max_tokens,
        .priority = in->priority,
        .ttft_target_ms = in->ttft_target_ms,
        .tpot_target_ms = in->tpot_target_ms,
        .received_ns = bt_clock_now_ns(),
        .summary = {.stop_idx = -1},
    };
    request->deadline_ns = request->received_ns +
                           (in->deadline_left_ns < longest_ns ? in->deadline_left_ns : longest_ns);
    bt_router_request_set_limits(request, in->refuse_late);
    bt_router_request_join_client(request, in);
    bt_hash_random(&request->id, sizeof request->id);
    request->id.lo = (request->id.lo & ~UINT64_C(0xFFFF)) | request->slot;
    if (!in->has_seed) {
        bt_hash_random(&request->sampling.seed, sizeof request->sampling.seed);
    }
    if (in->label != NULL) {
        snprintf(request->label, sizeof request->label, "%s", in->label);
    } else {
        bt_link_request_hex(request->id, request->label);
    }
}

/* Tokens that this model, its workers and the router's limit allow for one request. */
static uint32_t context_of(const bt_router_request *request)
{
    const bt_router *router = request->router;
    uint32_t context = bt_router_models_at(router->models, request->model_idx)->context_tokens;
    bt_router_worker_view views[BT_ROUTER_WORKERS_MAX];
    uint32_t slots[BT_ROUTER_WORKERS_MAX];
    const size_t n = bt_router_view(router, request->model_idx, false, views, slots);
    const bt_router_policy_options options = bt_router_policy_options_of(router);
    const uint32_t workers_max = bt_router_policy_context_max(views, n, &options);
    if (workers_max > 0 && workers_max < context) {
        context = workers_max;
    }
    return context;
}

/* Checks the prompt's length and settles max_tokens. false: the request has ended. */
static bool settle_lengths(bt_router_request *request)
{
    bt_sampling *s = &request->sampling;
    const uint32_t n = request->n_prompt;
    const uint32_t limit = request->router->options.prompt_tokens_max;
    const uint32_t context = context_of(request);
    if (n == 0) {
        bt_router_request_fail(request, BT_EINVAL, "the prompt is empty: it has no tokens");
        return false;
    }
    if (limit > 0 && n > limit) {
        bt_router_request_fail(request, BT_EINVAL,
                               "the prompt has %" PRIu32 " tokens: this router takes %" PRIu32, n,
                               limit);
        return false;
    }
    if (n >= context) {
        bt_router_request_fail(
            request, BT_EINVAL,
            "the prompt has %" PRIu32 " tokens: the context of model '%.60s' "
            "here is %" PRIu32 " tokens, one of them for the reply",
            n, bt_router_models_at(request->router->models, request->model_idx)->name, context);
        return false;
    }
    if (!request->has_max_tokens || s->max_tokens > context - n) {
        s->max_tokens = context - n;
    }
    return true;
}

/* An echo without logprobs needs no worker: the router has the prompt's tokens. */
static bt_status echo_prompt(bt_router_request *request)
{
    uint32_t n;
    const int32_t *tokens = bt_router_prompt_tokens(request->prompt, &n);
    for (uint32_t i = 0; i < n; i++) {
        const bt_token_result result = {.token = tokens[i]};
        const bt_status status = bt_router_reply_push_prompt(
            request->reply, i, &result, 1, bt_router_prompt_added(request->prompt));
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

/* From the work pool: the prompt is tokenized. */
static void on_computed(void *ctx)
{
    bt_router_request *request = ctx;
    bt_router *router = request->router;
    request->job_running = false;
    if (request->abandoned) {
        bt_router_request_free(request);
        return;
    }
    if (request->state != BT_ROUTER_REQUEST_TOKENIZING) {
        return; /* the deadline struck */
    }
    bt_error err;
    bt_status status = bt_router_prompt_status(request->prompt, &err);
    if (status != BT_OK) {
        bt_router_request_fail(request, status, "%s", err.text);
        return;
    }
    (void)bt_router_prompt_tokens(request->prompt, &request->n_prompt);
    request->tokenized_ns = bt_clock_now_ns();
    if (!settle_lengths(request)) {
        return;
    }
    if (request->sampling.echo) {
        bt_router_reply_expect_prompt(request->reply, request->n_prompt);
    }
    if (request->sampling.echo && !request->sampling.logprobs) {
        status = echo_prompt(request);
        if (status != BT_OK) {
            bt_router_request_fail(request, status, "the router is out of memory");
            return;
        }
        request->sampling.echo = false;
    }
    if (request->sampling.max_tokens == 0 && !request->sampling.echo) {
        request->placed_ns = bt_clock_now_ns();
        bt_router_request_complete(request, BT_FINISH_LENGTH);
        return;
    }
    uint64_t retry_after_ms = router->options.retry_pushback_ms;
    status = bt_router_request_count_tokens(request, &err);
    if (status == BT_OK) {
        status = bt_router_request_check_forecast(request, &err, &retry_after_ms);
    }
    if (status != BT_OK) {
        request->retry_after_ms = retry_after_ms;
        bt_router_request_fail(request, status, "%s", err.text);
        return;
    }
    bt_router_request_enqueue(request);
    bt_router_queue_drain(router);
    if (request->state == BT_ROUTER_REQUEST_QUEUED &&
        router->counts.n_queued > router->options.queue_max) {
        bt_error why;
        (void)bt_router_describe_shortage(router, request->model_idx, &why);
        bt_router_request_fail(request, BT_EEXHAUSTED,
                               "%s, and %" PRIu32 " requests wait already, the router's limit. "
                               "Try again later",
                               why.text, router->options.queue_max);
    }
}

static void run_job(void *ctx)
{
    const bt_router_request *request = ctx;
    bt_router_prompt_compute(request->prompt);
}

/* The parts that may fail; what was made is freed with the slot. */
static bt_status start_request(bt_router_request *request, const bt_router_front_request *in,
                               bt_error *err)
{
    bt_router *router = request->router;
    const bt_router_model_card *model = bt_router_models_at(router->models, request->model_idx);
    bt_status status = check_token_ids(&request->sampling, model->tokenizer, err);
    if (status != BT_OK) {
        return status;
    }
    if (request->timer == NULL) {
        status =
            bt_timer_create(router->loop, bt_router_request_on_timer, request, &request->timer);
    }
    if (status == BT_OK) {
        status = copy_stops(request, in);
    }
    if (status == BT_OK) {
        const bt_router_reply_options options = {
            .tokenizer = model->tokenizer,
            .sampling = &request->sampling,
            .stops = request->stops,
            .stop_lens = request->stop_lens,
            .n_stops = request->n_stops,
            .include_stop = in->include_stop,
        };
        status = bt_router_reply_create(&options, &request->reply, err);
    }
    if (status == BT_OK) {
        status = create_prompt(request, in, model);
    }
    if (status == BT_OK) {
        status = bt_loop_work(router->loop, run_job, on_computed, request);
    }
    return status;
}

bt_status bt_router_request_submit(bt_router *router, const bt_router_front_request *in,
                                   const bt_router_front_ops *ops, void *ctx,
                                   bt_router_request **out, bt_error *err, uint64_t *retry_after_ms)
{
    *retry_after_ms = 0;
    const int64_t began_ns = bt_clock_now_ns();
    bt_status status = bt_router_front_check(in, err);
    uint32_t model_idx = 0;
    if (status == BT_OK) {
        status = bt_router_models_find(router->models, in->model, &model_idx, err);
    }
    if (status == BT_OK) {
        status = check_room(router, in, model_idx, began_ns, err, retry_after_ms);
    }
    if (status != BT_OK) {
        return refuse(router, status, began_ns);
    }
    bt_router_request *request = &router->requests[router->free_slots[--router->n_free]];
    BT_ASSERT(request->state == BT_ROUTER_REQUEST_FREE);
    router->counts.n_live++;
    fill_request(request, in, model_idx);
    status = start_request(request, in, err);
    if (status != BT_OK) {
        if (status == BT_ENOMEM) {
            (void)bt_error_set(err, status, "the router is out of memory");
        }
        bt_router_request_unset_limits(request);
        bt_router_request_free(request);
        return refuse(router, status, began_ns);
    }
    request->job_running = true;
    request->front = ops;
    request->front_ctx = ctx;
    router->counts.n_total++;
    bt_router_request_arm(request);
    *out = request;
    return BT_OK;
}
