/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void bt_fuzz_expect(bool condition, const char *text, const char *file, int line)
{
    if (!condition) {
        fprintf(stderr, "%s:%d: broken promise: %s\n", file, line, text);
        abort();
    }
}

void bt_fuzz_expect_told(bt_status status, const bt_error *err)
{
    FUZZ_EXPECT(status != BT_OK);
    FUZZ_EXPECT(err->text[0] != '\0');
    const size_t len = strnlen(err->text, sizeof err->text);
    FUZZ_EXPECT(len < sizeof err->text);
    for (size_t i = 0; i < len; i++) {
        const unsigned char byte = (unsigned char)err->text[i];
        FUZZ_EXPECT(byte >= 0x20 && byte != 0x7F);
    }
}

int bt_fuzz_file_open(const uint8_t *data, size_t size, char path[BT_FUZZ_PATH_BYTES])
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_EXPECT(fd >= 0);
    size_t done = 0;
    while (done < size) {
        const ssize_t n = write(fd, data + done, size - done);
        FUZZ_EXPECT(n > 0);
        done += (size_t)n;
    }
    (void)snprintf(path, BT_FUZZ_PATH_BYTES, "/proc/self/fd/%d", fd);
    return fd;
}

void bt_fuzz_file_close(int fd)
{
    (void)close(fd);
}

bt_fuzz_input bt_fuzz_piece(bt_fuzz_input *in, size_t len)
{
    const bt_fuzz_input piece = {in->bytes, len < in->len ? len : in->len};
    in->len -= piece.len;
    in->bytes = in->len > 0 ? in->bytes + piece.len : in->bytes;
    return piece;
}

static uint32_t take_number(bt_fuzz_input *in, size_t n)
{
    const bt_fuzz_input piece = bt_fuzz_piece(in, n);
    uint32_t number = 0;
    for (size_t i = 0; i < piece.len; i++) {
        number |= (uint32_t)piece.bytes[i] << (8 * i);
    }
    return number;
}

uint8_t bt_fuzz_u8(bt_fuzz_input *in)
{
    return (uint8_t)take_number(in, 1);
}

uint16_t bt_fuzz_u16(bt_fuzz_input *in)
{
    return (uint16_t)take_number(in, 2);
}

uint32_t bt_fuzz_u32(bt_fuzz_input *in)
{
    return take_number(in, 4);
}

bt_fuzz_input bt_fuzz_until(bt_fuzz_input *in, uint8_t end)
{
    const uint8_t *found = in->len > 0 ? memchr(in->bytes, end, in->len) : NULL;
    if (!found) {
        return bt_fuzz_piece(in, in->len);
    }
    const bt_fuzz_input piece = bt_fuzz_piece(in, (size_t)(found - in->bytes));
    (void)bt_fuzz_piece(in, 1);
    return piece;
}
