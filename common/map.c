/* SPDX-License-Identifier: Apache-2.0 */
/* Both maps are one table whose slots are `key_words` words of key and one of value;
 * every public function calls an inlined one with key_words as a constant.
 *
 * Beside the slots lies one tag byte for each: 0 for an empty slot, else 0x80 and seven
 * bits of the hash, so that most probes of other keys end at the tag.
 *
 * Invariants:
 *   1. At most 3/4 of the slots are used, so that every probe meets an empty one.
 *   2. Between an entry's home slot and its slot no slot is empty. Removing keeps that by
 *      moving back each later entry of the run whose home does not lie after the hole. */
#include "common/map.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

enum {
    N_SLOTS_MIN = 8,
    TAG_USED = 0x80,
};

typedef struct table {
    size_t capacity; /* entries */
    size_t mask;     /* slots - 1 */
    size_t len;
    uint8_t *tags;   /* [slots] */
    uint64_t *slots; /* [slots][key_words + 1] */
} table;

struct bt_map64 {
    table t;
};

struct bt_map128 {
    table t;
};

enum {
    WORDS64 = 1,
    WORDS128 = 2,
};

/* The finalizer of MurmurHash3 (Appleby, public domain): every bit reaches every bit. */
BT_INLINE uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xFF51AFD7ED558CCDU;
    x ^= x >> 33;
    x *= 0xC4CEB9FE1A85EC53U;
    x ^= x >> 33;
    return x;
}

BT_INLINE uint64_t hash_key(const uint64_t *key, size_t key_words)
{
    return key_words == WORDS64 ? mix(key[0]) : mix(key[0] ^ mix(key[1]));
}

BT_INLINE uint8_t tag_of(uint64_t hash)
{
    return (uint8_t)(TAG_USED | (hash >> 57));
}

BT_INLINE bool key_equal(const uint64_t *a, const uint64_t *b, size_t key_words)
{
    return a[0] == b[0] && (key_words == WORDS64 || a[1] == b[1]);
}

static bt_status table_init(table *t, size_t capacity, size_t key_words)
{
    if (capacity == 0 || capacity > SIZE_MAX / 64) {
        return BT_EINVAL;
    }
    size_t n_slots = N_SLOTS_MIN;
    while (n_slots / 4 * 3 < capacity) {
        n_slots *= 2;
    }
    t->tags = calloc(n_slots, 1);
    t->slots = calloc(n_slots, (key_words + 1) * sizeof *t->slots);
    if (!t->tags || !t->slots) {
        free(t->tags);
        free(t->slots);
        return BT_ENOMEM;
    }
    t->capacity = capacity;
    t->mask = n_slots - 1;
    t->len = 0;
    return BT_OK;
}

static void table_deinit(table *t)
{
    free(t->tags);
    free(t->slots);
}

/* The key's slot, or the empty one that ends its probe. */
BT_INLINE size_t find(const table *t, const uint64_t *key, uint64_t hash, size_t key_words)
{
    const uint8_t tag = tag_of(hash);
    size_t i = (size_t)hash & t->mask;
    while (t->tags[i] != 0) {
        if (t->tags[i] == tag && key_equal(&t->slots[i * (key_words + 1)], key, key_words)) {
            break;
        }
        i = (i + 1) & t->mask;
    }
    return i;
}

BT_INLINE bt_status put(table *t, const uint64_t *key, uint64_t value, size_t key_words)
{
    const uint64_t hash = hash_key(key, key_words);
    const size_t i = find(t, key, hash, key_words);
    uint64_t *slot = &t->slots[i * (key_words + 1)];
    if (t->tags[i] == 0) {
        if (t->len == t->capacity) {
            return BT_AGAIN;
        }
        t->tags[i] = tag_of(hash);
        for (size_t w = 0; w < key_words; w++) {
            slot[w] = key[w];
        }
        t->len++;
    }
    slot[key_words] = value;
    return BT_OK;
}

BT_INLINE bool get(const table *t, const uint64_t *key, uint64_t *value, size_t key_words)
{
    const size_t i = find(t, key, hash_key(key, key_words), key_words);
    if (t->tags[i] == 0) {
        return false;
    }
    if (value) {
        *value = t->slots[i * (key_words + 1) + key_words];
    }
    return true;
}

BT_INLINE bool take_out(table *t, const uint64_t *key, uint64_t *value, size_t key_words)
{
    const size_t words = key_words + 1;
    size_t hole = find(t, key, hash_key(key, key_words), key_words);
    if (t->tags[hole] == 0) {
        return false;
    }
    if (value) {
        *value = t->slots[hole * words + key_words];
    }
    for (size_t i = (hole + 1) & t->mask; t->tags[i] != 0; i = (i + 1) & t->mask) {
        const size_t home = (size_t)hash_key(&t->slots[i * words], key_words) & t->mask;
        /* Distances from the home, around the end of the table: the entry may move back
         * to the hole if the hole is not before its home. */
        if (((i - home) & t->mask) >= ((i - hole) & t->mask)) {
            memcpy(&t->slots[hole * words], &t->slots[i * words], words * sizeof *t->slots);
            t->tags[hole] = t->tags[i];
            hole = i;
        }
    }
    t->tags[hole] = 0;
    BT_ASSERT(t->len > 0);
    t->len--;
    return true;
}

static void clear(table *t)
{
    memset(t->tags, 0, t->mask + 1);
    t->len = 0;
}

/* The first used slot at *cursor or after it; moves the cursor past it. */
static bool next_used(const table *t, size_t *cursor, size_t *slot)
{
    for (size_t i = *cursor; i <= t->mask; i++) {
        if (t->tags[i] != 0) {
            *cursor = i + 1;
            *slot = i;
            return true;
        }
    }
    *cursor = t->mask + 1;
    return false;
}

bt_status bt_map64_create(size_t capacity, bt_map64 **out)
{
    bt_map64 *map = malloc(sizeof *map);
    if (!map) {
        return BT_ENOMEM;
    }
    const bt_status status = table_init(&map->t, capacity, WORDS64);
    if (status != BT_OK) {
        free(map);
        return status;
    }
    *out = map;
    return BT_OK;
}

bt_status bt_map128_create(size_t capacity, bt_map128 **out)
{
    bt_map128 *map = malloc(sizeof *map);
    if (!map) {
        return BT_ENOMEM;
    }
    const bt_status status = table_init(&map->t, capacity, WORDS128);
    if (status != BT_OK) {
        free(map);
        return status;
    }
    *out = map;
    return BT_OK;
}

void bt_map64_destroy(bt_map64 *map)
{
    if (map) {
        table_deinit(&map->t);
        free(map);
    }
}

void bt_map128_destroy(bt_map128 *map)
{
    if (map) {
        table_deinit(&map->t);
        free(map);
    }
}

bt_status bt_map64_put(bt_map64 *map, uint64_t key, uint64_t value)
{
    return put(&map->t, &key, value, WORDS64);
}

bt_status bt_map128_put(bt_map128 *map, bt_hash128 key, uint64_t value)
{
    return put(&map->t, key.w, value, WORDS128);
}

bool bt_map64_get(const bt_map64 *map, uint64_t key, uint64_t *value)
{
    return get(&map->t, &key, value, WORDS64);
}

bool bt_map128_get(const bt_map128 *map, bt_hash128 key, uint64_t *value)
{
    return get(&map->t, key.w, value, WORDS128);
}

bool bt_map64_remove(bt_map64 *map, uint64_t key, uint64_t *value)
{
    return take_out(&map->t, &key, value, WORDS64);
}

bool bt_map128_remove(bt_map128 *map, bt_hash128 key, uint64_t *value)
{
    return take_out(&map->t, key.w, value, WORDS128);
}

void bt_map64_clear(bt_map64 *map)
{
    clear(&map->t);
}

void bt_map128_clear(bt_map128 *map)
{
    clear(&map->t);
}

size_t bt_map64_len(const bt_map64 *map)
{
    return map->t.len;
}

size_t bt_map128_len(const bt_map128 *map)
{
    return map->t.len;
}

size_t bt_map64_capacity(const bt_map64 *map)
{
    return map->t.capacity;
}

size_t bt_map128_capacity(const bt_map128 *map)
{
    return map->t.capacity;
}

bool bt_map64_next(const bt_map64 *map, size_t *cursor, uint64_t *key, uint64_t *value)
{
    size_t i;
    if (!next_used(&map->t, cursor, &i)) {
        return false;
    }
    const uint64_t *slot = &map->t.slots[i * (WORDS64 + 1)];
    *key = slot[0];
    *value = slot[1];
    return true;
}

bool bt_map128_next(const bt_map128 *map, size_t *cursor, bt_hash128 *key, uint64_t *value)
{
    size_t i;
    if (!next_used(&map->t, cursor, &i)) {
        return false;
    }
    const uint64_t *slot = &map->t.slots[i * (WORDS128 + 1)];
    *key = (bt_hash128){{slot[0], slot[1]}};
    *value = slot[2];
    return true;
}
