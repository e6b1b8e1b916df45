/* SPDX-License-Identifier: Apache-2.0 */
/* What follows when an attempt fails, or can't go on where it is.
 *
 * An attempt has up to two legs, P and D (a request that is not split has one). Both runs are
 * sent at once under one (id, attempt), and every event names them, so what an older attempt
 * still says is told apart and dropped. What a leg's end means:
 *
 *   leg, its end                          it brought no token      it brought some
 *   P  ok, goes on at D                   D decides                D decides
 *   P  ok, the first token was the last   complete                 complete
 *   P  failed or lost                     retry without this P     D decides
 *   D  ok                                 wait for P's token       complete
 *   D  failed: its peer                   retry without this P     recover without this P
 *   D  failed or lost                     retry without this D     recover without this D
 *   any: the request itself is wrong      fail                     fail
 *
 * A third leg, FROM, is the decode worker that holds a stream while D pulls it (move.c): however it
 * ends, D decides.
 *
 * "Without" is a preference: with nobody else left, the policy takes a failed worker again.
 *
 * A retry and a recovery are one thing, the next attempt: its run has the prompt and the tokens so
 * far, and its first token has the index of the next one. They are counted apart: attempts_max
 * bounds the attempts in a row that bring nothing, recoveries_max how often a stream breaks off
 * that had got on. A stream that broke off behind its last token is complete. If parts of an
 * echoed prompt are missing yet, the attempt begins from the start: what it says again is the
 * same, and dropped. */
#include <inttypes.h>

#include "common/check.h"
#include "common/log.h"
#include "router/router_int.h"

/* Failures that every worker would answer alike. */
static bool is_the_requests_own(bt_status status)
{
    return status == BT_EINVAL || status == BT_ERANGE || status == BT_EUNSUPPORTED ||
           status == BT_EDEADLINE || status == BT_EPERMISSION;
}

/* What the prefill worker of the first attempt that got on said, for the usage. */
void bt_router_request_keep_report(bt_router_request *request)
{
    const bt_router_leg *p = &request->legs[BT_ROUTER_LEG_P];
    const bt_router_leg *leg = p->used ? p : &request->legs[BT_ROUTER_LEG_D];
    const bool is_first = request->n_recoveries == 0 && !request->has_first_report;
    if (is_first && leg->has_report && leg->report.status == BT_OK) {
        request->first_report = leg->report;
        request->has_first_report = true;
    }
}

/* All attempts are used up. Refused for lack of room is the client's business: it may wait. */
void bt_router_request_give_up(bt_router_request *request)
{
    const uint32_t n_output = bt_router_request_count_output(request);
    if (n_output > 0) {
        bt_router_request_fail(request, BT_EPEER,
                               "the reply broke off after %" PRIu32 " tokens and could not be "
                               "resumed (recoveries: %" PRIu32 ", attempts: %" PRIu32 "); the last "
                               "reason: %.120s",
                               n_output, request->n_recoveries, request->attempt,
                               request->last_failure.text);
        return;
    }
    const bt_status status =
        request->last_failure_status == BT_EEXHAUSTED ? BT_EEXHAUSTED : BT_EPEER;
    bt_router_request_fail(request, status,
                           "no worker could run this request in %" PRIu32
                           " attempts; the last one: %.150s",
                           request->attempt, request->last_failure.text);
}

static void retry(bt_router_request *request, uint64_t bad_session)
{
    bt_router *router = request->router;
    bt_router_request_note_failed(request, bad_session);
    bt_router_report_attempt_failed(request, request->last_failure.text);
    bt_router_request_close_legs(request);
    const uint32_t n_output = bt_router_request_count_output(request);
    const bool is_recovery = n_output > request->n_before;
    if (is_recovery && request->n_recoveries >= router->options.recoveries_max) {
        bt_router_request_give_up(request);
        return;
    }
    if (is_recovery) {
        bt_router_request_keep_report(request);
        request->n_recoveries++;
        request->n_fruitless = 0;
    }
    if (request->n_fruitless >= router->options.attempts_max) {
        bt_router_request_give_up(request);
        return;
    }
    bt_router_report_retry(router, is_recovery);
    bt_log(BT_WARN,
           "request retried: req=%s id=%016" PRIx64 "%016" PRIx64 " attempt=%" PRIu32
           " recoveries=%" PRIu32 " generated_tokens=%" PRIu32 " why=\"%s\"",
           request->label, request->id.hi, request->id.lo, request->attempt, request->n_recoveries,
           n_output, request->last_failure.text);
    bt_router_request_enqueue(request);
    bt_wake_ring(router->queue_wake);
}

void bt_router_request_replace(bt_router_request *request, const char *why)
{
    bt_router *router = request->router;
    const uint32_t n_output = bt_router_request_count_output(request);
    if (n_output > request->n_before) {
        bt_router_request_keep_report(request);
        request->n_fruitless = 0;
    } else if (request->n_fruitless > 0) {
        request->n_fruitless--; /* it is no attempt's fault */
    }
    bt_router_report_attempt_failed(request, why);
    bt_router_request_close_legs(request);
    bt_log(BT_INFO,
           "request placed anew: req=%s attempt=%" PRIu32 " generated_tokens=%" PRIu32
           " why=\"%s\"",
           request->label, request->attempt, n_output, why);
    bt_router_request_enqueue(request);
    bt_wake_ring(router->queue_wake);
}

/* All tokens had come before their worker went, only its last word had not. */
static bool complete_if_over(bt_router_request *request)
{
    uint32_t n_output;
    const int32_t *tokens = bt_router_reply_tokens(request->reply, &n_output);
    if (n_output == 0 || bt_router_reply_has_gap(request->reply)) {
        return false;
    }
    const bool has_end = bt_router_reply_has_end(request->reply);
    if (!has_end && n_output < request->sampling.max_tokens) {
        return false;
    }
    if (has_end) {
        request->summary.has_stop_token = true;
        request->summary.stop_token = tokens[n_output - 1];
    }
    bt_router_request_complete(request, has_end ? BT_FINISH_STOP : BT_FINISH_LENGTH);
    return true;
}

/* The prefill worker is gone behind the first token: D has the KV already, or will say that it has
 * not. */
static bool is_left_to_decode(const bt_router_request *request, int leg_idx)
{
    return leg_idx == BT_ROUTER_LEG_P && request->legs[BT_ROUTER_LEG_D].open &&
           bt_router_request_count_output(request) > request->n_resumed &&
           !bt_router_reply_lacks_prompt(request->reply);
}

void bt_router_leg_failed(bt_router_request *request, int leg_idx, bt_status status,
                          const char *text, bool is_lost)
{
    if (request->state == BT_ROUTER_REQUEST_ENDING) {
        bt_router_request_check_ending(request);
        return;
    }
    BT_ASSERT(request->state == BT_ROUTER_REQUEST_PREFILLING ||
              request->state == BT_ROUTER_REQUEST_DECODING);
    const bt_router_leg *leg = &request->legs[leg_idx];
    const bt_router_leg *p = &request->legs[BT_ROUTER_LEG_P];
    const uint32_t n_output = bt_router_request_count_output(request);
    request->last_failure_status =
        bt_error_set(&request->last_failure, status, "%s worker '%s': %.160s",
                     leg_idx == BT_ROUTER_LEG_P ? "prefill" : "decode", leg->name, text);
    if (is_the_requests_own(status)) {
        bt_router_request_fail(request, status, "%s", text);
        return;
    }
    if (is_left_to_decode(request, leg_idx) || complete_if_over(request)) {
        return;
    }
    const bt_router_leg *from = &request->legs[BT_ROUTER_LEG_FROM];
    const bt_router_leg *peer = from->used ? from : p;
    const bool peers_fault = leg_idx == BT_ROUTER_LEG_D && !is_lost && peer->used &&
                             n_output <= request->n_resumed + 1 && /* D was not decoding yet */
                             bt_status_scope_of(status) == BT_STATUS_SCOPE_PEER;
    if (peers_fault && peer->has_report && peer->report.draining) {
        bt_router_request_replace(request, request->last_failure.text);
        return;
    }
    retry(request, peers_fault ? peer->session : leg->session);
}

/* A leg's worker drains, and gave the run back: that is no failure of anybody's. */
void bt_router_leg_refused(bt_router_request *request, int leg_idx, const char *text)
{
    if (request->state == BT_ROUTER_REQUEST_ENDING) {
        bt_router_request_check_ending(request);
        return;
    }
    if (!is_left_to_decode(request, leg_idx) && !complete_if_over(request)) {
        bt_router_request_replace(request, text);
    }
}
