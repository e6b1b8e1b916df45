/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that drains leaves its hot prefixes behind: the next request with the same beginning
 * finds them on another worker of its role, with the tokens of an undisturbed run, compared with
 * ==. When a fetch breaks, the prompt is computed again, and nothing is lost. Every pool passes its
 * audit (the cluster sees to it). */
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
    SHARED = 320, /* tokens that all prompts begin with: 20 blocks */
    TOKENS = 24,
    GRACE_MS = 20000,
};

/* The shared beginning, an end of its own. */
static void fill(bt_cluster_request *r, uint32_t kind, const char *salt)
{
    memset(r, 0, sizeof *r);
    r->n_prompt = SHARED + 21;
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        r->prompt[i] = (i * 37 + (i < SHARED ? 0 : kind * 11) + 5) % 251;
    }
    r->max_tokens = TOKENS;
    r->seed = 1000 + kind;
    r->temperature = 0.9F;
    r->logprobs = true;
    r->salt = salt;
}

static void ask(bt_cluster *cluster, bt_cluster_request *r)
{
    bt_cluster_send(cluster, r);
    bt_cluster_wait_done(cluster, r);
    bt_cluster_wait_idle(cluster);
}

static uint32_t n_cached(bt_cluster *cluster, uint32_t worker)
{
    bt_worker_health health;
    bt_cluster_health(cluster, worker, &health);
    return health.load.blocks_cached;
}

static bt_link_load load_of(bt_cluster *cluster, uint32_t worker)
{
    bt_worker_health health;
    bt_cluster_health(cluster, worker, &health);
    return health.load;
}

static void drain(bt_cluster *cluster, uint32_t worker)
{
    bt_cluster_drain(cluster, worker, GRACE_MS);
    while (bt_cluster_is_draining(cluster, worker)) {
        bt_cluster_run_ms(cluster, 1);
    }
}

typedef struct scene {
    bt_cluster *cluster;
    uint32_t holder; /* which of the two has the shared beginning */
    uint32_t other;
    bt_link_load before; /* of the other one */
    bt_cluster_request truth;
    bt_cluster_request first;
    bt_cluster_request next;
} scene;

/* Workers 0 and 1 are alike; one of them gets the shared beginning. */
static scene *begin(bt_kv_transport transport, bt_link_role role)
{
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    const bool split = role != BT_LINK_ROLE_BOTH;
    const bt_link_role third =
        role == BT_LINK_ROLE_PREFILL ? BT_LINK_ROLE_DECODE : BT_LINK_ROLE_PREFILL;
    const bt_cluster_options options = {
        .n_workers = split ? 3 : 2,
        .workers = {{.role = role, .transport = transport},
                    {.role = role, .transport = transport},
                    {.role = third, .transport = transport}},
        .no_local_prefill = split,
    };
    s->cluster = bt_cluster_create(&options);
    fill(&s->truth, 2, "apart"); /* shares nothing with those without a salt */
    ask(s->cluster, &s->truth);
    const uint32_t n_0 = n_cached(s->cluster, 0);
    fill(&s->first, 1, NULL);
    ask(s->cluster, &s->first);
    s->holder = n_cached(s->cluster, 0) > n_0 ? 0 : 1;
    s->other = 1 - s->holder;
    s->before = load_of(s->cluster, s->other);
    return s;
}

static void end(scene *s)
{
    fill(&s->next, 2, NULL);
    ask(s->cluster, &s->next);
    const char *differs = bt_cluster_compare(&s->next, &s->truth);
    if (differs != NULL) {
        fail_msg("differs in %s: code=%d %s", differs, s->next.code, s->next.message);
    }
}

static void expect_handed_on(bt_kv_transport transport, bt_link_role role)
{
    scene *s = begin(transport, role);
    drain(s->cluster, s->holder);
    const bt_link_load fetched = load_of(s->cluster, s->other);
    assert_true(fetched.blocks_cached >= s->before.blocks_cached + SHARED / 16);
    end(s);
    assert_int_equal(s->next.attempts, 1);
    const bt_link_load after = load_of(s->cluster, s->other);
    assert_int_equal(after.prefix_hits, s->before.prefix_hits + 1);
    assert_true(after.prefix_hit_tokens >= s->before.prefix_hit_tokens + SHARED);
    assert_int_equal(after.blocks_evicted, 0);
    bt_cluster_destroy(s->cluster);
    free(s);
}

static void combined_workers_hand_prefixes_on_over_loopback(void **state)
{
    (void)state;
    expect_handed_on(BT_KV_TRANSPORT_LOOPBACK, BT_LINK_ROLE_BOTH);
}

static void combined_workers_hand_prefixes_on_over_tcp(void **state)
{
    (void)state;
    expect_handed_on(BT_KV_TRANSPORT_TCP, BT_LINK_ROLE_BOTH);
}

static void combined_workers_hand_prefixes_on_over_shm(void **state)
{
    (void)state;
    expect_handed_on(BT_KV_TRANSPORT_SHM, BT_LINK_ROLE_BOTH);
}

static void prefill_workers_hand_prefixes_on(void **state)
{
    (void)state;
    expect_handed_on(BT_KV_TRANSPORT_TCP, BT_LINK_ROLE_PREFILL);
}

static void decode_workers_hand_prefixes_on(void **state)
{
    (void)state;
    expect_handed_on(BT_KV_TRANSPORT_SHM, BT_LINK_ROLE_DECODE);
}

static void cut(void *ctx)
{
    scene *s = ctx;
    bt_kv_fault_cut(bt_cluster_kv_fault(s->cluster, s->other));
}

static void kill_holder(void *ctx)
{
    scene *s = ctx;
    bt_cluster_kill(s->cluster, s->holder);
}

static void cut_when_seen(void *ctx)
{
    scene *s = ctx;
    bt_cluster_watch(s->cluster, NULL, NULL);
    bt_cluster_soon(s->cluster, cut, s);
}

static void kill_when_seen(void *ctx)
{
    scene *s = ctx;
    bt_cluster_watch(s->cluster, NULL, NULL);
    bt_cluster_soon(s->cluster, kill_holder, s);
}

/* Its connection breaks at the first event of a part. */
static void a_fetch_that_breaks_costs_the_prefix_alone(void **state)
{
    (void)state;
    scene *s = begin(BT_KV_TRANSPORT_TCP, BT_LINK_ROLE_BOTH);
    bt_cluster_watch(s->cluster, cut_when_seen, s);
    drain(s->cluster, s->holder);
    bt_cluster_wait_idle(s->cluster);
    end(s);
    assert_true(load_of(s->cluster, s->other).pulls_failed > s->before.pulls_failed);
    bt_cluster_destroy(s->cluster);
    free(s);
}

/* One that reads nothing does not keep the other one from going. */
static void a_worker_that_fetches_and_stops_keeps_nobody(void **state)
{
    (void)state;
    scene *s = begin(BT_KV_TRANSPORT_TCP, BT_LINK_ROLE_BOTH);
    bt_cluster_stop(s->cluster, s->other, true);
    drain(s->cluster, s->holder);
    bt_cluster_stop(s->cluster, s->other, false);
    bt_cluster_wait_attached(s->cluster);
    end(s);
    bt_cluster_destroy(s->cluster);
    free(s);
}

static void a_killed_source_frees_what_was_reserved(void **state)
{
    (void)state;
    scene *s = begin(BT_KV_TRANSPORT_SHM, BT_LINK_ROLE_BOTH);
    bt_cluster_watch(s->cluster, kill_when_seen, s);
    drain(s->cluster, s->holder);
    bt_cluster_wait_idle(s->cluster);
    end(s);
    assert_true(load_of(s->cluster, s->other).pulls_failed > s->before.pulls_failed);
    bt_cluster_destroy(s->cluster);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(combined_workers_hand_prefixes_on_over_loopback),
        cmocka_unit_test(combined_workers_hand_prefixes_on_over_tcp),
        cmocka_unit_test(combined_workers_hand_prefixes_on_over_shm),
        cmocka_unit_test(prefill_workers_hand_prefixes_on),
        cmocka_unit_test(decode_workers_hand_prefixes_on),
        cmocka_unit_test(a_fetch_that_breaks_costs_the_prefix_alone),
        cmocka_unit_test(a_worker_that_fetches_and_stops_keeps_nobody),
        cmocka_unit_test(a_killed_source_frees_what_was_reserved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
