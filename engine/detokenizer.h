/* SPDX-License-Identifier: Apache-2.0 */
/* detokenizer.h - tokens to text as they come, whole characters only.
 *
 * Bytes that don't yet make a character wait for the next token; bytes that can't make
 * one become U+FFFD, one for each maximal subpart (The Unicode Standard, section 3.9,
 * "Substitution of Maximal Subparts"). What was put out joined is always valid UTF-8 and
 * doesn't depend on how the tokens were grouped.
 *
 * Threading: one thread at a time for each detokenizer; they share the tokenizer.
 * Memory:    none of its own (plain storage, no deinit); output goes to the caller's text.
 */
#ifndef BT_ENGINE_DETOKENIZER_H
#define BT_ENGINE_DETOKENIZER_H

#include "engine/tokenizer.h"

/* For init(); or-ed. */
enum {
    BT_DETOKENIZE_SPECIAL = 1,    /* control tokens are written by name; else they're left out */
    BT_DETOKENIZE_TEXT_START = 2, /* text begins here: a SentencePiece model's own first space
                                     is dropped. Not for what continues a prompt. */
};

typedef struct bt_detokenizer {
    const bt_tokenizer *tokenizer;
    unsigned flags;
    uint8_t pending[4]; /* the beginning of a character */
    uint8_t n_pending;  /* 0..3 */
    bool strip_space;   /* the next byte is dropped if it is a space */
} bt_detokenizer;

/* Borrows `tokenizer` for the detokenizer's whole life. */
void bt_detokenizer_init(bt_detokenizer *detokenizer, const bt_tokenizer *tokenizer,
                         unsigned flags);

/* Appends the whole characters that `id` completes, perhaps none, to *out.
 * BT_EINVAL: no such id (nothing changes). BT_ENOMEM (nothing changes). */
BT_MUST_CHECK bt_status bt_detokenizer_push(bt_detokenizer *detokenizer, int32_t id, bt_text *out);

/* The text ends: what still waits becomes U+FFFD. Then ready for another text. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_detokenizer_flush(bt_detokenizer *detokenizer, bt_text *out);

/* All at once: init, push each, flush. On failure *out keeps what it held before. */
BT_MUST_CHECK bt_status bt_detokenize(const bt_tokenizer *tokenizer, const int32_t *ids, size_t n,
                                      unsigned flags, bt_text *out);

#endif /* BT_ENGINE_DETOKENIZER_H */
