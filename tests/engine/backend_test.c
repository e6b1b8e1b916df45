/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that every kernel path of this CPU computes what reference.c computes, on shapes
 * that fit no vector, up to a bound that follows from the path's arithmetic:
 *
 *   matrix products   |error| <= u * sum |w| |x|, where u is k * 2^-24 for f32 products and
 *                     2^-8 more where activations are rounded to bf16
 *   attention         outputs are averages of V: |error| <= u * max |v|
 *
 * The backends get the same K and V, so that a last bit of a rounded K does not count twice.
 */
#include "engine/backend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/engine/backend_fixture.h"

static const char *paths[16];
static size_t n_paths;

static bool rounds_activations(const bt_backend *be)
{
    return strncmp(be->numerics, "bf16", 4) == 0;
}

static void assert_near(const bt_backend *be, float got, float want, double bound)
{
    if (!(fabs((double)got - (double)want) <= bound)) {
        fail_msg("%s: got %.9g, want %.9g +- %.3g", be->name, (double)got, (double)want, bound);
    }
}

static void check_matmul(bt_backend *be, bt_backend *ref, uint32_t n, uint32_t k, uint32_t n_rows)
{
    const uint32_t stride = n + 3;
    bt_matrix *m = fixture_matrix(be, 1, n, k);
    bt_matrix *rm = fixture_matrix(ref, 1, n, k);
    float *x = fixture_randoms(2, (size_t)n_rows * k);
    float *y = fixture_randoms(3, (size_t)n_rows * stride);
    float *want = fixture_randoms(3, (size_t)n_rows * stride);
    const double u = k * 0x1p-24 + (rounds_activations(be) ? 0x1p-8 : 0.0);
    for (int add = 0; add < 2; add++) {
        be->ops->matmul(be, m, x, n_rows, y, stride, add != 0);
        ref->ops->matmul(ref, rm, x, n_rows, want, stride, add != 0);
        for (uint32_t r = 0; r < n_rows; r++) {
            for (uint32_t j = 0; j < stride; j++) {
                /* sum |w| |x| <= k, and what was added is no larger than twice that */
                const double bound = j < n ? (u * k + 0x1p-22) * (1 + add) : 0.0;
                assert_near(be, y[r * stride + j], want[r * stride + j], bound);
            }
        }
    }
    be->ops->matrix_destroy(be, m);
    ref->ops->matrix_destroy(ref, rm);
    free(x);
    free(y);
    free(want);
}

static void matrix_products_match_the_reference(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 1},   {16, 2},   {17, 33},
                                         {40, 75}, {200, 64}, {130, 190}};
    static const uint32_t rows[] = {1, 2, 3, 5, 8, 12, 13, 31, 64};
    bt_backend *ref = fixture_backend("reference", 1);
    for (size_t p = 0; p < n_paths; p++) {
        bt_backend *be = fixture_backend(paths[p], 2);
        for (size_t s = 0; s < BT_ARRAY_LEN(shapes); s++) {
            for (size_t r = 0; r < BT_ARRAY_LEN(rows); r++) {
                check_matmul(be, ref, shapes[s][0], shapes[s][1], rows[r]);
            }
        }
        be->ops->destroy(be);
    }
    ref->ops->destroy(ref);
}

static void embeddings_are_the_rows_of_the_matrix(void **state)
{
    (void)state;
    static const int32_t tokens[] = {0, 36, 17, 16, 36};
    const uint32_t k = 45;
    bt_backend *ref = fixture_backend("reference", 1);
    bt_matrix *rm = fixture_matrix(ref, 9, 37, k);
    for (size_t p = 0; p < n_paths; p++) {
        bt_backend *be = fixture_backend(paths[p], 1);
        bt_matrix *m = fixture_matrix(be, 9, 37, k);
        float got[5 * 45];
        float want[5 * 45];
        be->ops->embed(be, m, tokens, 5, got);
        ref->ops->embed(ref, rm, tokens, 5, want);
        assert_memory_equal(got, want, sizeof(got));
        be->ops->matrix_destroy(be, m);
        be->ops->destroy(be);
    }
    ref->ops->matrix_destroy(ref, rm);
    ref->ops->destroy(ref);
}

static void check_rows(bt_backend *be, bt_backend *ref, uint32_t dim, uint32_t n_rows)
{
    float *x = fixture_randoms(4, (size_t)n_rows * dim * 2);
    float *weight = fixture_randoms(5, dim);
    float *got = fixture_randoms(6, (size_t)n_rows * dim);
    float *want = fixture_randoms(6, (size_t)n_rows * dim);
    be->ops->rms_norm(be, x, weight, 1e-5F, n_rows, dim, got);
    ref->ops->rms_norm(ref, x, weight, 1e-5F, n_rows, dim, want);
    for (size_t i = 0; i < (size_t)n_rows * dim; i++) {
        assert_near(be, got[i], want[i], (dim + 8) * 0x1p-24 * fabs((double)want[i]));
    }
    for (size_t i = 0; i < (size_t)n_rows * dim * 2; i++) {
        x[i] *= 20.0F;
    }
    be->ops->silu_mul(be, x, n_rows, dim, got);
    ref->ops->silu_mul(ref, x, n_rows, dim, want);
    for (size_t i = 0; i < (size_t)n_rows * dim; i++) {
        assert_near(be, got[i], want[i], 0x1p-21 * fabs((double)want[i]));
    }
    /* The norm may write over its input. */
    be->ops->rms_norm(be, x, weight, 1e-5F, n_rows, dim, got);
    be->ops->rms_norm(be, x, weight, 1e-5F, n_rows, dim, x);
    assert_memory_equal(x, got, (size_t)n_rows * dim * sizeof(float));
    free(x);
    free(weight);
    free(got);
    free(want);
}

static void norm_and_activation_match_the_reference(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 15, 16, 63, 64, 100, 576};
    bt_backend *ref = fixture_backend("reference", 1);
    for (size_t p = 0; p < n_paths; p++) {
        bt_backend *be = fixture_backend(paths[p], 2);
        for (size_t d = 0; d < BT_ARRAY_LEN(dims); d++) {
            check_rows(be, ref, dims[d], 1);
            check_rows(be, ref, dims[d], 37);
        }
        be->ops->destroy(be);
    }
    ref->ops->destroy(ref);
}

/* Some steps over two sequences. */
static const fixture_rows steps[][3] = {
    {{0, 0, 1}},
    {{0, 1, 21}, {1, 0, 70}},
    {{1, 70, 1}, {0, 22, 1}},
    {{0, 23, 50}, {1, 71, 60}},
};

static uint32_t n_spans_of(size_t step)
{
    return step == 0 ? 1 : 2;
}

/* f32, or one of a pair of bf16. */
static float element(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Both stored the same K and V but for the last bit; what nobody stored is still NaN. */
static void check_pools(const bt_backend *be, const fixture_attention *fx,
                        const fixture_attention *want_fx)
{
    const bool is_f32 = fx->layout.format == BT_KV_FORMAT_F32;
    for (size_t i = 0; i < fx->pool_bytes; i += 4) {
        uint32_t a;
        uint32_t b;
        memcpy(&a, fx->pool + i, 4);
        memcpy(&b, want_fx->pool + i, 4);
        if (a == b) {
            continue;
        }
        if (is_f32) {
            assert_near(be, element(a), element(b), 0x1p-19);
            continue;
        }
        for (uint32_t shift = 0; shift <= 16; shift += 16) {
            const uint32_t got = shift == 0 ? a << 16 : a & 0xffff0000U;
            const uint32_t want = shift == 0 ? b << 16 : b & 0xffff0000U;
            if (got != want) {
                const double bound = 0x1p-7 * fabs((double)element(want)) + 1e-6;
                assert_near(be, element(got), element(want), bound);
            }
        }
    }
}

static void check_attention(bt_backend *be, bt_backend *ref, fixture_shape shape)
{
    fixture_attention fx;
    fixture_attention want_fx;
    fixture_attention_init(&fx, shape, 2, 144);
    fixture_attention_init(&want_fx, shape, 2, 144);
    for (size_t s = 0; s < BT_ARRAY_LEN(steps); s++) {
        const uint32_t n = n_spans_of(s);
        float *qkv = fixture_qkv(&fx, steps[s], n);
        float *want_qkv = fixture_qkv(&fx, steps[s], n);
        fixture_store(&fx, be, steps[s], n, qkv);
        fixture_store(&want_fx, ref, steps[s], n, want_qkv);
        check_pools(be, &fx, &want_fx);
        memcpy(fx.pool, want_fx.pool, fx.pool_bytes);
        float *got = fixture_attend(&fx, be, steps[s], n, want_qkv);
        float *want = fixture_attend(&want_fx, ref, steps[s], n, want_qkv);
        size_t n_rows = steps[s][0].n + (n > 1 ? steps[s][1].n : 0);
        const double u = rounds_activations(be) ? 0x1p-5 : 0x1p-17;
        for (size_t i = 0; i < n_rows * shape.n_heads * shape.head_dim; i++) {
            assert_near(be, got[i], want[i], u * 3.0);
        }
        free(qkv);
        free(want_qkv);
        free(got);
        free(want);
    }
    fixture_attention_deinit(&fx);
    fixture_attention_deinit(&want_fx);
}

static void attention_matches_the_reference(void **state)
{
    (void)state;
    static const fixture_shape shapes[] = {
        {1, 1, 8, 8, BT_KV_FORMAT_BF16},    {3, 1, 64, 64, BT_KV_FORMAT_F32},
        {9, 3, 64, 64, BT_KV_FORMAT_BF16},  {8, 2, 80, 80, BT_KV_FORMAT_BF16},
        {8, 1, 128, 32, BT_KV_FORMAT_BF16}, {14, 2, 24, 24, BT_KV_FORMAT_F32},
        {5, 1, 34, 34, BT_KV_FORMAT_BF16},  {2, 2, 256, 256, BT_KV_FORMAT_BF16},
    };
    bt_backend *ref = fixture_backend("reference", 1);
    for (size_t p = 0; p < n_paths; p++) {
        bt_backend *be = fixture_backend(paths[p], 2);
        for (size_t s = 0; s < BT_ARRAY_LEN(shapes); s++) {
            check_attention(be, ref, shapes[s]);
        }
        be->ops->destroy(be);
    }
    ref->ops->destroy(ref);
}

static void long_contexts_match_the_reference(void **state)
{
    (void)state;
    static const fixture_shape shape = {3, 1, 16, 16, BT_KV_FORMAT_BF16};
    static const fixture_rows prompt = {0, 0, 1100};
    static const fixture_rows token = {0, 1100, 1};
    bt_backend *ref = fixture_backend("reference", 1);
    fixture_attention fx;
    fixture_attention_init(&fx, shape, 1, 1104);
    float *qkv = fixture_qkv(&fx, &prompt, 1);
    fixture_store(&fx, ref, &prompt, 1, qkv);
    float *next = fixture_qkv(&fx, &token, 1);
    fixture_store(&fx, ref, &token, 1, next);
    float *want = fixture_attend(&fx, ref, &token, 1, next);
    for (size_t p = 0; p < n_paths; p++) {
        bt_backend *be = fixture_backend(paths[p], 2);
        float *got = fixture_attend(&fx, be, &token, 1, next);
        for (size_t i = 0; i < 3 * 16; i++) {
            assert_near(be, got[i], want[i], rounds_activations(be) ? 0.02 : 1e-5);
        }
        free(got);
        be->ops->destroy(be);
    }
    free(qkv);
    free(next);
    free(want);
    fixture_attention_deinit(&fx);
    ref->ops->destroy(ref);
}

static void unknown_and_missing_paths_are_refused_with_a_text(void **state)
{
    (void)state;
    bt_backend_limits limits = {2, 8, 2, 64, 4, 16, 64};
    bt_backend *be = NULL;
    bt_error err = {""};
    assert_int_equal(bt_cpu_backend_create("avx1024", &limits, &be, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "avx1024"));
    assert_non_null(strstr(err.text, "portable"));
    limits.head_dim = 1024;
    assert_int_equal(bt_cpu_backend_create("portable", &limits, &be, &err), BT_EUNSUPPORTED);
    limits.head_dim = 16;
    limits.n_threads = 0;
    assert_int_equal(bt_cpu_backend_create("portable", &limits, &be, &err), BT_EINVAL);
    assert_null(be);
    limits.n_threads = 1;
    assert_int_equal(bt_cpu_backend_create("auto", &limits, &be, &err), BT_OK);
    be->ops->destroy(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrix_products_match_the_reference),
        cmocka_unit_test(embeddings_are_the_rows_of_the_matrix),
        cmocka_unit_test(norm_and_activation_match_the_reference),
        cmocka_unit_test(attention_matches_the_reference),
        cmocka_unit_test(long_contexts_match_the_reference),
        cmocka_unit_test(unknown_and_missing_paths_are_refused_with_a_text),
    };
    n_paths = bt_cpu_backend_paths(paths, BT_ARRAY_LEN(paths)) - 1; /* without the reference */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
