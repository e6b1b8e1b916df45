/* SPDX-License-Identifier: Apache-2.0 */
/* The hand-over goes part by part (DESIGN.md, section 3): each (layer, block) is announced once, in
 * the order in which prefill makes them final, and is in place once, after it was announced. How
 * much of it overlaps with prefill is a matter of time, which `bench/run overlap` measures and
 * tests/kvtransfer/transport_test.c proves under a fake clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/rig.h"

enum {
    PROMPT = 200,
    BLOCKS = (PROMPT + BT_KV_BLOCK_TOKENS - 1) / BT_KV_BLOCK_TOKENS,
    CHUNK = 64,
    LAYERS = 6,
    EVENTS_MAX = 4 * BLOCKS * LAYERS,
    NEVER = -1,
};

static const bt_tiny_model shape = {
    .n_layers = LAYERS,
    .dim = 192,
    .n_heads = 3,
    .n_kv_heads = 3,
    .head_dim = 64,
    .n_ffn = 384,
    .context = 1100,
    .seed = 3,
};

typedef struct recording {
    bt_kv_trace events[EVENTS_MAX];
    size_t n;
} recording;

static recording record;
static int32_t prompt[PROMPT];

static void on_trace(const bt_kv_trace *event, void *ctx)
{
    recording *r = ctx;
    assert_true(r->n < EVENTS_MAX);
    r->events[r->n++] = *event;
}

/* The first event of that kind for a part: its place in the record. Source and sink both record
 * announcements. */
static int find_event(bt_kv_trace_kind kind, uint32_t layer, uint32_t block)
{
    for (size_t i = 0; i < record.n; i++) {
        const bt_kv_trace *event = &record.events[i];
        if (event->kind == kind && layer >= event->layer &&
            layer < event->layer + event->n_layers && block >= event->block_idx &&
            block < event->block_idx + event->n_blocks) {
            return (int)i;
        }
    }
    fail_msg("layer %u, block %u: no event of kind %d", layer, block, (int)kind);
    return NEVER;
}

static uint32_t count_moved(void)
{
    uint32_t n = 0;
    for (size_t i = 0; i < record.n; i++) {
        const bt_kv_trace *event = &record.events[i];
        n += event->kind == BT_KV_TRACE_MOVED ? event->n_blocks * event->n_layers : 0;
    }
    return n;
}

static void hand_over(bt_kv_transport transport)
{
    static bt_rig_request r;
    record.n = 0;
    bt_rig *rig = bt_rig_create(&(bt_rig_options){.shape = &shape,
                                                  .transport = transport,
                                                  .kernels = "portable",
                                                  .chunk = CHUNK,
                                                  .token_budget = CHUNK,
                                                  .lease_ms = 20000,
                                                  .kv_trace = on_trace,
                                                  .kv_trace_ctx = &record});
    bt_rig_request_init(rig, &r, prompt, PROMPT);
    r.sampling.max_tokens = 2;
    bt_rig_send_split(rig, &r);
    bt_rig_wait_split(rig, &r);
    assert_int_equal(r.end[BT_RIG_DECODE].status, BT_OK);
    bt_rig_destroy(rig);
}

static void each_part_is_announced_and_moved_once_in_order(void **state)
{
    (void)state;
    static const bt_kv_transport transports[] = {BT_KV_TRANSPORT_TCP, BT_KV_TRANSPORT_SHM};
    bt_rig_fill_prompt(prompt, PROMPT, 1);
    for (size_t t = 0; t < BT_ARRAY_LEN(transports); t++) {
        hand_over(transports[t]);
        assert_int_equal(count_moved(), LAYERS * BLOCKS);
        int last = NEVER;
        for (uint32_t block = 0; block < BLOCKS; block += CHUNK / BT_KV_BLOCK_TOKENS) {
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                const int announced = find_event(BT_KV_TRACE_ANNOUNCED, layer, block);
                assert_true(announced > last);
                last = announced;
            }
        }
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            for (uint32_t block = 0; block < BLOCKS; block++) {
                assert_true(find_event(BT_KV_TRACE_MOVED, layer, block) >
                            find_event(BT_KV_TRACE_ANNOUNCED, layer, block));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_is_announced_and_moved_once_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
