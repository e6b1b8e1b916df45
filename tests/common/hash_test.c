/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the hashes against published vectors (RFC 7693 and hashlib), that parts and one
 * shot agree, and that hex and bytes go both ways. */
#include "common/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void blake2b_matches_known_answers(void **state)
{
    (void)state;
    char hex[BT_HASH256_HEX_BYTES];
    /* hashlib.blake2b(b"abc", digest_size=32) and digest_size=16 */
    const bt_hash256 h256 = bt_hash256_of(NULL, "abc", 3);
    bt_hash_hex(h256.bytes, sizeof h256.bytes, hex);
    assert_string_equal(hex, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
    bt_hash128_hex(bt_hash128_of(NULL, "abc", 3), hex);
    assert_string_equal(hex, "cf4ab791c62b8d2b2109c90275287816");
    bt_hash_key key;
    for (size_t i = 0; i < sizeof key.bytes; i++) {
        key.bytes[i] = (uint8_t)i;
    }
    /* hashlib.blake2b(b"abc", digest_size=16, key=bytes(range(32))) */
    bt_hash128_hex(bt_hash128_of(&key, "abc", 3), hex);
    assert_string_equal(hex, "1a64be47e4729d951c302ee543f97cf3");
}

static void parts_and_one_shot_agree(void **state)
{
    (void)state;
    uint8_t bytes[300];
    bt_hash_key key;
    memset(&key, 7, sizeof key);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * 31);
    }
    for (size_t cut = 0; cut <= sizeof bytes; cut += 25) {
        bt_hash hash;
        bt_hash128_init(&hash, &key);
        bt_hash_update(&hash, bytes, cut);
        bt_hash fork = hash; /* goes on from the same start */
        bt_hash_update(&hash, bytes + cut, sizeof bytes - cut);
        const bt_hash128 whole = bt_hash128_of(&key, bytes, sizeof bytes);
        assert_true(bt_hash128_equal(bt_hash128_final(&hash), whole));
        assert_true(bt_hash128_equal(bt_hash128_final(&fork), bt_hash128_of(&key, bytes, cut)));
        bt_hash256_init(&hash, NULL);
        bt_hash_update(&hash, bytes, cut);
        const bt_hash256 parts = bt_hash256_final(&hash);
        const bt_hash256 once = bt_hash256_of(NULL, bytes, cut);
        assert_memory_equal(parts.bytes, once.bytes, sizeof once.bytes);
    }
}

static void another_key_gives_another_hash(void **state)
{
    (void)state;
    bt_hash_key a;
    bt_hash_key b;
    memset(&a, 1, sizeof a);
    memset(&b, 1, sizeof b);
    b.bytes[31] ^= 1;
    assert_false(bt_hash128_equal(bt_hash128_of(&a, "x", 1), bt_hash128_of(&b, "x", 1)));
    assert_false(bt_hash_equal_secret(&a, &b, sizeof a));
    b.bytes[31] ^= 1;
    assert_true(bt_hash_equal_secret(&a, &b, sizeof a));
    bt_hash_wipe(&a, sizeof a);
    assert_int_equal(a.bytes[0], 0);
}

static void words_are_little_endian_bytes(void **state)
{
    (void)state;
    uint8_t bytes[16];
    uint8_t back[16];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i + 1);
    }
    const bt_hash128 hash = bt_hash128_from_bytes(bytes);
    assert_true(hash.w[0] == UINT64_C(0x0807060504030201));
    assert_true(hash.w[1] == UINT64_C(0x100F0E0D0C0B0A09));
    bt_hash128_to_bytes(hash, back);
    assert_memory_equal(back, bytes, sizeof bytes);
}

static void hex_goes_both_ways_and_refuses_the_rest(void **state)
{
    (void)state;
    uint8_t out[3] = {9, 9, 9};
    char hex[7];
    assert_int_equal(bt_hash_unhex("00aBff", out, 3), BT_OK);
    bt_hash_hex(out, 3, hex);
    assert_string_equal(hex, "00abff");
    const char *const wrong[] = {"", "00abf", "00abff0", "00abfg", "0x00ab", " 0abff"};
    for (size_t i = 0; i < BT_ARRAY_LEN(wrong); i++) {
        assert_int_equal(bt_hash_unhex(wrong[i], out, 3), BT_EINVAL);
    }
    assert_int_equal(out[2], 0xFF); /* untouched by failures */
}

static void random_bytes_differ(void **state)
{
    (void)state;
    uint8_t a[32] = {0};
    uint8_t b[32] = {0};
    bt_hash_random(a, sizeof a);
    bt_hash_random(b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blake2b_matches_known_answers),
        cmocka_unit_test(parts_and_one_shot_agree),
        cmocka_unit_test(another_key_gives_another_hash),
        cmocka_unit_test(words_are_little_endian_bytes),
        cmocka_unit_test(hex_goes_both_ways_and_refuses_the_rest),
        cmocka_unit_test(random_bytes_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
