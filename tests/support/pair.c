/* SPDX-License-Identifier: Apache-2.0 */
/* The engines are made but never started: this file calls their schedulers' tables itself, and
 * takes the events out of their queues after each call. The hand-over copies a part when its PART
 * event came and D has its blocks; parts that come earlier are remembered by count, since P's
 * blocks stay until RELEASE and may be copied at the end as well as at once. */
#include "tests/support/pair.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "tests/support/side.h"

enum { ROWS_ALONE = 64 }; /* of a step of a request that runs alone */

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
    bt_side prefill;
    bt_side decode;
    bt_prefill_scheduler *prefill_scheduler;
    bt_decode_scheduler *decode_scheduler;
    uint32_t n_open; /* jobs that are not over */
} pair;

static bt_sequence *make_sequence(const bt_side *side, job *j, uint32_t order)
{
    const bt_pair_request *request = j->request;
    bt_sequence *seq = bt_side_sequence(side, request->prompt, request->n_prompt, 0);
    seq->sampling = request->sampling;
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

static void keep_rows(void *ctx, const bt_batch *batch, const float *logits)
{
    const pair *p = ctx;
    const uint32_t n_vocab = bt_model_get_params(p->options->model)->n_vocab;
    uint32_t next = 0;
    for (uint32_t i = 0; i < batch->n_spans; i++) {
        const bt_kv_span *span = &batch->spans[i];
        if (next < batch->n_logits && batch->logit_rows[next] < span->row_first + span->n_rows) {
            job *j = ((bt_sequence *)batch->owners[i])->user;
            keep_row(j->output, j->n_rows++, logits + (size_t)next * n_vocab, n_vocab);
            next++;
        }
    }
}

static void submit(pair *p, job *j, const bt_pair_request *request, bt_pair_output *output,
                   uint32_t order)
{
    const uint32_t n_most = request->sampling.max_tokens;
    *j = (job){.request = request, .output = output};
    *output = (bt_pair_output){
        .tokens = calloc(n_most, sizeof *output->tokens),
        .rows = calloc(n_most, sizeof *output->rows),
    };
    BT_ASSERT(output->tokens && output->rows);
    p->n_open++;
    j->at_decode = make_sequence(&p->decode, j, order);
    if (request->whole) {
        tell_decode(p, BT_DECODE_COMMAND_RUN_WHOLE, j->at_decode, 0);
        return;
    }
    j->at_prefill = make_sequence(&p->prefill, j, order);
    tell_prefill(p, BT_PREFILL_COMMAND_RUN, j->at_prefill);
    tell_decode(p, BT_DECODE_COMMAND_RUN_PULL, j->at_decode, 0);
}

static void open_pair(pair *p, const bt_pair_options *options)
{
    bt_side_options side = {
        .model = options->model,
        .n_blocks = options->prefill_blocks,
        .rows_max = options->token_budget,
        .spans_max = options->running_max,
        .cache = options->cache,
        .command_bytes = sizeof(bt_prefill_command),
        .event_bytes = sizeof(bt_prefill_event),
    };
    bt_side_open(&p->prefill, &side);
    side.n_blocks = options->decode_blocks;
    side.command_bytes = sizeof(bt_decode_command);
    side.event_bytes = sizeof(bt_decode_event);
    bt_side_open(&p->decode, &side);
    const bt_prefill_scheduler_options prefill = {
        .cache = p->prefill.cache,
        .engine = p->prefill.engine,
        .params = bt_model_get_params(options->model),
        .token_budget = options->token_budget,
        .chunk = options->chunk,
        .computing_max = options->running_max,
    };
    bt_side_must(bt_prefill_scheduler_create(&prefill, &p->prefill_scheduler));
    p->prefill.table = bt_prefill_scheduler_table(p->prefill_scheduler);
    const bt_decode_scheduler_options decode = {
        .cache = p->decode.cache,
        .engine = p->decode.engine,
        .params = bt_model_get_params(options->model),
        .token_budget = options->token_budget,
        .chunk = options->chunk,
        .running_max = options->running_max,
    };
    bt_side_must(bt_decode_scheduler_create(&decode, &p->decode_scheduler));
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
        const bool prefilled = bt_side_step(&p.prefill, keep_rows, &p);
        drain(&p);
        const bool decoded = bt_side_step(&p.decode, keep_rows, &p);
        drain(&p);
        BT_ASSERT(prefilled || decoded || p.n_open < concurrency); /* progress */
    }
    drain(&p);
    free(jobs);
    bt_side_close(&p.prefill);
    bt_side_close(&p.decode);
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
    const bt_side_options options = {
        .model = model,
        .n_blocks = (uint32_t)bt_div_ceil(params->context, BT_KV_BLOCK_TOKENS),
        .rows_max = ROWS_ALONE,
        .spans_max = 1,
        .command_bytes = 1,
        .event_bytes = 1,
    };
    bt_side side;
    bt_side_open(&side, &options);
    bt_sampler *sampler;
    bt_side_must(bt_sampler_create(params->n_vocab, &sampler));
    bt_sequence *seq = make_sequence(&side, &j, 0);
    bt_side_must(bt_sequence_reserve(seq, side.cache, params->context));
    while (seq->finish == BT_FINISH_NONE) {
        bt_batch *batch = side.batch;
        bt_batch_clear(batch);
        const bool planned = bt_sequence_plan(seq, ROWS_ALONE, batch);
        BT_ASSERT(planned);
        const float *logits =
            bt_model_forward(model, batch, bt_kv_pool_base(side.pool), NULL, NULL);
        bt_sequence_computed(seq, side.cache, seq->n_computed + batch->n_rows);
        bt_logit_rows rows = {.batch = batch, .logits = logits, .params = params};
        bt_token_result result;
        if (bt_sequence_sample(seq, &batch->spans[0], &rows, sampler, NULL, NULL, &result)) {
            keep_row(output, output->n, logits, params->n_vocab);
            keep_token(&j, result.token, seq->finish);
        }
    }
    bt_sequence_release(seq, side.cache);
    bt_sequence_destroy(seq);
    bt_sampler_destroy(sampler);
    bt_side_close(&side);
}

void bt_pair_output_free(bt_pair_output *output)
{
    free(output->tokens);
    free(output->rows);
    *output = (bt_pair_output){0};
}
