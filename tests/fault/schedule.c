/* SPDX-License-Identifier: Apache-2.0 */
/* Events are messages to clients and KV parts as they are announced and moved: `seen` counts them,
 * and a step of the schedule (a request, a fault) is due after so many, or after so many ms in
 * which nothing else was due. Steps strike from the loop, never inside a callback of what they
 * break. What lasts (a stop, a dead member) is on the list of cures with its own time. */
#include "tests/fault/schedule.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/check.h"
#include "tests/support/fault.h"

enum {
    REQUESTS_MAX = 24,
    STEPS_MAX = 6,
    CURES_MAX = 16,
    BURST = 20,
    QUEUE_MAX = 10, /* so that a burst meets a full queue */
};

typedef enum fault_kind {
    KILL,
    KILL_ROUTER,
    STOP,
    STOP_ROUTER,
    DRAIN,
    CUT_ATTACH,
    HOLD_ATTACH,
    CUT_KV,
    HOLD_KV,
    KV_DROP,
    KV_DOUBLE,
    KV_FLIP,
    KV_SPOIL,
    CUT_CLIENTS,
    HOLD_CLIENTS,
    CANCEL,
    SLOW_CLIENT,
    DEADLINE,
    BURST_OF_REQUESTS,
    ALLOCATION,
    CLOCK,
    CLOCK_FAR,
    N_KINDS,
} fault_kind;

static const char *const kind_names[N_KINDS] = {
    "kill",        "kill router", "stop",         "stop router", "drain",        "cut attach",
    "hold attach", "cut kv",      "hold kv",      "drop frame",  "double frame", "flip byte",
    "spoil part",  "cut clients", "hold clients", "cancel",      "slow client",  "deadline",
    "burst",       "allocation",  "clock",        "clock far",
};

/* How often each is drawn. */
static const unsigned weights[N_KINDS] = {8, 1, 4, 1, 4, 4, 3, 4, 3, 3, 3,
                                          3, 3, 1, 1, 4, 2, 2, 1, 4, 2, 1};

typedef struct step {
    fault_kind kind;
    uint64_t at_event; /* relative to the schedule's start */
    uint64_t at_ms;    /* or then */
    uint32_t place;    /* a worker, or a request */
    uint64_t lasts_ms;
    uint64_t n; /* of the frame, allocation, ... */
    bool struck;
} step;

typedef struct cure {
    void (*fn)(bt_cluster *cluster, uint32_t place);
    uint32_t place;
    int64_t due_ms;
} cure;

typedef struct schedule {
    bt_cluster *cluster;
    const bt_schedule_asks *asks;
    bt_cluster_request *requests; /* [n_requests] */
    uint32_t ask_of[REQUESTS_MAX];
    uint64_t begins_at[REQUESTS_MAX]; /* event */
    bool begun[REQUESTS_MAX];
    bool may_cancel[REQUESTS_MAX];
    bool may_expire[REQUESTS_MAX];
    uint32_t n_requests;
    char salts[REQUESTS_MAX][32];
    step steps[STEPS_MAX];
    uint32_t n_steps;
    cure cures[CURES_MAX];
    uint32_t n_cures;
    uint64_t events;
    int64_t began_ms;
    bool soon;
    bool had[N_KINDS];
    bool armed; /* an allocation is to fail */
    bool allocation_failed;
    char *text;
    size_t text_len;
} schedule;

/* ---------------------------------------------------------------------------- chance ---- */

typedef struct chance {
    uint64_t state;
} chance;

/* SplitMix64. */
static uint64_t draw(chance *c)
{
    uint64_t z = (c->state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Of 0 .. n - 1. */
static uint32_t pick(chance *c, uint32_t n)
{
    return (uint32_t)(draw(c) % n);
}

static uint32_t between(chance *c, uint32_t least, uint32_t most)
{
    return least + pick(c, most - least + 1);
}

static fault_kind pick_kind(chance *c)
{
    unsigned sum = 0;
    for (int i = 0; i < N_KINDS; i++) {
        sum += weights[i];
    }
    unsigned at = pick(c, sum);
    int kind = 0;
    while (at >= weights[kind]) {
        at -= weights[kind++];
    }
    return (fault_kind)kind;
}

/* Few events mostly, many now and then: a schedule has some hundred. */
static uint64_t pick_event(chance *c)
{
    static const uint32_t most[4] = {4, 20, 80, 300};
    return pick(c, most[pick(c, 4)]);
}

/* ------------------------------------------------------------------------------- asks ---- */

static void ask_init(chance *c, bt_cluster_request *r)
{
    *r = (bt_cluster_request){
        .n_prompt = between(c, 1, pick(c, 4) == 0 ? 300 : 80),
        .temperature = pick(c, 2) == 0 ? 0 : 1,
        .repetition_penalty = pick(c, 3) == 0 ? 1.2F : 0,
        .seed = draw(c) >> 1,
        .max_tokens = pick(c, 8) == 0 ? 1 : between(c, 2, pick(c, 4) == 0 ? 120 : 40),
        .logprobs = pick(c, 2) == 0,
        .echo = pick(c, 5) == 0,
    };
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        r->prompt[i] = pick(c, 256);
    }
}

/* One printable character of the text's second half; '\0': it has none. */
static char char_within(const bt_cluster_request *r)
{
    for (size_t i = r->text_len / 2; i < r->text_len; i++) {
        if (r->text[i] > ' ' && r->text[i] < 127) {
            return r->text[i];
        }
    }
    return '\0';
}

/* The same question, not asked yet. */
static void ask_again(bt_cluster_request *to, const bt_cluster_request *from)
{
    memset(to, 0, sizeof *to);
    memcpy(to->prompt, from->prompt, sizeof to->prompt);
    to->n_prompt = from->n_prompt;
    to->temperature = from->temperature;
    to->repetition_penalty = from->repetition_penalty;
    to->seed = from->seed;
    to->max_tokens = from->max_tokens;
    to->stop = from->stop;
    to->logprobs = from->logprobs;
    to->echo = from->echo;
}

static void must_end_well(const bt_cluster_request *r)
{
    if (!r->done || r->code != BT_RPC_OK) {
        fprintf(stderr, "schedule: an undisturbed request failed: %s\n", r->message);
        abort();
    }
}

void bt_schedule_asks_init(bt_schedule_asks *asks)
{
    const bt_cluster_options options = {
        .n_workers = 1,
        .workers[0] = {.role = BT_LINK_ROLE_BOTH},
    };
    bt_cluster *cluster = bt_cluster_create(&options);
    chance c = {.state = 1};
    for (uint32_t i = 0; i < BT_SCHEDULE_ASKS; i++) {
        bt_cluster_request *truth = &asks->truth[i];
        ask_init(&c, truth);
        bt_cluster_send(cluster, truth);
        bt_cluster_wait_done(cluster, truth);
        must_end_well(truth);
        if (pick(&c, 3) == 0 && char_within(truth) != '\0') {
            bt_cluster_request with_stop;
            ask_again(&with_stop, truth);
            asks->stops[i][0] = char_within(truth);
            asks->stops[i][1] = '\0';
            with_stop.stop = asks->stops[i];
            bt_cluster_send(cluster, &with_stop);
            bt_cluster_wait_done(cluster, &with_stop);
            must_end_well(&with_stop);
            *truth = with_stop;
        }
    }
    bt_cluster_destroy(cluster);
}

void bt_schedule_cluster_options(uint64_t seed, bt_cluster_options *options)
{
    static const bt_kv_transport transports[4] = {BT_KV_TRANSPORT_LOOPBACK, BT_KV_TRANSPORT_TCP,
                                                  BT_KV_TRANSPORT_LOOPBACK, BT_KV_TRANSPORT_SHM};
    const bt_kv_transport transport = transports[seed % 4];
    /* A prompt of 300 and its answer fill two thirds of a pool: preemption and waiting are
     * frequent. */
    const bt_cluster_worker_options prefill = {
        .role = BT_LINK_ROLE_PREFILL, .transport = transport, .pool_blocks = 40};
    const bt_cluster_worker_options decode = {
        .role = BT_LINK_ROLE_DECODE, .transport = transport, .pool_blocks = 40};
    *options = (bt_cluster_options){
        .n_workers = 4,
        .workers = {prefill, decode, prefill, decode},
        .queue_max = QUEUE_MAX,
        .worker_timeout_ms = 1000,
        .lease_ms = 400,
        .queue_time_ms = 30000,
        .request_time_ms = 60000,
    };
}

/* ---------------------------------------------------------------------------- drawing ---- */

BT_PRINTF(2, 3)
static void say(schedule *s, const char *fmt, ...)
{
    if (s->text_len + 1 >= BT_SCHEDULE_TEXT_BYTES) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(s->text + s->text_len, BT_SCHEDULE_TEXT_BYTES - s->text_len, fmt, args);
    va_end(args);
    s->text_len += (size_t)n;
    if (s->text_len >= BT_SCHEDULE_TEXT_BYTES) {
        s->text_len = BT_SCHEDULE_TEXT_BYTES - 1;
    }
}

static void add_request(schedule *s, chance *c, uint64_t seed, uint64_t begins_at)
{
    const uint32_t i = s->n_requests++;
    s->ask_of[i] = pick(c, BT_SCHEDULE_ASKS);
    s->begins_at[i] = begins_at;
    bt_cluster_request *r = &s->requests[i];
    ask_again(r, &s->asks->truth[s->ask_of[i]]);
    /* Half of them know nothing that was computed before. */
    if (pick(c, 2) == 0) {
        snprintf(s->salts[i], sizeof s->salts[i], "%" PRIu64 "-%" PRIu32, seed, i);
        r->salt = s->salts[i];
    }
}

static void add_step(schedule *s, chance *c)
{
    step *st = &s->steps[s->n_steps++];
    *st = (step){
        .kind = pick_kind(c),
        .at_event = pick_event(c),
        .at_ms = pick(c, 120),
        .place = pick(c, bt_cluster_n_workers(s->cluster)),
        /* Beyond the worker timeout and the lease, sometimes. */
        .lasts_ms = pick(c, 10) == 0 ? between(c, 1050, 1500) : between(c, 0, 60),
        .n = between(c, 1, pick(c, 2) == 0 ? 4 : 60),
    };
    const uint32_t r = pick(c, s->n_requests);
    switch (st->kind) {
    case CANCEL:
        st->place = r;
        s->may_cancel[r] = true;
        break;
    case SLOW_CLIENT:
        st->place = r;
        s->requests[r].hold = true;
        break;
    case DEADLINE:
        st->place = r;
        s->may_expire[r] = true;
        s->requests[r].deadline_ns = (int64_t)between(c, 1, 60) * 1000000;
        break;
    case BURST_OF_REQUESTS:
        while (s->n_requests < BURST) {
            add_request(s, c, st->n, st->at_event);
        }
        break;
    default:
        break;
    }
}

static void draw_schedule(schedule *s, uint64_t seed)
{
    chance c = {.state = seed * UINT64_C(0xD1342543DE82EF95)};
    const uint32_t n_requests = between(&c, 2, 6);
    for (uint32_t i = 0; i < n_requests; i++) {
        add_request(s, &c, seed, pick(&c, 2) == 0 ? 0 : pick_event(&c) / 4);
    }
    const uint32_t n_steps = between(&c, 1, 3);
    for (uint32_t i = 0; i < n_steps; i++) {
        add_step(s, &c);
    }
}

/* --------------------------------------------------------------------------- striking ---- */

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void add_cure(schedule *s, void (*fn)(bt_cluster *cluster, uint32_t place), uint32_t place,
                     uint64_t after_ms)
{
    BT_ASSERT(s->n_cures < CURES_MAX);
    s->cures[s->n_cures++] = (cure){fn, place, now_ms() + (int64_t)after_ms};
}

static void disarm(schedule *s)
{
    if (s->armed) {
        s->armed = false;
        s->allocation_failed = bt_fault_disarm() || s->allocation_failed;
    }
}

static void cure_dead(bt_cluster *cluster, uint32_t place)
{
    if (!bt_cluster_is_alive(cluster, place)) {
        bt_cluster_restart(cluster, place);
    }
}

static void cure_router(bt_cluster *cluster, uint32_t place)
{
    (void)place;
    if (!bt_cluster_has_router(cluster)) {
        bt_cluster_restart_router(cluster);
    }
}

static void cure_stop(bt_cluster *cluster, uint32_t place)
{
    if (bt_cluster_is_alive(cluster, place)) {
        bt_cluster_stop(cluster, place, false);
    }
}

static void cure_router_stop(bt_cluster *cluster, uint32_t place)
{
    (void)place;
    bt_cluster_hold_router(cluster, false);
}

static void cure_attach(bt_cluster *cluster, uint32_t place)
{
    if (bt_cluster_is_alive(cluster, place)) {
        bt_cluster_hold_attach(cluster, place, false);
    }
}

static void cure_kv(bt_cluster *cluster, uint32_t place)
{
    if (bt_cluster_is_alive(cluster, place)) {
        bt_kv_fault_hold(bt_cluster_kv_fault(cluster, place), false);
    }
}

static void cure_clients(bt_cluster *cluster, uint32_t place)
{
    (void)place;
    bt_cluster_hold_clients(cluster, false);
}

static void strike_worker(schedule *s, const step *st)
{
    bt_cluster *cluster = s->cluster;
    const uint32_t w = st->place;
    if (!bt_cluster_is_alive(cluster, w)) {
        return;
    }
    bt_kv_fault *kv = bt_cluster_kv_fault(cluster, w);
    switch (st->kind) {
    case KILL:
        bt_cluster_kill(cluster, w);
        add_cure(s, cure_dead, w, st->lasts_ms);
        break;
    case DRAIN:
        bt_cluster_drain(cluster, w, st->n * 20);
        add_cure(s, cure_dead, w, st->lasts_ms);
        break;
    case STOP:
        bt_cluster_stop(cluster, w, true);
        add_cure(s, cure_stop, w, st->lasts_ms);
        break;
    case CUT_ATTACH:
        bt_cluster_cut_attach(cluster, w);
        break;
    case HOLD_ATTACH:
        bt_cluster_hold_attach(cluster, w, true);
        add_cure(s, cure_attach, w, st->lasts_ms);
        break;
    case CUT_KV:
        bt_kv_fault_cut(kv);
        break;
    case HOLD_KV:
        bt_kv_fault_hold(kv, true);
        add_cure(s, cure_kv, w, st->lasts_ms);
        break;
    case KV_DROP:
        kv->drop_at = kv->frames + st->n;
        break;
    case KV_DOUBLE:
        kv->double_at = kv->frames + st->n;
        break;
    case KV_FLIP:
        kv->flip_at = kv->bytes + st->n * 13;
        break;
    default: /* KV_SPOIL */
        kv->spoil_at = kv->parts + st->n;
        break;
    }
}

static void strike_other(schedule *s, const step *st)
{
    bt_cluster *cluster = s->cluster;
    switch (st->kind) {
    case KILL_ROUTER:
        if (bt_cluster_has_router(cluster)) {
            bt_cluster_kill_router(cluster);
            add_cure(s, cure_router, 0, st->lasts_ms);
        }
        break;
    case STOP_ROUTER:
        bt_cluster_hold_router(cluster, true);
        add_cure(s, cure_router_stop, 0, st->lasts_ms);
        break;
    case CUT_CLIENTS:
        bt_cluster_cut_clients(cluster);
        break;
    case HOLD_CLIENTS:
        bt_cluster_hold_clients(cluster, true);
        add_cure(s, cure_clients, 0, st->lasts_ms);
        break;
    case CANCEL:
        bt_cluster_cancel(&s->requests[st->place]);
        break;
    case SLOW_CLIENT:
        bt_cluster_resume(&s->requests[st->place]);
        break;
    case ALLOCATION:
        disarm(s);
        bt_fault_fail_nth_own((size_t)st->n);
        s->armed = true;
        break;
    case CLOCK:
        bt_cluster_clock_jump(cluster, (int64_t)st->n * 100000000);
        break;
    case CLOCK_FAR:
        bt_cluster_clock_jump(cluster, INT64_C(100000000000));
        break;
    default: /* DEADLINE, BURST_OF_REQUESTS: in the requests */
        break;
    }
}

static void strike(schedule *s, step *st)
{
    st->struck = true;
    s->had[st->kind] = true;
    say(s, " event %" PRIu64 ": %s %" PRIu32 " n=%" PRIu64 " ms=%" PRIu64 ";", s->events,
        kind_names[st->kind], st->place, st->n, st->lasts_ms);
    if (st->kind <= KV_SPOIL && st->kind != KILL_ROUTER && st->kind != STOP_ROUTER) {
        strike_worker(s, st);
    } else {
        strike_other(s, st);
    }
}

/* What is due now: requests, faults, cures. */
static void advance(void *ctx)
{
    schedule *s = ctx;
    s->soon = false;
    const int64_t now = now_ms();
    bool waits = true; /* no request runs: events do not come by themselves */
    for (uint32_t i = 0; i < s->n_requests; i++) {
        waits = waits && (!s->begun[i] || s->requests[i].done);
    }
    for (uint32_t i = 0; i < s->n_requests; i++) {
        if (!s->begun[i] && (s->events >= s->begins_at[i] || waits)) {
            s->begun[i] = true;
            bt_cluster_send(s->cluster, &s->requests[i]);
        }
    }
    for (uint32_t i = 0; i < s->n_steps; i++) {
        step *st = &s->steps[i];
        if (!st->struck && (s->events >= st->at_event || now - s->began_ms >= (int64_t)st->at_ms)) {
            strike(s, st);
        }
    }
    for (uint32_t i = 0; i < s->n_cures;) {
        if (now >= s->cures[i].due_ms) {
            const cure due = s->cures[i];
            s->cures[i] = s->cures[--s->n_cures];
            disarm(s); /* a member that starts without memory ends at once: no test of ours */
            due.fn(s->cluster, due.place);
        } else {
            i++;
        }
    }
}

static void on_seen(void *ctx)
{
    schedule *s = ctx;
    s->events++;
    if (!s->soon) {
        s->soon = true;
        bt_cluster_soon(s->cluster, advance, s);
    }
}

static bool is_over(void *ctx)
{
    schedule *s = ctx;
    advance(s);
    for (uint32_t i = 0; i < s->n_requests; i++) {
        if (!s->requests[i].done) {
            return false;
        }
    }
    for (uint32_t i = 0; i < s->n_steps; i++) {
        if (!s->steps[i].struck) {
            return false;
        }
    }
    return s->n_cures == 0;
}

/* After the clients' connection broke: calls may fail until gRPC has noticed. */
static void wait_for_service(schedule *s)
{
    bt_cluster_request *r = calloc(1, sizeof *r);
    BT_ASSERT(r != NULL);
    do {
        ask_again(r, &s->asks->truth[0]);
        bt_cluster_send(s->cluster, r);
        bt_cluster_wait_done(s->cluster, r);
    } while (r->code == BT_RPC_UNAVAILABLE);
    must_end_well(r);
    free(r);
}

/* What took long by the clock was not long: forecasts rest on times that a jump has stretched. New
 * members know nothing of it. */
static void renew(schedule *s)
{
    bt_cluster_kill_router(s->cluster);
    for (uint32_t i = 0; i < bt_cluster_n_workers(s->cluster); i++) {
        bt_cluster_kill(s->cluster, i);
        bt_cluster_restart(s->cluster, i);
    }
    bt_cluster_restart_router(s->cluster);
    bt_cluster_wait_attached(s->cluster);
}

static void heal(schedule *s)
{
    disarm(s);
    for (uint32_t i = 0; i < bt_cluster_n_workers(s->cluster); i++) {
        bt_kv_fault *kv = bt_cluster_kv_fault(s->cluster, i);
        kv->drop_at = kv->double_at = kv->flip_at = kv->spoil_at = 0;
    }
}

/* --------------------------------------------------------------------------- checking ---- */

static bool is_prefix(const bt_cluster_request *r, const bt_cluster_request *truth)
{
    return r->n_tokens <= truth->n_tokens &&
           memcmp(r->tokens, truth->tokens, r->n_tokens * sizeof r->tokens[0]) == 0 &&
           r->text_len <= truth->text_len && memcmp(r->text, truth->text, r->text_len) == 0;
}

/* The failure matrix of docs/failures.md, as far as a client may see an error. */
static bool may_end_with(const schedule *s, uint32_t i, int code)
{
    switch (code) {
    case BT_RPC_CANCELLED:
        return s->may_cancel[i];
    case BT_RPC_DEADLINE_EXCEEDED:
        return s->may_expire[i] || s->had[CLOCK_FAR];
    case BT_RPC_RESOURCE_EXHAUSTED:
        /* Also what a forecast refuses: by its deadline, or misled by a clock that jumped. */
        return s->had[BURST_OF_REQUESTS] || s->allocation_failed || s->may_expire[i] ||
               s->had[CLOCK] || s->had[CLOCK_FAR];
    case BT_RPC_UNAVAILABLE:
        return s->had[KILL_ROUTER] || s->had[CUT_CLIENTS] || s->had[CLOCK_FAR] ||
               s->allocation_failed;
    case BT_RPC_INTERNAL:
        return s->allocation_failed;
    default:
        return false;
    }
}

static const char *check(schedule *s, bt_schedule_counts *counts)
{
    for (uint32_t i = 0; i < s->n_requests; i++) {
        const bt_cluster_request *r = &s->requests[i];
        const bt_cluster_request *truth = &s->asks->truth[s->ask_of[i]];
        counts->requests++;
        counts->retried += r->attempts > 1;
        if (r->code == BT_RPC_OK) {
            counts->ended_ok++;
            const char *differs = bt_cluster_compare(r, truth);
            if (differs != NULL) {
                say(s,
                    " request %" PRIu32 " (ask %" PRIu32 ") differs: %s; tokens %" PRIu32
                    " of %" PRIu32 ", echoed %" PRIu32 " of %" PRIu32 ", attempts %" PRIu32,
                    i, s->ask_of[i], differs, r->n_tokens, truth->n_tokens, r->n_echoed,
                    truth->n_echoed, r->attempts);
                return "a request that ended well differs from the undisturbed run";
            }
            continue;
        }
        counts->ended_otherwise++;
        if (!is_prefix(r, truth)) {
            say(s, " request %" PRIu32 " (ask %" PRIu32 ")", i, s->ask_of[i]);
            return "what came before an error is no prefix of the undisturbed run";
        }
        if (!may_end_with(s, i, r->code)) {
            say(s, " request %" PRIu32 " (ask %" PRIu32 ") ended with %d: %s", i, s->ask_of[i],
                r->code, r->message);
            return "a request ended with an error that no fault explains";
        }
    }
    return NULL;
}

const char *bt_schedule_run(bt_cluster *cluster, const bt_schedule_asks *asks, uint64_t seed,
                            char text[BT_SCHEDULE_TEXT_BYTES], bt_schedule_counts *counts)
{
    schedule s = {.cluster = cluster, .asks = asks, .text = text, .began_ms = now_ms()};
    s.requests = calloc(REQUESTS_MAX, sizeof *s.requests);
    BT_ASSERT(s.requests != NULL);
    text[0] = '\0';
    draw_schedule(&s, seed);
    say(&s, "%" PRIu32 " requests;", s.n_requests);
    bt_cluster_watch(cluster, on_seen, &s);
    bt_cluster_wait(cluster, is_over, &s);
    heal(&s);
    bt_cluster_watch(cluster, NULL, NULL);
    const bool jumped = s.had[CLOCK] || s.had[CLOCK_FAR];
    if (jumped) {
        renew(&s);
    }
    if (s.had[KILL_ROUTER] || s.had[CUT_CLIENTS] || jumped) {
        wait_for_service(&s);
    }
    const int64_t over_ms = now_ms();
    bt_cluster_wait_idle(cluster);
    const int64_t idle_ms = now_ms() - over_ms;
    counts->idle_ms_max = idle_ms > counts->idle_ms_max ? idle_ms : counts->idle_ms_max;
    counts->schedules++;
    counts->allocations_failed += s.allocation_failed;
    const char *wrong = check(&s, counts);
    free(s.requests);
    return wrong;
}
