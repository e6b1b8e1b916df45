/* SPDX-License-Identifier: Apache-2.0 */
/* Proves what a prefill scheduler promises: order of arrival, the token budget, whole prompts
 * reserved or none, each (layer, block) announced exactly once and only when it was computed, and
 * blocks back on every way out. */
#include "prefill/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/side.h"

enum { N_BLOCKS = 20, BUDGET = 48, CHUNK = 32, SPANS = 8, PROMPT_MAX = 400, LAYERS = 3 };

typedef struct fixture {
    bt_side side;
    bt_prefill_scheduler *scheduler;
    bt_prefill_stats stats;
    bt_sequence *tokens[16]; /* sequences in the order of their first tokens */
    uint32_t n_tokens;
    uint32_t n_started;
    uint32_t n_done;
    bt_status done_status;
    uint8_t announced[LAYERS][N_BLOCKS]; /* of the sequence that was run last */
    int32_t prompt[PROMPT_MAX];
} fixture;

static bt_model *model; /* loaded once */

static void open_fixture(fixture *f)
{
    *f = (fixture){.n_tokens = 0};
    for (int32_t i = 0; i < PROMPT_MAX; i++) {
        f->prompt[i] = (i * 37 + 11) % 256;
    }
    const bt_side_options options = {
        .model = model,
        .n_blocks = N_BLOCKS,
        .rows_max = BUDGET,
        .spans_max = SPANS,
        .cache = true,
        .command_bytes = sizeof(bt_prefill_command),
        .event_bytes = sizeof(bt_prefill_event),
    };
    bt_side_open(&f->side, &options);
    const bt_prefill_scheduler_options scheduler = {
        .cache = f->side.cache,
        .engine = f->side.engine,
        .params = bt_model_get_params(model),
        .token_budget = BUDGET,
        .chunk = CHUNK,
        .computing_max = SPANS,
    };
    assert_int_equal(bt_prefill_scheduler_create(&scheduler, &f->scheduler), BT_OK);
    f->side.table = bt_prefill_scheduler_table(f->scheduler);
}

static void close_fixture(fixture *f)
{
    bt_prefill_scheduler_destroy(f->scheduler);
    bt_side_close(&f->side);
}

static void note_part(fixture *f, const bt_prefill_part *part)
{
    for (uint32_t l = part->layer_first; l < part->layer_first + part->n_layers; l++) {
        for (uint32_t b = part->block_first; b < part->block_first + part->n_blocks; b++) {
            assert_true(l < LAYERS && b < N_BLOCKS);
            f->announced[l][b]++;
        }
    }
}

static void drain(fixture *f)
{
    bt_prefill_event event;
    while (bt_engine_next_event(f->side.engine, &event)) {
        switch (event.kind) {
        case BT_PREFILL_EVENT_STARTED:
            f->n_started++;
            break;
        case BT_PREFILL_EVENT_PART:
            note_part(f, &event.u.part);
            break;
        case BT_PREFILL_EVENT_TOKEN:
            f->tokens[f->n_tokens++] = event.seq;
            break;
        case BT_PREFILL_EVENT_DONE:
            f->n_done++;
            f->done_status = event.status;
            bt_sequence_destroy(event.seq);
            break;
        case BT_PREFILL_EVENT_STATS:
            f->stats = event.u.stats;
            break;
        default:
            break;
        }
    }
}

static void tell(fixture *f, bt_prefill_command_kind kind, bt_sequence *seq)
{
    const bt_prefill_command command = {.kind = kind, .seq = seq};
    f->side.table.command(f->side.table.ctx, &command);
    drain(f);
}

static bt_sequence *run(fixture *f, uint32_t prompt_first, uint32_t n_prompt)
{
    bt_sequence *seq = bt_side_sequence(&f->side, f->prompt + prompt_first, n_prompt, 8);
    tell(f, BT_PREFILL_COMMAND_RUN, seq);
    return seq;
}

static uint32_t run_steps(fixture *f)
{
    uint32_t n = 0;
    while (bt_side_step(&f->side, NULL, NULL)) {
        assert_true(f->side.batch->n_rows <= BUDGET);
        for (uint32_t i = 0; i < f->side.batch->n_spans; i++) {
            assert_true(f->side.batch->spans[i].n_rows <= CHUNK);
        }
        drain(f);
        n++;
    }
    return n;
}

static void expect_announced(const fixture *f, uint32_t n_blocks)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t b = 0; b < N_BLOCKS; b++) {
            assert_int_equal(f->announced[l][b], b < n_blocks);
        }
    }
}

static void each_part_is_announced_once(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 15, 16, 17, 32, 100, 160};
    for (size_t i = 0; i < BT_ARRAY_LEN(lengths); i++) {
        fixture f;
        open_fixture(&f);
        bt_sequence *seq = run(&f, 0, lengths[i]);
        const uint32_t n_steps = run_steps(&f);
        assert_int_equal(n_steps, bt_div_ceil(lengths[i], CHUNK));
        assert_int_equal(f.n_tokens, 1);
        expect_announced(&f, (uint32_t)bt_div_ceil(lengths[i], BT_KV_BLOCK_TOKENS));
        assert_int_equal(f.stats.n_prefill_tokens, lengths[i]);
        assert_int_equal(f.stats.n_held, 1);
        assert_int_equal(f.n_done, 0); /* its blocks stay until RELEASE */
        tell(&f, BT_PREFILL_COMMAND_RELEASE, seq);
        assert_int_equal(f.n_done, 1);
        close_fixture(&f);
    }
}

static void cached_prefix_is_announced_and_not_computed(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    bt_sequence *first = run(&f, 0, 64);
    run_steps(&f);
    tell(&f, BT_PREFILL_COMMAND_RELEASE, first);
    memset(f.announced, 0, sizeof f.announced);
    bt_sequence *again = run(&f, 0, 64); /* all of it is cached: the last block is computed again */
    run_steps(&f);
    expect_announced(&f, 4);
    assert_int_equal(f.stats.n_cached_tokens, 48);
    assert_int_equal(f.stats.n_prefill_tokens, 64 + 16);
    tell(&f, BT_PREFILL_COMMAND_RELEASE, again);
    close_fixture(&f);
}

static void requests_are_served_in_order_and_share_steps(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    bt_sequence *seqs[3] = {run(&f, 0, 90), run(&f, 100, 20), run(&f, 200, 30)};
    run_steps(&f);
    assert_int_equal(f.n_tokens, 3);
    assert_ptr_equal(f.tokens[0], seqs[1]); /* fits beside the first one's chunks */
    for (size_t i = 0; i < 3; i++) {
        tell(&f, BT_PREFILL_COMMAND_RELEASE, seqs[i]);
    }
    close_fixture(&f);
}

static void full_pool_makes_the_next_wait_whole(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    bt_sequence *first = run(&f, 0, 12 * 16);
    bt_sequence *second = run(&f, 200, 10 * 16);
    run_steps(&f);
    assert_int_equal(f.n_started, 1);
    assert_int_equal(f.stats.n_waiting, 1);
    assert_int_equal(second->n_blocks, 0);                      /* nothing is held while it waits */
    assert_int_equal(f.stats.n_missed_tokens, first->n_prompt); /* looking while it waits is none */
    tell(&f, BT_PREFILL_COMMAND_RELEASE, first);
    run_steps(&f);
    assert_int_equal(f.n_started, 2);
    assert_int_equal(f.stats.n_missed_tokens, 12 * 16 + 10 * 16);
    tell(&f, BT_PREFILL_COMMAND_RELEASE, second);
    close_fixture(&f);
}

static void prompts_that_never_fit_are_refused(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    (void)run(&f, 0, (N_BLOCKS + 1) * 16);
    assert_int_equal(f.n_done, 1);
    assert_int_equal(f.done_status, BT_EEXHAUSTED);
    /* A retry: most of its tokens were generated before. */
    bt_sequence *resumed = bt_side_sequence(&f.side, f.prompt, (N_BLOCKS + 1) * 16, 400);
    resumed->n_prompt = 16;
    tell(&f, BT_PREFILL_COMMAND_RUN, resumed);
    assert_int_equal(f.n_done, 2);
    assert_int_equal(f.done_status, BT_EEXHAUSTED);
    close_fixture(&f);
}

static void cancel_gives_blocks_back_in_every_state(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    bt_sequence *computing = run(&f, 0, 12 * 16);
    bt_sequence *waiting = run(&f, 200, 10 * 16);
    assert_true(bt_side_step(&f.side, NULL, NULL));
    drain(&f);
    tell(&f, BT_PREFILL_COMMAND_CANCEL, waiting);
    assert_int_equal(f.n_done, 1);
    assert_int_equal(f.done_status, BT_ECANCELLED);
    tell(&f, BT_PREFILL_COMMAND_CANCEL, computing);
    assert_int_equal(f.n_done, 1); /* a peer may still read its blocks */
    assert_int_equal(run_steps(&f), 0);
    assert_int_equal(f.n_tokens, 0);
    tell(&f, BT_PREFILL_COMMAND_RELEASE, computing);
    assert_int_equal(f.n_done, 2);
    close_fixture(&f);
}

static void release_in_the_middle_stops_the_computation(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    bt_sequence *seq = run(&f, 0, 12 * 16);
    assert_true(bt_side_step(&f.side, NULL, NULL));
    drain(&f);
    tell(&f, BT_PREFILL_COMMAND_RELEASE, seq);
    assert_int_equal(f.n_done, 1);
    assert_int_equal(run_steps(&f), 0);
    close_fixture(&f);
}

static int load_model(void **state)
{
    (void)state;
    model = bt_side_load(&bt_tiny_model_odd, "auto", 1, BUDGET, SPANS);
    return 0;
}

static int unload_model(void **state)
{
    (void)state;
    bt_model_destroy(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_is_announced_once),
        cmocka_unit_test(cached_prefix_is_announced_and_not_computed),
        cmocka_unit_test(requests_are_served_in_order_and_share_steps),
        cmocka_unit_test(full_pool_makes_the_next_wait_whole),
        cmocka_unit_test(prompts_that_never_fit_are_refused),
        cmocka_unit_test(cancel_gives_blocks_back_in_every_state),
        cmocka_unit_test(release_in_the_middle_stops_the_computation),
    };
    return cmocka_run_group_tests(tests, load_model, unload_model);
}
