/* SPDX-License-Identifier: Apache-2.0 */
/* Slots that don't move, found by hash: a snapshot can walk them while they change. */
#include <stdlib.h>

#include "proto/link_int.h"

bool bt_link_mirror_store(bt_link_mirror *m, const bt_block_hash *id)
{
    if (bt_map128_get(m->slots_by_hash, *id, NULL)) {
        return true;
    }
    if (m->n_free == 0) {
        return false;
    }
    const uint32_t slot = m->free_slots[m->n_free - 1];
    if (bt_map128_put(m->slots_by_hash, *id, slot) != BT_OK) {
        return false;
    }
    m->n_free--;
    m->ids[slot] = *id;
    m->used[slot] = true;
    return true;
}

void bt_link_mirror_evict(bt_link_mirror *m, const bt_block_hash *id)
{
    uint64_t slot;
    if (bt_map128_remove(m->slots_by_hash, *id, &slot)) {
        m->used[slot] = false;
        m->free_slots[m->n_free++] = (uint32_t)slot;
    }
}

void bt_link_mirror_clear(bt_link_mirror *m)
{
    bt_map128_clear(m->slots_by_hash);
    m->n_free = 0;
    for (uint32_t i = m->capacity; i > 0; i--) {
        m->used[i - 1] = false;
        m->free_slots[m->n_free++] = i - 1;
    }
}

bt_status bt_link_mirror_init(bt_link_mirror *m, uint32_t capacity)
{
    m->capacity = capacity;
    m->ids = calloc(capacity, sizeof *m->ids);
    m->used = calloc(capacity, sizeof *m->used);
    m->free_slots = calloc(capacity, sizeof *m->free_slots);
    if (m->ids == NULL || m->used == NULL || m->free_slots == NULL ||
        bt_map128_create(capacity, &m->slots_by_hash) != BT_OK) {
        return BT_ENOMEM;
    }
    bt_link_mirror_clear(m);
    return BT_OK;
}

void bt_link_mirror_deinit(bt_link_mirror *m)
{
    bt_map128_destroy(m->slots_by_hash);
    free(m->ids);
    free(m->used);
    free(m->free_slots);
}
