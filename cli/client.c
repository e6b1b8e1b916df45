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

enum {
    ADDRESS_BYTES = 256,
    KEY_FILE_BYTES_MAX = 1024,
};

struct bt_client {
    char address[ADDRESS_BYTES];
    char authorization[BT_CLIENT_AUTHORIZATION_BYTES]; /* "": none */
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
    bt_status status = tls ? bt_rpc_tls_check(tls, false, err) : BT_OK;
    if (status != BT_OK) {
        return status;
    }
    bt_client *client = calloc(1, sizeof *client);
    if (!client) {
        return bt_error_set(err, BT_ENOMEM, "no memory for a client");
    }
    (void)strncpy(client->address, address, sizeof client->address - 1);
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
    } else if (code == BT_RPC_UNAUTHENTICATED) {
        (void)bt_error_set(client->err, client->status,
                           "%s: %s. Give --api-key-file FILE, or "
                           "BATON_API_KEY",
                           client->address, message);
    } else if (code == BT_RPC_UNAVAILABLE) {
        (void)bt_error_set(client->err, client->status,
                           "%s: %s. `baton status` shows the cluster, `baton up` starts one",
                           client->address, message && *message ? message : "no answer");
    } else if (code != BT_RPC_OK) {
        (void)bt_error_set(client->err, client->status, "%s",
                           message && *message ? message : bt_status_text(client->status));
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
