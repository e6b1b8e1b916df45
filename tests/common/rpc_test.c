/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: calls over real loopback sockets (port 0), server and client on one loop.
 *
 * Each test starts clients against a small server and runs the loop until all of them are
 * done; a watchdog ends a test that hangs. What is compared: bytes, order, statuses, metadata, and
 * that on_done comes once and last on both sides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc.h"

enum {
    WATCHDOG_MS = 60 * 1000,
    GRACE_MS = 5 * 1000,
    TEXT_BYTES = 256,
};

typedef struct fixture {
    bt_loop *loop;
    bt_rpc *rpc;
    bt_rpc_server *server;
    bt_rpc_channel *channel;
    bt_timer *watchdog;
    char address[TEXT_BYTES];
    unsigned n_open;      /* clients */
    unsigned n_served;    /* calls open at the server */
    unsigned n_cancelled; /* ended at the server with CANCELLED */
    unsigned n_ended;     /* ended at the server, any way */
    bool down;
    bt_rpc_call *held; /* of /test.Test/Hold */
    bt_loop_fn on_held;
    void *on_held_ctx;
} fixture;

/* ---- server ---- */

typedef struct serving {
    fixture *f;
    bt_rpc_call *call;
} serving;

static void served_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    (void)message;
    serving *s = ctx;
    s->f->n_served--;
    s->f->n_ended++;
    s->f->n_cancelled += code == BT_RPC_CANCELLED;
    if (s->f->n_open == 0) {
        bt_loop_stop(s->f->loop);
    }
    free(s);
}

static serving *serve(bt_rpc_call *call, const bt_rpc_callbacks *callbacks, fixture *f)
{
    serving *s = malloc(sizeof *s);
    assert_non_null(s);
    *s = (serving){.f = f, .call = call};
    f->n_served++;
    bt_rpc_call_accept(call, callbacks, s);
    return s;
}

static void echo_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    (void)ctx;
    if (end) {
        bt_rpc_call_finish(call, BT_RPC_OK, "", NULL, 0);
        return;
    }
    bt_rpc_call_send(call, data, len);
}

static void echo_sent(bt_rpc_call *call, void *ctx)
{
    (void)ctx;
    bt_rpc_call_recv(call);
}

static const bt_rpc_callbacks echo_callbacks = {echo_message, echo_sent, served_done};

static void handle_echo(bt_rpc_call *call, void *ctx)
{
    serve(call, &echo_callbacks, ctx);
    bt_rpc_call_recv(call);
}

/* Answers the first message with metadata, a message and a status of its own. */
static void meta_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    (void)data;
    (void)len;
    (void)ctx;
    assert_false(end);
    const char *id = bt_rpc_call_meta(call, "x-request-id");
    assert_non_null(id);
    assert_null(bt_rpc_call_meta(call, "x-other"));
    const bt_rpc_meta initial[] = {{"x-request-id", id}, {"bad key", "left out"}};
    bt_rpc_call_set_reply_meta(call, initial, 2);
    bt_rpc_call_send(call, (const uint8_t *)"m", 1);
    const bt_rpc_meta trailing[] = {{"grpc-retry-pushback-ms", "250"}};
    bt_rpc_call_finish(call, BT_RPC_RESOURCE_EXHAUSTED, "no r\xc3\xb6\xc3\xb6m", trailing, 1);
}

static const bt_rpc_callbacks meta_callbacks = {meta_message, NULL, served_done};

static void handle_meta(bt_rpc_call *call, void *ctx)
{
    assert_int_equal(strncmp(bt_rpc_call_peer(call), "ipv4:127.0.0.1:", 15), 0);
    assert_true(bt_rpc_call_deadline_left_ns(call) == INT64_MAX);
    serve(call, &meta_callbacks, ctx);
    bt_rpc_call_recv(call);
}

/* Says "here", then waits for the client to go away or for the test to finish it. */
static void hold_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    (void)call;
    (void)data;
    (void)len;
    (void)end;
    (void)ctx;
}

static void hold_sent(bt_rpc_call *call, void *ctx)
{
    (void)call;
    serving *s = ctx;
    if (s->f->on_held != NULL) {
        s->f->on_held(s->f->on_held_ctx);
    }
}

static void hold_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    serving *s = ctx;
    s->f->held = NULL;
    served_done(call, code, message, ctx);
}

static const bt_rpc_callbacks hold_callbacks = {hold_message, hold_sent, hold_done};

static void handle_hold(bt_rpc_call *call, void *ctx)
{
    serving *s = serve(call, &hold_callbacks, ctx);
    s->f->held = call;
    bt_rpc_call_recv(call);
    bt_rpc_call_send(call, (const uint8_t *)"here", 4);
}

static void handle_refuse(bt_rpc_call *call, void *ctx)
{
    (void)ctx;
    bt_rpc_call_finish(call, BT_RPC_PERMISSION_DENIED, "not you", NULL, 0);
}

/* ---- fixture ---- */

static void bark(void *ctx)
{
    (void)ctx;
    fprintf(stderr, "the test hangs\n");
    abort();
}

static void start_server(fixture *f, const char *address)
{
    bt_error err = {{0}};
    const bt_rpc_server_options options = {.address = address, .message_bytes_max = 1 << 20};
    assert_int_equal(bt_rpc_server_create(f->rpc, &options, &f->server, &err), BT_OK);
    static const struct {
        const char *path;
        bt_rpc_handler handler;
    } routes[] = {
        {"/test.Test/Echo", handle_echo},
        {"/test.Test/Meta", handle_meta},
        {"/test.Test/Hold", handle_hold},
        {"/test.Test/Refuse", handle_refuse},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(routes); i++) {
        assert_int_equal(bt_rpc_server_handle(f->server, routes[i].path, routes[i].handler, f),
                         BT_OK);
    }
    if (bt_rpc_server_start(f->server, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(bt_loop_create(&f->loop), BT_OK);
    assert_int_equal(bt_rpc_create(f->loop, &f->rpc), BT_OK);
    assert_int_equal(bt_timer_create(f->loop, bark, f, &f->watchdog), BT_OK);
    bt_timer_start(f->watchdog, WATCHDOG_MS, 0);
    start_server(f, "127.0.0.1:0");
    snprintf(f->address, sizeof f->address, "127.0.0.1:%d", bt_rpc_server_port(f->server));
    const bt_rpc_channel_options options = {.address = f->address};
    assert_int_equal(bt_rpc_channel_create(f->rpc, &options, &f->channel), BT_OK);
    *state = f;
    return 0;
}

static void on_down(void *ctx)
{
    fixture *f = ctx;
    f->down = true;
    bt_loop_stop(f->loop);
}

static void stop_server(fixture *f, uint64_t grace_ms)
{
    f->down = false;
    bt_rpc_server_shutdown(f->server, grace_ms, on_down, f);
    while (!f->down) {
        bt_loop_run(f->loop);
    }
    bt_rpc_server_destroy(f->server);
    f->server = NULL;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    bt_rpc_channel_destroy(f->channel);
    if (f->server != NULL) {
        stop_server(f, GRACE_MS);
    }
    assert_int_equal(f->n_served, 0);
    bt_rpc_destroy(f->rpc);
    bt_timer_destroy(f->watchdog);
    bt_loop_destroy(f->loop);
    free(f);
    return 0;
}

/* ---- client ---- */

typedef struct client {
    fixture *f;
    bt_rpc_call *call;
    unsigned n_to_send;
    unsigned n_sent;
    unsigned n_received;
    bool ended;
    unsigned n_done;
    bt_rpc_code code;
    char message[TEXT_BYTES];
    char reply_id[TEXT_BYTES];
    char pushback[TEXT_BYTES];
    bool cancel_on_message;
    unsigned salt;
} client;

/* Message `i` of a client: sizes from 0 to 60,000 bytes, content by position. */
static size_t make_message(const client *c, unsigned i, uint8_t *out)
{
    const size_t len = (i * 7919U + c->salt) % 60000U * (i % 3U != 0);
    for (size_t at = 0; at < len; at++) {
        out[at] = (uint8_t)(at * 31U + i + c->salt);
    }
    return len;
}

static void send_next(client *c)
{
    if (c->n_sent == c->n_to_send) {
        bt_rpc_call_close_send(c->call);
        return;
    }
    static uint8_t bytes[60000];
    const size_t len = make_message(c, c->n_sent, bytes);
    c->n_sent++;
    bt_rpc_call_send(c->call, bytes, len);
}

static void client_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    client *c = ctx;
    assert_int_equal(c->n_done, 0);
    if (end) {
        c->ended = true;
        return;
    }
    if (c->n_to_send > 0) {
        static uint8_t expected[60000];
        assert_int_equal(len, make_message(c, c->n_received, expected));
        assert_memory_equal(data, expected, len);
    }
    c->n_received++;
    if (c->cancel_on_message) {
        bt_rpc_call_cancel(call);
    }
    bt_rpc_call_recv(call);
}

static void client_sent(bt_rpc_call *call, void *ctx)
{
    (void)call;
    client *c = ctx;
    if (c->n_to_send > 0) {
        send_next(c);
    }
}

static void client_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    client *c = ctx;
    c->n_done++;
    c->code = code;
    snprintf(c->message, sizeof c->message, "%s", message);
    const char *id = bt_rpc_call_meta(call, "x-request-id");
    const char *pushback = bt_rpc_call_meta(call, "grpc-retry-pushback-ms");
    snprintf(c->reply_id, sizeof c->reply_id, "%s", id != NULL ? id : "");
    snprintf(c->pushback, sizeof c->pushback, "%s", pushback != NULL ? pushback : "");
    c->f->n_open--;
    if (c->f->n_open == 0) {
        bt_loop_stop(c->f->loop);
    }
}

static const bt_rpc_callbacks client_callbacks = {client_message, client_sent, client_done};

static void start_client(fixture *f, client *c, const bt_rpc_start *start)
{
    c->f = f;
    f->n_open++;
    assert_int_equal(bt_rpc_channel_start(f->channel, start, &client_callbacks, c, &c->call),
                     BT_OK);
    bt_rpc_call_recv(c->call);
}

static void run(fixture *f)
{
    while (f->n_open > 0) {
        bt_loop_run(f->loop);
    }
}

static void run_until_served(fixture *f, unsigned n_ended)
{
    while (f->n_open > 0 || f->n_ended < n_ended) {
        bt_loop_run(f->loop);
    }
}

static const bt_rpc_start echo_start = {.path = "/test.Test/Echo", .wait_for_ready = true};
static const bt_rpc_start hold_start = {.path = "/test.Test/Hold", .wait_for_ready = true};

/* ---- tests ---- */

static void unary_call_returns_the_bytes(void **state)
{
    fixture *f = *state;
    client c = {.n_to_send = 1, .salt = 3};
    start_client(f, &c, &echo_start);
    send_next(&c);
    run(f);
    assert_int_equal(c.code, BT_RPC_OK);
    assert_int_equal(c.n_received, 1);
    assert_true(c.ended);
    assert_int_equal(c.n_done, 1);
}

static void stream_keeps_order_and_sizes(void **state)
{
    fixture *f = *state;
    client c = {.n_to_send = 100};
    start_client(f, &c, &echo_start);
    send_next(&c);
    run(f);
    assert_int_equal(c.code, BT_RPC_OK);
    assert_int_equal(c.n_received, 100);
}

static void hundred_streams_run_at_once(void **state)
{
    fixture *f = *state;
    static client many[100];
    memset(many, 0, sizeof many);
    for (unsigned i = 0; i < BT_ARRAY_LEN(many); i++) {
        many[i] = (client){.n_to_send = 10, .salt = i};
        start_client(f, &many[i], &echo_start);
        send_next(&many[i]);
    }
    run_until_served(f, BT_ARRAY_LEN(many));
    for (size_t i = 0; i < BT_ARRAY_LEN(many); i++) {
        assert_int_equal(many[i].code, BT_RPC_OK);
        assert_int_equal(many[i].n_received, 10);
        assert_int_equal(many[i].n_done, 1);
    }
    assert_int_equal(f->n_cancelled, 0);
}

static void metadata_and_status_travel_both_ways(void **state)
{
    fixture *f = *state;
    client c = {0};
    const bt_rpc_meta meta[] = {{"x-request-id", "r-17"}};
    start_client(f, &c,
                 &(bt_rpc_start){
                     .path = "/test.Test/Meta", .meta = meta, .n_meta = 1, .wait_for_ready = true});
    bt_rpc_call_send(c.call, (const uint8_t *)"?", 1);
    run(f);
    assert_int_equal(c.n_received, 1);
    assert_int_equal(c.code, BT_RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(c.message, "no r\xc3\xb6\xc3\xb6m");
    assert_string_equal(c.reply_id, "r-17");
    assert_string_equal(c.pushback, "250");
}

static void illegal_metadata_is_refused_at_start(void **state)
{
    fixture *f = *state;
    client c = {.f = f};
    const bt_rpc_meta meta[] = {{"x-request-id", "two\nlines"}};
    assert_int_equal(
        bt_rpc_channel_start(f->channel,
                             &(bt_rpc_start){.path = "/test.Test/Echo", .meta = meta, .n_meta = 1},
                             &client_callbacks, &c, &c.call),
        BT_EINVAL);
}

static void unknown_path_is_unimplemented(void **state)
{
    fixture *f = *state;
    client c = {0};
    start_client(f, &c, &(bt_rpc_start){.path = "/test.Test/None", .wait_for_ready = true});
    run(f);
    assert_int_equal(c.code, BT_RPC_UNIMPLEMENTED);
}

static void handler_may_refuse(void **state)
{
    fixture *f = *state;
    client c = {0};
    start_client(f, &c, &(bt_rpc_start){.path = "/test.Test/Refuse", .wait_for_ready = true});
    run(f);
    assert_int_equal(c.code, BT_RPC_PERMISSION_DENIED);
    assert_string_equal(c.message, "not you");
}

static void deadline_ends_both_sides(void **state)
{
    fixture *f = *state;
    client c = {0};
    start_client(f, &c,
                 &(bt_rpc_start){.path = "/test.Test/Hold",
                                 .deadline_ns = 200 * 1000 * 1000,
                                 .wait_for_ready = true});
    run_until_served(f, 1);
    assert_int_equal(c.code, BT_RPC_DEADLINE_EXCEEDED);
    assert_int_equal(c.n_done, 1);
    assert_int_equal(f->n_cancelled, 1);
}

static void client_cancel_reaches_the_server(void **state)
{
    fixture *f = *state;
    client c = {.cancel_on_message = true};
    start_client(f, &c, &hold_start);
    run_until_served(f, 1);
    assert_int_equal(c.code, BT_RPC_CANCELLED);
    assert_int_equal(c.n_done, 1);
    assert_int_equal(f->n_cancelled, 1);
}

static void cancel_held(void *ctx)
{
    fixture *f = ctx;
    bt_rpc_call_cancel(f->held);
}

static void server_cancel_reaches_the_client(void **state)
{
    fixture *f = *state;
    client c = {0};
    f->on_held = cancel_held;
    f->on_held_ctx = f;
    start_client(f, &c, &hold_start);
    run_until_served(f, 1);
    assert_int_not_equal(c.code, BT_RPC_OK);
    assert_int_equal(c.n_done, 1);
    assert_int_equal(f->n_cancelled, 1);
}

static void oversize_message_is_refused(void **state)
{
    fixture *f = *state;
    client c = {0};
    start_client(f, &c, &echo_start);
    const size_t len = (1 << 20) + 1;
    uint8_t *big = calloc(1, len);
    assert_non_null(big);
    bt_rpc_call_send(c.call, big, len);
    free(big);
    run(f);
    assert_int_equal(c.code, BT_RPC_RESOURCE_EXHAUSTED);
}

static void port_in_use_fails_with_its_name(void **state)
{
    fixture *f = *state;
    bt_error err = {{0}};
    bt_rpc_server *second = NULL;
    const bt_rpc_server_options options = {.address = f->address};
    assert_int_equal(bt_rpc_server_create(f->rpc, &options, &second, &err), BT_OK);
    assert_int_equal(bt_rpc_server_start(second, &err), BT_EEXISTS);
    assert_non_null(strstr(err.text, f->address));
    assert_non_null(strstr(err.text, "in use"));
    bt_rpc_server_destroy(second);
}

static void bound_port_is_free_again_without_serving(void **state)
{
    fixture *f = *state;
    bt_error err = {{0}};
    bt_rpc_server *idle = NULL;
    const bt_rpc_server_options options = {.address = "127.0.0.1:0"};
    assert_int_equal(bt_rpc_server_create(f->rpc, &options, &idle, &err), BT_OK);
    assert_int_equal(bt_rpc_server_bind(idle, &err), BT_OK);
    char address[TEXT_BYTES];
    snprintf(address, sizeof address, "127.0.0.1:%d", bt_rpc_server_port(idle));
    bt_rpc_server_destroy(idle);
    bt_rpc_server *next = NULL;
    const bt_rpc_server_options again = {.address = address};
    assert_int_equal(bt_rpc_server_create(f->rpc, &again, &next, &err), BT_OK);
    assert_int_equal(bt_rpc_server_bind(next, &err), BT_OK);
    bt_rpc_server_destroy(next);
}

/* gRPC has kinds of addresses of its own ("vsock:"): none is listened on that was not looked at. */
static void addresses_that_only_grpc_knows_are_refused(void **state)
{
    fixture *f = *state;
    const char *const addresses[] = {"ipv4:127.0.0.1:0", "ipv6:[::1]:0", "dns:127.0.0.1:0",
                                     "dns:///127.0.0.1:0", "vsock:1:0"};
    for (size_t i = 0; i < BT_ARRAY_LEN(addresses); i++) {
        bt_error err = {{0}};
        bt_rpc_server *server = NULL;
        const bt_rpc_server_options options = {.address = addresses[i]};
        assert_int_equal(bt_rpc_server_create(f->rpc, &options, &server, &err), BT_OK);
        assert_int_equal(bt_rpc_server_bind(server, &err), BT_EINVAL);
        assert_non_null(strstr(err.text, "host:port"));
        bt_rpc_server_destroy(server);
    }
}

static void nonsense_address_fails_with_advice(void **state)
{
    fixture *f = *state;
    static const char *const addresses[] = {"nonsense", "127.0.0.1:notaport", "127.0.0.1:99999",
                                            ":7700", "192.0.2.1:7700"};
    for (size_t i = 0; i < BT_ARRAY_LEN(addresses); i++) {
        bt_error err = {{0}};
        bt_rpc_server *other = NULL;
        const bt_rpc_server_options options = {.address = addresses[i]};
        assert_int_equal(bt_rpc_server_create(f->rpc, &options, &other, &err), BT_OK);
        assert_int_not_equal(bt_rpc_server_start(other, &err), BT_OK);
        assert_non_null(strstr(err.text, addresses[i]));
        bt_rpc_server_destroy(other);
    }
}

static void finish_held(void *ctx)
{
    fixture *f = ctx;
    bt_rpc_call_finish(f->held, BT_RPC_OK, "", NULL, 0);
}

static void begin_shutdown(void *ctx)
{
    fixture *f = ctx;
    bt_rpc_server_shutdown(f->server, GRACE_MS, on_down, f);
    assert_int_equal(bt_loop_post(f->loop, finish_held, f), BT_OK);
}

static void shutdown_lets_a_running_call_finish(void **state)
{
    fixture *f = *state;
    client c = {0};
    f->on_held = begin_shutdown;
    f->on_held_ctx = f;
    start_client(f, &c, &hold_start);
    while (!f->down || f->n_open > 0) {
        bt_loop_run(f->loop);
    }
    assert_int_equal(c.code, BT_RPC_OK);
    assert_int_equal(f->n_cancelled, 0);
    bt_rpc_server_destroy(f->server);
    f->server = NULL;
}

static void begin_hasty_shutdown(void *ctx)
{
    fixture *f = ctx;
    bt_rpc_server_shutdown(f->server, 10, on_down, f);
}

static void shutdown_cancels_what_outlives_its_grace(void **state)
{
    fixture *f = *state;
    client c = {0};
    f->on_held = begin_hasty_shutdown;
    f->on_held_ctx = f;
    start_client(f, &c, &hold_start);
    while (!f->down || f->n_open > 0) {
        bt_loop_run(f->loop);
    }
    assert_int_not_equal(c.code, BT_RPC_OK);
    assert_int_equal(f->n_cancelled, 1);
    bt_rpc_server_destroy(f->server);
    f->server = NULL;
}

static void drop_channel(void *ctx)
{
    fixture *f = ctx;
    bt_rpc_channel_destroy(f->channel);
    f->channel = NULL;
}

static void destroyed_channel_ends_its_calls(void **state)
{
    fixture *f = *state;
    client c = {0};
    f->on_held = drop_channel;
    f->on_held_ctx = f;
    start_client(f, &c, &hold_start);
    run_until_served(f, 1);
    assert_int_equal(c.code, BT_RPC_CANCELLED);
    assert_int_equal(c.n_done, 1);
}

static void channel_finds_a_restarted_server(void **state)
{
    fixture *f = *state;
    client first = {.n_to_send = 1};
    start_client(f, &first, &echo_start);
    send_next(&first);
    run(f);
    assert_int_equal(first.code, BT_RPC_OK);
    stop_server(f, GRACE_MS);

    client lost = {.n_to_send = 1};
    start_client(f, &lost, &(bt_rpc_start){.path = "/test.Test/Echo"});
    run(f);
    assert_int_equal(lost.code, BT_RPC_UNAVAILABLE);

    start_server(f, f->address);
    client again = {.n_to_send = 1};
    start_client(f, &again, &echo_start);
    send_next(&again);
    run(f);
    assert_int_equal(again.code, BT_RPC_OK);
}

static void every_status_has_a_code(void **state)
{
    (void)state;
    assert_int_equal(bt_rpc_status_of(BT_RPC_UNAUTHENTICATED), BT_EPERMISSION);
    assert_int_equal(bt_rpc_status_of(BT_RPC_UNKNOWN), BT_EPEER);
    assert_int_equal(bt_rpc_status_of(bt_rpc_code_of(BT_EEXHAUSTED)), BT_EEXHAUSTED);
    assert_int_equal(bt_rpc_code_of(BT_OK), BT_RPC_OK);
    assert_int_equal(bt_rpc_code_of(BT_EINVAL), BT_RPC_INVALID_ARGUMENT);
    assert_int_equal(bt_rpc_code_of(BT_EEXHAUSTED), BT_RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(bt_rpc_code_of(BT_EPEER), BT_RPC_UNAVAILABLE);
#define CHECK(name, value, scope, text)                                                            \
    assert_int_not_equal(bt_rpc_code_of(BT_##name), BT_RPC_UNKNOWN);
    BT_STATUS_LIST(CHECK)
#undef CHECK
}

#define RPC_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_code),
        RPC_TEST(unary_call_returns_the_bytes),
        RPC_TEST(stream_keeps_order_and_sizes),
        RPC_TEST(hundred_streams_run_at_once),
        RPC_TEST(metadata_and_status_travel_both_ways),
        RPC_TEST(illegal_metadata_is_refused_at_start),
        RPC_TEST(unknown_path_is_unimplemented),
        RPC_TEST(handler_may_refuse),
        RPC_TEST(deadline_ends_both_sides),
        RPC_TEST(client_cancel_reaches_the_server),
        RPC_TEST(server_cancel_reaches_the_client),
        RPC_TEST(oversize_message_is_refused),
        RPC_TEST(port_in_use_fails_with_its_name),
        RPC_TEST(bound_port_is_free_again_without_serving),
        RPC_TEST(addresses_that_only_grpc_knows_are_refused),
        RPC_TEST(nonsense_address_fails_with_advice),
        RPC_TEST(shutdown_lets_a_running_call_finish),
        RPC_TEST(shutdown_cancels_what_outlives_its_grace),
        RPC_TEST(destroyed_channel_ends_its_calls),
        RPC_TEST(channel_finds_a_restarted_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
