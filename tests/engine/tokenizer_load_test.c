/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that a file whose tokenizer is missing, unknown or inconsistent is refused with a text
 * that names the key, and what is assumed where a file says nothing.
 */
#include "engine/tokenizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/tokenizer_file.h"

/* What a case changes in a small right file. */
typedef enum change {
    NOTHING,
    NO_MODEL,
    ODD_MODEL,
    MODEL_IS_A_NUMBER,
    NO_PRE,
    ODD_PRE,
    NO_TOKENS,
    ZERO_TOKENS,
    TOKENS_ARE_NUMBERS,
    FEW_KINDS,
    ODD_KIND,
    NO_MERGES,
    MERGE_WITHOUT_SPACE,
    MERGE_OF_UNKNOWN,
    MERGE_TO_UNKNOWN,
    BOS_PAST_END,
    EOS_IS_TEXT,
    EOS_NEGATIVE,
    ADDS_NO_BOS,
    FLAG_IS_A_NUMBER,
    NO_SCORES,
    FEW_SCORES,
    SCORE_IS_NAN,
} change;

static void write_bpe(bt_gguf_writer *writer, change what)
{
    static const char *const tokens[] = {"a", "b", "ab", "<|im_end|>", "\304\240", "c"};
    static const int32_t kinds[] = {1, 1, 1, 3, 1, 1};
    static const int32_t odd_kinds[] = {1, 1, 9, 3, 1, 1};
    static const char *const merges[] = {"a b"};
    static const char *const no_space[] = {"ab"};
    static const char *const of_unknown[] = {"a x"};
    static const char *const to_unknown[] = {"a c"};
    const char *const *merge = what == MERGE_WITHOUT_SPACE ? no_space
                               : what == MERGE_OF_UNKNOWN  ? of_unknown
                               : what == MERGE_TO_UNKNOWN  ? to_unknown
                                                           : merges;
    if (what == MODEL_IS_A_NUMBER) {
        bt_gguf_writer_add_u32(writer, "tokenizer.ggml.model", 1);
    } else if (what != NO_MODEL) {
        bt_gguf_writer_add_string(writer, "tokenizer.ggml.model",
                                  what == ODD_MODEL ? "rwkv" : "gpt2");
    }
    if (what != NO_PRE) {
        bt_gguf_writer_add_string(writer, "tokenizer.ggml.pre",
                                  what == ODD_PRE ? "tekken" : "gpt-2");
    }
    if (what == TOKENS_ARE_NUMBERS) {
        bt_gguf_writer_add_i32s(writer, "tokenizer.ggml.tokens", kinds, 6);
    } else if (what != NO_TOKENS) {
        bt_gguf_writer_add_strings(writer, "tokenizer.ggml.tokens", tokens,
                                   what == ZERO_TOKENS ? 0 : 6);
    }
    bt_gguf_writer_add_i32s(writer, "tokenizer.ggml.token_type",
                            what == ODD_KIND ? odd_kinds : kinds, what == FEW_KINDS ? 5 : 6);
    if (what != NO_MERGES) {
        bt_gguf_writer_add_strings(writer, "tokenizer.ggml.merges", merge, 1);
    }
    if (what == BOS_PAST_END) {
        bt_gguf_writer_add_u32(writer, "tokenizer.ggml.bos_token_id", 6);
    }
    if (what == EOS_IS_TEXT) {
        bt_gguf_writer_add_string(writer, "tokenizer.ggml.eos_token_id", "3");
    } else if (what == EOS_NEGATIVE) {
        bt_gguf_writer_add_i32(writer, "tokenizer.ggml.eos_token_id", -1);
    }
    if (what == ADDS_NO_BOS) {
        bt_gguf_writer_add_bool(writer, "tokenizer.ggml.add_bos_token", true);
    } else if (what == FLAG_IS_A_NUMBER) {
        bt_gguf_writer_add_u32(writer, "tokenizer.ggml.add_bos_token", 1);
    }
}

static void write_spm(bt_gguf_writer *writer, change what)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a"};
    const float scores[] = {0, 0, 0, what == SCORE_IS_NAN ? NAN : -1};
    bt_gguf_writer_add_string(writer, "tokenizer.ggml.model", "llama");
    bt_gguf_writer_add_strings(writer, "tokenizer.ggml.tokens", tokens, 4);
    if (what != NO_SCORES) {
        bt_gguf_writer_add_f32s(writer, "tokenizer.ggml.scores", scores,
                                what == FEW_SCORES ? 3 : 4);
    }
}

static bt_status create(change what, bool spm, bt_tokenizer **out, bt_error *err)
{
    char path[256];
    bt_test_path("load", path, sizeof path);
    bt_gguf_writer *writer = bt_gguf_writer_begin();
    assert_non_null(writer);
    if (spm) {
        write_spm(writer, what);
    } else {
        write_bpe(writer, what);
    }
    bt_gguf *gguf = NULL;
    assert_int_equal(bt_gguf_writer_finish(writer, path), BT_OK);
    assert_int_equal(bt_gguf_open(path, &gguf, NULL), BT_OK);
    (void)unlink(path);
    const bt_status status = bt_tokenizer_create(gguf, out, err);
    bt_gguf_close(gguf);
    return status;
}

static void broken_tokenizers_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        change what;
        bool spm;
        bt_status status;
        const char *text;
    } rows[] = {
        {NO_MODEL, false, BT_ENOTFOUND, "tokenizer.ggml.model"},
        {ODD_MODEL, false, BT_EUNSUPPORTED, "'rwkv' (tokenizer.ggml.model) isn't supported"},
        {MODEL_IS_A_NUMBER, false, BT_EINVAL, "tokenizer.ggml.model"},
        {NO_PRE, false, BT_ENOTFOUND, "tokenizer.ggml.pre"},
        {ODD_PRE, false, BT_EUNSUPPORTED, "supported are: gpt-2, smollm"},
        {NO_TOKENS, false, BT_ENOTFOUND, "tokenizer.ggml.tokens"},
        {ZERO_TOKENS, false, BT_EINVAL, "0 tokens"},
        {TOKENS_ARE_NUMBERS, false, BT_EINVAL, "tokenizer.ggml.tokens"},
        {FEW_KINDS, false, BT_EINVAL, "5 entries for 6 tokens"},
        {ODD_KIND, false, BT_EINVAL, "token 2 is of unknown type 9"},
        {NO_MERGES, false, BT_ENOTFOUND, "tokenizer.ggml.merges"},
        {MERGE_WITHOUT_SPACE, false, BT_EINVAL, "entry 0 ('ab')"},
        {MERGE_OF_UNKNOWN, false, BT_EINVAL, "entry 0 ('a x')"},
        {MERGE_TO_UNKNOWN, false, BT_EINVAL, "entry 0 ('a c')"},
        {BOS_PAST_END, false, BT_EINVAL, "bos_token_id is 6, but there are 6 tokens"},
        {EOS_IS_TEXT, false, BT_EINVAL, "eos_token_id"},
        {EOS_NEGATIVE, false, BT_EINVAL, "eos_token_id"},
        {ADDS_NO_BOS, false, BT_EINVAL, "BOS"},
        {FLAG_IS_A_NUMBER, false, BT_EINVAL, "add_bos_token"},
        {NO_SCORES, true, BT_ENOTFOUND, "tokenizer.ggml.scores"},
        {FEW_SCORES, true, BT_EINVAL, "3 entries for 4 tokens"},
        {SCORE_IS_NAN, true, BT_EINVAL, "score of token 3"},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        bt_tokenizer *tokenizer = NULL;
        bt_error err = {""};
        assert_int_equal(create(rows[i].what, rows[i].spm, &tokenizer, &err), rows[i].status);
        assert_null(tokenizer);
        if (!strstr(err.text, rows[i].text)) {
            fail_msg("'%s' doesn't say '%s'", err.text, rows[i].text);
        }
    }
}

static void a_small_vocabulary_works(void **state)
{
    (void)state;
    bt_tokenizer *tokenizer = NULL;
    bt_token_list out = {0};
    assert_int_equal(create(NOTHING, false, &tokenizer, NULL), BT_OK);
    /* 'z' is no token: it vanishes, as in the reference; the bytes beside it become neighbours */
    assert_int_equal(
        bt_tokenizer_encode(tokenizer, "ab ba\xC3\xA9zb", 9, BT_TOKENIZE_ADD, &out, NULL), BT_OK);
    static const int32_t want[] = {2, 4, 1, 2};
    assert_int_equal(out.n, 4);
    assert_memory_equal(out.ids, want, sizeof want);
    size_t n;
    assert_int_equal(bt_tokenizer_end_tokens(tokenizer, &n)[0], 3); /* by its name */
    assert_int_equal(n, 1);
    assert_int_equal(bt_tokenizer_bos(tokenizer), -1);
    assert_false(bt_tokenizer_adds_bos(tokenizer));
    bt_token_list_deinit(&out);
    bt_tokenizer_destroy(tokenizer);
}

static void sentencepiece_without_byte_tokens_gives_one_unknown_for_a_run(void **state)
{
    (void)state;
    bt_tokenizer *tokenizer = NULL;
    bt_token_list out = {0};
    assert_int_equal(create(NOTHING, true, &tokenizer, NULL), BT_OK);
    assert_int_equal(bt_tokenizer_encode(tokenizer, "axyza", 5, BT_TOKENIZE_ADD, &out, NULL),
                     BT_OK);
    static const int32_t want[] = {1, 0, 3, 0, 3}; /* BOS by convention; the first space too */
    assert_int_equal(out.n, 5);
    assert_memory_equal(out.ids, want, sizeof want);
    bt_token_list_deinit(&out);
    bt_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_tokenizers_are_refused_by_name),
        cmocka_unit_test(a_small_vocabulary_works),
        cmocka_unit_test(sentencepiece_without_byte_tokens_gives_one_unknown_for_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
