/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the keys tokenizer.ggml.* into a struct bt_tokenizer. Each step below needs those
 * before it: tokens, then tables over them, then merges (which name tokens), then ids.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/hash.h"
#include "common/utf8.h"
#include "engine/tokenizer_int.h"

enum {
    BYTE_LETTERS = 324,   /* byte-level BPE writes bytes as letters below this */
    TOKENS_MAX = 1 << 24, /* far above any vocabulary; ids and ranks fit 31 bits */
    SHOWN_MAX = 40,       /* of a text from the file in an error text */
};

/* Control tokens that end a turn or a text in the known model families. */
static const char *const end_names[] = {
    "<|im_end|>",    "<|eot_id|>",    "<|eom_id|>",      "<|end|>",
    "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|EOT|>",
};

/* GPT-2's letters for bytes: printable ones stand for themselves, the rest are numbered
 * from U+0100 on. -1: no byte. */
static void fill_letter_bytes(int16_t letter_bytes[BYTE_LETTERS])
{
    int16_t next = 256;
    for (size_t i = 0; i < BYTE_LETTERS; i++) {
        letter_bytes[i] = -1;
    }
    for (int16_t byte = 0; byte < 256; byte++) {
        const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
        letter_bytes[itself ? byte : next++] = byte;
    }
    BT_ASSERT(next == BYTE_LETTERS);
}

/* Turns letters into bytes; text that has other characters stays as it is. Gives the
 * length; `out` has room for `text`. */
static size_t letters_to_bytes(const int16_t letter_bytes[BYTE_LETTERS], bt_gguf_string text,
                               char *out)
{
    size_t n = 0;
    size_t at = 0;
    bool all = bt_utf8_valid(text.bytes, text.len, NULL);
    while (all && at < text.len) {
        const uint32_t letter = tokenizer_next_char(text.bytes, &at);
        all = letter < BYTE_LETTERS && letter_bytes[letter] >= 0;
        if (all) {
            out[n++] = (char)letter_bytes[letter];
        }
    }
    if (!all) {
        memcpy(out, text.bytes, text.len);
        return text.len;
    }
    return n;
}

/* U+2581 becomes a space. */
static size_t unescape_spaces(bt_gguf_string text, char *out)
{
    size_t n = 0;
    for (size_t at = 0; at < text.len;) {
        if (text.len - at >= 3 && memcmp(text.bytes + at, "\xE2\x96\x81", 3) == 0) {
            out[n++] = ' ';
            at += 3;
        } else {
            out[n++] = text.bytes[at++];
        }
    }
    return n;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0x0A>" -> 10; -1: it isn't such a name. */
static int byte_of_name(bt_gguf_string text)
{
    if (text.len != 6 || memcmp(text.bytes, "<0x", 3) != 0 || text.bytes[5] != '>') {
        return -1;
    }
    const int high = hex_digit(text.bytes[3]);
    const int low = hex_digit(text.bytes[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* --- tokens ------------------------------------------------------------------------ */

static bt_status read_kinds(const bt_gguf *gguf, bt_tokenizer *made, bt_error *err)
{
    memset(made->kinds, BT_TOKEN_NORMAL, made->n_tokens);
    bt_gguf_array kinds;
    const bt_status status =
        bt_gguf_get_array(gguf, "tokenizer.ggml.token_type", BT_GGUF_VALUE_I32, &kinds, err);
    if (status == BT_ENOTFOUND) {
        return BT_OK;
    }
    if (status != BT_OK) {
        return status;
    }
    if (kinds.n != made->n_tokens) {
        return bt_error_set(err, BT_EINVAL,
                            "tokenizer.ggml.token_type has %" PRIu64 " entries for %" PRIu32
                            " tokens",
                            kinds.n, made->n_tokens);
    }
    for (uint32_t i = 0; i < made->n_tokens; i++) {
        const int32_t kind = bt_gguf_array_i32(&kinds, i);
        if (kind < BT_TOKEN_NORMAL || kind > BT_TOKEN_BYTE) {
            return bt_error_set(err, BT_EINVAL,
                                "tokenizer.ggml.token_type: token %" PRIu32
                                " is of unknown type %" PRId32,
                                i, kind);
        }
        made->kinds[i] = (uint8_t)kind;
    }
    return BT_OK;
}

static bt_status read_scores(const bt_gguf *gguf, bt_tokenizer *made, bt_error *err)
{
    bt_gguf_array scores;
    const bt_status status =
        bt_gguf_get_array(gguf, "tokenizer.ggml.scores", BT_GGUF_VALUE_F32, &scores, err);
    if (status != BT_OK) {
        return status;
    }
    if (scores.n != made->n_tokens) {
        return bt_error_set(err, BT_EINVAL,
                            "tokenizer.ggml.scores has %" PRIu64 " entries for %" PRIu32 " tokens",
                            scores.n, made->n_tokens);
    }
    made->scores = malloc((size_t)made->n_tokens * sizeof *made->scores);
    if (!made->scores) {
        return bt_error_set(err, BT_ENOMEM, "out of memory for the tokenizer");
    }
    for (uint32_t i = 0; i < made->n_tokens; i++) {
        made->scores[i] = bt_gguf_array_f32(&scores, i);
        if (!isfinite(made->scores[i])) {
            return bt_error_set(
                err, BT_EINVAL,
                "tokenizer.ggml.scores: the score of token %" PRIu32 " isn't a finite number", i);
        }
    }
    return BT_OK;
}

/* Writes what token `id` stands for to `out` and gives its length, at most the text's. */
static size_t token_bytes(bt_tokenizer *made, const int16_t *letter_bytes, uint32_t id,
                          bt_gguf_string text, char *out)
{
    const bt_token_kind kind = (bt_token_kind)made->kinds[id];
    const int byte = kind == BT_TOKEN_BYTE ? byte_of_name(text) : -1;
    if (byte >= 0) {
        out[0] = (char)byte;
        made->byte_tokens[byte] = (int32_t)id;
        return 1;
    }
    if (kind == BT_TOKEN_CONTROL || kind == BT_TOKEN_USER_DEFINED || kind == BT_TOKEN_UNKNOWN) {
        memcpy(out, text.bytes, text.len);
        return text.len;
    }
    return made->is_spm ? unescape_spaces(text, out) : letters_to_bytes(letter_bytes, text, out);
}

static bt_status read_tokens(const bt_gguf *gguf, const int16_t *letter_bytes, bt_tokenizer *made,
                             bt_error *err)
{
    bt_gguf_array tokens;
    bt_status status =
        bt_gguf_get_array(gguf, "tokenizer.ggml.tokens", BT_GGUF_VALUE_STRING, &tokens, err);
    if (status != BT_OK) {
        return status;
    }
    if (tokens.n == 0 || tokens.n > TOKENS_MAX) {
        return bt_error_set(err, BT_EINVAL,
                            "tokenizer.ggml.tokens has %" PRIu64 " tokens, 1 to %d are allowed",
                            tokens.n, TOKENS_MAX);
    }
    made->n_tokens = (uint32_t)tokens.n;
    made->kinds = malloc(made->n_tokens);
    made->starts = malloc(((size_t)made->n_tokens + 1) * sizeof *made->starts);
    made->bytes = malloc(tokens.n_bytes); /* with 8 bytes a token to spare */
    if (!made->kinds || !made->starts || !made->bytes) {
        return bt_error_set(err, BT_ENOMEM, "out of memory for the tokenizer");
    }
    status = read_kinds(gguf, made, err);
    if (status != BT_OK) {
        return status;
    }
    memset(made->byte_tokens, 0xFF, sizeof made->byte_tokens);
    size_t at = 0;
    size_t offset = 0;
    bt_gguf_string text;
    for (uint32_t id = 0; bt_gguf_array_next_string(&tokens, &offset, &text); id++) {
        made->starts[id] = at;
        at += token_bytes(made, letter_bytes, id, text, made->bytes + at);
    }
    made->starts[made->n_tokens] = at;
    return BT_OK;
}

/* --- tables ------------------------------------------------------------------------ */

static int descending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a;
    const uint32_t y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

static bool is_special(const bt_tokenizer *made, uint32_t id)
{
    return made->kinds[id] == BT_TOKEN_CONTROL || made->kinds[id] == BT_TOKEN_USER_DEFINED;
}

/* Byte tokens of a BPE vocabulary are its tokens of one byte. */
static void note_byte_token(bt_tokenizer *made, uint32_t id)
{
    size_t len;
    const char *bytes = tokenizer_bytes(made, (int32_t)id, &len);
    if (!made->is_spm && len == 1 && made->byte_tokens[(unsigned char)bytes[0]] < 0) {
        made->byte_tokens[(unsigned char)bytes[0]] = (int32_t)id;
    }
}

static void note_special(bt_tokenizer *made, uint32_t id)
{
    size_t len;
    const char *bytes = tokenizer_bytes(made, (int32_t)id, &len);
    tokenizer_table_add(made, &made->special, (int32_t)id);
    if (len > 0 && len <= UINT32_MAX) {
        made->special_first[(unsigned char)bytes[0]] = true;
        made->special_lengths[made->n_special_lengths++] = (uint32_t)len;
    }
}

static bt_status make_tables(bt_tokenizer *made, bt_error *err)
{
    size_t n_special = 0;
    for (uint32_t id = 0; id < made->n_tokens; id++) {
        n_special += is_special(made, id);
    }
    made->special_lengths = malloc((n_special + 1) * sizeof *made->special_lengths);
    if (!made->special_lengths || tokenizer_table_create(made->n_tokens, &made->text) != BT_OK ||
        tokenizer_table_create(n_special, &made->special) != BT_OK) {
        return bt_error_set(err, BT_ENOMEM, "out of memory for the tokenizer");
    }
    for (uint32_t id = 0; id < made->n_tokens; id++) {
        if (is_special(made, id)) {
            note_special(made, id);
        } else if (made->kinds[id] == BT_TOKEN_NORMAL || made->kinds[id] == BT_TOKEN_UNUSED) {
            tokenizer_table_add(made, &made->text, (int32_t)id);
            note_byte_token(made, id);
        }
    }
    qsort(made->special_lengths, made->n_special_lengths, sizeof *made->special_lengths,
          descending);
    size_t n = 0;
    for (size_t i = 0; i < made->n_special_lengths; i++) {
        if (i == 0 || made->special_lengths[i] != made->special_lengths[n - 1]) {
            made->special_lengths[n++] = made->special_lengths[i];
        }
    }
    made->n_special_lengths = n;
    return BT_OK;
}

/* --- merges ------------------------------------------------------------------------ */

/* Ids of both sides of "a b" and of "ab"; `room` holds the merge's bytes. */
static bool resolve_merge(const bt_tokenizer *made, const int16_t *letter_bytes,
                          bt_gguf_string merge, char *room, uint64_t *pair, int32_t *id)
{
    const char *space = merge.len > 1 ? memchr(merge.bytes + 1, ' ', merge.len - 1) : NULL;
    if (!space) {
        return false;
    }
    const bt_gguf_string left = {merge.bytes, (size_t)(space - merge.bytes)};
    const bt_gguf_string right = {space + 1, merge.len - left.len - 1};
    const size_t left_len = letters_to_bytes(letter_bytes, left, room);
    const size_t right_len = letters_to_bytes(letter_bytes, right, room + left_len);
    const int32_t left_id = tokenizer_find(made, &made->text, room, left_len);
    const int32_t right_id = tokenizer_find(made, &made->text, room + left_len, right_len);
    *id = tokenizer_find(made, &made->text, room, left_len + right_len);
    if (left_id < 0 || right_id < 0 || *id < 0) {
        return false;
    }
    *pair = (uint64_t)left_id << 32 | (uint32_t)right_id;
    return true;
}

static bt_status add_merges(const bt_gguf_array *merges, const int16_t *letter_bytes, char *room,
                            bt_tokenizer *made, bt_error *err)
{
    size_t offset = 0;
    bt_gguf_string merge;
    for (uint64_t rank = 0; bt_gguf_array_next_string(merges, &offset, &merge); rank++) {
        uint64_t pair;
        int32_t id;
        if (!resolve_merge(made, letter_bytes, merge, room, &pair, &id)) {
            return bt_error_set(err, BT_EINVAL,
                                "tokenizer.ggml.merges: entry %" PRIu64 " ('%.*s') isn't two "
                                "tokens of the vocabulary that join to a third",
                                rank, (int)bt_size_min(merge.len, SHOWN_MAX), merge.bytes);
        }
        if (bt_map64_get(made->merges, pair, NULL)) {
            continue;
        }
        const bt_status status = bt_map64_put(made->merges, pair, rank << 32 | (uint32_t)id);
        BT_ASSERT(status == BT_OK); /* the map has room for all */
    }
    return BT_OK;
}

static bt_status read_merges(const bt_gguf *gguf, const int16_t *letter_bytes, bt_tokenizer *made,
                             bt_error *err)
{
    bt_gguf_array merges;
    bt_status status =
        bt_gguf_get_array(gguf, "tokenizer.ggml.merges", BT_GGUF_VALUE_STRING, &merges, err);
    if (status != BT_OK) {
        return status;
    }
    if (merges.n > TOKENS_MAX) {
        return bt_error_set(err, BT_EINVAL,
                            "tokenizer.ggml.merges has %" PRIu64 " entries, more than %d", merges.n,
                            TOKENS_MAX);
    }
    char *room = malloc(merges.n_bytes + 1);
    status = bt_map64_create((size_t)merges.n + 1, &made->merges);
    if (!room || status != BT_OK) {
        free(room);
        return bt_error_set(err, BT_ENOMEM, "out of memory for the tokenizer");
    }
    status = add_merges(&merges, letter_bytes, room, made, err);
    free(room);
    return status;
}

/* --- ids and options --------------------------------------------------------------- */

/* An id by key; `otherwise` (-1: none) if the file doesn't say. */
static bt_status read_id(const bt_gguf *gguf, const char *key, int32_t otherwise,
                         const bt_tokenizer *made, int32_t *out, bt_error *err)
{
    uint32_t id;
    if (!bt_gguf_has(gguf, key)) {
        *out = otherwise < (int32_t)made->n_tokens ? otherwise : -1;
        return BT_OK;
    }
    const bt_status status = bt_gguf_get_u32(gguf, key, &id, err);
    if (status != BT_OK) {
        return status;
    }
    if (id >= made->n_tokens) {
        return bt_error_set(err, BT_EINVAL, "%s is %" PRIu32 ", but there are %" PRIu32 " tokens",
                            key, id, made->n_tokens);
    }
    *out = (int32_t)id;
    return BT_OK;
}

static void add_end_token(bt_tokenizer *made, int32_t id)
{
    if (id < 0 || bt_tokenizer_is_end(made, id)) {
        return;
    }
    size_t at = made->n_end_tokens++;
    while (at > 0 && made->end_tokens[at - 1] > id) {
        made->end_tokens[at] = made->end_tokens[at - 1];
        at--;
    }
    made->end_tokens[at] = id;
}

static bt_status read_end_tokens(const bt_gguf *gguf, bt_tokenizer *made, bt_error *err)
{
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    made->end_tokens =
        malloc((BT_ARRAY_LEN(end_names) + BT_ARRAY_LEN(keys) + 1) * sizeof *made->end_tokens);
    if (!made->end_tokens) {
        return bt_error_set(err, BT_ENOMEM, "out of memory for the tokenizer");
    }
    add_end_token(made, made->eos);
    for (size_t i = 0; i < BT_ARRAY_LEN(keys); i++) {
        int32_t id = -1;
        const bt_status status = read_id(gguf, keys[i], -1, made, &id, err);
        if (status != BT_OK) {
            return status;
        }
        add_end_token(made, id);
    }
    for (size_t i = 0; i < BT_ARRAY_LEN(end_names); i++) {
        add_end_token(made, bt_tokenizer_find_special(made, end_names[i]));
    }
    return BT_OK;
}

static bt_status read_options(const bt_gguf *gguf, bt_tokenizer *made, bt_error *err)
{
    const bool spm = made->is_spm; /* its files may leave these to convention */
    const bool bos = spm || tokenizer_splitter_adds_bos(made->splitter);
    bt_status status =
        read_id(gguf, "tokenizer.ggml.bos_token_id", spm ? 1 : -1, made, &made->bos, err);
    if (status == BT_OK) {
        status = read_id(gguf, "tokenizer.ggml.eos_token_id", spm ? 2 : -1, made, &made->eos, err);
    }
    if (status == BT_OK) {
        status = read_id(gguf, "tokenizer.ggml.unknown_token_id", spm ? 0 : -1, made,
                         &made->unknown, err);
    }
    if (status == BT_OK) {
        status =
            bt_gguf_get_bool_or(gguf, "tokenizer.ggml.add_bos_token", bos, &made->add_bos, err);
    }
    if (status == BT_OK) {
        status =
            bt_gguf_get_bool_or(gguf, "tokenizer.ggml.add_eos_token", false, &made->add_eos, err);
    }
    if (status == BT_OK) {
        status = bt_gguf_get_bool_or(gguf, "tokenizer.ggml.add_space_prefix", spm,
                                     &made->add_space_prefix, err);
    }
    if (status != BT_OK) {
        return status;
    }
    if ((made->add_bos && made->bos < 0) || (made->add_eos && made->eos < 0)) {
        return bt_error_set(err, BT_EINVAL,
                            "the tokenizer adds BOS or EOS, but the file doesn't say which token "
                            "that is");
    }
    return read_end_tokens(gguf, made, err);
}

/* --- fingerprint ------------------------------------------------------------------- */

static void hash_key(bt_hash *hash, const bt_gguf *gguf, const char *key)
{
    /* Names and lengths go in as well, so that no two files run together to one text. */
    bt_gguf_string text = {"", 0};
    bt_gguf_array array = {0};
    uint64_t sizes[2] = {0, 0};
    static const bt_gguf_value_type types[] = {BT_GGUF_VALUE_STRING, BT_GGUF_VALUE_F32,
                                               BT_GGUF_VALUE_I32};
    bt_hash_update(hash, key, strlen(key) + 1);
    if (bt_gguf_get_string(gguf, key, &text, NULL) == BT_OK) {
        sizes[0] = text.len;
        bt_hash_update(hash, sizes, sizeof sizes);
        bt_hash_update(hash, text.bytes, text.len);
        return;
    }
    for (size_t i = 0; i < BT_ARRAY_LEN(types); i++) {
        if (bt_gguf_get_array(gguf, key, types[i], &array, NULL) == BT_OK) {
            sizes[0] = array.n;
            sizes[1] = array.n_bytes;
            bt_hash_update(hash, sizes, sizeof sizes);
            bt_hash_update(hash, array.bytes, array.n_bytes);
            return;
        }
    }
    bt_hash_update(hash, sizes, sizeof sizes);
}

static void make_fingerprint(const bt_gguf *gguf, bt_tokenizer *made)
{
    static const char *const keys[] = {
        "tokenizer.ggml.model",  "tokenizer.ggml.pre",        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "tokenizer.ggml.scores",
    };
    bt_hash hash;
    bt_hash128_init(&hash, NULL);
    for (size_t i = 0; i < BT_ARRAY_LEN(keys); i++) {
        hash_key(&hash, gguf, keys[i]);
    }
    const int32_t options[] = {made->bos,     made->eos,     made->unknown,
                               made->add_bos, made->add_eos, made->add_space_prefix};
    bt_hash_update(&hash, options, sizeof options);
    bt_hash128_to_bytes(bt_hash128_final(&hash), made->fingerprint);
}

/* --- create ------------------------------------------------------------------------ */

static bt_status read_model(const bt_gguf *gguf, bt_tokenizer *made, bt_error *err)
{
    bt_gguf_string model;
    bt_status status = bt_gguf_get_string(gguf, "tokenizer.ggml.model", &model, err);
    if (status != BT_OK) {
        return status;
    }
    if (model.len == 5 && memcmp(model.bytes, "llama", 5) == 0) {
        made->is_spm = true;
        return BT_OK;
    }
    if (model.len != 4 || memcmp(model.bytes, "gpt2", 4) != 0) {
        return bt_error_set(err, BT_EUNSUPPORTED,
                            "the model's tokenizer '%.*s' (tokenizer.ggml.model) isn't supported; "
                            "supported are: gpt2 (byte-level BPE), llama (SentencePiece)",
                            (int)bt_size_min(model.len, SHOWN_MAX), model.bytes);
    }
    bt_gguf_string pre;
    status = bt_gguf_get_string(gguf, "tokenizer.ggml.pre", &pre, err);
    if (status == BT_OK) {
        status = tokenizer_splitter_create(pre, &made->splitter, err);
    }
    if (status == BT_OK) {
        made->whole_words = tokenizer_splitter_whole_words(made->splitter);
    }
    return status;
}

bt_status bt_tokenizer_create(const bt_gguf *gguf, bt_tokenizer **out, bt_error *err)
{
    bt_tokenizer *made = calloc(1, sizeof *made);
    if (!made) {
        return bt_error_set(err, BT_ENOMEM, "out of memory for the tokenizer");
    }
    int16_t letter_bytes[BYTE_LETTERS];
    fill_letter_bytes(letter_bytes);
    bt_status status = read_model(gguf, made, err);
    if (status == BT_OK) {
        status = read_tokens(gguf, letter_bytes, made, err);
    }
    if (status == BT_OK) {
        status = make_tables(made, err);
    }
    if (status == BT_OK) {
        status = made->is_spm ? read_scores(gguf, made, err)
                              : read_merges(gguf, letter_bytes, made, err);
    }
    if (status == BT_OK) {
        status = read_options(gguf, made, err);
    }
    if (status != BT_OK) {
        bt_tokenizer_destroy(made);
        return status;
    }
    make_fingerprint(gguf, made);
    *out = made;
    return BT_OK;
}
