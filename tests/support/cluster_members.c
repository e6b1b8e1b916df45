/* SPDX-License-Identifier: Apache-2.0 */
/* Members that were killed or drained become remains: they unwind on their own, cut off from
 * everybody, and are freed by the reaper (a timer) once they have stopped. Models are loaded once
 * and change hands. */
#include "tests/support/cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "kvtransfer/transport.h"
#include "tests/support/cluster_int.h"

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value == 0 ? otherwise : value;
}

static uint64_t ms_or_default(uint64_t value, uint64_t otherwise)
{
    return value == 0 ? otherwise : value;
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
    bt_cluster_must(bt_model_load(&options, &model, &err), &err, "the model");
    return model;
}

static void give_model(bt_cluster *cluster, bt_model *model)
{
    EXPECT(cluster->n_models < BT_CLUSTER_MODELS_MAX);
    cluster->models[cluster->n_models++] = model;
}

static void on_kv_trace(const bt_kv_trace *event, void *ctx)
{
    bt_cluster *cluster = ctx;
    cluster->kv_announced += event->kind == BT_KV_TRACE_ANNOUNCED;
    cluster->kv_moved += event->kind == BT_KV_TRACE_MOVED;
    bt_cluster_tell_seen(cluster);
}

/* Sizes are the same for all workers, for they share models. */
static bt_worker_options worker_options(bt_cluster *cluster, uint32_t i, bt_cluster_member *m,
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
    bt_cluster_member *m = calloc(1, sizeof *m);
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
        bt_cluster_must(
            bt_prefill_worker_create(cluster->loop, cluster->rpc, &options, &m->prefill, &err),
            &err, "a prefill worker");
        bt_cluster_must(bt_prefill_worker_start(m->prefill, &err), &err,
                        "a prefill worker's start");
    } else {
        bt_cluster_must(
            bt_decode_worker_create(cluster->loop, cluster->rpc, &options, &m->decode, &err), &err,
            "a decode worker");
        bt_cluster_must(bt_decode_worker_start(m->decode, &err), &err, "a decode worker's start");
    }
    cluster->members[worker] = m;
}

static void get_health(const bt_cluster_member *m, bt_worker_health *out)
{
    if (m->prefill != NULL) {
        bt_prefill_worker_get_health(m->prefill, out);
    } else {
        bt_decode_worker_get_health(m->decode, out);
    }
}

static void on_stopped(void *ctx)
{
    ((bt_cluster_member *)ctx)->stopped = true;
}

static void stop_member(bt_cluster *cluster, uint32_t worker, uint64_t grace_ms)
{
    bt_cluster_member *m = cluster->members[worker];
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
static bt_cluster_member *present(bt_cluster *cluster, uint32_t worker)
{
    bt_cluster_member *m = cluster->members[worker];
    m = m != NULL ? m : cluster->draining[worker];
    EXPECT(m != NULL);
    return m;
}

void bt_cluster_kill(bt_cluster *cluster, uint32_t worker)
{
    bt_cluster_member *m = present(cluster, worker);
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

static void bury(bt_cluster_member *m)
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

void bt_cluster_reap(bt_cluster *cluster)
{
    for (bt_cluster_member **at = &cluster->remains; *at != NULL;) {
        bt_cluster_member *m = *at;
        if (m->stopped) {
            *at = m->next;
            bury(m);
        } else {
            at = &m->next;
        }
    }
    for (bt_cluster_router **at = &cluster->router_remains; *at != NULL;) {
        bt_cluster_router *r = *at;
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
    bt_cluster_member *m = present(cluster, worker);
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
    bt_cluster_router *r = calloc(1, sizeof *r);
    EXPECT(r != NULL);
    r->cluster = cluster;
    bt_cluster_must(bt_metrics_create(&r->metrics), NULL, "metrics");
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
    bt_cluster_must(
        bt_router_create(cluster->loop, cluster->rpc, r->metrics, &options, &r->router, &err), &err,
        "the router");
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
    ((bt_cluster_router *)ctx)->stopped = true;
}

void bt_cluster_kill_router(bt_cluster *cluster)
{
    bt_cluster_router *r = cluster->router;
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
