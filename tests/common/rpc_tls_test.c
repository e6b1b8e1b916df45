/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: TLS, client certificates and the guard, over real loopback sockets. Certificates are made
 * by tests/support/make_certs.sh: two authorities that don't know each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/rpc.h"

enum {
    WATCHDOG_MS = 60 * 1000,
    PATH_BYTES = 256,
    CALL_NS = 5 * 1000 * 1000, /* times 1,000: 5 s */
};

#define PATH "/test.Test/Ask"

typedef struct fixture {
    bt_loop *loop;
    bt_rpc *rpc;
    bt_rpc_server *server;
    bt_timer *watchdog;
    char address[64];
    bool down;
    unsigned n_served;
    /* of the call that is running */
    bool done;
    unsigned n_replies;
    bt_rpc_code code;
    char message[256];
} fixture;

static fixture the_fixture;
static char folder[PATH_BYTES / 2];

/* ---- files ---- */

typedef struct path {
    char text[PATH_BYTES];
} path;

static path file(const char *name)
{
    path p;
    snprintf(p.text, sizeof p.text, "%s/%s", folder, name);
    return p;
}

/* Replaces `to` by a copy of `from`, as a rename does. */
static void replace(const char *to, const char *from)
{
    static char bytes[1 << 16];
    FILE *in = fopen(file(from).text, "rb");
    assert_non_null(in);
    const size_t n = fread(bytes, 1, sizeof bytes, in);
    fclose(in);
    FILE *out = fopen(file("new").text, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    fclose(out);
    assert_int_equal(rename(file("new").text, file(to).text), 0);
}

static int make_certificates(void **state)
{
    (void)state;
    const char *base = getenv("TEST_TMPDIR");
    snprintf(folder, sizeof folder, "%s/certs", base != NULL ? base : "/tmp");
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
        return -1;
    }
    char command[2 * PATH_BYTES];
    snprintf(command, sizeof command, "tests/support/make_certs.sh '%s'", folder);
    return system(command);
}

/* ---- server ---- */

static void on_ask(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    (void)data;
    (void)len;
    (void)ctx;
    if (end) {
        bt_rpc_call_finish(call, BT_RPC_OK, "", NULL, 0);
        return;
    }
    const char *who = bt_rpc_call_kept(call);
    who = who != NULL ? who : "nobody";
    bt_rpc_call_send(call, (const uint8_t *)who, strlen(who));
    bt_rpc_call_finish(call, BT_RPC_OK, who, NULL, 0);
}

static void on_served(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    (void)code;
    (void)message;
    (void)ctx;
}

static const bt_rpc_callbacks serving = {.on_message = on_ask, .on_done = on_served};

static void handle(bt_rpc_call *call, void *ctx)
{
    ((fixture *)ctx)->n_served++;
    bt_rpc_call_accept(call, &serving, ctx);
    bt_rpc_call_recv(call);
}

static bool guard(bt_rpc_call *call, const char *path_called, void *ctx)
{
    (void)ctx;
    const char *who = bt_rpc_call_meta(call, "who");
    if (strcmp(path_called, "/test.Test/Open") != 0 && who == NULL) {
        bt_rpc_call_finish(call, BT_RPC_UNAUTHENTICATED, "who?", NULL, 0);
        return false;
    }
    return who == NULL || bt_rpc_call_keep(call, who, strlen(who) + 1);
}

static bt_status make_server(fixture *f, const bt_rpc_tls *tls, bt_rpc_guard asked, bt_error *err)
{
    const bt_rpc_server_options options = {
        .address = "127.0.0.1:0", .tls = tls, .guard = asked, .guard_ctx = f};
    const bt_status status = bt_rpc_server_create(f->rpc, &options, &f->server, err);
    if (status != BT_OK) {
        return status;
    }
    assert_int_equal(bt_rpc_server_handle(f->server, PATH, handle, f), BT_OK);
    assert_int_equal(bt_rpc_server_handle(f->server, "/test.Test/Open", handle, f), BT_OK);
    return bt_rpc_server_start(f->server, err);
}

static void serve(fixture *f, const bt_rpc_tls *tls, bt_rpc_guard asked)
{
    bt_error err = {{0}};
    if (make_server(f, tls, asked, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    snprintf(f->address, sizeof f->address, "127.0.0.1:%d", bt_rpc_server_port(f->server));
}

/* ---- client ---- */

static void on_reply(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    (void)data;
    (void)len;
    fixture *f = ctx;
    if (!end) {
        f->n_replies++;
        bt_rpc_call_recv(call);
    }
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    fixture *f = ctx;
    f->done = true;
    f->code = code;
    snprintf(f->message, sizeof f->message, "%s", message);
    bt_loop_stop(f->loop);
}

static const bt_rpc_callbacks asking = {.on_message = on_reply, .on_done = on_done};

static bt_rpc_channel *dial(fixture *f, const bt_rpc_tls *tls)
{
    const bt_rpc_channel_options options = {.address = f->address, .tls = tls};
    bt_rpc_channel *channel = NULL;
    assert_int_equal(bt_rpc_channel_create(f->rpc, &options, &channel), BT_OK);
    return channel;
}

static bt_rpc_code ask_on(fixture *f, bt_rpc_channel *channel, const char *method, const char *who)
{
    const bt_rpc_meta meta = {.key = "who", .value = who};
    const bt_rpc_start start = {.path = method,
                                .deadline_ns = (int64_t)CALL_NS * 1000,
                                .meta = &meta,
                                .n_meta = who != NULL};
    bt_rpc_call *call = NULL;
    f->done = false;
    f->n_replies = 0;
    assert_int_equal(bt_rpc_channel_start(channel, &start, &asking, f, &call), BT_OK);
    bt_rpc_call_send(call, (const uint8_t *)"?", 1);
    bt_rpc_call_close_send(call);
    bt_rpc_call_recv(call);
    while (!f->done) {
        bt_loop_run(f->loop);
    }
    return f->code;
}

static bt_rpc_code ask(fixture *f, const bt_rpc_tls *tls)
{
    bt_rpc_channel *channel = dial(f, tls);
    const bt_rpc_code code = ask_on(f, channel, PATH, NULL);
    bt_rpc_channel_destroy(channel);
    return code;
}

/* ---- fixture ---- */

static void bark(void *ctx)
{
    (void)ctx;
    fprintf(stderr, "the test hangs\n");
    abort();
}

static int set_up(void **state)
{
    fixture *f = &the_fixture;
    memset(f, 0, sizeof *f);
    assert_int_equal(bt_loop_create(&f->loop), BT_OK);
    assert_int_equal(bt_rpc_create(f->loop, &f->rpc), BT_OK);
    assert_int_equal(bt_timer_create(f->loop, bark, f, &f->watchdog), BT_OK);
    bt_timer_start(f->watchdog, WATCHDOG_MS, 0);
    *state = f;
    return 0;
}

static void on_down(void *ctx)
{
    fixture *f = ctx;
    f->down = true;
    bt_loop_stop(f->loop);
}

static int tear_down(void **state)
{
    fixture *f = *state;
    if (f->server != NULL) {
        bt_rpc_server_shutdown(f->server, 1000, on_down, f);
        while (!f->down) {
            bt_loop_run(f->loop);
        }
        bt_rpc_server_destroy(f->server);
    }
    bt_rpc_destroy(f->rpc);
    bt_timer_destroy(f->watchdog);
    bt_loop_destroy(f->loop);
    return 0;
}

/* ---- tests ---- */

static void the_authority_decides_whom_a_client_trusts(void **state)
{
    fixture *f = *state;
    const path cert = file("ca-server.pem");
    const path key = file("ca-server.key");
    const path ca = file("ca.pem");
    const path other = file("other.pem");
    serve(f, &(bt_rpc_tls){.cert = cert.text, .key = key.text}, NULL);
    assert_int_equal(ask(f, &(bt_rpc_tls){.ca = ca.text}), BT_RPC_OK);
    assert_int_equal(f->n_replies, 1);
    assert_int_equal(ask(f, &(bt_rpc_tls){.ca = other.text}), BT_RPC_UNAVAILABLE);
    assert_int_equal(ask(f, NULL), BT_RPC_UNAVAILABLE); /* in plain text */
    assert_int_equal(f->n_served, 1);
}

static void the_name_in_the_certificate_has_to_be_right(void **state)
{
    fixture *f = *state;
    const path cert = file("ca-server.pem");
    const path key = file("ca-server.key");
    const path ca = file("ca.pem");
    serve(f, &(bt_rpc_tls){.cert = cert.text, .key = key.text}, NULL);
    const bt_rpc_tls named = {.ca = ca.text, .server_name = "baton.test"};
    assert_int_equal(ask(f, &named), BT_RPC_OK);
    const bt_rpc_tls misnamed = {.ca = ca.text, .server_name = "else.test"};
    assert_int_equal(ask(f, &misnamed), BT_RPC_UNAVAILABLE);
}

static void client_authority_lets_in_its_own_alone(void **state)
{
    fixture *f = *state;
    const path cert = file("ca-server.pem");
    const path key = file("ca-server.key");
    const path ca = file("ca.pem");
    serve(f, &(bt_rpc_tls){.cert = cert.text, .key = key.text, .ca = ca.text}, NULL);
    assert_int_equal(ask(f, &(bt_rpc_tls){.ca = ca.text}), BT_RPC_UNAVAILABLE);
    path own = file("other-client.pem");
    path own_key = file("other-client.key");
    assert_int_equal(ask(f, &(bt_rpc_tls){.ca = ca.text, .cert = own.text, .key = own_key.text}),
                     BT_RPC_UNAVAILABLE);
    assert_int_equal(f->n_served, 0);
    own = file("ca-client.pem");
    own_key = file("ca-client.key");
    assert_int_equal(ask(f, &(bt_rpc_tls){.ca = ca.text, .cert = own.text, .key = own_key.text}),
                     BT_RPC_OK);
}

static void changed_files_hold_for_the_next_connection(void **state)
{
    fixture *f = *state;
    replace("cert", "ca-server.pem");
    replace("key", "ca-server.key");
    replace("trusted", "ca.pem");
    const path cert = file("cert");
    const path key = file("key");
    const path trusted = file("trusted");
    const path old = file("ca.pem");
    serve(f, &(bt_rpc_tls){.cert = cert.text, .key = key.text}, NULL);
    bt_rpc_channel *channel = dial(f, &(bt_rpc_tls){.ca = trusted.text});
    assert_int_equal(ask_on(f, channel, PATH, NULL), BT_RPC_OK);

    replace("cert", "other-server.pem"); /* half of it: the old pair goes on */
    assert_int_equal(ask(f, &(bt_rpc_tls){.ca = old.text}), BT_RPC_OK);
    replace("key", "other-server.key");
    assert_int_equal(ask(f, &(bt_rpc_tls){.ca = old.text}), BT_RPC_UNAVAILABLE);
    assert_int_equal(ask_on(f, channel, PATH, NULL), BT_RPC_OK); /* an open connection stays */
    replace("trusted", "other.pem");
    assert_int_equal(ask_on(f, channel, PATH, NULL), BT_RPC_OK); /* on a new one, that trusts */
    bt_rpc_channel_destroy(channel);
    assert_int_equal(ask(f, &(bt_rpc_tls){.ca = trusted.text}), BT_RPC_OK);
}

static void files_that_cannot_be_used_are_named(void **state)
{
    fixture *f = *state;
    bt_error err = {{0}};
    const path cert = file("ca-server.pem");
    const path key = file("other-server.key");
    const path none = file("nothing.pem");
    const path csr = file("openssl.log");
    assert_int_equal(bt_rpc_tls_check(&(bt_rpc_tls){.server_name = "x"}, false, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "authority"));
    assert_int_equal(make_server(f, &(bt_rpc_tls){.cert = cert.text}, NULL, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "key"));
    const bt_rpc_tls absent = {.cert = none.text, .key = key.text};
    assert_int_equal(make_server(f, &absent, NULL, &err), BT_ENOTFOUND);
    assert_non_null(strstr(err.text, "nothing.pem"));
    const bt_rpc_tls no_pem = {.cert = csr.text, .key = key.text};
    assert_int_equal(make_server(f, &no_pem, NULL, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "no PEM file"));
    const bt_rpc_tls unlike = {.cert = cert.text, .key = key.text};
    assert_int_equal(make_server(f, &unlike, NULL, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "do not go together"));
    bt_rpc_server_destroy(f->server);
    f->server = NULL;
}

static void guard_is_asked_before_anything_else(void **state)
{
    fixture *f = *state;
    serve(f, NULL, guard);
    bt_rpc_channel *channel = dial(f, NULL);
    assert_int_equal(ask_on(f, channel, PATH, NULL), BT_RPC_UNAUTHENTICATED);
    assert_string_equal(f->message, "who?");
    assert_int_equal(ask_on(f, channel, "/test.Test/Nothing", NULL), BT_RPC_UNAUTHENTICATED);
    assert_int_equal(f->n_served, 0);
    assert_int_equal(ask_on(f, channel, "/test.Test/Open", NULL), BT_RPC_OK);
    assert_int_equal(ask_on(f, channel, PATH, "alice"), BT_RPC_OK);
    assert_int_equal(f->n_served, 2);
    assert_string_equal(f->message, "alice"); /* what the guard kept */
    assert_int_equal(ask_on(f, channel, "/test.Test/Nothing", "alice"), BT_RPC_UNIMPLEMENTED);
    bt_rpc_channel_destroy(channel);
}

#define RPC_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_TEST(the_authority_decides_whom_a_client_trusts),
        RPC_TEST(the_name_in_the_certificate_has_to_be_right),
        RPC_TEST(client_authority_lets_in_its_own_alone),
        RPC_TEST(changed_files_hold_for_the_next_connection),
        RPC_TEST(files_that_cannot_be_used_are_named),
        RPC_TEST(guard_is_asked_before_anything_else),
    };
    return cmocka_run_group_tests(tests, make_certificates, NULL);
}
