/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.h - what a decode worker's engine runs next.
 *
 * Continuous batching (Yu et al., Orca, OSDI 2022, section 3.2): each step takes one row of
 * every running sequence, then chunks of sequences that are prefilled here, up to the token
 * budget. A request is admitted when the pool has blocks for its prompt and the first decode
 * block, all or none; a running sequence grows block by block, and when none is left the
 * newest running sequence loses its blocks and is recomputed later (preemption by recompute:
 * Kwon et al., SOSP 2023, section 4.5).
 *
 *   RUN(pull) --> waiting --PULL--> pulling --PULLED--> running --TOKEN...--> DONE
 *   RUN(whole) -> waiting --------> running (prefill, then decode) ---------> DONE
 *                    ^------------preempted----'
 *   running --PARK--> parked --RELEASE--> DONE, or --RESUME--> running
 *   CANCEL: at once, but for a pulling sequence after PULLED or PULL_DROPPED.
 *
 * A parked sequence keeps its blocks, which change no more, for another worker to pull: all its
 * tokens but the last one, which has no K and V yet, are in them.
 *
 * Threading: create, destroy: the thread that makes the engine; the rest: engine thread, through
 *            the table.
 * Memory:    create only.
 */
#ifndef BT_DECODE_SCHEDULER_H
#define BT_DECODE_SCHEDULER_H

#include "common/status.h"
#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "engine/kv_chain.h"
#include "engine/sequence.h"

typedef struct bt_decode_scheduler bt_decode_scheduler;

typedef enum bt_decode_command_kind {
    BT_DECODE_COMMAND_RUN_WHOLE,    /* prefill and decode here; seq is the engine's from here */
    BT_DECODE_COMMAND_RUN_PULL,     /* K and V of the prompt are pulled; likewise */
    BT_DECODE_COMMAND_PULLED,       /* every part is in its block; `token` is the first token */
    BT_DECODE_COMMAND_PULL_DROPPED, /* the pull failed or was cancelled; nothing writes the blocks
                                     * any more. DONE follows, with `status`. */
    BT_DECODE_COMMAND_CANCEL,       /* ignored for a sequence that is done */
    BT_DECODE_COMMAND_PARK,         /* answered by PARKED, unless the sequence is done */
    BT_DECODE_COMMAND_RESUME,       /* a parked sequence runs on */
    BT_DECODE_COMMAND_RELEASE,      /* a parked sequence is done: nobody reads its blocks any more;
                                     * BT_OK: another worker has them */
    BT_DECODE_COMMAND_AUDIT,        /* answered by an AUDIT event */
    BT_DECODE_COMMAND_CHAIN, /* a step of a chain of cached blocks; answered by a CHAIN event */
} bt_decode_command_kind;

typedef struct bt_decode_command {
    bt_decode_command_kind kind;
    bt_status status;
    bt_sequence *seq;
    int32_t token;       /* PULLED */
    bool mixed_numerics; /* PULLED: the blocks were computed by another numerics id */
    bt_kv_chain *chain;  /* CHAIN */
} bt_decode_command;

/* Running totals and levels. */
typedef struct bt_decode_stats {
    uint32_t n_waiting;
    uint32_t n_pulling;
    uint32_t n_running;
    uint32_t n_parked;
    uint32_t waiting_tokens; /* prompt tokens that wait to be computed here */
    uint32_t blocks_total;
    uint32_t blocks_free;
    uint32_t blocks_cached;
    uint64_t n_prefill_tokens;    /* prompt rows computed here, each once */
    uint64_t n_recomputed_tokens; /* rows computed again after preemption */
    uint64_t n_decode_tokens;     /* rows of generated tokens */
    uint64_t n_cached_tokens;     /* prompt tokens found in the prefix cache, at first admission */
    uint64_t n_missed_tokens;     /* looked for there and not found, at first admission */
    uint64_t n_prefix_queries;    /* sequences looked up in the prefix cache, at first admission */
    uint64_t n_prefix_hits;       /* of them, with a block at least */
    uint64_t n_blocks_stored;
    uint64_t n_blocks_evicted;
    uint64_t n_preemptions;
    uint64_t n_partial_pulls; /* pulls that skipped blocks held here already */
    uint64_t n_handed_over;   /* parked sequences that another worker pulled */
    uint64_t slots_written;   /* sums over steps of the running sequences: for slot use */
    uint64_t slots_allocated;
} bt_decode_stats;

typedef enum bt_decode_event_kind {
    BT_DECODE_EVENT_PULL,  /* fill seq->blocks[n_skip .. n_blocks of the prompt - 1]; the blocks are
                            * lent until PULLED or PULL_DROPPED is posted */
    BT_DECODE_EVENT_ECHO,  /* score of prompt token `index` (echo) */
    BT_DECODE_EVENT_TOKEN, /* token `index` of the output (from 0); finish: it's the last */
    BT_DECODE_EVENT_PARKED, /* BT_OK: seq->blocks are lent until RELEASE or RESUME is posted,
                             * `index` positions are in them. BT_AGAIN: it has nothing to hand over
                             * now (it waits, is pulled, or its prompt is computed), and goes on. */
    BT_DECODE_EVENT_DONE,   /* seq is the loop thread's again; status BT_OK, BT_ECANCELLED or why */
    BT_DECODE_EVENT_BLOCK,  /* an identity was stored or evicted */
    BT_DECODE_EVENT_STATS,  /* after a batch of commands and after each step, last */
    BT_DECODE_EVENT_AUDIT,
    BT_DECODE_EVENT_CHAIN, /* the step is done: the chain is the loop thread's again */
} bt_decode_event_kind;

typedef struct bt_decode_event {
    bt_decode_event_kind kind;
    bt_status status;
    bt_sequence *seq;
    bt_finish_reason finish;
    uint32_t index; /* TOKEN, ECHO; PULL: n_skip in blocks */
    union {
        bt_token_result token;
        bt_decode_stats stats;
        bt_kv_chain *chain;
        struct {
            bt_block_hash identity;
            bool stored;
        } block;
    } u;
} bt_decode_event;

typedef struct bt_decode_scheduler_options {
    bt_kv_cache *cache;            /* borrowed */
    bt_engine *engine;             /* borrowed: where events go */
    const bt_model_params *params; /* borrowed */
    uint32_t token_budget;         /* rows of a step */
    uint32_t chunk;                /* most prefill rows of one sequence in a step, multiple of 16 */
    uint32_t running_max;          /* most sequences that run at a time */
} bt_decode_scheduler_options;

BT_MUST_CHECK bt_status bt_decode_scheduler_create(const bt_decode_scheduler_options *options,
                                                   bt_decode_scheduler **out);
void bt_decode_scheduler_destroy(bt_decode_scheduler *scheduler);

/* The table for bt_engine_start. */
bt_engine_scheduler bt_decode_scheduler_table(bt_decode_scheduler *scheduler);

/* For bt_kv_cache_set_changed: turns changes of the cache into BLOCK events. */
void bt_decode_scheduler_block_changed(void *ctx, bool stored, const bt_block_hash *identity);

#endif /* BT_DECODE_SCHEDULER_H */
