/* SPDX-License-Identifier: Apache-2.0 */
/* keys: who is let in, which files are refused and why, and what a change of the file does. Hashes
 * in files come from `b2sum -l 256`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/keys.h"

#define ALICE "alice-secret-0123456789"
#define BOB "bob-secret-0123456789ab"
#define CAROL "carol-secret-0123456789"
/* printf %s carol-secret-0123456789 | b2sum -l 256 */
#define CAROL_HASH "d02a1da36dba864f8489e204983cb3affd40783f1e6dcd146782fc13376a39f4"

static char file[256];

static void write_file(const char *text)
{
    char other[300];
    snprintf(other, sizeof other, "%s.new", file);
    FILE *out = fopen(other, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
    assert_int_equal(chmod(other, 0600), 0);
    assert_int_equal(rename(other, file), 0);
}

static int set_up(void **state)
{
    (void)state;
    const char *folder = getenv("TEST_TMPDIR");
    snprintf(file, sizeof file, "%s/keys", folder != NULL ? folder : "/tmp");
    return 0;
}

static bt_keys *make(const char *text)
{
    write_file(text);
    bt_keys *keys = NULL;
    bt_error err = {{0}};
    if (bt_keys_create(file, &keys, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return keys;
}

static bool lets_in(bt_keys *keys, const char *authorization, const char *name, bool shares)
{
    bt_keys_client client = {.name = "untouched"};
    bt_error err = {{0}};
    const bt_status status = bt_keys_check(keys, authorization, BT_KEYS_API, &client, &err);
    if (status != BT_OK) {
        assert_int_equal(status, BT_EPERMISSION);
        assert_string_equal(client.name, "untouched");
        assert_string_not_equal(err.text, "");
        return false;
    }
    assert_string_equal(client.name, name);
    assert_int_equal(client.shares, shares);
    return true;
}

static void the_secret_says_whose_key_it_is(void **state)
{
    (void)state;
    bt_keys *keys = make("# two tenants and one that shares\n\nalice " ALICE "\n"
                         "\tbob  " BOB "   # his\r\ncarol blake2b:" CAROL_HASH " share");
    assert_int_equal(bt_keys_count(keys), 3);
    assert_true(lets_in(keys, "Bearer " ALICE, "alice", false));
    assert_true(lets_in(keys, "bearer   " BOB, "bob", false));
    assert_true(lets_in(keys, "Bearer " CAROL, "carol", true));
    assert_int_equal(bt_keys_check(keys, "Bearer " ALICE, BT_KEYS_API, NULL, NULL), BT_OK);
    bt_keys_destroy(keys);
}

static void everything_else_is_refused_alike(void **state)
{
    (void)state;
    bt_keys *keys = make("alice " ALICE "\ncarol blake2b:" CAROL_HASH "\n");
    static const char *const wrong[] = {
        "",
        "Bearer",
        "Bearer ",
        "Basic " ALICE,
        ALICE,
        "Bearer " ALICE "x",
        "Bearer " ALICE " ",
        "Bearer alice-secret-012345678",
        "Bearer alice",
        "Bearer alice " ALICE,
        "Bearer blake2b:" CAROL_HASH, /* a hash is no key */
        "Bearer " CAROL_HASH,
        "Bearer " BOB,
    };
    bt_error first = {{0}};
    assert_int_equal(bt_keys_check(keys, wrong[0], BT_KEYS_API, NULL, &first), BT_EPERMISSION);
    for (size_t i = 0; i < BT_ARRAY_LEN(wrong); i++) {
        bt_error err = {{0}};
        assert_int_equal(bt_keys_check(keys, wrong[i], BT_KEYS_API, NULL, &err), BT_EPERMISSION);
        assert_string_equal(err.text, first.text);
    }
    assert_false(lets_in(keys, NULL, "", false));
    static char huge[100000];
    memset(huge, 'a', sizeof huge - 1);
    memcpy(huge, "Bearer ", 7);
    assert_false(lets_in(keys, huge, "", false));
    bt_keys_destroy(keys);
}

static void a_metrics_key_opens_metrics_alone(void **state)
{
    (void)state;
    bt_keys *keys = make("alice " ALICE "\nprometheus " BOB " metrics\n");
    assert_false(lets_in(keys, "Bearer " BOB, "", false));
    assert_int_equal(bt_keys_check(keys, "Bearer " BOB, BT_KEYS_METRICS, NULL, NULL), BT_OK);
    assert_int_equal(bt_keys_check(keys, "Bearer " ALICE, BT_KEYS_METRICS, NULL, NULL),
                     BT_EPERMISSION);
    bt_keys_destroy(keys);
}

static void broken_files_are_refused_with_the_line(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        {"alice\n", "keys:1: a line is"},
        {"\n# x\nalice " ALICE " share more\n", "keys:3: a line is"},
        {"alice short\n", "keys:1: the secret must be 16 to 256"},
        {"alice " ALICE " root\n", "keys:1: the third word is no role"},
        {"alice " BOB " " ALICE "\n", "keys:1: the third word is no role"}, /* a second secret */
        {"al/ice " ALICE "\n", "keys:1: the name must be"},
        {"a123456789012345678901234567890123456789012345678901234567890123 " ALICE "\n",
         "keys:1: the name must be"},
        {"alice blake2b:12\n", "keys:1: after 'blake2b:' come 64 hex digits"},
        {"alice " CAROL "\nbob blake2b:" CAROL_HASH "\n", "keys:2: 'bob' has the same secret"},
        {"alice " ALICE "\nalice " BOB " share\n", "keys:2: 'alice' has another role"},
        {"# nobody\n", "has no keys"},
        {"", "has no keys"},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(cases); i++) {
        write_file(cases[i].text);
        bt_keys *keys = NULL;
        bt_error err = {{0}};
        assert_int_equal(bt_keys_create(file, &keys, &err), BT_EINVAL);
        if (strstr(err.text, cases[i].says) == NULL) {
            fail_msg("'%s' instead of '%s'", err.text, cases[i].says);
        }
        assert_null(strstr(err.text, "secret-0123")); /* never a secret in a text */
    }
    assert_int_equal(unlink(file), 0);
    bt_keys *keys = NULL;
    bt_error err = {{0}};
    assert_int_equal(bt_keys_create(file, &keys, &err), BT_ENOTFOUND);
    assert_non_null(strstr(err.text, file));
}

static void a_changed_file_counts_from_the_next_look(void **state)
{
    (void)state;
    bt_keys *keys = make("alice " ALICE "\n");
    write_file("alice " ALICE "\nalice " CAROL "\nbob " BOB "\n"); /* alice changes her secret */
    assert_false(lets_in(keys, "Bearer " BOB, "", false));
    bt_keys_refresh(keys);
    assert_true(lets_in(keys, "Bearer " BOB, "bob", false));
    assert_true(lets_in(keys, "Bearer " ALICE, "alice", false));
    assert_true(lets_in(keys, "Bearer " CAROL, "alice", false));
    write_file("alice " CAROL "\nbob " BOB "\n");
    bt_keys_refresh(keys);
    assert_false(lets_in(keys, "Bearer " ALICE, "", false));
    assert_true(lets_in(keys, "Bearer " CAROL, "alice", false));
    bt_keys_destroy(keys);
}

static void a_broken_or_missing_file_changes_nothing(void **state)
{
    (void)state;
    bt_keys *keys = make("alice " ALICE "\n");
    write_file("alice\n");
    bt_keys_refresh(keys);
    assert_true(lets_in(keys, "Bearer " ALICE, "alice", false));
    assert_int_equal(unlink(file), 0);
    bt_keys_refresh(keys);
    bt_keys_refresh(keys);
    assert_true(lets_in(keys, "Bearer " ALICE, "alice", false));
    write_file("bob " BOB "\n");
    bt_keys_refresh(keys);
    assert_false(lets_in(keys, "Bearer " ALICE, "", false));
    assert_true(lets_in(keys, "Bearer " BOB, "bob", false));
    bt_keys_destroy(keys);
}

/* alarm() ends a test that waits. */
static void a_pipe_that_says_nothing_keeps_nobody(void **state)
{
    (void)state;
    bt_keys *keys = make("alice " ALICE "\n");
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkfifo(file, 0600), 0);
    (void)alarm(10);
    bt_keys_refresh(keys);
    bt_keys *none = NULL;
    bt_error err = {{0}};
    assert_int_equal(bt_keys_create(file, &none, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "has no keys"));
    const int fd = open(file, O_RDWR); /* somebody who could write */
    assert_true(fd >= 0);
    bt_keys_refresh(keys);
    (void)alarm(0);
    assert_true(lets_in(keys, "Bearer " ALICE, "alice", false));
    close(fd);
    write_file("bob " BOB "\n");
    bt_keys_refresh(keys);
    assert_true(lets_in(keys, "Bearer " BOB, "bob", false));
    bt_keys_destroy(keys);
}

/* --api-keys <(pass show keys) */
static void keys_may_come_out_of_a_pipe_at_first(void **state)
{
    (void)state;
    static const char text[] = "alice " ALICE "\n";
    int fds[2];
    char path[64];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], text, sizeof text - 1), sizeof text - 1);
    close(fds[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", fds[0]);
    bt_keys *keys = NULL;
    bt_error err = {{0}};
    assert_int_equal(bt_keys_create(path, &keys, &err), BT_OK);
    close(fds[0]);
    bt_keys_refresh(keys); /* not there any more */
    assert_true(lets_in(keys, "Bearer " ALICE, "alice", false));
    bt_keys_destroy(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_secret_says_whose_key_it_is),
        cmocka_unit_test(everything_else_is_refused_alike),
        cmocka_unit_test(a_metrics_key_opens_metrics_alone),
        cmocka_unit_test(broken_files_are_refused_with_the_line),
        cmocka_unit_test(a_changed_file_counts_from_the_next_look),
        cmocka_unit_test(a_broken_or_missing_file_changes_nothing),
        cmocka_unit_test(a_pipe_that_says_nothing_keeps_nobody),
        cmocka_unit_test(keys_may_come_out_of_a_pipe_at_first),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
