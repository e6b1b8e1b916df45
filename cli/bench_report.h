/* SPDX-License-Identifier: Apache-2.0 */
/* bench_report.h - what a load benchmark saw, and its summary as text or JSON.
 *
 * Latencies count from the scheduled time of a request, whenever it really left (open loop). TPOT
 * is the mean time per token after the first; the worst gap is the longest time between two
 * arrivals of tokens. A request that was refused, failed or cut short is a miss in attainment, and
 * in no percentile.
 *
 * Threading: one thread. Memory: the caller's.
 */
#ifndef BT_CLI_BENCH_REPORT_H
#define BT_CLI_BENCH_REPORT_H

#include <stdio.h>

#include "common/status.h"

typedef struct bt_bench_result {
    bt_status status;     /* BT_OK: it got all its tokens */
    int64_t scheduled_ns; /* monotonic */
    int64_t sent_ns;
    int64_t first_ns;   /* first token; 0: none */
    int64_t last_ns;    /* last token */
    int64_t gap_max_ns; /* longest time between two messages with tokens */
    uint32_t n_prompt;
    uint32_t n_cached;
    uint32_t n_output;
} bt_bench_result;

typedef struct bt_bench_targets {
    double ttft_ms; /* 0: no target */
    double tpot_ms;
} bt_bench_targets;

typedef struct bt_bench_report {
    const bt_bench_result *results; /* [n] */
    size_t n;
    int64_t began_ns;
    int64_t ended_ns;
    double client_cpu; /* share of one core that the client used */
    bt_bench_targets targets;
} bt_bench_report;

/* BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_bench_report_print(const bt_bench_report *report, bool json, FILE *to);

/* The p-th percentile (0..1) of sorted values by linear interpolation; 0 of none. */
double bt_bench_percentile(const double *sorted, size_t n, double p);

#endif /* BT_CLI_BENCH_REPORT_H */
