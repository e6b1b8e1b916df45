/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h - a prefill worker: computes prompts and hands their KV to decode workers.
 *
 * It ties the engine thread (prefill/scheduler.h), the KV source (kvtransfer/source.h) and the
 * sessions to the routers (worker/worker.h). worker.c draws the states of a run.
 *
 *   create -> start -> stop ... done -> destroy
 *
 * Threading: loop thread only.
 * Memory:    all of it is taken in create and start.
 */
#ifndef BT_PREFILL_WORKER_H
#define BT_PREFILL_WORKER_H

#include "kvtransfer/source.h"
#include "worker/worker.h"

typedef struct bt_prefill_worker bt_prefill_worker;

/* Takes the memory and listens for KV peers; options->role is not looked at. BT_EINVAL, BT_EIO
 * (an address can't be listened on), BT_ENOMEM: *err says why. */
BT_MUST_CHECK bt_status bt_prefill_worker_create(bt_loop *loop, bt_rpc *rpc,
                                                 const bt_worker_options *options,
                                                 bt_prefill_worker **out, bt_error *err);

/* Starts the engine thread and dials the routers. */
BT_MUST_CHECK bt_status bt_prefill_worker_start(bt_prefill_worker *worker, bt_error *err);

/* Drains for grace_ms, then stops what is left; done(ctx) comes from the loop, once. */
void bt_prefill_worker_stop(bt_prefill_worker *worker, uint64_t grace_ms, bt_loop_fn done,
                            void *ctx);

/* After stop's done, or without a successful start. NULL is allowed. */
void bt_prefill_worker_destroy(bt_prefill_worker *worker);

void bt_prefill_worker_get_health(const bt_prefill_worker *worker, bt_worker_health *out);

/* Where its KV can be pulled from. */
void bt_prefill_worker_kv_peer(const bt_prefill_worker *worker, bt_kv_peer *out);

const bt_kv_source_counters *bt_prefill_worker_kv_counters(const bt_prefill_worker *worker);

/* Test only: does what is due by bt_clock_now_ns(), as the timers would. */
void bt_prefill_worker_tick(bt_prefill_worker *worker);

#endif /* BT_PREFILL_WORKER_H */
