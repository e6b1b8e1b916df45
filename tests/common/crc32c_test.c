/* SPDX-License-Identifier: Apache-2.0 */
/* Proves CRC-32C against RFC 3720's answers and against a loop over bits, on every path,
 * length and alignment around the lanes' borders. */
#include "common/crc32c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_BYTES = 20000 };

static uint32_t by_bits(uint32_t crc, const uint8_t *bytes, size_t n)
{
    uint32_t raw = ~crc;
    for (size_t i = 0; i < n; i++) {
        raw ^= bytes[i];
        for (int b = 0; b < 8; b++) {
            raw = (raw >> 1) ^ (raw & 1 ? 0x82F63B78U : 0);
        }
    }
    return ~raw;
}

static uint8_t *make_bytes(void)
{
    uint8_t *bytes = malloc(N_BYTES);
    assert_non_null(bytes);
    uint32_t x = 1;
    for (size_t i = 0; i < N_BYTES; i++) {
        x = x * 1664525 + 1013904223;
        bytes[i] = (uint8_t)(x >> 24);
    }
    return bytes;
}

static void answers_of_the_rfc_are_met(void **state)
{
    (void)state;
    uint8_t bytes[32];
    assert_int_equal(bt_crc32c(0, "123456789", 9), 0xE3069283U);
    assert_int_equal(bt_crc32c_portable(0, "123456789", 9), 0xE3069283U);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(bt_crc32c(0, bytes, sizeof bytes), 0x8A9136AAU);
    memset(bytes, 0xFF, sizeof bytes);
    assert_int_equal(bt_crc32c(0, bytes, sizeof bytes), 0x62A8AB43U);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)i;
    }
    assert_int_equal(bt_crc32c(0, bytes, sizeof bytes), 0x46DD794EU);
    assert_int_equal(bt_crc32c(5, bytes, 0), 5);
}

static void all_paths_agree_with_the_bits(void **state)
{
    (void)state;
    uint8_t *bytes = make_bytes();
    uint8_t *copy = malloc(N_BYTES);
    assert_non_null(copy);
    for (size_t n = 0; n < N_BYTES - 8; n += n < 900 ? 1 : 251) {
        const uint8_t *at = bytes + n % 8;
        const uint32_t expected = by_bits(0x1234, at, n);
        assert_int_equal(bt_crc32c(0x1234, at, n), expected);
        assert_int_equal(bt_crc32c_portable(0x1234, at, n), expected);
        memset(copy, 0, N_BYTES);
        assert_int_equal(bt_crc32c_copy(0x1234, copy + n % 3, at, n), expected);
        assert_memory_equal(copy + n % 3, at, n);
        assert_int_equal(copy[n % 3 + n], 0); /* not a byte more */
    }
    assert_non_null(bt_crc32c_path());
    free(copy);
    free(bytes);
}

static void parts_chain_and_combine(void **state)
{
    (void)state;
    uint8_t *bytes = make_bytes();
    const uint32_t whole = bt_crc32c(0, bytes, N_BYTES);
    for (size_t cut = 0; cut <= N_BYTES; cut += 997) {
        const uint32_t a = bt_crc32c(0, bytes, cut);
        const uint32_t b = bt_crc32c(0, bytes + cut, N_BYTES - cut);
        assert_int_equal(bt_crc32c(a, bytes + cut, N_BYTES - cut), whole);
        assert_int_equal(bt_crc32c_combine(a, b, N_BYTES - cut), whole);
    }
    free(bytes);
}

static void any_flipped_bit_shows(void **state)
{
    (void)state;
    uint8_t *bytes = make_bytes();
    const uint32_t good = bt_crc32c(0, bytes, 8192);
    for (size_t bit = 0; bit < 8192 * 8; bit += 701) {
        bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
        assert_int_not_equal(bt_crc32c(0, bytes, 8192), good);
        bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_of_the_rfc_are_met),
        cmocka_unit_test(all_paths_agree_with_the_bits),
        cmocka_unit_test(parts_chain_and_combine),
        cmocka_unit_test(any_flipped_bit_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
