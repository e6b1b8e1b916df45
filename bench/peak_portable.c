/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C for any x86-64; and the choice of the widest set. */
#include "bench/peak.h"

#include <string.h>

#define N_SUMS 32

static uint64_t run_f32(uint64_t rounds)
{
    float sums[N_SUMS];
    for (int i = 0; i < N_SUMS; i++) {
        sums[i] = (float)i;
    }
    for (uint64_t r = 0; r < rounds; r++) {
        for (int i = 0; i < N_SUMS; i++) {
            sums[i] = sums[i] * 0.999f + 1e-3f;
        }
    }
    for (int i = 1; i < N_SUMS; i++) {
        sums[0] += sums[i];
    }
    return (uint64_t)sums[0];
}

static uint64_t read_bytes(const uint8_t *bytes, size_t n_bytes)
{
    uint64_t sums[8] = {0};
    for (size_t at = 0; at < n_bytes; at += 64) {
        uint64_t words[8];
        memcpy(words, bytes + at, sizeof words);
        for (int i = 0; i < 8; i++) {
            sums[i] ^= words[i];
        }
    }
    return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

const bt_peak_set bt_peak_portable = {
    "portable", {run_f32, N_SUMS * 2}, {NULL, 0}, {NULL, 0}, read_bytes};

const bt_peak_set *bt_peak_best(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
        if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
            return &bt_peak_avx512_bf16;
        }
        return __builtin_cpu_supports("avx512vnni") ? &bt_peak_avx512_vnni : &bt_peak_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &bt_peak_avx2;
    }
    return &bt_peak_portable;
}

const bt_peak_loop *bt_peak_of_path(const char *path, const char **name)
{
    if (strncmp(path, "amx", 3) == 0 && bt_peak_amx_is_there()) {
        *name = "bf16 tile peak";
        return &bt_peak_amx.bf16;
    }
    if (strcmp(path, "avx512-bf16") == 0) {
        *name = "bf16 dot peak";
        return &bt_peak_avx512_bf16.bf16;
    }
    *name = "f32 peak";
    if (strcmp(path, "avx512") == 0) {
        return &bt_peak_avx512.f32;
    }
    return strcmp(path, "avx2") == 0 ? &bt_peak_avx2.f32 : &bt_peak_portable.f32;
}
