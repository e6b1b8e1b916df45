/* SPDX-License-Identifier: Apache-2.0 */
/* kv_hand.h - a peer of a KV connection that the test plays by hand, over a real socket: a unix
 * one on a rig for shm, else tcp. It reads bytes alone: a pool that comes along is dropped.
 *
 * It has the cluster key, unless the test gives its session another one, so what it says is
 * authentic however wrong it is; raw bytes go out with hand_write().
 */
#ifndef BT_TESTS_KVTRANSFER_KV_HAND_H
#define BT_TESTS_KVTRANSFER_KV_HAND_H

#include "kvtransfer/frame.h"
#include "kvtransfer/session.h"
#include "tests/kvtransfer/kv_rig.h"

typedef struct hand {
    int fd;
    bt_session session;
    bool unsigned_tags; /* frames go out with a zero tag */
    uint64_t n_sent;
    bt_status checked; /* of the last frame that came: bt_session_check() */
    uint8_t in[1 << 17];
    size_t in_len, in_pos;
    uint8_t sent[1 << 14]; /* all bytes that went out, as far as they fit */
    size_t sent_len;
} hand;

/* As a sink: connects to the rig's source. */
void hand_connect(kv_rig *rig, hand *h);

void hand_write(kv_rig *rig, hand *h, const void *bytes, size_t n);
void hand_put(kv_rig *rig, hand *h, const bt_frame *frame);

/* Encodes and seals the next frame into `wire` without sending it. */
size_t hand_seal(hand *h, const bt_frame *frame, uint8_t wire[BT_FRAME_BYTES_MAX]);

/* The next frame that came; false: none. `frame` borrows until the next call. */
bool hand_next(hand *h, bt_frame *frame);
bool hand_is_closed(hand *h);
void hand_close(hand *h);

/* The HELLO of an honest sink with these terms. */
bt_frame hand_hello_frame(const kv_rig *rig, const bt_kv_terms *terms);

/* The whole handshake, up to the source's WELCOME. */
void hand_hello(kv_rig *rig, hand *h);

/* As a source: listens where rig->peer will say, and takes the sink's connection up to its
 * PULL. */
int hand_listen(kv_rig *rig);
void hand_accept(kv_rig *rig, int listen_fd, hand *h);        /* the socket alone */
void hand_challenge(kv_rig *rig, hand *h, bt_kv_auth choice); /* after HELLO: up to the PROOF */
void hand_welcome(kv_rig *rig, int listen_fd, hand *h);

#endif /* BT_TESTS_KVTRANSFER_KV_HAND_H */
