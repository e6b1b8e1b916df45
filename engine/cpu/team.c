/* SPDX-License-Identifier: Apache-2.0 */
/* How it works: `round` counts operations. run() publishes fn and ctx, raises `round` and computes
 * its own share; a member that sees a new round computes its share and lowers `n_busy`.
 *
 * Whoever waits (a member for the next round, the caller for n_busy 0) spins, then sleeps on the
 * very word it waits for (futex). A sleeper first raises its count of sleepers, then the
 * kernel compares the word again; the other side first writes the word, then reads the count.
 * All four are sequentially consistent, so one of the two sees the other: no wake-up is lost, and
 * no system call is made where nobody sleeps.
 */
#include "engine/cpu/team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/check.h"

/* A pause takes 40 to 140 cycles: some 15 to 50 us, longer than the gaps inside a step. */
enum { N_SPINS = 1000 };

typedef struct member {
    bt_team *team;
    pthread_t thread;
    uint32_t idx;
} member;

struct bt_team {
    /* fixed after create */
    uint32_t n_members;
    member *members; /* [n_members - 1] */
    /* written by run() before `round` is raised, read by members after they saw it */
    bt_team_fn fn;
    void *ctx;
    bool stop;
    /* the words that are waited for, and how many sleep on each */
    BT_ALIGNED(64) _Atomic uint32_t round;
    _Atomic uint32_t n_round_sleepers;
    BT_ALIGNED(64) _Atomic uint32_t n_busy;
    _Atomic uint32_t n_busy_sleepers;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    (void)syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Returns when *word differs from `value`. Pairs with the write that changed it. */
static void wait_change(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *n_sleepers)
{
    for (uint32_t i = 0; i < N_SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) {
            return;
        }
        pause_cpu();
    }
    atomic_fetch_add(n_sleepers, 1);
    while (atomic_load(word) == value) {
        futex_wait(word, value);
    }
    atomic_fetch_sub(n_sleepers, 1);
}

static void *member_main(void *arg)
{
    const member *self = arg;
    bt_team *team = self->team;
    uint32_t seen = 0;
    for (;;) {
        wait_change(&team->round, seen, &team->n_round_sleepers);
        seen++; /* the caller waits for all members, so no round is skipped */
        if (team->stop) {
            return NULL;
        }
        team->fn(team->ctx, self->idx, team->n_members);
        /* Publishes what was computed; pairs with the caller's wait for n_busy. */
        if (atomic_fetch_sub(&team->n_busy, 1) == 1 && atomic_load(&team->n_busy_sleepers) > 0) {
            futex_wake_all(&team->n_busy);
        }
    }
}

static void start_round(bt_team *team)
{
    atomic_fetch_add(&team->round, 1); /* publishes fn, ctx, stop; pairs with wait_change */
    if (atomic_load(&team->n_round_sleepers) > 0) {
        futex_wake_all(&team->round);
    }
}

bt_status bt_team_create(uint32_t n_members, bt_team **out)
{
    if (n_members == 0) {
        return BT_EINVAL;
    }
    bt_team *team = aligned_alloc(64, bt_align_up(sizeof(*team), 64));
    if (team == NULL) {
        return BT_ENOMEM;
    }
    *team = (bt_team){.n_members = 1};
    if (n_members > 1) {
        team->members = calloc(n_members - 1, sizeof(*team->members));
        if (team->members == NULL) {
            free(team);
            return BT_ENOMEM;
        }
    }
    for (uint32_t i = 1; i < n_members; i++) {
        member *m = &team->members[i - 1];
        *m = (member){.team = team, .idx = i};
        if (pthread_create(&m->thread, NULL, member_main, m) != 0) {
            bt_team_destroy(team);
            return BT_ENOMEM;
        }
        team->n_members = i + 1; /* read by members after the first round starts */
    }
    *out = team;
    return BT_OK;
}

void bt_team_destroy(bt_team *team)
{
    if (team == NULL) {
        return;
    }
    team->stop = true;
    start_round(team);
    for (uint32_t i = 1; i < team->n_members; i++) {
        (void)pthread_join(team->members[i - 1].thread, NULL);
    }
    free(team->members);
    free(team);
}

void bt_team_run(bt_team *team, bt_team_fn fn, void *ctx)
{
    const uint32_t n = team->n_members;
    if (n == 1) {
        fn(ctx, 0, 1);
        return;
    }
    BT_ASSERT(atomic_load_explicit(&team->n_busy, memory_order_relaxed) == 0);
    team->fn = fn;
    team->ctx = ctx;
    atomic_store_explicit(&team->n_busy, n - 1, memory_order_relaxed);
    start_round(team);
    fn(ctx, 0, n);
    uint32_t busy = atomic_load_explicit(&team->n_busy, memory_order_acquire);
    while (busy != 0) {
        wait_change(&team->n_busy, busy, &team->n_busy_sleepers);
        busy = atomic_load_explicit(&team->n_busy, memory_order_acquire);
    }
}

uint32_t bt_team_size(const bt_team *team)
{
    return team->n_members;
}
