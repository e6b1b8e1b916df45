/* SPDX-License-Identifier: Apache-2.0 */
/* 12 accumulators of 8 lanes; see peak_avx512.c. */
#include "bench/peak.h"

#include <immintrin.h>

#define N_SUMS 12
#define N_LANES 8u

static uint64_t run_f32(uint64_t rounds)
{
    __m256 sums[N_SUMS];
    __m256 x = _mm256_set1_ps(0.999f);
    __m256 y = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < N_SUMS; i++) {
        sums[i] = _mm256_set1_ps((float)i);
    }
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < N_SUMS; i++) {
            sums[i] = _mm256_fmadd_ps(sums[i], x, y);
        }
        __asm__ volatile("" : "+x"(x), "+x"(y));
    }
    for (int i = 1; i < N_SUMS; i++) {
        sums[0] = _mm256_add_ps(sums[0], sums[i]);
    }
    return (uint64_t)_mm256_cvtss_f32(sums[0]);
}

static uint64_t read_bytes(const uint8_t *bytes, size_t n_bytes)
{
    __m256i sums[8];
    for (int i = 0; i < 8; i++) {
        sums[i] = _mm256_setzero_si256();
    }
    for (size_t at = 0; at < n_bytes; at += 256) {
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            const __m256i *from = (const void *)(bytes + at + 32 * i);
            sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256(from));
        }
    }
    for (int i = 1; i < 8; i++) {
        sums[0] = _mm256_xor_si256(sums[0], sums[i]);
    }
    return (uint64_t)_mm256_extract_epi64(sums[0], 0);
}

const bt_peak_set bt_peak_avx2 = {
    "avx2", {run_f32, N_SUMS *N_LANES * 2}, {NULL, 0}, {NULL, 0}, read_bytes};
