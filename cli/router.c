/* SPDX-License-Identifier: Apache-2.0 */
/* `baton router`: serves clients and lets workers attach, until a signal. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "cli/client.h"
#include "cli/process.h"
#include "common/name.h"
#include "common/socket.h"
#include "proto/link.h"
#include "router/router.h"

typedef struct router_options {
    bt_config_list models;
    const char *listen;
    const char *attach;
    const char *http;
    const char *name;
    int64_t requests_max;
    int64_t queue_max;
    int64_t prompt_tokens_max;
    uint64_t request_bytes_max;
    int64_t request_time_ns;
    int64_t queue_time_ns;
    int64_t ttft_max_ns;
    int64_t tpot_max_ns;
    int64_t client_requests_max;
    int64_t client_prompt_tokens_max;
    uint64_t client_bytes_max;
    uint64_t slow_client_bytes;
    int64_t slow_client_ns;
    int64_t http_keepalive_ns;
    int64_t retry_pushback_ns;
    bool local_prefill;
    int64_t local_prefill_tokens;
    bool allow_mixed_numerics;
    int64_t attempts_max;
    int64_t recoveries_max;
    uint64_t drain_prefix_bytes;
    int64_t prefix_blocks_max;
    int64_t worker_timeout_ns;
    int64_t ring_requests;
    const char *tls_cert;
    const char *tls_key;
    const char *tls_client_ca;
    const char *attach_tls_cert;
    const char *attach_tls_key;
    const char *attach_tls_client_ca;
    bt_process_options process;
} router_options;

#define FIELD(field) offsetof(router_options, field)
#define MS INT64_C(1000000)
#define DAY (86400000 * MS)

/* Defaults are written here, for --help and --print-config; they are those of
 * bt_router_options_init(). */

static const bt_config_option options_table[] = {
    {.name = "model",
     .type = BT_CONFIG_STRINGS,
     .group = "What it serves",
     .placeholder = "FILE[=NAME]",
     .help = "GGUF file whose tokenizer and chat template it uses (the weights are not read), and "
             "the name that requests give; the file's name without .gguf if there is none. Again "
             "for each further model. Required.",
     .offset = FIELD(models)},
    {.name = "listen",
     .type = BT_CONFIG_STRING,
     .group = "What it serves",
     .fallback = BT_CLIENT_ADDRESS,
     .placeholder = "HOST:PORT",
     .help = "Where clients connect (gRPC).",
     .offset = FIELD(listen)},
    {.name = "attach",
     .type = BT_CONFIG_STRING,
     .group = "What it serves",
     .fallback = "127.0.0.1:7071",
     .placeholder = "HOST:PORT",
     .help = "Where workers attach and operators drain and explain, with the cluster key.",
     .offset = FIELD(attach)},
    {.name = "http",
     .type = BT_CONFIG_STRING,
     .group = "What it serves",
     .placeholder = "HOST:PORT",
     .help = "Where HTTP clients connect (OpenAI's API). If not given: the host of --listen, and "
             "its port and 10 (7080). \"none\" serves no HTTP.",
     .offset = FIELD(http)},
    {.name = "name",
     .type = BT_CONFIG_STRING,
     .group = "What it serves",
     .fallback = "router",
     .placeholder = "NAME",
     .help = "Name in status and in the workers' logs: letters, digits, '-', '_' or '.'.",
     .offset = FIELD(name)},
    {.name = "requests-max",
     .type = BT_CONFIG_INT,
     .group = "Limits",
     .fallback = "1024",
     .unit = "requests",
     .min = 1,
     .max = 65536,
     .help = "Most requests at a time, queued ones included; further ones get RESOURCE_EXHAUSTED.",
     .offset = FIELD(requests_max)},
    {.name = "queue-max",
     .type = BT_CONFIG_INT,
     .group = "Limits",
     .fallback = "512",
     .unit = "requests",
     .min = 0,
     .max = 65536,
     .help = "Most requests that wait for a worker.",
     .offset = FIELD(queue_max)},
    {.name = "queue-time",
     .type = BT_CONFIG_DURATION,
     .group = "Limits",
     .fallback = "30s",
     .min = 0,
     .max = DAY,
     .help = "Longest wait for a worker that has room; refused at once when it would be longer, by "
             "the times that the workers measure.",
     .offset = FIELD(queue_time_ns)},
    {.name = "ttft-max",
     .type = BT_CONFIG_DURATION,
     .group = "Limits",
     .fallback = "0",
     .min = 0,
     .max = DAY,
     .help = "Refuses a request at once when its first token would take longer; 0: never.",
     .offset = FIELD(ttft_max_ns)},
    {.name = "tpot-max",
     .type = BT_CONFIG_DURATION,
     .group = "Limits",
     .fallback = "0",
     .min = 0,
     .max = DAY,
     .help = "Decode workers get no more sequences than keep the time per token below it; 0: as "
             "many as they take.",
     .offset = FIELD(tpot_max_ns)},
    {.name = "client-requests-max",
     .type = BT_CONFIG_INT,
     .group = "Limits",
     .fallback = "0",
     .unit = "requests",
     .min = 0,
     .max = 65536,
     .help = "Most requests of one client at a time: of one API key, or of one address where no "
             "keys are asked for; 0: no limit.",
     .offset = FIELD(client_requests_max)},
    {.name = "client-prompt-tokens-max",
     .type = BT_CONFIG_INT,
     .group = "Limits",
     .fallback = "0",
     .unit = "tokens",
     .min = 0,
     .max = INT64_C(1) << 40,
     .help = "Most prompt tokens of one client's requests at a time; 0: no limit.",
     .offset = FIELD(client_prompt_tokens_max)},
    {.name = "client-bytes-max",
     .type = BT_CONFIG_BYTES,
     .group = "Limits",
     .fallback = "64MiB",
     .min = 0,
     .max = INT64_MAX,
     .help =
         "Most bytes of one client's requests and of replies that it has not read; 0: no limit.",
     .offset = FIELD(client_bytes_max)},
    {.name = "prompt-tokens-max",
     .type = BT_CONFIG_INT,
     .group = "Limits",
     .fallback = "0",
     .unit = "tokens",
     .min = 0,
     .max = 1 << 24,
     .help = "Longest prompt; 0 leaves it to the model's context.",
     .offset = FIELD(prompt_tokens_max)},
    {.name = "request-bytes-max",
     .type = BT_CONFIG_BYTES,
     .group = "Limits",
     .fallback = "4MiB",
     .min = 1024,
     .max = INT64_C(1) << 30,
     .help = "Largest request message.",
     .offset = FIELD(request_bytes_max)},
    {.name = "max-request-time",
     .type = BT_CONFIG_DURATION,
     .group = "Limits",
     .fallback = "10m",
     .min = MS,
     .max = DAY,
     .help = "Deadline of a request that brings none, and the longest that one may bring.",
     .offset = FIELD(request_time_ns)},
    {.name = "slow-client-bytes",
     .type = BT_CONFIG_BYTES,
     .group = "Limits",
     .fallback = "4MiB",
     .min = 4096,
     .max = INT64_MAX,
     .help = "Text that waits for a client that does not read, before its stream is aborted.",
     .offset = FIELD(slow_client_bytes)},
    {.name = "slow-client-time",
     .type = BT_CONFIG_DURATION,
     .group = "Limits",
     .fallback = "30s",
     .min = MS,
     .max = DAY,
     .help = "A client that takes nothing of what waits for it for so long loses its stream.",
     .offset = FIELD(slow_client_ns)},
    {.name = "http-keepalive",
     .type = BT_CONFIG_DURATION,
     .group = "Limits",
     .fallback = "10s",
     .min = MS,
     .max = DAY,
     .help = "Silence on a stream over HTTP after which a comment is sent, so that clients and "
             "proxies wait on.",
     .offset = FIELD(http_keepalive_ns)},
    {.name = "retry-pushback",
     .type = BT_CONFIG_DURATION,
     .group = "Limits",
     .fallback = "1s",
     .min = 0,
     .max = DAY,
     .help = "The least that a client is told to wait when there is no room; with a backlog it is "
             "told more.",
     .offset = FIELD(retry_pushback_ns)},
    {.name = "ring-requests",
     .type = BT_CONFIG_INT,
     .group = "Limits",
     .unit = "requests",
     .fallback = "1024",
     .min = 0,
     .max = 1 << 20,
     .help = "Ended requests that it remembers for `baton explain`, two kilobytes each.",
     .offset = FIELD(ring_requests)},
    {.name = "local-prefill",
     .type = BT_CONFIG_BOOL,
     .group = "Placement",
     .fallback = "true",
     .help = "Lets decode workers compute prompts when no prefill worker is ready.",
     .offset = FIELD(local_prefill)},
    {.name = "local-prefill-tokens",
     .type = BT_CONFIG_INT,
     .group = "Placement",
     .fallback = "0",
     .unit = "tokens",
     .min = 0,
     .max = 1 << 24,
     .help =
         "A prompt with fewer tokens left to compute than this is computed on the decode worker; "
         "0 is never.",
     .offset = FIELD(local_prefill_tokens)},
    {.name = "attempts-max",
     .type = BT_CONFIG_INT,
     .group = "Placement",
     .fallback = "3",
     .unit = "attempts",
     .min = 1,
     .max = 16,
     .help = "How often a request is placed in a row without a new token before it fails.",
     .offset = FIELD(attempts_max)},
    {.name = "recoveries-max",
     .type = BT_CONFIG_INT,
     .group = "Placement",
     .fallback = "3",
     .unit = "recoveries",
     .min = 0,
     .max = 100,
     .help = "How often a stream that has begun goes on elsewhere when its worker is lost.",
     .offset = FIELD(recoveries_max)},
    {.name = "prefix-blocks-max",
     .type = BT_CONFIG_INT,
     .group = "Placement",
     .fallback = "262144",
     .unit = "blocks",
     .min = 1,
     .max = INT64_C(1) << 28,
     .help = "KV blocks (of 16 tokens) whose places it remembers.",
     .offset = FIELD(prefix_blocks_max)},
    {.name = "drain-prefix-bytes",
     .type = BT_CONFIG_BYTES,
     .group = "Placement",
     .fallback = "256M",
     .min = 0,
     .max = INT64_C(1) << 50,
     .help =
         "When a worker drains, other ones pull so much of its hot cached prefixes, at most; 0 is "
         "nothing.",
     .offset = FIELD(drain_prefix_bytes)},
    {.name = "worker-timeout",
     .type = BT_CONFIG_DURATION,
     .group = "Placement",
     .fallback = "3s",
     .min = 1000 * MS, /* twice the link's ping */
     .max = DAY,
     .help = "A worker that is silent for so long is taken for dead.",
     .offset = FIELD(worker_timeout_ns)},
    {.name = "allow-mixed-numerics",
     .type = BT_CONFIG_BOOL,
     .group = "Placement",
     .fallback = "false",
     .help = "Pairs workers whose results differ in their last bits; replies then say so.",
     .offset = FIELD(allow_mixed_numerics)},
    {.name = "tls-cert",
     .type = BT_CONFIG_STRING,
     .group = "TLS",
     .placeholder = "FILE",
     .help = "Certificate, with its chain, that clients are shown (PEM): --listen and --http then "
             "speak TLS alone. Read again when it changes, but for --http.",
     .offset = FIELD(tls_cert)},
    {.name = "tls-key",
     .type = BT_CONFIG_STRING,
     .group = "TLS",
     .placeholder = "FILE",
     .help = "Its private key.",
     .offset = FIELD(tls_key)},
    {.name = "tls-client-ca",
     .type = BT_CONFIG_STRING,
     .group = "TLS",
     .placeholder = "FILE",
     .help = "Clients have to show a certificate of this authority.",
     .offset = FIELD(tls_client_ca)},
    {.name = "attach-tls-cert",
     .type = BT_CONFIG_STRING,
     .group = "TLS",
     .placeholder = "FILE",
     .help = "Certificate that workers are shown at --attach; they need --tls-ca.",
     .offset = FIELD(attach_tls_cert)},
    {.name = "attach-tls-key",
     .type = BT_CONFIG_STRING,
     .group = "TLS",
     .placeholder = "FILE",
     .help = "Its private key.",
     .offset = FIELD(attach_tls_key)},
    {.name = "attach-tls-client-ca",
     .type = BT_CONFIG_STRING,
     .group = "TLS",
     .placeholder = "FILE",
     .help = "Workers have to show a certificate of this authority, besides the cluster key.",
     .offset = FIELD(attach_tls_client_ca)},
    BT_PROCESS_CONFIG_ROWS(router_options, process),
};

static const bt_config_spec spec = {
    .command = "baton router",
    .section = "router",
    .summary = "Runs a router: clients connect to --listen (gRPC) and --http, workers attach to "
               "--attach. It\n"
               "serves until Ctrl-C. All its state is soft: a restarted one knows its workers "
               "again in a second.",
    .examples =
        "  baton router --model SmolLM2-135M-Instruct.Q4_1.gguf\n"
        "  baton router --model a.gguf=small --model b.gguf=large --listen 0.0.0.0:7070 \\\n"
        "      --attach 10.0.0.1:7071 --cluster-key-file cluster.key --api-keys api.keys \\\n"
        "      --tls-cert router.pem --tls-key router.key\n",
    .options = options_table,
    .n_options = BT_ARRAY_LEN(options_table),
};

typedef struct router_process {
    router_options options;
    bt_process process;
    bt_router *router;
    bool is_usage; /* what is wrong so far is the command line */
} router_process;

static bt_router_model model_of(char *text)
{
    bt_router_model model = {.path = text};
    bt_cli_split_model(text, &model.name);
    return model;
}

/* Nothing that others reach is open by mistake. */
static bt_status check_doors(router_process *r, bt_error *err)
{
    const router_options *o = &r->options;
    bt_cli_guards *guards = &r->process.guards;
    guards->has_client_ca = o->tls_client_ca != NULL && o->tls_client_ca[0] != '\0';
    bt_status status = bt_cli_check_door(BT_CLI_DOOR_CLIENTS, "--listen", o->listen, guards, err);
    if (status == BT_OK) {
        status = bt_cli_check_door(BT_CLI_DOOR_CLUSTER, "--attach", o->attach, guards, err);
    }
    const bool has_tls = o->tls_cert != NULL && o->tls_cert[0] != '\0';
    if (status == BT_OK && guards->has_keys && !has_tls && !bt_socket_is_local(o->listen)) {
        bt_log(BT_WARN,
               "API keys cross the network in plain text: address=%s advice=\"--tls-cert "
               "and --tls-key, or TLS in front of it\"",
               o->listen);
    }
    return status;
}

static bt_status start_router(router_process *r, bt_error *err)
{
    const router_options *o = &r->options;
    if (o->models.n == 0) {
        return bt_error_set(err, BT_EINVAL, "a router needs a model: --model FILE[=NAME]");
    }
    if (o->models.n > BT_ROUTER_MODELS_MAX) {
        return bt_error_set(err, BT_EINVAL, "a router serves %d models at most",
                            BT_ROUTER_MODELS_MAX);
    }
    bt_status status = check_doors(r, err);
    if (status != BT_OK) {
        return status;
    }
    bt_router_options options;
    bt_router_options_init(&options);
    char texts[BT_ROUTER_MODELS_MAX][1024];
    for (size_t i = 0; i < o->models.n; i++) {
        if (snprintf(texts[i], sizeof texts[i], "%s", o->models.items[i]) >= (int)sizeof texts[i]) {
            return bt_error_set(err, BT_EINVAL, "--model: the path is too long");
        }
        options.models[i] = model_of(texts[i]);
    }
    options.n_models = o->models.n;
    options.client_address = o->listen;
    options.attach_address = o->attach;
    char http[BT_CLI_ADDRESS_BYTES];
    options.http_address = bt_cli_http_address(o->http, o->listen, http);
    status = bt_cli_check_door(BT_CLI_DOOR_CLIENTS, "--http", options.http_address,
                               &r->process.guards, err);
    if (status != BT_OK) {
        return status;
    }
    options.name = o->name;
    options.cluster_key = r->process.cluster_key;
    options.keys = r->process.keys;
    options.tls_cert = o->tls_cert;
    options.tls_key = o->tls_key;
    options.tls_client_ca = o->tls_client_ca;
    options.attach_tls_cert = o->attach_tls_cert;
    options.attach_tls_key = o->attach_tls_key;
    options.attach_tls_client_ca = o->attach_tls_client_ca;
    options.requests_max = (uint32_t)o->requests_max;
    options.queue_max = (uint32_t)o->queue_max;
    options.prompt_tokens_max = (uint32_t)o->prompt_tokens_max;
    options.request_bytes_max = (uint32_t)o->request_bytes_max;
    options.request_time_ms = (uint64_t)(o->request_time_ns / MS);
    options.queue_time_ms = (uint64_t)(o->queue_time_ns / MS);
    options.ttft_max_ms = (uint64_t)(o->ttft_max_ns / MS);
    options.tpot_max_ms = (uint64_t)(o->tpot_max_ns / MS);
    options.client_requests_max = (uint32_t)o->client_requests_max;
    options.client_prompt_tokens_max = (uint64_t)o->client_prompt_tokens_max;
    options.client_bytes_max = o->client_bytes_max;
    options.read_time_ms = (uint64_t)(o->slow_client_ns / MS);
    options.slow_client_bytes = o->slow_client_bytes;
    options.http_keepalive_ms = (uint64_t)(o->http_keepalive_ns / MS);
    options.retry_pushback_ms = (uint64_t)(o->retry_pushback_ns / MS);
    options.local_prefill = o->local_prefill;
    options.local_prefill_tokens = (uint32_t)o->local_prefill_tokens;
    options.allow_mixed_numerics = o->allow_mixed_numerics;
    options.attempts_max = (uint32_t)o->attempts_max;
    options.recoveries_max = (uint32_t)o->recoveries_max;
    options.drain_prefix_bytes = o->drain_prefix_bytes;
    options.prefix_blocks_max = (uint32_t)o->prefix_blocks_max;
    options.worker_timeout_ms = (uint64_t)(o->worker_timeout_ns / MS);
    options.ring_requests = (uint32_t)o->ring_requests;
    r->is_usage = false;
    status = bt_router_create(r->process.loop, r->process.rpc, r->process.metrics, &options,
                              &r->router, err);
    if (status == BT_OK) {
        bt_log(BT_INFO, "router started: client_port=%d attach_port=%d models=%zu http_port=%d",
               bt_router_client_port(r->router), bt_router_attach_port(r->router), o->models.n,
               bt_router_http_port(r->router));
    }
    return status;
}

static const char *health(void *ctx, bool *ready)
{
    const router_process *r = ctx;
    *ready = bt_router_is_ready(r->router);
    return *ready ? "ready" : "no model has workers for a whole request";
}

static void on_stopped(void *ctx)
{
    router_process *r = ctx;
    bt_process_stopped(&r->process);
}

static void stop(void *ctx, uint64_t grace_ms)
{
    router_process *r = ctx;
    bt_router_shutdown(r->router, grace_ms, on_stopped, r);
}

static bt_status serve(router_process *r, bt_error *err)
{
    const char *name = r->options.name;
    bt_status status = bt_name_check("--name", name, BT_LINK_NAME_MAX, err);
    if (status == BT_OK) { /* the log bears it */
        status = bt_process_init(&r->process, name, &r->options.process, err);
    }
    if (status == BT_OK) {
        status = start_router(r, err);
    }
    if (status != BT_OK) {
        return status;
    }
    const bt_process_hooks hooks = {.health = health, .stop = stop, .ctx = r};
    status = bt_process_run(&r->process, &hooks);
    if (status != BT_OK) {
        bt_error_set(err, status, "cannot run: %s", bt_status_text(status));
    }
    return status;
}

static int run(int argc, char **argv)
{
    router_process r = {.is_usage = true};
    bt_config *config = NULL;
    const int code = bt_cli_configure(&spec, argc, argv, &r.options, &config);
    if (code != BT_CLI_RUN) {
        return code;
    }
    bt_error err = {{0}};
    const bt_status status = serve(&r, &err);
    bt_router_destroy(r.router);
    bt_process_deinit(&r.process);
    bt_config_destroy(config);
    return status == BT_OK ? BT_CLI_OK : bt_cli_fail(argv[0], status, &err, r.is_usage);
}

const bt_cli_command bt_cli_router = {
    .name = "router",
    .summary = "run a router: clients and workers connect to it",
    .run = run,
};
