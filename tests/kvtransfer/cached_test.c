/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls of cached blocks by identity, over shm, tcp and loopback: the source is asked once, by
 * whole identities in order, offers what it holds, and what it does not answer, refuses or offers
 * too late ends in time on both sides. The parts move as in any other transfer (transport_test). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/kvtransfer/kv_rig.h"

enum { FIRST = 4, HELD = 5 };

static kv_rig *rig_of(void **state)
{
    return *state;
}

/* Holds HELD of them, as an owner that answers at once. */
static void offer_held(kv_rig *rig, uint32_t i)
{
    kv_rig_offer(rig, i, FIRST, HELD);
    kv_rig_announce_all(rig, i, HELD);
    kv_rig_complete(rig, i, "", false);
}

static void refuse(kv_rig *rig, uint32_t i)
{
    assert_int_equal(
        bt_kv_source_refuse(rig->source, kv_rig_name(i), BT_ENOTFOUND, "evicted meanwhile"), BT_OK);
}

static bool is_offered(kv_rig *rig, void *ctx)
{
    (void)rig;
    return ((const kv_rig_end *)ctx)->n_offered > 0;
}

static bool is_asked(kv_rig *rig, void *ctx)
{
    (void)rig;
    return ((const kv_rig_end *)ctx)->n_wanted > 0;
}

static void expect_all_gone(kv_rig *rig)
{
    assert_int_equal(bt_kv_source_counters_get(rig->source)->transfers_open, 0);
    assert_int_equal(bt_kv_source_counters_get(rig->source)->transfers_parked, 0);
    assert_int_equal(bt_kv_sink_counters_get(rig->sink)->transfers_open, 0);
}

static void the_leading_blocks_that_are_held_move(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_end *end = kv_rig_end_of(rig, 1);
    rig->on_wanted = offer_held;
    kv_rig_open_cached(rig, 1, 7);
    assert_true(kv_rig_run(rig, is_offered, end));
    assert_int_equal(end->n_wanted, 7);
    for (uint32_t b = 0; b < 7; b++) {
        assert_true(bt_hash128_equal(end->wanted[b], kv_rig_identity(b)));
    }
    assert_int_equal(end->n_offered, HELD);
    kv_rig_pull(rig, 1, FIRST, HELD, 2);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(end->n_done, 1);
    assert_int_equal(end->stats.blocks_moved, HELD - 2);
    assert_int_equal(end->stats.transport, rig->transport);
    kv_rig_expect_moved(rig, FIRST, HELD, 2);
    assert_true(kv_rig_run_released(rig, 1));
    assert_int_equal(end->outcome, BT_KV_OUTCOME_PULLED);
    expect_all_gone(rig);
}

static void the_longest_pull_arrives_whole(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_end *end = kv_rig_end_of(rig, 1);
    rig->on_wanted = refuse;
    kv_rig_open_cached(rig, 1, BT_KV_WANTED_MAX);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(end->n_wanted, BT_KV_WANTED_MAX);
    assert_true(
        bt_hash128_equal(end->wanted[BT_KV_WANTED_MAX - 1], kv_rig_identity(BT_KV_WANTED_MAX - 1)));
    const bt_hash128 id = kv_rig_identity(0);
    for (uint32_t n = 0; n <= BT_KV_WANTED_MAX + 1; n += BT_KV_WANTED_MAX + 1) {
        assert_int_equal(bt_kv_sink_open_cached(rig->sink, kv_rig_name(2), &rig->peer,
                                                rig->now_ns + 1, &id, n, NULL),
                         BT_EINVAL);
    }
}

static void unknown_blocks_are_refused_at_once(void **state)
{
    kv_rig *rig = rig_of(state);
    rig->on_wanted = refuse;
    const int64_t before_ns = rig->now_ns;
    kv_rig_open_cached(rig, 1, 3);
    assert_true(kv_rig_run_done(rig, 1));
    assert_true(rig->now_ns - before_ns < 200 * (int64_t)1000000);
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_ENOTFOUND);
    assert_string_equal(kv_rig_end_of(rig, 1)->text, "evicted meanwhile");
    kv_rig_expect_untouched(rig);
    kv_rig_run_for(rig, 4);
    expect_all_gone(rig);
}

static void a_source_that_hands_nothing_on_says_so(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_stop_source(rig);
    rig->hands_nothing_on = true;
    kv_rig_start_source(rig);
    kv_rig_open_cached(rig, 1, 3);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EUNSUPPORTED);
}

static void an_owner_that_never_answers_costs_no_more_than_the_deadline(void **state)
{
    kv_rig *rig = rig_of(state);
    rig->step_ns *= 20;
    kv_rig_open_cached(rig, 1, 3);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EDEADLINE);
    kv_rig_run_for(rig, 100);
    expect_all_gone(rig);
}

/* Pinned for nobody: the lease gives the blocks back. */
static void an_offer_after_the_sink_cancelled_ends_with_its_lease(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_end *end = kv_rig_end_of(rig, 1);
    kv_rig_open_cached(rig, 1, 3);
    assert_true(kv_rig_run(rig, is_asked, end));
    assert_int_equal(bt_kv_sink_cancel(rig->sink, kv_rig_name(1)), BT_OK);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(end->status, BT_ECANCELLED);
    kv_rig_run_for(rig, 4);
    offer_held(rig, 1);
    kv_rig_advance(rig, BT_KV_LEASE_MS + 1);
    assert_true(kv_rig_run_released(rig, 1));
    assert_int_equal(end->outcome, BT_KV_OUTCOME_EXPIRED);
    kv_rig_expect_untouched(rig);
    expect_all_gone(rig);
}

static void a_cancel_while_parts_move_releases_the_blocks(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_end *end = kv_rig_end_of(rig, 1);
    rig->on_wanted = offer_held;
    kv_rig_open_cached(rig, 1, HELD);
    assert_true(kv_rig_run(rig, is_offered, end));
    kv_rig_pull(rig, 1, FIRST, HELD, 0);
    assert_int_equal(bt_kv_sink_cancel(rig->sink, kv_rig_name(1)), BT_OK);
    assert_true(kv_rig_run_done(rig, 1));
    assert_true(kv_rig_run_released(rig, 1));
    kv_rig_wipe_sink(rig);
    kv_rig_run_for(rig, 4);
    kv_rig_expect_untouched(rig);
    expect_all_gone(rig);
}

/* Its blocks are another request's, under other identities. */
static void what_is_offered_by_name_is_not_pulled_by_identity(void **state)
{
    kv_rig *rig = rig_of(state);
    offer_held(rig, 1);
    kv_rig_open_cached(rig, 1, 3);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EEXISTS);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_wanted, 0);
    assert_int_equal(bt_kv_source_cancel(rig->source, kv_rig_name(1), BT_ECANCELLED, ""), BT_OK);
    assert_true(kv_rig_run_released(rig, 1));
}

static void another_numerics_id_is_refused(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_stop_sink(rig);
    rig->sink_options.terms.numerics_id[3] ^= 1;
    kv_rig_start_sink(rig);
    rig->on_wanted = offer_held;
    kv_rig_open_cached(rig, 1, HELD);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EMISMATCH);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_wanted, 0);
    kv_rig_expect_untouched(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KV_RIG_ON_ALL(the_leading_blocks_that_are_held_move),
        KV_RIG_ON_ALL(the_longest_pull_arrives_whole),
        KV_RIG_ON_ALL(unknown_blocks_are_refused_at_once),
        KV_RIG_ON_ALL(a_source_that_hands_nothing_on_says_so),
        KV_RIG_ON_ALL(an_owner_that_never_answers_costs_no_more_than_the_deadline),
        KV_RIG_ON_ALL(an_offer_after_the_sink_cancelled_ends_with_its_lease),
        KV_RIG_ON_ALL(a_cancel_while_parts_move_releases_the_blocks),
        KV_RIG_ON_ALL(what_is_offered_by_name_is_not_pulled_by_identity),
        KV_RIG_ON_ALL(another_numerics_id_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
