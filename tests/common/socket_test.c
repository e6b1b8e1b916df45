/* SPDX-License-Identifier: Apache-2.0 */
/* Proves addresses as text, listening and connecting over TCP and unix sockets with ports
 * that the kernel chooses, and descriptors that pass between sockets. */
#include "common/socket.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void wait_for(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    assert_int_equal(poll(&p, 1, -1), 1);
}

static void addresses_go_both_ways(void **state)
{
    (void)state;
    const char *const texts[] = {"127.0.0.1:7000",       "[::1]:0",    "[2001:db8::5]:65535",
                                 "unix:/run/baton.sock", "unix:@name", "0.0.0.0:1"};
    for (size_t i = 0; i < BT_ARRAY_LEN(texts); i++) {
        bt_socket_address address;
        bt_error err;
        char text[BT_SOCKET_TEXT_BYTES];
        assert_int_equal(bt_socket_resolve(texts[i], false, &address, &err), BT_OK);
        bt_socket_address_text(&address, text);
        assert_string_equal(text, texts[i]);
        assert_int_equal(bt_socket_address_is_unix(&address), texts[i][0] == 'u');
    }
}

static void an_address_can_be_right_and_lead_nowhere(void **state)
{
    (void)state;
    assert_int_equal(bt_socket_check("nobody.invalid:7000", NULL), BT_OK);
    assert_int_equal(bt_socket_check("unix:/nowhere", NULL), BT_OK);
}

static void all_interfaces_are_for_listening_alone(void **state)
{
    (void)state;
    bt_socket_address address;
    bt_error err;
    char text[BT_SOCKET_TEXT_BYTES];
    assert_int_equal(bt_socket_resolve("*:80", true, &address, &err), BT_OK);
    bt_socket_address_text(&address, text);
    assert_string_equal(text, "0.0.0.0:80");
    assert_int_equal(bt_socket_resolve(":80", true, &address, &err), BT_OK);
    assert_int_equal(bt_socket_resolve(":80", false, &address, &err), BT_EINVAL);
}

static void localhost_is_the_same_for_both_ends(void **state)
{
    (void)state;
    bt_socket_address address;
    bt_error err;
    char text[BT_SOCKET_TEXT_BYTES];
    if (bt_socket_resolve("localhost:7", true, &address, &err) != BT_OK) {
        skip(); /* a host without that name */
    }
    bt_socket_address_text(&address, text);
    assert_string_equal(text, "127.0.0.1:7");
    assert_int_equal(bt_socket_resolve("no-such-host.invalid:7", false, &address, &err),
                     BT_ENOTFOUND);
    assert_non_null(strstr(err.text, "cannot find host 'no-such-host.invalid'"));
}

static void what_is_no_address_is_refused_with_advice(void **state)
{
    (void)state;
    char long_path[300] = "unix:/";
    memset(long_path + 6, 'x', sizeof long_path - 7);
    long_path[sizeof long_path - 1] = '\0';
    const char *const wrong[] = {"",      "localhost", "127.0.0.1", "127.0.0.1:", "h:65536",
                                 "h:1x",  "h:-1",      "::1:7000",  "[::1]7000",  "[::1:7000",
                                 "unix:", "unix:@",    long_path,   "h:000001",   "[]x:1"};
    for (size_t i = 0; i < BT_ARRAY_LEN(wrong); i++) {
        bt_socket_address address;
        bt_error err = {.text = ""};
        assert_int_equal(bt_socket_resolve(wrong[i], false, &address, &err), BT_EINVAL);
        assert_true(strlen(err.text) > 10);
        assert_int_equal(bt_socket_check(wrong[i], NULL), BT_EINVAL);
    }
}

/* A listening socket, and a connection to it from both ends. */
static void link_up(const char *text, int *listener, int *client, int *server)
{
    bt_socket_address address;
    bt_error err;
    assert_int_equal(bt_socket_listen(text, listener, &err), BT_OK);
    assert_int_equal(bt_socket_accept(*listener, server), BT_AGAIN);
    assert_int_equal(bt_socket_address_of(*listener, false, &address), BT_OK);
    assert_int_equal(bt_socket_connect(&address, client, &err), BT_OK);
    wait_for(*client, POLLOUT);
    assert_int_equal(bt_socket_connect_result(*client, &err), BT_OK);
    wait_for(*listener, POLLIN);
    assert_int_equal(bt_socket_accept(*listener, server), BT_OK);
}

static void bytes_pass(int from, int to)
{
    char byte = 0;
    assert_int_equal(write(from, "x", 1), 1);
    wait_for(to, POLLIN);
    assert_int_equal(read(to, &byte, 1), 1);
    assert_int_equal(byte, 'x');
    assert_int_equal(read(to, &byte, 1), -1); /* nonblocking */
}

static void tcp_takes_a_free_port_and_connects(void **state)
{
    (void)state;
    int listener;
    int client;
    int server;
    link_up("127.0.0.1:0", &listener, &client, &server);
    assert_true(bt_socket_port(listener) > 0);
    bt_socket_set_buffers(client, 1 << 16, 1 << 16);
    bytes_pass(client, server);
    bytes_pass(server, client);
    bt_socket_close(client);
    bt_socket_close(server);
    bt_socket_close(listener);
    bt_socket_close(-1);
}

static void a_port_in_use_is_an_error_that_says_so(void **state)
{
    (void)state;
    int listener;
    int other;
    char text[64];
    bt_error err;
    assert_int_equal(bt_socket_listen("127.0.0.1:0", &listener, &err), BT_OK);
    (void)snprintf(text, sizeof text, "127.0.0.1:%d", bt_socket_port(listener));
    assert_int_equal(bt_socket_listen(text, &other, &err), BT_EEXISTS);
    assert_non_null(strstr(err.text, "in use"));
    assert_non_null(strstr(err.text, text));
    bt_socket_close(listener);
    assert_int_equal(bt_socket_listen(text, &other, &err), BT_OK); /* free again at once */
    bt_socket_close(other);
}

static void nobody_there_is_a_lost_peer(void **state)
{
    (void)state;
    int listener;
    int client;
    bt_socket_address address;
    bt_error err;
    assert_int_equal(bt_socket_listen("127.0.0.1:0", &listener, &err), BT_OK);
    assert_int_equal(bt_socket_address_of(listener, false, &address), BT_OK);
    bt_socket_close(listener);
    const bt_status status = bt_socket_connect(&address, &client, &err);
    if (status == BT_OK) {
        wait_for(client, POLLOUT);
        assert_int_equal(bt_socket_connect_result(client, &err), BT_EPEER);
        bt_socket_close(client);
    } else {
        assert_int_equal(status, BT_EPEER);
    }
    assert_non_null(strstr(err.text, "refused"));
    assert_int_equal(bt_socket_listen("203.0.113.77:1", &listener, &err), BT_EINVAL);
    assert_int_equal(bt_socket_listen("unix:/no/such/folder/s", &listener, &err), BT_EINVAL);
}

static void make_path(char path[64], const char *name)
{
    const char *folder = getenv("TEST_TMPDIR");
    (void)snprintf(path, 64, "unix:%.36s/%.12s%04x",
                   folder && strlen(folder) <= 36 ? folder : "/tmp", name, (unsigned)getpid());
}

static void a_dead_socket_file_is_replaced_a_live_one_is_not(void **state)
{
    (void)state;
    char path[64];
    int first;
    int second;
    bt_error err;
    make_path(path, "sock");
    assert_int_equal(bt_socket_listen(path, &first, &err), BT_OK);
    assert_int_equal(bt_socket_port(first), 0);
    assert_int_equal(bt_socket_listen(path, &second, &err), BT_EEXISTS);
    bt_socket_close(first); /* its file stays */
    assert_int_equal(bt_socket_listen(path, &second, &err), BT_OK);
    bt_socket_close(second);
    assert_int_equal(unlink(path + 5), 0);
    FILE *plain = fopen(path + 5, "w"); /* not ours to remove */
    assert_non_null(plain);
    assert_int_equal(fclose(plain), 0);
    assert_int_equal(bt_socket_listen(path, &first, &err), BT_EEXISTS);
    assert_int_equal(unlink(path + 5), 0);
}

static void a_socket_file_is_its_users_alone(void **state)
{
    (void)state;
    char path[64];
    int fd;
    struct stat st;
    make_path(path, "mode");
    const mode_t before = umask(0);
    assert_int_equal(bt_socket_listen(path, &fd, NULL), BT_OK);
    (void)umask(before);
    assert_int_equal(stat(path + 5, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    bt_socket_close(fd);
    assert_int_equal(unlink(path + 5), 0);
}

static void local_addresses_are_told_from_others(void **state)
{
    (void)state;
    static const char *const local[] = {"127.0.0.1:1",         "127.3.2.1:0",      "[::1]:80",
                                        "localhost:7000",      "unix:/run/x.sock", "unix:@x",
                                        "[::ffff:127.0.0.1]:1"};
    static const char *const other[] = {"0.0.0.0:1",   "*:1",        ":1",
                                        "[::]:1",      "10.0.0.1:1", "[fe80::1]:1",
                                        "128.0.0.1:1", "nonsense",   ""};
    for (size_t i = 0; i < BT_ARRAY_LEN(local); i++) {
        assert_true(bt_socket_is_local(local[i]));
    }
    for (size_t i = 0; i < BT_ARRAY_LEN(other); i++) {
        assert_false(bt_socket_is_local(other[i]));
    }
}

static void a_descriptor_passes_with_its_bytes(void **state)
{
    (void)state;
    char name[64];
    int listener;
    int client;
    int server;
    int got_fd;
    size_t n;
    uint32_t uid = 1 << 30;
    char bytes[16];
    (void)snprintf(name, sizeof name, "unix:@baton-test-%d", (int)getpid());
    link_up(name, &listener, &client, &server);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(bt_socket_recv_fd(server, bytes, sizeof bytes, &n, &got_fd), BT_AGAIN);
    assert_int_equal(bt_socket_send_fd(client, "pool", 4, ends[1], &n), BT_OK);
    assert_int_equal(n, 4);
    wait_for(server, POLLIN);
    assert_int_equal(bt_socket_recv_fd(server, bytes, sizeof bytes, &n, &got_fd), BT_OK);
    assert_int_equal(n, 4);
    assert_memory_equal(bytes, "pool", 4);
    assert_true(got_fd >= 0);
    assert_int_equal(write(got_fd, "y", 1), 1);
    assert_int_equal(read(ends[0], bytes, 1), 1);
    assert_int_equal(write(client, "z", 1), 1); /* bytes alone */
    wait_for(server, POLLIN);
    const int passed = got_fd;
    assert_int_equal(bt_socket_recv_fd(server, bytes, sizeof bytes, &n, &got_fd), BT_OK);
    assert_int_equal(got_fd, -1);
    assert_int_equal(bt_socket_peer_uid(server, &uid), BT_OK);
    assert_int_equal(uid, getuid());
    bt_socket_close(client);
    wait_for(server, POLLIN);
    assert_int_equal(bt_socket_recv_fd(server, bytes, sizeof bytes, &n, &got_fd), BT_OK);
    assert_int_equal(n, 0);
    bt_socket_close(passed);
    bt_socket_close(ends[0]);
    bt_socket_close(ends[1]);
    bt_socket_close(server);
    bt_socket_close(listener);
}

static int count_fds(void)
{
    int n = 0;
    struct stat st;
    for (int fd = 0; fd < 256; fd++) {
        n += fstat(fd, &st) == 0;
    }
    return n;
}

static void a_peer_that_sends_many_descriptors_leaks_none(void **state)
{
    (void)state;
    int pair[2];
    int fd = -1;
    size_t n = 0;
    char byte;
    assert_int_equal(bt_socket_pair(pair), BT_OK);
    const int before = count_fds();
    for (size_t n_fds = 2; n_fds <= 20; n_fds += 9) {
        union {
            struct cmsghdr align;
            unsigned char bytes[CMSG_SPACE(20 * sizeof(int))];
        } control;
        memset(&control, 0, sizeof control);
        struct iovec part = {.iov_base = "x", .iov_len = 1};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = CMSG_SPACE(n_fds * sizeof(int))};
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (size_t i = 0; i < n_fds; i++) {
            memcpy(CMSG_DATA(head) + i * sizeof(int), &pair[0], sizeof(int));
        }
        assert_int_equal(sendmsg(pair[0], &message, 0), 1);
        assert_int_equal(bt_socket_recv_fd(pair[1], &byte, 1, &n, &fd), BT_EPROTOCOL);
        assert_int_equal(count_fds(), before);
    }
    bt_socket_close(pair[0]);
    assert_int_equal(bt_socket_send_fd(pair[1], "x", 1, pair[1], &n), BT_EPEER); /* no SIGPIPE */
    bt_socket_close(pair[1]);
}

static void the_boot_has_one_id(void **state)
{
    (void)state;
    char a[BT_SOCKET_BOOT_ID_BYTES];
    char b[BT_SOCKET_BOOT_ID_BYTES];
    assert_int_equal(bt_socket_boot_id(a), BT_OK);
    assert_int_equal(bt_socket_boot_id(b), BT_OK);
    assert_string_equal(a, b);
    assert_int_equal(strlen(a), 36);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_go_both_ways),
        cmocka_unit_test(an_address_can_be_right_and_lead_nowhere),
        cmocka_unit_test(all_interfaces_are_for_listening_alone),
        cmocka_unit_test(localhost_is_the_same_for_both_ends),
        cmocka_unit_test(what_is_no_address_is_refused_with_advice),
        cmocka_unit_test(tcp_takes_a_free_port_and_connects),
        cmocka_unit_test(a_port_in_use_is_an_error_that_says_so),
        cmocka_unit_test(nobody_there_is_a_lost_peer),
        cmocka_unit_test(a_dead_socket_file_is_replaced_a_live_one_is_not),
        cmocka_unit_test(a_socket_file_is_its_users_alone),
        cmocka_unit_test(local_addresses_are_told_from_others),
        cmocka_unit_test(a_descriptor_passes_with_its_bytes),
        cmocka_unit_test(a_peer_that_sends_many_descriptors_leaks_none),
        cmocka_unit_test(the_boot_has_one_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
