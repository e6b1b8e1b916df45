/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kvtransfer/kv_rig.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/hash.h"

enum { POLLS_MAX = 20000, MS = 1000000 };

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    int n = 0;
    while (readdir(dir)) {
        n++;
    }
    closedir(dir);
    return n;
}

static int64_t fake_now(void *ctx)
{
    const kv_rig *rig = ctx;
    return rig->now_ns;
}

static void check_until(kv_rig *rig)
{
    if (rig->until && !rig->reached && rig->until(rig, rig->until_ctx)) {
        rig->reached = true;
        bt_loop_stop(rig->loop);
    }
}

/* Time is what the two sides' own timers would see. */
static void advance(kv_rig *rig, int64_t ns)
{
    rig->now_ns += ns;
    if (rig->source) {
        bt_kv_source_tick(rig->source);
    }
    if (rig->sink) {
        bt_kv_sink_tick(rig->sink);
    }
}

static void on_poll(void *ctx)
{
    kv_rig *rig = ctx;
    rig->n_polls++;
    advance(rig, rig->step_ns);
    check_until(rig);
    if (rig->n_polls > POLLS_MAX) {
        bt_loop_stop(rig->loop);
    }
}

static void on_done(const bt_kv_done *done, void *ctx)
{
    kv_rig *rig = ctx;
    kv_rig_end *end = &rig->ends[done->transfer.request.lo];
    end->n_done++;
    end->status = BT_OK;
    end->ends = done->ends;
    end->blob_bytes = done->blob_bytes;
    memcpy(end->blob, done->blob, bt_size_min(done->blob_bytes, sizeof end->blob));
    end->stats = *done->stats;
    check_until(rig);
}

static void on_failed(bt_kv_transfer transfer, bt_status status, const char *text, void *ctx)
{
    kv_rig *rig = ctx;
    kv_rig_end *end = &rig->ends[transfer.request.lo];
    end->n_failed++;
    end->status = status;
    (void)snprintf(end->text, sizeof end->text, "%s", text);
    check_until(rig);
}

static void on_released(bt_kv_transfer transfer, bt_kv_outcome outcome, const char *text, void *ctx)
{
    kv_rig *rig = ctx;
    kv_rig_end *end = &rig->ends[transfer.request.lo];
    end->n_released++;
    end->outcome = outcome;
    (void)snprintf(end->released_text, sizeof end->released_text, "%s", text);
    check_until(rig);
}

static void on_wanted(bt_kv_transfer transfer, const bt_hash128 *identities, uint32_t n,
                      int64_t deadline_ns, void *ctx)
{
    kv_rig *rig = ctx;
    kv_rig_end *end = &rig->ends[transfer.request.lo];
    assert_in_range(n, 1, BT_KV_WANTED_MAX);
    assert_true(deadline_ns >= rig->now_ns);
    end->n_wanted = n;
    memcpy(end->wanted, identities, n * sizeof *identities);
    if (rig->on_wanted) {
        rig->on_wanted(rig, (uint32_t)transfer.request.lo);
    }
    check_until(rig);
}

static void on_offered(bt_kv_transfer transfer, uint32_t n_blocks, void *ctx)
{
    kv_rig *rig = ctx;
    rig->ends[transfer.request.lo].n_offered = n_blocks;
    check_until(rig);
}

static void on_trace(const bt_kv_trace *event, void *ctx)
{
    kv_rig *rig = ctx;
    if (rig->on_trace) {
        rig->on_trace(rig, event);
    }
}

static void fill_source(kv_rig *rig)
{
    uint64_t seed = 99;
    uint8_t *bytes = rig->source_pool.base;
    for (size_t i = 0; i < rig->source_pool.bytes; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(seed >> 40);
    }
}

void kv_rig_wipe_sink(kv_rig *rig)
{
    memset(rig->sink_pool.base, RIG_UNTOUCHED, rig->sink_pool.bytes);
}

static void set_options(kv_rig *rig)
{
    uint64_t number;
    bt_hash_random(&number, sizeof number);
    bt_kv_terms terms = {.numerics_id = {1}, .cluster_key = {{2}}};
    /* 256 bytes a run, 1 KiB a part, 3 KiB a block */
    assert_true(bt_kv_layout_init(&terms.layout, RIG_LAYERS, 2, 8, BT_KV_FORMAT_BF16));
    (void)snprintf(rig->shm_name, sizeof rig->shm_name, "@baton-kv-rig-%016llx",
                   (unsigned long long)number);
    rig->source_options = (bt_kv_source_options){
        .terms = terms,
        .incarnation = 11,
        .n_blocks = RIG_BLOCKS,
        .pool_fd = -1,
        .max_transfers = 8,
        .max_transfer_blocks = 48,
        .max_peers = 2,
    };
    rig->sink_options = (bt_kv_sink_options){
        .terms = terms,
        .incarnation = 22,
        .n_blocks = RIG_BLOCKS,
        .transport = rig->transport,
        .max_transfers = 8,
        .max_transfer_blocks = 48,
        .max_peers = 2,
    };
    if (rig->transport == BT_KV_TRANSPORT_TCP || rig->transport == BT_KV_TRANSPORT_AUTO) {
        rig->source_options.tcp_address = "127.0.0.1:0";
    }
    if (rig->transport == BT_KV_TRANSPORT_SHM || rig->transport == BT_KV_TRANSPORT_AUTO) {
        rig->source_options.shm_address = rig->shm_name;
    }
    if (rig->transport == BT_KV_TRANSPORT_LOOPBACK) {
        rig->source_options.loopback = rig->hub;
        rig->sink_options.loopback = rig->hub;
    }
}

void kv_rig_create(kv_rig *rig, bt_kv_transport transport)
{
    memset(rig, 0, sizeof *rig);
    assert_int_equal(bt_loop_create(&rig->loop), BT_OK);
    bt_loop_destroy(rig->loop); /* the first one leaves libuv's own descriptors behind */
    rig->n_fds = count_fds();
    rig->transport = transport;
    rig->now_ns = 1000 * (int64_t)MS;
    rig->step_ns = MS;
    bt_clock_set_source(fake_now, rig);
    assert_int_equal(bt_loop_create(&rig->loop), BT_OK);
    assert_int_equal(bt_timer_create(rig->loop, on_poll, rig, &rig->poll), BT_OK);
    assert_int_equal(bt_kv_loopback_create(rig->loop, &rig->hub), BT_OK);
    set_options(rig);
    const size_t bytes = RIG_BLOCKS * rig->source_options.terms.layout.block_bytes;
    const bt_memfd_options memfd = {.name = "kv-rig", .bytes = bytes};
    assert_int_equal(bt_alloc_map_memfd(&memfd, &rig->source_pool, NULL), BT_OK);
    assert_int_equal(bt_alloc_map_anon(bytes, &rig->sink_pool, NULL), BT_OK);
    rig->source_options.pool_base = rig->source_pool.base;
    rig->source_options.pool_fd = rig->source_pool.fd;
    rig->sink_options.pool_base = rig->sink_pool.base;
    fill_source(rig);
    kv_rig_wipe_sink(rig);
}

void kv_rig_start_source(kv_rig *rig)
{
    const bt_kv_source_callbacks callbacks = {
        .released = on_released, .wanted = rig->hands_nothing_on ? NULL : on_wanted, .ctx = rig};
    bt_error err = {""};
    const bt_status status =
        bt_kv_source_create(rig->loop, &rig->source_options, &callbacks, &rig->source, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, BT_OK);
    bt_kv_source_peer(rig->source, &rig->peer);
}

void kv_rig_start_sink(kv_rig *rig)
{
    const bt_kv_sink_callbacks callbacks = {
        .offered = on_offered,
        .done = on_done,
        .failed = on_failed,
        .trace = on_trace,
        .ctx = rig,
    };
    bt_error err = {""};
    const bt_status status =
        bt_kv_sink_create(rig->loop, &rig->sink_options, &callbacks, &rig->sink, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, BT_OK);
}

void kv_rig_stop_source(kv_rig *rig)
{
    bt_kv_source_destroy(rig->source);
    rig->source = NULL;
    memset(rig->offered, 0, sizeof rig->offered);
}

void kv_rig_stop_sink(kv_rig *rig)
{
    bt_kv_sink_destroy(rig->sink);
    rig->sink = NULL;
    memset(rig->opened, 0, sizeof rig->opened);
}

void kv_rig_setup(kv_rig *rig, bt_kv_transport transport)
{
    kv_rig_create(rig, transport);
    kv_rig_start_source(rig);
    kv_rig_start_sink(rig);
}

/* Each accepted offer and open has had its one callback, or its side went down before. */
static void check_callbacks(const kv_rig *rig)
{
    for (size_t i = 0; i < RIG_TRANSFERS_MAX; i++) {
        const kv_rig_end *end = &rig->ends[i];
        assert_in_range(end->n_done + end->n_failed, rig->opened[i] ? 1 : 0, 1);
        assert_in_range(end->n_released, rig->offered[i] ? 1 : 0, 1);
    }
}

void kv_rig_destroy(kv_rig *rig)
{
    check_callbacks(rig);
    kv_rig_stop_sink(rig);
    kv_rig_stop_source(rig);
    bt_kv_loopback_destroy(rig->hub);
    bt_timer_destroy(rig->poll);
    bt_loop_destroy(rig->loop);
    bt_alloc_unmap(&rig->source_pool);
    bt_alloc_unmap(&rig->sink_pool);
    bt_clock_set_source(NULL, NULL);
    assert_int_equal(count_fds(), rig->n_fds);
}

static int set_up(void **state, bt_kv_transport transport)
{
    kv_rig *rig = malloc(sizeof *rig);
    assert_non_null(rig);
    kv_rig_setup(rig, transport);
    *state = rig;
    return 0;
}

int kv_rig_setup_shm(void **state)
{
    return set_up(state, BT_KV_TRANSPORT_SHM);
}

int kv_rig_setup_tcp(void **state)
{
    return set_up(state, BT_KV_TRANSPORT_TCP);
}

int kv_rig_setup_loopback(void **state)
{
    return set_up(state, BT_KV_TRANSPORT_LOOPBACK);
}

int kv_rig_teardown(void **state)
{
    kv_rig_destroy(*state);
    free(*state);
    return 0;
}

bt_kv_transfer kv_rig_name(uint32_t i)
{
    return (bt_kv_transfer){.request = {.hi = 0xABCD, .lo = i}, .attempt = 3};
}

kv_rig_end *kv_rig_end_of(kv_rig *rig, uint32_t i)
{
    assert_in_range(i, 0, RIG_TRANSFERS_MAX - 1);
    return &rig->ends[i];
}

static bt_block_id source_id(uint32_t first, uint32_t block_idx)
{
    return (first + 2 * block_idx) % RIG_BLOCKS;
}

static bt_block_id sink_id(uint32_t first, uint32_t block_idx)
{
    return RIG_BLOCKS - 1 - first - block_idx;
}

void kv_rig_offer(kv_rig *rig, uint32_t i, uint32_t first, uint32_t n_blocks)
{
    bt_block_id ids[RIG_BLOCKS];
    for (uint32_t b = 0; b < n_blocks; b++) {
        ids[b] = source_id(first, b);
    }
    const bt_kv_offer offer = {.transfer = kv_rig_name(i),
                               .block_ids = ids,
                               .n_blocks = n_blocks,
                               .n_tokens = n_blocks * BT_KV_BLOCK_TOKENS - 5};
    assert_int_equal(bt_kv_source_offer(rig->source, &offer, NULL), BT_OK);
    rig->offered[i] = true;
}

void kv_rig_open(kv_rig *rig, uint32_t i)
{
    const int64_t deadline_ns = rig->now_ns + 2000 * (int64_t)MS;
    bt_error err = {""};
    const bt_status status =
        bt_kv_sink_open(rig->sink, kv_rig_name(i), &rig->peer, deadline_ns, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, BT_OK);
    rig->opened[i] = true;
}

bt_hash128 kv_rig_identity(uint32_t block_idx)
{
    return (bt_hash128){.w = {block_idx * UINT64_C(0x9E3779B97F4A7C15), block_idx}};
}

void kv_rig_open_cached(kv_rig *rig, uint32_t i, uint32_t n_wanted)
{
    static bt_hash128 wanted[BT_KV_WANTED_MAX]; /* borrowed until the callback */
    for (uint32_t b = 0; b < n_wanted; b++) {
        wanted[b] = kv_rig_identity(b);
    }
    const int64_t deadline_ns = rig->now_ns + 2000 * (int64_t)MS;
    assert_int_equal(bt_kv_sink_open_cached(rig->sink, kv_rig_name(i), &rig->peer, deadline_ns,
                                            wanted, n_wanted, NULL),
                     BT_OK);
    rig->opened[i] = true;
}

void kv_rig_pull(kv_rig *rig, uint32_t i, uint32_t first, uint32_t n_blocks, uint32_t n_skip)
{
    bt_block_id ids[RIG_BLOCKS];
    for (uint32_t b = 0; b < n_blocks; b++) {
        ids[b] = b < n_skip ? UINT32_MAX : sink_id(first, b);
    }
    assert_int_equal(bt_kv_sink_pull(rig->sink, kv_rig_name(i), ids, n_blocks, n_skip, NULL),
                     BT_OK);
}

void kv_rig_announce_all(kv_rig *rig, uint32_t i, uint32_t n_blocks)
{
    assert_int_equal(bt_kv_source_announce_blocks(rig->source, kv_rig_name(i), 0, n_blocks), BT_OK);
}

void kv_rig_complete(kv_rig *rig, uint32_t i, const char *blob, bool ends)
{
    assert_int_equal(bt_kv_source_complete(rig->source, kv_rig_name(i), blob, strlen(blob), ends),
                     BT_OK);
}

bool kv_rig_run(kv_rig *rig, bool (*until)(kv_rig *rig, void *ctx), void *ctx)
{
    rig->until = until;
    rig->until_ctx = ctx;
    rig->reached = until(rig, ctx);
    rig->n_polls = 0;
    if (!rig->reached) {
        bt_timer_start(rig->poll, 1, 1);
        bt_loop_run(rig->loop);
        bt_timer_stop(rig->poll);
    }
    rig->until = NULL;
    return rig->reached;
}

static bool has_sink_end(kv_rig *rig, void *ctx)
{
    const kv_rig_end *end = ctx;
    (void)rig;
    return end->n_done + end->n_failed > 0;
}

static bool has_release(kv_rig *rig, void *ctx)
{
    const kv_rig_end *end = ctx;
    (void)rig;
    return end->n_released > 0;
}

bool kv_rig_run_done(kv_rig *rig, uint32_t i)
{
    return kv_rig_run(rig, has_sink_end, kv_rig_end_of(rig, i));
}

bool kv_rig_run_released(kv_rig *rig, uint32_t i)
{
    return kv_rig_run(rig, has_release, kv_rig_end_of(rig, i));
}

static bool has_polled(kv_rig *rig, void *ctx)
{
    return rig->n_polls >= *(const int *)ctx;
}

void kv_rig_run_for(kv_rig *rig, int polls)
{
    rig->n_polls = 0;
    assert_true(kv_rig_run(rig, has_polled, &polls));
}

void kv_rig_advance(kv_rig *rig, int64_t ms)
{
    advance(rig, ms * MS);
}

uint8_t *kv_rig_sink_block(kv_rig *rig, uint32_t first, uint32_t block_idx)
{
    return (uint8_t *)rig->sink_pool.base +
           sink_id(first, block_idx) * rig->sink_options.terms.layout.block_bytes;
}

uint8_t *kv_rig_source_block(kv_rig *rig, uint32_t first, uint32_t block_idx)
{
    return (uint8_t *)rig->source_pool.base +
           source_id(first, block_idx) * rig->source_options.terms.layout.block_bytes;
}

static bool is_untouched(const uint8_t *block, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (block[i] != RIG_UNTOUCHED) {
            return false;
        }
    }
    return true;
}

void kv_rig_expect_moved(kv_rig *rig, uint32_t first, uint32_t n_blocks, uint32_t n_skip)
{
    const size_t bytes = rig->sink_options.terms.layout.block_bytes;
    bool moved[RIG_BLOCKS] = {false};
    for (uint32_t b = n_skip; b < n_blocks; b++) {
        moved[sink_id(first, b)] = true;
        assert_memory_equal(kv_rig_sink_block(rig, first, b), kv_rig_source_block(rig, first, b),
                            bytes);
    }
    for (uint32_t id = 0; id < RIG_BLOCKS; id++) {
        if (!moved[id]) {
            assert_true(is_untouched((const uint8_t *)rig->sink_pool.base + id * bytes, bytes));
        }
    }
}

void kv_rig_expect_untouched(kv_rig *rig)
{
    assert_true(
        is_untouched(rig->sink_pool.base, RIG_BLOCKS * rig->sink_options.terms.layout.block_bytes));
}
