/* SPDX-License-Identifier: Apache-2.0 */
/* How the hot prefixes of a worker that drains come to others:
 *
 *   router            the one that drains (from)     another one (to)
 *     |<-- load: draining --|                            |
 *     |--- fetch (peer: from, ids) --------------------->|   BEGUN, at most IN_FLIGHT of `from`
 *     |                     |<---------- pull -----------|
 *     |<------------------------------------ fetched ----|   the next one, if bytes are left
 *     |--- leave ---------->|                                nothing is left: it may go
 *
 * The chains are those that prompts had last (hot.h), the newest first: as much of each as `from`
 * holds and no other living worker of its role and numerics does, up to drain_prefix_bytes in all.
 * They go to the one of these with the most free blocks, and never take more than half of them. A
 * chain that begins as one that is under way waits for it: what they share is not moved twice. What
 * fails is left: it is computed again when it is wanted. */
#include <inttypes.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "router/router_int.h"

enum {
    IN_FLIGHT = 2,    /* of one worker */
    FETCH_MS = 10000, /* that one may take */
};

static uint32_t count_from(const bt_router *router, const bt_router_worker *from)
{
    uint32_t n = 0;
    for (size_t i = 0; i < BT_ROUTER_FETCHES_MAX; i++) {
        n += router->fetches[i].open && router->fetches[i].from == from->session;
    }
    return n;
}

static bool is_under_way(const bt_router *router, const bt_block_hash *first)
{
    for (size_t i = 0; i < BT_ROUTER_FETCHES_MAX; i++) {
        if (router->fetches[i].open && bt_hash128_equal(router->fetches[i].first, *first)) {
            return true;
        }
    }
    return false;
}

static bool is_alike(const bt_router *router, const bt_router_worker *from,
                     const bt_router_worker *other)
{
    return other != NULL && other != from && other->model_idx == from->model_idx &&
           other->numerics == from->numerics && other->hello.role == from->hello.role &&
           bt_router_worker_is_alive(other, bt_clock_now_ns(),
                                     (int64_t)router->options.worker_timeout_ms * 1000000);
}

typedef struct plan {
    bt_router_worker *to;
    uint32_t n;     /* leading blocks of the chain */
    uint64_t bytes; /* that `to` lacks of them, at most */
} plan;

/* false: it is not worth it, or nobody has room. */
static bool choose(const bt_router *router, const bt_router_worker *from,
                   const bt_router_hot_chain *chain, plan *out)
{
    uint32_t matched[BT_ROUTER_WORKERS_MAX];
    bt_router_prefix_map_match(router->prefix_map, chain->ids, chain->n, matched);
    bt_router_worker *to = NULL;
    uint32_t n_elsewhere = 0;
    for (uint32_t i = 0; i < BT_ROUTER_WORKERS_MAX; i++) {
        bt_router_worker *other = bt_router_registry_at(router->registry, i);
        if (!is_alike(router, from, other)) {
            continue;
        }
        n_elsewhere = matched[i] > n_elsewhere ? matched[i] : n_elsewhere;
        if (other->has_load && bt_router_can_pull(from, other) &&
            (to == NULL || other->load.blocks_free > to->load.blocks_free)) {
            to = other;
        }
    }
    const uint32_t n_from = matched[from->slot];
    if (to == NULL || n_from <= n_elsewhere || from->hello.block_bytes == 0) {
        return false;
    }
    const uint64_t n_budget =
        (router->options.drain_prefix_bytes - from->fetched_bytes) / from->hello.block_bytes;
    const uint32_t n_room = to->load.blocks_free / 2;
    const uint32_t n_most = n_budget < n_room ? (uint32_t)n_budget : n_room;
    const uint32_t n_lacking = n_from - matched[to->slot];
    const uint32_t n_moved = n_lacking < n_most ? n_lacking : n_most;
    out->to = to;
    out->n = matched[to->slot] + n_moved;
    out->bytes = n_moved * from->hello.block_bytes;
    return out->n > n_elsewhere;
}

static bt_router_fetch *find_free(bt_router *router)
{
    for (size_t i = 0; i < BT_ROUTER_FETCHES_MAX; i++) {
        if (!router->fetches[i].open) {
            return &router->fetches[i];
        }
    }
    return NULL;
}

/* false: its target can't be reached, and is not chosen again. */
static bool begin(bt_router_fetch *f, bt_router_worker *from, const bt_router_hot_chain *chain,
                  const plan *p)
{
    bt_link_fetch fetch = {
        .peer = from->hello.kv,
        .ids = chain->ids,
        .n_ids = p->n,
        .deadline_left_ms = FETCH_MS,
    };
    bt_hash_random(&fetch.id, sizeof fetch.id);
    if (bt_link_router_fetch(p->to->peer, &fetch) != BT_OK) {
        bt_router_registry_unreachable(p->to);
        return false;
    }
    *f = (bt_router_fetch){
        .open = true,
        .id = fetch.id,
        .from = from->session,
        .from_slot = from->slot,
        .to = p->to->session,
        .first = chain->ids[0],
    };
    from->fetched_bytes += p->bytes;
    bt_log(BT_INFO, "prefix is handed on: from=%s to=%s blocks=%" PRIu32, from->hello.kv.name,
           p->to->hello.kv.name, p->n);
    return true;
}

/* Begins the next one. false: none is left, or it has to wait for those under way. */
static bool begin_next(bt_router *router, bt_router_fetch *f, bt_router_worker *from)
{
    const uint64_t before = from->hot_looked == 0 ? UINT64_MAX : from->hot_looked;
    const bt_router_hot_chain *chain =
        bt_router_hot_next(router->hot, from->hello.numerics_id, before);
    while (chain != NULL) {
        if (is_under_way(router, &chain->ids[0])) {
            return false;
        }
        from->hot_looked = chain->used;
        plan p;
        while (choose(router, from, chain, &p)) {
            if (begin(f, from, chain, &p)) {
                return true;
            }
        }
        chain = bt_router_hot_next(router->hot, from->hello.numerics_id, from->hot_looked);
    }
    return false;
}

void bt_router_hand_over(bt_router *router, bt_router_worker *from)
{
    if (from->let_go) {
        return;
    }
    const bool wants = router->options.drain_prefix_bytes > 0;
    uint32_t n = count_from(router, from);
    bt_router_fetch *f = find_free(router);
    while (wants && f != NULL && n < IN_FLIGHT && begin_next(router, f, from)) {
        f = find_free(router);
        n++;
    }
    if (n == 0 && (f != NULL || !wants)) {
        from->let_go = true;
        bt_link_router_leave(from->peer);
    }
}

static void end(bt_router *router, bt_router_fetch *f)
{
    f->open = false;
    bt_router_worker *from = bt_router_registry_at(router->registry, f->from_slot);
    if (from != NULL && from->session == f->from && bt_router_worker_is_draining(from)) {
        bt_router_hand_over(router, from);
    }
}

void bt_router_on_fetched(bt_router *router, const bt_router_worker *worker,
                          const bt_link_fetched *fetched)
{
    for (size_t i = 0; i < BT_ROUTER_FETCHES_MAX; i++) {
        bt_router_fetch *f = &router->fetches[i];
        if (!f->open || f->to != worker->session || f->id.hi != fetched->id.hi ||
            f->id.lo != fetched->id.lo) {
            continue;
        }
        bt_router_report_fetched(router, fetched->status == BT_OK, fetched->blocks_moved);
        if (fetched->status != BT_OK) {
            bt_log(BT_WARN, "prefix was not handed on: to=%s status=%s why=\"%s\"",
                   worker->hello.kv.name, bt_status_name(fetched->status), fetched->error.text);
        }
        end(router, f);
        return;
    }
}

void bt_router_fetches_lost(bt_router *router, uint64_t session)
{
    for (size_t i = 0; i < BT_ROUTER_FETCHES_MAX; i++) {
        bt_router_fetch *f = &router->fetches[i];
        if (f->open && f->to == session) {
            bt_router_report_fetched(router, false, 0);
            end(router, f);
        }
    }
}

void bt_router_note_hot(bt_router_request *request)
{
    const bt_router *router = request->router;
    if (router->options.drain_prefix_bytes == 0) {
        return;
    }
    for (int i = BT_ROUTER_LEG_P; i <= BT_ROUTER_LEG_D; i++) {
        const bt_router_leg *leg = &request->legs[i];
        const bt_router_chain *chain =
            leg->open ? bt_router_prompt_chain(request->prompt, leg->worker->hello.numerics_id)
                      : NULL;
        if (chain != NULL) {
            bt_router_hot_note(router->hot, chain->numerics_id, chain->ids, chain->n);
        }
    }
}
