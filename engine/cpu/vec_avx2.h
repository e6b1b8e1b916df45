/* SPDX-License-Identifier: Apache-2.0 */
/* vec_avx2.h - 16 lanes of f32 in two registers of AVX2, with FMA. See vec.h, which includes it.
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_ENGINE_CPU_VEC_AVX2_H
#define BT_ENGINE_CPU_VEC_AVX2_H

#include <immintrin.h>

#include "common/base.h"

typedef struct bt_v16 {
    __m256 lo; /* lanes 0-7 */
    __m256 hi; /* lanes 8-15 */
} bt_v16;

/* Lane i of the result is all ones where first + i < n. */
BT_INLINE __m256i v16_first(uint32_t first, uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n - (int)first), lane);
}

BT_INLINE bt_v16 bt_v16_zero(void)
{
    return (bt_v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

BT_INLINE bt_v16 bt_v16_set1(float x)
{
    return (bt_v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

BT_INLINE bt_v16 bt_v16_load(const float *p)
{
    return (bt_v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

BT_INLINE bt_v16 bt_v16_load_n(const float *p, uint32_t n)
{
    const uint32_t n_hi = n > 8 ? n : 8;
    return (bt_v16){_mm256_maskload_ps(p, v16_first(0, n)),
                    n_hi == 8 ? _mm256_setzero_ps() : _mm256_maskload_ps(p + 8, v16_first(8, n))};
}

BT_INLINE void bt_v16_store(float *p, bt_v16 v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

BT_INLINE void bt_v16_store_n(float *p, bt_v16 v, uint32_t n)
{
    _mm256_maskstore_ps(p, v16_first(0, n), v.lo);
    if (n > 8) {
        _mm256_maskstore_ps(p + 8, v16_first(8, n), v.hi);
    }
}

BT_INLINE bt_v16 bt_v16_add(bt_v16 a, bt_v16 b)
{
    return (bt_v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

BT_INLINE bt_v16 bt_v16_sub(bt_v16 a, bt_v16 b)
{
    return (bt_v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

BT_INLINE bt_v16 bt_v16_mul(bt_v16 a, bt_v16 b)
{
    return (bt_v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

BT_INLINE bt_v16 bt_v16_div(bt_v16 a, bt_v16 b)
{
    return (bt_v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

BT_INLINE bt_v16 bt_v16_fma(bt_v16 a, bt_v16 b, bt_v16 c)
{
    return (bt_v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

BT_INLINE bt_v16 bt_v16_max(bt_v16 a, bt_v16 b)
{
    return (bt_v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

BT_INLINE bt_v16 bt_v16_min(bt_v16 a, bt_v16 b)
{
    return (bt_v16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

BT_INLINE bt_v16 bt_v16_first(bt_v16 a, bt_v16 b, uint32_t n)
{
    return (bt_v16){_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(v16_first(0, n))),
                    _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(v16_first(8, n)))};
}

BT_INLINE bt_v16 v16_zero_below(bt_v16 v, bt_v16 x, float limit)
{
    const __m256 l = _mm256_set1_ps(limit);
    return (bt_v16){_mm256_and_ps(v.lo, _mm256_cmp_ps(x.lo, l, _CMP_NLT_UQ)),
                    _mm256_and_ps(v.hi, _mm256_cmp_ps(x.hi, l, _CMP_NLT_UQ))};
}

BT_INLINE __m256 v8_add_exponent(__m256 p, __m256 t)
{
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}

BT_INLINE bt_v16 v16_add_exponent(bt_v16 p, bt_v16 t)
{
    return (bt_v16){v8_add_exponent(p.lo, t.lo), v8_add_exponent(p.hi, t.hi)};
}

BT_INLINE void v16_split_bf16(__m256i lo, __m256i hi, bt_v16 *even, bt_v16 *odd)
{
    const __m256i mask = _mm256_set1_epi32((int)0xffff0000U);
    even->lo = _mm256_castsi256_ps(_mm256_slli_epi32(lo, 16));
    even->hi = _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16));
    odd->lo = _mm256_castsi256_ps(_mm256_and_si256(lo, mask));
    odd->hi = _mm256_castsi256_ps(_mm256_and_si256(hi, mask));
}

BT_INLINE void bt_v16_load_bf16_pairs(const uint16_t *p, bt_v16 *even, bt_v16 *odd)
{
    v16_split_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p),
                   _mm256_loadu_si256((const __m256i *)(const void *)(p + 16)), even, odd);
}

BT_INLINE void bt_v16_load_bf16_pairs_n(const uint16_t *p, uint32_t n, bt_v16 *even, bt_v16 *odd)
{
    const __m256i lo = _mm256_maskload_epi32((const int *)(const void *)p, v16_first(0, n));
    const __m256i hi =
        n > 8 ? _mm256_maskload_epi32((const int *)(const void *)(p + 16), v16_first(8, n))
              : _mm256_setzero_si256();
    v16_split_bf16(lo, hi, even, odd);
}

/* Eight pairs in a (0-3) and b (4-7): firsts and seconds in order. */
BT_INLINE void v8_split_f32(__m256 a, __m256 b, __m256 *even, __m256 *odd)
{
    const __m256 e = _mm256_shuffle_ps(a, b, 0x88); /* a0 a2 b0 b2 | a4 a6 b4 b6 */
    const __m256 o = _mm256_shuffle_ps(a, b, 0xdd);
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(e), 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(o), 0xd8));
}

BT_INLINE void bt_v16_load_f32_pairs(const float *p, bt_v16 *even, bt_v16 *odd)
{
    v8_split_f32(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), &even->lo, &odd->lo);
    v8_split_f32(_mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24), &even->hi, &odd->hi);
}

BT_INLINE float bt_v16_sum(bt_v16 v)
{
    const __m256 a = _mm256_add_ps(v.lo, v.hi);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

BT_INLINE float bt_v16_hmax(bt_v16 v)
{
    const __m256 a = _mm256_max_ps(v.lo, v.hi);
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

BT_INLINE void bt_prefetch(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#endif /* BT_ENGINE_CPU_VEC_AVX2_H */
