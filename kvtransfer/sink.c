/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked for next follows from three sets: announced (the source says it is final),
 * asked (under way, in place, or skipped), right (in place, checksum checked). A part with a
 * wrong checksum leaves `asked` again, max_retries times in a transfer. pump() does a bounded
 * piece of everything and rings itself while more is left.
 *
 *            open           everything right + COMPLETE (check)    callback
 *   FREE ----------> OPEN ---------------------------------> ENDED -------> TELLING ---> FREE
 *                      | cancel, deadline, REVOKE, too many    ^             END is put
 *                      | wrong parts, connection lost (fail)   |
 *                      +---------------------------------------+
 *
 * Invariants: (1) right is in asked; asked less the skipped blocks is in announced. (2) Only
 * an OPEN transfer's blocks are written: what is still in the stream for others drains
 * into scratch. (3) A transfer has a peer until it is FREE or the connection is lost, and is
 * counted in it. (4) Callbacks come from deliver() alone. */
#include "kvtransfer/sink.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/hash.h"
#include "kvtransfer/sink_int.h"

enum {
    COPY_SLICE_BYTES = 256 * 1024, /* copied over shm in one turn of the loop, at least a part */
    TICK_MS = 50,
    CONNECT_TIMEOUT_MS = 3000,
    RETRIES = 8,
    BYTES_IN_FLIGHT = 4 << 20,
};

static const int64_t MS = 1000000; /* ns */

/* ---- transfers ---- */

bt_sink_transfer *bt_sink_find(bt_kv_sink *sink, bt_kv_transfer name)
{
    for (size_t i = 0; i < sink->n_open; i++) {
        bt_sink_transfer *t = sink->open[i];
        if (t->state == BT_SINK_OPEN && bt_kv_transfer_equal(t->name, name)) {
            return t;
        }
    }
    return NULL;
}

bool bt_sink_was_ended(const bt_kv_sink *sink, bt_kv_transfer name)
{
    for (size_t i = 0; i < sink->n_open; i++) {
        if (bt_kv_transfer_equal(sink->open[i]->name, name)) {
            return true; /* find() has shown that it is not OPEN */
        }
    }
    const size_t n = bt_size_min(sink->n_recent, BT_SINK_RECENT);
    for (size_t i = 0; i < n; i++) {
        if (bt_kv_transfer_equal(sink->recent[i], name)) {
            return true;
        }
    }
    return false;
}

static void end_transfer(bt_kv_sink *sink, bt_sink_transfer *t, bt_status status, const char *text)
{
    BT_ASSERT(t->state == BT_SINK_OPEN);
    t->state = BT_SINK_ENDED;
    t->status = status;
    t->stats.done_ns = bt_clock_now_ns();
    (void)snprintf(t->text, sizeof t->text, "%s", text);
    if (t->peer) {
        bt_sink_peer_forget(t->peer, t);
    }
    bt_wake_ring(sink->wake);
}

void bt_sink_fail(bt_kv_sink *sink, bt_sink_transfer *t, bt_status status, const char *text)
{
    if (t->state == BT_SINK_OPEN) {
        end_transfer(sink, t, status, text);
    }
}

static uint32_t n_layers_of(const bt_kv_sink *sink)
{
    return sink->options.terms.layout.n_layers;
}

/* The offer's size and the caller's blocks are both known: do they agree? */
static void begin_moving(bt_kv_sink *sink, bt_sink_transfer *t)
{
    if (t->n_pull_blocks != t->n_blocks) {
        char text[96];
        (void)snprintf(text, sizeof text, "the source offers %u blocks, %u are expected",
                       t->n_blocks, t->n_pull_blocks);
        bt_sink_fail(sink, t, BT_EMISMATCH, text);
        return;
    }
    t->n_wanted = (uint64_t)(t->n_blocks - t->n_skip) * n_layers_of(sink);
    if (t->n_skip > 0) {
        const bt_plan_rect skipped = {.n_blocks = t->n_skip, .n_layers = n_layers_of(sink)};
        (void)bt_plan_set_add(&t->asked, &skipped);
    }
    t->began = true;
}

void bt_sink_check(bt_kv_sink *sink, bt_sink_transfer *t)
{
    if (t->state == BT_SINK_OPEN && t->offered && t->pulling && !t->began) {
        begin_moving(sink, t);
    }
    if (t->state != BT_SINK_OPEN || !t->complete) {
        return;
    }
    if (t->ends || (t->began && t->n_right == t->n_wanted)) {
        end_transfer(sink, t, BT_OK, "");
    }
}

bool bt_sink_is_moving(const bt_sink_transfer *t)
{
    return t->state == BT_SINK_OPEN && t->began;
}

static void count_bytes(bt_kv_sink *sink, const bt_sink_transfer *t, uint64_t bytes)
{
    bt_kv_sink_counters *c = &sink->counters;
    c->bytes += bytes;
    c->bytes_shm += t->stats.transport == BT_KV_TRANSPORT_SHM ? bytes : 0;
    c->bytes_tcp += t->stats.transport == BT_KV_TRANSPORT_TCP ? bytes : 0;
    c->bytes_loopback += t->stats.transport == BT_KV_TRANSPORT_LOOPBACK ? bytes : 0;
}

/* Test only: what arrived gets a wrong byte; returns its checksum. */
static uint32_t spoil(const bt_kv_sink *sink, const bt_sink_transfer *t, uint32_t block_idx,
                      uint32_t layer)
{
    const bt_kv_layout *layout = &sink->options.terms.layout;
    uint8_t *part =
        (uint8_t *)sink->options.pool_base + bt_kv_part_offset(layout, t->ids[block_idx], layer);
    part[layout->layer_bytes / 2] ^= 0x20;
    return bt_crc32c(0, part, layout->layer_bytes);
}

void bt_sink_part(bt_kv_sink *sink, bt_sink_transfer *t, uint32_t block_idx, uint32_t layer,
                  uint32_t sum)
{
    const bt_plan_rect part = {
        .block_idx = block_idx, .n_blocks = 1, .layer = layer, .n_layers = 1};
    BT_ASSERT(bt_sink_is_moving(t));
    BT_ASSERT(bt_plan_set_has(&t->asked, block_idx, layer));
    if (sink->options.fault && ++sink->options.fault->parts == sink->options.fault->spoil_at) {
        sum = spoil(sink, t, block_idx, layer);
    }
    if (sum == t->sums[(size_t)block_idx * n_layers_of(sink) + layer]) {
        const uint64_t n_new = bt_plan_set_add(&t->right, &part);
        BT_ASSERT(n_new == 1);
        t->n_right++;
        t->stats.bytes += sink->options.terms.layout.layer_bytes;
        sink->counters.parts++;
        count_bytes(sink, t, sink->options.terms.layout.layer_bytes);
        bt_sink_check(sink, t);
        return;
    }
    sink->counters.rejected_corrupt++;
    if (t->n_retries == sink->options.max_retries) {
        bt_sink_fail(sink, t, BT_ECORRUPT, "KV blocks arrive with wrong checksums");
        return;
    }
    t->n_retries++;
    t->stats.parts_retried++;
    sink->counters.parts_retried++;
    (void)bt_plan_set_remove(&t->asked, &part);
    bt_wake_ring(sink->wake);
}

void bt_sink_trace(bt_kv_sink *sink, bt_kv_trace_kind kind, bt_kv_transfer transfer,
                   const bt_plan_rect *rect)
{
    if (sink->callbacks.trace) {
        const bt_kv_trace event = {
            .kind = kind,
            .transfer = transfer,
            .time_ns = bt_clock_now_ns(),
            .block_idx = rect->block_idx,
            .n_blocks = rect->n_blocks,
            .layer = rect->layer,
            .n_layers = rect->n_layers,
        };
        sink->callbacks.trace(&event, sink->callbacks.ctx);
    }
}

/* ---- copies out of a mapped pool, a slice a turn ---- */

static void copy_rect(bt_kv_sink *sink, bt_sink_transfer *t, const bt_plan_rect *rect)
{
    const bt_kv_layout *layout = &sink->options.terms.layout;
    const uint8_t *from = t->peer->source_base;
    uint8_t *to = sink->options.pool_base;
    (void)bt_plan_set_add(&t->asked, rect);
    for (uint32_t b = rect->block_idx; b < rect->block_idx + rect->n_blocks; b++) {
        for (uint32_t layer = rect->layer; layer < rect->layer + rect->n_layers; layer++) {
            const uint32_t sum = bt_crc32c_copy(
                0, to + bt_kv_part_offset(layout, t->ids[b], layer),
                from + bt_kv_part_offset(layout, t->source_ids[b], layer), layout->layer_bytes);
            bt_sink_part(sink, t, b, layer, sum);
            if (t->state != BT_SINK_OPEN) {
                break;
            }
        }
        if (t->state != BT_SINK_OPEN) {
            break;
        }
    }
    bt_sink_trace(sink, BT_KV_TRACE_MOVED, t->name, rect);
}

static uint64_t slice_bytes(const bt_kv_sink *sink)
{
    const uint64_t bytes_s = sink->rate.bytes_s;
    return bytes_s != 0 && bytes_s / 1000 < COPY_SLICE_BYTES ? bytes_s / 1000 : COPY_SLICE_BYTES;
}

/* Nanoseconds until the rate allows the next copy; arms the timer for it. */
static bool is_throttled(bt_kv_sink *sink, int64_t now)
{
    const int64_t wait = bt_rate_wait(&sink->rate, now);
    if (wait > 0 && !sink->soon_armed) {
        sink->soon_armed = true;
        bt_timer_start(sink->soon, (uint64_t)((wait + MS - 1) / MS), 0);
    }
    return wait > 0;
}

/* True: more is left for the next turn. */
static bool copy_slice(bt_kv_sink *sink)
{
    const uint32_t layer_bytes = sink->options.terms.layout.layer_bytes;
    uint64_t left = slice_bytes(sink);
    const size_t n = sink->n_open;
    for (size_t i = 0; i < n; i++) {
        bt_sink_transfer *t = sink->open[(sink->next_open + i) % n];
        const bool mapped = t->peer && t->peer->source_base;
        bt_plan_rect rect;
        while (mapped && bt_sink_is_moving(t)) {
            const uint64_t max_parts = left / layer_bytes > 0 ? left / layer_bytes : 1;
            if (!bt_plan_next(&t->announced, &t->asked, 0, max_parts, &rect)) {
                break;
            }
            const int64_t now = bt_clock_now_ns();
            if (is_throttled(sink, now)) {
                return false;
            }
            if (left == 0) {
                return true;
            }
            const uint64_t bytes = bt_plan_rect_parts(&rect) * layer_bytes;
            bt_rate_charge(&sink->rate, now, bytes);
            copy_rect(sink, t, &rect);
            left = bytes < left ? left - bytes : 0;
        }
    }
    sink->next_open++;
    return false;
}

/* ---- the turn of the loop, and time ---- */

static void free_transfer(bt_kv_sink *sink, bt_sink_transfer *t)
{
    if (t->peer) {
        BT_ASSERT(t->peer->n_transfers > 0);
        t->peer->n_transfers--;
        t->peer->idle_since_ns = bt_clock_now_ns();
        t->peer = NULL;
    }
    for (size_t i = 0; i < sink->n_open; i++) {
        if (sink->open[i] == t) {
            sink->open[i] = sink->open[--sink->n_open];
            t->state = BT_SINK_FREE;
            sink->counters.transfers_open--;
            return;
        }
    }
    BT_ASSERT(false);
}

static void call_back(bt_kv_sink *sink, bt_sink_transfer *t)
{
    bt_kv_sink_counters *c = &sink->counters;
    t->state = BT_SINK_TELLING; /* no longer found: the callback may do anything else */
    sink->recent[sink->n_recent++ % BT_SINK_RECENT] = t->name;
    if (t->status != BT_OK) {
        c->failed++;
        c->cancelled += t->status == BT_ECANCELLED;
        c->deadlines += t->status == BT_EDEADLINE;
        sink->callbacks.failed(t->name, t->status, t->text, sink->callbacks.ctx);
        return;
    }
    c->done++;
    if (!t->ends) {
        t->stats.blocks_moved = t->n_blocks - t->n_skip;
        t->stats.blocks_skipped = t->n_skip;
        c->blocks_moved += t->stats.blocks_moved;
        c->blocks_skipped += t->stats.blocks_skipped;
    }
    const bt_kv_done done = {
        .transfer = t->name,
        .blob = t->blob,
        .blob_bytes = t->blob_bytes,
        .ends = t->ends,
        .stats = &t->stats,
    };
    sink->callbacks.done(&done, sink->callbacks.ctx);
}

static void deliver(bt_kv_sink *sink)
{
    for (size_t i = 0; i < sink->n_open;) {
        bt_sink_transfer *t = sink->open[i];
        if (t->state == BT_SINK_OPEN && t->offered && !t->offer_passed_on) {
            t->offer_passed_on = true;
            if (sink->callbacks.offered) {
                sink->callbacks.offered(t->name, t->n_blocks, sink->callbacks.ctx);
            }
        }
        if (t->state == BT_SINK_ENDED) {
            call_back(sink, t);
        }
        const bool owes_end = t->peer && t->pull_told && !t->end_told;
        if (t->state == BT_SINK_TELLING && !owes_end) {
            free_transfer(sink, t); /* puts another one at open[i] */
        } else {
            i++;
        }
    }
}

static void pump(void *ctx)
{
    bt_kv_sink *sink = ctx;
    const bool more = copy_slice(sink);
    for (size_t i = 0; i < sink->options.max_peers; i++) {
        if (sink->peers[i].state != BT_SINK_PEER_FREE) {
            bt_sink_peer_serve(&sink->peers[i]);
        }
    }
    deliver(sink);
    if (more) {
        bt_wake_ring(sink->wake);
    }
}

static void on_soon(void *ctx)
{
    bt_kv_sink *sink = ctx;
    sink->soon_armed = false;
    pump(sink);
}

static void expire_transfer(bt_kv_sink *sink, bt_sink_transfer *t, int64_t now)
{
    if (t->state == BT_SINK_OPEN && now >= t->deadline_ns) {
        char text[128];
        if (t->began) {
            (void)snprintf(text, sizeof text,
                           "the deadline has passed with %" PRIu64 " of %" PRIu64 " KV parts moved",
                           t->n_right, t->n_wanted);
        } else {
            (void)snprintf(text, sizeof text, "the deadline has passed before %s",
                           !t->offered ? "the source offered its blocks"
                                       : "blocks were free to pull into");
        }
        bt_sink_fail(sink, t, BT_EDEADLINE, text);
    }
}

static void expire_peer(bt_kv_sink *sink, bt_sink_peer *peer, int64_t now)
{
    if (peer->state != BT_SINK_PEER_READY) {
        if (now - peer->since_ns >= sink->options.connect_timeout_ms * MS) {
            bt_sink_peer_lose(peer, BT_EPEER, "the source did not answer in time");
        }
    } else if (now - peer->heard_ns >= peer->lease_ms * MS) {
        bt_sink_peer_lose(peer, BT_EPEER, "the source has been silent for longer than the lease");
    }
}

void bt_kv_sink_tick(bt_kv_sink *sink)
{
    const int64_t now = bt_clock_now_ns();
    for (size_t i = 0; i < sink->n_open; i++) {
        expire_transfer(sink, sink->open[i], now);
    }
    for (size_t i = 0; i < sink->options.max_peers; i++) {
        if (sink->peers[i].state != BT_SINK_PEER_FREE) {
            expire_peer(sink, &sink->peers[i], now);
        }
    }
    pump(sink);
}

static void on_tick(void *ctx)
{
    bt_kv_sink_tick(ctx);
}

/* ---- create and destroy ---- */

static bt_status check_options(const bt_kv_sink_options *o, bt_error *err)
{
    if (o->incarnation == 0 || !o->pool_base || o->n_blocks == 0 || o->terms.layout.n_layers == 0 ||
        o->terms.layout.layer_bytes == 0) {
        return bt_error_set(err, BT_EINVAL, "a KV sink needs an incarnation, a layout and a pool");
    }
    if (o->max_transfers == 0 || o->max_transfers > 65536 || o->max_transfer_blocks == 0 ||
        o->max_transfer_blocks > o->n_blocks || o->max_peers == 0 || o->max_peers > 4096) {
        return bt_error_set(err, BT_EINVAL,
                            "KV sink limits are out of range: %u transfers (1..65536), %u blocks "
                            "each (1..%u), %u peers (1..4096)",
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
static bt_status create_arena(bt_kv_sink *sink, bt_error *err)
{
    const bt_kv_sink_options *o = &sink->options;
    const uint32_t n_layers = n_layers_of(sink);
    const size_t n_words = bt_plan_set_words(o->max_transfer_blocks, n_layers);
    const size_t ids_bytes = bt_align_up(o->max_transfer_blocks * sizeof(bt_block_id), 8);
    const size_t sums_bytes =
        bt_align_up((size_t)o->max_transfer_blocks * n_layers * sizeof(uint32_t), 8);
    const size_t each = 2 * ids_bytes + sums_bytes + 3 * n_words * sizeof(uint64_t);
    size_t bytes;
    if (!bt_size_mul(each, o->max_transfers, &bytes)) {
        return bt_error_set(err, BT_EINVAL, "KV sink limits are too large");
    }
    const bt_status status = bt_alloc_map_anon(bytes, &sink->arena, err);
    if (status != BT_OK) {
        return status;
    }
    uint8_t *at = sink->arena.base;
    for (uint32_t i = 0; i < o->max_transfers; i++) {
        bt_sink_transfer *t = &sink->transfers[i];
        t->source_ids = (bt_block_id *)(void *)at;
        t->ids = (bt_block_id *)(void *)(at + ids_bytes);
        t->sums = (uint32_t *)(void *)(at + 2 * ids_bytes);
        for (size_t w = 0; w < BT_ARRAY_LEN(t->words); w++) {
            t->words[w] = (uint64_t *)(void *)(at + 2 * ids_bytes + sums_bytes) + w * n_words;
        }
        at += each;
    }
    return BT_OK;
}

static bt_status create_tables(bt_kv_sink *sink, bt_error *err)
{
    const bt_kv_sink_options *o = &sink->options;
    sink->transfers = bt_alloc_array(o->max_transfers, sizeof *sink->transfers);
    sink->open = bt_alloc_array(o->max_transfers, sizeof(bt_sink_transfer *));
    sink->peers = bt_alloc_array(o->max_peers, sizeof *sink->peers);
    sink->scratch = bt_alloc_array(1, BT_SINK_SCRATCH_BYTES);
    if (!sink->transfers || !sink->open || !sink->peers || !sink->scratch) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < o->max_peers; i++) {
        sink->peers[i].sink = sink;
    }
    return create_arena(sink, err);
}

static void set_defaults(bt_kv_sink_options *o)
{
    o->lease_ms = o->lease_ms != 0 ? o->lease_ms : BT_KV_LEASE_MS;
    o->connect_timeout_ms = o->connect_timeout_ms != 0 ? o->connect_timeout_ms : CONNECT_TIMEOUT_MS;
    o->max_retries = o->max_retries != 0 ? o->max_retries : RETRIES;
    o->max_bytes_in_flight = o->max_bytes_in_flight != 0 ? o->max_bytes_in_flight : BYTES_IN_FLIGHT;
}

bt_status bt_kv_sink_create(bt_loop *loop, const bt_kv_sink_options *options,
                            const bt_kv_sink_callbacks *callbacks, bt_kv_sink **out, bt_error *err)
{
    bt_status status = check_options(options, err);
    if (status != BT_OK) {
        return status;
    }
    bt_kv_sink *sink = calloc(1, sizeof *sink);
    if (!sink) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    sink->loop = loop;
    sink->options = *options;
    set_defaults(&sink->options);
    sink->callbacks = *callbacks;
    sink->arena = BT_MAPPING_NONE;
    sink->rate.bytes_s = options->rate_limit_bytes_s;
    sink->choice = (bt_transport_choice){.pin = options->transport,
                                         .no_shm = options->no_shm,
                                         .has_loopback = options->loopback != NULL};
    bt_transport_boot_id(sink->choice.boot_id);
    status = create_tables(sink, err);
    if (status == BT_OK && (bt_wake_create(loop, pump, sink, &sink->wake) != BT_OK ||
                            bt_timer_create(loop, on_tick, sink, &sink->tick) != BT_OK ||
                            bt_timer_create(loop, on_soon, sink, &sink->soon) != BT_OK)) {
        status = bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    if (status != BT_OK) {
        bt_kv_sink_destroy(sink);
        return status;
    }
    bt_timer_start(sink->tick, TICK_MS, TICK_MS);
    *out = sink;
    return BT_OK;
}

void bt_kv_sink_destroy(bt_kv_sink *sink)
{
    if (!sink) {
        return;
    }
    for (uint32_t i = 0; sink->peers && i < sink->options.max_peers; i++) {
        bt_channel_close(&sink->peers[i].channel);
    }
    bt_timer_destroy(sink->soon);
    bt_timer_destroy(sink->tick);
    bt_wake_destroy(sink->wake);
    bt_alloc_unmap(&sink->arena);
    free(sink->scratch);
    free(sink->peers);
    free(sink->open);
    free(sink->transfers);
    bt_hash_wipe(&sink->options.terms.cluster_key, sizeof sink->options.terms.cluster_key);
    free(sink);
}

/* ---- use ---- */

static bt_status check_open(bt_kv_sink *sink, bt_kv_transfer transfer, const bt_kv_peer *peer,
                            int64_t deadline_ns, bt_error *err)
{
    if (peer->incarnation == 0 || deadline_ns == 0) {
        return bt_error_set(err, BT_EINVAL, "a transfer needs an incarnation and a deadline");
    }
    for (size_t i = 0; i < sink->n_open; i++) {
        if (bt_kv_transfer_equal(sink->open[i]->name, transfer)) {
            return bt_error_set(err, BT_EEXISTS, "this transfer is open already");
        }
    }
    if (sink->n_open == sink->options.max_transfers) {
        return bt_error_set(err, BT_AGAIN, "%u transfers are open already",
                            sink->options.max_transfers);
    }
    return BT_OK;
}

static bt_status open_transfer(bt_kv_sink *sink, bt_kv_transfer transfer, const bt_kv_peer *address,
                               int64_t deadline_ns, const bt_hash128 *wanted, uint32_t n_wanted,
                               bt_error *err)
{
    bt_status status = check_open(sink, transfer, address, deadline_ns, err);
    if (status != BT_OK) {
        return status;
    }
    bt_sink_peer *peer;
    status = bt_sink_peer_get(sink, address, &peer, err);
    if (status != BT_OK) {
        return status;
    }
    bt_sink_transfer *t = sink->transfers;
    while (t->state != BT_SINK_FREE) {
        t++;
    }
    t->state = BT_SINK_OPEN;
    t->name = transfer;
    t->peer = peer;
    t->deadline_ns = deadline_ns;
    t->pull_told = t->offered = t->offer_passed_on = t->pulling = t->began = false;
    t->complete = t->ends = t->end_told = false;
    t->n_tokens = t->n_blocks = t->n_ids = 0;
    t->n_pull_blocks = t->n_skip = t->n_retries = 0;
    t->n_wanted = t->n_right = 0;
    t->wanted = wanted;
    t->n_ids_wanted = n_wanted;
    t->blob_bytes = 0;
    t->stats = (bt_kv_pull_stats){.opened_ns = bt_clock_now_ns()};
    peer->n_transfers++;
    sink->open[sink->n_open++] = t;
    sink->counters.opened++;
    sink->counters.transfers_open++;
    bt_wake_ring(sink->wake);
    return BT_OK;
}

bt_status bt_kv_sink_open(bt_kv_sink *sink, bt_kv_transfer transfer, const bt_kv_peer *peer,
                          int64_t deadline_ns, bt_error *err)
{
    return open_transfer(sink, transfer, peer, deadline_ns, NULL, 0, err);
}

bt_status bt_kv_sink_open_cached(bt_kv_sink *sink, bt_kv_transfer transfer, const bt_kv_peer *peer,
                                 int64_t deadline_ns, const bt_hash128 *wanted, uint32_t n_wanted,
                                 bt_error *err)
{
    if (n_wanted == 0 || n_wanted > BT_KV_WANTED_MAX) {
        return bt_error_set(err, BT_EINVAL, "a pull of %u blocks by identity (1..%d)", n_wanted,
                            BT_KV_WANTED_MAX);
    }
    return open_transfer(sink, transfer, peer, deadline_ns, wanted, n_wanted, err);
}

bt_status bt_kv_sink_pull(bt_kv_sink *sink, bt_kv_transfer transfer, const bt_block_id *block_ids,
                          uint32_t n_blocks, uint32_t n_skip, bt_error *err)
{
    bt_sink_transfer *t = bt_sink_find(sink, transfer);
    if (!t) {
        return bt_error_set(err, BT_ENOTFOUND, "this transfer has ended already");
    }
    if (t->pulling) {
        return bt_error_set(err, BT_EEXISTS, "this transfer is being pulled already");
    }
    if (n_blocks == 0 || n_skip > n_blocks) {
        return bt_error_set(err, BT_EINVAL, "a pull of %u blocks, %u of them skipped", n_blocks,
                            n_skip);
    }
    if (n_blocks > sink->options.max_transfer_blocks) {
        return bt_error_set(err, BT_EEXHAUSTED, "a pull of %u blocks; the limit is %u", n_blocks,
                            sink->options.max_transfer_blocks);
    }
    for (uint32_t i = n_skip; i < n_blocks; i++) {
        if (block_ids[i] >= sink->options.n_blocks) {
            return bt_error_set(err, BT_EINVAL, "block %u is not in the pool of %u blocks",
                                block_ids[i], sink->options.n_blocks);
        }
    }
    if (n_skip < n_blocks) {
        memcpy(t->ids + n_skip, block_ids + n_skip, (n_blocks - n_skip) * sizeof *t->ids);
    }
    t->n_pull_blocks = n_blocks;
    t->n_skip = n_skip;
    t->pulling = true;
    t->stats.pulled_ns = bt_clock_now_ns();
    bt_sink_check(sink, t);
    bt_wake_ring(sink->wake);
    return BT_OK;
}

bt_status bt_kv_sink_cancel(bt_kv_sink *sink, bt_kv_transfer transfer)
{
    bt_sink_transfer *t = bt_sink_find(sink, transfer);
    if (!t) {
        return BT_ENOTFOUND;
    }
    bt_sink_fail(sink, t, BT_ECANCELLED, "cancelled by the sink");
    return BT_OK;
}

const bt_kv_sink_counters *bt_kv_sink_counters_get(const bt_kv_sink *sink)
{
    return &sink->counters;
}
