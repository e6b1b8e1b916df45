/* SPDX-License-Identifier: Apache-2.0 */
/* `baton explain REQUEST`: what became of a request, from the memory of a router and its workers.
 *
 * Router and workers each measure by a clock of their own, so a worker's moments are told as time
 * since a run arrived there. They are put on the router's line at the moment at which it sent the
 * run; where the router does not know that, by the wall clocks. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/admin.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "proto/admin.pb-c.h"

enum {
    LINES_MAX = 512,
    WHERE_BYTES = 80,
    WHAT_BYTES = 320,
};

typedef Baton__Admin__V1__ExplainReply pb_reply;
typedef Baton__Admin__V1__Request pb_request;
typedef Baton__Admin__V1__Attempt pb_attempt;
typedef Baton__Admin__V1__Run pb_run;

typedef struct explain_options {
    bt_admin_options admin;
    int64_t timeout_ns;
} explain_options;

static const bt_config_option options_table[] = {
    BT_ADMIN_CONFIG_ROWS(explain_options, admin),
    {.name = "timeout",
     .type = BT_CONFIG_DURATION,
     .group = "Request",
     .fallback = "5s",
     .help = "How long to wait for the answer.",
     .offset = offsetof(explain_options, timeout_ns)},
};

static const bt_config_spec spec = {
    .command = "baton explain",
    .section = "explain",
    .summary = "Tells what became of a request, while it runs or among the last that ended\n"
               "(--ring-requests of router and workers): when it was where, what was tried again\n"
               "and why. A request is named by the client's x-request-id or by its id in hex, as\n"
               "log lines have them.",
    .arguments = "REQUEST",
    .examples = "  baton explain cb3b09d6a1f2403f9d86b4e1c0aa0003\n"
                "  baton explain order-66 --attach 10.0.0.1:7071 --cluster-key-file key\n",
    .options = options_table,
    .n_options = BT_ARRAY_LEN(options_table),
};

/* One moment. */
typedef struct line {
    double ms;
    size_t number; /* as added: equal moments keep their order */
    char where[WHERE_BYTES];
    char what[WHAT_BYTES];
} line;

typedef struct lines {
    line items[LINES_MAX];
    size_t n;
} lines;

BT_PRINTF(4, 5)
static void add(lines *to, double ms, const char *where, const char *fmt, ...)
{
    if (to->n == LINES_MAX) {
        return;
    }
    line *l = &to->items[to->n];
    l->ms = ms;
    l->number = to->n++;
    snprintf(l->where, sizeof l->where, "%s", where);
    va_list args;
    va_start(args, fmt);
    vsnprintf(l->what, sizeof l->what, fmt, args);
    va_end(args);
}

static int compare_lines(const void *a, const void *b)
{
    const line *x = a;
    const line *y = b;
    if (x->ms != y->ms) {
        return x->ms < y->ms ? -1 : 1;
    }
    return x->number < y->number ? -1 : 1;
}

/* ---------------------------------------------------------------------------- gathering ---- */

static void add_attempt(lines *to, const pb_attempt *a)
{
    const bool has_p = a->prefill_worker[0] != '\0';
    const bool has_d = a->decode_worker[0] != '\0';
    if (a->moved) {
        add(to, a->placed_ms, "router", "attempt %u: moves from %s to %s", a->number,
            a->prefill_worker, a->decode_worker);
    } else if (has_p && has_d) {
        add(to, a->placed_ms, "router", "attempt %u: prefill on %s, decode on %s", a->number,
            a->prefill_worker, a->decode_worker);
    } else {
        add(to, a->placed_ms, "router", "attempt %u: %s", a->number,
            has_p ? a->prefill_worker : a->decode_worker);
    }
    if (a->failed_ms > 0) {
        add(to, a->failed_ms, "router", "attempt %u is over: %s", a->number, a->why);
    }
}

static void add_request(lines *to, const pb_request *r)
{
    add(to, 0, "router", "received");
    if (r->tokenized_ms > 0) {
        add(to, r->tokenized_ms, "router", "tokenized: %u tokens", r->prompt_tokens);
    }
    for (size_t i = 0; i < r->n_attempts; i++) {
        add_attempt(to, r->attempts[i]);
    }
    if (r->first_token_ms > 0) {
        add(to, r->first_token_ms, "router", "first token");
    }
    if (r->last_token_ms > r->first_token_ms) {
        add(to, r->last_token_ms, "router", "%s token, %u so far", r->open ? "newest" : "last",
            r->generated_tokens);
    }
    if (r->open) {
        add(to, r->ended_ms, "router", "now: %s", r->state);
    } else {
        add(to, r->ended_ms, "router", "over: %s%s%s", r->state, r->why[0] != '\0' ? ", " : "",
            r->why);
    }
}

/* Where a run's own 0 lies on the request's line. */
static double begin_of(const pb_reply *reply, const pb_run *run, uint64_t zero_unix_ns)
{
    const pb_request *r = reply->request;
    for (size_t i = 0; r != NULL && i < r->n_attempts; i++) {
        if (r->attempts[i]->number == run->attempt) {
            return r->attempts[i]->placed_ms;
        }
    }
    return ((double)run->arrived_unix_ns - (double)zero_unix_ns) / 1e6;
}

static void add_prefill(lines *to, const pb_run *r, double begin, const char *where)
{
    if (r->computed_ms > 0) {
        add(to, begin + r->computed_ms, where, "prompt computed, first token sampled");
    }
    if (r->transferred_ms > 0) {
        add(to, begin + r->transferred_ms, where, "nobody reads its KV any more");
    }
}

static void add_decode(lines *to, const pb_run *r, double begin, const char *where)
{
    if (r->computed_ms > 0) {
        add(to, begin + r->computed_ms, where,
            "KV is here: %u blocks, %.1f MiB from %s over %s, %u were here already",
            r->blocks_moved, (double)r->bytes_moved / (1 << 20), r->peer,
            r->transport[0] != '\0' ? r->transport : "-", r->blocks_skipped);
    }
}

static void add_run(lines *to, const pb_run *r, double begin)
{
    char where[WHERE_BYTES];
    snprintf(where, sizeof where, "%.60s %s", r->worker, r->mode);
    const bool is_decode = strcmp(r->mode, "decode") == 0;
    if (r->started_ms > 0) {
        add(to, begin + r->started_ms, where,
            is_decode ? "has room for its KV" : "starts, %u tokens cached", r->cached_tokens);
    }
    if (is_decode) {
        add_decode(to, r, begin, where);
    } else if (strcmp(r->mode, "prefill") == 0) {
        add_prefill(to, r, begin, where);
    }
    if (r->first_token_ms > 0 && strcmp(r->mode, "whole") == 0) {
        add(to, begin + r->first_token_ms, where, "first token");
    }
    char preempted[40] = "";
    if (r->preemptions > 0) {
        snprintf(preempted, sizeof preempted, ", preempted %u times", r->preemptions);
    }
    if (r->open) {
        add(to, begin + r->ended_ms, where, "now: %u tokens%s", r->generated_tokens, preempted);
    } else if (strcmp(r->status, "OK") == 0) {
        add(to, begin + r->ended_ms, where, "ends%s%s: %u tokens%s",
            r->reason[0] != '\0' ? ", " : "", r->reason, r->generated_tokens, preempted);
    } else {
        add(to, begin + r->ended_ms, where, "ends with %s%s: %s", r->status, preempted, r->why);
    }
}

/* ----------------------------------------------------------------------------- printing ---- */

static void print_moment(uint64_t unix_ns)
{
    const time_t seconds = (time_t)(unix_ns / 1000000000);
    struct tm utc;
    char text[32] = "?";
    if (gmtime_r(&seconds, &utc) != NULL) {
        (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    }
    printf("%s.%03" PRIu64 "Z", text, unix_ns % 1000000000 / 1000000);
}

static uint64_t zero_of(const pb_reply *reply)
{
    if (reply->request != NULL) {
        return reply->request->received_unix_ns;
    }
    uint64_t zero_ns = UINT64_MAX;
    for (size_t i = 0; i < reply->n_runs; i++) {
        zero_ns =
            reply->runs[i]->arrived_unix_ns < zero_ns ? reply->runs[i]->arrived_unix_ns : zero_ns;
    }
    return zero_ns;
}

static void print_head(const pb_reply *reply, uint64_t zero_unix_ns)
{
    const pb_request *r = reply->request;
    const char *bold = bt_terminal_style_text(stdout, BT_TERMINAL_BOLD);
    const char *plain = bt_terminal_style_text(stdout, BT_TERMINAL_PLAIN);
    if (r != NULL) {
        printf("%srequest %s%s\nid %s, model %s, ", bold, r->label, plain, r->id, r->model);
        print_moment(zero_unix_ns);
        printf("\n%s: %u prompt tokens, %u of them cached, %u generated in %.1f ms; %u attempts, "
               "%u recoveries\n",
               r->state, r->prompt_tokens, r->cached_tokens, r->generated_tokens, r->ended_ms,
               r->attempts_total, r->recoveries);
    } else {
        printf("%srequest %s%s\nid %s, ", bold, reply->runs[0]->label, plain, reply->runs[0]->id);
        print_moment(zero_unix_ns);
        printf("\nthis router does not know it; its workers do\n");
    }
}

static bt_status print_reply(const pb_reply *reply, bt_error *err)
{
    if (reply->request == NULL && reply->n_runs == 0) {
        return bt_error_set(err, BT_ENOTFOUND, "nobody remembers that request");
    }
    lines *all = calloc(1, sizeof *all);
    if (all == NULL) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    const uint64_t zero_unix_ns = zero_of(reply);
    if (reply->request != NULL) {
        add_request(all, reply->request);
    }
    for (size_t i = 0; i < reply->n_runs; i++) {
        add_run(all, reply->runs[i], begin_of(reply, reply->runs[i], zero_unix_ns));
    }
    qsort(all->items, all->n, sizeof all->items[0], compare_lines);
    print_head(reply, zero_unix_ns);
    int width = 0;
    for (size_t i = 0; i < all->n; i++) {
        const int len = (int)strlen(all->items[i].where);
        width = len > width ? len : width;
    }
    printf("\n");
    for (size_t i = 0; i < all->n; i++) {
        printf("%10.1f ms  %-*s  %s\n", all->items[i].ms, width, all->items[i].where,
               all->items[i].what);
    }
    if (reply->silent_workers > 0) {
        printf("\n%u workers did not answer.\n", reply->silent_workers);
    }
    free(all);
    return BT_OK;
}

typedef struct asked {
    bt_status status;
    bt_error *err;
} asked;

static void on_reply(void *ctx, const ProtobufCMessage *message)
{
    asked *a = ctx;
    a->status = print_reply((const pb_reply *)message, a->err);
}

static bt_status explain(const explain_options *o, const char *name, bt_error *err)
{
    bt_client *client = NULL;
    bt_status status = bt_admin_open(&o->admin, &client, err);
    if (status != BT_OK) {
        return status;
    }
    Baton__Admin__V1__ExplainRequest request = BATON__ADMIN__V1__EXPLAIN_REQUEST__INIT;
    request.request = (char *)(uintptr_t)name;
    asked a = {.status = BT_OK, .err = err};
    const bt_client_call call = {
        .path = "/baton.admin.v1.Admin/Explain",
        .request = &request.base,
        .reply_type = &baton__admin__v1__explain_reply__descriptor,
        .timeout_ns = o->timeout_ns,
        .on_reply = on_reply,
        .ctx = &a,
    };
    status = bt_client_run(client, &call, err);
    bt_client_close(client);
    return status == BT_OK ? a.status : status;
}

static int run(int argc, char **argv)
{
    explain_options o = {0};
    bt_config *config = NULL;
    const int early = bt_cli_configure(&spec, argc, argv, &o, &config);
    if (early != BT_CLI_RUN) {
        return early;
    }
    bt_error err = {""};
    const bt_config_list names = bt_config_arguments(config);
    const bt_status status = names.n != 1
                                 ? bt_error_set(&err, BT_EINVAL, "give the name of one request")
                                 : explain(&o, names.items[0], &err);
    const bool is_usage = names.n != 1;
    bt_config_destroy(config);
    return status == BT_OK ? BT_CLI_OK : bt_cli_fail("explain", status, &err, is_usage);
}

const bt_cli_command bt_cli_explain = {
    .name = "explain",
    .summary = "tell what became of a request",
    .run = run,
};
