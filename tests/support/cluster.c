/* SPDX-License-Identifier: Apache-2.0 */
/* Members that were killed or drained become remains: they unwind on their own, cut off from
 * everybody, and are freed by the reaper (a timer) once they have stopped. Models are loaded once
 * and change hands. */
#include "tests/support/cluster.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "engine/model.h"
#include "engine/tokenizer.h"
#include "kvtransfer/transport.h"
#include "proto/generation.pb-c.h"
#include "tests/support/proxy.h"
#include "tests/support/tiny_model.h"

#define EXPECT(cond) ((cond) ? (void)0 : expect_failed(__LINE__, #cond))

enum {
    GUARD_MS = 60000,
    MODELS_MAX = 3 * BT_CLUSTER_WORKERS_MAX,
    REQUEST_BYTES_MAX = 8192,
};

typedef struct member {
    bt_cluster *cluster;
    bt_prefill_worker *prefill; /* one of the two */
    bt_decode_worker *decode;
    bt_model *model;
    bt_proxy *proxy; /* to the router */
    bt_kv_fault fault;
    bool stopped;
    struct member *next; /* of the remains */
} member;

typedef struct router_member {
    bt_cluster *cluster;
    bt_router *router;
    bt_metrics *metrics;
    bool stopped;
    struct router_member *next;
} router_member;

struct bt_cluster {
    bt_cluster_options options;
    char dir[64];
    char model_path[96];
    uint8_t tokenizer_hash[BT_LINK_ID_BYTES];
    bt_cluster_key key;
    _Atomic int64_t clock_ahead_ns; /* read by all threads; no order with anything else */
    bt_loop *loop;
    bt_rpc *rpc;
    bt_kv_loopback *loopback;
    bt_timer *guard;
    bt_timer *poll; /* asks the waiter, reaps */
    bt_wake *soon;
    bt_loop_fn soon_fn;
    void *soon_ctx;
    bt_loop_fn seen;
    void *seen_ctx;
    router_member *router; /* NULL: dead */
    bt_proxy *client_proxy;
    bt_rpc_channel *channel;
    member *members[BT_CLUSTER_WORKERS_MAX];  /* NULL: dead */
    member *draining[BT_CLUSTER_WORKERS_MAX]; /* among the remains */
    member *remains;
    router_member *router_remains;
    bt_model *models[MODELS_MAX]; /* free ones */
    uint32_t n_models;
    uint64_t n_sockets; /* unix socket names handed out */
    uint64_t kv_announced, kv_moved;
    uint32_t n_calls;
    bool (*cond)(void *ctx);
    void *cond_ctx;
    bool held;
};

static void expect_failed(int line, const char *text)
{
    fprintf(stderr, "cluster.c:%d: expected: %s\n", line, text);
    abort();
}

static void must(bt_status status, const bt_error *err, const char *what)
{
    if (status != BT_OK) {
        fprintf(stderr, "cluster: %s: %s\n", what, err != NULL ? err->text : "");
        abort();
    }
}

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value == 0 ? otherwise : value;
}

static uint64_t ms_or_default(uint64_t value, uint64_t otherwise)
{
    return value == 0 ? otherwise : value;
}

static void tell_seen(bt_cluster *cluster)
{
    if (cluster->seen != NULL) {
        cluster->seen(cluster->seen_ctx);
    }
}

/* ------------------------------------------------------------------------------- time ---- */

static int64_t clock_source(void *ctx)
{
    const bt_cluster *cluster = ctx;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec +
           atomic_load_explicit(&cluster->clock_ahead_ns, memory_order_relaxed);
}

void bt_cluster_clock_jump(bt_cluster *cluster, int64_t ns)
{
    EXPECT(ns >= 0);
    (void)atomic_fetch_add_explicit(&cluster->clock_ahead_ns, ns, memory_order_relaxed);
}

/* ---------------------------------------------------------------------------- workers ---- */

static bt_model *take_model(bt_cluster *cluster, const bt_worker_options *worker)
{
    if (cluster->n_models > 0) {
        return cluster->models[--cluster->n_models];
    }
    bt_model_options options = {
        .path = cluster->model_path,
        .kernels = "reference",
        .kv_format = BT_KV_FORMAT_BF16,
        .n_threads = 1,
    };
    bt_worker_size_model(worker, &options);
    bt_model *model = NULL;
    bt_error err = {{0}};
    must(bt_model_load(&options, &model, &err), &err, "the model");
    return model;
}

static void give_model(bt_cluster *cluster, bt_model *model)
{
    EXPECT(cluster->n_models < MODELS_MAX);
    cluster->models[cluster->n_models++] = model;
}

static void on_kv_trace(const bt_kv_trace *event, void *ctx)
{
    bt_cluster *cluster = ctx;
    cluster->kv_announced += event->kind == BT_KV_TRACE_ANNOUNCED;
    cluster->kv_moved += event->kind == BT_KV_TRACE_MOVED;
    tell_seen(cluster);
}

/* Sizes are the same for all workers, for they share models. */
static bt_worker_options worker_options(bt_cluster *cluster, uint32_t i, member *m,
                                        char socket[BT_KV_ADDRESS_BYTES])
{
    const bt_cluster_worker_options *o = &cluster->options.workers[i];
    const bt_kv_transport transport =
        o->transport == BT_KV_TRANSPORT_AUTO ? BT_KV_TRANSPORT_LOOPBACK : o->transport;
    static const char *const names[BT_CLUSTER_WORKERS_MAX] = {"w0", "w1", "w2", "w3", "w4", "w5"};
    snprintf(socket, BT_KV_ADDRESS_BYTES, "%s/%" PRIu64, cluster->dir, cluster->n_sockets++);
    bt_worker_options options = {
        .name = names[i],
        .n_routers = 1,
        .role = o->role,
        .model_name = "tiny",
        .cluster_key = cluster->key,
        .pool_blocks = or_default(o->pool_blocks, 128),
        .requests_max = or_default(o->requests_max, 32),
        .running_max = or_default(o->running_max, 8),
        .token_budget = or_default(o->token_budget, 64),
        .chunk = or_default(o->chunk, 32),
        .kv_tcp = transport == BT_KV_TRANSPORT_SHM ? NULL : "127.0.0.1:0",
        .kv_unix = transport == BT_KV_TRANSPORT_SHM ? socket : NULL,
        .kv_transport = transport,
        .kv_loopback = transport == BT_KV_TRANSPORT_LOOPBACK ? cluster->loopback : NULL,
        .lease_ms = or_default(cluster->options.lease_ms, 1000),
        .load_ms = 20,
        .kv_trace = on_kv_trace,
        .kv_trace_ctx = cluster,
        .kv_fault = &m->fault,
    };
    memcpy(options.tokenizer_hash, cluster->tokenizer_hash, sizeof options.tokenizer_hash);
    return options;
}

void bt_cluster_restart(bt_cluster *cluster, uint32_t worker)
{
    EXPECT(cluster->members[worker] == NULL);
    cluster->draining[worker] = NULL;
    member *m = calloc(1, sizeof *m);
    EXPECT(m != NULL);
    m->cluster = cluster;
    m->proxy = bt_proxy_create(cluster->loop, cluster->router != NULL
                                                  ? bt_router_attach_port(cluster->router->router)
                                                  : 0);
    char socket[BT_KV_ADDRESS_BYTES];
    bt_worker_options options = worker_options(cluster, worker, m, socket);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", bt_proxy_port(m->proxy));
    const char *routers[] = {address};
    options.routers = routers;
    m->model = take_model(cluster, &options);
    options.model = m->model;
    bt_error err = {{0}};
    if (options.role == BT_LINK_ROLE_PREFILL) {
        must(bt_prefill_worker_create(cluster->loop, cluster->rpc, &options, &m->prefill, &err),
             &err, "a prefill worker");
        must(bt_prefill_worker_start(m->prefill, &err), &err, "a prefill worker's start");
    } else {
        must(bt_decode_worker_create(cluster->loop, cluster->rpc, &options, &m->decode, &err), &err,
             "a decode worker");
        must(bt_decode_worker_start(m->decode, &err), &err, "a decode worker's start");
    }
    cluster->members[worker] = m;
}

static void get_health(const member *m, bt_worker_health *out)
{
    if (m->prefill != NULL) {
        bt_prefill_worker_get_health(m->prefill, out);
    } else {
        bt_decode_worker_get_health(m->decode, out);
    }
}

static void on_stopped(void *ctx)
{
    ((member *)ctx)->stopped = true;
}

static void stop_member(bt_cluster *cluster, uint32_t worker, uint64_t grace_ms)
{
    member *m = cluster->members[worker];
    EXPECT(m != NULL);
    cluster->members[worker] = NULL;
    m->next = cluster->remains;
    cluster->remains = m;
    if (m->prefill != NULL) {
        bt_prefill_worker_stop(m->prefill, grace_ms, on_stopped, m);
    } else {
        bt_decode_worker_stop(m->decode, grace_ms, on_stopped, m);
    }
}

/* The one that is there, be it on its way out. */
static member *present(bt_cluster *cluster, uint32_t worker)
{
    member *m = cluster->members[worker];
    m = m != NULL ? m : cluster->draining[worker];
    EXPECT(m != NULL);
    return m;
}

void bt_cluster_kill(bt_cluster *cluster, uint32_t worker)
{
    member *m = present(cluster, worker);
    bt_proxy_set_target(m->proxy, 0);
    bt_proxy_cut(m->proxy);
    bt_kv_fault_kill(&m->fault);
    if (cluster->draining[worker] != NULL) {
        cluster->draining[worker] = NULL; /* it is stopping already */
        return;
    }
    stop_member(cluster, worker, 0);
}

void bt_cluster_drain(bt_cluster *cluster, uint32_t worker, uint64_t grace_ms)
{
    cluster->draining[worker] = cluster->members[worker];
    stop_member(cluster, worker, grace_ms);
}

bool bt_cluster_is_draining(const bt_cluster *cluster, uint32_t worker)
{
    return cluster->draining[worker] != NULL;
}

static void bury(member *m)
{
    for (uint32_t i = 0; i < BT_CLUSTER_WORKERS_MAX; i++) {
        if (m->cluster->draining[i] == m) {
            m->cluster->draining[i] = NULL;
        }
    }
    bt_worker_health health;
    get_health(m, &health);
    EXPECT(health.runs_open == 0);
    EXPECT(health.audit == BT_OK);
    bt_prefill_worker_destroy(m->prefill);
    bt_decode_worker_destroy(m->decode);
    give_model(m->cluster, m->model);
    bt_proxy_destroy(m->proxy);
    free(m);
}

static void reap(bt_cluster *cluster)
{
    for (member **at = &cluster->remains; *at != NULL;) {
        member *m = *at;
        if (m->stopped) {
            *at = m->next;
            bury(m);
        } else {
            at = &m->next;
        }
    }
    for (router_member **at = &cluster->router_remains; *at != NULL;) {
        router_member *r = *at;
        if (r->stopped) {
            *at = r->next;
            bt_router_destroy(r->router);
            bt_metrics_destroy(r->metrics);
            free(r);
        } else {
            at = &r->next;
        }
    }
}

void bt_cluster_stop(bt_cluster *cluster, uint32_t worker, bool stop)
{
    member *m = present(cluster, worker);
    bt_proxy_hold(m->proxy, stop);
    bt_kv_fault_hold(&m->fault, stop);
}

void bt_cluster_cut_attach(bt_cluster *cluster, uint32_t worker)
{
    bt_proxy_cut(present(cluster, worker)->proxy);
}

void bt_cluster_hold_attach(bt_cluster *cluster, uint32_t worker, bool hold)
{
    bt_proxy_hold(present(cluster, worker)->proxy, hold);
}

bt_kv_fault *bt_cluster_kv_fault(bt_cluster *cluster, uint32_t worker)
{
    return &present(cluster, worker)->fault;
}

uint64_t bt_cluster_kv_announced(const bt_cluster *cluster)
{
    return cluster->kv_announced;
}

uint64_t bt_cluster_kv_moved(const bt_cluster *cluster)
{
    return cluster->kv_moved;
}

uint32_t bt_cluster_n_workers(const bt_cluster *cluster)
{
    return cluster->options.n_workers;
}

bool bt_cluster_is_alive(const bt_cluster *cluster, uint32_t worker)
{
    return cluster->members[worker] != NULL;
}

void bt_cluster_health(const bt_cluster *cluster, uint32_t worker, bt_worker_health *out)
{
    get_health(cluster->members[worker], out);
}

bool bt_cluster_is_attached(const bt_cluster *cluster, uint32_t worker)
{
    bt_worker_health health;
    if (cluster->members[worker] == NULL) {
        return false;
    }
    bt_cluster_health(cluster, worker, &health);
    return health.routers_up == 1;
}

bool bt_cluster_is_idle(const bt_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->options.n_workers; i++) {
        if (cluster->members[i] == NULL) {
            continue;
        }
        bt_worker_health health;
        bt_cluster_health(cluster, i, &health);
        const uint32_t blocks = or_default(cluster->options.workers[i].pool_blocks, 128);
        if (health.runs_open != 0 ||
            health.load.blocks_free + health.load.blocks_cached != blocks) {
            return false;
        }
    }
    return true;
}

/* ----------------------------------------------------------------------------- router ---- */

void bt_cluster_restart_router(bt_cluster *cluster)
{
    EXPECT(cluster->router == NULL);
    router_member *r = calloc(1, sizeof *r);
    EXPECT(r != NULL);
    r->cluster = cluster;
    must(bt_metrics_create(&r->metrics), NULL, "metrics");
    const bt_cluster_options *o = &cluster->options;
    bt_router_options options;
    bt_router_options_init(&options);
    options.client_address = "127.0.0.1:0";
    options.attach_address = "127.0.0.1:0";
    options.models[0] = (bt_router_model){.path = cluster->model_path, .name = "tiny"};
    options.n_models = 1;
    options.cluster_key = cluster->key;
    options.requests_max = or_default(o->requests_max, 32);
    options.queue_max = or_default(o->queue_max, options.requests_max);
    options.attempts_max = or_default(o->attempts_max, 16);
    options.recoveries_max = or_default(o->recoveries_max, 100);
    options.queue_time_ms = ms_or_default(o->queue_time_ms, 10000);
    options.request_time_ms = ms_or_default(o->request_time_ms, 60000);
    options.worker_timeout_ms = ms_or_default(o->worker_timeout_ms, 1000);
    options.local_prefill = !o->no_local_prefill;
    options.prefix_blocks_max = 4096;
    bt_error err = {{0}};
    must(bt_router_create(cluster->loop, cluster->rpc, r->metrics, &options, &r->router, &err),
         &err, "the router");
    cluster->router = r;
    for (uint32_t i = 0; i < cluster->options.n_workers; i++) {
        if (cluster->members[i] != NULL) {
            bt_proxy_set_target(cluster->members[i]->proxy, bt_router_attach_port(r->router));
        }
    }
    bt_proxy_set_target(cluster->client_proxy, bt_router_client_port(r->router));
}

bool bt_cluster_has_router(const bt_cluster *cluster)
{
    return cluster->router != NULL;
}

static void on_router_stopped(void *ctx)
{
    ((router_member *)ctx)->stopped = true;
}

void bt_cluster_kill_router(bt_cluster *cluster)
{
    router_member *r = cluster->router;
    EXPECT(r != NULL);
    bt_proxy_set_target(cluster->client_proxy, 0);
    bt_proxy_cut(cluster->client_proxy);
    for (uint32_t i = 0; i < cluster->options.n_workers; i++) {
        if (cluster->members[i] != NULL || cluster->draining[i] != NULL) {
            bt_proxy_set_target(present(cluster, i)->proxy, 0);
            bt_proxy_cut(present(cluster, i)->proxy);
        }
    }
    cluster->router = NULL;
    r->next = cluster->router_remains;
    cluster->router_remains = r;
    bt_router_shutdown(r->router, 0, on_router_stopped, r);
}

void bt_cluster_hold_router(bt_cluster *cluster, bool hold)
{
    bt_cluster_hold_clients(cluster, hold);
    for (uint32_t i = 0; i < cluster->options.n_workers; i++) {
        if (cluster->members[i] != NULL || cluster->draining[i] != NULL) {
            bt_cluster_hold_attach(cluster, i, hold);
        }
    }
}

void bt_cluster_cut_clients(bt_cluster *cluster)
{
    bt_proxy_cut(cluster->client_proxy);
}

void bt_cluster_hold_clients(bt_cluster *cluster, bool hold)
{
    bt_proxy_hold(cluster->client_proxy, hold);
}

/* ---------------------------------------------------------------------------- clients ---- */

static uint64_t varint(const uint8_t *data, size_t len, size_t *at)
{
    uint64_t value = 0;
    for (unsigned shift = 0; *at < len && shift < 64; shift += 7) {
        const uint8_t byte = data[(*at)++];
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            break;
        }
    }
    return value;
}

/* Field 2 as it is on the wire: text may hold a NUL, at which protobuf-c's strings end. */
static void take_text(bt_cluster_request *r, const uint8_t *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        const uint64_t tag = varint(data, len, &at);
        EXPECT(tag % 8 == 2 || tag % 8 == 0);
        const uint64_t n = varint(data, len, &at);
        if (tag == (2 << 3 | 2)) {
            EXPECT(r->text_len + n <= sizeof r->text && at + n <= len);
            memcpy(r->text + r->text_len, data + at, n);
            r->text_len += n;
        }
        at += tag % 8 == 2 ? n : 0;
    }
}

static void take_logprobs(bt_cluster_request *r, const Baton__V1__GenerateReply *reply)
{
    for (size_t i = 0; i < reply->n_logprobs; i++) {
        EXPECT(r->n_logprobs < BT_CLUSTER_TOKENS_MAX);
        r->logprob[r->n_logprobs++] = reply->logprobs[i]->logprob;
    }
}

static void take_finish(bt_cluster_request *r, const Baton__V1__Finish *finish)
{
    EXPECT(!r->finished); /* one end */
    r->finished = true;
    r->reason = (int)finish->reason;
    r->usage_prompt = finish->usage->prompt_tokens;
    r->usage_generated = finish->usage->generated_tokens;
    r->attempts = finish->route->attempts;
}

static void take_reply(bt_cluster_request *r, const Baton__V1__GenerateReply *reply,
                       const uint8_t *data, size_t len)
{
    EXPECT(!r->finished); /* nothing comes behind the end */
    if (reply->is_prompt) {
        EXPECT(reply->n_token_ids == 0 || reply->first_index == r->n_echoed);
        r->n_echoed += (uint32_t)reply->n_token_ids;
    } else {
        /* No token is lost, none comes twice. */
        EXPECT(reply->n_token_ids == 0 || reply->first_index == r->n_tokens);
        for (size_t i = 0; i < reply->n_token_ids; i++) {
            EXPECT(r->n_tokens < BT_CLUSTER_TOKENS_MAX);
            r->tokens[r->n_tokens++] = reply->token_ids[i];
        }
        take_text(r, data, len);
        take_logprobs(r, reply);
    }
    if (reply->finish != NULL) {
        take_finish(r, reply->finish);
    }
}

static void on_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    bt_cluster_request *r = ctx;
    if (end) {
        return;
    }
    Baton__V1__GenerateReply *reply = baton__v1__generate_reply__unpack(NULL, len, data);
    EXPECT(reply != NULL);
    take_reply(r, reply, data, len);
    baton__v1__generate_reply__free_unpacked(reply, NULL);
    if (r->hold) {
        r->starved = true;
    } else {
        bt_rpc_call_recv(call);
    }
    tell_seen(r->cluster);
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    bt_cluster_request *r = ctx;
    EXPECT(!r->done); /* one end */
    r->call = NULL;
    r->done = true;
    r->code = (int)code;
    snprintf(r->message, sizeof r->message, "%s", message == NULL ? "" : message);
    EXPECT(r->cluster->n_calls > 0);
    r->cluster->n_calls--;
    tell_seen(r->cluster);
}

static const bt_rpc_callbacks client_callbacks = {.on_message = on_message, .on_done = on_done};

static size_t pack(const bt_cluster_request *r, uint8_t out[REQUEST_BYTES_MAX])
{
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    Baton__V1__TokenIds ids = BATON__V1__TOKEN_IDS__INIT;
    char *stop = (char *)(uintptr_t)r->stop;
    ids.n_ids = r->n_prompt;
    ids.ids = (uint32_t *)(uintptr_t)r->prompt;
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    request.token_ids = &ids;
    request.sampling = &sampling;
    request.cache_salt = (char *)(uintptr_t)(r->salt != NULL ? r->salt : "");
    sampling.temperature = r->temperature;
    sampling.repetition_penalty = r->repetition_penalty;
    sampling.seed_presence_case = BATON__V1__SAMPLING__SEED_PRESENCE_SEED;
    sampling.seed = r->seed;
    sampling.max_tokens_presence_case = BATON__V1__SAMPLING__MAX_TOKENS_PRESENCE_MAX_TOKENS;
    sampling.max_tokens = r->max_tokens;
    sampling.ignore_eos = true;
    sampling.logprobs = r->logprobs;
    sampling.echo = r->echo;
    sampling.n_stop = r->stop != NULL ? 1 : 0;
    sampling.stop = &stop;
    const size_t n = baton__v1__generate_request__get_packed_size(&request);
    EXPECT(n <= REQUEST_BYTES_MAX);
    return baton__v1__generate_request__pack(&request, out);
}

void bt_cluster_send(bt_cluster *cluster, bt_cluster_request *r)
{
    EXPECT(r->call == NULL);
    uint8_t bytes[REQUEST_BYTES_MAX];
    const size_t n = pack(r, bytes);
    r->cluster = cluster;
    const bt_rpc_start start = {
        .path = "/baton.v1.Generation/Generate",
        .deadline_ns = r->deadline_ns,
        .wait_for_ready = true,
    };
    must(bt_rpc_channel_start(cluster->channel, &start, &client_callbacks, r, &r->call), NULL,
         "a call");
    cluster->n_calls++;
    bt_rpc_call_send(r->call, bytes, n);
    bt_rpc_call_close_send(r->call);
    bt_rpc_call_recv(r->call);
}

void bt_cluster_cancel(bt_cluster_request *request)
{
    if (request->call != NULL) {
        bt_rpc_call_cancel(request->call);
    }
}

void bt_cluster_resume(bt_cluster_request *request)
{
    request->hold = false;
    if (request->call != NULL && request->starved) {
        bt_rpc_call_recv(request->call);
    }
    request->starved = false;
}

const char *bt_cluster_compare(const bt_cluster_request *r, const bt_cluster_request *truth)
{
    if (!r->done || r->code != BT_RPC_OK || !r->finished) {
        return "it did not end well";
    }
    if (r->n_tokens != truth->n_tokens) {
        return "the number of tokens";
    }
    if (memcmp(r->tokens, truth->tokens, r->n_tokens * sizeof r->tokens[0]) != 0) {
        return "the tokens";
    }
    if (r->text_len != truth->text_len || memcmp(r->text, truth->text, r->text_len) != 0) {
        return "the text";
    }
    if (r->n_logprobs != truth->n_logprobs ||
        memcmp(r->logprob, truth->logprob, r->n_logprobs * sizeof r->logprob[0]) != 0) {
        return "the logprobs";
    }
    if (r->reason != truth->reason) {
        return "the reason of the end";
    }
    if (r->n_echoed != truth->n_echoed) {
        return "the number of echoed tokens";
    }
    if (r->usage_prompt != truth->usage_prompt || r->usage_generated != truth->usage_generated) {
        return "the usage";
    }
    return NULL;
}

/* ---------------------------------------------------------------------------- waiting ---- */

static void on_guard(void *ctx)
{
    const bt_cluster *cluster = ctx;
    for (uint32_t i = 0; i < cluster->options.n_workers; i++) {
        bt_worker_health health;
        if (cluster->members[i] == NULL) {
            fprintf(stderr, "worker %" PRIu32 ": dead\n", i);
            continue;
        }
        get_health(cluster->members[i], &health);
        fprintf(stderr, "worker %" PRIu32 ": routers=%u runs=%u free=%u cached=%u\n", i,
                health.routers_up, health.runs_open, health.load.blocks_free,
                health.load.blocks_cached);
    }
    fprintf(stderr, "cluster: what was waited for did not come within %d ms (calls open: %u)\n",
            GUARD_MS, cluster->n_calls);
    abort();
}

static void on_poll(void *ctx)
{
    bt_cluster *cluster = ctx;
    reap(cluster);
    if (cluster->cond != NULL && cluster->cond(cluster->cond_ctx)) {
        cluster->cond = NULL;
        bt_loop_stop(cluster->loop);
    }
}

static void on_soon(void *ctx)
{
    bt_cluster *cluster = ctx;
    const bt_loop_fn fn = cluster->soon_fn;
    cluster->soon_fn = NULL;
    if (fn != NULL) {
        fn(cluster->soon_ctx);
    }
}

void bt_cluster_soon(bt_cluster *cluster, bt_loop_fn fn, void *ctx)
{
    cluster->soon_fn = fn;
    cluster->soon_ctx = ctx;
    bt_wake_ring(cluster->soon);
}

void bt_cluster_watch(bt_cluster *cluster, bt_loop_fn seen, void *ctx)
{
    cluster->seen = seen;
    cluster->seen_ctx = ctx;
}

void bt_cluster_wait(bt_cluster *cluster, bool (*cond)(void *ctx), void *ctx)
{
    EXPECT(cluster->cond == NULL);
    if (cond(ctx)) {
        return;
    }
    cluster->cond = cond;
    cluster->cond_ctx = ctx;
    bt_timer_start(cluster->guard, GUARD_MS, 0);
    bt_timer_start(cluster->poll, 1, 1);
    bt_loop_run(cluster->loop);
    bt_timer_stop(cluster->guard);
    bt_timer_stop(cluster->poll);
}

static bool is_done(void *ctx)
{
    return ((const bt_cluster_request *)ctx)->done;
}

void bt_cluster_wait_done(bt_cluster *cluster, bt_cluster_request *request)
{
    bt_cluster_wait(cluster, is_done, request);
}

typedef struct tokens_wait {
    const bt_cluster_request *request;
    uint32_t n;
} tokens_wait;

static bool has_tokens(void *ctx)
{
    const tokens_wait *wait = ctx;
    return wait->request->n_tokens >= wait->n || wait->request->done;
}

void bt_cluster_wait_tokens(bt_cluster *cluster, bt_cluster_request *request, uint32_t n)
{
    tokens_wait wait = {request, n};
    bt_cluster_wait(cluster, has_tokens, &wait);
}

typedef struct time_wait {
    struct timespec until;
} time_wait;

static bool has_passed(void *ctx)
{
    const time_wait *wait = ctx;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > wait->until.tv_sec ||
           (now.tv_sec == wait->until.tv_sec && now.tv_nsec >= wait->until.tv_nsec);
}

void bt_cluster_run_ms(bt_cluster *cluster, uint64_t ms)
{
    time_wait wait;
    (void)clock_gettime(CLOCK_MONOTONIC, &wait.until);
    const int64_t ns = wait.until.tv_nsec + (int64_t)ms * 1000000;
    wait.until.tv_sec += ns / 1000000000;
    wait.until.tv_nsec = ns % 1000000000;
    bt_cluster_wait(cluster, has_passed, &wait);
}

static bool all_attached(void *ctx)
{
    const bt_cluster *cluster = ctx;
    for (uint32_t i = 0; i < cluster->options.n_workers; i++) {
        if (cluster->members[i] != NULL && !bt_cluster_is_attached(cluster, i)) {
            return false;
        }
    }
    return true;
}

void bt_cluster_wait_attached(bt_cluster *cluster)
{
    bt_cluster_wait(cluster, all_attached, cluster);
}

typedef struct queue_wait {
    const bt_cluster *cluster;
    uint32_t n;
} queue_wait;

static bool has_queued(void *ctx)
{
    const queue_wait *wait = ctx;
    char line[64];
    snprintf(line, sizeof line, "\nbaton_router_requests_queued %" PRIu32 "\n", wait->n);
    char *text = NULL;
    size_t len = 0;
    must(bt_metrics_render(wait->cluster->router->metrics, &text, &len), NULL, "metrics");
    const bool found = strstr(text, line) != NULL;
    free(text);
    return found;
}

void bt_cluster_wait_queued(bt_cluster *cluster, uint32_t n)
{
    queue_wait wait = {cluster, n};
    bt_cluster_wait(cluster, has_queued, &wait);
}

static bool is_idle(void *ctx)
{
    return bt_cluster_is_idle(ctx);
}

void bt_cluster_wait_idle(bt_cluster *cluster)
{
    bt_cluster_wait(cluster, is_idle, cluster);
}

/* ------------------------------------------------------------------------------- life ---- */

static void read_tokenizer_hash(bt_cluster *cluster)
{
    bt_gguf *gguf = NULL;
    bt_tokenizer *tokenizer = NULL;
    bt_error err = {{0}};
    must(bt_gguf_open(cluster->model_path, &gguf, &err), &err, "the model file");
    must(bt_tokenizer_create(gguf, &tokenizer, &err), &err, "the tokenizer");
    bt_tokenizer_fingerprint(tokenizer, cluster->tokenizer_hash);
    bt_tokenizer_destroy(tokenizer);
    bt_gguf_close(gguf);
}

bt_cluster *bt_cluster_create(const bt_cluster_options *options)
{
    bt_cluster *cluster = calloc(1, sizeof *cluster);
    EXPECT(cluster != NULL);
    EXPECT(options->n_workers <= BT_CLUSTER_WORKERS_MAX);
    cluster->options = *options;
    bt_clock_set_source(clock_source, cluster);
    snprintf(cluster->dir, sizeof cluster->dir, "/tmp/baton-cluster-XXXXXX");
    EXPECT(mkdtemp(cluster->dir) != NULL);
    snprintf(cluster->model_path, sizeof cluster->model_path, "%s/model.gguf", cluster->dir);
    must(bt_tiny_model_write(&bt_tiny_model_odd, cluster->model_path), NULL, "the model file");
    read_tokenizer_hash(cluster);
    must(bt_cluster_key_init(&cluster->key, "0123456789abcdef", 16, NULL), NULL, "the key");
    must(bt_loop_create(&cluster->loop), NULL, "the loop");
    must(bt_rpc_create(cluster->loop, &cluster->rpc), NULL, "rpc");
    must(bt_kv_loopback_create(cluster->loop, &cluster->loopback), NULL, "loopback");
    must(bt_timer_create(cluster->loop, on_guard, cluster, &cluster->guard), NULL, "a timer");
    must(bt_timer_create(cluster->loop, on_poll, cluster, &cluster->poll), NULL, "a timer");
    must(bt_wake_create(cluster->loop, on_soon, cluster, &cluster->soon), NULL, "a wake");
    cluster->client_proxy = bt_proxy_create(cluster->loop, 0);
    bt_cluster_restart_router(cluster);
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", bt_proxy_port(cluster->client_proxy));
    const bt_rpc_channel_options channel = {.address = address, .reconnect_max_ms = 50};
    must(bt_rpc_channel_create(cluster->rpc, &channel, &cluster->channel), NULL, "a channel");
    for (uint32_t i = 0; i < options->n_workers; i++) {
        bt_cluster_restart(cluster, i);
    }
    bt_cluster_wait_attached(cluster);
    return cluster;
}

static bool no_call(void *ctx)
{
    return ((const bt_cluster *)ctx)->n_calls == 0;
}

static bool no_remains(void *ctx)
{
    const bt_cluster *cluster = ctx;
    return cluster->remains == NULL && cluster->router_remains == NULL;
}

void bt_cluster_destroy(bt_cluster *cluster)
{
    cluster->seen = NULL;
    bt_rpc_channel_destroy(cluster->channel);
    bt_cluster_wait(cluster, no_call, cluster);
    for (uint32_t i = 0; i < cluster->options.n_workers; i++) {
        if (cluster->members[i] != NULL) {
            bt_cluster_drain(cluster, i, 0);
        }
    }
    bt_cluster_wait(cluster, no_remains, cluster);
    if (cluster->router != NULL) {
        bt_cluster_kill_router(cluster);
        bt_cluster_wait(cluster, no_remains, cluster);
    }
    for (uint32_t i = 0; i < cluster->n_models; i++) {
        bt_model_destroy(cluster->models[i]);
    }
    bt_proxy_destroy(cluster->client_proxy);
    bt_rpc_destroy(cluster->rpc);
    bt_kv_loopback_destroy(cluster->loopback);
    bt_timer_destroy(cluster->guard);
    bt_timer_destroy(cluster->poll);
    bt_wake_destroy(cluster->soon);
    bt_loop_destroy(cluster->loop);
    bt_clock_set_source(NULL, NULL);
    (void)unlink(cluster->model_path);
    (void)rmdir(cluster->dir);
    free(cluster);
}

bt_loop *bt_cluster_loop(bt_cluster *cluster)
{
    return cluster->loop;
}
