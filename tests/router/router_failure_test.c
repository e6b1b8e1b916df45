/* SPDX-License-Identifier: Apache-2.0 */
/* Proves what clients see when workers fail, vanish, lie or are not there: nothing while a retry
 * can help, a clear status otherwise. Each test names the fault and the answer. What happens to
 * streams that have begun is in router_recovery_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/router/router_rig.h"

#define REPLY "Hello, world"

/* Workers 0, 1 (prefill) and 2 (decode). */
static rig *start_two_prefill(void **state)
{
    rig *r = *state;
    rig_start(r);
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    (void)rig_add_worker(r, "p1", BT_LINK_ROLE_PREFILL);
    (void)rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    rig_wait_ready(r, true);
    return r;
}

static void prefill_dies_before_its_first_token_and_another_takes_over(void **state)
{
    rig *r = start_two_prefill(state);
    rig_worker *p0 = &r->workers[0];
    rig_worker *d = &r->workers[2];
    p0->hold = true;
    d->hold = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_runs(p0, 1);
    rig_wait_runs(d, 1);
    rig_kill(p0);
    rig_wait_runs(d, 2);
    assert_int_equal(d->n_cancels, 1); /* of the first attempt */
    rig_resume(d, 0);
    rig_expect_ok(c, REPLY);
    assert_int_equal(r->workers[1].runs[0].attempt, 2);
    assert_int_equal(r->workers[1].runs[0].n_tokens, 1);
    assert_string_equal(d->runs[1].peer, "p1");
    assert_int_equal(c->last->finish->route->attempts, 2);
    assert_string_equal(c->last->finish->route->prefill_worker, "p1");
}

static void prefill_fails_and_another_takes_over(void **state)
{
    rig *r = start_two_prefill(state);
    r->workers[0].fail = BT_EIO;
    r->workers[0].fail_text = "a disk is on fire";
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_ok(c, REPLY);
    assert_int_equal(r->workers[1].n_runs, 1);
}

static void decode_takes_over_when_the_only_prefill_worker_fails(void **state)
{
    rig *r = *state;
    rig_start(r);
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    (void)rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    rig_wait_ready(r, true);
    r->workers[0].fail = BT_EIO;
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_ok(c, REPLY);
    const rig_worker *d = &r->workers[1];
    assert_int_equal(d->runs[d->n_runs - 1].mode, BT_LINK_MODE_WHOLE);
}

static void without_time_to_wait_a_retry_still_finds_who_is_free(void **state)
{
    rig *r = *state;
    r->options.queue_time_ms = 0;
    rig_start(r);
    rig_worker *failing = rig_add_worker(r, "b0", BT_LINK_ROLE_BOTH);
    failing->fail = BT_EIO;
    (void)rig_add_worker(r, "b1", BT_LINK_ROLE_BOTH);
    rig_wait_ready(r, true);
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_ok(c, REPLY);
    assert_int_equal(failing->n_runs, 1);
    assert_int_equal(c->last->finish->route->attempts, 2);
}

static void a_failed_pull_blames_the_prefill_worker(void **state)
{
    rig *r = start_two_prefill(state);
    rig_worker *d = &r->workers[2];
    r->workers[0].hold = true;
    r->workers[1].hold = true;
    d->fail = BT_EPEER;
    d->fail_text = "the peer can't be reached";
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_error(c, BT_RPC_UNAVAILABLE,
                     "in 3 attempts; the last one: decode worker 'd0': the peer can't be reached");
    assert_int_equal(r->workers[0].n_runs, 1);
    assert_int_equal(r->workers[1].n_runs, 1);
    assert_int_equal(d->runs[2].mode, BT_LINK_MODE_WHOLE); /* nobody else was left */
}

static void a_retry_that_never_helps_ends_with_the_last_reason(void **state)
{
    rig *r = start_two_prefill(state);
    for (int i = 0; i < 3; i++) {
        r->workers[i].fail = BT_EIO;
        r->workers[i].fail_text = "a disk is on fire";
    }
    rig_expect_error(rig_generate_text(r, "x"), BT_RPC_UNAVAILABLE, "a disk is on fire");
}

static void workers_without_room_are_overload(void **state)
{
    rig *r = start_two_prefill(state);
    for (int i = 0; i < 3; i++) {
        r->workers[i].fail = BT_EEXHAUSTED;
        r->workers[i].fail_text = "no room for another request";
    }
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_error(c, BT_RPC_RESOURCE_EXHAUSTED, "no room for another request");
    assert_string_equal(c->pushback_meta, "1000");
}

static void what_a_worker_calls_invalid_is_not_retried(void **state)
{
    rig *r = start_two_prefill(state);
    r->workers[0].fail = BT_EINVAL;
    r->workers[0].fail_text = "the prompt is longer than this worker's context";
    rig_expect_error(rig_generate_text(r, "x"), BT_RPC_INVALID_ARGUMENT,
                     "longer than this worker's context");
    assert_int_equal(r->workers[1].n_runs, 0);
}

static void prefill_dies_after_its_first_token_and_nobody_notices(void **state)
{
    rig *r = start_two_prefill(state);
    rig_worker *p0 = &r->workers[0];
    rig_worker *d = &r->workers[2];
    d->hold = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 1);
    rig_kill(p0);
    rig_idle(r);
    rig_resume(d, 0);
    rig_expect_ok(c, REPLY);
    assert_int_equal(c->last->finish->route->attempts, 1);
}

static void decode_dies_before_the_first_token_and_another_takes_over(void **state)
{
    rig *r = start_two_prefill(state);
    rig_worker *d0 = &r->workers[2];
    r->workers[0].hold = true;
    d0->hold = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_runs(d0, 1);
    rig_worker *d1 = rig_add_worker(r, "d1", BT_LINK_ROLE_DECODE);
    r->workers[0].hold = false;
    rig_kill(d0);
    rig_expect_ok(c, REPLY);
    assert_int_equal(d1->n_runs, 1);
}

static void a_worker_that_lies_is_left_alone(void **state)
{
    rig *r = start_two_prefill(state);
    rig_worker *p0 = &r->workers[0];
    p0->hold = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_runs(p0, 1);
    const bt_token_result result = {.token = 100000};
    const bt_link_tokens tokens = {
        .id = p0->runs[0].id, .attempt = p0->runs[0].attempt, .results = &result, .n_results = 1};
    bt_link_worker_tokens(p0->link, &tokens);
    bt_link_worker_flush(p0->link);
    rig_wait_cancels(p0, 1);
    rig_expect_ok(c, REPLY);
    assert_int_equal(r->workers[1].n_runs, 1);
}

static void without_workers_a_request_waits_and_then_hears_why(void **state)
{
    rig *r = *state;
    r->options.queue_time_ms = 60;
    rig_start(r);
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_error(c, BT_RPC_UNAVAILABLE,
                     "no workers are ready for model 'tiny': there are 0 prefill, 0 decode and 0 "
                     "combined ones");
}

static void a_waiting_request_runs_as_soon_as_workers_come(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_client *c = rig_generate_text(r, "x");
    rig_idle(r);
    (void)rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    rig_expect_ok(c, REPLY);
}

static void a_full_queue_refuses_at_once(void **state)
{
    rig *r = *state;
    r->options.queue_max = 2;
    r->options.retry_pushback_ms = 250;
    rig_start(r);
    (void)rig_generate_text(r, "a");
    (void)rig_generate_text(r, "b");
    rig_wait_metric(r, "baton_router_requests_queued 2");
    rig_client *c = rig_generate_text(r, "c");
    rig_expect_error(c, BT_RPC_RESOURCE_EXHAUSTED, "2 requests are waiting for a worker");
    assert_string_equal(c->pushback_meta, "250");
    (void)rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    rig_expect_ok(&r->clients[0], REPLY);
    rig_expect_ok(&r->clients[1], REPLY);
}

static void too_many_requests_are_refused_at_once(void **state)
{
    rig *r = *state;
    r->options.requests_max = 2;
    r->options.queue_max = 2;
    rig_start(r);
    rig_worker *w = rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    w->hold = true;
    (void)rig_generate_text(r, "a");
    (void)rig_generate_text(r, "b");
    rig_wait_runs(w, 2);
    rig_expect_error(rig_generate_text(r, "c"), BT_RPC_RESOURCE_EXHAUSTED,
                     "2 requests are running, the router's limit");
    rig_resume(w, 0);
    rig_expect_ok(&r->clients[0], REPLY);
    rig_expect_ok(rig_generate_text(r, "d"), REPLY);
}

static void a_full_worker_makes_requests_wait_by_priority(void **state)
{
    rig *r = *state;
    rig_worker *w = rig_start_full(r);
    rig_client *first = &r->clients[0];
    Baton__V1__GenerateRequest request = rig_request("low", NULL);
    rig_client *low = rig_generate(r, &request);
    rig_wait_metric(r, "baton_router_requests_queued 1");
    request.text = (char[]){"urgent"};
    request.priority = 5;
    rig_client *high = rig_generate(r, &request);
    rig_wait_metric(r, "baton_router_requests_queued 2");
    assert_int_equal(w->n_runs, 1);
    rig_resume(w, 0);
    rig_expect_ok(first, REPLY);
    rig_expect_ok(high, REPLY);
    rig_expect_ok(low, REPLY);
    assert_int_equal(w->runs[1].tokens[0], 'u');
    assert_int_equal(w->runs[2].tokens[0], 'l');
}

static void a_worker_that_attaches_again_replaces_its_old_session(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *old = rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    old->hold = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_runs(old, 1);
    rig_worker *again = rig_dial(r, &old->hello); /* the same process, another connection */
    rig_expect_ok(c, REPLY);
    assert_true(again->n_runs > 0);
}

static bool has_reason(void *ctx)
{
    const rig_worker *w = ctx;
    return bt_link_worker_get_stats(w->link).refusals > 0;
}

static void a_foreign_tokenizer_or_model_is_refused(void **state)
{
    rig *r = *state;
    rig_start(r);
    bt_link_hello hello = rig_hello(r, "other", BT_LINK_ROLE_BOTH);
    hello.tokenizer_hash[0] ^= 1;
    rig_wait(r, has_reason, rig_dial(r, &hello));
    hello = rig_hello(r, "another", BT_LINK_ROLE_BOTH);
    snprintf(hello.model, sizeof hello.model, "huge");
    rig_wait(r, has_reason, rig_dial(r, &hello));
    assert_false(bt_router_is_ready(r->router));
}

static void workers_of_different_numerics_are_not_paired(void **state)
{
    rig *r = *state;
    r->options.local_prefill = false;
    r->options.queue_time_ms = 60;
    rig_start(r);
    (void)rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    bt_link_hello hello = rig_hello(r, "p0", BT_LINK_ROLE_PREFILL);
    hello.numerics_id[0] ^= 1;
    rig_wait_up(rig_dial(r, &hello));
    rig_expect_error(rig_generate_text(r, "x"), BT_RPC_UNAVAILABLE, "no workers are ready");
}

static void mixed_numerics_are_paired_when_allowed_and_the_reply_says_so(void **state)
{
    rig *r = *state;
    r->options.allow_mixed_numerics = true;
    rig_start(r);
    (void)rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    bt_link_hello hello = rig_hello(r, "p0", BT_LINK_ROLE_PREFILL);
    hello.numerics_id[0] ^= 1;
    rig_worker *p = rig_dial(r, &hello);
    rig_wait_up(p);
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_ok(c, REPLY);
    assert_int_equal(p->n_runs, 1);
    assert_true(c->last->finish->route->mixed_numerics);
    /* Each side hashes under its own id. */
    assert_memory_not_equal(&p->runs[0].chain_root, &r->workers[0].runs[0].chain_root,
                            sizeof(bt_block_hash));
}

static void shutdown_lets_requests_finish(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *w = rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    w->emit_max = 3;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 3);
    w->emit_max = 0;
    rig_resume(w, 0);
    rig_stop_router(r, 5000);
    rig_expect_ok(c, REPLY);
}

static void shutdown_ends_what_does_not_finish(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *w = rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    w->emit_max = 3;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 3);
    rig_stop_router(r, 30);
    rig_expect_error(c, BT_RPC_UNAVAILABLE, "the router is shutting down");
}

static void a_port_in_use_is_an_error_at_start(void **state)
{
    rig *r = *state;
    rig_start(r);
    bt_router_options options = r->options;
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", bt_router_attach_port(r->router));
    options.attach_address = address;
    bt_router *second = NULL;
    bt_error err;
    assert_int_equal(bt_router_create(r->loop, r->rpc, NULL, &options, &second, &err), BT_EEXISTS);
    assert_non_null(strstr(err.text, "port is in use"));
    options.n_models = 0;
    assert_int_equal(bt_router_create(r->loop, r->rpc, NULL, &options, &second, &err), BT_EINVAL);
    options = r->options;
    options.models[0].path = "/nowhere/x.gguf";
    assert_int_equal(bt_router_create(r->loop, r->rpc, NULL, &options, &second, &err), BT_EIO);
    assert_non_null(strstr(err.text, "cannot read model '/nowhere/x.gguf'"));
    assert_null(second);
}

static const struct CMUnitTest tests[] = {
#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
    RIG_TEST(prefill_dies_before_its_first_token_and_another_takes_over),
    RIG_TEST(prefill_fails_and_another_takes_over),
    RIG_TEST(decode_takes_over_when_the_only_prefill_worker_fails),
    RIG_TEST(without_time_to_wait_a_retry_still_finds_who_is_free),
    RIG_TEST(a_failed_pull_blames_the_prefill_worker),
    RIG_TEST(a_retry_that_never_helps_ends_with_the_last_reason),
    RIG_TEST(workers_without_room_are_overload),
    RIG_TEST(what_a_worker_calls_invalid_is_not_retried),
    RIG_TEST(prefill_dies_after_its_first_token_and_nobody_notices),
    RIG_TEST(decode_dies_before_the_first_token_and_another_takes_over),
    RIG_TEST(a_worker_that_lies_is_left_alone),
    RIG_TEST(without_workers_a_request_waits_and_then_hears_why),
    RIG_TEST(a_waiting_request_runs_as_soon_as_workers_come),
    RIG_TEST(a_full_queue_refuses_at_once),
    RIG_TEST(too_many_requests_are_refused_at_once),
    RIG_TEST(a_full_worker_makes_requests_wait_by_priority),
    RIG_TEST(a_worker_that_attaches_again_replaces_its_old_session),
    RIG_TEST(a_foreign_tokenizer_or_model_is_refused),
    RIG_TEST(workers_of_different_numerics_are_not_paired),
    RIG_TEST(mixed_numerics_are_paired_when_allowed_and_the_reply_says_so),
    RIG_TEST(shutdown_lets_requests_finish),
    RIG_TEST(shutdown_ends_what_does_not_finish),
    RIG_TEST(a_port_in_use_is_an_error_at_start),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
