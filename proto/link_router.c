/* SPDX-License-Identifier: Apache-2.0 */
/* The router's end. One peer for each attached stream:
 *
 *   attach      hello, version         proof, name, on_worker_up
 *   ------> NEW -------------> PROVING ---------------------------> UP -----------------.
 *            |  (challenge sent) |  refused: finish(text)           | silent, malformed, |
 *            v                   v  no proof in silence_ms          v drop, stop, lost   v
 *           ENDING -----------------------------------------------> on_done: on_worker_down
 *
 * 1. A peer lives exactly as long as its call; on_worker_down is told from on_done, if on_worker_up
 *    was accepted.
 * 2. Commands are sent as soon as the stream can take them; what waits meanwhile merges into the
 *    next message.
 * 3. A new stream with the name of an attached worker: if the old one has been silent for a while
 *    it is a leftover of a lost connection and gives way; otherwise two workers have one name,
 *    and the new one is refused.
 * 4. Who has proved nothing gets a challenge, a refusal or an end, and time and room that are
 *    short: UNPROVED_MAX streams, of which the oldest gives way. A worker needs one round trip, so
 *    a flood of idle streams does not keep it out. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "proto/link_int.h"

enum {
    WORKERS_MAX = 1024,
    TEXT_BYTES = 256,
    OUTBOX_BYTES = 32 * 1024 * 1024,
    REFUSAL_LOG_MS = 60 * 1000,
    UNPROVED_MAX = 16,  /* each may bring one message of the server's largest size */
    LEFTOVER_MS = 1000, /* silent for so long: give way to a worker of the same name */
};

typedef enum peer_state {
    NEW,     /* waits for the hello */
    PROVING, /* waits for the proof */
    UP,
    ENDING,
} peer_state;

struct bt_link_peer {
    bt_link_router *link;
    bt_link_peer *prev;
    bt_link_peer *next;
    bt_rpc_call *call;
    peer_state state;
    bool told_up; /* on_worker_down is owed */
    bt_link_hello hello;
    bt_link_outbox outbox;
    int64_t began_ns;
    bt_proof_terms terms; /* PROVING */
    int64_t heard_ns;
    int64_t ending_ns;      /* when its end was decided; 0 where it was cut at once */
    uint64_t blocks_number; /* last one that came */
    bool snapshot_asked;    /* events are skipped until it comes */
    char reason[TEXT_BYTES];
    char address[BT_LINK_ADDRESS_MAX];
    void *ctx;
};

struct bt_link_router {
    char name[BT_LINK_NAME_MAX];
    bt_cluster_key cluster_key;
    uint32_t workers_max;
    uint32_t ping_ms;
    uint32_t silence_ms;
    size_t outbox_bytes_max;
    const bt_link_router_callbacks *callbacks;
    void *ctx;

    bt_timer *tick;
    bt_link_arena arena;
    bt_token_result results[BT_LINK_TOKENS_PER_EVENT]; /* of one event */
    bt_link_peer *peers;
    uint32_t n_peers;
    uint64_t ping_number;
    char refusal[TEXT_BYTES]; /* last one logged, and when */
    int64_t refusal_ns;
    bool stopping;
    bt_link_router_stats stats;
};

/* ---- ending ---- */

/* Ends the stream with a text for the worker, after the send in flight. A stream that takes neither
 * within silence_ms is cut by the tick. */
static void end_peer(bt_link_peer *peer, bt_rpc_code code, const char *reason)
{
    if (peer->state == ENDING) {
        return;
    }
    peer->state = ENDING;
    peer->ending_ns = bt_clock_now_ns();
    snprintf(peer->reason, sizeof peer->reason, "%s", reason);
    bt_rpc_call_finish(peer->call, code, reason, NULL, 0);
}

/* A refused worker asks again each second: the same refusal is logged once a minute. */
static void log_refusal(const bt_link_peer *peer, const char *reason)
{
    bt_link_router *link = peer->link;
    const int64_t now_ns = bt_clock_now_ns();
    if (strncmp(link->refusal, reason, sizeof link->refusal - 1) == 0 &&
        now_ns - link->refusal_ns < (int64_t)REFUSAL_LOG_MS * BT_LINK_NS_PER_MS) {
        return;
    }
    snprintf(link->refusal, sizeof link->refusal, "%s", reason);
    link->refusal_ns = now_ns;
    bt_log(BT_WARN, "worker refused: worker=%s address=%s reason=\"%s\"", peer->hello.kv.name,
           peer->address, reason);
}

static void refuse_peer(bt_link_peer *peer, const char *reason)
{
    peer->link->stats.refusals++;
    log_refusal(peer, reason);
    end_peer(peer, BT_RPC_FAILED_PRECONDITION, reason);
}

static void end_malformed(bt_link_peer *peer)
{
    peer->link->stats.malformed++;
    end_peer(peer, BT_RPC_INVALID_ARGUMENT, "the worker sent something that makes no sense");
}

/* ---- hello, proof ---- */

static bool is_unproved(const bt_link_peer *peer)
{
    return peer->state == NEW || peer->state == PROVING;
}

static bt_link_peer *find_namesake(const bt_link_peer *peer)
{
    for (bt_link_peer *p = peer->link->peers; p != NULL; p = p->next) {
        if (p != peer && p->state == UP && strcmp(p->hello.kv.name, peer->hello.kv.name) == 0) {
            return p;
        }
    }
    return NULL;
}

/* Does the new worker, who has proved to be one, fit in? If not, err says why and what would help.
 */
static bt_status check_worker(bt_link_peer *peer, bt_error *err)
{
    const bt_link_router *link = peer->link;
    const bt_link_hello *hello = &peer->hello;
    if (link->stats.workers_up >= link->workers_max) {
        return bt_error_set(err, BT_EEXHAUSTED, "router '%s' has as many workers as it can hold",
                            link->name);
    }
    bt_link_peer *namesake = find_namesake(peer);
    if (namesake == NULL) {
        return BT_OK;
    }
    const int64_t silent_ns = bt_clock_now_ns() - namesake->heard_ns;
    if (namesake->hello.kv.incarnation == hello->kv.incarnation ||
        silent_ns > (int64_t)LEFTOVER_MS * BT_LINK_NS_PER_MS) {
        end_peer(namesake, BT_RPC_ABORTED, "replaced by a newer connection of the same worker");
        return BT_OK;
    }
    return bt_error_set(err, BT_EEXISTS,
                        "a worker named '%s' is attached to router '%s' already. Give each worker "
                        "a name of its own",
                        hello->kv.name, link->name);
}

static bool take_hello(bt_link_peer *peer, const Baton__Worker__V1__Hello *in)
{
    bt_link_router *link = peer->link;
    bt_proof_terms *terms = &peer->terms;
    if (!bt_link_get_hello(in, &peer->hello, terms->worker_nonce)) {
        return false;
    }
    if (peer->hello.protocol_version != BT_LINK_PROTOCOL_VERSION) {
        char text[TEXT_BYTES];
        snprintf(text, sizeof text,
                 "worker '%s' speaks protocol version %u, router '%s' version %d. Run the same "
                 "version of baton on both",
                 peer->hello.kv.name, peer->hello.protocol_version, link->name,
                 BT_LINK_PROTOCOL_VERSION);
        refuse_peer(peer, text);
        return true;
    }
    terms->version = BT_LINK_PROTOCOL_VERSION;
    terms->name = peer->hello.kv.name;
    terms->incarnation = peer->hello.kv.incarnation;
    bt_hash_random(terms->router_nonce, sizeof terms->router_nonce);
    uint8_t proof[BT_PROOF_BYTES];
    bt_proof_make(&link->cluster_key, BT_PROOF_ROUTER, terms, proof);
    peer->state = PROVING;
    return bt_link_put_challenge(&peer->outbox, terms->router_nonce, proof);
}

static bool take_proof(bt_link_peer *peer, const Baton__Worker__V1__Proof *in)
{
    bt_link_router *link = peer->link;
    uint8_t proof[BT_PROOF_BYTES];
    if (!bt_link_get_proof(in, proof)) {
        return false;
    }
    bt_error err = {{0}};
    bt_status status = BT_OK;
    if (!bt_proof_check(&link->cluster_key, BT_PROOF_WORKER, &peer->terms, proof)) {
        status = bt_error_set(&err, BT_EMISMATCH,
                              "worker '%s' has another cluster key than router '%s'. Give both the "
                              "same cluster key",
                              peer->hello.kv.name, link->name);
    }
    if (status == BT_OK) {
        status = check_worker(peer, &err);
    }
    if (status == BT_OK) {
        /* Queued first, so that a run given from inside on_worker_up comes after it. */
        peer->state = UP;
        status = bt_link_put_welcome(&peer->outbox, link->name, link->ping_ms, link->silence_ms)
                     ? link->callbacks->on_worker_up(peer, &peer->hello, link->ctx, &err)
                     : BT_ENOMEM;
    }
    if (status != BT_OK) {
        bt_link_outbox_clear(&peer->outbox);
        refuse_peer(peer, err.text[0] != '\0' ? err.text : bt_status_text(status));
        return true;
    }
    peer->told_up = true;
    link->stats.attaches++;
    link->stats.workers_up++;
    return true;
}

/* ---- events ---- */

static bool take_tokens(bt_link_peer *peer, const Baton__Worker__V1__Tokens *in)
{
    bt_link_router *link = peer->link;
    bt_link_tokens tokens;
    if (!bt_link_get_tokens(in, &tokens)) {
        return false;
    }
    bt_link_get_results(in, link->results);
    tokens.results = link->results;
    link->callbacks->on_tokens(peer, &tokens, link->ctx);
    return true;
}

static bool take_finished(bt_link_peer *peer, const Baton__Worker__V1__Finished *in)
{
    bt_link_finished finished;
    if (!bt_link_get_finished(in, &finished)) {
        return false;
    }
    peer->link->callbacks->on_finished(peer, &finished, peer->link->ctx);
    return true;
}

static bool take_fetched(bt_link_peer *peer, const Baton__Worker__V1__Fetched *in)
{
    bt_link_fetched fetched;
    if (!bt_link_get_fetched(in, &fetched)) {
        return false;
    }
    if (peer->link->callbacks->on_fetched != NULL) {
        peer->link->callbacks->on_fetched(peer, &fetched, peer->link->ctx);
    }
    return true;
}

static bool take_parked(bt_link_peer *peer, const Baton__Worker__V1__Parked *in)
{
    bt_link_parked parked;
    if (!bt_link_get_parked(in, &parked)) {
        return false;
    }
    if (peer->link->callbacks->on_parked != NULL) {
        peer->link->callbacks->on_parked(peer, &parked, peer->link->ctx);
    }
    return true;
}

static void tell_blocks(bt_link_peer *peer, bt_link_blocks_kind kind, ProtobufCBinaryData in)
{
    bt_block_hash ids[BT_LINK_BLOCKS_PER_EVENT];
    const size_t n = in.len / BT_BLOCK_HASH_BYTES;
    for (size_t i = 0; i < n; i++) {
        ids[i] = bt_hash128_from_bytes(in.data + i * BT_BLOCK_HASH_BYTES);
    }
    peer->link->callbacks->on_blocks(peer, kind, ids, n, peer->link->ctx);
}

static bool take_blocks(bt_link_peer *peer, const Baton__Worker__V1__Blocks *in)
{
    const bool is_reset = in->kind == BATON__WORKER__V1__BLOCKS_KIND__BLOCKS_KIND_RESET;
    if (in->kind < BATON__WORKER__V1__BLOCKS_KIND__BLOCKS_KIND_RESET ||
        in->kind > BATON__WORKER__V1__BLOCKS_KIND__BLOCKS_KIND_EVICTED ||
        in->ids.len % BT_BLOCK_HASH_BYTES != 0 ||
        in->ids.len / BT_BLOCK_HASH_BYTES > BT_LINK_BLOCKS_PER_EVENT ||
        (is_reset && in->ids.len != 0)) {
        return false;
    }
    const bool in_order = in->number == peer->blocks_number + 1;
    peer->blocks_number = in->number;
    if (is_reset) {
        peer->snapshot_asked = false;
    } else if (peer->snapshot_asked) {
        return true;
    } else if (!in_order) {
        peer->link->stats.block_gaps++;
        peer->snapshot_asked = true;
        return bt_link_put_send_snapshot(&peer->outbox);
    }
    tell_blocks(peer, (bt_link_blocks_kind)in->kind, in->ids);
    return true;
}

static bool take_explained(bt_link_peer *peer, const Baton__Worker__V1__Explained *in)
{
    bt_link_timeline timelines[BT_LINK_TIMELINES_MAX];
    if (!bt_link_get_explained(in, timelines)) {
        return false;
    }
    if (peer->link->callbacks->on_explained != NULL) {
        peer->link->callbacks->on_explained(peer, in->number, timelines, in->n_timelines,
                                            peer->link->ctx);
    }
    return true;
}

static bool take_event(bt_link_peer *peer, const Baton__Worker__V1__Event *event)
{
    if ((event->event_case == BATON__WORKER__V1__EVENT__EVENT_HELLO) != (peer->state == NEW) ||
        (event->event_case == BATON__WORKER__V1__EVENT__EVENT_PROOF) != (peer->state == PROVING)) {
        return false;
    }
    switch (event->event_case) {
    case BATON__WORKER__V1__EVENT__EVENT_HELLO:
        return take_hello(peer, event->hello);
    case BATON__WORKER__V1__EVENT__EVENT_PROOF:
        return take_proof(peer, event->proof);
    case BATON__WORKER__V1__EVENT__EVENT_LOAD: {
        bt_link_load load;
        bt_link_get_load(event->load, &load);
        peer->link->callbacks->on_load(peer, &load, peer->link->ctx);
        return true;
    }
    case BATON__WORKER__V1__EVENT__EVENT_TOKENS:
        return take_tokens(peer, event->tokens);
    case BATON__WORKER__V1__EVENT__EVENT_FINISHED:
        return take_finished(peer, event->finished);
    case BATON__WORKER__V1__EVENT__EVENT_BLOCKS:
        return take_blocks(peer, event->blocks);
    case BATON__WORKER__V1__EVENT__EVENT_FETCHED:
        return take_fetched(peer, event->fetched);
    case BATON__WORKER__V1__EVENT__EVENT_PARKED:
        return take_parked(peer, event->parked);
    case BATON__WORKER__V1__EVENT__EVENT_EXPLAINED:
        return take_explained(peer, event->explained);
    default:
        return true; /* a pong, or an addition of a newer worker: a sign of life */
    }
}

static void on_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    bt_link_peer *peer = ctx;
    bt_link_router *link = peer->link;
    if (peer->state == ENDING) {
        return;
    }
    if (end && peer->state == PROVING) { /* it may have found our proof wrong */
        refuse_peer(peer, "it left without a proof. Give it the same cluster key");
        return;
    }
    if (end) {
        end_peer(peer, BT_RPC_OK, "the worker left");
        return;
    }
    peer->heard_ns = bt_clock_now_ns();
    const Baton__Worker__V1__FromWorker *message =
        baton__worker__v1__from_worker__unpack(&link->arena.allocator, len, data);
    bool right = message != NULL;
    for (size_t i = 0; right && i < message->n_events && peer->state != ENDING; i++) {
        right = take_event(peer, message->events[i]);
    }
    bt_link_arena_reset(&link->arena);
    if (!right) {
        end_malformed(peer);
    }
    if (peer->state != ENDING) {
        (void)bt_link_outbox_send(&peer->outbox, call);
        bt_rpc_call_recv(call);
    }
}

static void on_sent(bt_rpc_call *call, void *ctx)
{
    bt_link_peer *peer = ctx;
    if (peer->state != ENDING) {
        (void)bt_link_outbox_send(&peer->outbox, call);
    }
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    (void)code;
    (void)message;
    bt_link_peer *peer = ctx;
    bt_link_router *link = peer->link;
    peer->state = ENDING;
    if (peer->told_up) {
        link->stats.workers_up--;
        link->callbacks->on_worker_down(
            peer, peer->reason[0] != '\0' ? peer->reason : "connection lost", link->ctx);
    }
    if (peer->prev != NULL) {
        peer->prev->next = peer->next;
    } else {
        link->peers = peer->next;
    }
    if (peer->next != NULL) {
        peer->next->prev = peer->prev;
    }
    link->n_peers--;
    bt_link_outbox_clear(&peer->outbox);
    free(peer);
}

static const bt_rpc_callbacks stream_callbacks = {on_message, on_sent, on_done};

/* Room for one more stream that has proved nothing: the oldest of too many gives way. */
static void make_room(bt_link_router *link)
{
    uint32_t n = 0;
    bt_link_peer *oldest = NULL;
    for (bt_link_peer *p = link->peers; p != NULL; p = p->next) {
        if (is_unproved(p)) {
            n++;
            oldest = p; /* new ones are put in front */
        }
    }
    if (n >= UNPROVED_MAX) {
        link->stats.refusals++;
        oldest->state = ENDING;
        bt_rpc_call_cancel(oldest->call);
    }
}

static void on_attach(bt_rpc_call *call, void *ctx)
{
    bt_link_router *link = ctx;
    if (link->stopping) {
        bt_rpc_call_finish(call, BT_RPC_UNAVAILABLE, "this router is shutting down", NULL, 0);
        return;
    }
    make_room(link);
    const bool has_room = link->n_peers < link->workers_max + 2 * UNPROVED_MAX;
    bt_link_peer *peer = has_room ? calloc(1, sizeof *peer) : NULL;
    if (peer == NULL) {
        link->stats.refusals++;
        bt_rpc_call_finish(call, BT_RPC_RESOURCE_EXHAUSTED,
                           "this router has as many connections as it can hold", NULL, 0);
        return;
    }
    peer->link = link;
    peer->call = call;
    peer->outbox.max_bytes = link->outbox_bytes_max;
    peer->heard_ns = bt_clock_now_ns();
    peer->began_ns = peer->heard_ns;
    snprintf(peer->address, sizeof peer->address, "%s", bt_rpc_call_peer(call));
    peer->next = link->peers;
    if (link->peers != NULL) {
        link->peers->prev = peer;
    }
    link->peers = peer;
    link->n_peers++;
    bt_rpc_call_accept(call, &stream_callbacks, peer);
    bt_rpc_call_recv(call);
}

/* Each ping_ms: pings, and an end for who is silent. */
static void on_tick(void *ctx)
{
    bt_link_router *link = ctx;
    const int64_t now_ns = bt_clock_now_ns();
    link->ping_number++;
    /* Nothing here calls back: on_worker_down comes from on_done. */
    for (bt_link_peer *p = link->peers; p != NULL; p = p->next) {
        if (p->state == ENDING) {
            if (now_ns - p->ending_ns > (int64_t)link->silence_ms * BT_LINK_NS_PER_MS) {
                bt_rpc_call_cancel(p->call);
            }
            continue;
        }
        /* What an unproved peer says does not lengthen its time. */
        const int64_t silent_ns = now_ns - (is_unproved(p) ? p->began_ns : p->heard_ns);
        if (silent_ns > (int64_t)link->silence_ms * BT_LINK_NS_PER_MS) {
            link->stats.silences++;
            snprintf(p->reason, sizeof p->reason, "silent for %" PRId64 " ms",
                     silent_ns / BT_LINK_NS_PER_MS);
            p->state = ENDING;
            bt_rpc_call_cancel(p->call);
            continue;
        }
        if (p->state == UP) {
            (void)bt_link_put_ping(&p->outbox, link->ping_number);
            (void)bt_link_outbox_send(&p->outbox, p->call);
        }
    }
}

/* ---- public ---- */

bt_status bt_link_router_create(bt_loop *loop, bt_rpc_server *server,
                                const bt_link_router_options *options, bt_link_router **out,
                                bt_error *err)
{
    bt_link_router *link = calloc(1, sizeof *link);
    if (link == NULL) {
        return BT_ENOMEM;
    }
    snprintf(link->name, sizeof link->name, "%s", options->name != NULL ? options->name : "");
    link->cluster_key = options->cluster_key;
    link->workers_max = options->workers_max > 0 ? options->workers_max : WORKERS_MAX;
    link->ping_ms = options->ping_ms > 0 ? options->ping_ms : BT_LINK_PING_MS;
    link->silence_ms = options->silence_ms > 0 ? options->silence_ms : BT_LINK_SILENCE_MS;
    link->outbox_bytes_max =
        options->outbox_bytes_max > 0 ? options->outbox_bytes_max : OUTBOX_BYTES;
    link->callbacks = options->callbacks;
    link->ctx = options->ctx;
    bt_link_arena_init(&link->arena);
    bt_status status = BT_OK;
    if (link->silence_ms < 2 * link->ping_ms) {
        status = bt_error_set(err, BT_EINVAL,
                              "a silence of %u ms is too short for a ping each %u ms. It has to be "
                              "at least twice as long",
                              link->silence_ms, link->ping_ms);
    }
    if (status == BT_OK) {
        status = bt_timer_create(loop, on_tick, link, &link->tick);
    }
    if (status == BT_OK) {
        status = bt_rpc_server_handle(server, BT_LINK_PATH, on_attach, link);
    }
    if (status != BT_OK) {
        bt_timer_destroy(link->tick);
        free(link);
        return status;
    }
    bt_timer_start(link->tick, link->ping_ms, link->ping_ms);
    *out = link;
    return BT_OK;
}

bt_status bt_link_router_run(bt_link_peer *worker, const bt_link_run *run)
{
    if (worker->state != UP) {
        return BT_EPEER;
    }
    const bt_status status = bt_link_put_run(&worker->outbox, run);
    if (status == BT_OK) {
        (void)bt_link_outbox_send(&worker->outbox, worker->call);
    }
    return status;
}

/* A small command that always has room. Out of memory: without the session its runs are
 * cancelled too. */
static void send_added(bt_link_peer *worker, bool added)
{
    if (!added) {
        end_peer(worker, BT_RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    (void)bt_link_outbox_send(&worker->outbox, worker->call);
}

/* A command that is left out when there is no room. */
static bt_status send_if_added(bt_link_peer *worker, bool added)
{
    if (!added) {
        return BT_AGAIN;
    }
    (void)bt_link_outbox_send(&worker->outbox, worker->call);
    return BT_OK;
}

void bt_link_router_cancel(bt_link_peer *worker, bt_request_id id, uint32_t attempt)
{
    if (worker->state == UP) {
        send_added(worker, bt_link_put_cancel(&worker->outbox, id, attempt));
    }
}

bt_status bt_link_router_park(bt_link_peer *worker, bt_request_id id, uint32_t attempt,
                              uint32_t next_attempt)
{
    if (worker->state != UP) {
        return BT_EPEER;
    }
    return send_if_added(worker, bt_link_put_park(&worker->outbox, id, attempt, next_attempt));
}

void bt_link_router_resume(bt_link_peer *worker, bt_request_id id, uint32_t attempt)
{
    if (worker->state == UP) {
        send_added(worker, bt_link_put_resume(&worker->outbox, id, attempt));
    }
}

void bt_link_router_drain(bt_link_peer *worker)
{
    if (worker->state == UP) {
        send_added(worker, bt_link_put_drain(&worker->outbox));
    }
}

bt_status bt_link_router_fetch(bt_link_peer *worker, const bt_link_fetch *fetch)
{
    if (worker->state != UP) {
        return BT_EPEER;
    }
    return send_if_added(worker, bt_link_put_fetch(&worker->outbox, fetch));
}

void bt_link_router_leave(bt_link_peer *worker)
{
    if (worker->state == UP) {
        send_added(worker, bt_link_put_leave(&worker->outbox));
    }
}

bt_status bt_link_router_explain(bt_link_peer *worker, uint64_t number, const char *request)
{
    if (worker->state != UP) {
        return BT_EPEER;
    }
    return send_if_added(worker, bt_link_put_explain(&worker->outbox, number, request));
}

void bt_link_router_drop(bt_link_peer *worker, const char *reason)
{
    end_peer(worker, BT_RPC_ABORTED, reason);
}

void bt_link_peer_set_ctx(bt_link_peer *worker, void *ctx)
{
    worker->ctx = ctx;
}

void *bt_link_peer_ctx(const bt_link_peer *worker)
{
    return worker->ctx;
}

const bt_link_hello *bt_link_peer_hello(const bt_link_peer *worker)
{
    return &worker->hello;
}

const char *bt_link_peer_address(const bt_link_peer *worker)
{
    return worker->address;
}

bt_link_router_stats bt_link_router_get_stats(const bt_link_router *link)
{
    return link->stats;
}

void bt_link_router_stop(bt_link_router *link, const char *reason)
{
    link->stopping = true;
    for (bt_link_peer *p = link->peers; p != NULL; p = p->next) {
        end_peer(p, BT_RPC_UNAVAILABLE, reason);
    }
}

void bt_link_router_destroy(bt_link_router *link)
{
    if (link == NULL) {
        return;
    }
    BT_ASSERT(link->peers == NULL);
    bt_timer_destroy(link->tick);
    bt_link_arena_reset(&link->arena);
    bt_hash_wipe(&link->cluster_key, sizeof link->cluster_key);
    free(link);
}
