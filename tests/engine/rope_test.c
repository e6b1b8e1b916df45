/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the RoPE table against Hugging Face's: values of transformers 5.24's
 * LlamaRotaryEmbedding (float32) with head_dim 64 and rope_theta 10000, for rope_type default,
 * linear (factor 4) and yarn (factor 4, original_max_position_embeddings 2048):
 *   cos, sin = LlamaRotaryEmbedding(config)(x, torch.tensor([[1, 100, 2000]])) */
#include "engine/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/gguf_writer.h"

enum { N_POSITIONS = 2001, HEAD_DIM = 64 };

typedef struct want {
    uint32_t position;
    uint32_t pair;
    float cosine;
    float sine;
} want;

static void compare(const bt_rope *rope, const want *wants, size_t n)
{
    float *table = calloc((size_t)N_POSITIONS * HEAD_DIM, sizeof *table);
    assert_non_null(table);
    bt_rope_fill(rope, N_POSITIONS, table);
    for (size_t i = 0; i < n; i++) {
        const float *got = table + ((size_t)wants[i].position * HEAD_DIM / 2 + wants[i].pair) * 2;
        /* An ulp of a frequency is 6e-8 of an angle of up to 2000. */
        assert_float_equal(got[0], wants[i].cosine, 1.5e-4F);
        assert_float_equal(got[1], wants[i].sine, 1.5e-4F);
    }
    free(table);
}

static const bt_rope plain = {
    .n_rope = HEAD_DIM, .base = 10000.0F, .factor = 1.0F, .yarn_scale = 1.0F};

static void plain_angles_equal_the_reference(void **state)
{
    (void)state;
    static const want wants[] = {
        {1, 0, 0.540302336F, 0.841470957F},    {1, 5, 0.972014427F, 0.234921068F},
        {1, 15, 0.99991107F, 0.01333482F},     {1, 31, 1.0F, 0.00013335215F},
        {100, 0, 0.862318873F, -0.506365657F}, {100, 5, 0.15120846F, -0.988501906F},
        {100, 15, 0.235054702F, 0.971982121F}, {2000, 0, -0.367459565F, 0.930039525F},
        {2000, 5, -0.994411409F, 0.10557434F}, {2000, 15, 0.0331022777F, 0.999451995F},
        {2000, 31, 0.96464473F, 0.263553679F},
    };
    compare(&plain, wants, BT_ARRAY_LEN(wants));
}

static void linear_scaling_equals_the_reference(void **state)
{
    (void)state;
    static const want wants[] = {
        {1, 0, 0.968912423F, 0.247403964F},      {1, 5, 0.998243213F, 0.0592496209F},
        {100, 0, 0.991202831F, -0.132351756F},   {100, 15, 0.94494158F, 0.327239156F},
        {2000, 0, -0.883849263F, -0.467771798F}, {2000, 5, 0.688163817F, -0.725555301F},
        {2000, 31, 0.997777939F, 0.0666266829F},
    };
    bt_rope rope = plain;
    rope.factor = 4.0F;
    compare(&rope, wants, BT_ARRAY_LEN(wants));
}

static void yarn_equals_the_reference(void **state)
{
    (void)state;
    static const want wants[] = {
        {1, 0, 0.615204155F, 0.958123624F},     {1, 5, 1.1067642F, 0.267488033F},
        {1, 15, 1.13859344F, 0.00905182585F},   {1, 31, 1.13862944F, 3.79596713e-05F},
        {100, 0, 0.981861651F, -0.576562822F},  {100, 5, 0.172170401F, -1.1255374F},
        {100, 15, 0.797377884F, 0.812813282F},  {2000, 0, -0.418400288F, 1.05897033F},
        {2000, 5, -1.13226604F, 0.120210052F},  {2000, 15, -1.11776853F, -0.216957539F},
        {2000, 31, 1.13609934F, 0.0758631006F},
    };
    bt_rope rope = plain;
    rope.factor = 4.0F;
    rope.yarn = true;
    rope.yarn_context = 2048.0F;
    compare(&rope, wants, BT_ARRAY_LEN(wants));
}

static void factors_of_the_file_divide_the_frequencies(void **state)
{
    (void)state;
    float factors[HEAD_DIM / 2];
    for (size_t i = 0; i < HEAD_DIM / 2; i++) {
        factors[i] = 1.0F + (float)i;
    }
    bt_rope rope = plain;
    rope.pair_factors = factors;
    float *table = calloc((size_t)N_POSITIONS * HEAD_DIM, sizeof *table);
    assert_non_null(table);
    bt_rope_fill(&rope, N_POSITIONS, table);
    for (uint32_t i = 0; i < HEAD_DIM / 2; i++) {
        const double turn = pow(10000.0, -2.0 * i / HEAD_DIM) / (1.0 + i);
        assert_float_equal(table[((size_t)100 * HEAD_DIM / 2 + i) * 2], cos(100.0 * turn), 2e-5F);
    }
    free(table);
}

/* Opens a file with the given rope keys and reads them. */
static bt_status read_keys(const char *kind, float factor, float base, bt_rope *rope, bt_error *err)
{
    char path[] = "/tmp/baton-rope-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    bt_gguf_writer *writer = bt_gguf_writer_begin();
    bt_gguf_writer_add_f32(writer, "llama.rope.freq_base", base);
    if (kind) {
        bt_gguf_writer_add_string(writer, "llama.rope.scaling.type", kind);
        bt_gguf_writer_add_f32(writer, "llama.rope.scaling.factor", factor);
        bt_gguf_writer_add_u32(writer, "llama.rope.scaling.original_context_length", 2048);
    }
    const float data[1] = {0};
    bt_gguf_writer_add_tensor(writer, "x", BT_GGUF_F32, (const uint64_t[]){1}, 1, data);
    assert_int_equal(bt_gguf_writer_finish(writer, path), BT_OK);
    bt_gguf *gguf;
    assert_int_equal(bt_gguf_open(path, &gguf, err), BT_OK);
    const bt_status status = bt_rope_read(gguf, "llama", HEAD_DIM, rope, err);
    bt_gguf_close(gguf);
    (void)unlink(path);
    return status;
}

static void keys_of_the_file_are_read_and_checked(void **state)
{
    (void)state;
    bt_rope rope;
    bt_error err = {""};
    assert_int_equal(read_keys(NULL, 0, 500000.0F, &rope, &err), BT_OK);
    assert_int_equal(rope.n_rope, HEAD_DIM);
    assert_false(rope.yarn);
    assert_int_equal(read_keys("yarn", 4.0F, 10000.0F, &rope, &err), BT_OK);
    assert_true(rope.yarn);
    assert_float_equal(rope.yarn_context, 2048.0F, 0.0F);
    assert_int_equal(read_keys("longrope", 4.0F, 10000.0F, &rope, &err), BT_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "longrope"));
    assert_int_equal(read_keys("linear", -1.0F, 10000.0F, &rope, &err), BT_EINVAL);
    assert_int_equal(read_keys("linear", NAN, 10000.0F, &rope, &err), BT_EINVAL);
    assert_int_equal(read_keys(NULL, 0, 0.0F, &rope, &err), BT_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_angles_equal_the_reference),
        cmocka_unit_test(linear_scaling_equals_the_reference),
        cmocka_unit_test(yarn_equals_the_reference),
        cmocka_unit_test(factors_of_the_file_divide_the_frequencies),
        cmocka_unit_test(keys_of_the_file_are_read_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
