/* SPDX-License-Identifier: Apache-2.0 */
/* `baton bench serve`: open-loop load against a router. Requests leave at their scheduled times
 * whether or not answers keep up; one loop and one channel carry all of them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cli/bench_load.h"
#include "cli/bench_report.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/terminal.h"
#include "common/clock.h"
#include "common/rpc.h"
#include "proto/generation.pb-c.h"

typedef struct bench_options {
    bt_client_options client;
    const char *model;
    int64_t n_requests;
    double rate;
    const char *trace;
    double time_scale;
    int64_t length_divisor;
    const char *prompt;
    const char *output;
    int64_t hash_block_tokens;
    int64_t n_shared;
    int64_t seed;
    double ttft_ms;
    double tpot_ms;
    int64_t timeout_ns;
    bool json;
} bench_options;

#define AT(field) offsetof(bench_options, field)

static const bt_config_option options_table[] = {
    {.name = "address",
     .type = BT_CONFIG_STRING,
     .group = "Target",
     .fallback = BT_CLIENT_ADDRESS,
     .placeholder = "HOST:PORT",
     .help = "The router.",
     .offset = AT(client.address)},
    {.name = "model-name",
     .type = BT_CONFIG_STRING,
     .group = "Target",
     .fallback = "",
     .placeholder = "NAME",
     .help = "One of the router's models; its only or first one if not given.",
     .offset = AT(model)},
    {.name = "requests",
     .type = BT_CONFIG_INT,
     .group = "Load",
     .fallback = "100",
     .unit = "requests",
     .min = 1,
     .max = 10000000,
     .help = "How many; of a trace, at most so many.",
     .offset = AT(n_requests)},
    {.name = "rate",
     .type = BT_CONFIG_FLOAT,
     .group = "Load",
     .fallback = "0",
     .unit = "requests/s",
     .float_min = 0,
     .float_max = 1000000,
     .help = "Poisson arrivals at this rate; 0 sends all at once, or at a trace's own times.",
     .offset = AT(rate)},
    {.name = "prompt-tokens",
     .type = BT_CONFIG_STRING,
     .group = "Load",
     .fallback = "128",
     .placeholder = "N|A-B",
     .help = "Prompt length, drawn evenly from a range; with --trace the bounds of its lengths.",
     .offset = AT(prompt)},
    {.name = "output-tokens",
     .type = BT_CONFIG_STRING,
     .group = "Load",
     .fallback = "64",
     .placeholder = "N|A-B",
     .help = "Generated tokens (the end of text is ignored); with --trace the bounds.",
     .offset = AT(output)},
    {.name = "shared-prefix",
     .type = BT_CONFIG_INT,
     .group = "Load",
     .fallback = "0",
     .unit = "tokens",
     .min = 0,
     .max = 1 << 20,
     .help = "First tokens that all prompts share.",
     .offset = AT(n_shared)},
    {.name = "trace",
     .type = BT_CONFIG_STRING,
     .group = "Load",
     .placeholder = "FILE",
     .help = "Arrivals and lengths of Azure's (CSV) or Mooncake's (JSON lines) public traces.",
     .offset = AT(trace)},
    {.name = "time-scale",
     .type = BT_CONFIG_FLOAT,
     .group = "Load",
     .fallback = "1",
     .float_min = 0.000001,
     .float_max = 1000000,
     .help = "Multiplies a trace's own times: 2 is half the rate.",
     .offset = AT(time_scale)},
    {.name = "length-divisor",
     .type = BT_CONFIG_INT,
     .group = "Load",
     .fallback = "1",
     .min = 1,
     .max = 1000,
     .help = "Divides a trace's lengths, for small models.",
     .offset = AT(length_divisor)},
    {.name = "hash-block-tokens",
     .type = BT_CONFIG_INT,
     .group = "Load",
     .fallback = "32",
     .unit = "tokens",
     .min = 1,
     .max = 512,
     .help = "Tokens that stand for one 512-token block of a Mooncake trace.",
     .offset = AT(hash_block_tokens)},
    {.name = "seed",
     .type = BT_CONFIG_INT,
     .group = "Load",
     .fallback = "1",
     .min = 0,
     .max = INT64_MAX,
     .help = "The same seed gives the same load.",
     .offset = AT(seed)},
    {.name = "timeout",
     .type = BT_CONFIG_DURATION,
     .group = "Load",
     .fallback = "5m",
     .help = "Deadline of each request.",
     .offset = AT(timeout_ns)},
    {.name = "ttft-target",
     .type = BT_CONFIG_FLOAT,
     .group = "Report",
     .fallback = "0",
     .unit = "ms",
     .float_min = 0,
     .float_max = 1e9,
     .help = "Time to first token that counts as met; 0: any.",
     .offset = AT(ttft_ms)},
    {.name = "tpot-target",
     .type = BT_CONFIG_FLOAT,
     .group = "Report",
     .fallback = "0",
     .unit = "ms",
     .float_min = 0,
     .float_max = 1e9,
     .help = "Mean time per token after the first that counts as met; 0: any.",
     .offset = AT(tpot_ms)},
    {.name = "json",
     .type = BT_CONFIG_BOOL,
     .group = "Report",
     .fallback = "false",
     .help = "Prints the report as JSON.",
     .offset = AT(json)},
    BT_CLIENT_CONFIG_ROWS(bench_options, client),
};

static const bt_config_spec spec = {
    .command = "baton bench serve",
    .section = "bench-serve",
    .summary =
        "Sends requests of random tokens at scheduled times and reports TTFT, TPOT, end-to-end\n"
        "time, throughput and how many met the targets. Latency counts from the scheduled\n"
        "time, so a server that falls behind shows it.",
    .examples = "  baton bench serve --rate 2 --requests 200 --prompt-tokens 64-512\n"
                "  baton bench serve --trace conv.csv --length-divisor 4 --rate 0.5 \\\n"
                "      --prompt-tokens 16-1024 --output-tokens 4-256 --ttft-target 2000\n",
    .options = options_table,
    .n_options = BT_ARRAY_LEN(options_table),
};

/* One request under way. */
typedef struct flight {
    struct bench *bench;
    bt_bench_result *result;
    const bt_bench_request *request;
    bt_rpc_call *call;
} flight;

typedef struct bench {
    const bench_options *options;
    char authorization[BT_CLIENT_AUTHORIZATION_BYTES];
    bt_bench_load load;
    bt_bench_result *results; /* [load.n] */
    flight *flights;          /* [load.n] */
    bt_loop *loop;
    bt_rpc *rpc;
    bt_rpc_channel *channel;
    bt_timer *timer;
    bt_signal *interrupt;
    bt_progress progress;
    int64_t began_ns;
    size_t n_sent;
    size_t n_over;
    bool interrupted;
} bench;

static void finish_one(bench *b)
{
    b->n_over++;
    bt_progress_update(&b->progress, b->n_over, b->load.n);
    if (b->n_over == b->load.n || (b->interrupted && b->n_over == b->n_sent)) {
        bt_loop_stop(b->loop);
    }
}

static void on_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    flight *f = ctx;
    if (end) {
        return;
    }
    Baton__V1__GenerateReply *reply = baton__v1__generate_reply__unpack(NULL, len, data);
    if (!reply) {
        bt_rpc_call_cancel(call);
        return;
    }
    bt_bench_result *r = f->result;
    if (reply->n_token_ids > 0) {
        const int64_t now_ns = bt_clock_now_ns();
        if (r->first_ns == 0) {
            r->first_ns = now_ns;
        } else if (now_ns - r->last_ns > r->gap_max_ns) {
            r->gap_max_ns = now_ns - r->last_ns;
        }
        r->last_ns = now_ns;
        r->n_output += (uint32_t)reply->n_token_ids;
    }
    if (reply->finish && reply->finish->usage) {
        r->n_cached = reply->finish->usage->cached_tokens;
    }
    baton__v1__generate_reply__free_unpacked(reply, NULL);
    bt_rpc_call_recv(call);
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    flight *f = ctx;
    f->call = NULL;
    f->result->status = bt_rpc_status_of(code);
    if (code == BT_RPC_OK && f->result->n_output < f->request->n_output) {
        f->result->status = BT_EABORTED; /* cut short */
    }
    if (code != BT_RPC_OK && f->bench->n_over == 0 && !f->bench->interrupted) {
        fprintf(stderr, "baton bench: the first request failed: %s\n", message ? message : "");
    }
    finish_one(f->bench);
}

static const bt_rpc_callbacks callbacks = {.on_message = on_message, .on_done = on_done};

static void send_one(bench *b, size_t i)
{
    flight *f = &b->flights[i];
    const bt_bench_request *q = &b->load.requests[i];
    *f = (flight){.bench = b, .result = &b->results[i], .request = q};
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    sampling.max_tokens_presence_case = BATON__V1__SAMPLING__MAX_TOKENS_PRESENCE_MAX_TOKENS;
    sampling.max_tokens = q->n_output;
    sampling.ignore_eos = true;
    Baton__V1__TokenIds ids = BATON__V1__TOKEN_IDS__INIT;
    ids.n_ids = q->n_prompt;
    ids.ids = q->prompt;
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    request.model = (char *)(uintptr_t)b->options->model;
    request.sampling = &sampling;
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    request.token_ids = &ids;
    const size_t len = baton__v1__generate_request__get_packed_size(&request);
    uint8_t *bytes = malloc(len);
    const bt_rpc_meta meta = {.key = "authorization", .value = b->authorization};
    const bt_rpc_start start = {.path = "/baton.v1.Generation/Generate",
                                .deadline_ns = b->options->timeout_ns,
                                .meta = &meta,
                                .n_meta = *b->authorization ? 1 : 0};
    f->result->n_prompt = q->n_prompt;
    f->result->scheduled_ns = b->began_ns + q->at_ns;
    f->result->sent_ns = bt_clock_now_ns();
    if (!bytes || bt_rpc_channel_start(b->channel, &start, &callbacks, f, &f->call) != BT_OK) {
        free(bytes);
        f->result->status = BT_ENOMEM;
        finish_one(b);
        return;
    }
    (void)baton__v1__generate_request__pack(&request, bytes);
    bt_rpc_call_send(f->call, bytes, len);
    bt_rpc_call_close_send(f->call);
    bt_rpc_call_recv(f->call);
    free(bytes);
}

/* Sends all that are due, and sleeps until the next one is. */
static void on_timer(void *ctx)
{
    bench *b = ctx;
    const int64_t now_ns = bt_clock_now_ns();
    while (b->n_sent < b->load.n && !b->interrupted &&
           b->began_ns + b->load.requests[b->n_sent].at_ns <= now_ns) {
        send_one(b, b->n_sent++);
    }
    if (b->n_sent < b->load.n && !b->interrupted) {
        const int64_t wait_ns = b->began_ns + b->load.requests[b->n_sent].at_ns - now_ns;
        bt_timer_start(b->timer, wait_ns > 0 ? (uint64_t)(wait_ns / 1000000) : 0, 0);
    }
}

static void on_interrupt(void *ctx)
{
    bench *b = ctx;
    b->interrupted = true;
    for (size_t i = 0; i < b->n_sent; i++) {
        if (b->flights[i].call) {
            bt_rpc_call_cancel(b->flights[i].call);
        }
    }
    if (b->n_over == b->n_sent) {
        bt_loop_stop(b->loop);
    }
}

static bt_status open_bench(bench *b, bt_error *err)
{
    const bt_rpc_tls *tls = bt_cli_tls(&b->options->client.tls);
    bt_status status = tls ? bt_rpc_tls_check(tls, false, err) : BT_OK;
    if (status == BT_OK) {
        status = bt_client_authorization(&b->options->client, b->authorization, err);
    }
    if (status != BT_OK) {
        return status;
    }
    b->results = calloc(b->load.n, sizeof *b->results);
    b->flights = calloc(b->load.n, sizeof *b->flights);
    status = b->results && b->flights ? BT_OK : BT_ENOMEM;
    if (status == BT_OK) {
        status = bt_loop_create(&b->loop);
    }
    if (status == BT_OK) {
        status = bt_rpc_create(b->loop, &b->rpc);
    }
    if (status == BT_OK) {
        const bt_rpc_channel_options options = {.address = b->options->client.address, .tls = tls};
        status = bt_rpc_channel_create(b->rpc, &options, &b->channel);
    }
    if (status == BT_OK) {
        status = bt_timer_create(b->loop, on_timer, b, &b->timer);
    }
    if (status == BT_OK) {
        status = bt_signal_create(b->loop, SIGINT, on_interrupt, b, &b->interrupt);
    }
    return status == BT_OK ? BT_OK : bt_error_set(err, status, "cannot start: no memory");
}

static void close_bench(bench *b)
{
    if (b->interrupt) {
        bt_signal_destroy(b->interrupt);
    }
    if (b->timer) {
        bt_timer_destroy(b->timer);
    }
    if (b->channel) {
        bt_rpc_channel_destroy(b->channel);
    }
    if (b->rpc) {
        bt_rpc_destroy(b->rpc);
    }
    bt_loop_destroy(b->loop);
    free(b->results);
    free(b->flights);
    bt_bench_load_free(&b->load);
}

static double cpu_seconds(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static bt_status run_load(bench *b, bt_error *err)
{
    const double cpu_before = cpu_seconds();
    bt_progress_begin(&b->progress, "requests", b->options->json);
    b->began_ns = bt_clock_now_ns();
    bt_timer_start(b->timer, 0, 0);
    bt_loop_run(b->loop);
    bt_progress_end(&b->progress, b->interrupted ? "interrupted" : NULL);
    const int64_t ended_ns = bt_clock_now_ns();
    const bt_bench_report report = {
        .results = b->results,
        .n = b->n_sent,
        .began_ns = b->began_ns,
        .ended_ns = ended_ns,
        .client_cpu = (cpu_seconds() - cpu_before) / ((double)(ended_ns - b->began_ns) / 1e9),
        .targets = {.ttft_ms = b->options->ttft_ms, .tpot_ms = b->options->tpot_ms},
    };
    const bt_status status = bt_bench_report_print(&report, b->options->json, stdout);
    return status == BT_OK ? BT_OK : bt_error_set(err, status, "no memory for the report");
}

typedef struct vocabulary {
    const char *model;
    uint32_t n;
} vocabulary;

static void on_models(void *ctx, const ProtobufCMessage *message)
{
    vocabulary *v = ctx;
    const Baton__V1__ListModelsReply *reply = (const void *)message;
    for (size_t i = 0; i < reply->n_models && v->n == 0; i++) {
        if (*v->model == '\0' || strcmp(v->model, reply->models[i]->name) == 0) {
            v->n = reply->models[i]->vocab_tokens;
        }
    }
}

/* How many token ids the model has: the router knows. */
static bt_status ask_vocabulary(const bench_options *o, uint32_t *n, bt_error *err)
{
    vocabulary v = {.model = o->model};
    bt_client *client;
    bt_status status = bt_client_open(&o->client, &client, err);
    if (status != BT_OK) {
        return status;
    }
    Baton__V1__ListModelsRequest request = BATON__V1__LIST_MODELS_REQUEST__INIT;
    const bt_client_call call = {
        .path = "/baton.v1.Generation/ListModels",
        .request = &request.base,
        .reply_type = &baton__v1__list_models_reply__descriptor,
        .timeout_ns = INT64_C(10000000000),
        .on_reply = on_models,
        .ctx = &v,
    };
    status = bt_client_run(client, &call, err);
    bt_client_close(client);
    if (status == BT_OK && v.n == 0) {
        status = bt_error_set(err, BT_ENOTFOUND, "the router has no model '%s'", o->model);
    }
    *n = v.n;
    return status;
}

static bt_status make_load(const bench_options *o, bt_bench_load *out, bt_error *err)
{
    bt_bench_load_options load = {
        .n_requests = (size_t)o->n_requests,
        .rate = o->rate,
        .time_scale = o->time_scale,
        .trace = o->trace,
        .length_divisor = (uint32_t)o->length_divisor,
        .hash_block_tokens = (uint32_t)o->hash_block_tokens,
        .n_shared = (uint32_t)o->n_shared,
        .seed = (uint64_t)o->seed,
    };
    if (bt_bench_range_parse(o->prompt, &load.prompt) != BT_OK) {
        return bt_error_set(err, BT_EINVAL, "--prompt-tokens: '%s' is neither N nor A-B",
                            o->prompt);
    }
    if (bt_bench_range_parse(o->output, &load.output) != BT_OK) {
        return bt_error_set(err, BT_EINVAL, "--output-tokens: '%s' is neither N nor A-B",
                            o->output);
    }
    const bt_status status = ask_vocabulary(o, &load.n_vocab, err);
    return status == BT_OK ? bt_bench_load_make(&load, out, err) : status;
}

static int run_serve(int argc, char **argv)
{
    bench_options o = {0};
    bt_config *config = NULL;
    const int early = bt_cli_configure(&spec, argc, argv, &o, &config);
    if (early != BT_CLI_RUN) {
        return early;
    }
    bt_error err = {""};
    bench b = {.options = &o};
    bt_status status = make_load(&o, &b.load, &err);
    if (status == BT_OK) {
        status = open_bench(&b, &err);
    }
    if (status == BT_OK) {
        status = run_load(&b, &err);
    }
    const bool complete = b.n_over == b.load.n;
    bool any_good = false;
    for (size_t i = 0; i < b.n_sent && status == BT_OK; i++) {
        any_good = any_good || b.results[i].status == BT_OK;
    }
    close_bench(&b);
    bt_config_destroy(config);
    if (status != BT_OK) {
        return bt_cli_fail("bench serve", status, &err, status == BT_EINVAL);
    }
    if (!complete) {
        return BT_CLI_INTERRUPTED;
    }
    return any_good ? BT_CLI_OK : BT_CLI_FAILED;
}

static int run(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "serve") == 0) {
        return run_serve(argc - 1, argv + 1);
    }
    const bool help = argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    if (argc >= 2 && !help) {
        fprintf(stderr, "baton bench: there is no '%s' to run\n\n", argv[1]);
    }
    fprintf(help ? stdout : stderr,
            "Usage: baton bench serve [OPTIONS]\n\n"
            "  serve      send load to a router and report latencies and throughput\n\n"
            "'baton bench serve --help' explains its options.\n");
    return help ? BT_CLI_OK : BT_CLI_USAGE;
}

const bt_cli_command bt_cli_bench = {
    .name = "bench",
    .summary = "measure a cluster under load",
    .run = run,
};
