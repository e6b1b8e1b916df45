/* SPDX-License-Identifier: Apache-2.0 */
/* base.h - what every file may use: attributes, array length, checked sizes.
 *
 * Threading: any thread (no state).
 * Memory:    none.
 */
#ifndef BT_COMMON_BASE_H
#define BT_COMMON_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The only place where compiler attributes are named. */
#define BT_MUST_CHECK __attribute__((warn_unused_result))
#define BT_PRINTF(fmt_idx, first_idx) __attribute__((format(printf, fmt_idx, first_idx)))
#define BT_NORETURN __attribute__((noreturn))
#define BT_ALIGNED(bytes) __attribute__((aligned(bytes)))
/* Compiles one function for more than the build's instruction set: BT_TARGET("sse4.2"). */
#define BT_TARGET(isa) __attribute__((target(isa)))
#define BT_INLINE static inline __attribute__((always_inline, unused))

#define BT_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* The struct of type `type` whose member `member` is *ptr. */
#define bt_container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* Checked size arithmetic: false, and *out untouched, on overflow. */
static inline bool bt_size_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline bool bt_size_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

/* Rounds up to a multiple of `step` (a power of two); the caller knows that it fits. */
static inline size_t bt_align_up(size_t n, size_t step)
{
    return (n + step - 1) & ~(step - 1);
}

/* ceil(a / b) for b > 0. */
static inline size_t bt_div_ceil(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

static inline size_t bt_size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t bt_size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

#endif /* BT_COMMON_BASE_H */
