/* SPDX-License-Identifier: Apache-2.0 */
/* shm: frames go over a unix socket, parts are copied by the sink out of the source's pool,
 * whose memfd comes with the WELCOME. The mapping lives as long as the connection, so a peer
 * that is gone keeps no memory here.
 *
 * Only the same user or root may be at the other end (SO_PEERCRED), in either direction: whoever
 * binds our path first, or dials us, under another user gets nothing. A path's file has mode
 * 0600; an abstract name has no file, and the credentials are all it has. Both come before
 * the handshake that proves the cluster key (session.h), and the memfd after it: sealed, so
 * that it can neither shrink nor be mapped for writing by whoever gets hold of it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "common/socket.h"
#include "kvtransfer/stream_int.h"

static bt_stream *stream_of(bt_conn *conn)
{
    return bt_container_of(conn, bt_stream, conn);
}

static bool is_trusted_user(int fd)
{
    uint32_t uid = 0;
    return bt_socket_peer_uid(fd, &uid) == BT_OK && (uid == (uint32_t)geteuid() || uid == 0);
}

static void unix_address(const bt_kv_peer *peer, char out[BT_SOCKET_TEXT_BYTES])
{
    (void)snprintf(out, BT_SOCKET_TEXT_BYTES, "unix:%s", peer->shm);
}

static bt_status shm_listen(const bt_transport_env *env, bt_kv_peer *self, bt_accept_fn fn,
                            void *ctx, bt_listener **out, bt_error *err)
{
    char address[BT_SOCKET_TEXT_BYTES];
    unix_address(self, address);
    bt_stream_listener *listener;
    const bt_status status =
        bt_stream_listen(&bt_transport_shm, env->loop, address, fn, ctx, &listener, err);
    if (status == BT_OK) {
        *out = &listener->listener;
    }
    return status;
}

static bt_status shm_connect(const bt_transport_env *env, const bt_kv_peer *peer, bt_conn **out,
                             bt_error *err)
{
    char address[BT_SOCKET_TEXT_BYTES];
    unix_address(peer, address);
    bt_stream *stream;
    const bt_status status = bt_stream_connect(&bt_transport_shm, env->loop, address, &stream, err);
    if (status != BT_OK) {
        return status;
    }
    stream->wants_fd = true;
    *out = &stream->conn;
    return BT_OK;
}

static bt_status shm_start(bt_conn *conn, bt_conn_fn fn, void *ctx)
{
    if (!is_trusted_user(stream_of(conn)->fd)) {
        return BT_EPERMISSION;
    }
    return bt_stream_start(conn, fn, ctx);
}

static void shm_share(bt_conn *conn, int fd)
{
    stream_of(conn)->share_fd = fd;
}

static bt_status shm_map(bt_conn *conn, size_t bytes, const uint8_t **base, bt_error *err)
{
    bt_stream *stream = stream_of(conn);
    BT_ASSERT(!stream->mapping.base);
    stream->wants_fd = false;
    const int fd = stream->got_fd;
    stream->got_fd = -1;
    if (fd < 0) {
        return bt_error_set(err, BT_EMISMATCH, "the peer shared no memory");
    }
    const bt_status status = bt_alloc_map_peer(fd, bytes, &stream->mapping, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "cannot map the peer's KV pool");
        return status == BT_EINVAL ? BT_EMISMATCH : status;
    }
    *base = stream->mapping.base;
    return BT_OK;
}

const bt_transport_ops bt_transport_shm = {
    .name = "shm",
    .id = BT_KV_TRANSPORT_SHM,
    .caps = BT_TRANSPORT_ONE_SIDED,
    .listen = shm_listen,
    .unlisten = bt_stream_unlisten,
    .connect = shm_connect,
    .start = shm_start,
    .want = bt_stream_want,
    .send = bt_stream_send,
    .recv = bt_stream_recv,
    .close = bt_stream_close,
    .sever = bt_stream_sever,
    .share = shm_share,
    .map = shm_map,
};
