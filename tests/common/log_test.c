/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the form of log lines by reading what arrives on standard error, which each test
 * points at a pipe; JSON lines are read back with the JSON reader. */
#include "common/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/json.h"
#include "tests/support/fake_clock.h"

static int saved_stderr = -1;
static int pipe_out = -1;

static void capture(void)
{
    int fds[2];
    assert_int_equal(pipe2(fds, O_NONBLOCK), 0);
    saved_stderr = dup(STDERR_FILENO);
    assert_int_equal(dup2(fds[1], STDERR_FILENO), STDERR_FILENO);
    (void)close(fds[1]);
    pipe_out = fds[0];
}

/* Ends the capture; what was written. */
static size_t release(char *text, size_t capacity)
{
    assert_int_equal(dup2(saved_stderr, STDERR_FILENO), STDERR_FILENO);
    (void)close(saved_stderr);
    const ssize_t n = read(pipe_out, text, capacity - 1);
    (void)close(pipe_out);
    text[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

static void text_line_has_time_level_role_and_message(void **state)
{
    (void)state;
    char text[4096];
    bt_log_init(BT_INFO, BT_LOG_FORMAT_TEXT, "prefill-0");
    capture();
    bt_log(BT_WARN, "pull failed: req=%s blocks=%d", "8f21", 40);
    bt_log(BT_DEBUG, "step: n=%d", 1);
    release(text, sizeof text);
    const char *rest = strchr(text, ' ');
    assert_non_null(rest);
    assert_int_equal(rest - text, strlen("2026-01-31T12:00:00.000001Z"));
    assert_string_equal(rest, " WARN  prefill-0 pull failed: req=8f21 blocks=40\n");
    assert_false(bt_log_enabled(BT_DEBUG));
    assert_true(bt_log_enabled(BT_ERROR));
}

static const bt_json *parse_line(const char *text, bt_json **root)
{
    bt_error err;
    assert_int_equal(bt_json_parse(text, strlen(text), root, &err), BT_OK);
    return *root;
}

static const char *member(const bt_json *root, const char *key)
{
    const char *text = bt_json_as_string(bt_json_get(root, key), NULL);
    return text ? text : "(none)";
}

static void json_line_takes_the_pairs_apart(void **state)
{
    (void)state;
    char text[4096];
    bt_json *root;
    int64_t number = 0;
    double ratio = 0;
    bt_log_init(BT_INFO, BT_LOG_FORMAT_JSON, "router");
    capture();
    bt_log(BT_INFO, "pull done: req=12345 blocks=40 ratio=-0.25 to=\"a b\" odd=1e5 zip=0123 x=");
    release(text, sizeof text);
    const bt_json *line = parse_line(text, &root);
    assert_string_equal(member(line, "level"), "info");
    assert_string_equal(member(line, "who"), "router");
    assert_string_equal(member(line, "event"), "pull done");
    assert_string_equal(member(line, "req"), "12345"); /* an identity, no number */
    assert_true(bt_json_as_int(bt_json_get(line, "blocks"), &number));
    assert_int_equal(number, 40);
    assert_true(bt_json_as_double(bt_json_get(line, "ratio"), &ratio));
    assert_true(ratio == -0.25);
    assert_string_equal(member(line, "to"), "a b");
    assert_string_equal(member(line, "odd"), "1e5");
    assert_string_equal(member(line, "zip"), "0123");
    assert_string_equal(member(line, "x"), "");
    bt_json_destroy(root);
}

static void json_line_without_pairs_is_one_event(void **state)
{
    (void)state;
    char text[4096];
    bt_json *root;
    bt_log_init(BT_INFO, BT_LOG_FORMAT_JSON, NULL);
    capture();
    bt_log(BT_ERROR, "cannot open 'x\"y': no such file, %s", "really");
    release(text, sizeof text);
    const bt_json *line = parse_line(text, &root);
    assert_string_equal(member(line, "event"), "cannot open 'x\"y': no such file, really");
    assert_null(bt_json_get(line, "who"));
    bt_json_destroy(root);
}

static void foreign_bytes_neither_break_a_line_nor_start_one(void **state)
{
    (void)state;
    char text[4096];
    bt_json *root;
    bt_log_init(BT_INFO, BT_LOG_FORMAT_TEXT, "");
    capture();
    bt_log(BT_INFO, "name: got=%s", "a\nb\x1b[31m\xff\xc3\xa9");
    release(text, sizeof text);
    assert_non_null(strstr(text, "got=a?b?[31m?\xc3\xa9\n"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);

    bt_log_init(BT_INFO, BT_LOG_FORMAT_JSON, "");
    capture();
    bt_log(BT_INFO, "name: got=%s", "a\nb\"\\\xff");
    release(text, sizeof text);
    const bt_json *line = parse_line(text, &root);
    assert_string_equal(member(line, "got"), "a?b\"\\?");
    bt_json_destroy(root);
}

static void long_lines_are_cut_and_stay_whole(void **state)
{
    (void)state;
    char text[4096];
    char value[3000];
    bt_json *root;
    for (int quotes = 0; quotes < 2; quotes++) {
        memset(value, quotes ? '"' : 'v', sizeof value - 1);
        value[sizeof value - 1] = '\0';
        bt_log_init(BT_INFO, BT_LOG_FORMAT_TEXT, "w");
        capture();
        bt_log(BT_INFO, "event: a=1 b=%s", value);
        assert_true(release(text, sizeof text) <= 1024);
        assert_true(text[strlen(text) - 1] == '\n');
        bt_log_init(BT_INFO, BT_LOG_FORMAT_JSON, "w");
        capture();
        bt_log(BT_INFO, "event: a=1 b=%s", value);
        bt_log(BT_INFO, "%s", value);
        release(text, sizeof text);
        char *end = strchr(text, '\n');
        assert_non_null(end);
        *end = '\0';
        (void)parse_line(text, &root);
        bt_json_destroy(root);
        (void)parse_line(end + 1, &root);
        bt_json_destroy(root);
    }
}

static size_t count_lines(const char *text)
{
    size_t n = 0;
    for (; *text; text++) {
        n += *text == '\n';
    }
    return n;
}

static void limited_lines_are_counted_and_the_count_is_told(void **state)
{
    (void)state;
    char text[4096];
    bt_fake_clock clock;
    bt_log_limit limit = {0};
    bt_fake_clock_install(&clock, 5000000000);
    bt_log_init(BT_INFO, BT_LOG_FORMAT_TEXT, "");
    capture();
    for (int i = 0; i < 10; i++) {
        bt_log_limited(&limit, 2, BT_INFO, "late frame: n=%d", i);
    }
    bt_fake_clock_advance(&clock, 999999999);
    bt_log_limited(&limit, 2, BT_INFO, "late frame: n=%d", 10);
    bt_fake_clock_advance(&clock, 1);
    bt_log_limited(&limit, 2, BT_INFO, "late frame: n=%d", 11);
    bt_log_limited(&limit, 2, BT_INFO, "late frame: n=%d", 12);
    release(text, sizeof text);
    bt_fake_clock_uninstall();
    assert_int_equal(count_lines(text), 4);
    assert_non_null(strstr(text, "n=0\n"));
    assert_non_null(strstr(text, "n=1\n"));
    assert_non_null(strstr(text, "n=11 left_out=9\n"));
    assert_non_null(strstr(text, "n=12\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_line_has_time_level_role_and_message),
        cmocka_unit_test(json_line_takes_the_pairs_apart),
        cmocka_unit_test(json_line_without_pairs_is_one_event),
        cmocka_unit_test(foreign_bytes_neither_break_a_line_nor_start_one),
        cmocka_unit_test(long_lines_are_cut_and_stay_whole),
        cmocka_unit_test(limited_lines_are_counted_and_the_count_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
