/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/backend_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

enum { SPANS_MAX = 80 };

float fixture_random(uint32_t seed, uint32_t i, uint32_t j)
{
    uint64_t x = ((uint64_t)seed << 48) ^ ((uint64_t)i << 24) ^ j;
    x += 0x9e3779b97f4a7c15U; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    x ^= x >> 31;
    return (float)(x >> 40) * 0x1p-23F - 1.0F;
}

static void *must(void *p)
{
    BT_ASSERT(p != NULL);
    return p;
}

float *fixture_randoms(uint32_t seed, size_t n)
{
    float *x = must(malloc((n + 1) * sizeof(float)));
    for (size_t i = 0; i < n; i++) {
        x[i] = fixture_random(seed, 0, (uint32_t)i);
    }
    return x;
}

bt_backend *fixture_backend(const char *path, uint32_t n_threads)
{
    const bt_backend_limits limits = {
        .n_threads = n_threads,
        .n_rows = 1300,
        .n_spans = SPANS_MAX,
        .k = 4096,
        .n_heads = 64,
        .head_dim = 256,
        .n_positions = 4096,
    };
    bt_backend *be = NULL;
    bt_error err;
    BT_ASSERT(bt_cpu_backend_create(path, &limits, &be, &err) == BT_OK);
    return be;
}

typedef struct matrix_source {
    uint32_t seed;
    uint32_t k;
} matrix_source;

static void matrix_row(void *ctx, uint32_t row, float *dst)
{
    const matrix_source *m = ctx;
    for (uint32_t i = 0; i < m->k; i++) {
        /* 8 bits: exact in bf16 */
        dst[i] = floorf(fixture_random(m->seed, row, i) * 128.0F) / 128.0F;
    }
}

bt_matrix *fixture_matrix(bt_backend *be, uint32_t seed, uint32_t n, uint32_t k)
{
    matrix_source source = {.seed = seed, .k = k};
    bt_matrix *m = NULL;
    BT_ASSERT(be->ops->matrix_create(be, n, k, matrix_row, &source, &m) == BT_OK);
    return m;
}

void fixture_attention_init(fixture_attention *fx, fixture_shape shape, uint32_t n_sequences,
                            uint32_t n_positions)
{
    const uint32_t n_layers = 2;
    *fx = (fixture_attention){.n_heads = shape.n_heads, .n_rope = shape.n_rope, .layer = 1};
    BT_ASSERT(
        bt_kv_layout_init(&fx->layout, n_layers, shape.n_kv_heads, shape.head_dim, shape.format));
    fx->blocks_per_sequence = (uint32_t)bt_div_ceil(n_positions, BT_KV_BLOCK_TOKENS);
    const uint32_t n_blocks = n_sequences * fx->blocks_per_sequence;
    fx->pool_bytes = n_blocks * fx->layout.block_bytes;
    fx->pool = must(aligned_alloc(64, fx->pool_bytes));
    memset(fx->pool, 0xff, fx->pool_bytes); /* NaN in both formats */
    fx->blocks = must(calloc(n_blocks, sizeof(bt_block_id)));
    for (uint32_t i = 0; i < n_blocks; i++) {
        /* Neighbours of a sequence lie n_sequences apart, in falling order. */
        fx->blocks[i] = n_blocks - 1 - (i % fx->blocks_per_sequence) * n_sequences -
                        i / fx->blocks_per_sequence;
    }
    fx->rope = must(calloc((size_t)n_positions * shape.head_dim, sizeof(float)));
    for (uint32_t pos = 0; pos < n_positions; pos++) {
        for (uint32_t i = 0; i < shape.n_rope; i += 2) {
            const double angle = pos * pow(10000.0, -(double)i / shape.n_rope);
            fx->rope[(size_t)pos * shape.head_dim + i] = (float)cos(angle);
            fx->rope[(size_t)pos * shape.head_dim + i + 1] = (float)sin(angle);
        }
    }
}

void fixture_attention_deinit(fixture_attention *fx)
{
    free(fx->pool);
    free(fx->blocks);
    free(fx->rope);
}

static size_t qkv_width(const fixture_attention *fx)
{
    return ((size_t)fx->n_heads + 2 * (size_t)fx->layout.n_kv_heads) * fx->layout.head_dim;
}

/* Fills spans and args; returns the number of rows. */
static uint32_t make_args(const fixture_attention *fx, const fixture_rows *rows, uint32_t n,
                          bt_kv_span *spans, bt_attention_args *args)
{
    BT_ASSERT(n <= SPANS_MAX);
    uint32_t n_rows = 0;
    for (uint32_t s = 0; s < n; s++) {
        spans[s] = (bt_kv_span){
            .blocks = fx->blocks + (size_t)rows[s].sequence * fx->blocks_per_sequence,
            .row_first = n_rows,
            .n_rows = rows[s].n,
            .pos_first = rows[s].first,
        };
        n_rows += rows[s].n;
    }
    *args = (bt_attention_args){
        .layout = &fx->layout,
        .pool = fx->pool,
        .layer = fx->layer,
        .n_heads = fx->n_heads,
        .scale = 1.0F / sqrtf((float)fx->layout.head_dim),
        .rope = fx->rope,
        .n_rope = fx->n_rope,
        .spans = spans,
        .n_spans = n,
        .n_rows = n_rows,
    };
    return n_rows;
}

float *fixture_qkv(const fixture_attention *fx, const fixture_rows *rows, uint32_t n)
{
    const size_t width = qkv_width(fx);
    size_t n_rows = 0;
    for (uint32_t s = 0; s < n; s++) {
        n_rows += rows[s].n;
    }
    float *qkv = must(malloc(n_rows * width * sizeof(float)));
    float *to = qkv;
    for (uint32_t s = 0; s < n; s++) {
        for (uint32_t i = 0; i < rows[s].n; i++, to += width) {
            for (uint32_t c = 0; c < width; c++) {
                to[c] = 3.0F * fixture_random(100 + rows[s].sequence, rows[s].first + i, c);
            }
        }
    }
    return qkv;
}

void fixture_store(fixture_attention *fx, bt_backend *be, const fixture_rows *rows, uint32_t n,
                   float *qkv)
{
    bt_kv_span spans[SPANS_MAX];
    bt_attention_args args;
    (void)make_args(fx, rows, n, spans, &args);
    be->ops->rope_store(be, &args, qkv);
}

float *fixture_attend(fixture_attention *fx, bt_backend *be, const fixture_rows *rows, uint32_t n,
                      const float *qkv)
{
    bt_kv_span spans[SPANS_MAX];
    bt_attention_args args;
    const size_t n_rows = make_args(fx, rows, n, spans, &args);
    float *out = must(malloc(n_rows * fx->n_heads * fx->layout.head_dim * sizeof(float)));
    be->ops->attention(be, &args, qkv, out);
    return out;
}

float *fixture_step(fixture_attention *fx, bt_backend *be, const fixture_rows *rows, uint32_t n)
{
    float *qkv = fixture_qkv(fx, rows, n);
    fixture_store(fx, be, rows, n, qkv);
    float *out = fixture_attend(fx, be, rows, n, qkv);
    free(qkv);
    return out;
}
