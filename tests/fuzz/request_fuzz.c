/* SPDX-License-Identifier: Apache-2.0 */
/* A client's protobuf request: unpacked, translated, checked, and its prompt computed. Byte 0
 * picks the message: Generate or Tokenize. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "router/front_grpc_int.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/prompt.h"

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
        bt_fuzz_compute_prompt(&request.prompt);
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
        bt_fuzz_compute_prompt(&input);
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
