/* SPDX-License-Identifier: Apache-2.0 */
/* prompt.h - a request's prompt: from text, chat or ids to tokens and their block hashes.
 *
 * Tokenizing a long text takes milliseconds, so it runs on the work pool: create on the loop
 * thread (copies the input), compute on any one thread, read on the loop thread again.
 *
 * Threading: one thread at a time. Memory: heap, a small multiple of the input.
 */
#ifndef BT_ROUTER_PROMPT_H
#define BT_ROUTER_PROMPT_H

#include "proto/block_id.h"
#include "router/models.h"

enum {
    BT_ROUTER_CHAINS_MAX = 4, /* numerics ids whose hashes a prompt keeps */
    BT_ROUTER_SALT_BYTES_MAX = 128,
};

typedef enum bt_router_prompt_kind {
    BT_ROUTER_PROMPT_TEXT, /* special tokens in it are recognized, BOS is added */
    BT_ROUTER_PROMPT_IDS,
    BT_ROUTER_PROMPT_CHAT,
} bt_router_prompt_kind;

/* Borrowed for create(). */
typedef struct bt_router_prompt_input {
    bt_router_prompt_kind kind;
    const char *text;
    size_t text_len;
    bool no_special; /* TEXT: no BOS */
    const uint32_t *ids;
    size_t n_ids;
    const bt_chat_message *messages;
    size_t n_messages;
} bt_router_prompt_input;

/* What decides block hashes beside the tokens. */
typedef struct bt_router_prompt_scope {
    const bt_cluster_key *key; /* outlives the prompt */
    const char *salt;          /* copied */
    size_t salt_len;           /* 0..BT_ROUTER_SALT_BYTES_MAX */
    const uint8_t (
        *numerics_ids)[BT_LINK_ID_BYTES]; /* hashed by compute(), the first few; copied */
    size_t n_numerics;
} bt_router_prompt_scope;

typedef struct bt_router_chain {
    uint8_t numerics_id[BT_LINK_ID_BYTES];
    bt_block_hash root;
    bt_block_hash *ids; /* of all full blocks */
    size_t n;
} bt_router_chain;

typedef struct bt_router_prompt bt_router_prompt;

/* `scope` NULL: tokens alone. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_prompt_create(const bt_router_model_card *model,
                                                const bt_router_prompt_input *input,
                                                const bt_router_prompt_scope *scope,
                                                bt_router_prompt **out);
void bt_router_prompt_destroy(bt_router_prompt *prompt);

/* Any thread, once: a bt_loop_fn. */
void bt_router_prompt_compute(void *prompt);

/* After compute: BT_OK, or why there are no tokens. BT_EINVAL: the input (text that is no
 * UTF-8, an id out of range, a conversation that the template refuses, a model that can't
 * chat); BT_ENOMEM. */
bt_status bt_router_prompt_status(const bt_router_prompt *prompt, bt_error *err);

/* After compute with BT_OK. */
const int32_t *bt_router_prompt_tokens(const bt_router_prompt *prompt, uint32_t *n);

/* Leading tokens that the client did not write (BOS of a text). */
uint32_t bt_router_prompt_added(const bt_router_prompt *prompt);

/* The hashes under one numerics id; computed now if compute() did not know it. With `scope`
 * alone. NULL: out of memory. */
const bt_router_chain *bt_router_prompt_chain(bt_router_prompt *prompt,
                                              const uint8_t numerics_id[BT_LINK_ID_BYTES]);

#endif /* BT_ROUTER_PROMPT_H */
