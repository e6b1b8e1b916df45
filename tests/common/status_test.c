/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that every status has a name, a text and a scope, and that error texts
 * are cut at a whole UTF-8 character. */
#include "common/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void codes_have_names_and_scopes(void **state)
{
    (void)state;
    assert_string_equal(bt_status_name(BT_EINVAL), "EINVAL");
    assert_string_equal(bt_status_text(BT_EDEADLINE), "deadline exceeded");
    assert_int_equal(bt_status_scope_of(BT_AGAIN), BT_STATUS_SCOPE_NONE);
    assert_int_equal(bt_status_scope_of(BT_EINVAL), BT_STATUS_SCOPE_REQUEST);
    assert_int_equal(bt_status_scope_of(BT_EPEER), BT_STATUS_SCOPE_PEER);
    assert_int_equal(bt_status_scope_of(BT_ENOMEM), BT_STATUS_SCOPE_WORKER);
    assert_string_equal(bt_status_name((bt_status)12345), "?");
}

static void long_texts_end_at_a_whole_character(void **state)
{
    (void)state;
    bt_error err;
    char text[400];
    for (size_t shift = 0; shift < 3; shift++) {
        memset(text, 'x', shift);
        for (size_t i = shift; i + 3 < sizeof text; i += 3) {
            memcpy(text + i, "\xE2\x82\xAC", 4);
        }
        assert_int_equal(bt_error_set(&err, BT_EINVAL, "%s", text), BT_EINVAL);
        const size_t len = strlen(err.text);
        assert_int_equal((len - shift) % 3, 0);
        assert_true(len > sizeof err.text - 4);
    }
}

static void texts_stay_one_line_whatever_is_in_them(void **state)
{
    (void)state;
    bt_error err;
    assert_int_equal(bt_error_set(&err, BT_EINVAL, "the model is '%s'", "a\nb\033[2J\x7F\xC3\xA9"),
                     BT_EINVAL);
    assert_string_equal(err.text, "the model is 'a?b?[2J?\xC3\xA9'");
    bt_error_prefix(&err, "file '%s'", "\r\t");
    assert_string_equal(err.text, "file '?\?': the model is 'a?b?[2J?\xC3\xA9'");
}

static void prefix_goes_before_the_text(void **state)
{
    (void)state;
    bt_error err;
    (void)bt_error_set(&err, BT_EINVAL, "not a GGUF file");
    bt_error_prefix(&err, "cannot open model '%s'", "x.gguf");
    assert_string_equal(err.text, "cannot open model 'x.gguf': not a GGUF file");
    bt_error_prefix(NULL, "nothing");
    assert_int_equal(bt_error_set(NULL, BT_EIO, "nothing"), BT_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_have_names_and_scopes),
        cmocka_unit_test(long_texts_end_at_a_whole_character),
        cmocka_unit_test(texts_stay_one_line_whatever_is_in_them),
        cmocka_unit_test(prefix_goes_before_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
