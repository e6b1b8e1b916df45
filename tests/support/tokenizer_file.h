/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_file.h - vocabulary-only GGUF files for tests.
 *
 * Byte-level BPE: tokens 0-255 are the bytes, then the specials, then what each merge makes.
 * SentencePiece: <unk>, <s>, </s>, the bytes <0x00> to <0xFF> as tokens 3-258, then the pieces
 * with scores 0, -1, -2, ..., then the specials. Specials are control tokens.
 *
 * Threading: one thread.
 */
#ifndef BT_TESTS_SUPPORT_TOKENIZER_FILE_H
#define BT_TESTS_SUPPORT_TOKENIZER_FILE_H

#include <stddef.h>

#include "engine/gguf.h"

typedef struct bt_tokenizer_file {
    const char *pre; /* byte-level BPE; NULL: SentencePiece */
    const char *const *merges;
    size_t n_merges;
    const char *const *pieces;
    size_t n_pieces;
    const char *const *specials;
    size_t n_specials;
    const char *bos; /* a special's name; NULL: none said */
    const char *eos;
    const char *chat_template; /* NULL: none */
    bool add_bos;
    bool add_eos;
} bt_tokenizer_file;

/* Writes the file to the test's own folder, opens it and unlinks it. NULL: that failed. */
bt_gguf *bt_tokenizer_file_open(const bt_tokenizer_file *file);

/* A path of the test's own, for `name`; in `out`. */
void bt_test_path(const char *name, char *out, size_t out_bytes);

#endif /* BT_TESTS_SUPPORT_TOKENIZER_FILE_H */
