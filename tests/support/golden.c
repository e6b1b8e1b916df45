/* SPDX-License-Identifier: Apache-2.0 */
/* The file is read whole, checked for its exact size, and widened into structs. */
#include "tests/support/golden.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES 64u
#define PROMPT_HEADER_BYTES 32u
#define MAX_FILE_BYTES (64u << 20)
#define MAX_PROMPTS 4096u

struct bt_golden {
    uint32_t n_vocab;
    size_t n_prompts;
    uint32_t probe_ids[BT_GOLDEN_N_PROBE];
    bt_golden_prompt *prompts; /* [n_prompts] */
};

/* What is left of the file; `ok` falls once when a read goes past the end. */
typedef struct cursor {
    const uint8_t *at;
    size_t left;
    bool ok;
} cursor;

static const uint8_t *advance(cursor *c, size_t n)
{
    if (!c->ok || n > c->left) {
        c->ok = false;
        return NULL;
    }
    const uint8_t *at = c->at;
    c->at += n;
    c->left -= n;
    return at;
}

static uint32_t read_u32(cursor *c)
{
    const uint8_t *p = advance(c, 4);
    return p ? (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24
             : 0;
}

static void read_u16s(cursor *c, size_t n, uint32_t *out)
{
    const uint8_t *p = advance(c, 2 * n);
    for (size_t i = 0; i < n; i++) {
        out[i] = p ? (uint32_t)p[2 * i] | (uint32_t)p[2 * i + 1] << 8 : 0;
    }
}

static void read_f32s(cursor *c, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = read_u32(c);
        memcpy(&out[i], &bits, sizeof bits);
    }
}

static bool read_header(cursor *c, bt_golden *g)
{
    const uint8_t *magic = advance(c, 8);
    if (magic == NULL || memcmp(magic, "BTGOLDEN", 8) != 0 || read_u32(c) != 1) {
        return false;
    }
    g->n_vocab = read_u32(c);
    g->n_prompts = read_u32(c);
    const bool sizes_fit = read_u32(c) == BT_GOLDEN_N_STEPS && read_u32(c) == BT_GOLDEN_N_TOP &&
                           read_u32(c) == BT_GOLDEN_N_PROBE;
    (void)advance(c, 32);
    read_u16s(c, BT_GOLDEN_N_PROBE, g->probe_ids);
    return c->ok && sizes_fit && g->n_prompts > 0 && g->n_prompts <= MAX_PROMPTS && g->n_vocab > 0;
}

static bool ids_fit(const uint32_t *ids, size_t n, uint32_t n_vocab)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= n_vocab) {
            return false;
        }
    }
    return true;
}

static bt_status read_prompt(cursor *c, uint32_t n_vocab, bt_golden_prompt *p)
{
    const uint8_t *name = advance(c, 24);
    if (name == NULL) {
        return BT_ECORRUPT;
    }
    memcpy(p->name, name, 24);
    const size_t n = read_u32(c);
    (void)read_u32(c);
    if (n == 0 || n > c->left / 2) {
        return BT_ECORRUPT;
    }
    p->tokens = calloc(n, sizeof *p->tokens);
    if (p->tokens == NULL) {
        return BT_ENOMEM;
    }
    p->n_tokens = n;
    read_u16s(c, n, p->tokens);
    (void)advance(c, n % 2 * 2);
    bool fit = ids_fit(p->tokens, n, n_vocab);
    for (size_t i = 0; i < BT_GOLDEN_N_STEPS; i++) {
        bt_golden_row *row = &p->rows[i];
        read_u16s(c, BT_GOLDEN_N_TOP, row->top_ids);
        read_f32s(c, BT_GOLDEN_N_TOP, row->top_logits);
        read_f32s(c, 1, &row->log_sum_exp);
        read_f32s(c, BT_GOLDEN_N_PROBE, row->probe_logits);
        fit = fit && ids_fit(row->top_ids, BT_GOLDEN_N_TOP, n_vocab);
        p->answer[i] = row->top_ids[0];
    }
    return c->ok && fit ? BT_OK : BT_ECORRUPT;
}

static bt_status parse(cursor *c, bt_golden *g)
{
    if (!read_header(c, g) || !ids_fit(g->probe_ids, BT_GOLDEN_N_PROBE, g->n_vocab)) {
        g->n_prompts = 0;
        return BT_ECORRUPT;
    }
    g->prompts = calloc(g->n_prompts, sizeof *g->prompts);
    if (g->prompts == NULL) {
        g->n_prompts = 0;
        return BT_ENOMEM;
    }
    for (size_t i = 0; i < g->n_prompts; i++) {
        const bt_status status = read_prompt(c, g->n_vocab, &g->prompts[i]);
        if (status != BT_OK) {
            return status;
        }
    }
    return c->left == 0 ? BT_OK : BT_ECORRUPT;
}

static bt_status read_file(const char *path, uint8_t **out, size_t *out_bytes, bt_error *err)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return bt_error_set(err, BT_EIO, "cannot open '%s': %s", path, strerror(errno));
    }
    bt_status status = BT_OK;
    uint8_t *bytes = NULL;
    long end = -1;
    if (fseek(file, 0, SEEK_END) != 0 || (end = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0) {
        status = bt_error_set(err, BT_EIO, "cannot read '%s': %s", path, strerror(errno));
    } else if ((size_t)end < HEADER_BYTES || (size_t)end > MAX_FILE_BYTES) {
        status = bt_error_set(err, BT_ECORRUPT, "cannot read '%s': not a golden file", path);
    } else if ((bytes = malloc((size_t)end)) == NULL) {
        status = BT_ENOMEM;
    } else if (fread(bytes, 1, (size_t)end, file) != (size_t)end) {
        status = bt_error_set(err, BT_EIO, "cannot read '%s': it ended early", path);
        free(bytes);
    } else {
        *out = bytes;
        *out_bytes = (size_t)end;
    }
    (void)fclose(file);
    return status;
}

bt_status bt_golden_open(const char *path, bt_golden **out, bt_error *err)
{
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    bt_status status = read_file(path, &bytes, &n_bytes, err);
    if (status != BT_OK) {
        return status;
    }
    bt_golden *g = calloc(1, sizeof *g);
    if (g == NULL) {
        status = BT_ENOMEM;
    } else {
        status = parse(&(cursor){.at = bytes, .left = n_bytes, .ok = true}, g);
    }
    free(bytes);
    if (status != BT_OK) {
        bt_golden_close(g);
        return bt_error_set(err, status, "cannot read '%s': %s", path,
                            status == BT_ENOMEM ? "out of memory" : "not a golden file");
    }
    *out = g;
    return BT_OK;
}

void bt_golden_close(bt_golden *golden)
{
    if (golden == NULL) {
        return;
    }
    for (size_t i = 0; i < golden->n_prompts; i++) {
        free(golden->prompts[i].tokens);
    }
    free(golden->prompts);
    free(golden);
}

size_t bt_golden_n_prompts(const bt_golden *golden)
{
    return golden->n_prompts;
}

uint32_t bt_golden_n_vocab(const bt_golden *golden)
{
    return golden->n_vocab;
}

const bt_golden_prompt *bt_golden_prompt_at(const bt_golden *golden, size_t idx)
{
    return &golden->prompts[idx];
}

const bt_golden_prompt *bt_golden_prompt_named(const bt_golden *golden, const char *name)
{
    for (size_t i = 0; i < golden->n_prompts; i++) {
        if (strcmp(golden->prompts[i].name, name) == 0) {
            return &golden->prompts[i];
        }
    }
    return NULL;
}

const uint32_t *bt_golden_probe_ids(const bt_golden *golden)
{
    return golden->probe_ids;
}

/* The reference's logit of `id`, or minus infinity where the row does not have it. */
static float reference_logit(const bt_golden *g, const bt_golden_row *row, uint32_t id)
{
    for (size_t i = 0; i < BT_GOLDEN_N_TOP; i++) {
        if (row->top_ids[i] == id) {
            return row->top_logits[i];
        }
        if (g->probe_ids[i] == id) {
            return row->probe_logits[i];
        }
    }
    return -INFINITY;
}
_Static_assert(BT_GOLDEN_N_TOP == BT_GOLDEN_N_PROBE, "one loop walks both");

static double log_sum_exp(const float *logits, size_t n, float largest)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += exp((double)logits[i] - (double)largest);
    }
    return (double)largest + log(sum);
}

/* sum p log(p / q) over the top tokens, and the rest taken as one event. */
static double divergence(const bt_golden_row *row, const float *logits, double lse)
{
    double kl = 0;
    double p_rest = 1;
    double q_rest = 1;
    for (size_t i = 0; i < BT_GOLDEN_N_TOP; i++) {
        const double log_p = (double)row->top_logits[i] - (double)row->log_sum_exp;
        const double log_q = (double)logits[row->top_ids[i]] - lse;
        kl += exp(log_p) * (log_p - log_q);
        p_rest -= exp(log_p);
        q_rest -= exp(log_q);
    }
    /* Below the rounding of log_sum_exp (f32) the rest has no digits left. */
    const double least = 1e-6;
    if (p_rest > least && q_rest > least) {
        kl += p_rest * log(p_rest / q_rest);
    }
    return kl;
}

static float larger_or_nan(float a, float b)
{
    return isnan(a) || b <= a ? a : b;
}

bt_golden_diff bt_golden_compare(const bt_golden *golden, const bt_golden_row *row,
                                 const float *logits)
{
    bt_golden_diff diff = {.gap = row->top_logits[0] - row->top_logits[1]};
    for (uint32_t i = 1; i < golden->n_vocab; i++) {
        if (logits[i] > logits[diff.argmax]) {
            diff.argmax = i;
        }
    }
    for (size_t i = 0; i < BT_GOLDEN_N_TOP; i++) {
        const float at_top = fabsf(logits[row->top_ids[i]] - row->top_logits[i]);
        const float at_probe = fabsf(logits[golden->probe_ids[i]] - row->probe_logits[i]);
        diff.max_abs = larger_or_nan(diff.max_abs, at_top);
        diff.max_abs = larger_or_nan(diff.max_abs, at_probe);
    }
    diff.same_argmax = diff.argmax == row->top_ids[0];
    diff.lost = row->top_logits[0] - reference_logit(golden, row, diff.argmax);
    diff.kl = divergence(row, logits, log_sum_exp(logits, golden->n_vocab, logits[diff.argmax]));
    return diff;
}
