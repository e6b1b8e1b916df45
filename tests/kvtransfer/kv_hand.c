/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kvtransfer/kv_hand.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/socket.h"

static void address_of(const kv_rig *rig, char out[BT_SOCKET_TEXT_BYTES])
{
    const bool shm = rig->transport == BT_KV_TRANSPORT_SHM;
    (void)snprintf(out, BT_SOCKET_TEXT_BYTES, "%s%s", shm ? "unix:" : "",
                   shm ? rig->peer.shm : rig->peer.tcp);
}

void hand_connect(kv_rig *rig, hand *h)
{
    bt_socket_address address;
    char text[BT_SOCKET_TEXT_BYTES];
    address_of(rig, text);
    memset(h, 0, sizeof *h);
    bt_session_init(&h->session, BT_SESSION_SINK, &rig->sink_options.terms.cluster_key);
    assert_int_equal(bt_socket_resolve(text, false, &address, NULL), BT_OK);
    assert_int_equal(bt_socket_connect(&address, &h->fd, NULL), BT_OK);
    kv_rig_run_for(rig, 2);
}

void hand_write(kv_rig *rig, hand *h, const void *bytes, size_t n)
{
    const size_t kept = bt_size_min(n, sizeof h->sent - h->sent_len);
    memcpy(h->sent + h->sent_len, bytes, kept);
    h->sent_len += kept;
    assert_int_equal(send(h->fd, bytes, n, MSG_NOSIGNAL), n);
    kv_rig_run_for(rig, 3);
}

size_t hand_seal(hand *h, const bt_frame *frame, uint8_t wire[BT_FRAME_BYTES_MAX])
{
    const size_t n = bt_frame_encode(frame, h->n_sent++, wire);
    if (!h->unsigned_tags) {
        bt_session_seal(&h->session, wire, n);
    }
    return n;
}

void hand_put(kv_rig *rig, hand *h, const bt_frame *frame)
{
    uint8_t wire[BT_FRAME_BYTES_MAX];
    hand_write(rig, h, wire, hand_seal(h, frame, wire));
}

bool hand_next(hand *h, bt_frame *frame)
{
    memmove(h->in, h->in + h->in_pos, h->in_len - h->in_pos);
    h->in_len -= h->in_pos;
    h->in_pos = 0;
    const ssize_t n = read(h->fd, h->in + h->in_len, sizeof h->in - h->in_len);
    h->in_len += n > 0 ? (size_t)n : 0;
    bt_frame_header header;
    if (h->in_len < BT_FRAME_HEADER_BYTES) {
        return false;
    }
    assert_int_equal(bt_frame_decode_header(h->in, &header, NULL), BT_OK);
    assert_true(BT_FRAME_HEADER_BYTES + header.body_bytes <= h->in_len);
    h->checked = bt_session_check(&h->session, h->in, &header, NULL);
    assert_int_equal(bt_frame_decode_body(&header, h->in, frame, NULL), BT_OK);
    h->in_pos = BT_FRAME_HEADER_BYTES + header.body_bytes;
    return true;
}

bool hand_is_closed(hand *h)
{
    uint8_t byte;
    ssize_t n;
    do {
        n = read(h->fd, &byte, 1);
    } while (n > 0);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

void hand_close(hand *h)
{
    bt_socket_close(h->fd);
    h->fd = -1;
}

static void expect(hand *h, bt_frame_type type, bt_frame *frame)
{
    assert_true(hand_next(h, frame));
    assert_string_equal(bt_frame_type_name(frame->type), bt_frame_type_name(type));
    assert_int_equal(h->checked, BT_OK);
}

bt_frame hand_hello_frame(const kv_rig *rig, const bt_kv_terms *terms)
{
    bt_frame frame = {.type = BT_FRAME_HELLO};
    bt_frame_hello_set(&frame.u.hello, terms, 33, 50);
    frame.u.hello.expected = rig->source_options.incarnation;
    frame.u.hello.auth = BT_KV_AUTH_FRAMES;
    bt_hash_random(frame.u.hello.nonce, sizeof frame.u.hello.nonce);
    return frame;
}

void hand_hello(kv_rig *rig, hand *h)
{
    bt_frame reply;
    const bt_frame hello = hand_hello_frame(rig, &rig->sink_options.terms);
    const bt_frame proof = {.type = BT_FRAME_PROOF};
    hand_put(rig, h, &hello);
    expect(h, BT_FRAME_CHALLENGE, &reply);
    hand_put(rig, h, &proof);
    expect(h, BT_FRAME_WELCOME, &reply);
}

int hand_listen(kv_rig *rig)
{
    int fd;
    if (rig->transport == BT_KV_TRANSPORT_SHM) {
        char text[BT_SOCKET_TEXT_BYTES];
        uint64_t number;
        bt_hash_random(&number, sizeof number);
        (void)snprintf(rig->peer.shm, sizeof rig->peer.shm, "@baton-kv-hand-%016llx",
                       (unsigned long long)number);
        address_of(rig, text);
        assert_int_equal(bt_socket_listen(text, &fd, NULL), BT_OK);
        return fd;
    }
    assert_int_equal(bt_socket_listen("127.0.0.1:0", &fd, NULL), BT_OK);
    (void)snprintf(rig->peer.tcp, sizeof rig->peer.tcp, "127.0.0.1:%d", bt_socket_port(fd));
    return fd;
}

void hand_accept(kv_rig *rig, int listen_fd, hand *h)
{
    memset(h, 0, sizeof *h);
    bt_session_init(&h->session, BT_SESSION_SOURCE, &rig->source_options.terms.cluster_key);
    kv_rig_run_for(rig, 3);
    assert_int_equal(bt_socket_accept(listen_fd, &h->fd), BT_OK);
    kv_rig_run_for(rig, 2);
}

void hand_challenge(kv_rig *rig, hand *h, bt_kv_auth choice)
{
    bt_frame frame;
    bt_frame challenge = {
        .type = BT_FRAME_CHALLENGE,
        .u.challenge = {.auth = (uint32_t)choice, .incarnation = rig->source_options.incarnation},
    };
    bt_hash_random(challenge.u.challenge.nonce, sizeof challenge.u.challenge.nonce);
    expect(h, BT_FRAME_HELLO, &frame);
    hand_put(rig, h, &challenge);
    expect(h, BT_FRAME_PROOF, &frame);
}

void hand_welcome(kv_rig *rig, int listen_fd, hand *h)
{
    bt_frame frame;
    bt_frame welcome = {.type = BT_FRAME_WELCOME};
    hand_accept(rig, listen_fd, h);
    hand_challenge(rig, h, BT_KV_AUTH_FRAMES);
    bt_frame_hello_set(&welcome.u.hello, &rig->sink_options.terms, rig->source_options.incarnation,
                       50);
    hand_put(rig, h, &welcome);
    expect(h, BT_FRAME_PULL, &frame);
}
