/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog.h - tells a worker whose engine does not get on from one that has nothing to do.
 *
 * It is looked at from the loop thread, by a timer that depends on nothing else. The engine has
 * work when it is anywhere but asleep, when commands wait for it, or when it sleeps though there
 * are sequences that it could run. It gets on when its phase or layer changes (engine.h), so a long
 * step of a large model is no fault. Time in which nobody looked, because the process was stopped,
 * does not count.
 *
 * Threading: loop thread only.
 * Memory:    none.
 */
#ifndef BT_WORKER_WATCHDOG_H
#define BT_WORKER_WATCHDOG_H

#include "engine/engine.h"

typedef struct bt_watchdog {
    int64_t after_ns;       /* without progress for so long it is stuck */
    int64_t period_ns;      /* between two looks, as intended */
    int64_t looked_ns;      /* 0: never */
    int64_t moved_ns;       /* last progress, or last look without work */
    int64_t stuck_since_ns; /* 0: it is not stuck */
    uint64_t n_moves;
    char text[128]; /* where it is stuck */
} bt_watchdog;

void bt_watchdog_init(bt_watchdog *watchdog, int64_t after_ns, int64_t period_ns);

/* `n_ready`: sequences that nothing but the engine keeps from going on. true: it is stuck now and
 * was not, or the other way round. */
bool bt_watchdog_look(bt_watchdog *watchdog, const bt_engine_stats *engine, uint32_t n_ready,
                      int64_t now_ns);

/* Since the last progress, as of the last look; 0: it has no work. */
int64_t bt_watchdog_age_ns(const bt_watchdog *watchdog);

#endif /* BT_WORKER_WATCHDOG_H */
