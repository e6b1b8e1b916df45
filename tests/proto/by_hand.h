/* SPDX-License-Identifier: Apache-2.0 */
/* by_hand.h - a worker made of single messages, to speak to a router out of turn. */
#ifndef BT_TESTS_PROTO_BY_HAND_H
#define BT_TESTS_PROTO_BY_HAND_H

#include "proto/proof.h"
#include "proto/worker.pb-c.h"
#include "tests/proto/talk.h"

#define BY_HAND_PATH "/baton.worker.v1.Attach/Attach"
#define BY_HAND_NAME "by-hand"

enum { BY_HAND_BYTES = 512 }; /* room for each message below */

/* Each packs one message into `out` and returns its size. */
size_t by_hand_pack(Baton__Worker__V1__Event *event, uint8_t *out);
size_t by_hand_hello(const char *name, uint32_t version, const uint8_t nonce[BT_PROOF_NONCE_BYTES],
                     uint8_t *out);
size_t by_hand_proof(const uint8_t proof[BT_PROOF_BYTES], uint8_t *out);

/* The terms of a session of this worker, without the router's nonce. */
bt_proof_terms by_hand_terms(const uint8_t nonce[BT_PROOF_NONCE_BYTES]);

/* Reply `idx`; the caller frees it with baton__worker__v1__to_worker__free_unpacked. */
Baton__Worker__V1__ToWorker *by_hand_reply(const talk *t, size_t idx);

/* Says hello and waits for the challenge; fills terms->router_nonce and the router's proof. */
void by_hand_greet(talk *t, pair *p, bt_proof_terms *terms, uint8_t proof[BT_PROOF_BYTES]);

/* Hello, challenge, proof and welcome, all as they should be. */
void by_hand_attach(talk *t, pair *p, const bt_cluster_key *key);

#endif /* BT_TESTS_PROTO_BY_HAND_H */
