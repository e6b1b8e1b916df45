/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h - keyed BLAKE2b of 128 and 256 bits, random bytes, hex.
 *
 * BLAKE2b is RFC 7693 (Aumasson et al., ACNS 2013). 128 bits under a secret key
 * name cached blocks: without the key nobody can make two texts with one name.
 * 256 bits without a key are fingerprints of files and settings.
 *
 * Threading: any thread; a bt_hash belongs to one thread at a time.
 * Memory:    none.
 */
#ifndef BT_COMMON_HASH_H
#define BT_COMMON_HASH_H

#include "common/status.h"

enum {
    BT_HASH_KEY_BYTES = 32,
    BT_HASH128_HEX_BYTES = 33, /* with the NUL */
    BT_HASH256_HEX_BYTES = 65, /* with the NUL */
};

/* 128 bits: w[0] holds digest bytes 0..7 and w[1] bytes 8..15, little-endian, on
 * every machine. Usable as a map key (map.h). */
typedef struct bt_hash128 {
    uint64_t w[2];
} bt_hash128;

typedef struct bt_hash256 {
    uint8_t bytes[32];
} bt_hash256;

typedef struct bt_hash_key {
    uint8_t bytes[BT_HASH_KEY_BYTES];
} bt_hash_key;

/* ---- one shot; `key` NULL: no key ---- */
bt_hash128 bt_hash128_of(const bt_hash_key *key, const void *bytes, size_t n);
bt_hash256 bt_hash256_of(const bt_hash_key *key, const void *bytes, size_t n);

/* ---- in parts; a bt_hash may be copied by assignment, to go on from a common start ---- */
typedef struct bt_hash {
    BT_ALIGNED(64) unsigned char opaque[384];
} bt_hash;

void bt_hash128_init(bt_hash *hash, const bt_hash_key *key);
void bt_hash256_init(bt_hash *hash, const bt_hash_key *key);
void bt_hash_update(bt_hash *hash, const void *bytes, size_t n);
bt_hash128 bt_hash128_final(bt_hash *hash); /* only after bt_hash128_init */
bt_hash256 bt_hash256_final(bt_hash *hash); /* only after bt_hash256_init */

/* ---- compare ---- */
bool bt_hash128_equal(bt_hash128 a, bt_hash128 b); /* fast; not for secrets */

/* Time depends on n alone: for tags, keys and their fingerprints. */
bool bt_hash_equal_secret(const void *a, const void *b, size_t n);

/* Overwrites a secret in a way that the compiler keeps. */
void bt_hash_wipe(void *secret, size_t n);

/* ---- random bytes, fit for keys and ids ---- */
void bt_hash_random(void *out, size_t n);

/* ---- the 16 bytes of a bt_hash128, as digests and wires have them ---- */
void bt_hash128_to_bytes(bt_hash128 hash, uint8_t out[16]);
bt_hash128 bt_hash128_from_bytes(const uint8_t bytes[16]);

/* ---- hex, lower case ---- */

/* Writes 2 * n characters and a NUL. */
void bt_hash_hex(const void *bytes, size_t n, char *out);
void bt_hash128_hex(bt_hash128 hash, char out[BT_HASH128_HEX_BYTES]);

/* Reads exactly 2 * n hex digits, either case, then the end. BT_EINVAL otherwise. */
BT_MUST_CHECK bt_status bt_hash_unhex(const char *hex, uint8_t *out, size_t n);

#endif /* BT_COMMON_HASH_H */
