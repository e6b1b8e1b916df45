/* SPDX-License-Identifier: Apache-2.0 */
/* kv_pool.h - fixed pool of reference-counted KV cache blocks.
 *
 * The pool is one shared memory mapping (a memfd, so that peers on the host can read it),
 * block_bytes for each block (kv_layout.h). A block is in one of three states:
 *
 *   free  --acquire-->  live (references > 0)  --unref to 0-->  parked
 *     ^                   ^--------share---------------------------|
 *     `------------------------------free-------------------------'
 *
 * Parked blocks belong to the prefix cache (kv_cache.h), which either keeps or frees them.
 *
 * Threading: engine thread only; base, fd and layout: any thread.
 * Memory:    create only.
 */
#ifndef BT_ENGINE_KV_POOL_H
#define BT_ENGINE_KV_POOL_H

#include "common/status.h"
#include "engine/kv_layout.h"

typedef struct bt_kv_pool bt_kv_pool;

/* Creates a pool of `n_blocks` free blocks; `touch` takes the memory at once, so that a host
 * without room fails here. BT_EINVAL: n_blocks is 0 or too many. BT_ENOMEM, BT_EIO. */
BT_MUST_CHECK bt_status bt_kv_pool_create(const bt_kv_layout *layout, uint32_t n_blocks, bool touch,
                                          bt_kv_pool **out, bt_error *err);
void bt_kv_pool_destroy(bt_kv_pool *pool);

/* Takes a free block, one reference. BT_AGAIN: none is free. */
BT_MUST_CHECK bt_status bt_kv_pool_acquire(bt_kv_pool *pool, bt_block_id *out);

/* Adds a reference to a live or parked block. */
void bt_kv_pool_share(bt_kv_pool *pool, bt_block_id id);

/* Drops a reference; true when it was the last: the block is parked now. */
BT_MUST_CHECK bool bt_kv_pool_unref(bt_kv_pool *pool, bt_block_id id);

/* Frees a parked block. Builds with slow checks fill it with NaN. */
void bt_kv_pool_free(bt_kv_pool *pool, bt_block_id id);

uint32_t bt_kv_pool_n_blocks(const bt_kv_pool *pool);
uint32_t bt_kv_pool_n_free(const bt_kv_pool *pool);
uint32_t bt_kv_pool_n_parked(const bt_kv_pool *pool);
uint32_t bt_kv_pool_refs(const bt_kv_pool *pool, bt_block_id id);

uint8_t *bt_kv_pool_base(const bt_kv_pool *pool);
size_t bt_kv_pool_bytes(const bt_kv_pool *pool);
int bt_kv_pool_fd(const bt_kv_pool *pool);
const bt_kv_layout *bt_kv_pool_layout(const bt_kv_pool *pool);

/* Recounts everything: free + parked + live == total, the free list holds each free block once.
 * O(n). BT_EINTERNAL with a text that names the first difference. */
BT_MUST_CHECK bt_status bt_kv_pool_audit(const bt_kv_pool *pool, bt_error *err);

#endif /* BT_ENGINE_KV_POOL_H */
