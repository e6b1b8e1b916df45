/* SPDX-License-Identifier: Apache-2.0 */
/* Admin.Explain: the question as a call, the explanation as a message. A call that ends before its
 * answer is there leaves the question running; its answer then goes nowhere. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "proto/admin.pb-c.h"
#include "router/front_grpc_int.h"
#include "router/router_int.h"

typedef Baton__Admin__V1__Run pb_run;
typedef Baton__Admin__V1__Attempt pb_attempt;
typedef Baton__Admin__V1__Request pb_request;

typedef struct explain_call {
    bt_router *router;
    bt_rpc_call *call; /* NULL: nobody listens any more */
    bool asked;        /* the answer is owed */
} explain_call;

/* All that a reply points to. */
typedef struct reply_parts {
    Baton__Admin__V1__ExplainReply reply;
    pb_request request;
    char request_id[BT_HASH128_HEX_BYTES];
    pb_attempt attempts[BT_ROUTER_ATTEMPTS_KEPT];
    pb_attempt *attempt_list[BT_ROUTER_ATTEMPTS_KEPT];
    pb_run runs[BT_ROUTER_EXPLAIN_RUNS_MAX];
    pb_run *run_list[BT_ROUTER_EXPLAIN_RUNS_MAX];
    char run_ids[BT_ROUTER_EXPLAIN_RUNS_MAX][BT_HASH128_HEX_BYTES];
} reply_parts;

static char *text_of(const char *text)
{
    return (char *)(uintptr_t)text;
}

static double ms_of(uint64_t ns)
{
    return (double)ns / 1e6;
}

static char *hex_of(bt_request_id id, char out[BT_HASH128_HEX_BYTES])
{
    bt_link_request_hex(id, out);
    return out;
}

static void fill_attempts(const bt_router_attempts *attempts, reply_parts *parts)
{
    const uint32_t n = bt_router_attempts_kept(attempts);
    for (uint32_t i = 0; i < n; i++) {
        const bt_router_attempt *a = bt_router_attempts_at(attempts, i);
        pb_attempt *to = &parts->attempts[i];
        baton__admin__v1__attempt__init(to);
        to->number = a->number;
        to->prefill_worker = text_of(a->prefill_worker);
        to->decode_worker = text_of(a->decode_worker);
        to->moved = a->moved;
        to->placed_ms = ms_of(a->placed_ns);
        to->failed_ms = ms_of(a->failed_ns);
        to->why = text_of(a->why);
        parts->attempt_list[i] = to;
    }
    parts->request.attempts_total = attempts->n;
    parts->request.n_attempts = n;
    parts->request.attempts = parts->attempt_list;
}

static void fill_request(const bt_router_timeline *t, reply_parts *parts)
{
    pb_request *to = &parts->request;
    baton__admin__v1__request__init(to);
    to->id = hex_of(t->id, parts->request_id);
    to->label = text_of(t->label);
    to->model = text_of(t->model);
    to->state = text_of(t->state);
    to->open = t->open;
    to->why = text_of(t->why);
    to->received_unix_ns = t->received_unix_ns;
    to->tokenized_ms = ms_of(t->tokenized_ns);
    to->first_token_ms = ms_of(t->first_token_ns);
    to->last_token_ms = ms_of(t->last_token_ns);
    to->ended_ms = ms_of(t->ended_ns);
    to->prompt_tokens = t->prompt_tokens;
    to->cached_tokens = t->cached_tokens;
    to->generated_tokens = t->generated_tokens;
    to->recoveries = t->recoveries;
    fill_attempts(&t->attempts, parts);
    parts->reply.request = to;
}

static void fill_run(const bt_router_explained_run *run, pb_run *to, char hex[BT_HASH128_HEX_BYTES])
{
    static const char *const modes[] = {
        [BT_LINK_MODE_PREFILL] = "prefill",
        [BT_LINK_MODE_DECODE] = "decode",
        [BT_LINK_MODE_WHOLE] = "whole",
    };
    static const char *const reasons[] = {
        [BT_FINISH_NONE] = "",         [BT_FINISH_STOP] = "stop",
        [BT_FINISH_LENGTH] = "length", [BT_FINISH_CANCELLED] = "cancelled",
        [BT_FINISH_ERROR] = "error",
    };
    const bt_link_timeline *t = &run->timeline;
    baton__admin__v1__run__init(to);
    to->worker = text_of(run->worker);
    to->id = hex_of(t->id, hex);
    to->label = text_of(t->label);
    to->attempt = t->attempt;
    to->mode = text_of(modes[t->mode]);
    to->open = t->open;
    to->status = text_of(bt_status_name(t->status));
    to->why = text_of(t->error.text);
    to->reason = text_of(reasons[t->reason]);
    to->arrived_unix_ns = t->arrived_unix_ns;
    to->started_ms = ms_of(t->started_ns);
    to->computed_ms = ms_of(t->computed_ns);
    to->transferred_ms = ms_of(t->transferred_ns);
    to->first_token_ms = ms_of(t->first_token_ns);
    to->ended_ms = ms_of(t->ended_ns);
    to->prompt_tokens = t->prompt_tokens;
    to->cached_tokens = t->cached_tokens;
    to->generated_tokens = t->generated_tokens;
    to->blocks_moved = t->blocks_moved;
    to->blocks_skipped = t->blocks_skipped;
    to->bytes_moved = t->bytes_moved;
    to->preemptions = t->preemptions;
    to->transport = text_of(t->transport);
    to->peer = text_of(t->peer);
}

static bt_status pack(const bt_router_explanation *e, bt_text *out)
{
    reply_parts *parts = calloc(1, sizeof *parts);
    if (parts == NULL) {
        return BT_ENOMEM;
    }
    baton__admin__v1__explain_reply__init(&parts->reply);
    if (e->has_request) {
        fill_request(&e->request, parts);
    }
    for (uint32_t i = 0; i < e->n_runs; i++) {
        fill_run(&e->runs[i], &parts->runs[i], parts->run_ids[i]);
        parts->run_list[i] = &parts->runs[i];
    }
    parts->reply.n_runs = e->n_runs;
    parts->reply.runs = parts->run_list;
    parts->reply.silent_workers = e->n_silent;
    const bt_status status = bt_router_front_grpc_pack(&parts->reply.base, out);
    free(parts);
    return status;
}

static void on_explanation(bt_status status, const bt_router_explanation *e, void *ctx)
{
    explain_call *c = ctx;
    c->asked = false;
    if (c->call == NULL) {
        free(c);
        return;
    }
    bt_text out = {0};
    if (status == BT_OK) {
        status = pack(e, &out);
    }
    if (status == BT_OK && !e->has_request && e->n_runs == 0) {
        bt_rpc_call_finish(c->call, BT_RPC_NOT_FOUND,
                           "neither this router nor its workers remember that request", NULL, 0);
    } else if (status == BT_OK) {
        bt_rpc_call_send(c->call, (const uint8_t *)out.bytes, out.len);
        bt_rpc_call_finish(c->call, BT_RPC_OK, "", NULL, 0);
    } else {
        bt_rpc_call_finish(c->call, bt_rpc_code_of(status), bt_status_text(status), NULL, 0);
    }
    bt_text_deinit(&out);
}

static void on_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    explain_call *c = ctx;
    if (c->asked) {
        return;
    }
    Baton__Admin__V1__ExplainRequest *request =
        end ? NULL : baton__admin__v1__explain_request__unpack(NULL, len, data);
    if (request == NULL || request->request[0] == '\0' ||
        strlen(request->request) >= BT_LINK_LABEL_MAX) {
        bt_rpc_call_finish(call, BT_RPC_INVALID_ARGUMENT,
                           "a request is named by its x-request-id or its id in hex", NULL, 0);
    } else {
        c->asked = true;
        const bt_status status = bt_router_explain(c->router, request->request, on_explanation, c);
        if (status != BT_OK) {
            c->asked = false;
            bt_rpc_call_finish(call, BT_RPC_RESOURCE_EXHAUSTED,
                               "too many such questions are open. Try again later", NULL, 0);
        }
    }
    if (request != NULL) {
        baton__admin__v1__explain_request__free_unpacked(request, NULL);
    }
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    (void)code;
    (void)message;
    explain_call *c = ctx;
    c->call = NULL;
    if (!c->asked) {
        free(c);
    }
}

static const bt_rpc_callbacks callbacks = {.on_message = on_message, .on_done = on_done};

void bt_router_admin_explain(bt_rpc_call *call, bt_router *router)
{
    explain_call *c = calloc(1, sizeof *c);
    if (c == NULL) {
        bt_rpc_call_finish(call, BT_RPC_RESOURCE_EXHAUSTED, "the router is out of memory", NULL, 0);
        return;
    }
    c->router = router;
    c->call = call;
    bt_rpc_call_accept(call, &callbacks, c);
    bt_rpc_call_recv(call);
}
