/* SPDX-License-Identifier: Apache-2.0 */
/* Reads are small while frames are expected and long while parts are: a read that ends
 * inside parts costs a second copy of what lies in the buffer, so the buffer takes READ_AHEAD
 * bytes more than it needs and no more. */
#include "kvtransfer/channel_int.h"

#include <string.h>

#include "common/check.h"

enum { READ_AHEAD = 1024 };

bt_status bt_channel_open(bt_channel *channel, bt_conn *conn, const bt_channel_options *options)
{
    bt_kv_fault *fault = options->fault;
    BT_ASSERT(!channel->conn);
    const bt_status status = conn->ops->start(conn, options->fn, options->ctx);
    if (status != BT_OK) {
        conn->ops->close(conn);
        return status;
    }
    bt_session_init(&channel->session, options->side, options->cluster_key);
    channel->conn = conn;
    channel->ops = conn->ops;
    channel->fault = fault;
    channel->n_sent = 0;
    channel->n_received = 0;
    channel->out_pos = channel->out_len = 0;
    channel->in_pos = channel->in_len = 0;
    channel->want = 0;
    if (fault) {
        channel->next_open = fault->channels;
        fault->channels = channel;
        if (fault->dead) {
            channel->ops->sever(channel->conn);
        }
    }
    return BT_OK;
}

void bt_channel_close(bt_channel *channel)
{
    if (channel->conn) {
        bt_channel **at = channel->fault ? &channel->fault->channels : NULL;
        while (at && *at != channel) {
            at = &(*at)->next_open;
        }
        if (at) {
            *at = channel->next_open;
        }
        channel->ops->close(channel->conn);
        channel->conn = NULL;
        bt_session_deinit(&channel->session);
    }
}

bool bt_channel_has_room(const bt_channel *channel)
{
    return sizeof channel->out - channel->out_len >= BT_FRAME_BYTES_MAX;
}

static void flip(bt_kv_fault *fault, uint8_t *bytes, size_t n)
{
    if (fault->flip_at > fault->bytes && fault->flip_at <= fault->bytes + n) {
        bytes[fault->flip_at - fault->bytes - 1] ^= 0x20;
    }
}

static void lose_or_double(bt_channel *channel, const uint8_t *frame, size_t n)
{
    bt_kv_fault *fault = channel->fault;
    fault->frames++;
    if (fault->frames == fault->drop_at) {
        channel->out_len -= n;
    } else if (fault->frames == fault->double_at && sizeof channel->out - channel->out_len >= n) {
        memcpy(channel->out + channel->out_len, frame, n);
        channel->out_len += n;
    }
}

void bt_channel_put(bt_channel *channel, const bt_frame *frame)
{
    BT_ASSERT(bt_channel_has_room(channel));
    uint8_t *out = channel->out + channel->out_len;
    const size_t n = bt_frame_encode(frame, channel->n_sent, out);
    bt_session_seal(&channel->session, out, n);
    channel->n_sent++;
    channel->out_len += n;
    if (channel->fault) {
        flip(channel->fault, out, n);
        channel->fault->bytes += n;
        lose_or_double(channel, out, n);
    }
}

bool bt_channel_is_flushed(const bt_channel *channel)
{
    return channel->out_len == channel->out_pos;
}

bt_status bt_channel_flush(bt_channel *channel, const struct iovec *payload, size_t n, size_t *sent)
{
    BT_ASSERT(n < BT_TRANSPORT_IOV_MAX);
    *sent = 0;
    struct iovec iov[BT_TRANSPORT_IOV_MAX];
    size_t n_iov = 0;
    const size_t buffered = channel->out_len - channel->out_pos;
    if (channel->fault && channel->fault->cut_at != 0 &&
        channel->fault->bytes >= channel->fault->cut_at) {
        return BT_EPEER;
    }
    if (channel->fault && channel->fault->held) {
        return BT_AGAIN;
    }
    if (buffered > 0) {
        iov[n_iov++] = (struct iovec){channel->out + channel->out_pos, buffered};
    }
    if (n > 0) {
        memcpy(iov + n_iov, payload, n * sizeof *payload);
        n_iov += n;
    }
    if (n_iov == 0) {
        return BT_OK;
    }
    size_t moved = 0;
    const bt_status status = channel->ops->send(channel->conn, iov, n_iov, &moved);
    if (status != BT_OK) {
        return status;
    }
    const size_t of_frames = bt_size_min(moved, buffered);
    channel->out_pos += of_frames;
    *sent = moved - of_frames;
    if (channel->out_pos == channel->out_len) {
        channel->out_pos = channel->out_len = 0;
        return BT_OK;
    }
    return BT_AGAIN;
}

bt_status bt_channel_fill(bt_channel *channel, const struct iovec *payload, size_t n, size_t *got)
{
    BT_ASSERT(n < BT_TRANSPORT_IOV_MAX);
    *got = 0;
    if (channel->fault && channel->fault->held) {
        return BT_AGAIN;
    }
    memmove(channel->in, channel->in + channel->in_pos, channel->in_len - channel->in_pos);
    channel->in_len -= channel->in_pos;
    channel->in_pos = 0;
    BT_ASSERT(n == 0 || channel->in_len == 0);
    size_t room = sizeof channel->in - channel->in_len;
    if (n > 0 || channel->in_len < BT_FRAME_HEADER_BYTES) {
        room = bt_size_min(room, READ_AHEAD);
    }
    struct iovec iov[BT_TRANSPORT_IOV_MAX];
    size_t payload_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        iov[i] = payload[i];
        payload_bytes += payload[i].iov_len;
    }
    iov[n] = (struct iovec){channel->in + channel->in_len, room};
    size_t moved = 0;
    const bt_status status = channel->ops->recv(channel->conn, iov, n + 1, &moved);
    if (status != BT_OK) {
        return status;
    }
    *got = bt_size_min(moved, payload_bytes);
    channel->in_len += moved - *got;
    return BT_OK;
}

bt_status bt_channel_next(bt_channel *channel, bt_frame *frame, bt_error *err)
{
    const size_t buffered = channel->in_len - channel->in_pos;
    if (buffered < BT_FRAME_HEADER_BYTES) {
        return BT_AGAIN;
    }
    bt_frame_header header;
    const uint8_t *wire = channel->in + channel->in_pos;
    bt_status status = bt_frame_decode_header(wire, &header, err);
    if (status != BT_OK) {
        return status;
    }
    if (header.counter != channel->n_received) {
        return bt_error_set(err, BT_EPROTOCOL, "a %s frame out of order",
                            bt_frame_type_name(header.type));
    }
    if (buffered < BT_FRAME_HEADER_BYTES + header.body_bytes) {
        return BT_AGAIN;
    }
    const bt_status known = bt_session_check(&channel->session, wire, &header, err);
    if (known != BT_OK && !(known == BT_EPERMISSION && header.type == BT_FRAME_HELLO)) {
        return known;
    }
    status = bt_frame_decode_body(&header, wire, frame, err);
    if (status != BT_OK || known != BT_OK) {
        return status != BT_OK ? status : known;
    }
    channel->in_pos += BT_FRAME_HEADER_BYTES + header.body_bytes;
    channel->n_received++;
    return BT_OK;
}

static void start_parts(const bt_channel *channel, bool own, uint64_t counter, bt_mac *mac)
{
    bt_hash_key key;
    bt_session_parts_key(&channel->session, own, counter, &key);
    bt_mac_init(mac, &key);
    bt_hash_wipe(&key, sizeof key);
}

void bt_channel_start_put_parts(const bt_channel *channel, bt_mac *mac)
{
    start_parts(channel, true, channel->n_sent, mac);
}

void bt_channel_start_got_parts(const bt_channel *channel, bt_mac *mac)
{
    BT_ASSERT(channel->n_received > 0);
    start_parts(channel, false, channel->n_received - 1, mac);
}

size_t bt_channel_take(bt_channel *channel, void *out, size_t n)
{
    const size_t len = bt_size_min(n, channel->in_len - channel->in_pos);
    memcpy(out, channel->in + channel->in_pos, len);
    channel->in_pos += len;
    return len;
}

void bt_channel_want(bt_channel *channel, int events)
{
    if (events != channel->want) {
        channel->want = events;
        const bool held = channel->fault && channel->fault->held;
        channel->ops->want(channel->conn, held ? 0 : events);
    }
}

void bt_kv_fault_hold(bt_kv_fault *fault, bool hold)
{
    fault->held = hold;
    for (const bt_channel *channel = fault->channels; channel; channel = channel->next_open) {
        channel->ops->want(channel->conn, hold ? 0 : channel->want);
    }
}

void bt_kv_fault_cut(bt_kv_fault *fault)
{
    for (const bt_channel *channel = fault->channels; channel; channel = channel->next_open) {
        channel->ops->sever(channel->conn);
    }
}

void bt_kv_fault_kill(bt_kv_fault *fault)
{
    fault->dead = true;
    bt_kv_fault_hold(fault, false);
    bt_kv_fault_cut(fault);
}
