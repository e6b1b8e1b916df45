/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.h - one row of logits to one token.
 *
 * The draw uses a counter-based generator, Philox4x32-10 (Salmon et al., SC 2011), keyed by
 * (seed, position of the token), so a token does not depend on which worker samples it, in
 * which batch, or after how many retries. Penalties depend on the sequence's tokens alone.
 * Ties go to the lower id. Sums are double, in one fixed order, with an exponential of our own.
 *
 * Order of the steps: bias; repetition (Keskar et al., CTRL, section 4.1), presence and
 * frequency penalty; EOS and stop tokens barred before min_tokens; then greedy, or temperature,
 * top-k, top-p (Holtzman et al. 2020, section 3.1), min-p, draw. Reported logprobs are those of
 * the untouched logits.
 *
 * Threading: one thread for each sampler.
 * Memory:    create only.
 */
#ifndef BT_ENGINE_SAMPLER_H
#define BT_ENGINE_SAMPLER_H

#include "common/status.h"
#include "proto/sampling.h"

typedef struct bt_sampler bt_sampler;

/* What a token is sampled from. */
typedef struct bt_sampler_input {
    const float *logits;   /* [n_vocab] */
    const int32_t *tokens; /* [n_tokens]: the prompt, then what was generated */
    uint32_t n_tokens;
    uint32_t n_prompt;
    const int32_t *eos; /* [n_eos]: end-of-sequence tokens of the model */
    uint32_t n_eos;
} bt_sampler_input;

BT_MUST_CHECK bt_status bt_sampler_create(uint32_t n_vocab, bt_sampler **out);
void bt_sampler_destroy(bt_sampler *sampler);

/* Samples the token at position input->n_tokens. O(n_vocab + n_tokens). */
void bt_sampler_sample(bt_sampler *sampler, const bt_sampler_input *input,
                       const bt_sampling *sampling, bt_token_result *out);

/* Fills *out for a token that is given, not drawn (echo): its logprob and the top N. */
void bt_sampler_score(bt_sampler *sampler, const float *logits, int32_t token,
                      const bt_sampling *sampling, bt_token_result *out);

/* Uniform in [0, 1), 53 bits, of (seed, position). */
double bt_sampler_uniform(uint64_t seed, uint64_t position);

/* The generator itself, for its known-answer test. */
void bt_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Whether `token` ends the text: an EOS token that is not ignored, or a stop token. */
bool bt_sampler_is_stop(const bt_sampling *sampling, const int32_t *eos, uint32_t n_eos,
                        int32_t token);

#endif /* BT_ENGINE_SAMPLER_H */
