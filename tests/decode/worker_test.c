/* SPDX-License-Identifier: Apache-2.0 */
/* A real decode worker under a fake router, with no prefill worker: whole runs, pulls from nobody,
 * refusals, preemption; the rig audits the pool at each test's end. Hand-over from a real
 * prefill worker is tests/system/handover_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/support/rig.h"

enum { PROMPT = 150 };

static int32_t prompt[PROMPT];

static bt_rig *alone(const bt_rig_options *options)
{
    bt_rig_options o = *options;
    o.no_prefill = true;
    bt_rig_fill_prompt(prompt, PROMPT, 1);
    return bt_rig_create(&o);
}

static bool is_home(const bt_link_load *load)
{
    return load->blocks_free + load->blocks_cached == 256 && load->requests_parked == 0;
}

static bool has_decoded_and_is_home(const bt_link_load *load)
{
    return is_home(load) && load->decode_tokens > 0;
}

static bool is_parked(const bt_link_load *load)
{
    return load->requests_parked == 1;
}

static void whole_run_gives_all_its_tokens(void **state)
{
    (void)state;
    bt_metrics *metrics = NULL;
    assert_int_equal(bt_metrics_create(&metrics), BT_OK);
    bt_rig *rig = alone(&(bt_rig_options){.metrics = metrics});
    static bt_rig_request r;
    bt_rig_request_init(rig, &r, prompt, PROMPT);
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &r);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &r);
    const bt_link_finished *end = &r.end[BT_RIG_DECODE];
    assert_int_equal(end->status, BT_OK);
    assert_int_equal(end->reason, BT_FINISH_LENGTH);
    assert_int_equal(end->generated_tokens, 16);
    assert_int_equal(r.n_tokens, 16);
    assert_true(end->prefill_ns > 0);
    assert_true(end->decode_ns > 0);
    bt_rig_wait_load(rig, BT_RIG_DECODE, has_decoded_and_is_home);
    const bt_link_load *load = bt_rig_load(rig, BT_RIG_DECODE);
    assert_int_equal(load->prefill_tokens, PROMPT);
    assert_int_equal(load->decode_tokens, 15); /* the first comes from the prompt's last row */
    bt_rig_destroy(rig);
    bt_counter *decoded =
        bt_metrics_counter(metrics, "baton_worker_tokens_total", "", BT_LABELS({"kind", "decode"}));
    assert_int_equal(bt_counter_value(decoded), 15);
    bt_metrics_destroy(metrics);
}

static void resumed_run_goes_on_with_the_same_tokens(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){0});
    static bt_rig_request r, again;
    bt_rig_request_init(rig, &r, prompt, 40);
    r.sampling.temperature = 1;
    r.sampling.seed = 5;
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &r);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &r);
    int32_t known[47];
    for (int i = 0; i < 47; i++) {
        known[i] = i < 40 ? prompt[i] : r.tokens[i - 40];
    }
    bt_rig_request_init(rig, &again, known, 40);
    again.sampling = r.sampling;
    again.attempt = 1;
    again.n_known = 47;
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &again);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &again);
    assert_int_equal(again.n_tokens, 16 - 7);
    for (int i = 7; i < 16; i++) {
        assert_int_equal(again.tokens[i], r.tokens[i]);
    }
    bt_rig_destroy(rig);
}

static void prefill_runs_and_too_large_ones_are_refused(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){.decode_blocks = 8});
    static bt_rig_request prefill, large;
    bt_rig_request_init(rig, &prefill, prompt, 5);
    bt_rig_send_alone(rig, BT_RIG_DECODE, BT_LINK_MODE_PREFILL, &prefill);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &prefill);
    assert_int_equal(prefill.end[BT_RIG_DECODE].status, BT_EUNSUPPORTED);
    bt_rig_request_init(rig, &large, prompt, 120); /* 136 positions at its end */
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &large);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &large);
    assert_int_equal(large.end[BT_RIG_DECODE].status, BT_EEXHAUSTED);
    bt_rig_destroy(rig);
}

static void pull_from_nobody_fails_as_the_peers_fault(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){.transport = BT_KV_TRANSPORT_TCP});
    static bt_rig_request r;
    bt_rig_request_init(rig, &r, prompt, PROMPT);
    bt_rig_set_kv_address(rig, "127.0.0.1:1"); /* nothing listens there */
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_DECODE, &r);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &r);
    assert_int_equal(r.end[BT_RIG_DECODE].status, BT_EPEER);
    assert_true(r.end[BT_RIG_DECODE].error.text[0] != '\0');
    assert_int_equal(r.n_tokens, 0);
    /* without an address it does not begin */
    static bt_rig_request none;
    bt_rig_request_init(rig, &none, prompt, PROMPT);
    bt_rig_set_kv_address(rig, "");
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_DECODE, &none);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &none);
    assert_int_equal(none.end[BT_RIG_DECODE].status, BT_EMISMATCH);
    /* no more than with one that only those of another host reach */
    static bt_rig_request far;
    bt_rig_request_init(rig, &far, prompt, PROMPT);
    bt_rig_set_kv_socket(rig, "@on another host");
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_DECODE, &far);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &far);
    assert_int_equal(far.end[BT_RIG_DECODE].status, BT_EMISMATCH);
    bt_rig_destroy(rig);
}

static void cancelled_runs_end_once_waiting_or_running(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){.running_max = 2, .token_budget = 32, .chunk = 16});
    enum { N = 6 };
    static bt_rig_request r[N];
    for (int i = 0; i < N; i++) {
        bt_rig_request_init(rig, &r[i], prompt, PROMPT);
        r[i].sampling.max_tokens = 300;
        bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &r[i]);
    }
    bt_rig_wait_tokens(rig, &r[0], 3);
    for (int i = N - 1; i >= 0; i--) {
        bt_rig_cancel(rig, BT_RIG_DECODE, &r[i]);
    }
    for (int i = 0; i < N; i++) {
        bt_rig_wait_finished(rig, BT_RIG_DECODE, &r[i]);
        assert_int_equal(r[i].end[BT_RIG_DECODE].status, BT_ECANCELLED);
        assert_int_equal(r[i].end[BT_RIG_DECODE].reason, BT_FINISH_CANCELLED);
    }
    bt_rig_destroy(rig);
}

static void deadline_ends_a_running_sequence(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){0});
    static bt_rig_request r, waiting;
    bt_rig_request_init(rig, &r, prompt, PROMPT);
    r.sampling.max_tokens = 100000; /* as far as the context goes */
    r.deadline_left_ns = 20 * 1000 * 1000;
    bt_rig_request_init(rig, &waiting, prompt, PROMPT);
    waiting.deadline_left_ns = 1;
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &r);
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &waiting);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &r);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &waiting);
    assert_int_equal(r.end[BT_RIG_DECODE].status, BT_EDEADLINE);
    assert_int_equal(waiting.end[BT_RIG_DECODE].status, BT_EDEADLINE);
    bt_rig_destroy(rig);
}

static bool twenty_are_home(const bt_link_load *load)
{
    return load->blocks_free + load->blocks_cached == 20 && load->preemptions > 0;
}

/* Eight sequences that grow, in a pool for three: they are preempted, and nothing shows. */
static void small_pool_preempts_and_gives_the_same_tokens(void **state)
{
    (void)state;
    enum { N = 8 };
    static bt_rig_request wide[N], tight[N];
    static int32_t prompts[N][40];
    bt_rig *rig = alone(&(bt_rig_options){0});
    for (int i = 0; i < N; i++) {
        bt_rig_fill_prompt(prompts[i], 40, (uint64_t)i + 10);
        bt_rig_request_init(rig, &wide[i], prompts[i], 40);
        wide[i].sampling.max_tokens = 60;
        wide[i].sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
        wide[i].sampling.seed = (uint64_t)i;
        bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &wide[i]);
    }
    for (int i = 0; i < N; i++) {
        bt_rig_wait_finished(rig, BT_RIG_DECODE, &wide[i]);
    }
    assert_int_equal(bt_rig_load(rig, BT_RIG_DECODE)->preemptions, 0);
    bt_rig_destroy(rig);
    rig = alone(&(bt_rig_options){.decode_blocks = 20});
    for (int i = 0; i < N; i++) {
        bt_rig_request_init(rig, &tight[i], prompts[i], 40);
        tight[i].sampling = wide[i].sampling;
        bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &tight[i]);
    }
    uint32_t n_preempted = 0;
    for (int i = 0; i < N; i++) {
        bt_rig_wait_finished(rig, BT_RIG_DECODE, &tight[i]);
        n_preempted += tight[i].end[BT_RIG_DECODE].preemptions;
        assert_int_equal(tight[i].n_tokens, 60);
        assert_memory_equal(tight[i].tokens, wide[i].tokens, 60 * sizeof wide[i].tokens[0]);
    }
    assert_true(n_preempted > 0);
    bt_rig_wait_load(rig, BT_RIG_DECODE, twenty_are_home);
    assert_int_equal(bt_rig_load(rig, BT_RIG_DECODE)->preemptions, n_preempted);
    assert_true(bt_rig_load(rig, BT_RIG_DECODE)->recomputed_tokens > 0);
    bt_rig_destroy(rig);
}

static void lost_router_ends_its_runs(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){0});
    static bt_rig_request r, after;
    bt_rig_request_init(rig, &r, prompt, PROMPT);
    r.sampling.max_tokens = 300;
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &r);
    bt_rig_wait_tokens(rig, &r, 2);
    bt_rig_drop_router(rig, BT_RIG_DECODE);
    bt_rig_wait_attached(rig, BT_RIG_DECODE);
    bt_rig_request_init(rig, &after, prompt, PROMPT);
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &after);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &after);
    assert_false(r.finished[BT_RIG_DECODE]);
    assert_int_equal(after.tokens[0], r.tokens[0]);
    bt_rig_destroy(rig);
}

static void stop_token_ends_the_text_and_is_named(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){0});
    static bt_rig_request r, stopped;
    bt_rig_request_init(rig, &r, prompt, 30);
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &r);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &r);
    bt_rig_request_init(rig, &stopped, prompt, 30);
    stopped.sampling.n_stop_tokens = 1;
    stopped.sampling.stop_tokens[0] = r.tokens[5];
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &stopped);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &stopped);
    const bt_link_finished *end = &stopped.end[BT_RIG_DECODE];
    assert_int_equal(end->reason, BT_FINISH_STOP);
    assert_true(end->has_stop_token);
    assert_int_equal(end->stop_token, r.tokens[5]);
    assert_int_equal(end->generated_tokens, stopped.n_tokens);
    bt_rig_destroy(rig);
}

/* Runs until it has n tokens and is parked. */
static void park_at(bt_rig *rig, bt_rig_request *r, uint32_t n)
{
    bt_rig_request_init(rig, r, prompt, PROMPT);
    r->sampling.max_tokens = 300;
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, r);
    bt_rig_wait_tokens(rig, r, n);
    bt_rig_park(rig, r, 5);
    bt_rig_wait_parked(rig, r, 1);
    assert_int_equal(r->parked.status, BT_OK);
    assert_int_equal(r->parked.generated_tokens, r->n_tokens); /* all are told before the answer */
}

static void parked_run_stands_still_until_it_is_resumed(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){0});
    static bt_rig_request undisturbed, r;
    bt_rig_request_init(rig, &undisturbed, prompt, PROMPT);
    undisturbed.sampling.max_tokens = 300;
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &undisturbed);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &undisturbed);
    park_at(rig, &r, 3);
    const uint32_t n = r.n_tokens;
    bt_rig_run_ms(rig, 60);
    assert_int_equal(r.n_tokens, n);
    bt_rig_wait_load(rig, BT_RIG_DECODE, is_parked);
    bt_rig_resume(rig, &r);
    bt_rig_wait_tokens(rig, &r, n + 5);
    bt_rig_park(rig, &r, 6); /* and again */
    bt_rig_wait_parked(rig, &r, 2);
    bt_rig_resume(rig, &r);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &r);
    assert_int_equal(r.end[BT_RIG_DECODE].status, BT_OK);
    assert_int_equal(r.n_tokens, 300);
    assert_memory_equal(r.tokens, undisturbed.tokens, 300 * sizeof r.tokens[0]);
    assert_int_equal(bt_rig_load(rig, BT_RIG_DECODE)->runs_handed_over, 0);
    bt_rig_destroy(rig);
}

static void parked_run_that_nobody_pulls_ends_with_its_lease(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){.lease_ms = 200});
    static bt_rig_request r;
    park_at(rig, &r, 3);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &r);
    assert_int_equal(r.end[BT_RIG_DECODE].status, BT_EPEER);
    bt_rig_wait_load(rig, BT_RIG_DECODE, is_home);
    bt_rig_destroy(rig);
}

static void parked_run_is_cancelled_by_router_deadline_and_shutdown(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){0});
    static bt_rig_request r, late, open;
    park_at(rig, &r, 3);
    bt_rig_cancel(rig, BT_RIG_DECODE, &r);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &r);
    assert_int_equal(r.end[BT_RIG_DECODE].status, BT_ECANCELLED);
    bt_rig_request_init(rig, &late, prompt, PROMPT);
    late.sampling.max_tokens = 300;
    late.deadline_left_ns = 400 * 1000 * 1000;
    bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &late);
    bt_rig_wait_tokens(rig, &late, 1);
    bt_rig_park(rig, &late, 2);
    bt_rig_wait_finished(rig, BT_RIG_DECODE, &late);
    assert_int_equal(late.end[BT_RIG_DECODE].status, BT_EDEADLINE);
    park_at(rig, &open, 3);
    bt_rig_destroy(rig); /* audits the pool */
}

static void park_and_cancel_cross_in_every_order(void **state)
{
    (void)state;
    bt_rig *rig = alone(&(bt_rig_options){0});
    static bt_rig_request r[8];
    for (int i = 0; i < 8; i++) {
        bt_rig_request_init(rig, &r[i], prompt, PROMPT);
        r[i].sampling.max_tokens = 200;
        bt_rig_send(rig, BT_RIG_DECODE, BT_LINK_MODE_WHOLE, &r[i]);
        if (i % 2 == 0) {
            bt_rig_wait_tokens(rig, &r[i], 2);
        }
        bt_rig_park(rig, &r[i], 1);
        bt_rig_park(rig, &r[i], 1); /* answered once, or not at all */
        if (i % 4 < 2) {
            bt_rig_resume(rig, &r[i]);
        }
        bt_rig_cancel(rig, BT_RIG_DECODE, &r[i]);
        bt_rig_wait_finished(rig, BT_RIG_DECODE, &r[i]);
        assert_int_equal(r[i].end[BT_RIG_DECODE].status, BT_ECANCELLED);
        assert_true(r[i].n_parked <= 2);
    }
    bt_rig_destroy(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_run_gives_all_its_tokens),
        cmocka_unit_test(resumed_run_goes_on_with_the_same_tokens),
        cmocka_unit_test(prefill_runs_and_too_large_ones_are_refused),
        cmocka_unit_test(pull_from_nobody_fails_as_the_peers_fault),
        cmocka_unit_test(cancelled_runs_end_once_waiting_or_running),
        cmocka_unit_test(deadline_ends_a_running_sequence),
        cmocka_unit_test(small_pool_preempts_and_gives_the_same_tokens),
        cmocka_unit_test(lost_router_ends_its_runs),
        cmocka_unit_test(stop_token_ends_the_text_and_is_named),
        cmocka_unit_test(parked_run_stands_still_until_it_is_resumed),
        cmocka_unit_test(parked_run_that_nobody_pulls_ends_with_its_lease),
        cmocka_unit_test(parked_run_is_cancelled_by_router_deadline_and_shutdown),
        cmocka_unit_test(park_and_cancel_cross_in_every_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
