/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - one instruction set's kernels, as backend.c calls them on each thread.
 *
 * backend.c cuts an operation into parts, gives each part to a thread with scratch memory of its
 * own, and knows nothing of vectors. A kernel computes its part alone. How an operation is
 * cut never changes a bit of the result.
 *
 * Threading: any thread, each with its own scratch. Memory: none.
 */
#ifndef BT_ENGINE_CPU_KERNELS_H
#define BT_ENGINE_CPU_KERNELS_H

#include "engine/backend.h"

/* Weights W [n, k] as panels of 16 outputs: [n_panels][k_pairs][16 outputs][2 inputs] bf16,
 * zero where an output or input does not exist. */
struct bt_matrix {
    uint16_t *panels; /* 64-byte aligned */
    uint32_t n;
    uint32_t k;
    uint32_t n_panels; /* ceil(n / 16) */
    uint32_t k_pairs;  /* ceil(k / 2), rounded up as the kernels ask */
};

/* Outputs of panels panel_first .. panel_end - 1 for n_rows rows. */
typedef struct bt_matmul_part {
    const bt_matrix *matrix;
    const float *x; /* [n_rows, k] */
    float *y;       /* [n_rows, y_stride] */
    uint32_t y_stride;
    uint32_t n_rows;
    uint32_t panel_first;
    uint32_t panel_end;
    bool add;
    void *scratch; /* matmul_scratch_bytes, 64-byte aligned */
} bt_matmul_part;

/* Positions are cut at multiples of BT_SEGMENT_TOKENS; each segment has its own maximum, sum and
 * accumulator; segments are combined in order. Within one, softmax goes on by
 * BT_STEP_TOKENS absolute positions at a time. */
enum {
    BT_STEP_TOKENS = 64,
    BT_SEGMENT_TOKENS = 512,
    BT_QUERIES_MAX = 16, /* most query vectors in a part */
    BT_HEAD_DIM_MAX = 256,
};

/* One segment's result for one query vector, before it is combined. */
typedef struct bt_segment_state {
    float max;
    float sum;
} bt_segment_state;

/* Query vectors query_first .. + n_queries - 1 of one span and one kv head. Vector i is row
 * i / group of the span, head i % group of those that read the kv head. */
typedef struct bt_attention_part {
    const bt_attention_args *args;
    const float *qkv; /* of the step */
    float *out;       /* of the step */
    const bt_kv_span *span;
    uint32_t kv_head;
    uint32_t query_first;
    uint32_t n_queries; /* 1 .. the kernels' n_queries */
    void *scratch;      /* attention_scratch_bytes, 64-byte aligned */
    /* Split over segments, or NULL, 0: only `segment` is computed, into
     * states[query] and accs[query][head_dim]. */
    bt_segment_state *states;
    float *accs;
    uint32_t segment;
} bt_attention_part;

typedef struct bt_cpu_kernels {
    const char *numerics;
    uint32_t k_pairs_step; /* a matrix's k_pairs is a multiple of this */
    uint32_t n_queries;    /* query vectors in an attention part, <= BT_QUERIES_MAX */
    size_t (*attention_scratch_bytes)(void);
    size_t (*matmul_scratch_bytes)(uint32_t k_pairs_max, uint32_t n_rows_max);
    void (*matmul)(const bt_matmul_part *part);
    void (*attention)(const bt_attention_part *part);

    /* Combines n_segments results in order: states[s * stride_states], accs at
     * s * stride_accs, into out[0 .. head_dim - 1]. */
    void (*attention_combine)(const bt_segment_state *states, size_t stride_states,
                              const float *accs, size_t stride_accs, uint32_t n_segments,
                              uint32_t head_dim, float *out);

    /* Rows row_first .. row_end - 1 of the operations in backend.h. */
    void (*rms_norm)(const float *x, const float *weight, float eps, uint32_t row_first,
                     uint32_t row_end, uint32_t dim, float *out);
    void (*silu_mul)(const float *x, uint32_t row_first, uint32_t row_end, uint32_t n, float *out);

    /* Rows first .. end - 1 of one span (counted in the span). */
    void (*rope_store)(const bt_attention_args *args, const bt_kv_span *span, uint32_t first,
                       uint32_t end, float *qkv);
} bt_cpu_kernels;

/* Each compiled from the same sources for its instruction set. */
const bt_cpu_kernels *bt_cpu_kernels_portable(void);
const bt_cpu_kernels *bt_cpu_kernels_avx2(void);
const bt_cpu_kernels *bt_cpu_kernels_avx512(void);
const bt_cpu_kernels *bt_cpu_kernels_avx512bf16(void);
const bt_cpu_kernels *bt_cpu_kernels_amx(void);

#endif /* BT_ENGINE_CPU_KERNELS_H */
