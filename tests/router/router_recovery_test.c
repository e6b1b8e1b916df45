/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that a stream which has begun goes on when its workers fail: with the same tokens, text,
 * logprobs and usage as an undisturbed one, as often as the router's options allow, and with a
 * clear error afterwards. */
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

/* Workers 0 (prefill) and 1 (decode). */
static rig *start_split(void **state)
{
    rig *r = *state;
    rig_start(r);
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    (void)rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    rig_wait_ready(r, true);
    return r;
}

static const rig_run *last_run(const rig_worker *w)
{
    assert_true(w->n_runs > 0);
    return &w->runs[w->n_runs - 1];
}

/* The run goes on behind n_output tokens of the reply to a prompt of one token. */
static void expect_resumed(const rig_run *run, uint32_t attempt, uint32_t n_output)
{
    assert_int_equal(run->attempt, attempt);
    assert_int_equal(run->n_prompt, 1);
    assert_int_equal(run->n_tokens, 1 + n_output);
    assert_int_equal(run->tokens[0], 'x');
    for (uint32_t i = 0; i < n_output; i++) {
        assert_int_equal(run->tokens[1 + i], REPLY[i]);
    }
}

static void expect_attempts(const rig_client *c, uint32_t n)
{
    assert_int_equal(c->last->finish->route->attempts, n);
}

static void decode_dies_after_any_token_and_the_stream_goes_on(void **state)
{
    rig *r = start_split(state);
    rig_worker *p = &r->workers[0];
    rig_worker *d = &r->workers[1];
    for (uint32_t n = 1; n < N_REPLY; n++) {
        d->emit_max = n;
        rig_client *c = rig_generate_text(r, "x");
        rig_wait_tokens(c, n);
        char name[16];
        snprintf(name, sizeof name, "d%u", n);
        rig_worker *next = rig_add_worker(r, name, BT_LINK_ROLE_DECODE);
        rig_kill(d);
        rig_expect_ok(c, REPLY);
        expect_resumed(last_run(p), 2, n);
        expect_resumed(&next->runs[0], 2, n);
        assert_int_equal(next->runs[0].seed, c->seed);
        assert_int_equal(c->ids.n, N_REPLY);
        expect_attempts(c, 2);
        assert_string_equal(c->last->finish->route->decode_worker, name);
        assert_int_equal(c->last->finish->reason, BATON__V1__FINISH_REASON__FINISH_REASON_STOP);
        d = next;
    }
    rig_wait_metric(r, "baton_router_recoveries_total 12");
    rig_wait_metric(r, "baton_router_requests_total{end=\"stop\"} 12");
}

static void what_broke_off_behind_its_last_token_is_complete(void **state)
{
    rig *r = start_split(state);
    rig_worker *d = &r->workers[1];
    d->mute = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, N_REPLY);
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    sampling.max_tokens_presence_case = BATON__V1__SAMPLING__MAX_TOKENS_PRESENCE_MAX_TOKENS;
    sampling.max_tokens = 5;
    Baton__V1__GenerateRequest request = rig_request("x", &sampling);
    rig_client *limited = rig_generate(r, &request);
    rig_wait_tokens(limited, 5);
    rig_kill(d);
    rig_expect_ok(c, REPLY);
    assert_int_equal(c->last->finish->stop_token_id, RIG_EOS);
    expect_attempts(c, 1);
    rig_expect_ok(limited, "Hello");
    assert_int_equal(limited->last->finish->reason, BATON__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    rig_wait_metric(r, "baton_router_recoveries_total 0");
}

static void whole_requests_are_resumed_as_well(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *b0 = rig_add_worker(r, "b0", BT_LINK_ROLE_BOTH);
    b0->emit_max = 6;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 6);
    rig_worker *b1 = rig_add_worker(r, "b1", BT_LINK_ROLE_BOTH);
    rig_kill(b0);
    rig_expect_ok(c, REPLY);
    expect_resumed(&b1->runs[0], 2, 6);
    assert_int_equal(b1->runs[0].mode, BT_LINK_MODE_WHOLE);
}

static void a_report_of_failure_is_as_good_as_a_death(void **state)
{
    rig *r = start_split(state);
    rig_worker *d0 = &r->workers[1];
    d0->emit_max = 4;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    d1->hold = true;
    rig_say_finished(d0, &d0->runs[0], BT_EIO, BT_FINISH_ERROR);
    rig_wait_runs(d1, 1);
    /* What the old attempt still says is not part of the stream. */
    rig_say_tokens(d0, &d0->runs[0], 4, "??");
    rig_idle(r);
    rig_resume(d1, 0);
    rig_expect_ok(c, REPLY);
    expect_attempts(c, 2);
}

static void tokens_that_both_attempts_bring_are_told_once(void **state)
{
    rig *r = start_split(state);
    rig_worker *d0 = &r->workers[1];
    d0->emit_max = 4;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    d1->repeat = true;
    d1->hold = true;
    rig_kill(d0);
    rig_wait_runs(d1, 1);
    rig_say_tokens(d1, &d1->runs[0], 0, "Hello");
    rig_resume(d1, 0);
    rig_expect_ok(c, REPLY);
    assert_int_equal(c->ids.n, N_REPLY);
    assert_int_equal(c->last->finish->usage->generated_tokens, N_REPLY);
}

static void logprobs_go_on(void **state)
{
    rig *r = start_split(state);
    for (int i = 0; i < 2; i++) {
        r->workers[i].n_top = 3;
    }
    r->workers[1].emit_max = 5;
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    sampling.logprobs = 1;
    sampling.n_top_logprobs = 3;
    Baton__V1__GenerateRequest request = rig_request("x", &sampling);
    rig_client *c = rig_generate(r, &request);
    rig_wait_tokens(c, 5);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    d1->n_top = 3;
    rig_kill(&r->workers[1]);
    rig_expect_ok(c, REPLY);
    assert_true(d1->runs[0].logprobs);
    assert_int_equal(c->n_logprobs, N_REPLY);
    assert_int_equal(c->n_top, 3 * N_REPLY);
    assert_false(c->logprob_error);
}

static void a_stop_string_is_found_across_the_seam(void **state)
{
    rig *r = start_split(state);
    r->workers[1].emit_max = 5;
    char *stop[] = {(char[]){"lo, w"}};
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    sampling.n_stop = 1;
    sampling.stop = stop;
    Baton__V1__GenerateRequest request = rig_request("x", &sampling);
    rig_client *c = rig_generate(r, &request);
    rig_wait_tokens(c, 5);
    (void)rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    rig_kill(&r->workers[1]);
    rig_expect_ok(c, "Hel");
    assert_string_equal(c->last->finish->stop, "lo, w");
}

static void max_tokens_counts_all_attempts(void **state)
{
    rig *r = start_split(state);
    r->workers[1].emit_max = 4;
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    sampling.max_tokens_presence_case = BATON__V1__SAMPLING__MAX_TOKENS_PRESENCE_MAX_TOKENS;
    sampling.max_tokens = 7;
    Baton__V1__GenerateRequest request = rig_request("x", &sampling);
    rig_client *c = rig_generate(r, &request);
    rig_wait_tokens(c, 4);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    rig_kill(&r->workers[1]);
    rig_expect_ok(c, "Hello, ");
    assert_int_equal(d1->runs[0].max_tokens, 7);
    assert_int_equal(c->last->finish->reason, BATON__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    /* One token is left: nothing is handed over. */
    d1->emit_max = 6;
    c = rig_generate(r, &request);
    rig_wait_tokens(c, 6);
    rig_worker *d2 = rig_add_worker(r, "d2", BT_LINK_ROLE_DECODE);
    rig_kill(d1);
    rig_expect_ok(c, "Hello, ");
    assert_int_equal(d2->n_runs, 0);
    assert_false(last_run(&r->workers[0])->has_peer);
}

static void usage_counts_once(void **state)
{
    rig *r = start_split(state);
    r->workers[0].cached_tokens = 16;
    r->workers[1].emit_max = 9;
    rig_client *c = rig_generate_text(r, "a prompt of thirty-two letters..");
    rig_wait_tokens(c, 9);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    r->workers[0].cached_tokens = 40; /* of prompt and reply, since the first attempt */
    rig_kill(&r->workers[1]);
    rig_expect_ok(c, REPLY);
    assert_int_equal(d1->runs[0].n_tokens, 32 + 9);
    const Baton__V1__Usage *usage = c->last->finish->usage;
    assert_int_equal(usage->prompt_tokens, 32);
    assert_int_equal(usage->cached_tokens, 16);
    assert_int_equal(usage->generated_tokens, N_REPLY);
    rig_wait_metric(r, "baton_router_prompt_tokens_total 32");
    rig_wait_metric(r, "baton_router_cached_tokens_total 16");
    rig_wait_metric(r, "baton_router_generated_tokens_total 13");
}

static void cached_tokens_are_tokens_of_the_prompt(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *b0 = rig_add_worker(r, "b0", BT_LINK_ROLE_BOTH);
    b0->emit_max = 9;
    rig_client *c = rig_generate_text(r, "a prompt of thirty-two letters..");
    rig_wait_tokens(c, 9);
    rig_worker *b1 = rig_add_worker(r, "b1", BT_LINK_ROLE_BOTH);
    b1->cached_tokens = 40;
    rig_kill(b0); /* it never said what it had */
    rig_expect_ok(c, REPLY);
    assert_int_equal(c->last->finish->usage->cached_tokens, 32);
}

static Baton__V1__GenerateRequest echo_request(Baton__V1__Sampling *sampling)
{
    *sampling = (Baton__V1__Sampling)BATON__V1__SAMPLING__INIT;
    sampling->logprobs = 1;
    sampling->echo = 1;
    return rig_request("prompt", sampling);
}

static void the_prompt_is_not_echoed_again(void **state)
{
    rig *r = start_split(state);
    r->workers[1].emit_max = 4;
    Baton__V1__Sampling sampling;
    Baton__V1__GenerateRequest request = echo_request(&sampling);
    rig_client *c = rig_generate(r, &request);
    rig_wait_tokens(c, 4);
    (void)rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    rig_kill(&r->workers[1]);
    rig_expect_ok(c, REPLY);
    assert_true(r->workers[0].runs[0].echo);
    assert_false(r->workers[0].runs[1].echo);
    assert_int_equal(c->prompt_ids.n, 6);
    assert_int_equal(c->prompt_text.len, 6);
    assert_int_equal(c->n_logprobs, 6 + N_REPLY);
}

static void an_echo_that_lacks_parts_begins_again(void **state)
{
    rig *r = start_split(state);
    rig_worker *p0 = &r->workers[0];
    rig_worker *d0 = &r->workers[1];
    p0->hold = true;
    p0->hold_echo = true;
    d0->hold = true;
    Baton__V1__Sampling sampling;
    Baton__V1__GenerateRequest request = echo_request(&sampling);
    rig_client *c = rig_generate(r, &request);
    rig_wait_runs(p0, 1);
    rig_wait_runs(d0, 1);
    /* D has token 0 from P and goes on, while the echo is on its way: here it never comes. */
    rig_say_tokens(d0, &d0->runs[0], 0, "Hell");
    rig_worker *p1 = rig_add_worker(r, "p1", BT_LINK_ROLE_PREFILL);
    rig_idle(r);
    assert_int_equal(c->ids.n, 0);
    rig_kill(p0);
    rig_wait_runs(d0, 2);
    rig_resume(d0, 0);
    rig_expect_ok(c, REPLY);
    assert_true(p1->runs[0].echo);
    assert_int_equal(p1->runs[0].n_tokens, 6);
    assert_int_equal(c->prompt_ids.n, 6);
    assert_int_equal(c->ids.n, N_REPLY);
    rig_wait_metric(r, "baton_router_recoveries_total 1");
}

static void an_echo_that_begins_again_is_whole_behind_a_stop_string(void **state)
{
    rig *r = start_split(state);
    rig_worker *p0 = &r->workers[0];
    rig_worker *d0 = &r->workers[1];
    p0->hold = true;
    p0->hold_echo = true;
    d0->hold = true;
    char stop[] = "H";
    char *stops[] = {stop};
    Baton__V1__Sampling sampling;
    Baton__V1__GenerateRequest request = echo_request(&sampling);
    sampling.n_stop = 1;
    sampling.stop = stops;
    rig_client *c = rig_generate(r, &request);
    rig_wait_runs(p0, 1);
    rig_wait_runs(d0, 1);
    rig_say_tokens(d0, &d0->runs[0], 0, "H"); /* the end, but for the echo */
    rig_idle(r);
    rig_kill(p0);
    rig_wait_runs(d0, 2); /* the whole prompt there, each of its tokens an event */
    assert_int_equal(d0->runs[1].mode, BT_LINK_MODE_WHOLE);
    rig_resume(d0, 0);
    rig_expect_ok(c, "");
    assert_int_equal(c->prompt_ids.n, 6);
    assert_int_equal(c->prompt_text.len, 6);
    assert_int_equal(c->last->finish->usage->generated_tokens, 1);
}

static void a_failed_pull_is_recovered_from_another_prefill_worker(void **state)
{
    rig *r = start_split(state);
    rig_worker *d0 = &r->workers[1];
    rig_worker *p1 = rig_add_worker(r, "p1", BT_LINK_ROLE_PREFILL);
    d0->hold = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 1);
    rig_wait_runs(d0, 1);
    rig_say_finished(d0, &d0->runs[0], BT_EPEER, BT_FINISH_ERROR);
    rig_wait_runs(d0, 2);
    rig_resume(d0, 0);
    rig_expect_ok(c, REPLY);
    expect_resumed(&p1->runs[0], 2, 1);
    assert_string_equal(d0->runs[1].peer, "p1");
}

static void prefill_dies_before_its_first_token_of_a_recovery(void **state)
{
    rig *r = start_split(state);
    rig_worker *p0 = &r->workers[0];
    rig_worker *d0 = &r->workers[1];
    d0->emit_max = 4;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    d1->hold = true;
    p0->hold = true;
    rig_kill(d0);
    rig_wait_runs(p0, 2);
    rig_wait_runs(d1, 1);
    rig_worker *p1 = rig_add_worker(r, "p1", BT_LINK_ROLE_PREFILL);
    rig_kill(p0);
    rig_wait_runs(d1, 2);
    rig_resume(d1, 0);
    rig_expect_ok(c, REPLY);
    expect_resumed(&p1->runs[0], 3, 4);
    expect_attempts(c, 3);
    rig_wait_metric(r, "baton_router_recoveries_total 1");
    rig_wait_metric(r, "baton_router_retries_total 2");
}

static void prefill_dies_after_its_first_token_of_a_recovery(void **state)
{
    rig *r = start_split(state);
    rig_worker *p0 = &r->workers[0];
    r->workers[1].emit_max = 4;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    d1->hold = true;
    rig_kill(&r->workers[1]);
    rig_wait_tokens(c, 5);
    rig_kill(p0);
    rig_idle(r);
    rig_resume(d1, 0);
    rig_expect_ok(c, REPLY);
    expect_attempts(c, 2);
}

static void both_workers_of_a_stream_die_at_once(void **state)
{
    rig *r = start_split(state);
    r->workers[1].emit_max = 4;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_kill(&r->workers[0]);
    rig_kill(&r->workers[1]);
    rig_idle(r);
    rig_worker *b = rig_add_worker(r, "b", BT_LINK_ROLE_BOTH);
    rig_expect_ok(c, REPLY);
    expect_resumed(&b->runs[0], 2, 4);
}

static void a_stream_waits_for_a_new_decode_worker(void **state)
{
    rig *r = start_split(state);
    r->workers[1].emit_max = 4;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_kill(&r->workers[1]);
    rig_wait_metric(r, "baton_router_requests_queued 1");
    (void)rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    rig_expect_ok(c, REPLY);
}

static void without_workers_a_stream_ends_after_the_queue_time(void **state)
{
    rig *r = *state;
    r->options.queue_time_ms = 60;
    (void)start_split(state);
    r->workers[1].emit_max = 4;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_kill(&r->workers[1]);
    rig_expect_error(c, BT_RPC_UNAVAILABLE,
                     "the reply broke off after 4 tokens, and no worker could go on with it for");
    assert_non_null(strstr(c->message, "decode worker 'd0': it is gone"));
    assert_int_equal(c->ids.n, 4);
}

/* Breaks a stream off again and again, n times, each time after one more token. */
static rig_client *break_off(rig *r, uint32_t n)
{
    rig_worker *d = &r->workers[1];
    d->emit_max = 2;
    rig_client *c = rig_generate_text(r, "x");
    for (uint32_t i = 0; i < n; i++) {
        rig_wait_tokens(c, 2 + i);
        char name[16];
        snprintf(name, sizeof name, "d%u", 1 + i);
        rig_worker *next = rig_add_worker(r, name, BT_LINK_ROLE_DECODE);
        next->emit_max = i + 1 < n ? 3 + i : 0;
        rig_kill(d);
        d = next;
    }
    return c;
}

static void a_stream_is_recovered_as_often_as_allowed(void **state)
{
    rig *r = start_split(state);
    rig_client *c = break_off(r, 3);
    rig_expect_ok(c, REPLY);
    expect_attempts(c, 4);
    rig_wait_metric(r, "baton_router_recoveries_total 3");
}

static void after_the_last_recovery_the_client_is_told(void **state)
{
    rig *r = *state;
    r->options.recoveries_max = 1;
    (void)start_split(state);
    rig_client *c = break_off(r, 2);
    rig_expect_error(c, BT_RPC_UNAVAILABLE,
                     "the reply broke off after 3 tokens and could not be resumed (recoveries: 1, "
                     "attempts: 2); the last reason: decode worker 'd1': it is gone");
    assert_int_equal(c->ids.n, 3);
}

static void recoveries_can_be_switched_off(void **state)
{
    rig *r = *state;
    r->options.recoveries_max = 0;
    (void)start_split(state);
    rig_client *c = break_off(r, 1);
    rig_expect_error(c, BT_RPC_UNAVAILABLE, "the reply broke off after 2 tokens");
}

static void a_recovery_that_never_gets_on_ends(void **state)
{
    rig *r = start_split(state);
    r->workers[1].emit_max = 4;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    for (int i = 0; i < 3; i++) {
        r->workers[i].fail = BT_EEXHAUSTED;
        r->workers[i].fail_text = "no room for another request";
    }
    rig_kill(&r->workers[1]);
    rig_expect_error(c, BT_RPC_UNAVAILABLE, "no room for another request");
    assert_int_equal(d1->n_runs + r->workers[0].n_runs > 3, true);
    assert_non_null(strstr(c->message, "(recoveries: 1, attempts: 4)"));
}

static void a_stream_stays_within_its_numerics_and_holds_up_nobody(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *b0 = rig_add_worker(r, "b0", BT_LINK_ROLE_BOTH);
    b0->emit_max = 4;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    bt_link_hello hello = rig_hello(r, "other", BT_LINK_ROLE_BOTH);
    hello.numerics_id[0] ^= 1;
    rig_worker *other = rig_dial(r, &hello);
    rig_wait_up(other);
    rig_kill(b0);
    rig_wait_metric(r, "baton_router_requests_queued 1");
    rig_expect_ok(rig_generate_text(r, "y"), REPLY);
    assert_int_equal(other->n_runs, 1);
    (void)rig_add_worker(r, "b1", BT_LINK_ROLE_BOTH);
    rig_expect_ok(c, REPLY);
    assert_int_equal(other->n_runs, 1);
}

static void a_client_that_leaves_while_its_stream_waits_frees_it(void **state)
{
    rig *r = start_split(state);
    r->workers[1].emit_max = 4;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 4);
    rig_kill(&r->workers[1]);
    rig_wait_metric(r, "baton_router_requests_queued 1");
    bt_rpc_call_cancel(c->call);
    rig_wait_done(c);
    rig_wait_metric(r, "baton_router_requests_queued 0");
    rig_wait_metric(r, "baton_router_requests_total{end=\"cancelled\"} 1");
}

static const struct CMUnitTest tests[] = {
#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
    RIG_TEST(decode_dies_after_any_token_and_the_stream_goes_on),
    RIG_TEST(what_broke_off_behind_its_last_token_is_complete),
    RIG_TEST(whole_requests_are_resumed_as_well),
    RIG_TEST(a_report_of_failure_is_as_good_as_a_death),
    RIG_TEST(tokens_that_both_attempts_bring_are_told_once),
    RIG_TEST(logprobs_go_on),
    RIG_TEST(a_stop_string_is_found_across_the_seam),
    RIG_TEST(max_tokens_counts_all_attempts),
    RIG_TEST(usage_counts_once),
    RIG_TEST(cached_tokens_are_tokens_of_the_prompt),
    RIG_TEST(the_prompt_is_not_echoed_again),
    RIG_TEST(an_echo_that_lacks_parts_begins_again),
    RIG_TEST(an_echo_that_begins_again_is_whole_behind_a_stop_string),
    RIG_TEST(a_failed_pull_is_recovered_from_another_prefill_worker),
    RIG_TEST(prefill_dies_before_its_first_token_of_a_recovery),
    RIG_TEST(prefill_dies_after_its_first_token_of_a_recovery),
    RIG_TEST(both_workers_of_a_stream_die_at_once),
    RIG_TEST(a_stream_waits_for_a_new_decode_worker),
    RIG_TEST(without_workers_a_stream_ends_after_the_queue_time),
    RIG_TEST(a_stream_is_recovered_as_often_as_allowed),
    RIG_TEST(after_the_last_recovery_the_client_is_told),
    RIG_TEST(recoveries_can_be_switched_off),
    RIG_TEST(a_recovery_that_never_gets_on_ends),
    RIG_TEST(a_stream_stays_within_its_numerics_and_holds_up_nobody),
    RIG_TEST(a_client_that_leaves_while_its_stream_waits_frees_it),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
