/* SPDX-License-Identifier: Apache-2.0 */
/* chains.h - chains of cached blocks that a worker fetches from others, and those it serves.
 *
 * A router says what is fetched from whom (proto/link.h); the blocks are named by identity and
 * move as any transfer does (kvtransfer/), from free blocks to free blocks. chains.c draws the
 * states. A fetched chain is found by nobody before all of its parts were checked, and whatever
 * goes wrong, each end gives its blocks back.
 *
 * Threading: loop thread only.
 * Memory:    create only.
 */
#ifndef BT_WORKER_CHAINS_H
#define BT_WORKER_CHAINS_H

#include "engine/kv_chain.h"
#include "kvtransfer/sink.h"
#include "kvtransfer/source.h"
#include "proto/link.h"

enum { BT_WORKER_CHAINS_MAX = 8 }; /* under way at a time, both ways together */

typedef struct bt_worker_chains bt_worker_chains;

typedef struct bt_worker_chains_options {
    bt_kv_source *source; /* borrowed; their callbacks come to the functions below first */
    bt_kv_sink *sink;
    uint32_t blocks_max; /* of one chain; longer ones are cut */
    /* Posts a step to the engine; bt_worker_chains_stepped() follows. */
    void (*post)(bt_kv_chain *chain, void *ctx);
    /* What came of a fetch, once for each; for the router of that index. */
    void (*fetched)(uint32_t router, const bt_link_fetched *fetched, void *ctx);
    bt_loop_fn ended; /* one fewer is under way */
    void *ctx;
} bt_worker_chains_options;

typedef struct bt_worker_chains_stats {
    uint32_t n_open;  /* both ways; their blocks are referred to, or about to be */
    int64_t moved_ns; /* when the last one that was served began or ended; 0: never */
} bt_worker_chains_stats;

BT_MUST_CHECK bt_status bt_worker_chains_create(const bt_worker_chains_options *options,
                                                bt_worker_chains **out);

/* With source and sink still there, or none open. NULL is allowed. */
void bt_worker_chains_destroy(bt_worker_chains *chains);

/* Begins to fetch; fetched() comes once, perhaps at once. */
void bt_worker_chains_fetch(bt_worker_chains *chains, uint32_t router, const bt_link_fetch *fetch);

/* From the source's wanted(). */
void bt_worker_chains_serve(bt_worker_chains *chains, bt_kv_transfer transfer,
                            const bt_hash128 *identities, uint32_t n, int64_t deadline_ns);

/* The engine did the posted step. */
void bt_worker_chains_stepped(bt_worker_chains *chains, bt_kv_chain *chain);

/* The callbacks of source and sink: false, it is another's transfer. */
bool bt_worker_chains_offered(bt_worker_chains *chains, bt_kv_transfer transfer, uint32_t n_blocks);
bool bt_worker_chains_done(bt_worker_chains *chains, const bt_kv_done *done);
bool bt_worker_chains_failed(bt_worker_chains *chains, bt_kv_transfer transfer, bt_status status,
                             const char *text);
bool bt_worker_chains_released(bt_worker_chains *chains, bt_kv_transfer transfer);

/* Ends all of them soon, and serves no more. NULL: there are none, here and below. */
void bt_worker_chains_stop(bt_worker_chains *chains);

bt_worker_chains_stats bt_worker_chains_get_stats(const bt_worker_chains *chains);

/* A peer as the link names it, as transfers do. */
void bt_worker_chains_peer(const bt_link_kv_peer *in, bt_kv_peer *out);

#endif /* BT_WORKER_CHAINS_H */
