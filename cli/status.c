/* SPDX-License-Identifier: Apache-2.0 */
/* `baton status`: the cluster as its router sees it, as a table or as JSON. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/terminal.h"
#include "common/json.h"
#include "proto/generation.pb-c.h"

typedef struct status_options {
    bt_client_options client;
    bool json;
    int64_t timeout_ns;
} status_options;

static const bt_config_option options_table[] = {
    {.name = "address",
     .type = BT_CONFIG_STRING,
     .group = "Request",
     .fallback = BT_CLIENT_ADDRESS,
     .placeholder = "HOST:PORT",
     .help = "The router.",
     .offset = offsetof(status_options, client.address)},
    {.name = "timeout",
     .type = BT_CONFIG_DURATION,
     .group = "Request",
     .fallback = "5s",
     .help = "How long to wait for the answer.",
     .offset = offsetof(status_options, timeout_ns)},
    {.name = "json",
     .type = BT_CONFIG_BOOL,
     .group = "Output",
     .fallback = "false",
     .help = "Prints everything as one JSON object.",
     .offset = offsetof(status_options, json)},
    BT_CLIENT_CONFIG_ROWS(status_options, client),
};

static const bt_config_spec spec = {
    .command = "baton status",
    .section = "status",
    .summary =
        "Shows the router's workers, their KV pools, load and counters. Exits with 1 when the\n"
        "cluster can't serve a request from prompt to last token.",
    .examples = "  baton status\n"
                "  baton status --json | jq '.workers[].blocks_free'\n",
    .options = options_table,
    .n_options = BT_ARRAY_LEN(options_table),
};

static const char *role_name(Baton__V1__WorkerRole role)
{
    static const char *const names[] = {"?", "prefill", "decode", "both"};
    return (size_t)role < BT_ARRAY_LEN(names) ? names[role] : "?";
}

static const char *state_name(Baton__V1__WorkerState state)
{
    static const char *const names[] = {"?", "ready", "draining", "silent"};
    return (size_t)state < BT_ARRAY_LEN(names) ? names[state] : "?";
}

/* "97%", or "-" of nothing. */
static const char *percent(uint64_t part, uint64_t whole, char out[8])
{
    if (whole == 0) {
        return "-";
    }
    snprintf(out, 8, "%.0f%%", 100.0 * (double)part / (double)whole);
    return out;
}

static void print_worker(const Baton__V1__Worker *w)
{
    char hit[8];
    char use[8];
    const uint32_t blocks_live = w->blocks_total - w->blocks_free - w->blocks_cached;
    printf("%-12s %-8s %-9s %-12s %5u/%-5u %6u /%6u /%6u %10llu %10llu %5s %7llu %5s %7llu\n",
           w->name, role_name(w->role), state_name(w->state), w->kernels, w->requests_running,
           w->requests_waiting, blocks_live, w->blocks_cached, w->blocks_total,
           (unsigned long long)w->prefill_tokens, (unsigned long long)w->decode_tokens,
           percent(w->prefix_hit_tokens, w->prefix_hit_tokens + w->prefix_miss_tokens, hit),
           (unsigned long long)w->evicted_last_minute,
           percent(w->slots_written, w->slots_allocated, use), (unsigned long long)w->preemptions);
}

static void print_table(const Baton__V1__GetClusterStatusReply *reply)
{
    const char *bold = bt_terminal_style_text(stdout, BT_TERMINAL_BOLD);
    const char *plain = bt_terminal_style_text(stdout, BT_TERMINAL_PLAIN);
    const Baton__V1__Router *r = reply->router;
    if (r) {
        printf("router %s, up %.0f s: %s. Requests: %u running, %u queued; %llu in all, %llu "
               "failed, %llu refused, %llu cancelled; %llu retries, %llu recoveries, %llu moves.\n",
               r->name, r->uptime_s, r->ready ? "ready" : "not ready", r->requests_running,
               r->requests_queued, (unsigned long long)r->requests_total,
               (unsigned long long)r->requests_failed, (unsigned long long)r->requests_refused,
               (unsigned long long)r->requests_cancelled, (unsigned long long)r->retries,
               (unsigned long long)r->recoveries, (unsigned long long)r->moves);
    }
    printf("%s%-12s %-8s %-9s %-12s %11s %24s %10s %10s %5s %7s %5s %7s%s\n", bold, "WORKER",
           "ROLE", "STATE", "KERNELS", "RUN/WAIT", "BLOCKS LIVE/CACHED/ALL", "PREFILLED", "DECODED",
           "HIT", "EVICT/M", "USE", "PREEMPT", plain);
    for (size_t i = 0; i < reply->n_workers; i++) {
        print_worker(reply->workers[i]);
    }
    if (reply->n_workers == 0) {
        printf("no worker is attached\n");
    }
}

static void write_number(bt_json_writer *w, const char *key, double value)
{
    bt_json_key(w, key);
    bt_json_double(w, value);
}

static void write_count(bt_json_writer *w, const char *key, uint64_t value)
{
    bt_json_key(w, key);
    bt_json_uint(w, value);
}

static void write_string(bt_json_writer *w, const char *key, const char *value)
{
    bt_json_key(w, key);
    bt_json_string(w, value);
}

static void write_router(bt_json_writer *w, const Baton__V1__Router *r)
{
    bt_json_object_begin(w);
    write_string(w, "name", r->name);
    write_string(w, "version", r->version);
    write_number(w, "uptime_s", r->uptime_s);
    bt_json_key(w, "ready");
    bt_json_bool(w, r->ready);
    write_count(w, "requests_max", r->requests_max);
    write_count(w, "queue_max", r->queue_max);
    write_count(w, "prompt_tokens_max", r->prompt_tokens_max);
    write_number(w, "request_time_max_s", r->request_time_max_s);
    write_count(w, "requests_running", r->requests_running);
    write_count(w, "requests_queued", r->requests_queued);
    write_count(w, "requests_total", r->requests_total);
    write_count(w, "requests_failed", r->requests_failed);
    write_count(w, "requests_refused", r->requests_refused);
    write_count(w, "requests_cancelled", r->requests_cancelled);
    write_count(w, "retries", r->retries);
    write_count(w, "recoveries", r->recoveries);
    write_count(w, "moves", r->moves);
    write_count(w, "prompt_tokens_total", r->prompt_tokens_total);
    write_count(w, "generated_tokens_total", r->generated_tokens_total);
    bt_json_object_end(w);
}

static void write_worker(bt_json_writer *w, const Baton__V1__Worker *k)
{
    bt_json_object_begin(w);
    write_string(w, "name", k->name);
    write_string(w, "role", role_name(k->role));
    write_string(w, "state", state_name(k->state));
    write_string(w, "model", k->model);
    write_string(w, "numerics_id", k->numerics_id);
    write_string(w, "kernels", k->kernels);
    write_string(w, "incarnation", k->incarnation);
    write_string(w, "address", k->address);
    write_number(w, "attached_s", k->attached_s);
    write_number(w, "report_age_ms", k->report_age_ms);
    write_count(w, "block_tokens", k->block_tokens);
    write_count(w, "blocks_total", k->blocks_total);
    write_count(w, "blocks_free", k->blocks_free);
    write_count(w, "blocks_cached", k->blocks_cached);
    write_count(w, "requests_running", k->requests_running);
    write_count(w, "requests_waiting", k->requests_waiting);
    write_count(w, "prefill_tokens", k->prefill_tokens);
    write_count(w, "recomputed_tokens", k->recomputed_tokens);
    write_count(w, "decode_tokens", k->decode_tokens);
    write_count(w, "prefix_hit_tokens", k->prefix_hit_tokens);
    write_count(w, "prefix_miss_tokens", k->prefix_miss_tokens);
    write_count(w, "preemptions", k->preemptions);
    write_count(w, "pulls", k->pulls);
    write_count(w, "partial_pulls", k->partial_pulls);
    write_count(w, "blocks_pulled", k->blocks_pulled);
    write_count(w, "bytes_pulled", k->bytes_pulled);
    write_count(w, "pulls_failed", k->pulls_failed);
    write_count(w, "bytes_served", k->bytes_served);
    write_number(w, "step_ms", k->step_ms);
    write_count(w, "prefix_queries", k->prefix_queries);
    write_count(w, "prefix_hits", k->prefix_hits);
    write_count(w, "blocks_evicted", k->blocks_evicted);
    write_count(w, "evicted_last_minute", k->evicted_last_minute);
    write_count(w, "slots_written", k->slots_written);
    write_count(w, "slots_allocated", k->slots_allocated);
    bt_json_object_end(w);
}

static void print_json(const Baton__V1__GetClusterStatusReply *reply)
{
    bt_json_writer w;
    bt_json_writer_init(&w, 2);
    bt_json_object_begin(&w);
    if (reply->router) {
        bt_json_key(&w, "router");
        write_router(&w, reply->router);
    }
    bt_json_key(&w, "workers");
    bt_json_array_begin(&w);
    for (size_t i = 0; i < reply->n_workers; i++) {
        write_worker(&w, reply->workers[i]);
    }
    bt_json_array_end(&w);
    bt_json_object_end(&w);
    const char *text = bt_json_writer_text(&w, NULL);
    puts(text ? text : "{}");
    bt_json_writer_deinit(&w);
}

typedef struct shown {
    const status_options *options;
    bool ready;
} shown;

static void on_reply(void *ctx, const ProtobufCMessage *message)
{
    shown *s = ctx;
    const Baton__V1__GetClusterStatusReply *reply = (const void *)message;
    s->ready = reply->router && reply->router->ready;
    if (s->options->json) {
        print_json(reply);
    } else {
        print_table(reply);
    }
}

static int run(int argc, char **argv)
{
    status_options o = {0};
    bt_config *config = NULL;
    const int early = bt_cli_configure(&spec, argc, argv, &o, &config);
    if (early != BT_CLI_RUN) {
        return early;
    }
    bt_error err = {""};
    bt_client *client = NULL;
    shown s = {.options = &o};
    bt_status status = bt_client_open(&o.client, &client, &err);
    if (status == BT_OK) {
        Baton__V1__GetClusterStatusRequest request = BATON__V1__GET_CLUSTER_STATUS_REQUEST__INIT;
        const bt_client_call call = {
            .path = "/baton.v1.Generation/GetClusterStatus",
            .request = &request.base,
            .reply_type = &baton__v1__get_cluster_status_reply__descriptor,
            .timeout_ns = o.timeout_ns,
            .on_reply = on_reply,
            .ctx = &s,
        };
        status = bt_client_run(client, &call, &err);
        bt_client_close(client);
    }
    bt_config_destroy(config);
    if (status != BT_OK) {
        return bt_cli_fail("status", status, &err, false);
    }
    return s.ready ? BT_CLI_OK : BT_CLI_FAILED;
}

const bt_cli_command bt_cli_status = {
    .name = "status",
    .summary = "show the router's workers, their load and counters",
    .run = run,
};
