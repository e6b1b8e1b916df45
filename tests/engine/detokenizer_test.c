/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that text comes back from its ids, in whole characters however it is cut, that bad
 * bytes become one U+FFFD for each maximal subpart, and what control tokens and
 * SentencePiece's first space do.
 */
#include "engine/detokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/utf8.h"
#include "tests/support/tokenizer_file.h"

#define R "\xEF\xBF\xBD"

static const char *const specials[] = {"<|end|>"};
static const char *const merges[] = {"h i", "\303\242 \304\244"}; /* the second: bytes E2 82 */
static const char *const pieces[] = {"\342\226\201", "hi", "\342\226\201hi"};

static bt_tokenizer *open_file(const bt_tokenizer_file *file)
{
    bt_gguf *gguf = bt_tokenizer_file_open(file);
    bt_tokenizer *tokenizer = NULL;
    assert_non_null(gguf);
    assert_int_equal(bt_tokenizer_create(gguf, &tokenizer, NULL), BT_OK);
    bt_gguf_close(gguf);
    return tokenizer;
}

static bt_tokenizer *open_bpe(void)
{
    return open_file(&(bt_tokenizer_file){.pre = "gpt-2",
                                          .merges = merges,
                                          .n_merges = BT_ARRAY_LEN(merges),
                                          .specials = specials,
                                          .n_specials = 1});
}

static bt_tokenizer *open_spm(void)
{
    return open_file(
        &(bt_tokenizer_file){.pieces = pieces, .n_pieces = BT_ARRAY_LEN(pieces), .add_bos = true});
}

static void check_text(const bt_text *got, const char *want)
{
    if (got->len != strlen(want) || (got->len > 0 && memcmp(got->bytes, want, got->len) != 0)) {
        fail_msg("got '%.*s', want '%s'", (int)got->len, got->bytes, want);
    }
}

static void bad_bytes_become_one_mark_for_each_subpart(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        const char *want;
    } rows[] = {
        /* The Unicode Standard, tables 3-8 to 3-11 */
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", R R R R R R R R "A"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", R R R R R R R R "A"},
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", R R R R R "A" R R "B"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A"},
        {"a\xE2\x82", "a" R},
        {"\xF0\x9F\x99", R},
        {"\xF0\x9F\x99\x82", "\xF0\x9F\x99\x82"},
        {"\xE2\x82\xE2\x82\xAC", R "\xE2\x82\xAC"},
        {"\xC3", R},
        {"\x80\xC3\xA9", R "\xC3\xA9"},
        {"", ""},
    };
    bt_tokenizer *tokenizer = open_bpe();
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        int32_t ids[16];
        const size_t n = strlen(rows[i].bytes);
        for (size_t k = 0; k < n; k++) {
            ids[k] = (unsigned char)rows[i].bytes[k];
        }
        bt_text text = {0};
        assert_int_equal(bt_detokenize(tokenizer, ids, n, 0, &text), BT_OK);
        check_text(&text, rows[i].want);
        bt_text_deinit(&text);
    }
    bt_tokenizer_destroy(tokenizer);
}

static void output_never_breaks_a_character(void **state)
{
    (void)state;
    /* h, i as one token, then the euro sign as (E2 82)(AC), a smile in four bytes, a cut one */
    static const int32_t ids[] = {257, 258, 0xAC, 0xF0, 0x9F, 0x99, 0x82, 0xE2, 256, 'x', 0xC3};
    static const char *const outputs[] = {"hi", "", "\xE2\x82\xAC", "", "", "", "\xF0\x9F\x99\x82",
                                          "",   "", R "x",          ""};
    bt_tokenizer *tokenizer = open_bpe();
    bt_detokenizer detokenizer;
    bt_detokenizer_init(&detokenizer, tokenizer, 0);
    for (size_t i = 0; i < BT_ARRAY_LEN(ids); i++) {
        bt_text text = {0};
        assert_int_equal(bt_detokenizer_push(&detokenizer, ids[i], &text), BT_OK);
        check_text(&text, outputs[i]);
        bt_text_deinit(&text);
    }
    bt_text rest = {0};
    assert_int_equal(bt_detokenizer_flush(&detokenizer, &rest), BT_OK);
    assert_int_equal(bt_detokenizer_push(&detokenizer, 'y', &rest), BT_OK);
    check_text(&rest, R "y");
    bt_text_deinit(&rest);
    bt_tokenizer_destroy(tokenizer);
}

/* All 3-byte strings over bytes that matter, cut nowhere: valid UTF-8 comes out. */
static void output_is_always_valid(void **state)
{
    (void)state;
    static const unsigned char bytes[] = {0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC2, 0xE0,
                                          0xE2, 0xED, 0xF0, 0xF4, 0xF5, 0xFF};
    enum { N = sizeof bytes };
    bt_tokenizer *tokenizer = open_bpe();
    bt_text text = {0};
    for (size_t i = 0; i < (size_t)N * N * N; i++) {
        const int32_t ids[] = {bytes[i % N], bytes[i / N % N], bytes[i / N / N]};
        text.len = 0;
        assert_int_equal(bt_detokenize(tokenizer, ids, 3, 0, &text), BT_OK);
        assert_true(bt_utf8_valid(text.bytes, text.len, NULL));
        assert_true(text.len > 0);
    }
    bt_text_deinit(&text);
    bt_tokenizer_destroy(tokenizer);
}

static void control_tokens_show_when_asked(void **state)
{
    (void)state;
    static const int32_t ids[] = {'a', 256, 'b'};
    bt_tokenizer *tokenizer = open_bpe();
    bt_text hidden = {0};
    bt_text shown = {0};
    assert_int_equal(bt_detokenize(tokenizer, ids, 3, 0, &hidden), BT_OK);
    assert_int_equal(bt_detokenize(tokenizer, ids, 3, BT_DETOKENIZE_SPECIAL, &shown), BT_OK);
    check_text(&hidden, "ab");
    check_text(&shown, "a<|end|>b");
    bt_text_deinit(&hidden);
    bt_text_deinit(&shown);
    bt_tokenizer_destroy(tokenizer);
}

static void unknown_ids_are_refused_and_change_nothing(void **state)
{
    (void)state;
    static const int32_t ids[] = {'a', 259};
    bt_tokenizer *tokenizer = open_bpe();
    bt_detokenizer detokenizer;
    bt_detokenizer_init(&detokenizer, tokenizer, 0);
    bt_text text = {0};
    assert_int_equal(bt_text_append(&text, "kept", 4), BT_OK);
    assert_int_equal(bt_detokenizer_push(&detokenizer, -1, &text), BT_EINVAL);
    assert_int_equal(bt_detokenizer_push(&detokenizer, INT32_MAX, &text), BT_EINVAL);
    assert_int_equal(bt_detokenize(tokenizer, ids, 2, 0, &text), BT_EINVAL);
    check_text(&text, "kept");
    bt_text_deinit(&text);
    bt_tokenizer_destroy(tokenizer);
}

static void sentencepiece_drops_its_own_first_space_at_the_start(void **state)
{
    (void)state;
    bt_tokenizer *tokenizer = open_spm();
    bt_token_list ids = {0};
    bt_text start = {0};
    bt_text middle = {0};
    assert_int_equal(
        bt_tokenizer_encode(tokenizer, " hi hi\n\xE2\x82\xAC", 10, BT_TOKENIZE_ADD, &ids, NULL),
        BT_OK);
    assert_int_equal(ids.ids[0], 1); /* <s>: hidden, and not what the space is dropped from */
    assert_int_equal(bt_detokenize(tokenizer, ids.ids, ids.n, BT_DETOKENIZE_TEXT_START, &start),
                     BT_OK);
    assert_int_equal(bt_detokenize(tokenizer, ids.ids, ids.n, 0, &middle), BT_OK);
    check_text(&start, " hi hi\n\xE2\x82\xAC");
    check_text(&middle, "  hi hi\n\xE2\x82\xAC");
    bt_token_list_deinit(&ids);
    bt_text_deinit(&start);
    bt_text_deinit(&middle);
    bt_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_bytes_become_one_mark_for_each_subpart),
        cmocka_unit_test(output_never_breaks_a_character),
        cmocka_unit_test(output_is_always_valid),
        cmocka_unit_test(control_tokens_show_when_asked),
        cmocka_unit_test(unknown_ids_are_refused_and_change_nothing),
        cmocka_unit_test(sentencepiece_drops_its_own_first_space_at_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
