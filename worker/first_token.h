/* SPDX-License-Identifier: Apache-2.0 */
/* first_token.h - the first token as prefill hands it to decode beside the KV blocks.
 *
 * It is the blob of a transfer's completion (kvtransfer/source.h):
 *
 *   u8 version = 1 | u8 flags (1: has logprob) | u16 n_top | u32 index | i32 token | f32 logprob
 *   | n_top x { i32 token, f32 logprob }                               little-endian
 *
 * Threading: any thread (no state).
 * Memory:    none.
 */
#ifndef BT_WORKER_FIRST_TOKEN_H
#define BT_WORKER_FIRST_TOKEN_H

#include "common/status.h"
#include "proto/sampling.h"

enum { BT_FIRST_TOKEN_BYTES_MAX = 16 + 8 * BT_TOP_LOGPROBS_MAX };

typedef struct bt_first_token {
    uint32_t index; /* of the output: not 0 when the request was retried after some tokens */
    bt_token_result result;
} bt_first_token;

/* Returns the bytes written. */
size_t bt_first_token_pack(const bt_first_token *first, uint8_t out[BT_FIRST_TOKEN_BYTES_MAX]);

/* BT_EPROTOCOL: malformed, or a token outside 0 .. n_vocab - 1. */
BT_MUST_CHECK bt_status bt_first_token_unpack(const void *bytes, size_t len, uint32_t n_vocab,
                                              bt_first_token *out);

#endif /* BT_WORKER_FIRST_TOKEN_H */
