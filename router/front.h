/* SPDX-License-Identifier: Apache-2.0 */
/* front.h - what every door for clients (gRPC, HTTP) shares: one request struct, one reply.
 *
 * A front end decodes a call into a bt_router_front_request, submits it, and from then on
 * serves one stream: whenever on_ready() says so and its connection takes another message, it
 * peeks at the next delta, sends it, consumes it; after the last one it releases the request.
 * A client that went away is told by abandon(), instead of release().
 *
 * Threading: loop thread only.
 */
#ifndef BT_ROUTER_FRONT_H
#define BT_ROUTER_FRONT_H

#include "router/prompt.h"
#include "router/reply.h"
#include "router/text_stream.h"

typedef struct bt_router bt_router;
typedef struct bt_router_request bt_router_request;

enum {
    BT_ROUTER_LABEL_MAX = 65, /* x-request-id with its NUL */
    BT_ROUTER_SESSION_BYTES_MAX = 128,
};

/* Borrowed for submit(). */
typedef struct bt_router_front_request {
    const char *model; /* "" or NULL: the first one */
    bt_router_prompt_input prompt;
    bt_sampling sampling; /* stop tokens, bias ... as the client said */
    bool has_seed;        /* else one is drawn */
    bool has_max_tokens;  /* else as many as fit */
    const char *stops[BT_ROUTER_STOP_STRINGS_MAX];
    size_t stop_lens[BT_ROUTER_STOP_STRINGS_MAX];
    size_t n_stops;
    bool include_stop;
    int32_t priority;
    double ttft_target_ms; /* 0: none */
    double tpot_target_ms;
    bool refuse_late;       /* rather than miss these targets */
    const char *session_id; /* may be NULL with len 0 */
    size_t session_id_len;
    const char *cache_salt;
    size_t cache_salt_len;
    const char *client;       /* name of its API key (bt_keys_client); NULL: the door is open */
    const char *peer;         /* its address without the port, for limits without keys; or NULL */
    bool client_shares;       /* that key shares cached prefixes with others that do */
    const char *label;        /* the client's x-request-id, or NULL */
    int64_t deadline_left_ns; /* INT64_MAX: none */
} bt_router_front_request;

/* How a request went: for the last reply, the log line and the metrics. */
typedef struct bt_router_summary {
    bt_finish_reason reason;
    int stop_idx; /* which stop string, or -1 */
    bool has_stop_token;
    int32_t stop_token;
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    uint32_t generated_tokens;
    double queue_ms;
    double prefill_ms;
    double transfer_ms;
    double ttft_ms; /* 0: there was no token */
    double tpot_ms;
    double total_ms;
    char prefill_worker[BT_LINK_NAME_MAX];
    char decode_worker[BT_LINK_NAME_MAX];
    uint32_t blocks_total;
    uint32_t blocks_moved;
    uint32_t blocks_skipped;
    uint64_t bytes_moved;
    char transport[16];
    uint32_t attempts;
    uint32_t recoveries; /* of the attempts, those that went on with a stream that had begun */
    uint32_t preemptions;
    uint8_t numerics_id[BT_LINK_ID_BYTES];
    bool has_numerics;
    bool mixed_numerics;
} bt_router_summary;

/* The next part of a stream; borrowed until consume(). */
typedef struct bt_router_delta {
    bool is_first; /* then these describe the request */
    const char *label;
    const char *model;
    uint64_t seed;
    uint32_t prompt_tokens;

    bt_router_piece piece; /* may be empty in the first and the last delta */
    bool logprobs;

    bool is_last;
    bt_status status; /* of the last: BT_OK with the summary, or why it ended with the error */
    const char *error;
    uint64_t retry_after_ms; /* with BT_EEXHAUSTED; 0: unknown */
    const bt_router_summary *summary;
    const char *stop; /* the stop string found, NUL-terminated, or NULL */
    size_t stop_len;
} bt_router_delta;

typedef struct bt_router_front_ops {
    /* peek() has something now. Called again after each event that adds to it, never from
     * inside submit, peek, consume, release or abandon. */
    void (*on_ready)(void *ctx);
} bt_router_front_ops;

/* Checks every field's range, whichever the door. BT_EINVAL: *err names the field and the range. */
BT_MUST_CHECK bt_status bt_router_front_check(const bt_router_front_request *request,
                                              bt_error *err);

/* Takes a checked request in. On BT_OK the stream begins, with `ops` (outlives it) and ctx.
 * BT_ENOTFOUND: no such model; BT_EINVAL; BT_EEXHAUSTED: too many requests, *retry_after_ms
 * says when to come back; BT_EPEER: the router shuts down; BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_request_submit(bt_router *router,
                                                 const bt_router_front_request *request,
                                                 const bt_router_front_ops *ops, void *ctx,
                                                 bt_router_request **out, bt_error *err,
                                                 uint64_t *retry_after_ms);

/* Name of the request in logs: the client's label or one made here. Until release. */
const char *bt_router_request_label(const bt_router_request *request);

/* Of the request's model. */
const bt_tokenizer *bt_router_request_tokenizer(const bt_router_request *request);

/* The next delta. false: nothing now, on_ready() will say. */
bool bt_router_request_peek(bt_router_request *request, bt_router_delta *delta);
void bt_router_request_consume(bt_router_request *request, const bt_router_delta *delta);

/* After the last delta was consumed. */
void bt_router_request_release(bt_router_request *request);

/* The client is gone: cancels the work everywhere. No callback follows. */
void bt_router_request_abandon(bt_router_request *request, const char *why);

#endif /* BT_ROUTER_FRONT_H */
