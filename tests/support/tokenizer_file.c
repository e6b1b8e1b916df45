/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/tokenizer_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "engine/tokenizer.h"
#include "tests/support/gguf_writer.h"

enum { LETTER_BYTES = 3 };

void bt_test_path(const char *name, char *out, size_t out_bytes)
{
    const char *folder = getenv("TEST_TMPDIR");
    const int n =
        snprintf(out, out_bytes, "%s/%s.%ld", folder ? folder : "/tmp", name, (long)getpid());
    BT_ASSERT(n > 0 && (size_t)n < out_bytes);
}

/* The letters of byte-level BPE, by byte. */
static void fill_letters(char letters[256][LETTER_BYTES])
{
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
        const unsigned letter = itself ? byte : next++;
        char *out = letters[byte];
        if (letter < 0x80) {
            out[0] = (char)letter;
            out[1] = '\0';
        } else {
            out[0] = (char)(0xC0 | letter >> 6);
            out[1] = (char)(0x80 | (letter & 0x3F));
            out[2] = '\0';
        }
    }
}

static char *join_merge(const char *merge)
{
    char *joined = strdup(merge);
    BT_ASSERT(joined != NULL);
    char *space = strchr(joined + 1, ' ');
    BT_ASSERT(space != NULL);
    memmove(space, space + 1, strlen(space));
    return joined;
}

typedef struct vocabulary {
    const char **tokens;
    int32_t *kinds;
    float *scores;
    size_t n;
} vocabulary;

static void add(vocabulary *out, const char *token, bt_token_kind kind, float score)
{
    out->tokens[out->n] = token;
    out->kinds[out->n] = (int32_t)kind;
    out->scores[out->n++] = score;
}

static void add_specials(const bt_tokenizer_file *file, vocabulary *out)
{
    for (size_t i = 0; i < file->n_specials; i++) {
        add(out, file->specials[i], BT_TOKEN_CONTROL, 0);
    }
}

static void write_id(bt_gguf_writer *writer, const vocabulary *from, const char *key,
                     const char *name)
{
    for (size_t i = 0; name && i < from->n; i++) {
        if (strcmp(from->tokens[i], name) == 0) {
            bt_gguf_writer_add_u32(writer, key, (uint32_t)i);
            return;
        }
    }
}

static void write_common(bt_gguf_writer *writer, const bt_tokenizer_file *file,
                         const vocabulary *from)
{
    bt_gguf_writer_add_strings(writer, "tokenizer.ggml.tokens", from->tokens, from->n);
    bt_gguf_writer_add_i32s(writer, "tokenizer.ggml.token_type", from->kinds, from->n);
    bt_gguf_writer_add_bool(writer, "tokenizer.ggml.add_bos_token", file->add_bos);
    bt_gguf_writer_add_bool(writer, "tokenizer.ggml.add_eos_token", file->add_eos);
    write_id(writer, from, "tokenizer.ggml.bos_token_id", file->bos);
    write_id(writer, from, "tokenizer.ggml.eos_token_id", file->eos);
    if (file->chat_template) {
        bt_gguf_writer_add_string(writer, "tokenizer.chat_template", file->chat_template);
    }
}

static void write_bpe(bt_gguf_writer *writer, const bt_tokenizer_file *file, vocabulary *room)
{
    char letters[256][LETTER_BYTES];
    fill_letters(letters);
    for (size_t i = 0; i < 256; i++) {
        add(room, letters[i], BT_TOKEN_NORMAL, 0);
    }
    add_specials(file, room);
    const size_t first = room->n;
    for (size_t i = 0; i < file->n_merges; i++) {
        add(room, join_merge(file->merges[i]), BT_TOKEN_NORMAL, 0);
    }
    bt_gguf_writer_add_string(writer, "tokenizer.ggml.model", "gpt2");
    bt_gguf_writer_add_string(writer, "tokenizer.ggml.pre", file->pre);
    bt_gguf_writer_add_strings(writer, "tokenizer.ggml.merges", file->merges, file->n_merges);
    write_common(writer, file, room);
    for (size_t i = first; i < room->n; i++) {
        free((void *)(uintptr_t)room->tokens[i]);
    }
}

static void write_spm(bt_gguf_writer *writer, const bt_tokenizer_file *file, vocabulary *room)
{
    char names[256][sizeof "<0x00>"];
    add(room, "<unk>", BT_TOKEN_UNKNOWN, 0);
    add(room, "<s>", BT_TOKEN_CONTROL, 0);
    add(room, "</s>", BT_TOKEN_CONTROL, 0);
    for (unsigned i = 0; i < 256; i++) {
        (void)snprintf(names[i], sizeof names[i], "<0x%02X>", i);
        add(room, names[i], BT_TOKEN_BYTE, 0);
    }
    for (size_t i = 0; i < file->n_pieces; i++) {
        add(room, file->pieces[i], BT_TOKEN_NORMAL, -(float)i);
    }
    add_specials(file, room);
    bt_gguf_writer_add_string(writer, "tokenizer.ggml.model", "llama");
    bt_gguf_writer_add_f32s(writer, "tokenizer.ggml.scores", room->scores, room->n);
    write_common(writer, file, room);
}

bt_gguf *bt_tokenizer_file_open(const bt_tokenizer_file *file)
{
    const size_t n_max = 259 + file->n_merges + file->n_pieces + file->n_specials;
    vocabulary room = {calloc(n_max, sizeof *room.tokens), calloc(n_max, sizeof *room.kinds),
                       calloc(n_max, sizeof *room.scores), 0};
    bt_gguf_writer *writer = bt_gguf_writer_begin();
    BT_ASSERT(writer && room.tokens && room.kinds && room.scores);
    if (file->pre) {
        write_bpe(writer, file, &room);
    } else {
        write_spm(writer, file, &room);
    }
    free(room.tokens);
    free(room.kinds);
    free(room.scores);
    char path[256];
    bt_test_path("tokenizer", path, sizeof path);
    bt_gguf *gguf = NULL;
    if (bt_gguf_writer_finish(writer, path) != BT_OK || bt_gguf_open(path, &gguf, NULL) != BT_OK) {
        gguf = NULL;
    }
    (void)unlink(path);
    return gguf;
}
