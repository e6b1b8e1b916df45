/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - assertions: for bugs of our own, never for what comes from outside.
 *
 * BT_ASSERT is always on and costs O(1). BT_ASSERT_SLOW (audits, full scans) is
 * on where BT_SLOW_CHECKS is defined, as the sanitizer builds do. A failed one
 * prints the place and aborts.
 *
 * Threading: any thread.
 */
#ifndef BT_COMMON_CHECK_H
#define BT_COMMON_CHECK_H

#include "common/base.h"

/* Prints "file:line: assertion failed: text" to stderr and aborts. */
BT_NORETURN void bt_check_failed(const char *file, int line, const char *text);

#define BT_ASSERT(cond) ((cond) ? (void)0 : bt_check_failed(__FILE__, __LINE__, #cond))

#ifdef BT_SLOW_CHECKS
#define BT_ASSERT_SLOW(cond) BT_ASSERT(cond)
#else
#define BT_ASSERT_SLOW(cond) ((void)sizeof(cond))
#endif

#endif /* BT_COMMON_CHECK_H */
