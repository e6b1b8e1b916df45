/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h - a run of a few requests through faults that a seed decides.
 *
 * A schedule says which requests begin when, which member or wire breaks in which way after which
 * event, and for how long. It runs on a cluster (tests/support/cluster.h) to the end of every
 * request, then heals what is broken and waits until nothing is held anywhere. What must hold:
 *
 *   1. every request has exactly one end;
 *   2. one that ends well equals the undisturbed run: tokens, text, logprobs, reason, usage;
 *   3. one that ends in an error got a prefix of it, and the schedule has a fault that may show;
 *   4. no block and no run stays behind on any worker, and pools of the dead pass their audit.
 *
 * Threading: the thread that runs the cluster's loop. Memory: the heap; for tests.
 */
#ifndef BT_TESTS_FAULT_SCHEDULE_H
#define BT_TESTS_FAULT_SCHEDULE_H

#include "tests/support/cluster.h"

enum {
    BT_SCHEDULE_ASKS = 32,
    BT_SCHEDULE_TEXT_BYTES = 2048,
};

/* Requests, each with the answer of one combined worker that computed it alone. */
typedef struct bt_schedule_asks {
    bt_cluster_request truth[BT_SCHEDULE_ASKS];
    char stops[BT_SCHEDULE_ASKS][2];
} bt_schedule_asks;

void bt_schedule_asks_init(bt_schedule_asks *asks);

/* What the seeds are drawn for. */
void bt_schedule_cluster_options(uint64_t seed, bt_cluster_options *options);

typedef struct bt_schedule_counts {
    uint64_t schedules, requests, ended_ok, ended_otherwise, retried;
    uint64_t allocations_failed;
    int64_t idle_ms_max; /* longest time from the last end until nothing was held anywhere */
} bt_schedule_counts;

/* Runs the schedule of this seed; `text` gets it in words as it happens. NULL: all held;
 * otherwise what did not. Aborts when something hangs. */
const char *bt_schedule_run(bt_cluster *cluster, const bt_schedule_asks *asks, uint64_t seed,
                            char text[BT_SCHEDULE_TEXT_BYTES], bt_schedule_counts *counts);

#endif /* BT_TESTS_FAULT_SCHEDULE_H */
