/* SPDX-License-Identifier: Apache-2.0 */
/* health: Check and Watch as a stock client sees them, over a loopback socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "proto/health.h"
#include "proto/health.pb-c.h"
#include "tests/proto/talk.h"

#define CHECK_PATH "/grpc.health.v1.Health/Check"
#define WATCH_PATH "/grpc.health.v1.Health/Watch"

enum {
    SERVING = 1,
    NOT_SERVING = 2,
    SERVICE_UNKNOWN = 3,
};

typedef struct fixture {
    pair pair;
    bt_health *health;
    bool stopped;
} fixture;

static fixture the_fixture;

static int set_up(void **state)
{
    fixture *f = &the_fixture;
    *f = (fixture){0};
    pair_init(&f->pair, NULL);
    assert_int_equal(bt_health_create(f->pair.server, 2, &f->health), BT_OK);
    pair_start(&f->pair);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    bt_health_stop(f->health);
    pair_stop_server(&f->pair);
    bt_health_destroy(f->health);
    pair_deinit(&f->pair);
    return 0;
}

static void ask(talk *t, fixture *f, const char *path, const char *service)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)(uintptr_t)service;
    uint8_t bytes[512];
    const size_t len = grpc__health__v1__health_check_request__pack(&request, bytes);
    talk_start(t, &f->pair, path);
    talk_send(t, bytes, len);
}

static int status_of(const talk *t, size_t i)
{
    Grpc__Health__V1__HealthCheckResponse *reply = grpc__health__v1__health_check_response__unpack(
        NULL, t->replies[i].len, t->replies[i].bytes);
    assert_non_null(reply);
    const int status = (int)reply->status;
    grpc__health__v1__health_check_response__free_unpacked(reply, NULL);
    return status;
}

static int check(fixture *f, const char *service, bt_rpc_code *code)
{
    talk t;
    ask(&t, f, CHECK_PATH, service);
    talk_wait_done(&t);
    const int status = t.n_replies > 0 ? status_of(&t, 0) : -1;
    *code = t.code;
    talk_free(&t);
    return status;
}

static void check_tells_the_state(void **state)
{
    fixture *f = *state;
    bt_rpc_code code;
    assert_int_equal(check(f, "", &code), NOT_SERVING);
    assert_int_equal(code, BT_RPC_OK);
    assert_int_equal(bt_health_set(f->health, "", true), BT_OK);
    assert_int_equal(bt_health_set(f->health, "baton.v1.Generation", true), BT_OK);
    assert_int_equal(check(f, "", &code), SERVING);
    assert_int_equal(check(f, "baton.v1.Generation", &code), SERVING);
}

static void check_of_an_unknown_service_is_not_found(void **state)
{
    fixture *f = *state;
    bt_rpc_code code;
    assert_int_equal(check(f, "no.such.Service", &code), -1);
    assert_int_equal(code, BT_RPC_NOT_FOUND);
    char longest[300];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(check(f, longest, &code), -1);
    assert_int_equal(code, BT_RPC_NOT_FOUND);
    assert_int_equal(bt_health_set(f->health, longest, true), BT_EINVAL);
}

static void watch_tells_each_change(void **state)
{
    fixture *f = *state;
    talk t;
    ask(&t, f, WATCH_PATH, "");
    talk_wait_replies(&t, 1);
    assert_int_equal(status_of(&t, 0), NOT_SERVING);
    assert_int_equal(bt_health_set(f->health, "", true), BT_OK);
    talk_wait_replies(&t, 2);
    assert_int_equal(status_of(&t, 1), SERVING);
    assert_int_equal(bt_health_set(f->health, "", true), BT_OK); /* no change, no message */
    assert_int_equal(bt_health_set(f->health, "", false), BT_OK);
    talk_wait_replies(&t, 3);
    assert_int_equal(status_of(&t, 2), NOT_SERVING);
    bt_rpc_call_cancel(t.call);
    talk_wait_done(&t);
    talk_free(&t);
}

static void watch_of_an_unknown_service_waits_for_it(void **state)
{
    fixture *f = *state;
    talk t;
    ask(&t, f, WATCH_PATH, "later");
    talk_wait_replies(&t, 1);
    assert_int_equal(status_of(&t, 0), SERVICE_UNKNOWN);
    assert_int_equal(bt_health_set(f->health, "later", true), BT_OK);
    talk_wait_replies(&t, 2);
    assert_int_equal(status_of(&t, 1), SERVING);
    bt_rpc_call_cancel(t.call);
    talk_wait_done(&t);
    talk_free(&t);
}

static void stop_tells_watchers_and_ends_them(void **state)
{
    fixture *f = *state;
    assert_int_equal(bt_health_set(f->health, "", true), BT_OK);
    talk t;
    ask(&t, f, WATCH_PATH, "");
    talk_wait_replies(&t, 1);
    bt_health_stop(f->health);
    talk_wait_done(&t);
    assert_int_equal(t.n_replies, 2);
    assert_int_equal(status_of(&t, 1), NOT_SERVING);
    assert_int_equal(t.code, BT_RPC_UNAVAILABLE);
    talk_free(&t);
}

static void the_oldest_watcher_gives_way(void **state)
{
    fixture *f = *state;
    talk t[3];
    for (size_t i = 0; i < 3; i++) {
        ask(&t[i], f, WATCH_PATH, "");
        talk_wait_replies(&t[i], 1);
    }
    talk_wait_done(&t[0]);
    assert_int_equal(t[0].code, BT_RPC_CANCELLED);
    assert_false(t[1].done);
    for (size_t i = 0; i < 3; i++) {
        if (i > 0) {
            bt_rpc_call_cancel(t[i].call);
            talk_wait_done(&t[i]);
        }
        talk_free(&t[i]);
    }
}

/* Anybody may open streams: a probe is answered all the same. */
static void calls_that_never_ask_keep_no_probe_out(void **state)
{
    fixture *f = *state;
    talk t[8];
    bt_rpc_code code;
    assert_int_equal(bt_health_set(f->health, "", true), BT_OK);
    for (size_t i = 0; i < 8; i++) {
        talk_start(&t[i], &f->pair, i < 4 ? WATCH_PATH : CHECK_PATH);
        assert_int_equal(check(f, "", &code), SERVING);
        assert_int_equal(code, BT_RPC_OK);
    }
    bt_health_stop(f->health); /* ends those that are left, too */
    for (size_t i = 0; i < 8; i++) {
        talk_wait_done(&t[i]);
        talk_free(&t[i]);
    }
}

static void nonsense_is_an_invalid_argument(void **state)
{
    fixture *f = *state;
    talk t;
    talk_start(&t, &f->pair, CHECK_PATH);
    talk_send(&t, (const uint8_t *)"\x0a\xff", 2);
    talk_wait_done(&t);
    assert_int_equal(t.code, BT_RPC_INVALID_ARGUMENT);
    talk_free(&t);
}

#define HEALTH_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        HEALTH_TEST(check_tells_the_state),
        HEALTH_TEST(check_of_an_unknown_service_is_not_found),
        HEALTH_TEST(watch_tells_each_change),
        HEALTH_TEST(watch_of_an_unknown_service_waits_for_it),
        HEALTH_TEST(stop_tells_watchers_and_ends_them),
        HEALTH_TEST(the_oldest_watcher_gives_way),
        HEALTH_TEST(calls_that_never_ask_keep_no_probe_out),
        HEALTH_TEST(nonsense_is_an_invalid_argument),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
