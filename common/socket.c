/* SPDX-License-Identifier: Apache-2.0 */
/* Plain system calls; an errno becomes a status here and a text for the person who
 * wrote the address.
 *
 * Unix socket files are for their user alone: fchmod() on the socket before bind() decides the
 * file's mode on Linux, so that it never is another one, whatever the umask.
 *
 * They outlive their servers. Before binding over one, listen() connects
 * to it: refused means that nobody serves it, and only then it is removed. */
#include "common/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <arpa/inet.h>

#include "common/check.h"

enum {
    BACKLOG = 512,
    HOST_BYTES_MAX = 256,
    FDS_MAX = 8, /* descriptors of one message that are looked at, to close them */
};

_Static_assert(sizeof((bt_socket_address){0}.storage) >= sizeof(struct sockaddr_storage), "size");

static const char unix_prefix[] = "unix:";

static struct sockaddr *sockaddr_of(const bt_socket_address *address)
{
    return (struct sockaddr *)(void *)(uintptr_t)address->storage;
}

bool bt_socket_address_is_unix(const bt_socket_address *address)
{
    return sockaddr_of(address)->sa_family == AF_UNIX;
}

/* ---- text to address and back ---- */

static bt_status resolve_unix(const char *path, bt_socket_address *out, bt_error *err)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    const size_t len = strlen(path);
    if (len == 0 || strcmp(path, "@") == 0) {
        return bt_error_set(err, BT_EINVAL, "'unix:%s' has no path", path);
    }
    if (len >= sizeof un.sun_path) {
        return bt_error_set(err, BT_EINVAL,
                            "the path of a unix socket has %zu bytes, at most %zu "
                            "are possible",
                            len, sizeof un.sun_path - 1);
    }
    memcpy(un.sun_path, path, len);
    size_t address_len = offsetof(struct sockaddr_un, sun_path) + len;
    if (path[0] == '@') {
        un.sun_path[0] = '\0'; /* an abstract name is as long as the address says */
    } else {
        address_len++;
    }
    memset(out, 0, sizeof *out);
    memcpy(out->storage, &un, sizeof un);
    out->len = (uint32_t)address_len;
    return BT_OK;
}

/* Splits "host:port"; an IPv6 address stands in brackets. */
static bt_status split(const char *text, char host[HOST_BYTES_MAX], const char **port,
                       bt_error *err)
{
    const char *colon = strrchr(text, ':');
    const char *start = text;
    const char *end = colon;
    if (colon && text[0] == '[') {
        start = text + 1;
        end = colon > text + 1 && colon[-1] == ']' ? colon - 1 : NULL;
    } else if (colon && memchr(text, ':', (size_t)(colon - text))) {
        return bt_error_set(err, BT_EINVAL,
                            "'%s' is no address. Write an IPv6 address in brackets: [::1]:7000.",
                            text);
    }
    if (!end || (size_t)(end - start) >= HOST_BYTES_MAX) {
        return bt_error_set(err, BT_EINVAL,
                            "'%s' is no address. Write HOST:PORT or unix:PATH, like "
                            "127.0.0.1:7000.",
                            text);
    }
    memcpy(host, start, (size_t)(end - start));
    host[end - start] = '\0';
    *port = colon + 1;
    const size_t digits = strspn(*port, "0123456789");
    if (digits == 0 || digits > 5 || (*port)[digits] != '\0' || strtoul(*port, NULL, 10) > 65535) {
        return bt_error_set(err, BT_EINVAL,
                            "'%s' is no address: the port is a number from 0 to "
                            "65535",
                            text);
    }
    return BT_OK;
}

bt_status bt_socket_check(const char *text, bt_error *err)
{
    bt_socket_address address;
    if (strncmp(text, unix_prefix, strlen(unix_prefix)) == 0) {
        return resolve_unix(text + strlen(unix_prefix), &address, err);
    }
    char host[HOST_BYTES_MAX];
    const char *port = NULL;
    return split(text, host, &port, err);
}

bt_status bt_socket_resolve(const char *text, bool passive, bt_socket_address *out, bt_error *err)
{
    if (strncmp(text, unix_prefix, strlen(unix_prefix)) == 0) {
        return resolve_unix(text + strlen(unix_prefix), out, err);
    }
    char host[HOST_BYTES_MAX];
    const char *port = NULL;
    const bt_status status = split(text, host, &port, err);
    if (status != BT_OK) {
        return status;
    }
    const bool any = host[0] == '\0' || strcmp(host, "*") == 0;
    if (any && !passive) {
        return bt_error_set(err, BT_EINVAL, "'%s' has no host to connect to", text);
    }
    const struct addrinfo hints = {
        .ai_family = any ? AF_INET : AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0),
    };
    struct addrinfo *found = NULL;
    const int rc = getaddrinfo(any ? NULL : host, port, &hints, &found);
    if (rc != 0) {
        return bt_error_set(err, BT_ENOTFOUND, "cannot find host '%s': %s", host,
                            rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    }
    const struct addrinfo *chosen = found;
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        if (at->ai_family == AF_INET) {
            chosen = at;
            break;
        }
    }
    memset(out, 0, sizeof *out);
    memcpy(out->storage, chosen->ai_addr, chosen->ai_addrlen);
    out->len = chosen->ai_addrlen;
    freeaddrinfo(found);
    return BT_OK;
}

bool bt_socket_is_local(const char *text)
{
    bt_socket_address address;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    if (bt_socket_resolve(text, true, &address, NULL) != BT_OK) {
        return false;
    }
    switch (sockaddr_of(&address)->sa_family) {
    case AF_UNIX:
        return true;
    case AF_INET:
        memcpy(&in, address.storage, sizeof in);
        return ntohl(in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    case AF_INET6:
        memcpy(&in6, address.storage, sizeof in6);
        return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) ||
               (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) &&
                in6.sin6_addr.s6_addr[12] == IN_LOOPBACKNET);
    default:
        return false;
    }
}

void bt_socket_address_text(const bt_socket_address *address, char out[BT_SOCKET_TEXT_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr *sa = sockaddr_of(address);
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address->storage, sizeof in);
        (void)inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
        (void)snprintf(out, BT_SOCKET_TEXT_BYTES, "%s:%u", host, ntohs(in.sin_port));
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, address->storage, sizeof in6);
        (void)inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof host);
        (void)snprintf(out, BT_SOCKET_TEXT_BYTES, "[%s]:%u", host, ntohs(in6.sin6_port));
    } else if (sa->sa_family == AF_UNIX && address->len > offsetof(struct sockaddr_un, sun_path)) {
        struct sockaddr_un un;
        memcpy(&un, address->storage, sizeof un);
        const bool abstract = un.sun_path[0] == '\0';
        const size_t len = address->len - offsetof(struct sockaddr_un, sun_path);
        (void)snprintf(out, BT_SOCKET_TEXT_BYTES, "unix:%s%.*s", abstract ? "@" : "",
                       (int)(abstract ? len - 1 : len), un.sun_path + abstract);
    } else {
        (void)snprintf(out, BT_SOCKET_TEXT_BYTES, "unix:?");
    }
}

bt_status bt_socket_address_of(int fd, bool peer, bt_socket_address *out)
{
    bt_socket_address address;
    memset(&address, 0, sizeof address);
    socklen_t len = sizeof address.storage;
    const int rc = peer ? getpeername(fd, sockaddr_of(&address), &len)
                        : getsockname(fd, sockaddr_of(&address), &len);
    if (rc != 0) {
        return BT_EIO;
    }
    address.len = len;
    *out = address;
    return BT_OK;
}

int bt_socket_port(int fd)
{
    bt_socket_address address;
    if (bt_socket_address_of(fd, false, &address) != BT_OK) {
        return 0;
    }
    if (sockaddr_of(&address)->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address.storage, sizeof in);
        return ntohs(in.sin_port);
    }
    if (sockaddr_of(&address)->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, address.storage, sizeof in6);
        return ntohs(in6.sin6_port);
    }
    return 0;
}

/* ---- listen, accept, connect ---- */

static int open_socket(const bt_socket_address *address)
{
    return socket(sockaddr_of(address)->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

static void set_no_delay(int fd, const bt_socket_address *address)
{
    if (!bt_socket_address_is_unix(address)) {
        const int on = 1;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
}

/* Removes a socket file that nobody serves. false: somebody does, or it is no socket. */
static bool remove_dead(const bt_socket_address *address)
{
    struct sockaddr_un un;
    struct stat st;
    memcpy(&un, address->storage, sizeof un);
    if (un.sun_path[0] == '\0' || lstat(un.sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) {
        return false;
    }
    const int fd = open_socket(address);
    if (fd < 0) {
        return false;
    }
    const bool dead = connect(fd, sockaddr_of(address), address->len) != 0 && errno == ECONNREFUSED;
    (void)close(fd);
    return dead && unlink(un.sun_path) == 0;
}

static bt_status listen_failed(const char *text, int error, bt_error *err)
{
    switch (error) {
    case EADDRINUSE:
        return bt_error_set(err, BT_EEXISTS,
                            "cannot listen on %s: it is in use. Stop the other server or take "
                            "another address (port 0 takes a free one).",
                            text);
    case EACCES:
    case EPERM:
        return bt_error_set(err, BT_EPERMISSION, "cannot listen on %s: permission denied", text);
    case EADDRNOTAVAIL:
        return bt_error_set(err, BT_EINVAL,
                            "cannot listen on %s: this host does not have that address", text);
    case ENOENT:
        return bt_error_set(err, BT_EINVAL, "cannot listen on %s: its folder does not exist", text);
    default:
        return bt_error_set(err, BT_EIO, "cannot listen on %s: %s", text, strerror(error));
    }
}

bt_status bt_socket_listen(const char *text, int *fd, bt_error *err)
{
    bt_socket_address address;
    const bt_status status = bt_socket_resolve(text, true, &address, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "cannot listen on %s", text);
        return status;
    }
    const int sock = open_socket(&address);
    if (sock < 0) {
        return listen_failed(text, errno, err);
    }
    const bool is_unix = bt_socket_address_is_unix(&address);
    if (!is_unix) {
        /* On Linux this lets a restart bind over connections in TIME_WAIT, never over
         * another listener. */
        const int on = 1;
        (void)setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    }
    if (is_unix && fchmod(sock, S_IRUSR | S_IWUSR) != 0) {
        const int error = errno;
        (void)close(sock);
        return listen_failed(text, error, err);
    }
    int rc = bind(sock, sockaddr_of(&address), address.len);
    if (rc != 0 && errno == EADDRINUSE && is_unix) {
        rc = remove_dead(&address) ? bind(sock, sockaddr_of(&address), address.len) : -1;
        if (rc != 0) {
            errno = EADDRINUSE;
        }
    }
    if (rc != 0 || listen(sock, BACKLOG) != 0) {
        const int error = errno;
        (void)close(sock);
        return listen_failed(text, error, err);
    }
    *fd = sock;
    return BT_OK;
}

bt_status bt_socket_accept(int listen_fd, int *fd)
{
    for (;;) {
        bt_socket_address peer;
        socklen_t len = sizeof peer.storage;
        const int sock = accept4(listen_fd, sockaddr_of(&peer), &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (sock >= 0) {
            set_no_delay(sock, &peer);
            *fd = sock;
            return BT_OK;
        }
        switch (errno) {
        case EAGAIN:
            return BT_AGAIN;
        case EMFILE:
        case ENFILE:
        case ENOBUFS:
        case ENOMEM:
            return BT_EEXHAUSTED;
        case EBADF:
        case EINVAL:
        case ENOTSOCK:
        case EOPNOTSUPP:
        case EFAULT:
            return BT_EINVAL;
        default:
            break; /* EINTR, or the connection died while it waited: look at the next */
        }
    }
}

static bt_status connect_failed(const bt_socket_address *address, int error, bt_error *err)
{
    char text[BT_SOCKET_TEXT_BYTES];
    bt_socket_address_text(address, text);
    return bt_error_set(err, BT_EPEER, "cannot connect to %s: %s", text, strerror(error));
}

bt_status bt_socket_connect(const bt_socket_address *address, int *fd, bt_error *err)
{
    const int sock = open_socket(address);
    if (sock < 0) {
        return connect_failed(address, errno, err);
    }
    set_no_delay(sock, address);
    int rc;
    do {
        rc = connect(sock, sockaddr_of(address), address->len);
    } while (rc != 0 && errno == EINTR);
    /* A unix server whose queue is full says EAGAIN, and no event would follow. */
    if (rc != 0 && errno != EINPROGRESS) {
        const int error = errno;
        (void)close(sock);
        return connect_failed(address, error, err);
    }
    *fd = sock;
    return BT_OK;
}

bt_status bt_socket_connect_result(int fd, bt_error *err)
{
    int error = 0;
    socklen_t len = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) {
        return bt_error_set(err, BT_EPEER, "cannot connect: %s", strerror(errno));
    }
    if (error != 0) {
        return bt_error_set(err, BT_EPEER, "cannot connect: %s", strerror(error));
    }
    bt_socket_address peer;
    return bt_socket_address_of(fd, true, &peer) == BT_OK ? BT_OK : BT_AGAIN;
}

void bt_socket_set_buffers(int fd, size_t send_bytes, size_t recv_bytes)
{
    const int send_size = (int)bt_size_min(send_bytes, 1 << 30);
    const int recv_size = (int)bt_size_min(recv_bytes, 1 << 30);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_size, sizeof send_size);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &recv_size, sizeof recv_size);
}

/* ---- descriptors ---- */

static bt_status transfer_failed(void)
{
    return errno == EAGAIN ? BT_AGAIN : BT_EPEER;
}

bt_status bt_socket_send_fd(int sock, const void *bytes, size_t n, int fd, size_t *sent)
{
    BT_ASSERT(n > 0);
    union {
        struct cmsghdr align;
        unsigned char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes,
    };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    ssize_t rc;
    do {
        rc = sendmsg(sock, &message, MSG_NOSIGNAL);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        return transfer_failed();
    }
    *sent = (size_t)rc;
    return BT_OK;
}

bt_status bt_socket_recv_fd(int sock, void *bytes, size_t n, size_t *got, int *fd)
{
    union {
        struct cmsghdr align;
        unsigned char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec part = {.iov_base = bytes, .iov_len = n};
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes,
    };
    ssize_t rc;
    do {
        rc = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        return transfer_failed();
    }
    int fds[FDS_MAX];
    size_t n_fds = 0;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && n_fds < FDS_MAX; i++) {
            memcpy(&fds[n_fds++], CMSG_DATA(head) + i * sizeof(int), sizeof(int));
        }
    }
    /* The kernel closes those that did not fit and says so with MSG_CTRUNC. */
    if (n_fds > 1 || message.msg_flags & MSG_CTRUNC) {
        for (size_t i = 0; i < n_fds; i++) {
            (void)close(fds[i]);
        }
        return BT_EPROTOCOL;
    }
    *got = (size_t)rc;
    *fd = n_fds == 1 ? fds[0] : -1;
    return BT_OK;
}

bt_status bt_socket_peer_uid(int sock, uint32_t *uid)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    bt_socket_address address;
    if (bt_socket_address_of(sock, false, &address) != BT_OK ||
        !bt_socket_address_is_unix(&address) ||
        getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0) {
        return BT_EINVAL;
    }
    *uid = peer.uid;
    return BT_OK;
}

bt_status bt_socket_pair(int fds[2])
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
        return errno == EMFILE || errno == ENFILE ? BT_EEXHAUSTED : BT_EIO;
    }
    fds[0] = pair[0];
    fds[1] = pair[1];
    return BT_OK;
}

void bt_socket_close(int fd)
{
    if (fd >= 0) {
        (void)close(fd);
    }
}

bt_status bt_socket_boot_id(char out[BT_SOCKET_BOOT_ID_BYTES])
{
    char text[BT_SOCKET_BOOT_ID_BYTES] = "";
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return BT_EIO;
    }
    const ssize_t n = read(fd, text, sizeof text - 1);
    (void)close(fd);
    if (n != BT_SOCKET_BOOT_ID_BYTES - 1) {
        return BT_EIO;
    }
    memcpy(out, text, sizeof text);
    return BT_OK;
}
