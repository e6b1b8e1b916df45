/* SPDX-License-Identifier: Apache-2.0 */
/* link_worker_int.h - what the worker's end of the link consists of: link_session.c has the session
 * with one router, link_worker.c the link as its owner sees it, over all sessions.
 *
 * Threading: loop thread only. Memory: as link.h says.
 */
#ifndef BT_PROTO_LINK_WORKER_INT_H
#define BT_PROTO_LINK_WORKER_INT_H

#include "proto/link_int.h"

enum { BT_LINK_TEXT_BYTES = 256 };

/* Of a session with a router. */
typedef enum bt_link_session_state {
    BT_LINK_SESSION_WAITING, /* for the redial timer */
    BT_LINK_SESSION_DIALING, /* call started; hello waits for the connection, or for its answers */
    BT_LINK_SESSION_UP,
} bt_link_session_state;

typedef struct bt_link_session bt_link_session;

typedef struct bt_link_attach {
    bt_link_session *session; /* NULL: nobody listens any more */
    bt_rpc_call *call;
} bt_link_attach;

struct bt_link_session {
    bt_link_worker *link;
    uint32_t idx;
    char address[BT_LINK_ADDRESS_MAX];
    char router_name[BT_LINK_NAME_MAX];
    bt_rpc_channel *channel;
    bt_timer *redial;
    bt_link_session_state state;
    bt_link_attach *attach; /* DIALING, UP */
    bool proved;            /* DIALING: the router knows the cluster key, our proof is sent */
    bool told_unreached;    /* since the last session */
    int64_t greeted_ns;     /* DIALING: when the hello left; 0: not yet */
    uint8_t nonce[BT_PROOF_NONCE_BYTES];
    bool cut;                         /* the call is cancelled; its end is on the way */
    char reason[BT_LINK_TEXT_BYTES];  /* of our own, for on_router_down */
    char refusal[BT_LINK_TEXT_BYTES]; /* last one logged */
    bt_link_outbox outbox;
    int64_t heard_ns;
    int64_t silence_ns;
    int64_t load_sent_ns;
    bool load_changed;
    bool told_draining; /* in the last report */
    bool lets_go;       /* the router does not keep this worker */
    uint64_t blocks_number;
    bool snapshot_wanted;
    bool snapshot_running;
    uint32_t snapshot_slot; /* next slot of the mirror to look at */
};

struct bt_link_worker {
    bt_loop *loop;
    bt_rpc *rpc;
    bt_link_hello hello;
    const bt_link_worker_callbacks *callbacks;
    void *ctx;
    bt_cluster_key cluster_key;
    int64_t answer_ns;
    uint32_t load_ms;
    bt_link_session *sessions; /* [n_sessions] */
    uint32_t n_sessions;
    bt_timer *tick;
    bt_link_arena arena;
    bt_link_load load;
    bt_link_mirror mirror;

    bt_link_runs runs;

    bool closing;     /* shutdown was called */
    bool close_begun; /* and the loop came round since */
    uint64_t grace_ms;
    bt_timer *grace;
    bt_loop_fn closed;
    void *closed_ctx;
    bt_link_worker_stats stats;
};

/* ---- link_session.c ---- */

/* Makes a session that waits. BT_ENOMEM, or what its TLS files are wrong with; deinit is needed
 * then too. */
BT_MUST_CHECK bt_status bt_link_session_init(bt_link_session *s, bt_link_worker *link, uint32_t idx,
                                             const bt_link_worker_options *options);
void bt_link_session_deinit(bt_link_session *s);

/* WAITING -> DIALING; `session` is a bt_link_session. */
void bt_link_session_dial(void *session);

/* Each load_ms: signs of life, and whatever waits. */
void bt_link_session_tick(bt_link_session *s, int64_t now_ns);

/* Events may be put into it. */
bool bt_link_session_is_open(const bt_link_session *s);

/* After each put: without room the session ends, for tokens are never left out. */
void bt_link_session_need_room(bt_link_session *s, bool added);

/* Block events and snapshots; these give way where there is little room. */
void bt_link_session_put_blocks(bt_link_session *s, bt_link_blocks_kind kind,
                                const bt_block_hash *ids, size_t n);
void bt_link_session_want_snapshot(bt_link_session *s);

/* Starts to send what was put, and the load if it is time for it. */
void bt_link_session_flush(bt_link_session *s, int64_t now_ns);

/* Ends the stream; what follows is done when its end has come. */
void bt_link_session_cut(bt_link_session *s, const char *reason);

/* The link closes: nothing new begins. */
void bt_link_session_stop(bt_link_session *s);

/* Ends the sending half of a stream when all has been sent. false: there is no stream any more. */
bool bt_link_session_close(bt_link_session *s);

/* ---- link_worker.c ---- */

/* Tells `closed` when no stream is left. */
void bt_link_worker_close_when_drained(bt_link_worker *link);

#endif /* BT_PROTO_LINK_WORKER_INT_H */
