/* SPDX-License-Identifier: Apache-2.0 */
/* weights.h - a model file's parameters, and its tensors packed for a backend.
 *
 * Matrices that share their input are packed as one: q, k and v; gate and up. A tied output
 * matrix is the embedding itself.
 *
 * Threading: any one thread. Memory: the loads; destroy gives it back.
 */
#ifndef BT_ENGINE_WEIGHTS_H
#define BT_ENGINE_WEIGHTS_H

#include "engine/backend.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/rope.h"

typedef struct bt_layer_weights {
    float *attn_norm;    /* [dim] */
    bt_matrix *qkv;      /* [(n_heads + 2 n_kv_heads) head_dim, dim] */
    bt_matrix *attn_out; /* [dim, n_heads head_dim] */
    float *ffn_norm;     /* [dim] */
    bt_matrix *gate_up;  /* [2 n_ffn, dim] */
    bt_matrix *down;     /* [dim, n_ffn] */
} bt_layer_weights;

typedef struct bt_weights {
    bt_matrix *embed;   /* [n_vocab, dim] */
    bt_matrix *output;  /* [n_vocab, dim]; may be embed */
    float *output_norm; /* [dim] */
    uint32_t n_layers;
    bt_layer_weights *layers; /* [n_layers] */
} bt_weights;

/* Reads and checks hyperparameters, shapes and names of all tensors. context_max 0: the file's.
 * BT_EUNSUPPORTED: another architecture, a tensor or type that isn't known; BT_EINVAL,
 * BT_ENOTFOUND; the text names key or tensor. */
BT_MUST_CHECK bt_status bt_weights_read_params(const bt_gguf *gguf, uint32_t context_max,
                                               bt_model_params *params, bt_rope *rope,
                                               bt_error *err);

/* Packs every tensor of a file whose parameters were read. */
BT_MUST_CHECK bt_status bt_weights_load(const bt_gguf *gguf, const bt_model_params *params,
                                        bt_backend *backend, bt_model_progress_fn progress,
                                        void *progress_ctx, bt_weights *out, bt_error *err);

/* Accepts half-made weights. */
void bt_weights_destroy(bt_weights *weights, bt_backend *backend);

#endif /* BT_ENGINE_WEIGHTS_H */
