/* SPDX-License-Identifier: Apache-2.0 */
/* pair.h - a prefill and a decode scheduler in one thread, with a hand-over by copy.
 *
 * Drives the real schedulers, caches and model step by step, deterministically, and records for
 * each request its tokens and a hash of every row of logits that a token was sampled from. A
 * request may also be run alone, with a fresh cache: what every other way has to equal.
 *
 * Threading: one thread; the model's helpers compute. Memory: the heap; for tests.
 */
#ifndef BT_TESTS_SUPPORT_PAIR_H
#define BT_TESTS_SUPPORT_PAIR_H

#include "common/hash.h"
#include "decode/scheduler.h"
#include "engine/model.h"
#include "prefill/scheduler.h"

/* What came out of one request. */
typedef struct bt_pair_output {
    int32_t *tokens;  /* [n] */
    bt_hash128 *rows; /* [n] hash of the logits that each token was sampled from */
    uint32_t n;
    bt_finish_reason finish;
    bt_status status;
} bt_pair_output;

typedef struct bt_pair_request {
    const int32_t *prompt;
    uint32_t n_prompt;
    bt_sampling sampling;
    bool whole; /* prefill on the decode side too */
} bt_pair_request;

typedef struct bt_pair_options {
    bt_model *model;
    uint32_t prefill_blocks;
    uint32_t decode_blocks;
    uint32_t chunk;
    uint32_t token_budget;
    uint32_t running_max;
    bool cache; /* prefix reuse */
} bt_pair_options;

typedef struct bt_pair_counters {
    bt_prefill_stats prefill;
    bt_decode_stats decode;
} bt_pair_counters;

/* Runs `n` requests, at most `concurrency` at a time, to their ends; fills outputs[0..n-1]
 * (freed with bt_pair_output_free). Audits both pools at the end and aborts the test program when
 * a block is missing. */
void bt_pair_run(const bt_pair_options *options, const bt_pair_request *requests, uint32_t n,
                 uint32_t concurrency, bt_pair_output *outputs, bt_pair_counters *counters);

/* Runs one request alone: no scheduler, no reuse, its prompt as one chunk after another of the
 * model's largest step, then token by token. */
void bt_pair_run_alone(bt_model *model, const bt_pair_request *request, bt_pair_output *output);

void bt_pair_output_free(bt_pair_output *output);

#endif /* BT_TESTS_SUPPORT_PAIR_H */
