/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a request:
 *
 *   submit()                 computed()             place()
 *      |      TOKENIZING --------------> QUEUED ----------------> PREFILLING
 *      |          |                        ^                        |  |  first token
 *      |          |                        |  retry, recovery:      |  | on_tokens()
 *      |          |                        +--a worker failed-------+  v
 *      |          |                        `---------------------- DECODING
 *      |          |                                                 |  last token, or a stop
 *      |          |  fail(): bad input, deadline, no                v  string: complete()
 *      |          |  worker in time, attempts used up,           ENDING
 *      |          |  slow client                                    |  all reports are in, or
 *      |          v                                                 v  BT_ROUTER_REPORT_WAIT_MS
 *      +---------------------------------------------------------> DONE --> release() --> FREE
 *
 *   abandon() goes from anywhere to FREE, and cancels what runs.
 *
 * Invariants:
 *   1. exactly one of the ends is reported for each request that submit() took;
 *   2. legs are open in PREFILLING, DECODING and ENDING alone;
 *   3. a request is in the queue's list in QUEUED alone;
 *   4. the prompt is not touched while job_running; a slot is not reused before the job is back;
 *   5. notify() comes last: the front may release the request inside.
 * A recovery in the middle of a stream is a retry too: place() sends prompt and tokens so far, and
 * the reply merges by index. Who decides when one is allowed is recovery.c. submit() and computed()
 * are in submit.c.
 *
 * One timer for each slot serves deadline, longest wait in the queue, for reports and for the
 * client to read the rest: at each change of state it is set to the first of those that hold. */
#include "router/router_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"

static const int64_t ms_ns = 1000000;

bt_status bt_router_requests_create(bt_router *router)
{
    const uint32_t n = router->options.requests_max;
    router->requests = calloc(n, sizeof *router->requests);
    router->free_slots = calloc(n, sizeof *router->free_slots);
    if (router->requests == NULL || router->free_slots == NULL) {
        return BT_ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        router->requests[i].router = router;
        router->requests[i].slot = i;
        router->free_slots[i] = n - 1 - i;
    }
    router->n_free = n;
    return BT_OK;
}

/* Gives the heap memory of a request back. */
static void deinit_request(bt_router_request *request)
{
    bt_router_prompt_destroy(request->prompt);
    bt_router_reply_destroy(request->reply);
    free(request->stop_bytes);
    request->prompt = NULL;
    request->reply = NULL;
    request->stop_bytes = NULL;
}

void bt_router_requests_destroy(bt_router *router)
{
    if (router->requests != NULL) {
        for (uint32_t i = 0; i < router->options.requests_max; i++) {
            BT_ASSERT(!router->requests[i].job_running);
            deinit_request(&router->requests[i]);
            bt_timer_destroy(router->requests[i].timer);
        }
    }
    free(router->requests);
    free(router->free_slots);
}

bt_router_request *bt_router_request_find(bt_router *router, bt_request_id id)
{
    const uint32_t slot = (uint32_t)(id.lo & 0xFFFF);
    if (slot >= router->options.requests_max) {
        return NULL;
    }
    bt_router_request *request = &router->requests[slot];
    const bool same = request->state != BT_ROUTER_REQUEST_FREE && request->id.hi == id.hi &&
                      request->id.lo == id.lo;
    return same ? request : NULL;
}

void bt_router_request_free(bt_router_request *request)
{
    bt_router *router = request->router;
    BT_ASSERT(!request->is_waiting);
    BT_ASSERT(!request->job_running);
    bt_router_request_leave_client(request);
    deinit_request(request);
    if (request->timer != NULL) {
        bt_timer_stop(request->timer);
    }
    request->state = BT_ROUTER_REQUEST_FREE;
    request->id = (bt_request_id){0};
    router->free_slots[router->n_free++] = request->slot;
    BT_ASSERT(router->counts.n_live > 0);
    router->counts.n_live--;
}

/* ------------------------------------------------------------------------------ queue ---- */

/* No two are equal: one that is put back is where it was, before the next one. */
static bool goes_before(const bt_router_request *a, const bt_router_request *b)
{
    return a->order_ns != b->order_ns ? a->order_ns < b->order_ns : a->slot < b->slot;
}

void bt_router_request_enqueue(bt_router_request *request)
{
    bt_router *router = request->router;
    BT_ASSERT(!request->is_waiting);
    bt_router_request *after = router->queue_tail;
    while (after != NULL && goes_before(request, after)) {
        after = after->prev;
    }
    request->prev = after;
    request->next = after == NULL ? router->queue_head : after->next;
    *(request->prev == NULL ? &router->queue_head : &request->prev->next) = request;
    *(request->next == NULL ? &router->queue_tail : &request->next->prev) = request;
    request->is_waiting = true;
    request->is_aside = false;
    request->state = BT_ROUTER_REQUEST_QUEUED;
    request->queued_ns = bt_clock_now_ns();
    request->queue_deadline_ns =
        request->queued_ns + (int64_t)router->options.queue_time_ms * ms_ns;
    const int64_t late_ns = request->received_ns + request->ttft_target_ns;
    if (request->ttft_target_ns > 0 && request->first_token_ns == 0 &&
        late_ns < request->queue_deadline_ns) {
        request->queue_deadline_ns = late_ns;
    }
    router->counts.n_queued++;
    bt_router_request_arm(request);
}

static void leave_queue(bt_router_request *request)
{
    bt_router *router = request->router;
    if (!request->is_waiting) {
        return;
    }
    if (router->drain_next == request) {
        router->drain_next = request->next;
    }
    *(request->prev == NULL ? &router->queue_head : &request->prev->next) = request->next;
    *(request->next == NULL ? &router->queue_tail : &request->next->prev) = request->prev;
    request->next = NULL;
    request->prev = NULL;
    request->is_waiting = false;
    BT_ASSERT(router->counts.n_queued > 0);
    router->counts.n_queued--;
}

void bt_router_queue_drain(void *ctx)
{
    bt_router *router = ctx;
    bool is_full[BT_ROUTER_MODELS_MAX] = {false};
    bt_router_request *request;
    router->drain_next = router->queue_head;
    /* What is placed or fails may take others along: a call over HTTP ends with all its choices.
     * leave_queue() sees to it that the next one is still there. */
    while ((request = router->drain_next) != NULL) {
        router->drain_next = request->next;
        /* In order within a model: nobody passes the first one that finds no room. One that has
         * begun and can't go on with those who are here holds up nobody. */
        if (is_full[request->model_idx]) {
            continue;
        }
        leave_queue(request);
        const bt_status status = bt_router_request_place(request);
        if (status != BT_OK) {
            const int64_t deadline_ns = request->queue_deadline_ns;
            const int64_t queued_ns = request->queued_ns;
            bt_router_request_enqueue(request);
            request->queue_deadline_ns = deadline_ns;
            request->queued_ns = queued_ns;
            bt_router_request_arm(request);
            request->is_aside = status == BT_ENOTFOUND;
            is_full[request->model_idx] = status == BT_AGAIN;
        }
    }
}

/* ------------------------------------------------------------------------------ timer ---- */

static void on_queue_deadline(bt_router_request *request, int64_t now_ns)
{
    bt_error why;
    const bt_status status = bt_router_describe_shortage(request->router, request->model_idx, &why);
    const int64_t waited_ms = (now_ns - request->queued_ns) / ms_ns;
    bt_router_note_wait(request, now_ns - request->received_ns);
    const uint32_t n_output = bt_router_request_count_output(request);
    if (n_output > 0) {
        bt_router_request_fail(request, BT_EPEER,
                               "the reply broke off after %" PRIu32 " tokens, and no worker could "
                               "go on with it for %" PRId64 " ms; the reason: %.120s",
                               n_output, waited_ms,
                               request->last_failure.text[0] != '\0' ? request->last_failure.text
                                                                     : why.text);
        return;
    }
    if (request->last_failure.text[0] != '\0') {
        bt_router_request_fail(request, status, "%s (waited %" PRId64 " ms); before that: %.100s",
                               why.text, waited_ms, request->last_failure.text);
    } else {
        bt_router_request_fail(request, status, "%s (waited %" PRId64 " ms)", why.text, waited_ms);
    }
}

/* The reply is complete, and its client does not read it: a slot is not held for ever. How the
 * request went has been told to log and metrics already; only the client hears of this. */
static void give_up_client(bt_router_request *request)
{
    request->status = bt_error_set(&request->error, BT_EABORTED,
                                   "the client did not read the rest of its reply in time");
    bt_log(BT_WARN, "reply not read: req=%s unsent_bytes=%zu", request->label,
           bt_router_reply_pending_bytes(request->reply));
    bt_router_request_notify(request);
}

static int64_t read_time_ns(const bt_router_request *request)
{
    return (int64_t)request->router->options.read_time_ms * ms_ns;
}

static bool is_stalled(const bt_router_request *request, int64_t now_ns)
{
    return request->stalled_ns > 0 && now_ns - request->stalled_ns >= read_time_ns(request);
}

void bt_router_request_on_timer(void *ctx)
{
    bt_router_request *request = ctx;
    const int64_t now_ns = bt_clock_now_ns();
    switch (request->state) {
    case BT_ROUTER_REQUEST_FREE:
        return;
    case BT_ROUTER_REQUEST_DONE:
        if (now_ns >= request->read_deadline_ns) {
            give_up_client(request);
        } else {
            bt_router_request_arm(request);
        }
        return;
    case BT_ROUTER_REQUEST_ENDING:
        if (now_ns >= request->report_deadline_ns || now_ns >= request->deadline_ns) {
            bt_router_request_close_legs(request);
            bt_router_request_check_ending(request);
            return;
        }
        break;
    case BT_ROUTER_REQUEST_QUEUED:
        if (now_ns < request->deadline_ns && now_ns >= request->queue_deadline_ns) {
            /* One that has just come back has not been tried yet when there is no time to wait. */
            bt_router_queue_drain(request->router);
            if (request->state == BT_ROUTER_REQUEST_QUEUED) {
                on_queue_deadline(request, now_ns);
            }
            return;
        }
        break;
    case BT_ROUTER_REQUEST_PREFILLING:
    case BT_ROUTER_REQUEST_DECODING:
        if (now_ns < request->deadline_ns && is_stalled(request, now_ns)) {
            bt_router_request_fail(request, BT_EABORTED,
                                   "the client reads too slowly: it has taken nothing of its reply "
                                   "for %" PRId64 " ms, and %" PRIu64 " bytes are waiting",
                                   (now_ns - request->stalled_ns) / ms_ns, request->client_unread);
            return;
        }
        break;
    case BT_ROUTER_REQUEST_TOKENIZING:
        break;
    }
    if (now_ns >= request->deadline_ns) {
        const uint32_t n_tokens = bt_router_request_count_output(request);
        bt_router_request_fail(request, BT_EDEADLINE,
                               "the deadline passed after %" PRId64 " ms and %" PRIu32
                               " generated tokens",
                               (now_ns - request->received_ns) / ms_ns, n_tokens);
        return;
    }
    bt_router_request_arm(request);
}

void bt_router_request_arm(bt_router_request *request)
{
    int64_t next_ns =
        request->state == BT_ROUTER_REQUEST_DONE ? request->read_deadline_ns : request->deadline_ns;
    if (request->state == BT_ROUTER_REQUEST_QUEUED && request->queue_deadline_ns < next_ns) {
        next_ns = request->queue_deadline_ns;
    }
    if (request->state == BT_ROUTER_REQUEST_ENDING && request->report_deadline_ns < next_ns) {
        next_ns = request->report_deadline_ns;
    }
    const int64_t now_ns = bt_clock_now_ns();
    const bool streams = request->state == BT_ROUTER_REQUEST_PREFILLING ||
                         request->state == BT_ROUTER_REQUEST_DECODING;
    if (streams && now_ns + read_time_ns(request) < next_ns) {
        next_ns = now_ns + read_time_ns(request); /* to see whether its client reads */
    }
    const int64_t left_ns = next_ns - now_ns;
    /* Rounded up: it is late rather than early, and then it is not set again for nothing. */
    bt_timer_start(request->timer, left_ns <= 0 ? 0 : (uint64_t)(left_ns / ms_ns + 1), 0);
}

/* ------------------------------------------------------------------------------- ends ---- */

void bt_router_request_notify(bt_router_request *request)
{
    if (!request->abandoned) {
        request->front->on_ready(request->front_ctx);
    }
}

/* The client has so long, from now on, to take another part of its reply. */
static void expect_reading(bt_router_request *request)
{
    request->read_deadline_ns =
        bt_clock_now_ns() + (int64_t)request->router->options.read_time_ms * ms_ns;
}

/* No worker is involved any more and the outcome stands. */
static void enter_done(bt_router_request *request)
{
    leave_queue(request);
    bt_router_request_close_legs(request);
    bt_router_request_unset_limits(request);
    request->state = BT_ROUTER_REQUEST_DONE;
    expect_reading(request);
    bt_router_request_arm(request);
    bt_router_report_end(request);
}

void bt_router_request_check_ending(bt_router_request *request)
{
    if (request->state != BT_ROUTER_REQUEST_ENDING || bt_router_request_has_open_leg(request)) {
        return;
    }
    enter_done(request);
    bt_router_request_notify(request);
}

void bt_router_request_complete(bt_router_request *request, bt_finish_reason reason)
{
    BT_ASSERT(request->state == BT_ROUTER_REQUEST_TOKENIZING ||
              request->state == BT_ROUTER_REQUEST_PREFILLING ||
              request->state == BT_ROUTER_REQUEST_DECODING);
    if (bt_router_reply_finish(request->reply) != BT_OK) {
        bt_router_request_fail(request, BT_ENOMEM, "the router is out of memory");
        return;
    }
    bt_router_note_used(request);
    request->summary.reason = reason;
    request->summary.stop_idx = bt_router_reply_stop_idx(request->reply);
    request->state = BT_ROUTER_REQUEST_ENDING;
    request->report_deadline_ns = bt_clock_now_ns() + (int64_t)BT_ROUTER_REPORT_WAIT_MS * ms_ns;
    bt_router_request_arm(request);
    if (bt_router_request_has_open_leg(request)) {
        bt_router_request_notify(request); /* the last text need not wait for reports */
        return;
    }
    bt_router_request_check_ending(request);
}

void bt_router_request_fail(bt_router_request *request, bt_status status, const char *fmt, ...)
{
    BT_ASSERT(request->state != BT_ROUTER_REQUEST_FREE);
    if (request->state == BT_ROUTER_REQUEST_DONE) {
        return;
    }
    char text[sizeof request->error.text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    request->status = bt_error_set(&request->error, status, "%s", text);
    if (status != BT_EEXHAUSTED) {
        request->retry_after_ms = 0;
    } else if (request->retry_after_ms == 0) {
        request->retry_after_ms = bt_router_pushback_ms(request->router, request->model_idx);
    }
    request->summary.reason =
        status == BT_EDEADLINE || status == BT_ECANCELLED ? BT_FINISH_CANCELLED : BT_FINISH_ERROR;
    enter_done(request);
    bt_router_request_notify(request);
}

void bt_router_requests_fail_all(bt_router *router, const char *why)
{
    for (uint32_t i = 0; i < router->options.requests_max; i++) {
        bt_router_request *request = &router->requests[i];
        if (request->state != BT_ROUTER_REQUEST_FREE && !request->abandoned) {
            bt_router_request_fail(request, BT_EPEER, "%s", why);
        }
    }
}

void bt_router_requests_tick(bt_router *router)
{
    for (uint32_t i = 0; i < router->options.requests_max; i++) {
        if (router->requests[i].state != BT_ROUTER_REQUEST_FREE) {
            bt_router_request_on_timer(&router->requests[i]);
        }
    }
}

/* ------------------------------------------------------------------------ front's side ---- */

const char *bt_router_request_label(const bt_router_request *request)
{
    return request->label;
}

const bt_tokenizer *bt_router_request_tokenizer(const bt_router_request *request)
{
    return bt_router_models_at(request->router->models, request->model_idx)->tokenizer;
}

bool bt_router_request_peek(bt_router_request *request, bt_router_delta *delta)
{
    const bool is_done = request->state == BT_ROUTER_REQUEST_DONE;
    bt_router_piece piece = {.is_all = true};
    /* A client that reads too slowly is not given what it did not read. */
    const bool has_piece = !(is_done && request->status == BT_EABORTED) &&
                           bt_router_reply_peek(request->reply, &piece);
    if (!has_piece && !is_done) {
        return false;
    }
    const bool is_last = is_done && piece.is_all && (!has_piece || request->status == BT_OK);
    *delta = (bt_router_delta){
        .is_first = !request->started,
        .label = request->label,
        .model = bt_router_models_at(request->router->models, request->model_idx)->name,
        .seed = request->sampling.seed,
        .prompt_tokens = request->n_prompt,
        .piece = piece,
        .logprobs = request->sampling.logprobs,
        .is_last = is_last,
    };
    if (is_last) {
        const int stop_idx = request->summary.stop_idx;
        delta->status = request->status;
        delta->error = request->error.text;
        delta->retry_after_ms = request->retry_after_ms;
        delta->summary = &request->summary;
        if (request->status == BT_OK && stop_idx >= 0) {
            delta->stop = request->stops[stop_idx];
            delta->stop_len = request->stop_lens[stop_idx];
        }
    }
    return true;
}

void bt_router_request_consume(bt_router_request *request, const bt_router_delta *delta)
{
    request->started = true;
    if (request->state == BT_ROUTER_REQUEST_DONE) {
        expect_reading(request); /* the timer looks at it when it fires */
    }
    if (delta->piece.n_results > 0 || delta->piece.text_len > 0) {
        bt_router_reply_consume(request->reply, &delta->piece);
        bt_router_request_count_unread(request, true);
    }
}

void bt_router_request_release(bt_router_request *request)
{
    BT_ASSERT(request->state == BT_ROUTER_REQUEST_DONE);
    request->abandoned = true;
    if (!request->job_running) {
        bt_router_request_free(request);
    }
}

void bt_router_request_abandon(bt_router_request *request, const char *why)
{
    BT_ASSERT(request->state != BT_ROUTER_REQUEST_FREE);
    request->abandoned = true;
    if (request->state != BT_ROUTER_REQUEST_DONE) {
        bt_router_request_fail(request, BT_ECANCELLED, "%s", why);
    }
    if (!request->job_running) {
        bt_router_request_free(request);
    }
}
