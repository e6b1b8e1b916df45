/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors are looked up by the names that GGUF gives to the llama architecture; shapes are
 * checked against the hyperparameters before anything is packed, and a tensor that this code
 * would ignore (a bias, an expert) is an error, since ignoring it would change the tokens. */
#include "engine/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/check.h"
#include "engine/dequant.h"

static const char arch[] = "llama";

enum {
    LAYERS_MAX = 1024,
    DIM_MAX = 1 << 17,
    HEADS_MAX = 1024,
    HEAD_DIM_MAX = 256,
    NAME_BYTES = 96,
};

/* The tensors of one layer, after "blk.N.". */
typedef enum layer_tensor {
    LAYER_ATTN_NORM,
    LAYER_Q,
    LAYER_K,
    LAYER_V,
    LAYER_ATTN_OUT,
    LAYER_FFN_NORM,
    LAYER_GATE,
    LAYER_UP,
    LAYER_DOWN,
    N_LAYER_TENSORS,
} layer_tensor;

static const char *const layer_names[N_LAYER_TENSORS] = {
    "attn_norm", "attn_q",   "attn_k", "attn_v",   "attn_output",
    "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down",
};

/* rows 0: a vector. */
typedef struct shape {
    uint32_t rows;
    uint32_t cols;
} shape;

static shape layer_shape(const bt_model_params *p, layer_tensor tensor)
{
    const uint32_t n_q = p->n_heads * p->head_dim;
    const uint32_t n_kv = p->n_kv_heads * p->head_dim;
    const shape shapes[N_LAYER_TENSORS] = {
        [LAYER_ATTN_NORM] = {0, p->dim},   [LAYER_Q] = {n_q, p->dim},
        [LAYER_K] = {n_kv, p->dim},        [LAYER_V] = {n_kv, p->dim},
        [LAYER_ATTN_OUT] = {p->dim, n_q},  [LAYER_FFN_NORM] = {0, p->dim},
        [LAYER_GATE] = {p->n_ffn, p->dim}, [LAYER_UP] = {p->n_ffn, p->dim},
        [LAYER_DOWN] = {p->dim, p->n_ffn},
    };
    return shapes[tensor];
}

static void layer_tensor_name(char name[NAME_BYTES], uint32_t layer, layer_tensor tensor)
{
    (void)snprintf(name, NAME_BYTES, "blk.%" PRIu32 ".%s.weight", layer, layer_names[tensor]);
}

static bt_status find_tensor(const bt_gguf *gguf, const char *name, shape want,
                             const bt_gguf_tensor **out, bt_error *err)
{
    const bt_gguf_tensor *tensor = bt_gguf_find_tensor(gguf, name);
    if (!tensor) {
        return bt_error_set(err, BT_ENOTFOUND, "tensor '%s' is missing", name);
    }
    const uint64_t n_rows = want.rows > 0 ? want.rows : 1;
    if (tensor->dims[0] != want.cols || tensor->dims[1] != n_rows ||
        tensor->n_elements != n_rows * want.cols) {
        return bt_error_set(err, BT_EINVAL,
                            "tensor '%s' is %" PRIu64 " x %" PRIu64 " where %u x %" PRIu64
                            " was expected",
                            name, tensor->dims[0], tensor->dims[1], want.cols, n_rows);
    }
    const bool known =
        want.rows > 0 ? bt_dequant_supports(tensor->type) : tensor->type == BT_GGUF_F32;
    if (!known) {
        return bt_error_set(err, BT_EUNSUPPORTED,
                            "tensor '%s' is of type %s. Supported are F32, F16, BF16, Q8_0, Q4_0, "
                            "Q4_1 and Q6_K (F32 alone for norms)",
                            name, bt_gguf_type_name(tensor->type));
    }
    *out = tensor;
    return BT_OK;
}

/* Reads `arch`.`name` and checks its range. */
static bt_status read_u32(const bt_gguf *gguf, const char *name, uint32_t max, uint32_t *out,
                          bt_error *err)
{
    char key[NAME_BYTES];
    (void)snprintf(key, sizeof key, "%s.%s", arch, name);
    const bt_status status = bt_gguf_get_u32(gguf, key, out, err);
    if (status != BT_OK) {
        return status == BT_ENOTFOUND ? bt_error_set(err, status, "key '%s' is missing", key)
                                      : status;
    }
    if (*out == 0 || *out > max) {
        return bt_error_set(err, BT_EINVAL, "'%s' is %u, not in 1..%u", key, *out, max);
    }
    return BT_OK;
}

static bt_status check_architecture(const bt_gguf *gguf, bt_error *err)
{
    bt_gguf_string name;
    const bt_status status = bt_gguf_get_string(gguf, "general.architecture", &name, err);
    if (status != BT_OK) {
        return status;
    }
    if (name.len != strlen(arch) || memcmp(name.bytes, arch, name.len) != 0) {
        return bt_error_set(err, BT_EUNSUPPORTED,
                            "the model's architecture is '%.*s'. Supported is llama (SmolLM2, "
                            "Llama 2 and 3, TinyLlama, Mistral)",
                            (int)bt_size_min(name.len, 40), name.bytes);
    }
    uint32_t n_shards;
    const bt_status shards = bt_gguf_get_u32_or(gguf, "split.count", 1, &n_shards, err);
    if (shards != BT_OK) {
        return shards;
    }
    if (n_shards > 1) {
        return bt_error_set(err, BT_EUNSUPPORTED,
                            "the file is one of %u shards. Merge them into one file first",
                            n_shards);
    }
    uint32_t n_experts;
    const bt_status experts = bt_gguf_get_u32_or(gguf, "llama.expert_count", 0, &n_experts, err);
    if (experts == BT_OK && n_experts > 0) {
        return bt_error_set(err, BT_EUNSUPPORTED, "mixtures of experts are not supported");
    }
    return experts;
}

static bt_status read_heads(const bt_gguf *gguf, bt_model_params *p, bt_error *err)
{
    bt_status status = read_u32(gguf, "attention.head_count", HEADS_MAX, &p->n_heads, err);
    if (status == BT_OK) {
        status = bt_gguf_get_u32_or(gguf, "llama.attention.head_count_kv", p->n_heads,
                                    &p->n_kv_heads, err);
    }
    if (status == BT_OK) {
        status = bt_gguf_get_u32_or(gguf, "llama.attention.key_length", p->dim / p->n_heads,
                                    &p->head_dim, err);
    }
    if (status != BT_OK) {
        return status;
    }
    if (p->n_kv_heads == 0 || p->n_heads % p->n_kv_heads != 0) {
        return bt_error_set(err, BT_EINVAL, "%u query heads can't share %u key-value heads",
                            p->n_heads, p->n_kv_heads);
    }
    if (p->head_dim == 0 || p->head_dim % 2 != 0 || p->head_dim > HEAD_DIM_MAX) {
        return bt_error_set(err, BT_EUNSUPPORTED, "a head size of %u; supported is even, to %d",
                            p->head_dim, HEAD_DIM_MAX);
    }
    return BT_OK;
}

/* EOS tokens: those that end a text or a turn. */
static bt_status read_eos(const bt_gguf *gguf, bt_model_params *p, bt_error *err)
{
    static const char *const keys[] = {
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(keys); i++) {
        uint32_t token;
        const bt_status status = bt_gguf_get_u32(gguf, keys[i], &token, err);
        if (status == BT_ENOTFOUND) {
            continue;
        }
        if (status != BT_OK) {
            return status;
        }
        if (token >= p->n_vocab) {
            return bt_error_set(err, BT_EINVAL, "'%s' is %u, but the vocabulary has %u tokens",
                                keys[i], token, p->n_vocab);
        }
        p->eos[p->n_eos++] = (int32_t)token;
    }
    return BT_OK;
}

/* A row without a token could be sampled and would have no text; a token without a row could be
 * asked for. Files pad both alike. */
static bt_status check_vocabulary(const bt_gguf *gguf, const bt_model_params *p, bt_error *err)
{
    bt_gguf_array tokens;
    const bt_status status =
        bt_gguf_get_array(gguf, "tokenizer.ggml.tokens", BT_GGUF_VALUE_STRING, &tokens, err);
    if (status == BT_OK && tokens.n != p->n_vocab) {
        return bt_error_set(err, BT_EINVAL,
                            "tensor 'token_embd.weight' has %u rows, but the vocabulary has "
                            "%" PRIu64 " tokens",
                            p->n_vocab, tokens.n);
    }
    return status == BT_ENOTFOUND ? BT_OK : status;
}

static bool is_known_name(const char *name, uint32_t n_layers)
{
    static const char *const globals[] = {
        "token_embd.weight",
        "output_norm.weight",
        "output.weight",
        "rope_freqs.weight",
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(globals); i++) {
        if (strcmp(name, globals[i]) == 0) {
            return true;
        }
    }
    uint32_t layer;
    if (sscanf(name, "blk.%" SCNu32 ".", &layer) != 1 || layer >= n_layers) {
        return false;
    }
    for (layer_tensor t = 0; t < N_LAYER_TENSORS; t++) {
        char known[NAME_BYTES];
        layer_tensor_name(known, layer, t);
        if (strcmp(name, known) == 0) {
            return true;
        }
    }
    return false;
}

/* Every tensor has its place, and every place its tensor. */
static bt_status check_tensors(const bt_gguf *gguf, bt_model_params *p, bt_error *err)
{
    for (size_t i = 0; i < bt_gguf_tensor_count(gguf); i++) {
        const char *name = bt_gguf_tensor_at(gguf, i)->name;
        if (!is_known_name(name, p->n_layers)) {
            return bt_error_set(err, BT_EUNSUPPORTED,
                                "tensor '%s' has no place in a llama model of %u layers", name,
                                p->n_layers);
        }
    }
    const bt_gguf_tensor *tensor;
    const shape embed_shape = {p->n_vocab, p->dim};
    bt_status status = find_tensor(gguf, "token_embd.weight", embed_shape, &tensor, err);
    if (status == BT_OK) {
        status = find_tensor(gguf, "output_norm.weight", (shape){0, p->dim}, &tensor, err);
    }
    p->n_weights = (uint64_t)p->n_vocab * p->dim + p->dim;
    if (status == BT_OK && bt_gguf_find_tensor(gguf, "output.weight")) {
        status = find_tensor(gguf, "output.weight", embed_shape, &tensor, err);
        p->n_weights += (uint64_t)p->n_vocab * p->dim;
    }
    for (uint32_t layer = 0; layer < p->n_layers; layer++) {
        for (layer_tensor t = 0; t < N_LAYER_TENSORS && status == BT_OK; t++) {
            char name[NAME_BYTES];
            layer_tensor_name(name, layer, t);
            status = find_tensor(gguf, name, layer_shape(p, t), &tensor, err);
            p->n_weights += status == BT_OK ? tensor->n_elements : 0;
        }
    }
    return status;
}

bt_status bt_weights_read_params(const bt_gguf *gguf, uint32_t context_max, bt_model_params *params,
                                 bt_rope *rope, bt_error *err)
{
    bt_model_params p = {0};
    bt_status status = check_architecture(gguf, err);
    if (status == BT_OK) {
        status = read_u32(gguf, "block_count", LAYERS_MAX, &p.n_layers, err);
    }
    if (status == BT_OK) {
        status = read_u32(gguf, "embedding_length", DIM_MAX, &p.dim, err);
    }
    if (status == BT_OK) {
        status = read_u32(gguf, "feed_forward_length", DIM_MAX, &p.n_ffn, err);
    }
    if (status == BT_OK) {
        status = read_u32(gguf, "context_length", INT32_MAX, &p.context, err);
    }
    if (status == BT_OK) {
        status = read_heads(gguf, &p, err);
    }
    if (status == BT_OK) {
        status = bt_gguf_get_f32(gguf, "llama.attention.layer_norm_rms_epsilon", &p.rms_eps, err);
    }
    if (status != BT_OK) {
        return status;
    }
    if (!isfinite(p.rms_eps) || p.rms_eps < 0.0F) {
        return bt_error_set(err, BT_EINVAL, "'llama.attention.layer_norm_rms_epsilon' is %g",
                            (double)p.rms_eps);
    }
    const bt_gguf_tensor *embed = bt_gguf_find_tensor(gguf, "token_embd.weight");
    if (!embed || embed->dims[1] == 0 || embed->dims[1] > INT32_MAX) {
        return bt_error_set(err, BT_EINVAL, "tensor 'token_embd.weight' is missing or has no rows");
    }
    p.n_vocab = (uint32_t)embed->dims[1];
    p.context = context_max > 0 && context_max < p.context ? context_max : p.context;
    status = check_vocabulary(gguf, &p, err);
    if (status == BT_OK) {
        status = read_eos(gguf, &p, err);
    }
    if (status == BT_OK) {
        status = bt_rope_read(gguf, arch, p.head_dim, rope, err);
    }
    if (status == BT_OK) {
        status = check_tensors(gguf, &p, err);
    }
    if (status == BT_OK) {
        *params = p;
    }
    return status;
}

/* Up to three tensors stacked by rows. */
typedef struct stack {
    const bt_gguf_tensor *tensors[3];
    uint32_t n;
} stack;

static void read_stack_row(void *ctx, uint32_t row, float *dst)
{
    const stack *s = ctx;
    uint32_t i = 0;
    while (row >= s->tensors[i]->dims[1]) {
        row -= (uint32_t)s->tensors[i]->dims[1];
        i++;
        BT_ASSERT(i < s->n);
    }
    const bt_gguf_tensor *tensor = s->tensors[i];
    const size_t row_bytes = bt_dequant_row_bytes(tensor->type, tensor->dims[0]);
    bt_dequantize_row(tensor->type, (const uint8_t *)tensor->data + row * row_bytes,
                      tensor->dims[0], dst);
}

typedef struct loader {
    const bt_gguf *gguf;
    const bt_model_params *params;
    bt_backend *backend;
    bt_model_progress_fn progress;
    void *progress_ctx;
    uint64_t n_done; /* weights packed */
    bt_error *err;
} loader;

static bt_status pack(loader *l, const stack *s, bt_matrix **out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        n += (uint32_t)s->tensors[i]->dims[1];
        l->n_done += s->tensors[i]->n_elements;
    }
    const uint32_t k = (uint32_t)s->tensors[0]->dims[0];
    const bt_status status =
        l->backend->ops->matrix_create(l->backend, n, k, read_stack_row, (void *)s, out);
    if (status != BT_OK) {
        return bt_error_set(l->err, status, "no memory to pack tensor '%s' (%u x %u)",
                            s->tensors[0]->name, n, k);
    }
    if (l->progress) {
        l->progress(l->progress_ctx, l->n_done, l->params->n_weights);
    }
    return BT_OK;
}

static bt_status pack_named(loader *l, const char *name, bt_matrix **out)
{
    const stack s = {.tensors = {bt_gguf_find_tensor(l->gguf, name)}, .n = 1};
    return pack(l, &s, out);
}

static bt_status copy_norm(loader *l, const char *name, float **out)
{
    const bt_gguf_tensor *tensor = bt_gguf_find_tensor(l->gguf, name);
    float *norm = bt_alloc_array(tensor->n_elements, sizeof *norm);
    if (!norm) {
        return bt_error_set(l->err, BT_ENOMEM, "no memory for tensor '%s'", name);
    }
    memcpy(norm, tensor->data, tensor->n_bytes);
    *out = norm;
    return BT_OK;
}

static bt_status load_layer(loader *l, uint32_t layer, bt_layer_weights *out)
{
    const bt_gguf_tensor *t[N_LAYER_TENSORS];
    for (layer_tensor i = 0; i < N_LAYER_TENSORS; i++) {
        char name[NAME_BYTES];
        layer_tensor_name(name, layer, i);
        t[i] = bt_gguf_find_tensor(l->gguf, name);
    }
    const stack qkv = {.tensors = {t[LAYER_Q], t[LAYER_K], t[LAYER_V]}, .n = 3};
    const stack attn_out = {.tensors = {t[LAYER_ATTN_OUT]}, .n = 1};
    const stack gate_up = {.tensors = {t[LAYER_GATE], t[LAYER_UP]}, .n = 2};
    const stack down = {.tensors = {t[LAYER_DOWN]}, .n = 1};
    bt_status status = copy_norm(l, t[LAYER_ATTN_NORM]->name, &out->attn_norm);
    if (status == BT_OK) {
        status = copy_norm(l, t[LAYER_FFN_NORM]->name, &out->ffn_norm);
    }
    if (status == BT_OK) {
        status = pack(l, &qkv, &out->qkv);
    }
    if (status == BT_OK) {
        status = pack(l, &attn_out, &out->attn_out);
    }
    if (status == BT_OK) {
        status = pack(l, &gate_up, &out->gate_up);
    }
    return status == BT_OK ? pack(l, &down, &out->down) : status;
}

bt_status bt_weights_load(const bt_gguf *gguf, const bt_model_params *params, bt_backend *backend,
                          bt_model_progress_fn progress, void *progress_ctx, bt_weights *out,
                          bt_error *err)
{
    loader l = {
        .gguf = gguf,
        .params = params,
        .backend = backend,
        .progress = progress,
        .progress_ctx = progress_ctx,
        .err = err,
    };
    bt_weights w = {.n_layers = params->n_layers};
    w.layers = calloc(params->n_layers, sizeof *w.layers);
    bt_status status = w.layers ? pack_named(&l, "token_embd.weight", &w.embed)
                                : bt_error_set(err, BT_ENOMEM, "no memory for the layers");
    if (status == BT_OK) {
        status = copy_norm(&l, "output_norm.weight", &w.output_norm);
    }
    for (uint32_t i = 0; i < params->n_layers && status == BT_OK; i++) {
        status = load_layer(&l, i, &w.layers[i]);
    }
    if (status == BT_OK && bt_gguf_find_tensor(gguf, "output.weight")) {
        status = pack_named(&l, "output.weight", &w.output);
    } else {
        w.output = w.embed;
    }
    if (status != BT_OK) {
        bt_weights_destroy(&w, backend);
        return status;
    }
    *out = w;
    return BT_OK;
}

static void destroy_matrix(bt_backend *backend, bt_matrix *matrix)
{
    if (matrix) {
        backend->ops->matrix_destroy(backend, matrix);
    }
}

void bt_weights_destroy(bt_weights *weights, bt_backend *backend)
{
    for (uint32_t i = 0; weights->layers && i < weights->n_layers; i++) {
        bt_layer_weights *layer = &weights->layers[i];
        free(layer->attn_norm);
        free(layer->ffn_norm);
        destroy_matrix(backend, layer->qkv);
        destroy_matrix(backend, layer->attn_out);
        destroy_matrix(backend, layer->gate_up);
        destroy_matrix(backend, layer->down);
    }
    if (weights->output != weights->embed) {
        destroy_matrix(backend, weights->output);
    }
    destroy_matrix(backend, weights->embed);
    free(weights->output_norm);
    free(weights->layers);
    *weights = (bt_weights){0};
}
