/* SPDX-License-Identifier: Apache-2.0 */
/* libmicrohttpd calls on_access several times for a request: first with the head alone,
 * then for each piece of the body, then once more without one.
 *
 *   head  --(length past the limit)--> answered with 413, the connection ends
 *    |
 *   body pieces: kept up to the limit; past it, or for a request that will be refused,
 *    |           thrown away; past twice the limit the connection ends
 *   end   --> refusal, or the handler
 *
 * The listening socket is made by common/socket.h, for its errors, and belongs to
 * libmicrohttpd once the daemon runs. */
#include "common/http.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/socket.h"

enum {
    ROUTES_MAX = 32,
    HEADERS_MAX = 8,
    CONNECTIONS_MAX = 256,
    TIMEOUT_S = 10,
    HEAD_BYTES_MAX = 16 << 10,
    BODY_BYTES_MAX = 1 << 20,
    ALLOW_BYTES = 128,
};

typedef struct route {
    const char *method;
    const char *path;
    bt_http_handler handler;
    void *ctx;
} route;

struct bt_http_server {
    bt_http_options options; /* with the defaults filled in */
    char *address;
    route routes[ROUTES_MAX]; /* fixed after start */
    size_t n_routes;
    struct MHD_Daemon *daemon; /* NULL before start */
    int port;
};

typedef struct header {
    char *name;
    char *value;
} header;

struct bt_http_request {
    bt_http_server *server;
    struct MHD_Connection *connection;
    const char *method;
    const char *path;
    const route *route; /* NULL: refused */
    unsigned refusal;   /* code to answer with, 0: none */

    char *body; /* NUL-terminated once there is one */
    size_t body_len;
    size_t body_capacity;
    size_t body_seen; /* with what was thrown away */

    header headers[HEADERS_MAX];
    size_t n_headers;
    bool answered;
    bool broken; /* the answer could not be made: end the connection */
};

/* ---- server ---- */

bt_status bt_http_server_create(const bt_http_options *options, bt_http_server **out, bt_error *err)
{
    bt_socket_address address;
    const bt_status status = bt_socket_resolve(options->address, true, &address, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "cannot serve HTTP");
        return status;
    }
    bt_http_server *server = calloc(1, sizeof *server);
    char *text = strdup(options->address);
    if (!server || !text) {
        free(server);
        free(text);
        return bt_error_set(err, BT_ENOMEM, "cannot serve HTTP: out of memory");
    }
    bt_http_options *o = &server->options;
    *o = *options;
    server->address = text;
    o->address = text;
    o->connections_max = o->connections_max ? o->connections_max : CONNECTIONS_MAX;
    o->connections_per_ip_max =
        o->connections_per_ip_max ? o->connections_per_ip_max : o->connections_max;
    o->timeout_s = o->timeout_s ? o->timeout_s : TIMEOUT_S;
    o->head_bytes_max = o->head_bytes_max ? o->head_bytes_max : HEAD_BYTES_MAX;
    o->body_bytes_max = o->body_bytes_max ? o->body_bytes_max : BODY_BYTES_MAX;
    *out = server;
    return BT_OK;
}

static const route *find_route(const bt_http_server *server, const char *method, const char *path)
{
    for (size_t i = 0; i < server->n_routes; i++) {
        const route *r = &server->routes[i];
        if (strcmp(r->path, path) == 0 && strcmp(r->method, method) == 0) {
            return r;
        }
    }
    return NULL;
}

bt_status bt_http_server_handle(bt_http_server *server, const char *method, const char *path,
                                bt_http_handler handler, void *ctx)
{
    BT_ASSERT(!server->daemon);
    if (find_route(server, method, path)) {
        return BT_EEXISTS;
    }
    if (server->n_routes == ROUTES_MAX) {
        return BT_EEXHAUSTED;
    }
    server->routes[server->n_routes++] =
        (route){.method = method, .path = path, .handler = handler, .ctx = ctx};
    return BT_OK;
}

int bt_http_server_port(const bt_http_server *server)
{
    return server->port;
}

void bt_http_server_destroy(bt_http_server *server)
{
    if (!server) {
        return;
    }
    if (server->daemon) {
        MHD_stop_daemon(server->daemon);
    }
    free(server->address);
    free(server);
}

/* ---- one request ---- */

static bool path_is_known(const bt_http_server *server, const char *path)
{
    for (size_t i = 0; i < server->n_routes; i++) {
        if (strcmp(server->routes[i].path, path) == 0) {
            return true;
        }
    }
    return false;
}

static bt_http_request *request_create(bt_http_server *server, struct MHD_Connection *connection,
                                       const char *url, const char *method)
{
    bt_http_request *request = calloc(1, sizeof *request);
    if (!request) {
        return NULL;
    }
    request->server = server;
    request->connection = connection;
    request->method = method; /* libmicrohttpd keeps both until the request is over */
    request->path = url;
    const char *served = strcmp(method, MHD_HTTP_METHOD_HEAD) == 0 ? MHD_HTTP_METHOD_GET : method;
    request->route = find_route(server, served, url);
    if (!request->route) {
        request->refusal =
            path_is_known(server, url) ? MHD_HTTP_METHOD_NOT_ALLOWED : MHD_HTTP_NOT_FOUND;
    }
    return request;
}

static void request_destroy(bt_http_request *request)
{
    for (size_t i = 0; i < request->n_headers; i++) {
        free(request->headers[i].name);
        free(request->headers[i].value);
    }
    free(request->body);
    free(request);
}

/* Keeps a piece of the body, NUL behind it. */
static bool append_body(bt_http_request *request, const char *bytes, size_t n)
{
    const size_t len = request->body_len + n;
    if (len >= request->body_capacity) {
        const size_t capacity = bt_size_max(2 * request->body_capacity, len + 1);
        char *grown = realloc(request->body, capacity);
        if (!grown) {
            return false;
        }
        request->body = grown;
        request->body_capacity = capacity;
    }
    memcpy(request->body + request->body_len, bytes, n);
    request->body[len] = '\0';
    request->body_len = len;
    return true;
}

/* false: end the connection. */
static bool take_piece(bt_http_request *request, const char *bytes, size_t n)
{
    const size_t max = request->server->options.body_bytes_max;
    request->body_seen += n;
    if (request->body_seen > max && !request->refusal) {
        request->refusal = MHD_HTTP_CONTENT_TOO_LARGE;
    }
    if (request->refusal) {
        return request->body_seen / 2 <= max;
    }
    return append_body(request, bytes, n);
}

static bool says_too_long(const bt_http_request *request)
{
    const char *text = bt_http_request_header(request, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return text && strtoull(text, NULL, 10) > request->server->options.body_bytes_max;
}

static void refuse(bt_http_request *request, unsigned code)
{
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED) {
        char allow[ALLOW_BYTES] = "";
        size_t len = 0;
        for (size_t i = 0; i < request->server->n_routes; i++) {
            const route *r = &request->server->routes[i];
            const size_t need = strlen(r->method) + 2;
            if (strcmp(r->path, request->path) == 0 && len + need < sizeof allow) {
                len += (size_t)snprintf(allow + len, sizeof allow - len, "%s%s",
                                        len > 0 ? ", " : "", r->method);
            }
        }
        bt_http_respond_header(request, MHD_HTTP_HEADER_ALLOW, allow);
        bt_http_respond_text(request, code, "method not allowed\n");
    } else if (code == MHD_HTTP_CONTENT_TOO_LARGE) {
        bt_http_respond_text(request, code, "the body is too large\n");
    } else {
        bt_http_respond_text(request, code, "not found\n");
    }
}

static enum MHD_Result on_access(void *ctx, struct MHD_Connection *connection, const char *url,
                                 const char *method, const char *version, const char *piece,
                                 size_t *piece_bytes, void **slot)
{
    (void)version;
    bt_http_request *request = *slot;
    if (!request) {
        request = request_create(ctx, connection, url, method);
        if (!request) {
            return MHD_NO;
        }
        *slot = request;
        if (says_too_long(request)) {
            refuse(request, MHD_HTTP_CONTENT_TOO_LARGE);
        }
        return request->broken ? MHD_NO : MHD_YES;
    }
    if (*piece_bytes > 0) {
        const bool go_on = take_piece(request, piece, *piece_bytes);
        *piece_bytes = 0;
        return go_on ? MHD_YES : MHD_NO;
    }
    if (request->refusal) {
        refuse(request, request->refusal);
    } else {
        request->route->handler(request, request->route->ctx);
        if (!request->answered) {
            bt_http_respond_text(request, MHD_HTTP_INTERNAL_SERVER_ERROR, "no answer\n");
        }
    }
    return request->broken ? MHD_NO : MHD_YES;
}

static void on_completed(void *ctx, struct MHD_Connection *connection, void **slot,
                         enum MHD_RequestTerminationCode code)
{
    (void)ctx;
    (void)connection;
    (void)code;
    if (*slot) {
        request_destroy(*slot);
        *slot = NULL;
    }
}

bt_status bt_http_server_start(bt_http_server *server, bt_error *err)
{
    BT_ASSERT(!server->daemon);
    const bt_http_options *o = &server->options;
    int fd;
    const bt_status status = bt_socket_listen(server->address, &fd, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "cannot serve HTTP");
        return status;
    }
    server->port = bt_socket_port(fd);
    /* clang-format off */
    server->daemon = MHD_start_daemon(
        MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, on_access, server,
        MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd,
        MHD_OPTION_CONNECTION_LIMIT, o->connections_max,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, o->connections_per_ip_max,
        MHD_OPTION_CONNECTION_TIMEOUT, o->timeout_s,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, o->head_bytes_max,
        MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
        MHD_OPTION_END);
    /* clang-format on */
    if (!server->daemon) {
        bt_socket_close(fd);
        return bt_error_set(err, BT_EIO, "cannot serve HTTP on %s: the server did not start",
                            server->address);
    }
    return BT_OK;
}

/* ---- inside a handler ---- */

const char *bt_http_request_method(const bt_http_request *request)
{
    return request->method;
}

const char *bt_http_request_path(const bt_http_request *request)
{
    return request->path;
}

const char *bt_http_request_header(const bt_http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

const char *bt_http_request_query(const bt_http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);
}

const char *bt_http_request_body(const bt_http_request *request, size_t *len)
{
    *len = request->body_len;
    return request->body ? request->body : "";
}

void bt_http_respond_header(bt_http_request *request, const char *name, const char *value)
{
    BT_ASSERT(!request->answered);
    BT_ASSERT(request->n_headers < HEADERS_MAX);
    header *h = &request->headers[request->n_headers++];
    h->name = strdup(name);
    h->value = strdup(value);
    request->broken = request->broken || !h->name || !h->value;
}

void bt_http_respond(bt_http_request *request, unsigned code, const char *content_type,
                     const void *body, size_t len)
{
    BT_ASSERT(!request->answered);
    request->answered = true;
    if (request->broken) {
        return;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(len, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
    bool good = response != NULL;
    if (good && content_type) {
        good = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type) ==
               MHD_YES;
    }
    for (size_t i = 0; good && i < request->n_headers; i++) {
        good = MHD_add_response_header(response, request->headers[i].name,
                                       request->headers[i].value) == MHD_YES;
    }
    good = good && MHD_queue_response(request->connection, code, response) == MHD_YES;
    if (response) {
        MHD_destroy_response(response); /* the queue holds its own reference */
    }
    request->broken = !good;
}

void bt_http_respond_text(bt_http_request *request, unsigned code, const char *text)
{
    bt_http_respond(request, code, "text/plain; charset=utf-8", text, strlen(text));
}
