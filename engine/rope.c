/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"

static const double pi = 3.14159265358979323846;
static const double yarn_beta_fast = 32.0;
static const double yarn_beta_slow = 1.0;

static const char *key_of(char *text, size_t bytes, const char *arch, const char *name)
{
    (void)snprintf(text, bytes, "%s.rope.%s", arch, name);
    return text;
}

static bool string_is(bt_gguf_string string, const char *text)
{
    return string.len == strlen(text) && memcmp(string.bytes, text, string.len) == 0;
}

static bt_status read_pair_factors(const bt_gguf *gguf, bt_rope *rope, bt_error *err)
{
    const bt_gguf_tensor *tensor = bt_gguf_find_tensor(gguf, "rope_freqs.weight");
    if (!tensor) {
        return BT_OK;
    }
    if (tensor->type != BT_GGUF_F32 || tensor->n_elements != rope->n_rope / 2) {
        return bt_error_set(err, BT_EINVAL,
                            "tensor 'rope_freqs.weight': %llu elements of %s where %u of F32 "
                            "were expected",
                            (unsigned long long)tensor->n_elements, bt_gguf_type_name(tensor->type),
                            rope->n_rope / 2);
    }
    rope->pair_factors = tensor->data;
    for (uint32_t i = 0; i < rope->n_rope / 2; i++) {
        if (!isfinite(rope->pair_factors[i]) || rope->pair_factors[i] <= 0.0F) {
            return bt_error_set(err, BT_EINVAL,
                                "tensor 'rope_freqs.weight': element %u is not above 0", i);
        }
    }
    return BT_OK;
}

static bt_status read_scaling(const bt_gguf *gguf, const char *arch, bt_rope *rope, bt_error *err)
{
    char key[128];
    bt_gguf_string kind = {"none", 4};
    bt_status status =
        bt_gguf_get_string(gguf, key_of(key, sizeof key, arch, "scaling.type"), &kind, err);
    if (status == BT_ENOTFOUND) {
        /* Old files say a linear factor alone. */
        return bt_gguf_get_f32_or(gguf, key_of(key, sizeof key, arch, "scale_linear"), 1.0F,
                                  &rope->factor, err);
    }
    if (status != BT_OK) {
        return status;
    }
    if (string_is(kind, "none")) {
        return BT_OK;
    }
    rope->yarn = string_is(kind, "yarn");
    if (!rope->yarn && !string_is(kind, "linear")) {
        return bt_error_set(err, BT_EUNSUPPORTED,
                            "'%s' is '%.*s'. Supported are none, linear and yarn", key,
                            (int)bt_size_min(kind.len, 32), kind.bytes);
    }
    status = bt_gguf_get_f32_or(gguf, key_of(key, sizeof key, arch, "scaling.factor"), 1.0F,
                                &rope->factor, err);
    if (status != BT_OK || !rope->yarn) {
        return status;
    }
    status = bt_gguf_get_f32_or(gguf, key_of(key, sizeof key, arch, "scaling.attn_factor"), 1.0F,
                                &rope->yarn_scale, err);
    if (status != BT_OK) {
        return status;
    }
    uint32_t context;
    status = bt_gguf_get_u32(gguf, key_of(key, sizeof key, arch, "scaling.original_context_length"),
                             &context, err);
    rope->yarn_context = (float)context;
    return status;
}

bt_status bt_rope_read(const bt_gguf *gguf, const char *arch, uint32_t head_dim, bt_rope *out,
                       bt_error *err)
{
    char key[128];
    bt_rope rope = {.factor = 1.0F, .yarn_scale = 1.0F};
    bt_status status = bt_gguf_get_u32_or(gguf, key_of(key, sizeof key, arch, "dimension_count"),
                                          head_dim, &rope.n_rope, err);
    if (status != BT_OK) {
        return status;
    }
    if (rope.n_rope == 0 || rope.n_rope % 2 != 0 || rope.n_rope > head_dim) {
        return bt_error_set(err, BT_EINVAL, "'%s' is %u, not an even number up to %u", key,
                            rope.n_rope, head_dim);
    }
    status = bt_gguf_get_f32_or(gguf, key_of(key, sizeof key, arch, "freq_base"), 10000.0F,
                                &rope.base, err);
    if (status != BT_OK) {
        return status;
    }
    if (!isfinite(rope.base) || rope.base <= 1.0F) {
        return bt_error_set(err, BT_EINVAL, "'%s' is %g, not a number above 1", key,
                            (double)rope.base);
    }
    status = read_scaling(gguf, arch, &rope, err);
    if (status == BT_OK) {
        status = read_pair_factors(gguf, &rope, err);
    }
    if (status != BT_OK) {
        return status;
    }
    if (!isfinite(rope.factor) || rope.factor <= 0.0F || !isfinite(rope.yarn_scale) ||
        (rope.yarn && (rope.factor < 1.0F || rope.yarn_context < 1.0F))) {
        return bt_error_set(err, BT_EINVAL, "the %s.rope.scaling values are out of range", arch);
    }
    *out = rope;
    return BT_OK;
}

/* The pair whose wave turns n_turns times over the original context (YaRN, section 3.2). */
static double yarn_pair(const bt_rope *rope, double n_turns)
{
    return rope->n_rope * log((double)rope->yarn_context / (n_turns * 2.0 * pi)) /
           (2.0 * log((double)rope->base));
}

/* Angle per position of pair i, in f32. */
static float frequency(const bt_rope *rope, uint32_t i)
{
    const float exponent = (float)(2 * i) / (float)rope->n_rope;
    const float whole = 1.0F / (float)pow((double)rope->base, (double)exponent);
    const float plain = rope->pair_factors ? whole / rope->pair_factors[i] : whole;
    const float stretched = plain / rope->factor;
    if (!rope->yarn) {
        return stretched;
    }
    const double low = fmax(0.0, floor(yarn_pair(rope, yarn_beta_fast)));
    const double high = fmin(rope->n_rope - 1.0, ceil(yarn_pair(rope, yarn_beta_slow)));
    const double ramp = fmin(1.0, fmax(0.0, (i - low) / fmax(0.001, high - low)));
    return (float)((double)stretched * ramp + (double)plain * (1.0 - ramp));
}

void bt_rope_fill(const bt_rope *rope, uint32_t n_positions, float *table)
{
    const uint32_t n_pairs = rope->n_rope / 2;
    double scale = (double)rope->yarn_scale;
    if (rope->yarn) {
        scale *= 1.0 + 0.1 * log((double)rope->factor);
    }
    for (uint32_t i = 0; i < n_pairs; i++) {
        const float turn = frequency(rope, i);
        for (uint32_t p = 0; p < n_positions; p++) {
            const float angle = (float)p * turn;
            float *out = table + ((size_t)p * n_pairs + i) * 2;
            out[0] = (float)(cos((double)angle) * scale);
            out[1] = (float)(sin((double)angle) * scale);
        }
    }
}
