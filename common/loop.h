/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h - the loop thread: timers, watched descriptors, work from other threads.
 *
 * One loop (libuv) drives a process: connections, RPC state and timers belong to
 * the thread inside bt_loop_run(). Other threads reach it through bt_loop_post()
 * or a bt_wake alone. Heavy work leaves it through bt_loop_work().
 *
 * Threading: loop thread only, except bt_loop_post, bt_loop_stop and bt_wake_ring.
 * Memory:    handles are heap objects; destroy may be called inside their own callback,
 *            after it no callback comes.
 */
#ifndef BT_COMMON_LOOP_H
#define BT_COMMON_LOOP_H

#include "common/status.h"

typedef struct bt_loop bt_loop;
typedef void (*bt_loop_fn)(void *ctx);

BT_MUST_CHECK bt_status bt_loop_create(bt_loop **out);

/* Every handle must have been destroyed. Waits for work in flight and calls its done;
 * posts that no run() has reached are dropped. NULL is allowed. */
void bt_loop_destroy(bt_loop *loop);

/* Runs in the calling thread until bt_loop_stop(). */
void bt_loop_run(bt_loop *loop);

/* Any thread, also from a signal callback of the loop. Makes run() return soon. */
void bt_loop_stop(bt_loop *loop);

/* Any thread. Calls fn(ctx) on the loop thread, in order of posting. The queue is
 * unbounded in principle: for rare events (start, stop, results of work); streams
 * of events go through a bt_queue and a bt_wake. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_loop_post(bt_loop *loop, bt_loop_fn fn, void *ctx);

/* Runs work(ctx) on the process's work pool, then done(ctx) on the loop thread. */
BT_MUST_CHECK bt_status bt_loop_work(bt_loop *loop, bt_loop_fn work, bt_loop_fn done, void *ctx);

/* True on the loop's own thread (always true before run() started). */
bool bt_loop_is_current(const bt_loop *loop);

/* ---- wake: a bell that another thread rings ---- */
typedef struct bt_wake bt_wake;

/* fn(ctx) runs on the loop thread at least once after each ring (rings merge). */
BT_MUST_CHECK bt_status bt_wake_create(bt_loop *loop, bt_loop_fn fn, void *ctx, bt_wake **out);
void bt_wake_destroy(bt_wake *wake);

/* Any thread, until destroy. */
void bt_wake_ring(bt_wake *wake);

/* ---- timer ---- */
typedef struct bt_timer bt_timer;

BT_MUST_CHECK bt_status bt_timer_create(bt_loop *loop, bt_loop_fn fn, void *ctx, bt_timer **out);
void bt_timer_destroy(bt_timer *timer);

/* First after delay_ms, then each repeat_ms (0: once). Restarts a running timer. */
void bt_timer_start(bt_timer *timer, uint64_t delay_ms, uint64_t repeat_ms);
void bt_timer_stop(bt_timer *timer);

/* ---- watched descriptor (sockets are the owner's: nonblocking, close after destroy) ---- */
typedef struct bt_watch bt_watch;

enum {
    BT_WATCH_READ = 1,
    BT_WATCH_WRITE = 2,
};

/* `events` of BT_WATCH_*; an error or hang-up shows as readable and writable. After an
 * error the watch is paused until the next bt_watch_set. */
typedef void (*bt_watch_fn)(int fd, int events, void *ctx);

/* Paused at first. BT_EINVAL: no socket or pipe. BT_EEXISTS: `fd` has a watch already. */
BT_MUST_CHECK bt_status bt_watch_create(bt_loop *loop, int fd, bt_watch_fn fn, void *ctx,
                                        bt_watch **out);
void bt_watch_destroy(bt_watch *watch);

/* Which events call back from now on; 0 pauses. */
void bt_watch_set(bt_watch *watch, int events);

/* ---- signal ---- */
typedef struct bt_signal bt_signal;

BT_MUST_CHECK bt_status bt_signal_create(bt_loop *loop, int signum, bt_loop_fn fn, void *ctx,
                                         bt_signal **out);
void bt_signal_destroy(bt_signal *sig);

#endif /* BT_COMMON_LOOP_H */
