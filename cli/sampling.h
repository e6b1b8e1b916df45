/* SPDX-License-Identifier: Apache-2.0 */
/* sampling.h - the options of a generation, shared by the commands that generate.
 *
 * Threading: one thread. Memory: none.
 */
#ifndef BT_CLI_SAMPLING_H
#define BT_CLI_SAMPLING_H

#include "common/config.h"
#include "common/json.h"
#include "proto/generation.pb-c.h"

typedef struct bt_sampling_options {
    double temperature;
    int64_t top_k;
    double top_p;
    double min_p;
    double repetition_penalty;
    double presence_penalty;
    double frequency_penalty;
    int64_t seed; /* negative: the router draws one */
    int64_t max_tokens;
    bt_config_list stop;
    bool ignore_eos;
} bt_sampling_options;

/* Rows of an option table; `member` is the bt_sampling_options inside `owner`. */
#define BT_SAMPLING_ROW(owner, member, field)                                                      \
    (offsetof(owner, member) + offsetof(bt_sampling_options, field))

#define BT_SAMPLING_CONFIG_ROWS(owner, member)                                                     \
    {.name = "temperature",                                                                        \
     .type = BT_CONFIG_FLOAT,                                                                      \
     .group = "Sampling",                                                                          \
     .fallback = "0",                                                                              \
     .float_min = 0,                                                                               \
     .float_max = 2,                                                                               \
     .help = "0 takes the likeliest token; higher is more varied.",                                \
     .offset = BT_SAMPLING_ROW(owner, member, temperature)},                                       \
        {.name = "top-k",                                                                          \
         .type = BT_CONFIG_INT,                                                                    \
         .group = "Sampling",                                                                      \
         .fallback = "0",                                                                          \
         .min = 0,                                                                                 \
         .max = 1000000,                                                                           \
         .unit = "tokens",                                                                         \
         .help = "Only the K likeliest tokens; 0 is off.",                                         \
         .offset = BT_SAMPLING_ROW(owner, member, top_k)},                                         \
        {.name = "top-p",                                                                          \
         .type = BT_CONFIG_FLOAT,                                                                  \
         .group = "Sampling",                                                                      \
         .fallback = "1",                                                                          \
         .float_min = 0.0001,                                                                      \
         .float_max = 1,                                                                           \
         .help = "Only the likeliest tokens that reach this probability together; 1 is off.",      \
         .offset = BT_SAMPLING_ROW(owner, member, top_p)},                                         \
        {.name = "min-p",                                                                          \
         .type = BT_CONFIG_FLOAT,                                                                  \
         .group = "Sampling",                                                                      \
         .fallback = "0",                                                                          \
         .float_min = 0,                                                                           \
         .float_max = 0.9999,                                                                      \
         .help = "Only tokens at least this likely relative to the likeliest; 0 is off.",          \
         .offset = BT_SAMPLING_ROW(owner, member, min_p)},                                         \
        {.name = "repetition-penalty",                                                             \
         .type = BT_CONFIG_FLOAT,                                                                  \
         .group = "Sampling",                                                                      \
         .fallback = "1",                                                                          \
         .float_min = 0.01,                                                                        \
         .float_max = 2,                                                                           \
         .help = "Above 1 makes tokens of prompt and output less likely; 1 is off.",               \
         .offset = BT_SAMPLING_ROW(owner, member, repetition_penalty)},                            \
        {.name = "presence-penalty",                                                               \
         .type = BT_CONFIG_FLOAT,                                                                  \
         .group = "Sampling",                                                                      \
         .fallback = "0",                                                                          \
         .float_min = -2,                                                                          \
         .float_max = 2,                                                                           \
         .help = "Taken once from the logit of each token that was generated.",                    \
         .offset = BT_SAMPLING_ROW(owner, member, presence_penalty)},                              \
        {.name = "frequency-penalty",                                                              \
         .type = BT_CONFIG_FLOAT,                                                                  \
         .group = "Sampling",                                                                      \
         .fallback = "0",                                                                          \
         .float_min = -2,                                                                          \
         .float_max = 2,                                                                           \
         .help = "Taken from a token's logit for each time that it was generated.",                \
         .offset = BT_SAMPLING_ROW(owner, member, frequency_penalty)},                             \
        {.name = "seed",                                                                           \
         .type = BT_CONFIG_INT,                                                                    \
         .group = "Sampling",                                                                      \
         .min = -1,                                                                                \
         .max = INT64_MAX,                                                                         \
         .help =                                                                                   \
             "The same seed, prompt and model give the same tokens. The router draws one if not "  \
             "given, and tells it.",                                                               \
         .offset = BT_SAMPLING_ROW(owner, member, seed)},                                          \
        {.name = "max-tokens",                                                                     \
         .type = BT_CONFIG_INT,                                                                    \
         .group = "Sampling",                                                                      \
         .fallback = "256",                                                                        \
         .min = 1,                                                                                 \
         .max = 1000000,                                                                           \
         .unit = "tokens",                                                                         \
         .help = "At most so many new tokens.",                                                    \
         .offset = BT_SAMPLING_ROW(owner, member, max_tokens)},                                    \
        {.name = "stop",                                                                           \
         .type = BT_CONFIG_STRINGS,                                                                \
         .group = "Sampling",                                                                      \
         .placeholder = "TEXT",                                                                    \
         .help = "The answer ends before this text. May be given again.",                          \
         .offset = BT_SAMPLING_ROW(owner, member, stop)},                                          \
    {                                                                                              \
        .name = "ignore-eos", .type = BT_CONFIG_BOOL, .group = "Sampling", .fallback = "false",    \
        .help = "Goes on after the model's end of text.",                                          \
        .offset = BT_SAMPLING_ROW(owner, member, ignore_eos)                                       \
    }

/* Fills *out from the options; it borrows their strings. */
void bt_sampling_fill(const bt_sampling_options *options, Baton__V1__Sampling *out);

/* Prints the line that says who did a request and how long it took:
 * "prefill-0 -> decode-0 over shm: 3 blocks, 1.1 MB moved; TTFT 41 ms, TPOT 9.8 ms, ...". */
void bt_sampling_print_finish(const Baton__V1__Finish *finish, FILE *to);

/* The same as members "finish_reason", "usage", "timings" and "route" of an open JSON object. */
void bt_sampling_write_finish(const Baton__V1__Finish *finish, bt_json_writer *w);

#endif /* BT_CLI_SAMPLING_H */
