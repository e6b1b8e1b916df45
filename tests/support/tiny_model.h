/* SPDX-License-Identifier: Apache-2.0 */
/* tiny_model.h - random-weight llama models of a few hundred kilobytes, made on the spot.
 *
 * The weights come from a fixed generator, scaled so that the tokens vary; they say nothing
 * sensible. The vocabulary is bytes: token i < 256 is byte i in a byte-level BPE without merges,
 * then a few special tokens.
 *
 * Threading: any thread. Memory: none kept.
 */
#ifndef BT_TESTS_SUPPORT_TINY_MODEL_H
#define BT_TESTS_SUPPORT_TINY_MODEL_H

#include "common/status.h"

typedef struct bt_tiny_model {
    uint32_t n_layers;
    uint32_t dim;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t n_ffn;
    uint32_t context;
    uint64_t seed;
    bool tied; /* output is the embedding */
} bt_tiny_model;

enum {
    BT_TINY_VOCAB = 259, /* bytes, then <|bos|>, <|im_start|>, <|im_end|> (which is EOS) */
    BT_TINY_EOS = 258,
};

/* Head size 8, widths that are no multiple of 16. */
extern const bt_tiny_model bt_tiny_model_odd;

/* Head size 64, grouped-query attention 3 to 1. */
extern const bt_tiny_model bt_tiny_model_wide;

/* As odd, with a context of 4,096. */
extern const bt_tiny_model bt_tiny_model_long;

/* Writes the model as GGUF with F32 weights. */
BT_MUST_CHECK bt_status bt_tiny_model_write(const bt_tiny_model *model, const char *path);

#endif /* BT_TESTS_SUPPORT_TINY_MODEL_H */
