/* SPDX-License-Identifier: Apache-2.0 */
/* amx.h - AMX tiles with bf16 products (Intel Architecture Instruction Set Extensions,
 * "Intel AMX"): TDPBF16PS adds, to each f32 of a tile of up to 16 rows x 16 columns, up to 32
 * products.
 *
 * A row of the result depends on that row of the left operand alone, and on the inner
 * length of the tile; the instruction fixes the order of its sums. Denormal inputs count as
 * zero and denormal results become zero; products round to nearest.
 *
 * The compiler's intrinsics do not say that tile loads read memory, hence these.
 *
 * Threading: any thread; tiles are registers. Memory: none.
 */
#ifndef BT_ENGINE_CPU_AMX_H
#define BT_ENGINE_CPU_AMX_H

#include <immintrin.h>

#include "common/base.h"

/* What LDTILECFG reads. Zeroed entries are tiles that are not used. */
typedef struct bt_tile_config {
    uint8_t palette; /* 1 */
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} bt_tile_config;

_Static_assert(sizeof(bt_tile_config) == 64, "as the processor reads it");

BT_INLINE void bt_tile_configure(const bt_tile_config *config)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*config) : "memory");
}

/* Gives the tiles back, so that a switch of threads saves nothing. */
BT_INLINE void bt_tile_release(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

/* t: a number. */
#define BT_TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : : :)
#define BT_TILE_LOAD(t, base, stride_bytes)                                                        \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                                               \
                     :                                                                             \
                     : "r"((const void *)(base)), "r"((size_t)(stride_bytes))                      \
                     : "memory")
#define BT_TILE_STORE(t, base, stride_bytes)                                                       \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                           \
                     :                                                                             \
                     : "r"((void *)(base)), "r"((size_t)(stride_bytes))                            \
                     : "memory")
/* c += a b */
#define BT_TILE_DP(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : :)

/* 32 f32 (a first) to bf16, to nearest; denormals become zero. */
BT_INLINE void bt_bf16_round32(uint16_t *to, __m512 a, __m512 b)
{
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

#endif /* BT_ENGINE_CPU_AMX_H */
