/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that ids equal those of the reference tokenizers: on small vocabularies made for this
 * test, on the demo model's (BATON_TEST_MODEL) and on published vectors (BATON_SHARED); and
 * that special tokens, bad input and bad files are dealt with as tokenizer.h says.
 */
#include "engine/tokenizer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/engine/tokenizer_vectors.h"
#include "tests/support/tokenizer_file.h"

static const char *const specials[] = {"<|endoftext|>"};

static bt_tokenizer *open_file(const bt_tokenizer_file *file)
{
    bt_gguf *gguf = bt_tokenizer_file_open(file);
    assert_non_null(gguf);
    bt_tokenizer *tokenizer = NULL;
    bt_error err = {""};
    if (bt_tokenizer_create(gguf, &tokenizer, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    bt_gguf_close(gguf);
    return tokenizer;
}

static bt_tokenizer *open_bpe(const char *pre)
{
    return open_file(&(bt_tokenizer_file){
        .pre = pre,
        .merges = bpe_merges,
        .n_merges = sizeof bpe_merges / sizeof bpe_merges[0],
        .specials = specials,
        .n_specials = 1,
        .eos = "<|endoftext|>",
    });
}

static bt_tokenizer *open_spm(void)
{
    return open_file(&(bt_tokenizer_file){
        .pieces = spm_pieces,
        .n_pieces = sizeof spm_pieces / sizeof spm_pieces[0],
        .add_bos = true,
    });
}

/* Compares the ids of one text with want[0..n-1] and shows the first difference. */
static void check_ids(const bt_tokenizer *tokenizer, const char *text, size_t len, unsigned flags,
                      const int32_t *want, size_t n)
{
    bt_token_list got = {0};
    bt_error err = {""};
    if (bt_tokenizer_encode(tokenizer, text, len, flags, &got, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    size_t same = 0;
    while (same < got.n && same < n && got.ids[same] == want[same]) {
        same++;
    }
    if (same < got.n || same < n) {
        fail_msg("'%.*s': token %zu is %d, the reference has %d (%zu and %zu tokens)", (int)len,
                 text, same, same < got.n ? got.ids[same] : -1, same < n ? want[same] : -1, got.n,
                 n);
    }
    bt_token_list_deinit(&got);
}

/* All vector texts against lists that end with -1. */
static void check_vectors(const bt_tokenizer *tokenizer, unsigned flags, const int32_t *want)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(vector_texts); i++) {
        size_t n = 0;
        while (want[n] >= 0) {
            n++;
        }
        check_ids(tokenizer, vector_texts[i].bytes, vector_texts[i].len, flags, want, n);
        want += n + 1;
    }
}

static void bpe_ids_equal_the_reference(void **state)
{
    (void)state;
    static const struct {
        const char *pre;
        const int32_t *want;
    } rows[] = {
        {"gpt-2", bpe_gpt_2_ids},
        {"smollm", bpe_smollm_ids},
        {"starcoder", bpe_smollm_ids},
        {"refact", bpe_smollm_ids},
        {"llama-bpe", bpe_llama_bpe_ids},
        {"qwen2", bpe_qwen2_ids},
        {"deepseek-coder", bpe_deepseek_coder_ids},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        bt_tokenizer *tokenizer = open_bpe(rows[i].pre);
        check_vectors(tokenizer, BT_TOKENIZE_PLAIN, rows[i].want);
        bt_tokenizer_destroy(tokenizer);
    }
}

static void sentencepiece_ids_equal_the_reference(void **state)
{
    (void)state;
    bt_tokenizer *tokenizer = open_spm();
    check_vectors(tokenizer, BT_TOKENIZE_PLAIN, spm_ids);
    bt_tokenizer_destroy(tokenizer);
}

static bt_tokenizer *open_path(const char *path)
{
    bt_gguf *gguf = NULL;
    bt_tokenizer *tokenizer = NULL;
    bt_error err = {""};
    if (bt_gguf_open(path, &gguf, &err) != BT_OK ||
        bt_tokenizer_create(gguf, &tokenizer, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    bt_gguf_close(gguf);
    return tokenizer;
}

static void demo_model_ids_equal_the_reference(void **state)
{
    (void)state;
    const char *path = getenv("BATON_TEST_MODEL");
    if (!path) {
        skip();
    }
    bt_tokenizer *tokenizer = open_path(path);
    check_vectors(tokenizer, BT_TOKENIZE_PLAIN, demo_plain_ids);
    check_vectors(tokenizer, BT_TOKENIZE_SPECIAL, demo_special_ids);
    assert_true(bt_tokenizer_is_end(tokenizer, 2));
    assert_int_equal(bt_tokenizer_find_special(tokenizer, "<|im_start|>"), 1);
    bt_tokenizer_destroy(tokenizer);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long len = ftell(file);
    assert_true(len >= 0);
    rewind(file);
    char *text = calloc((size_t)len + 1, 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)len, file), len);
    fclose(file);
    return text;
}

/* PATH.inp: texts between lines `__ggml_vocab_test__`; PATH.out: a line of ids for each. */
static void check_published(const char *folder, const char *name)
{
    static const char border[] = "\n__ggml_vocab_test__\n";
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tokenizers/ggml-vocab-%s.gguf", folder, name);
    bt_tokenizer *tokenizer = open_path(path);
    (void)snprintf(path, sizeof path, "%s/tokenizers/ggml-vocab-%s.gguf.inp", folder, name);
    char *texts = read_file(path);
    (void)snprintf(path, sizeof path, "%s/tokenizers/ggml-vocab-%s.gguf.out", folder, name);
    char *outputs = read_file(path);
    size_t n_texts = 0;
    char *line = outputs;
    for (char *text = texts; text; n_texts++) {
        char *next = strstr(text, border);
        const size_t len = next ? (size_t)(next - text) : strlen(text);
        int32_t want[1024];
        size_t n = 0;
        for (char *end; *line != '\n' && *line != '\0'; line = end + (*end == ' ')) {
            assert_true(n < BT_ARRAY_LEN(want));
            want[n++] = (int32_t)strtol(line, &end, 10);
        }
        line += *line == '\n';
        check_ids(tokenizer, text, len, BT_TOKENIZE_PLAIN, want, n);
        text = next ? next + strlen(border) : NULL;
    }
    assert_true(n_texts >= 46);
    free(texts);
    free(outputs);
    bt_tokenizer_destroy(tokenizer);
}

static void published_vectors_pass(void **state)
{
    (void)state;
    const char *folder = getenv("BATON_SHARED");
    if (!folder) {
        skip();
    }
    static const char *const names[] = {"gpt-2", "llama-spm", "phi-3", "starcoder",
                                        "deepseek-coder"};
    for (size_t i = 0; i < BT_ARRAY_LEN(names); i++) {
        check_published(folder, names[i]);
    }
}

static void text_becomes_special_only_when_asked(void **state)
{
    (void)state;
    static const char text[] = "a<|endoftext|><|endoftext|>b<|endoftext|";
    bt_tokenizer *tokenizer = open_bpe("gpt-2");
    bt_token_list plain = {0};
    bt_token_list special = {0};
    assert_int_equal(
        bt_tokenizer_encode(tokenizer, text, strlen(text), BT_TOKENIZE_PLAIN, &plain, NULL), BT_OK);
    for (size_t i = 0; i < plain.n; i++) {
        assert_int_equal(bt_tokenizer_kind(tokenizer, plain.ids[i]), BT_TOKEN_NORMAL);
    }
    assert_int_equal(
        bt_tokenizer_encode(tokenizer, text, strlen(text), BT_TOKENIZE_SPECIAL, &special, NULL),
        BT_OK);
    assert_int_equal(special.ids[0], 'a');
    assert_int_equal(special.ids[1], 256);
    assert_int_equal(special.ids[2], 256);
    assert_int_equal(special.ids[3], 'b');
    for (size_t i = 4; i < special.n; i++) {
        assert_int_not_equal(special.ids[i], 256);
    }
    bt_token_list_deinit(&plain);
    bt_token_list_deinit(&special);
    bt_tokenizer_destroy(tokenizer);
}

static void the_longest_special_token_wins(void **state)
{
    (void)state;
    static const char *const names[] = {"<|a|>", "<|a|>b", "<|", "<s>"};
    bt_tokenizer *tokenizer = open_file(&(bt_tokenizer_file){
        .pre = "gpt-2",
        .merges = bpe_merges,
        .n_merges = 4,
        .specials = names,
        .n_specials = 4,
        .bos = "<s>",
        .eos = "<|",
        .add_bos = true,
        .add_eos = true,
    });
    static const int32_t want[] = {259, 257, 256, 'c', 258, 'z', 258};
    static const char text[] = "<|a|>b<|a|>c<|z";
    check_ids(tokenizer, text, strlen(text), BT_TOKENIZE_SPECIAL | BT_TOKENIZE_ADD, want,
              BT_ARRAY_LEN(want));
    check_ids(tokenizer, "", 0, BT_TOKENIZE_ADD, (const int32_t[]){259, 258}, 2);
    assert_true(bt_tokenizer_adds_bos(tokenizer));
    assert_int_equal(bt_tokenizer_bos(tokenizer), 259);
    assert_int_equal(bt_tokenizer_eos(tokenizer), 258);
    bt_tokenizer_destroy(tokenizer);
}

static void sentencepiece_puts_its_space_where_text_begins(void **state)
{
    (void)state;
    bt_tokenizer *tokenizer = open_spm();
    bt_token_list begins = {0};
    bt_token_list goes_on = {0};
    bt_token_list whole = {0};
    assert_int_equal(bt_tokenizer_encode_piece(tokenizer, "x", 1, 0, true, &begins, NULL), BT_OK);
    assert_int_equal(bt_tokenizer_encode_piece(tokenizer, "x", 1, 0, false, &goes_on, NULL), BT_OK);
    size_t len;
    assert_memory_equal(bt_tokenizer_piece(tokenizer, begins.ids[0], &len), " ", 1);
    assert_memory_equal(bt_tokenizer_piece(tokenizer, goes_on.ids[0], &len), "x", 1);
    assert_int_equal(bt_tokenizer_encode(tokenizer, "<s>x", 4, BT_TOKENIZE_SPECIAL, &whole, NULL),
                     BT_OK);
    assert_int_equal(whole.ids[0], 1);
    assert_int_equal(whole.ids[1], begins.ids[0]);
    bt_token_list_deinit(&begins);
    bt_token_list_deinit(&goes_on);
    bt_token_list_deinit(&whole);
    bt_tokenizer_destroy(tokenizer);
}

static void bad_utf8_is_refused_with_its_offset(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len;
        const char *offset;
    } rows[] = {
        {"\xFF", 1, "offset 0"},
        {"ab\xC3", 3, "offset 2"},
        {"a\xE2\x82 b", 5, "offset 1"},
        {"abc\xED\xA0\x80", 6, "offset 3"},
        {"\xF4\x90\x80\x80", 4, "offset 0"},
        {"\xC3\xA9\xC0\xAF", 4, "offset 2"},
        {"\x80", 1, "offset 0"},
    };
    bt_tokenizer *tokenizers[] = {open_bpe("qwen2"), open_spm()};
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
            bt_token_list out = {0};
            bt_error err = {""};
            assert_int_equal(bt_token_list_append(&out, &(const int32_t){7}, 1), BT_OK);
            assert_int_equal(bt_tokenizer_encode(tokenizers[t], rows[i].text, rows[i].len,
                                                 BT_TOKENIZE_ADD, &out, &err),
                             BT_EINVAL);
            assert_int_equal(out.n, 1);
            assert_non_null(strstr(err.text, rows[i].offset));
            bt_token_list_deinit(&out);
        }
        bt_tokenizer_destroy(tokenizers[t]);
    }
}

/* Encodes LEN bytes of `fill` again and again; the pieces must have as many bytes. */
static void check_megabyte(bt_tokenizer *tokenizer, const char *fill, size_t extra)
{
    enum { LEN = 1 << 20 };
    const size_t step = strlen(fill);
    const size_t len = LEN / step * step;
    char *word = malloc(LEN);
    assert_non_null(word);
    for (size_t i = 0; i < len; i++) {
        word[i] = fill[i % step];
    }
    bt_token_list out = {0};
    assert_int_equal(bt_tokenizer_encode(tokenizer, word, len, 0, &out, NULL), BT_OK);
    size_t n_bytes = 0;
    for (size_t i = 0; i < out.n; i++) {
        size_t piece;
        (void)bt_tokenizer_piece(tokenizer, out.ids[i], &piece);
        n_bytes += piece;
    }
    assert_int_equal(n_bytes, len + extra);
    bt_token_list_deinit(&out);
    bt_tokenizer_destroy(tokenizer);
    free(word);
}

/* Quadratic work would run into the test's time limit. */
static void a_word_of_a_megabyte_is_merged(void **state)
{
    (void)state;
    check_megabyte(open_bpe("gpt-2"), "a", 0);
    check_megabyte(open_bpe("llama-bpe"), "\n ", 0);
    check_megabyte(open_bpe("qwen2"), "\xCC\x81\xCC\xA3", 0); /* marks in need of order */
    check_megabyte(open_spm(), "abc1", 1);                    /* and the first space */
}

static void fingerprints_tell_tokenizers_apart(void **state)
{
    (void)state;
    bt_tokenizer *tokenizers[] = {open_bpe("gpt-2"), open_bpe("smollm"), open_spm(),
                                  open_bpe("gpt-2")};
    uint8_t prints[4][BT_TOKENIZER_FINGERPRINT_BYTES];
    for (size_t i = 0; i < 4; i++) {
        bt_tokenizer_fingerprint(tokenizers[i], prints[i]);
        bt_tokenizer_destroy(tokenizers[i]);
    }
    assert_memory_equal(prints[0], prints[3], sizeof prints[0]);
    assert_memory_not_equal(prints[0], prints[1], sizeof prints[0]);
    assert_memory_not_equal(prints[0], prints[2], sizeof prints[0]);
}

typedef struct encode_job {
    const bt_tokenizer *tokenizer;
    const int32_t *want;
    bool same;
} encode_job;

static void *encode_all(void *arg)
{
    encode_job *job = arg;
    const int32_t *want = job->want;
    job->same = true;
    for (size_t i = 0; i < BT_ARRAY_LEN(vector_texts); i++) {
        bt_token_list got = {0};
        const bt_status status = bt_tokenizer_encode(job->tokenizer, vector_texts[i].bytes,
                                                     vector_texts[i].len, 0, &got, NULL);
        job->same = job->same && status == BT_OK;
        for (size_t k = 0; k < got.n; k++) {
            job->same = job->same && *want++ == got.ids[k];
        }
        job->same = job->same && *want++ == -1;
        bt_token_list_deinit(&got);
    }
    return NULL;
}

static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    bt_tokenizer *tokenizer = open_bpe("llama-bpe");
    pthread_t threads[4];
    encode_job jobs[4];
    for (size_t i = 0; i < 4; i++) {
        jobs[i] = (encode_job){tokenizer, bpe_llama_bpe_ids, false};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &jobs[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(jobs[i].same);
    }
    bt_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe_ids_equal_the_reference),
        cmocka_unit_test(sentencepiece_ids_equal_the_reference),
        cmocka_unit_test(demo_model_ids_equal_the_reference),
        cmocka_unit_test(published_vectors_pass),
        cmocka_unit_test(text_becomes_special_only_when_asked),
        cmocka_unit_test(the_longest_special_token_wins),
        cmocka_unit_test(sentencepiece_puts_its_space_where_text_begins),
        cmocka_unit_test(bad_utf8_is_refused_with_its_offset),
        cmocka_unit_test(a_word_of_a_megabyte_is_merged),
        cmocka_unit_test(fingerprints_tell_tokenizers_apart),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
