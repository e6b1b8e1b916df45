/* SPDX-License-Identifier: Apache-2.0 */
/* libmicrohttpd calls on_access several times for a request: first with the head alone,
 * then for each piece of the body, then once more without one; and for a request that its
 * handler deferred again each time that the connection is resumed, until there is an answer.
 *
 *   head  --(no certificate, gate, two lengths, length past the limit)--> answered, the connection
 * ends
 *    |
 *   body pieces: kept up to the limit; past it, or for a request that will be refused,
 *    |           thrown away; past twice the limit the connection ends
 *   end   --> refusal, or the handler --> answered, or deferred (http_stream.c) */
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/check.h"
#include "common/http_int.h"
#include "common/socket.h"

enum { ALLOW_BYTES = 128 };

/* ---- routes ---- */

static bool path_fits(const char *pattern, const char *path)
{
    const size_t len = strlen(pattern);
    if (len > 0 && pattern[len - 1] == '*') {
        return strncmp(pattern, path, len - 1) == 0 && path[len - 1] != '\0';
    }
    return strcmp(pattern, path) == 0;
}

static const bt_http_route *find_route(const bt_http_server *server, const char *method,
                                       const char *path)
{
    for (size_t i = 0; i < server->n_routes; i++) {
        const bt_http_route *r = &server->routes[i];
        if (path_fits(r->path, path) && strcmp(r->method, method) == 0) {
            return r;
        }
    }
    return NULL;
}

static bool path_is_known(const bt_http_server *server, const char *path)
{
    for (size_t i = 0; i < server->n_routes; i++) {
        if (path_fits(server->routes[i].path, path)) {
            return true;
        }
    }
    return false;
}

/* ---- one request ---- */

static bt_http_request *request_create(bt_http_server *server, struct MHD_Connection *mhd,
                                       const char *url, const char *method)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    bt_http_request *request = calloc(1, sizeof *request);
    if (request == NULL || info == NULL || info->socket_context == NULL) {
        free(request);
        return NULL;
    }
    request->server = server;
    request->mhd = mhd;
    request->connection = info->socket_context;
    request->method = method; /* libmicrohttpd keeps both until the request is over */
    request->path = url;
    const char *served = strcmp(method, MHD_HTTP_METHOD_HEAD) == 0 ? MHD_HTTP_METHOD_GET : method;
    request->route = find_route(server, served, url);
    if (request->route == NULL) {
        request->refusal =
            path_is_known(server, url) ? MHD_HTTP_METHOD_NOT_ALLOWED : MHD_HTTP_NOT_FOUND;
    }
    return request;
}

static void drop_body(bt_http_request *request)
{
    BT_ASSERT(request->server->bodies_bytes >= request->body_capacity);
    request->server->bodies_bytes -= request->body_capacity;
    request->body_capacity = 0;
    request->body_len = 0;
    free(request->body);
    request->body = NULL;
}

static void request_destroy(bt_http_request *request)
{
    for (size_t i = 0; i < request->n_headers; i++) {
        free((char *)(uintptr_t)request->headers[i].name);
        free((char *)(uintptr_t)request->headers[i].value);
    }
    drop_body(request);
    free(request);
}

/* Keeps a piece of the body, NUL behind it. false: no memory. */
static bool append_body(bt_http_request *request, const char *bytes, size_t n)
{
    bt_http_server *server = request->server;
    const size_t len = request->body_len + n;
    if (len >= request->body_capacity) {
        /* Never more than the limit and a NUL, so that limits are what they say. */
        const size_t capacity = bt_size_max(
            bt_size_min(2 * request->body_capacity, server->options.body_bytes_max + 1), len + 1);
        const size_t total = server->bodies_bytes - request->body_capacity + capacity;
        if (server->options.bodies_bytes_max > 0 && total > server->options.bodies_bytes_max) {
            request->refusal = MHD_HTTP_SERVICE_UNAVAILABLE;
            drop_body(request);
            return true;
        }
        char *grown = realloc(request->body, capacity);
        if (grown == NULL) {
            return false;
        }
        server->bodies_bytes = total;
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
    if (request->body_seen > max && request->refusal == 0) {
        request->refusal = MHD_HTTP_CONTENT_TOO_LARGE;
        drop_body(request);
    }
    if (request->refusal != 0) {
        return request->body_seen / 2 <= max;
    }
    return append_body(request, bytes, n);
}

static bool says_too_long(const bt_http_request *request)
{
    const char *text = bt_http_request_header(request, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return text != NULL && strtoull(text, NULL, 10) > request->server->options.body_bytes_max;
}

static enum MHD_Result count_framing(void *ctx, enum MHD_ValueKind kind, const char *name,
                                     const char *value)
{
    (void)kind;
    (void)value;
    size_t *n = ctx;
    *n += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0 ||
          strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    return MHD_YES;
}

/* Where the body ends is said more than once: a proxy on the way may have taken another end than
 * libmicrohttpd, and so let its client put a request of its own among those of others (RFC 9112,
 * 6.1 and 6.3). */
static bool is_framed_twice(const bt_http_request *request)
{
    size_t n = 0;
    (void)MHD_get_connection_values(request->mhd, MHD_HEADER_KIND, count_framing, &n);
    return n > 1;
}

static void say_allowed(bt_http_request *request)
{
    char allow[ALLOW_BYTES] = "";
    size_t len = 0;
    for (size_t i = 0; i < request->server->n_routes; i++) {
        const bt_http_route *r = &request->server->routes[i];
        const size_t need = strlen(r->method) + 2;
        if (path_fits(r->path, request->path) && len + need < sizeof allow) {
            len += (size_t)snprintf(allow + len, sizeof allow - len, "%s%s", len > 0 ? ", " : "",
                                    r->method);
        }
    }
    bt_http_respond_header(request, MHD_HTTP_HEADER_ALLOW, allow);
}

static void refuse(bt_http_request *request, unsigned code)
{
    const bt_http_hooks *hooks = &request->server->options.hooks;
    const char *text = code == MHD_HTTP_METHOD_NOT_ALLOWED    ? "method not allowed"
                       : code == MHD_HTTP_CONTENT_TOO_LARGE   ? "the body is too large"
                       : code == MHD_HTTP_SERVICE_UNAVAILABLE ? "too many bodies at a time"
                       : code == MHD_HTTP_BAD_REQUEST ? "the body's length is given more than once"
                                                      : "not found";
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED) {
        say_allowed(request);
    }
    if (hooks->refuse != NULL) {
        hooks->refuse(request, code, text, hooks->ctx);
    }
    if (!request->answered) {
        char line[ALLOW_BYTES];
        (void)snprintf(line, sizeof line, "%s\n", text);
        bt_http_respond_text(request, code, line);
    }
}

/* Asked for by tls_client_ca; libmicrohttpd asks the client for one and leaves it at that. */
static bool has_certificate(const bt_http_request *request)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(request->mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    unsigned problems = 1;
    return info != NULL && info->tls_session != NULL &&
           gnutls_certificate_verify_peers2(info->tls_session, &problems) == GNUTLS_E_SUCCESS &&
           problems == 0;
}

/* The head is there. false: end the connection. */
static bool on_head(bt_http_request *request)
{
    const bt_http_options *o = &request->server->options;
    if (o->tls_client_ca != NULL && !has_certificate(request)) {
        return false;
    }
    if (o->hooks.gate != NULL) {
        o->hooks.gate(request, o->hooks.ctx);
    }
    if (!request->answered && is_framed_twice(request)) {
        refuse(request, MHD_HTTP_BAD_REQUEST);
    }
    if (!request->answered && says_too_long(request)) {
        refuse(request, MHD_HTTP_CONTENT_TOO_LARGE);
    }
    return !request->broken;
}

/* The body is there as well. false: end the connection. */
static bool on_whole(bt_http_request *request)
{
    bt_http_connection *connection = request->connection;
    if (request->handled) { /* deferred, and resumed since */
        return connection->stream != NULL && bt_http_stream_go_on(connection);
    }
    request->handled = true;
    if (request->answered) { /* by the gate */
        return true;
    }
    if (request->refusal != 0) {
        refuse(request, request->refusal);
    } else {
        request->route->handler(request, request->route->ctx);
        if (!request->answered) {
            bt_http_respond_text(request, MHD_HTTP_INTERNAL_SERVER_ERROR, "no answer\n");
        }
    }
    if (connection->stream != NULL) {
        drop_body(request);
        bt_http_connection_enter(connection, BT_HTTP_PHASE_DEFERRED);
        return bt_http_stream_go_on(connection);
    }
    bt_http_connection_enter(connection, BT_HTTP_PHASE_SENDING);
    return !request->broken;
}

enum MHD_Result bt_http_on_access(void *ctx, struct MHD_Connection *mhd, const char *url,
                                  const char *method, const char *version, const char *piece,
                                  size_t *piece_bytes, void **slot)
{
    (void)version;
    bt_http_request *request = *slot;
    if (request == NULL) {
        request = request_create(ctx, mhd, url, method);
        if (request == NULL) {
            return MHD_NO;
        }
        *slot = request;
        bt_http_connection_enter(request->connection, BT_HTTP_PHASE_BODY);
        return on_head(request) ? MHD_YES : MHD_NO;
    }
    if (*piece_bytes > 0) {
        const bool go_on = take_piece(request, piece, *piece_bytes);
        *piece_bytes = 0;
        return go_on ? MHD_YES : MHD_NO;
    }
    return on_whole(request) ? MHD_YES : MHD_NO;
}

void bt_http_on_completed(void *ctx, struct MHD_Connection *mhd, void **slot,
                          enum MHD_RequestTerminationCode code)
{
    (void)ctx;
    (void)mhd;
    (void)code;
    bt_http_request *request = *slot;
    if (request == NULL) {
        return;
    }
    if (request->connection->stream != NULL) {
        bt_http_stream_over(request->connection);
    }
    bt_http_connection_enter(request->connection, BT_HTTP_PHASE_HEAD);
    request_destroy(request);
    *slot = NULL;
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

void bt_http_request_host(const bt_http_request *request, char out[BT_HTTP_HOST_BYTES])
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(request->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    bt_socket_address address = {.len = 0};
    out[0] = '\0';
    if (info == NULL || info->client_addr == NULL) {
        return;
    }
    const int family = info->client_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) { /* and there may be no more than the family */
        (void)snprintf(out, BT_HTTP_HOST_BYTES, "unix:");
        return;
    }
    address.len = family == AF_INET6 ? (uint32_t)sizeof(struct sockaddr_in6)
                                     : (uint32_t)sizeof(struct sockaddr_in);
    memcpy(address.storage, info->client_addr, address.len);
    _Static_assert((int)BT_HTTP_HOST_BYTES >= (int)BT_SOCKET_TEXT_BYTES, "any address fits");
    bt_socket_address_text(&address, out);
    char *port = strrchr(out, ':');
    if (port != NULL) {
        *port = '\0';
    }
}

const char *bt_http_request_header(const bt_http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->mhd, MHD_HEADER_KIND, name);
}

const char *bt_http_request_query(const bt_http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->mhd, MHD_GET_ARGUMENT_KIND, name);
}

const char *bt_http_request_body(const bt_http_request *request, size_t *len)
{
    *len = request->body_len;
    return request->body != NULL ? request->body : "";
}

void bt_http_respond_header(bt_http_request *request, const char *name, const char *value)
{
    BT_ASSERT(!request->answered);
    BT_ASSERT(request->n_headers < BT_HTTP_HEADERS_MAX);
    bt_http_header *header = &request->headers[request->n_headers++];
    *header = (bt_http_header){.name = strdup(name), .value = strdup(value)};
    request->broken = request->broken || header->name == NULL || header->value == NULL;
}

bool bt_http_add_headers(struct MHD_Response *response, const char *content_type,
                         const bt_http_header *headers, size_t n)
{
    bool good =
        content_type == NULL ||
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type) == MHD_YES;
    for (size_t i = 0; good && i < n; i++) {
        good = MHD_add_response_header(response, headers[i].name, headers[i].value) == MHD_YES;
    }
    return good;
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
    const bool good =
        response != NULL &&
        bt_http_add_headers(response, content_type, request->headers, request->n_headers) &&
        MHD_queue_response(request->mhd, code, response) == MHD_YES;
    if (response != NULL) {
        MHD_destroy_response(response); /* the queue holds its own reference */
    }
    request->broken = !good;
}

void bt_http_respond_text(bt_http_request *request, unsigned code, const char *text)
{
    bt_http_respond(request, code, "text/plain; charset=utf-8", text, strlen(text));
}
