/* SPDX-License-Identifier: Apache-2.0 */
/* The input is copied into one block: messages first, then all bytes. Once there are tokens,
 * the block is of no use and freed. */
#include "router/prompt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

struct bt_router_prompt {
    const bt_router_model_card *model;
    /* input */
    bt_router_prompt_kind kind;
    bool no_special;
    const char *text; /* into bytes */
    size_t text_len;
    bt_chat_message *messages; /* into bytes */
    size_t n_messages;
    void *bytes;
    /* scope */
    const bt_cluster_key *key;
    char salt[BT_ROUTER_SALT_BYTES_MAX];
    size_t salt_len;
    /* output */
    bt_status status;
    bt_error error;
    bt_token_list tokens;
    uint32_t n_added;
    size_t n_chains;
    size_t next_chain; /* replaced next when all are taken */
    bt_router_chain chains[BT_ROUTER_CHAINS_MAX];
};

static bt_status copy_text(bt_router_prompt *prompt, const bt_router_prompt_input *input)
{
    char *bytes = malloc(input->text_len + 1);
    if (bytes == NULL) {
        return BT_ENOMEM;
    }
    if (input->text_len > 0) {
        memcpy(bytes, input->text, input->text_len);
    }
    prompt->bytes = bytes;
    prompt->text = bytes;
    prompt->text_len = input->text_len;
    return BT_OK;
}

static const char *copy_part(char **to, const char *from, size_t len)
{
    char *at = *to;
    if (len > 0) {
        memcpy(at, from, len);
    }
    *to += len;
    return at;
}

static bt_status copy_messages(bt_router_prompt *prompt, const bt_router_prompt_input *input)
{
    size_t total;
    if (!bt_size_mul(input->n_messages, sizeof *prompt->messages, &total)) {
        return BT_ENOMEM;
    }
    const size_t table_bytes = total;
    for (size_t i = 0; i < input->n_messages; i++) {
        if (!bt_size_add(total, input->messages[i].role_len, &total) ||
            !bt_size_add(total, input->messages[i].content_len, &total)) {
            return BT_ENOMEM;
        }
    }
    char *bytes = malloc(total + 1);
    if (bytes == NULL) {
        return BT_ENOMEM;
    }
    prompt->bytes = bytes;
    prompt->messages = (bt_chat_message *)(void *)bytes;
    prompt->n_messages = input->n_messages;
    char *to = bytes + table_bytes;
    for (size_t i = 0; i < input->n_messages; i++) {
        const bt_chat_message *from = &input->messages[i];
        prompt->messages[i] = (bt_chat_message){
            .role = copy_part(&to, from->role, from->role_len),
            .role_len = from->role_len,
            .content = copy_part(&to, from->content, from->content_len),
            .content_len = from->content_len,
        };
    }
    return BT_OK;
}

/* A bad id is not create()'s failure: it shows in status(), as everything about the input. */
static bt_status copy_ids(bt_router_prompt *prompt, const bt_router_prompt_input *input)
{
    const uint32_t n_vocab = bt_tokenizer_vocab_size(prompt->model->tokenizer);
    for (size_t i = 0; i < input->n_ids; i++) {
        if (input->ids[i] >= n_vocab) {
            prompt->status = bt_error_set(&prompt->error, BT_EINVAL,
                                          "token_ids.ids[%zu] is %" PRIu32
                                          ": the vocabulary has %" PRIu32 " tokens",
                                          i, input->ids[i], n_vocab);
            return BT_OK;
        }
        const int32_t id = (int32_t)input->ids[i];
        const bt_status status = bt_token_list_append(&prompt->tokens, &id, 1);
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

static bt_status copy_input(bt_router_prompt *prompt, const bt_router_prompt_input *input)
{
    switch (input->kind) {
    case BT_ROUTER_PROMPT_TEXT:
        return copy_text(prompt, input);
    case BT_ROUTER_PROMPT_IDS:
        return copy_ids(prompt, input);
    case BT_ROUTER_PROMPT_CHAT:
        return copy_messages(prompt, input);
    }
    return BT_EINVAL;
}

bt_status bt_router_prompt_create(const bt_router_model_card *model,
                                  const bt_router_prompt_input *input,
                                  const bt_router_prompt_scope *scope, bt_router_prompt **out)
{
    bt_router_prompt *prompt = calloc(1, sizeof *prompt);
    if (prompt == NULL) {
        return BT_ENOMEM;
    }
    prompt->model = model;
    prompt->kind = input->kind;
    prompt->no_special = input->no_special;
    const bt_status status = copy_input(prompt, input);
    if (status != BT_OK) {
        bt_router_prompt_destroy(prompt);
        return status;
    }
    if (scope != NULL) {
        BT_ASSERT(scope->salt_len <= BT_ROUTER_SALT_BYTES_MAX);
        prompt->key = scope->key;
        prompt->salt_len = scope->salt_len;
        if (scope->salt_len > 0) {
            memcpy(prompt->salt, scope->salt, scope->salt_len);
        }
        for (size_t i = 0; i < scope->n_numerics && i < BT_ROUTER_CHAINS_MAX; i++) {
            memcpy(prompt->chains[i].numerics_id, scope->numerics_ids[i], BT_LINK_ID_BYTES);
            prompt->n_chains++;
        }
    }
    *out = prompt;
    return BT_OK;
}

void bt_router_prompt_destroy(bt_router_prompt *prompt)
{
    if (prompt == NULL) {
        return;
    }
    for (size_t i = 0; i < BT_ROUTER_CHAINS_MAX; i++) {
        free(prompt->chains[i].ids);
    }
    bt_token_list_deinit(&prompt->tokens);
    free(prompt->bytes);
    free(prompt);
}

static bt_status encode_text(bt_router_prompt *prompt)
{
    const bt_tokenizer *tokenizer = prompt->model->tokenizer;
    const int32_t bos = bt_tokenizer_bos(tokenizer);
    if (!prompt->no_special && bt_tokenizer_adds_bos(tokenizer) && bos >= 0) {
        const bt_status status = bt_token_list_append(&prompt->tokens, &bos, 1);
        if (status != BT_OK) {
            return status;
        }
        prompt->n_added = 1;
    }
    const bt_status status =
        bt_tokenizer_encode(tokenizer, prompt->text, prompt->text_len, BT_TOKENIZE_SPECIAL,
                            &prompt->tokens, &prompt->error);
    if (status == BT_EINVAL) {
        bt_error_prefix(&prompt->error, "text");
    }
    return status;
}

static bt_status encode_chat(bt_router_prompt *prompt)
{
    const bt_router_model_card *model = prompt->model;
    if (model->chat == NULL) {
        return bt_error_set(&prompt->error, BT_EINVAL, "chat: model '%.60s' cannot chat: %s",
                            model->name, model->chat_error.text);
    }
    const bt_status status = bt_chat_render(model->chat, prompt->messages, prompt->n_messages, true,
                                            &prompt->tokens, &prompt->error);
    if (status == BT_EINVAL) {
        bt_error_prefix(&prompt->error, "chat");
    }
    return status;
}

static bt_status fill_chain(const bt_router_prompt *prompt, bt_router_chain *chain)
{
    chain->n = 0;
    bt_block_id_root(prompt->key, chain->numerics_id, prompt->salt, prompt->salt_len, &chain->root);
    const size_t n_blocks = prompt->tokens.n / BT_BLOCK_HASH_TOKENS;
    if (n_blocks == 0) {
        return BT_OK;
    }
    if (chain->ids == NULL) {
        chain->ids = malloc(n_blocks * sizeof *chain->ids);
        if (chain->ids == NULL) {
            return BT_ENOMEM;
        }
    }
    chain->n = bt_block_id_chain(&chain->root, prompt->tokens.ids, prompt->tokens.n, chain->ids);
    return BT_OK;
}

void bt_router_prompt_compute(void *ctx)
{
    bt_router_prompt *prompt = ctx;
    if (prompt->status != BT_OK) {
        return;
    }
    switch (prompt->kind) {
    case BT_ROUTER_PROMPT_TEXT:
        prompt->status = encode_text(prompt);
        break;
    case BT_ROUTER_PROMPT_CHAT:
        prompt->status = encode_chat(prompt);
        break;
    case BT_ROUTER_PROMPT_IDS:
        break;
    }
    for (size_t i = 0; i < prompt->n_chains && prompt->status == BT_OK; i++) {
        prompt->status = fill_chain(prompt, &prompt->chains[i]);
    }
    free(prompt->bytes);
    prompt->bytes = NULL;
}

bt_status bt_router_prompt_status(const bt_router_prompt *prompt, bt_error *err)
{
    if (prompt->status != BT_OK && err != NULL) {
        *err = prompt->error;
        if (err->text[0] == '\0') {
            (void)bt_error_set(err, prompt->status, "%s", bt_status_text(prompt->status));
        }
    }
    return prompt->status;
}

const int32_t *bt_router_prompt_tokens(const bt_router_prompt *prompt, uint32_t *n)
{
    *n = (uint32_t)prompt->tokens.n;
    return prompt->tokens.ids;
}

uint32_t bt_router_prompt_added(const bt_router_prompt *prompt)
{
    return prompt->n_added;
}

const bt_router_chain *bt_router_prompt_chain(bt_router_prompt *prompt,
                                              const uint8_t numerics_id[BT_LINK_ID_BYTES])
{
    BT_ASSERT(prompt->key != NULL);
    for (size_t i = 0; i < prompt->n_chains; i++) {
        if (memcmp(prompt->chains[i].numerics_id, numerics_id, BT_LINK_ID_BYTES) == 0) {
            return &prompt->chains[i];
        }
    }
    bt_router_chain *chain;
    if (prompt->n_chains < BT_ROUTER_CHAINS_MAX) {
        chain = &prompt->chains[prompt->n_chains];
    } else {
        chain = &prompt->chains[prompt->next_chain];
        prompt->next_chain = (prompt->next_chain + 1) % BT_ROUTER_CHAINS_MAX;
    }
    memcpy(chain->numerics_id, numerics_id, BT_LINK_ID_BYTES);
    if (fill_chain(prompt, chain) != BT_OK) {
        /* The slot stays unused: nobody has a numerics id of an unfilled chain. */
        memset(chain->numerics_id, 0, BT_LINK_ID_BYTES);
        return NULL;
    }
    if (prompt->n_chains < BT_ROUTER_CHAINS_MAX) {
        prompt->n_chains++;
    }
    return chain;
}
