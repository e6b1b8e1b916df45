/* SPDX-License-Identifier: Apache-2.0 */
/* http.h - small HTTP/1.1 server (libmicrohttpd) in a thread of its own.
 *
 * A handler is called on the server's thread once per request, after the body (none for
 * GET) has been read. It answers with bt_http_respond() before it returns, or defers: then
 * another thread (the owner's, mostly the loop) answers later, whole or in pieces:
 *
 *   handler --bt_http_defer(ctx)--> BEGAN --+-- respond                       whole answer
 *                                           +-- begin, send ... send, end     in pieces
 *                                           `-- cut                           none
 *
 * What happens to a deferred request comes as news: on_news() says that there is some,
 * bt_http_server_next() gives it. A client that goes away is noticed within a second, whether
 * anything is being sent or not (one that closes its sending half counts as gone). respond,
 * end and cut take the stream: no news of it follows, and what was sent still reaches the client.
 *
 * A handler may block for as long as all other HTTP clients may wait, and it reaches the rest
 * of the process through thread-safe calls or bt_loop_post alone. HEAD is served by GET's
 * handler. Unknown paths get 404, known ones with another method 405, a body past its limit 413.
 *
 * Threading: handlers and hooks: the server's thread; streams and next(): the owner's thread, any
 *            one; everything else: the thread that created the server.
 * Memory:    bounded by the limits in bt_http_options.
 */
#ifndef BT_COMMON_HTTP_H
#define BT_COMMON_HTTP_H

#include "common/status.h"

enum { BT_HTTP_HOST_BYTES = 160 };

typedef struct bt_http_server bt_http_server;
typedef struct bt_http_request bt_http_request;
typedef struct bt_http_stream bt_http_stream;

typedef void (*bt_http_handler)(bt_http_request *request, void *ctx);

/* Each may be NULL. */
typedef struct bt_http_hooks {
    /* Sees each request after its head, before its body; when it answers, that is all. */
    bt_http_handler gate;
    /* Answers what the server itself refuses, in a form of its own; `code` 404, 405, 413 or 503. */
    void (*refuse)(bt_http_request *request, unsigned code, const char *text, void *ctx);
    /* bt_http_server_next() has something. */
    void (*on_news)(void *ctx);
    void *ctx;
} bt_http_hooks;

typedef struct bt_http_options {
    const char *address;             /* "host:port"; port 0 takes a free one */
    unsigned connections_max;        /* 0: 256 */
    unsigned connections_per_ip_max; /* 0: as many as connections_max */
    unsigned timeout_s;              /* of a silent connection; 0: 10 */
    unsigned head_time_s;            /* until a request's head is complete, idle time too; 0: 60 */
    unsigned body_time_s;            /* from the head to the end of the body; 0: 60 */
    unsigned send_time_s;            /* from an answer's end to its last byte; 0: 60 */
    size_t head_bytes_max;           /* request line and headers, for each connection; 0: 16 KiB */
    size_t body_bytes_max;           /* of a request; 0: 1 MiB */
    size_t bodies_bytes_max;         /* of all of them together, then 503; 0: no limit */
    size_t unsent_bytes_max;         /* of a stream until it has no room; 0: 64 KiB */
    const char *tls_cert;            /* PEM files; NULL: no TLS. Chain of the server */
    const char *tls_key;
    const char *tls_client_ca; /* NULL: any client; else it needs a certificate of this CA */
    bt_http_hooks hooks;
} bt_http_options;

typedef struct bt_http_header {
    const char *name; /* both without line breaks */
    const char *value;
} bt_http_header;

/* Checks and resolves the address, reads the PEM files; nothing is bound yet. BT_EINVAL, BT_ENOMEM;
 * BT_ENOTFOUND, BT_EPERMISSION, BT_EIO: a file or a host. */
BT_MUST_CHECK bt_status bt_http_server_create(const bt_http_options *options, bt_http_server **out,
                                              bt_error *err);

/* Before start. `method`: "GET", "POST"; `path` is compared whole, or up to a final "*", which
 * stands for one character or more. Both outlive the server. BT_EEXISTS: there is one.
 * BT_EEXHAUSTED: more than 32. */
BT_MUST_CHECK bt_status bt_http_server_handle(bt_http_server *server, const char *method,
                                              const char *path, bt_http_handler handler, void *ctx);

/* Serves from now on. BT_EEXISTS: the port is in use. BT_EINVAL: not a usable certificate. */
BT_MUST_CHECK bt_status bt_http_server_start(bt_http_server *server, bt_error *err);

/* The port taken (after start). */
int bt_http_server_port(const bt_http_server *server);

/* Deferred requests whose answer is not at the client yet. Any thread. */
size_t bt_http_server_pending(bt_http_server *server);

/* Ends open connections, after the handler that is running; no handler runs afterwards. */
void bt_http_server_stop(bt_http_server *server);

/* Stops, if that is still to be done. Every stream must have been taken. NULL is allowed. */
void bt_http_server_destroy(bt_http_server *server);

/* ---- inside a handler; texts are valid until it returns ---- */
const char *bt_http_request_method(const bt_http_request *request);
const char *bt_http_request_path(const bt_http_request *request);

/* The host that it comes from, without a port: "10.0.0.7", "[::1]"; "unix:" over such a socket. */
void bt_http_request_host(const bt_http_request *request, char out[BT_HTTP_HOST_BYTES]);

/* Value of a header (any case) or of a query argument (decoded); NULL without. */
const char *bt_http_request_header(const bt_http_request *request, const char *name);
const char *bt_http_request_query(const bt_http_request *request, const char *name);

/* The body, NUL-terminated after its len bytes. */
const char *bt_http_request_body(const bt_http_request *request, size_t *len);

/* Before respond: a header of the answer, 8 at most. Names and values without line breaks. */
void bt_http_respond_header(bt_http_request *request, const char *name, const char *value);

/* The whole answer; the body is copied. Exactly once; without it the client gets 500. */
void bt_http_respond(bt_http_request *request, unsigned code, const char *content_type,
                     const void *body, size_t len);
void bt_http_respond_text(bt_http_request *request, unsigned code, const char *text);

/* Instead of respond: the answer comes later, from the owner, who finds `ctx` in the news. The
 * body is gone when the handler returns. BT_ENOMEM: respond now. */
BT_MUST_CHECK bt_status bt_http_defer(bt_http_request *request, void *ctx);

/* ---- deferred requests: the owner's thread ---- */
enum {
    BT_HTTP_BEGAN = 1, /* first news of a stream */
    BT_HTTP_ROOM = 2,  /* it was full and takes more now */
    BT_HTTP_GONE = 4,  /* the client is gone: cut the stream */
};

/* The next stream with news, or NULL. *news: some of the above, merged. */
bt_http_stream *bt_http_server_next(bt_http_server *server, unsigned *news, void **ctx);

/* The whole answer. Takes the stream; *stream is NULL then. Out of memory: the connection ends. */
void bt_http_stream_respond(bt_http_stream **stream, unsigned code, const char *content_type,
                            const bt_http_header *headers, size_t n_headers, const void *body,
                            size_t len);

/* The head of an answer in pieces. Once. */
void bt_http_stream_begin(bt_http_stream *stream, unsigned code, const char *content_type,
                          const bt_http_header *headers, size_t n_headers);

/* Less than unsent_bytes_max waits to be sent. After "no", BT_HTTP_ROOM will say. */
bool bt_http_stream_has_room(bt_http_stream *stream);

/* One piece, copied; it is taken whole even where there is no room, and travels in one chunk if
 * it fits. After the client went, and when memory is out (the client is cut off and that is
 * told as GONE), it is dropped. */
void bt_http_stream_send(bt_http_stream *stream, const void *bytes, size_t len);

/* No further piece. Takes the stream. */
void bt_http_stream_end(bt_http_stream **stream);

/* Ends the connection as it is, so that the client sees a broken answer. Takes the stream. */
void bt_http_stream_cut(bt_http_stream **stream);

#endif /* BT_COMMON_HTTP_H */
