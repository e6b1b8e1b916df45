/* SPDX-License-Identifier: Apache-2.0 */
/* batch.h - flat arrays that one step of the model reads.
 *
 * A batch is a list of (sequence, n new tokens): rows are the new tokens, span by span in
 * order. Prefill chunks and decode steps differ in n alone.
 *
 * Threading: engine thread only. Memory: all in create; capacity fixed.
 */
#ifndef BT_ENGINE_BATCH_H
#define BT_ENGINE_BATCH_H

#include "common/status.h"
#include "engine/backend.h"

typedef struct bt_batch {
    uint32_t rows_max;
    uint32_t spans_max;
    uint32_t logits_max;
    uint32_t n_rows;
    uint32_t n_spans;
    uint32_t n_logits;
    int32_t *tokens;      /* [rows_max] */
    bt_kv_span *spans;    /* [spans_max] */
    void **owners;        /* [spans_max] whose span it is (a sequence) */
    uint32_t *logit_rows; /* [logits_max] rows whose logits are wanted, ascending */
} bt_batch;

BT_MUST_CHECK bt_status bt_batch_create(uint32_t rows_max, uint32_t spans_max, uint32_t logits_max,
                                        bt_batch **out);
void bt_batch_destroy(bt_batch *batch);

void bt_batch_clear(bt_batch *batch);

/* Adds n_rows tokens of one sequence at positions from pos_first. The caller has made sure of
 * room. `tokens` is copied; `blocks` must stay valid until the step is over. */
void bt_batch_add(bt_batch *batch, void *owner, const int32_t *tokens, uint32_t n_rows,
                  uint32_t pos_first, const bt_block_id *blocks);

/* Wants the logits of the newest added row minus `back` (0: the last row). Ascending order. */
void bt_batch_want_logits(bt_batch *batch, uint32_t back);

#endif /* BT_ENGINE_BATCH_H */
