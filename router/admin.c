/* SPDX-License-Identifier: Apache-2.0 */
/* The operator's door (proto/admin.proto), on the attach server. A call is one message and one
 * answer:
 *
 *   handler: token right? --> message --> answer --> on_done: freed
 *
 * Explain, whose answer takes a while, is in admin_explain.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/hash.h"
#include "common/log.h"
#include "proto/admin.pb-c.h"
#include "router/router_int.h"

enum { REPLY_BYTES = 64 };

typedef struct drain_call {
    bt_router *router;
    bt_rpc_call *call;
    bool asked;
} drain_call;

/* ------------------------------------------------------------------------------ drain ---- */

static bt_router_worker *find_worker(const bt_router *router, const char *name)
{
    for (uint32_t i = 0; i < BT_ROUTER_WORKERS_MAX; i++) {
        bt_router_worker *worker = bt_router_registry_at(router->registry, i);
        if (worker != NULL && strcmp(worker->hello.kv.name, name) == 0) {
            return worker;
        }
    }
    return NULL;
}

static void begin_drain(bt_router *router, bt_router_worker *worker)
{
    if (worker->drain_asked) {
        return;
    }
    worker->drain_asked = true;
    bt_log(BT_INFO, "drain asked for: worker=%s", worker->hello.kv.name);
    bt_link_router_drain(worker->peer);
    bt_router_move_away(router, worker);
    bt_router_hand_over(router, worker);
}

static void answer_drain(drain_call *call, const uint8_t *data, size_t len)
{
    Baton__Admin__V1__DrainRequest *request =
        baton__admin__v1__drain_request__unpack(NULL, len, data);
    if (request == NULL) {
        bt_rpc_call_finish(call->call, BT_RPC_INVALID_ARGUMENT, "no DrainRequest", NULL, 0);
        return;
    }
    bt_router_worker *worker = find_worker(call->router, request->worker);
    const bool same = worker != NULL && (request->incarnation == 0 ||
                                         request->incarnation == worker->hello.kv.incarnation);
    if (!same) {
        char text[192];
        snprintf(text, sizeof text, "no worker named '%.60s' is attached to router '%.40s'",
                 request->worker, call->router->name);
        baton__admin__v1__drain_request__free_unpacked(request, NULL);
        bt_rpc_call_finish(call->call, BT_RPC_NOT_FOUND, text, NULL, 0);
        return;
    }
    baton__admin__v1__drain_request__free_unpacked(request, NULL);
    begin_drain(call->router, worker);
    Baton__Admin__V1__DrainReply reply = BATON__ADMIN__V1__DRAIN_REPLY__INIT;
    reply.incarnation = worker->hello.kv.incarnation;
    reply.requests = worker->n_requests;
    reply.requests_running = worker->load.requests_running;
    reply.requests_waiting = worker->load.requests_waiting;
    reply.handed_over = worker->load.runs_handed_over;
    uint8_t bytes[REPLY_BYTES];
    BT_ASSERT(baton__admin__v1__drain_reply__get_packed_size(&reply) <= sizeof bytes);
    bt_rpc_call_send(call->call, bytes, baton__admin__v1__drain_reply__pack(&reply, bytes));
    bt_rpc_call_finish(call->call, BT_RPC_OK, "", NULL, 0);
}

static void on_message(bt_rpc_call *rpc_call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    drain_call *call = ctx;
    if (end && !call->asked) {
        bt_rpc_call_finish(rpc_call, BT_RPC_INVALID_ARGUMENT, "no request came", NULL, 0);
    }
    if (!end && !call->asked) {
        call->asked = true;
        answer_drain(call, data, len);
    }
}

static void on_done(bt_rpc_call *rpc_call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)rpc_call;
    (void)code;
    (void)message;
    free(ctx);
}

static const bt_rpc_callbacks callbacks = {.on_message = on_message, .on_done = on_done};

/* ------------------------------------------------------------------------------ calls ---- */

static bool let_in(const bt_router *router, bt_rpc_call *call)
{
    const bool may = bt_router_is_operator(router, call);
    if (!may) {
        bt_rpc_call_finish(call, BT_RPC_UNAUTHENTICATED,
                           "this needs the router's cluster key: --cluster-key-file FILE, or "
                           "BATON_CLUSTER_KEY (`baton up` draws one if none is given)",
                           NULL, 0);
    }
    return may;
}

static void on_drain(bt_rpc_call *rpc_call, void *ctx)
{
    bt_router *router = ctx;
    if (!let_in(router, rpc_call)) {
        return;
    }
    drain_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        bt_rpc_call_finish(rpc_call, BT_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
        return;
    }
    *call = (drain_call){.router = router, .call = rpc_call};
    bt_rpc_call_accept(rpc_call, &callbacks, call);
    bt_rpc_call_recv(rpc_call);
}

static void on_explain(bt_rpc_call *rpc_call, void *ctx)
{
    if (let_in(ctx, rpc_call)) {
        bt_router_admin_explain(rpc_call, ctx);
    }
}

bt_status bt_router_admin_register(bt_router *router)
{
    const bt_status status = bt_rpc_server_handle(router->attach_server,
                                                  "/baton.admin.v1.Admin/Drain", on_drain, router);
    return status != BT_OK
               ? status
               : bt_rpc_server_handle(router->attach_server, "/baton.admin.v1.Admin/Explain",
                                      on_explain, router);
}
