/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that every field of a request is checked and answered with INVALID_ARGUMENT and a text
 * that names it, that malformed messages do no harm, and that the unary methods answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/router/router_rig.h"

static int setup(void **state)
{
    (void)rig_setup(state);
    rig *r = *state;
    rig_start(r);
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    (void)rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    rig_wait_ready(r, true);
    return 0;
}

typedef struct bad_request {
    Baton__V1__GenerateRequest request;
    Baton__V1__Sampling sampling;
} bad_request;

static void init_request(bad_request *b)
{
    baton__v1__generate_request__init(&b->request);
    baton__v1__sampling__init(&b->sampling);
    b->request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TEXT;
    b->request.text = (char *)(uintptr_t) "hello";
    b->request.sampling = &b->sampling;
}

/* The last client slot is used again: there are more bad requests than slots. */
static void expect_invalid(rig *r, const bad_request *b, const char *part)
{
    rig_client *c = rig_generate(r, &b->request);
    rig_expect_error(c, BT_RPC_INVALID_ARGUMENT, part);
    assert_int_equal(c->n_messages, 0);
    r->n_clients--;
}

static void numbers_out_of_range_are_named(void **state)
{
    rig *r = *state;
    bad_request b;
#define EXPECT_INVALID(field, value, part)                                                         \
    do {                                                                                           \
        init_request(&b);                                                                          \
        b.field = (value);                                                                         \
        expect_invalid(r, &b, part);                                                               \
    } while (0)
    EXPECT_INVALID(sampling.temperature, 2.5F, "sampling.temperature is 2.5: must be in [0, 2]");
    EXPECT_INVALID(sampling.temperature, __builtin_nanf(""), "sampling.temperature is nan");
    EXPECT_INVALID(sampling.top_p, 1.5F, "sampling.top_p is 1.5: must be in (0, 1]");
    EXPECT_INVALID(sampling.min_p, 1.0F, "sampling.min_p is 1: must be in [0, 1)");
    EXPECT_INVALID(sampling.repetition_penalty, -1.0F, "sampling.repetition_penalty is -1");
    EXPECT_INVALID(sampling.presence_penalty, 3.0F, "sampling.presence_penalty is 3");
    EXPECT_INVALID(sampling.frequency_penalty, -3.0F, "sampling.frequency_penalty is -3");
    EXPECT_INVALID(sampling.n_top_logprobs, 21,
                   "sampling.n_top_logprobs is 21: must be in [0, 20]");
    EXPECT_INVALID(sampling.n_top_logprobs, 2, "without sampling.logprobs");
    EXPECT_INVALID(request.priority, 101, "priority is 101: must be in [-100, 100]");
    EXPECT_INVALID(request.ttft_target_ms, -1, "ttft_target_ms is -1");
    EXPECT_INVALID(request.tpot_target_ms, __builtin_nan(""), "tpot_target_ms is nan");
    EXPECT_INVALID(request.prompt_case, BATON__V1__GENERATE_REQUEST__PROMPT__NOT_SET,
                   "prompt is missing");
    EXPECT_INVALID(request.text, (char *)(uintptr_t) "", "the prompt is empty");
    init_request(&b);
    b.sampling.max_tokens_presence_case = BATON__V1__SAMPLING__MAX_TOKENS_PRESENCE_MAX_TOKENS;
    expect_invalid(r, &b, "sampling.max_tokens is 0");
    b.sampling.max_tokens = 3;
    b.sampling.min_tokens = 4;
    expect_invalid(r, &b, "sampling.min_tokens is 4: must not exceed sampling.max_tokens, 3");
}

static void lists_that_are_too_long_or_wrong_are_named(void **state)
{
    rig *r = *state;
    bad_request b;
    char *stops[17];
    uint32_t ids[17];
    for (uint32_t i = 0; i < 17; i++) {
        stops[i] = (char *)(uintptr_t) "stop";
        ids[i] = i;
    }
    init_request(&b);
    b.sampling.stop = stops;
    b.sampling.n_stop = 17;
    expect_invalid(r, &b, "sampling.stop has 17 strings: at most 16");
    b.sampling.n_stop = 2;
    stops[1] = (char *)(uintptr_t) "";
    expect_invalid(r, &b, "sampling.stop[1] has 0 bytes");

    init_request(&b);
    b.sampling.stop_token_ids = ids;
    b.sampling.n_stop_token_ids = 17;
    expect_invalid(r, &b, "sampling.stop_token_ids has 17 ids: at most 16");
    b.sampling.n_stop_token_ids = 3;
    ids[2] = 259;
    expect_invalid(r, &b, "sampling.stop_token_ids[2] is 259: the vocabulary has 259 tokens");

    Baton__V1__Sampling__LogitBiasEntry bias = BATON__V1__SAMPLING__LOGIT_BIAS_ENTRY__INIT;
    Baton__V1__Sampling__LogitBiasEntry *biases[301];
    for (uint32_t i = 0; i < 301; i++) {
        biases[i] = &bias;
    }
    init_request(&b);
    b.sampling.logit_bias = biases;
    b.sampling.n_logit_bias = 301;
    expect_invalid(r, &b, "sampling.logit_bias has 301 entries: at most 300");
    b.sampling.n_logit_bias = 1;
    bias.key = 5;
    bias.value = 101;
    expect_invalid(r, &b, "sampling.logit_bias[5] is 101: must be in [-100, 100]");
    bias.value = 1;
    bias.key = 4000000000;
    expect_invalid(r, &b, "sampling.logit_bias has token -1");

    Baton__V1__TokenIds list = BATON__V1__TOKEN_IDS__INIT;
    list.ids = ids;
    list.n_ids = 3;
    init_request(&b);
    b.request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    b.request.token_ids = &list;
    expect_invalid(r, &b, "token_ids.ids[2] is 259: the vocabulary has 259 tokens");
}

static void strings_must_be_text(void **state)
{
    rig *r = *state;
    bad_request b;
    init_request(&b);
    b.request.text = (char *)(uintptr_t) "ab\xC3(";
    expect_invalid(r, &b, "text: invalid UTF-8 at byte 2");
    init_request(&b);
    char *stops[] = {(char *)(uintptr_t) "ok", (char *)(uintptr_t) "\xFF"};
    b.sampling.stop = stops;
    b.sampling.n_stop = 2;
    expect_invalid(r, &b, "sampling.stop[1]: invalid UTF-8 at byte 0");

    Baton__V1__ChatMessage first = BATON__V1__CHAT_MESSAGE__INIT;
    Baton__V1__ChatMessage second = BATON__V1__CHAT_MESSAGE__INIT;
    first.role = (char *)(uintptr_t) "user";
    second.role = (char *)(uintptr_t) "assistant";
    second.content = (char *)(uintptr_t) "x\xE2\x82y";
    Baton__V1__ChatMessage *messages[] = {&first, &second};
    Baton__V1__Chat chat = BATON__V1__CHAT__INIT;
    chat.messages = messages;
    chat.n_messages = 2;
    init_request(&b);
    b.request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_CHAT;
    b.request.chat = &chat;
    expect_invalid(r, &b, "chat.messages[1].content: invalid UTF-8 at byte 1");
    second.content = (char *)(uintptr_t) "x";
    second.role = (char *)(uintptr_t) "nobody";
    expect_invalid(r, &b, "chat");
    chat.n_messages = 0;
    expect_invalid(r, &b, "chat");

    char longest[130];
    memset(longest, 'x', 129);
    longest[129] = '\0';
    init_request(&b);
    b.request.session_id = longest;
    expect_invalid(r, &b, "session_id has 129 bytes: at most 128");
    init_request(&b);
    b.request.cache_salt = longest;
    expect_invalid(r, &b, "cache_salt has 129 bytes: at most 128");
}

static void an_unknown_model_is_not_found(void **state)
{
    rig *r = *state;
    bad_request b;
    init_request(&b);
    b.request.model = (char *)(uintptr_t) "gigantic";
    rig_client *c = rig_generate(r, &b.request);
    rig_expect_error(c, BT_RPC_NOT_FOUND, "there is no 'gigantic' here; served: 'tiny'");
}

static void on_raw_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    (void)data;
    (void)len;
    (void)ctx;
    if (!end) {
        bt_rpc_call_recv(call);
    }
}

static void on_raw_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    rig_client *c = ctx;
    c->done = true;
    c->code = code;
    snprintf(c->message, sizeof c->message, "%s", message);
}

static const bt_rpc_callbacks raw_callbacks = {.on_message = on_raw_message,
                                               .on_done = on_raw_done};

/* Sends these bytes to Generate. */
static rig_client *send_raw(rig *r, const void *bytes, size_t n)
{
    rig_client *c = &r->clients[r->n_clients++];
    *c = (rig_client){.rig = r};
    const bt_rpc_start start = {.path = "/baton.v1.Generation/Generate"};
    assert_int_equal(bt_rpc_channel_start(r->channel, &start, &raw_callbacks, c, &c->call), BT_OK);
    bt_rpc_call_send(c->call, bytes, n);
    bt_rpc_call_close_send(c->call);
    bt_rpc_call_recv(c->call);
    return c;
}

static void malformed_messages_are_refused(void **state)
{
    rig *r = *state;
    rig_expect_error(send_raw(r,
                              "\x12\x05"
                              "ab\0cd",
                              7),
                     BT_RPC_INVALID_ARGUMENT, "text: NUL at byte 2");
    rig_expect_error(send_raw(r, "\x12\x7F", 2), BT_RPC_INVALID_ARGUMENT, "no GenerateRequest");
    rig_expect_error(send_raw(r, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 11),
                     BT_RPC_INVALID_ARGUMENT, "no GenerateRequest");
    rig_expect_error(send_raw(r, "\x0B\x0C", 2), BT_RPC_INVALID_ARGUMENT, "no GenerateRequest");
    rig_expect_error(send_raw(r, "", 0), BT_RPC_INVALID_ARGUMENT, "prompt is missing");
}

/* A chat of n empty messages. */
static rig_client *send_empty_messages(rig *r, uint32_t n)
{
    const uint32_t len = 2 * n;
    uint8_t *bytes = malloc(6 + (size_t)len);
    assert_non_null(bytes);
    size_t at = 0;
    bytes[at++] = 0x22; /* chat */
    for (unsigned shift = 0; shift < 35; shift += 7) {
        bytes[at++] = (uint8_t)(len >> shift & 0x7F) | (shift < 28 ? 0x80 : 0);
    }
    for (uint32_t i = 0; i < n; i++) {
        bytes[at++] = 0x0A; /* messages */
        bytes[at++] = 0;
    }
    rig_client *c = send_raw(r, bytes, at);
    free(bytes);
    return c;
}

static void what_unpacks_to_too_many_parts_is_not_unpacked(void **state)
{
    rig *r = *state;
    rig_expect_error(send_empty_messages(r, 131071), BT_RPC_INVALID_ARGUMENT, "unknown role");
    rig_expect_error(send_empty_messages(r, 131072), BT_RPC_INVALID_ARGUMENT,
                     "the request has more than 131072 strings and messages");
    rig_expect_error(send_empty_messages(r, 2000000), BT_RPC_INVALID_ARGUMENT,
                     "the request has more than 131072 strings and messages");
}

static void mutated_requests_do_no_harm(void **state)
{
    rig *r = *state;
    bad_request b;
    init_request(&b);
    char *stops[] = {(char *)(uintptr_t) "zz"};
    b.sampling.stop = stops;
    b.sampling.n_stop = 1;
    b.sampling.temperature = 0.5F;
    b.request.session_id = (char *)(uintptr_t) "session";
    uint8_t bytes[128];
    const size_t n = baton__v1__generate_request__pack(&b.request, bytes);
    uint64_t random = 77;
    for (int round = 0; round < 300; round++) {
        uint8_t mutated[128];
        memcpy(mutated, bytes, n);
        for (int k = 0; k < 3; k++) {
            random = random * 6364136223846793005 + 1442695040888963407;
            mutated[(random >> 33) % n] = (uint8_t)(random >> 56);
        }
        rig_client *c = send_raw(r, mutated, n - (random >> 20) % 4);
        rig_wait_done(c);
        r->n_clients--;
    }
    rig_expect_ok(rig_generate_text(r, "still there?"), "Hello, world");
}

static void tokenize_and_detokenize_answer(void **state)
{
    rig *r = *state;
    Baton__V1__TokenizeRequest request = BATON__V1__TOKENIZE_REQUEST__INIT;
    request.input_case = BATON__V1__TOKENIZE_REQUEST__INPUT_TEXT;
    request.text = (char *)(uintptr_t) "h\xC3\xA9<|im_end|>";
    request.pieces = 1;
    rig_client *c = rig_call(r, "/baton.v1.Generation/Tokenize", &request.base, NULL, 0, 0);
    rig_wait_done(c);
    assert_int_equal(c->code, BT_RPC_OK);
    Baton__V1__TokenizeReply *reply =
        baton__v1__tokenize_reply__unpack(NULL, c->unary.len, (const uint8_t *)c->unary.bytes);
    assert_non_null(reply);
    assert_int_equal(reply->n_ids, 4);
    assert_int_equal(reply->ids[1], 0xC3);
    assert_int_equal(reply->ids[3], RIG_EOS);
    assert_int_equal(reply->n_pieces, 4);
    assert_int_equal(reply->pieces[2].data[0], 0xA9);
    assert_int_equal(reply->context_tokens, RIG_CONTEXT);

    Baton__V1__DetokenizeRequest back = BATON__V1__DETOKENIZE_REQUEST__INIT;
    back.n_ids = reply->n_ids;
    back.ids = reply->ids;
    c = rig_call(r, "/baton.v1.Generation/Detokenize", &back.base, NULL, 0, 0);
    rig_wait_done(c);
    assert_int_equal(c->code, BT_RPC_OK);
    Baton__V1__DetokenizeReply *text =
        baton__v1__detokenize_reply__unpack(NULL, c->unary.len, (const uint8_t *)c->unary.bytes);
    assert_non_null(text);
    assert_string_equal(text->text, "h\xC3\xA9<|im_end|>");
    assert_int_equal(text->n_pieces, 4);
    baton__v1__detokenize_reply__free_unpacked(text, NULL);
    baton__v1__tokenize_reply__free_unpacked(reply, NULL);

    uint32_t bad[] = {1000};
    back.n_ids = 1;
    back.ids = bad;
    rig_expect_error(rig_call(r, "/baton.v1.Generation/Detokenize", &back.base, NULL, 0, 0),
                     BT_RPC_INVALID_ARGUMENT, "ids[0] is 1000: the vocabulary has 259 tokens");
    request.input_case = BATON__V1__TOKENIZE_REQUEST__INPUT__NOT_SET;
    rig_expect_error(rig_call(r, "/baton.v1.Generation/Tokenize", &request.base, NULL, 0, 0),
                     BT_RPC_INVALID_ARGUMENT, "input is missing");
}

static void models_are_listed(void **state)
{
    rig *r = *state;
    const Baton__V1__ListModelsRequest request = BATON__V1__LIST_MODELS_REQUEST__INIT;
    rig_client *c = rig_call(r, "/baton.v1.Generation/ListModels", &request.base, NULL, 0, 0);
    rig_wait_done(c);
    assert_int_equal(c->code, BT_RPC_OK);
    Baton__V1__ListModelsReply *reply =
        baton__v1__list_models_reply__unpack(NULL, c->unary.len, (const uint8_t *)c->unary.bytes);
    assert_non_null(reply);
    assert_int_equal(reply->n_models, 1);
    assert_string_equal(reply->models[0]->name, "tiny");
    assert_string_equal(reply->models[0]->architecture, "llama");
    assert_int_equal(reply->models[0]->vocab_tokens, 259);
    assert_int_equal(reply->models[0]->n_eos_token_ids, 1);
    assert_int_equal(reply->models[0]->eos_token_ids[0], RIG_EOS);
    assert_int_equal(strlen(reply->models[0]->tokenizer_hash), 32);
    assert_true(reply->models[0]->ready);
    baton__v1__list_models_reply__free_unpacked(reply, NULL);
}

static Baton__V1__GetClusterStatusReply *ask_status(rig *r)
{
    const Baton__V1__GetClusterStatusRequest request = BATON__V1__GET_CLUSTER_STATUS_REQUEST__INIT;
    rig_client *c = rig_call(r, "/baton.v1.Generation/GetClusterStatus", &request.base, NULL, 0, 0);
    rig_wait_done(c);
    assert_int_equal(c->code, BT_RPC_OK);
    Baton__V1__GetClusterStatusReply *reply = baton__v1__get_cluster_status_reply__unpack(
        NULL, c->unary.len, (const uint8_t *)c->unary.bytes);
    assert_non_null(reply);
    bt_text_deinit(&c->unary);
    r->n_clients--;
    return reply;
}

static void the_clusters_state_is_told(void **state)
{
    rig *r = *state;
    rig_expect_ok(rig_generate_text(r, "x"), "Hello, world");
    bt_link_worker_load(r->workers[0].link, &(bt_link_load){.blocks_free = 77, .pulls = 3});
    Baton__V1__GetClusterStatusReply *reply = ask_status(r);
    for (int i = 0; i < 100 && reply->workers[0]->blocks_free != 77; i++) {
        baton__v1__get_cluster_status_reply__free_unpacked(reply, NULL);
        rig_idle(r);
        reply = ask_status(r);
    }
    assert_true(reply->router->ready);
    assert_int_equal(reply->router->requests_total, 1);
    assert_int_equal(reply->router->generated_tokens_total, 13);
    assert_int_equal(reply->router->requests_running, 0);
    assert_int_equal(reply->n_workers, 2);
    assert_string_equal(reply->workers[0]->name, "p0");
    assert_int_equal(reply->workers[0]->role, BATON__V1__WORKER_ROLE__WORKER_ROLE_PREFILL);
    assert_int_equal(reply->workers[0]->state, BATON__V1__WORKER_STATE__WORKER_STATE_READY);
    assert_int_equal(reply->workers[0]->blocks_free, 77);
    assert_int_equal(reply->workers[0]->pulls, 3);
    assert_int_equal(strlen(reply->workers[0]->numerics_id), 32);
    baton__v1__get_cluster_status_reply__free_unpacked(reply, NULL);
}

/* Asks until health says so; the router looks at readiness ten times a second. */
static void wait_health(rig *r, const char *answer)
{
    const Baton__V1__ListModelsRequest empty = BATON__V1__LIST_MODELS_REQUEST__INIT;
    for (int i = 0; i < 100; i++) {
        rig_client *c = rig_call(r, "/grpc.health.v1.Health/Check", &empty.base, NULL, 0, 0);
        rig_wait_done(c);
        assert_int_equal(c->unary.len, 2);
        const bool same = memcmp(c->unary.bytes, answer, 2) == 0;
        bt_text_deinit(&c->unary);
        r->n_clients--;
        if (same) {
            return;
        }
        rig_idle(r);
    }
    fail_msg("health does not follow");
}

static void health_follows_readiness(void **state)
{
    rig *r = *state;
    wait_health(r, "\x08\x01"); /* SERVING */
    rig_kill(&r->workers[0]);
    rig_kill(&r->workers[1]);
    wait_health(r, "\x08\x02"); /* NOT_SERVING */
}

static void requests_are_counted_by_their_end(void **state)
{
    rig *r = *state;
    rig_expect_ok(rig_generate_text(r, "x"), "Hello, world");
    bad_request b;
    init_request(&b);
    b.request.priority = 1000;
    expect_invalid(r, &b, "priority");
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(bt_metrics_render(r->metrics, &text, &len), BT_OK);
    assert_non_null(strstr(text, "baton_router_requests_total{end=\"stop\"} 1"));
    assert_non_null(strstr(text, "baton_router_requests_total{end=\"invalid\"} 1"));
    assert_non_null(strstr(text, "baton_router_ttft_seconds_count 1"));
    assert_non_null(strstr(text, "baton_router_generated_tokens_total 13"));
    free(text);
}

/* ---- clients that neither ask nor take ---- */

static int setup_impatient(void **state)
{
    (void)rig_setup(state);
    rig *r = *state;
    r->options.read_time_ms = 20;
    rig_start(r);
    return 0;
}

typedef struct idler {
    bt_rpc_call *call; /* NULL after its end */
    bool done;
    bt_rpc_code code;
} idler;

static void on_idler_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end,
                             void *ctx)
{
    (void)call;
    (void)data;
    (void)len;
    (void)end;
    (void)ctx;
}

static void on_idler_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    (void)message;
    idler *i = ctx;
    i->call = NULL;
    i->done = true;
    i->code = code;
}

static bool is_done(void *ctx)
{
    return ((const idler *)ctx)->done;
}

/* A call with that message, or none (NULL). */
static void start_idler(rig *r, idler *i, const char *path, const ProtobufCMessage *message)
{
    static const bt_rpc_callbacks idler_callbacks = {.on_message = on_idler_message,
                                                     .on_done = on_idler_done};
    const bt_rpc_start start = {.path = path};
    *i = (idler){.done = false};
    assert_int_equal(bt_rpc_channel_start(r->channel, &start, &idler_callbacks, i, &i->call),
                     BT_OK);
    if (message != NULL) {
        const size_t n = protobuf_c_message_get_packed_size(message);
        uint8_t *bytes = malloc(n + 1);
        assert_non_null(bytes);
        protobuf_c_message_pack(message, bytes);
        bt_rpc_call_send(i->call, bytes, n);
        free(bytes);
        bt_rpc_call_close_send(i->call);
    }
}

static void a_call_whose_message_never_comes_ends(void **state)
{
    static const char *const paths[] = {"/baton.v1.Generation/Generate",
                                        "/baton.v1.Generation/Tokenize",
                                        "/baton.v1.Generation/ListModels"};
    rig *r = *state;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        idler idle;
        start_idler(r, &idle, paths[i], NULL);
        rig_wait(r, is_done, &idle);
        assert_int_equal(idle.code, BT_RPC_CANCELLED);
    }
}

/* The client asks for nothing for a while, the longer the slower this machine is, and then learns
 * how the call has ended. */
static void an_answer_that_nobody_takes_ends(void **state)
{
    enum { IDS = 3000000 }; /* their pieces, 12 MB, are more than gRPC takes from us unread */
    rig *r = *state;
    uint32_t *ids = calloc(IDS, sizeof *ids);
    assert_non_null(ids);
    Baton__V1__DetokenizeRequest request = BATON__V1__DETOKENIZE_REQUEST__INIT;
    request.n_ids = IDS;
    request.ids = ids;
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", bt_router_client_port(r->router));
    bt_rpc_channel_destroy(r->channel);
    const bt_rpc_channel_options options = {.address = address, .message_bytes_max = 64 << 20};
    assert_int_equal(bt_rpc_channel_create(r->rpc, &options, &r->channel), BT_OK);
    idler idle = {.code = BT_RPC_OK};
    for (uint32_t n = 5; n <= 80 && idle.code != BT_RPC_CANCELLED; n *= 2) {
        start_idler(r, &idle, "/baton.v1.Generation/Detokenize", &request.base);
        for (uint32_t i = 0; i < n; i++) {
            rig_idle(r);
        }
        if (idle.call != NULL) {
            bt_rpc_call_recv(idle.call);
        }
        rig_wait(r, is_done, &idle);
    }
    assert_int_equal(idle.code, BT_RPC_CANCELLED);
    free(ids);
}

static const struct CMUnitTest tests[] = {
#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, setup, rig_teardown)
    RIG_TEST(numbers_out_of_range_are_named),
    RIG_TEST(lists_that_are_too_long_or_wrong_are_named),
    RIG_TEST(strings_must_be_text),
    RIG_TEST(an_unknown_model_is_not_found),
    RIG_TEST(malformed_messages_are_refused),
    RIG_TEST(what_unpacks_to_too_many_parts_is_not_unpacked),
    RIG_TEST(mutated_requests_do_no_harm),
    RIG_TEST(tokenize_and_detokenize_answer),
    RIG_TEST(models_are_listed),
    RIG_TEST(the_clusters_state_is_told),
    RIG_TEST(health_follows_readiness),
    RIG_TEST(requests_are_counted_by_their_end),
#define IMPATIENT_TEST(name) cmocka_unit_test_setup_teardown(name, setup_impatient, rig_teardown)
    IMPATIENT_TEST(a_call_whose_message_never_comes_ends),
    IMPATIENT_TEST(an_answer_that_nobody_takes_ends),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
