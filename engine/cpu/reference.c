/* SPDX-License-Identifier: Apache-2.0 */
/* The definition of a right result: plain loops over row-major f32 matrices.
 *
 * Sums and softmax are in double, so that what is left is the rounding of each operation's inputs
 * and outputs to f32: an oracle should be closer to the truth than what it judges. Attention
 * is the textbook's two passes, with no steps and no segments. Threads divide a matrix's outputs,
 * never a sum.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "engine/cpu/backend_int.h"
#include "engine/cpu/round.h"
#include "engine/cpu/team.h"

typedef struct reference {
    bt_backend base;
    bt_team *team;
    double *scores; /* [n_positions] */
} reference;

typedef struct reference_matrix {
    uint32_t n;
    uint32_t k;
    float rows[]; /* [n, k] */
} reference_matrix;

static reference *reference_of(bt_backend *be)
{
    return bt_container_of(be, reference, base);
}

static const reference_matrix *rows_of(const bt_matrix *matrix)
{
    return (const reference_matrix *)(const void *)matrix;
}

/* Member i's share of n things, in order. */
static uint32_t share(uint32_t n, uint32_t member, uint32_t n_members)
{
    return (uint32_t)((uint64_t)n * member / n_members);
}

typedef struct fill_job {
    reference_matrix *matrix;
    bt_row_fn row_fn;
    void *ctx;
} fill_job;

static void fill_rows(void *ctx, uint32_t member, uint32_t n_members)
{
    const fill_job *job = ctx;
    reference_matrix *m = job->matrix;
    const uint32_t end = share(m->n, member + 1, n_members);
    for (uint32_t j = share(m->n, member, n_members); j < end; j++) {
        job->row_fn(job->ctx, j, m->rows + (size_t)j * m->k);
    }
}

static bt_status matrix_create(bt_backend *be, uint32_t n, uint32_t k, bt_row_fn row_fn, void *ctx,
                               bt_matrix **out)
{
    size_t bytes;
    if (!bt_size_mul(n, k, &bytes) || !bt_size_mul(bytes, sizeof(float), &bytes) ||
        !bt_size_add(bytes, sizeof(reference_matrix), &bytes)) {
        return BT_ENOMEM;
    }
    reference_matrix *m = malloc(bytes);
    if (m == NULL) {
        return BT_ENOMEM;
    }
    m->n = n;
    m->k = k;
    fill_job job = {.matrix = m, .row_fn = row_fn, .ctx = ctx};
    bt_team_run(reference_of(be)->team, fill_rows, &job);
    *out = (bt_matrix *)(void *)m;
    return BT_OK;
}

static void matrix_destroy(bt_backend *be, bt_matrix *matrix)
{
    (void)be;
    free(matrix);
}

static void embed(bt_backend *be, const bt_matrix *matrix, const int32_t *tokens, uint32_t n_rows,
                  float *out)
{
    (void)be;
    const reference_matrix *m = rows_of(matrix);
    for (uint32_t r = 0; r < n_rows; r++) {
        BT_ASSERT(tokens[r] >= 0 && (uint32_t)tokens[r] < m->n);
        memcpy(out + (size_t)r * m->k, m->rows + (size_t)tokens[r] * m->k, m->k * sizeof(float));
    }
}

typedef struct matmul_job {
    const reference_matrix *matrix;
    const float *x;
    float *y;
    uint32_t n_rows;
    uint32_t y_stride;
    bool add;
} matmul_job;

static void matmul_rows(void *ctx, uint32_t member, uint32_t n_members)
{
    const matmul_job *job = ctx;
    const reference_matrix *m = job->matrix;
    const uint32_t end = share(m->n, member + 1, n_members);
    for (uint32_t j = share(m->n, member, n_members); j < end; j++) {
        const float *w = m->rows + (size_t)j * m->k;
        for (uint32_t r = 0; r < job->n_rows; r++) {
            const float *x = job->x + (size_t)r * m->k;
            double sum = 0.0;
            for (uint32_t i = 0; i < m->k; i++) {
                sum += (double)w[i] * (double)x[i];
            }
            float *y = job->y + (size_t)r * job->y_stride + j;
            *y = job->add ? (float)((double)*y + sum) : (float)sum;
        }
    }
}

static void matmul(bt_backend *be, const bt_matrix *matrix, const float *x, uint32_t n_rows,
                   float *y, uint32_t y_stride, bool add)
{
    matmul_job job = {
        .matrix = rows_of(matrix),
        .x = x,
        .y = y,
        .n_rows = n_rows,
        .y_stride = y_stride,
        .add = add,
    };
    bt_team_run(reference_of(be)->team, matmul_rows, &job);
}

static void rms_norm(bt_backend *be, const float *x, const float *weight, float eps,
                     uint32_t n_rows, uint32_t dim, float *out)
{
    (void)be;
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *from = x + (size_t)r * dim;
        float *to = out + (size_t)r * dim;
        double sum = 0.0;
        for (uint32_t i = 0; i < dim; i++) {
            sum += (double)from[i] * (double)from[i];
        }
        const double inv = 1.0 / sqrt(sum / dim + (double)eps);
        for (uint32_t i = 0; i < dim; i++) {
            to[i] = (float)((double)from[i] * inv * (double)weight[i]);
        }
    }
}

static void rotate(float *head, const float *rope, uint32_t n_rope)
{
    for (uint32_t i = 0; i < n_rope; i += 2) {
        const double c = (double)rope[i];
        const double s = (double)rope[i + 1];
        const double a = (double)head[i];
        const double b = (double)head[i + 1];
        head[i] = (float)(a * c - b * s);
        head[i + 1] = (float)(a * s + b * c);
    }
}

static void put(const bt_kv_layout *l, void *run, uint32_t element, float x)
{
    if (l->format == BT_KV_FORMAT_F32) {
        ((float *)run)[element] = x;
    } else {
        ((uint16_t *)run)[element] = bt_bf16_round(x);
    }
}

static double get(const bt_kv_layout *l, const void *run, uint32_t element)
{
    return l->format == BT_KV_FORMAT_F32 ? (double)((const float *)run)[element]
                                         : (double)bt_bf16_widen(((const uint16_t *)run)[element]);
}

/* One row's q, k and v. */
static void rope_store_row(const bt_attention_args *args, const bt_kv_span *span, uint32_t pos,
                           float *row)
{
    const bt_kv_layout *l = args->layout;
    const uint32_t head_dim = l->head_dim;
    const uint32_t slot = pos % BT_KV_BLOCK_TOKENS;
    const bt_block_id block = span->blocks[pos / BT_KV_BLOCK_TOKENS];
    for (uint32_t h = 0; h < args->n_heads + l->n_kv_heads; h++) {
        rotate(row + (size_t)h * head_dim, args->rope + (size_t)pos * head_dim, args->n_rope);
    }
    for (uint32_t g = 0; g < l->n_kv_heads; g++) {
        const float *k = row + ((size_t)args->n_heads + g) * head_dim;
        const float *v = k + (size_t)l->n_kv_heads * head_dim;
        for (uint32_t c = 0; c < head_dim; c++) {
            put(l, args->pool + bt_kv_k_offset(l, block, args->layer, g), bt_kv_k_element(slot, c),
                k[c]);
            put(l, args->pool + bt_kv_v_offset(l, block, args->layer, g),
                bt_kv_v_element(head_dim, slot, c), v[c]);
        }
    }
}

static void rope_store(bt_backend *be, const bt_attention_args *args, float *qkv)
{
    (void)be;
    const size_t width =
        ((size_t)args->n_heads + 2 * (size_t)args->layout->n_kv_heads) * args->layout->head_dim;
    for (uint32_t s = 0; s < args->n_spans; s++) {
        const bt_kv_span *span = &args->spans[s];
        for (uint32_t i = 0; i < span->n_rows; i++) {
            rope_store_row(args, span, span->pos_first + i,
                           qkv + (span->row_first + (size_t)i) * width);
        }
    }
}

/* One query vector over positions 0 .. pos. */
static void attend(const reference *ref, const bt_attention_args *args, const bt_kv_span *span,
                   uint32_t kv_head, uint32_t pos, const float *q, float *out)
{
    const bt_kv_layout *l = args->layout;
    double max = -INFINITY;
    for (uint32_t t = 0; t <= pos; t++) {
        const uint8_t *k = args->pool + bt_kv_k_offset(l, span->blocks[t / BT_KV_BLOCK_TOKENS],
                                                       args->layer, kv_head);
        double dot = 0.0;
        for (uint32_t c = 0; c < l->head_dim; c++) {
            dot += (double)q[c] * get(l, k, bt_kv_k_element(t % BT_KV_BLOCK_TOKENS, c));
        }
        ref->scores[t] = dot * (double)args->scale;
        max = fmax(max, ref->scores[t]);
    }
    double sum = 0.0;
    for (uint32_t t = 0; t <= pos; t++) {
        ref->scores[t] = exp(ref->scores[t] - max);
        sum += ref->scores[t];
    }
    for (uint32_t c = 0; c < l->head_dim; c++) {
        double acc = 0.0;
        for (uint32_t t = 0; t <= pos; t++) {
            const uint8_t *v = args->pool + bt_kv_v_offset(l, span->blocks[t / BT_KV_BLOCK_TOKENS],
                                                           args->layer, kv_head);
            acc +=
                ref->scores[t] * get(l, v, bt_kv_v_element(l->head_dim, t % BT_KV_BLOCK_TOKENS, c));
        }
        out[c] = (float)(acc / sum);
    }
}

static void attention(bt_backend *be, const bt_attention_args *args, const float *qkv, float *out)
{
    const bt_kv_layout *l = args->layout;
    const uint32_t group = args->n_heads / l->n_kv_heads;
    const size_t n_vectors = (size_t)args->n_heads + 2 * (size_t)l->n_kv_heads;
    for (uint32_t s = 0; s < args->n_spans; s++) {
        const bt_kv_span *span = &args->spans[s];
        for (uint32_t i = 0; i < span->n_rows; i++) {
            const size_t row = span->row_first + (size_t)i;
            for (uint32_t h = 0; h < args->n_heads; h++) {
                attend(reference_of(be), args, span, h / group, span->pos_first + i,
                       qkv + (row * n_vectors + h) * l->head_dim,
                       out + (row * args->n_heads + h) * l->head_dim);
            }
        }
    }
}

static void silu_mul(bt_backend *be, const float *x, uint32_t n_rows, uint32_t n, float *out)
{
    (void)be;
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *gate = x + (size_t)r * 2 * n;
        for (uint32_t i = 0; i < n; i++) {
            const double g = (double)gate[i];
            out[(size_t)r * n + i] = (float)(g / (1.0 + exp(-g)) * (double)gate[n + i]);
        }
    }
}

static void destroy(bt_backend *be)
{
    if (be == NULL) {
        return;
    }
    reference *ref = reference_of(be);
    bt_team_destroy(ref->team);
    free(ref->scores);
    free(ref);
}

static const bt_backend_ops ops = {
    .matrix_create = matrix_create,
    .matrix_destroy = matrix_destroy,
    .embed = embed,
    .matmul = matmul,
    .rms_norm = rms_norm,
    .rope_store = rope_store,
    .attention = attention,
    .silu_mul = silu_mul,
    .destroy = destroy,
};

bt_status bt_reference_backend_create(const bt_backend_limits *limits, bt_backend **out)
{
    reference *ref = calloc(1, sizeof(*ref));
    if (ref == NULL) {
        return BT_ENOMEM;
    }
    ref->base = (bt_backend){.ops = &ops, .name = "reference", .numerics = "f32-1"};
    ref->scores = calloc(limits->n_positions > 0 ? limits->n_positions : 1, sizeof(double));
    if (ref->scores == NULL || bt_team_create(limits->n_threads, &ref->team) != BT_OK) {
        destroy(&ref->base);
        return BT_ENOMEM;
    }
    *out = &ref->base;
    return BT_OK;
}
