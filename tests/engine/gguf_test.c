/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that a right file is read back as it was written, and that a broken one is refused
 * with a text that says what and where: over a hundred are made by changing or cutting a
 * right one.
 */
#include "engine/gguf.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/tokenizer_file.h"

typedef struct image {
    uint8_t *bytes;
    size_t n;
} image;

static bt_status open_bytes(const uint8_t *bytes, size_t n, bt_gguf **out, bt_error *err)
{
    char path[256];
    bt_test_path("gguf", path, sizeof path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    const bt_status status = bt_gguf_open(path, out, err);
    (void)unlink(path);
    return status;
}

/* One of everything; tensors with gaps for their alignment. */
static image make_image(void)
{
    static const char *const strings[] = {"one", "", "three"};
    static const float floats[] = {1.5F, -2.0F};
    static const int32_t ints[] = {1, -2, 3};
    static const uint64_t dims_a[] = {3, 2};
    static const uint64_t dims_b[] = {64, 2};
    static const uint64_t dims_c[] = {1, 1, 1, 5};
    static const uint8_t u16[] = {0x34, 0x12};
    static const uint8_t i8[] = {0xFF};
    static const uint8_t f64[] = {0, 0, 0, 0, 0, 0, 0xF8, 0x3F};
    static const float a[] = {1, 2, 3, 4, 5, 6};
    static const uint8_t b[4 * 20] = {7};
    static const uint8_t c[10] = {0};
    bt_gguf_writer *writer = bt_gguf_writer_begin();
    assert_non_null(writer);
    bt_gguf_writer_add_string(writer, "general.architecture", "llama");
    bt_gguf_writer_add_u32(writer, "a.u32", 7);
    bt_gguf_writer_add_u64(writer, "a.u64", UINT64_C(1) << 40);
    bt_gguf_writer_add_i32(writer, "a.i32", -7);
    bt_gguf_writer_add_f32(writer, "a.f32", 0.25F);
    bt_gguf_writer_add_bool(writer, "a.bool", true);
    bt_gguf_writer_add_raw(writer, "a.u16", BT_GGUF_VALUE_U16, u16, 2);
    bt_gguf_writer_add_raw(writer, "a.i8", BT_GGUF_VALUE_I8, i8, 1);
    bt_gguf_writer_add_raw(writer, "a.f64", BT_GGUF_VALUE_F64, f64, 8);
    bt_gguf_writer_add_strings(writer, "a.strings", strings, 3);
    bt_gguf_writer_add_f32s(writer, "a.f32s", floats, 2);
    bt_gguf_writer_add_i32s(writer, "a.i32s", ints, 3);
    bt_gguf_writer_add_tensor(writer, "t.f32", BT_GGUF_F32, dims_a, 2, a);
    bt_gguf_writer_add_tensor(writer, "t.q4_1", BT_GGUF_Q4_1, dims_b, 2, b);
    bt_gguf_writer_add_tensor(writer, "t.bf16", BT_GGUF_BF16, dims_c, 4, c);
    image made;
    assert_int_equal(bt_gguf_writer_finish_bytes(writer, &made.bytes, &made.n), BT_OK);
    return made;
}

static bt_gguf *open_image(void)
{
    image made = make_image();
    bt_gguf *gguf = NULL;
    bt_error err = {""};
    if (open_bytes(made.bytes, made.n, &gguf, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    free(made.bytes);
    return gguf;
}

static void values_are_read_back(void **state)
{
    (void)state;
    bt_gguf *gguf = open_image();
    uint32_t u32;
    uint64_t u64;
    float f32;
    bool flag;
    bt_gguf_string text;
    assert_int_equal(bt_gguf_get_u32(gguf, "a.u32", &u32, NULL), BT_OK);
    assert_int_equal(u32, 7);
    assert_int_equal(bt_gguf_get_u32(gguf, "a.u16", &u32, NULL), BT_OK);
    assert_int_equal(u32, 0x1234);
    assert_int_equal(bt_gguf_get_u64(gguf, "a.u64", &u64, NULL), BT_OK);
    assert_true(u64 == UINT64_C(1) << 40);
    assert_int_equal(bt_gguf_get_f32(gguf, "a.f32", &f32, NULL), BT_OK);
    assert_true(f32 == 0.25F);
    assert_int_equal(bt_gguf_get_f32(gguf, "a.f64", &f32, NULL), BT_OK);
    assert_true(f32 == 1.5F);
    assert_int_equal(bt_gguf_get_bool(gguf, "a.bool", &flag, NULL), BT_OK);
    assert_true(flag);
    assert_int_equal(bt_gguf_get_string(gguf, "general.architecture", &text, NULL), BT_OK);
    assert_int_equal(text.len, 5);
    assert_memory_equal(text.bytes, "llama", 5);
    assert_int_equal(bt_gguf_get_u32_or(gguf, "none", 3, &u32, NULL), BT_OK);
    assert_int_equal(u32, 3);
    assert_int_equal(bt_gguf_entry_count(gguf), 12);
    assert_string_equal(bt_gguf_entry_at(gguf, 11).key, "a.i32s");
    assert_int_equal(bt_gguf_entry_at(gguf, 11).array.n, 3);
    bt_gguf_close(gguf);
}

static void arrays_are_read_back(void **state)
{
    (void)state;
    bt_gguf *gguf = open_image();
    bt_gguf_array array;
    bt_gguf_string text;
    size_t offset = 0;
    size_t lens[4] = {9, 9, 9, 9};
    size_t n = 0;
    assert_int_equal(bt_gguf_get_array(gguf, "a.strings", BT_GGUF_VALUE_STRING, &array, NULL),
                     BT_OK);
    while (bt_gguf_array_next_string(&array, &offset, &text)) {
        lens[n++] = text.len;
    }
    assert_int_equal(n, 3);
    assert_true(lens[0] == 3 && lens[1] == 0 && lens[2] == 5);
    assert_int_equal(bt_gguf_get_array(gguf, "a.f32s", BT_GGUF_VALUE_F32, &array, NULL), BT_OK);
    assert_true(bt_gguf_array_f32(&array, 1) == -2.0F);
    assert_int_equal(bt_gguf_get_array(gguf, "a.i32s", BT_GGUF_VALUE_I32, &array, NULL), BT_OK);
    assert_int_equal(bt_gguf_array_i32(&array, 1), -2);
    assert_int_equal(bt_gguf_get_array(gguf, "a.i32s", BT_GGUF_VALUE_U32, &array, NULL), BT_EINVAL);
    bt_gguf_close(gguf);
}

static void tensors_are_read_back(void **state)
{
    (void)state;
    bt_gguf *gguf = open_image();
    const bt_gguf_tensor *a = bt_gguf_find_tensor(gguf, "t.f32");
    const bt_gguf_tensor *b = bt_gguf_find_tensor(gguf, "t.q4_1");
    const bt_gguf_tensor *c = bt_gguf_find_tensor(gguf, "t.bf16");
    assert_true(a && b && c);
    assert_null(bt_gguf_find_tensor(gguf, "t"));
    assert_int_equal(bt_gguf_tensor_count(gguf), 3);
    assert_ptr_equal(bt_gguf_tensor_at(gguf, 1), b);
    assert_true(a->n_dims == 2 && a->dims[0] == 3 && a->dims[1] == 2 && a->dims[2] == 1);
    assert_true(((const float *)a->data)[5] == 6.0F);
    assert_int_equal(b->n_bytes, 80);
    assert_int_equal(b->n_elements, 128);
    assert_int_equal(*(const uint8_t *)b->data, 7);
    assert_int_equal((uintptr_t)b->data % 32, 0);
    assert_int_equal(c->n_bytes, 10);
    assert_string_equal(bt_gguf_type_name(c->type), "BF16");
    assert_int_equal(bt_gguf_type_block_elements(BT_GGUF_Q6_K), 256);
    assert_int_equal(bt_gguf_type_block_bytes((bt_gguf_type)99), 0);
    size_t n_bytes;
    assert_non_null(bt_gguf_file(gguf, &n_bytes));
    assert_true(bt_gguf_metadata_bytes(gguf) < n_bytes);
    bt_gguf_close(gguf);
}

static void wrong_questions_are_answered_with_the_key(void **state)
{
    (void)state;
    bt_gguf *gguf = open_image();
    uint32_t u32 = 99;
    uint64_t u64;
    float f32;
    bool flag;
    bt_gguf_string text;
    bt_gguf_array array;
    bt_error err = {""};
    assert_int_equal(bt_gguf_get_u32(gguf, "none", &u32, &err), BT_ENOTFOUND);
    assert_string_equal(err.text, "the model file has no key 'none'");
    assert_int_equal(bt_gguf_get_u32(gguf, "a.u64", &u32, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "'a.u64' is 1099511627776"));
    assert_int_equal(bt_gguf_get_u64(gguf, "a.i32", &u64, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "negative"));
    assert_int_equal(bt_gguf_get_u64(gguf, "a.i8", &u64, &err), BT_EINVAL);
    assert_int_equal(bt_gguf_get_u32(gguf, "a.f32", &u32, &err), BT_EINVAL);
    assert_string_equal(err.text, "key 'a.f32' is a f32, not a whole number");
    assert_int_equal(bt_gguf_get_u32(gguf, "a.bool", &u32, &err), BT_EINVAL);
    assert_int_equal(bt_gguf_get_f32(gguf, "a.u32", &f32, &err), BT_EINVAL);
    assert_int_equal(bt_gguf_get_bool(gguf, "a.u32", &flag, &err), BT_EINVAL);
    assert_int_equal(bt_gguf_get_string(gguf, "a.u32", &text, &err), BT_EINVAL);
    assert_int_equal(bt_gguf_get_array(gguf, "a.u32", BT_GGUF_VALUE_I32, &array, &err), BT_EINVAL);
    assert_int_equal(bt_gguf_get_array(gguf, "a.f32s", BT_GGUF_VALUE_I32, &array, &err), BT_EINVAL);
    assert_string_equal(err.text, "key 'a.f32s' is an array of f32, not of i32");
    assert_int_equal(bt_gguf_get_bool_or(gguf, "a.u32", true, &flag, &err), BT_EINVAL);
    assert_int_equal(u32, 99);
    bt_gguf_close(gguf);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    image made = make_image();
    for (size_t n = 0; n < made.n; n++) {
        bt_gguf *gguf = NULL;
        bt_error err = {""};
        const bt_status status = open_bytes(made.bytes, n, &gguf, &err);
        if (status != BT_ECORRUPT || gguf || err.text[0] == '\0') {
            fail_msg("cut to %zu of %zu bytes: status %s, '%s'", n, made.n, bt_status_name(status),
                     err.text);
        }
    }
    free(made.bytes);
}

/* Each byte of the metadata becomes 0x00, 0x7F and 0xFF: open() may take it or not, but it
 * must come back, and what it takes must be whole. */
static void a_file_with_any_byte_changed_does_no_harm(void **state)
{
    (void)state;
    static const uint8_t values[] = {0x00, 0x7F, 0xFF};
    image made = make_image();
    for (size_t at = 0; at < made.n - 100; at++) {
        for (size_t i = 0; i < sizeof values; i++) {
            const uint8_t before = made.bytes[at];
            made.bytes[at] = values[i];
            bt_gguf *gguf = NULL;
            if (open_bytes(made.bytes, made.n, &gguf, NULL) == BT_OK) {
                for (size_t t = 0; t < bt_gguf_tensor_count(gguf); t++) {
                    const bt_gguf_tensor *tensor = bt_gguf_tensor_at(gguf, t);
                    volatile uint8_t last = ((const uint8_t *)tensor->data)[tensor->n_bytes - 1];
                    (void)last;
                }
            }
            bt_gguf_close(gguf);
            made.bytes[at] = before;
        }
    }
    free(made.bytes);
}

/* Where in the image `text` is found the nth time (from 0). */
static size_t find_text(const image *in, const char *text, size_t nth)
{
    const size_t len = strlen(text);
    for (size_t at = 0; at + len <= in->n; at++) {
        if (memcmp(in->bytes + at, text, len) == 0 && nth-- == 0) {
            return at;
        }
    }
    fail_msg("'%s' isn't in the image", text);
    return 0;
}

typedef struct patch {
    const char *after; /* bytes are written behind this name; NULL: from the file's start */
    size_t skip;       /* and so many bytes further */
    uint64_t value;
    size_t n_bytes;
    bt_status status;
    const char *text; /* what the error says */
} patch;

/* Behind a key: type (4), value. Behind an array's key: type (4), element type (4), count (8).
 * Behind a tensor's name: n_dims (4), dims (8 each), type (4), offset (8). */
static const patch patches[] = {
    {NULL, 0, 0x46554748, 4, BT_ECORRUPT, "not a GGUF file"},
    {NULL, 4, 0, 4, BT_EUNSUPPORTED, "version 0"},
    {NULL, 4, 1, 4, BT_EUNSUPPORTED, "version 1"},
    {NULL, 4, 4, 4, BT_EUNSUPPORTED, "version 4"},
    {NULL, 4, 0x03000000, 4, BT_EUNSUPPORTED, "big-endian"},
    {NULL, 8, 1000000, 8, BT_ECORRUPT, "1000000 tensors"},
    {NULL, 8, UINT64_MAX, 8, BT_ECORRUPT, "18446744073709551615 tensors"},
    {NULL, 8, 4, 8, BT_ECORRUPT, "tensor 3"},
    {NULL, 8, 0, 8, BT_OK, ""}, /* the rest is ignored, as gaps are */
    {NULL, 16, UINT64_MAX, 8, BT_ECORRUPT, "18446744073709551615 keys"},
    {NULL, 16, 1u << 31, 8, BT_ECORRUPT, "2147483648 keys"},
    {NULL, 16, 13, 8, BT_ECORRUPT, "tensor 0"},
    {NULL, 16, 11, 8, BT_ECORRUPT, "tensor 'a.i32s'"},
    {NULL, 24, 0, 8, BT_ECORRUPT, "key 0 (byte 24): its name has 0 bytes"},
    {NULL, 24, 70000, 8, BT_ECORRUPT, "key 0 (byte 24): its name runs past"},
    {NULL, 24, UINT64_MAX, 8, BT_ECORRUPT, "key 0"},
    {NULL, 24, UINT64_MAX - 7, 8, BT_ECORRUPT, "key 0"},
    {NULL, 32, 0x00, 1, BT_ECORRUPT, "byte 0x00, which isn't printable"},
    {NULL, 32, 0xC3, 1, BT_ECORRUPT, "byte 0xC3, which isn't printable"},
    {NULL, 32, '\n', 1, BT_ECORRUPT, "byte 0x0A"},
    {"a.u32", 0, 13, 4, BT_ECORRUPT, "key 'a.u32': unknown value type 13"},
    {"a.u32", 0, UINT32_MAX, 4, BT_ECORRUPT, "key 'a.u32': unknown value type 4294967295"},
    {"a.u32", 0, BT_GGUF_VALUE_STRING, 4, BT_ECORRUPT, "key 'a.u32': its string runs past"},
    {"a.u32", 0, BT_GGUF_VALUE_ARRAY, 4, BT_ECORRUPT, "key 'a.u32'"},
    {"a.u32", 0, BT_GGUF_VALUE_U64, 4, BT_ECORRUPT, "key 2"},
    {"a.bool", 4, 2, 1, BT_ECORRUPT, "key 'a.bool': a bool is 2"},
    {"a.bool", 4, 0xFF, 1, BT_ECORRUPT, "key 'a.bool': a bool is 255"},
    {"general.architecture", 4, 100000, 8, BT_ECORRUPT, "key 'general.architecture': its string"},
    {"general.architecture", 4, UINT64_MAX, 8, BT_ECORRUPT, "key 'general.architecture'"},
    {"a.strings", 4, BT_GGUF_VALUE_ARRAY, 4, BT_EUNSUPPORTED, "arrays of arrays"},
    {"a.strings", 4, 77, 4, BT_ECORRUPT, "key 'a.strings': array elements are of unknown type 77"},
    {"a.strings", 4, BT_GGUF_VALUE_BOOL, 4, BT_ECORRUPT, "key 'a.strings': a bool is 3"},
    {"a.strings", 8, UINT64_MAX, 8, BT_ECORRUPT, "18446744073709551615 string elements"},
    {"a.strings", 8, UINT64_C(1) << 61, 8, BT_ECORRUPT, "key 'a.strings'"},
    {"a.strings", 8, 40, 8, BT_ECORRUPT, "key 'a.strings': string"},
    {"a.strings", 16, UINT64_MAX, 8, BT_ECORRUPT, "key 'a.strings': string 0 of 3"},
    {"a.strings", 27, UINT64_MAX, 8, BT_ECORRUPT, "key 'a.strings': string 1 of 3"},
    {"a.strings", 35, 1u << 20, 8, BT_ECORRUPT, "key 'a.strings': string 2 of 3"},
    {"a.f32s", 8, UINT64_C(1) << 62, 8, BT_ECORRUPT, "key 'a.f32s'"},
    {"a.f32s", 8, (UINT64_C(1) << 62) + 2, 8, BT_ECORRUPT, "key 'a.f32s'"},
    {"a.f32s", 8, 1000, 8, BT_ECORRUPT, "key 'a.f32s': an array of 1000 f32"},
    {"a.f32s", 4, BT_GGUF_VALUE_F64, 4, BT_ECORRUPT, "key"},
    {"t.f32", 0, 0, 4, BT_ECORRUPT, "tensor 't.f32': 0 dimensions"},
    {"t.f32", 0, 5, 4, BT_ECORRUPT, "tensor 't.f32': 5 dimensions"},
    {"t.f32", 0, UINT32_MAX, 4, BT_ECORRUPT, "tensor 't.f32': 4294967295 dimensions"},
    {"t.f32", 0, 1, 4, BT_ECORRUPT, "rows of 3 elements, but Q4_0"},
    {"t.f32", 0, 3, 4, BT_ECORRUPT, "tensor"},
    {"t.f32", 4, 0, 8, BT_ECORRUPT, "tensor 't.f32': dimension 0 is 0"},
    {"t.f32", 12, 0, 8, BT_ECORRUPT, "tensor 't.f32': dimension 1 is 0"},
    {"t.f32", 4, UINT64_MAX, 8, BT_ECORRUPT, "tensor 't.f32': the product"},
    {"t.f32", 4, UINT64_C(1) << 63, 8, BT_ECORRUPT, "tensor 't.f32': the product"},
    {"t.f32", 12, UINT64_C(1) << 62, 8, BT_ECORRUPT, "tensor 't.f32': its size"},
    {"t.f32", 12, UINT64_C(1) << 40, 8, BT_ECORRUPT, "tensor 't.f32': 13194139533312 bytes"},
    {"t.f32", 20, 4, 4, BT_EUNSUPPORTED, "tensor 't.f32': unknown type 4"},
    {"t.f32", 20, 36, 4, BT_EUNSUPPORTED, "unknown type 36"},
    {"t.f32", 20, UINT32_MAX, 4, BT_EUNSUPPORTED, "unknown type 4294967295"},
    {"t.f32", 20, BT_GGUF_Q8_0, 4, BT_ECORRUPT, "rows of 3 elements, but Q8_0 has blocks of 32"},
    {"t.f32", 20, BT_GGUF_F64, 4, BT_ECORRUPT, "overlaps tensor 't.f32'"},
    {"t.f32", 24, 16, 8, BT_ECORRUPT, "tensor 't.f32': offset 16 isn't a multiple"},
    {"t.f32", 24, 1, 8, BT_ECORRUPT, "tensor 't.f32': offset 1 isn't"},
    {"t.f32", 24, 32, 8, BT_ECORRUPT, "overlaps"},
    {"t.f32", 24, 1u << 20, 8, BT_ECORRUPT, "tensor 't.f32': 24 bytes at offset 1048576 end past"},
    {"t.f32", 24, UINT64_MAX - 31, 8, BT_ECORRUPT, "tensor 't.f32': 24 bytes at offset"},
    {"t.q4_1", 24, 0, 8, BT_ECORRUPT, "overlaps"},
    {"t.bf16", 40, 96, 8, BT_ECORRUPT, "tensor 't.bf16' (offset 96) overlaps"},
    {"t.q4_1", 4, 65, 8, BT_ECORRUPT, "rows of 65 elements, but Q4_1 has blocks of 32"},
    {"t.q4_1", 20, BT_GGUF_Q6_K, 4, BT_ECORRUPT, "rows of 64 elements, but Q6_K"},
    {"t.bf16", 28, 6, 8, BT_ECORRUPT, "tensor 't.bf16': 12 bytes at offset 128 end past"},
    {"t.bf16", 36, BT_GGUF_F32, 4, BT_ECORRUPT, "tensor 't.bf16': 20 bytes at offset 128"},
    {"t.bf16", 40, 160, 8, BT_ECORRUPT, "tensor 't.bf16': 10 bytes at offset 160 end past"},
};

static void broken_fields_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LEN(patches); i++) {
        const patch *row = &patches[i];
        image made = make_image();
        size_t at = row->skip;
        if (row->after) {
            at += find_text(&made, row->after, 0) + strlen(row->after);
        }
        for (size_t k = 0; k < row->n_bytes; k++) {
            made.bytes[at + k] = (uint8_t)(row->value >> (8 * k));
        }
        bt_gguf *gguf = NULL;
        bt_error err = {""};
        const bt_status status = open_bytes(made.bytes, made.n, &gguf, &err);
        if (status != row->status || !strstr(err.text, row->text)) {
            fail_msg("patch %zu: status %s, '%s' doesn't say '%s'", i, bt_status_name(status),
                     err.text, row->text);
        }
        bt_gguf_close(gguf);
        free(made.bytes);
    }
}

static void duplicates_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *from;
        const char *to;
        const char *text;
    } rows[] = {
        {"a.f32", "a.u32", "key 'a.u32' is there twice"},
        {"a.i32", "a.f32", "key 'a.f32' is there twice"},
        {"t.bf16", "t.q4_1", "tensor 't.q4_1' is there twice"},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        image made = make_image();
        memcpy(made.bytes + find_text(&made, rows[i].from, 0), rows[i].to, strlen(rows[i].to));
        bt_gguf *gguf = NULL;
        bt_error err = {""};
        assert_int_equal(open_bytes(made.bytes, made.n, &gguf, &err), BT_ECORRUPT);
        assert_non_null(strstr(err.text, rows[i].text));
        free(made.bytes);
    }
}

static bt_status open_with_alignment(uint32_t alignment, const char *tensor_name, bt_error *err)
{
    static const uint64_t dims[] = {2};
    static const float data[] = {1, 2};
    bt_gguf_writer *writer = bt_gguf_writer_begin();
    assert_non_null(writer);
    bt_gguf_writer_set_version(writer, 2);
    bt_gguf_writer_set_alignment(writer, alignment);
    bt_gguf_writer_add_tensor(writer, tensor_name, BT_GGUF_F32, dims, 1, data);
    image made;
    bt_gguf *gguf = NULL;
    assert_int_equal(bt_gguf_writer_finish_bytes(writer, &made.bytes, &made.n), BT_OK);
    const bt_status status = open_bytes(made.bytes, made.n, &gguf, err);
    bt_gguf_close(gguf);
    free(made.bytes);
    return status;
}

static void alignment_and_names_have_limits(void **state)
{
    (void)state;
    static const uint32_t good[] = {8, 16, 64, 4096};
    static const uint32_t bad[] = {1, 4, 24, 1u << 21};
    char name[300];
    memset(name, 'n', sizeof name);
    name[256] = '\0';
    bt_error err = {""};
    for (size_t i = 0; i < BT_ARRAY_LEN(good); i++) {
        assert_int_equal(open_with_alignment(good[i], "t", &err), BT_OK);
        assert_int_equal(open_with_alignment(bad[i], "t", &err), BT_ECORRUPT);
        assert_non_null(strstr(err.text, "general.alignment"));
    }
    assert_int_equal(open_with_alignment(8, name, &err), BT_ECORRUPT);
    assert_non_null(strstr(err.text, "its name has 256 bytes"));
    name[255] = '\0';
    assert_int_equal(open_with_alignment(8, name, &err), BT_OK);
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    char path[256];
    bt_test_path("fifo", path, sizeof path);
    bt_gguf *gguf = NULL;
    bt_error err = {""};
    assert_int_equal(bt_gguf_open("/no/such/file.gguf", &gguf, &err), BT_EIO);
    assert_string_equal(err.text,
                        "model file '/no/such/file.gguf': cannot open: No such file or directory");
    assert_int_equal(bt_gguf_open("/", &gguf, &err), BT_EIO);
    assert_int_equal(bt_gguf_open("/dev/zero", &gguf, &err), BT_EIO);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(bt_gguf_open(path, &gguf, &err), BT_EIO); /* and doesn't hang */
    (void)unlink(path);
    assert_int_equal(open_bytes((const uint8_t *)"", 0, &gguf, &err), BT_ECORRUPT);
    assert_non_null(strstr(err.text, "empty"));
    assert_null(gguf);
    bt_gguf_close(NULL);
}

static void demo_model_is_read(void **state)
{
    (void)state;
    const char *path = getenv("BATON_TEST_MODEL");
    if (!path) {
        skip();
    }
    bt_gguf *gguf = NULL;
    assert_int_equal(bt_gguf_open(path, &gguf, NULL), BT_OK);
    assert_int_equal(bt_gguf_tensor_count(gguf), 272);
    assert_non_null(bt_gguf_find_tensor(gguf, "token_embd.weight"));
    bt_gguf_close(gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_back),
        cmocka_unit_test(arrays_are_read_back),
        cmocka_unit_test(tensors_are_read_back),
        cmocka_unit_test(wrong_questions_are_answered_with_the_key),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(a_file_with_any_byte_changed_does_no_harm),
        cmocka_unit_test(broken_fields_are_refused_by_name),
        cmocka_unit_test(duplicates_are_refused_by_name),
        cmocka_unit_test(alignment_and_names_have_limits),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(demo_model_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
