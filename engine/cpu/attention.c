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
 *  3. p V takes the tokens that a query sees, in order, and no other (attention_fma.h,
 *     attention_amx.h).
 *  4. Segments of 512 absolute positions start afresh and are merged in order, whether one
 *     thread computed them or several.
 *
 * Slots at or past the end are read as parts of vectors, but never reach a result.
 */
#include "engine/cpu/attention_fma.h"
#include "engine/cpu/attention_int.h"
#ifdef BT_VEC_AMX
#include "engine/cpu/attention_amx.h"
#endif

size_t BT_K(attention_scratch_bytes)(void)
{
    return bt_align_up(sizeof(scratch), 64);
}

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

#ifndef BT_VEC_AMX
BT_INLINE void store_p_bf16(scratch *sc, uint32_t r, const bt_v16 v[4])
{
    (void)sc;
    (void)r;
    (void)v;
}

BT_INLINE void store_no_p(scratch *sc, uint32_t r)
{
    (void)sc;
    (void)r;
}
#endif

/* New maxima, c, p and l for all queries. */
BT_INLINE void softmax_step(scratch *sc, uint32_t rows, const bool rounds_p)
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
            if (rounds_p) {
                store_no_p(sc, r);
            }
            continue;
        }
        const bt_v16 m = bt_v16_set1(sc->max_next[r]);
        bt_v16 v[4];
        load_scores(sc->s[r], sc->n_seen[r], v);
        for (uint32_t j = 0; j < 4; j++) {
            v[j] = bt_v16_exp(bt_v16_sub(v[j], m));
        }
        if (rounds_p) {
            store_p_bf16(sc, r, v);
        } else {
            for (uint32_t j = 0; j < 4; j++) {
                bt_v16_store(&sc->s[r][16 * j], v[j]);
            }
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
    if (fns->rounds_p) {
        softmax_step(sc, part->n_queries, true);
    } else {
        softmax_step(sc, fns->rows, false);
    }
    fns->values(sc, l->head_dim, part->n_queries);
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
    const bt_v16 zero = bt_v16_zero();
    for (uint32_t c = 0; c < head_dim; c += 16) {
        const uint32_t n = head_dim - c;
        const bt_v16 v = bt_v16_mul(bt_v16_load_n(acc + c, n), inv);
        bt_v16_store_n(out + c, bt_v16_add(v, zero), n); /* -0 becomes 0 (attention_amx.h) */
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

/* The tile's queries, and what each sees. */
static void load_queries(const bt_attention_part *part, const tile_fns *fns, scratch *sc)
{
    const bt_attention_args *args = part->args;
    const uint32_t head_dim = args->layout->head_dim;
    const uint32_t group = args->n_heads / args->layout->n_kv_heads;
    const size_t n_vectors = (size_t)args->n_heads + 2 * (size_t)args->layout->n_kv_heads;
    for (uint32_t r = 0; r < fns->rows; r++) {
        sc->end[r] = 0;
        sc->n_seen[r] = 0;
        if (r >= part->n_queries) {
            fns->load_q(sc, r, NULL, 0.0F, head_dim);
            memset(sc->s[r], 0, sizeof(sc->s[r]));
            continue;
        }
        const uint32_t row = (part->query_first + r) / group;
        const uint32_t head = part->kv_head * group + (part->query_first + r) % group;
        const float *q =
            part->qkv + ((part->span->row_first + (size_t)row) * n_vectors + head) * head_dim;
        fns->load_q(sc, r, q, args->scale, head_dim);
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

/* All segments in order, each merged into what came before. */
static void run_segments(const bt_attention_part *part, const tile_fns *fns, scratch *sc)
{
    const uint32_t head_dim = part->args->layout->head_dim;
    const uint32_t last = sc->end[part->n_queries - 1];
    const uint32_t n_segments = (uint32_t)bt_div_ceil(last, BT_SEGMENT_TOKENS);
    float sum[BT_V16_LANES];
    for (uint32_t s = 0; s < n_segments; s++) {
        run_segment(part, fns, sc, s, sum);
        for (uint32_t r = 0; r < part->n_queries; r++) {
            const bt_segment_state state = {.max = sc->max[r], .sum = sum[r]};
            if (s == 0) {
                sc->total_state[r] = state;
                memcpy(sc->total[r], sc->o[r], head_dim * sizeof(float));
            } else if (sc->end[r] > s * BT_SEGMENT_TOKENS) {
                merge(&sc->total_state[r], sc->total[r], state, sc->o[r], head_dim);
            }
        }
    }
    for (uint32_t r = 0; r < part->n_queries; r++) {
        finish(sc->total_state[r], sc->total[r], head_dim, out_of(part, r));
    }
}

/* One segment, left for attention_combine. */
static void run_one_segment(const bt_attention_part *part, const tile_fns *fns, scratch *sc)
{
    const uint32_t head_dim = part->args->layout->head_dim;
    float sum[BT_V16_LANES];
    run_segment(part, fns, sc, part->segment, sum);
    for (uint32_t r = 0; r < part->n_queries; r++) {
        part->states[r] = (bt_segment_state){.max = sc->max[r], .sum = sum[r]};
        memcpy(part->accs + (size_t)r * head_dim, sc->o[r], head_dim * sizeof(float));
    }
}

static void run_part(const bt_attention_part *part, const tile_fns *fns)
{
    scratch *sc = part->scratch;
    while (fns->rows < part->n_queries) {
        fns++;
    }
    if (fns->begin != NULL) {
        fns->begin(sc, part->args->layout->head_dim, part->n_queries);
    }
    load_queries(part, fns, sc);
    if (part->states != NULL) {
        run_one_segment(part, fns, sc);
    } else {
        run_segments(part, fns, sc);
    }
    if (fns->end != NULL) {
        fns->end();
    }
}

void BT_K(attention)(const bt_attention_part *part)
{
#ifdef BT_VEC_AMX
    if (part->args->layout->format == BT_KV_FORMAT_BF16) {
        run_part(part, &tile_amx);
        return;
    }
#endif
    const tile_fns *fns = part->args->layout->format == BT_KV_FORMAT_F32 ? tiles_f32 : tiles_bf16;
    for (uint32_t q = 0; q < part->n_queries; q += BT_TILE_ROWS) { /* once, but for AMX parts */
        const size_t head_dim = part->args->layout->head_dim;
        const uint32_t left = part->n_queries - q;
        bt_attention_part some = *part;
        some.query_first += q;
        some.n_queries = left < BT_TILE_ROWS ? left : BT_TILE_ROWS;
        if (part->states != NULL) {
            some.states += q;
            some.accs += q * head_dim;
        }
        run_part(&some, fns);
    }
}
