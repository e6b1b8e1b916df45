/* SPDX-License-Identifier: Apache-2.0 */
/* One span a step: rows of [prompt, answer less its last token] in chunks. Row i of the golden
 * file is the logits after prompt + i answer tokens, so the wanted rows are the last 64. */
#include "tests/support/golden_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "engine/model.h"

#define CHUNK_DEFAULT 256u

/* What one prompt after the other runs on. */
typedef struct rig {
    const bt_golden *golden;
    bt_model *model;
    bt_kv_pool *pool;
    bt_batch *batch;
    int32_t *tokens;     /* [n_positions_max] */
    bt_block_id *blocks; /* block table for n_positions_max positions */
    uint32_t chunk;
} rig;

static bool is_chosen(const bt_golden_run_options *options, const bt_golden_prompt *prompt)
{
    return options->prompt_tokens_max == 0 || prompt->n_tokens <= options->prompt_tokens_max;
}

static size_t longest_chosen(const bt_golden *golden, const bt_golden_run_options *options)
{
    size_t longest = 0;
    for (size_t i = 0; i < bt_golden_n_prompts(golden); i++) {
        const bt_golden_prompt *prompt = bt_golden_prompt_at(golden, i);
        if (is_chosen(options, prompt)) {
            longest = bt_size_max(longest, prompt->n_tokens);
        }
    }
    return longest;
}

static void rig_close(rig *r)
{
    bt_batch_destroy(r->batch);
    bt_kv_pool_destroy(r->pool);
    bt_model_destroy(r->model);
    free(r->tokens);
    free(r->blocks);
}

static bt_status rig_load(rig *r, const bt_golden_run_options *options, bt_error *err)
{
    const bt_model_options model_options = {
        .path = options->model_path,
        .kernels = options->kernels,
        .kv_format = options->kv_format,
        .n_threads = options->n_threads,
        .rows_max = r->chunk,
        .spans_max = 1,
        .logits_max = BT_GOLDEN_N_STEPS,
    };
    const bt_status status = bt_model_load(&model_options, &r->model, err);
    if (status != BT_OK) {
        return status;
    }
    if (bt_model_get_params(r->model)->n_vocab != bt_golden_n_vocab(r->golden)) {
        return bt_error_set(err, BT_EMISMATCH,
                            "cannot compare '%s': it is not the model of the golden file",
                            options->model_path);
    }
    return BT_OK;
}

static bt_status rig_open(rig *r, const bt_golden_run_options *options, bt_error *err)
{
    const size_t n_positions = longest_chosen(r->golden, options) + BT_GOLDEN_N_STEPS;
    const uint32_t n_blocks = (uint32_t)bt_div_ceil(n_positions, BT_KV_BLOCK_TOKENS);
    bt_status status = rig_load(r, options, err);
    if (status != BT_OK) {
        return status;
    }
    status = bt_kv_pool_create(bt_model_kv_layout(r->model), n_blocks, false, &r->pool, err);
    if (status != BT_OK) {
        return status;
    }
    r->tokens = calloc(n_positions, sizeof *r->tokens);
    r->blocks = calloc(n_blocks, sizeof *r->blocks);
    if (r->tokens == NULL || r->blocks == NULL ||
        bt_batch_create(r->chunk, 1, BT_GOLDEN_N_STEPS, &r->batch) != BT_OK) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < n_blocks; i++) {
        status = bt_kv_pool_acquire(r->pool, &r->blocks[i]);
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

/* The pool wants each block back before it goes. */
static void release_blocks(rig *r)
{
    const uint32_t n_blocks = r->pool && r->blocks ? bt_kv_pool_n_blocks(r->pool) : 0;
    for (uint32_t i = 0; i < n_blocks; i++) {
        if (bt_kv_pool_refs(r->pool, r->blocks[i]) == 1 &&
            bt_kv_pool_unref(r->pool, r->blocks[i])) {
            bt_kv_pool_free(r->pool, r->blocks[i]);
        }
    }
}

static void account(bt_golden_report *report, const bt_golden_diff *diff)
{
    report->n_positions++;
    report->n_same_argmax += diff->same_argmax;
    report->n_clear_misses += !diff->same_argmax && diff->gap > BT_GOLDEN_CLEAR_GAP;
    report->max_abs = diff->max_abs <= report->max_abs || isnan(report->max_abs) ? report->max_abs
                                                                                 : diff->max_abs;
    report->lost_max = fmaxf(report->lost_max, diff->lost);
    report->gap_max = diff->same_argmax ? report->gap_max : fmaxf(report->gap_max, diff->gap);
    report->kl_sum += diff->kl;
    report->kl_max = fmax(report->kl_max, diff->kl);
}

static void merge(bt_golden_report *total, const bt_golden_report *part)
{
    total->n_prompts += part->n_prompts;
    total->n_positions += part->n_positions;
    total->n_same_argmax += part->n_same_argmax;
    total->n_clear_misses += part->n_clear_misses;
    total->max_abs =
        part->max_abs <= total->max_abs || isnan(total->max_abs) ? total->max_abs : part->max_abs;
    total->lost_max = fmaxf(total->lost_max, part->lost_max);
    total->gap_max = fmaxf(total->gap_max, part->gap_max);
    total->kl_sum += part->kl_sum;
    total->kl_max = fmax(total->kl_max, part->kl_max);
}

static void run_prompt(rig *r, const bt_golden_prompt *prompt, bt_golden_report *report)
{
    const uint32_t n_prompt = (uint32_t)prompt->n_tokens;
    const uint32_t n_rows = n_prompt + BT_GOLDEN_N_STEPS - 1;
    for (uint32_t i = 0; i < n_rows; i++) {
        r->tokens[i] = (int32_t)(i < n_prompt ? prompt->tokens[i] : prompt->answer[i - n_prompt]);
    }
    report->n_prompts = 1;
    for (uint32_t first = 0; first < n_rows; first += r->chunk) {
        const uint32_t n = (uint32_t)bt_size_min(r->chunk, n_rows - first);
        /* Rows of this chunk from `wanted` on have a golden row. */
        const uint32_t wanted =
            n_prompt - 1 <= first ? 0 : (uint32_t)bt_size_min(n, n_prompt - 1 - first);
        bt_batch_clear(r->batch);
        bt_batch_add(r->batch, r, r->tokens + first, n, first, r->blocks);
        for (uint32_t row = wanted; row < n; row++) {
            bt_batch_want_logits(r->batch, n - 1 - row);
        }
        const float *logits =
            bt_model_forward(r->model, r->batch, bt_kv_pool_base(r->pool), NULL, NULL);
        for (uint32_t row = wanted; row < n; row++) {
            const bt_golden_diff diff =
                bt_golden_compare(r->golden, &prompt->rows[first + row - (n_prompt - 1)],
                                  logits + (size_t)(row - wanted) * bt_golden_n_vocab(r->golden));
            account(report, &diff);
        }
    }
}

bt_status bt_golden_run(const bt_golden *golden, const bt_golden_run_options *options,
                        bt_golden_report *total, bt_error *err)
{
    rig r = {.golden = golden, .chunk = options->chunk ? options->chunk : CHUNK_DEFAULT};
    const bt_status status = rig_open(&r, options, err);
    if (status == BT_OK) {
        bt_golden_report sum = {.n_prompts = 0};
        (void)snprintf(sum.kernels, sizeof sum.kernels, "%s", bt_model_kernels(r.model));
        for (size_t i = 0; i < bt_golden_n_prompts(golden); i++) {
            const bt_golden_prompt *prompt = bt_golden_prompt_at(golden, i);
            const bool enough = options->prompts_max > 0 && sum.n_prompts >= options->prompts_max;
            if (!is_chosen(options, prompt) || enough) {
                continue;
            }
            bt_golden_report report = {.n_prompts = 0};
            memcpy(report.kernels, sum.kernels, sizeof report.kernels);
            run_prompt(&r, prompt, &report);
            merge(&sum, &report);
            if (options->each != NULL) {
                options->each(options->ctx, prompt, &report);
            }
        }
        *total = sum;
    }
    release_blocks(&r);
    rig_close(&r);
    return status;
}

bool bt_golden_is_exact(const bt_golden_report *report)
{
    return report->max_abs <= 1e-3f && report->n_clear_misses == 0;
}

bool bt_golden_is_close(const bt_golden_report *report)
{
    return report->n_same_argmax * 100 >= report->n_positions * 98 && report->gap_max <= 0.1f &&
           report->kl_sum / (double)report->n_positions < 1e-3;
}
