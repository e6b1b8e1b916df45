/* SPDX-License-Identifier: Apache-2.0 */
/* vec.h - 16 lanes of f32, the one vector type that the CPU kernels are written in.
 *
 * The same source is compiled once for each instruction set: AVX-512 (one register), AVX2 with
 * FMA (two registers) and portable (the compiler's vector type). All operations are lane-wise and
 * correctly rounded, and horizontal sums follow one fixed tree, so that AVX-512 and AVX2
 * give the same bits. They differ from portable in one thing: bt_v16_fma rounds once there and
 * twice here.
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

#ifndef BT_VEC_PORTABLE
#include <immintrin.h>
#endif

enum { BT_V16_LANES = 16 };

/* ---- AVX-512 ------------------------------------------------------------------------- */
#ifdef BT_VEC_AVX512

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
#endif /* BT_VEC_AVX512 */

/* ---- AVX2 + FMA ---------------------------------------------------------------------- */
#ifdef BT_VEC_AVX2

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
#endif /* BT_VEC_AVX2 */

/* ---- portable ------------------------------------------------------------------------ */
#ifdef BT_VEC_PORTABLE

typedef struct bt_v16 {
    float f[16];
} bt_v16;

BT_INLINE bt_v16 bt_v16_set1(float x)
{
    bt_v16 r;
    for (uint32_t i = 0; i < 16; i++) {
        r.f[i] = x;
    }
    return r;
}

BT_INLINE bt_v16 bt_v16_zero(void)
{
    return bt_v16_set1(0.0F);
}

BT_INLINE bt_v16 bt_v16_load(const float *p)
{
    bt_v16 r;
    memcpy(r.f, p, sizeof(r.f));
    return r;
}

BT_INLINE bt_v16 bt_v16_load_n(const float *p, uint32_t n)
{
    bt_v16 r = bt_v16_zero();
    memcpy(r.f, p, (n < 16 ? n : 16) * sizeof(float));
    return r;
}

BT_INLINE void bt_v16_store(float *p, bt_v16 v)
{
    memcpy(p, v.f, sizeof(v.f));
}

BT_INLINE void bt_v16_store_n(float *p, bt_v16 v, uint32_t n)
{
    memcpy(p, v.f, (n < 16 ? n : 16) * sizeof(float));
}

BT_INLINE bt_v16 bt_v16_add(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] += b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_sub(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] -= b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_mul(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] *= b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_div(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] /= b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_fma(bt_v16 a, bt_v16 b, bt_v16 c)
{
    for (uint32_t i = 0; i < 16; i++) {
        c.f[i] = a.f[i] * b.f[i] + c.f[i];
    }
    return c;
}

BT_INLINE bt_v16 bt_v16_max(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_min(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] = a.f[i] < b.f[i] ? a.f[i] : b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_first(bt_v16 a, bt_v16 b, uint32_t n)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] = i < n ? a.f[i] : b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 v16_zero_below(bt_v16 v, bt_v16 x, float limit)
{
    for (uint32_t i = 0; i < 16; i++) {
        v.f[i] = x.f[i] < limit ? 0.0F : v.f[i];
    }
    return v;
}

BT_INLINE bt_v16 v16_add_exponent(bt_v16 p, bt_v16 t)
{
    uint32_t a[16];
    uint32_t n[16];
    memcpy(a, p.f, sizeof(a));
    memcpy(n, t.f, sizeof(n));
    for (uint32_t i = 0; i < 16; i++) {
        a[i] += n[i] << 23;
    }
    memcpy(p.f, a, sizeof(a));
    return p;
}

BT_INLINE void bt_v16_load_bf16_pairs_n(const uint16_t *p, uint32_t n, bt_v16 *even, bt_v16 *odd)
{
    uint32_t e[16];
    uint32_t o[16];
    for (uint32_t i = 0; i < 16; i++) {
        e[i] = i < n ? (uint32_t)p[2 * i] << 16 : 0;
        o[i] = i < n ? (uint32_t)p[2 * i + 1] << 16 : 0;
    }
    memcpy(even->f, e, sizeof(e));
    memcpy(odd->f, o, sizeof(o));
}

BT_INLINE void bt_v16_load_bf16_pairs(const uint16_t *p, bt_v16 *even, bt_v16 *odd)
{
    bt_v16_load_bf16_pairs_n(p, 16, even, odd);
}

BT_INLINE void bt_v16_load_f32_pairs(const float *p, bt_v16 *even, bt_v16 *odd)
{
    for (uint32_t i = 0; i < 16; i++) {
        even->f[i] = p[2 * i];
        odd->f[i] = p[2 * i + 1];
    }
}

BT_INLINE float bt_v16_sum(bt_v16 v)
{
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++) {
            v.f[i] += v.f[i + half];
        }
    }
    return v.f[0];
}

BT_INLINE float bt_v16_hmax(bt_v16 v)
{
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++) {
            v.f[i] = v.f[i] > v.f[i + half] ? v.f[i] : v.f[i + half];
        }
    }
    return v.f[0];
}

BT_INLINE void bt_prefetch(const void *p)
{
    (void)p;
}
#endif /* BT_VEC_PORTABLE */

/* ---- over all of them ---------------------------------------------------------------- */

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
    bt_v16 r = bt_v16_fma(n, bt_v16_set1(-0x1.63p-1F), c);     /* 355 / 512 */
    r = bt_v16_fma(n, bt_v16_set1(0x1.bd0106p-13F), r);        /* 355 / 512 - ln2 */
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
