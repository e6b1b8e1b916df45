/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups in what open() checked. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "engine/gguf_int.h"

const uint8_t bt_gguf_value_bytes[BT_GGUF_VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

const char *const bt_gguf_value_names[BT_GGUF_VALUE_TYPES] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

typedef struct type_row {
    bt_gguf_type type;
    uint32_t elements;
    uint32_t bytes;
    const char *name;
} type_row;

static const type_row type_rows[] = {
#define TYPE_ROW(name, number, elements, bytes) {BT_GGUF_##name, elements, bytes, #name},
    BT_GGUF_TENSOR_TYPES(TYPE_ROW)
#undef TYPE_ROW
};

static const type_row *find_type(uint32_t number)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(type_rows); i++) {
        if ((uint32_t)type_rows[i].type == number) {
            return &type_rows[i];
        }
    }
    return NULL;
}

uint64_t bt_gguf_load_le(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;
    for (size_t i = n; i-- > 0;) {
        value = value << 8 | bytes[i];
    }
    return value;
}

bool bt_gguf_take_string(const uint8_t *bytes, size_t len, size_t *at, bt_gguf_string *out)
{
    if (len - *at < 8) {
        return false;
    }
    const uint64_t n = bt_gguf_load_le(bytes + *at, 8);
    if (n > len - *at - 8) {
        return false;
    }
    *out = (bt_gguf_string){(const char *)bytes + *at + 8, (size_t)n};
    *at += 8 + (size_t)n;
    return true;
}

static int compare_key_with_entry(const void *key, const void *item)
{
    return strcmp(key, (*(const gguf_entry *const *)item)->key);
}

static const gguf_entry *find_entry(const bt_gguf *gguf, const char *key)
{
    const gguf_entry **found = bsearch(key, gguf->entries_by_key, gguf->n_entries,
                                       sizeof *gguf->entries_by_key, compare_key_with_entry);
    return found ? *found : NULL;
}

static bt_status find_required(const bt_gguf *gguf, const char *key, const gguf_entry **out,
                               bt_error *err)
{
    *out = find_entry(gguf, key);
    return *out ? BT_OK : bt_error_set(err, BT_ENOTFOUND, "the model file has no key '%s'", key);
}

static bt_status wrong_type(const gguf_entry *found, const char *wanted, bt_error *err)
{
    return bt_error_set(err, BT_EINVAL, "key '%s' is a %s, not a %s", found->key,
                        bt_gguf_value_names[found->type], wanted);
}

static bool is_integer(bt_gguf_value_type type)
{
    return type <= BT_GGUF_VALUE_I32 || type == BT_GGUF_VALUE_U64 || type == BT_GGUF_VALUE_I64;
}

static bool is_negative(const gguf_entry *found)
{
    const bool is_signed = found->type == BT_GGUF_VALUE_I8 || found->type == BT_GGUF_VALUE_I16 ||
                           found->type == BT_GGUF_VALUE_I32 || found->type == BT_GGUF_VALUE_I64;
    return is_signed && (found->value[bt_gguf_value_bytes[found->type] - 1] & 0x80) != 0;
}

bt_status bt_gguf_get_u64(const bt_gguf *gguf, const char *key, uint64_t *out, bt_error *err)
{
    const gguf_entry *found;
    const bt_status status = find_required(gguf, key, &found, err);
    if (status != BT_OK) {
        return status;
    }
    if (!is_integer(found->type)) {
        return wrong_type(found, "whole number", err);
    }
    if (is_negative(found)) {
        return bt_error_set(err, BT_EINVAL, "key '%s' is negative", key);
    }
    *out = bt_gguf_load_le(found->value, bt_gguf_value_bytes[found->type]);
    return BT_OK;
}

bt_status bt_gguf_get_u32(const bt_gguf *gguf, const char *key, uint32_t *out, bt_error *err)
{
    uint64_t wide;
    const bt_status status = bt_gguf_get_u64(gguf, key, &wide, err);
    if (status != BT_OK) {
        return status;
    }
    if (wide > UINT32_MAX) {
        return bt_error_set(err, BT_EINVAL, "key '%s' is %" PRIu64 ", more than 32 bits hold", key,
                            wide);
    }
    *out = (uint32_t)wide;
    return BT_OK;
}

static float bits_to_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

bt_status bt_gguf_get_f32(const bt_gguf *gguf, const char *key, float *out, bt_error *err)
{
    const gguf_entry *found;
    const bt_status status = find_required(gguf, key, &found, err);
    if (status != BT_OK) {
        return status;
    }
    float value;
    if (found->type == BT_GGUF_VALUE_F32) {
        value = bits_to_f32((uint32_t)bt_gguf_load_le(found->value, 4));
    } else if (found->type == BT_GGUF_VALUE_F64) {
        const uint64_t bits = bt_gguf_load_le(found->value, 8);
        double wide;
        memcpy(&wide, &bits, sizeof wide);
        value = fabs(wide) > 3.4028234663852886e38 ? INFINITY : (float)wide;
    } else {
        return wrong_type(found, "number with a fraction", err);
    }
    if (!isfinite(value)) {
        return bt_error_set(err, BT_EINVAL, "key '%s' isn't a finite 32-bit number", key);
    }
    *out = value;
    return BT_OK;
}

bt_status bt_gguf_get_bool(const bt_gguf *gguf, const char *key, bool *out, bt_error *err)
{
    const gguf_entry *found;
    const bt_status status = find_required(gguf, key, &found, err);
    if (status != BT_OK) {
        return status;
    }
    if (found->type != BT_GGUF_VALUE_BOOL) {
        return wrong_type(found, "bool", err);
    }
    *out = found->value[0] != 0;
    return BT_OK;
}

bt_status bt_gguf_get_string(const bt_gguf *gguf, const char *key, bt_gguf_string *out,
                             bt_error *err)
{
    const gguf_entry *found;
    const bt_status status = find_required(gguf, key, &found, err);
    if (status != BT_OK) {
        return status;
    }
    if (found->type != BT_GGUF_VALUE_STRING) {
        return wrong_type(found, "string", err);
    }
    *out = found->string;
    return BT_OK;
}

/* Whether arrays of `have` serve a caller that wants `type`: I32 and U32 do for each other
 * when no element has its top bit set. */
static bool array_serves(const bt_gguf_array *have, bt_gguf_value_type type)
{
    if (have->type == type) {
        return true;
    }
    const bool both_32 = (have->type == BT_GGUF_VALUE_I32 && type == BT_GGUF_VALUE_U32) ||
                         (have->type == BT_GGUF_VALUE_U32 && type == BT_GGUF_VALUE_I32);
    for (uint64_t i = 0; both_32 && i < have->n; i++) {
        if (have->bytes[i * 4 + 3] & 0x80) {
            return false;
        }
    }
    return both_32;
}

bt_status bt_gguf_get_array(const bt_gguf *gguf, const char *key, bt_gguf_value_type type,
                            bt_gguf_array *out, bt_error *err)
{
    const gguf_entry *found;
    const bt_status status = find_required(gguf, key, &found, err);
    if (status != BT_OK) {
        return status;
    }
    if (found->type != BT_GGUF_VALUE_ARRAY) {
        return wrong_type(found, "array", err);
    }
    if (!array_serves(&found->array, type)) {
        return bt_error_set(err, BT_EINVAL, "key '%s' is an array of %s, not of %s", key,
                            bt_gguf_value_names[found->array.type], bt_gguf_value_names[type]);
    }
    *out = found->array;
    out->type = type;
    return BT_OK;
}

bt_status bt_gguf_get_u32_or(const bt_gguf *gguf, const char *key, uint32_t otherwise,
                             uint32_t *out, bt_error *err)
{
    if (!bt_gguf_has(gguf, key)) {
        *out = otherwise;
        return BT_OK;
    }
    return bt_gguf_get_u32(gguf, key, out, err);
}

bt_status bt_gguf_get_f32_or(const bt_gguf *gguf, const char *key, float otherwise, float *out,
                             bt_error *err)
{
    if (!bt_gguf_has(gguf, key)) {
        *out = otherwise;
        return BT_OK;
    }
    return bt_gguf_get_f32(gguf, key, out, err);
}

bt_status bt_gguf_get_bool_or(const bt_gguf *gguf, const char *key, bool otherwise, bool *out,
                              bt_error *err)
{
    if (!bt_gguf_has(gguf, key)) {
        *out = otherwise;
        return BT_OK;
    }
    return bt_gguf_get_bool(gguf, key, out, err);
}

bool bt_gguf_has(const bt_gguf *gguf, const char *key)
{
    return find_entry(gguf, key) != NULL;
}

uint32_t bt_gguf_array_u32(const bt_gguf_array *array, uint64_t idx)
{
    BT_ASSERT(idx < array->n);
    return (uint32_t)bt_gguf_load_le(array->bytes + idx * 4, 4);
}

int32_t bt_gguf_array_i32(const bt_gguf_array *array, uint64_t idx)
{
    const uint32_t bits = bt_gguf_array_u32(array, idx);
    int32_t value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float bt_gguf_array_f32(const bt_gguf_array *array, uint64_t idx)
{
    return bits_to_f32(bt_gguf_array_u32(array, idx));
}

bool bt_gguf_array_next_string(const bt_gguf_array *array, size_t *offset, bt_gguf_string *out)
{
    BT_ASSERT(array->type == BT_GGUF_VALUE_STRING);
    return bt_gguf_take_string(array->bytes, array->n_bytes, offset, out);
}

static int compare_name_with_tensor(const void *name, const void *item)
{
    return strcmp(name, (*(const gguf_tensor *const *)item)->shown.name);
}

const bt_gguf_tensor *bt_gguf_find_tensor(const bt_gguf *gguf, const char *name)
{
    const gguf_tensor **found = bsearch(name, gguf->tensors_by_name, gguf->n_tensors,
                                        sizeof *gguf->tensors_by_name, compare_name_with_tensor);
    return found ? &(*found)->shown : NULL;
}

size_t bt_gguf_tensor_count(const bt_gguf *gguf)
{
    return gguf->n_tensors;
}

const bt_gguf_tensor *bt_gguf_tensor_at(const bt_gguf *gguf, size_t idx)
{
    BT_ASSERT(idx < gguf->n_tensors);
    return &gguf->tensors[idx].shown;
}

size_t bt_gguf_entry_count(const bt_gguf *gguf)
{
    return gguf->n_entries;
}

bt_gguf_entry bt_gguf_entry_at(const bt_gguf *gguf, size_t idx)
{
    BT_ASSERT(idx < gguf->n_entries);
    const gguf_entry *shown = &gguf->entries[idx];
    return (bt_gguf_entry){shown->key, shown->type, shown->array};
}

const void *bt_gguf_file(const bt_gguf *gguf, size_t *n_bytes)
{
    *n_bytes = gguf->file_bytes;
    return gguf->file;
}

size_t bt_gguf_metadata_bytes(const bt_gguf *gguf)
{
    return gguf->metadata_bytes;
}

const char *bt_gguf_type_name(bt_gguf_type type)
{
    const type_row *row = find_type((uint32_t)type);
    return row ? row->name : "?";
}

uint32_t bt_gguf_type_block_elements(bt_gguf_type type)
{
    const type_row *row = find_type((uint32_t)type);
    return row ? row->elements : 0;
}

uint32_t bt_gguf_type_block_bytes(bt_gguf_type type)
{
    const type_row *row = find_type((uint32_t)type);
    return row ? row->bytes : 0;
}
