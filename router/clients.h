/* SPDX-License-Identifier: Apache-2.0 */
/* clients.h - what each client has under way, for limits per client.
 *
 * A client is a name: that of its API key, or where the doors are open its address without the
 * port. It has an entry as long as one of its requests lives.
 *
 * Threading: loop thread only.
 * Memory:    create only; one entry for each request that may live.
 */
#ifndef BT_ROUTER_CLIENTS_H
#define BT_ROUTER_CLIENTS_H

#include "common/status.h"

enum { BT_ROUTER_CLIENT_NAME_MAX = 64 };

/* Read by others, changed by this module alone. */
typedef struct bt_router_client {
    char name[BT_ROUTER_CLIENT_NAME_MAX]; /* cut, for texts */
    uint32_t n_requests;
    uint64_t prompt_tokens; /* of its living requests */
    uint64_t bytes;         /* of their messages, and of replies that it has not read */
} bt_router_client;

typedef struct bt_router_clients bt_router_clients;

/* Room for `n_max` clients at a time. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_clients_create(uint32_t n_max, bt_router_clients **out);

/* NULL is allowed. */
void bt_router_clients_destroy(bt_router_clients *clients);

/* The entry of a name; NULL: it has nothing under way. */
const bt_router_client *bt_router_clients_find(const bt_router_clients *clients, const char *name);

/* One request more of this client. There is room: a client without requests has no entry. */
bt_router_client *bt_router_clients_acquire(bt_router_clients *clients, const char *name);

/* That request is gone; its tokens and bytes have been taken back. */
void bt_router_clients_release(bt_router_clients *clients, bt_router_client *client);

/* Differences, positive or negative. */
void bt_router_client_add_tokens(bt_router_client *client, int64_t tokens);
void bt_router_client_add_bytes(bt_router_client *client, int64_t bytes);

/* The host of a gRPC peer ("ipv4:10.0.0.1:4711" is "10.0.0.1"), borrowed from `buffer`. */
const char *bt_router_client_of_peer(const char *peer, char buffer[BT_ROUTER_CLIENT_NAME_MAX]);

#endif /* BT_ROUTER_CLIENTS_H */
