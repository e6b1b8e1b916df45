/* SPDX-License-Identifier: Apache-2.0 */
/* A word is a doubly linked list of symbols, at first its bytes (BPE) or characters
 * (SentencePiece). Each pair of neighbours that makes a token is a candidate in a heap,
 * best first: lowest rank, or highest score; then leftmost. A candidate that comes out is
 * applied and brings at most two new ones, so a word of n symbols costs n log n.
 *
 * Candidates are not removed when a neighbour changes. They're stale then, and known by their
 * length: symbols only ever grow, so a pair at a given left symbol whose joined length is
 * the one remembered is the same pair.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "engine/tokenizer_int.h"

#define NONE UINT32_MAX

typedef struct merge_symbol {
    uint32_t start; /* in the word */
    uint32_t len;   /* 0: merged away */
    int32_t id;     /* -1: no token (SentencePiece: falls back to bytes) */
    uint32_t prev;
    uint32_t next;
} merge_symbol;

typedef struct merge_candidate {
    uint32_t order; /* lowest first */
    uint32_t left;
    uint32_t len; /* of both together */
    int32_t id;   /* what they become */
} merge_candidate;

void tokenizer_scratch_deinit(tokenizer_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (tokenizer_scratch){0};
}

/* --- heap -------------------------------------------------------------------------- */

static bool comes_before(const merge_candidate *a, const merge_candidate *b)
{
    return a->order != b->order ? a->order < b->order : a->left < b->left;
}

static bt_status heap_push(tokenizer_scratch *scratch, merge_candidate candidate)
{
    if (scratch->heap_len == scratch->heap_capacity) {
        const size_t capacity = scratch->heap_capacity * 2 + 64;
        merge_candidate *grown = realloc(scratch->heap, capacity * sizeof *grown);
        if (!grown) {
            return BT_ENOMEM;
        }
        scratch->heap = grown;
        scratch->heap_capacity = capacity;
    }
    merge_candidate *heap = scratch->heap;
    size_t at = scratch->heap_len++;
    while (at > 0 && comes_before(&candidate, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = candidate;
    return BT_OK;
}

static merge_candidate heap_pop(tokenizer_scratch *scratch)
{
    merge_candidate *heap = scratch->heap;
    const merge_candidate top = heap[0];
    const size_t len = --scratch->heap_len;
    const merge_candidate moved = heap[len];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= len) {
            break;
        }
        if (child + 1 < len && comes_before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!comes_before(&heap[child], &moved)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
    return top;
}

/* --- candidates -------------------------------------------------------------------- */

/* Maps scores to integers in the opposite order: the highest score gives the lowest. */
static uint32_t order_of_score(float score)
{
    uint32_t bits;
    score += 0.0F; /* -0 and 0 are one score */
    memcpy(&bits, &score, sizeof bits);
    const uint32_t ascending = bits & 0x80000000U ? ~bits : bits | 0x80000000U;
    return ~ascending;
}

static bool find_merge(const bt_tokenizer *tokenizer, const char *word, const merge_symbol *left,
                       const merge_symbol *right, merge_candidate *out)
{
    if (tokenizer->is_spm) {
        out->id = tokenizer_find(tokenizer, &tokenizer->text, word + left->start,
                                 (size_t)left->len + right->len);
        if (out->id < 0) {
            return false;
        }
        out->order = order_of_score(tokenizer->scores[out->id]);
        return true;
    }
    uint64_t found;
    if (!bt_map64_get(tokenizer->merges, (uint64_t)left->id << 32 | (uint32_t)right->id, &found)) {
        return false;
    }
    out->order = (uint32_t)(found >> 32);
    out->id = (int32_t)(found & 0x7FFFFFFF);
    return true;
}

static bt_status push_pair(const bt_tokenizer *tokenizer, tokenizer_scratch *scratch,
                           const char *word, uint32_t left)
{
    const merge_symbol *symbols = scratch->symbols;
    if (left == NONE || symbols[left].next == NONE) {
        return BT_OK;
    }
    const merge_symbol *right = &symbols[symbols[left].next];
    merge_candidate candidate = {.left = left, .len = symbols[left].len + right->len};
    if (!find_merge(tokenizer, word, &symbols[left], right, &candidate)) {
        return BT_OK;
    }
    return heap_push(scratch, candidate);
}

/* --- symbols ----------------------------------------------------------------------- */

static bt_status reserve_symbols(tokenizer_scratch *scratch, size_t n)
{
    if (n <= scratch->symbols_capacity) {
        return BT_OK;
    }
    const size_t capacity = bt_size_max(n, scratch->symbols_capacity * 2);
    free(scratch->symbols);
    scratch->symbols_capacity = 0;
    scratch->symbols = malloc(capacity * sizeof *scratch->symbols);
    if (!scratch->symbols) {
        return BT_ENOMEM;
    }
    scratch->symbols_capacity = capacity;
    return BT_OK;
}

/* The word's bytes or characters. Bytes that a BPE vocabulary lacks vanish, as they do in
 * the reference; their neighbours become neighbours. */
static uint32_t fill_symbols(const bt_tokenizer *tokenizer, const char *word, size_t len,
                             merge_symbol *symbols)
{
    uint32_t n = 0;
    size_t at = 0;
    while (at < len) {
        const size_t start = at;
        int32_t id;
        if (tokenizer->is_spm) {
            (void)tokenizer_next_char(word, &at);
            id = tokenizer_find(tokenizer, &tokenizer->text, word + start, at - start);
        } else {
            id = tokenizer->byte_tokens[(unsigned char)word[at++]];
            if (id < 0) {
                continue;
            }
        }
        symbols[n] = (merge_symbol){(uint32_t)start, (uint32_t)(at - start), id, n - 1, n + 1};
        n++;
    }
    if (n > 0) {
        symbols[0].prev = NONE;
        symbols[n - 1].next = NONE;
    }
    return n;
}

static bt_status apply_merges(const bt_tokenizer *tokenizer, tokenizer_scratch *scratch,
                              const char *word)
{
    merge_symbol *symbols = scratch->symbols;
    while (scratch->heap_len > 0) {
        const merge_candidate top = heap_pop(scratch);
        merge_symbol *left = &symbols[top.left];
        if (left->len == 0 || left->next == NONE ||
            left->len + symbols[left->next].len != top.len) {
            continue;
        }
        merge_symbol *right = &symbols[left->next];
        left->len = top.len;
        left->id = top.id;
        left->next = right->next;
        right->len = 0;
        if (left->next != NONE) {
            symbols[left->next].prev = top.left;
        }
        bt_status status = push_pair(tokenizer, scratch, word, left->prev);
        if (status == BT_OK) {
            status = push_pair(tokenizer, scratch, word, top.left);
        }
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

/* A symbol that is no token becomes byte tokens, or one unknown token for a run of such. */
static bt_status append_fallback(const bt_tokenizer *tokenizer, const char *bytes, size_t len,
                                 bool *after_unknown, bt_token_list *out)
{
    bool have_all = true;
    for (size_t i = 0; i < len; i++) {
        have_all = have_all && tokenizer->byte_tokens[(unsigned char)bytes[i]] >= 0;
    }
    if (!have_all) {
        const bool again = *after_unknown || tokenizer->unknown < 0;
        *after_unknown = true;
        return again ? BT_OK : bt_token_list_append(out, &tokenizer->unknown, 1);
    }
    *after_unknown = false;
    for (size_t i = 0; i < len; i++) {
        const bt_status status =
            bt_token_list_append(out, &tokenizer->byte_tokens[(unsigned char)bytes[i]], 1);
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

static bt_status append_symbols(const bt_tokenizer *tokenizer, const merge_symbol *symbols,
                                const char *word, bt_token_list *out)
{
    bool after_unknown = false;
    for (uint32_t at = 0; at != NONE; at = symbols[at].next) {
        const merge_symbol *symbol = &symbols[at];
        bt_status status;
        if (symbol->id >= 0) {
            after_unknown = false;
            status = bt_token_list_append(out, &symbol->id, 1);
        } else {
            status =
                append_fallback(tokenizer, word + symbol->start, symbol->len, &after_unknown, out);
        }
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

bt_status tokenizer_merge(const bt_tokenizer *tokenizer, tokenizer_scratch *scratch,
                          const char *word, size_t len, bt_token_list *out)
{
    BT_ASSERT(len < INT32_MAX);
    if (tokenizer->whole_words) {
        const int32_t id = tokenizer_find(tokenizer, &tokenizer->text, word, len);
        if (id >= 0) {
            return bt_token_list_append(out, &id, 1);
        }
    }
    bt_status status = reserve_symbols(scratch, len);
    if (status != BT_OK) {
        return status;
    }
    const uint32_t n = fill_symbols(tokenizer, word, len, scratch->symbols);
    if (n == 0) {
        return BT_OK;
    }
    scratch->heap_len = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        status = push_pair(tokenizer, scratch, word, i);
        if (status != BT_OK) {
            return status;
        }
    }
    status = apply_merges(tokenizer, scratch, word);
    return status == BT_OK ? append_symbols(tokenizer, scratch->symbols, word, out) : status;
}
