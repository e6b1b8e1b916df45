/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/watchdog.h"

#include <inttypes.h>
#include <stdio.h>

void bt_watchdog_init(bt_watchdog *watchdog, int64_t after_ns, int64_t period_ns)
{
    *watchdog = (bt_watchdog){.after_ns = after_ns, .period_ns = period_ns};
}

static void describe(bt_watchdog *w, const bt_engine_stats *engine, uint32_t n_ready)
{
    if (engine->phase == BT_ENGINE_PHASE_IDLE) {
        snprintf(w->text, sizeof w->text,
                 "the engine sleeps: %" PRIu32 " requests could run, %" PRIu64 " commands wait",
                 n_ready, engine->n_commands);
    } else if (engine->phase == BT_ENGINE_PHASE_FORWARD) {
        snprintf(w->text, sizeof w->text,
                 "the engine does not move: phase=forward layer=%" PRIu32 " steps=%" PRIu64,
                 engine->layer, engine->n_steps);
    } else {
        snprintf(w->text, sizeof w->text, "the engine does not move: phase=%s steps=%" PRIu64,
                 bt_engine_phase_name(engine->phase), engine->n_steps);
    }
}

bool bt_watchdog_look(bt_watchdog *w, const bt_engine_stats *engine, uint32_t n_ready,
                      int64_t now_ns)
{
    const int64_t unseen_ns = now_ns - w->looked_ns - 2 * w->period_ns;
    if (w->looked_ns != 0 && unseen_ns > 0) {
        w->moved_ns += unseen_ns; /* the process was stopped, or its loop was held up */
    }
    const bool has_work =
        engine->phase != BT_ENGINE_PHASE_IDLE || engine->n_commands > 0 || n_ready > 0;
    if (!has_work || engine->n_moves != w->n_moves || w->looked_ns == 0) {
        w->moved_ns = now_ns;
    }
    w->looked_ns = now_ns;
    w->n_moves = engine->n_moves;
    const bool was_stuck = w->stuck_since_ns != 0;
    const bool is_stuck = now_ns - w->moved_ns >= w->after_ns;
    if (is_stuck && !was_stuck) {
        w->stuck_since_ns = now_ns;
        describe(w, engine, n_ready);
    } else if (!is_stuck) {
        w->stuck_since_ns = 0;
    }
    return is_stuck != was_stuck;
}

int64_t bt_watchdog_age_ns(const bt_watchdog *w)
{
    return w->looked_ns - w->moved_ns;
}
