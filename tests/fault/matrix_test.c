/* SPDX-License-Identifier: Apache-2.0 */
/* The fault matrix of docs/failures.md: each fault strikes a request in each state at each place,
 * and the client sees what the page says.
 *
 * A cell: a request is brought into the state, the fault strikes within one turn of the loop, what
 * lasts is healed, and the request runs to its end. Its answer is compared with that of one
 * combined worker, undisturbed. After it nothing is held anywhere. Each fault has a process of its
 * own, and a cluster of two prefill and two decode workers.
 *
 *   matrix_test --fault NAME   runs one fault's cells in this process, with the log
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/check.h"
#include "common/log.h"
#include "tests/fault/schedule.h"
#include "tests/support/fault.h"

enum {
    PROMPT_TOKENS = 400,
    MAX_TOKENS = 200,
    STOP_MS = 1300, /* longer than the worker timeout and the lease, which are 1 s here */
    DELAY_MS = 80,
    TRIES = 4,
    ALLOCATIONS = 6, /* that fail one after the other, in each state */
    N_WORKERS = 4,   /* P D P D */
};

typedef enum fault {
    KILL,
    STOP,
    CUT,    /* of the stream between worker and router, or of the client's connection */
    CUT_KV, /* of the connections between P and D */
    DROP,
    DELAY,
    DOUBLE,
    CORRUPT, /* a byte of a frame */
    SPOIL,   /* a byte of a KV part */
    ALLOCATION,
    CLOCK_NEAR, /* ahead by 2 s */
    CLOCK_FAR,  /* ahead by 100 s, beyond every deadline */
    N_FAULTS,
} fault;

typedef enum request_state {
    QUEUED,
    PREFILLING,
    PULLING,
    FIRST_TOKEN,
    DECODING,
    DRAINING,  /* the decode worker drains, and has the stream still */
    MIGRATING, /* another one pulls it from there */
    N_STATES,
} request_state;

typedef enum place {
    ROUTER,
    P,
    D,
    CLIENT,
    N_PLACES,
} place;

static const char *const fault_names[N_FAULTS] = {"kill",  "stop",       "cut",        "cut_kv",
                                                  "drop",  "delay",      "double",     "corrupt",
                                                  "spoil", "allocation", "clock_near", "clock_far"};
static const char *const state_names[N_STATES] = {
    "queued", "prefilling", "pulling", "first token", "decoding", "draining", "migrating"};
static const char *const place_names[N_PLACES] = {"router", "P", "D", "client"};

/* Places where a fault can strike. */
static const unsigned places_of[N_FAULTS] = {
    [KILL] = 1 << ROUTER | 1 << P | 1 << D | 1 << CLIENT,
    [STOP] = 1 << ROUTER | 1 << P | 1 << D | 1 << CLIENT,
    [CUT] = 1 << ROUTER | 1 << P | 1 << D | 1 << CLIENT,
    [CUT_KV] = 1 << P | 1 << D,
    [DROP] = 1 << P | 1 << D,
    [DELAY] = 1 << ROUTER | 1 << P | 1 << D | 1 << CLIENT,
    [DOUBLE] = 1 << P | 1 << D,
    [CORRUPT] = 1 << P | 1 << D,
    [SPOIL] = 1 << D,
    [ALLOCATION] = 1 << ROUTER, /* of the loop thread, which all members share here */
    [CLOCK_NEAR] = 1 << ROUTER,
    [CLOCK_FAR] = 1 << ROUTER,
};

typedef struct cell {
    bt_cluster *cluster;
    fault fault;
    request_state state;
    place place;
    uint32_t n; /* of the allocation */
    bt_cluster_request request;
    char salt[64];
    uint64_t announced_before, moved_before;
    bool drained; /* its decode worker was told to go */
    uint64_t moved_at_drain;
    bool soon;
    bool struck;
} cell;

/* --------------------------------------------------------------------------- reaching ---- */

static void question(bt_cluster_request *r)
{
    *r = (bt_cluster_request){
        .n_prompt = PROMPT_TOKENS,
        .temperature = 1,
        .repetition_penalty = 1.1F,
        .seed = 99,
        .max_tokens = MAX_TOKENS,
        .logprobs = true,
    };
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        r->prompt[i] = (i * i * 7 + i * 13 + 5) % 256;
    }
}

static bool is_role(uint32_t worker, place role)
{
    return worker % 2 == (role == P ? 0 : 1);
}

/* The worker of a role that has the request; any of that role when none has. */
static uint32_t worker_of(const cell *c, place role)
{
    uint32_t found = role == P ? 0 : 1;
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        bt_worker_health health;
        if (is_role(i, role) && bt_cluster_is_alive(c->cluster, i)) {
            bt_cluster_health(c->cluster, i, &health);
            found = i;
            if (health.runs_open > 0) {
                return i;
            }
        }
    }
    return found;
}

static uint32_t draining_of(const cell *c)
{
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        if (bt_cluster_is_draining(c->cluster, i)) {
            return i;
        }
    }
    return N_WORKERS;
}

/* Where the fault strikes. While a stream moves, the old decode worker acts as P; while D drains,
 * that one is D. */
static uint32_t target_of(const cell *c)
{
    const uint32_t draining = draining_of(c);
    if (draining < N_WORKERS &&
        ((c->state == DRAINING && c->place == D) || (c->state == MIGRATING && c->place == P))) {
        return draining;
    }
    return worker_of(c, c->place);
}

static bool is_reached(cell *c)
{
    bt_cluster *cluster = c->cluster;
    const uint32_t n_tokens = c->request.n_tokens;
    const bool moved = bt_cluster_kv_moved(cluster) > c->moved_before;
    switch (c->state) {
    case PREFILLING:
        return n_tokens == 0 && bt_cluster_kv_announced(cluster) > c->announced_before;
    case PULLING:
        return n_tokens == 0 && moved;
    case FIRST_TOKEN:
        return n_tokens == 1 && !moved;
    case DECODING:
        return n_tokens >= 10 && n_tokens < MAX_TOKENS / 2;
    case DRAINING:
        return c->drained && draining_of(c) < N_WORKERS;
    case MIGRATING:
        return c->drained && bt_cluster_kv_moved(cluster) > c->moved_at_drain;
    default: /* QUEUED: as soon as it was sent */
        return false;
    }
}

static void hold_pulls(cell *c, bool hold)
{
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        if (is_role(i, D) && bt_cluster_is_alive(c->cluster, i)) {
            bt_kv_fault_hold(bt_cluster_kv_fault(c->cluster, i), hold);
        }
    }
}

/* --------------------------------------------------------------------------- striking ---- */

static void strike_worker(cell *c, uint32_t w)
{
    bt_cluster *cluster = c->cluster;
    bt_kv_fault *kv = bt_cluster_kv_fault(cluster, w);
    switch (c->fault) {
    case KILL:
        bt_cluster_kill(cluster, w);
        break;
    case STOP:
    case DELAY:
        bt_cluster_stop(cluster, w, true);
        break;
    case CUT:
        bt_cluster_cut_attach(cluster, w);
        break;
    case CUT_KV:
        bt_kv_fault_cut(kv);
        break;
    case DROP:
        kv->drop_at = kv->frames + 1;
        break;
    case DOUBLE:
        kv->double_at = kv->frames + 1;
        break;
    case CORRUPT:
        kv->flip_at = kv->bytes + 30;
        break;
    default: /* SPOIL */
        kv->spoil_at = kv->parts + 1;
        break;
    }
}

static void strike_router(cell *c)
{
    bt_cluster *cluster = c->cluster;
    switch (c->fault) {
    case KILL:
        bt_cluster_kill_router(cluster);
        break;
    case STOP:
    case DELAY:
        bt_cluster_hold_router(cluster, true);
        break;
    case CUT:
        for (uint32_t i = 0; i < N_WORKERS; i++) {
            if (bt_cluster_is_alive(cluster, i)) {
                bt_cluster_cut_attach(cluster, i);
            }
        }
        break;
    case ALLOCATION:
        bt_fault_fail_nth_own(c->n);
        break;
    default:
        bt_cluster_clock_jump(cluster,
                              c->fault == CLOCK_NEAR ? INT64_C(2000000000) : INT64_C(100000000000));
        break;
    }
}

static void strike_client(cell *c)
{
    if (c->fault == KILL || c->fault == CUT) {
        bt_cluster_cut_clients(c->cluster);
    } else {
        bt_cluster_hold_clients(c->cluster, true);
    }
}

static void strike(cell *c)
{
    c->struck = true;
    switch (c->place) {
    case ROUTER:
        strike_router(c);
        break;
    case CLIENT:
        strike_client(c);
        break;
    default:
        strike_worker(c, target_of(c));
        break;
    }
    if (c->state == FIRST_TOKEN) {
        hold_pulls(c, false);
        if ((c->fault == STOP || c->fault == DELAY) && c->place == D) {
            bt_cluster_stop(c->cluster, target_of(c), true);
        }
    }
}

static void on_soon(void *ctx)
{
    cell *c = ctx;
    c->soon = false;
    if (c->state >= DRAINING && !c->drained && c->request.n_tokens >= 10) {
        c->drained = true;
        c->moved_at_drain = bt_cluster_kv_moved(c->cluster);
        bt_cluster_drain(c->cluster, worker_of(c, D), 5000);
    }
    if (!c->struck && is_reached(c)) {
        strike(c);
    }
}

static void on_seen(void *ctx)
{
    cell *c = ctx;
    if (!c->soon && !c->struck) {
        c->soon = true;
        bt_cluster_soon(c->cluster, on_soon, c);
    }
}

/* ---------------------------------------------------------------------------- healing ---- */

static bool has_no_draining(void *ctx)
{
    const cell *c = ctx;
    return draining_of(c) == N_WORKERS;
}

static bool serves(bt_cluster *cluster)
{
    static bt_cluster_request r;
    question(&r);
    r.n_prompt = 5;
    r.max_tokens = 2;
    bt_cluster_send(cluster, &r);
    bt_cluster_wait_done(cluster, &r);
    return r.code == BT_RPC_OK;
}

static void heal(cell *c)
{
    bt_cluster *cluster = c->cluster;
    if (c->fault == STOP) {
        bt_cluster_run_ms(cluster, STOP_MS);
    } else if (c->fault == DELAY) {
        bt_cluster_run_ms(cluster, DELAY_MS);
    }
    (void)bt_fault_disarm();
    bt_cluster_hold_clients(cluster, false);
    if (!bt_cluster_has_router(cluster)) {
        bt_cluster_restart_router(cluster);
    }
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        if (bt_cluster_is_alive(cluster, i) || bt_cluster_is_draining(cluster, i)) {
            bt_cluster_stop(cluster, i, false);
        } else {
            bt_cluster_restart(cluster, i);
        }
    }
}

static void clean_up(cell *c)
{
    bt_cluster *cluster = c->cluster;
    bt_cluster_watch(cluster, NULL, NULL);
    bt_cluster_wait(cluster, has_no_draining, c);
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        if (!bt_cluster_is_alive(cluster, i)) {
            bt_cluster_restart(cluster, i);
        }
        bt_kv_fault *kv = bt_cluster_kv_fault(cluster, i);
        kv->drop_at = kv->double_at = kv->flip_at = kv->spoil_at = 0;
    }
    bt_cluster_wait_attached(cluster);
    bt_cluster_wait_idle(cluster);
    int tries = 0;
    while (!serves(cluster)) { /* gRPC may not have noticed yet that a connection is gone, and after
                                * a jump of the clock no worker has been heard of for long */
        BT_ASSERT(++tries < 100);
        bt_cluster_run_ms(cluster, 10);
    }
    bt_cluster_wait_idle(cluster);
}

/* --------------------------------------------------------------------------- checking ---- */

static bool is_prefix(const bt_cluster_request *r, const bt_cluster_request *truth)
{
    return r->n_tokens <= truth->n_tokens &&
           memcmp(r->tokens, truth->tokens, r->n_tokens * sizeof r->tokens[0]) == 0;
}

/* What docs/failures.md says. -1: OK or a clear refusal. */
static int expected_code(const cell *c)
{
    if (c->fault == ALLOCATION) {
        return -1;
    }
    if (c->fault == CLOCK_FAR) {
        return BT_RPC_DEADLINE_EXCEEDED;
    }
    if ((c->fault == KILL && (c->place == ROUTER || c->place == CLIENT)) ||
        (c->fault == CUT && c->place == CLIENT)) {
        return BT_RPC_UNAVAILABLE;
    }
    return BT_RPC_OK;
}

static void check(const cell *c, const bt_cluster_request *truth)
{
    const bt_cluster_request *r = &c->request;
    const int code = expected_code(c);
    const bool is_right =
        code == r->code ||
        (code < 0 && (r->code == BT_RPC_OK || r->code == BT_RPC_UNAVAILABLE ||
                      r->code == BT_RPC_RESOURCE_EXHAUSTED || r->code == BT_RPC_INTERNAL));
    const char *differs = r->code == BT_RPC_OK  ? bt_cluster_compare(r, truth)
                          : is_prefix(r, truth) ? NULL
                                                : "what came before the error";
    fprintf(stderr, "cell: %s, %s, %s: code=%d tokens=%" PRIu32 " attempts=%" PRIu32 "%s%s\n",
            fault_names[c->fault], state_names[c->state], place_names[c->place], r->code,
            r->n_tokens, r->attempts, differs != NULL ? " DIFFERS: " : "",
            differs != NULL ? differs : "");
    if (!is_right || differs != NULL) {
        fprintf(stderr, "wanted code %d; message: %s\n", code, r->message);
        abort();
    }
}

/* True: the state was reached, and the fault has struck. */
static bool try_cell(cell *c, const bt_cluster_request *truth)
{
    static uint64_t n_cells;
    bt_cluster *cluster = c->cluster;
    question(&c->request);
    snprintf(c->salt, sizeof c->salt, "cell %" PRIu64, n_cells++);
    c->request.salt = c->salt;
    c->announced_before = bt_cluster_kv_announced(cluster);
    c->moved_before = bt_cluster_kv_moved(cluster);
    c->drained = c->struck = c->soon = false;
    bt_cluster_watch(cluster, on_seen, c);
    if (c->state == FIRST_TOKEN) {
        hold_pulls(c, true);
    }
    if (c->state == QUEUED) { /* for want of a decode worker */
        bt_cluster_kill(cluster, 1);
        bt_cluster_kill(cluster, 3);
    }
    bt_cluster_send(cluster, &c->request);
    if (c->state == QUEUED) {
        bt_cluster_wait_queued(cluster, 1);
        if (c->place == D) {
            bt_cluster_restart(cluster, 1);
        }
        strike(c);
    } else {
        while (!c->struck && !c->request.done) {
            bt_cluster_run_ms(cluster, 1);
        }
    }
    if (!c->struck) {
        hold_pulls(c, false);
    }
    heal(c);
    bt_cluster_wait_done(cluster, &c->request);
    const bool reached = c->struck;
    if (reached) {
        check(c, truth);
    }
    clean_up(c);
    return reached;
}

static void run_fault(fault f, unsigned places)
{
    static bt_cluster_request truth;
    const bt_cluster_options alone = {.n_workers = 1, .workers[0] = {.role = BT_LINK_ROLE_BOTH}};
    bt_cluster *cluster = bt_cluster_create(&alone);
    question(&truth);
    bt_cluster_send(cluster, &truth);
    bt_cluster_wait_done(cluster, &truth);
    BT_ASSERT(truth.code == BT_RPC_OK);
    bt_cluster_destroy(cluster);

    const bt_cluster_worker_options prefill = {.role = BT_LINK_ROLE_PREFILL};
    const bt_cluster_worker_options decode = {.role = BT_LINK_ROLE_DECODE};
    const bt_cluster_options options = {
        .n_workers = N_WORKERS,
        .workers = {prefill, decode, prefill, decode},
        .no_local_prefill = true,
        .queue_time_ms = 50000, /* sanitizers take long to start a worker */
    };
    cluster = bt_cluster_create(&options);
    static cell c;
    const uint32_t n_max = f == ALLOCATION && bt_fault_available() ? ALLOCATIONS : 1;
    for (int s = 0; s < N_STATES; s++) {
        for (int p = 0; p < N_PLACES; p++) {
            for (uint32_t n = 1; n <= n_max && (places & 1U << p); n++) {
                c = (cell){.cluster = cluster,
                           .fault = f,
                           .state = (request_state)s,
                           .place = (place)p,
                           .n = n};
                int tries = 0;
                while (!try_cell(&c, &truth)) {
                    BT_ASSERT(++tries < TRIES); /* the machine was too slow to catch it */
                }
            }
        }
    }
    bt_cluster_destroy(cluster);
}

/* ------------------------------------------------------------------------------ tests ---- */

/* Most of a stop is waiting: each of its places has a process of its own. */
static pid_t children[N_FAULTS][N_PLACES];

static pid_t start(fault f, unsigned places)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        run_fault(f, places);
        _exit(0);
    }
    return child;
}

static int start_all(void **state)
{
    (void)state;
    for (int f = 0; f < N_FAULTS; f++) {
        for (int p = 0; p < N_PLACES; p++) {
            if (f == STOP) {
                children[f][p] = start(STOP, places_of[STOP] & 1U << p);
            } else if (p == 0) {
                children[f][p] = start((fault)f, places_of[f]);
            }
        }
    }
    return 0;
}

static void the_client_sees_what_the_page_says(void **state)
{
    const fault f = *(const fault *)*state;
    for (int p = 0; p < N_PLACES && children[f][p] != 0; p++) {
        int status = -1;
        assert_int_equal(waitpid(children[f][p], &status, 0), children[f][p]);
        assert_int_equal(status, 0);
    }
}

/* ---- full pools and queues: states of their own ---- */

enum { CROWD = 6 };

static void ask_crowd(bt_cluster *cluster, bt_cluster_request crowd[CROWD])
{
    static char salts[CROWD][16];
    for (int i = 0; i < CROWD; i++) {
        question(&crowd[i]);
        crowd[i].n_prompt = 200;
        crowd[i].max_tokens = 60;
        snprintf(salts[i], sizeof salts[i], "%d", i);
        crowd[i].salt = salts[i];
        bt_cluster_send(cluster, &crowd[i]);
    }
}

static void run_crowd(uint32_t prefill_blocks, uint32_t decode_blocks,
                      bt_cluster_request crowd[CROWD])
{
    const bt_cluster_options options = {
        .n_workers = 2,
        .workers = {{.role = BT_LINK_ROLE_PREFILL, .pool_blocks = prefill_blocks},
                    {.role = BT_LINK_ROLE_DECODE, .pool_blocks = decode_blocks}},
        .no_local_prefill = true,
    };
    bt_cluster *cluster = bt_cluster_create(&options);
    ask_crowd(cluster, crowd);
    for (int i = 0; i < CROWD; i++) {
        bt_cluster_wait_done(cluster, &crowd[i]);
        assert_int_equal(crowd[i].code, BT_RPC_OK);
    }
    bt_cluster_wait_idle(cluster);
    bt_cluster_destroy(cluster);
}

static void requests_wait_for_a_full_pool_and_lose_nothing(void **state)
{
    (void)state;
    static bt_cluster_request truth[CROWD];
    static bt_cluster_request crowd[CROWD];
    run_crowd(256, 256, truth);
    const uint32_t few = 20; /* room for one prompt of 13 blocks and its answer of 4 */
    for (int full = 0; full < 2; full++) {
        run_crowd(full == 0 ? few : 256, full == 0 ? 256 : few, crowd);
        for (int i = 0; i < CROWD; i++) {
            assert_null(bt_cluster_compare(&crowd[i], &truth[i]));
        }
    }
}

static bool all_but_two_are_done(void *ctx)
{
    const bt_cluster_request *crowd = ctx;
    int n = 0;
    for (int i = 0; i < CROWD; i++) {
        n += crowd[i].done;
    }
    return n == CROWD - 2;
}

static void a_full_queue_refuses_at_once_and_keeps_what_it_has(void **state)
{
    (void)state;
    static bt_cluster_request crowd[CROWD];
    const bt_cluster_options options = {
        .n_workers = 2,
        .workers = {{.role = BT_LINK_ROLE_PREFILL}, {.role = BT_LINK_ROLE_DECODE}},
        .queue_max = 2,
        .no_local_prefill = true,
    };
    bt_cluster *cluster = bt_cluster_create(&options);
    bt_cluster_kill(cluster, 1);
    bt_cluster_run_ms(cluster, 20);
    ask_crowd(cluster, crowd);
    bt_cluster_wait(cluster, all_but_two_are_done, crowd);
    bt_cluster_restart(cluster, 1);
    uint32_t n_ok = 0;
    for (int i = 0; i < CROWD; i++) {
        bt_cluster_wait_done(cluster, &crowd[i]);
        n_ok += crowd[i].code == BT_RPC_OK;
        if (crowd[i].code != BT_RPC_OK && crowd[i].code != BT_RPC_RESOURCE_EXHAUSTED) {
            fail_msg("code %d: %s", crowd[i].code, crowd[i].message);
        }
    }
    assert_int_equal(n_ok, 2);
    bt_cluster_wait_idle(cluster);
    bt_cluster_destroy(cluster);
}

static fault faults[N_FAULTS] = {KILL,   STOP,    CUT,   CUT_KV,     DROP,       DELAY,
                                 DOUBLE, CORRUPT, SPOIL, ALLOCATION, CLOCK_NEAR, CLOCK_FAR};

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--fault") == 0) {
        for (int f = 0; f < N_FAULTS; f++) {
            if (strcmp(argv[2], fault_names[f]) == 0) {
                run_fault((fault)f, places_of[f]);
                return 0;
            }
        }
        fprintf(stderr, "there is no fault '%s'\n", argv[2]);
        return 2;
    }
    bt_log_init(BT_ERROR, BT_LOG_FORMAT_TEXT, "test");
    struct CMUnitTest tests[N_FAULTS + 2] = {
        [N_FAULTS] = cmocka_unit_test(requests_wait_for_a_full_pool_and_lose_nothing),
        [N_FAULTS + 1] = cmocka_unit_test(a_full_queue_refuses_at_once_and_keeps_what_it_has),
    };
    for (int f = 0; f < N_FAULTS; f++) {
        tests[f] = (struct CMUnitTest){
            .name = fault_names[f],
            .test_func = the_client_sees_what_the_page_says,
            .initial_state = &faults[f],
        };
    }
    return cmocka_run_group_tests(tests, start_all, NULL);
}
