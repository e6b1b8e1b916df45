/* SPDX-License-Identifier: Apache-2.0 */
/* One suite over all transports: a transfer over shm, tcp and loopback moves the same bytes,
 * in every order of calls, and each offer and each open ends in one callback. The source's
 * memory is the oracle; blocks of the sink that were not asked for stay untouched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/kvtransfer/kv_rig.h"

static kv_rig *rig_of(void **state)
{
    return *state;
}

static void pull_moves_every_part(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_offer(rig, 1, 4, 9);
    kv_rig_announce_all(rig, 1, 9);
    kv_rig_complete(rig, 1, "first token", false);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 4, 9, 0);
    assert_true(kv_rig_run_done(rig, 1));
    const kv_rig_end *end = kv_rig_end_of(rig, 1);
    assert_int_equal(end->n_done, 1);
    assert_false(end->ends);
    assert_int_equal(end->blob_bytes, 11);
    assert_memory_equal(end->blob, "first token", 11);
    kv_rig_expect_moved(rig, 4, 9, 0);
    assert_int_equal(end->stats.transport, rig->transport);
    assert_int_equal(end->stats.blocks_moved, 9);
    assert_int_equal(end->stats.bytes, 9 * 3072);
    assert_true(kv_rig_run_released(rig, 1));
    assert_int_equal(end->outcome, BT_KV_OUTCOME_PULLED);
    const bt_kv_sink_counters *c = bt_kv_sink_counters_get(rig->sink);
    assert_int_equal(c->parts, 9 * RIG_LAYERS);
    assert_int_equal(
        c->rejected_corrupt + c->rejected_duplicate + c->rejected_late + c->rejected_unknown, 0);
    assert_int_equal(c->transfers_open, 0);
    assert_int_equal(bt_kv_source_counters_get(rig->source)->transfers_open, 0);
}

static void skipped_blocks_are_not_written(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_offer(rig, 1, 0, 7);
    kv_rig_announce_all(rig, 1, 7);
    kv_rig_complete(rig, 1, "", false);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 0, 7, 4);
    assert_true(kv_rig_run_done(rig, 1));
    kv_rig_expect_moved(rig, 0, 7, 4);
    const kv_rig_end *end = kv_rig_end_of(rig, 1);
    assert_int_equal(end->stats.blocks_moved, 3);
    assert_int_equal(end->stats.blocks_skipped, 4);
    assert_true(kv_rig_run_released(rig, 1));
}

static void a_pull_of_nothing_waits_for_the_completion_alone(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_offer(rig, 1, 0, 3);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 0, 3, 3);
    kv_rig_run_for(rig, 5);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_done, 0);
    kv_rig_complete(rig, 1, "t", false);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->n_done, 1);
    kv_rig_expect_untouched(rig);
    assert_true(kv_rig_run_released(rig, 1));
}

/* Layers and chunks in a shuffled order, calls of both sides mixed with runs of the loop. */
static void parts_may_be_announced_in_any_order(void **state)
{
    kv_rig *rig = rig_of(state);
    enum { BLOCKS = 12, CHUNKS = 4, STEPS = CHUNKS * RIG_LAYERS };
    static const uint8_t order[STEPS] = {7, 2, 11, 0, 5, 9, 1, 10, 3, 8, 4, 6};
    kv_rig_open(rig, 1); /* before the offer: parked at the source */
    kv_rig_run_for(rig, 5);
    kv_rig_offer(rig, 1, 3, BLOCKS);
    for (uint32_t i = 0; i < STEPS; i++) {
        if (i == 3) {
            kv_rig_pull(rig, 1, 3, BLOCKS, 1);
        }
        if (i == 8) {
            kv_rig_complete(rig, 1, "token", false); /* D still lacks parts */
        }
        const uint32_t chunk = order[i] / RIG_LAYERS;
        assert_int_equal(bt_kv_source_announce(rig->source, kv_rig_name(1), order[i] % RIG_LAYERS,
                                               chunk * (BLOCKS / CHUNKS), BLOCKS / CHUNKS),
                         BT_OK);
        assert_int_equal(kv_rig_end_of(rig, 1)->n_done, 0);
        if (i % 2 == 0) {
            kv_rig_run_for(rig, 3);
        }
    }
    assert_true(kv_rig_run_done(rig, 1));
    kv_rig_expect_moved(rig, 3, BLOCKS, 1);
    const kv_rig_end *end = kv_rig_end_of(rig, 1);
    assert_true(end->stats.parts_left_at_complete >= 4 * (BLOCKS / CHUNKS) - RIG_LAYERS);
    assert_true(kv_rig_run_released(rig, 1));
    assert_int_equal(bt_kv_source_counters_get(rig->source)->pulls_parked, 1);
}

static void an_ending_completion_drops_the_pull(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_offer(rig, 1, 0, 5);
    kv_rig_open(rig, 1); /* never pulled: D had no blocks yet */
    kv_rig_complete(rig, 1, "eos", true);
    kv_rig_offer(rig, 2, 20, 5);
    kv_rig_open(rig, 2);
    kv_rig_pull(rig, 2, 20, 5, 0); /* nothing was announced */
    kv_rig_complete(rig, 2, "eos", true);
    for (uint32_t i = 1; i <= 2; i++) {
        assert_true(kv_rig_run_done(rig, i));
        assert_int_equal(kv_rig_end_of(rig, i)->n_done, 1);
        assert_true(kv_rig_end_of(rig, i)->ends);
        assert_true(kv_rig_run_released(rig, i));
        assert_int_equal(kv_rig_end_of(rig, i)->outcome, BT_KV_OUTCOME_PULLED);
    }
    kv_rig_expect_untouched(rig);
}

static void many_transfers_share_one_connection(void **state)
{
    kv_rig *rig = rig_of(state);
    for (uint32_t i = 0; i < 8; i++) {
        kv_rig_open(rig, i);
        kv_rig_pull(rig, i, 10 * i, 10, i % 4);
    }
    kv_rig_run_for(rig, 3);
    for (uint32_t i = 0; i < 8; i++) {
        kv_rig_offer(rig, i, 10 * i, 10);
        kv_rig_announce_all(rig, i, 10);
        kv_rig_complete(rig, i, "x", false);
    }
    const size_t bytes = rig->sink_options.terms.layout.block_bytes;
    for (uint32_t i = 0; i < 8; i++) {
        assert_true(kv_rig_run_done(rig, i));
        assert_int_equal(kv_rig_end_of(rig, i)->n_done, 1);
        for (uint32_t b = i % 4; b < 10; b++) {
            assert_memory_equal(kv_rig_sink_block(rig, 10 * i, b),
                                kv_rig_source_block(rig, 10 * i, b), bytes);
        }
        assert_true(kv_rig_run_released(rig, i));
    }
    assert_int_equal(bt_kv_sink_counters_get(rig->sink)->connections, 1);
    assert_int_equal(bt_kv_source_counters_get(rig->source)->connections, 1);
}

/* A part that is announced again changes nothing, also while it moves. */
static void repeated_announcements_are_counted_and_harmless(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_offer(rig, 1, 0, 6);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 0, 6, 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(bt_kv_source_announce(rig->source, kv_rig_name(1), 1, 0, 6), BT_OK);
        kv_rig_run_for(rig, 2);
    }
    kv_rig_announce_all(rig, 1, 6);
    kv_rig_complete(rig, 1, "", false);
    assert_true(kv_rig_run_done(rig, 1));
    kv_rig_expect_moved(rig, 0, 6, 0);
    assert_int_equal(bt_kv_source_counters_get(rig->source)->parts_repeated, 18);
    assert_true(kv_rig_run_released(rig, 1));
}

static void calls_out_of_place_are_answered(void **state)
{
    kv_rig *rig = rig_of(state);
    const bt_kv_transfer name = kv_rig_name(1);
    const bt_block_id ids[] = {0, 1, RIG_BLOCKS};
    bt_kv_offer offer = {.transfer = name, .block_ids = ids, .n_blocks = 2, .n_tokens = 33};
    assert_int_equal(bt_kv_source_offer(rig->source, &offer, NULL), BT_EINVAL);
    offer.n_blocks = 3; /* one is not in the pool */
    assert_int_equal(bt_kv_source_offer(rig->source, &offer, NULL), BT_EINVAL);
    offer.n_blocks = 49;
    offer.n_tokens = 49 * 16;
    assert_int_equal(bt_kv_source_offer(rig->source, &offer, NULL), BT_EEXHAUSTED);
    assert_int_equal(bt_kv_source_announce(rig->source, name, 0, 0, 1), BT_ENOTFOUND);
    assert_int_equal(bt_kv_source_complete(rig->source, name, "", 0, false), BT_ENOTFOUND);
    assert_int_equal(bt_kv_source_cancel(rig->source, name, BT_ECANCELLED, ""), BT_ENOTFOUND);
    assert_int_equal(bt_kv_sink_pull(rig->sink, name, ids, 2, 0, NULL), BT_ENOTFOUND);
    assert_int_equal(bt_kv_sink_cancel(rig->sink, name), BT_ENOTFOUND);

    kv_rig_offer(rig, 1, 0, 2);
    offer.n_blocks = 2;
    offer.n_tokens = 32;
    assert_int_equal(bt_kv_source_offer(rig->source, &offer, NULL), BT_EEXISTS);
    assert_int_equal(bt_kv_source_announce(rig->source, name, RIG_LAYERS, 0, 1), BT_EINVAL);
    assert_int_equal(bt_kv_source_announce(rig->source, name, 0, 1, 2), BT_EINVAL);
    char big[BT_KV_BLOB_BYTES_MAX + 1] = {0};
    assert_int_equal(bt_kv_source_complete(rig->source, name, big, sizeof big, false), BT_EINVAL);
    kv_rig_complete(rig, 1, "", true);
    assert_int_equal(bt_kv_source_complete(rig->source, name, "", 0, false), BT_EEXISTS);

    kv_rig_open(rig, 1);
    assert_int_equal(bt_kv_sink_open(rig->sink, name, &rig->peer, rig->now_ns + 1, NULL),
                     BT_EEXISTS);
    assert_int_equal(bt_kv_sink_open(rig->sink, kv_rig_name(2), &rig->peer, 0, NULL), BT_EINVAL);
    assert_int_equal(bt_kv_sink_pull(rig->sink, name, ids, 3, 0, NULL), BT_EINVAL);
    assert_int_equal(bt_kv_sink_pull(rig->sink, name, ids, 0, 0, NULL), BT_EINVAL);
    assert_int_equal(bt_kv_sink_pull(rig->sink, name, ids, 2, 3, NULL), BT_EINVAL);
    assert_int_equal(bt_kv_sink_pull(rig->sink, name, ids, 49, 0, NULL), BT_EEXHAUSTED);
    kv_rig_pull(rig, 1, 0, 2, 0);
    assert_int_equal(bt_kv_sink_pull(rig->sink, name, ids, 2, 0, NULL), BT_EEXISTS);
    assert_true(kv_rig_run_done(rig, 1));
    assert_true(kv_rig_run_released(rig, 1));
}

/* What will not be offered is said to who waits for it, and to who comes later. */
static void a_refused_transfer_fails_its_pull_at_once(void **state)
{
    kv_rig *rig = rig_of(state);
    const bt_kv_source_counters *c = bt_kv_source_counters_get(rig->source);
    kv_rig_open(rig, 1);
    kv_rig_run_for(rig, 5);
    assert_int_equal(c->transfers_parked, 1);
    const int64_t before_ns = rig->now_ns;
    assert_int_equal(bt_kv_source_refuse(rig->source, kv_rig_name(1), BT_EABORTED, "too bad"),
                     BT_OK);
    assert_true(kv_rig_run_done(rig, 1));
    assert_true(rig->now_ns - before_ns < 100 * (int64_t)1000000);
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EABORTED);
    assert_string_equal(kv_rig_end_of(rig, 1)->text, "too bad");
    assert_int_equal(c->transfers_parked, 0);

    assert_int_equal(bt_kv_source_refuse(rig->source, kv_rig_name(2), BT_ECANCELLED, "gone"),
                     BT_OK);
    assert_int_equal(bt_kv_source_refuse(rig->source, kv_rig_name(2), BT_EABORTED, "again"),
                     BT_EEXISTS);
    kv_rig_open(rig, 2);
    assert_true(kv_rig_run_done(rig, 2));
    assert_int_equal(kv_rig_end_of(rig, 2)->status, BT_ECANCELLED);
    assert_string_equal(kv_rig_end_of(rig, 2)->text, "gone");
    assert_int_equal(c->refused, 2);

    kv_rig_offer(rig, 3, 0, 2);
    assert_int_equal(bt_kv_source_refuse(rig->source, kv_rig_name(3), BT_EABORTED, ""), BT_EEXISTS);
    kv_rig_complete(rig, 3, "", true);
    kv_rig_open(rig, 3);
    assert_true(kv_rig_run_done(rig, 3));
    assert_true(kv_rig_run_released(rig, 3));
    assert_int_equal(bt_kv_source_refuse(rig->source, kv_rig_name(3), BT_EABORTED, ""), BT_EEXISTS);
}

static void full_tables_say_again(void **state)
{
    kv_rig *rig = rig_of(state);
    for (uint32_t i = 0; i < 8; i++) {
        kv_rig_offer(rig, i, 0, 2);
        kv_rig_open(rig, i);
    }
    const bt_block_id ids[] = {0};
    const bt_kv_offer offer = {
        .transfer = kv_rig_name(9), .block_ids = ids, .n_blocks = 1, .n_tokens = 1};
    bt_error err;
    assert_int_equal(bt_kv_source_offer(rig->source, &offer, &err), BT_AGAIN);
    assert_non_null(strstr(err.text, "8 transfers"));
    assert_int_equal(bt_kv_sink_open(rig->sink, kv_rig_name(9), &rig->peer, rig->now_ns + 1, &err),
                     BT_AGAIN);
    for (uint32_t i = 0; i < 8; i++) {
        kv_rig_complete(rig, i, "", true);
        assert_true(kv_rig_run_done(rig, i));
        assert_true(kv_rig_run_released(rig, i));
    }
    kv_rig_offer(rig, 9, 0, 2);
    kv_rig_open(rig, 9);
    kv_rig_complete(rig, 9, "", true);
    assert_true(kv_rig_run_done(rig, 9));
    assert_true(kv_rig_run_released(rig, 9));
}

static void a_pull_of_another_size_fails(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_offer(rig, 1, 0, 4);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 0, 5, 0);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EMISMATCH);
    assert_non_null(strstr(kv_rig_end_of(rig, 1)->text, "offers 4 blocks, 5"));
    assert_true(kv_rig_run_released(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->outcome, BT_KV_OUTCOME_FAILED);
    kv_rig_expect_untouched(rig);
}

/* Bytes per second hold over fake time, whoever is the one that limits. */
static void the_rate_limit_holds(void **state)
{
    kv_rig *rig = rig_of(state);
    kv_rig_stop_sink(rig);
    kv_rig_stop_source(rig);
    rig->source_options.rate_limit_bytes_s = 1000 * 1000; /* 1 KB each fake millisecond */
    rig->sink_options.rate_limit_bytes_s = 1000 * 1000;
    kv_rig_start_source(rig);
    kv_rig_start_sink(rig);
    kv_rig_offer(rig, 1, 0, 40);
    kv_rig_announce_all(rig, 1, 40);
    kv_rig_complete(rig, 1, "", false);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 0, 40, 0);
    const int64_t start_ns = rig->now_ns;
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->n_done, 1);
    kv_rig_expect_moved(rig, 0, 40, 0);
    const int64_t took_ms = (rig->now_ns - start_ns) / 1000000;
    assert_in_range(took_ms, 40 * 3072 / 1000 - 60, 40 * 3072 / 1000 + 60);
    assert_true(kv_rig_run_released(rig, 1));
}

/* P computes a (layer, chunk) every 5 ms, the link needs 4 ms to move it: when the last one is
 * done, at most two are left to move. */
static void moving_overlaps_with_computing(void **state)
{
    kv_rig *rig = rig_of(state);
    enum { CHUNK = 4, CHUNKS = 8, STEP_MS = 5 };
    kv_rig_stop_sink(rig);
    kv_rig_stop_source(rig);
    rig->step_ns = 500 * 1000; /* half a millisecond at a time */
    rig->source_options.rate_limit_bytes_s = CHUNK * 1024 * 1000 / 4;
    rig->sink_options.rate_limit_bytes_s = CHUNK * 1024 * 1000 / 4;
    kv_rig_start_source(rig);
    kv_rig_start_sink(rig);
    kv_rig_offer(rig, 1, 0, CHUNK * CHUNKS);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 0, CHUNK * CHUNKS, 0);
    kv_rig_run_for(rig, 10);
    const bt_kv_sink_counters *c = bt_kv_sink_counters_get(rig->sink);
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
        for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
            kv_rig_run_for(rig, 2 * STEP_MS); /* computing */
            assert_int_equal(
                bt_kv_source_announce(rig->source, kv_rig_name(1), layer, chunk * CHUNK, CHUNK),
                BT_OK);
        }
    }
    const uint64_t n_left = CHUNK * CHUNKS * RIG_LAYERS - c->parts;
    assert_in_range(n_left, CHUNK, 2 * CHUNK);
    kv_rig_complete(rig, 1, "", false);
    assert_true(kv_rig_run_done(rig, 1));
    assert_true(kv_rig_end_of(rig, 1)->stats.parts_left_at_complete <= 2 * CHUNK);
    kv_rig_expect_moved(rig, 0, CHUNK * CHUNKS, 0);
    assert_true(kv_rig_run_released(rig, 1));
}

/* The same over tcp with tags on every part. */
static int set_up_full(void **state)
{
    kv_rig *rig = malloc(sizeof *rig);
    assert_non_null(rig);
    kv_rig_create(rig, BT_KV_TRANSPORT_TCP);
    rig->source_options.auth = BT_KV_AUTH_FULL;
    kv_rig_start_source(rig);
    kv_rig_start_sink(rig);
    *state = rig;
    return 0;
}

#define ON_ALL(test)                                                                               \
    KV_RIG_ON_ALL(test),                                                                           \
    {                                                                                              \
#test "/tcp-full", test, set_up_full, kv_rig_teardown, NULL                                \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_ALL(pull_moves_every_part),
        ON_ALL(skipped_blocks_are_not_written),
        ON_ALL(a_pull_of_nothing_waits_for_the_completion_alone),
        ON_ALL(parts_may_be_announced_in_any_order),
        ON_ALL(an_ending_completion_drops_the_pull),
        ON_ALL(many_transfers_share_one_connection),
        ON_ALL(repeated_announcements_are_counted_and_harmless),
        ON_ALL(calls_out_of_place_are_answered),
        ON_ALL(a_refused_transfer_fails_its_pull_at_once),
        ON_ALL(full_tables_say_again),
        ON_ALL(a_pull_of_another_size_fails),
        ON_ALL(the_rate_limit_holds),
        ON_ALL(moving_overlaps_with_computing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
