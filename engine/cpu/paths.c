/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/paths.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static bool has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

static bool has_avx512_bf16(void)
{
#if defined(__x86_64__)
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

/* AMX with bf16, and the operating system's leave to use tiles (for all threads of the
 * process, from now on). */
static bool has_amx(void)
{
#if defined(__x86_64__)
    enum {
        ARCH_REQ_XCOMP_PERM = 0x1023, /* Linux 5.16 */
        XFEATURE_XTILEDATA = 18,
        AMX_BF16 = 1 << 22, /* leaf 7, EDX */
        AMX_TILE = 1 << 24,
    };
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    if (!has_avx512_bf16() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & AMX_BF16) == 0 ||
        (d & AMX_TILE) == 0) {
        return false;
    }
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

static bool has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

static bool has_c(void)
{
    return true;
}

static const bt_cpu_path paths[] = {
#if defined(__x86_64__)
    {"amx-bf16", "AMX with bf16, AVX-512 with BF16, and Linux 5.16", has_amx, bt_cpu_kernels_amx},
    {"avx512-bf16", "AVX-512 F, BW, VL, DQ and BF16", has_avx512_bf16, bt_cpu_kernels_avx512bf16},
    {"avx512", "AVX-512 F, BW, VL and DQ", has_avx512, bt_cpu_kernels_avx512},
    {"avx2", "AVX2 and FMA", has_avx2, bt_cpu_kernels_avx2},
#endif
    {"portable", "nothing", has_c, bt_cpu_kernels_portable},
    {"reference", "nothing", has_c, NULL},
};

const bt_cpu_path *bt_cpu_paths(size_t *n)
{
    *n = BT_ARRAY_LEN(paths);
    return paths;
}

const bt_cpu_path *bt_cpu_path_find(const char *name)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(paths); i++) {
        if (strcmp(paths[i].name, name) == 0) {
            return &paths[i];
        }
    }
    return NULL;
}

/* CPUs on which dot products of bf16 pairs are no faster than f32 FMA: measured 83 against 165
 * Gflop/s a core. Others that have them run them at twice the rate of FMA. */
static bool has_slow_bf16(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("intel") != 0;
#else
    return true;
#endif
}

/* The order of the table is by speed; what remains is that one exception. */
const bt_cpu_path *bt_cpu_path_choose(void)
{
    const bool slow_bf16 = has_slow_bf16();
    for (size_t i = 0; i < BT_ARRAY_LEN(paths); i++) {
        const bool skip = slow_bf16 && strcmp(paths[i].name, "avx512-bf16") == 0;
        if (!skip && paths[i].is_supported()) {
            return &paths[i];
        }
    }
    return &paths[BT_ARRAY_LEN(paths) - 1];
}
