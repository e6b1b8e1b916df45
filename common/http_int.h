/* SPDX-License-Identifier: Apache-2.0 */
/* http_int.h - what common/http*.c share. http.c owns start, stop, the thread and its limits of
 * time; http_request.c what libmicrohttpd calls, up to the handler; http_stream.c answers that
 * come later.
 *
 * Threading: as said at each field.
 */
#ifndef BT_COMMON_HTTP_INT_H
#define BT_COMMON_HTTP_INT_H

#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>

#include "common/http.h"

enum {
    BT_HTTP_ROUTES_MAX = 32,
    BT_HTTP_HEADERS_MAX = 8,
};

/* A list with its head inside: an entry that is in none points to itself. */
typedef struct bt_http_link {
    struct bt_http_link *next;
    struct bt_http_link *prev;
} bt_http_link;

static inline void bt_http_link_init(bt_http_link *link)
{
    link->next = link;
    link->prev = link;
}

static inline bool bt_http_link_is_alone(const bt_http_link *link)
{
    return link->next == link;
}

static inline void bt_http_link_add(bt_http_link *list, bt_http_link *link)
{
    link->next = list;
    link->prev = list->prev;
    list->prev->next = link;
    list->prev = link;
}

static inline void bt_http_link_remove(bt_http_link *link)
{
    link->next->prev = link->prev;
    link->prev->next = link->next;
    bt_http_link_init(link);
}

typedef struct bt_http_route {
    const char *method;
    const char *path;
    bt_http_handler handler;
    void *ctx;
} bt_http_route;

struct bt_http_server {
    /* fixed after start */
    bt_http_options options; /* with the defaults filled in */
    char *address;
    char *tls_cert; /* the files' texts */
    char *tls_key;
    char *tls_client_ca;
    bt_http_route routes[BT_HTTP_ROUTES_MAX];
    size_t n_routes;
    struct MHD_Daemon *daemon; /* NULL before start */
    int epoll_fd;              /* libmicrohttpd's */
    int wake_fd;
    int port;
    pthread_t thread;
    bool running;

    /* server's thread */
    bt_http_link connections;
    size_t n_connections;
    size_t n_deferred;
    size_t bodies_bytes;
    struct pollfd *polls; /* connections_max */
    struct bt_http_connection **polled;
    int64_t next_look_ns;

    /* any thread, under the mutex */
    pthread_mutex_t mutex;
    bool stopping;
    bool is_woken;
    bt_http_link awake; /* streams that have something for the server's thread */
    bt_http_link news;  /* streams that have something for their owner */
    size_t n_streams;
};

typedef enum bt_http_phase {
    BT_HTTP_PHASE_HEAD, /* or idle */
    BT_HTTP_PHASE_BODY,
    BT_HTTP_PHASE_DEFERRED, /* the owner has it */
    BT_HTTP_PHASE_SENDING,  /* the answer is complete */
} bt_http_phase;

/* Server's thread. */
typedef struct bt_http_connection {
    bt_http_link link;
    struct MHD_Connection *mhd;
    int fd;
    bt_http_phase phase;
    int64_t since_ns;
    bt_http_stream *stream; /* of the request that is deferred */
    bool suspended;
    bool lost; /* the socket was shut down from here */
} bt_http_connection;

struct bt_http_stream {
    /* fixed */
    bt_http_server *server;
    void *ctx;

    /* under the server's mutex */
    bt_http_connection *connection; /* NULL: the request is over */
    bt_http_link awake;
    bt_http_link news_link;
    unsigned news;
    bool is_taken; /* by respond, end or cut */
    bool is_cut;
    bool has_begun;
    bool wants_room;
    unsigned code;
    struct MHD_Response *response; /* until it is queued */
    char *bytes;                   /* records: uint32 length, bytes */
    size_t capacity;
    size_t begin; /* of what is not sent */
    size_t end;
    size_t record_left; /* of the record at begin, when its head is gone */
    size_t unsent;
};

struct bt_http_request {
    bt_http_server *server;
    struct MHD_Connection *mhd;
    bt_http_connection *connection;
    const char *method;
    const char *path;
    const bt_http_route *route; /* NULL: refused */
    unsigned refusal;           /* code to answer with, 0: none */

    char *body; /* NUL-terminated once there is one */
    size_t body_len;
    size_t body_capacity;
    size_t body_seen; /* with what was thrown away */

    bt_http_header headers[BT_HTTP_HEADERS_MAX]; /* own strings */
    size_t n_headers;
    bool answered;
    bool handled; /* the handler has run */
    bool broken;  /* the answer could not be made: end the connection */
};

/* ---- http.c: server's thread ---- */
void bt_http_connection_enter(bt_http_connection *connection, bt_http_phase phase);

/* Any thread, mutex held: the server's thread looks at what it was left. */
void bt_http_server_wake(bt_http_server *server);

/* ---- http_request.c: what libmicrohttpd calls ---- */
enum MHD_Result bt_http_on_access(void *ctx, struct MHD_Connection *mhd, const char *url,
                                  const char *method, const char *version, const char *piece,
                                  size_t *piece_bytes, void **slot);
void bt_http_on_completed(void *ctx, struct MHD_Connection *mhd, void **slot,
                          enum MHD_RequestTerminationCode code);

/* Any thread: gives an answer its headers. content_type may be NULL. false: out of memory. */
bool bt_http_add_headers(struct MHD_Response *response, const char *content_type,
                         const bt_http_header *headers, size_t n);

/* ---- http_stream.c ---- */

/* Server's thread: the deferred request's connection was resumed, or its handler has returned.
 * Queues the answer if there is one, and suspends otherwise. false: end the connection. */
bool bt_http_stream_go_on(bt_http_connection *connection);

/* Server's thread: the request is over, sent or not. */
void bt_http_stream_over(bt_http_connection *connection);

/* Server's thread: resumes what has something to send. */
void bt_http_streams_resume(bt_http_server *server);
void bt_http_connection_resume(bt_http_connection *connection);

/* Server's thread: the phase follows the owner. */
bool bt_http_stream_is_taken(bt_http_connection *connection);

#endif /* BT_COMMON_HTTP_INT_H */
