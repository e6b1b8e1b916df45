/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.h - bounds-checked little-endian reader and writer over borrowed memory.
 *
 * Both remember a failure: after a read past the end all reads give 0 or NULL,
 * after a write past the end nothing more is written. So a frame is read or written
 * straight through and `ok` is looked at once, at the end.
 *
 * Threading: the thread that has the reader or writer.
 * Memory:    none; the buffer is borrowed for the life of the reader or writer.
 */
#ifndef BT_COMMON_BYTES_H
#define BT_COMMON_BYTES_H

#include "common/base.h"

typedef struct bt_bytes_reader {
    const uint8_t *at;
    const uint8_t *end;
    bool ok;
} bt_bytes_reader;

void bt_bytes_reader_init(bt_bytes_reader *r, const void *bytes, size_t n);

uint8_t bt_bytes_read_u8(bt_bytes_reader *r);
uint16_t bt_bytes_read_u16(bt_bytes_reader *r);
uint32_t bt_bytes_read_u32(bt_bytes_reader *r);
uint64_t bt_bytes_read_u64(bt_bytes_reader *r);
int64_t bt_bytes_read_i64(bt_bytes_reader *r);
float bt_bytes_read_f32(bt_bytes_reader *r);
double bt_bytes_read_f64(bt_bytes_reader *r);

/* The next n bytes in place, or NULL when fewer are left (n 0 gives a pointer). */
const uint8_t *bt_bytes_read_span(bt_bytes_reader *r, size_t n);

/* Copies the next n bytes to out; zeros when fewer are left. */
void bt_bytes_read_copy(bt_bytes_reader *r, void *out, size_t n);
void bt_bytes_skip(bt_bytes_reader *r, size_t n);

size_t bt_bytes_left(const bt_bytes_reader *r);

/* No read failed and nothing is left over. */
bool bt_bytes_reader_done(const bt_bytes_reader *r);

typedef struct bt_bytes_writer {
    uint8_t *bytes;
    size_t capacity;
    size_t len; /* written so far */
    bool ok;
} bt_bytes_writer;

void bt_bytes_writer_init(bt_bytes_writer *w, void *bytes, size_t capacity);

void bt_bytes_write_u8(bt_bytes_writer *w, uint8_t v);
void bt_bytes_write_u16(bt_bytes_writer *w, uint16_t v);
void bt_bytes_write_u32(bt_bytes_writer *w, uint32_t v);
void bt_bytes_write_u64(bt_bytes_writer *w, uint64_t v);
void bt_bytes_write_i64(bt_bytes_writer *w, int64_t v);
void bt_bytes_write_f32(bt_bytes_writer *w, float v);
void bt_bytes_write_f64(bt_bytes_writer *w, double v);
void bt_bytes_write_copy(bt_bytes_writer *w, const void *bytes, size_t n);
void bt_bytes_write_zeros(bt_bytes_writer *w, size_t n);

/* Overwrites 4 bytes at `offset`, which must have been written: for lengths and
 * checksums that are known last. */
void bt_bytes_patch_u32(bt_bytes_writer *w, size_t offset, uint32_t v);

#endif /* BT_COMMON_BYTES_H */
