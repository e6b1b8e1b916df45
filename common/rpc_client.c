/* SPDX-License-Identifier: Apache-2.0 */
/* The client's side: a channel to one address, and calls on it.
 *
 * gRPC connects by itself when a call wants it, and again after a loss, waiting
 * reconnect_max_ms at most. Each channel has its own connection (two links to one router must
 * not share their fate), and no retries of gRPC's own: whoever calls knows better.
 *
 * RECV_STATUS_ON_CLIENT is started with each call and is its end (op_end). */
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/log.h"
#include "common/rpc_int.h"

enum {
    MESSAGE_BYTES = 4 * 1024 * 1024,
    METADATA_BYTES = 16 * 1024,
    KEEPALIVE_MS = 10 * 1000,
    KEEPALIVE_TIMEOUT_MS = 5 * 1000,
    RECONNECT_MAX_MS = 1000,
    RECONNECT_FIRST_MS = 100,
    CONNECT_TIMEOUT_MS = 2000,
    ARGS_MAX = 16,
};

struct bt_rpc_channel {
    bt_rpc *rpc;
    bt_rpc_channel_options options; /* with its own address and no tls */
    bool has_tls;
    bt_rpc_tls_files tls;
    grpc_channel *core;
    bt_rpc_call *calls;
};

static grpc_arg int_arg(const char *key, uint64_t value)
{
    return (grpc_arg){
        .type = GRPC_ARG_INTEGER,
        .key = (char *)(uintptr_t)key,
        .value.integer = value > INT32_MAX ? INT32_MAX : (int)value,
    };
}

static void free_channel(bt_rpc_channel *channel)
{
    bt_rpc_tls_files_deinit(&channel->tls);
    free((char *)(uintptr_t)channel->options.address);
    free(channel);
}

static grpc_arg string_arg(const char *key, const char *value)
{
    return (grpc_arg){
        .type = GRPC_ARG_STRING,
        .key = (char *)(uintptr_t)key,
        .value.string = (char *)(uintptr_t)value,
    };
}

static grpc_channel *make_core(const bt_rpc_channel *channel, grpc_channel_credentials *credentials)
{
    const bt_rpc_channel_options *options = &channel->options;
    /* gRPC adds up to a fifth at random to what it is told. */
    const uint64_t longest =
        options->reconnect_max_ms > 0 ? options->reconnect_max_ms : RECONNECT_MAX_MS;
    const uint64_t reconnect = longest * 5 / 6;
    grpc_arg args[ARGS_MAX];
    size_t n = 0;
    args[n++] =
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                options->message_bytes_max > 0 ? options->message_bytes_max : MESSAGE_BYTES);
    args[n++] = int_arg(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES);
    args[n++] = int_arg(GRPC_ARG_KEEPALIVE_TIME_MS,
                        options->keepalive_ms > 0 ? options->keepalive_ms : KEEPALIVE_MS);
    args[n++] = int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS);
    args[n++] = int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    args[n++] = int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    args[n++] = int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                        reconnect < RECONNECT_FIRST_MS ? reconnect : RECONNECT_FIRST_MS);
    args[n++] = int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, reconnect);
    args[n++] = int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, CONNECT_TIMEOUT_MS);
    args[n++] = int_arg(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, reconnect);
    args[n++] = int_arg(GRPC_ARG_ENABLE_RETRIES, 0);
    args[n++] = int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args[n++] = int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (channel->tls.paths.server_name != NULL) {
        args[n++] = string_arg(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, channel->tls.paths.server_name);
    }
    BT_ASSERT(n <= ARGS_MAX);
    const grpc_channel_args list = {.num_args = n, .args = args};
    return grpc_channel_create(options->address, credentials, &list);
}

/* Makes the core from what the files say now; on failure the one before stays. */
static bt_status remake(bt_rpc_channel *channel, bt_error *err)
{
    grpc_channel_credentials *credentials = channel->has_tls
                                                ? bt_rpc_tls_channel_credentials(&channel->tls, err)
                                                : grpc_insecure_credentials_create();
    if (credentials == NULL) {
        return BT_EINVAL;
    }
    if (channel->core != NULL) {
        grpc_channel_destroy(channel->core);
    }
    channel->core = make_core(channel, credentials);
    grpc_channel_credentials_release(credentials);
    return BT_OK;
}

static void refresh_tls(bt_rpc_channel *channel)
{
    bt_error err = {{0}};
    if (channel->has_tls && channel->calls == NULL && bt_rpc_tls_files_changed(&channel->tls) &&
        remake(channel, &err) != BT_OK) {
        bt_log(BT_ERROR, "TLS files kept as they were: why=\"%s\"", err.text);
    }
}

bt_status bt_rpc_channel_create(bt_rpc *rpc, const bt_rpc_channel_options *options,
                                bt_rpc_channel **out)
{
    if (options->address == NULL || options->address[0] == '\0') {
        return BT_EINVAL;
    }
    bt_rpc_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL) {
        return BT_ENOMEM;
    }
    channel->rpc = rpc;
    channel->options = *options;
    channel->options.tls = NULL;
    channel->options.address = strdup(options->address);
    bt_status status = channel->options.address == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK && options->tls != NULL) {
        channel->has_tls = true;
        status = bt_rpc_tls_check(options->tls, false, NULL);
        if (status == BT_OK) {
            status = bt_rpc_tls_files_init(&channel->tls, options->tls);
        }
    }
    if (status == BT_OK) {
        status = remake(channel, NULL);
    }
    if (status != BT_OK) {
        free_channel(channel);
        return status;
    }
    *out = channel;
    return BT_OK;
}

void bt_rpc_channel_destroy(bt_rpc_channel *channel)
{
    if (channel == NULL) {
        return;
    }
    for (bt_rpc_call *call = channel->calls; call != NULL; call = call->next) {
        call->channel = NULL;
        bt_rpc_call_cancel(call);
    }
    grpc_channel_destroy(channel->core);
    free_channel(channel);
}

void bt_rpc_channel_call_gone(bt_rpc_channel *channel, bt_rpc_call *call)
{
    if (channel != NULL) {
        bt_rpc_call_unlink(&channel->calls, call);
    }
    bt_rpc_call_free(call);
}

static void on_started(bt_rpc_op *op, bool ok)
{
    (void)ok;
    bt_rpc_call *call = bt_container_of(op, bt_rpc_call, op_start);
    call->n_pending--;
    bt_rpc_call_try_end(call);
}

static void on_status(bt_rpc_op *op, bool ok)
{
    (void)ok;
    bt_rpc_call *call = bt_container_of(op, bt_rpc_call, op_end);
    call->ended = true;
    call->n_pending--;
    bt_rpc_call_try_end(call);
}

static void start_batches(bt_rpc_call *call, bool wait_for_ready)
{
    const uint32_t flags = wait_for_ready ? GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                                                GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET
                                          : 0;
    call->op_end.fn = on_status;
    const grpc_op end[] = {
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &call->trailing_in,
                                        .status = &call->status_in,
                                        .status_details = &call->message_in}},
    };
    bt_rpc_call_batch(call, end, BT_ARRAY_LEN(end), &call->op_end);
    call->op_start.fn = on_started;
    const grpc_op start[] = {
        bt_rpc_initial_op(call, flags),
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &call->meta_in},
    };
    bt_rpc_call_batch(call, start, BT_ARRAY_LEN(start), &call->op_start);
}

bt_status bt_rpc_channel_start(bt_rpc_channel *channel, const bt_rpc_start *start,
                               const bt_rpc_callbacks *callbacks, void *ctx, bt_rpc_call **out)
{
    refresh_tls(channel);
    bt_rpc_call *call = bt_rpc_call_new(channel->rpc);
    if (call == NULL) {
        return BT_ENOMEM;
    }
    size_t n_bad = 0;
    bt_status status = bt_rpc_meta_copy(start->meta, start->n_meta, &call->initial_out, &n_bad);
    if (status == BT_OK && n_bad > 0) {
        status = BT_EINVAL;
    }
    if (status != BT_OK) {
        bt_rpc_call_free(call);
        return status;
    }
    call->channel = channel;
    call->callbacks = callbacks;
    call->ctx = ctx;
    call->deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (start->deadline_ns > 0) {
        call->deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                      gpr_time_from_nanos(start->deadline_ns, GPR_TIMESPAN));
    }
    const grpc_slice path = grpc_slice_from_copied_string(start->path);
    call->core =
        grpc_channel_create_call(channel->core, NULL, GRPC_PROPAGATE_DEFAULTS,
                                 bt_rpc_queue(channel->rpc), path, NULL, call->deadline, NULL);
    grpc_slice_unref(path);
    bt_rpc_call_link(&channel->calls, call);
    start_batches(call, start->wait_for_ready);
    *out = call;
    return BT_OK;
}

void bt_rpc_call_close_send(bt_rpc_call *call)
{
    BT_ASSERT(call->server == NULL);
    if (call->ended || call->last_wanted) {
        return;
    }
    call->last_wanted = true;
    bt_rpc_call_start_last(call);
}
