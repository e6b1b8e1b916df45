/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - JSON out (--json, logs) and in (HTTP bodies, trace files; over jansson).
 *
 * The writer puts commas, quotes and escapes; invalid UTF-8 becomes U+FFFD, one for each
 * maximal subpart (Unicode 15, section 3.9); numbers that JSON lacks (NaN, infinite) become
 * null. Wrong nesting is a bug and asserted. A failure (memory, full buffer) is
 * remembered: write everything, look once.
 *
 *   bt_json_writer w;
 *   bt_json_writer_init(&w, 2);
 *   bt_json_object_begin(&w);
 *   bt_json_key(&w, "workers");
 *   bt_json_int(&w, 3);
 *   bt_json_object_end(&w);
 *   const char *text = bt_json_writer_text(&w, &len);
 *
 * Threading: one thread at a time.
 * Memory:    the writer's buffer grows (or is the caller's); a bt_json is one heap tree.
 */
#ifndef BT_COMMON_JSON_H
#define BT_COMMON_JSON_H

#include "common/status.h"

enum { BT_JSON_DEPTH_MAX = 32 };

/* ---- writer ---- */
typedef struct bt_json_writer {
    char *text; /* private from here on */
    size_t len;
    size_t capacity;
    bool fixed;
    bool failed;
    bool after_key;
    int indent;
    int depth;
    uint8_t kinds[BT_JSON_DEPTH_MAX]; /* '{' or '[' */
    bool nonempty[BT_JSON_DEPTH_MAX];
} bt_json_writer;

/* `indent` spaces for each level, 0 for one line. Deinit when done. */
void bt_json_writer_init(bt_json_writer *w, int indent);

/* Writes to the caller's buffer (NUL included), one line, never allocates. */
void bt_json_writer_init_fixed(bt_json_writer *w, char *buffer, size_t capacity);
void bt_json_writer_deinit(bt_json_writer *w);

/* Empties it for the next value, keeping the buffer. */
void bt_json_writer_reset(bt_json_writer *w);

void bt_json_object_begin(bt_json_writer *w);
void bt_json_object_end(bt_json_writer *w);
void bt_json_array_begin(bt_json_writer *w);
void bt_json_array_end(bt_json_writer *w);
void bt_json_key(bt_json_writer *w, const char *key);

void bt_json_string(bt_json_writer *w, const char *text); /* NULL: null */
void bt_json_string_n(bt_json_writer *w, const char *bytes, size_t n);
void bt_json_int(bt_json_writer *w, int64_t v);
void bt_json_uint(bt_json_writer *w, uint64_t v);
void bt_json_double(bt_json_writer *w, double v); /* shortest that reads back the same */
void bt_json_bool(bt_json_writer *w, bool v);
void bt_json_null(bt_json_writer *w);

/* The finished text, NUL-terminated; NULL after a failure. Asserts that all is closed.
 * Valid until the next call on w. `len` may be NULL. */
const char *bt_json_writer_text(bt_json_writer *w, size_t *len);

/* ---- reader ---- */
typedef struct bt_json bt_json;

typedef enum bt_json_type {
    BT_JSON_NULL,
    BT_JSON_BOOL,
    BT_JSON_INT, /* fits int64_t */
    BT_JSON_DOUBLE,
    BT_JSON_STRING,
    BT_JSON_ARRAY,
    BT_JSON_OBJECT,
} bt_json_type;

/* Parses one value and nothing after it. Duplicate keys are refused. BT_EINVAL: *err says
 * where; BT_ENOMEM. The caller destroys *out; all values inside are borrowed from it. */
BT_MUST_CHECK bt_status bt_json_parse(const char *text, size_t len, bt_json **out, bt_error *err);
void bt_json_destroy(bt_json *json);

/* All of these take NULL as a value of type null. */
bt_json_type bt_json_type_of(const bt_json *json);
const bt_json *bt_json_get(const bt_json *object, const char *key); /* NULL: not there */
size_t bt_json_len(const bt_json *array_or_object);
const bt_json *bt_json_at(const bt_json *array, size_t i); /* NULL: not there */

/* Walks an object's members: begin with *cursor NULL, until false. */
bool bt_json_next(const bt_json *object, void **cursor, const char **key, const bt_json **value);

/* false, and *out untouched, for another type. An int is a double as well. */
bool bt_json_as_bool(const bt_json *json, bool *out);
bool bt_json_as_int(const bt_json *json, int64_t *out);
bool bt_json_as_double(const bt_json *json, double *out);

/* The string (it may hold NUL: see *len, which may be NULL), or NULL for another type. */
const char *bt_json_as_string(const bt_json *json, size_t *len);

#endif /* BT_COMMON_JSON_H */
