/* SPDX-License-Identifier: Apache-2.0 */
/* Thin over libuv. Each handle is a heap object with the uv handle inside; destroy
 * hands it to uv_close, after which libuv calls nothing but the close callback,
 * which frees it. So destroy is allowed inside the handle's own callback.
 *
 * Posts: a list under a mutex, drained whole by one async handle.
 *
 * Rings merge through a flag of our own in front of uv_async_send: that function
 * skips the wake-up after a plain read of its own flag, which orders nothing, and
 * so could miss what the ringing thread has just stored. The exchange on `rung`
 * orders it: whoever finds the flag set knows that the loop has still to clear it,
 * and clearing it acquires what was stored before the ring. */
#include "common/loop.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <uv.h>

#include "common/check.h"

typedef struct post {
    struct post *next;
    bt_loop_fn fn;
    void *ctx;
} post;

struct bt_loop {
    uv_loop_t uv;
    uv_async_t bell;          /* for posts and stop */
    _Atomic bool rung;        /* exchange in ring pairs with exchange in on_bell */
    _Atomic bool stop_wanted; /* store in stop, published by the ring after it */
    _Atomic uintptr_t thread; /* pthread_self() of run(), 0 outside run() */

    pthread_mutex_t mutex;
    post *first; /* under mutex, oldest first */
    post *last;  /* under mutex */
};

struct bt_wake {
    uv_async_t uv;
    _Atomic bool rung; /* see the top */
    bt_loop_fn fn;
    void *ctx;
};

struct bt_timer {
    uv_timer_t uv;
    bt_loop_fn fn;
    void *ctx;
};

struct bt_watch {
    uv_poll_t uv;
    bt_watch_fn fn;
    void *ctx;
    int fd;
    int events; /* BT_WATCH_* that are asked for now */
};

struct bt_signal {
    uv_signal_t uv;
    bt_loop_fn fn;
    void *ctx;
};

typedef struct work_item {
    uv_work_t uv;
    bt_loop_fn work;
    bt_loop_fn done;
    void *ctx;
} work_item;

static bt_status status_of(int uv_error)
{
    switch (uv_error) {
    case UV_ENOMEM:
        return BT_ENOMEM;
    case UV_EINVAL:
    case UV_EBADF:
    case UV_EPERM:
        return BT_EINVAL;
    case UV_EEXIST:
        return BT_EEXISTS;
    default:
        return BT_EIO;
    }
}

static void free_handle(uv_handle_t *handle)
{
    free(handle->data);
}

/* ---- loop ---- */

static void ring_bell(bt_loop *loop)
{
    if (!atomic_exchange(&loop->rung, true)) {
        (void)uv_async_send(&loop->bell);
    }
}

static void on_bell(uv_async_t *bell)
{
    bt_loop *loop = bell->data;
    (void)atomic_exchange(&loop->rung, false);
    pthread_mutex_lock(&loop->mutex);
    post *at = loop->first;
    loop->first = NULL;
    loop->last = NULL;
    pthread_mutex_unlock(&loop->mutex);
    while (at) {
        post *next = at->next;
        at->fn(at->ctx);
        free(at);
        at = next;
    }
    if (atomic_exchange(&loop->stop_wanted, false)) {
        uv_stop(&loop->uv);
    }
}

bt_status bt_loop_create(bt_loop **out)
{
    bt_loop *loop = calloc(1, sizeof *loop);
    if (!loop) {
        return BT_ENOMEM;
    }
    int rc = uv_loop_init(&loop->uv);
    if (rc != 0) {
        goto fail_alloc;
    }
    rc = uv_async_init(&loop->uv, &loop->bell, on_bell);
    if (rc != 0) {
        goto fail_loop;
    }
    loop->bell.data = loop;
    if (pthread_mutex_init(&loop->mutex, NULL) != 0) {
        rc = UV_ENOMEM;
        goto fail_bell;
    }
    *out = loop;
    return BT_OK;

fail_bell:
    uv_close((uv_handle_t *)&loop->bell, NULL);
    (void)uv_run(&loop->uv, UV_RUN_DEFAULT);
fail_loop:
    (void)uv_loop_close(&loop->uv);
fail_alloc:
    free(loop);
    return status_of(rc);
}

static void assert_closing(uv_handle_t *handle, void *ctx)
{
    (void)ctx;
    BT_ASSERT(uv_is_closing(handle)); /* else a handle of this loop was not destroyed */
}

void bt_loop_destroy(bt_loop *loop)
{
    if (!loop) {
        return;
    }
    BT_ASSERT(atomic_load(&loop->thread) == 0);
    uv_close((uv_handle_t *)&loop->bell, NULL);
    uv_walk(&loop->uv, assert_closing, NULL);
    (void)uv_run(&loop->uv, UV_RUN_DEFAULT); /* close callbacks, and work that is in flight */
    const int rc = uv_loop_close(&loop->uv);
    BT_ASSERT(rc == 0);
    for (post *at = loop->first; at;) {
        post *next = at->next;
        free(at);
        at = next;
    }
    pthread_mutex_destroy(&loop->mutex);
    free(loop);
}

void bt_loop_run(bt_loop *loop)
{
    BT_ASSERT(atomic_load(&loop->thread) == 0);
    atomic_store(&loop->thread, (uintptr_t)pthread_self());
    (void)uv_run(&loop->uv, UV_RUN_DEFAULT);
    atomic_store(&loop->thread, 0);
}

void bt_loop_stop(bt_loop *loop)
{
    atomic_store(&loop->stop_wanted, true);
    ring_bell(loop);
}

bt_status bt_loop_post(bt_loop *loop, bt_loop_fn fn, void *ctx)
{
    post *item = malloc(sizeof *item);
    if (!item) {
        return BT_ENOMEM;
    }
    *item = (post){.fn = fn, .ctx = ctx};
    pthread_mutex_lock(&loop->mutex);
    if (loop->last) {
        loop->last->next = item;
    } else {
        loop->first = item;
    }
    loop->last = item;
    pthread_mutex_unlock(&loop->mutex);
    ring_bell(loop);
    return BT_OK;
}

static void on_work(uv_work_t *uv)
{
    work_item *item = uv->data;
    item->work(item->ctx);
}

static void on_work_done(uv_work_t *uv, int status)
{
    BT_ASSERT(status == 0); /* nothing here cancels work */
    work_item *item = uv->data;
    item->done(item->ctx);
    free(item);
}

bt_status bt_loop_work(bt_loop *loop, bt_loop_fn work, bt_loop_fn done, void *ctx)
{
    BT_ASSERT(bt_loop_is_current(loop));
    work_item *item = calloc(1, sizeof *item);
    if (!item) {
        return BT_ENOMEM;
    }
    item->uv.data = item;
    item->work = work;
    item->done = done;
    item->ctx = ctx;
    const int rc = uv_queue_work(&loop->uv, &item->uv, on_work, on_work_done);
    if (rc != 0) {
        free(item);
        return status_of(rc);
    }
    return BT_OK;
}

bool bt_loop_is_current(const bt_loop *loop)
{
    const uintptr_t thread = atomic_load(&loop->thread);
    return thread == 0 || thread == (uintptr_t)pthread_self();
}

/* ---- wake ---- */

static void on_wake(uv_async_t *uv)
{
    bt_wake *wake = uv->data;
    (void)atomic_exchange(&wake->rung, false);
    wake->fn(wake->ctx);
}

bt_status bt_wake_create(bt_loop *loop, bt_loop_fn fn, void *ctx, bt_wake **out)
{
    BT_ASSERT(bt_loop_is_current(loop));
    bt_wake *wake = calloc(1, sizeof *wake);
    if (!wake) {
        return BT_ENOMEM;
    }
    const int rc = uv_async_init(&loop->uv, &wake->uv, on_wake);
    if (rc != 0) {
        free(wake);
        return status_of(rc);
    }
    wake->uv.data = wake;
    wake->fn = fn;
    wake->ctx = ctx;
    *out = wake;
    return BT_OK;
}

void bt_wake_destroy(bt_wake *wake)
{
    if (wake) {
        uv_close((uv_handle_t *)&wake->uv, free_handle);
    }
}

void bt_wake_ring(bt_wake *wake)
{
    if (!atomic_exchange(&wake->rung, true)) {
        (void)uv_async_send(&wake->uv);
    }
}

/* ---- timer ---- */

static void on_timer(uv_timer_t *uv)
{
    bt_timer *timer = uv->data;
    timer->fn(timer->ctx);
}

bt_status bt_timer_create(bt_loop *loop, bt_loop_fn fn, void *ctx, bt_timer **out)
{
    BT_ASSERT(bt_loop_is_current(loop));
    bt_timer *timer = calloc(1, sizeof *timer);
    if (!timer) {
        return BT_ENOMEM;
    }
    const int rc = uv_timer_init(&loop->uv, &timer->uv);
    if (rc != 0) {
        free(timer);
        return status_of(rc);
    }
    timer->uv.data = timer;
    timer->fn = fn;
    timer->ctx = ctx;
    *out = timer;
    return BT_OK;
}

void bt_timer_destroy(bt_timer *timer)
{
    if (timer) {
        uv_close((uv_handle_t *)&timer->uv, free_handle);
    }
}

void bt_timer_start(bt_timer *timer, uint64_t delay_ms, uint64_t repeat_ms)
{
    /* The loop's idea of now is as old as this iteration; a long callback before
     * this call must not shorten the delay. */
    uv_update_time(timer->uv.loop);
    const int rc = uv_timer_start(&timer->uv, on_timer, delay_ms, repeat_ms);
    BT_ASSERT(rc == 0); /* fails for a destroyed timer alone */
}

void bt_timer_stop(bt_timer *timer)
{
    (void)uv_timer_stop(&timer->uv);
}

/* ---- watch ---- */

static void on_poll(uv_poll_t *uv, int status, int uv_events)
{
    bt_watch *watch = uv->data;
    int events = 0;
    if (status < 0) {
        /* libuv has stopped the handle; the next bt_watch_set starts it again. */
        watch->events = 0;
        events = BT_WATCH_READ | BT_WATCH_WRITE;
    } else {
        events |= uv_events & UV_READABLE ? BT_WATCH_READ : 0;
        events |= uv_events & UV_WRITABLE ? BT_WATCH_WRITE : 0;
    }
    if (events != 0) {
        watch->fn(watch->fd, events, watch->ctx);
    }
}

bt_status bt_watch_create(bt_loop *loop, int fd, bt_watch_fn fn, void *ctx, bt_watch **out)
{
    BT_ASSERT(bt_loop_is_current(loop));
    bt_watch *watch = calloc(1, sizeof *watch);
    if (!watch) {
        return BT_ENOMEM;
    }
    const int rc = uv_poll_init(&loop->uv, &watch->uv, fd);
    if (rc != 0) {
        free(watch);
        return status_of(rc);
    }
    watch->uv.data = watch;
    watch->fn = fn;
    watch->ctx = ctx;
    watch->fd = fd;
    *out = watch;
    return BT_OK;
}

void bt_watch_destroy(bt_watch *watch)
{
    if (watch) {
        uv_close((uv_handle_t *)&watch->uv, free_handle);
    }
}

void bt_watch_set(bt_watch *watch, int events)
{
    if (events == watch->events) {
        return; /* libuv would leave and join the epoll set again */
    }
    watch->events = events;
    int rc;
    if (events == 0) {
        rc = uv_poll_stop(&watch->uv);
    } else {
        int uv_events = 0;
        uv_events |= events & BT_WATCH_READ ? UV_READABLE : 0;
        uv_events |= events & BT_WATCH_WRITE ? UV_WRITABLE : 0;
        rc = uv_poll_start(&watch->uv, uv_events, on_poll);
    }
    BT_ASSERT(rc == 0); /* fails for a destroyed watch alone */
}

/* ---- signal ---- */

static void on_signal(uv_signal_t *uv, int signum)
{
    (void)signum;
    bt_signal *sig = uv->data;
    sig->fn(sig->ctx);
}

bt_status bt_signal_create(bt_loop *loop, int signum, bt_loop_fn fn, void *ctx, bt_signal **out)
{
    BT_ASSERT(bt_loop_is_current(loop));
    bt_signal *sig = calloc(1, sizeof *sig);
    if (!sig) {
        return BT_ENOMEM;
    }
    int rc = uv_signal_init(&loop->uv, &sig->uv);
    if (rc != 0) {
        free(sig);
        return status_of(rc);
    }
    sig->uv.data = sig;
    sig->fn = fn;
    sig->ctx = ctx;
    rc = uv_signal_start(&sig->uv, on_signal, signum);
    if (rc != 0) {
        bt_signal_destroy(sig);
        return status_of(rc);
    }
    *out = sig;
    return BT_OK;
}

void bt_signal_destroy(bt_signal *sig)
{
    if (sig) {
        uv_close((uv_handle_t *)&sig->uv, free_handle);
    }
}
