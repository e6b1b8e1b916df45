/* SPDX-License-Identifier: Apache-2.0 */
/* bench prefix: what the prefix cache saves, and how much of the memory that sequences take is
 * used.
 *
 * Part one: conversations of several turns, each turn's prompt being all that was said before and a
 * new question, against a prefill and a decode worker, whole but in one process: once with the
 * prefix cache off, once with it on. The outputs must be the same; the time of computing prompts
 * from the second turn on is compared.
 *
 * Part two: the "chat" load, requests with the lengths of a trace arriving at random. Each decode
 * step has, for each running sequence, so many slots with K and V, in so many slots of its blocks;
 * both are summed over steps and sequences by the worker. Beside them stands a replay: what an
 * allocator would have taken that reserves contiguous memory of the longest length for each
 * sequence, in the same steps. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/program.h"
#include "common/log.h"
#include "tests/support/rig.h"

enum {
    TURNS_MAX = 16,
    CONVERSATIONS_MAX = 30,
    ROUNDS_MAX = 31,
    IN_MIN = 16, /* of the chat load, tokens */
    IN_MAX = 1024,
    OUT_MIN = 4,
    OUT_MAX = 256,
    LENGTH_DIVISOR = 4,
};

typedef struct prefix_options {
    const char *json;
    const char *model;
    const char *kernels;
    int64_t n_conversations;
    int64_t n_turns;
    int64_t n_rounds;
    int64_t system_tokens;
    int64_t user_tokens;
    int64_t answer_tokens;
    int64_t n_requests;
    double rate;
    const char *trace;
    int64_t seed;
} prefix_options;

#define FIELD(field) offsetof(prefix_options, field)

static const bt_config_option OPTIONS[] = {
    BT_PROGRAM_JSON_OPTION(prefix_options),
    BT_PROGRAM_MODEL_OPTION(prefix_options),
    BT_PROGRAM_KERNELS_OPTION(prefix_options),
    {.name = "conversations",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .fallback = "10",
     .min = 0,
     .max = CONVERSATIONS_MAX,
     .help = "Conversations; 0 leaves part one out.",
     .offset = FIELD(n_conversations)},
    {.name = "turns",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .fallback = "8",
     .min = 2,
     .max = TURNS_MAX,
     .help = "Turns of each.",
     .offset = FIELD(n_turns)},
    {.name = "rounds",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "rounds",
     .fallback = "3",
     .min = 1,
     .max = ROUNDS_MAX,
     .help = "Times that all of them run, without and with the cache by turns.",
     .offset = FIELD(n_rounds)},
    {.name = "system",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "tokens",
     .fallback = "512",
     .min = 16,
     .max = 1024,
     .help = "The system prompt, the same in all of them.",
     .offset = FIELD(system_tokens)},
    {.name = "user",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "tokens",
     .fallback = "64",
     .min = 1,
     .max = 128,
     .help = "A question.",
     .offset = FIELD(user_tokens)},
    {.name = "answer",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "tokens",
     .fallback = "64",
     .min = 2,
     .max = 128,
     .help = "An answer.",
     .offset = FIELD(answer_tokens)},
    {.name = "requests",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "requests",
     .fallback = "100",
     .min = 0,
     .max = 256,
     .help = "Requests of the chat load; 0 leaves part two out.",
     .offset = FIELD(n_requests)},
    {.name = "rate",
     .type = BT_CONFIG_FLOAT,
     .group = "Work",
     .unit = "requests/s",
     .fallback = "0.8",
     .float_min = 0.01,
     .float_max = 1000,
     .help = "Arrivals of the chat load, on average.",
     .offset = FIELD(rate)},
    {.name = "trace",
     .type = BT_CONFIG_STRING,
     .group = "Work",
     .placeholder = "FILE",
     .help =
         "Lengths of the chat load: lines TIMESTAMP,CONTEXT,GENERATED, as the Azure LLM inference "
         "traces have them, of which a quarter is taken; drawn from a table of that trace if "
         "not given.",
     .offset = FIELD(trace)},
    {.name = "seed",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .fallback = "1",
     .min = 0,
     .max = INT32_MAX,
     .help = "Of prompts, arrivals and lengths.",
     .offset = FIELD(seed)},
};

static const bt_config_spec SPEC = {
    .command = "bench/run prefix",
    .summary = "Measures what the prefix cache saves, and how full the blocks of sequences are.",
    .options = OPTIONS,
    .n_options = BT_ARRAY_LEN(OPTIONS),
};

static void add(bt_report *report, const char *name, double value, const char *unit, double limit)
{
    bt_report_add(report, &(bt_report_row){.name = name,
                                           .value = value,
                                           .unit = unit,
                                           .limit = limit,
                                           .limit_name = limit > 0 ? "wanted" : NULL});
}

/* ---- part one ---- */

/* What one way of running the conversations gave, by turn. */
typedef struct multi_turn {
    double prefill_s[TURNS_MAX]; /* sum over conversations */
    uint64_t prompt_tokens[TURNS_MAX];
    uint64_t cached_tokens[TURNS_MAX];
    uint64_t fingerprint; /* of all outputs */
} multi_turn;

static uint32_t longest(const prefix_options *o)
{
    return (uint32_t)(o->system_tokens + o->n_turns * (o->user_tokens + o->answer_tokens));
}

/* FNV-1a over the tokens. */
static uint64_t mix(uint64_t hash, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        hash = (hash ^ (uint32_t)tokens[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

static bt_status run_turn(bt_rig *rig, bt_rig_request *request, const int32_t *said, uint32_t n,
                          const prefix_options *o, bt_error *err)
{
    bt_rig_request_init(rig, request, said, n);
    request->sampling.max_tokens = (uint32_t)o->answer_tokens;
    request->sampling.ignore_eos = true;
    bt_rig_send_split(rig, request);
    bt_rig_wait_split(rig, request);
    const bt_link_finished *d = &request->end[BT_RIG_DECODE];
    return d->status == BT_OK ? BT_OK
                              : bt_error_set(err, d->status, "a turn failed: %s", d->error.text);
}

static bt_status run_conversations(const prefix_options *o, bool cache, bt_rig_request *requests,
                                   int32_t *said, multi_turn *out, bt_error *err)
{
    const uint32_t n_blocks = (uint32_t)bt_div_ceil(longest(o), BT_KV_BLOCK_TOKENS);
    bt_rig *rig = bt_rig_create(&(bt_rig_options){
        .model_path = bt_program_model(o->model),
        .kernels = o->kernels,
        .transport = BT_KV_TRANSPORT_SHM,
        .prefill_blocks = n_blocks * (uint32_t)(o->n_conversations + 1),
        .decode_blocks = n_blocks * (uint32_t)(o->n_conversations + 1),
        .chunk = 256,
        .token_budget = 512,
        .lease_ms = 20000,
        .no_prefix_cache = !cache,
    });
    *out = (multi_turn){.fingerprint = UINT64_C(14695981039346656037)};
    const uint32_t n_system = (uint32_t)o->system_tokens;
    uint32_t n_said[CONVERSATIONS_MAX];
    for (int64_t c = 0; c < o->n_conversations; c++) {
        bt_rig_fill_prompt(said + c * longest(o), n_system, (uint64_t)o->seed);
        n_said[c] = n_system;
    }
    bt_status status = BT_OK;
    for (int64_t turn = 0; turn < o->n_turns && status == BT_OK; turn++) {
        for (int64_t c = 0; c < o->n_conversations && status == BT_OK; c++) {
            int32_t *words = said + c * longest(o);
            bt_rig_fill_prompt(words + n_said[c], (uint32_t)o->user_tokens,
                               (uint64_t)(o->seed + 1000 * (c + 1) + turn));
            n_said[c] += (uint32_t)o->user_tokens;
            bt_rig_request *request = &requests[turn * o->n_conversations + c];
            status = run_turn(rig, request, words, n_said[c], o, err);
            if (status == BT_OK) {
                const bt_link_finished *p = &request->end[BT_RIG_PREFILL];
                out->prefill_s[turn] += (double)p->prefill_ns / 1e9;
                out->prompt_tokens[turn] += n_said[c];
                out->cached_tokens[turn] += p->cached_tokens;
                out->fingerprint = mix(out->fingerprint, request->tokens, request->n_tokens);
                memcpy(words + n_said[c], request->tokens, request->n_tokens * sizeof *words);
                n_said[c] += request->n_tokens;
            }
        }
    }
    bt_rig_destroy(rig);
    return status;
}

typedef struct pair_of_runs {
    multi_turn off;
    multi_turn on;
} pair_of_runs;

static double saved_percent(const prefix_options *o, const pair_of_runs *runs)
{
    double off_s = 0;
    double on_s = 0;
    for (int64_t t = 1; t < o->n_turns; t++) {
        off_s += runs->off.prefill_s[t];
        on_s += runs->on.prefill_s[t];
    }
    return (1 - on_s / off_s) * 100;
}

static void add_turns(const prefix_options *o, const pair_of_runs *runs, bt_report *report)
{
    const uint64_t n = (uint64_t)o->n_conversations;
    for (int64_t t = 0; t < o->n_turns; t++) {
        char name[128];
        snprintf(name, sizeof name,
                 "turn %" PRId64 ", %" PRIu64 " tokens, %" PRIu64
                 " cached: prefill (off: %.1f ms), mean",
                 t + 1, runs->off.prompt_tokens[t] / n, runs->on.cached_tokens[t] / n,
                 runs->off.prefill_s[t] / (double)n * 1e3);
        add(report, name, runs->on.prefill_s[t] / (double)n * 1e3, "ms", 0);
    }
}

static bt_status compare_conversations(const prefix_options *o, bt_report *report, bt_error *err)
{
    const size_t n_requests = (size_t)(o->n_conversations * o->n_turns);
    bt_rig_request *requests = calloc(n_requests, sizeof *requests);
    int32_t *said = calloc((size_t)o->n_conversations * longest(o), sizeof *said);
    static pair_of_runs runs;
    double saved[ROUNDS_MAX];
    bt_status status =
        requests == NULL || said == NULL ? bt_error_set(err, BT_ENOMEM, "out of memory") : BT_OK;
    for (int64_t round = 0; round < o->n_rounds && status == BT_OK; round++) {
        status = run_conversations(o, false, requests, said, &runs.off, err);
        if (status == BT_OK) {
            status = run_conversations(o, true, requests, said, &runs.on, err);
        }
        if (status == BT_OK && runs.off.fingerprint != runs.on.fingerprint) {
            status =
                bt_error_set(err, BT_EINTERNAL, "the outputs with and without the cache differ");
        }
        if (status == BT_OK) {
            add_turns(o, &runs, report);
            saved[round] = saved_percent(o, &runs);
            add(report, "prefill time saved from turn 2 on, outputs identical", saved[round], "%",
                70);
        }
    }
    if (status == BT_OK) {
        add(report, "prefill time saved from turn 2 on, median of the rounds",
            bt_report_median(saved, (size_t)o->n_rounds), "%", 70);
    }
    free(requests);
    free(said);
    return status;
}

/* ---- part two ---- */

typedef struct length {
    uint32_t n_in;
    uint32_t n_out;
} length;

/* Quantiles (1/64, 3/64 ... 63/64) of the conversation trace of November 2023 (Patel et al.,
 * Splitwise, ISCA 2024), a quarter of each length, within the bounds above. */
static const uint16_t in_quantiles[] = {
    16,  45,  50,  53,  80,  94,  97,  98,  99,  100, 102, 104, 114, 227,  246,  252,
    257, 261, 264, 268, 273, 277, 283, 291, 308, 328, 369, 504, 646, 1018, 1021, 1024,
};
static const uint16_t out_quantiles[] = {
    4,  10, 12, 14, 16, 18, 19, 20, 21, 22, 23,  24,  25,  26,  28,  30,
    33, 37, 40, 45, 54, 93, 96, 98, 99, 99, 101, 103, 105, 107, 114, 142,
};

static double draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 11) * 0x1p-53;
}

static uint32_t clip(long value, long min, long max)
{
    return (uint32_t)(value < min ? min : value > max ? max : value);
}

/* The first n requests of the trace. */
static bt_status read_trace(const char *path, length *lengths, size_t n, bt_error *err)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return bt_error_set(err, BT_ENOTFOUND, "cannot open the trace '%.180s'", path);
    }
    char line[256];
    size_t n_read = 0;
    while (n_read < n && fgets(line, sizeof line, file) != NULL) {
        long n_in;
        long n_out;
        if (sscanf(line, "%*[^,],%ld,%ld", &n_in, &n_out) == 2) {
            lengths[n_read++] = (length){clip(n_in / LENGTH_DIVISOR, IN_MIN, IN_MAX),
                                         clip(n_out / LENGTH_DIVISOR, OUT_MIN, OUT_MAX)};
        }
    }
    fclose(file);
    return n_read == n ? BT_OK
                       : bt_error_set(err, BT_ECORRUPT, "the trace has %zu requests only", n_read);
}

static bt_status choose_lengths(const prefix_options *o, uint64_t *random, length *lengths,
                                bt_error *err)
{
    if (o->trace != NULL && o->trace[0] != '\0') {
        return read_trace(o->trace, lengths, (size_t)o->n_requests, err);
    }
    for (int64_t i = 0; i < o->n_requests; i++) {
        const double a = draw(random);
        const double b = draw(random);
        lengths[i] = (length){in_quantiles[(size_t)(a * (double)BT_ARRAY_LEN(in_quantiles))],
                              out_quantiles[(size_t)(b * (double)BT_ARRAY_LEN(out_quantiles))]};
    }
    return BT_OK;
}

/* Slots over the steps of these requests, if each runs alone to its end: step i of a sequence reads
 * n_in + i of them; the first token is the prefill worker's. */
typedef struct replay {
    uint64_t written;
    uint64_t longest_reserved;
    uint64_t own_reserved;
} replay;

static replay replay_contiguous(const length *lengths, int64_t n)
{
    replay r = {0};
    for (int64_t i = 0; i < n; i++) {
        const uint64_t n_steps = lengths[i].n_out - 1;
        r.written += n_steps * lengths[i].n_in + n_steps * (n_steps + 1) / 2;
        r.longest_reserved += n_steps * (IN_MAX + OUT_MAX);
        r.own_reserved += n_steps * (lengths[i].n_in + lengths[i].n_out);
    }
    return r;
}

static bt_status send_chat(const prefix_options *o, bt_rig *rig, const length *lengths,
                           uint64_t *random, bt_error *err)
{
    bt_rig_request *requests = calloc((size_t)o->n_requests, sizeof *requests);
    int32_t *prompts = calloc((size_t)o->n_requests * IN_MAX, sizeof *prompts);
    bt_status status =
        requests == NULL || prompts == NULL ? bt_error_set(err, BT_ENOMEM, "out of memory") : BT_OK;
    for (int64_t i = 0; i < o->n_requests && status == BT_OK; i++) {
        bt_rig_run_ms(rig, (uint64_t)(-log(1 - draw(random)) / o->rate * 1e3));
        int32_t *prompt = prompts + i * IN_MAX;
        bt_rig_fill_prompt(prompt, lengths[i].n_in, (uint64_t)(o->seed + 7 * i));
        bt_rig_request_init(rig, &requests[i], prompt, lengths[i].n_in);
        requests[i].sampling.max_tokens = lengths[i].n_out;
        requests[i].sampling.ignore_eos = true;
        bt_rig_send_split(rig, &requests[i]);
    }
    for (int64_t i = 0; i < o->n_requests && status == BT_OK; i++) {
        bt_rig_wait_split(rig, &requests[i]);
        const bt_link_finished *d = &requests[i].end[BT_RIG_DECODE];
        if (d->status != BT_OK) {
            status = bt_error_set(err, d->status, "a request failed: %s", d->error.text);
        }
    }
    bt_rig_run_ms(rig, 200); /* the last report */
    free(requests);
    free(prompts);
    return status;
}

static bool is_empty(void *ctx)
{
    const bt_link_load *load = bt_rig_load(ctx, BT_RIG_DECODE);
    return load->requests_running == 0 && load->requests_waiting == 0;
}

static bt_status measure_use(const prefix_options *o, bt_report *report, bt_error *err)
{
    uint64_t random = (uint64_t)o->seed;
    static length lengths[256];
    bt_status status = choose_lengths(o, &random, lengths, err);
    if (status != BT_OK) {
        return status;
    }
    bt_rig *rig = bt_rig_create(&(bt_rig_options){
        .model_path = bt_program_model(o->model),
        .kernels = o->kernels,
        .transport = BT_KV_TRANSPORT_SHM,
        .prefill_blocks = 1024,
        .decode_blocks = 1024,
        .chunk = 256,
        .token_budget = 512,
        .running_max = 64,
        .requests_max = 256,
        .lease_ms = 60000,
    });
    status = send_chat(o, rig, lengths, &random, err);
    bt_rig_wait(rig, is_empty, rig);
    const bt_link_load load = *bt_rig_load(rig, BT_RIG_DECODE);
    bt_rig_destroy(rig);
    if (status != BT_OK) {
        return status;
    }
    const replay r = replay_contiguous(lengths, o->n_requests);
    if (load.preemptions == 0 && load.slots_written != r.written) {
        return bt_error_set(err, BT_EINTERNAL,
                            "the worker counted %" PRIu64
                            " written slots, the lengths make %" PRIu64,
                            load.slots_written, r.written);
    }
    const double written = (double)load.slots_written;
    add(report, "slots written / allocated on decode, blocks of 16",
        100 * written / (double)load.slots_allocated, "%", 96);
    add(report, "the same with contiguous memory for 1,280 tokens, the load's longest",
        100 * (double)r.written / (double)r.longest_reserved, "%", 0);
    add(report, "the same with contiguous memory for each request's own last length",
        100 * (double)r.written / (double)r.own_reserved, "%", 0);
    add(report, "slots written, summed over the steps of sequences", written, "slots", 0);
    add(report, "slots allocated", (double)load.slots_allocated, "slots", 0);
    add(report, "sequences preempted", (double)load.preemptions, "", 0);
    return BT_OK;
}

static bt_status run_prefix(void *ctx, bt_report *report, bt_error *err)
{
    const prefix_options *o = ctx;
    bt_log_init(BT_WARN, BT_LOG_FORMAT_TEXT, "prefix");
    bt_report_fact(report, "lengths of the chat load",
                   o->trace != NULL ? o->trace : "built-in table");
    bt_status status = BT_OK;
    if (o->n_conversations > 0) {
        bt_report_heading(report, "conversations, a prefill and a decode worker, a thread each");
        status = compare_conversations(o, report, err);
    }
    if (status == BT_OK && o->n_requests > 0) {
        bt_report_heading(report, "chat load, the same workers");
        status = measure_use(o, report, err);
    }
    return status;
}

int main(int argc, char **argv)
{
    prefix_options options = {.json = NULL};
    const bt_program program = {"prefix", &SPEC, &options, &options.json, run_prefix};
    return bt_program_main(&program, argc, argv);
}
