/* SPDX-License-Identifier: Apache-2.0 */
/* Who is let in: a request that would miss what it needs is refused at once, while its client can
 * still go elsewhere, instead of taking the time of those that would have met it. Three things are
 * asked of the forecast (forecast.h), each with a margin, since it is one:
 *
 *   wait            no longer than queue_time, for every request
 *   first token     by the TTFT limit: the router's ttft_max, and the request's own target if it
 *                   asked to be refused rather than be late
 *   last token      by the deadline, for the tokens that are sure to be asked for
 *
 * What a newcomer itself would take counts against it only while others are at the same work there:
 * an idle cluster refuses nobody, however slow it seems to be.
 *
 * How long those who were let in really waited is fed back: the forecast of the wait is taken times
 * the mean of (waited / forecast), which forgets within half a minute.
 *
 * Who was let in is served, also when the router's limit passes while it waits after all: its
 * client was not told at once, and would have waited for nothing. (One that asked to be refused
 * rather than late, by a target of its own, is given up then.)
 *
 * Asked twice: when a request arrives, before any work is spent on it (the wait alone), and when
 * its prompt has been tokenized. And limits per client, of what it has under way (clients.h). */
#include <inttypes.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "router/router_int.h"

static const int64_t ms_ns = 1000000;
static const int64_t PUSHBACK_NS_MAX = INT64_C(60000000000);
static const int64_t WAIT_NS_MIN = 100000000; /* shorter ones say nothing about forecasts */
static const double EXCESS_MIN = -0.25;
static const double EXCESS_MAX = 3;
static const double EXCESS_KEEP = 0.995; /* each tick, ten a second */

/* What is expected to take t is taken to last 4/3 t. */
static int64_t with_margin(int64_t ns)
{
    return ns + ns / 3;
}

/* ---------------------------------------------------------------------------- backlog ---- */

static bt_router_backlog backlog_before(const bt_router *router, uint32_t model_idx,
                                        int64_t order_ns)
{
    const bt_router_usage *usage = &router->usage[model_idx];
    bt_router_backlog backlog = {.stay_tokens = (uint32_t)(usage->asked * usage->share)};
    for (const bt_router_request *r = router->queue_head; r != NULL; r = r->next) {
        if (r->model_idx == model_idx && r->order_ns < order_ns && !r->is_aside) {
            backlog.n_requests++;
            backlog.n_tokens += r->n_prompt;
        }
    }
    return backlog;
}

static bt_router_forecast forecast_of(const bt_router *router, const bt_router_request *request,
                                      uint32_t model_idx, int64_t order_ns)
{
    bt_router_worker_view views[BT_ROUTER_WORKERS_MAX];
    uint32_t slots[BT_ROUTER_WORKERS_MAX];
    const size_t n = bt_router_view(router, model_idx, false, views, slots);
    bt_router_policy_request wanted = {.block_tokens = BT_BLOCK_HASH_TOKENS};
    if (request != NULL) {
        wanted.prompt_tokens = request->n_prompt;
        wanted.bypass_cache = request->sampling.echo && request->sampling.logprobs;
        bt_router_request_match(request, views, slots, n);
    }
    const bt_router_backlog backlog = backlog_before(router, model_idx, order_ns);
    bt_router_forecast f;
    bt_router_forecast_make(views, n, &wanted, &backlog, &f);
    const double lateness = 1 + router->excess[model_idx];
    const int64_t own_ns = f.ttft_ns - f.wait_ns;
    f.wait_ns = (int64_t)((double)f.wait_ns * lateness);
    f.ttft_ns = f.wait_ns + own_ns;
    return f;
}

/* A client that is refused comes back when half of what waits now has been worked off, and not
 * before it would be taken. */
static uint64_t pushback_ms(const bt_router *router, int64_t wait_ns, int64_t excess_ns)
{
    int64_t ns = wait_ns / 2 > excess_ns ? wait_ns / 2 : excess_ns;
    ns = ns < PUSHBACK_NS_MAX ? ns : PUSHBACK_NS_MAX;
    const uint64_t ms = (uint64_t)(ns / ms_ns);
    return ms > router->options.retry_pushback_ms ? ms : router->options.retry_pushback_ms;
}

uint64_t bt_router_pushback_ms(const bt_router *router, uint32_t model_idx)
{
    const bt_router_forecast f = forecast_of(router, NULL, model_idx, INT64_MAX);
    return pushback_ms(router, f.wait_ns, 0);
}

/* ------------------------------------------------------------------------ what is asked ---- */

static bt_status check_wait(const bt_router *router, const bt_router_forecast *f, bt_error *err,
                            uint64_t *retry_after_ms)
{
    const int64_t limit_ns = (int64_t)router->options.queue_time_ms * ms_ns;
    if (limit_ns == 0 || with_margin(f->wait_ns) <= limit_ns) {
        return BT_OK;
    }
    *retry_after_ms = pushback_ms(router, f->wait_ns, with_margin(f->wait_ns) - limit_ns);
    return bt_error_set(err, BT_EEXHAUSTED,
                        "the wait would be some %" PRId64 " ms, too near to the longest one here, "
                        "%" PRIu64 " ms. Try again later",
                        f->wait_ns / ms_ns, router->options.queue_time_ms);
}

bt_status bt_router_check_backlog(const bt_router *router, uint32_t model_idx, int32_t priority,
                                  int64_t now_ns, bt_error *err, uint64_t *retry_after_ms)
{
    const bt_router_forecast f =
        forecast_of(router, NULL, model_idx, bt_router_order_ns(now_ns, priority));
    return check_wait(router, &f, err, retry_after_ms);
}

static void note_asked(bt_router_request *request);

static bt_status check_ttft(const bt_router_request *request, const bt_router_forecast *f,
                            int64_t elapsed_ns, bt_error *err, uint64_t *retry_after_ms)
{
    const int64_t expected_ns = elapsed_ns + f->ttft_ns;
    const int64_t safe_ns = elapsed_ns + with_margin(f->ttft_ns);
    if (safe_ns <= request->ttft_limit_ns) {
        return BT_OK;
    }
    *retry_after_ms = pushback_ms(request->router, f->wait_ns, safe_ns - request->ttft_limit_ns);
    return bt_error_set(err, BT_EEXHAUSTED,
                        "the first token would take some %" PRId64 " ms (%" PRId64
                        " ms of it waiting), too near to its limit, %" PRId64
                        " ms. Try again later",
                        expected_ns / ms_ns, f->wait_ns / ms_ns, request->ttft_limit_ns / ms_ns);
}

/* Tokens that will be generated whatever they are. */
static uint32_t sure_tokens(const bt_router_request *request)
{
    const bt_sampling *s = &request->sampling;
    const bool is_fixed = request->has_max_tokens && s->ignore_eos && request->n_stops == 0;
    const uint32_t n = is_fixed ? s->max_tokens : s->min_tokens;
    return n > 1 ? n : 1; /* an echo alone has none, and takes as long as the first */
}

static bt_status check_deadline(const bt_router_request *request, const bt_router_forecast *f,
                                int64_t now_ns, bt_error *err, uint64_t *retry_after_ms)
{
    const int64_t need_ns = f->ttft_ns + (int64_t)(sure_tokens(request) - 1) * f->step_ns;
    const int64_t left_ns = request->deadline_ns - now_ns;
    if (with_margin(need_ns) <= left_ns) {
        return BT_OK;
    }
    if (left_ns <= 0) {
        return bt_error_set(err, BT_EDEADLINE, "the deadline passed before the request was placed");
    }
    *retry_after_ms = pushback_ms(request->router, f->wait_ns, with_margin(need_ns) - left_ns);
    return bt_error_set(err, BT_EEXHAUSTED,
                        "it would take some %" PRId64 " ms (%" PRId64 " ms of it waiting) for at "
                        "least %" PRIu32 " tokens, too near to its deadline in %" PRId64 " ms",
                        need_ns / ms_ns, f->wait_ns / ms_ns, sure_tokens(request), left_ns / ms_ns);
}

/* Takes out of the forecast what rests on times that no work renews. Nobody is in the way there,
 * and a time that came out too long (of a worker that had been stopped in a step, say) would keep
 * away all that could mend it, for ever. */
static void trust_what_works(const bt_router *router, uint32_t model_idx, bt_router_forecast *f)
{
    bt_router_worker_view views[BT_ROUTER_WORKERS_MAX];
    uint32_t slots[BT_ROUTER_WORKERS_MAX];
    const size_t n = bt_router_view(router, model_idx, false, views, slots);
    bool computes = false;
    bool decodes = false;
    for (size_t i = 0; i < n; i++) {
        computes = computes || views[i].queued_prefill_tokens > 0;
        decodes = decodes || views[i].n_taken > 0;
    }
    f->ttft_ns = computes ? f->ttft_ns : f->wait_ns;
    f->step_ns = decodes ? f->step_ns : 0;
}

bt_status bt_router_request_check_forecast(bt_router_request *request, bt_error *err,
                                           uint64_t *retry_after_ms)
{
    const int64_t now_ns = bt_clock_now_ns();
    bt_router_forecast f =
        forecast_of(request->router, request, request->model_idx, request->order_ns);
    request->forecast = f;
    trust_what_works(request->router, request->model_idx, &f);
    bt_status status = check_wait(request->router, &f, err, retry_after_ms);
    if (status == BT_OK && request->ttft_limit_ns > 0) {
        status = check_ttft(request, &f, now_ns - request->received_ns, err, retry_after_ms);
    }
    if (status == BT_OK) {
        status = check_deadline(request, &f, now_ns, err, retry_after_ms);
    }
    if (status == BT_OK) {
        note_asked(request);
    }
    return status;
}

/* --------------------------------------------------------------------- targets and order ---- */

/* A point of priority is worth a second of waiting: so the lowest is not starved by the highest. */
int64_t bt_router_order_ns(int64_t received_ns, int32_t priority)
{
    return received_ns - (int64_t)priority * 1000 * ms_ns;
}

/* The tighter one of a limit of the router and one of the request; 0: none. */
static int64_t tighter(uint64_t router_ms, double request_ms)
{
    const int64_t a = (int64_t)router_ms * ms_ns;
    const int64_t b = (int64_t)(request_ms * (double)ms_ns);
    return a == 0 ? b : b == 0 || a < b ? a : b;
}

/* The tightest TPOT limit of all that live. */
static void update_tpot_limit(bt_router *router)
{
    int64_t limit_ns = (int64_t)router->options.tpot_max_ms * ms_ns;
    for (uint32_t i = 0; router->counts.n_tpot_limits > 0 && i < router->options.requests_max;
         i++) {
        const bt_router_request *r = &router->requests[i];
        if (r->has_tpot_limit && (limit_ns == 0 || r->tpot_limit_ns < limit_ns)) {
            limit_ns = r->tpot_limit_ns;
        }
    }
    router->tpot_limit_ns = limit_ns;
}

void bt_router_request_set_limits(bt_router_request *request, bool refuse_late)
{
    bt_router *router = request->router;
    request->order_ns = bt_router_order_ns(request->received_ns, request->priority);
    request->ttft_limit_ns =
        tighter(router->options.ttft_max_ms, refuse_late ? request->ttft_target_ms : 0);
    request->ttft_target_ns = refuse_late ? (int64_t)(request->ttft_target_ms * (double)ms_ns) : 0;
    if (refuse_late && request->tpot_target_ms > 0) {
        request->tpot_limit_ns = (int64_t)(request->tpot_target_ms * (double)ms_ns);
        request->has_tpot_limit = true;
        router->counts.n_tpot_limits++;
    }
    update_tpot_limit(router);
}

void bt_router_request_unset_limits(bt_router_request *request)
{
    if (request->has_tpot_limit) {
        request->has_tpot_limit = false;
        request->router->counts.n_tpot_limits--;
        update_tpot_limit(request->router);
    }
}

/* The newest of a series weighs 1/16; the first stands alone. */
static double blend(double mean, double value)
{
    return mean == 0 ? value : mean + (value - mean) / 16;
}

/* What is asked for is counted when a request is let in: among those that have ended the short ones
 * come first, and would make replies look short whenever load rises. */
static void note_asked(bt_router_request *request)
{
    bt_router_usage *usage = &request->router->usage[request->model_idx];
    usage->asked = blend(usage->asked, request->sampling.max_tokens);
}

void bt_router_note_used(const bt_router_request *request)
{
    const uint32_t n_output = bt_router_request_count_output(request);
    if (n_output > 0) {
        bt_router_usage *usage = &request->router->usage[request->model_idx];
        usage->share = blend(usage->share, (double)n_output / request->sampling.max_tokens);
    }
}

void bt_router_note_wait(const bt_router_request *request, int64_t ttft_ns)
{
    const bt_router_forecast *f = &request->forecast;
    double *excess = &request->router->excess[request->model_idx];
    if (f->wait_ns < WAIT_NS_MIN || request->attempt > 1) {
        return; /* too short to tell, or something else went wrong */
    }
    const double raw_ns = (double)f->wait_ns / (1 + *excess);
    const double waited_ns = (double)(ttft_ns - (f->ttft_ns - f->wait_ns));
    double found = waited_ns / raw_ns - 1;
    found = found < EXCESS_MIN ? EXCESS_MIN : found > EXCESS_MAX ? EXCESS_MAX : found;
    *excess += (found - *excess) / 8;
}

void bt_router_forget_excess(bt_router *router)
{
    for (size_t i = 0; i < BT_ROUTER_MODELS_MAX; i++) {
        router->excess[i] *= EXCESS_KEEP;
    }
}

/* ------------------------------------------------------------------------- per client ---- */

static uint64_t bytes_of(const bt_router_prompt_input *input)
{
    uint64_t bytes = input->text_len + input->n_ids * sizeof *input->ids;
    for (size_t i = 0; i < input->n_messages; i++) {
        bytes += input->messages[i].role_len + input->messages[i].content_len +
                 sizeof input->messages[i];
    }
    return bytes;
}

static const char *client_name(const bt_router_front_request *in)
{
    return in->client != NULL ? in->client : in->peer != NULL ? in->peer : "local";
}

bt_status bt_router_check_client(const bt_router *router, const bt_router_front_request *in,
                                 bt_error *err)
{
    const bt_router_options *o = &router->options;
    const char *name = client_name(in);
    const bt_router_client *client = bt_router_clients_find(router->clients, name);
    const uint32_t n = client == NULL ? 0 : client->n_requests;
    const uint64_t bytes = (client == NULL ? 0 : client->bytes) + bytes_of(&in->prompt);
    if (o->client_requests_max > 0 && n >= o->client_requests_max) {
        return bt_error_set(err, BT_EEXHAUSTED,
                            "client '%.63s' has %" PRIu32 " requests under way, the limit of a "
                            "client",
                            name, n);
    }
    if (o->client_bytes_max > 0 && bytes > o->client_bytes_max) {
        return bt_error_set(err, BT_EEXHAUSTED,
                            "client '%.63s' would have %" PRIu64 " bytes under way (requests, and "
                            "replies that it has not read), the limit of a client is %" PRIu64,
                            name, bytes, o->client_bytes_max);
    }
    return BT_OK;
}

void bt_router_request_join_client(bt_router_request *request, const bt_router_front_request *in)
{
    request->client = bt_router_clients_acquire(request->router->clients, client_name(in));
    request->client_bytes = bytes_of(&in->prompt);
    bt_router_client_add_bytes(request->client, (int64_t)request->client_bytes);
}

void bt_router_request_leave_client(bt_router_request *request)
{
    if (request->client == NULL) {
        return;
    }
    bt_router_client_add_bytes(request->client, -(int64_t)request->client_bytes);
    bt_router_client_add_tokens(request->client, -(int64_t)request->client_tokens);
    bt_router_clients_release(request->router->clients, request->client);
    request->client = NULL;
    request->client_bytes = 0;
    request->client_tokens = 0;
    request->client_unread = 0;
}

bt_status bt_router_request_count_tokens(bt_router_request *request, bt_error *err)
{
    const uint64_t limit = request->router->options.client_prompt_tokens_max;
    const uint64_t tokens = request->client->prompt_tokens + request->n_prompt;
    if (limit > 0 && tokens > limit) {
        return bt_error_set(err, BT_EEXHAUSTED,
                            "client '%.63s' would have %" PRIu64 " prompt tokens under way, the "
                            "limit of a client is %" PRIu64,
                            request->client->name, tokens, limit);
    }
    request->client_tokens = request->n_prompt;
    bt_router_client_add_tokens(request->client, request->n_prompt);
    return BT_OK;
}

void bt_router_request_count_unread(bt_router_request *request, bool taken)
{
    const uint64_t unread = bt_router_reply_pending_bytes(request->reply);
    const int64_t change = (int64_t)unread - (int64_t)request->client_unread;
    request->client_unread = unread;
    request->client_bytes = (uint64_t)((int64_t)request->client_bytes + change);
    bt_router_client_add_bytes(request->client, change);
    if (unread == 0) {
        request->stalled_ns = 0;
    } else if (taken || request->stalled_ns == 0) {
        request->stalled_ns = bt_clock_now_ns();
    }
}

bt_status bt_router_request_check_unread(const bt_router_request *request, bt_error *err)
{
    const bt_router_options *o = &request->router->options;
    const uint64_t unread = request->client_unread;
    if (unread == 0) {
        return BT_OK;
    }
    if (unread > o->slow_client_bytes) {
        return bt_error_set(err, BT_EABORTED,
                            "the client reads too slowly: %" PRIu64 " bytes of its reply are "
                            "waiting, the limit is %" PRIu64,
                            unread, o->slow_client_bytes);
    }
    if (o->client_bytes_max > 0 && request->client->bytes > o->client_bytes_max) {
        return bt_error_set(err, BT_EABORTED,
                            "client '%.63s' has %" PRIu64 " bytes under way (requests, and replies "
                            "that it has not read), the limit of a client is %" PRIu64,
                            request->client->name, request->client->bytes, o->client_bytes_max);
    }
    return BT_OK;
}
