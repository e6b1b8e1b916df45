/* SPDX-License-Identifier: Apache-2.0 */
/* kv_cache.h - prefix cache over the block pool: identity, reuse and eviction of blocks.
 *
 * A full block gets an identity, hash(parent's identity, its 16 token ids) (proto/block_id.h),
 * and stays after use until its room is needed; eviction takes the least recently used block
 * first, and of one chain the tail before its parents (automatic prefix caching as in vLLM,
 * Kwon et al., SOSP 2023, section 4.4, with hashes in place of a tree). All blocks of a worker
 * are acquired and released here.
 *
 * Threading: engine thread only.
 * Memory:    create only.
 */
#ifndef BT_ENGINE_KV_CACHE_H
#define BT_ENGINE_KV_CACHE_H

#include "common/status.h"
#include "engine/kv_pool.h"
#include "proto/block_id.h"

typedef struct bt_kv_cache bt_kv_cache;

typedef struct bt_kv_cache_stats {
    uint64_t n_lookups;   /* blocks looked up by match */
    uint64_t n_hits;      /* of them found */
    uint64_t n_published; /* blocks that got an identity */
    uint64_t n_evicted;   /* blocks that lost it for room, or because their parent had */
} bt_kv_cache_stats;

/* A block got (stored) or lost (evicted) its identity. Called on the engine thread. */
typedef void (*bt_kv_cache_fn)(void *ctx, bool stored, const bt_block_hash *identity);

typedef struct bt_kv_cache_options {
    bt_kv_pool *pool;           /* borrowed until destroy */
    uint32_t cached_blocks_max; /* most blocks that stay unreferenced; 0 switches reuse off;
                                 * UINT32_MAX: as many as the pool has */
} bt_kv_cache_options;

BT_MUST_CHECK bt_status bt_kv_cache_create(const bt_kv_cache_options *options, bt_kv_cache **out);

/* Who is told of stored and evicted identities; NULL: nobody. Before use. */
void bt_kv_cache_set_changed(bt_kv_cache *cache, bt_kv_cache_fn changed, void *ctx);

/* Every acquired block must have been released. */
void bt_kv_cache_destroy(bt_kv_cache *cache);

/* Finds the longest run of identities[0..n-1] from the start that is resident, takes a
 * reference on each of its blocks into ids[], and returns its length. */
uint32_t bt_kv_cache_match(bt_kv_cache *cache, const bt_block_hash *identities, uint32_t n,
                           bt_block_id *ids);

/* Acquires n fresh blocks into ids[], evicting as needed; all or none. BT_AGAIN: fewer than n
 * are free or evictable. */
BT_MUST_CHECK bt_status bt_kv_cache_acquire(bt_kv_cache *cache, uint32_t n, bt_block_id *ids);

/* Gives a full, live block its identity; `parent` is that of the block before it, NULL for a
 * chain's first. If a block with that identity is resident already, the given one stays without. */
void bt_kv_cache_publish(bt_kv_cache *cache, bt_block_id id, const bt_block_hash *identity,
                         const bt_block_hash *parent);

/* Adds a reference to a live block. */
void bt_kv_cache_share(bt_kv_cache *cache, bt_block_id id);

/* Drops one reference on each of ids[0..n-1], the last first; published blocks stay cached, as far
 * as a match can reach them. */
void bt_kv_cache_release(bt_kv_cache *cache, const bt_block_id *ids, uint32_t n);

/* All blocks of the pool, and layers of a block. */
uint32_t bt_kv_cache_n_blocks(const bt_kv_cache *cache);
uint32_t bt_kv_cache_n_layers(const bt_kv_cache *cache);

/* Blocks that acquire can hand out now. */
uint32_t bt_kv_cache_n_available(const bt_kv_cache *cache);

/* Free blocks that could be filled, published and kept without evicting any. */
uint32_t bt_kv_cache_n_spare(const bt_kv_cache *cache);

/* Unreferenced blocks that keep their identity. */
uint32_t bt_kv_cache_n_cached(const bt_kv_cache *cache);

const bt_kv_cache_stats *bt_kv_cache_get_stats(const bt_kv_cache *cache);

/* free + cached + live == total; index, order and pool agree; a match reaches each cached block,
 * and none is older than what hangs on it. O(n). BT_EINTERNAL. */
BT_MUST_CHECK bt_status bt_kv_cache_audit(const bt_kv_cache *cache, bt_error *err);

#endif /* BT_ENGINE_KV_CACHE_H */
