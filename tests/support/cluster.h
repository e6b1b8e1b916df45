/* SPDX-License-Identifier: Apache-2.0 */
/* cluster.h - a whole cluster in one process and one loop thread, whose parts can be broken.
 *
 *   client --proxy--> router <--proxy-- worker 0 ..            (gRPC, over loopback sockets)
 *                                       P <== KV ==> D         (kvtransfer, with its fault seam)
 *
 * Router, workers, sessions and transfers are the real ones, with the tiny model. A kill is what
 * the others see of a kill -9: every connection of the member breaks at once and nobody is there
 * any more; its remains then unwind unseen, and their pool must pass its audit. A restart is a new
 * incarnation. A stop is what the others see of a SIGSTOP: nothing leaves and nothing is read.
 *
 * Threading: the thread that created it runs the loop (inside bt_cluster_wait).
 * Memory:    the heap; for tests. What must not happen aborts the program with a text.
 */
#ifndef BT_TESTS_SUPPORT_CLUSTER_H
#define BT_TESTS_SUPPORT_CLUSTER_H

#include "decode/worker.h"
#include "prefill/worker.h"
#include "router/router.h"

enum {
    BT_CLUSTER_WORKERS_MAX = 6,
    BT_CLUSTER_PROMPT_MAX = 640,
    BT_CLUSTER_TOKENS_MAX = 512,
    BT_CLUSTER_TEXT_MAX = 4096,
};

typedef struct bt_cluster bt_cluster;

typedef struct bt_cluster_worker_options {
    bt_link_role role;
    bt_kv_transport transport; /* AUTO: loopback */
    uint32_t pool_blocks;      /* 0: 128 */
    uint32_t running_max;      /* 0: 8 */
    uint32_t requests_max;     /* 0: 32 */
    uint32_t chunk;            /* 0: 32 */
    uint32_t token_budget;     /* 0: 64 */
} bt_cluster_worker_options;

typedef struct bt_cluster_options {
    uint32_t n_workers;
    bt_cluster_worker_options workers[BT_CLUSTER_WORKERS_MAX];
    uint32_t requests_max;      /* of the router; 0: 32 */
    uint32_t queue_max;         /* 0: requests_max */
    uint32_t attempts_max;      /* 0: 16 */
    uint32_t recoveries_max;    /* 0: 100 */
    uint64_t queue_time_ms;     /* 0: 10,000 */
    uint64_t request_time_ms;   /* 0: 60,000 */
    uint64_t worker_timeout_ms; /* 0: 1,000 */
    uint32_t lease_ms;          /* 0: 1,000 */
    bool no_local_prefill;
} bt_cluster_options;

/* One request, and what has come of it. */
typedef struct bt_cluster_request {
    /* asked; set by the test */
    uint32_t prompt[BT_CLUSTER_PROMPT_MAX];
    uint32_t n_prompt;
    float temperature;
    float repetition_penalty; /* 0: none */
    uint64_t seed;
    uint32_t max_tokens;
    const char *stop; /* NULL: none */
    const char *salt; /* NULL: none */
    bool logprobs;
    bool echo;
    int64_t deadline_ns; /* from now; 0: none */
    bool hold;           /* takes no message after the first */

    /* answered */
    bt_cluster *cluster;
    bool starved;      /* hold: it has not asked for the next message */
    bt_rpc_call *call; /* NULL: over, or not begun */
    uint32_t tokens[BT_CLUSTER_TOKENS_MAX];
    uint32_t n_tokens;
    uint32_t n_echoed;
    char text[BT_CLUSTER_TEXT_MAX];
    size_t text_len;
    float logprob[BT_CLUSTER_TOKENS_MAX];
    uint32_t n_logprobs;
    bool finished; /* the message with `finish` came */
    int reason;
    uint32_t usage_prompt;
    uint32_t usage_generated;
    uint32_t attempts;
    bool done; /* the call is over, with this: */
    int code;  /* bt_rpc_code */
    char message[256];
} bt_cluster_request;

/* Starts router and workers, and waits until all are attached. */
bt_cluster *bt_cluster_create(const bt_cluster_options *options);

/* Stops all; every pool's audit must be clean. */
void bt_cluster_destroy(bt_cluster *cluster);

bt_loop *bt_cluster_loop(bt_cluster *cluster);

/* Called on the loop thread after each message to a client and each event of KV parts: nothing
 * may be broken inside it, but bt_cluster_soon() calls back when it may. */
void bt_cluster_watch(bt_cluster *cluster, bt_loop_fn seen, void *ctx);
void bt_cluster_soon(bt_cluster *cluster, bt_loop_fn fn, void *ctx);

/* ---- requests ---- */
void bt_cluster_send(bt_cluster *cluster, bt_cluster_request *request);
void bt_cluster_cancel(bt_cluster_request *request);
void bt_cluster_resume(bt_cluster_request *request); /* ends `hold` */

/* NULL: the same answer, whatever way it came. Otherwise what differs, in words. */
const char *bt_cluster_compare(const bt_cluster_request *request, const bt_cluster_request *truth);

/* ---- waiting: runs the loop until cond(ctx); aborts after 60 s ---- */
void bt_cluster_wait(bt_cluster *cluster, bool (*cond)(void *ctx), void *ctx);
void bt_cluster_wait_done(bt_cluster *cluster, bt_cluster_request *request);
void bt_cluster_wait_tokens(bt_cluster *cluster, bt_cluster_request *request, uint32_t n);
void bt_cluster_run_ms(bt_cluster *cluster, uint64_t ms);

/* Until every worker that lives is attached to the router. */
void bt_cluster_wait_attached(bt_cluster *cluster);

/* Until no run is open on any worker and every block is free or cached. */
void bt_cluster_wait_idle(bt_cluster *cluster);
bool bt_cluster_is_idle(const bt_cluster *cluster);

/* ---- workers ---- */
uint32_t bt_cluster_n_workers(const bt_cluster *cluster);
bool bt_cluster_is_alive(const bt_cluster *cluster, uint32_t worker);
bool bt_cluster_is_attached(const bt_cluster *cluster, uint32_t worker);
void bt_cluster_health(const bt_cluster *cluster, uint32_t worker, bt_worker_health *out);

void bt_cluster_kill(bt_cluster *cluster, uint32_t worker);
void bt_cluster_restart(bt_cluster *cluster, uint32_t worker); /* after a kill or a drain */
void bt_cluster_stop(bt_cluster *cluster, uint32_t worker, bool stop);

/* Drains it as SIGTERM does, with this grace; it is not alive any more, but can be broken as the
 * living until it has gone or its place is taken. */
void bt_cluster_drain(bt_cluster *cluster, uint32_t worker, uint64_t grace_ms);
bool bt_cluster_is_draining(const bt_cluster *cluster, uint32_t worker);

/* Between worker and router. */
void bt_cluster_cut_attach(bt_cluster *cluster, uint32_t worker);
void bt_cluster_hold_attach(bt_cluster *cluster, uint32_t worker, bool hold);

/* Of the worker's KV connections. */
bt_kv_fault *bt_cluster_kv_fault(bt_cluster *cluster, uint32_t worker);

/* Events of parts in all workers since the start: announced by sources, arrived at sinks. */
uint64_t bt_cluster_kv_announced(const bt_cluster *cluster);
uint64_t bt_cluster_kv_moved(const bt_cluster *cluster);

/* ---- router and clients ---- */
bool bt_cluster_has_router(const bt_cluster *cluster);
void bt_cluster_kill_router(bt_cluster *cluster);
void bt_cluster_restart_router(bt_cluster *cluster);
void bt_cluster_hold_router(bt_cluster *cluster, bool hold);
void bt_cluster_cut_clients(bt_cluster *cluster);
void bt_cluster_hold_clients(bt_cluster *cluster, bool hold);

/* Until the router says that n requests wait in its queue. */
void bt_cluster_wait_queued(bt_cluster *cluster, uint32_t n);

/* ---- time: every clock of this process jumps ahead ---- */
void bt_cluster_clock_jump(bt_cluster *cluster, int64_t ns);

#endif /* BT_TESTS_SUPPORT_CLUSTER_H */
