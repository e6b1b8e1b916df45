/* SPDX-License-Identifier: Apache-2.0 */
/* Lists: `waiting` in order of arrival, preempted sequences first; `pulling`; `running` in order
 * of arrival, so that its last one is the newest, which is preempted first.
 *
 *   WAITING --admit--> PULLING --PULLED--> RUNNING --last token--> done
 *      |  `--admit (whole, or resumed)------^ |
 *      `<-------------- preempt --------------'|  ^
 *                                        PARK |  | RESUME
 *                                             v  |
 *                                          PARKED --RELEASE--> done
 *
 * A parked sequence is in no list: it yields its blocks to nobody, and is not computed.
 * A cancelled pulling sequence stays in `pulling` until the loop thread says that nothing writes
 * its blocks any more.
 *
 * What must hold:
 *  1. A sequence in `pulling` or `running` has blocks for all positions of its next step's rows or
 *     waits for them; one in `waiting` has none.
 *  2. Only running sequences are preempted: they yield their blocks at once.
 *  3. No sequence is admitted that alone would not fit the pool, so the oldest one always gets on:
 *     every younger running one yields to it, and pulls end by their deadlines. */
#include "decode/scheduler.h"

#include <stdlib.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"

typedef enum state {
    STATE_IDLE, /* the loop thread's */
    STATE_WAITING_WHOLE,
    STATE_WAITING_PULL,
    STATE_PULLING,
    STATE_PULLING_CANCELLED,
    STATE_RUNNING,
    STATE_PARKED,
} state;

struct bt_decode_scheduler {
    bt_decode_scheduler_options options;
    bt_sampler *sampler;
    bt_sequence_list waiting;
    bt_sequence_list pulling;
    bt_sequence_list running;
    bt_decode_stats stats;
    bool is_told;               /* stats tell of all commands so far */
    const bt_sequence *blocked; /* the first waiting one, when it found no room */
    uint32_t blocked_available; /* with so many blocks to be had */
};

static void emit(bt_decode_scheduler *s, const bt_decode_event *event)
{
    bt_engine_emit(s->options.engine, event);
}

static void finish(bt_decode_scheduler *s, bt_sequence *seq, bt_status status)
{
    bt_sequence_release(seq, s->options.cache);
    if (s->blocked == seq) {
        s->blocked = NULL; /* another request may come in the same sequence */
    }
    seq->state = STATE_IDLE;
    const bt_decode_event event = {
        .kind = BT_DECODE_EVENT_DONE, .status = status, .seq = seq, .finish = seq->finish};
    emit(s, &event);
}

static void run(bt_decode_scheduler *s, bt_sequence *seq, state first)
{
    BT_ASSERT(seq->state == STATE_IDLE);
    /* Admission takes room for one token more than are known, whatever was asked for. */
    const uint32_t n_next = seq->n_tokens - seq->n_prompt + 1;
    const uint32_t n_asked = seq->sampling.max_tokens;
    const bt_status status =
        bt_sequence_check(seq, n_asked > n_next ? n_asked : n_next, s->stats.blocks_total);
    if (status != BT_OK) {
        finish(s, seq, status);
        return;
    }
    seq->state = first;
    bt_sequence_list_append(&s->waiting, seq);
}

/* Keeps `running` in order of arrival. */
static void insert_running(bt_decode_scheduler *s, bt_sequence *seq)
{
    seq->state = STATE_RUNNING;
    bt_sequence *after = s->running.last;
    while (after && after->arrived_ns > seq->arrived_ns) {
        after = after->prev;
    }
    bt_sequence_list_insert_after(&s->running, after, seq);
}

static void cancel(bt_decode_scheduler *s, bt_sequence *seq)
{
    switch ((state)seq->state) {
    case STATE_WAITING_WHOLE:
    case STATE_WAITING_PULL:
        bt_sequence_list_remove(&s->waiting, seq);
        finish(s, seq, BT_ECANCELLED);
        break;
    case STATE_PULLING:
        seq->state = STATE_PULLING_CANCELLED;
        break;
    case STATE_RUNNING:
        bt_sequence_list_remove(&s->running, seq);
        finish(s, seq, BT_ECANCELLED);
        break;
    case STATE_PARKED:
        s->stats.n_parked--;
        finish(s, seq, BT_ECANCELLED);
        break;
    case STATE_PULLING_CANCELLED:
    case STATE_IDLE:
        break;
    }
}

/* Between two steps a running sequence has K and V of all its tokens but the last one. A prompt
 * that is being computed here (or again) is not worth the move: it is computed elsewhere as fast.
 */
static void park(bt_decode_scheduler *s, bt_sequence *seq)
{
    if (seq->state == STATE_IDLE) {
        return; /* its DONE is on the way */
    }
    bt_decode_event event = {.kind = BT_DECODE_EVENT_PARKED, .status = BT_AGAIN, .seq = seq};
    if (seq->state == STATE_RUNNING && seq->n_tokens > seq->n_prompt &&
        seq->n_tokens - seq->n_computed == 1) {
        bt_sequence_list_remove(&s->running, seq);
        seq->state = STATE_PARKED;
        s->stats.n_parked++;
        event.status = BT_OK;
        event.index = seq->n_computed;
    }
    emit(s, &event);
}

static void resume(bt_decode_scheduler *s, bt_sequence *seq)
{
    BT_ASSERT(seq->state == STATE_PARKED);
    s->stats.n_parked--;
    insert_running(s, seq);
}

static void release(bt_decode_scheduler *s, bt_sequence *seq, bt_status status)
{
    BT_ASSERT(seq->state == STATE_PARKED);
    s->stats.n_parked--;
    s->stats.n_handed_over += status == BT_OK;
    finish(s, seq, BT_OK);
}

static bool is_pulling(const bt_sequence *seq)
{
    return seq->state == STATE_PULLING || seq->state == STATE_PULLING_CANCELLED;
}

static void take_pulled(bt_decode_scheduler *s, const bt_decode_command *command)
{
    bt_sequence *seq = command->seq;
    BT_ASSERT(is_pulling(seq));
    bt_sequence_list_remove(&s->pulling, seq);
    /* An identity names the numerics of its block: these stay without one, and so does all that is
     * computed from them. */
    seq->use_cache = seq->use_cache && !command->mixed_numerics;
    bt_sequence_computed(seq, s->options.cache, seq->n_tokens);
    const bt_model_params *p = s->options.params;
    if (seq->state == STATE_PULLING_CANCELLED) {
        finish(s, seq, BT_ECANCELLED);
    } else if (bt_sequence_append(seq, command->token, p->eos, p->n_eos) != BT_FINISH_NONE) {
        finish(s, seq, BT_OK);
    } else {
        insert_running(s, seq);
    }
}

/* The first token may be known, and the pull dropped, while the sequence still waits for blocks. */
static void drop_pull(bt_decode_scheduler *s, bt_sequence *seq, bt_status status)
{
    if (is_pulling(seq)) {
        bt_sequence_list_remove(&s->pulling, seq);
        finish(s, seq, seq->state == STATE_PULLING_CANCELLED ? BT_ECANCELLED : status);
    } else if (seq->state == STATE_WAITING_PULL) {
        bt_sequence_list_remove(&s->waiting, seq);
        finish(s, seq, status);
    }
}

static void audit(bt_decode_scheduler *s)
{
    bt_error err;
    const bt_status status = bt_kv_cache_audit(s->options.cache, &err);
    if (status != BT_OK) {
        bt_log(BT_ERROR, "KV pool audit failed: reason=\"%s\"", err.text);
    }
    const bt_decode_event event = {.kind = BT_DECODE_EVENT_AUDIT, .status = status};
    emit(s, &event);
}

static void step_chain(bt_decode_scheduler *s, bt_kv_chain *chain)
{
    bt_kv_chain_step(chain, s->options.cache);
    const bt_decode_event event = {.kind = BT_DECODE_EVENT_CHAIN, .u = {.chain = chain}};
    emit(s, &event);
}

static void emit_stats(bt_decode_scheduler *s)
{
    bt_kv_cache *cache = s->options.cache;
    bt_decode_stats *stats = &s->stats;
    stats->n_waiting = s->waiting.n;
    stats->n_pulling = s->pulling.n;
    stats->n_running = s->running.n;
    stats->waiting_tokens = 0;
    for (const bt_sequence *seq = s->waiting.first; seq; seq = seq->next) {
        stats->waiting_tokens += seq->state == STATE_WAITING_WHOLE ? seq->n_tokens : 0;
    }
    for (const bt_sequence *seq = s->running.first; seq; seq = seq->next) {
        stats->waiting_tokens += seq->n_tokens - seq->n_computed - 1;
    }
    stats->blocks_cached = bt_kv_cache_n_cached(cache);
    stats->blocks_free = bt_kv_cache_n_available(cache) - stats->blocks_cached;
    stats->n_blocks_stored = bt_kv_cache_get_stats(cache)->n_published;
    stats->n_blocks_evicted = bt_kv_cache_get_stats(cache)->n_evicted;
    const bt_decode_event event = {.kind = BT_DECODE_EVENT_STATS, .u = {.stats = *stats}};
    emit(s, &event);
    s->is_told = true;
}

static void take_command(void *ctx, const void *command)
{
    bt_decode_scheduler *s = ctx;
    const bt_decode_command *c = command;
    switch (c->kind) {
    case BT_DECODE_COMMAND_RUN_WHOLE:
        run(s, c->seq, STATE_WAITING_WHOLE);
        break;
    case BT_DECODE_COMMAND_RUN_PULL:
        run(s, c->seq, STATE_WAITING_PULL);
        break;
    case BT_DECODE_COMMAND_PULLED:
        take_pulled(s, c);
        break;
    case BT_DECODE_COMMAND_PULL_DROPPED:
        drop_pull(s, c->seq, c->status);
        break;
    case BT_DECODE_COMMAND_CANCEL:
        cancel(s, c->seq);
        break;
    case BT_DECODE_COMMAND_PARK:
        park(s, c->seq);
        break;
    case BT_DECODE_COMMAND_RESUME:
        resume(s, c->seq);
        break;
    case BT_DECODE_COMMAND_RELEASE:
        release(s, c->seq, c->status);
        break;
    case BT_DECODE_COMMAND_AUDIT:
        audit(s);
        break;
    case BT_DECODE_COMMAND_CHAIN:
        step_chain(s, c->chain);
        break;
    }
    s->is_told = false;
}

static uint32_t positions_to_reserve(const bt_sequence *seq)
{
    return seq->n_tokens < seq->context ? seq->n_tokens + 1 : seq->n_tokens;
}

/* Takes the first waiting sequence in, if the pool has room for its tokens and one more. */
static bool admit_first(bt_decode_scheduler *s)
{
    bt_sequence *seq = s->waiting.first;
    bt_kv_cache *cache = s->options.cache;
    if (seq == s->blocked && bt_kv_cache_n_available(cache) <= s->blocked_available) {
        return false; /* nothing came back since it was tried */
    }
    const bool pulls = seq->state == STATE_WAITING_PULL;
    const uint32_t n_found = bt_sequence_match(seq, cache, pulls);
    if (bt_sequence_reserve(seq, cache, positions_to_reserve(seq)) != BT_OK) {
        bt_sequence_release(seq, cache);
        s->blocked = seq;
        s->blocked_available = bt_kv_cache_n_available(cache);
        return false;
    }
    s->blocked = NULL;
    bt_sequence_list_remove(&s->waiting, seq);
    if (seq->n_preempted == 0) {
        seq->n_cached = n_found * BT_KV_BLOCK_TOKENS;
        s->stats.n_cached_tokens += seq->n_cached;
        s->stats.n_missed_tokens += seq->use_cache ? seq->n_tokens - seq->n_cached : 0;
        s->stats.n_prefix_queries += seq->use_cache;
        s->stats.n_prefix_hits += n_found > 0;
        seq->started_ns = bt_clock_now_ns();
    }
    if (!pulls) {
        insert_running(s, seq);
        return true;
    }
    s->stats.n_partial_pulls += n_found > 0;
    seq->state = STATE_PULLING;
    bt_sequence_list_append(&s->pulling, seq);
    const bt_decode_event event = {.kind = BT_DECODE_EVENT_PULL, .seq = seq, .index = n_found};
    emit(s, &event);
    return true;
}

static void preempt(bt_decode_scheduler *s, bt_sequence *seq)
{
    bt_sequence_list_remove(&s->running, seq);
    seq->n_preempted++;
    seq->n_done = seq->n_computed > seq->n_done ? seq->n_computed : seq->n_done;
    bt_sequence_release(seq, s->options.cache);
    seq->state = STATE_WAITING_WHOLE;
    bt_sequence_list_prepend(&s->waiting, seq);
    s->stats.n_preemptions++;
}

/* Makes room for the sequence's next token; younger sequences yield, the newest first. false: it
 * was preempted itself. */
static bool grow(bt_decode_scheduler *s, bt_sequence *seq)
{
    while (bt_sequence_reserve(seq, s->options.cache, seq->n_tokens) != BT_OK) {
        bt_sequence *victim = s->running.last;
        preempt(s, victim);
        if (victim == seq) {
            return false;
        }
    }
    return true;
}

/* Preempted sequences go back to `waiting` in front; while one waits there, nobody new is
 * admitted past it. */
static void plan(void *ctx, bt_batch *batch)
{
    bt_decode_scheduler *s = ctx;
    bt_sequence *next;
    for (bt_sequence *seq = s->running.first; seq; seq = next) {
        if (!grow(s, seq)) {
            break; /* it was the newest: none is left after it */
        }
        next = seq->next;
    }
    while (s->waiting.first &&
           s->running.n + s->pulling.n + s->stats.n_parked < s->options.running_max &&
           admit_first(s)) {
    }
    /* Decode rows first: one row each. Then chunks of prefill with what is left. */
    for (bt_sequence *seq = s->running.first; seq; seq = seq->next) {
        if (seq->n_tokens - seq->n_computed == 1) {
            (void)bt_sequence_plan(seq, 1, batch);
        }
    }
    for (bt_sequence *seq = s->running.first; seq; seq = seq->next) {
        const uint32_t left =
            s->options.token_budget > batch->n_rows ? s->options.token_budget - batch->n_rows : 0;
        if (seq->n_tokens - seq->n_computed > 1) {
            const uint32_t budget = left < s->options.chunk ? left : s->options.chunk;
            (void)bt_sequence_plan(seq, budget, batch);
        }
    }
    if (!s->is_told) {
        emit_stats(s);
    }
}

/* Each computed row is counted once as what it first was, and as recomputed after preemption. */
static void count_rows(bt_decode_scheduler *s, const bt_sequence *seq, const bt_kv_span *span)
{
    const uint32_t begin = span->pos_first;
    const uint32_t end = begin + span->n_rows;
    for (uint32_t p = begin; p < end; p++) {
        if (p < seq->n_done) {
            s->stats.n_recomputed_tokens++;
        } else if (p < seq->n_prompt) {
            s->stats.n_prefill_tokens++;
        } else {
            s->stats.n_decode_tokens++;
        }
    }
    s->stats.slots_written += end;
    s->stats.slots_allocated += (uint64_t)seq->n_blocks * BT_KV_BLOCK_TOKENS;
}

static void emit_echo(void *ctx, bt_sequence *seq, uint32_t index, const bt_token_result *result)
{
    const bt_decode_event event = {
        .kind = BT_DECODE_EVENT_ECHO, .seq = seq, .index = index, .u = {.token = *result}};
    emit(ctx, &event);
}

static void take_results(void *ctx, const bt_batch *batch, const float *logits)
{
    bt_decode_scheduler *s = ctx;
    bt_logit_rows rows = {.batch = batch, .logits = logits, .params = s->options.params};
    for (uint32_t i = 0; i < batch->n_spans; i++) {
        bt_sequence *seq = batch->owners[i];
        const bt_kv_span *span = &batch->spans[i];
        count_rows(s, seq, span);
        bt_sequence_computed(seq, s->options.cache, span->pos_first + span->n_rows);
        bt_decode_event event = {.kind = BT_DECODE_EVENT_TOKEN, .seq = seq};
        if (!bt_sequence_sample(seq, span, &rows, s->sampler, emit_echo, s, &event.u.token)) {
            continue;
        }
        event.index = seq->n_tokens - seq->n_prompt - 1;
        event.finish = seq->finish;
        emit(s, &event);
        if (seq->finish != BT_FINISH_NONE) {
            bt_sequence_list_remove(&s->running, seq);
            finish(s, seq, BT_OK);
        }
    }
    emit_stats(s);
}

bt_status bt_decode_scheduler_create(const bt_decode_scheduler_options *options,
                                     bt_decode_scheduler **out)
{
    if (options->chunk == 0 || options->chunk % BT_KV_BLOCK_TOKENS != 0 ||
        options->running_max == 0 ||
        options->token_budget < options->running_max + BT_KV_BLOCK_TOKENS) {
        return BT_EINVAL;
    }
    bt_decode_scheduler *s = calloc(1, sizeof *s);
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

void bt_decode_scheduler_destroy(bt_decode_scheduler *scheduler)
{
    if (!scheduler) {
        return;
    }
    bt_sampler_destroy(scheduler->sampler);
    free(scheduler);
}

bt_engine_scheduler bt_decode_scheduler_table(bt_decode_scheduler *scheduler)
{
    return (bt_engine_scheduler){
        .ctx = scheduler,
        .command = take_command,
        .plan = plan,
        .results = take_results,
    };
}

void bt_decode_scheduler_block_changed(void *ctx, bool stored, const bt_block_hash *identity)
{
    const bt_decode_event event = {
        .kind = BT_DECODE_EVENT_BLOCK,
        .u = {.block = {.identity = *identity, .stored = stored}},
    };
    emit(ctx, &event);
}
