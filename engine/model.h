/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - a Llama-architecture model: its parameters, and one forward step over a batch.
 *
 * Pre-norm transformer with RMSNorm, RoPE, grouped-query attention and SwiGLU (Touvron et al.,
 * LLaMA, section 2.2; Ainslie et al., GQA). Weights come from a GGUF file and are packed once
 * by the backend; a tied output matrix is stored once.
 *
 * Threading: load and destroy: any one thread; forward: engine thread only.
 * Memory:    load only; forward allocates nothing.
 */
#ifndef BT_ENGINE_MODEL_H
#define BT_ENGINE_MODEL_H

#include "common/hash.h"
#include "common/status.h"
#include "engine/backend.h"
#include "engine/batch.h"

typedef struct bt_model bt_model;

enum { BT_MODEL_EOS_MAX = 16 };

typedef struct bt_model_params {
    uint32_t n_vocab;
    uint32_t n_layers;
    uint32_t dim;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t n_ffn;
    uint32_t context; /* longest sequence: the file's, or less when the operator says so */
    float rms_eps;
    uint32_t n_eos;
    int32_t eos[BT_MODEL_EOS_MAX]; /* tokens that end a text */
    uint64_t n_weights;            /* parameters, a tied output once */
} bt_model_params;

/* done of total units of the load; any one thread. */
typedef void (*bt_model_progress_fn)(void *ctx, uint64_t done, uint64_t total);

typedef struct bt_model_options {
    const char *path;       /* GGUF file */
    const char *name;       /* what the cluster calls it; NULL: the file\'s name without ".gguf" */
    const char *kernels;    /* kernel path, or "auto" */
    bt_kv_format kv_format; /* of the pool it will run on */
    uint32_t n_threads;     /* at least 1 */
    uint32_t rows_max;      /* largest step */
    uint32_t spans_max;     /* most sequences in a step */
    uint32_t logits_max;    /* most logit rows in a step */
    uint32_t context_max;   /* 0: the file's context length */
    /* Ids that end a text beside those that the metadata names: a tokenizer knows more turn ends
     * by their names. Borrowed during the load; NULL with n 0. */
    const int32_t *end_tokens;
    size_t n_end_tokens;
    bt_model_progress_fn progress; /* NULL: none */
    void *progress_ctx;
} bt_model_options;

/* Loads and packs. Errors name the file and what is wrong with it. BT_EIO, BT_EINVAL,
 * BT_EUNSUPPORTED, BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_model_load(const bt_model_options *options, bt_model **out,
                                      bt_error *err);
void bt_model_destroy(bt_model *model);

const bt_model_params *bt_model_get_params(const bt_model *model);
const bt_kv_layout *bt_model_kv_layout(const bt_model *model);

/* Kernel path in use, as `baton status` prints it. */
const char *bt_model_kernels(const bt_model *model);

/* What the cluster calls it. */
const char *bt_model_name(const bt_model *model);

/* Names what decides the bits of a result (DESIGN.md, section 1): numerics class of the kernel
 * path, numerics version, KV format, RoPE table, and fingerprint of the model. Workers with the
 * same id give the same tokens. */
bt_hash128 bt_model_numerics_id(const bt_model *model);

/* Metadata and tensor bytes of the file, hashed. */
bt_hash128 bt_model_fingerprint(const bt_model *model);

/* After each layer's K and V are stored; may be NULL. */
typedef void (*bt_model_layer_fn)(void *ctx, const bt_batch *batch, uint32_t layer);

/* Runs the batch: stores K and V of its rows into `pool`, and returns the logits of
 * batch->logit_rows, [n_logits, n_vocab], valid until the next call. */
const float *bt_model_forward(bt_model *model, const bt_batch *batch, uint8_t *pool,
                              bt_model_layer_fn layer_done, void *ctx);

#endif /* BT_ENGINE_MODEL_H */
