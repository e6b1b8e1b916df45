/* SPDX-License-Identifier: Apache-2.0 */
/* Sets are scanned word by word for the first part; the rest of a rectangle is found bit
 * by bit, which costs no more than moving it. Order inside a rectangle is block by block,
 * since a block's layers lie side by side: late pulls move whole blocks in one run, pulls
 * that overlap with the computation move the one layer that is new. */
#include "kvtransfer/plan.h"

#include <string.h>

#include "common/check.h"

static uint64_t bit_of(const bt_plan_set *set, uint32_t block_idx, uint32_t layer)
{
    return (uint64_t)block_idx * set->n_layers + layer;
}

static bool has_bit(const bt_plan_set *set, uint64_t bit)
{
    return (set->words[bit / 64] >> (bit % 64)) & 1;
}

size_t bt_plan_set_words(uint32_t n_blocks, uint32_t n_layers)
{
    return (size_t)(((uint64_t)n_blocks * n_layers + 63) / 64);
}

void bt_plan_set_init(bt_plan_set *set, uint64_t *words, uint32_t n_blocks, uint32_t n_layers)
{
    set->words = words;
    set->n_blocks = n_blocks;
    set->n_layers = n_layers;
    memset(words, 0, bt_plan_set_words(n_blocks, n_layers) * sizeof *words);
}

bool bt_plan_set_holds(const bt_plan_set *set, const bt_plan_rect *rect)
{
    return rect->n_blocks > 0 && rect->n_layers > 0 && rect->block_idx < set->n_blocks &&
           rect->n_blocks <= set->n_blocks - rect->block_idx && rect->layer < set->n_layers &&
           rect->n_layers <= set->n_layers - rect->layer;
}

bool bt_plan_set_has(const bt_plan_set *set, uint32_t block_idx, uint32_t layer)
{
    BT_ASSERT(block_idx < set->n_blocks);
    BT_ASSERT(layer < set->n_layers);
    return has_bit(set, bit_of(set, block_idx, layer));
}

static uint64_t set_rect(bt_plan_set *set, const bt_plan_rect *rect, bool value)
{
    BT_ASSERT(bt_plan_set_holds(set, rect));
    uint64_t n_changed = 0;
    for (uint32_t b = 0; b < rect->n_blocks; b++) {
        const uint64_t first = bit_of(set, rect->block_idx + b, rect->layer);
        for (uint64_t bit = first; bit < first + rect->n_layers; bit++) {
            if (has_bit(set, bit) != value) {
                set->words[bit / 64] ^= (uint64_t)1 << (bit % 64);
                n_changed++;
            }
        }
    }
    return n_changed;
}

uint64_t bt_plan_set_add(bt_plan_set *set, const bt_plan_rect *rect)
{
    return set_rect(set, rect, true);
}

uint64_t bt_plan_set_remove(bt_plan_set *set, const bt_plan_rect *rect)
{
    return set_rect(set, rect, false);
}

/* First bit in `have` and not in `taken`, from bit `from` on; `end` if there is none. */
static uint64_t first_open(const bt_plan_set *have, const bt_plan_set *taken, uint64_t from,
                           uint64_t end)
{
    for (uint64_t at = from; at < end; at = (at / 64 + 1) * 64) {
        const uint64_t open =
            have->words[at / 64] & ~taken->words[at / 64] & (~(uint64_t)0 << (at % 64));
        if (open != 0) {
            const uint64_t bit = at / 64 * 64 + (uint64_t)__builtin_ctzll(open);
            return bit < end ? bit : end;
        }
    }
    return end;
}

bool bt_plan_next(const bt_plan_set *have, const bt_plan_set *taken, uint32_t from_block,
                  uint64_t max_parts, bt_plan_rect *rect)
{
    BT_ASSERT(have->n_blocks == taken->n_blocks && have->n_layers == taken->n_layers);
    BT_ASSERT(max_parts > 0);
    const uint32_t n_layers = have->n_layers;
    const uint64_t end = (uint64_t)have->n_blocks * n_layers;
    const uint64_t first = first_open(have, taken, (uint64_t)from_block * n_layers, end);
    if (first == end) {
        return false;
    }
    const uint32_t block_idx = (uint32_t)(first / n_layers);
    const uint32_t layer = (uint32_t)(first % n_layers);
    uint32_t wide = 1;
    while (layer + wide < n_layers && wide < max_parts && has_bit(have, first + wide) &&
           !has_bit(taken, first + wide)) {
        wide++;
    }
    uint32_t tall = 1;
    while (block_idx + tall < have->n_blocks && (uint64_t)(tall + 1) * wide <= max_parts) {
        const uint64_t row = first + (uint64_t)tall * n_layers;
        uint32_t same = 0;
        while (same < wide && has_bit(have, row + same) && !has_bit(taken, row + same)) {
            same++;
        }
        if (same < wide) {
            break;
        }
        tall++;
    }
    *rect =
        (bt_plan_rect){.block_idx = block_idx, .n_blocks = tall, .layer = layer, .n_layers = wide};
    return true;
}

size_t bt_plan_regions(const bt_kv_layout *layout, const bt_block_id *ids, const bt_plan_rect *rect,
                       uint64_t skip, uint64_t max_bytes, bt_plan_region *regions, size_t max,
                       uint64_t *bytes)
{
    const uint64_t row_bytes = (uint64_t)rect->n_layers * layout->layer_bytes;
    const uint64_t end = skip + max_bytes < row_bytes * rect->n_blocks ? skip + max_bytes
                                                                       : row_bytes * rect->n_blocks;
    size_t n = 0;
    uint64_t at = skip;
    while (at < end) {
        const uint32_t block_idx = rect->block_idx + (uint32_t)(at / row_bytes);
        const uint64_t in_row = at % row_bytes;
        const uint64_t len = row_bytes - in_row < end - at ? row_bytes - in_row : end - at;
        const uint64_t offset = bt_kv_part_offset(layout, ids[block_idx], rect->layer) + in_row;
        if (n > 0 && regions[n - 1].offset + regions[n - 1].bytes == offset) {
            regions[n - 1].bytes += len;
        } else if (n < max) {
            regions[n++] = (bt_plan_region){.offset = offset, .bytes = len};
        } else {
            break;
        }
        at += len;
    }
    *bytes = at - skip;
    return n;
}
