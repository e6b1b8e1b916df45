/* SPDX-License-Identifier: Apache-2.0 */
/* sequence.h - tokens, block table, position and sampling of one request on one worker.
 *
 * The loop thread fills a sequence (from a fixed set) and hands it to the scheduler with a
 * command; from then on it is the engine thread's until the scheduler's last event gives it
 * back. Prefill and decode are the same to it: `n_tokens` are known, `n_computed` have K and V
 * in blocks; a step computes some of the difference, and a row that computes the last known
 * token yields the next one.
 *
 *   tokens   [prompt ......................][generated .....]
 *            0          n_computed          n_prompt         n_tokens
 *   blocks   [16][16][16][16][16]...   the first n_published have identities
 *
 * Threading: one owner at a time, as above.
 * Memory:    bt_sequence_create; no other call allocates.
 */
#ifndef BT_ENGINE_SEQUENCE_H
#define BT_ENGINE_SEQUENCE_H

#include "common/status.h"
#include "engine/batch.h"
#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "proto/block_id.h"
#include "proto/sampling.h"

typedef struct bt_sequence {
    /* The scheduler's own states, 0 before and after. Engine thread only, also while the sequence
     * is the owner's: a command that comes too late looks at it. bt_sequence_reset leaves it alone.
     */
    uint32_t state;

    /* Filled by the owner before it is handed over. */
    bt_request_id id;
    uint32_t attempt;
    bt_sampling sampling;
    int32_t *tokens; /* [context] prompt first */
    uint32_t n_prompt;
    uint32_t n_tokens;  /* n_prompt at first; more when the sequence resumes */
    bt_block_hash root; /* root of its chain of identities */
    bool use_cache;     /* may reuse and publish prefixes */
    int64_t arrived_ns; /* monotonic */
    void *user;         /* the owner's */

    /* The scheduler's. */
    struct bt_sequence *next; /* its own queues */
    struct bt_sequence *prev;

    /* The sequence's. */
    uint32_t context; /* capacity in tokens, fixed at create */
    uint32_t n_computed;
    uint32_t n_cached;    /* prompt tokens found in the prefix cache at first admission */
    uint32_t n_scored;    /* echo with logprobs: prompt tokens reported */
    uint32_t n_preempted; /* times it lost its blocks */
    uint32_t n_done;      /* computed rows at its last preemption: recomputing is counted apart */
    bt_block_id *blocks;  /* [ceil(context / 16)] */
    uint32_t n_blocks;
    bt_block_hash *identities; /* [context / 16] of its full blocks */
    uint32_t n_identities;
    uint32_t n_published;
    bt_finish_reason finish;
    int64_t started_ns; /* first row computed; 0: not yet */
    int64_t first_token_ns;
} bt_sequence;

BT_MUST_CHECK bt_status bt_sequence_create(uint32_t context, bt_sequence **out);
void bt_sequence_destroy(bt_sequence *seq);

/* Makes a used sequence new: no tokens, no blocks. Its blocks must have been released. */
void bt_sequence_reset(bt_sequence *seq);

/* Whether it could ever run to its end alone in a pool of n_blocks. BT_ERANGE: the prompt is empty
 * or fills the context. BT_EEXHAUSTED: its known tokens, or the prompt and max_tokens more, need
 * more blocks than that. */
BT_MUST_CHECK bt_status bt_sequence_check(const bt_sequence *seq, uint32_t max_tokens,
                                          uint32_t n_blocks);

/* Engine thread. Takes what the prefix cache holds of its known tokens, all but the last one at
 * most (it has to be computed to yield a token) unless `whole`; sets n_computed. Only when it
 * has no blocks. Returns the number of blocks found. */
uint32_t bt_sequence_match(bt_sequence *seq, bt_kv_cache *cache, bool whole);

/* Makes room for positions 0 .. n_positions - 1. BT_AGAIN: no blocks to be had; nothing is
 * taken. */
BT_MUST_CHECK bt_status bt_sequence_reserve(bt_sequence *seq, bt_kv_cache *cache,
                                            uint32_t n_positions);

/* Rows that its next step may compute, at most `budget`: all that are missing, or a part that
 * ends on a multiple of 16 positions. 0: the budget is too small for that. */
uint32_t bt_sequence_chunk(const bt_sequence *seq, uint32_t budget);

/* Adds its next chunk of at most `budget` rows to the batch, with the logit rows that it wants: the
 * last one when the chunk reaches the last known token, all of them while a prompt is scored
 * (echo with logprobs). false: nothing was added, since budget or batch have no room. */
bool bt_sequence_plan(const bt_sequence *seq, uint32_t budget, bt_batch *batch);

/* A step's logits, handed out to its sequences in the order of their spans. */
typedef struct bt_logit_rows {
    const bt_batch *batch;
    const float *logits; /* [batch->n_logits, n_vocab] */
    const bt_model_params *params;
    uint32_t next; /* the first row not handed out yet; 0 at first */
} bt_logit_rows;

/* The score of prompt token `index`. */
typedef void (*bt_sequence_echo_fn)(void *ctx, struct bt_sequence *seq, uint32_t index,
                                    const bt_token_result *result);

/* After bt_sequence_computed for this span: reports scored prompt tokens through echo, and, when
 * the last known token was computed, samples the next one, appends it and says so with true. */
bool bt_sequence_sample(bt_sequence *seq, const bt_kv_span *span, bt_logit_rows *rows,
                        bt_sampler *sampler, bt_sequence_echo_fn echo, void *ctx,
                        bt_token_result *out);

/* Marks positions below n_computed as computed and publishes the blocks that became full. */
void bt_sequence_computed(bt_sequence *seq, bt_kv_cache *cache, uint32_t n_computed);

/* Appends a sampled token; returns why the sequence ends with it, or BT_FINISH_NONE. */
bt_finish_reason bt_sequence_append(bt_sequence *seq, int32_t token, const int32_t *eos,
                                    uint32_t n_eos);

/* Gives all its blocks back; n_computed falls to 0. */
void bt_sequence_release(bt_sequence *seq, bt_kv_cache *cache);

/* ---- a list of sequences ---- */
typedef struct bt_sequence_list {
    bt_sequence *first;
    bt_sequence *last;
    uint32_t n;
} bt_sequence_list;

void bt_sequence_list_append(bt_sequence_list *list, bt_sequence *seq);
void bt_sequence_list_prepend(bt_sequence_list *list, bt_sequence *seq);
/* After NULL is at the front. */
void bt_sequence_list_insert_after(bt_sequence_list *list, bt_sequence *after, bt_sequence *seq);
void bt_sequence_list_remove(bt_sequence_list *list, bt_sequence *seq);

#endif /* BT_ENGINE_SEQUENCE_H */
