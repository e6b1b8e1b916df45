/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that a stream moves from a decode worker that drains to another one in mid-stream with
 * the same tokens, and that it loses nothing when the move fails at any step. None of it counts as
 * a recovery: the router here allows none unless a test says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/router/router_rig.h"

#define REPLY "Hello, world"

enum { N_REPLY = sizeof REPLY }; /* tokens: its bytes and the end of text */

/* Workers 0 (prefill) and 1 (decode, holds still after so many tokens). */
static rig *start_split(void **state, uint32_t emit_max)
{
    rig *r = *state;
    r->options.recoveries_max = 0;
    rig_start(r);
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    rig_worker *d = rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    d->emit_max = emit_max;
    rig_wait_ready(r, true);
    return r;
}

/* A stream that holds still behind n tokens on a worker that drains, and one that takes it. */
typedef struct scene {
    rig *r;
    rig_worker *d0;
    rig_worker *d1;
    rig_client *c;
} scene;

static scene begin(void **state, uint32_t n)
{
    scene s = {.r = start_split(state, n)};
    s.d0 = &s.r->workers[1];
    s.c = rig_generate_text(s.r, "x");
    rig_wait_tokens(s.c, n);
    s.d1 = rig_add_worker(s.r, "d1", BT_LINK_ROLE_DECODE);
    return s;
}

static void expect_moved(const rig_run *run, const char *from, uint32_t attempt, uint32_t n_output)
{
    assert_int_equal(run->mode, BT_LINK_MODE_DECODE);
    assert_int_equal(run->attempt, attempt);
    assert_int_equal(run->n_prompt, 1);
    assert_int_equal(run->n_tokens, n_output); /* the newest comes with the blocks */
    assert_string_equal(run->peer, from);
    assert_int_equal(run->tokens[0], 'x');
    for (uint32_t i = 0; i + 1 < n_output; i++) {
        assert_int_equal(run->tokens[1 + i], REPLY[i]);
    }
}

static void a_stream_moves_after_any_token(void **state)
{
    rig *r = start_split(state, 1);
    rig_worker *d = &r->workers[1];
    for (uint32_t n = 1; n < N_REPLY; n++) {
        d->emit_max = n;
        rig_client *c = rig_generate_text(r, "x");
        rig_wait_tokens(c, n);
        char from[BT_LINK_NAME_MAX];
        snprintf(from, sizeof from, "%s", d->hello.kv.name);
        char name[16];
        snprintf(name, sizeof name, "d%u", n);
        rig_worker *next = rig_add_worker(r, name, BT_LINK_ROLE_DECODE);
        rig_drain(d);
        rig_wait_runs(next, 1);
        rig_say_finished(d, &d->runs[d->n_runs - 1], BT_OK, BT_FINISH_NONE);
        rig_expect_ok(c, REPLY);
        expect_moved(&next->runs[0], from, 2, n);
        assert_int_equal(next->runs[0].attempt, d->runs[d->n_runs - 1].next_attempt);
        assert_int_equal(next->runs[0].seed, c->seed);
        assert_int_equal(c->ids.n, N_REPLY);
        assert_int_equal(c->last->finish->usage->generated_tokens, N_REPLY);
        assert_string_equal(c->last->finish->route->decode_worker, name);
        assert_string_equal(c->last->finish->route->prefill_worker, "p0");
        assert_int_equal(c->last->finish->reason, BATON__V1__FINISH_REASON__FINISH_REASON_STOP);
        d = next;
    }
    assert_int_equal(r->workers[0].n_runs, N_REPLY - 1); /* nothing is computed again */
    rig_wait_metric(r, "baton_router_moves_total{end=\"done\"} 12");
    rig_wait_metric(r, "baton_router_recoveries_total 0");
    rig_wait_metric(r, "baton_router_requests_total{end=\"stop\"} 12");
}

/* It serves its blocks on its own host alone, and the other worker is on another one. */
static void a_stream_that_no_other_worker_reaches_ends_where_it_is(void **state)
{
    rig *r = *state;
    rig_start(r);
    bt_link_hello hello = rig_hello(r, "d0", BT_LINK_ROLE_BOTH);
    hello.kv.kv_tcp[0] = '\0';
    snprintf(hello.kv.kv_unix, sizeof hello.kv.kv_unix, "@d0");
    hello.kv.boot_id[0] = 1;
    rig_worker *d0 = rig_dial(r, &hello);
    d0->emit_max = 5;
    rig_wait_ready(r, true);
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 5);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_BOTH);
    rig_drain(d0);
    rig_expect_ok(rig_generate_text(r, "y"), REPLY);
    assert_int_equal(d0->runs[0].n_parks, 0);
    rig_resume(d0, 0);
    rig_expect_ok(c, REPLY);
    assert_int_equal(d1->n_runs, 1); /* the other request's */
}

static void the_newest_token_told_again_is_no_double(void **state)
{
    scene s = begin(state, 5);
    s.d1->hold = true;
    rig_drain(s.d0);
    rig_wait_runs(s.d1, 1);
    rig_say_tokens(s.d1, &s.d1->runs[0], 4, "o"); /* as the real worker does */
    rig_resume(s.d1, 0);
    rig_expect_ok(s.c, REPLY);
    assert_int_equal(s.c->ids.n, N_REPLY);
}

static void logprobs_and_stop_strings_go_on(void **state)
{
    rig *r = start_split(state, 5);
    char *stop[] = {(char[]){"lo, w"}};
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    sampling.n_stop = 1;
    sampling.stop = stop;
    sampling.logprobs = 1;
    const Baton__V1__GenerateRequest request = rig_request("x", &sampling);
    rig_client *c = rig_generate(r, &request);
    rig_wait_tokens(c, 5);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    rig_drain(&r->workers[1]);
    rig_expect_ok(c, "Hel");
    assert_string_equal(c->last->finish->stop, "lo, w");
    assert_true(d1->runs[0].logprobs);
    assert_false(c->logprob_error);
}

static void whole_requests_move_as_well_and_keep_their_usage(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *b0 = rig_add_worker(r, "b0", BT_LINK_ROLE_BOTH);
    b0->emit_max = 6;
    b0->cached_tokens = 1;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 6);
    rig_worker *b1 = rig_add_worker(r, "b1", BT_LINK_ROLE_BOTH);
    b1->hold = true;
    rig_drain(b0);
    rig_wait_runs(b1, 1);
    rig_say_finished(b0, &b0->runs[0], BT_OK, BT_FINISH_NONE);
    rig_idle(r);
    rig_resume(b1, 0);
    rig_expect_ok(c, REPLY);
    expect_moved(&b1->runs[0], "b0", 2, 6);
    assert_int_equal(c->last->finish->usage->cached_tokens, 1);
}

static void with_nobody_else_it_ends_where_it_is(void **state)
{
    rig *r = start_split(state, 4);
    rig_worker *d0 = &r->workers[1];
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_drain(d0);
    rig_idle(r);
    assert_int_equal(d0->runs[0].n_parks, 0);
    rig_resume(d0, 0);
    rig_expect_ok(c, REPLY);
}

static void what_nobody_takes_says_who_is_missing(void **state)
{
    rig *r = *state;
    r->options.queue_time_ms = 60;
    (void)start_split(state, 4);
    rig_worker *d0 = &r->workers[1];
    d0->fail_drains = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_drain(d0);
    rig_idle(r);
    rig_say_finished(d0, &d0->runs[0], BT_EPEER, BT_FINISH_NONE); /* its time is over */
    rig_expect_error(c, BT_RPC_UNAVAILABLE,
                     "the reply broke off after 4 tokens, and no worker could go on with it for");
    assert_non_null(strstr(c->message, "the reason: no workers are ready for model"));
}

static void it_moves_once_somebody_joins(void **state)
{
    rig *r = start_split(state, 4);
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_drain(&r->workers[1]);
    rig_idle(r);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    rig_expect_ok(c, REPLY);
    expect_moved(&d1->runs[0], "d0", 2, 4);
}

static void a_full_worker_is_not_moved_to(void **state)
{
    scene s = begin(state, 4);
    s.d1->load.blocks_free = 1;
    bt_link_worker_load(s.d1->link, &s.d1->load);
    bt_link_worker_flush(s.d1->link);
    rig_idle(s.r);
    rig_drain(s.d0);
    rig_idle(s.r);
    assert_int_equal(s.d0->runs[0].n_parks, 0);
    s.d1->load.blocks_free = 2;
    bt_link_worker_load(s.d1->link, &s.d1->load);
    bt_link_worker_flush(s.d1->link);
    rig_expect_ok(s.c, REPLY);
    assert_int_equal(s.d1->n_runs, 1);
}

static void what_has_nothing_to_hand_over_is_placed_anew(void **state)
{
    scene s = begin(state, 4);
    s.d0->park = BT_AGAIN;
    rig_drain(s.d0);
    rig_expect_ok(s.c, REPLY);
    assert_int_equal(s.r->workers[0].n_runs, 2); /* the prompt and the tokens so far */
    assert_int_equal(s.r->workers[0].runs[1].n_tokens, 1 + 4);
    assert_int_equal(s.d1->runs[0].n_tokens, 1 + 4);
    assert_true(s.d0->runs[0].cancelled);
    rig_wait_metric(s.r, "baton_router_recoveries_total 0");
}

static void what_no_worker_has_begun_is_placed_anew(void **state)
{
    rig *r = *state;
    r->options.attempts_max = 1;
    rig_start(r);
    rig_worker *p0 = rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    p0->hold = true;
    rig_worker *d0 = rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    d0->hold = true;
    rig_wait_ready(r, true);
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_runs(d0, 1);
    rig_wait_runs(p0, 1);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    rig_drain(d0);
    rig_wait_runs(d1, 1);
    rig_resume(p0, 0);
    rig_expect_ok(c, REPLY);
    assert_int_equal(d0->runs[0].n_parks, 0);
    assert_true(d0->runs[0].cancelled);
}

static void what_can_not_be_offered_now_is_asked_again(void **state)
{
    scene s = begin(state, 4);
    s.d0->park = BT_EEXHAUSTED;
    rig_drain(s.d0);
    rig_wait_parks(s.d0, 0, 2);
    assert_int_equal(s.d1->n_runs, 0);
    s.d0->park = BT_OK;
    rig_expect_ok(s.c, REPLY);
    expect_moved(&s.d1->runs[0], "d0", s.d1->runs[0].attempt, 4);
}

static void when_nobody_is_left_it_goes_on_where_it_was(void **state)
{
    scene s = begin(state, 4);
    s.d0->hold_park = true;
    rig_drain(s.d0);
    rig_wait_parks(s.d0, 0, 1);
    rig_drain(s.d1);
    rig_idle(s.r);
    s.d0->emit_max = 0;
    rig_say_parked(s.d0, &s.d0->runs[0], BT_OK);
    rig_expect_ok(s.c, REPLY);
    assert_int_equal(s.d0->runs[0].n_resumes, 1);
    assert_int_equal(s.d1->n_runs, 0);
}

static void a_worker_that_is_gone_before_it_parked_costs_a_placement(void **state)
{
    scene s = begin(state, 4);
    s.d0->hold_park = true;
    rig_drain(s.d0);
    rig_wait_parks(s.d0, 0, 1);
    rig_kill(s.d0);
    rig_expect_ok(s.c, REPLY);
    assert_int_equal(s.d1->runs[0].n_tokens, 1 + 4);
    rig_wait_metric(s.r, "baton_router_recoveries_total 0");
}

/* The run and the news that its worker drains crossed on their way. */
static void a_run_that_a_draining_worker_refuses_is_nobodys_failure(void **state)
{
    rig *r = *state;
    r->options.recoveries_max = 0;
    r->options.attempts_max = 1;
    rig_start(r);
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    rig_worker *d0 = rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    d0->fail = BT_EPEER;
    d0->fail_drains = true;
    rig_wait_ready(r, true);
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_runs(d0, 1);
    (void)rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    rig_expect_ok(c, REPLY);
    assert_true(d0->n_runs >= 1); /* the fake one does not report that it drains */
    assert_int_equal(c->ids.n, N_REPLY);
}

static void a_target_that_dies_is_recovered_from(void **state)
{
    scene s = begin(state, 4);
    s.d1->hold = true;
    rig_drain(s.d0);
    rig_wait_runs(s.d1, 1);
    rig_worker *d2 = rig_add_worker(s.r, "d2", BT_LINK_ROLE_DECODE);
    rig_kill(s.d1);
    rig_expect_ok(s.c, REPLY);
    assert_int_equal(d2->runs[0].n_tokens, 1 + 4);
    assert_true(s.d0->runs[0].cancelled); /* its blocks are wanted by nobody */
    rig_wait_metric(s.r, "baton_router_moves_total{end=\"failed\"} 1");
    rig_wait_metric(s.r, "baton_router_recoveries_total 0");
}

static void a_target_that_refuses_is_recovered_from(void **state)
{
    scene s = begin(state, 4);
    s.d1->fail = BT_EEXHAUSTED;
    rig_worker *d2 = rig_add_worker(s.r, "d2", BT_LINK_ROLE_DECODE);
    rig_drain(s.d0);
    rig_expect_ok(s.c, REPLY);
    assert_int_equal(s.c->ids.n, N_REPLY);
    assert_int_equal(s.d1->n_runs, 1);
    assert_int_equal(d2->runs[0].n_tokens, 1 + 4);
    rig_wait_metric(s.r, "baton_router_recoveries_total 0");
}

static void a_source_that_dies_while_it_is_pulled_is_recovered_from(void **state)
{
    scene s = begin(state, 4);
    s.d1->hold = true;
    rig_drain(s.d0);
    rig_wait_runs(s.d1, 1);
    rig_kill(s.d0);
    rig_idle(s.r);
    rig_say_finished(s.d1, &s.d1->runs[0], BT_EPEER, BT_FINISH_ERROR); /* its pull failed */
    rig_wait_runs(s.d1, 2); /* not its fault: it is taken again */
    rig_resume(s.d1, 0);
    rig_expect_ok(s.c, REPLY);
    assert_int_equal(s.d1->runs[1].n_tokens, 1 + 4);
    rig_wait_metric(s.r, "baton_router_recoveries_total 0");
}

static void a_client_that_leaves_cancels_both(void **state)
{
    scene s = begin(state, 4);
    s.d1->hold = true;
    rig_drain(s.d0);
    rig_wait_runs(s.d1, 1);
    bt_rpc_call_cancel(s.c->call);
    rig_wait_cancels(s.d0, 1);
    rig_wait_cancels(s.d1, 1);
    rig_wait_done(s.c);
}

static void a_moved_stream_recovers_and_moves_again(void **state)
{
    rig *r = *state;
    r->options.recoveries_max = 1;
    rig_start(r);
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    rig_worker *d[5] = {rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE)};
    d[0]->emit_max = 2;
    rig_wait_ready(r, true);
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 2);
    for (uint32_t i = 1; i < 5; i++) {
        char name[8];
        snprintf(name, sizeof name, "d%u", i);
        d[i] = rig_add_worker(r, name, BT_LINK_ROLE_DECODE);
        d[i]->emit_max = i == 4 ? 0 : 2 + 2 * i;
        if (i == 2) {
            rig_kill(d[1]);
        } else {
            rig_drain(d[i - 1]);
            rig_wait_runs(d[i], 1);
            rig_say_finished(d[i - 1], &d[i - 1]->runs[0], BT_OK, BT_FINISH_NONE);
        }
        if (i < 4) {
            rig_wait_tokens(c, 2 + 2 * i);
        }
    }
    rig_expect_ok(c, REPLY);
    assert_int_equal(c->ids.n, N_REPLY);
    assert_int_equal(c->last->finish->route->attempts, 5);
    rig_wait_metric(r, "baton_router_recoveries_total 1");
    rig_wait_metric(r, "baton_router_moves_total{end=\"done\"} 3");
}

#define MOVE_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        MOVE_TEST(a_stream_moves_after_any_token),
        MOVE_TEST(a_stream_that_no_other_worker_reaches_ends_where_it_is),
        MOVE_TEST(the_newest_token_told_again_is_no_double),
        MOVE_TEST(logprobs_and_stop_strings_go_on),
        MOVE_TEST(whole_requests_move_as_well_and_keep_their_usage),
        MOVE_TEST(with_nobody_else_it_ends_where_it_is),
        MOVE_TEST(what_nobody_takes_says_who_is_missing),
        MOVE_TEST(it_moves_once_somebody_joins),
        MOVE_TEST(a_full_worker_is_not_moved_to),
        MOVE_TEST(what_has_nothing_to_hand_over_is_placed_anew),
        MOVE_TEST(what_no_worker_has_begun_is_placed_anew),
        MOVE_TEST(what_can_not_be_offered_now_is_asked_again),
        MOVE_TEST(when_nobody_is_left_it_goes_on_where_it_was),
        MOVE_TEST(a_worker_that_is_gone_before_it_parked_costs_a_placement),
        MOVE_TEST(a_run_that_a_draining_worker_refuses_is_nobodys_failure),
        MOVE_TEST(a_target_that_dies_is_recovered_from),
        MOVE_TEST(a_target_that_refuses_is_recovered_from),
        MOVE_TEST(a_source_that_dies_while_it_is_pulled_is_recovered_from),
        MOVE_TEST(a_client_that_leaves_cancels_both),
        MOVE_TEST(a_moved_stream_recovers_and_moves_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
