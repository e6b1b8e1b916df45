/* SPDX-License-Identifier: Apache-2.0 */
/* registry.h - the workers that are attached: who they are, how loaded, how they are reached.
 *
 * One slot for each session of a worker, from on_worker_up to on_worker_down (proto/link.h). A
 * worker that dials again is a new session (the link sees to it that no two of one name live at
 * a time). The registry also counts what this router has bound to each worker, so
 * that placement does not wait for the next load report, and writes both down as the view
 * that the policy reads: of the worker's own report and the router's count the larger one holds.
 *
 * Threading: loop thread only. Memory: create only.
 */
#ifndef BT_ROUTER_REGISTRY_H
#define BT_ROUTER_REGISTRY_H

#include "proto/link.h"
#include "router/forecast.h"
#include "router/policy.h"
#include "router/prefix_map.h"

enum {
    BT_ROUTER_EVICTION_SAMPLES = 7, /* a minute in steps of ten seconds */
};

typedef struct bt_router_registry bt_router_registry;

/* How many evictions a worker had counted at a moment. */
typedef struct bt_router_eviction_sample {
    int64_t time_ns;
    uint64_t n;
} bt_router_eviction_sample;

/* Read by others, changed by the registry alone. */
typedef struct bt_router_worker {
    uint32_t slot;
    uint64_t session;   /* unlike that of any other session of this router; 0: slot is free */
    bt_link_peer *peer; /* borrowed; NULL in tests */
    bt_link_hello hello;
    uint32_t model_idx;
    uint32_t numerics; /* equal for equal numerics ids among attached workers */
    bool has_load;
    bt_link_load load;
    int64_t attached_ns;
    int64_t report_ns; /* last load report, or attach */
    bt_router_eviction_sample evictions[BT_ROUTER_EVICTION_SAMPLES]; /* the newest ones */
    uint32_t n_evictions;                                            /* samples so far */
    bool drain_asked;  /* an operator wants it to go */
    uint64_t hot_looked; /* draining: the oldest hot chain that was looked at; 0: none */
    uint64_t fetched_bytes; /* draining: of its blocks, that others were told to pull */
    bool let_go;            /* draining: it was told that it is not kept for them (any more) */
    bool unreachable;  /* a run could not be sent since its last report */
    /* bound by this router */
    uint32_t n_requests;
    uint64_t prefill_tokens; /* of requests without a first token */
    uint64_t live_tokens;    /* of requests that decode here */
    uint32_t n_prefilling;   /* requests with some of prefill_tokens */
    uint32_t n_decoding;     /* requests that have a token and decode here */
    bt_router_step_line step_line;
} bt_router_worker;

BT_MUST_CHECK bt_status bt_router_registry_create(bt_router_registry **out);
void bt_router_registry_destroy(bt_router_registry *registry);

/* Takes a worker in. BT_EEXHAUSTED: all slots are taken; BT_EMISMATCH: its block size is not
 * that of the hash chain; *err says so. */
BT_MUST_CHECK bt_status bt_router_registry_add(bt_router_registry *registry, bt_link_peer *peer,
                                               const bt_link_hello *hello, uint32_t model_idx,
                                               int64_t now_ns, bt_router_worker **out,
                                               bt_error *err);
void bt_router_registry_remove(bt_router_registry *registry, bt_router_worker *worker);

/* A run could not be sent: its session is ending, or it does not read. It is not alive until it
 * is heard of again; otherwise a request would use up its attempts on it within a moment. */
void bt_router_registry_unreachable(bt_router_worker *worker);

/* A load report arrived. */
void bt_router_registry_report(bt_router_worker *worker, const bt_link_load *load, int64_t now_ns);

/* Blocks that its prefix cache lost in the last minute, or since it attached, to ten seconds. */
uint64_t bt_router_worker_evicted_last_minute(const bt_router_worker *worker);

/* Binds a request's part to the worker and takes it off again, with equal numbers. */
void bt_router_registry_bind(bt_router_worker *worker, uint64_t prefill_tokens,
                             uint64_t live_tokens);
void bt_router_registry_unbind(bt_router_worker *worker, uint64_t prefill_tokens,
                               uint64_t live_tokens);

/* The worker in a slot, or NULL when it is free. slot < BT_ROUTER_WORKERS_MAX. */
bt_router_worker *bt_router_registry_at(const bt_router_registry *registry, uint32_t slot);

/* A request that is bound to the worker decodes there from now on, or does so no more. */
void bt_router_registry_decoding(bt_router_worker *worker, bool begins);

uint32_t bt_router_registry_count(const bt_router_registry *registry);

/* It takes nothing new: it says so, or it was asked to drain. */
bool bt_router_worker_is_draining(const bt_router_worker *worker);

/* Attached, heard of within silence_ns, not draining, not stuck. */
bool bt_router_worker_is_alive(const bt_router_worker *worker, int64_t now_ns, int64_t silence_ns);

typedef struct bt_router_view_options {
    uint32_t model_idx;
    int64_t now_ns;
    int64_t silence_ns;
    bool need_room;        /* workers that have all they take for now are marked as full */
    int64_t tpot_limit_ns; /* with need_room: no step of a decode worker is to take longer, with
                            * one sequence more; 0: no limit */
} bt_router_view_options;

/* Writes down the workers of one model; views[i] belongs to the worker in slots[i]. Matched
 * blocks are 0, nobody is excluded. Returns their number. */
size_t bt_router_registry_view(const bt_router_registry *registry,
                               const bt_router_view_options *options,
                               bt_router_worker_view views[BT_ROUTER_WORKERS_MAX],
                               uint32_t slots[BT_ROUTER_WORKERS_MAX]);

/* The numerics ids of the attached workers of one model, each once: up to n_max into ids[]. */
size_t bt_router_registry_numerics_ids(const bt_router_registry *registry, uint32_t model_idx,
                                       size_t n_max, uint8_t (*ids)[BT_LINK_ID_BYTES]);

#endif /* BT_ROUTER_REGISTRY_H */
