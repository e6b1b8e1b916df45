/* SPDX-License-Identifier: Apache-2.0 */
/* block_id.h - identity of a KV block: a hash chain over the tokens before and in it.
 *
 *   root = BLAKE2b-128(key = cluster key, "baton chain root" | numerics id | cache salt)
 *   h[0] = BLAKE2b-128(root | tokens 0..15)
 *   h[i] = BLAKE2b-128(h[i-1] | tokens 16i..16i+15)
 *
 * (| joins; tokens are 4 bytes each, little-endian.) So equal hashes mean equal tokens from
 * position 0 on, under the same numerics, cluster and salt. Who does not know the cluster key
 * can't compute a root, hence no collision can be prepared; tenants with different salts share
 * nothing. Only full blocks have an identity. (engine/kv_layout.h's bt_block_id is another
 * thing: the number of a block in one worker's pool.)
 *
 * Threading: any thread (no state).
 * Memory:    none.
 */
#ifndef BT_PROTO_BLOCK_ID_H
#define BT_PROTO_BLOCK_ID_H

#include "common/hash.h"
#include "common/status.h"

enum {
    BT_BLOCK_HASH_BYTES = 16,
    BT_BLOCK_HASH_TOKENS = 16, /* of a block; equals BT_KV_BLOCK_TOKENS */
    BT_CLUSTER_KEY_BYTES_MIN = 16,
    BT_CLUSTER_KEY_BYTES_MAX = 4096,
};

typedef bt_hash128 bt_block_hash;

/* The secret that all members of a cluster share, as a key for BLAKE2b. */
typedef struct bt_cluster_key {
    bt_hash_key key;
} bt_cluster_key;

/* Makes the key from a secret of any length (a file's content, without the newline at its
 * end): BLAKE2b-256("baton cluster key" | bytes). BT_EINVAL: too short or too long. */
BT_MUST_CHECK bt_status bt_cluster_key_init(bt_cluster_key *key, const void *bytes, size_t len,
                                            bt_error *err);

/* What an operator's command shows a router to prove that it knows the key, as 64 hex digits and
 * a NUL ("authorization: Bearer <token>" on baton.admin.v1): derived from the key, tells nothing
 * about it. Compare with bt_hash_equal_secret(). */
enum { BT_CLUSTER_KEY_TOKEN_BYTES = 65 };
void bt_cluster_key_admin_token(const bt_cluster_key *key, char out[BT_CLUSTER_KEY_TOKEN_BYTES]);

/* Root of all chains of one (cluster, numerics id, salt). `salt` may be NULL with len 0. */
void bt_block_id_root(const bt_cluster_key *key, const uint8_t numerics_id[BT_BLOCK_HASH_BYTES],
                      const void *salt, size_t salt_len, bt_block_hash *out);

/* Salt of a tenant's chains: what its requests are salted with becomes a MAC under the cluster key
 * over the tenant's name and that salt, so that no tenant can name another one's blocks. */
enum { BT_BLOCK_SALT_BYTES = 32 };
void bt_block_id_tenant_salt(const bt_cluster_key *key, const char *tenant, const void *salt,
                             size_t salt_len, uint8_t out[BT_BLOCK_SALT_BYTES]);

/* Hash of the block that holds tokens[0..15] and follows `parent`. *out may be *parent. */
void bt_block_id_next(const bt_block_hash *parent, const int32_t tokens[BT_BLOCK_HASH_TOKENS],
                      bt_block_hash *out);

/* Hashes of all full blocks of tokens[0..n-1] into out[0..n/16-1]; returns n / 16. O(n). */
size_t bt_block_id_chain(const bt_block_hash *root, const int32_t *tokens, size_t n,
                         bt_block_hash *out);

#endif /* BT_PROTO_BLOCK_ID_H */
