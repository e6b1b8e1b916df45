/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that each client's counts are its own, that its entry goes with its last request, and
 * that as many clients as requests fit. */
#include "router/clients.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static void each_client_has_counts_of_its_own(void **state)
{
    (void)state;
    bt_router_clients *clients = NULL;
    assert_int_equal(bt_router_clients_create(4, &clients), BT_OK);
    bt_router_client *a = bt_router_clients_acquire(clients, "a");
    assert_ptr_equal(bt_router_clients_acquire(clients, "a"), a);
    bt_router_client *b = bt_router_clients_acquire(clients, "b");
    bt_router_client_add_tokens(a, 100);
    bt_router_client_add_bytes(b, 7);
    assert_int_equal(a->n_requests, 2);
    assert_int_equal(b->n_requests, 1);
    assert_int_equal(b->prompt_tokens, 0);
    assert_int_equal(bt_router_clients_find(clients, "a")->prompt_tokens, 100);
    assert_int_equal(bt_router_clients_find(clients, "b")->bytes, 7);
    bt_router_client_add_tokens(a, -100);
    bt_router_client_add_bytes(b, -7);
    bt_router_clients_release(clients, a);
    assert_non_null(bt_router_clients_find(clients, "a"));
    bt_router_clients_release(clients, a);
    assert_null(bt_router_clients_find(clients, "a"));
    bt_router_clients_release(clients, b);
    bt_router_clients_destroy(clients);
}

static void places_are_used_again(void **state)
{
    (void)state;
    enum { N = 3 };
    bt_router_clients *clients = NULL;
    assert_int_equal(bt_router_clients_create(N, &clients), BT_OK);
    for (int round = 0; round < 10; round++) {
        bt_router_client *held[N];
        for (int i = 0; i < N; i++) {
            char name[16];
            snprintf(name, sizeof name, "c%d", round * N + i);
            held[i] = bt_router_clients_acquire(clients, name);
        }
        for (int i = 0; i < N; i++) {
            bt_router_clients_release(clients, held[i]);
        }
    }
    bt_router_clients_destroy(clients);
}

static void a_peer_is_known_by_its_host(void **state)
{
    (void)state;
    char name[BT_ROUTER_CLIENT_NAME_MAX];
    assert_string_equal(bt_router_client_of_peer("ipv4:10.0.0.1:4711", name), "10.0.0.1");
    assert_string_equal(bt_router_client_of_peer("ipv6:[::1]:4711", name), "[::1]");
    assert_string_equal(bt_router_client_of_peer("ipv6:%5B2001:db8::1%5D:4711", name),
                        "[2001:db8::1]"); /* as the HTTP door has it */
    assert_string_equal(bt_router_client_of_peer("unix:", name), "unix:");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_client_has_counts_of_its_own),
        cmocka_unit_test(places_are_used_again),
        cmocka_unit_test(a_peer_is_known_by_its_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
