/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_int.h - what the tokenizer's files share.
 *
 *   tokenizer_load.c   metadata of the file -> struct bt_tokenizer
 *   tokenizer.c        encode: special tokens out of the text, the rest through split and merge
 *   tokenizer_split.c  text -> words (Oniguruma, utf8proc)
 *   tokenizer_merge.c  word -> ids
 *
 * Tokens are kept as the bytes that they stand for: byte-level BPE's letters are turned back
 * into bytes and SentencePiece's U+2581 into a space when the file is read, so that merging
 * and detokenizing work on the same bytes as the text.
 */
#ifndef BT_ENGINE_TOKENIZER_INT_H
#define BT_ENGINE_TOKENIZER_INT_H

#include "common/map.h"
#include "engine/tokenizer.h"

/* Open addressing from bytes to id. */
typedef struct token_table {
    uint32_t *slots; /* id + 1; 0: free */
    size_t mask;     /* slots - 1 */
    size_t len_max;  /* of the keys in it */
} token_table;

typedef struct tokenizer_splitter tokenizer_splitter;

struct bt_tokenizer {
    bool is_spm; /* else byte-level BPE */
    uint32_t n_tokens;
    char *bytes;      /* all tokens' bytes */
    size_t *starts;   /* [n_tokens + 1] into bytes */
    uint8_t *kinds;   /* [n_tokens] bt_token_kind */
    float *scores;    /* [n_tokens]; SentencePiece only */
    token_table text; /* tokens that text may become by merging */
    token_table special;
    bool special_first[256];   /* bytes that special tokens begin with */
    uint32_t *special_lengths; /* distinct, longest first */
    size_t n_special_lengths;
    int32_t byte_tokens[256];     /* -1: the vocabulary has none */
    bt_map64 *merges;             /* BPE: left id << 32 | right id -> rank << 32 | merged id */
    tokenizer_splitter *splitter; /* BPE */
    bool whole_words; /* BPE: a word that is a token needs no merges ("ignore_merges") */
    bool add_bos;
    bool add_eos;
    bool add_space_prefix; /* SentencePiece */
    int32_t bos;
    int32_t eos;
    int32_t unknown;
    int32_t *end_tokens;
    size_t n_end_tokens;
    uint8_t fingerprint[BT_TOKENIZER_FINGERPRINT_BYTES];
};

/* Token `id`'s bytes. */
static inline const char *tokenizer_bytes(const bt_tokenizer *tokenizer, int32_t id, size_t *len)
{
    const size_t start = tokenizer->starts[id];
    *len = tokenizer->starts[id + 1] - start;
    return tokenizer->bytes + start;
}

/* The id of those bytes in `table`, or -1. */
int32_t tokenizer_find(const bt_tokenizer *tokenizer, const token_table *table, const char *bytes,
                       size_t len);

/* An empty table for up to `n` tokens, and one token more in it (the first of equal ones
 * stays). The slots are freed with free(). */
BT_MUST_CHECK bt_status tokenizer_table_create(size_t n, token_table *out);
void tokenizer_table_add(const bt_tokenizer *tokenizer, token_table *table, int32_t id);

/* The character at *at of checked UTF-8, and *at moves behind it. */
uint32_t tokenizer_next_char(const char *text, size_t *at);

/* --- words ------------------------------------------------------------------------- */

typedef struct tokenizer_span {
    size_t start;
    size_t end;
} tokenizer_span;

typedef struct tokenizer_spans {
    tokenizer_span *items;
    size_t n;
    size_t capacity;
} tokenizer_spans;

/* BT_EUNSUPPORTED: `pre` isn't known; *err lists those that are. */
BT_MUST_CHECK bt_status tokenizer_splitter_create(bt_gguf_string pre, tokenizer_splitter **out,
                                                  bt_error *err);
void tokenizer_splitter_destroy(tokenizer_splitter *splitter);

/* Properties of the pre-tokenizer that aren't about splitting. */
bool tokenizer_splitter_whole_words(const tokenizer_splitter *splitter);
bool tokenizer_splitter_adds_bos(const tokenizer_splitter *splitter);

/* Puts the text in the form that is split (NFC where the model wants it): *out_text is `text`
 * itself or the bytes of *storage. */
BT_MUST_CHECK bt_status tokenizer_normalize(const tokenizer_splitter *splitter, const char *text,
                                            size_t len, bt_text *storage, const char **out_text,
                                            size_t *out_len);

/* Cuts checked UTF-8 into words: *spans holds them in order, all of the text between them.
 * The caller frees spans->items, also on failure. */
BT_MUST_CHECK bt_status tokenizer_split(const tokenizer_splitter *splitter, const char *text,
                                        size_t len, tokenizer_spans *spans);

/* --- merges ------------------------------------------------------------------------ */

/* Scratch of merging, grown as needed and used again for the next word. */
typedef struct tokenizer_scratch {
    struct merge_symbol *symbols;
    size_t symbols_capacity;
    uint64_t *heap;
    size_t heap_len;
    size_t heap_capacity;
} tokenizer_scratch;

void tokenizer_scratch_deinit(tokenizer_scratch *scratch);

/* Appends the ids of one word (BPE), or of a whole text (SentencePiece). */
BT_MUST_CHECK bt_status tokenizer_merge(const bt_tokenizer *tokenizer, tokenizer_scratch *scratch,
                                        const char *word, size_t len, bt_token_list *out);

#endif /* BT_ENGINE_TOKENIZER_INT_H */
