/* SPDX-License-Identifier: Apache-2.0 */
/* A lead byte decides the length and, for four of them, a narrower range of the second
 * byte; further bytes are 80..BF. */
#include "common/utf8.h"

#include "common/check.h"

size_t bt_utf8_step(const char *text, size_t n, bool *valid)
{
    BT_ASSERT(n > 0);
    const unsigned char *s = (const unsigned char *)text;
    const unsigned char lead = s[0];
    *valid = lead < 0x80;
    if (lead < 0xC2 || lead > 0xF4) {
        return 1;
    }
    const size_t len = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < len; i++) {
        if (i >= n || s[i] < low || s[i] > high) {
            return i;
        }
        low = 0x80;
        high = 0xBF;
    }
    *valid = true;
    return len;
}

bool bt_utf8_valid(const char *text, size_t n, size_t *offset)
{
    for (size_t i = 0; i < n;) {
        bool valid;
        const size_t len = bt_utf8_step(text + i, n - i, &valid);
        if (!valid) {
            if (offset) {
                *offset = i;
            }
            return false;
        }
        i += len;
    }
    return true;
}
