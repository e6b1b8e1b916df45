/* SPDX-License-Identifier: Apache-2.0 */
#include "common/name.h"

#include <string.h>

bool bt_name_is_valid(const char *name, size_t capacity)
{
    const size_t len = strlen(name);
    return len > 0 && len < capacity &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == len;
}
