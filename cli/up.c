/* SPDX-License-Identifier: Apache-2.0 */
/* `baton up`: a cluster on this host: a router, prefill and decode workers, each a process.
 *
 *   fork and exec all --> poll the router until it is ready --> wait --> SIGTERM to all --> reap
 *                              |  a child ends: tell which, stop the rest, fail
 *                              `--------------------------------^
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/children.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/terminal.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/socket.h"
#include "proto/generation.pb-c.h"

enum {
    WORKERS_MAX = BT_CHILDREN_MAX - 1,
    PATH_BYTES = 4096,
    KEY_BYTES = 32,
    ADDRESS_BYTES = BT_CLI_ADDRESS_BYTES,
};

static const int64_t second_ns = 1000000000;

typedef struct up_options {
    const char *model;
    const char *listen;
    const char *attach;
    const char *http;
    const char *admin;
    const char *api_keys;
    const char *cluster_key_file;
    bool insecure;
    const char *tls_cert;
    const char *tls_key;
    bt_rpc_tls tls; /* of the question whether it is ready */
    const char *ready_file;
    int64_t n_prefill;
    int64_t n_decode;
    int64_t n_both;
    int64_t n_threads;
    int64_t context;
    uint64_t kv_pool_bytes;
    const char *kernels;
    bool local_prefill;
    int64_t ready_timeout_ns;
    int64_t stop_timeout_ns;
    const char *log_level;
} up_options;

static const bt_config_option options_table[] = {
    {.name = "model",
     .type = BT_CONFIG_STRING,
     .group = "Cluster",
     .placeholder = "FILE",
     .help = "GGUF file that all of them serve.",
     .offset = offsetof(up_options, model)},
    {.name = "prefill",
     .type = BT_CONFIG_INT,
     .group = "Cluster",
     .fallback = "1",
     .unit = "workers",
     .min = 0,
     .max = WORKERS_MAX,
     .help = "Workers that compute prompts.",
     .offset = offsetof(up_options, n_prefill)},
    {.name = "decode",
     .type = BT_CONFIG_INT,
     .group = "Cluster",
     .fallback = "1",
     .unit = "workers",
     .min = 0,
     .max = WORKERS_MAX,
     .help = "Workers that generate tokens.",
     .offset = offsetof(up_options, n_decode)},
    {.name = "both",
     .type = BT_CONFIG_INT,
     .group = "Cluster",
     .fallback = "0",
     .unit = "workers",
     .min = 0,
     .max = WORKERS_MAX,
     .help = "Workers that do both (colocated serving).",
     .offset = offsetof(up_options, n_both)},
    {.name = "local-prefill",
     .type = BT_CONFIG_BOOL,
     .group = "Cluster",
     .fallback = "true",
     .help = "Lets decode workers prefill when that is better, or when no prefill worker is ready.",
     .offset = offsetof(up_options, local_prefill)},
    {.name = "listen",
     .type = BT_CONFIG_STRING,
     .group = "Network",
     .fallback = BT_CLIENT_ADDRESS,
     .placeholder = "HOST:PORT",
     .help = "Where clients connect.",
     .offset = offsetof(up_options, listen)},
    {.name = "attach",
     .type = BT_CONFIG_STRING,
     .group = "Network",
     .placeholder = "HOST:PORT",
     .help = "Where workers attach; the port after --listen's if not given.",
     .offset = offsetof(up_options, attach)},
    {.name = "http",
     .type = BT_CONFIG_STRING,
     .group = "Network",
     .placeholder = "HOST:PORT",
     .help = "Where HTTP clients connect (OpenAI's API). If not given: the host of --listen, and "
             "its port and 10. \"none\" serves no HTTP.",
     .offset = offsetof(up_options, http)},
    {.name = "admin",
     .type = BT_CONFIG_STRING,
     .group = "Network",
     .placeholder = "HOST:PORT",
     .help = "The router's /metrics, /healthz and /readyz; not served if not given.",
     .offset = offsetof(up_options, admin)},
    {.name = "threads",
     .type = BT_CONFIG_INT,
     .group = "Compute",
     .unit = "threads",
     .min = 1,
     .max = 1024,
     .help = "Of each worker's model; the cores divided by the workers if not given.",
     .offset = offsetof(up_options, n_threads)},
    {.name = "kernels",
     .type = BT_CONFIG_STRING,
     .group = "Compute",
     .fallback = "auto",
     .placeholder = "NAME",
     .help = "Kernel path of all workers; they must have the same to work together.",
     .offset = offsetof(up_options, kernels)},
    {.name = "context",
     .type = BT_CONFIG_INT,
     .group = "Compute",
     .unit = "tokens",
     .min = 16,
     .max = 1 << 24,
     .help = "Longest sequence; the model's own if not given.",
     .offset = offsetof(up_options, context)},
    {.name = "kv-pool-bytes",
     .type = BT_CONFIG_BYTES,
     .group = "Compute",
     .help = "KV pool of each worker; a quarter of the memory available, shared by the workers, if "
             "not given.",
     .offset = offsetof(up_options, kv_pool_bytes)},
    {.name = "api-keys",
     .type = BT_CONFIG_STRING,
     .group = "Access",
     .placeholder = "FILE",
     .help = "API keys, a line each: NAME SECRET [share | metrics]. Clients then have to show one.",
     .offset = offsetof(up_options, api_keys)},
    {.name = "cluster-key-file",
     .type = BT_CONFIG_STRING,
     .group = "Access",
     .placeholder = "FILE",
     .help = "Secret of the cluster; BATON_CLUSTER_KEY holds it too. A new one is drawn if not "
             "given.",
     .offset = offsetof(up_options, cluster_key_file)},
    {.name = "insecure",
     .type = BT_CONFIG_BOOL,
     .group = "Access",
     .fallback = "false",
     .help = "Lets addresses that other hosts reach be open to everybody.",
     .offset = offsetof(up_options, insecure)},
    {.name = "tls-cert",
     .type = BT_CONFIG_STRING,
     .group = "Access",
     .placeholder = "FILE",
     .help = "Certificate that clients are shown (PEM); needs --tls-key and --tls-ca.",
     .offset = offsetof(up_options, tls_cert)},
    {.name = "tls-key",
     .type = BT_CONFIG_STRING,
     .group = "Access",
     .placeholder = "FILE",
     .help = "Its private key.",
     .offset = offsetof(up_options, tls_key)},
    {.name = "tls-ca",
     .type = BT_CONFIG_STRING,
     .group = "Access",
     .placeholder = "FILE",
     .help = "Its authority, by which this command finds out that the cluster is ready; 'system' "
             "are those of this system.",
     .offset = offsetof(up_options, tls.ca)},
    {.name = "tls-name",
     .type = BT_CONFIG_STRING,
     .group = "Access",
     .placeholder = "NAME",
     .help = "Name in the certificate; the host of --listen if not given.",
     .offset = offsetof(up_options, tls.server_name)},
    {.name = "ready-timeout",
     .type = BT_CONFIG_DURATION,
     .group = "Life",
     .fallback = "5m",
     .min = 1000000000,
     .max = INT64_MAX,
     .help = "How long loading may take before it counts as failed.",
     .offset = offsetof(up_options, ready_timeout_ns)},
    {.name = "stop-timeout",
     .type = BT_CONFIG_DURATION,
     .group = "Life",
     .fallback = "30s",
     .help = "How long running requests may take to end after Ctrl-C.",
     .offset = offsetof(up_options, stop_timeout_ns)},
    {.name = "ready-file",
     .type = BT_CONFIG_STRING,
     .group = "Life",
     .placeholder = "FILE",
     .help = "Written when the cluster is ready; its lines are the addresses for clients, workers "
             "and HTTP clients.",
     .offset = offsetof(up_options, ready_file)},
    {.name = "log-level",
     .type = BT_CONFIG_STRING,
     .group = "Life",
     .fallback = "warn",
     .placeholder = "LEVEL",
     .help = "error, warn, info or debug; logs go to stderr.",
     .offset = offsetof(up_options, log_level)},
};

static const bt_config_spec spec = {
    .command = "baton up",
    .section = "up",
    .summary =
        "Starts a cluster on this host, a process each for the router and every worker, waits\n"
        "until it is ready, and stops all of it on Ctrl-C (at once on a second one).",
    .examples = "  baton up --model model.gguf\n"
                "  baton up --model model.gguf --prefill 2 --decode 2 --threads 4\n"
                "  baton up --model model.gguf --prefill 0 --decode 0 --both 1\n",
    .options = options_table,
    .n_options = BT_ARRAY_LEN(options_table),
};

typedef struct cluster {
    const up_options *options;
    bt_children children;
    char token[BT_CLUSTER_KEY_TOKEN_BYTES]; /* an operator's, for the router */
    bt_error *err;
} cluster;

static void add_drain_time(bt_arguments *args, const up_options *o)
{
    char text[32];
    bt_config_format_duration(o->stop_timeout_ns, text);
    bt_arguments_add_option(args, "drain-time", text);
}

static void add_access(bt_arguments *args, const up_options *o)
{
    if (o->cluster_key_file) {
        bt_arguments_add_option(args, "cluster-key-file", o->cluster_key_file);
    }
    bt_arguments_add(args, o->insecure ? "--insecure" : "--no-insecure");
}

static bt_status start_router(cluster *c)
{
    const up_options *o = c->options;
    bt_arguments args = {.n = 0};
    bt_arguments_add(&args, "baton");
    bt_arguments_add(&args, "router");
    bt_arguments_add_option(&args, "name", "router-0");
    bt_arguments_add_option(&args, "model", o->model);
    bt_arguments_add_option(&args, "listen", o->listen);
    bt_arguments_add_option(&args, "attach", o->attach);
    bt_arguments_add_option(&args, "http", o->http != NULL ? o->http : "none");
    if (o->admin) {
        bt_arguments_add_option(&args, "admin", o->admin);
    }
    bt_arguments_add_option(&args, "log-level", o->log_level);
    add_drain_time(&args, o);
    add_access(&args, o);
    if (o->api_keys) {
        bt_arguments_add_option(&args, "api-keys", o->api_keys);
    }
    if (o->tls_cert) {
        bt_arguments_add_option(&args, "tls-cert", o->tls_cert);
        bt_arguments_add_option(&args, "tls-key", o->tls_key);
    }
    bt_arguments_add(&args, o->local_prefill ? "--local-prefill" : "--no-local-prefill");
    return bt_children_start(&c->children, "router-0", &args, c->err);
}

static bt_status start_worker(cluster *c, const char *role, int64_t number)
{
    const up_options *o = c->options;
    char name[32];
    (void)snprintf(name, sizeof name, "%s-%lld", role, (long long)number);
    bt_arguments args = {.n = 0};
    bt_arguments_add(&args, "baton");
    bt_arguments_add(&args, "worker");
    bt_arguments_add_option(&args, "name", name);
    bt_arguments_add_option(&args, "role", role);
    bt_arguments_add_option(&args, "model", o->model);
    bt_arguments_add_option(&args, "router", o->attach);
    bt_arguments_add_option(&args, "kernels", o->kernels);
    bt_arguments_add_option(&args, "log-level", o->log_level);
    add_drain_time(&args, o);
    add_access(&args, o);
    /* BATON_TLS_CA and the like are for this command and the router. */
    bt_arguments_add_option(&args, "tls-ca", "");
    bt_arguments_add_option(&args, "tls-cert", "");
    bt_arguments_add_option(&args, "tls-key", "");
    bt_arguments_add_option(&args, "tls-name", "");
    bt_arguments_add(&args, "--threads");
    bt_arguments_add(&args, "%lld", (long long)o->n_threads);
    if (o->kv_pool_bytes > 0) {
        bt_arguments_add(&args, "--kv-pool-bytes");
        bt_arguments_add(&args, "%llu", (unsigned long long)o->kv_pool_bytes);
    } else {
        bt_arguments_add(&args, "--kv-pool-share");
        bt_arguments_add(&args, "%lld", (long long)(o->n_prefill + o->n_decode + o->n_both));
    }
    if (o->context > 0) {
        bt_arguments_add(&args, "--context-max");
        bt_arguments_add(&args, "%lld", (long long)o->context);
    }
    return bt_children_start(&c->children, name, &args, c->err);
}

static bt_status start_all(cluster *c)
{
    const up_options *o = c->options;
    bt_status status = start_router(c);
    for (int64_t i = 0; i < o->n_prefill && status == BT_OK; i++) {
        status = start_worker(c, "prefill", i);
    }
    for (int64_t i = 0; i < o->n_decode && status == BT_OK; i++) {
        status = start_worker(c, "decode", i);
    }
    for (int64_t i = 0; i < o->n_both && status == BT_OK; i++) {
        status = start_worker(c, "both", i);
    }
    return status;
}

typedef struct readiness {
    bool router;
    size_t n_attached;
} readiness;

static void on_status(void *ctx, const ProtobufCMessage *message)
{
    readiness *r = ctx;
    const Baton__V1__GetClusterStatusReply *reply = (const void *)message;
    r->router = reply->router && reply->router->ready;
    r->n_attached = reply->n_workers;
}

static readiness ask(bt_client *client)
{
    readiness r = {0};
    Baton__V1__GetClusterStatusRequest request = BATON__V1__GET_CLUSTER_STATUS_REQUEST__INIT;
    const bt_client_call call = {
        .path = "/baton.v1.Generation/GetClusterStatus",
        .request = &request.base,
        .reply_type = &baton__v1__get_cluster_status_reply__descriptor,
        .timeout_ns = second_ns,
        .on_reply = on_status,
        .ctx = &r,
    };
    if (bt_client_run(client, &call, NULL) != BT_OK) {
        return (readiness){0}; /* not there yet: asked again */
    }
    return r;
}

/* BT_ECANCELLED: a signal came first. */
static bt_status wait_until_ready(cluster *c)
{
    bt_client *client;
    const bt_client_options options = {
        .address = c->options->listen, .api_key = c->token, .tls = c->options->tls};
    bt_status status = bt_client_open(&options, &client, c->err);
    if (status != BT_OK) {
        return status;
    }
    const int64_t began_ns = bt_clock_now_ns();
    bt_progress progress;
    bt_progress_begin(&progress, "starting workers", false);
    for (bool ready = false; !ready && status == BT_OK;) {
        const int signum = bt_children_next_signal(&c->children, second_ns / 20);
        status = bt_children_check(&c->children, c->err);
        if (status != BT_OK) {
            break;
        }
        if (signum == SIGINT || signum == SIGTERM) {
            status = BT_ECANCELLED;
        } else if (bt_clock_now_ns() - began_ns > c->options->ready_timeout_ns) {
            status = bt_error_set(c->err, BT_EDEADLINE,
                                  "the cluster is not ready after --ready-timeout. `baton status` "
                                  "shows which worker is missing, --log-level info tells more");
        } else {
            const readiness r = ask(client);
            bt_progress_update(&progress, r.n_attached, c->children.n - 1);
            ready = r.router && r.n_attached == c->children.n - 1;
        }
    }
    bt_progress_end(&progress, status == BT_OK ? NULL : "stopped");
    bt_client_close(client);
    return status;
}

static void print_addresses(const up_options *o)
{
    const char *bold = bt_terminal_style_text(stdout, BT_TERMINAL_BOLD);
    const char *plain = bt_terminal_style_text(stdout, BT_TERMINAL_PLAIN);
    printf("%sready%s: %lld prefill, %lld decode, %lld both\n", bold, plain,
           (long long)o->n_prefill, (long long)o->n_decode, (long long)o->n_both);
    printf("  clients  %s   (gRPC baton.v1.Generation)\n", o->listen);
    if (o->http != NULL) {
        printf("           http%s://%s/v1   (OpenAI's API)\n", o->tls_cert ? "s" : "", o->http);
    }
    printf("  workers  %s\n", o->attach);
    if (o->admin) {
        printf("  metrics  http://%s/metrics\n", o->admin);
    }
    printf("Try: baton generate --address %s%s%s%s --chat 'Why is the sky blue?'\n", o->listen,
           o->tls_cert ? " --tls-ca " : "", o->tls_cert ? o->tls.ca : "",
           o->api_keys ? " --api-key-file FILE" : "");
    printf("Ctrl-C stops all of it.\n");
    (void)fflush(stdout);
}

/* Written whole, then renamed: who sees the file sees all of it. A device or a pipe in its place
 * would be replaced. */
static bt_status tell_ready(const up_options *o, bt_error *err)
{
    if (!o->ready_file) {
        return BT_OK;
    }
    struct stat before;
    if (stat(o->ready_file, &before) == 0 && !S_ISREG(before.st_mode)) {
        return bt_error_set(err, BT_EIO, "cannot write --ready-file '%s': it is no regular file",
                            o->ready_file);
    }
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s.XXXXXX", o->ready_file);
    if (n < 0 || (size_t)n >= sizeof path) {
        return bt_error_set(err, BT_EIO, "cannot write --ready-file: its path is too long");
    }
    const int fd = mkstemp(path); /* a file of its own, whatever else is there */
    if (fd < 0) {
        return bt_error_set(err, BT_EIO, "cannot write --ready-file '%s': %s", o->ready_file,
                            strerror(errno));
    }
    FILE *file = fchmod(fd, 0644) == 0 ? fdopen(fd, "w") : NULL;
    if (file == NULL) {
        (void)close(fd);
    }
    bool written = file != NULL && fprintf(file, "%s\n%s\n%s\n", o->listen, o->attach,
                                           o->http != NULL ? o->http : "") > 0;
    written = file != NULL && fclose(file) == 0 && written;
    if (!written || rename(path, o->ready_file) != 0) {
        (void)bt_error_set(err, BT_EIO, "cannot write --ready-file '%s': %s", o->ready_file,
                           strerror(errno));
        (void)unlink(path);
        return BT_EIO;
    }
    return BT_OK;
}

/* Until a signal (BT_OK) or the end of a child. */
static bt_status watch(cluster *c)
{
    for (;;) {
        const int signum = bt_children_next_signal(&c->children, second_ns);
        const bt_status status = bt_children_check(&c->children, c->err);
        if (status != BT_OK) {
            return status;
        }
        if (signum == SIGINT || signum == SIGTERM) {
            printf("stopping; Ctrl-C ends it at once\n");
            (void)fflush(stdout);
            return BT_OK;
        }
    }
}

/* An address that is free now: said before anything is started. Port 0 becomes a port, kept in
 * `kept`. */
static bt_status check_free(const char *name, const char **address, char kept[ADDRESS_BYTES],
                            bt_error *err)
{
    int fd;
    const bt_status status = bt_socket_listen(*address, &fd, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "--%s", name);
        return status;
    }
    const char *colon = strrchr(*address, ':');
    if (colon && strcmp(colon, ":0") == 0) {
        char settled[ADDRESS_BYTES]; /* *address may be `kept` itself */
        (void)snprintf(settled, sizeof settled, "%.*s:%d", (int)(colon - *address), *address,
                       bt_socket_port(fd));
        memcpy(kept, settled, sizeof settled);
        *address = kept;
    }
    (void)close(fd);
    return BT_OK;
}

/* Without --attach: the host of --listen, and the port after its port. */
static void choose_attach(up_options *o, char kept[ADDRESS_BYTES])
{
    const char *colon = strrchr(o->listen, ':');
    if (o->attach || !colon) {
        return;
    }
    const int port = atoi(colon + 1);
    (void)snprintf(kept, ADDRESS_BYTES, "%.*s:%d", (int)(colon - o->listen), o->listen,
                   port > 0 && port < 65535 ? port + 1 : 0);
    o->attach = kept;
}

/* Addresses that options point to once they are settled. */
typedef struct addresses {
    char listen[ADDRESS_BYTES];
    char attach[ADDRESS_BYTES];
    char http[ADDRESS_BYTES];
    char admin[ADDRESS_BYTES];
} addresses;

static bt_status settle_addresses(up_options *o, addresses *kept, bt_error *err)
{
    choose_attach(o, kept->attach);
    if (!o->attach) {
        return bt_error_set(err, BT_EINVAL, "--listen: '%s' is not HOST:PORT", o->listen);
    }
    bt_status status = check_free("listen", &o->listen, kept->listen, err);
    if (status == BT_OK) {
        status = check_free("attach", &o->attach, kept->attach, err);
    }
    o->http = bt_cli_http_address(o->http, o->listen, kept->http);
    if (status == BT_OK && o->http != NULL) {
        status = check_free("http", &o->http, kept->http, err);
    }
    if (status == BT_OK && o->admin) {
        status = check_free("admin", &o->admin, kept->admin, err);
    }
    return status;
}

static bt_status settle(up_options *o, bt_error *err)
{
    const int64_t n_workers = o->n_prefill + o->n_decode + o->n_both;
    if (!o->model) {
        return bt_error_set(err, BT_EINVAL, "--model FILE is missing");
    }
    if (access(o->model, R_OK) != 0) {
        return bt_error_set(err, BT_ENOTFOUND, "cannot read model '%s': %s", o->model,
                            strerror(errno));
    }
    if (o->n_decode + o->n_both == 0 || n_workers > WORKERS_MAX) {
        return bt_error_set(err, BT_EINVAL,
                            "a cluster needs at least one --decode or --both worker, and at most "
                            "%d workers in all",
                            WORKERS_MAX);
    }
    if (o->n_threads == 0) {
        const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
        o->n_threads = n_cores > n_workers ? n_cores / n_workers : 1;
    }
    return BT_OK;
}

/* Members of one cluster share a key; without one of the user's a new one is drawn. */
static bt_status make_key(const up_options *o, char token[BT_CLUSTER_KEY_TOKEN_BYTES],
                          bt_error *err)
{
    bt_cluster_key key;
    bool is_given;
    bt_status status = bt_cli_read_cluster_key(o->cluster_key_file, &key, &is_given, err);
    if (status == BT_OK && !is_given) {
        uint8_t drawn[KEY_BYTES];
        char hex[2 * KEY_BYTES + 1];
        bt_hash_random(drawn, sizeof drawn);
        bt_hash_hex(drawn, sizeof drawn, hex);
        (void)setenv("BATON_CLUSTER_KEY", hex, 1);
        status = bt_cluster_key_init(&key, hex, strlen(hex), err);
    }
    if (status == BT_OK) {
        bt_cluster_key_admin_token(&key, token);
        bt_hash_wipe(&key, sizeof key);
    }
    return status;
}

/* What the router would refuse to start with, said in the words of this command. */
static bt_status check_access(const up_options *o, bt_error *err)
{
    const bt_cli_guards guards = {
        .has_keys = o->api_keys != NULL, .has_cluster_key = true, .insecure = o->insecure};
    bt_status status = bt_cli_check_door(BT_CLI_DOOR_CLIENTS, "--listen", o->listen, &guards, err);
    if (status == BT_OK) {
        status = bt_cli_check_door(BT_CLI_DOOR_CLIENTS, "--http", o->http, &guards, err);
    }
    if (status == BT_OK) {
        status = bt_cli_check_door(BT_CLI_DOOR_METRICS, "--admin", o->admin, &guards, err);
    }
    if (status == BT_OK && (o->tls_cert != NULL) != (o->tls_key != NULL)) {
        status = bt_error_set(err, BT_EINVAL, "--tls-cert and --tls-key go together");
    }
    if (status == BT_OK && (o->tls_cert != NULL) != (bt_cli_tls(&o->tls) != NULL)) {
        status = bt_error_set(err, BT_EINVAL,
                              "--tls-cert and --tls-ca go together here: without "
                              "the authority nobody could tell that the cluster "
                              "is ready");
    }
    return status;
}

static int run(int argc, char **argv)
{
    up_options o = {0};
    bt_config *config = NULL;
    const int early = bt_cli_configure(&spec, argc, argv, &o, &config);
    if (early != BT_CLI_RUN) {
        return early;
    }
    bt_error err = {""};
    addresses kept;
    bt_status status = settle(&o, &err);
    if (status == BT_OK) {
        status = settle_addresses(&o, &kept, &err);
    }
    if (status == BT_OK) {
        status = check_access(&o, &err);
    }
    cluster c = {.options = &o, .err = &err};
    if (status == BT_OK) {
        status = make_key(&o, c.token, &err);
    }
    if (status != BT_OK) {
        bt_config_destroy(config);
        return bt_cli_fail("up", status, &err, status == BT_EINVAL);
    }
    bt_children_init(&c.children);
    status = start_all(&c);
    if (status == BT_OK) {
        status = wait_until_ready(&c);
    }
    if (status == BT_OK) {
        status = tell_ready(&o, &err);
    }
    if (status == BT_OK) {
        print_addresses(&o);
        status = watch(&c);
    }
    bt_children_stop(&c.children, o.stop_timeout_ns + second_ns);
    bt_children_deinit(&c.children);
    bt_config_destroy(config);
    if (status == BT_OK) {
        return BT_CLI_OK;
    }
    return status == BT_ECANCELLED ? BT_CLI_INTERRUPTED : bt_cli_fail("up", status, &err, false);
}

const bt_cli_command bt_cli_up = {
    .name = "up",
    .summary = "start a cluster on this host and stop it on Ctrl-C",
    .run = run,
};
