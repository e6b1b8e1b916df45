/* SPDX-License-Identifier: Apache-2.0 */
/* link: a worker's end and a router's end on one loop, over loopback sockets.
 *
 * What goes in at one end comes out at the other, in order and once; sets of blocks are equal
 * whatever was evicted while a snapshot was under way; whoever is lost is told and found again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/map.h"
#include "proto/link.h"
#include "tests/proto/talk.h"

enum {
    RESULTS_MAX = 4096,
    POOL_BLOCKS = 60000,
};

/* ---- the router's end, recording ---- */

typedef struct router_end {
    bt_link_router *link;
    bt_link_peer *worker;
    unsigned n_up;
    unsigned n_down;
    char reason[256];
    bt_link_hello hello;
    bt_link_load load;
    unsigned n_loads;
    bt_token_result results[RESULTS_MAX];
    size_t n_results;
    bt_link_finished finished[8];
    size_t n_finished;
    bt_link_parked parked;
    unsigned n_parked;
    bt_link_fetched fetched;
    unsigned n_fetched;
    uint64_t explained_number;
    bt_link_timeline timelines[BT_LINK_TIMELINES_MAX];
    size_t n_timelines;
    unsigned n_explained;
    bt_map128 *blocks;
    unsigned n_resets;
    const char *refusal;          /* on_worker_up says no with this */
    const bt_link_run *first_run; /* sent from inside on_worker_up */
} router_end;

static bt_status on_worker_up(bt_link_peer *worker, const bt_link_hello *hello, void *ctx,
                              bt_error *err)
{
    router_end *r = ctx;
    if (r->refusal != NULL) {
        return bt_error_set(err, BT_EMISMATCH, "%s", r->refusal);
    }
    r->worker = worker;
    r->n_up++;
    r->hello = *hello;
    bt_link_peer_set_ctx(worker, r);
    if (r->first_run != NULL) {
        assert_int_equal(bt_link_router_run(worker, r->first_run), BT_OK);
    }
    return BT_OK;
}

static void on_load(bt_link_peer *worker, const bt_link_load *load, void *ctx)
{
    router_end *r = ctx;
    assert_ptr_equal(bt_link_peer_ctx(worker), r);
    r->load = *load;
    r->n_loads++;
}

static void on_tokens(bt_link_peer *worker, const bt_link_tokens *tokens, void *ctx)
{
    (void)worker;
    router_end *r = ctx;
    assert_int_equal(tokens->first_index, r->n_results);
    assert_true(r->n_results + tokens->n_results <= RESULTS_MAX);
    memcpy(r->results + r->n_results, tokens->results, tokens->n_results * sizeof *tokens->results);
    r->n_results += tokens->n_results;
}

static void on_finished(bt_link_peer *worker, const bt_link_finished *finished, void *ctx)
{
    (void)worker;
    router_end *r = ctx;
    assert_true(r->n_finished < BT_ARRAY_LEN(r->finished));
    r->finished[r->n_finished++] = *finished;
}

static void on_parked(bt_link_peer *worker, const bt_link_parked *parked, void *ctx)
{
    (void)worker;
    router_end *r = ctx;
    r->parked = *parked;
    r->n_parked++;
}

static void on_fetched(bt_link_peer *worker, const bt_link_fetched *fetched, void *ctx)
{
    (void)worker;
    router_end *r = ctx;
    r->fetched = *fetched;
    r->n_fetched++;
}

static void on_explained(bt_link_peer *worker, uint64_t number, const bt_link_timeline *timelines,
                         size_t n, void *ctx)
{
    (void)worker;
    router_end *r = ctx;
    r->explained_number = number;
    memcpy(r->timelines, timelines, n * sizeof *timelines);
    r->n_timelines = n;
    r->n_explained++;
}

static void on_blocks(bt_link_peer *worker, bt_link_blocks_kind kind, const bt_block_hash *ids,
                      size_t n, void *ctx)
{
    (void)worker;
    router_end *r = ctx;
    if (kind == BT_LINK_BLOCKS_RESET) {
        r->n_resets++;
        bt_map128_clear(r->blocks);
    }
    for (size_t i = 0; i < n; i++) {
        if (kind == BT_LINK_BLOCKS_STORED) {
            assert_int_equal(bt_map128_put(r->blocks, ids[i], 1), BT_OK);
        } else {
            (void)bt_map128_remove(r->blocks, ids[i], NULL);
        }
    }
}

static void on_worker_down(bt_link_peer *worker, const char *reason, void *ctx)
{
    router_end *r = ctx;
    if (r->worker == worker) {
        r->worker = NULL;
    }
    r->n_down++;
    snprintf(r->reason, sizeof r->reason, "%s", reason);
}

static const bt_link_router_callbacks router_callbacks = {
    .on_worker_up = on_worker_up,
    .on_load = on_load,
    .on_tokens = on_tokens,
    .on_finished = on_finished,
    .on_parked = on_parked,
    .on_fetched = on_fetched,
    .on_explained = on_explained,
    .on_blocks = on_blocks,
    .on_worker_down = on_worker_down,
};

/* ---- the worker's end, recording ---- */

#define CLUSTER_KEY                                                                                \
    {                                                                                              \
        .key = {.bytes = {6, 66} }                                                                 \
    }

typedef struct worker_end {
    bt_link_worker *link;
    unsigned n_runs;
    bt_link_run run;
    bt_sampling sampling;
    int32_t tokens[1024];
    unsigned n_cancels;
    unsigned n_parks;
    uint32_t next_attempt;
    unsigned n_resumes;
    unsigned n_drains;
    bt_link_fetch fetch;
    bt_block_hash fetch_ids[BT_LINK_FETCH_BLOCKS_MAX];
    unsigned n_fetches;
    unsigned n_leaves;
    char label[BT_LINK_LABEL_MAX];
    char asked[128];
    bt_request_id cancelled;
    unsigned n_up;
    unsigned n_down;
    char reason[256];
    bool closed;
} worker_end;

static void on_run(const bt_link_run *run, void *ctx)
{
    worker_end *w = ctx;
    w->n_runs++;
    w->run = *run;
    w->sampling = *run->sampling;
    snprintf(w->label, sizeof w->label, "%s", run->label);
    assert_true(run->n_tokens <= BT_ARRAY_LEN(w->tokens));
    memcpy(w->tokens, run->tokens, run->n_tokens * sizeof *run->tokens);
}

static void on_cancel(bt_request_id id, uint32_t attempt, void *ctx)
{
    (void)attempt;
    worker_end *w = ctx;
    w->n_cancels++;
    w->cancelled = id;
}

static void on_fetch(uint32_t router, const bt_link_fetch *fetch, void *ctx)
{
    worker_end *w = ctx;
    assert_int_equal(router, 0);
    w->fetch = *fetch;
    memcpy(w->fetch_ids, fetch->ids, fetch->n_ids * sizeof *fetch->ids);
    w->n_fetches++;
}

static void on_leave(void *ctx)
{
    worker_end *w = ctx;
    assert_false(bt_link_worker_is_kept(w->link));
    w->n_leaves++;
}

static void on_park(bt_request_id id, uint32_t attempt, uint32_t next_attempt, void *ctx)
{
    worker_end *w = ctx;
    assert_int_equal(id.lo, w->run.id.lo);
    assert_int_equal(attempt, w->run.attempt);
    w->n_parks++;
    w->next_attempt = next_attempt;
}

static void on_resume(bt_request_id id, uint32_t attempt, void *ctx)
{
    worker_end *w = ctx;
    assert_int_equal(id.lo, w->run.id.lo);
    assert_int_equal(attempt, w->run.attempt);
    w->n_resumes++;
}

static void on_drain(void *ctx)
{
    worker_end *w = ctx;
    w->n_drains++;
}

/* Two runs for who asks after "twice", as many as fit for "many". */
static size_t on_explain(const char *request, bt_link_timeline *out, void *ctx)
{
    worker_end *w = ctx;
    snprintf(w->asked, sizeof w->asked, "%s", request);
    const size_t n = strcmp(request, "twice") == 0  ? 2
                     : strcmp(request, "many") == 0 ? BT_LINK_TIMELINES_MAX
                                                    : 0;
    for (size_t i = 0; i < n; i++) {
        out[i] = (bt_link_timeline){
            .id = {.hi = 3, .lo = 4},
            .attempt = (uint32_t)(n - i),
            .mode = BT_LINK_MODE_DECODE,
            .label = "twice",
            .open = i == 0,
            .status = i == 0 ? BT_OK : BT_EPEER,
            .error = {.text = "it went away"},
            .reason = i == 0 ? BT_FINISH_NONE : BT_FINISH_ERROR,
            .arrived_unix_ns = UINT64_C(1800000000000000000) + i,
            .started_ns = 1,
            .computed_ns = 2,
            .transferred_ns = 3,
            .first_token_ns = 4,
            .ended_ns = 5,
            .prompt_tokens = 6,
            .cached_tokens = 7,
            .generated_tokens = 8,
            .blocks_moved = 9,
            .blocks_skipped = 10,
            .bytes_moved = 11,
            .preemptions = 12,
            .transport = "shm",
            .peer = "prefill-0",
        };
    }
    return n;
}

static void on_router_up(uint32_t router, void *ctx)
{
    (void)router;
    worker_end *w = ctx;
    w->n_up++;
}

static void on_router_down(uint32_t router, const char *reason, void *ctx)
{
    (void)router;
    worker_end *w = ctx;
    w->n_down++;
    snprintf(w->reason, sizeof w->reason, "%s", reason);
}

static const bt_link_worker_callbacks worker_callbacks = {
    .on_run = on_run,
    .on_cancel = on_cancel,
    .on_park = on_park,
    .on_resume = on_resume,
    .on_drain = on_drain,
    .on_fetch = on_fetch,
    .on_leave = on_leave,
    .on_explain = on_explain,
    .on_router_up = on_router_up,
    .on_router_down = on_router_down,
};

/* ---- fixture ---- */

typedef struct fixture {
    pair pair;
    router_end router;
    worker_end worker;
    bt_link_hello hello;
    bt_cluster_key worker_key;
} fixture;

static fixture the_fixture;

static bt_link_hello make_hello(const char *name)
{
    bt_link_hello hello = {
        .role = BT_LINK_ROLE_DECODE,
        .kv = {.incarnation = 0xfeedbeefcafe0001,
               .kv_tcp = "127.0.0.1:4711",
               .kv_unix = "/run/x.sock",
               .boot_id = {9, 8, 7}},
        .numerics_id = {1, 2, 3},
        .kernels = "bf16-avx512",
        .model = "SmolLM2",
        .model_fingerprint = {4},
        .tokenizer_hash = {5},
        .block_tokens = 16,
        .pool_blocks = POOL_BLOCKS,
        .block_bytes = 368640,
        .requests_max = 64,
        .context_tokens = 8192,
        .step_tokens_max = 512,
    };
    snprintf(hello.kv.name, sizeof hello.kv.name, "%s", name);
    return hello;
}

static void make_router(fixture *f)
{
    const bt_link_router_options options = {
        .name = "router-0",
        .cluster_key = CLUSTER_KEY,
        .ping_ms = 50,
        .silence_ms = 1000,
        .callbacks = &router_callbacks,
        .ctx = &f->router,
    };
    bt_error err;
    assert_int_equal(
        bt_link_router_create(f->pair.loop, f->pair.server, &options, &f->router.link, &err),
        BT_OK);
    pair_start(&f->pair);
}

static void make_worker(fixture *f, worker_end *w, size_t outbox_bytes_max)
{
    const char *const routers[] = {f->pair.address};
    const bt_link_worker_options options = {
        .hello = &f->hello,
        .routers = routers,
        .n_routers = 1,
        .cluster_key = f->worker_key,
        .runs_max = 4,
        .load_ms = 50,
        .outbox_bytes_max = outbox_bytes_max,
        .callbacks = &worker_callbacks,
        .ctx = w,
    };
    bt_error err;
    assert_int_equal(bt_link_worker_create(f->pair.loop, f->pair.rpc, &options, &w->link, &err),
                     BT_OK);
}

static int set_up(void **state)
{
    fixture *f = &the_fixture;
    memset(f, 0, sizeof *f);
    f->hello = make_hello("decode-0");
    f->worker_key = (bt_cluster_key)CLUSTER_KEY;
    assert_int_equal(bt_map128_create(2 * POOL_BLOCKS, &f->router.blocks), BT_OK);
    pair_init(&f->pair, NULL);
    make_router(f);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    bt_link_worker_destroy(f->worker.link);
    bt_link_router_stop(f->router.link, "the test is over");
    pair_stop_server(&f->pair);
    assert_int_equal(f->router.n_up, f->router.n_down);
    assert_int_equal(bt_link_router_get_stats(f->router.link).workers_up, 0);
    bt_link_router_destroy(f->router.link);
    bt_map128_destroy(f->router.blocks);
    pair_deinit(&f->pair);
    return 0;
}

static fixture *attach(void **state)
{
    fixture *f = *state;
    make_worker(f, &f->worker, 0);
    WAIT_FOR(&f->pair, f->worker.n_up == 1);
    return f;
}

static bt_link_run make_run(const int32_t *tokens, uint32_t n, const bt_sampling *sampling)
{
    return (bt_link_run){
        .id = {.hi = 0x1122334455667788, .lo = 0x99aabbccddeeff00},
        .attempt = 2,
        .mode = BT_LINK_MODE_DECODE,
        .tokens = tokens,
        .n_tokens = n,
        .n_prompt = n - 1,
        .sampling = sampling,
        .chain_root = {.w = {77, 88}},
        .deadline_left_ns = 123456789012,
        .priority = -5,
        .ttft_target_ms = 150.5,
        .tpot_target_ms = 20.25,
        .label = "order-66",
        .has_peer = true,
        .peer = {.name = "prefill-0",
                 .incarnation = 42,
                 .kv_tcp = "[::1]:99",
                 .kv_unix = "/run/p.sock",
                 .boot_id = {1}},
    };
}

static bt_sampling make_sampling(void)
{
    bt_sampling s;
    memset(&s, 0, sizeof s); /* padding too: it is compared as bytes */
    s.temperature = 0.7F;
    s.top_k = 40;
    s.top_p = 0.95F;
    s.min_p = 0.05F;
    s.repetition_penalty = 1.1F;
    s.presence_penalty = -0.5F;
    s.frequency_penalty = 1.5F;
    s.seed = 0xffffffffffffffff;
    s.min_tokens = 3;
    s.max_tokens = 100;
    s.ignore_eos = true;
    s.logprobs = true;
    s.n_top_logprobs = 20;
    s.echo = true;
    s.n_stop_tokens = 2;
    s.stop_tokens[0] = 0;
    s.stop_tokens[1] = 49151;
    s.n_logit_bias = 300;
    for (int32_t i = 0; i < 300; i++) {
        s.logit_bias[i].token = i * 7;
        s.logit_bias[i].bias = (float)(i - 150) / 2;
    }
    return s;
}

static const int32_t few_tokens[] = {5, 0, 49151, 7};

/* Gives the worker a run and waits for it. */
static bt_link_run start_run(fixture *f, uint64_t number)
{
    const bt_sampling sampling = {
        .top_p = 1, .repetition_penalty = 1, .max_tokens = 10, .temperature = 1};
    bt_link_run run = make_run(few_tokens, BT_ARRAY_LEN(few_tokens), &sampling);
    run.id.lo = number;
    const unsigned before = f->worker.n_runs;
    assert_int_equal(bt_link_router_run(f->router.worker, &run), BT_OK);
    WAIT_FOR(&f->pair, f->worker.n_runs == before + 1);
    return run;
}

/* ---- tests ---- */

static void hello_arrives_whole(void **state)
{
    fixture *f = attach(state);
    f->hello.protocol_version = BT_LINK_PROTOCOL_VERSION;
    assert_memory_equal(&f->router.hello, &f->hello, sizeof f->hello);
    assert_int_equal(strncmp(bt_link_peer_address(f->router.worker), "ipv4:127.0.0.1:", 15), 0);
}

static void run_arrives_as_it_was_sent(void **state)
{
    fixture *f = attach(state);
    static int32_t tokens[1000];
    for (int32_t i = 0; i < 1000; i++) {
        tokens[i] = (i * 7919) % 49152;
    }
    const bt_sampling sampling = make_sampling();
    const bt_link_run run = make_run(tokens, BT_ARRAY_LEN(tokens), &sampling);
    assert_int_equal(bt_link_router_run(f->router.worker, &run), BT_OK);
    WAIT_FOR(&f->pair, f->worker.n_runs == 1);
    bt_link_run got = f->worker.run;
    assert_memory_equal(f->worker.tokens, tokens, sizeof tokens);
    assert_memory_equal(&f->worker.sampling, &sampling, sizeof sampling);
    assert_memory_equal(&got.peer, &run.peer, sizeof run.peer);
    assert_memory_equal(&got.id, &run.id, sizeof run.id);
    assert_int_equal(got.attempt, run.attempt);
    assert_int_equal(got.mode, run.mode);
    assert_int_equal(got.n_tokens, run.n_tokens);
    assert_int_equal(got.n_prompt, run.n_prompt);
    assert_true(bt_hash128_equal(got.chain_root, run.chain_root));
    assert_true(got.deadline_left_ns == run.deadline_left_ns);
    assert_int_equal(got.priority, run.priority);
    assert_true(got.ttft_target_ms == run.ttft_target_ms);
    assert_true(got.tpot_target_ms == run.tpot_target_ms);
    assert_string_equal(f->worker.label, run.label);
    assert_true(got.has_peer);
}

static void run_given_from_inside_worker_up_arrives(void **state)
{
    fixture *f = *state;
    const bt_sampling sampling = make_sampling();
    const bt_link_run run = make_run(few_tokens, BT_ARRAY_LEN(few_tokens), &sampling);
    f->router.first_run = &run;
    make_worker(f, &f->worker, 0);
    WAIT_FOR(&f->pair, f->worker.n_runs == 1);
    assert_int_equal(f->worker.n_up, 1);
}

static void make_results(bt_token_result *results, size_t n)
{
    memset(results, 0, n * sizeof *results);
    for (size_t i = 0; i < n; i++) {
        results[i].token = (int32_t)(i * 31 % 49152);
        results[i].has_logprob = i % 5 != 0;
        results[i].logprob = i % 5 != 0 ? -(float)i / 8 : 0;
        results[i].n_top = (uint32_t)(i % 21);
        for (uint32_t t = 0; t < results[i].n_top; t++) {
            results[i].top[t].token = (int32_t)(i + t);
            results[i].top[t].logprob = -(float)t;
        }
    }
}

static void tokens_and_the_end_arrive_in_order(void **state)
{
    fixture *f = attach(state);
    const bt_link_run run = start_run(f, 1);
    static bt_token_result results[300];
    make_results(results, BT_ARRAY_LEN(results));
    /* Steps of 1, 2, 3, ... tokens, then all the rest at once. */
    size_t at = 0;
    for (uint32_t step = 1; at < 100; at += step, step++) {
        bt_link_worker_tokens(f->worker.link, &(bt_link_tokens){.id = run.id,
                                                                .attempt = run.attempt,
                                                                .first_index = (uint32_t)at,
                                                                .results = results + at,
                                                                .n_results = step});
        bt_link_worker_flush(f->worker.link);
    }
    bt_link_worker_tokens(f->worker.link,
                          &(bt_link_tokens){.id = run.id,
                                            .attempt = run.attempt,
                                            .first_index = (uint32_t)at,
                                            .results = results + at,
                                            .n_results = (uint32_t)(BT_ARRAY_LEN(results) - at)});
    bt_link_finished end;
    memset(&end, 0, sizeof end);
    end.id = run.id;
    end.attempt = run.attempt;
    end.reason = BT_FINISH_STOP;
    end.has_stop_token = true;
    end.stop_token = 2;
    end.prompt_tokens = 3;
    end.cached_tokens = 1;
    end.generated_tokens = 300;
    end.queue_ns = 11;
    end.prefill_ns = 12;
    end.transfer_ns = 13;
    end.decode_ns = 14;
    end.blocks_total = 15;
    end.blocks_moved = 16;
    end.blocks_skipped = 17;
    end.bytes_moved = 1ULL << 40;
    end.preemptions = 18;
    strcpy(end.transport, "shm");
    bt_link_worker_finished(f->worker.link, &end);
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, f->router.n_finished == 1);
    assert_int_equal(f->router.n_results, BT_ARRAY_LEN(results));
    for (size_t i = 0; i < BT_ARRAY_LEN(results); i++) {
        assert_memory_equal(&f->router.results[i], &results[i], sizeof results[i]);
    }
    (void)bt_error_set(&end.error, BT_OK, "%s", "");
    assert_memory_equal(&f->router.finished[0], &end, sizeof end);
}

static void failed_run_brings_its_text(void **state)
{
    fixture *f = attach(state);
    const bt_link_run run = start_run(f, 1);
    bt_link_finished end = {.id = run.id, .attempt = run.attempt, .reason = BT_FINISH_ERROR};
    end.status = bt_error_set(&end.error, BT_EEXHAUSTED, "the pool has 3 blocks, not 4");
    bt_link_worker_finished(f->worker.link, &end);
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, f->router.n_finished == 1);
    assert_int_equal(f->router.finished[0].status, BT_EEXHAUSTED);
    assert_string_equal(f->router.finished[0].error.text, "the pool has 3 blocks, not 4");
}

static void cancel_reaches_its_run_alone(void **state)
{
    fixture *f = attach(state);
    const bt_link_run first = start_run(f, 1);
    const bt_link_run second = start_run(f, 2);
    bt_link_router_cancel(f->router.worker, (bt_request_id){.lo = 9}, 2);
    bt_link_router_cancel(f->router.worker, first.id, first.attempt + 1);
    bt_link_router_cancel(f->router.worker, second.id, second.attempt);
    WAIT_FOR(&f->pair, f->worker.n_cancels > 0);
    assert_int_equal(f->worker.n_cancels, 1);
    assert_true(f->worker.cancelled.lo == 2);
    assert_true(bt_link_worker_get_stats(f->worker.link).cancels_unknown == 2);
}

static void park_and_resume_reach_their_run_and_the_answer_comes_back(void **state)
{
    fixture *f = attach(state);
    bt_link_run run = start_run(f, 1);
    assert_int_equal(bt_link_router_park(f->router.worker, run.id, run.attempt, 9), BT_OK);
    WAIT_FOR(&f->pair, f->worker.n_parks == 1);
    assert_int_equal(f->worker.next_attempt, 9);
    bt_link_parked parked = {.id = run.id, .attempt = run.attempt, .generated_tokens = 7};
    bt_link_worker_parked(f->worker.link, &parked);
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, f->router.n_parked == 1);
    assert_int_equal(f->router.parked.id.lo, run.id.lo);
    assert_int_equal(f->router.parked.attempt, run.attempt);
    assert_int_equal(f->router.parked.status, BT_OK);
    assert_int_equal(f->router.parked.generated_tokens, 7);
    bt_link_router_resume(f->router.worker, run.id, run.attempt);
    WAIT_FOR(&f->pair, f->worker.n_resumes == 1);
    parked.status = bt_error_set(&parked.error, BT_AGAIN, "it waits");
    bt_link_worker_parked(f->worker.link, &parked);
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, f->router.n_parked == 2);
    assert_int_equal(f->router.parked.status, BT_AGAIN);
    assert_string_equal(f->router.parked.error.text, "it waits");
}

static void a_fetch_arrives_whole_and_its_answer_comes_back(void **state)
{
    fixture *f = attach(state);
    static const uint32_t sizes[] = {1, BT_LINK_FETCH_BLOCKS_MAX};
    static bt_block_hash ids[BT_LINK_FETCH_BLOCKS_MAX];
    for (uint32_t i = 0; i < BT_LINK_FETCH_BLOCKS_MAX; i++) {
        ids[i] = (bt_block_hash){.w = {i * UINT64_C(0x0123456789ABCDEF), ~(uint64_t)i}};
    }
    bt_link_fetch fetch = {
        .id = {.hi = 3, .lo = 4},
        .peer = {.name = "d7", .incarnation = 99, .kv_tcp = "10.0.0.7:7", .boot_id = {1, 2}},
        .ids = ids,
        .deadline_left_ms = 1234,
    };
    for (unsigned k = 0; k < 2; k++) {
        fetch.n_ids = sizes[k];
        assert_int_equal(bt_link_router_fetch(f->router.worker, &fetch), BT_OK);
        WAIT_FOR(&f->pair, f->worker.n_fetches == k + 1);
        const bt_link_fetch *got = &f->worker.fetch;
        assert_int_equal(got->id.hi, 3);
        assert_int_equal(got->id.lo, 4);
        assert_string_equal(got->peer.name, "d7");
        assert_int_equal(got->peer.incarnation, 99);
        assert_string_equal(got->peer.kv_tcp, "10.0.0.7:7");
        assert_string_equal(got->peer.kv_unix, "");
        assert_memory_equal(got->peer.boot_id, fetch.peer.boot_id, sizeof fetch.peer.boot_id);
        assert_int_equal(got->deadline_left_ms, 1234);
        assert_int_equal(got->n_ids, sizes[k]);
        assert_memory_equal(f->worker.fetch_ids, ids, sizes[k] * sizeof *ids);
    }
    bt_link_fetched fetched = {
        .id = fetch.id, .blocks_moved = 5, .blocks_skipped = 6, .bytes_moved = 7};
    bt_link_worker_fetched(f->worker.link, 0, &fetched);
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, f->router.n_fetched == 1);
    assert_int_equal(f->router.fetched.id.lo, 4);
    assert_int_equal(f->router.fetched.status, BT_OK);
    assert_int_equal(f->router.fetched.blocks_moved, 5);
    assert_int_equal(f->router.fetched.blocks_skipped, 6);
    assert_int_equal(f->router.fetched.bytes_moved, 7);
    fetched.status = bt_error_set(&fetched.error, BT_EEXHAUSTED, "no room");
    bt_link_worker_fetched(f->worker.link, 0, &fetched);
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, f->router.n_fetched == 2);
    assert_int_equal(f->router.fetched.status, BT_EEXHAUSTED);
    assert_string_equal(f->router.fetched.error.text, "no room");
}

static void a_worker_is_kept_until_its_router_lets_it_go(void **state)
{
    fixture *f = attach(state);
    assert_true(bt_link_worker_is_kept(f->worker.link));
    bt_link_router_leave(f->router.worker);
    WAIT_FOR(&f->pair, f->worker.n_leaves == 1);
    assert_false(bt_link_worker_is_kept(f->worker.link));
}

static void a_worker_tells_what_it_knows_of_a_request(void **state)
{
    fixture *f = attach(state);
    assert_int_equal(bt_link_router_explain(f->router.worker, 41, "twice"), BT_OK);
    WAIT_FOR(&f->pair, f->router.n_explained == 1);
    assert_string_equal(f->worker.asked, "twice");
    assert_int_equal(f->router.explained_number, 41);
    assert_int_equal(f->router.n_timelines, 2);
    bt_link_timeline sent[BT_LINK_TIMELINES_MAX];
    (void)on_explain("twice", sent, &f->worker);
    sent[0].error.text[0] = '\0'; /* there is no text without a failure */
    for (size_t i = 0; i < 2; i++) {
        const bt_link_timeline *a = &f->router.timelines[i];
        const bt_link_timeline *b = &sent[i];
        assert_int_equal(a->id.hi, b->id.hi);
        assert_int_equal(a->id.lo, b->id.lo);
        assert_int_equal(a->attempt, b->attempt);
        assert_int_equal(a->mode, b->mode);
        assert_string_equal(a->label, b->label);
        assert_int_equal(a->open, b->open);
        assert_int_equal(a->status, b->status);
        assert_int_equal(a->reason, b->reason);
        assert_string_equal(a->transport, b->transport);
        assert_string_equal(a->peer, b->peer);
        assert_true(a->arrived_unix_ns == b->arrived_unix_ns);
        assert_true(a->started_ns == b->started_ns && a->computed_ns == b->computed_ns);
        assert_true(a->transferred_ns == b->transferred_ns);
        assert_true(a->first_token_ns == b->first_token_ns && a->ended_ns == b->ended_ns);
        assert_int_equal(a->prompt_tokens, b->prompt_tokens);
        assert_int_equal(a->cached_tokens, b->cached_tokens);
        assert_int_equal(a->generated_tokens, b->generated_tokens);
        assert_int_equal(a->blocks_moved, b->blocks_moved);
        assert_int_equal(a->blocks_skipped, b->blocks_skipped);
        assert_true(a->bytes_moved == b->bytes_moved);
        assert_int_equal(a->preemptions, b->preemptions);
    }
    assert_string_equal(f->router.timelines[1].error.text, "it went away");
    assert_int_equal(bt_link_router_explain(f->router.worker, 42, "nobody"), BT_OK);
    WAIT_FOR(&f->pair, f->router.n_explained == 2);
    assert_int_equal(f->router.n_timelines, 0);
    assert_int_equal(bt_link_router_explain(f->router.worker, 43, "many"), BT_OK);
    WAIT_FOR(&f->pair, f->router.n_explained == 3);
    assert_int_equal(f->router.n_timelines, BT_LINK_TIMELINES_MAX);
}

static void a_request_is_known_by_its_id_and_by_its_label(void **state)
{
    (void)state;
    const bt_request_id id = {.hi = 0xab, .lo = 0xcd};
    assert_true(bt_link_is_request("00000000000000ab00000000000000cd", id, "mine"));
    assert_true(bt_link_is_request("mine", id, "mine"));
    assert_false(bt_link_is_request("00000000000000ab00000000000000ce", id, "mine"));
    assert_false(bt_link_is_request("min", id, "mine"));
    assert_false(bt_link_is_request("", id, ""));
}

static void a_run_that_is_over_is_not_parked(void **state)
{
    fixture *f = attach(state);
    bt_link_run run = start_run(f, 1);
    const bt_link_finished finished = {.id = run.id, .attempt = run.attempt};
    bt_link_worker_finished(f->worker.link, &finished);
    assert_int_equal(bt_link_router_park(f->router.worker, run.id, run.attempt, 3), BT_OK);
    bt_link_router_resume(f->router.worker, run.id, run.attempt);
    bt_link_router_drain(f->router.worker); /* comes behind both */
    WAIT_FOR(&f->pair, f->worker.n_drains == 1);
    assert_int_equal(f->worker.n_parks, 0);
    assert_int_equal(f->worker.n_resumes, 0);
}

static void duplicate_runs_are_ignored_and_counted(void **state)
{
    fixture *f = attach(state);
    const bt_sampling sampling = make_sampling();
    bt_link_run run = start_run(f, 1);
    run.sampling = &sampling;
    assert_int_equal(bt_link_router_run(f->router.worker, &run), BT_OK);
    run.attempt++; /* a retry on the same worker is another run */
    assert_int_equal(bt_link_router_run(f->router.worker, &run), BT_OK);
    WAIT_FOR(&f->pair, f->worker.n_runs == 2);
    assert_true(bt_link_worker_get_stats(f->worker.link).runs_duplicate == 1);
    assert_int_equal(f->worker.run.attempt, run.attempt);
}

static void runs_beyond_the_table_are_refused(void **state)
{
    fixture *f = attach(state);
    for (uint64_t i = 1; i <= 4; i++) {
        (void)start_run(f, i);
    }
    const bt_sampling sampling = make_sampling();
    bt_link_run run = make_run(few_tokens, BT_ARRAY_LEN(few_tokens), &sampling);
    run.id.lo = 5;
    assert_int_equal(bt_link_router_run(f->router.worker, &run), BT_OK);
    WAIT_FOR(&f->pair, f->router.n_finished == 1);
    assert_int_equal(f->router.finished[0].status, BT_EEXHAUSTED);
    assert_true(f->router.finished[0].id.lo == 5);
    assert_int_equal(f->worker.n_runs, 4);
    /* A finished run makes room. */
    bt_link_worker_finished(f->worker.link,
                            &(bt_link_finished){.id = {.hi = run.id.hi, .lo = 1}, .attempt = 2});
    run.id.lo = 6;
    assert_int_equal(bt_link_router_run(f->router.worker, &run), BT_OK);
    WAIT_FOR(&f->pair, f->worker.n_runs == 5);
}

static void senseless_run_is_answered_not_run(void **state)
{
    fixture *f = attach(state);
    bt_sampling sampling = make_sampling();
    sampling.temperature = -1;
    const bt_link_run run = make_run(few_tokens, BT_ARRAY_LEN(few_tokens), &sampling);
    assert_int_equal(bt_link_router_run(f->router.worker, &run), BT_OK);
    WAIT_FOR(&f->pair, f->router.n_finished == 1);
    assert_int_equal(f->router.finished[0].status, BT_EPROTOCOL);
    assert_int_equal(f->worker.n_runs, 0);
}

static void too_large_run_is_refused_at_once(void **state)
{
    fixture *f = attach(state);
    const uint32_t n = 4 * 1024 * 1024;
    int32_t *tokens = malloc(n * sizeof *tokens);
    assert_non_null(tokens);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = 49151;
    }
    const bt_sampling sampling = make_sampling();
    const bt_link_run run = make_run(tokens, n, &sampling);
    assert_int_equal(bt_link_router_run(f->router.worker, &run), BT_EEXHAUSTED);
    free(tokens);
}

static void load_arrives_on_change_and_in_time(void **state)
{
    fixture *f = attach(state);
    const bt_link_load load = {.blocks_free = 5,
                               .waiting_tokens = 1ULL << 33,
                               .preemptions = 2,
                               .oldest_waiting_ns = 3,
                               .draining = true,
                               .blocks_stored = 4,
                               .blocks_evicted = 5,
                               .prefix_queries = 6,
                               .prefix_hits = 7,
                               .slots_written = 1ULL << 34,
                               .slots_allocated = 1ULL << 35};
    bt_link_worker_load(f->worker.link, &load);
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, f->router.load.draining);
    assert_memory_equal(&f->router.load, &load, sizeof load);
    const unsigned before = f->router.n_loads;
    WAIT_FOR(&f->pair, f->router.n_loads >= before + 3);
}

/* ---- blocks ---- */

static bt_block_hash block(uint64_t i)
{
    return (bt_block_hash){.w = {i, i * UINT64_C(0x9e3779b97f4a7c15)}};
}

static void store_range(fixture *f, uint64_t begin, uint64_t end, bt_link_blocks_kind kind)
{
    static bt_block_hash ids[POOL_BLOCKS];
    for (uint64_t i = begin; i < end; i++) {
        ids[i - begin] = block(i);
    }
    bt_link_worker_blocks(f->worker.link, kind, ids, end - begin);
}

static bool router_has_exactly(const fixture *f, uint64_t begin, uint64_t end)
{
    if (bt_map128_len(f->router.blocks) != end - begin) {
        return false;
    }
    for (uint64_t i = begin; i < end; i++) {
        if (!bt_map128_get(f->router.blocks, block(i), NULL)) {
            return false;
        }
    }
    return true;
}

static void that_a_worker_drains_is_told_before_anything_that_follows(void **state)
{
    fixture *f = attach(state);
    bt_link_load load = {.blocks_free = 5};
    bt_link_worker_load(f->worker.link, &load);
    bt_link_worker_flush(f->worker.link); /* the next report would wait for a while */
    load.draining = true;
    bt_link_worker_load(f->worker.link, &load);
    bt_link_worker_flush(f->worker.link);
    store_range(f, 0, 1, BT_LINK_BLOCKS_STORED);
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, router_has_exactly(f, 0, 1));
    assert_true(f->router.load.draining);
}

static void blocks_held_before_attach_arrive_as_snapshot(void **state)
{
    fixture *f = *state;
    make_worker(f, &f->worker, 0);
    store_range(f, 0, 50000, BT_LINK_BLOCKS_STORED);
    store_range(f, 0, 10, BT_LINK_BLOCKS_EVICTED);
    WAIT_FOR(&f->pair, router_has_exactly(f, 10, 50000));
    store_range(f, 50000, 50010, BT_LINK_BLOCKS_STORED);
    store_range(f, 10, 20, BT_LINK_BLOCKS_EVICTED);
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, router_has_exactly(f, 20, 50010));
    assert_int_equal(f->router.n_resets, 1);
    assert_true(bt_link_router_get_stats(f->router.link).block_gaps == 0);
}

static void sets_agree_after_events_were_left_out(void **state)
{
    fixture *f = *state;
    make_worker(f, &f->worker, 300 * 1024); /* a snapshot takes many rounds */
    store_range(f, 0, 40000, BT_LINK_BLOCKS_STORED);
    WAIT_FOR(&f->pair, f->worker.n_up == 1);
    /* A window that moves while snapshots are under way. */
    for (uint64_t i = 0; i < 20; i++) {
        store_range(f, i * 2000, (i + 1) * 2000, BT_LINK_BLOCKS_EVICTED);
        store_range(f, 40000 + i * 2000, 40000 + (i + 1) * 2000, BT_LINK_BLOCKS_STORED);
        if (i % 4 == 3) {
            bt_link_worker_flush(f->worker.link);
            pair_step(&f->pair);
        }
    }
    WAIT_FOR(&f->pair, router_has_exactly(f, 40000, 80000));
    const bt_link_worker_stats stats = bt_link_worker_get_stats(f->worker.link);
    assert_true(stats.blocks_dropped > 0);
    assert_true(stats.snapshots > 1);
    assert_int_equal(f->worker.n_down, 0);
}

/* ---- lost and found ---- */

static void lost_router_cancels_its_runs_and_is_found_again(void **state)
{
    fixture *f = attach(state);
    const bt_link_run run = start_run(f, 7);
    store_range(f, 0, 100, BT_LINK_BLOCKS_STORED);
    bt_link_router_stop(f->router.link, "going home");
    pair_stop_server(&f->pair);
    WAIT_FOR(&f->pair, f->worker.n_down == 1);
    assert_string_equal(f->worker.reason, "going home");
    assert_int_equal(f->worker.n_cancels, 1);
    assert_true(f->worker.cancelled.lo == 7);
    bt_link_worker_finished(f->worker.link,
                            &(bt_link_finished){.id = run.id, .attempt = run.attempt});
    assert_true(bt_link_worker_get_stats(f->worker.link).events_late == 1);
    assert_int_equal(f->router.n_down, 1);

    bt_link_router_destroy(f->router.link);
    pair_remake_server(&f->pair);
    make_router(f);
    WAIT_FOR(&f->pair, f->worker.n_up == 2);
    WAIT_FOR(&f->pair, router_has_exactly(f, 0, 100));
    (void)start_run(f, 7); /* the same run may come again */
}

static void dropped_worker_comes_back(void **state)
{
    fixture *f = attach(state);
    bt_link_router_drop(f->router.worker, "not today");
    WAIT_FOR(&f->pair, f->worker.n_up == 2);
    assert_string_equal(f->worker.reason, "not today");
    assert_string_equal(f->router.reason, "not today");
}

static void overflowing_outbox_ends_the_session(void **state)
{
    fixture *f = *state;
    make_worker(f, &f->worker, 16 * 1024);
    WAIT_FOR(&f->pair, f->worker.n_up == 1);
    const bt_link_run run = start_run(f, 1);
    static bt_token_result results[2000];
    make_results(results, BT_ARRAY_LEN(results));
    bt_link_worker_tokens(f->worker.link, &(bt_link_tokens){.id = run.id,
                                                            .attempt = run.attempt,
                                                            .results = results,
                                                            .n_results = 2000});
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, f->worker.n_down == 1);
    assert_int_equal(f->worker.n_cancels, 1);
    assert_true(bt_link_worker_get_stats(f->worker.link).outbox_overflows == 1);
    WAIT_FOR(&f->pair, f->worker.n_up == 2);
}

static void refused_worker_keeps_asking(void **state)
{
    fixture *f = *state;
    f->router.refusal = "model 'x' is not served here";
    make_worker(f, &f->worker, 0);
    WAIT_FOR(&f->pair, bt_link_worker_get_stats(f->worker.link).refusals >= 2);
    assert_int_equal(f->worker.n_up, 0);
    assert_int_equal(f->router.n_down, 0);
    f->router.refusal = NULL;
    WAIT_FOR(&f->pair, f->worker.n_up == 1);
}

static void other_cluster_key_is_refused(void **state)
{
    fixture *f = *state;
    f->worker_key.key.bytes[0] ^= 1;
    make_worker(f, &f->worker, 0);
    WAIT_FOR(&f->pair, bt_link_worker_get_stats(f->worker.link).refusals >= 1);
    WAIT_FOR(&f->pair, bt_link_router_get_stats(f->router.link).refusals >= 1);
    assert_int_equal(f->router.n_up, 0);
    assert_int_equal(f->worker.n_up, 0);
}

static void second_worker_of_one_name_is_refused(void **state)
{
    fixture *f = attach(state);
    f->hello.kv.incarnation++;
    static worker_end other;
    memset(&other, 0, sizeof other);
    make_worker(f, &other, 0);
    WAIT_FOR(&f->pair, bt_link_worker_get_stats(other.link).refusals >= 1);
    assert_int_equal(f->worker.n_down, 0);
    bt_link_worker_destroy(other.link);
}

/* ---- two routers, shutdown ---- */

static void events_go_to_the_router_that_asked(void **state)
{
    fixture *f = *state;
    bt_rpc_server *server = NULL;
    const bt_rpc_server_options server_options = {.address = "127.0.0.1:0"};
    assert_int_equal(bt_rpc_server_create(f->pair.rpc, &server_options, &server, NULL), BT_OK);
    static router_end other;
    memset(&other, 0, sizeof other);
    assert_int_equal(bt_map128_create(POOL_BLOCKS, &other.blocks), BT_OK);
    const bt_link_router_options options = {.name = "router-1",
                                            .cluster_key = CLUSTER_KEY,
                                            .callbacks = &router_callbacks,
                                            .ctx = &other};
    assert_int_equal(bt_link_router_create(f->pair.loop, server, &options, &other.link, NULL),
                     BT_OK);
    assert_int_equal(bt_rpc_server_start(server, NULL), BT_OK);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", bt_rpc_server_port(server));
    const char *const routers[] = {f->pair.address, address};
    const bt_link_worker_options worker_options = {.hello = &f->hello,
                                                   .routers = routers,
                                                   .n_routers = 2,
                                                   .cluster_key = CLUSTER_KEY,
                                                   .callbacks = &worker_callbacks,
                                                   .ctx = &f->worker};
    assert_int_equal(
        bt_link_worker_create(f->pair.loop, f->pair.rpc, &worker_options, &f->worker.link, NULL),
        BT_OK);
    WAIT_FOR(&f->pair, f->worker.n_up == 2);
    const bt_link_run run = start_run(f, 1); /* from the first router */
    /* The same one from the second: two routers can't both have drawn it. */
    const bt_sampling sampling = {.top_p = 1, .repetition_penalty = 1, .max_tokens = 10};
    bt_link_run again = run;
    again.sampling = &sampling;
    assert_int_equal(bt_link_router_run(other.worker, &again), BT_OK);
    WAIT_FOR(&f->pair, other.n_finished == 1);
    assert_int_equal(other.finished[0].status, BT_EEXISTS);
    assert_int_equal(f->worker.n_runs, 1);
    store_range(f, 0, 10, BT_LINK_BLOCKS_STORED);
    bt_link_worker_finished(f->worker.link,
                            &(bt_link_finished){.id = run.id, .attempt = run.attempt});
    bt_link_worker_flush(f->worker.link);
    WAIT_FOR(&f->pair, f->router.n_finished == 1 && router_has_exactly(f, 0, 10));
    WAIT_FOR(&f->pair, bt_map128_len(other.blocks) == 10);
    assert_int_equal(other.n_finished, 1);

    bt_link_router_stop(other.link, "over");
    bt_rpc_server *first = f->pair.server;
    f->pair.server = server;
    pair_stop_server(&f->pair);
    f->pair.server = first;
    bt_link_router_destroy(other.link);
    bt_map128_destroy(other.blocks);
}

static void on_closed(void *ctx)
{
    ((worker_end *)ctx)->closed = true;
}

static void shutdown_sends_what_is_queued(void **state)
{
    fixture *f = attach(state);
    const bt_link_run run = start_run(f, 1);
    static bt_token_result results[2000];
    make_results(results, BT_ARRAY_LEN(results));
    bt_link_worker_tokens(f->worker.link, &(bt_link_tokens){.id = run.id,
                                                            .attempt = run.attempt,
                                                            .results = results,
                                                            .n_results = 2000});
    bt_link_worker_finished(f->worker.link,
                            &(bt_link_finished){.id = run.id, .attempt = run.attempt});
    bt_link_worker_shutdown(f->worker.link, 5000, on_closed, &f->worker);
    assert_false(f->worker.closed);
    WAIT_FOR(&f->pair, f->worker.closed);
    WAIT_FOR(&f->pair, f->router.n_down == 1);
    assert_int_equal(f->router.n_results, 2000);
    assert_int_equal(f->router.n_finished, 1);
    assert_string_equal(f->router.reason, "the worker left");
    assert_int_equal(f->worker.n_cancels, 0);
}

static void shutdown_without_a_router_ends_too(void **state)
{
    fixture *f = *state;
    bt_link_router_stop(f->router.link, "gone");
    make_worker(f, &f->worker, 0);
    bt_link_worker_shutdown(f->worker.link, 5000, on_closed, &f->worker);
    WAIT_FOR(&f->pair, f->worker.closed);
    assert_int_equal(f->worker.n_up, 0);
}

static void bad_options_are_refused_with_advice(void **state)
{
    fixture *f = *state;
    bt_error err = {{0}};
    bt_link_worker *link = NULL;
    const char *const routers[] = {""};
    bt_link_worker_options options = {.hello = &f->hello, .callbacks = &worker_callbacks};
    assert_int_equal(bt_link_worker_create(f->pair.loop, f->pair.rpc, &options, &link, &err),
                     BT_EINVAL);
    assert_non_null(strstr(err.text, "1 to 16 routers"));
    options.routers = routers;
    options.n_routers = 1;
    assert_int_equal(bt_link_worker_create(f->pair.loop, f->pair.rpc, &options, &link, &err),
                     BT_EINVAL);
    assert_non_null(strstr(err.text, "host:port"));
}

#define LINK_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LINK_TEST(hello_arrives_whole),
        LINK_TEST(run_arrives_as_it_was_sent),
        LINK_TEST(run_given_from_inside_worker_up_arrives),
        LINK_TEST(tokens_and_the_end_arrive_in_order),
        LINK_TEST(failed_run_brings_its_text),
        LINK_TEST(cancel_reaches_its_run_alone),
        LINK_TEST(park_and_resume_reach_their_run_and_the_answer_comes_back),
        LINK_TEST(a_fetch_arrives_whole_and_its_answer_comes_back),
        LINK_TEST(a_worker_is_kept_until_its_router_lets_it_go),
        LINK_TEST(a_run_that_is_over_is_not_parked),
        LINK_TEST(a_worker_tells_what_it_knows_of_a_request),
        cmocka_unit_test(a_request_is_known_by_its_id_and_by_its_label),
        LINK_TEST(duplicate_runs_are_ignored_and_counted),
        LINK_TEST(runs_beyond_the_table_are_refused),
        LINK_TEST(senseless_run_is_answered_not_run),
        LINK_TEST(too_large_run_is_refused_at_once),
        LINK_TEST(load_arrives_on_change_and_in_time),
        LINK_TEST(that_a_worker_drains_is_told_before_anything_that_follows),
        LINK_TEST(blocks_held_before_attach_arrive_as_snapshot),
        LINK_TEST(sets_agree_after_events_were_left_out),
        LINK_TEST(lost_router_cancels_its_runs_and_is_found_again),
        LINK_TEST(dropped_worker_comes_back),
        LINK_TEST(overflowing_outbox_ends_the_session),
        LINK_TEST(refused_worker_keeps_asking),
        LINK_TEST(other_cluster_key_is_refused),
        LINK_TEST(second_worker_of_one_name_is_refused),
        LINK_TEST(events_go_to_the_router_that_asked),
        LINK_TEST(shutdown_sends_what_is_queued),
        LINK_TEST(shutdown_without_a_router_ends_too),
        LINK_TEST(bad_options_are_refused_with_advice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
