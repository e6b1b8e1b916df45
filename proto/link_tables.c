/* SPDX-License-Identifier: Apache-2.0 */
/* Two tables with slots that don't move, found by hash: a snapshot can walk the mirror while it
 * changes, and the runs of a lost router are found by walking them. */
#include <stdlib.h>

#include "common/check.h"
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

/* ---- runs ---- */

/* Attempts of one request are runs of their own. */
static bt_hash128 run_key(bt_request_id id, uint32_t attempt)
{
    return (bt_hash128){.w = {id.hi, id.lo + attempt * UINT64_C(0x9e3779b97f4a7c15)}};
}

bt_status bt_link_runs_init(bt_link_runs *runs, uint32_t max)
{
    runs->max = max;
    runs->items = calloc(max, sizeof *runs->items);
    if (runs->items == NULL || bt_map128_create(max, &runs->slots_by_id) != BT_OK) {
        return BT_ENOMEM;
    }
    for (uint32_t i = 0; i < max; i++) {
        runs->items[i].next_free = i + 1;
    }
    return BT_OK;
}

void bt_link_runs_deinit(bt_link_runs *runs)
{
    bt_map128_destroy(runs->slots_by_id);
    free(runs->items);
}

bt_link_open_run *bt_link_runs_find(bt_link_runs *runs, bt_request_id id, uint32_t attempt)
{
    uint64_t slot;
    if (!bt_map128_get(runs->slots_by_id, run_key(id, attempt), &slot)) {
        return NULL;
    }
    BT_ASSERT(runs->items[slot].open);
    return &runs->items[slot];
}

bool bt_link_runs_open(bt_link_runs *runs, bt_request_id id, uint32_t attempt, uint32_t router)
{
    const uint32_t slot = runs->first_free;
    if (slot == runs->max ||
        bt_map128_put(runs->slots_by_id, run_key(id, attempt), slot) != BT_OK) {
        return false;
    }
    runs->first_free = runs->items[slot].next_free;
    runs->items[slot] =
        (bt_link_open_run){.id = id, .attempt = attempt, .router = router, .open = true};
    runs->n_open++;
    return true;
}

void bt_link_runs_close(bt_link_runs *runs, bt_link_open_run *run)
{
    BT_ASSERT(run->open);
    (void)bt_map128_remove(runs->slots_by_id, run_key(run->id, run->attempt), NULL);
    run->open = false;
    run->next_free = runs->first_free;
    runs->first_free = (uint32_t)(run - runs->items);
    runs->n_open--;
}
