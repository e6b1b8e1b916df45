/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI-style HTTP. Two threads:
 *
 *   server's thread: key, JSON -> a call, deferred          (front_http_handlers.c)
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "router/front_http_call.h"

enum {
    TICK_MS = 200,
    DRAIN_POLL_MS = 10,
    DRAIN_MS_MAX = 1000, /* for last bytes to reach clients */
    HEADERS_MAX = 4,
};

static const int64_t ms_ns = 1000000;

/* -------------------------------------------------------------------------- the loop: end ---- */

static void enlist(bt_router_http_call *call)
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
static void finish_call(bt_router_http_call *call)
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
    bt_router_http_call_free(call);
}

static void abandon_choices(bt_router_http_call *call, const char *why)
{
    for (uint32_t i = 0; i < call->n_choices; i++) {
        if (call->choices[i].request != NULL) {
            bt_router_request_abandon(call->choices[i].request, why);
            call->choices[i].request = NULL;
        }
    }
}

static void cut_call(bt_router_http_call *call, const char *why)
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

static void fill_headers(const bt_router_http_call *call, bt_status status, uint64_t retry_after_ms,
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
static bool send_event(bt_router_http_call *call)
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

static void begin_stream(bt_router_http_call *call)
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
static void fail_call(bt_router_http_call *call, bt_status status, const bt_router_http_error *err,
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
static void complete_call(bt_router_http_call *call)
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
        bt_router_http_choice *choice = &call->choices[i];
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

static bool gather(bt_router_http_choice *choice, const bt_router_delta *delta)
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

static bool send_chunk(bt_router_http_choice *choice, const bt_router_delta *delta)
{
    bt_router_http_call *call = choice->call;
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
static void take_end(bt_router_http_choice *choice, const bt_router_delta *delta)
{
    bt_router_http_call *call = choice->call;
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
static bool take_delta(bt_router_http_choice *choice, const bt_router_delta *delta)
{
    bt_router_http_call *call = choice->call;
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
static void pump(bt_router_http_call *call)
{
    for (uint32_t i = 0; i < call->n_choices; i++) {
        bt_router_http_choice *choice = &call->choices[i];
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
    bt_router_http_choice *choice = ctx;
    pump(choice->call);
}

static const bt_router_front_ops front_ops = {.on_ready = on_ready};

/* ----------------------------------------------------------------------- the loop: submit ---- */

static bt_status submit_choice(bt_router_http_call *call, bt_router_http_choice *choice,
                               bt_error *err, uint64_t *retry_after_ms)
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

static bt_status submit_all(bt_router_http_call *call, bt_error *err, uint64_t *retry_after_ms)
{
    const uint32_t n = (uint32_t)call->request.n_prompts * call->request.n;
    call->choices = calloc(n, sizeof *call->choices);
    if (call->choices == NULL) {
        return bt_error_set(err, BT_ENOMEM, "the router is out of memory");
    }
    call->n_choices = n;
    for (uint32_t i = 0; i < n; i++) {
        bt_router_http_choice *choice = &call->choices[i];
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
static void fill_head(bt_router_http_call *call)
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

static void begin_call(bt_router_http_call *call, bt_http_stream *stream)
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
        bt_router_http_call *call = of;
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

static void keep_alive(bt_router_http_call *call, int64_t now_ns)
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
    for (bt_router_http_call *call = front->calls; call != NULL; call = call->next) {
        keep_alive(call, now_ns);
    }
    uint32_t n = atomic_exchange_explicit(&front->n_strangers, 0, memory_order_relaxed);
    for (; n > 0; n--) {
        bt_router_report_refusal(front->router, BT_EPERMISSION);
    }
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
        status = bt_router_http_create_server(front, options, err);
    }
    if (status == BT_OK) {
        status = bt_http_server_start(front->server, err);
        if (status != BT_OK) {
            bt_error_prefix(err, "--http ('none' serves none)");
        }
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
            bt_router_http_call *call = of;
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
