/* SPDX-License-Identifier: Apache-2.0 */
/* A table without order: it is scanned, since it is short. Equal identities mean equal tokens from
 * the first one on, so that one comparison tells whether a chain is the beginning of another. */
#include "router/hot.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

struct bt_router_hot {
    bt_router_hot_chain *chains;
    uint64_t n_notes;
};

bt_status bt_router_hot_create(bt_router_hot **out)
{
    bt_router_hot *hot = calloc(1, sizeof *hot);
    if (hot == NULL) {
        return BT_ENOMEM;
    }
    hot->chains = bt_alloc_array(BT_ROUTER_HOT_CHAINS, sizeof *hot->chains);
    if (hot->chains == NULL) {
        free(hot);
        return BT_ENOMEM;
    }
    *out = hot;
    return BT_OK;
}

void bt_router_hot_destroy(bt_router_hot *hot)
{
    if (hot != NULL) {
        free(hot->chains);
        free(hot);
    }
}

/* One of the two begins with the other. */
static bool is_same_way(const bt_router_hot_chain *chain, const bt_block_hash *ids, uint32_t n)
{
    const uint32_t last = (chain->n < n ? chain->n : n) - 1;
    return chain->used != 0 && bt_hash128_equal(chain->ids[last], ids[last]);
}

void bt_router_hot_note(bt_router_hot *hot, const uint8_t numerics_id[BT_BLOCK_HASH_BYTES],
                        const bt_block_hash *ids, size_t n)
{
    if (n == 0) {
        return;
    }
    const uint32_t n_kept = n < BT_ROUTER_HOT_BLOCKS ? (uint32_t)n : BT_ROUTER_HOT_BLOCKS;
    bt_router_hot_chain *place = &hot->chains[0];
    for (uint32_t i = 0; i < BT_ROUTER_HOT_CHAINS; i++) {
        bt_router_hot_chain *chain = &hot->chains[i];
        if (is_same_way(chain, ids, n_kept)) {
            place = chain;
            break;
        }
        place = chain->used < place->used ? chain : place;
    }
    if (!is_same_way(place, ids, n_kept) || place->n < n_kept) {
        memcpy(place->numerics_id, numerics_id, sizeof place->numerics_id);
        memcpy(place->ids, ids, n_kept * sizeof *ids);
        place->n = n_kept;
    }
    place->used = ++hot->n_notes;
}

const bt_router_hot_chain *bt_router_hot_next(const bt_router_hot *hot,
                                              const uint8_t numerics_id[BT_BLOCK_HASH_BYTES],
                                              uint64_t before)
{
    const bt_router_hot_chain *newest = NULL;
    for (uint32_t i = 0; i < BT_ROUTER_HOT_CHAINS; i++) {
        const bt_router_hot_chain *chain = &hot->chains[i];
        const bool fits = chain->used != 0 && chain->used < before &&
                          memcmp(chain->numerics_id, numerics_id, sizeof chain->numerics_id) == 0;
        if (fits && (newest == NULL || chain->used > newest->used)) {
            newest = chain;
        }
    }
    return newest;
}
