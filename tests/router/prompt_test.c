/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that models are read by their metadata and told apart by name and tokenizer, and that a
 * prompt becomes the tokens of its text, ids or chat, with the block hashes of proto/block_id.h
 * under every numerics id that is asked for. */
#include "router/prompt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/tiny_model.h"

typedef struct fixture {
    char path[64];
    bt_router_models *models;
    const bt_router_model_card *model;
    bt_cluster_key key;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->path, sizeof f->path, "/tmp/prompt_test_XXXXXX");
    const int fd = mkstemp(f->path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(bt_tiny_model_write(&bt_tiny_model_odd, f->path), BT_OK);
    assert_int_equal(bt_router_models_create(3, &f->models), BT_OK);
    bt_error err;
    assert_int_equal(bt_router_models_add(f->models, f->path, "tiny", &err), BT_OK);
    f->model = bt_router_models_at(f->models, 0);
    assert_int_equal(bt_cluster_key_init(&f->key, "0123456789abcdef", 16, NULL), BT_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    bt_router_models_destroy(f->models);
    unlink(f->path);
    free(f);
    return 0;
}

static bt_router_prompt *compute(const fixture *f, const bt_router_prompt_input *input,
                                 const bt_router_prompt_scope *scope)
{
    bt_router_prompt *prompt = NULL;
    assert_int_equal(bt_router_prompt_create(f->model, input, scope, &prompt), BT_OK);
    bt_router_prompt_compute(prompt);
    return prompt;
}

static void models_have_names_and_are_found_by_them(void **state)
{
    fixture *f = *state;
    bt_error err;
    assert_int_equal(bt_router_models_add(f->models, f->path, "tiny", &err), BT_EEXISTS);
    assert_int_equal(bt_router_models_add(f->models, f->path, NULL, &err), BT_OK);
    assert_string_equal(bt_router_models_at(f->models, 1)->name, strrchr(f->path, '/') + 1);
    uint32_t idx = 9;
    assert_int_equal(bt_router_models_find(f->models, "", &idx, &err), BT_OK);
    assert_int_equal(idx, 0);
    assert_int_equal(
        bt_router_models_find(f->models, bt_router_models_at(f->models, 1)->name, &idx, &err),
        BT_OK);
    assert_int_equal(idx, 1);
    assert_int_equal(bt_router_models_find(f->models, "other", &idx, &err), BT_ENOTFOUND);
    assert_non_null(strstr(err.text, "there is no 'other' here; served: 'tiny', "));
    assert_null(bt_router_models_at(f->models, 2));
}

static void a_file_that_is_no_model_is_named(void **state)
{
    fixture *f = *state;
    char path[] = "/tmp/prompt_test_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "this is no GGUF file at all", 27), 27);
    close(fd);
    bt_error err;
    assert_int_equal(bt_router_models_add(f->models, path, "x", &err), BT_ECORRUPT);
    assert_non_null(strstr(err.text, "cannot read model '/tmp/prompt_test_"));
    unlink(path);
    assert_int_equal(bt_router_models_count(f->models), 1);
}

static void workers_are_matched_by_name_and_tokenizer(void **state)
{
    const fixture *f = *state;
    bt_link_hello hello = {.model = "tiny", .kv = {.name = "w"}};
    memcpy(hello.tokenizer_hash, f->model->tokenizer_hash, sizeof hello.tokenizer_hash);
    uint32_t idx = 9;
    bt_error err;
    assert_int_equal(bt_router_models_match(f->models, &hello, &idx, &err), BT_OK);
    assert_int_equal(idx, 0);
    hello.tokenizer_hash[15] ^= 1;
    assert_int_equal(bt_router_models_match(f->models, &hello, &idx, &err), BT_EMISMATCH);
    assert_non_null(strstr(err.text, "the tokenizer of 'tiny' differs"));
    snprintf(hello.model, sizeof hello.model, "huge");
    assert_int_equal(bt_router_models_match(f->models, &hello, &idx, &err), BT_EMISMATCH);
    assert_non_null(strstr(err.text, "serves 'tiny', not 'huge'"));
}

static void text_becomes_tokens(void **state)
{
    const fixture *f = *state;
    const bt_router_prompt_input input = {
        .kind = BT_ROUTER_PROMPT_TEXT, .text = "hi<|im_end|>", .text_len = 12};
    bt_router_prompt *prompt = compute(f, &input, NULL);
    assert_int_equal(bt_router_prompt_status(prompt, NULL), BT_OK);
    uint32_t n;
    const int32_t *tokens = bt_router_prompt_tokens(prompt, &n);
    assert_int_equal(n, 3);
    assert_int_equal(tokens[0], 'h');
    assert_int_equal(tokens[2], BT_TINY_EOS);
    assert_int_equal(bt_router_prompt_added(prompt), 0);
    bt_router_prompt_destroy(prompt);
}

static void chat_content_never_becomes_a_special_token(void **state)
{
    const fixture *f = *state;
    const bt_chat_message message = {
        .role = "user", .role_len = 4, .content = "<|im_end|>", .content_len = 10};
    const bt_router_prompt_input input = {
        .kind = BT_ROUTER_PROMPT_CHAT, .messages = &message, .n_messages = 1};
    bt_router_prompt *prompt = compute(f, &input, NULL);
    assert_int_equal(bt_router_prompt_status(prompt, NULL), BT_OK);
    uint32_t n;
    const int32_t *tokens = bt_router_prompt_tokens(prompt, &n);
    uint32_t n_ends = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_ends += tokens[i] == BT_TINY_EOS;
    }
    assert_int_equal(n_ends, 1); /* the template's own */
    bt_router_prompt_destroy(prompt);
}

static void bad_input_says_what_is_wrong(void **state)
{
    const fixture *f = *state;
    bt_error err;
    bt_router_prompt_input input = {
        .kind = BT_ROUTER_PROMPT_TEXT, .text = "abc\xFF", .text_len = 4};
    bt_router_prompt *prompt = compute(f, &input, NULL);
    assert_int_equal(bt_router_prompt_status(prompt, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "text"));
    assert_non_null(strstr(err.text, "3"));
    bt_router_prompt_destroy(prompt);
    const uint32_t ids[] = {5, BT_TINY_VOCAB};
    input = (bt_router_prompt_input){.kind = BT_ROUTER_PROMPT_IDS, .ids = ids, .n_ids = 2};
    prompt = compute(f, &input, NULL);
    assert_int_equal(bt_router_prompt_status(prompt, &err), BT_EINVAL);
    assert_string_equal(err.text, "token_ids.ids[1] is 259: the vocabulary has 259 tokens");
    bt_router_prompt_destroy(prompt);
}

static void hashes_are_those_of_the_workers(void **state)
{
    const fixture *f = *state;
    uint32_t ids[40];
    int32_t tokens[40];
    for (uint32_t i = 0; i < 40; i++) {
        ids[i] = i;
        tokens[i] = (int32_t)i;
    }
    uint8_t known[1][BT_LINK_ID_BYTES] = {{1}};
    const bt_router_prompt_scope scope = {
        .key = &f->key,
        .salt = "s",
        .salt_len = 1,
        .numerics_ids = (const uint8_t(*)[BT_LINK_ID_BYTES])known,
        .n_numerics = 1,
    };
    const bt_router_prompt_input input = {.kind = BT_ROUTER_PROMPT_IDS, .ids = ids, .n_ids = 40};
    bt_router_prompt *prompt = compute(f, &input, &scope);
    /* One known before, and more than are kept. */
    for (uint8_t k = 1; k < 10; k++) {
        const uint8_t numerics[BT_LINK_ID_BYTES] = {k};
        bt_block_hash root;
        bt_block_hash want[2];
        bt_block_id_root(&f->key, numerics, "s", 1, &root);
        assert_int_equal(bt_block_id_chain(&root, tokens, 40, want), 2);
        const bt_router_chain *chain = bt_router_prompt_chain(prompt, numerics);
        assert_non_null(chain);
        assert_int_equal(chain->n, 2);
        assert_memory_equal(&chain->root, &root, sizeof root);
        assert_memory_equal(chain->ids, want, sizeof want);
    }
    bt_router_prompt_destroy(prompt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define WITH_MODEL(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        WITH_MODEL(models_have_names_and_are_found_by_them),
        WITH_MODEL(a_file_that_is_no_model_is_named),
        WITH_MODEL(workers_are_matched_by_name_and_tokenizer),
        WITH_MODEL(text_becomes_tokens),
        WITH_MODEL(chat_content_never_becomes_a_special_token),
        WITH_MODEL(bad_input_says_what_is_wrong),
        WITH_MODEL(hashes_are_those_of_the_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
