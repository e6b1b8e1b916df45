/* SPDX-License-Identifier: Apache-2.0 */
/* Hand-over between a real prefill and a real decode worker (DESIGN.md, sections 1, 3 and 8): over
 * every transport the tokens are those of a whole run, bit for bit; and wherever a request is
 * cut off, both workers tell its end once and all blocks come home (the rig audits). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/rig.h"

enum {
    N = 16,
    PROMPT_MAX = 300,
    TOKENS = 24,
};

static int32_t prompts[N][PROMPT_MAX];
static uint32_t lengths[N];
static bt_rig_request oracle[N]; /* whole runs, one after another */

/* Lengths around the block's edges and at random; half of them sampled, half greedy. */
static void describe(bt_rig *rig, bt_rig_request *r, int i)
{
    static const uint32_t edges[] = {1, 15, 16, 17, 31, 32, 33, 64};
    lengths[i] = i < 8 ? edges[i] : 40u + (uint32_t)(i * 97) % (PROMPT_MAX - 40);
    bt_rig_fill_prompt(prompts[i], lengths[i], (uint64_t)i + 1);
    bt_rig_request_init(rig, r, prompts[i], lengths[i]);
    r->sampling.max_tokens = TOKENS;
    r->sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    r->sampling.top_k = i % 3 == 0 ? 20 : 0;
    r->sampling.repetition_penalty = i % 4 == 1 ? 1.2f : 1.0f;
    r->sampling.seed = (uint64_t)i * 77;
    r->sampling.logprobs = i % 5 == 0;
    r->sampling.n_top_logprobs = i % 5 == 0 ? 3 : 0;
}

static int make_oracle(void **state)
{
    (void)state;
    bt_rig *rig = bt_rig_create(&(bt_rig_options){.no_prefill = true, .no_prefix_cache = true});
    for (int i = 0; i < N; i++) {
        describe(rig, &oracle[i], i);
        bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &oracle[i]);
        bt_rig_wait_finished(rig, BT_RIG_DECODE, &oracle[i]);
        assert_int_equal(oracle[i].end[BT_RIG_DECODE].status, BT_OK);
        assert_int_equal(oracle[i].n_tokens, TOKENS);
    }
    bt_rig_destroy(rig);
    return 0;
}

static void expect_same_tokens(const bt_rig_request *r, int i)
{
    assert_int_equal(r->n_tokens, TOKENS);
    for (uint32_t k = 0; k < TOKENS; k++) {
        if (r->tokens[k] != oracle[i].tokens[k]) {
            fail_msg("request %d, token %u: %d in place of %d", i, k, r->tokens[k],
                     oracle[i].tokens[k]);
        }
    }
    assert_int_equal(r->first.has_logprob, oracle[i].first.has_logprob);
    assert_true(r->first.logprob == oracle[i].first.logprob);
    assert_int_equal(r->first.n_top, oracle[i].first.n_top);
}

static bool all_are_pulled(const bt_link_load *load)
{
    return load->pulls >= N;
}

static bool one_is_partly_pulled(const bt_link_load *load)
{
    return load->partial_pulls == 1;
}

static bool is_home(const bt_link_load *load)
{
    return load->blocks_free + load->blocks_cached == 256;
}

static void hand_over_all(bt_kv_transport transport)
{
    static bt_rig_request r[N];
    bt_rig *rig = bt_rig_create(&(bt_rig_options){.transport = transport, .chunk = 32});
    for (int i = 0; i < N; i++) {
        describe(rig, &r[i], i);
        bt_rig_send_split(rig, &r[i]);
    }
    uint64_t bytes = 0;
    for (int i = 0; i < N; i++) {
        bt_rig_wait_split(rig, &r[i]);
        assert_int_equal(r[i].end[BT_RIG_PREFILL].status, BT_OK);
        assert_int_equal(r[i].end[BT_RIG_DECODE].status, BT_OK);
        assert_int_equal(r[i].end[BT_RIG_DECODE].reason, BT_FINISH_LENGTH);
        expect_same_tokens(&r[i], i);
        const bt_link_finished *end = &r[i].end[BT_RIG_DECODE];
        assert_int_equal(end->blocks_moved + end->blocks_skipped, (lengths[i] + 15) / 16);
        assert_string_equal(end->transport, bt_kv_transport_name(transport));
        bytes += end->bytes_moved;
    }
    bt_rig_wait_load(rig, BT_RIG_DECODE, all_are_pulled);
    const bt_link_load *d = bt_rig_load(rig, BT_RIG_DECODE);
    assert_int_equal(d->prefill_tokens, 0);
    assert_int_equal(d->pulls, N);
    assert_int_equal(d->bytes_pulled, bytes);
    assert_int_equal(bt_rig_load(rig, BT_RIG_PREFILL)->decode_tokens, 0);
    bt_rig_destroy(rig);
}

static void tokens_over_loopback_equal_those_of_one_worker(void **state)
{
    (void)state;
    hand_over_all(BT_KV_TRANSPORT_LOOPBACK);
}

static void tokens_over_shm_equal_those_of_one_worker(void **state)
{
    (void)state;
    hand_over_all(BT_KV_TRANSPORT_SHM);
}

static void tokens_over_tcp_equal_those_of_one_worker(void **state)
{
    (void)state;
    hand_over_all(BT_KV_TRANSPORT_TCP);
}

static void blocks_held_already_are_not_pulled_again(void **state)
{
    (void)state;
    static bt_rig_request first, second;
    bt_rig *rig = bt_rig_create(&(bt_rig_options){0});
    describe(rig, &first, N - 1);
    bt_rig_send_split(rig, &first);
    bt_rig_wait_split(rig, &first);
    describe(rig, &second, N - 1);
    bt_rig_send_split(rig, &second);
    bt_rig_wait_split(rig, &second);
    expect_same_tokens(&first, N - 1);
    expect_same_tokens(&second, N - 1);
    const uint32_t n_full = lengths[N - 1] / 16;
    assert_int_equal(second.end[BT_RIG_DECODE].blocks_skipped, n_full);
    assert_int_equal(second.end[BT_RIG_DECODE].blocks_moved, (lengths[N - 1] + 15) / 16 - n_full);
    assert_int_equal(second.end[BT_RIG_PREFILL].cached_tokens, n_full * 16);
    bt_rig_wait_load(rig, BT_RIG_DECODE, one_is_partly_pulled);
    bt_rig_destroy(rig);
}

static void decode_pool_that_is_full_is_a_queue(void **state)
{
    (void)state;
    static bt_rig_request r[N];
    bt_rig *rig = bt_rig_create(&(bt_rig_options){.decode_blocks = 44, .no_prefix_cache = true});
    for (int i = 0; i < N; i++) {
        describe(rig, &r[i], i);
        bt_rig_send_split(rig, &r[i]);
    }
    for (int i = 0; i < N; i++) {
        bt_rig_wait_split(rig, &r[i]);
        assert_int_equal(r[i].end[BT_RIG_DECODE].status, BT_OK);
        expect_same_tokens(&r[i], i);
    }
    bt_rig_destroy(rig);
}

static void blocks_are_not_reserved_for_what_the_prefill_worker_has_not_begun(void **state)
{
    (void)state;
    static bt_rig_request absent, ready;
    bt_rig *rig = bt_rig_create(&(bt_rig_options){.decode_blocks = 24});
    describe(rig, &absent, 15);
    describe(rig, &ready, 13);
    assert_true(lengths[15] + lengths[13] > 24 * 16);
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_DECODE, &absent);
    bt_rig_send_split(rig, &ready);
    bt_rig_wait_split(rig, &ready);
    expect_same_tokens(&ready, 13);
    bt_rig_cancel(rig, BT_RIG_DECODE, &absent);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &absent);
    assert_int_equal(absent.end[BT_RIG_DECODE].status, BT_ECANCELLED);
    bt_rig_destroy(rig);
}

static void retry_with_tokens_made_so_far_goes_on_the_same(void **state)
{
    (void)state;
    static bt_rig_request r;
    static int32_t known[PROMPT_MAX + TOKENS];
    const int i = 9;
    bt_rig *rig = bt_rig_create(&(bt_rig_options){0});
    describe(rig, &r, i);
    memcpy(known, prompts[i], lengths[i] * sizeof known[0]);
    memcpy(known + lengths[i], oracle[i].tokens, 10 * sizeof known[0]);
    r.prompt = known;
    r.n_known = lengths[i] + 10;
    r.attempt = 1;
    bt_rig_send_split(rig, &r);
    bt_rig_wait_split(rig, &r);
    assert_int_equal(r.end[BT_RIG_DECODE].status, BT_OK);
    assert_int_equal(r.n_tokens, TOKENS - 10);
    assert_memory_equal(r.tokens + 10, oracle[i].tokens + 10, (TOKENS - 10) * sizeof known[0]);
    /* and once more, with its prefix held beyond the prompt */
    r.attempt = 2;
    r.n_tokens = 0;
    memset(r.have, 0, sizeof r.have);
    memset(r.finished, 0, sizeof r.finished);
    bt_rig_send_split(rig, &r);
    bt_rig_wait_split(rig, &r);
    assert_int_equal(r.end[BT_RIG_DECODE].status, BT_OK);
    assert_memory_equal(r.tokens + 10, oracle[i].tokens + 10, (TOKENS - 10) * sizeof known[0]);
    bt_rig_destroy(rig);
}

static void request_that_ends_with_its_first_token_drops_the_pull(void **state)
{
    (void)state;
    static bt_rig_request r;
    bt_rig *rig = bt_rig_create(&(bt_rig_options){0});
    describe(rig, &r, 10);
    r.sampling.max_tokens = 1;
    bt_rig_send_split(rig, &r);
    bt_rig_wait_split(rig, &r);
    assert_int_equal(r.end[BT_RIG_PREFILL].status, BT_OK);
    assert_int_equal(r.end[BT_RIG_PREFILL].reason, BT_FINISH_LENGTH);
    assert_int_equal(r.end[BT_RIG_DECODE].status, BT_OK);
    assert_int_equal(r.end[BT_RIG_DECODE].reason, BT_FINISH_LENGTH);
    assert_int_equal(r.n_tokens, 1);
    assert_int_equal(r.tokens[0], oracle[10].tokens[0]);
    bt_rig_destroy(rig);
}

/* Either worker may be the first to tell a router of the end. */
static void both_workers_tell_the_same_end_of_a_first_token_that_stops(void **state)
{
    (void)state;
    static bt_rig_request r;
    bt_rig *rig = bt_rig_create(&(bt_rig_options){0});
    describe(rig, &r, 10);
    r.sampling.n_stop_tokens = 1;
    r.sampling.stop_tokens[0] = oracle[10].tokens[0];
    bt_rig_send_split(rig, &r);
    bt_rig_wait_split(rig, &r);
    assert_int_equal(r.n_tokens, 1);
    for (int at = 0; at < BT_RIG_WORKERS; at++) {
        assert_int_equal(r.end[at].status, BT_OK);
        assert_int_equal(r.end[at].reason, BT_FINISH_STOP);
        assert_int_equal(r.end[at].generated_tokens, 1);
        assert_true(r.end[at].has_stop_token);
        assert_int_equal(r.end[at].stop_token, oracle[10].tokens[0]);
    }
    bt_rig_destroy(rig);
}

static bool blocks_are_home(void *ctx)
{
    const bt_link_load *p = bt_rig_load(ctx, BT_RIG_PREFILL);
    const bt_link_load *d = bt_rig_load(ctx, BT_RIG_DECODE);
    return p->blocks_free + p->blocks_cached == 256 && d->blocks_free + d->blocks_cached == 256;
}

/* The link is slow, so that a cut after `ms`, or, with ms UINT64_MAX, when all first tokens are
 * here, meets each stage: queued, computing, pulling. */
static void cut_after(uint64_t ms, bool at_prefill, bool at_decode)
{
    static bt_rig_request r[4];
    bt_rig *rig = bt_rig_create(&(bt_rig_options){.transport = BT_KV_TRANSPORT_TCP,
                                                  .chunk = 16,
                                                  .token_budget = 32,
                                                  .lease_ms = 20000,
                                                  .kv_rate_limit_bytes_s = 64 << 10});
    for (int i = 0; i < 4; i++) {
        describe(rig, &r[i], 12 + i);
        r[i].sampling.max_tokens = 200;
        bt_rig_send_split(rig, &r[i]);
    }
    for (int i = 0; ms == UINT64_MAX && i < 4; i++) {
        bt_rig_wait_tokens(rig, &r[i], 1);
    }
    if (ms != UINT64_MAX) {
        bt_rig_run_ms(rig, ms);
    }
    for (int i = 0; i < 4; i++) {
        if (at_prefill) {
            bt_rig_cancel(rig, BT_RIG_PREFILL, &r[i]);
        }
        if (at_decode) {
            bt_rig_cancel(rig, BT_RIG_DECODE, &r[i]);
        }
    }
    for (int i = 0; i < 4; i++) {
        bt_rig_wait_split(rig, &r[i]);
    }
    bt_rig_run_ms(rig, 30); /* for a report from after the end */
    bt_rig_wait(rig, blocks_are_home, rig);
    bt_rig_destroy(rig);
}

static const uint64_t after_ms[] = {0, 1, 3, 8, 20, 60, 200, UINT64_MAX};

static void cancel_at_any_stage_brings_all_blocks_home(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof after_ms / sizeof after_ms[0]; i++) {
        cut_after(after_ms[i], true, true);
    }
}

/* A prefill run tells its puller whether it was offered before or not, and also when the pull comes
 * later. A decode run can tell it once they are linked. */
static void cancel_of_one_half_ends_the_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof after_ms / sizeof after_ms[0]; i++) {
        cut_after(after_ms[i], true, false);
    }
    cut_after(UINT64_MAX, false, true);
}

static void deadline_in_mid_transfer_ends_both(void **state)
{
    (void)state;
    static bt_rig_request r;
    bt_rig *rig = bt_rig_create(
        &(bt_rig_options){.transport = BT_KV_TRANSPORT_TCP, .kv_rate_limit_bytes_s = 16 << 10});
    describe(rig, &r, 12);
    r.deadline_left_ns = 150 * 1000 * 1000;
    bt_rig_send_split(rig, &r);
    bt_rig_wait_split(rig, &r);
    assert_int_equal(r.end[BT_RIG_DECODE].status, BT_EDEADLINE);
    assert_true(r.end[BT_RIG_PREFILL].status != BT_OK);
    bt_rig_destroy(rig);
}

static void prefill_worker_that_goes_away_fails_the_pull_and_a_retry_gives_the_same(void **state)
{
    (void)state;
    static bt_rig_request r;
    bt_rig *rig = bt_rig_create(
        &(bt_rig_options){.transport = BT_KV_TRANSPORT_TCP, .kv_rate_limit_bytes_s = 64 << 10});
    describe(rig, &r, 12);
    bt_rig_send_split(rig, &r);
    bt_rig_wait_tokens(rig, &r, 1);
    bt_rig_stop_worker(rig, BT_RIG_PREFILL, 0);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &r);
    assert_int_equal(bt_status_scope_of(r.end[BT_RIG_DECODE].status), BT_STATUS_SCOPE_PEER);
    r.attempt = 1;
    r.n_tokens = 0;
    memset(r.have, 0, sizeof r.have);
    r.finished[BT_RIG_DECODE] = false;
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &r);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &r);
    expect_same_tokens(&r, 12);
    bt_rig_destroy(rig);
}

static void decode_worker_that_goes_away_frees_the_prefill_workers_blocks(void **state)
{
    (void)state;
    static bt_rig_request r;
    bt_rig *rig = bt_rig_create(
        &(bt_rig_options){.transport = BT_KV_TRANSPORT_TCP, .kv_rate_limit_bytes_s = 64 << 10});
    describe(rig, &r, 12);
    bt_rig_send_split(rig, &r);
    bt_rig_wait_tokens(rig, &r, 1);
    bt_rig_stop_worker(rig, BT_RIG_DECODE, 0);
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &r);
    assert_true(r.end[BT_RIG_PREFILL].status != BT_OK);
    bt_rig_wait_load(rig, BT_RIG_PREFILL, is_home);
    bt_rig_destroy(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_over_loopback_equal_those_of_one_worker),
        cmocka_unit_test(tokens_over_shm_equal_those_of_one_worker),
        cmocka_unit_test(tokens_over_tcp_equal_those_of_one_worker),
        cmocka_unit_test(blocks_held_already_are_not_pulled_again),
        cmocka_unit_test(decode_pool_that_is_full_is_a_queue),
        cmocka_unit_test(blocks_are_not_reserved_for_what_the_prefill_worker_has_not_begun),
        cmocka_unit_test(retry_with_tokens_made_so_far_goes_on_the_same),
        cmocka_unit_test(request_that_ends_with_its_first_token_drops_the_pull),
        cmocka_unit_test(both_workers_tell_the_same_end_of_a_first_token_that_stops),
        cmocka_unit_test(cancel_at_any_stage_brings_all_blocks_home),
        cmocka_unit_test(cancel_of_one_half_ends_the_other),
        cmocka_unit_test(deadline_in_mid_transfer_ends_both),
        cmocka_unit_test(prefill_worker_that_goes_away_fails_the_pull_and_a_retry_gives_the_same),
        cmocka_unit_test(decode_worker_that_goes_away_frees_the_prefill_workers_blocks),
    };
    return cmocka_run_group_tests(tests, make_oracle, NULL);
}
