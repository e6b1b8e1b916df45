/* SPDX-License-Identifier: Apache-2.0 */
/* source_int.h - what source.c (transfers) and source_peer.c (connections) share.
 *
 * Threading: loop thread only.
 * Memory:    taken in bt_kv_source_create.
 */
#ifndef BT_KVTRANSFER_SOURCE_INT_H
#define BT_KVTRANSFER_SOURCE_INT_H

#include "common/alloc.h"
#include "common/log.h"
#include "kvtransfer/channel_int.h"
#include "kvtransfer/rate_int.h"
#include "kvtransfer/source.h"

enum {
    BT_SOURCE_RECENT = 128,       /* names of released transfers that are remembered */
    BT_SOURCE_READS_MAX = 64,     /* READs that a peer may have waiting */
    BT_SOURCE_GRACE_MS = 1000,    /* a silent peer has it to answer REVOKEs */
    BT_SOURCE_STRANGERS_MAX = 32, /* connections without a right HELLO */
    BT_SOURCE_LISTENERS_MAX = 3,
};

typedef struct bt_source_peer bt_source_peer;

typedef enum bt_source_state {
    BT_SOURCE_FREE,
    BT_SOURCE_OFFERED,  /* no sink yet */
    BT_SOURCE_LINKED,   /* a sink pulls */
    BT_SOURCE_STOPPING, /* REVOKE is due or, one-sided, sent: waiting for END */
    BT_SOURCE_ENDED,    /* nobody reads: released() is due */
} bt_source_state;

typedef struct bt_source_transfer {
    bt_source_state state;
    bt_kv_transfer name;
    bt_source_peer *peer; /* LINKED, STOPPING */

    uint32_t n_blocks, n_tokens;
    int64_t lease_until_ns; /* OFFERED */
    int64_t deadline_ns;    /* 0: none */
    int64_t fence_until_ns; /* STOPPING: its reader must have been stopped by then */

    bt_block_id *ids;                /* [max_transfer_blocks] */
    uint32_t *sums;                  /* [max_transfer_blocks * n_layers] */
    uint64_t *words[3];              /* of the sets below */
    bt_plan_set final, summed, told; /* announced by the engine, checksummed, sent on */
    uint64_t n_final, n_summed, n_told;

    uint32_t n_ids_told;
    bool offer_told; /* in whole */
    bool has_blob, ends, blob_told;
    bool revoke_told;
    uint32_t blob_bytes;
    uint8_t blob[BT_KV_BLOB_BYTES_MAX];

    bt_kv_outcome outcome; /* STOPPING and later */
    bt_status status;
    char text[BT_KV_TEXT_BYTES];
} bt_source_transfer;

/* A PULL without an offer: waits for it, or for the frame that refuses it. */
typedef struct bt_source_parked {
    bt_source_peer *peer; /* NULL: free */
    bt_kv_transfer name;
    int64_t deadline_ns;
    bt_status refusal; /* BT_OK: waiting */
    char text[BT_KV_TEXT_BYTES];
} bt_source_parked;

typedef struct bt_source_read {
    bt_source_transfer *transfer;
    uint32_t op;
    bt_plan_rect rect;
    uint64_t sent; /* announced in DATA frames */
} bt_source_read;

/* A released transfer: a PULL that comes too late is told why. */
typedef struct bt_source_recent {
    bt_kv_transfer name;
    bt_status status; /* BT_OK: it was pulled */
    char text[BT_KV_TEXT_BYTES];
} bt_source_recent;

typedef enum bt_source_peer_state {
    BT_SOURCE_PEER_FREE,
    BT_SOURCE_PEER_NEW,        /* HELLO is due */
    BT_SOURCE_PEER_CHALLENGED, /* CHALLENGE was put, PROOF is due */
    BT_SOURCE_PEER_READY,      /* WELCOME was put */
    BT_SOURCE_PEER_LEAVING,    /* REFUSE was put: closes once it is out */
} bt_source_peer_state;

struct bt_source_peer {
    bt_source_peer_state state;
    bt_kv_source *source;
    int64_t since_ns; /* accepted */
    int64_t heard_ns;
    int64_t told_ns; /* last ANNOUNCE */
    bool tags_parts; /* BT_KV_AUTH_FULL holds */
    uint32_t n_transfers;
    size_t reads_head, n_reads; /* ring */
    bt_source_read reads[BT_SOURCE_READS_MAX];
    uint64_t piece_left; /* of the piece of reads[reads_head] that is being sent */
    uint64_t piece_at;   /* its next byte, in the rectangle */
    bt_channel channel;
};

struct bt_kv_source {
    bt_loop *loop;
    bt_kv_source_options options;
    bt_kv_source_callbacks callbacks;
    bt_kv_peer self;
    int share_fd; /* the pool, opened read-only; -1: no shm */
    bt_listener *listeners[BT_SOURCE_LISTENERS_MAX];
    size_t n_listeners;
    bt_wake *wake;  /* more to do: pump */
    bt_timer *tick; /* leases, deadlines, silent peers */
    bt_timer *soon; /* coalesced announcements and the rate limit */
    bool soon_armed;
    int64_t soon_ns; /* when it is due */

    bt_mapping arena; /* ids, sums and sets of all transfers */
    bt_source_transfer *transfers;
    bt_source_transfer **open; /* not FREE, dense */
    size_t n_open;
    bt_source_parked *parked;
    size_t n_parked;
    bt_source_recent *recent; /* ring */
    size_t n_recent;
    bt_source_peer *peers; /* [n_peers] */
    size_t n_peers;        /* max_peers that may be READY, and those that shake hands */
    size_t next_peer;      /* who is served first next time */
    bt_log_limit strangers_limit;
    bt_rate rate;
    bt_kv_source_counters counters;
};

/* ---- source.c, for source_peer.c ---- */
bt_source_transfer *bt_source_find(bt_kv_source *source, bt_kv_transfer name);
const bt_source_recent *bt_source_find_recent(const bt_kv_source *source, bt_kv_transfer name);
void bt_source_link(bt_source_transfer *transfer, bt_source_peer *peer);
/* The sink reads no more. The outcome counts unless the transfer was stopping already. */
void bt_source_sink_ended(bt_kv_source *source, bt_source_transfer *transfer, bt_kv_outcome outcome,
                          const char *text);
/* Its REVOKE is due. */
void bt_source_parked_refuse(bt_kv_source *source, bt_source_parked *parked, bt_status status,
                             const char *text);
void bt_source_parked_free(bt_kv_source *source, bt_source_parked *parked);
/* Calls pump again within about delay_ns. */
void bt_source_pump_soon(bt_kv_source *source, int64_t delay_ns);

/* ---- source_listen.c, for source.c ---- */
/* Listens on all addresses of the options and fills source->self. */
bt_status bt_source_listen(bt_kv_source *source, bt_error *err);

/* ---- source_peer.c, for source.c ---- */
void bt_source_peer_accept(bt_conn *conn, void *source);
/* Sends what may go now; true: there is more for the next turn. */
bool bt_source_peer_serve(bt_source_peer *peer);
/* Closes the connection; its transfers fail (or end as they were ending). */
void bt_source_peer_lose(bt_source_peer *peer, const char *text);

#endif /* BT_KVTRANSFER_SOURCE_INT_H */
