/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens and back: byte 0 picks one of the tokenizers, byte 1 the flags, the rest is text.
 * The oracle of byte-level BPE is the text itself: the pieces joined are it (but where qwen2
 * composes characters first). */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "engine/detokenizer.h"
#include "tests/engine/tokenizer_vectors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/tokenizer_file.h"

/* The last one is SentencePiece. */
static const char *const pres[] = {"gpt-2",     "smollm", "starcoder",      "refact",
                                   "llama-bpe", "qwen2",  "deepseek-coder", NULL};
static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

static bt_tokenizer *open_tokenizer(const char *pre)
{
    const bt_tokenizer_file file = {
        .pre = pre,
        .merges = bpe_merges,
        .n_merges = BT_ARRAY_LEN(bpe_merges),
        .pieces = spm_pieces,
        .n_pieces = BT_ARRAY_LEN(spm_pieces),
        .specials = specials,
        .n_specials = BT_ARRAY_LEN(specials),
        .bos = "<|endoftext|>",
        .eos = "<|im_end|>",
        .add_bos = true,
    };
    bt_gguf *gguf = bt_tokenizer_file_open(&file);
    FUZZ_EXPECT(gguf != NULL);
    bt_tokenizer *made = NULL;
    FUZZ_EXPECT(bt_tokenizer_create(gguf, &made, NULL) == BT_OK);
    bt_gguf_close(gguf);
    return made;
}

/* Kept for the life of the process: reachable, so no leak. */
static const bt_tokenizer *get_tokenizer(size_t idx)
{
    static bt_tokenizer *made[BT_ARRAY_LEN(pres)];
    if (!made[idx]) {
        made[idx] = open_tokenizer(pres[idx]);
    }
    return made[idx];
}

static void check_pieces(const bt_tokenizer *tokenizer, const bt_token_list *ids, size_t skip,
                         bt_fuzz_input text)
{
    size_t at = 0;
    for (size_t i = skip; i < ids->n; i++) {
        size_t len;
        const char *piece = bt_tokenizer_piece(tokenizer, ids->ids[i], &len);
        FUZZ_EXPECT(len <= text.len - at && memcmp(piece, text.bytes + at, len) == 0);
        at += len;
    }
    FUZZ_EXPECT(at == text.len);
}

static void check_text(const bt_tokenizer *tokenizer, const bt_token_list *ids)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        bt_text out = {0};
        FUZZ_EXPECT(bt_detokenize(tokenizer, ids->ids, ids->n, flags, &out) == BT_OK);
        FUZZ_EXPECT(bt_utf8_valid(out.bytes, out.len, NULL));
        bt_text_deinit(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_fuzz_input in = {data, size};
    const size_t idx = bt_fuzz_u8(&in) % BT_ARRAY_LEN(pres);
    const unsigned flags = bt_fuzz_u8(&in) & 7;
    const bt_tokenizer *tokenizer = get_tokenizer(idx);
    const char *text = (const char *)in.bytes;
    bt_token_list ids = {0};
    bt_error err = {""};
    const bt_status status = bt_tokenizer_encode(tokenizer, text, in.len, flags, &ids, &err);
    FUZZ_EXPECT((status == BT_OK) == bt_utf8_valid(text, in.len, NULL));
    if (status == BT_OK) {
        if (pres[idx] && strcmp(pres[idx], "qwen2") != 0) {
            check_pieces(tokenizer, &ids, (flags & BT_TOKENIZE_ADD) ? 1 : 0, in);
        }
        check_text(tokenizer, &ids);
        bt_token_list again = {0};
        FUZZ_EXPECT(bt_tokenizer_encode_piece(tokenizer, text, in.len, flags & 3, false, &again,
                                              &err) == BT_OK);
        check_text(tokenizer, &again);
        bt_token_list_deinit(&again);
    } else {
        bt_fuzz_expect_told(status, &err);
        FUZZ_EXPECT(ids.n == 0);
    }
    bt_token_list_deinit(&ids);
    return 0;
}
