/* SPDX-License-Identifier: Apache-2.0 */
/* bench overlap: how much of a prompt's KV is still to move when its prefill ends.
 *
 * A prefill and a decode worker, whole but in one process, hand one prompt over in each round. The
 * first round's link is free and tells how long prefill takes; the link of each later round is
 * throttled so that moving all KV takes a share (80%) of the prefill of the round before. Source
 * and sink record when each part was final and when it was in place. A part is one layer of one
 * chunk; it is left when it was not all in place at the moment the very last one was final, which
 * itself always is. Rounds whose prefill took another time than the round before do not count: on a
 * busy machine there may be none that do. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/program.h"
#include "common/log.h"
#include "tests/support/rig.h"

enum {
    PROMPT_MAX = 4000,
    ROUNDS_MAX = 31,
    SHARE_MARGIN = 10, /* of the share that a round was to have, in % */
};

typedef struct overlap_options {
    const char *json;
    const char *model;
    const char *kernels;
    int64_t n_prompt;
    int64_t chunk;
    int64_t share;
    int64_t n_rounds;
    int transport;
} overlap_options;

static const char *const transports[] = {"tcp", "shm", NULL};

#define FIELD(field) offsetof(overlap_options, field)

static const bt_config_option OPTIONS[] = {
    BT_PROGRAM_JSON_OPTION(overlap_options),
    BT_PROGRAM_MODEL_OPTION(overlap_options),
    BT_PROGRAM_KERNELS_OPTION(overlap_options),
    {.name = "prompt",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "tokens",
     .fallback = "1024",
     .min = 32,
     .max = PROMPT_MAX,
     .help = "Length of the prompt.",
     .offset = FIELD(n_prompt)},
    {.name = "chunk",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "tokens",
     .fallback = "64",
     .min = 16,
     .max = PROMPT_MAX,
     .help = "Prompt tokens of one step, a multiple of 16.",
     .offset = FIELD(chunk)},
    {.name = "share",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "%",
     .fallback = "80",
     .min = 1,
     .max = 100,
     .help = "Time to move all KV, of the time of the prefill.",
     .offset = FIELD(share)},
    {.name = "rounds",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "rounds",
     .fallback = "5",
     .min = 1,
     .max = ROUNDS_MAX,
     .help = "Throttled rounds.",
     .offset = FIELD(n_rounds)},
    {.name = "transport",
     .type = BT_CONFIG_ENUM,
     .group = "Work",
     .fallback = "tcp",
     .choices = transports,
     .help = "What the KV moves over.",
     .offset = FIELD(transport)},
};

static const bt_config_spec SPEC = {
    .command = "bench/run overlap",
    .summary = "Measures how much of a prompt's KV is still to move when its prefill ends.",
    .options = OPTIONS,
    .n_options = BT_ARRAY_LEN(OPTIONS),
};

typedef struct recording {
    bt_kv_trace *events;
    size_t n;
    size_t capacity;
} recording;

typedef struct round_result {
    double prefill_s;
    uint64_t bytes;
    uint32_t n_parts;
    uint32_t n_left;
    double tail_ms; /* from the last part's end until all were in place */
} round_result;

static void on_trace(const bt_kv_trace *event, void *ctx)
{
    recording *r = ctx;
    if (r->n < r->capacity) {
        r->events[r->n++] = *event;
    }
}

/* When the last of all parts was final: the first word about it is the source's. */
static int64_t final_ns(const recording *r, uint32_t *n_layers)
{
    int64_t last_ns = 0;
    uint32_t last_end = 0; /* of (block, layer), in the order of computing */
    *n_layers = 0;
    for (size_t i = 0; i < r->n; i++) {
        const bt_kv_trace *e = &r->events[i];
        *n_layers = e->layer + e->n_layers > *n_layers ? e->layer + e->n_layers : *n_layers;
        const uint32_t end = (e->block_idx + e->n_blocks) << 12 | (e->layer + e->n_layers);
        if (e->kind == BT_KV_TRACE_ANNOUNCED && end > last_end) {
            last_end = end;
            last_ns = e->time_ns;
        }
    }
    return last_ns;
}

static bt_status count_left(const recording *r, uint32_t chunk_blocks, uint32_t n_chunks,
                            round_result *out)
{
    uint32_t n_layers;
    const int64_t last_ns = final_ns(r, &n_layers);
    bool *late = calloc((size_t)n_layers * n_chunks, sizeof *late);
    if (late == NULL) {
        return BT_ENOMEM;
    }
    int64_t moved_ns = last_ns;
    for (size_t i = 0; i < r->n; i++) {
        const bt_kv_trace *e = &r->events[i];
        if (e->kind != BT_KV_TRACE_MOVED || e->time_ns <= last_ns) {
            continue;
        }
        moved_ns = e->time_ns > moved_ns ? e->time_ns : moved_ns;
        for (uint32_t b = e->block_idx; b < e->block_idx + e->n_blocks; b++) {
            for (uint32_t layer = e->layer; layer < e->layer + e->n_layers; layer++) {
                late[(size_t)(b / chunk_blocks) * n_layers + layer] = true;
            }
        }
    }
    out->n_parts = n_layers * n_chunks;
    out->n_left = 0;
    for (uint32_t i = 0; i < out->n_parts; i++) {
        out->n_left += late[i];
    }
    out->tail_ms = (double)(moved_ns - last_ns) / 1e6;
    free(late);
    return BT_OK;
}

static bt_status run_round(const overlap_options *o, recording *record, uint64_t rate,
                           round_result *out, bt_error *err)
{
    static int32_t prompt[PROMPT_MAX];
    static bt_rig_request request;
    bt_rig_fill_prompt(prompt, (uint32_t)o->n_prompt, 1);
    record->n = 0;
    bt_rig *rig = bt_rig_create(&(bt_rig_options){
        .model_path = bt_program_model(o->model),
        .kernels = o->kernels,
        .transport = o->transport == 0 ? BT_KV_TRANSPORT_TCP : BT_KV_TRANSPORT_SHM,
        .chunk = (uint32_t)o->chunk,
        .token_budget = (uint32_t)o->chunk + 16,
        .running_max = 4,
        .kv_rate_limit_bytes_s = rate,
        .lease_ms = 20000,
        .kv_trace = on_trace,
        .kv_trace_ctx = record,
    });
    bt_rig_request_init(rig, &request, prompt, (uint32_t)o->n_prompt);
    request.sampling.max_tokens = 2;
    bt_rig_send_split(rig, &request);
    bt_rig_wait_split(rig, &request);
    const bt_link_finished *p = &request.end[BT_RIG_PREFILL];
    const bt_link_finished *d = &request.end[BT_RIG_DECODE];
    bt_status status = d->status;
    if (status != BT_OK) {
        (void)bt_error_set(err, status, "the hand-over failed: %s", d->error.text);
    }
    *out = (round_result){.prefill_s = (double)p->prefill_ns / 1e9, .bytes = d->bytes_moved};
    bt_rig_destroy(rig);
    if (status != BT_OK) {
        return status;
    }
    const uint32_t chunk_blocks = (uint32_t)o->chunk / BT_KV_BLOCK_TOKENS;
    status = count_left(record, chunk_blocks,
                        (uint32_t)bt_div_ceil((uint64_t)o->n_prompt, (uint64_t)o->chunk), out);
    return status == BT_OK ? BT_OK : bt_error_set(err, status, "out of memory");
}

static void add(bt_report *report, const char *name, double value, const char *unit, double limit)
{
    bt_report_add(report, &(bt_report_row){.name = name,
                                           .value = value,
                                           .unit = unit,
                                           .limit = limit,
                                           .limit_name = limit > 0 ? "allowed" : NULL});
}

static bt_status run_rounds(const overlap_options *o, recording *record, bt_report *report,
                            bt_error *err)
{
    round_result r;
    bt_status status = run_round(o, record, 0, &r, err);
    double left[ROUNDS_MAX];
    double tails[ROUNDS_MAX];
    size_t n_counted = 0;
    for (int64_t i = 0; i < o->n_rounds && status == BT_OK; i++) {
        const double rate = (double)r.bytes / (r.prefill_s * (double)o->share / 100);
        status = run_round(o, record, (uint64_t)rate, &r, err);
        const double share = (double)r.bytes / rate / r.prefill_s * 100;
        const bool counts = share >= (double)(o->share - SHARE_MARGIN) &&
                            share <= (double)(o->share + SHARE_MARGIN);
        left[n_counted] = r.n_left;
        tails[n_counted] = r.tail_ms;
        n_counted += counts;
        char name[128];
        snprintf(name, sizeof name,
                 "round %" PRId64 ": prefill %.0f ms, moving takes %.0f%%%s: left of %u parts",
                 i + 1, r.prefill_s * 1e3, share, counts ? "" : " (not counted)", r.n_parts);
        add(report, name, r.n_left, "parts", 2);
    }
    if (status == BT_OK && n_counted == 0) {
        return bt_error_set(err, BT_AGAIN,
                            "no round had the share that it was to have: the machine is too busy");
    }
    if (status == BT_OK) {
        add(report, "parts (layer of a chunk) left when the last is computed, median",
            bt_report_median(left, n_counted), "parts", 2);
        add(report, "time from there until all are in place, median",
            bt_report_median(tails, n_counted), "ms", 0);
    }
    return status;
}

static bt_status run_overlap(void *ctx, bt_report *report, bt_error *err)
{
    const overlap_options *o = ctx;
    if (o->chunk % BT_KV_BLOCK_TOKENS != 0) {
        return bt_error_set(err, BT_EINVAL, "--chunk is a multiple of %d", BT_KV_BLOCK_TOKENS);
    }
    bt_log_init(BT_WARN, BT_LOG_FORMAT_TEXT, "overlap");
    bt_report_fact(report, "transport", transports[o->transport]);
    enum { LAYERS_MAX = 256, EVENTS_PER_PART = 4 };
    const size_t n_blocks = bt_div_ceil((uint64_t)o->n_prompt, BT_KV_BLOCK_TOKENS);
    recording record = {.capacity = n_blocks * LAYERS_MAX * EVENTS_PER_PART};
    record.events = calloc(record.capacity, sizeof *record.events);
    if (record.events == NULL) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    const bt_status status = run_rounds(o, &record, report, err);
    free(record.events);
    return status;
}

int main(int argc, char **argv)
{
    overlap_options options = {.json = NULL};
    const bt_program program = {"overlap", &SPEC, &options, &options.json, run_overlap};
    return bt_program_main(&program, argc, argv);
}
