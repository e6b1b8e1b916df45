/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h - bounded queue of fixed-size items from one thread to another.
 *
 * Single producer, single consumer; a ring in memory taken at create. "Full" is an
 * answer, never a wait. The consumer may sleep in bt_queue_wait().
 *
 * Threading: push: the producer's thread; pop, wait: the consumer's thread.
 * Memory:    create only.
 */
#ifndef BT_COMMON_QUEUE_H
#define BT_COMMON_QUEUE_H

#include "common/status.h"

typedef struct bt_queue bt_queue;

/* `item_bytes` each, `capacity` items (rounded up to a power of two). BT_ENOMEM, BT_EINVAL. */
BT_MUST_CHECK bt_status bt_queue_create(size_t item_bytes, size_t capacity, bt_queue **out);
void bt_queue_destroy(bt_queue *queue);

/* Copies *item in and wakes a waiting consumer. BT_AGAIN: full. */
BT_MUST_CHECK bt_status bt_queue_push(bt_queue *queue, const void *item);

/* Copies the oldest item to *item. false: empty. */
bool bt_queue_pop(bt_queue *queue, void *item);

/* Sleeps until an item is there, bt_queue_wake() was called, or timeout_ns passed
 * (negative: no limit). true: an item is there. */
bool bt_queue_wait(bt_queue *queue, int64_t timeout_ns);

/* Any thread: ends a wait. */
void bt_queue_wake(bt_queue *queue);

/* Items inside; exact for the two owners, a hint for others. */
size_t bt_queue_len(const bt_queue *queue);

#endif /* BT_COMMON_QUEUE_H */
