/* SPDX-License-Identifier: Apache-2.0 */
/* encode(): the text is checked, special tokens that the flags allow are cut out of it
 * (leftmost, then longest), and each fragment between them goes through the splitter and
 * the merges on its own.
 */
#include "engine/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/utf8.h"
#include "engine/tokenizer_int.h"

/* --- tables ------------------------------------------------------------------------ */

/* FNV-1a. Collisions with chosen text cost a longer walk in a table of fixed content. */
static uint64_t hash_bytes(const char *bytes, size_t len)
{
    uint64_t hash = 0xCBF29CE484222325U;
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001B3U;
    }
    return hash ^ hash >> 32;
}

int32_t tokenizer_find(const bt_tokenizer *tokenizer, const token_table *table, const char *bytes,
                       size_t len)
{
    if (len == 0 || len > table->len_max) {
        return -1;
    }
    for (size_t at = (size_t)hash_bytes(bytes, len) & table->mask; table->slots[at] != 0;
         at = (at + 1) & table->mask) {
        const int32_t id = (int32_t)(table->slots[at] - 1);
        size_t found_len;
        const char *found = tokenizer_bytes(tokenizer, id, &found_len);
        if (found_len == len && memcmp(found, bytes, len) == 0) {
            return id;
        }
    }
    return -1;
}

bt_status tokenizer_table_create(size_t n, token_table *out)
{
    size_t slots = 16;
    while (slots < 2 * n) {
        slots *= 2;
    }
    *out = (token_table){calloc(slots, sizeof *out->slots), slots - 1, 0};
    return out->slots ? BT_OK : BT_ENOMEM;
}

void tokenizer_table_add(const bt_tokenizer *tokenizer, token_table *table, int32_t id)
{
    size_t len;
    const char *bytes = tokenizer_bytes(tokenizer, id, &len);
    if (len == 0 || tokenizer_find(tokenizer, table, bytes, len) >= 0) {
        return;
    }
    size_t at = (size_t)hash_bytes(bytes, len) & table->mask;
    while (table->slots[at] != 0) {
        at = (at + 1) & table->mask;
    }
    table->slots[at] = (uint32_t)id + 1;
    table->len_max = bt_size_max(table->len_max, len);
}

uint32_t tokenizer_next_char(const char *text, size_t *at)
{
    const unsigned char *bytes = (const unsigned char *)text + *at;
    if (bytes[0] < 0x80) {
        *at += 1;
        return bytes[0];
    }
    if (bytes[0] < 0xE0) {
        *at += 2;
        return (bytes[0] & 0x1FU) << 6 | (bytes[1] & 0x3FU);
    }
    if (bytes[0] < 0xF0) {
        *at += 3;
        return (bytes[0] & 0x0FU) << 12 | (bytes[1] & 0x3FU) << 6 | (bytes[2] & 0x3FU);
    }
    *at += 4;
    return (bytes[0] & 0x07U) << 18 | (bytes[1] & 0x3FU) << 12 | (bytes[2] & 0x3FU) << 6 |
           (bytes[3] & 0x3FU);
}

/* --- encode ------------------------------------------------------------------------ */

typedef struct special_match {
    size_t start;
    size_t end;
    int32_t id;
} special_match;

static bool kind_wanted(const bt_tokenizer *tokenizer, int32_t id, unsigned flags)
{
    return tokenizer->kinds[id] == BT_TOKEN_USER_DEFINED ||
           (flags & BT_TOKENIZE_SPECIAL) == BT_TOKENIZE_SPECIAL;
}

/* The first special token at or after `from`; the longest one there. */
static bool next_special(const bt_tokenizer *tokenizer, const char *text, size_t len, size_t from,
                         unsigned flags, special_match *out)
{
    if ((flags & BT_TOKENIZE_SPECIAL) == 0) {
        return false;
    }
    for (size_t at = from; at < len; at++) {
        if (!tokenizer->special_first[(unsigned char)text[at]]) {
            continue;
        }
        for (size_t i = 0; i < tokenizer->n_special_lengths; i++) {
            const size_t n = tokenizer->special_lengths[i];
            if (n > len - at) {
                continue;
            }
            const int32_t id = tokenizer_find(tokenizer, &tokenizer->special, text + at, n);
            if (id >= 0 && kind_wanted(tokenizer, id, flags)) {
                *out = (special_match){at, at + n, id};
                return true;
            }
        }
    }
    return false;
}

static bt_status encode_bpe(const bt_tokenizer *tokenizer, tokenizer_scratch *scratch,
                            const char *text, size_t len, bt_token_list *out)
{
    bt_text storage = {0};
    tokenizer_spans spans = {0};
    bt_status status = tokenizer_normalize(tokenizer->splitter, text, len, &storage, &text, &len);
    if (status == BT_OK) {
        status = tokenizer_split(tokenizer->splitter, text, len, &spans);
    }
    for (size_t i = 0; i < spans.n && status == BT_OK; i++) {
        const tokenizer_span span = spans.items[i];
        status = tokenizer_merge(tokenizer, scratch, text + span.start, span.end - span.start, out);
    }
    free(spans.items);
    bt_text_deinit(&storage);
    return status;
}

/* U+2581 means a space to SentencePiece; tokens are kept with spaces. */
static bt_status append_spm_text(bt_text *storage, const char *text, size_t len)
{
    size_t done = 0;
    bt_status status = BT_OK;
    for (size_t at = 0; at + 3 <= len && status == BT_OK; at++) {
        if (memcmp(text + at, "\xE2\x96\x81", 3) == 0) {
            status = bt_text_append(storage, text + done, at - done);
            if (status == BT_OK) {
                status = bt_text_append(storage, " ", 1);
            }
            done = at + 3;
            at += 2;
        }
    }
    return status == BT_OK ? bt_text_append(storage, text + done, len - done) : status;
}

static bt_status encode_spm(const bt_tokenizer *tokenizer, tokenizer_scratch *scratch,
                            const char *text, size_t len, bool add_space, bt_token_list *out)
{
    bt_text storage = {0};
    bt_status status = add_space ? bt_text_append(&storage, " ", 1) : BT_OK;
    if (status == BT_OK) {
        status = append_spm_text(&storage, text, len);
    }
    if (status == BT_OK) {
        status = tokenizer_merge(tokenizer, scratch, storage.bytes, storage.len, out);
    }
    bt_text_deinit(&storage);
    return status;
}

static bt_status encode_fragment(const bt_tokenizer *tokenizer, tokenizer_scratch *scratch,
                                 const char *text, size_t len, bool after_special,
                                 bt_token_list *out)
{
    if (len == 0) {
        return BT_OK;
    }
    if (tokenizer->is_spm) {
        return encode_spm(tokenizer, scratch, text, len,
                          tokenizer->add_space_prefix && after_special, out);
    }
    return encode_bpe(tokenizer, scratch, text, len, out);
}

static bt_status encode_checked(const bt_tokenizer *tokenizer, const char *text, size_t len,
                                unsigned flags, bool after_special, bt_token_list *out)
{
    tokenizer_scratch scratch = {0};
    bt_status status = BT_OK;
    size_t at = 0;
    special_match special;
    while (status == BT_OK && next_special(tokenizer, text, len, at, flags, &special)) {
        status =
            encode_fragment(tokenizer, &scratch, text + at, special.start - at, after_special, out);
        if (status == BT_OK) {
            status = bt_token_list_append(out, &special.id, 1);
        }
        at = special.end;
        after_special = true;
    }
    if (status == BT_OK) {
        status = encode_fragment(tokenizer, &scratch, text + at, len - at, after_special, out);
    }
    tokenizer_scratch_deinit(&scratch);
    return status;
}

bt_status bt_tokenizer_encode_piece(const bt_tokenizer *tokenizer, const char *text, size_t len,
                                    unsigned flags, bool after_special, bt_token_list *out,
                                    bt_error *err)
{
    size_t bad_at;
    if (len > BT_TOKENIZER_TEXT_BYTES_MAX) {
        return bt_error_set(err, BT_EINVAL, "the text has %zu bytes, more than %d", len,
                            BT_TOKENIZER_TEXT_BYTES_MAX);
    }
    if (!bt_utf8_valid(text, len, &bad_at)) {
        return bt_error_set(err, BT_EINVAL, "the text isn't UTF-8: byte 0x%02X at offset %zu",
                            (unsigned)(unsigned char)text[bad_at], bad_at);
    }
    const size_t before = out->n;
    const bt_status status = encode_checked(tokenizer, text, len, flags, after_special, out);
    if (status != BT_OK) {
        out->n = before;
        return bt_error_set(err, status, "cannot tokenize %zu bytes: %s", len,
                            bt_status_text(status));
    }
    return BT_OK;
}

bt_status bt_tokenizer_encode(const bt_tokenizer *tokenizer, const char *text, size_t len,
                              unsigned flags, bt_token_list *out, bt_error *err)
{
    const size_t before = out->n;
    const bool add = (flags & BT_TOKENIZE_ADD) != 0;
    bt_status status = BT_OK;
    if (add && tokenizer->add_bos) {
        status = bt_token_list_append(out, &tokenizer->bos, 1);
    }
    if (status == BT_OK) {
        status = bt_tokenizer_encode_piece(tokenizer, text, len, flags, true, out, err);
    }
    if (status == BT_OK && add && tokenizer->add_eos) {
        status = bt_token_list_append(out, &tokenizer->eos, 1);
    }
    if (status != BT_OK) {
        out->n = before;
    }
    if (status == BT_ENOMEM) {
        return bt_error_set(err, BT_ENOMEM, "out of memory for the tokens of %zu bytes", len);
    }
    return status;
}

/* --- questions --------------------------------------------------------------------- */

static bool is_token(const bt_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && (uint32_t)id < tokenizer->n_tokens;
}

const char *bt_tokenizer_piece(const bt_tokenizer *tokenizer, int32_t id, size_t *len)
{
    if (!is_token(tokenizer, id)) {
        *len = 0;
        return "";
    }
    return tokenizer_bytes(tokenizer, id, len);
}

uint32_t bt_tokenizer_vocab_size(const bt_tokenizer *tokenizer)
{
    return tokenizer->n_tokens;
}

bt_token_kind bt_tokenizer_kind(const bt_tokenizer *tokenizer, int32_t id)
{
    return is_token(tokenizer, id) ? (bt_token_kind)tokenizer->kinds[id] : BT_TOKEN_UNUSED;
}

int32_t bt_tokenizer_find_special(const bt_tokenizer *tokenizer, const char *name)
{
    return tokenizer_find(tokenizer, &tokenizer->special, name, strlen(name));
}

int32_t bt_tokenizer_bos(const bt_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t bt_tokenizer_eos(const bt_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool bt_tokenizer_adds_bos(const bt_tokenizer *tokenizer)
{
    return tokenizer->add_bos;
}

bool bt_tokenizer_adds_space(const bt_tokenizer *tokenizer)
{
    return tokenizer->is_spm && tokenizer->add_space_prefix;
}

const int32_t *bt_tokenizer_end_tokens(const bt_tokenizer *tokenizer, size_t *n)
{
    *n = tokenizer->n_end_tokens;
    return tokenizer->end_tokens;
}

bool bt_tokenizer_is_end(const bt_tokenizer *tokenizer, int32_t id)
{
    for (size_t i = 0; i < tokenizer->n_end_tokens; i++) {
        if (tokenizer->end_tokens[i] == id) {
            return true;
        }
    }
    return false;
}

void bt_tokenizer_fingerprint(const bt_tokenizer *tokenizer,
                              uint8_t out[BT_TOKENIZER_FINGERPRINT_BYTES])
{
    memcpy(out, tokenizer->fingerprint, BT_TOKENIZER_FINGERPRINT_BYTES);
}

void bt_tokenizer_destroy(bt_tokenizer *tokenizer)
{
    if (!tokenizer) {
        return;
    }
    free(tokenizer->bytes);
    free(tokenizer->starts);
    free(tokenizer->kinds);
    free(tokenizer->scores);
    free(tokenizer->text.slots);
    free(tokenizer->special.slots);
    free(tokenizer->special_lengths);
    free(tokenizer->end_tokens);
    bt_map64_destroy(tokenizer->merges);
    tokenizer_splitter_destroy(tokenizer->splitter);
    free(tokenizer);
}

/* --- lists ------------------------------------------------------------------------- */

/* Grows *items to hold `extra` more after `n`; doubles, so that appending is O(1). */
static bt_status grow(void **items, size_t item_bytes, size_t n, size_t extra, size_t *capacity)
{
    size_t need;
    size_t bytes;
    if (!bt_size_add(n, extra, &need)) {
        return BT_ENOMEM;
    }
    if (need <= *capacity) {
        return BT_OK;
    }
    const size_t wanted = bt_size_max(need, *capacity + *capacity / 2 + 64);
    if (!bt_size_mul(wanted, item_bytes, &bytes)) {
        return BT_ENOMEM;
    }
    void *grown = realloc(*items, bytes);
    if (!grown) {
        return BT_ENOMEM;
    }
    *items = grown;
    *capacity = wanted;
    return BT_OK;
}

void bt_token_list_deinit(bt_token_list *list)
{
    free(list->ids);
    *list = (bt_token_list){0};
}

bt_status bt_token_list_append(bt_token_list *list, const int32_t *ids, size_t n)
{
    void *items = list->ids;
    const bt_status status = grow(&items, sizeof *ids, list->n, n, &list->capacity);
    list->ids = items;
    if (status == BT_OK && n > 0) {
        memcpy(list->ids + list->n, ids, n * sizeof *ids);
        list->n += n;
    }
    return status;
}

void bt_text_deinit(bt_text *text)
{
    free(text->bytes);
    *text = (bt_text){0};
}

bt_status bt_text_reserve(bt_text *text, size_t extra)
{
    void *items = text->bytes;
    const bt_status status = grow(&items, 1, text->len, extra, &text->capacity);
    text->bytes = items;
    return status;
}

bt_status bt_text_append(bt_text *text, const char *bytes, size_t len)
{
    const bt_status status = bt_text_reserve(text, len);
    if (status == BT_OK && len > 0) {
        memcpy(text->bytes + text->len, bytes, len);
        text->len += len;
    }
    return status;
}
