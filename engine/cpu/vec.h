/* SPDX-License-Identifier: Apache-2.0 */
/* vec.h - 16 lanes of f32, the one vector type that the CPU kernels are written in.
 *
 * The same source is compiled once for each instruction set: AVX-512 (one register), AVX2 with
 * FMA (two registers) and portable (arrays). All operations are lane-wise and correctly rounded,
 * and horizontal sums follow one fixed tree, so that AVX-512 and AVX2 give the same bits. Portable
 * differs in one thing: its bt_v16_fma rounds twice.
 *
 *   zero set1                           the same number in all lanes
 *   load store, load_n store_n          16 lanes; the first n, zero in the others, nothing else
 * touched load_{bf16,f32}_pairs, .._n         16 (n) pairs: the first of each to *even, the second
 * to *odd add sub mul div, fma(a, b, c)       a * b + c max(a, b), min(a, b)                b where
 * either is NaN first(a, b, n)                      the first n lanes of a, the others of b sum
 * hmax exp                        the lanes' sum, their maximum; exp of each
 *
 * Denormal numbers are kept (no flush to zero), except that bt_v16_exp never makes one.
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_ENGINE_CPU_VEC_H
#define BT_ENGINE_CPU_VEC_H

#include <math.h>
#include <string.h>

#include "common/base.h"

#if defined(__AVX512F__)
#define BT_VEC_AVX512 1
#if defined(__AMX_BF16__)
#define BT_VEC_AMX 1 /* and tiles (amx.h) */
#elif defined(__AVX512BF16__)
#define BT_VEC_DOT_BF16 1 /* matrix products by dot products of bf16 pairs */
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#define BT_VEC_AVX2 1
#else
#define BT_VEC_PORTABLE 1
#endif

enum { BT_V16_LANES = 16 };

#if defined(BT_VEC_AVX512)
#include "engine/cpu/vec_avx512.h"
#elif defined(BT_VEC_AVX2)
#include "engine/cpu/vec_avx2.h"
#else
#include "engine/cpu/vec_portable.h"
#endif

/* As bt_v16_load_f32_pairs for n pairs; nothing past them is touched. */
BT_INLINE void bt_v16_load_f32_pairs_n(const float *p, uint32_t n, bt_v16 *even, bt_v16 *odd)
{
    float pairs[32] = {0.0F};
    memcpy(pairs, p, (n < 16 ? n : 16) * 2 * sizeof(float));
    bt_v16_load_f32_pairs(pairs, even, odd);
}

/* exp(x). Error at most 1.1 ulp (tested) for -87.3 <= x <= 88; zero below (so no result is a
 * denormal), exp(88) above, NaN for NaN; exp(0) is exactly 1.
 * x = n ln2 + r, |r| <= ln2 / 2; exp(r) = 1 + r + r^2 g(r), g by interpolation at Chebyshev
 * nodes; ln2 is split in two so that n * ln2_hi is exact and r has no error that counts. */
BT_INLINE bt_v16 bt_v16_exp(bt_v16 x)
{
    const bt_v16 shift = bt_v16_set1(0x1.8p23F); /* adding it rounds to an integer */
    const bt_v16 c = bt_v16_min(bt_v16_set1(88.0F), x);
    const bt_v16 t = bt_v16_add(bt_v16_mul(c, bt_v16_set1(0x1.715476p0F)), shift);
    const bt_v16 n = bt_v16_sub(t, shift);
    bt_v16 r = bt_v16_fma(n, bt_v16_set1(-0x1.63p-1F), c); /* 355 / 512 */
    r = bt_v16_fma(n, bt_v16_set1(0x1.bd0106p-13F), r);    /* 355 / 512 - ln2 */
    bt_v16 g = bt_v16_set1(0x1.6d117cp-10F);
    g = bt_v16_fma(g, r, bt_v16_set1(0x1.120be2p-7F));
    g = bt_v16_fma(g, r, bt_v16_set1(0x1.555518p-5F));
    g = bt_v16_fma(g, r, bt_v16_set1(0x1.5554dcp-3F));
    g = bt_v16_fma(g, r, bt_v16_set1(0.5F));
    g = bt_v16_fma(bt_v16_mul(r, r), g, r);
    const bt_v16 p = bt_v16_add(g, bt_v16_set1(1.0F));
    return v16_zero_below(v16_add_exponent(p, t), x, -87.3F);
}

#endif /* BT_ENGINE_CPU_VEC_H */
