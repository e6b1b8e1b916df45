/* SPDX-License-Identifier: Apache-2.0 */
/* proof.h - mutual proof of the cluster key on an attach stream, over fresh nonces.
 *
 *   worker                                            router
 *     |---- hello: nonce w ----------------------------->|
 *     |<- challenge: nonce r, P("router") ---------------|  who answers knows the key
 *     |---- proof: P("worker") ------------------------->|  and so does who asks
 *
 *   P(side) = BLAKE2b-256(key = cluster key,
 *                         "baton attach proof" | version | side | w | r | incarnation | name)
 *
 * Both nonces are fresh, so no proof holds a second time; the side is in it, so none can be sent
 * back to who made it; version, incarnation and name are in it, so none speaks for another worker
 * or an older protocol. It says who began the session, and protects nothing that follows: where
 * others can write into the connection, it has to run in TLS.
 *
 * Threading: any thread (no state).
 * Memory:    none.
 */
#ifndef BT_PROTO_PROOF_H
#define BT_PROTO_PROOF_H

#include "proto/block_id.h"

enum {
    BT_PROOF_NONCE_BYTES = 32,
    BT_PROOF_BYTES = 32,
};

typedef enum bt_proof_side {
    BT_PROOF_WORKER = 1,
    BT_PROOF_ROUTER = 2,
} bt_proof_side;

/* What both sides know before they prove anything. */
typedef struct bt_proof_terms {
    uint32_t version;     /* of the protocol */
    const char *name;     /* of the worker */
    uint64_t incarnation; /* of the worker */
    uint8_t worker_nonce[BT_PROOF_NONCE_BYTES];
    uint8_t router_nonce[BT_PROOF_NONCE_BYTES];
} bt_proof_terms;

/* The proof that `side` sends. */
void bt_proof_make(const bt_cluster_key *key, bt_proof_side side, const bt_proof_terms *terms,
                   uint8_t out[BT_PROOF_BYTES]);

/* Did `side`, with the same key and terms, make this? In constant time. */
bool bt_proof_check(const bt_cluster_key *key, bt_proof_side side, const bt_proof_terms *terms,
                    const uint8_t proof[BT_PROOF_BYTES]);

#endif /* BT_PROTO_PROOF_H */
