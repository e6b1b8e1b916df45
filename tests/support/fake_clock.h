/* SPDX-License-Identifier: Apache-2.0 */
/* fake_clock.h - time as an input: bt_clock_now_ns() stands still until told to move.
 *
 * Threading: one test at a time; install before other threads start.
 */
#ifndef BT_TESTS_SUPPORT_FAKE_CLOCK_H
#define BT_TESTS_SUPPORT_FAKE_CLOCK_H

#include <stdint.h>

typedef struct bt_fake_clock {
    int64_t now_ns;
} bt_fake_clock;

/* The clock shows start_ns from here on; `clock` outlives the matching uninstall. */
void bt_fake_clock_install(bt_fake_clock *clock, int64_t start_ns);
void bt_fake_clock_advance(bt_fake_clock *clock, int64_t ns);
void bt_fake_clock_uninstall(void);

#endif /* BT_TESTS_SUPPORT_FAKE_CLOCK_H */
