/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON body of the HTTP door: byte 0 says of which path (bit 0: chat), the rest is the body. What
 * parses is checked and its prompts computed; what does not is packed as an error, which is JSON.
 */
#include <string.h>

#include "common/json.h"
#include "router/front_http_int.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/prompt.h"

static void check_error(bt_status status, bool is_chat, bt_router_http_error *err)
{
    bt_fuzz_expect_told(status, &err->text);
    FUZZ_EXPECT(memchr(err->param, 0, sizeof err->param) != NULL);
    bt_router_http_adapt_error(is_chat, err);
    bt_fuzz_expect_told(status, &err->text);
    const char *code = NULL;
    const unsigned http_code = bt_router_http_code_of(status, &code);
    FUZZ_EXPECT(http_code >= 400 && http_code < 600);
    bt_json_writer writer;
    bt_json_writer_init(&writer, 0);
    bt_router_http_pack_error(&writer, http_code, code, err);
    size_t len;
    const char *text = bt_json_writer_text(&writer, &len);
    FUZZ_EXPECT(text != NULL);
    bt_json *json;
    FUZZ_EXPECT(bt_json_parse(text, len, &json, NULL) == BT_OK);
    bt_json_destroy(json);
    bt_json_writer_deinit(&writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_fuzz_input in = {data, size};
    const bool is_chat = (bt_fuzz_u8(&in) & 1) != 0;
    bt_router_http_request request;
    bt_router_http_error err = {0};
    bt_status status =
        bt_router_http_parse((const char *)in.bytes, in.len, is_chat, &request, &err);
    if (status != BT_OK) {
        check_error(status, is_chat, &err);
        return 0;
    }
    FUZZ_EXPECT(request.n_prompts >= 1 && request.n >= 1);
    FUZZ_EXPECT(request.n_prompts * request.n <= BT_ROUTER_HTTP_CHOICES_MAX);
    status = bt_router_front_check(&request.front, &err.text);
    if (status != BT_OK) {
        check_error(status, is_chat, &err);
    }
    for (size_t i = 0; status == BT_OK && i < request.n_prompts; i++) {
        bt_fuzz_compute_prompt(&request.prompts[i]);
    }
    bt_router_http_request_deinit(&request);
    return 0;
}
