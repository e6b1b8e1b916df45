/* SPDX-License-Identifier: Apache-2.0 */
/* map.h - fixed-capacity hash maps: 64- or 128-bit keys to 64-bit values.
 *
 * Open addressing with linear probing (Knuth, vol. 3, section 6.4, algorithms L and
 * R): removing moves later entries back, so there are no tombstones and the map never
 * gets slower with age. All keys are allowed, 0 too. The mix of a key's bits is fixed:
 * keys that an outsider may choose must be hashed under a key first (hash.h).
 *
 * Pointers are stored with bt_map_of_ptr() and read with bt_map_to_ptr().
 *
 * Threading: one thread at a time.
 * Memory:    create only; 17 (64-bit keys) or 25 (128-bit) bytes for each slot; slots are
 *            the power of two from 4/3 of the capacity up.
 */
#ifndef BT_COMMON_MAP_H
#define BT_COMMON_MAP_H

#include "common/hash.h"
#include "common/status.h"

typedef struct bt_map64 bt_map64;
typedef struct bt_map128 bt_map128;

static inline uint64_t bt_map_of_ptr(const void *ptr)
{
    return (uint64_t)(uintptr_t)ptr;
}

static inline void *bt_map_to_ptr(uint64_t value)
{
    return (void *)(uintptr_t)value;
}

/* Room for `capacity` entries. BT_EINVAL: 0 or absurd. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_map64_create(size_t capacity, bt_map64 **out);
BT_MUST_CHECK bt_status bt_map128_create(size_t capacity, bt_map128 **out);
void bt_map64_destroy(bt_map64 *map);
void bt_map128_destroy(bt_map128 *map);

/* Adds the entry or replaces its value. BT_AGAIN: the key is new and the map is full. */
BT_MUST_CHECK bt_status bt_map64_put(bt_map64 *map, uint64_t key, uint64_t value);
BT_MUST_CHECK bt_status bt_map128_put(bt_map128 *map, bt_hash128 key, uint64_t value);

/* false: no such key, *value untouched. `value` may be NULL. */
bool bt_map64_get(const bt_map64 *map, uint64_t key, uint64_t *value);
bool bt_map128_get(const bt_map128 *map, bt_hash128 key, uint64_t *value);

/* false: no such key. The value that was there goes to *value unless that is NULL. */
bool bt_map64_remove(bt_map64 *map, uint64_t key, uint64_t *value);
bool bt_map128_remove(bt_map128 *map, bt_hash128 key, uint64_t *value);

void bt_map64_clear(bt_map64 *map);
void bt_map128_clear(bt_map128 *map);

size_t bt_map64_len(const bt_map64 *map);
size_t bt_map128_len(const bt_map128 *map);
size_t bt_map64_capacity(const bt_map64 *map);
size_t bt_map128_capacity(const bt_map128 *map);

/* Walks all entries in no order: begin with *cursor 0, until false. The map must not
 * change in between. */
bool bt_map64_next(const bt_map64 *map, size_t *cursor, uint64_t *key, uint64_t *value);
bool bt_map128_next(const bt_map128 *map, size_t *cursor, bt_hash128 *key, uint64_t *value);

#endif /* BT_COMMON_MAP_H */
