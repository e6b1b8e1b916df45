/* SPDX-License-Identifier: Apache-2.0 */
/* Lists: `waiting` in order of arrival, `computing` in order of admission. A held sequence (all
 * computed, or cancelled, its blocks still read by a peer) is in no list.
 *
 *   WAITING --admit--> COMPUTING --first token or cancel--> HELD --RELEASE--> done
 *
 * Admission stops at the first sequence that doesn't fit (no one passes it, so it can't starve),
 * and each step takes chunks in order of admission until the budget is used up. */
#include "prefill/scheduler.h"

#include <stdlib.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"

typedef enum state {
    STATE_IDLE, /* the loop thread's */
    STATE_WAITING,
    STATE_COMPUTING,
    STATE_HELD,
} state;

struct bt_prefill_scheduler {
    bt_prefill_scheduler_options options;
    bt_sampler *sampler;
    bt_sequence_list waiting;
    bt_sequence_list computing;
    uint32_t n_held;
    bt_prefill_stats stats;
    bool is_told;               /* stats tell of all commands so far */
    const bt_sequence *blocked; /* the first waiting one, when it found no room */
    uint32_t blocked_available; /* with so many blocks to be had */
};

static void emit(bt_prefill_scheduler *s, const bt_prefill_event *event)
{
    bt_engine_emit(s->options.engine, event);
}

static void emit_part(bt_prefill_scheduler *s, bt_sequence *seq, const bt_prefill_part *part)
{
    const bt_prefill_event event = {
        .kind = BT_PREFILL_EVENT_PART, .seq = seq, .u = {.part = *part}};
    emit(s, &event);
}

static void finish(bt_prefill_scheduler *s, bt_sequence *seq, bt_status status)
{
    bt_sequence_release(seq, s->options.cache);
    if (s->blocked == seq) {
        s->blocked = NULL; /* another request may come in the same sequence */
    }
    seq->state = STATE_IDLE;
    const bt_prefill_event event = {
        .kind = BT_PREFILL_EVENT_DONE, .status = status, .seq = seq, .finish = seq->finish};
    emit(s, &event);
}

static void cancel(bt_prefill_scheduler *s, bt_sequence *seq)
{
    switch ((state)seq->state) {
    case STATE_WAITING:
        bt_sequence_list_remove(&s->waiting, seq);
        finish(s, seq, BT_ECANCELLED);
        break;
    case STATE_COMPUTING:
        bt_sequence_list_remove(&s->computing, seq);
        seq->state = STATE_HELD;
        s->n_held++;
        break;
    case STATE_HELD:
    case STATE_IDLE:
        break;
    }
}

static void release(bt_prefill_scheduler *s, bt_sequence *seq)
{
    if (seq->state == STATE_COMPUTING) {
        cancel(s, seq); /* nobody reads it any more, so nobody wants the rest */
    }
    BT_ASSERT(seq->state == STATE_HELD);
    s->n_held--;
    finish(s, seq, BT_OK);
}

/* What the whole pool can't hold would wait for ever: it is refused. Only the prompt needs room
 * here. */
static void run(bt_prefill_scheduler *s, bt_sequence *seq)
{
    BT_ASSERT(seq->state == STATE_IDLE);
    const bt_status status = bt_sequence_check(seq, 0, s->stats.blocks_total);
    if (status != BT_OK) {
        finish(s, seq, status);
        return;
    }
    seq->state = STATE_WAITING;
    bt_sequence_list_append(&s->waiting, seq);
}

static void audit(bt_prefill_scheduler *s)
{
    bt_error err;
    const bt_status status = bt_kv_cache_audit(s->options.cache, &err);
    if (status != BT_OK) {
        bt_log(BT_ERROR, "KV pool audit failed: reason=\"%s\"", err.text);
    }
    const bt_prefill_event event = {.kind = BT_PREFILL_EVENT_AUDIT, .status = status};
    emit(s, &event);
}

static void step_chain(bt_prefill_scheduler *s, bt_kv_chain *chain)
{
    bt_kv_chain_step(chain, s->options.cache);
    const bt_prefill_event event = {.kind = BT_PREFILL_EVENT_CHAIN, .u = {.chain = chain}};
    emit(s, &event);
}

static void emit_stats(bt_prefill_scheduler *s)
{
    bt_kv_cache *cache = s->options.cache;
    bt_prefill_stats *stats = &s->stats;
    stats->n_waiting = s->waiting.n;
    stats->n_computing = s->computing.n;
    stats->n_held = s->n_held;
    stats->waiting_tokens = 0;
    for (const bt_sequence *seq = s->waiting.first; seq; seq = seq->next) {
        stats->waiting_tokens += seq->n_tokens;
    }
    for (const bt_sequence *seq = s->computing.first; seq; seq = seq->next) {
        stats->waiting_tokens += seq->n_tokens - seq->n_computed;
    }
    stats->blocks_cached = bt_kv_cache_n_cached(cache);
    stats->blocks_free = bt_kv_cache_n_available(cache) - stats->blocks_cached;
    stats->n_blocks_stored = bt_kv_cache_get_stats(cache)->n_published;
    stats->n_blocks_evicted = bt_kv_cache_get_stats(cache)->n_evicted;
    const bt_prefill_event event = {.kind = BT_PREFILL_EVENT_STATS, .u = {.stats = *stats}};
    emit(s, &event);
    s->is_told = true;
}

static void take_command(void *ctx, const void *command)
{
    bt_prefill_scheduler *s = ctx;
    const bt_prefill_command *c = command;
    switch (c->kind) {
    case BT_PREFILL_COMMAND_RUN:
        run(s, c->seq);
        break;
    case BT_PREFILL_COMMAND_CANCEL:
        cancel(s, c->seq);
        break;
    case BT_PREFILL_COMMAND_RELEASE:
        release(s, c->seq);
        break;
    case BT_PREFILL_COMMAND_AUDIT:
        audit(s);
        break;
    case BT_PREFILL_COMMAND_CHAIN:
        step_chain(s, c->chain);
        break;
    }
    s->is_told = false;
}

/* Takes the first waiting sequence in, if the pool has room for its whole prompt. */
static bool admit_first(bt_prefill_scheduler *s)
{
    bt_sequence *seq = s->waiting.first;
    bt_kv_cache *cache = s->options.cache;
    if (seq == s->blocked && bt_kv_cache_n_available(cache) <= s->blocked_available) {
        return false; /* nothing came back since it was tried */
    }
    const uint32_t n_found = bt_sequence_match(seq, cache, false);
    if (bt_sequence_reserve(seq, cache, seq->n_tokens) != BT_OK) {
        bt_sequence_release(seq, cache);
        s->blocked = seq;
        s->blocked_available = bt_kv_cache_n_available(cache);
        return false;
    }
    s->blocked = NULL;
    bt_sequence_list_remove(&s->waiting, seq);
    bt_sequence_list_append(&s->computing, seq);
    seq->state = STATE_COMPUTING;
    seq->n_cached = n_found * BT_KV_BLOCK_TOKENS;
    seq->started_ns = bt_clock_now_ns();
    s->stats.n_cached_tokens += seq->n_cached;
    s->stats.n_missed_tokens += seq->use_cache ? seq->n_tokens - seq->n_cached : 0;
    s->stats.n_prefix_queries += seq->use_cache;
    s->stats.n_prefix_hits += n_found > 0;
    const bt_prefill_event event = {.kind = BT_PREFILL_EVENT_STARTED, .seq = seq};
    emit(s, &event);
    if (n_found > 0) {
        const bt_prefill_part part = {.n_layers = bt_kv_cache_n_layers(cache), .n_blocks = n_found};
        emit_part(s, seq, &part);
    }
    return true;
}

static void plan(void *ctx, bt_batch *batch)
{
    bt_prefill_scheduler *s = ctx;
    while (s->waiting.first && s->computing.n < s->options.computing_max && admit_first(s)) {
    }
    for (bt_sequence *seq = s->computing.first; seq; seq = seq->next) {
        const uint32_t left = s->options.token_budget - batch->n_rows;
        const uint32_t budget = left < s->options.chunk ? left : s->options.chunk;
        if (!bt_sequence_plan(seq, budget, batch)) {
            break;
        }
    }
    if (!s->is_told) {
        emit_stats(s);
    }
}

static void layer_done(void *ctx, const bt_batch *batch, uint32_t layer)
{
    bt_prefill_scheduler *s = ctx;
    for (uint32_t i = 0; i < batch->n_spans; i++) {
        const bt_kv_span *span = &batch->spans[i];
        const uint32_t block_first = span->pos_first / BT_KV_BLOCK_TOKENS;
        const uint32_t block_end =
            (uint32_t)bt_div_ceil(span->pos_first + span->n_rows, BT_KV_BLOCK_TOKENS);
        const bt_prefill_part part = {
            .layer_first = layer,
            .n_layers = 1,
            .block_first = block_first,
            .n_blocks = block_end - block_first,
        };
        emit_part(s, batch->owners[i], &part);
    }
}

static void emit_echo(void *ctx, bt_sequence *seq, uint32_t index, const bt_token_result *result)
{
    bt_prefill_event event = {
        .kind = BT_PREFILL_EVENT_ECHO, .seq = seq, .index = index, .u = {.token = *result}};
    emit(ctx, &event);
}

static void emit_token(bt_prefill_scheduler *s, bt_sequence *seq, const bt_token_result *result)
{
    bt_sequence_list_remove(&s->computing, seq);
    seq->state = STATE_HELD;
    s->n_held++;
    const bt_prefill_event event = {
        .kind = BT_PREFILL_EVENT_TOKEN, .seq = seq, .finish = seq->finish, .u = {.token = *result}};
    emit(s, &event);
}

static void take_results(void *ctx, const bt_batch *batch, const float *logits)
{
    bt_prefill_scheduler *s = ctx;
    bt_logit_rows rows = {.batch = batch, .logits = logits, .params = s->options.params};
    for (uint32_t i = 0; i < batch->n_spans; i++) {
        bt_sequence *seq = batch->owners[i];
        const bt_kv_span *span = &batch->spans[i];
        s->stats.n_prefill_tokens += span->n_rows;
        bt_sequence_computed(seq, s->options.cache, span->pos_first + span->n_rows);
        bt_token_result result;
        if (bt_sequence_sample(seq, span, &rows, s->sampler, emit_echo, s, &result)) {
            emit_token(s, seq, &result);
        }
    }
    emit_stats(s);
}

bt_status bt_prefill_scheduler_create(const bt_prefill_scheduler_options *options,
                                      bt_prefill_scheduler **out)
{
    if (options->chunk == 0 || options->chunk % BT_KV_BLOCK_TOKENS != 0 ||
        options->token_budget < BT_KV_BLOCK_TOKENS || options->computing_max == 0) {
        return BT_EINVAL;
    }
    bt_prefill_scheduler *s = calloc(1, sizeof *s);
    if (!s) {
        return BT_ENOMEM;
    }
    s->options = *options;
    s->stats.blocks_total = bt_kv_cache_n_blocks(options->cache);
    const bt_status status = bt_sampler_create(options->params->n_vocab, &s->sampler);
    if (status != BT_OK) {
        free(s);
        return status;
    }
    *out = s;
    return BT_OK;
}

void bt_prefill_scheduler_destroy(bt_prefill_scheduler *scheduler)
{
    if (!scheduler) {
        return;
    }
    bt_sampler_destroy(scheduler->sampler);
    free(scheduler);
}

bt_engine_scheduler bt_prefill_scheduler_table(bt_prefill_scheduler *scheduler)
{
    return (bt_engine_scheduler){
        .ctx = scheduler,
        .command = take_command,
        .plan = plan,
        .layer_done = layer_done,
        .results = take_results,
    };
}

void bt_prefill_scheduler_block_changed(void *ctx, bool stored, const bt_block_hash *identity)
{
    const bt_prefill_event event = {
        .kind = BT_PREFILL_EVENT_BLOCK,
        .u = {.block = {.identity = *identity, .stored = stored}},
    };
    emit(ctx, &event);
}
