/* SPDX-License-Identifier: Apache-2.0 */
/* A timer on the loop publishes readiness and a sign of life; the admin server reads them, so
 * that it answers also while the loop hangs, and then says so. */
#include "cli/process.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

enum {
    TICK_MS = 100,
    SILENCE_S_MAX = 10, /* a loop that ticks no more is not alive */
};

const char *const bt_process_log_levels[] = {"error", "warn", "info", "debug", NULL};
const char *const bt_process_log_formats[] = {"text", "json", NULL};

/* ------------------------------------------------------------------------ cluster key ---- */

static bt_status key_from_file(const char *path, bt_cluster_key *key, bt_error *err)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return bt_error_set(err, BT_ENOTFOUND, "cannot open the cluster key file '%s'", path);
    }
    uint8_t bytes[BT_CLUSTER_KEY_BYTES_MAX + 1];
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    while (n > 0 && (bytes[n - 1] == '\n' || bytes[n - 1] == '\r')) {
        n--;
    }
    const bt_status status = bt_cluster_key_init(key, bytes, n, err);
    bt_hash_wipe(bytes, sizeof bytes);
    if (status != BT_OK) {
        bt_error_prefix(err, "cluster key file '%s'", path);
    }
    return status;
}

static bt_status read_cluster_key(const char *path, bt_cluster_key *key, bt_error *err)
{
    static const char none[] = "a cluster without a key of its own";
    if (path != NULL && path[0] != '\0') {
        return key_from_file(path, key, err);
    }
    const char *secret = getenv("BATON_CLUSTER_KEY");
    if (secret != NULL && secret[0] != '\0') {
        const bt_status status = bt_cluster_key_init(key, secret, strlen(secret), err);
        if (status != BT_OK) {
            bt_error_prefix(err, "BATON_CLUSTER_KEY");
        }
        return status;
    }
    bt_log(BT_WARN, "no cluster key: advice=\"give all members one with --cluster-key-file\"");
    return bt_cluster_key_init(key, none, sizeof none - 1, err);
}

/* ----------------------------------------------------------------------- admin address ---- */

static void on_metrics(bt_http_request *request, void *ctx)
{
    bt_process *process = ctx;
    char *text = NULL;
    size_t len = 0;
    if (bt_metrics_render(process->metrics, &text, &len) != BT_OK) {
        bt_http_respond_text(request, 500, "out of memory\n");
        return;
    }
    bt_http_respond(request, 200, "text/plain; version=0.0.4; charset=utf-8", text, len);
    free(text);
}

/* The loop has ticked lately, or does not tick yet. */
static bool is_moving(const bt_process *process)
{
    const int64_t alive_ns = atomic_load_explicit(&process->alive_ns, memory_order_relaxed);
    return alive_ns == 0 || (bt_clock_now_ns() - alive_ns) / 1000000000 <= SILENCE_S_MAX;
}

static void on_healthz(bt_http_request *request, void *ctx)
{
    const bt_process *process = ctx;
    if (!is_moving(process)) {
        bt_http_respond_text(request, 503, "the loop does not move\n");
    } else {
        bt_http_respond_text(request, 200, "ok\n");
    }
}

static void on_readyz(bt_http_request *request, void *ctx)
{
    bt_process *process = ctx;
    const bool moves = is_moving(process);
    const bool ready = moves && atomic_load_explicit(&process->ready, memory_order_relaxed);
    const char *why = moves ? atomic_load_explicit(&process->health_text, memory_order_relaxed)
                            : "the loop does not move";
    char text[160];
    snprintf(text, sizeof text, "%s\n", ready ? "ready" : why);
    bt_http_respond_text(request, ready ? 200 : 503, text);
}

static bt_status serve_admin(bt_process *process, bt_error *err)
{
    const bt_http_options options = {.address = process->options.admin_address};
    bt_status status = bt_http_server_create(&options, &process->http, err);
    static const struct {
        const char *path;
        bt_http_handler handler;
    } pages[] = {
        {"/metrics", on_metrics},
        {"/healthz", on_healthz},
        {"/readyz", on_readyz},
    };
    for (size_t i = 0; status == BT_OK && i < BT_ARRAY_LEN(pages); i++) {
        status =
            bt_http_server_handle(process->http, "GET", pages[i].path, pages[i].handler, process);
    }
    if (status == BT_OK) {
        status = bt_http_server_start(process->http, err);
    }
    if (status == BT_OK) {
        bt_log(BT_INFO, "admin address served: port=%d", bt_http_server_port(process->http));
    } else {
        bt_error_prefix(err, "--admin");
    }
    return status;
}

/* -------------------------------------------------------------------------------- life ---- */

bt_status bt_process_init(bt_process *process, const char *who, const bt_process_options *options,
                          bt_error *err)
{
    *process = (bt_process){.options = *options};
    atomic_store_explicit(&process->health_text, "starting", memory_order_relaxed);
    bt_log_init((bt_log_level)options->log_level, (bt_log_format)options->log_format, who);
    bt_status status = read_cluster_key(options->cluster_key_file, &process->cluster_key, err);
    if (status != BT_OK) {
        return status;
    }
    bt_cluster_key_print(&process->cluster_key, process->cluster_key_print);
    status = bt_loop_create(&process->loop);
    if (status == BT_OK) {
        status = bt_rpc_create(process->loop, &process->rpc);
    }
    if (status == BT_OK) {
        status = bt_metrics_create(&process->metrics);
    }
    if (status != BT_OK) {
        return bt_error_set(err, status, "cannot start: %s", bt_status_text(status));
    }
    bt_metrics_add_process(process->metrics);
    const bool has_admin = options->admin_address != NULL && options->admin_address[0] != '\0';
    return has_admin ? serve_admin(process, err) : BT_OK;
}

void bt_process_say(bt_process *process, const char *text)
{
    atomic_store_explicit(&process->health_text, text, memory_order_relaxed);
}

static void on_tick(void *ctx)
{
    bt_process *process = ctx;
    bool ready = false;
    const char *text = process->hooks.health(process->hooks.ctx, &ready);
    if (ready && !atomic_load_explicit(&process->ready, memory_order_relaxed)) {
        bt_log(BT_INFO, "ready");
    }
    atomic_store_explicit(&process->health_text, text, memory_order_relaxed);
    atomic_store_explicit(&process->ready, ready, memory_order_relaxed);
    atomic_store_explicit(&process->alive_ns, bt_clock_now_ns(), memory_order_relaxed);
}

static void on_signal(void *ctx)
{
    bt_process *process = ctx;
    if (process->stopping) {
        bt_log(BT_WARN, "ended at once: why=\"a second signal\"");
        _exit(130);
    }
    process->stopping = true;
    const uint64_t grace_ms = (uint64_t)(process->options.grace_ns / 1000000);
    bt_log(BT_INFO, "stopping: drain_ms=%" PRIu64, grace_ms);
    process->hooks.stop(process->hooks.ctx, grace_ms);
}

bt_status bt_process_run(bt_process *process, const bt_process_hooks *hooks)
{
    process->hooks = *hooks;
    bt_status status = bt_timer_create(process->loop, on_tick, process, &process->timer);
    if (status == BT_OK) {
        status = bt_signal_create(process->loop, SIGINT, on_signal, process, &process->on_int);
    }
    if (status == BT_OK) {
        status = bt_signal_create(process->loop, SIGTERM, on_signal, process, &process->on_term);
    }
    if (status == BT_OK) {
        bt_timer_start(process->timer, 0, TICK_MS);
        bt_loop_run(process->loop);
    }
    return status;
}

void bt_process_stopped(bt_process *process)
{
    bt_loop_stop(process->loop);
}

void bt_process_deinit(bt_process *process)
{
    bt_http_server_destroy(process->http);
    bt_timer_destroy(process->timer);
    bt_signal_destroy(process->on_int);
    bt_signal_destroy(process->on_term);
    bt_rpc_destroy(process->rpc);
    bt_metrics_destroy(process->metrics);
    bt_loop_destroy(process->loop);
}
