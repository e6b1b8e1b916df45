/* SPDX-License-Identifier: Apache-2.0 */
/* The free list is an array of block ids used as a stack: the block freed last is handed out
 * first, since its memory is the warmest. `state` says which of the three states a block is in,
 * so that a double free or a use after free stops at the assertion. */
#include "engine/kv_pool.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/check.h"

typedef enum block_state {
    STATE_FREE,
    STATE_LIVE,
    STATE_PARKED,
} block_state;

typedef struct block {
    uint32_t refs;
    block_state state;
} block;

struct bt_kv_pool {
    bt_kv_layout layout;
    bt_mapping mapping;
    uint32_t n_blocks;
    uint32_t n_free;
    uint32_t n_parked;
    bt_block_id *free_ids; /* [n_blocks], the first n_free are free */
    block *blocks;         /* [n_blocks] */
};

bt_status bt_kv_pool_create(const bt_kv_layout *layout, uint32_t n_blocks, bool touch,
                            bt_kv_pool **out, bt_error *err)
{
    size_t bytes;
    if (n_blocks == 0 || n_blocks == UINT32_MAX ||
        !bt_size_mul(n_blocks, layout->block_bytes, &bytes)) {
        return bt_error_set(err, BT_EINVAL, "a KV pool of %u blocks can't be made", n_blocks);
    }
    bt_kv_pool *pool = calloc(1, sizeof *pool);
    if (!pool) {
        return bt_error_set(err, BT_ENOMEM, "no memory for the KV pool");
    }
    pool->layout = *layout;
    pool->mapping = BT_MAPPING_NONE;
    pool->n_blocks = n_blocks;
    pool->n_free = n_blocks;
    pool->free_ids = calloc(n_blocks, sizeof *pool->free_ids);
    pool->blocks = calloc(n_blocks, sizeof *pool->blocks);
    if (!pool->free_ids || !pool->blocks) {
        bt_kv_pool_destroy(pool);
        return bt_error_set(err, BT_ENOMEM, "no memory for the tables of %u KV blocks", n_blocks);
    }
    const bt_memfd_options memory = {
        .name = "baton-kv-pool", .bytes = bytes, .huge = true, .touch = touch};
    const bt_status status = bt_alloc_map_memfd(&memory, &pool->mapping, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "cannot take %zu MiB for the KV pool", bytes >> 20);
        bt_kv_pool_destroy(pool);
        return status;
    }
    for (uint32_t i = 0; i < n_blocks; i++) {
        pool->free_ids[i] = n_blocks - 1 - i;
    }
#ifdef BT_SLOW_CHECKS
    memset(pool->mapping.base, 0xFF, bytes);
#endif
    *out = pool;
    return BT_OK;
}

void bt_kv_pool_destroy(bt_kv_pool *pool)
{
    if (!pool) {
        return;
    }
    bt_alloc_unmap(&pool->mapping);
    free(pool->free_ids);
    free(pool->blocks);
    free(pool);
}

bt_status bt_kv_pool_acquire(bt_kv_pool *pool, bt_block_id *out)
{
    if (pool->n_free == 0) {
        return BT_AGAIN;
    }
    const bt_block_id id = pool->free_ids[--pool->n_free];
    block *b = &pool->blocks[id];
    BT_ASSERT(b->state == STATE_FREE);
    b->state = STATE_LIVE;
    b->refs = 1;
    *out = id;
    return BT_OK;
}

void bt_kv_pool_share(bt_kv_pool *pool, bt_block_id id)
{
    BT_ASSERT(id < pool->n_blocks);
    block *b = &pool->blocks[id];
    BT_ASSERT(b->state != STATE_FREE);
    if (b->state == STATE_PARKED) {
        b->state = STATE_LIVE;
        pool->n_parked--;
    }
    b->refs++;
}

bool bt_kv_pool_unref(bt_kv_pool *pool, bt_block_id id)
{
    BT_ASSERT(id < pool->n_blocks);
    block *b = &pool->blocks[id];
    BT_ASSERT(b->state == STATE_LIVE);
    if (--b->refs > 0) {
        return false;
    }
    b->state = STATE_PARKED;
    pool->n_parked++;
    return true;
}

void bt_kv_pool_free(bt_kv_pool *pool, bt_block_id id)
{
    BT_ASSERT(id < pool->n_blocks);
    block *b = &pool->blocks[id];
    BT_ASSERT(b->state == STATE_PARKED);
    b->state = STATE_FREE;
    pool->n_parked--;
    pool->free_ids[pool->n_free++] = id;
#ifdef BT_SLOW_CHECKS
    memset(bt_kv_pool_base(pool) + bt_kv_part_offset(&pool->layout, id, 0), 0xFF,
           pool->layout.block_bytes);
#endif
}

uint32_t bt_kv_pool_n_blocks(const bt_kv_pool *pool)
{
    return pool->n_blocks;
}

uint32_t bt_kv_pool_n_free(const bt_kv_pool *pool)
{
    return pool->n_free;
}

uint32_t bt_kv_pool_n_parked(const bt_kv_pool *pool)
{
    return pool->n_parked;
}

uint32_t bt_kv_pool_refs(const bt_kv_pool *pool, bt_block_id id)
{
    BT_ASSERT(id < pool->n_blocks);
    return pool->blocks[id].refs;
}

uint8_t *bt_kv_pool_base(const bt_kv_pool *pool)
{
    return pool->mapping.base;
}

size_t bt_kv_pool_bytes(const bt_kv_pool *pool)
{
    return pool->n_blocks * pool->layout.block_bytes;
}

int bt_kv_pool_fd(const bt_kv_pool *pool)
{
    return pool->mapping.fd;
}

const bt_kv_layout *bt_kv_pool_layout(const bt_kv_pool *pool)
{
    return &pool->layout;
}

bt_status bt_kv_pool_audit(const bt_kv_pool *pool, bt_error *err)
{
    uint32_t n_by_state[3] = {0, 0, 0};
    for (uint32_t i = 0; i < pool->n_blocks; i++) {
        const block *b = &pool->blocks[i];
        n_by_state[b->state]++;
        if ((b->refs > 0) != (b->state == STATE_LIVE)) {
            return bt_error_set(err, BT_EINTERNAL, "block %u: %u references in state %d", i,
                                b->refs, (int)b->state);
        }
    }
    if (n_by_state[STATE_FREE] != pool->n_free || n_by_state[STATE_PARKED] != pool->n_parked) {
        return bt_error_set(
            err, BT_EINTERNAL, "the pool counts %u free and %u parked blocks, but has %u and %u",
            pool->n_free, pool->n_parked, n_by_state[STATE_FREE], n_by_state[STATE_PARKED]);
    }
    /* Each listed block is free, and as many are listed as are free: it remains to see that none
     * is listed twice. */
    uint8_t *listed = calloc(pool->n_blocks, 1);
    if (!listed) {
        return bt_error_set(err, BT_ENOMEM, "no memory for the audit");
    }
    bt_status status = BT_OK;
    for (uint32_t i = 0; i < pool->n_free && status == BT_OK; i++) {
        const bt_block_id id = pool->free_ids[i];
        if (pool->blocks[id].state != STATE_FREE || listed[id]) {
            status = bt_error_set(err, BT_EINTERNAL, "block %u is wrongly in the free list", id);
        }
        listed[id] = 1;
    }
    free(listed);
    return status;
}
