/* SPDX-License-Identifier: Apache-2.0 */
/* link_int.h - what both ends of a link share: the outbox, and structs to bytes and back.
 *
 * Threading: loop thread only.
 */
#ifndef BT_PROTO_LINK_INT_H
#define BT_PROTO_LINK_INT_H

#include <protobuf-c/protobuf-c.h>

#include "common/map.h"
#include "proto/link.h"
#include "proto/worker.pb-c.h"

#define BT_LINK_PATH "/baton.worker.v1.Attach/Attach"

enum {
    BT_LINK_MESSAGE_BYTES = 1024 * 1024,       /* a message holds events up to about this */
    BT_LINK_EVENT_BYTES_MAX = 8 * 1024 * 1024, /* one event alone; larger ones are refused */
    BT_LINK_RECV_BYTES_MAX = 16 * 1024 * 1024,
    BT_LINK_BLOCKS_PER_EVENT = 4096,
    BT_LINK_TOKENS_PER_EVENT = 32, /* senders split; a longer event makes no sense */
    BT_LINK_SILENCE_MS = 3000,
    BT_LINK_PING_MS = 500,
    BT_LINK_NS_PER_MS = 1000 * 1000,
};

/* ---- outbox: events that wait for their stream, already encoded, in messages ---- */

typedef struct bt_link_chunk {
    struct bt_link_chunk *next;
    size_t len;
    size_t capacity;
    uint8_t bytes[];
} bt_link_chunk;

typedef struct bt_link_outbox {
    bt_link_chunk *first;
    bt_link_chunk *last;
    bt_link_chunk *spare; /* one emptied chunk, to be filled again */
    size_t n_bytes;
    size_t max_bytes;
} bt_link_outbox;

/* Adds an event (or command); false: no room (never with `force`), or no memory. */
bool bt_link_outbox_add(bt_link_outbox *outbox, const ProtobufCMessage *event, bool force);

/* Starts sending the oldest message if the call can take one; false: nothing was sent. */
bool bt_link_outbox_send(bt_link_outbox *outbox, bt_rpc_call *call);

void bt_link_outbox_clear(bt_link_outbox *outbox);

/* ---- arena: memory of one unpacked message ---- */

typedef struct bt_link_arena {
    ProtobufCAllocator allocator;
    struct bt_link_slab *slabs;
    size_t n_bytes;
} bt_link_arena;

void bt_link_arena_init(bt_link_arena *arena);

/* Everything unpacked with it is gone. */
void bt_link_arena_reset(bt_link_arena *arena);

/* ---- mirror: the blocks that a worker holds, as its routers should see them ---- */

typedef struct bt_link_mirror {
    bt_map128 *slots_by_hash;
    bt_block_hash *ids; /* [capacity] of used slots */
    bool *used;         /* [capacity] */
    uint32_t *free_slots;
    uint32_t n_free;
    uint32_t capacity;
} bt_link_mirror;

/* BT_ENOMEM; deinit is needed then too. */
BT_MUST_CHECK bt_status bt_link_mirror_init(bt_link_mirror *m, uint32_t capacity);
void bt_link_mirror_deinit(bt_link_mirror *m);

/* false: full. Storing what is there, or evicting what is not, changes nothing. */
bool bt_link_mirror_store(bt_link_mirror *m, const bt_block_hash *id);
void bt_link_mirror_evict(bt_link_mirror *m, const bt_block_hash *id);
void bt_link_mirror_clear(bt_link_mirror *m);

/* ---- runs: what a worker was given and has not finished ---- */

typedef struct bt_link_open_run {
    bt_request_id id;
    uint32_t attempt;
    uint32_t router; /* who gave it */
    bool open;       /* else the slot is free */
    uint32_t next_free;
} bt_link_open_run;

typedef struct bt_link_runs {
    bt_link_open_run *items; /* [max] */
    bt_map128 *slots_by_id;
    uint32_t max;
    uint32_t first_free;
    uint32_t n_open;
} bt_link_runs;

/* BT_ENOMEM; deinit is needed then too. */
BT_MUST_CHECK bt_status bt_link_runs_init(bt_link_runs *runs, uint32_t max);
void bt_link_runs_deinit(bt_link_runs *runs);

/* NULL: no such run is open. */
bt_link_open_run *bt_link_runs_find(bt_link_runs *runs, bt_request_id id, uint32_t attempt);

/* false: full. The run must not be open. */
bool bt_link_runs_open(bt_link_runs *runs, bt_request_id id, uint32_t attempt, uint32_t router);
void bt_link_runs_close(bt_link_runs *runs, bt_link_open_run *run);

/* ---- link_events.c and link_commands.c, out: each adds one of them; false as
 * bt_link_outbox_add() ---- */
bool bt_link_put_hello(bt_link_outbox *outbox, const bt_link_hello *hello,
                       const uint8_t nonce[BT_PROOF_NONCE_BYTES]);
bool bt_link_put_proof(bt_link_outbox *outbox, const uint8_t proof[BT_PROOF_BYTES]);
bool bt_link_put_load(bt_link_outbox *outbox, const bt_link_load *load);
bool bt_link_put_tokens(bt_link_outbox *outbox, const bt_link_tokens *tokens);
bool bt_link_put_finished(bt_link_outbox *outbox, const bt_link_finished *finished);
bool bt_link_put_blocks(bt_link_outbox *outbox, uint64_t number, bt_link_blocks_kind kind,
                        const bt_block_hash *ids, size_t n);
bool bt_link_put_parked(bt_link_outbox *outbox, const bt_link_parked *parked);
bool bt_link_put_fetched(bt_link_outbox *outbox, const bt_link_fetched *fetched);
bool bt_link_put_pong(bt_link_outbox *outbox, uint64_t number);
bool bt_link_put_explained(bt_link_outbox *outbox, uint64_t number,
                           const bt_link_timeline *timelines, size_t n);

bool bt_link_put_challenge(bt_link_outbox *outbox, const uint8_t nonce[BT_PROOF_NONCE_BYTES],
                           const uint8_t proof[BT_PROOF_BYTES]);
bool bt_link_put_welcome(bt_link_outbox *outbox, const char *name, uint32_t ping_ms,
                         uint32_t silence_ms);
BT_MUST_CHECK bt_status bt_link_put_run(bt_link_outbox *outbox, const bt_link_run *run);
bool bt_link_put_cancel(bt_link_outbox *outbox, bt_request_id id, uint32_t attempt);
bool bt_link_put_ping(bt_link_outbox *outbox, uint64_t number);
bool bt_link_put_send_snapshot(bt_link_outbox *outbox);
bool bt_link_put_explain(bt_link_outbox *outbox, uint64_t number, const char *request);
bool bt_link_put_park(bt_link_outbox *outbox, bt_request_id id, uint32_t attempt,
                      uint32_t next_attempt);
bool bt_link_put_resume(bt_link_outbox *outbox, bt_request_id id, uint32_t attempt);
bool bt_link_put_drain(bt_link_outbox *outbox);
bool bt_link_put_fetch(bt_link_outbox *outbox, const bt_link_fetch *fetch);
bool bt_link_put_leave(bt_link_outbox *outbox);

/* ---- link_events.c and link_commands.c, in: false: the message makes no sense. Results point
 * into the message. ---- */
/* `nonce` is filled when the version is ours. */
bool bt_link_get_hello(const Baton__Worker__V1__Hello *in, bt_link_hello *out,
                       uint8_t nonce[BT_PROOF_NONCE_BYTES]);
bool bt_link_get_challenge(const Baton__Worker__V1__Challenge *in,
                           uint8_t nonce[BT_PROOF_NONCE_BYTES], uint8_t proof[BT_PROOF_BYTES]);
bool bt_link_get_proof(const Baton__Worker__V1__Proof *in, uint8_t proof[BT_PROOF_BYTES]);
void bt_link_get_load(const Baton__Worker__V1__Load *in, bt_link_load *out);
bool bt_link_get_finished(const Baton__Worker__V1__Finished *in, bt_link_finished *out);
bool bt_link_get_parked(const Baton__Worker__V1__Parked *in, bt_link_parked *out);
bool bt_link_get_fetched(const Baton__Worker__V1__Fetched *in, bt_link_fetched *out);
/* Fills ids[0..n_ids-1], BT_LINK_FETCH_BLOCKS_MAX at most; out->ids points there. */
bool bt_link_get_fetch(const Baton__Worker__V1__Fetch *in, bt_link_fetch *out, bt_block_hash *ids);
bool bt_link_get_id(const Baton__Worker__V1__RequestId *in, bt_request_id *id, uint32_t *attempt);
bool bt_link_get_run(const Baton__Worker__V1__Run *in, bt_link_run *out, bt_sampling *sampling);

/* Fills timelines[0..in->n_timelines-1], BT_LINK_TIMELINES_MAX at most. */
bool bt_link_get_explained(const Baton__Worker__V1__Explained *in, bt_link_timeline *timelines);

/* Number of results, after a check that all lengths agree. */
bool bt_link_get_tokens(const Baton__Worker__V1__Tokens *in, bt_link_tokens *out);

/* Fills results[0..n-1] from a message that bt_link_get_tokens() found right. */
void bt_link_get_results(const Baton__Worker__V1__Tokens *in, bt_token_result *results);

#endif /* BT_PROTO_LINK_INT_H */
