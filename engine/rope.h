/* SPDX-License-Identifier: Apache-2.0 */
/* rope.h - table of rotary position embeddings, with the scaling kinds of Llama models.
 *
 * Su et al., RoFormer, section 3.4.2: pair i of position p turns by p * base^(-2i / n_rope).
 * Scaling: linear (Chen et al. 2023: p / factor), per-pair factors of the file
 * (`rope_freqs.weight`, how Llama 3.1 files carry theirs), YaRN (Peng et al. 2023, section 3.2:
 * per-pair ramp between both, and a factor on cos and sin). Frequencies and angles are rounded
 * to f32, as in the training code of these models.
 *
 * Threading: any thread. Memory: the caller's.
 */
#ifndef BT_ENGINE_ROPE_H
#define BT_ENGINE_ROPE_H

#include "common/status.h"
#include "engine/gguf.h"

typedef struct bt_rope {
    uint32_t n_rope; /* rotated channels of a head, even */
    float base;
    float factor; /* 1: no scaling; else positions are stretched by it */
    bool yarn;
    float yarn_context;        /* context length before scaling */
    float yarn_scale;          /* extra factor on cos and sin, usually 1 */
    const float *pair_factors; /* [n_rope / 2], borrowed from the file; NULL: none */
} bt_rope;

/* Reads the file's keys `arch`.rope.*. BT_EINVAL, BT_EUNSUPPORTED: the text names the key. */
BT_MUST_CHECK bt_status bt_rope_read(const bt_gguf *gguf, const char *arch, uint32_t head_dim,
                                     bt_rope *out, bt_error *err);

/* Fills table[n_positions][n_rope / 2][2] with cos and sin. */
void bt_rope_fill(const bt_rope *rope, uint32_t n_positions, float *table);

#endif /* BT_ENGINE_ROPE_H */
