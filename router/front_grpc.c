/* SPDX-License-Identifier: Apache-2.0 */
/* baton.v1.Generation over bt_rpc. Two kinds of calls:
 *
 *   Generate: one message in, then the request's deltas out, one message in flight; while one is
 *   on its way, later tokens gather in the reply and leave together. The call's struct lives
 *   until on_done, the request until its last delta was sent, whichever comes first.
 *
 *   unary: one message in, one out. Tokenize and Detokenize work on the pool in between; a
 *   client that goes meanwhile leaves the struct to the job, which frees it when it is back.
 *
 * A client that never sends its message, or takes neither the last one of its answer nor the status
 * behind it, would keep the call and what is under way in it for as long as it likes: its time for
 * either is bounded (patience). What comes between is the request's business. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/log.h"
#include "common/name.h"
#include "engine/detokenizer.h"
#include "router/front_grpc_int.h"

struct bt_router_front_grpc {
    bt_router *router;
    uint32_t n_jobs; /* on the work pool */
    bt_text scratch; /* of one message going out */
};

static void finish_error(bt_rpc_call *call, bt_status status, const char *text,
                         uint64_t retry_after_ms)
{
    char pushback[24];
    snprintf(pushback, sizeof pushback, "%" PRIu64, retry_after_ms);
    const bt_rpc_meta trailing = {.key = "grpc-retry-pushback-ms", .value = pushback};
    const bool has_pushback = status == BT_EEXHAUSTED && retry_after_ms > 0;
    bt_rpc_call_finish(call, bt_rpc_code_of(status),
                       text != NULL && text[0] != '\0' ? text : bt_status_text(status), &trailing,
                       has_pushback ? 1 : 0);
}

/* --------------------------------------------------------------------------- patience ---- */

typedef struct patience {
    bt_timer *timer;
    bt_rpc_call *call;
} patience;

static void on_patience_over(void *ctx)
{
    bt_rpc_call_cancel(((patience *)ctx)->call);
}

/* The message is due. */
static bt_status begin_patience(patience *p, const bt_router *router, bt_rpc_call *call)
{
    p->call = call;
    const bt_status status = bt_timer_create(router->loop, on_patience_over, p, &p->timer);
    if (status == BT_OK) {
        bt_timer_start(p->timer, 2 * router->options.read_time_ms, 0);
    }
    return status;
}

/* It has come. */
static void rest_patience(const patience *p)
{
    bt_timer_stop(p->timer);
}

/* All of the answer was said. */
static void end_patience(const patience *p, const bt_router *router)
{
    bt_timer_start(p->timer, router->options.read_time_ms, 0);
}

/* --------------------------------------------------------------------------- Generate ---- */

typedef struct generate_call {
    bt_router_front_grpc *front;
    bt_rpc_call *call;
    bt_router_request *request; /* NULL before submit and after its last delta */
    const bt_tokenizer *tokenizer;
    bool answered; /* a message came, or the call was finished */
    patience patience;
} generate_call;

/* Sends what there is, as far as the stream takes it. */
static void pump(generate_call *g)
{
    bt_router_delta delta;
    while (g->request != NULL && bt_router_request_peek(g->request, &delta)) {
        const bool is_failure = delta.is_last && delta.status != BT_OK;
        if (!is_failure) {
            if (!bt_rpc_call_can_send(g->call)) {
                return;
            }
            bt_text *scratch = &g->front->scratch;
            scratch->len = 0;
            if (bt_router_front_grpc_pack_delta(g->tokenizer, &delta, scratch) != BT_OK) {
                bt_router_request_abandon(g->request, "the router is out of memory");
                g->request = NULL;
                end_patience(&g->patience, g->front->router);
                finish_error(g->call, BT_ENOMEM, "the router is out of memory", 0);
                return;
            }
            bt_rpc_call_send(g->call, (const uint8_t *)scratch->bytes, scratch->len);
        }
        if (delta.is_last) {
            end_patience(&g->patience, g->front->router);
            if (is_failure) {
                finish_error(g->call, delta.status, delta.error, delta.retry_after_ms);
            } else {
                bt_rpc_call_finish(g->call, BT_RPC_OK, "", NULL, 0);
            }
        }
        bt_router_request_consume(g->request, &delta);
        if (delta.is_last) {
            bt_router_request_release(g->request);
            g->request = NULL;
        }
    }
}

static void on_ready(void *ctx)
{
    pump(ctx);
}

static const bt_router_front_ops front_ops = {.on_ready = on_ready};

static void echo_label(bt_rpc_call *call, const char *label)
{
    const bt_rpc_meta meta = {.key = "x-request-id", .value = label};
    bt_rpc_call_set_reply_meta(call, &meta, 1);
}

static bt_status submit(generate_call *g, const uint8_t *data, size_t len, bt_error *err,
                        uint64_t *retry_after_ms)
{
    ProtobufCMessage *message = NULL;
    bt_status status = bt_router_front_grpc_unpack(&baton__v1__generate_request__descriptor, data,
                                                   len, &message, err);
    if (status != BT_OK) {
        bt_router_report_refusal(g->front->router, status);
        return status;
    }
    bt_router_front_request request;
    bt_chat_message *messages = NULL;
    status = bt_router_front_grpc_request((const Baton__V1__GenerateRequest *)message, &request,
                                          &messages, err);
    if (status != BT_OK) {
        bt_router_report_refusal(g->front->router, status);
    } else {
        char peer[BT_ROUTER_CLIENT_NAME_MAX];
        request.peer = bt_router_client_of_peer(bt_rpc_call_peer(g->call), peer);
        const bt_keys_client *client = bt_rpc_call_kept(g->call);
        request.client = client != NULL ? client->name : NULL;
        request.client_shares = client != NULL && client->shares;
        request.label = bt_rpc_call_meta(g->call, "x-request-id");
        request.deadline_left_ns = bt_rpc_call_deadline_left_ns(g->call);
        status = bt_router_request_submit(g->front->router, &request, &front_ops, g, &g->request,
                                          err, retry_after_ms);
    }
    if (status == BT_OK) {
        g->tokenizer = bt_router_request_tokenizer(g->request);
    }
    free(messages);
    protobuf_c_message_free_unpacked(message, NULL);
    return status;
}

static void on_generate_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end,
                                void *ctx)
{
    generate_call *g = ctx;
    if (g->answered) {
        return;
    }
    g->answered = true;
    if (end) {
        finish_error(call, BT_EINVAL, "the call ended without a request", 0);
        return;
    }
    rest_patience(&g->patience);
    const char *given = bt_rpc_call_meta(call, "x-request-id");
    if (given != NULL && bt_name_is_valid(given, BT_ROUTER_LABEL_MAX)) {
        echo_label(call, given);
    }
    bt_error err = {.text = ""};
    uint64_t retry_after_ms = 0;
    const bt_status status = submit(g, data, len, &err, &retry_after_ms);
    if (status != BT_OK) {
        end_patience(&g->patience, g->front->router);
        finish_error(call, status, err.text, retry_after_ms);
        return;
    }
    echo_label(call, bt_router_request_label(g->request));
}

static void on_generate_sent(bt_rpc_call *call, void *ctx)
{
    (void)call;
    pump(ctx);
}

static void on_generate_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    (void)code;
    (void)message;
    generate_call *g = ctx;
    if (g->request != NULL) {
        bt_router_request_abandon(g->request, "the client went away");
    }
    bt_timer_destroy(g->patience.timer);
    free(g);
}

static const bt_rpc_callbacks generate_callbacks = {
    .on_message = on_generate_message,
    .on_sent = on_generate_sent,
    .on_done = on_generate_done,
};

static void handle_generate(bt_rpc_call *call, void *ctx)
{
    bt_router_front_grpc *front = ctx;
    generate_call *g = calloc(1, sizeof *g);
    if (g == NULL || begin_patience(&g->patience, front->router, call) != BT_OK) {
        free(g);
        bt_rpc_call_finish(call, BT_RPC_RESOURCE_EXHAUSTED, "the router is out of memory", NULL, 0);
        return;
    }
    g->front = front;
    g->call = call;
    bt_rpc_call_accept(call, &generate_callbacks, g);
    bt_rpc_call_recv(call);
}

/* ------------------------------------------------------------------------------ unary ---- */

typedef struct unary_call unary_call;

/* Answers at once (finish_unary), or starts a job that will. A failure's text goes to *err. */
typedef bt_status (*unary_fn)(unary_call *u, const uint8_t *data, size_t len, bt_error *err);

struct unary_call {
    bt_router_front_grpc *front;
    bt_rpc_call *call; /* NULL: the client is gone */
    unary_fn handle;
    bool answered;
    bool job_running;
    patience patience;
    /* of a job */
    const bt_router_model_card *model;
    bt_router_prompt *prompt;
    bool wants_pieces;
    ProtobufCMessage *message; /* Detokenize's request */
    bt_status status;
    bt_error error;
    bt_text out;
};

static void free_unary(unary_call *u)
{
    bt_router_prompt_destroy(u->prompt);
    if (u->message != NULL) {
        protobuf_c_message_free_unpacked(u->message, NULL);
    }
    bt_text_deinit(&u->out);
    free(u);
}

/* Sends u->out, or the error. */
static void finish_unary(unary_call *u, bt_status status, const char *text)
{
    end_patience(&u->patience, u->front->router);
    if (status != BT_OK) {
        finish_error(u->call, status, text, u->front->router->options.retry_pushback_ms);
        return;
    }
    bt_rpc_call_send(u->call, (const uint8_t *)u->out.bytes, u->out.len);
    bt_rpc_call_finish(u->call, BT_RPC_OK, "", NULL, 0);
}

static void on_job_done(void *ctx)
{
    unary_call *u = ctx;
    u->job_running = false;
    BT_ASSERT(u->front->n_jobs > 0);
    u->front->n_jobs--;
    if (u->call == NULL) {
        free_unary(u);
        return;
    }
    finish_unary(u, u->status, u->error.text);
}

static bt_status start_job(unary_call *u, bt_loop_fn work, bt_error *err)
{
    bt_router *router = u->front->router;
    if (u->front->n_jobs >= router->options.requests_max) {
        return bt_error_set(err, BT_EEXHAUSTED, "%" PRIu32 " texts are being tokenized. Try later",
                            u->front->n_jobs);
    }
    const bt_status status = bt_loop_work(router->loop, work, on_job_done, u);
    if (status == BT_OK) {
        u->job_running = true;
        u->front->n_jobs++;
    }
    return status;
}

static bt_status find_model(unary_call *u, const char *name, bt_error *err)
{
    uint32_t idx;
    const bt_status status = bt_router_models_find(u->front->router->models, name, &idx, err);
    if (status == BT_OK) {
        u->model = bt_router_models_at(u->front->router->models, idx);
    }
    return status;
}

/* Pieces of tokens, as a list that a message can point to; the caller frees it. */
static ProtobufCBinaryData *pieces_of(const bt_tokenizer *tokenizer, const int32_t *ids, size_t n)
{
    ProtobufCBinaryData *pieces = calloc(n + 1, sizeof *pieces);
    for (size_t i = 0; pieces != NULL && i < n; i++) {
        size_t len = 0;
        const char *bytes = bt_tokenizer_piece(tokenizer, ids[i], &len);
        pieces[i] = (ProtobufCBinaryData){.len = len, .data = (uint8_t *)(uintptr_t)bytes};
    }
    return pieces;
}

static void run_tokenize(void *ctx)
{
    unary_call *u = ctx;
    bt_router_prompt_compute(u->prompt);
    u->status = bt_router_prompt_status(u->prompt, &u->error);
    if (u->status != BT_OK) {
        return;
    }
    uint32_t n;
    const int32_t *ids = bt_router_prompt_tokens(u->prompt, &n);
    Baton__V1__TokenizeReply reply = BATON__V1__TOKENIZE_REPLY__INIT;
    reply.n_ids = n;
    reply.ids = (uint32_t *)(uintptr_t)(const void *)ids; /* ids are not negative */
    reply.context_tokens = u->model->context_tokens;
    if (u->wants_pieces) {
        reply.pieces = pieces_of(u->model->tokenizer, ids, n);
        reply.n_pieces = n;
        if (reply.pieces == NULL) {
            u->status = BT_ENOMEM;
            return;
        }
    }
    u->status = bt_router_front_grpc_pack(&reply.base, &u->out);
    free(reply.pieces);
}

static bt_status handle_tokenize(unary_call *u, const uint8_t *data, size_t len, bt_error *err)
{
    bt_status status = bt_router_front_grpc_unpack(&baton__v1__tokenize_request__descriptor, data,
                                                   len, &u->message, err);
    if (status != BT_OK) {
        return status;
    }
    const Baton__V1__TokenizeRequest *request = (const Baton__V1__TokenizeRequest *)u->message;
    status = find_model(u, request->model, err);
    if (status != BT_OK) {
        return status;
    }
    bt_router_prompt_input input = {.no_special = request->no_special != 0};
    bt_chat_message *messages = NULL;
    if (request->input_case == BATON__V1__TOKENIZE_REQUEST__INPUT_TEXT) {
        input.kind = BT_ROUTER_PROMPT_TEXT;
        input.text = request->text;
        input.text_len = strlen(request->text);
    } else if (request->input_case == BATON__V1__TOKENIZE_REQUEST__INPUT_CHAT) {
        status = bt_router_front_grpc_chat(request->chat, &messages);
        input.kind = BT_ROUTER_PROMPT_CHAT;
        input.messages = messages;
        input.n_messages = request->chat->n_messages;
    } else {
        status = bt_error_set(err, BT_EINVAL, "input is missing: set one of text and chat");
    }
    u->wants_pieces = request->pieces != 0;
    if (status == BT_OK) {
        status = bt_router_prompt_create(u->model, &input, NULL, &u->prompt);
    }
    free(messages);
    return status != BT_OK ? status : start_job(u, run_tokenize, err);
}

static bt_status detokenize(unary_call *u, const int32_t *ids, size_t n, bool skip_special)
{
    const unsigned flags =
        BT_DETOKENIZE_TEXT_START | (skip_special ? 0U : (unsigned)BT_DETOKENIZE_SPECIAL);
    bt_text text = {0};
    bt_status status = bt_detokenize(u->model->tokenizer, ids, n, flags, &text);
    if (status == BT_OK) {
        status = bt_router_front_grpc_pack_string(1, text.bytes, text.len, &u->out);
    }
    bt_text_deinit(&text);
    Baton__V1__DetokenizeReply reply = BATON__V1__DETOKENIZE_REPLY__INIT;
    reply.pieces = status == BT_OK ? pieces_of(u->model->tokenizer, ids, n) : NULL;
    reply.n_pieces = reply.pieces == NULL ? 0 : n;
    if (status == BT_OK) {
        status = reply.pieces == NULL ? BT_ENOMEM : bt_router_front_grpc_pack(&reply.base, &u->out);
    }
    free(reply.pieces);
    return status;
}

static void run_detokenize(void *ctx)
{
    unary_call *u = ctx;
    const Baton__V1__DetokenizeRequest *request = (const Baton__V1__DetokenizeRequest *)u->message;
    const uint32_t n_vocab = bt_tokenizer_vocab_size(u->model->tokenizer);
    for (size_t i = 0; i < request->n_ids; i++) {
        if (request->ids[i] >= n_vocab) {
            u->status =
                bt_error_set(&u->error, BT_EINVAL,
                             "ids[%zu] is %" PRIu32 ": the vocabulary has %" PRIu32 " tokens", i,
                             request->ids[i], n_vocab);
            return;
        }
    }
    const int32_t *ids = (const int32_t *)(const void *)request->ids;
    u->status = detokenize(u, ids, request->n_ids, request->skip_special != 0);
}

static bt_status handle_detokenize(unary_call *u, const uint8_t *data, size_t len, bt_error *err)
{
    bt_status status = bt_router_front_grpc_unpack(&baton__v1__detokenize_request__descriptor, data,
                                                   len, &u->message, err);
    if (status == BT_OK) {
        status = find_model(u, ((const Baton__V1__DetokenizeRequest *)u->message)->model, err);
    }
    return status != BT_OK ? status : start_job(u, run_detokenize, err);
}

static bt_status handle_list_models(unary_call *u, const uint8_t *data, size_t len, bt_error *err)
{
    (void)data;
    (void)len;
    (void)err;
    const bt_status status = bt_router_front_grpc_pack_models(u->front->router, &u->out);
    if (status == BT_OK) {
        finish_unary(u, BT_OK, "");
    }
    return status;
}

static bt_status handle_status(unary_call *u, const uint8_t *data, size_t len, bt_error *err)
{
    (void)data;
    (void)len;
    (void)err;
    const bt_status status = bt_router_front_grpc_pack_status(u->front->router, &u->out);
    if (status == BT_OK) {
        finish_unary(u, BT_OK, "");
    }
    return status;
}

static void on_unary_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end,
                             void *ctx)
{
    unary_call *u = ctx;
    if (u->answered) {
        return;
    }
    u->answered = true;
    if (end) {
        finish_error(call, BT_EINVAL, "the call ended without a request", 0);
        return;
    }
    rest_patience(&u->patience);
    bt_error err = {.text = ""};
    const bt_status status = u->handle(u, data, len, &err);
    if (status != BT_OK) {
        finish_unary(u, status, err.text);
    }
}

static void on_unary_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    (void)code;
    (void)message;
    unary_call *u = ctx;
    bt_timer_destroy(u->patience.timer);
    if (u->job_running) {
        u->call = NULL; /* the job frees it */
        return;
    }
    free_unary(u);
}

static const bt_rpc_callbacks unary_callbacks = {
    .on_message = on_unary_message,
    .on_done = on_unary_done,
};

static void accept_unary(bt_rpc_call *call, bt_router_front_grpc *front, unary_fn handle)
{
    unary_call *u = calloc(1, sizeof *u);
    if (u == NULL || begin_patience(&u->patience, front->router, call) != BT_OK) {
        free(u);
        bt_rpc_call_finish(call, BT_RPC_RESOURCE_EXHAUSTED, "the router is out of memory", NULL, 0);
        return;
    }
    u->front = front;
    u->call = call;
    u->handle = handle;
    bt_rpc_call_accept(call, &unary_callbacks, u);
    bt_rpc_call_recv(call);
}

static void on_tokenize(bt_rpc_call *call, void *ctx)
{
    accept_unary(call, ctx, handle_tokenize);
}

static void on_detokenize(bt_rpc_call *call, void *ctx)
{
    accept_unary(call, ctx, handle_detokenize);
}

static void on_list_models(bt_rpc_call *call, void *ctx)
{
    accept_unary(call, ctx, handle_list_models);
}

static void on_status(bt_rpc_call *call, void *ctx)
{
    accept_unary(call, ctx, handle_status);
}

/* -------------------------------------------------------------------------- the front ---- */

bt_status bt_router_front_grpc_create(bt_router *router, bt_router_front_grpc **out)
{
    static const struct {
        const char *path;
        bt_rpc_handler handler;
    } routes[] = {
        {"/baton.v1.Generation/Generate", handle_generate},
        {"/baton.v1.Generation/Tokenize", on_tokenize},
        {"/baton.v1.Generation/Detokenize", on_detokenize},
        {"/baton.v1.Generation/ListModels", on_list_models},
        {"/baton.v1.Generation/GetClusterStatus", on_status},
    };
    bt_router_front_grpc *front = calloc(1, sizeof *front);
    if (front == NULL) {
        return BT_ENOMEM;
    }
    front->router = router;
    for (size_t i = 0; i < BT_ARRAY_LEN(routes); i++) {
        const bt_status status =
            bt_rpc_server_handle(router->client_server, routes[i].path, routes[i].handler, front);
        if (status != BT_OK) {
            free(front);
            return status;
        }
    }
    *out = front;
    return BT_OK;
}

void bt_router_front_grpc_destroy(bt_router_front_grpc *front)
{
    if (front == NULL) {
        return;
    }
    BT_ASSERT(front->n_jobs == 0);
    bt_text_deinit(&front->scratch);
    free(front);
}

bool bt_router_front_grpc_is_busy(const bt_router_front_grpc *front)
{
    return front->n_jobs > 0;
}
