/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that each frame survives the wire, that no wrong bit does (those of the tag are
 * session_test's), and that hellos say what differs. */
#include "kvtransfer/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/crc32c.h"
#include "common/hash.h"

static const bt_kv_transfer NAME = {.request = {.hi = 0x1122334455667788, .lo = 42}, .attempt = 7};

static bt_kv_terms make_terms(void)
{
    bt_kv_terms terms = {.numerics_id = {1, 2, 3}, .cluster_key = {{9, 8, 7}}};
    assert_true(bt_kv_layout_init(&terms.layout, 4, 2, 8, BT_KV_FORMAT_BF16));
    return terms;
}

static bt_status decode(const uint8_t *wire, size_t n, bt_frame *frame, uint64_t *counter)
{
    bt_frame_header header;
    const bt_status status = bt_frame_decode_header(wire, &header, NULL);
    if (status != BT_OK) {
        return status;
    }
    if (BT_FRAME_HEADER_BYTES + header.body_bytes != n) {
        return BT_EPROTOCOL; /* on a stream: waits, or reads the next frame's bytes */
    }
    *counter = header.counter;
    return bt_frame_decode_body(&header, wire, frame, NULL);
}

/* One of each type. */
static size_t make_frames(bt_frame frames[BT_FRAME_TYPE_END])
{
    static const bt_block_id ids[] = {5, 1, 70000};
    static const uint32_t sums[] = {0xDEADBEEF, 1, 2, 3, 4, 5};
    const bt_kv_terms terms = make_terms();
    size_t n = 0;
    frames[n] = (bt_frame){.type = BT_FRAME_HELLO};
    bt_frame_hello_set(&frames[n].u.hello, &terms, 77, 100);
    frames[n++].u.hello.expected = 88;
    frames[n++] =
        (bt_frame){.type = BT_FRAME_CHALLENGE,
                   .u.challenge = {.auth = BT_KV_AUTH_FULL, .incarnation = 88, .nonce = {1, 2, 3}}};
    frames[n++] = (bt_frame){.type = BT_FRAME_PROOF};
    frames[n] = (bt_frame){.type = BT_FRAME_WELCOME};
    bt_frame_hello_set(&frames[n++].u.hello, &terms, 88, 200);
    frames[n++] = (bt_frame){.type = BT_FRAME_REFUSE,
                             .u.end = {.status = BT_EMISMATCH, .text = "no", .text_bytes = 2}};
    frames[n++] =
        (bt_frame){.type = BT_FRAME_PULL, .transfer = NAME, .u.pull = {.deadline_ms = 1234}};
    frames[n++] = (bt_frame){.type = BT_FRAME_RENEW};
    frames[n++] =
        (bt_frame){.type = BT_FRAME_OFFER,
                   .transfer = NAME,
                   .u.offer = {.n_tokens = 40, .n_blocks = 3, .first = 0, .n_ids = 3, .ids = ids}};
    frames[n++] = (bt_frame){.type = BT_FRAME_ANNOUNCE,
                             .transfer = NAME,
                             .u.announce = {.rect = {1, 2, 0, 3}, .sums = sums}};
    frames[n++] = (bt_frame){
        .type = BT_FRAME_READ, .transfer = NAME, .u.read = {.op = 3, .rect = {1, 2, 0, 3}}};
    frames[n++] = (bt_frame){.type = BT_FRAME_DATA,
                             .transfer = NAME,
                             .u.data = {.op = 3, .bytes = 4096, .offset = 1 << 20, .tag = {7}}};
    frames[n++] = (bt_frame){.type = BT_FRAME_COMPLETE,
                             .transfer = NAME,
                             .u.complete = {.ends = true, .blob = "token", .blob_bytes = 5}};
    frames[n++] = (bt_frame){.type = BT_FRAME_REVOKE,
                             .transfer = NAME,
                             .u.end = {.status = BT_EDEADLINE, .text = "late", .text_bytes = 4}};
    frames[n++] = (bt_frame){.type = BT_FRAME_END, .transfer = NAME, .u.end = {.text = ""}};
    assert_int_equal(n, BT_FRAME_TYPE_END - 1);
    return n;
}

static void each_frame_survives_the_wire(void **state)
{
    (void)state;
    bt_frame frames[BT_FRAME_TYPE_END];
    const size_t n = make_frames(frames);
    for (size_t i = 0; i < n; i++) {
        uint8_t wire[BT_FRAME_BYTES_MAX];
        uint8_t again[BT_FRAME_BYTES_MAX];
        bt_frame frame;
        uint64_t counter = 0;
        const size_t bytes = bt_frame_encode(&frames[i], i + 5, wire);
        assert_int_equal(decode(wire, bytes, &frame, &counter), BT_OK);
        assert_int_equal(counter, i + 5);
        assert_int_equal(frame.type, frames[i].type);
        assert_true(bt_kv_transfer_equal(frame.transfer, frames[i].transfer));
        /* What was decoded, encoded again, is the same bytes. */
        bt_block_id ids[3];
        uint32_t sums[6];
        if (frame.type == BT_FRAME_OFFER) {
            for (uint32_t k = 0; k < frame.u.offer.n_ids; k++) {
                ids[k] = bt_frame_u32(frame.u.offer.wire, k);
            }
            frame.u.offer.ids = ids;
        }
        if (frame.type == BT_FRAME_ANNOUNCE) {
            for (uint32_t k = 0; k < 6; k++) {
                sums[k] = bt_frame_u32(frame.u.announce.wire, k);
            }
            frame.u.announce.sums = sums;
        }
        assert_int_equal(bt_frame_encode(&frame, i + 5, again), bytes);
        assert_memory_equal(wire, again, bytes);
    }
}

static void no_flipped_bit_passes(void **state)
{
    (void)state;
    bt_frame frames[BT_FRAME_TYPE_END];
    const size_t n = make_frames(frames);
    for (size_t i = 0; i < n; i++) {
        uint8_t wire[BT_FRAME_BYTES_MAX];
        const size_t bytes = bt_frame_encode(&frames[i], 0, wire);
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            bt_frame frame;
            uint64_t counter;
            if (bit / 8 >= BT_FRAME_HEADER_BYTES - BT_FRAME_TAG_BYTES &&
                bit / 8 < BT_FRAME_HEADER_BYTES) {
                continue;
            }
            wire[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(decode(wire, bytes, &frame, &counter), BT_EPROTOCOL);
            wire[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
}

static void bodies_of_a_wrong_length_are_refused(void **state)
{
    (void)state;
    bt_frame frames[BT_FRAME_TYPE_END];
    const size_t n = make_frames(frames);
    for (size_t i = 0; i < n; i++) {
        uint8_t wire[BT_FRAME_BYTES_MAX];
        (void)bt_frame_encode(&frames[i], 0, wire);
        bt_frame_header header;
        assert_int_equal(bt_frame_decode_header(wire, &header, NULL), BT_OK);
        static const uint8_t wrong[][4] = {{0xFF, 0xFF, 0xFF, 0xFF}, {1, 0x41, 0, 0}};
        for (size_t k = 0; k < BT_ARRAY_LEN(wrong); k++) {
            memcpy(wire, wrong[k], 4);
            bt_error err;
            assert_int_equal(bt_frame_decode_header(wire, &header, &err), BT_EPROTOCOL);
            assert_non_null(strstr(err.text, bt_frame_type_name(frames[i].type)));
        }
    }
    assert_string_equal(bt_frame_type_name(999), "?");
}

static void a_pull_names_blocks_by_whole_identities(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, BT_KV_WANTED_MAX};
    for (size_t k = 0; k < BT_ARRAY_LEN(sizes); k++) {
        static bt_hash128 wanted[BT_KV_WANTED_MAX];
        for (uint32_t i = 0; i < sizes[k]; i++) {
            wanted[i] = (bt_hash128){.w = {i * UINT64_C(0x0123456789ABCDEF), ~(uint64_t)i}};
        }
        const bt_frame pull = {
            .type = BT_FRAME_PULL,
            .transfer = NAME,
            .u.pull = {.deadline_ms = 9, .n_wanted = sizes[k], .wanted = wanted},
        };
        uint8_t wire[BT_FRAME_BYTES_MAX];
        bt_frame frame;
        uint64_t counter;
        const size_t bytes = bt_frame_encode(&pull, 0, wire);
        assert_int_equal(decode(wire, bytes, &frame, &counter), BT_OK);
        assert_int_equal(frame.u.pull.deadline_ms, 9);
        assert_int_equal(frame.u.pull.n_wanted, sizes[k]);
        for (uint32_t i = 0; i < sizes[k]; i++) {
            assert_true(bt_hash128_equal(bt_hash128_from_bytes(frame.u.pull.wire + 16 * (size_t)i),
                                         wanted[i]));
        }
    }
    /* A part of one is none: a body of 4 + 8 bytes with a right checksum. */
    const bt_frame odd = {.type = BT_FRAME_PULL, .transfer = NAME, .u.pull = {.deadline_ms = 9}};
    uint8_t wire[BT_FRAME_BYTES_MAX];
    (void)bt_frame_encode(&odd, 0, wire);
    memset(wire + BT_FRAME_HEADER_BYTES + 4, 1, 8);
    wire[0] = 12;
    const size_t sum_at = BT_FRAME_HEADER_BYTES - BT_FRAME_TAG_BYTES - 4;
    const uint32_t sum = bt_crc32c(bt_crc32c(0, wire, sum_at), wire + BT_FRAME_HEADER_BYTES, 12);
    memcpy(wire + sum_at, &sum, 4);
    bt_frame frame;
    uint64_t counter;
    assert_int_equal(decode(wire, BT_FRAME_HEADER_BYTES + 12, &frame, &counter), BT_EPROTOCOL);
}

static void hellos_say_what_differs(void **state)
{
    (void)state;
    const bt_kv_terms own = make_terms();
    bt_frame_hello hello;
    bt_error err;
    bt_frame_hello_set(&hello, &own, 1, 10);
    assert_int_equal(bt_frame_hello_check(&hello, &own, &err), BT_OK);

    hello.magic++;
    assert_int_equal(bt_frame_hello_check(&hello, &own, &err), BT_EPROTOCOL);
    hello.magic--;
    hello.version++;
    assert_int_equal(bt_frame_hello_check(&hello, &own, &err), BT_EMISMATCH);
    assert_non_null(strstr(err.text, "same release"));
    hello.version--;
    hello.n_kv_heads++;
    assert_int_equal(bt_frame_hello_check(&hello, &own, &err), BT_EMISMATCH);
    assert_non_null(strstr(err.text, "4 layers x 3 heads"));
    assert_non_null(strstr(err.text, "same model"));
    hello.n_kv_heads--;
    hello.numerics_id[0]++;
    assert_int_equal(bt_frame_hello_check(&hello, &own, &err), BT_EMISMATCH);
    assert_non_null(strstr(err.text, "--kernels"));
    bt_kv_terms mixed = own;
    mixed.allow_mixed_numerics = true;
    assert_int_equal(bt_frame_hello_check(&hello, &mixed, &err), BT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_frame_survives_the_wire),
        cmocka_unit_test(no_flipped_bit_passes),
        cmocka_unit_test(bodies_of_a_wrong_length_are_refused),
        cmocka_unit_test(a_pull_names_blocks_by_whole_identities),
        cmocka_unit_test(hellos_say_what_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
