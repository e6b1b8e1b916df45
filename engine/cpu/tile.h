/* SPDX-License-Identifier: Apache-2.0 */
/* tile.h - the register tile that all products run on: matrices, scores, and P V.
 *
 *   acc[r][p] += x[r] (broadcast) * w[p] (16 outputs), over pairs of inputs in ascending order
 *
 * Each output has one accumulator and takes its products in the order of the inputs, one
 * fma each, so neither the shape of the tile nor the number of rows can show in the result.
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_ENGINE_CPU_TILE_H
#define BT_ENGINE_CPU_TILE_H

#include "engine/cpu/vec.h"
#include "engine/kv_layout.h"

/* Tile shapes by the registers there are: BT_TILE_SHAPES(X) lists X(rows, panels), rows
 * ascending. AVX-512 has 32 registers: 24 accumulators, 2 panels of widened weights, one
 * broadcast. AVX2 has room for 6 accumulators of two registers each. A tile of few
 * rows takes many panels, so that as many sums are in flight as the latency of fma asks. */
#ifdef BT_VEC_AVX512
#define BT_TILE_SHAPES(X) X(1, 8) X(2, 8) X(3, 4) X(4, 4) X(6, 4) X(8, 2) X(12, 2)
enum { BT_TILE_ROWS = 12 };
#else
#define BT_TILE_SHAPES(X) X(1, 4) X(2, 2) X(3, 2) X(4, 1) X(6, 1)
enum { BT_TILE_ROWS = 6 };
#endif

/* Loads 16 pairs of weights of `format`; constant after inlining. */
BT_INLINE void tile_load_pairs(bt_kv_format format, const void *base, size_t element, bt_v16 *even,
                               bt_v16 *odd)
{
    if (format == BT_KV_FORMAT_F32) {
        bt_v16_load_f32_pairs((const float *)base + element, even, odd);
    } else {
        bt_v16_load_bf16_pairs((const uint16_t *)base + element, even, odd);
    }
}

BT_INLINE void tile_load_pairs_n(bt_kv_format format, const void *base, size_t element, uint32_t n,
                                 bt_v16 *even, bt_v16 *odd)
{
    if (format == BT_KV_FORMAT_F32) {
        bt_v16_load_f32_pairs_n((const float *)base + element, n, even, odd);
    } else {
        bt_v16_load_bf16_pairs_n((const uint16_t *)base + element, n, even, odd);
    }
}

/* The tile whose shape holds n_rows rows: the smallest of BT_TILE_SHAPES. */
static inline uint32_t tile_rows_for(uint32_t n_rows)
{
#define TILE_ROWS_CASE(rows, panels)                                                               \
    if (n_rows <= (rows)) {                                                                        \
        return (rows);                                                                             \
    }
    BT_TILE_SHAPES(TILE_ROWS_CASE)
#undef TILE_ROWS_CASE
    return BT_TILE_ROWS;
}

#endif /* BT_ENGINE_CPU_TILE_H */
