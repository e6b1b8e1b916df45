/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the writer by comparing text and by reading it back with another program's
 * parser (jansson behind json.h), and the reader's types and refusals. */
#include "common/json.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/fault.h"

static void write_sample(bt_json_writer *w)
{
    bt_json_object_begin(w);
    bt_json_key(w, "name");
    bt_json_string(w, "baton");
    bt_json_key(w, "empty");
    bt_json_array_begin(w);
    bt_json_array_end(w);
    bt_json_key(w, "list");
    bt_json_array_begin(w);
    bt_json_int(w, -1);
    bt_json_uint(w, UINT64_MAX);
    bt_json_bool(w, true);
    bt_json_null(w);
    bt_json_object_begin(w);
    bt_json_object_end(w);
    bt_json_array_end(w);
    bt_json_object_end(w);
}

static void structure_gets_its_commas(void **state)
{
    (void)state;
    bt_json_writer w;
    size_t len;
    bt_json_writer_init(&w, 0);
    write_sample(&w);
    assert_string_equal(bt_json_writer_text(&w, &len),
                        "{\"name\":\"baton\",\"empty\":[],"
                        "\"list\":[-1,18446744073709551615,true,null,{}]}");
    assert_int_equal(len, strlen(bt_json_writer_text(&w, NULL)));
    bt_json_writer_reset(&w);
    bt_json_int(&w, 5);
    assert_string_equal(bt_json_writer_text(&w, NULL), "5");
    bt_json_writer_deinit(&w);
}

static void indentation_is_for_people(void **state)
{
    (void)state;
    bt_json_writer w;
    bt_json_writer_init(&w, 2);
    bt_json_object_begin(&w);
    bt_json_key(&w, "a");
    bt_json_array_begin(&w);
    bt_json_int(&w, 1);
    bt_json_int(&w, 2);
    bt_json_array_end(&w);
    bt_json_key(&w, "b");
    bt_json_object_begin(&w);
    bt_json_object_end(&w);
    bt_json_object_end(&w);
    assert_string_equal(bt_json_writer_text(&w, NULL),
                        "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
    bt_json_writer_deinit(&w);
}

static void strings_are_escaped_and_repaired(void **state)
{
    (void)state;
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    bt_json_string_n(&w, "q\"b\\n\nt\t\x01\x7F\0z", 12);
    assert_string_equal(bt_json_writer_text(&w, NULL),
                        "\"q\\\"b\\\\n\\nt\\t\\u0001\\u007f\\u0000z\"");
    bt_json_writer_reset(&w);
    bt_json_string(&w, "\xC3\xA9\xF0\x9F\x98\x80|\xFF|\xE2\x82|");
    assert_string_equal(bt_json_writer_text(&w, NULL),
                        "\"\xC3\xA9\xF0\x9F\x98\x80|\xEF\xBF\xBD|\xEF\xBF\xBD|\"");
    bt_json_writer_reset(&w);
    bt_json_string(&w, NULL);
    assert_string_equal(bt_json_writer_text(&w, NULL), "null");
    bt_json_writer_deinit(&w);
}

static void numbers_read_back_the_same(void **state)
{
    (void)state;
    const double values[] = {0,         -0.5, 1.0 / 3,         1e21,  DBL_MAX, DBL_MIN, 4.9e-324,
                             123456789, 0.1,  1 + DBL_EPSILON, -1e-7, 5e15};
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    for (size_t i = 0; i < BT_ARRAY_LEN(values); i++) {
        bt_json *root;
        size_t len;
        double back = 0;
        bt_json_writer_reset(&w);
        bt_json_double(&w, values[i]);
        const char *text = bt_json_writer_text(&w, &len);
        assert_int_equal(bt_json_parse(text, len, &root, NULL), BT_OK);
        assert_true(bt_json_as_double(root, &back));
        assert_true(back == values[i]);
        bt_json_destroy(root);
    }
    bt_json_writer_reset(&w);
    bt_json_array_begin(&w);
    bt_json_double(&w, NAN);
    bt_json_double(&w, -INFINITY);
    bt_json_double(&w, 0.1);
    bt_json_array_end(&w);
    assert_string_equal(bt_json_writer_text(&w, NULL), "[null,null,0.1]");
    bt_json_writer_deinit(&w);
}

static void a_full_buffer_or_lack_of_memory_is_remembered(void **state)
{
    (void)state;
    char buffer[128];
    bt_json_writer w;
    size_t len = 0;
    bt_json_writer_init_fixed(&w, buffer, sizeof buffer);
    write_sample(&w);
    assert_non_null(bt_json_writer_text(&w, &len));
    for (size_t capacity = 1; capacity <= len; capacity++) {
        bt_json_writer_init_fixed(&w, buffer, capacity);
        write_sample(&w);
        assert_null(bt_json_writer_text(&w, NULL));
    }
    bt_json_writer_init_fixed(&w, buffer, len + 1);
    write_sample(&w);
    assert_non_null(bt_json_writer_text(&w, NULL));
    if (bt_fault_available()) {
        bt_json_writer_init(&w, 0);
        bt_fault_fail_nth(1);
        write_sample(&w);
        assert_true(bt_fault_disarm());
        assert_null(bt_json_writer_text(&w, NULL));
        bt_json_writer_deinit(&w);
    }
}

static void reader_knows_types_and_borrows_values(void **state)
{
    (void)state;
    const char text[] = "{\"s\":\"a\\u0000b\",\"i\":-3,\"d\":2.5,\"t\":true,\"n\":null,"
                        "\"l\":[1,[2]]}";
    bt_json *root;
    int64_t i = 0;
    double d = 0;
    bool t = false;
    size_t len = 0;
    assert_int_equal(bt_json_parse(text, strlen(text), &root, NULL), BT_OK);
    assert_int_equal(bt_json_type_of(root), BT_JSON_OBJECT);
    assert_int_equal(bt_json_len(root), 6);
    assert_memory_equal(bt_json_as_string(bt_json_get(root, "s"), &len), "a\0b", 4);
    assert_int_equal(len, 3);
    assert_true(bt_json_as_int(bt_json_get(root, "i"), &i));
    assert_int_equal(i, -3);
    assert_true(bt_json_as_double(bt_json_get(root, "i"), &d));
    assert_false(bt_json_as_int(bt_json_get(root, "d"), &i));
    assert_true(bt_json_as_double(bt_json_get(root, "d"), &d));
    assert_true(d == 2.5);
    assert_true(bt_json_as_bool(bt_json_get(root, "t"), &t));
    assert_true(t);
    assert_int_equal(bt_json_type_of(bt_json_get(root, "n")), BT_JSON_NULL);
    assert_non_null(bt_json_get(root, "n"));
    const bt_json *list = bt_json_get(root, "l");
    assert_int_equal(bt_json_len(list), 2);
    assert_int_equal(bt_json_type_of(bt_json_at(list, 1)), BT_JSON_ARRAY);
    /* nothing there: NULL all the way down */
    assert_null(bt_json_at(list, 2));
    assert_null(bt_json_get(list, "x"));
    assert_null(bt_json_get(bt_json_get(root, "no"), "x"));
    assert_null(bt_json_as_string(NULL, NULL));
    assert_int_equal(bt_json_len(NULL), 0);
    size_t n = 0;
    void *cursor = NULL;
    const char *key;
    const bt_json *value;
    while (bt_json_next(root, &cursor, &key, &value)) {
        assert_ptr_equal(bt_json_get(root, key), value);
        n++;
    }
    assert_int_equal(n, 6);
    bt_json_destroy(root);
    bt_json_destroy(NULL);
}

static void what_is_not_json_is_refused_with_its_place(void **state)
{
    (void)state;
    const char *const wrong[] = {
        "",    "{",   "{\"a\":1,}",           "[1 2]", "nul",   "{\"a\":1,\"a\":2}", "\"\xFF\"",
        "1 2", "'a'", "99999999999999999999", "1e999", "{1:2}",
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(wrong); i++) {
        bt_json *root = NULL;
        bt_error err;
        assert_int_equal(bt_json_parse(wrong[i], strlen(wrong[i]), &root, &err), BT_EINVAL);
        assert_null(root);
        assert_non_null(strstr(err.text, "line 1"));
    }
    bt_json *root;
    bt_error err;
    assert_int_equal(bt_json_parse("{\n \"a\": x}", 10, &root, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "line 2"));
    /* deep nesting ends in an error, not in a stack that is too small */
    static char deep[100000];
    memset(deep, '[', sizeof deep);
    assert_int_equal(bt_json_parse(deep, sizeof deep, &root, &err), BT_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structure_gets_its_commas),
        cmocka_unit_test(indentation_is_for_people),
        cmocka_unit_test(strings_are_escaped_and_repaired),
        cmocka_unit_test(numbers_read_back_the_same),
        cmocka_unit_test(a_full_buffer_or_lack_of_memory_is_remembered),
        cmocka_unit_test(reader_knows_types_and_borrows_values),
        cmocka_unit_test(what_is_not_json_is_refused_with_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
