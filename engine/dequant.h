/* SPDX-License-Identifier: Apache-2.0 */
/* dequant.h - rows of quantized weights as f32.
 *
 * Block formats are GGUF's public ones; values are computed in f32 as ggml's own
 * reference does, so that every number equals the model's by definition:
 *   Q8_0  d * q                         Q4_0  d * (q - 8)      Q4_1  d * q + m
 *   Q6_K  (d * scale) * (q - 32)        F16, BF16  widened     F32  copied
 *
 * Threading: any thread (no state). Memory: none.
 */
#ifndef BT_ENGINE_DEQUANT_H
#define BT_ENGINE_DEQUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/gguf.h"

/* Whether bt_dequantize_row() knows `type`. */
bool bt_dequant_supports(bt_gguf_type type);

/* Bytes of a row of `n` elements, a multiple of the type's block. */
size_t bt_dequant_row_bytes(bt_gguf_type type, size_t n);

/* Writes `n` f32 values, a multiple of the type's block, of a supported type. `src` holds
 * row_bytes(type, n) bytes, at any alignment, and doesn't overlap `dst`. */
void bt_dequantize_row(bt_gguf_type type, const void *src, size_t n, float *dst);

/* IEEE half precision to single, exact (NaN payloads are kept). */
float bt_f16_to_f32(uint16_t half);

/* bfloat16 to single, exact. */
float bt_bf16_to_f32(uint16_t bits);

#endif /* BT_ENGINE_DEQUANT_H */
