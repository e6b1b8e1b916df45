/* SPDX-License-Identifier: Apache-2.0 */
/* Each type has a row: its name, the least and the largest body, and who may send it (the
 * receiver's business). Bodies are read straight through with the bounds-checked reader;
 * one look at the end says whether the body had exactly the bytes of its type. */
#include "kvtransfer/frame.h"

#include <string.h>

#include "common/bytes.h"
#include "common/check.h"
#include "common/crc32c.h"

enum {
    HELLO_BYTES = 4 + 4 + 8 + 8 + 4 + 6 * 4 + 4 + 4 + 2 * 16,
    CHALLENGE_BYTES = 4 + 4 + 8 + BT_FRAME_NONCE_BYTES,
    DATA_BYTES = 16 + BT_FRAME_TAG_BYTES,
    RECT_BYTES = 16,
    SUM_AT = 36, /* of the checksum in the header */
};

_Static_assert(8 + 8 + 16 + 4 + 4 + BT_FRAME_TAG_BYTES == BT_FRAME_HEADER_BYTES, "header");
_Static_assert(BT_KV_WANTED_MAX * 16 + 4 <= BT_FRAME_BODY_BYTES_MAX, "PULL fits");
_Static_assert(BT_FRAME_IDS_MAX * 4 + 16 <= BT_FRAME_BODY_BYTES_MAX, "OFFER fits");
_Static_assert(BT_FRAME_SUMS_MAX * 4 + RECT_BYTES <= BT_FRAME_BODY_BYTES_MAX, "ANNOUNCE fits");
_Static_assert(BT_KV_BLOB_BYTES_MAX + 8 <= BT_FRAME_BODY_BYTES_MAX, "COMPLETE fits");
_Static_assert(HELLO_BYTES == 92, "HELLO as the README has it");

static const struct {
    const char *name;
    uint32_t body_min, body_max;
} types[BT_FRAME_TYPE_END] = {
    [0] = {"?", 1, 0},
    [BT_FRAME_HELLO] = {"HELLO", HELLO_BYTES, HELLO_BYTES},
    [BT_FRAME_CHALLENGE] = {"CHALLENGE", CHALLENGE_BYTES, CHALLENGE_BYTES},
    [BT_FRAME_PROOF] = {"PROOF", 0, 0},
    [BT_FRAME_WELCOME] = {"WELCOME", HELLO_BYTES, HELLO_BYTES},
    [BT_FRAME_REFUSE] = {"REFUSE", 4, 4 + BT_KV_TEXT_BYTES},
    [BT_FRAME_PULL] = {"PULL", 4, 4 + 16 * BT_KV_WANTED_MAX},
    [BT_FRAME_RENEW] = {"RENEW", 0, 0},
    [BT_FRAME_OFFER] = {"OFFER", 16, 16 + 4 * BT_FRAME_IDS_MAX},
    [BT_FRAME_ANNOUNCE] = {"ANNOUNCE", RECT_BYTES + 4, RECT_BYTES + 4 * BT_FRAME_SUMS_MAX},
    [BT_FRAME_READ] = {"READ", 4 + RECT_BYTES, 4 + RECT_BYTES},
    [BT_FRAME_DATA] = {"DATA", DATA_BYTES, DATA_BYTES},
    [BT_FRAME_COMPLETE] = {"COMPLETE", 4, 4 + BT_KV_BLOB_BYTES_MAX},
    [BT_FRAME_REVOKE] = {"REVOKE", 4, 4 + BT_KV_TEXT_BYTES},
    [BT_FRAME_END] = {"END", 4, 4 + BT_KV_TEXT_BYTES},
};

const char *bt_frame_type_name(uint32_t type)
{
    return type < BT_FRAME_TYPE_END ? types[type].name : "?";
}

/* CRC32C of the whole frame but the checksum itself and the tag. */
static uint32_t frame_sum(const uint8_t *wire, const uint8_t *body, uint32_t body_bytes)
{
    return bt_crc32c(bt_crc32c(0, wire, SUM_AT), body, body_bytes);
}

/* ---- encode ---- */

static void write_hello(bt_bytes_writer *w, const bt_frame_hello *hello)
{
    bt_bytes_write_u32(w, hello->magic);
    bt_bytes_write_u32(w, hello->version);
    bt_bytes_write_u64(w, hello->incarnation);
    bt_bytes_write_u64(w, hello->expected);
    bt_bytes_write_u32(w, hello->n_blocks);
    bt_bytes_write_u32(w, hello->block_tokens);
    bt_bytes_write_u32(w, hello->n_layers);
    bt_bytes_write_u32(w, hello->n_kv_heads);
    bt_bytes_write_u32(w, hello->head_dim);
    bt_bytes_write_u32(w, hello->kv_format);
    bt_bytes_write_u32(w, hello->layer_bytes);
    bt_bytes_write_u32(w, hello->lease_ms);
    bt_bytes_write_u32(w, hello->auth);
    bt_bytes_write_copy(w, hello->numerics_id, sizeof hello->numerics_id);
    bt_bytes_write_copy(w, hello->nonce, sizeof hello->nonce);
}

static void write_rect(bt_bytes_writer *w, const bt_plan_rect *rect)
{
    bt_bytes_write_u32(w, rect->block_idx);
    bt_bytes_write_u32(w, rect->n_blocks);
    bt_bytes_write_u32(w, rect->layer);
    bt_bytes_write_u32(w, rect->n_layers);
}

static void write_u32s(bt_bytes_writer *w, const uint32_t *values, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        bt_bytes_write_u32(w, values[i]);
    }
}

static void write_pull(bt_bytes_writer *w, const bt_frame *frame)
{
    bt_bytes_write_u32(w, frame->u.pull.deadline_ms);
    for (uint32_t i = 0; i < frame->u.pull.n_wanted; i++) {
        uint8_t id[16];
        bt_hash128_to_bytes(frame->u.pull.wanted[i], id);
        bt_bytes_write_copy(w, id, sizeof id);
    }
}

static void write_body(bt_bytes_writer *w, const bt_frame *frame)
{
    switch (frame->type) {
    case BT_FRAME_HELLO:
    case BT_FRAME_WELCOME:
        write_hello(w, &frame->u.hello);
        return;
    case BT_FRAME_CHALLENGE:
        bt_bytes_write_u32(w, frame->u.challenge.auth);
        bt_bytes_write_u32(w, 0);
        bt_bytes_write_u64(w, frame->u.challenge.incarnation);
        bt_bytes_write_copy(w, frame->u.challenge.nonce, sizeof frame->u.challenge.nonce);
        return;
    case BT_FRAME_REFUSE:
    case BT_FRAME_REVOKE:
    case BT_FRAME_END:
        bt_bytes_write_u32(w, (uint32_t)frame->u.end.status);
        bt_bytes_write_copy(w, frame->u.end.text, frame->u.end.text_bytes);
        return;
    case BT_FRAME_PULL:
        write_pull(w, frame);
        return;
    case BT_FRAME_OFFER:
        bt_bytes_write_u32(w, frame->u.offer.n_tokens);
        bt_bytes_write_u32(w, frame->u.offer.n_blocks);
        bt_bytes_write_u32(w, frame->u.offer.first);
        bt_bytes_write_u32(w, frame->u.offer.n_ids);
        write_u32s(w, frame->u.offer.ids, frame->u.offer.n_ids);
        return;
    case BT_FRAME_ANNOUNCE:
        write_rect(w, &frame->u.announce.rect);
        write_u32s(w, frame->u.announce.sums, bt_plan_rect_parts(&frame->u.announce.rect));
        return;
    case BT_FRAME_READ:
        bt_bytes_write_u32(w, frame->u.read.op);
        write_rect(w, &frame->u.read.rect);
        return;
    case BT_FRAME_DATA:
        bt_bytes_write_u32(w, frame->u.data.op);
        bt_bytes_write_u32(w, frame->u.data.bytes);
        bt_bytes_write_u64(w, frame->u.data.offset);
        bt_bytes_write_copy(w, frame->u.data.tag, sizeof frame->u.data.tag);
        return;
    case BT_FRAME_COMPLETE:
        bt_bytes_write_u32(w, frame->u.complete.ends);
        bt_bytes_write_copy(w, frame->u.complete.blob, frame->u.complete.blob_bytes);
        return;
    case BT_FRAME_PROOF:
    case BT_FRAME_RENEW:
    case BT_FRAME_TYPE_END:
        return;
    }
}

size_t bt_frame_encode(const bt_frame *frame, uint64_t counter, uint8_t *out)
{
    BT_ASSERT(frame->type > 0 && frame->type < BT_FRAME_TYPE_END);
    bt_bytes_writer w;
    bt_bytes_writer_init(&w, out, BT_FRAME_BYTES_MAX);
    bt_bytes_write_u32(&w, 0); /* body_bytes, known last */
    bt_bytes_write_u16(&w, (uint16_t)frame->type);
    bt_bytes_write_u16(&w, 0);
    bt_bytes_write_u64(&w, counter);
    bt_bytes_write_u64(&w, frame->transfer.request.hi);
    bt_bytes_write_u64(&w, frame->transfer.request.lo);
    bt_bytes_write_u32(&w, frame->transfer.attempt);
    BT_ASSERT(w.len == SUM_AT);
    bt_bytes_write_u32(&w, 0); /* checksum, known last */
    bt_bytes_write_zeros(&w, BT_FRAME_TAG_BYTES);
    BT_ASSERT(w.len == BT_FRAME_HEADER_BYTES);
    write_body(&w, frame);
    BT_ASSERT(w.ok);
    const uint32_t body_bytes = (uint32_t)(w.len - BT_FRAME_HEADER_BYTES);
    BT_ASSERT(body_bytes >= types[frame->type].body_min);
    BT_ASSERT(body_bytes <= types[frame->type].body_max);
    bt_bytes_patch_u32(&w, 0, body_bytes);
    bt_bytes_patch_u32(&w, SUM_AT, frame_sum(out, out + BT_FRAME_HEADER_BYTES, body_bytes));
    return w.len;
}

/* ---- decode ---- */

bt_status bt_frame_decode_header(const uint8_t *wire, bt_frame_header *header, bt_error *err)
{
    bt_bytes_reader r;
    bt_bytes_reader_init(&r, wire, BT_FRAME_HEADER_BYTES);
    const uint32_t body_bytes = bt_bytes_read_u32(&r);
    const uint16_t type = bt_bytes_read_u16(&r);
    const uint16_t zero16 = bt_bytes_read_u16(&r);
    bt_frame_header h = {.body_bytes = body_bytes, .type = (bt_frame_type)type};
    h.counter = bt_bytes_read_u64(&r);
    h.transfer.request.hi = bt_bytes_read_u64(&r);
    h.transfer.request.lo = bt_bytes_read_u64(&r);
    h.transfer.attempt = bt_bytes_read_u32(&r);
    h.sum = bt_bytes_read_u32(&r);
    bt_bytes_read_copy(&r, h.tag, sizeof h.tag);
    if (type == 0 || type >= BT_FRAME_TYPE_END) {
        return bt_error_set(err, BT_EPROTOCOL, "unknown frame type %u", type);
    }
    if (body_bytes < types[type].body_min || body_bytes > types[type].body_max) {
        return bt_error_set(err, BT_EPROTOCOL, "a %s frame with a body of %u bytes",
                            types[type].name, body_bytes);
    }
    if (zero16 != 0) {
        return bt_error_set(err, BT_EPROTOCOL, "a %s frame with reserved bits set",
                            types[type].name);
    }
    *header = h;
    return BT_OK;
}

static void read_hello(bt_bytes_reader *r, bt_frame_hello *hello)
{
    hello->magic = bt_bytes_read_u32(r);
    hello->version = bt_bytes_read_u32(r);
    hello->incarnation = bt_bytes_read_u64(r);
    hello->expected = bt_bytes_read_u64(r);
    hello->n_blocks = bt_bytes_read_u32(r);
    hello->block_tokens = bt_bytes_read_u32(r);
    hello->n_layers = bt_bytes_read_u32(r);
    hello->n_kv_heads = bt_bytes_read_u32(r);
    hello->head_dim = bt_bytes_read_u32(r);
    hello->kv_format = bt_bytes_read_u32(r);
    hello->layer_bytes = bt_bytes_read_u32(r);
    hello->lease_ms = bt_bytes_read_u32(r);
    hello->auth = bt_bytes_read_u32(r);
    bt_bytes_read_copy(r, hello->numerics_id, sizeof hello->numerics_id);
    bt_bytes_read_copy(r, hello->nonce, sizeof hello->nonce);
}

static bool read_challenge(bt_bytes_reader *r, bt_frame *frame)
{
    frame->u.challenge.auth = bt_bytes_read_u32(r);
    const uint32_t zero = bt_bytes_read_u32(r);
    frame->u.challenge.incarnation = bt_bytes_read_u64(r);
    bt_bytes_read_copy(r, frame->u.challenge.nonce, sizeof frame->u.challenge.nonce);
    return zero == 0 && (frame->u.challenge.auth == BT_KV_AUTH_FRAMES ||
                         frame->u.challenge.auth == BT_KV_AUTH_FULL);
}

static void read_rect(bt_bytes_reader *r, bt_plan_rect *rect)
{
    rect->block_idx = bt_bytes_read_u32(r);
    rect->n_blocks = bt_bytes_read_u32(r);
    rect->layer = bt_bytes_read_u32(r);
    rect->n_layers = bt_bytes_read_u32(r);
}

/* A status that a peer may send: a failure that we know, or BT_OK in an END. */
static bool read_end(bt_bytes_reader *r, bt_frame *frame)
{
    const int32_t status = (int32_t)bt_bytes_read_u32(r);
    frame->u.end.status = (bt_status)status;
    frame->u.end.text_bytes = (uint32_t)bt_bytes_left(r);
    frame->u.end.text = (const char *)bt_bytes_read_span(r, frame->u.end.text_bytes);
    if (status == BT_OK) {
        return frame->type == BT_FRAME_END;
    }
    return status < 0 && strcmp(bt_status_name((bt_status)status), "?") != 0;
}

static bool read_pull(bt_bytes_reader *r, bt_frame *frame)
{
    frame->u.pull.deadline_ms = bt_bytes_read_u32(r);
    frame->u.pull.n_wanted = (uint32_t)(bt_bytes_left(r) / 16);
    frame->u.pull.wanted = NULL;
    frame->u.pull.wire = bt_bytes_read_span(r, 16 * (size_t)frame->u.pull.n_wanted);
    return true; /* what is left over is seen at the end */
}

static bool read_offer(bt_bytes_reader *r, bt_frame *frame)
{
    frame->u.offer.n_tokens = bt_bytes_read_u32(r);
    frame->u.offer.n_blocks = bt_bytes_read_u32(r);
    frame->u.offer.first = bt_bytes_read_u32(r);
    frame->u.offer.n_ids = bt_bytes_read_u32(r);
    frame->u.offer.ids = NULL;
    frame->u.offer.wire = bt_bytes_read_span(r, 4 * (size_t)frame->u.offer.n_ids);
    return frame->u.offer.n_ids <= BT_FRAME_IDS_MAX;
}

static bool read_announce(bt_bytes_reader *r, bt_frame *frame)
{
    read_rect(r, &frame->u.announce.rect);
    const uint64_t n = bt_plan_rect_parts(&frame->u.announce.rect);
    frame->u.announce.sums = NULL;
    if (n == 0 || n > BT_FRAME_SUMS_MAX) {
        return false;
    }
    frame->u.announce.wire = bt_bytes_read_span(r, 4 * (size_t)n);
    return true;
}

static bool read_complete(bt_bytes_reader *r, bt_frame *frame)
{
    const uint32_t ends = bt_bytes_read_u32(r);
    frame->u.complete.ends = ends != 0;
    frame->u.complete.blob_bytes = (uint32_t)bt_bytes_left(r);
    frame->u.complete.blob = bt_bytes_read_span(r, frame->u.complete.blob_bytes);
    return ends <= 1;
}

static bool read_data(bt_bytes_reader *r, bt_frame *frame)
{
    frame->u.data.op = bt_bytes_read_u32(r);
    frame->u.data.bytes = bt_bytes_read_u32(r);
    frame->u.data.offset = bt_bytes_read_u64(r);
    bt_bytes_read_copy(r, frame->u.data.tag, sizeof frame->u.data.tag);
    return frame->u.data.bytes > 0 && frame->u.data.bytes <= BT_FRAME_DATA_BYTES_MAX;
}

static bool read_body(bt_bytes_reader *r, bt_frame *frame)
{
    switch (frame->type) {
    case BT_FRAME_HELLO:
    case BT_FRAME_WELCOME:
        read_hello(r, &frame->u.hello);
        return true;
    case BT_FRAME_CHALLENGE:
        return read_challenge(r, frame);
    case BT_FRAME_REFUSE:
    case BT_FRAME_REVOKE:
    case BT_FRAME_END:
        return read_end(r, frame);
    case BT_FRAME_PULL:
        return read_pull(r, frame);
    case BT_FRAME_OFFER:
        return read_offer(r, frame);
    case BT_FRAME_ANNOUNCE:
        return read_announce(r, frame);
    case BT_FRAME_READ:
        frame->u.read.op = bt_bytes_read_u32(r);
        read_rect(r, &frame->u.read.rect);
        return true;
    case BT_FRAME_DATA:
        return read_data(r, frame);
    case BT_FRAME_COMPLETE:
        return read_complete(r, frame);
    case BT_FRAME_PROOF:
    case BT_FRAME_RENEW:
        return true;
    case BT_FRAME_TYPE_END:
        break;
    }
    return false;
}

bt_status bt_frame_decode_body(const bt_frame_header *header, const uint8_t *wire, bt_frame *frame,
                               bt_error *err)
{
    const uint8_t *body = wire + BT_FRAME_HEADER_BYTES;
    if (frame_sum(wire, body, header->body_bytes) != header->sum) {
        return bt_error_set(err, BT_EPROTOCOL, "a %s frame with a wrong checksum",
                            bt_frame_type_name(header->type));
    }
    bt_bytes_reader r;
    bt_bytes_reader_init(&r, body, header->body_bytes);
    bt_frame f = {.type = header->type, .transfer = header->transfer};
    if (!read_body(&r, &f) || !bt_bytes_reader_done(&r)) {
        return bt_error_set(err, BT_EPROTOCOL, "a malformed %s frame of %u bytes",
                            bt_frame_type_name(header->type), header->body_bytes);
    }
    *frame = f;
    return BT_OK;
}

/* ---- terms ---- */

void bt_frame_hello_set(bt_frame_hello *hello, const bt_kv_terms *terms, uint64_t incarnation,
                        uint32_t n_blocks)
{
    *hello = (bt_frame_hello){
        .magic = BT_FRAME_MAGIC,
        .version = BT_FRAME_VERSION,
        .incarnation = incarnation,
        .n_blocks = n_blocks,
        .block_tokens = BT_KV_BLOCK_TOKENS,
        .n_layers = terms->layout.n_layers,
        .n_kv_heads = terms->layout.n_kv_heads,
        .head_dim = terms->layout.head_dim,
        .kv_format = (uint32_t)terms->layout.format,
        .layer_bytes = terms->layout.layer_bytes,
    };
    memcpy(hello->numerics_id, terms->numerics_id, sizeof hello->numerics_id);
}

bt_status bt_frame_hello_check_version(const bt_frame_hello *peer, bt_error *err)
{
    if (peer->magic != BT_FRAME_MAGIC) {
        return bt_error_set(err, BT_EPROTOCOL, "the peer does not speak Baton's KV protocol");
    }
    if (peer->version != BT_FRAME_VERSION) {
        return bt_error_set(err, BT_EMISMATCH,
                            "KV protocol version %u at the peer, %d here. Run the same release "
                            "of baton on both workers.",
                            peer->version, BT_FRAME_VERSION);
    }
    return BT_OK;
}

bt_status bt_frame_hello_check(const bt_frame_hello *peer, const bt_kv_terms *terms, bt_error *err)
{
    const bt_kv_layout *own = &terms->layout;
    const bt_status status = bt_frame_hello_check_version(peer, err);
    if (status != BT_OK) {
        return status;
    }
    if (peer->block_tokens != BT_KV_BLOCK_TOKENS || peer->n_layers != own->n_layers ||
        peer->n_kv_heads != own->n_kv_heads || peer->head_dim != own->head_dim ||
        peer->kv_format != (uint32_t)own->format || peer->layer_bytes != own->layer_bytes) {
        return bt_error_set(err, BT_EMISMATCH,
                            "KV blocks differ: %u layers x %u heads x %u, format %u at the peer; "
                            "%u x %u x %u, format %u here. Use the same model and KV format.",
                            peer->n_layers, peer->n_kv_heads, peer->head_dim, peer->kv_format,
                            own->n_layers, own->n_kv_heads, own->head_dim, (unsigned)own->format);
    }
    if (!terms->allow_mixed_numerics &&
        memcmp(peer->numerics_id, terms->numerics_id, sizeof peer->numerics_id) != 0) {
        return bt_error_set(err, BT_EMISMATCH,
                            "numerics ids differ (another kernel path or model file). Pin one "
                            "path with --kernels, or allow it with --allow-mixed-numerics.");
    }
    return BT_OK;
}
