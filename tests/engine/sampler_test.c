/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the generator against published vectors, every filter against a brute-force version that
 * sorts the whole vocabulary in long double, and that a draw depends on (seed, position) alone. */
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 97, N_TRIALS = 2000 };

static const bt_sampling plain = {
    .temperature = 1.0F, .top_p = 1.0F, .repetition_penalty = 1.0F, .max_tokens = 8};

/* Random123 1.09, kat_vectors: philox4x32 10. */
static void philox_gives_the_published_numbers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(vectors); i++) {
        uint32_t out[4];
        bt_philox4x32_10(vectors[i].counter, vectors[i].key, out);
        assert_memory_equal(out, vectors[i].want, sizeof out);
    }
}

static float random_logit(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(*state >> 40) / 0x1p24 * 12.0 - 6.0);
}

typedef struct candidate {
    int32_t token;
    long double logit;
    long double weight;
} candidate;

static int by_rank(const void *a, const void *b)
{
    const candidate *x = a;
    const candidate *y = b;
    if (x->logit != y->logit) {
        return x->logit > y->logit ? -1 : 1;
    }
    return x->token - y->token;
}

static int by_token(const void *a, const void *b)
{
    return ((const candidate *)a)->token - ((const candidate *)b)->token;
}

/* Sorts everything, filters, walks. Returns a token, or -1 when u is too near a border to tell. */
static int32_t brute_force(const float *logits, const bt_sampling *s, double u)
{
    candidate all[N_VOCAB];
    long double max = -INFINITY;
    for (int32_t i = 0; i < N_VOCAB; i++) {
        all[i] = (candidate){.token = i, .logit = (long double)logits[i]};
        max = all[i].logit > max ? all[i].logit : max;
    }
    for (size_t i = 0; i < N_VOCAB; i++) {
        all[i].weight = expl((all[i].logit - max) / (long double)s->temperature);
    }
    qsort(all, N_VOCAB, sizeof *all, by_rank);
    size_t n = s->top_k > 0 && s->top_k < N_VOCAB ? s->top_k : N_VOCAB;
    const bool ranked = s->top_k > 0 || s->top_p < 1.0F;
    long double total = 0;
    for (size_t i = 0; i < n; i++) {
        total += all[i].weight;
    }
    long double mass = 0;
    for (size_t i = 0; i < n && s->top_p < 1.0F; i++) {
        mass += all[i].weight;
        if (fabsl(mass - (long double)s->top_p * total) < 1e-9L) {
            return -1;
        }
        if (mass >= (long double)s->top_p * total) {
            n = i + 1;
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (all[i].weight >= (long double)s->min_p) {
            all[kept++] = all[i];
        }
    }
    if (!ranked) {
        qsort(all, kept, sizeof *all, by_token);
    }
    total = 0;
    for (size_t i = 0; i < kept; i++) {
        total += all[i].weight;
    }
    mass = 0;
    for (size_t i = 0; i < kept; i++) {
        mass += all[i].weight;
        if (fabsl(mass - (long double)u * total) < 1e-9L) {
            return -1;
        }
        if ((long double)u * total < mass) {
            return all[i].token;
        }
    }
    return -1;
}

static void compare_with_brute_force(const bt_sampling *base)
{
    bt_sampler *sampler;
    assert_int_equal(bt_sampler_create(N_VOCAB, &sampler), BT_OK);
    uint64_t state = 42;
    size_t n_compared = 0;
    for (uint32_t trial = 0; trial < N_TRIALS; trial++) {
        float logits[N_VOCAB];
        int32_t tokens[N_TRIALS] = {0};
        for (size_t i = 0; i < N_VOCAB; i++) {
            logits[i] = random_logit(&state);
        }
        bt_sampling s = *base;
        s.seed = trial / 7;
        const uint32_t position = 1 + trial;
        const bt_sampler_input input = {
            .logits = logits, .tokens = tokens, .n_tokens = position, .n_prompt = position};
        const int32_t want = brute_force(logits, &s, bt_sampler_uniform(s.seed, position));
        bt_token_result got;
        bt_sampler_sample(sampler, &input, &s, &got);
        if (want >= 0) {
            assert_int_equal(got.token, want);
            n_compared++;
        }
    }
    assert_true(n_compared > N_TRIALS - 20);
    bt_sampler_destroy(sampler);
}

static void draws_equal_a_full_sort(void **state)
{
    (void)state;
    bt_sampling s = plain;
    compare_with_brute_force(&s);
    s.temperature = 0.4F;
    compare_with_brute_force(&s);
    s.top_k = 5;
    compare_with_brute_force(&s);
    s.top_p = 0.8F;
    compare_with_brute_force(&s);
    s.top_k = 0;
    compare_with_brute_force(&s);
    s.min_p = 0.05F;
    compare_with_brute_force(&s);
    s.top_p = 1.0F;
    compare_with_brute_force(&s);
}

static void greedy_takes_the_lower_id_of_a_tie(void **state)
{
    (void)state;
    float logits[N_VOCAB] = {0};
    logits[60] = 3.0F;
    logits[17] = 3.0F;
    const int32_t tokens[1] = {0};
    bt_sampler *sampler;
    assert_int_equal(bt_sampler_create(N_VOCAB, &sampler), BT_OK);
    bt_sampling s = plain;
    s.temperature = 0.0F;
    const bt_sampler_input input = {
        .logits = logits, .tokens = tokens, .n_tokens = 1, .n_prompt = 1};
    bt_token_result got;
    bt_sampler_sample(sampler, &input, &s, &got);
    assert_int_equal(got.token, 17);
    bt_sampler_destroy(sampler);
}

static void penalties_change_only_tokens_that_occurred(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    for (size_t i = 0; i < N_VOCAB; i++) {
        logits[i] = -1.0F;
    }
    logits[3] = 2.0F;  /* in the prompt */
    logits[4] = 1.95F; /* twice in the output */
    logits[5] = 1.5F;  /* nowhere */
    const int32_t tokens[] = {3, 9, 4, 4};
    const bt_sampler_input input = {
        .logits = logits, .tokens = tokens, .n_tokens = 4, .n_prompt = 2};
    bt_sampler *sampler;
    assert_int_equal(bt_sampler_create(N_VOCAB, &sampler), BT_OK);
    bt_token_result got;
    bt_sampling s = plain;
    s.temperature = 0.0F;
    s.frequency_penalty = 0.3F;
    bt_sampler_sample(sampler, &input, &s, &got);
    assert_int_equal(got.token, 3); /* prompt tokens are not counted: 2.0 stays the best */
    logits[3] = 1.4F;
    bt_sampler_sample(sampler, &input, &s, &got);
    assert_int_equal(got.token, 5); /* 1.95 - 2 * 0.3 < 1.5 */
    s.frequency_penalty = 0.0F;
    s.presence_penalty = 0.3F;
    bt_sampler_sample(sampler, &input, &s, &got);
    assert_int_equal(got.token, 4); /* 1.95 - 0.3 > 1.5: once, not twice */
    s.presence_penalty = 0.0F;
    s.repetition_penalty = 1.4F;
    bt_sampler_sample(sampler, &input, &s, &got);
    assert_int_equal(got.token, 5); /* 1.95 / 1.4 < 1.5 */
    bt_sampler_destroy(sampler);
}

static void bias_and_min_tokens_bar_tokens(void **state)
{
    (void)state;
    float logits[N_VOCAB] = {0};
    logits[7] = 5.0F;
    logits[8] = 4.0F;
    logits[9] = 3.0F;
    const int32_t tokens[] = {1, 2};
    const int32_t eos[] = {7};
    bt_sampler_input input = {
        .logits = logits, .tokens = tokens, .n_tokens = 2, .n_prompt = 1, .eos = eos, .n_eos = 1};
    bt_sampler *sampler;
    assert_int_equal(bt_sampler_create(N_VOCAB, &sampler), BT_OK);
    bt_token_result got;
    bt_sampling s = plain;
    s.temperature = 0.0F;
    s.n_stop_tokens = 1;
    s.stop_tokens[0] = 8;
    s.min_tokens = 2;
    bt_sampler_sample(sampler, &input, &s, &got);
    assert_int_equal(got.token, 9); /* one token so far: neither EOS nor stop token */
    s.min_tokens = 1;
    bt_sampler_sample(sampler, &input, &s, &got);
    assert_int_equal(got.token, 7);
    s.n_logit_bias = 1;
    s.logit_bias[0] = (bt_logit_bias){.token = 8, .bias = 2.0F};
    bt_sampler_sample(sampler, &input, &s, &got);
    assert_int_equal(got.token, 8);
    assert_true(bt_sampler_is_stop(&s, eos, 1, 7));
    assert_true(bt_sampler_is_stop(&s, eos, 1, 8));
    assert_false(bt_sampler_is_stop(&s, eos, 1, 9));
    s.ignore_eos = true;
    assert_false(bt_sampler_is_stop(&s, eos, 1, 7));
    bt_sampler_destroy(sampler);
}

static void logprobs_are_those_of_the_untouched_logits(void **state)
{
    (void)state;
    uint64_t random = 5;
    float logits[N_VOCAB];
    long double sum = 0;
    for (size_t i = 0; i < N_VOCAB; i++) {
        logits[i] = random_logit(&random);
        sum += expl((long double)logits[i]);
    }
    const int32_t tokens[] = {1};
    const bt_sampler_input input = {
        .logits = logits, .tokens = tokens, .n_tokens = 1, .n_prompt = 1};
    bt_sampler *sampler;
    assert_int_equal(bt_sampler_create(N_VOCAB, &sampler), BT_OK);
    bt_sampling s = plain;
    s.logprobs = true;
    s.n_top_logprobs = 20;
    s.temperature = 0.2F;
    s.n_logit_bias = 1;
    s.logit_bias[0] = (bt_logit_bias){.token = 50, .bias = 100.0F};
    bt_token_result got;
    bt_sampler_sample(sampler, &input, &s, &got);
    assert_int_equal(got.token, 50);
    assert_true(got.has_logprob);
    assert_float_equal(got.logprob, (float)((long double)logits[50] - logl(sum)), 1e-6F);
    assert_int_equal(got.n_top, 20);
    for (uint32_t i = 0; i < got.n_top; i++) {
        size_t n_better = 0;
        for (size_t j = 0; j < N_VOCAB; j++) {
            n_better += logits[j] > logits[got.top[i].token];
        }
        assert_int_equal(n_better, i);
    }
    bt_sampler_destroy(sampler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(draws_equal_a_full_sort),
        cmocka_unit_test(greedy_takes_the_lower_id_of_a_tie),
        cmocka_unit_test(penalties_change_only_tokens_that_occurred),
        cmocka_unit_test(bias_and_min_tokens_bar_tokens),
        cmocka_unit_test(logprobs_are_those_of_the_untouched_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
