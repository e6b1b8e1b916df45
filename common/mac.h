/* SPDX-License-Identifier: Apache-2.0 */
/* mac.h - Poly1305 tags of large messages, each under a key of its own.
 *
 * Poly1305 is RFC 8439, section 2.5 (Bernstein, FSE 2005): more than twice as fast as a keyed
 * BLAKE2b (hash.h), but a key that has tagged two messages gives itself away. So each message
 * gets a fresh key, derived with hash.h from a secret and a number that never comes twice.
 *
 * Threading: any thread; a bt_mac belongs to one thread at a time.
 * Memory:    none.
 */
#ifndef BT_COMMON_MAC_H
#define BT_COMMON_MAC_H

#include "common/hash.h"

enum { BT_MAC_TAG_BYTES = 16 };

typedef struct bt_mac {
    BT_ALIGNED(16) unsigned char opaque[256];
} bt_mac;

/* `key` is for this message alone. */
void bt_mac_init(bt_mac *mac, const bt_hash_key *key);
void bt_mac_update(bt_mac *mac, const void *bytes, size_t n);

/* Compare with bt_hash_equal_secret(). Wipes *mac. */
void bt_mac_final(bt_mac *mac, uint8_t tag[BT_MAC_TAG_BYTES]);

#endif /* BT_COMMON_MAC_H */
