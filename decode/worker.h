/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h - a decode worker: pulls the KV of prompts and goes on from their first token, and
 * hands what it runs over to another one when a router asks for it.
 *
 * It ties the engine thread (decode/scheduler.h), the KV sink (kvtransfer/sink.h), the
 * source of what it hands over, and the sessions to the routers (worker/worker.h). It also takes
 * whole requests, when the router wants a prompt prefilled here; a worker of role `both` is this
 * one, told apart in its hello alone. worker.c draws the states of a run.
 *
 *   create -> start -> stop ... done -> destroy
 *
 * Threading: loop thread only.
 * Memory:    all of it is taken in create and start.
 */
#ifndef BT_DECODE_WORKER_H
#define BT_DECODE_WORKER_H

#include "kvtransfer/sink.h"
#include "kvtransfer/source.h"
#include "worker/worker.h"

typedef struct bt_decode_worker bt_decode_worker;

/* Takes the memory. BT_EINVAL, BT_ENOMEM: *err says why. */
BT_MUST_CHECK bt_status bt_decode_worker_create(bt_loop *loop, bt_rpc *rpc,
                                                const bt_worker_options *options,
                                                bt_decode_worker **out, bt_error *err);

/* Starts the engine thread and dials the routers. */
BT_MUST_CHECK bt_status bt_decode_worker_start(bt_decode_worker *worker, bt_error *err);

/* Drains for grace_ms, then stops what is left; done(ctx) comes from the loop, once. */
void bt_decode_worker_stop(bt_decode_worker *worker, uint64_t grace_ms, bt_loop_fn done, void *ctx);

/* After stop's done, or without a successful start. NULL is allowed. */
void bt_decode_worker_destroy(bt_decode_worker *worker);

void bt_decode_worker_get_health(const bt_decode_worker *worker, bt_worker_health *out);

const bt_kv_sink_counters *bt_decode_worker_kv_counters(const bt_decode_worker *worker);

/* Of what it hands over. */
const bt_kv_source_counters *bt_decode_worker_source_counters(const bt_decode_worker *worker);

/* Test only: does what is due by bt_clock_now_ns(), as the timers would. */
void bt_decode_worker_tick(bt_decode_worker *worker);

#endif /* BT_DECODE_WORKER_H */
