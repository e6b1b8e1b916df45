/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/client.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/keys.h"
#include "common/rpc.h"
#include "common/socket.h"

enum {
    ADDRESS_BYTES = 256,
    KEY_FILE_BYTES_MAX = 1024,
};

struct bt_client {
    char address[ADDRESS_BYTES];
    char authorization[BT_CLIENT_AUTHORIZATION_BYTES]; /* "": none */
    bool is_operator;
    bt_loop *loop;
    bt_rpc *rpc;
    bt_rpc_channel *channel;
    bt_signal *interrupt;
    /* of the call that is running */
    const bt_client_call *call;
    bt_rpc_call *rpc_call;
    bt_error *err;
    bt_status status;
    bool interrupted;
    bool unreadable;
};

static void on_interrupt(void *ctx)
{
    bt_client *client = ctx;
    client->interrupted = true;
    if (client->rpc_call) {
        bt_rpc_call_cancel(client->rpc_call);
    }
}

static bt_status show_key(const char *key, char out[BT_CLIENT_AUTHORIZATION_BYTES], bt_error *err)
{
    const size_t len = strlen(key);
    bool visible = len > 0 && len <= BT_KEYS_SECRET_MAX;
    for (size_t i = 0; i < len; i++) {
        visible = visible && key[i] > ' ' && key[i] <= '~';
    }
    if (!visible) {
        return bt_error_set(
            err, BT_EINVAL,
            "the API key must be 1 to %d visible ASCII characters, and nothing else",
            BT_KEYS_SECRET_MAX);
    }
    (void)snprintf(out, BT_CLIENT_AUTHORIZATION_BYTES, "Bearer %s", key);
    return BT_OK;
}

bt_status bt_client_authorization(const bt_client_options *options,
                                  char out[BT_CLIENT_AUTHORIZATION_BYTES], bt_error *err)
{
    out[0] = '\0';
    if (options->api_key && *options->api_key) {
        return show_key(options->api_key, out, err);
    }
    if (!options->api_key_file || !*options->api_key_file) {
        return BT_OK;
    }
    char *text = NULL;
    size_t len = 0;
    bt_status status = bt_file_read(options->api_key_file, KEY_FILE_BYTES_MAX, &text, &len, err);
    if (status == BT_OK) {
        text[strcspn(text, "\r\n")] = '\0';
        status = show_key(text, out, err);
        bt_file_free(text, len);
    }
    if (status != BT_OK) {
        bt_error_prefix(err, "--api-key-file");
    }
    return status;
}

bt_status bt_client_open(const bt_client_options *options, bt_client **out, bt_error *err)
{
    const char *address = options->address;
    const bt_rpc_tls *tls = bt_cli_tls(&options->tls);
    bt_status status = bt_socket_check(address, err);
    if (status == BT_OK && tls) {
        status = bt_rpc_tls_check(tls, false, err);
    }
    if (status != BT_OK) {
        return status;
    }
    bt_client *client = calloc(1, sizeof *client);
    if (!client) {
        return bt_error_set(err, BT_ENOMEM, "no memory for a client");
    }
    (void)strncpy(client->address, address, sizeof client->address - 1);
    client->is_operator = options->is_operator;
    status = bt_client_authorization(options, client->authorization, err);
    if (status != BT_OK) {
        bt_client_close(client);
        return status;
    }
    status = bt_loop_create(&client->loop);
    if (status == BT_OK) {
        status = bt_rpc_create(client->loop, &client->rpc);
    }
    if (status == BT_OK) {
        const bt_rpc_channel_options channel = {.address = client->address, .tls = tls};
        status = bt_rpc_channel_create(client->rpc, &channel, &client->channel);
    }
    if (status == BT_OK) {
        status = bt_signal_create(client->loop, SIGINT, on_interrupt, client, &client->interrupt);
    }
    if (status != BT_OK) {
        bt_client_close(client);
        return bt_error_set(err, status, "cannot make a client of '%s': %s", address,
                            bt_status_text(status));
    }
    *out = client;
    return BT_OK;
}

void bt_client_close(bt_client *client)
{
    if (!client) {
        return;
    }
    if (client->interrupt) {
        bt_signal_destroy(client->interrupt);
    }
    if (client->channel) {
        bt_rpc_channel_destroy(client->channel);
    }
    if (client->rpc) {
        bt_rpc_destroy(client->rpc);
    }
    if (client->loop) {
        bt_loop_destroy(client->loop);
    }
    bt_hash_wipe(client->authorization, sizeof client->authorization);
    free(client);
}

static void on_message(bt_rpc_call *rpc_call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    bt_client *client = ctx;
    if (end) {
        return;
    }
    ProtobufCMessage *reply = protobuf_c_message_unpack(client->call->reply_type, NULL, len, data);
    if (!reply) {
        client->unreadable = true;
        bt_rpc_call_cancel(rpc_call);
        return;
    }
    client->call->on_reply(client->call->ctx, reply);
    protobuf_c_message_free_unpacked(reply, NULL);
    bt_rpc_call_recv(rpc_call);
}

/* gRPC's own words for a server that was not reached end with what happened: "failed to connect to
 * all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7070: ... Connection refused". */
static void tell_unreached(const bt_client *client, const char *message)
{
    static const char mark[] = "last error: ";
    const char *reason = strstr(message, mark);
    reason = reason ? reason + strlen(mark) : message;
    const char *address = strstr(reason, client->address);
    if (address && strncmp(address + strlen(client->address), ": ", 2) == 0) {
        reason = address + strlen(client->address) + 2; /* it is in the text already */
    }
    const bool nobody = strstr(reason, "refused") || strstr(reason, "No such file");
    const bool other = strstr(reason, "Socket closed") || strstr(reason, "http1") ||
                       strstr(reason, "Ssl") || strstr(reason, "certificate");
    (void)bt_error_set(
        client->err, client->status, "no router answers at %s: %.100s%s", client->address, reason,
        nobody ? ". Does one run there? `baton up` starts a cluster"
        : other
            ? ". Something else is there, or TLS is: --tls-ca, and --tls-cert and --tls-key where "
              "it asks for them"
            : "");
}

/* What a failed call means to who typed the command: where, what, and what to do. */
static void tell_failure(const bt_client *client, bt_rpc_code code, const char *message)
{
    bt_error *err = client->err;
    const bt_status status = client->status;
    const char *text = *message ? message : bt_status_text(status);
    if (code == BT_RPC_UNAUTHENTICATED && !client->is_operator) {
        (void)bt_error_set(err, status, "%s: %s. Give --api-key-file FILE, or BATON_API_KEY",
                           client->address, text);
    } else if (code == BT_RPC_UNAVAILABLE &&
               (strstr(message, "failed to connect") || strstr(message, "DNS resolution"))) {
        tell_unreached(client, message);
    } else if (code == BT_RPC_UNIMPLEMENTED) {
        (void)bt_error_set(err, status, "%s: %s. Give the router's %s address", client->address,
                           text, client->is_operator ? "--attach" : "--listen");
    } else if (code == BT_RPC_DEADLINE_EXCEEDED && client->call->timeout_ns > 0 &&
               strcmp(text, "Deadline Exceeded") == 0) { /* this side's: gRPC's words */
        (void)bt_error_set(err, status, "%s: no complete answer within %g s", client->address,
                           (double)client->call->timeout_ns / 1e9);
    } else if (code == BT_RPC_UNAUTHENTICATED || code == BT_RPC_UNAVAILABLE) {
        (void)bt_error_set(err, status, "%s: %s", client->address, text);
    } else {
        (void)bt_error_set(err, status, "%s", text);
    }
}

static void on_done(bt_rpc_call *rpc_call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)rpc_call;
    bt_client *client = ctx;
    client->rpc_call = NULL;
    client->status = client->interrupted ? BT_ECANCELLED : bt_rpc_status_of(code);
    if (client->interrupted) {
        (void)bt_error_set(client->err, BT_ECANCELLED, "interrupted");
    } else if (client->unreadable) {
        client->status = bt_error_set(client->err, BT_EPROTOCOL,
                                      "the server at %s sends messages of another kind. Are client "
                                      "and server of one version?",
                                      client->address);
    } else if (code != BT_RPC_OK) {
        tell_failure(client, code, message ? message : "");
    }
    bt_loop_stop(client->loop);
}

static const bt_rpc_callbacks callbacks = {
    .on_message = on_message,
    .on_done = on_done,
};

bt_status bt_client_run(bt_client *client, const bt_client_call *call, bt_error *err)
{
    const size_t len = protobuf_c_message_get_packed_size(call->request);
    uint8_t *bytes = malloc(len > 0 ? len : 1);
    if (!bytes) {
        return bt_error_set(err, BT_ENOMEM, "no memory for the request");
    }
    (void)protobuf_c_message_pack(call->request, bytes);
    client->call = call;
    client->err = err;
    client->unreadable = false;
    const bt_rpc_meta meta = {.key = "authorization", .value = client->authorization};
    const bt_rpc_start start = {.path = call->path,
                                .deadline_ns = call->timeout_ns,
                                .meta = &meta,
                                .n_meta = *client->authorization ? 1 : 0};
    const bt_status status =
        bt_rpc_channel_start(client->channel, &start, &callbacks, client, &client->rpc_call);
    if (status != BT_OK) {
        free(bytes);
        return bt_error_set(err, status, "cannot start a call to %s", client->address);
    }
    bt_rpc_call_send(client->rpc_call, bytes, len);
    bt_rpc_call_close_send(client->rpc_call);
    bt_rpc_call_recv(client->rpc_call);
    free(bytes);
    bt_loop_run(client->loop);
    return client->status;
}
