/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's end, over its sessions (link_session.c): which router an event goes to, the mirror
 * of its blocks, and the end of all. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/hash.h"
#include "proto/link_worker_int.h"

enum {
    RUNS_MAX = 4096,
    LOAD_MS = 200,
    ANSWER_MS = 3000,
    MIRROR_SLACK = 64, /* a step may store before it evicts */
};

/* ---- create ---- */

static bt_status check_options(const bt_link_worker_options *o, bt_error *err)
{
    if (o->n_routers == 0 || o->n_routers > BT_LINK_ROUTERS_MAX) {
        return bt_error_set(err, BT_EINVAL, "a worker needs 1 to %d routers, not %u",
                            BT_LINK_ROUTERS_MAX, o->n_routers);
    }
    if (o->hello->kv.name[0] == '\0') {
        return bt_error_set(err, BT_EINVAL, "a worker needs a name");
    }
    for (uint32_t i = 0; i < o->n_routers; i++) {
        const size_t len = strlen(o->routers[i]);
        if (len == 0 || len >= BT_LINK_ADDRESS_MAX) {
            return bt_error_set(err, BT_EINVAL,
                                "'%.64s' is no router address. Give host:port, as in "
                                "127.0.0.1:7701",
                                o->routers[i]);
        }
    }
    return BT_OK;
}

static bt_status init_tables(bt_link_worker *link, const bt_link_worker_options *options)
{
    link->sessions = calloc(options->n_routers, sizeof *link->sessions);
    bt_status status = link->sessions != NULL ? BT_OK : BT_ENOMEM;
    if (status == BT_OK) {
        status =
            bt_link_runs_init(&link->runs, options->runs_max > 0 ? options->runs_max : RUNS_MAX);
    }
    if (status == BT_OK) {
        status = bt_link_mirror_init(&link->mirror, options->hello->pool_blocks + MIRROR_SLACK);
    }
    return status;
}

static void on_tick(void *ctx)
{
    bt_link_worker *link = ctx;
    const int64_t now_ns = bt_clock_now_ns();
    for (uint32_t i = 0; i < link->n_sessions; i++) {
        bt_link_session_tick(&link->sessions[i], now_ns);
    }
}

static void on_grace(void *ctx);

bt_status bt_link_worker_create(bt_loop *loop, bt_rpc *rpc, const bt_link_worker_options *options,
                                bt_link_worker **out, bt_error *err)
{
    bt_status status = check_options(options, err);
    if (status != BT_OK) {
        return status;
    }
    bt_link_worker *link = calloc(1, sizeof *link);
    if (link == NULL) {
        return BT_ENOMEM;
    }
    link->loop = loop;
    link->rpc = rpc;
    link->hello = *options->hello;
    link->hello.protocol_version = BT_LINK_PROTOCOL_VERSION;
    link->callbacks = options->callbacks;
    link->ctx = options->ctx;
    link->load_ms = options->load_ms > 0 ? options->load_ms : LOAD_MS;
    link->cluster_key = options->cluster_key;
    link->answer_ns =
        (int64_t)(options->answer_ms > 0 ? options->answer_ms : ANSWER_MS) * BT_LINK_NS_PER_MS;
    bt_link_arena_init(&link->arena);
    status = init_tables(link, options);
    if (status == BT_OK) {
        status = bt_timer_create(loop, on_tick, link, &link->tick);
    }
    if (status == BT_OK) {
        status = bt_timer_create(loop, on_grace, link, &link->grace);
    }
    for (uint32_t i = 0; status == BT_OK && i < options->n_routers; i++) {
        link->n_sessions++;
        status = bt_link_session_init(&link->sessions[i], link, i, options);
    }
    if (status != BT_OK) {
        bt_link_worker_destroy(link);
        return bt_error_set(err, status, "cannot set up the links to routers: %s",
                            bt_status_text(status));
    }
    for (uint32_t i = 0; i < link->n_sessions; i++) {
        bt_link_session_dial(&link->sessions[i]);
    }
    bt_timer_start(link->tick, link->load_ms, link->load_ms);
    *out = link;
    return BT_OK;
}

/* ---- events ---- */

/* The session that an event of this run goes to; NULL: nobody waits for it. */
static bt_link_session *find_session(bt_link_worker *link, const bt_link_open_run *r)
{
    bt_link_session *s = r != NULL ? &link->sessions[r->router] : NULL;
    if (s == NULL || !bt_link_session_is_open(s)) {
        link->stats.events_late++;
        return NULL;
    }
    return s;
}

void bt_link_worker_tokens(bt_link_worker *link, const bt_link_tokens *tokens)
{
    bt_link_session *s =
        find_session(link, bt_link_runs_find(&link->runs, tokens->id, tokens->attempt));
    if (s != NULL) {
        bt_link_session_need_room(s, bt_link_put_tokens(&s->outbox, tokens));
    }
}

void bt_link_worker_finished(bt_link_worker *link, const bt_link_finished *finished)
{
    bt_link_open_run *r = bt_link_runs_find(&link->runs, finished->id, finished->attempt);
    bt_link_session *s = find_session(link, r);
    if (r != NULL) {
        bt_link_runs_close(&link->runs, r);
    }
    if (s != NULL) {
        bt_link_session_need_room(s, bt_link_put_finished(&s->outbox, finished));
    }
}

void bt_link_worker_parked(bt_link_worker *link, const bt_link_parked *parked)
{
    bt_link_session *s =
        find_session(link, bt_link_runs_find(&link->runs, parked->id, parked->attempt));
    if (s != NULL) {
        bt_link_session_need_room(s, bt_link_put_parked(&s->outbox, parked));
    }
}

void bt_link_worker_fetched(bt_link_worker *link, uint32_t router, const bt_link_fetched *fetched)
{
    BT_ASSERT(router < link->n_sessions);
    bt_link_session *s = &link->sessions[router];
    if (bt_link_session_is_open(s)) {
        bt_link_session_need_room(s, bt_link_put_fetched(&s->outbox, fetched));
    }
}

bool bt_link_worker_is_kept(const bt_link_worker *link)
{
    for (uint32_t i = 0; i < link->n_sessions; i++) {
        if (bt_link_session_is_open(&link->sessions[i]) && !link->sessions[i].lets_go) {
            return true;
        }
    }
    return false;
}

void bt_link_worker_blocks(bt_link_worker *link, bt_link_blocks_kind kind, const bt_block_hash *ids,
                           size_t n)
{
    if (kind == BT_LINK_BLOCKS_RESET) {
        bt_link_mirror_clear(&link->mirror);
    }
    for (size_t i = 0; i < n; i++) {
        if (kind == BT_LINK_BLOCKS_EVICTED) {
            bt_link_mirror_evict(&link->mirror, &ids[i]);
        } else {
            /* More blocks than the pool has: a bug of the owner of this link. */
            const bool stored = bt_link_mirror_store(&link->mirror, &ids[i]);
            BT_ASSERT(stored);
        }
    }
    for (uint32_t i = 0; i < link->n_sessions; i++) {
        bt_link_session *s = &link->sessions[i];
        if (!bt_link_session_is_open(s)) {
            continue;
        }
        if (kind == BT_LINK_BLOCKS_RESET) {
            bt_link_session_want_snapshot(s);
        } else if (!s->snapshot_wanted) {
            bt_link_session_put_blocks(s, kind, ids, n);
        }
    }
}

void bt_link_worker_load(bt_link_worker *link, const bt_link_load *load)
{
    link->load = *load;
    for (uint32_t i = 0; i < link->n_sessions; i++) {
        link->sessions[i].load_changed = true;
    }
}

void bt_link_worker_flush(bt_link_worker *link)
{
    const int64_t now_ns = bt_clock_now_ns();
    for (uint32_t i = 0; i < link->n_sessions; i++) {
        if (bt_link_session_is_open(&link->sessions[i])) {
            bt_link_session_flush(&link->sessions[i], now_ns);
        }
    }
}

bt_link_worker_stats bt_link_worker_get_stats(const bt_link_worker *link)
{
    bt_link_worker_stats stats = link->stats;
    stats.runs_open = link->runs.n_open;
    return stats;
}

/* ---- end ---- */

static void tell_closed(bt_link_worker *link)
{
    bt_timer_stop(link->grace);
    const bt_loop_fn closed = link->closed;
    link->closed = NULL;
    closed(link->closed_ctx);
}

/* Streams whose outbox is empty are half-closed. */
void bt_link_worker_close_when_drained(bt_link_worker *link)
{
    uint32_t n_open = 0;
    for (uint32_t i = 0; i < link->n_sessions; i++) {
        n_open += bt_link_session_close(&link->sessions[i]);
    }
    if (n_open == 0 && link->close_begun && link->closed != NULL) {
        tell_closed(link);
    }
}

/* Runs twice: at once after shutdown, so that done never comes from inside of it, and when
 * the grace is over. */
static void on_grace(void *ctx)
{
    bt_link_worker *link = ctx;
    if (!link->close_begun) {
        link->close_begun = true;
        bt_timer_start(link->grace, link->grace_ms, 0);
        bt_link_worker_close_when_drained(link);
        return;
    }
    for (uint32_t i = 0; i < link->n_sessions; i++) {
        bt_link_session_cut(&link->sessions[i], "shut down");
    }
}

void bt_link_worker_shutdown(bt_link_worker *link, uint64_t grace_ms, bt_loop_fn done, void *ctx)
{
    BT_ASSERT(!link->closing);
    bt_link_worker_flush(link);
    link->closing = true;
    link->closed = done;
    link->closed_ctx = ctx;
    bt_timer_stop(link->tick);
    for (uint32_t i = 0; i < link->n_sessions; i++) {
        bt_link_session_stop(&link->sessions[i]);
    }
    link->grace_ms = grace_ms;
    bt_timer_start(link->grace, 0, 0);
}

void bt_link_worker_destroy(bt_link_worker *link)
{
    if (link == NULL) {
        return;
    }
    for (uint32_t i = 0; i < link->n_sessions; i++) {
        bt_link_session_deinit(&link->sessions[i]);
    }
    bt_timer_destroy(link->tick);
    bt_timer_destroy(link->grace);
    bt_link_arena_reset(&link->arena);
    bt_link_mirror_deinit(&link->mirror);
    bt_link_runs_deinit(&link->runs);
    bt_hash_wipe(&link->cluster_key, sizeof link->cluster_key);
    free(link->sessions);
    free(link);
}
