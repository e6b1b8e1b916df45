/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/sampling.h"

#include <string.h>

#include "cli/terminal.h"

void bt_sampling_fill(const bt_sampling_options *options, Baton__V1__Sampling *out)
{
    baton__v1__sampling__init(out);
    out->temperature = (float)options->temperature;
    out->top_k = (uint32_t)options->top_k;
    out->top_p = (float)options->top_p;
    out->min_p = (float)options->min_p;
    out->repetition_penalty = (float)options->repetition_penalty;
    out->presence_penalty = (float)options->presence_penalty;
    out->frequency_penalty = (float)options->frequency_penalty;
    if (options->seed >= 0) {
        out->seed_presence_case = BATON__V1__SAMPLING__SEED_PRESENCE_SEED;
        out->seed = (uint64_t)options->seed;
    }
    out->max_tokens_presence_case = BATON__V1__SAMPLING__MAX_TOKENS_PRESENCE_MAX_TOKENS;
    out->max_tokens = (uint32_t)options->max_tokens;
    out->n_stop = options->stop.n;
    out->stop = (char **)(uintptr_t)options->stop.items;
    out->ignore_eos = options->ignore_eos;
}

static void print_route(const Baton__V1__Route *route, FILE *to)
{
    if (strcmp(route->prefill_worker, route->decode_worker) == 0) {
        fprintf(to, "%s did both", route->prefill_worker);
        return;
    }
    fprintf(to, "%s prefilled", route->prefill_worker);
    if (*route->decode_worker != '\0') {
        fprintf(to, ", %s decoded; %u KV blocks moved (%.1f MB over %s), %u were there",
                route->decode_worker, route->blocks_moved, (double)route->bytes_moved / 1e6,
                *route->transport != '\0' ? route->transport : "nothing", route->blocks_skipped);
    }
}

void bt_sampling_print_finish(const Baton__V1__Finish *finish, FILE *to)
{
    fputs(bt_terminal_style_text(to, BT_TERMINAL_DIM), to);
    fputs("[", to);
    if (finish->route) {
        print_route(finish->route, to);
        fputs("; ", to);
    }
    if (finish->usage) {
        fprintf(to, "%u prompt tokens (%u cached), %u generated", finish->usage->prompt_tokens,
                finish->usage->cached_tokens, finish->usage->generated_tokens);
    }
    if (finish->timings) {
        fprintf(to, "; TTFT %.0f ms, TPOT %.1f ms", finish->timings->ttft_ms,
                finish->timings->tpot_ms);
    }
    fprintf(to, "]%s\n", bt_terminal_style_text(to, BT_TERMINAL_PLAIN));
}

static const char *reason_name(Baton__V1__FinishReason reason)
{
    switch (reason) {
    case BATON__V1__FINISH_REASON__FINISH_REASON_STOP:
        return "stop";
    case BATON__V1__FINISH_REASON__FINISH_REASON_LENGTH:
        return "length";
    case BATON__V1__FINISH_REASON__FINISH_REASON_CANCELLED:
        return "cancelled";
    default:
        return "error";
    }
}

static void write_uint(bt_json_writer *w, const char *key, uint64_t value)
{
    bt_json_key(w, key);
    bt_json_uint(w, value);
}

static void write_ms(bt_json_writer *w, const char *key, double value)
{
    bt_json_key(w, key);
    bt_json_double(w, value);
}

static void write_text(bt_json_writer *w, const char *key, const char *value)
{
    bt_json_key(w, key);
    bt_json_string(w, value);
}

static void write_route(bt_json_writer *w, const Baton__V1__Route *route)
{
    bt_json_key(w, "route");
    bt_json_object_begin(w);
    write_text(w, "prefill_worker", route->prefill_worker);
    write_text(w, "decode_worker", route->decode_worker);
    write_uint(w, "blocks_total", route->blocks_total);
    write_uint(w, "blocks_moved", route->blocks_moved);
    write_uint(w, "blocks_skipped", route->blocks_skipped);
    write_uint(w, "bytes_moved", route->bytes_moved);
    write_text(w, "transport", route->transport);
    write_uint(w, "attempts", route->attempts);
    write_uint(w, "preemptions", route->preemptions);
    write_text(w, "numerics_id", route->numerics_id);
    bt_json_object_end(w);
}

void bt_sampling_write_finish(const Baton__V1__Finish *finish, bt_json_writer *w)
{
    write_text(w, "finish_reason", reason_name(finish->reason));
    if (finish->usage) {
        bt_json_key(w, "usage");
        bt_json_object_begin(w);
        write_uint(w, "prompt_tokens", finish->usage->prompt_tokens);
        write_uint(w, "cached_tokens", finish->usage->cached_tokens);
        write_uint(w, "generated_tokens", finish->usage->generated_tokens);
        bt_json_object_end(w);
    }
    if (finish->timings) {
        const Baton__V1__Timings *t = finish->timings;
        bt_json_key(w, "timings");
        bt_json_object_begin(w);
        write_ms(w, "queue_ms", t->queue_ms);
        write_ms(w, "prefill_ms", t->prefill_ms);
        write_ms(w, "transfer_ms", t->transfer_ms);
        write_ms(w, "ttft_ms", t->ttft_ms);
        write_ms(w, "tpot_ms", t->tpot_ms);
        write_ms(w, "total_ms", t->total_ms);
        bt_json_object_end(w);
    }
    if (finish->route) {
        write_route(w, finish->route);
    }
}
