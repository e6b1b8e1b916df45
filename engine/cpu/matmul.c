/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on bf16 panels, compiled once for each instruction set (BT_ISA).
 *
 * A block of rows is packed first: tiles of BT_TILE_ROWS rows, [k][rows] f32, so that the inner
 * loop reads both operands in sequence. Then for each group of panels that stays in the L2
 * cache, every row tile runs over the group's panels:
 *
 *   for block of rows (its packed form fits in L2)
 *     for group of panels
 *       for row tile            packed tile: L1
 *         for panels of a tile  weights: from memory for the first row tile, then L2
 *           for k               accumulators: registers
 *
 * Weights are widened from bf16 in registers: a shift for the even input, a mask for the odd. Where
 * the CPU has dot products of bf16 pairs, rows are rounded to bf16 and packed as pairs instead.
 */
#include "engine/cpu/isa.h"
#include "engine/cpu/tile.h"

enum {
    PACKED_BYTES = 768 * 1024, /* of a block of rows: leaves room for weights in an L2 of 1 MiB */
    GROUP_PANELS = 8,
    PREFETCH_BYTES = 1024, /* ahead in each panel's stream */
};

/* A packed input: f32, or with bf16 dot products a pair of bf16. */
#ifdef BT_VEC_DOT_BF16
typedef uint32_t packed_input; /* [k_pairs][tile rows] */
enum { INPUTS_PACKED = 2 };
#else
typedef float packed_input; /* [2 k_pairs][tile rows] */
enum { INPUTS_PACKED = 1 };
#endif

/* One row tile times n_panels panels of the group. */
typedef struct tile_args {
    const packed_input *x;
    const uint16_t *w;
    float *y;
    size_t panel_elements;
    size_t y_stride;
    uint32_t k_pairs;
    uint32_t n_rows; /* rows that exist */
    uint32_t n_cols; /* outputs that exist, from w's first */
    bool add;
} tile_args;

BT_INLINE void tile_store(bt_v16 acc, float *y, uint32_t n_cols, bool add)
{
    if (n_cols >= 16) {
        bt_v16_store(y, add ? bt_v16_add(bt_v16_load(y), acc) : acc);
    } else {
        bt_v16_store_n(y, add ? bt_v16_add(bt_v16_load_n(y, n_cols), acc) : acc, n_cols);
    }
}

/* One pair of inputs for all rows and panels. */
BT_INLINE void tile_pair(const uint32_t rows, const uint32_t panels, const packed_input *x,
                         const uint16_t *w, size_t panel_elements, bt_v16 acc[12][8])
{
#ifdef BT_VEC_DOT_BF16
    bt_v16 weights[8];
#pragma GCC unroll 8
    for (uint32_t p = 0; p < panels; p++) {
        weights[p] = bt_v16_load((const float *)(const void *)(w + p * panel_elements));
        bt_prefetch((const char *)(w + p * panel_elements) + PREFETCH_BYTES);
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t p = 0; p < panels; p++) {
            acc[r][p] = bt_v16_dot_bf16(acc[r][p], x[r], weights[p]);
        }
    }
#else
    bt_v16 even[8];
    bt_v16 odd[8];
#pragma GCC unroll 8
    for (uint32_t p = 0; p < panels; p++) {
        bt_v16_load_bf16_pairs(w + p * panel_elements, &even[p], &odd[p]);
        bt_prefetch((const char *)(w + p * panel_elements) + PREFETCH_BYTES);
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
        const bt_v16 b = bt_v16_set1(x[r]);
#pragma GCC unroll 8
        for (uint32_t p = 0; p < panels; p++) {
            acc[r][p] = bt_v16_fma(b, even[p], acc[r][p]);
        }
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
        const bt_v16 b = bt_v16_set1(x[rows + r]);
#pragma GCC unroll 8
        for (uint32_t p = 0; p < panels; p++) {
            acc[r][p] = bt_v16_fma(b, odd[p], acc[r][p]);
        }
    }
#endif
}

/* rows, panels: constants after inlining, so that acc lives in registers. */
BT_INLINE void tile_run(const uint32_t rows, const uint32_t panels, const tile_args *a)
{
    bt_v16 acc[12][8];
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t p = 0; p < panels; p++) {
            acc[r][p] = bt_v16_zero();
        }
    }
    const packed_input *x = a->x;
    const uint16_t *w = a->w;
    const size_t panel_elements = a->panel_elements;
    for (uint32_t i = a->k_pairs; i > 0; i--) {
        tile_pair(rows, panels, x, w, panel_elements, acc);
        x += 2 / INPUTS_PACKED * rows;
        w += 32;
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
        if (r < a->n_rows) {
#pragma GCC unroll 8
            for (uint32_t p = 0; p < panels; p++) {
                tile_store(acc[r][p], a->y + r * a->y_stride + (size_t)p * 16, a->n_cols - p * 16,
                           a->add);
            }
        }
    }
}

#define TILE_FN(rows, panels)                                                                      \
    static void tile_##rows##_by_##panels(const tile_args *a)                                      \
    {                                                                                              \
        tile_run(rows, panels, a);                                                                 \
    }                                                                                              \
    static void tile_##rows##_by_one(const tile_args *a)                                           \
    {                                                                                              \
        tile_run(rows, 1, a);                                                                      \
    }
BT_TILE_SHAPES(TILE_FN)
#undef TILE_FN

typedef struct tile_shape {
    uint32_t rows;
    uint32_t panels;
    void (*many)(const tile_args *a);
    void (*one)(const tile_args *a);
} tile_shape;

static const tile_shape tile_shapes[] = {
#define TILE_ENTRY(rows, panels) {rows, panels, tile_##rows##_by_##panels, tile_##rows##_by_one},
    BT_TILE_SHAPES(TILE_ENTRY)
#undef TILE_ENTRY
};

static const tile_shape *shape_for(uint32_t n_rows)
{
    size_t i = 0;
    while (i + 1 < BT_ARRAY_LEN(tile_shapes) && tile_shapes[i].rows < n_rows) {
        i++;
    }
    return &tile_shapes[i];
}

/* n rows of x to [k_padded / INPUTS_PACKED][rows]; zero past k and past n. */
#ifdef BT_VEC_DOT_BF16
static void pack_tile(const float *x, uint32_t k, uint32_t k_padded, uint32_t n, uint32_t rows,
                      packed_input *packed)
{
    for (uint32_t r = 0; r < rows; r++) {
        packed_input *to = packed + r;
        const float *from = x + (size_t)r * k;
        for (uint32_t i = 0; i < k_padded; i += 32, to += (size_t)16 * rows) {
            uint32_t pairs[16];
            const uint32_t left = r < n && i < k ? k - i : 0;
            bt_v16_round_pairs(pairs, from + (left > 0 ? i : 0), left);
            const uint32_t n_pairs = k_padded - i < 32 ? (k_padded - i) / 2 : 16;
            for (uint32_t j = 0; j < n_pairs; j++) {
                to[(size_t)j * rows] = pairs[j];
            }
        }
    }
}
#else
/* Inputs outside, rows inside: what is written lies in sequence. */
BT_INLINE void pack_inputs(const float *x, uint32_t k, uint32_t n, const uint32_t rows,
                           packed_input *packed)
{
    for (uint32_t i = 0; i < k; i++, packed += rows) {
        for (uint32_t r = 0; r < rows; r++) {
            packed[r] = r < n ? x[(size_t)r * k + i] : 0.0F;
        }
    }
}

static void pack_tile(const float *x, uint32_t k, uint32_t k_padded, uint32_t n, uint32_t rows,
                      packed_input *packed)
{
    if (n == BT_TILE_ROWS) {
        pack_inputs(x, k, BT_TILE_ROWS, BT_TILE_ROWS, packed);
    } else {
        pack_inputs(x, k, n, rows, packed);
    }
    memset(packed + (size_t)k * rows, 0, (size_t)(k_padded - k) * rows * sizeof(*packed));
}
#endif

/* Rows of a block: whole tiles, as many as fit, at least one. */
static uint32_t block_rows(uint32_t k_padded)
{
    const uint32_t tiles = (uint32_t)(PACKED_BYTES / ((size_t)k_padded / INPUTS_PACKED *
                                                      BT_TILE_ROWS * sizeof(packed_input)));
    return (tiles > 0 ? tiles : 1) * BT_TILE_ROWS;
}

/* All row tiles of a packed block times the panels of one group. */
static void run_group(const bt_matmul_part *part, uint32_t row, uint32_t n_rows, uint32_t panel,
                      uint32_t panel_end)
{
    const bt_matrix *m = part->matrix;
    const size_t k_padded = 2 * (size_t)m->k_pairs;
    const packed_input *packed = part->scratch;
    for (uint32_t r = 0; r < n_rows; r += BT_TILE_ROWS) {
        const uint32_t n = n_rows - r < BT_TILE_ROWS ? n_rows - r : BT_TILE_ROWS;
        const tile_shape *shape = shape_for(n);
        tile_args a = {
            .x = packed + r * k_padded / INPUTS_PACKED,
            .panel_elements = k_padded * 16,
            .y_stride = part->y_stride,
            .k_pairs = m->k_pairs,
            .n_rows = n,
            .add = part->add,
        };
        for (uint32_t p = panel; p < panel_end;) {
            const bool many = panel_end - p >= shape->panels;
            a.w = m->panels + p * a.panel_elements;
            a.y = part->y + (size_t)(row + r) * part->y_stride + (size_t)p * 16;
            a.n_cols = m->n - p * 16;
            (many ? shape->many : shape->one)(&a);
            p += many ? shape->panels : 1;
        }
    }
}

size_t BT_K(matmul_scratch_bytes)(uint32_t k_pairs_max, uint32_t n_rows_max)
{
    /* A short matrix may have larger blocks than the longest one, up to PACKED_BYTES. */
    const size_t tile_bytes = 2 * (size_t)k_pairs_max * BT_TILE_ROWS * sizeof(float);
    const size_t all = bt_div_ceil(n_rows_max, BT_TILE_ROWS) * tile_bytes;
    return bt_size_max(bt_size_min(PACKED_BYTES, all), tile_bytes);
}

void BT_K(matmul)(const bt_matmul_part *part)
{
    const bt_matrix *m = part->matrix;
    const uint32_t k_padded = 2 * m->k_pairs;
    const uint32_t rows_max = block_rows(k_padded);
    packed_input *packed = part->scratch;
    for (uint32_t row = 0; row < part->n_rows; row += rows_max) {
        const uint32_t n_rows = part->n_rows - row < rows_max ? part->n_rows - row : rows_max;
        for (uint32_t r = 0; r < n_rows; r += BT_TILE_ROWS) {
            const uint32_t n = n_rows - r < BT_TILE_ROWS ? n_rows - r : BT_TILE_ROWS;
            pack_tile(part->x + (size_t)(row + r) * m->k, m->k, k_padded, n, tile_rows_for(n),
                      packed + (size_t)r * k_padded / INPUTS_PACKED);
        }
        for (uint32_t p = part->panel_first; p < part->panel_end; p += GROUP_PANELS) {
            const uint32_t end =
                part->panel_end - p < GROUP_PANELS ? part->panel_end : p + GROUP_PANELS;
            run_group(part, row, n_rows, p, end);
        }
    }
}
