/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h - what one request gives back: token events merged by index, their text, and what
 * the client has not taken yet.
 *
 * Workers send (index, tokens) events, each worker's in order but two workers' in any order,
 * and again after a retry. The reply releases tokens in index order, drops duplicates (and
 * counts those that differ: that would break the promise of equal tokens), turns them into
 * text and waits for the client to take both. The prompt's tokens (echo) come first and are
 * kept apart.
 *
 * Threading: loop thread only. Memory: heap, bounded by the tokens of the request.
 */
#ifndef BT_ROUTER_REPLY_H
#define BT_ROUTER_REPLY_H

#include "engine/tokenizer.h"
#include "proto/sampling.h"

enum { BT_ROUTER_EARLY_TOKENS_MAX = 1024 }; /* released out of order, waiting for a gap to close */

typedef struct bt_router_reply bt_router_reply;

typedef struct bt_router_reply_options {
    const bt_tokenizer *tokenizer; /* outlives the reply */
    const bt_sampling *sampling;   /* stop tokens, ignore_eos, logprobs, echo; copied */
    const char *const *stops;      /* stop strings, copied */
    const size_t *stop_lens;
    size_t n_stops;
    bool include_stop;
} bt_router_reply_options;

/* A part of the reply for the client; borrowed until consume(). */
typedef struct bt_router_piece {
    bool is_prompt;
    uint32_t first_index;
    const bt_token_result *results;
    uint32_t n_results;
    const char *text;
    size_t text_len;
    bool is_all; /* nothing else waits behind it now */
} bt_router_piece;

/* BT_EINVAL: a stop string; *err says which. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_reply_create(const bt_router_reply_options *options,
                                               bt_router_reply **out, bt_error *err);
void bt_router_reply_destroy(bt_router_reply *reply);

/* The prompt's n tokens will be pushed too (echo): output waits for the last of them, however
 * early it comes. Before the first push. */
void bt_router_reply_expect_prompt(bt_router_reply *reply, uint32_t n);

/* Takes results of index first_index, first_index + 1, ... After a stop string they are
 * dropped. BT_EPROTOCOL: a token that is not of the vocabulary, or more than
 * BT_ROUTER_EARLY_TOKENS_MAX are ahead of a gap. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_reply_push(bt_router_reply *reply, uint32_t first_index,
                                             const bt_token_result *results, uint32_t n);

/* The same for the prompt's tokens, which come in order (those seen before are dropped).
 * `skip_text`: leading tokens without text (a BOS that the client did not write). */
BT_MUST_CHECK bt_status bt_router_reply_push_prompt(bt_router_reply *reply, uint32_t first_index,
                                                    const bt_token_result *results, uint32_t n,
                                                    uint32_t skip_text);

/* No token comes after this: what was held back becomes text. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_reply_finish(bt_router_reply *reply);

/* The newest output token is one that ends a generation (an end of text, a stop token). */
bool bt_router_reply_has_end(const bt_router_reply *reply);

/* Output tokens released so far, in order; borrowed until the next push. */
const int32_t *bt_router_reply_tokens(const bt_router_reply *reply, uint32_t *n);

/* Prompt tokens released so far. */
uint32_t bt_router_reply_prompt_count(const bt_router_reply *reply);

/* Some that expect_prompt() told of are missing. */
bool bt_router_reply_lacks_prompt(const bt_router_reply *reply);

/* A gap is open: tokens wait for an earlier one, or for the prompt's. */
bool bt_router_reply_has_gap(const bt_router_reply *reply);

/* A stop string was found: its index, or -1. */
int bt_router_reply_stop_idx(const bt_router_reply *reply);

/* Duplicates that differed from what was released first. */
uint64_t bt_router_reply_mismatches(const bt_router_reply *reply);

/* Output that the client has not taken yet, in bytes of memory; the echoed prompt, which is
 * bounded by the request itself, does not count. */
size_t bt_router_reply_pending_bytes(const bt_router_reply *reply);

/* The next part for the client. false: nothing is there now. */
bool bt_router_reply_peek(const bt_router_reply *reply, bt_router_piece *piece);

/* The part that peek() gave has been taken. */
void bt_router_reply_consume(bt_router_reply *reply, const bt_router_piece *piece);

#endif /* BT_ROUTER_REPLY_H */
