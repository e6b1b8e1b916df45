/* SPDX-License-Identifier: Apache-2.0 */
/* A real prefill worker under a fake router, with nobody to pull: what it refuses, what it computes
 * alone, and that every way out brings its blocks home (the rig audits at each test's end). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/support/rig.h"

enum { PROMPT = 150 };

static int32_t prompt[PROMPT];

static bt_rig *alone(const bt_rig_options *options)
{
    bt_rig_options o = *options;
    o.no_decode = true;
    bt_rig_fill_prompt(prompt, PROMPT, 1);
    return bt_rig_create(&o);
}

static void hello_says_what_it_is(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){0});
    const bt_link_hello *hello = bt_rig_hello(rig, BT_RIG_PREFILL);
    assert_int_equal(hello->role, BT_LINK_ROLE_PREFILL);
    assert_string_equal(hello->kv.name, "prefill-0");
    assert_true(hello->kv.incarnation != 0);
    assert_true(hello->kv.kv_tcp[0] != '\0');
    assert_int_equal(hello->block_tokens, BT_KV_BLOCK_TOKENS);
    assert_int_equal(hello->pool_blocks, 256);
    assert_string_equal(hello->kernels, "reference");
    assert_int_equal(hello->context_tokens, bt_tiny_model_odd.context);
    bt_rig_wait_attached(rig, BT_RIG_PREFILL);
    bt_worker_health health;
    bt_prefill_worker_get_health(bt_rig_prefill(rig), &health);
    assert_true(health.ready);
    bt_rig_destroy(rig);
}

static void what_it_does_not_take_is_refused_with_a_reason(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){.prefill_blocks = 4});
    static bt_rig_request whole, large;
    bt_rig_request_init(rig, &whole, prompt, 5);
    bt_rig_send(rig, BT_RIG_PREFILL, BT_LINK_MODE_WHOLE, &whole);
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &whole);
    assert_int_equal(whole.end[BT_RIG_PREFILL].status, BT_EUNSUPPORTED);
    assert_true(whole.end[BT_RIG_PREFILL].error.text[0] != '\0');
    bt_rig_request_init(rig, &large, prompt, 65);
    bt_rig_send(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &large);
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &large);
    assert_int_equal(large.end[BT_RIG_PREFILL].status, BT_EEXHAUSTED);
    assert_int_equal(large.n_tokens, 0);
    bt_rig_destroy(rig);
}

static bool blocks_told(void *ctx)
{
    return bt_rig_blocks_known(ctx, BT_RIG_PREFILL) == PROMPT / BT_KV_BLOCK_TOKENS;
}

static bool two_prompts_are_over(const bt_link_load *load)
{
    return load->blocks_free + load->blocks_cached == 256 && load->prefill_tokens >= PROMPT + 6;
}

static void run_without_a_puller_ends_with_its_token(void **state)
{
    (void)state;
    bt_metrics *metrics = NULL;
    assert_int_equal(bt_metrics_create(&metrics), BT_OK);
    bt_rig *rig = alone(&(bt_rig_options){.metrics = metrics});
    static bt_rig_request first, again;
    bt_rig_request_init(rig, &first, prompt, PROMPT);
    first.sampling.max_tokens = 1;
    bt_rig_send_alone(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &first);
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &first);
    const bt_link_finished *end = &first.end[BT_RIG_PREFILL];
    assert_int_equal(end->status, BT_OK);
    assert_int_equal(end->reason, BT_FINISH_LENGTH);
    assert_int_equal(end->generated_tokens, 1);
    assert_int_equal(end->blocks_total, 10);
    assert_true(end->prefill_ns > 0);
    assert_int_equal(first.n_tokens, 1);
    bt_rig_wait(rig, blocks_told, rig);

    /* the same prompt again: its full blocks are cached, and the token is the same */
    bt_rig_request_init(rig, &again, prompt, PROMPT);
    again.sampling.max_tokens = 1;
    bt_rig_send_alone(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &again);
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &again);
    assert_int_equal(again.end[BT_RIG_PREFILL].cached_tokens, 144);
    assert_int_equal(again.tokens[0], first.tokens[0]);
    bt_rig_wait_load(rig, BT_RIG_PREFILL, two_prompts_are_over);
    const bt_link_load *load = bt_rig_load(rig, BT_RIG_PREFILL);
    assert_int_equal(load->prefill_tokens, PROMPT + 6);
    assert_int_equal(load->prefix_hit_tokens, 144);
    assert_int_equal(load->decode_tokens, 0);
    bt_rig_destroy(rig);
    bt_counter *computed = bt_metrics_counter(metrics, "baton_worker_tokens_total", "",
                                              BT_LABELS({"kind", "prefill"}));
    assert_int_equal(bt_counter_value(computed), PROMPT + 6);
    bt_metrics_destroy(metrics);
}

static void prompts_scores_come_in_order_before_the_token(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){0});
    static bt_rig_request r;
    bt_rig_request_init(rig, &r, prompt, 50);
    r.sampling.max_tokens = 0;
    r.sampling.echo = true;
    r.sampling.logprobs = true;
    bt_rig_send_alone(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &r);
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &r);
    assert_int_equal(r.end[BT_RIG_PREFILL].status, BT_OK);
    assert_int_equal(r.n_echoed, 50);
    assert_int_equal(r.n_tokens, 0); /* none was asked for */
    assert_int_equal(r.end[BT_RIG_PREFILL].generated_tokens, 0);
    bt_rig_destroy(rig);
}

static void lease_that_nobody_claims_expires(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){.lease_ms = 500});
    static bt_rig_request r;
    bt_rig_request_init(rig, &r, prompt, 20);
    bt_rig_send(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &r);
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &r);
    assert_int_equal(r.end[BT_RIG_PREFILL].status, BT_EPEER);
    assert_int_equal(r.n_tokens, 1); /* the router had it at once */
    assert_int_equal(bt_prefill_worker_kv_counters(bt_rig_prefill(rig))->expired, 1);
    bt_rig_destroy(rig);
}

static void deadline_ends_a_run_that_holds_its_blocks(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){.lease_ms = 20000});
    static bt_rig_request r;
    bt_rig_request_init(rig, &r, prompt, PROMPT);
    r.deadline_left_ns = 200 * 1000 * 1000;
    bt_rig_send(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &r);
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &r);
    assert_int_equal(r.end[BT_RIG_PREFILL].status, BT_EDEADLINE);
    assert_int_equal(r.end[BT_RIG_PREFILL].reason, BT_FINISH_CANCELLED);
    bt_rig_destroy(rig);
}

static bool twenty_are_home(const bt_link_load *load)
{
    return load->blocks_free + load->blocks_cached == 20;
}

/* Runs are cancelled while they wait, compute and hold; the pool has room for two of them. */
static void cancelled_runs_end_once_wherever_they_are(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){
        .prefill_blocks = 20, .chunk = 16, .token_budget = 32, .lease_ms = 20000});
    enum { N = 6 };
    static bt_rig_request r[N];
    for (int i = 0; i < N; i++) {
        bt_rig_request_init(rig, &r[i], prompt, PROMPT);
        bt_rig_send(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &r[i]);
    }
    bt_rig_wait_tokens(rig, &r[0], 1);
    for (int i = N - 1; i >= 0; i--) {
        bt_rig_cancel(rig, BT_RIG_PREFILL, &r[i]);
    }
    for (int i = 0; i < N; i++) {
        bt_rig_wait_finished(rig, BT_RIG_PREFILL, &r[i]);
        assert_int_equal(r[i].end[BT_RIG_PREFILL].status, BT_ECANCELLED);
    }
    bt_rig_wait_load(rig, BT_RIG_PREFILL, twenty_are_home);
    bt_rig_destroy(rig);
}

static void lost_router_frees_what_was_bound_to_it(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){.lease_ms = 20000});
    static bt_rig_request r, after;
    bt_rig_request_init(rig, &r, prompt, PROMPT);
    bt_rig_send(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &r);
    bt_rig_wait_tokens(rig, &r, 1);
    bt_rig_drop_router(rig, BT_RIG_PREFILL);
    bt_rig_wait_attached(rig, BT_RIG_PREFILL);
    assert_false(r.finished[BT_RIG_PREFILL]); /* went nowhere */
    /* the snapshot told the new session what is cached */
    bt_rig_wait(rig, blocks_told, rig);
    bt_rig_request_init(rig, &after, prompt, PROMPT);
    after.sampling.max_tokens = 1;
    bt_rig_send_alone(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &after);
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &after);
    assert_int_equal(after.tokens[0], r.tokens[0]);
    bt_rig_destroy(rig);
}

static void full_table_refuses_and_goes_on(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){.requests_max = 2, .lease_ms = 20000});
    static bt_rig_request r[3];
    for (int i = 0; i < 3; i++) {
        bt_rig_request_init(rig, &r[i], prompt, 20);
        bt_rig_send(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &r[i]);
    }
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &r[2]);
    assert_int_equal(r[2].end[BT_RIG_PREFILL].status, BT_EEXHAUSTED);
    bt_rig_cancel(rig, BT_RIG_PREFILL, &r[0]);
    bt_rig_wait_finished(rig, BT_RIG_PREFILL, &r[0]);
    r[2].attempt = 1;
    r[2].finished[BT_RIG_PREFILL] = false;
    bt_rig_send(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &r[2]);
    bt_rig_wait_tokens(rig, &r[2], 1);
    bt_rig_destroy(rig);
}

static void worker_that_drains_refuses_and_lets_runs_end(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){.lease_ms = 500});
    static bt_rig_request r;
    bt_rig_request_init(rig, &r, prompt, 20);
    bt_rig_send(rig, BT_RIG_PREFILL, BT_LINK_MODE_PREFILL, &r);
    bt_rig_wait_tokens(rig, &r, 1);
    bt_rig_stop_worker(rig, BT_RIG_PREFILL, 10000); /* ends with the lease, not with the grace */
    assert_true(r.finished[BT_RIG_PREFILL]);
    assert_int_equal(r.end[BT_RIG_PREFILL].status, BT_EPEER);
    bt_rig_destroy(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_says_what_it_is),
        cmocka_unit_test(what_it_does_not_take_is_refused_with_a_reason),
        cmocka_unit_test(run_without_a_puller_ends_with_its_token),
        cmocka_unit_test(prompts_scores_come_in_order_before_the_token),
        cmocka_unit_test(lease_that_nobody_claims_expires),
        cmocka_unit_test(deadline_ends_a_run_that_holds_its_blocks),
        cmocka_unit_test(cancelled_runs_end_once_wherever_they_are),
        cmocka_unit_test(lost_router_frees_what_was_bound_to_it),
        cmocka_unit_test(full_table_refuses_and_goes_on),
        cmocka_unit_test(worker_that_drains_refuses_and_lets_runs_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
