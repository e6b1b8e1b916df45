/* SPDX-License-Identifier: Apache-2.0 */
/* bench_load.h - the work of a benchmark: when each request is sent, its prompt, its length.
 *
 * Made whole before the first request leaves (open loop): arrivals do not wait for answers. The
 * same options give the same load, request by request.
 *
 * Traces: Azure LLM inference (CSV: TIMESTAMP,ContextTokens,GeneratedTokens) and Mooncake (one JSON
 * object a line: timestamp in ms, input_length, output_length, hash_ids, where equal ids of
 * 512-token blocks are equal prompt blocks; each such block becomes `hash_block_tokens` tokens).
 *
 * Threading: one thread. Memory: the heap.
 */
#ifndef BT_CLI_BENCH_LOAD_H
#define BT_CLI_BENCH_LOAD_H

#include "common/status.h"

typedef struct bt_bench_request {
    int64_t at_ns;    /* after the start */
    uint32_t *prompt; /* [n_prompt] token ids */
    uint32_t n_prompt;
    uint32_t n_output; /* tokens to generate */
} bt_bench_request;

typedef struct bt_bench_load {
    bt_bench_request *requests; /* [n] in order of at_ns */
    size_t n;
} bt_bench_load;

typedef struct bt_bench_range {
    uint32_t min;
    uint32_t max;
} bt_bench_range;

typedef struct bt_bench_load_options {
    size_t n_requests; /* at most, of a trace */
    double rate;       /* requests a second, Poisson; 0: the trace's own times, or all at once */
    double time_scale; /* own times of a trace are multiplied by it */
    const char *trace; /* file; NULL: lengths are drawn from the ranges */
    uint32_t length_divisor; /* of a trace's lengths, at least 1 */
    bt_bench_range prompt;   /* drawn evenly, or the bounds of a trace's lengths */
    bt_bench_range output;
    uint32_t hash_block_tokens;
    uint32_t n_shared; /* first tokens that all prompts share */
    uint32_t n_vocab;  /* ids are drawn from 0 .. n_vocab - 1 */
    uint64_t seed;
} bt_bench_load_options;

/* BT_EINVAL, BT_EIO: the text names file and line. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_bench_load_make(const bt_bench_load_options *options, bt_bench_load *out,
                                           bt_error *err);
void bt_bench_load_free(bt_bench_load *load);

/* "N" or "A-B". BT_EINVAL. */
BT_MUST_CHECK bt_status bt_bench_range_parse(const char *text, bt_bench_range *out);

#endif /* BT_CLI_BENCH_LOAD_H */
