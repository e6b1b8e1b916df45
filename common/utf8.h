/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h - walking text that may not be UTF-8.
 *
 * Well-formed means Unicode 15, table 3-7: no overlong forms, no surrogates, nothing
 * above U+10FFFF. What is not is divided into maximal subparts (section 3.9), each of
 * which a reader shows as one U+FFFD.
 *
 * Threading: any thread (no state).
 * Memory:    none.
 */
#ifndef BT_COMMON_UTF8_H
#define BT_COMMON_UTF8_H

#include "common/base.h"

/* U+FFFD as UTF-8, 3 bytes. */
#define BT_UTF8_REPLACEMENT "\xEF\xBF\xBD"

/* Bytes of the character at `text` (n >= 1 bytes): 1..4 and *valid true; or of the
 * ill-formed subpart there: 1..3 and *valid false. A character that n cuts off counts
 * as ill-formed. */
size_t bt_utf8_step(const char *text, size_t n, bool *valid);

/* True when all n bytes are well-formed; else *offset (NULL is allowed) is where the first
 * ill-formed subpart begins. */
bool bt_utf8_valid(const char *text, size_t n, size_t *offset);

#endif /* BT_COMMON_UTF8_H */
