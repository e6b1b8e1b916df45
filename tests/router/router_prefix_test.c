/* SPDX-License-Identifier: Apache-2.0 */
/* Proves what a router has others fetch from a worker that drains: the newest chains that nobody
 * else has, bounded in flight and in bytes, to the worker with the most room; that it lets the
 * worker go when nothing is left, whatever becomes of a fetch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "router/hot.h"
#include "tests/router/router_rig.h"

enum { BLOCKS = 4 }; /* of each prompt here */

/* Prompts of 64 tokens, told apart from the first block on. */
static void prompt_of(uint32_t i, char out[65])
{
    memset(out, 'a', 64);
    out[0] = (char)('A' + i);
    out[64] = '\0';
}

/* `from` has served n prompts and holds their blocks; b1 and b2 are alike. */
typedef struct scene {
    rig *r;
    rig_worker *from, *b1, *b2;
    bt_block_hash ids[8][BLOCKS];
} scene;

static scene begin(void **state, uint32_t n)
{
    scene s = {.r = *state};
    s.r->reply = "x";
    rig_start(s.r);
    s.from = rig_add_worker(s.r, "b0", BT_LINK_ROLE_BOTH);
    rig_wait_ready(s.r, true);
    for (uint32_t i = 0; i < n; i++) {
        char prompt[65];
        prompt_of(i, prompt);
        rig_expect_ok(rig_generate_text(s.r, prompt), "x");
        assert_int_equal(rig_store(s.from, &s.from->runs[i], s.ids[i]), BLOCKS);
    }
    s.b1 = rig_add_worker(s.r, "b1", BT_LINK_ROLE_BOTH);
    s.b2 = rig_add_worker(s.r, "b2", BT_LINK_ROLE_BOTH);
    s.b2->load.blocks_free = s.b1->load.blocks_free / 2; /* b1 has the most room */
    bt_link_worker_load(s.b2->link, &s.b2->load);
    bt_link_worker_flush(s.b2->link);
    rig_idle(s.r);
    return s;
}

static void expect_fetch(const scene *s, const rig_worker *w, uint32_t i, uint32_t prompt,
                         uint32_t n_ids)
{
    const rig_fetch *f = &w->fetches[i];
    assert_string_equal(f->peer, "b0");
    assert_int_equal(f->n_ids, n_ids);
    assert_true(f->deadline_left_ms > 0);
    assert_memory_equal(f->ids, s->ids[prompt], n_ids * sizeof(bt_block_hash));
}

static void the_newest_come_first_two_at_a_time(void **state)
{
    scene s = begin(state, 4);
    rig_drain(s.from);
    rig_wait_fetches(s.b1, 2);
    rig_idle(s.r);
    assert_int_equal(s.b1->n_fetches, 2);
    expect_fetch(&s, s.b1, 0, 3, BLOCKS);
    expect_fetch(&s, s.b1, 1, 2, BLOCKS);
    rig_say_fetched(s.b1, 1, BT_OK);
    rig_wait_fetches(s.b1, 3);
    expect_fetch(&s, s.b1, 2, 1, BLOCKS);
    rig_say_fetched(s.b1, 0, BT_OK);
    rig_wait_fetches(s.b1, 4);
    expect_fetch(&s, s.b1, 3, 0, BLOCKS);
    rig_say_fetched(s.b1, 2, BT_OK);
    rig_idle(s.r);
    assert_int_equal(s.from->n_leaves, 0); /* one is under way */
    rig_say_fetched(s.b1, 3, BT_OK);
    rig_wait_leaves(s.from, 1);
    rig_wait_metric(s.r, "baton_router_prefix_blocks_handed_on_total 16");
    rig_wait_metric(s.r, "baton_router_prefixes_not_handed_on_total 0");
    rig_drain(s.from);
    rig_idle(s.r);
    assert_int_equal(s.from->n_leaves, 1); /* once */
    assert_int_equal(s.b2->n_fetches, 0);
}

static void what_another_worker_holds_is_left(void **state)
{
    scene s = begin(state, 2);
    bt_link_worker_blocks(s.b2->link, BT_LINK_BLOCKS_STORED, s.ids[1], BLOCKS);
    bt_link_worker_blocks(s.b2->link, BT_LINK_BLOCKS_STORED, s.ids[0], BLOCKS - 1);
    bt_link_worker_flush(s.b2->link);
    rig_idle(s.r);
    rig_drain(s.from);
    rig_wait_fetches(s.b1, 1);
    expect_fetch(&s, s.b1, 0, 0, BLOCKS); /* the other one lacks a block */
    rig_say_fetched(s.b1, 0, BT_OK);
    rig_wait_leaves(s.from, 1);
    assert_int_equal(s.b1->n_fetches, 1);
}

static void only_what_it_still_holds_is_fetched(void **state)
{
    scene s = begin(state, 2);
    bt_link_worker_blocks(s.from->link, BT_LINK_BLOCKS_EVICTED, &s.ids[0][2], 2);
    bt_link_worker_blocks(s.from->link, BT_LINK_BLOCKS_EVICTED, s.ids[1], BLOCKS);
    bt_link_worker_flush(s.from->link);
    rig_idle(s.r);
    rig_drain(s.from);
    rig_wait_fetches(s.b1, 1);
    expect_fetch(&s, s.b1, 0, 0, 2);
}

static void bytes_are_bounded(void **state)
{
    rig *r = *state;
    r->options.drain_prefix_bytes = 6 * rig_hello(r, "b0", BT_LINK_ROLE_BOTH).block_bytes;
    scene s = begin(state, 3);
    rig_drain(s.from);
    rig_wait_fetches(s.b1, 2);
    expect_fetch(&s, s.b1, 0, 2, BLOCKS);
    expect_fetch(&s, s.b1, 1, 1, 2); /* the leading part that fits */
    rig_say_fetched(s.b1, 0, BT_OK);
    rig_say_fetched(s.b1, 1, BT_OK);
    rig_wait_leaves(s.from, 1);
    assert_int_equal(s.b1->n_fetches, 2);
}

static void with_no_bytes_it_is_let_go_at_once(void **state)
{
    rig *r = *state;
    r->options.drain_prefix_bytes = 0;
    scene s = begin(state, 1);
    rig_drain(s.from);
    rig_wait_leaves(s.from, 1);
    assert_int_equal(s.b1->n_fetches, 0);
}

static void with_nobody_alike_it_is_let_go_at_once(void **state)
{
    scene s = {.r = *state};
    rig_start(s.r);
    s.from = rig_add_worker(s.r, "b0", BT_LINK_ROLE_BOTH);
    rig_worker *p = rig_add_worker(s.r, "p0", BT_LINK_ROLE_PREFILL);
    bt_link_hello hello = rig_hello(s.r, "b1", BT_LINK_ROLE_BOTH);
    hello.numerics_id[0] ^= 1;
    rig_worker *b1 = rig_dial(s.r, &hello);
    rig_wait_up(b1);
    s.from->hold = b1->hold = p->hold = true;
    char prompt[65];
    prompt_of(0, prompt);
    for (uint32_t i = 0; i < 6 && s.from->n_runs == 0; i++) {
        (void)rig_generate_text(s.r, prompt);
        rig_idle(s.r);
    }
    assert_true(s.from->n_runs > 0);
    (void)rig_store(s.from, &s.from->runs[0], s.ids[0]);
    rig_idle(s.r);
    rig_drain(s.from);
    rig_wait_leaves(s.from, 1);
    assert_int_equal(p->n_fetches + b1->n_fetches, 0);
}

static void no_more_than_half_of_the_room_is_taken(void **state)
{
    scene s = begin(state, 1);
    s.b1->load.blocks_free = 5;
    s.b2->load.blocks_free = 6;
    bt_link_worker_load(s.b1->link, &s.b1->load);
    bt_link_worker_flush(s.b1->link);
    bt_link_worker_load(s.b2->link, &s.b2->load);
    bt_link_worker_flush(s.b2->link);
    rig_idle(s.r);
    rig_drain(s.from);
    rig_wait_fetches(s.b2, 1);
    expect_fetch(&s, s.b2, 0, 0, 3);
    assert_int_equal(s.b1->n_fetches, 0);
}

static void a_failed_fetch_is_counted_and_left(void **state)
{
    scene s = begin(state, 1);
    rig_drain(s.from);
    rig_wait_fetches(s.b1, 1);
    rig_say_fetched(s.b1, 0, BT_EEXHAUSTED);
    rig_wait_leaves(s.from, 1);
    rig_wait_metric(s.r, "baton_router_prefixes_not_handed_on_total 1");
    rig_wait_metric(s.r, "baton_router_prefix_blocks_handed_on_total 0");
    assert_int_equal(s.b1->n_fetches + s.b2->n_fetches, 1);
}

static void a_lost_target_frees_its_place_for_the_next_one(void **state)
{
    scene s = begin(state, 3);
    rig_drain(s.from);
    rig_wait_fetches(s.b1, 2);
    rig_kill(s.b1);
    rig_wait_fetches(s.b2, 1);
    expect_fetch(&s, s.b2, 0, 0, BLOCKS);
    rig_wait_metric(s.r, "baton_router_prefixes_not_handed_on_total 2");
    rig_say_fetched(s.b2, 0, BT_OK);
    rig_wait_leaves(s.from, 1);
}

static void an_answer_after_the_source_is_gone_is_harmless(void **state)
{
    scene s = begin(state, 2);
    rig_drain(s.from);
    rig_wait_fetches(s.b1, 2);
    rig_kill(s.from);
    rig_say_fetched(s.b1, 0, BT_OK);
    rig_say_fetched(s.b1, 1, BT_EPEER);
    rig_wait_metric(s.r, "baton_router_prefix_blocks_handed_on_total 4");
    rig_wait_metric(s.r, "baton_router_prefixes_not_handed_on_total 1");
    rig_expect_ok(rig_generate_text(s.r, "y"), "x");
}

/* ---- hot.h ---- */

static void a_chain_that_goes_on_takes_the_place_of_its_beginning(void **state)
{
    (void)state;
    bt_router_hot *hot = NULL;
    assert_int_equal(bt_router_hot_create(&hot), BT_OK);
    const uint8_t numerics[16] = {1}, others[16] = {2};
    bt_block_hash a[4] = {{{1, 1}}, {{1, 2}}, {{1, 3}}, {{1, 4}}};
    bt_block_hash b[2] = {{{1, 1}}, {{9, 2}}}; /* the same first block */
    bt_router_hot_note(hot, numerics, a, 2);
    bt_router_hot_note(hot, numerics, b, 2);
    bt_router_hot_note(hot, numerics, a, 0);
    bt_router_hot_note(hot, numerics, a, 4);
    const bt_router_hot_chain *chain = bt_router_hot_next(hot, numerics, UINT64_MAX);
    assert_int_equal(chain->n, 4);
    assert_true(bt_hash128_equal(chain->ids[3], a[3]));
    bt_router_hot_note(hot, numerics, a, 3); /* its beginning again: it stays whole */
    chain = bt_router_hot_next(hot, numerics, UINT64_MAX);
    assert_int_equal(chain->n, 4);
    chain = bt_router_hot_next(hot, numerics, chain->used);
    assert_int_equal(chain->n, 2);
    assert_true(bt_hash128_equal(chain->ids[1], b[1]));
    assert_null(bt_router_hot_next(hot, numerics, chain->used));
    assert_null(bt_router_hot_next(hot, others, UINT64_MAX));
    bt_router_hot_destroy(hot);
}

static void the_oldest_chain_makes_room(void **state)
{
    (void)state;
    bt_router_hot *hot = NULL;
    assert_int_equal(bt_router_hot_create(&hot), BT_OK);
    const uint8_t numerics[16] = {1};
    static bt_block_hash ids[BT_ROUTER_HOT_BLOCKS + 9];
    for (uint64_t k = 0; k < BT_ROUTER_HOT_CHAINS + 1; k++) {
        for (uint64_t i = 0; i < BT_ARRAY_LEN(ids); i++) {
            ids[i] = (bt_block_hash){.w = {k + 1, i + 1}};
        }
        bt_router_hot_note(hot, numerics, ids, BT_ARRAY_LEN(ids));
    }
    uint64_t before = UINT64_MAX;
    for (uint64_t k = BT_ROUTER_HOT_CHAINS + 1; k > 1; k--) {
        const bt_router_hot_chain *chain = bt_router_hot_next(hot, numerics, before);
        assert_int_equal(chain->n, BT_ROUTER_HOT_BLOCKS);
        assert_int_equal(chain->ids[0].w[0], k);
        before = chain->used;
    }
    assert_null(bt_router_hot_next(hot, numerics, before));
    bt_router_hot_destroy(hot);
}

#define WITH_RIG(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_RIG(the_newest_come_first_two_at_a_time),
        WITH_RIG(what_another_worker_holds_is_left),
        WITH_RIG(only_what_it_still_holds_is_fetched),
        WITH_RIG(bytes_are_bounded),
        WITH_RIG(with_no_bytes_it_is_let_go_at_once),
        WITH_RIG(with_nobody_alike_it_is_let_go_at_once),
        WITH_RIG(no_more_than_half_of_the_room_is_taken),
        WITH_RIG(a_failed_fetch_is_counted_and_left),
        WITH_RIG(a_lost_target_frees_its_place_for_the_next_one),
        WITH_RIG(an_answer_after_the_source_is_gone_is_harmless),
        cmocka_unit_test(a_chain_that_goes_on_takes_the_place_of_its_beginning),
        cmocka_unit_test(the_oldest_chain_makes_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
