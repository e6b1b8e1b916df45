/* SPDX-License-Identifier: Apache-2.0 */
/* tcp: parts follow their DATA frame; vectored reads land in the blocks. */
#include <stdio.h>
#include <string.h>

#include "common/socket.h"
#include "kvtransfer/stream_int.h"

/* "host:port" with the port that the socket has. A host of "", "*", "0.0.0.0" or "::" is kept:
 * the worker advertises another one. */
static void put_port(char address[BT_KV_ADDRESS_BYTES], int port)
{
    char *colon = strrchr(address, ':');
    if (colon) {
        const size_t left = BT_KV_ADDRESS_BYTES - (size_t)(colon - address);
        (void)snprintf(colon, left, ":%d", port);
    }
}

static bt_status tcp_listen(const bt_transport_env *env, bt_kv_peer *self, bt_accept_fn fn,
                            void *ctx, bt_listener **out, bt_error *err)
{
    bt_stream_listener *listener;
    const bt_status status =
        bt_stream_listen(&bt_transport_tcp, env->loop, self->tcp, fn, ctx, &listener, err);
    if (status == BT_OK) {
        put_port(self->tcp, bt_socket_port(listener->fd));
        *out = &listener->listener;
    }
    return status;
}

static bt_status tcp_connect(const bt_transport_env *env, const bt_kv_peer *peer, bt_conn **out,
                             bt_error *err)
{
    bt_stream *stream;
    const bt_status status =
        bt_stream_connect(&bt_transport_tcp, env->loop, peer->tcp, &stream, err);
    if (status == BT_OK) {
        *out = &stream->conn;
    }
    return status;
}

const bt_transport_ops bt_transport_tcp = {
    .name = "tcp",
    .id = BT_KV_TRANSPORT_TCP,
    .caps = BT_TRANSPORT_STREAM,
    .listen = tcp_listen,
    .unlisten = bt_stream_unlisten,
    .connect = tcp_connect,
    .start = bt_stream_start,
    .want = bt_stream_want,
    .send = bt_stream_send,
    .recv = bt_stream_recv,
    .close = bt_stream_close,
    .sever = bt_stream_sever,
};
