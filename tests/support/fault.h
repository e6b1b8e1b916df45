/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h - failing allocations as inputs, and a trap for those that should not be.
 *
 *   for (size_t n = 1;; n++) {
 *       bt_fault_fail_nth(n);
 *       const bt_status status = bt_thing_create(&thing);
 *       if (!bt_fault_disarm()) { assert OK; break; }   // ran untouched
 *       assert status == BT_ENOMEM;
 *   }
 *
 * Replaces malloc and its family in the test's binary; sanitizers bring their own, so
 * there bt_fault_available() is false and the rest does nothing.
 *
 * Threading: arms the calling thread alone.
 */
#ifndef BT_TESTS_SUPPORT_FAULT_H
#define BT_TESTS_SUPPORT_FAULT_H

#include <stdbool.h>
#include <stddef.h>

bool bt_fault_available(void);

/* The n-th allocation (from 1) of this thread from now on fails, once. */
void bt_fault_fail_nth(size_t n);

/* The same, counting only allocations that the program's own code makes itself, and not what
 * libraries do for it: some of them end the process when memory is short. For programs that
 * link this project's code statically (linkstatic). */
void bt_fault_fail_nth_own(size_t n);

/* Ends it. True: the failure has happened. */
bool bt_fault_disarm(void);

/* Allocations of this thread since the start of the process. */
size_t bt_fault_count(void);

/* While true an allocation in this thread aborts. */
void bt_fault_trap(bool on);

#endif /* BT_TESTS_SUPPORT_FAULT_H */
