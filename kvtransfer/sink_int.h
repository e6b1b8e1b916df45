/* SPDX-License-Identifier: Apache-2.0 */
/* sink_int.h - what sink.c (transfers) and sink_peer.c (connections) share.
 *
 * Threading: loop thread only.
 * Memory:    taken in bt_kv_sink_create.
 */
#ifndef BT_KVTRANSFER_SINK_INT_H
#define BT_KVTRANSFER_SINK_INT_H

#include "common/alloc.h"
#include "kvtransfer/channel_int.h"
#include "kvtransfer/rate_int.h"
#include "kvtransfer/sink.h"

enum {
    BT_SINK_OPS_MAX = 32,          /* READs under way on a connection; the source takes 64 */
    BT_SINK_OP_BYTES = 512 * 1024, /* of one READ, at least a part */
    BT_SINK_RECENT = 128,          /* names of ended transfers that are remembered */
};

typedef struct bt_sink_peer bt_sink_peer;

typedef enum bt_sink_state {
    BT_SINK_FREE,
    BT_SINK_OPEN,    /* the caller waits for done or failed */
    BT_SINK_ENDED,   /* the callback is due; nothing writes its blocks */
    BT_SINK_TELLING, /* the callback has come; END is still to be put */
} bt_sink_state;

typedef struct bt_sink_transfer {
    bt_sink_state state;
    bt_kv_transfer name;
    bt_sink_peer *peer; /* NULL once its connection is lost */
    int64_t deadline_ns;

    bool pull_told; /* PULL was put */
    bool offered;   /* size and, one-sided, all ids are known */
    bool offer_passed_on;
    bool pulling; /* pull() was called */
    bool began;   /* both, and they agree: parts may move */
    bool complete, ends;
    bool end_told;
    uint32_t n_tokens, n_blocks; /* of the offer, 0 before it */
    uint32_t n_ids;              /* known */
    uint32_t n_pull_blocks, n_skip;
    uint32_t n_retries;

    bt_block_id *source_ids; /* [max_transfer_blocks], one-sided */
    bt_block_id *ids;        /* [max_transfer_blocks], ours */
    uint32_t *sums;          /* [max_transfer_blocks * n_layers] */
    uint64_t *words[3];
    bt_plan_set announced, asked, right; /* asked: or skipped. right: in place and checked */
    uint64_t n_wanted, n_right;
    const bt_hash128 *wanted; /* by identity; NULL: by name. The caller's, until the callback */
    uint32_t n_ids_wanted;

    uint32_t blob_bytes;
    uint8_t blob[BT_KV_BLOB_BYTES_MAX];
    bt_kv_pull_stats stats;

    bt_status status; /* ENDED: BT_OK: done */
    char text[BT_KV_TEXT_BYTES];
} bt_sink_transfer;

/* A READ under way. Ops leave in order; one whose transfer has ended stays as a hole. */
typedef struct bt_sink_op {
    bt_sink_transfer *transfer; /* NULL: ended */
    uint32_t op;
    uint32_t sum; /* of the part that is arriving */
    bt_plan_rect rect;
    uint64_t received;
} bt_sink_op;

typedef enum bt_sink_peer_state {
    BT_SINK_PEER_FREE,
    BT_SINK_PEER_DIALING, /* to be connected in the next turn */
    BT_SINK_PEER_HELLO,   /* HELLO was put, CHALLENGE is due */
    BT_SINK_PEER_PROVEN,  /* PROOF was put, WELCOME is due */
    BT_SINK_PEER_READY,
} bt_sink_peer_state;

struct bt_sink_peer {
    bt_sink_peer_state state;
    bt_kv_sink *sink;
    bt_kv_peer address;
    const bt_transport_ops *candidates[3]; /* best first */
    size_t n_candidates, candidate;
    int64_t since_ns; /* DIALING: began */
    int64_t heard_ns;
    int64_t renewed_ns;
    int64_t idle_since_ns;
    uint32_t lease_ms; /* the shorter one */
    uint32_t n_transfers;
    uint32_t source_blocks;     /* in the source's pool */
    bool mixed_numerics;        /* the source's id is another one */
    const uint8_t *source_base; /* one-sided */

    uint32_t next_op;
    size_t ops_head, n_ops; /* ring, oldest first */
    bt_sink_op ops[BT_SINK_OPS_MAX];
    uint64_t bytes_in_flight;
    uint64_t piece_left;                   /* bytes of parts still to come in the stream */
    bt_sink_op *piece_op;                  /* where they belong; NULL: nowhere any more */
    bt_kv_auth auth;                       /* the least that we want, then what was agreed on */
    bool tags_parts;                       /* BT_KV_AUTH_FULL holds over a stream */
    bt_mac piece_mac;                      /* tags_parts: of the piece so far */
    uint8_t piece_tag[BT_FRAME_TAG_BYTES]; /* what it has to be */
    bt_channel channel;
};

struct bt_kv_sink {
    bt_loop *loop;
    bt_kv_sink_options options;
    bt_kv_sink_callbacks callbacks;
    bt_transport_choice choice;
    bt_wake *wake;  /* more to do: pump */
    bt_timer *tick; /* deadlines, heartbeats, silent peers */
    bt_timer *soon; /* the rate limit */
    bool soon_armed;

    bt_mapping arena;
    uint8_t *scratch; /* parts that belong nowhere any more */
    bt_sink_transfer *transfers;
    bt_sink_transfer **open; /* not FREE, dense */
    size_t n_open;
    size_t next_open; /* who moves first next time */
    bt_sink_peer *peers;
    bt_kv_transfer recent[BT_SINK_RECENT]; /* ring of ended transfers */
    size_t n_recent;
    bt_rate rate;
    bt_kv_sink_counters counters;
};

enum { BT_SINK_SCRATCH_BYTES = 256 * 1024 };

/* ---- sink.c, for sink_peer.c ---- */
bt_sink_transfer *bt_sink_find(bt_kv_sink *sink, bt_kv_transfer name);
bool bt_sink_was_ended(const bt_kv_sink *sink, bt_kv_transfer name);
void bt_sink_fail(bt_kv_sink *sink, bt_sink_transfer *transfer, bt_status status, const char *text);
/* Something has come: fails what does not fit, ends what has everything. */
void bt_sink_check(bt_kv_sink *sink, bt_sink_transfer *transfer);
/* A part lies in its block and has this checksum: it is right, or asked for again. */
void bt_sink_part(bt_kv_sink *sink, bt_sink_transfer *transfer, uint32_t block_idx, uint32_t layer,
                  uint32_t sum);
void bt_sink_trace(bt_kv_sink *sink, bt_kv_trace_kind kind, bt_kv_transfer transfer,
                   const bt_plan_rect *rect);
bool bt_sink_is_moving(const bt_sink_transfer *transfer);

/* ---- sink_handshake.c, for sink_peer.c: a failure closes the connection ---- */
/* Puts HELLO on a new connection. */
void bt_sink_hello(bt_sink_peer *peer);
/* A frame that came before READY, or a REFUSE. */
bt_status bt_sink_on_handshake(bt_sink_peer *peer, const bt_frame *frame, bt_error *err);
/* *err says which frame it was. */
bt_status bt_sink_on_wrong_tag(bt_sink_peer *peer, bt_error *err);
void bt_sink_copy_text(char out[BT_KV_TEXT_BYTES], const bt_frame *frame);

/* ---- sink_peer.c, for sink.c ---- */
/* Finds the connection to `address`, or begins one. BT_EEXHAUSTED, BT_EINVAL. */
bt_status bt_sink_peer_get(bt_kv_sink *sink, const bt_kv_peer *address, bt_sink_peer **out,
                           bt_error *err);
/* Puts and sends what is due; asks for parts over streams. */
void bt_sink_peer_serve(bt_sink_peer *peer);
/* Nothing that is still to come is written to this transfer's blocks. */
void bt_sink_peer_forget(bt_sink_peer *peer, const bt_sink_transfer *transfer);
void bt_sink_peer_lose(bt_sink_peer *peer, bt_status status, const char *text);

#endif /* BT_KVTRANSFER_SINK_INT_H */
