/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides take in the same two frames, in the same order, and derive the same keys from
 * them; only the one who knows the root gets keys that fit. A wrong CHALLENGE leaves the
 * session closed: nothing can be sent on it. */
#include "kvtransfer/session.h"

#include <string.h>

#include "common/bytes.h"
#include "common/check.h"

enum {
    TYPE_AT = 4,
    TAG_AT = BT_FRAME_HEADER_BYTES - BT_FRAME_TAG_BYTES,
};

static const uint8_t NO_TAG[BT_FRAME_TAG_BYTES];

/* ---- keys ---- */

static void derive(const bt_hash_key *from, const char *label, const void *bytes, size_t n,
                   bt_hash_key *out)
{
    bt_hash hash;
    bt_hash256_init(&hash, from);
    bt_hash_update(&hash, label, strlen(label));
    if (n > 0) {
        bt_hash_update(&hash, bytes, n);
    }
    bt_hash256 digest = bt_hash256_final(&hash);
    _Static_assert(sizeof digest.bytes == sizeof out->bytes, "a digest is a key");
    memcpy(out->bytes, digest.bytes, sizeof out->bytes);
    bt_hash_wipe(&digest, sizeof digest);
    bt_hash_wipe(&hash, sizeof hash);
}

static void frame_tag(const bt_hash_key *key, const uint8_t *wire, size_t bytes,
                      uint8_t tag[BT_FRAME_TAG_BYTES])
{
    bt_hash hash;
    bt_hash128_init(&hash, key);
    bt_hash_update(&hash, wire, TAG_AT);
    bt_hash_update(&hash, NO_TAG, sizeof NO_TAG);
    bt_hash_update(&hash, wire + BT_FRAME_HEADER_BYTES, bytes - BT_FRAME_HEADER_BYTES);
    bt_hash128_to_bytes(bt_hash128_final(&hash), tag);
    bt_hash_wipe(&hash, sizeof hash);
}

static void hello_tag(const bt_session *session, const uint8_t *wire, size_t bytes,
                      uint8_t tag[BT_FRAME_TAG_BYTES])
{
    bt_hash_key key;
    derive(&session->root, "hello", NULL, 0, &key);
    frame_tag(&key, wire, bytes, tag);
    bt_hash_wipe(&key, sizeof key);
}

static void derive_directions(bt_session *session, const uint8_t *challenge, size_t bytes)
{
    bt_hash_update(&session->seen, challenge, TAG_AT);
    bt_hash_update(&session->seen, NO_TAG, sizeof NO_TAG);
    bt_hash_update(&session->seen, challenge + BT_FRAME_HEADER_BYTES,
                   bytes - BT_FRAME_HEADER_BYTES);
    const bt_hash256 seen = bt_hash256_final(&session->seen);
    const bool is_sink = session->side == BT_SESSION_SINK;
    derive(&session->root, "sink", seen.bytes, sizeof seen.bytes,
           is_sink ? &session->own : &session->other);
    derive(&session->root, "source", seen.bytes, sizeof seen.bytes,
           is_sink ? &session->other : &session->own);
}

void bt_session_parts_key(const bt_session *session, bool own, uint64_t counter, bt_hash_key *out)
{
    BT_ASSERT(session->open);
    uint8_t number[sizeof counter];
    bt_bytes_writer w;
    bt_bytes_writer_init(&w, number, sizeof number);
    bt_bytes_write_u64(&w, counter);
    derive(own ? &session->own : &session->other, "parts", number, sizeof number, out);
}

/* ---- life ---- */

void bt_session_init(bt_session *session, bt_session_side side, const bt_hash_key *cluster_key)
{
    *session = (bt_session){.side = side};
    derive(cluster_key, "baton kv plane", NULL, 0, &session->root);
    bt_hash256_init(&session->seen, NULL);
}

void bt_session_deinit(bt_session *session)
{
    bt_hash_wipe(session, sizeof *session);
}

static void see_hello(bt_session *session, const uint8_t *wire, size_t bytes)
{
    bt_hash_update(&session->seen, wire, bytes);
    session->heard_hello = true;
}

void bt_session_seal(bt_session *session, uint8_t *wire, size_t bytes)
{
    BT_ASSERT(bytes >= BT_FRAME_HEADER_BYTES);
    const unsigned type = wire[TYPE_AT] | (unsigned)wire[TYPE_AT + 1] << 8;
    uint8_t *tag = wire + TAG_AT;
    if (type == BT_FRAME_REFUSE) {
        return;
    }
    if (type == BT_FRAME_HELLO) {
        BT_ASSERT(session->side == BT_SESSION_SINK && !session->heard_hello);
        hello_tag(session, wire, bytes, tag);
        see_hello(session, wire, bytes);
        return;
    }
    if (type == BT_FRAME_CHALLENGE) {
        BT_ASSERT(session->side == BT_SESSION_SOURCE && session->heard_hello && !session->open);
        derive_directions(session, wire, bytes);
        session->open = true;
    }
    BT_ASSERT(session->open);
    frame_tag(&session->own, wire, bytes, tag);
}

static bt_status check_hello(bt_session *session, const uint8_t *wire,
                             const bt_frame_header *header, bt_error *err)
{
    const size_t bytes = BT_FRAME_HEADER_BYTES + header->body_bytes;
    uint8_t tag[BT_FRAME_TAG_BYTES];
    if (session->side != BT_SESSION_SOURCE || session->heard_hello) {
        return bt_error_set(err, BT_EPROTOCOL, "a HELLO out of place");
    }
    hello_tag(session, wire, bytes, tag);
    if (!bt_hash_equal_secret(tag, header->tag, sizeof tag)) {
        return bt_error_set(err, BT_EPERMISSION,
                            "the workers have different cluster keys. Give every member the same "
                            "key file.");
    }
    see_hello(session, wire, bytes);
    return BT_OK;
}

bt_status bt_session_check(bt_session *session, const uint8_t *wire, const bt_frame_header *header,
                           bt_error *err)
{
    const size_t bytes = BT_FRAME_HEADER_BYTES + header->body_bytes;
    uint8_t tag[BT_FRAME_TAG_BYTES];
    if (header->type == BT_FRAME_HELLO) {
        return check_hello(session, wire, header, err);
    }
    if (header->type == BT_FRAME_REFUSE) {
        return memcmp(header->tag, NO_TAG, sizeof NO_TAG) == 0
                   ? BT_OK
                   : bt_error_set(err, BT_EPROTOCOL, "a REFUSE frame with a tag");
    }
    const bool opens = header->type == BT_FRAME_CHALLENGE && session->side == BT_SESSION_SINK &&
                       session->heard_hello && !session->open;
    if (opens) {
        derive_directions(session, wire, bytes);
    } else if (!session->open) {
        return bt_error_set(err, BT_EPROTOCOL, "a %s frame before the keys are on",
                            bt_frame_type_name(header->type));
    }
    frame_tag(&session->other, wire, bytes, tag);
    if (!bt_hash_equal_secret(tag, header->tag, sizeof tag)) {
        session->heard_hello = session->open; /* one wrong CHALLENGE is the last */
        return bt_error_set(err, BT_EPERMISSION, "a %s frame whose tag is wrong",
                            bt_frame_type_name(header->type));
    }
    session->open = true;
    return BT_OK;
}
