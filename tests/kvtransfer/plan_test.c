/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that plan.h finds and places every part exactly once, against plain arrays: sets
 * against a byte a part, rectangles against counting, regions against one offset a byte. */
#include "kvtransfer/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS_MAX = 23, LAYERS_MAX = 9, WORDS = (BLOCKS_MAX * LAYERS_MAX + 63) / 64 };

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

static bt_plan_rect draw_rect(uint64_t *seed, uint32_t n_blocks, uint32_t n_layers)
{
    bt_plan_rect rect;
    rect.block_idx = draw(seed, n_blocks);
    rect.n_blocks = 1 + draw(seed, n_blocks - rect.block_idx);
    rect.layer = draw(seed, n_layers);
    rect.n_layers = 1 + draw(seed, n_layers - rect.layer);
    return rect;
}

static bool is_inside(const bt_plan_rect *rect, uint32_t block_idx, uint32_t layer)
{
    return block_idx >= rect->block_idx && block_idx < rect->block_idx + rect->n_blocks &&
           layer >= rect->layer && layer < rect->layer + rect->n_layers;
}

static void sets_equal_a_byte_a_part(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 200; round++) {
        const uint32_t n_blocks = 1 + draw(&seed, BLOCKS_MAX);
        const uint32_t n_layers = 1 + draw(&seed, LAYERS_MAX);
        uint64_t words[WORDS];
        bool parts[BLOCKS_MAX][LAYERS_MAX] = {{false}};
        bt_plan_set set;
        bt_plan_set_init(&set, words, n_blocks, n_layers);
        for (int i = 0; i < 12; i++) {
            const bt_plan_rect rect = draw_rect(&seed, n_blocks, n_layers);
            const bool add = draw(&seed, 3) != 0;
            uint64_t n_changed = 0;
            for (uint32_t b = 0; b < n_blocks; b++) {
                for (uint32_t layer = 0; layer < n_layers; layer++) {
                    if (is_inside(&rect, b, layer)) {
                        n_changed += parts[b][layer] != add;
                        parts[b][layer] = add;
                    }
                }
            }
            const uint64_t n = add ? bt_plan_set_add(&set, &rect) : bt_plan_set_remove(&set, &rect);
            assert_int_equal(n, n_changed);
        }
        for (uint32_t b = 0; b < n_blocks; b++) {
            for (uint32_t layer = 0; layer < n_layers; layer++) {
                assert_int_equal(bt_plan_set_has(&set, b, layer), parts[b][layer]);
            }
        }
    }
}

static void rectangles_outside_are_seen(void **state)
{
    (void)state;
    uint64_t words[WORDS];
    bt_plan_set set;
    bt_plan_set_init(&set, words, 10, 4);
    const struct {
        bt_plan_rect rect;
        bool holds;
    } cases[] = {
        {{0, 10, 0, 4}, true},          {{9, 1, 3, 1}, true},
        {{0, 0, 0, 1}, false},          {{0, 1, 0, 0}, false},
        {{10, 1, 0, 1}, false},         {{9, 2, 0, 1}, false},
        {{0, 1, 4, 1}, false},          {{0, 1, 3, 2}, false},
        {{1, UINT32_MAX, 0, 1}, false}, {{0, 1, 1, UINT32_MAX}, false},
        {{UINT32_MAX, 2, 0, 1}, false},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(cases); i++) {
        assert_int_equal(bt_plan_set_holds(&set, &cases[i].rect), cases[i].holds);
    }
}

/* Taking rectangle after rectangle moves each open part once, within the limit. */
static void every_open_part_is_planned_once(void **state)
{
    (void)state;
    uint64_t seed = 2;
    for (int round = 0; round < 300; round++) {
        const uint32_t n_blocks = 1 + draw(&seed, BLOCKS_MAX);
        const uint32_t n_layers = 1 + draw(&seed, LAYERS_MAX);
        const uint64_t max_parts = 1 + draw(&seed, 20);
        uint64_t have_words[WORDS];
        uint64_t taken_words[WORDS];
        bt_plan_set have;
        bt_plan_set taken;
        bt_plan_set_init(&have, have_words, n_blocks, n_layers);
        bt_plan_set_init(&taken, taken_words, n_blocks, n_layers);
        for (int i = 0; i < 4; i++) {
            bt_plan_rect rect = draw_rect(&seed, n_blocks, n_layers);
            (void)bt_plan_set_add(&have, &rect);
            rect = draw_rect(&seed, n_blocks, n_layers);
            if (draw(&seed, 2) == 0) {
                (void)bt_plan_set_add(&taken, &rect);
            }
        }
        uint32_t n_open = 0;
        for (uint32_t b = 0; b < n_blocks; b++) {
            for (uint32_t layer = 0; layer < n_layers; layer++) {
                n_open += bt_plan_set_has(&have, b, layer) && !bt_plan_set_has(&taken, b, layer);
            }
        }
        bt_plan_rect rect;
        uint64_t n_moved = 0;
        while (bt_plan_next(&have, &taken, 0, max_parts, &rect)) {
            assert_true(bt_plan_set_holds(&have, &rect));
            assert_true(bt_plan_rect_parts(&rect) <= max_parts);
            for (uint32_t b = rect.block_idx; b < rect.block_idx + rect.n_blocks; b++) {
                for (uint32_t layer = rect.layer; layer < rect.layer + rect.n_layers; layer++) {
                    assert_true(bt_plan_set_has(&have, b, layer));
                }
            }
            /* all were open: each one changes */
            assert_int_equal(bt_plan_set_add(&taken, &rect), bt_plan_rect_parts(&rect));
            n_moved += bt_plan_rect_parts(&rect);
        }
        assert_int_equal(n_moved, n_open);
    }
}

static void a_layer_of_a_chunk_and_whole_blocks_are_one_rectangle(void **state)
{
    (void)state;
    uint64_t have_words[WORDS];
    uint64_t taken_words[WORDS];
    bt_plan_set have;
    bt_plan_set taken;
    bt_plan_rect rect;
    bt_plan_set_init(&have, have_words, 20, 6);
    bt_plan_set_init(&taken, taken_words, 20, 6);
    const bt_plan_rect layer = {4, 8, 2, 1};
    (void)bt_plan_set_add(&have, &layer);
    assert_true(bt_plan_next(&have, &taken, 0, 1000, &rect));
    assert_memory_equal(&rect, &layer, sizeof rect);
    assert_true(bt_plan_next(&have, &taken, 6, 1000, &rect));
    assert_int_equal(rect.block_idx, 6);
    const bt_plan_rect all = {0, 20, 0, 6};
    (void)bt_plan_set_add(&have, &all);
    assert_true(bt_plan_next(&have, &taken, 0, 1000, &rect));
    assert_memory_equal(&rect, &all, sizeof rect);
}

/* Byte k of a rectangle, the slow way. */
static uint64_t offset_of(const bt_kv_layout *layout, const bt_block_id *ids,
                          const bt_plan_rect *rect, uint64_t k)
{
    const uint64_t part = k / layout->layer_bytes;
    return bt_kv_part_offset(layout, ids[rect->block_idx + part / rect->n_layers],
                             rect->layer + (uint32_t)(part % rect->n_layers)) +
           k % layout->layer_bytes;
}

static void regions_list_each_byte_in_order(void **state)
{
    (void)state;
    bt_kv_layout layout;
    assert_true(bt_kv_layout_init(&layout, 5, 1, 2, BT_KV_FORMAT_BF16));
    const bt_block_id ids[] = {3, 4, 5, 9, 8, 0, 1, 7};
    uint64_t seed = 3;
    for (int round = 0; round < 200; round++) {
        const bt_plan_rect rect = draw_rect(&seed, BT_ARRAY_LEN(ids), 5);
        const uint64_t all = bt_plan_rect_parts(&rect) * layout.layer_bytes;
        const uint64_t skip = draw(&seed, (uint32_t)all);
        const uint64_t max_bytes = 1 + draw(&seed, (uint32_t)all + 10);
        bt_plan_region regions[3];
        uint64_t bytes = 0;
        const size_t n = bt_plan_regions(&layout, ids, &rect, skip, max_bytes, regions,
                                         BT_ARRAY_LEN(regions), &bytes);
        uint64_t at = skip;
        for (size_t i = 0; i < n; i++) {
            for (uint64_t k = 0; k < regions[i].bytes; k++, at++) {
                assert_int_equal(regions[i].offset + k, offset_of(&layout, ids, &rect, at));
            }
            if (i > 0) { /* merged where they touch */
                assert_true(regions[i].offset != regions[i - 1].offset + regions[i - 1].bytes);
            }
        }
        assert_int_equal(at - skip, bytes);
        const uint64_t wanted = max_bytes < all - skip ? max_bytes : all - skip;
        assert_true(bytes == wanted || (bytes < wanted && n == BT_ARRAY_LEN(regions)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_equal_a_byte_a_part),
        cmocka_unit_test(rectangles_outside_are_seen),
        cmocka_unit_test(every_open_part_is_planned_once),
        cmocka_unit_test(a_layer_of_a_chunk_and_whole_blocks_are_one_rectangle),
        cmocka_unit_test(regions_list_each_byte_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
