/* SPDX-License-Identifier: Apache-2.0 */
/* The root is keyed, the links are not: they begin with their parent, which nobody can know
 * who does not know the key, so the parent does the key's work, and parent and tokens (80 bytes)
 * fit one BLAKE2b block of 128: half the price of a keyed link. */
#include "proto/block_id.h"

#include <string.h>

#include "common/check.h"

static const char KEY_TAG[] = "baton cluster key";
static const char ADMIN_TAG[] = "baton admin token";
static const char TENANT_TAG[] = "baton tenant salt";
static const char ROOT_TAG[] = "baton chain root";

enum {
    TOKEN_BYTES = 4,
    LINK_BYTES = BT_BLOCK_HASH_BYTES + BT_BLOCK_HASH_TOKENS * TOKEN_BYTES,
};

bt_status bt_cluster_key_init(bt_cluster_key *key, const void *bytes, size_t len, bt_error *err)
{
    if (len < BT_CLUSTER_KEY_BYTES_MIN || len > BT_CLUSTER_KEY_BYTES_MAX) {
        return bt_error_set(err, BT_EINVAL,
                            "the cluster key has %zu bytes, not %d to %d. Make one with "
                            "'head -c 32 /dev/urandom | base64'",
                            len, BT_CLUSTER_KEY_BYTES_MIN, BT_CLUSTER_KEY_BYTES_MAX);
    }
    bt_hash hash;
    bt_hash256_init(&hash, NULL);
    bt_hash_update(&hash, KEY_TAG, strlen(KEY_TAG));
    bt_hash_update(&hash, bytes, len);
    bt_hash256 digest = bt_hash256_final(&hash);
    _Static_assert(sizeof digest.bytes == sizeof key->key.bytes, "a digest is a key");
    memcpy(key->key.bytes, digest.bytes, sizeof key->key.bytes);
    bt_hash_wipe(&digest, sizeof digest);
    bt_hash_wipe(&hash, sizeof hash);
    return BT_OK;
}

void bt_cluster_key_admin_token(const bt_cluster_key *key, char out[BT_CLUSTER_KEY_TOKEN_BYTES])
{
    _Static_assert((int)BT_CLUSTER_KEY_TOKEN_BYTES == (int)BT_HASH256_HEX_BYTES, "256 bits");
    bt_hash256 token = bt_hash256_of(&key->key, ADMIN_TAG, strlen(ADMIN_TAG));
    bt_hash_hex(token.bytes, sizeof token.bytes, out);
    bt_hash_wipe(&token, sizeof token);
}

void bt_block_id_root(const bt_cluster_key *key, const uint8_t numerics_id[BT_BLOCK_HASH_BYTES],
                      const void *salt, size_t salt_len, bt_block_hash *out)
{
    BT_ASSERT(salt != NULL || salt_len == 0);
    bt_hash hash;
    bt_hash128_init(&hash, &key->key);
    bt_hash_update(&hash, ROOT_TAG, strlen(ROOT_TAG));
    bt_hash_update(&hash, numerics_id, BT_BLOCK_HASH_BYTES);
    if (salt_len > 0) {
        bt_hash_update(&hash, salt, salt_len);
    }
    *out = bt_hash128_final(&hash);
}

void bt_block_id_tenant_salt(const bt_cluster_key *key, const char *tenant, const void *salt,
                             size_t salt_len, uint8_t out[BT_BLOCK_SALT_BYTES])
{
    BT_ASSERT(salt != NULL || salt_len == 0);
    bt_hash hash;
    bt_hash256_init(&hash, &key->key);
    bt_hash_update(&hash, TENANT_TAG, strlen(TENANT_TAG));
    bt_hash_update(&hash, tenant, strlen(tenant) + 1); /* its NUL ends the name */
    if (salt_len > 0) {
        bt_hash_update(&hash, salt, salt_len);
    }
    const bt_hash256 digest = bt_hash256_final(&hash);
    _Static_assert(sizeof digest.bytes == BT_BLOCK_SALT_BYTES, "a digest is a salt");
    memcpy(out, digest.bytes, BT_BLOCK_SALT_BYTES);
}

void bt_block_id_next(const bt_block_hash *parent, const int32_t tokens[BT_BLOCK_HASH_TOKENS],
                      bt_block_hash *out)
{
    uint8_t link[LINK_BYTES];
    bt_hash128_to_bytes(*parent, link);
    for (size_t i = 0; i < BT_BLOCK_HASH_TOKENS; i++) {
        uint8_t *p = link + BT_BLOCK_HASH_BYTES + i * TOKEN_BYTES;
        const uint32_t token = (uint32_t)tokens[i];
        p[0] = (uint8_t)token;
        p[1] = (uint8_t)(token >> 8);
        p[2] = (uint8_t)(token >> 16);
        p[3] = (uint8_t)(token >> 24);
    }
    *out = bt_hash128_of(NULL, link, sizeof link);
}

size_t bt_block_id_chain(const bt_block_hash *root, const int32_t *tokens, size_t n,
                         bt_block_hash *out)
{
    const size_t n_blocks = n / BT_BLOCK_HASH_TOKENS;
    const bt_block_hash *parent = root;
    for (size_t i = 0; i < n_blocks; i++) {
        bt_block_id_next(parent, tokens + i * BT_BLOCK_HASH_TOKENS, &out[i]);
        parent = &out[i];
    }
    return n_blocks;
}
