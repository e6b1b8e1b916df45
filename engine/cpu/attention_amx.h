/* SPDX-License-Identifier: Apache-2.0 */
/* attention_amx.h - scores and p V in AMX tiles over bf16 blocks; part of attention.c.
 *
 * K and V runs are AMX's right operands as they lie in the pool: a K run is head_dim / 2 rows of
 * (16 tokens x 2 channels), a V run 8 rows of (head_dim channels x 2 tokens). q and p are rounded
 * to bf16. Sixteen query vectors fill the rows of a tile.
 *
 * p V adds one block (16 tokens) at a time, a query's unseen tokens with p = 0 and, beyond the
 * tile's last token, v = 0. For a query that sees less than its tile mates the products with tokens
 * that it does not see are 0 * v. For finite v they change no sum but the sign of a zero (which
 * finish() drops), so its bits are those it has alone, where these v are zeros. Blocks that
 * not all queries see in full are searched for infinities and NaN; if there is one, the queries of
 * that step go one by one, each with what it does not see set to zero.
 *
 * Head sizes that are no multiple of 16 are copied block by block into padded runs first.
 *
 * Threading: any thread, each with its own scratch. Memory: none.
 */
#ifndef BT_ENGINE_CPU_ATTENTION_AMX_H
#define BT_ENGINE_CPU_ATTENTION_AMX_H

#include "engine/cpu/amx.h"
#include "engine/cpu/attention_int.h"

/* Tiles: 0-3 results (16 f32 columns), 4 queries (32 channels), 5 queries (16 channels) or p (16
 * tokens), 6 K (32 channels), 7 K (16 channels) or V (16 tokens). */
static void begin_amx(scratch *sc, uint32_t head_dim, uint32_t n_queries)
{
    (void)sc;
    (void)head_dim;
    const uint8_t n = (uint8_t)n_queries;
    const bt_tile_config config = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 32, 64, 64},
        .rows = {n, n, n, n, n, n, 16, 8},
    };
    bt_tile_configure(&config);
}

static void end_amx(void)
{
    bt_tile_release();
}

static uint32_t padded_dim(uint32_t head_dim)
{
    return (uint32_t)bt_align_up(head_dim, 16);
}

static void load_q_amx(scratch *sc, uint32_t r, const float *q, float scale, uint32_t head_dim)
{
    if (q == NULL) {
        return; /* tiles have just n_queries rows */
    }
    const __m512 s = _mm512_set1_ps(scale);
    for (uint32_t c = 0; c < head_dim; c += 32) {
        const uint32_t n = head_dim - c;
        const __m512 a = bt_v16_load_n(q + c, n);
        const __m512 b = bt_v16_load_n(q + c + 16, n > 16 ? n - 16 : 0);
        bt_bf16_round32(&sc->q_bf16[r][c], _mm512_mul_ps(a, s), _mm512_mul_ps(b, s));
    }
}

BT_INLINE void store_p_bf16(scratch *sc, uint32_t r, const bt_v16 v[4])
{
    bt_bf16_round32(&sc->p_bf16[r][0], v[0], v[1]);
    bt_bf16_round32(&sc->p_bf16[r][32], v[2], v[3]);
}

BT_INLINE void store_no_p(scratch *sc, uint32_t r)
{
    memset(sc->p_bf16[r], 0, sizeof(sc->p_bf16[r]));
}

/* Runs of a head size that is no multiple of 16, padded with zero channels. */
static void pad_runs(scratch *sc, uint32_t head_dim, uint32_t n_blocks)
{
    const uint32_t padded = padded_dim(head_dim);
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint16_t *k = sc->k_padded[b];
        uint16_t *v = sc->v_padded[b];
        memset(k, 0, sizeof(sc->k_padded[b]));
        memset(v, 0, sizeof(sc->v_padded[b]));
        memcpy(k, sc->k_runs[b], (size_t)head_dim * BT_KV_BLOCK_TOKENS * sizeof(uint16_t));
        for (uint32_t i = 0; i < BT_KV_BLOCK_TOKENS / 2; i++) {
            memcpy(v + (size_t)i * padded * 2,
                   (const uint16_t *)sc->v_runs[b] + (size_t)i * head_dim * 2,
                   (size_t)head_dim * 2 * sizeof(uint16_t));
        }
        sc->k_runs[b] = k;
        sc->v_runs[b] = v;
    }
}

static void scores_amx(scratch *sc, uint32_t head_dim, uint32_t n_blocks)
{
    if (head_dim % 16 != 0) {
        pad_runs(sc, head_dim, n_blocks);
    }
    const size_t q_stride = sizeof(sc->q_bf16[0]);
    const size_t s_stride = sizeof(sc->s[0]);
    const uint16_t *k[STEP_BLOCKS];
    for (uint32_t b = 0; b < STEP_BLOCKS; b++) {
        k[b] = sc->k_runs[b < n_blocks ? b : 0];
    }
    BT_TILE_ZERO(0);
    BT_TILE_ZERO(1);
    BT_TILE_ZERO(2);
    BT_TILE_ZERO(3);
    uint32_t c = 0;
    for (; c + 32 <= padded_dim(head_dim); c += 32) {
        const size_t at = (size_t)c * BT_KV_BLOCK_TOKENS;
        BT_TILE_LOAD(4, &sc->q_bf16[0][c], q_stride);
        BT_TILE_LOAD(6, k[0] + at, 64);
        BT_TILE_DP(0, 4, 6);
        if (n_blocks > 1) {
            BT_TILE_LOAD(6, k[1] + at, 64);
            BT_TILE_DP(1, 4, 6);
        }
        if (n_blocks > 2) {
            BT_TILE_LOAD(6, k[2] + at, 64);
            BT_TILE_DP(2, 4, 6);
        }
        if (n_blocks > 3) {
            BT_TILE_LOAD(6, k[3] + at, 64);
            BT_TILE_DP(3, 4, 6);
        }
    }
    if (c < padded_dim(head_dim)) {
        const size_t at = (size_t)c * BT_KV_BLOCK_TOKENS;
        BT_TILE_LOAD(5, &sc->q_bf16[0][c], q_stride);
        BT_TILE_LOAD(7, k[0] + at, 64);
        BT_TILE_DP(0, 5, 7);
        if (n_blocks > 1) {
            BT_TILE_LOAD(7, k[1] + at, 64);
            BT_TILE_DP(1, 5, 7);
        }
        if (n_blocks > 2) {
            BT_TILE_LOAD(7, k[2] + at, 64);
            BT_TILE_DP(2, 5, 7);
        }
        if (n_blocks > 3) {
            BT_TILE_LOAD(7, k[3] + at, 64);
            BT_TILE_DP(3, 5, 7);
        }
    }
    BT_TILE_STORE(0, &sc->s[0][0], s_stride);
    BT_TILE_STORE(1, &sc->s[0][16], s_stride);
    BT_TILE_STORE(2, &sc->s[0][32], s_stride);
    BT_TILE_STORE(3, &sc->s[0][48], s_stride);
}

/* o += p V over n_blocks for channels channel .. + 16 n_tiles - 1 (n_tiles <= 4). */
BT_INLINE void values_tiles(float *o, const uint16_t *p, size_t p_stride, const uint16_t *const *v,
                            uint32_t n_blocks, uint32_t channel, uint32_t n_tiles, uint32_t padded)
{
    const size_t o_stride = BT_HEAD_DIM_MAX * sizeof(float);
    const size_t v_stride = (size_t)padded * 2 * sizeof(uint16_t);
    o += channel;
    BT_TILE_LOAD(0, o, o_stride);
    if (n_tiles > 1) {
        BT_TILE_LOAD(1, o + 16, o_stride);
    }
    if (n_tiles > 2) {
        BT_TILE_LOAD(2, o + 32, o_stride);
    }
    if (n_tiles > 3) {
        BT_TILE_LOAD(3, o + 48, o_stride);
    }
    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint16_t *run = v[b] + (size_t)channel * 2;
        BT_TILE_LOAD(5, p + (size_t)b * BT_KV_BLOCK_TOKENS, p_stride);
        BT_TILE_LOAD(7, run, v_stride);
        BT_TILE_DP(0, 5, 7);
        if (n_tiles > 1) {
            BT_TILE_LOAD(7, run + 32, v_stride);
            BT_TILE_DP(1, 5, 7);
        }
        if (n_tiles > 2) {
            BT_TILE_LOAD(7, run + 64, v_stride);
            BT_TILE_DP(2, 5, 7);
        }
        if (n_tiles > 3) {
            BT_TILE_LOAD(7, run + 96, v_stride);
            BT_TILE_DP(3, 5, 7);
        }
    }
    BT_TILE_STORE(0, o, o_stride);
    if (n_tiles > 1) {
        BT_TILE_STORE(1, o + 16, o_stride);
    }
    if (n_tiles > 2) {
        BT_TILE_STORE(2, o + 32, o_stride);
    }
    if (n_tiles > 3) {
        BT_TILE_STORE(3, o + 48, o_stride);
    }
}

static void values_blocks(float *o, const uint16_t *p, size_t p_stride, const uint16_t *const *v,
                          uint32_t n_blocks, uint32_t padded)
{
    uint32_t c = 0;
    for (; c + 64 <= padded; c += 64) {
        values_tiles(o, p, p_stride, v, n_blocks, c, 4, padded);
    }
    if (c < padded) {
        values_tiles(o, p, p_stride, v, n_blocks, c, (padded - c) / 16, padded);
    }
}

/* A V run with tokens from n_tokens on set to zero. */
static void mask_run(uint16_t *to, const uint16_t *run, uint32_t padded, uint32_t n_tokens)
{
    for (uint32_t i = 0; i < BT_KV_BLOCK_TOKENS / 2; i++) {
        const uint32_t n = n_tokens > 2 * i ? n_tokens - 2 * i : 0; /* tokens left in this row */
        const __m512i mask = _mm512_set1_epi32(n >= 2 ? -1 : n == 1 ? 0xffff : 0);
        for (uint32_t c = 0; c < padded; c += 16) {
            const size_t at = ((size_t)i * padded + c) * 2;
            _mm512_storeu_si512(to + at, _mm512_and_si512(_mm512_loadu_si512(run + at), mask));
        }
    }
}

static bool is_finite(const uint16_t *run, uint32_t padded)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 bad = 0;
    for (uint32_t i = 0; i < padded * BT_KV_BLOCK_TOKENS; i += 32) {
        const __m512i v = _mm512_and_si512(_mm512_loadu_si512(run + i), exponent);
        bad |= _mm512_cmpeq_epi16_mask(v, exponent);
    }
    return bad == 0;
}

/* Blocks first .. n_blocks - 1 for each query alone, with the tokens it does not see as zeros. */
static void values_one_by_one(scratch *sc, uint32_t padded, uint32_t n_queries, uint32_t first,
                              uint32_t n_blocks)
{
    const uint16_t *const v[1] = {sc->v_masked};
    for (uint32_t r = 0; r < n_queries; r++) {
        for (uint32_t b = first; b < n_blocks; b++) {
            const uint32_t before = b * BT_KV_BLOCK_TOKENS;
            if (sc->n_seen[r] <= before) {
                break;
            }
            mask_run(sc->v_masked, sc->v_runs[b], padded, sc->n_seen[r] - before);
            memset(sc->p_one, 0, sizeof(sc->p_one));
            memcpy(sc->p_one[r], &sc->p_bf16[r][before], sizeof(sc->p_one[r]));
            memset(sc->o_one, 0, sizeof(sc->o_one));
            memcpy(sc->o_one[r], sc->o[r], sizeof(sc->o_one[r]));
            values_blocks(sc->o_one[0], sc->p_one[0], sizeof(sc->p_one[0]), v, 1, padded);
            memcpy(sc->o[r], sc->o_one[r], sizeof(sc->o_one[r]));
        }
    }
}

static void values_amx(scratch *sc, uint32_t head_dim, uint32_t n_queries)
{
    const uint32_t padded = padded_dim(head_dim);
    for (uint32_t r = 0; r < n_queries; r++) {
        if (sc->rescale[r] != 1.0F) { /* times 1 changes nothing */
            const __m512 c = _mm512_set1_ps(sc->rescale[r]);
            for (uint32_t i = 0; i < padded; i += 16) {
                bt_v16_store(&sc->o[r][i], bt_v16_mul(bt_v16_load(&sc->o[r][i]), c));
            }
        }
    }
    const uint32_t n_most = sc->n_seen[n_queries - 1]; /* the last query sees most */
    const uint32_t n_blocks = (uint32_t)bt_div_ceil(n_most, BT_KV_BLOCK_TOKENS);
    const uint32_t n_full = sc->n_seen[0] / BT_KV_BLOCK_TOKENS; /* that all see in full */
    const uint16_t *v[STEP_BLOCKS];
    bool finite = true;
    for (uint32_t b = 0; b < n_blocks; b++) {
        v[b] = sc->v_runs[b];
        if (b >= n_full) {
            const uint32_t n = n_most - b * BT_KV_BLOCK_TOKENS;
            if (n < BT_KV_BLOCK_TOKENS) { /* the last block */
                mask_run(sc->v_masked, v[b], padded, n);
                v[b] = sc->v_masked;
            }
            finite = finite && (sc->n_seen[0] == n_most || is_finite(v[b], padded));
        }
    }
    const uint32_t n_together = finite ? n_blocks : n_full;
    values_blocks(sc->o[0], sc->p_bf16[0], sizeof(sc->p_bf16[0]), v, n_together, padded);
    if (n_together < n_blocks) {
        values_one_by_one(sc, padded, n_queries, n_together, n_blocks);
    }
}

static const tile_fns tile_amx = {
    16, true, begin_amx, load_q_amx, scores_amx, values_amx, end_amx,
};

#endif /* BT_ENGINE_CPU_ATTENTION_AMX_H */
