/* SPDX-License-Identifier: Apache-2.0 */
/* libmicrohttpd runs without a thread of its own: one thread here waits for its epoll descriptor
 * and for a bell, and makes all calls into it. So a connection is suspended and resumed by one
 * thread alone, and only the streams (http_stream.c) need a lock.
 *
 *   wait --> bell: resume the streams that have something --> MHD_run() --> look --> wait
 *
 * `look`, every LOOK_MS while there are connections, does what libmicrohttpd does not: a limit for
 * a head, a body and the rest of an answer as a whole (its own limit is one of silence, which a
 * byte now and then renews), and a look at the sockets of deferred requests, which it does not
 * watch while they are suspended. Whoever is to go is shut down at the socket; libmicrohttpd then
 * finds out by itself and cleans up.
 *
 * The listening socket is made by common/socket.h, for its errors, and belongs to
 * libmicrohttpd once the daemon runs. */
#include "common/http.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/http_int.h"
#include "common/socket.h"

enum {
    CONNECTIONS_MAX = 256,
    TIMEOUT_S = 10,
    PHASE_S = 60,
    HEAD_BYTES_MAX = 16 << 10,
    BODY_BYTES_MAX = 1 << 20,
    UNSENT_BYTES_MAX = 64 << 10,
    PEM_BYTES_MAX = 1 << 20,
    LOOK_MS = 200,
};

static const int64_t second_ns = 1000000000;

/* ----------------------------------------------------------------------------- create ---- */

static unsigned or_default(unsigned value, unsigned fallback)
{
    return value > 0 ? value : fallback;
}

static size_t or_default_size(size_t value, size_t fallback)
{
    return value > 0 ? value : fallback;
}

static void fill_defaults(bt_http_options *o)
{
    o->connections_max = or_default(o->connections_max, CONNECTIONS_MAX);
    o->connections_per_ip_max = or_default(o->connections_per_ip_max, o->connections_max);
    o->timeout_s = or_default(o->timeout_s, TIMEOUT_S);
    o->head_time_s = or_default(o->head_time_s, PHASE_S);
    o->body_time_s = or_default(o->body_time_s, PHASE_S);
    o->send_time_s = or_default(o->send_time_s, PHASE_S);
    o->head_bytes_max = or_default_size(o->head_bytes_max, HEAD_BYTES_MAX);
    o->body_bytes_max = or_default_size(o->body_bytes_max, BODY_BYTES_MAX);
    o->unsent_bytes_max = or_default_size(o->unsent_bytes_max, UNSENT_BYTES_MAX);
}

static bt_status read_pem(const char *path, char **out, bt_error *err)
{
    return path == NULL ? BT_OK : bt_file_read(path, PEM_BYTES_MAX, out, NULL, err);
}

static void free_pem(char *text)
{
    bt_file_free(text, text == NULL ? 0 : strlen(text));
}

static bt_status read_tls(bt_http_server *server, bt_error *err)
{
    const bt_http_options *o = &server->options;
    if ((o->tls_cert == NULL) != (o->tls_key == NULL) ||
        (o->tls_cert == NULL && o->tls_client_ca != NULL)) {
        return bt_error_set(err, BT_EINVAL, "TLS needs a certificate and its key");
    }
    bt_status status = read_pem(o->tls_cert, &server->tls_cert, err);
    if (status == BT_OK) {
        status = read_pem(o->tls_key, &server->tls_key, err);
    }
    if (status == BT_OK) {
        status = read_pem(o->tls_client_ca, &server->tls_client_ca, err);
    }
    return status;
}

static bt_status take_memory(bt_http_server *server)
{
    const size_t n = server->options.connections_max;
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->polls = calloc(n, sizeof *server->polls);
    server->polled = calloc(n, sizeof(bt_http_connection *));
    return server->wake_fd >= 0 && server->polls != NULL && server->polled != NULL ? BT_OK
                                                                                   : BT_ENOMEM;
}

bt_status bt_http_server_create(const bt_http_options *options, bt_http_server **out, bt_error *err)
{
    bt_socket_address address;
    bt_status status = bt_socket_resolve(options->address, true, &address, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "cannot serve HTTP");
        return status;
    }
    bt_http_server *server = calloc(1, sizeof *server);
    if (server == NULL || pthread_mutex_init(&server->mutex, NULL) != 0) {
        free(server);
        return bt_error_set(err, BT_ENOMEM, "cannot serve HTTP: out of memory");
    }
    server->options = *options;
    fill_defaults(&server->options);
    bt_http_link_init(&server->connections);
    bt_http_link_init(&server->awake);
    bt_http_link_init(&server->news);
    server->wake_fd = -1;
    server->address = strdup(options->address);
    status = server->address == NULL ? BT_ENOMEM : take_memory(server);
    if (status != BT_OK) {
        (void)bt_error_set(err, status, "out of memory");
    } else {
        status = read_tls(server, err);
    }
    server->options.address = server->address;
    if (status != BT_OK) {
        bt_error_prefix(err, "cannot serve HTTP");
        bt_http_server_destroy(server);
        return status;
    }
    *out = server;
    return BT_OK;
}

bt_status bt_http_server_handle(bt_http_server *server, const char *method, const char *path,
                                bt_http_handler handler, void *ctx)
{
    BT_ASSERT(!server->daemon);
    for (size_t i = 0; i < server->n_routes; i++) {
        const bt_http_route *r = &server->routes[i];
        if (strcmp(r->path, path) == 0 && strcmp(r->method, method) == 0) {
            return BT_EEXISTS;
        }
    }
    if (server->n_routes == BT_HTTP_ROUTES_MAX) {
        return BT_EEXHAUSTED;
    }
    server->routes[server->n_routes++] =
        (bt_http_route){.method = method, .path = path, .handler = handler, .ctx = ctx};
    return BT_OK;
}

int bt_http_server_port(const bt_http_server *server)
{
    return server->port;
}

/* ------------------------------------------------------------------------ connections ---- */

static void on_connection(void *ctx, struct MHD_Connection *mhd, void **slot,
                          enum MHD_ConnectionNotificationCode code)
{
    bt_http_server *server = ctx;
    bt_http_connection *connection = *slot;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        connection = calloc(1, sizeof *connection);
        *slot = connection;
        if (connection == NULL || info == NULL) {
            return; /* its first request ends it */
        }
        connection->mhd = mhd;
        connection->fd = info->connect_fd;
        bt_http_connection_enter(connection, BT_HTTP_PHASE_HEAD);
        bt_http_link_add(&server->connections, &connection->link);
        server->n_connections++;
    } else if (connection != NULL) {
        BT_ASSERT(connection->stream == NULL);
        bt_http_link_remove(&connection->link);
        server->n_connections--;
        free(connection);
        *slot = NULL;
    }
}

void bt_http_connection_enter(bt_http_connection *connection, bt_http_phase phase)
{
    connection->phase = phase;
    connection->since_ns = bt_clock_now_ns();
}

/* libmicrohttpd finds the socket closed, and a stream's parts look at `lost`. */
static void lose(bt_http_connection *connection)
{
    connection->lost = true;
    (void)shutdown(connection->fd, SHUT_RDWR);
    bt_http_connection_resume(connection);
}

static void look_at_times(bt_http_server *server, int64_t now_ns)
{
    const bt_http_options *o = &server->options;
    const int64_t limits_ns[] = {
        [BT_HTTP_PHASE_HEAD] = o->head_time_s * second_ns,
        [BT_HTTP_PHASE_BODY] = o->body_time_s * second_ns,
        [BT_HTTP_PHASE_DEFERRED] = INT64_MAX,
        [BT_HTTP_PHASE_SENDING] = o->send_time_s * second_ns,
    };
    for (bt_http_link *at = server->connections.next; at != &server->connections; at = at->next) {
        bt_http_connection *connection = bt_container_of(at, bt_http_connection, link);
        if (connection->phase == BT_HTTP_PHASE_DEFERRED && bt_http_stream_is_taken(connection)) {
            bt_http_connection_enter(connection, BT_HTTP_PHASE_SENDING);
        }
        if (!connection->lost && now_ns - connection->since_ns >= limits_ns[connection->phase]) {
            lose(connection);
        }
    }
}

/* Whether it matters that the client has gone: an answer to come has lost its reader, or a request
 * that is not complete will never be. What is being sent goes on: a client may say that it has no
 * more requests. */
static bool waits_for_client(const bt_http_connection *connection)
{
    return connection->stream != NULL || connection->phase == BT_HTTP_PHASE_HEAD ||
           connection->phase == BT_HTTP_PHASE_BODY;
}

/* The client said its last: no byte is left to read. */
static bool has_ended(const bt_http_connection *connection)
{
    char byte;
    return recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Whose client has gone. libmicrohttpd 0.9.75 sees that only while it reads, and over epoll does
 * not read again when the end came together with the last bytes: such a connection would stay
 * until its time is over. */
static void look_at_sockets(bt_http_server *server)
{
    nfds_t n = 0;
    for (bt_http_link *at = server->connections.next; at != &server->connections; at = at->next) {
        bt_http_connection *connection = bt_container_of(at, bt_http_connection, link);
        if (waits_for_client(connection) && !connection->lost) {
            server->polls[n] = (struct pollfd){.fd = connection->fd, .events = POLLRDHUP};
            server->polled[n++] = connection;
        }
    }
    if (n == 0 || poll(server->polls, n, 0) <= 0) {
        return;
    }
    for (nfds_t i = 0; i < n; i++) {
        bt_http_connection *connection = server->polled[i];
        if (server->polls[i].revents != 0 &&
            (connection->stream != NULL || has_ended(connection))) {
            lose(connection);
        }
    }
}

static void look(bt_http_server *server)
{
    const int64_t now_ns = bt_clock_now_ns();
    if (server->n_connections == 0 || now_ns < server->next_look_ns) {
        return;
    }
    server->next_look_ns = now_ns + LOOK_MS * (second_ns / 1000);
    look_at_times(server, now_ns);
    look_at_sockets(server);
}

/* ----------------------------------------------------------------------------- thread ---- */

void bt_http_server_wake(bt_http_server *server)
{
    if (!server->is_woken) {
        const uint64_t one = 1;
        server->is_woken = true;
        /* Fails only when the counter is full, and then it has been rung. */
        const ssize_t n = write(server->wake_fd, &one, sizeof one);
        (void)n;
    }
}

/* Idle connections need no haste: their limits are seconds. */
static int wait_ms(bt_http_server *server)
{
    MHD_UNSIGNED_LONG_LONG mhd_ms;
    int ms = server->n_connections == 0 ? -1 : LOOK_MS * (server->n_deferred > 0 ? 1 : 5);
    if (MHD_get_timeout(server->daemon, &mhd_ms) == MHD_YES &&
        (ms < 0 || mhd_ms < (MHD_UNSIGNED_LONG_LONG)ms)) {
        ms = mhd_ms > 60000 ? 60000 : (int)mhd_ms;
    }
    return ms;
}

/* Takes what was left; false: stop. */
static bool take_wake(bt_http_server *server)
{
    uint64_t count;
    const ssize_t n = read(server->wake_fd, &count, sizeof count);
    (void)n;
    pthread_mutex_lock(&server->mutex);
    server->is_woken = false;
    bt_http_streams_resume(server);
    const bool stopping = server->stopping;
    pthread_mutex_unlock(&server->mutex);
    return !stopping;
}

static void *serve(void *ctx)
{
    bt_http_server *server = ctx;
    for (;;) {
        struct pollfd polls[] = {
            {.fd = server->epoll_fd, .events = POLLIN},
            {.fd = server->wake_fd, .events = POLLIN},
        };
        (void)poll(polls, BT_ARRAY_LEN(polls), wait_ms(server));
        if (polls[1].revents != 0 && !take_wake(server)) {
            break;
        }
        (void)MHD_run(server->daemon); /* fails for want of memory or descriptors: again later */
        look(server);
    }
    /* libmicrohttpd can't be stopped while something is suspended. */
    for (bt_http_link *at = server->connections.next; at != &server->connections; at = at->next) {
        bt_http_connection *connection = bt_container_of(at, bt_http_connection, link);
        connection->lost = true;
        bt_http_connection_resume(connection);
    }
    return NULL;
}

static bt_status start_thread(bt_http_server *server)
{
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    /* Signals are the loop's, SIGPIPE nobody's. */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&server->thread, NULL, serve, server);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    server->running = failed == 0;
    return failed == 0 ? BT_OK : BT_ENOMEM;
}

static void start_daemon(bt_http_server *server, int fd)
{
    /* GnuTLS still speaks the two that RFC 8996 forbids. */
    static const char priorities[] = "NORMAL:-VERS-TLS1.0:-VERS-TLS1.1";
    const bt_http_options *o = &server->options;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)priorities},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, server->tls_cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, server->tls_key},
        {server->tls_client_ca != NULL ? MHD_OPTION_HTTPS_MEM_TRUST : MHD_OPTION_END, 0,
         server->tls_client_ca},
        {MHD_OPTION_END, 0, NULL},
    };
    if (server->tls_cert == NULL) {
        tls[0].option = MHD_OPTION_END;
    }
    const unsigned flags = (unsigned)MHD_USE_EPOLL | (unsigned)MHD_ALLOW_SUSPEND_RESUME |
                           (server->tls_cert != NULL ? (unsigned)MHD_USE_TLS : 0U);
    /* clang-format off */
    server->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, bt_http_on_access, server,
        MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd,
        MHD_OPTION_CONNECTION_LIMIT, o->connections_max,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, o->connections_per_ip_max,
        MHD_OPTION_CONNECTION_TIMEOUT, o->timeout_s,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, o->head_bytes_max,
        MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_NOTIFY_COMPLETED, bt_http_on_completed, server,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server,
        MHD_OPTION_ARRAY, tls,
        MHD_OPTION_END);
    /* clang-format on */
}

bt_status bt_http_server_start(bt_http_server *server, bt_error *err)
{
    BT_ASSERT(!server->daemon);
    int fd;
    bt_status status = bt_socket_listen(server->address, &fd, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "cannot serve HTTP");
        return status;
    }
    server->port = bt_socket_port(fd);
    start_daemon(server, fd);
    if (server->daemon == NULL) {
        bt_socket_close(fd);
        status = server->tls_cert != NULL ? BT_EINVAL : BT_EIO;
        return bt_error_set(err, status, "cannot serve HTTP on %s: %s", server->address,
                            status == BT_EINVAL ? "certificate and key can't be used"
                                                : "the server did not start");
    }
    server->epoll_fd = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    status = start_thread(server);
    if (status != BT_OK) {
        return bt_error_set(err, status, "cannot serve HTTP on %s: no thread", server->address);
    }
    return BT_OK;
}

/* ------------------------------------------------------------------------------- stop ---- */

size_t bt_http_server_pending(bt_http_server *server)
{
    pthread_mutex_lock(&server->mutex);
    const size_t n = server->n_streams;
    pthread_mutex_unlock(&server->mutex);
    return n;
}

void bt_http_server_stop(bt_http_server *server)
{
    if (server->running) {
        pthread_mutex_lock(&server->mutex);
        server->stopping = true;
        bt_http_server_wake(server);
        pthread_mutex_unlock(&server->mutex);
        (void)pthread_join(server->thread, NULL);
        server->running = false;
    }
    if (server->daemon != NULL) {
        MHD_stop_daemon(server->daemon);
        server->daemon = NULL;
    }
}

void bt_http_server_destroy(bt_http_server *server)
{
    if (server == NULL) {
        return;
    }
    bt_http_server_stop(server);
    BT_ASSERT(server->n_streams == 0);
    if (server->wake_fd >= 0) {
        (void)close(server->wake_fd);
    }
    free(server->polls);
    free(server->polled);
    free_pem(server->tls_cert);
    free_pem(server->tls_key);
    free_pem(server->tls_client_ca);
    free(server->address);
    (void)pthread_mutex_destroy(&server->mutex);
    free(server);
}
