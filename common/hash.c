/* SPDX-License-Identifier: Apache-2.0 */
/* Over libsodium. sodium_init() chooses the fastest code for this CPU and opens the
 * source of random bytes; it is thread-safe and cheap once done, so each entry that
 * needs it calls it, and nobody has to set this module up. */
#include "common/hash.h"

#include <sodium.h>
#include <string.h>

#include "common/check.h"

_Static_assert(sizeof(bt_hash) >= sizeof(crypto_generichash_blake2b_state), "opaque is too small");
_Static_assert(_Alignof(bt_hash) >= _Alignof(crypto_generichash_blake2b_state), "alignment");
_Static_assert(BT_HASH_KEY_BYTES >= crypto_generichash_blake2b_KEYBYTES_MIN &&
                   BT_HASH_KEY_BYTES <= crypto_generichash_blake2b_KEYBYTES_MAX,
               "key size");

enum {
    HASH128_BYTES = 16,
    HASH256_BYTES = 32,
};

static void ensure_ready(void)
{
    const int rc = sodium_init(); /* 0 or 1; -1 only where /dev/urandom cannot be had */
    BT_ASSERT(rc >= 0);
}

static crypto_generichash_blake2b_state *state_of(bt_hash *hash)
{
    return (void *)hash->opaque;
}

static void hash_once(const bt_hash_key *key, const void *bytes, size_t n, uint8_t *out,
                      size_t out_bytes)
{
    ensure_ready();
    const int rc = crypto_generichash_blake2b(out, out_bytes, bytes, n, key ? key->bytes : NULL,
                                              key ? sizeof key->bytes : 0);
    BT_ASSERT(rc == 0);
}

bt_hash128 bt_hash128_of(const bt_hash_key *key, const void *bytes, size_t n)
{
    uint8_t out[HASH128_BYTES];
    hash_once(key, bytes, n, out, sizeof out);
    return bt_hash128_from_bytes(out);
}

bt_hash256 bt_hash256_of(const bt_hash_key *key, const void *bytes, size_t n)
{
    bt_hash256 out;
    hash_once(key, bytes, n, out.bytes, sizeof out.bytes);
    return out;
}

static void init(bt_hash *hash, const bt_hash_key *key, size_t out_bytes)
{
    ensure_ready();
    const int rc = crypto_generichash_blake2b_init(state_of(hash), key ? key->bytes : NULL,
                                                   key ? sizeof key->bytes : 0, out_bytes);
    BT_ASSERT(rc == 0);
}

void bt_hash128_init(bt_hash *hash, const bt_hash_key *key)
{
    init(hash, key, HASH128_BYTES);
}

void bt_hash256_init(bt_hash *hash, const bt_hash_key *key)
{
    init(hash, key, HASH256_BYTES);
}

void bt_hash_update(bt_hash *hash, const void *bytes, size_t n)
{
    const int rc = crypto_generichash_blake2b_update(state_of(hash), bytes, n);
    BT_ASSERT(rc == 0);
}

static void final(bt_hash *hash, uint8_t *out, size_t out_bytes)
{
    const int rc = crypto_generichash_blake2b_final(state_of(hash), out, out_bytes);
    BT_ASSERT(rc == 0);
}

bt_hash128 bt_hash128_final(bt_hash *hash)
{
    uint8_t out[HASH128_BYTES];
    final(hash, out, sizeof out);
    return bt_hash128_from_bytes(out);
}

bt_hash256 bt_hash256_final(bt_hash *hash)
{
    bt_hash256 out;
    final(hash, out.bytes, sizeof out.bytes);
    return out;
}

bool bt_hash128_equal(bt_hash128 a, bt_hash128 b)
{
    return a.w[0] == b.w[0] && a.w[1] == b.w[1];
}

bool bt_hash_equal_secret(const void *a, const void *b, size_t n)
{
    return sodium_memcmp(a, b, n) == 0;
}

void bt_hash_wipe(void *secret, size_t n)
{
    sodium_memzero(secret, n);
}

void bt_hash_random(void *out, size_t n)
{
    ensure_ready();
    randombytes_buf(out, n);
}

void bt_hash128_to_bytes(bt_hash128 hash, uint8_t out[16])
{
    for (size_t i = 0; i < HASH128_BYTES; i++) {
        out[i] = (uint8_t)(hash.w[i / 8] >> (i % 8 * 8));
    }
}

bt_hash128 bt_hash128_from_bytes(const uint8_t bytes[16])
{
    bt_hash128 hash = {{0, 0}};
    for (size_t i = 0; i < HASH128_BYTES; i++) {
        hash.w[i / 8] |= (uint64_t)bytes[i] << (i % 8 * 8);
    }
    return hash;
}

void bt_hash_hex(const void *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[b[i] >> 4];
        out[2 * i + 1] = digits[b[i] & 15];
    }
    out[2 * n] = '\0';
}

void bt_hash128_hex(bt_hash128 hash, char out[BT_HASH128_HEX_BYTES])
{
    uint8_t bytes[HASH128_BYTES];
    bt_hash128_to_bytes(hash, bytes);
    bt_hash_hex(bytes, sizeof bytes, out);
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bt_status bt_hash_unhex(const char *hex, uint8_t *out, size_t n)
{
    if (strlen(hex) != 2 * n) {
        return BT_EINVAL;
    }
    for (size_t i = 0; i < 2 * n; i++) {
        if (digit_value(hex[i]) < 0) {
            return BT_EINVAL;
        }
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = (uint8_t)(digit_value(hex[2 * i]) << 4 | digit_value(hex[2 * i + 1]));
    }
    return BT_OK;
}
