/* SPDX-License-Identifier: Apache-2.0 */
/* channel_int.h - frames over one connection: buffers, counters, tags, parts in the stream.
 *
 * Outgoing frames gather in a buffer; parts that follow a DATA frame are sent straight from
 * their blocks behind it, so no frame may be put while parts are under way. Incoming bytes
 * go through a small buffer; parts are read straight into their blocks, with a little more
 * behind them for the next frame.
 *
 * Threading: loop thread only.
 * Memory:    both buffers are inside the struct.
 */
#ifndef BT_KVTRANSFER_CHANNEL_INT_H
#define BT_KVTRANSFER_CHANNEL_INT_H

#include "common/mac.h"
#include "kvtransfer/frame.h"
#include "kvtransfer/session.h"
#include "kvtransfer/transport.h"

enum {
    BT_CHANNEL_OUT_BYTES = 4 * BT_FRAME_BYTES_MAX,
    BT_CHANNEL_IN_BYTES = 2 * BT_FRAME_BYTES_MAX,
};

typedef struct bt_channel {
    bt_conn *conn; /* NULL: closed */
    const bt_transport_ops *ops;
    bt_kv_fault *fault;           /* test only */
    struct bt_channel *next_open; /* of the fault's */
    bt_session session;
    uint64_t n_sent, n_received;
    size_t out_pos, out_len;
    size_t in_pos, in_len;
    int want;
    uint8_t out[BT_CHANNEL_OUT_BYTES];
    uint8_t in[BT_CHANNEL_IN_BYTES];
} bt_channel;

typedef struct bt_channel_options {
    bt_session_side side;
    const bt_hash_key *cluster_key; /* borrowed for the call */
    bt_conn_fn fn;
    void *ctx;          /* of fn */
    bt_kv_fault *fault; /* test only; NULL: none */
} bt_channel_options;

/* Takes `conn`; events come to fn. On failure the connection is closed. */
bt_status bt_channel_open(bt_channel *channel, bt_conn *conn, const bt_channel_options *options);
void bt_channel_close(bt_channel *channel);

/* Whether the largest frame can be put. */
bool bt_channel_has_room(const bt_channel *channel);
void bt_channel_put(bt_channel *channel, const bt_frame *frame);
bool bt_channel_is_flushed(const bt_channel *channel);

/* Sends frames, then `payload`; *sent counts bytes of the payload. BT_OK: all went that one
 * call of the transport could take; BT_AGAIN: wait until it is writable; BT_EPEER. */
bt_status bt_channel_flush(bt_channel *channel, const struct iovec *payload, size_t n,
                           size_t *sent);

/* Reads once: into `payload` first, the rest into the buffer. *got counts bytes of the
 * payload. BT_AGAIN: nothing there. BT_EPEER. Invalidates decoded frames. */
bt_status bt_channel_fill(bt_channel *channel, const struct iovec *payload, size_t n, size_t *got);

/* Decodes the next buffered frame, which borrows from the buffer until the next fill. BT_AGAIN:
 * not whole yet. BT_EPROTOCOL: malformed, or its counter is not the next one. BT_EPERMISSION: its
 * tag is wrong; *frame is set only if it is a HELLO, for the answer. */
bt_status bt_channel_next(bt_channel *channel, bt_frame *frame, bt_error *err);

/* Begins the tag of the parts behind the DATA frame that is put next, or that came last. */
void bt_channel_start_put_parts(const bt_channel *channel, bt_mac *mac);
void bt_channel_start_got_parts(const bt_channel *channel, bt_mac *mac);

/* Takes up to n buffered bytes of parts. */
size_t bt_channel_take(bt_channel *channel, void *out, size_t n);

/* Which events call back. */
void bt_channel_want(bt_channel *channel, int events);

#endif /* BT_KVTRANSFER_CHANNEL_INT_H */
