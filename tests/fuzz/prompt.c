/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/prompt.h"

#include <unistd.h>

#include "router/models.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tokenizer_file.h"

static const bt_tiny_model tiny = {
    .n_layers = 1,
    .dim = 8,
    .n_heads = 1,
    .n_kv_heads = 1,
    .head_dim = 8,
    .n_ffn = 8,
    .context = 256,
    .seed = 1,
    .tied = true,
};

/* Kept for the life of the process: reachable, so no leak. */
static const bt_router_model_card *get_card(void)
{
    static bt_router_models *models;
    if (!models) {
        char path[256];
        bt_test_path("request", path, sizeof path);
        FUZZ_EXPECT(bt_tiny_model_write(&tiny, path) == BT_OK);
        FUZZ_EXPECT(bt_router_models_create(1, &models) == BT_OK);
        FUZZ_EXPECT(bt_router_models_add(models, path, "tiny", NULL) == BT_OK);
        (void)unlink(path);
    }
    return bt_router_models_at(models, 0);
}

void bt_fuzz_compute_prompt(const bt_router_prompt_input *input)
{
    const bt_router_model_card *card = get_card();
    bt_router_prompt *prompt = NULL;
    FUZZ_EXPECT(bt_router_prompt_create(card, input, NULL, &prompt) == BT_OK);
    bt_router_prompt_compute(prompt);
    bt_error err = {""};
    const bt_status status = bt_router_prompt_status(prompt, &err);
    if (status == BT_OK) {
        uint32_t n;
        const int32_t *tokens = bt_router_prompt_tokens(prompt, &n);
        for (uint32_t i = 0; i < n; i++) {
            FUZZ_EXPECT(tokens[i] >= 0 &&
                        (uint32_t)tokens[i] < bt_tokenizer_vocab_size(card->tokenizer));
        }
    } else {
        bt_fuzz_expect_told(status, &err);
    }
    bt_router_prompt_destroy(prompt);
}
