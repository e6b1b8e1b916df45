/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/kv_chain.h"

#include "common/check.h"

enum { SPARE_SHARE = 2 }; /* one in so many spare blocks may be taken */

static void release(bt_kv_chain *chain, bt_kv_cache *cache)
{
    bt_kv_cache_release(cache, chain->blocks, chain->n_blocks);
    chain->n_blocks = 0;
}

static bt_status pin(bt_kv_chain *chain, bt_kv_cache *cache)
{
    chain->n_blocks = bt_kv_cache_match(cache, chain->identities, chain->n, chain->blocks);
    return chain->n_blocks > 0 ? BT_OK : BT_ENOTFOUND;
}

static bt_status reserve(bt_kv_chain *chain, bt_kv_cache *cache)
{
    chain->n_held = bt_kv_cache_match(cache, chain->identities, chain->n, chain->blocks);
    chain->n_blocks = chain->n_held;
    const uint32_t n_lacking = chain->n - chain->n_held;
    if (n_lacking > bt_kv_cache_n_spare(cache) / SPARE_SHARE) {
        release(chain, cache);
        return BT_AGAIN;
    }
    const bt_status status = bt_kv_cache_acquire(cache, n_lacking, chain->blocks + chain->n_held);
    BT_ASSERT(status == BT_OK);
    chain->n_blocks = chain->n;
    return BT_OK;
}

static void publish(bt_kv_chain *chain, bt_kv_cache *cache)
{
    BT_ASSERT(chain->n_blocks == chain->n);
    for (uint32_t i = chain->n_held; i < chain->n; i++) {
        bt_kv_cache_publish(cache, chain->blocks[i], &chain->identities[i],
                            i > 0 ? &chain->identities[i - 1] : NULL);
    }
    release(chain, cache);
}

void bt_kv_chain_step(bt_kv_chain *chain, bt_kv_cache *cache)
{
    chain->status = BT_OK;
    switch (chain->op) {
    case BT_KV_CHAIN_PIN:
        chain->status = pin(chain, cache);
        break;
    case BT_KV_CHAIN_RESERVE:
        chain->status = reserve(chain, cache);
        break;
    case BT_KV_CHAIN_PUBLISH:
        publish(chain, cache);
        break;
    case BT_KV_CHAIN_RELEASE:
        release(chain, cache);
        break;
    }
}
