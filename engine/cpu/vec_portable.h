/* SPDX-License-Identifier: Apache-2.0 */
/* vec_portable.h - 16 lanes of f32 in plain C. See vec.h, which includes it.
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_ENGINE_CPU_VEC_PORTABLE_H
#define BT_ENGINE_CPU_VEC_PORTABLE_H

#include <string.h>

#include "common/base.h"

typedef struct bt_v16 {
    float f[16];
} bt_v16;

BT_INLINE bt_v16 bt_v16_set1(float x)
{
    bt_v16 r;
    for (uint32_t i = 0; i < 16; i++) {
        r.f[i] = x;
    }
    return r;
}

BT_INLINE bt_v16 bt_v16_zero(void)
{
    return bt_v16_set1(0.0F);
}

BT_INLINE bt_v16 bt_v16_load(const float *p)
{
    bt_v16 r;
    memcpy(r.f, p, sizeof(r.f));
    return r;
}

BT_INLINE bt_v16 bt_v16_load_n(const float *p, uint32_t n)
{
    bt_v16 r = bt_v16_zero();
    memcpy(r.f, p, (n < 16 ? n : 16) * sizeof(float));
    return r;
}

BT_INLINE void bt_v16_store(float *p, bt_v16 v)
{
    memcpy(p, v.f, sizeof(v.f));
}

BT_INLINE void bt_v16_store_n(float *p, bt_v16 v, uint32_t n)
{
    memcpy(p, v.f, (n < 16 ? n : 16) * sizeof(float));
}

BT_INLINE bt_v16 bt_v16_add(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] += b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_sub(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] -= b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_mul(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] *= b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_div(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] /= b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_fma(bt_v16 a, bt_v16 b, bt_v16 c)
{
    for (uint32_t i = 0; i < 16; i++) {
        c.f[i] = a.f[i] * b.f[i] + c.f[i];
    }
    return c;
}

BT_INLINE bt_v16 bt_v16_max(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_min(bt_v16 a, bt_v16 b)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] = a.f[i] < b.f[i] ? a.f[i] : b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 bt_v16_first(bt_v16 a, bt_v16 b, uint32_t n)
{
    for (uint32_t i = 0; i < 16; i++) {
        a.f[i] = i < n ? a.f[i] : b.f[i];
    }
    return a;
}

BT_INLINE bt_v16 v16_zero_below(bt_v16 v, bt_v16 x, float limit)
{
    for (uint32_t i = 0; i < 16; i++) {
        v.f[i] = x.f[i] < limit ? 0.0F : v.f[i];
    }
    return v;
}

BT_INLINE bt_v16 v16_add_exponent(bt_v16 p, bt_v16 t)
{
    uint32_t a[16];
    uint32_t n[16];
    memcpy(a, p.f, sizeof(a));
    memcpy(n, t.f, sizeof(n));
    for (uint32_t i = 0; i < 16; i++) {
        a[i] += n[i] << 23;
    }
    memcpy(p.f, a, sizeof(a));
    return p;
}

BT_INLINE void bt_v16_load_bf16_pairs_n(const uint16_t *p, uint32_t n, bt_v16 *even, bt_v16 *odd)
{
    uint32_t e[16];
    uint32_t o[16];
    for (uint32_t i = 0; i < 16; i++) {
        e[i] = i < n ? (uint32_t)p[2 * i] << 16 : 0;
        o[i] = i < n ? (uint32_t)p[2 * i + 1] << 16 : 0;
    }
    memcpy(even->f, e, sizeof(e));
    memcpy(odd->f, o, sizeof(o));
}

BT_INLINE void bt_v16_load_bf16_pairs(const uint16_t *p, bt_v16 *even, bt_v16 *odd)
{
    bt_v16_load_bf16_pairs_n(p, 16, even, odd);
}

BT_INLINE void bt_v16_load_f32_pairs(const float *p, bt_v16 *even, bt_v16 *odd)
{
    for (uint32_t i = 0; i < 16; i++) {
        even->f[i] = p[2 * i];
        odd->f[i] = p[2 * i + 1];
    }
}

BT_INLINE float bt_v16_sum(bt_v16 v)
{
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++) {
            v.f[i] += v.f[i + half];
        }
    }
    return v.f[0];
}

BT_INLINE float bt_v16_hmax(bt_v16 v)
{
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++) {
            v.f[i] = v.f[i] > v.f[i + half] ? v.f[i] : v.f[i + half];
        }
    }
    return v.f[0];
}

BT_INLINE void bt_prefetch(const void *p)
{
    (void)p;
}

#endif /* BT_ENGINE_CPU_VEC_PORTABLE_H */
