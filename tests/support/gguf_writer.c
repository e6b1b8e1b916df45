/* SPDX-License-Identifier: Apache-2.0 */
/* Three growing buffers (entries, tensor table, tensor data), joined at the end. */
#include "tests/support/gguf_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

typedef struct buffer {
    uint8_t *bytes;
    size_t len;
    size_t capacity;
} buffer;

struct bt_gguf_writer {
    buffer entries;
    buffer table;
    buffer data;
    uint64_t n_entries;
    uint64_t n_tensors;
    uint32_t version;
    uint32_t alignment;
    bool failed;
};

static void put(bt_gguf_writer *writer, buffer *out, const void *bytes, size_t n)
{
    if (out->len + n > out->capacity) {
        const size_t capacity = bt_size_max(out->len + n, out->capacity * 2 + 256);
        uint8_t *grown = realloc(out->bytes, capacity);
        if (!grown) {
            writer->failed = true;
            return;
        }
        out->bytes = grown;
        out->capacity = capacity;
    }
    if (n > 0) {
        memcpy(out->bytes + out->len, bytes, n);
        out->len += n;
    }
}

static void put_le(bt_gguf_writer *writer, buffer *out, uint64_t value, size_t n)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    put(writer, out, bytes, n);
}

static void put_string(bt_gguf_writer *writer, buffer *out, const char *text)
{
    put_le(writer, out, strlen(text), 8);
    put(writer, out, text, strlen(text));
}

static void put_zeros_to(bt_gguf_writer *writer, buffer *out, size_t step)
{
    static const uint8_t zero;
    while (!writer->failed && out->len % step != 0) {
        put(writer, out, &zero, 1);
    }
}

static uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void put_key(bt_gguf_writer *writer, const char *key, uint32_t type)
{
    put_string(writer, &writer->entries, key);
    put_le(writer, &writer->entries, type, 4);
    writer->n_entries++;
}

bt_gguf_writer *bt_gguf_writer_begin(void)
{
    bt_gguf_writer *writer = calloc(1, sizeof *writer);
    if (writer) {
        writer->version = 3;
        writer->alignment = 32;
    }
    return writer;
}

void bt_gguf_writer_set_alignment(bt_gguf_writer *writer, uint32_t alignment)
{
    BT_ASSERT(writer->n_tensors == 0);
    writer->alignment = alignment;
    if (alignment != 32) {
        bt_gguf_writer_add_u32(writer, "general.alignment", alignment);
    }
}

void bt_gguf_writer_set_version(bt_gguf_writer *writer, uint32_t version)
{
    writer->version = version;
}

void bt_gguf_writer_add_u32(bt_gguf_writer *writer, const char *key, uint32_t value)
{
    put_key(writer, key, BT_GGUF_VALUE_U32);
    put_le(writer, &writer->entries, value, 4);
}

void bt_gguf_writer_add_u64(bt_gguf_writer *writer, const char *key, uint64_t value)
{
    put_key(writer, key, BT_GGUF_VALUE_U64);
    put_le(writer, &writer->entries, value, 8);
}

void bt_gguf_writer_add_i32(bt_gguf_writer *writer, const char *key, int32_t value)
{
    put_key(writer, key, BT_GGUF_VALUE_I32);
    put_le(writer, &writer->entries, (uint32_t)value, 4);
}

void bt_gguf_writer_add_f32(bt_gguf_writer *writer, const char *key, float value)
{
    put_key(writer, key, BT_GGUF_VALUE_F32);
    put_le(writer, &writer->entries, f32_bits(value), 4);
}

void bt_gguf_writer_add_bool(bt_gguf_writer *writer, const char *key, bool value)
{
    put_key(writer, key, BT_GGUF_VALUE_BOOL);
    put_le(writer, &writer->entries, value ? 1 : 0, 1);
}

void bt_gguf_writer_add_string(bt_gguf_writer *writer, const char *key, const char *value)
{
    put_key(writer, key, BT_GGUF_VALUE_STRING);
    put_string(writer, &writer->entries, value);
}

static void put_array(bt_gguf_writer *writer, const char *key, uint32_t type, size_t n)
{
    put_key(writer, key, BT_GGUF_VALUE_ARRAY);
    put_le(writer, &writer->entries, type, 4);
    put_le(writer, &writer->entries, n, 8);
}

void bt_gguf_writer_add_strings(bt_gguf_writer *writer, const char *key, const char *const *values,
                                size_t n)
{
    put_array(writer, key, BT_GGUF_VALUE_STRING, n);
    for (size_t i = 0; i < n; i++) {
        put_string(writer, &writer->entries, values[i]);
    }
}

void bt_gguf_writer_add_f32s(bt_gguf_writer *writer, const char *key, const float *values, size_t n)
{
    put_array(writer, key, BT_GGUF_VALUE_F32, n);
    for (size_t i = 0; i < n; i++) {
        put_le(writer, &writer->entries, f32_bits(values[i]), 4);
    }
}

void bt_gguf_writer_add_i32s(bt_gguf_writer *writer, const char *key, const int32_t *values,
                             size_t n)
{
    put_array(writer, key, BT_GGUF_VALUE_I32, n);
    for (size_t i = 0; i < n; i++) {
        put_le(writer, &writer->entries, (uint32_t)values[i], 4);
    }
}

void bt_gguf_writer_add_raw(bt_gguf_writer *writer, const char *key, uint32_t value_type,
                            const void *bytes, size_t n_bytes)
{
    put_key(writer, key, value_type);
    put(writer, &writer->entries, bytes, n_bytes);
}

void bt_gguf_writer_add_tensor(bt_gguf_writer *writer, const char *name, bt_gguf_type type,
                               const uint64_t *dims, uint32_t n_dims, const void *data)
{
    const size_t block = bt_gguf_type_block_elements(type);
    BT_ASSERT(block != 0);
    size_t n_elements = 1;
    put_zeros_to(writer, &writer->data, writer->alignment);
    put_string(writer, &writer->table, name);
    put_le(writer, &writer->table, n_dims, 4);
    for (uint32_t i = 0; i < n_dims; i++) {
        put_le(writer, &writer->table, dims[i], 8);
        BT_ASSERT(bt_size_mul(n_elements, (size_t)dims[i], &n_elements));
    }
    BT_ASSERT(n_elements % block == 0);
    put_le(writer, &writer->table, (uint32_t)type, 4);
    put_le(writer, &writer->table, writer->data.len, 8);
    put(writer, &writer->data, data, n_elements / block * bt_gguf_type_block_bytes(type));
    writer->n_tensors++;
}

bt_status bt_gguf_writer_finish_bytes(bt_gguf_writer *writer, uint8_t **bytes, size_t *n_bytes)
{
    buffer file = {0};
    put(writer, &file, "GGUF", 4);
    put_le(writer, &file, writer->version, 4);
    put_le(writer, &file, writer->n_tensors, 8);
    put_le(writer, &file, writer->n_entries, 8);
    put(writer, &file, writer->entries.bytes, writer->entries.len);
    put(writer, &file, writer->table.bytes, writer->table.len);
    if (writer->n_tensors > 0) {
        put_zeros_to(writer, &file, writer->alignment);
        put(writer, &file, writer->data.bytes, writer->data.len);
    }
    const bool failed = writer->failed;
    bt_gguf_writer_cancel(writer);
    if (failed) {
        free(file.bytes);
        return BT_ENOMEM;
    }
    *bytes = file.bytes;
    *n_bytes = file.len;
    return BT_OK;
}

bt_status bt_gguf_writer_finish(bt_gguf_writer *writer, const char *path)
{
    uint8_t *bytes;
    size_t n_bytes;
    bt_status status = bt_gguf_writer_finish_bytes(writer, &bytes, &n_bytes);
    if (status != BT_OK) {
        return status;
    }
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n_bytes, file) != n_bytes) {
        status = BT_EIO;
    }
    if (file && fclose(file) != 0) {
        status = BT_EIO;
    }
    free(bytes);
    return status;
}

void bt_gguf_writer_cancel(bt_gguf_writer *writer)
{
    if (!writer) {
        return;
    }
    free(writer->entries.bytes);
    free(writer->table.bytes);
    free(writer->data.bytes);
    free(writer);
}
