/* SPDX-License-Identifier: Apache-2.0 */
/* reflection: both versions answer as a stock client asks; the descriptor that comes back is the
 * one that protoc made (its name and package are looked for in the bytes). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "proto/reflection.h"
#include "proto/reflection.pb-c.h"
#include "tests/proto/talk.h"

#define V1_PATH "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
#define V1ALPHA_PATH "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

typedef Grpc__Reflection__V1__ServerReflectionRequest pb_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse pb_response;

#define ASK(kind) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##kind
#define GOT(kind) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##kind

typedef struct fixture {
    pair pair;
    bt_reflection *reflection;
    talk talk;
} fixture;

static fixture the_fixture;

static int set_up(void **state)
{
    fixture *f = &the_fixture;
    *f = (fixture){0};
    pair_init(&f->pair, NULL);
    assert_int_equal(bt_reflection_create(f->pair.server, &bt_reflection_front, &f->reflection),
                     BT_OK);
    pair_start(&f->pair);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    bt_reflection_stop(f->reflection);
    pair_stop_server(&f->pair);
    bt_reflection_destroy(f->reflection);
    pair_deinit(&f->pair);
    talk_free(&f->talk);
    return 0;
}

static pb_response *ask(talk *t, int kind, const char *value)
{
    pb_request request = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    request.host = "here";
    request.message_request_case =
        (Grpc__Reflection__V1__ServerReflectionRequest__MessageRequestCase)kind;
    request.list_services = (char *)(uintptr_t)value; /* all string members share this place */
    uint8_t bytes[512];
    const size_t len = grpc__reflection__v1__server_reflection_request__pack(&request, bytes);
    const size_t before = t->n_replies;
    talk_send(t, bytes, len);
    talk_wait_replies(t, before + 1);
    pb_response *response = grpc__reflection__v1__server_reflection_response__unpack(
        NULL, t->replies[before].len, t->replies[before].bytes);
    assert_non_null(response);
    assert_string_equal(response->valid_host, "here");
    assert_int_equal((int)response->original_request->message_request_case, kind);
    return response;
}

static void expect_file(talk *t, int kind, const char *value, const char *name)
{
    pb_response *response = ask(t, kind, value);
    if (response->message_response_case != GOT(FILE_DESCRIPTOR_RESPONSE)) {
        fail_msg("'%s' is not found", value);
    }
    assert_int_equal(response->file_descriptor_response->n_file_descriptor_proto, 1);
    const ProtobufCBinaryData file = response->file_descriptor_response->file_descriptor_proto[0];
    /* Field 1 comes first: tag, length, name. */
    assert_int_equal(file.data[0], 0x0a);
    assert_int_equal(file.data[1], strlen(name));
    assert_memory_equal(file.data + 2, name, strlen(name));
    grpc__reflection__v1__server_reflection_response__free_unpacked(response, NULL);
}

static void expect_not_found(talk *t, int kind, const char *value)
{
    pb_response *response = ask(t, kind, value);
    if (response->message_response_case != GOT(ERROR_RESPONSE)) {
        fail_msg("'%s' is found", value);
    }
    assert_int_equal(response->error_response->error_code, BT_RPC_NOT_FOUND);
    grpc__reflection__v1__server_reflection_response__free_unpacked(response, NULL);
}

static void expect_services(talk *t)
{
    static const char *const expected[] = {
        "baton.v1.Generation",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    };
    pb_response *response = ask(t, ASK(LIST_SERVICES), "");
    assert_int_equal((int)response->message_response_case, GOT(LIST_SERVICES_RESPONSE));
    assert_int_equal(response->list_services_response->n_service, BT_ARRAY_LEN(expected));
    for (size_t i = 0; i < BT_ARRAY_LEN(expected); i++) {
        assert_string_equal(response->list_services_response->service[i]->name, expected[i]);
    }
    grpc__reflection__v1__server_reflection_response__free_unpacked(response, NULL);
}

static void both_versions_list_all_services(void **state)
{
    fixture *f = *state;
    talk_start(&f->talk, &f->pair, V1_PATH);
    expect_services(&f->talk);
    bt_rpc_call_close_send(f->talk.call);
    talk_wait_done(&f->talk);
    assert_int_equal(f->talk.code, BT_RPC_OK);
    talk_free(&f->talk);
    talk_start(&f->talk, &f->pair, V1ALPHA_PATH);
    expect_services(&f->talk);
    expect_file(&f->talk, ASK(FILE_CONTAINING_SYMBOL), "baton.v1.Generation",
                "proto/generation.proto");
}

static void symbols_of_every_kind_are_found(void **state)
{
    fixture *f = *state;
    talk_start(&f->talk, &f->pair, V1_PATH);
    static const char *const symbols[] = {
        "baton.v1.Generation",   "baton.v1.Generation.Generate",     "baton.v1.GenerateRequest",
        "baton.v1.FinishReason", "baton.v1.Sampling.LogitBiasEntry",
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(symbols); i++) {
        expect_file(&f->talk, ASK(FILE_CONTAINING_SYMBOL), symbols[i], "proto/generation.proto");
    }
    expect_file(&f->talk, ASK(FILE_CONTAINING_SYMBOL),
                "grpc.health.v1.HealthCheckResponse.ServingStatus", "proto/health.proto");
    expect_file(&f->talk, ASK(FILE_BY_FILENAME), "proto/reflection_v1alpha.proto",
                "proto/reflection_v1alpha.proto");
}

static void unknown_names_are_not_found(void **state)
{
    fixture *f = *state;
    talk_start(&f->talk, &f->pair, V1_PATH);
    static const char *const symbols[] = {
        "",
        ".",
        "baton.v1",
        "baton.v1.",
        "baton.v1..",
        "baton.v1.Generatio",
        "baton.v1.Generation.Generat",
        "baton.v1.Generation.Generate.More",
        "baton.v1.FinishReason.X",
        "baton.v2.Generation",
        "baton.worker.v1.Attach",
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(symbols); i++) {
        expect_not_found(&f->talk, ASK(FILE_CONTAINING_SYMBOL), symbols[i]);
    }
    expect_not_found(&f->talk, ASK(FILE_BY_FILENAME), "generation.proto");
    expect_not_found(&f->talk, ASK(ALL_EXTENSION_NUMBERS_OF_TYPE), "baton.v1.Sampling");
}

static void nonsense_ends_the_stream(void **state)
{
    fixture *f = *state;
    talk_start(&f->talk, &f->pair, V1_PATH);
    talk_send(&f->talk, (const uint8_t *)"\x22\x7f", 2);
    talk_wait_done(&f->talk);
    assert_int_equal(f->talk.code, BT_RPC_INVALID_ARGUMENT);
}

static void broken_descriptor_set_is_refused(void **state)
{
    fixture *f = *state;
    bt_rpc_server *server = NULL;
    const bt_rpc_server_options options = {.address = "127.0.0.1:0"};
    assert_int_equal(bt_rpc_server_create(f->pair.rpc, &options, &server, NULL), BT_OK);
    for (size_t len = 1; len < 40; len++) {
        const bt_descriptor_set cut = {.bytes = bt_reflection_worker.bytes, .len = len};
        bt_reflection *r = NULL;
        assert_int_equal(bt_reflection_create(server, &cut, &r), BT_ECORRUPT);
    }
    bt_rpc_server_destroy(server);
}

#define REFLECTION_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        REFLECTION_TEST(both_versions_list_all_services),
        REFLECTION_TEST(symbols_of_every_kind_are_found),
        REFLECTION_TEST(unknown_names_are_not_found),
        REFLECTION_TEST(nonsense_ends_the_stream),
        REFLECTION_TEST(broken_descriptor_set_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
