/* SPDX-License-Identifier: Apache-2.0 */
/* A timer on the loop publishes readiness and a sign of life; the admin server reads them, so
 * that it answers also while the loop hangs, and then says so.
 *
 * SIGINT and SIGTERM are blocked outside of run(), from before the first word until the process
 * has gone: one that comes early waits for run(), one that comes late changes nothing. All other
 * threads block them always. */
#include "cli/process.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/clock.h"
#include "common/socket.h"

enum {
    TICK_MS = 100,
    KEYS_LOOK_NS = 1000 * 1000 * 1000,
    SILENCE_S_MAX = 10, /* a loop that ticks no more is not alive */
};

const char *const bt_process_log_levels[] = {"error", "warn", "info", "debug", NULL};
const char *const bt_process_log_formats[] = {"text", "json", NULL};

/* ---------------------------------------------------------------------------- secrets ---- */

static bt_status read_secrets(bt_process *process, bt_error *err)
{
    const bt_process_options *o = &process->options;
    bt_cli_guards *guards = &process->guards;
    guards->insecure = o->insecure;
    bt_status status = bt_cli_read_cluster_key(o->cluster_key_file, &process->cluster_key,
                                               &guards->has_cluster_key, err);
    if (status != BT_OK) {
        return status;
    }
    if (!guards->has_cluster_key) {
        bt_log(BT_WARN, "no cluster key: advice=\"give all members one with --cluster-key-file\"");
    }
    if (o->api_keys_file != NULL && o->api_keys_file[0] != '\0') {
        status = bt_keys_create(o->api_keys_file, &process->keys, err);
        guards->has_keys = status == BT_OK;
    }
    if (status == BT_OK) {
        status = bt_cli_check_door(BT_CLI_DOOR_METRICS, "--admin", o->admin_address, guards, err);
    }
    return status;
}

/* ----------------------------------------------------------------------- admin address ---- */

static void on_metrics(bt_http_request *request, void *ctx)
{
    bt_process *process = ctx;
    const char *shown = bt_http_request_header(request, "authorization");
    bt_error err = {{0}};
    if (process->metrics_need_key &&
        bt_keys_check(process->keys, shown, BT_KEYS_METRICS, NULL, &err) != BT_OK) {
        bt_http_respond_header(request, "WWW-Authenticate", "Bearer");
        bt_http_respond_text(request, 401, "this needs an API key of role metrics\n");
        return;
    }
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
        bt_http_respond_text(request, 503,
                             process->is_public ? "failed\n" : "the loop does not move\n");
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
    why = process->is_public ? "not ready" : why;
    snprintf(text, sizeof text, "%s\n", ready ? "ready" : why);
    bt_http_respond_text(request, ready ? 200 : 503, text);
}

static bt_status serve_admin(bt_process *process, bt_error *err)
{
    const bt_http_options options = {.address = process->options.admin_address};
    process->is_public = !bt_socket_is_local(options.address);
    process->metrics_need_key = process->is_public && process->keys != NULL;
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

static void block_signals(int how)
{
    sigset_t both;
    (void)sigemptyset(&both);
    (void)sigaddset(&both, SIGINT);
    (void)sigaddset(&both, SIGTERM);
    (void)pthread_sigmask(how, &both, NULL);
}

/* Each connection takes a descriptor; the soft limit is 1,024 on most hosts. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* it runs with fewer, too */
    }
}

bt_status bt_process_init(bt_process *process, const char *who, const bt_process_options *options,
                          bt_error *err)
{
    *process = (bt_process){.options = *options};
    block_signals(SIG_BLOCK);
    atomic_store_explicit(&process->health_text, "starting", memory_order_relaxed);
    bt_log_init((bt_log_level)options->log_level, (bt_log_format)options->log_format, who);
    raise_descriptor_limit();
    bt_status status = read_secrets(process, err);
    if (status != BT_OK) {
        return status;
    }
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

void bt_process_look_at_signals(void)
{
    sigset_t pending;
    if (sigpending(&pending) == 0 &&
        (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1)) {
        bt_log(BT_INFO, "ended: why=\"a signal before the start was done\"");
        _exit(BT_CLI_INTERRUPTED);
    }
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
    const int64_t now_ns = bt_clock_now_ns();
    atomic_store_explicit(&process->alive_ns, now_ns, memory_order_relaxed);
    if (process->keys != NULL && now_ns - process->keys_looked_ns >= KEYS_LOOK_NS) {
        process->keys_looked_ns = now_ns;
        bt_keys_refresh(process->keys);
    }
}

void bt_process_stop(bt_process *process)
{
    if (process->stopping) {
        return;
    }
    process->stopping = true;
    const uint64_t grace_ms = (uint64_t)(process->options.grace_ns / 1000000);
    bt_log(BT_INFO, "stopping: drain_ms=%" PRIu64, grace_ms);
    process->hooks.stop(process->hooks.ctx, grace_ms);
    on_tick(process); /* /readyz says so at once */
}

static void on_signal(void *ctx)
{
    bt_process *process = ctx;
    if (process->signalled) {
        bt_log(BT_WARN, "ended at once: why=\"a second signal\"");
        _exit(BT_CLI_INTERRUPTED);
    }
    process->signalled = true; /* a drain by command is no signal yet */
    bt_process_stop(process);
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
        block_signals(SIG_UNBLOCK);
        bt_loop_run(process->loop);
        block_signals(SIG_BLOCK);
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
    bt_keys_destroy(process->keys);
    bt_hash_wipe(&process->cluster_key, sizeof process->cluster_key);
}
