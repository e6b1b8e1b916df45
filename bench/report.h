/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - the figures of one benchmark: a table for people, JSON for programs.
 *
 * Each row is printed when it is added. finish() writes the JSON file, with the machine and the
 * command, when one was asked for.
 *
 * Threading: one thread at a time.
 * Memory:    grows with the rows.
 */
#ifndef BT_BENCH_REPORT_H
#define BT_BENCH_REPORT_H

#include "bench/machine.h"
#include "common/status.h"

typedef struct bt_report bt_report;

typedef struct bt_report_row {
    const char *name; /* "matmul 512 x 576 x 1536, avx512" */
    double value;
    const char *unit;       /* "GFLOP/s" */
    double limit;           /* in the same unit; 0: none. Printed as a share */
    const char *limit_name; /* "f32 peak" */
} bt_report_row;

/* Prints the machine. argv is remembered for the file. json_path NULL: no file. */
BT_MUST_CHECK bt_status bt_report_create(const char *benchmark, int argc, char *const argv[],
                                         const char *json_path, bt_report **out);

/* Adds and prints a row; texts are copied. */
void bt_report_add(bt_report *report, const bt_report_row *row);

/* Adds a fact that is no number: ("kernels", "avx512"). */
void bt_report_fact(bt_report *report, const char *name, const char *text);

/* Prints a heading between rows; not in the file. */
void bt_report_heading(const bt_report *report, const char *text);

/* Writes the file. BT_EIO, BT_ENOMEM: the text says what failed. */
BT_MUST_CHECK bt_status bt_report_finish(bt_report *report, bt_error *err);
void bt_report_destroy(bt_report *report);

/* Middle of n > 0 values, which are sorted in place; the mean of two when n is even. */
double bt_report_median(double *values, size_t n);

#endif /* BT_BENCH_REPORT_H */
