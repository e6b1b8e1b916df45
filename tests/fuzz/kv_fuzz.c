/* SPDX-License-Identifier: Apache-2.0 */
/* A KV connection with a peer that has the cluster key and says anything: byte 0 picks the side
 * that is played (bit 0: the source), then come frames, each
 *
 *   type | transfer | body length (16 bits) | body
 *
 * which are sealed, counted and summed rightly, so that nothing but their content is wrong. Type 0
 * lets time pass, one past the last type sends the body without any of that. Whatever comes, each
 * offer and each open has its one callback, and no descriptor is left (kv_rig looks at both). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "common/crc32c.h"
#include "common/log.h"
#include "common/socket.h"
#include "tests/fuzz/fuzz.h"
#include "tests/kvtransfer/kv_hand.h"

enum {
    FRAMES_MAX = 24,
    TRANSFERS = 2,  /* that the other side knows */
    BLOCKS = 6,     /* of each */
    END_MS = 30000, /* longer than every lease and deadline */
    SUM_AT = BT_FRAME_HEADER_BYTES - BT_FRAME_TAG_BYTES - 4,
};

static void put_le(uint8_t *out, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static size_t make_frame(hand *h, uint8_t type, bt_kv_transfer transfer, bt_fuzz_input body,
                         uint8_t wire[BT_FRAME_BYTES_MAX])
{
    memset(wire, 0, BT_FRAME_HEADER_BYTES);
    put_le(wire, body.len, 4);
    put_le(wire + 4, type, 2);
    put_le(wire + 8, h->n_sent++, 8);
    put_le(wire + 16, transfer.request.hi, 8);
    put_le(wire + 24, transfer.request.lo, 8);
    put_le(wire + 32, transfer.attempt, 4);
    if (body.len > 0) {
        memcpy(wire + BT_FRAME_HEADER_BYTES, body.bytes, body.len);
    }
    put_le(wire + SUM_AT,
           bt_crc32c(bt_crc32c(0, wire, SUM_AT), wire + BT_FRAME_HEADER_BYTES, body.len), 4);
    const size_t len = BT_FRAME_HEADER_BYTES + body.len;
    if (type > BT_FRAME_CHALLENGE) { /* those before it open a session, and only once */
        bt_session_seal(&h->session, wire, len);
    }
    return len;
}

/* The other end may have closed: then nobody hears it. */
static void say(kv_rig *rig, hand *h, const void *bytes, size_t len)
{
    (void)send(h->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    kv_rig_run_for(rig, 1);
}

static void say_all(kv_rig *rig, hand *h, bt_fuzz_input *in)
{
    static uint8_t wire[BT_FRAME_BYTES_MAX];
    for (int i = 0; i < FRAMES_MAX && in->len > 0; i++) {
        const uint8_t type = bt_fuzz_u8(in) % (BT_FRAME_TYPE_END + 1);
        const uint8_t name = bt_fuzz_u8(in);
        const size_t wanted = bt_fuzz_u16(in) % (BT_FRAME_BODY_BYTES_MAX + 1);
        const bt_fuzz_input body = bt_fuzz_piece(in, wanted);
        bt_kv_transfer transfer = kv_rig_name(name % (TRANSFERS + 1));
        if (name >= 0xF0) {
            transfer = (bt_kv_transfer){0}; /* of the connection */
        }
        if (type == 0) {
            kv_rig_advance(rig, (int64_t)wanted);
        } else if (type == BT_FRAME_TYPE_END) {
            say(rig, h, body.bytes, body.len);
        } else {
            say(rig, h, wire, make_frame(h, type, transfer, body, wire));
        }
    }
}

static void play_sink(kv_rig *rig, bt_fuzz_input *in)
{
    static hand h;
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        kv_rig_offer(rig, i, 16 * i, BLOCKS);
    }
    kv_rig_announce_all(rig, 0, BLOCKS);
    hand_connect(rig, &h);
    hand_hello(rig, &h);
    say_all(rig, &h, in);
    hand_close(&h);
}

static void play_source(kv_rig *rig, bt_fuzz_input *in)
{
    static hand h;
    const int listen_fd = hand_listen(rig);
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        kv_rig_open(rig, i);
        kv_rig_pull(rig, i, 16 * i, BLOCKS, 0);
    }
    hand_welcome(rig, listen_fd, &h);
    say_all(rig, &h, in);
    hand_close(&h);
    bt_socket_close(listen_fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kv_rig rig;
    bt_fuzz_input in = {data, size};
    const bool source = (bt_fuzz_u8(&in) & 1) != 0;
    bt_log_init(BT_ERROR, BT_LOG_FORMAT_TEXT, NULL);
    kv_rig_setup(&rig, BT_KV_TRANSPORT_TCP);
    if (source) {
        play_source(&rig, &in);
    } else {
        play_sink(&rig, &in);
    }
    kv_rig_advance(&rig, END_MS);
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        FUZZ_EXPECT(source ? kv_rig_run_done(&rig, i) : kv_rig_run_released(&rig, i));
    }
    kv_rig_destroy(&rig);
    return 0;
}
