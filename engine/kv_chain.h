/* SPDX-License-Identifier: Apache-2.0 */
/* kv_chain.h - a chain of cached blocks on its way between two workers, at the engine's end.
 *
 *   serves:   PIN ------> (peers read the blocks) --> RELEASE
 *   fetches:  RESERVE --> (the blocks are filled) --> PUBLISH, or RELEASE
 *
 * Who fetches takes free blocks alone, half of them at most: cached prefixes are worth more to
 * those who computed them, and running sequences have to grow. PUBLISH comes when every block is
 * filled and checked; before it nobody finds them.
 *
 * Threading: steps: engine thread; the chain is the other side's before and after each.
 * Memory:    the caller's.
 */
#ifndef BT_ENGINE_KV_CHAIN_H
#define BT_ENGINE_KV_CHAIN_H

#include "engine/kv_cache.h"

typedef enum bt_kv_chain_op {
    BT_KV_CHAIN_PIN,     /* refers to the leading blocks that are resident; BT_ENOTFOUND: none is */
    BT_KV_CHAIN_RESERVE, /* refers to those, takes the rest; BT_AGAIN: there is no room */
    BT_KV_CHAIN_PUBLISH, /* after RESERVE: gives the filled blocks their identities, and releases */
    BT_KV_CHAIN_RELEASE, /* gives all references back */
} bt_kv_chain_op;

typedef struct bt_kv_chain {
    bt_kv_chain_op op;               /* the step that is to be done */
    const bt_block_hash *identities; /* [n], from a chain's first block on */
    uint32_t n;
    bt_block_id *blocks; /* [n]; the first n_blocks are referred to */
    uint32_t n_blocks;
    uint32_t n_held; /* RESERVE: so many of them were resident already */
    bt_status status;
    void *user; /* the owner's */
} bt_kv_chain;

/* Does chain->op, which sets the status (of PUBLISH and RELEASE always BT_OK). Engine thread. */
void bt_kv_chain_step(bt_kv_chain *chain, bt_kv_cache *cache);

#endif /* BT_ENGINE_KV_CHAIN_H */
