/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - monotonic nanoseconds; replaceable in tests.
 *
 * Threading: any thread; bt_clock_set_source before other threads start.
 */
#ifndef BT_COMMON_CLOCK_H
#define BT_COMMON_CLOCK_H

#include <stdint.h>

/* Monotonic time in ns. */
int64_t bt_clock_now_ns(void);

/* Wall clock in ns since 1970, for log lines and reports alone. */
int64_t bt_clock_wall_ns(void);

/* Test only: now() returns source(ctx) from here on; NULL restores the real clock. */
typedef int64_t (*bt_clock_source)(void *ctx);
void bt_clock_set_source(bt_clock_source source, void *ctx);

#endif /* BT_COMMON_CLOCK_H */
