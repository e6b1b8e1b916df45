/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queue, its thread, and what calls of both sides have in common.
 *
 *   loop thread                    gRPC                     completion thread
 *   grpc_call_start_batch(op) -->  works on it  --> completion_queue_next -> op
 *   on_wake: op->fn(op, ok)   <---------- bounded ring, bt_wake <-----------'
 *
 * 1. Everything but the completion thread's function runs on the loop thread, so nothing
 *    here has a lock. That thread looks into no op; it only carries its address.
 * 2. A full ring makes the completion thread wait; completions then stay in gRPC's queue,
 *    which is bounded by the operations in flight (a few for each call).
 * 3. Rings of the bell merge until the loop answers, so a burst costs one wake-up.
 * 4. A call is freed when its end has arrived (op_end) and no operation is out. Until then
 *    every late user call (send, finish, cancel) is harmless.
 *
 * gRPC's library is not built with ThreadSanitizer, which therefore cannot see that its queue
 * orders the two threads. The annotations (rpc_int.h) in op_started and in the thread say so. */
#include "common/rpc_int.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/check.h"
#include "common/log.h"
#include "common/queue.h"

enum {
    RING_ITEMS = 4096,
    DRAIN_MAX = 1024, /* completions handled in a row, so that timers get their turn */
    FULL_WAIT_NS = 100 * 1000,
    PATIENCE_NS = 10 * 1000 * 1000,
};

typedef struct completion {
    bt_rpc_op *op;
    bool ok;
} completion;

struct bt_rpc {
    bt_loop *loop;
    bt_wake *wake;
    bt_queue *ring; /* completion thread -> loop thread */
    grpc_completion_queue *queue;
    pthread_t thread;
    size_t n_pending; /* operations that gRPC has; loop thread */
};

/* A string that the user borrowed until its call is over. */
typedef struct bt_rpc_text {
    struct bt_rpc_text *next;
    char text[];
} bt_rpc_text;

bt_rpc_code bt_rpc_code_of(bt_status status)
{
    switch (status) {
    case BT_OK:
        return BT_RPC_OK;
    case BT_EINVAL:
        return BT_RPC_INVALID_ARGUMENT;
    case BT_ENOTFOUND:
        return BT_RPC_NOT_FOUND;
    case BT_ECANCELLED:
        return BT_RPC_CANCELLED;
    case BT_EDEADLINE:
        return BT_RPC_DEADLINE_EXCEEDED;
    case BT_AGAIN:
    case BT_EEXHAUSTED:
    case BT_ENOMEM:
        return BT_RPC_RESOURCE_EXHAUSTED;
    case BT_ERANGE:
        return BT_RPC_OUT_OF_RANGE;
    case BT_EUNSUPPORTED:
        return BT_RPC_UNIMPLEMENTED;
    case BT_ECORRUPT:
        return BT_RPC_DATA_LOSS;
    case BT_EABORTED:
        return BT_RPC_ABORTED;
    case BT_EEXISTS:
        return BT_RPC_ALREADY_EXISTS;
    case BT_EPERMISSION:
        return BT_RPC_PERMISSION_DENIED;
    case BT_EPEER:
        return BT_RPC_UNAVAILABLE;
    case BT_EMISMATCH:
        return BT_RPC_FAILED_PRECONDITION;
    case BT_EPROTOCOL:
    case BT_EIO:
    case BT_EINTERNAL:
        return BT_RPC_INTERNAL;
    }
    return BT_RPC_UNKNOWN;
}

bt_status bt_rpc_status_of(bt_rpc_code code)
{
    switch (code) {
    case BT_RPC_OK:
        return BT_OK;
    case BT_RPC_CANCELLED:
        return BT_ECANCELLED;
    case BT_RPC_INVALID_ARGUMENT:
    case BT_RPC_FAILED_PRECONDITION:
        return BT_EINVAL;
    case BT_RPC_OUT_OF_RANGE:
        return BT_ERANGE;
    case BT_RPC_DEADLINE_EXCEEDED:
        return BT_EDEADLINE;
    case BT_RPC_NOT_FOUND:
        return BT_ENOTFOUND;
    case BT_RPC_RESOURCE_EXHAUSTED:
        return BT_EEXHAUSTED;
    case BT_RPC_ABORTED:
        return BT_EABORTED;
    case BT_RPC_UNIMPLEMENTED:
        return BT_EUNSUPPORTED;
    case BT_RPC_PERMISSION_DENIED:
    case BT_RPC_UNAUTHENTICATED:
        return BT_EPERMISSION;
    default:
        return BT_EPEER;
    }
}

/* ---- completion thread ---- */

static void carry(bt_rpc *rpc, grpc_event event)
{
    const completion item = {.op = event.tag, .ok = event.success != 0};
    BT_RPC_TAKE_OVER(item.op);
    while (bt_queue_push(rpc->ring, &item) == BT_AGAIN) {
        bt_wake_ring(rpc->wake);
        nanosleep(&(struct timespec){.tv_nsec = FULL_WAIT_NS}, NULL);
    }
    bt_wake_ring(rpc->wake);
}

static void *run_completions(void *arg)
{
    bt_rpc *rpc = arg;
    for (;;) {
        const grpc_event event =
            grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            return NULL;
        }
        if (event.type == GRPC_OP_COMPLETE) {
            carry(rpc, event);
        }
    }
}

static bt_status start_thread(bt_rpc *rpc)
{
    /* Signals are for the loop thread; gRPC's own threads inherit this mask too. */
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&rpc->thread, NULL, run_completions, rpc);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? BT_ENOMEM : BT_OK;
}

/* ---- loop thread ---- */

static bool handle_one(bt_rpc *rpc)
{
    completion item;
    if (!bt_queue_pop(rpc->ring, &item)) {
        return false;
    }
    BT_ASSERT(rpc->n_pending > 0);
    rpc->n_pending--;
    item.op->fn(item.op, item.ok);
    return true;
}

static void on_wake(void *ctx)
{
    bt_rpc *rpc = ctx;
    for (size_t i = 0; i < DRAIN_MAX; i++) {
        if (!handle_one(rpc)) {
            return;
        }
    }
    bt_wake_ring(rpc->wake);
}

/* gRPC tells callers what went wrong through statuses; its log repeats that with its own
 * line numbers. Only what precedes an abort must not be lost. */
static void on_grpc_log(gpr_log_func_args *args)
{
    const bool fatal = strstr(args->message, "ssertion failed") != NULL;
    bt_log(fatal ? BT_ERROR : BT_DEBUG, "grpc: place=%s:%d text=\"%s\"", args->file, args->line,
           args->message);
}

bt_status bt_rpc_create(bt_loop *loop, bt_rpc **out)
{
    bt_rpc *rpc = calloc(1, sizeof *rpc);
    if (rpc == NULL) {
        return BT_ENOMEM;
    }
    rpc->loop = loop;
    bt_status status = bt_queue_create(sizeof(completion), RING_ITEMS, &rpc->ring);
    if (status != BT_OK) {
        goto fail_rpc;
    }
    status = bt_wake_create(loop, on_wake, rpc, &rpc->wake);
    if (status != BT_OK) {
        goto fail_ring;
    }
    gpr_set_log_function(on_grpc_log);
    grpc_init();
    rpc->queue = grpc_completion_queue_create_for_next(NULL);
    status = start_thread(rpc);
    if (status != BT_OK) {
        goto fail_queue;
    }
    *out = rpc;
    return BT_OK;

fail_queue:
    grpc_completion_queue_shutdown(rpc->queue);
    grpc_completion_queue_destroy(rpc->queue);
    grpc_shutdown();
    bt_wake_destroy(rpc->wake);
fail_ring:
    bt_queue_destroy(rpc->ring);
fail_rpc:
    free(rpc);
    return status;
}

void bt_rpc_destroy(bt_rpc *rpc)
{
    if (rpc == NULL) {
        return;
    }
    /* Calls of destroyed channels are cancelled already: their ends are on the way. */
    while (rpc->n_pending > 0) {
        if (!handle_one(rpc)) {
            (void)bt_queue_wait(rpc->ring, PATIENCE_NS);
        }
    }
    grpc_completion_queue_shutdown(rpc->queue);
    pthread_join(rpc->thread, NULL);
    grpc_completion_queue_destroy(rpc->queue);
    grpc_shutdown();
    bt_wake_destroy(rpc->wake);
    bt_queue_destroy(rpc->ring);
    free(rpc);
}

bt_loop *bt_rpc_loop(bt_rpc *rpc)
{
    return rpc->loop;
}

grpc_completion_queue *bt_rpc_queue(bt_rpc *rpc)
{
    return rpc->queue;
}

void bt_rpc_op_started(bt_rpc *rpc, bt_rpc_op *op)
{
    (void)op;
    rpc->n_pending++;
}

/* ---- metadata ---- */

static bool meta_is_legal(const bt_rpc_meta *meta)
{
    const grpc_slice key = grpc_slice_from_static_string(meta->key);
    const grpc_slice value = grpc_slice_from_static_string(meta->value);
    return grpc_header_key_is_legal(key) && !grpc_is_binary_header(key) &&
           grpc_header_nonbin_value_is_legal(value);
}

bt_status bt_rpc_meta_copy(const bt_rpc_meta *meta, size_t n, bt_rpc_meta_list *out, size_t *n_bad)
{
    *n_bad = 0;
    *out = (bt_rpc_meta_list){0};
    if (n == 0) {
        return BT_OK;
    }
    grpc_metadata *items = calloc(n, sizeof *items);
    if (items == NULL) {
        return BT_ENOMEM;
    }
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        if (!meta_is_legal(&meta[i])) {
            (*n_bad)++;
            continue;
        }
        items[n_out].key = grpc_slice_from_copied_string(meta[i].key);
        items[n_out].value = grpc_slice_from_copied_string(meta[i].value);
        n_out++;
    }
    *out = (bt_rpc_meta_list){.items = items, .n = n_out};
    return BT_OK;
}

void bt_rpc_meta_free(bt_rpc_meta_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        grpc_slice_unref(list->items[i].key);
        grpc_slice_unref(list->items[i].value);
    }
    free(list->items);
    *list = (bt_rpc_meta_list){0};
}

/* ---- calls ---- */

bt_rpc_call *bt_rpc_call_new(bt_rpc *rpc)
{
    bt_rpc_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        return NULL;
    }
    call->rpc = rpc;
    grpc_metadata_array_init(&call->meta_in);
    grpc_metadata_array_init(&call->trailing_in);
    call->message_in = grpc_empty_slice();
    call->message_out = grpc_empty_slice();
    return call;
}

void bt_rpc_call_free(bt_rpc_call *call)
{
    BT_ASSERT(call->n_pending == 0);
    if (call->send_buffer != NULL) {
        grpc_byte_buffer_destroy(call->send_buffer);
    }
    if (call->recv_buffer != NULL) {
        grpc_byte_buffer_destroy(call->recv_buffer);
    }
    bt_rpc_meta_free(&call->initial_out);
    bt_rpc_meta_free(&call->trailing_out);
    grpc_metadata_array_destroy(&call->meta_in);
    grpc_metadata_array_destroy(&call->trailing_in);
    grpc_slice_unref(call->message_in);
    grpc_slice_unref(call->message_out);
    gpr_free(call->peer);
    free(call->kept);
    while (call->texts != NULL) {
        bt_rpc_text *text = call->texts;
        call->texts = text->next;
        free(text);
    }
    if (call->core != NULL) {
        grpc_call_unref(call->core);
    }
    free(call);
}

void bt_rpc_call_link(bt_rpc_call **head, bt_rpc_call *call)
{
    call->prev = NULL;
    call->next = *head;
    if (*head != NULL) {
        (*head)->prev = call;
    }
    *head = call;
}

void bt_rpc_call_unlink(bt_rpc_call **head, bt_rpc_call *call)
{
    if (call->prev != NULL) {
        call->prev->next = call->next;
    } else {
        BT_ASSERT(*head == call);
        *head = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
}

void bt_rpc_call_batch(bt_rpc_call *call, const grpc_op *ops, size_t n, bt_rpc_op *op)
{
    call->n_pending++;
    bt_rpc_op_started(call->rpc, op);
    BT_RPC_HAND_OVER(op);
    const grpc_call_error error = grpc_call_start_batch(call->core, ops, n, op, NULL);
    /* Anything else is a batch of ours that gRPC's rules do not allow. */
    BT_ASSERT(error == GRPC_CALL_OK);
}

grpc_op bt_rpc_initial_op(bt_rpc_call *call, uint32_t flags)
{
    BT_ASSERT(!call->meta_sent);
    call->meta_sent = true;
    return (grpc_op){
        .op = GRPC_OP_SEND_INITIAL_METADATA,
        .flags = flags,
        .data.send_initial_metadata = {.count = call->initial_out.n,
                                       .metadata = call->initial_out.items},
    };
}

/* Text for the user that lives as long as the call. */
static const char *keep_text(bt_rpc_call *call, grpc_slice slice)
{
    const size_t len = GRPC_SLICE_LENGTH(slice);
    bt_rpc_text *text = malloc(sizeof *text + len + 1);
    if (text == NULL) {
        return NULL;
    }
    memcpy(text->text, GRPC_SLICE_START_PTR(slice), len);
    text->text[len] = '\0';
    text->next = call->texts;
    call->texts = text;
    return text->text;
}

void bt_rpc_call_try_end(bt_rpc_call *call)
{
    if (!call->ended || call->n_pending > 0 || call->done_told) {
        return;
    }
    call->done_told = true;
    bt_rpc_code code = BT_RPC_OK;
    const char *message = "";
    if (call->server != NULL) {
        code = call->last_ok && !call->cancelled_in ? BT_RPC_OK : BT_RPC_CANCELLED;
    } else {
        code = (bt_rpc_code)call->status_in;
        message = keep_text(call, call->message_in);
    }
    if (call->callbacks != NULL) {
        call->callbacks->on_done(call, code, message != NULL ? message : "", call->ctx);
    }
    BT_ASSERT(call->n_pending == 0);
    if (call->server != NULL) {
        bt_rpc_server_call_gone(call->server, call);
    } else {
        bt_rpc_channel_call_gone(call->channel, call);
    }
}

/* ---- receive ---- */

static void tell_message(bt_rpc_call *call, grpc_byte_buffer *buffer)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
        bt_rpc_call_cancel(call);
        return;
    }
    /* Most messages are one slice, which is shown in place. */
    grpc_slice *piece = NULL;
    if (grpc_byte_buffer_reader_peek(&reader, &piece) &&
        GRPC_SLICE_LENGTH(*piece) == grpc_byte_buffer_length(buffer)) {
        call->callbacks->on_message(call, GRPC_SLICE_START_PTR(*piece), GRPC_SLICE_LENGTH(*piece),
                                    false, call->ctx);
        grpc_byte_buffer_reader_destroy(&reader);
        return;
    }
    grpc_byte_buffer_reader_destroy(&reader);
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
        bt_rpc_call_cancel(call);
        return;
    }
    const grpc_slice whole = grpc_byte_buffer_reader_readall(&reader);
    call->callbacks->on_message(call, GRPC_SLICE_START_PTR(whole), GRPC_SLICE_LENGTH(whole), false,
                                call->ctx);
    grpc_slice_unref(whole);
    grpc_byte_buffer_reader_destroy(&reader);
}

static void on_recv(bt_rpc_op *op, bool ok)
{
    bt_rpc_call *call = bt_container_of(op, bt_rpc_call, op_recv);
    grpc_byte_buffer *buffer = call->recv_buffer;
    call->recv_buffer = NULL;
    call->recv_in_flight = false;
    /* Still counted as pending: a callback must not find the call ended under its feet. */
    if (buffer != NULL) {
        if (ok) {
            tell_message(call, buffer);
        }
        grpc_byte_buffer_destroy(buffer);
    } else if (ok && !(call->server != NULL && call->ended)) {
        /* On a server, nothing after the close is a half-close but a cancelled call. */
        call->callbacks->on_message(call, NULL, 0, true, call->ctx);
    }
    call->n_pending--;
    bt_rpc_call_try_end(call);
}

void bt_rpc_call_recv(bt_rpc_call *call)
{
    if (call->ended || call->callbacks == NULL) {
        return;
    }
    BT_ASSERT(!call->recv_in_flight);
    call->recv_in_flight = true;
    call->op_recv.fn = on_recv;
    const grpc_op ops[] = {
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->recv_buffer},
    };
    bt_rpc_call_batch(call, ops, BT_ARRAY_LEN(ops), &call->op_recv);
}

/* ---- send ---- */

static void on_send(bt_rpc_op *op, bool ok)
{
    bt_rpc_call *call = bt_container_of(op, bt_rpc_call, op_send);
    grpc_byte_buffer_destroy(call->send_buffer);
    call->send_buffer = NULL;
    bt_rpc_call_start_last(call);
    /* A failed send is not told here: the end of the call is on its way. */
    if (ok && !call->ended && call->callbacks != NULL && call->callbacks->on_sent != NULL) {
        call->callbacks->on_sent(call, call->ctx);
    }
    call->n_pending--;
    bt_rpc_call_try_end(call);
}

bool bt_rpc_call_can_send(const bt_rpc_call *call)
{
    return call->send_buffer == NULL && !call->last_wanted && !call->ended;
}

void bt_rpc_call_send(bt_rpc_call *call, const uint8_t *data, size_t len)
{
    if (call->ended || call->last_wanted) {
        return;
    }
    BT_ASSERT(call->send_buffer == NULL);
    grpc_slice slice = grpc_slice_malloc(len);
    if (len > 0) {
        memcpy(GRPC_SLICE_START_PTR(slice), data, len);
    }
    call->send_buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    call->op_send.fn = on_send;
    grpc_op ops[2];
    size_t n = 0;
    if (!call->meta_sent) {
        ops[n++] = bt_rpc_initial_op(call, 0);
    }
    ops[n++] =
        (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = call->send_buffer};
    bt_rpc_call_batch(call, ops, n, &call->op_send);
}

static void on_last(bt_rpc_op *op, bool ok)
{
    bt_rpc_call *call = bt_container_of(op, bt_rpc_call, op_last);
    call->last_ok = ok;
    call->n_pending--;
    bt_rpc_call_try_end(call);
}

void bt_rpc_call_start_last(bt_rpc_call *call)
{
    if (!call->last_wanted || call->last_started || call->ended || call->send_buffer != NULL) {
        return;
    }
    call->last_started = true;
    call->op_last.fn = on_last;
    grpc_op ops[2];
    size_t n = 0;
    if (call->server != NULL) {
        n = bt_rpc_server_last_ops(call, ops);
    } else {
        ops[n++] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    }
    bt_rpc_call_batch(call, ops, n, &call->op_last);
}

/* ---- either side ---- */

void bt_rpc_call_set_ctx(bt_rpc_call *call, void *ctx)
{
    call->ctx = ctx;
}

bool bt_rpc_call_keep(bt_rpc_call *call, const void *bytes, size_t n)
{
    void *copy = malloc(n > 0 ? n : 1);
    if (copy == NULL) {
        return false;
    }
    memcpy(copy, bytes, n);
    free(call->kept);
    call->kept = copy;
    return true;
}

const void *bt_rpc_call_kept(const bt_rpc_call *call)
{
    return call->kept;
}

void bt_rpc_call_cancel(bt_rpc_call *call)
{
    if (!call->ended) {
        (void)grpc_call_cancel(call->core, NULL);
    }
}

static const char *find_meta(bt_rpc_call *call, const grpc_metadata_array *array, const char *key)
{
    for (size_t i = 0; i < array->count; i++) {
        if (grpc_slice_str_cmp(array->metadata[i].key, key) == 0) {
            return keep_text(call, array->metadata[i].value);
        }
    }
    return NULL;
}

const char *bt_rpc_call_meta(const bt_rpc_call *call, const char *key)
{
    /* What is handed out is noted on the call, which the user sees as unchanged. */
    bt_rpc_call *owner = (bt_rpc_call *)(uintptr_t)call;
    const char *value = find_meta(owner, &call->trailing_in, key);
    return value != NULL ? value : find_meta(owner, &call->meta_in, key);
}

int64_t bt_rpc_call_deadline_left_ns(const bt_rpc_call *call)
{
    const gpr_timespec deadline = gpr_convert_clock_type(call->deadline, GPR_CLOCK_MONOTONIC);
    if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_MONOTONIC)) >= 0) {
        return INT64_MAX;
    }
    const gpr_timespec left = gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC));
    if (left.tv_sec > INT64_MAX / GPR_NS_PER_SEC - 1) {
        return INT64_MAX;
    }
    return left.tv_sec * (int64_t)GPR_NS_PER_SEC + left.tv_nsec;
}

const char *bt_rpc_call_peer(const bt_rpc_call *call)
{
    bt_rpc_call *owner = (bt_rpc_call *)(uintptr_t)call;
    if (owner->peer == NULL) {
        owner->peer = grpc_call_get_peer(owner->core);
    }
    return owner->peer != NULL ? owner->peer : "";
}
