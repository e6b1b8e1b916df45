/* SPDX-License-Identifier: Apache-2.0 */
/* sink.h - the side that needs KV blocks: links to their source, pulls, checks.
 *
 *   open ---> pull ---> done (exactly once)       done may come before pull() if `ends`
 *     |         |         or
 *     +---------+-----> failed (exactly once)     cancel() ends in failed(BT_ECANCELLED)
 *
 * open() links at once and keeps the source's lease alive while the request queues here;
 * pull() names the blocks to fill, when the caller has them. Until done or failed comes the
 * caller keeps those blocks: only the sink writes them. After it nobody writes them.
 * done means: each part of the blocks that were not skipped arrived exactly once, its
 * checksum is right, and the source's completion is here. All of it came from a source that
 * has proven that it knows the cluster key (session.h; parts: see bt_kv_auth).
 *
 * Threading: loop thread only. Callbacks come from the loop, never inside a call; they may
 *            call anything but destroy.
 * Memory:    all of it is taken in create (n transfers x blocks x layers x 5 bytes or so).
 */
#ifndef BT_KVTRANSFER_SINK_H
#define BT_KVTRANSFER_SINK_H

#include "common/loop.h"
#include "kvtransfer/transfer.h"

typedef struct bt_kv_sink bt_kv_sink;

/* How a finished transfer went. */
typedef struct bt_kv_pull_stats {
    bt_kv_transport transport;
    uint64_t bytes; /* moved into blocks, repeats not counted */
    uint32_t blocks_moved;
    uint32_t blocks_skipped;         /* held already */
    uint32_t parts_retried;          /* asked for again after a wrong checksum */
    uint32_t parts_left_at_complete; /* (layer, block) parts still to move when completion came */
    bool mixed_numerics;             /* the source computes by another numerics id */
    int64_t opened_ns, linked_ns, pulled_ns; /* open() called; source offered; pull() called */
    int64_t complete_ns;                     /* completion came */
    int64_t done_ns;                         /* the last part was right and completion here */
} bt_kv_pull_stats;

typedef struct bt_kv_done {
    bt_kv_transfer transfer;
    const void *blob; /* borrowed for the call */
    size_t blob_bytes;
    bool ends; /* the request ended with its first token: blocks hold nothing to go on with */
    const bt_kv_pull_stats *stats; /* borrowed for the call */
} bt_kv_done;

typedef struct bt_kv_sink_callbacks {
    /* The source has reserved the transfer's blocks, so many: from now on a pull() gets on by
     * itself. At most once, before done or failed. NULL: not wanted. */
    void (*offered)(bt_kv_transfer transfer, uint32_t n_blocks, void *ctx);
    void (*done)(const bt_kv_done *done, void *ctx);
    /* `text` is borrowed for the call. BT_EPEER, BT_EMISMATCH, BT_EPROTOCOL: another source may
     * serve; BT_EDEADLINE, BT_ECANCELLED, BT_ECORRUPT, or the status of the source's cancel. */
    void (*failed)(bt_kv_transfer transfer, bt_status status, const char *text, void *ctx);
    bt_kv_trace_fn trace; /* NULL: off */
    void *ctx;
} bt_kv_sink_callbacks;

typedef struct bt_kv_sink_options {
    bt_kv_terms terms;
    uint64_t incarnation;      /* of this process, not 0 */
    void *pool_base;           /* block 0; borrowed until destroy */
    uint32_t n_blocks;         /* of the pool */
    bt_kv_transport transport; /* AUTO, or pin one */
    bt_kv_auth auth;           /* the least over tcp */
    bool no_shm;               /* AUTO never picks shm */
    bt_kv_loopback *loopback;  /* NULL: none */
    uint32_t max_transfers;
    uint32_t max_transfer_blocks;
    uint32_t max_peers; /* connections at once; idle ones make room */
    uint32_t lease_ms;  /* 0: BT_KV_LEASE_MS; heartbeats each quarter, silence ends a peer */
    uint32_t connect_timeout_ms;  /* 0: 3000 */
    uint32_t max_retries;         /* parts asked for again in one transfer; 0: 8 */
    uint64_t max_bytes_in_flight; /* asked for over one stream; 0: 4 MiB */
    uint64_t rate_limit_bytes_s;  /* copies over shm; 0: none (streams: the source limits) */
    bt_kv_fault *fault;           /* test only; NULL: none */
} bt_kv_sink_options;

/* BT_EINVAL, BT_ENOMEM; *err says what. */
BT_MUST_CHECK bt_status bt_kv_sink_create(bt_loop *loop, const bt_kv_sink_options *options,
                                          const bt_kv_sink_callbacks *callbacks, bt_kv_sink **out,
                                          bt_error *err);

/* Closes every connection; open transfers are dropped without a callback, and nobody writes
 * their blocks afterwards. NULL is allowed. */
void bt_kv_sink_destroy(bt_kv_sink *sink);

/* Links to `peer` for this transfer. deadline_ns (on bt_clock_now_ns(), not 0) ends it whatever
 * the peer does. BT_AGAIN: max_transfers are open. BT_EEXISTS. BT_EINVAL: no address that this
 * sink may use. BT_EEXHAUSTED: max_peers are busy. No callback unless BT_OK. */
BT_MUST_CHECK bt_status bt_kv_sink_open(bt_kv_sink *sink, bt_kv_transfer transfer,
                                        const bt_kv_peer *peer, int64_t deadline_ns, bt_error *err);

/* The same for cached blocks, by their identities from a chain's first block on: the source offers
 * as many of the leading ones as it holds. n_wanted is 1 .. BT_KV_WANTED_MAX (else BT_EINVAL);
 * `wanted` is borrowed until done or failed. BT_ENOTFOUND in failed(): it holds none of them. */
BT_MUST_CHECK bt_status bt_kv_sink_open_cached(bt_kv_sink *sink, bt_kv_transfer transfer,
                                               const bt_kv_peer *peer, int64_t deadline_ns,
                                               const bt_hash128 *wanted, uint32_t n_wanted,
                                               bt_error *err);

/* Pulls block i of the offer into block_ids[i] (copied), i in [n_skip, n_blocks); the first
 * n_skip (ids not looked at) are held already. n_blocks must be the offer's, or the transfer
 * fails with BT_EMISMATCH. Once only: BT_EEXISTS. BT_ENOTFOUND: ended already, its callback has
 * come or is about to. BT_EEXHAUSTED: more than max_transfer_blocks. BT_EINVAL. */
BT_MUST_CHECK bt_status bt_kv_sink_pull(bt_kv_sink *sink, bt_kv_transfer transfer,
                                        const bt_block_id *block_ids, uint32_t n_blocks,
                                        uint32_t n_skip, bt_error *err);

/* Ends it: failed(BT_ECANCELLED) comes once no one writes its blocks. BT_ENOTFOUND: ended
 * already, its callback has come or is about to. */
bt_status bt_kv_sink_cancel(bt_kv_sink *sink, bt_kv_transfer transfer);

/* Counters since create; gauges are marked. */
typedef struct bt_kv_sink_counters {
    uint64_t opened, done, failed, cancelled,
        deadlines; /* transfers; the last two are failed too */
    uint64_t bytes, parts, blocks_moved, blocks_skipped;
    uint64_t parts_retried;
    uint64_t rejected_corrupt;   /* wrong checksum */
    uint64_t rejected_duplicate; /* announced again */
    uint64_t rejected_late;      /* data for a transfer that has ended */
    uint64_t rejected_unknown;   /* frames that name no transfer of ours */
    uint64_t connections, handshakes_refused;
    uint64_t frames_rejected; /* malformed or out of order: the connection was closed */
    uint64_t peers_lost;
    uint64_t bytes_shm, bytes_tcp, bytes_loopback;
    uint32_t transfers_open, peers_open; /* gauges */
} bt_kv_sink_counters;

const bt_kv_sink_counters *bt_kv_sink_counters_get(const bt_kv_sink *sink);

/* Test only: does what is due by bt_clock_now_ns(), as the sink's own timer would. */
void bt_kv_sink_tick(bt_kv_sink *sink);

#endif /* BT_KVTRANSFER_SINK_H */
