/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on bf16 panels in AMX tiles.
 *
 * Rows are rounded to bf16 and packed as tiles [rows / 16][k / 32][16][32] of 1 KiB. A weight
 * panel is a column of right-hand tiles as it lies: 16 pairs of inputs x 16 outputs, 1 KiB. Each
 * result tile takes k in steps of 32 in order, in one accumulator.
 *
 * Up to 16 rows: four panels at a time, with tiles of just so many rows; the weights' stream is
 * the limit. More: two row tiles x two panels, four products for four loads.
 */
#include "engine/cpu/amx.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/vec.h"

enum {
    TILE_ROWS = 16,
    TILE_ELEMENTS = 512,       /* bf16 in a tile of either operand */
    TILE_K = 32,               /* inputs that a tile takes */
    PACKED_BYTES = 768 * 1024, /* of a block of rows: L2 holds it beside the weights */
    PREFETCH_TILES = 2,
};

/* A block of packed rows times some panels. */
typedef struct block {
    const bt_matmul_part *part;
    const uint16_t *packed;
    size_t k_tiles;
    uint32_t row; /* first of the block */
    uint32_t n_rows;
} block;

static const uint16_t *left_tiles(const block *b, uint32_t row_tile)
{
    return b->packed + row_tile * b->k_tiles * TILE_ELEMENTS;
}

static const uint16_t *right_tiles(const block *b, uint32_t panel)
{
    return b->part->matrix->panels + panel * b->k_tiles * TILE_ELEMENTS;
}

/* Where a result tile goes when it can't go straight to y, and from there. */
typedef struct result {
    BT_ALIGNED(64) float tile[TILE_ROWS][16];
} result;

static float *out_at(const block *b, uint32_t row_tile, uint32_t panel)
{
    const size_t row = b->row + (size_t)row_tile * TILE_ROWS;
    return b->part->y + row * b->part->y_stride + (size_t)panel * 16;
}

static uint32_t rows_left(const block *b, uint32_t row_tile)
{
    const uint32_t left = b->n_rows - row_tile * TILE_ROWS;
    return left < TILE_ROWS ? left : TILE_ROWS;
}

static void put_result(const block *b, const result *from, uint32_t row_tile, uint32_t panel)
{
    float *y = out_at(b, row_tile, panel);
    const uint32_t n_cols = b->part->matrix->n - panel * 16;
    const uint32_t n_rows = rows_left(b, row_tile);
    for (uint32_t r = 0; r < n_rows; r++, y += b->part->y_stride) {
        bt_v16 v = bt_v16_load(from->tile[r]);
        if (b->part->add) {
            v = bt_v16_add(bt_v16_load_n(y, n_cols), v);
        }
        bt_v16_store_n(y, v, n_cols);
    }
}

/* True: a whole tile that is stored, not added. */
static bool goes_straight(const block *b, uint32_t row_tile, uint32_t panel)
{
    return !b->part->add && b->part->matrix->n - panel * 16 >= 16 &&
           rows_left(b, row_tile) == TILE_ROWS;
}

#define PUT(t, row_tile, panel)                                                                    \
    do {                                                                                           \
        if (goes_straight(b, row_tile, panel)) {                                                   \
            BT_TILE_STORE(t, out_at(b, row_tile, panel), b->part->y_stride * sizeof(float));       \
        } else {                                                                                   \
            result res;                                                                            \
            BT_TILE_STORE(t, res.tile, sizeof(res.tile[0]));                                       \
            put_result(b, &res, row_tile, panel);                                                  \
        }                                                                                          \
    } while (0)

BT_INLINE void prefetch_tile(const uint16_t *tile)
{
#pragma GCC unroll 16
    for (uint32_t i = 0; i < TILE_ELEMENTS; i += 32) {
        bt_prefetch(tile + i);
    }
}

/* from_memory: the weights are used for the first time, so ask for the tiles to come. */
BT_INLINE void run_2_by_2(const block *b, uint32_t row_tile, uint32_t panel, const bool from_memory)
{
    const uint16_t *a0 = left_tiles(b, row_tile);
    const uint16_t *a1 = left_tiles(b, row_tile + 1);
    const uint16_t *w0 = right_tiles(b, panel);
    const uint16_t *w1 = right_tiles(b, panel + 1);
    const size_t ahead = (size_t)PREFETCH_TILES * TILE_ELEMENTS;
    BT_TILE_ZERO(0);
    BT_TILE_ZERO(1);
    BT_TILE_ZERO(2);
    BT_TILE_ZERO(3);
    for (size_t i = 0; i < b->k_tiles * TILE_ELEMENTS; i += TILE_ELEMENTS) {
        BT_TILE_LOAD(4, a0 + i, 64);
        BT_TILE_LOAD(6, w0 + i, 64);
        if (from_memory) {
            prefetch_tile(w0 + i + ahead);
        }
        BT_TILE_DP(0, 4, 6);
        BT_TILE_LOAD(7, w1 + i, 64);
        if (from_memory) {
            prefetch_tile(w1 + i + ahead);
        }
        BT_TILE_DP(1, 4, 7);
        BT_TILE_LOAD(5, a1 + i, 64);
        BT_TILE_DP(2, 5, 6);
        BT_TILE_DP(3, 5, 7);
    }
    PUT(0, row_tile, panel);
    PUT(1, row_tile, panel + 1);
    PUT(2, row_tile + 1, panel);
    PUT(3, row_tile + 1, panel + 1);
}

static void run_1_by_1(const block *b, uint32_t row_tile, uint32_t panel)
{
    const uint16_t *a = left_tiles(b, row_tile);
    const uint16_t *w = right_tiles(b, panel);
    BT_TILE_ZERO(0);
    for (size_t i = 0; i < b->k_tiles * TILE_ELEMENTS; i += TILE_ELEMENTS) {
        BT_TILE_LOAD(4, a + i, 64);
        BT_TILE_LOAD(6, w + i, 64);
        BT_TILE_DP(0, 4, 6);
    }
    PUT(0, row_tile, panel);
}

/* The only row tile times four panels. */
static void run_1_by_4(const block *b, uint32_t panel)
{
    const uint16_t *a = left_tiles(b, 0);
    const uint16_t *w = right_tiles(b, panel);
    const size_t step = b->k_tiles * TILE_ELEMENTS; /* a panel */
    const size_t ahead = (size_t)PREFETCH_TILES * TILE_ELEMENTS;
    BT_TILE_ZERO(0);
    BT_TILE_ZERO(1);
    BT_TILE_ZERO(2);
    BT_TILE_ZERO(3);
    for (size_t i = 0; i < step; i += TILE_ELEMENTS) {
        BT_TILE_LOAD(4, a + i, 64);
        BT_TILE_LOAD(5, w + i, 64);
        prefetch_tile(w + i + ahead);
        BT_TILE_DP(0, 4, 5);
        BT_TILE_LOAD(6, w + step + i, 64);
        prefetch_tile(w + step + i + ahead);
        BT_TILE_DP(1, 4, 6);
        BT_TILE_LOAD(7, w + 2 * step + i, 64);
        prefetch_tile(w + 2 * step + i + ahead);
        BT_TILE_DP(2, 4, 7);
        BT_TILE_LOAD(5, w + 3 * step + i, 64);
        prefetch_tile(w + 3 * step + i + ahead);
        BT_TILE_DP(3, 4, 5);
    }
    PUT(0, 0, panel);
    PUT(1, 0, panel + 1);
    PUT(2, 0, panel + 2);
    PUT(3, 0, panel + 3);
}

/* Rows as left-hand tiles; zero past k and past n. */
static void pack_rows(const float *x, uint32_t k, size_t k_tiles, uint32_t n, uint16_t *packed)
{
    for (uint32_t r = 0; r < bt_align_up(n, TILE_ROWS); r++) {
        const float *from = x + (size_t)r * k;
        uint16_t *to =
            packed + (r / TILE_ROWS) * k_tiles * TILE_ELEMENTS + (size_t)(r % TILE_ROWS) * TILE_K;
        for (size_t t = 0; t < k_tiles; t++, to += TILE_ELEMENTS) {
            const uint32_t i = (uint32_t)t * TILE_K;
            if (r < n && i + TILE_K <= k) {
                bt_bf16_round32(to, bt_v16_load(from + i), bt_v16_load(from + i + 16));
            } else {
                const uint32_t left = r < n && i < k ? k - i : 0;
                const bt_v16 a = left > 0 ? bt_v16_load_n(from + i, left) : bt_v16_zero();
                const bt_v16 c =
                    left > 16 ? bt_v16_load_n(from + i + 16, left - 16) : bt_v16_zero();
                bt_bf16_round32(to, a, c);
            }
        }
    }
}

static void configure(uint32_t n_rows)
{
    const uint8_t n = (uint8_t)(n_rows < TILE_ROWS ? n_rows : TILE_ROWS);
    const bool one = n_rows <= TILE_ROWS; /* tile 5 is a right operand then */
    const bt_tile_config config = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {n, n, n, n, n, one ? 16 : n, 16, 16},
    };
    bt_tile_configure(&config);
}

static void run_block(const block *b)
{
    const uint32_t end = b->part->panel_end;
    uint32_t p = b->part->panel_first;
    if (b->n_rows <= TILE_ROWS) {
        for (; p + 4 <= end; p += 4) {
            run_1_by_4(b, p);
        }
        for (; p < end; p++) {
            run_1_by_1(b, 0, p);
        }
        return;
    }
    const uint32_t n_tiles = (uint32_t)bt_div_ceil(b->n_rows, TILE_ROWS);
    for (; p < end; p += 2) {
        uint32_t t = 0;
        for (; p + 2 <= end && t + 2 <= n_tiles; t += 2) {
            if (t == 0) {
                run_2_by_2(b, t, p, true);
            } else {
                run_2_by_2(b, t, p, false);
            }
        }
        for (; t < n_tiles; t++) {
            run_1_by_1(b, t, p);
            if (p + 1 < end) {
                run_1_by_1(b, t, p + 1);
            }
        }
    }
}

static uint32_t block_rows(size_t k_tiles)
{
    const size_t pair_bytes = 2 * k_tiles * TILE_ELEMENTS * sizeof(uint16_t); /* 32 rows */
    return (uint32_t)bt_size_max(PACKED_BYTES / pair_bytes, 1) * 2 * TILE_ROWS;
}

size_t BT_K(matmul_scratch_bytes)(uint32_t k_pairs_max, uint32_t n_rows_max)
{
    const size_t tile_bytes = (size_t)k_pairs_max * 2 * TILE_ROWS * sizeof(uint16_t);
    const size_t all = bt_div_ceil(n_rows_max, TILE_ROWS) * tile_bytes;
    return bt_size_max(bt_size_min(PACKED_BYTES, all), 2 * tile_bytes);
}

void BT_K(matmul)(const bt_matmul_part *part)
{
    const bt_matrix *m = part->matrix;
    const size_t k_tiles = m->k_pairs * 2 / TILE_K;
    const uint32_t rows_max = block_rows(k_tiles);
    for (uint32_t row = 0; row < part->n_rows; row += rows_max) {
        const uint32_t left = part->n_rows - row;
        const block b = {
            .part = part,
            .packed = part->scratch,
            .k_tiles = k_tiles,
            .row = row,
            .n_rows = left < rows_max ? left : rows_max,
        };
        pack_rows(part->x + (size_t)row * m->k, m->k, k_tiles, b.n_rows, part->scratch);
        configure(b.n_rows);
        run_block(&b);
        bt_tile_release();
    }
}
