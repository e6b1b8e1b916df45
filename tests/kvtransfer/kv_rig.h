/* SPDX-License-Identifier: Apache-2.0 */
/* kv_rig.h - a source and a sink on one loop, with small pools and a clock of their own.
 *
 * Time is fake: it moves by step_ns for each millisecond that the loop runs, or by
 * kv_rig_advance(). Teardown checks that every accepted call had its one callback and that
 * no descriptor is left.
 */
#ifndef BT_TESTS_KVTRANSFER_KV_RIG_H
#define BT_TESTS_KVTRANSFER_KV_RIG_H

#include "common/alloc.h"
#include "kvtransfer/sink.h"
#include "kvtransfer/source.h"
#include "kvtransfer/transport.h"

enum {
    RIG_BLOCKS = 96,
    RIG_LAYERS = 3,
    RIG_TRANSFERS_MAX = 64,
    RIG_UNTOUCHED = 0xA5, /* what the sink's pool is filled with */
};

typedef struct kv_rig_end {
    bt_kv_transfer transfer;
    int n_done, n_failed, n_released;
    bt_status status;
    bt_kv_outcome outcome;
    bool ends;
    char blob[64];
    size_t blob_bytes;
    uint32_t n_offered; /* blocks, as the sink was told */
    uint32_t n_wanted;  /* identities that the source was asked for */
    bt_hash128 wanted[BT_KV_WANTED_MAX];
    char text[BT_KV_TEXT_BYTES];
    char released_text[BT_KV_TEXT_BYTES];
    bt_kv_pull_stats stats;
} kv_rig_end;

typedef struct kv_rig {
    bt_kv_transport transport;
    bt_loop *loop;
    bt_timer *poll;
    bt_kv_loopback *hub;
    bt_mapping source_pool, sink_pool;
    bt_kv_source_options source_options; /* of the last kv_rig_start_source */
    bt_kv_sink_options sink_options;
    bt_kv_source *source; /* NULL: down */
    bt_kv_sink *sink;
    bt_kv_peer peer; /* of the source */

    int64_t now_ns, step_ns;
    int n_polls;
    bool (*until)(struct kv_rig *rig, void *ctx);
    void *until_ctx;
    bool reached;
    void (*on_trace)(struct kv_rig *rig, const bt_kv_trace *event); /* of the sink */
    void (*on_wanted)(struct kv_rig *rig, uint32_t i);              /* NULL: nobody answers */
    bool hands_nothing_on;                                          /* the source has no wanted() */
    char shm_name[64];

    kv_rig_end ends[RIG_TRANSFERS_MAX]; /* by request.lo */
    bool opened[RIG_TRANSFERS_MAX], offered[RIG_TRANSFERS_MAX];
    int n_fds;
} kv_rig;

/* Everything but source and sink; options get defaults for `transport`. */
void kv_rig_create(kv_rig *rig, bt_kv_transport transport);
void kv_rig_start_source(kv_rig *rig);
void kv_rig_start_sink(kv_rig *rig);
void kv_rig_stop_source(kv_rig *rig);
void kv_rig_stop_sink(kv_rig *rig);
void kv_rig_destroy(kv_rig *rig);

/* create + both. */
void kv_rig_setup(kv_rig *rig, bt_kv_transport transport);

/* The same for cmocka: state is a rig on the heap. */
int kv_rig_setup_shm(void **state);
int kv_rig_setup_tcp(void **state);
int kv_rig_setup_loopback(void **state);
int kv_rig_teardown(void **state);

/* Tests of a group: over one transport, named for it; over all of them. */
#define KV_RIG_TEST(test, transport)                                                               \
    {                                                                                              \
#test "/" #transport, test, kv_rig_setup_##transport, kv_rig_teardown, NULL                \
    }
#define KV_RIG_ON_ALL(test)                                                                        \
    KV_RIG_TEST(test, shm), KV_RIG_TEST(test, tcp), KV_RIG_TEST(test, loopback)

/* Number i names a transfer, i < RIG_TRANSFERS_MAX. */
bt_kv_transfer kv_rig_name(uint32_t i);
kv_rig_end *kv_rig_end_of(kv_rig *rig, uint32_t i);

/* Offers n_blocks (the last one partly filled) of source blocks first, first + 2, ... ; opens;
 * pulls into sink blocks RIG_BLOCKS - 1 - first, then downwards. Each asserts BT_OK. */
void kv_rig_offer(kv_rig *rig, uint32_t i, uint32_t first, uint32_t n_blocks);
void kv_rig_open(kv_rig *rig, uint32_t i);
/* The same by n_wanted identities kv_rig_identity(0), ... */
void kv_rig_open_cached(kv_rig *rig, uint32_t i, uint32_t n_wanted);
bt_hash128 kv_rig_identity(uint32_t block_idx);
void kv_rig_pull(kv_rig *rig, uint32_t i, uint32_t first, uint32_t n_blocks, uint32_t n_skip);
void kv_rig_announce_all(kv_rig *rig, uint32_t i, uint32_t n_blocks);
void kv_rig_complete(kv_rig *rig, uint32_t i, const char *blob, bool ends);

/* Runs the loop until `until` holds; false: it never did. */
bool kv_rig_run(kv_rig *rig, bool (*until)(kv_rig *rig, void *ctx), void *ctx);

/* Runs until transfer i has its callback from the sink, and from the source. */
bool kv_rig_run_done(kv_rig *rig, uint32_t i);
bool kv_rig_run_released(kv_rig *rig, uint32_t i);

/* Runs for some milliseconds of the loop. */
void kv_rig_run_for(kv_rig *rig, int polls);

void kv_rig_advance(kv_rig *rig, int64_t ms);

/* The bytes of the sink's block for block_idx of a pull that began at `first`. */
uint8_t *kv_rig_sink_block(kv_rig *rig, uint32_t first, uint32_t block_idx);
uint8_t *kv_rig_source_block(kv_rig *rig, uint32_t first, uint32_t block_idx);

/* Fails the test unless blocks [n_skip, n_blocks) equal the source's, and every other block
 * of the sink's pool is untouched. */
void kv_rig_expect_moved(kv_rig *rig, uint32_t first, uint32_t n_blocks, uint32_t n_skip);
void kv_rig_expect_untouched(kv_rig *rig);
void kv_rig_wipe_sink(kv_rig *rig);

#endif /* BT_TESTS_KVTRANSFER_KV_RIG_H */
