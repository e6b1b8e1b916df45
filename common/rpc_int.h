/* SPDX-License-Identifier: Apache-2.0 */
/* rpc_int.h - what rpc.c, rpc_server.c and rpc_client.c share.
 *
 * An operation that gRPC works on is a bt_rpc_op inside a heap object; its address is gRPC's
 * tag. The object stays until all its operations came back (n_pending).
 *
 * Threading: loop thread only, but for the completion thread in rpc.c.
 */
#ifndef BT_COMMON_RPC_INT_H
#define BT_COMMON_RPC_INT_H

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>

#include "common/file.h"
#include "common/rpc.h"

/* Tell ThreadSanitizer, which does not see into gRPC, that what one thread did before HAND_OVER
 * comes before what another does after TAKE_OVER of the same address. */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#define BT_RPC_HAND_OVER(addr) __tsan_release(addr)
#define BT_RPC_TAKE_OVER(addr) __tsan_acquire(addr)
#else
#define BT_RPC_HAND_OVER(addr) ((void)(addr))
#define BT_RPC_TAKE_OVER(addr) ((void)(addr))
#endif

typedef struct bt_rpc_op bt_rpc_op;

/* Runs on the loop thread when gRPC is through with the operation. */
typedef void (*bt_rpc_op_fn)(bt_rpc_op *op, bool ok);

struct bt_rpc_op {
    bt_rpc_op_fn fn;
};

typedef struct bt_rpc_meta_list {
    grpc_metadata *items;
    size_t n;
} bt_rpc_meta_list;

struct bt_rpc_call {
    /* fixed after create */
    bt_rpc *rpc;
    grpc_call *core;
    bt_rpc_server *server;             /* server side, else NULL */
    bt_rpc_channel *channel;           /* client side; NULL once the channel is destroyed */
    const bt_rpc_callbacks *callbacks; /* NULL: nobody is told (refused) */
    void *ctx;
    char *peer; /* gpr_malloc'ed, on demand */

    /* operations */
    bt_rpc_op op_send;
    bt_rpc_op op_recv;
    bt_rpc_op op_start; /* client: initial metadata, both ways */
    bt_rpc_op op_end;   /* client: status received. server: close received */
    bt_rpc_op op_last;  /* client: half-close sent. server: status sent */
    unsigned n_pending;

    grpc_byte_buffer *send_buffer; /* in flight */
    grpc_byte_buffer *recv_buffer;
    bool recv_in_flight;
    bool meta_sent;   /* initial metadata */
    bool last_wanted; /* half-close or finish asked for, waits for a send in flight */
    bool last_started;
    bool last_ok;
    bool ended; /* op_end came back */
    bool done_told;

    bt_rpc_meta_list initial_out;
    bt_rpc_meta_list trailing_out;   /* server */
    grpc_metadata_array meta_in;     /* server: request's. client: initial */
    grpc_metadata_array trailing_in; /* client */
    bt_rpc_code status_out;          /* server */
    grpc_slice message_out;          /* server */
    grpc_status_code status_in;      /* client */
    grpc_slice message_in;           /* client */
    int cancelled_in;                /* server */
    gpr_timespec deadline;

    bt_rpc_call *prev; /* in the list of its server or channel */
    bt_rpc_call *next;
    void *kept;                /* bt_rpc_call_keep() */
    struct bt_rpc_text *texts; /* strings handed to the user, freed with the call */
};

/* A copy of a bt_rpc_tls, and what its files were when they were read last. */
typedef struct bt_rpc_tls_files {
    bool made;
    bt_rpc_tls paths;     /* own strings */
    pthread_mutex_t lock; /* of the stamps, which a server's handshakes read and write */
    bt_file_stamp cert;
    bt_file_stamp key;
    bt_file_stamp ca;
} bt_rpc_tls_files;

/* BT_ENOMEM; deinit is needed then too. */
BT_MUST_CHECK bt_status bt_rpc_tls_files_init(bt_rpc_tls_files *files, const bt_rpc_tls *tls);
void bt_rpc_tls_files_deinit(bt_rpc_tls_files *files);

/* Has one changed since it was read? */
bool bt_rpc_tls_files_changed(const bt_rpc_tls_files *files);

/* Credentials from the files; `files` outlives the server, which asks it again at each handshake,
 * from a thread of gRPC's. NULL: they can't be read. */
grpc_server_credentials *bt_rpc_tls_server_credentials(bt_rpc_tls_files *files);
grpc_channel_credentials *bt_rpc_tls_channel_credentials(bt_rpc_tls_files *files, bt_error *err);

/* The loop and the queue of a process-wide bt_rpc, for its two sides. */
bt_loop *bt_rpc_loop(bt_rpc *rpc);
grpc_completion_queue *bt_rpc_queue(bt_rpc *rpc);

/* gRPC was handed `op` as a tag; its fn will run once. */
void bt_rpc_op_started(bt_rpc *rpc, bt_rpc_op *op);

/* A zeroed call with its slices and arrays made; NULL: out of memory. */
bt_rpc_call *bt_rpc_call_new(bt_rpc *rpc);

/* Frees all that the call owns; it must be off its list. */
void bt_rpc_call_free(bt_rpc_call *call);

/* Starts a batch whose completion is op->fn. */
void bt_rpc_call_batch(bt_rpc_call *call, const grpc_op *ops, size_t n, bt_rpc_op *op);

/* Starts the half-close or the status, when it is wanted and no send is in flight. */
void bt_rpc_call_start_last(bt_rpc_call *call);

/* Tells on_done and frees the call, when all its operations are back. */
void bt_rpc_call_try_end(bt_rpc_call *call);

/* Side-specific parts, called by the above. call_gone takes the call off its list and frees it;
 * `channel` is NULL when it was destroyed before the call ended. */
size_t bt_rpc_server_last_ops(bt_rpc_call *call, grpc_op *ops);
void bt_rpc_server_call_gone(bt_rpc_server *server, bt_rpc_call *call);
void bt_rpc_channel_call_gone(bt_rpc_channel *channel, bt_rpc_call *call);

/* Copies metadata; entries that HTTP/2 does not allow are left out, and counted in *n_bad. */
BT_MUST_CHECK bt_status bt_rpc_meta_copy(const bt_rpc_meta *meta, size_t n, bt_rpc_meta_list *out,
                                         size_t *n_bad);
void bt_rpc_meta_free(bt_rpc_meta_list *list);

/* The SEND_INITIAL_METADATA operation of a call. */
grpc_op bt_rpc_initial_op(bt_rpc_call *call, uint32_t flags);

void bt_rpc_call_link(bt_rpc_call **head, bt_rpc_call *call);
void bt_rpc_call_unlink(bt_rpc_call **head, bt_rpc_call *call);

#endif /* BT_COMMON_RPC_INT_H */
