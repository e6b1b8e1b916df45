/* SPDX-License-Identifier: Apache-2.0 */
/* Accepting pauses for PAUSE_MS when there is no descriptor or memory for one more connection:
 * it stays in the queue, and the loop would call again at once, for ever.
 *
 * Connecting needs no state: a socket that is not connected yet takes no bytes (BT_AGAIN),
 * turns writable when it is, and answers the first send with the error when it failed. */
#include "kvtransfer/stream_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/check.h"
#include "common/socket.h"

enum { PAUSE_MS = 100 };

static bt_stream *stream_of(bt_conn *conn)
{
    return bt_container_of(conn, bt_stream, conn);
}

static bt_stream *create_stream(const bt_transport_ops *ops, bt_loop *loop, int fd)
{
    bt_stream *stream = calloc(1, sizeof *stream);
    if (stream) {
        stream->conn.ops = ops;
        stream->loop = loop;
        stream->fd = fd;
        stream->share_fd = -1;
        stream->got_fd = -1;
        stream->mapping = BT_MAPPING_NONE;
    }
    return stream;
}

static void pause_accepting(bt_stream_listener *listener, const char *reason)
{
    bt_log_limited(&listener->pause_limit, 1, BT_ERROR,
                   "kv connections wait: transport=%s reason=\"%s\" retry_ms=%d",
                   listener->listener.ops->name, reason, PAUSE_MS);
    bt_watch_set(listener->watch, 0);
    bt_timer_start(listener->pause, PAUSE_MS, 0);
}

static void on_pause_over(void *ctx)
{
    bt_stream_listener *listener = ctx;
    bt_watch_set(listener->watch, BT_WATCH_READ);
}

static void on_acceptable(int fd, int events, void *ctx)
{
    (void)events;
    bt_stream_listener *listener = ctx;
    int conn_fd = -1;
    /* One a turn: the loop calls again while more are waiting. */
    const bt_status status = bt_socket_accept(fd, &conn_fd);
    if (status == BT_AGAIN) {
        return;
    }
    if (status != BT_OK) {
        pause_accepting(listener, status == BT_EEXHAUSTED ? "no descriptor is left: raise ulimit -n"
                                                          : bt_status_text(status));
        return;
    }
    bt_stream *stream = create_stream(listener->listener.ops, listener->loop, conn_fd);
    if (!stream) {
        bt_socket_close(conn_fd);
        pause_accepting(listener, "out of memory");
        return;
    }
    listener->fn(&stream->conn, listener->ctx);
}

bt_status bt_stream_listen(const bt_transport_ops *ops, bt_loop *loop, const char *address,
                           bt_accept_fn fn, void *ctx, bt_stream_listener **out, bt_error *err)
{
    bt_stream_listener *listener = calloc(1, sizeof *listener);
    if (!listener) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    listener->listener.ops = ops;
    listener->loop = loop;
    listener->fn = fn;
    listener->ctx = ctx;
    bt_status status = bt_socket_listen(address, &listener->fd, err);
    if (status != BT_OK) {
        goto fail_alloc;
    }
    status = bt_watch_create(loop, listener->fd, on_acceptable, listener, &listener->watch);
    if (status == BT_OK) {
        status = bt_timer_create(loop, on_pause_over, listener, &listener->pause);
    }
    if (status != BT_OK) {
        (void)bt_error_set(err, status, "cannot watch '%s'", address);
        goto fail_socket;
    }
    bt_watch_set(listener->watch, BT_WATCH_READ);
    *out = listener;
    return BT_OK;

fail_socket:
    bt_watch_destroy(listener->watch);
    bt_socket_close(listener->fd);
fail_alloc:
    free(listener);
    return status;
}

void bt_stream_unlisten(bt_listener *base)
{
    bt_stream_listener *listener = bt_container_of(base, bt_stream_listener, listener);
    bt_timer_destroy(listener->pause);
    bt_watch_destroy(listener->watch);
    bt_socket_close(listener->fd);
    free(listener);
}

bt_status bt_stream_connect(const bt_transport_ops *ops, bt_loop *loop, const char *address,
                            bt_stream **out, bt_error *err)
{
    bt_socket_address resolved;
    bt_status status = bt_socket_resolve(address, false, &resolved, err);
    if (status != BT_OK) {
        return status;
    }
    int fd = -1;
    status = bt_socket_connect(&resolved, &fd, err);
    if (status != BT_OK) {
        return status;
    }
    bt_stream *stream = create_stream(ops, loop, fd);
    if (!stream) {
        bt_socket_close(fd);
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    *out = stream;
    return BT_OK;
}

static void on_event(int fd, int events, void *ctx)
{
    (void)fd;
    bt_stream *stream = ctx;
    stream->fn(events, stream->ctx); /* may have closed it: nothing after this */
}

bt_status bt_stream_start(bt_conn *conn, bt_conn_fn fn, void *ctx)
{
    bt_stream *stream = stream_of(conn);
    BT_ASSERT(!stream->watch);
    stream->fn = fn;
    stream->ctx = ctx;
    return bt_watch_create(stream->loop, stream->fd, on_event, stream, &stream->watch);
}

void bt_stream_want(bt_conn *conn, int events)
{
    bt_watch_set(stream_of(conn)->watch, events);
}

bt_status bt_stream_send(bt_conn *conn, const struct iovec *iov, size_t n, size_t *sent)
{
    bt_stream *stream = stream_of(conn);
    if (stream->share_fd >= 0) {
        const bt_status status =
            bt_socket_send_fd(stream->fd, iov[0].iov_base, iov[0].iov_len, stream->share_fd, sent);
        if (status == BT_OK) {
            stream->share_fd = -1;
        }
        return status;
    }
    /* sendmsg does not write through msg_iov. */
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = n};
    ssize_t rc;
    do {
        rc = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        return errno == EAGAIN || errno == ENOBUFS ? BT_AGAIN : BT_EPEER;
    }
    if (rc == 0) {
        return BT_AGAIN;
    }
    *sent = (size_t)rc;
    return BT_OK;
}

/* A descriptor may come with any bytes until the pool is mapped; the last one counts. */
static bt_status recv_fd(bt_stream *stream, const struct iovec *iov, size_t *got)
{
    int fd = -1;
    size_t n = 0;
    const bt_status status =
        bt_socket_recv_fd(stream->fd, iov[0].iov_base, iov[0].iov_len, &n, &fd);
    if (status != BT_OK) {
        return status == BT_AGAIN ? BT_AGAIN : BT_EPEER;
    }
    if (fd >= 0) {
        bt_socket_close(stream->got_fd);
        stream->got_fd = fd;
    }
    if (n == 0) {
        return BT_EPEER;
    }
    *got = n;
    return BT_OK;
}

bt_status bt_stream_recv(bt_conn *conn, const struct iovec *iov, size_t n, size_t *got)
{
    bt_stream *stream = stream_of(conn);
    if (stream->wants_fd) {
        return recv_fd(stream, iov, got);
    }
    ssize_t rc;
    do {
        rc = readv(stream->fd, iov, (int)n);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        return errno == EAGAIN ? BT_AGAIN : BT_EPEER;
    }
    if (rc == 0) {
        return BT_EPEER;
    }
    *got = (size_t)rc;
    return BT_OK;
}

void bt_stream_close(bt_conn *conn)
{
    bt_stream *stream = stream_of(conn);
    bt_watch_destroy(stream->watch);
    bt_socket_close(stream->fd);
    bt_socket_close(stream->got_fd);
    bt_alloc_unmap(&stream->mapping);
    free(stream);
}

void bt_stream_sever(bt_conn *conn)
{
    (void)shutdown(stream_of(conn)->fd, SHUT_RDWR);
}
