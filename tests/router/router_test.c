/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the life of a request at the router, end to end over loopback: the real router, real
 * gRPC clients, and workers that speak the real link protocol but emit a scripted reply. What
 * may go wrong with workers is in router_failure_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/router/router_rig.h"

#define REPLY "Hello, world"

static const int64_t second_ns = 1000000000;

static Baton__V1__Sampling sampling_of(uint32_t max_tokens)
{
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    sampling.max_tokens_presence_case = BATON__V1__SAMPLING__MAX_TOKENS_PRESENCE_MAX_TOKENS;
    sampling.max_tokens = max_tokens;
    return sampling;
}

/* A split cluster: workers 0 (prefill) and 1 (decode). */
static rig *start_split(void **state)
{
    rig *r = *state;
    rig_start(r);
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    (void)rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    rig_wait_ready(r, true);
    return r;
}

static void a_split_request_gets_its_whole_reply(void **state)
{
    rig *r = start_split(state);
    rig_client *c = rig_generate_text(r, "Say hello, please.");
    rig_expect_ok(c, REPLY);
    const rig_run *p = &r->workers[0].runs[0];
    const rig_run *d = &r->workers[1].runs[0];
    assert_int_equal(p->mode, BT_LINK_MODE_PREFILL);
    assert_int_equal(d->mode, BT_LINK_MODE_DECODE);
    assert_int_equal(p->attempt, 1);
    assert_int_equal(p->n_tokens, 18);
    assert_int_equal(p->n_prompt, 18);
    assert_string_equal(p->peer, "d0");
    assert_string_equal(d->peer, "p0");
    assert_memory_equal(&p->id, &d->id, sizeof p->id);
    assert_int_equal(p->seed, d->seed);
    assert_int_equal(c->seed, p->seed);
    assert_int_equal(c->prompt_tokens, 18);
    assert_string_equal(c->model, "tiny");
    /* 12 letters and the end token */
    assert_int_equal(c->ids.n, 13);
    const Baton__V1__Finish *finish = c->last->finish;
    assert_int_equal(finish->reason, BATON__V1__FINISH_REASON__FINISH_REASON_STOP);
    assert_int_equal(finish->stopped_by_case, BATON__V1__FINISH__STOPPED_BY_STOP_TOKEN_ID);
    assert_int_equal(finish->stop_token_id, RIG_EOS);
    assert_int_equal(finish->usage->generated_tokens, 13);
    assert_string_equal(finish->route->prefill_worker, "p0");
    assert_string_equal(finish->route->decode_worker, "d0");
    assert_int_equal(finish->route->blocks_moved, 4);
    assert_int_equal(finish->route->blocks_skipped, 1);
    assert_int_equal(finish->route->bytes_moved, 4096);
    assert_string_equal(finish->route->transport, "loopback");
    assert_int_equal(finish->route->attempts, 1);
    assert_true(finish->timings->ttft_ms > 0);
    assert_true(finish->timings->prefill_ms == 2.0);
    assert_true(finish->timings->transfer_ms == 3.0);
    assert_true(finish->timings->total_ms >= finish->timings->ttft_ms);
}

static void a_combined_worker_takes_whole_requests(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *w = rig_add_worker(r, "both", BT_LINK_ROLE_BOTH);
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_ok(c, REPLY);
    assert_int_equal(w->runs[0].mode, BT_LINK_MODE_WHOLE);
    assert_string_equal(c->last->finish->route->prefill_worker, "both");
    assert_string_equal(c->last->finish->route->decode_worker, "both");
    assert_int_equal(c->last->finish->route->blocks_moved, 0);
}

static void a_decode_worker_prefills_when_it_may_and_nobody_else_does(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *d = rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    rig_wait_ready(r, true);
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_ok(c, REPLY);
    assert_int_equal(d->runs[0].mode, BT_LINK_MODE_WHOLE);
}

static void without_local_prefill_a_request_waits_for_a_prefill_worker(void **state)
{
    rig *r = *state;
    r->options.local_prefill = false;
    rig_start(r);
    rig_worker *d = rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    rig_client *c = rig_generate_text(r, "x");
    rig_idle(r);
    assert_int_equal(d->n_runs, 0);
    assert_false(bt_router_is_ready(r->router));
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    rig_expect_ok(c, REPLY);
    assert_int_equal(d->runs[0].mode, BT_LINK_MODE_DECODE);
}

static void max_tokens_end_a_reply_by_length(void **state)
{
    rig *r = start_split(state);
    Baton__V1__Sampling sampling = sampling_of(5);
    const Baton__V1__GenerateRequest request = rig_request("abc", &sampling);
    rig_client *c = rig_generate(r, &request);
    rig_expect_ok(c, "Hello");
    assert_int_equal(c->last->finish->reason, BATON__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    assert_int_equal(c->last->finish->stopped_by_case, BATON__V1__FINISH__STOPPED_BY__NOT_SET);
}

static void a_single_token_needs_no_decode_worker(void **state)
{
    rig *r = start_split(state);
    Baton__V1__Sampling sampling = sampling_of(1);
    const Baton__V1__GenerateRequest request = rig_request("abc", &sampling);
    rig_expect_ok(rig_generate(r, &request), "H");
    assert_int_equal(r->workers[0].n_runs, 1);
    assert_false(r->workers[0].runs[0].has_peer);
    assert_int_equal(r->workers[1].n_runs, 0);
}

static void a_first_token_that_ends_the_text_cancels_decode(void **state)
{
    rig *r = start_split(state);
    r->reply = "";
    r->workers[1].hold = true; /* it would wait for KV that nobody keeps */
    rig_client *c = rig_generate_text(r, "x");
    rig_expect_ok(c, "");
    assert_int_equal(c->last->finish->reason, BATON__V1__FINISH_REASON__FINISH_REASON_STOP);
    rig_wait_cancels(&r->workers[1], 1);
}

/* D learns over the KV plane that the first token was the last, and may say so before P does. */
static void a_first_token_that_ends_the_text_may_end_decode_first(void **state)
{
    rig *r = start_split(state);
    r->reply = "";
    rig_worker *p = &r->workers[0];
    rig_worker *d = &r->workers[1];
    p->hold = true;
    d->drops = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_runs(p, 1);
    rig_wait_runs(d, 1);
    rig_idle(r);
    assert_false(c->done);
    rig_resume(p, 0);
    rig_expect_ok(c, "");
    assert_int_equal(c->last->finish->reason, BATON__V1__FINISH_REASON__FINISH_REASON_STOP);
}

static void a_given_seed_is_used_and_a_missing_one_drawn(void **state)
{
    rig *r = start_split(state);
    Baton__V1__Sampling sampling = sampling_of(3);
    sampling.seed_presence_case = BATON__V1__SAMPLING__SEED_PRESENCE_SEED;
    sampling.seed = 0;
    const Baton__V1__GenerateRequest request = rig_request("abc", &sampling);
    rig_client *c = rig_generate(r, &request);
    rig_expect_ok(c, "Hel");
    assert_int_equal(c->seed, 0);
    assert_int_equal(r->workers[0].runs[0].seed, 0);
    rig_client *a = rig_generate_text(r, "abc");
    rig_expect_ok(a, REPLY);
    rig_client *b = rig_generate_text(r, "abc");
    rig_expect_ok(b, REPLY);
    assert_true(a->seed != b->seed);
}

static void a_request_id_is_echoed_or_made(void **state)
{
    rig *r = start_split(state);
    const Baton__V1__GenerateRequest request = rig_request("abc", NULL);
    const bt_rpc_meta meta = {.key = "x-request-id", .value = "my-request.1"};
    rig_client *c = rig_call(r, "/baton.v1.Generation/Generate", &request.base, &meta, 1, 0);
    rig_expect_ok(c, REPLY);
    assert_string_equal(c->label_meta, "my-request.1");
    assert_string_equal(c->request_id, "my-request.1");
    c = rig_generate(r, &request);
    rig_expect_ok(c, REPLY);
    assert_int_equal(strlen(c->label_meta), 32);
    assert_string_equal(c->label_meta, c->request_id);
    const bt_rpc_meta bad = {.key = "x-request-id", .value = "no spaces"};
    c = rig_call(r, "/baton.v1.Generation/Generate", &request.base, &bad, 1, 0);
    rig_expect_error(c, BT_RPC_INVALID_ARGUMENT, "x-request-id must be");
}

static void a_stop_string_ends_the_reply_on_every_worker(void **state)
{
    rig *r = start_split(state);
    r->workers[1].emit_max = 9; /* the stop string ends there; D would go on */
    char *stop[] = {(char[]){"wo"}, (char[]){", wx"}};
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    sampling.n_stop = 2;
    sampling.stop = stop;
    const Baton__V1__GenerateRequest request = rig_request("abc", &sampling);
    rig_client *c = rig_generate(r, &request);
    rig_expect_ok(c, "Hello, ");
    assert_int_equal(c->last->finish->stopped_by_case, BATON__V1__FINISH__STOPPED_BY_STOP);
    assert_string_equal(c->last->finish->stop, "wo");
    assert_int_equal(c->last->finish->usage->generated_tokens, 9);
    rig_wait_cancels(&r->workers[1], 1);
    sampling.include_stop = 1;
    c = rig_generate(r, &request);
    rig_expect_ok(c, "Hello, wo");
}

static void an_echoed_prompt_comes_first(void **state)
{
    rig *r = start_split(state);
    Baton__V1__Sampling sampling = sampling_of(2);
    sampling.echo = 1;
    const Baton__V1__GenerateRequest request = rig_request("the prompt", &sampling);
    rig_client *c = rig_generate(r, &request);
    rig_expect_ok(c, "He");
    assert_int_equal(c->prompt_text.len, 10);
    assert_memory_equal(c->prompt_text.bytes, "the prompt", 10);
    assert_int_equal(c->prompt_ids.n, 10);
    assert_false(r->workers[0].runs[0].echo); /* the router has the prompt itself */
}

static void a_scored_prompt_comes_from_the_prefill_worker(void **state)
{
    rig *r = start_split(state);
    Baton__V1__Sampling sampling = sampling_of(2);
    sampling.echo = 1;
    sampling.logprobs = 1;
    sampling.n_top_logprobs = 3;
    r->workers[0].n_top = 3;
    r->workers[1].n_top = 3;
    const Baton__V1__GenerateRequest request = rig_request("the prompt", &sampling);
    rig_client *c = rig_generate(r, &request);
    rig_expect_ok(c, "He");
    assert_int_equal(c->prompt_ids.n, 10);
    assert_int_equal(c->n_logprobs, 12);
    assert_int_equal(c->n_top, 6);
    assert_true(r->workers[0].runs[0].echo);
    assert_false(r->workers[1].runs[0].echo);

    sampling.max_tokens = 0; /* the prompt's score alone */
    c = rig_generate(r, &request);
    rig_expect_ok(c, "");
    assert_int_equal(c->prompt_ids.n, 10);
    assert_int_equal(c->ids.n, 0);
}

static void tokens_that_come_early_or_twice_make_the_same_reply(void **state)
{
    rig *r = start_split(state);
    r->workers[0].hold = true; /* D is through before P's first token comes */
    r->workers[0].repeat = true;
    r->workers[1].repeat = true;
    r->workers[1].wrong_duplicates = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_runs(&r->workers[1], 1);
    rig_idle(r);
    assert_int_equal(c->ids.n, 0);
    rig_resume(&r->workers[0], 0);
    rig_expect_ok(c, REPLY);
    assert_int_equal(c->ids.n, 13);
}

static void a_cancelled_request_stops_on_all_workers(void **state)
{
    rig *r = start_split(state);
    r->workers[0].hold = true;
    r->workers[1].hold = true;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_runs(&r->workers[0], 1);
    rig_wait_runs(&r->workers[1], 1);
    bt_rpc_call_cancel(c->call);
    rig_wait_cancels(&r->workers[0], 1);
    rig_wait_cancels(&r->workers[1], 1);
    rig_expect_error(c, BT_RPC_CANCELLED, "");
    r->workers[0].hold = false;
    r->workers[1].hold = false;
    rig_expect_ok(rig_generate_text(r, "y"), REPLY);
}

static void a_deadline_stops_on_all_workers(void **state)
{
    rig *r = *state;
    r->options.request_time_ms = 2500; /* less than the silence of workers that is allowed */
    (void)start_split(state);
    r->workers[1].emit_max = 3;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 3);
    rig_pass(r, 5 * second_ns / 2);
    rig_wait_cancels(&r->workers[1], 1);
    rig_expect_error(c, BT_RPC_DEADLINE_EXCEEDED, "and 3 generated tokens");
    assert_true(r->workers[0].runs[0].deadline_left_ns <= 5 * second_ns / 2);
    /* A client's own deadline, shorter than the router's. */
    const Baton__V1__GenerateRequest request = rig_request("abc", NULL);
    c = rig_call(r, "/baton.v1.Generation/Generate", &request.base, NULL, 0, 2 * second_ns);
    rig_wait_tokens(c, 3);
    rig_pass(r, 2 * second_ns);
    rig_wait_cancels(&r->workers[1], 2);
    rig_expect_error(c, BT_RPC_DEADLINE_EXCEEDED, "");
    assert_true(r->workers[1].runs[1].deadline_left_ns <= 2 * second_ns + second_ns / 100);
}

/* A reply that a connection's window can't hold, in pieces with many logprobs. */
static rig_client *start_long_reply(rig *r, uint32_t n_tokens, char **reply)
{
    *reply = malloc((size_t)n_tokens + 1);
    assert_non_null(*reply);
    memset(*reply, 'x', n_tokens);
    (*reply)[n_tokens] = '\0';
    r->reply = *reply;
    r->workers[1].emit_max = 100;
    r->workers[0].n_top = 20;
    r->workers[1].n_top = 20;
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    sampling.logprobs = 1;
    sampling.n_top_logprobs = 20;
    const Baton__V1__GenerateRequest request = rig_request("abc", &sampling);
    rig_client *c = rig_generate(r, &request);
    rig_wait_tokens(c, 1);
    c->hold = true; /* one more message comes, then the client asks for none */
    return c;
}

static void read_on(rig_client *c)
{
    c->hold = false;
    bt_rpc_call_recv(c->call);
}

static void a_client_that_does_not_read_is_cut_off(void **state)
{
    rig *r = *state;
    r->options.slow_client_bytes = 1 << 20;
    (void)start_split(state);
    char *reply;
    rig_client *c = start_long_reply(r, 100000, &reply);
    rig_worker *d = &r->workers[1];
    for (uint32_t n = 2000; n <= 40000 && d->n_cancels == 0; n += 2000) {
        rig_resume(d, n);
        rig_idle(r);
    }
    rig_wait_cancels(d, 1);
    read_on(c);
    rig_expect_error(c, BT_RPC_ABORTED, "reads too slowly");
    free(reply);
}

static void a_complete_reply_that_nobody_reads_holds_no_slot_for_ever(void **state)
{
    rig *r = *state;
    r->options.slow_client_bytes = 64 << 20;
    r->options.client_bytes_max = 0;
    (void)start_split(state);
    char *reply;
    rig_client *c = start_long_reply(r, 40000, &reply);
    rig_worker *d = &r->workers[1];
    for (uint32_t n = 2000; n <= 42000; n += 2000) {
        rig_resume(d, n);
        rig_idle(r);
    }
    rig_pass(r, 30 * second_ns);
    rig_wait_metric(r, "baton_router_requests_running 0");
    read_on(c);
    rig_expect_error(c, BT_RPC_ABORTED, "did not read the rest of its reply");
    free(reply);
}

static void a_client_that_takes_nothing_for_too_long_is_cut_off_in_mid_stream(void **state)
{
    rig *r = *state;
    r->options.slow_client_bytes = 64 << 20;
    (void)start_split(state);
    char *reply;
    rig_client *c = start_long_reply(r, 100000, &reply);
    rig_worker *d = &r->workers[1];
    for (uint32_t n = 2000; n <= 36000; n += 2000) {
        rig_resume(d, n);
        rig_idle(r);
    }
    rig_pass(r, 29 * second_ns);
    rig_idle(r);
    assert_int_equal(d->n_cancels, 0);
    rig_pass(r, 1 * second_ns);
    rig_wait_cancels(d, 1);
    read_on(c);
    rig_expect_error(c, BT_RPC_ABORTED, "it has taken nothing of its reply for 30000 ms");
    free(reply);
}

/* Unread replies and requests of one client count together. */
static void a_client_has_so_many_bytes_over_all_its_streams(void **state)
{
    rig *r = *state;
    r->options.slow_client_bytes = 64 << 20;
    r->options.client_bytes_max = 1 << 20;
    (void)start_split(state);
    char *reply;
    rig_client *c = start_long_reply(r, 100000, &reply);
    rig_worker *d = &r->workers[1];
    for (uint32_t n = 1000; n <= 40000 && d->n_cancels == 0; n += 1000) {
        rig_resume(d, n);
        rig_idle(r);
    }
    rig_wait_cancels(d, 1);
    read_on(c);
    rig_expect_error(c, BT_RPC_ABORTED, "client '127.0.0.1' has");
    free(reply);
}

/* Whatever part of a request they are in. */
static void bytes_of_every_part_of_a_request_count(void **state)
{
    rig *r = *state;
    r->options.client_bytes_max = 1 << 20;
    (void)start_split(state);
    char *text = malloc((1 << 20) + 1);
    assert_non_null(text);
    memset(text, 'x', 1 << 20);
    text[1 << 20] = '\0';
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    Baton__V1__ChatMessage message = BATON__V1__CHAT_MESSAGE__INIT;
    Baton__V1__ChatMessage *messages[] = {&message};
    Baton__V1__Chat chat = BATON__V1__CHAT__INIT;
    chat.n_messages = 1;
    chat.messages = messages;
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request.chat = &chat;
    char **const parts[] = {&message.role, &message.content};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        message.role = (char[]){"user"};
        message.content = (char[]){"hi"};
        *parts[i] = text;
        rig_expect_error(rig_generate(r, &request), BT_RPC_RESOURCE_EXHAUSTED, "bytes under way");
    }
    free(text);
}

static void chat_and_token_ids_are_prompts_too(void **state)
{
    rig *r = start_split(state);
    Baton__V1__ChatMessage message = BATON__V1__CHAT_MESSAGE__INIT;
    message.role = (char[]){"user"};
    message.content = (char[]){"hi"};
    Baton__V1__ChatMessage *messages[] = {&message};
    Baton__V1__Chat chat = BATON__V1__CHAT__INIT;
    chat.n_messages = 1;
    chat.messages = messages;
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request.chat = &chat;
    rig_expect_ok(rig_generate(r, &request), REPLY);
    const rig_run *run = &r->workers[0].runs[0];
    assert_int_equal(run->tokens[0], 257); /* <|im_start|> */
    assert_int_equal(run->tokens[1], 'u');

    uint32_t ids[] = {1, 2, 258};
    Baton__V1__TokenIds list = BATON__V1__TOKEN_IDS__INIT;
    list.n_ids = 3;
    list.ids = ids;
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    request.token_ids = &list;
    rig_expect_ok(rig_generate(r, &request), REPLY);
    assert_int_equal(r->workers[0].runs[1].n_tokens, 3);
    assert_int_equal(r->workers[0].runs[1].tokens[2], 258);
}

static void a_cache_salt_changes_the_chain(void **state)
{
    rig *r = start_split(state);
    Baton__V1__GenerateRequest request = rig_request("abc", NULL);
    rig_expect_ok(rig_generate(r, &request), REPLY);
    rig_expect_ok(rig_generate(r, &request), REPLY);
    request.cache_salt = (char[]){"tenant"};
    rig_expect_ok(rig_generate(r, &request), REPLY);
    const rig_run *runs = r->workers[0].runs;
    assert_memory_equal(&runs[0].chain_root, &runs[1].chain_root, sizeof(bt_block_hash));
    assert_memory_not_equal(&runs[0].chain_root, &runs[2].chain_root, sizeof(bt_block_hash));
}

static void requests_follow_their_cached_prefix(void **state)
{
    rig *r = start_split(state);
    rig_worker *p1 = rig_add_worker(r, "p1", BT_LINK_ROLE_PREFILL);
    int32_t tokens[64];
    char text[65];
    for (int i = 0; i < 64; i++) {
        text[i] = (char)('a' + i % 7);
        tokens[i] = text[i];
    }
    text[64] = '\0';
    bt_block_hash root;
    bt_block_hash chain[4];
    bt_block_id_root(&r->options.cluster_key, p1->hello.numerics_id, NULL, 0, &root);
    assert_int_equal(bt_block_id_chain(&root, tokens, 64, chain), 4);
    bt_link_worker_blocks(p1->link, BT_LINK_BLOCKS_STORED, chain, 4);
    bt_link_worker_flush(p1->link);
    rig_wait_metric(r, "baton_router_prefix_map_entries 4");
    rig_expect_ok(rig_generate_text(r, text), REPLY);
    rig_expect_ok(rig_generate_text(r, text), REPLY);
    assert_int_equal(p1->n_runs, 2);
    bt_link_worker_blocks(p1->link, BT_LINK_BLOCKS_EVICTED, chain, 4);
    bt_link_worker_flush(p1->link);
    rig_wait_metric(r, "baton_router_prefix_map_entries 0");
    rig_expect_ok(rig_generate_text(r, text), REPLY);
    assert_int_equal(p1->n_runs, 2);
}

/* The clock jumps past the deadline: the next token is not passed on, though no timer has rung. */
static void a_token_that_comes_after_the_deadline_is_not_passed_on(void **state)
{
    rig *r = *state;
    rig_start(r);
    rig_worker *b0 = rig_add_worker(r, "b0", BT_LINK_ROLE_BOTH);
    b0->emit_max = 3;
    rig_client *c = rig_generate_text(r, "x");
    rig_wait_tokens(c, 3);
    bt_fake_clock_advance(r->clock, (int64_t)r->options.request_time_ms * 1000000);
    rig_resume(b0, 0);
    rig_expect_error(c, BT_RPC_DEADLINE_EXCEEDED, "3 generated tokens");
    assert_int_equal(c->ids.n, 3);
}

static const struct CMUnitTest tests[] = {
#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
#define TIMED_TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup_timed, rig_teardown_timed)
    RIG_TEST(a_split_request_gets_its_whole_reply),
    RIG_TEST(a_combined_worker_takes_whole_requests),
    RIG_TEST(a_decode_worker_prefills_when_it_may_and_nobody_else_does),
    RIG_TEST(without_local_prefill_a_request_waits_for_a_prefill_worker),
    RIG_TEST(max_tokens_end_a_reply_by_length),
    RIG_TEST(a_single_token_needs_no_decode_worker),
    RIG_TEST(a_first_token_that_ends_the_text_cancels_decode),
    RIG_TEST(a_first_token_that_ends_the_text_may_end_decode_first),
    RIG_TEST(a_given_seed_is_used_and_a_missing_one_drawn),
    RIG_TEST(a_request_id_is_echoed_or_made),
    RIG_TEST(a_stop_string_ends_the_reply_on_every_worker),
    RIG_TEST(an_echoed_prompt_comes_first),
    RIG_TEST(a_scored_prompt_comes_from_the_prefill_worker),
    RIG_TEST(tokens_that_come_early_or_twice_make_the_same_reply),
    RIG_TEST(a_cancelled_request_stops_on_all_workers),
    TIMED_TEST(a_deadline_stops_on_all_workers),
    RIG_TEST(a_client_that_does_not_read_is_cut_off),
    TIMED_TEST(a_token_that_comes_after_the_deadline_is_not_passed_on),
    TIMED_TEST(a_complete_reply_that_nobody_reads_holds_no_slot_for_ever),
    TIMED_TEST(a_client_that_takes_nothing_for_too_long_is_cut_off_in_mid_stream),
    RIG_TEST(a_client_has_so_many_bytes_over_all_its_streams),
    RIG_TEST(bytes_of_every_part_of_a_request_count),
    RIG_TEST(chat_and_token_ids_are_prompts_too),
    RIG_TEST(a_cache_salt_changes_the_chain),
    RIG_TEST(requests_follow_their_cached_prefix),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
