/* SPDX-License-Identifier: Apache-2.0 */
/* frame.h - control frames of a KV transfer on the wire.
 *
 *   header (56 bytes)                                     body (0..16384 bytes)
 *   +------------+------+-------+---------+----------+---------+----------+-----+
 *   | body_bytes | type | zero  | counter | transfer | attempt | checksum | tag | ...
 *   | u32        | u16  | u16   | u64     | 2 x u64  | u32     | u32      | 16B |
 *   +------------+------+-------+---------+----------+---------+----------+-----+
 *
 * All integers are little-endian. `counter` counts the frames of one direction from 0, so
 * that a lost, doubled or replayed frame is seen. `checksum` is the CRC32C of header and
 * body without itself and the tag. `tag` authenticates the frame: session.h sets and checks
 * it. A DATA frame is followed by `bytes` bytes of parts (none over a two-sided transport),
 * which are not part of the body.
 *
 * Threading: any thread (no state).
 * Memory:    none; decoded frames borrow from the buffer that they were decoded from.
 */
#ifndef BT_KVTRANSFER_FRAME_H
#define BT_KVTRANSFER_FRAME_H

#include "kvtransfer/plan.h"
#include "kvtransfer/transfer.h"

enum {
    BT_FRAME_MAGIC = 0x314B5442, /* "BTK1" as bytes */
    BT_FRAME_VERSION = 2,
    BT_FRAME_HEADER_BYTES = 56,
    BT_FRAME_BODY_BYTES_MAX = 16384,
    BT_FRAME_BYTES_MAX = BT_FRAME_HEADER_BYTES + BT_FRAME_BODY_BYTES_MAX,
    BT_FRAME_TAG_BYTES = 16,
    BT_FRAME_NONCE_BYTES = 16,
    BT_FRAME_IDS_MAX = 2048,               /* block ids in one OFFER */
    BT_FRAME_SUMS_MAX = 2048,              /* checksums in one ANNOUNCE */
    BT_FRAME_DATA_BYTES_MAX = 1024 * 1024, /* parts after one DATA */
};

typedef enum bt_frame_type {
    BT_FRAME_HELLO = 1, /* sink: who I am, whom I expect, my terms, my nonce */
    BT_FRAME_CHALLENGE, /* source: my nonce; its tag proves that I have the key */
    BT_FRAME_PROOF,     /* sink: its tag proves that I have it too */
    BT_FRAME_WELCOME,   /* source: my terms; over shm the pool's memfd comes along */
    BT_FRAME_REFUSE,    /* source: no, and why; then it closes. Never authenticated */
    BT_FRAME_PULL,      /* sink: I will pull this transfer; may come before its offer */
    BT_FRAME_RENEW,     /* both: alive; renews the leases of this connection's transfers */
    BT_FRAME_OFFER,     /* source: the transfer's size and, one-sided, its block ids */
    BT_FRAME_ANNOUNCE,  /* source: a rectangle of parts is final; their CRC32C */
    BT_FRAME_READ,      /* sink: send me a rectangle of parts (streams) */
    BT_FRAME_DATA,      /* source: a piece of what a READ asked for */
    BT_FRAME_COMPLETE,  /* source: the computation is over; first token */
    BT_FRAME_REVOKE,    /* source: I take my blocks back, stop reading; answered by END */
    BT_FRAME_END,       /* sink: I read no more; BT_OK: I have all that I wanted */
    BT_FRAME_TYPE_END,
} bt_frame_type;

/* "HELLO". "?" for a number that is no type. */
const char *bt_frame_type_name(uint32_t type);

typedef struct bt_frame_header {
    uint32_t body_bytes;
    bt_frame_type type;
    uint64_t counter;
    bt_kv_transfer transfer; /* zero in frames about the connection */
    uint32_t sum;            /* checked with the body */
    uint8_t tag[BT_FRAME_TAG_BYTES];
} bt_frame_header;

/* HELLO and WELCOME. */
typedef struct bt_frame_hello {
    uint32_t magic;
    uint32_t version;
    uint64_t incarnation; /* the sender's */
    uint64_t expected;    /* HELLO: the source's incarnation that the sink means; WELCOME: 0 */
    uint32_t n_blocks;    /* of the sender's pool */
    uint32_t block_tokens, n_layers, n_kv_heads, head_dim, kv_format, layer_bytes;
    uint32_t lease_ms; /* how long silence is borne */
    uint32_t auth;     /* HELLO: bt_kv_auth, the least that the sink wants */
    uint8_t numerics_id[16];
    uint8_t nonce[BT_FRAME_NONCE_BYTES]; /* HELLO: fresh for each connection; WELCOME: zero */
} bt_frame_hello;

typedef struct bt_frame {
    bt_frame_type type;
    bt_kv_transfer transfer;
    union {
        bt_frame_hello hello; /* HELLO, WELCOME */
        struct {
            uint32_t auth;        /* bt_kv_auth that holds */
            uint64_t incarnation; /* the source's */
            uint8_t nonce[BT_FRAME_NONCE_BYTES];
        } challenge;
        struct {
            bt_status status;
            const char *text; /* borrowed, not NUL-terminated */
            uint32_t text_bytes;
        } end; /* REFUSE, REVOKE, END */
        struct {
            uint32_t deadline_ms;     /* left */
            uint32_t n_wanted;        /* 0: what is offered by the transfer's name */
            const bt_hash128 *wanted; /* encode: identities, from a chain's first block on */
            const uint8_t *wire;      /* decode: 16 bytes each */
        } pull;
        struct {
            uint32_t n_tokens, n_blocks; /* of the whole offer */
            uint32_t first, n_ids;       /* which ids are in this frame */
            const bt_block_id *ids;      /* encode: n_ids of them */
            const uint8_t *wire;         /* decode: read with bt_frame_u32() */
        } offer;
        struct {
            bt_plan_rect rect;
            const uint8_t *wire; /* decode: a CRC32C for each part, bt_frame_u32() */
            const uint32_t *sums;
        } announce;
        struct {
            uint32_t op; /* counts the READs of a connection */
            bt_plan_rect rect;
        } read;
        struct {
            uint32_t op;
            uint32_t bytes;                  /* that follow, or that have been moved two-sided */
            uint64_t offset;                 /* of them in the READ's rectangle */
            uint8_t tag[BT_FRAME_TAG_BYTES]; /* of the parts; zero unless BT_KV_AUTH_FULL */
        } data;
        struct {
            bool ends;
            const void *blob;
            uint32_t blob_bytes;
        } complete;
    } u;
} bt_frame;

/* Writes header and body (tag zero) to out. Returns their size; the frame is the caller's
 * own and fits BT_FRAME_BYTES_MAX, which `out` holds. */
size_t bt_frame_encode(const bt_frame *frame, uint64_t counter, uint8_t *out);

/* BT_EPROTOCOL: unknown type, body too long, or a field that must be zero is not. */
BT_MUST_CHECK bt_status bt_frame_decode_header(const uint8_t *wire, bt_frame_header *header,
                                               bt_error *err);

/* `wire` holds the whole frame, whose header was decoded before. BT_EPROTOCOL: wrong checksum,
 * or the body does not fit its type. What the fields mean (sizes of the offer, known op) is for
 * the receiver to check. */
BT_MUST_CHECK bt_status bt_frame_decode_body(const bt_frame_header *header, const uint8_t *wire,
                                             bt_frame *frame, bt_error *err);

/* The i-th number of an array on the wire. */
static inline uint32_t bt_frame_u32(const uint8_t *wire, uint64_t i)
{
    const uint8_t *p = wire + 4 * i;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* BT_EPROTOCOL: another protocol, BT_EMISMATCH: another version of it. */
BT_MUST_CHECK bt_status bt_frame_hello_check_version(const bt_frame_hello *peer, bt_error *err);

/* Fills a HELLO's or WELCOME's terms, and compares those of a peer with ours.
 * BT_EMISMATCH: *err says what differs and how to cure it. BT_EPROTOCOL: another protocol. */
void bt_frame_hello_set(bt_frame_hello *hello, const bt_kv_terms *terms, uint64_t incarnation,
                        uint32_t n_blocks);
BT_MUST_CHECK bt_status bt_frame_hello_check(const bt_frame_hello *peer, const bt_kv_terms *terms,
                                             bt_error *err);

#endif /* BT_KVTRANSFER_FRAME_H */
