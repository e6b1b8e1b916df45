/* SPDX-License-Identifier: Apache-2.0 */
/* bench kernels: matrix products and attention of each kernel path, as a share of what the
 * machine can do: many rows against the arithmetic peak of the path's instructions, one row
 * against the rate at which memory (or the cache that holds the matrix) can be read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/program.h"
#include "common/clock.h"
#include "engine/backend.h"

#define N_PATHS_MAX 16
#define N_RUNS 5
#define RUN_NS 60000000
#define ROWS_MAX 512u
#define CONTEXT_MAX 4096u

typedef struct kernels_options {
    const char *json;
    const char *kernels;
    int64_t n_threads;
} kernels_options;

static const bt_config_option OPTIONS[] = {
    BT_PROGRAM_JSON_OPTION(kernels_options),
    {.name = "kernels",
     .type = BT_CONFIG_STRING,
     .group = "Work",
     .placeholder = "NAME",
     .fallback = "all",
     .help = "Kernel path; \"all\" measures each that this CPU has, but the reference.",
     .offset = offsetof(kernels_options, kernels)},
    {.name = "threads",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "threads",
     .min = 1,
     .max = 64,
     .fallback = "1",
     .help = "Threads of the kernels.",
     .offset = offsetof(kernels_options, n_threads)},
};

static const bt_config_spec SPEC = {
    .command = "bench/run kernels",
    .summary = "Measures matrix products and attention against the machine's limits.",
    .options = OPTIONS,
    .n_options = BT_ARRAY_LEN(OPTIONS),
};

/* Shapes of SmolLM2-135M, and of a 1B model whose matrices leave most caches. */
static const struct {
    const char *name;
    uint32_t n, k;
} MATRICES[] = {
    {"qkv 960 x 576", 960, 576},
    {"gate_up 3072 x 576", 3072, 576},
    {"down 576 x 1536", 576, 1536},
    {"output 49152 x 576", 49152, 576},
    {"gate_up of 1B 16384 x 2048", 16384, 2048},
};
static const uint32_t ROWS[] = {1, 8, 64, 512};

static const struct {
    const char *name;
    uint32_t n_spans, n_rows, context; /* rows of each span; positions after them */
} ATTENTION[] = {
    {"prefill 512 rows, context 512", 1, 512, 512},
    {"prefill 512 rows, context 4096", 1, 512, 4096},
    {"decode 1 sequence, context 4096", 1, 1, 4096},
    {"decode 16 sequences, context 512", 16, 1, 512},
};
enum { N_HEADS = 9, N_KV_HEADS = 3, HEAD_DIM = 64, SPANS_MAX = 16 };

/* What the rows are measured on: one kernel path and the limits that it has. */
typedef struct rig {
    const char *path;
    bt_backend *backend;
    unsigned n_threads;
    double ops_limit;
    const char *ops_limit_name;
    bt_report *report;
} rig;

typedef struct matmul_call {
    bt_backend *backend;
    bt_matrix *matrix;
    const float *x;
    float *y;
    uint32_t n, n_rows;
} matmul_call;

typedef struct attention_call {
    bt_backend *backend;
    bt_attention_args args;
    const float *qkv;
    float *out;
} attention_call;

static void call_matmul(void *ctx)
{
    matmul_call *c = ctx;
    c->backend->ops->matmul(c->backend, c->matrix, c->x, c->n_rows, c->y, c->n, false);
}

static void call_attention(void *ctx)
{
    attention_call *c = ctx;
    c->backend->ops->attention(c->backend, &c->args, c->qkv, c->out);
}

/* Seconds of one call: median of five runs of at least 60 ms each. */
static double seconds_of(void (*call)(void *ctx), void *ctx)
{
    double seconds[N_RUNS];
    call(ctx);
    for (int run = 0; run < N_RUNS; run++) {
        const int64_t began = bt_clock_now_ns();
        int64_t now = began;
        unsigned n = 0;
        while (now - began < RUN_NS) {
            call(ctx);
            n++;
            now = bt_clock_now_ns();
        }
        seconds[run] = (double)(now - began) / 1e9 / n;
    }
    return bt_report_median(seconds, N_RUNS);
}

/* Small numbers that differ: no kernel may take a short cut, none overflows. */
static float value_at(size_t i)
{
    return (float)((i * 2654435761u) >> 16 & 0xff) / 2048.0f - 0.0625f;
}

static void fill_row(void *ctx, uint32_t row, float *dst)
{
    const uint32_t *k = ctx;
    for (uint32_t i = 0; i < *k; i++) {
        dst[i] = value_at((size_t)row * *k + i);
    }
}

static float *new_values(size_t n)
{
    float *values = aligned_alloc(64, bt_align_up(n * sizeof *values, 64));
    for (size_t i = 0; values != NULL && i < n; i++) {
        values[i] = value_at(i);
    }
    return values;
}

static bt_status measure_rows(const rig *r, matmul_call *call, size_t matrix_idx)
{
    const uint32_t n = MATRICES[matrix_idx].n;
    uint32_t k = MATRICES[matrix_idx].k;
    const double weight_bytes = 2.0 * n * k;
    double read_limit = 0;
    bt_status status = bt_machine_read_rate(
        r->n_threads, bt_align_up((size_t)weight_bytes / r->n_threads, 512), &read_limit);
    if (status != BT_OK) {
        return status;
    }
    for (size_t i = 0; i < BT_ARRAY_LEN(ROWS); i++) {
        char name[96];
        call->n_rows = ROWS[i];
        const double seconds = seconds_of(call_matmul, call);
        (void)snprintf(name, sizeof name, "%s: %s, %u row%s", r->path, MATRICES[matrix_idx].name,
                       ROWS[i], ROWS[i] > 1 ? "s" : "");
        bt_report_row row = {.name = name, .value = 2.0 * n * k * ROWS[i] / seconds / 1e9};
        row.unit = "GFLOP/s";
        row.limit = r->ops_limit / 1e9;
        row.limit_name = r->ops_limit_name;
        if (ROWS[i] == 1) {
            row = (bt_report_row){name, weight_bytes / seconds / 1e9, "GB/s", read_limit / 1e9,
                                  "reading as many bytes"};
        }
        bt_report_add(r->report, &row);
    }
    return BT_OK;
}

static bt_status measure_matmul(const rig *r, size_t matrix_idx)
{
    const uint32_t n = MATRICES[matrix_idx].n;
    uint32_t k = MATRICES[matrix_idx].k;
    matmul_call call = {.backend = r->backend, .n = n};
    float *x = new_values((size_t)ROWS_MAX * k);
    call.x = x;
    call.y = new_values((size_t)ROWS_MAX * n);
    bt_status status = BT_ENOMEM;
    if (x != NULL && call.y != NULL) {
        status = r->backend->ops->matrix_create(r->backend, n, k, fill_row, &k, &call.matrix);
    }
    if (status == BT_OK) {
        status = measure_rows(r, &call, matrix_idx);
        r->backend->ops->matrix_destroy(r->backend, call.matrix);
    }
    free(x);
    free(call.y);
    return status;
}

/* Multiply-adds over all (row, position at or before it) pairs: scores and values. */
static double attention_ops(size_t idx)
{
    const double rows = ATTENTION[idx].n_rows;
    const double pairs = rows * (ATTENTION[idx].context - rows) + rows * (rows + 1) / 2;
    return 4.0 * N_HEADS * HEAD_DIM * pairs * ATTENTION[idx].n_spans;
}

static void run_attention(const rig *r, attention_call *call, size_t idx)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%s: %s", r->path, ATTENTION[idx].name);
    const double seconds = seconds_of(call_attention, call);
    bt_report_add(r->report, &(bt_report_row){.name = name,
                                              .value = attention_ops(idx) / seconds / 1e9,
                                              .unit = "GFLOP/s",
                                              .limit = r->ops_limit / 1e9,
                                              .limit_name = r->ops_limit_name});
}

static bt_status measure_attention(const rig *r, size_t idx)
{
    bt_kv_layout layout;
    if (!bt_kv_layout_init(&layout, 1, N_KV_HEADS, HEAD_DIM, BT_KV_FORMAT_BF16)) {
        return BT_EINTERNAL;
    }
    const uint32_t blocks_each = ATTENTION[idx].context / BT_KV_BLOCK_TOKENS;
    const uint32_t n_spans = ATTENTION[idx].n_spans;
    const uint32_t n_rows = ATTENTION[idx].n_rows * n_spans;
    const size_t pool_bytes = (size_t)layout.block_bytes * blocks_each * n_spans;
    bt_block_id *blocks = calloc((size_t)blocks_each * n_spans, sizeof *blocks);
    uint8_t *pool = aligned_alloc(64, bt_align_up(pool_bytes, 64));
    float *qkv = new_values((size_t)n_rows * (N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM);
    float *out = new_values((size_t)n_rows * N_HEADS * HEAD_DIM);
    float *rope = new_values((size_t)CONTEXT_MAX * HEAD_DIM);
    bt_kv_span spans[SPANS_MAX];
    bt_status status = BT_ENOMEM;
    if (blocks != NULL && pool != NULL && qkv != NULL && out != NULL && rope != NULL) {
        uint16_t *elements = (void *)pool;
        for (size_t i = 0; i < pool_bytes / 2; i++) {
            elements[i] = (uint16_t)(0x3c00 + (i * 40503u >> 4 & 0x7f)); /* bf16, about 0.01 */
        }
        for (uint32_t i = 0; i < blocks_each * n_spans; i++) {
            blocks[i] = i;
        }
        for (uint32_t i = 0; i < n_spans; i++) {
            spans[i] = (bt_kv_span){.blocks = blocks + (size_t)i * blocks_each,
                                    .row_first = i * ATTENTION[idx].n_rows,
                                    .n_rows = ATTENTION[idx].n_rows,
                                    .pos_first = ATTENTION[idx].context - ATTENTION[idx].n_rows};
        }
        attention_call call = {.backend = r->backend, .qkv = qkv, .out = out};
        call.args = (bt_attention_args){.layout = &layout,
                                        .pool = pool,
                                        .n_heads = N_HEADS,
                                        .scale = 0.125f,
                                        .rope = rope,
                                        .n_rope = HEAD_DIM,
                                        .spans = spans,
                                        .n_spans = n_spans,
                                        .n_rows = n_rows};
        run_attention(r, &call, idx);
        status = BT_OK;
    }
    free(blocks);
    free(pool);
    free(qkv);
    free(out);
    free(rope);
    return status;
}

/* The fastest instructions that a path is made of. */
static const bt_peak_loop *peak_of(const char *path, const char **name)
{
    if (strcmp(path, "amx") == 0 && bt_peak_amx_is_there()) {
        *name = "bf16 tile peak";
        return &bt_peak_amx.bf16;
    }
    if (strcmp(path, "avx512-bf16") == 0) {
        *name = "bf16 dot peak";
        return &bt_peak_avx512_bf16.bf16;
    }
    *name = "f32 peak";
    if (strcmp(path, "avx512") == 0) {
        return &bt_peak_avx512.f32;
    }
    return strcmp(path, "avx2") == 0 ? &bt_peak_avx2.f32 : &bt_peak_portable.f32;
}

static bt_status measure_path(const kernels_options *options, bt_report *report, const char *path,
                              bt_error *err)
{
    const bt_backend_limits limits = {
        .n_threads = (uint32_t)options->n_threads,
        .n_rows = ROWS_MAX,
        .n_spans = SPANS_MAX,
        .k = 2048,
        .n_heads = N_HEADS,
        .head_dim = HEAD_DIM,
        .n_positions = CONTEXT_MAX,
    };
    rig r = {.path = path, .n_threads = (unsigned)options->n_threads, .report = report};
    bt_status status =
        bt_machine_compute_rate(r.n_threads, peak_of(path, &r.ops_limit_name), &r.ops_limit);
    if (status == BT_OK) {
        status = bt_cpu_backend_create(path, &limits, &r.backend, err);
    }
    if (status != BT_OK) {
        return status;
    }
    bt_report_heading(report, path);
    for (size_t i = 0; i < BT_ARRAY_LEN(MATRICES) && status == BT_OK; i++) {
        status = measure_matmul(&r, i);
    }
    for (size_t i = 0; i < BT_ARRAY_LEN(ATTENTION) && status == BT_OK; i++) {
        status = measure_attention(&r, i);
    }
    r.backend->ops->destroy(r.backend);
    return status;
}

static bt_status run_kernels(void *ctx, bt_report *report, bt_error *err)
{
    const kernels_options *options = ctx;
    const bool all = strcmp(options->kernels, "all") == 0;
    const char *paths[N_PATHS_MAX] = {options->kernels};
    const size_t n_paths = all ? bt_cpu_backend_paths(paths, N_PATHS_MAX) : 1;
    bt_status status = BT_OK;
    for (size_t i = 0; i < n_paths && status == BT_OK; i++) {
        if (!all || strcmp(paths[i], "reference") != 0) {
            status = measure_path(options, report, paths[i], err);
        }
    }
    return status;
}

int main(int argc, char **argv)
{
    kernels_options options = {.json = NULL};
    const bt_program program = {"kernels", &SPEC, &options, &options.json, run_kernels};
    return bt_program_main(&program, argc, argv);
}
