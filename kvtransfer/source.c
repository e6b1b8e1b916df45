/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is queued for a peer: what it has to be told follows from the transfer's state
 * (final, summed and told parts; blob; revoke), so memory does not grow with a slow peer.
 * pump() does a bounded piece of everything and rings itself while more is left.
 *
 *             offer                PULL                         END
 *   FREE ------------> OFFERED -----------> LINKED --------------------------> ENDED
 *                         |                   | cancel, expire (stop)    ^  ^     | released()
 *                         |                   v     END; REVOKE is put   |  |     v
 *                         |                STOPPING ---------------------+  |    FREE
 *                         |                   | connection lost             |
 *                         +-------------------+-----------------------------+
 *            cancel, lease or deadline over (stop)
 *
 * Over a stream, and two-sided, nobody but us reads the blocks: once no piece of them is under
 * way, the REVOKE is put and the transfer has ended. A one-sided sink reads them itself: they
 * are held until its END comes, or its connection is dead. That is so when it has been silent
 * for a lease and a grace, or answers for a whole lease everything but this REVOKE.
 *
 * Invariants: (1) told is in summed is in final. (2) A transfer has a peer in LINKED
 * and STOPPING, and is counted in it. (3) Between offer and ENDED somebody may read
 * the blocks; from ENDED on the source never looks at them. (4) An ENDED transfer's callback
 * comes from deliver() alone. */
#include "kvtransfer/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/hash.h"
#include "kvtransfer/source_int.h"

enum {
    SUM_SLICE_BYTES = 512 * 1024, /* checksummed in one turn of the loop */
    TICK_MS = 50,
    HELLO_TIMEOUT_MS = 3000,
};

static const int64_t MS = 1000000; /* ns */

const char *bt_kv_outcome_name(bt_kv_outcome outcome)
{
    static const char *const names[] = {
        [BT_KV_OUTCOME_PULLED] = "pulled",
        [BT_KV_OUTCOME_CANCELLED] = "cancelled",
        [BT_KV_OUTCOME_EXPIRED] = "expired",
        [BT_KV_OUTCOME_FAILED] = "failed",
    };
    return (size_t)outcome < BT_ARRAY_LEN(names) ? names[outcome] : "?";
}

/* ---- transfers ---- */

bt_source_transfer *bt_source_find(bt_kv_source *source, bt_kv_transfer name)
{
    for (size_t i = 0; i < source->n_open; i++) {
        bt_source_transfer *t = source->open[i];
        if (t->state != BT_SOURCE_ENDED && bt_kv_transfer_equal(t->name, name)) {
            return t;
        }
    }
    return NULL;
}

void bt_source_link(bt_source_transfer *t, bt_source_peer *peer)
{
    BT_ASSERT(t->state == BT_SOURCE_OFFERED);
    t->state = BT_SOURCE_LINKED;
    t->peer = peer;
    peer->n_transfers++;
    bt_wake_ring(peer->source->wake);
}

static void set_end(bt_source_transfer *t, bt_kv_outcome outcome, bt_status status,
                    const char *text)
{
    t->outcome = outcome;
    t->status = status;
    (void)snprintf(t->text, sizeof t->text, "%s", text);
}

static void remember(bt_kv_source *source, bt_kv_transfer name, bt_status status, const char *text)
{
    bt_source_recent *recent = &source->recent[source->n_recent++ % BT_SOURCE_RECENT];
    recent->name = name;
    recent->status = status;
    (void)snprintf(recent->text, sizeof recent->text, "%s", text);
}

/* From here on a pull of it is answered, and not left waiting for its offer. */
static void end_transfer(bt_kv_source *source, bt_source_transfer *t)
{
    remember(source, t->name, t->status, t->text);
    if (t->peer) {
        BT_ASSERT(t->peer->n_transfers > 0);
        t->peer->n_transfers--;
        t->peer = NULL;
    }
    t->state = BT_SOURCE_ENDED;
    bt_wake_ring(source->wake);
}

void bt_source_sink_ended(bt_kv_source *source, bt_source_transfer *t, bt_kv_outcome outcome,
                          const char *text)
{
    if (t->state == BT_SOURCE_LINKED) {
        set_end(t, outcome, BT_OK, text);
    }
    end_transfer(source, t);
}

const bt_source_recent *bt_source_find_recent(const bt_kv_source *source, bt_kv_transfer name)
{
    const size_t n = bt_size_min(source->n_recent, BT_SOURCE_RECENT);
    for (size_t i = 0; i < n; i++) {
        if (bt_kv_transfer_equal(source->recent[i].name, name)) {
            return &source->recent[i];
        }
    }
    return NULL;
}

/* Takes the blocks back: at once where nobody reads, else after END, grace or disconnect. */
static void stop_transfer(bt_kv_source *source, bt_source_transfer *t, bt_kv_outcome outcome,
                          bt_status status, const char *text)
{
    if (t->state != BT_SOURCE_OFFERED && t->state != BT_SOURCE_LINKED) {
        return;
    }
    set_end(t, outcome, status, text);
    if (t->state == BT_SOURCE_OFFERED) {
        end_transfer(source, t);
        return;
    }
    t->state = BT_SOURCE_STOPPING;
    t->fence_until_ns = bt_clock_now_ns() + source->options.lease_ms * MS;
    bt_wake_ring(source->wake);
}

static void free_transfer(bt_kv_source *source, bt_source_transfer *t)
{
    for (size_t i = 0; i < source->n_open; i++) {
        if (source->open[i] == t) {
            source->open[i] = source->open[--source->n_open];
            t->state = BT_SOURCE_FREE;
            source->counters.transfers_open--;
            return;
        }
    }
    BT_ASSERT(false);
}

static void count_outcome(bt_kv_source_counters *counters, bt_kv_outcome outcome)
{
    counters->pulled += outcome == BT_KV_OUTCOME_PULLED;
    counters->cancelled += outcome == BT_KV_OUTCOME_CANCELLED;
    counters->expired += outcome == BT_KV_OUTCOME_EXPIRED;
    counters->failed += outcome == BT_KV_OUTCOME_FAILED;
}

/* Callbacks of ended transfers. They may change `open`: start over after each. */
static void deliver(bt_kv_source *source)
{
    for (size_t i = 0; i < source->n_open;) {
        bt_source_transfer *t = source->open[i];
        if (t->state != BT_SOURCE_ENDED) {
            i++;
            continue;
        }
        char text[BT_KV_TEXT_BYTES];
        memcpy(text, t->text, sizeof text);
        const bt_kv_outcome outcome = t->outcome;
        const bt_kv_transfer name = t->name;
        free_transfer(source, t);
        count_outcome(&source->counters, outcome);
        source->callbacks.released(name, outcome, text, source->callbacks.ctx);
        i = 0;
    }
}

void bt_source_parked_refuse(bt_kv_source *source, bt_source_parked *parked, bt_status status,
                             const char *text)
{
    BT_ASSERT(parked->peer && status < 0);
    parked->refusal = status;
    (void)snprintf(parked->text, sizeof parked->text, "%s", text);
    bt_wake_ring(source->wake);
}

void bt_source_parked_free(bt_kv_source *source, bt_source_parked *parked)
{
    BT_ASSERT(parked->peer && source->n_parked > 0);
    parked->peer = NULL;
    source->n_parked--;
    source->counters.transfers_parked--;
}

/* ---- checksums, a slice a turn ---- */

/* Returns the bytes that it took; 0: nothing is left for this transfer. */
static uint64_t sum_some(bt_kv_source *source, bt_source_transfer *t, uint64_t max_bytes)
{
    const bt_kv_layout *layout = &source->options.terms.layout;
    uint64_t max_parts = max_bytes / layout->layer_bytes;
    bt_plan_rect rect;
    if (!bt_plan_next(&t->final, &t->summed, 0, max_parts > 0 ? max_parts : 1, &rect)) {
        return 0;
    }
    for (uint32_t b = rect.block_idx; b < rect.block_idx + rect.n_blocks; b++) {
        for (uint32_t layer = rect.layer; layer < rect.layer + rect.n_layers; layer++) {
            const uint64_t offset = bt_kv_part_offset(layout, t->ids[b], layer);
            t->sums[(size_t)b * layout->n_layers + layer] = bt_crc32c(
                0, (const uint8_t *)source->options.pool_base + offset, layout->layer_bytes);
        }
    }
    const uint64_t n = bt_plan_set_add(&t->summed, &rect);
    BT_ASSERT(n == bt_plan_rect_parts(&rect));
    t->n_summed += n;
    BT_ASSERT(t->n_summed <= t->n_final);
    source->counters.parts_summed += n;
    source->counters.bytes_summed += n * layout->layer_bytes;
    return n * layout->layer_bytes;
}

/* True: more is left for the next turn. */
static bool sum_slice(bt_kv_source *source)
{
    uint64_t left = SUM_SLICE_BYTES;
    bool more = false;
    for (size_t i = 0; i < source->n_open; i++) {
        bt_source_transfer *t = source->open[i];
        const bool wants = t->state == BT_SOURCE_OFFERED || t->state == BT_SOURCE_LINKED;
        while (wants && t->n_summed < t->n_final && left > 0) {
            const uint64_t took = sum_some(source, t, left);
            left = took < left ? left - took : 0;
        }
        more |= wants && t->n_summed < t->n_final;
    }
    return more;
}

/* ---- the turn of the loop, and time ---- */

static void pump(void *ctx)
{
    bt_kv_source *source = ctx;
    bool more = sum_slice(source);
    const size_t n = source->n_peers;
    for (size_t i = 0; i < n; i++) {
        bt_source_peer *peer = &source->peers[(source->next_peer + i) % n];
        if (peer->state != BT_SOURCE_PEER_FREE) {
            more |= bt_source_peer_serve(peer);
        }
    }
    source->next_peer = (source->next_peer + 1) % n;
    deliver(source);
    if (more) {
        bt_wake_ring(source->wake);
    }
}

static void on_soon(void *ctx)
{
    bt_kv_source *source = ctx;
    source->soon_armed = false;
    pump(source);
}

void bt_source_pump_soon(bt_kv_source *source, int64_t delay_ns)
{
    const int64_t due_ns = bt_clock_now_ns() + delay_ns;
    if (!source->soon_armed || due_ns < source->soon_ns) {
        source->soon_armed = true;
        source->soon_ns = due_ns;
        bt_timer_start(source->soon, (uint64_t)((delay_ns + MS - 1) / MS), 0);
    }
}

static void expire_transfer(bt_kv_source *source, bt_source_transfer *t, int64_t now)
{
    const bool open = t->state == BT_SOURCE_OFFERED || t->state == BT_SOURCE_LINKED;
    if (open && t->deadline_ns != 0 && now >= t->deadline_ns) {
        stop_transfer(source, t, BT_KV_OUTCOME_EXPIRED, BT_EDEADLINE, "the deadline has passed");
    } else if (t->state == BT_SOURCE_OFFERED && now >= t->lease_until_ns) {
        stop_transfer(source, t, BT_KV_OUTCOME_EXPIRED, BT_EPEER,
                      "nobody has linked before the lease was over");
    } else if (t->state == BT_SOURCE_STOPPING && now >= t->fence_until_ns) {
        bt_source_peer_lose(t->peer, "the peer did not stop reading");
    }
}

static void expire_peer(bt_kv_source *source, bt_source_peer *peer, int64_t now)
{
    if (peer->state != BT_SOURCE_PEER_READY) {
        if (now - peer->since_ns >= HELLO_TIMEOUT_MS * MS) {
            bt_source_peer_lose(peer, "no handshake in time");
        }
        return;
    }
    const int64_t silent_ns = now - peer->heard_ns;
    const int64_t lease_ns = source->options.lease_ms * MS;
    if (silent_ns < lease_ns) {
        return;
    }
    if (peer->n_transfers == 0 || silent_ns >= lease_ns + BT_SOURCE_GRACE_MS * MS) {
        bt_source_peer_lose(peer, "silent for longer than the lease");
        return;
    }
    for (size_t i = 0; i < source->n_open; i++) {
        if (source->open[i]->peer == peer) {
            stop_transfer(source, source->open[i], BT_KV_OUTCOME_EXPIRED, BT_EPEER,
                          "the lease is over: its sink has gone silent");
        }
    }
}

static void expire_parked(bt_kv_source *source, int64_t now)
{
    for (size_t i = 0; i < source->options.max_transfers && source->n_parked > 0; i++) {
        bt_source_parked *parked = &source->parked[i];
        if (parked->peer && parked->refusal == BT_OK && now >= parked->deadline_ns) {
            bt_source_parked_refuse(source, parked, BT_EDEADLINE,
                                    "the source was never asked to compute it");
            source->counters.pulls_unknown++;
        }
    }
}

void bt_kv_source_tick(bt_kv_source *source)
{
    const int64_t now = bt_clock_now_ns();
    for (size_t i = 0; i < source->n_open; i++) {
        expire_transfer(source, source->open[i], now);
    }
    for (size_t i = 0; i < source->n_peers; i++) {
        if (source->peers[i].state != BT_SOURCE_PEER_FREE) {
            expire_peer(source, &source->peers[i], now);
        }
    }
    expire_parked(source, now);
    pump(source);
}

static void on_tick(void *ctx)
{
    bt_kv_source_tick(ctx);
}

/* ---- create and destroy ---- */

static bt_status check_options(const bt_kv_source_options *o, bt_error *err)
{
    if (o->incarnation == 0 || !o->pool_base || o->n_blocks == 0 || o->terms.layout.n_layers == 0 ||
        o->terms.layout.layer_bytes == 0) {
        return bt_error_set(err, BT_EINVAL,
                            "a KV source needs an incarnation, a layout and a pool");
    }
    if (o->max_transfers == 0 || o->max_transfers > 65536 || o->max_transfer_blocks == 0 ||
        o->max_transfer_blocks > o->n_blocks || o->max_peers == 0 || o->max_peers > 4096) {
        return bt_error_set(err, BT_EINVAL,
                            "KV source limits are out of range: %u transfers (1..65536), %u "
                            "blocks each (1..%u), %u peers (1..4096)",
                            o->max_transfers, o->max_transfer_blocks, o->n_blocks, o->max_peers);
    }
    if (o->terms.layout.layer_bytes > BT_FRAME_DATA_BYTES_MAX) {
        return bt_error_set(err, BT_EUNSUPPORTED,
                            "one layer of a KV block is %u bytes; transfers take up to %d",
                            o->terms.layout.layer_bytes, BT_FRAME_DATA_BYTES_MAX);
    }
    return BT_OK;
}

/* One arena for what grows with blocks and layers; pages come when they are touched. */
static bt_status create_arena(bt_kv_source *source, bt_error *err)
{
    const bt_kv_source_options *o = &source->options;
    const size_t n_words = bt_plan_set_words(o->max_transfer_blocks, o->terms.layout.n_layers);
    const size_t ids_bytes = bt_align_up(o->max_transfer_blocks * sizeof(bt_block_id), 8);
    const size_t sums_bytes = bt_align_up(
        (size_t)o->max_transfer_blocks * o->terms.layout.n_layers * sizeof(uint32_t), 8);
    const size_t each = ids_bytes + sums_bytes + 3 * n_words * sizeof(uint64_t);
    size_t bytes;
    if (!bt_size_mul(each, o->max_transfers, &bytes)) {
        return bt_error_set(err, BT_EINVAL, "KV source limits are too large");
    }
    const bt_status status = bt_alloc_map_anon(bytes, &source->arena, err);
    if (status != BT_OK) {
        return status;
    }
    uint8_t *at = source->arena.base;
    for (uint32_t i = 0; i < o->max_transfers; i++) {
        bt_source_transfer *t = &source->transfers[i];
        t->ids = (bt_block_id *)(void *)at;
        t->sums = (uint32_t *)(void *)(at + ids_bytes);
        for (size_t w = 0; w < BT_ARRAY_LEN(t->words); w++) {
            t->words[w] = (uint64_t *)(void *)(at + ids_bytes + sums_bytes) + w * n_words;
        }
        at += each;
    }
    return BT_OK;
}

static bt_status create_tables(bt_kv_source *source, bt_error *err)
{
    const bt_kv_source_options *o = &source->options;
    source->transfers = bt_alloc_array(o->max_transfers, sizeof *source->transfers);
    source->open = bt_alloc_array(o->max_transfers, sizeof(bt_source_transfer *));
    source->parked = bt_alloc_array(o->max_transfers, sizeof *source->parked);
    source->n_peers = o->max_peers + BT_SOURCE_STRANGERS_MAX;
    source->peers = bt_alloc_array(source->n_peers, sizeof *source->peers);
    source->recent = bt_alloc_array(BT_SOURCE_RECENT, sizeof *source->recent);
    if (!source->transfers || !source->open || !source->parked || !source->peers ||
        !source->recent) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < source->n_peers; i++) {
        source->peers[i].source = source;
    }
    return create_arena(source, err);
}

static bt_status create_handles(bt_kv_source *source, bt_error *err)
{
    if (bt_wake_create(source->loop, pump, source, &source->wake) != BT_OK ||
        bt_timer_create(source->loop, on_tick, source, &source->tick) != BT_OK ||
        bt_timer_create(source->loop, on_soon, source, &source->soon) != BT_OK) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    bt_timer_start(source->tick, TICK_MS, TICK_MS);
    return BT_OK;
}

bt_status bt_kv_source_create(bt_loop *loop, const bt_kv_source_options *options,
                              const bt_kv_source_callbacks *callbacks, bt_kv_source **out,
                              bt_error *err)
{
    bt_status status = check_options(options, err);
    if (status != BT_OK) {
        return status;
    }
    bt_kv_source *source = calloc(1, sizeof *source);
    if (!source) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    source->loop = loop;
    source->options = *options;
    source->callbacks = *callbacks;
    source->arena = BT_MAPPING_NONE;
    source->share_fd = -1;
    source->rate.bytes_s = options->rate_limit_bytes_s;
    source->self.incarnation = options->incarnation;
    if (source->options.lease_ms == 0) {
        source->options.lease_ms = BT_KV_LEASE_MS;
    }
    bt_transport_boot_id(source->self.boot_id);
    status = create_tables(source, err);
    if (status == BT_OK) {
        status = create_handles(source, err);
    }
    if (status == BT_OK) {
        status = bt_source_listen(source, err);
    }
    if (status != BT_OK) {
        bt_kv_source_destroy(source);
        return status;
    }
    *out = source;
    return BT_OK;
}

void bt_kv_source_destroy(bt_kv_source *source)
{
    if (!source) {
        return;
    }
    for (size_t i = 0; i < source->n_listeners; i++) {
        source->listeners[i]->ops->unlisten(source->listeners[i]);
    }
    for (size_t i = 0; source->peers && i < source->n_peers; i++) {
        bt_channel_close(&source->peers[i].channel);
    }
    bt_timer_destroy(source->soon);
    bt_timer_destroy(source->tick);
    bt_wake_destroy(source->wake);
    if (source->share_fd >= 0) {
        (void)close(source->share_fd);
    }
    bt_alloc_unmap(&source->arena);
    free(source->recent);
    free(source->peers);
    free(source->parked);
    free(source->open);
    free(source->transfers);
    bt_hash_wipe(&source->options.terms.cluster_key, sizeof source->options.terms.cluster_key);
    free(source);
}

/* ---- use ---- */

void bt_kv_source_peer(const bt_kv_source *source, bt_kv_peer *peer)
{
    *peer = source->self;
}

const bt_kv_source_counters *bt_kv_source_counters_get(const bt_kv_source *source)
{
    return &source->counters;
}

static bt_status check_offer(bt_kv_source *source, const bt_kv_offer *offer, bt_error *err)
{
    const bt_kv_source_options *o = &source->options;
    if (offer->n_tokens == 0 ||
        offer->n_blocks != bt_div_ceil(offer->n_tokens, BT_KV_BLOCK_TOKENS)) {
        return bt_error_set(err, BT_EINVAL, "%u tokens do not fill %u blocks", offer->n_tokens,
                            offer->n_blocks);
    }
    if (offer->n_blocks > o->max_transfer_blocks) {
        return bt_error_set(err, BT_EEXHAUSTED, "a transfer of %u blocks; the limit is %u",
                            offer->n_blocks, o->max_transfer_blocks);
    }
    for (uint32_t i = 0; i < offer->n_blocks; i++) {
        if (offer->block_ids[i] >= o->n_blocks) {
            return bt_error_set(err, BT_EINVAL, "block %u is not in the pool of %u blocks",
                                offer->block_ids[i], o->n_blocks);
        }
    }
    for (size_t i = 0; i < source->n_open; i++) {
        if (bt_kv_transfer_equal(source->open[i]->name, offer->transfer)) {
            return bt_error_set(err, BT_EEXISTS, "this transfer is offered already");
        }
    }
    if (source->n_open == o->max_transfers) {
        return bt_error_set(err, BT_AGAIN, "%u transfers are offered already", o->max_transfers);
    }
    return BT_OK;
}

/* A PULL that came before the offer is answered now. */
static void link_parked(bt_kv_source *source, bt_source_transfer *t)
{
    for (uint32_t i = 0; i < source->options.max_transfers && source->n_parked > 0; i++) {
        bt_source_parked *parked = &source->parked[i];
        if (parked->peer && parked->refusal == BT_OK &&
            bt_kv_transfer_equal(parked->name, t->name)) {
            bt_source_peer *peer = parked->peer;
            bt_source_parked_free(source, parked);
            bt_source_link(t, peer);
            return;
        }
    }
}

bt_status bt_kv_source_offer(bt_kv_source *source, const bt_kv_offer *offer, bt_error *err)
{
    const bt_status status = check_offer(source, offer, err);
    if (status != BT_OK) {
        return status;
    }
    bt_source_transfer *t = source->transfers;
    while (t->state != BT_SOURCE_FREE) {
        t++;
    }
    const uint32_t lease_ms = offer->lease_ms != 0 ? offer->lease_ms : source->options.lease_ms;
    const uint32_t n_layers = source->options.terms.layout.n_layers;
    t->state = BT_SOURCE_OFFERED;
    t->name = offer->transfer;
    t->peer = NULL;
    t->n_blocks = offer->n_blocks;
    t->n_tokens = offer->n_tokens;
    t->lease_until_ns = bt_clock_now_ns() + lease_ms * MS;
    t->deadline_ns = offer->deadline_ns;
    memcpy(t->ids, offer->block_ids, offer->n_blocks * sizeof *t->ids);
    bt_plan_set_init(&t->final, t->words[0], offer->n_blocks, n_layers);
    bt_plan_set_init(&t->summed, t->words[1], offer->n_blocks, n_layers);
    bt_plan_set_init(&t->told, t->words[2], offer->n_blocks, n_layers);
    t->n_final = t->n_summed = t->n_told = 0;
    t->n_ids_told = 0;
    t->offer_told = t->has_blob = t->ends = t->blob_told = t->revoke_told = false;
    source->open[source->n_open++] = t;
    source->counters.transfers_open++;
    source->counters.offers++;
    link_parked(source, t);
    return BT_OK;
}

static void trace(bt_kv_source *source, bt_kv_trace_kind kind, bt_kv_transfer transfer,
                  const bt_plan_rect *rect)
{
    if (source->callbacks.trace) {
        const bt_kv_trace event = {
            .kind = kind,
            .transfer = transfer,
            .time_ns = bt_clock_now_ns(),
            .block_idx = rect->block_idx,
            .n_blocks = rect->n_blocks,
            .layer = rect->layer,
            .n_layers = rect->n_layers,
        };
        source->callbacks.trace(&event, source->callbacks.ctx);
    }
}

static bt_status announce(bt_kv_source *source, bt_kv_transfer transfer, const bt_plan_rect *rect)
{
    bt_source_transfer *t = bt_source_find(source, transfer);
    if (!t || t->state == BT_SOURCE_STOPPING) {
        return BT_ENOTFOUND;
    }
    if (!bt_plan_set_holds(&t->final, rect)) {
        return BT_EINVAL;
    }
    const uint64_t n_new = bt_plan_set_add(&t->final, rect);
    t->n_final += n_new;
    source->counters.parts_announced += n_new;
    source->counters.parts_repeated += bt_plan_rect_parts(rect) - n_new;
    trace(source, BT_KV_TRACE_ANNOUNCED, transfer, rect);
    bt_wake_ring(source->wake);
    return BT_OK;
}

bt_status bt_kv_source_announce(bt_kv_source *source, bt_kv_transfer transfer, uint32_t layer,
                                uint32_t block_idx, uint32_t n_blocks)
{
    const bt_plan_rect rect = {
        .block_idx = block_idx, .n_blocks = n_blocks, .layer = layer, .n_layers = 1};
    return announce(source, transfer, &rect);
}

bt_status bt_kv_source_announce_blocks(bt_kv_source *source, bt_kv_transfer transfer,
                                       uint32_t block_idx, uint32_t n_blocks)
{
    const bt_plan_rect rect = {.block_idx = block_idx,
                               .n_blocks = n_blocks,
                               .layer = 0,
                               .n_layers = source->options.terms.layout.n_layers};
    return announce(source, transfer, &rect);
}

bt_status bt_kv_source_complete(bt_kv_source *source, bt_kv_transfer transfer, const void *blob,
                                size_t blob_bytes, bool ends)
{
    bt_source_transfer *t = bt_source_find(source, transfer);
    if (!t || t->state == BT_SOURCE_STOPPING) {
        return BT_ENOTFOUND;
    }
    if (blob_bytes > BT_KV_BLOB_BYTES_MAX) {
        return BT_EINVAL;
    }
    if (t->has_blob) {
        return BT_EEXISTS;
    }
    if (blob_bytes > 0) {
        memcpy(t->blob, blob, blob_bytes);
    }
    t->blob_bytes = (uint32_t)blob_bytes;
    t->has_blob = true;
    t->ends = ends;
    const bt_plan_rect none = {0};
    trace(source, BT_KV_TRACE_COMPLETE, transfer, &none);
    bt_wake_ring(source->wake);
    return BT_OK;
}

bt_status bt_kv_source_offer_whole(bt_kv_source *source, const bt_kv_offer *offer, const void *blob,
                                   size_t blob_bytes, bt_error *err)
{
    bt_status status = bt_kv_source_offer(source, offer, err);
    if (status != BT_OK) {
        return status;
    }
    status = bt_kv_source_announce_blocks(source, offer->transfer, 0, offer->n_blocks);
    BT_ASSERT(status == BT_OK);
    status = bt_kv_source_complete(source, offer->transfer, blob, blob_bytes, false);
    BT_ASSERT(status == BT_OK);
    return BT_OK;
}

bt_status bt_kv_source_cancel(bt_kv_source *source, bt_kv_transfer transfer, bt_status status,
                              const char *text)
{
    bt_source_transfer *t = bt_source_find(source, transfer);
    if (!t || t->state == BT_SOURCE_STOPPING) {
        return BT_ENOTFOUND;
    }
    stop_transfer(source, t, BT_KV_OUTCOME_CANCELLED, status < 0 ? status : BT_ECANCELLED, text);
    return BT_OK;
}

bt_status bt_kv_source_refuse(bt_kv_source *source, bt_kv_transfer transfer, bt_status status,
                              const char *text)
{
    for (size_t i = 0; i < source->n_open; i++) {
        if (bt_kv_transfer_equal(source->open[i]->name, transfer)) {
            return BT_EEXISTS;
        }
    }
    if (bt_source_find_recent(source, transfer)) {
        return BT_EEXISTS;
    }
    const bt_status why = status < 0 ? status : BT_ECANCELLED;
    for (uint32_t i = 0; i < source->options.max_transfers && source->n_parked > 0; i++) {
        bt_source_parked *parked = &source->parked[i];
        if (parked->peer && parked->refusal == BT_OK &&
            bt_kv_transfer_equal(parked->name, transfer)) {
            bt_source_parked_refuse(source, parked, why, text);
        }
    }
    remember(source, transfer, why, text);
    source->counters.refused++;
    return BT_OK;
}
