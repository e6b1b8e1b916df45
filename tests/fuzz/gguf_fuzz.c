/* SPDX-License-Identifier: Apache-2.0 */
/* A model file, on the whole way that a worker and a router take it: reader and every getter,
 * parameters and packed weights, tokenizer, chat template; what loads is then used. */
#include <string.h>

#include "engine/chat.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/tokenizer.h"
#include "tests/fuzz/fuzz.h"

enum { TENSOR_TYPES_END = 64 };

static void expect_sane(bt_status status, const bt_error *err)
{
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, err);
    }
}

static void read_bytes(const void *bytes, size_t n)
{
    const volatile uint8_t *at = bytes;
    for (size_t i = 0; i < n; i++) {
        (void)at[i];
    }
}

static void get_array(const bt_gguf *gguf, const char *key, bt_gguf_value_type type)
{
    bt_gguf_array array;
    bt_error err = {""};
    const bt_status status = bt_gguf_get_array(gguf, key, type, &array, &err);
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, &err);
        return;
    }
    read_bytes(array.bytes, array.n_bytes);
    if (type == BT_GGUF_VALUE_STRING) {
        size_t offset = 0;
        uint64_t n = 0;
        bt_gguf_string text;
        while (bt_gguf_array_next_string(&array, &offset, &text)) {
            read_bytes(text.bytes, text.len);
            n++;
        }
        FUZZ_EXPECT(n == array.n);
    }
    for (uint64_t i = 0; i < array.n; i++) {
        if (type == BT_GGUF_VALUE_F32) {
            (void)bt_gguf_array_f32(&array, i);
        } else if (type == BT_GGUF_VALUE_I32) {
            (void)bt_gguf_array_i32(&array, i);
        } else if (type == BT_GGUF_VALUE_U32) {
            (void)bt_gguf_array_u32(&array, i);
        }
    }
}

/* Every kind of question about one key. */
static void get_all(const bt_gguf *gguf, const char *key)
{
    uint32_t u32;
    uint64_t u64;
    float f32;
    bool boolean;
    bt_gguf_string string;
    bt_error err = {""};
    const bt_status narrow = bt_gguf_get_u32(gguf, key, &u32, &err);
    expect_sane(narrow, &err);
    const bt_status wide = bt_gguf_get_u64(gguf, key, &u64, &err);
    expect_sane(wide, &err);
    FUZZ_EXPECT(narrow != BT_OK || (wide == BT_OK && u32 == u64));
    expect_sane(bt_gguf_get_f32(gguf, key, &f32, &err), &err);
    expect_sane(bt_gguf_get_bool(gguf, key, &boolean, &err), &err);
    const bt_status text = bt_gguf_get_string(gguf, key, &string, &err);
    expect_sane(text, &err);
    if (text == BT_OK) {
        read_bytes(string.bytes, string.len);
    }
    for (int type = BT_GGUF_VALUE_U8; type <= BT_GGUF_VALUE_F64; type++) {
        get_array(gguf, key, (bt_gguf_value_type)type);
    }
}

static void walk(const bt_gguf *gguf)
{
    size_t file_bytes;
    const uint8_t *file = bt_gguf_file(gguf, &file_bytes);
    FUZZ_EXPECT(bt_gguf_metadata_bytes(gguf) <= file_bytes);
    for (size_t i = 0; i < bt_gguf_entry_count(gguf); i++) {
        const bt_gguf_entry entry = bt_gguf_entry_at(gguf, i);
        FUZZ_EXPECT(bt_gguf_has(gguf, entry.key));
        get_all(gguf, entry.key);
    }
    for (size_t i = 0; i < bt_gguf_tensor_count(gguf); i++) {
        const bt_gguf_tensor *tensor = bt_gguf_tensor_at(gguf, i);
        const uint8_t *data = tensor->data;
        FUZZ_EXPECT(bt_gguf_find_tensor(gguf, tensor->name) == tensor);
        FUZZ_EXPECT(data >= file && tensor->n_bytes <= file_bytes - (size_t)(data - file));
        read_bytes(tensor->data, tensor->n_bytes);
    }
    for (int type = 0; type < TENSOR_TYPES_END; type++) {
        const bool known = bt_gguf_type_block_elements((bt_gguf_type)type) > 0;
        FUZZ_EXPECT(known == (strcmp(bt_gguf_type_name((bt_gguf_type)type), "?") != 0));
    }
}

static void use_chat(const bt_gguf *gguf, const bt_tokenizer *tokenizer)
{
    static const bt_chat_message message = {"user", 4, "h\xC3\xA9llo <|im_end|>", 17};
    bt_chat *chat = NULL;
    bt_error err = {""};
    expect_sane(bt_chat_create(gguf, tokenizer, &chat, &err), &err);
    if (chat) {
        bt_token_list ids = {0};
        expect_sane(bt_chat_render(chat, &message, 1, true, &ids, &err), &err);
        bt_token_list_deinit(&ids);
        bt_chat_destroy(chat);
    }
}

static void use_tokenizer(const bt_gguf *gguf)
{
    static const char text[] =
        "It's <|im_end|> 12345\n\n \xE2\x96\x81 caf\xC3\xA9 \xF0\x9F\x98\x80  end";
    bt_tokenizer *tokenizer = NULL;
    bt_error err = {""};
    expect_sane(bt_tokenizer_create(gguf, &tokenizer, &err), &err);
    if (!tokenizer) {
        return;
    }
    bt_token_list ids = {0};
    expect_sane(bt_tokenizer_encode(tokenizer, text, sizeof text - 1,
                                    BT_TOKENIZE_SPECIAL | BT_TOKENIZE_ADD, &ids, &err),
                &err);
    for (size_t i = 0; i < ids.n; i++) {
        FUZZ_EXPECT(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < bt_tokenizer_vocab_size(tokenizer));
        size_t len;
        const char *piece = bt_tokenizer_piece(tokenizer, ids.ids[i], &len);
        read_bytes(piece, len);
    }
    bt_token_list_deinit(&ids);
    use_chat(gguf, tokenizer);
    bt_tokenizer_destroy(tokenizer);
}

static void use_model(const char *path)
{
    const bt_model_options options = {
        .path = path,
        .name = "fuzz",
        .kernels = "portable",
        .n_threads = 1,
        .rows_max = 16,
        .spans_max = 2,
        .logits_max = 2,
        .context_max = 256,
    };
    bt_model *model = NULL;
    bt_error err = {""};
    const bt_status status = bt_model_load(&options, &model, &err);
    expect_sane(status, &err);
    bt_model_destroy(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[BT_FUZZ_PATH_BYTES];
    const int fd = bt_fuzz_file_open(data, size, path);
    bt_gguf *gguf = NULL;
    bt_error err = {""};
    expect_sane(bt_gguf_open(path, &gguf, &err), &err);
    if (gguf) {
        walk(gguf);
        use_tokenizer(gguf);
        bt_gguf_close(gguf);
        use_model(path);
    }
    bt_fuzz_file_close(fd);
    return 0;
}
