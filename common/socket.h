/* SPDX-License-Identifier: Apache-2.0 */
/* socket.h - nonblocking stream sockets on "host:port" and "unix:path"; descriptors over them.
 *
 * Addresses: "127.0.0.1:7000", "[::1]:7000", "worker-3:7000" (its IPv4 address if it has
 * one, so that "localhost" is the same for both ends), "*:7000" or ":7000" (all IPv4
 * interfaces; "[::]:7000": both kinds), "unix:/run/baton.sock", "unix:@name" (Linux's
 * abstract names: no file that stays behind). Port 0 takes a free one.
 *
 * All sockets are nonblocking and close on exec; TCP ones have Nagle's algorithm off.
 * SO_REUSEPORT is never set: two servers on one port must fail loudly.
 *
 * Threading: any thread; resolving a host name may block, so names belong to start or
 *            to the work pool. Nothing else blocks.
 * Memory:    none; the caller closes descriptors with bt_socket_close().
 */
#ifndef BT_COMMON_SOCKET_H
#define BT_COMMON_SOCKET_H

#include "common/status.h"

enum {
    BT_SOCKET_TEXT_BYTES = 160, /* room for any address as text */
    BT_SOCKET_BOOT_ID_BYTES = 37,
};

/* A resolved address. */
typedef struct bt_socket_address {
    BT_ALIGNED(8) unsigned char storage[128]; /* struct sockaddr_storage */
    uint32_t len;
} bt_socket_address;

/* `text` -> *out; `passive`: for listening ("*" and "" are allowed as host). BT_EINVAL:
 * no address; BT_ENOTFOUND: unknown host. */
BT_MUST_CHECK bt_status bt_socket_resolve(const char *text, bool passive, bt_socket_address *out,
                                          bt_error *err);

/* Whether `text` is written like an address; asks nobody what it means. BT_EINVAL. */
BT_MUST_CHECK bt_status bt_socket_check(const char *text, bt_error *err);

/* Back to text that bt_socket_resolve reads. */
void bt_socket_address_text(const bt_socket_address *address, char out[BT_SOCKET_TEXT_BYTES]);
bool bt_socket_address_is_unix(const bt_socket_address *address);

/* Whether only this host reaches `text`: a unix socket or a loopback address. False for "*" and
 * for what is no address. Resolves names. */
bool bt_socket_is_local(const char *text);

/* Listens. A unix socket's file gets mode 0600; a dead one is replaced. BT_EEXISTS: the port or
 * path is in use; BT_EPERMISSION; BT_EINVAL; BT_EIO. */
BT_MUST_CHECK bt_status bt_socket_listen(const char *text, int *fd, bt_error *err);

/* The port that a TCP socket is bound to; 0 for unix ones. */
int bt_socket_port(int fd);

/* The address that `fd` is bound to (peer false) or connected to (peer true). */
BT_MUST_CHECK bt_status bt_socket_address_of(int fd, bool peer, bt_socket_address *out);

/* BT_AGAIN: nobody is waiting. BT_EEXHAUSTED: no descriptor left, wait before the next
 * try. Connections that died in the queue are skipped. */
BT_MUST_CHECK bt_status bt_socket_accept(int listen_fd, int *fd);

/* Starts to connect; writable (or an error) says when it is done, then call
 * bt_socket_connect_result(). BT_EPEER: failed at once. */
BT_MUST_CHECK bt_status bt_socket_connect(const bt_socket_address *address, int *fd, bt_error *err);

/* BT_OK: connected. BT_AGAIN: not yet. BT_EPEER: failed, *err says why. */
BT_MUST_CHECK bt_status bt_socket_connect_result(int fd, bt_error *err);

/* Kernel buffers, as far as the system's limits let it. */
void bt_socket_set_buffers(int fd, size_t send_bytes, size_t recv_bytes);

/* ---- descriptors over connected unix sockets ---- */

/* Sends 1..n bytes with one descriptor attached (a copy: the caller keeps his). Bytes sent
 * go to *sent; the descriptor left with the first of them. BT_AGAIN: no room now. BT_EPEER. */
BT_MUST_CHECK bt_status bt_socket_send_fd(int sock, const void *bytes, size_t n, int fd,
                                          size_t *sent);

/* Receives up to n bytes and the descriptor that came with them, -1 if none did. The
 * caller owns *fd. *got 0: the peer closed. BT_AGAIN: nothing now. BT_EPEER.
 * BT_EPROTOCOL: more than one descriptor (all are closed). */
BT_MUST_CHECK bt_status bt_socket_recv_fd(int sock, void *bytes, size_t n, size_t *got, int *fd);

/* User of the process at the other end of a unix socket. BT_EINVAL: no unix socket. */
BT_MUST_CHECK bt_status bt_socket_peer_uid(int sock, uint32_t *uid);

/* Two connected unix sockets. */
BT_MUST_CHECK bt_status bt_socket_pair(int fds[2]);

void bt_socket_close(int fd); /* -1 is allowed */

/* This boot's id of the kernel: equal for processes that can share memory. BT_EIO. */
BT_MUST_CHECK bt_status bt_socket_boot_id(char out[BT_SOCKET_BOOT_ID_BYTES]);

#endif /* BT_COMMON_SOCKET_H */
