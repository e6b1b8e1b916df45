/* SPDX-License-Identifier: Apache-2.0 */
#include "common/name.h"

#include <string.h>

bool bt_name_is_valid(const char *name, size_t capacity)
{
    const size_t len = strlen(name);
    return len > 0 && len < capacity &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == len;
}

bt_status bt_name_check(const char *what, const char *name, size_t capacity, bt_error *err)
{
    if (name != NULL && bt_name_is_valid(name, capacity)) {
        return BT_OK;
    }
    return bt_error_set(err, BT_EINVAL, "%s must be 1 to %zu letters, digits, '-', '_' or '.'",
                        what, capacity - 1);
}
