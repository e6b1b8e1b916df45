/* SPDX-License-Identifier: Apache-2.0 */
/* Proves who is let in: by the times that fake workers report, by limits per client, by priority
 * that ages; that decode is not flooded; that a stuck worker is left; and that each state's
 * deadline strikes by the router's own clock. Where time matters it is a fake clock's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/router/router_rig.h"

#define REPLY "Hello, world"

static const int64_t second_ns = 1000000000;
static const uint64_t DAY_MS = 86400000;

/* Reports a load and waits until the router shows it: its step time names it. */
static void report(rig_worker *w, bt_link_load load)
{
    rig *r = w->rig;
    static uint64_t number;
    load.step_ns = ++number * 1000000;
    bt_link_worker_load(w->link, &load);
    bt_link_worker_flush(w->link);
    bool is_known = false;
    while (!is_known) {
        const Baton__V1__GetClusterStatusRequest request =
            BATON__V1__GET_CLUSTER_STATUS_REQUEST__INIT;
        rig_client *c =
            rig_call(r, "/baton.v1.Generation/GetClusterStatus", &request.base, NULL, 0, 0);
        rig_wait_done(c);
        Baton__V1__GetClusterStatusReply *reply = baton__v1__get_cluster_status_reply__unpack(
            NULL, c->unary.len, (const uint8_t *)c->unary.bytes);
        assert_non_null(reply);
        for (size_t i = 0; i < reply->n_workers; i++) {
            is_known = is_known || (uint64_t)reply->workers[i]->step_ms == number;
        }
        baton__v1__get_cluster_status_reply__free_unpacked(reply, NULL);
        bt_text_deinit(&c->unary);
        r->n_clients--; /* its place may be used again */
    }
}

/* A step of n sequences has taken so long; they are gone by now. */
static void report_step(rig_worker *w, uint64_t decode_tokens, uint32_t n, uint64_t step_ns)
{
    report(w, (bt_link_load){
                  .requests_decoding = n, .decode_tokens = decode_tokens, .last_step_ns = step_ns});
    report(w, (bt_link_load){.decode_tokens = decode_tokens});
}

static rig_worker *start_both(rig *r)
{
    rig_start(r);
    rig_worker *w = rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    rig_wait_ready(r, true);
    return w;
}

/* 10 s of prompts are queued there: 1,000 tokens of 10 ms. */
static const bt_link_load ten_seconds = {.waiting_tokens = 1000, .prefill_token_ns = 10000000};

/* ---------------------------------------------------------------------------- forecast ---- */

static void a_wait_beyond_the_queue_time_is_refused_at_once_with_the_time_to_come_back(void **state)
{
    rig *r = *state;
    r->options.queue_time_ms = 2000;
    rig_worker *w = start_both(r);
    report(w, ten_seconds);
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_error(c, BT_RPC_RESOURCE_EXHAUSTED, "the wait would be some 10000 ms");
    assert_string_equal(c->pushback_meta, "11333"); /* 4/3 of it, less what it may wait */
    assert_int_equal(w->n_runs, 0);
    rig_wait_metric(r, "baton_router_refusal_seconds_count 1");
    report(w, (bt_link_load){.prefill_token_ns = 10000000});
    rig_expect_ok(rig_generate_text(r, "x"), REPLY);
}

static void without_measured_times_nobody_is_refused(void **state)
{
    rig *r = *state;
    r->options.queue_time_ms = 2000;
    rig_worker *w = start_both(r);
    report(w, (bt_link_load){.waiting_tokens = 100000});
    rig_expect_ok(rig_generate_text(r, "x"), REPLY);
}

static void a_target_refuses_only_those_who_ask_for_that(void **state)
{
    rig *r = *state;
    rig_worker *w = start_both(r);
    report(w, ten_seconds);
    Baton__V1__GenerateRequest request = rig_request("x", NULL);
    request.ttft_target_ms = 5000;
    rig_expect_ok(rig_generate(r, &request), REPLY);
    report(w, ten_seconds);
    request.refuse_late = 1;
    rig_expect_error(rig_generate(r, &request), BT_RPC_RESOURCE_EXHAUSTED,
                     "ms of it waiting), too near to its limit, 5000 ms");
    request.ttft_target_ms = 20000;
    rig_expect_ok(rig_generate(r, &request), REPLY);
}

static void the_routers_own_limit_holds_for_all(void **state)
{
    rig *r = *state;
    r->options.ttft_max_ms = 5000;
    rig_worker *w = start_both(r);
    report(w, ten_seconds);
    rig_expect_error(rig_generate_text(r, "x"), BT_RPC_RESOURCE_EXHAUSTED, "its limit, 5000 ms");
}

static void a_deadline_that_cannot_be_met_is_refused_at_once(void **state)
{
    rig *r = *state;
    r->options.request_time_ms = 12000;
    rig_worker *w = start_both(r);
    report(w, ten_seconds);
    rig_expect_error(rig_generate_text(r, "x"), BT_RPC_RESOURCE_EXHAUSTED, "for at least 1 tokens");
    assert_int_equal(w->n_runs, 0);
    report(w, (bt_link_load){.prefill_token_ns = 10000000});
    rig_expect_ok(rig_generate_text(r, "x"), REPLY);
}

/* What it takes is only known from a time that nothing but work could mend. */
static void an_idle_cluster_refuses_nobody_however_slow_it_seems(void **state)
{
    rig *r = *state;
    r->options.ttft_max_ms = 5000;
    r->options.request_time_ms = 8000;
    rig_worker *w = start_both(r);
    report(w, (bt_link_load){.prefill_token_ns = 10000000000});
    rig_expect_ok(rig_generate_text(r, "x"), REPLY);
    report(w, (bt_link_load){.prefill_token_ns = 10000000000, .waiting_tokens = 1});
    rig_expect_error(rig_generate_text(r, "x"), BT_RPC_RESOURCE_EXHAUSTED,
                     "(10000 ms of it waiting), too near to its limit, 5000 ms");
    assert_int_equal(w->n_runs, 1);
}

static void a_full_queue_tells_a_time_by_the_backlog(void **state)
{
    rig *r = *state;
    r->options.queue_max = 1;
    rig_worker *w = rig_start_full(r);
    rig_client *a = &r->clients[0];
    rig_client *b = rig_generate_text(r, "b");
    rig_wait_metric(r, "baton_router_requests_queued 1");
    report(w, ten_seconds);
    rig_client *c = rig_generate_text(r, "c");
    rig_expect_error(c, BT_RPC_RESOURCE_EXHAUSTED, "1 requests are waiting for a worker");
    assert_string_equal(c->pushback_meta, "5005"); /* half of 1,001 tokens */
    rig_resume(w, 0);
    rig_expect_ok(a, REPLY);
    rig_expect_ok(b, REPLY);
}

static void higher_priority_waits_only_behind_its_like(void **state)
{
    rig *r = *state;
    r->options.queue_time_ms = 2000;
    rig_worker *w = rig_start_full(r);
    rig_client *first = &r->clients[0];
    rig_client *low = rig_generate_text(r, "twenty-four tokens here!");
    rig_wait_metric(r, "baton_router_requests_queued 1");
    report(w, (bt_link_load){.prefill_token_ns = 100000000});
    rig_expect_error(rig_generate_text(r, "x"), BT_RPC_RESOURCE_EXHAUSTED, "the wait would be");
    Baton__V1__GenerateRequest request = rig_request("urgent", NULL);
    request.priority = 100;
    rig_client *high = rig_generate(r, &request);
    rig_wait_metric(r, "baton_router_requests_queued 2");
    rig_resume(w, 0);
    rig_expect_ok(first, REPLY);
    rig_expect_ok(high, REPLY);
    rig_expect_ok(low, REPLY);
    assert_int_equal(w->runs[1].tokens[0], 'u');
}

/* ------------------------------------------------------------------------------ places ---- */

static void prompts_wait_here_while_a_worker_has_two_steps_of_them(void **state)
{
    rig *r = *state;
    rig_start(r);
    bt_link_hello hello = rig_hello(r, "both", BT_LINK_ROLE_BOTH);
    hello.step_tokens_max = 32;
    rig_worker *w = rig_dial(r, &hello);
    rig_wait_ready(r, true);
    w->hold = true;
    static const char thirty_six[] = "123456789 123456789 123456789 123456";
    for (int i = 0; i < 3; i++) {
        (void)rig_generate_text(r, thirty_six);
    }
    rig_wait_metric(r, "baton_router_requests_queued 1");
    assert_int_equal(w->n_runs, 2);
    rig_resume(w, 0);
    for (uint32_t i = 0; i < 3; i++) {
        rig_expect_ok(&r->clients[i], REPLY);
    }
}

static rig_worker *start_two_places(rig *r)
{
    rig_start(r);
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    rig_worker *d = rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    rig_wait_ready(r, true);
    /* One sequence takes 20 ms; two are taken to take 30, and three 40. */
    report_step(d, 1, 1, 20000000);
    d->emit_max = 3;
    return d;
}

static void decode_gets_no_more_sequences_than_keep_its_step_short(void **state)
{
    rig *r = *state;
    r->options.tpot_max_ms = 40; /* 32, with room for the second token's way */
    rig_worker *d = start_two_places(r);
    for (uint32_t i = 0; i < 2; i++) {
        rig_wait_tokens(rig_generate_text(r, "a"), 3);
    }
    rig_client *last = rig_generate_text(r, "b");
    rig_wait_metric(r, "baton_router_requests_queued 1");
    assert_int_equal(d->n_runs, 2);
    /* More turn out to take no longer than one. */
    for (uint64_t i = 2; i < 12 && d->n_runs < 3; i++) {
        report_step(d, i, 1 + (uint32_t)(i % 2), 20000000);
    }
    rig_wait_runs(d, 3);
    rig_resume(d, 0);
    rig_expect_ok(&r->clients[0], REPLY);
    rig_expect_ok(&r->clients[1], REPLY);
    rig_expect_ok(last, REPLY);
}

static void a_strict_target_of_one_request_holds_back_the_others(void **state)
{
    rig *r = *state;
    rig_worker *d = start_two_places(r);
    Baton__V1__GenerateRequest request = rig_request("a", NULL);
    request.tpot_target_ms = 40;
    request.refuse_late = 1;
    rig_client *a = rig_generate(r, &request);
    rig_wait_tokens(a, 3);
    rig_client *b = rig_generate_text(r, "b");
    rig_wait_tokens(b, 3);
    rig_client *c = rig_generate_text(r, "c");
    rig_wait_metric(r, "baton_router_requests_queued 1");
    assert_int_equal(d->n_runs, 2);
    rig_resume(d, 0); /* its end lifts the limit */
    rig_expect_ok(a, REPLY);
    rig_expect_ok(b, REPLY);
    rig_expect_ok(c, REPLY);
}

/* -------------------------------------------------------------------------- per client ---- */

static void a_client_has_so_many_requests_at_a_time(void **state)
{
    rig *r = *state;
    r->options.client_requests_max = 1;
    rig_worker *w = start_both(r);
    w->hold = true;
    rig_client *a = rig_generate_text(r, "a");
    rig_wait_runs(w, 1);
    rig_client *b = rig_generate_text(r, "b");
    rig_expect_error(b, BT_RPC_RESOURCE_EXHAUSTED,
                     "client '127.0.0.1' has 1 requests under way, the limit of a client");
    assert_string_equal(b->pushback_meta, "1000");
    rig_resume(w, 0);
    rig_expect_ok(a, REPLY);
    rig_expect_ok(rig_generate_text(r, "c"), REPLY);
}

static void a_client_has_so_many_prompt_tokens_at_a_time(void **state)
{
    rig *r = *state;
    r->options.client_prompt_tokens_max = 10;
    rig_worker *w = start_both(r);
    w->hold = true;
    rig_client *a = rig_generate_text(r, "eight to");
    rig_wait_runs(w, 1);
    rig_expect_error(rig_generate_text(r, "four"), BT_RPC_RESOURCE_EXHAUSTED,
                     "would have 12 prompt tokens under way, the limit of a client is 10");
    rig_resume(w, 0);
    rig_expect_ok(a, REPLY);
    rig_expect_ok(rig_generate_text(r, "four"), REPLY);
}

static void a_client_has_so_many_bytes_at_a_time(void **state)
{
    rig *r = *state;
    r->options.client_bytes_max = 20000;
    rig_worker *w = start_both(r);
    char text[20002];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    rig_expect_error(rig_generate_text(r, text), BT_RPC_RESOURCE_EXHAUSTED,
                     "would have 20001 bytes under way");
    rig_expect_ok(rig_generate_text(r, "x"), REPLY);
    assert_int_equal(w->n_runs, 1);
}

/* ------------------------------------------------------------------------------- stuck ---- */

static void a_stuck_worker_gets_nothing_and_its_streams_go_on_elsewhere(void **state)
{
    rig *r = *state;
    rig_worker *w0 = start_both(r);
    w0->emit_max = 3;
    rig_client *a = rig_generate_text(r, "a");
    rig_wait_tokens(a, 3);
    rig_worker *w1 = rig_add_worker(r, "other", BT_LINK_ROLE_BOTH);
    report(w0, (bt_link_load){.stuck_ns = 1, .step_age_ns = (uint64_t)second_ns * 10});
    rig_wait_cancels(w0, 1);
    rig_expect_ok(a, REPLY);
    assert_int_equal(a->last->finish->route->attempts, 2);
    assert_int_equal(w1->runs[0].n_tokens, 1 + 3);
    rig_expect_ok(rig_generate_text(r, "b"), REPLY);
    assert_int_equal(w1->n_runs, 2);
    /* Late tokens of the stuck one are dropped; it is used again when it moves. */
    rig_say_tokens(w0, &w0->runs[0], 3, "wrong");
    report(w0, (bt_link_load){0});
    rig_kill(w1);
    rig_resume(w0, 0);
    rig_expect_ok(rig_generate_text(r, "c"), REPLY);
    assert_int_equal(w0->n_runs, 2);
}

static void a_router_whose_only_worker_is_stuck_is_not_ready(void **state)
{
    rig *r = *state;
    rig_worker *w = start_both(r);
    report(w, (bt_link_load){.stuck_ns = 1});
    rig_wait_ready(r, false);
    report(w, (bt_link_load){0});
    rig_wait_ready(r, true);
}

/* -------------------------------------------------------------------------- fake clock ---- */

static void a_deadline_strikes_in_every_state(void **state)
{
    rig *r = *state;
    r->options.request_time_ms = 60000;
    r->options.queue_time_ms = DAY_MS;
    rig_start(r);
    rig_client *queued = rig_generate_text(r, "a");
    rig_wait_metric(r, "baton_router_requests_queued 1");
    rig_pass(r, 59 * second_ns);
    assert_false(queued->done);
    rig_pass(r, 1 * second_ns);
    rig_expect_error(queued, BT_RPC_DEADLINE_EXCEEDED, "after 60000 ms and 0 generated tokens");

    rig_worker *w = rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    rig_wait_ready(r, true);
    w->hold = true;
    rig_client *prefilling = rig_generate_text(r, "b");
    rig_wait_runs(w, 1);
    rig_pass(r, 60 * second_ns);
    rig_expect_error(prefilling, BT_RPC_DEADLINE_EXCEEDED, "0 generated tokens");
    rig_wait_cancels(w, 1);

    w->hold = false;
    w->emit_max = 4;
    rig_client *decoding = rig_generate_text(r, "c");
    rig_wait_tokens(decoding, 4);
    rig_pass(r, 60 * second_ns);
    rig_expect_error(decoding, BT_RPC_DEADLINE_EXCEEDED, "4 generated tokens");
    rig_wait_cancels(w, 2);
    w->emit_max = 0;
    rig_expect_ok(rig_generate_text(r, "d"), REPLY);
}

static void a_target_is_the_longest_wait_in_the_queue(void **state)
{
    rig *r = *state;
    rig_start(r);
    Baton__V1__GenerateRequest request = rig_request("a", NULL);
    request.ttft_target_ms = 7000;
    request.refuse_late = 1;
    rig_client *c = rig_generate(r, &request);
    rig_wait_metric(r, "baton_router_requests_queued 1");
    rig_pass(r, 6 * second_ns);
    assert_false(c->done);
    rig_pass(r, 1 * second_ns);
    rig_expect_error(c, BT_RPC_UNAVAILABLE, "(waited 7000 ms)");
}

/* What it promises is asked at the door; a refusal that comes after a wait helps nobody. */
static void who_was_let_in_is_served_after_the_routers_limit_too(void **state)
{
    rig *r = *state;
    r->options.ttft_max_ms = 7000;
    rig_start(r);
    rig_client *c = rig_generate_text(r, "a");
    rig_wait_metric(r, "baton_router_requests_queued 1");
    rig_pass(r, 8 * second_ns);
    assert_false(c->done);
    rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    rig_expect_ok(c, REPLY);
}

/* One that was forecast to wait a second waited for four. */
static void forecasts_learn_from_waits_that_turned_out_longer(void **state)
{
    rig *r = *state;
    r->options.queue_time_ms = 1500;
    rig_start(r);
    rig_worker *w = rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    rig_wait_ready(r, true);
    const bt_link_load one_second = {.waiting_tokens = 100, .prefill_token_ns = 10000000};
    report(w, one_second);
    w->hold = true;
    rig_client *c = rig_generate_text(r, "a");
    rig_wait_runs(w, 1);
    bt_fake_clock_advance(r->clock, 4 * second_ns);
    rig_resume(w, 0);
    rig_expect_ok(c, REPLY);
    report(w, one_second);
    rig_expect_error(rig_generate_text(r, "b"), BT_RPC_RESOURCE_EXHAUSTED,
                     "the wait would be some 13");
}

/* The clock stands still while they come; nobody who is here could go on with either. */
static void streams_of_one_moment_that_fit_nobody_wait_side_by_side(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *w = rig_add_worker(r, "b0", BT_LINK_ROLE_BOTH);
    rig_wait_ready(r, true);
    w->emit_max = 3;
    rig_client *a = rig_generate_text(r, "a");
    rig_client *b = rig_generate_text(r, "b");
    rig_wait_tokens(a, 3);
    rig_wait_tokens(b, 3);
    bt_link_hello hello = rig_hello(r, "other", BT_LINK_ROLE_BOTH);
    hello.numerics_id[0] ^= 1;
    rig_worker *other = rig_dial(r, &hello);
    rig_wait_up(other);
    rig_kill(w);
    rig_wait_metric(r, "baton_router_requests_queued 2");
    /* A newcomer does not wait behind them: they are no backlog of whom it goes to. */
    report(other, (bt_link_load){.prefill_token_ns = 60 * (uint64_t)second_ns});
    bt_fake_clock_advance(r->clock, second_ns);
    rig_expect_ok(rig_generate_text(r, "c"), REPLY);
    (void)rig_add_worker(r, "b1", BT_LINK_ROLE_BOTH);
    rig_expect_ok(a, REPLY);
    rig_expect_ok(b, REPLY);
}

static void waiting_makes_up_for_priority(void **state)
{
    rig *r = *state;
    rig_worker *w = rig_start_full(r);
    rig_client *first = &r->clients[0];
    rig_client *old = rig_generate_text(r, "old");
    rig_wait_metric(r, "baton_router_requests_queued 1");
    bt_fake_clock_advance(r->clock, 6 * second_ns);
    Baton__V1__GenerateRequest request = rig_request("urgent", NULL);
    request.priority = 5;
    rig_client *urgent = rig_generate(r, &request);
    rig_wait_metric(r, "baton_router_requests_queued 2");
    request.text = (char[]){"very urgent"};
    request.priority = 7;
    rig_client *very = rig_generate(r, &request);
    rig_wait_metric(r, "baton_router_requests_queued 3");
    rig_resume(w, 0);
    rig_expect_ok(first, REPLY);
    rig_expect_ok(old, REPLY);
    rig_expect_ok(urgent, REPLY);
    rig_expect_ok(very, REPLY);
    assert_int_equal(w->runs[1].tokens[0], 'v');
    assert_int_equal(w->runs[2].tokens[0], 'o');
    assert_int_equal(w->runs[3].tokens[0], 'u');
}

static const struct CMUnitTest tests[] = {
#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
#define TIMED_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup_timed, rig_teardown_timed)
    RIG_TEST(a_wait_beyond_the_queue_time_is_refused_at_once_with_the_time_to_come_back),
    RIG_TEST(without_measured_times_nobody_is_refused),
    RIG_TEST(a_target_refuses_only_those_who_ask_for_that),
    RIG_TEST(the_routers_own_limit_holds_for_all),
    RIG_TEST(a_deadline_that_cannot_be_met_is_refused_at_once),
    RIG_TEST(an_idle_cluster_refuses_nobody_however_slow_it_seems),
    RIG_TEST(a_full_queue_tells_a_time_by_the_backlog),
    RIG_TEST(higher_priority_waits_only_behind_its_like),
    RIG_TEST(prompts_wait_here_while_a_worker_has_two_steps_of_them),
    RIG_TEST(decode_gets_no_more_sequences_than_keep_its_step_short),
    RIG_TEST(a_strict_target_of_one_request_holds_back_the_others),
    RIG_TEST(a_client_has_so_many_requests_at_a_time),
    RIG_TEST(a_client_has_so_many_prompt_tokens_at_a_time),
    RIG_TEST(a_client_has_so_many_bytes_at_a_time),
    RIG_TEST(a_stuck_worker_gets_nothing_and_its_streams_go_on_elsewhere),
    RIG_TEST(a_router_whose_only_worker_is_stuck_is_not_ready),
    TIMED_TEST(a_deadline_strikes_in_every_state),
    TIMED_TEST(a_target_is_the_longest_wait_in_the_queue),
    TIMED_TEST(who_was_let_in_is_served_after_the_routers_limit_too),
    TIMED_TEST(forecasts_learn_from_waits_that_turned_out_longer),
    TIMED_TEST(streams_of_one_moment_that_fit_nobody_wait_side_by_side),
    TIMED_TEST(waiting_makes_up_for_priority),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
