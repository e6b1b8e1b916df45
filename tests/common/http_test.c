/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the server with a client that writes bytes to a socket and reads what comes, on a
 * port that the kernel chose: routes, refusals, bodies, limits and a clean end. */
#include "common/http.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/metrics.h"
#include "common/socket.h"

enum { REPLY_BYTES = 1 << 17 };

typedef struct fixture {
    bt_http_server *server;
    bt_metrics *metrics;
    bt_counter *hits;
    _Atomic int n_handled;
    char reply[REPLY_BYTES];
} fixture;

static void serve_metrics(bt_http_request *request, void *ctx)
{
    fixture *f = ctx;
    char *text;
    size_t len;
    bt_counter_add(f->hits, 1);
    if (bt_metrics_render(f->metrics, &text, &len) != BT_OK) {
        bt_http_respond_text(request, 500, "out of memory\n");
        return;
    }
    bt_http_respond(request, 200, "text/plain; version=0.0.4", text, len);
    free(text);
}

static void serve_echo(bt_http_request *request, void *ctx)
{
    fixture *f = ctx;
    size_t len;
    const char *body = bt_http_request_body(request, &len);
    const char *id = bt_http_request_header(request, "X-Request-Id");
    const char *name = bt_http_request_query(request, "name");
    f->n_handled++;
    bt_http_respond_header(request, "X-Request-Id", id ? id : "none");
    bt_http_respond_header(request, "X-Name", name ? name : "none");
    bt_http_respond_header(request, "X-Method", bt_http_request_method(request));
    bt_http_respond(request, 201, "application/octet-stream", body, len);
}

static void serve_nothing(bt_http_request *request, void *ctx)
{
    (void)request;
    (void)ctx;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    bt_error err;
    const bt_http_options options = {
        .address = "127.0.0.1:0", .body_bytes_max = 1000, .head_bytes_max = 8192};
    assert_non_null(f);
    assert_int_equal(bt_metrics_create(&f->metrics), BT_OK);
    f->hits = bt_metrics_counter(f->metrics, "hits_total", "Hits.", BT_NO_LABELS);
    assert_int_equal(bt_http_server_create(&options, &f->server, &err), BT_OK);
    assert_int_equal(bt_http_server_handle(f->server, "GET", "/metrics", serve_metrics, f), BT_OK);
    assert_int_equal(bt_http_server_handle(f->server, "POST", "/echo", serve_echo, f), BT_OK);
    assert_int_equal(bt_http_server_handle(f->server, "GET", "/echo", serve_echo, f), BT_OK);
    assert_int_equal(bt_http_server_handle(f->server, "GET", "/none", serve_nothing, f), BT_OK);
    assert_int_equal(bt_http_server_handle(f->server, "GET", "/none", serve_nothing, f),
                     BT_EEXISTS);
    assert_int_equal(bt_http_server_start(f->server, &err), BT_OK);
    assert_true(bt_http_server_port(f->server) > 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    bt_http_server_destroy(f->server);
    bt_metrics_destroy(f->metrics);
    free(f);
    return 0;
}

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
    assert_int_equal(poll(&p, 1, -1), 1);
    return fd;
}

/* Sends all of it (a server that has closed is fine) and reads until the end. */
static const char *talk(fixture *f, const char *bytes, size_t n)
{
    const int fd = dial(f);
    size_t sent = 0;
    size_t got = 0;
    for (bool open = true; open;) {
        struct pollfd p = {.fd = fd, .events = (short)(POLLIN | (sent < n ? POLLOUT : 0))};
        assert_true(poll(&p, 1, -1) > 0);
        if (p.revents & (POLLIN | POLLHUP | POLLERR)) {
            const ssize_t r = read(fd, f->reply + got, REPLY_BYTES - 1 - got);
            open = r > 0;
            got += r > 0 ? (size_t)r : 0;
        }
        if (open && sent < n && p.revents & POLLOUT) {
            const ssize_t w = send(fd, bytes + sent, n - sent, MSG_NOSIGNAL);
            sent = w < 0 ? n : sent + (size_t)w;
        }
    }
    bt_socket_close(fd);
    f->reply[got] = '\0';
    return f->reply;
}

static const char *ask(fixture *f, const char *text)
{
    return talk(f, text, strlen(text));
}

#define HEAD_END "Host: x\r\nConnection: close\r\n\r\n"

static void starts_with(const char *reply, const char *start)
{
    assert_int_equal(strncmp(reply, start, strlen(start)), 0);
}

static void get_is_answered_by_its_handler(void **state)
{
    fixture *f = *state;
    const char *reply = ask(f, "GET /metrics HTTP/1.1\r\n" HEAD_END);
    starts_with(reply, "HTTP/1.1 200 ");
    assert_non_null(strstr(reply, "Content-Type: text/plain; version=0.0.4\r\n"));
    assert_non_null(strstr(reply, "\r\n\r\n# HELP hits_total Hits.\n"));
    assert_non_null(strstr(reply, "hits_total 1\n"));
}

static void head_has_the_length_and_no_body(void **state)
{
    fixture *f = *state;
    const char *reply = ask(f, "HEAD /metrics HTTP/1.1\r\n" HEAD_END);
    starts_with(reply, "HTTP/1.1 200 ");
    assert_non_null(strstr(reply, "Content-Length: "));
    assert_string_equal(strstr(reply, "\r\n\r\n"), "\r\n\r\n");
}

static void unknown_paths_and_methods_are_told_apart(void **state)
{
    fixture *f = *state;
    starts_with(ask(f, "GET /nothing HTTP/1.1\r\n" HEAD_END), "HTTP/1.1 404 ");
    const char *reply = ask(f, "DELETE /echo HTTP/1.1\r\n" HEAD_END);
    starts_with(reply, "HTTP/1.1 405 ");
    assert_non_null(strstr(reply, "Allow: POST, GET\r\n"));
    starts_with(ask(f, "GET /none HTTP/1.1\r\n" HEAD_END), "HTTP/1.1 500 ");
}

static void handlers_see_headers_query_and_body(void **state)
{
    fixture *f = *state;
    const char *reply = ask(f, "POST /echo?name=J%C3%B6rg&x HTTP/1.1\r\nx-request-ID: r-7\r\n"
                               "Content-Length: 5\r\n" HEAD_END "a\r\nbc");
    starts_with(reply, "HTTP/1.1 201 ");
    assert_non_null(strstr(reply, "X-Request-Id: r-7\r\n"));
    assert_non_null(strstr(reply, "X-Name: J\xC3\xB6rg\r\n"));
    assert_non_null(strstr(reply, "X-Method: POST\r\n"));
    assert_string_equal(strstr(reply, "\r\n\r\n"), "\r\n\r\na\r\nbc");
    reply = ask(f, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" HEAD_END
                   "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
    assert_string_equal(strstr(reply, "\r\n\r\n"), "\r\n\r\nabcdefg");
    assert_int_equal(f->n_handled, 2);
}

static void bodies_past_the_limit_are_refused(void **state)
{
    fixture *f = *state;
    char text[8192];
    const char *said = "POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n" HEAD_END;
    starts_with(ask(f, said), "HTTP/1.1 413 "); /* before any of it came */
    int n = snprintf(text, sizeof text,
                     "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" HEAD_END "5dc\r\n");
    memset(text + n, 'x', 1500);
    (void)snprintf(text + n + 1500, sizeof text - (size_t)n - 1500, "\r\n0\r\n\r\n");
    starts_with(ask(f, text), "HTTP/1.1 413 ");
    /* one that goes on and on is cut off */
    n = snprintf(text, sizeof text,
                 "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" HEAD_END "1388\r\n");
    memset(text + n, 'x', 5000);
    const char *reply = talk(f, text, (size_t)n + 5000);
    assert_null(strstr(reply, "HTTP/1.1 201"));
    assert_int_equal(f->n_handled, 0);
    starts_with(ask(f, "GET /metrics HTTP/1.1\r\n" HEAD_END), "HTTP/1.1 200 "); /* still there */
}

/* What a proxy took for a body must not be served as a request. */
static void two_ends_of_a_body_are_refused(void **state)
{
    fixture *f = *state;
    static const char *const heads[] = {
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 60\r\n",
        "content-length: 5\r\nCONTENT-LENGTH: 5\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        char text[400];
        (void)snprintf(text, sizeof text,
                       "POST /echo HTTP/1.1\r\nHost: x\r\n%s\r\n"
                       "0\r\n\r\nGET /metrics HTTP/1.1\r\n" HEAD_END,
                       heads[i]);
        const char *reply = ask(f, text);
        starts_with(reply, "HTTP/1.1 400 ");
        assert_non_null(strstr(reply, "the body's length is given more than once"));
        assert_null(strstr(reply + 1, "HTTP/1.1 "));
    }
    assert_int_equal(f->n_handled, 0);
}

static void nonsense_and_huge_heads_are_refused(void **state)
{
    fixture *f = *state;
    static char text[40000];
    const char *reply = ask(f, "\x16\x03\x01 hello\r\n\r\n");
    assert_null(strstr(reply, "HTTP/1.1 200"));
    reply = ask(f, "GET /metrics HTTP/1.1\r\n\r\n\r\nConnection: close\r\n\r\n"); /* no Host */
    assert_null(strstr(reply, "HTTP/1.1 200"));
    const int n = snprintf(text, sizeof text, "GET /metrics HTTP/1.1\r\nX-Long: ");
    memset(text + n, 'x', sizeof text - (size_t)n - 1);
    reply = ask(f, text);
    assert_null(strstr(reply, "HTTP/1.1 200"));
    starts_with(ask(f, "GET /metrics HTTP/1.1\r\n" HEAD_END), "HTTP/1.1 200 ");
}

static void a_port_in_use_and_a_wrong_address_say_so(void **state)
{
    fixture *f = *state;
    char text[32];
    bt_http_server *other;
    bt_error err;
    (void)snprintf(text, sizeof text, "127.0.0.1:%d", bt_http_server_port(f->server));
    bt_http_options options = {.address = text};
    assert_int_equal(bt_http_server_create(&options, &other, &err), BT_OK);
    assert_int_equal(bt_http_server_start(other, &err), BT_EEXISTS);
    assert_non_null(strstr(err.text, "in use"));
    bt_http_server_destroy(other);
    options.address = "nonsense";
    assert_int_equal(bt_http_server_create(&options, &other, &err), BT_EINVAL);
    bt_http_server_destroy(NULL);
}

static void destroy_ends_connections_that_wait(void **state)
{
    fixture *f = *state;
    char byte;
    const int fd = dial(f);
    assert_true(write(fd, "GET /met", 8) == 8);
    starts_with(ask(f, "GET /metrics HTTP/1.1\r\n" HEAD_END), "HTTP/1.1 200 ");
    bt_http_server_destroy(f->server);
    f->server = NULL;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, -1), 1);
    assert_true(read(fd, &byte, 1) <= 0);
    bt_socket_close(fd);
}

/* Sooner than the timeout of a silent connection, which is 10 s. */
static void a_connection_ends_with_its_client(void **state)
{
    fixture *f = *state;
    static const char *const texts[] = {
        "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /met",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc",
    };
    for (size_t i = 0; i < 2 * BT_ARRAY_LEN(texts); i++) {
        const char *text = texts[i % BT_ARRAY_LEN(texts)];
        const int fd = dial(f);
        assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
        ssize_t n;
        do {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            assert_int_equal(poll(&p, 1, 5000), 1);
            n = read(fd, f->reply, REPLY_BYTES);
        } while (n > 0);
        bt_socket_close(fd);
    }
}

static void serve_host(bt_http_request *request, void *ctx)
{
    (void)ctx;
    char host[BT_HTTP_HOST_BYTES];
    bt_http_request_host(request, host);
    bt_http_respond_text(request, 200, host);
}

/* A unix socket has no address at the other end: less than what would be read of one. */
static void host_of_a_client_is_told_without_its_port(void **state)
{
    (void)state;
    static const char question[] = "GET /host HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    char path[64];
    (void)snprintf(path, sizeof path, "unix:@baton-http-test-%d", (int)getpid());
    const struct {
        const char *listen;
        const char *says;
    } cases[] = {{"127.0.0.1:0", "\r\n\r\n127.0.0.1"}, {path, "\r\n\r\nunix:"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bt_http_options options = {.address = cases[i].listen};
        bt_http_server *server;
        bt_socket_address address;
        bt_error err;
        char text[64];
        char reply[1024] = "";
        int fd;
        assert_int_equal(bt_http_server_create(&options, &server, &err), BT_OK);
        assert_int_equal(bt_http_server_handle(server, "GET", "/host", serve_host, NULL), BT_OK);
        assert_int_equal(bt_http_server_start(server, &err), BT_OK);
        (void)snprintf(text, sizeof text, "127.0.0.1:%d", bt_http_server_port(server));
        assert_int_equal(bt_socket_resolve(i == 0 ? text : path, false, &address, &err), BT_OK);
        assert_int_equal(bt_socket_connect(&address, &fd, &err), BT_OK);
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        assert_int_equal(poll(&p, 1, -1), 1);
        assert_int_equal(send(fd, question, sizeof question - 1, MSG_NOSIGNAL),
                         sizeof question - 1);
        p.events = POLLIN;
        size_t got = 0;
        for (ssize_t n = 1; n > 0; got += (size_t)n) {
            assert_int_equal(poll(&p, 1, -1), 1);
            n = recv(fd, reply + got, sizeof reply - 1 - got, 0);
            assert_true(n >= 0);
        }
        reply[got] = '\0';
        assert_non_null(strstr(reply, cases[i].says));
        bt_socket_close(fd);
        bt_http_server_destroy(server);
    }
}

#define http_test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        http_test(get_is_answered_by_its_handler),
        http_test(head_has_the_length_and_no_body),
        http_test(unknown_paths_and_methods_are_told_apart),
        http_test(handlers_see_headers_query_and_body),
        http_test(bodies_past_the_limit_are_refused),
        http_test(two_ends_of_a_body_are_refused),
        http_test(nonsense_and_huge_heads_are_refused),
        http_test(a_port_in_use_and_a_wrong_address_say_so),
        http_test(destroy_ends_connections_that_wait),
        http_test(a_connection_ends_with_its_client),
        cmocka_unit_test(host_of_a_client_is_told_without_its_port),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
