/* SPDX-License-Identifier: Apache-2.0 */
/* bench kernels: matrix products and attention of one kernel path against the machine's limits.
 *
 * A product of few rows is limited by reading the weights (GB/s beside the rate at which this
 * machine reads as many bytes), one of many rows by arithmetic (GFLOP/s beside the peak of the
 * instructions that the path uses). Each shape has several matrices that are used in turn, as the
 * layers of a model are, so that weights never come from L2.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/peak.h"
#include "bench/program.h"
#include "common/check.h"
#include "common/clock.h"
#include "engine/backend.h"

enum {
    ROWS_MAX = 512,
    POSITIONS_MAX = 2560,
    SEQUENCES_MAX = 32,
    MATRICES_MAX = 128,
    N_RUNS = 5,
    RUN_NS = 60 * 1000 * 1000,
    WEIGHT_BYTES = 64 * 1024 * 1024,
};

typedef struct kernels_options {
    const char *json;
    const char *path;
    int64_t n_threads;
} kernels_options;

static const bt_config_option OPTIONS[] = {
    BT_PROGRAM_JSON_OPTION(kernels_options),
    {.name = "kernels",
     .type = BT_CONFIG_STRING,
     .group = "Work",
     .placeholder = "PATH",
     .help = "Kernel path: amx-bf16, avx512-bf16, avx512, avx2, portable, reference or auto.",
     .offset = offsetof(kernels_options, path)},
    {.name = "threads",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "threads",
     .min = 1,
     .max = 64,
     .help = "Compute threads.",
     .offset = offsetof(kernels_options, n_threads)},
};

static const bt_config_spec SPEC = {
    .command = "bench/run kernels",
    .summary = "Measures matrix products and attention against the machine's limits.",
    .options = OPTIONS,
    .n_options = BT_ARRAY_LEN(OPTIONS),
};

typedef struct bench {
    bt_report *report;
    bt_backend *be;
    double peak; /* flop/s */
    double read; /* bytes/s */
    float *x;
    float *y;
} bench;

/* One call of what is measured; `turn` counts the calls. */
typedef void (*work_fn)(void *ctx, uint32_t turn);

/* Seconds of one call: the median of N_RUNS means. */
static double time_of(work_fn fn, void *ctx)
{
    double seconds[N_RUNS];
    uint32_t turn = 0;
    fn(ctx, turn++); /* warms caches and threads */
    for (uint32_t i = 0; i < N_RUNS; i++) {
        const int64_t start = bt_clock_now_ns();
        int64_t now = start;
        uint32_t n = 0;
        while (now - start < RUN_NS) {
            fn(ctx, turn++);
            n++;
            now = bt_clock_now_ns();
        }
        seconds[i] = (double)(now - start) * 1e-9 / n;
    }
    return bt_report_median(seconds, N_RUNS);
}

/* ---- matrix products ------------------------------------------------------------------- */

typedef struct shape {
    const char *name;
    uint32_t n;
    uint32_t k;
} shape;

static const shape SHAPES[] = {
    {"135M q k v", 960, 576}, {"135M attention out", 576, 576}, {"135M gate, up", 3072, 576},
    {"135M down", 576, 1536}, {"135M logits", 49152, 576},      {"0.5B gate, up", 9728, 896},
    {"0.5B down", 896, 4864},
};

static const uint32_t ROWS[] = {1, 4, 16, 32, 64, 512};

typedef struct matmul_work {
    const bench *b;
    bt_matrix *matrices[MATRICES_MAX];
    uint32_t n_matrices;
    uint32_t n_rows;
    uint32_t n;
} matmul_work;

static void run_matmul(void *ctx, uint32_t turn)
{
    const matmul_work *w = ctx;
    w->b->be->ops->matmul(w->b->be, w->matrices[turn % w->n_matrices], w->b->x, w->n_rows, w->b->y,
                          w->n, false);
}

static void fill_row(void *ctx, uint32_t row, float *dst)
{
    const uint32_t k = *(const uint32_t *)ctx;
    for (uint32_t i = 0; i < k; i++) {
        dst[i] = (float)((row * 7 + i * 13) % 31) * 0.0625F - 0.9375F;
    }
}

static bt_status measure_shape(const bench *b, const shape *s)
{
    const size_t bytes = (size_t)s->n * s->k * 2;
    matmul_work w = {.b = b, .n = s->n};
    const size_t n_matrices = bt_size_min(bt_div_ceil(WEIGHT_BYTES, bytes), MATRICES_MAX);
    uint32_t k = s->k;
    bt_status status = BT_OK;
    while (status == BT_OK && w.n_matrices < n_matrices) {
        status = b->be->ops->matrix_create(b->be, s->n, k, fill_row, &k, &w.matrices[w.n_matrices]);
        w.n_matrices += status == BT_OK;
    }
    for (size_t i = 0; status == BT_OK && i < BT_ARRAY_LEN(ROWS); i++) {
        w.n_rows = ROWS[i];
        const double seconds = time_of(run_matmul, &w);
        const bool by_bytes = w.n_rows < 8;
        char name[96];
        (void)snprintf(name, sizeof(name), "%s, %u x %u, %u row%s", s->name, s->n, s->k, w.n_rows,
                       w.n_rows > 1 ? "s" : "");
        const double work = by_bytes ? (double)bytes : 2.0 * w.n_rows * s->n * s->k;
        bt_report_add(b->report, &(bt_report_row){
                                     .name = name,
                                     .value = work / seconds * 1e-9,
                                     .unit = by_bytes ? "GB/s" : "GFLOP/s",
                                     .limit = (by_bytes ? b->read : b->peak) * 1e-9,
                                     .limit_name = by_bytes ? "read" : "peak",
                                 });
    }
    for (uint32_t i = 0; i < w.n_matrices; i++) {
        b->be->ops->matrix_destroy(b->be, w.matrices[i]);
    }
    return status;
}

/* ---- attention ------------------------------------------------------------------------- */

typedef struct attention_work {
    const bench *b;
    bt_attention_args args;
    bt_kv_span spans[SEQUENCES_MAX];
} attention_work;

static void run_attention(void *ctx, uint32_t turn)
{
    const attention_work *w = ctx;
    bt_attention_args args = w->args;
    args.layer = turn % args.layout->n_layers;
    w->b->be->ops->attention(w->b->be, &args, w->b->x, w->b->y);
}

typedef struct attention_case {
    const char *name;
    uint32_t n_sequences;
    uint32_t n_rows; /* of each */
    uint32_t first;  /* position of its first row */
} attention_case;

static const attention_case CASES[] = {
    {"prefill of 512", 1, 512, 0},       {"prefill of 512 after 2,048", 1, 512, 2048},
    {"decode of 1 at 512", 1, 1, 511},   {"decode of 1 at 2,048", 1, 1, 2047},
    {"decode of 32 at 512", 32, 1, 511},
};

static void measure_case(const bench *b, attention_work *w, const attention_case *c,
                         const bt_block_id *blocks)
{
    const uint32_t blocks_each =
        (uint32_t)bt_div_ceil((size_t)c->first + c->n_rows, BT_KV_BLOCK_TOKENS);
    double products = 0.0;
    for (uint32_t s = 0; s < c->n_sequences; s++) {
        w->spans[s] = (bt_kv_span){
            .blocks = blocks + (size_t)s * blocks_each,
            .row_first = s * c->n_rows,
            .n_rows = c->n_rows,
            .pos_first = c->first,
        };
        for (uint32_t r = 0; r < c->n_rows; r++) {
            products += 2.0 * (c->first + r + 1) * w->args.n_heads * w->args.layout->head_dim;
        }
    }
    w->args.n_spans = c->n_sequences;
    w->args.n_rows = c->n_sequences * c->n_rows;
    const double seconds = time_of(run_attention, w);
    const bool by_bytes = c->n_rows == 1;
    const double bytes = (double)c->n_sequences * blocks_each * w->args.layout->layer_bytes;
    char name[96];
    (void)snprintf(name, sizeof(name), "135M attention, %s (%.0f us)", c->name, seconds * 1e6);
    bt_report_add(b->report, &(bt_report_row){
                                 .name = name,
                                 .value = (by_bytes ? bytes : 2.0 * products) / seconds * 1e-9,
                                 .unit = by_bytes ? "GB/s" : "GFLOP/s",
                                 .limit = (by_bytes ? b->read : b->peak) * 1e-9,
                                 .limit_name = by_bytes ? "read" : "peak",
                             });
}

/* 9 heads over 3 kv heads of 64 channels. */
static bt_status measure_attention(const bench *b)
{
    bt_kv_layout layout;
    BT_ASSERT(bt_kv_layout_init(&layout, 30, 3, 64, BT_KV_FORMAT_BF16));
    const uint32_t n_blocks = SEQUENCES_MAX * 512 / BT_KV_BLOCK_TOKENS;
    const size_t pool_bytes = n_blocks * layout.block_bytes;
    uint8_t *pool = aligned_alloc(64, pool_bytes);
    bt_block_id *blocks = calloc(n_blocks, sizeof(*blocks));
    float *rope = calloc((size_t)POSITIONS_MAX * 64, sizeof(float));
    bt_status status = BT_ENOMEM;
    if (pool != NULL && blocks != NULL && rope != NULL) {
        for (size_t i = 0; i < pool_bytes / 2; i++) {
            const uint16_t v = (uint16_t)(0x3e00U + (i * 7919U) % 256U); /* 0.125 .. 0.25 */
            memcpy(pool + 2 * i, &v, sizeof(v));
        }
        for (uint32_t i = 0; i < n_blocks; i++) {
            blocks[i] = (bt_block_id)((i * 37) % n_blocks); /* scattered, as a used pool is */
        }
        attention_work w = {.b = b};
        w.args = (bt_attention_args){
            .layout = &layout,
            .pool = pool,
            .n_heads = 9,
            .scale = 0.125F,
            .rope = rope,
            .n_rope = 64,
            .spans = w.spans,
        };
        for (size_t i = 0; i < BT_ARRAY_LEN(CASES); i++) {
            measure_case(b, &w, &CASES[i], blocks);
        }
        status = BT_OK;
    }
    free(pool);
    free(blocks);
    free(rope);
    return status;
}

/* ---- program --------------------------------------------------------------------------- */

static bt_status measure_all(bench *b, unsigned n_threads)
{
    const char *bound; /* what the peak is made of */
    bt_status status =
        bt_machine_compute_rate(n_threads, bt_peak_of_path(b->be->name, &bound), &b->peak);
    bt_report_fact(b->report, "peak", bound);
    if (status == BT_OK) {
        status = bt_machine_read_rate(n_threads, WEIGHT_BYTES / n_threads, &b->read);
    }
    for (size_t i = 0; status == BT_OK && i < BT_ARRAY_LEN(SHAPES); i++) {
        status = measure_shape(b, &SHAPES[i]);
    }
    return status == BT_OK ? measure_attention(b) : status;
}

static bt_status measure(void *ctx, bt_report *report, bt_error *err)
{
    const kernels_options *options = ctx;
    const bt_backend_limits limits = {
        .n_threads = (uint32_t)options->n_threads,
        .n_rows = ROWS_MAX,
        .n_spans = SEQUENCES_MAX,
        .k = 4864,
        .n_heads = 9,
        .head_dim = 64,
        .n_positions = POSITIONS_MAX,
    };
    bench b = {.report = report};
    bt_status status = bt_cpu_backend_create(options->path, &limits, &b.be, err);
    if (status != BT_OK) {
        return status;
    }
    bt_report_fact(report, "kernels", b.be->name);
    const size_t n_x = (size_t)ROWS_MAX * 4864;
    b.x = calloc(n_x, sizeof(float));
    b.y = calloc((size_t)ROWS_MAX * 49152, sizeof(float));
    status = BT_ENOMEM;
    if (b.x != NULL && b.y != NULL) {
        for (size_t i = 0; i < n_x; i++) {
            b.x[i] = (float)(i % 17) * 0.125F - 1.0F;
        }
        status = measure_all(&b, (unsigned)options->n_threads);
    }
    free(b.x);
    free(b.y);
    b.be->ops->destroy(b.be);
    return status == BT_OK ? BT_OK
                           : bt_error_set(err, status, "cannot measure the kernels: %s",
                                          bt_status_text(status));
}

int main(int argc, char **argv)
{
    kernels_options options = {.path = "auto", .n_threads = 1};
    const bt_program program = {"kernels", &SPEC, &options, &options.json, measure};
    return bt_program_main(&program, argc, argv);
}
