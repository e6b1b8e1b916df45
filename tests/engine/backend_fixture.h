/* SPDX-License-Identifier: Apache-2.0 */
/* backend_fixture.h - matrices, sequences and steps with reproducible random numbers, to run the
 * same work on several backends.
 *
 * Threading: the test's. Memory: each object until its destroy; failures end the test.
 */
#ifndef BT_TESTS_ENGINE_BACKEND_FIXTURE_H
#define BT_TESTS_ENGINE_BACKEND_FIXTURE_H

#include "engine/backend.h"

/* Uniform in [-1, 1), a pure function of its arguments. */
float fixture_random(uint32_t seed, uint32_t i, uint32_t j);

/* n random numbers on the heap, for free(). */
float *fixture_randoms(uint32_t seed, size_t n);

/* A backend with room for all that these tests do. */
bt_backend *fixture_backend(const char *path, uint32_t n_threads);

/* W[j][i] = random(seed, j, i), rounded to bf16, so that every backend holds the same numbers. */
bt_matrix *fixture_matrix(bt_backend *be, uint32_t seed, uint32_t n, uint32_t k);

/* Shape of the attention, and a pool for `n_sequences` of up to n_positions each. All of the pool
 * is NaN at first. */
typedef struct fixture_attention {
    bt_kv_layout layout;
    uint8_t *pool;
    size_t pool_bytes;
    bt_block_id *blocks; /* [n_sequences][blocks_per_sequence], scattered through the pool */
    float *rope;
    uint32_t blocks_per_sequence;
    uint32_t n_heads;
    uint32_t n_rope;
    uint32_t layer;
} fixture_attention;

typedef struct fixture_shape {
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t n_rope;
    bt_kv_format format;
} fixture_shape;

void fixture_attention_init(fixture_attention *fx, fixture_shape shape, uint32_t n_sequences,
                            uint32_t n_positions);
void fixture_attention_deinit(fixture_attention *fx);

/* Positions first .. first + n - 1 of a sequence. */
typedef struct fixture_rows {
    uint32_t sequence;
    uint32_t first;
    uint32_t n;
} fixture_rows;

/* One step with these rows: qkv are random numbers that depend on (sequence, position, element)
 * alone; stores them and attends. Returns [rows][n_heads * head_dim] for free(). */
float *fixture_step(fixture_attention *fx, bt_backend *be, const fixture_rows *rows, uint32_t n);

/* The same in its two halves. */
float *fixture_qkv(const fixture_attention *fx, const fixture_rows *rows, uint32_t n);
void fixture_store(fixture_attention *fx, bt_backend *be, const fixture_rows *rows, uint32_t n,
                   float *qkv);
float *fixture_attend(fixture_attention *fx, bt_backend *be, const fixture_rows *rows, uint32_t n,
                      const float *qkv);

#endif /* BT_TESTS_ENGINE_BACKEND_FIXTURE_H */
