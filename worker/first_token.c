/* SPDX-License-Identifier: Apache-2.0 */
/* Read and written straight through (common/bytes.h); the reader takes nothing on trust. */
#include "worker/first_token.h"

#include "common/bytes.h"
#include "common/check.h"

enum {
    VERSION = 1,
    HAS_LOGPROB = 1,
};

size_t bt_first_token_pack(const bt_first_token *first, uint8_t out[BT_FIRST_TOKEN_BYTES_MAX])
{
    const bt_token_result *result = &first->result;
    BT_ASSERT(result->n_top <= BT_TOP_LOGPROBS_MAX);
    bt_bytes_writer w;
    bt_bytes_writer_init(&w, out, BT_FIRST_TOKEN_BYTES_MAX);
    bt_bytes_write_u8(&w, VERSION);
    bt_bytes_write_u8(&w, result->has_logprob ? HAS_LOGPROB : 0);
    bt_bytes_write_u16(&w, (uint16_t)result->n_top);
    bt_bytes_write_u32(&w, first->index);
    bt_bytes_write_u32(&w, (uint32_t)result->token);
    bt_bytes_write_f32(&w, result->logprob);
    for (uint32_t i = 0; i < result->n_top; i++) {
        bt_bytes_write_u32(&w, (uint32_t)result->top[i].token);
        bt_bytes_write_f32(&w, result->top[i].logprob);
    }
    BT_ASSERT(w.ok);
    return w.len;
}

bt_status bt_first_token_unpack(const void *bytes, size_t len, uint32_t n_vocab,
                                bt_first_token *out)
{
    bt_bytes_reader r;
    bt_bytes_reader_init(&r, bytes, len);
    const uint8_t version = bt_bytes_read_u8(&r);
    const uint8_t flags = bt_bytes_read_u8(&r);
    bt_first_token first = {.result.n_top = bt_bytes_read_u16(&r)};
    if (version != VERSION || flags > HAS_LOGPROB || first.result.n_top > BT_TOP_LOGPROBS_MAX) {
        return BT_EPROTOCOL;
    }
    first.index = bt_bytes_read_u32(&r);
    const uint32_t token = bt_bytes_read_u32(&r);
    first.result.token = (int32_t)token;
    first.result.has_logprob = flags == HAS_LOGPROB;
    first.result.logprob = bt_bytes_read_f32(&r);
    bool in_vocab = token < n_vocab;
    for (uint32_t i = 0; i < first.result.n_top; i++) {
        const uint32_t top = bt_bytes_read_u32(&r);
        in_vocab = in_vocab && top < n_vocab;
        first.result.top[i].token = (int32_t)top;
        first.result.top[i].logprob = bt_bytes_read_f32(&r);
    }
    if (!bt_bytes_reader_done(&r) || !in_vocab) {
        return BT_EPROTOCOL;
    }
    *out = first;
    return BT_OK;
}
