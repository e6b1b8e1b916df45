/* SPDX-License-Identifier: Apache-2.0 */
/* round.h - f32 to bf16 and back, one element at a time.
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_ENGINE_CPU_ROUND_H
#define BT_ENGINE_CPU_ROUND_H

#include <string.h>

#include "common/base.h"

/* Nearest, ties to even; NaN stays NaN; denormals are kept. */
BT_INLINE uint16_t bt_bf16_round(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    const uint32_t rounded = u + 0x7fffU + ((u >> 16) & 1U);
    const uint32_t nan = (u & 0x7fffffffU) > 0x7f800000U ? 0xffffffffU : 0U;
    return (uint16_t)(((rounded & ~nan) | ((u | 0x400000U) & nan)) >> 16);
}

BT_INLINE float bt_bf16_widen(uint16_t b)
{
    const uint32_t u = (uint32_t)b << 16;
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

#endif /* BT_ENGINE_CPU_ROUND_H */
