/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.h - what a prefill worker's engine runs next.
 *
 * Requests wait in order of arrival. The first that fits reserves the blocks of its whole
 * prompt, all or none, and is computed in chunks that share steps up to the token budget
 * (chunked prefill: Agrawal et al., Sarathi-Serve, OSDI 2024, section 4.1). Each (chunk, layer)
 * is announced as it becomes final, so that decode workers pull while prefill goes on. The last
 * chunk yields the first token. The blocks stay reserved until RELEASE says that nobody reads
 * them any more; full ones then stay as cached prefix.
 *
 *   RUN --> waiting --> STARTED --> computing --PART...--> TOKEN --> held --RELEASE--> DONE
 *              `--CANCEL--> DONE      `--CANCEL--> held (no TOKEN) --RELEASE--> DONE
 *
 * Threading: create, destroy: the thread that makes the engine; the rest: engine thread, through
 *            the table.
 * Memory:    create only.
 */
#ifndef BT_PREFILL_SCHEDULER_H
#define BT_PREFILL_SCHEDULER_H

#include "common/status.h"
#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "engine/kv_chain.h"
#include "engine/sequence.h"

typedef struct bt_prefill_scheduler bt_prefill_scheduler;

typedef enum bt_prefill_command_kind {
    BT_PREFILL_COMMAND_RUN,     /* seq is the engine's from here */
    BT_PREFILL_COMMAND_CANCEL,  /* compute no more for it; no TOKEN follows unless it is under way.
                                 * Ignored for a sequence that is done. */
    BT_PREFILL_COMMAND_RELEASE, /* after STARTED, once: no reader is left */
    BT_PREFILL_COMMAND_AUDIT,   /* answered by an AUDIT event */
    BT_PREFILL_COMMAND_CHAIN,   /* a step of a chain of cached blocks; answered by a CHAIN event */
} bt_prefill_command_kind;

typedef struct bt_prefill_command {
    bt_prefill_command_kind kind;
    bt_sequence *seq;
    bt_kv_chain *chain; /* CHAIN */
} bt_prefill_command;

/* Running totals and levels. */
typedef struct bt_prefill_stats {
    uint32_t n_waiting;
    uint32_t n_computing;
    uint32_t n_held;         /* computed, not yet released */
    uint32_t waiting_tokens; /* prompt tokens of waiting and computing sequences still to compute */
    uint32_t blocks_total;
    uint32_t blocks_free;
    uint32_t blocks_cached;
    uint64_t n_prefill_tokens; /* computed */
    uint64_t n_cached_tokens;  /* found in the prefix cache at admission */
    uint64_t n_missed_tokens;  /* looked for there and not found, at admission */
    uint64_t n_prefix_queries; /* sequences looked up in the prefix cache, at first admission */
    uint64_t n_prefix_hits;    /* of them, with a block at least */
    uint64_t n_blocks_stored;
    uint64_t n_blocks_evicted;
    uint64_t n_decode_tokens; /* rows computed for generated tokens: 0 on a prefill worker */
} bt_prefill_stats;

typedef enum bt_prefill_event_kind {
    BT_PREFILL_EVENT_STARTED, /* seq->blocks[0..n_blocks-1] are reserved, until DONE */
    BT_PREFILL_EVENT_PART,    /* K and V of the part are final */
    BT_PREFILL_EVENT_ECHO,    /* score of prompt token `index` (echo) */
    BT_PREFILL_EVENT_TOKEN,   /* the first token; finish says whether the request ends with it */
    BT_PREFILL_EVENT_DONE,    /* seq is the loop thread's again */
    BT_PREFILL_EVENT_BLOCK,   /* an identity was stored or evicted */
    BT_PREFILL_EVENT_STATS,   /* after a batch of commands and after each step, last */
    BT_PREFILL_EVENT_AUDIT,   /* status: BT_OK, or the audit's first difference in the log */
    BT_PREFILL_EVENT_CHAIN,   /* the step is done: the chain is the loop thread's again */
} bt_prefill_event_kind;

typedef struct bt_prefill_part {
    uint32_t layer_first;
    uint32_t n_layers;
    uint32_t block_first; /* index into seq->blocks */
    uint32_t n_blocks;
} bt_prefill_part;

typedef struct bt_prefill_event {
    bt_prefill_event_kind kind;
    bt_status status;
    bt_sequence *seq;
    bt_finish_reason finish;
    uint32_t index;
    union {
        bt_prefill_part part;
        bt_token_result token;
        bt_prefill_stats stats;
        bt_kv_chain *chain;
        struct {
            bt_block_hash identity;
            bool stored;
        } block;
    } u;
} bt_prefill_event;

typedef struct bt_prefill_scheduler_options {
    bt_kv_cache *cache;            /* borrowed */
    bt_engine *engine;             /* borrowed: where events go */
    const bt_model_params *params; /* borrowed */
    uint32_t token_budget;         /* rows of a step */
    uint32_t chunk;                /* most rows of one sequence in a step, a multiple of 16 */
    uint32_t computing_max;        /* most sequences being computed at a time */
} bt_prefill_scheduler_options;

BT_MUST_CHECK bt_status bt_prefill_scheduler_create(const bt_prefill_scheduler_options *options,
                                                    bt_prefill_scheduler **out);
void bt_prefill_scheduler_destroy(bt_prefill_scheduler *scheduler);

/* The table for bt_engine_start. */
bt_engine_scheduler bt_prefill_scheduler_table(bt_prefill_scheduler *scheduler);

/* For bt_kv_cache_set_changed: turns changes of the cache into BLOCK events. */
void bt_prefill_scheduler_block_changed(void *ctx, bool stored, const bt_block_hash *identity);

#endif /* BT_PREFILL_SCHEDULER_H */
