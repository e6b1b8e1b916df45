/* SPDX-License-Identifier: Apache-2.0 */
/* Tags against the vectors of RFC 8439, whole and in pieces of every size. */
#include "common/mac.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static bt_hash_key key_of(const char *hex)
{
    bt_hash_key key;
    assert_int_equal(bt_hash_unhex(hex, key.bytes, sizeof key.bytes), BT_OK);
    return key;
}

static void expect_tag(const bt_hash_key *key, const void *bytes, size_t n, size_t step,
                       const char *hex)
{
    bt_mac mac;
    uint8_t tag[BT_MAC_TAG_BYTES];
    char text[2 * BT_MAC_TAG_BYTES + 1];
    bt_mac_init(&mac, key);
    for (size_t at = 0; at < n; at += step) {
        bt_mac_update(&mac, (const uint8_t *)bytes + at, bt_size_min(step, n - at));
    }
    bt_mac_final(&mac, tag);
    bt_hash_hex(tag, sizeof tag, text);
    assert_string_equal(text, hex);
}

/* RFC 8439, sections 2.5.2 and A.3 (vectors 1 and 7). */
static void tags_are_those_of_the_rfc_in_pieces_of_any_size(void **state)
{
    (void)state;
    static const char text[] = "Cryptographic Forum Research Group";
    const bt_hash_key key =
        key_of("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b");
    const bt_hash_key zero = {{0}};
    const bt_hash_key one = {{1}};
    const uint8_t zeros[64] = {0};
    uint8_t ones[48];
    memset(ones, 0xFF, sizeof ones);
    ones[16] = 0xF0;
    memset(ones + 32, 0, 16);
    ones[32] = 0x11;
    for (size_t step = 1; step <= 64; step++) {
        expect_tag(&key, text, sizeof text - 1, step, "a8061dc1305136c6c22b8baf0c0127a9");
        expect_tag(&zero, zeros, sizeof zeros, step, "00000000000000000000000000000000");
        expect_tag(&one, ones, sizeof ones, step, "05000000000000000000000000000000");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tags_are_those_of_the_rfc_in_pieces_of_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
