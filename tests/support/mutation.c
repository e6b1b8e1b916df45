/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/mutation.h"

#include <string.h>

/* SplitMix64 (Steele et al. 2014). */
uint64_t bt_mutation_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

typedef struct piece {
    size_t at;
    size_t len; /* 1..64 */
} piece;

static piece draw_piece(size_t len, uint64_t *state)
{
    piece drawn = {.at = bt_mutation_random(state) % len};
    drawn.len = 1 + bt_mutation_random(state) % 64;
    if (drawn.len > len - drawn.at) {
        drawn.len = len - drawn.at;
    }
    return drawn;
}

/* Little-endian, of 1, 2, 4 or 8 bytes; those that lengths and counts trip over. */
static void overwrite(uint8_t *bytes, size_t len, uint64_t *state)
{
    static const uint64_t extremes[] = {
        0,          1,          0x7F,       0x80,       0xFF,
        0x7FFF,     0xFFFF,     0x7FFFFFFF, 1ULL << 31, 0xFFFFFFFF,
        1ULL << 32, 1ULL << 62, INT64_MAX,  1ULL << 63, UINT64_MAX,
    };
    const uint64_t value =
        extremes[bt_mutation_random(state) % (sizeof extremes / sizeof *extremes)];
    const size_t n = (size_t)1 << (bt_mutation_random(state) % 4);
    const size_t at = bt_mutation_random(state) % len;
    for (size_t i = 0; i < n && at + i < len; i++) {
        bytes[at + i] = (uint8_t)(value >> (8 * i));
    }
}

/* Makes room for `extra` bytes at `at`, or as many as fit; returns their number. */
static size_t open_gap(uint8_t *bytes, size_t len, size_t capacity, size_t at, size_t extra)
{
    if (extra > capacity - len) {
        extra = capacity - len;
    }
    memmove(bytes + at + extra, bytes + at, len - at);
    return extra;
}

static size_t insert_piece(uint8_t *bytes, size_t len, size_t capacity, uint64_t *state)
{
    const piece p = draw_piece(len, state);
    const size_t n = open_gap(bytes, len, capacity, p.at, p.len);
    for (size_t i = 0; i < n; i++) {
        bytes[p.at + i] = (uint8_t)bt_mutation_random(state);
    }
    return len + n;
}

static size_t double_piece(uint8_t *bytes, size_t len, size_t capacity, uint64_t *state)
{
    const piece p = draw_piece(len, state);
    return len + open_gap(bytes, len, capacity, p.at, p.len);
}

static void swap_pieces(uint8_t *bytes, size_t len, uint64_t *state)
{
    const piece a = draw_piece(len, state);
    const piece b = draw_piece(len, state);
    const size_t n = a.len < b.len ? a.len : b.len;
    for (size_t i = 0; i < n; i++) {
        const uint8_t kept = bytes[a.at + i];
        bytes[a.at + i] = bytes[b.at + i];
        bytes[b.at + i] = kept;
    }
}

static size_t remove_piece(uint8_t *bytes, size_t len, uint64_t *state)
{
    const piece p = draw_piece(len, state);
    memmove(bytes + p.at, bytes + p.at + p.len, len - p.at - p.len);
    return len - p.len;
}

static size_t damage(uint8_t *bytes, size_t len, size_t capacity, uint64_t *state)
{
    switch (bt_mutation_random(state) % 8) {
    case 0:
    case 1:
        bytes[bt_mutation_random(state) % len] ^= (uint8_t)(1U << (bt_mutation_random(state) % 8));
        return len;
    case 2:
        overwrite(bytes, len, state);
        return len;
    case 3:
        return bt_mutation_random(state) % len;
    case 4:
        return insert_piece(bytes, len, capacity, state);
    case 5:
        return double_piece(bytes, len, capacity, state);
    case 6:
        swap_pieces(bytes, len, state);
        return len;
    default:
        return remove_piece(bytes, len, state);
    }
}

size_t bt_mutate(uint8_t *bytes, size_t len, size_t capacity, uint64_t number)
{
    uint64_t state = number;
    const size_t n = 1 + bt_mutation_random(&state) % 4;
    for (size_t i = 0; i < n && len > 0; i++) {
        len = damage(bytes, len, capacity, &state);
    }
    return len;
}
