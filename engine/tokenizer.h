/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h - text to token ids and back, by the tokenizer that a GGUF file carries.
 *
 * tokenizer.ggml.model says which algorithm:
 *   gpt2   byte-level BPE: text is split by tokenizer.ggml.pre (gpt-2, smollm, starcoder,
 *          refact, llama-bpe, qwen2, deepseek-coder), then merged by rank inside each split
 *   llama  SentencePiece BPE: merged by score, unknown characters fall back to byte tokens
 * Ids equal those of the model's reference tokenizer. Merging costs n log n.
 *
 * Special tokens (token type "control") and added ones ("user defined") are recognized in
 * text only when a flag asks for it. Without the flag no text whatever becomes one:
 * that's what makes chat content safe.
 *
 * Threading: any thread at the same time once created (immutable).
 * Memory:    create() copies what it needs; the file may be closed. A call's scratch is
 *            freed before it returns. Texts are borrowed for the call.
 */
#ifndef BT_ENGINE_TOKENIZER_H
#define BT_ENGINE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "engine/gguf.h"

typedef struct bt_tokenizer bt_tokenizer;

/* A growing array of ids: start with {0}, free with bt_token_list_deinit(). Calls append. */
typedef struct bt_token_list {
    int32_t *ids;
    size_t n;
    size_t capacity;
} bt_token_list;

/* A growing run of bytes (no NUL at the end): as above. */
typedef struct bt_text {
    char *bytes;
    size_t len;
    size_t capacity;
} bt_text;

/* For encode(); or-ed. */
enum {
    BT_TOKENIZE_PLAIN = 0,
    BT_TOKENIZE_USER_DEFINED = 1, /* user-defined tokens in the text are recognized */
    BT_TOKENIZE_SPECIAL = 3,      /* so are control tokens */
    BT_TOKENIZE_ADD = 4,          /* BOS before and EOS after, as the file's metadata says */
};

/* What a token is, in the file's own numbers. */
typedef enum bt_token_kind {
    BT_TOKEN_NORMAL = 1,
    BT_TOKEN_UNKNOWN = 2,
    BT_TOKEN_CONTROL = 3,
    BT_TOKEN_USER_DEFINED = 4,
    BT_TOKEN_UNUSED = 5,
    BT_TOKEN_BYTE = 6,
} bt_token_kind;

enum {
    BT_TOKENIZER_FINGERPRINT_BYTES = 16,
    BT_TOKENIZER_TEXT_BYTES_MAX = 1 << 30, /* of one encode() */
};

/* Reads the tokenizer of `gguf`. On BT_OK the caller owns *out.
 * BT_EUNSUPPORTED: model or pre-tokenizer that isn't supported; *err names it and those
 * that are. BT_ENOTFOUND, BT_EINVAL: a key is missing or wrong. BT_ENOMEM.
 * One create() at a time in a process, since Oniguruma's start isn't guarded. */
BT_MUST_CHECK bt_status bt_tokenizer_create(const bt_gguf *gguf, bt_tokenizer **out, bt_error *err);

/* Appends the ids of `text`. On failure *out keeps what it held before.
 * BT_EINVAL: not UTF-8 (*err has the offset of the first bad byte) or too long. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_tokenizer_encode(const bt_tokenizer *tokenizer, const char *text,
                                            size_t len, unsigned flags, bt_token_list *out,
                                            bt_error *err);

/* As encode(), for one piece of a text that is put together from pieces, as chat templates
 * do: `after_special` says whether text begins here (at the start, or after a control
 * token), where SentencePiece models put their space. Never adds BOS or EOS. */
BT_MUST_CHECK bt_status bt_tokenizer_encode_piece(const bt_tokenizer *tokenizer, const char *text,
                                                  size_t len, unsigned flags, bool after_special,
                                                  bt_token_list *out, bt_error *err);

/* The bytes that `id` stands for, perhaps part of a character; of a control token its name
 * ("<|im_end|>"). Borrowed from the tokenizer. An id out of range: len 0. */
const char *bt_tokenizer_piece(const bt_tokenizer *tokenizer, int32_t id, size_t *len);

uint32_t bt_tokenizer_vocab_size(const bt_tokenizer *tokenizer);
bt_token_kind bt_tokenizer_kind(const bt_tokenizer *tokenizer, int32_t id);

/* The id of a control or user-defined token by its name, or -1. */
int32_t bt_tokenizer_find_special(const bt_tokenizer *tokenizer, const char *name);

/* -1: the file names none. */
int32_t bt_tokenizer_bos(const bt_tokenizer *tokenizer);
int32_t bt_tokenizer_eos(const bt_tokenizer *tokenizer);

/* Whether encode() with BT_TOKENIZE_ADD puts BOS first. */
bool bt_tokenizer_adds_bos(const bt_tokenizer *tokenizer);

/* Whether text that begins gets a space before it (SentencePiece). */
bool bt_tokenizer_adds_space(const bt_tokenizer *tokenizer);

/* The tokens that end a generation: EOS, EOT, EOM of the metadata and the well-known
 * control tokens that end a turn ("<|im_end|>", "<|eot_id|>", ...). Ascending. */
const int32_t *bt_tokenizer_end_tokens(const bt_tokenizer *tokenizer, size_t *n);
bool bt_tokenizer_is_end(const bt_tokenizer *tokenizer, int32_t id);

/* A hash of all that decides ids: model, pre-tokenizer, tokens, kinds, scores, merges and
 * options. Equal on router and worker, or their token ids mean different things. */
void bt_tokenizer_fingerprint(const bt_tokenizer *tokenizer,
                              uint8_t out[BT_TOKENIZER_FINGERPRINT_BYTES]);

/* NULL is allowed. */
void bt_tokenizer_destroy(bt_tokenizer *tokenizer);

void bt_token_list_deinit(bt_token_list *list);
BT_MUST_CHECK bt_status bt_token_list_append(bt_token_list *list, const int32_t *ids, size_t n);

void bt_text_deinit(bt_text *text);
BT_MUST_CHECK bt_status bt_text_append(bt_text *text, const char *bytes, size_t len);

/* Room for `extra` bytes more, so that appending them cannot fail. */
BT_MUST_CHECK bt_status bt_text_reserve(bt_text *text, size_t extra);

#endif /* BT_ENGINE_TOKENIZER_H */
