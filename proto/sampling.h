/* SPDX-License-Identifier: Apache-2.0 */
/* sampling.h - what one request asks of the sampler, and what a sampled token carries.
 *
 * Data only: the router fills it from a request, the link carries it, the engine
 * obeys it. Limits are those of the public API (docs/api.md).
 *
 * Threading: any thread (plain data). Memory: none.
 */
#ifndef BT_PROTO_SAMPLING_H
#define BT_PROTO_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

enum {
    BT_STOP_TOKENS_MAX = 16,
    BT_LOGIT_BIAS_MAX = 300, /* entries of a request, as OpenAI's API has it */
    BT_TOP_LOGPROBS_MAX = 20,
};

/* Names a request in every message of the cluster; with the attempt it names a transfer. */
typedef struct bt_request_id {
    uint64_t hi;
    uint64_t lo;
} bt_request_id;

typedef struct bt_logit_bias {
    int32_t token;
    float bias; /* added to the logit before anything else, [-100, 100] */
} bt_logit_bias;

typedef struct bt_sampling {
    float temperature;        /* [0, 2]; 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* (0, 1]; 1: off */
    float min_p;              /* [0, 1); 0: off */
    float repetition_penalty; /* (0, 2]; 1: off; prompt and output tokens */
    float presence_penalty;   /* [-2, 2]; output tokens */
    float frequency_penalty;  /* [-2, 2]; output tokens */
    uint64_t seed;            /* the router draws it when the client gave none */
    uint32_t min_tokens;      /* EOS and stop tokens can't be sampled before */
    uint32_t max_tokens;      /* at least 1; 0 with echo: score the prompt alone */
    bool ignore_eos;
    bool logprobs;          /* report each token's logprob */
    uint32_t n_top_logprobs; /* 0..BT_TOP_LOGPROBS_MAX, with logprobs */
    bool echo;              /* report the prompt's tokens first (with logprobs: scored) */
    uint32_t n_stop_tokens;
    int32_t stop_tokens[BT_STOP_TOKENS_MAX];
    uint32_t n_logit_bias;
    bt_logit_bias logit_bias[BT_LOGIT_BIAS_MAX];
} bt_sampling;

typedef struct bt_token_logprob {
    int32_t token;
    float logprob; /* natural log, of the model's own distribution (before temperature) */
} bt_token_logprob;

/* One token as sampled (or as echoed: then index counts prompt tokens). */
typedef struct bt_token_result {
    int32_t token;
    bool has_logprob; /* false for a prompt's first token and without logprobs */
    float logprob;
    uint32_t n_top; /* 0..BT_TOP_LOGPROBS_MAX, most likely first; ties: lower id first */
    bt_token_logprob top[BT_TOP_LOGPROBS_MAX];
} bt_token_result;

typedef enum bt_finish_reason {
    BT_FINISH_NONE,
    BT_FINISH_STOP,      /* EOS, stop token or stop string */
    BT_FINISH_LENGTH,    /* max_tokens or the model's context is used up */
    BT_FINISH_CANCELLED, /* client gone or deadline */
    BT_FINISH_ERROR,
} bt_finish_reason;

#endif /* BT_PROTO_SAMPLING_H */
