/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that the registry knows who is attached, tells numerics ids apart, and writes down
 * views from the larger of a worker's report and the router's own count. Time is an argument. */
#include "router/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const int64_t second_ns = 1000000000;

static bt_link_hello hello_of(const char *name, bt_link_role role, uint8_t numerics)
{
    bt_link_hello hello = {
        .role = role,
        .block_tokens = BT_BLOCK_HASH_TOKENS,
        .pool_blocks = 100,
        .requests_max = 4,
        .context_tokens = 2048,
    };
    snprintf(hello.kv.name, sizeof hello.kv.name, "%s", name);
    memset(hello.numerics_id, numerics, sizeof hello.numerics_id);
    return hello;
}

static bt_router_worker *add(bt_router_registry *registry, const char *name, uint8_t numerics,
                             uint32_t model_idx)
{
    const bt_link_hello hello = hello_of(name, BT_LINK_ROLE_BOTH, numerics);
    bt_router_worker *worker = NULL;
    assert_int_equal(bt_router_registry_add(registry, NULL, &hello, model_idx, 0, &worker, NULL),
                     BT_OK);
    return worker;
}

static int make_registry(void **state)
{
    bt_router_registry *registry = NULL;
    assert_int_equal(bt_router_registry_create(&registry), BT_OK);
    *state = registry;
    return 0;
}

static int destroy_registry(void **state)
{
    bt_router_registry_destroy(*state);
    return 0;
}

static bt_router_worker_view view_of(const bt_router_registry *registry, int64_t now_ns,
                                     bool need_room)
{
    bt_router_worker_view views[BT_ROUTER_WORKERS_MAX];
    uint32_t slots[BT_ROUTER_WORKERS_MAX];
    const bt_router_view_options options = {
        .now_ns = now_ns, .silence_ns = 3 * second_ns, .need_room = need_room};
    assert_int_equal(bt_router_registry_view(registry, &options, views, slots), 1);
    assert_int_equal(slots[0], 0);
    return views[0];
}

static void slots_are_reused_but_sessions_differ(void **state)
{
    bt_router_registry *registry = *state;
    bt_router_worker *a = add(registry, "a", 1, 0);
    (void)add(registry, "b", 1, 0);
    const uint32_t slot = a->slot;
    const uint64_t session = a->session;
    bt_router_registry_remove(registry, a);
    assert_null(bt_router_registry_at(registry, slot));
    bt_router_worker *again = add(registry, "a", 1, 0);
    assert_int_equal(again->slot, slot);
    assert_true(again->session > session);
    assert_int_equal(bt_router_registry_count(registry), 2);
}

static void numerics_numbers_are_equal_for_equal_ids_alone(void **state)
{
    bt_router_registry *registry = *state;
    bt_router_worker *a = add(registry, "a", 1, 0);
    bt_router_worker *b = add(registry, "b", 2, 0);
    bt_router_worker *c = add(registry, "c", 1, 0);
    assert_int_equal(a->numerics, c->numerics);
    assert_int_not_equal(a->numerics, b->numerics);
    bt_router_registry_remove(registry, a);
    bt_router_worker *d = add(registry, "d", 3, 0);
    assert_int_not_equal(d->numerics, b->numerics);
    assert_int_not_equal(d->numerics, c->numerics);
    uint8_t ids[4][BT_LINK_ID_BYTES];
    assert_int_equal(bt_router_registry_numerics_ids(registry, 0, 4, ids), 3);
    assert_int_equal(bt_router_registry_numerics_ids(registry, 0, 2, ids), 2);
    assert_int_equal(bt_router_registry_numerics_ids(registry, 1, 4, ids), 0);
}

static void a_view_takes_the_larger_of_report_and_own_count(void **state)
{
    bt_router_registry *registry = *state;
    bt_router_worker *worker = add(registry, "a", 1, 0);
    bt_router_worker_view view = view_of(registry, 0, true);
    assert_int_equal(view.n_free_blocks, 100);
    assert_int_equal(view.live_tokens, 0);

    bt_router_registry_bind(worker, 300, 400);
    view = view_of(registry, 0, true);
    assert_int_equal(view.n_requests, 1);
    assert_int_equal(view.queued_prefill_tokens, 300);
    assert_int_equal(view.live_tokens, 400);

    const bt_link_load load = {.blocks_free = 10,
                               .blocks_cached = 40,
                               .requests_running = 1,
                               .requests_waiting = 2,
                               .waiting_tokens = 500};
    bt_router_registry_report(worker, &load, second_ns);
    view = view_of(registry, second_ns, true);
    assert_int_equal(view.n_requests, 3);
    assert_int_equal(view.queued_prefill_tokens, 500);
    assert_int_equal(view.live_tokens, 50 * 16);
    assert_int_equal(view.n_free_blocks, 50);
    bt_router_registry_unbind(worker, 300, 400);
    assert_int_equal(worker->n_requests, 0);
    assert_int_equal(worker->prefill_tokens, 0);
}

static void silent_and_draining_workers_are_not_ready_and_busy_ones_are_full(void **state)
{
    bt_router_registry *registry = *state;
    bt_router_worker *worker = add(registry, "a", 1, 0);
    assert_true(view_of(registry, 3 * second_ns, true).ready);
    assert_false(view_of(registry, 3 * second_ns + 1, true).ready);

    bt_link_load load = {.draining = true};
    bt_router_registry_report(worker, &load, second_ns);
    assert_false(view_of(registry, second_ns, true).ready);
    load = (bt_link_load){.requests_running = 4};
    bt_router_registry_report(worker, &load, second_ns);
    assert_true(view_of(registry, second_ns, true).ready);
    assert_true(view_of(registry, second_ns, true).full);
    assert_false(view_of(registry, second_ns, false).full);
    load = (bt_link_load){.stuck_ns = 1};
    bt_router_registry_report(worker, &load, second_ns);
    assert_false(view_of(registry, second_ns, true).ready);
}

static void a_worker_that_no_run_reaches_is_not_ready_until_it_reports_again(void **state)
{
    bt_router_registry *registry = *state;
    bt_router_worker *worker = add(registry, "a", 1, 0);
    bt_router_registry_unreachable(worker);
    assert_false(view_of(registry, 0, true).ready);
    const bt_link_load load = {0};
    bt_router_registry_report(worker, &load, second_ns);
    assert_true(view_of(registry, second_ns, true).ready);
}

static uint64_t step_ns_of(bt_router_registry *registry, bt_router_worker *worker, uint64_t i,
                           uint64_t step_ns)
{
    const bt_link_load load = {
        .decode_tokens = i, .requests_decoding = 1, .last_step_ns = step_ns};
    bt_router_registry_report(worker, &load, 1);
    return view_of(registry, 1, false).step_ns;
}

static void a_step_in_which_the_worker_was_stopped_is_soon_forgotten(void **state)
{
    bt_router_registry *registry = *state;
    bt_router_worker *worker = add(registry, "a", 1, 0);
    uint64_t expected_ns = 0;
    for (uint64_t i = 1; i <= 100; i++) {
        expected_ns = step_ns_of(registry, worker, i, 10000000);
    }
    assert_true(step_ns_of(registry, worker, 101, 100 * second_ns) < 2 * expected_ns);
}

static void a_first_step_in_which_the_worker_was_stopped_is_forgotten_by_the_next(void **state)
{
    bt_router_registry *registry = *state;
    bt_router_worker *worker = add(registry, "a", 1, 0);
    assert_int_equal(step_ns_of(registry, worker, 1, 100 * second_ns), 0); /* not known yet */
    assert_int_equal(step_ns_of(registry, worker, 2, 10000000), 0);
    assert_in_range(step_ns_of(registry, worker, 3, 10000000), 1, 20000000);
    /* Some are longer in truth, and count. */
    assert_true(step_ns_of(registry, worker, 4, 50000000) > 30000000);
}

static void decode_has_places_by_its_step_times_and_combined_workers_have_no_bound(void **state)
{
    bt_router_registry *registry = *state;
    bt_link_hello hello = hello_of("d", BT_LINK_ROLE_DECODE, 1);
    hello.requests_max = 100;
    bt_router_worker *d = NULL;
    assert_int_equal(bt_router_registry_add(registry, NULL, &hello, 0, 0, &d, NULL), BT_OK);
    for (uint64_t i = 1; i <= 100; i++) { /* 10 ms and 2 more for each sequence */
        const uint32_t n = 1 + (uint32_t)(i % 8);
        const bt_link_load load = {.decode_tokens = i,
                                   .requests_decoding = n,
                                   .last_step_ns = 10000000 + n * UINT64_C(2000000)};
        bt_router_registry_report(d, &load, 1);
    }
    const bt_link_load idle = {.decode_tokens = 100};
    bt_router_registry_report(d, &idle, 1);
    bt_router_worker_view views[BT_ROUTER_WORKERS_MAX];
    uint32_t slots[BT_ROUTER_WORKERS_MAX];
    bt_router_view_options options = {.silence_ns = second_ns, .need_room = true};
    assert_int_equal(bt_router_registry_view(registry, &options, views, slots), 1);
    assert_int_equal(views[0].n_places, 0);
    options.tpot_limit_ns = 26000000; /* 0.8 of it: steps of 20.8 ms */
    assert_int_equal(bt_router_registry_view(registry, &options, views, slots), 1);
    assert_int_equal(views[0].n_places, 5);
    assert_false(views[0].full);
    /* Ten on the way count as five; as they arrive, as themselves. */
    for (int i = 0; i < 10; i++) {
        bt_router_registry_bind(d, 0, 10);
    }
    assert_int_equal(bt_router_registry_view(registry, &options, views, slots), 1);
    assert_int_equal(views[0].n_taken, 5);
    assert_true(views[0].full);
    for (int i = 0; i < 4; i++) {
        bt_router_registry_decoding(d, true);
    }
    assert_int_equal(bt_router_registry_view(registry, &options, views, slots), 1);
    assert_int_equal(views[0].n_taken, 7);
    for (int i = 0; i < 10; i++) {
        if (i < 4) {
            bt_router_registry_decoding(d, false);
        }
        bt_router_registry_unbind(d, 0, 10);
    }
    bt_router_registry_remove(registry, d);
    (void)add(registry, "both", 1, 0);
    assert_int_equal(bt_router_registry_view(registry, &options, views, slots), 1);
    assert_int_equal(views[0].n_places, 0);
}

static void other_models_and_foreign_block_sizes_stay_out(void **state)
{
    bt_router_registry *registry = *state;
    (void)add(registry, "a", 1, 0);
    (void)add(registry, "b", 1, 1);
    (void)view_of(registry, 0, true);
    bt_link_hello hello = hello_of("c", BT_LINK_ROLE_PREFILL, 1);
    hello.block_tokens = 32;
    bt_router_worker *worker = NULL;
    bt_error err;
    assert_int_equal(bt_router_registry_add(registry, NULL, &hello, 0, 0, &worker, &err),
                     BT_EMISMATCH);
    assert_non_null(strstr(err.text, "'c' has blocks of 32 tokens"));
}

static void evictions_of_the_last_minute_are_told(void **state)
{
    bt_router_registry *registry = *state;
    bt_router_worker *worker = add(registry, "w", 1, 0);
    assert_int_equal(bt_router_worker_evicted_last_minute(worker), 0);
    /* Ten evictions a second for three minutes, reported each second; 1,000 came before. */
    for (int64_t s = 0; s <= 180; s++) {
        const bt_link_load load = {.blocks_evicted = (uint64_t)(1000 + 10 * s)};
        bt_router_registry_report(worker, &load, s * second_ns);
        const uint64_t told = bt_router_worker_evicted_last_minute(worker);
        const uint64_t true_one = (uint64_t)(10 * (s < 60 ? s : 60));
        assert_true(told >= true_one);
        assert_true(told <= true_one + 100); /* samples are ten seconds apart */
    }
    /* Then none: a minute later the figure is 0 again. */
    for (int64_t s = 181; s <= 250; s++) {
        const bt_link_load load = {.blocks_evicted = 1000 + 10 * 180};
        bt_router_registry_report(worker, &load, s * second_ns);
    }
    assert_int_equal(bt_router_worker_evicted_last_minute(worker), 0);
    bt_router_registry_remove(registry, worker);
}

static void a_full_registry_refuses_with_a_reason(void **state)
{
    bt_router_registry *registry = *state;
    char name[16];
    for (int i = 0; i < BT_ROUTER_WORKERS_MAX; i++) {
        snprintf(name, sizeof name, "w%d", i);
        (void)add(registry, name, (uint8_t)i, 0);
    }
    const bt_link_hello hello = hello_of("late", BT_LINK_ROLE_PREFILL, 1);
    bt_router_worker *worker = NULL;
    bt_error err;
    assert_int_equal(bt_router_registry_add(registry, NULL, &hello, 0, 0, &worker, &err),
                     BT_EEXHAUSTED);
    assert_non_null(strstr(err.text, "128 workers are attached"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slots_are_reused_but_sessions_differ, make_registry,
                                        destroy_registry),
        cmocka_unit_test_setup_teardown(numerics_numbers_are_equal_for_equal_ids_alone,
                                        make_registry, destroy_registry),
        cmocka_unit_test_setup_teardown(a_view_takes_the_larger_of_report_and_own_count,
                                        make_registry, destroy_registry),
        cmocka_unit_test_setup_teardown(a_step_in_which_the_worker_was_stopped_is_soon_forgotten,
                                        make_registry, destroy_registry),
        cmocka_unit_test_setup_teardown(
            a_first_step_in_which_the_worker_was_stopped_is_forgotten_by_the_next, make_registry,
            destroy_registry),
        cmocka_unit_test_setup_teardown(
            decode_has_places_by_its_step_times_and_combined_workers_have_no_bound, make_registry,
            destroy_registry),
        cmocka_unit_test_setup_teardown(
            silent_and_draining_workers_are_not_ready_and_busy_ones_are_full, make_registry,
            destroy_registry),
        cmocka_unit_test_setup_teardown(
            a_worker_that_no_run_reaches_is_not_ready_until_it_reports_again, make_registry,
            destroy_registry),
        cmocka_unit_test_setup_teardown(other_models_and_foreign_block_sizes_stay_out,
                                        make_registry, destroy_registry),
        cmocka_unit_test_setup_teardown(evictions_of_the_last_minute_are_told, make_registry,
                                        destroy_registry),
        cmocka_unit_test_setup_teardown(a_full_registry_refuses_with_a_reason, make_registry,
                                        destroy_registry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
