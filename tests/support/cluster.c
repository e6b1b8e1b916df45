/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's life, its clock and its waiting. Members are in cluster_members.c, the client in
 * cluster_client.c. */
#include "tests/support/cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "engine/model.h"
#include "engine/tokenizer.h"
#include "kvtransfer/transport.h"
#include "tests/support/cluster_int.h"
#include "tests/support/tiny_model.h"

enum { GUARD_MS = 60000 };

void bt_cluster_expect_failed(const char *file, int line, const char *text)
{
    fprintf(stderr, "%s:%d: expected: %s\n", file, line, text);
    abort();
}

void bt_cluster_must(bt_status status, const bt_error *err, const char *what)
{
    if (status != BT_OK) {
        fprintf(stderr, "cluster: %s: %s\n", what, err != NULL ? err->text : "");
        abort();
    }
}

void bt_cluster_tell_seen(bt_cluster *cluster)
{
    if (cluster->seen != NULL) {
        cluster->seen(cluster->seen_ctx);
    }
}

/* ------------------------------------------------------------------------------- time ---- */

/* Without what the test has added. */
static int64_t real_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t clock_source(void *ctx)
{
    const bt_cluster *cluster = ctx;
    return real_now_ns() + atomic_load_explicit(&cluster->clock_ahead_ns, memory_order_relaxed);
}

void bt_cluster_clock_jump(bt_cluster *cluster, int64_t ns)
{
    EXPECT(ns >= 0);
    (void)atomic_fetch_add_explicit(&cluster->clock_ahead_ns, ns, memory_order_relaxed);
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
        bt_cluster_health(cluster, i, &health);
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
    bt_cluster_reap(cluster);
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

static bool has_passed(void *ctx)
{
    return real_now_ns() >= *(const int64_t *)ctx;
}

void bt_cluster_run_ms(bt_cluster *cluster, uint64_t ms)
{
    int64_t until_ns = real_now_ns() + (int64_t)ms * 1000000;
    bt_cluster_wait(cluster, has_passed, &until_ns);
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
    bt_cluster_must(bt_metrics_render(wait->cluster->router->metrics, &text, &len), NULL,
                    "metrics");
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
    bt_cluster_must(bt_gguf_open(cluster->model_path, &gguf, &err), &err, "the model file");
    bt_cluster_must(bt_tokenizer_create(gguf, &tokenizer, &err), &err, "the tokenizer");
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
    bt_cluster_must(bt_tiny_model_write(&bt_tiny_model_odd, cluster->model_path), NULL,
                    "the model file");
    read_tokenizer_hash(cluster);
    bt_cluster_must(bt_cluster_key_init(&cluster->key, "0123456789abcdef", 16, NULL), NULL,
                    "the key");
    bt_cluster_must(bt_loop_create(&cluster->loop), NULL, "the loop");
    bt_cluster_must(bt_rpc_create(cluster->loop, &cluster->rpc), NULL, "rpc");
    bt_cluster_must(bt_kv_loopback_create(cluster->loop, &cluster->loopback), NULL, "loopback");
    bt_cluster_must(bt_timer_create(cluster->loop, on_guard, cluster, &cluster->guard), NULL,
                    "a timer");
    bt_cluster_must(bt_timer_create(cluster->loop, on_poll, cluster, &cluster->poll), NULL,
                    "a timer");
    bt_cluster_must(bt_wake_create(cluster->loop, on_soon, cluster, &cluster->soon), NULL,
                    "a wake");
    cluster->client_proxy = bt_proxy_create(cluster->loop, 0);
    bt_cluster_restart_router(cluster);
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", bt_proxy_port(cluster->client_proxy));
    const bt_rpc_channel_options channel = {.address = address, .reconnect_max_ms = 50};
    bt_cluster_must(bt_rpc_channel_create(cluster->rpc, &channel, &cluster->channel), NULL,
                    "a channel");
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
