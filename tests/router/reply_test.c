/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that a reply is the same whatever order, grouping and repetition its token events came
 * in, and however the client took it: tokens in index order without gap or double, text equal
 * to the whole detokenized at once. The model is a byte vocabulary, the seed is fixed. */
#include "router/reply.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/detokenizer.h"
#include "tests/support/tiny_model.h"

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int read_tokenizer(void **state)
{
    char path[] = "/tmp/reply_test_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(bt_tiny_model_write(&bt_tiny_model_odd, path), BT_OK);
    bt_error err;
    bt_gguf *gguf = NULL;
    assert_int_equal(bt_gguf_open(path, &gguf, &err), BT_OK);
    bt_tokenizer *tokenizer = NULL;
    assert_int_equal(bt_tokenizer_create(gguf, &tokenizer, &err), BT_OK);
    bt_gguf_close(gguf);
    unlink(path);
    *state = tokenizer;
    return 0;
}

static int destroy_tokenizer(void **state)
{
    bt_tokenizer_destroy(*state);
    return 0;
}

static bt_router_reply *make_reply(const bt_tokenizer *tokenizer, const bt_sampling *sampling,
                                   const char *stop)
{
    const size_t stop_len = stop == NULL ? 0 : strlen(stop);
    const bt_router_reply_options options = {
        .tokenizer = tokenizer,
        .sampling = sampling,
        .stops = &stop,
        .stop_lens = &stop_len,
        .n_stops = stop != NULL,
    };
    bt_router_reply *reply = NULL;
    assert_int_equal(bt_router_reply_create(&options, &reply, NULL), BT_OK);
    return reply;
}

/* Takes all that is there; checks that indices go on where they were. */
static void take(bt_router_reply *reply, uint32_t *next_index, bt_text *text)
{
    bt_router_piece piece;
    while (bt_router_reply_peek(reply, &piece)) {
        assert_int_equal(piece.first_index, *next_index);
        *next_index += piece.n_results;
        assert_int_equal(bt_text_append(text, piece.text, piece.text_len), BT_OK);
        bt_router_reply_consume(reply, &piece);
    }
}

static void push_one(bt_router_reply *reply, uint32_t index, int32_t token)
{
    const bt_token_result result = {.token = token};
    assert_int_equal(bt_router_reply_push(reply, index, &result, 1), BT_OK);
}

static void push_text(bt_router_reply *reply, uint32_t first_index, const char *text)
{
    for (uint32_t i = 0; text[i] != '\0'; i++) {
        push_one(reply, first_index + i, (uint8_t)text[i]);
    }
}

static void any_order_and_repetition_gives_the_same_reply(void **state)
{
    const bt_tokenizer *tokenizer = *state;
    const bt_sampling sampling = {.ignore_eos = true};
    uint64_t random = 12345;
    for (int round = 0; round < 500; round++) {
        bt_token_result results[40];
        int32_t ids[40];
        const uint32_t n = 1 + (uint32_t)(next_random(&random) % 40);
        for (uint32_t i = 0; i < n; i++) {
            /* Bytes of all kinds: most sequences are no valid UTF-8. */
            ids[i] = (int32_t)(next_random(&random) % 256);
            results[i] = (bt_token_result){.token = ids[i]};
        }
        bt_text want = {0};
        assert_int_equal(bt_detokenize(tokenizer, ids, n, 0, &want), BT_OK);

        bt_router_reply *reply = make_reply(tokenizer, &sampling, NULL);
        bt_text got = {0};
        uint32_t next_index = 0;
        uint32_t n_released = 0;
        while (n_released < n) {
            const uint32_t first = (uint32_t)(next_random(&random) % n);
            const uint32_t len = 1 + (uint32_t)(next_random(&random) % (n - first));
            assert_int_equal(bt_router_reply_push(reply, first, results + first, len), BT_OK);
            if (next_random(&random) % 3 == 0) {
                take(reply, &next_index, &got);
            }
            (void)bt_router_reply_tokens(reply, &n_released);
        }
        assert_false(bt_router_reply_has_gap(reply));
        assert_int_equal(bt_router_reply_finish(reply), BT_OK);
        take(reply, &next_index, &got);
        assert_int_equal(next_index, n);
        assert_int_equal(got.len, want.len);
        assert_memory_equal(got.bytes, want.bytes, want.len);
        assert_int_equal(bt_router_reply_mismatches(reply), 0);
        assert_int_equal(bt_router_reply_pending_bytes(reply), 0);
        bt_text_deinit(&got);
        bt_text_deinit(&want);
        bt_router_reply_destroy(reply);
    }
}

static void a_duplicate_that_differs_is_counted_and_dropped(void **state)
{
    const bt_sampling sampling = {0};
    bt_router_reply *reply = make_reply(*state, &sampling, NULL);
    push_text(reply, 0, "ab");
    push_one(reply, 1, 'x');
    push_one(reply, 5, 'f');
    push_one(reply, 5, 'g');
    assert_int_equal(bt_router_reply_mismatches(reply), 2);
    assert_true(bt_router_reply_has_gap(reply));
    uint32_t n;
    const int32_t *tokens = bt_router_reply_tokens(reply, &n);
    assert_int_equal(n, 2);
    assert_int_equal(tokens[1], 'b');
    bt_router_reply_destroy(reply);
}

static void what_no_worker_should_send_is_refused(void **state)
{
    const bt_sampling sampling = {0};
    bt_router_reply *reply = make_reply(*state, &sampling, NULL);
    bt_token_result bad = {.token = BT_TINY_VOCAB};
    assert_int_equal(bt_router_reply_push(reply, 0, &bad, 1), BT_EPROTOCOL);
    bad.token = -1;
    assert_int_equal(bt_router_reply_push(reply, 0, &bad, 1), BT_EPROTOCOL);
    bad.token = 'a';
    assert_int_equal(bt_router_reply_push_prompt(reply, 1, &bad, 1, 0), BT_EPROTOCOL);
    bt_status status = BT_OK;
    uint32_t n_kept = 0;
    while (status == BT_OK) {
        status = bt_router_reply_push(reply, 10 + n_kept, &bad, 1);
        n_kept += status == BT_OK;
    }
    assert_int_equal(status, BT_EPROTOCOL);
    assert_int_equal(n_kept, BT_ROUTER_EARLY_TOKENS_MAX);
    bt_router_reply_destroy(reply);
}

static void end_and_stop_tokens_are_reported_but_not_shown(void **state)
{
    const bt_sampling sampling = {.n_stop_tokens = 1, .stop_tokens = {'!'}};
    bt_router_reply *reply = make_reply(*state, &sampling, NULL);
    push_text(reply, 0, "ok");
    assert_false(bt_router_reply_has_end(reply));
    push_one(reply, 2, '!');
    assert_true(bt_router_reply_has_end(reply));
    push_one(reply, 3, BT_TINY_EOS);
    assert_true(bt_router_reply_has_end(reply));
    bt_text text = {0};
    uint32_t next_index = 0;
    take(reply, &next_index, &text);
    assert_int_equal(next_index, 4);
    assert_int_equal(text.len, 2);
    assert_memory_equal(text.bytes, "ok", 2);
    bt_text_deinit(&text);
    bt_router_reply_destroy(reply);
}

static void a_stop_string_ends_text_and_tokens(void **state)
{
    const bt_sampling sampling = {0};
    bt_router_reply *reply = make_reply(*state, &sampling, "END");
    push_text(reply, 0, "so EN");
    bt_text text = {0};
    uint32_t next_index = 0;
    take(reply, &next_index, &text);
    assert_int_equal(text.len, 3);
    assert_int_equal(next_index, 5);
    push_text(reply, 5, "Dxyz");
    assert_int_equal(bt_router_reply_stop_idx(reply), 0);
    assert_int_equal(bt_router_reply_finish(reply), BT_OK);
    take(reply, &next_index, &text);
    assert_int_equal(next_index, 6);
    assert_int_equal(text.len, 3);
    bt_text_deinit(&text);
    bt_router_reply_destroy(reply);
}

static void held_back_text_comes_with_the_end(void **state)
{
    const bt_sampling sampling = {0};
    bt_router_reply *reply = make_reply(*state, &sampling, "END");
    push_text(reply, 0, "EN\xE2\x82");
    bt_text text = {0};
    uint32_t next_index = 0;
    take(reply, &next_index, &text);
    assert_int_equal(text.len, 0);
    assert_int_equal(bt_router_reply_finish(reply), BT_OK);
    take(reply, &next_index, &text);
    assert_int_equal(text.len, 5);
    assert_memory_equal(text.bytes, "EN\xEF\xBF\xBD", 5);
    bt_text_deinit(&text);
    bt_router_reply_destroy(reply);
}

static void the_prompt_comes_first_in_pieces_of_bounded_size(void **state)
{
    const bt_sampling sampling = {.echo = true, .logprobs = true};
    bt_router_reply *reply = make_reply(*state, &sampling, NULL);
    push_one(reply, 0, 'z');
    for (uint32_t i = 0; i < 600; i++) {
        const bt_token_result result = {.token = 'p', .has_logprob = i > 0};
        assert_int_equal(bt_router_reply_push_prompt(reply, i, &result, 1, 1), BT_OK);
        assert_int_equal(bt_router_reply_push_prompt(reply, i / 2, &result, 1, 1), BT_OK);
    }
    assert_int_equal(bt_router_reply_prompt_count(reply), 600);
    uint32_t n_prompt = 0;
    size_t n_text = 0;
    bt_router_piece piece;
    while (bt_router_reply_peek(reply, &piece) && piece.is_prompt) {
        assert_true(piece.n_results <= 256);
        assert_false(piece.is_all);
        assert_int_equal(piece.first_index, n_prompt);
        n_prompt += piece.n_results;
        n_text += piece.text_len;
        bt_router_reply_consume(reply, &piece);
    }
    assert_int_equal(n_prompt, 600);
    assert_int_equal(n_text, 599); /* the first one was not the client's */
    assert_true(piece.is_all);
    assert_int_equal(piece.n_results, 1);
    bt_router_reply_destroy(reply);
}

/* The decode worker's tokens may be here before the prefill worker's scores of the prompt. */
static void output_waits_for_the_whole_prompt(void **state)
{
    const bt_sampling sampling = {.echo = true, .logprobs = true};
    bt_router_reply *reply = make_reply(*state, &sampling, NULL);
    bt_router_reply_expect_prompt(reply, 3);
    push_text(reply, 0, "out");
    bt_router_piece piece;
    assert_false(bt_router_reply_peek(reply, &piece));
    assert_true(bt_router_reply_has_gap(reply));
    const bt_token_result prompt[] = {{.token = 'p'}, {.token = 'q'}, {.token = 0xC3}};
    assert_int_equal(bt_router_reply_push_prompt(reply, 0, prompt, 2, 0), BT_OK);
    assert_true(bt_router_reply_peek(reply, &piece) && piece.is_prompt);
    bt_router_reply_consume(reply, &piece);
    assert_false(bt_router_reply_peek(reply, &piece));
    assert_int_equal(bt_router_reply_push_prompt(reply, 2, &prompt[2], 1, 0), BT_OK);
    assert_false(bt_router_reply_has_gap(reply));
    assert_true(bt_router_reply_peek(reply, &piece) && piece.is_prompt);
    assert_int_equal(piece.text_len, 3); /* half a character ends the prompt: U+FFFD, at once */
    bt_router_reply_consume(reply, &piece);
    assert_true(bt_router_reply_peek(reply, &piece) && !piece.is_prompt);
    assert_int_equal(piece.n_results, 3);
    bt_router_reply_destroy(reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_and_repetition_gives_the_same_reply),
        cmocka_unit_test(a_duplicate_that_differs_is_counted_and_dropped),
        cmocka_unit_test(what_no_worker_should_send_is_refused),
        cmocka_unit_test(end_and_stop_tokens_are_reported_but_not_shown),
        cmocka_unit_test(a_stop_string_ends_text_and_tokens),
        cmocka_unit_test(held_back_text_comes_with_the_end),
        cmocka_unit_test(the_prompt_comes_first_in_pieces_of_bounded_size),
        cmocka_unit_test(output_waits_for_the_whole_prompt),
    };
    return cmocka_run_group_tests(tests, read_tokenizer, destroy_tokenizer);
}
