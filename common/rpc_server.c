/* SPDX-License-Identifier: Apache-2.0 */
/* The server's side: a port, calls dispatched by path, shutdown.
 *
 *   request (REQUESTS_OPEN wait in gRPC at any time)
 *      | on_request: a call arrived, the request is asked for again
 *      v
 *   handler -- accept --> running -- finish --> status sent --+
 *      |                     | client gone, deadline          | on_closed
 *      '-- finish (refuse) --+--------------------------------+--> on_done, freed
 *
 * RECV_CLOSE_ON_SERVER is started with each call and is its end (op_end): gRPC completes it
 * after the status left, or when the call was cancelled.
 *
 * shutdown: without a call left connections are closed first; gRPC gives the waiting requests back,
 * then completes op_shutdown when the last call is over; done is told when all three (op_shutdown,
 * requests, calls) are through. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/check.h"
#include "common/rpc_int.h"

enum {
    REQUESTS_OPEN = 16,
    PATHS_MAX = 32,
    MESSAGE_BYTES = 4 * 1024 * 1024,
    BUFFER_BYTES = 256 * 1024 * 1024, /* of all connections, for what is not read yet */
    METADATA_BYTES = 16 * 1024,
    STREAMS = 1024,
    KEEPALIVE_MS = 10 * 1000,
    KEEPALIVE_TIMEOUT_MS = 5 * 1000,
    PING_INTERVAL_MIN_MS = 500, /* pings of clients more frequent than this are an offence */
    HANDSHAKE_MS = 10 * 1000,
    HOST_BYTES = 256,
};

typedef struct route {
    const char *path;
    bt_rpc_handler handler;
    void *ctx;
} route;

/* Asks gRPC for one new call. */
typedef struct request {
    bt_rpc_op op;
    bt_rpc_server *server;
    grpc_call *core;
    grpc_call_details details;
    grpc_metadata_array meta;
} request;

struct bt_rpc_server {
    bt_rpc *rpc;
    grpc_server *core;
    char *address;
    bool has_tls;
    bt_rpc_tls_files tls;
    bt_rpc_guard guard;
    void *guard_ctx;
    int port;
    bool started;
    route routes[PATHS_MAX];
    size_t n_routes;

    request requests[REQUESTS_OPEN];
    size_t n_requests; /* that gRPC has */
    bt_rpc_call *calls;

    bool stopping;
    bool stopped; /* op_shutdown came back */
    bt_rpc_op op_shutdown;
    bt_timer *grace;
    bt_loop_fn done;
    void *done_ctx;
};

static grpc_arg int_arg(const char *key, size_t value)
{
    return (grpc_arg){
        .type = GRPC_ARG_INTEGER,
        .key = (char *)(uintptr_t)key,
        .value.integer = value > INT32_MAX ? INT32_MAX : (int)value,
    };
}

static void on_grace_over(void *ctx)
{
    bt_rpc_server *server = ctx;
    grpc_server_cancel_all_calls(server->core);
}

bt_status bt_rpc_server_create(bt_rpc *rpc, const bt_rpc_server_options *options,
                               bt_rpc_server **out, bt_error *err)
{
    if (options->address == NULL || options->address[0] == '\0') {
        return bt_error_set(err, BT_EINVAL, "a server needs an address, as in 127.0.0.1:7700");
    }
    bt_rpc_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        return BT_ENOMEM;
    }
    server->rpc = rpc;
    server->guard = options->guard;
    server->guard_ctx = options->guard_ctx;
    server->address = strdup(options->address);
    bt_status status = server->address == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK && options->tls != NULL) {
        server->has_tls = true;
        status = bt_rpc_tls_check(options->tls, true, err);
        if (status == BT_OK) {
            status = bt_rpc_tls_files_init(&server->tls, options->tls);
        }
    }
    if (status == BT_OK) {
        status = bt_timer_create(bt_rpc_loop(rpc), on_grace_over, server, &server->grace);
    }
    if (status != BT_OK) {
        bt_rpc_tls_files_deinit(&server->tls);
        free(server->address);
        free(server);
        return status;
    }
    const size_t message =
        options->message_bytes_max > 0 ? options->message_bytes_max : MESSAGE_BYTES;
    const size_t metadata =
        options->metadata_bytes_max > 0 ? options->metadata_bytes_max : METADATA_BYTES;
    const unsigned streams =
        options->concurrent_streams_max > 0 ? options->concurrent_streams_max : STREAMS;
    /* Without a quota every connection may keep unfinished messages of the largest size here. Past
     * it gRPC reads no further, then lets go of idle connections and ends calls. */
    grpc_resource_quota *quota = grpc_resource_quota_create(options->address);
    grpc_resource_quota_resize(quota, BUFFER_BYTES);
    grpc_arg args[] = {
        {.type = GRPC_ARG_POINTER,
         .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {quota, grpc_resource_quota_arg_vtable()}},
        int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0),
        int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, streams),
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, message),
        int_arg(GRPC_ARG_MAX_METADATA_SIZE, metadata),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, PING_INTERVAL_MIN_MS),
        int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_MS),
        int_arg(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                options->idle_ms > 0 ? options->idle_ms : INT32_MAX),
    };
    const grpc_channel_args list = {.num_args = BT_ARRAY_LEN(args), .args = args};
    server->core = grpc_server_create(&list, NULL);
    grpc_resource_quota_unref(quota);
    grpc_server_register_completion_queue(server->core, bt_rpc_queue(rpc), NULL);
    *out = server;
    return BT_OK;
}

bt_status bt_rpc_server_handle(bt_rpc_server *server, const char *path, bt_rpc_handler handler,
                               void *ctx)
{
    BT_ASSERT(!server->started);
    if (server->n_routes == PATHS_MAX) {
        return BT_EEXHAUSTED;
    }
    server->routes[server->n_routes++] = (route){.path = path, .handler = handler, .ctx = ctx};
    return BT_OK;
}

/* ---- start ---- */

static const char UNIX_PREFIX[] = "unix:";

static bool is_unix(const char *address)
{
    return strncmp(address, UNIX_PREFIX, sizeof UNIX_PREFIX - 1) == 0;
}

/* Cuts "host:port" or "[host]:port"; false: it is no such thing. `port` points into address. */
static bool split_address(const char *address, char host[HOST_BYTES], const char **port)
{
    const char *colon = strrchr(address, ':');
    if (colon == NULL || (size_t)(colon - address) >= HOST_BYTES) {
        return false;
    }
    char *end = NULL;
    errno = 0;
    const long number = strtol(colon + 1, &end, 10);
    if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || errno != 0 || number > 65535) {
        return false;
    }
    const bool bracketed = address[0] == '[' && colon > address && colon[-1] == ']';
    if (!bracketed && memchr(address, ':', (size_t)(colon - address)) != NULL) {
        return false; /* gRPC has kinds of addresses of its own, as "vsock:1:1" */
    }
    const size_t len = (size_t)(colon - address) - (bracketed ? 2 : 0);
    memcpy(host, bracketed ? address + 1 : address, len);
    host[len] = '\0';
    *port = colon + 1;
    return len > 0;
}

/* Which socket error stands in the way of `address`; gRPC says only that there is one. */
static int find_bind_error(const char *address)
{
    char host[HOST_BYTES];
    const char *port = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    if (!split_address(address, host, &port) || getaddrinfo(host, port, &hints, &list) != 0) {
        return EDESTADDRREQ;
    }
    int error = 0;
    for (const struct addrinfo *a = list; a != NULL && error == 0; a = a->ai_next) {
        const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const int on = 1;
        if (fd < 0) {
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 1) != 0) {
            error = errno;
        }
        close(fd);
    }
    freeaddrinfo(list);
    return error;
}

static bt_status explain_bind(const bt_rpc_server *server, bt_error *err)
{
    const int error = find_bind_error(server->address);
    if (error == 0 && server->has_tls) {
        return bt_error_set(err, BT_EINVAL,
                            "cannot listen on %s with TLS: certificate and key do not go together, "
                            "or gRPC cannot read them: '%s', '%s'",
                            server->address, server->tls.paths.cert, server->tls.paths.key);
    }
    if (error == EADDRINUSE) {
        return bt_error_set(err, BT_EEXISTS,
                            "cannot listen on %s: the port is in use by another process",
                            server->address);
    }
    if (error == EDESTADDRREQ) {
        return bt_error_set(err, BT_EINVAL, "cannot listen on %s: no such host on this machine",
                            server->address);
    }
    return bt_error_set(err, error == EACCES ? BT_EPERMISSION : BT_EIO, "cannot listen on %s: %s",
                        server->address, error != 0 ? strerror(error) : "unknown reason");
}

/* gRPC removes a socket file before it binds; one that somebody serves must stay. */
static bool unix_is_served(const char *address)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const char *path = address + sizeof UNIX_PREFIX - 1;
    if (strlen(path) >= sizeof name.sun_path) {
        return false;
    }
    memcpy(name.sun_path, path, strlen(path));
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return false;
    }
    const bool served =
        connect(fd, (const struct sockaddr *)&name, sizeof name) == 0 || errno == EAGAIN;
    close(fd);
    return served;
}

static void on_request(bt_rpc_op *op, bool ok);

static void ask_request(request *req)
{
    bt_rpc_server *server = req->server;
    req->op.fn = on_request;
    req->core = NULL;
    grpc_call_details_init(&req->details);
    grpc_metadata_array_init(&req->meta);
    server->n_requests++;
    bt_rpc_op_started(server->rpc, &req->op);
    grpc_completion_queue *queue = bt_rpc_queue(server->rpc);
    const grpc_call_error error = grpc_server_request_call(server->core, &req->core, &req->details,
                                                           &req->meta, queue, queue, &req->op);
    BT_ASSERT(error == GRPC_CALL_OK);
}

bt_status bt_rpc_server_bind(bt_rpc_server *server, bt_error *err)
{
    BT_ASSERT(!server->started);
    if (server->port != 0) {
        return BT_OK;
    }
    char host[HOST_BYTES];
    const char *port = NULL;
    if (!is_unix(server->address) && !split_address(server->address, host, &port)) {
        return bt_error_set(err, BT_EINVAL,
                            "cannot listen on %s: it is not of the form host:port, as in "
                            "127.0.0.1:7700",
                            server->address);
    }
    if (is_unix(server->address) && unix_is_served(server->address)) {
        return bt_error_set(err, BT_EEXISTS,
                            "cannot listen on %s: another process serves this socket",
                            server->address);
    }
    grpc_server_credentials *credentials = server->has_tls
                                               ? bt_rpc_tls_server_credentials(&server->tls)
                                               : grpc_insecure_server_credentials_create();
    server->port = grpc_server_add_http2_port(server->core, server->address, credentials);
    grpc_server_credentials_release(credentials);
    if (server->port == 0) {
        return explain_bind(server, err);
    }
    return BT_OK;
}

bt_status bt_rpc_server_start(bt_rpc_server *server, bt_error *err)
{
    const bt_status status = bt_rpc_server_bind(server, err);
    if (status != BT_OK) {
        return status;
    }
    grpc_server_start(server->core);
    server->started = true;
    for (size_t i = 0; i < REQUESTS_OPEN; i++) {
        server->requests[i].server = server;
        ask_request(&server->requests[i]);
    }
    return BT_OK;
}

bool bt_rpc_server_is_idle(const bt_rpc_server *server)
{
    return server->calls == NULL;
}

int bt_rpc_server_port(const bt_rpc_server *server)
{
    return server->port;
}

/* ---- calls ---- */

static const route *find_route(const bt_rpc_server *server, grpc_slice path)
{
    for (size_t i = 0; i < server->n_routes; i++) {
        if (grpc_slice_str_cmp(path, server->routes[i].path) == 0) {
            return &server->routes[i];
        }
    }
    return NULL;
}

static void on_closed(bt_rpc_op *op, bool ok)
{
    (void)ok;
    bt_rpc_call *call = bt_container_of(op, bt_rpc_call, op_end);
    call->ended = true;
    call->n_pending--;
    bt_rpc_call_try_end(call);
}

static bool may_pass(bt_rpc_server *server, bt_rpc_call *call, grpc_slice method)
{
    char *path = grpc_slice_to_c_string(method);
    const bool passes = server->guard(call, path, server->guard_ctx);
    gpr_free(path);
    BT_ASSERT(passes || call->last_wanted);
    return passes;
}

static void begin_call(bt_rpc_server *server, request *req)
{
    bt_rpc_call *call = bt_rpc_call_new(server->rpc);
    if (call == NULL) {
        grpc_metadata_array_destroy(&req->meta);
        grpc_call_cancel_with_status(req->core, GRPC_STATUS_RESOURCE_EXHAUSTED, "out of memory",
                                     NULL);
        grpc_call_unref(req->core);
        return;
    }
    call->server = server;
    call->core = req->core;
    call->meta_in = req->meta;
    call->deadline = req->details.deadline;
    bt_rpc_call_link(&server->calls, call);

    call->op_end.fn = on_closed;
    const grpc_op ops[] = {
        {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
         .data.recv_close_on_server.cancelled = &call->cancelled_in},
    };
    bt_rpc_call_batch(call, ops, BT_ARRAY_LEN(ops), &call->op_end);

    if (server->guard != NULL && !may_pass(server, call, req->details.method)) {
        return;
    }
    const route *to = find_route(server, req->details.method);
    if (to == NULL) {
        bt_rpc_call_finish(call, BT_RPC_UNIMPLEMENTED, "no such method", NULL, 0);
        return;
    }
    to->handler(call, to->ctx);
    /* A handler that forgets a call would leave a client waiting for ever. */
    BT_ASSERT(call->callbacks != NULL || call->last_wanted);
}

/* Calls that are on their way when gRPC shuts down would be CANCELLED, as if by their own client.
 * Without their connections they are UNAVAILABLE, which clients ask elsewhere for: so connections
 * that carry no call any more are closed below gRPC. */
static void hang_up(const bt_rpc_server *server)
{
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL) {
        return;
    }
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        const int fd = (int)strtol(entry->d_name, NULL, 10); /* 0 for "." and ".." */
        struct sockaddr_storage own = {0};
        struct sockaddr_storage peer = {0};
        socklen_t own_len = sizeof own;
        socklen_t peer_len = sizeof peer;
        if (getsockname(fd, (struct sockaddr *)&own, &own_len) != 0 ||
            getpeername(fd, (struct sockaddr *)&peer, &peer_len) != 0) {
            continue; /* no socket, or it listens */
        }
        const uint16_t port =
            own.ss_family == AF_INET    ? ((const struct sockaddr_in *)&own)->sin_port
            : own.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)&own)->sin6_port
                                        : 0;
        if (port != 0 && ntohs(port) == server->port) {
            (void)shutdown(fd, SHUT_RDWR);
        }
    }
    (void)closedir(dir);
}

static void maybe_stopped(bt_rpc_server *server)
{
    if (!server->stopped || server->n_requests > 0 || server->calls != NULL ||
        server->done == NULL) {
        return;
    }
    bt_timer_stop(server->grace);
    const bt_loop_fn done = server->done;
    server->done = NULL;
    done(server->done_ctx);
}

static void on_request(bt_rpc_op *op, bool ok)
{
    request *req = bt_container_of(op, request, op);
    bt_rpc_server *server = req->server;
    server->n_requests--;
    if (!ok) {
        grpc_call_details_destroy(&req->details);
        grpc_metadata_array_destroy(&req->meta);
        maybe_stopped(server);
        return;
    }
    begin_call(server, req);
    grpc_call_details_destroy(&req->details);
    if (!server->stopping) {
        ask_request(req);
    }
    /* No maybe_stopped(): the new call is on the list, or the server goes on. */
}

void bt_rpc_server_call_gone(bt_rpc_server *server, bt_rpc_call *call)
{
    bt_rpc_call_unlink(&server->calls, call);
    bt_rpc_call_free(call);
    if (server->stopping && server->calls == NULL) {
        hang_up(server);
    }
    maybe_stopped(server);
}

void bt_rpc_call_accept(bt_rpc_call *call, const bt_rpc_callbacks *callbacks, void *ctx)
{
    BT_ASSERT(call->server != NULL);
    BT_ASSERT(call->callbacks == NULL);
    call->callbacks = callbacks;
    call->ctx = ctx;
}

void bt_rpc_call_set_reply_meta(bt_rpc_call *call, const bt_rpc_meta *meta, size_t n)
{
    BT_ASSERT(call->server != NULL);
    if (call->meta_sent) {
        return;
    }
    bt_rpc_meta_free(&call->initial_out);
    size_t n_bad = 0;
    (void)(bt_rpc_meta_copy(meta, n, &call->initial_out, &n_bad) == BT_OK);
}

void bt_rpc_call_finish(bt_rpc_call *call, bt_rpc_code code, const char *message,
                        const bt_rpc_meta *trailing, size_t n)
{
    BT_ASSERT(call->server != NULL);
    if (call->ended || call->last_wanted) {
        return;
    }
    size_t n_bad = 0;
    (void)(bt_rpc_meta_copy(trailing, n, &call->trailing_out, &n_bad) == BT_OK);
    call->status_out = code;
    call->message_out = grpc_slice_from_copied_string(message != NULL ? message : "");
    call->last_wanted = true;
    bt_rpc_call_start_last(call);
}

size_t bt_rpc_server_last_ops(bt_rpc_call *call, grpc_op *ops)
{
    size_t n = 0;
    if (!call->meta_sent) {
        ops[n++] = bt_rpc_initial_op(call, 0);
    }
    ops[n++] = (grpc_op){
        .op = GRPC_OP_SEND_STATUS_FROM_SERVER,
        .data.send_status_from_server = {.trailing_metadata_count = call->trailing_out.n,
                                         .trailing_metadata = call->trailing_out.items,
                                         .status = (grpc_status_code)call->status_out,
                                         .status_details = &call->message_out},
    };
    return n;
}

/* ---- shutdown ---- */

static void on_shutdown(bt_rpc_op *op, bool ok)
{
    (void)ok;
    bt_rpc_server *server = bt_container_of(op, bt_rpc_server, op_shutdown);
    server->stopped = true;
    maybe_stopped(server);
}

void bt_rpc_server_shutdown(bt_rpc_server *server, uint64_t grace_ms, bt_loop_fn done, void *ctx)
{
    BT_ASSERT(!server->stopping);
    server->stopping = true;
    server->done = done;
    server->done_ctx = ctx;
    BT_ASSERT(server->started);
    if (server->calls == NULL) {
        hang_up(server);
    }
    server->op_shutdown.fn = on_shutdown;
    bt_rpc_op_started(server->rpc, &server->op_shutdown);
    grpc_server_shutdown_and_notify(server->core, bt_rpc_queue(server->rpc), &server->op_shutdown);
    bt_timer_start(server->grace, grace_ms, 0);
}

/* A server that has a port but never served: gRPC wants it shut down before it is destroyed, and
 * there is no loop to wait on here, so that a queue of its own takes the answer. */
static void close_unserved(bt_rpc_server *server)
{
    grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_server_register_completion_queue(server->core, queue, NULL);
    grpc_server_shutdown_and_notify(server->core, queue, server);
    (void)grpc_completion_queue_pluck(queue, server, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_completion_queue_shutdown(queue);
    grpc_completion_queue_destroy(queue);
}

void bt_rpc_server_destroy(bt_rpc_server *server)
{
    if (server == NULL) {
        return;
    }
    if (!server->started && server->port != 0) {
        close_unserved(server);
    }
    BT_ASSERT(!server->started || server->stopped);
    BT_ASSERT(server->calls == NULL);
    bt_timer_destroy(server->grace);
    grpc_server_destroy(server->core);
    bt_rpc_tls_files_deinit(&server->tls);
    free(server->address);
    free(server);
}
