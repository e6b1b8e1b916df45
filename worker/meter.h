/* SPDX-License-Identifier: Apache-2.0 */
/* meter.h - a worker's counts as load report and as metrics; recent step times.
 *
 * The schedulers count from their start; metrics are counters of the process, so the meter adds
 * what has grown. Times are means of recent steps: exponential, the newest weighs 1/16, in the
 * time of a prompt's token by the tokens in it.
 *
 * Threading: loop thread only.
 * Memory:    create only.
 */
#ifndef BT_WORKER_METER_H
#define BT_WORKER_METER_H

#include "common/metrics.h"
#include "engine/engine.h"
#include "worker/worker.h"

typedef struct bt_meter bt_meter;

/* `metrics` may be NULL: load alone. `blocks_total`: of the pool. `rows_max`: that one prompt has
 * in a step at most. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_meter_create(bt_metrics *metrics, uint32_t blocks_total,
                                        uint32_t rows_max, bt_meter **out);
void bt_meter_destroy(bt_meter *meter);

/* Whether the watchdog takes the engine for stuck. */
void bt_meter_set_stuck(bt_meter *meter, bool is_stuck);

/* Takes the counts after one or more steps; fills step_ns and prefill_token_ns of
 * tally->load into *load, with the rest copied. */
void bt_meter_update(bt_meter *meter, const bt_worker_tally *tally, const bt_engine_stats *engine,
                     bt_link_load *load);

/* A run has ended. */
void bt_meter_run(bt_meter *meter, bt_link_mode mode, const bt_link_finished *finished);

#endif /* BT_WORKER_METER_H */
