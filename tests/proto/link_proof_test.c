/* SPDX-License-Identifier: Apache-2.0 */
/* The proofs that begin a session: nobody gets in, and nothing is told, without the cluster key. A
 * router is tried by a worker made by hand, and a worker by a router made by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "proto/link.h"
#include "tests/proto/by_hand.h"

#define INIT(NAME) BATON__WORKER__V1__##NAME##__INIT

enum {
    SILENCE_MS = 300,
    ANSWER_MS = 150,
    FLOOD = 70,  /* more than a router hears out at a time */
    CROWD = 100, /* the same, of workers */
};

typedef struct fixture {
    pair pair;
    bt_cluster_key key;
    bt_cluster_key other_key;
    /* a router under test */
    bt_link_router *router;
    unsigned n_up;
    unsigned n_down;
    unsigned n_told; /* loads, tokens, ends, blocks */
    /* a worker under test, and the router made by hand */
    bt_link_worker *worker;
    unsigned n_router_up;
    bt_rpc_call *call;
    unsigned n_heard; /* messages of the worker */
    bt_proof_terms terms;
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
    ((fixture *)ctx)->n_told++;
}

static void on_worker_down(bt_link_peer *worker, const char *reason, void *ctx)
{
    (void)worker;
    (void)reason;
    ((fixture *)ctx)->n_down++;
}

static void on_blocks(bt_link_peer *worker, bt_link_blocks_kind kind, const bt_block_hash *ids,
                      size_t n, void *ctx)
{
    (void)worker;
    (void)kind;
    (void)ids;
    (void)n;
    ((fixture *)ctx)->n_told++;
}

static const bt_link_router_callbacks router_callbacks = {.on_worker_up = on_worker_up,
                                                          .on_load = on_load,
                                                          .on_blocks = on_blocks,
                                                          .on_worker_down = on_worker_down};

static void on_router_up(uint32_t router, void *ctx)
{
    (void)router;
    ((fixture *)ctx)->n_router_up++;
}

static const bt_link_worker_callbacks worker_callbacks = {.on_router_up = on_router_up};

static void make_keys(fixture *f)
{
    assert_int_equal(bt_cluster_key_init(&f->key, "the cluster's own key", 21, NULL), BT_OK);
    assert_int_equal(bt_cluster_key_init(&f->other_key, "another cluster's key", 21, NULL), BT_OK);
}

static fixture *begin(void **state)
{
    fixture *f = &the_fixture;
    memset(f, 0, sizeof *f);
    make_keys(f);
    pair_init(&f->pair, NULL);
    *state = f;
    return f;
}

static int set_up_router(void **state)
{
    fixture *f = begin(state);
    const bt_link_router_options options = {.name = "router-0",
                                            .cluster_key = f->key,
                                            .ping_ms = 50,
                                            .silence_ms = SILENCE_MS,
                                            .callbacks = &router_callbacks,
                                            .ctx = f};
    assert_int_equal(
        bt_link_router_create(f->pair.loop, f->pair.server, &options, &f->router, NULL), BT_OK);
    pair_start(&f->pair);
    return 0;
}

static int tear_down_router(void **state)
{
    fixture *f = *state;
    bt_link_worker_destroy(f->worker);
    bt_link_router_stop(f->router, "the test is over");
    pair_stop_server(&f->pair);
    bt_link_router_destroy(f->router);
    pair_deinit(&f->pair);
    talk_free(&f->talk);
    assert_int_equal(f->n_up, f->n_down);
    return 0;
}

static void make_worker(fixture *f, const bt_cluster_key *key)
{
    const char *const routers[] = {f->pair.address};
    bt_link_hello hello = {.role = BT_LINK_ROLE_BOTH, .kv = {.name = BY_HAND_NAME}};
    const bt_link_worker_options options = {.hello = &hello,
                                            .routers = routers,
                                            .n_routers = 1,
                                            .cluster_key = *key,
                                            .answer_ms = ANSWER_MS,
                                            .load_ms = 20,
                                            .callbacks = &worker_callbacks,
                                            .ctx = f};
    assert_int_equal(bt_link_worker_create(f->pair.loop, f->pair.rpc, &options, &f->worker, NULL),
                     BT_OK);
}

/* ---- the proof itself ---- */

/* blake2b(b'baton attach proof\0' + struct.pack('<QQ', 2, 1) + w + r
 *         + struct.pack('<Q', 0x1122334455667788) + b'decode-0', key=key, digest_size=32) with
 * Python's hashlib, w and r the bytes 0..31 and 32..63, and the key of block_id_test. */
static void a_proof_equals_that_of_hashlib(void **state)
{
    (void)state;
    bt_cluster_key key;
    assert_int_equal(bt_cluster_key_init(&key, "0123456789abcdef-baton", 22, NULL), BT_OK);
    bt_proof_terms terms = {.version = 2, .name = "decode-0", .incarnation = 0x1122334455667788};
    for (size_t i = 0; i < BT_PROOF_NONCE_BYTES; i++) {
        terms.worker_nonce[i] = (uint8_t)i;
        terms.router_nonce[i] = (uint8_t)(BT_PROOF_NONCE_BYTES + i);
    }
    uint8_t proof[BT_PROOF_BYTES];
    bt_proof_make(&key, BT_PROOF_WORKER, &terms, proof);
    char hex[2 * BT_PROOF_BYTES + 1];
    bt_hash_hex(proof, sizeof proof, hex);
    assert_string_equal(hex, "ad2c22bbb30bb151033b38f9c8b06701db61587d0f8170f9d58f0f133683d4c8");
}

static void a_proof_holds_for_its_terms_alone(void **state)
{
    (void)state;
    fixture *f = &the_fixture;
    make_keys(f);
    static const uint8_t nonce[BT_PROOF_NONCE_BYTES] = {1, 2, 3};
    const bt_proof_terms terms = by_hand_terms(nonce);
    uint8_t proof[BT_PROOF_BYTES];
    bt_proof_make(&f->key, BT_PROOF_WORKER, &terms, proof);
    assert_true(bt_proof_check(&f->key, BT_PROOF_WORKER, &terms, proof));
    assert_false(bt_proof_check(&f->key, BT_PROOF_ROUTER, &terms, proof));
    assert_false(bt_proof_check(&f->other_key, BT_PROOF_WORKER, &terms, proof));
    bt_proof_terms other = terms;
    other.router_nonce[31]++;
    assert_false(bt_proof_check(&f->key, BT_PROOF_WORKER, &other, proof));
    other = terms;
    other.worker_nonce[0]++;
    assert_false(bt_proof_check(&f->key, BT_PROOF_WORKER, &other, proof));
    other = terms;
    other.incarnation++;
    assert_false(bt_proof_check(&f->key, BT_PROOF_WORKER, &other, proof));
    other = terms;
    other.version++;
    assert_false(bt_proof_check(&f->key, BT_PROOF_WORKER, &other, proof));
    other = terms;
    other.name = "by-hanD";
    assert_false(bt_proof_check(&f->key, BT_PROOF_WORKER, &other, proof));
}

/* ---- a router ---- */

/* Sends the proof; the router must refuse, and had told nothing but its challenge. */
static void expect_refusal(fixture *f, const uint8_t proof[BT_PROOF_BYTES])
{
    uint8_t bytes[BY_HAND_BYTES];
    talk_send(&f->talk, bytes, by_hand_proof(proof, bytes));
    talk_wait_done(&f->talk);
    assert_int_equal(f->talk.code, BT_RPC_FAILED_PRECONDITION);
    assert_non_null(strstr(f->talk.message, "another cluster key"));
    assert_int_equal(f->talk.n_replies, 1);
    assert_int_equal(f->n_up, 0);
    talk_free(&f->talk);
    f->talk = (talk){0};
}

static bt_proof_terms greet(fixture *f, uint8_t proof[BT_PROOF_BYTES])
{
    static const uint8_t nonce[BT_PROOF_NONCE_BYTES] = {9};
    bt_proof_terms terms = by_hand_terms(nonce);
    by_hand_greet(&f->talk, &f->pair, &terms, proof);
    return terms;
}

static void worker_that_knows_the_key_is_welcome(void **state)
{
    fixture *f = *state;
    by_hand_attach(&f->talk, &f->pair, &f->key);
    assert_int_equal(f->n_up, 1);
}

static void worker_with_another_key_is_refused(void **state)
{
    fixture *f = *state;
    uint8_t proof[BT_PROOF_BYTES];
    const bt_proof_terms terms = greet(f, proof);
    bt_proof_make(&f->other_key, BT_PROOF_WORKER, &terms, proof);
    expect_refusal(f, proof);
}

static void captured_proof_is_worth_nothing(void **state)
{
    fixture *f = *state;
    uint8_t proof[BT_PROOF_BYTES];
    const bt_proof_terms terms = greet(f, proof);
    uint8_t captured[BT_PROOF_BYTES];
    bt_proof_make(&f->key, BT_PROOF_WORKER, &terms, captured); /* right, once */
    bt_rpc_call_cancel(f->talk.call);
    talk_wait_done(&f->talk);
    talk_free(&f->talk);
    const bt_proof_terms again = greet(f, proof); /* the same nonce of the worker's */
    assert_memory_not_equal(again.router_nonce, terms.router_nonce, BT_PROOF_NONCE_BYTES);
    expect_refusal(f, captured);
}

static void routers_own_proof_sent_back_is_refused(void **state)
{
    fixture *f = *state;
    uint8_t proof[BT_PROOF_BYTES];
    (void)greet(f, proof);
    expect_refusal(f, proof);
}

static size_t pack_load(uint8_t *out)
{
    Baton__Worker__V1__Load load = INIT(LOAD);
    load.blocks_free = 7;
    Baton__Worker__V1__Event event = INIT(EVENT);
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_LOAD;
    event.load = &load;
    return by_hand_pack(&event, out);
}

static void nothing_is_heard_before_the_proof(void **state)
{
    fixture *f = *state;
    uint8_t proof[BT_PROOF_BYTES];
    (void)greet(f, proof);
    uint8_t bytes[BY_HAND_BYTES];
    talk_send(&f->talk, bytes, pack_load(bytes));
    talk_wait_done(&f->talk);
    assert_int_equal(f->talk.code, BT_RPC_INVALID_ARGUMENT);
    assert_int_equal(f->n_told, 0);
    assert_int_equal(f->n_up, 0);
}

static void silence_after_the_challenge_ends_in_time(void **state)
{
    fixture *f = *state;
    uint8_t proof[BT_PROOF_BYTES];
    (void)greet(f, proof);
    talk_wait_done(&f->talk);
    assert_int_equal(f->n_up, 0);
    assert_int_equal(f->talk.n_replies, 1); /* and no pings meanwhile */
    assert_true(bt_link_router_get_stats(f->router).silences == 1);
}

static void version_1_is_refused_without_a_challenge(void **state)
{
    fixture *f = *state;
    static const uint8_t nonce[BT_PROOF_NONCE_BYTES];
    uint8_t bytes[BY_HAND_BYTES];
    talk_start(&f->talk, &f->pair, BY_HAND_PATH);
    talk_send(&f->talk, bytes, by_hand_hello(BY_HAND_NAME, 1, nonce, bytes));
    talk_wait_done(&f->talk);
    assert_int_equal(f->talk.code, BT_RPC_FAILED_PRECONDITION);
    assert_non_null(strstr(f->talk.message, "protocol version 1"));
    assert_int_equal(f->talk.n_replies, 0);
}

static void idle_streams_do_not_keep_a_worker_out(void **state)
{
    fixture *f = *state;
    static talk idle[FLOOD];
    for (size_t i = 0; i < FLOOD; i++) {
        talk_start(&idle[i], &f->pair, BY_HAND_PATH);
    }
    WAIT_FOR(&f->pair, bt_link_router_get_stats(f->router).refusals > 0);
    make_worker(f, &f->key);
    WAIT_FOR(&f->pair, f->n_up == 1);
    for (size_t i = 0; i < FLOOD; i++) {
        if (!idle[i].done) {
            bt_rpc_call_cancel(idle[i].call);
        }
        talk_wait_done(&idle[i]);
        talk_free(&idle[i]);
    }
}

/* After a router's restart all of them dial within the same second. */
static void a_hundred_workers_at_once_all_get_in(void **state)
{
    fixture *f = *state;
    static bt_link_worker *workers[CROWD];
    const char *const routers[] = {f->pair.address};
    for (size_t i = 0; i < CROWD; i++) {
        bt_link_hello hello = {.role = BT_LINK_ROLE_BOTH};
        snprintf(hello.kv.name, sizeof hello.kv.name, "worker-%zu", i);
        const bt_link_worker_options options = {.hello = &hello,
                                                .routers = routers,
                                                .n_routers = 1,
                                                .cluster_key = f->key,
                                                .load_ms = 50,
                                                .callbacks = &worker_callbacks,
                                                .ctx = f};
        assert_int_equal(
            bt_link_worker_create(f->pair.loop, f->pair.rpc, &options, &workers[i], NULL), BT_OK);
    }
    WAIT_FOR(&f->pair, bt_link_router_get_stats(f->router).workers_up == CROWD);
    for (size_t i = 0; i < CROWD; i++) {
        bt_link_worker_destroy(workers[i]);
    }
}

/* ---- a worker ---- */

static void on_dialled_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end,
                               void *ctx)
{
    fixture *f = ctx;
    if (end) {
        bt_rpc_call_finish(call, BT_RPC_OK, "", NULL, 0);
        return;
    }
    f->n_heard++;
    Baton__Worker__V1__FromWorker *message =
        baton__worker__v1__from_worker__unpack(NULL, len, data);
    assert_non_null(message);
    if (message->events[0]->event_case == BATON__WORKER__V1__EVENT__EVENT_HELLO) {
        const ProtobufCBinaryData nonce = message->events[0]->hello->nonce;
        assert_int_equal(nonce.len, BT_PROOF_NONCE_BYTES);
        f->terms = by_hand_terms(nonce.data);
    }
    baton__worker__v1__from_worker__free_unpacked(message, NULL);
    bt_rpc_call_recv(call);
}

static void on_dialled_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)code;
    (void)message;
    fixture *f = ctx;
    if (f->call == call) {
        f->call = NULL;
    }
}

static const bt_rpc_callbacks dialled_callbacks = {.on_message = on_dialled_message,
                                                   .on_done = on_dialled_done};

static void on_dialled(bt_rpc_call *call, void *ctx)
{
    fixture *f = ctx;
    f->call = call;
    bt_rpc_call_accept(call, &dialled_callbacks, f);
    bt_rpc_call_recv(call);
}

static int set_up_worker(void **state)
{
    fixture *f = begin(state);
    assert_int_equal(bt_rpc_server_handle(f->pair.server, BY_HAND_PATH, on_dialled, f), BT_OK);
    pair_start(&f->pair);
    make_worker(f, &f->key);
    WAIT_FOR(&f->pair, f->n_heard == 1);
    return 0;
}

static int tear_down_worker(void **state)
{
    fixture *f = *state;
    bt_link_worker_destroy(f->worker);
    pair_stop_server(&f->pair);
    pair_deinit(&f->pair);
    return 0;
}

static void send_command(fixture *f, Baton__Worker__V1__Command *command)
{
    Baton__Worker__V1__ToWorker message = INIT(TO_WORKER);
    message.n_commands = 1;
    message.commands = &command;
    uint8_t bytes[BY_HAND_BYTES];
    const size_t len = baton__worker__v1__to_worker__pack(&message, bytes);
    assert_non_null(f->call);
    bt_rpc_call_send(f->call, bytes, len);
}

static void send_challenge(fixture *f, const bt_cluster_key *key, bt_proof_side side)
{
    uint8_t proof[BT_PROOF_BYTES];
    bt_proof_make(key, side, &f->terms, proof);
    Baton__Worker__V1__Challenge challenge = INIT(CHALLENGE);
    challenge.nonce =
        (ProtobufCBinaryData){.len = BT_PROOF_NONCE_BYTES, .data = f->terms.router_nonce};
    challenge.proof = (ProtobufCBinaryData){.len = BT_PROOF_BYTES, .data = proof};
    Baton__Worker__V1__Command command = INIT(COMMAND);
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_CHALLENGE;
    command.challenge = &challenge;
    send_command(f, &command);
}

/* The worker hung up, and had said nothing but hello. */
static void expect_mistrust(fixture *f)
{
    WAIT_FOR(&f->pair, bt_link_worker_get_stats(f->worker).refusals == 1);
    assert_int_equal(f->n_heard, 1);
    assert_int_equal(f->n_router_up, 0);
}

static void router_with_another_key_gets_no_proof(void **state)
{
    fixture *f = *state;
    send_challenge(f, &f->other_key, BT_PROOF_ROUTER);
    expect_mistrust(f);
}

/* Our nonce as its own, and the proof that a worker would make: none of it can be mirrored. */
static void router_that_mirrors_the_worker_gets_no_proof(void **state)
{
    fixture *f = *state;
    memcpy(f->terms.router_nonce, f->terms.worker_nonce, BT_PROOF_NONCE_BYTES);
    send_challenge(f, &f->key, BT_PROOF_WORKER);
    expect_mistrust(f);
}

static void send_welcome(fixture *f, const char *name)
{
    Baton__Worker__V1__Welcome welcome = INIT(WELCOME);
    welcome.protocol_version = BT_LINK_PROTOCOL_VERSION;
    welcome.router_name = (char *)(uintptr_t)name;
    Baton__Worker__V1__Command command = INIT(COMMAND);
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_WELCOME;
    command.welcome = &welcome;
    send_command(f, &command);
}

static void welcome_without_a_challenge_is_not_believed(void **state)
{
    fixture *f = *state;
    send_welcome(f, "router-0");
    expect_mistrust(f);
}

static void router_with_a_name_that_is_none_is_left(void **state)
{
    fixture *f = *state;
    send_challenge(f, &f->key, BT_PROOF_ROUTER);
    WAIT_FOR(&f->pair, f->n_heard == 2);
    send_welcome(f, "router why=\"\x1b[2J\"");
    WAIT_FOR(&f->pair, bt_link_worker_get_stats(f->worker).refusals == 1);
    assert_int_equal(f->n_router_up, 0);
}

static void router_that_says_nothing_is_left(void **state)
{
    fixture *f = *state;
    WAIT_FOR(&f->pair, bt_link_worker_get_stats(f->worker).refusals == 1);
    assert_int_equal(f->n_router_up, 0);
    WAIT_FOR(&f->pair, f->n_heard == 2); /* and asked again */
}

#define ROUTER_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_router, tear_down_router)
#define WORKER_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_worker, tear_down_worker)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proof_equals_that_of_hashlib),
        cmocka_unit_test(a_proof_holds_for_its_terms_alone),
        ROUTER_TEST(worker_that_knows_the_key_is_welcome),
        ROUTER_TEST(worker_with_another_key_is_refused),
        ROUTER_TEST(captured_proof_is_worth_nothing),
        ROUTER_TEST(routers_own_proof_sent_back_is_refused),
        ROUTER_TEST(nothing_is_heard_before_the_proof),
        ROUTER_TEST(silence_after_the_challenge_ends_in_time),
        ROUTER_TEST(version_1_is_refused_without_a_challenge),
        ROUTER_TEST(idle_streams_do_not_keep_a_worker_out),
        ROUTER_TEST(a_hundred_workers_at_once_all_get_in),
        WORKER_TEST(router_with_another_key_gets_no_proof),
        WORKER_TEST(router_that_mirrors_the_worker_gets_no_proof),
        WORKER_TEST(welcome_without_a_challenge_is_not_believed),
        WORKER_TEST(router_with_a_name_that_is_none_is_left),
        WORKER_TEST(router_that_says_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
