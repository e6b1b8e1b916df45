/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h - the loop-thread side that prefill and decode workers share.
 *
 * It owns a worker's memory (block pool, prefix cache, runs), its engine thread and its
 * sessions to the routers, and does what both roles do alike: check a request and give it a run,
 * end it at its deadline, pass its tokens on, tell its end exactly once, report load, blocks and
 * metrics, drain and stop. What a run's states are is the role's say (bt_worker_role_ops).
 *
 *   create -> (the role makes scheduler, source or sink) -> start -> stop ... done -> halt ->
 *   (the role destroys what it made) -> destroy
 *
 * Threading: loop thread only.
 * Memory:    all of it is taken in create and start.
 */
#ifndef BT_WORKER_WORKER_H
#define BT_WORKER_WORKER_H

#include "common/metrics.h"
#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "kvtransfer/source.h"
#include "proto/link.h"
#include "worker/chains.h"
#include "worker/run_table.h"

typedef struct bt_worker bt_worker;

/* What an operator decides about a worker; both roles take the same. 0 means the default. */
typedef struct bt_worker_options {
    const char *name;           /* unique in the cluster; copied */
    const char *const *routers; /* "host:port" of each attach address; borrowed until start */
    uint32_t n_routers;         /* 1 .. BT_LINK_ROUTERS_MAX */
    bt_link_role role;          /* of a decode worker: DECODE or BOTH */
    const char *model_name;     /* what routers call the model; NULL: the model's own name; borrowed
                                 * until start */
    bt_model *model;            /* borrowed until destroy; loaded with bt_worker_size_model() */
    uint32_t pool_blocks;       /* at least 1 */
    bool pool_touch;            /* take the pool's memory at once */
    uint8_t tokenizer_hash[BT_LINK_ID_BYTES]; /* bt_tokenizer_fingerprint() */
    bt_cluster_key cluster_key;               /* the same on every member */
    const bt_rpc_tls *router_tls; /* of the attach addresses; NULL: plain text; until start */
    bool allow_mixed_numerics;
    bool no_prefix_cache;
    uint32_t cached_blocks_max; /* most that the prefix cache keeps; as many as the pool has */
    uint32_t ring_runs;         /* ended runs that it remembers; 1,024. UINT32_MAX: none */
    uint32_t requests_max;      /* runs open at a time; 256 */
    uint32_t running_max;       /* sequences in one step; 64 */
    uint32_t token_budget;      /* rows of a step; 512 */
    uint32_t chunk;             /* prompt rows of one sequence in a step, a multiple of 16; 256 */
    const char *kv_tcp;         /* serve KV here, "host:port"; NULL: no tcp */
    const char *kv_unix;        /* path or "@name" for peers on this host; NULL: no shm */
    const char *kv_advertise_host;  /* NULL: the host of kv_tcp */
    bt_kv_transport kv_transport;   /* decode: AUTO, or pin one */
    bt_kv_auth kv_auth;             /* of KV parts over tcp, the least; AUTO */
    bt_kv_loopback *kv_loopback;    /* NULL: none */
    uint32_t kv_peers_max;          /* KV connections; 64 */
    uint32_t lease_ms;              /* BT_KV_LEASE_MS */
    uint64_t kv_rate_limit_bytes_s; /* 0: none */
    uint32_t load_ms;               /* period of load reports; 200 */
    uint32_t stuck_after_ms;        /* an engine that has not moved for so long is stuck; 10,000 */
    bt_loop_fn drain; /* a router asks this worker to drain and exit: bt_worker_stop() is up to the
                       * owner. NULL: ignored */
    void *drain_ctx;
    bt_metrics *metrics;     /* NULL: none */
    bt_kv_trace_fn kv_trace; /* NULL: none */
    void *kv_trace_ctx;
    bt_kv_fault *kv_fault; /* test only; NULL: none */
} bt_worker_options;

/* Sets rows_max, spans_max and logits_max of `model` to what a worker with these options will
 * ask of it. */
void bt_worker_size_model(const bt_worker_options *options, bt_model_options *model);

/* How a role takes part. */
typedef struct bt_worker_role_ops {
    unsigned modes;       /* bits 1 << bt_link_mode that it takes */
    size_t command_bytes; /* of its scheduler */
    size_t event_bytes;
    uint32_t commands_per_run; /* most commands of one run that can be queued at a time */
    /* A new run, its sequence filled: to be posted, or stopped with bt_worker_stop_run. */
    void (*run)(bt_worker_run *run, void *ctx);
    /* run->stopping was just set (status and error say why); called once for each run. */
    void (*stop)(bt_worker_run *run, void *ctx);
    /* Hold the run for another worker, which pulls it as (id, next_attempt); answered with one
     * bt_worker_parked(), unless the run ends before. NULL: nothing can be handed over. */
    void (*park)(bt_worker_run *run, uint32_t next_attempt, void *ctx);
    /* Go on with a run that may be parked. NULL with park. */
    void (*resume)(bt_worker_run *run, void *ctx);
    /* An event of the engine. */
    void (*event)(const void *event, void *ctx);
    /* Posts a step of a chain; its answer goes to bt_worker_chains_stepped(). */
    void (*chain)(bt_kv_chain *chain, void *ctx);
    /* Posts the scheduler's AUDIT; its answer goes to bt_worker_audited(). */
    void (*audit)(void *ctx);
} bt_worker_role_ops;

/* What a role counts; since start. */
typedef struct bt_worker_tally {
    bt_link_load load; /* draining, step_ns, prefill_token_ns, oldest_waiting_ns: filled here */
    uint64_t leases_expired;
    uint64_t parts_corrupt; /* rejected KV parts and frames, by cause */
    uint64_t parts_duplicate;
    uint64_t parts_late;
    uint64_t parts_unknown;
    uint64_t handshakes_refused; /* connections for KV, of either end */
} bt_worker_tally;

/* Takes the memory and makes the engine. `ops` and `ctx` outlive the worker. BT_EINVAL: an
 * option is out of range; BT_ENOMEM; *err says which. */
BT_MUST_CHECK bt_status bt_worker_create(bt_loop *loop, bt_rpc *rpc,
                                         const bt_worker_options *options,
                                         const bt_worker_role_ops *ops, void *ctx, bt_worker **out,
                                         bt_error *err);

/* Starts the engine thread and dials the routers. `kv`: where this worker's KV can be pulled
 * from; NULL: nowhere. */
BT_MUST_CHECK bt_status bt_worker_start(bt_worker *worker, const bt_engine_scheduler *table,
                                        const bt_kv_peer *kv, bt_error *err);

/* ---- for the roles ---- */

/* Posts a command of a run, which can't fail: the queue is sized for it. */
void bt_worker_post(bt_worker *worker, const void *command);

/* Decides the run's end, unless that was done before, and calls the role's stop. */
BT_PRINTF(4, 5)
void bt_worker_stop_run(bt_worker *worker, bt_worker_run *run, bt_status status, const char *fmt,
                        ...);

/* Passes one token of the run on to its router, with the next flush. */
void bt_worker_run_token(bt_worker *worker, bt_worker_run *run, uint32_t index, bool is_prompt,
                         const bt_token_result *result);

/* Ends the run when neither engine nor transfer has it any more: FINISHED goes out, the slot is
 * free. Otherwise it does nothing. The run is not to be used after it returned true. */
bool bt_worker_finish_run(bt_worker *worker, bt_worker_run *run);

/* Tells the router whether the run is held for another worker, and why not. */
BT_PRINTF(4, 5)
void bt_worker_parked(bt_worker *worker, const bt_worker_run *run, bt_status status,
                      const char *fmt, ...);

/* The run of a transfer; NULL: not open. */
bt_worker_run *bt_worker_find(const bt_worker *worker, bt_kv_transfer transfer);

/* The parked run that is offered as this transfer; NULL: there is none. O(open). */
bt_worker_run *bt_worker_find_parked(const bt_worker *worker, bt_kv_transfer transfer);

/* An identity joined or left the prefix cache. */
void bt_worker_block(bt_worker *worker, bool stored, const bt_hash128 *identity);

/* End of a step: load and metrics. */
void bt_worker_report(bt_worker *worker, const bt_worker_tally *tally);

/* The answer to the role's audit(). */
void bt_worker_audited(bt_worker *worker, bt_status status);

/* A source and a sink of this worker's pool, by its options. */
bt_kv_source_options bt_worker_source_options(const bt_worker *worker);
bt_kv_sink_options bt_worker_sink_options(const bt_worker *worker);

/* Before start: cached prefixes are handed on, out of `source`, and taken in through `sink`, both
 * borrowed until halt. Their callbacks go to worker/chains.h first. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_worker_hand_prefixes_on(bt_worker *worker, bt_kv_source *source,
                                                   bt_kv_sink *sink, bt_error *err);
bt_worker_chains *bt_worker_get_chains(const bt_worker *worker);

/* What a run ends with whose blocks were released so, now. */
bt_status bt_worker_status_of(const bt_worker_run *run, bt_kv_outcome outcome);

/* What source and sink need. */
bt_kv_terms bt_worker_terms(const bt_worker *worker);
uint64_t bt_worker_incarnation(const bt_worker *worker);
bt_kv_pool *bt_worker_pool(const bt_worker *worker);
bt_kv_cache *bt_worker_cache(const bt_worker *worker);
bt_engine *bt_worker_engine(const bt_worker *worker);
const bt_model_params *bt_worker_params(const bt_worker *worker);
uint32_t bt_worker_sequence_blocks(const bt_worker *worker); /* of the longest one that fits */
const bt_worker_options *bt_worker_get_options(const bt_worker *worker); /* defaults filled in */

/* ---- life ---- */

/* Takes nothing new, lets open runs end for grace_ms, then stops them (BT_EPEER: the router may
 * try elsewhere), audits the pool, ends the sessions and the engine; then done(ctx), from the
 * loop. Once. With cached blocks it also stays for routers that may want them elsewhere: until
 * each has let it go, or none of them was fetched for a second. */
void bt_worker_stop(bt_worker *worker, uint64_t grace_ms, bt_loop_fn done, void *ctx);

/* After stop's done, or when start was never called or failed: no event and no callback comes
 * from here on. Idempotent. */
void bt_worker_halt(bt_worker *worker);

/* After halt. NULL is allowed. */
void bt_worker_destroy(bt_worker *worker);

/* How it is, for /readyz and status. */
typedef struct bt_worker_health {
    bool ready;       /* takes requests, and the engine moves */
    const char *text; /* "ready", or why it is not; a constant */
    uint32_t routers_up;
    uint32_t runs_open;
    bt_status audit; /* of stop(); BT_OK before */
    bt_link_load load;
} bt_worker_health;

void bt_worker_get_health(const bt_worker *worker, bt_worker_health *out);

/* Test only: does what is due by bt_clock_now_ns(), as the timers would. */
void bt_worker_tick(bt_worker *worker);

#endif /* BT_WORKER_WORKER_H */
