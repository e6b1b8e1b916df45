/* SPDX-License-Identifier: Apache-2.0 */
/* Everything is reached from the loop thread. wait() runs the loop and asks its question after
 * each message that the router's side got; a guard timer ends a hanging test. */
#include "tests/support/rig.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvtransfer/transport.h"

#define EXPECT(cond) ((cond) ? (void)0 : expect_failed(__LINE__, #cond))

enum { GUARD_MS = 60000 };

typedef struct half {
    bt_rig *rig;
    bt_model *model;
    bt_link_peer *peer; /* attached */
    bt_link_hello hello;
    bt_link_load load;
    uint32_t n_blocks_known;
    bool running;
    bool stopped;
} half;

struct bt_rig {
    char dir[64];
    char model_path[96];
    char socket_paths[BT_RIG_WORKERS][96];
    bt_loop *loop;
    bt_rpc *rpc;
    bt_rpc_server *server;
    bt_link_router *router;
    bt_kv_loopback *loopback;
    bt_timer *guard;
    bt_timer *pause;
    half halves[BT_RIG_WORKERS];
    bt_prefill_worker *prefill;
    bt_decode_worker *decode;
    bt_rig_request *requests[BT_RIG_REQUESTS_MAX];
    uint32_t n_requests;
    uint64_t next_id;
    bool (*done)(void *ctx);
    void *done_ctx;
    bool server_down;
};

static void expect_failed(int line, const char *text)
{
    fprintf(stderr, "rig.c:%d: expected: %s\n", line, text);
    abort();
}

static void ask(bt_rig *rig)
{
    if (rig->done != NULL && rig->done(rig->done_ctx)) {
        rig->done = NULL;
        bt_loop_stop(rig->loop);
    }
}

static bt_rig_request *find(const bt_rig *rig, bt_request_id id, uint32_t attempt)
{
    for (uint32_t i = 0; i < rig->n_requests; i++) {
        bt_rig_request *r = rig->requests[i];
        if (r->id.hi == id.hi && r->id.lo == id.lo && r->attempt == attempt) {
            return r;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------ the router's side ---- */

static bt_status on_worker_up(bt_link_peer *worker, const bt_link_hello *hello, void *ctx,
                              bt_error *err)
{
    (void)err;
    bt_rig *rig = ctx;
    half *h = &rig->halves[hello->role == BT_LINK_ROLE_PREFILL ? BT_RIG_PREFILL : BT_RIG_DECODE];
    EXPECT(h->peer == NULL);
    h->peer = worker;
    h->hello = *hello;
    bt_link_peer_set_ctx(worker, h);
    ask(rig);
    return BT_OK;
}

static void on_load(bt_link_peer *worker, const bt_link_load *load, void *ctx)
{
    half *h = bt_link_peer_ctx(worker);
    h->load = *load;
    ask(ctx);
}

static void take_token(bt_rig_request *r, uint32_t index, const bt_token_result *result)
{
    EXPECT(index < BT_RIG_TOKENS_MAX);
    if (r->have[index]) {
        EXPECT(r->tokens[index] == result->token);
        return;
    }
    r->have[index] = true;
    r->tokens[index] = result->token;
    if (r->n_tokens == 0) {
        r->first = *result;
    }
    const uint32_t known = r->n_known != 0 ? r->n_known : r->n_prompt;
    const uint32_t before = known - r->n_prompt;
    while (before + r->n_tokens < BT_RIG_TOKENS_MAX && r->have[before + r->n_tokens]) {
        r->n_tokens++;
    }
}

static void on_tokens(bt_link_peer *worker, const bt_link_tokens *tokens, void *ctx)
{
    bt_rig *rig = ctx;
    const half *h = bt_link_peer_ctx(worker);
    bt_rig_request *r = find(rig, tokens->id, tokens->attempt);
    EXPECT(r != NULL);
    EXPECT(!r->finished[h - rig->halves]);
    for (uint32_t i = 0; i < tokens->n_results; i++) {
        if (tokens->is_prompt) {
            EXPECT(tokens->results[i].token == r->prompt[tokens->first_index + i]);
            r->n_echoed++;
        } else {
            take_token(r, tokens->first_index + i, &tokens->results[i]);
        }
    }
    ask(rig);
}

static void on_finished(bt_link_peer *worker, const bt_link_finished *finished, void *ctx)
{
    bt_rig *rig = ctx;
    const half *h = bt_link_peer_ctx(worker);
    const size_t which = (size_t)(h - rig->halves);
    bt_rig_request *r = find(rig, finished->id, finished->attempt);
    EXPECT(r != NULL);
    EXPECT(!r->finished[which]); /* exactly once */
    r->finished[which] = true;
    r->end[which] = *finished;
    ask(rig);
}

static void on_parked(bt_link_peer *worker, const bt_link_parked *parked, void *ctx)
{
    (void)worker;
    bt_rig *rig = ctx;
    bt_rig_request *r = find(rig, parked->id, parked->attempt);
    EXPECT(r != NULL);
    EXPECT(!r->finished[BT_RIG_DECODE]);
    r->n_parked++;
    r->parked = *parked;
    ask(rig);
}

static void on_blocks(bt_link_peer *worker, bt_link_blocks_kind kind, const bt_block_hash *ids,
                      size_t n, void *ctx)
{
    (void)ids;
    half *h = bt_link_peer_ctx(worker);
    switch (kind) {
    case BT_LINK_BLOCKS_RESET:
        h->n_blocks_known = 0;
        break;
    case BT_LINK_BLOCKS_STORED:
        h->n_blocks_known += (uint32_t)n;
        break;
    case BT_LINK_BLOCKS_EVICTED:
        EXPECT(h->n_blocks_known >= n);
        h->n_blocks_known -= (uint32_t)n;
        break;
    }
    ask(ctx);
}

static void on_worker_down(bt_link_peer *worker, const char *reason, void *ctx)
{
    (void)reason;
    half *h = bt_link_peer_ctx(worker);
    h->peer = NULL;
    ask(ctx);
}

static const bt_link_router_callbacks router_callbacks = {
    .on_worker_up = on_worker_up,
    .on_load = on_load,
    .on_tokens = on_tokens,
    .on_finished = on_finished,
    .on_parked = on_parked,
    .on_blocks = on_blocks,
    .on_worker_down = on_worker_down,
};

/* ------------------------------------------------------------------------------ waiting ---- */

static void on_guard(void *ctx)
{
    bt_rig *rig = ctx;
    for (uint32_t i = 0; i < rig->n_requests; i++) {
        const bt_rig_request *r = rig->requests[i];
        fprintf(stderr, "request %" PRIu64 ".%u: tokens=%u finished=%d,%d\n", r->id.lo, r->attempt,
                r->n_tokens, r->finished[0], r->finished[1]);
    }
    fprintf(stderr, "rig: what was waited for did not come within %d ms\n", GUARD_MS);
    abort();
}

static void on_pause(void *ctx)
{
    bt_rig *rig = ctx;
    bt_loop_stop(rig->loop);
}

void bt_rig_wait(bt_rig *rig, bool (*done)(void *ctx), void *ctx)
{
    if (done(ctx)) {
        return;
    }
    rig->done = done;
    rig->done_ctx = ctx;
    bt_timer_start(rig->guard, GUARD_MS, 0);
    bt_loop_run(rig->loop);
    bt_timer_stop(rig->guard);
    EXPECT(rig->done == NULL);
}

void bt_rig_run_ms(bt_rig *rig, uint64_t ms)
{
    bt_timer_start(rig->pause, ms, 0);
    bt_loop_run(rig->loop);
}

typedef struct load_wait {
    const bt_link_load *load;
    bool (*done)(const bt_link_load *load);
} load_wait;

static bool is_load_done(void *ctx)
{
    const load_wait *wait = ctx;
    return wait->done(wait->load);
}

void bt_rig_wait_load(bt_rig *rig, bt_rig_worker which, bool (*done)(const bt_link_load *load))
{
    load_wait wait = {.load = &rig->halves[which].load, .done = done};
    bt_rig_wait(rig, is_load_done, &wait);
}

static bool is_finished_p(void *ctx)
{
    return ((const bt_rig_request *)ctx)->finished[BT_RIG_PREFILL];
}

static bool is_finished_d(void *ctx)
{
    return ((const bt_rig_request *)ctx)->finished[BT_RIG_DECODE];
}

static bool is_finished_both(void *ctx)
{
    return is_finished_p(ctx) && is_finished_d(ctx);
}

void bt_rig_wait_finished(bt_rig *rig, bt_rig_worker at, bt_rig_request *request)
{
    bt_rig_wait(rig, at == BT_RIG_PREFILL ? is_finished_p : is_finished_d, request);
}

void bt_rig_wait_split(bt_rig *rig, bt_rig_request *request)
{
    bt_rig_wait(rig, is_finished_both, request);
}

typedef struct tokens_wait {
    const bt_rig_request *request;
    uint32_t n;
} tokens_wait;

static bool has_tokens(void *ctx)
{
    const tokens_wait *wait = ctx;
    return wait->request->n_tokens >= wait->n;
}

void bt_rig_wait_tokens(bt_rig *rig, bt_rig_request *request, uint32_t n)
{
    tokens_wait wait = {request, n};
    bt_rig_wait(rig, has_tokens, &wait);
}

static bool all_attached(void *ctx)
{
    const bt_rig *rig = ctx;
    for (int i = 0; i < BT_RIG_WORKERS; i++) {
        if (rig->halves[i].running && rig->halves[i].peer == NULL) {
            return false;
        }
    }
    return true;
}

/* -------------------------------------------------------------------------------- making ---- */

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value == 0 ? otherwise : value;
}

static bt_worker_options worker_options(const bt_rig *rig, const bt_rig_options *o,
                                        bt_rig_worker which)
{
    const bool is_prefill = which == BT_RIG_PREFILL;
    const bt_kv_transport transport =
        o->transport == BT_KV_TRANSPORT_AUTO ? BT_KV_TRANSPORT_LOOPBACK : o->transport;
    return (bt_worker_options){
        .name = is_prefill ? "prefill-0" : "decode-0",
        .n_routers = 1,
        .role = is_prefill ? BT_LINK_ROLE_PREFILL : BT_LINK_ROLE_DECODE,
        .pool_blocks = or_default(is_prefill ? o->prefill_blocks : o->decode_blocks, 256),
        .no_prefix_cache = o->no_prefix_cache,
        .requests_max = or_default(o->requests_max, 64),
        .running_max = or_default(o->running_max, 16),
        .token_budget = or_default(o->token_budget, 128),
        .chunk = or_default(o->chunk, 64),
        .kv_tcp = transport == BT_KV_TRANSPORT_SHM ? NULL : "127.0.0.1:0",
        .kv_unix = transport == BT_KV_TRANSPORT_SHM ? rig->socket_paths[which] : NULL,
        .kv_transport = transport,
        .kv_loopback = transport == BT_KV_TRANSPORT_LOOPBACK ? rig->loopback : NULL,
        .lease_ms = or_default(o->lease_ms, 2000),
        .kv_rate_limit_bytes_s = o->kv_rate_limit_bytes_s,
        .load_ms = 20,
        .metrics = o->metrics,
        .kv_trace = o->kv_trace,
        .kv_trace_ctx = o->kv_trace_ctx,
    };
}

static bt_model *load_model(const bt_rig *rig, const bt_worker_options *worker,
                            const bt_rig_options *o)
{
    bt_model_options options = {
        .path = o->model_path != NULL ? o->model_path : rig->model_path,
        .kernels = o->kernels != NULL ? o->kernels : "reference",
        .kv_format = BT_KV_FORMAT_BF16,
        .n_threads = 1,
    };
    bt_worker_size_model(worker, &options);
    bt_model *model = NULL;
    bt_error err = {{0}};
    if (bt_model_load(&options, &model, &err) != BT_OK) {
        fprintf(stderr, "rig: %s\n", err.text);
        abort();
    }
    return model;
}

static void start_worker(bt_rig *rig, const bt_rig_options *o, bt_rig_worker which)
{
    bt_worker_options options = worker_options(rig, o, which);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", bt_rpc_server_port(rig->server));
    const char *routers[] = {address};
    options.routers = routers;
    half *h = &rig->halves[which];
    h->model = load_model(rig, &options, o);
    options.model = h->model;
    bt_error err = {{0}};
    bt_status status;
    if (which == BT_RIG_PREFILL) {
        status = bt_prefill_worker_create(rig->loop, rig->rpc, &options, &rig->prefill, &err);
        status = status == BT_OK ? bt_prefill_worker_start(rig->prefill, &err) : status;
    } else {
        status = bt_decode_worker_create(rig->loop, rig->rpc, &options, &rig->decode, &err);
        status = status == BT_OK ? bt_decode_worker_start(rig->decode, &err) : status;
    }
    if (status != BT_OK) {
        fprintf(stderr, "rig: %s\n", err.text);
        abort();
    }
    h->running = true;
}

static void start_router(bt_rig *rig)
{
    const bt_rpc_server_options server = {.address = "127.0.0.1:0"};
    bt_error err = {{0}};
    EXPECT(bt_rpc_server_create(rig->rpc, &server, &rig->server, &err) == BT_OK);
    const bt_link_router_options link = {
        .name = "rig",
        .callbacks = &router_callbacks,
        .ctx = rig,
    };
    EXPECT(bt_link_router_create(rig->loop, rig->server, &link, &rig->router, &err) == BT_OK);
    EXPECT(bt_rpc_server_start(rig->server, &err) == BT_OK);
}

bt_rig *bt_rig_create(const bt_rig_options *options)
{
    bt_rig *rig = calloc(1, sizeof *rig);
    EXPECT(rig != NULL);
    char dir[] = "/tmp/baton-rig-XXXXXX";
    EXPECT(mkdtemp(dir) != NULL);
    snprintf(rig->dir, sizeof rig->dir, "%s", dir);
    snprintf(rig->model_path, sizeof rig->model_path, "%s/model.gguf", dir);
    for (int i = 0; i < BT_RIG_WORKERS; i++) {
        snprintf(rig->socket_paths[i], sizeof rig->socket_paths[i], "%s/kv-%d.sock", dir, i);
    }
    const bt_tiny_model *shape = options->shape != NULL ? options->shape : &bt_tiny_model_odd;
    EXPECT(bt_tiny_model_write(shape, rig->model_path) == BT_OK);
    EXPECT(bt_loop_create(&rig->loop) == BT_OK);
    EXPECT(bt_rpc_create(rig->loop, &rig->rpc) == BT_OK);
    EXPECT(bt_timer_create(rig->loop, on_guard, rig, &rig->guard) == BT_OK);
    EXPECT(bt_timer_create(rig->loop, on_pause, rig, &rig->pause) == BT_OK);
    EXPECT(bt_kv_loopback_create(rig->loop, &rig->loopback) == BT_OK);
    start_router(rig);
    for (int i = 0; i < BT_RIG_WORKERS; i++) {
        rig->halves[i].rig = rig;
        if (!(i == BT_RIG_PREFILL ? options->no_prefill : options->no_decode)) {
            start_worker(rig, options, (bt_rig_worker)i);
        }
    }
    bt_rig_wait(rig, all_attached, rig);
    return rig;
}

static void on_stopped(void *ctx)
{
    half *h = ctx;
    h->stopped = true;
    ask(h->rig);
}

static bool is_stopped(void *ctx)
{
    return ((const half *)ctx)->stopped;
}

void bt_rig_stop_worker(bt_rig *rig, bt_rig_worker which, uint64_t grace_ms)
{
    half *h = &rig->halves[which];
    if (!h->running) {
        return;
    }
    bt_worker_health health;
    if (which == BT_RIG_PREFILL) {
        bt_prefill_worker_stop(rig->prefill, grace_ms, on_stopped, h);
        bt_rig_wait(rig, is_stopped, h);
        bt_prefill_worker_get_health(rig->prefill, &health);
        bt_prefill_worker_destroy(rig->prefill);
        rig->prefill = NULL;
    } else {
        bt_decode_worker_stop(rig->decode, grace_ms, on_stopped, h);
        bt_rig_wait(rig, is_stopped, h);
        bt_decode_worker_get_health(rig->decode, &health);
        bt_decode_worker_destroy(rig->decode);
        rig->decode = NULL;
    }
    EXPECT(health.runs_open == 0);
    EXPECT(health.audit == BT_OK);
    bt_model_destroy(h->model);
    h->running = false;
}

static void on_server_down(void *ctx)
{
    bt_rig *rig = ctx;
    rig->server_down = true;
    ask(rig);
}

static bool is_server_down(void *ctx)
{
    return ((const bt_rig *)ctx)->server_down;
}

void bt_rig_destroy(bt_rig *rig)
{
    bt_rig_stop_worker(rig, BT_RIG_DECODE, 0);
    bt_rig_stop_worker(rig, BT_RIG_PREFILL, 0);
    bt_link_router_stop(rig->router, "the test is over");
    bt_rpc_server_shutdown(rig->server, 1000, on_server_down, rig);
    bt_rig_wait(rig, is_server_down, rig);
    bt_rpc_server_destroy(rig->server);
    bt_link_router_destroy(rig->router);
    bt_rpc_destroy(rig->rpc);
    bt_kv_loopback_destroy(rig->loopback);
    bt_timer_destroy(rig->guard);
    bt_timer_destroy(rig->pause);
    bt_loop_destroy(rig->loop);
    (void)unlink(rig->model_path);
    for (int i = 0; i < BT_RIG_WORKERS; i++) {
        (void)unlink(rig->socket_paths[i]);
    }
    (void)rmdir(rig->dir);
    free(rig);
}

/* ------------------------------------------------------------------------------- requests ---- */

void bt_rig_request_init(bt_rig *rig, bt_rig_request *request, const int32_t *prompt,
                         uint32_t n_prompt)
{
    *request = (bt_rig_request){
        .id = {.hi = 0xba70, .lo = ++rig->next_id},
        .prompt = prompt,
        .n_prompt = n_prompt,
        .sampling =
            {
                .top_p = 1,
                .repetition_penalty = 1,
                .max_tokens = 16,
                .ignore_eos = true,
            },
    };
}

static void send_run(bt_rig *rig, bt_rig_worker to, bt_link_mode mode, bt_rig_request *request,
                     bool has_peer)
{
    if (find(rig, request->id, request->attempt) == NULL) {
        EXPECT(rig->n_requests < BT_RIG_REQUESTS_MAX);
        rig->requests[rig->n_requests++] = request;
    }
    bt_link_run run = {
        .id = request->id,
        .attempt = request->attempt,
        .mode = mode,
        .tokens = request->prompt,
        .n_tokens = request->n_known != 0 ? request->n_known : request->n_prompt,
        .n_prompt = request->n_prompt,
        .sampling = &request->sampling,
        .chain_root = {.w = {1, 2}},
        .deadline_left_ns = request->deadline_left_ns != 0 ? request->deadline_left_ns : INT64_MAX,
    };
    if (has_peer) {
        const bt_rig_worker other = mode == BT_LINK_MODE_DECODE ? BT_RIG_PREFILL : BT_RIG_DECODE;
        run.has_peer = true;
        run.peer = rig->halves[other].hello.kv;
    }
    EXPECT(rig->halves[to].peer != NULL);
    EXPECT(bt_link_router_run(rig->halves[to].peer, &run) == BT_OK);
}

void bt_rig_send(bt_rig *rig, bt_rig_worker to, bt_link_mode mode, bt_rig_request *request)
{
    send_run(rig, to, mode, request, mode != BT_LINK_MODE_WHOLE);
}

void bt_rig_send_alone(bt_rig *rig, bt_rig_worker to, bt_link_mode mode, bt_rig_request *request)
{
    send_run(rig, to, mode, request, false);
}

void bt_rig_send_split(bt_rig *rig, bt_rig_request *request)
{
    bt_rig_send(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, request);
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_DECODE, request);
}

void bt_rig_cancel(bt_rig *rig, bt_rig_worker at, const bt_rig_request *request)
{
    if (rig->halves[at].peer != NULL) {
        bt_link_router_cancel(rig->halves[at].peer, request->id, request->attempt);
    }
}

void bt_rig_park(bt_rig *rig, const bt_rig_request *request, uint32_t next_attempt)
{
    EXPECT(bt_link_router_park(rig->halves[BT_RIG_DECODE].peer, request->id, request->attempt,
                               next_attempt) == BT_OK);
}

void bt_rig_resume(bt_rig *rig, const bt_rig_request *request)
{
    bt_link_router_resume(rig->halves[BT_RIG_DECODE].peer, request->id, request->attempt);
}

typedef struct parked_wait {
    const bt_rig_request *request;
    uint32_t n;
} parked_wait;

static bool has_parked(void *ctx)
{
    const parked_wait *wait = ctx;
    return wait->request->n_parked >= wait->n;
}

void bt_rig_wait_parked(bt_rig *rig, bt_rig_request *request, uint32_t n)
{
    parked_wait wait = {request, n};
    bt_rig_wait(rig, has_parked, &wait);
}

void bt_rig_drop_router(bt_rig *rig, bt_rig_worker which)
{
    EXPECT(rig->halves[which].peer != NULL);
    bt_link_router_drop(rig->halves[which].peer, "dropped by the test");
}

bool bt_rig_attached(const bt_rig *rig, bt_rig_worker which)
{
    return rig->halves[which].peer != NULL;
}

static bool has_no_run_open(void *ctx)
{
    const half *h = ctx;
    bt_worker_health health;
    if (h == &h->rig->halves[BT_RIG_PREFILL]) {
        bt_prefill_worker_get_health(h->rig->prefill, &health);
    } else {
        bt_decode_worker_get_health(h->rig->decode, &health);
    }
    return h->peer != NULL && health.routers_up == 1 && health.runs_open == 0;
}

void bt_rig_wait_attached(bt_rig *rig, bt_rig_worker which)
{
    bt_rig_wait(rig, has_no_run_open, &rig->halves[which]);
}

void bt_rig_set_kv_address(bt_rig *rig, const char *tcp)
{
    bt_link_kv_peer *kv = &rig->halves[BT_RIG_PREFILL].hello.kv;
    kv->incarnation = 1;
    snprintf(kv->kv_tcp, sizeof kv->kv_tcp, "%s", tcp);
}

void bt_rig_set_kv_socket(bt_rig *rig, const char *name)
{
    bt_link_kv_peer *kv = &rig->halves[BT_RIG_PREFILL].hello.kv;
    kv->incarnation = 1;
    snprintf(kv->kv_unix, sizeof kv->kv_unix, "%s", name);
    memset(kv->boot_id, 0xFF, sizeof kv->boot_id);
}

const bt_link_load *bt_rig_load(const bt_rig *rig, bt_rig_worker which)
{
    return &rig->halves[which].load;
}

uint32_t bt_rig_blocks_known(const bt_rig *rig, bt_rig_worker which)
{
    return rig->halves[which].n_blocks_known;
}

const bt_link_hello *bt_rig_hello(const bt_rig *rig, bt_rig_worker which)
{
    return &rig->halves[which].hello;
}

bt_prefill_worker *bt_rig_prefill(bt_rig *rig)
{
    return rig->prefill;
}

bt_decode_worker *bt_rig_decode(bt_rig *rig)
{
    return rig->decode;
}

void bt_rig_fill_prompt(int32_t *tokens, uint32_t n, uint64_t seed)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint32_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        tokens[i] = (int32_t)(x >> 32 & 0xff);
    }
}
