/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI-style HTTP. Two threads:
 *
 *   server's thread: key, JSON -> a call, deferred          (on_generate)
 *   loop: submits one request for each choice, packs what comes, answers
 *
 *   BEGAN --submit all--> OPEN --last choice is through--> answered, freed
 *              |            `--a choice fails, out of memory, client gone--> abandoned, freed
 *              `--refused--> answered, freed
 *
 * A stream's head waits for its first piece, so that what fails before it has a status code of its
 * own; a comment keeps it (and proxies on the way) patient after http_keepalive_ms. The call is
 * freed when its stream is taken, which is where every path ends. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/http.h"
#include "common/log.h"
#include "router/clients.h"
#include "router/front_http_int.h"
#include "router/router_int.h"

enum {
    TICK_MS = 200,
    SILENCE_MS = 10000, /* a loop that ticks no more is not alive */
    DRAIN_POLL_MS = 10,
    DRAIN_MS_MAX = 1000, /* for last bytes to reach clients */
    CONNECTIONS_EXTRA = 4096,
    TIMEOUT_S = 60,
    HEAD_BYTES_MAX = 32 << 10,
    BODIES_BYTES_MAX = 64 << 20,
    HEADERS_MAX = 4,
};

static const int64_t ms_ns = 1000000;

typedef struct http_call http_call;

typedef struct http_choice {
    http_call *call;
    bt_router_request *request; /* NULL before submit and after its end */
    uint32_t idx;
    uint32_t prompt_idx;
    const bt_tokenizer *tokenizer;
    bool has_begun; /* a chunk of it was sent */
    uint32_t offset;
    uint32_t n_skipped; /* leading prompt tokens without text */
    /* gathered, for an answer as a whole */
    bt_text text;
    bt_token_result *results;
    size_t n_results;
    size_t results_capacity;
    /* its end */
    bt_router_http_part last;
    char stop[BT_ROUTER_STOP_STRING_BYTES_MAX];
} http_choice;

struct http_call {
    http_call *next;
    http_call *prev;
    bt_router_front_http *front;
    bt_http_stream *stream;
    /* made by the server's thread */
    bt_status status; /* of parsing */
    bt_router_http_error error;
    bt_router_http_request request;
    bt_keys_client client;
    bool has_client;
    bool has_label;
    char label[BT_ROUTER_LABEL_MAX]; /* the client's; later the first request's */
    char host[BT_HTTP_HOST_BYTES];
    int64_t received_ns;
    /* the loop's */
    bool is_listed;
    bool has_begun; /* the answer's head is out */
    int64_t sent_ns;
    char model[BT_ROUTER_MODEL_NAME_MAX];
    bt_router_http_head head;
    bt_router_http_usage usage;
    http_choice *choices;
    uint32_t n_choices;
    uint32_t n_open;
};

struct bt_router_front_http {
    bt_router *router;
    bt_keys *keys;
    bt_http_server *server;
    bt_wake *wake;
    bt_timer *tick;
    http_call *calls;
    size_t n_calls;
    bt_json_writer writer;
    bt_text scratch; /* of one event going out */
    int64_t created_s;
    bt_timer *drain_timer;
    int64_t drain_until_ns;
    bt_loop_fn drain_done;
    void *drain_ctx;
    /* Written by the loop, read by the server's thread; each stands alone. */
    _Atomic bool is_ready;
    _Atomic int64_t alive_ns;
    _Atomic uint32_t n_strangers; /* the other way round: to be reported */
};

/* ------------------------------------------------------------------ the server's thread ---- */

static void respond_json(bt_http_request *request, unsigned http_code, bt_json_writer *w)
{
    size_t len;
    const char *text = bt_json_writer_text(w, &len);
    if (text == NULL) {
        bt_http_respond_text(request, 500, "out of memory\n");
    } else {
        bt_http_respond(request, http_code, "application/json", text, len);
    }
    bt_json_writer_deinit(w);
}

static void respond_error(bt_http_request *request, unsigned http_code, const char *code,
                          const bt_router_http_error *err)
{
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    bt_router_http_pack_error(&w, http_code, code, err);
    respond_json(request, http_code, &w);
}

/* On BT_OK *client says who it is, if anybody is asked. */
static bt_status check_key(bt_router_front_http *front, bt_http_request *request,
                           bt_keys_client *client, bt_error *err)
{
    return front->keys == NULL
               ? BT_OK
               : bt_keys_check(front->keys, bt_http_request_header(request, "Authorization"),
                               BT_KEYS_API, client, err);
}

static void gate(bt_http_request *request, void *ctx)
{
    bt_router_front_http *front = ctx;
    const char *path = bt_http_request_path(request);
    bt_router_http_error err = {.param = ""};
    if (strcmp(path, "/healthz") == 0 || strcmp(path, "/readyz") == 0) {
        return;
    }
    const bt_status status = check_key(front, request, NULL, &err.text);
    if (status == BT_OK) {
        return;
    }
    atomic_fetch_add_explicit(&front->n_strangers, 1, memory_order_relaxed);
    const char *code;
    const unsigned http_code = bt_router_http_code_of(status, &code);
    bt_http_respond_header(request, "WWW-Authenticate", "Bearer");
    respond_error(request, http_code, code, &err);
}

static void refuse(bt_http_request *request, unsigned http_code, const char *text, void *ctx)
{
    (void)ctx;
    bt_router_http_error err = {.param = ""};
    (void)bt_error_set(&err.text, BT_EINVAL, "%s: %s %.128s", text, bt_http_request_method(request),
                       bt_http_request_path(request));
    if (http_code == 503) {
        bt_http_respond_header(request, "Retry-After", "1");
    }
    respond_error(request, http_code, http_code == 404 ? "not_found" : NULL, &err);
}

static void on_healthz(bt_http_request *request, void *ctx)
{
    bt_router_front_http *front = ctx;
    const int64_t alive_ns = atomic_load_explicit(&front->alive_ns, memory_order_relaxed);
    const bool is_alive = bt_clock_now_ns() - alive_ns < SILENCE_MS * ms_ns;
    bt_http_respond_text(request, is_alive ? 200 : 503, is_alive ? "ok\n" : "not alive\n");
}

static void on_readyz(bt_http_request *request, void *ctx)
{
    bt_router_front_http *front = ctx;
    const bool ready = atomic_load_explicit(&front->is_ready, memory_order_relaxed);
    bt_http_respond_text(request, ready ? 200 : 503, ready ? "ready\n" : "not ready\n");
}

static void on_models(bt_http_request *request, void *ctx)
{
    bt_router_front_http *front = ctx;
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    bt_router_http_pack_models(&w, front->router->models, front->created_s);
    respond_json(request, 200, &w);
}

static void on_model(bt_http_request *request, void *ctx)
{
    bt_router_front_http *front = ctx;
    const char *name = bt_http_request_path(request) + strlen("/v1/models/");
    uint32_t idx;
    bt_router_http_error err = {.param = "model"};
    const bt_status status = bt_router_models_find(front->router->models, name, &idx, &err.text);
    if (status != BT_OK) {
        const char *code;
        const unsigned http_code = bt_router_http_code_of(status, &code);
        respond_error(request, http_code, code, &err);
        return;
    }
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    bt_router_http_pack_model(&w, bt_router_models_at(front->router->models, idx),
                              front->created_s);
    respond_json(request, 200, &w);
}

static void free_call(http_call *call)
{
    for (uint32_t i = 0; i < call->n_choices; i++) {
        bt_text_deinit(&call->choices[i].text);
        free(call->choices[i].results);
    }
    free(call->choices);
    bt_router_http_request_deinit(&call->request);
    free(call);
}

static void read_label(http_call *call, const char *label)
{
    if (label == NULL) {
        return;
    }
    if (bt_router_label_is_valid(label)) {
        (void)snprintf(call->label, sizeof call->label, "%s", label);
        call->has_label = true;
    } else if (call->status == BT_OK) {
        call->status = bt_error_set(&call->error.text, BT_EINVAL,
                                    "x-request-id must be 1 to %d letters, digits, '-', '_' or '.'",
                                    BT_ROUTER_LABEL_MAX - 1);
    }
}

/* What is wrong with a request is told by the loop, which counts it. */
static void on_generate(bt_http_request *request, bt_router_front_http *front, bool is_chat)
{
    bt_router_http_error err = {.param = ""};
    http_call *call = calloc(1, sizeof *call);
    bt_status status = BT_ENOMEM;
    if (call != NULL) {
        size_t len;
        const char *body = bt_http_request_body(request, &len);
        call->front = front;
        call->received_ns = bt_clock_now_ns();
        call->status = bt_router_http_parse(body, len, is_chat, &call->request, &call->error);
        call->has_client = front->keys != NULL;
        status = check_key(front, request, &call->client, &err.text);
        read_label(call, bt_http_request_header(request, "x-request-id"));
        bt_http_request_host(request, call->host);
        if (status == BT_OK) {
            status = bt_http_defer(request, call);
        }
    }
    if (status != BT_OK) {
        const char *code;
        const unsigned http_code = bt_router_http_code_of(status, &code);
        if (status == BT_ENOMEM) {
            (void)bt_error_set(&err.text, status, "the router is out of memory");
        }
        if (call != NULL) {
            free_call(call);
        }
        respond_error(request, http_code, code, &err);
    }
}

static void on_completions(bt_http_request *request, void *ctx)
{
    on_generate(request, ctx, false);
}

static void on_chat(bt_http_request *request, void *ctx)
{
    on_generate(request, ctx, true);
}

static void on_news(void *ctx)
{
    bt_router_front_http *front = ctx;
    bt_wake_ring(front->wake);
}

/* -------------------------------------------------------------------------- the loop: end ---- */

static void enlist(http_call *call)
{
    bt_router_front_http *front = call->front;
    call->next = front->calls;
    if (front->calls != NULL) {
        front->calls->prev = call;
    }
    front->calls = call;
    front->n_calls++;
    call->is_listed = true;
}

/* The stream has been taken. */
static void finish_call(http_call *call)
{
    bt_router_front_http *front = call->front;
    BT_ASSERT(call->stream == NULL);
    if (call->is_listed) {
        *(call->prev == NULL ? &front->calls : &call->prev->next) = call->next;
        if (call->next != NULL) {
            call->next->prev = call->prev;
        }
        front->n_calls--;
    }
    free_call(call);
}

static void abandon_choices(http_call *call, const char *why)
{
    for (uint32_t i = 0; i < call->n_choices; i++) {
        if (call->choices[i].request != NULL) {
            bt_router_request_abandon(call->choices[i].request, why);
            call->choices[i].request = NULL;
        }
    }
}

static void cut_call(http_call *call, const char *why)
{
    abandon_choices(call, why);
    bt_http_stream_cut(&call->stream);
    finish_call(call);
}

/* Headers that every answer of a call has; `texts` holds what they point to. */
typedef struct answer_headers {
    bt_http_header list[HEADERS_MAX];
    size_t n;
    char seconds[24];
    char milliseconds[24];
} answer_headers;

static void add_header(answer_headers *h, const char *name, const char *value)
{
    BT_ASSERT(h->n < HEADERS_MAX);
    h->list[h->n++] = (bt_http_header){.name = name, .value = value};
}

static void fill_headers(const http_call *call, bt_status status, uint64_t retry_after_ms,
                         answer_headers *h)
{
    h->n = 0;
    if (call->label[0] != '\0') {
        add_header(h, "x-request-id", call->label);
    }
    if (status == BT_EEXHAUSTED || status == BT_EPEER) {
        const uint64_t ms =
            retry_after_ms > 0 ? retry_after_ms : call->front->router->options.retry_pushback_ms;
        (void)snprintf(h->milliseconds, sizeof h->milliseconds, "%" PRIu64, ms);
        (void)snprintf(h->seconds, sizeof h->seconds, "%" PRIu64, ms / 1000 + (ms % 1000 > 0));
        add_header(h, "Retry-After", h->seconds);
        add_header(h, "retry-after-ms", h->milliseconds);
    }
}

/* One server-sent event of what the writer holds. false: out of memory. */
static bool send_event(http_call *call)
{
    bt_router_front_http *front = call->front;
    size_t len;
    const char *text = bt_json_writer_text(&front->writer, &len);
    bt_text *scratch = &front->scratch;
    scratch->len = 0;
    if (text == NULL || bt_text_append(scratch, "data: ", 6) != BT_OK ||
        bt_text_append(scratch, text, len) != BT_OK ||
        bt_text_append(scratch, "\n\n", 2) != BT_OK) {
        return false;
    }
    bt_http_stream_send(call->stream, scratch->bytes, scratch->len);
    call->sent_ns = bt_clock_now_ns();
    return true;
}

static void begin_stream(http_call *call)
{
    answer_headers h;
    if (call->has_begun) {
        return;
    }
    fill_headers(call, BT_OK, 0, &h);
    add_header(&h, "Cache-Control", "no-cache");
    bt_http_stream_begin(call->stream, 200, "text/event-stream; charset=utf-8", h.list, h.n);
    call->has_begun = true;
}

/* Tells the client in the way that is still open, and ends the call. */
static void fail_call(http_call *call, bt_status status, const bt_router_http_error *err,
                      uint64_t retry_after_ms)
{
    bt_json_writer *w = &call->front->writer;
    const char *code;
    const unsigned http_code = bt_router_http_code_of(status, &code);
    abandon_choices(call, "another choice of its request failed");
    bt_json_writer_reset(w);
    bt_router_http_pack_error(w, http_code, code, err);
    size_t len;
    const char *text = bt_json_writer_text(w, &len);
    if (text == NULL || (call->has_begun && !send_event(call))) {
        cut_call(call, "the router is out of memory");
        return;
    }
    if (call->has_begun) {
        bt_http_stream_end(&call->stream);
    } else {
        answer_headers h;
        fill_headers(call, status, retry_after_ms, &h);
        bt_http_stream_respond(&call->stream, http_code, "application/json", h.list, h.n, text,
                               len);
    }
    finish_call(call);
}

/* All choices are through. */
static void complete_call(http_call *call)
{
    bt_json_writer *w = &call->front->writer;
    bt_json_writer_reset(w);
    if (call->head.stream) {
        if (call->head.include_usage) {
            bt_router_http_pack_usage_chunk(w, &call->head, &call->usage);
            if (!send_event(call)) {
                cut_call(call, "the router is out of memory");
                return;
            }
        }
        static const char done[] = "data: [DONE]\n\n";
        bt_http_stream_send(call->stream, done, sizeof done - 1);
        bt_http_stream_end(&call->stream);
        finish_call(call);
        return;
    }
    bt_router_http_part parts[BT_ROUTER_HTTP_CHOICES_MAX];
    for (uint32_t i = 0; i < call->n_choices; i++) {
        http_choice *choice = &call->choices[i];
        parts[i] = choice->last;
        parts[i].is_first = true;
        parts[i].text = choice->text.bytes == NULL ? "" : choice->text.bytes;
        parts[i].text_len = choice->text.len;
        parts[i].results = choice->results;
        parts[i].n_results = choice->n_results;
        parts[i].n_skipped = choice->n_skipped;
    }
    bt_router_http_pack_answer(w, &call->head, parts, call->n_choices, &call->usage);
    size_t len;
    const char *text = bt_json_writer_text(w, &len);
    if (text == NULL) {
        cut_call(call, "the router is out of memory");
        return;
    }
    answer_headers h;
    fill_headers(call, BT_OK, 0, &h);
    bt_http_stream_respond(&call->stream, 200, "application/json", h.list, h.n, text, len);
    finish_call(call);
}

/* ----------------------------------------------------------------------- the loop: deltas ---- */

static bool gather(http_choice *choice, const bt_router_delta *delta)
{
    const bt_router_piece *piece = &delta->piece;
    if (bt_text_append(&choice->text, piece->text_len == 0 ? "" : piece->text, piece->text_len) !=
        BT_OK) {
        return false;
    }
    if (!delta->logprobs || piece->n_results == 0) {
        return true;
    }
    const size_t n = choice->n_results + piece->n_results;
    if (n > choice->results_capacity) {
        const size_t capacity = bt_size_max(n, 2 * choice->results_capacity);
        bt_token_result *grown = realloc(choice->results, capacity * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        choice->results = grown;
        choice->results_capacity = capacity;
    }
    memcpy(choice->results + choice->n_results, piece->results,
           piece->n_results * sizeof *piece->results);
    choice->n_results = n;
    return true;
}

static bool send_chunk(http_choice *choice, const bt_router_delta *delta)
{
    http_call *call = choice->call;
    const bt_router_piece *piece = &delta->piece;
    if (piece->n_results == 0 && piece->text_len == 0 && !delta->is_last) {
        return true; /* a first delta with nothing in it */
    }
    bt_router_http_part part = choice->last;
    part.is_first = !choice->has_begun;
    part.is_last = delta->is_last;
    part.text = piece->text_len == 0 ? "" : piece->text;
    part.text_len = piece->text_len;
    part.results = delta->logprobs ? piece->results : NULL;
    part.n_results = delta->logprobs ? piece->n_results : 0;
    part.n_skipped = piece->is_prompt && piece->first_index == 0 ? choice->n_skipped : 0;
    bt_json_writer_reset(&call->front->writer);
    bt_router_http_pack_chunk(&call->front->writer, &call->head, &part);
    begin_stream(call);
    choice->has_begun = true;
    return send_event(call);
}

/* Keeps of the last delta what is needed when the request is gone. */
static void take_end(http_choice *choice, const bt_router_delta *delta)
{
    http_call *call = choice->call;
    const bt_router_summary *summary = delta->summary;
    bt_router_http_part *last = &choice->last;
    last->is_last = true;
    last->reason = summary->reason;
    last->has_stop_token = summary->has_stop_token;
    last->stop_token = summary->stop_token;
    if (delta->stop != NULL) {
        last->stop_len = bt_size_min(delta->stop_len, sizeof choice->stop);
        memcpy(choice->stop, delta->stop, last->stop_len);
        last->stop = choice->stop;
    }
    call->usage.generated_tokens += summary->generated_tokens;
    if (choice->idx == choice->prompt_idx * call->request.n) { /* a prompt counts once */
        call->usage.prompt_tokens += summary->prompt_tokens;
        call->usage.cached_tokens += summary->cached_tokens;
    }
}

/* One delta of a choice. false: the call has ended. */
static bool take_delta(http_choice *choice, const bt_router_delta *delta)
{
    http_call *call = choice->call;
    if (delta->is_last && delta->status != BT_OK) {
        const bt_status status = delta->status;
        const uint64_t retry_after_ms = delta->retry_after_ms;
        bt_router_http_error err = {.param = ""};
        (void)bt_error_set(&err.text, status, "%s",
                           delta->error != NULL && delta->error[0] != '\0'
                               ? delta->error
                               : bt_status_text(status));
        bt_router_http_adapt_error(call->head.is_chat, &err);
        bt_router_request_consume(choice->request, delta);
        bt_router_request_release(choice->request);
        choice->request = NULL;
        fail_call(call, status, &err, retry_after_ms);
        return false;
    }
    if (delta->is_last) {
        take_end(choice, delta);
    }
    const bool good = call->head.stream ? send_chunk(choice, delta) : gather(choice, delta);
    if (!good) {
        cut_call(call, "the router is out of memory");
        return false;
    }
    bt_router_request_consume(choice->request, delta);
    if (delta->is_last) {
        bt_router_request_release(choice->request);
        choice->request = NULL;
        call->n_open--;
    }
    return true;
}

/* Takes what there is, as far as the client takes it. The call may be gone afterwards. */
static void pump(http_call *call)
{
    for (uint32_t i = 0; i < call->n_choices; i++) {
        http_choice *choice = &call->choices[i];
        bt_router_delta delta;
        while (choice->request != NULL && bt_router_request_peek(choice->request, &delta)) {
            const bool is_failure = delta.is_last && delta.status != BT_OK;
            if (call->head.stream && !is_failure && !bt_http_stream_has_room(call->stream)) {
                break; /* a failure is told all the same */
            }
            if (!take_delta(choice, &delta)) {
                return;
            }
        }
    }
    if (call->n_open == 0) {
        complete_call(call);
    }
}

static void on_ready(void *ctx)
{
    http_choice *choice = ctx;
    pump(choice->call);
}

static const bt_router_front_ops front_ops = {.on_ready = on_ready};

/* ----------------------------------------------------------------------- the loop: submit ---- */

static bt_status submit_choice(http_call *call, http_choice *choice, bt_error *err,
                               uint64_t *retry_after_ms)
{
    bt_router *router = call->front->router;
    char label[BT_ROUTER_LABEL_MAX];
    bt_router_front_request front = call->request.front;
    front.prompt = call->request.prompts[choice->prompt_idx];
    front.client = call->has_client ? call->client.name : NULL;
    front.client_shares = call->has_client && call->client.shares;
    front.peer = call->host;
    front.sampling.seed += choice->idx % call->request.n;
    if (call->has_label) {
        const bool fits = choice->idx > 0 && strlen(call->label) + 4 < sizeof label;
        (void)snprintf(label, sizeof label, fits ? "%s.%" PRIu32 : "%s", call->label, choice->idx);
        front.label = label;
    }
    const bt_status status = bt_router_request_submit(router, &front, &front_ops, choice,
                                                      &choice->request, err, retry_after_ms);
    if (status == BT_OK) {
        choice->tokenizer = bt_router_request_tokenizer(choice->request);
        choice->last.tokenizer = choice->tokenizer;
        const bool has_bos = front.prompt.kind == BT_ROUTER_PROMPT_TEXT &&
                             !front.prompt.no_special && front.sampling.echo;
        choice->n_skipped = has_bos && bt_tokenizer_adds_bos(choice->tokenizer);
    }
    return status;
}

static bt_status submit_all(http_call *call, bt_error *err, uint64_t *retry_after_ms)
{
    const uint32_t n = (uint32_t)call->request.n_prompts * call->request.n;
    call->choices = calloc(n, sizeof *call->choices);
    if (call->choices == NULL) {
        return bt_error_set(err, BT_ENOMEM, "the router is out of memory");
    }
    call->n_choices = n;
    for (uint32_t i = 0; i < n; i++) {
        http_choice *choice = &call->choices[i];
        choice->call = call;
        choice->idx = i;
        choice->prompt_idx = i / call->request.n;
        choice->last.idx = i;
        choice->last.offset = &choice->offset;
        const bt_status status = submit_choice(call, choice, err, retry_after_ms);
        if (status != BT_OK) {
            return status;
        }
        call->n_open++;
    }
    return BT_OK;
}

/* The model's name and the label are those of the router from here on. */
static void fill_head(http_call *call)
{
    const bt_router *router = call->front->router;
    const bt_router_request *first = call->choices[0].request;
    if (!call->has_label) {
        (void)snprintf(call->label, sizeof call->label, "%s", bt_router_request_label(first));
    }
    (void)snprintf(call->model, sizeof call->model, "%s",
                   bt_router_models_at(router->models, first->model_idx)->name);
    call->head = (bt_router_http_head){
        .is_chat = call->request.is_chat,
        .stream = call->request.stream,
        .include_usage = call->request.include_usage,
        .label = call->label,
        .model = call->model,
        .created_s = bt_clock_wall_ns() / (1000 * ms_ns),
    };
    /* Only what submit() copied is needed further on. */
    bt_router_http_request_deinit(&call->request);
}

static void begin_call(http_call *call, bt_http_stream *stream)
{
    bt_router *router = call->front->router;
    uint64_t retry_after_ms = 0;
    call->stream = stream;
    call->sent_ns = call->received_ns;
    enlist(call);
    bt_status status = call->status;
    if (status != BT_OK) {
        bt_router_report_refusal(router, status);
    } else {
        status = submit_all(call, &call->error.text, &retry_after_ms);
        if (status == BT_ENOTFOUND) {
            (void)snprintf(call->error.param, sizeof call->error.param, "model");
        }
        bt_router_http_adapt_error(call->request.is_chat, &call->error);
    }
    if (status != BT_OK) {
        fail_call(call, status, &call->error, retry_after_ms);
        return;
    }
    fill_head(call);
}

static void on_wake(void *ctx)
{
    bt_router_front_http *front = ctx;
    unsigned news;
    void *of;
    bt_http_stream *stream;
    while ((stream = bt_http_server_next(front->server, &news, &of)) != NULL) {
        http_call *call = of;
        if ((news & BT_HTTP_GONE) != 0) {
            call->stream = stream;
            cut_call(call, "the client went away");
        } else if ((news & BT_HTTP_BEGAN) != 0) {
            begin_call(call, stream);
        } else {
            pump(call);
        }
    }
}

/* ------------------------------------------------------------------------------- the loop ---- */

static void keep_alive(http_call *call, int64_t now_ns)
{
    static const char comment[] = ": keep-alive\n\n";
    const int64_t silence_ns = (int64_t)call->front->router->options.http_keepalive_ms * ms_ns;
    if (call->head.stream && now_ns - call->sent_ns >= silence_ns &&
        bt_http_stream_has_room(call->stream)) {
        begin_stream(call);
        bt_http_stream_send(call->stream, comment, sizeof comment - 1);
        call->sent_ns = now_ns;
    }
}

static void on_tick(void *ctx)
{
    bt_router_front_http *front = ctx;
    const int64_t now_ns = bt_clock_now_ns();
    atomic_store_explicit(&front->is_ready, bt_router_is_ready(front->router),
                          memory_order_relaxed);
    atomic_store_explicit(&front->alive_ns, now_ns, memory_order_relaxed);
    for (http_call *call = front->calls; call != NULL; call = call->next) {
        keep_alive(call, now_ns);
    }
    uint32_t n = atomic_exchange_explicit(&front->n_strangers, 0, memory_order_relaxed);
    for (; n > 0; n--) {
        bt_router_report_refusal(front->router, BT_EPERMISSION);
    }
}

static bt_status create_server(bt_router_front_http *front,
                               const bt_router_front_http_options *options, bt_error *err)
{
    const bt_router_options *o = &front->router->options;
    const bt_http_options server_options = {
        .address = options->address,
        .connections_max = o->requests_max + CONNECTIONS_EXTRA,
        .timeout_s = TIMEOUT_S,
        .head_bytes_max = HEAD_BYTES_MAX,
        .body_bytes_max = o->request_bytes_max,
        .bodies_bytes_max = bt_size_max(BODIES_BYTES_MAX, 4 * (size_t)o->request_bytes_max),
        .tls_cert = options->tls_cert,
        .tls_key = options->tls_key,
        .tls_client_ca = options->tls_client_ca,
        .hooks = {.gate = gate, .refuse = refuse, .on_news = on_news, .ctx = front},
    };
    static const struct {
        const char *method;
        const char *path;
        bt_http_handler handler;
    } routes[] = {
        {"POST", "/v1/completions", on_completions},
        {"POST", "/v1/chat/completions", on_chat},
        {"GET", "/v1/models", on_models},
        {"GET", "/v1/models/*", on_model},
        {"GET", "/healthz", on_healthz},
        {"GET", "/readyz", on_readyz},
    };
    bt_status status = bt_http_server_create(&server_options, &front->server, err);
    for (size_t i = 0; status == BT_OK && i < BT_ARRAY_LEN(routes); i++) {
        status = bt_http_server_handle(front->server, routes[i].method, routes[i].path,
                                       routes[i].handler, front);
    }
    return status;
}

bt_status bt_router_front_http_create(bt_router *router,
                                      const bt_router_front_http_options *options,
                                      bt_router_front_http **out, bt_error *err)
{
    bt_router_front_http *front = calloc(1, sizeof *front);
    if (front == NULL) {
        return BT_ENOMEM;
    }
    front->router = router;
    front->keys = options->keys;
    front->created_s = bt_clock_wall_ns() / (1000 * ms_ns);
    bt_json_writer_init(&front->writer, 0);
    atomic_store_explicit(&front->alive_ns, bt_clock_now_ns(), memory_order_relaxed);
    bt_status status = bt_wake_create(router->loop, on_wake, front, &front->wake);
    if (status == BT_OK) {
        status = bt_timer_create(router->loop, on_tick, front, &front->tick);
    }
    if (status == BT_OK) {
        status = create_server(front, options, err);
    }
    if (status == BT_OK) {
        status = bt_http_server_start(front->server, err);
    }
    if (status != BT_OK) {
        bt_router_front_http_destroy(front);
        return status;
    }
    bt_timer_start(front->tick, 0, TICK_MS);
    *out = front;
    return BT_OK;
}

int bt_router_front_http_port(const bt_router_front_http *front)
{
    return bt_http_server_port(front->server);
}

/* ------------------------------------------------------------------------------------ stop ---- */

static void on_drain(void *ctx)
{
    bt_router_front_http *front = ctx;
    const int64_t now_ns = bt_clock_now_ns();
    if (front->n_calls > 0) {
        front->drain_until_ns = now_ns + DRAIN_MS_MAX * ms_ns;
        return;
    }
    if (bt_http_server_pending(front->server) > 0 && now_ns < front->drain_until_ns) {
        return;
    }
    bt_timer_stop(front->drain_timer);
    front->drain_done(front->drain_ctx);
}

void bt_router_front_http_drain(bt_router_front_http *front, bt_loop_fn done, void *ctx)
{
    if (front == NULL) {
        done(ctx);
        return;
    }
    front->drain_done = done;
    front->drain_ctx = ctx;
    front->drain_until_ns = bt_clock_now_ns() + DRAIN_MS_MAX * ms_ns;
    if (bt_timer_create(front->router->loop, on_drain, front, &front->drain_timer) != BT_OK) {
        done(ctx); /* out of memory: nobody waits for the last bytes */
        return;
    }
    bt_timer_start(front->drain_timer, 0, DRAIN_POLL_MS);
}

void bt_router_front_http_destroy(bt_router_front_http *front)
{
    if (front == NULL) {
        return;
    }
    if (front->server != NULL) {
        unsigned news;
        void *of;
        bt_http_stream *stream;
        bt_http_server_stop(front->server);
        /* What came after the last turn of the loop. */
        while ((stream = bt_http_server_next(front->server, &news, &of)) != NULL) {
            http_call *call = of;
            call->stream = stream;
            cut_call(call, "the router is shutting down");
        }
    }
    BT_ASSERT(front->n_calls == 0);
    bt_http_server_destroy(front->server);
    bt_timer_destroy(front->drain_timer);
    bt_timer_destroy(front->tick);
    bt_wake_destroy(front->wake);
    bt_json_writer_deinit(&front->writer);
    bt_text_deinit(&front->scratch);
    free(front);
}
