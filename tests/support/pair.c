/* SPDX-License-Identifier: Apache-2.0 */
/* The engines are made but never started: this file calls their schedulers' tables itself, and
 * takes the events out of their queues after each call. The hand-over copies a part when its PART
 * event came and D has its blocks; parts that come earlier are remembered by count, since P's
 * blocks stay until RELEASE and may be copied at the end as well as at once. */
#include "tests/support/pair.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

enum { EVENTS_MAX = 1 << 15, ROWS_KEPT_MAX = 1 << 16 };

/* One side: an engine without a thread, its pool, cache and a place for rows of logits. */
typedef struct side {
    bt_kv_pool *pool;
    bt_kv_cache *cache;
    bt_engine *engine;
    bt_batch *batch;
    bt_engine_scheduler table;
} side;

typedef struct job {
    const bt_pair_request *request;
    bt_pair_output *output;
    bt_sequence *at_prefill; /* NULL: not there (any more) */
    bt_sequence *at_decode;
    uint32_t n_skip;
    uint32_t n_rows; /* rows of logits seen */
    bool pulling;    /* D has lent its blocks */
    bool complete;   /* P has sampled the first token */
    bool ended;      /* with the first token */
} job;

typedef struct pair {
    const bt_pair_options *options;
    bt_pair_counters *counters;
    side prefill;
    side decode;
    bt_prefill_scheduler *prefill_scheduler;
    bt_decode_scheduler *decode_scheduler;
    uint32_t n_open; /* jobs that are not over */
} pair;

static void must(bt_status status)
{
    BT_ASSERT(status == BT_OK);
}

static void open_side(side *s, const bt_pair_options *options, uint32_t n_blocks,
                      size_t command_bytes, size_t event_bytes)
{
    must(bt_kv_pool_create(bt_model_kv_layout(options->model), n_blocks, false, &s->pool, NULL));
    const bt_kv_cache_options cache = {.pool = s->pool,
                                       .cached_blocks_max = options->cache ? UINT32_MAX : 0};
    must(bt_kv_cache_create(&cache, &s->cache));
    const bt_engine_options engine = {
        .model = options->model,
        .pool = bt_kv_pool_base(s->pool),
        .rows_max = options->token_budget,
        .spans_max = options->running_max,
        .logits_max = options->running_max,
        .command_bytes = command_bytes,
        .commands_max = 16,
        .event_bytes = event_bytes,
        .events_max = EVENTS_MAX,
    };
    must(bt_engine_create(&engine, &s->engine));
    must(bt_batch_create(options->token_budget, options->running_max, options->running_max,
                         &s->batch));
}

static void close_side(side *s)
{
    must(bt_kv_cache_audit(s->cache, NULL));
    BT_ASSERT(bt_kv_cache_n_available(s->cache) == bt_kv_pool_n_blocks(s->pool));
    bt_batch_destroy(s->batch);
    bt_engine_destroy(s->engine);
    bt_kv_cache_destroy(s->cache);
    bt_kv_pool_destroy(s->pool);
}

static bt_sequence *make_sequence(const bt_model *model, job *j, uint32_t order)
{
    bt_sequence *seq;
    must(bt_sequence_create(bt_model_get_params(model)->context, &seq));
    memcpy(seq->tokens, j->request->prompt, j->request->n_prompt * sizeof(int32_t));
    seq->n_prompt = j->request->n_prompt;
    seq->n_tokens = j->request->n_prompt;
    seq->sampling = j->request->sampling;
    seq->use_cache = !seq->sampling.echo;
    seq->arrived_ns = order + 1;
    seq->id = (bt_request_id){.hi = 1, .lo = order};
    seq->user = j;
    return seq;
}

static void keep_token(job *j, int32_t token, bt_finish_reason finish)
{
    bt_pair_output *out = j->output;
    out->tokens[out->n++] = token;
    out->finish = finish;
}

static void tell_prefill(pair *p, bt_prefill_command_kind kind, bt_sequence *seq)
{
    const bt_prefill_command command = {.kind = kind, .seq = seq};
    p->prefill.table.command(p->prefill.table.ctx, &command);
}

static void tell_decode(pair *p, bt_decode_command_kind kind, bt_sequence *seq, int32_t token)
{
    const bt_decode_command command = {.kind = kind, .seq = seq, .token = token};
    p->decode.table.command(p->decode.table.ctx, &command);
}

/* Copies what D lacks once P is through and D has blocks. */
static void hand_over(pair *p, job *j)
{
    if (!j->pulling || !j->complete) {
        return;
    }
    const bt_kv_layout *layout = bt_kv_pool_layout(p->decode.pool);
    const bt_sequence *from = j->at_prefill;
    const bt_sequence *to = j->at_decode;
    for (uint32_t i = j->n_skip; i < from->n_blocks; i++) {
        memcpy(bt_kv_pool_base(p->decode.pool) + bt_kv_part_offset(layout, to->blocks[i], 0),
               bt_kv_pool_base(p->prefill.pool) + bt_kv_part_offset(layout, from->blocks[i], 0),
               layout->block_bytes);
    }
    j->pulling = false;
    tell_decode(p, BT_DECODE_COMMAND_PULLED, j->at_decode, j->output->tokens[0]);
    tell_prefill(p, BT_PREFILL_COMMAND_RELEASE, j->at_prefill);
}

static void take_prefill_event(pair *p, const bt_prefill_event *event)
{
    job *j = event->seq ? event->seq->user : NULL;
    switch (event->kind) {
    case BT_PREFILL_EVENT_TOKEN:
        keep_token(j, event->u.token.token, event->finish);
        j->complete = true;
        j->ended = event->finish != BT_FINISH_NONE;
        if (j->ended) {
            /* As a sink does: it drops its pull, and the source is done. */
            tell_decode(p, BT_DECODE_COMMAND_PULL_DROPPED, j->at_decode, 0);
            tell_prefill(p, BT_PREFILL_COMMAND_RELEASE, j->at_prefill);
        } else {
            hand_over(p, j);
        }
        break;
    case BT_PREFILL_EVENT_DONE:
        BT_ASSERT(event->status == BT_OK);
        bt_sequence_destroy(j->at_prefill);
        j->at_prefill = NULL;
        break;
    case BT_PREFILL_EVENT_STATS:
        p->counters->prefill = event->u.stats;
        break;
    default:
        break;
    }
}

static void take_decode_event(pair *p, const bt_decode_event *event)
{
    job *j = event->seq ? event->seq->user : NULL;
    switch (event->kind) {
    case BT_DECODE_EVENT_PULL:
        j->n_skip = event->index;
        j->pulling = true;
        hand_over(p, j);
        break;
    case BT_DECODE_EVENT_TOKEN:
        BT_ASSERT(event->index == j->output->n);
        keep_token(j, event->u.token.token, event->finish);
        break;
    case BT_DECODE_EVENT_DONE:
        j->output->status = j->ended ? BT_OK : event->status;
        bt_sequence_destroy(j->at_decode);
        j->at_decode = NULL;
        p->n_open--;
        break;
    case BT_DECODE_EVENT_STATS:
        p->counters->decode = event->u.stats;
        break;
    default:
        break;
    }
}

static void drain(pair *p)
{
    bt_prefill_event from_prefill;
    bt_decode_event from_decode;
    bool any = true;
    while (any) {
        any = false;
        while (bt_engine_next_event(p->prefill.engine, &from_prefill)) {
            take_prefill_event(p, &from_prefill);
            any = true;
        }
        while (bt_engine_next_event(p->decode.engine, &from_decode)) {
            take_decode_event(p, &from_decode);
            any = true;
        }
    }
}

static void keep_row(bt_pair_output *out, uint32_t index, const float *row, uint32_t n_vocab)
{
    out->rows[index] = bt_hash128_of(NULL, row, n_vocab * sizeof *row);
}

/* Runs one step of a side; false: it has nothing to run. */
static bool step(side *s, bt_model *model)
{
    bt_batch_clear(s->batch);
    s->table.plan(s->table.ctx, s->batch);
    if (s->batch->n_rows == 0) {
        return false;
    }
    const float *logits = bt_model_forward(model, s->batch, bt_kv_pool_base(s->pool),
                                           s->table.layer_done, s->table.ctx);
    const uint32_t n_vocab = bt_model_get_params(model)->n_vocab;
    uint32_t next = 0;
    for (uint32_t i = 0; i < s->batch->n_spans; i++) {
        const bt_kv_span *span = &s->batch->spans[i];
        if (next < s->batch->n_logits &&
            s->batch->logit_rows[next] < span->row_first + span->n_rows) {
            job *j = ((bt_sequence *)s->batch->owners[i])->user;
            keep_row(j->output, j->n_rows++, logits + (size_t)next * n_vocab, n_vocab);
            next++;
        }
    }
    s->table.results(s->table.ctx, s->batch, logits);
    return true;
}

static void submit(pair *p, job *j, const bt_pair_request *request, bt_pair_output *output,
                   uint32_t order)
{
    bt_model *model = p->options->model;
    const uint32_t n_most = request->sampling.max_tokens;
    *j = (job){.request = request, .output = output};
    *output = (bt_pair_output){
        .tokens = calloc(n_most, sizeof *output->tokens),
        .rows = calloc(n_most, sizeof *output->rows),
    };
    BT_ASSERT(output->tokens && output->rows);
    p->n_open++;
    j->at_decode = make_sequence(model, j, order);
    if (request->whole) {
        tell_decode(p, BT_DECODE_COMMAND_RUN_WHOLE, j->at_decode, 0);
        return;
    }
    j->at_prefill = make_sequence(model, j, order);
    tell_prefill(p, BT_PREFILL_COMMAND_RUN, j->at_prefill);
    tell_decode(p, BT_DECODE_COMMAND_RUN_PULL, j->at_decode, 0);
}

static void open_pair(pair *p, const bt_pair_options *options)
{
    open_side(&p->prefill, options, options->prefill_blocks, sizeof(bt_prefill_command),
              sizeof(bt_prefill_event));
    open_side(&p->decode, options, options->decode_blocks, sizeof(bt_decode_command),
              sizeof(bt_decode_event));
    const bt_prefill_scheduler_options prefill = {
        .cache = p->prefill.cache,
        .engine = p->prefill.engine,
        .params = bt_model_get_params(options->model),
        .token_budget = options->token_budget,
        .chunk = options->chunk,
        .computing_max = options->running_max,
    };
    must(bt_prefill_scheduler_create(&prefill, &p->prefill_scheduler));
    p->prefill.table = bt_prefill_scheduler_table(p->prefill_scheduler);
    const bt_decode_scheduler_options decode = {
        .cache = p->decode.cache,
        .engine = p->decode.engine,
        .params = bt_model_get_params(options->model),
        .token_budget = options->token_budget,
        .chunk = options->chunk,
        .running_max = options->running_max,
    };
    must(bt_decode_scheduler_create(&decode, &p->decode_scheduler));
    p->decode.table = bt_decode_scheduler_table(p->decode_scheduler);
}

void bt_pair_run(const bt_pair_options *options, const bt_pair_request *requests, uint32_t n,
                 uint32_t concurrency, bt_pair_output *outputs, bt_pair_counters *counters)
{
    pair p = {.options = options, .counters = counters};
    *counters = (bt_pair_counters){0};
    open_pair(&p, options);
    job *jobs = calloc(n, sizeof *jobs);
    BT_ASSERT(jobs);
    uint32_t n_submitted = 0;
    while (n_submitted < n || p.n_open > 0) {
        while (n_submitted < n && p.n_open < concurrency) {
            submit(&p, &jobs[n_submitted], &requests[n_submitted], &outputs[n_submitted],
                   n_submitted);
            n_submitted++;
            drain(&p);
        }
        const bool prefilled = step(&p.prefill, options->model);
        drain(&p);
        const bool decoded = step(&p.decode, options->model);
        drain(&p);
        BT_ASSERT(prefilled || decoded || p.n_open < concurrency); /* progress */
    }
    drain(&p);
    free(jobs);
    close_side(&p.prefill);
    close_side(&p.decode);
    bt_prefill_scheduler_destroy(p.prefill_scheduler);
    bt_decode_scheduler_destroy(p.decode_scheduler);
}

void bt_pair_run_alone(bt_model *model, const bt_pair_request *request, bt_pair_output *output)
{
    const bt_model_params *params = bt_model_get_params(model);
    const uint32_t n_most = request->sampling.max_tokens;
    *output = (bt_pair_output){
        .tokens = calloc(n_most, sizeof *output->tokens),
        .rows = calloc(n_most, sizeof *output->rows),
    };
    job j = {.request = request, .output = output};
    bt_kv_pool *pool;
    bt_kv_cache *cache;
    bt_batch *batch;
    bt_sampler *sampler;
    const uint32_t n_blocks = (uint32_t)bt_div_ceil(params->context, BT_KV_BLOCK_TOKENS);
    must(bt_kv_pool_create(bt_model_kv_layout(model), n_blocks, false, &pool, NULL));
    must(bt_kv_cache_create(&(bt_kv_cache_options){.pool = pool}, &cache));
    must(bt_batch_create(64, 1, 1, &batch));
    must(bt_sampler_create(params->n_vocab, &sampler));
    bt_sequence *seq = make_sequence(model, &j, 0);
    must(bt_sequence_reserve(seq, cache, params->context));
    while (seq->finish == BT_FINISH_NONE) {
        bt_batch_clear(batch);
        const bool planned = bt_sequence_plan(seq, 64, batch);
        BT_ASSERT(planned);
        const float *logits = bt_model_forward(model, batch, bt_kv_pool_base(pool), NULL, NULL);
        bt_sequence_computed(seq, cache, seq->n_computed + batch->n_rows);
        bt_logit_rows rows = {.batch = batch, .logits = logits, .params = params};
        bt_token_result result;
        if (bt_sequence_sample(seq, &batch->spans[0], &rows, sampler, NULL, NULL, &result)) {
            keep_row(output, output->n, logits, params->n_vocab);
            keep_token(&j, result.token, seq->finish);
        }
    }
    bt_sequence_release(seq, cache);
    bt_sequence_destroy(seq);
    bt_sampler_destroy(sampler);
    bt_batch_destroy(batch);
    bt_kv_cache_destroy(cache);
    bt_kv_pool_destroy(pool);
}

void bt_pair_output_free(bt_pair_output *output)
{
    free(output->tokens);
    free(output->rows);
    *output = (bt_pair_output){0};
}
