/* SPDX-License-Identifier: Apache-2.0 */
/* How it works. Open addressing with linear probing; a slot without workers is empty, so an
 * entry whose last worker goes is removed by shifting its followers back, and no tombstones
 * ever fill the table. Invariants:
 *   1. between an entry's home slot and itself no slot is empty;
 *   2. n_entries <= entries_max <= 3/4 of the slots, so probes end;
 *   3. hashes come keyed and well mixed (proto/block_id.h), so their bits are the hash.
 * Room is made by one clock hand: an entry that was matched or stored since the hand passed
 * is spared once. */
#include "router/prefix_map.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/check.h"

enum { SET_WORDS = BT_ROUTER_WORKERS_MAX / 64 };

typedef struct entry {
    bt_block_hash id;
    uint64_t workers[SET_WORDS]; /* all zero: the slot is empty */
} entry;

struct bt_router_prefix_map {
    entry *entries;
    uint8_t *used; /* asked for since the hand passed */
    size_t mask;   /* slots - 1 */
    size_t hand;
    bt_router_prefix_map_stats stats;
};

static bool is_empty(const entry *e)
{
    return (e->workers[0] | e->workers[1]) == 0;
}

static bool same_id(const bt_block_hash *a, const bt_block_hash *b)
{
    return a->w[0] == b->w[0] && a->w[1] == b->w[1];
}

static size_t home_of(const bt_router_prefix_map *map, const bt_block_hash *id)
{
    return (size_t)id->w[0] & map->mask;
}

/* The slot of `id`, or the empty slot where it would go. */
static size_t find(const bt_router_prefix_map *map, const bt_block_hash *id)
{
    size_t i = home_of(map, id);
    while (!is_empty(&map->entries[i]) && !same_id(&map->entries[i].id, id)) {
        i = (i + 1) & map->mask;
    }
    return i;
}

/* Empties slot i and closes the gap (invariant 1). */
static void remove_at(bt_router_prefix_map *map, size_t i)
{
    size_t gap = i;
    size_t next = i;
    for (;;) {
        next = (next + 1) & map->mask;
        if (is_empty(&map->entries[next])) {
            break;
        }
        const size_t home = home_of(map, &map->entries[next].id);
        /* It may move back if its home is not between the gap and itself. */
        if (((next - home) & map->mask) >= ((next - gap) & map->mask)) {
            map->entries[gap] = map->entries[next];
            map->used[gap] = map->used[next];
            gap = next;
        }
    }
    memset(map->entries[gap].workers, 0, sizeof map->entries[gap].workers);
    map->used[gap] = 0;
    BT_ASSERT(map->stats.n_entries > 0);
    map->stats.n_entries--;
}

static void make_room(bt_router_prefix_map *map)
{
    for (;;) {
        map->hand = (map->hand + 1) & map->mask;
        if (is_empty(&map->entries[map->hand])) {
            continue;
        }
        if (!map->used[map->hand]) {
            break;
        }
        map->used[map->hand] = 0;
    }
    remove_at(map, map->hand);
    map->stats.n_given_up++;
}

bt_status bt_router_prefix_map_create(size_t entries_max, bt_router_prefix_map **out)
{
    if (entries_max == 0 || entries_max > SIZE_MAX / 256) {
        return BT_EINVAL;
    }
    size_t n_slots = 16;
    while (n_slots / 4 * 3 < entries_max) {
        n_slots *= 2;
    }
    bt_router_prefix_map *map = calloc(1, sizeof *map);
    if (map == NULL) {
        return BT_ENOMEM;
    }
    /* Written, so that the memory is taken now and not page by page for thousands of requests. */
    map->entries = bt_alloc_array(n_slots, sizeof *map->entries);
    map->used = bt_alloc_array(n_slots, 1);
    map->mask = n_slots - 1;
    map->stats.entries_max = entries_max;
    if (map->entries == NULL || map->used == NULL) {
        bt_router_prefix_map_destroy(map);
        return BT_ENOMEM;
    }
    *out = map;
    return BT_OK;
}

void bt_router_prefix_map_destroy(bt_router_prefix_map *map)
{
    if (map == NULL) {
        return;
    }
    free(map->entries);
    free(map->used);
    free(map);
}

void bt_router_prefix_map_store(bt_router_prefix_map *map, uint32_t slot, const bt_block_hash *ids,
                                size_t n)
{
    BT_ASSERT(slot < BT_ROUTER_WORKERS_MAX);
    for (size_t k = 0; k < n; k++) {
        size_t i = find(map, &ids[k]);
        if (is_empty(&map->entries[i])) {
            if (map->stats.n_entries == map->stats.entries_max) {
                make_room(map);
                i = find(map, &ids[k]);
            }
            map->entries[i].id = ids[k];
            map->stats.n_entries++;
        }
        map->entries[i].workers[slot / 64] |= UINT64_C(1) << (slot % 64);
        map->used[i] = 1;
    }
}

/* Takes the worker out of the entry in slot i; true: the entry is gone. */
static bool clear_worker(bt_router_prefix_map *map, size_t i, uint32_t slot)
{
    entry *e = &map->entries[i];
    uint64_t left[SET_WORDS];
    memcpy(left, e->workers, sizeof left);
    left[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    if ((left[0] | left[1]) == 0) {
        remove_at(map, i);
        return true;
    }
    memcpy(e->workers, left, sizeof left);
    return false;
}

void bt_router_prefix_map_evict(bt_router_prefix_map *map, uint32_t slot, const bt_block_hash *ids,
                                size_t n)
{
    BT_ASSERT(slot < BT_ROUTER_WORKERS_MAX);
    for (size_t k = 0; k < n; k++) {
        const size_t i = find(map, &ids[k]);
        if (!is_empty(&map->entries[i])) {
            (void)clear_worker(map, i, slot);
        }
    }
}

void bt_router_prefix_map_drop_worker(bt_router_prefix_map *map, uint32_t slot)
{
    BT_ASSERT(slot < BT_ROUTER_WORKERS_MAX);
    const uint64_t bit = UINT64_C(1) << (slot % 64);
    /* A removal may bring another entry into the slot: look at it again. What is shifted from
     * the table's begin around to its end was looked at before. */
    for (size_t i = 0; i <= map->mask; i++) {
        while ((map->entries[i].workers[slot / 64] & bit) != 0 && clear_worker(map, i, slot)) {
        }
    }
}

void bt_router_prefix_map_match(bt_router_prefix_map *map, const bt_block_hash *chain, size_t n,
                                uint32_t matched[BT_ROUTER_WORKERS_MAX])
{
    memset(matched, 0, BT_ROUTER_WORKERS_MAX * sizeof *matched);
    uint64_t holders[SET_WORDS] = {UINT64_MAX, UINT64_MAX};
    for (size_t k = 0; k < n; k++) {
        const size_t i = find(map, &chain[k]);
        const entry *e = &map->entries[i];
        holders[0] &= e->workers[0];
        holders[1] &= e->workers[1];
        if ((holders[0] | holders[1]) == 0) {
            return;
        }
        map->used[i] = 1;
        for (size_t w = 0; w < SET_WORDS; w++) {
            for (uint64_t rest = holders[w]; rest != 0; rest &= rest - 1) {
                matched[w * 64 + (size_t)__builtin_ctzll(rest)]++;
            }
        }
    }
}

bt_router_prefix_map_stats bt_router_prefix_map_get_stats(const bt_router_prefix_map *map)
{
    return map->stats;
}
