/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that what is written is read again, byte for byte little-endian, and that neither
 * side passes the end, for every length that is too short. */
#include "common/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { FRAME_BYTES = 1 + 2 + 4 + 8 + 8 + 4 + 8 + 5 + 3 };

static void write_frame(bt_bytes_writer *w)
{
    bt_bytes_write_u8(w, 0xA1);
    bt_bytes_write_u16(w, 0xB1B2);
    bt_bytes_write_u32(w, 0xC1C2C3C4);
    bt_bytes_write_u64(w, UINT64_C(0xD1D2D3D4D5D6D7D8));
    bt_bytes_write_i64(w, -2);
    bt_bytes_write_f32(w, -0.5F);
    bt_bytes_write_f64(w, 1e300);
    bt_bytes_write_copy(w, "hello", 5);
    bt_bytes_write_zeros(w, 3);
}

static void a_frame_is_read_as_it_was_written(void **state)
{
    (void)state;
    uint8_t buffer[FRAME_BYTES];
    char text[5];
    bt_bytes_writer w;
    bt_bytes_reader r;
    bt_bytes_writer_init(&w, buffer, sizeof buffer);
    write_frame(&w);
    assert_true(w.ok);
    assert_int_equal(w.len, FRAME_BYTES);
    const uint8_t start[] = {0xA1, 0xB2, 0xB1, 0xC4, 0xC3, 0xC2, 0xC1, 0xD8};
    assert_memory_equal(buffer, start, sizeof start);

    bt_bytes_reader_init(&r, buffer, sizeof buffer);
    assert_int_equal(bt_bytes_read_u8(&r), 0xA1);
    assert_int_equal(bt_bytes_read_u16(&r), 0xB1B2);
    assert_int_equal(bt_bytes_read_u32(&r), 0xC1C2C3C4);
    assert_true(bt_bytes_read_u64(&r) == UINT64_C(0xD1D2D3D4D5D6D7D8));
    assert_int_equal(bt_bytes_read_i64(&r), -2);
    assert_true(bt_bytes_read_f32(&r) == -0.5F);
    assert_true(bt_bytes_read_f64(&r) == 1e300);
    bt_bytes_read_copy(&r, text, sizeof text);
    assert_memory_equal(text, "hello", 5);
    assert_int_equal(bt_bytes_left(&r), 3);
    assert_false(bt_bytes_reader_done(&r));
    bt_bytes_skip(&r, 3);
    assert_true(bt_bytes_reader_done(&r));
}

static void short_buffers_fail_without_a_byte_too_many(void **state)
{
    (void)state;
    for (size_t n = 0; n < FRAME_BYTES; n++) {
        uint8_t buffer[FRAME_BYTES + 1];
        bt_bytes_writer w;
        memset(buffer, 0xEE, sizeof buffer);
        bt_bytes_writer_init(&w, buffer, n);
        write_frame(&w);
        assert_false(w.ok);
        assert_true(w.len <= n);
        for (size_t i = n; i < sizeof buffer; i++) {
            assert_int_equal(buffer[i], 0xEE);
        }
        bt_bytes_patch_u32(&w, 0, 1); /* does nothing any more */
    }
}

static void reads_past_the_end_give_zeros_for_good(void **state)
{
    (void)state;
    const uint8_t buffer[6] = {1, 2, 3, 4, 5, 6};
    uint8_t out[4] = {9, 9, 9, 9};
    bt_bytes_reader r;
    bt_bytes_reader_init(&r, buffer, sizeof buffer);
    assert_int_equal(bt_bytes_read_u32(&r), 0x04030201);
    assert_int_equal(bt_bytes_read_u64(&r), 0);
    assert_false(r.ok);
    assert_int_equal(bt_bytes_read_u8(&r), 0); /* though two bytes were left */
    assert_null(bt_bytes_read_span(&r, 0));
    assert_int_equal(bt_bytes_left(&r), 0);
    bt_bytes_read_copy(&r, out, sizeof out);
    assert_int_equal(out[0] | out[1] | out[2] | out[3], 0);
    assert_false(bt_bytes_reader_done(&r));
}

static void huge_lengths_do_not_wrap(void **state)
{
    (void)state;
    uint8_t buffer[8] = {0};
    bt_bytes_reader r;
    bt_bytes_writer w;
    bt_bytes_reader_init(&r, buffer, sizeof buffer);
    (void)bt_bytes_read_u8(&r);
    assert_null(bt_bytes_read_span(&r, SIZE_MAX));
    assert_false(r.ok);
    bt_bytes_writer_init(&w, buffer, sizeof buffer);
    bt_bytes_write_u8(&w, 1);
    bt_bytes_write_zeros(&w, SIZE_MAX);
    assert_false(w.ok);
    assert_int_equal(w.len, 1);
}

static void empty_input_is_done_at_once(void **state)
{
    (void)state;
    bt_bytes_reader r;
    bt_bytes_reader_init(&r, NULL, 0);
    assert_true(bt_bytes_reader_done(&r));
    assert_non_null(bt_bytes_read_span(&r, 0));
    bt_bytes_reader_init(&r, NULL, 3);
    assert_false(r.ok);
}

static void a_length_can_be_patched_in_later(void **state)
{
    (void)state;
    uint8_t buffer[16];
    bt_bytes_writer w;
    bt_bytes_writer_init(&w, buffer, sizeof buffer);
    bt_bytes_write_u16(&w, 7);
    bt_bytes_write_u32(&w, 0);
    bt_bytes_write_copy(&w, "abc", 3);
    bt_bytes_patch_u32(&w, 2, (uint32_t)w.len);
    const uint8_t expected[] = {7, 0, 9, 0, 0, 0, 'a', 'b', 'c'};
    assert_int_equal(w.len, sizeof expected);
    assert_memory_equal(buffer, expected, sizeof expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_is_read_as_it_was_written),
        cmocka_unit_test(short_buffers_fail_without_a_byte_too_many),
        cmocka_unit_test(reads_past_the_end_give_zeros_for_good),
        cmocka_unit_test(huge_lengths_do_not_wrap),
        cmocka_unit_test(empty_input_is_done_at_once),
        cmocka_unit_test(a_length_can_be_patched_in_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
