/* SPDX-License-Identifier: Apache-2.0 */
/* policy.h - where a request runs: pure functions from a view of the cluster.
 *
 * The caller writes down what it knows of each worker (load, prefix match) and of the
 * request; the policy answers with a decode worker D and, unless D should prefill itself,
 * a prefill worker P. Nothing here knows a clock, a socket or a global, so the simulator
 * runs the same code.
 *
 * Cost of a prefill worker, in tokens to compute before this request's first token:
 *   queued prefill tokens + this prompt's tokens beyond the cached prefix.
 * Cost of a decode worker, in tokens: the context that each step must read and what it must
 *   pull for this request, scaled by how full its pool is. Ties go to the fewer requests,
 *   then the lower index: the same view gives the same placement.
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_ROUTER_POLICY_H
#define BT_ROUTER_POLICY_H

#include "common/status.h"

typedef enum bt_router_worker_role {
    BT_ROUTER_WORKER_ROLE_PREFILL,
    BT_ROUTER_WORKER_ROLE_DECODE,
    BT_ROUTER_WORKER_ROLE_BOTH, /* takes whole requests alone: it serves no prompt's KV to others */
} bt_router_worker_role;

typedef struct bt_router_worker_view {
    bt_router_worker_role role;
    bool ready;              /* attached, alive, same model, takes new work */
    bool full;               /* it has as much of that as it takes just now: wait for it */
    bool excluded;           /* failed this request before */
    uint32_t numerics;       /* equal for equal numerics ids: workers are paired within one */
    uint32_t context_tokens; /* longest sequence it can hold */
    uint64_t queued_prefill_tokens; /* to be computed before a newcomer's first token */
    uint64_t live_tokens;           /* context of the sequences that decode here */
    uint32_t n_requests;            /* bound to it, as the router counts them */
    uint32_t n_blocks;              /* of its pool; 0: unknown */
    uint32_t n_free_blocks;         /* free or evictable */
    uint32_t matched_blocks;        /* leading blocks of this prompt that it holds */
    uint64_t prefill_token_ns;      /* measured; 0: unknown */
    uint64_t step_ns;               /* of a step with one sequence more; 0: unknown */
    uint32_t n_places;              /* sequences that may decode there at a time; 0: no bound */
    uint32_t n_taken;               /* of them */
} bt_router_worker_view;

typedef struct bt_router_policy_request {
    uint32_t prompt_tokens; /* all that is known already */
    uint32_t max_tokens;    /* that may come */
    uint32_t block_tokens;  /* 16 */
    bool prefill_only;      /* nothing is left to decode after the first token */
    bool bypass_cache;      /* cached prefixes don't help (echo with logprobs) */
    bool has_numerics;      /* a resumed request stays within the numerics that it began with */
    uint32_t numerics;
} bt_router_policy_request;

typedef struct bt_router_policy_options {
    bool local_prefill;            /* D prefills when no P is ready */
    uint32_t local_prefill_tokens; /* shorter rests are prefilled on D; 0: never */
    bool allow_mixed_numerics;
} bt_router_policy_options;

typedef enum bt_router_placement_kind {
    BT_ROUTER_PLACEMENT_SPLIT,   /* P prefills, D decodes */
    BT_ROUTER_PLACEMENT_WHOLE,   /* D does both */
    BT_ROUTER_PLACEMENT_PREFILL, /* P alone; d_idx is p_idx */
} bt_router_placement_kind;

typedef struct bt_router_placement {
    bt_router_placement_kind kind;
    uint32_t d_idx;
    uint32_t p_idx;            /* SPLIT alone */
    uint32_t p_matched_blocks; /* cached where the prompt is prefilled */
    uint32_t d_matched_blocks; /* of them held by D already */
} bt_router_placement;

/* Places one request. BT_AGAIN: no fitting worker is ready, or all of them are full, now; it may
 * wait. A full prefill worker is waited for, never replaced by a decode worker. BT_EINVAL: no
 * worker of the view could ever hold it. O(n^2) over the workers. */
BT_MUST_CHECK bt_status bt_router_policy_place(const bt_router_worker_view *workers,
                                               size_t n_workers,
                                               const bt_router_policy_request *request,
                                               const bt_router_policy_options *options,
                                               bt_router_placement *out);

/* The decode worker that a running sequence moves to at the least cost, among those that are ready,
 * not excluded, and have room for its prompt_tokens (all that are known) now. BT_AGAIN: there is
 * none. O(n). */
BT_MUST_CHECK bt_status bt_router_policy_move(const bt_router_worker_view *workers,
                                              size_t n_workers,
                                              const bt_router_policy_request *request,
                                              const bt_router_policy_options *options,
                                              uint32_t *d_idx);

/* Whether some ready workers of the view could take a request of one token. */
bool bt_router_policy_can_serve(const bt_router_worker_view *workers, size_t n_workers,
                                const bt_router_policy_options *options);

/* The longest sequence, in tokens, that some placement in this view could hold, by context and by
 * pool (blocks of 16 tokens); 0: no workers are ready. */
uint32_t bt_router_policy_context_max(const bt_router_worker_view *workers, size_t n_workers,
                                      const bt_router_policy_options *options);

#endif /* BT_ROUTER_POLICY_H */
