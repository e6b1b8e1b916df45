/* SPDX-License-Identifier: Apache-2.0 */
/* proxy.h - a TCP connection's weather: stands between two ends of this host and breaks things.
 *
 * Listens on a port of its own and passes bytes on, both ways, to a target port. Told to, it holds
 * them (a stalled network, or a peer that is stopped), cuts every connection (with a reset), and
 * turns new ones away.
 *
 * Threading: loop thread only.
 * Memory:    one heap object for each connection; for tests. A failure aborts the program.
 */
#ifndef BT_TESTS_SUPPORT_PROXY_H
#define BT_TESTS_SUPPORT_PROXY_H

#include "common/loop.h"

typedef struct bt_proxy bt_proxy;

/* target_port 0: nobody is there yet. */
bt_proxy *bt_proxy_create(bt_loop *loop, int target_port);
int bt_proxy_port(const bt_proxy *proxy);

/* Where later connections go; 0: they are turned away. */
void bt_proxy_set_target(bt_proxy *proxy, int target_port);

/* No byte moves while held; connections stay, and new ones are taken. */
void bt_proxy_hold(bt_proxy *proxy, bool hold);

/* Resets every connection. */
void bt_proxy_cut(bt_proxy *proxy);

/* Cuts. NULL is allowed. */
void bt_proxy_destroy(bt_proxy *proxy);

#endif /* BT_TESTS_SUPPORT_PROXY_H */
