/* SPDX-License-Identifier: Apache-2.0 */
/* Proves what the placement promises: least load, cached prefixes weighed against it, pairs
 * within one numerics id, local prefill as the options say, and the same answer for the same
 * view. */
#include "router/policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const bt_router_policy_options no_local = {0};
static const bt_router_policy_options with_local = {.local_prefill = true};

static bt_router_worker_view worker(bt_router_worker_role role)
{
    return (bt_router_worker_view){
        .role = role,
        .ready = true,
        .numerics = 1,
        .context_tokens = 8192,
        .n_blocks = 1000,
        .n_free_blocks = 1000,
    };
}

static bt_router_policy_request request(uint32_t prompt_tokens)
{
    return (bt_router_policy_request){
        .prompt_tokens = prompt_tokens, .max_tokens = 100, .block_tokens = 16};
}

static bt_router_placement place(const bt_router_worker_view *workers, size_t n,
                                 uint32_t prompt_tokens, const bt_router_policy_options *options)
{
    const bt_router_policy_request req = request(prompt_tokens);
    bt_router_placement out = {0};
    assert_int_equal(bt_router_policy_place(workers, n, &req, options, &out), BT_OK);
    return out;
}

static bt_status refusal(const bt_router_worker_view *workers, size_t n, uint32_t prompt_tokens,
                         const bt_router_policy_options *options)
{
    const bt_router_policy_request req = request(prompt_tokens);
    bt_router_placement out;
    return bt_router_policy_place(workers, n, &req, options, &out);
}

static void the_least_loaded_pair_is_taken(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {
        worker(BT_ROUTER_WORKER_ROLE_PREFILL), worker(BT_ROUTER_WORKER_ROLE_PREFILL),
        worker(BT_ROUTER_WORKER_ROLE_DECODE), worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    w[0].queued_prefill_tokens = 500;
    w[2].live_tokens = 3000;
    const bt_router_placement p = place(w, 4, 100, &no_local);
    assert_int_equal(p.kind, BT_ROUTER_PLACEMENT_SPLIT);
    assert_int_equal(p.p_idx, 1);
    assert_int_equal(p.d_idx, 3);
}

static void ties_go_to_fewer_requests_then_to_the_lower_index(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {
        worker(BT_ROUTER_WORKER_ROLE_PREFILL), worker(BT_ROUTER_WORKER_ROLE_PREFILL),
        worker(BT_ROUTER_WORKER_ROLE_DECODE), worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    assert_int_equal(place(w, 4, 100, &no_local).p_idx, 0);
    assert_int_equal(place(w, 4, 100, &no_local).d_idx, 2);
    w[0].n_requests = 1;
    w[2].n_requests = 1;
    assert_int_equal(place(w, 4, 100, &no_local).p_idx, 1);
    assert_int_equal(place(w, 4, 100, &no_local).d_idx, 3);
}

static void a_cached_prefix_is_weighed_against_the_queue(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    w[1].matched_blocks = 50; /* 800 tokens */
    w[1].queued_prefill_tokens = 700;
    bt_router_placement p = place(w, 3, 1000, &no_local);
    assert_int_equal(p.p_idx, 1);
    assert_int_equal(p.p_matched_blocks, 50);
    w[1].queued_prefill_tokens = 900;
    assert_int_equal(place(w, 3, 1000, &no_local).p_idx, 0);
}

static void a_bypassed_cache_draws_nobody(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    w[1].matched_blocks = 50;
    bt_router_policy_request req = request(1000);
    req.bypass_cache = true;
    bt_router_placement p;
    assert_int_equal(bt_router_policy_place(w, 3, &req, &no_local, &p), BT_OK);
    assert_int_equal(p.p_idx, 0);
    assert_int_equal(p.p_matched_blocks, 0);
}

static void a_full_decode_pool_is_avoided(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    w[1].n_free_blocks = 2;
    w[2].live_tokens = 2000;
    assert_int_equal(place(w, 3, 1000, &no_local).d_idx, 2);
}

static void workers_are_paired_within_one_numerics_id(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    w[0].numerics = 7;
    w[1].queued_prefill_tokens = 100000;
    assert_int_equal(place(w, 3, 100, &no_local).p_idx, 1);
    w[1].ready = false;
    assert_int_equal(refusal(w, 3, 100, &no_local), BT_AGAIN);
    const bt_router_policy_options mixed = {.allow_mixed_numerics = true};
    assert_int_equal(place(w, 3, 100, &mixed).p_idx, 0);
}

static void a_resumed_request_stays_within_its_numerics_id(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_BOTH),
                                 worker(BT_ROUTER_WORKER_ROLE_BOTH)};
    w[1].numerics = 7;
    w[1].queued_prefill_tokens = 5000;
    bt_router_policy_request req = request(100);
    req.has_numerics = true;
    req.numerics = 7;
    bt_router_placement p;
    assert_int_equal(bt_router_policy_place(w, 2, &req, &no_local, &p), BT_OK);
    assert_int_equal(p.d_idx, 1);
}

static void decode_prefills_only_when_it_may(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    assert_int_equal(place(w, 2, 100, &with_local).kind, BT_ROUTER_PLACEMENT_SPLIT);
    w[0].ready = false;
    assert_int_equal(place(w, 2, 100, &with_local).kind, BT_ROUTER_PLACEMENT_WHOLE);
    assert_int_equal(place(w, 2, 100, &with_local).d_idx, 1);
    assert_int_equal(refusal(w, 2, 100, &no_local), BT_AGAIN);
}

static void a_short_rest_is_prefilled_where_it_decodes(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    bt_router_policy_options options = {.local_prefill = true, .local_prefill_tokens = 64};
    w[1].matched_blocks = 60; /* 960 of 1000 */
    assert_int_equal(place(w, 2, 1000, &options).kind, BT_ROUTER_PLACEMENT_WHOLE);
    assert_int_equal(place(w, 2, 1100, &options).kind, BT_ROUTER_PLACEMENT_SPLIT);
    options.local_prefill = false;
    assert_int_equal(place(w, 2, 1000, &options).kind, BT_ROUTER_PLACEMENT_SPLIT);
}

static void a_failed_prefill_worker_is_the_last_resort(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    w[0].excluded = true;
    w[1].queued_prefill_tokens = 100000;
    assert_int_equal(place(w, 3, 100, &with_local).p_idx, 1);
    w[1].ready = false;
    assert_int_equal(place(w, 3, 100, &with_local).kind, BT_ROUTER_PLACEMENT_WHOLE);
    assert_int_equal(place(w, 3, 100, &no_local).p_idx, 0);
}

static void a_worker_of_both_roles_takes_whole_requests(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_BOTH),
                                 worker(BT_ROUTER_WORKER_ROLE_BOTH)};
    w[0].queued_prefill_tokens = 50;
    const bt_router_placement p = place(w, 2, 100, &no_local);
    assert_int_equal(p.kind, BT_ROUTER_PLACEMENT_WHOLE);
    assert_int_equal(p.d_idx, 1);
}

static void a_worker_of_both_roles_is_no_half_of_a_split_request(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_BOTH),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    w[0].live_tokens = 100000;
    const bt_router_placement p = place(w, 2, 100, &no_local);
    assert_int_equal(p.kind, BT_ROUTER_PLACEMENT_WHOLE);
    assert_int_equal(p.d_idx, 0);
    w[0].ready = false;
    assert_int_equal(refusal(w, 2, 100, &no_local), BT_AGAIN);
    assert_int_equal(place(w, 2, 100, &with_local).d_idx, 1);
}

static void what_no_worker_can_hold_is_invalid(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    /* Prompt and the 100 tokens that may come. */
    assert_int_equal(refusal(w, 2, 8093, &no_local), BT_EINVAL);
    assert_int_equal(place(w, 2, 8092, &no_local).kind, BT_ROUTER_PLACEMENT_SPLIT);
    w[1].n_blocks = 10;
    assert_int_equal(refusal(w, 2, 61, &no_local), BT_EINVAL);
    assert_int_equal(place(w, 2, 60, &no_local).kind, BT_ROUTER_PLACEMENT_SPLIT);
    assert_int_equal(refusal(w, 0, 10, &no_local), BT_AGAIN);
    assert_int_equal(bt_router_policy_context_max(w, 2, &no_local), 160);
    w[1].n_blocks = 1000;
    assert_int_equal(bt_router_policy_context_max(w, 2, &no_local), 8192);
    assert_int_equal(bt_router_policy_context_max(w, 1, &no_local), 0);
}

static void a_request_without_decode_needs_a_prefill_worker_alone(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    bt_router_policy_request req = request(100);
    req.prefill_only = true;
    w[0].queued_prefill_tokens = 10;
    bt_router_placement p;
    assert_int_equal(bt_router_policy_place(w, 2, &req, &no_local, &p), BT_OK);
    assert_int_equal(p.kind, BT_ROUTER_PLACEMENT_PREFILL);
    assert_int_equal(p.p_idx, 1);
    assert_int_equal(bt_router_policy_place(w + 2, 1, &req, &no_local, &p), BT_AGAIN);
    assert_int_equal(bt_router_policy_place(w + 2, 1, &req, &with_local, &p), BT_OK);
    assert_int_equal(p.kind, BT_ROUTER_PLACEMENT_WHOLE);
    w[0].role = BT_ROUTER_WORKER_ROLE_BOTH;
    assert_int_equal(bt_router_policy_place(w, 1, &req, &no_local, &p), BT_OK);
    assert_int_equal(p.kind, BT_ROUTER_PLACEMENT_WHOLE);
}

static void readiness_needs_both_halves(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {worker(BT_ROUTER_WORKER_ROLE_PREFILL),
                                 worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    assert_true(bt_router_policy_can_serve(w, 2, &no_local));
    assert_false(bt_router_policy_can_serve(w, 1, &with_local));
    assert_false(bt_router_policy_can_serve(w + 1, 1, &no_local));
    assert_true(bt_router_policy_can_serve(w + 1, 1, &with_local));
}

static void a_running_sequence_moves_to_the_least_loaded_worker_with_room(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {
        worker(BT_ROUTER_WORKER_ROLE_PREFILL), worker(BT_ROUTER_WORKER_ROLE_DECODE),
        worker(BT_ROUTER_WORKER_ROLE_DECODE), worker(BT_ROUTER_WORKER_ROLE_BOTH)};
    bt_router_policy_request req = request(160);
    req.has_numerics = true;
    req.numerics = 1;
    uint32_t to;
    w[1].excluded = true; /* it is there now */
    w[3].live_tokens = 100;
    assert_int_equal(bt_router_policy_move(w, 4, &req, &no_local, &to), BT_OK);
    assert_int_equal(to, 2);
    w[2].n_free_blocks = 10; /* not one token more than the known ones */
    assert_int_equal(bt_router_policy_move(w, 4, &req, &no_local, &to), BT_OK);
    assert_int_equal(to, 3);
    w[2].n_free_blocks = 11;
    assert_int_equal(bt_router_policy_move(w, 4, &req, &no_local, &to), BT_OK);
    assert_int_equal(to, 2);
    w[2].numerics = 2;
    w[3].full = true;
    assert_int_equal(bt_router_policy_move(w, 4, &req, &no_local, &to), BT_AGAIN);
    const bt_router_policy_options mixed = {.allow_mixed_numerics = true};
    assert_int_equal(bt_router_policy_move(w, 4, &req, &mixed, &to), BT_OK);
    assert_int_equal(to, 2);
    w[2].context_tokens = 200; /* not all that may come */
    assert_int_equal(bt_router_policy_move(w, 4, &req, &mixed, &to), BT_AGAIN);
}

static void a_full_worker_is_passed_over_or_waited_for_but_not_replaced(void **state)
{
    (void)state;
    bt_router_worker_view w[] = {
        worker(BT_ROUTER_WORKER_ROLE_PREFILL), worker(BT_ROUTER_WORKER_ROLE_PREFILL),
        worker(BT_ROUTER_WORKER_ROLE_DECODE), worker(BT_ROUTER_WORKER_ROLE_DECODE)};
    w[1].queued_prefill_tokens = 5000;
    w[3].live_tokens = 5000;
    w[0].full = true;
    w[2].full = true;
    const bt_router_placement p = place(w, 4, 100, &with_local);
    assert_int_equal(p.kind, BT_ROUTER_PLACEMENT_SPLIT);
    assert_int_equal(p.p_idx, 1);
    assert_int_equal(p.d_idx, 3);
    w[1].full = true; /* decode could compute prompts, but prefill is there */
    assert_int_equal(refusal(w, 4, 100, &with_local), BT_AGAIN);
    w[1].full = false;
    w[3].full = true;
    assert_int_equal(refusal(w, 4, 100, &with_local), BT_AGAIN);
    /* One without decode waits for prefill alone. */
    bt_router_policy_request one = request(100);
    one.prefill_only = true;
    bt_router_placement out;
    assert_int_equal(bt_router_policy_place(w, 4, &one, &with_local, &out), BT_OK);
    assert_int_equal(out.p_idx, 1);
    w[1].full = true;
    assert_int_equal(bt_router_policy_place(w, 4, &one, &with_local, &out), BT_AGAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_loaded_pair_is_taken),
        cmocka_unit_test(ties_go_to_fewer_requests_then_to_the_lower_index),
        cmocka_unit_test(a_cached_prefix_is_weighed_against_the_queue),
        cmocka_unit_test(a_bypassed_cache_draws_nobody),
        cmocka_unit_test(a_full_decode_pool_is_avoided),
        cmocka_unit_test(workers_are_paired_within_one_numerics_id),
        cmocka_unit_test(a_resumed_request_stays_within_its_numerics_id),
        cmocka_unit_test(decode_prefills_only_when_it_may),
        cmocka_unit_test(a_short_rest_is_prefilled_where_it_decodes),
        cmocka_unit_test(a_failed_prefill_worker_is_the_last_resort),
        cmocka_unit_test(a_worker_of_both_roles_takes_whole_requests),
        cmocka_unit_test(a_worker_of_both_roles_is_no_half_of_a_split_request),
        cmocka_unit_test(what_no_worker_can_hold_is_invalid),
        cmocka_unit_test(a_request_without_decode_needs_a_prefill_worker_alone),
        cmocka_unit_test(readiness_needs_both_halves),
        cmocka_unit_test(a_full_worker_is_passed_over_or_waited_for_but_not_replaced),
        cmocka_unit_test(a_running_sequence_moves_to_the_least_loaded_worker_with_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
