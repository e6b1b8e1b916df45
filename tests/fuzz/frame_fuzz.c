/* SPDX-License-Identifier: Apache-2.0 */
/* One frame of the KV plane. Damaged ones die at the checksum, so the input's own is replaced by
 * the right one first: what lies behind it is under test. What decodes is encoded again, to the
 * same bytes. */
#include <string.h>

#include "common/crc32c.h"
#include "kvtransfer/frame.h"
#include "tests/fuzz/fuzz.h"

/* See frame.h: the header ends with the checksum and the tag, which is session.h's business. */
enum { SUM_AT = BT_FRAME_HEADER_BYTES - BT_FRAME_TAG_BYTES - 4 };

static void put_right_sum(uint8_t *wire, size_t len)
{
    uint32_t sum = bt_crc32c(0, wire, SUM_AT);
    sum = bt_crc32c(sum, wire + BT_FRAME_HEADER_BYTES, len - BT_FRAME_HEADER_BYTES);
    memset(wire + SUM_AT + 4, 0, BT_FRAME_TAG_BYTES);
    for (size_t i = 0; i < 4; i++) {
        wire[SUM_AT + i] = (uint8_t)(sum >> (8 * i));
    }
}

/* A decoded frame as one to encode: arrays of numbers leave the wire. */
static void take_numbers(bt_frame *frame, uint32_t numbers[BT_FRAME_SUMS_MAX])
{
    if (frame->type == BT_FRAME_PULL) {
        static bt_hash128 wanted[BT_KV_WANTED_MAX];
        FUZZ_EXPECT(frame->u.pull.n_wanted <= BT_KV_WANTED_MAX);
        for (uint32_t i = 0; i < frame->u.pull.n_wanted; i++) {
            wanted[i] = bt_hash128_from_bytes(frame->u.pull.wire + 16 * (size_t)i);
        }
        frame->u.pull.wanted = wanted;
    }
    if (frame->type == BT_FRAME_OFFER) {
        for (uint32_t i = 0; i < frame->u.offer.n_ids; i++) {
            numbers[i] = bt_frame_u32(frame->u.offer.wire, i);
        }
        frame->u.offer.ids = numbers;
    } else if (frame->type == BT_FRAME_ANNOUNCE) {
        const uint64_t n = bt_plan_rect_parts(&frame->u.announce.rect);
        FUZZ_EXPECT(n <= BT_FRAME_SUMS_MAX);
        for (uint64_t i = 0; i < n; i++) {
            numbers[i] = bt_frame_u32(frame->u.announce.wire, i);
        }
        frame->u.announce.sums = numbers;
    }
}

static void check_hello(const bt_frame_hello *hello)
{
    bt_kv_terms terms = {0};
    FUZZ_EXPECT(bt_kv_layout_init(&terms.layout, 2, 2, 8, BT_KV_FORMAT_BF16));
    bt_error err = {""};
    const bt_status status = bt_frame_hello_check(hello, &terms, &err);
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, &err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t wire[BT_FRAME_BYTES_MAX];
    static uint8_t again[BT_FRAME_BYTES_MAX];
    static uint32_t
        numbers[BT_FRAME_SUMS_MAX > BT_FRAME_IDS_MAX ? BT_FRAME_SUMS_MAX : BT_FRAME_IDS_MAX];
    if (size < BT_FRAME_HEADER_BYTES || size > sizeof wire) {
        return 0;
    }
    memcpy(wire, data, size);
    bt_frame_header header;
    bt_error err = {""};
    bt_status status = bt_frame_decode_header(wire, &header, &err);
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, &err);
        return 0;
    }
    const size_t len = BT_FRAME_HEADER_BYTES + header.body_bytes;
    if (len > size) {
        return 0; /* the receiver waits for the rest */
    }
    put_right_sum(wire, len);
    FUZZ_EXPECT(bt_frame_decode_header(wire, &header, &err) == BT_OK);
    bt_frame frame;
    status = bt_frame_decode_body(&header, wire, &frame, &err);
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, &err);
        return 0;
    }
    if (frame.type == BT_FRAME_HELLO || frame.type == BT_FRAME_WELCOME) {
        check_hello(&frame.u.hello);
    }
    take_numbers(&frame, numbers);
    FUZZ_EXPECT(bt_frame_encode(&frame, header.counter, again) == len);
    FUZZ_EXPECT(memcmp(again, wire, len) == 0);
    return 0;
}
