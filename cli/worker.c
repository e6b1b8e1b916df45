/* SPDX-License-Identifier: Apache-2.0 */
/* `baton worker`: loads a model, attaches to the routers, and serves until a signal.
 *
 * Order: the admin address answers first (not ready: "loading the model"), then the model is
 * packed, the pool's memory taken, and only then the routers are dialled: who is attached works. */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/process.h"
#include "cli/terminal.h"
#include "common/alloc.h"
#include "common/name.h"
#include "common/socket.h"
#include "decode/worker.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"
#include "prefill/worker.h"

typedef struct worker_options {
    int role;
    const char *model;
    bt_config_list routers;
    const char *name;
    const char *kernels;
    int64_t n_threads;
    int64_t context_max;
    int kv_format;
    uint64_t pool_bytes;
    int64_t n_sharing;
    bool prefix_cache;
    uint64_t prefix_cache_bytes;
    bool has_prefix_cache_bytes;
    int64_t ring_requests;
    bool allow_mixed_numerics;
    int64_t requests_max;
    int64_t stuck_after_ns;
    int64_t running_max;
    int64_t token_budget;
    int64_t chunk;
    const char *kv_address;
    const char *kv_advertise_host;
    const char *kv_socket;
    int kv_transport;
    int kv_auth;
    uint64_t kv_rate_limit_bytes_s;
    int64_t lease_ns;
    bt_rpc_tls tls;
    bt_process_options process;
} worker_options;

enum { ROLE_PREFILL, ROLE_DECODE, ROLE_BOTH };

static const char *const roles[] = {"prefill", "decode", "both", NULL};
static const char *const kv_formats[] = {"bf16", "f32", NULL};
static const char *const transports[] = {"auto", "shm", "tcp", NULL};
static const bt_kv_transport transport_of[] = {
    BT_KV_TRANSPORT_AUTO,
    BT_KV_TRANSPORT_SHM,
    BT_KV_TRANSPORT_TCP,
};

static const char *const auths[] = {"auto", "frames", "full", NULL};
static const bt_kv_auth auth_of[] = {BT_KV_AUTH_AUTO, BT_KV_AUTH_FRAMES, BT_KV_AUTH_FULL};

#define FIELD(field) offsetof(worker_options, field)

static const bt_config_option options_table[] = {
    {.name = "role",
     .type = BT_CONFIG_ENUM,
     .group = "What it does",
     .fallback = "both",
     .choices = roles,
     .help = "prefill computes prompts and hands their KV cache on; decode pulls it and generates; "
             "both takes whole requests.",
     .offset = FIELD(role)},
    {.name = "model",
     .type = BT_CONFIG_STRING,
     .group = "What it does",
     .placeholder = "FILE[=NAME]",
     .help = "GGUF file of a Llama-architecture model, the same as the router's, and the name that "
             "the router knows it by (the file's without .gguf if not given). Required.",
     .offset = FIELD(model)},
    {.name = "router",
     .type = BT_CONFIG_STRINGS,
     .group = "What it does",
     .fallback = "127.0.0.1:7071",
     .placeholder = "HOST:PORT",
     .help = "Attach address of a router. Give it again for each further router.",
     .offset = FIELD(routers)},
    {.name = "name",
     .type = BT_CONFIG_STRING,
     .group = "What it does",
     .placeholder = "NAME",
     .help = "Name in status, logs and replies, unique in the cluster: letters, digits, '-', '_' "
             "or '.'; ROLE-HOST-PID if not given.",
     .offset = FIELD(name)},
    {.name = "kernels",
     .type = BT_CONFIG_STRING,
     .group = "Compute",
     .fallback = "auto",
     .placeholder = "NAME",
     .help = "Kernel path: auto takes the best for this CPU. Pin one path for all workers of a "
             "fleet with different CPUs, since only equal ones hand requests to each other.",
     .offset = FIELD(kernels)},
    {.name = "threads",
     .type = BT_CONFIG_INT,
     .group = "Compute",
     .unit = "threads",
     .min = 1,
     .max = 1024,
     .help = "Threads that compute; the number of CPUs if not given.",
     .offset = FIELD(n_threads)},
    {.name = "token-budget",
     .type = BT_CONFIG_INT,
     .group = "Compute",
     .unit = "tokens",
     .fallback = "512",
     .min = 17,
     .max = 65536,
     .help = "Most tokens of one step, over all sequences.",
     .offset = FIELD(token_budget)},
    {.name = "chunk",
     .type = BT_CONFIG_INT,
     .group = "Compute",
     .unit = "tokens",
     .fallback = "256",
     .min = 16,
     .max = 65536,
     .help = "Most prompt tokens of one sequence in a step, a multiple of 16. Smaller chunks let "
             "short prompts pass long ones and hand KV on sooner.",
     .offset = FIELD(chunk)},
    {.name = "running-max",
     .type = BT_CONFIG_INT,
     .group = "Compute",
     .unit = "sequences",
     .fallback = "64",
     .min = 1,
     .max = 4096,
     .help = "Most sequences of one step.",
     .offset = FIELD(running_max)},
    {.name = "stuck-after",
     .type = BT_CONFIG_DURATION,
     .group = "Compute",
     .fallback = "10s",
     .min = 1000 * INT64_C(1000000),
     .max = 86400 * INT64_C(1000000000),
     .help = "An engine that has work and does not move for so long is stuck: the worker says so, "
             "and routers go on without it.",
     .offset = FIELD(stuck_after_ns)},
    {.name = "requests-max",
     .type = BT_CONFIG_INT,
     .group = "Compute",
     .unit = "requests",
     .fallback = "256",
     .min = 1,
     .max = 4096,
     .help = "Most requests that it takes at a time, waiting ones included.",
     .offset = FIELD(requests_max)},
    {.name = "context-max",
     .type = BT_CONFIG_INT,
     .group = "Memory",
     .unit = "tokens",
     .fallback = "0",
     .min = 0,
     .max = 1 << 24,
     .help = "Longest sequence, if it is to be shorter than the model's own; 0 is the model's.",
     .offset = FIELD(context_max)},
    {.name = "kv-pool-bytes",
     .type = BT_CONFIG_BYTES,
     .group = "Memory",
     .help = "Memory of the KV cache, taken at start; a quarter of what is available if not given, "
             "and no more than running-max full sequences need.",
     .offset = FIELD(pool_bytes)},
    {.name = "kv-pool-share",
     .type = BT_CONFIG_INT,
     .group = "Memory",
     .fallback = "1",
     .unit = "workers",
     .min = 1,
     .max = 1024,
     .help = "Workers on this host that share the quarter; without --kv-pool-bytes.",
     .offset = FIELD(n_sharing)},
    {.name = "kv-format",
     .type = BT_CONFIG_ENUM,
     .group = "Memory",
     .fallback = "bf16",
     .choices = kv_formats,
     .help = "Numbers of the KV cache. The same on all workers that hand requests to each other.",
     .offset = FIELD(kv_format)},
    {.name = "prefix-cache",
     .type = BT_CONFIG_BOOL,
     .group = "Memory",
     .fallback = "true",
     .help = "Keeps the KV of finished prompts for prompts that begin alike.",
     .offset = FIELD(prefix_cache)},
    {.name = "prefix-cache-bytes",
     .type = BT_CONFIG_BYTES,
     .group = "Memory",
     .help =
         "Most of the KV pool that finished prompts keep while nobody uses them, in whole blocks; "
         "the least recently used go first. 0 switches reuse off; no limit but the pool if not "
         "given.",
     .offset = FIELD(prefix_cache_bytes)},
    {.name = "ring-requests",
     .type = BT_CONFIG_INT,
     .group = "Memory",
     .unit = "requests",
     .fallback = "1024",
     .min = 0,
     .max = 1 << 20,
     .help = "Ended requests that it remembers for `baton explain`, half a kilobyte each.",
     .offset = FIELD(ring_requests)},
    {.name = "kv-address",
     .type = BT_CONFIG_STRING,
     .group = "KV transfer",
     .fallback = "127.0.0.1:0",
     .placeholder = "HOST:PORT",
     .help = "Where workers of other hosts pull KV from: prompts' from prefill workers, and from "
             "decode workers what they hand over when they drain. Port 0 takes a free one.",
     .offset = FIELD(kv_address)},
    {.name = "kv-advertise-host",
     .type = BT_CONFIG_STRING,
     .group = "KV transfer",
     .placeholder = "HOST",
     .help = "Host told to others, when it is not that of --kv-address (0.0.0.0, NAT).",
     .offset = FIELD(kv_advertise_host)},
    {.name = "kv-socket",
     .type = BT_CONFIG_STRING,
     .group = "KV transfer",
     .placeholder = "PATH",
     .help =
         "Unix socket for decode workers of this host, which then copy straight from "
         "this pool; @NAME is an abstract one, 'none' leaves it out. @baton-kv-PID if not given.",
     .offset = FIELD(kv_socket)},
    {.name = "kv-transport",
     .type = BT_CONFIG_ENUM,
     .group = "KV transfer",
     .fallback = "auto",
     .choices = transports,
     .help = "Decode: how to pull; auto is shm on one host and tcp otherwise.",
     .offset = FIELD(kv_transport)},
    {.name = "kv-auth",
     .type = BT_CONFIG_ENUM,
     .group = "KV transfer",
     .fallback = "auto",
     .choices = auths,
     .help =
         "What is authenticated with the cluster key over tcp: 'frames' (all that steers a "
         "transfer), or 'full' (KV blocks too, at a good half of the speed on a fast link). The "
         "stricter of both workers' wishes holds; auto is frames on a loopback address and "
         "full on any other.",
     .offset = FIELD(kv_auth)},
    {.name = "kv-rate-limit",
     .type = BT_CONFIG_BYTES,
     .group = "KV transfer",
     .fallback = "0",
     .help = "Most KV bytes a second, for measurements and narrow links; 0 is no limit.",
     .offset = FIELD(kv_rate_limit_bytes_s)},
    {.name = "kv-lease",
     .type = BT_CONFIG_DURATION,
     .group = "KV transfer",
     .fallback = "10s",
     .min = 100 * INT64_C(1000000),
     .max = 3600 * INT64_C(1000000000),
     .help = "How long a prompt's KV waits for a decode worker that is silent.",
     .offset = FIELD(lease_ns)},
    {.name = "allow-mixed-numerics",
     .type = BT_CONFIG_BOOL,
     .group = "KV transfer",
     .fallback = "false",
     .help = "Takes KV from workers whose results differ in their last bits. The router needs it "
             "too; replies then say that tokens may differ from run to run.",
     .offset = FIELD(allow_mixed_numerics)},
    BT_CLI_TLS_CONFIG_ROWS(worker_options, tls, "TLS", "the routers"),
    BT_PROCESS_CONFIG_ROWS(worker_options, process),
};

static const bt_config_spec spec = {
    .command = "baton worker",
    .section = "worker",
    .summary =
        "Runs one worker: loads a model, attaches to the routers and serves until Ctrl-C.\n"
        "Prefill and decode workers of one cluster need the same model, kernels and KV format.",
    .examples = "  baton worker --role prefill --model m.gguf --router 10.0.0.1:7071 \\\n"
                "      --kv-address 10.0.0.2:7081 --cluster-key-file cluster.key\n"
                "  baton worker --role decode --model m.gguf --router 10.0.0.1:7071 \\\n"
                "      --cluster-key-file cluster.key\n"
                "  baton worker --role both --model m.gguf\n",
    .options = options_table,
    .n_options = BT_ARRAY_LEN(options_table),
};

typedef struct worker_process {
    worker_options options;
    bt_process process;
    bt_model *model;
    uint8_t tokenizer_hash[BT_LINK_ID_BYTES];
    int32_t end_tokens[BT_MODEL_EOS_MAX];
    bt_prefill_worker *prefill; /* one of the two */
    bt_decode_worker *decode;
    char name[BT_LINK_NAME_MAX];
    char model_path[1024];
    char model_name[BT_LINK_ADDRESS_MAX];
    char kv_socket[BT_KV_ADDRESS_BYTES];
    bt_progress progress;
} worker_process;

/* Splits FILE[=NAME] at the last '='; without NAME it is "x" of "dir/x.gguf", as the router has it.
 */
static void split_model(worker_process *w)
{
    snprintf(w->model_path, sizeof w->model_path, "%s", w->options.model);
    char *equals = strrchr(w->model_path, '=');
    if (equals != NULL && equals != w->model_path && equals[1] != '\0') {
        *equals = '\0';
        snprintf(w->model_name, sizeof w->model_name, "%s", equals + 1);
        return;
    }
    const char *slash = strrchr(w->model_path, '/');
    const char *from = slash != NULL ? slash + 1 : w->model_path;
    const size_t len = strlen(from);
    const bool is_gguf = len > 5 && strcmp(from + len - 5, ".gguf") == 0;
    snprintf(w->model_name, sizeof w->model_name, "%.*s", (int)(is_gguf ? len - 5 : len), from);
}

static void fill_names(worker_process *w)
{
    const worker_options *o = &w->options;
    split_model(w);
    if (o->name != NULL && o->name[0] != '\0') {
        snprintf(w->name, sizeof w->name, "%s", o->name);
    } else {
        char host[24] = "";
        (void)gethostname(host, sizeof host - 1);
        host[sizeof host - 1] = '\0';
        snprintf(w->name, sizeof w->name, "%s-%s-%d", roles[o->role],
                 bt_name_is_valid(host, sizeof host) ? host : "host", (int)getpid());
    }
    if (o->kv_socket == NULL || o->kv_socket[0] == '\0') {
        snprintf(w->kv_socket, sizeof w->kv_socket, "@baton-kv-%d", (int)getpid());
    } else if (strcmp(o->kv_socket, "none") != 0) {
        snprintf(w->kv_socket, sizeof w->kv_socket, "%s", o->kv_socket);
    }
}

static bt_status check_options(const worker_options *o, bt_error *err)
{
    if (o->model == NULL || o->model[0] == '\0') {
        return bt_error_set(err, BT_EINVAL, "a worker needs a model: --model FILE");
    }
    if (strlen(o->model) >= sizeof((worker_process *)NULL)->model_path) {
        return bt_error_set(err, BT_EINVAL, "--model: the path is too long");
    }
    if (o->name != NULL && o->name[0] != '\0') {
        const bt_status status = bt_name_check("--name", o->name, BT_LINK_NAME_MAX, err);
        if (status != BT_OK) {
            return status;
        }
    }
    if (o->kv_socket != NULL && strlen(o->kv_socket) >= BT_KV_ADDRESS_BYTES) {
        return bt_error_set(err, BT_EINVAL, "--kv-socket has %d characters at most",
                            BT_KV_ADDRESS_BYTES - 1);
    }
    for (size_t i = 0; i < o->routers.n; i++) {
        const bt_status status = bt_socket_check(o->routers.items[i], err);
        if (status != BT_OK) {
            bt_error_prefix(err, "--router");
            return status;
        }
    }
    if (o->chunk % BT_KV_BLOCK_TOKENS != 0) {
        return bt_error_set(err, BT_EINVAL, "--chunk is a multiple of %d", BT_KV_BLOCK_TOKENS);
    }
    return BT_OK;
}

/* ------------------------------------------------------------------------------ loading ---- */

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    bt_process_look_at_signals();
    bt_progress_update(ctx, done, total);
}

/* What the file's tokenizer says to the worker: its hash, and the tokens that end a text. */
static bt_status read_tokenizer(const char *path, worker_process *w, bt_model_options *options,
                                bt_error *err)
{
    bt_gguf *gguf = NULL;
    bt_status status = bt_gguf_open(path, &gguf, err);
    if (status != BT_OK) {
        return status;
    }
    bt_tokenizer *tokenizer = NULL;
    status = bt_tokenizer_create(gguf, &tokenizer, err);
    if (status == BT_OK) {
        bt_tokenizer_fingerprint(tokenizer, w->tokenizer_hash);
        const int32_t *ends = bt_tokenizer_end_tokens(tokenizer, &options->n_end_tokens);
        options->n_end_tokens = bt_size_min(options->n_end_tokens, BT_ARRAY_LEN(w->end_tokens));
        memcpy(w->end_tokens, ends, options->n_end_tokens * sizeof *ends);
        options->end_tokens = w->end_tokens;
        bt_tokenizer_destroy(tokenizer);
    }
    bt_gguf_close(gguf);
    return status;
}

static bt_status load_model(worker_process *w, const bt_worker_options *worker, bt_error *err)
{
    const worker_options *o = &w->options;
    const long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    const int64_t n_threads = o->n_threads > 0 ? o->n_threads : n_cpus > 0 ? n_cpus : 1;
    char *path = strdup(o->model);
    if (path == NULL) {
        return bt_error_set(err, BT_ENOMEM, "no memory for the model's path");
    }
    const char *name;
    bt_cli_split_model(path, &name);
    bt_model_options options = {
        .path = path,
        .name = name,
        .kernels = o->kernels,
        .kv_format = o->kv_format == 0 ? BT_KV_FORMAT_BF16 : BT_KV_FORMAT_F32,
        .n_threads = (uint32_t)n_threads,
        .context_max = (uint32_t)o->context_max,
        .progress = on_progress,
        .progress_ctx = &w->progress,
    };
    bt_worker_size_model(worker, &options);
    bt_process_say(&w->process, "loading the model");
    bt_status status = read_tokenizer(path, w, &options, err);
    if (status == BT_OK) {
        bt_progress_begin(&w->progress, "packing weights", !bt_terminal_is_interactive(stderr));
        status = bt_model_load(&options, &w->model, err);
        bt_progress_end(&w->progress, status == BT_OK ? NULL : "failed");
    }
    free(path);
    return status;
}

/* A quarter of what is available, but no more than all running sequences can use. */
static bt_status default_pool_bytes(const bt_worker_options *worker, uint64_t n_sharing,
                                    uint64_t block_bytes, uint64_t *out, bt_error *err)
{
    uint64_t available = 0;
    const bt_status status = bt_alloc_available(&available);
    if (status != BT_OK) {
        return bt_error_set(err, status,
                            "cannot find out how much memory is available. Give --kv-pool-bytes");
    }
    const uint64_t context_blocks =
        bt_div_ceil(bt_model_get_params(worker->model)->context, BT_KV_BLOCK_TOKENS);
    const uint64_t useful = context_blocks * worker->running_max * block_bytes;
    const uint64_t share = available / 4 / n_sharing;
    *out = share < useful ? share : useful;
    return BT_OK;
}

static bt_status size_pool(worker_process *w, bt_worker_options *worker, bt_error *err)
{
    const uint64_t block_bytes = bt_model_kv_layout(w->model)->block_bytes;
    uint64_t bytes = w->options.pool_bytes;
    if (bytes == 0) {
        const bt_status status =
            default_pool_bytes(worker, (uint64_t)w->options.n_sharing, block_bytes, &bytes, err);
        if (status != BT_OK) {
            return status;
        }
    }
    const uint64_t n_blocks = bytes / block_bytes;
    if (n_blocks == 0 || n_blocks > UINT32_MAX) {
        return bt_error_set(err, BT_EINVAL,
                            "a KV pool of %" PRIu64 " bytes has %" PRIu64 " blocks of %" PRIu64
                            " bytes. Give another --kv-pool-bytes",
                            bytes, n_blocks, block_bytes);
    }
    if (w->options.has_prefix_cache_bytes) {
        const uint64_t n_cached = w->options.prefix_cache_bytes / block_bytes;
        worker->no_prefix_cache = worker->no_prefix_cache || n_cached == 0;
        worker->cached_blocks_max = (uint32_t)(n_cached < n_blocks ? n_cached : n_blocks);
    }
    worker->pool_blocks = (uint32_t)n_blocks;
    worker->pool_touch = true;
    bt_log(BT_INFO,
           "model loaded: name=\"%s\" kernels=%s weights=%" PRIu64 " context=%" PRIu32
           " pool_blocks=%" PRIu64 " pool_bytes=%" PRIu64,
           bt_model_name(w->model), bt_model_kernels(w->model),
           bt_model_get_params(w->model)->n_weights, bt_model_get_params(w->model)->context,
           n_blocks, n_blocks * block_bytes);
    return BT_OK;
}

/* `baton drain` is a signal from afar. */
static void on_drain(void *ctx)
{
    worker_process *w = ctx;
    bt_process_stop(&w->process);
}

static bt_worker_options options_of(worker_process *w)
{
    const worker_options *o = &w->options;
    static const bt_link_role link_roles[] = {
        [ROLE_PREFILL] = BT_LINK_ROLE_PREFILL,
        [ROLE_DECODE] = BT_LINK_ROLE_DECODE,
        [ROLE_BOTH] = BT_LINK_ROLE_BOTH,
    };
    return (bt_worker_options){
        .name = w->name,
        .model_name = w->model_name,
        .routers = o->routers.items,
        .n_routers = (uint32_t)o->routers.n,
        .role = link_roles[o->role],
        .allow_mixed_numerics = o->allow_mixed_numerics,
        .no_prefix_cache = !o->prefix_cache,
        .ring_runs = o->ring_requests > 0 ? (uint32_t)o->ring_requests : UINT32_MAX,
        .requests_max = (uint32_t)o->requests_max,
        .running_max = (uint32_t)o->running_max,
        .stuck_after_ms = (uint32_t)(o->stuck_after_ns / 1000000),
        .token_budget = (uint32_t)o->token_budget,
        .chunk = (uint32_t)o->chunk,
        .kv_tcp = o->kv_address,
        .kv_unix = w->kv_socket,
        .kv_advertise_host = o->kv_advertise_host != NULL && o->kv_advertise_host[0] != '\0'
                                 ? o->kv_advertise_host
                                 : NULL,
        .kv_transport = transport_of[o->kv_transport],
        .kv_auth = auth_of[o->kv_auth],
        .lease_ms = (uint32_t)(o->lease_ns / 1000000),
        .kv_rate_limit_bytes_s = o->kv_rate_limit_bytes_s,
        .metrics = w->process.metrics,
        .drain = on_drain,
        .drain_ctx = w,
    };
}

static bt_status start_worker(worker_process *w, bt_error *err)
{
    bt_worker_options worker = options_of(w);
    bt_status status = load_model(w, &worker, err);
    if (status != BT_OK) {
        return status;
    }
    worker.model = w->model;
    memcpy(worker.tokenizer_hash, w->tokenizer_hash, sizeof worker.tokenizer_hash);
    worker.cluster_key = w->process.cluster_key;
    worker.router_tls = bt_cli_tls(&w->options.tls);
    status = size_pool(w, &worker, err);
    if (status != BT_OK) {
        return status;
    }
    bt_process_say(&w->process, "taking memory");
    bt_loop *loop = w->process.loop;
    if (w->options.role == ROLE_PREFILL) {
        status = bt_prefill_worker_create(loop, w->process.rpc, &worker, &w->prefill, err);
        return status == BT_OK ? bt_prefill_worker_start(w->prefill, err) : status;
    }
    status = bt_decode_worker_create(loop, w->process.rpc, &worker, &w->decode, err);
    return status == BT_OK ? bt_decode_worker_start(w->decode, err) : status;
}

/* ----------------------------------------------------------------------------- running ---- */

static const char *health(void *ctx, bool *ready)
{
    const worker_process *w = ctx;
    bt_worker_health now;
    if (w->prefill != NULL) {
        bt_prefill_worker_get_health(w->prefill, &now);
    } else {
        bt_decode_worker_get_health(w->decode, &now);
    }
    *ready = now.ready;
    return now.text;
}

static void on_stopped(void *ctx)
{
    worker_process *w = ctx;
    bt_process_stopped(&w->process);
}

static void stop(void *ctx, uint64_t grace_ms)
{
    worker_process *w = ctx;
    if (w->prefill != NULL) {
        bt_prefill_worker_stop(w->prefill, grace_ms, on_stopped, w);
    } else {
        bt_decode_worker_stop(w->decode, grace_ms, on_stopped, w);
    }
}

static bt_status serve(worker_process *w, bt_error *err)
{
    bt_status status = bt_process_init(&w->process, w->name, &w->options.process, err);
    if (status == BT_OK) {
        status = bt_cli_check_door(BT_CLI_DOOR_CLUSTER, "--kv-address", w->options.kv_address,
                                   &w->process.guards, err);
    }
    if (status == BT_OK && bt_cli_tls(&w->options.tls) != NULL) {
        status = bt_rpc_tls_check(&w->options.tls, false, err);
    }
    if (status == BT_OK) {
        status = start_worker(w, err);
    }
    if (status != BT_OK) {
        return status;
    }
    const bt_process_hooks hooks = {.health = health, .stop = stop, .ctx = w};
    status = bt_process_run(&w->process, &hooks);
    if (status != BT_OK) {
        bt_error_set(err, status, "cannot run: %s", bt_status_text(status));
    }
    return status;
}

static int run(int argc, char **argv)
{
    worker_process w = {.model = NULL};
    bt_config *config = NULL;
    const int code = bt_cli_configure(&spec, argc, argv, &w.options, &config);
    if (code != BT_CLI_RUN) {
        return code;
    }
    w.options.has_prefix_cache_bytes = bt_config_is_set(config, "prefix-cache-bytes");
    bt_error err = {{0}};
    bt_status status = check_options(&w.options, &err);
    const bool usage = status != BT_OK;
    if (status == BT_OK) {
        fill_names(&w);
        status = serve(&w, &err);
        bt_prefill_worker_destroy(w.prefill);
        bt_decode_worker_destroy(w.decode);
        bt_model_destroy(w.model);
        bt_process_deinit(&w.process);
    }
    bt_config_destroy(config);
    return status == BT_OK ? BT_CLI_OK : bt_cli_fail(argv[0], status, &err, usage);
}

const bt_cli_command bt_cli_worker = {
    .name = "worker",
    .summary = "run one worker: prefill, decode or both",
    .run = run,
};
