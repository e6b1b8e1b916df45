/* SPDX-License-Identifier: Apache-2.0 */
/* models.h - the models that a router serves: tokenizer, chat template and limits of each.
 *
 * Read from a GGUF file's metadata alone; the weights are the workers' business.
 *
 * Threading: any thread once created (immutable). Memory: create only.
 */
#ifndef BT_ROUTER_MODELS_H
#define BT_ROUTER_MODELS_H

#include "engine/chat.h"
#include "engine/tokenizer.h"
#include "proto/link.h"

enum { BT_ROUTER_MODEL_NAME_MAX = BT_LINK_ADDRESS_MAX }; /* with its NUL, as hello has it */

typedef struct bt_router_models bt_router_models;

/* One model; borrowed from the set until its destroy. */
typedef struct bt_router_model_card {
    char name[BT_ROUTER_MODEL_NAME_MAX];
    char architecture[64];
    char tokenizer_name[64]; /* "smollm", "llama-bpe", "llama", ... */
    uint8_t tokenizer_hash[BT_TOKENIZER_FINGERPRINT_BYTES];
    uint32_t context_tokens;
    const bt_tokenizer *tokenizer;
    const bt_chat *chat; /* NULL: chat is not possible, chat_error says why */
    bt_error chat_error;
} bt_router_model_card;

/* An empty set for up to n_max models. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_models_create(size_t n_max, bt_router_models **out);
void bt_router_models_destroy(bt_router_models *models);

/* Reads one more. `name` NULL: the file's name without ".gguf". BT_EEXISTS: the name is taken;
 * otherwise what gguf, tokenizer and chat say; *err names the file. */
BT_MUST_CHECK bt_status bt_router_models_add(bt_router_models *models, const char *path,
                                             const char *name, bt_error *err);

size_t bt_router_models_count(const bt_router_models *models);
const bt_router_model_card *bt_router_models_at(const bt_router_models *models, size_t idx);

/* The model of that name, or the first one for "" and NULL. BT_ENOTFOUND: *err lists the names. */
BT_MUST_CHECK bt_status bt_router_models_find(const bt_router_models *models, const char *name,
                                              uint32_t *idx, bt_error *err);

/* Which model a worker serves. BT_EMISMATCH: none of its name, or another tokenizer; *err says
 * what to do. */
BT_MUST_CHECK bt_status bt_router_models_match(const bt_router_models *models,
                                               const bt_link_hello *hello, uint32_t *idx,
                                               bt_error *err);

#endif /* BT_ROUTER_MODELS_H */
