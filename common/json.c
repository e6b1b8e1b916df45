/* SPDX-License-Identifier: Apache-2.0 */
/* The writer keeps the kind of each open level and whether it has a member, which is all
 * that commas and indentation need. The reader is jansson's tree behind another name. */
#include "common/json.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/utf8.h"

enum { CAPACITY_MIN = 256 };

/* ---- writer: bytes ---- */

void bt_json_writer_init(bt_json_writer *w, int indent)
{
    *w = (bt_json_writer){.indent = indent};
}

void bt_json_writer_init_fixed(bt_json_writer *w, char *buffer, size_t capacity)
{
    BT_ASSERT(capacity > 0);
    *w = (bt_json_writer){.text = buffer, .capacity = capacity, .fixed = true};
}

void bt_json_writer_deinit(bt_json_writer *w)
{
    if (!w->fixed) {
        free(w->text);
    }
    *w = (bt_json_writer){.fixed = w->fixed, .failed = true};
}

void bt_json_writer_reset(bt_json_writer *w)
{
    w->len = 0;
    w->depth = 0;
    w->after_key = false;
    w->failed = false;
    w->nonempty[0] = false;
}

/* Room for n more bytes and a NUL. */
static bool reserve(bt_json_writer *w, size_t n)
{
    if (w->failed) {
        return false;
    }
    if (n < w->capacity - w->len) {
        return true;
    }
    const size_t capacity = bt_size_max(bt_size_max(2 * w->capacity, w->len + n + 1), CAPACITY_MIN);
    char *grown = w->fixed ? NULL : realloc(w->text, capacity);
    if (!grown) {
        w->failed = true;
        return false;
    }
    w->text = grown;
    w->capacity = capacity;
    return true;
}

static void put(bt_json_writer *w, const char *bytes, size_t n)
{
    if (reserve(w, n)) {
        memcpy(w->text + w->len, bytes, n);
        w->len += n;
    }
}

static void put_text(bt_json_writer *w, const char *text)
{
    put(w, text, strlen(text));
}

static void put_new_line(bt_json_writer *w)
{
    const size_t n = (size_t)w->indent * (size_t)w->depth;
    if (w->indent > 0 && reserve(w, n + 1)) {
        w->text[w->len] = '\n';
        memset(w->text + w->len + 1, ' ', n);
        w->len += n + 1;
    }
}

static void put_quoted(bt_json_writer *w, const char *s, size_t n)
{
    put(w, "\"", 1);
    for (size_t i = 0; i < n;) {
        bool valid;
        const size_t len = bt_utf8_step(s + i, n - i, &valid);
        const unsigned char c = (unsigned char)s[i];
        const char *const short_escapes = "\"\"\\\\\bb\ff\nn\rr\tt"; /* byte, letter */
        const char *pair = NULL;
        for (size_t e = 0; e < 14 && !pair; e += 2) {
            pair = (unsigned char)short_escapes[e] == c ? &short_escapes[e] : NULL;
        }
        if (!valid) {
            put_text(w, BT_UTF8_REPLACEMENT);
        } else if (pair) {
            const char escape[2] = {'\\', pair[1]};
            put(w, escape, sizeof escape);
        } else if (c < 0x20 || c == 0x7F) {
            char escape[8];
            (void)snprintf(escape, sizeof escape, "\\u%04x", c);
            put_text(w, escape);
        } else {
            put(w, s + i, len);
        }
        i += len;
    }
    put(w, "\"", 1);
}

/* ---- writer: structure ---- */

static bool in_object(const bt_json_writer *w)
{
    return w->depth > 0 && w->kinds[w->depth - 1] == '{';
}

/* Comma and line break before a member or an element. */
static void begin_item(bt_json_writer *w)
{
    if (w->nonempty[w->depth]) {
        put(w, ",", 1);
    }
    if (w->depth > 0) {
        put_new_line(w);
    }
    w->nonempty[w->depth] = true;
}

static void begin_value(bt_json_writer *w)
{
    BT_ASSERT(w->after_key == in_object(w)); /* in an object a key comes first, elsewhere none */
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    BT_ASSERT(w->depth > 0 || !w->nonempty[0]); /* one value at the top */
    begin_item(w);
}

static void open_level(bt_json_writer *w, char kind)
{
    begin_value(w);
    BT_ASSERT(w->depth < BT_JSON_DEPTH_MAX - 1);
    put(w, &kind, 1);
    w->kinds[w->depth] = (uint8_t)kind;
    w->depth++;
    w->nonempty[w->depth] = false;
}

static void close_level(bt_json_writer *w, char kind, const char *closing)
{
    BT_ASSERT(w->depth > 0);
    BT_ASSERT(w->kinds[w->depth - 1] == (uint8_t)kind);
    BT_ASSERT(!w->after_key);
    const bool nonempty = w->nonempty[w->depth];
    w->depth--;
    if (nonempty) {
        put_new_line(w);
    }
    put_text(w, closing);
}

void bt_json_object_begin(bt_json_writer *w)
{
    open_level(w, '{');
}

void bt_json_object_end(bt_json_writer *w)
{
    close_level(w, '{', "}");
}

void bt_json_array_begin(bt_json_writer *w)
{
    open_level(w, '[');
}

void bt_json_array_end(bt_json_writer *w)
{
    close_level(w, '[', "]");
}

void bt_json_key(bt_json_writer *w, const char *key)
{
    BT_ASSERT(in_object(w));
    BT_ASSERT(!w->after_key);
    begin_item(w);
    put_quoted(w, key, strlen(key));
    put_text(w, w->indent > 0 ? ": " : ":");
    w->after_key = true;
}

/* ---- writer: values ---- */

void bt_json_string(bt_json_writer *w, const char *text)
{
    if (!text) {
        bt_json_null(w);
        return;
    }
    bt_json_string_n(w, text, strlen(text));
}

void bt_json_string_n(bt_json_writer *w, const char *bytes, size_t n)
{
    begin_value(w);
    put_quoted(w, bytes, n);
}

void bt_json_int(bt_json_writer *w, int64_t v)
{
    char number[32];
    (void)snprintf(number, sizeof number, "%" PRId64, v);
    begin_value(w);
    put_text(w, number);
}

void bt_json_uint(bt_json_writer *w, uint64_t v)
{
    char number[32];
    (void)snprintf(number, sizeof number, "%" PRIu64, v);
    begin_value(w);
    put_text(w, number);
}

void bt_json_double(bt_json_writer *w, double v)
{
    if (!isfinite(v)) {
        bt_json_null(w);
        return;
    }
    char number[32];
    int digits = 15;
    do {
        (void)snprintf(number, sizeof number, "%.*g", digits, v);
    } while (strtod(number, NULL) != v && ++digits <= 17);
    begin_value(w);
    put_text(w, number);
}

void bt_json_bool(bt_json_writer *w, bool v)
{
    begin_value(w);
    put_text(w, v ? "true" : "false");
}

void bt_json_null(bt_json_writer *w)
{
    begin_value(w);
    put_text(w, "null");
}

const char *bt_json_writer_text(bt_json_writer *w, size_t *len)
{
    BT_ASSERT(w->depth == 0);
    if (!reserve(w, 0)) {
        return NULL;
    }
    w->text[w->len] = '\0';
    if (len) {
        *len = w->len;
    }
    return w->text;
}

/* ---- reader ---- */

static const json_t *of(const bt_json *json)
{
    return (const json_t *)(const void *)json;
}

static const bt_json *to(const json_t *json)
{
    return (const bt_json *)(const void *)json;
}

bt_status bt_json_parse(const char *text, size_t len, bt_json **out, bt_error *err)
{
    json_error_t error;
    json_t *root =
        json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!root) {
        if (json_error_code(&error) == json_error_out_of_memory) {
            return bt_error_set(err, BT_ENOMEM, "out of memory while reading JSON");
        }
        return bt_error_set(err, BT_EINVAL, "not JSON: line %d, column %d: %s", error.line,
                            error.column, error.text);
    }
    *out = (bt_json *)(void *)root;
    return BT_OK;
}

void bt_json_destroy(bt_json *json)
{
    json_decref((json_t *)(void *)json);
}

bt_json_type bt_json_type_of(const bt_json *json)
{
    if (!json) {
        return BT_JSON_NULL;
    }
    switch (json_typeof(of(json))) {
    case JSON_OBJECT:
        return BT_JSON_OBJECT;
    case JSON_ARRAY:
        return BT_JSON_ARRAY;
    case JSON_STRING:
        return BT_JSON_STRING;
    case JSON_INTEGER:
        return BT_JSON_INT;
    case JSON_REAL:
        return BT_JSON_DOUBLE;
    case JSON_TRUE:
    case JSON_FALSE:
        return BT_JSON_BOOL;
    case JSON_NULL:
        break;
    }
    return BT_JSON_NULL;
}

const bt_json *bt_json_get(const bt_json *object, const char *key)
{
    return to(json_object_get(of(object), key)); /* NULL for NULL and other types */
}

size_t bt_json_len(const bt_json *array_or_object)
{
    return bt_json_type_of(array_or_object) == BT_JSON_OBJECT
               ? json_object_size(of(array_or_object))
               : json_array_size(of(array_or_object));
}

const bt_json *bt_json_at(const bt_json *array, size_t i)
{
    return to(json_array_get(of(array), i));
}

bool bt_json_next(const bt_json *object, void **cursor, const char **key, const bt_json **value)
{
    /* jansson's walk takes the object as writable, but only reads it */
    json_t *json = (json_t *)(uintptr_t)object;
    void *next = *cursor ? json_object_iter_next(json, *cursor) : json_object_iter(json);
    if (!next) {
        return false;
    }
    *cursor = next;
    *key = json_object_iter_key(next);
    *value = to(json_object_iter_value(next));
    return true;
}

bool bt_json_as_bool(const bt_json *json, bool *out)
{
    if (bt_json_type_of(json) != BT_JSON_BOOL) {
        return false;
    }
    *out = json_is_true(of(json));
    return true;
}

bool bt_json_as_int(const bt_json *json, int64_t *out)
{
    if (bt_json_type_of(json) != BT_JSON_INT) {
        return false;
    }
    *out = json_integer_value(of(json));
    return true;
}

bool bt_json_as_double(const bt_json *json, double *out)
{
    const bt_json_type type = bt_json_type_of(json);
    if (type != BT_JSON_INT && type != BT_JSON_DOUBLE) {
        return false;
    }
    *out = json_number_value(of(json));
    return true;
}

const char *bt_json_as_string(const bt_json *json, size_t *len)
{
    const char *text = json_string_value(of(json));
    if (text && len) {
        *len = json_string_length(of(json));
    }
    return text;
}
