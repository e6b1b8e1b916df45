/* SPDX-License-Identifier: Apache-2.0 */
/* link.h - the session that every worker holds to every router.
 *
 * One gRPC stream for each (worker, router); the worker dials (worker.proto). What one step
 * makes for a router travels as one message:
 *
 *   worker                                     router
 *     |---- hello ------------------------------>|
 *     |<------------------------- challenge -----|  (the router knows the cluster key)
 *     |---- proof ------------------------------>|  on_worker_up (or refused, with a text)
 *     |<--------------------------- welcome -----|  on_router_up
 *     |---- blocks: reset, stored... (snapshot) ->|  on_blocks
 *     |<------------------------------- run -----|  on_run
 *     |---- tokens, tokens, ... finished -------->|  on_tokens, on_finished
 *     |---- load, every 200 ms and on change ---->|  on_load     (also the sign of life)
 *     |<------------------ cancel, ping ---------|  on_cancel
 *     |<------------------ park, resume ---------|  on_park, on_resume
 *     |---- parked ------------------------------>|  on_parked
 *     |<------------------------- drain ---------|  on_drain
 *     |<------------------ fetch, leave ---------|  on_fetch, on_leave
 *     |---- fetched ----------------------------->|  on_fetched
 *
 * Before the proofs (proto/proof.h) neither side answers anything else, and a session without
 * them ends within silence_ms.
 *
 * A lost or silent session is down on both sides: the worker cancels that router's runs
 * (on_cancel for each, then on_router_down) and dials again within a second; the router gets
 * on_worker_down and places its requests elsewhere. Nothing is resumed.
 *
 * Threading: loop thread only.
 * Memory:    tables are taken at create; messages are heap objects, bounded by outbox_bytes_max.
 */
#ifndef BT_PROTO_LINK_H
#define BT_PROTO_LINK_H

#include "common/rpc.h"
#include "proto/block_id.h"
#include "proto/proof.h"
#include "proto/sampling.h"

enum {
    BT_LINK_PROTOCOL_VERSION = 2,
    BT_LINK_NAME_MAX = 64, /* sizes of strings, with their NUL */
    BT_LINK_ADDRESS_MAX = 128,
    BT_LINK_ID_BYTES = 16,
    BT_LINK_LABEL_MAX = 65,     /* what a client calls its request, with its NUL */
    BT_LINK_TIMELINES_MAX = 16, /* of one answer about a request */
    BT_LINK_ROUTERS_MAX = 16,
    BT_LINK_FETCH_BLOCKS_MAX = 1000, /* of one fetch; equals BT_KV_WANTED_MAX */
};

typedef enum bt_link_role {
    BT_LINK_ROLE_PREFILL = 1,
    BT_LINK_ROLE_DECODE = 2,
    BT_LINK_ROLE_BOTH = 3,
} bt_link_role;

typedef enum bt_link_mode {
    BT_LINK_MODE_PREFILL = 1, /* compute the prompt, sample token 0, keep the KV for the peer */
    BT_LINK_MODE_DECODE = 2,  /* pull the prompt's KV from the peer, go on from token 1 */
    BT_LINK_MODE_WHOLE = 3,   /* both here */
} bt_link_mode;

typedef enum bt_link_blocks_kind {
    BT_LINK_BLOCKS_RESET = 1, /* forget all of this worker's; n is 0 */
    BT_LINK_BLOCKS_STORED = 2,
    BT_LINK_BLOCKS_EVICTED = 3,
} bt_link_blocks_kind;

/* Where a worker's KV can be pulled from. */
typedef struct bt_link_kv_peer {
    char name[BT_LINK_NAME_MAX];
    uint64_t incarnation;
    char kv_tcp[BT_LINK_ADDRESS_MAX];  /* "host:port" */
    char kv_unix[BT_LINK_ADDRESS_MAX]; /* path; usable between equal boot ids; "" for none */
    uint8_t boot_id[BT_LINK_ID_BYTES];
} bt_link_kv_peer;

/* Who a worker is; fixed for its life. */
typedef struct bt_link_hello {
    uint32_t protocol_version; /* filled by the worker's side of this module */
    bt_link_role role;
    bt_link_kv_peer kv; /* also holds the worker's name and incarnation */
    uint8_t numerics_id[BT_LINK_ID_BYTES];
    char kernels[BT_LINK_NAME_MAX]; /* kernel path */
    char model[BT_LINK_ADDRESS_MAX];
    uint8_t model_fingerprint[BT_LINK_ID_BYTES];
    uint8_t tokenizer_hash[BT_LINK_ID_BYTES];
    uint32_t block_tokens;
    uint32_t pool_blocks;
    uint64_t block_bytes;
    uint32_t requests_max;   /* runs that it takes at a time */
    uint32_t context_tokens; /* longest sequence */
    uint32_t step_tokens_max;
} bt_link_hello;

/* One request for one worker. Pointers are borrowed for the call (or the callback). */
typedef struct bt_link_run {
    bt_request_id id;
    uint32_t attempt;
    bt_link_mode mode;
    const int32_t *tokens; /* the prompt, and on a retry the tokens made so far */
    uint32_t n_tokens;
    uint32_t n_prompt; /* of tokens: the client's prompt; the rest counts as generated */
    const bt_sampling *sampling;
    bt_block_hash chain_root;
    int64_t deadline_left_ns; /* INT64_MAX: none */
    int32_t priority;
    double ttft_target_ms; /* 0: none */
    double tpot_target_ms;
    const char *label; /* what the client calls it, for logs; NULL and "" are alike */
    bool has_peer;
    bt_link_kv_peer peer; /* DECODE: pull from it. PREFILL: it will pull (name, incarnation) */
} bt_link_run;

/* Sampled tokens, in index order from first_index. */
typedef struct bt_link_tokens {
    bt_request_id id;
    uint32_t attempt;
    uint32_t first_index; /* of the output; with is_prompt, of the prompt */
    bool is_prompt;       /* echoed prompt tokens */
    const bt_token_result *results;
    uint32_t n_results;
} bt_link_tokens;

/* The end of a run on this worker. */
typedef struct bt_link_finished {
    bt_request_id id;
    uint32_t attempt;
    bt_status status;
    bt_error error; /* text when status is not BT_OK */
    bool draining;  /* with BT_EPEER: the worker takes nothing new, or goes */
    bt_finish_reason reason;
    bool has_stop_token;
    int32_t stop_token; /* which EOS or stop token ended it */
    uint32_t prompt_tokens;
    uint32_t cached_tokens; /* of these, found in the prefix cache */
    uint32_t generated_tokens;
    uint64_t queue_ns;
    uint64_t prefill_ns;
    uint64_t transfer_ns;
    uint64_t decode_ns;
    uint32_t blocks_total; /* of the prompt */
    uint32_t blocks_moved;
    uint32_t blocks_skipped;
    uint64_t bytes_moved;
    uint32_t preemptions;
    char transport[16]; /* "shm", "tcp", "" */
} bt_link_finished;

/* The answer to a park: a run is held for another worker, or goes on. */
typedef struct bt_link_parked {
    bt_request_id id;
    uint32_t attempt;
    bt_status status;          /* not BT_OK: the run has nothing to hand over now, and goes on */
    bt_error error;            /* text when status is not BT_OK */
    uint32_t generated_tokens; /* of the output, with those before this attempt */
} bt_link_parked;

/* Cached blocks that a worker is to pull from another one. */
typedef struct bt_link_fetch {
    bt_request_id id;
    uint32_t attempt;
    bt_link_kv_peer peer;
    const bt_block_hash *ids; /* borrowed; from a chain's first block on */
    uint32_t n_ids;           /* 1 .. BT_LINK_FETCH_BLOCKS_MAX */
    uint32_t deadline_left_ms;
} bt_link_fetch;

/* What came of it. */
typedef struct bt_link_fetched {
    bt_request_id id;
    uint32_t attempt;
    bt_status status;
    bt_error error; /* text when status is not BT_OK */
    uint32_t blocks_moved;
    uint32_t blocks_skipped; /* that were there already */
    uint64_t bytes_moved;
} bt_link_fetched;

/* A worker's load now, and its counters since its start. */
typedef struct bt_link_load {
    uint32_t blocks_free;
    uint32_t blocks_cached;
    uint32_t requests_running;
    uint32_t requests_waiting;
    uint64_t waiting_tokens; /* prompt tokens queued and not yet computed */
    uint64_t prefill_tokens;
    uint64_t recomputed_tokens; /* after preemption; not in prefill_tokens */
    uint64_t decode_tokens;
    uint64_t prefix_hit_tokens;
    uint64_t prefix_miss_tokens;
    uint64_t preemptions;
    uint64_t pulls;
    uint64_t partial_pulls;
    uint64_t blocks_pulled;
    uint64_t bytes_pulled;
    uint64_t pulls_failed;
    uint64_t bytes_served;
    uint64_t step_ns;           /* mean of recent steps */
    uint64_t prefill_token_ns;  /* of a prompt token, in recent steps; few rows count as more */
    uint64_t oldest_waiting_ns; /* age of the oldest queued request */
    bool draining;              /* takes nothing new */
    uint32_t requests_parked;   /* of requests_running: held for another worker to pull */
    uint64_t runs_handed_over;  /* pulled by another decode worker */
    uint64_t step_age_ns;       /* since the engine last got on, while it has work; 0: none */
    uint64_t stuck_ns;          /* for how long it has been taken for stuck; 0: it is not */
    uint32_t requests_decoding; /* of requests_running: with a row in each step */
    uint32_t running_max;       /* sequences in one step, at most; 0: unknown */
    uint64_t last_step_ns;      /* of the newest step */
    uint64_t blocks_stored;     /* that got an identity */
    uint64_t blocks_evicted;    /* that lost it for room */
    uint64_t prefix_queries;    /* requests looked up in the prefix cache */
    uint64_t prefix_hits;       /* of them, with a block at least */
    uint64_t slots_written;     /* positions with K and V, over the sequences of each step */
    uint64_t slots_allocated;   /* positions of their blocks */
} bt_link_load;

/* One run on one worker, as it remembers it (worker/timeline.h). Times are ns since arrival, 0: not
 * reached. */
typedef struct bt_link_timeline {
    bt_request_id id;
    uint32_t attempt;
    bt_link_mode mode;
    char label[BT_LINK_LABEL_MAX];
    bool open; /* it still runs */
    bt_status status;
    bt_error error; /* text when status is not BT_OK */
    bt_finish_reason reason;
    uint64_t arrived_unix_ns;
    uint64_t started_ns;     /* it has blocks */
    uint64_t computed_ns;    /* prefill: the prompt is computed. decode: its KV is here */
    uint64_t transferred_ns; /* prefill: nobody reads its KV any more */
    uint64_t first_token_ns;
    uint64_t ended_ns; /* open: until now */
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    uint32_t generated_tokens;
    uint32_t blocks_moved;
    uint32_t blocks_skipped;
    uint64_t bytes_moved;
    uint32_t preemptions;
    char transport[16];
    char peer[BT_LINK_NAME_MAX];
} bt_link_timeline;

/* 32 hex digits, as logs and `baton explain` show a request. */
void bt_link_request_hex(bt_request_id id, char out[BT_HASH128_HEX_BYTES]);

/* Whether `request` is that id in hex, or that label. */
bool bt_link_is_request(const char *request, bt_request_id id, const char *label);

/* ------------------------------------------------------------------ the worker's side ---- */

typedef struct bt_link_worker bt_link_worker;

typedef struct bt_link_worker_callbacks {
    /* A request to run; answer with tokens() and, once, finished(). Never called twice for
     * one (id, attempt). */
    void (*on_run)(const bt_link_run *run, void *ctx);
    /* Stop it; finished() is still owed (and goes nowhere when its router is gone). */
    void (*on_cancel)(bt_request_id id, uint32_t attempt, void *ctx);
    /* Hold an open run for another worker, which pulls it as (id, next_attempt); answer with
     * parked(), once. NULL: never. */
    void (*on_park)(bt_request_id id, uint32_t attempt, uint32_t next_attempt, void *ctx);
    /* Go on with an open run that may be parked. NULL: ignored. */
    void (*on_resume)(bt_request_id id, uint32_t attempt, void *ctx);
    /* A router's operator wants this worker to drain and exit. NULL: ignored. */
    void (*on_drain)(void *ctx);
    /* Pull cached blocks; answer with bt_link_worker_fetched() to that router. NULL: ignored. */
    void (*on_fetch)(uint32_t router, const bt_link_fetch *fetch, void *ctx);
    /* A router does not keep this worker, which drains (any more). NULL: ignored. */
    void (*on_leave)(void *ctx);
    /* May be NULL. `router`: index into options.routers. */
    void (*on_router_up)(uint32_t router, void *ctx);
    void (*on_router_down)(uint32_t router, const char *reason, void *ctx);
    /* What is known of a request, by its id in hex or its label: up to BT_LINK_TIMELINES_MAX into
     * out[], the newest first; returns their number. NULL: nothing is. */
    size_t (*on_explain)(const char *request, bt_link_timeline *out, void *ctx);
} bt_link_worker_callbacks;

typedef struct bt_link_worker_options {
    const bt_link_hello *hello; /* copied */
    const char *const *routers; /* "host:port" each; copied */
    uint32_t n_routers;         /* 1 .. BT_LINK_ROUTERS_MAX */
    bt_cluster_key cluster_key; /* the routers' too */
    const bt_rpc_tls *tls;      /* of the routers; NULL: plain text; borrowed for create */
    uint32_t answer_ms;         /* longest wait for a router's challenge and welcome; 0: 3,000 */
    uint32_t runs_max;          /* open runs; further ones are refused; 0: 4,096 */
    uint32_t load_ms;           /* period of load reports; 0: 200 */
    size_t outbox_bytes_max;    /* unsent bytes for one router; 0: 8 MiB */
    const bt_link_worker_callbacks *callbacks; /* outlives the link */
    void *ctx;
} bt_link_worker_options;

typedef struct bt_link_worker_stats {
    uint64_t sessions;        /* set up so far */
    uint64_t refusals;        /* by routers (version, tokenizer, name) or of them (key, silence) */
    uint64_t runs;            /* on_run calls */
    uint64_t runs_duplicate;  /* ignored: (id, attempt) was open */
    uint64_t runs_refused;    /* table full, malformed, open for another router; answered */
    uint64_t cancels_unknown; /* ignored */
    uint64_t events_late;     /* tokens, finished: unknown run or router gone; dropped */
    uint64_t blocks_dropped;  /* block events left out for lack of room; a snapshot follows */
    uint64_t snapshots;
    uint64_t outbox_overflows; /* sessions ended because a router did not read */
    uint32_t routers_up;
    uint32_t runs_open;
} bt_link_worker_stats;

/* Dials all routers, and again whenever a session is lost. BT_EINVAL (options), BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_link_worker_create(bt_loop *loop, bt_rpc *rpc,
                                              const bt_link_worker_options *options,
                                              bt_link_worker **out, bt_error *err);

/* Events of a run go to the router that sent it, with the next flush. An unknown run is
 * ignored and counted. When outbox_bytes_max is reached because that router does not read, the
 * session ends (on_cancel for its runs, on_router_down): tokens are never left out in silence. */
void bt_link_worker_tokens(bt_link_worker *link, const bt_link_tokens *tokens);
void bt_link_worker_finished(bt_link_worker *link, const bt_link_finished *finished);
void bt_link_worker_parked(bt_link_worker *link, const bt_link_parked *parked);

/* To the router of that index, if it is there. */
void bt_link_worker_fetched(bt_link_worker *link, uint32_t router, const bt_link_fetched *fetched);

/* A router that is up has not said (in this session) that it does not keep this worker. */
bool bt_link_worker_is_kept(const bt_link_worker *link);

/* Blocks that joined or left the prefix cache, for all routers. The link keeps the set of what
 * is held (pool_blocks of the hello at most), so snapshots need nobody's help. With the
 * outbox more than half full these events are left out and a snapshot follows later. */
void bt_link_worker_blocks(bt_link_worker *link, bt_link_blocks_kind kind, const bt_block_hash *ids,
                           size_t n);

/* The load from now on: sent each load_ms, and with a flush when it changed (at most each
 * 10 ms). */
void bt_link_worker_load(bt_link_worker *link, const bt_link_load *load);

/* Ends a step: what was said since the last flush leaves, one message for each router. */
void bt_link_worker_flush(bt_link_worker *link);

bt_link_worker_stats bt_link_worker_get_stats(const bt_link_worker *link);

/* Sends what is queued, then ends the sessions; no callback but done(ctx) comes after this.
 * done comes after grace_ms at the latest. */
void bt_link_worker_shutdown(bt_link_worker *link, uint64_t grace_ms, bt_loop_fn done, void *ctx);

/* Cuts what is still open. Not from inside a callback of this link but shutdown's done. */
void bt_link_worker_destroy(bt_link_worker *link);

/* ------------------------------------------------------------------ the router's side ---- */

typedef struct bt_link_router bt_link_router;
typedef struct bt_link_peer bt_link_peer; /* one attached worker, until on_worker_down returned */

typedef struct bt_link_router_callbacks {
    /* A worker with the right version and key. Anything but BT_OK refuses it with err's text
     * (the worker logs it): the model is unknown, the tokenizer differs, ... A worker that
     * comes back may be up before on_worker_down was told for its lost connection. */
    bt_status (*on_worker_up)(bt_link_peer *worker, const bt_link_hello *hello, void *ctx,
                              bt_error *err);
    void (*on_load)(bt_link_peer *worker, const bt_link_load *load, void *ctx);
    void (*on_tokens)(bt_link_peer *worker, const bt_link_tokens *tokens, void *ctx);
    void (*on_finished)(bt_link_peer *worker, const bt_link_finished *finished, void *ctx);
    void (*on_parked)(bt_link_peer *worker, const bt_link_parked *parked, void *ctx); /* or NULL */
    /* May be NULL. */
    void (*on_fetched)(bt_link_peer *worker, const bt_link_fetched *fetched, void *ctx);
    void (*on_blocks)(bt_link_peer *worker, bt_link_blocks_kind kind, const bt_block_hash *ids,
                      size_t n, void *ctx);
    /* The answer to bt_link_router_explain(). May be NULL. */
    void (*on_explained)(bt_link_peer *worker, uint64_t number, const bt_link_timeline *timelines,
                         size_t n, void *ctx);
    /* Exactly once after each accepted on_worker_up; the handle is gone afterwards. */
    void (*on_worker_down)(bt_link_peer *worker, const char *reason, void *ctx);
} bt_link_router_callbacks;

typedef struct bt_link_router_options {
    const char *name;                          /* told to workers, for their logs */
    bt_cluster_key cluster_key;                /* the workers' too */
    uint32_t workers_max;                      /* further ones are refused; 0: 1,024 */
    uint32_t ping_ms;                          /* 0: 500 */
    uint32_t silence_ms;                       /* a worker silent for so long is down; 0: 3,000 */
    size_t outbox_bytes_max;                   /* unsent bytes for one worker; 0: 32 MiB */
    const bt_link_router_callbacks *callbacks; /* outlives the link */
    void *ctx;
} bt_link_router_options;

typedef struct bt_link_router_stats {
    uint64_t attaches;
    uint64_t refusals;
    uint64_t silences;   /* workers given up for silence */
    uint64_t malformed;  /* streams ended because a message made no sense */
    uint64_t block_gaps; /* snapshots asked for */
    uint32_t workers_up;
} bt_link_router_stats;

/* Registers the Attach path; before bt_rpc_server_start(). */
BT_MUST_CHECK bt_status bt_link_router_create(bt_loop *loop, bt_rpc_server *server,
                                              const bt_link_router_options *options,
                                              bt_link_router **out, bt_error *err);

/* Sends a run. BT_AGAIN: this worker's outbox is full. BT_EEXHAUSTED: the run is too large for
 * one message. BT_EPEER: its session is ending. */
BT_MUST_CHECK bt_status bt_link_router_run(bt_link_peer *worker, const bt_link_run *run);

/* Unknown or finished runs are the worker's to ignore. */
void bt_link_router_cancel(bt_link_peer *worker, bt_request_id id, uint32_t attempt);

/* Asks for a run to be held for another worker, which will pull it as (id, next_attempt):
 * on_parked follows unless the run ends before. BT_AGAIN, BT_EPEER: as above. */
BT_MUST_CHECK bt_status bt_link_router_park(bt_link_peer *worker, bt_request_id id,
                                            uint32_t attempt, uint32_t next_attempt);

/* Lets a parked run go on where it is. Unknown or finished ones are the worker's to ignore. */
void bt_link_router_resume(bt_link_peer *worker, bt_request_id id, uint32_t attempt);

/* Asks the worker to drain and exit. */
void bt_link_router_drain(bt_link_peer *worker);

/* Lets the worker pull cached blocks from another one: on_fetched follows, unless its session ends.
 * BT_AGAIN, BT_EPEER: as above. */
BT_MUST_CHECK bt_status bt_link_router_fetch(bt_link_peer *worker, const bt_link_fetch *fetch);

/* Tells a worker that drains that nothing (more) of it is fetched. */
void bt_link_router_leave(bt_link_peer *worker);

/* Asks what the worker knows of a request (its id in hex, or its label); `number` comes back in
 * on_explained. BT_AGAIN: its outbox is full. BT_EPEER: its session is ending. */
BT_MUST_CHECK bt_status bt_link_router_explain(bt_link_peer *worker, uint64_t number,
                                               const char *request);

/* Ends this worker's session; on_worker_down follows, from the loop. */
void bt_link_router_drop(bt_link_peer *worker, const char *reason);

/* A pointer of the owner's. */
void bt_link_peer_set_ctx(bt_link_peer *worker, void *ctx);
void *bt_link_peer_ctx(const bt_link_peer *worker);

/* Valid until on_worker_down returned. */
const bt_link_hello *bt_link_peer_hello(const bt_link_peer *worker);
const char *bt_link_peer_address(const bt_link_peer *worker); /* "ipv4:127.0.0.1:4711" */

bt_link_router_stats bt_link_router_get_stats(const bt_link_router *link);

/* Refuses new workers and ends all sessions (on_worker_down for each, with this reason). Then
 * shut the server down, which waits for the streams. */
void bt_link_router_stop(bt_link_router *link, const char *reason);

/* After the server was destroyed. */
void bt_link_router_destroy(bt_link_router *link);

#endif /* BT_PROTO_LINK_H */
