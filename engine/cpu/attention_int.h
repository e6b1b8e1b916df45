/* SPDX-License-Identifier: Apache-2.0 */
/* attention_int.h - scratch of an attention part, and the table by which attention.c runs a tile on
 * FMA (attention_fma.h) or AMX (attention_amx.h). Seen by these files alone.
 *
 * Threading: any thread, each with its own scratch. Memory: none.
 */
#ifndef BT_ENGINE_CPU_ATTENTION_INT_H
#define BT_ENGINE_CPU_ATTENTION_INT_H

#include "engine/cpu/isa.h"
#include "engine/cpu/tile.h"

enum {
    STEP_BLOCKS = BT_STEP_TOKENS / BT_KV_BLOCK_TOKENS,
#ifdef BT_VEC_AMX
    QUERIES_MAX = 16, /* rows of an AMX tile */
#else
    QUERIES_MAX = BT_TILE_ROWS,
#endif
};

_Static_assert(BT_STEP_TOKENS == 64, "a step is four vectors of scores");
_Static_assert((int)QUERIES_MAX <= (int)BT_V16_LANES, "the state of all queries fits a vector");

typedef struct scratch {
    float s[QUERIES_MAX][BT_STEP_TOKENS]; /* scores, then p */
    float o[QUERIES_MAX][BT_HEAD_DIM_MAX];
    float q[QUERIES_MAX][BT_HEAD_DIM_MAX];     /* scaled */
    float lanes[QUERIES_MAX][BT_V16_LANES];    /* l */
    float total[QUERIES_MAX][BT_HEAD_DIM_MAX]; /* merged segments */
    bt_segment_state total_state[BT_V16_LANES];
    float max[BT_V16_LANES];
    float max_next[BT_V16_LANES];
    float rescale[BT_V16_LANES];   /* c */
    uint32_t end[BT_V16_LANES];    /* position after the last that a query sees; 0: no query */
    uint32_t n_seen[BT_V16_LANES]; /* of the step */
    const void *k_runs[STEP_BLOCKS];
    const void *v_runs[STEP_BLOCKS];
#ifdef BT_VEC_AMX
    uint16_t q_bf16[QUERIES_MAX][BT_HEAD_DIM_MAX];
    uint16_t p_bf16[QUERIES_MAX][BT_STEP_TOKENS];
    uint16_t k_padded[STEP_BLOCKS][BT_HEAD_DIM_MAX * BT_KV_BLOCK_TOKENS];
    uint16_t v_padded[STEP_BLOCKS][BT_HEAD_DIM_MAX * BT_KV_BLOCK_TOKENS];
    uint16_t v_masked[BT_HEAD_DIM_MAX * BT_KV_BLOCK_TOKENS];
    uint16_t p_one[QUERIES_MAX][BT_KV_BLOCK_TOKENS];
    float o_one[QUERIES_MAX][BT_HEAD_DIM_MAX];
#endif
} scratch;

typedef struct tile_fns {
    uint32_t rows; /* query vectors of a tile */
    bool rounds_p; /* p is wanted as bf16 in p_bf16, else as f32 in s */
    void (*begin)(scratch *sc, uint32_t head_dim, uint32_t n_queries); /* may be NULL */
    /* Query r of the tile; NULL: there is none. */
    void (*load_q)(scratch *sc, uint32_t r, const float *q, float scale, uint32_t head_dim);
    void (*scores)(scratch *sc, uint32_t head_dim, uint32_t n_blocks);
    void (*values)(scratch *sc, uint32_t head_dim, uint32_t n_queries); /* o = o c + p V */
    void (*end)(void);                                                  /* may be NULL */
} tile_fns;

#endif /* BT_ENGINE_CPU_ATTENTION_INT_H */
