/* SPDX-License-Identifier: Apache-2.0 */
/* A map from a keyed hash of the name to an entry; free entries form a stack. */
#include "router/clients.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/hash.h"
#include "common/map.h"

typedef struct entry {
    bt_router_client client; /* first: an entry is found from it */
    bt_hash128 key;
    struct entry *next_free;
} entry;

struct bt_router_clients {
    bt_hash_key secret; /* names are chosen by outsiders */
    bt_map128 *by_name;
    entry *entries; /* [n_max] */
    entry *free_first;
};

bt_status bt_router_clients_create(uint32_t n_max, bt_router_clients **out)
{
    bt_router_clients *clients = calloc(1, sizeof *clients);
    if (clients == NULL) {
        return BT_ENOMEM;
    }
    bt_hash_random(&clients->secret, sizeof clients->secret);
    clients->entries = calloc(n_max, sizeof *clients->entries);
    if (clients->entries == NULL || bt_map128_create(n_max, &clients->by_name) != BT_OK) {
        bt_router_clients_destroy(clients);
        return BT_ENOMEM;
    }
    for (uint32_t i = n_max; i-- > 0;) {
        clients->entries[i].next_free = clients->free_first;
        clients->free_first = &clients->entries[i];
    }
    *out = clients;
    return BT_OK;
}

void bt_router_clients_destroy(bt_router_clients *clients)
{
    if (clients == NULL) {
        return;
    }
    bt_map128_destroy(clients->by_name);
    free(clients->entries);
    free(clients);
}

static bt_hash128 key_of(const bt_router_clients *clients, const char *name)
{
    return bt_hash128_of(&clients->secret, name, strlen(name));
}

static entry *find(const bt_router_clients *clients, bt_hash128 key)
{
    uint64_t value = 0;
    return bt_map128_get(clients->by_name, key, &value) ? bt_map_to_ptr(value) : NULL;
}

const bt_router_client *bt_router_clients_find(const bt_router_clients *clients, const char *name)
{
    const entry *e = find(clients, key_of(clients, name));
    return e == NULL ? NULL : &e->client;
}

bt_router_client *bt_router_clients_acquire(bt_router_clients *clients, const char *name)
{
    const bt_hash128 key = key_of(clients, name);
    entry *e = find(clients, key);
    if (e == NULL) {
        e = clients->free_first;
        BT_ASSERT(e != NULL); /* as many as requests */
        clients->free_first = e->next_free;
        *e = (entry){.key = key};
        snprintf(e->client.name, sizeof e->client.name, "%s", name);
        const bt_status status = bt_map128_put(clients->by_name, key, bt_map_of_ptr(e));
        BT_ASSERT(status == BT_OK);
    }
    e->client.n_requests++;
    return &e->client;
}

void bt_router_clients_release(bt_router_clients *clients, bt_router_client *client)
{
    BT_ASSERT(client->n_requests > 0);
    client->n_requests--;
    if (client->n_requests > 0) {
        return;
    }
    BT_ASSERT(client->prompt_tokens == 0);
    BT_ASSERT(client->bytes == 0);
    entry *e = (entry *)(void *)client;
    const bool removed = bt_map128_remove(clients->by_name, e->key, NULL);
    BT_ASSERT(removed);
    e->next_free = clients->free_first;
    clients->free_first = e;
}

static void add(uint64_t *value, int64_t change)
{
    BT_ASSERT(change >= 0 || *value >= (uint64_t)-change);
    *value += (uint64_t)change;
}

void bt_router_client_add_tokens(bt_router_client *client, int64_t tokens)
{
    add(&client->prompt_tokens, tokens);
}

void bt_router_client_add_bytes(bt_router_client *client, int64_t bytes)
{
    add(&client->bytes, bytes);
}

/* gRPC writes an IPv6 address's brackets as an URI does: "ipv6:%5B::1%5D:4711". */
const char *bt_router_client_of_peer(const char *peer, char buffer[BT_ROUTER_CLIENT_NAME_MAX])
{
    const char *host =
        strncmp(peer, "ipv4:", 5) == 0 || strncmp(peer, "ipv6:", 5) == 0 ? peer + 5 : peer;
    char *to = buffer;
    for (const char *at = host; *at != '\0' && to < buffer + BT_ROUTER_CLIENT_NAME_MAX - 1; to++) {
        const bool opens = strncmp(at, "%5B", 3) == 0;
        const bool is_bracket = opens || strncmp(at, "%5D", 3) == 0;
        *to = !is_bracket ? *at : opens ? '[' : ']';
        at += is_bracket ? 3 : 1;
    }
    *to = '\0';
    char *port = host == peer ? NULL : strrchr(buffer, ':');
    if (port != NULL) {
        *port = '\0';
    }
    return buffer;
}
