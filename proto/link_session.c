/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's session with one router:
 *
 *            dial()          challenge, welcome               lost, silent, overflow
 *   WAITING --------> DIALING ----------------> UP -------------------------------.
 *      ^                 | lost, refused        | runs, events, snapshots         |
 *      |  redial timer   v                      v                                 v
 *      '--------------------------------------- on_done <-------------- call cancelled
 *
 * 1. A stream (`attach`) lives as long as gRPC's call, a session as long as the link: a call that
 *    is ending after destroy finds attach->session NULL.
 * 2. What a router misses is never tokens: when its outbox is full the session ends, which the
 *    router sees as a lost worker. Block events and load give way before, at half of it.
 * 3. Snapshot: the mirror's slots are walked with a cursor while events go on. A block that is
 *    stored or evicted meanwhile has its own event, in the same stream after what the walk had
 *    said of it, so the router ends with the right set wherever the cursor was. When an event
 *    is left out the walk begins anew.
 * 4. Sends start in flush(), on the load timer and when a message has left. */
#include "proto/link_worker_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "proto/link_wire_int.h"

enum {
    UNREACHED_MS = 5000, /* without a connection for so long: said once */
    LOAD_GAP_MS = 10,    /* between two reports that a change caused */
    REDIAL_MIN_MS = 100,
    REDIAL_JITTER_MS = 400,
    REFUSED_MIN_MS = 500,
    OUTBOX_BYTES = 8 * 1024 * 1024,
};

/* ---- sending ---- */

static bool is_half_full(const bt_link_session *s)
{
    return s->outbox.n_bytes > s->outbox.max_bytes / 2;
}

static void send_next(bt_link_session *s)
{
    if (s->attach != NULL && !s->cut) {
        (void)bt_link_outbox_send(&s->outbox, s->attach->call);
    }
}

/* Ends the stream; what follows is done when on_done comes. */
void bt_link_session_cut(bt_link_session *s, const char *reason)
{
    if (s->attach == NULL || s->cut) {
        return;
    }
    s->cut = true;
    snprintf(s->reason, sizeof s->reason, "%s", reason);
    bt_rpc_call_cancel(s->attach->call);
}

void bt_link_session_need_room(bt_link_session *s, bool added)
{
    if (!added) {
        s->link->stats.outbox_overflows++;
        bt_link_session_cut(s, "the router does not read what this worker sends");
    }
}

static bool put_blocks(bt_link_session *s, bt_link_blocks_kind kind, const bt_block_hash *ids,
                       size_t n)
{
    if (!bt_link_put_blocks(&s->outbox, s->blocks_number + 1, kind, ids, n)) {
        return false;
    }
    s->blocks_number++;
    return true;
}

static void put_snapshot_part(bt_link_session *s)
{
    const bt_link_mirror *m = &s->link->mirror;
    bt_block_hash ids[BT_LINK_BLOCKS_PER_EVENT];
    size_t n = 0;
    uint32_t slot = s->snapshot_slot;
    for (; slot < m->capacity && n < BT_LINK_BLOCKS_PER_EVENT; slot++) {
        if (m->used[slot]) {
            ids[n++] = m->ids[slot];
        }
    }
    if (n > 0 && !put_blocks(s, BT_LINK_BLOCKS_STORED, ids, n)) {
        return;
    }
    s->snapshot_slot = slot;
    s->snapshot_running = slot < m->capacity;
}

static void push_snapshot(bt_link_session *s)
{
    if (s->state != BT_LINK_SESSION_UP || s->cut) {
        return;
    }
    if (s->snapshot_wanted && s->outbox.n_bytes <= s->outbox.max_bytes / 4) {
        if (!put_blocks(s, BT_LINK_BLOCKS_RESET, NULL, 0)) {
            return;
        }
        s->link->stats.snapshots++;
        s->snapshot_wanted = false;
        s->snapshot_running = true;
        s->snapshot_slot = 0;
    }
    while (s->snapshot_running && s->outbox.n_bytes <= s->outbox.max_bytes / 4) {
        const uint32_t before = s->snapshot_slot;
        put_snapshot_part(s);
        if (s->snapshot_slot == before) {
            return;
        }
    }
}

static void put_load(bt_link_session *s, int64_t now_ns)
{
    if (!is_half_full(s) && bt_link_put_load(&s->outbox, &s->link->load)) {
        s->load_sent_ns = now_ns;
        s->load_changed = false;
        s->told_draining = s->link->load.draining;
    }
}

/* ---- receiving ---- */

static void refuse_run(bt_link_session *s, bt_request_id id, uint32_t attempt, bt_status status,
                       const char *text)
{
    s->link->stats.runs_refused++;
    bt_link_finished finished = {
        .id = id, .attempt = attempt, .reason = BT_FINISH_ERROR, .status = status};
    (void)bt_error_set(&finished.error, status, "%s", text);
    bt_link_session_need_room(s, bt_link_put_finished(&s->outbox, &finished));
    send_next(s);
}

static bool take_run(bt_link_session *s, const Baton__Worker__V1__Run *in)
{
    bt_link_worker *link = s->link;
    bt_link_run request;
    bt_sampling sampling;
    bt_request_id id;
    uint32_t attempt;
    if (!bt_link_get_id(in->id, &id, &attempt)) {
        return false;
    }
    const bt_link_open_run *open = bt_link_runs_find(&link->runs, id, attempt);
    if (open != NULL && open->router != s->idx) {
        refuse_run(s, id, attempt, BT_EEXISTS, "this attempt runs here for another router");
        return true;
    }
    if (open != NULL) {
        link->stats.runs_duplicate++;
        return true;
    }
    if (!bt_link_get_run(in, &request, &sampling)) {
        refuse_run(s, id, attempt, BT_EPROTOCOL, "the router sent a run that makes no sense");
        return true;
    }
    if (!bt_link_runs_open(&link->runs, id, attempt, s->idx)) {
        refuse_run(s, id, attempt, BT_EEXHAUSTED, "this worker has as many runs as it can hold");
        return true;
    }
    link->stats.runs++;
    link->callbacks->on_run(&request, link->ctx);
    return true;
}

/* The open run of this session that a command names. */
static bool has_run(bt_link_session *s, bt_request_id id, uint32_t attempt)
{
    const bt_link_open_run *r = bt_link_runs_find(&s->link->runs, id, attempt);
    return r != NULL && r->router == s->idx;
}

static bool take_cancel(bt_link_session *s, const Baton__Worker__V1__Cancel *in)
{
    bt_link_worker *link = s->link;
    bt_request_id id;
    uint32_t attempt;
    if (!bt_link_get_id(in->id, &id, &attempt)) {
        return false;
    }
    if (has_run(s, id, attempt)) {
        link->callbacks->on_cancel(id, attempt, link->ctx);
    } else {
        link->stats.cancels_unknown++;
    }
    return true;
}

/* Runs that are over are no longer there to be parked: FINISHED is on its way, or told. */
static bool take_park(bt_link_session *s, const Baton__Worker__V1__Park *in)
{
    bt_link_worker *link = s->link;
    bt_request_id id;
    uint32_t attempt;
    if (!bt_link_get_id(in->id, &id, &attempt)) {
        return false;
    }
    if (has_run(s, id, attempt) && link->callbacks->on_park != NULL) {
        link->callbacks->on_park(id, attempt, in->next_attempt, link->ctx);
    }
    return true;
}

static bool take_resume(bt_link_session *s, const Baton__Worker__V1__Resume *in)
{
    bt_link_worker *link = s->link;
    bt_request_id id;
    uint32_t attempt;
    if (!bt_link_get_id(in->id, &id, &attempt)) {
        return false;
    }
    if (has_run(s, id, attempt) && link->callbacks->on_resume != NULL) {
        link->callbacks->on_resume(id, attempt, link->ctx);
    }
    return true;
}

static bool take_drain(bt_link_session *s)
{
    bt_link_worker *link = s->link;
    bt_log(BT_INFO, "drain asked for: router=%s", s->router_name);
    if (link->callbacks->on_drain != NULL) {
        link->callbacks->on_drain(link->ctx);
    }
    return true;
}

static void take_explain(bt_link_session *s, const Baton__Worker__V1__Explain *in)
{
    bt_link_timeline timelines[BT_LINK_TIMELINES_MAX];
    const size_t n = s->link->callbacks->on_explain != NULL
                         ? s->link->callbacks->on_explain(in->request, timelines, s->link->ctx)
                         : 0;
    /* Without room the router waits in vain, for a second. */
    (void)bt_link_put_explained(&s->outbox, in->number, timelines, n);
}

/* The router is to know the cluster key; then it is told that we do. */
static bool take_challenge(bt_link_session *s, const Baton__Worker__V1__Challenge *in)
{
    const bt_link_worker *link = s->link;
    bt_proof_terms terms = {
        .version = BT_LINK_PROTOCOL_VERSION,
        .name = link->hello.kv.name,
        .incarnation = link->hello.kv.incarnation,
    };
    memcpy(terms.worker_nonce, s->nonce, sizeof terms.worker_nonce);
    uint8_t proof[BT_PROOF_BYTES];
    if (s->state != BT_LINK_SESSION_DIALING || s->proved ||
        !bt_link_get_challenge(in, terms.router_nonce, proof)) {
        return false;
    }
    if (!bt_proof_check(&link->cluster_key, BT_PROOF_ROUTER, &terms, proof)) {
        bt_link_session_cut(s,
                            "the router has another cluster key. Give both the same cluster key");
        return true;
    }
    s->proved = true;
    bt_proof_make(&link->cluster_key, BT_PROOF_WORKER, &terms, proof);
    return bt_link_put_proof(&s->outbox, proof);
}

static bool take_welcome(bt_link_session *s, const Baton__Worker__V1__Welcome *in)
{
    if (s->state != BT_LINK_SESSION_DIALING || !s->proved ||
        in->protocol_version != BT_LINK_PROTOCOL_VERSION ||
        !bt_link_get_name(in->router_name, s->router_name, sizeof s->router_name)) {
        return false;
    }
    s->silence_ns =
        (int64_t)(in->silence_ms > 0 ? in->silence_ms : BT_LINK_SILENCE_MS) * BT_LINK_NS_PER_MS;
    s->state = BT_LINK_SESSION_UP;
    s->told_unreached = false;
    s->refusal[0] = '\0';
    s->blocks_number = 0;
    s->snapshot_wanted = true;
    s->snapshot_running = false;
    s->lets_go = false;
    s->link->stats.sessions++;
    s->link->stats.routers_up++;
    bt_log(BT_INFO, "router attached: router=%s address=%s", s->router_name, s->address);
    put_load(s, bt_clock_now_ns());
    push_snapshot(s);
    if (s->link->callbacks->on_router_up != NULL) {
        s->link->callbacks->on_router_up(s->idx, s->link->ctx);
    }
    return true;
}

static bool take_fetch(bt_link_session *s, const Baton__Worker__V1__Fetch *in)
{
    bt_link_fetch fetch;
    bt_block_hash ids[BT_LINK_FETCH_BLOCKS_MAX];
    if (!bt_link_get_fetch(in, &fetch, ids)) {
        return false;
    }
    if (s->link->callbacks->on_fetch != NULL) {
        s->link->callbacks->on_fetch(s->idx, &fetch, s->link->ctx);
    }
    return true;
}

static void take_leave(bt_link_session *s)
{
    s->lets_go = true;
    if (s->link->callbacks->on_leave != NULL) {
        s->link->callbacks->on_leave(s->link->ctx);
    }
}

static bool take_command(bt_link_session *s, const Baton__Worker__V1__Command *command)
{
    if (command->command_case == BATON__WORKER__V1__COMMAND__COMMAND_CHALLENGE) {
        return take_challenge(s, command->challenge);
    }
    if (command->command_case == BATON__WORKER__V1__COMMAND__COMMAND_WELCOME) {
        return take_welcome(s, command->welcome);
    }
    if (s->state != BT_LINK_SESSION_UP) {
        return false;
    }
    switch (command->command_case) {
    case BATON__WORKER__V1__COMMAND__COMMAND_RUN:
        return take_run(s, command->run);
    case BATON__WORKER__V1__COMMAND__COMMAND_CANCEL:
        return take_cancel(s, command->cancel);
    case BATON__WORKER__V1__COMMAND__COMMAND_PING:
        (void)bt_link_put_pong(&s->outbox, command->ping->number);
        return true;
    case BATON__WORKER__V1__COMMAND__COMMAND_EXPLAIN:
        take_explain(s, command->explain);
        return true;
    case BATON__WORKER__V1__COMMAND__COMMAND_DRAIN:
        return take_drain(s);
    case BATON__WORKER__V1__COMMAND__COMMAND_PARK:
        return take_park(s, command->park);
    case BATON__WORKER__V1__COMMAND__COMMAND_RESUME:
        return take_resume(s, command->resume);
    case BATON__WORKER__V1__COMMAND__COMMAND_FETCH:
        return take_fetch(s, command->fetch);
    case BATON__WORKER__V1__COMMAND__COMMAND_LEAVE:
        take_leave(s);
        return true;
    case BATON__WORKER__V1__COMMAND__COMMAND_SEND_SNAPSHOT:
        s->snapshot_wanted = true;
        return true;
    default:
        return true; /* of a newer router of the same version: an addition */
    }
}

static void on_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    bt_link_session *s = ((bt_link_attach *)ctx)->session;
    if (s == NULL || end) {
        return;
    }
    bt_link_worker *link = s->link;
    s->heard_ns = bt_clock_now_ns();
    const Baton__Worker__V1__ToWorker *message =
        baton__worker__v1__to_worker__unpack(&link->arena.allocator, len, data);
    bool right = message != NULL;
    for (size_t i = 0; right && i < message->n_commands && !s->cut && !link->closing; i++) {
        right = take_command(s, message->commands[i]);
    }
    bt_link_arena_reset(&link->arena);
    if (!right) {
        bt_link_session_cut(s, "the router sent something that makes no sense");
        return;
    }
    push_snapshot(s);
    send_next(s);
    bt_rpc_call_recv(call);
}

static void on_sent(bt_rpc_call *call, void *ctx)
{
    (void)call;
    bt_link_session *s = ((bt_link_attach *)ctx)->session;
    if (s == NULL) {
        return;
    }
    if (s->state == BT_LINK_SESSION_DIALING && s->greeted_ns == 0) {
        s->greeted_ns = bt_clock_now_ns();
    }
    push_snapshot(s);
    send_next(s);
    if (s->link->closing) {
        bt_link_worker_close_when_drained(s->link);
    }
}

/* ---- life of a session ---- */

static void cancel_runs_of(bt_link_worker *link, uint32_t router)
{
    for (uint32_t i = 0; i < link->runs.max; i++) {
        const bt_link_open_run r = link->runs.items[i];
        if (r.open && r.router == router) {
            bt_link_runs_close(&link->runs, &link->runs.items[i]);
            link->callbacks->on_cancel(r.id, r.attempt, link->ctx);
        }
    }
}

static void tell_lost(bt_link_session *s, const char *reason)
{
    bt_link_worker *link = s->link;
    link->stats.routers_up--;
    bt_log(BT_WARN, "router lost: router=%s address=%s reason=\"%s\"", s->router_name, s->address,
           reason);
    cancel_runs_of(link, s->idx);
    if (link->callbacks->on_router_down != NULL) {
        link->callbacks->on_router_down(s->idx, reason, link->ctx);
    }
}

static void tell_refused(bt_link_session *s, const char *reason)
{
    s->link->stats.refusals++;
    if (strncmp(s->refusal, reason, sizeof s->refusal - 1) != 0) {
        snprintf(s->refusal, sizeof s->refusal, "%s", reason);
        bt_log(BT_ERROR, "cannot attach to router: address=%s reason=\"%s\"", s->address, reason);
    }
}

static uint64_t redial_ms(uint64_t least_ms)
{
    uint32_t random = 0;
    bt_hash_random(&random, sizeof random);
    return least_ms + random % REDIAL_JITTER_MS;
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    bt_link_attach *a = ctx;
    bt_link_session *s = a->session;
    free(a);
    if (s == NULL) {
        return;
    }
    const bt_link_session_state was = s->state;
    const bool was_cut = s->cut; /* by this side */
    char reason[BT_LINK_TEXT_BYTES];
    snprintf(reason, sizeof reason, "%s",
             s->cut               ? s->reason
             : message[0] != '\0' ? message
             : code == BT_RPC_OK  ? "the router closed the session"
                                  : "connection lost");
    if (!s->cut && (code == BT_RPC_UNIMPLEMENTED || code == BT_RPC_UNAUTHENTICATED)) {
        snprintf(reason, sizeof reason, "%.120s. Workers go to a router's --attach address",
                 message); /* this is the clients' */
    }
    s->state = BT_LINK_SESSION_WAITING;
    s->attach = NULL;
    s->cut = false;
    bt_link_outbox_clear(&s->outbox);
    if (s->link->closing) {
        bt_link_worker_close_when_drained(s->link);
        return;
    }
    const bool refused =
        was == BT_LINK_SESSION_DIALING &&
        (was_cut || (code != BT_RPC_OK && code != BT_RPC_UNAVAILABLE && code != BT_RPC_CANCELLED));
    bt_timer_start(s->redial, redial_ms(refused ? REFUSED_MIN_MS : REDIAL_MIN_MS), 0);
    if (refused) {
        tell_refused(s, reason);
    } else if (was == BT_LINK_SESSION_UP) {
        tell_lost(s, reason);
    }
}

static const bt_rpc_callbacks stream_callbacks = {on_message, on_sent, on_done};

void bt_link_session_dial(void *ctx)
{
    bt_link_session *s = ctx;
    bt_link_worker *link = s->link;
    BT_ASSERT(s->state == BT_LINK_SESSION_WAITING && s->attach == NULL);
    bt_link_attach *a = calloc(1, sizeof *a);
    if (a == NULL) {
        bt_timer_start(s->redial, redial_ms(REDIAL_MIN_MS), 0);
        return;
    }
    a->session = s;
    const bt_rpc_start start = {.path = BT_LINK_PATH, .wait_for_ready = true};
    if (bt_rpc_channel_start(s->channel, &start, &stream_callbacks, a, &a->call) != BT_OK) {
        free(a);
        bt_timer_start(s->redial, redial_ms(REDIAL_MIN_MS), 0);
        return;
    }
    s->attach = a;
    s->state = BT_LINK_SESSION_DIALING;
    s->proved = false;
    s->greeted_ns = 0;
    s->heard_ns = bt_clock_now_ns();
    bt_hash_random(s->nonce, sizeof s->nonce);
    bt_rpc_call_recv(a->call);
    if (!bt_link_put_hello(&s->outbox, &link->hello, s->nonce)) {
        bt_link_session_cut(s, "out of memory");
    }
    send_next(s);
}

void bt_link_session_tick(bt_link_session *s, int64_t now_ns)
{
    /* While the connection is not there yet, gRPC tries on; what is connected has to answer. */
    if (s->state == BT_LINK_SESSION_DIALING && s->greeted_ns != 0 &&
        now_ns - s->greeted_ns > s->link->answer_ns) {
        bt_link_session_cut(s, "what listens there does not answer as a router");
    }
    if (s->state == BT_LINK_SESSION_DIALING && s->greeted_ns == 0 && !s->told_unreached &&
        now_ns - s->heard_ns > (int64_t)UNREACHED_MS * BT_LINK_NS_PER_MS) {
        s->told_unreached = true;
        bt_log(BT_WARN,
               "router not reached yet: address=%s advice=\"it may be down, or its TLS not as "
               "this worker expects\"",
               s->address);
    }
    if (s->state != BT_LINK_SESSION_UP || s->cut) {
        return;
    }
    if (now_ns - s->heard_ns > s->silence_ns) {
        char reason[BT_LINK_TEXT_BYTES];
        snprintf(reason, sizeof reason, "silent for %" PRId64 " ms",
                 (now_ns - s->heard_ns) / BT_LINK_NS_PER_MS);
        bt_link_session_cut(s, reason);
        return;
    }
    put_load(s, now_ns);
    push_snapshot(s);
    send_next(s);
}

bt_status bt_link_session_init(bt_link_session *s, bt_link_worker *link, uint32_t idx,
                               const bt_link_worker_options *options)
{
    s->link = link;
    s->idx = idx;
    s->outbox.max_bytes = options->outbox_bytes_max > 0 ? options->outbox_bytes_max : OUTBOX_BYTES;
    snprintf(s->address, sizeof s->address, "%s", options->routers[idx]);
    const bt_status status = bt_timer_create(link->loop, bt_link_session_dial, s, &s->redial);
    if (status != BT_OK) {
        return status;
    }
    const bt_rpc_channel_options channel = {
        .address = s->address, .message_bytes_max = BT_LINK_RECV_BYTES_MAX, .tls = options->tls};
    return bt_rpc_channel_create(link->rpc, &channel, &s->channel);
}

void bt_link_session_deinit(bt_link_session *s)
{
    if (s->attach != NULL) {
        s->attach->session = NULL;
    }
    bt_rpc_channel_destroy(s->channel);
    bt_timer_destroy(s->redial);
    bt_link_outbox_clear(&s->outbox);
}

/* ---- for the link ---- */

bool bt_link_session_is_open(const bt_link_session *s)
{
    return s->state == BT_LINK_SESSION_UP && !s->cut && !s->link->closing;
}

void bt_link_session_want_snapshot(bt_link_session *s)
{
    s->snapshot_wanted = true;
    s->snapshot_running = false;
}

void bt_link_session_put_blocks(bt_link_session *s, bt_link_blocks_kind kind,
                                const bt_block_hash *ids, size_t n)
{
    for (size_t at = 0; at < n; at += BT_LINK_BLOCKS_PER_EVENT) {
        const size_t part = bt_size_min(n - at, BT_LINK_BLOCKS_PER_EVENT);
        if (is_half_full(s) || !put_blocks(s, kind, ids + at, part)) {
            s->link->stats.blocks_dropped += n - at;
            bt_link_session_want_snapshot(s);
            return;
        }
    }
}

void bt_link_session_flush(bt_link_session *s, int64_t now_ns)
{
    /* That it takes nothing new must be told before the first run that it refuses. */
    const bool is_urgent = s->link->load.draining != s->told_draining;
    if (s->load_changed &&
        (is_urgent || now_ns - s->load_sent_ns >= (int64_t)LOAD_GAP_MS * BT_LINK_NS_PER_MS)) {
        put_load(s, now_ns);
    }
    push_snapshot(s);
    send_next(s);
}

void bt_link_session_stop(bt_link_session *s)
{
    bt_timer_stop(s->redial);
    s->snapshot_wanted = false;
    s->snapshot_running = false;
    if (s->state == BT_LINK_SESSION_DIALING) {
        bt_link_session_cut(s, "shut down");
    }
}

bool bt_link_session_close(bt_link_session *s)
{
    if (s->attach == NULL) {
        return false;
    }
    if (s->state == BT_LINK_SESSION_UP && s->outbox.first == NULL && !s->cut) {
        bt_rpc_call_close_send(s->attach->call);
    }
    return true;
}
