/* SPDX-License-Identifier: Apache-2.0 */
/* One step, for all rows at once:
 *
 *   x = embed(tokens)
 *   each layer:  h = norm(x); qkv = Wqkv h; rope, store K and V; a = attention; x += Wo a
 *                h = norm(x); g = Wgate,up h; f = silu(gate) * up;            x += Wdown f
 *   logits = Wout norm(x)
 *
 * The last layer goes on after its attention with the rows alone whose logits are wanted.
 */
#include "engine/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/check.h"
#include "engine/gguf.h"
#include "engine/rope.h"
#include "engine/weights.h"

/* Raised whenever a change gives other bits for the same path. */
static const uint32_t numerics_version = 1;

enum {
    NAME_MAX_BYTES = 128,
    ROPE_SAMPLE_POSITIONS = 16,
    HEAD_DIM_MAX = 256,                 /* as the loader has it */
    ROPE_BYTES_MAX = 512 * 1024 * 1024, /* a context of 1M of 128 dimensions */
};

struct bt_model {
    bt_model_params params;
    bt_kv_layout layout;
    bt_backend *backend;
    bt_weights weights;
    uint32_t rows_max;
    uint32_t spans_max;
    uint32_t logits_max;
    uint32_t n_rope;
    float *rope;    /* [context][n_rope / 2][2] */
    float *x;       /* [rows_max][dim] residual stream */
    float *h;       /* [rows_max][dim] normed */
    float *qkv;     /* [rows_max][(n_heads + 2 n_kv_heads) head_dim] */
    float *attn;    /* [rows_max][n_heads head_dim] */
    float *gate_up; /* [rows_max][2 n_ffn] */
    float *ffn;     /* [rows_max][n_ffn] */
    float *logits;  /* [logits_max][n_vocab] */
    bt_hash128 fingerprint;
    bt_hash128 numerics_id;
    char name[NAME_MAX_BYTES];
};

static uint32_t qkv_width(const bt_model_params *p)
{
    return (p->n_heads + 2 * p->n_kv_heads) * p->head_dim;
}

static bt_status take_buffers(bt_model *model)
{
    const bt_model_params *p = &model->params;
    const size_t rows = model->rows_max;
    model->x = bt_alloc_array(rows * p->dim, sizeof(float));
    model->h = bt_alloc_array(rows * p->dim, sizeof(float));
    model->qkv = bt_alloc_array(rows * qkv_width(p), sizeof(float));
    model->attn = bt_alloc_array(rows * p->n_heads * p->head_dim, sizeof(float));
    model->gate_up = bt_alloc_array(rows * 2 * p->n_ffn, sizeof(float));
    model->ffn = bt_alloc_array(rows * p->n_ffn, sizeof(float));
    model->logits = bt_alloc_array((size_t)model->logits_max * p->n_vocab, sizeof(float));
    const bool complete = model->x && model->h && model->qkv && model->attn && model->gate_up &&
                          model->ffn && model->logits;
    return complete ? BT_OK : BT_ENOMEM;
}

/* The file alone says how long its context is: not more than what takes a second to fill. */
static bt_status make_rope(bt_model *model, const bt_rope *rope, bt_error *err)
{
    const size_t n = (size_t)model->params.context * rope->n_rope;
    if (n > ROPE_BYTES_MAX / sizeof(float)) {
        return bt_error_set(err, BT_EUNSUPPORTED,
                            "a context of %u tokens, and at most %zu are supported. Give a "
                            "smaller --context-max",
                            model->params.context, ROPE_BYTES_MAX / sizeof(float) / rope->n_rope);
    }
    model->n_rope = rope->n_rope;
    model->rope = bt_alloc_array(n, sizeof(float));
    if (!model->rope) {
        return bt_error_set(err, BT_ENOMEM,
                            "no memory for a context of %u tokens. Lower --context-max",
                            model->params.context);
    }
    bt_rope_fill(rope, model->params.context, model->rope);
    return BT_OK;
}

static bt_status make_backend(bt_model *model, const bt_model_options *options, bt_error *err)
{
    const bt_model_params *p = &model->params;
    const uint32_t widths[] = {p->dim, p->n_ffn, p->n_heads * p->head_dim};
    uint32_t k = 0;
    for (size_t i = 0; i < BT_ARRAY_LEN(widths); i++) {
        k = widths[i] > k ? widths[i] : k;
    }
    const bt_backend_limits limits = {
        .n_threads = options->n_threads,
        .n_rows = options->rows_max,
        .n_spans = options->spans_max,
        .k = k,
        .n_heads = p->n_heads,
        .head_dim = p->head_dim,
        .n_positions = p->context,
    };
    return bt_cpu_backend_create(options->kernels, &limits, &model->backend, err);
}

/* Whatever decides the bits of a result goes in. Of the RoPE table the first positions, which
 * name it whatever this worker's context is. */
static void make_ids(bt_model *model, const bt_rope *rope, const bt_gguf *gguf)
{
    float table[ROPE_SAMPLE_POSITIONS * HEAD_DIM_MAX];
    BT_ASSERT(rope->n_rope <= HEAD_DIM_MAX);
    bt_rope_fill(rope, ROPE_SAMPLE_POSITIONS, table);
    size_t file_bytes;
    const void *file = bt_gguf_file(gguf, &file_bytes);
    model->fingerprint = bt_hash128_of(NULL, file, file_bytes);
    bt_hash hash;
    bt_hash128_init(&hash, NULL);
    const char *class = model->backend->numerics;
    const uint32_t format = (uint32_t)model->layout.format;
    bt_hash_update(&hash, class, strlen(class) + 1);
    bt_hash_update(&hash, &numerics_version, sizeof numerics_version);
    bt_hash_update(&hash, &format, sizeof format);
    bt_hash_update(&hash, table, (size_t)ROPE_SAMPLE_POSITIONS * rope->n_rope * sizeof(float));
    bt_hash_update(&hash, &model->fingerprint, sizeof model->fingerprint);
    model->numerics_id = bt_hash128_final(&hash);
}

/* Joins the caller's end tokens to those of the metadata. */
static bt_status add_end_tokens(bt_model_params *p, const bt_model_options *options, bt_error *err)
{
    for (size_t i = 0; i < options->n_end_tokens; i++) {
        const int32_t token = options->end_tokens[i];
        if (token < 0 || (uint32_t)token >= p->n_vocab) {
            return bt_error_set(err, BT_EINVAL,
                                "token %d ends a text, but the vocabulary has %u tokens", token,
                                p->n_vocab);
        }
        uint32_t at = 0;
        while (at < p->n_eos && p->eos[at] != token) {
            at++;
        }
        if (at == BT_MODEL_EOS_MAX) {
            return bt_error_set(err, BT_EUNSUPPORTED, "more than %d tokens that end a text",
                                BT_MODEL_EOS_MAX);
        }
        p->eos[at] = token;
        p->n_eos = at == p->n_eos ? at + 1 : p->n_eos;
    }
    return BT_OK;
}

/* "dir/x.gguf" -> "x". */
static void make_name(bt_model *model, const bt_model_options *options)
{
    const char *slash = strrchr(options->path, '/');
    const char *from = options->name ? options->name : slash ? slash + 1 : options->path;
    size_t len = strlen(from);
    if (!options->name && len > 5 && strcmp(from + len - 5, ".gguf") == 0) {
        len -= 5;
    }
    len = bt_size_min(len, sizeof model->name - 1);
    memcpy(model->name, from, len);
    model->name[len] = '\0';
}

static bt_status load_file(bt_model *model, const bt_gguf *gguf, const bt_model_options *options,
                           bt_error *err)
{
    bt_rope rope;
    bt_status status =
        bt_weights_read_params(gguf, options->context_max, &model->params, &rope, err);
    if (status == BT_OK) {
        status = add_end_tokens(&model->params, options, err);
    }
    if (status != BT_OK) {
        return status;
    }
    const bt_model_params *p = &model->params;
    if (!bt_kv_layout_init(&model->layout, p->n_layers, p->n_kv_heads, p->head_dim,
                           options->kv_format)) {
        return bt_error_set(err, BT_EUNSUPPORTED, "a KV block of this shape is too large");
    }
    status = make_rope(model, &rope, err);
    if (status == BT_OK && take_buffers(model) != BT_OK) {
        status = bt_error_set(err, BT_ENOMEM, "no memory for steps of %u rows. Lower their number",
                              model->rows_max);
    }
    if (status == BT_OK) {
        status = make_backend(model, options, err);
    }
    if (status == BT_OK) {
        status = bt_weights_load(gguf, p, model->backend, options->progress, options->progress_ctx,
                                 &model->weights, err);
    }
    if (status == BT_OK) {
        make_name(model, options);
        make_ids(model, &rope, gguf);
    }
    return status;
}

bt_status bt_model_load(const bt_model_options *options, bt_model **out, bt_error *err)
{
    BT_ASSERT(options->rows_max > 0 && options->spans_max > 0 && options->logits_max > 0);
    bt_model *model = calloc(1, sizeof *model);
    if (!model) {
        return bt_error_set(err, BT_ENOMEM, "no memory for the model");
    }
    model->rows_max = options->rows_max;
    model->spans_max = options->spans_max;
    model->logits_max = options->logits_max;
    bt_gguf *gguf = NULL;
    bt_status status = bt_gguf_open(options->path, &gguf, err);
    if (status == BT_OK) {
        status = load_file(model, gguf, options, err);
        bt_gguf_close(gguf);
        if (status != BT_OK) {
            bt_error_prefix(err, "cannot load model '%s'", options->path);
        }
    }
    if (status != BT_OK) {
        bt_model_destroy(model);
        return status;
    }
    *out = model;
    return BT_OK;
}

void bt_model_destroy(bt_model *model)
{
    if (!model) {
        return;
    }
    if (model->backend) {
        bt_weights_destroy(&model->weights, model->backend);
        model->backend->ops->destroy(model->backend);
    }
    free(model->rope);
    free(model->x);
    free(model->h);
    free(model->qkv);
    free(model->attn);
    free(model->gate_up);
    free(model->ffn);
    free(model->logits);
    free(model);
}

const bt_model_params *bt_model_get_params(const bt_model *model)
{
    return &model->params;
}

const bt_kv_layout *bt_model_kv_layout(const bt_model *model)
{
    return &model->layout;
}

const char *bt_model_kernels(const bt_model *model)
{
    return model->backend->name;
}

const char *bt_model_name(const bt_model *model)
{
    return model->name;
}

bt_hash128 bt_model_numerics_id(const bt_model *model)
{
    return model->numerics_id;
}

bt_hash128 bt_model_fingerprint(const bt_model *model)
{
    return model->fingerprint;
}

/* K and V of all rows are stored for the layer; x and attn hold its state before the residual. */
static void run_attention(bt_model *model, const bt_layer_weights *w, const bt_attention_args *args,
                          const bt_batch *batch, bt_model_layer_fn layer_done, void *ctx)
{
    const bt_model_params *p = &model->params;
    bt_backend *be = model->backend;
    const uint32_t n = batch->n_rows;
    be->ops->rms_norm(be, model->x, w->attn_norm, p->rms_eps, n, p->dim, model->h);
    be->ops->matmul(be, w->qkv, model->h, n, model->qkv, qkv_width(p), false);
    be->ops->rope_store(be, args, model->qkv);
    if (layer_done) {
        layer_done(ctx, batch, args->layer);
    }
    be->ops->attention(be, args, model->qkv, model->attn);
}

static void run_rest(bt_model *model, const bt_layer_weights *w, uint32_t n)
{
    const bt_model_params *p = &model->params;
    bt_backend *be = model->backend;
    be->ops->matmul(be, w->attn_out, model->attn, n, model->x, p->dim, true);
    be->ops->rms_norm(be, model->x, w->ffn_norm, p->rms_eps, n, p->dim, model->h);
    be->ops->matmul(be, w->gate_up, model->h, n, model->gate_up, 2 * p->n_ffn, false);
    be->ops->silu_mul(be, model->gate_up, n, p->n_ffn, model->ffn);
    be->ops->matmul(be, w->down, model->ffn, n, model->x, p->dim, true);
}

/* Moves the rows whose logits are wanted to the front: after the last layer's attention no other
 * row is needed. They ascend, so that none is overwritten before it is moved. */
static void keep_logit_rows(bt_model *model, const bt_batch *batch)
{
    const bt_model_params *p = &model->params;
    const size_t attn_width = (size_t)p->n_heads * p->head_dim;
    for (uint32_t i = 0; i < batch->n_logits; i++) {
        const size_t row = batch->logit_rows[i];
        memmove(model->x + (size_t)i * p->dim, model->x + row * p->dim, p->dim * sizeof(float));
        memmove(model->attn + i * attn_width, model->attn + row * attn_width,
                attn_width * sizeof(float));
    }
}

const float *bt_model_forward(bt_model *model, const bt_batch *batch, uint8_t *pool,
                              bt_model_layer_fn layer_done, void *ctx)
{
    BT_ASSERT(batch->n_rows > 0 && batch->n_rows <= model->rows_max);
    BT_ASSERT(batch->n_spans <= model->spans_max);
    BT_ASSERT(batch->n_logits <= model->logits_max);
    const bt_model_params *p = &model->params;
    bt_backend *be = model->backend;
    bt_attention_args args = {
        .layout = &model->layout,
        .pool = pool,
        .n_heads = p->n_heads,
        .scale = 1.0F / sqrtf((float)p->head_dim),
        .rope = model->rope,
        .n_rope = model->n_rope,
        .spans = batch->spans,
        .n_spans = batch->n_spans,
        .n_rows = batch->n_rows,
    };
    be->ops->embed(be, model->weights.embed, batch->tokens, batch->n_rows, model->x);
    uint32_t n_rows = batch->n_rows;
    for (uint32_t layer = 0; layer < p->n_layers; layer++) {
        const bt_layer_weights *w = &model->weights.layers[layer];
        args.layer = layer;
        run_attention(model, w, &args, batch, layer_done, ctx);
        if (layer + 1 == p->n_layers) {
            keep_logit_rows(model, batch);
            n_rows = batch->n_logits;
        }
        if (n_rows > 0) {
            run_rest(model, w, n_rows);
        }
    }
    if (n_rows > 0) {
        be->ops->rms_norm(be, model->x, model->weights.output_norm, p->rms_eps, n_rows, p->dim,
                          model->x);
        be->ops->matmul(be, model->weights.output, model->x, n_rows, model->logits, p->n_vocab,
                        false);
    }
    return model->logits;
}
