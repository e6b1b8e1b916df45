/* SPDX-License-Identifier: Apache-2.0 */
/* front_http_call.h - one call over HTTP, from its body to its last byte, and the door itself.
 *
 * front_http_handlers.c runs on the HTTP server's thread and makes calls out of requests;
 * front_http.c runs on the loop and does the rest.
 *
 * Threading: a call belongs to the server's thread until it is deferred, then to the loop.
 * Memory:    heap, for the time of the call.
 */
#ifndef BT_ROUTER_FRONT_HTTP_CALL_H
#define BT_ROUTER_FRONT_HTTP_CALL_H

#include <stdatomic.h>

#include "common/http.h"
#include "router/front_http_int.h"
#include "router/router_int.h"

typedef struct bt_router_http_call bt_router_http_call;

typedef struct bt_router_http_choice {
    bt_router_http_call *call;
    bt_router_request *request; /* NULL before submit and after its end */
    uint32_t idx;
    uint32_t prompt_idx;
    const bt_tokenizer *tokenizer;
    bool has_begun; /* a chunk of it was sent */
    uint32_t offset;
    uint32_t n_skipped; /* leading prompt tokens without text */
    /* gathered, for an answer as a whole */
    bt_text text;
    bt_token_result *results;
    size_t n_results;
    size_t results_capacity;
    /* its end */
    bt_router_http_part last;
    char stop[BT_ROUTER_STOP_STRING_BYTES_MAX];
} bt_router_http_choice;

struct bt_router_http_call {
    bt_router_http_call *next;
    bt_router_http_call *prev;
    bt_router_front_http *front;
    bt_http_stream *stream;
    /* made by the server's thread */
    bt_status status; /* of parsing */
    bt_router_http_error error;
    bt_router_http_request request;
    bt_keys_client client;
    bool has_client;
    bool has_label;
    char label[BT_ROUTER_LABEL_MAX]; /* the client's; later the first request's */
    char host[BT_HTTP_HOST_BYTES];
    int64_t received_ns;
    /* the loop's */
    bool is_listed;
    bool has_begun; /* the answer's head is out */
    int64_t sent_ns;
    char model[BT_ROUTER_MODEL_NAME_MAX];
    bt_router_http_head head;
    bt_router_http_usage usage;
    bt_router_http_choice *choices;
    uint32_t n_choices;
    uint32_t n_open;
};

struct bt_router_front_http {
    bt_router *router;
    bt_keys *keys;
    bt_http_server *server;
    bt_wake *wake;
    bt_timer *tick;
    bt_router_http_call *calls;
    size_t n_calls;
    bt_json_writer writer;
    bt_text scratch; /* of one event going out */
    int64_t created_s;
    bt_timer *drain_timer;
    int64_t drain_until_ns;
    bt_loop_fn drain_done;
    void *drain_ctx;
    /* Written by the loop, read by the server's thread; each stands alone. */
    _Atomic bool is_ready;
    _Atomic int64_t alive_ns;
    _Atomic uint32_t n_strangers; /* the other way round: to be reported */
};

/* ---- front_http_handlers.c ---- */

/* Makes front->server with its handlers; nothing is bound yet. What bt_http_server_create says. */
BT_MUST_CHECK bt_status bt_router_http_create_server(bt_router_front_http *front,
                                                     const bt_router_front_http_options *options,
                                                     bt_error *err);

/* Of a call whose stream is taken, or that has none yet. */
void bt_router_http_call_free(bt_router_http_call *call);

#endif /* BT_ROUTER_FRONT_HTTP_CALL_H */
