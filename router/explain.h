/* SPDX-License-Identifier: Apache-2.0 */
/* explain.h - what became of a request: this router's own memory and that of its workers.
 *
 * The question is a request's id in hex or its label. A request that lives or is remembered here
 * (history.h) is asked for by its id at all attached workers; another one, of before a restart or
 * of another router, by the words of the question.
 *
 * Threading: loop thread only.
 * Memory:    one heap object for each question, at most BT_ROUTER_EXPLAINS_MAX at a time.
 */
#ifndef BT_ROUTER_EXPLAIN_H
#define BT_ROUTER_EXPLAIN_H

#include "router/history.h"
#include "router/registry.h"

enum {
    BT_ROUTER_EXPLAINS_MAX = 8,
    BT_ROUTER_EXPLAIN_RUNS_MAX = 64,
    BT_ROUTER_EXPLAIN_WAIT_MS = 1000, /* for workers' answers */
};

typedef struct bt_router bt_router;

typedef struct bt_router_explained_run {
    char worker[BT_LINK_NAME_MAX];
    bt_link_timeline timeline;
} bt_router_explained_run;

typedef struct bt_router_explanation {
    bool has_request; /* this router knows of it: `request` holds */
    bt_router_timeline request;
    bt_router_explained_run runs[BT_ROUTER_EXPLAIN_RUNS_MAX];
    uint32_t n_runs;
    uint32_t n_silent; /* workers that did not answer in time */
} bt_router_explanation;

/* status is BT_OK, or BT_EPEER: the router stops. *explanation is valid during the call. */
typedef void (*bt_router_explain_fn)(bt_status status, const bt_router_explanation *explanation,
                                     void *ctx);

typedef struct bt_router_explains bt_router_explains;

/* `history`: room for so many ended requests. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_explains_create(bt_router *router, uint32_t history,
                                                  bt_router_explains **out);
void bt_router_explains_destroy(bt_router_explains *explains);

/* Where ended requests are remembered. */
bt_router_history *bt_router_explains_history(bt_router_explains *explains);

/* done comes exactly once, perhaps before this returns, unless it fails. BT_AGAIN: too many
 * questions are open. BT_EPEER: the router has stopped. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_explain(bt_router *router, const char *request,
                                          bt_router_explain_fn done, void *ctx);

/* The worker's answer. */
void bt_router_explains_answer(bt_router_explains *explains, const bt_router_worker *worker,
                               uint64_t number, const bt_link_timeline *timelines, size_t n);

/* Regularly: gives up waiting where it is time to. */
void bt_router_explains_tick(bt_router_explains *explains);

/* Answers all open questions with BT_EPEER. */
void bt_router_explains_stop(bt_router_explains *explains);

#endif /* BT_ROUTER_EXPLAIN_H */
