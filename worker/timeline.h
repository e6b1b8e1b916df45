/* SPDX-License-Identifier: Apache-2.0 */
/* timeline.h - what a worker remembers of its last runs, for `baton explain`.
 *
 * A ring of fixed size: the newest run takes the oldest one's place. It is read rarely, so finding
 * is a scan.
 *
 * Threading: loop thread only.
 * Memory:    all of it is taken, and touched, in create.
 */
#ifndef BT_WORKER_TIMELINE_H
#define BT_WORKER_TIMELINE_H

#include "proto/link.h"

typedef struct bt_timeline_ring bt_timeline_ring;

/* Room for `n` runs; 0: it remembers nothing. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_timeline_ring_create(uint32_t n, bt_timeline_ring **out);
void bt_timeline_ring_destroy(bt_timeline_ring *ring);

/* A run has ended. Copied. */
void bt_timeline_ring_add(bt_timeline_ring *ring, const bt_link_timeline *timeline);

/* The runs of a request (its id in hex, or its label), the newest first, up to n_max into out[];
 * returns their number. */
size_t bt_timeline_ring_find(const bt_timeline_ring *ring, const char *request,
                             bt_link_timeline *out, size_t n_max);

#endif /* BT_WORKER_TIMELINE_H */
