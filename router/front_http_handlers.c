/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP front's handlers, on the HTTP server's thread: keys, pages, and bodies into calls that
 * the loop goes on with. What they read of the router is fixed after create, or atomic. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/name.h"
#include "router/front_http_call.h"

enum {
    SILENCE_MS = 10000, /* a loop that ticks no more is not alive */
    CONNECTIONS_EXTRA = 4096,
    TIMEOUT_S = 60,
    HEAD_BYTES_MAX = 32 << 10,
    BODIES_BYTES_MAX = 64 << 20,
};

static const int64_t ms_ns = 1000000;

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

/* What such a failure is over HTTP. */
static void respond_failure(bt_http_request *request, bt_status status,
                            const bt_router_http_error *err)
{
    const char *code;
    const unsigned http_code = bt_router_http_code_of(status, &code);
    respond_error(request, http_code, code, err);
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
    bt_http_respond_header(request, "WWW-Authenticate", "Bearer");
    respond_failure(request, status, &err);
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
        respond_failure(request, status, &err);
        return;
    }
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    bt_router_http_pack_model(&w, bt_router_models_at(front->router->models, idx),
                              front->created_s);
    respond_json(request, 200, &w);
}

void bt_router_http_call_free(bt_router_http_call *call)
{
    for (uint32_t i = 0; i < call->n_choices; i++) {
        bt_text_deinit(&call->choices[i].text);
        free(call->choices[i].results);
    }
    free(call->choices);
    bt_router_http_request_deinit(&call->request);
    free(call);
}

static void read_label(bt_router_http_call *call, const char *label)
{
    if (label == NULL) {
        return;
    }
    bt_error *err = call->status == BT_OK ? &call->error.text : NULL; /* the first one is told */
    const bt_status status = bt_name_check("x-request-id", label, BT_ROUTER_LABEL_MAX, err);
    if (status == BT_OK) {
        (void)snprintf(call->label, sizeof call->label, "%s", label);
        call->has_label = true;
    } else if (call->status == BT_OK) {
        call->status = status;
    }
}

/* What is wrong with a request is told by the loop, which counts it. */
static void on_generate(bt_http_request *request, bt_router_front_http *front, bool is_chat)
{
    bt_router_http_error err = {.param = ""};
    bt_router_http_call *call = calloc(1, sizeof *call);
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
        if (status == BT_ENOMEM) {
            (void)bt_error_set(&err.text, status, "the router is out of memory");
        }
        if (call != NULL) {
            bt_router_http_call_free(call);
        }
        respond_failure(request, status, &err);
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

bt_status bt_router_http_create_server(bt_router_front_http *front,
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
