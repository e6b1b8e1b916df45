/* SPDX-License-Identifier: Apache-2.0 */
/* link, the router's end, against workers made by hand: other versions, silence, gaps, and
 * messages that make no sense, cut and garbled at every byte. The stream ends with a status; the
 * router lives on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/link.h"
#include "tests/proto/by_hand.h"
#include "tests/support/mutation.h"

#define SEEDS "tests/fuzz/corpus/link"

enum { SEED_BYTES_MAX = 4096, MUTATIONS = 60 };

#define INIT(NAME) BATON__WORKER__V1__##NAME##__INIT

typedef Baton__Worker__V1__Event pb_event;

typedef struct fixture {
    pair pair;
    bt_link_router *link;
    unsigned n_up;
    unsigned n_down;
    char reason[256];
    unsigned n_tokens;
    unsigned n_block_events;
    unsigned n_resets;
    talk talk;
} fixture;

static fixture the_fixture;

static bt_status on_worker_up(bt_link_peer *worker, const bt_link_hello *hello, void *ctx,
                              bt_error *err)
{
    (void)worker;
    (void)hello;
    (void)err;
    ((fixture *)ctx)->n_up++;
    return BT_OK;
}

static void on_load(bt_link_peer *worker, const bt_link_load *load, void *ctx)
{
    (void)worker;
    (void)load;
    (void)ctx;
}

static void on_tokens(bt_link_peer *worker, const bt_link_tokens *tokens, void *ctx)
{
    (void)worker;
    (void)tokens;
    ((fixture *)ctx)->n_tokens++;
}

static void on_finished(bt_link_peer *worker, const bt_link_finished *finished, void *ctx)
{
    (void)worker;
    (void)finished;
    (void)ctx;
}

static void on_blocks(bt_link_peer *worker, bt_link_blocks_kind kind, const bt_block_hash *ids,
                      size_t n, void *ctx)
{
    (void)worker;
    (void)ids;
    (void)n;
    fixture *f = ctx;
    f->n_block_events++;
    f->n_resets += kind == BT_LINK_BLOCKS_RESET;
}

static void on_worker_down(bt_link_peer *worker, const char *reason, void *ctx)
{
    (void)worker;
    fixture *f = ctx;
    f->n_down++;
    snprintf(f->reason, sizeof f->reason, "%s", reason);
}

static const bt_link_router_callbacks callbacks = {
    .on_worker_up = on_worker_up,
    .on_load = on_load,
    .on_tokens = on_tokens,
    .on_finished = on_finished,
    .on_blocks = on_blocks,
    .on_worker_down = on_worker_down,
};

static int set_up(void **state)
{
    fixture *f = &the_fixture;
    memset(f, 0, sizeof *f);
    pair_init(&f->pair, NULL);
    const bt_link_router_options options = {.name = "router-0",
                                            .workers_max = 2,
                                            .ping_ms = 50,
                                            .silence_ms = 300,
                                            .callbacks = &callbacks,
                                            .ctx = f};
    assert_int_equal(bt_link_router_create(f->pair.loop, f->pair.server, &options, &f->link, NULL),
                     BT_OK);
    pair_start(&f->pair);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    bt_link_router_stop(f->link, "the test is over");
    pair_stop_server(&f->pair);
    bt_link_router_destroy(f->link);
    pair_deinit(&f->pair);
    talk_free(&f->talk);
    assert_int_equal(f->n_up, f->n_down);
    return 0;
}

/* ---- messages ---- */

/* A second hello: the first one was by_hand_attach()'s. */
static size_t pack_hello_of(const char *name, uint32_t version, uint8_t *out)
{
    static const uint8_t nonce[BT_PROOF_NONCE_BYTES] = {1};
    return by_hand_hello(name, version, nonce, out);
}

static size_t pack_hello(uint32_t version, uint8_t *out)
{
    return pack_hello_of(BY_HAND_NAME, version, out);
}

static size_t pack_blocks(uint64_t number, int kind, size_t len, uint8_t *out)
{
    static uint8_t bytes[64];
    Baton__Worker__V1__Blocks blocks = INIT(BLOCKS);
    blocks.number = number;
    blocks.kind = (Baton__Worker__V1__BlocksKind)kind;
    blocks.ids = (ProtobufCBinaryData){.len = len, .data = bytes};
    pb_event event = INIT(EVENT);
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_BLOCKS;
    event.blocks = &blocks;
    return by_hand_pack(&event, out);
}

static size_t pack_tokens(uint8_t *out)
{
    Baton__Worker__V1__RequestId id = INIT(REQUEST_ID);
    uint32_t ids[] = {1, 2, 3};
    uint32_t n_top[] = {0, 1, 1};
    float logprobs[] = {-1, -2, -3};
    Baton__Worker__V1__Tokens tokens = INIT(TOKENS);
    tokens.id = &id;
    tokens.n_tokens = 3;
    tokens.tokens = ids;
    tokens.n_logprobs = 3;
    tokens.logprobs = logprobs;
    tokens.n_n_top = 3;
    tokens.n_top = n_top;
    tokens.n_top_tokens = 2;
    tokens.top_tokens = ids;
    tokens.n_top_logprobs = 2;
    tokens.top_logprobs = logprobs;
    pb_event event = INIT(EVENT);
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_TOKENS;
    event.tokens = &tokens;
    return by_hand_pack(&event, out);
}

/* Far fewer bytes than what a router would hold for as many results. */
static size_t pack_too_many_tokens(uint8_t *out)
{
    Baton__Worker__V1__RequestId id = INIT(REQUEST_ID);
    uint32_t ids[33] = {0};
    Baton__Worker__V1__Tokens tokens = INIT(TOKENS);
    tokens.id = &id;
    tokens.n_tokens = 33;
    tokens.tokens = ids;
    pb_event event = INIT(EVENT);
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_TOKENS;
    event.tokens = &tokens;
    return by_hand_pack(&event, out);
}

static void attach_by_hand(fixture *f)
{
    static const bt_cluster_key no_key;
    by_hand_attach(&f->talk, &f->pair, &no_key);
}

static bool was_asked_for_snapshot(const talk *t)
{
    bool asked = false;
    for (size_t i = 0; i < t->n_replies; i++) {
        Baton__Worker__V1__ToWorker *reply =
            baton__worker__v1__to_worker__unpack(NULL, t->replies[i].len, t->replies[i].bytes);
        assert_non_null(reply);
        for (size_t c = 0; c < reply->n_commands; c++) {
            asked |= reply->commands[c]->command_case ==
                     BATON__WORKER__V1__COMMAND__COMMAND_SEND_SNAPSHOT;
        }
        baton__worker__v1__to_worker__free_unpacked(reply, NULL);
    }
    return asked;
}

/* ---- tests ---- */

static void other_protocol_version_is_refused_with_advice(void **state)
{
    fixture *f = *state;
    uint8_t bytes[512];
    talk_start(&f->talk, &f->pair, BY_HAND_PATH);
    talk_send(&f->talk, bytes, pack_hello(BT_LINK_PROTOCOL_VERSION - 1, bytes));
    talk_wait_done(&f->talk);
    assert_int_equal(f->talk.code, BT_RPC_FAILED_PRECONDITION);
    assert_non_null(strstr(f->talk.message, "by-hand"));
    assert_non_null(strstr(f->talk.message, "Run the same version"));
    assert_int_equal(f->n_up, 0);
}

/* Names stand unquoted in logs and tables. */
static void worker_with_a_name_that_is_none_is_refused(void **state)
{
    static const char *const names[] = {"",         "a worker", "w\" why=\"",
                                        "w\x1b[2J", "w\n",      "w\xC3\xA9"};
    fixture *f = *state;
    for (size_t i = 0; i < BT_ARRAY_LEN(names); i++) {
        uint8_t bytes[BY_HAND_BYTES];
        talk_start(&f->talk, &f->pair, BY_HAND_PATH);
        talk_send(&f->talk, bytes, pack_hello_of(names[i], BT_LINK_PROTOCOL_VERSION, bytes));
        talk_wait_done(&f->talk);
        assert_int_equal(f->talk.code, BT_RPC_INVALID_ARGUMENT);
        talk_free(&f->talk);
        f->talk = (talk){0};
    }
    assert_int_equal(f->n_up, 0);
}

static void silent_worker_is_given_up(void **state)
{
    fixture *f = *state;
    attach_by_hand(f);
    talk_wait_done(&f->talk);
    WAIT_FOR(&f->pair, f->n_down == 1);
    assert_non_null(strstr(f->reason, "silent for"));
    assert_true(bt_link_router_get_stats(f->link).silences == 1);
}

static void stream_without_hello_is_given_up(void **state)
{
    fixture *f = *state;
    talk_start(&f->talk, &f->pair, BY_HAND_PATH);
    talk_wait_done(&f->talk);
    assert_int_not_equal(f->talk.code, BT_RPC_OK);
    assert_int_equal(f->n_down, 0);
}

static void gap_in_block_events_asks_for_a_snapshot_once(void **state)
{
    fixture *f = *state;
    uint8_t bytes[256];
    attach_by_hand(f);
    talk_send(&f->talk, bytes, pack_blocks(1, BT_LINK_BLOCKS_STORED, 32, bytes));
    talk_send(&f->talk, bytes, pack_blocks(3, BT_LINK_BLOCKS_STORED, 32, bytes));
    talk_send(&f->talk, bytes, pack_blocks(5, BT_LINK_BLOCKS_EVICTED, 16, bytes));
    WAIT_FOR(&f->pair, was_asked_for_snapshot(&f->talk));
    talk_send(&f->talk, bytes, pack_blocks(9, BT_LINK_BLOCKS_RESET, 0, bytes));
    talk_send(&f->talk, bytes, pack_blocks(10, BT_LINK_BLOCKS_STORED, 48, bytes));
    WAIT_FOR(&f->pair, f->n_block_events == 3); /* 1, 9, 10 */
    assert_int_equal(f->n_resets, 1);
    assert_true(bt_link_router_get_stats(f->link).block_gaps == 1);
}

static void expect_malformed(fixture *f, const uint8_t *bytes, size_t len)
{
    attach_by_hand(f);
    const unsigned before = f->n_down;
    talk_send(&f->talk, bytes, len);
    talk_wait_done(&f->talk);
    assert_int_equal(f->talk.code, BT_RPC_INVALID_ARGUMENT);
    WAIT_FOR(&f->pair, f->n_down == before + 1);
    talk_free(&f->talk);
    f->talk = (talk){0};
}

static void senseless_messages_end_the_stream(void **state)
{
    fixture *f = *state;
    uint8_t bytes[512];
    expect_malformed(f, (const uint8_t *)"\x0a\x7f", 2);
    expect_malformed(f, bytes, pack_hello(BT_LINK_PROTOCOL_VERSION, bytes)); /* a second one */
    expect_malformed(f, bytes, pack_blocks(1, BT_LINK_BLOCKS_STORED, 17, bytes));
    expect_malformed(f, bytes, pack_blocks(1, BT_LINK_BLOCKS_RESET, 16, bytes));
    expect_malformed(f, bytes, pack_blocks(1, 77, 16, bytes));
    expect_malformed(f, bytes, pack_too_many_tokens(bytes));
    assert_true(bt_link_router_get_stats(f->link).malformed == 6);
}

/* The router may have ended the call already, which is gone then. */
static void end_talk(fixture *f)
{
    if (!f->talk.done) {
        bt_rpc_call_close_send(f->talk.call);
    }
    talk_wait_done(&f->talk);
    talk_free(&f->talk);
    f->talk = (talk){0};
    WAIT_FOR(&f->pair, f->n_down == f->n_up);
}

/* Whatever becomes of a garbled message, the next worker is served. */
static void garbled_messages_harm_nobody(void **state)
{
    fixture *f = *state;
    uint8_t right[512];
    const size_t len = pack_tokens(right);
    uint8_t wrong[512];
    for (size_t i = 0; i < 2 * len; i++) {
        memcpy(wrong, right, len);
        size_t wrong_len = len;
        if (i < len) {
            wrong_len = i;
        } else {
            wrong[i - len] ^= (uint8_t)(1U << (i % 8));
        }
        attach_by_hand(f);
        talk_send(&f->talk, wrong, wrong_len);
        end_talk(f);
    }
    const unsigned before = f->n_tokens;
    attach_by_hand(f);
    talk_send(&f->talk, right, len);
    WAIT_FOR(&f->pair, f->n_tokens == before + 1);
}

/* One message of a stream that has proved its key, damaged. */
static void say_damaged(fixture *f, const uint8_t *right, size_t len, uint64_t number)
{
    uint8_t wrong[2 * SEED_BYTES_MAX];
    memcpy(wrong, right, len);
    const size_t wrong_len = bt_mutate(wrong, len, sizeof wrong, number);
    attach_by_hand(f);
    talk_send(&f->talk, wrong, wrong_len);
    end_talk(f);
}

/* The bytes of a seed of the link fuzz target; 0: it is none, or not a worker's. */
static size_t read_seed(const char *name, uint8_t seed[SEED_BYTES_MAX])
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", SEEDS, name);
    FILE *file = name[0] != '.' ? fopen(path, "rb") : NULL;
    const size_t len = file ? fread(seed, 1, SEED_BYTES_MAX, file) : 0;
    if (file) {
        (void)fclose(file);
    }
    return len > 1 && seed[0] == 0 ? len : 0;
}

/* Every kind of event that a worker sends, damaged in many ways behind the proof, where the damage
 * of outsiders does not come. */
static void damaged_events_behind_the_proof_harm_nobody(void **state)
{
    fixture *f = *state;
    DIR *folder = opendir(SEEDS);
    assert_non_null(folder);
    unsigned n_seeds = 0;
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        uint8_t seed[SEED_BYTES_MAX];
        const size_t len = read_seed(entry->d_name, seed);
        for (uint64_t number = 0; len > 0 && number < MUTATIONS; number++) {
            say_damaged(f, seed + 1, len - 1, number);
        }
        n_seeds += len > 0;
    }
    (void)closedir(folder);
    assert_true(n_seeds >= 4);
    uint8_t right[512];
    const unsigned before = f->n_tokens;
    attach_by_hand(f);
    talk_send(&f->talk, right, pack_tokens(right));
    WAIT_FOR(&f->pair, f->n_tokens == before + 1);
}

/* The router of this test holds two; each of these has the name of its own that it must have. */
static void workers_beyond_the_limit_are_refused(void **state)
{
    fixture *f = *state;
    static bt_link_worker *workers[3];
    static const bt_link_worker_callbacks nothing;
    const char *const routers[] = {f->pair.address};
    for (size_t i = 0; i < 3; i++) {
        bt_link_hello hello = {.role = BT_LINK_ROLE_BOTH};
        snprintf(hello.kv.name, sizeof hello.kv.name, "worker-%zu", i);
        const bt_link_worker_options options = {.hello = &hello,
                                                .routers = routers,
                                                .n_routers = 1,
                                                .load_ms = 20,
                                                .callbacks = &nothing};
        assert_int_equal(
            bt_link_worker_create(f->pair.loop, f->pair.rpc, &options, &workers[i], NULL), BT_OK);
    }
    WAIT_FOR(&f->pair, bt_link_router_get_stats(f->link).refusals > 0);
    WAIT_FOR(&f->pair, f->n_up == 2);
    assert_int_equal(f->n_down, 0);
    for (size_t i = 0; i < 3; i++) {
        bt_link_worker_destroy(workers[i]);
    }
}

#define LINK_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LINK_TEST(other_protocol_version_is_refused_with_advice),
        LINK_TEST(worker_with_a_name_that_is_none_is_refused),
        LINK_TEST(silent_worker_is_given_up),
        LINK_TEST(stream_without_hello_is_given_up),
        LINK_TEST(gap_in_block_events_asks_for_a_snapshot_once),
        LINK_TEST(senseless_messages_end_the_stream),
        LINK_TEST(garbled_messages_harm_nobody),
        LINK_TEST(damaged_events_behind_the_proof_harm_nobody),
        LINK_TEST(workers_beyond_the_limit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
