/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention over KV blocks, compiled once for each instruction set (BT_ISA).
 *
 * A part is a tile of query vectors that read one kv head: rows of the span times the heads of a
 * group. It walks the positions in steps of 64 (four blocks), absolute, and keeps for each query
 * a running maximum m, 16 lane sums l and an accumulator o (Milakov & Gimelshein 2018):
 *
 *   s = q K^T                       K runs are weight panels whose outputs are tokens
 *   m' = max(m, s); c = exp(m - m'); p = exp(s - m')
 *   l = l c + p (lane-wise);  o = o c + p V
 *
 * What makes a query's bits independent of its tile mates:
 *  1. Steps begin at absolute positions, and a step that a query can't see leaves its state alone.
 *  2. Scores past a query's end become -inf by selection, so their p is exactly 0.
 *  3. p V runs over exactly the tokens that a query sees, in order, one fma each: the pairs of
 *     tokens that the whole tile sees in a register tile, the few after them query by query.
 *  4. Segments of 512 absolute positions start afresh and are merged in order, whether one
 *     thread computed them or several.
 *
 * Slots at or past the end are read as parts of vectors, but never reach a result.
 */
#include "engine/cpu/isa.h"
#include "engine/cpu/tile.h"

enum {
    STEP_BLOCKS = BT_STEP_TOKENS / BT_KV_BLOCK_TOKENS,
};

_Static_assert(BT_STEP_TOKENS == 64, "a step is four vectors of scores");
_Static_assert((int)BT_TILE_ROWS <= (int)BT_V16_LANES, "the state of all queries fits a vector");

typedef struct scratch {
    float q[BT_HEAD_DIM_MAX * BT_TILE_ROWS]; /* [head_dim][rows], scaled */
    float s[BT_TILE_ROWS][BT_STEP_TOKENS];   /* scores, then p */
    float o[BT_TILE_ROWS][BT_HEAD_DIM_MAX];
    float lanes[BT_TILE_ROWS][BT_V16_LANES];    /* l */
    float total[BT_TILE_ROWS][BT_HEAD_DIM_MAX]; /* merged segments */
    bt_segment_state total_state[BT_TILE_ROWS];
    float max[BT_V16_LANES];
    float max_next[BT_V16_LANES];
    float rescale[BT_V16_LANES];   /* c */
    uint32_t end[BT_V16_LANES];    /* position after the last that a query sees; 0: no query */
    uint32_t n_seen[BT_V16_LANES]; /* of the step */
    const void *k_runs[STEP_BLOCKS];
    const void *v_runs[STEP_BLOCKS];
} scratch;

_Static_assert(sizeof(scratch) % 4 == 0, "scratch is cut from floats");

size_t BT_K(attention_scratch_bytes)(void)
{
    return bt_align_up(sizeof(scratch), 64);
}

/* ---- register tiles -------------------------------------------------------------------- */

/* s[r][16 p ..] = q . K for `panels` blocks. */
BT_INLINE void scores_run(const uint32_t rows, const uint32_t panels, const bt_kv_format format,
                          scratch *sc, uint32_t block, uint32_t head_dim)
{
    bt_v16 acc[12][4];
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            acc[r][p] = bt_v16_zero();
        }
    }
    const float *q = sc->q;
    const void *runs[4];
#pragma GCC unroll 4
    for (uint32_t p = 0; p < panels; p++) {
        runs[p] = sc->k_runs[block + p];
    }
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        bt_v16 even[4];
        bt_v16 odd[4];
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            tile_load_pairs(format, runs[p], (size_t)i * 32, &even[p], &odd[p]);
        }
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            const bt_v16 b = bt_v16_set1(q[r]);
#pragma GCC unroll 4
            for (uint32_t p = 0; p < panels; p++) {
                acc[r][p] = bt_v16_fma(b, even[p], acc[r][p]);
            }
        }
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            const bt_v16 b = bt_v16_set1(q[rows + r]);
#pragma GCC unroll 4
            for (uint32_t p = 0; p < panels; p++) {
                acc[r][p] = bt_v16_fma(b, odd[p], acc[r][p]);
            }
        }
        q += 2 * rows;
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            bt_v16_store(&sc->s[r][(block + p) * 16], acc[r][p]);
        }
    }
}

/* o = o c + p V for channels channel .. + 16 panels - 1 over n_tokens (even) of the step. With
 * n_lanes < 16 there is one panel, and only that many channels of it exist. */
BT_INLINE void values_run(const uint32_t rows, const uint32_t panels, const bt_kv_format format,
                          const bool tail, scratch *sc, uint32_t channel, uint32_t head_dim,
                          uint32_t n_tokens)
{
    bt_v16 acc[12][4];
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
        const bt_v16 c = bt_v16_set1(sc->rescale[r]);
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            acc[r][p] = bt_v16_mul(bt_v16_load(&sc->o[r][channel + p * 16]), c);
        }
    }
    for (uint32_t t = 0; t < n_tokens; t += 2) {
        const void *run = sc->v_runs[t / BT_KV_BLOCK_TOKENS];
        const size_t at = bt_kv_v_element(head_dim, t % BT_KV_BLOCK_TOKENS, channel);
        bt_v16 even[4];
        bt_v16 odd[4];
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            if (tail) {
                tile_load_pairs_n(format, run, at, head_dim - channel, &even[p], &odd[p]);
            } else {
                tile_load_pairs(format, run, at + (size_t)p * 32, &even[p], &odd[p]);
            }
        }
        const float *prob = &sc->s[0][t];
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            const bt_v16 b = bt_v16_set1(prob[r * BT_STEP_TOKENS]);
#pragma GCC unroll 4
            for (uint32_t p = 0; p < panels; p++) {
                acc[r][p] = bt_v16_fma(b, even[p], acc[r][p]);
            }
        }
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            const bt_v16 b = bt_v16_set1(prob[r * BT_STEP_TOKENS + 1]);
#pragma GCC unroll 4
            for (uint32_t p = 0; p < panels; p++) {
                acc[r][p] = bt_v16_fma(b, odd[p], acc[r][p]);
            }
        }
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t p = 0; p < panels; p++) {
            bt_v16_store(&sc->o[r][channel + p * 16], acc[r][p]);
        }
    }
}

/* The tokens after the tile's common ones, for one query: first .. end - 1, first even. */
BT_INLINE void values_rest(const bt_kv_format format, scratch *sc, uint32_t r, uint32_t head_dim,
                           uint32_t first, uint32_t end)
{
    for (uint32_t channel = 0; channel < head_dim; channel += 16) {
        bt_v16 acc = bt_v16_load(&sc->o[r][channel]);
        for (uint32_t t = first; t < end; t += 2) {
            const void *run = sc->v_runs[t / BT_KV_BLOCK_TOKENS];
            const size_t at = bt_kv_v_element(head_dim, t % BT_KV_BLOCK_TOKENS, channel);
            bt_v16 even;
            bt_v16 odd;
            tile_load_pairs_n(format, run, at, head_dim - channel, &even, &odd);
            acc = bt_v16_fma(bt_v16_set1(sc->s[r][t]), even, acc);
            if (t + 1 < end) {
                acc = bt_v16_fma(bt_v16_set1(sc->s[r][t + 1]), odd, acc);
            }
        }
        bt_v16_store(&sc->o[r][channel], acc);
    }
}

/* All blocks of the step with the tile's shape, the last ones one by one. */
BT_INLINE void scores_all(const uint32_t rows, const uint32_t panels, const bt_kv_format format,
                          scratch *sc, uint32_t head_dim, uint32_t n_blocks)
{
    uint32_t b = 0;
    for (; b + panels <= n_blocks; b += panels) {
        scores_run(rows, panels, format, sc, b, head_dim);
    }
    for (; panels > 1 && b < n_blocks; b++) {
        scores_run(rows, 1, format, sc, b, head_dim);
    }
}

BT_INLINE void values_all(const uint32_t rows, const uint32_t panels, const bt_kv_format format,
                          scratch *sc, uint32_t head_dim, uint32_t n_tokens)
{
    uint32_t c = 0;
    for (; c + 16 * panels <= head_dim; c += 16 * panels) {
        values_run(rows, panels, format, false, sc, c, head_dim, n_tokens);
    }
    for (; panels > 1 && c + 16 <= head_dim; c += 16) {
        values_run(rows, 1, format, false, sc, c, head_dim, n_tokens);
    }
    if (c < head_dim) {
        values_run(rows, 1, format, true, sc, c, head_dim, n_tokens);
    }
}

#define PANELS_OF(panels) ((panels) > 4 ? 4 : (panels))

#define TILE_FNS(rows, panels)                                                                     \
    static void scores_bf16_##rows(scratch *sc, uint32_t head_dim, uint32_t n_blocks)              \
    {                                                                                              \
        scores_all(rows, PANELS_OF(panels), BT_KV_FORMAT_BF16, sc, head_dim, n_blocks);            \
    }                                                                                              \
    static void scores_f32_##rows(scratch *sc, uint32_t head_dim, uint32_t n_blocks)               \
    {                                                                                              \
        scores_all(rows, PANELS_OF(panels), BT_KV_FORMAT_F32, sc, head_dim, n_blocks);             \
    }                                                                                              \
    static void values_bf16_##rows(scratch *sc, uint32_t head_dim, uint32_t n_tokens)              \
    {                                                                                              \
        values_all(rows, PANELS_OF(panels), BT_KV_FORMAT_BF16, sc, head_dim, n_tokens);            \
    }                                                                                              \
    static void values_f32_##rows(scratch *sc, uint32_t head_dim, uint32_t n_tokens)               \
    {                                                                                              \
        values_all(rows, PANELS_OF(panels), BT_KV_FORMAT_F32, sc, head_dim, n_tokens);             \
    }
BT_TILE_SHAPES(TILE_FNS)
#undef TILE_FNS

static void rest_bf16(scratch *sc, uint32_t r, uint32_t head_dim, uint32_t first, uint32_t end)
{
    values_rest(BT_KV_FORMAT_BF16, sc, r, head_dim, first, end);
}

static void rest_f32(scratch *sc, uint32_t r, uint32_t head_dim, uint32_t first, uint32_t end)
{
    values_rest(BT_KV_FORMAT_F32, sc, r, head_dim, first, end);
}

typedef struct tile_fns {
    uint32_t rows;
    void (*scores)(scratch *sc, uint32_t head_dim, uint32_t n_blocks);
    void (*values)(scratch *sc, uint32_t head_dim, uint32_t n_tokens);
    void (*rest)(scratch *sc, uint32_t r, uint32_t head_dim, uint32_t first, uint32_t end);
} tile_fns;

static const tile_fns tiles_bf16[] = {
#define TILE_ENTRY(rows, panels) {rows, scores_bf16_##rows, values_bf16_##rows, rest_bf16},
    BT_TILE_SHAPES(TILE_ENTRY)
#undef TILE_ENTRY
};

static const tile_fns tiles_f32[] = {
#define TILE_ENTRY(rows, panels) {rows, scores_f32_##rows, values_f32_##rows, rest_f32},
    BT_TILE_SHAPES(TILE_ENTRY)
#undef TILE_ENTRY
};

/* ---- a step ---------------------------------------------------------------------------- */

/* Four vectors of a query's scores, -inf past the n_seen that it sees. */
BT_INLINE void load_scores(const float *s, uint32_t n_seen, bt_v16 v[4])
{
    const bt_v16 minus_inf = bt_v16_set1(-INFINITY);
    for (uint32_t j = 0; j < 4; j++) {
        const uint32_t n = n_seen > 16 * j ? n_seen - 16 * j : 0;
        v[j] = bt_v16_first(bt_v16_load(s + (size_t)16 * j), minus_inf, n);
    }
}

/* New maxima, c, p and l for all queries. */
static void softmax_step(scratch *sc, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++) {
        sc->max_next[r] = sc->max[r];
        if (sc->n_seen[r] > 0) {
            bt_v16 v[4];
            load_scores(sc->s[r], sc->n_seen[r], v);
            const float m = bt_v16_hmax(bt_v16_max(bt_v16_max(v[0], v[1]), bt_v16_max(v[2], v[3])));
            sc->max_next[r] = m > sc->max[r] ? m : sc->max[r];
        }
    }
    const bt_v16 change = bt_v16_sub(bt_v16_load(sc->max), bt_v16_load(sc->max_next));
    bt_v16_store(sc->rescale, bt_v16_exp(change));
    for (uint32_t r = 0; r < rows; r++) {
        if (sc->n_seen[r] == 0) {
            sc->rescale[r] = 1.0F;
            continue;
        }
        const bt_v16 m = bt_v16_set1(sc->max_next[r]);
        bt_v16 v[4];
        load_scores(sc->s[r], sc->n_seen[r], v);
        for (uint32_t j = 0; j < 4; j++) {
            v[j] = bt_v16_exp(bt_v16_sub(v[j], m));
            bt_v16_store(&sc->s[r][16 * j], v[j]);
        }
        const bt_v16 sum = bt_v16_add(bt_v16_add(v[0], v[1]), bt_v16_add(v[2], v[3]));
        const bt_v16 c = bt_v16_set1(sc->rescale[r]);
        bt_v16_store(sc->lanes[r], bt_v16_fma(bt_v16_load(sc->lanes[r]), c, sum));
        sc->max[r] = sc->max_next[r];
    }
}

static void run_step(const bt_attention_part *part, const tile_fns *fns, scratch *sc, uint32_t step)
{
    const bt_kv_layout *l = part->args->layout;
    uint32_t n_max = 0;
    for (uint32_t r = 0; r < part->n_queries; r++) {
        const uint32_t n = sc->end[r] > step ? sc->end[r] - step : 0;
        sc->n_seen[r] = n < BT_STEP_TOKENS ? n : BT_STEP_TOKENS;
        n_max = sc->n_seen[r] > n_max ? sc->n_seen[r] : n_max;
    }
    const uint32_t n_blocks = (uint32_t)bt_div_ceil(n_max, BT_KV_BLOCK_TOKENS);
    for (uint32_t b = 0; b < n_blocks; b++) {
        const bt_block_id id = part->span->blocks[step / BT_KV_BLOCK_TOKENS + b];
        const uint64_t at = bt_kv_k_offset(l, id, part->args->layer, part->kv_head);
        sc->k_runs[b] = part->args->pool + at;
        sc->v_runs[b] = part->args->pool + at + l->run_bytes;
    }
    fns->scores(sc, l->head_dim, n_blocks);
    softmax_step(sc, fns->rows);
    const uint32_t common = sc->n_seen[0] & ~1U; /* the first query sees least */
    fns->values(sc, l->head_dim, common);
    for (uint32_t r = 0; r < part->n_queries; r++) {
        if (sc->n_seen[r] > common) {
            fns->rest(sc, r, l->head_dim, common, sc->n_seen[r]);
        }
    }
}

/* ---- segments -------------------------------------------------------------------------- */

/* Leaves m in max, the sum of l in `sum`, and o of each query for one segment. */
static void run_segment(const bt_attention_part *part, const tile_fns *fns, scratch *sc,
                        uint32_t segment, float *sum)
{
    const uint32_t first = segment * BT_SEGMENT_TOKENS;
    const uint32_t last = sc->end[part->n_queries - 1];
    const uint32_t end = last - first < BT_SEGMENT_TOKENS ? last : first + BT_SEGMENT_TOKENS;
    memset(sc->o, 0, sizeof(sc->o));
    memset(sc->lanes, 0, sizeof(sc->lanes));
    bt_v16_store(sc->max, bt_v16_set1(-INFINITY));
    for (uint32_t step = first; step < end; step += BT_STEP_TOKENS) {
        run_step(part, fns, sc, step);
    }
    for (uint32_t r = 0; r < part->n_queries; r++) {
        sum[r] = bt_v16_sum(bt_v16_load(sc->lanes[r]));
    }
}

/* Merges the next segment's (state, acc) into (total_state, total). */
static void merge(bt_segment_state *total_state, float *total, bt_segment_state state,
                  const float *acc, uint32_t head_dim)
{
    const float m = state.max > total_state->max ? state.max : total_state->max;
    const bt_v16 a = bt_v16_exp(bt_v16_set1(total_state->max - m));
    const bt_v16 b = bt_v16_exp(bt_v16_set1(state.max - m));
    for (uint32_t c = 0; c < head_dim; c += 16) {
        const uint32_t n = head_dim - c;
        const bt_v16 t = bt_v16_mul(bt_v16_load_n(total + c, n), a);
        bt_v16_store_n(total + c, bt_v16_fma(bt_v16_load_n(acc + c, n), b, t), n);
    }
    float sums[BT_V16_LANES];
    const bt_v16 s = bt_v16_mul(bt_v16_set1(total_state->sum), a);
    bt_v16_store(sums, bt_v16_fma(bt_v16_set1(state.sum), b, s));
    *total_state = (bt_segment_state){.max = m, .sum = sums[0]};
}

static void finish(bt_segment_state state, const float *acc, uint32_t head_dim, float *out)
{
    const bt_v16 inv = bt_v16_set1(1.0F / state.sum);
    for (uint32_t c = 0; c < head_dim; c += 16) {
        const uint32_t n = head_dim - c;
        bt_v16_store_n(out + c, bt_v16_mul(bt_v16_load_n(acc + c, n), inv), n);
    }
}

void BT_K(attention_combine)(const bt_segment_state *states, size_t stride_states,
                             const float *accs, size_t stride_accs, uint32_t n_segments,
                             uint32_t head_dim, float *out)
{
    float total[BT_HEAD_DIM_MAX];
    memcpy(total, accs, head_dim * sizeof(float));
    bt_segment_state state = states[0];
    for (uint32_t s = 1; s < n_segments; s++) {
        merge(&state, total, states[s * stride_states], accs + s * stride_accs, head_dim);
    }
    finish(state, total, head_dim, out);
}

/* Queries to [head_dim][rows], scaled, and what each sees. */
static void load_queries(const bt_attention_part *part, uint32_t rows, scratch *sc)
{
    const bt_attention_args *args = part->args;
    const uint32_t head_dim = args->layout->head_dim;
    const uint32_t group = args->n_heads / args->layout->n_kv_heads;
    const size_t n_vectors = (size_t)args->n_heads + 2 * (size_t)args->layout->n_kv_heads;
    for (uint32_t r = 0; r < rows; r++) {
        sc->end[r] = 0;
        sc->n_seen[r] = 0;
        if (r >= part->n_queries) {
            for (uint32_t c = 0; c < head_dim; c++) {
                sc->q[c * rows + r] = 0.0F;
            }
            memset(sc->s[r], 0, sizeof(sc->s[r]));
            continue;
        }
        const uint32_t row = (part->query_first + r) / group;
        const uint32_t head = part->kv_head * group + (part->query_first + r) % group;
        const float *q =
            part->qkv + ((part->span->row_first + (size_t)row) * n_vectors + head) * head_dim;
        for (uint32_t c = 0; c < head_dim; c++) {
            sc->q[c * rows + r] = q[c] * args->scale;
        }
        sc->end[r] = part->span->pos_first + row + 1;
    }
}

static float *out_of(const bt_attention_part *part, uint32_t r)
{
    const bt_attention_args *args = part->args;
    const uint32_t group = args->n_heads / args->layout->n_kv_heads;
    const uint32_t row = (part->query_first + r) / group;
    const uint32_t head = part->kv_head * group + (part->query_first + r) % group;
    return part->out +
           ((part->span->row_first + (size_t)row) * args->n_heads + head) * args->layout->head_dim;
}

void BT_K(attention)(const bt_attention_part *part)
{
    scratch *sc = part->scratch;
    const bt_kv_layout *l = part->args->layout;
    const tile_fns *fns = l->format == BT_KV_FORMAT_F32 ? tiles_f32 : tiles_bf16;
    while (fns->rows < part->n_queries) {
        fns++;
    }
    load_queries(part, fns->rows, sc);
    float sum[BT_V16_LANES];
    if (part->states != NULL) {
        run_segment(part, fns, sc, part->segment, sum);
        for (uint32_t r = 0; r < part->n_queries; r++) {
            part->states[r] = (bt_segment_state){.max = sc->max[r], .sum = sum[r]};
            memcpy(part->accs + (size_t)r * l->head_dim, sc->o[r], l->head_dim * sizeof(float));
        }
        return;
    }
    const uint32_t last = sc->end[part->n_queries - 1];
    const uint32_t n_segments = (uint32_t)bt_div_ceil(last, BT_SEGMENT_TOKENS);
    for (uint32_t s = 0; s < n_segments; s++) {
        run_segment(part, fns, sc, s, sum);
        for (uint32_t r = 0; r < part->n_queries; r++) {
            const bt_segment_state state = {.max = sc->max[r], .sum = sum[r]};
            if (s == 0) {
                sc->total_state[r] = state;
                memcpy(sc->total[r], sc->o[r], l->head_dim * sizeof(float));
            } else if (sc->end[r] > s * BT_SEGMENT_TOKENS) {
                merge(&sc->total_state[r], sc->total[r], state, sc->o[r], l->head_dim);
            }
        }
    }
    for (uint32_t r = 0; r < part->n_queries; r++) {
        finish(sc->total_state[r], sc->total[r], l->head_dim, out_of(part, r));
    }
}
