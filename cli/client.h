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

#include "common/status.h"

typedef struct bt_client bt_client;

/* Where `baton up` and `baton router` serve clients unless told otherwise. */
#define BT_CLIENT_ADDRESS "127.0.0.1:7070"

/* Makes a client of the router at `address` ("host:port"); connects with the first call. */
BT_MUST_CHECK bt_status bt_client_open(const char *address, bt_client **out, bt_error *err);
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
 * server's refusal as a status of ours, its text in *err. */
BT_MUST_CHECK bt_status bt_client_run(bt_client *client, const bt_client_call *call, bt_error *err);

#endif /* BT_CLI_CLIENT_H */
