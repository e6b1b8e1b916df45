/* SPDX-License-Identifier: Apache-2.0 */
/* stream_int.h - connections over a socket: what tcp.c and shm.c share.
 *
 * Threading: loop thread only.
 * Memory:    one heap object for each connection.
 */
#ifndef BT_KVTRANSFER_STREAM_INT_H
#define BT_KVTRANSFER_STREAM_INT_H

#include "common/alloc.h"
#include "common/log.h"
#include "kvtransfer/transport.h"

typedef struct bt_stream {
    bt_conn conn;
    bt_loop *loop;
    int fd;
    bt_watch *watch; /* NULL before start */
    bt_conn_fn fn;
    void *ctx;
    int share_fd;       /* goes with the next send; -1: none */
    bool wants_fd;      /* the peer may send a descriptor */
    int got_fd;         /* that came; -1: none */
    bt_mapping mapping; /* of the peer's pool */
} bt_stream;

typedef struct bt_stream_listener {
    bt_listener listener;
    bt_loop *loop;
    int fd;
    bt_watch *watch;
    bt_timer *pause; /* no descriptors were left: look again when it is over */
    bt_log_limit pause_limit;
    bt_accept_fn fn;
    void *ctx;
} bt_stream_listener;

/* `address` as common/socket.h reads it. */
bt_status bt_stream_listen(const bt_transport_ops *ops, bt_loop *loop, const char *address,
                           bt_accept_fn fn, void *ctx, bt_stream_listener **out, bt_error *err);
bt_status bt_stream_connect(const bt_transport_ops *ops, bt_loop *loop, const char *address,
                            bt_stream **out, bt_error *err);

/* Entries of the operation table. */
void bt_stream_unlisten(bt_listener *listener);
bt_status bt_stream_start(bt_conn *conn, bt_conn_fn fn, void *ctx);
void bt_stream_want(bt_conn *conn, int events);
bt_status bt_stream_send(bt_conn *conn, const struct iovec *iov, size_t n, size_t *sent);
bt_status bt_stream_recv(bt_conn *conn, const struct iovec *iov, size_t n, size_t *got);
void bt_stream_close(bt_conn *conn);
void bt_stream_sever(bt_conn *conn);

#endif /* BT_KVTRANSFER_STREAM_INT_H */
