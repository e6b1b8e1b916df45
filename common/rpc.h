/* SPDX-License-Identifier: Apache-2.0 */
/* rpc.h - gRPC behind three nouns: server, call, channel.
 *
 * Messages are opaque bytes here. One thread of its own per process drains gRPC's
 * completion queue into a bounded ring and rings the loop; sends start straight
 * from the loop thread. All callbacks run on the loop thread.
 *
 * A call, on either side, is a state machine with these promises:
 *   - on_message is called once per message, only after bt_rpc_call_recv() asked for
 *     one (one ask, one message: that is the flow control);
 *   - one send is in flight at a time; on_sent says that the next may start;
 *   - on_done is called exactly once, last, also after cancel; when it returns the
 *     call is gone.
 *
 * Threading: loop thread only.
 * Memory:    calls are heap objects owned by this module.
 */
#ifndef BT_COMMON_RPC_H
#define BT_COMMON_RPC_H

#include "common/loop.h"

/* gRPC's status codes, as on the wire. */
typedef enum bt_rpc_code {
    BT_RPC_OK = 0,
    BT_RPC_CANCELLED = 1,
    BT_RPC_UNKNOWN = 2,
    BT_RPC_INVALID_ARGUMENT = 3,
    BT_RPC_DEADLINE_EXCEEDED = 4,
    BT_RPC_NOT_FOUND = 5,
    BT_RPC_ALREADY_EXISTS = 6,
    BT_RPC_PERMISSION_DENIED = 7,
    BT_RPC_RESOURCE_EXHAUSTED = 8,
    BT_RPC_FAILED_PRECONDITION = 9,
    BT_RPC_ABORTED = 10,
    BT_RPC_OUT_OF_RANGE = 11,
    BT_RPC_UNIMPLEMENTED = 12,
    BT_RPC_INTERNAL = 13,
    BT_RPC_UNAVAILABLE = 14,
    BT_RPC_DATA_LOSS = 15,
    BT_RPC_UNAUTHENTICATED = 16,
} bt_rpc_code;

/* The gRPC code that a status shows as. */
bt_rpc_code bt_rpc_code_of(bt_status status);

/* The other way round, for the side that called: BT_EPEER for what has no status of its own. */
bt_status bt_rpc_status_of(bt_rpc_code code);

typedef struct bt_rpc bt_rpc; /* completion queue and its thread */
typedef struct bt_rpc_server bt_rpc_server;
typedef struct bt_rpc_channel bt_rpc_channel;
typedef struct bt_rpc_call bt_rpc_call; /* one RPC, on the server's or the client's side */

typedef struct bt_rpc_meta {
    const char *key;   /* lower case */
    const char *value; /* NUL-terminated; "-bin" keys are not supported */
} bt_rpc_meta;

typedef struct bt_rpc_callbacks {
    /* `data` is valid during the callback. `end` (NULL, 0): no more come; on the server's
     * side the client has half-closed, on the client's side the status follows (which
     * gRPC shows only to clients that asked for messages to the end, or cancelled). */
    void (*on_message)(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx);
    /* The message handed to send() has left; the next may be sent. May be NULL. */
    void (*on_sent)(bt_rpc_call *call, void *ctx);
    /* The RPC is over: client side with the server's status, server side with
     * BT_RPC_OK (status delivered) or BT_RPC_CANCELLED (client gone, deadline). */
    void (*on_done)(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx);
} bt_rpc_callbacks;

/* ---- process-wide ---- */
BT_MUST_CHECK bt_status bt_rpc_create(bt_loop *loop, bt_rpc **out);

/* Servers and channels must have been destroyed. */
void bt_rpc_destroy(bt_rpc *rpc);

/* ---- TLS ----
 * Files in PEM. They are read again when they change: by servers for the next connection, by
 * channels for the next call that finds no other one open. What can't be used then leaves the old
 * ones in place, and is logged. */
typedef struct bt_rpc_tls {
    const char *cert; /* own certificate, with the chain up to the authority's; NULL: none */
    const char *key;  /* its private key */
    /* Server: clients have to show a certificate of this authority; NULL: none is asked for.
     * Client: the servers' authority; "system": those that this system trusts. */
    const char *ca;
    const char *server_name; /* client: what the server's certificate says, if not the address */
} bt_rpc_tls;

/* Can these files be used at all? BT_EINVAL, BT_ENOTFOUND, ...: *err says which and why. */
BT_MUST_CHECK bt_status bt_rpc_tls_check(const bt_rpc_tls *tls, bool is_server, bt_error *err);

/* ---- server ---- */

/* Asked about each new call, also of unknown methods, before anything else happens to it. false:
 * it has refused the call with bt_rpc_call_finish(). */
typedef bool (*bt_rpc_guard)(bt_rpc_call *call, const char *path, void *ctx);

typedef struct bt_rpc_server_options {
    const char *address;             /* "host:port" or "unix:path"; port 0 takes a free one */
    size_t message_bytes_max;        /* received messages; 0: 4 MiB */
    size_t metadata_bytes_max;       /* 0: 16 KiB */
    unsigned concurrent_streams_max; /* for each connection; 0: 1024 */
    uint64_t idle_ms;      /* a connection without a call for so long is closed; 0: none is */
    const bt_rpc_tls *tls; /* NULL: plain text; strings are copied */
    bt_rpc_guard guard;    /* NULL: everybody may call */
    void *guard_ctx;
} bt_rpc_server_options;

/* A new call: set callbacks with bt_rpc_call_accept() or refuse with finish(). */
typedef void (*bt_rpc_handler)(bt_rpc_call *call, void *ctx);

BT_MUST_CHECK bt_status bt_rpc_server_create(bt_rpc *rpc, const bt_rpc_server_options *options,
                                             bt_rpc_server **out, bt_error *err);

/* Before start. `path`: "/package.Service/Method", a string that outlives the server. */
BT_MUST_CHECK bt_status bt_rpc_server_handle(bt_rpc_server *server, const char *path,
                                             bt_rpc_handler handler, void *ctx);

/* Takes the port and serves nobody yet, so that a process with several servers can make sure of
 * all ports before it starts. BT_EEXISTS: the port is in use; BT_EINVAL, BT_EPERMISSION, BT_EIO. */
BT_MUST_CHECK bt_status bt_rpc_server_bind(bt_rpc_server *server, bt_error *err);

/* Binds, unless that is done (then it can't fail), and serves from now on; unknown paths get
 * UNIMPLEMENTED. */
BT_MUST_CHECK bt_status bt_rpc_server_start(bt_rpc_server *server, bt_error *err);

/* The port taken (after start). */
int bt_rpc_server_port(const bt_rpc_server *server);

/* Whether no call is open. */
bool bt_rpc_server_is_idle(const bt_rpc_server *server);

/* Refuses new calls; done(ctx) when the last call is over, or after grace_ms, when the
 * rest are cancelled. What is on its way to an idle server is UNAVAILABLE to its client; beside
 * calls that go on it may be CANCELLED. */
void bt_rpc_server_shutdown(bt_rpc_server *server, uint64_t grace_ms, bt_loop_fn done, void *ctx);

/* After shutdown's done. */
void bt_rpc_server_destroy(bt_rpc_server *server);

/* ---- a call, both sides ---- */

/* Server side, inside the handler: takes the call. `callbacks` must outlive it. */
void bt_rpc_call_accept(bt_rpc_call *call, const bt_rpc_callbacks *callbacks, void *ctx);

/* Server side: notes a copy of n bytes on the call (what a guard found out); until on_done. false:
 * out of memory. */
bool bt_rpc_call_keep(bt_rpc_call *call, const void *bytes, size_t n);
const void *bt_rpc_call_kept(const bt_rpc_call *call); /* NULL: nothing */

/* Changes the context that callbacks get. */
void bt_rpc_call_set_ctx(bt_rpc_call *call, void *ctx);

/* Asks for one message. */
void bt_rpc_call_recv(bt_rpc_call *call);

/* Sends one message; the bytes are copied. Not while an earlier send is in flight
 * (bt_rpc_call_can_send). After the call has ended it is a no-op. */
void bt_rpc_call_send(bt_rpc_call *call, const uint8_t *data, size_t len);
bool bt_rpc_call_can_send(const bt_rpc_call *call);

/* Server side: initial metadata of the reply, before the first send. */
void bt_rpc_call_set_reply_meta(bt_rpc_call *call, const bt_rpc_meta *meta, size_t n);

/* Server side: ends the call with a status and trailing metadata (n may be 0); waits for
 * a send in flight. Owed for every call, unless on_done(CANCELLED) comes first: then nobody
 * listens any more, and there is nothing to finish. Metadata entries that HTTP/2 does not
 * allow are left out. */
void bt_rpc_call_finish(bt_rpc_call *call, bt_rpc_code code, const char *message,
                        const bt_rpc_meta *trailing, size_t n);

/* Client side: no more messages will be sent. */
void bt_rpc_call_close_send(bt_rpc_call *call);

/* Either side: ends it now; on_done follows. */
void bt_rpc_call_cancel(bt_rpc_call *call);

/* Value of a metadata key that the peer sent, or NULL: on the server's side the request's; on
 * the client's side the reply's initial metadata from its first message on, and inside
 * on_done the trailing metadata too. Valid until on_done returns. */
const char *bt_rpc_call_meta(const bt_rpc_call *call, const char *key);

/* Server side: what is left of the deadline in ns; INT64_MAX without one. */
int64_t bt_rpc_call_deadline_left_ns(const bt_rpc_call *call);

/* "ipv4:127.0.0.1:1234"; valid until on_done. */
const char *bt_rpc_call_peer(const bt_rpc_call *call);

/* ---- channel ---- */
typedef struct bt_rpc_channel_options {
    const char *address;       /* "host:port" or "unix:path" */
    size_t message_bytes_max;  /* received; 0: 4 MiB */
    uint64_t keepalive_ms;     /* 0: 10,000 */
    uint64_t reconnect_max_ms; /* longest back-off between tries; 0: 1,000 */
    const bt_rpc_tls *tls;     /* NULL: plain text; strings are copied */
} bt_rpc_channel_options;

/* BT_EINVAL: no address; what bt_rpc_tls_check() finds; BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_rpc_channel_create(bt_rpc *rpc, const bt_rpc_channel_options *options,
                                              bt_rpc_channel **out);

/* Calls still running are cancelled; their on_done still comes. */
void bt_rpc_channel_destroy(bt_rpc_channel *channel);

typedef struct bt_rpc_start {
    const char *path;
    int64_t deadline_ns;     /* from now; 0: none */
    const bt_rpc_meta *meta; /* copied */
    size_t n_meta;
    bool wait_for_ready;
} bt_rpc_start;

/* Starts a call. On BT_OK callbacks follow, on_done last. BT_EINVAL: metadata that HTTP/2 does
 * not allow. */
BT_MUST_CHECK bt_status bt_rpc_channel_start(bt_rpc_channel *channel, const bt_rpc_start *start,
                                             const bt_rpc_callbacks *callbacks, void *ctx,
                                             bt_rpc_call **out);

#endif /* BT_COMMON_RPC_H */
