/* SPDX-License-Identifier: Apache-2.0 */
/* Failures as inputs: cancels in every state, connections that break and bytes that flip at
 * every place, wrong checksums, silence, leases and deadlines on a fake clock. Whatever
 * happens: one callback a side, right bytes or none claimed, and nobody writes the sink's
 * blocks after its callback. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/kvtransfer/kv_rig.h"

enum { BLOCKS = 6, STEPS = 6, QUIET_POLLS = 20, MS = 1000000 };

static kv_rig *rig_of(void **state)
{
    return *state;
}

/* One transfer as a script of steps; calls on a transfer that has ended are let go. */
static void do_step(kv_rig *rig, int step)
{
    const bt_kv_transfer name = kv_rig_name(1);
    bt_status status = BT_OK;
    switch (step) {
    case 0:
        kv_rig_open(rig, 1);
        return;
    case 1:
        kv_rig_offer(rig, 1, 2, BLOCKS);
        return;
    case 2:
        status = bt_kv_source_announce(rig->source, name, 1, 0, BLOCKS);
        break;
    case 3:
        if (kv_rig_end_of(rig, 1)->n_failed == 0) {
            bt_block_id ids[BLOCKS];
            for (uint32_t b = 0; b < BLOCKS; b++) {
                ids[b] = RIG_BLOCKS - 1 - 2 - b;
            }
            status = bt_kv_sink_pull(rig->sink, name, ids, BLOCKS, 1, NULL);
        }
        break;
    case 4:
        status = bt_kv_source_announce_blocks(rig->source, name, 0, BLOCKS);
        break;
    default:
        status = bt_kv_source_complete(rig->source, name, "token", 5, false);
        break;
    }
    assert_true(status == BT_OK || status == BT_ENOTFOUND);
}

static bool has_ended(kv_rig *rig, void *ctx)
{
    (void)ctx;
    const kv_rig_end *end = kv_rig_end_of(rig, 1);
    return end->n_done + end->n_failed > 0 && (!rig->offered[1] || end->n_released > 0);
}

static bool has_ended_or_is_quiet(kv_rig *rig, void *ctx)
{
    return rig->n_polls >= QUIET_POLLS || has_ended(rig, ctx);
}

/* Waits for both callbacks, then shows that nothing is written any more. What has not ended after
 * some turns of the loop waits for a lease or a deadline: the clock then runs faster. */
static void expect_clean_end(kv_rig *rig)
{
    assert_true(kv_rig_run(rig, has_ended_or_is_quiet, NULL));
    rig->step_ns = 200 * (int64_t)MS;
    assert_true(kv_rig_run(rig, has_ended, NULL));
    const kv_rig_end *end = kv_rig_end_of(rig, 1);
    assert_int_equal(end->n_done + end->n_failed, 1);
    if (end->n_done == 1) {
        assert_memory_equal(end->blob, "token", 5);
        kv_rig_expect_moved(rig, 2, BLOCKS, 1);
    }
    kv_rig_wipe_sink(rig);
    kv_rig_run_for(rig, 4);
    kv_rig_expect_untouched(rig);
    assert_int_equal(bt_kv_sink_counters_get(rig->sink)->transfers_open, 0);
    assert_int_equal(bt_kv_source_counters_get(rig->source)->transfers_open, 0);
}

/* A rig of its own for each case, with short leases and a fast clock. */
static void begin_case(kv_rig *rig, bt_kv_transport transport)
{
    kv_rig_create(rig, transport);
    rig->step_ns = 20 * (int64_t)MS;
    rig->source_options.lease_ms = 1000;
    rig->sink_options.lease_ms = 1000;
}

static void cancels_in_every_state(bt_kv_transport transport, bool by_sink)
{
    for (int at = by_sink ? 0 : 1; at < STEPS; at++) {
        for (int polls = 0; polls < 4; polls += 3) {
            kv_rig rig;
            begin_case(&rig, transport);
            rig.step_ns = MS;
            kv_rig_start_source(&rig);
            kv_rig_start_sink(&rig);
            for (int step = 0; step <= at; step++) {
                do_step(&rig, step);
                kv_rig_run_for(&rig, polls);
            }
            const kv_rig_end *end = kv_rig_end_of(&rig, 1);
            const bt_kv_transfer name = kv_rig_name(1);
            const bt_status status =
                by_sink ? bt_kv_sink_cancel(rig.sink, name)
                        : bt_kv_source_cancel(rig.source, name, BT_EABORTED, "worker drains");
            if (status == BT_OK && at < STEPS - 1) {
                rig.step_ns = 20 * (int64_t)MS;
                expect_clean_end(&rig);
                assert_int_equal(end->n_failed, 1);
                assert_int_equal(end->status, by_sink ? BT_ECANCELLED : BT_EABORTED);
                if (!by_sink) {
                    assert_string_equal(end->text, "worker drains");
                    assert_int_equal(end->outcome, BT_KV_OUTCOME_CANCELLED);
                }
            } else { /* it may have been done already */
                rig.step_ns = 20 * (int64_t)MS;
                expect_clean_end(&rig);
            }
            kv_rig_destroy(&rig);
        }
    }
}

static void a_cancel_by_the_sink_ends_every_state(void **state)
{
    cancels_in_every_state(*(const bt_kv_transport *)*state, true);
}

static void a_cancel_by_the_source_ends_every_state(void **state)
{
    cancels_in_every_state(*(const bt_kv_transport *)*state, false);
}

/* Returns how many bytes of frames the faulty side has sent. */
static uint64_t run_with_fault(bt_kv_transport transport, bool at_sink, bt_kv_fault fault)
{
    kv_rig rig;
    begin_case(&rig, transport);
    if (at_sink) {
        rig.sink_options.fault = &fault;
    } else {
        rig.source_options.fault = &fault;
    }
    kv_rig_start_source(&rig);
    kv_rig_start_sink(&rig);
    for (int step = 0; step < STEPS; step++) {
        do_step(&rig, step);
        if (step % 2 == 1) {
            kv_rig_run_for(&rig, 1);
        }
    }
    expect_clean_end(&rig);
    /* Whatever breaks on the way, another source may serve: it is not the request's own fault. */
    assert_int_not_equal(kv_rig_end_of(&rig, 1)->status, BT_EPERMISSION);
    if (fault.flip_at == 0 && fault.cut_at == 0) {
        assert_int_equal(kv_rig_end_of(&rig, 1)->n_done, 1);
    }
    kv_rig_destroy(&rig);
    return fault.bytes;
}

static void a_connection_that_breaks_anywhere_ends_both_sides(void **state)
{
    const bt_kv_transport transport = *(const bt_kv_transport *)*state;
    for (int at_sink = 0; at_sink < 2; at_sink++) {
        const uint64_t all = run_with_fault(transport, at_sink, (bt_kv_fault){0});
        assert_true(all > 200);
        for (uint64_t n = 1; n <= all; n += 97) {
            (void)run_with_fault(transport, at_sink, (bt_kv_fault){.cut_at = n});
        }
    }
}

static void a_flipped_byte_anywhere_harms_nothing(void **state)
{
    const bt_kv_transport transport = *(const bt_kv_transport *)*state;
    for (int at_sink = 0; at_sink < 2; at_sink++) {
        const uint64_t all = run_with_fault(transport, at_sink, (bt_kv_fault){0});
        for (uint64_t n = 1; n <= all; n += n < 1000 ? 37 : 71) {
            (void)run_with_fault(transport, at_sink, (bt_kv_fault){.flip_at = n});
        }
    }
}

/* ---- with a rig from set-up ---- */

static bool is_summed(kv_rig *rig, void *ctx)
{
    return bt_kv_source_counters_get(rig->source)->parts_summed == *(const uint64_t *)ctx;
}

/* Announced and checksummed, then one byte of the source's memory changes. */
static void offer_with_corrupt_part(kv_rig *rig)
{
    kv_rig_offer(rig, 1, 2, BLOCKS);
    kv_rig_announce_all(rig, 1, BLOCKS);
    uint64_t n = BLOCKS * RIG_LAYERS;
    assert_true(kv_rig_run(rig, is_summed, &n));
    kv_rig_source_block(rig, 2, 3)[1500] ^= 1;
    kv_rig_complete(rig, 1, "token", false);
}

static void a_part_that_stays_wrong_fails_the_transfer(void **state)
{
    kv_rig *rig = rig_of(state);
    offer_with_corrupt_part(rig);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 2, BLOCKS, 0);
    assert_true(kv_rig_run_done(rig, 1));
    const kv_rig_end *end = kv_rig_end_of(rig, 1);
    assert_int_equal(end->status, BT_ECORRUPT);
    assert_int_equal(bt_kv_sink_counters_get(rig->sink)->rejected_corrupt, 9);
    assert_int_equal(bt_kv_sink_counters_get(rig->sink)->parts_retried, 8);
    assert_true(kv_rig_run_released(rig, 1));
    assert_int_equal(end->outcome, BT_KV_OUTCOME_FAILED);
}

static void repair(kv_rig *rig, const bt_kv_trace *event)
{
    if (event->kind == BT_KV_TRACE_MOVED) {
        rig->on_trace = NULL;
        kv_rig_source_block(rig, 2, 3)[1500] ^= 1;
    }
}

static void a_part_that_was_wrong_once_is_asked_for_again(void **state)
{
    kv_rig *rig = rig_of(state);
    offer_with_corrupt_part(rig);
    rig->on_trace = repair; /* after the first copy */
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 2, BLOCKS, 0);
    assert_true(kv_rig_run_done(rig, 1));
    const kv_rig_end *end = kv_rig_end_of(rig, 1);
    assert_int_equal(end->n_done, 1);
    assert_int_equal(end->stats.parts_retried, 1);
    kv_rig_expect_moved(rig, 2, BLOCKS, 0);
    assert_true(kv_rig_run_released(rig, 1));
}

static void open_for_long(kv_rig *rig, uint32_t i)
{
    const int64_t deadline_ns = rig->now_ns + 100000 * (int64_t)MS;
    assert_int_equal(bt_kv_sink_open(rig->sink, kv_rig_name(i), &rig->peer, deadline_ns, NULL),
                     BT_OK);
    rig->opened[i] = true;
}

/* Two pulls by a sink that stops for a while. */
static void begin_held(kv_rig *rig, bt_kv_transport transport, bt_kv_fault *fault)
{
    kv_rig_create(rig, transport);
    rig->sink_options.fault = fault;
    kv_rig_start_source(rig);
    kv_rig_start_sink(rig);
    for (uint32_t i = 1; i <= 2; i++) {
        kv_rig_offer(rig, i, 30 * i, 4);
        open_for_long(rig, i);
        kv_rig_pull(rig, i, 30 * i, 4, 0);
    }
    kv_rig_run_for(rig, 5);
    bt_kv_fault_hold(fault, true);
}

static void a_slow_answer_to_a_revoke_holds_that_transfer_alone(void **state)
{
    kv_rig rig;
    bt_kv_fault fault = {0};
    begin_held(&rig, *(const bt_kv_transport *)*state, &fault);
    assert_int_equal(bt_kv_source_cancel(rig.source, kv_rig_name(1), BT_EABORTED, "drains"), BT_OK);
    for (int i = 0; i < 10; i++) { /* 5 s */
        kv_rig_advance(&rig, 500);
        kv_rig_run_for(&rig, 1);
    }
    /* A sink that maps our memory may still read it; over others we are the only reader. */
    assert_int_equal(kv_rig_end_of(&rig, 1)->n_released, rig.transport != BT_KV_TRANSPORT_SHM);
    assert_int_equal(kv_rig_end_of(&rig, 2)->n_released, 0);
    bt_kv_fault_hold(&fault, false);
    assert_true(kv_rig_run_done(&rig, 1));
    assert_int_equal(kv_rig_end_of(&rig, 1)->status, BT_EABORTED);
    assert_true(kv_rig_run_released(&rig, 1));
    assert_int_equal(kv_rig_end_of(&rig, 1)->outcome, BT_KV_OUTCOME_CANCELLED);
    kv_rig_announce_all(&rig, 2, 4);
    kv_rig_complete(&rig, 2, "", false);
    assert_true(kv_rig_run_done(&rig, 2));
    assert_int_equal(kv_rig_end_of(&rig, 2)->n_done, 1);
    assert_true(kv_rig_run_released(&rig, 2));
    assert_int_equal(bt_kv_source_counters_get(rig.source)->peers_lost, 0);
    kv_rig_destroy(&rig);
}

static void a_sink_that_stops_for_good_holds_blocks_for_a_lease(void **state)
{
    kv_rig rig;
    bt_kv_fault fault = {0};
    begin_held(&rig, *(const bt_kv_transport *)*state, &fault);
    for (int i = 0; i < 19; i++) { /* 9.5 s */
        kv_rig_advance(&rig, 500);
        kv_rig_run_for(&rig, 1);
    }
    assert_int_equal(kv_rig_end_of(&rig, 1)->n_released + kv_rig_end_of(&rig, 2)->n_released, 0);
    kv_rig_advance(&rig, 700);  /* the lease is over */
    kv_rig_advance(&rig, 1100); /* and so is the grace */
    for (uint32_t i = 1; i <= 2; i++) {
        assert_int_equal(kv_rig_end_of(&rig, i)->n_released, 1);
        assert_int_equal(kv_rig_end_of(&rig, i)->outcome, BT_KV_OUTCOME_EXPIRED);
    }
    assert_int_equal(bt_kv_source_counters_get(rig.source)->peers_open, 0);
    bt_kv_fault_hold(&fault, false);
    assert_true(kv_rig_run_done(&rig, 1));
    assert_true(kv_rig_run_done(&rig, 2));
    kv_rig_expect_untouched(&rig);
    kv_rig_destroy(&rig);
}

static void an_offer_that_nobody_links_expires(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_offer(rig, 1, 0, 3);
    kv_rig_advance(rig, 9900);
    kv_rig_run_for(rig, 2);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_released, 0);
    kv_rig_advance(rig, 200);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_released, 1);
    assert_int_equal(kv_rig_end_of(rig, 1)->outcome, BT_KV_OUTCOME_EXPIRED);
    /* A pull that comes too late is told so at once. */
    kv_rig_open(rig, 1);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EPEER); /* the request's time isn't over */
    assert_non_null(strstr(kv_rig_end_of(rig, 1)->text, "before the lease was over"));
}

/* The source has to see both within one turn of its loop: it is held until both are there. */
static void a_pull_that_crosses_a_cancel_is_answered(void **state)
{
    kv_rig rig;
    begin_case(&rig, *(const bt_kv_transport *)*state);
    bt_kv_fault fault = {0};
    rig.source_options.fault = &fault;
    kv_rig_start_source(&rig);
    kv_rig_start_sink(&rig);
    kv_rig_offer(&rig, 2, 20, 1);
    kv_rig_open(&rig, 2); /* links the two */
    kv_rig_run_for(&rig, 20);
    kv_rig_offer(&rig, 1, 2, BLOCKS);
    bt_kv_fault_hold(&fault, true);
    kv_rig_open(&rig, 1);
    kv_rig_run_for(&rig, 20);
    assert_int_equal(bt_kv_source_cancel(rig.source, kv_rig_name(1), BT_EPEER, "gone"), BT_OK);
    bt_kv_fault_hold(&fault, false);
    assert_true(kv_rig_run_done(&rig, 1));
    assert_int_equal(kv_rig_end_of(&rig, 1)->status, BT_EPEER);
    assert_int_equal(bt_kv_source_counters_get(rig.source)->pulls_parked, 0);
    assert_int_equal(bt_kv_source_cancel(rig.source, kv_rig_name(2), BT_EPEER, "over"), BT_OK);
    assert_true(kv_rig_run_done(&rig, 2));
    assert_true(kv_rig_run_released(&rig, 2));
    kv_rig_destroy(&rig);
}

static void a_queued_pull_keeps_the_lease_alive(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_offer(rig, 1, 0, 3);
    const int64_t deadline_ns = rig->now_ns + 100000 * (int64_t)MS;
    assert_int_equal(bt_kv_sink_open(rig->sink, kv_rig_name(1), &rig->peer, deadline_ns, NULL),
                     BT_OK);
    rig->opened[1] = true;
    kv_rig_run_for(rig, 5);
    rig->step_ns = 400 * (int64_t)MS; /* 40 s: four leases */
    kv_rig_run_for(rig, 100);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_released, 0);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_failed, 0);
    kv_rig_announce_all(rig, 1, 3);
    kv_rig_complete(rig, 1, "", false);
    kv_rig_pull(rig, 1, 0, 3, 0);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->n_done, 1);
    assert_true(kv_rig_run_released(rig, 1));
}

static bool pull_is_mixed(kv_rig *rig, uint8_t numerics)
{
    kv_rig_stop_sink(rig);
    rig->sink_options.terms.allow_mixed_numerics = true;
    rig->sink_options.terms.numerics_id[0] = numerics;
    kv_rig_start_sink(rig);
    kv_rig_offer(rig, numerics, 0, 3);
    kv_rig_open(rig, numerics);
    kv_rig_pull(rig, numerics, 0, 3, 0);
    kv_rig_announce_all(rig, numerics, 3);
    kv_rig_complete(rig, numerics, "", false);
    assert_true(kv_rig_run_done(rig, numerics));
    assert_true(kv_rig_run_released(rig, numerics));
    assert_int_equal(kv_rig_end_of(rig, numerics)->n_done, 1);
    return kv_rig_end_of(rig, numerics)->stats.mixed_numerics;
}

static void blocks_of_other_numerics_are_told_apart(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_stop_source(rig);
    rig->source_options.terms.allow_mixed_numerics = true;
    kv_rig_start_source(rig);
    assert_false(pull_is_mixed(rig, rig->source_options.terms.numerics_id[0]));
    assert_true(pull_is_mixed(rig, 2));
}

static void expect_advertised(kv_rig *rig, const char *address, const char *host)
{
    const bt_kv_source_callbacks callbacks = {.ctx = rig};
    bt_kv_source_options options = rig->source_options;
    options.tcp_address = address;
    options.advertise_host = host;
    options.shm_address = NULL;
    options.loopback = NULL;
    bt_kv_source *source = NULL;
    bt_kv_peer peer;
    assert_int_equal(bt_kv_source_create(rig->loop, &options, &callbacks, &source, NULL), BT_OK);
    bt_kv_source_peer(source, &peer);
    assert_int_equal(strncmp(peer.tcp, "127.0.0.1:", 10), 0);
    bt_kv_source_destroy(source);
}

/* A sink connects from its loop thread, which must not wait for a name server. */
static void names_are_advertised_as_numbers(void **state)
{
    kv_rig *rig = rig_of(state);
    expect_advertised(rig, "localhost:0", NULL);
    expect_advertised(rig, "0.0.0.0:0", "localhost");
    expect_advertised(rig, "0.0.0.0:0", "127.0.0.1");
}

static void deadlines_strike_on_each_side_alone(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_open(rig, 1); /* 2 s; never offered */
    kv_rig_run_for(rig, 5);
    kv_rig_advance(rig, 1900);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_failed, 0);
    kv_rig_advance(rig, 200);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_failed, 1);
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EDEADLINE);
    assert_non_null(strstr(kv_rig_end_of(rig, 1)->text, "before the source offered"));

    const bt_block_id ids[] = {1, 2};
    const bt_kv_offer offer = {.transfer = kv_rig_name(2),
                               .block_ids = ids,
                               .n_blocks = 2,
                               .n_tokens = 20,
                               .deadline_ns = rig->now_ns + 500 * (int64_t)MS};
    assert_int_equal(bt_kv_source_offer(rig->source, &offer, NULL), BT_OK);
    rig->offered[2] = true;
    kv_rig_open(rig, 2);
    kv_rig_run_for(rig, 5);
    kv_rig_advance(rig, 600);
    assert_true(kv_rig_run_done(rig, 2));
    assert_int_equal(kv_rig_end_of(rig, 2)->status, BT_EDEADLINE);
    assert_true(kv_rig_run_released(rig, 2));
    assert_int_equal(kv_rig_end_of(rig, 2)->outcome, BT_KV_OUTCOME_EXPIRED);
}

static void a_source_that_goes_down_fails_its_pulls_at_once(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_offer(rig, 1, 0, 3);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 0, 3, 0);
    kv_rig_run_for(rig, 5);
    const bt_kv_peer old = rig->peer;
    kv_rig_stop_source(rig);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EPEER);

    /* Back at the same address: the old incarnation is refused, the new one serves. */
    char tcp[BT_KV_ADDRESS_BYTES];
    memcpy(tcp, old.tcp, sizeof tcp);
    rig->source_options.incarnation = 12;
    rig->source_options.tcp_address = tcp[0] != '\0' ? tcp : NULL;
    kv_rig_start_source(rig);
    const bt_kv_peer fresh = rig->peer;
    rig->peer = old;
    kv_rig_open(rig, 2);
    assert_true(kv_rig_run_done(rig, 2));
    const bt_status status = kv_rig_end_of(rig, 2)->status;
    assert_int_equal(status, rig->transport == BT_KV_TRANSPORT_LOOPBACK ? BT_EPEER : BT_EMISMATCH);
    rig->peer = fresh;
    kv_rig_offer(rig, 3, 0, 3);
    kv_rig_announce_all(rig, 3, 3);
    kv_rig_complete(rig, 3, "", false);
    kv_rig_open(rig, 3);
    kv_rig_pull(rig, 3, 0, 3, 0);
    assert_true(kv_rig_run_done(rig, 3));
    kv_rig_expect_moved(rig, 0, 3, 0);
    assert_true(kv_rig_run_released(rig, 3));
}

static void a_sink_that_goes_down_releases_its_blocks(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_offer(rig, 1, 0, 3);
    kv_rig_announce_all(rig, 1, 3);
    kv_rig_open(rig, 1);
    kv_rig_run_for(rig, 5);
    kv_rig_stop_sink(rig);
    assert_true(kv_rig_run_released(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->outcome, BT_KV_OUTCOME_FAILED);
    assert_int_equal(bt_kv_source_counters_get(rig->source)->peers_lost, 1);
}

/* A cancelled pull's data is under way while its blocks go to the next one. */
static void late_data_never_reaches_blocks_that_were_given_on(void **state)
{
    kv_rig *rig = rig_of(state);
    const size_t bytes = rig->sink_options.terms.layout.block_bytes;
    for (uint32_t i = 0; i < 20; i++) {
        kv_rig_offer(rig, 2 * i, 0, 40);
        kv_rig_announce_all(rig, 2 * i, 40);
        kv_rig_open(rig, 2 * i);
        kv_rig_pull(rig, 2 * i, 0, 40, 0);
        kv_rig_run_for(rig, 1 + (int)i % 3);
        (void)bt_kv_sink_cancel(rig->sink, kv_rig_name(2 * i));
        /* the same blocks, other contents */
        kv_rig_offer(rig, 2 * i + 1, 7, 40);
        kv_rig_announce_all(rig, 2 * i + 1, 40);
        kv_rig_complete(rig, 2 * i + 1, "", false);
        kv_rig_open(rig, 2 * i + 1);
        bt_block_id ids[40];
        for (uint32_t b = 0; b < 40; b++) {
            ids[b] = RIG_BLOCKS - 1 - b;
        }
        assert_int_equal(bt_kv_sink_pull(rig->sink, kv_rig_name(2 * i + 1), ids, 40, 0, NULL),
                         BT_OK);
        assert_true(kv_rig_run_done(rig, 2 * i + 1));
        assert_int_equal(kv_rig_end_of(rig, 2 * i + 1)->n_done, 1);
        for (uint32_t b = 0; b < 40; b++) {
            assert_memory_equal(kv_rig_sink_block(rig, 0, b), kv_rig_source_block(rig, 7, b),
                                bytes);
        }
        assert_true(kv_rig_run_done(rig, 2 * i));
        assert_true(kv_rig_run_released(rig, 2 * i));
        assert_true(kv_rig_run_released(rig, 2 * i + 1));
    }
}

static const bt_kv_transport SHM = BT_KV_TRANSPORT_SHM;
static const bt_kv_transport TCP = BT_KV_TRANSPORT_TCP;
static const bt_kv_transport LOOPBACK = BT_KV_TRANSPORT_LOOPBACK;

#define CASES_ON_ALL(test)                                                                         \
    {#test "/shm", test, NULL, NULL, (void *)(uintptr_t)&SHM},                                     \
        {#test "/tcp", test, NULL, NULL, (void *)(uintptr_t)&TCP},                                 \
    {                                                                                              \
#test "/loopback", test, NULL, NULL, (void *)(uintptr_t)&LOOPBACK                          \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASES_ON_ALL(a_cancel_by_the_sink_ends_every_state),
        CASES_ON_ALL(a_cancel_by_the_source_ends_every_state),
        CASES_ON_ALL(a_connection_that_breaks_anywhere_ends_both_sides),
        CASES_ON_ALL(a_flipped_byte_anywhere_harms_nothing),
        CASES_ON_ALL(a_slow_answer_to_a_revoke_holds_that_transfer_alone),
        CASES_ON_ALL(a_sink_that_stops_for_good_holds_blocks_for_a_lease),
        CASES_ON_ALL(a_pull_that_crosses_a_cancel_is_answered),
        KV_RIG_ON_ALL(a_part_that_stays_wrong_fails_the_transfer),
        KV_RIG_ON_ALL(a_part_that_was_wrong_once_is_asked_for_again),
        KV_RIG_ON_ALL(an_offer_that_nobody_links_expires),
        KV_RIG_ON_ALL(blocks_of_other_numerics_are_told_apart),
        {"names_are_advertised_as_numbers", names_are_advertised_as_numbers, kv_rig_setup_tcp,
         kv_rig_teardown, NULL},
        KV_RIG_ON_ALL(a_queued_pull_keeps_the_lease_alive),
        KV_RIG_ON_ALL(deadlines_strike_on_each_side_alone),
        KV_RIG_ON_ALL(a_source_that_goes_down_fails_its_pulls_at_once),
        KV_RIG_ON_ALL(a_sink_that_goes_down_releases_its_blocks),
        KV_RIG_ON_ALL(late_data_never_reaches_blocks_that_were_given_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
