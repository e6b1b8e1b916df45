/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/gguf_writer.h"

const bt_tiny_model bt_tiny_model_odd = {
    .n_layers = 3,
    .dim = 40,
    .n_heads = 5,
    .n_kv_heads = 5,
    .head_dim = 8,
    .n_ffn = 75,
    .context = 1024,
    .seed = 7,
    .tied = true,
};

const bt_tiny_model bt_tiny_model_long = {
    .n_layers = 3,
    .dim = 40,
    .n_heads = 5,
    .n_kv_heads = 5,
    .head_dim = 8,
    .n_ffn = 75,
    .context = 4096,
    .seed = 7,
    .tied = true,
};

const bt_tiny_model bt_tiny_model_wide = {
    .n_layers = 2,
    .dim = 192,
    .n_heads = 6,
    .n_kv_heads = 2,
    .head_dim = 64,
    .n_ffn = 208,
    .context = 1024,
    .seed = 11,
    .tied = false,
};

/* SplitMix64 (Steele et al. 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static bool add_random(bt_gguf_writer *writer, const char *name, uint64_t cols, uint64_t rows,
                       float scale, float offset, uint64_t *state)
{
    const size_t n = cols * (rows > 0 ? rows : 1);
    float *values = malloc(n * sizeof *values);
    if (!values) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const double u = (double)(next_random(state) >> 11) * 0x1p-53;
        values[i] = offset + scale * (float)(2.0 * u - 1.0);
    }
    const uint64_t dims[2] = {cols, rows};
    bt_gguf_writer_add_tensor(writer, name, BT_GGUF_F32, dims, rows > 0 ? 2 : 1, values);
    free(values);
    return true;
}

static bool add_matrix(bt_gguf_writer *writer, const char *name, uint64_t cols, uint64_t rows,
                       uint64_t *state)
{
    return add_random(writer, name, cols, rows, 1.7F / sqrtf((float)cols), 0.0F, state);
}

static bool add_layer(bt_gguf_writer *writer, const bt_tiny_model *m, uint32_t layer,
                      uint64_t *state)
{
    const struct {
        const char *name;
        uint64_t cols;
        uint64_t rows;
    } tensors[] = {
        {"attn_norm", m->dim, 0},
        {"attn_q", m->dim, (uint64_t)m->n_heads * m->head_dim},
        {"attn_k", m->dim, (uint64_t)m->n_kv_heads * m->head_dim},
        {"attn_v", m->dim, (uint64_t)m->n_kv_heads * m->head_dim},
        {"attn_output", (uint64_t)m->n_heads * m->head_dim, m->dim},
        {"ffn_norm", m->dim, 0},
        {"ffn_gate", m->dim, m->n_ffn},
        {"ffn_up", m->dim, m->n_ffn},
        {"ffn_down", m->n_ffn, m->dim},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(tensors); i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blk.%u.%s.weight", layer, tensors[i].name);
        const bool added = tensors[i].rows > 0
                               ? add_matrix(writer, name, tensors[i].cols, tensors[i].rows, state)
                               : add_random(writer, name, tensors[i].cols, 0, 0.2F, 1.0F, state);
        if (!added) {
            return false;
        }
    }
    return true;
}

/* GPT-2's byte alphabet: printable Latin-1 bytes stand for themselves, the rest are shifted to
 * U+0100 and on. Writes UTF-8. */
static void byte_token(unsigned byte, char out[4])
{
    unsigned n_shifted = 0;
    for (unsigned b = 0; b < byte; b++) {
        n_shifted += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
    }
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const unsigned point = printable ? byte : 256 + n_shifted;
    if (point < 0x80) {
        out[0] = (char)point;
        out[1] = '\0';
    } else {
        out[0] = (char)(0xC0 | (point >> 6));
        out[1] = (char)(0x80 | (point & 0x3F));
        out[2] = '\0';
    }
}

static void add_vocabulary(bt_gguf_writer *writer)
{
    char texts[256][4];
    const char *tokens[BT_TINY_VOCAB];
    int32_t types[BT_TINY_VOCAB];
    for (unsigned i = 0; i < 256; i++) {
        byte_token(i, texts[i]);
        tokens[i] = texts[i];
        types[i] = 1;
    }
    tokens[256] = "<|bos|>";
    tokens[257] = "<|im_start|>";
    tokens[BT_TINY_EOS] = "<|im_end|>";
    for (unsigned i = 256; i < BT_TINY_VOCAB; i++) {
        types[i] = 3;
    }
    bt_gguf_writer_add_string(writer, "tokenizer.ggml.model", "gpt2");
    bt_gguf_writer_add_string(writer, "tokenizer.ggml.pre", "smollm");
    bt_gguf_writer_add_strings(writer, "tokenizer.ggml.tokens", tokens, BT_TINY_VOCAB);
    bt_gguf_writer_add_i32s(writer, "tokenizer.ggml.token_type", types, BT_TINY_VOCAB);
    bt_gguf_writer_add_strings(writer, "tokenizer.ggml.merges", NULL, 0);
    bt_gguf_writer_add_u32(writer, "tokenizer.ggml.bos_token_id", 256);
    bt_gguf_writer_add_u32(writer, "tokenizer.ggml.eos_token_id", BT_TINY_EOS);
    bt_gguf_writer_add_bool(writer, "tokenizer.ggml.add_bos_token", false);
    bt_gguf_writer_add_string(
        writer, "tokenizer.chat_template",
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
        "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\\n' }}{% endif %}");
}

bt_status bt_tiny_model_write(const bt_tiny_model *m, const char *path)
{
    bt_gguf_writer *writer = bt_gguf_writer_begin();
    if (!writer) {
        return BT_ENOMEM;
    }
    bt_gguf_writer_add_string(writer, "general.architecture", "llama");
    bt_gguf_writer_add_string(writer, "general.name", "tiny");
    bt_gguf_writer_add_u32(writer, "llama.block_count", m->n_layers);
    bt_gguf_writer_add_u32(writer, "llama.embedding_length", m->dim);
    bt_gguf_writer_add_u32(writer, "llama.feed_forward_length", m->n_ffn);
    bt_gguf_writer_add_u32(writer, "llama.context_length", m->context);
    bt_gguf_writer_add_u32(writer, "llama.attention.head_count", m->n_heads);
    bt_gguf_writer_add_u32(writer, "llama.attention.head_count_kv", m->n_kv_heads);
    bt_gguf_writer_add_u32(writer, "llama.attention.key_length", m->head_dim);
    bt_gguf_writer_add_u32(writer, "llama.rope.dimension_count", m->head_dim);
    bt_gguf_writer_add_f32(writer, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    bt_gguf_writer_add_f32(writer, "llama.rope.freq_base", 10000.0F);
    add_vocabulary(writer);
    uint64_t state = m->seed;
    bool ok = add_matrix(writer, "token_embd.weight", m->dim, BT_TINY_VOCAB, &state) &&
              add_random(writer, "output_norm.weight", m->dim, 0, 0.2F, 1.0F, &state);
    if (ok && !m->tied) {
        ok = add_matrix(writer, "output.weight", m->dim, BT_TINY_VOCAB, &state);
    }
    for (uint32_t i = 0; i < m->n_layers && ok; i++) {
        ok = add_layer(writer, m, i, &state);
    }
    if (!ok) {
        bt_gguf_writer_cancel(writer);
        return BT_ENOMEM;
    }
    return bt_gguf_writer_finish(writer, path);
}
