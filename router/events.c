/* SPDX-License-Identifier: Apache-2.0 */
/* What workers say about requests: tokens, ends, and losses. Events name their run's (id, attempt),
 * so that what an older attempt still says is told apart and dropped. */
#include <inttypes.h>
#include <stdio.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "router/router_int.h"

enum { LOGS_PER_S = 5 };

bt_router_leg *bt_router_find_leg(bt_router *router, const bt_router_worker *worker,
                                  bt_request_id id, uint32_t attempt, bt_router_request **out)
{
    bt_router_request *request = bt_router_request_find(router, id);
    if (request != NULL) {
        for (int i = 0; i < BT_ROUTER_LEGS; i++) {
            bt_router_leg *leg = &request->legs[i];
            if (leg->open && leg->worker == worker && leg->attempt == attempt) {
                *out = request;
                return leg;
            }
        }
    }
    router->counts.late_events++;
    return NULL;
}

/* The prompt is computed: it is no load of a prefill queue any more. */
static void settle_prefill(bt_router_request *request)
{
    for (int i = 0; i < BT_ROUTER_LEGS; i++) {
        bt_router_leg *leg = &request->legs[i];
        if (leg->open && leg->prefill_tokens > 0) {
            bt_router_registry_unbind(leg->worker, leg->prefill_tokens, 0);
            bt_router_registry_bind(leg->worker, 0, 0);
            leg->prefill_tokens = 0;
            bt_wake_ring(request->router->queue_wake);
        }
    }
}

static void check_mismatches(bt_router_request *request, const bt_router_worker *worker)
{
    const uint64_t n = bt_router_reply_mismatches(request->reply);
    if (n > request->n_mismatches) {
        bt_log_limited(&request->router->mismatch_limit, LOGS_PER_S, BT_ERROR,
                       "token differs from its duplicate: req=%s worker=%s attempt=%" PRIu32
                       " n=%" PRIu64,
                       request->label, worker->hello.kv.name, request->attempt, n);
        request->router->counts.mismatches += n - request->n_mismatches;
        request->n_mismatches = n;
    }
}

/* D said that it is through: complete, unless an earlier token is on its way from P. */
static void finish_decode(bt_router_request *request)
{
    const bt_router_leg *p = &request->legs[BT_ROUTER_LEG_P];
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    const bool has_token = bt_router_request_count_output(request) > request->n_resumed;
    const bool is_whole = (has_token || request->sampling.max_tokens == 0) &&
                          !bt_router_reply_has_gap(request->reply);
    if (is_whole) {
        request->summary.has_stop_token = d->report.has_stop_token;
        request->summary.stop_token = d->report.stop_token;
        bt_router_request_complete(request, d->report.reason);
    } else if (p->open) {
        request->decode_done = true;
    } else {
        bt_router_leg_failed(request, BT_ROUTER_LEG_P, BT_EPROTOCOL, "not all of its tokens came",
                             false);
    }
}

/* What follows from tokens; the request may be gone afterwards. */
static void after_tokens(bt_router_request *request, bool is_prompt, uint32_t n_output_before)
{
    const uint32_t n_output = bt_router_request_count_output(request);
    if (n_output > n_output_before) {
        const int64_t now_ns = bt_clock_now_ns();
        bt_router_report_tokens(request, now_ns);
        request->last_token_ns = now_ns;
    }
    if (n_output > 0 && !is_prompt) {
        if (request->state == BT_ROUTER_REQUEST_PREFILLING) {
            request->state = BT_ROUTER_REQUEST_DECODING;
            settle_prefill(request);
            bt_router_request_arm(request);
        }
        if (request->first_token_ns == 0) {
            request->first_token_ns = request->last_token_ns;
            bt_router_note_wait(request, request->first_token_ns - request->received_ns);
        }
        bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
        if (d->open && !d->decoding) {
            d->decoding = true;
            bt_router_registry_decoding(d->worker, true);
        }
    }
    const bool waits_for_echo =
        bt_router_reply_lacks_prompt(request->reply) &&
        request->legs[request->legs[BT_ROUTER_LEG_P].used ? BT_ROUTER_LEG_P : BT_ROUTER_LEG_D].open;
    if (bt_router_reply_stop_idx(request->reply) >= 0 && !waits_for_echo) {
        for (int i = 0; i < BT_ROUTER_LEGS; i++) {
            const bt_router_leg *leg = &request->legs[i];
            if (leg->open) {
                bt_link_router_cancel(leg->worker->peer, request->id, leg->attempt);
            }
        }
        bt_router_request_complete(request, BT_FINISH_STOP);
        return;
    }
    bt_error err;
    bt_router_request_count_unread(request, false);
    if (bt_router_request_check_unread(request, &err) != BT_OK) {
        bt_router_request_fail(request, BT_EABORTED, "%s", err.text);
        return;
    }
    if (request->decode_done) {
        finish_decode(request);
        return;
    }
    bt_router_request_notify(request);
}

void bt_router_on_tokens(bt_router *router, bt_router_worker *worker, const bt_link_tokens *tokens)
{
    bt_router_request *request;
    bt_router_leg *leg = bt_router_find_leg(router, worker, tokens->id, tokens->attempt, &request);
    if (leg == NULL || request->state == BT_ROUTER_REQUEST_ENDING) {
        return;
    }
    if (bt_clock_now_ns() >= request->deadline_ns) { /* its timer has not rung: the clock jumped */
        bt_router_request_on_timer(request);
        return;
    }
    bt_status status;
    const uint32_t n_output = bt_router_request_count_output(request);
    if (tokens->is_prompt) {
        status =
            bt_router_reply_push_prompt(request->reply, tokens->first_index, tokens->results,
                                        tokens->n_results, bt_router_prompt_added(request->prompt));
    } else {
        status = bt_router_reply_push(request->reply, tokens->first_index, tokens->results,
                                      tokens->n_results);
    }
    check_mismatches(request, worker);
    if (status == BT_ENOMEM) {
        bt_router_request_fail(request, status, "the router is out of memory");
        return;
    }
    if (status != BT_OK) {
        bt_log_limited(&router->malformed_limit, LOGS_PER_S, BT_ERROR,
                       "tokens make no sense: req=%s worker=%s first_index=%" PRIu32 " n=%" PRIu32,
                       request->label, worker->hello.kv.name, tokens->first_index,
                       tokens->n_results);
        bt_link_router_cancel(worker->peer, request->id, tokens->attempt);
        const int leg_idx = (int)(leg - request->legs);
        bt_router_leg_unbind(request, leg);
        bt_router_leg_failed(request, leg_idx, BT_EPROTOCOL, "it sent tokens that make no sense",
                             false);
        return;
    }
    if (request->move == BT_ROUTER_MOVE_PULLING && leg == &request->legs[BT_ROUTER_LEG_D]) {
        bt_router_move_done(request);
    }
    after_tokens(request, tokens->is_prompt, n_output);
}

/* P is through and D goes on, or the first token was the last. */
static void finish_prefill(bt_router_request *request, const bt_link_finished *finished)
{
    const bt_router_leg *d = &request->legs[BT_ROUTER_LEG_D];
    const bool has_token = bt_router_request_count_output(request) > request->n_resumed ||
                           request->sampling.max_tokens == 0;
    if (!has_token) {
        bt_router_leg_failed(request, BT_ROUTER_LEG_P, BT_EPROTOCOL, "it finished without a token",
                             false);
        return;
    }
    if (finished->reason == BT_FINISH_STOP || finished->reason == BT_FINISH_LENGTH || !d->used) {
        request->summary.has_stop_token = finished->has_stop_token;
        request->summary.stop_token = finished->stop_token;
        if (d->open) {
            bt_link_router_cancel(d->worker->peer, request->id, d->attempt);
        }
        bt_router_request_complete(request, finished->reason == BT_FINISH_NONE ? BT_FINISH_LENGTH
                                                                               : finished->reason);
        return;
    }
    if (request->decode_done) {
        finish_decode(request); /* what is missing now never comes */
    } else if (!d->open) {      /* D said that the first token was the last one */
        bt_router_leg_failed(request, BT_ROUTER_LEG_P, BT_EPROTOCOL, "it finished without a reason",
                             false);
    }
}

void bt_router_on_finished(bt_router *router, bt_router_worker *worker,
                           const bt_link_finished *finished)
{
    bt_router_request *request;
    bt_router_leg *leg =
        bt_router_find_leg(router, worker, finished->id, finished->attempt, &request);
    if (leg == NULL) {
        return;
    }
    const int leg_idx = (int)(leg - request->legs);
    leg->report = *finished;
    leg->has_report = true;
    bt_router_leg_unbind(request, leg);
    if (request->state == BT_ROUTER_REQUEST_ENDING) {
        bt_router_request_check_ending(request);
        return;
    }
    if (leg_idx == BT_ROUTER_LEG_FROM) {
        bt_router_move_left(request);
        return;
    }
    if (finished->status != BT_OK && finished->draining) {
        worker->load.draining = true;
        bt_router_leg_refused(request, leg_idx, finished->error.text);
        return;
    }
    if (finished->status != BT_OK) {
        const bool has_text = finished->error.text[0] != '\0';
        bt_router_leg_failed(request, leg_idx, finished->status,
                             has_text ? finished->error.text : bt_status_text(finished->status),
                             false);
        return;
    }
    if (finished->reason == BT_FINISH_CANCELLED || finished->reason == BT_FINISH_ERROR) {
        bt_router_leg_failed(request, leg_idx, BT_ECANCELLED, "it gave the request up", false);
        return;
    }
    if (leg_idx == BT_ROUTER_LEG_P) {
        finish_prefill(request, finished);
        return;
    }
    if (finished->reason == BT_FINISH_NONE && request->legs[BT_ROUTER_LEG_P].open) {
        return; /* the first token was the last: why is P's to tell, which may come later */
    }
    if (finished->reason == BT_FINISH_NONE) {
        bt_router_leg_failed(request, leg_idx, BT_EPROTOCOL, "it finished without a reason", false);
        return;
    }
    finish_decode(request);
}

void bt_router_on_worker_lost(bt_router *router, bt_router_worker *worker, const char *reason,
                              bool is_gone)
{
    for (uint32_t i = 0; i < router->options.requests_max; i++) {
        bt_router_request *request = &router->requests[i];
        if (request->state == BT_ROUTER_REQUEST_FREE) {
            continue;
        }
        for (int k = 0; k < BT_ROUTER_LEGS; k++) {
            bt_router_leg *leg = &request->legs[k];
            if (leg->open && leg->worker == worker) {
                if (!is_gone) {
                    bt_link_router_cancel(worker->peer, request->id, leg->attempt);
                }
                bt_router_leg_unbind(request, leg);
                char text[160];
                snprintf(text, sizeof text, "%s%.120s", is_gone ? "it is gone: " : "", reason);
                if (k == BT_ROUTER_LEG_FROM && request->state != BT_ROUTER_REQUEST_ENDING) {
                    bt_router_move_left(request);
                } else if (bt_router_worker_is_draining(worker)) {
                    bt_router_leg_refused(request, k, text); /* it may never have seen the run */
                } else {
                    bt_router_leg_failed(request, k, BT_EPEER, text, true);
                }
                break; /* the request may be in other hands now */
            }
        }
    }
    BT_ASSERT(worker->n_requests == 0);
}
