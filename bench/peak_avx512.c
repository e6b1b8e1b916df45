/* SPDX-License-Identifier: Apache-2.0 */
/* 16 independent accumulators hide the latency of 4-5 cycles on two ports; the empty asm keeps
 * the compiler from folding the constant factors. */
#include "bench/peak.h"

#include <immintrin.h>

#define N_SUMS 16
#define N_LANES 16u

static uint64_t run_f32(uint64_t rounds)
{
    __m512 sums[N_SUMS];
    __m512 x = _mm512_set1_ps(0.999f);
    __m512 y = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < N_SUMS; i++) {
        sums[i] = _mm512_set1_ps((float)i);
    }
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < N_SUMS; i++) {
            sums[i] = _mm512_fmadd_ps(sums[i], x, y);
        }
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int i = 1; i < N_SUMS; i++) {
        sums[0] = _mm512_add_ps(sums[0], sums[i]);
    }
    return (uint64_t)_mm512_reduce_add_ps(sums[0]);
}

static uint64_t run_bf16(uint64_t rounds)
{
    __m512 sums[N_SUMS];
    __m512i x = _mm512_set1_epi16(0x3c00);
    __m512i y = _mm512_set1_epi16(0x3c01);
    for (int i = 0; i < N_SUMS; i++) {
        sums[i] = _mm512_set1_ps((float)i);
    }
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < N_SUMS; i++) {
            sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)x, (__m512bh)y);
        }
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int i = 1; i < N_SUMS; i++) {
        sums[0] = _mm512_add_ps(sums[0], sums[i]);
    }
    return (uint64_t)_mm512_reduce_add_ps(sums[0]);
}

static uint64_t run_int8(uint64_t rounds)
{
    __m512i sums[N_SUMS];
    __m512i x = _mm512_set1_epi8(3);
    __m512i y = _mm512_set1_epi8(-2);
    for (int i = 0; i < N_SUMS; i++) {
        sums[i] = _mm512_set1_epi32(i);
    }
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < N_SUMS; i++) {
            sums[i] = _mm512_dpbusd_epi32(sums[i], x, y);
        }
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int i = 1; i < N_SUMS; i++) {
        sums[0] = _mm512_xor_si512(sums[0], sums[i]);
    }
    return (uint64_t)_mm512_reduce_add_epi64(sums[0]);
}

static uint64_t read_bytes(const uint8_t *bytes, size_t n_bytes)
{
    __m512i sums[8];
    for (int i = 0; i < 8; i++) {
        sums[i] = _mm512_setzero_si512();
    }
    for (size_t at = 0; at < n_bytes; at += 512) {
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            sums[i] = _mm512_xor_si512(sums[i], _mm512_load_si512(bytes + at + 64 * i));
        }
    }
    for (int i = 1; i < 8; i++) {
        sums[0] = _mm512_xor_si512(sums[0], sums[i]);
    }
    return (uint64_t)_mm512_reduce_add_epi64(sums[0]);
}

#define F32                                                                                        \
    {                                                                                              \
        run_f32, N_SUMS *N_LANES * 2                                                               \
    }
#define BF16                                                                                       \
    {                                                                                              \
        run_bf16, N_SUMS *N_LANES * 4                                                              \
    }
#define INT8                                                                                       \
    {                                                                                              \
        run_int8, N_SUMS *N_LANES * 8                                                              \
    }

const bt_peak_set bt_peak_avx512_bf16 = {"avx512 bf16", F32, BF16, INT8, read_bytes};
const bt_peak_set bt_peak_avx512_vnni = {"avx512 vnni", F32, {NULL, 0}, INT8, read_bytes};
const bt_peak_set bt_peak_avx512 = {"avx512", F32, {NULL, 0}, {NULL, 0}, read_bytes};
