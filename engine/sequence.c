/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/sequence.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"

enum { RESET_FROM = offsetof(bt_sequence, id) }; /* what lies before is the engine thread's */

_Static_assert((int)BT_BLOCK_HASH_TOKENS == (int)BT_KV_BLOCK_TOKENS, "an identity names one block");

bt_status bt_sequence_create(uint32_t context, bt_sequence **out)
{
    if (context == 0) {
        return BT_EINVAL;
    }
    bt_sequence *seq = calloc(1, sizeof *seq);
    if (!seq) {
        return BT_ENOMEM;
    }
    const size_t n_blocks = bt_div_ceil(context, BT_KV_BLOCK_TOKENS);
    seq->context = context;
    seq->tokens = calloc(context, sizeof *seq->tokens);
    seq->blocks = calloc(n_blocks, sizeof *seq->blocks);
    seq->identities = calloc(n_blocks, sizeof *seq->identities);
    if (!seq->tokens || !seq->blocks || !seq->identities) {
        bt_sequence_destroy(seq);
        return BT_ENOMEM;
    }
    *out = seq;
    return BT_OK;
}

void bt_sequence_destroy(bt_sequence *seq)
{
    if (!seq) {
        return;
    }
    free(seq->tokens);
    free(seq->blocks);
    free(seq->identities);
    free(seq);
}

void bt_sequence_reset(bt_sequence *seq)
{
    BT_ASSERT(seq->n_blocks == 0);
    const bt_sequence kept = {
        .tokens = seq->tokens,
        .blocks = seq->blocks,
        .identities = seq->identities,
        .context = seq->context,
    };
    memcpy((uint8_t *)seq + RESET_FROM, (const uint8_t *)&kept + RESET_FROM,
           sizeof *seq - RESET_FROM);
}

/* Extends identities[] to all blocks that the known tokens fill. */
static void identify(bt_sequence *seq)
{
    const uint32_t n_full = seq->n_tokens / BT_KV_BLOCK_TOKENS;
    while (seq->n_identities < n_full) {
        const uint32_t i = seq->n_identities;
        const bt_block_hash *parent = i > 0 ? &seq->identities[i - 1] : &seq->root;
        bt_block_id_next(parent, seq->tokens + (size_t)i * BT_KV_BLOCK_TOKENS, &seq->identities[i]);
        seq->n_identities++;
    }
}

bt_status bt_sequence_check(const bt_sequence *seq, uint32_t max_tokens, uint32_t n_blocks)
{
    if (seq->n_prompt == 0 || seq->n_prompt > seq->n_tokens || seq->n_tokens >= seq->context) {
        return BT_ERANGE;
    }
    const uint64_t n_asked = (uint64_t)seq->n_prompt + max_tokens;
    const uint64_t n_last = n_asked > seq->n_tokens ? n_asked : seq->n_tokens;
    const uint64_t n_most = n_last < seq->context ? n_last : seq->context;
    return bt_div_ceil(n_most, BT_KV_BLOCK_TOKENS) <= n_blocks ? BT_OK : BT_EEXHAUSTED;
}

uint32_t bt_sequence_match(bt_sequence *seq, bt_kv_cache *cache, bool whole)
{
    BT_ASSERT(seq->n_blocks == 0);
    BT_ASSERT(seq->n_computed == 0);
    if (!seq->use_cache) {
        return 0;
    }
    identify(seq);
    const uint32_t n_wanted = (whole ? seq->n_tokens : seq->n_tokens - 1) / BT_KV_BLOCK_TOKENS;
    const uint32_t found = bt_kv_cache_match(cache, seq->identities, n_wanted, seq->blocks);
    seq->n_blocks = found;
    seq->n_published = found;
    seq->n_computed = found * BT_KV_BLOCK_TOKENS;
    return found;
}

bt_status bt_sequence_reserve(bt_sequence *seq, bt_kv_cache *cache, uint32_t n_positions)
{
    BT_ASSERT(n_positions <= seq->context);
    const uint32_t n_wanted = (uint32_t)bt_div_ceil(n_positions, BT_KV_BLOCK_TOKENS);
    if (n_wanted <= seq->n_blocks) {
        return BT_OK;
    }
    const bt_status status =
        bt_kv_cache_acquire(cache, n_wanted - seq->n_blocks, seq->blocks + seq->n_blocks);
    if (status == BT_OK) {
        seq->n_blocks = n_wanted;
    }
    return status;
}

uint32_t bt_sequence_chunk(const bt_sequence *seq, uint32_t budget)
{
    BT_ASSERT(seq->n_computed < seq->n_tokens);
    const uint32_t n_missing = seq->n_tokens - seq->n_computed;
    if (n_missing <= budget) {
        return n_missing;
    }
    const uint32_t end = (seq->n_computed + budget) / BT_KV_BLOCK_TOKENS * BT_KV_BLOCK_TOKENS;
    return end > seq->n_computed ? end - seq->n_computed : 0;
}

/* Echo with logprobs: the rows of the prompt are scored, in a sequence that starts at 0. */
static bool scores_prompt(const bt_sequence *seq)
{
    return seq->sampling.echo && seq->sampling.logprobs && seq->n_scored < seq->n_prompt;
}

bool bt_sequence_plan(const bt_sequence *seq, uint32_t budget, bt_batch *batch)
{
    const uint32_t n_rows_left = batch->rows_max - batch->n_rows;
    const uint32_t n_logits_left = batch->logits_max - batch->n_logits;
    if (batch->n_spans == batch->spans_max || n_logits_left == 0) {
        return false;
    }
    budget = budget < n_rows_left ? budget : n_rows_left;
    if (scores_prompt(seq)) {
        budget = budget < n_logits_left ? budget : n_logits_left;
    }
    const uint32_t n_rows = bt_sequence_chunk(seq, budget);
    if (n_rows == 0) {
        return false;
    }
    bt_batch_add(batch, (void *)seq, seq->tokens + seq->n_computed, n_rows, seq->n_computed,
                 seq->blocks);
    if (scores_prompt(seq)) {
        for (uint32_t i = n_rows; i > 0; i--) {
            bt_batch_want_logits(batch, i - 1);
        }
    } else if (seq->n_computed + n_rows == seq->n_tokens) {
        bt_batch_want_logits(batch, 0);
    }
    return true;
}

void bt_sequence_computed(bt_sequence *seq, bt_kv_cache *cache, uint32_t n_computed)
{
    BT_ASSERT(n_computed >= seq->n_computed);
    BT_ASSERT(n_computed <= seq->n_tokens);
    seq->n_computed = n_computed;
    if (!seq->use_cache) {
        return;
    }
    identify(seq);
    const uint32_t n_full = n_computed / BT_KV_BLOCK_TOKENS;
    while (seq->n_published < n_full) {
        const uint32_t i = seq->n_published++;
        bt_kv_cache_publish(cache, seq->blocks[i], &seq->identities[i],
                            i > 0 ? &seq->identities[i - 1] : NULL);
    }
}

bt_finish_reason bt_sequence_append(bt_sequence *seq, int32_t token, const int32_t *eos,
                                    uint32_t n_eos)
{
    BT_ASSERT(seq->n_tokens < seq->context);
    seq->tokens[seq->n_tokens++] = token;
    const uint32_t n_generated = seq->n_tokens - seq->n_prompt;
    if (bt_sampler_is_stop(&seq->sampling, eos, n_eos, token)) {
        seq->finish = BT_FINISH_STOP;
    } else if (n_generated >= seq->sampling.max_tokens || seq->n_tokens == seq->context) {
        seq->finish = BT_FINISH_LENGTH;
    }
    return seq->finish;
}

static void score_prompt(bt_sequence *seq, const bt_kv_span *span, const float *logits,
                         uint32_t n_vocab, bt_sampler *sampler, bt_sequence_echo_fn echo, void *ctx)
{
    if (seq->n_scored == 0) {
        const bt_token_result first = {.token = seq->tokens[0]};
        echo(ctx, seq, seq->n_scored++, &first);
    }
    /* The row of position p scores the token at p + 1. */
    while (seq->n_scored < seq->n_prompt && seq->n_scored <= span->pos_first + span->n_rows) {
        const size_t row = seq->n_scored - 1 - span->pos_first;
        bt_token_result result;
        bt_sampler_score(sampler, logits + row * n_vocab, seq->tokens[seq->n_scored],
                         &seq->sampling, &result);
        echo(ctx, seq, seq->n_scored++, &result);
    }
}

bool bt_sequence_sample(bt_sequence *seq, const bt_kv_span *span, bt_logit_rows *rows,
                        bt_sampler *sampler, bt_sequence_echo_fn echo, void *ctx,
                        bt_token_result *out)
{
    const bt_batch *batch = rows->batch;
    const uint32_t row_end = span->row_first + span->n_rows;
    const size_t n_vocab = rows->params->n_vocab;
    const float *first = rows->logits + rows->next * n_vocab;
    const float *last = NULL;
    while (rows->next < batch->n_logits && batch->logit_rows[rows->next] < row_end) {
        last = rows->logits + rows->next * n_vocab;
        rows->next++;
    }
    if (!last) {
        return false;
    }
    if (scores_prompt(seq)) {
        score_prompt(seq, span, first, rows->params->n_vocab, sampler, echo, ctx);
    }
    if (seq->n_computed < seq->n_tokens) {
        return false;
    }
    const bt_sampler_input input = {
        .logits = last,
        .tokens = seq->tokens,
        .n_tokens = seq->n_tokens,
        .n_prompt = seq->n_prompt,
        .eos = rows->params->eos,
        .n_eos = rows->params->n_eos,
    };
    bt_sampler_sample(sampler, &input, &seq->sampling, out);
    if (seq->first_token_ns == 0) {
        seq->first_token_ns = bt_clock_now_ns();
    }
    (void)bt_sequence_append(seq, out->token, rows->params->eos, rows->params->n_eos);
    return true;
}

void bt_sequence_release(bt_sequence *seq, bt_kv_cache *cache)
{
    bt_kv_cache_release(cache, seq->blocks, seq->n_blocks);
    seq->n_blocks = 0;
    seq->n_published = 0;
    seq->n_computed = 0;
}

void bt_sequence_list_insert_after(bt_sequence_list *list, bt_sequence *after, bt_sequence *seq)
{
    bt_sequence *before = after ? after->next : list->first;
    seq->prev = after;
    seq->next = before;
    if (after) {
        after->next = seq;
    } else {
        list->first = seq;
    }
    if (before) {
        before->prev = seq;
    } else {
        list->last = seq;
    }
    list->n++;
}

void bt_sequence_list_append(bt_sequence_list *list, bt_sequence *seq)
{
    bt_sequence_list_insert_after(list, list->last, seq);
}

void bt_sequence_list_prepend(bt_sequence_list *list, bt_sequence *seq)
{
    bt_sequence_list_insert_after(list, NULL, seq);
}

void bt_sequence_list_remove(bt_sequence_list *list, bt_sequence *seq)
{
    BT_ASSERT(list->n > 0);
    if (seq->prev) {
        seq->prev->next = seq->next;
    } else {
        list->first = seq->next;
    }
    if (seq->next) {
        seq->next->prev = seq->prev;
    } else {
        list->last = seq->prev;
    }
    seq->prev = NULL;
    seq->next = NULL;
    list->n--;
}
