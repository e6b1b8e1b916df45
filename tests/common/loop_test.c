/* SPDX-License-Identifier: Apache-2.0 */
/* Proves who runs when: posts in order and from other threads, merged rings without a
 * lost one, timers, watches on a socket pair, work off the loop thread, signals, and that
 * every handle may be destroyed inside its own callback. */
#include "common/loop.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct fixture {
    bt_loop *loop;
    int order[8];
    int n;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(bt_loop_create(&f->loop), BT_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    bt_loop_destroy(f->loop);
    free(f);
    return 0;
}

static void note_one(void *ctx)
{
    fixture *f = ctx;
    f->order[f->n++] = 1;
}

static void note_two(void *ctx)
{
    fixture *f = ctx;
    f->order[f->n++] = 2;
}

static void stop(void *ctx)
{
    fixture *f = ctx;
    bt_loop_stop(f->loop);
}

static void post_three(void *ctx)
{
    fixture *f = ctx;
    f->order[f->n++] = 3;
    assert_int_equal(bt_loop_post(f->loop, note_one, f), BT_OK);
    assert_int_equal(bt_loop_post(f->loop, stop, f), BT_OK);
}

static void posts_run_in_order_and_may_post_again(void **state)
{
    fixture *f = *state;
    assert_int_equal(bt_loop_post(f->loop, note_one, f), BT_OK);
    assert_int_equal(bt_loop_post(f->loop, note_two, f), BT_OK);
    assert_int_equal(bt_loop_post(f->loop, post_three, f), BT_OK);
    bt_loop_run(f->loop);
    const int expected[] = {1, 2, 3, 1};
    assert_int_equal(f->n, 4);
    assert_memory_equal(f->order, expected, sizeof expected);
}

static void stop_before_run_makes_it_return(void **state)
{
    fixture *f = *state;
    bt_loop_stop(f->loop);
    bt_loop_run(f->loop);
    assert_int_equal(bt_loop_post(f->loop, stop, f), BT_OK); /* and it can run again */
    bt_loop_run(f->loop);
}

static void posts_that_never_ran_are_dropped_by_destroy(void **state)
{
    fixture *f = *state;
    assert_int_equal(bt_loop_post(f->loop, note_one, f), BT_OK);
    bt_loop_destroy(f->loop);
    assert_int_equal(f->n, 0);
    assert_int_equal(bt_loop_create(&f->loop), BT_OK);
}

/* ---- wake ---- */

enum { N_RINGS = 20000 };

typedef struct bell {
    bt_loop *loop;
    bt_wake *wake;
    _Atomic uint64_t sent; /* stored before each ring */
    uint64_t seen;
} bell;

static void on_ring(void *ctx)
{
    bell *b = ctx;
    b->seen = atomic_load(&b->sent);
    if (b->seen == N_RINGS) {
        bt_wake_destroy(b->wake);
        bt_loop_stop(b->loop);
    }
}

static void *ring_often(void *ctx)
{
    bell *b = ctx;
    for (uint64_t i = 1; i <= N_RINGS; i++) {
        atomic_store_explicit(&b->sent, i, memory_order_relaxed);
        bt_wake_ring(b->wake);
    }
    return NULL;
}

/* If the last of many merged rings were lost, this would hang. */
static void the_last_ring_is_always_seen(void **state)
{
    fixture *f = *state;
    bell b = {.loop = f->loop};
    assert_int_equal(bt_wake_create(f->loop, on_ring, &b, &b.wake), BT_OK);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, ring_often, &b), 0);
    bt_loop_run(f->loop);
    pthread_join(thread, NULL);
    assert_int_equal(b.seen, N_RINGS);
}

static void *post_from_outside(void *ctx)
{
    fixture *f = ctx;
    assert_false(bt_loop_is_current(f->loop));
    assert_int_equal(bt_loop_post(f->loop, note_one, f), BT_OK);
    assert_int_equal(bt_loop_post(f->loop, stop, f), BT_OK);
    return NULL;
}

static void start_poster(void *ctx)
{
    fixture *f = ctx;
    pthread_t thread;
    assert_true(bt_loop_is_current(f->loop));
    assert_int_equal(pthread_create(&thread, NULL, post_from_outside, f), 0);
    assert_int_equal(pthread_detach(thread), 0);
}

static void other_threads_post_and_know_that_they_are_others(void **state)
{
    fixture *f = *state;
    assert_true(bt_loop_is_current(f->loop));
    assert_int_equal(bt_loop_post(f->loop, start_poster, f), BT_OK);
    bt_loop_run(f->loop);
    assert_int_equal(f->n, 1);
}

/* ---- timers ---- */

typedef struct ticker {
    bt_loop *loop;
    bt_timer *timer;
    int n_ticks;
} ticker;

static void on_tick(void *ctx)
{
    ticker *t = ctx;
    if (++t->n_ticks == 3) {
        bt_timer_destroy(t->timer); /* inside its own callback */
        bt_loop_stop(t->loop);
    }
}

static void timer_repeats_until_destroyed(void **state)
{
    fixture *f = *state;
    ticker t = {.loop = f->loop};
    assert_int_equal(bt_timer_create(f->loop, on_tick, &t, &t.timer), BT_OK);
    bt_timer_start(t.timer, 0, 1);
    bt_loop_run(f->loop);
    assert_int_equal(t.n_ticks, 3);
}

static void stopped_timer_does_not_fire_and_earlier_fires_first(void **state)
{
    fixture *f = *state;
    bt_timer *never;
    bt_timer *first;
    bt_timer *second;
    bt_timer *last;
    assert_int_equal(bt_timer_create(f->loop, note_one, f, &never), BT_OK);
    assert_int_equal(bt_timer_create(f->loop, note_one, f, &first), BT_OK);
    assert_int_equal(bt_timer_create(f->loop, note_two, f, &second), BT_OK);
    assert_int_equal(bt_timer_create(f->loop, stop, f, &last), BT_OK);
    bt_timer_start(last, 6, 0);
    bt_timer_start(second, 3, 0);
    bt_timer_start(never, 0, 0);
    bt_timer_start(first, 1, 0);
    bt_timer_stop(never);
    bt_loop_run(f->loop);
    const int expected[] = {1, 2};
    assert_int_equal(f->n, 2);
    assert_memory_equal(f->order, expected, sizeof expected);
    bt_timer_destroy(never);
    bt_timer_destroy(first);
    bt_timer_destroy(second);
    bt_timer_destroy(last);
    bt_timer_destroy(NULL);
}

/* ---- watch ---- */

typedef struct watcher {
    bt_loop *loop;
    bt_watch *watch;
    int fds[2];
    int n_writable;
    size_t n_read;
    bool ended;
} watcher;

static void on_events(int fd, int events, void *ctx)
{
    watcher *w = ctx;
    char bytes[16];
    assert_int_equal(fd, w->fds[0]);
    if (events & BT_WATCH_WRITE && w->n_writable == 0) {
        w->n_writable++;
        assert_int_equal(write(w->fds[1], "hello", 5), 5);
        bt_watch_set(w->watch, BT_WATCH_READ);
        return;
    }
    const ssize_t n = read(fd, bytes, sizeof bytes);
    if (n > 0) {
        w->n_read += (size_t)n;
        assert_int_equal(close(w->fds[1]), 0);
    } else {
        w->ended = true;
        bt_watch_destroy(w->watch);
        assert_int_equal(close(fd), 0);
        bt_loop_stop(w->loop);
    }
}

static void watch_tells_writable_readable_and_the_end(void **state)
{
    fixture *f = *state;
    watcher w = {.loop = f->loop};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, w.fds), 0);
    assert_int_equal(bt_watch_create(f->loop, w.fds[0], on_events, &w, &w.watch), BT_OK);
    bt_watch_set(w.watch, BT_WATCH_READ | BT_WATCH_WRITE);
    bt_loop_run(f->loop);
    assert_int_equal(w.n_writable, 1);
    assert_int_equal(w.n_read, 5);
    assert_true(w.ended);
}

static void what_cannot_be_watched_is_refused(void **state)
{
    fixture *f = *state;
    bt_watch *watch;
    FILE *plain = tmpfile();
    assert_non_null(plain);
    assert_int_equal(bt_watch_create(f->loop, -1, on_events, f, &watch), BT_EINVAL);
    assert_int_equal(bt_watch_create(f->loop, fileno(plain), on_events, f, &watch), BT_EINVAL);
    assert_int_equal(fclose(plain), 0);
}

/* ---- work ---- */

typedef struct job {
    bt_loop *loop;
    bool worked;
    bool off_loop;
} job;

static void work(void *ctx)
{
    job *j = ctx;
    j->worked = true;
    j->off_loop = !bt_loop_is_current(j->loop);
}

static void work_done(void *ctx)
{
    job *j = ctx;
    assert_true(bt_loop_is_current(j->loop));
    bt_loop_stop(j->loop);
}

static void start_work(void *ctx)
{
    job *j = ctx;
    assert_int_equal(bt_loop_work(j->loop, work, work_done, j), BT_OK);
}

static void work_runs_off_the_loop_and_done_on_it(void **state)
{
    fixture *f = *state;
    job j = {.loop = f->loop};
    assert_int_equal(bt_loop_post(f->loop, start_work, &j), BT_OK);
    bt_loop_run(f->loop);
    assert_true(j.worked);
    assert_true(j.off_loop);
}

static void note_work(void *ctx)
{
    ((job *)ctx)->worked = true;
}

static void note_done(void *ctx)
{
    ((job *)ctx)->off_loop = true;
}

static void destroy_waits_for_work_in_flight(void **state)
{
    fixture *f = *state;
    job j = {.loop = f->loop};
    assert_int_equal(bt_loop_work(f->loop, note_work, note_done, &j), BT_OK);
    bt_loop_destroy(f->loop);
    assert_true(j.worked);
    assert_true(j.off_loop);
    assert_int_equal(bt_loop_create(&f->loop), BT_OK);
}

/* ---- signals ---- */

static void signal_calls_back_on_the_loop(void **state)
{
    fixture *f = *state;
    bt_signal *sig;
    assert_int_equal(bt_signal_create(f->loop, SIGUSR1, stop, f, &sig), BT_OK);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    bt_loop_run(f->loop);
    bt_signal_destroy(sig);
    assert_int_equal(bt_signal_create(f->loop, 12345, stop, f, &sig), BT_EINVAL);
}

#define loop_test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        loop_test(posts_run_in_order_and_may_post_again),
        loop_test(stop_before_run_makes_it_return),
        loop_test(posts_that_never_ran_are_dropped_by_destroy),
        loop_test(the_last_ring_is_always_seen),
        loop_test(other_threads_post_and_know_that_they_are_others),
        loop_test(timer_repeats_until_destroyed),
        loop_test(stopped_timer_does_not_fire_and_earlier_fires_first),
        loop_test(watch_tells_writable_readable_and_the_end),
        loop_test(what_cannot_be_watched_is_refused),
        loop_test(work_runs_off_the_loop_and_done_on_it),
        loop_test(destroy_waits_for_work_in_flight),
        loop_test(signal_calls_back_on_the_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
