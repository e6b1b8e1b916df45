/* SPDX-License-Identifier: Apache-2.0 */
/* Plain loops, once per weight at load. Every expression has ggml's order of operations in
 * f32, which decides the last bit: Q6_K multiplies d by the sub-block's scale first.
 */
#include "engine/dequant.h"

#include <string.h>

#include "common/check.h"

enum {
    Q_ELEMENTS = 32,   /* of a block of the Qx_0 and Qx_1 types */
    QK_ELEMENTS = 256, /* of a block of the Qx_K types */
};

static uint16_t load_u16(const uint8_t *bytes)
{
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static int load_i8(uint8_t bits)
{
    return bits < 0x80 ? bits : (int)bits - 256;
}

static float bits_to_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float bt_f16_to_f32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 0x1F;
    const uint32_t fraction = half & 0x3FF;
    if (exponent == 0) { /* zero and subnormals: fraction * 2^-24, exact in f32 */
        const float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    const uint32_t wide = exponent == 0x1F ? 0xFF : exponent - 15 + 127;
    return bits_to_f32(sign | wide << 23 | fraction << 13);
}

float bt_bf16_to_f32(uint16_t bits)
{
    return bits_to_f32((uint32_t)bits << 16);
}

static void row_f32(const uint8_t *src, size_t n, float *dst)
{
    memcpy(dst, src, n * sizeof *dst);
}

static void row_f16(const uint8_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = bt_f16_to_f32(load_u16(src + 2 * i));
    }
}

static void row_bf16(const uint8_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = bt_bf16_to_f32(load_u16(src + 2 * i));
    }
}

/* { f16 d; i8 q[32] } */
static void row_q8_0(const uint8_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i += Q_ELEMENTS, src += 34) {
        const float d = bt_f16_to_f32(load_u16(src));
        for (size_t j = 0; j < Q_ELEMENTS; j++) {
            dst[i + j] = (float)load_i8(src[2 + j]) * d;
        }
    }
}

/* { f16 d; u8 q[16] }: elements 0-15 are the low halves, 16-31 the high ones */
static void row_q4_0(const uint8_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i += Q_ELEMENTS, src += 18) {
        const float d = bt_f16_to_f32(load_u16(src));
        for (size_t j = 0; j < Q_ELEMENTS / 2; j++) {
            dst[i + j] = (float)((src[2 + j] & 0x0F) - 8) * d;
            dst[i + j + Q_ELEMENTS / 2] = (float)((src[2 + j] >> 4) - 8) * d;
        }
    }
}

/* { f16 d; f16 m; u8 q[16] }: as Q4_0 */
static void row_q4_1(const uint8_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i += Q_ELEMENTS, src += 20) {
        const float d = bt_f16_to_f32(load_u16(src));
        const float m = bt_f16_to_f32(load_u16(src + 2));
        for (size_t j = 0; j < Q_ELEMENTS / 2; j++) {
            dst[i + j] = (float)(src[4 + j] & 0x0F) * d + m;
            dst[i + j + Q_ELEMENTS / 2] = (float)(src[4 + j] >> 4) * d + m;
        }
    }
}

/* { u8 low[128]; u8 high[64]; i8 scales[16]; f16 d }: two halves of 128 elements, each four
 * runs of 32: 4 low bits from `low` (runs 0, 1: low halves; 2, 3: high halves of the same
 * bytes), 2 high bits from `high`; one scale for 16 elements. */
static void row_q6_k(const uint8_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i += QK_ELEMENTS, src += 210) {
        const float d = bt_f16_to_f32(load_u16(src + 208));
        for (size_t j = 0; j < QK_ELEMENTS; j++) {
            const size_t half = j / 128;
            const size_t run = j % 128 / 32;
            const size_t at = j % 32;
            const uint8_t low_byte = src[half * 64 + run % 2 * 32 + at];
            const uint8_t high_byte = src[128 + half * 32 + at];
            const int low = run < 2 ? low_byte & 0x0F : low_byte >> 4;
            const int high = (high_byte >> (2 * run)) & 3;
            const float scale = (float)load_i8(src[192 + j / 16]);
            dst[i + j] = d * scale * (float)((low | high << 4) - 32);
        }
    }
}

typedef struct dequant_row {
    bt_gguf_type type;
    void (*row)(const uint8_t *src, size_t n, float *dst);
} dequant_row;

static const dequant_row rows[] = {
    {BT_GGUF_F32, row_f32},   {BT_GGUF_F16, row_f16},   {BT_GGUF_BF16, row_bf16},
    {BT_GGUF_Q8_0, row_q8_0}, {BT_GGUF_Q4_0, row_q4_0}, {BT_GGUF_Q4_1, row_q4_1},
    {BT_GGUF_Q6_K, row_q6_k},
};

static const dequant_row *find_row(bt_gguf_type type)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        if (rows[i].type == type) {
            return &rows[i];
        }
    }
    return NULL;
}

bool bt_dequant_supports(bt_gguf_type type)
{
    return find_row(type) != NULL;
}

size_t bt_dequant_row_bytes(bt_gguf_type type, size_t n)
{
    const size_t elements = bt_gguf_type_block_elements(type);
    BT_ASSERT(elements != 0);
    BT_ASSERT(n % elements == 0);
    return n / elements * bt_gguf_type_block_bytes(type);
}

void bt_dequantize_row(bt_gguf_type type, const void *src, size_t n, float *dst)
{
    const dequant_row *found = find_row(type);
    BT_ASSERT(found != NULL);
    BT_ASSERT(n % bt_gguf_type_block_elements(type) == 0);
    found->row(src, n, dst);
}
