/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h - words that both sides of a KV transfer use: its name, its peer, its terms.
 *
 * One transfer moves the KV blocks of one attempt of one request from a source (the
 * worker that computed them) to a sink (the worker that goes on from them). Its name
 * is the same in every message of the cluster. README.md draws the protocol.
 *
 * Threading: any thread (plain data).
 * Memory:    none.
 */
#ifndef BT_KVTRANSFER_TRANSFER_H
#define BT_KVTRANSFER_TRANSFER_H

#include "common/hash.h"
#include "common/status.h"
#include "engine/kv_layout.h"
#include "proto/sampling.h"

enum {
    BT_KV_BLOB_BYTES_MAX = 4096, /* what a completion carries beside the blocks */
    BT_KV_LEASE_MS = 10000,      /* default life of a lease that nobody renews */
    BT_KV_ADDRESS_BYTES = 108,   /* an address with its NUL, as long as a unix socket's path */
    BT_KV_BOOT_ID_BYTES = 16,
    BT_KV_TEXT_BYTES = 256,  /* an error text on the wire, with its NUL */
    BT_KV_WANTED_MAX = 1000, /* blocks that one pull names by identity */
};

/* Names a transfer in the whole cluster. */
typedef struct bt_kv_transfer {
    bt_request_id request;
    uint32_t attempt;
} bt_kv_transfer;

static inline bool bt_kv_transfer_equal(bt_kv_transfer a, bt_kv_transfer b)
{
    return a.request.lo == b.request.lo && a.request.hi == b.request.hi && a.attempt == b.attempt;
}

/* Where a source can be reached. A worker fills it with bt_kv_source_peer(), sends it in
 * its hello, and the router hands it to the sink. Hosts are numeric addresses: a name would be
 * resolved on the sink's loop thread. */
typedef struct bt_kv_peer {
    uint64_t incarnation;                 /* of the source's process; 0 is never valid */
    uint8_t boot_id[BT_KV_BOOT_ID_BYTES]; /* of the source's host; zero switches shm off */
    char tcp[BT_KV_ADDRESS_BYTES];        /* "10.0.0.7:7101", "[::1]:7101"; "" for none */
    char shm[BT_KV_ADDRESS_BYTES];        /* a unix socket's path, "@name": abstract; "": none */
} bt_kv_peer;

/* What must be equal on both sides before a block may move. */
typedef struct bt_kv_terms {
    bt_kv_layout layout;
    uint8_t numerics_id[16];   /* DESIGN.md section 1 */
    bt_hash_key cluster_key;   /* bt_cluster_key: proven, never sent */
    bool allow_mixed_numerics; /* do not compare numerics_id */
} bt_kv_terms;

typedef enum bt_kv_transport {
    BT_KV_TRANSPORT_AUTO,     /* loopback in one process, shm on one host, tcp otherwise */
    BT_KV_TRANSPORT_SHM,      /* D maps P's pool read-only and copies (one-sided) */
    BT_KV_TRANSPORT_TCP,      /* byte stream, scattered into the blocks */
    BT_KV_TRANSPORT_LOOPBACK, /* two-sided copy inside one process */
} bt_kv_transport;

/* "auto", "shm", "tcp", "loopback". */
const char *bt_kv_transport_name(bt_kv_transport transport);
BT_MUST_CHECK bool bt_kv_transport_parse(const char *name, bt_kv_transport *out);

/* What is authenticated of a connection over tcp. Frames (and with them the checksums of all
 * parts) always are; over shm and loopback parts never leave the host, and there is nothing
 * more to do. The stricter of both sides' wishes holds. */
typedef enum bt_kv_auth {
    BT_KV_AUTH_AUTO,   /* FRAMES where the tcp address is a loopback one, else FULL */
    BT_KV_AUTH_FRAMES, /* parts by checksum alone: against accidents, not against attackers */
    BT_KV_AUTH_FULL,   /* parts too */
} bt_kv_auth;

/* "auto", "frames", "full". */
const char *bt_kv_auth_name(bt_kv_auth auth);

/* One thing that happened to parts, for measurements: parts of blocks
 * [block_idx, +n_blocks) x layers [layer, +n_layers), counted from the transfer's start. */
typedef enum bt_kv_trace_kind {
    BT_KV_TRACE_ANNOUNCED, /* source: the engine said that they are final; sink: it heard */
    BT_KV_TRACE_MOVED,     /* sink: they are in place and right */
    BT_KV_TRACE_COMPLETE,  /* source: complete() was called; sink: it heard (no parts) */
} bt_kv_trace_kind;

typedef struct bt_kv_trace {
    bt_kv_trace_kind kind;
    bt_kv_transfer transfer;
    int64_t time_ns; /* bt_clock_now_ns() */
    uint32_t block_idx, n_blocks;
    uint32_t layer, n_layers;
} bt_kv_trace;

typedef void (*bt_kv_trace_fn)(const bt_kv_trace *event, void *ctx);

/* Where sources and sinks of one process meet: bt_kv_loopback_create() in transport.h. */
typedef struct bt_kv_loopback bt_kv_loopback;

struct bt_channel;

/* Test only: breaks what a source or a sink sends, counted over all its connections. */
typedef struct bt_kv_fault {
    uint64_t bytes;     /* of frames sent so far (parts are not counted) */
    uint64_t cut_at;    /* the connection that would send byte number cut_at breaks; 0: never */
    uint64_t flip_at;   /* byte number flip_at arrives as another one; 0: never */
    uint64_t frames;    /* sent so far */
    uint64_t drop_at;   /* frame number drop_at is lost; 0: never */
    uint64_t double_at; /* frame number double_at is sent twice; 0: never */
    uint64_t parts;     /* that arrived so far (sink) */
    uint64_t spoil_at;  /* part number spoil_at arrives with a wrong byte (sink); 0: never */
    bool held;          /* bt_kv_fault_hold() */
    bool dead;          /* bt_kv_fault_kill() */
    struct bt_channel *channels; /* open connections */
} bt_kv_fault;

/* Test only. Hold: nothing is sent or read any more, as by a process that is stopped. Cut: every
 * connection breaks. Kill: so does every later one, as when the process is gone. */
void bt_kv_fault_hold(bt_kv_fault *fault, bool hold);
void bt_kv_fault_cut(bt_kv_fault *fault);
void bt_kv_fault_kill(bt_kv_fault *fault);

#endif /* BT_KVTRANSFER_TRANSFER_H */
