/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"

enum { EVENTS_MAX = 1 << 15 };

void bt_side_must(bt_status status)
{
    BT_ASSERT(status == BT_OK);
}

void bt_side_open(bt_side *side, const bt_side_options *options)
{
    *side = (bt_side){.model = options->model};
    bt_side_must(bt_kv_pool_create(bt_model_kv_layout(options->model), options->n_blocks, false,
                                   &side->pool, NULL));
    const bt_kv_cache_options cache = {.pool = side->pool,
                                       .cached_blocks_max = options->cache ? UINT32_MAX : 0};
    bt_side_must(bt_kv_cache_create(&cache, &side->cache));
    const bt_engine_options engine = {
        .model = options->model,
        .pool = bt_kv_pool_base(side->pool),
        .rows_max = options->rows_max,
        .spans_max = options->spans_max,
        .logits_max = options->spans_max,
        .command_bytes = options->command_bytes,
        .commands_max = 16,
        .event_bytes = options->event_bytes,
        .events_max = EVENTS_MAX,
    };
    bt_side_must(bt_engine_create(&engine, &side->engine));
    bt_side_must(
        bt_batch_create(options->rows_max, options->spans_max, options->spans_max, &side->batch));
}

void bt_side_close(bt_side *side)
{
    bt_error err = {""};
    if (bt_kv_cache_audit(side->cache, &err) != BT_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    BT_ASSERT(bt_kv_cache_n_available(side->cache) == bt_kv_pool_n_blocks(side->pool));
    bt_batch_destroy(side->batch);
    bt_engine_destroy(side->engine);
    bt_kv_cache_destroy(side->cache);
    bt_kv_pool_destroy(side->pool);
}

bool bt_side_step(bt_side *side, bt_side_logits_fn seen, void *ctx)
{
    bt_batch_clear(side->batch);
    side->table.plan(side->table.ctx, side->batch);
    if (side->batch->n_rows == 0) {
        return false;
    }
    const float *logits = bt_model_forward(side->model, side->batch, bt_kv_pool_base(side->pool),
                                           side->table.layer_done, side->table.ctx);
    if (seen) {
        seen(ctx, side->batch, logits);
    }
    side->table.results(side->table.ctx, side->batch, logits);
    return true;
}

bt_sequence *bt_side_sequence(const bt_side *side, const int32_t *prompt, uint32_t n_prompt,
                              uint32_t max_tokens)
{
    bt_sequence *seq;
    bt_side_must(bt_sequence_create(bt_model_get_params(side->model)->context, &seq));
    memcpy(seq->tokens, prompt, n_prompt * sizeof *prompt);
    seq->n_prompt = n_prompt;
    seq->n_tokens = n_prompt;
    seq->sampling = (bt_sampling){
        .top_p = 1.0F, .repetition_penalty = 1.0F, .max_tokens = max_tokens, .ignore_eos = true};
    seq->use_cache = true;
    return seq;
}

bt_model *bt_side_load(const bt_tiny_model *tiny_model, const char *kernels, uint32_t n_threads,
                       uint32_t rows_max, uint32_t spans_max)
{
    char path[] = "/tmp/baton-side-XXXXXX";
    const int fd = mkstemp(path);
    BT_ASSERT(fd >= 0);
    (void)close(fd);
    bt_side_must(bt_tiny_model_write(tiny_model, path));
    const bt_model_options options = {
        .path = path,
        .kernels = kernels,
        .kv_format = strcmp(kernels, "reference") == 0 ? BT_KV_FORMAT_F32 : BT_KV_FORMAT_BF16,
        .n_threads = n_threads,
        .rows_max = rows_max,
        .spans_max = spans_max,
        .logits_max = spans_max,
    };
    bt_model *model = NULL;
    bt_error err = {""};
    if (bt_model_load(&options, &model, &err) != BT_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    (void)unlink(path);
    return model;
}
