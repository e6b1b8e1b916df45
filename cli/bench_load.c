/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench_load.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"

enum { LINE_BYTES = 1 << 16, HASHES_MAX = 4096, LENGTH_MAX = 1 << 20 };

/* What a line of a trace, or a draw, says of one request. */
typedef struct shape {
    int64_t at_ns;
    uint32_t n_prompt;
    uint32_t n_output;
    uint32_t n_hashes;
    int64_t hashes[HASHES_MAX];
} shape;

/* SplitMix64 (Steele et al. 2014): also the hash behind shared prompt blocks. */
static uint64_t mix(uint64_t z)
{
    z += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static uint64_t next_random(uint64_t *state)
{
    return mix((*state)++);
}

static double uniform(uint64_t *state)
{
    return ((double)(next_random(state) >> 11) + 0.5) * 0x1p-53;
}

static uint32_t draw_range(uint64_t *state, bt_bench_range range)
{
    return range.min + (uint32_t)(next_random(state) % (range.max - range.min + 1));
}

static uint32_t clamp(uint32_t value, bt_bench_range range)
{
    return value < range.min ? range.min : value > range.max ? range.max : value;
}

bt_status bt_bench_range_parse(const char *text, bt_bench_range *out)
{
    char *end;
    errno = 0;
    const unsigned long min = strtoul(text, &end, 10);
    unsigned long max = min;
    if (end == text || !isdigit((unsigned char)*text)) {
        return BT_EINVAL;
    }
    if (*end == '-') {
        const char *second = end + 1;
        max = strtoul(second, &end, 10);
        if (end == second || !isdigit((unsigned char)*second)) {
            return BT_EINVAL;
        }
    }
    if (*end != '\0' || errno != 0 || min == 0 || max < min || max > LENGTH_MAX) {
        return BT_EINVAL;
    }
    *out = (bt_bench_range){.min = (uint32_t)min, .max = (uint32_t)max};
    return BT_OK;
}

/* "2023-11-16 18:15:46.6805900,374,44": the time of day is enough, traces span an hour. */
static bool parse_csv(const char *line, shape *out)
{
    unsigned hour;
    unsigned minute;
    double second;
    if (sscanf(line, "%*d-%*d-%*d %u:%u:%lf,%u,%u", &hour, &minute, &second, &out->n_prompt,
               &out->n_output) != 5) {
        return false;
    }
    out->at_ns = (int64_t)((hour * 3600.0 + minute * 60.0 + second) * 1e9);
    out->n_hashes = 0;
    return true;
}

static bool parse_json(const char *line, shape *out)
{
    bt_json *json = NULL;
    if (bt_json_parse(line, strlen(line), &json, NULL) != BT_OK) {
        return false;
    }
    double timestamp_ms;
    int64_t n_prompt;
    int64_t n_output;
    const bool complete = bt_json_as_double(bt_json_get(json, "timestamp"), &timestamp_ms) &&
                          bt_json_as_int(bt_json_get(json, "input_length"), &n_prompt) &&
                          bt_json_as_int(bt_json_get(json, "output_length"), &n_output) &&
                          n_prompt >= 0 && n_prompt <= LENGTH_MAX && n_output >= 0 &&
                          n_output <= LENGTH_MAX;
    if (complete) {
        out->at_ns = (int64_t)(timestamp_ms * 1e6);
        out->n_prompt = (uint32_t)n_prompt;
        out->n_output = (uint32_t)n_output;
        const bt_json *hashes = bt_json_get(json, "hash_ids");
        out->n_hashes = (uint32_t)bt_size_min(bt_json_len(hashes), HASHES_MAX);
        for (uint32_t i = 0; i < out->n_hashes; i++) {
            out->hashes[i] = 0;
            (void)bt_json_as_int(bt_json_at(hashes, i), &out->hashes[i]);
        }
    }
    bt_json_destroy(json);
    return complete;
}

/* The tokens of a trace's shared blocks come from their ids, all others from `state`. */
static bt_status fill_prompt(const bt_bench_load_options *o, const shape *s, uint64_t *state,
                             bt_bench_request *out)
{
    const uint32_t n_from_hashes = s->n_hashes * o->hash_block_tokens;
    const uint32_t n_prompt = s->n_hashes > 0 ? clamp(n_from_hashes, o->prompt) : s->n_prompt;
    out->prompt = malloc(n_prompt * sizeof *out->prompt);
    if (!out->prompt) {
        return BT_ENOMEM;
    }
    out->n_prompt = n_prompt;
    out->n_output = s->n_output;
    out->at_ns = s->at_ns;
    for (uint32_t i = 0; i < n_prompt; i++) {
        uint64_t bits;
        if (i < n_from_hashes) {
            const uint64_t block = (uint64_t)s->hashes[i / o->hash_block_tokens];
            bits = mix(mix(block) + i % o->hash_block_tokens);
        } else if (i < o->n_shared) {
            bits = mix(mix(o->seed) + i);
        } else {
            bits = next_random(state);
        }
        out->prompt[i] = (uint32_t)(bits % o->n_vocab);
    }
    return BT_OK;
}

static bt_status append(bt_bench_load *load, const bt_bench_load_options *o, const shape *s,
                        uint64_t *state)
{
    bt_bench_request *grown = realloc(load->requests, (load->n + 1) * sizeof *load->requests);
    if (!grown) {
        return BT_ENOMEM;
    }
    load->requests = grown;
    const bt_status status = fill_prompt(o, s, state, &grown[load->n]);
    load->n += status == BT_OK;
    return status;
}

static bt_status read_trace(const bt_bench_load_options *o, bt_bench_load *load, uint64_t *state,
                            shape *s, bt_error *err)
{
    FILE *file = fopen(o->trace, "r");
    if (!file) {
        return bt_error_set(err, BT_EIO, "cannot open trace '%s': %s", o->trace, strerror(errno));
    }
    char *line = malloc(LINE_BYTES);
    bt_status status = line ? BT_OK : BT_ENOMEM;
    int64_t first_ns = -1;
    for (size_t number = 1;
         status == BT_OK && load->n < o->n_requests && fgets(line, LINE_BYTES, file); number++) {
        if (line[0] == '\n' || line[0] == '\r' || strncmp(line, "TIMESTAMP", 9) == 0) {
            continue;
        }
        if (!(line[0] == '{' ? parse_json(line, s) : parse_csv(line, s))) {
            status = bt_error_set(err, BT_EINVAL,
                                  "trace '%s', line %zu: neither Azure's CSV nor Mooncake's JSON",
                                  o->trace, number);
            break;
        }
        first_ns = first_ns < 0 ? s->at_ns : first_ns;
        s->at_ns = (int64_t)((double)(s->at_ns - first_ns) * o->time_scale);
        s->n_prompt = clamp(s->n_prompt / o->length_divisor, o->prompt);
        s->n_output = clamp(s->n_output / o->length_divisor, o->output);
        status = append(load, o, s, state);
    }
    free(line);
    (void)fclose(file);
    if (status == BT_OK && load->n == 0) {
        status = bt_error_set(err, BT_EINVAL, "trace '%s' has no requests", o->trace);
    }
    return status;
}

static bt_status draw_load(const bt_bench_load_options *o, bt_bench_load *load, uint64_t *state,
                           shape *s)
{
    bt_status status = BT_OK;
    for (size_t i = 0; i < o->n_requests && status == BT_OK; i++) {
        s->at_ns = 0;
        s->n_hashes = 0;
        s->n_prompt = draw_range(state, o->prompt);
        s->n_output = draw_range(state, o->output);
        status = append(load, o, s, state);
    }
    return status;
}

static int by_time(const void *a, const void *b)
{
    const int64_t x = ((const bt_bench_request *)a)->at_ns;
    const int64_t y = ((const bt_bench_request *)b)->at_ns;
    return (x > y) - (x < y);
}

bt_status bt_bench_load_make(const bt_bench_load_options *options, bt_bench_load *out,
                             bt_error *err)
{
    bt_bench_load load = {0};
    uint64_t state = mix(options->seed);
    uint64_t arrivals = mix(options->seed ^ 1);
    shape *s = malloc(sizeof *s);
    bt_status status = BT_ENOMEM;
    if (s) {
        status = options->trace ? read_trace(options, &load, &state, s, err)
                                : draw_load(options, &load, &state, s);
    }
    free(s);
    if (status == BT_ENOMEM) {
        (void)bt_error_set(err, status, "no memory for the load");
    }
    if (status != BT_OK) {
        bt_bench_load_free(&load);
        return status;
    }
    double at_s = 0;
    for (size_t i = 0; i < load.n && options->rate > 0; i++) {
        at_s += -log(uniform(&arrivals)) / options->rate;
        load.requests[i].at_ns = (int64_t)(at_s * 1e9);
    }
    qsort(load.requests, load.n, sizeof *load.requests, by_time);
    *out = load;
    return BT_OK;
}

void bt_bench_load_free(bt_bench_load *load)
{
    for (size_t i = 0; i < load->n; i++) {
        free(load->requests[i].prompt);
    }
    free(load->requests);
    *load = (bt_bench_load){0};
}
