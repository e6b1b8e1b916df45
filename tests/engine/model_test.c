/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that a model file that is not what it should be is refused with a text that names the
 * cause, and that forward's result does not depend on how rows are cut into steps. */
#include "engine/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/kv_pool.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"

enum { DIM = 16, VOCAB = 20, FFN = 24, PATH_BYTES = 64 };

/* What to leave out or to change in a small right model. */
typedef struct defect {
    const char *missing_tensor;
    const char *extra_tensor;
    const char *wrong_shape; /* of this tensor */
    const char *arch;
    const char *missing_key;
    uint32_t n_heads; /* 0: 2 */
    uint32_t eos;
    uint32_t n_shards; /* 0: not said */
} defect;

static void temporary_path(char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "/tmp/baton-model-XXXXXX");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
}

static void add_tensor(bt_gguf_writer *w, const defect *d, const char *name, uint64_t cols,
                       uint64_t rows)
{
    if (d->missing_tensor && strcmp(d->missing_tensor, name) == 0) {
        return;
    }
    static const float zeros[64 * 64] = {0};
    uint64_t dims[2] = {cols, rows};
    if (d->wrong_shape && strcmp(d->wrong_shape, name) == 0) {
        dims[0]++;
    }
    bt_gguf_writer_add_tensor(w, name, BT_GGUF_F32, dims, rows > 0 ? 2 : 1, zeros);
}

static void add_key(bt_gguf_writer *w, const defect *d, const char *key, uint32_t value)
{
    if (!d->missing_key || strcmp(d->missing_key, key) != 0) {
        bt_gguf_writer_add_u32(w, key, value);
    }
}

static void write_model(const defect *d, const char *path)
{
    bt_gguf_writer *w = bt_gguf_writer_begin();
    bt_gguf_writer_add_string(w, "general.architecture", d->arch ? d->arch : "llama");
    add_key(w, d, "llama.block_count", 1);
    add_key(w, d, "llama.embedding_length", DIM);
    add_key(w, d, "llama.feed_forward_length", FFN);
    add_key(w, d, "llama.context_length", 64);
    add_key(w, d, "llama.attention.head_count", d->n_heads ? d->n_heads : 2);
    add_key(w, d, "llama.attention.head_count_kv", 2);
    bt_gguf_writer_add_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    add_key(w, d, "tokenizer.ggml.eos_token_id", d->eos);
    if (d->n_shards > 0) {
        bt_gguf_writer_add_u32(w, "split.count", d->n_shards);
    }
    add_tensor(w, d, "token_embd.weight", DIM, VOCAB);
    add_tensor(w, d, "output_norm.weight", DIM, 0);
    add_tensor(w, d, "blk.0.attn_norm.weight", DIM, 0);
    add_tensor(w, d, "blk.0.attn_q.weight", DIM, DIM);
    add_tensor(w, d, "blk.0.attn_k.weight", DIM, DIM);
    add_tensor(w, d, "blk.0.attn_v.weight", DIM, DIM);
    add_tensor(w, d, "blk.0.attn_output.weight", DIM, DIM);
    add_tensor(w, d, "blk.0.ffn_norm.weight", DIM, 0);
    add_tensor(w, d, "blk.0.ffn_gate.weight", DIM, FFN);
    add_tensor(w, d, "blk.0.ffn_up.weight", DIM, FFN);
    add_tensor(w, d, "blk.0.ffn_down.weight", FFN, DIM);
    if (d->extra_tensor) {
        add_tensor(w, d, d->extra_tensor, DIM, 0);
    }
    assert_int_equal(bt_gguf_writer_finish(w, path), BT_OK);
}

static bt_status load(const char *path, const char *kernels, bt_model **out, bt_error *err)
{
    const bt_model_options options = {
        .path = path,
        .kernels = kernels,
        .n_threads = 1,
        .rows_max = 64,
        .spans_max = 4,
        .logits_max = 64,
    };
    return bt_model_load(&options, out, err);
}

static void expect_refusal(const defect *d, bt_status want, const char *text)
{
    char path[PATH_BYTES];
    temporary_path(path);
    write_model(d, path);
    bt_model *model = NULL;
    bt_error err = {""};
    assert_int_equal(load(path, "portable", &model, &err), want);
    assert_null(model);
    if (!strstr(err.text, text) || !strstr(err.text, path)) {
        fail_msg("'%s' does not name '%s' and the file", err.text, text);
    }
    (void)unlink(path);
}

static void right_model_loads(void **state)
{
    (void)state;
    char path[PATH_BYTES];
    temporary_path(path);
    const defect none = {0};
    write_model(&none, path);
    bt_model *model = NULL;
    bt_error err = {""};
    assert_int_equal(load(path, "portable", &model, &err), BT_OK);
    const bt_model_params *p = bt_model_get_params(model);
    assert_int_equal(p->head_dim, DIM / 2);
    assert_int_equal(p->n_vocab, VOCAB);
    assert_int_equal(p->n_weights, VOCAB * DIM + DIM + 2 * DIM + 4 * DIM * DIM + 3 * DIM * FFN);
    bt_model_destroy(model);
    (void)unlink(path);
}

/* A file may name one of its turn ends alone; the tokenizer knows the others by their names. */
static void end_tokens_of_the_tokenizer_join_those_of_the_metadata(void **state)
{
    (void)state;
    char path[PATH_BYTES];
    temporary_path(path);
    write_model(&(defect){.eos = 2}, path);
    const int32_t ends[] = {2, 5};
    bt_model_options options = {
        .path = path,
        .kernels = "portable",
        .n_threads = 1,
        .rows_max = 64,
        .spans_max = 4,
        .logits_max = 64,
        .end_tokens = ends,
        .n_end_tokens = BT_ARRAY_LEN(ends),
    };
    bt_model *model = NULL;
    bt_error err = {""};
    assert_int_equal(bt_model_load(&options, &model, &err), BT_OK);
    const bt_model_params *p = bt_model_get_params(model);
    assert_int_equal(p->n_eos, 2);
    assert_int_equal(p->eos[0], 2);
    assert_int_equal(p->eos[1], 5);
    bt_model_destroy(model);

    const int32_t outside[] = {VOCAB};
    options.end_tokens = outside;
    options.n_end_tokens = 1;
    assert_int_equal(bt_model_load(&options, &model, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "vocabulary"));
    (void)unlink(path);
}

static void wrong_models_are_refused_by_name(void **state)
{
    (void)state;
    expect_refusal(&(defect){.missing_tensor = "blk.0.ffn_up.weight"}, BT_ENOTFOUND,
                   "blk.0.ffn_up.weight");
    expect_refusal(&(defect){.missing_tensor = "token_embd.weight"}, BT_EINVAL,
                   "token_embd.weight");
    expect_refusal(&(defect){.missing_tensor = "output_norm.weight"}, BT_ENOTFOUND,
                   "output_norm.weight");
    expect_refusal(&(defect){.extra_tensor = "blk.0.attn_q.bias"}, BT_EUNSUPPORTED,
                   "blk.0.attn_q.bias");
    expect_refusal(&(defect){.extra_tensor = "blk.1.attn_norm.weight"}, BT_EUNSUPPORTED,
                   "blk.1.attn_norm.weight");
    expect_refusal(&(defect){.wrong_shape = "blk.0.ffn_down.weight"}, BT_EINVAL,
                   "blk.0.ffn_down.weight");
    expect_refusal(&(defect){.wrong_shape = "blk.0.attn_norm.weight"}, BT_EINVAL,
                   "blk.0.attn_norm.weight");
    expect_refusal(&(defect){.arch = "gpt2"}, BT_EUNSUPPORTED, "gpt2");
    expect_refusal(&(defect){.missing_key = "llama.block_count"}, BT_ENOTFOUND,
                   "llama.block_count");
    expect_refusal(&(defect){.missing_key = "llama.context_length"}, BT_ENOTFOUND,
                   "llama.context_length");
    expect_refusal(&(defect){.n_shards = 4}, BT_EUNSUPPORTED, "one of 4 shards");
    expect_refusal(&(defect){.n_heads = 3}, BT_EINVAL, "3 query heads");
    expect_refusal(&(defect){.eos = VOCAB}, BT_EINVAL, "tokenizer.ggml.eos_token_id");
}

static void missing_file_and_unknown_kernels_are_refused(void **state)
{
    (void)state;
    bt_model *model = NULL;
    bt_error err = {""};
    assert_int_equal(load("/nowhere/model.gguf", "portable", &model, &err), BT_EIO);
    assert_non_null(strstr(err.text, "/nowhere/model.gguf"));
    char path[PATH_BYTES];
    temporary_path(path);
    write_model(&(defect){0}, path);
    assert_int_equal(load(path, "nonsense", &model, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "nonsense"));
    (void)unlink(path);
}

static bt_model *load_tiny(const char *kernels)
{
    char path[PATH_BYTES];
    temporary_path(path);
    assert_int_equal(bt_tiny_model_write(&bt_tiny_model_wide, path), BT_OK);
    bt_model *model = NULL;
    bt_error err = {""};
    if (load(path, kernels, &model, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    (void)unlink(path);
    return model;
}

static void numerics_id_tells_paths_of_other_bits_apart(void **state)
{
    (void)state;
    bt_model *portable = load_tiny("portable");
    bt_model *again = load_tiny("portable");
    bt_model *reference = load_tiny("reference");
    assert_true(bt_hash128_equal(bt_model_numerics_id(portable), bt_model_numerics_id(again)));
    assert_false(bt_hash128_equal(bt_model_numerics_id(portable), bt_model_numerics_id(reference)));
    assert_true(bt_hash128_equal(bt_model_fingerprint(portable), bt_model_fingerprint(reference)));
    bt_model_destroy(portable);
    bt_model_destroy(again);
    bt_model_destroy(reference);
}

/* Runs 40 tokens in steps of the given size and keeps the logits of the last one. */
static void run_in_steps(bt_model *model, uint32_t step, float *last)
{
    enum { N_TOKENS = 40 };
    bt_kv_pool *pool;
    assert_int_equal(bt_kv_pool_create(bt_model_kv_layout(model), 3, true, &pool, NULL), BT_OK);
    bt_batch *batch;
    assert_int_equal(bt_batch_create(64, 4, 64, &batch), BT_OK);
    const bt_block_id blocks[3] = {2, 0, 1};
    int32_t tokens[N_TOKENS];
    for (int32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = i * 31 % 256;
    }
    for (uint32_t at = 0; at < N_TOKENS; at += step) {
        const uint32_t n = N_TOKENS - at < step ? N_TOKENS - at : step;
        bt_batch_clear(batch);
        bt_batch_add(batch, NULL, tokens + at, n, at, blocks);
        bt_batch_want_logits(batch, 0);
        const float *logits = bt_model_forward(model, batch, bt_kv_pool_base(pool), NULL, NULL);
        memcpy(last, logits, BT_TINY_VOCAB * sizeof *last);
    }
    bt_batch_destroy(batch);
    bt_kv_pool_destroy(pool);
}

static void cut_of_steps_does_not_show(void **state)
{
    (void)state;
    bt_model *model = load_tiny("auto");
    float whole[BT_TINY_VOCAB];
    run_in_steps(model, 40, whole);
    static const uint32_t steps[] = {1, 7, 16, 33};
    for (size_t i = 0; i < BT_ARRAY_LEN(steps); i++) {
        float cut[BT_TINY_VOCAB];
        run_in_steps(model, steps[i], cut);
        assert_memory_equal(whole, cut, sizeof whole);
    }
    bt_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_model_loads),
        cmocka_unit_test(end_tokens_of_the_tokenizer_join_those_of_the_metadata),
        cmocka_unit_test(wrong_models_are_refused_by_name),
        cmocka_unit_test(missing_file_and_unknown_kernels_are_refused),
        cmocka_unit_test(numerics_id_tells_paths_of_other_bits_apart),
        cmocka_unit_test(cut_of_steps_does_not_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
