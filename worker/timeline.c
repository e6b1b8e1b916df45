/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/timeline.h"

#include <stdlib.h>

struct bt_timeline_ring {
    bt_link_timeline *items; /* [n] */
    uint32_t n;
    uint64_t n_added; /* the next one goes to n_added % n */
};

bt_status bt_timeline_ring_create(uint32_t n, bt_timeline_ring **out)
{
    bt_timeline_ring *ring = calloc(1, sizeof *ring);
    bt_link_timeline *items = n > 0 ? malloc(n * sizeof *items) : NULL;
    if (ring == NULL || (n > 0 && items == NULL)) {
        free(ring);
        free(items);
        return BT_ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        items[i] = (bt_link_timeline){.attempt = UINT32_MAX}; /* touched: it does not grow later */
    }
    ring->items = items;
    ring->n = n;
    *out = ring;
    return BT_OK;
}

void bt_timeline_ring_destroy(bt_timeline_ring *ring)
{
    if (ring == NULL) {
        return;
    }
    free(ring->items);
    free(ring);
}

void bt_timeline_ring_add(bt_timeline_ring *ring, const bt_link_timeline *timeline)
{
    if (ring->n > 0) {
        ring->items[ring->n_added++ % ring->n] = *timeline;
    }
}

size_t bt_timeline_ring_find(const bt_timeline_ring *ring, const char *request,
                             bt_link_timeline *out, size_t n_max)
{
    const uint64_t n_kept = ring->n_added < ring->n ? ring->n_added : ring->n;
    size_t n_found = 0;
    for (uint64_t age = 0; age < n_kept && n_found < n_max; age++) {
        const bt_link_timeline *t = &ring->items[(ring->n_added - 1 - age) % ring->n];
        if (bt_link_is_request(request, t->id, t->label)) {
            out[n_found++] = *t;
        }
    }
    return n_found;
}
