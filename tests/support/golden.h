/* SPDX-License-Identifier: Apache-2.0 */
/* golden.h - reader of tests/golden/smollm2.bin: what a float32 reference computes for fixed
 * prompts.
 *
 * tests/golden/make_golden.py makes the file; prompts.json beside it has the same prompts as text.
 * Little-endian, no padding but where said:
 *
 *   header   char magic[8] "BTGOLDEN", u32 version (1), n_vocab, n_prompts, n_steps, n_top,
 * n_probe, u8 model_sha256[32], u16 probe_ids[n_probe] ascending prompt   char name[24]
 * zero-filled, u32 n_tokens, u32 0, u16 tokens[n_tokens], zeros up to a multiple of 4 bytes, then
 * n_steps rows row      u16 top_ids[n_top], f32 top_logits[n_top] (larger first, ties to the lower
 * id), f32 log_sum_exp, f32 probe_logits[n_probe]
 *
 * Row i is the logits after prompt + answer[0 .. i-1], and answer[i] is row i's top_ids[0]: the
 * rows are the teacher-forced pass over the greedy answer. The answer runs past an end token.
 *
 * Threading: any thread after open (read only).
 * Memory:    taken in open, given back in close.
 */
#ifndef BT_TESTS_SUPPORT_GOLDEN_H
#define BT_TESTS_SUPPORT_GOLDEN_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define BT_GOLDEN_N_STEPS 64u
#define BT_GOLDEN_N_TOP 32u
#define BT_GOLDEN_N_PROBE 32u

/* One row of the reference. The probe's ids are bt_golden_probe_ids(). */
typedef struct bt_golden_row {
    uint32_t top_ids[BT_GOLDEN_N_TOP];
    float top_logits[BT_GOLDEN_N_TOP];
    float log_sum_exp; /* over the whole vocabulary */
    float probe_logits[BT_GOLDEN_N_PROBE];
} bt_golden_row;

typedef struct bt_golden_prompt {
    char name[25];
    size_t n_tokens;
    uint32_t *tokens; /* [n_tokens] */
    uint32_t answer[BT_GOLDEN_N_STEPS];
    bt_golden_row rows[BT_GOLDEN_N_STEPS];
} bt_golden_prompt;

typedef struct bt_golden bt_golden;

/* How one logits row differs from the reference's. */
typedef struct bt_golden_diff {
    float max_abs; /* largest difference over top and probe logits, nats */
    float gap;     /* the reference's best logit less its second best, nats */
    float lost; /* the reference's best logit less its logit of the argmax of `logits`, nats: 0 when
                   both choose the same; infinite when that token is in neither top nor probe */
    double kl;  /* KL(reference || logits) over the reference's top and the rest as one, nats */
    uint32_t argmax; /* of `logits`, ties to the lower id */
    bool same_argmax;
} bt_golden_diff;

/* Reads the file. On BT_OK the caller owns *out. BT_EIO, BT_ECORRUPT, BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_golden_open(const char *path, bt_golden **out, bt_error *err);

/* NULL is allowed. */
void bt_golden_close(bt_golden *golden);

size_t bt_golden_n_prompts(const bt_golden *golden);
uint32_t bt_golden_n_vocab(const bt_golden *golden);

/* Prompt `idx` < n_prompts; lives until close. Number 0 is "sky", the quick start's chat prompt. */
const bt_golden_prompt *bt_golden_prompt_at(const bt_golden *golden, size_t idx);

/* The prompt called `name`, or NULL. */
const bt_golden_prompt *bt_golden_prompt_named(const bt_golden *golden, const char *name);

/* The vocabulary ids of every row's probe_logits, [BT_GOLDEN_N_PROBE], ascending. */
const uint32_t *bt_golden_probe_ids(const bt_golden *golden);

/* Compares `logits` [n_vocab] with a row. O(n_vocab). */
bt_golden_diff bt_golden_compare(const bt_golden *golden, const bt_golden_row *row,
                                 const float *logits);

#endif /* BT_TESTS_SUPPORT_GOLDEN_H */
