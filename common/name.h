/* SPDX-License-Identifier: Apache-2.0 */
/* name.h - names that others choose and that are shown as they are.
 *
 * They stand unquoted in log lines, tables, commands and headers, so their alphabet is a small one.
 *
 * Threading: any thread (no state).
 * Memory:    none.
 */
#ifndef BT_COMMON_NAME_H
#define BT_COMMON_NAME_H

#include "common/status.h"

/* 1 to capacity - 1 letters, digits, '-', '_' or '.', in ASCII? */
bool bt_name_is_valid(const char *name, size_t capacity);

/* BT_OK for such a name; else (NULL, too) BT_EINVAL, and *err says what `what` ("--name") must be.
 */
BT_MUST_CHECK bt_status bt_name_check(const char *what, const char *name, size_t capacity,
                                      bt_error *err);

#endif /* BT_COMMON_NAME_H */
