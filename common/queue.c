/* SPDX-License-Identifier: Apache-2.0 */
/* A ring with two free-running counters: slots [head, tail) hold items, and
 * tail - head <= capacity always. Each side keeps a copy of the other's counter
 * and reads the real one only when the copy says "full" or "empty", so that an
 * active pair moves few cache lines.
 *
 * Sleeping, without a lock: the consumer sets `asleep`, looks again at tail and
 * `woken`, then waits on the futex word `asleep`. The producer stores tail, then
 * reads `asleep`. All four accesses are sequentially consistent, so at least one
 * side sees the other's store: either the consumer finds the item, or the producer
 * finds it asleep. A push to a consumer that is awake makes no system call. */
#include "common/queue.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"

enum {
    LINE_BYTES = 64,
    NS_PER_S = 1000000000,
};

struct bt_queue {
    /* fixed after create */
    size_t item_bytes;
    size_t capacity; /* a power of two */
    unsigned char *slots;

    /* producer */
    BT_ALIGNED(LINE_BYTES) _Atomic size_t tail; /* store: publishes slots below it to pop */
    size_t head_seen;

    /* consumer */
    BT_ALIGNED(LINE_BYTES) _Atomic size_t head; /* store: gives slots below it back to push */
    size_t tail_seen;

    /* any thread */
    BT_ALIGNED(LINE_BYTES) _Atomic uint32_t asleep; /* futex word; see the top */
    _Atomic uint32_t woken;                         /* bt_queue_wake came; pairs with wait */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected, const struct timespec *timeout)
{
    /* Every outcome (woken, timeout, signal, value changed) is looked at by the caller. */
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout, NULL, 0);
}

static void rouse(bt_queue *queue)
{
    if (atomic_load(&queue->asleep) && atomic_exchange(&queue->asleep, 0)) {
        (void)syscall(SYS_futex, &queue->asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

static size_t round_up_pow2(size_t n)
{
    size_t r = 1;
    while (r < n) {
        r *= 2;
    }
    return r;
}

bt_status bt_queue_create(size_t item_bytes, size_t capacity, bt_queue **out)
{
    if (item_bytes == 0 || capacity == 0 || capacity > SIZE_MAX / 4) {
        return BT_EINVAL;
    }
    const size_t rounded = round_up_pow2(capacity);
    size_t slots_bytes;
    if (!bt_size_mul(rounded, item_bytes, &slots_bytes)) {
        return BT_EINVAL;
    }
    bt_queue *queue = aligned_alloc(LINE_BYTES, sizeof *queue);
    if (!queue) {
        return BT_ENOMEM;
    }
    memset(queue, 0, sizeof *queue);
    queue->item_bytes = item_bytes;
    queue->capacity = rounded;
    const size_t whole_bytes = bt_div_ceil(slots_bytes, LINE_BYTES) * LINE_BYTES;
    queue->slots = aligned_alloc(LINE_BYTES, whole_bytes);
    if (!queue->slots) {
        free(queue);
        return BT_ENOMEM;
    }
    memset(queue->slots, 0, whole_bytes); /* touched: it does not grow while it is first filled */
    *out = queue;
    return BT_OK;
}

void bt_queue_destroy(bt_queue *queue)
{
    if (!queue) {
        return;
    }
    free(queue->slots);
    free(queue);
}

static unsigned char *slot_at(bt_queue *queue, size_t counter)
{
    return queue->slots + (counter & (queue->capacity - 1)) * queue->item_bytes;
}

bt_status bt_queue_push(bt_queue *queue, const void *item)
{
    const size_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);
    if (tail - queue->head_seen == queue->capacity) {
        /* acquire: pairs with pop's store, the slot has been read */
        queue->head_seen = atomic_load_explicit(&queue->head, memory_order_acquire);
        if (tail - queue->head_seen == queue->capacity) {
            return BT_AGAIN;
        }
    }
    BT_ASSERT(tail - queue->head_seen < queue->capacity);
    memcpy(slot_at(queue, tail), item, queue->item_bytes);
    atomic_store(&queue->tail, tail + 1);
    rouse(queue);
    return BT_OK;
}

bool bt_queue_pop(bt_queue *queue, void *item)
{
    const size_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);
    if (head == queue->tail_seen) {
        /* acquire: pairs with push's store, the slot has been written */
        queue->tail_seen = atomic_load_explicit(&queue->tail, memory_order_acquire);
        if (head == queue->tail_seen) {
            return false;
        }
    }
    BT_ASSERT(queue->tail_seen - head <= queue->capacity);
    memcpy(item, slot_at(queue, head), queue->item_bytes);
    atomic_store_explicit(&queue->head, head + 1, memory_order_release);
    return true;
}

static bool has_item(bt_queue *queue)
{
    return atomic_load(&queue->tail) != atomic_load_explicit(&queue->head, memory_order_relaxed);
}

/* Of the kernel's clock, not bt_clock: the futex waits by it. */
static int64_t real_now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

bool bt_queue_wait(bt_queue *queue, int64_t timeout_ns)
{
    if (has_item(queue)) {
        return true;
    }
    const bool limited = timeout_ns >= 0;
    const int64_t start_ns = limited && timeout_ns > 0 ? real_now_ns() : 0;
    int64_t left_ns = timeout_ns;
    bool item = false;
    for (;;) {
        atomic_store(&queue->asleep, 1);
        item = has_item(queue);
        if (item || atomic_exchange(&queue->woken, 0) || (limited && left_ns <= 0)) {
            break;
        }
        const struct timespec timeout = {.tv_sec = (time_t)(left_ns / NS_PER_S),
                                         .tv_nsec = (long)(left_ns % NS_PER_S)};
        futex_wait(&queue->asleep, 1, limited ? &timeout : NULL);
        if (limited) {
            left_ns = timeout_ns - (real_now_ns() - start_ns);
        }
    }
    atomic_store(&queue->asleep, 0);
    return item;
}

void bt_queue_wake(bt_queue *queue)
{
    atomic_store(&queue->woken, 1);
    rouse(queue);
}

size_t bt_queue_len(const bt_queue *queue)
{
    const size_t head = atomic_load_explicit(&queue->head, memory_order_acquire);
    const size_t tail = atomic_load_explicit(&queue->tail, memory_order_acquire);
    return bt_size_min(tail - head, queue->capacity);
}
