/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/batch.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

bt_status bt_batch_create(uint32_t rows_max, uint32_t spans_max, uint32_t logits_max,
                          bt_batch **out)
{
    if (rows_max == 0 || spans_max == 0 || logits_max == 0) {
        return BT_EINVAL;
    }
    bt_batch *batch = calloc(1, sizeof *batch);
    if (!batch) {
        return BT_ENOMEM;
    }
    batch->rows_max = rows_max;
    batch->spans_max = spans_max;
    batch->logits_max = logits_max;
    batch->tokens = calloc(rows_max, sizeof *batch->tokens);
    batch->spans = calloc(spans_max, sizeof *batch->spans);
    batch->owners = calloc(spans_max, sizeof *batch->owners);
    batch->logit_rows = calloc(logits_max, sizeof *batch->logit_rows);
    if (!batch->tokens || !batch->spans || !batch->owners || !batch->logit_rows) {
        bt_batch_destroy(batch);
        return BT_ENOMEM;
    }
    *out = batch;
    return BT_OK;
}

void bt_batch_destroy(bt_batch *batch)
{
    if (!batch) {
        return;
    }
    free(batch->tokens);
    free(batch->spans);
    free((void *)batch->owners);
    free(batch->logit_rows);
    free(batch);
}

void bt_batch_clear(bt_batch *batch)
{
    batch->n_rows = 0;
    batch->n_spans = 0;
    batch->n_logits = 0;
}

void bt_batch_add(bt_batch *batch, void *owner, const int32_t *tokens, uint32_t n_rows,
                  uint32_t pos_first, const bt_block_id *blocks)
{
    BT_ASSERT(n_rows > 0);
    BT_ASSERT(batch->n_rows + n_rows <= batch->rows_max);
    BT_ASSERT(batch->n_spans < batch->spans_max);
    memcpy(batch->tokens + batch->n_rows, tokens, n_rows * sizeof *tokens);
    batch->spans[batch->n_spans] = (bt_kv_span){
        .blocks = blocks,
        .row_first = batch->n_rows,
        .n_rows = n_rows,
        .pos_first = pos_first,
    };
    batch->owners[batch->n_spans] = owner;
    batch->n_spans++;
    batch->n_rows += n_rows;
}

void bt_batch_want_logits(bt_batch *batch, uint32_t back)
{
    BT_ASSERT(back < batch->n_rows);
    BT_ASSERT(batch->n_logits < batch->logits_max);
    const uint32_t row = batch->n_rows - 1 - back;
    BT_ASSERT(batch->n_logits == 0 || batch->logit_rows[batch->n_logits - 1] < row);
    batch->logit_rows[batch->n_logits++] = row;
}
