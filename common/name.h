/* SPDX-License-Identifier: Apache-2.0 */
/* name.h - names that others choose: of workers, routers, requests.
 *
 * They stand unquoted in log lines, tables, commands and headers, so their alphabet is a small one.
 *
 * Threading: any thread (no state).
 * Memory:    none.
 */
#ifndef BT_COMMON_NAME_H
#define BT_COMMON_NAME_H

#include "common/base.h"

#define BT_NAME_ALPHABET "letters, digits, '-', '_' or '.'"

/* 1 to capacity - 1 of BT_NAME_ALPHABET (ASCII)? */
bool bt_name_is_valid(const char *name, size_t capacity);

#endif /* BT_COMMON_NAME_H */
