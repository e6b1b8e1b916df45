/* SPDX-License-Identifier: Apache-2.0 */
/* Slots, order, lookup and deadlines of the run table, without an engine. */
#include "worker/run_table.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { CONTEXT = 64, SLOTS = 3 };

static const int32_t tokens[CONTEXT] = {5, 6, 7};

static bt_link_run request(uint64_t id, uint32_t attempt, const bt_sampling *sampling)
{
    return (bt_link_run){
        .id = {.hi = 1, .lo = id},
        .attempt = attempt,
        .mode = BT_LINK_MODE_WHOLE,
        .tokens = tokens,
        .n_tokens = 20,
        .n_prompt = 17,
        .sampling = sampling,
        .chain_root = {.w = {8, 9}},
        .deadline_left_ns = INT64_MAX,
    };
}

static bt_run_table *table_of(uint32_t n)
{
    bt_run_table *table = NULL;
    assert_int_equal(bt_run_table_create(n, CONTEXT, &table), BT_OK);
    return table;
}

static void sequence_is_filled_from_the_request(void **state)
{
    (void)state;
    bt_run_table *table = table_of(1);
    bt_sampling sampling = {.max_tokens = 4, .seed = 3, .echo = true};
    bt_link_run r = request(1, 2, &sampling);
    bt_worker_run *run = NULL;
    assert_int_equal(bt_run_table_open(table, &r, 1000, &run), BT_OK);
    assert_int_equal(run->n_blocks, 2);
    assert_int_equal(run->generated_before, 3);
    const bt_sequence *seq = run->seq;
    assert_int_equal(seq->n_prompt, 17);
    assert_int_equal(seq->n_tokens, 20);
    assert_int_equal(seq->tokens[2], 7);
    assert_int_equal(seq->attempt, 2);
    assert_int_equal(seq->sampling.seed, 3);
    assert_true(seq->sampling.echo);
    assert_true(seq->use_cache); /* echo alone scores nothing */
    assert_ptr_equal(seq->user, run);
    bt_run_table_close(table, run);

    sampling.logprobs = true; /* the prompt's scores need its rows computed */
    assert_int_equal(bt_run_table_open(table, &r, 1000, &run), BT_OK);
    assert_false(run->seq->use_cache);
    bt_run_table_close(table, run);

    r.mode = BT_LINK_MODE_DECODE; /* whoever computes the prompt echoes it */
    assert_int_equal(bt_run_table_open(table, &r, 1000, &run), BT_OK);
    assert_false(run->seq->sampling.echo);
    bt_run_table_close(table, run);
    bt_run_table_destroy(table);
}

/* A CANCEL that comes after the end makes the engine thread look at a sequence that is being used
 * again: what it looks at must not be written here. */
static void state_of_the_scheduler_is_left_alone(void **state)
{
    (void)state;
    bt_run_table *table = table_of(1);
    const bt_sampling sampling = {.max_tokens = 4};
    const bt_link_run r = request(1, 0, &sampling);
    bt_worker_run *run = NULL;
    assert_int_equal(bt_run_table_open(table, &r, 0, &run), BT_OK);
    run->seq->state = 7;
    run->seq->n_cached = 16;
    bt_run_table_close(table, run);
    assert_int_equal(bt_run_table_open(table, &r, 0, &run), BT_OK);
    assert_int_equal(run->seq->state, 7);
    assert_int_equal(run->seq->n_cached, 0);
    assert_int_equal(run->seq->context, CONTEXT);
    bt_run_table_close(table, run);
    bt_run_table_destroy(table);
}

static void full_table_says_again_and_recovers(void **state)
{
    (void)state;
    bt_run_table *table = table_of(SLOTS);
    const bt_sampling sampling = {.max_tokens = 4};
    bt_worker_run *runs[SLOTS + 1];
    for (uint32_t i = 0; i < SLOTS; i++) {
        const bt_link_run r = request(i, 0, &sampling);
        assert_int_equal(bt_run_table_open(table, &r, 0, &runs[i]), BT_OK);
    }
    const bt_link_run more = request(SLOTS, 0, &sampling);
    assert_int_equal(bt_run_table_open(table, &more, 0, &runs[SLOTS]), BT_AGAIN);
    assert_int_equal(bt_run_table_n_open(table), SLOTS);
    bt_run_table_close(table, runs[1]);
    assert_int_equal(bt_run_table_open(table, &more, 0, &runs[1]), BT_OK);
    /* order of arrival: 0, 2, then the new one */
    bt_worker_run *run = bt_run_table_next(table, NULL);
    assert_ptr_equal(run, runs[0]);
    run = bt_run_table_next(table, run);
    assert_ptr_equal(run, runs[2]);
    run = bt_run_table_next(table, run);
    assert_ptr_equal(run, runs[1]);
    assert_null(bt_run_table_next(table, run));
    for (uint32_t i = 0; i < SLOTS; i++) {
        bt_run_table_close(table, runs[i]);
    }
    bt_run_table_destroy(table);
}

static void attempts_are_different_runs_and_found_by_both(void **state)
{
    (void)state;
    bt_run_table *table = table_of(SLOTS);
    const bt_sampling sampling = {.max_tokens = 4};
    const bt_link_run first = request(1, 0, &sampling);
    const bt_link_run second = request(1, 1, &sampling);
    bt_worker_run *a = NULL;
    bt_worker_run *b = NULL;
    assert_int_equal(bt_run_table_open(table, &first, 0, &a), BT_OK);
    assert_int_equal(bt_run_table_open(table, &first, 0, &b), BT_EEXISTS);
    assert_int_equal(bt_run_table_open(table, &second, 0, &b), BT_OK);
    assert_ptr_equal(bt_run_table_find(table, first.id, 0), a);
    assert_ptr_equal(bt_run_table_find(table, first.id, 1), b);
    assert_null(bt_run_table_find(table, first.id, 2));
    bt_run_table_close(table, a);
    assert_null(bt_run_table_find(table, first.id, 0));
    bt_run_table_close(table, b);
    bt_run_table_destroy(table);
}

static void earliest_deadline_of_runs_that_go_on_counts(void **state)
{
    (void)state;
    bt_run_table *table = table_of(SLOTS);
    const bt_sampling sampling = {.max_tokens = 4};
    bt_worker_run *runs[SLOTS];
    static const int64_t left_ns[SLOTS] = {INT64_MAX, 500, 300};
    assert_true(bt_run_table_deadline(table) == INT64_MAX);
    for (uint32_t i = 0; i < SLOTS; i++) {
        bt_link_run r = request(i, 0, &sampling);
        r.deadline_left_ns = left_ns[i];
        assert_int_equal(bt_run_table_open(table, &r, 1000, &runs[i]), BT_OK);
    }
    assert_int_equal(bt_run_table_deadline(table), 1300);
    runs[2]->stopping = true;
    assert_int_equal(bt_run_table_deadline(table), 1500);
    bt_run_table_close(table, runs[1]);
    assert_true(bt_run_table_deadline(table) == INT64_MAX);
    bt_run_table_close(table, runs[0]);
    bt_run_table_close(table, runs[2]);
    bt_run_table_destroy(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequence_is_filled_from_the_request),
        cmocka_unit_test(state_of_the_scheduler_is_left_alone),
        cmocka_unit_test(full_table_says_again_and_recovers),
        cmocka_unit_test(attempts_are_different_runs_and_found_by_both),
        cmocka_unit_test(earliest_deadline_of_runs_that_go_on_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
