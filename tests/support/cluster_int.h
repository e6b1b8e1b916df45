/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_int.h - what the parts of cluster.h share: its structs, its checks, its reaper.
 *
 * Threading: as cluster.h.
 * Memory:    the heap.
 */
#ifndef BT_TESTS_SUPPORT_CLUSTER_INT_H
#define BT_TESTS_SUPPORT_CLUSTER_INT_H

#include <stdatomic.h>

#include "tests/support/cluster.h"
#include "tests/support/proxy.h"

#define EXPECT(cond) ((cond) ? (void)0 : bt_cluster_expect_failed(__FILE__, __LINE__, #cond))

enum { BT_CLUSTER_MODELS_MAX = 3 * BT_CLUSTER_WORKERS_MAX };

typedef struct bt_cluster_member {
    bt_cluster *cluster;
    bt_prefill_worker *prefill; /* one of the two */
    bt_decode_worker *decode;
    bt_model *model;
    bt_proxy *proxy; /* to the router */
    bt_kv_fault fault;
    bool stopped;
    struct bt_cluster_member *next; /* of the remains */
} bt_cluster_member;

typedef struct bt_cluster_router {
    bt_cluster *cluster;
    bt_router *router;
    bt_metrics *metrics;
    bool stopped;
    struct bt_cluster_router *next;
} bt_cluster_router;

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
    bt_cluster_router *router; /* NULL: dead */
    bt_proxy *client_proxy;
    bt_rpc_channel *channel;
    bt_cluster_member *members[BT_CLUSTER_WORKERS_MAX];  /* NULL: dead */
    bt_cluster_member *draining[BT_CLUSTER_WORKERS_MAX]; /* among the remains */
    bt_cluster_member *remains;
    bt_cluster_router *router_remains;
    bt_model *models[BT_CLUSTER_MODELS_MAX]; /* free ones */
    uint32_t n_models;
    uint64_t n_sockets; /* unix socket names handed out */
    uint64_t kv_announced, kv_moved;
    uint32_t n_calls;
    bool (*cond)(void *ctx);
    void *cond_ctx;
    bool held;
};

/* Both abort the program with a text. */
void bt_cluster_expect_failed(const char *file, int line, const char *text);
void bt_cluster_must(bt_status status, const bt_error *err, const char *what);

/* Calls who watches. */
void bt_cluster_tell_seen(bt_cluster *cluster);

/* Frees the remains that have stopped; their audits must be clean. */
void bt_cluster_reap(bt_cluster *cluster);

#endif /* BT_TESTS_SUPPORT_CLUSTER_INT_H */
