/* SPDX-License-Identifier: Apache-2.0 */
/* attention_fma.h - scores and p V in f32 register tiles; part of attention.c.
 *
 * p V runs over exactly the tokens that a query sees: the pairs of tokens that the whole tile sees
 * in a register tile, the few after them query by query.
 *
 * Threading: any thread, each with its own scratch. Memory: none.
 */
#ifndef BT_ENGINE_CPU_ATTENTION_FMA_H
#define BT_ENGINE_CPU_ATTENTION_FMA_H

#include "engine/cpu/attention_int.h"

/* s[r][16 p ..] = q . K for `panels` blocks. */
BT_INLINE void scores_run(const uint32_t rows, const uint32_t panels, const bt_kv_format format,
                          scratch *sc, uint32_t block, uint32_t head_dim)
{
    bt_v16 acc[12][4];
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            acc[r][p] = bt_v16_zero();
        }
    }
    const float *q = sc->q[0];
    const void *runs[4];
#pragma GCC unroll 4
    for (uint32_t p = 0; p < panels; p++) {
        runs[p] = sc->k_runs[block + p];
    }
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        bt_v16 even[4];
        bt_v16 odd[4];
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            tile_load_pairs(format, runs[p], (size_t)i * 32, &even[p], &odd[p]);
        }
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            const bt_v16 b = bt_v16_set1(q[r * BT_HEAD_DIM_MAX]);
#pragma GCC unroll 4
            for (uint32_t p = 0; p < panels; p++) {
                acc[r][p] = bt_v16_fma(b, even[p], acc[r][p]);
            }
        }
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            const bt_v16 b = bt_v16_set1(q[r * BT_HEAD_DIM_MAX + 1]);
#pragma GCC unroll 4
            for (uint32_t p = 0; p < panels; p++) {
                acc[r][p] = bt_v16_fma(b, odd[p], acc[r][p]);
            }
        }
        q += 2;
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            bt_v16_store(&sc->s[r][(block + p) * 16], acc[r][p]);
        }
    }
}

/* o = o c + p V for channels channel .. + 16 panels - 1 over n_tokens (even) of the step. With
 * n_lanes < 16 there is one panel, and only that many channels of it exist. */
BT_INLINE void values_run(const uint32_t rows, const uint32_t panels, const bt_kv_format format,
                          const bool tail, scratch *sc, uint32_t channel, uint32_t head_dim,
                          uint32_t n_tokens)
{
    bt_v16 acc[12][4];
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
        const bt_v16 c = bt_v16_set1(sc->rescale[r]);
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            acc[r][p] = bt_v16_mul(bt_v16_load(&sc->o[r][channel + p * 16]), c);
        }
    }
    for (uint32_t t = 0; t < n_tokens; t += 2) {
        const void *run = sc->v_runs[t / BT_KV_BLOCK_TOKENS];
        const size_t at = bt_kv_v_element(head_dim, t % BT_KV_BLOCK_TOKENS, channel);
        bt_v16 even[4];
        bt_v16 odd[4];
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            if (tail) {
                tile_load_pairs_n(format, run, at, head_dim - channel, &even[p], &odd[p]);
            } else {
                tile_load_pairs(format, run, at + (size_t)p * 32, &even[p], &odd[p]);
            }
        }
        const float *prob = &sc->s[0][t];
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            const bt_v16 b = bt_v16_set1(prob[r * BT_STEP_TOKENS]);
#pragma GCC unroll 4
            for (uint32_t p = 0; p < panels; p++) {
                acc[r][p] = bt_v16_fma(b, even[p], acc[r][p]);
            }
        }
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            const bt_v16 b = bt_v16_set1(prob[r * BT_STEP_TOKENS + 1]);
#pragma GCC unroll 4
            for (uint32_t p = 0; p < panels; p++) {
                acc[r][p] = bt_v16_fma(b, odd[p], acc[r][p]);
            }
        }
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            bt_v16_store(&sc->o[r][channel + p * 16], acc[r][p]);
        }
    }
}

/* The tokens after the tile's common ones, for one query: first .. end - 1, first even. */
BT_INLINE void values_rest(const bt_kv_format format, scratch *sc, uint32_t r, uint32_t head_dim,
                           uint32_t first, uint32_t end)
{
    for (uint32_t channel = 0; channel < head_dim; channel += 16) {
        bt_v16 acc = bt_v16_load(&sc->o[r][channel]);
        for (uint32_t t = first; t < end; t += 2) {
            const void *run = sc->v_runs[t / BT_KV_BLOCK_TOKENS];
            const size_t at = bt_kv_v_element(head_dim, t % BT_KV_BLOCK_TOKENS, channel);
            bt_v16 even;
            bt_v16 odd;
            tile_load_pairs_n(format, run, at, head_dim - channel, &even, &odd);
            acc = bt_v16_fma(bt_v16_set1(sc->s[r][t]), even, acc);
            if (t + 1 < end) {
                acc = bt_v16_fma(bt_v16_set1(sc->s[r][t + 1]), odd, acc);
            }
        }
        bt_v16_store(&sc->o[r][channel], acc);
    }
}

/* All blocks of the step with the tile's shape, the last ones one by one. */
BT_INLINE void scores_all(const uint32_t rows, const uint32_t panels, const bt_kv_format format,
                          scratch *sc, uint32_t head_dim, uint32_t n_blocks)
{
    uint32_t b = 0;
    for (; b + panels <= n_blocks; b += panels) {
        scores_run(rows, panels, format, sc, b, head_dim);
    }
    for (; panels > 1 && b < n_blocks; b++) {
        scores_run(rows, 1, format, sc, b, head_dim);
    }
}

BT_INLINE void values_all(const uint32_t rows, const uint32_t panels, const bt_kv_format format,
                          scratch *sc, uint32_t head_dim, uint32_t n_queries)
{
    const uint32_t n_common = sc->n_seen[0] & ~1U; /* the first query sees least */
    uint32_t c = 0;
    for (; c + 16 * panels <= head_dim; c += 16 * panels) {
        values_run(rows, panels, format, false, sc, c, head_dim, n_common);
    }
    for (; panels > 1 && c + 16 <= head_dim; c += 16) {
        values_run(rows, 1, format, false, sc, c, head_dim, n_common);
    }
    if (c < head_dim) {
        values_run(rows, 1, format, true, sc, c, head_dim, n_common);
    }
    for (uint32_t r = 0; r < n_queries; r++) {
        if (sc->n_seen[r] > n_common) {
            values_rest(format, sc, r, head_dim, n_common, sc->n_seen[r]);
        }
    }
}

#define PANELS_OF(panels) ((panels) > 4 ? 4 : (panels))

#define TILE_FNS(rows, panels)                                                                     \
    static void scores_bf16_##rows(scratch *sc, uint32_t head_dim, uint32_t n_blocks)              \
    {                                                                                              \
        scores_all(rows, PANELS_OF(panels), BT_KV_FORMAT_BF16, sc, head_dim, n_blocks);            \
    }                                                                                              \
    static void scores_f32_##rows(scratch *sc, uint32_t head_dim, uint32_t n_blocks)               \
    {                                                                                              \
        scores_all(rows, PANELS_OF(panels), BT_KV_FORMAT_F32, sc, head_dim, n_blocks);             \
    }                                                                                              \
    static void values_bf16_##rows(scratch *sc, uint32_t head_dim, uint32_t n_queries)             \
    {                                                                                              \
        values_all(rows, PANELS_OF(panels), BT_KV_FORMAT_BF16, sc, head_dim, n_queries);           \
    }                                                                                              \
    static void values_f32_##rows(scratch *sc, uint32_t head_dim, uint32_t n_queries)              \
    {                                                                                              \
        values_all(rows, PANELS_OF(panels), BT_KV_FORMAT_F32, sc, head_dim, n_queries);            \
    }
BT_TILE_SHAPES(TILE_FNS)
#undef TILE_FNS

static void load_q_fma(scratch *sc, uint32_t r, const float *q, float scale, uint32_t head_dim)
{
    if (q == NULL) {
        memset(sc->q[r], 0, sizeof(sc->q[r]));
        return;
    }
    const bt_v16 s = bt_v16_set1(scale);
    for (uint32_t c = 0; c < head_dim; c += 16) {
        bt_v16_store(&sc->q[r][c], bt_v16_mul(bt_v16_load_n(q + c, head_dim - c), s));
    }
}

static const tile_fns tiles_bf16[] = {
#define TILE_ENTRY(rows, panels)                                                                   \
    {rows, false, NULL, load_q_fma, scores_bf16_##rows, values_bf16_##rows, NULL},
    BT_TILE_SHAPES(TILE_ENTRY)
#undef TILE_ENTRY
};

static const tile_fns tiles_f32[] = {
#define TILE_ENTRY(rows, panels)                                                                   \
    {rows, false, NULL, load_q_fma, scores_f32_##rows, values_f32_##rows, NULL},
    BT_TILE_SHAPES(TILE_ENTRY)
#undef TILE_ENTRY
};

#endif /* BT_ENGINE_CPU_ATTENTION_FMA_H */
