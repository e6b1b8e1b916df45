/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "common/hash.h"
#include "common/keys.h"
#include "common/log.h"
#include "router/router_int.h"

enum { REFUSALS_PER_S = 5 };

static const char HEALTH[] = "/grpc.health.v1.Health/";
static const char STATUS[] = "/baton.v1.Generation/GetClusterStatus";

static bool begins_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool bt_router_is_operator(const bt_router *router, const bt_rpc_call *call)
{
    static const char scheme[] = "Bearer ";
    const char *authorization = bt_rpc_call_meta(call, "authorization");
    char token[BT_CLUSTER_KEY_TOKEN_BYTES];
    if (authorization == NULL || !begins_with(authorization, scheme) ||
        strlen(authorization) != sizeof scheme - 1 + sizeof token - 1) {
        return false;
    }
    bt_cluster_key_admin_token(&router->options.cluster_key, token);
    const bool equal =
        bt_hash_equal_secret(token, authorization + sizeof scheme - 1, sizeof token - 1);
    bt_hash_wipe(token, sizeof token);
    return equal;
}

bool bt_router_guard(bt_rpc_call *call, const char *path, void *ctx)
{
    bt_router *router = ctx;
    if (begins_with(path, HEALTH)) {
        return true;
    }
    const char *authorization = bt_rpc_call_meta(call, "authorization");
    bt_keys_client client;
    bt_error err = {.text = ""};
    const bt_status status =
        bt_keys_check(router->options.keys, authorization, BT_KEYS_API, &client, &err);
    if (status == BT_OK && bt_rpc_call_keep(call, &client, sizeof client)) {
        return true;
    }
    if (status == BT_OK) {
        bt_rpc_call_finish(call, BT_RPC_RESOURCE_EXHAUSTED, "the router is out of memory", NULL, 0);
        return false;
    }
    if (strcmp(path, STATUS) == 0 && bt_router_is_operator(router, call)) {
        return true;
    }
    bt_router_report_refusal(router, BT_EPERMISSION);
    bt_log_limited(&router->guard_limit, REFUSALS_PER_S, BT_WARN,
                   "client refused: address=%s method=%.64s why=\"%s\"", bt_rpc_call_peer(call),
                   path, authorization == NULL ? "no API key" : "unknown API key");
    bt_rpc_call_finish(call, BT_RPC_UNAUTHENTICATED, err.text, NULL, 0);
    return false;
}
