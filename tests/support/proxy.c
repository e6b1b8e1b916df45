/* SPDX-License-Identifier: Apache-2.0 */
/* A connection is two ends, each with what it has read and the other has not yet taken. An end is
 * watched for reading while its buffer is empty, and for writing while the other's is not. */
#include "tests/support/proxy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/check.h"
#include "common/socket.h"

enum { BUFFER_BYTES = 65536 };

typedef struct link_end {
    struct connection *of;
    int fd;
    bt_watch *watch;
    bool ended; /* it sends no more */
    size_t pos, len;
    uint8_t bytes[BUFFER_BYTES];
} link_end;

typedef struct connection {
    bt_proxy *proxy;
    struct connection *next;
    link_end ends[2];
} connection;

struct bt_proxy {
    bt_loop *loop;
    int fd;
    bt_watch *watch;
    int port;
    int target_port;
    bool held;
    connection *connections;
};

static void must(bt_status status, const char *what)
{
    if (status != BT_OK) {
        fprintf(stderr, "proxy: %s: %s\n", what, bt_status_text(status));
        abort();
    }
}

static link_end *other(link_end *end)
{
    return &end->of->ends[end == &end->of->ends[0] ? 1 : 0];
}

static void watch_end(link_end *end)
{
    int events = 0;
    if (!end->of->proxy->held) {
        events |= !end->ended && end->len == 0 ? BT_WATCH_READ : 0;
        events |= other(end)->len > 0 ? BT_WATCH_WRITE : 0;
    }
    bt_watch_set(end->watch, events);
}

static void watch_both(connection *c)
{
    watch_end(&c->ends[0]);
    watch_end(&c->ends[1]);
}

static void close_connection(connection *c, bool reset)
{
    connection **at = &c->proxy->connections;
    while (*at != c) {
        at = &(*at)->next;
    }
    *at = c->next;
    for (int i = 0; i < 2; i++) {
        bt_watch_destroy(c->ends[i].watch);
        const struct linger none = {.l_onoff = 1, .l_linger = 0};
        if (reset) {
            (void)setsockopt(c->ends[i].fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        }
        bt_socket_close(c->ends[i].fd);
    }
    free(c);
}

/* False: the connection broke. */
static bool take(link_end *end)
{
    const ssize_t n = recv(end->fd, end->bytes, sizeof end->bytes, 0);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR || errno == ENOTCONN;
    }
    end->ended = n == 0;
    end->pos = 0;
    end->len = (size_t)n;
    return true;
}

static bool give(link_end *from, link_end *to)
{
    const ssize_t n = send(to->fd, from->bytes + from->pos, from->len, MSG_NOSIGNAL);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR || errno == ENOTCONN;
    }
    from->pos += (size_t)n;
    from->len -= (size_t)n;
    return true;
}

static void on_end(int fd, int events, void *ctx)
{
    (void)fd;
    link_end *end = ctx;
    link_end *peer = other(end);
    connection *c = end->of;
    bool well = true;
    if ((events & BT_WATCH_READ) && end->len == 0 && !end->ended) {
        well = take(end);
    }
    if (well && end->len > 0) {
        well = give(end, peer);
    }
    if (well && peer->len > 0 && (events & BT_WATCH_WRITE)) {
        well = give(peer, end);
    }
    /* Nothing here half-closes a connection to go on in one direction. */
    if (!well || (end->ended && end->len == 0) || (peer->ended && peer->len == 0)) {
        close_connection(c, !well);
        return;
    }
    watch_both(c);
}

static bool dial(int port, int *fd)
{
    char text[32];
    snprintf(text, sizeof text, "127.0.0.1:%d", port);
    bt_socket_address address;
    bt_error err;
    must(bt_socket_resolve(text, false, &address, &err), "resolve");
    return bt_socket_connect(&address, fd, &err) == BT_OK;
}

static bool open_connection(bt_proxy *proxy, int near, int far)
{
    connection *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return false;
    }
    c->proxy = proxy;
    const int fds[2] = {near, far};
    for (int i = 0; i < 2; i++) {
        link_end *end = &c->ends[i];
        end->of = c;
        end->fd = fds[i];
        if (bt_watch_create(proxy->loop, end->fd, on_end, end, &end->watch) != BT_OK) {
            bt_watch_destroy(c->ends[0].watch);
            free(c);
            return false;
        }
    }
    c->next = proxy->connections;
    proxy->connections = c;
    watch_both(c);
    return true;
}

static void on_accept(int fd, int events, void *ctx)
{
    (void)events;
    bt_proxy *proxy = ctx;
    int near;
    if (bt_socket_accept(fd, &near) != BT_OK) {
        return;
    }
    int far;
    if (proxy->target_port == 0 || !dial(proxy->target_port, &far)) {
        bt_socket_close(near);
        return;
    }
    if (!open_connection(proxy, near, far)) { /* memory is short: a fault like others */
        bt_socket_close(near);
        bt_socket_close(far);
    }
}

bt_proxy *bt_proxy_create(bt_loop *loop, int target_port)
{
    bt_proxy *proxy = calloc(1, sizeof *proxy);
    BT_ASSERT(proxy != NULL);
    proxy->loop = loop;
    proxy->target_port = target_port;
    bt_error err;
    must(bt_socket_listen("127.0.0.1:0", &proxy->fd, &err), "listen");
    proxy->port = bt_socket_port(proxy->fd);
    must(bt_watch_create(loop, proxy->fd, on_accept, proxy, &proxy->watch), "watch");
    bt_watch_set(proxy->watch, BT_WATCH_READ);
    return proxy;
}

int bt_proxy_port(const bt_proxy *proxy)
{
    return proxy->port;
}

void bt_proxy_set_target(bt_proxy *proxy, int target_port)
{
    proxy->target_port = target_port;
}

void bt_proxy_hold(bt_proxy *proxy, bool hold)
{
    proxy->held = hold;
    for (connection *c = proxy->connections; c != NULL; c = c->next) {
        watch_both(c);
    }
}

void bt_proxy_cut(bt_proxy *proxy)
{
    while (proxy->connections != NULL) {
        close_connection(proxy->connections, true);
    }
}

void bt_proxy_destroy(bt_proxy *proxy)
{
    if (proxy == NULL) {
        return;
    }
    bt_proxy_cut(proxy);
    bt_watch_destroy(proxy->watch);
    bt_socket_close(proxy->fd);
    free(proxy);
}
