/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of 16 rows x 64 bytes; four accumulator tiles hide the latency. Linux hands the tile
 * registers out on request, once for a process. */
#include "bench/peak.h"

#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18
#define ROWS 16u

/* LDTILECFG's operand (Intel SDM, volume 2, LDTILECFG). */
typedef struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "as the instruction reads it");

static void configure(void)
{
    tile_config config = {.palette = 1};
    static const uint8_t zeros[ROWS * 64];
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = ROWS;
    }
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
}

static uint64_t finish(void)
{
    static const int stride = 64;
    int32_t sums[ROWS * 16];
    _tile_stored(0, sums, stride);
    _tile_release();
    return (uint64_t)(uint32_t)sums[0];
}

static uint64_t run_bf16(uint64_t rounds)
{
    configure();
    for (uint64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    return finish();
}

static uint64_t run_int8(uint64_t rounds)
{
    configure();
    for (uint64_t r = 0; r < rounds; r++) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    return finish();
}

const bt_peak_set bt_peak_amx = {
    "amx", {NULL, 0}, {run_bf16, 4 * 16 * 16 * 32 * 2}, {run_int8, 4 * 16 * 16 * 64 * 2}, NULL};

bool bt_peak_amx_is_there(void)
{
    return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8") &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
