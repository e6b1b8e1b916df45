/* SPDX-License-Identifier: Apache-2.0 */
/* How it works: open() maps the file and walks it once with a cursor that never passes the
 * end. Each entry keeps a pointer to its value in the mapping; names are copied into one
 * buffer to give them a NUL. Two arrays of pointers, sorted by name, serve look-ups and
 * find duplicates; that of the tensors is first sorted by offset, to find overlaps.
 *
 * What bounds a hostile file:
 *  1. A count is believed only if that many smallest items fit into the rest of the file,
 *     so no allocation exceeds a small multiple of the file's size.
 *  2. Every addition and product of file values is checked.
 *  3. Nothing nests: arrays of arrays are refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/gguf_int.h"

enum {
    NAME_BYTES_MAX = 255,  /* of a tensor */
    KEY_BYTES_MAX = 65535, /* the specification's limit */
    KEY_SHOWN_MAX = 80,    /* of a key in an error text */
    DEFAULT_ALIGNMENT = 32,
    ALIGNMENT_MIN = 8,
    ALIGNMENT_MAX = 1 << 20,
    ENTRY_BYTES_MIN = 8 + 1 + 4 + 1,          /* key length, key, type, value */
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* name length, name, dims, type, offset */
};

typedef struct cursor {
    const uint8_t *bytes;
    size_t len;
    size_t at; /* at <= len */
} cursor;

/* --- cursor ------------------------------------------------------------------------ */

static size_t left(const cursor *in)
{
    return in->len - in->at;
}

static bool take(cursor *in, size_t n, const uint8_t **out)
{
    if (n > left(in)) {
        return false;
    }
    *out = in->bytes + in->at;
    in->at += n;
    return true;
}

static bool take_u32(cursor *in, uint32_t *out)
{
    const uint8_t *bytes;
    if (!take(in, 4, &bytes)) {
        return false;
    }
    *out = (uint32_t)bt_gguf_load_le(bytes, 4);
    return true;
}

static bool take_u64(cursor *in, uint64_t *out)
{
    const uint8_t *bytes;
    if (!take(in, 8, &bytes)) {
        return false;
    }
    *out = bt_gguf_load_le(bytes, 8);
    return true;
}

static bool take_string(cursor *in, bt_gguf_string *out)
{
    return bt_gguf_take_string(in->bytes, in->len, &in->at, out);
}

/* --- names ------------------------------------------------------------------------- */

/* Reads a name and appends it to gguf->names; `what` and `idx` are for the error text. */
static bt_status take_name(bt_gguf *gguf, cursor *in, const char *what, size_t idx, size_t max_len,
                           size_t *name_at, bt_error *err)
{
    const size_t start = in->at;
    bt_gguf_string name;
    if (!take_string(in, &name)) {
        return bt_error_set(err, BT_ECORRUPT,
                            "%s %zu (byte %zu): its name runs past the file's end", what, idx,
                            start);
    }
    if (name.len == 0 || name.len > max_len) {
        return bt_error_set(err, BT_ECORRUPT,
                            "%s %zu (byte %zu): its name has %zu bytes, 1 to %zu are allowed", what,
                            idx, start, name.len, max_len);
    }
    for (size_t i = 0; i < name.len; i++) {
        if (name.bytes[i] < 0x20 || name.bytes[i] > 0x7E) {
            return bt_error_set(err, BT_ECORRUPT,
                                "%s %zu (byte %zu): its name has byte 0x%02X, which isn't "
                                "printable ASCII",
                                what, idx, start, (unsigned)(unsigned char)name.bytes[i]);
        }
    }
    const size_t need = gguf->names_len + name.len + 1; /* bounded by twice the file's size */
    if (need > gguf->names_capacity) {
        const size_t capacity = bt_size_max(need, gguf->names_capacity * 2);
        char *grown = realloc(gguf->names, capacity);
        if (!grown) {
            return bt_error_set(err, BT_ENOMEM, "out of memory for names");
        }
        gguf->names = grown;
        gguf->names_capacity = capacity;
    }
    *name_at = gguf->names_len;
    memcpy(gguf->names + gguf->names_len, name.bytes, name.len);
    gguf->names[need - 1] = '\0';
    gguf->names_len = need;
    return BT_OK;
}

/* --- metadata ---------------------------------------------------------------------- */

static bt_status check_bools(const uint8_t *bytes, uint64_t n, const char *key, bt_error *err)
{
    for (uint64_t i = 0; i < n; i++) {
        if (bytes[i] > 1) {
            return bt_error_set(err, BT_ECORRUPT, "key '%.*s': a bool is %u, not 0 or 1",
                                KEY_SHOWN_MAX, key, (unsigned)bytes[i]);
        }
    }
    return BT_OK;
}

static bt_status parse_array(cursor *in, const char *key, bt_gguf_array *out, bt_error *err)
{
    uint32_t type;
    uint64_t n;
    if (!take_u32(in, &type) || !take_u64(in, &n)) {
        return bt_error_set(err, BT_ECORRUPT, "key '%.*s': the array runs past the file's end",
                            KEY_SHOWN_MAX, key);
    }
    if (type >= BT_GGUF_VALUE_TYPES) {
        return bt_error_set(err, BT_ECORRUPT,
                            "key '%.*s': array elements are of unknown type %" PRIu32,
                            KEY_SHOWN_MAX, key, type);
    }
    if (type == BT_GGUF_VALUE_ARRAY) {
        return bt_error_set(err, BT_EUNSUPPORTED, "key '%.*s': arrays of arrays aren't supported",
                            KEY_SHOWN_MAX, key);
    }
    const size_t smallest = type == BT_GGUF_VALUE_STRING ? 8 : bt_gguf_value_bytes[type];
    if (n > left(in) / smallest) {
        return bt_error_set(err, BT_ECORRUPT,
                            "key '%.*s': an array of %" PRIu64 " %s elements runs past the "
                            "file's end",
                            KEY_SHOWN_MAX, key, n, bt_gguf_value_names[type]);
    }
    const size_t start = in->at;
    const uint8_t *bytes = in->bytes + start;
    if (type == BT_GGUF_VALUE_STRING) {
        bt_gguf_string ignored;
        for (uint64_t i = 0; i < n; i++) {
            if (!take_string(in, &ignored)) {
                return bt_error_set(err, BT_ECORRUPT,
                                    "key '%.*s': string %" PRIu64 " of %" PRIu64
                                    " runs past the file's end",
                                    KEY_SHOWN_MAX, key, i, n);
            }
        }
    } else {
        in->at += (size_t)n * smallest;
    }
    *out = (bt_gguf_array){(bt_gguf_value_type)type, n, bytes, in->at - start};
    return type == BT_GGUF_VALUE_BOOL ? check_bools(bytes, n, key, err) : BT_OK;
}

static bt_status parse_entry(bt_gguf *gguf, cursor *in, size_t idx, bt_error *err)
{
    gguf_entry *made = &gguf->entries[idx];
    bt_status status = take_name(gguf, in, "key", idx, KEY_BYTES_MAX, &made->key_at, err);
    if (status != BT_OK) {
        return status;
    }
    const char *key = gguf->names + made->key_at;
    uint32_t type;
    if (!take_u32(in, &type)) {
        return bt_error_set(err, BT_ECORRUPT, "key '%.*s': the file ends before its type",
                            KEY_SHOWN_MAX, key);
    }
    if (type >= BT_GGUF_VALUE_TYPES) {
        return bt_error_set(err, BT_ECORRUPT, "key '%.*s': unknown value type %" PRIu32,
                            KEY_SHOWN_MAX, key, type);
    }
    made->type = (bt_gguf_value_type)type;
    if (type == BT_GGUF_VALUE_ARRAY) {
        return parse_array(in, key, &made->array, err);
    }
    const bool is_string = type == BT_GGUF_VALUE_STRING;
    if (is_string ? !take_string(in, &made->string)
                  : !take(in, bt_gguf_value_bytes[type], &made->value)) {
        return bt_error_set(err, BT_ECORRUPT, "key '%.*s': its %s runs past the file's end",
                            KEY_SHOWN_MAX, key, bt_gguf_value_names[type]);
    }
    return type == BT_GGUF_VALUE_BOOL ? check_bools(made->value, 1, key, err) : BT_OK;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp((*(const gguf_entry *const *)a)->key, (*(const gguf_entry *const *)b)->key);
}

static bt_status parse_entries(bt_gguf *gguf, cursor *in, uint64_t count, bt_error *err)
{
    if (count > left(in) / ENTRY_BYTES_MIN) {
        return bt_error_set(err, BT_ECORRUPT,
                            "the header says %" PRIu64 " keys, more than the file has room for",
                            count);
    }
    gguf->entries = calloc((size_t)count + 1, sizeof *gguf->entries);
    gguf->entries_by_key = calloc((size_t)count + 1, sizeof *gguf->entries_by_key);
    if (!gguf->entries || !gguf->entries_by_key) {
        return bt_error_set(err, BT_ENOMEM, "out of memory for %" PRIu64 " keys", count);
    }
    for (size_t i = 0; i < count; i++) {
        const bt_status status = parse_entry(gguf, in, i, err);
        if (status != BT_OK) {
            return status;
        }
    }
    gguf->n_entries = (size_t)count;
    for (size_t i = 0; i < count; i++) {
        gguf->entries[i].key = gguf->names + gguf->entries[i].key_at; /* until names grows */
        gguf->entries_by_key[i] = &gguf->entries[i];
    }
    qsort(gguf->entries_by_key, (size_t)count, sizeof *gguf->entries_by_key, compare_keys);
    for (size_t i = 1; i < count; i++) {
        if (compare_keys(&gguf->entries_by_key[i - 1], &gguf->entries_by_key[i]) == 0) {
            return bt_error_set(err, BT_ECORRUPT, "key '%.*s' is there twice", KEY_SHOWN_MAX,
                                gguf->entries_by_key[i]->key);
        }
    }
    return BT_OK;
}

/* --- tensors ----------------------------------------------------------------------- */

static bt_status parse_shape(cursor *in, const char *name, bt_gguf_tensor *out, bt_error *err)
{
    if (!take_u32(in, &out->n_dims)) {
        return bt_error_set(err, BT_ECORRUPT, "tensor '%s': the file ends before its shape", name);
    }
    if (out->n_dims < 1 || out->n_dims > BT_GGUF_DIMS_MAX) {
        return bt_error_set(err, BT_ECORRUPT,
                            "tensor '%s': %" PRIu32 " dimensions, 1 to %d are allowed", name,
                            out->n_dims, BT_GGUF_DIMS_MAX);
    }
    size_t n_elements = 1;
    for (uint32_t i = 0; i < BT_GGUF_DIMS_MAX; i++) {
        out->dims[i] = 1;
        if (i < out->n_dims && !take_u64(in, &out->dims[i])) {
            return bt_error_set(err, BT_ECORRUPT, "tensor '%s': the file ends inside its shape",
                                name);
        }
        if (out->dims[i] == 0) {
            return bt_error_set(err, BT_ECORRUPT, "tensor '%s': dimension %" PRIu32 " is 0", name,
                                i);
        }
        if (!bt_size_mul(n_elements, (size_t)out->dims[i], &n_elements)) {
            return bt_error_set(err, BT_ECORRUPT,
                                "tensor '%s': the product of its dimensions doesn't fit 64 bits",
                                name);
        }
    }
    out->n_elements = n_elements;
    return BT_OK;
}

static bt_status parse_tensor(bt_gguf *gguf, cursor *in, size_t idx, bt_error *err)
{
    gguf_tensor *made = &gguf->tensors[idx];
    bt_gguf_tensor *shown = &made->shown;
    bt_status status = take_name(gguf, in, "tensor", idx, NAME_BYTES_MAX, &made->name_at, err);
    if (status != BT_OK) {
        return status;
    }
    const char *name = gguf->names + made->name_at;
    status = parse_shape(in, name, shown, err);
    if (status != BT_OK) {
        return status;
    }
    uint32_t number;
    if (!take_u32(in, &number) || !take_u64(in, &made->offset)) {
        return bt_error_set(err, BT_ECORRUPT,
                            "tensor '%s': the file ends before its type and offset", name);
    }
    const uint32_t block = bt_gguf_type_block_elements((bt_gguf_type)number);
    if (block == 0) {
        return bt_error_set(err, BT_EUNSUPPORTED, "tensor '%s': unknown type %" PRIu32, name,
                            number);
    }
    shown->type = (bt_gguf_type)number;
    if (shown->dims[0] % block != 0) {
        return bt_error_set(err, BT_ECORRUPT,
                            "tensor '%s': rows of %" PRIu64 " elements, but %s has blocks of "
                            "%" PRIu32,
                            name, shown->dims[0], bt_gguf_type_name(shown->type), block);
    }
    if (!bt_size_mul((size_t)(shown->n_elements / block), bt_gguf_type_block_bytes(shown->type),
                     &shown->n_bytes)) {
        return bt_error_set(err, BT_ECORRUPT, "tensor '%s': its size doesn't fit 64 bits", name);
    }
    return BT_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const gguf_tensor *const *)a)->shown.name,
                  (*(const gguf_tensor *const *)b)->shown.name);
}

static int compare_offsets(const void *a, const void *b)
{
    const gguf_tensor *x = *(const gguf_tensor *const *)a;
    const gguf_tensor *y = *(const gguf_tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Every tensor aligned and inside the file; sets the data pointers. */
static bt_status place_tensors(bt_gguf *gguf, size_t data_at, uint32_t alignment, bt_error *err)
{
    const size_t room = data_at < gguf->file_bytes ? gguf->file_bytes - data_at : 0;
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        gguf_tensor *placed = &gguf->tensors[i];
        const char *name = placed->shown.name;
        if (placed->offset % alignment != 0) {
            return bt_error_set(err, BT_ECORRUPT,
                                "tensor '%s': offset %" PRIu64 " isn't a multiple of the alignment "
                                "%" PRIu32,
                                name, placed->offset, alignment);
        }
        if (placed->offset > room || placed->shown.n_bytes > room - placed->offset) {
            return bt_error_set(err, BT_ECORRUPT,
                                "tensor '%s': %zu bytes at offset %" PRIu64 " end past the file's "
                                "%zu bytes of tensor data (is the file cut?)",
                                name, placed->shown.n_bytes, placed->offset, room);
        }
        placed->shown.data = gguf->file + data_at + placed->offset;
    }
    return BT_OK;
}

/* Uses tensors_by_name as room to sort in; parse_tensors() sorts it by name afterwards. */
static bt_status check_overlaps(bt_gguf *gguf, bt_error *err)
{
    const gguf_tensor **sorted = gguf->tensors_by_name;
    qsort(sorted, gguf->n_tensors, sizeof *sorted, compare_offsets);
    for (size_t i = 1; i < gguf->n_tensors; i++) {
        const gguf_tensor *before = sorted[i - 1];
        if (before->shown.n_bytes > sorted[i]->offset - before->offset) {
            return bt_error_set(err, BT_ECORRUPT,
                                "tensor '%.80s' (offset %" PRIu64 ") overlaps tensor '%.80s' "
                                "(offset %" PRIu64 ", %zu bytes)",
                                sorted[i]->shown.name, sorted[i]->offset, before->shown.name,
                                before->offset, before->shown.n_bytes);
        }
    }
    return BT_OK;
}

static bt_status parse_tensors(bt_gguf *gguf, cursor *in, uint64_t count, bt_error *err)
{
    if (count > left(in) / TENSOR_BYTES_MIN) {
        return bt_error_set(err, BT_ECORRUPT,
                            "the header says %" PRIu64 " tensors, more than the file has room for",
                            count);
    }
    gguf->tensors = calloc((size_t)count + 1, sizeof *gguf->tensors);
    gguf->tensors_by_name = calloc((size_t)count + 1, sizeof *gguf->tensors_by_name);
    if (!gguf->tensors || !gguf->tensors_by_name) {
        return bt_error_set(err, BT_ENOMEM, "out of memory for %" PRIu64 " tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        const bt_status status = parse_tensor(gguf, in, i, err);
        if (status != BT_OK) {
            return status;
        }
    }
    gguf->n_tensors = (size_t)count;
    return BT_OK;
}

static bt_status read_alignment(const bt_gguf *gguf, uint32_t *out, bt_error *err)
{
    const bt_status status =
        bt_gguf_get_u32_or(gguf, "general.alignment", DEFAULT_ALIGNMENT, out, err);
    if (status != BT_OK) {
        return BT_ECORRUPT;
    }
    if (*out < ALIGNMENT_MIN || *out > ALIGNMENT_MAX || (*out & (*out - 1)) != 0) {
        return bt_error_set(err, BT_ECORRUPT,
                            "general.alignment is %" PRIu32 ", not a power of two of %d to %d",
                            *out, ALIGNMENT_MIN, ALIGNMENT_MAX);
    }
    return BT_OK;
}

/* --- the whole file ---------------------------------------------------------------- */

static bt_status parse_header(cursor *in, uint64_t *n_tensors, uint64_t *n_entries, bt_error *err)
{
    const uint8_t *magic;
    uint32_t version;
    if (!take(in, 4, &magic) || memcmp(magic, "GGUF", 4) != 0) {
        return bt_error_set(err, BT_ECORRUPT, "not a GGUF file (it doesn't begin with 'GGUF')");
    }
    if (!take_u32(in, &version)) {
        return bt_error_set(err, BT_ECORRUPT, "the file ends inside the header");
    }
    if (version != 0 && (version & 0xFFFF) == 0) {
        return bt_error_set(err, BT_EUNSUPPORTED, "big-endian GGUF files aren't supported");
    }
    if (version != 2 && version != 3) {
        return bt_error_set(err, BT_EUNSUPPORTED,
                            "GGUF version %" PRIu32 " isn't supported (2 and 3 are)", version);
    }
    if (!take_u64(in, n_tensors) || !take_u64(in, n_entries)) {
        return bt_error_set(err, BT_ECORRUPT, "the file ends inside the header");
    }
    return BT_OK;
}

static bt_status parse_file(bt_gguf *gguf, bt_error *err)
{
    cursor in = {gguf->file, gguf->file_bytes, 0};
    uint64_t n_tensors = 0;
    uint64_t n_entries = 0;
    uint32_t alignment = DEFAULT_ALIGNMENT;
    bt_status status = parse_header(&in, &n_tensors, &n_entries, err);
    if (status == BT_OK) {
        status = parse_entries(gguf, &in, n_entries, err);
    }
    if (status == BT_OK) {
        status = read_alignment(gguf, &alignment, err);
    }
    if (status == BT_OK) {
        status = parse_tensors(gguf, &in, n_tensors, err);
    }
    if (status != BT_OK) {
        return status;
    }
    /* names has stopped growing: pointers into it may be taken. */
    for (size_t i = 0; i < gguf->n_entries; i++) {
        gguf->entries[i].key = gguf->names + gguf->entries[i].key_at;
    }
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        gguf->tensors[i].shown.name = gguf->names + gguf->tensors[i].name_at;
        gguf->tensors_by_name[i] = &gguf->tensors[i];
    }
    gguf->metadata_bytes = in.at;
    status = place_tensors(gguf, bt_align_up(in.at, alignment), alignment, err);
    if (status == BT_OK) {
        status = check_overlaps(gguf, err);
    }
    if (status != BT_OK) {
        return status;
    }
    qsort(gguf->tensors_by_name, gguf->n_tensors, sizeof *gguf->tensors_by_name, compare_names);
    for (size_t i = 1; i < gguf->n_tensors; i++) {
        if (compare_names(&gguf->tensors_by_name[i - 1], &gguf->tensors_by_name[i]) == 0) {
            return bt_error_set(err, BT_ECORRUPT, "tensor '%s' is there twice",
                                gguf->tensors_by_name[i]->shown.name);
        }
    }
    return BT_OK;
}

static bt_status map_file(const char *path, bt_gguf *gguf, bt_error *err)
{
    /* O_NONBLOCK: opening a FIFO must not hang; regular files ignore it. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return bt_error_set(err, BT_EIO, "cannot open: %s", strerror(errno));
    }
    struct stat attributes;
    bt_status status = BT_OK;
    void *mapped = MAP_FAILED;
    if (fstat(fd, &attributes) != 0) {
        status = bt_error_set(err, BT_EIO, "cannot read its size: %s", strerror(errno));
    } else if (!S_ISREG(attributes.st_mode)) {
        status = bt_error_set(err, BT_EIO, "not a regular file");
    } else if (attributes.st_size == 0) {
        status = bt_error_set(err, BT_ECORRUPT, "the file is empty");
    } else {
        mapped = mmap(NULL, (size_t)attributes.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (mapped == MAP_FAILED) {
            status = bt_error_set(err, BT_EIO, "cannot map: %s", strerror(errno));
        }
    }
    close(fd);
    if (status == BT_OK) {
        gguf->file = mapped;
        gguf->file_bytes = (size_t)attributes.st_size;
    }
    return status;
}

bt_status bt_gguf_open(const char *path, bt_gguf **out, bt_error *err)
{
    bt_gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    bt_status status = map_file(path, gguf, err);
    if (status == BT_OK) {
        status = parse_file(gguf, err);
    }
    if (status != BT_OK) {
        bt_gguf_close(gguf);
        const size_t len = strlen(path);
        const size_t shown = bt_size_min(len, 60);
        bt_error_prefix(err, "model file '%s%s'", shown < len ? "..." : "", path + len - shown);
        return status;
    }
    *out = gguf;
    return BT_OK;
}

void bt_gguf_close(bt_gguf *gguf)
{
    if (!gguf) {
        return;
    }
    if (gguf->file) {
        munmap((void *)(uintptr_t)gguf->file, gguf->file_bytes);
    }
    free(gguf->names);
    free(gguf->entries);
    free(gguf->entries_by_key);
    free(gguf->tensors);
    free(gguf->tensors_by_name);
    free(gguf);
}
