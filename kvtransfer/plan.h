/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - which parts to move next, and where they lie.
 *
 * A part is one layer of one block of a transfer. Sets of parts are bitmaps, block by
 * block; what moves at once is a rectangle of blocks x layers, ordered block by block:
 *
 *   layer   0 1 2 3          rect {block_idx 1, n_blocks 2, layer 1, n_layers 2}
 *   block 0 . . . .          moves a b c d in this order; a+b lie side by side in a pool,
 *   block 1 . a b .          b+c do when the rect has all layers and the blocks' ids
 *   block 2 . c d .          follow each other.
 *
 * Threading: any thread (no state of its own).
 * Memory:    the caller's.
 */
#ifndef BT_KVTRANSFER_PLAN_H
#define BT_KVTRANSFER_PLAN_H

#include "engine/kv_layout.h"

typedef struct bt_plan_rect {
    uint32_t block_idx, n_blocks;
    uint32_t layer, n_layers;
} bt_plan_rect;

/* Parts in a rectangle, and the n-th of them. */
static inline uint64_t bt_plan_rect_parts(const bt_plan_rect *rect)
{
    return (uint64_t)rect->n_blocks * rect->n_layers;
}

/* Bit block_idx * n_layers + layer of `words`. */
typedef struct bt_plan_set {
    uint64_t *words; /* borrowed */
    uint32_t n_blocks, n_layers;
} bt_plan_set;

/* Words that a set of this size needs. */
size_t bt_plan_set_words(uint32_t n_blocks, uint32_t n_layers);

/* Makes the set empty, with a new shape that its words hold. */
void bt_plan_set_init(bt_plan_set *set, uint64_t *words, uint32_t n_blocks, uint32_t n_layers);

/* False unless rect is not empty and lies inside the set. For what comes from outside. */
bool bt_plan_set_holds(const bt_plan_set *set, const bt_plan_rect *rect);

bool bt_plan_set_has(const bt_plan_set *set, uint32_t block_idx, uint32_t layer);

/* Adds or removes a rectangle inside the set; returns how many parts changed. */
uint64_t bt_plan_set_add(bt_plan_set *set, const bt_plan_rect *rect);
uint64_t bt_plan_set_remove(bt_plan_set *set, const bt_plan_rect *rect);

/* Finds the next rectangle of parts that are in `have` and not in `taken`, at or after
 * block `from_block`: starts at the first such part, takes as many layers as follow it
 * without a hole, then as many blocks as have all of these; at most max_parts (> 0).
 * False: there is none. O(words) to find it. */
bool bt_plan_next(const bt_plan_set *have, const bt_plan_set *taken, uint32_t from_block,
                  uint64_t max_parts, bt_plan_rect *rect);

/* A run of bytes in a pool. */
typedef struct bt_plan_region {
    uint64_t offset; /* from the pool's base */
    uint64_t bytes;
} bt_plan_region;

/* Lists where bytes [skip, skip + max_bytes) of the rectangle's parts lie in a pool,
 * merged where they touch, up to max regions. Returns how many; *bytes is their sum. */
size_t bt_plan_regions(const bt_kv_layout *layout, const bt_block_id *ids, const bt_plan_rect *rect,
                       uint64_t skip, uint64_t max_bytes, bt_plan_region *regions, size_t max,
                       uint64_t *bytes);

#endif /* BT_KVTRANSFER_PLAN_H */
