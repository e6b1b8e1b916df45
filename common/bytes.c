/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers are put together from bytes with shifts: no alignment is asked for and the
 * machine's own order does not matter; compilers make one load or store of it. */
#include "common/bytes.h"

#include <string.h>

#include "common/check.h"

_Static_assert(sizeof(float) == 4 && sizeof(double) == 8, "IEEE 754 numbers are assumed");

void bt_bytes_reader_init(bt_bytes_reader *r, const void *bytes, size_t n)
{
    static const uint8_t nothing[1] = {0};
    r->at = bytes ? bytes : nothing; /* no arithmetic on NULL */
    r->end = r->at + (bytes ? n : 0);
    r->ok = bytes || n == 0;
}

const uint8_t *bt_bytes_read_span(bt_bytes_reader *r, size_t n)
{
    if (!r->ok || n > (size_t)(r->end - r->at)) {
        r->ok = false;
        return NULL;
    }
    const uint8_t *span = r->at;
    r->at += n;
    return span;
}

static uint64_t read_uint(bt_bytes_reader *r, size_t n)
{
    const uint8_t *b = bt_bytes_read_span(r, n);
    uint64_t v = 0;
    for (size_t i = 0; b && i < n; i++) {
        v |= (uint64_t)b[i] << (8 * i);
    }
    return v;
}

uint8_t bt_bytes_read_u8(bt_bytes_reader *r)
{
    return (uint8_t)read_uint(r, 1);
}

uint16_t bt_bytes_read_u16(bt_bytes_reader *r)
{
    return (uint16_t)read_uint(r, 2);
}

uint32_t bt_bytes_read_u32(bt_bytes_reader *r)
{
    return (uint32_t)read_uint(r, 4);
}

uint64_t bt_bytes_read_u64(bt_bytes_reader *r)
{
    return read_uint(r, 8);
}

int64_t bt_bytes_read_i64(bt_bytes_reader *r)
{
    return (int64_t)read_uint(r, 8);
}

float bt_bytes_read_f32(bt_bytes_reader *r)
{
    const uint32_t bits = bt_bytes_read_u32(r);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

double bt_bytes_read_f64(bt_bytes_reader *r)
{
    const uint64_t bits = bt_bytes_read_u64(r);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

void bt_bytes_read_copy(bt_bytes_reader *r, void *out, size_t n)
{
    const uint8_t *span = bt_bytes_read_span(r, n);
    if (n == 0) {
        return;
    }
    if (span) {
        memcpy(out, span, n);
    } else {
        memset(out, 0, n);
    }
}

void bt_bytes_skip(bt_bytes_reader *r, size_t n)
{
    (void)bt_bytes_read_span(r, n);
}

size_t bt_bytes_left(const bt_bytes_reader *r)
{
    return r->ok ? (size_t)(r->end - r->at) : 0;
}

bool bt_bytes_reader_done(const bt_bytes_reader *r)
{
    return r->ok && r->at == r->end;
}

void bt_bytes_writer_init(bt_bytes_writer *w, void *bytes, size_t capacity)
{
    *w = (bt_bytes_writer){.bytes = bytes, .capacity = capacity, .ok = true};
}

/* Room for n more bytes, or NULL. */
static uint8_t *claim(bt_bytes_writer *w, size_t n)
{
    BT_ASSERT(w->len <= w->capacity);
    if (!w->ok || n > w->capacity - w->len) {
        w->ok = false;
        return NULL;
    }
    uint8_t *at = w->bytes + w->len;
    w->len += n;
    return at;
}

static void write_uint(bt_bytes_writer *w, uint64_t v, size_t n)
{
    uint8_t *at = claim(w, n);
    for (size_t i = 0; at && i < n; i++) {
        at[i] = (uint8_t)(v >> (8 * i));
    }
}

void bt_bytes_write_u8(bt_bytes_writer *w, uint8_t v)
{
    write_uint(w, v, 1);
}

void bt_bytes_write_u16(bt_bytes_writer *w, uint16_t v)
{
    write_uint(w, v, 2);
}

void bt_bytes_write_u32(bt_bytes_writer *w, uint32_t v)
{
    write_uint(w, v, 4);
}

void bt_bytes_write_u64(bt_bytes_writer *w, uint64_t v)
{
    write_uint(w, v, 8);
}

void bt_bytes_write_i64(bt_bytes_writer *w, int64_t v)
{
    write_uint(w, (uint64_t)v, 8);
}

void bt_bytes_write_f32(bt_bytes_writer *w, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    write_uint(w, bits, 4);
}

void bt_bytes_write_f64(bt_bytes_writer *w, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    write_uint(w, bits, 8);
}

void bt_bytes_write_copy(bt_bytes_writer *w, const void *bytes, size_t n)
{
    uint8_t *at = claim(w, n);
    if (at && n > 0) {
        memcpy(at, bytes, n);
    }
}

void bt_bytes_write_zeros(bt_bytes_writer *w, size_t n)
{
    uint8_t *at = claim(w, n);
    if (at && n > 0) {
        memset(at, 0, n);
    }
}

void bt_bytes_patch_u32(bt_bytes_writer *w, size_t offset, uint32_t v)
{
    if (!w->ok) {
        return;
    }
    BT_ASSERT(w->len >= sizeof v);
    BT_ASSERT(offset <= w->len - sizeof v);
    for (size_t i = 0; i < sizeof v; i++) {
        w->bytes[offset + i] = (uint8_t)(v >> (8 * i));
    }
}
