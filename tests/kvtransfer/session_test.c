/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that two sessions with one key understand each other and nobody else: any changed bit,
 * another key, another direction, another connection, another choice. The oracle of a tag
 * is the formula in session.h, computed here from the hash alone. */
#include "kvtransfer/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/crc32c.h"

enum { TAG_AT = BT_FRAME_HEADER_BYTES - BT_FRAME_TAG_BYTES, SUM_AT = 36 };

static const bt_hash_key KEY = {{1, 2, 3}};

typedef struct wire {
    uint8_t bytes[BT_FRAME_BYTES_MAX];
    size_t n;
} wire;

static void encode(const bt_frame *frame, uint64_t counter, wire *out)
{
    out->n = bt_frame_encode(frame, counter, out->bytes);
}

static bt_status check(bt_session *session, const wire *w)
{
    bt_frame_header header;
    const bt_status status = bt_frame_decode_header(w->bytes, &header, NULL);
    if (status != BT_OK) {
        return status;
    }
    if (header.body_bytes + BT_FRAME_HEADER_BYTES != w->n) {
        return BT_EPROTOCOL;
    }
    return bt_session_check(session, w->bytes, &header, NULL);
}

static bt_frame hello_frame(uint8_t nonce)
{
    bt_kv_terms terms = {.numerics_id = {5}};
    assert_true(bt_kv_layout_init(&terms.layout, 4, 2, 8, BT_KV_FORMAT_BF16));
    bt_frame frame = {.type = BT_FRAME_HELLO};
    bt_frame_hello_set(&frame.u.hello, &terms, 22, 100);
    frame.u.hello.expected = 11;
    frame.u.hello.auth = BT_KV_AUTH_FULL;
    frame.u.hello.nonce[0] = nonce;
    return frame;
}

static bt_frame challenge_frame(uint8_t nonce)
{
    return (bt_frame){
        .type = BT_FRAME_CHALLENGE,
        .u.challenge = {.auth = BT_KV_AUTH_FULL, .incarnation = 11, .nonce = {nonce}}};
}

typedef struct pair {
    bt_session sink, source;
    wire hello, challenge;
} pair;

static void open_pair(pair *p, const bt_hash_key *key, uint8_t sink_nonce, uint8_t source_nonce)
{
    const bt_frame hello = hello_frame(sink_nonce);
    const bt_frame challenge = challenge_frame(source_nonce);
    bt_session_init(&p->sink, BT_SESSION_SINK, key);
    bt_session_init(&p->source, BT_SESSION_SOURCE, key);
    encode(&hello, 0, &p->hello);
    bt_session_seal(&p->sink, p->hello.bytes, p->hello.n);
    assert_int_equal(check(&p->source, &p->hello), BT_OK);
    encode(&challenge, 0, &p->challenge);
    bt_session_seal(&p->source, p->challenge.bytes, p->challenge.n);
    assert_int_equal(check(&p->sink, &p->challenge), BT_OK);
}

static void say(bt_session *from, bt_frame_type type, uint64_t counter, wire *out)
{
    const bt_frame frame = {.type = type, .u.pull = {.deadline_ms = 5}};
    encode(&frame, counter, out);
    bt_session_seal(from, out->bytes, out->n);
}

static void derive(const bt_hash_key *key, const void *label, const void *bytes, size_t n,
                   bt_hash_key *out)
{
    uint8_t message[4096];
    const size_t len = strlen(label);
    memcpy(message, label, len);
    memcpy(message + len, bytes, n);
    const bt_hash256 digest = bt_hash256_of(key, message, len + n);
    memcpy(out->bytes, digest.bytes, sizeof out->bytes);
}

static void tags_are_those_of_the_formula(void **state)
{
    (void)state;
    pair p;
    wire w;
    open_pair(&p, &KEY, 1, 2);
    bt_hash_key root;
    bt_hash_key key;
    derive(&KEY, "baton kv plane", "", 0, &root);
    uint8_t seen[2 * BT_FRAME_BYTES_MAX];
    memcpy(seen, p.hello.bytes, p.hello.n);
    memcpy(seen + p.hello.n, p.challenge.bytes, p.challenge.n);
    memset(seen + p.hello.n + TAG_AT, 0, BT_FRAME_TAG_BYTES);
    const bt_hash256 digest = bt_hash256_of(NULL, seen, p.hello.n + p.challenge.n);
    static const char *const labels[] = {"sink", "source"};
    bt_session *const sides[] = {&p.sink, &p.source};
    for (size_t i = 0; i < 2; i++) {
        uint8_t tag[BT_FRAME_TAG_BYTES];
        bt_hash_key parts;
        bt_hash_key parts_too;
        derive(&root, labels[i], digest.bytes, sizeof digest.bytes, &key);
        say(sides[i], BT_FRAME_PULL, 7, &w);
        memcpy(tag, w.bytes + TAG_AT, sizeof tag);
        memset(w.bytes + TAG_AT, 0, sizeof tag);
        uint8_t expected[BT_FRAME_TAG_BYTES];
        bt_hash128_to_bytes(bt_hash128_of(&key, w.bytes, w.n), expected);
        assert_memory_equal(tag, expected, sizeof tag);
        derive(&key, "parts", "\x09\x01\0\0\0\0\0\0", 8, &parts);
        bt_session_parts_key(sides[i], true, 0x109, &parts_too);
        assert_memory_equal(parts.bytes, parts_too.bytes, sizeof parts.bytes);
        bt_session_parts_key(sides[1 - i], false, 0x109, &parts_too);
        assert_memory_equal(parts.bytes, parts_too.bytes, sizeof parts.bytes);
        bt_session_parts_key(sides[i], true, 0x10A, &parts_too);
        assert_memory_not_equal(parts.bytes, parts_too.bytes, sizeof parts.bytes);
    }
}

static void frames_pass_in_both_directions(void **state)
{
    (void)state;
    pair p;
    wire w;
    open_pair(&p, &KEY, 1, 2);
    for (uint64_t i = 1; i < 20; i++) {
        say(&p.sink, BT_FRAME_PULL, i, &w);
        assert_int_equal(check(&p.source, &w), BT_OK);
        assert_int_equal(check(&p.sink, &w), BT_EPERMISSION); /* reflected */
        say(&p.source, BT_FRAME_RENEW, i, &w);
        assert_int_equal(check(&p.sink, &w), BT_OK);
        assert_int_equal(check(&p.source, &w), BT_EPERMISSION);
    }
}

/* The checksum is made right again, as an attacker would. */
static void repair_sum(wire *w)
{
    const uint32_t sum = bt_crc32c(bt_crc32c(0, w->bytes, SUM_AT), w->bytes + BT_FRAME_HEADER_BYTES,
                                   w->n - BT_FRAME_HEADER_BYTES);
    for (size_t i = 0; i < 4; i++) {
        w->bytes[SUM_AT + i] = (uint8_t)(sum >> (8 * i));
    }
}

static void no_changed_bit_passes(void **state)
{
    (void)state;
    pair p;
    wire w;
    open_pair(&p, &KEY, 1, 2);
    const bt_session before = p.source;
    say(&p.sink, BT_FRAME_PULL, 1, &w);
    for (size_t bit = 0; bit < 8 * w.n; bit++) {
        wire changed = w;
        changed.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        repair_sum(&changed);
        if (memcmp(changed.bytes, w.bytes, w.n) == 0) {
            continue; /* it was a bit of the checksum */
        }
        bt_session session = before;
        assert_int_not_equal(check(&session, &changed), BT_OK);
    }
    assert_int_equal(check(&p.source, &w), BT_OK);
}

/* Each bit of HELLO and CHALLENGE counts: the nonces, the wish and the choice too. */
static void no_changed_bit_opens_a_session(void **state)
{
    (void)state;
    pair p;
    open_pair(&p, &KEY, 1, 2);
    for (size_t bit = 0; bit < 8 * p.hello.n; bit++) {
        wire changed = p.hello;
        bt_session source;
        bt_session_init(&source, BT_SESSION_SOURCE, &KEY);
        changed.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(check(&source, &changed), BT_OK);
    }
    for (size_t bit = 0; bit < 8 * p.challenge.n; bit++) {
        wire changed = p.challenge;
        wire hello;
        bt_session sink;
        const bt_frame frame = hello_frame(1);
        bt_session_init(&sink, BT_SESSION_SINK, &KEY);
        encode(&frame, 0, &hello);
        bt_session_seal(&sink, hello.bytes, hello.n);
        changed.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        const bt_status status = check(&sink, &changed);
        assert_int_not_equal(status, BT_OK);
        assert_false(sink.open);
        if (status == BT_EPERMISSION) { /* the right one comes too late now */
            assert_int_equal(check(&sink, &p.challenge), BT_EPROTOCOL);
        }
    }
}

static void another_key_opens_nothing(void **state)
{
    (void)state;
    pair p;
    bt_hash_key other = KEY;
    other.bytes[31] ^= 1;
    open_pair(&p, &other, 1, 2);
    bt_session session;
    bt_session_init(&session, BT_SESSION_SOURCE, &KEY);
    assert_int_equal(check(&session, &p.hello), BT_EPERMISSION);
    bt_session_init(&session, BT_SESSION_SINK, &KEY);
    const bt_frame frame = hello_frame(1);
    wire hello;
    encode(&frame, 0, &hello);
    bt_session_seal(&session, hello.bytes, hello.n);
    assert_int_equal(check(&session, &p.challenge), BT_EPERMISSION);
}

/* A recorded connection, with a fresh nonce on one side or the other. */
static void frames_of_another_connection_fail(void **state)
{
    (void)state;
    pair old;
    pair now;
    wire w;
    open_pair(&old, &KEY, 1, 2);
    for (int i = 0; i < 2; i++) {
        open_pair(&now, &KEY, i == 0 ? 1 : 3, i == 0 ? 3 : 2);
        say(&old.sink, BT_FRAME_PROOF, 1, &w);
        assert_int_equal(check(&now.source, &w), BT_EPERMISSION);
        say(&old.source, BT_FRAME_WELCOME, 1, &w);
        assert_int_equal(check(&now.sink, &w), BT_EPERMISSION);
    }
}

static void nothing_passes_before_its_time(void **state)
{
    (void)state;
    pair p;
    wire w;
    open_pair(&p, &KEY, 1, 2);
    bt_session fresh;
    say(&p.sink, BT_FRAME_PROOF, 1, &w);
    bt_session_init(&fresh, BT_SESSION_SOURCE, &KEY);
    assert_int_equal(check(&fresh, &w), BT_EPROTOCOL);
    assert_int_equal(check(&fresh, &p.challenge), BT_EPROTOCOL);
    assert_int_equal(check(&fresh, &p.hello), BT_OK);
    assert_int_equal(check(&fresh, &p.hello), BT_EPROTOCOL);
    assert_int_equal(check(&fresh, &w), BT_EPROTOCOL);
    bt_session_init(&fresh, BT_SESSION_SINK, &KEY);
    assert_int_equal(check(&fresh, &p.challenge), BT_EPROTOCOL);
    assert_int_equal(check(&fresh, &p.hello), BT_EPROTOCOL);
    /* A refusal has no tag, ever. */
    const bt_frame refuse = {.type = BT_FRAME_REFUSE,
                             .u.end = {.status = BT_EMISMATCH, .text = ""}};
    encode(&refuse, 0, &w);
    assert_int_equal(check(&fresh, &w), BT_OK);
    w.bytes[TAG_AT] = 1;
    assert_int_equal(check(&fresh, &w), BT_EPROTOCOL);
    bt_session_deinit(&p.sink);
    static const bt_session zero;
    assert_memory_equal(&p.sink, &zero, sizeof zero);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tags_are_those_of_the_formula),
        cmocka_unit_test(frames_pass_in_both_directions),
        cmocka_unit_test(no_changed_bit_passes),
        cmocka_unit_test(no_changed_bit_opens_a_session),
        cmocka_unit_test(another_key_opens_nothing),
        cmocka_unit_test(frames_of_another_connection_fail),
        cmocka_unit_test(nothing_passes_before_its_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
