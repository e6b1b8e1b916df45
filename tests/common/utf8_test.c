/* SPDX-License-Identifier: Apache-2.0 */
/* Proves well-formedness for every 1- to 3-byte start against a decoder of code points,
 * and the maximal subparts of Unicode's own example. */
#include "common/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static size_t encode(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

static void every_code_point_but_surrogates_is_valid(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char text[4];
        bool valid;
        const size_t n = encode(c, text);
        const size_t len = bt_utf8_step(text, n, &valid);
        const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
        assert_int_equal(valid, !surrogate);
        assert_int_equal(len, surrogate ? 1 : n);
        if (n > 1 && !surrogate) {
            assert_int_equal(bt_utf8_step(text, n - 1, &valid), n - 1); /* cut off */
            assert_false(valid);
        }
    }
}

static void nothing_else_is_valid(void **state)
{
    (void)state;
    size_t n_valid = 0;
    for (uint32_t b = 0; b < 0x1000000; b++) {
        const char text[3] = {(char)(b >> 16), (char)(b >> 8), (char)b};
        bool valid;
        const size_t len = bt_utf8_step(text, 3, &valid);
        n_valid += valid && len == 3;
    }
    assert_int_equal(n_valid, 0x10000 - 0x800 - 0x800); /* 3-byte code points, no surrogates */
}

static void subparts_are_maximal(void **state)
{
    (void)state;
    /* Unicode 15, table 3-8: lengths of what is shown as one U+FFFD each */
    const char text[] = "a\xF1\x80\x80\xE1\x80\xC2"
                        "b\x80"
                        "c\x80\xBF"
                        "d";
    const size_t lengths[] = {1, 3, 2, 1, 1, 1, 1, 1, 1, 1};
    const bool valids[] = {true, false, false, false, true, false, true, false, false, true};
    size_t at = 0;
    for (size_t i = 0; i < BT_ARRAY_LEN(lengths); i++) {
        bool valid;
        assert_int_equal(bt_utf8_step(text + at, strlen(text) - at, &valid), lengths[i]);
        assert_int_equal(valid, valids[i]);
        at += lengths[i];
    }
    assert_int_equal(at, strlen(text));
}

static void the_first_wrong_byte_is_named(void **state)
{
    (void)state;
    size_t offset = 99;
    assert_true(bt_utf8_valid("gr\xC3\xBC\xC3\x9F \xF0\x9F\x98\x80", 11, &offset));
    assert_int_equal(offset, 99);
    assert_false(bt_utf8_valid("ok\xF4\x90\x80\x80", 6, &offset)); /* above U+10FFFF */
    assert_int_equal(offset, 2);
    assert_false(bt_utf8_valid("\xC0\x80", 2, &offset)); /* overlong */
    assert_int_equal(offset, 0);
    assert_false(bt_utf8_valid("x\xE2\x82", 3, NULL));
    assert_true(bt_utf8_valid("", 0, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_but_surrogates_is_valid),
        cmocka_unit_test(nothing_else_is_valid),
        cmocka_unit_test(subparts_are_maximal),
        cmocka_unit_test(the_first_wrong_byte_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
