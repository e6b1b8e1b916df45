/* SPDX-License-Identifier: Apache-2.0 */
/* A pre-tokenizer is a list of stages. Each stage cuts every span that the stage before left
 * over at the matches of its pattern; matches and what is between them go on as spans of
 * their own. A pattern sees its span alone: what is before or after is a text's edge to it.
 * This is what the "Sequence" of "Split" (isolated), "Digits" and "ByteLevel" steps in a
 * tokenizer.json does, and Oniguruma is what runs the patterns there. Patterns are facts
 * of the models.
 *
 * Known difference: Debian's Oniguruma 6.9.8 has the character classes of Unicode 14. Letters
 * and digits that were assigned later (checked over all of Unicode: no others differ) count
 * as symbols here, and as what they are in a newer build of the reference.
 */
#include <limits.h>
#include <oniguruma.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/check.h"
#include "engine/tokenizer_int.h"

enum { STAGES_MAX = 6 };

#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_PATTERN                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"                      \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2_PATTERN                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"                           \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DIGIT_PATTERN "\\p{N}"

typedef struct pre_row {
    const char *name;
    const char *patterns[STAGES_MAX];
    bool nfc;
    bool whole_words;
    bool adds_bos; /* unless the metadata says */
} pre_row;

static const pre_row pre_rows[] = {
    {.name = "gpt-2", .patterns = {GPT2_PATTERN}},
    {.name = "smollm", .patterns = {DIGIT_PATTERN, GPT2_PATTERN}},
    {.name = "starcoder", .patterns = {DIGIT_PATTERN, GPT2_PATTERN}},
    {.name = "refact", .patterns = {DIGIT_PATTERN, GPT2_PATTERN}},
    {.name = "llama-bpe", .patterns = {LLAMA3_PATTERN}, .whole_words = true, .adds_bos = true},
    {.name = "qwen2", .patterns = {QWEN2_PATTERN}, .nfc = true},
    {.name = "deepseek-coder",
     .patterns = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
                  "[\xE4\xB8\x80-\xE9\xBE\xA5\xE0\xA0\x80-\xE4\xB8\x80\xEA\xB0\x80-\xED\x9F\xBF]+",
                  DIGIT_PATTERN}},
};

struct tokenizer_splitter {
    const pre_row *row;
    size_t n_stages;
    regex_t *stages[STAGES_MAX];
};

/* --- create ------------------------------------------------------------------------ */

static const pre_row *find_row(bt_gguf_string pre)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(pre_rows); i++) {
        if (pre.len == strlen(pre_rows[i].name) &&
            memcmp(pre.bytes, pre_rows[i].name, pre.len) == 0) {
            return &pre_rows[i];
        }
    }
    return NULL;
}

static bt_status unknown_pre(bt_gguf_string pre, bt_error *err)
{
    char known[160] = "";
    for (size_t i = 0; i < BT_ARRAY_LEN(pre_rows); i++) {
        strncat(known, i == 0 ? "" : ", ", sizeof known - strlen(known) - 1);
        strncat(known, pre_rows[i].name, sizeof known - strlen(known) - 1);
    }
    return bt_error_set(err, BT_EUNSUPPORTED,
                        "the model's pre-tokenizer '%.*s' (tokenizer.ggml.pre) isn't supported; "
                        "supported are: %s",
                        (int)bt_size_min(pre.len, 40), pre.bytes, known);
}

bt_status tokenizer_splitter_create(bt_gguf_string pre, tokenizer_splitter **out, bt_error *err)
{
    const pre_row *row = find_row(pre);
    if (!row) {
        return unknown_pre(pre, err);
    }
    tokenizer_splitter *splitter = calloc(1, sizeof *splitter);
    if (!splitter) {
        return bt_error_set(err, BT_ENOMEM, "out of memory for the pre-tokenizer");
    }
    splitter->row = row;
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    if (onig_initialize(encodings, BT_ARRAY_LEN(encodings)) != ONIG_NORMAL) {
        tokenizer_splitter_destroy(splitter);
        return bt_error_set(err, BT_EINTERNAL, "the regular expression library doesn't start");
    }
    while (splitter->n_stages < STAGES_MAX && row->patterns[splitter->n_stages]) {
        const char *pattern = row->patterns[splitter->n_stages];
        const int rc = onig_new(&splitter->stages[splitter->n_stages], (const OnigUChar *)pattern,
                                (const OnigUChar *)pattern + strlen(pattern), ONIG_OPTION_NONE,
                                ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, NULL);
        if (rc != ONIG_NORMAL) {
            tokenizer_splitter_destroy(splitter);
            return bt_error_set(err, rc == ONIGERR_MEMORY ? BT_ENOMEM : BT_EINTERNAL,
                                "the pre-tokenizer's pattern doesn't compile (code %d)", rc);
        }
        splitter->n_stages++;
    }
    *out = splitter;
    return BT_OK;
}

void tokenizer_splitter_destroy(tokenizer_splitter *splitter)
{
    if (!splitter) {
        return;
    }
    for (size_t i = 0; i < splitter->n_stages; i++) {
        onig_free(splitter->stages[i]);
    }
    free(splitter);
}

bool tokenizer_splitter_whole_words(const tokenizer_splitter *splitter)
{
    return splitter->row->whole_words;
}

bool tokenizer_splitter_adds_bos(const tokenizer_splitter *splitter)
{
    return splitter->row->adds_bos;
}

/* --- NFC --------------------------------------------------------------------------- */

/* utf8proc decomposes and composes; between the two, marks are put in canonical order here,
 * since utf8proc's own pass is quadratic in a run of marks, which a request could send. */

enum { FIRST_UNSTABLE = 0x300 }; /* characters below are in NFC, whatever follows them */

typedef struct mark {
    utf8proc_int32_t character;
    utf8proc_propval_t order;
    size_t at;
} mark;

static int compare_marks(const void *a, const void *b)
{
    const mark *x = a;
    const mark *y = b;
    if (x->order != y->order) {
        return x->order < y->order ? -1 : 1;
    }
    return (x->at > y->at) - (x->at < y->at);
}

static bt_status sort_marks(utf8proc_int32_t *characters, size_t n)
{
    mark *marks = malloc(n * sizeof *marks);
    if (!marks) {
        return BT_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        marks[i] = (mark){characters[i], utf8proc_get_property(characters[i])->combining_class, i};
    }
    qsort(marks, n, sizeof *marks, compare_marks);
    for (size_t i = 0; i < n; i++) {
        characters[i] = marks[i].character;
    }
    free(marks);
    return BT_OK;
}

static bt_status order_marks(utf8proc_int32_t *characters, size_t n)
{
    size_t start = 0; /* of a run of marks */
    for (size_t i = 0; i <= n; i++) {
        if (i < n && utf8proc_get_property(characters[i])->combining_class != 0) {
            continue;
        }
        if (i - start > 1) {
            const bt_status status = sort_marks(characters + start, i - start);
            if (status != BT_OK) {
                return status;
            }
        }
        start = i + 1;
    }
    return BT_OK;
}

static bool is_stable(const char *text, size_t len)
{
    size_t at = 0;
    while (at < len) {
        if (tokenizer_next_char(text, &at) >= FIRST_UNSTABLE) {
            return false;
        }
    }
    return true;
}

/* Full canonical decomposition: at most 4 characters for one (The Unicode Standard, UAX 15).
 * Gives their number; `out` has room for 4 * len. */
static size_t decompose(const char *text, size_t len, utf8proc_int32_t *out)
{
    size_t n = 0;
    size_t at = 0;
    while (at < len) {
        const utf8proc_int32_t character = (utf8proc_int32_t)tokenizer_next_char(text, &at);
        int boundary = 0;
        const utf8proc_ssize_t made =
            utf8proc_decompose_char(character, out + n, 4, UTF8PROC_DECOMPOSE, &boundary);
        BT_ASSERT(made >= 1 && made <= 4);
        n += (size_t)made;
    }
    return n;
}

static bt_status compose(const char *text, size_t len, bt_text *storage)
{
    size_t room;
    if (!bt_size_mul(len, 4 * sizeof(utf8proc_int32_t), &room)) {
        return BT_ENOMEM;
    }
    utf8proc_int32_t *characters = malloc(room);
    if (!characters) {
        return BT_ENOMEM;
    }
    const size_t n = decompose(text, len, characters);
    bt_status status = order_marks(characters, n);
    if (status == BT_OK) {
        const utf8proc_ssize_t composed = utf8proc_normalize_utf32(
            characters, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        BT_ASSERT(composed >= 0);
        for (utf8proc_ssize_t i = 0; i < composed && status == BT_OK; i++) {
            char bytes[4];
            const size_t n_bytes =
                (size_t)utf8proc_encode_char(characters[i], (utf8proc_uint8_t *)bytes);
            status = bt_text_append(storage, bytes, n_bytes);
        }
    }
    free(characters);
    return status;
}

bt_status tokenizer_normalize(const tokenizer_splitter *splitter, const char *text, size_t len,
                              bt_text *storage, const char **out_text, size_t *out_len)
{
    if (!splitter->row->nfc || is_stable(text, len)) {
        *out_text = text;
        *out_len = len;
        return BT_OK;
    }
    const bt_status status = compose(text, len, storage);
    if (status == BT_OK) {
        *out_text = storage->bytes;
        *out_len = storage->len;
    }
    return status;
}

/* --- split ------------------------------------------------------------------------- */

static bt_status append_span(tokenizer_spans *spans, size_t start, size_t end)
{
    if (start == end) {
        return BT_OK;
    }
    if (spans->n == spans->capacity) {
        const size_t capacity = spans->capacity * 2 + 64;
        tokenizer_span *grown = realloc(spans->items, capacity * sizeof *grown);
        if (!grown) {
            return BT_ENOMEM;
        }
        spans->items = grown;
        spans->capacity = capacity;
    }
    spans->items[spans->n++] = (tokenizer_span){start, end};
    return BT_OK;
}

/* Cuts one span at the pattern's matches. */
static bt_status split_span(regex_t *pattern, OnigRegion *region, OnigMatchParam *param,
                            const char *text, tokenizer_span span, tokenizer_spans *out)
{
    const OnigUChar *start = (const OnigUChar *)text + span.start;
    const OnigUChar *end = (const OnigUChar *)text + span.end;
    size_t at = span.start; /* all before is in *out */
    while (at < span.end) {
        const OnigUChar *from = (const OnigUChar *)text + at;
        const int found =
            onig_search_with_param(pattern, start, end, from, end, region, ONIG_OPTION_NONE, param);
        if (found == ONIG_MISMATCH) {
            break;
        }
        if (found < 0) {
            return found == ONIGERR_MEMORY ? BT_ENOMEM : BT_EINTERNAL;
        }
        const size_t match_start = span.start + (size_t)region->beg[0];
        const size_t match_end = span.start + (size_t)region->end[0];
        BT_ASSERT(match_end > match_start); /* no pattern here matches nothing */
        bt_status status = append_span(out, at, match_start);
        if (status == BT_OK) {
            status = append_span(out, match_start, match_end);
        }
        if (status != BT_OK) {
            return status;
        }
        at = match_end;
    }
    return append_span(out, at, span.end);
}

bt_status tokenizer_split(const tokenizer_splitter *splitter, const char *text, size_t len,
                          tokenizer_spans *spans)
{
    bt_status status = append_span(spans, 0, len);
    OnigRegion *region = onig_region_new();
    OnigMatchParam *param = onig_new_match_param();
    tokenizer_spans before = {0};
    if (!region || !param) {
        status = BT_ENOMEM;
    } else {
        /* The patterns backtrack over a run at most once, so long words are no reason to stop. */
        (void)onig_initialize_match_param(param);
        (void)onig_set_retry_limit_in_match_of_match_param(param, ULONG_MAX);
    }
    for (size_t stage = 0; stage < splitter->n_stages && status == BT_OK; stage++) {
        const tokenizer_spans swapped = before;
        before = *spans;
        *spans = swapped;
        spans->n = 0;
        for (size_t i = 0; i < before.n && status == BT_OK; i++) {
            status =
                split_span(splitter->stages[stage], region, param, text, before.items[i], spans);
        }
    }
    free(before.items);
    if (region) {
        onig_region_free(region, 1);
    }
    if (param) {
        onig_free_match_param(param);
    }
    return status;
}
