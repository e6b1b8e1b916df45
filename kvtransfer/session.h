/* SPDX-License-Identifier: Apache-2.0 */
/* session.h - who may talk on a KV connection: proof of the cluster key, keys, tags.
 *
 *   sink                                  source
 *   HELLO     terms, wish, nonce  ----->            tag under the hello key
 *             <-----  choice, nonce    CHALLENGE    tag under the source's key: it has the secret
 *   PROOF                         ----->            tag under the sink's key: so has the sink
 *             <-----  terms, pool      WELCOME      and from here on every frame has a tag
 *
 *   root   = BLAKE2b-256(cluster key; "baton kv plane")
 *   hello  = BLAKE2b-256(root; "hello")
 *   seen   = BLAKE2b-256(HELLO | CHALLENGE with a zero tag)      nonces, incarnations, auth
 *   sink's = BLAKE2b-256(root; "sink" | seen), source's = BLAKE2b-256(root; "source" | seen)
 *   tag    = BLAKE2b-128(sender's key; header with a zero tag | body)
 *   parts  = BLAKE2b-256(sender's key; "parts" | counter of their DATA frame): a Poly1305 key
 *
 * (key; message.) Nonces are fresh on each connection, so a recorded connection is worth nothing:
 * its PROOF fails. The direction has its key and the header its counter: a frame that is
 * reflected, replayed, doubled or moved fails. What was agreed on is in `seen`: who changes the
 * wish or the choice on the way has other keys than both ends.
 *
 * A frame is small, and BLAKE2b needs no nonce that could be used twice. Parts are large:
 * Poly1305 takes 0.4 ns a byte where BLAKE2b takes 0.9 and GMAC as libsodium has it 0.6; its key
 * is for one piece alone, since a counter never comes twice under a session's key. Nothing is
 * encrypted: who can read the network between two workers can read prompts out of KV blocks.
 *
 * A REFUSE has no tag: it is what those get who have no key.
 *
 * Threading: loop thread only.
 * Memory:    inside the struct.
 */
#ifndef BT_KVTRANSFER_SESSION_H
#define BT_KVTRANSFER_SESSION_H

#include "common/hash.h"
#include "kvtransfer/frame.h"

typedef enum bt_session_side {
    BT_SESSION_SINK,
    BT_SESSION_SOURCE,
} bt_session_side;

typedef struct bt_session {
    bt_session_side side;
    bool heard_hello; /* sent or received */
    bool open;        /* the direction keys are on */
    bt_hash_key root;
    bt_hash_key own, other; /* open: under which we send, and the peer does */
    bt_hash seen;
} bt_session;

void bt_session_init(bt_session *session, bt_session_side side, const bt_hash_key *cluster_key);

/* Overwrites the keys. */
void bt_session_deinit(bt_session *session);

/* Puts the tag into an encoded frame of ours, which goes out next. A CHALLENGE opens the session.
 * Nothing but HELLO, CHALLENGE and REFUSE may come before that. */
void bt_session_seal(bt_session *session, uint8_t *wire, size_t bytes);

/* Checks the tag of a whole frame that came next. A right CHALLENGE opens the session.
 * BT_EPERMISSION: the sender does not have the key. BT_EPROTOCOL: this frame may not come now. */
BT_MUST_CHECK bt_status bt_session_check(bt_session *session, const uint8_t *wire,
                                         const bt_frame_header *header, bt_error *err);

/* Key of the parts behind the DATA frame with this counter, sent by us (own) or by the peer. */
void bt_session_parts_key(const bt_session *session, bool own, uint64_t counter, bt_hash_key *out);

#endif /* BT_KVTRANSFER_SESSION_H */
