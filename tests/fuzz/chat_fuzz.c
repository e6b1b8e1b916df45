/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates. Byte 0: bit 0 picks the vocabulary, bit 1 the generation prompt. Then the
 * template's source, up to a byte 0xFF; then role, 0xFE, content, 0xFE, role, ... (bytes that no
 * text has). The oracle: content adds no control token, whatever it says. */
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "engine/chat.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tokenizer_file.h"

enum { MESSAGES_MAX = 64, SOURCE_BYTES_MAX = 1 << 16 };

static const char *const bpe_specials[] = {
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>",        "<|im_start|>",    "<|im_end|>",
};
static const char *const inst_specials[] = {"[INST]", "[/INST]"};
static const char *const merges[] = {"u s", "e r", "us er"};
static const char *const pieces[] = {"\342\226\201[", "IN", "ST", "INST", "\342\226\201[/"};

static const bt_tokenizer_file files[] = {
    {.pre = "llama-bpe",
     .merges = merges,
     .n_merges = BT_ARRAY_LEN(merges),
     .specials = bpe_specials,
     .n_specials = BT_ARRAY_LEN(bpe_specials),
     .bos = "<|begin_of_text|>",
     .eos = "<|im_end|>"},
    {.pieces = pieces,
     .n_pieces = BT_ARRAY_LEN(pieces),
     .specials = inst_specials,
     .n_specials = BT_ARRAY_LEN(inst_specials)},
};

/* Kept for the life of the process: reachable, so no leak. */
static const bt_tokenizer *get_tokenizer(size_t idx)
{
    static bt_tokenizer *made[BT_ARRAY_LEN(files)];
    if (!made[idx]) {
        bt_gguf *gguf = bt_tokenizer_file_open(&files[idx]);
        FUZZ_EXPECT(gguf != NULL);
        FUZZ_EXPECT(bt_tokenizer_create(gguf, &made[idx], NULL) == BT_OK);
        bt_gguf_close(gguf);
    }
    return made[idx];
}

/* A file with the template alone: all that chat reads of it. */
static bt_chat *make_chat(const bt_tokenizer *tokenizer, bt_fuzz_input source)
{
    static char text[SOURCE_BYTES_MAX + 1];
    const size_t len = source.len < SOURCE_BYTES_MAX ? source.len : SOURCE_BYTES_MAX;
    if (len > 0) {
        memcpy(text, source.bytes, len);
    }
    text[len] = '\0'; /* what follows a NUL is left out */
    bt_gguf_writer *writer = bt_gguf_writer_begin();
    FUZZ_EXPECT(writer != NULL);
    bt_gguf_writer_add_string(writer, "tokenizer.chat_template", text);
    char path[256];
    bt_test_path("template", path, sizeof path);
    FUZZ_EXPECT(bt_gguf_writer_finish(writer, path) == BT_OK);
    bt_gguf *gguf = NULL;
    FUZZ_EXPECT(bt_gguf_open(path, &gguf, NULL) == BT_OK);
    (void)unlink(path);
    bt_chat *chat = NULL;
    bt_error err = {""};
    const bt_status status = bt_chat_create(gguf, tokenizer, &chat, &err);
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, &err);
    }
    bt_gguf_close(gguf);
    return chat;
}

/* SIZE_MAX: it was refused. */
static size_t count_controls(const bt_chat *chat, const bt_tokenizer *tokenizer,
                             const bt_chat_message *messages, size_t n, bool prompt)
{
    bt_token_list ids = {0};
    bt_error err = {""};
    const bt_status status = bt_chat_render(chat, messages, n, prompt, &ids, &err);
    size_t n_controls = 0;
    for (size_t i = 0; i < ids.n; i++) {
        n_controls += bt_tokenizer_kind(tokenizer, ids.ids[i]) == BT_TOKEN_CONTROL;
    }
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, &err);
        FUZZ_EXPECT(ids.n == 0);
        n_controls = SIZE_MAX;
    }
    bt_token_list_deinit(&ids);
    return n_controls;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_fuzz_input in = {data, size};
    const uint8_t bits = bt_fuzz_u8(&in);
    const bt_tokenizer *tokenizer = get_tokenizer(bits & 1);
    bt_chat *chat = make_chat(tokenizer, bt_fuzz_until(&in, 0xFF));
    if (!chat) {
        return 0;
    }
    bt_chat_message messages[MESSAGES_MAX];
    bt_chat_message harmless[MESSAGES_MAX];
    size_t n = 0;
    while (in.len > 0 && n < MESSAGES_MAX) {
        const bt_fuzz_input role = bt_fuzz_until(&in, 0xFE);
        const bt_fuzz_input content = bt_fuzz_until(&in, 0xFE);
        messages[n] = (bt_chat_message){(const char *)role.bytes, role.len,
                                        (const char *)content.bytes, content.len};
        harmless[n] = messages[n];
        harmless[n].content = "x";
        harmless[n].content_len = 1;
        n++;
    }
    const bool prompt = (bits & 2) != 0;
    const size_t n_controls = count_controls(chat, tokenizer, messages, n, prompt);
    if (n_controls != SIZE_MAX) {
        FUZZ_EXPECT(n_controls == count_controls(chat, tokenizer, harmless, n, prompt));
    }
    bt_chat_destroy(chat);
    return 0;
}
