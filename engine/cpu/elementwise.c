/* SPDX-License-Identifier: Apache-2.0 */
/* Norm, activation, RoPE and the store into KV blocks, compiled once for each
 * instruction set (BT_ISA).
 *
 * RoPE and the store are plain loops: without contraction and reassociation the compiler's
 * vectors give the same bits as scalars, in each set alike.
 */
#include "engine/cpu/isa.h"
#include "engine/cpu/round.h"
#include "engine/cpu/vec.h"

/* Sum of squares: four partial sums of 16 lanes over blocks of 64, (s0 + s1) + (s2 + s3), then the
 * fixed tree. Depends on dim alone. */
static float sum_squares(const float *x, uint32_t dim)
{
    bt_v16 s[4] = {bt_v16_zero(), bt_v16_zero(), bt_v16_zero(), bt_v16_zero()};
    uint32_t i = 0;
    for (; i + 64 <= dim; i += 64) {
        for (uint32_t j = 0; j < 4; j++) {
            const bt_v16 v = bt_v16_load(x + i + (size_t)j * 16);
            s[j] = bt_v16_fma(v, v, s[j]);
        }
    }
    for (uint32_t j = 0; i < dim; i += 16, j++) {
        const bt_v16 v = bt_v16_load_n(x + i, dim - i);
        s[j] = bt_v16_fma(v, v, s[j]);
    }
    return bt_v16_sum(bt_v16_add(bt_v16_add(s[0], s[1]), bt_v16_add(s[2], s[3])));
}

void BT_K(rms_norm)(const float *x, const float *weight, float eps, uint32_t row_first,
                    uint32_t row_end, uint32_t dim, float *out)
{
    for (uint32_t r = row_first; r < row_end; r++) {
        const float *from = x + (size_t)r * dim;
        float *to = out + (size_t)r * dim;
        const float mean = sum_squares(from, dim) / (float)dim;
        const bt_v16 inv = bt_v16_set1(1.0F / sqrtf(mean + eps));
        uint32_t i = 0;
        for (; i + 16 <= dim; i += 16) {
            const bt_v16 v = bt_v16_mul(bt_v16_load(from + i), inv);
            bt_v16_store(to + i, bt_v16_mul(v, bt_v16_load(weight + i)));
        }
        if (i < dim) {
            const bt_v16 v = bt_v16_mul(bt_v16_load_n(from + i, dim - i), inv);
            bt_v16_store_n(to + i, bt_v16_mul(v, bt_v16_load_n(weight + i, dim - i)), dim - i);
        }
    }
}

/* silu(x) = x / (1 + exp(-x)) */
BT_INLINE bt_v16 silu_times(bt_v16 gate, bt_v16 up)
{
    const bt_v16 e = bt_v16_exp(bt_v16_sub(bt_v16_zero(), gate));
    return bt_v16_mul(bt_v16_div(gate, bt_v16_add(bt_v16_set1(1.0F), e)), up);
}

void BT_K(silu_mul)(const float *x, uint32_t row_first, uint32_t row_end, uint32_t n, float *out)
{
    for (uint32_t r = row_first; r < row_end; r++) {
        const float *gate = x + (size_t)r * 2 * n;
        const float *up = gate + n;
        float *to = out + (size_t)r * n;
        uint32_t i = 0;
        for (; i + 16 <= n; i += 16) {
            bt_v16_store(to + i, silu_times(bt_v16_load(gate + i), bt_v16_load(up + i)));
        }
        if (i < n) {
            const uint32_t rest = n - i;
            bt_v16_store_n(to + i,
                           silu_times(bt_v16_load_n(gate + i, rest), bt_v16_load_n(up + i, rest)),
                           rest);
        }
    }
}

static void rotate(float *restrict head, const float *restrict rope, uint32_t n_rope)
{
    for (uint32_t i = 0; i < n_rope; i += 2) {
        const float c = rope[i];
        const float s = rope[i + 1];
        const float a = head[i];
        const float b = head[i + 1];
        head[i] = a * c - b * s;
        head[i + 1] = a * s + b * c;
    }
}

static void store_k_bf16(uint16_t *restrict run, uint32_t slot, uint32_t head_dim,
                         const float *restrict k)
{
    for (uint32_t c = 0; c < head_dim; c += 2) {
        const uint32_t at = bt_kv_k_element(slot, c);
        run[at] = bt_bf16_round(k[c]);
        run[at + 1] = bt_bf16_round(k[c + 1]);
    }
}

static void store_k_f32(float *restrict run, uint32_t slot, uint32_t head_dim,
                        const float *restrict k)
{
    for (uint32_t c = 0; c < head_dim; c += 2) {
        const uint32_t at = bt_kv_k_element(slot, c);
        run[at] = k[c];
        run[at + 1] = k[c + 1];
    }
}

static void store_v_bf16(uint16_t *restrict run, uint32_t slot, uint32_t head_dim,
                         const float *restrict v)
{
    for (uint32_t c = 0; c < head_dim; c++) {
        run[bt_kv_v_element(head_dim, slot, c)] = bt_bf16_round(v[c]);
    }
}

static void store_v_f32(float *restrict run, uint32_t slot, uint32_t head_dim,
                        const float *restrict v)
{
    for (uint32_t c = 0; c < head_dim; c++) {
        run[bt_kv_v_element(head_dim, slot, c)] = v[c];
    }
}

void BT_K(rope_store)(const bt_attention_args *args, const bt_kv_span *span, uint32_t first,
                      uint32_t end, float *qkv)
{
    const bt_kv_layout *l = args->layout;
    const uint32_t head_dim = l->head_dim;
    const size_t n_vectors = (size_t)args->n_heads + 2 * (size_t)l->n_kv_heads;
    for (uint32_t i = first; i < end; i++) {
        const uint32_t pos = span->pos_first + i;
        const uint32_t slot = pos % BT_KV_BLOCK_TOKENS;
        const bt_block_id block = span->blocks[pos / BT_KV_BLOCK_TOKENS];
        const float *rope = args->rope + (size_t)pos * head_dim;
        float *row = qkv + (span->row_first + (size_t)i) * n_vectors * head_dim;
        for (uint32_t h = 0; h < args->n_heads + l->n_kv_heads; h++) {
            rotate(row + (size_t)h * head_dim, rope, args->n_rope);
        }
        for (uint32_t g = 0; g < l->n_kv_heads; g++) {
            const float *k = row + ((size_t)args->n_heads + g) * head_dim;
            const float *v = k + (size_t)l->n_kv_heads * head_dim;
            void *k_run = args->pool + bt_kv_k_offset(l, block, args->layer, g);
            void *v_run = args->pool + bt_kv_v_offset(l, block, args->layer, g);
            if (l->format == BT_KV_FORMAT_F32) {
                store_k_f32(k_run, slot, head_dim, k);
                store_v_f32(v_run, slot, head_dim, v);
            } else {
                store_k_bf16(k_run, slot, head_dim, k);
                store_v_bf16(v_run, slot, head_dim, v);
            }
        }
    }
}
