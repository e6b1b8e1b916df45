/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - the commands' way to a router: one call at a time, over gRPC.
 *
 * Runs a loop of its own for as long as a call lasts; Ctrl-C cancels the call.
 *
 * Threading: one thread. Memory: the heap.
 */
#ifndef BT_CLI_CLIENT_H
#define BT_CLI_CLIENT_H

#include <protobuf-c/protobuf-c.h>

#include "cli/security.h"

typedef struct bt_client bt_client;

/* Where `baton up` and `baton router` serve clients unless told otherwise. */
#define BT_CLIENT_ADDRESS "127.0.0.1:7070"

/* Whom to call, and what to show. */
typedef struct bt_client_options {
    const char *address;      /* "host:port" */
    const char *api_key;      /* NULL: what the file holds */
    const char *api_key_file; /* NULL: no key is shown */
    bt_rpc_tls tls;           /* without an authority: plain text */
    bool is_operator;         /* `address` is an attach address, `api_key` an operator's token */
} bt_client_options;

/* Rows of the above but the address; `group` "Access". */
#define BT_CLIENT_CONFIG_ROWS(target, member)                                                      \
    {.name = "api-key-file",                                                                       \
     .type = BT_CONFIG_STRING,                                                                     \
     .group = "Access",                                                                            \
     .placeholder = "FILE",                                                                        \
     .help = "Holds the API key to show, alone on its line.",                                      \
     .offset = offsetof(target, member.api_key_file)},                                             \
        {.name = "api-key",                                                                        \
         .type = BT_CONFIG_STRING,                                                                 \
         .group = "Access",                                                                        \
         .placeholder = "KEY",                                                                     \
         .help = "The API key itself: better in BATON_API_KEY, for others can see flags.",         \
         .secret = true,                                                                           \
         .offset = offsetof(target, member.api_key)},                                              \
        BT_CLI_TLS_CONFIG_ROWS(target, member.tls, "Access", "the router")

enum { BT_CLIENT_AUTHORIZATION_BYTES = 300 };

/* "Bearer KEY", or "" without a key. BT_EINVAL, BT_ENOTFOUND: *err says what is wrong with it. */
BT_MUST_CHECK bt_status bt_client_authorization(const bt_client_options *options,
                                                char out[BT_CLIENT_AUTHORIZATION_BYTES],
                                                bt_error *err);

/* Makes a client; connects with the first call. The strings are copied. BT_EINVAL: the address, the
 * API key or TLS is wrong. */
BT_MUST_CHECK bt_status bt_client_open(const bt_client_options *options, bt_client **out,
                                       bt_error *err);
void bt_client_close(bt_client *client);

/* One reply of a stream, decoded; freed after the call. */
typedef void (*bt_client_reply_fn)(void *ctx, const ProtobufCMessage *reply);

typedef struct bt_client_call {
    const char *path; /* "/baton.v1.Generation/Generate" */
    const ProtobufCMessage *request;
    const ProtobufCMessageDescriptor *reply_type;
    int64_t timeout_ns; /* 0: none */
    bt_client_reply_fn on_reply;
    void *ctx;
} bt_client_call;

/* Runs a call to its end. BT_ECANCELLED: Ctrl-C. BT_EPEER: no router answers there. Otherwise the
 * server's refusal as a status of ours. *err says where, what, and what to do about it. */
BT_MUST_CHECK bt_status bt_client_run(bt_client *client, const bt_client_call *call, bt_error *err);

#endif /* BT_CLI_CLIENT_H */
