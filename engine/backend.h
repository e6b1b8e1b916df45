/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h - operations of one forward step on one kind of hardware.
 *
 * Model code above (engine/model.c) is shared; a backend is a table of operations with
 * the memory and threads they need. engine/cpu/reference.c (plain loops, f32) is the
 * definition of a right result; every other backend is compared with it.
 *
 * Batch invariance (DESIGN.md, section 1) is part of each contract: a row's result has
 * the same bits whatever other rows are in the call, however rows are split over calls
 * and however many threads work. Each sum runs in one order that depends on shapes and
 * absolute positions alone.
 *
 * Numbers: activations are f32 between operations. Matrices are bf16 panels (f32 in the
 * reference); accumulators are f32. K and V are rounded to the pool's format when stored,
 * before any attention reads them. NaN in slots at or past a sequence's end is never read.
 *
 * Threading: one thread (the engine's) calls; operations spread over the backend's own
 *            helper threads and return when all is done.
 * Memory:    create and matrix packing only.
 */
#ifndef BT_ENGINE_BACKEND_H
#define BT_ENGINE_BACKEND_H

#include "common/status.h"
#include "engine/kv_layout.h"

typedef struct bt_backend bt_backend;

/* A weight matrix, packed once: y = W x, W is [n, k]. Owned by the backend. */
typedef struct bt_matrix bt_matrix;

/* Fills dst[0..k-1] with row `row` of a weight matrix in f32. Any thread. */
typedef void (*bt_row_fn)(void *ctx, uint32_t row, float *dst);

/* The rows of one sequence in a step: positions pos_first .. pos_first + n_rows - 1. Its
 * block table covers positions 0 .. pos_first + n_rows - 1. */
typedef struct bt_kv_span {
    const bt_block_id *blocks; /* [ceil((pos_first + n_rows) / 16)] */
    uint32_t row_first;        /* index of its first row in the step */
    uint32_t n_rows;           /* at least 1 */
    uint32_t pos_first;
} bt_kv_span;

typedef struct bt_attention_args {
    const bt_kv_layout *layout;
    uint8_t *pool; /* base of the pool, 64-byte aligned */
    uint32_t layer;
    uint32_t n_heads;       /* query heads, a multiple of layout->n_kv_heads */
    float scale;            /* scores are q.k * scale; usually 1/sqrt(head_dim) */
    const float *rope;      /* [positions][head_dim / 2][2]: cos, sin; pairs (2i, 2i + 1).
                             * Rotated dims beyond n_rope pass unchanged. */
    uint32_t n_rope;        /* even, <= head_dim */
    const bt_kv_span *spans; /* [n_spans], rows ascending, without gaps */
    uint32_t n_spans;
    uint32_t n_rows; /* sum over spans */
} bt_attention_args;

typedef struct bt_backend_ops {
    /* Packs an [n, k] matrix; rows come from row_fn (called from several threads).
     * BT_ENOMEM. */
    BT_MUST_CHECK bt_status (*matrix_create)(bt_backend *be, uint32_t n, uint32_t k,
                                             bt_row_fn row_fn, void *ctx, bt_matrix **out);
    void (*matrix_destroy)(bt_backend *be, bt_matrix *matrix);

    /* out[r][0..k-1] = row tokens[r] of the matrix, in f32. out is [n_rows, k]. */
    void (*embed)(bt_backend *be, const bt_matrix *matrix, const int32_t *tokens, uint32_t n_rows,
                  float *out);

    /* y[r][j] = (add ? y[r][j] : 0) + sum_i W[j][i] x[r][i]; the sum is formed first, then
     * added. x is [n_rows, k], y is [n_rows, y_stride], y_stride >= n, no aliasing. */
    void (*matmul)(bt_backend *be, const bt_matrix *matrix, const float *x, uint32_t n_rows,
                   float *y, uint32_t y_stride, bool add);

    /* out[r][i] = x[r][i] / sqrt(mean(x[r]^2) + eps) * weight[i]; [n_rows, dim]; may alias. */
    void (*rms_norm)(bt_backend *be, const float *x, const float *weight, float eps,
                     uint32_t n_rows, uint32_t dim, float *out);

    /* RoPE (Su et al., RoFormer, section 3.4.2; interleaved pairs) on q in place and on k,
     * then stores k and v, rounded to nearest even, into the blocks of each row's position.
     * qkv is [n_rows, (n_heads + 2 n_kv_heads) * head_dim]: q heads, k heads, v heads. */
    void (*rope_store)(bt_backend *be, const bt_attention_args *args, float *qkv);

    /* Causal attention of each row over positions 0 .. its own, from the pool (its own K and V
     * have been stored before). q comes from qkv (see rope_store); head h reads kv head
     * h / (n_heads / n_kv_heads). out is [n_rows, n_heads * head_dim]. Online softmax (Milakov &
     * Gimelshein 2018) over fixed steps of positions, combined in order. */
    void (*attention)(bt_backend *be, const bt_attention_args *args, const float *qkv, float *out);

    /* out[r][i] = silu(x[r][i]) * x[r][n + i], x is [n_rows, 2 n] (gate, up), out [n_rows, n]. */
    void (*silu_mul)(bt_backend *be, const float *x, uint32_t n_rows, uint32_t n, float *out);

    void (*destroy)(bt_backend *be);
} bt_backend_ops;

struct bt_backend {
    const bt_backend_ops *ops;
    const char *name;     /* kernel path: "avx512-bf16", "avx512", "avx2", "portable", "reference" */
    const char *numerics; /* class of equal bits: paths that share it give the same results */
};

/* What a backend must be able to hold, known before it is made. */
typedef struct bt_backend_limits {
    uint32_t n_threads; /* helper threads included, at least 1 */
    uint32_t n_rows;    /* largest step */
    uint32_t n_spans;   /* most sequences in a step */
    uint32_t k;         /* largest inner dimension of a matrix */
    uint32_t n_heads;
    uint32_t head_dim;
    uint32_t n_positions; /* longest sequence */
} bt_backend_limits;

/* Makes the CPU backend `path`; "auto" chooses by CPU model (DESIGN.md, section 11).
 * BT_EUNSUPPORTED: this CPU lacks what the path needs (the text says what, and which paths
 * there are). BT_EINVAL: no such path. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_cpu_backend_create(const char *path, const bt_backend_limits *limits,
                                              bt_backend **out, bt_error *err);

/* Names of the paths that this CPU can run, "reference" last; returns how many (<= max). */
size_t bt_cpu_backend_paths(const char **names, size_t max);

#endif /* BT_ENGINE_BACKEND_H */
