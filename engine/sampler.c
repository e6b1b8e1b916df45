/* SPDX-License-Identifier: Apache-2.0 */
/* How it works. `work` holds the adjusted logits of the row. Greedy takes its maximum. A draw
 * builds the list of candidates (ids with a finite logit), narrows it, and walks the cumulative
 * sum of exp((logit - max) / temperature) in list order until it passes u times the total.
 * Without top-k and top-p the list stays in id order, which needs no sort; otherwise a heap
 * gives candidates by (logit descending, id ascending), only as many as are needed. */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

struct bt_sampler {
    uint32_t n_vocab;
    float *work;         /* [n_vocab] adjusted logits */
    int32_t *candidates; /* [n_vocab] ids with a finite logit; a heap while ranking */
    int32_t *ranked;     /* [n_vocab] ids that may be drawn, in the order of the draw */
    double *weights;     /* [n_vocab] weights of ranked[] */
    uint32_t *counts;    /* [n_vocab] occurrences in the output, zero between calls */
    uint8_t *seen;       /* [n_vocab] occurs in prompt or output, zero between calls */
};

static const uint32_t philox_m0 = 0xD2511F53U;
static const uint32_t philox_m1 = 0xCD9E8D57U;
static const uint32_t philox_w0 = 0x9E3779B9U;
static const uint32_t philox_w1 = 0xBB67AE85U;

void bt_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4];
    memcpy(c, counter, sizeof c);
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)philox_m0 * c[0];
        const uint64_t p1 = (uint64_t)philox_m1 * c[2];
        const uint32_t next[4] = {
            (uint32_t)(p1 >> 32) ^ c[1] ^ k0,
            (uint32_t)p1,
            (uint32_t)(p0 >> 32) ^ c[3] ^ k1,
            (uint32_t)p0,
        };
        memcpy(c, next, sizeof c);
        k0 += philox_w0;
        k1 += philox_w1;
    }
    memcpy(out, c, sizeof c);
}

double bt_sampler_uniform(uint64_t seed, uint64_t position)
{
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t r[4];
    bt_philox4x32_10(counter, key, r);
    const uint64_t bits = ((uint64_t)r[0] << 21) ^ (r[1] >> 11);
    return (double)(bits & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

/* e^x for x <= 0, the same bits on every machine: x = n ln2 + r, |r| <= ln2 / 2, and a Taylor
 * polynomial of degree 12 in r (relative error below 1e-15). */
static double exp_of(double x)
{
    if (!(x > -700.0)) {
        return 0.0;
    }
    const double n = floor(x * 1.4426950408889634 + 0.5);
    const double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    static const double coefficients[] = {
        1.0 / 479001600,
        1.0 / 39916800,
        1.0 / 3628800,
        1.0 / 362880,
        1.0 / 40320,
        1.0 / 5040,
        1.0 / 720,
        1.0 / 120,
        1.0 / 24,
        1.0 / 6,
        1.0 / 2,
        1.0,
        1.0,
    };
    double sum = 0.0;
    for (size_t i = 0; i < BT_ARRAY_LEN(coefficients); i++) {
        sum = sum * r + coefficients[i];
    }
    return ldexp(sum, (int)n);
}

bt_status bt_sampler_create(uint32_t n_vocab, bt_sampler **out)
{
    if (n_vocab == 0 || n_vocab > INT32_MAX) {
        return BT_EINVAL;
    }
    bt_sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler) {
        return BT_ENOMEM;
    }
    sampler->n_vocab = n_vocab;
    sampler->work = malloc(n_vocab * sizeof *sampler->work);
    sampler->candidates = malloc(n_vocab * sizeof *sampler->candidates);
    sampler->ranked = malloc(n_vocab * sizeof *sampler->ranked);
    sampler->weights = malloc(n_vocab * sizeof *sampler->weights);
    sampler->counts = calloc(n_vocab, sizeof *sampler->counts);
    sampler->seen = calloc(n_vocab, sizeof *sampler->seen);
    if (!sampler->work || !sampler->candidates || !sampler->ranked || !sampler->weights ||
        !sampler->counts || !sampler->seen) {
        bt_sampler_destroy(sampler);
        return BT_ENOMEM;
    }
    *out = sampler;
    return BT_OK;
}

void bt_sampler_destroy(bt_sampler *sampler)
{
    if (!sampler) {
        return;
    }
    free(sampler->work);
    free(sampler->candidates);
    free(sampler->ranked);
    free(sampler->weights);
    free(sampler->counts);
    free(sampler->seen);
    free(sampler);
}

static void add_bias(bt_sampler *sampler, const bt_sampling *sampling)
{
    for (uint32_t i = 0; i < sampling->n_logit_bias; i++) {
        const int32_t token = sampling->logit_bias[i].token;
        if (token >= 0 && (uint32_t)token < sampler->n_vocab) {
            sampler->work[token] += sampling->logit_bias[i].bias;
        }
    }
}

static void penalize(bt_sampler *sampler, const bt_sampler_input *input,
                     const bt_sampling *sampling)
{
    const bool repetition = sampling->repetition_penalty != 1.0F;
    if (!repetition && sampling->presence_penalty == 0.0F && sampling->frequency_penalty == 0.0F) {
        return;
    }
    for (uint32_t i = 0; i < input->n_tokens; i++) {
        const int32_t token = input->tokens[i];
        sampler->seen[token] = 1;
        sampler->counts[token] += i >= input->n_prompt;
    }
    for (uint32_t i = 0; i < input->n_tokens; i++) {
        const int32_t token = input->tokens[i];
        if (!sampler->seen[token]) {
            continue;
        }
        float logit = sampler->work[token];
        if (repetition) {
            logit = logit > 0.0F ? logit / sampling->repetition_penalty
                                 : logit * sampling->repetition_penalty;
        }
        if (sampler->counts[token] > 0) {
            logit -= sampling->presence_penalty +
                     sampling->frequency_penalty * (float)sampler->counts[token];
        }
        sampler->work[token] = logit;
        sampler->seen[token] = 0;
        sampler->counts[token] = 0;
    }
}

static void bar(bt_sampler *sampler, int32_t token)
{
    if (token >= 0 && (uint32_t)token < sampler->n_vocab) {
        sampler->work[token] = -INFINITY;
    }
}

static void bar_early_stops(bt_sampler *sampler, const bt_sampler_input *input,
                            const bt_sampling *sampling)
{
    if (input->n_tokens - input->n_prompt >= sampling->min_tokens) {
        return;
    }
    for (uint32_t i = 0; i < input->n_eos; i++) {
        bar(sampler, input->eos[i]);
    }
    for (uint32_t i = 0; i < sampling->n_stop_tokens; i++) {
        bar(sampler, sampling->stop_tokens[i]);
    }
}

static int32_t argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    return (int32_t)best;
}

/* Candidate a comes before b. */
static bool precedes(const float *logits, int32_t a, int32_t b)
{
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

static void sift_down(const float *logits, int32_t *heap, uint32_t n, uint32_t at)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) {
            return;
        }
        if (child + 1 < n && precedes(logits, heap[child + 1], heap[child])) {
            child++;
        }
        if (!precedes(logits, heap[child], heap[at])) {
            return;
        }
        const int32_t moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
        at = child;
    }
}

static void build_heap(const float *logits, int32_t *heap, uint32_t n)
{
    for (uint32_t i = n / 2; i > 0; i--) {
        sift_down(logits, heap, n, i - 1);
    }
}

/* Takes the first candidate out of a heap of n; it lands in heap[n - 1]. */
static int32_t pop_heap(const float *logits, int32_t *heap, uint32_t n)
{
    const int32_t top = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    sift_down(logits, heap, n - 1, 0);
    return top;
}

static double draw_weight(const bt_sampler *sampler, int32_t token, double max, double inverse_t)
{
    return exp_of(((double)sampler->work[token] - max) * inverse_t);
}

/* Lists the finite candidates in id order with their weights; returns how many. */
static uint32_t list_candidates(bt_sampler *sampler, double max, double inverse_t, double *total)
{
    uint32_t n = 0;
    *total = 0.0;
    for (uint32_t i = 0; i < sampler->n_vocab; i++) {
        if (sampler->work[i] > -INFINITY) {
            sampler->candidates[n] = (int32_t)i;
            sampler->weights[n] = draw_weight(sampler, (int32_t)i, max, inverse_t);
            *total += sampler->weights[n];
            n++;
        }
    }
    return n;
}

/* Ranks the n listed candidates: at most top_k of them, cut where the cumulative mass of those k
 * reaches top_p. Fills ranked[] and weights[]; returns how many were kept. */
static uint32_t rank_candidates(bt_sampler *sampler, const bt_sampling *sampling, uint32_t n,
                                double max, double inverse_t, double total)
{
    const uint32_t k = sampling->top_k > 0 && sampling->top_k < n ? sampling->top_k : n;
    build_heap(sampler->work, sampler->candidates, n);
    /* Without top-k the mass is known, so that popping can stop as soon as it is reached. */
    const double stop_at = k == n ? (double)sampling->top_p * total : INFINITY;
    uint32_t kept = 0;
    double mass = 0.0;
    while (kept < k && (kept == 0 || mass < stop_at)) {
        const int32_t token = pop_heap(sampler->work, sampler->candidates, n - kept);
        sampler->ranked[kept] = token;
        sampler->weights[kept] = draw_weight(sampler, token, max, inverse_t);
        mass += sampler->weights[kept];
        kept++;
    }
    if (k < n && sampling->top_p < 1.0F) {
        const double target = (double)sampling->top_p * mass;
        double reached = 0.0;
        uint32_t cut = 0;
        while (cut < kept && (cut == 0 || reached < target)) {
            reached += sampler->weights[cut++];
        }
        kept = cut;
    }
    return kept;
}

/* Drops candidates whose weight is below min_p times the largest (Nguyen et al. 2024); the order
 * stays. */
static uint32_t drop_unlikely(bt_sampler *sampler, float min_p, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (sampler->weights[i] >= (double)min_p) { /* the largest weight is exp(0) = 1 */
            sampler->ranked[kept] = sampler->ranked[i];
            sampler->weights[kept] = sampler->weights[i];
            kept++;
        }
    }
    return kept;
}

static int32_t draw(bt_sampler *sampler, const bt_sampling *sampling, uint64_t position)
{
    const int32_t best = argmax(sampler->work, sampler->n_vocab);
    const double max = (double)sampler->work[best];
    const double inverse_t = 1.0 / (double)sampling->temperature;
    if (!isfinite(max)) {
        return best;
    }
    double total;
    uint32_t n = list_candidates(sampler, max, inverse_t, &total);
    if (sampling->top_k > 0 || sampling->top_p < 1.0F) {
        n = rank_candidates(sampler, sampling, n, max, inverse_t, total);
    } else {
        memcpy(sampler->ranked, sampler->candidates, n * sizeof *sampler->ranked);
    }
    if (sampling->min_p > 0.0F) {
        n = drop_unlikely(sampler, sampling->min_p, n);
    }
    total = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        total += sampler->weights[i];
    }
    const double target = bt_sampler_uniform(sampling->seed, position) * total;
    double reached = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        reached += sampler->weights[i];
        if (target < reached) {
            return sampler->ranked[i];
        }
    }
    return sampler->ranked[n - 1];
}

/* log(sum of exp(logits)), in id order. */
static double log_sum_exp(const float *logits, uint32_t n)
{
    const double max = (double)logits[argmax(logits, n)];
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        sum += exp_of((double)logits[i] - max);
    }
    return max + log(sum);
}

/* The N first tokens by rank, by insertion: N is at most 20. */
static void fill_top(const float *logits, uint32_t n_vocab, double lse, uint32_t n_top,
                     bt_token_result *out)
{
    int32_t top[BT_TOP_LOGPROBS_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        const int32_t token = (int32_t)i;
        if (n == n_top && !precedes(logits, token, top[n - 1])) {
            continue;
        }
        uint32_t at = n < n_top ? n++ : n - 1;
        while (at > 0 && precedes(logits, token, top[at - 1])) {
            top[at] = top[at - 1];
            at--;
        }
        top[at] = token;
    }
    out->n_top = n;
    for (uint32_t i = 0; i < n; i++) {
        out->top[i].token = top[i];
        out->top[i].logprob = (float)((double)logits[top[i]] - lse);
    }
}

void bt_sampler_score(bt_sampler *sampler, const float *logits, int32_t token,
                      const bt_sampling *sampling, bt_token_result *out)
{
    BT_ASSERT(token >= 0 && (uint32_t)token < sampler->n_vocab);
    out->token = token;
    out->has_logprob = sampling->logprobs;
    out->logprob = 0.0F;
    out->n_top = 0;
    if (!sampling->logprobs) {
        return;
    }
    const double lse = log_sum_exp(logits, sampler->n_vocab);
    out->logprob = (float)((double)logits[token] - lse);
    if (sampling->n_top_logprobs > 0) {
        const uint32_t n_top = (uint32_t)bt_size_min(
            sampling->n_top_logprobs, bt_size_min(BT_TOP_LOGPROBS_MAX, sampler->n_vocab));
        fill_top(logits, sampler->n_vocab, lse, n_top, out);
    }
}

void bt_sampler_sample(bt_sampler *sampler, const bt_sampler_input *input,
                       const bt_sampling *sampling, bt_token_result *out)
{
    BT_ASSERT(input->n_prompt <= input->n_tokens);
    memcpy(sampler->work, input->logits, sampler->n_vocab * sizeof *sampler->work);
    add_bias(sampler, sampling);
    penalize(sampler, input, sampling);
    bar_early_stops(sampler, input, sampling);
    const int32_t token = sampling->temperature > 0.0F ? draw(sampler, sampling, input->n_tokens)
                                                       : argmax(sampler->work, sampler->n_vocab);
    bt_sampler_score(sampler, input->logits, token, sampling, out);
}

bool bt_sampler_is_stop(const bt_sampling *sampling, const int32_t *eos, uint32_t n_eos,
                        int32_t token)
{
    for (uint32_t i = 0; i < n_eos && !sampling->ignore_eos; i++) {
        if (eos[i] == token) {
            return true;
        }
    }
    for (uint32_t i = 0; i < sampling->n_stop_tokens; i++) {
        if (sampling->stop_tokens[i] == token) {
            return true;
        }
    }
    return false;
}
