/* SPDX-License-Identifier: Apache-2.0 */
/* kv_layout.h - geometry of a KV block: the one truth for kernels and transfer.
 *
 * A block holds keys and values of BT_KV_BLOCK_TOKENS consecutive positions of one
 * sequence, for all layers (PagedAttention: Kwon et al., SOSP 2023, section 4):
 *
 *   pool   [n_blocks]  block                                     block_bytes apart
 *   block  [n_layers]  layer part (contiguous, moves alone)      layer_bytes apart
 *   part   [n_kv_heads] { K run, V run }                         2 * run_bytes apart
 *   K run  [head_dim / 2][16 tokens][2 channels]   a weight panel whose outputs are tokens
 *   V run  [16 tokens / 2][head_dim][2 tokens]     a weight panel whose inputs are tokens
 *
 * Elements are bf16 or f32. Each run starts on a 64-byte boundary (run_bytes is padded);
 * padding is never read. head_dim is even.
 *
 * Threading: any thread (plain data). Memory: none.
 */
#ifndef BT_ENGINE_KV_LAYOUT_H
#define BT_ENGINE_KV_LAYOUT_H

#include "common/base.h"

enum { BT_KV_BLOCK_TOKENS = 16 };

typedef uint32_t bt_block_id; /* 0 .. n_blocks-1 */

typedef enum bt_kv_format {
    BT_KV_FORMAT_BF16,
    BT_KV_FORMAT_F32,
} bt_kv_format;

typedef struct bt_kv_layout {
    uint32_t n_layers;
    uint32_t n_kv_heads;
    uint32_t head_dim; /* even */
    bt_kv_format format;
    uint32_t run_bytes;   /* K or V of one (layer, kv head), padded to 64 */
    uint32_t layer_bytes; /* 2 * n_kv_heads * run_bytes */
    uint64_t block_bytes; /* n_layers * layer_bytes */
} bt_kv_layout;

/* false: a size is zero, odd, or the products do not fit. */
static inline bool bt_kv_layout_init(bt_kv_layout *layout, uint32_t n_layers, uint32_t n_kv_heads,
                                     uint32_t head_dim, bt_kv_format format)
{
    const uint64_t element_bytes = format == BT_KV_FORMAT_F32 ? 4 : 2;
    if (n_layers == 0 || n_kv_heads == 0 || head_dim == 0 || head_dim % 2 != 0 ||
        n_layers > 65536 || n_kv_heads > 65536 || head_dim > 65536) {
        return false;
    }
    const uint64_t run = (BT_KV_BLOCK_TOKENS * (uint64_t)head_dim * element_bytes + 63) / 64 * 64;
    const uint64_t layer = 2 * run * n_kv_heads;
    if (layer > UINT32_MAX) {
        return false;
    }
    *layout = (bt_kv_layout){
        .n_layers = n_layers,
        .n_kv_heads = n_kv_heads,
        .head_dim = head_dim,
        .format = format,
        .run_bytes = (uint32_t)run,
        .layer_bytes = (uint32_t)layer,
        .block_bytes = layer * n_layers,
    };
    return true;
}

/* Byte offsets from the pool's base. */
static inline uint64_t bt_kv_part_offset(const bt_kv_layout *layout, bt_block_id block,
                                         uint32_t layer)
{
    return block * layout->block_bytes + (uint64_t)layer * layout->layer_bytes;
}

static inline uint64_t bt_kv_k_offset(const bt_kv_layout *layout, bt_block_id block,
                                      uint32_t layer, uint32_t kv_head)
{
    return bt_kv_part_offset(layout, block, layer) + 2 * (uint64_t)kv_head * layout->run_bytes;
}

static inline uint64_t bt_kv_v_offset(const bt_kv_layout *layout, bt_block_id block,
                                      uint32_t layer, uint32_t kv_head)
{
    return bt_kv_k_offset(layout, block, layer, kv_head) + layout->run_bytes;
}

/* Element index inside a K run of (token slot, channel), and inside a V run. */
static inline uint32_t bt_kv_k_element(uint32_t slot, uint32_t channel)
{
    return ((channel >> 1) * BT_KV_BLOCK_TOKENS + slot) * 2 + (channel & 1);
}

static inline uint32_t bt_kv_v_element(uint32_t head_dim, uint32_t slot, uint32_t channel)
{
    return ((slot >> 1) * head_dim + channel) * 2 + (slot & 1);
}

#endif /* BT_ENGINE_KV_LAYOUT_H */
