/* SPDX-License-Identifier: Apache-2.0 */
/* What prefill packs, decode reads back; every cut and every wrong field is refused. */
#include "worker/first_token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static bt_first_token full_token(void)
{
    bt_first_token first = {.index = 7,
                            .result = {.token = 41, .has_logprob = true, .logprob = -0.25f}};
    first.result.n_top = BT_TOP_LOGPROBS_MAX;
    for (uint32_t i = 0; i < first.result.n_top; i++) {
        first.result.top[i] = (bt_token_logprob){.token = (int32_t)i, .logprob = -(float)i};
    }
    return first;
}

static void packed_token_reads_back_equal(void **state)
{
    (void)state;
    const bt_first_token first = full_token();
    uint8_t bytes[BT_FIRST_TOKEN_BYTES_MAX];
    const size_t len = bt_first_token_pack(&first, bytes);
    assert_int_equal(len, BT_FIRST_TOKEN_BYTES_MAX);
    bt_first_token back;
    assert_int_equal(bt_first_token_unpack(bytes, len, 100, &back), BT_OK);
    assert_int_equal(back.index, 7);
    assert_int_equal(back.result.token, 41);
    assert_true(back.result.has_logprob);
    assert_true(back.result.logprob == -0.25f);
    assert_int_equal(back.result.n_top, BT_TOP_LOGPROBS_MAX);
    for (uint32_t i = 0; i < back.result.n_top; i++) {
        assert_int_equal(back.result.top[i].token, i);
        assert_true(back.result.top[i].logprob == -(float)i);
    }
}

static void every_cut_and_any_rest_is_refused(void **state)
{
    (void)state;
    const bt_first_token first = full_token();
    uint8_t bytes[BT_FIRST_TOKEN_BYTES_MAX + 1] = {0};
    const size_t len = bt_first_token_pack(&first, bytes);
    bt_first_token back;
    for (size_t n = 0; n < len; n++) {
        assert_int_equal(bt_first_token_unpack(bytes, n, 100, &back), BT_EPROTOCOL);
    }
    assert_int_equal(bt_first_token_unpack(bytes, len + 1, 100, &back), BT_EPROTOCOL);
}

static void wrong_version_flags_count_and_tokens_are_refused(void **state)
{
    (void)state;
    const bt_first_token first = full_token();
    uint8_t bytes[BT_FIRST_TOKEN_BYTES_MAX];
    const size_t len = bt_first_token_pack(&first, bytes);
    bt_first_token back;
    assert_int_equal(bt_first_token_unpack(bytes, len, 41, &back), BT_EPROTOCOL); /* token 41 */
    static const struct {
        size_t at;
        uint8_t value;
    } wrong[] = {{0, 2}, {1, 2}, {2, BT_TOP_LOGPROBS_MAX + 1}, {3, 1}, {11, 0x80}, {16, 200}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint8_t copy[sizeof bytes];
        memcpy(copy, bytes, len);
        copy[wrong[i].at] = wrong[i].value;
        assert_int_equal(bt_first_token_unpack(copy, len, 100, &back), BT_EPROTOCOL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_token_reads_back_equal),
        cmocka_unit_test(every_cut_and_any_rest_is_refused),
        cmocka_unit_test(wrong_version_flags_count_and_tokens_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
