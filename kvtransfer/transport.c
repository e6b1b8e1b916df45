/* SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/transport.h"

#include <string.h>

#include "common/hash.h"
#include "common/socket.h"

static const struct {
    const char *name;
    bt_kv_transport id;
} names[] = {
    {"auto", BT_KV_TRANSPORT_AUTO},
    {"shm", BT_KV_TRANSPORT_SHM},
    {"tcp", BT_KV_TRANSPORT_TCP},
    {"loopback", BT_KV_TRANSPORT_LOOPBACK},
};

const char *bt_kv_transport_name(bt_kv_transport transport)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(names); i++) {
        if (names[i].id == transport) {
            return names[i].name;
        }
    }
    return "?";
}

bool bt_kv_transport_parse(const char *name, bt_kv_transport *out)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(names); i++) {
        if (strcmp(names[i].name, name) == 0) {
            *out = names[i].id;
            return true;
        }
    }
    return false;
}

const char *bt_kv_auth_name(bt_kv_auth auth)
{
    static const char *const auth_names[] = {
        [BT_KV_AUTH_AUTO] = "auto",
        [BT_KV_AUTH_FRAMES] = "frames",
        [BT_KV_AUTH_FULL] = "full",
    };
    return (size_t)auth < BT_ARRAY_LEN(auth_names) ? auth_names[auth] : "?";
}

bt_kv_auth bt_transport_auth(bt_kv_auth wish, const char *tcp_address)
{
    if (wish != BT_KV_AUTH_AUTO) {
        return wish;
    }
    return bt_socket_is_local(tcp_address) ? BT_KV_AUTH_FRAMES : BT_KV_AUTH_FULL;
}

static bool is_zero(const uint8_t boot_id[BT_KV_BOOT_ID_BYTES])
{
    static const uint8_t zero[BT_KV_BOOT_ID_BYTES];
    return memcmp(boot_id, zero, sizeof zero) == 0;
}

static bool is_same_host(const bt_transport_choice *choice, const bt_kv_peer *peer)
{
    return !is_zero(choice->boot_id) &&
           memcmp(choice->boot_id, peer->boot_id, BT_KV_BOOT_ID_BYTES) == 0;
}

static bool may_use(const bt_transport_choice *choice, bt_kv_transport transport)
{
    return choice->pin == BT_KV_TRANSPORT_AUTO || choice->pin == transport;
}

size_t bt_transport_choose(const bt_transport_choice *choice, const bt_kv_peer *peer,
                           const bt_transport_ops *ops[3], bt_error *err)
{
    size_t n = 0;
    if (may_use(choice, BT_KV_TRANSPORT_LOOPBACK) && choice->has_loopback) {
        ops[n++] = &bt_transport_loopback;
    }
    const bool shm_allowed = choice->pin == BT_KV_TRANSPORT_SHM || !choice->no_shm;
    if (may_use(choice, BT_KV_TRANSPORT_SHM) && shm_allowed && peer->shm[0] != '\0' &&
        is_same_host(choice, peer)) {
        ops[n++] = &bt_transport_shm;
    }
    if (may_use(choice, BT_KV_TRANSPORT_TCP) && peer->tcp[0] != '\0') {
        ops[n++] = &bt_transport_tcp;
    }
    if (n == 0) {
        (void)bt_error_set(err, BT_EINVAL,
                           "no KV transport reaches the peer (pinned: %s; its tcp '%s', shm '%s', "
                           "%s host). Give it a KV address, or do not pin the transport.",
                           bt_kv_transport_name(choice->pin), peer->tcp, peer->shm,
                           is_same_host(choice, peer) ? "same" : "another");
    }
    return n;
}

void bt_transport_boot_id(uint8_t boot_id[BT_KV_BOOT_ID_BYTES])
{
    char text[BT_SOCKET_BOOT_ID_BYTES];
    char hex[2 * BT_KV_BOOT_ID_BYTES + 1];
    size_t n = 0;
    memset(boot_id, 0, BT_KV_BOOT_ID_BYTES);
    if (bt_socket_boot_id(text) != BT_OK) {
        return;
    }
    for (const char *c = text; *c != '\0' && n + 1 < sizeof hex; c++) {
        if (*c != '-') {
            hex[n++] = *c;
        }
    }
    hex[n] = '\0';
    uint8_t bytes[BT_KV_BOOT_ID_BYTES];
    if (bt_hash_unhex(hex, bytes, sizeof bytes) == BT_OK) {
        memcpy(boot_id, bytes, sizeof bytes);
    }
}
