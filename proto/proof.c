/* SPDX-License-Identifier: Apache-2.0 */
/* All fields but the last have a fixed size, so no two different terms hash the same bytes. */
#include "proto/proof.h"

#include <string.h>

#include "common/bytes.h"

static const char TAG[] = "baton attach proof";

static void put_number(bt_hash *hash, uint64_t value)
{
    uint8_t bytes[sizeof value];
    bt_bytes_writer w;
    bt_bytes_writer_init(&w, bytes, sizeof bytes);
    bt_bytes_write_u64(&w, value);
    bt_hash_update(hash, bytes, sizeof bytes);
}

void bt_proof_make(const bt_cluster_key *key, bt_proof_side side, const bt_proof_terms *terms,
                   uint8_t out[BT_PROOF_BYTES])
{
    bt_hash hash;
    bt_hash256_init(&hash, &key->key);
    bt_hash_update(&hash, TAG, sizeof TAG);
    put_number(&hash, terms->version);
    put_number(&hash, (uint64_t)side);
    bt_hash_update(&hash, terms->worker_nonce, sizeof terms->worker_nonce);
    bt_hash_update(&hash, terms->router_nonce, sizeof terms->router_nonce);
    put_number(&hash, terms->incarnation);
    bt_hash_update(&hash, terms->name, strlen(terms->name));
    const bt_hash256 proof = bt_hash256_final(&hash);
    _Static_assert(sizeof proof.bytes == BT_PROOF_BYTES, "256 bits");
    memcpy(out, proof.bytes, BT_PROOF_BYTES);
    bt_hash_wipe(&hash, sizeof hash);
}

bool bt_proof_check(const bt_cluster_key *key, bt_proof_side side, const bt_proof_terms *terms,
                    const uint8_t proof[BT_PROOF_BYTES])
{
    uint8_t right[BT_PROOF_BYTES];
    bt_proof_make(key, side, terms, right);
    return bt_hash_equal_secret(right, proof, BT_PROOF_BYTES);
}
