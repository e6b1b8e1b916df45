/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that do not keep the protocol, played by hand over real sockets: garbage, frames out
 * of place, READs and DATA that nobody asked for, silence. Their connection is closed or
 * expires, with a counted reason, and a transfer of others runs on undisturbed. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "common/socket.h"
#include "tests/kvtransfer/kv_hand.h"

enum { MS = 1000000 };

static bt_frame pull_frame(uint32_t i)
{
    return (bt_frame){
        .type = BT_FRAME_PULL, .transfer = kv_rig_name(i), .u.pull = {.deadline_ms = 1000}};
}

/* ---- against the source ---- */

/* An honest transfer that is in the middle of it all. */
static void begin_honest(kv_rig *rig)
{
    kv_rig_offer(rig, 1, 0, 6);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 0, 6, 0);
    assert_int_equal(bt_kv_source_announce(rig->source, kv_rig_name(1), 0, 0, 6), BT_OK);
    kv_rig_run_for(rig, 4);
}

static void finish_honest(kv_rig *rig)
{
    kv_rig_announce_all(rig, 1, 6);
    kv_rig_complete(rig, 1, "", false);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->n_done, 1);
    kv_rig_expect_moved(rig, 0, 6, 0);
    assert_true(kv_rig_run_released(rig, 1));
}

static void garbage_closes_its_connection_alone(void **state)
{
    kv_rig *rig = *state;
    begin_honest(rig);
    uint64_t seed = 5;
    for (int round = 0; round < 60; round++) {
        hand h;
        hand_connect(rig, &h);
        if (round % 2 == 0) {
            hand_hello(rig, &h);
        }
        uint8_t bytes[300];
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (uint8_t)(seed >> 33);
        }
        hand_write(rig, &h, bytes, sizeof bytes);
        assert_true(hand_is_closed(&h));
        hand_close(&h);
        kv_rig_run_for(rig, 2);
    }
    assert_int_equal(bt_kv_source_counters_get(rig->source)->frames_rejected, 60);
    finish_honest(rig);
}

static void an_http_client_is_turned_away(void **state)
{
    kv_rig *rig = *state;
    static const char text[] =
        "GET / HTTP/1.1\r\nHost: baton\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n";
    hand h;
    hand_connect(rig, &h);
    hand_write(rig, &h, text, sizeof text - 1);
    assert_true(hand_is_closed(&h));
    hand_close(&h);
}

/* Each frame breaks one rule; the connection is closed for it. */
static void frames_out_of_place_close_the_connection(void **state)
{
    kv_rig *rig = *state;
    begin_honest(rig);
    const bt_frame cases[] = {
        {.type = BT_FRAME_DATA, .u.data = {.bytes = 5}},
        {.type = BT_FRAME_COMPLETE, .u.complete = {.blob = ""}},
        {.type = BT_FRAME_OFFER, .u.offer = {.n_tokens = 1, .n_blocks = 1}},
        {.type = BT_FRAME_READ, .u.read = {.rect = {0, 5, 0, 1}}},
        {.type = BT_FRAME_READ, .u.read = {.rect = {0, 1, 0, 0}}},
        {.type = BT_FRAME_READ, .u.read = {.rect = {3, UINT32_MAX, 1, 1}}},
        {.type = BT_FRAME_READ, .u.read = {.rect = {0, 4, 0, 2}}}, /* not announced */
    };
    for (uint32_t i = 0; i < BT_ARRAY_LEN(cases); i++) {
        const uint32_t number = 10 + i;
        hand h;
        kv_rig_offer(rig, number, 20, 4);
        assert_int_equal(bt_kv_source_announce(rig->source, kv_rig_name(number), 1, 0, 4), BT_OK);
        hand_connect(rig, &h);
        hand_hello(rig, &h);
        const bt_frame pull = pull_frame(number);
        hand_put(rig, &h, &pull);
        kv_rig_run_for(rig, 3);
        bt_frame frame = cases[i];
        frame.transfer = kv_rig_name(number);
        hand_put(rig, &h, &frame);
        assert_true(hand_is_closed(&h));
        hand_close(&h);
        assert_true(kv_rig_run_released(rig, number));
        assert_int_equal(kv_rig_end_of(rig, number)->outcome, BT_KV_OUTCOME_FAILED);
        assert_int_equal(bt_kv_source_counters_get(rig->source)->frames_rejected, i + 1);
    }
    finish_honest(rig);
}

static void a_doubled_or_skipped_frame_closes_the_connection(void **state)
{
    kv_rig *rig = *state;
    const bt_frame renew = {.type = BT_FRAME_RENEW};
    static const uint64_t counters[] = {0, 1, 3, UINT64_MAX}; /* 2 is due */
    for (size_t i = 0; i < BT_ARRAY_LEN(counters); i++) {
        hand h;
        hand_connect(rig, &h);
        hand_hello(rig, &h);
        h.n_sent = counters[i];
        hand_put(rig, &h, &renew);
        assert_true(hand_is_closed(&h));
        hand_close(&h);
        kv_rig_run_for(rig, 2);
    }
}

static void terms_that_differ_are_refused_with_the_cure(void **state)
{
    kv_rig *rig = *state;
    for (int i = 0; i < 4; i++) {
        hand h;
        bt_frame reply;
        bt_kv_terms terms = rig->sink_options.terms;
        hand_connect(rig, &h);
        terms.numerics_id[3] ^= i == 0;
        terms.cluster_key.bytes[3] ^= i == 1;
        terms.layout.n_layers += i == 2;
        bt_session_init(&h.session, BT_SESSION_SINK, &terms.cluster_key);
        bt_frame frame = hand_hello_frame(rig, &terms);
        frame.u.hello.expected += i == 3;
        hand_put(rig, &h, &frame);
        assert_true(hand_next(&h, &reply));
        assert_int_equal(reply.type, BT_FRAME_REFUSE);
        assert_int_equal(reply.u.end.status, BT_EMISMATCH);
        static const char *const cures[] = {"--kernels", "key file", "same model",
                                            "Ask the router"};
        assert_non_null(
            memmem(reply.u.end.text, reply.u.end.text_bytes, cures[i], strlen(cures[i])));
        assert_true(hand_is_closed(&h));
        hand_close(&h);
    }
    assert_int_equal(bt_kv_source_counters_get(rig->source)->handshakes_refused, 4);
}

static void too_many_peers_are_told(void **state)
{
    kv_rig *rig = *state;
    hand *hands = bt_alloc_array(3, sizeof *hands);
    assert_non_null(hands);
    for (int i = 0; i < 2; i++) {
        hand_connect(rig, &hands[i]);
        hand_hello(rig, &hands[i]);
    }
    bt_frame reply;
    const bt_frame hello = hand_hello_frame(rig, &rig->sink_options.terms);
    const bt_frame proof = {.type = BT_FRAME_PROOF};
    hand_connect(rig, &hands[2]);
    hand_put(rig, &hands[2], &hello);
    assert_true(hand_next(&hands[2], &reply));
    assert_int_equal(reply.type, BT_FRAME_CHALLENGE);
    hand_put(rig, &hands[2], &proof);
    assert_true(hand_next(&hands[2], &reply));
    assert_int_equal(reply.type, BT_FRAME_REFUSE);
    assert_int_equal(reply.u.end.status, BT_EEXHAUSTED);
    assert_true(hand_is_closed(&hands[2]));
    for (int i = 0; i < 3; i++) {
        hand_close(&hands[i]);
    }
    free(hands);
    kv_rig_run_for(rig, 2);
    assert_int_equal(bt_kv_source_counters_get(rig->source)->peers_open, 0);
}

/* Connections that say nothing, or say it slowly, have a place for 3 s, and only a few of them;
 * who has the key gets in meanwhile. */
static void idle_connections_keep_nobody_out(void **state)
{
    kv_rig *rig = *state;
    enum { IDLE = 80, STRANGERS = 32 };
    int fds[IDLE];
    bt_socket_address address;
    assert_int_equal(bt_socket_resolve(rig->peer.tcp, false, &address, NULL), BT_OK);
    for (int i = 0; i < IDLE; i++) {
        assert_int_equal(bt_socket_connect(&address, &fds[i], NULL), BT_OK);
        kv_rig_run_for(rig, 1);
        if (i % 2 == 0) {
            assert_int_equal(send(fds[i], "\x5c", 1, MSG_NOSIGNAL), 1); /* a HELLO, in pieces */
        }
    }
    kv_rig_run_for(rig, 3);
    const bt_kv_source_counters *c = bt_kv_source_counters_get(rig->source);
    assert_int_equal(c->peers_open, STRANGERS);
    assert_int_equal(c->handshakes_refused, IDLE - STRANGERS);
    begin_honest(rig);
    finish_honest(rig);
    kv_rig_advance(rig, 3100);
    assert_int_equal(c->peers_open, 1);
    for (int i = 0; i < IDLE; i++) {
        uint8_t byte;
        assert_true(recv(fds[i], &byte, 1, MSG_DONTWAIT) <= 0 && errno != EAGAIN);
        bt_socket_close(fds[i]);
    }
}

/* All have sent a HELLO and none its PROOF: more than there may be strangers. */
static void members_that_connect_at_once_do_not_push_each_other_out(void **state)
{
    (void)state;
    enum { MEMBERS = 48 };
    kv_rig rig;
    kv_rig_create(&rig, BT_KV_TRANSPORT_TCP);
    rig.source_options.max_peers = MEMBERS;
    kv_rig_start_source(&rig);
    kv_rig_start_sink(&rig);
    hand *hands = bt_alloc_array(MEMBERS, sizeof *hands);
    bt_frame reply;
    const bt_frame proof = {.type = BT_FRAME_PROOF};
    assert_non_null(hands);
    for (int i = 0; i < MEMBERS; i++) {
        const bt_frame hello = hand_hello_frame(&rig, &rig.sink_options.terms);
        hand_connect(&rig, &hands[i]);
        hand_put(&rig, &hands[i], &hello);
    }
    for (int i = 0; i < MEMBERS; i++) {
        assert_true(hand_next(&hands[i], &reply));
        assert_int_equal(reply.type, BT_FRAME_CHALLENGE);
        hand_put(&rig, &hands[i], &proof);
        assert_true(hand_next(&hands[i], &reply));
        assert_int_equal(reply.type, BT_FRAME_WELCOME);
        hand_close(&hands[i]);
    }
    assert_int_equal(bt_kv_source_counters_get(rig.source)->handshakes_refused, 0);
    free(hands);
    kv_rig_destroy(&rig);
}

static void a_second_puller_is_refused_and_the_first_goes_on(void **state)
{
    kv_rig *rig = *state;
    begin_honest(rig);
    hand h;
    bt_frame reply;
    hand_connect(rig, &h);
    hand_hello(rig, &h);
    const bt_frame pull = pull_frame(1);
    hand_put(rig, &h, &pull);
    assert_true(hand_next(&h, &reply));
    assert_int_equal(reply.type, BT_FRAME_REVOKE);
    assert_int_equal(reply.u.end.status, BT_EEXISTS);
    /* and it can't end what is not its own */
    const bt_frame end = {.type = BT_FRAME_END, .transfer = kv_rig_name(1), .u.end = {.text = ""}};
    hand_put(rig, &h, &end);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_released, 0);
    hand_close(&h);
    finish_honest(rig);
}

/* It pulled and fell silent: REVOKE when the lease is over. Nobody but the source reads the
 * blocks over tcp, so they are free at once. */
static void a_silent_sink_loses_its_lease(void **state)
{
    kv_rig *rig = *state;
    hand h;
    bt_frame frame;
    kv_rig_offer(rig, 1, 0, 3);
    hand_connect(rig, &h);
    hand_hello(rig, &h);
    const bt_frame pull = pull_frame(1);
    hand_put(rig, &h, &pull);
    assert_true(hand_next(&h, &frame));
    assert_int_equal(frame.type, BT_FRAME_OFFER);
    kv_rig_advance(rig, 9900);
    assert_false(hand_next(&h, &frame));
    kv_rig_advance(rig, 200);
    kv_rig_run_for(rig, 2);
    assert_true(hand_next(&h, &frame));
    assert_int_equal(frame.type, BT_FRAME_REVOKE);
    assert_int_equal(frame.u.end.status, BT_EPEER);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_released, 1);
    assert_int_equal(kv_rig_end_of(rig, 1)->outcome, BT_KV_OUTCOME_EXPIRED);
    assert_true(hand_is_closed(&h));
    hand_close(&h);
}

/* It maps our memory, keeps its lease, and does not answer the REVOKE: its blocks are held for a
 * lease, then the connection goes. */
static void a_sink_that_never_lets_go_is_cut_off_after_a_lease(void **state)
{
    (void)state;
    kv_rig rig;
    kv_rig_setup(&rig, BT_KV_TRANSPORT_SHM);
    hand *h = bt_alloc_array(1, sizeof *h);
    assert_non_null(h);
    kv_rig_offer(&rig, 1, 0, 3);
    hand_connect(&rig, h);
    hand_hello(&rig, h);
    const bt_frame pull = pull_frame(1);
    const bt_frame renew = {.type = BT_FRAME_RENEW};
    hand_put(&rig, h, &pull);
    assert_int_equal(bt_kv_source_cancel(rig.source, kv_rig_name(1), BT_EABORTED, ""), BT_OK);
    for (int i = 0; i < 4; i++) {
        kv_rig_advance(&rig, 2400);
        hand_put(&rig, h, &renew);
    }
    assert_int_equal(kv_rig_end_of(&rig, 1)->n_released, 0);
    kv_rig_advance(&rig, 600);
    assert_true(kv_rig_run_released(&rig, 1));
    assert_int_equal(kv_rig_end_of(&rig, 1)->outcome, BT_KV_OUTCOME_CANCELLED);
    assert_true(hand_is_closed(h));
    hand_close(h);
    free(h);
    kv_rig_destroy(&rig);
}

static bool has_a_peer(kv_rig *rig, void *ctx)
{
    (void)ctx;
    return bt_kv_source_counters_get(rig->source)->peers_open > 0;
}

/* A connection that can't be accepted waits in the queue, and the loop sleeps meanwhile: with a
 * spinning one it would never block. */
static void accepting_pauses_without_descriptors(void **state)
{
    kv_rig *rig = *state;
    struct rlimit before;
    struct rusage start;
    struct rusage end;
    bt_socket_address address;
    int fd;
    assert_int_equal(bt_socket_resolve(rig->peer.tcp, false, &address, NULL), BT_OK);
    assert_int_equal(bt_socket_connect(&address, &fd, NULL), BT_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int next = dup(fd);
    assert_true(next >= 0);
    bt_socket_close(next);
    struct rlimit none = before;
    none.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum { POLLS = 100 };
    assert_int_equal(getrusage(RUSAGE_SELF, &start), 0);
    kv_rig_run_for(rig, POLLS);
    assert_int_equal(getrusage(RUSAGE_SELF, &end), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(end.ru_nvcsw - start.ru_nvcsw > POLLS / 4);
    assert_int_equal(bt_kv_source_counters_get(rig->source)->peers_open, 0);
    assert_true(kv_rig_run(rig, has_a_peer, NULL));
    bt_socket_close(fd);
    kv_rig_run_for(rig, 2);
}

/* READs for more than the socket takes, and nobody reads: the source does not wait for it. */
static void a_sink_that_never_reads_blocks_nobody(void **state)
{
    kv_rig *rig = *state;
    hand h;
    hand_connect(rig, &h);
    hand_hello(rig, &h);
    const int small = 4096;
    (void)setsockopt(h.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    kv_rig_offer(rig, 2, 3, 40);
    kv_rig_announce_all(rig, 2, 40);
    const bt_frame pull = pull_frame(2);
    hand_put(rig, &h, &pull);
    for (uint32_t op = 0; op < 60; op++) {
        const bt_frame read = {.type = BT_FRAME_READ,
                               .transfer = kv_rig_name(2),
                               .u.read = {.op = op, .rect = {0, 40, 0, RIG_LAYERS}}};
        uint8_t wire[BT_FRAME_BYTES_MAX];
        const size_t n = hand_seal(&h, &read, wire);
        assert_int_equal(send(h.fd, wire, n, MSG_NOSIGNAL), n);
    }
    kv_rig_run_for(rig, 20);
    begin_honest(rig);
    finish_honest(rig);
    assert_int_equal(kv_rig_end_of(rig, 2)->n_released, 0);
    kv_rig_advance(rig, 10100); /* lease */
    kv_rig_advance(rig, 1100);  /* grace */
    assert_true(kv_rig_run_released(rig, 2));
    assert_int_equal(kv_rig_end_of(rig, 2)->outcome, BT_KV_OUTCOME_EXPIRED);
    hand_close(&h);
}

/* ---- against the sink ---- */

static const uint32_t ZERO_SUMS[8];

/* What a source may not say, each after a right OFFER of 2 blocks unless it is the first. */
static void a_source_that_lies_fails_its_transfer(void **state)
{
    kv_rig *rig = *state;
    const bt_kv_transfer name = kv_rig_name(0); /* replaced below */
    const bt_frame cases[] = {
        {.type = BT_FRAME_PULL, .transfer = name},
        {.type = BT_FRAME_OFFER, .transfer = name, .u.offer = {.n_tokens = 32, .n_blocks = 2}},
        {.type = BT_FRAME_ANNOUNCE,
         .transfer = name,
         .u.announce = {.rect = {1, 2, 0, 1}, .sums = ZERO_SUMS}},
        {.type = BT_FRAME_ANNOUNCE,
         .transfer = name,
         .u.announce = {.rect = {0, 1, RIG_LAYERS, 1}, .sums = ZERO_SUMS}},
        {.type = BT_FRAME_DATA, .transfer = name, .u.data = {.op = 0, .bytes = 100}},
        {.type = BT_FRAME_WELCOME},
        {.type = BT_FRAME_REFUSE, .u.end = {.status = BT_EMISMATCH, .text = ""}},
        {.type = BT_FRAME_END, .transfer = name, .u.end = {.text = ""}},
    };
    for (uint32_t i = 0; i < BT_ARRAY_LEN(cases); i++) {
        const int listen_fd = hand_listen(rig);
        hand h;
        kv_rig_open(rig, i);
        kv_rig_pull(rig, i, 4 * i, 2, 0);
        hand_welcome(rig, listen_fd, &h);
        const bt_frame offer = {.type = BT_FRAME_OFFER,
                                .transfer = kv_rig_name(i),
                                .u.offer = {.n_tokens = 32, .n_blocks = 2}};
        hand_put(rig, &h, &offer);
        bt_frame frame = cases[i];
        if (frame.transfer.attempt != 0) {
            frame.transfer = kv_rig_name(i);
        }
        hand_put(rig, &h, &frame);
        assert_true(kv_rig_run_done(rig, i));
        assert_int_equal(kv_rig_end_of(rig, i)->status, BT_EPROTOCOL);
        assert_true(hand_is_closed(&h));
        assert_int_equal(bt_kv_sink_counters_get(rig->sink)->frames_rejected, i + 1);
        hand_close(&h);
        bt_socket_close(listen_fd);
    }
    kv_rig_expect_untouched(rig);
}

/* DATA in the wrong place of a READ, and frames for transfers that are not there. */
static void parts_that_were_not_asked_for_are_not_taken(void **state)
{
    kv_rig *rig = *state;
    const int listen_fd = hand_listen(rig);
    hand h;
    bt_frame frame;
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 0, 2, 0);
    hand_welcome(rig, listen_fd, &h);
    const bt_frame offer = {.type = BT_FRAME_OFFER,
                            .transfer = kv_rig_name(1),
                            .u.offer = {.n_tokens = 32, .n_blocks = 2}};
    hand_put(rig, &h, &offer);
    const bt_frame announce = {.type = BT_FRAME_ANNOUNCE,
                               .transfer = kv_rig_name(1),
                               .u.announce = {.rect = {0, 2, 1, 1}, .sums = ZERO_SUMS}};
    hand_put(rig, &h, &announce);
    assert_true(hand_next(&h, &frame));
    assert_int_equal(frame.type, BT_FRAME_READ);
    hand_put(rig, &h, &announce); /* again */
    assert_int_equal(bt_kv_sink_counters_get(rig->sink)->rejected_duplicate, 2);
    bt_frame stranger = announce;
    stranger.transfer = kv_rig_name(60);
    hand_put(rig, &h, &stranger);
    assert_int_equal(bt_kv_sink_counters_get(rig->sink)->rejected_unknown, 1);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_failed, 0);
    const bt_frame data = {.type = BT_FRAME_DATA,
                           .transfer = kv_rig_name(1),
                           .u.data = {.op = frame.u.read.op, .bytes = 512, .offset = 512}};
    hand_put(rig, &h, &data);
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EPROTOCOL);
    kv_rig_expect_untouched(rig);
    hand_close(&h);
    bt_socket_close(listen_fd);
}

static void a_source_that_never_answers_ends_at_the_time_out(void **state)
{
    kv_rig *rig = *state;
    const int listen_fd = hand_listen(rig);
    const int64_t deadline_ns = rig->now_ns + 60000 * (int64_t)MS;
    assert_int_equal(bt_kv_sink_open(rig->sink, kv_rig_name(1), &rig->peer, deadline_ns, NULL),
                     BT_OK);
    rig->opened[1] = true;
    kv_rig_run_for(rig, 3);
    kv_rig_advance(rig, 2900);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_failed, 0);
    kv_rig_advance(rig, 200);
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EPEER);
    bt_socket_close(listen_fd);
}

static void a_source_that_falls_silent_is_given_up_after_a_lease(void **state)
{
    kv_rig *rig = *state;
    const int listen_fd = hand_listen(rig);
    const int64_t deadline_ns = rig->now_ns + 60000 * (int64_t)MS;
    assert_int_equal(bt_kv_sink_open(rig->sink, kv_rig_name(1), &rig->peer, deadline_ns, NULL),
                     BT_OK);
    rig->opened[1] = true;
    hand h;
    hand_welcome(rig, listen_fd, &h);
    kv_rig_advance(rig, 9900);
    assert_int_equal(kv_rig_end_of(rig, 1)->n_failed, 0);
    kv_rig_advance(rig, 200);
    assert_int_equal(kv_rig_end_of(rig, 1)->status, BT_EPEER);
    assert_non_null(strstr(kv_rig_end_of(rig, 1)->text, "silent"));
    hand_close(&h);
    bt_socket_close(listen_fd);
}

/* ---- which transport ---- */

static void share_bad_memory(kv_rig *rig, bool unsealed)
{
    const size_t bytes = rig->source_pool.bytes;
    const int fd = memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)(unsealed ? bytes : bytes / 2)), 0);
    if (!unsealed) {
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    }
    assert_int_equal(dup2(fd, rig->source_pool.fd), rig->source_pool.fd);
    assert_int_equal(close(fd), 0);
}

static void auto_takes_shm_on_one_host_and_tcp_when_it_fails(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        kv_rig rig;
        kv_rig_create(&rig, BT_KV_TRANSPORT_AUTO);
        rig.sink_options.no_shm = i == 1;
        if (i >= 4) { /* memory that can be pulled away, or is too small */
            share_bad_memory(&rig, i == 4);
        }
        kv_rig_start_source(&rig);
        kv_rig_start_sink(&rig);
        if (i == 2) { /* not our host */
            rig.peer.boot_id[0] ^= 1;
        }
        if (i == 3) { /* our host, but its socket is out of reach (another container) */
            (void)snprintf(rig.peer.shm, sizeof rig.peer.shm, "@baton-nobody-listens-here");
        }
        kv_rig_offer(&rig, 1, 0, 4);
        kv_rig_announce_all(&rig, 1, 4);
        kv_rig_complete(&rig, 1, "", false);
        kv_rig_open(&rig, 1);
        kv_rig_pull(&rig, 1, 0, 4, 0);
        assert_true(kv_rig_run_done(&rig, 1));
        assert_int_equal(kv_rig_end_of(&rig, 1)->n_done, 1);
        assert_int_equal(kv_rig_end_of(&rig, 1)->stats.transport,
                         i == 0 ? BT_KV_TRANSPORT_SHM : BT_KV_TRANSPORT_TCP);
        kv_rig_expect_moved(&rig, 0, 4, 0);
        assert_true(kv_rig_run_released(&rig, 1));
        kv_rig_destroy(&rig);
    }
}

static void a_pinned_transport_that_does_not_reach_is_an_error_with_advice(void **state)
{
    (void)state;
    kv_rig rig;
    kv_rig_create(&rig, BT_KV_TRANSPORT_AUTO);
    rig.sink_options.transport = BT_KV_TRANSPORT_SHM;
    kv_rig_start_source(&rig);
    kv_rig_start_sink(&rig);
    rig.peer.boot_id[0] ^= 1;
    bt_error err;
    assert_int_equal(bt_kv_sink_open(rig.sink, kv_rig_name(1), &rig.peer, rig.now_ns + 1, &err),
                     BT_EINVAL);
    assert_non_null(strstr(err.text, "pinned: shm"));
    kv_rig_destroy(&rig);
}

static void names_of_transports_go_both_ways(void **state)
{
    (void)state;
    bt_kv_transport transport;
    for (int i = BT_KV_TRANSPORT_AUTO; i <= BT_KV_TRANSPORT_LOOPBACK; i++) {
        assert_true(bt_kv_transport_parse(bt_kv_transport_name((bt_kv_transport)i), &transport));
        assert_int_equal(transport, i);
    }
    assert_false(bt_kv_transport_parse("rdma", &transport));
}

#define ON_RIG(test) cmocka_unit_test_setup_teardown(test, kv_rig_setup_tcp, kv_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_RIG(garbage_closes_its_connection_alone),
        ON_RIG(an_http_client_is_turned_away),
        ON_RIG(frames_out_of_place_close_the_connection),
        ON_RIG(a_doubled_or_skipped_frame_closes_the_connection),
        ON_RIG(terms_that_differ_are_refused_with_the_cure),
        ON_RIG(too_many_peers_are_told),
        ON_RIG(idle_connections_keep_nobody_out),
        cmocka_unit_test(members_that_connect_at_once_do_not_push_each_other_out),
        ON_RIG(a_second_puller_is_refused_and_the_first_goes_on),
        ON_RIG(a_silent_sink_loses_its_lease),
        cmocka_unit_test(a_sink_that_never_lets_go_is_cut_off_after_a_lease),
        ON_RIG(accepting_pauses_without_descriptors),
        ON_RIG(a_sink_that_never_reads_blocks_nobody),
        ON_RIG(a_source_that_lies_fails_its_transfer),
        ON_RIG(parts_that_were_not_asked_for_are_not_taken),
        ON_RIG(a_source_that_never_answers_ends_at_the_time_out),
        ON_RIG(a_source_that_falls_silent_is_given_up_after_a_lease),
        cmocka_unit_test(auto_takes_shm_on_one_host_and_tcp_when_it_fails),
        cmocka_unit_test(a_pinned_transport_that_does_not_reach_is_an_error_with_advice),
        cmocka_unit_test(names_of_transports_go_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
