/* SPDX-License-Identifier: Apache-2.0 */
/* Proves order, bounds and wake-ups of the queue between two threads. The threaded tests
 * pass numbers and check every one; TSan sees the hand-over of their contents. */
#include "common/queue.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/fault.h"

typedef struct item {
    uint64_t number;
    uint64_t twice;
    unsigned char padding[24];
} item;

static void items_come_out_in_order_around_the_end(void **state)
{
    (void)state;
    bt_queue *q;
    assert_int_equal(bt_queue_create(sizeof(item), 4, &q), BT_OK);
    uint64_t in = 0;
    uint64_t out = 0;
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 3; i++, in++) {
            const item one = {.number = in, .twice = 2 * in};
            assert_int_equal(bt_queue_push(q, &one), BT_OK);
        }
        assert_int_equal(bt_queue_len(q), 3);
        for (int i = 0; i < 3; i++, out++) {
            item one;
            assert_true(bt_queue_pop(q, &one));
            assert_int_equal(one.number, out);
            assert_int_equal(one.twice, 2 * out);
        }
        assert_int_equal(bt_queue_len(q), 0);
    }
    bt_queue_destroy(q);
}

static void full_is_an_answer_and_empty_too(void **state)
{
    (void)state;
    bt_queue *q;
    assert_int_equal(bt_queue_create(sizeof(int), 3, &q), BT_OK); /* rounded up to 4 */
    int v = 7;
    assert_false(bt_queue_pop(q, &v));
    assert_int_equal(v, 7);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(bt_queue_push(q, &i), BT_OK);
    }
    assert_int_equal(bt_queue_push(q, &v), BT_AGAIN);
    assert_int_equal(bt_queue_len(q), 4);
    assert_true(bt_queue_pop(q, &v));
    assert_int_equal(v, 0);
    assert_int_equal(bt_queue_push(q, &v), BT_OK);
    bt_queue_destroy(q);
}

static void sizes_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    bt_queue *q;
    assert_int_equal(bt_queue_create(0, 4, &q), BT_EINVAL);
    assert_int_equal(bt_queue_create(4, 0, &q), BT_EINVAL);
    assert_int_equal(bt_queue_create(8, SIZE_MAX / 2, &q), BT_EINVAL);
    assert_int_equal(bt_queue_create(SIZE_MAX / 2, 4, &q), BT_EINVAL);
    bt_queue_destroy(NULL);
}

static void wait_ends_at_its_limit_and_by_a_wake(void **state)
{
    (void)state;
    bt_queue *q;
    assert_int_equal(bt_queue_create(sizeof(int), 2, &q), BT_OK);
    assert_false(bt_queue_wait(q, 0));
    assert_false(bt_queue_wait(q, 1000));
    bt_queue_wake(q); /* a wake before the wait is not lost */
    assert_false(bt_queue_wait(q, -1));
    const int v = 1;
    assert_int_equal(bt_queue_push(q, &v), BT_OK);
    assert_true(bt_queue_wait(q, -1));
    bt_queue_destroy(q);
}

enum { N_ITEMS = 50000 };

static void *produce(void *ctx)
{
    bt_queue *q = ctx;
    for (uint64_t i = 0; i < N_ITEMS;) {
        const item one = {.number = i, .twice = 2 * i};
        if (bt_queue_push(q, &one) == BT_OK) {
            i++;
        }
    }
    return NULL;
}

static void every_item_passes_between_threads(void **state)
{
    (void)state;
    bt_queue *q;
    assert_int_equal(bt_queue_create(sizeof(item), 64, &q), BT_OK);
    pthread_t producer;
    assert_int_equal(pthread_create(&producer, NULL, produce, q), 0);
    for (uint64_t i = 0; i < N_ITEMS;) {
        item one;
        assert_true(bt_queue_wait(q, -1));
        while (bt_queue_pop(q, &one)) {
            assert_int_equal(one.number, i);
            assert_int_equal(one.twice, 2 * i);
            i++;
        }
    }
    pthread_join(producer, NULL);
    assert_int_equal(bt_queue_len(q), 0);
    bt_queue_destroy(q);
}

typedef struct ping {
    bt_queue *there;
    bt_queue *back;
    uint64_t n;
} ping;

static void *answer(void *ctx)
{
    const ping *p = ctx;
    for (uint64_t i = 0; i < p->n; i++) {
        uint64_t v;
        (void)bt_queue_wait(p->there, -1);
        if (bt_queue_pop(p->there, &v)) {
            v++;
            (void)!bt_queue_push(p->back, &v);
        }
    }
    return NULL;
}

/* Both sides sleep at each turn, so a lost wake-up would hang here. */
static void no_wake_up_is_lost_when_both_sleep(void **state)
{
    (void)state;
    ping p = {.n = 5000};
    assert_int_equal(bt_queue_create(sizeof(uint64_t), 1, &p.there), BT_OK);
    assert_int_equal(bt_queue_create(sizeof(uint64_t), 1, &p.back), BT_OK);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer, &p), 0);
    for (uint64_t i = 0; i < p.n; i++) {
        uint64_t v = 10 * i;
        assert_int_equal(bt_queue_push(p.there, &v), BT_OK);
        assert_true(bt_queue_wait(p.back, -1));
        assert_true(bt_queue_pop(p.back, &v));
        assert_int_equal(v, 10 * i + 1);
    }
    pthread_join(thread, NULL);
    bt_queue_destroy(p.there);
    bt_queue_destroy(p.back);
}

static void *wake_it(void *ctx)
{
    bt_queue_wake(ctx);
    return NULL;
}

static void another_thread_can_end_an_endless_wait(void **state)
{
    (void)state;
    bt_queue *q;
    assert_int_equal(bt_queue_create(sizeof(int), 2, &q), BT_OK);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_it, q), 0);
    assert_false(bt_queue_wait(q, -1));
    pthread_join(thread, NULL);
    bt_queue_destroy(q);
}

static void only_create_allocates_and_its_failures_are_reported(void **state)
{
    (void)state;
    if (!bt_fault_available()) {
        skip();
    }
    bt_queue *q = NULL;
    for (size_t n = 1;; n++) {
        bt_fault_fail_nth(n);
        const bt_status status = bt_queue_create(sizeof(int), 8, &q);
        if (!bt_fault_disarm()) {
            assert_int_equal(status, BT_OK);
            break;
        }
        assert_int_equal(status, BT_ENOMEM);
    }
    int v = 1;
    bt_fault_trap(true);
    (void)!bt_queue_push(q, &v);
    (void)bt_queue_wait(q, 0);
    (void)bt_queue_pop(q, &v);
    bt_fault_trap(false);
    bt_queue_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_come_out_in_order_around_the_end),
        cmocka_unit_test(full_is_an_answer_and_empty_too),
        cmocka_unit_test(sizes_that_make_no_sense_are_refused),
        cmocka_unit_test(wait_ends_at_its_limit_and_by_a_wake),
        cmocka_unit_test(every_item_passes_between_threads),
        cmocka_unit_test(no_wake_up_is_lost_when_both_sleep),
        cmocka_unit_test(another_thread_can_end_an_endless_wait),
        cmocka_unit_test(only_create_allocates_and_its_failures_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
