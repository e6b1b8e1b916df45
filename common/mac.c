/* SPDX-License-Identifier: Apache-2.0 */
/* Over libsodium, like hash.c: sodium_init() chooses the fastest code for this CPU. */
#include "common/mac.h"

#include <sodium.h>

#include "common/check.h"

_Static_assert(sizeof(bt_mac) >= sizeof(crypto_onetimeauth_poly1305_state), "opaque is too small");
_Static_assert(_Alignof(bt_mac) >= _Alignof(crypto_onetimeauth_poly1305_state), "alignment");
_Static_assert((int)BT_MAC_TAG_BYTES == (int)crypto_onetimeauth_poly1305_BYTES, "tag size");
_Static_assert((int)BT_HASH_KEY_BYTES == (int)crypto_onetimeauth_poly1305_KEYBYTES, "key size");

static crypto_onetimeauth_poly1305_state *state_of(bt_mac *mac)
{
    return (void *)mac->opaque;
}

void bt_mac_init(bt_mac *mac, const bt_hash_key *key)
{
    int rc = sodium_init(); /* 0 or 1; -1 only where /dev/urandom cannot be had */
    BT_ASSERT(rc >= 0);
    rc = crypto_onetimeauth_poly1305_init(state_of(mac), key->bytes);
    BT_ASSERT(rc == 0);
}

void bt_mac_update(bt_mac *mac, const void *bytes, size_t n)
{
    const int rc = crypto_onetimeauth_poly1305_update(state_of(mac), bytes, n);
    BT_ASSERT(rc == 0);
}

void bt_mac_final(bt_mac *mac, uint8_t tag[BT_MAC_TAG_BYTES])
{
    const int rc = crypto_onetimeauth_poly1305_final(state_of(mac), tag);
    BT_ASSERT(rc == 0);
    sodium_memzero(mac, sizeof *mac);
}
