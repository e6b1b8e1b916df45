/* SPDX-License-Identifier: Apache-2.0 */
/* A word is a doubly linked list of symbols, at first its bytes (BPE) or characters
 * (SentencePiece). Each pair of neighbours that makes a token is a candidate in a heap,
 * best first: lowest rank, or highest score; then leftmost. A candidate that comes out is
 * applied and brings at most two new ones, so a word of n symbols costs n log n.
 *
 * Each symbol knows what it would become together with its right neighbour. A candidate is
 * only (order, left symbol) in one integer: 8 bytes, since the heap of a long word doesn't
 * fit a cache. Candidates are not removed when a neighbour changes; they're stale when their
 * order isn't the symbol's any more.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "engine/tokenizer_int.h"

#define NONE UINT32_MAX

typedef struct merge_symbol {
    uint32_t start; /* in the word */
    uint32_t len;
    int32_t id; /* -1: no token (SentencePiece: falls back to bytes) */
    uint32_t prev;
    uint32_t next;
    uint32_t pair_order; /* NONE: no token together with `next`, or merged away */
    int32_t pair_id;
} merge_symbol;

enum { HEAP_FANOUT = 4 };

void tokenizer_scratch_deinit(tokenizer_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (tokenizer_scratch){0};
}

/* --- heap -------------------------------------------------------------------------- */

static bt_status heap_push(tokenizer_scratch *scratch, uint64_t candidate)
{
    if (scratch->heap_len == scratch->heap_capacity) {
        const size_t capacity = scratch->heap_capacity * 2 + 64;
        uint64_t *grown = realloc(scratch->heap, capacity * sizeof *grown);
        if (!grown) {
            return BT_ENOMEM;
        }
        scratch->heap = grown;
        scratch->heap_capacity = capacity;
    }
    uint64_t *heap = scratch->heap;
    size_t at = scratch->heap_len++;
    while (at > 0 && candidate < heap[(at - 1) / HEAP_FANOUT]) {
        heap[at] = heap[(at - 1) / HEAP_FANOUT];
        at = (at - 1) / HEAP_FANOUT;
    }
    heap[at] = candidate;
    return BT_OK;
}

static uint64_t heap_pop(tokenizer_scratch *scratch)
{
    uint64_t *heap = scratch->heap;
    const uint64_t top = heap[0];
    const size_t len = --scratch->heap_len;
    const uint64_t moved = heap[len];
    size_t at = 0;
    for (size_t first = 1; first < len; first = HEAP_FANOUT * at + 1) {
        size_t best = first;
        for (size_t i = first + 1; i < bt_size_min(first + HEAP_FANOUT, len); i++) {
            best = heap[i] < heap[best] ? i : best;
        }
        if (heap[best] >= moved) {
            break;
        }
        heap[at] = heap[best];
        at = best;
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

/* Notes what `left` makes with its right neighbour; false: nothing. */
static bool find_pair(const bt_tokenizer *tokenizer, const char *word, merge_symbol *left,
                      const merge_symbol *right)
{
    left->pair_order = NONE;
    if (tokenizer->is_spm) {
        left->pair_id = tokenizer_find(tokenizer, &tokenizer->text, word + left->start,
                                       (size_t)left->len + right->len);
        if (left->pair_id < 0) {
            return false;
        }
        left->pair_order = order_of_score(tokenizer->scores[left->pair_id]);
        return true;
    }
    uint64_t found;
    if (!bt_map64_get(tokenizer->merges, (uint64_t)left->id << 32 | (uint32_t)right->id, &found)) {
        return false;
    }
    left->pair_order = (uint32_t)(found >> 32);
    left->pair_id = (int32_t)(found & 0x7FFFFFFF);
    return true;
}

static bt_status push_pair(const bt_tokenizer *tokenizer, tokenizer_scratch *scratch,
                           const char *word, uint32_t left)
{
    merge_symbol *symbols = scratch->symbols;
    if (left == NONE) {
        return BT_OK;
    }
    symbols[left].pair_order = NONE;
    if (symbols[left].next == NONE ||
        !find_pair(tokenizer, word, &symbols[left], &symbols[symbols[left].next])) {
        return BT_OK;
    }
    return heap_push(scratch, (uint64_t)symbols[left].pair_order << 32 | left);
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
        symbols[n] =
            (merge_symbol){(uint32_t)start, (uint32_t)(at - start), id, n - 1, n + 1, NONE, -1};
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
        const uint64_t top = heap_pop(scratch);
        const uint32_t at = (uint32_t)top;
        merge_symbol *left = &symbols[at];
        if (left->pair_order != (uint32_t)(top >> 32)) {
            continue;
        }
        merge_symbol *right = &symbols[left->next];
        left->len += right->len;
        left->id = left->pair_id;
        left->next = right->next;
        right->pair_order = NONE;
        if (left->next != NONE) {
            symbols[left->next].prev = at;
        }
        bt_status status = push_pair(tokenizer, scratch, word, left->prev);
        if (status == BT_OK) {
            status = push_pair(tokenizer, scratch, word, at);
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
