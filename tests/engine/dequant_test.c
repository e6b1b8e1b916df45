/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that rows have the very bits that the reference gives for the same blocks
 * (dequant_vectors.h), at any alignment, and that every 16-bit number is widened exactly.
 */
#include "engine/dequant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/engine/dequant_vectors.h"

enum { VALUES_MAX = 512, BYTES_MAX = 1024 };

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void blocks_give_the_values_of_the_reference(void **state)
{
    (void)state;
    static const struct {
        bt_gguf_type type;
        const uint8_t *blocks;
        size_t n_bytes;
        const uint32_t *bits;
        size_t n;
    } rows[] = {
#define ROW(type, lower)                                                                           \
    {type, lower##_blocks, sizeof lower##_blocks, lower##_bits,                                    \
     sizeof lower##_bits / sizeof lower##_bits[0]}
        ROW(BT_GGUF_Q8_0, q8_0), ROW(BT_GGUF_Q4_0, q4_0), ROW(BT_GGUF_Q4_1, q4_1),
        ROW(BT_GGUF_Q6_K, q6_k), ROW(BT_GGUF_F16, f16),   ROW(BT_GGUF_BF16, bf16),
#undef ROW
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        float got[VALUES_MAX];
        uint8_t shifted[BYTES_MAX];
        assert_true(bt_dequant_supports(rows[i].type));
        assert_true(rows[i].n <= VALUES_MAX && rows[i].n_bytes < BYTES_MAX);
        assert_int_equal(bt_dequant_row_bytes(rows[i].type, rows[i].n), rows[i].n_bytes);
        memcpy(shifted + 1, rows[i].blocks, rows[i].n_bytes);
        bt_dequantize_row(rows[i].type, shifted + 1, rows[i].n, got);
        for (size_t k = 0; k < rows[i].n; k++) {
            if (bits_of(got[k]) != rows[i].bits[k]) {
                fail_msg("%s: value %zu is %a, bits 0x%08X; want 0x%08X",
                         bt_gguf_type_name(rows[i].type), k, (double)got[k], bits_of(got[k]),
                         rows[i].bits[k]);
            }
        }
    }
}

static void f32_is_copied(void **state)
{
    (void)state;
    static const float want[] = {0.0F, -1.5F, 3.25F, INFINITY};
    float got[4];
    bt_dequantize_row(BT_GGUF_F32, want, 4, got);
    assert_memory_equal(got, want, sizeof want);
}

static void every_half_is_widened_exactly(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 65536; half++) {
        const int exponent = (int)(half >> 10 & 0x1F);
        const double fraction = (half & 0x3FF) / 1024.0;
        const float got = bt_f16_to_f32((uint16_t)half);
        double want = exponent == 0 ? ldexp(fraction, -14) : ldexp(1.0 + fraction, exponent - 15);
        if (exponent == 31 && fraction != 0) {
            assert_true(isnan(got));
            continue;
        }
        if (exponent == 31) {
            want = INFINITY;
        }
        assert_int_equal(bits_of(got), bits_of((float)(half & 0x8000 ? -want : want)));
    }
    for (uint32_t bits = 0; bits < 65536; bits++) {
        assert_int_equal(bits_of(bt_bf16_to_f32((uint16_t)bits)), bits << 16);
    }
}

static void other_types_are_not_supported(void **state)
{
    (void)state;
    assert_false(bt_dequant_supports(BT_GGUF_Q2_K));
    assert_false(bt_dequant_supports(BT_GGUF_I32));
    assert_false(bt_dequant_supports((bt_gguf_type)12345));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_give_the_values_of_the_reference),
        cmocka_unit_test(f32_is_copied),
        cmocka_unit_test(every_half_is_widened_exactly),
        cmocka_unit_test(other_types_are_not_supported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
