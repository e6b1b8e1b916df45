/* SPDX-License-Identifier: Apache-2.0 */
/* The table of one instruction set's kernels, compiled once for each (BT_ISA). */
#include "engine/cpu/isa.h"
#include "engine/cpu/tile.h"

static const bt_cpu_kernels table = {
#if defined(BT_VEC_AMX)
    .numerics = "bf16-amx-1",
    .k_pairs_step = 16, /* a tile */
    .n_queries = 16,
#elif defined(BT_VEC_DOT_BF16)
    .numerics = "bf16-dot-1",
    .k_pairs_step = 1,
    .n_queries = BT_TILE_ROWS,
#elif defined(BT_VEC_PORTABLE)
    .numerics = "muladd-1",
    .k_pairs_step = 1,
    .n_queries = BT_TILE_ROWS,
#else
    .numerics = "fma-1",
    .k_pairs_step = 1,
    .n_queries = BT_TILE_ROWS,
#endif
    .attention_scratch_bytes = BT_K(attention_scratch_bytes),
    .matmul_scratch_bytes = BT_K(matmul_scratch_bytes),
    .matmul = BT_K(matmul),
    .attention = BT_K(attention),
    .attention_combine = BT_K(attention_combine),
    .rms_norm = BT_K(rms_norm),
    .silu_mul = BT_K(silu_mul),
    .rope_store = BT_K(rope_store),
};

const bt_cpu_kernels *BT_K(kernels)(void)
{
    return &table;
}
