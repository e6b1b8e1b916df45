/* SPDX-License-Identifier: Apache-2.0 */
/* A client's protobuf request: unpacked, translated, checked, and its prompt computed. Byte 0
 * picks the message: Generate or Tokenize. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/utf8.h"
#include "router/front_grpc_int.h"
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

static void compute_prompt(const bt_router_prompt_input *input)
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

static void use_generate(const Baton__V1__GenerateRequest *message)
{
    bt_router_front_request request;
    bt_chat_message *messages = NULL;
    bt_error err = {""};
    bt_status status = bt_router_front_grpc_request(message, &request, &messages, &err);
    if (status == BT_OK) {
        FUZZ_EXPECT(request.n_stops <= BT_ROUTER_STOP_STRINGS_MAX);
        FUZZ_EXPECT(request.sampling.n_logit_bias <= BT_LOGIT_BIAS_MAX);
        FUZZ_EXPECT(bt_utf8_valid(request.model, strlen(request.model), NULL));
        status = bt_router_front_check(&request, &err);
    }
    if (status == BT_OK) {
        compute_prompt(&request.prompt);
    } else {
        bt_fuzz_expect_told(status, &err);
    }
    free(messages);
}

static void use_tokenize(const Baton__V1__TokenizeRequest *message)
{
    bt_chat_message *messages = NULL;
    bt_router_prompt_input input = {.kind = BT_ROUTER_PROMPT_TEXT};
    if (message->input_case == BATON__V1__TOKENIZE_REQUEST__INPUT_CHAT) {
        FUZZ_EXPECT(bt_router_front_grpc_chat(message->chat, &messages) == BT_OK);
        input.kind = BT_ROUTER_PROMPT_CHAT;
        input.messages = messages;
        input.n_messages = message->chat->n_messages;
    } else if (message->input_case == BATON__V1__TOKENIZE_REQUEST__INPUT_TEXT) {
        input.text = message->text;
        input.text_len = strlen(message->text);
    }
    if (message->input_case != BATON__V1__TOKENIZE_REQUEST__INPUT__NOT_SET) {
        compute_prompt(&input);
    }
    free(messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_fuzz_input in = {data, size};
    const bool generate = (bt_fuzz_u8(&in) & 1) == 0;
    const ProtobufCMessageDescriptor *descriptor = generate
                                                       ? &baton__v1__generate_request__descriptor
                                                       : &baton__v1__tokenize_request__descriptor;
    ProtobufCMessage *message = NULL;
    bt_error err = {""};
    const bt_status status =
        bt_router_front_grpc_unpack(descriptor, in.bytes, in.len, &message, &err);
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, &err);
        return 0;
    }
    if (generate) {
        use_generate((const Baton__V1__GenerateRequest *)(const void *)message);
    } else {
        use_tokenize((const Baton__V1__TokenizeRequest *)(const void *)message);
    }
    protobuf_c_message_free_unpacked(message, NULL);
    return 0;
}
