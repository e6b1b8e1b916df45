/* SPDX-License-Identifier: Apache-2.0 */
/* golden_run.h - runs the model over golden prompts, teacher-forced, and sums up the differences.
 *
 * Each prompt and its reference answer are fed in chunks into a fresh sequence; the logits of
 * each of the 64 positions are compared with the reference's (golden.h).
 *
 * Threading: the thread that calls; the model's own helpers work inside.
 * Memory:    as the model takes.
 */
#ifndef BT_TESTS_SUPPORT_GOLDEN_RUN_H
#define BT_TESTS_SUPPORT_GOLDEN_RUN_H

#include "engine/kv_layout.h"
#include "tests/support/golden.h"

typedef struct bt_golden_report {
    char kernels[32]; /* kernel path that ran */
    size_t n_prompts;
    size_t n_positions;
    size_t n_same_argmax;
    size_t
        n_clear_misses; /* another argmax though the reference's gap exceeds BT_GOLDEN_CLEAR_GAP */
    float max_abs;      /* largest difference of a stored logit; NaN if one was NaN */
    float lost_max;     /* most that another argmax costs in the reference, nats */
    float gap_max;      /* largest gap of the reference where the argmax is another, nats */
    double kl_sum;      /* divide by n_positions for the mean, nats */
    double kl_max;
} bt_golden_report;

/* Where the reference's best logit leads by more, float32 has no excuse to choose another. */
#define BT_GOLDEN_CLEAR_GAP 2e-3f

typedef void (*bt_golden_prompt_fn)(void *ctx, const bt_golden_prompt *prompt,
                                    const bt_golden_report *of_prompt);

typedef struct bt_golden_run_options {
    const char *model_path;
    const char *kernels; /* kernel path, or "auto" */
    bt_kv_format kv_format;
    uint32_t n_threads;
    uint32_t chunk;           /* most rows of a step, a multiple of 16; 0: 256 */
    size_t prompt_tokens_max; /* longer prompts are left out; 0: none is */
    size_t prompts_max;       /* stops after so many; 0: no limit */
    bt_golden_prompt_fn each; /* after each prompt; NULL: not told */
    void *ctx;
} bt_golden_run_options;

/* Runs and fills *total. Errors are those of bt_model_load, or BT_EMISMATCH when the model has
 * another vocabulary than the golden file. */
BT_MUST_CHECK bt_status bt_golden_run(const bt_golden *golden, const bt_golden_run_options *options,
                                      bt_golden_report *total, bt_error *err);

/* The bounds of an f32 path: logits within 1e-3, no clear miss. */
bool bt_golden_is_exact(const bt_golden_report *report);

/* The bounds of a path with 16-bit weights and KV: the same argmax at 98% of the positions or
 * more, elsewhere the reference's gap is at most 0.1 nat, mean KL below 1e-3. */
bool bt_golden_is_close(const bt_golden_report *report);

#endif /* BT_TESTS_SUPPORT_GOLDEN_RUN_H */
