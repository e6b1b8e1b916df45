/* SPDX-License-Identifier: Apache-2.0 */
/* The polynomial is 0x1EDC6F41, its bits reflected: 0x82F63B78. "Raw" below is the
 * register without the inversions at start and end.
 *
 * SSE4.2: crc32 takes 8 bytes with a latency of 3 cycles and a throughput of 1, so
 * three neighbouring lanes of equal length run at a time. Lanes are joined as
 * Gopal et al. do ("Fast CRC computation for iSCSI polynomial", Intel, 2011): moving
 * a raw CRC over n zero bytes is a product with x^(8n) modulo P; one carry-less
 * product with x^(8n-33) mod P and one crc32 step (which multiplies by x^32 and
 * reduces; the reflected product is one bit off) give it.
 *
 * Tables: slicing by 8 (Kounavis and Berry, ISCC 2005). CRCs are linear, so an entry
 * is the sum of those of its bits; the compiler builds the tables from 64 numbers. */
#include "common/crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define POLY 0x82F63B78U

/* ---- tables ---- */

/* BASIS_k_b: raw CRC of the byte 1 << b followed by k zero bytes. */
#define BASIS_0(X)                                                                                 \
    X(0xF26B8303U, 0xE13B70F7U, 0xC79A971FU, 0x8AD958CFU, 0x105EC76FU, 0x20BD8EDEU, 0x417B1DBCU,   \
      0x82F63B78U)
#define BASIS_1(X)                                                                                 \
    X(0x13A29877U, 0x274530EEU, 0x4E8A61DCU, 0x9D14C3B8U, 0x3FC5F181U, 0x7F8BE302U, 0xFF17C604U,   \
      0xFBC3FAF9U)
#define BASIS_2(X)                                                                                 \
    X(0xA541927EU, 0x4F6F520DU, 0x9EDEA41AU, 0x38513EC5U, 0x70A27D8AU, 0xE144FB14U, 0xC76580D9U,   \
      0x8B277743U)
#define BASIS_3(X)                                                                                 \
    X(0xDD45AAB8U, 0xBF672381U, 0x7B2231F3U, 0xF64463E6U, 0xE964B13DU, 0xD725148BU, 0xABA65FE7U,   \
      0x52A0C93FU)
#define BASIS_4(X)                                                                                 \
    X(0x38116FACU, 0x7022DF58U, 0xE045BEB0U, 0xC5670B91U, 0x8F2261D3U, 0x1BA8B557U, 0x37516AAEU,   \
      0x6EA2D55CU)
#define BASIS_5(X)                                                                                 \
    X(0xEF306B19U, 0xDB8CA0C3U, 0xB2F53777U, 0x6006181FU, 0xC00C303EU, 0x85F4168DU, 0x0E045BEBU,   \
      0x1C08B7D6U)
#define BASIS_6(X)                                                                                 \
    X(0x68032CC8U, 0xD0065990U, 0xA5E0C5D1U, 0x4E2DFD53U, 0x9C5BFAA6U, 0x3D5B83BDU, 0x7AB7077AU,   \
      0xF56E0EF4U)
#define BASIS_7(X)                                                                                 \
    X(0x493C7D27U, 0x9278FA4EU, 0x211D826DU, 0x423B04DAU, 0x847609B4U, 0x0D006599U, 0x1A00CB32U,   \
      0x34019664U)

#define E(i, b0, b1, b2, b3, b4, b5, b6, b7)                                                       \
    (((i)&1 ? b0 : 0) ^ ((i)&2 ? b1 : 0) ^ ((i)&4 ? b2 : 0) ^ ((i)&8 ? b3 : 0) ^                   \
     ((i)&16 ? b4 : 0) ^ ((i)&32 ? b5 : 0) ^ ((i)&64 ? b6 : 0) ^ ((i)&128 ? b7 : 0))
#define E4(i, ...)                                                                                 \
    E((i), __VA_ARGS__), E((i) + 1, __VA_ARGS__), E((i) + 2, __VA_ARGS__), E((i) + 3, __VA_ARGS__)
#define E16(i, ...)                                                                                \
    E4((i), __VA_ARGS__), E4((i) + 4, __VA_ARGS__), E4((i) + 8, __VA_ARGS__),                      \
        E4((i) + 12, __VA_ARGS__)
#define E64(i, ...)                                                                                \
    E16((i), __VA_ARGS__), E16((i) + 16, __VA_ARGS__), E16((i) + 32, __VA_ARGS__),                 \
        E16((i) + 48, __VA_ARGS__)
#define E256(...)                                                                                  \
    {                                                                                              \
        E64(0, __VA_ARGS__), E64(64, __VA_ARGS__), E64(128, __VA_ARGS__), E64(192, __VA_ARGS__)    \
    }

/* tables[k][v]: raw CRC of the byte v followed by k zero bytes. */
static const uint32_t tables[8][256] = {
    BASIS_0(E256), BASIS_1(E256), BASIS_2(E256), BASIS_3(E256),
    BASIS_4(E256), BASIS_5(E256), BASIS_6(E256), BASIS_7(E256),
};

static uint32_t raw_byte(uint32_t raw, uint8_t byte)
{
    return (raw >> 8) ^ tables[0][(raw ^ byte) & 0xFF];
}

uint32_t bt_crc32c_portable(uint32_t crc, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    uint32_t raw = ~crc;
    for (; n >= 8; n -= 8, at += 8) {
        const uint32_t low = raw ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                                    (uint32_t)at[3] << 24);
        raw = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^
              tables[4][low >> 24] ^ tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^
              tables[0][at[7]];
    }
    for (; n > 0; n--, at++) {
        raw = raw_byte(raw, *at);
    }
    return ~raw;
}

/* ---- SSE4.2 ---- */

#if defined(__x86_64__)

enum {
    LANE_LONG = 2048, /* bytes */
    LANE_SHORT = 256,
    LINE = 64,
    STREAM_BYTES_MIN = 4096, /* shorter copies are likely to be read soon */
};

/* x^(8n - 33) mod P, reflected, for n = LANE and 2 * LANE. */
#define MOVE_2048 0xA51B6135U
#define MOVE_4096 0x82F89C77U
#define MOVE_256 0xB9E02B86U
#define MOVE_512 0xDD7E3B0CU

BT_INLINE uint64_t load64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* Three lanes of `lane` bytes. */
BT_INLINE BT_TARGET("sse4.2,pclmul") uint64_t
    raw_three_lanes(uint64_t raw, const uint8_t *at, size_t lane, uint32_t move1, uint32_t move2)
{
    uint64_t a = raw;
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < lane; i += LINE) {
        /* The hardware gives up at the jump from lanes to lanes. The address may lie past
         * the buffer: a prefetch of it does nothing. */
        const uintptr_t ahead = (uintptr_t)at + 3 * lane + i;
        _mm_prefetch((const char *)ahead, _MM_HINT_T0);
        _mm_prefetch((const char *)(ahead + lane), _MM_HINT_T0);
        _mm_prefetch((const char *)(ahead + 2 * lane), _MM_HINT_T0);
        for (size_t j = i; j < i + LINE; j += 8) {
            a = _mm_crc32_u64(a, load64(at + j));
            b = _mm_crc32_u64(b, load64(at + lane + j));
            c = _mm_crc32_u64(c, load64(at + 2 * lane + j));
        }
    }
    const __m128i a_moved =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)a), _mm_cvtsi64_si128(move2), 0);
    const __m128i b_moved =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)b), _mm_cvtsi64_si128(move1), 0);
    const uint64_t both = (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(a_moved, b_moved));
    return c ^ _mm_crc32_u64(0, both);
}

BT_INLINE BT_TARGET("sse4.2,pclmul") uint64_t raw_tail(uint64_t raw, const uint8_t *at, size_t n)
{
    for (; n >= 8; n -= 8, at += 8) {
        raw = _mm_crc32_u64(raw, load64(at));
    }
    for (; n > 0; n--, at++) {
        raw = _mm_crc32_u8((uint32_t)raw, *at);
    }
    return raw;
}

BT_TARGET("sse4.2,pclmul") static uint32_t crc_sse42(uint32_t crc, const uint8_t *at, size_t n)
{
    uint64_t raw = ~crc;
    for (; n >= 3 * LANE_LONG; n -= 3 * LANE_LONG, at += 3 * LANE_LONG) {
        raw = raw_three_lanes(raw, at, LANE_LONG, MOVE_2048, MOVE_4096);
    }
    for (; n >= 3 * LANE_SHORT; n -= 3 * LANE_SHORT, at += 3 * LANE_SHORT) {
        raw = raw_three_lanes(raw, at, LANE_SHORT, MOVE_256, MOVE_512);
    }
    return ~(uint32_t)raw_tail(raw, at, n);
}

/* Copies past the caches; `target` is 16-byte-aligned and n a multiple of 64. */
BT_INLINE void stream(uint8_t *target, const uint8_t *source, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(source + i));
        _mm_stream_si128((__m128i *)(void *)(target + i), v);
    }
}

/* A piece of three short lanes is summed, which brings it into the first cache, then
 * copied from there in order. Storing beside the sums, lane by lane, was slower (three
 * half-written lines at a time), and so were larger pieces. */
BT_TARGET("sse4.2,pclmul")
static uint32_t copy_sse42(uint32_t crc, uint8_t *target, const uint8_t *at, size_t n)
{
    const size_t piece = 3 * LANE_SHORT;
    const bool past_caches = n >= STREAM_BYTES_MIN && (uintptr_t)target % 16 == 0;
    uint64_t raw = ~crc;
    for (; n >= piece; n -= piece, at += piece, target += piece) {
        raw = raw_three_lanes(raw, at, LANE_SHORT, MOVE_256, MOVE_512);
        if (past_caches) {
            stream(target, at, piece);
        } else {
            memcpy(target, at, piece);
        }
    }
    if (past_caches) {
        _mm_sfence(); /* streamed stores are ordered with nothing else */
    }
    memcpy(target, at, n);
    return ~(uint32_t)raw_tail(raw, at, n);
}

static bool has_sse42(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

#else

static bool has_sse42(void)
{
    return false;
}

static uint32_t crc_sse42(uint32_t crc, const uint8_t *at, size_t n)
{
    return bt_crc32c_portable(crc, at, n);
}

static uint32_t copy_sse42(uint32_t crc, uint8_t *target, const uint8_t *source, size_t n)
{
    memcpy(target, source, n);
    return bt_crc32c_portable(crc, source, n);
}

#endif

uint32_t bt_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    return has_sse42() ? crc_sse42(crc, bytes, n) : bt_crc32c_portable(crc, bytes, n);
}

uint32_t bt_crc32c_copy(uint32_t crc, void *restrict target, const void *restrict source, size_t n)
{
    if (n == 0) {
        return crc;
    }
    if (has_sse42()) {
        return copy_sse42(crc, target, source, n);
    }
    memcpy(target, source, n);
    return bt_crc32c_portable(crc, target, n);
}

const char *bt_crc32c_path(void)
{
    return has_sse42() ? "sse4.2" : "tables";
}

/* ---- combine ---- */

/* a * b mod P, reflected: bit 31 is x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000U; bit != 0; bit >>= 1) {
        product ^= a & bit ? b : 0;
        b = (b >> 1) ^ (b & 1 ? POLY : 0); /* times x */
    }
    return product;
}

uint32_t bt_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes)
{
    uint32_t power = 0x00800000U; /* x^8: one zero byte; squared at each step */
    uint32_t moved = crc_a;
    for (uint64_t left = b_bytes; left != 0; left >>= 1) {
        if (left & 1) {
            moved = multiply(moved, power);
        }
        power = multiply(power, power);
    }
    return moved ^ crc_b;
}
