/* SPDX-License-Identifier: Apache-2.0 */
/* How a stream leaves its decode worker (D1) for another one (D2) in mid-stream:
 *
 *   router          D1                           D2
 *     |--- park ---->|                            |   PARKING: D1 ends a step, tells all tokens
 *     |<-- parked ---|  blocks are offered        |
 *     |--- run (decode, attempt + 1, peer D1) --->|   PULLING: leg D becomes FROM, D2 is D
 *     |              |<---------- pull -----------|
 *     |<-- finished -|                            |
 *     |<----------------------------- tokens -----|   NONE: the newest token again, then new ones
 *
 * What goes wrong:
 *   - D1 has nothing to hand over (BT_AGAIN): the request is placed anew. Nothing of it is lost,
 *     since prompt and tokens so far are here.
 *   - D1 can't offer it now, or nobody has room when it is parked: it goes on there (resume), and
 *     is asked again later.
 *   - D1 is lost before it is parked: recovery, as without a move.
 *   - D2 refuses, fails or is lost, or D1 is lost while D2 pulls: recovery from what the router
 *     has, which counts only if new tokens had come.
 *   - The client leaves, a deadline or a stop string ends the stream: both legs are cancelled.
 *
 * The run that D2 gets has all tokens but the newest one, which comes with the blocks as their
 * first token: D2 tells it again, and the reply drops the double. A move takes nothing from
 * recoveries_max or attempts_max.
 *
 * Blocks can't wait in a circle: only workers that take something new are pulled to, only those
 * that take nothing new are pulled from, and a target has room when it is chosen. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/log.h"
#include "router/router_int.h"

enum { MOVES_PER_WORKER = 8 }; /* at a time: the others go on meanwhile */

bool bt_router_can_pull(const bt_router_worker *from, const bt_router_worker *to)
{
    const bt_link_kv_peer *kv = &from->hello.kv;
    const bool same_host = memcmp(kv->boot_id, to->hello.kv.boot_id, sizeof kv->boot_id) == 0;
    return kv->kv_tcp[0] != '\0' || (kv->kv_unix[0] != '\0' && same_host);
}

/* A worker that has room for the stream now, or NULL. `pulls`: from where it is. */
static bt_router_worker *choose_target(bt_router_request *request, const bt_router_worker *from,
                                       bool pulls)
{
    bt_router *router = request->router;
    bt_router_worker_view views[BT_ROUTER_WORKERS_MAX];
    uint32_t slots[BT_ROUTER_WORKERS_MAX];
    const size_t n = bt_router_view(router, request->model_idx, true, views, slots);
    const uint32_t n_output = bt_router_request_count_output(request);
    const bt_router_policy_request wanted = {
        .prompt_tokens = request->n_prompt + n_output,
        .max_tokens = request->sampling.max_tokens - n_output,
        .block_tokens = BT_BLOCK_HASH_TOKENS,
        .has_numerics = true,
        .numerics = from->numerics,
    };
    for (size_t i = 0; i < n; i++) {
        const bt_router_worker *worker = bt_router_registry_at(router->registry, slots[i]);
        views[i].excluded = worker == from ||
                            bt_router_request_has_failed(request, worker->session) ||
                            (pulls && !bt_router_can_pull(from, worker));
    }
    const bt_router_policy_options options = bt_router_policy_options_of(router);
    uint32_t d_idx;
    if (bt_router_policy_move(views, n, &wanted, &options, &d_idx) != BT_OK) {
        return NULL;
    }
    return bt_router_registry_at(router->registry, slots[d_idx]);
}

/* Nothing of it has been computed on D, or not all: another placement costs the least. */
static bool is_early(const bt_router_request *request)
{
    return request->state == BT_ROUTER_REQUEST_PREFILLING;
}

static bool can_move(const bt_router_request *request, const bt_router_worker *from)
{
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    return d->open && d->worker == from &&
           (request->state == BT_ROUTER_REQUEST_PREFILLING ||
            request->state == BT_ROUTER_REQUEST_DECODING);
}

static bool is_all_but_over(const bt_router_request *request)
{
    return bt_router_reply_has_gap(request->reply) || bt_router_reply_has_end(request->reply) ||
           bt_router_request_count_output(request) >= request->sampling.max_tokens;
}

static bool ask_to_park(bt_router_request *request, bt_router_worker *from)
{
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    request->next_attempt =
        (request->next_attempt > d->attempt ? request->next_attempt : d->attempt) + 1;
    if (bt_link_router_park(from->peer, request->id, d->attempt, request->next_attempt) != BT_OK) {
        return false;
    }
    request->move = BT_ROUTER_MOVE_PARKING;
    return true;
}

void bt_router_move_away(bt_router *router, bt_router_worker *worker)
{
    uint32_t n_moves = 0;
    for (uint32_t i = 0; i < router->options.requests_max && worker->n_requests > 0; i++) {
        const bt_router_request *request = &router->requests[i];
        n_moves += (request->move == BT_ROUTER_MOVE_PARKING && can_move(request, worker)) ||
                   (request->move == BT_ROUTER_MOVE_PULLING &&
                    request->legs[BT_ROUTER_LEG_FROM].worker == worker);
    }
    for (uint32_t i = 0; i < router->options.requests_max && worker->n_requests > 0; i++) {
        bt_router_request *request = &router->requests[i];
        if (n_moves >= MOVES_PER_WORKER) {
            return;
        }
        if (request->move != BT_ROUTER_MOVE_NONE || !can_move(request, worker) ||
            request->legs[BT_ROUTER_LEG_FROM].open) {
            continue;
        }
        if (choose_target(request, worker, !is_early(request)) == NULL) {
            continue; /* it ends here, if it can */
        }
        if (is_early(request)) {
            bt_router_request_replace(request, "its decode worker drains");
        } else if (!request->legs[BT_ROUTER_LEG_P].open && !is_all_but_over(request)) {
            n_moves += ask_to_park(request, worker);
        }
    }
}

/* The run of the next attempt to D2; then leg D is D2's, and D1's is FROM. */
static bt_status send_pull(bt_router_request *request, bt_router_worker *to)
{
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    const bt_router_chain *chain = bt_router_prompt_chain(request->prompt, to->hello.numerics_id);
    const int32_t *tokens;
    uint32_t n;
    int32_t *to_free;
    bt_status status = bt_router_request_collect(request, &tokens, &n, &to_free);
    if (status != BT_OK || chain == NULL) {
        free(status == BT_OK ? to_free : NULL);
        return BT_ENOMEM;
    }
    BT_ASSERT(n > request->n_prompt);
    bt_sampling sampling = request->sampling;
    sampling.echo = false; /* it is told */
    bt_link_run run = bt_router_request_run(request);
    run.attempt = request->next_attempt;
    run.mode = BT_LINK_MODE_DECODE;
    run.tokens = tokens;
    run.n_tokens = n - 1; /* the newest one comes with the blocks */
    run.sampling = &sampling;
    run.chain_root = chain->root;
    run.has_peer = true;
    run.peer = d->worker->hello.kv;
    status = bt_router_send_run(to, &run);
    if (status == BT_OK) {
        request->legs[BT_ROUTER_LEG_FROM] = *d;
        bt_router_leg_open(&request->legs[BT_ROUTER_LEG_D], to, run.attempt, 0, run.n_tokens);
    }
    free(to_free);
    return status;
}

static void pull(bt_router_request *request, bt_router_worker *from)
{
    const uint32_t n_output = bt_router_request_count_output(request);
    bt_router_worker *to = choose_target(request, from, true);
    const bt_status status = to == NULL ? BT_AGAIN : send_pull(request, to);
    if (status != BT_OK) {
        bt_link_router_resume(from->peer, request->id, request->legs[BT_ROUTER_LEG_D].attempt);
        request->move = BT_ROUTER_MOVE_NONE;
        return;
    }
    if (n_output > request->n_before) {
        request->n_fruitless = 0;
    }
    request->summary.mixed_numerics |= to->numerics != from->numerics;
    request->move = BT_ROUTER_MOVE_PULLING;
    request->attempt = request->next_attempt;
    request->n_moves++;
    request->n_before = n_output;
    request->n_resumed = n_output - 1;
    bt_router_report_placed(request);
    bt_log(BT_INFO,
           "request moves: req=%s attempt=%" PRIu32 " generated_tokens=%" PRIu32 " from=%s to=%s",
           request->label, request->attempt, n_output, from->hello.kv.name, to->hello.kv.name);
}

void bt_router_on_parked(bt_router *router, bt_router_worker *worker, const bt_link_parked *parked)
{
    bt_router_request *request;
    const bt_router_leg *leg =
        bt_router_find_leg(router, worker, parked->id, parked->attempt, &request);
    if (leg == NULL || leg != &request->legs[BT_ROUTER_LEG_D] ||
        request->move != BT_ROUTER_MOVE_PARKING || request->state == BT_ROUTER_REQUEST_ENDING) {
        return;
    }
    if (parked->status == BT_AGAIN && choose_target(request, worker, false) != NULL) {
        bt_router_request_replace(request, parked->error.text);
        return;
    }
    if (parked->status != BT_OK) {
        request->move = BT_ROUTER_MOVE_NONE;
        return;
    }
    /* Tokens come before the answer, in the same stream; what is told is all that there is. */
    const uint32_t n_output = bt_router_request_count_output(request);
    if (parked->generated_tokens != n_output || bt_router_reply_has_gap(request->reply) ||
        bt_router_request_wants_echo(request)) {
        bt_log(BT_ERROR,
               "parked request makes no sense: req=%s worker=%s tokens=%" PRIu32 " told=%" PRIu32,
               request->label, worker->hello.kv.name, parked->generated_tokens, n_output);
        bt_link_router_resume(worker->peer, request->id, leg->attempt);
        request->move = BT_ROUTER_MOVE_NONE;
        return;
    }
    pull(request, worker);
}

void bt_router_move_done(bt_router_request *request)
{
    request->move = BT_ROUTER_MOVE_NONE;
    bt_router_report_move(request->router, true);
}

void bt_router_move_left(bt_router_request *request)
{
    const bt_router_leg *from = &request->legs[BT_ROUTER_LEG_FROM];
    const bool computed_prompt = !request->legs[BT_ROUTER_LEG_P].used;
    if (computed_prompt && !request->has_first_report && request->n_recoveries == 0 &&
        from->has_report && from->report.status == BT_OK) {
        request->first_report = from->report;
        request->has_first_report = true;
    }
}

void bt_router_move_end(bt_router_request *request)
{
    if (request->move == BT_ROUTER_MOVE_PULLING) {
        bt_router_report_move(request->router, false);
    }
    request->move = BT_ROUTER_MOVE_NONE;
}
