/* SPDX-License-Identifier: Apache-2.0 */
/* `baton drain WORKER`: lets a worker finish or hand over what it has, and exit.
 *
 * The call is idempotent and answers with how far it is; --wait asks again until the worker is
 * gone. The incarnation of the first answer goes along, so that one that was started again under
 * the name is left alone. */
#include <stdio.h>
#include <time.h>

#include "cli/admin.h"
#include "cli/cli.h"
#include "common/clock.h"
#include "proto/admin.pb-c.h"

enum { POLL_MS = 250 };

typedef struct drain_options {
    bt_admin_options admin;
    bool wait;
    int64_t timeout_ns;
} drain_options;

static const bt_config_option options_table[] = {
    BT_ADMIN_CONFIG_ROWS(drain_options, admin),
    {.name = "wait",
     .type = BT_CONFIG_BOOL,
     .group = "Request",
     .fallback = "false",
     .help = "Waits until the worker is gone, and tells how far it is.",
     .offset = offsetof(drain_options, wait)},
    {.name = "timeout",
     .type = BT_CONFIG_DURATION,
     .group = "Request",
     .fallback = "60s",
     .min = INT64_C(1000000),
     .max = INT64_C(86400000000000),
     .help = "How long to wait for an answer, and with --wait for the worker to go.",
     .offset = offsetof(drain_options, timeout_ns)},
};

static const bt_config_spec spec = {
    .command = "baton drain",
    .section = "drain",
    .summary = "Takes a worker out of service without a lost or changed token: it takes nothing "
               "new, hands\n"
               "running streams to other decode workers, finishes the rest and exits with 0, at "
               "the latest\n"
               "after its --drain-time. SIGTERM does the same.",
    .examples = "  baton drain decode-1 --wait\n"
                "  baton drain prefill-0 --attach 10.0.0.1:7071 --cluster-key-file key\n",
    .arguments = "WORKER",
    .options = options_table,
    .n_options = BT_ARRAY_LEN(options_table),
};

typedef struct progress {
    const char *worker;
    bool answered;
    uint64_t incarnation;
    uint64_t told; /* what the last line said */
} progress;

static void on_reply(void *ctx, const ProtobufCMessage *message)
{
    progress *p = ctx;
    const Baton__Admin__V1__DrainReply *reply = (const Baton__Admin__V1__DrainReply *)message;
    const uint64_t now = (uint64_t)reply->requests_running << 40 ^
                         (uint64_t)reply->requests_waiting << 20 ^ reply->handed_over;
    p->incarnation = reply->incarnation;
    if (p->answered && now == p->told) {
        return;
    }
    p->answered = true;
    p->told = now;
    printf("%s drains: %u running, %u waiting, %llu handed over\n", p->worker,
           reply->requests_running, reply->requests_waiting,
           (unsigned long long)reply->handed_over);
    (void)fflush(stdout);
}

static bt_status ask(bt_client *client, progress *p, int64_t timeout_ns, bt_error *err)
{
    Baton__Admin__V1__DrainRequest request = BATON__ADMIN__V1__DRAIN_REQUEST__INIT;
    request.worker = (char *)(uintptr_t)p->worker;
    request.incarnation = p->incarnation;
    const bt_client_call call = {
        .path = "/baton.admin.v1.Admin/Drain",
        .request = &request.base,
        .reply_type = &baton__admin__v1__drain_reply__descriptor,
        .timeout_ns = timeout_ns,
        .on_reply = on_reply,
        .ctx = p,
    };
    return bt_client_run(client, &call, err);
}

static bt_status drain(const drain_options *o, const char *worker, bt_error *err)
{
    bt_client *client = NULL;
    bt_status status = bt_admin_open(&o->admin, &client, err);
    if (status != BT_OK) {
        return status;
    }
    progress p = {.worker = worker};
    const int64_t until_ns = bt_clock_now_ns() + o->timeout_ns;
    int64_t left_ns = o->timeout_ns;
    status = ask(client, &p, left_ns, err);
    while (status == BT_OK && o->wait) {
        const struct timespec pause = {.tv_nsec = POLL_MS * 1000 * 1000};
        (void)nanosleep(&pause, NULL);
        left_ns = until_ns - bt_clock_now_ns();
        if (left_ns <= 0) {
            status = bt_error_set(err, BT_EDEADLINE, "worker '%s' is still there", worker);
            break;
        }
        status = ask(client, &p, left_ns, err);
    }
    bt_client_close(client);
    if (status == BT_ENOTFOUND && p.answered) {
        printf("%s is gone\n", worker);
        return BT_OK;
    }
    return status;
}

static int run(int argc, char **argv)
{
    drain_options o = {0};
    bt_config *config = NULL;
    const int early = bt_cli_configure(&spec, argc, argv, &o, &config);
    if (early != BT_CLI_RUN) {
        return early;
    }
    bt_error err = {""};
    const bt_config_list names = bt_config_arguments(config);
    const bool is_usage = names.n != 1;
    const bt_status status = is_usage ? bt_error_set(&err, BT_EINVAL, "give the name of one worker")
                                      : drain(&o, names.items[0], &err);
    bt_config_destroy(config);
    return status == BT_OK ? BT_CLI_OK : bt_cli_fail("drain", status, &err, is_usage);
}

const bt_cli_command bt_cli_drain = {
    .name = "drain",
    .summary = "take a worker out of service without losing a token",
    .run = run,
};
