/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_writer.h - writes small GGUF files for tests, right ones and, with raw bytes, broken ones.
 *
 *   begin -> add_* (keys) and add_tensor, in any order -> finish (or cancel)
 *
 * The file is made in memory and written by finish(). A writer that failed once (no
 * memory) stays failed and says so in finish(), so that the calls between need no checks.
 *
 * Threading: one thread.
 */
#ifndef BT_TESTS_SUPPORT_GGUF_WRITER_H
#define BT_TESTS_SUPPORT_GGUF_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "engine/gguf.h"

typedef struct bt_gguf_writer bt_gguf_writer;

/* NULL: out of memory. Version 3, alignment 32 unless set below. */
bt_gguf_writer *bt_gguf_writer_begin(void);

/* Before the first tensor. Writes general.alignment too when it isn't 32. */
void bt_gguf_writer_set_alignment(bt_gguf_writer *writer, uint32_t alignment);
void bt_gguf_writer_set_version(bt_gguf_writer *writer, uint32_t version);

void bt_gguf_writer_add_u32(bt_gguf_writer *writer, const char *key, uint32_t value);
void bt_gguf_writer_add_u64(bt_gguf_writer *writer, const char *key, uint64_t value);
void bt_gguf_writer_add_i32(bt_gguf_writer *writer, const char *key, int32_t value);
void bt_gguf_writer_add_f32(bt_gguf_writer *writer, const char *key, float value);
void bt_gguf_writer_add_bool(bt_gguf_writer *writer, const char *key, bool value);
void bt_gguf_writer_add_string(bt_gguf_writer *writer, const char *key, const char *value);
void bt_gguf_writer_add_strings(bt_gguf_writer *writer, const char *key, const char *const *values,
                                size_t n);
void bt_gguf_writer_add_f32s(bt_gguf_writer *writer, const char *key, const float *values,
                             size_t n);
void bt_gguf_writer_add_i32s(bt_gguf_writer *writer, const char *key, const int32_t *values,
                             size_t n);

/* A value whose bytes the caller made, right or not. */
void bt_gguf_writer_add_raw(bt_gguf_writer *writer, const char *key, uint32_t value_type,
                            const void *bytes, size_t n_bytes);

/* `data` (bytes by type and dims, innermost dimension first) is copied at once. */
void bt_gguf_writer_add_tensor(bt_gguf_writer *writer, const char *name, bt_gguf_type type,
                               const uint64_t *dims, uint32_t n_dims, const void *data);

/* Writes the file and frees the writer. */
BT_MUST_CHECK bt_status bt_gguf_writer_finish(bt_gguf_writer *writer, const char *path);

/* The same into memory, for mutations; the caller frees *bytes. */
BT_MUST_CHECK bt_status bt_gguf_writer_finish_bytes(bt_gguf_writer *writer, uint8_t **bytes,
                                                    size_t *n_bytes);

/* Frees the writer without a file. NULL is allowed. */
void bt_gguf_writer_cancel(bt_gguf_writer *writer);

#endif /* BT_TESTS_SUPPORT_GGUF_WRITER_H */
