/* SPDX-License-Identifier: Apache-2.0 */
/* gguf.h - reader of GGUF model files (versions 2 and 3, little-endian) over mmap.
 *
 * Follows the GGUF specification: header, metadata (typed keys), tensor table, then
 * tensor data, each tensor on a multiple of `general.alignment`. Nothing in the file
 * is trusted: open() walks all of it but the tensor data and checks every count,
 * length, type, shape, offset and extent, so that the calls after it need no checks.
 *
 * Threading: any thread once opened (immutable).
 * Memory:    open() maps the file and keeps an index bounded by a small multiple of
 *            its metadata. Everything handed out is borrowed until close(). The file
 *            must not be cut while it's open: as with any mapping that is SIGBUS.
 */
#ifndef BT_ENGINE_GGUF_H
#define BT_ENGINE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

typedef struct bt_gguf bt_gguf;

/* Types of tensors, with the numbers that the file has. X(name, number, elements of a
 * block, bytes of a block). */
#define BT_GGUF_TENSOR_TYPES(X)                                                                    \
    X(F32, 0, 1, 4)                                                                                \
    X(F16, 1, 1, 2)                                                                                \
    X(Q4_0, 2, 32, 18)                                                                             \
    X(Q4_1, 3, 32, 20)                                                                             \
    X(Q5_0, 6, 32, 22)                                                                             \
    X(Q5_1, 7, 32, 24)                                                                             \
    X(Q8_0, 8, 32, 34)                                                                             \
    X(Q8_1, 9, 32, 36)                                                                             \
    X(Q2_K, 10, 256, 84)                                                                           \
    X(Q3_K, 11, 256, 110)                                                                          \
    X(Q4_K, 12, 256, 144)                                                                          \
    X(Q5_K, 13, 256, 176)                                                                          \
    X(Q6_K, 14, 256, 210)                                                                          \
    X(Q8_K, 15, 256, 292)                                                                          \
    X(IQ2_XXS, 16, 256, 66)                                                                        \
    X(IQ2_XS, 17, 256, 74)                                                                         \
    X(IQ3_XXS, 18, 256, 98)                                                                        \
    X(IQ1_S, 19, 256, 50)                                                                          \
    X(IQ4_NL, 20, 32, 18)                                                                          \
    X(IQ3_S, 21, 256, 110)                                                                         \
    X(IQ2_S, 22, 256, 82)                                                                          \
    X(IQ4_XS, 23, 256, 136)                                                                        \
    X(I8, 24, 1, 1)                                                                                \
    X(I16, 25, 1, 2)                                                                               \
    X(I32, 26, 1, 4)                                                                               \
    X(I64, 27, 1, 8)                                                                               \
    X(F64, 28, 1, 8)                                                                               \
    X(IQ1_M, 29, 256, 56)                                                                          \
    X(BF16, 30, 1, 2)                                                                              \
    X(TQ1_0, 34, 256, 54)                                                                          \
    X(TQ2_0, 35, 256, 66)                                                                          \
    X(MXFP4, 39, 32, 17)

typedef enum bt_gguf_type {
#define BT_GGUF_TYPE_ENUM(name, number, elements, bytes) BT_GGUF_##name = (number),
    BT_GGUF_TENSOR_TYPES(BT_GGUF_TYPE_ENUM)
#undef BT_GGUF_TYPE_ENUM
} bt_gguf_type;

/* Types of metadata values, with the numbers that the file has. */
typedef enum bt_gguf_value_type {
    BT_GGUF_VALUE_U8 = 0,
    BT_GGUF_VALUE_I8 = 1,
    BT_GGUF_VALUE_U16 = 2,
    BT_GGUF_VALUE_I16 = 3,
    BT_GGUF_VALUE_U32 = 4,
    BT_GGUF_VALUE_I32 = 5,
    BT_GGUF_VALUE_F32 = 6,
    BT_GGUF_VALUE_BOOL = 7,
    BT_GGUF_VALUE_STRING = 8,
    BT_GGUF_VALUE_ARRAY = 9,
    BT_GGUF_VALUE_U64 = 10,
    BT_GGUF_VALUE_I64 = 11,
    BT_GGUF_VALUE_F64 = 12,
} bt_gguf_value_type;

enum { BT_GGUF_DIMS_MAX = 4 };

/* Bytes in the file, no NUL at the end. Not checked to be UTF-8. */
typedef struct bt_gguf_string {
    const char *bytes;
    size_t len;
} bt_gguf_string;

typedef struct bt_gguf_array {
    bt_gguf_value_type type; /* of the elements: any but ARRAY */
    uint64_t n;
    const uint8_t *bytes; /* the first element, unaligned; use the accessors below */
    size_t n_bytes;       /* of all elements */
} bt_gguf_array;

typedef struct bt_gguf_tensor {
    const char *name; /* NUL-terminated, printable ASCII, 1..255 bytes */
    bt_gguf_type type;
    uint32_t n_dims;                 /* 1..4 */
    uint64_t dims[BT_GGUF_DIMS_MAX]; /* innermost first; those past n_dims are 1 */
    uint64_t n_elements;             /* product of dims, at least 1 */
    const void *data;                /* aligned to general.alignment (at least 8) */
    size_t n_bytes;
} bt_gguf_tensor;

/* One metadata entry, for listings. */
typedef struct bt_gguf_entry {
    const char *key; /* NUL-terminated, printable ASCII */
    bt_gguf_value_type type;
    bt_gguf_array array; /* if type is ARRAY */
} bt_gguf_entry;

/* Opens and checks the file at `path`. On BT_OK the caller owns *out.
 * BT_EIO: it can't be opened or mapped. BT_ECORRUPT: it breaks the format; *err says where.
 * BT_EUNSUPPORTED: version, byte order or tensor type that this reader doesn't know.
 * BT_ENOMEM. O(metadata), n log n in keys and tensors. */
BT_MUST_CHECK bt_status bt_gguf_open(const char *path, bt_gguf **out, bt_error *err);

/* The value of `key`, converted where nothing is lost: integers of every width, bool
 * only as bool, f32 from f32 or f64.
 * BT_ENOTFOUND: no such key. BT_EINVAL: another type, or out of range; *err names the
 * key, what it holds and what was wanted. O(log n). */
BT_MUST_CHECK bt_status bt_gguf_get_u32(const bt_gguf *gguf, const char *key, uint32_t *out,
                                        bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_get_u64(const bt_gguf *gguf, const char *key, uint64_t *out,
                                        bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_get_f32(const bt_gguf *gguf, const char *key, float *out,
                                        bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_get_bool(const bt_gguf *gguf, const char *key, bool *out,
                                         bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_get_string(const bt_gguf *gguf, const char *key,
                                           bt_gguf_string *out, bt_error *err);

/* An array whose elements are exactly of `type` (I32 also takes U32 elements that fit,
 * and U32 takes I32 ones). Statuses as above. O(n) for the check of I32 and U32. */
BT_MUST_CHECK bt_status bt_gguf_get_array(const bt_gguf *gguf, const char *key,
                                          bt_gguf_value_type type, bt_gguf_array *out,
                                          bt_error *err);

/* As get_u32, get_f32 and get_bool, but an absent key gives `otherwise`. */
BT_MUST_CHECK bt_status bt_gguf_get_u32_or(const bt_gguf *gguf, const char *key, uint32_t otherwise,
                                           uint32_t *out, bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_get_f32_or(const bt_gguf *gguf, const char *key, float otherwise,
                                           float *out, bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_get_bool_or(const bt_gguf *gguf, const char *key, bool otherwise,
                                            bool *out, bt_error *err);

/* Whether the file has `key`, of whatever type. */
bool bt_gguf_has(const bt_gguf *gguf, const char *key);

/* Elements of a checked array; idx < array->n, and the array is of that type. */
float bt_gguf_array_f32(const bt_gguf_array *array, uint64_t idx);
int32_t bt_gguf_array_i32(const bt_gguf_array *array, uint64_t idx);
uint32_t bt_gguf_array_u32(const bt_gguf_array *array, uint64_t idx);

/* Walks an array of strings: start with *offset = 0; false after the last one. */
bool bt_gguf_array_next_string(const bt_gguf_array *array, size_t *offset, bt_gguf_string *out);

/* The tensor of that name, or NULL. O(log n). */
const bt_gguf_tensor *bt_gguf_find_tensor(const bt_gguf *gguf, const char *name);

/* All tensors and all metadata entries, in the order of the file. */
size_t bt_gguf_tensor_count(const bt_gguf *gguf);
const bt_gguf_tensor *bt_gguf_tensor_at(const bt_gguf *gguf, size_t idx);
size_t bt_gguf_entry_count(const bt_gguf *gguf);
bt_gguf_entry bt_gguf_entry_at(const bt_gguf *gguf, size_t idx);

/* The mapping itself: all bytes of the file, and those before the tensor data. */
const void *bt_gguf_file(const bt_gguf *gguf, size_t *n_bytes);
size_t bt_gguf_metadata_bytes(const bt_gguf *gguf);

/* "Q4_1"; "?" for a number that is no type. */
const char *bt_gguf_type_name(bt_gguf_type type);

/* Elements and bytes of one block of `type`; 0 for a number that is no type. */
uint32_t bt_gguf_type_block_elements(bt_gguf_type type);
uint32_t bt_gguf_type_block_bytes(bt_gguf_type type);

/* Unmaps and frees; what was borrowed is gone. NULL is allowed. */
void bt_gguf_close(bt_gguf *gguf);

#endif /* BT_ENGINE_GGUF_H */
