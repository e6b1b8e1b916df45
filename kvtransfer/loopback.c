/* SPDX-License-Identifier: Apache-2.0 */
/* loopback: sources and sinks of one process on one loop; frames go through rings, parts by
 * post and fill, as over a two-sided device transport.
 *
 * Readiness is level-triggered as with sockets: each change rings the hub's wake, which
 * calls the connections whose wish holds, and rings again while one still does. Closing
 * inside a callback marks; the sweep at the end of the delivery frees. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "kvtransfer/transport.h"

enum {
    RING_BYTES = 65536,
    POSTS_MAX = 64,
};

typedef struct posted {
    uint32_t op;
    size_t n;
    struct iovec iov[BT_TRANSPORT_IOV_MAX];
} posted;

typedef struct loop_conn {
    bt_conn conn;
    bt_kv_loopback *hub;
    struct loop_conn *next;
    struct loop_conn *peer; /* NULL: closed by the other side */
    bool closed;            /* by its owner */
    bt_conn_fn fn;
    void *ctx;
    int want;
    size_t rx_pos, rx_len; /* ring of what arrived */
    uint8_t rx[RING_BYTES];
    size_t n_posts; /* oldest first */
    posted posts[POSTS_MAX];
} loop_conn;

typedef struct loop_listener {
    bt_listener listener;
    bt_kv_loopback *hub;
    struct loop_listener *next;
    uint64_t incarnation;
    bt_accept_fn fn;
    void *ctx;
} loop_listener;

struct bt_kv_loopback {
    bt_wake *wake;
    loop_listener *listeners;
    loop_conn *conns;
    bool delivering;
};

static loop_conn *conn_of(bt_conn *conn)
{
    return bt_container_of(conn, loop_conn, conn);
}

static void sweep(bt_kv_loopback *hub)
{
    for (loop_conn **at = &hub->conns; *at;) {
        loop_conn *conn = *at;
        if (conn->closed) {
            *at = conn->next;
            free(conn);
        } else {
            at = &conn->next;
        }
    }
}

static int events_of(const loop_conn *conn)
{
    if (conn->closed || !conn->fn) {
        return 0;
    }
    if (!conn->peer) {
        return conn->want != 0 ? BT_WATCH_READ | BT_WATCH_WRITE : 0;
    }
    int events = conn->rx_len > 0 ? BT_WATCH_READ : 0;
    events |= conn->peer->rx_len < RING_BYTES ? BT_WATCH_WRITE : 0;
    return events & conn->want;
}

static void deliver(void *ctx)
{
    bt_kv_loopback *hub = ctx;
    hub->delivering = true;
    for (loop_conn *conn = hub->conns; conn; conn = conn->next) {
        const int events = events_of(conn);
        if (events != 0) {
            conn->fn(events, conn->ctx);
        }
    }
    hub->delivering = false;
    sweep(hub);
    for (const loop_conn *conn = hub->conns; conn; conn = conn->next) {
        if (events_of(conn) != 0) {
            bt_wake_ring(hub->wake);
            return;
        }
    }
}

bt_status bt_kv_loopback_create(bt_loop *loop, bt_kv_loopback **out)
{
    bt_kv_loopback *hub = calloc(1, sizeof *hub);
    if (!hub) {
        return BT_ENOMEM;
    }
    const bt_status status = bt_wake_create(loop, deliver, hub, &hub->wake);
    if (status != BT_OK) {
        free(hub);
        return status;
    }
    *out = hub;
    return BT_OK;
}

void bt_kv_loopback_destroy(bt_kv_loopback *hub)
{
    if (!hub) {
        return;
    }
    BT_ASSERT(!hub->listeners);
    BT_ASSERT(!hub->conns);
    bt_wake_destroy(hub->wake);
    free(hub);
}

static bt_status loopback_listen(const bt_transport_env *env, bt_kv_peer *self, bt_accept_fn fn,
                                 void *ctx, bt_listener **out, bt_error *err)
{
    loop_listener *listener = calloc(1, sizeof *listener);
    if (!listener) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    listener->listener.ops = &bt_transport_loopback;
    listener->hub = env->loopback;
    listener->incarnation = self->incarnation;
    listener->fn = fn;
    listener->ctx = ctx;
    listener->next = env->loopback->listeners;
    env->loopback->listeners = listener;
    *out = &listener->listener;
    return BT_OK;
}

static void loopback_unlisten(bt_listener *base)
{
    loop_listener *listener = bt_container_of(base, loop_listener, listener);
    loop_listener **at = &listener->hub->listeners;
    while (*at != listener) {
        at = &(*at)->next;
    }
    *at = listener->next;
    free(listener);
}

static loop_conn *create_conn(bt_kv_loopback *hub)
{
    loop_conn *conn = calloc(1, sizeof *conn);
    if (conn) {
        conn->conn.ops = &bt_transport_loopback;
        conn->hub = hub;
    }
    return conn;
}

static bt_status loopback_connect(const bt_transport_env *env, const bt_kv_peer *peer,
                                  bt_conn **out, bt_error *err)
{
    bt_kv_loopback *hub = env->loopback;
    const loop_listener *listener = hub->listeners;
    while (listener && listener->incarnation != peer->incarnation) {
        listener = listener->next;
    }
    if (!listener) {
        return bt_error_set(err, BT_EPEER, "the peer is not in this process");
    }
    loop_conn *near = create_conn(hub);
    loop_conn *far = create_conn(hub);
    if (!near || !far) {
        free(near);
        free(far);
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    near->peer = far;
    far->peer = near;
    near->next = far;
    far->next = hub->conns;
    hub->conns = near;
    listener->fn(&far->conn, listener->ctx);
    *out = &near->conn;
    return BT_OK;
}

static bt_status loopback_start(bt_conn *base, bt_conn_fn fn, void *ctx)
{
    loop_conn *conn = conn_of(base);
    conn->fn = fn;
    conn->ctx = ctx;
    return BT_OK;
}

static void loopback_want(bt_conn *base, int events)
{
    loop_conn *conn = conn_of(base);
    conn->want = events;
    if (events_of(conn) != 0) {
        bt_wake_ring(conn->hub->wake);
    }
}

/* Copies in at most n bytes; returns how many fitted. */
static size_t ring_put(loop_conn *conn, const uint8_t *bytes, size_t n)
{
    const size_t len = bt_size_min(n, RING_BYTES - conn->rx_len);
    const size_t at = (conn->rx_pos + conn->rx_len) % RING_BYTES;
    const size_t first = bt_size_min(len, RING_BYTES - at);
    memcpy(conn->rx + at, bytes, first);
    memcpy(conn->rx, bytes + first, len - first);
    conn->rx_len += len;
    return len;
}

static size_t ring_take(loop_conn *conn, uint8_t *bytes, size_t n)
{
    const size_t len = bt_size_min(n, conn->rx_len);
    const size_t first = bt_size_min(len, RING_BYTES - conn->rx_pos);
    memcpy(bytes, conn->rx + conn->rx_pos, first);
    memcpy(bytes + first, conn->rx, len - first);
    conn->rx_pos = (conn->rx_pos + len) % RING_BYTES;
    conn->rx_len -= len;
    return len;
}

static bt_status loopback_send(bt_conn *base, const struct iovec *iov, size_t n, size_t *sent)
{
    loop_conn *conn = conn_of(base);
    if (!conn->peer) {
        return BT_EPEER;
    }
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t len = ring_put(conn->peer, iov[i].iov_base, iov[i].iov_len);
        sum += len;
        if (len < iov[i].iov_len) {
            break;
        }
    }
    if (sum == 0) {
        return BT_AGAIN;
    }
    bt_wake_ring(conn->hub->wake);
    *sent = sum;
    return BT_OK;
}

static bt_status loopback_recv(bt_conn *base, const struct iovec *iov, size_t n, size_t *got)
{
    loop_conn *conn = conn_of(base);
    size_t sum = 0;
    for (size_t i = 0; i < n && conn->rx_len > 0; i++) {
        sum += ring_take(conn, iov[i].iov_base, iov[i].iov_len);
    }
    if (sum == 0) {
        return conn->peer ? BT_AGAIN : BT_EPEER;
    }
    bt_wake_ring(conn->hub->wake);
    *got = sum;
    return BT_OK;
}

static void loopback_close(bt_conn *base)
{
    loop_conn *conn = conn_of(base);
    bt_kv_loopback *hub = conn->hub;
    conn->closed = true;
    if (conn->peer) {
        conn->peer->peer = NULL;
        conn->peer = NULL;
    }
    bt_wake_ring(hub->wake);
    if (!hub->delivering) {
        sweep(hub);
    }
}

static void loopback_sever(bt_conn *base)
{
    loop_conn *conn = conn_of(base);
    if (conn->peer) {
        conn->peer->peer = NULL;
        conn->peer = NULL;
    }
    bt_wake_ring(conn->hub->wake);
}

static bt_status loopback_post(bt_conn *base, uint32_t op, const struct iovec *iov, size_t n)
{
    loop_conn *conn = conn_of(base);
    BT_ASSERT(n > 0 && n <= BT_TRANSPORT_IOV_MAX);
    if (conn->n_posts == POSTS_MAX) {
        return BT_AGAIN;
    }
    posted *post = &conn->posts[conn->n_posts++];
    post->op = op;
    post->n = n;
    memcpy(post->iov, iov, n * sizeof *iov);
    return BT_OK;
}

static void remove_post(loop_conn *conn, size_t at)
{
    conn->n_posts--;
    memmove(&conn->posts[at], &conn->posts[at + 1], (conn->n_posts - at) * sizeof(posted));
}

static void loopback_unpost(bt_conn *base, uint32_t op)
{
    loop_conn *conn = conn_of(base);
    for (size_t i = 0; i < conn->n_posts; i++) {
        if (conn->posts[i].op == op) {
            remove_post(conn, i);
            return;
        }
    }
}

static size_t bytes_of(const struct iovec *iov, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += iov[i].iov_len;
    }
    return sum;
}

/* The pieces of both lists need not be the same, their sums are. */
static void copy_pieces(const posted *target, const struct iovec *source, size_t n)
{
    size_t t = 0;
    size_t t_at = 0;
    for (size_t s = 0; s < n; s++) {
        size_t s_at = 0;
        while (s_at < source[s].iov_len) {
            BT_ASSERT(t < target->n);
            const size_t len = bt_size_min(source[s].iov_len - s_at, target->iov[t].iov_len - t_at);
            memcpy((uint8_t *)target->iov[t].iov_base + t_at,
                   (const uint8_t *)source[s].iov_base + s_at, len);
            s_at += len;
            t_at += len;
            if (t_at == target->iov[t].iov_len) {
                t++;
                t_at = 0;
            }
        }
    }
}

static bt_status loopback_fill(bt_conn *base, uint32_t op, const struct iovec *iov, size_t n)
{
    loop_conn *target = conn_of(base)->peer;
    if (!target) {
        return BT_EPEER;
    }
    /* Ops are posted in order: one that is not there any more was unposted. */
    if (target->n_posts == 0 || target->posts[0].op > op) {
        return BT_OK;
    }
    const posted *post = &target->posts[0];
    if (post->op != op || bytes_of(post->iov, post->n) != bytes_of(iov, n)) {
        return BT_EPROTOCOL;
    }
    copy_pieces(post, iov, n);
    remove_post(target, 0);
    return BT_OK;
}

const bt_transport_ops bt_transport_loopback = {
    .name = "loopback",
    .id = BT_KV_TRANSPORT_LOOPBACK,
    .caps = BT_TRANSPORT_TWO_SIDED,
    .listen = loopback_listen,
    .unlisten = loopback_unlisten,
    .connect = loopback_connect,
    .start = loopback_start,
    .want = loopback_want,
    .send = loopback_send,
    .recv = loopback_recv,
    .close = loopback_close,
    .sever = loopback_sever,
    .post = loopback_post,
    .unpost = loopback_unpost,
    .fill = loopback_fill,
};
