/* SPDX-License-Identifier: Apache-2.0 */
/* peak.h - loops that do nothing but what a core does fastest: the ceilings of kernels.
 *
 * Each set is compiled for its instructions alone (peak_avx512.c, peak_avx2.c, peak_portable.c);
 * bt_peak_best() finds the widest that this CPU runs.
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_BENCH_PEAK_H
#define BT_BENCH_PEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bt_peak_loop {
    uint64_t (*run)(uint64_t rounds); /* NULL: this set lacks it; the result only keeps the work */
    uint64_t ops_per_round;           /* a multiply-add counts two */
} bt_peak_loop;

typedef struct bt_peak_set {
    const char *name;
    bt_peak_loop f32;  /* multiply-adds */
    bt_peak_loop bf16; /* dot products of bf16 pairs into f32 */
    bt_peak_loop int8; /* dot products of int8 quads into int32 */
    /* Reads each byte once; `bytes` is aligned to 64 and n_bytes a multiple of 512. */
    uint64_t (*read)(const uint8_t *bytes, size_t n_bytes);
} bt_peak_set;

extern const bt_peak_set bt_peak_amx;         /* matrix tiles; no f32, no read */
extern const bt_peak_set bt_peak_avx512_bf16; /* + bf16 and int8 dot products */
extern const bt_peak_set bt_peak_avx512_vnni; /* + int8 dot products */
extern const bt_peak_set bt_peak_avx512;
extern const bt_peak_set bt_peak_avx2;
extern const bt_peak_set bt_peak_portable;

/* The widest set of vector instructions. */
const bt_peak_set *bt_peak_best(void);

/* The fastest loop of the instructions that kernel path `path` (engine/backend.h) is made of. */
const bt_peak_loop *bt_peak_of_path(const char *path, const char **name);

/* The CPU has bf16 and int8 tiles and the system lets this process use them (asked once, before
 * the threads that run the loops are started). */
bool bt_peak_amx_is_there(void);

#endif /* BT_BENCH_PEAK_H */
