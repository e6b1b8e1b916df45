/* SPDX-License-Identifier: Apache-2.0 */
/* vec_avx512.h - 16 lanes of f32 in one register of AVX-512. See vec.h, which includes it.
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_ENGINE_CPU_VEC_AVX512_H
#define BT_ENGINE_CPU_VEC_AVX512_H

#include <immintrin.h>

#include "common/base.h"

typedef __m512 bt_v16;

BT_INLINE __mmask16 v16_first(uint32_t n)
{
    const uint32_t mask = n >= 16 ? 0xffffU : (1U << n) - 1U;
    return (__mmask16)mask;
}

BT_INLINE bt_v16 bt_v16_zero(void)
{
    return _mm512_setzero_ps();
}

BT_INLINE bt_v16 bt_v16_set1(float x)
{
    return _mm512_set1_ps(x);
}

BT_INLINE bt_v16 bt_v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

/* The first n lanes from memory, zero in the others; nothing past them is touched. */
BT_INLINE bt_v16 bt_v16_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(v16_first(n), p);
}

BT_INLINE void bt_v16_store(float *p, bt_v16 v)
{
    _mm512_storeu_ps(p, v);
}

BT_INLINE void bt_v16_store_n(float *p, bt_v16 v, uint32_t n)
{
    _mm512_mask_storeu_ps(p, v16_first(n), v);
}

BT_INLINE bt_v16 bt_v16_add(bt_v16 a, bt_v16 b)
{
    return _mm512_add_ps(a, b);
}

BT_INLINE bt_v16 bt_v16_sub(bt_v16 a, bt_v16 b)
{
    return _mm512_sub_ps(a, b);
}

BT_INLINE bt_v16 bt_v16_mul(bt_v16 a, bt_v16 b)
{
    return _mm512_mul_ps(a, b);
}

BT_INLINE bt_v16 bt_v16_div(bt_v16 a, bt_v16 b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c */
BT_INLINE bt_v16 bt_v16_fma(bt_v16 a, bt_v16 b, bt_v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* a > b ? a : b; b where either is NaN. */
BT_INLINE bt_v16 bt_v16_max(bt_v16 a, bt_v16 b)
{
    return _mm512_max_ps(a, b);
}

/* a < b ? a : b; b where either is NaN. */
BT_INLINE bt_v16 bt_v16_min(bt_v16 a, bt_v16 b)
{
    return _mm512_min_ps(a, b);
}

/* The first n lanes of a, the others of b. */
BT_INLINE bt_v16 bt_v16_first(bt_v16 a, bt_v16 b, uint32_t n)
{
    return _mm512_mask_mov_ps(b, v16_first(n), a);
}

/* v where !(x < limit) (NaN included), else zero. */
BT_INLINE bt_v16 v16_zero_below(bt_v16 v, bt_v16 x, float limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), v);
}

/* p * 2^n, where the low 8 bits of t's pattern hold n and p * 2^n is normal. */
BT_INLINE bt_v16 v16_add_exponent(bt_v16 p, bt_v16 t)
{
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), n));
}

BT_INLINE void v16_split_bf16(__m512i pairs, bt_v16 *even, bt_v16 *odd)
{
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000U)));
}

/* 16 pairs of bf16: the first of each pair to *even, the second to *odd. */
BT_INLINE void bt_v16_load_bf16_pairs(const uint16_t *p, bt_v16 *even, bt_v16 *odd)
{
    v16_split_bf16(_mm512_loadu_si512(p), even, odd);
}

BT_INLINE void bt_v16_load_bf16_pairs_n(const uint16_t *p, uint32_t n, bt_v16 *even, bt_v16 *odd)
{
    v16_split_bf16(_mm512_maskz_loadu_epi32(v16_first(n), p), even, odd);
}

BT_INLINE void v16_split_f32(bt_v16 a, bt_v16 b, bt_v16 *even, bt_v16 *odd)
{
    const __m512i first =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i second =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    *even = _mm512_permutex2var_ps(a, first, b);
    *odd = _mm512_permutex2var_ps(a, second, b);
}

/* The same for pairs of f32. */
BT_INLINE void bt_v16_load_f32_pairs(const float *p, bt_v16 *even, bt_v16 *odd)
{
    v16_split_f32(_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16), even, odd);
}

BT_INLINE float bt_v16_sum(bt_v16 v)
{
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

BT_INLINE float bt_v16_hmax(bt_v16 v)
{
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

#ifdef BT_VEC_DOT_BF16
/* acc + a pair of bf16 (broadcast) . pairs of bf16, as VDPBF16PS rounds: denormals count as
 * zero. */
BT_INLINE bt_v16 bt_v16_dot_bf16(bt_v16 acc, uint32_t pair, bt_v16 pairs)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32((int)pair), (__m512bh)pairs);
}

/* The first n of 32 f32 to 16 pairs of bf16, to nearest; zero past n. */
BT_INLINE void bt_v16_round_pairs(uint32_t *to, const float *p, uint32_t n)
{
    const __m512 a = bt_v16_load_n(p, n);
    const __m512 b = n > 16 ? bt_v16_load_n(p + 16, n - 16) : _mm512_setzero_ps();
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}
#endif

BT_INLINE void bt_prefetch(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#endif /* BT_ENGINE_CPU_VEC_AVX512_H */
