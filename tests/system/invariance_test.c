/* SPDX-License-Identifier: Apache-2.0 */
/* Same tokens, however they were computed (DESIGN.md, section 1). Each of 100 random requests is
 * run alone, and then with 31 others through a prefill and a decode scheduler with a hand-over
 * between them: chunks of 16, 64 and 512, prefix hits, partial pulls, preemption in a small pool, 1
 * and 2 threads. Token ids and the hashes of all rows of logits must be equal. Counters prove that
 * what was to happen did happen. On every kernel path of this CPU, on two random-weight models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/pair.h"
#include "tests/support/side.h"
#include "tests/support/tiny_model.h"

#ifdef BT_SLOW_CHECKS /* sanitizers: many times slower, and what they look for shows in fewer */
enum { N_REQUESTS = 48 };
#else
enum { N_REQUESTS = 100 };
#endif

enum {
    CONCURRENCY = 32,
    PROMPT_MAX = 300,
    SHARED_PREFIXES = 4,
    PATHS_MAX = 8,
    ROWS_MAX = 600,
};

typedef struct request_set {
    int32_t prompts[N_REQUESTS][PROMPT_MAX];
    bt_pair_request requests[N_REQUESTS];
} request_set;

/* A generator of its own, so that the set is the same everywhere. */
static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % n);
}

static bt_sampling draw_sampling(uint64_t *state)
{
    static const float temperatures[] = {0.0F, 0.3F, 0.8F, 1.0F, 1.5F};
    bt_sampling s = {
        .temperature = temperatures[draw(state, 5)],
        .top_p = draw(state, 2) ? 1.0F : 0.9F,
        .top_k = draw(state, 2) ? 0 : 20,
        .repetition_penalty = draw(state, 3) ? 1.0F : 1.2F,
        .frequency_penalty = draw(state, 3) ? 0.0F : 0.5F,
        .seed = draw(state, 1U << 30),
        .max_tokens = 1 + draw(state, 40),
        .ignore_eos = draw(state, 4) == 0,
    };
    return s;
}

static request_set *make_requests(void)
{
    request_set *set = calloc(1, sizeof *set);
    assert_non_null(set);
    uint64_t state = 20261129;
    int32_t prefixes[SHARED_PREFIXES][PROMPT_MAX];
    for (size_t i = 0; i < SHARED_PREFIXES; i++) {
        for (size_t j = 0; j < PROMPT_MAX; j++) {
            prefixes[i][j] = (int32_t)draw(&state, 256);
        }
    }
    for (size_t i = 0; i < N_REQUESTS; i++) {
        const uint32_t n_prompt = 1 + draw(&state, draw(&state, 3) ? 120 : PROMPT_MAX);
        const uint32_t n_shared = draw(&state, 3) ? draw(&state, n_prompt + 1) : 0;
        const uint32_t which = draw(&state, SHARED_PREFIXES);
        for (uint32_t j = 0; j < n_prompt; j++) {
            const int32_t fresh = (int32_t)draw(&state, 256);
            set->prompts[i][j] = j < n_shared ? prefixes[which][j] : fresh;
        }
        set->requests[i] = (bt_pair_request){
            .prompt = set->prompts[i],
            .n_prompt = n_prompt,
            .sampling = draw_sampling(&state),
            .whole = draw(&state, 5) == 0,
        };
    }
    return set;
}

static void expect_same(const bt_pair_output *alone, const bt_pair_output *other, size_t request,
                        const char *what)
{
    if (other->status != BT_OK || other->n != alone->n || other->finish != alone->finish) {
        fail_msg("%s: request %zu: %u tokens, status %d, finish %d where %u tokens, finish %d were "
                 "expected",
                 what, request, other->n, (int)other->status, (int)other->finish, alone->n,
                 (int)alone->finish);
    }
    for (uint32_t i = 0; i < alone->n; i++) {
        if (alone->tokens[i] != other->tokens[i] ||
            !bt_hash128_equal(alone->rows[i], other->rows[i])) {
            fail_msg("%s: request %zu differs first at token %u: %d where %d was expected%s", what,
                     request, i, other->tokens[i], alone->tokens[i],
                     alone->tokens[i] == other->tokens[i] ? " (logits differ)" : "");
        }
    }
}

typedef struct variant {
    uint32_t chunk;
    uint32_t token_budget;
    uint32_t decode_blocks;
    bool cache;
    bool expect_preemption;
} variant;

static const variant variants[] = {
    {.chunk = 16, .token_budget = 48, .decode_blocks = 800, .cache = true},
    {.chunk = 64,
     .token_budget = 160,
     .decode_blocks = 60,
     .cache = true,
     .expect_preemption = true},
    {.chunk = 512, .token_budget = 600, .decode_blocks = 800, .cache = false},
};

static void compare_variant(bt_model *model, const request_set *set, const bt_pair_output *alone,
                            const variant *v, const char *what)
{
    const bt_pair_options options = {
        .model = model,
        .prefill_blocks = 256,
        .decode_blocks = v->decode_blocks,
        .chunk = v->chunk,
        .token_budget = v->token_budget,
        .running_max = CONCURRENCY,
        .cache = v->cache,
    };
    bt_pair_output *outputs = calloc(N_REQUESTS, sizeof *outputs);
    assert_non_null(outputs);
    bt_pair_counters counters;
    bt_pair_run(&options, set->requests, N_REQUESTS, CONCURRENCY, outputs, &counters);
    for (size_t i = 0; i < N_REQUESTS; i++) {
        expect_same(&alone[i], &outputs[i], i, what);
        bt_pair_output_free(&outputs[i]);
    }
    free(outputs);
    assert_int_equal(counters.prefill.n_decode_tokens, 0);
    if (v->cache) {
        assert_true(counters.prefill.n_cached_tokens > 0);
        assert_true(counters.decode.n_cached_tokens > 0);
        assert_true(counters.decode.n_partial_pulls > 0);
    }
    if (v->expect_preemption) {
        assert_true(counters.decode.n_preemptions > 0);
        assert_true(counters.decode.n_recomputed_tokens > 0);
    }
}

static void run_path(const bt_tiny_model *tiny, const char *kernels)
{
    request_set *set = make_requests();
    bt_pair_output *alone = calloc(N_REQUESTS, sizeof *alone);
    assert_non_null(alone);
    for (uint32_t n_threads = 1; n_threads <= 2; n_threads++) {
        bt_model *model = bt_side_load(tiny, kernels, n_threads, ROWS_MAX, CONCURRENCY);
        for (size_t i = 0; i < N_REQUESTS && n_threads == 1; i++) {
            bt_pair_run_alone(model, &set->requests[i], &alone[i]);
        }
        for (size_t i = 0; i < BT_ARRAY_LEN(variants); i++) {
            char what[128];
            (void)snprintf(what, sizeof what, "%s, %u threads, chunk %u", kernels, n_threads,
                           variants[i].chunk);
            compare_variant(model, set, alone, &variants[i], what);
        }
        bt_model_destroy(model);
    }
    for (size_t i = 0; i < N_REQUESTS; i++) {
        bt_pair_output_free(&alone[i]);
    }
    free(alone);
    free(set);
}

static void run_all_paths(const bt_tiny_model *tiny)
{
    const char *paths[PATHS_MAX];
    const size_t n = bt_cpu_backend_paths(paths, PATHS_MAX);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(paths[i], "reference") != 0) {
            run_path(tiny, paths[i]);
        }
    }
}

static void odd_widths_give_the_same_tokens_on_every_way(void **state)
{
    (void)state;
    run_all_paths(&bt_tiny_model_odd);
}

static void grouped_heads_give_the_same_tokens_on_every_way(void **state)
{
    (void)state;
    run_all_paths(&bt_tiny_model_wide);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_widths_give_the_same_tokens_on_every_way),
        cmocka_unit_test(grouped_heads_give_the_same_tokens_on_every_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
