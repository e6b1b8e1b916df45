/* SPDX-License-Identifier: Apache-2.0 */
/* bench engine: prefill and decode tokens/s of the model on one worker's threads, beside the
 * rate that the machine's limits allow. The steps are those of llama.cpp's own benchmarks, so
 * that bench/compare_llama.py can set both side by side: prompts in steps of 512 rows with the
 * logits of the last, decoding as 64 steps of one row of each sequence with all its logits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/program.h"
#include "common/clock.h"
#include "engine/kv_pool.h"
#include "engine/model.h"

enum {
    STEP_ROWS = 512,
    SPANS_MAX = 64,
    N_DECODE = 64,   /* steps that are timed */
    DECODE_AT = 512, /* context before them */
};

typedef struct engine_options {
    const char *json;
    const char *model;
    const char *kernels;
    int64_t n_threads;
    bool quick;
} engine_options;

static const bt_config_option OPTIONS[] = {
    BT_PROGRAM_JSON_OPTION(engine_options),
    BT_PROGRAM_MODEL_OPTION(engine_options),
    BT_PROGRAM_KERNELS_OPTION(engine_options),
    {.name = "threads",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "threads",
     .min = 1,
     .max = 64,
     .help = "Threads of the model; all CPUs if not given.",
     .offset = offsetof(engine_options, n_threads)},
    {.name = "quick",
     .type = BT_CONFIG_BOOL,
     .group = "Work",
     .help = "Each row once, not the median of three.",
     .offset = offsetof(engine_options, quick)},
};

static const bt_config_spec SPEC = {
    .command = "bench/run engine",
    .summary = "Measures prefill and decode tokens per second of one worker.",
    .options = OPTIONS,
    .n_options = BT_ARRAY_LEN(OPTIONS),
};

static const uint32_t PREFILLS[] = {512, 2048};
static const uint32_t DECODES[] = {1, 4, 16, 32};

typedef struct rig {
    const engine_options *options;
    bt_report *report;
    bt_model *model;
    const bt_model_params *params;
    bt_kv_pool *pool;
    bt_batch *batch;
    bt_block_id *blocks; /* [n_blocks], taken in order: a sequence's are a slice */
    uint32_t n_blocks;
    int32_t tokens[2048];
    double ops_rate; /* of the kernel path's fastest instructions */
    const char *ops_name;
    double read_rate; /* of as many bytes as the weights have */
} rig;

/* ---- limits ---- */

static double layer_weights(const bt_model_params *p)
{
    const double heads = (double)p->head_dim * (2.0 * p->n_heads + 2.0 * p->n_kv_heads);
    return (double)p->n_layers * p->dim * (heads + 3.0 * p->n_ffn);
}

/* Operations of attention for one row at context c. */
static double attention_ops(const bt_model_params *p, double context)
{
    return 4.0 * p->n_heads * p->head_dim * p->n_layers * context;
}

static double prefill_limit(const rig *r, double n)
{
    const double ops = n * (2.0 * layer_weights(r->params) + attention_ops(r->params, n / 2));
    return n * r->ops_rate / ops;
}

static double decode_limit(const rig *r, double n_sequences, double context)
{
    const double weights = layer_weights(r->params) + (double)r->params->n_vocab * r->params->dim;
    const double kv_bytes = (double)bt_model_kv_layout(r->model)->block_bytes / BT_KV_BLOCK_TOKENS;
    const double read_s = (2.0 * weights + n_sequences * context * kv_bytes) / r->read_rate;
    const double compute_s =
        n_sequences * (2.0 * weights + attention_ops(r->params, context)) / r->ops_rate;
    return n_sequences / (read_s > compute_s ? read_s : compute_s);
}

/* ---- steps ---- */

static void prefill(rig *r, uint32_t n, const bt_block_id *blocks)
{
    for (uint32_t first = 0; first < n; first += STEP_ROWS) {
        const uint32_t rows = (uint32_t)bt_size_min(STEP_ROWS, n - first);
        bt_batch_clear(r->batch);
        bt_batch_add(r->batch, r, r->tokens + first, rows, first, blocks);
        if (first + rows == n) {
            bt_batch_want_logits(r->batch, 0);
        }
        (void)bt_model_forward(r->model, r->batch, bt_kv_pool_base(r->pool), NULL, NULL);
    }
}

static uint32_t blocks_each(uint32_t n_positions)
{
    return (uint32_t)bt_div_ceil(n_positions, BT_KV_BLOCK_TOKENS);
}

static void decode_step(rig *r, uint32_t n_sequences, uint32_t position)
{
    const uint32_t each = blocks_each(DECODE_AT + N_DECODE);
    bt_batch_clear(r->batch);
    for (uint32_t i = 0; i < n_sequences; i++) {
        const int32_t token = r->tokens[(position * 31 + i * 7) % BT_ARRAY_LEN(r->tokens)];
        bt_batch_add(r->batch, r, &token, 1, position, r->blocks + (size_t)i * each);
        bt_batch_want_logits(r->batch, 0);
    }
    (void)bt_model_forward(r->model, r->batch, bt_kv_pool_base(r->pool), NULL, NULL);
}

/* Fills the first sequence's blocks by prefill and the others' by copies of them. */
static void fill_contexts(rig *r, uint32_t n_sequences)
{
    const uint32_t each = blocks_each(DECODE_AT + N_DECODE);
    const size_t block_bytes = bt_kv_pool_layout(r->pool)->block_bytes;
    uint8_t *base = bt_kv_pool_base(r->pool);
    prefill(r, DECODE_AT, r->blocks);
    for (uint32_t i = each; i < n_sequences * each; i++) {
        memcpy(base + r->blocks[i] * block_bytes, base + r->blocks[i % each] * block_bytes,
               block_bytes);
    }
}

static double prefill_rate(rig *r, uint32_t n)
{
    const int64_t began = bt_clock_now_ns();
    prefill(r, n, r->blocks);
    return n * 1e9 / (double)(bt_clock_now_ns() - began);
}

static double decode_rate(rig *r, uint32_t n_sequences, uint32_t position)
{
    const int64_t began = bt_clock_now_ns();
    for (uint32_t i = 0; i < N_DECODE; i++) {
        decode_step(r, n_sequences, position + i);
    }
    return n_sequences * (double)N_DECODE * 1e9 / (double)(bt_clock_now_ns() - began);
}

static void add(const rig *r, const char *name, double *rates, size_t n, double limit)
{
    bt_report_add(r->report, &(bt_report_row){.name = name,
                                              .value = bt_report_median(rates, n),
                                              .unit = "tokens/s",
                                              .limit = limit,
                                              .limit_name = "the machine's limit"});
}

static void measure(rig *r)
{
    char name[64];
    double rates[3];
    const size_t n_rounds = r->options->quick ? 1 : BT_ARRAY_LEN(rates);
    prefill(r, STEP_ROWS, r->blocks);
    for (size_t i = 0; i < BT_ARRAY_LEN(PREFILLS); i++) {
        for (size_t k = 0; k < n_rounds; k++) {
            rates[k] = prefill_rate(r, PREFILLS[i]);
        }
        (void)snprintf(name, sizeof name, "prefill %u", PREFILLS[i]);
        add(r, name, rates, n_rounds, prefill_limit(r, PREFILLS[i]));
    }
    for (size_t k = 0; k < n_rounds; k++) {
        rates[k] = decode_rate(r, 1, 0);
    }
    add(r, "decode 1 at 0", rates, n_rounds, decode_limit(r, 1, N_DECODE / 2));
    for (size_t i = 0; i < BT_ARRAY_LEN(DECODES); i++) {
        fill_contexts(r, DECODES[i]);
        for (size_t k = 0; k < n_rounds; k++) {
            rates[k] = decode_rate(r, DECODES[i], DECODE_AT);
        }
        (void)snprintf(name, sizeof name, "decode %u at %d", DECODES[i], DECODE_AT);
        add(r, name, rates, n_rounds, decode_limit(r, DECODES[i], DECODE_AT + N_DECODE / 2.0));
    }
}

/* ---- start and end ---- */

static bt_status load(rig *r, bt_error *err)
{
    const bt_model_options options = {
        .path = bt_program_model(r->options->model),
        .kernels = r->options->kernels,
        .kv_format = BT_KV_FORMAT_BF16,
        .n_threads = (uint32_t)r->options->n_threads,
        .rows_max = STEP_ROWS,
        .spans_max = SPANS_MAX,
        .logits_max = SPANS_MAX,
    };
    const int64_t began = bt_clock_now_ns();
    bt_status status = bt_model_load(&options, &r->model, err);
    if (status != BT_OK) {
        return status;
    }
    r->params = bt_model_get_params(r->model);
    for (uint32_t i = 0; i < BT_ARRAY_LEN(r->tokens); i++) {
        r->tokens[i] = (int32_t)(i * 7919u % r->params->n_vocab);
    }
    char text[32];
    (void)snprintf(text, sizeof text, "%.2f s", (double)(bt_clock_now_ns() - began) / 1e9);
    bt_report_fact(r->report, "model", bt_model_name(r->model));
    bt_report_fact(r->report, "kernels", bt_model_kernels(r->model));
    bt_report_fact(r->report, "load", text);
    return BT_OK;
}

static bt_status take_blocks(rig *r, bt_error *err)
{
    r->n_blocks = 32 * blocks_each(DECODE_AT + N_DECODE);
    bt_status status =
        bt_kv_pool_create(bt_model_kv_layout(r->model), r->n_blocks, true, &r->pool, err);
    r->blocks = calloc(r->n_blocks, sizeof *r->blocks);
    if (status == BT_OK && r->blocks == NULL) {
        status = BT_ENOMEM;
    }
    for (uint32_t i = 0; i < r->n_blocks && status == BT_OK; i++) {
        status = bt_kv_pool_acquire(r->pool, &r->blocks[i]);
    }
    return status;
}

static void release(rig *r)
{
    for (uint32_t i = 0; r->pool != NULL && r->blocks != NULL && i < r->n_blocks; i++) {
        if (bt_kv_pool_refs(r->pool, r->blocks[i]) == 1 &&
            bt_kv_pool_unref(r->pool, r->blocks[i])) {
            bt_kv_pool_free(r->pool, r->blocks[i]);
        }
    }
    bt_batch_destroy(r->batch);
    bt_kv_pool_destroy(r->pool);
    bt_model_destroy(r->model);
    free(r->blocks);
}

static bt_status run_engine(void *ctx, bt_report *report, bt_error *err)
{
    const engine_options *options = ctx;
    rig r = {.options = options, .report = report};
    bt_status status = load(&r, err);
    if (status == BT_OK) {
        status = bt_batch_create(STEP_ROWS, SPANS_MAX, SPANS_MAX, &r.batch);
    }
    if (status == BT_OK) {
        status = take_blocks(&r, err);
    }
    const unsigned n_threads = (unsigned)options->n_threads;
    if (status == BT_OK) {
        status = bt_machine_compute_rate(
            n_threads, bt_peak_of_path(bt_model_kernels(r.model), &r.ops_name), &r.ops_rate);
    }
    if (status == BT_OK) {
        const size_t bytes = (size_t)r.params->n_weights * 2 / n_threads;
        status = bt_machine_read_rate(n_threads, bytes, &r.read_rate);
    }
    if (status == BT_OK) {
        measure(&r);
    }
    release(&r);
    return status;
}

int main(int argc, char **argv)
{
    bt_machine machine;
    bt_machine_describe(&machine);
    engine_options options = {.n_threads = machine.n_cpus < 64 ? machine.n_cpus : 64};
    const bt_program program = {"engine", &SPEC, &options, &options.json, run_engine};
    return bt_program_main(&program, argc, argv);
}
