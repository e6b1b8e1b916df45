/* SPDX-License-Identifier: Apache-2.0 */
/* prefix_map.h - which workers hold which KV block, by the block's hash.
 *
 * Fed by the workers' stored and evicted events. It is a hint: a wrong entry costs time,
 * never a wrong token, since workers look into their own cache. Memory is fixed: a full map
 * gives up the entry that nobody asked for longest (second chance, one clock hand).
 *
 * Threading: loop thread only. Memory: create only, 33 bytes for each slot; there are at least
 * 4/3 slots for each entry.
 */
#ifndef BT_ROUTER_PREFIX_MAP_H
#define BT_ROUTER_PREFIX_MAP_H

#include "proto/block_id.h"

enum { BT_ROUTER_WORKERS_MAX = 128 }; /* slots of workers: 0 .. BT_ROUTER_WORKERS_MAX - 1 */

typedef struct bt_router_prefix_map bt_router_prefix_map;

typedef struct bt_router_prefix_map_stats {
    uint64_t n_entries;
    uint64_t entries_max;
    uint64_t n_given_up; /* for lack of room, since create */
} bt_router_prefix_map_stats;

/* BT_EINVAL: entries_max is 0. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_prefix_map_create(size_t entries_max, bt_router_prefix_map **out);
void bt_router_prefix_map_destroy(bt_router_prefix_map *map);

/* The worker in `slot` holds these blocks now, or no more. */
void bt_router_prefix_map_store(bt_router_prefix_map *map, uint32_t slot, const bt_block_hash *ids,
                                size_t n);
void bt_router_prefix_map_evict(bt_router_prefix_map *map, uint32_t slot, const bt_block_hash *ids,
                                size_t n);

/* Forgets all of a worker's blocks (it left, or a snapshot follows). O(slots). */
void bt_router_prefix_map_drop_worker(bt_router_prefix_map *map, uint32_t slot);

/* matched[slot] for every slot: how many leading blocks of the chain that worker holds. */
void bt_router_prefix_map_match(bt_router_prefix_map *map, const bt_block_hash *chain, size_t n,
                                uint32_t matched[BT_ROUTER_WORKERS_MAX]);

bt_router_prefix_map_stats bt_router_prefix_map_get_stats(const bt_router_prefix_map *map);

#endif /* BT_ROUTER_PREFIX_MAP_H */
