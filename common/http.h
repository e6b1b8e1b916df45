/* SPDX-License-Identifier: Apache-2.0 */
/* http.h - small HTTP/1.1 server (libmicrohttpd) in a thread of its own.
 *
 * A handler is called on the server's thread once per request, after the body (none for
 * GET) has been read, and answers with bt_http_respond() before it returns; the answer
 * is sent after that. It may block for as long as all other HTTP clients may wait, and it
 * reaches the rest of the process through thread-safe calls or bt_loop_post alone.
 *
 * HEAD is served by GET's handler. Unknown paths get 404, known ones with another
 * method 405, a body past its limit 413.
 *
 * Threading: handlers: the server's thread; everything else: the thread that created it.
 * Memory:    bounded by the limits in bt_http_options.
 */
#ifndef BT_COMMON_HTTP_H
#define BT_COMMON_HTTP_H

#include "common/status.h"

typedef struct bt_http_server bt_http_server;
typedef struct bt_http_request bt_http_request;

typedef struct bt_http_options {
    const char *address;             /* "host:port"; port 0 takes a free one */
    unsigned connections_max;        /* 0: 256 */
    unsigned connections_per_ip_max; /* 0: as many as connections_max */
    unsigned timeout_s;              /* of a silent connection; 0: 10 */
    size_t head_bytes_max;           /* request line and headers, for each connection; 0: 16 KiB */
    size_t body_bytes_max;           /* of a request; 0: 1 MiB */
} bt_http_options;

typedef void (*bt_http_handler)(bt_http_request *request, void *ctx);

/* Checks and resolves the address; nothing is bound yet. BT_EINVAL, BT_ENOTFOUND, BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_http_server_create(const bt_http_options *options, bt_http_server **out,
                                              bt_error *err);

/* Before start. `method`: "GET", "POST"; `path` is compared whole. Both outlive the server.
 * BT_EEXISTS: there is one. BT_EEXHAUSTED: more than 32. */
BT_MUST_CHECK bt_status bt_http_server_handle(bt_http_server *server, const char *method,
                                              const char *path, bt_http_handler handler, void *ctx);

/* Serves from now on. BT_EEXISTS: the port is in use. */
BT_MUST_CHECK bt_status bt_http_server_start(bt_http_server *server, bt_error *err);

/* The port taken (after start). */
int bt_http_server_port(const bt_http_server *server);

/* Ends open connections, after the handler that is running; no handler runs afterwards. */
void bt_http_server_destroy(bt_http_server *server);

/* ---- inside a handler; texts are valid until it returns ---- */
const char *bt_http_request_method(const bt_http_request *request);
const char *bt_http_request_path(const bt_http_request *request);

/* Value of a header (any case) or of a query argument (decoded); NULL without. */
const char *bt_http_request_header(const bt_http_request *request, const char *name);
const char *bt_http_request_query(const bt_http_request *request, const char *name);

/* The body, NUL-terminated after its len bytes. */
const char *bt_http_request_body(const bt_http_request *request, size_t *len);

/* Before respond: a header of the answer. Names and values without line breaks. */
void bt_http_respond_header(bt_http_request *request, const char *name, const char *value);

/* The whole answer; the body is copied. Exactly once; without it the client gets 500. */
void bt_http_respond(bt_http_request *request, unsigned code, const char *content_type,
                     const void *body, size_t len);
void bt_http_respond_text(bt_http_request *request, unsigned code, const char *text);

#endif /* BT_COMMON_HTTP_H */
