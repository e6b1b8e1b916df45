/* SPDX-License-Identifier: Apache-2.0 */
/* process.h - what a router and a worker process have in common: loop, RPC, metrics, the admin
 * address with /metrics, /healthz and /readyz, and an end by signal.
 *
 *   init -> (the command makes its part) -> run ... (SIGINT, SIGTERM: stop) -> deinit
 *
 * Threading: the main thread, which becomes the loop thread in run(). The admin server has a
 *            thread of its own and reads what tick() has published.
 */
#ifndef BT_CLI_PROCESS_H
#define BT_CLI_PROCESS_H

#include <stdatomic.h>

#include "cli/security.h"
#include "common/config.h"
#include "common/http.h"
#include "common/keys.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/rpc.h"
#include "proto/block_id.h"

/* Options that both commands have; filled by rows of the macro below. */
typedef struct bt_process_options {
    const char *admin_address;
    const char *cluster_key_file;
    const char *api_keys_file;
    bool insecure;
    int64_t grace_ns;
    int log_level;
    int log_format;
} bt_process_options;

extern const char *const bt_process_log_levels[];
extern const char *const bt_process_log_formats[];

#define BT_PROCESS_CONFIG_ROWS(target, member)                                                     \
    {.name = "admin",                                                                              \
     .type = BT_CONFIG_STRING,                                                                     \
     .group = "Operation",                                                                         \
     .placeholder = "HOST:PORT",                                                                   \
     .help = "Serves /metrics (Prometheus), /healthz and /readyz here. Not served if not given. "  \
             "Where other hosts reach it, /metrics asks for an API key.",                          \
     .offset = offsetof(target, member.admin_address)},                                            \
        {.name = "cluster-key-file",                                                               \
         .type = BT_CONFIG_STRING,                                                                 \
         .group = "Operation",                                                                     \
         .placeholder = "FILE",                                                                    \
         .help = "Secret of the cluster, 16 bytes or more, the same for every router and worker; " \
                 "BATON_CLUSTER_KEY holds it too. Without one all clusters without a key agree.",  \
         .offset = offsetof(target, member.cluster_key_file)},                                     \
        {.name = "api-keys",                                                                       \
         .type = BT_CONFIG_STRING,                                                                 \
         .group = "Operation",                                                                     \
         .placeholder = "FILE",                                                                    \
         .help =                                                                                   \
             "API keys, a line each: NAME SECRET [share | metrics]. Clients then have to show "    \
             "one, and /metrics one of role metrics, unless --admin is a loopback address. "       \
             "Read again when it changes.",                                                        \
         .offset = offsetof(target, member.api_keys_file)},                                        \
        {.name = "insecure",                                                                       \
         .type = BT_CONFIG_BOOL,                                                                   \
         .group = "Operation",                                                                     \
         .fallback = "false",                                                                      \
         .help = "Lets addresses that other hosts reach be open to everybody.",                    \
         .offset = offsetof(target, member.insecure)},                                             \
        {.name = "drain-time",                                                                     \
         .type = BT_CONFIG_DURATION,                                                               \
         .group = "Operation",                                                                     \
         .fallback = "10s",                                                                        \
         .help = "After SIGTERM or Ctrl-C: how long running requests may go on. A second signal "  \
                 "ends the process at once.",                                                      \
         .offset = offsetof(target, member.grace_ns)},                                             \
        {.name = "log-level",                                                                      \
         .type = BT_CONFIG_ENUM,                                                                   \
         .group = "Operation",                                                                     \
         .fallback = "info",                                                                       \
         .choices = bt_process_log_levels,                                                         \
         .help = "Least important lines on standard error: info has one for each request, debug "  \
                 "one for each step.",                                                             \
         .offset = offsetof(target, member.log_level)},                                            \
    {                                                                                              \
        .name = "log-format", .type = BT_CONFIG_ENUM, .group = "Operation", .fallback = "text",    \
        .choices = bt_process_log_formats, .help = "Lines as key=value text or as JSON.",          \
        .offset = offsetof(target, member.log_format)                                              \
    }

/* What the command tells about itself; called on the loop thread. */
typedef struct bt_process_hooks {
    /* "ready", or why it is not, as a constant; *ready says which. */
    const char *(*health)(void *ctx, bool *ready);
    /* A signal came: stop within grace_ms, then call bt_process_stopped(). */
    void (*stop)(void *ctx, uint64_t grace_ms);
    void *ctx;
} bt_process_hooks;

typedef struct bt_process {
    bt_loop *loop;
    bt_rpc *rpc;
    bt_metrics *metrics;
    bt_cluster_key cluster_key;
    bt_keys *keys;        /* NULL: none are asked for */
    bt_cli_guards guards; /* has_client_ca is the command's to fill */

    /* the process's own */
    bt_process_options options;
    bt_process_hooks hooks;
    bt_http_server *http;
    bool is_public; /* others reach the admin address: it tells no more than it has to */
    bool metrics_need_key;
    int64_t keys_looked_ns;
    bt_timer *timer;
    bt_signal *on_int;
    bt_signal *on_term;
    bool stopping;
    bool signalled;
    /* Written by the loop thread, read by the admin server's; each stands alone. */
    _Atomic bool ready;
    _Atomic(const char *) health_text;
    _Atomic int64_t alive_ns; /* the loop's last tick; 0: it does not run yet */
} bt_process;

/* Sets the log up under the name `who`, reads cluster key and API keys, makes loop, RPC and
 * metrics, and serves the admin address: not ready ("starting") until run(). BT_EINVAL,
 * BT_ENOTFOUND, BT_EEXISTS (the port is in use), BT_ENOMEM. After a failure deinit() is still
 * called. */
BT_MUST_CHECK bt_status bt_process_init(bt_process *process, const char *who,
                                        const bt_process_options *options, bt_error *err);

/* Stops it as a first signal does; again: nothing. */
void bt_process_stop(bt_process *process);

/* Before run(): ends the process when a signal has come. For parts that take long and have nothing
 * to tidy up yet; a signal waits for run() otherwise. */
void bt_process_look_at_signals(void);

/* What /readyz says until run(), a constant. */
void bt_process_say(bt_process *process, const char *text);

/* Runs the loop until bt_process_stopped(). BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_process_run(bt_process *process, const bt_process_hooks *hooks);

/* The part has stopped: run() returns. */
void bt_process_stopped(bt_process *process);

void bt_process_deinit(bt_process *process);

#endif /* BT_CLI_PROCESS_H */
