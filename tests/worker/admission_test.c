/* SPDX-License-Identifier: Apache-2.0 */
/* Each limit is tried at its last good and its first bad value. */
#include "worker/admission.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const int32_t tokens[128] = {0};

static bt_admission limits(void)
{
    return (bt_admission){
        .modes = 1u << BT_LINK_MODE_PREFILL | 1u << BT_LINK_MODE_DECODE | 1u << BT_LINK_MODE_WHOLE,
        .context = 100,
        .n_vocab = 10,
        .pool_blocks = 4,
    };
}

static bt_sampling greedy(uint32_t max_tokens)
{
    return (bt_sampling){.top_p = 1, .repetition_penalty = 1, .max_tokens = max_tokens};
}

static bt_link_run run_of(bt_link_mode mode, uint32_t n, const bt_sampling *sampling)
{
    return (bt_link_run){
        .mode = mode, .tokens = tokens, .n_tokens = n, .n_prompt = n, .sampling = sampling};
}

static bt_status check(const bt_admission *admission, const bt_link_run *run)
{
    bt_error err = {{0}};
    const bt_status status = bt_admission_check(admission, run, &err);
    assert_true((status == BT_OK) == (err.text[0] == '\0'));
    return status;
}

static void mode_must_be_the_roles(void **state)
{
    (void)state;
    bt_admission admission = limits();
    const bt_sampling sampling = greedy(1);
    bt_link_run run = run_of(BT_LINK_MODE_WHOLE, 5, &sampling);
    assert_int_equal(check(&admission, &run), BT_OK);
    admission.modes = 1u << BT_LINK_MODE_PREFILL;
    assert_int_equal(check(&admission, &run), BT_EUNSUPPORTED);
}

static void prompt_has_one_token_at_least(void **state)
{
    (void)state;
    const bt_admission admission = limits();
    const bt_sampling sampling = greedy(1);
    bt_link_run run = run_of(BT_LINK_MODE_PREFILL, 0, &sampling);
    assert_int_equal(check(&admission, &run), BT_EINVAL);
    run = run_of(BT_LINK_MODE_PREFILL, 1, &sampling);
    assert_int_equal(check(&admission, &run), BT_OK);
    run.n_prompt = 2;
    assert_int_equal(check(&admission, &run), BT_EINVAL);
}

static void context_leaves_room_for_one_more_token(void **state)
{
    (void)state;
    bt_admission admission = limits();
    admission.pool_blocks = 100;
    const bt_sampling sampling = greedy(1);
    bt_link_run run = run_of(BT_LINK_MODE_WHOLE, 99, &sampling);
    assert_int_equal(check(&admission, &run), BT_OK);
    run = run_of(BT_LINK_MODE_WHOLE, 100, &sampling);
    assert_int_equal(check(&admission, &run), BT_ERANGE);
}

static void pool_must_hold_the_prompt_and_what_may_follow(void **state)
{
    (void)state;
    const bt_admission admission = limits(); /* 64 positions */
    bt_sampling sampling = greedy(30);
    bt_link_run run = run_of(BT_LINK_MODE_PREFILL, 64, &sampling);
    assert_int_equal(check(&admission, &run), BT_OK);
    run = run_of(BT_LINK_MODE_PREFILL, 65, &sampling);
    assert_int_equal(check(&admission, &run), BT_EEXHAUSTED);
    run = run_of(BT_LINK_MODE_WHOLE, 34, &sampling);
    assert_int_equal(check(&admission, &run), BT_OK);
    run = run_of(BT_LINK_MODE_WHOLE, 35, &sampling);
    assert_int_equal(check(&admission, &run), BT_EEXHAUSTED);
    sampling.max_tokens = 0; /* the prompt's scores alone; decode keeps room for a token */
    run = run_of(BT_LINK_MODE_WHOLE, 63, &sampling);
    assert_int_equal(check(&admission, &run), BT_OK);
    run = run_of(BT_LINK_MODE_WHOLE, 64, &sampling);
    assert_int_equal(check(&admission, &run), BT_EEXHAUSTED);
    sampling.max_tokens = UINT32_MAX; /* then the context is the limit: 7 blocks */
    run = run_of(BT_LINK_MODE_WHOLE, 1, &sampling);
    assert_int_equal(check(&admission, &run), BT_EEXHAUSTED);
}

static void pull_needs_a_peer_with_an_address(void **state)
{
    (void)state;
    const bt_admission admission = limits();
    const bt_sampling sampling = greedy(1);
    bt_link_run run = run_of(BT_LINK_MODE_DECODE, 5, &sampling);
    assert_int_equal(check(&admission, &run), BT_EINVAL);
    run.has_peer = true;
    assert_int_equal(check(&admission, &run), BT_EMISMATCH);
    snprintf(run.peer.kv_unix, sizeof run.peer.kv_unix, "/run/kv");
    assert_int_equal(check(&admission, &run), BT_OK);
    memset(run.peer.kv_tcp, 'a', sizeof run.peer.kv_tcp); /* longer than a KV address */
    assert_int_equal(check(&admission, &run), BT_EMISMATCH);
}

static void tokens_must_be_in_the_vocabulary(void **state)
{
    (void)state;
    const bt_admission admission = limits();
    const bt_sampling sampling = greedy(1);
    static const int32_t good[] = {0, 9};
    static const int32_t large[] = {0, 10};
    static const int32_t negative[] = {-1, 0};
    bt_link_run run = run_of(BT_LINK_MODE_WHOLE, 2, &sampling);
    run.tokens = good;
    assert_int_equal(check(&admission, &run), BT_OK);
    run.tokens = large;
    assert_int_equal(check(&admission, &run), BT_EINVAL);
    run.tokens = negative;
    assert_int_equal(check(&admission, &run), BT_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mode_must_be_the_roles),
        cmocka_unit_test(prompt_has_one_token_at_least),
        cmocka_unit_test(context_leaves_room_for_one_more_token),
        cmocka_unit_test(pool_must_hold_the_prompt_and_what_may_follow),
        cmocka_unit_test(pull_needs_a_peer_with_an_address),
        cmocka_unit_test(tokens_must_be_in_the_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
