/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/proto/by_hand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "proto/link.h"

#define INIT(NAME) BATON__WORKER__V1__##NAME##__INIT

size_t by_hand_pack(Baton__Worker__V1__Event *event, uint8_t *out)
{
    Baton__Worker__V1__FromWorker message = INIT(FROM_WORKER);
    message.n_events = 1;
    message.events = &event;
    return baton__worker__v1__from_worker__pack(&message, out);
}

size_t by_hand_hello(const char *name, uint32_t version, const uint8_t nonce[BT_PROOF_NONCE_BYTES],
                     uint8_t *out)
{
    uint8_t zeros[BT_LINK_ID_BYTES] = {0};
    const ProtobufCBinaryData id = {.len = sizeof zeros, .data = zeros};
    Baton__Worker__V1__Hello hello = INIT(HELLO);
    hello.protocol_version = version;
    hello.name = (char *)(uintptr_t)name;
    hello.role = BATON__WORKER__V1__ROLE__ROLE_BOTH;
    hello.numerics_id = id;
    hello.model_fingerprint = id;
    hello.tokenizer_hash = id;
    hello.boot_id = id;
    hello.nonce =
        (ProtobufCBinaryData){.len = BT_PROOF_NONCE_BYTES, .data = (uint8_t *)(uintptr_t)nonce};
    Baton__Worker__V1__Event event = INIT(EVENT);
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_HELLO;
    event.hello = &hello;
    return by_hand_pack(&event, out);
}

size_t by_hand_proof(const uint8_t proof[BT_PROOF_BYTES], uint8_t *out)
{
    Baton__Worker__V1__Proof message = INIT(PROOF);
    message.proof =
        (ProtobufCBinaryData){.len = BT_PROOF_BYTES, .data = (uint8_t *)(uintptr_t)proof};
    Baton__Worker__V1__Event event = INIT(EVENT);
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_PROOF;
    event.proof = &message;
    return by_hand_pack(&event, out);
}

bt_proof_terms by_hand_terms(const uint8_t nonce[BT_PROOF_NONCE_BYTES])
{
    bt_proof_terms terms = {.version = BT_LINK_PROTOCOL_VERSION, .name = BY_HAND_NAME};
    memcpy(terms.worker_nonce, nonce, BT_PROOF_NONCE_BYTES);
    return terms;
}

Baton__Worker__V1__ToWorker *by_hand_reply(const talk *t, size_t idx)
{
    Baton__Worker__V1__ToWorker *reply =
        baton__worker__v1__to_worker__unpack(NULL, t->replies[idx].len, t->replies[idx].bytes);
    assert_non_null(reply);
    assert_true(reply->n_commands > 0);
    return reply;
}

void by_hand_greet(talk *t, pair *p, bt_proof_terms *terms, uint8_t proof[BT_PROOF_BYTES])
{
    uint8_t bytes[BY_HAND_BYTES];
    talk_start(t, p, BY_HAND_PATH);
    talk_send(t, bytes, by_hand_hello(BY_HAND_NAME, terms->version, terms->worker_nonce, bytes));
    talk_wait_replies(t, 1);
    Baton__Worker__V1__ToWorker *reply = by_hand_reply(t, 0);
    assert_int_equal(reply->commands[0]->command_case,
                     BATON__WORKER__V1__COMMAND__COMMAND_CHALLENGE);
    const Baton__Worker__V1__Challenge *challenge = reply->commands[0]->challenge;
    assert_int_equal(challenge->nonce.len, BT_PROOF_NONCE_BYTES);
    assert_int_equal(challenge->proof.len, BT_PROOF_BYTES);
    memcpy(terms->router_nonce, challenge->nonce.data, BT_PROOF_NONCE_BYTES);
    memcpy(proof, challenge->proof.data, BT_PROOF_BYTES);
    baton__worker__v1__to_worker__free_unpacked(reply, NULL);
}

void by_hand_attach(talk *t, pair *p, const bt_cluster_key *key)
{
    uint8_t nonce[BT_PROOF_NONCE_BYTES];
    bt_hash_random(nonce, sizeof nonce);
    bt_proof_terms terms = by_hand_terms(nonce);
    uint8_t proof[BT_PROOF_BYTES];
    by_hand_greet(t, p, &terms, proof);
    assert_true(bt_proof_check(key, BT_PROOF_ROUTER, &terms, proof));
    bt_proof_make(key, BT_PROOF_WORKER, &terms, proof);
    uint8_t bytes[BY_HAND_BYTES];
    talk_send(t, bytes, by_hand_proof(proof, bytes));
    talk_wait_replies(t, 2);
    Baton__Worker__V1__ToWorker *reply = by_hand_reply(t, 1);
    assert_int_equal(reply->commands[0]->command_case, BATON__WORKER__V1__COMMAND__COMMAND_WELCOME);
    baton__worker__v1__to_worker__free_unpacked(reply, NULL);
}
