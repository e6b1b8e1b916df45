/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fake_clock.h"

#include <stddef.h>

#include "common/clock.h"

static int64_t read_fake(void *ctx)
{
    return ((const bt_fake_clock *)ctx)->now_ns;
}

void bt_fake_clock_install(bt_fake_clock *clock, int64_t start_ns)
{
    clock->now_ns = start_ns;
    bt_clock_set_source(read_fake, clock);
}

void bt_fake_clock_advance(bt_fake_clock *clock, int64_t ns)
{
    clock->now_ns += ns;
}

void bt_fake_clock_uninstall(void)
{
    bt_clock_set_source(NULL, NULL);
}
