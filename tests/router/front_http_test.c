/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the HTTP front inside the real router, with fake workers and a client that is a socket
 * on the same loop: what workers do (hold still, fail, die) and what clients do (leave, come in
 * pieces) shows as it should, and nothing stays behind. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/socket.h"
#include "tests/router/router_rig.h"

enum { REPLY_BYTES = 1 << 17 };

typedef struct http_client {
    rig *rig;
    int fd;
    bool ended;
    size_t n;
    char reply[REPLY_BYTES];
    const char *awaited; /* NULL: the end */
} http_client;

static int setup_without_workers(void **state)
{
    (void)rig_setup(state);
    rig *r = *state;
    r->options.http_address = "127.0.0.1:0";
    rig_start(r);
    return 0;
}

static int setup(void **state)
{
    (void)setup_without_workers(state);
    rig *r = *state;
    (void)rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    (void)rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    rig_wait_ready(r, true);
    return 0;
}

static http_client *send_text(rig *r, const char *text, size_t len)
{
    http_client *c = calloc(1, sizeof *c);
    char address[32];
    bt_socket_address resolved;
    assert_non_null(c);
    c->rig = r;
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", bt_router_http_port(r->router));
    assert_int_equal(bt_socket_resolve(address, false, &resolved, NULL), BT_OK);
    assert_int_equal(bt_socket_connect(&resolved, &c->fd, NULL), BT_OK);
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_int_equal(send(c->fd, text, len, MSG_NOSIGNAL), len);
    return c;
}

static http_client *post_to(rig *r, const char *path, const char *body)
{
    char text[4096];
    const int n = snprintf(text, sizeof text,
                           "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                           "x-request-id: r-7\r\nContent-Length: %zu\r\n\r\n%s",
                           path, strlen(body), body);
    assert_true(n > 0 && n < (int)sizeof text);
    return send_text(r, text, (size_t)n);
}

static http_client *post(rig *r, const char *body)
{
    return post_to(r, "/v1/completions", body);
}

/* Takes what has come; true: the client's reply is at its end. */
static bool take_reply(http_client *c)
{
    while (!c->ended) {
        const ssize_t n = recv(c->fd, c->reply + c->n, sizeof c->reply - 1 - c->n, MSG_DONTWAIT);
        if (n < 0) {
            break;
        }
        c->ended = n == 0;
        c->n += (size_t)n;
        assert_true(c->n < sizeof c->reply - 1);
    }
    c->reply[c->n] = '\0';
    return c->ended;
}

static bool has_come(void *ctx)
{
    http_client *c = ctx;
    return take_reply(c) || (c->awaited != NULL && strstr(c->reply, c->awaited) != NULL);
}

/* Waits for a part of the answer. */
static void hear(http_client *c, const char *part)
{
    c->awaited = part;
    rig_wait(c->rig, has_come, c);
    if (strstr(c->reply, part) == NULL) {
        fail_msg("'%s' lacks '%s'", c->reply, part);
    }
}

/* The text of all pieces so far; tokens that come together share a piece. */
static bool has_text(void *ctx)
{
    static const char before[] = "\"text\":\"";
    http_client *c = ctx;
    char text[64] = "";
    size_t n = 0;
    const bool ended = take_reply(c);
    for (const char *at = strstr(c->reply, before); at != NULL; at = strstr(at, before)) {
        at += sizeof before - 1;
        n += (size_t)snprintf(text + n, sizeof text - n, "%.*s", (int)strcspn(at, "\""), at);
        assert_true(n < sizeof text);
    }
    return ended || strncmp(text, c->awaited, strlen(c->awaited)) == 0;
}

static void hear_text(http_client *c, const char *text)
{
    c->awaited = text;
    rig_wait(c->rig, has_text, c);
    assert_false(c->ended);
}

static void leave(http_client *c)
{
    bt_socket_close(c->fd);
    free(c);
}

/* Waits for the end of the connection, too. */
static void hear_last(http_client *c, const char *part)
{
    c->awaited = NULL;
    rig_wait(c->rig, has_come, c);
    hear(c, part);
    leave(c);
}

#define PROMPT "\"prompt\":\"x\",\"max_tokens\":64,\"temperature\":0"
#define WHOLE "{" PROMPT "}"
#define STREAM "{" PROMPT ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}"

static void answers_come_whole_and_in_pieces(void **state)
{
    rig *r = *state;
    http_client *c = post(r, WHOLE);
    hear(c, "\"text\":\"Hello, world\"");
    hear(c, "HTTP/1.1 200 ");
    hear(c, "x-request-id: r-7\r\n");
    hear(c, "\"id\":\"cmpl-r-7\"");
    hear_last(c, "\"finish_reason\":\"stop\"");
    c = post(r, STREAM);
    hear(c, "\"text\":\"H");
    hear(c, "\"finish_reason\":\"stop\"");
    hear(c, "\"choices\":[],\"usage\":{\"prompt_tokens\":1,");
    hear_last(c, "data: [DONE]\n\n\r\n0\r\n\r\n");
    c = post_to(r, "/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    hear(c, "\"object\":\"chat.completion\"");
    hear_last(c, "\"message\":{\"role\":\"assistant\",\"content\":\"Hello, world\"");
}

static void status_codes_tell_what_failed_before_the_first_piece(void **state)
{
    rig *r = *state;
    static const struct {
        bt_status status;
        const char *head;
        const char *code;
    } rows[] = {
        {BT_EIO, "HTTP/1.1 503 ", "\"code\":\"unavailable\""},
        {BT_EEXHAUSTED, "HTTP/1.1 429 ", "\"code\":\"rate_limit_exceeded\""},
        {BT_EINVAL, "HTTP/1.1 400 ", "\"type\":\"invalid_request_error\""},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        for (int stream = 0; stream < 2; stream++) {
            r->workers[0].fail = r->workers[1].fail = rows[i].status;
            r->workers[0].fail_text = r->workers[1].fail_text = "a disk is on fire";
            http_client *c = post(r, stream ? STREAM : WHOLE);
            hear(c, "a disk is on fire");
            hear(c, rows[i].head);
            if (rows[i].status == BT_EEXHAUSTED) {
                hear(c, "Retry-After: 1\r\n");
                hear(c, "retry-after-ms: 1000\r\n");
            }
            hear_last(c, rows[i].code);
        }
    }
}

static void what_fails_later_is_an_event(void **state)
{
    rig *r = *state;
    r->options.recoveries_max = 0;
    r->workers[1].emit_max = 3;
    http_client *c = post(r, STREAM);
    hear_text(c, "Hel");
    rig_kill(&r->workers[0]);
    rig_kill(&r->workers[1]);
    rig_wait_metric(r, "baton_router_requests_queued 1");
    rig_stop_router(r, 0);
    hear(c, "data: {\"error\":{\"message\":");
    hear(c, "\"code\":\"unavailable\"");
    hear(c, "\r\n0\r\n\r\n");
    assert_null(strstr(c->reply, "[DONE]"));
    leave(c);
}

static void client_that_leaves_frees_its_workers(void **state)
{
    rig *r = *state;
    rig_worker *p = &r->workers[0];
    rig_worker *d = &r->workers[1];
    d->emit_max = 3;
    http_client *c = post(r, STREAM);
    hear_text(c, "Hel");
    leave(c);
    rig_wait_cancels(d, 1);
    p->hold = true;
    c = post(r, WHOLE); /* nothing has been answered yet */
    rig_wait_runs(p, 2);
    leave(c);
    rig_wait_cancels(p, 1);
    rig_wait_metric(r, "baton_router_requests_total{end=\"cancelled\"} 2");
}

static void choices_fail_together(void **state)
{
    rig *r = *state;
    rig_worker *p = &r->workers[0];
    r->options.attempts_max = 1;
    p->hold = true;
    http_client *c = post(r, "{\"prompt\":[\"x\",\"y\",\"z\"],\"n\":2}");
    rig_wait_runs(p, 6);
    rig_say_finished(p, &p->runs[3], BT_EINVAL, BT_FINISH_ERROR);
    hear_last(c, "HTTP/1.1 400 ");
    rig_wait_cancels(p, 5);
    /* More of them than there is room for: none runs. */
    c = post(r, "{\"prompt\":\"x\",\"n\":17}");
    hear_last(c, "HTTP/1.1 429 ");
    rig_wait_metric(r, "baton_router_requests_running 0"); /* the tokenizer had some of them */
    p->hold = false;
    c = post(r, "{\"prompt\":[\"x\",\"y\"],\"n\":2}");
    hear(c, "{\"index\":3,\"text\":\"Hello, world\"");
    hear_last(c, "\"usage\":{\"prompt_tokens\":2,");
}

/* Both wait in the queue, one behind the other; the first one's end is the second one's too. */
static void choices_that_wait_fail_together(void **state)
{
    rig *r = *state;
    http_client *c = post(r, "{\"prompt\":\"too long for who comes\",\"n\":2}");
    rig_wait_metric(r, "baton_router_requests_queued 2");
    bt_link_hello hello = rig_hello(r, "small", BT_LINK_ROLE_BOTH);
    hello.context_tokens = 16;
    (void)rig_dial(r, &hello);
    hear_last(c, "more than any worker that is ready can hold");
    rig_wait_metric(r, "baton_router_requests_total{end=\"cancelled\"} 1");
    c = post(r, "{\"prompt\":\"short\",\"max_tokens\":5}");
    hear_last(c, "\"text\":\"Hello\"");
}

static void wrong_requests_are_counted_as_such(void **state)
{
    rig *r = *state;
    hear_last(post(r, "{"), "HTTP/1.1 400 ");
    hear_last(post(r, "{\"prompt\":\"x\",\"top_p\":2}"), "\"param\":\"top_p\"");
    hear_last(post(r, "{\"prompt\":\"x\",\"model\":\"other\"}"), "HTTP/1.1 404 ");
    hear_last(post(r, "{\"prompt\":\"x\",\"tools\":[1]}"), "\"code\":\"unsupported_parameter\"");
    rig_wait_metric(r, "baton_router_requests_total{end=\"invalid\"} 4");
}

static void stop_answers_everybody(void **state)
{
    rig *r = *state;
    rig_worker *p = &r->workers[0];
    rig_worker *d = &r->workers[1];
    d->emit_max = 3;
    http_client *streaming = post(r, STREAM);
    hear_text(streaming, "Hel");
    p->hold = true;
    http_client *waiting = post(r, WHOLE);
    rig_wait_runs(p, 2);
    rig_stop_router(r, 0);
    hear_last(streaming, "\"code\":\"unavailable\"");
    hear(waiting, "HTTP/1.1 503 ");
    hear_last(waiting, "the router is shutting down");
}

static void stop_waits_for_streams_as_long_as_it_may(void **state)
{
    rig *r = *state;
    rig_worker *d = &r->workers[1];
    d->emit_max = 3;
    http_client *c = post(r, STREAM);
    hear_text(c, "Hel");
    rig_resume(d, 0);
    rig_stop_router(r, 10000);
    hear_last(c, "data: [DONE]");
}

static void silent_streams_have_comments(void **state)
{
    rig *r = *state;
    r->options.http_keepalive_ms = 1;
    r->options.http_address = "127.0.0.1:0";
    rig_start(r);
    rig_worker *p = rig_add_worker(r, "p0", BT_LINK_ROLE_PREFILL);
    (void)rig_add_worker(r, "d0", BT_LINK_ROLE_DECODE);
    rig_wait_ready(r, true);
    p->hold = true;
    http_client *c = post(r, STREAM);
    hear(c, ": keep-alive\n\n");
    hear(c, "HTTP/1.1 200 ");
    rig_say_finished(p, &p->runs[0], BT_EINVAL, BT_FINISH_ERROR);
    hear_last(c, "data: {\"error\":{"); /* the status is out already */
}

static void requests_may_come_byte_by_byte(void **state)
{
    rig *r = *state;
    static const char text[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n"
                               "5\r\n{\"pro\r\n9\r\nmpt\":\"x\"}\r\n0\r\n\r\n";
    http_client *c = send_text(r, text, 1);
    for (size_t i = 1; i < sizeof text - 1; i++) {
        assert_int_equal(send(c->fd, text + i, 1, MSG_NOSIGNAL), 1);
    }
    hear_last(c, "\"text\":\"Hello, world\"");
}

#define front_test(name) cmocka_unit_test_setup_teardown(name, setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        front_test(answers_come_whole_and_in_pieces),
        front_test(status_codes_tell_what_failed_before_the_first_piece),
        front_test(what_fails_later_is_an_event),
        front_test(client_that_leaves_frees_its_workers),
        front_test(choices_fail_together),
        cmocka_unit_test_setup_teardown(choices_that_wait_fail_together, setup_without_workers,
                                        rig_teardown),
        front_test(wrong_requests_are_counted_as_such),
        front_test(stop_answers_everybody),
        front_test(stop_waits_for_streams_as_long_as_it_may),
        cmocka_unit_test_setup_teardown(silent_streams_have_comments, rig_setup, rig_teardown),
        front_test(requests_may_come_byte_by_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
