/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/proto/talk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WATCHDOG_MS = 60 * 1000,
    POLL_MS = 2,
    GRACE_MS = 2000,
};

static void bark(void *ctx)
{
    (void)ctx;
    fprintf(stderr, "the test hangs\n");
    abort();
}

static void look(void *ctx)
{
    pair *p = ctx;
    if (p->until != NULL && p->until(p->until_ctx)) {
        bt_loop_stop(p->loop);
    }
}

void pair_init(pair *p, const char *address)
{
    *p = (pair){0};
    assert_int_equal(bt_loop_create(&p->loop), BT_OK);
    assert_int_equal(bt_rpc_create(p->loop, &p->rpc), BT_OK);
    assert_int_equal(bt_timer_create(p->loop, bark, p, &p->watchdog), BT_OK);
    assert_int_equal(bt_timer_create(p->loop, look, p, &p->poll), BT_OK);
    bt_timer_start(p->watchdog, WATCHDOG_MS, 0);
    bt_error err;
    const bt_rpc_server_options options = {.address = address != NULL ? address : "127.0.0.1:0"};
    assert_int_equal(bt_rpc_server_create(p->rpc, &options, &p->server, &err), BT_OK);
}

void pair_start(pair *p)
{
    bt_error err;
    if (bt_rpc_server_start(p->server, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    snprintf(p->address, sizeof p->address, "127.0.0.1:%d", bt_rpc_server_port(p->server));
    if (p->channel == NULL) {
        const bt_rpc_channel_options options = {.address = p->address};
        assert_int_equal(bt_rpc_channel_create(p->rpc, &options, &p->channel), BT_OK);
    }
}

void pair_run(pair *p, bool (*until)(void *ctx), void *ctx)
{
    p->until = until;
    p->until_ctx = ctx;
    bt_timer_start(p->poll, POLL_MS, POLL_MS);
    while (!until(ctx)) {
        bt_loop_run(p->loop);
    }
    bt_timer_stop(p->poll);
    p->until = NULL;
}

static bool after_a_while(void *ctx)
{
    bool *looked = ctx;
    const bool before = *looked;
    *looked = true;
    return before;
}

void pair_step(pair *p)
{
    bool looked = false;
    pair_run(p, after_a_while, &looked);
}

void pair_remake_server(pair *p)
{
    bt_error err;
    const bt_rpc_server_options options = {.address = p->address};
    assert_int_equal(bt_rpc_server_create(p->rpc, &options, &p->server, &err), BT_OK);
}

static void on_down(void *ctx)
{
    ((pair *)ctx)->down = true;
}

static bool is_down(void *ctx)
{
    return ((pair *)ctx)->down;
}

void pair_stop_server(pair *p)
{
    p->down = false;
    bt_rpc_server_shutdown(p->server, GRACE_MS, on_down, p);
    pair_run(p, is_down, p);
    bt_rpc_server_destroy(p->server);
    p->server = NULL;
}

void pair_deinit(pair *p)
{
    bt_rpc_channel_destroy(p->channel);
    bt_rpc_destroy(p->rpc);
    bt_timer_destroy(p->watchdog);
    bt_timer_destroy(p->poll);
    bt_loop_destroy(p->loop);
}

/* ---- talk ---- */

static void on_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    talk *t = ctx;
    if (end) {
        return;
    }
    assert_true(t->n_replies < TALK_REPLIES_MAX);
    uint8_t *bytes = malloc(len + 1);
    assert_non_null(bytes);
    if (len > 0) {
        memcpy(bytes, data, len);
    }
    t->replies[t->n_replies].bytes = bytes;
    t->replies[t->n_replies].len = len;
    t->n_replies++;
    bt_rpc_call_recv(call);
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    talk *t = ctx;
    t->done = true;
    t->code = code;
    snprintf(t->message, sizeof t->message, "%s", message);
}

static const bt_rpc_callbacks callbacks = {on_message, NULL, on_done};

void talk_start(talk *t, pair *p, const char *path)
{
    *t = (talk){.pair = p};
    const bt_rpc_start start = {.path = path, .wait_for_ready = true};
    assert_int_equal(bt_rpc_channel_start(p->channel, &start, &callbacks, t, &t->call), BT_OK);
    bt_rpc_call_recv(t->call);
}

static bool can_send(void *ctx)
{
    const talk *t = ctx;
    return t->done || bt_rpc_call_can_send(t->call);
}

void talk_send(talk *t, const uint8_t *bytes, size_t len)
{
    pair_run(t->pair, can_send, t);
    if (!t->done) {
        bt_rpc_call_send(t->call, bytes, len);
    }
}

static bool has_replies(void *ctx)
{
    const talk *t = ctx;
    return t->done || t->n_replies >= t->wanted;
}

void talk_wait_replies(talk *t, size_t n)
{
    t->wanted = n;
    pair_run(t->pair, has_replies, t);
    if (t->n_replies < n) {
        fail_msg("%zu replies instead of %zu, code %d: %s", t->n_replies, n, (int)t->code,
                 t->message);
    }
}

static bool is_done(void *ctx)
{
    return ((talk *)ctx)->done;
}

void talk_wait_done(talk *t)
{
    pair_run(t->pair, is_done, t);
}

void talk_free(talk *t)
{
    for (size_t i = 0; i < t->n_replies; i++) {
        free(t->replies[i].bytes);
    }
}
