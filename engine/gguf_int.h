/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_int.h - what gguf.c (which fills it) and gguf_get.c (which reads it) share. */
#ifndef BT_ENGINE_GGUF_INT_H
#define BT_ENGINE_GGUF_INT_H

#include "engine/gguf.h"

enum { BT_GGUF_VALUE_TYPES = 13 };

typedef struct gguf_entry {
    size_t key_at; /* in names; becomes `key` when names stops growing */
    const char *key;
    bt_gguf_value_type type;
    const uint8_t *value;  /* if type is of fixed size */
    bt_gguf_array array;   /* if type is ARRAY */
    bt_gguf_string string; /* if type is STRING */
} gguf_entry;

typedef struct gguf_tensor {
    bt_gguf_tensor shown;
    size_t name_at;
    uint64_t offset; /* from the start of the tensor data */
} gguf_tensor;

struct bt_gguf {
    const uint8_t *file;
    size_t file_bytes;
    size_t metadata_bytes;
    char *names;
    size_t names_len;
    size_t names_capacity;
    size_t n_entries;
    gguf_entry *entries;
    const gguf_entry **entries_by_key;
    size_t n_tensors;
    gguf_tensor *tensors;
    const gguf_tensor **tensors_by_name;
};

/* By value type: bytes of a value (0: not of fixed size), and "u32". */
extern const uint8_t bt_gguf_value_bytes[BT_GGUF_VALUE_TYPES];
extern const char *const bt_gguf_value_names[BT_GGUF_VALUE_TYPES];

/* Little-endian, n of 1..8 bytes. */
uint64_t bt_gguf_load_le(const uint8_t *bytes, size_t n);

/* Reads a length and that many bytes at *at, and moves *at; false, and nothing done, if
 * they run past `len`. */
bool bt_gguf_take_string(const uint8_t *bytes, size_t len, size_t *at, bt_gguf_string *out);

#endif /* BT_ENGINE_GGUF_INT_H */
