/* SPDX-License-Identifier: Apache-2.0 */
/* Proves what a decode scheduler promises: admission of prompt and first decode block, all or
 * none; lent blocks stay lent until the pull is over; the newest sequence is preempted and gives
 * the same tokens afterwards; decode goes before prefill; blocks are back on every way out. */
#include "decode/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/side.h"

enum { BUDGET = 64, CHUNK = 32, RUNNING = 4, PROMPT_MAX = 400, JOBS = 8, TOKENS_MAX = 200 };

/* What became of one sequence. */
typedef struct job {
    bt_sequence *seq; /* NULL after DONE */
    int32_t tokens[TOKENS_MAX];
    uint32_t n_tokens;
    uint32_t n_skip;
    bool lent;
    bool done;
    bt_status status;
    bt_finish_reason finish;
    uint32_t n_parked; /* PARKED events, and the last one's */
    bt_status parked;
    uint32_t n_lent;
} job;

typedef struct fixture {
    bt_side side;
    bt_decode_scheduler *scheduler;
    bt_decode_stats stats;
    job jobs[JOBS];
    uint32_t n_jobs;
    int32_t prompt[PROMPT_MAX];
    bt_sequence *kept; /* of the newest job that was done while keeps */
    bool keeps;
} fixture;

static bt_model *model; /* loaded once */

static void open_fixture(fixture *f, uint32_t n_blocks)
{
    *f = (fixture){.n_jobs = 0};
    for (int32_t i = 0; i < PROMPT_MAX; i++) {
        f->prompt[i] = (i * 37 + 11) % 256;
    }
    const bt_side_options options = {
        .model = model,
        .n_blocks = n_blocks,
        .rows_max = BUDGET,
        .spans_max = RUNNING,
        .cache = true,
        .command_bytes = sizeof(bt_decode_command),
        .event_bytes = sizeof(bt_decode_event),
    };
    bt_side_open(&f->side, &options);
    const bt_decode_scheduler_options scheduler = {
        .cache = f->side.cache,
        .engine = f->side.engine,
        .params = bt_model_get_params(model),
        .token_budget = BUDGET,
        .chunk = CHUNK,
        .running_max = RUNNING,
    };
    assert_int_equal(bt_decode_scheduler_create(&scheduler, &f->scheduler), BT_OK);
    f->side.table = bt_decode_scheduler_table(f->scheduler);
}

static void close_fixture(fixture *f)
{
    bt_decode_scheduler_destroy(f->scheduler);
    bt_side_close(&f->side);
}

static void drain(fixture *f)
{
    bt_decode_event event;
    while (bt_engine_next_event(f->side.engine, &event)) {
        job *j = event.seq ? event.seq->user : NULL;
        switch (event.kind) {
        case BT_DECODE_EVENT_PULL:
            j->lent = true;
            j->n_skip = event.index;
            break;
        case BT_DECODE_EVENT_TOKEN:
            assert_int_equal(event.index, j->n_tokens);
            j->tokens[j->n_tokens++] = event.u.token.token;
            j->finish = event.finish;
            break;
        case BT_DECODE_EVENT_PARKED:
            j->n_parked++;
            j->parked = event.status;
            j->n_lent = event.index;
            break;
        case BT_DECODE_EVENT_DONE:
            assert_false(j->done);
            j->done = true;
            j->status = event.status;
            j->seq = NULL;
            if (f->keeps) {
                f->kept = event.seq;
            } else {
                bt_sequence_destroy(event.seq);
            }
            break;
        case BT_DECODE_EVENT_STATS:
            f->stats = event.u.stats;
            break;
        default:
            break;
        }
    }
}

static void tell(fixture *f, bt_decode_command_kind kind, job *j)
{
    const bt_decode_command command = {
        .kind = kind, .seq = j->seq, .status = BT_EPEER, .token = 65};
    f->side.table.command(f->side.table.ctx, &command);
    drain(f);
}

static job *run(fixture *f, bt_decode_command_kind kind, uint32_t prompt_first, uint32_t n_prompt,
                uint32_t max_tokens)
{
    job *j = &f->jobs[f->n_jobs++];
    j->seq = bt_side_sequence(&f->side, f->prompt + prompt_first, n_prompt, max_tokens);
    j->seq->arrived_ns = f->n_jobs;
    j->seq->user = j;
    tell(f, kind, j);
    return j;
}

static bool step(fixture *f)
{
    const bool ran = bt_side_step(&f->side, NULL, NULL);
    drain(f);
    return ran;
}

static void whole_requests_run_to_their_end(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 40);
    job *j = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 50, 7);
    uint32_t n_steps = 0;
    while (step(&f)) {
        n_steps++;
    }
    assert_int_equal(n_steps, 2 + 6); /* chunks of 32 and 18, the second yields a token */
    assert_int_equal(j->n_tokens, 7);
    assert_int_equal(j->finish, BT_FINISH_LENGTH);
    assert_int_equal(j->status, BT_OK);
    assert_int_equal(f.stats.n_prefill_tokens, 50);
    assert_int_equal(f.stats.n_decode_tokens, 6);
    close_fixture(&f);
}

static void pull_lends_prompt_and_first_decode_block(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 5);
    /* 64 tokens fill 4 blocks; the first decode block makes 5. */
    job *first = run(&f, BT_DECODE_COMMAND_RUN_PULL, 0, 64, 8);
    assert_false(step(&f));
    assert_true(first->lent);
    assert_int_equal(first->seq->n_blocks, 5);
    job *second = run(&f, BT_DECODE_COMMAND_RUN_PULL, 100, 16, 8);
    assert_false(step(&f));
    assert_false(second->lent);
    assert_int_equal(second->seq->n_blocks, 0);
    tell(&f, BT_DECODE_COMMAND_PULL_DROPPED, first);
    assert_true(first->done);
    assert_int_equal(first->status, BT_EPEER);
    assert_false(step(&f));
    assert_true(second->lent);
    tell(&f, BT_DECODE_COMMAND_PULL_DROPPED, second);
    close_fixture(&f);
}

static void cancelled_pull_keeps_its_blocks_until_it_is_over(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 8);
    job *dropped = run(&f, BT_DECODE_COMMAND_RUN_PULL, 0, 32, 8);
    job *arrived = run(&f, BT_DECODE_COMMAND_RUN_PULL, 100, 32, 8);
    assert_false(step(&f));
    tell(&f, BT_DECODE_COMMAND_CANCEL, dropped);
    tell(&f, BT_DECODE_COMMAND_CANCEL, arrived);
    assert_false(dropped->done);
    assert_false(step(&f));
    assert_int_equal(f.stats.n_pulling, 2);
    tell(&f, BT_DECODE_COMMAND_PULL_DROPPED, dropped);
    tell(&f, BT_DECODE_COMMAND_PULLED, arrived);
    assert_int_equal(dropped->status, BT_ECANCELLED);
    assert_int_equal(arrived->status, BT_ECANCELLED);
    assert_int_equal(arrived->n_tokens, 0);
    close_fixture(&f);
}

static void first_token_that_ends_a_request_ends_it(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 8);
    job *j = run(&f, BT_DECODE_COMMAND_RUN_PULL, 0, 32, 1);
    assert_false(step(&f));
    tell(&f, BT_DECODE_COMMAND_PULLED, j);
    assert_true(j->done);
    assert_int_equal(j->status, BT_OK);
    assert_false(step(&f));
    close_fixture(&f);
}

/* Pulls a prompt and gives it up; returns how many of its tokens a whole run then finds. */
static uint64_t cached_after_pull(bool mixed_numerics)
{
    fixture f;
    open_fixture(&f, 16);
    job *pulled = run(&f, BT_DECODE_COMMAND_RUN_PULL, 0, 40, 8);
    assert_false(step(&f));
    const bt_decode_command command = {.kind = BT_DECODE_COMMAND_PULLED,
                                       .seq = pulled->seq,
                                       .token = 65,
                                       .mixed_numerics = mixed_numerics};
    pulled->n_tokens = 1; /* the one that came with the pull */
    f.side.table.command(f.side.table.ctx, &command);
    while (step(&f)) {
    }
    assert_true(pulled->done);
    (void)run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 40, 1);
    while (step(&f)) {
    }
    const uint64_t n_cached = f.stats.n_cached_tokens;
    close_fixture(&f);
    return n_cached;
}

static void blocks_of_other_numerics_get_no_identity(void **state)
{
    (void)state;
    assert_int_equal(cached_after_pull(false), 32);
    assert_int_equal(cached_after_pull(true), 0);
}

/* Runs two whole requests to their ends. */
static void run_two(fixture *f, job **older, job **newer)
{
    *older = run(f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 60, 100);
    *newer = run(f, BT_DECODE_COMMAND_RUN_WHOLE, 150, 60, 100);
    while (step(f)) {
    }
}

static void newest_is_preempted_and_gives_the_same_tokens(void **state)
{
    (void)state;
    fixture roomy;
    fixture tight;
    job *want[2];
    job *got[2];
    open_fixture(&roomy, 40);
    run_two(&roomy, &want[0], &want[1]);
    assert_int_equal(roomy.stats.n_preemptions, 0);
    open_fixture(&tight, 14); /* each needs 10 blocks at its end */
    run_two(&tight, &got[0], &got[1]);
    assert_true(tight.stats.n_preemptions > 0);
    assert_true(tight.stats.n_recomputed_tokens > 0);
    assert_int_equal(tight.stats.n_prefill_tokens, roomy.stats.n_prefill_tokens);
    assert_int_equal(tight.stats.n_decode_tokens, roomy.stats.n_decode_tokens);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(got[i]->n_tokens, want[i]->n_tokens);
        assert_memory_equal(got[i]->tokens, want[i]->tokens, sizeof got[i]->tokens);
    }
    close_fixture(&roomy);
    close_fixture(&tight);
}

static void decode_goes_on_beside_a_long_prefill(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 60);
    job *talker = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 16, 50);
    assert_true(step(&f));
    job *reader = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 50, 300, 2);
    uint32_t n_before = talker->n_tokens;
    while (reader->n_tokens == 0) {
        assert_true(step(&f));
        assert_int_equal(talker->n_tokens, ++n_before); /* one token in each step */
    }
    while (step(&f)) {
    }
    close_fixture(&f);
}

static void what_never_fits_is_refused(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 8);
    job *too_long = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 100, 100);
    assert_int_equal(too_long->status, BT_EEXHAUSTED);
    /* Asks for no token, but admission takes room for one: it would wait for ever. */
    job *full = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 128, 0);
    assert_int_equal(full->status, BT_EEXHAUSTED);
    job *nearly_full = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 127, 0);
    while (step(&f)) {
    }
    assert_int_equal(nearly_full->status, BT_OK);
    job *at_limit = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 100, 28);
    while (step(&f)) {
    }
    assert_int_equal(at_limit->status, BT_OK);
    assert_int_equal(at_limit->n_tokens, 28);
    close_fixture(&f);
}

static void cancel_ends_waiting_and_running_at_once(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 8);
    job *running = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 60, 60);
    job *waiting = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 150, 100, 20);
    assert_true(step(&f));
    tell(&f, BT_DECODE_COMMAND_CANCEL, waiting);
    assert_int_equal(waiting->status, BT_ECANCELLED);
    tell(&f, BT_DECODE_COMMAND_CANCEL, running);
    assert_int_equal(running->status, BT_ECANCELLED);
    assert_false(step(&f));
    close_fixture(&f);
}

/* A worker uses the sequence of a run that is over for the next one. */
static void smaller_request_in_the_sequence_of_one_that_found_no_room_gets_in(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 8);
    job *running = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 50, 10);
    job *large = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 150, 100, 20);
    assert_true(step(&f));
    f.keeps = true;
    tell(&f, BT_DECODE_COMMAND_CANCEL, large);
    f.keeps = false;
    job *small = &f.jobs[f.n_jobs++];
    bt_sequence *fresh = bt_side_sequence(&f.side, f.prompt + 200, 20, 4);
    small->seq = f.kept;
    bt_sequence_reset(small->seq);
    memcpy(small->seq->tokens, fresh->tokens, 20 * sizeof fresh->tokens[0]);
    small->seq->n_prompt = small->seq->n_tokens = 20;
    small->seq->sampling = fresh->sampling;
    small->seq->arrived_ns = 3;
    small->seq->user = small;
    bt_sequence_destroy(fresh);
    tell(&f, BT_DECODE_COMMAND_RUN_WHOLE, small);
    assert_true(step(&f));
    assert_int_equal(small->n_tokens, 1);
    while (step(&f)) {
    }
    assert_true(running->done && small->done);
    close_fixture(&f);
}

static int load_model(void **state)
{
    (void)state;
    model = bt_side_load(&bt_tiny_model_odd, "auto", 1, BUDGET, RUNNING);
    return 0;
}

static int unload_model(void **state)
{
    (void)state;
    bt_model_destroy(model);
    return 0;
}

/* The command's status is BT_OK: another worker has the blocks. */
static void release(fixture *f, job *j)
{
    const bt_decode_command command = {.kind = BT_DECODE_COMMAND_RELEASE, .seq = j->seq};
    f->side.table.command(f->side.table.ctx, &command);
    drain(f);
}

static void run_to_the_end(fixture *f, const job *j)
{
    while (!j->done) {
        assert_true(step(f));
    }
}

static void parked_sequence_keeps_its_blocks_and_stands_still(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 40);
    job *j = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 30, 20);
    while (j->n_tokens < 5) {
        assert_true(step(&f));
    }
    tell(&f, BT_DECODE_COMMAND_PARK, j);
    assert_int_equal(j->n_parked, 1);
    assert_int_equal(j->parked, BT_OK);
    assert_int_equal(j->n_lent, 30 + 5 - 1); /* the last token has no K and V yet */
    assert_int_equal(j->seq->n_computed, 34);
    const uint32_t n_blocks = j->seq->n_blocks;
    assert_true(n_blocks >= 3);
    assert_false(step(&f));
    assert_int_equal(f.stats.n_parked, 1);
    assert_int_equal(f.stats.n_running, 0);
    assert_int_equal(f.stats.blocks_free + f.stats.blocks_cached, 40 - n_blocks);
    /* Others need room: it yields nothing. */
    job *large = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 390, 200);
    for (int i = 0; i < 3; i++) {
        (void)step(&f);
    }
    assert_int_equal(j->seq->n_blocks, n_blocks);
    tell(&f, BT_DECODE_COMMAND_CANCEL, large);
    release(&f, j);
    assert_true(j->done);
    assert_int_equal(j->status, BT_OK);
    (void)step(&f);
    assert_int_equal(f.stats.n_handed_over, 1);
    assert_int_equal(f.stats.n_parked, 0);
    assert_int_equal(f.stats.blocks_free + f.stats.blocks_cached, 40);
    close_fixture(&f);
}

static void resumed_sequence_goes_on_with_the_same_tokens(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 40);
    job *undisturbed = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 30, 20);
    run_to_the_end(&f, undisturbed);
    job *j = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 0, 30, 20);
    for (uint32_t n = 1; n < 20; n += 3) {
        while (j->n_tokens < n) {
            assert_true(step(&f));
        }
        tell(&f, BT_DECODE_COMMAND_PARK, j);
        assert_int_equal(j->parked, BT_OK);
        assert_false(step(&f));
        tell(&f, BT_DECODE_COMMAND_RESUME, j);
    }
    run_to_the_end(&f, j);
    assert_int_equal(j->n_tokens, 20);
    assert_memory_equal(j->tokens, undisturbed->tokens, 20 * sizeof j->tokens[0]);
    close_fixture(&f);
}

static void what_has_nothing_to_hand_over_is_not_parked(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 40);
    job *pulled = run(&f, BT_DECODE_COMMAND_RUN_PULL, 0, 50, 5);
    tell(&f, BT_DECODE_COMMAND_PARK, pulled); /* waits */
    assert_int_equal(pulled->parked, BT_AGAIN);
    (void)step(&f);
    assert_true(pulled->lent);
    tell(&f, BT_DECODE_COMMAND_PARK, pulled);
    assert_int_equal(pulled->parked, BT_AGAIN);
    tell(&f, BT_DECODE_COMMAND_PULL_DROPPED, pulled);
    assert_true(pulled->done);
    job *whole = run(&f, BT_DECODE_COMMAND_RUN_WHOLE, 60, 100, 5);
    (void)step(&f); /* one chunk of its prompt */
    tell(&f, BT_DECODE_COMMAND_PARK, whole);
    assert_int_equal(whole->parked, BT_AGAIN);
    run_to_the_end(&f, whole);
    assert_int_equal(whole->n_tokens, 5);
    close_fixture(&f);
}

static void first_token_of_a_pull_can_be_handed_on_at_once(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 40);
    job *j = run(&f, BT_DECODE_COMMAND_RUN_PULL, 0, 50, 5);
    (void)step(&f);
    tell(&f, BT_DECODE_COMMAND_PULLED, j);
    tell(&f, BT_DECODE_COMMAND_PARK, j);
    assert_int_equal(j->parked, BT_OK);
    assert_int_equal(j->n_lent, 50);
    tell(&f, BT_DECODE_COMMAND_CANCEL, j); /* nobody was offered it */
    assert_int_equal(j->status, BT_ECANCELLED);
    (void)step(&f);
    assert_int_equal(f.stats.n_parked, 0);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_requests_run_to_their_end),
        cmocka_unit_test(pull_lends_prompt_and_first_decode_block),
        cmocka_unit_test(cancelled_pull_keeps_its_blocks_until_it_is_over),
        cmocka_unit_test(first_token_that_ends_a_request_ends_it),
        cmocka_unit_test(blocks_of_other_numerics_get_no_identity),
        cmocka_unit_test(newest_is_preempted_and_gives_the_same_tokens),
        cmocka_unit_test(decode_goes_on_beside_a_long_prefill),
        cmocka_unit_test(what_never_fits_is_refused),
        cmocka_unit_test(cancel_ends_waiting_and_running_at_once),
        cmocka_unit_test(smaller_request_in_the_sequence_of_one_that_found_no_room_gets_in),
        cmocka_unit_test(parked_sequence_keeps_its_blocks_and_stands_still),
        cmocka_unit_test(resumed_sequence_goes_on_with_the_same_tokens),
        cmocka_unit_test(what_has_nothing_to_hand_over_is_not_parked),
        cmocka_unit_test(first_token_of_a_pull_can_be_handed_on_at_once),
    };
    return cmocka_run_group_tests(tests, load_model, unload_model);
}
