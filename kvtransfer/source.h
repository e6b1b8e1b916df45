/* SPDX-License-Identifier: Apache-2.0 */
/* source.h - the side that holds KV blocks: offers them, announces parts, serves pulls.
 *
 * A part is one layer of one block. A transfer's life here (README.md draws it):
 *
 *   offer ---> announce* ---> complete ---> released (exactly once)
 *     |  the sink links and pulls meanwhile      ^
 *     +-- lease or deadline over, cancel, peer --+
 *
 * Cached blocks are offered when a sink asks for them by identity (wanted()).
 * Between offer() and released() the caller keeps a reference on every block: the source
 * and its peers read them. After released() nobody reads them any more.
 * A part may be announced once its last byte is written; it must not change afterwards.
 * The lease runs from offer(); once a sink has linked, its heartbeats renew it.
 * Who does not prove that it knows the cluster key gets nothing but a refusal (session.h).
 *
 * Threading: loop thread only. Callbacks come from the loop, never inside a call; they may
 *            call anything but destroy.
 * Memory:    all of it is taken in create (n transfers x blocks x layers x 5 bytes or so).
 */
#ifndef BT_KVTRANSFER_SOURCE_H
#define BT_KVTRANSFER_SOURCE_H

#include "common/loop.h"
#include "kvtransfer/transfer.h"

typedef struct bt_kv_source bt_kv_source;

typedef enum bt_kv_outcome {
    BT_KV_OUTCOME_PULLED,    /* the sink has everything that it wanted */
    BT_KV_OUTCOME_CANCELLED, /* cancel() here, or the sink's own cancel */
    BT_KV_OUTCOME_EXPIRED,   /* lease or deadline over: nobody came, or the peer went silent */
    BT_KV_OUTCOME_FAILED,    /* the sink gave up, or its connection broke */
} bt_kv_outcome;

const char *bt_kv_outcome_name(bt_kv_outcome outcome);

typedef struct bt_kv_source_callbacks {
    /* Exactly once for each accepted offer. `text` (borrowed for the call) says why when it is
     * not PULLED. The transfer is unknown from here on. */
    void (*released)(bt_kv_transfer transfer, bt_kv_outcome outcome, const char *text, void *ctx);
    /* A sink wants the cached blocks of these identities (borrowed for the call), which it names
     * from a chain's first block on: answer with offer() of the leading ones that are held, or
     * refuse(), now or before deadline_ns. NULL: it is refused. */
    void (*wanted)(bt_kv_transfer transfer, const bt_hash128 *identities, uint32_t n,
                   int64_t deadline_ns, void *ctx);
    bt_kv_trace_fn trace; /* NULL: off */
    void *ctx;
} bt_kv_source_callbacks;

typedef struct bt_kv_source_options {
    bt_kv_terms terms;
    uint64_t incarnation;       /* of this process, not 0 */
    const void *pool_base;      /* block 0; borrowed until destroy */
    uint32_t n_blocks;          /* of the pool */
    int pool_fd;                /* memfd behind pool_base at offset 0, sealed against shrinking;
                                   borrowed; -1: no shm */
    const char *tcp_address;    /* listen here, port 0 picks one; NULL or "": no tcp */
    const char *shm_address;    /* unix socket path or "@name"; NULL or "": no shm */
    const char *advertise_host; /* host in bt_kv_peer.tcp; NULL: the one of tcp_address. A name is
                                   resolved in create, once */
    bt_kv_loopback *loopback;   /* NULL: none */
    uint32_t max_transfers;     /* offered at once; as many pulls may wait for their offer */
    uint32_t max_transfer_blocks;
    bt_kv_auth auth;             /* the least over tcp */
    uint32_t max_peers;          /* connections at once; a few more may be shaking hands */
    uint32_t lease_ms;           /* 0: BT_KV_LEASE_MS */
    uint64_t rate_limit_bytes_s; /* payload over streams; 0: none (shm: the sink limits) */
    bt_kv_fault *fault;          /* test only; NULL: none */
} bt_kv_source_options;

/* Listens at once. On BT_OK the caller owns *out. BT_EINVAL: an option is out of range, BT_EIO:
 * an address can't be listened on, BT_ENOMEM; *err says which. */
BT_MUST_CHECK bt_status bt_kv_source_create(bt_loop *loop, const bt_kv_source_options *options,
                                            const bt_kv_source_callbacks *callbacks,
                                            bt_kv_source **out, bt_error *err);

/* Closes every connection. Transfers still here are dropped without a callback: nobody reads
 * their blocks afterwards (a peer's mapping lives on, what it copies fails its checksum).
 * NULL is allowed. */
void bt_kv_source_destroy(bt_kv_source *source);

/* Fills *peer with what a sink needs to reach this source. */
void bt_kv_source_peer(const bt_kv_source *source, bt_kv_peer *peer);

typedef struct bt_kv_offer {
    bt_kv_transfer transfer;
    const bt_block_id *block_ids; /* copied; the prompt's blocks in order */
    uint32_t n_blocks;
    uint32_t n_tokens;   /* in them: n_blocks == ceil(n_tokens / BT_KV_BLOCK_TOKENS) */
    uint32_t lease_ms;   /* 0: the source's */
    int64_t deadline_ns; /* on bt_clock_now_ns(); 0: none */
} bt_kv_offer;

/* Offers reserved blocks, before or while they are computed. BT_AGAIN: max_transfers are
 * offered, retry after a released(). BT_EEXHAUSTED: more blocks than max_transfer_blocks.
 * BT_EEXISTS: this transfer is offered already. BT_EINVAL. No callback unless BT_OK. */
BT_MUST_CHECK bt_status bt_kv_source_offer(bt_kv_source *source, const bt_kv_offer *offer,
                                           bt_error *err);

/* Parts of `layer` in blocks [block_idx, +n_blocks) of the offer are final. Checksums are
 * computed in slices on the loop. Announcing a part again changes nothing (counted).
 * BT_ENOTFOUND: released already, harmless. BT_EINVAL: outside the offer. */
BT_MUST_CHECK bt_status bt_kv_source_announce(bt_kv_source *source, bt_kv_transfer transfer,
                                              uint32_t layer, uint32_t block_idx,
                                              uint32_t n_blocks);

/* The same for all layers of those blocks: a cached prefix. */
BT_MUST_CHECK bt_status bt_kv_source_announce_blocks(bt_kv_source *source, bt_kv_transfer transfer,
                                                     uint32_t block_idx, uint32_t n_blocks);

/* The computation is over: `blob` (copied, at most BT_KV_BLOB_BYTES_MAX) goes to the sink;
 * `ends` tells it to drop its pull, since the request has ended with the first token.
 * Once only: BT_EEXISTS. BT_ENOTFOUND: released already. BT_EINVAL: blob too long. */
BT_MUST_CHECK bt_status bt_kv_source_complete(bt_kv_source *source, bt_kv_transfer transfer,
                                              const void *blob, size_t blob_bytes, bool ends);

/* All of that at once for blocks that are computed: offered, announced and complete, for a request
 * that goes on. As bt_kv_source_offer(); the blob must not be too long. */
BT_MUST_CHECK bt_status bt_kv_source_offer_whole(bt_kv_source *source, const bt_kv_offer *offer,
                                                 const void *blob, size_t blob_bytes,
                                                 bt_error *err);

/* Takes the blocks back: stops the sink's reads, tells it `status` and `text`, then released()
 * with CANCELLED comes: once a sink on this host has answered, or its connection is dead (at the
 * latest after a lease). BT_ENOTFOUND: released already. */
bt_status bt_kv_source_cancel(bt_kv_source *source, bt_kv_transfer transfer, bt_status status,
                              const char *text);

/* This transfer will not be offered: a pull that waits for it fails at once with `status` and
 * `text`, and so does one that comes later. BT_EEXISTS: it is offered (cancel it), or was. */
bt_status bt_kv_source_refuse(bt_kv_source *source, bt_kv_transfer transfer, bt_status status,
                              const char *text);

/* Counters since create; gauges are marked. */
typedef struct bt_kv_source_counters {
    uint64_t offers, pulled, cancelled, expired, failed; /* transfers by end */
    uint64_t refused;                                    /* instead of an offer */
    uint64_t parts_announced, parts_repeated;
    uint64_t parts_summed, bytes_summed; /* checksummed */
    uint64_t bytes_sent;                 /* payload over streams and loopback (not shm) */
    uint64_t announce_frames;
    uint64_t connections, handshakes_refused;
    uint64_t frames_rejected;             /* malformed or out of order: the connection was closed */
    uint64_t pulls_parked, pulls_unknown; /* pulls that came first; that no offer met in time */
    uint64_t peers_lost;
    uint32_t transfers_open, transfers_parked, peers_open; /* gauges */
} bt_kv_source_counters;

const bt_kv_source_counters *bt_kv_source_counters_get(const bt_kv_source *source);

/* Test only: does what is due by bt_clock_now_ns(), as the source's own timer would. */
void bt_kv_source_tick(bt_kv_source *source);

#endif /* BT_KVTRANSFER_SOURCE_H */
