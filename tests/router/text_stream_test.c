/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that the streamed text is the same for every way of splitting it, and equal to what
 * a search of the whole text by brute force gives, with stop strings left out or kept; and
 * that only what may become a stop string is held back. Texts and stop strings are random
 * over small alphabets (so that overlaps are common), the seed is fixed. */
#include "router/text_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct stops {
    size_t n;
    const char *list[BT_ROUTER_STOP_STRINGS_MAX];
    size_t lens[BT_ROUTER_STOP_STRINGS_MAX];
    char bytes[BT_ROUTER_STOP_STRINGS_MAX][32];
} stops;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static bt_router_text_stream *make_stream(const stops *set, bool include)
{
    bt_router_text_stream *stream = NULL;
    bt_error err;
    assert_int_equal(
        bt_router_text_stream_create(set->list, set->lens, set->n, include, &stream, &err), BT_OK);
    return stream;
}

/* The definition, by brute force: the first end, of these the longest; then the text is cut. */
static size_t batch_length(const char *text, size_t len, const stops *set, bool include, int *idx)
{
    *idx = -1;
    for (size_t end = 1; end <= len; end++) {
        for (size_t i = 0; i < set->n; i++) {
            const size_t n = set->lens[i];
            if (n <= end && memcmp(text + end - n, set->list[i], n) == 0 &&
                (*idx < 0 || n > set->lens[*idx])) {
                *idx = (int)i;
            }
        }
        if (*idx >= 0) {
            return include ? end : end - set->lens[*idx];
        }
    }
    return len;
}

/* Pushes the text in the pieces whose ends are the set bits of `cuts` (and the end). */
static void stream_equals_batch(const char *text, size_t len, const stops *set, bool include,
                                uint64_t cuts)
{
    int want_idx;
    const size_t want = batch_length(text, len, set, include, &want_idx);
    bt_router_text_stream *stream = make_stream(set, include);
    bt_text out = {0};
    bool stopped = false;
    size_t begin = 0;
    for (size_t i = 1; i <= len; i++) {
        if (i == len || (cuts >> (i % 64) & 1) != 0) {
            assert_int_equal(
                bt_router_text_stream_push(stream, text + begin, i - begin, &out, &stopped), BT_OK);
            begin = i;
        }
    }
    assert_int_equal(stopped, want_idx >= 0);
    assert_int_equal(bt_router_text_stream_stop_idx(stream), want_idx);
    if (!stopped) {
        assert_int_equal(bt_router_text_stream_finish(stream, &out), BT_OK);
    }
    assert_int_equal(bt_router_text_stream_held(stream), 0);
    assert_int_equal(out.len, want);
    if (want > 0) {
        assert_memory_equal(out.bytes, text, want);
    }
    bt_text_deinit(&out);
    bt_router_text_stream_destroy(stream);
}

static void add_stop(stops *set, const char *text, size_t len)
{
    memcpy(set->bytes[set->n], text, len);
    set->list[set->n] = set->bytes[set->n];
    set->lens[set->n] = len;
    set->n++;
}

static void any_split_of_any_text_equals_the_batch_result(void **state)
{
    (void)state;
    uint64_t random = 0x9E3779B97F4A7C15;
    for (int round = 0; round < 20000; round++) {
        const size_t n_letters = 2 + next_random(&random) % 3;
        char text[48];
        const size_t len = 1 + next_random(&random) % sizeof text;
        for (size_t i = 0; i < len; i++) {
            text[i] = (char)('a' + next_random(&random) % n_letters);
        }
        stops set = {0};
        const size_t n_stops = next_random(&random) % 5;
        for (size_t i = 0; i < n_stops; i++) {
            char stop[8];
            const size_t stop_len = 1 + next_random(&random) % sizeof stop;
            for (size_t j = 0; j < stop_len; j++) {
                stop[j] = (char)('a' + next_random(&random) % n_letters);
            }
            add_stop(&set, stop, stop_len);
        }
        const uint64_t cuts = next_random(&random) & next_random(&random);
        stream_equals_batch(text, len, &set, false, cuts);
        stream_equals_batch(text, len, &set, true, cuts);
        stream_equals_batch(text, len, &set, false, UINT64_MAX);
        stream_equals_batch(text, len, &set, false, 0);
    }
}

static void every_split_of_a_short_text_equals_the_batch_result(void **state)
{
    (void)state;
    const char text[] = "ababcabcabab";
    stops set = {0};
    add_stop(&set, "abcabab", 7);
    add_stop(&set, "cabcaa", 6);
    for (uint64_t cuts = 0; cuts < UINT64_C(1) << (sizeof text - 1); cuts++) {
        stream_equals_batch(text, sizeof text - 1, &set, false, cuts << 1);
        stream_equals_batch(text, sizeof text - 1, &set, true, cuts << 1);
    }
}

static bool ends_inside_a_character(const bt_text *out, const char *text, size_t len)
{
    return out->len < len && ((unsigned char)text[out->len] & 0xC0) == 0x80;
}

static void characters_are_never_split(void **state)
{
    (void)state;
    /* e acute, e grave, euro, two emoji that share their first three bytes. */
    static const char *const characters[] = {"\xC3\xA9",         "\xC3\xA8",         "\xE2\x82\xAC",
                                             "\xF0\x9F\x98\x80", "\xF0\x9F\x98\x81", "x"};
    uint64_t random = 42;
    for (int round = 0; round < 2000; round++) {
        char text[80];
        size_t len = 0;
        stops set = {0};
        char stop[12];
        size_t stop_len = 0;
        for (int i = 0; i < 2; i++) {
            const char *c = characters[next_random(&random) % 6];
            memcpy(stop + stop_len, c, strlen(c));
            stop_len += strlen(c);
        }
        add_stop(&set, stop, stop_len);
        bt_router_text_stream *stream = make_stream(&set, false);
        bt_text out = {0};
        bool stopped = false;
        while (len < 64 && !stopped) {
            const char *c = characters[next_random(&random) % 6];
            memcpy(text + len, c, strlen(c));
            len += strlen(c);
            assert_int_equal(bt_router_text_stream_push(stream, c, strlen(c), &out, &stopped),
                             BT_OK);
            assert_false(ends_inside_a_character(&out, text, len));
        }
        bt_text_deinit(&out);
        bt_router_text_stream_destroy(stream);
    }
}

static void only_a_possible_stop_is_held_back(void **state)
{
    (void)state;
    stops set = {0};
    add_stop(&set, "\nUser:", 6);
    bt_router_text_stream *stream = make_stream(&set, false);
    bt_text out = {0};
    bool stopped = false;
    assert_int_equal(bt_router_text_stream_push(stream, "one\nUs", 6, &out, &stopped), BT_OK);
    assert_int_equal(out.len, 3);
    assert_int_equal(bt_router_text_stream_held(stream), 3);
    assert_int_equal(bt_router_text_stream_push(stream, "h", 1, &out, &stopped), BT_OK);
    assert_int_equal(out.len, 7);
    assert_int_equal(bt_router_text_stream_push(stream, "\nUser: hello", 12, &out, &stopped),
                     BT_OK);
    assert_true(stopped);
    assert_int_equal(out.len, 7);
    assert_memory_equal(out.bytes, "one\nUsh", 7);
    bt_text_deinit(&out);
    bt_router_text_stream_destroy(stream);
}

static void nothing_is_held_when_the_stop_is_kept(void **state)
{
    (void)state;
    stops set = {0};
    add_stop(&set, "END", 3);
    bt_router_text_stream *stream = make_stream(&set, true);
    bt_text out = {0};
    bool stopped = false;
    assert_int_equal(bt_router_text_stream_push(stream, "a EN", 4, &out, &stopped), BT_OK);
    assert_int_equal(out.len, 4);
    assert_int_equal(bt_router_text_stream_push(stream, "D of it", 7, &out, &stopped), BT_OK);
    assert_true(stopped);
    assert_int_equal(out.len, 5);
    assert_int_equal(bt_router_text_stream_push(stream, "more", 4, &out, &stopped), BT_OK);
    assert_true(stopped);
    assert_int_equal(out.len, 5);
    bt_text_deinit(&out);
    bt_router_text_stream_destroy(stream);
}

static void bad_stop_strings_are_refused_with_a_reason(void **state)
{
    (void)state;
    char longest[BT_ROUTER_STOP_STRING_BYTES_MAX + 1];
    memset(longest, 'x', sizeof longest);
    const char *list[BT_ROUTER_STOP_STRINGS_MAX + 1];
    size_t lens[BT_ROUTER_STOP_STRINGS_MAX + 1];
    for (size_t i = 0; i <= BT_ROUTER_STOP_STRINGS_MAX; i++) {
        list[i] = longest;
        lens[i] = 1;
    }
    bt_router_text_stream *stream = NULL;
    bt_error err;
    assert_int_equal(bt_router_text_stream_create(list, lens, BT_ROUTER_STOP_STRINGS_MAX + 1, false,
                                                  &stream, &err),
                     BT_EINVAL);
    assert_non_null(strstr(err.text, "at most 16"));
    lens[1] = sizeof longest;
    assert_int_equal(bt_router_text_stream_create(list, lens, 2, false, &stream, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "stop string 1 has 257 bytes"));
    lens[1] = 0;
    assert_int_equal(bt_router_text_stream_create(list, lens, 2, false, &stream, &err), BT_EINVAL);
    assert_null(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_of_any_text_equals_the_batch_result),
        cmocka_unit_test(every_split_of_a_short_text_equals_the_batch_result),
        cmocka_unit_test(characters_are_never_split),
        cmocka_unit_test(only_a_possible_stop_is_held_back),
        cmocka_unit_test(nothing_is_held_when_the_stop_is_kept),
        cmocka_unit_test(bad_stop_strings_are_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
