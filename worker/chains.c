/* SPDX-License-Identifier: Apache-2.0 */
/* What is fetched ("sink" and "engine" say who has it):
 *
 *   fetch --open_cached--> LINKING     sink
 *   offered --RESERVE----> RESERVING   sink, engine   as many blocks as the source has
 *   stepped --pull-------> PULLING     sink           its blocks are the sink's to write
 *   done --PUBLISH-------> RETURNING   engine         every part was checked
 *   failed --RELEASE-----> RETURNING   engine
 *   stepped -------------> FREE                       fetched()
 *
 * No room when it was to RESERVE: the sink is cancelled (CANCELLED), and failed() ends it. A
 * failure that comes while the engine is at it waits for the engine (`over`).
 *
 * What is served:
 *
 *   serve --PIN----------> PINNING     engine
 *   stepped --offer------> OFFERED     source         announced and complete at once
 *   released --RELEASE---> RETURNING   engine
 *   stepped -------------> FREE
 *
 * Nothing is found when it was to PIN: the pull is refused. The engine has at most one step of each
 * chain at a time. */
#include "worker/chains.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"

enum {
    UNLINKED_LEASE_MS = 1000, /* of an offer whose puller, which waits for it, went away */
    FETCH_MS_MAX = 60000,
};

static const int64_t MS = 1000000; /* ns */

_Static_assert((int)BT_LINK_FETCH_BLOCKS_MAX == (int)BT_KV_WANTED_MAX, "a fetch fits a pull");

typedef enum state {
    STATE_FREE,
    STATE_LINKING,
    STATE_RESERVING,
    STATE_CANCELLED,
    STATE_PULLING,
    STATE_PINNING,
    STATE_OFFERED,
    STATE_RETURNING,
} state;

typedef struct item {
    state state;
    bool serves;
    bool over; /* RESERVING: the sink has failed it. PINNING: nobody is to get it */
    uint32_t router;
    bt_kv_transfer name;
    int64_t deadline_ns;
    bt_link_fetched result;
    bt_kv_chain chain;
    bt_block_hash identities[BT_KV_WANTED_MAX];
    bt_block_id blocks[BT_KV_WANTED_MAX];
} item;

struct bt_worker_chains {
    bt_worker_chains_options options;
    bt_worker_chains_stats stats;
    bool stopped;
    item items[BT_WORKER_CHAINS_MAX];
};

bt_status bt_worker_chains_create(const bt_worker_chains_options *options, bt_worker_chains **out)
{
    bt_worker_chains *chains = calloc(1, sizeof *chains);
    if (chains == NULL) {
        return BT_ENOMEM;
    }
    chains->options = *options;
    *out = chains;
    return BT_OK;
}

void bt_worker_chains_destroy(bt_worker_chains *chains)
{
    free(chains);
}

/* ---- items ---- */

/* The fetch that the sink has under this name, or what the source has. */
static item *find(bt_worker_chains *chains, bt_kv_transfer name, bool serves)
{
    for (size_t i = 0; i < BT_WORKER_CHAINS_MAX; i++) {
        item *it = &chains->items[i];
        const bool has_it = serves ? it->state == STATE_OFFERED
                                   : it->state >= STATE_LINKING && it->state <= STATE_PULLING;
        if (has_it && !it->over && it->serves == serves && bt_kv_transfer_equal(it->name, name)) {
            return it;
        }
    }
    return NULL;
}

static item *take(bt_worker_chains *chains, bool serves, bt_kv_transfer name,
                  const bt_hash128 *identities, uint32_t n)
{
    item *it = chains->items;
    while (it < chains->items + BT_WORKER_CHAINS_MAX && it->state != STATE_FREE) {
        it++;
    }
    if (it == chains->items + BT_WORKER_CHAINS_MAX) {
        return NULL;
    }
    const uint32_t n_kept = n < chains->options.blocks_max ? n : chains->options.blocks_max;
    it->serves = serves;
    it->over = false;
    it->name = name;
    memcpy(it->identities, identities, n_kept * sizeof *identities);
    it->chain =
        (bt_kv_chain){.identities = it->identities, .n = n_kept, .blocks = it->blocks, .user = it};
    it->result = (bt_link_fetched){.id = name.request, .attempt = name.attempt};
    chains->stats.n_open++;
    return it;
}

static void post(bt_worker_chains *chains, item *it, bt_kv_chain_op op, state next)
{
    it->chain.op = op;
    it->state = next;
    chains->options.post(&it->chain, chains->options.ctx);
}

static void set_failed(item *it, bt_status status, const char *text)
{
    if (it->result.status == BT_OK) {
        it->result.status = bt_error_set(&it->result.error, status, "%s", text);
    }
}

static void end(bt_worker_chains *chains, item *it)
{
    const bt_link_fetched *r = &it->result;
    it->state = STATE_FREE;
    chains->stats.n_open--;
    if (!it->serves) {
        bt_log(BT_INFO,
               "prefix fetched: id=%016" PRIx64 "%016" PRIx64 " status=%s blocks=%" PRIu32
               " skipped=%" PRIu32 " bytes=%" PRIu64 " why=\"%s\"",
               r->id.hi, r->id.lo, bt_status_name(r->status), r->blocks_moved, r->blocks_skipped,
               r->bytes_moved, r->error.text);
        chains->options.fetched(it->router, r, chains->options.ctx);
    } else {
        chains->stats.moved_ns = bt_clock_now_ns();
    }
    chains->options.ended(chains->options.ctx);
}

/* ---- fetching ---- */

void bt_worker_chains_peer(const bt_link_kv_peer *in, bt_kv_peer *out)
{
    *out = (bt_kv_peer){.incarnation = in->incarnation};
    memcpy(out->boot_id, in->boot_id, sizeof out->boot_id);
    snprintf(out->tcp, sizeof out->tcp, "%.*s", (int)sizeof out->tcp - 1, in->kv_tcp);
    snprintf(out->shm, sizeof out->shm, "%.*s", (int)sizeof out->shm - 1, in->kv_unix);
}

void bt_worker_chains_fetch(bt_worker_chains *chains, uint32_t router, const bt_link_fetch *fetch)
{
    const bt_kv_transfer name = {.request = fetch->id, .attempt = fetch->attempt};
    item *it = take(chains, false, name, fetch->ids, fetch->n_ids);
    if (it == NULL) {
        bt_link_fetched refused = {.id = fetch->id, .attempt = fetch->attempt};
        refused.status = bt_error_set(&refused.error, BT_EEXHAUSTED,
                                      "this worker has %d chains of blocks under way already",
                                      BT_WORKER_CHAINS_MAX);
        chains->options.fetched(router, &refused, chains->options.ctx);
        return;
    }
    const uint32_t left_ms =
        fetch->deadline_left_ms < FETCH_MS_MAX ? fetch->deadline_left_ms : FETCH_MS_MAX;
    bt_kv_peer peer;
    bt_worker_chains_peer(&fetch->peer, &peer);
    it->router = router;
    it->deadline_ns = bt_clock_now_ns() + left_ms * MS;
    it->state = STATE_LINKING;
    bt_error err = {{0}};
    const bt_status status = bt_kv_sink_open_cached(
        chains->options.sink, name, &peer, it->deadline_ns, it->identities, it->chain.n, &err);
    if (status != BT_OK) {
        set_failed(it, status == BT_AGAIN ? BT_EEXHAUSTED : status, err.text);
        end(chains, it);
    }
}

bool bt_worker_chains_offered(bt_worker_chains *chains, bt_kv_transfer transfer, uint32_t n_blocks)
{
    item *it = find(chains, transfer, false);
    if (it == NULL) {
        return false;
    }
    if (it->state != STATE_LINKING) {
        return true;
    }
    if (n_blocks > it->chain.n) {
        set_failed(it, BT_EPROTOCOL, "the source offers more blocks than it was asked for");
        it->state = STATE_CANCELLED;
        (void)bt_kv_sink_cancel(chains->options.sink, transfer);
        return true;
    }
    it->chain.n = n_blocks;
    post(chains, it, BT_KV_CHAIN_RESERVE, STATE_RESERVING);
    return true;
}

static void reserved(bt_worker_chains *chains, item *it)
{
    const bool has_blocks = it->chain.status == BT_OK;
    if (it->over) { /* the sink has done with it */
        if (has_blocks) {
            post(chains, it, BT_KV_CHAIN_RELEASE, STATE_RETURNING);
        } else {
            end(chains, it);
        }
        return;
    }
    if (!has_blocks) {
        set_failed(it, BT_EEXHAUSTED, "there are too few free blocks");
        it->state = STATE_CANCELLED;
        (void)bt_kv_sink_cancel(chains->options.sink, it->name); /* NOTFOUND: failed() is coming */
        return;
    }
    it->state = STATE_PULLING;
    bt_error err = {{0}};
    const bt_status status = bt_kv_sink_pull(chains->options.sink, it->name, it->blocks,
                                             it->chain.n_blocks, it->chain.n_held, &err);
    if (status != BT_OK && status != BT_ENOTFOUND) {
        set_failed(it, status, err.text);
        (void)bt_kv_sink_cancel(chains->options.sink, it->name);
    }
}

bool bt_worker_chains_done(bt_worker_chains *chains, const bt_kv_done *done)
{
    item *it = find(chains, done->transfer, false);
    if (it == NULL) {
        return false;
    }
    if (done->ends || it->state != STATE_PULLING) { /* it may say so before anything is pulled */
        return bt_worker_chains_failed(chains, done->transfer, BT_EPROTOCOL,
                                       "the source ended it without its blocks");
    }
    if (done->stats->mixed_numerics) { /* identities name the numerics of their blocks */
        return bt_worker_chains_failed(chains, done->transfer, BT_EMISMATCH,
                                       "the source computes by another numerics id");
    }
    if (it->result.status == BT_OK) {
        it->result.blocks_moved = done->stats->blocks_moved;
        it->result.blocks_skipped = done->stats->blocks_skipped;
        it->result.bytes_moved = done->stats->bytes;
    }
    post(chains, it, BT_KV_CHAIN_PUBLISH, STATE_RETURNING);
    return true;
}

bool bt_worker_chains_failed(bt_worker_chains *chains, bt_kv_transfer transfer, bt_status status,
                             const char *text)
{
    item *it = find(chains, transfer, false);
    if (it == NULL) {
        return false;
    }
    set_failed(it, status, text != NULL ? text : bt_status_text(status));
    if (it->state == STATE_RESERVING) {
        it->over = true;
    } else if (it->state == STATE_PULLING) {
        post(chains, it, BT_KV_CHAIN_RELEASE, STATE_RETURNING);
    } else {
        end(chains, it);
    }
    return true;
}

/* ---- serving ---- */

void bt_worker_chains_serve(bt_worker_chains *chains, bt_kv_transfer transfer,
                            const bt_hash128 *identities, uint32_t n, int64_t deadline_ns)
{
    if (chains->stopped) {
        (void)bt_kv_source_refuse(chains->options.source, transfer, BT_EPEER,
                                  "the source is shutting down");
        return;
    }
    item *it = take(chains, true, transfer, identities, n);
    if (it == NULL) {
        (void)bt_kv_source_refuse(chains->options.source, transfer, BT_EEXHAUSTED,
                                  "the source has as many chains of blocks under way as it serves");
        return;
    }
    it->deadline_ns = deadline_ns;
    chains->stats.moved_ns = bt_clock_now_ns();
    post(chains, it, BT_KV_CHAIN_PIN, STATE_PINNING);
}

static bt_status offer(bt_worker_chains *chains, const item *it, bt_error *err)
{
    const bt_kv_offer what = {
        .transfer = it->name,
        .block_ids = it->blocks,
        .n_blocks = it->chain.n_blocks,
        .n_tokens = it->chain.n_blocks * BT_KV_BLOCK_TOKENS,
        .lease_ms = UNLINKED_LEASE_MS,
        .deadline_ns = it->deadline_ns,
    };
    return bt_kv_source_offer_whole(chains->options.source, &what, NULL, 0, err);
}

static void pinned(bt_worker_chains *chains, item *it)
{
    bt_error err = {{0}};
    bt_status status = it->chain.status;
    if (it->over) {
        bt_error_set(&err, BT_EPEER, "the source is shutting down");
    } else if (status == BT_OK) {
        status = offer(chains, it, &err);
        if (status == BT_OK) {
            it->state = STATE_OFFERED;
            return;
        }
    } else {
        bt_error_set(&err, status, "the source does not hold these blocks (any more)");
    }
    const bt_status why = it->over ? BT_EPEER : status == BT_AGAIN ? BT_EEXHAUSTED : status;
    (void)bt_kv_source_refuse(chains->options.source, it->name, why, err.text);
    if (it->chain.n_blocks > 0) {
        post(chains, it, BT_KV_CHAIN_RELEASE, STATE_RETURNING);
    } else {
        end(chains, it);
    }
}

bool bt_worker_chains_released(bt_worker_chains *chains, bt_kv_transfer transfer)
{
    item *it = find(chains, transfer, true);
    if (it == NULL) {
        return false;
    }
    post(chains, it, BT_KV_CHAIN_RELEASE, STATE_RETURNING);
    return true;
}

/* ---- both ---- */

void bt_worker_chains_stepped(bt_worker_chains *chains, bt_kv_chain *chain)
{
    item *it = chain->user;
    switch (it->state) {
    case STATE_RESERVING:
        reserved(chains, it);
        return;
    case STATE_PINNING:
        pinned(chains, it);
        return;
    case STATE_RETURNING:
        end(chains, it);
        return;
    case STATE_FREE:
    case STATE_LINKING:
    case STATE_CANCELLED:
    case STATE_PULLING:
    case STATE_OFFERED:
        break;
    }
    BT_ASSERT(false);
}

void bt_worker_chains_stop(bt_worker_chains *chains)
{
    if (chains == NULL) {
        return;
    }
    chains->stopped = true;
    for (size_t i = 0; i < BT_WORKER_CHAINS_MAX; i++) {
        item *it = &chains->items[i];
        if (it->state == STATE_PINNING) {
            it->over = true;
        } else if (it->state == STATE_OFFERED) {
            (void)bt_kv_source_cancel(chains->options.source, it->name, BT_EPEER,
                                      "the source is shutting down");
        } else if (it->state == STATE_LINKING || it->state == STATE_RESERVING ||
                   it->state == STATE_PULLING) {
            (void)bt_kv_sink_cancel(chains->options.sink, it->name);
        }
    }
}

bt_worker_chains_stats bt_worker_chains_get_stats(const bt_worker_chains *chains)
{
    return chains != NULL ? chains->stats : (bt_worker_chains_stats){0};
}
