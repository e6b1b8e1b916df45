/* SPDX-License-Identifier: Apache-2.0 */
/* side.h - one worker's engine without its thread: a test calls the scheduler's table itself.
 *
 * Threading: one thread. Memory: the heap; for tests. A failure aborts the program.
 */
#ifndef BT_TESTS_SUPPORT_SIDE_H
#define BT_TESTS_SUPPORT_SIDE_H

#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "engine/sequence.h"
#include "tests/support/tiny_model.h"

typedef struct bt_side_options {
    bt_model *model;
    uint32_t n_blocks;
    uint32_t rows_max;
    uint32_t spans_max;
    bool cache; /* prefix reuse */
    size_t command_bytes;
    size_t event_bytes;
} bt_side_options;

typedef struct bt_side {
    bt_model *model;
    bt_kv_pool *pool;
    bt_kv_cache *cache;
    bt_engine *engine; /* takes events; never started */
    bt_batch *batch;
    bt_engine_scheduler table; /* set by the test, once its scheduler exists */
} bt_side;

void bt_side_open(bt_side *side, const bt_side_options *options);

/* Audits the pool: every block must be back. */
void bt_side_close(bt_side *side);

/* Called between forward and results. */
typedef void (*bt_side_logits_fn)(void *ctx, const bt_batch *batch, const float *logits);

/* Plans and runs one step; false: nothing to run. `seen` may be NULL. */
bool bt_side_step(bt_side *side, bt_side_logits_fn seen, void *ctx);

/* A sequence that holds a copy of the prompt, greedy, max_tokens as given. */
bt_sequence *bt_side_sequence(const bt_side *side, const int32_t *prompt, uint32_t n_prompt,
                              uint32_t max_tokens);

/* Writes and loads a tiny model. */
bt_model *bt_side_load(const bt_tiny_model *tiny_model, const char *kernels, uint32_t n_threads,
                       uint32_t rows_max, uint32_t spans_max);

/* Aborts unless status is BT_OK. */
void bt_side_must(bt_status status);

#endif /* BT_TESTS_SUPPORT_SIDE_H */
