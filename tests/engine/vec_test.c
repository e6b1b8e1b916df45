/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the accuracy of vec.h's exp against double, compiled for one instruction set at a time
 * (BUILD), and that it treats the ends of the range as its comment says. */
#include "engine/cpu/vec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static bool can_run(void)
{
#if defined(BT_VEC_AVX512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
#elif defined(BT_VEC_AVX2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return true;
#endif
}

static void exp_is_within_a_little_more_than_one_ulp(void **state)
{
    (void)state;
    if (!can_run()) {
        skip();
    }
    double worst = 0.0;
    for (int32_t i = -873000; i <= 880000; i += 16) {
        float x[16];
        float y[16];
        for (int32_t j = 0; j < 16; j++) {
            x[j] = (float)(i + j) * 1e-4F;
            x[j] = x[j] < -87.3F ? -87.3F : (x[j] > 88.0F ? 88.0F : x[j]);
        }
        bt_v16_store(y, bt_v16_exp(bt_v16_load(x)));
        for (int32_t j = 0; j < 16; j++) {
            const double want = exp((double)x[j]);
            const float near = (float)want;
            const double ulp = (double)nextafterf(near, INFINITY) - (double)near;
            worst = fmax(worst, fabs((double)y[j] - want) / ulp);
        }
    }
    print_message("worst error of exp: %.3f ulp\n", worst);
    assert_true(worst <= 1.1);
}

static void exp_has_clean_ends(void **state)
{
    (void)state;
    if (!can_run()) {
        skip();
    }
    const float x[16] = {0.0F, -0.0F, -INFINITY, -88.0F, -1e30F, 88.0F, 100.0F, INFINITY, NAN};
    float y[16];
    bt_v16_store(y, bt_v16_exp(bt_v16_load(x)));
    assert_true(y[0] == 1.0F && y[1] == 1.0F);
    assert_true(y[2] == 0.0F && y[3] == 0.0F && y[4] == 0.0F);
    assert_true(y[5] == y[6] && y[6] == y[7] && y[5] > 1e38F && y[5] < INFINITY);
    assert_true(y[8] != y[8]);
}

static void parts_of_vectors_touch_nothing_else(void **state)
{
    (void)state;
    if (!can_run()) {
        skip();
    }
    for (uint32_t n = 0; n <= 16; n++) {
        float from[32];
        float to[32];
        for (uint32_t i = 0; i < 32; i++) {
            from[i] = (float)i + 1.0F;
            to[i] = -1.0F;
        }
        bt_v16_store_n(to, bt_v16_load_n(from, n), n);
        for (uint32_t i = 0; i < 32; i++) {
            assert_true(to[i] == (i < n ? from[i] : -1.0F));
        }
        assert_true(bt_v16_sum(bt_v16_load_n(from, n)) == (float)(n * (n + 1) / 2));
        bt_v16 even;
        bt_v16 odd;
        bt_v16_load_f32_pairs_n(from, n, &even, &odd);
        bt_v16_store(to, even);
        bt_v16_store(to + 16, odd);
        for (uint32_t i = 0; i < 16; i++) {
            assert_true(to[i] == (i < n ? from[2 * i] : 0.0F));
            assert_true(to[16 + i] == (i < n ? from[2 * i + 1] : 0.0F));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_a_little_more_than_one_ulp),
        cmocka_unit_test(exp_has_clean_ends),
        cmocka_unit_test(parts_of_vectors_touch_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
