/* SPDX-License-Identifier: Apache-2.0 */
/* worker_int.h - inside of a worker, for worker.c (serving) and worker_life.c (start, stop). */
#ifndef BT_WORKER_WORKER_INT_H
#define BT_WORKER_WORKER_INT_H

#include "worker/admission.h"
#include "worker/meter.h"
#include "worker/timeline.h"
#include "worker/watchdog.h"
#include "worker/worker.h"

enum { BT_WORKER_BLOCKS_BATCH = 64 }; /* block events told in one call */

typedef enum bt_worker_state {
    BT_WORKER_STATE_CREATED,
    BT_WORKER_STATE_SERVING,
    BT_WORKER_STATE_DRAINING,
    BT_WORKER_STATE_STOPPING,
    BT_WORKER_STATE_AUDITING,
    BT_WORKER_STATE_CLOSING,
    BT_WORKER_STATE_STOPPED,
} bt_worker_state;

struct bt_worker {
    /* fixed after create */
    bt_loop *loop;
    bt_rpc *rpc;
    bt_worker_options options; /* its pointers to names and routers are not used later */
    char name[BT_LINK_NAME_MAX];
    const bt_worker_role_ops *ops;
    void *ctx;
    uint64_t incarnation;
    bt_admission admission;

    /* owned */
    bt_kv_pool *pool;
    bt_kv_cache *cache;
    bt_run_table *runs;
    bt_engine *engine;
    bt_meter *meter;
    bt_timeline_ring *ring;
    bt_worker_chains *chains;
    bt_link_worker *link;
    bt_wake *wake;
    bt_timer *deadline_timer;
    bt_timer *grace_timer;
    bt_timer *watch_timer;
    bt_watchdog watchdog;
    void *event; /* room for one */

    bt_worker_state state;
    bool in_events;      /* inside on_wake: it flushes at its end */
    int64_t deadline_ns; /* what the timer is set to; INT64_MAX: nothing */
    bt_link_load load;
    bt_hash128 blocks[BT_WORKER_BLOCKS_BATCH]; /* not yet told */
    size_t n_blocks;
    bool blocks_stored;
    int64_t draining_ns; /* since when */
    bt_status audit;
    bt_loop_fn stopped;
    void *stopped_ctx;
};

/* worker.c: what life hands to link, loop and engine. */
extern const bt_link_worker_callbacks bt_worker_link_callbacks;
void bt_worker_on_wake(void *ctx);
void bt_worker_on_deadline(void *ctx);
void bt_worker_on_watch(void *ctx); /* each load_ms, whatever the engine does */
void bt_worker_ring(void *ctx);     /* any thread */
void bt_worker_on_fetched(uint32_t router, const bt_link_fetched *fetched, void *ctx);

/* worker_life.c: goes on with stopping when no run is open. */
void bt_worker_stop_when_empty(bt_worker *worker);

#endif /* BT_WORKER_WORKER_INT_H */
