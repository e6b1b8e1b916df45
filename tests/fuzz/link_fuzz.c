/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the attach stream. Byte 0: bit 0 says whose (a worker's or a router's); the rest is
 * the message. What is understood is put into an outbox again, as its sender would. */
#include <stdlib.h>
#include <string.h>

#include "proto/link_int.h"
#include "tests/fuzz/fuzz.h"

enum { OUTBOX_BYTES = 64 << 20 };

static void use_tokens(bt_link_outbox *outbox, const Baton__Worker__V1__Tokens *in)
{
    static bt_token_result results[BT_LINK_TOKENS_PER_EVENT];
    bt_link_tokens tokens = {0};
    if (bt_link_get_tokens(in, &tokens)) {
        FUZZ_EXPECT(tokens.n_results <= BT_LINK_TOKENS_PER_EVENT);
        bt_link_get_results(in, results);
        for (uint32_t i = 0; i < tokens.n_results; i++) {
            FUZZ_EXPECT(results[i].n_top <= BT_TOP_LOGPROBS_MAX);
        }
        tokens.results = results;
        (void)bt_link_put_tokens(outbox, &tokens);
    }
}

static void use_event(bt_link_outbox *outbox, const Baton__Worker__V1__Event *event)
{
    switch (event->event_case) {
    case BATON__WORKER__V1__EVENT__EVENT_HELLO: {
        bt_link_hello hello = {0};
        uint8_t nonce[BT_PROOF_NONCE_BYTES] = {0};
        if (bt_link_get_hello(event->hello, &hello, nonce)) {
            FUZZ_EXPECT(memchr(hello.kv.name, 0, sizeof hello.kv.name) != NULL);
            FUZZ_EXPECT(memchr(hello.model, 0, sizeof hello.model) != NULL);
            (void)bt_link_put_hello(outbox, &hello, nonce);
        }
        return;
    }
    case BATON__WORKER__V1__EVENT__EVENT_LOAD: {
        bt_link_load load = {0};
        bt_link_get_load(event->load, &load);
        (void)bt_link_put_load(outbox, &load);
        return;
    }
    case BATON__WORKER__V1__EVENT__EVENT_TOKENS:
        use_tokens(outbox, event->tokens);
        return;
    case BATON__WORKER__V1__EVENT__EVENT_FINISHED: {
        bt_link_finished finished = {0};
        if (bt_link_get_finished(event->finished, &finished)) {
            FUZZ_EXPECT(memchr(finished.error.text, 0, sizeof finished.error.text) != NULL);
            (void)bt_link_put_finished(outbox, &finished);
        }
        return;
    }
    case BATON__WORKER__V1__EVENT__EVENT_PROOF: {
        uint8_t proof[BT_PROOF_BYTES];
        if (bt_link_get_proof(event->proof, proof)) {
            (void)bt_link_put_proof(outbox, proof);
        }
        return;
    }
    case BATON__WORKER__V1__EVENT__EVENT_PARKED: {
        bt_link_parked parked = {0};
        if (bt_link_get_parked(event->parked, &parked)) {
            FUZZ_EXPECT(memchr(parked.error.text, 0, sizeof parked.error.text) != NULL);
            (void)bt_link_put_parked(outbox, &parked);
        }
        return;
    }
    case BATON__WORKER__V1__EVENT__EVENT_FETCHED: {
        bt_link_fetched fetched = {0};
        if (bt_link_get_fetched(event->fetched, &fetched)) {
            FUZZ_EXPECT(memchr(fetched.error.text, 0, sizeof fetched.error.text) != NULL);
            (void)bt_link_put_fetched(outbox, &fetched);
        }
        return;
    }
    case BATON__WORKER__V1__EVENT__EVENT_EXPLAINED: {
        static bt_link_timeline timelines[BT_LINK_TIMELINES_MAX];
        if (bt_link_get_explained(event->explained, timelines)) {
            FUZZ_EXPECT(event->explained->n_timelines <= BT_LINK_TIMELINES_MAX);
            (void)bt_link_put_explained(outbox, 1, timelines, event->explained->n_timelines);
        }
        return;
    }
    default:
        return;
    }
}

static void use_command(bt_link_outbox *outbox, const Baton__Worker__V1__Command *command)
{
    bt_request_id id;
    uint32_t attempt;
    if (command->command_case == BATON__WORKER__V1__COMMAND__COMMAND_RUN) {
        static bt_sampling sampling;
        bt_link_run run = {0};
        if (bt_link_get_run(command->run, &run, &sampling)) {
            FUZZ_EXPECT(run.n_prompt <= run.n_tokens);
            FUZZ_EXPECT(sampling.n_stop_tokens <= BT_STOP_TOKENS_MAX);
            FUZZ_EXPECT(sampling.n_logit_bias <= BT_LOGIT_BIAS_MAX);
            FUZZ_EXPECT(sampling.n_top_logprobs <= BT_TOP_LOGPROBS_MAX);
            run.sampling = &sampling;
            const bt_status status = bt_link_put_run(outbox, &run);
            FUZZ_EXPECT(status == BT_OK || status == BT_AGAIN || status == BT_EEXHAUSTED);
        }
    } else if (command->command_case == BATON__WORKER__V1__COMMAND__COMMAND_CANCEL) {
        (void)bt_link_get_id(command->cancel->id, &id, &attempt);
    } else if (command->command_case == BATON__WORKER__V1__COMMAND__COMMAND_PARK) {
        (void)bt_link_get_id(command->park->id, &id, &attempt);
    } else if (command->command_case == BATON__WORKER__V1__COMMAND__COMMAND_FETCH) {
        static bt_block_hash ids[BT_LINK_FETCH_BLOCKS_MAX];
        bt_link_fetch fetch = {0};
        if (bt_link_get_fetch(command->fetch, &fetch, ids)) {
            FUZZ_EXPECT(fetch.n_ids >= 1 && fetch.n_ids <= BT_LINK_FETCH_BLOCKS_MAX);
            (void)bt_link_put_fetch(outbox, &fetch);
        }
    } else if (command->command_case == BATON__WORKER__V1__COMMAND__COMMAND_CHALLENGE) {
        uint8_t nonce[BT_PROOF_NONCE_BYTES];
        uint8_t proof[BT_PROOF_BYTES];
        if (bt_link_get_challenge(command->challenge, nonce, proof)) {
            (void)bt_link_put_challenge(outbox, nonce, proof);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_fuzz_input in = {data, size};
    const bool from_worker = (bt_fuzz_u8(&in) & 1) == 0;
    bt_link_arena arena;
    bt_link_arena_init(&arena);
    bt_link_outbox outbox = {.max_bytes = OUTBOX_BYTES};
    if (from_worker) {
        const Baton__Worker__V1__FromWorker *message =
            baton__worker__v1__from_worker__unpack(&arena.allocator, in.len, in.bytes);
        for (size_t i = 0; message && i < message->n_events; i++) {
            use_event(&outbox, message->events[i]);
        }
    } else {
        const Baton__Worker__V1__ToWorker *message =
            baton__worker__v1__to_worker__unpack(&arena.allocator, in.len, in.bytes);
        for (size_t i = 0; message && i < message->n_commands; i++) {
            use_command(&outbox, message->commands[i]);
        }
    }
    bt_link_outbox_clear(&outbox);
    free(outbox.spare);
    bt_link_arena_reset(&arena);
    return 0;
}
