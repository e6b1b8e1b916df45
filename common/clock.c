/* SPDX-License-Identifier: Apache-2.0 */
/* The source is process-wide state, the one exception that a replaceable clock
 * asks for; it is written before other threads start and only read after. */
#include "common/clock.h"

#include <time.h>

static bt_clock_source source_fn;
static void *source_ctx;

static int64_t read_clock(clockid_t id)
{
    struct timespec ts;
    (void)clock_gettime(id, &ts); /* cannot fail for these ids on Linux */
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t bt_clock_now_ns(void)
{
    return source_fn ? source_fn(source_ctx) : read_clock(CLOCK_MONOTONIC);
}

int64_t bt_clock_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

void bt_clock_set_source(bt_clock_source source, void *ctx)
{
    source_fn = source;
    source_ctx = ctx;
}
