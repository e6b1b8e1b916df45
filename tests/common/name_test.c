/* SPDX-License-Identifier: Apache-2.0 */
/* Proves which names are taken, for every byte there is and at both ends of the length. */
#include "common/name.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void only_the_alphabet_is_taken(void **state)
{
    (void)state;
    for (int c = 1; c < 256; c++) {
        const char name[] = {'a', (char)c, 'z', '\0'};
        const bool expected = (c < 128 && isalnum(c)) || c == '-' || c == '_' || c == '.';
        assert_int_equal(bt_name_is_valid(name, sizeof name), expected);
    }
}

static void length_ends_below_the_capacity(void **state)
{
    (void)state;
    assert_false(bt_name_is_valid("", 4));
    assert_true(bt_name_is_valid("a", 4));
    assert_true(bt_name_is_valid("abc", 4));
    assert_false(bt_name_is_valid("abcd", 4));
}

static void error_says_what_must_be(void **state)
{
    (void)state;
    bt_error err = {""};
    assert_int_equal(bt_name_check("--name", "a-1", 4, &err), BT_OK);
    static const char *const bad[] = {NULL, "", "a b", "abcd"};
    for (size_t i = 0; i < BT_ARRAY_LEN(bad); i++) {
        err.text[0] = '\0';
        assert_int_equal(bt_name_check("--name", bad[i], 4, &err), BT_EINVAL);
        assert_string_equal(err.text, "--name must be 1 to 3 letters, digits, '-', '_' or '.'");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_alphabet_is_taken),
        cmocka_unit_test(length_ends_below_the_capacity),
        cmocka_unit_test(error_says_what_must_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
