/* SPDX-License-Identifier: Apache-2.0 */
/* A question waits for the workers that were attached when it came: each counts as answered once,
 * by its session, and a worker that goes away or says nothing is given up with the tick. */
#include "router/explain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "router/router_int.h"

typedef struct question {
    uint64_t number;
    bt_router_explain_fn done;
    void *ctx;
    int64_t deadline_ns;
    uint64_t waits_for[BT_ROUTER_WORKERS_MAX]; /* sessions, by slot; 0: for none */
    uint32_t n_waits;
    bt_router_explanation explanation;
} question;

struct bt_router_explains {
    bt_router *router;
    bt_router_history *history;
    uint64_t n_asked;
    bool stopped;
    question *open[BT_ROUTER_EXPLAINS_MAX]; /* NULL: free */
};

bt_status bt_router_explains_create(bt_router *router, uint32_t history, bt_router_explains **out)
{
    bt_router_explains *explains = calloc(1, sizeof *explains);
    if (explains == NULL) {
        return BT_ENOMEM;
    }
    const bt_status status = bt_router_history_create(history, &explains->history);
    if (status != BT_OK) {
        free(explains);
        return status;
    }
    explains->router = router;
    *out = explains;
    return BT_OK;
}

void bt_router_explains_destroy(bt_router_explains *explains)
{
    if (explains == NULL) {
        return;
    }
    for (size_t i = 0; i < BT_ROUTER_EXPLAINS_MAX; i++) {
        BT_ASSERT(explains->open[i] == NULL);
    }
    bt_router_history_destroy(explains->history);
    free(explains);
}

bt_router_history *bt_router_explains_history(bt_router_explains *explains)
{
    return explains->history;
}

static void finish(bt_router_explains *explains, size_t idx, bt_status status)
{
    question *q = explains->open[idx];
    explains->open[idx] = NULL;
    q->explanation.n_silent = q->n_waits;
    q->done(status, &q->explanation, q->ctx);
    free(q);
}

/* A living request first, then the newest of those that ended. */
static void fill_request(const bt_router_explains *explains, const char *request, question *q)
{
    const bt_router *router = explains->router;
    for (uint32_t i = 0; i < router->options.requests_max; i++) {
        const bt_router_request *living = &router->requests[i];
        if (living->state != BT_ROUTER_REQUEST_FREE && living->state != BT_ROUTER_REQUEST_DONE &&
            bt_link_is_request(request, living->id, living->label)) {
            bt_router_report_timeline(living, &q->explanation.request);
            q->explanation.has_request = true;
            return;
        }
    }
    const bt_router_timeline *ended = bt_router_history_find(explains->history, request);
    if (ended != NULL) {
        q->explanation.request = *ended;
        q->explanation.has_request = true;
    }
}

static void ask_workers(const bt_router_explains *explains, const char *request, question *q)
{
    char words[BT_ROUTER_LABEL_MAX];
    if (q->explanation.has_request) {
        const bt_request_id id = q->explanation.request.id;
        bt_link_request_hex(id, words);
    } else {
        snprintf(words, sizeof words, "%s", request);
    }
    for (uint32_t i = 0; i < BT_ROUTER_WORKERS_MAX; i++) {
        const bt_router_worker *worker = bt_router_registry_at(explains->router->registry, i);
        if (worker == NULL) {
            continue;
        }
        /* One that can't be asked counts as silent. */
        q->n_waits++;
        if (bt_link_router_explain(worker->peer, q->number, words) == BT_OK) {
            q->waits_for[i] = worker->session;
        }
    }
}

bt_status bt_router_explain(bt_router *router, const char *request, bt_router_explain_fn done,
                            void *ctx)
{
    bt_router_explains *explains = router->explains;
    if (explains->stopped) {
        return BT_EPEER; /* nobody would end it */
    }
    size_t idx = 0;
    while (idx < BT_ROUTER_EXPLAINS_MAX && explains->open[idx] != NULL) {
        idx++;
    }
    if (idx == BT_ROUTER_EXPLAINS_MAX) {
        return BT_AGAIN;
    }
    question *q = calloc(1, sizeof *q);
    if (q == NULL) {
        return BT_ENOMEM;
    }
    q->number = ++explains->n_asked;
    q->done = done;
    q->ctx = ctx;
    q->deadline_ns = bt_clock_now_ns() + INT64_C(1000000) * BT_ROUTER_EXPLAIN_WAIT_MS;
    explains->open[idx] = q;
    fill_request(explains, request, q);
    ask_workers(explains, request, q);
    if (q->n_waits == 0) {
        finish(explains, idx, BT_OK);
    }
    return BT_OK;
}

void bt_router_explains_answer(bt_router_explains *explains, const bt_router_worker *worker,
                               uint64_t number, const bt_link_timeline *timelines, size_t n)
{
    for (size_t i = 0; i < BT_ROUTER_EXPLAINS_MAX; i++) {
        question *q = explains->open[i];
        if (q == NULL || q->number != number || q->waits_for[worker->slot] != worker->session) {
            continue;
        }
        q->waits_for[worker->slot] = 0;
        q->n_waits--;
        bt_router_explanation *e = &q->explanation;
        for (size_t k = 0; k < n && e->n_runs < BT_ROUTER_EXPLAIN_RUNS_MAX; k++) {
            bt_router_explained_run *run = &e->runs[e->n_runs++];
            memcpy(run->worker, worker->hello.kv.name, sizeof run->worker);
            run->timeline = timelines[k];
        }
        if (q->n_waits == 0) {
            finish(explains, i, BT_OK);
        }
        return;
    }
}

void bt_router_explains_tick(bt_router_explains *explains)
{
    const int64_t now_ns = bt_clock_now_ns();
    for (size_t i = 0; i < BT_ROUTER_EXPLAINS_MAX; i++) {
        if (explains->open[i] != NULL && now_ns >= explains->open[i]->deadline_ns) {
            finish(explains, i, BT_OK);
        }
    }
}

void bt_router_explains_stop(bt_router_explains *explains)
{
    explains->stopped = true;
    for (size_t i = 0; i < BT_ROUTER_EXPLAINS_MAX; i++) {
        if (explains->open[i] != NULL) {
            finish(explains, i, BT_EPEER);
        }
    }
}
