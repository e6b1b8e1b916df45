/* SPDX-License-Identifier: Apache-2.0 */
/* transport.h - what carries frames and parts between a sink and a source.
 *
 * Every transport gives an ordered, reliable stream of bytes both ways for frames. Parts
 * move in the way that its capability names; source and sink know the three ways and
 * nothing else about a transport:
 *
 *   ONE_SIDED  the sink maps the source's pool and copies on its own (shm)
 *   STREAM     parts follow their DATA frame in the stream (tcp)
 *   TWO_SIDED  the sink posts where parts belong, the source fills what was posted, in the
 *              order of posting; a DATA frame says that it has (loopback; later nccl)
 *
 * Threading: loop thread only.
 * Memory:    a connection is a heap object; nothing else is allocated after create.
 */
#ifndef BT_KVTRANSFER_TRANSPORT_H
#define BT_KVTRANSFER_TRANSPORT_H

#include <sys/uio.h>

#include "common/loop.h"
#include "kvtransfer/transfer.h"

enum {
    BT_TRANSPORT_ONE_SIDED = 1,
    BT_TRANSPORT_STREAM = 2,
    BT_TRANSPORT_TWO_SIDED = 4,
    BT_TRANSPORT_IOV_MAX = 64, /* pieces in one call of send, recv, post or fill */
};

typedef struct bt_transport_ops bt_transport_ops;

/* First member of each transport's own connection and listener. */
typedef struct bt_conn {
    const bt_transport_ops *ops;
} bt_conn;

typedef struct bt_listener {
    const bt_transport_ops *ops;
} bt_listener;

/* `events` of BT_WATCH_*: the connection may be read, may be written; both after an error. */
typedef void (*bt_conn_fn)(int events, void *ctx);

/* The callee owns the new connection. */
typedef void (*bt_accept_fn)(bt_conn *conn, void *ctx);

typedef struct bt_transport_env {
    bt_loop *loop;
    bt_kv_loopback *loopback; /* NULL: none */
} bt_transport_env;

struct bt_transport_ops {
    const char *name;
    bt_kv_transport id;
    uint32_t caps; /* one of BT_TRANSPORT_ONE_SIDED, _STREAM, _TWO_SIDED */

    /* Listens on the address that `self` has for this transport, and puts there the one that it
     * got (a port). BT_EIO, BT_EINVAL, BT_EEXISTS, BT_ENOMEM; *err says why. */
    bt_status (*listen)(const bt_transport_env *env, bt_kv_peer *self, bt_accept_fn fn, void *ctx,
                        bt_listener **out, bt_error *err);
    void (*unlisten)(bt_listener *listener);

    /* Starts to connect; the first send that works says that it is done. BT_EPEER, BT_EINVAL. */
    bt_status (*connect)(const bt_transport_env *env, const bt_kv_peer *peer, bt_conn **out,
                         bt_error *err);

    /* From now on fn(events, ctx) comes for the events asked for with want(), as long as they
     * hold. fn may close the connection. Once, before want(). BT_ENOMEM. */
    bt_status (*start)(bt_conn *conn, bt_conn_fn fn, void *ctx);
    void (*want)(bt_conn *conn, int events);

    /* Moves what goes at once, more than 0 bytes. BT_AGAIN: nothing goes now. BT_EPEER: the peer
     * closed, or the connection broke. */
    bt_status (*send)(bt_conn *conn, const struct iovec *iov, size_t n, size_t *sent);
    bt_status (*recv)(bt_conn *conn, const struct iovec *iov, size_t n, size_t *got);

    /* No callback comes after it. */
    void (*close)(bt_conn *conn);

    /* Test only: the connection breaks, as both ends will notice. */
    void (*sever)(bt_conn *conn);

    /* ---- ONE_SIDED only ---- */

    /* Source: the next send carries a copy of `fd`, borrowed until then. */
    void (*share)(bt_conn *conn, int fd);

    /* Sink: maps at least `bytes` of the memory that was shared, until close. BT_EMISMATCH: none
     * came, too small, or not sealed. */
    bt_status (*map)(bt_conn *conn, size_t bytes, const uint8_t **base, bt_error *err);

    /* ---- TWO_SIDED only ---- */

    /* Sink: the parts of READ `op` belong into iov. BT_AGAIN: too many are posted. */
    bt_status (*post)(bt_conn *conn, uint32_t op, const struct iovec *iov, size_t n);

    /* Sink: nothing is written for `op` from here on. Unknown ones are ignored. */
    void (*unpost)(bt_conn *conn, uint32_t op);

    /* Source: fills what was posted for `op`; blocks until it has. BT_EPROTOCOL: the sizes differ.
     * An op that was unposted is passed over. */
    bt_status (*fill)(bt_conn *conn, uint32_t op, const struct iovec *iov, size_t n);
};

extern const bt_transport_ops bt_transport_shm;
extern const bt_transport_ops bt_transport_tcp;
extern const bt_transport_ops bt_transport_loopback;

typedef struct bt_transport_choice {
    bt_kv_transport pin; /* AUTO: any that fits */
    bool no_shm;
    bool has_loopback;
    uint8_t boot_id[BT_KV_BOOT_ID_BYTES]; /* of this host; zero: no shm */
} bt_transport_choice;

/* Lists the transports that reach `peer`, best first, into ops[0..2]; returns how many.
 * 0: *err says why, and what would help. */
size_t bt_transport_choose(const bt_transport_choice *choice, const bt_kv_peer *peer,
                           const bt_transport_ops *ops[3], bt_error *err);

/* What AUTO is for this tcp address; any other wish stands. */
bt_kv_auth bt_transport_auth(bt_kv_auth wish, const char *tcp_address);

/* This host's boot id; zero where the kernel does not tell it. */
void bt_transport_boot_id(uint8_t boot_id[BT_KV_BOOT_ID_BYTES]);

/* ---- loopback: the meeting place of sources and sinks of one process ---- */

/* On one loop with all its sources and sinks, which are destroyed before it. */
BT_MUST_CHECK bt_status bt_kv_loopback_create(bt_loop *loop, bt_kv_loopback **out);
void bt_kv_loopback_destroy(bt_kv_loopback *hub);

#endif /* BT_KVTRANSFER_TRANSPORT_H */
