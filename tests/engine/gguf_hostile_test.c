/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that no model file harms whoever loads it: each of hostile_gguf.h goes the way of a worker
 * (reader, tokenizer, chat template, parameters, packed weights), is refused with a text that
 * names the cause where it must be, and within seconds; one that loads is run for a step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/batch.h"
#include "engine/chat.h"
#include "engine/kv_pool.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/tokenizer.h"
#include "tests/support/hostile_gguf.h"
#include "tests/support/tokenizer_file.h"

enum { FILE_SECONDS_MAX = 5, POOL_BLOCKS = 2, N_TOKENS = 20, ROWS_MAX = 64 };

/* What was said along the way; "" at first. */
typedef struct verdict {
    bool loaded; /* weights and tokenizer */
    bt_error reader, tokenizer, chat, model;
} verdict;

static void expect_told(bt_status status, const bt_error *err, const char *name)
{
    if (status == BT_OK) {
        return;
    }
    if (err->text[0] == '\0') {
        fail_msg("%s: refused without a word", name);
    }
    for (const char *c = err->text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7F) {
            fail_msg("%s: a control byte in '%s'", name, err->text);
        }
    }
}

static void use_tokenizer(const bt_gguf *gguf, const bt_tokenizer *tokenizer, const char *name,
                          verdict *out)
{
    static const bt_chat_message message = {"user", 4, "a b <|im_end|>", 14};
    bt_token_list ids = {0};
    bt_error err = {""};
    expect_told(
        bt_tokenizer_encode(tokenizer, "abab <|im_end|>\n", 16, BT_TOKENIZE_SPECIAL, &ids, &err),
        &err, name);
    bt_chat *chat = NULL;
    const bt_status status = bt_chat_create(gguf, tokenizer, &chat, &out->chat);
    expect_told(status, &out->chat, name);
    if (chat) {
        expect_told(bt_chat_render(chat, &message, 1, true, &ids, &err), &err, name);
        bt_chat_destroy(chat);
    }
    bt_token_list_deinit(&ids);
}

/* One step over 20 tokens, and a token drawn from its logits, whatever the weights are. */
static void run(bt_model *model, const char *name)
{
    static const bt_sampling kinds[] = {
        {.top_p = 1, .repetition_penalty = 1, .logprobs = true, .n_top_logprobs = 5},
        {.temperature = 1, .top_k = 4, .top_p = 0.9F, .min_p = 0.1F, .repetition_penalty = 1.5F},
    };
    static const bt_block_id blocks[POOL_BLOCKS] = {1, 0};
    const uint32_t n_vocab = bt_model_get_params(model)->n_vocab;
    int32_t tokens[N_TOKENS];
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = (int32_t)(i % n_vocab);
    }
    bt_kv_pool *pool;
    bt_batch *batch;
    bt_sampler *sampler;
    assert_int_equal(bt_kv_pool_create(bt_model_kv_layout(model), POOL_BLOCKS, true, &pool, NULL),
                     BT_OK);
    assert_int_equal(bt_batch_create(ROWS_MAX, 1, 1, &batch), BT_OK);
    assert_int_equal(bt_sampler_create(n_vocab, &sampler), BT_OK);
    bt_batch_add(batch, NULL, tokens, N_TOKENS, 0, blocks);
    bt_batch_want_logits(batch, 0);
    const bt_sampler_input input = {
        .logits = bt_model_forward(model, batch, bt_kv_pool_base(pool), NULL, NULL),
        .tokens = tokens,
        .n_tokens = N_TOKENS,
        .n_prompt = N_TOKENS,
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(kinds); i++) {
        bt_token_result drawn;
        bt_sampler_sample(sampler, &input, &kinds[i], &drawn);
        if (drawn.token < 0 || (uint32_t)drawn.token >= n_vocab) {
            fail_msg("%s: token %d was drawn out of %u", name, drawn.token, n_vocab);
        }
    }
    bt_sampler_destroy(sampler);
    bt_batch_destroy(batch);
    bt_kv_pool_destroy(pool);
}

static void load(const char *path, const char *name, verdict *out)
{
    bt_gguf *gguf = NULL;
    bt_tokenizer *tokenizer = NULL;
    expect_told(bt_gguf_open(path, &gguf, &out->reader), &out->reader, name);
    if (gguf) {
        expect_told(bt_tokenizer_create(gguf, &tokenizer, &out->tokenizer), &out->tokenizer, name);
    }
    if (tokenizer) {
        use_tokenizer(gguf, tokenizer, name, out);
    }
    const bt_model_options options = {
        .path = path,
        .kernels = "auto",
        .n_threads = 1,
        .rows_max = ROWS_MAX,
        .spans_max = 1,
        .logits_max = 1,
    };
    bt_model *model = NULL;
    expect_told(bt_model_load(&options, &model, &out->model), &out->model, name);
    if (model && bt_model_get_params(model)->context >= N_TOKENS) {
        run(model, name);
    }
    out->loaded = model && tokenizer;
    bt_model_destroy(model);
    bt_tokenizer_destroy(tokenizer);
    bt_gguf_close(gguf);
}

static void load_bytes(const uint8_t *bytes, size_t len, const char *name, verdict *out)
{
    char path[256];
    bt_test_path("hostile", path, sizeof path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
    *out = (verdict){.loaded = false};
    alarm(FILE_SECONDS_MAX);
    load(path, name, out);
    alarm(0);
    (void)unlink(path);
}

static bool said(const verdict *v, const char *text)
{
    return strstr(v->reader.text, text) || strstr(v->tokenizer.text, text) ||
           strstr(v->chat.text, text) || strstr(v->model.text, text);
}

static void right_model_loads(void **state)
{
    (void)state;
    uint8_t *bytes;
    size_t len;
    verdict v;
    assert_int_equal(bt_hostile_gguf_make_right(&bytes, &len), BT_OK);
    load_bytes(bytes, len, "right", &v);
    free(bytes);
    if (!v.loaded || v.chat.text[0] != '\0') {
        fail_msg("%s%s%s", v.tokenizer.text, v.chat.text, v.model.text);
    }
}

static void over_200_hostile_models_are_refused_with_the_cause_or_do_no_harm(void **state)
{
    (void)state;
    unsigned n_wrong = 0;
    assert_true(bt_hostile_gguf_count() >= 200);
    for (size_t i = 0; i < bt_hostile_gguf_count(); i++) {
        bt_hostile_gguf file;
        verdict v;
        assert_int_equal(bt_hostile_gguf_make(i, &file), BT_OK);
        load_bytes(file.bytes, file.len, file.name, &v);
        free(file.bytes);
        const bool refused = !v.loaded || v.chat.text[0] != '\0';
        if (file.says && (!refused || !said(&v, file.says))) {
            print_error("%s: '%s' is not said in '%s' '%s' '%s' '%s'\n", file.name, file.says,
                        v.reader.text, v.tokenizer.text, v.chat.text, v.model.text);
            n_wrong++;
        }
    }
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_model_loads),
        cmocka_unit_test(over_200_hostile_models_are_refused_with_the_cause_or_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
