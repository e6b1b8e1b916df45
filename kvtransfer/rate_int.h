/* SPDX-License-Identifier: Apache-2.0 */
/* rate_int.h - token bucket as a point in time: when the next bytes may go.
 *
 * Bytes may go once next_ns has come; they push it on by the time they take at the rate.
 * After a pause at most BURST_NS of rate is made up for: the loop thread of a busy host may wake
 * late by several ms, and what a real link would have sent meanwhile must not be lost.
 *
 * Threading: loop thread only. Memory: the caller's.
 */
#ifndef BT_KVTRANSFER_RATE_INT_H
#define BT_KVTRANSFER_RATE_INT_H

#include "common/base.h"

enum { BT_RATE_BURST_NS = 20000000 };

typedef struct bt_rate {
    uint64_t bytes_s; /* 0: no limit */
    int64_t next_ns;
} bt_rate;

/* Nanoseconds until bytes may go; 0: now. */
static inline int64_t bt_rate_wait(const bt_rate *rate, int64_t now_ns)
{
    return rate->bytes_s == 0 || rate->next_ns <= now_ns ? 0 : rate->next_ns - now_ns;
}

static inline void bt_rate_charge(bt_rate *rate, int64_t now_ns, uint64_t bytes)
{
    if (rate->bytes_s == 0) {
        return;
    }
    if (rate->next_ns < now_ns - BT_RATE_BURST_NS) {
        rate->next_ns = now_ns - BT_RATE_BURST_NS;
    }
    rate->next_ns += (int64_t)((double)bytes * 1e9 / (double)rate->bytes_s);
}

#endif /* BT_KVTRANSFER_RATE_INT_H */
