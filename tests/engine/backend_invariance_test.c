/* SPDX-License-Identifier: Apache-2.0 */
/* Proves batch invariance, bit for bit, on every kernel path of this CPU: a row's result is the
 * same alone and in a batch of any size, in one call or in many, with 1, 2 and 3 threads, with NaN
 * in every slot that no token has filled. Also that paths of one numerics class agree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/engine/backend_fixture.h"

static const char *paths[16];
static size_t n_paths;

enum {
    N = 150,
    K = 75,
    ROWS = 64,
};

/* y for x's rows in calls of `chunk` rows. */
static void multiply(bt_backend *be, const bt_matrix *m, const float *x, uint32_t chunk, float *y)
{
    for (uint32_t r = 0; r < ROWS; r += chunk) {
        const uint32_t n = ROWS - r < chunk ? ROWS - r : chunk;
        be->ops->matmul(be, m, x + (size_t)r * K, n, y + (size_t)r * N, N, false);
    }
}

static void a_product_is_the_same_in_any_batch_with_any_threads(void **state)
{
    (void)state;
    static float want[ROWS * N];
    static float got[ROWS * N];
    float *x = fixture_randoms(11, (size_t)ROWS * K);
    for (size_t p = 0; p < n_paths; p++) {
        for (uint32_t threads = 1; threads <= 3; threads++) {
            bt_backend *be = fixture_backend(paths[p], threads);
            bt_matrix *m = fixture_matrix(be, 12, N, K);
            for (uint32_t chunk = 1; chunk <= ROWS; chunk += threads == 1 ? 1 : 9) {
                multiply(be, m, x, chunk, threads == 1 && chunk == 1 ? want : got);
                if (threads > 1 || chunk > 1) {
                    assert_memory_equal(got, want, sizeof(want));
                }
            }
            be->ops->matrix_destroy(be, m);
            be->ops->destroy(be);
        }
    }
    free(x);
}

static void a_bad_row_harms_no_other_row(void **state)
{
    (void)state;
    static float want[ROWS * N];
    static float got[ROWS * N];
    float *x = fixture_randoms(11, (size_t)ROWS * K);
    for (size_t p = 0; p < n_paths; p++) {
        bt_backend *be = fixture_backend(paths[p], 2);
        bt_matrix *m = fixture_matrix(be, 12, N, K);
        multiply(be, m, x, ROWS, want);
        const uint32_t nan_bits = 0x7fc00000U;
        memcpy(&x[5 * K + 7], &nan_bits, sizeof(float));
        multiply(be, m, x, ROWS, got);
        assert_memory_equal(got, want, 5 * N * sizeof(float));
        assert_memory_equal(got + 6 * N, want + 6 * N, (ROWS - 6) * N * sizeof(float));
        assert_true(got[5 * N] != got[5 * N]);
        x[5 * K + 7] = 0.25F;
        be->ops->matrix_destroy(be, m);
        be->ops->destroy(be);
    }
    free(x);
}

static void rows_of_norm_and_activation_do_not_depend_on_each_other(void **state)
{
    (void)state;
    float *x = fixture_randoms(21, (size_t)ROWS * 2 * K);
    float *weight = fixture_randoms(22, K);
    static float want[2][ROWS * K];
    static float got[2][ROWS * K];
    for (size_t p = 0; p < n_paths; p++) {
        for (uint32_t threads = 1; threads <= 3; threads++) {
            bt_backend *be = fixture_backend(paths[p], threads);
            be->ops->rms_norm(be, x, weight, 1e-5F, ROWS, K, got[0]);
            be->ops->silu_mul(be, x, ROWS, K, got[1]);
            for (uint32_t r = 0; r < ROWS; r++) {
                be->ops->rms_norm(be, x + (size_t)r * K, weight, 1e-5F, 1, K,
                                  want[0] + (size_t)r * K);
                be->ops->silu_mul(be, x + (size_t)r * 2 * K, 1, K, want[1] + (size_t)r * K);
            }
            assert_memory_equal(got, want, sizeof(want));
            be->ops->destroy(be);
        }
    }
    free(x);
    free(weight);
}

typedef struct chunk_plan {
    uint32_t length; /* positions of sequence 0 */
    uint32_t first;  /* those before are computed at once, the others in chunks */
    uint32_t chunk;
    bool mates; /* each step also carries a token and a chunk of other sequences */
} chunk_plan;

/* Returns [length][n_heads * head_dim]. */
static float *run_chunks(bt_backend *be, fixture_shape shape, chunk_plan plan)
{
    const uint32_t length = plan.length;
    fixture_attention fx;
    fixture_attention_init(&fx, shape, 3, length + 16);
    const size_t width = (size_t)shape.n_heads * shape.head_dim;
    float *all = calloc(length * width, sizeof(float));
    assert_non_null(all);
    uint32_t mate_pos = 0;
    uint32_t n = 0;
    for (uint32_t pos = 0; pos < length; pos += n) {
        const uint32_t want = pos < plan.first ? plan.first : plan.chunk;
        n = length - pos < want ? length - pos : want;
        const fixture_rows mixed[3] = {{1, mate_pos, 1}, {0, pos, n}, {2, mate_pos * 3, 3}};
        const bool with = plan.mates && mate_pos * 3 + 3 <= length;
        float *out = with ? fixture_step(&fx, be, mixed, 3) : fixture_step(&fx, be, &mixed[1], 1);
        memcpy(all + pos * width, out + (with ? width : 0), n * width * sizeof(float));
        free(out);
        mate_pos++;
    }
    fixture_attention_deinit(&fx);
    return all;
}

/* One by one and alone on one thread, against every chunk, with and without company, on `threads`.
 */
static void check_chunks(const char *path, fixture_shape shape, chunk_plan plan,
                         const uint32_t *chunks, size_t n_chunks)
{
    bt_backend *one = fixture_backend(path, 1);
    const size_t bytes = (size_t)plan.length * shape.n_heads * shape.head_dim * sizeof(float);
    plan.chunk = 1;
    plan.mates = false;
    float *want = run_chunks(one, shape, plan);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        bt_backend *be = fixture_backend(path, threads);
        for (size_t c = 0; c < n_chunks; c++) {
            plan.chunk = chunks[c];
            plan.mates = c % 2 == threads % 2;
            float *got = run_chunks(be, shape, plan);
            if (memcmp(got, want, bytes) != 0) {
                fail_msg("%s: chunk %u, %u threads, mates %d, head_dim %u", path, chunks[c],
                         threads, plan.mates, shape.head_dim);
            }
            free(got);
        }
        be->ops->destroy(be);
    }
    free(want);
    one->ops->destroy(one);
}

static void attention_is_the_same_in_any_chunks_and_company(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 2, 7, 16, 64, 512};
    static const fixture_shape shapes[] = {
        {1, 1, 8, 8, BT_KV_FORMAT_BF16},   {6, 2, 8, 8, BT_KV_FORMAT_F32},
        {4, 1, 64, 64, BT_KV_FORMAT_BF16}, {8, 1, 34, 16, BT_KV_FORMAT_BF16},
        {7, 1, 80, 80, BT_KV_FORMAT_F32},
    };
    for (size_t p = 0; p < n_paths; p++) {
        for (size_t s = 0; s < BT_ARRAY_LEN(shapes); s++) {
            const chunk_plan all = {.length = 150};
            check_chunks(paths[p], shapes[s], all, chunks, BT_ARRAY_LEN(chunks));
        }
    }
}

/* Rows 0 .. 39 of a sequence in one chunk, whose V is infinite from row 37 on. */
static void later_infinities_harm_no_earlier_row(void **state)
{
    (void)state;
    static const fixture_shape shapes[] = {{6, 2, 8, 8, BT_KV_FORMAT_BF16},
                                           {3, 1, 64, 64, BT_KV_FORMAT_BF16}};
    static const fixture_rows rows = {0, 0, 40};
    for (size_t p = 0; p < n_paths; p++) {
        for (size_t s = 0; s < BT_ARRAY_LEN(shapes); s++) {
            bt_backend *be = fixture_backend(paths[p], 1);
            fixture_attention fx;
            fixture_attention_init(&fx, shapes[s], 1, 48);
            float *want = fixture_step(&fx, be, &rows, 1);
            float *qkv = fixture_qkv(&fx, &rows, 1);
            const size_t width = (size_t)shapes[s].n_heads * shapes[s].head_dim;
            const size_t kv = (size_t)shapes[s].n_kv_heads * shapes[s].head_dim;
            const uint32_t infinity = 0x7f800000U;
            for (size_t r = 37; r < 40; r++) {
                for (size_t c = 0; c < kv; c++) {
                    memcpy(&qkv[r * (width + 2 * kv) + width + kv + c], &infinity, sizeof(float));
                }
            }
            fixture_store(&fx, be, &rows, 1, qkv);
            float *got = fixture_attend(&fx, be, &rows, 1, qkv);
            assert_memory_equal(got, want, 37 * width * sizeof(float));
            assert_true(got[37 * width] > 1e30F);
            free(want);
            free(got);
            free(qkv);
            fixture_attention_deinit(&fx);
            be->ops->destroy(be);
        }
    }
}

static void segments_are_the_same_in_one_thread_and_in_several(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 5, 64};
    static const fixture_shape shape = {3, 1, 8, 8, BT_KV_FORMAT_BF16};
    for (size_t p = 0; p < n_paths; p++) {
        const chunk_plan end = {.length = 1050, .first = 1010};
        check_chunks(paths[p], shape, end, chunks, BT_ARRAY_LEN(chunks));
    }
}

static void paths_of_one_class_agree_to_the_bit(void **state)
{
    (void)state;
    static const fixture_shape shape = {4, 1, 34, 34, BT_KV_FORMAT_BF16};
    static float y[2][ROWS * N];
    static float z[2][ROWS * K];
    float *x = fixture_randoms(31, (size_t)ROWS * 2 * K);
    float *weight = fixture_randoms(32, K);
    for (size_t a = 0; a < n_paths; a++) {
        for (size_t b = a + 1; b < n_paths; b++) {
            bt_backend *be[2] = {fixture_backend(paths[a], 1), fixture_backend(paths[b], 2)};
            float *out[2] = {NULL, NULL};
            const bool same = strcmp(be[0]->numerics, be[1]->numerics) == 0;
            for (uint32_t i = 0; i < 2; i++) {
                bt_matrix *m = fixture_matrix(be[i], 33, N, K);
                multiply(be[i], m, x, 16, y[i]);
                be[i]->ops->silu_mul(be[i], x, ROWS, K, z[i]);
                be[i]->ops->rms_norm(be[i], z[i], weight, 1e-5F, ROWS, K, z[i]);
                out[i] = run_chunks(be[i], shape, (chunk_plan){.length = 150, .chunk = 16});
                be[i]->ops->matrix_destroy(be[i], m);
                be[i]->ops->destroy(be[i]);
            }
            if (same) {
                assert_memory_equal(y[0], y[1], sizeof(y[0]));
                assert_memory_equal(z[0], z[1], sizeof(z[0]));
                assert_memory_equal(out[0], out[1], 150 * 4 * 34 * sizeof(float));
            }
            free(out[0]);
            free(out[1]);
        }
    }
    free(x);
    free(weight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_is_the_same_in_any_batch_with_any_threads),
        cmocka_unit_test(a_bad_row_harms_no_other_row),
        cmocka_unit_test(rows_of_norm_and_activation_do_not_depend_on_each_other),
        cmocka_unit_test(attention_is_the_same_in_any_chunks_and_company),
        cmocka_unit_test(later_infinities_harm_no_earlier_row),
        cmocka_unit_test(segments_are_the_same_in_one_thread_and_in_several),
        cmocka_unit_test(paths_of_one_class_agree_to_the_bit),
    };
    n_paths = bt_cpu_backend_paths(paths, BT_ARRAY_LEN(paths));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
