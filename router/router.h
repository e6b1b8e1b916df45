/* SPDX-License-Identifier: Apache-2.0 */
/* router.h - the router inside a process: start, serve, drain, stop.
 *
 * Clients reach it at the client address (baton.v1.Generation, health, reflection),
 * workers dial the attach address (proto/link.h) and stay. It tokenizes, places each
 * request on workers, merges their token events, turns tokens into text and streams
 * it to the client; README.md draws the way of one request. All its state is soft: a
 * router that restarts learns the cluster again from the workers that redial.
 *
 * Threading: loop thread only (before bt_loop_run() counts as such).
 * Memory:    requests, prefix map and registry are taken at create; a request's text
 *            and tokens are heap memory for the time of the request, bounded by the limits.
 */
#ifndef BT_ROUTER_ROUTER_H
#define BT_ROUTER_ROUTER_H

#include "common/keys.h"
#include "common/loop.h"
#include "common/metrics.h"
#include "common/rpc.h"
#include "common/status.h"
#include "proto/block_id.h"

typedef struct bt_router bt_router;

enum {
    BT_ROUTER_MODELS_MAX = 8,
};

typedef struct bt_router_model {
    const char *path; /* a GGUF file; only its metadata is read */
    const char *name; /* what a request's `model` says; NULL: the file's name without ".gguf" */
} bt_router_model;

typedef struct bt_router_options {
    const char *client_address; /* "host:port"; port 0 takes a free one */
    const char *attach_address; /* "host:port" */
    const char *http_address;   /* "host:port" for OpenAI-style HTTP; NULL: none */
    bt_router_model models[BT_ROUTER_MODELS_MAX];
    size_t n_models;            /* 1..BT_ROUTER_MODELS_MAX */
    const char *name;           /* of this router, for status and workers' logs */
    bt_cluster_key cluster_key; /* the same on every member */

    /* who may come in; the files' paths are borrowed during create */
    bt_keys *keys;        /* clients have to show one; NULL: none. Borrowed until destroy */
    const char *tls_cert; /* of the doors for clients; NULL: plain text */
    const char *tls_key;
    const char *tls_client_ca;   /* clients have to show a certificate of it; NULL: none */
    const char *attach_tls_cert; /* the same for workers */
    const char *attach_tls_key;
    const char *attach_tls_client_ca;

    /* limits: beyond them a request is refused with a reason */
    uint32_t requests_max;      /* living at one time, queued ones included; 1..65536 */
    uint32_t queue_max;         /* of these, waiting for a worker; 0..requests_max */
    uint32_t prompt_tokens_max; /* 0: the model's context decides alone */
    uint32_t request_bytes_max; /* one request message, bytes */
    uint64_t request_time_ms;   /* deadline of a request that names none, and the longest allowed */
    uint64_t queue_time_ms;     /* longest wait in the queue; refused at once when it would be
                                 * longer; 0: none */
    uint64_t ttft_max_ms;       /* refused at once when its first token would take longer; 0: off */
    uint64_t tpot_max_ms;       /* decode workers get no more sequences than keep to it; 0: off */
    uint32_t client_requests_max;      /* of one client at a time; 0: no limit */
    uint64_t client_prompt_tokens_max; /* of its living requests; 0: no limit */
    uint64_t client_bytes_max;         /* of these and their unread replies; 0: no limit */
    uint64_t slow_client_bytes; /* unsent text and tokens of one stream before it is aborted */
    uint64_t read_time_ms; /* longest time in which a client takes nothing of what waits for it */
    uint64_t http_keepalive_ms; /* silence on a stream over HTTP, before a comment is sent */
    uint64_t retry_pushback_ms; /* the least that an overloaded router tells clients to wait */

    /* placement */
    bool local_prefill;            /* D may prefill when no prefill worker is ready */
    uint32_t local_prefill_tokens; /* rests shorter than this are prefilled on D; 0: never */
    bool allow_mixed_numerics;     /* pair workers of different numerics ids */
    uint32_t attempts_max;         /* placements in a row without a new token; 1..16 */
    uint32_t recoveries_max;       /* times a stream that has begun goes on elsewhere; 0..100 */
    uint32_t prefix_blocks_max;    /* entries of the prefix map */
    uint64_t drain_prefix_bytes;   /* cached, that others pull from one that drains; 0: none */
    uint64_t worker_timeout_ms;    /* silence after which a worker is taken for dead */
    uint32_t ring_requests;        /* ended requests that it remembers, for explain; 0: none */
} bt_router_options;

/* Every option at its default: loopback addresses, ports 7070 (clients) and 7071 (attach),
 * no model. */
void bt_router_options_init(bt_router_options *options);

/* Reads the models' metadata, takes both ports and serves. `options` and `metrics` (NULL: none)
 * are borrowed: metrics until destroy, options during the call. BT_EINVAL, BT_ENOTFOUND,
 * BT_ECORRUPT: an option or a model file, *err says which; BT_EEXISTS: a port is in use;
 * BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_create(bt_loop *loop, bt_rpc *rpc, bt_metrics *metrics,
                                         const bt_router_options *options, bt_router **out,
                                         bt_error *err);

/* The ports taken. */
int bt_router_client_port(const bt_router *router);
int bt_router_attach_port(const bt_router *router);
int bt_router_http_port(const bt_router *router); /* 0: no HTTP */

/* Ready to serve: at least one model has workers that can take a whole request. */
bool bt_router_is_ready(const bt_router *router);

/* Refuses new requests at once (UNAVAILABLE), lets running ones finish for grace_ms, cancels
 * the rest, closes both ports, then calls done(ctx). Once. */
void bt_router_shutdown(bt_router *router, uint64_t grace_ms, bt_loop_fn done, void *ctx);

/* Test only: does what is due by bt_clock_now_ns(), as the timers would. */
void bt_router_tick(bt_router *router);

/* After shutdown's done. NULL is allowed. */
void bt_router_destroy(bt_router *router);

#endif /* BT_ROUTER_ROUTER_H */
