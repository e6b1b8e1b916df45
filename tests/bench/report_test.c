/* SPDX-License-Identifier: Apache-2.0 */
/* A report's file is JSON that says what was added, with machine and limits; medians are those
 * of sorted values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/report.h"
#include "common/json.h"

static void median_is_the_middle_or_the_mean_of_two(void **state)
{
    (void)state;
    double odd[] = {5, 1, 3};
    double even[] = {4, 1, 3, 2};
    double one[] = {7};
    assert_true(bt_report_median(odd, 3) == 3);
    assert_true(bt_report_median(even, 4) == 2.5);
    assert_true(bt_report_median(one, 1) == 7);
}

static void read_all(const char *path, char *text, size_t n)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    const size_t got = fread(text, 1, n - 1, file);
    text[got] = '\0';
    (void)fclose(file);
}

static void file_tells_rows_limits_and_machine(void **state)
{
    (void)state;
    char path[] = "report_test_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    bt_report *report = NULL;
    bt_error err = {""};
    char *argv[] = {"bench", "--threads", "2", NULL};
    assert_int_equal(bt_report_create("sample", 3, argv, path, &report), BT_OK);
    bt_report_fact(report, "kernels", "portable");
    bt_report_add(report, &(bt_report_row){"first", 12.5, "GB/s", 25, "memory"});
    bt_report_add(report, &(bt_report_row){.name = "second", .value = 3, .unit = "ms"});
    assert_int_equal(bt_report_finish(report, &err), BT_OK);
    bt_report_destroy(report);

    char text[4096];
    read_all(path, text, sizeof text);
    (void)unlink(path);
    bt_json *json = NULL;
    assert_int_equal(bt_json_parse(text, strlen(text), &json, &err), BT_OK);
    assert_string_equal(bt_json_as_string(bt_json_get(json, "benchmark"), NULL), "sample");
    assert_string_equal(bt_json_as_string(bt_json_get(json, "kernels"), NULL), "portable");
    assert_non_null(bt_json_as_string(bt_json_get(bt_json_get(json, "machine"), "cpu"), NULL));
    const bt_json *rows = bt_json_get(json, "rows");
    assert_int_equal(bt_json_len(rows), 2);
    double limit = 0;
    assert_true(bt_json_as_double(bt_json_get(bt_json_at(rows, 0), "limit"), &limit));
    assert_true(limit == 25);
    assert_null(bt_json_get(bt_json_at(rows, 1), "limit"));
    bt_json_destroy(json);
}

static void file_that_cant_be_written_is_an_error_with_its_name(void **state)
{
    (void)state;
    bt_report *report = NULL;
    bt_error err = {""};
    char *argv[] = {"bench", NULL};
    assert_int_equal(bt_report_create("sample", 1, argv, "no/such/folder/x.json", &report), BT_OK);
    assert_int_equal(bt_report_finish(report, &err), BT_EIO);
    assert_non_null(strstr(err.text, "no/such/folder/x.json"));
    bt_report_destroy(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_is_the_middle_or_the_mean_of_two),
        cmocka_unit_test(file_tells_rows_limits_and_machine),
        cmocka_unit_test(file_that_cant_be_written_is_an_error_with_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
