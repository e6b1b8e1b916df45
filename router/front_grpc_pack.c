/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to clients. A message's text is encoded here and put before what protobuf-c makes of
 * the rest: two encodings behind each other are one message, and text may hold any byte. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "router/front_grpc_int.h"

enum {
    REPLY_TEXT_FIELD = 2, /* GenerateReply.text */
    HEX_BYTES = 2 * BT_LINK_ID_BYTES + 1,
};

static const char empty[1] = "";

bt_status bt_router_front_grpc_pack(const ProtobufCMessage *message, bt_text *out)
{
    const size_t n = protobuf_c_message_get_packed_size(message);
    if (n == 0) {
        return BT_OK;
    }
    uint8_t *bytes = malloc(n);
    if (bytes == NULL) {
        return BT_ENOMEM;
    }
    const size_t packed = protobuf_c_message_pack(message, bytes);
    const bt_status status = bt_text_append(out, (const char *)bytes, packed);
    free(bytes);
    return status;
}

bt_status bt_router_front_grpc_pack_string(uint32_t field, const char *text, size_t len,
                                           bt_text *out)
{
    if (len == 0) {
        return BT_OK;
    }
    char head[20];
    size_t n = 0;
    const uint64_t values[] = {(uint64_t)field << 3 | 2, len};
    for (size_t i = 0; i < BT_ARRAY_LEN(values); i++) {
        uint64_t rest = values[i];
        while (rest >= 0x80) {
            head[n++] = (char)((rest & 0x7F) | 0x80);
            rest >>= 7;
        }
        head[n++] = (char)rest;
    }
    const bt_status status = bt_text_append(out, head, n);
    return status != BT_OK ? status : bt_text_append(out, text, len);
}

/* ------------------------------------------------------------------------ GenerateReply ---- */

/* The token lists of one reply, in one block. */
typedef struct token_block {
    void *memory;
    uint32_t *ids;
    Baton__V1__TokenLogprob **logprobs;
} token_block;

static ProtobufCBinaryData piece_of(const bt_tokenizer *tokenizer, int32_t token)
{
    size_t len = 0;
    const char *bytes = bt_tokenizer_piece(tokenizer, token, &len);
    return (ProtobufCBinaryData){.len = len, .data = (uint8_t *)(uintptr_t)bytes};
}

static void fill_logprob(const bt_tokenizer *tokenizer, const bt_token_result *result,
                         Baton__V1__TokenLogprob *to, Baton__V1__TopLogprob *top,
                         Baton__V1__TopLogprob **top_list)
{
    baton__v1__token_logprob__init(to);
    to->token_id = (uint32_t)result->token;
    to->piece = piece_of(tokenizer, result->token);
    if (result->has_logprob) {
        to->logprob_presence_case = BATON__V1__TOKEN_LOGPROB__LOGPROB_PRESENCE_LOGPROB;
        to->logprob = result->logprob;
    }
    to->n_top = result->n_top;
    to->top = top_list;
    for (uint32_t i = 0; i < result->n_top; i++) {
        baton__v1__top_logprob__init(&top[i]);
        top[i].token_id = (uint32_t)result->top[i].token;
        top[i].piece = piece_of(tokenizer, result->top[i].token);
        top[i].logprob = result->top[i].logprob;
        top_list[i] = &top[i];
    }
}

/* Counts are bounded by the size of a piece (reply.c), so products fit. */
static bt_status fill_tokens(const bt_tokenizer *tokenizer, const bt_router_delta *delta,
                             token_block *out)
{
    const bt_token_result *results = delta->piece.results;
    const size_t n = delta->piece.n_results;
    const size_t n_logprobs = delta->logprobs ? n : 0;
    size_t n_top = 0;
    for (size_t i = 0; i < n_logprobs; i++) {
        n_top += results[i].n_top;
    }
    /* Wide things first, so that each part is aligned. */
    const size_t bytes = n_logprobs * (sizeof(Baton__V1__TokenLogprob) + sizeof(void *)) +
                         n_top * (sizeof(Baton__V1__TopLogprob) + sizeof(void *)) +
                         n * sizeof(uint32_t);
    char *at = malloc(bytes + 1);
    if (at == NULL) {
        return BT_ENOMEM;
    }
    out->memory = at;
    Baton__V1__TokenLogprob *logprobs = (void *)at;
    at += n_logprobs * sizeof *logprobs;
    Baton__V1__TopLogprob *top = (void *)at;
    at += n_top * sizeof *top;
    out->logprobs = (void *)at;
    at += n_logprobs * sizeof(void *);
    Baton__V1__TopLogprob **top_lists = (void *)at;
    at += n_top * sizeof(void *);
    out->ids = (void *)at;
    for (size_t i = 0; i < n; i++) {
        out->ids[i] = (uint32_t)results[i].token;
    }
    for (size_t i = 0; i < n_logprobs; i++) {
        fill_logprob(tokenizer, &results[i], &logprobs[i], top, top_lists);
        out->logprobs[i] = &logprobs[i];
        top += results[i].n_top;
        top_lists += results[i].n_top;
    }
    return BT_OK;
}

typedef struct finish_block {
    Baton__V1__Finish finish;
    Baton__V1__Usage usage;
    Baton__V1__Timings timings;
    Baton__V1__Route route;
    char numerics[HEX_BYTES];
} finish_block;

static void fill_route(const bt_router_summary *s, finish_block *out)
{
    Baton__V1__Route *route = &out->route;
    baton__v1__route__init(route);
    route->prefill_worker = (char *)(uintptr_t)s->prefill_worker;
    route->decode_worker = (char *)(uintptr_t)s->decode_worker;
    route->blocks_total = s->blocks_total;
    route->blocks_moved = s->blocks_moved;
    route->blocks_skipped = s->blocks_skipped;
    route->bytes_moved = s->bytes_moved;
    route->transport = (char *)(uintptr_t)s->transport;
    route->attempts = s->attempts;
    route->preemptions = s->preemptions;
    if (s->has_numerics) {
        bt_hash_hex(s->numerics_id, BT_LINK_ID_BYTES, out->numerics);
        route->numerics_id = out->numerics;
    }
    route->mixed_numerics = s->mixed_numerics;
    out->finish.route = route;
}

static void fill_finish(const bt_router_delta *delta, finish_block *out)
{
    const bt_router_summary *s = delta->summary;
    Baton__V1__Finish *finish = &out->finish;
    baton__v1__finish__init(finish);
    finish->reason = s->reason == BT_FINISH_LENGTH ? BATON__V1__FINISH_REASON__FINISH_REASON_LENGTH
                                                   : BATON__V1__FINISH_REASON__FINISH_REASON_STOP;
    if (delta->stop != NULL) {
        finish->stopped_by_case = BATON__V1__FINISH__STOPPED_BY_STOP;
        finish->stop = (char *)(uintptr_t)delta->stop;
    } else if (s->has_stop_token) {
        finish->stopped_by_case = BATON__V1__FINISH__STOPPED_BY_STOP_TOKEN_ID;
        finish->stop_token_id = (uint32_t)s->stop_token;
    }
    baton__v1__usage__init(&out->usage);
    out->usage.prompt_tokens = s->prompt_tokens;
    out->usage.cached_tokens = s->cached_tokens;
    out->usage.generated_tokens = s->generated_tokens;
    finish->usage = &out->usage;
    baton__v1__timings__init(&out->timings);
    out->timings.queue_ms = s->queue_ms;
    out->timings.prefill_ms = s->prefill_ms;
    out->timings.transfer_ms = s->transfer_ms;
    out->timings.ttft_ms = s->ttft_ms;
    out->timings.tpot_ms = s->tpot_ms;
    out->timings.total_ms = s->total_ms;
    finish->timings = &out->timings;
    fill_route(s, out);
}

bt_status bt_router_front_grpc_pack_delta(const bt_tokenizer *tokenizer,
                                          const bt_router_delta *delta, bt_text *out)
{
    Baton__V1__GenerateReply reply = BATON__V1__GENERATE_REPLY__INIT;
    Baton__V1__Start start = BATON__V1__START__INIT;
    finish_block finish = {.numerics = ""};
    token_block tokens = {0};
    if (delta->is_first) {
        start.request_id = (char *)(uintptr_t)delta->label;
        start.model = (char *)(uintptr_t)delta->model;
        start.seed = delta->seed;
        start.prompt_tokens = delta->prompt_tokens;
        reply.start = &start;
    }
    if (delta->piece.n_results > 0) {
        const bt_status status = fill_tokens(tokenizer, delta, &tokens);
        if (status != BT_OK) {
            return status;
        }
        reply.n_token_ids = delta->piece.n_results;
        reply.token_ids = tokens.ids;
        reply.first_index = delta->piece.first_index;
        reply.n_logprobs = delta->logprobs ? delta->piece.n_results : 0;
        reply.logprobs = tokens.logprobs;
    }
    reply.is_prompt = delta->piece.is_prompt;
    if (delta->is_last && delta->status == BT_OK) {
        fill_finish(delta, &finish);
        reply.finish = &finish.finish;
    }
    bt_status status = bt_router_front_grpc_pack_string(REPLY_TEXT_FIELD, delta->piece.text,
                                                        delta->piece.text_len, out);
    if (status == BT_OK) {
        status = bt_router_front_grpc_pack(&reply.base, out);
    }
    free(tokens.memory);
    return status;
}

/* ------------------------------------------------------------------- ListModels, status ---- */

static void fill_model(const bt_router *router, size_t idx, Baton__V1__Model *to, char *hash)
{
    const bt_router_model_card *card = bt_router_models_at(router->models, idx);
    baton__v1__model__init(to);
    to->name = (char *)(uintptr_t)card->name;
    to->architecture = (char *)(uintptr_t)card->architecture;
    to->context_tokens = card->context_tokens;
    to->vocab_tokens = bt_tokenizer_vocab_size(card->tokenizer);
    to->chat_template =
        (char *)(uintptr_t)(card->chat == NULL ? empty
                                               : bt_chat_template_name(bt_chat_kind(card->chat)));
    to->tokenizer = (char *)(uintptr_t)card->tokenizer_name;
    bt_hash_hex(card->tokenizer_hash, sizeof card->tokenizer_hash, hash);
    to->tokenizer_hash = hash;
    to->ready = !router->stopping && bt_router_model_is_ready(router, (uint32_t)idx);
    size_t n_ends = 0;
    const int32_t *ends = bt_tokenizer_end_tokens(card->tokenizer, &n_ends);
    /* Ids are not negative, so they read the same without a sign. */
    to->n_eos_token_ids = n_ends;
    to->eos_token_ids = (uint32_t *)(uintptr_t)(const void *)ends;
}

bt_status bt_router_front_grpc_pack_models(const bt_router *router, bt_text *out)
{
    Baton__V1__ListModelsReply reply = BATON__V1__LIST_MODELS_REPLY__INIT;
    Baton__V1__Model models[BT_ROUTER_MODELS_MAX];
    Baton__V1__Model *list[BT_ROUTER_MODELS_MAX];
    char hashes[BT_ROUTER_MODELS_MAX][HEX_BYTES];
    const size_t n = bt_router_models_count(router->models);
    for (size_t i = 0; i < n; i++) {
        fill_model(router, i, &models[i], hashes[i]);
        list[i] = &models[i];
    }
    reply.n_models = n;
    reply.models = list;
    return bt_router_front_grpc_pack(&reply.base, out);
}

typedef struct worker_texts {
    char numerics[HEX_BYTES];
    char incarnation[17];
} worker_texts;

static void fill_load(const bt_link_load *load, Baton__V1__Worker *to)
{
    to->blocks_free = load->blocks_free;
    to->blocks_cached = load->blocks_cached;
    to->requests_running = load->requests_running;
    to->requests_waiting = load->requests_waiting;
    to->prefill_tokens = load->prefill_tokens;
    to->recomputed_tokens = load->recomputed_tokens;
    to->decode_tokens = load->decode_tokens;
    to->prefix_hit_tokens = load->prefix_hit_tokens;
    to->prefix_miss_tokens = load->prefix_miss_tokens;
    to->preemptions = load->preemptions;
    to->pulls = load->pulls;
    to->partial_pulls = load->partial_pulls;
    to->blocks_pulled = load->blocks_pulled;
    to->bytes_pulled = load->bytes_pulled;
    to->pulls_failed = load->pulls_failed;
    to->bytes_served = load->bytes_served;
    to->step_ms = (double)load->step_ns / 1e6;
    to->prefix_queries = load->prefix_queries;
    to->prefix_hits = load->prefix_hits;
    to->blocks_evicted = load->blocks_evicted;
    to->slots_written = load->slots_written;
    to->slots_allocated = load->slots_allocated;
}

static void fill_worker(const bt_router *router, const bt_router_worker *worker,
                        Baton__V1__Worker *to, worker_texts *texts)
{
    static const Baton__V1__WorkerRole roles[] = {
        [BT_LINK_ROLE_PREFILL] = BATON__V1__WORKER_ROLE__WORKER_ROLE_PREFILL,
        [BT_LINK_ROLE_DECODE] = BATON__V1__WORKER_ROLE__WORKER_ROLE_DECODE,
        [BT_LINK_ROLE_BOTH] = BATON__V1__WORKER_ROLE__WORKER_ROLE_BOTH,
    };
    const bt_link_hello *hello = &worker->hello;
    const int64_t now_ns = bt_clock_now_ns();
    const int64_t silence_ns = (int64_t)router->options.worker_timeout_ms * 1000000;
    baton__v1__worker__init(to);
    to->name = (char *)(uintptr_t)hello->kv.name;
    to->role =
        (size_t)hello->role < BT_ARRAY_LEN(roles) ? roles[hello->role] : roles[BT_LINK_ROLE_BOTH];
    to->state = bt_router_worker_is_draining(worker) ? BATON__V1__WORKER_STATE__WORKER_STATE_DRAINING
                : bt_router_worker_is_alive(worker, now_ns, silence_ns)
                    ? BATON__V1__WORKER_STATE__WORKER_STATE_READY
                    : BATON__V1__WORKER_STATE__WORKER_STATE_SILENT;
    to->model = (char *)(uintptr_t)hello->model;
    bt_hash_hex(hello->numerics_id, BT_LINK_ID_BYTES, texts->numerics);
    to->numerics_id = texts->numerics;
    to->kernels = (char *)(uintptr_t)hello->kernels;
    snprintf(texts->incarnation, sizeof texts->incarnation, "%016" PRIx64, hello->kv.incarnation);
    to->incarnation = texts->incarnation;
    to->address = (char *)(uintptr_t)bt_link_peer_address(worker->peer);
    to->attached_s = (double)(now_ns - worker->attached_ns) / 1e9;
    to->report_age_ms = (double)(now_ns - worker->report_ns) / 1e6;
    to->block_tokens = hello->block_tokens;
    to->blocks_total = hello->pool_blocks;
    fill_load(&worker->load, to);
    to->evicted_last_minute = bt_router_worker_evicted_last_minute(worker);
}

static void fill_router(const bt_router *router, Baton__V1__Router *to)
{
    const bt_router_options *options = &router->options;
    const bt_router_counts *counts = &router->counts;
    baton__v1__router__init(to);
    to->name = (char *)(uintptr_t)router->name;
    to->uptime_s = (double)(bt_clock_now_ns() - router->started_ns) / 1e9;
    to->ready = bt_router_is_ready(router);
    to->requests_max = options->requests_max;
    to->queue_max = options->queue_max;
    to->prompt_tokens_max = options->prompt_tokens_max;
    to->request_time_max_s = (double)options->request_time_ms / 1e3;
    to->requests_running = counts->n_live - counts->n_queued;
    to->requests_queued = counts->n_queued;
    to->requests_total = counts->n_total;
    to->requests_failed = counts->n_failed;
    to->requests_refused = counts->n_refused;
    to->requests_cancelled = counts->n_cancelled;
    to->retries = counts->n_retries;
    to->recoveries = counts->n_recoveries;
    to->moves = counts->n_moves;
    to->prompt_tokens_total = counts->prompt_tokens;
    to->generated_tokens_total = counts->generated_tokens;
}

bt_status bt_router_front_grpc_pack_status(const bt_router *router, bt_text *out)
{
    Baton__V1__GetClusterStatusReply reply = BATON__V1__GET_CLUSTER_STATUS_REPLY__INIT;
    Baton__V1__Router self;
    fill_router(router, &self);
    reply.router = &self;
    const size_t n_max = BT_ROUTER_WORKERS_MAX;
    Baton__V1__Worker *workers = calloc(n_max, sizeof *workers);
    Baton__V1__Worker **list = calloc(n_max, sizeof *list);
    worker_texts *texts = calloc(n_max, sizeof *texts);
    bt_status status = BT_ENOMEM;
    if (workers != NULL && list != NULL && texts != NULL) {
        for (uint32_t i = 0; i < n_max; i++) {
            const bt_router_worker *worker = bt_router_registry_at(router->registry, i);
            if (worker != NULL) {
                fill_worker(router, worker, &workers[i], &texts[i]);
                list[reply.n_workers++] = &workers[i];
            }
        }
        reply.workers = list;
        status = bt_router_front_grpc_pack(&reply.base, out);
    }
    free(workers);
    free(list);
    free(texts);
    return status;
}
