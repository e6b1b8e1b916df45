/* SPDX-License-Identifier: Apache-2.0 */
/* How it works.
 *  1. `index` maps an identity to the one block that holds it; a block in it has has_identity.
 *  2. A parked block of the pool is in the LRU list if and only if it has an identity; parked
 *     blocks without one are freed at once.
 *  3. All that a block of the LRU list hangs on is resident, and live or younger than it: of a
 *     chain the tail is evicted first, and a match reaches all that is kept. Releasing a sequence
 *     from its last block to its first sees to that by itself, but for joints: when two sequences
 *     compute the same prompt at a time, each publishes some of its blocks, and the other's copies
 *     stay without identity. So what is released takes the cached blocks before a joint to the
 *     young end with it, and is freed if one of those was evicted meanwhile.
 * The list is intrusive (prev, next by block id), oldest first. */
#include "engine/kv_cache.h"

#include <stdlib.h>

#include "common/check.h"
#include "common/map.h"

static const uint32_t none = UINT32_MAX;

typedef struct entry {
    bt_block_hash identity;
    bt_block_hash parent; /* with has_parent */
    uint64_t used;        /* grows along the LRU list */
    uint32_t prev;        /* older */
    uint32_t next;        /* younger */
    bool has_identity;
    bool has_parent;
    bool in_lru;
} entry;

struct bt_kv_cache {
    bt_kv_pool *pool;
    uint32_t cached_blocks_max;
    bt_kv_cache_fn changed;
    void *changed_ctx;
    bt_map128 *index;
    entry *entries; /* [n_blocks] */
    uint32_t oldest;
    uint32_t youngest;
    uint32_t n_lru;
    uint64_t n_uses;
    bt_kv_cache_stats stats;
};

static void tell(bt_kv_cache *cache, bool stored, const bt_block_hash *identity)
{
    if (cache->changed) {
        cache->changed(cache->changed_ctx, stored, identity);
    }
}

static void lru_append(bt_kv_cache *cache, bt_block_id id)
{
    entry *e = &cache->entries[id];
    BT_ASSERT(!e->in_lru);
    e->in_lru = true;
    e->used = ++cache->n_uses;
    e->prev = cache->youngest;
    e->next = none;
    if (cache->youngest != none) {
        cache->entries[cache->youngest].next = id;
    } else {
        cache->oldest = id;
    }
    cache->youngest = id;
    cache->n_lru++;
}

static void lru_remove(bt_kv_cache *cache, bt_block_id id)
{
    entry *e = &cache->entries[id];
    BT_ASSERT(e->in_lru);
    e->in_lru = false;
    if (e->prev != none) {
        cache->entries[e->prev].next = e->next;
    } else {
        cache->oldest = e->next;
    }
    if (e->next != none) {
        cache->entries[e->next].prev = e->prev;
    } else {
        cache->youngest = e->prev;
    }
    cache->n_lru--;
}

/* Frees a parked block that is in no list, and its identity. */
static void forget(bt_kv_cache *cache, bt_block_id id)
{
    entry *e = &cache->entries[id];
    const bool was_indexed = bt_map128_remove(cache->index, e->identity, NULL);
    BT_ASSERT(was_indexed);
    e->has_identity = false;
    bt_kv_pool_free(cache->pool, id);
    cache->stats.n_evicted++;
    tell(cache, false, &e->identity);
}

static void evict_oldest(bt_kv_cache *cache)
{
    const bt_block_id id = cache->oldest;
    BT_ASSERT(id != none);
    lru_remove(cache, id);
    forget(cache, id);
}

/* The resident block of the entry's parent; none: it is not resident. */
static uint32_t find_parent(const bt_kv_cache *cache, const entry *e)
{
    uint64_t value = none;
    BT_ASSERT(e->has_parent);
    return bt_map128_get(cache->index, e->parent, &value) ? (uint32_t)value : none;
}

/* Whether all that block `id` hangs on is resident. */
static bool is_reachable(const bt_kv_cache *cache, bt_block_id id)
{
    const entry *e = &cache->entries[id];
    while (e->has_parent) {
        const uint32_t parent = find_parent(cache, e);
        if (parent == none) {
            return false;
        }
        e = &cache->entries[parent];
    }
    return true;
}

/* Takes what the block hangs on to the young end, as far as it is cached. */
static void refresh_parents(bt_kv_cache *cache, bt_block_id id)
{
    const entry *e = &cache->entries[id];
    while (e->has_parent) {
        const uint32_t parent = find_parent(cache, e);
        BT_ASSERT(parent != none);
        if (cache->entries[parent].in_lru) {
            lru_remove(cache, parent);
            lru_append(cache, parent);
        }
        e = &cache->entries[parent];
    }
}

/* ids[i] has an identity whose parent is not that of ids[i - 1]: that one is a second copy. */
static bool is_joint(const bt_kv_cache *cache, const bt_block_id *ids, uint32_t i)
{
    const entry *e = &cache->entries[ids[i]];
    if (!e->has_identity || !e->has_parent) {
        return false;
    }
    const entry *before = i > 0 ? &cache->entries[ids[i - 1]] : NULL;
    return before == NULL || !before->has_identity ||
           !bt_hash128_equal(before->identity, e->parent);
}

/* How many of ids[0..n-1], from the start, hang on nothing that was evicted. */
static uint32_t count_reachable(const bt_kv_cache *cache, const bt_block_id *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (is_joint(cache, ids, i) && !is_reachable(cache, ids[i])) {
            return i;
        }
    }
    return n;
}

bt_status bt_kv_cache_create(const bt_kv_cache_options *options, bt_kv_cache **out)
{
    const uint32_t n_blocks = bt_kv_pool_n_blocks(options->pool);
    bt_kv_cache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        return BT_ENOMEM;
    }
    cache->pool = options->pool;
    cache->cached_blocks_max = options->cached_blocks_max;
    cache->oldest = none;
    cache->youngest = none;
    cache->entries = calloc(n_blocks, sizeof *cache->entries);
    if (!cache->entries || bt_map128_create(n_blocks, &cache->index) != BT_OK) {
        free(cache->entries);
        free(cache);
        return BT_ENOMEM;
    }
    *out = cache;
    return BT_OK;
}

void bt_kv_cache_set_changed(bt_kv_cache *cache, bt_kv_cache_fn changed, void *ctx)
{
    cache->changed = changed;
    cache->changed_ctx = ctx;
}

void bt_kv_cache_destroy(bt_kv_cache *cache)
{
    if (!cache) {
        return;
    }
    bt_map128_destroy(cache->index);
    free(cache->entries);
    free(cache);
}

uint32_t bt_kv_cache_match(bt_kv_cache *cache, const bt_block_hash *identities, uint32_t n,
                           bt_block_id *ids)
{
    uint32_t found = 0;
    uint64_t value;
    while (found < n && bt_map128_get(cache->index, identities[found], &value)) {
        const bt_block_id id = (bt_block_id)value;
        if (cache->entries[id].in_lru) {
            lru_remove(cache, id);
        }
        bt_kv_pool_share(cache->pool, id);
        ids[found++] = id;
    }
    cache->stats.n_lookups += n;
    cache->stats.n_hits += found;
    return found;
}

bt_status bt_kv_cache_acquire(bt_kv_cache *cache, uint32_t n, bt_block_id *ids)
{
    if (bt_kv_cache_n_available(cache) < n) {
        return BT_AGAIN;
    }
    while (bt_kv_pool_n_free(cache->pool) < n) {
        evict_oldest(cache);
    }
    for (uint32_t i = 0; i < n; i++) {
        const bt_status status = bt_kv_pool_acquire(cache->pool, &ids[i]);
        BT_ASSERT(status == BT_OK);
        BT_ASSERT(!cache->entries[ids[i]].has_identity);
    }
    return BT_OK;
}

void bt_kv_cache_publish(bt_kv_cache *cache, bt_block_id id, const bt_block_hash *identity,
                         const bt_block_hash *parent)
{
    BT_ASSERT(bt_kv_pool_refs(cache->pool, id) > 0);
    entry *e = &cache->entries[id];
    if (e->has_identity || cache->cached_blocks_max == 0 ||
        bt_map128_get(cache->index, *identity, NULL)) {
        return;
    }
    const bt_status status = bt_map128_put(cache->index, *identity, id);
    BT_ASSERT(status == BT_OK); /* one entry at most for each block */
    e->identity = *identity;
    e->has_identity = true;
    e->has_parent = parent != NULL;
    if (parent != NULL) {
        e->parent = *parent;
    }
    cache->stats.n_published++;
    tell(cache, true, identity);
}

void bt_kv_cache_share(bt_kv_cache *cache, bt_block_id id)
{
    BT_ASSERT(bt_kv_pool_refs(cache->pool, id) > 0);
    bt_kv_pool_share(cache->pool, id);
}

void bt_kv_cache_release(bt_kv_cache *cache, const bt_block_id *ids, uint32_t n)
{
    const uint32_t n_reachable = count_reachable(cache, ids, n);
    for (uint32_t i = n; i > 0; i--) {
        const bt_block_id id = ids[i - 1];
        const bool keeps = i <= n_reachable;
        if (bt_kv_pool_unref(cache->pool, id)) {
            if (!cache->entries[id].has_identity) {
                bt_kv_pool_free(cache->pool, id);
            } else if (keeps) {
                lru_append(cache, id);
            } else {
                forget(cache, id);
            }
        }
        if (keeps && is_joint(cache, ids, i - 1)) {
            refresh_parents(cache, id);
        }
    }
    while (cache->n_lru > cache->cached_blocks_max) {
        evict_oldest(cache);
    }
}

uint32_t bt_kv_cache_n_blocks(const bt_kv_cache *cache)
{
    return bt_kv_pool_n_blocks(cache->pool);
}

uint32_t bt_kv_cache_n_layers(const bt_kv_cache *cache)
{
    return bt_kv_pool_layout(cache->pool)->n_layers;
}

uint32_t bt_kv_cache_n_available(const bt_kv_cache *cache)
{
    return bt_kv_pool_n_free(cache->pool) + cache->n_lru;
}

uint32_t bt_kv_cache_n_spare(const bt_kv_cache *cache)
{
    const uint32_t n_free = bt_kv_pool_n_free(cache->pool);
    const uint32_t n_below_max =
        cache->n_lru < cache->cached_blocks_max ? cache->cached_blocks_max - cache->n_lru : 0;
    return n_free < n_below_max ? n_free : n_below_max;
}

uint32_t bt_kv_cache_n_cached(const bt_kv_cache *cache)
{
    return cache->n_lru;
}

const bt_kv_cache_stats *bt_kv_cache_get_stats(const bt_kv_cache *cache)
{
    return &cache->stats;
}

bt_status bt_kv_cache_audit(const bt_kv_cache *cache, bt_error *err)
{
    const bt_status status = bt_kv_pool_audit(cache->pool, err);
    if (status != BT_OK) {
        return status;
    }
    if (cache->n_lru != bt_kv_pool_n_parked(cache->pool)) {
        return bt_error_set(err, BT_EINTERNAL, "%u blocks are cached, but %u are parked",
                            cache->n_lru, bt_kv_pool_n_parked(cache->pool));
    }
    uint32_t n_walked = 0;
    uint32_t prev = none;
    for (uint32_t id = cache->oldest; id != none; id = cache->entries[id].next) {
        const entry *e = &cache->entries[id];
        if (e->prev != prev || !e->has_identity || !e->in_lru ||
            bt_kv_pool_refs(cache->pool, id) > 0 || n_walked > cache->n_lru) {
            return bt_error_set(err, BT_EINTERNAL, "block %u is wrongly in the eviction order", id);
        }
        const uint32_t parent = e->has_parent ? find_parent(cache, e) : none;
        if (e->has_parent && (parent == none || (cache->entries[parent].in_lru &&
                                                 cache->entries[parent].used <= e->used))) {
            return bt_error_set(err, BT_EINTERNAL,
                                "block %u is younger than its parent, or "
                                "hangs on one that is gone",
                                id);
        }
        prev = id;
        n_walked++;
    }
    size_t n_indexed = 0;
    const uint32_t n_blocks = bt_kv_pool_n_blocks(cache->pool);
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint64_t value = none;
        const entry *e = &cache->entries[i];
        if (!e->has_identity) {
            continue;
        }
        n_indexed++;
        if (!bt_map128_get(cache->index, e->identity, &value) || value != i) {
            return bt_error_set(err, BT_EINTERNAL, "block %u is not found by its identity", i);
        }
    }
    if (n_walked != cache->n_lru || n_indexed != bt_map128_len(cache->index)) {
        return bt_error_set(err, BT_EINTERNAL,
                            "the cache counts %u blocks in order and %zu by identity, but has %u "
                            "and %zu",
                            cache->n_lru, bt_map128_len(cache->index), n_walked, n_indexed);
    }
    return BT_OK;
}
