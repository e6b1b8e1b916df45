/* SPDX-License-Identifier: Apache-2.0 */
/* Streams move between real decode workers in mid-stream, as often as the workers are drained: the
 * tokens, logprobs, text and usage are those of an undisturbed run, compared with ==, no prompt is
 * computed again, no stream is recovered (the router allows no recovery), and every block comes
 * home (the cluster audits each pool). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/cluster.h"

enum {
    N_KINDS = 6,
    PROMPT = 100,
    GRACE_MS = 20000,
#ifdef BT_SLOW_CHECKS
    MOVES = 2, /* sanitizers take many times as long */
    TOKENS = 120,
#else
    MOVES = 4,
    TOKENS = 400,
#endif
};

/* The same request each time: greedy or sampled, with what must go along. */
static void fill(bt_cluster_request *r, uint32_t kind)
{
    memset(r, 0, sizeof *r);
    r->n_prompt = PROMPT + kind * 7; /* of different length in their last block */
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        r->prompt[i] = (i * 37 + kind * 11 + 5) % 251;
    }
    r->max_tokens = TOKENS;
    r->seed = 1000 + kind;
    r->temperature = kind == 0 ? 0 : 0.9F;
    r->repetition_penalty = kind == 2 || kind == 5 ? 1.3F : 0;
    r->logprobs = kind >= 3;
    r->echo = kind == 4;
}

/* A stop string that comes late in this text, if it has one, and spans two tokens (bytes). */
static void stop_late(bt_cluster_request *r, const bt_cluster_request *truth, char stop[3])
{
    for (size_t at = truth->text_len / 2; at + 2 < truth->text_len; at++) {
        memcpy(stop, truth->text + at, 2);
        stop[2] = '\0';
        const bool is_ascii = stop[0] > ' ' && stop[0] <= '~' && stop[1] > ' ' && stop[1] <= '~';
        if (is_ascii && strstr(truth->text, stop) == truth->text + at) {
            r->stop = stop;
            return;
        }
    }
}

static bt_cluster *start(bt_kv_transport transport, bt_link_role second)
{
    const bt_cluster_options options = {
        .n_workers = 3,
        .workers = {{.role = second == BT_LINK_ROLE_BOTH ? BT_LINK_ROLE_BOTH : BT_LINK_ROLE_PREFILL,
                     .transport = transport},
                    {.role = second, .transport = transport},
                    {.role = second, .transport = transport}},
        .recoveries_max = 0,
    };
    return bt_cluster_create(&options);
}

/* The worker among 0.. that decodes, or -1. */
static int busy_worker(bt_cluster *cluster)
{
    for (uint32_t i = 0; i < bt_cluster_n_workers(cluster); i++) {
        bt_worker_health health;
        if (!bt_cluster_is_alive(cluster, i)) {
            continue;
        }
        bt_cluster_health(cluster, i, &health);
        if (health.runs_open > 0 && health.load.decode_tokens > 0 &&
            health.load.requests_running > 0) {
            return (int)i;
        }
    }
    return -1;
}

static bool is_moved(void *ctx)
{
    const bt_cluster_request *r = ctx;
    return r->done || busy_worker(r->cluster) >= 0;
}

/* Runs the request while its decode worker is drained again and again. Returns the moves. */
static uint32_t run_moving(bt_cluster *cluster, bt_cluster_request *r)
{
    uint32_t n = 0;
    bt_cluster_send(cluster, r);
    for (uint32_t i = 0; i < MOVES && !r->done; i++) {
        bt_cluster_wait_tokens(cluster, r, 1 + i * TOKENS / (MOVES + 1));
        if (r->done) {
            break;
        }
        const int at = busy_worker(cluster);
        if (at < 0) {
            continue; /* the report is on its way */
        }
        bt_cluster_drain(cluster, (uint32_t)at, GRACE_MS);
        bt_cluster_wait(cluster, is_moved, r);
        while (bt_cluster_is_draining(cluster, (uint32_t)at)) {
            bt_cluster_run_ms(cluster, 1);
        }
        n++;
        bt_cluster_restart(cluster, (uint32_t)at);
        bt_cluster_wait_attached(cluster);
    }
    bt_cluster_wait_done(cluster, r);
    return n;
}

static void expect_same_tokens(bt_kv_transport transport, bt_link_role role)
{
    bt_cluster *cluster = start(transport, role);
    static bt_cluster_request truth, r;
    uint32_t n_moves = 0;
    for (uint32_t kind = 0; kind < N_KINDS; kind++) {
        char stop[3] = "";
        fill(&truth, kind);
        bt_cluster_send(cluster, &truth);
        bt_cluster_wait_done(cluster, &truth);
        if (kind == 5) {
            static bt_cluster_request whole;
            whole = truth;
            fill(&truth, kind);
            stop_late(&truth, &whole, stop);
            bt_cluster_send(cluster, &truth);
            bt_cluster_wait_done(cluster, &truth);
        }
        fill(&r, kind);
        r.stop = truth.stop;
        n_moves += run_moving(cluster, &r);
        const char *differs = bt_cluster_compare(&r, &truth);
        if (differs != NULL) {
            fail_msg("kind %u differs in %s: code=%d %s", kind, differs, r.code, r.message);
        }
        bt_cluster_wait_idle(cluster);
    }
    assert_true(n_moves >= N_KINDS);
    bt_cluster_destroy(cluster);
}

static void moved_streams_have_the_same_tokens_over_loopback(void **state)
{
    (void)state;
    expect_same_tokens(BT_KV_TRANSPORT_LOOPBACK, BT_LINK_ROLE_DECODE);
}

static void moved_streams_have_the_same_tokens_over_tcp(void **state)
{
    (void)state;
    expect_same_tokens(BT_KV_TRANSPORT_TCP, BT_LINK_ROLE_DECODE);
}

static void moved_streams_have_the_same_tokens_over_shm(void **state)
{
    (void)state;
    expect_same_tokens(BT_KV_TRANSPORT_SHM, BT_LINK_ROLE_DECODE);
}

static void combined_workers_hand_over_to_each_other(void **state)
{
    (void)state;
    expect_same_tokens(BT_KV_TRANSPORT_LOOPBACK, BT_LINK_ROLE_BOTH);
}

/* All streams of a worker at once, and the prefill worker computes each prompt once. */
static void a_full_worker_empties_and_nothing_is_computed_again(void **state)
{
    (void)state;
    enum { N = 6 };
    bt_cluster *cluster = start(BT_KV_TRANSPORT_TCP, BT_LINK_ROLE_DECODE);
    static bt_cluster_request truth[N], r[N];
    for (uint32_t i = 0; i < N; i++) {
        fill(&truth[i], i);
        bt_cluster_send(cluster, &truth[i]);
        bt_cluster_wait_done(cluster, &truth[i]);
    }
    bt_cluster_wait_idle(cluster);
    bt_worker_health before, after;
    bt_cluster_health(cluster, 0, &before);
    uint64_t n_prompt = 0;
    for (uint32_t i = 0; i < N; i++) {
        fill(&r[i], i);
        n_prompt += r[i].n_prompt;
        bt_cluster_send(cluster, &r[i]);
    }
    for (uint32_t i = 0; i < N; i++) {
        bt_cluster_wait_tokens(cluster, &r[i], 30);
    }
    bt_cluster_drain(cluster, 1, GRACE_MS);
    while (bt_cluster_is_draining(cluster, 1)) {
        bt_cluster_run_ms(cluster, 1);
    }
    uint32_t n_moved = 0;
    for (uint32_t i = 0; i < N; i++) {
        bt_cluster_wait_done(cluster, &r[i]);
        const char *differs = bt_cluster_compare(&r[i], &truth[i]);
        if (differs != NULL) {
            fail_msg("stream %u differs in %s: code=%d %s", i, differs, r[i].code, r[i].message);
        }
        n_moved += r[i].attempts > 1;
    }
    assert_true(n_moved > 0);
    bt_cluster_wait_idle(cluster);
    bt_cluster_health(cluster, 0, &after);
    /* An echo with logprobs is computed whole, without looking anything up. */
    const uint64_t looked_up = after.load.prefix_hit_tokens + after.load.prefix_miss_tokens -
                               before.load.prefix_hit_tokens - before.load.prefix_miss_tokens;
    assert_int_equal(looked_up, n_prompt - r[4].n_prompt);
    bt_cluster_destroy(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moved_streams_have_the_same_tokens_over_loopback),
        cmocka_unit_test(moved_streams_have_the_same_tokens_over_tcp),
        cmocka_unit_test(moved_streams_have_the_same_tokens_over_shm),
        cmocka_unit_test(combined_workers_hand_over_to_each_other),
        cmocka_unit_test(a_full_worker_empties_and_nothing_is_computed_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
