/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that the forecast adds up what stands before a newcomer, by hand-made views whose answer
 * can be worked out on paper, and that the line of step times finds the line it was drawn from. */
#include "router/forecast.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const int64_t ms_ns = 1000000;

static bt_router_worker_view prefill_of(uint64_t queued, uint64_t token_ns)
{
    return (bt_router_worker_view){
        .role = BT_ROUTER_WORKER_ROLE_PREFILL,
        .ready = true,
        .queued_prefill_tokens = queued,
        .prefill_token_ns = token_ns,
    };
}

static bt_router_worker_view decode_of(uint32_t n_taken, uint32_t n_places)
{
    return (bt_router_worker_view){
        .role = BT_ROUTER_WORKER_ROLE_DECODE,
        .ready = true,
        .n_taken = n_taken,
        .n_places = n_places,
        .step_ns = 20000000,
    };
}

static bt_router_forecast make(const bt_router_worker_view *views, size_t n, uint32_t prompt,
                               const bt_router_backlog *backlog)
{
    const bt_router_policy_request request = {.prompt_tokens = prompt, .block_tokens = 16};
    bt_router_forecast out;
    bt_router_forecast_make(views, n, &request, backlog, &out);
    return out;
}

static void what_is_queued_and_its_own_prompt_delay_the_first_token(void **state)
{
    (void)state;
    /* 1 ms a token: 300 queued there, 200 here, 100 of its own. */
    const bt_router_worker_view views[] = {prefill_of(300, 1000000), decode_of(0, 4)};
    const bt_router_backlog backlog = {.n_requests = 2, .n_tokens = 200, .stay_tokens = 50};
    const bt_router_forecast f = make(views, 2, 100, &backlog);
    assert_int_equal(f.wait_ns / ms_ns, 500);
    assert_int_equal(f.ttft_ns / ms_ns, 600);
    assert_int_equal(f.step_ns / ms_ns, 20);
}

static void two_prefill_workers_share_the_backlog(void **state)
{
    (void)state;
    const bt_router_worker_view views[] = {prefill_of(300, 1000000), prefill_of(100, 1000000),
                                           decode_of(0, 64)};
    const bt_router_backlog backlog = {.n_tokens = 200};
    assert_int_equal(make(views, 3, 100, &backlog).wait_ns / ms_ns, 300);
}

static void a_cached_prefix_is_no_work(void **state)
{
    (void)state;
    bt_router_worker_view views[] = {prefill_of(0, 1000000), decode_of(0, 64)};
    views[0].matched_blocks = 5;
    const bt_router_backlog none = {0};
    assert_int_equal(make(views, 2, 100, &none).ttft_ns / ms_ns, 20);
}

static void a_newcomer_waits_for_a_place_when_all_are_taken(void **state)
{
    (void)state;
    const bt_router_worker_view views[] = {prefill_of(0, 1000000), decode_of(4, 4),
                                           decode_of(6, 6)};
    const bt_router_backlog backlog = {.n_requests = 4, .stay_tokens = 100};
    /* Five places have to come free, of ten that are given back each 2 s. */
    assert_int_equal(make(views, 3, 10, &backlog).wait_ns / ms_ns, 1000);
    const bt_router_worker_view some_free[] = {prefill_of(0, 1000000), decode_of(4, 9)};
    assert_int_equal(make(some_free, 2, 10, &backlog).wait_ns, 0);
}

static void the_longer_wait_counts_not_their_sum(void **state)
{
    (void)state;
    const bt_router_worker_view views[] = {prefill_of(700, 1000000), decode_of(1, 1)};
    const bt_router_backlog backlog = {.stay_tokens = 25};
    assert_int_equal(make(views, 2, 10, &backlog).wait_ns / ms_ns, 700);
}

static void what_is_not_measured_delays_nobody(void **state)
{
    (void)state;
    const bt_router_worker_view views[] = {prefill_of(100000, 0), decode_of(0, 4)};
    const bt_router_backlog backlog = {.n_tokens = 1000000};
    assert_int_equal(make(views, 2, 1000, &backlog).ttft_ns, 0);
    assert_int_equal(make(NULL, 0, 1000, &backlog).ttft_ns, 0);
}

static void without_prefill_workers_decode_computes_prompts(void **state)
{
    (void)state;
    bt_router_worker_view d = decode_of(0, 4);
    d.prefill_token_ns = 2000000;
    d.queued_prefill_tokens = 50;
    const bt_router_backlog none = {0};
    const bt_router_forecast f = make(&d, 1, 100, &none);
    assert_int_equal(f.ttft_ns / ms_ns, 300);
}

static void a_line_is_found_again(void **state)
{
    (void)state;
    bt_router_step_line line = {0};
    assert_int_equal((int)bt_router_step_line_at(&line, 3), 0);
    assert_int_equal(bt_router_step_line_places(&line, 1, 64), 64);
    for (uint32_t i = 0; i < 200; i++) {
        const uint32_t n = 1 + i % 8;
        bt_router_step_line_add(&line, n, 10000000 + n * UINT64_C(2000000));
    }
    assert_int_equal((int)(bt_router_step_line_at(&line, 20) / 1e6 + 0.5), 50);
    assert_int_equal(bt_router_step_line_places(&line, 30.5e6, 64), 10);
    assert_int_equal(bt_router_step_line_places(&line, 30.5e6, 4), 4);
    /* One alone takes 12 ms: less than 18 can't be asked for. */
    assert_int_equal(bt_router_step_line_places(&line, 1e6, 64), 4);
}

static void samples_of_one_size_are_taken_to_grow_by_half(void **state)
{
    (void)state;
    bt_router_step_line line = {0};
    for (int i = 0; i < 10; i++) {
        bt_router_step_line_add(&line, 2, 20000000);
    }
    assert_int_equal((int)(bt_router_step_line_at(&line, 2) / 1e6 + 0.5), 20);
    assert_int_equal((int)(bt_router_step_line_at(&line, 4) / 1e6 + 0.5), 30);
}

static void noise_makes_no_step_cheaper_with_more_sequences(void **state)
{
    (void)state;
    bt_router_step_line line = {0};
    bt_router_step_line_add(&line, 1, 30000000);
    bt_router_step_line_add(&line, 8, 20000000);
    assert_true(bt_router_step_line_at(&line, 16) >= bt_router_step_line_at(&line, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_queued_and_its_own_prompt_delay_the_first_token),
        cmocka_unit_test(two_prefill_workers_share_the_backlog),
        cmocka_unit_test(a_cached_prefix_is_no_work),
        cmocka_unit_test(a_newcomer_waits_for_a_place_when_all_are_taken),
        cmocka_unit_test(the_longer_wait_counts_not_their_sum),
        cmocka_unit_test(what_is_not_measured_delays_nobody),
        cmocka_unit_test(without_prefill_workers_decode_computes_prompts),
        cmocka_unit_test(a_line_is_found_again),
        cmocka_unit_test(samples_of_one_size_are_taken_to_grow_by_half),
        cmocka_unit_test(noise_makes_no_step_cheaper_with_more_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
