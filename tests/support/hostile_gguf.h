/* SPDX-License-Identifier: Apache-2.0 */
/* hostile_gguf.h - over 200 model files that are not what they should be, made from a right one:
 * fields set to what a reader trips over, keys and tensors missing, doubled or of another type,
 * files that are cut, and files damaged at random (the same for ever).
 *
 * Threading: any thread. Memory: what make() returns is the caller's.
 */
#ifndef BT_TESTS_SUPPORT_HOSTILE_GGUF_H
#define BT_TESTS_SUPPORT_HOSTILE_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

typedef struct bt_hostile_gguf {
    char name[64];    /* "head_count is 0" */
    const char *says; /* part of the text that refuses it; NULL: it may load */
    uint8_t *bytes;
    size_t len;
} bt_hostile_gguf;

size_t bt_hostile_gguf_count(void);

/* File `idx` of them. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_hostile_gguf_make(size_t idx, bt_hostile_gguf *out);

/* The right file that they are made from: a llama of one layer, with tokenizer and template. */
BT_MUST_CHECK bt_status bt_hostile_gguf_make_right(uint8_t **bytes, size_t *len);

#endif /* BT_TESTS_SUPPORT_HOSTILE_GGUF_H */
