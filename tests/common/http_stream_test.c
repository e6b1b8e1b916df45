/* SPDX-License-Identifier: Apache-2.0 */
/* Proves answers that come later: the test's own thread is the owner and the client, the server's
 * thread is the server's. The client writes bytes to a socket and reads what comes; news ring a
 * pipe that the owner waits on, so nothing here waits for time to pass. */
#include "common/http.h"

#include <fcntl.h>
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
#include "tests/support/fault.h"

enum {
    REPLY_BYTES = 1 << 16,
    UNSENT_MAX = 4096,
    IDLE_MAX = 200,
    WAIT_MS = 20000,
};

typedef struct fixture {
    bt_http_server *server;
    int bell[2];
    int n_handled; /* of the server's thread; read after news of it */
    char body[64];
    char reply[REPLY_BYTES];
    size_t n_reply;
} fixture;

static void defer(bt_http_request *request, void *ctx)
{
    fixture *f = ctx;
    size_t len;
    const char *body = bt_http_request_body(request, &len);
    f->n_handled++;
    (void)snprintf(f->body, sizeof f->body, "%s", body);
    assert_int_equal(bt_http_defer(request, f), BT_OK);
}

static void greet(bt_http_request *request, void *ctx)
{
    (void)ctx;
    bt_http_respond_text(request, 200, bt_http_request_path(request));
}

static void gate(bt_http_request *request, void *ctx)
{
    (void)ctx;
    if (bt_http_request_header(request, "X-Stranger") != NULL) {
        bt_http_respond_text(request, 401, "who are you?\n");
    }
}

static void refuse(bt_http_request *request, unsigned code, const char *text, void *ctx)
{
    (void)ctx;
    char body[64];
    const int n = snprintf(body, sizeof body, "{\"%u\":\"%s\"}", code, text);
    bt_http_respond(request, code, "application/json", body, (size_t)n);
}

static void on_news(void *ctx)
{
    const fixture *f = ctx;
    const ssize_t n = write(f->bell[1], "!", 1); /* full: it rings already */
    (void)n;
}

static void start(fixture *f, const bt_http_options *given)
{
    bt_http_options options = *given;
    bt_error err = {""};
    options.address = "127.0.0.1:0";
    options.unsent_bytes_max = UNSENT_MAX;
    options.hooks = (bt_http_hooks){.gate = gate, .refuse = refuse, .on_news = on_news, .ctx = f};
    assert_int_equal(bt_http_server_create(&options, &f->server, &err), BT_OK);
    assert_int_equal(bt_http_server_handle(f->server, "POST", "/later", defer, f), BT_OK);
    assert_int_equal(bt_http_server_handle(f->server, "GET", "/now", greet, f), BT_OK);
    assert_int_equal(bt_http_server_handle(f->server, "GET", "/any/*", greet, f), BT_OK);
    assert_int_equal(bt_http_server_start(f->server, &err), BT_OK);
}

static int setup_stopped(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(pipe2(f->bell, O_CLOEXEC | O_NONBLOCK), 0);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    (void)setup_stopped(state);
    start(*state, &(bt_http_options){.body_bytes_max = 1000, .bodies_bytes_max = 1500});
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    unsigned news;
    void *ctx;
    bt_http_server_stop(f->server);
    /* What a failed test has left. */
    for (bt_http_stream *left; (left = bt_http_server_next(f->server, &news, &ctx)) != NULL;) {
        bt_http_stream_cut(&left);
    }
    bt_http_server_destroy(f->server);
    (void)close(f->bell[0]);
    (void)close(f->bell[1]);
    free(f);
    return 0;
}

/* ---- client ---- */

static int dial(const fixture *f)
{
    char text[32];
    bt_socket_address address;
    bt_error err;
    int fd;
    (void)snprintf(text, sizeof text, "127.0.0.1:%d", bt_http_server_port(f->server));
    assert_int_equal(bt_socket_resolve(text, false, &address, &err), BT_OK);
    assert_int_equal(bt_socket_connect(&address, &fd, &err), BT_OK);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    return fd;
}

static void say(int fd, const char *text)
{
    const size_t n = strlen(text);
    assert_int_equal(send(fd, text, n, MSG_NOSIGNAL), n);
}

#define LATER "POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"

/* Reads until `part` is there, or (NULL) until the server ends the connection. */
static const char *hear(fixture *f, int fd, const char *part)
{
    for (;;) {
        f->reply[f->n_reply] = '\0';
        if (part != NULL && strstr(f->reply, part) != NULL) {
            return f->reply;
        }
        struct pollfd p = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, WAIT_MS), 1);
        const ssize_t n = read(fd, f->reply + f->n_reply, REPLY_BYTES - 1 - f->n_reply);
        if (n <= 0) {
            assert_null(part);
            return f->reply;
        }
        f->n_reply += (size_t)n;
        assert_true(f->n_reply < REPLY_BYTES - 1);
    }
}

/* ---- owner ---- */

static bt_http_stream *wait_news(fixture *f, unsigned *news)
{
    for (;;) {
        void *ctx = NULL;
        bt_http_stream *stream = bt_http_server_next(f->server, news, &ctx);
        if (stream != NULL) {
            assert_ptr_equal(ctx, f);
            return stream;
        }
        char byte;
        struct pollfd p = {.fd = f->bell[0], .events = POLLIN};
        assert_int_equal(poll(&p, 1, WAIT_MS), 1);
        assert_int_equal(read(f->bell[0], &byte, 1), 1);
    }
}

static bt_http_stream *expect_news(fixture *f, unsigned expected)
{
    unsigned news = 0;
    bt_http_stream *stream = wait_news(f, &news);
    assert_int_equal(news, expected);
    return stream;
}

static const bt_http_header headers[] = {{"X-Request-Id", "r-7"}};

static bt_http_stream *begin(fixture *f)
{
    bt_http_stream *stream = expect_news(f, BT_HTTP_BEGAN);
    bt_http_stream_begin(stream, 200, "text/event-stream", headers, 1);
    return stream;
}

static void whole_answer_comes_later_and_the_connection_goes_on(void **state)
{
    fixture *f = *state;
    const int fd = dial(f);
    for (int i = 0; i < 3; i++) {
        f->n_reply = 0;
        say(fd, LATER);
        bt_http_stream *stream = expect_news(f, BT_HTTP_BEGAN);
        assert_int_equal(f->n_handled, i + 1);
        assert_string_equal(f->body, "hi");
        bt_http_stream_respond(&stream, 429, "application/json", headers, 1, "{}\n", 3);
        assert_null(stream);
        const char *reply = hear(f, fd, "\r\n\r\n{}\n");
        assert_non_null(strstr(reply, "HTTP/1.1 429 "));
        assert_non_null(strstr(reply, "X-Request-Id: r-7\r\n"));
        assert_non_null(strstr(reply, "Content-Length: 3\r\n"));
    }
    f->n_reply = 0;
    say(fd, "GET /now HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)hear(f, fd, "\r\n\r\n/now");
    bt_socket_close(fd);
}

static void each_piece_is_a_chunk_of_its_own(void **state)
{
    fixture *f = *state;
    const int fd = dial(f);
    say(fd, LATER);
    bt_http_stream *stream = begin(f);
    (void)hear(f, fd, "\r\n\r\n"); /* the head goes out before there is anything else */
    bt_http_stream_send(stream, "data: 1\n\n", 9);
    const char *reply = hear(f, fd, "\r\n\r\n9\r\ndata: 1\n\n\r\n");
    assert_non_null(strstr(reply, "Transfer-Encoding: chunked\r\n"));
    bt_http_stream_send(stream, "data: 22\n\n", 10);
    (void)hear(f, fd, "data: 22\n\n\r\n");
    bt_http_stream_send(stream, "data: 333\n\n", 11);
    bt_http_stream_end(&stream);
    (void)hear(f, fd, "data: 333\n\n\r\n0\r\n\r\n");
    f->n_reply = 0;
    say(fd, "GET /now HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)hear(f, fd, "\r\n\r\n/now");
    bt_socket_close(fd);
}

static void client_that_leaves_before_the_first_byte_is_noticed(void **state)
{
    fixture *f = *state;
    const int fd = dial(f);
    say(fd, LATER);
    bt_http_stream *stream = expect_news(f, BT_HTTP_BEGAN);
    bt_socket_close(fd);
    assert_ptr_equal(expect_news(f, BT_HTTP_GONE), stream);
    bt_http_stream_cut(&stream);
    assert_int_equal(bt_http_server_pending(f->server), 0);
}

static void client_that_leaves_a_silent_stream_is_noticed(void **state)
{
    fixture *f = *state;
    const int fd = dial(f);
    say(fd, LATER);
    bt_http_stream *stream = begin(f);
    bt_http_stream_send(stream, "data\n", 5);
    (void)hear(f, fd, "data\n");
    say(fd, "unread bytes of a next request"); /* what waits to be read must not hide the end */
    bt_socket_close(fd);
    assert_ptr_equal(expect_news(f, BT_HTTP_GONE), stream);
    bt_http_stream_send(stream, "more\n", 5); /* into the void */
    bt_http_stream_end(&stream);
    assert_int_equal(bt_http_server_pending(f->server), 0);
}

static void client_that_leaves_a_full_stream_is_noticed(void **state)
{
    fixture *f = *state;
    const int fd = dial(f);
    char piece[1024];
    memset(piece, 'x', sizeof piece);
    say(fd, LATER);
    bt_http_stream *stream = begin(f);
    /* The kernel's buffers take some MiB, then the stream's own fills. */
    for (unsigned news = 0; news == 0;) {
        if (bt_http_stream_has_room(stream)) {
            bt_http_stream_send(stream, piece, sizeof piece);
            continue;
        }
        void *ctx;
        struct pollfd p = {.fd = f->bell[0], .events = POLLIN};
        if (poll(&p, 1, 300) == 0) {
            break; /* nothing moves any more */
        }
        char byte;
        assert_int_equal(read(f->bell[0], &byte, 1), 1);
        unsigned got = 0;
        if (bt_http_server_next(f->server, &got, &ctx) != NULL) {
            assert_int_equal(got, BT_HTTP_ROOM);
        }
    }
    bt_socket_close(fd);
    unsigned news = 0;
    while ((news & BT_HTTP_GONE) == 0) {
        assert_ptr_equal(wait_news(f, &news), stream);
    }
    bt_http_stream_cut(&stream);
    assert_int_equal(bt_http_server_pending(f->server), 0);
}

/* Sends numbered pieces as room allows, far more than any buffer holds, to a client that reads
 * now and then; all of it comes, in order. */
static void slow_client_holds_the_owner_back_and_loses_nothing(void **state)
{
    fixture *f = *state;
    const int fd = dial(f);
    enum { PIECES = 20000, PIECE = 1000 };
    say(fd, "POST /later HTTP/1.0\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"); /* no chunks */
    bt_http_stream *stream = begin(f);
    (void)hear(f, fd, "\r\n\r\n");
    size_t n_got = f->n_reply - (size_t)(strstr(f->reply, "\r\n\r\n") + 4 - f->reply);
    assert_int_equal(n_got, 0);
    int sent = 0;
    int n_full = 0;
    while (n_got < (size_t)PIECES * PIECE) {
        char piece[PIECE + 1];
        while (sent < PIECES && bt_http_stream_has_room(stream)) {
            (void)snprintf(piece, sizeof piece, "%0*d", PIECE, sent++);
            bt_http_stream_send(stream, piece, PIECE);
        }
        n_full += sent < PIECES;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, WAIT_MS), 1);
        const ssize_t n = read(fd, f->reply, REPLY_BYTES - 1);
        assert_true(n > 0);
        for (ssize_t i = 0; i < n; i++, n_got++) {
            if (n_got % PIECE == PIECE - 1) { /* the last digit of the piece's number */
                assert_int_equal(f->reply[i], '0' + (int)(n_got / PIECE % 10));
            }
        }
        unsigned news;
        void *ctx;
        while (bt_http_server_next(f->server, &news, &ctx) != NULL) {
            assert_int_equal(news, BT_HTTP_ROOM);
        }
    }
    assert_true(n_full > 0);
    bt_http_stream_end(&stream);
    bt_socket_close(fd);
}

static void cut_stream_is_a_broken_answer(void **state)
{
    fixture *f = *state;
    for (int begun = 0; begun < 2; begun++) {
        const int fd = dial(f);
        f->n_reply = 0;
        say(fd, LATER);
        bt_http_stream *stream = begun ? begin(f) : expect_news(f, BT_HTTP_BEGAN);
        if (begun) {
            bt_http_stream_send(stream, "part", 4);
            (void)hear(f, fd, "part");
        }
        bt_http_stream_cut(&stream);
        const char *reply = hear(f, fd, NULL);
        assert_null(strstr(reply, "0\r\n\r\n"));
        bt_socket_close(fd);
    }
}

/* The owner's allocations fail one after the other: the client sees a broken answer, never a
 * wrong one, and the owner is told. */
static void memory_that_is_out_breaks_one_answer_alone(void **state)
{
    fixture *f = *state;
    static const char whole[] = "\r\n\r\n4\r\npart\r\n0\r\n\r\n";
    for (int in_pieces = 0; in_pieces < 2 && bt_fault_available(); in_pieces++) {
        bool failed = true;
        size_t n = 0;
        while (failed) {
            const int fd = dial(f);
            f->n_reply = 0;
            say(fd, "POST /later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                    "Content-Length: 2\r\n\r\nhi");
            bt_http_stream *stream = expect_news(f, BT_HTTP_BEGAN);
            bt_fault_fail_nth(++n);
            if (in_pieces) {
                bt_http_stream_begin(stream, 200, "text/plain", headers, 1);
                bt_http_stream_send(stream, "part", 4);
                bt_http_stream_end(&stream);
            } else {
                bt_http_stream_respond(&stream, 200, "text/plain", headers, 1, "part", 4);
            }
            failed = bt_fault_disarm();
            const char *reply = hear(f, fd, NULL);
            const bool is_whole = strstr(reply, in_pieces ? whole : "\r\n\r\npart") != NULL;
            assert_int_equal(is_whole, !failed);
            bt_socket_close(fd);
        }
        assert_true(n > 3);
    }
    while (bt_http_server_pending(f->server) > 0) {
        (void)poll(NULL, 0, 1);
    }
}

static void stop_ends_streams_and_tells_their_owner(void **state)
{
    fixture *f = *state;
    const int waiting = dial(f);
    const int streaming = dial(f);
    say(waiting, LATER);
    bt_http_stream *first = expect_news(f, BT_HTTP_BEGAN);
    say(streaming, LATER);
    bt_http_stream *second = begin(f);
    bt_http_stream_send(second, "part", 4);
    (void)hear(f, streaming, "part");
    const int unseen = dial(f);
    say(unseen, LATER);
    while (bt_http_server_pending(f->server) < 3) {
        (void)poll(NULL, 0, 1);
    }
    bt_http_server_stop(f->server);
    for (int i = 0; i < 3; i++) {
        unsigned news = 0;
        bt_http_stream *stream = wait_news(f, &news);
        assert_true(news == BT_HTTP_GONE || (stream != first && stream != second &&
                                             news == (BT_HTTP_BEGAN | BT_HTTP_GONE)));
        bt_http_stream_cut(&stream);
    }
    assert_int_equal(bt_http_server_pending(f->server), 0);
    (void)hear(f, waiting, NULL);
    (void)hear(f, streaming, NULL);
    bt_socket_close(waiting);
    bt_socket_close(streaming);
    bt_socket_close(unseen);
}

static void gate_answers_before_the_body(void **state)
{
    fixture *f = *state;
    const int fd = dial(f);
    say(fd, "POST /later HTTP/1.1\r\nHost: x\r\nX-Stranger: 1\r\nContent-Length: 900\r\n\r\n");
    assert_non_null(strstr(hear(f, fd, "who are you?"), "HTTP/1.1 401 "));
    bt_socket_close(fd);
    assert_int_equal(f->n_handled, 0);
}

static void refusals_have_the_form_of_the_owner(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *request;
        const char *reply;
    } cases[] = {
        {"GET /nothing HTTP/1.1\r\n", "{\"404\":\"not found\"}"},
        {"GET /any/ HTTP/1.1\r\n", "{\"404\":\"not found\"}"}, /* "*" is one character or more */
        {"GET /any/a/b HTTP/1.1\r\n", "\r\n\r\n/any/a/b"},
        {"GET /later HTTP/1.1\r\n", "{\"405\":\"method not allowed\"}"},
        {"POST /later HTTP/1.1\r\nContent-Length: 1001\r\n", "{\"413\":\"the body is too large\"}"},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(cases); i++) {
        const int fd = dial(f);
        f->n_reply = 0;
        say(fd, cases[i].request);
        say(fd, "Host: x\r\n\r\n");
        (void)hear(f, fd, cases[i].reply);
        bt_socket_close(fd);
    }
}

static void bodies_together_have_a_limit(void **state)
{
    fixture *f = *state;
    char body[1001];
    memset(body, 'b', 1000);
    body[1000] = '\0';
    const int one = dial(f);
    say(one, "POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
    say(one, body + 1); /* all but one byte */
    const int other = dial(f);
    say(other, "GET /now HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)hear(f, other, "\r\n\r\n/now"); /* the server has got round to it since */
    for (int i = 0; i < 2; i++) {
        f->n_reply = 0;
        say(other, "POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
        say(other, body);
        if (i == 0) {
            const char *reply = hear(f, other, "{\"503\":\"too many bodies at a time\"}");
            assert_non_null(strstr(reply, "HTTP/1.1 503 "));
            bt_socket_close(one); /* its body is given back */
            say(other, "GET /now HTTP/1.1\r\nHost: x\r\n\r\n");
            (void)hear(f, other, "\r\n\r\n/now");
        }
    }
    bt_http_stream *stream = expect_news(f, BT_HTTP_BEGAN);
    bt_http_stream_respond(&stream, 200, NULL, NULL, 0, "ok", 2);
    (void)hear(f, other, "\r\n\r\nok");
    bt_socket_close(other);
}

static void clients_that_dawdle_are_ended(void **state)
{
    fixture *f = *state;
    start(f, &(bt_http_options){.head_time_s = 1, .body_time_s = 1, .timeout_s = 600});
    static const char *const beginnings[] = {"", "GET /now HTTP/1.1\r\nX-Slow: ",
                                             "POST /later HTTP/1.1\r\nHost: x\r\n"
                                             "Content-Length: 1000\r\n\r\na"};
    int fds[3];
    for (size_t i = 0; i < 3; i++) {
        fds[i] = dial(f);
        say(fds[i], beginnings[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        f->n_reply = 0;
        assert_null(strstr(hear(f, fds[i], NULL), "HTTP/1.1 200"));
        bt_socket_close(fds[i]);
    }
    assert_int_equal(f->n_handled, 0);
}

static void idle_connections_do_not_keep_others_out(void **state)
{
    fixture *f = *state;
    int idle[IDLE_MAX];
    for (int i = 0; i < IDLE_MAX; i++) {
        idle[i] = dial(f);
    }
    const int fd = dial(f);
    say(fd, LATER);
    bt_http_stream *stream = expect_news(f, BT_HTTP_BEGAN);
    bt_http_stream_respond(&stream, 200, NULL, NULL, 0, "ok", 2);
    (void)hear(f, fd, "\r\n\r\nok");
    bt_socket_close(fd);
    for (int i = 0; i < IDLE_MAX; i++) {
        bt_socket_close(idle[i]);
    }
}

static void missing_certificates_are_an_error(void **state)
{
    (void)state;
    bt_http_server *server = NULL;
    bt_error err = {""};
    bt_http_options options = {.address = "127.0.0.1:0", .tls_cert = "/nonexistent/cert.pem"};
    assert_int_equal(bt_http_server_create(&options, &server, &err), BT_EINVAL);
    options.tls_key = "/nonexistent/key.pem";
    assert_int_equal(bt_http_server_create(&options, &server, &err), BT_ENOTFOUND);
    assert_non_null(strstr(err.text, "/nonexistent/cert.pem"));
    options.tls_cert = options.tls_key = "/proc/self/status"; /* no PEM */
    assert_int_equal(bt_http_server_create(&options, &server, &err), BT_OK);
    assert_int_equal(bt_http_server_start(server, &err), BT_EINVAL);
    bt_http_server_destroy(server);
}

#define http_test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        http_test(whole_answer_comes_later_and_the_connection_goes_on),
        http_test(each_piece_is_a_chunk_of_its_own),
        http_test(client_that_leaves_before_the_first_byte_is_noticed),
        http_test(client_that_leaves_a_silent_stream_is_noticed),
        http_test(client_that_leaves_a_full_stream_is_noticed),
        http_test(slow_client_holds_the_owner_back_and_loses_nothing),
        http_test(cut_stream_is_a_broken_answer),
        http_test(memory_that_is_out_breaks_one_answer_alone),
        http_test(stop_ends_streams_and_tells_their_owner),
        http_test(gate_answers_before_the_body),
        http_test(refusals_have_the_form_of_the_owner),
        http_test(bodies_together_have_a_limit),
        cmocka_unit_test_setup_teardown(clients_that_dawdle_are_ended, setup_stopped, teardown),
        http_test(idle_connections_do_not_keep_others_out),
        cmocka_unit_test(missing_certificates_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
