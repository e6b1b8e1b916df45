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
#include "router/policy.h"
#include "router/prefix_map.h"

typedef struct bt_router_registry bt_router_registry;

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
    bool drain_asked;  /* an operator wants it to go */
    /* bound by this router */
    uint32_t n_requests;
    uint64_t prefill_tokens; /* of requests without a first token */
    uint64_t live_tokens;    /* of requests that decode here */
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

/* A load report arrived. */
void bt_router_registry_report(bt_router_worker *worker, const bt_link_load *load, int64_t now_ns);

/* Binds a request's part to the worker and takes it off again, with equal numbers. */
void bt_router_registry_bind(bt_router_worker *worker, uint64_t prefill_tokens,
                             uint64_t live_tokens);
void bt_router_registry_unbind(bt_router_worker *worker, uint64_t prefill_tokens,
                               uint64_t live_tokens);

/* The worker in a slot, or NULL when it is free. slot < BT_ROUTER_WORKERS_MAX. */
bt_router_worker *bt_router_registry_at(const bt_router_registry *registry, uint32_t slot);

uint32_t bt_router_registry_count(const bt_router_registry *registry);

/* It takes nothing new: it says so, or it was asked to drain. */
bool bt_router_worker_is_draining(const bt_router_worker *worker);

/* Attached, heard of within silence_ns, not draining. */
bool bt_router_worker_is_alive(const bt_router_worker *worker, int64_t now_ns, int64_t silence_ns);

typedef struct bt_router_view_options {
    uint32_t model_idx;
    int64_t now_ns;
    int64_t silence_ns;
    bool need_room; /* a worker that has all the runs it takes is not ready */
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
