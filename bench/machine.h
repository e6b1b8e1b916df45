/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h - what this machine is, and how fast it can be at most.
 *
 * Every figure of bench/RESULTS.md stands beside a limit that was measured in the same session:
 * shared machines drift by 30%, fractions of a limit do not.
 *
 * Threading: the thread that calls; measuring starts `n_threads` pinned ones and joins them.
 * Memory:    up to 1 GiB while a bandwidth is measured.
 */
#ifndef BT_BENCH_MACHINE_H
#define BT_BENCH_MACHINE_H

#include "bench/peak.h"
#include "common/status.h"

typedef struct bt_machine {
    char cpu[128]; /* "Intel(R) Xeon(R) Processor", with family and model */
    char os[128];  /* kernel's name and release */
    char compiler[64];
    char peak[32];     /* instruction set that the peaks are measured with */
    unsigned n_cpus;   /* that this process may use */
    uint64_t l3_bytes; /* 0: not known */
    uint64_t ram_bytes;
} bt_machine;

void bt_machine_describe(bt_machine *out);

/* Each is the median of a few runs; rates of all threads together, per second. A rate that this
 * machine lacks is 0. */
BT_MUST_CHECK bt_status bt_machine_read_rate(unsigned n_threads, size_t bytes_each, double *bytes);
BT_MUST_CHECK bt_status bt_machine_copy_rate(unsigned n_threads, size_t bytes_each, double *bytes);
BT_MUST_CHECK bt_status bt_machine_compute_rate(unsigned n_threads, const bt_peak_loop *loop,
                                                double *ops);

/* One stream over TCP on 127.0.0.1 between two threads, `message_bytes` each write. */
BT_MUST_CHECK bt_status bt_machine_tcp_rate(size_t message_bytes, double *bytes, bt_error *err);

/* Copies between two shared mappings of memory files, both cold in the caches (a hand-over over
 * shared memory can't be faster). */
BT_MUST_CHECK bt_status bt_machine_shm_copy_rate(size_t bytes, double *rate, bt_error *err);

#endif /* BT_BENCH_MACHINE_H */
