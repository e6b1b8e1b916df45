/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes go one by one through a window of at most 4, `pending`. Room for the longest output
 * is reserved first, so that nothing fails half way.
 */
#include "engine/detokenizer.h"

#include <string.h>

#include "common/check.h"
#include "common/utf8.h"

void bt_detokenizer_init(bt_detokenizer *detokenizer, const bt_tokenizer *tokenizer, unsigned flags)
{
    *detokenizer = (bt_detokenizer){
        .tokenizer = tokenizer,
        .flags = flags,
        .strip_space =
            (flags & BT_DETOKENIZE_TEXT_START) != 0 && bt_tokenizer_adds_space(tokenizer),
    };
}

/* Takes the first `n` pending bytes out. */
static void drop_pending(bt_detokenizer *detokenizer, size_t n)
{
    BT_ASSERT(n <= detokenizer->n_pending);
    detokenizer->n_pending = (uint8_t)(detokenizer->n_pending - n);
    memmove(detokenizer->pending, detokenizer->pending + n, detokenizer->n_pending);
}

/* Appends to reserved room. */
static void put(bt_text *out, const char *bytes, size_t len)
{
    BT_ASSERT(len <= out->capacity - out->len);
    memcpy(out->bytes + out->len, bytes, len);
    out->len += len;
}

/* Whether pending, ill-formed as it is, may yet become a character: it's all one subpart
 * and begins with a byte that begins characters. */
static bool may_become_whole(const bt_detokenizer *detokenizer, size_t n_subpart)
{
    const uint8_t lead = detokenizer->pending[0];
    return n_subpart == detokenizer->n_pending && lead >= 0xC2 && lead <= 0xF4;
}

/* Writes what can be decided; with `end`, all of it. */
static void settle(bt_detokenizer *detokenizer, bool end, bt_text *out)
{
    while (detokenizer->n_pending > 0) {
        const char *pending = (const char *)detokenizer->pending;
        bool valid;
        const size_t n = bt_utf8_step(pending, detokenizer->n_pending, &valid);
        if (valid) {
            put(out, pending, n);
        } else if (end || !may_become_whole(detokenizer, n)) {
            put(out, BT_UTF8_REPLACEMENT, strlen(BT_UTF8_REPLACEMENT));
        } else {
            return;
        }
        drop_pending(detokenizer, n);
    }
}

static bool is_hidden(const bt_detokenizer *detokenizer, int32_t id)
{
    const bt_token_kind kind = bt_tokenizer_kind(detokenizer->tokenizer, id);
    return (kind == BT_TOKEN_CONTROL || kind == BT_TOKEN_UNKNOWN) &&
           (detokenizer->flags & BT_DETOKENIZE_SPECIAL) == 0;
}

bt_status bt_detokenizer_push(bt_detokenizer *detokenizer, int32_t id, bt_text *out)
{
    if (id < 0 || (uint32_t)id >= bt_tokenizer_vocab_size(detokenizer->tokenizer)) {
        return BT_EINVAL;
    }
    if (is_hidden(detokenizer, id)) {
        return BT_OK;
    }
    size_t len;
    const char *piece = bt_tokenizer_piece(detokenizer->tokenizer, id, &len);
    size_t room; /* each byte, also a pending one, makes at most one U+FFFD */
    if (!bt_size_mul(len + sizeof detokenizer->pending, strlen(BT_UTF8_REPLACEMENT), &room)) {
        return BT_ENOMEM;
    }
    const bt_status status = bt_text_reserve(out, room);
    if (status != BT_OK) {
        return status;
    }
    for (size_t i = 0; i < len; i++) {
        const bool strip = detokenizer->strip_space && piece[i] == ' ';
        detokenizer->strip_space = false;
        if (!strip) {
            detokenizer->pending[detokenizer->n_pending++] = (uint8_t)piece[i];
            settle(detokenizer, false, out);
        }
    }
    return BT_OK;
}

bt_status bt_detokenizer_flush(bt_detokenizer *detokenizer, bt_text *out)
{
    const bt_status status =
        bt_text_reserve(out, sizeof detokenizer->pending * strlen(BT_UTF8_REPLACEMENT));
    if (status != BT_OK) {
        return status;
    }
    settle(detokenizer, true, out);
    bt_detokenizer_init(detokenizer, detokenizer->tokenizer, detokenizer->flags);
    return BT_OK;
}

bt_status bt_detokenize(const bt_tokenizer *tokenizer, const int32_t *ids, size_t n, unsigned flags,
                        bt_text *out)
{
    const size_t before = out->len;
    bt_detokenizer detokenizer;
    bt_detokenizer_init(&detokenizer, tokenizer, flags);
    bt_status status = BT_OK;
    for (size_t i = 0; i < n && status == BT_OK; i++) {
        status = bt_detokenizer_push(&detokenizer, ids[i], out);
    }
    if (status == BT_OK) {
        status = bt_detokenizer_flush(&detokenizer, out);
    }
    if (status != BT_OK) {
        out->len = before;
    }
    return status;
}
