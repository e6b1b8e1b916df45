/* SPDX-License-Identifier: Apache-2.0 */
/* hot.h - the chains of blocks that prompts have had of late: what is worth keeping when a worker
 * goes.
 *
 * Hot is what was used last. A prompt that goes on where an earlier one ended (the next turn of a
 * conversation) takes its place; of others the one that nobody used for longest makes room.
 *
 * Threading: loop thread only. Memory: all of it is taken, and written, in create (half a MiB).
 */
#ifndef BT_ROUTER_HOT_H
#define BT_ROUTER_HOT_H

#include "proto/block_id.h"

enum {
    BT_ROUTER_HOT_CHAINS = 128,
    BT_ROUTER_HOT_BLOCKS = 256, /* of a chain; longer ones are cut */
};

typedef struct bt_router_hot bt_router_hot;

typedef struct bt_router_hot_chain {
    uint64_t used; /* grows with time; 0: unused */
    uint8_t numerics_id[BT_BLOCK_HASH_BYTES];
    uint32_t n;
    bt_block_hash ids[BT_ROUTER_HOT_BLOCKS];
} bt_router_hot_chain;

BT_MUST_CHECK bt_status bt_router_hot_create(bt_router_hot **out);
void bt_router_hot_destroy(bt_router_hot *hot); /* NULL is allowed */

/* A prompt with these full blocks was placed. O(chains). */
void bt_router_hot_note(bt_router_hot *hot, const uint8_t numerics_id[BT_BLOCK_HASH_BYTES],
                        const bt_block_hash *ids, size_t n);

/* The newest chain of these numerics that was used before `before` (UINT64_MAX: the newest), or
 * NULL. Valid until the next note. */
const bt_router_hot_chain *bt_router_hot_next(const bt_router_hot *hot,
                                              const uint8_t numerics_id[BT_BLOCK_HASH_BYTES],
                                              uint64_t before);

#endif /* BT_ROUTER_HOT_H */
