/* SPDX-License-Identifier: Apache-2.0 */
/* Check answers at once. A watcher is a stream with the state it was told last; a change is told
 * as soon as its stream can take it, so that one which reads slowly skips states but ends with
 * the newest.
 *
 * Everybody may call, also who has no key. So nobody is refused for those who were there before:
 * the oldest call of the same method gives way, and a Check, which needs one round trip, gets
 * through whoever holds streams open. */
#include "proto/health.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "proto/health.pb-c.h"

enum {
    NAME_BYTES = 128,
    WATCHERS_MAX = 256,
    REPLY_BYTES = 16,
};

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;

#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN
#define NOTHING_TOLD GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__UNKNOWN

typedef struct watcher {
    bt_health *health;
    bt_rpc_call *call;
    struct watcher *prev;
    struct watcher *next;
    char service[NAME_BYTES];
    bool is_watch; /* else a Check, whose only message is awaited */
    bool asked;    /* the request has come */
    bool is_over;  /* its end is on the way */
    serving_status told;
} watcher;

typedef struct service {
    char name[NAME_BYTES];
    bool serving;
} service;

struct bt_health {
    service services[BT_HEALTH_SERVICES_MAX];
    size_t n_services;
    watcher *watchers; /* calls of both methods, the newest first */
    uint32_t n_watchers;
    uint32_t watchers_max;
    bool stopping;
};

static service *find_service(bt_health *health, const char *name)
{
    for (size_t i = 0; i < health->n_services; i++) {
        if (strcmp(health->services[i].name, name) == 0) {
            return &health->services[i];
        }
    }
    return NULL;
}

static void send_status(bt_rpc_call *call, serving_status status)
{
    Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    reply.status = status;
    uint8_t bytes[REPLY_BYTES];
    BT_ASSERT(grpc__health__v1__health_check_response__get_packed_size(&reply) <= sizeof bytes);
    bt_rpc_call_send(call, bytes, grpc__health__v1__health_check_response__pack(&reply, bytes));
}

static void tell_watcher(watcher *w)
{
    if (!w->is_watch || !w->asked || w->is_over || !bt_rpc_call_can_send(w->call)) {
        return;
    }
    const service *s = find_service(w->health, w->service);
    const serving_status now = s == NULL ? SERVICE_UNKNOWN : s->serving ? SERVING : NOT_SERVING;
    if (now != w->told) {
        w->told = now;
        send_status(w->call, now);
    } else if (w->health->stopping) {
        bt_rpc_call_finish(w->call, BT_RPC_UNAVAILABLE, "the server is shutting down", NULL, 0);
    }
}

static void answer_check(watcher *w)
{
    const service *s = find_service(w->health, w->service);
    if (s == NULL) {
        bt_rpc_call_finish(w->call, BT_RPC_NOT_FOUND, "no such service", NULL, 0);
        return;
    }
    send_status(w->call, s->serving ? SERVING : NOT_SERVING);
    bt_rpc_call_finish(w->call, BT_RPC_OK, "", NULL, 0);
}

static void on_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    watcher *w = ctx;
    if (w->is_over) {
        return;
    }
    Grpc__Health__V1__HealthCheckRequest *request =
        end ? NULL : grpc__health__v1__health_check_request__unpack(NULL, len, data);
    if (request == NULL) {
        bt_rpc_call_finish(call, BT_RPC_INVALID_ARGUMENT, "no HealthCheckRequest", NULL, 0);
        return;
    }
    /* No service can have a longer name, nor this one. */
    static const char unknown[] = "?";
    const size_t n = strlen(request->service);
    const bool fits = n < sizeof w->service;
    memcpy(w->service, fits ? request->service : unknown, fits ? n + 1 : sizeof unknown);
    grpc__health__v1__health_check_request__free_unpacked(request, NULL);
    w->asked = true;
    if (w->is_watch) {
        tell_watcher(w);
    } else {
        answer_check(w);
    }
}

static void on_sent(bt_rpc_call *call, void *ctx)
{
    (void)call;
    tell_watcher(ctx);
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    (void)code;
    (void)message;
    watcher *w = ctx;
    if (w->prev != NULL) {
        w->prev->next = w->next;
    } else {
        w->health->watchers = w->next;
    }
    if (w->next != NULL) {
        w->next->prev = w->prev;
    }
    w->health->n_watchers--;
    free(w);
}

static const bt_rpc_callbacks callbacks = {on_message, on_sent, on_done};

/* Room for one more call of this method. */
static void make_room(bt_health *health, bool is_watch)
{
    uint32_t n = 0;
    watcher *oldest = NULL;
    for (watcher *w = health->watchers; w != NULL; w = w->next) {
        if (w->is_watch == is_watch && !w->is_over) {
            n++;
            oldest = w;
        }
    }
    if (n >= health->watchers_max) {
        oldest->is_over = true;
        bt_rpc_call_cancel(oldest->call);
    }
}

static void begin(bt_health *health, bt_rpc_call *call, bool is_watch)
{
    make_room(health, is_watch);
    /* Those of both methods, and as many whose end is on the way. */
    const bool has_room = health->n_watchers < 4 * health->watchers_max;
    watcher *w = has_room ? calloc(1, sizeof *w) : NULL;
    if (w == NULL) {
        bt_rpc_call_finish(call, BT_RPC_RESOURCE_EXHAUSTED, "too many health calls", NULL, 0);
        return;
    }
    w->health = health;
    w->call = call;
    w->is_watch = is_watch;
    w->told = NOTHING_TOLD;
    w->next = health->watchers;
    if (w->next != NULL) {
        w->next->prev = w;
    }
    health->watchers = w;
    health->n_watchers++;
    bt_rpc_call_accept(call, &callbacks, w);
    bt_rpc_call_recv(call);
}

static void on_check(bt_rpc_call *call, void *ctx)
{
    begin(ctx, call, false);
}

static void on_watch(bt_rpc_call *call, void *ctx)
{
    begin(ctx, call, true);
}

bt_status bt_health_create(bt_rpc_server *server, uint32_t watchers_max, bt_health **out)
{
    bt_health *health = calloc(1, sizeof *health);
    if (health == NULL) {
        return BT_ENOMEM;
    }
    health->watchers_max = watchers_max > 0 ? watchers_max : WATCHERS_MAX;
    health->n_services = 1; /* "", not serving */
    bt_status status =
        bt_rpc_server_handle(server, "/grpc.health.v1.Health/Check", on_check, health);
    if (status == BT_OK) {
        status = bt_rpc_server_handle(server, "/grpc.health.v1.Health/Watch", on_watch, health);
    }
    if (status != BT_OK) {
        free(health);
        return status;
    }
    *out = health;
    return BT_OK;
}

bt_status bt_health_set(bt_health *health, const char *name, bool serving)
{
    if (strlen(name) >= NAME_BYTES || name[0] == '?') {
        return BT_EINVAL;
    }
    service *s = find_service(health, name);
    if (s == NULL) {
        if (health->n_services == BT_HEALTH_SERVICES_MAX) {
            return BT_EEXHAUSTED;
        }
        s = &health->services[health->n_services++];
        memcpy(s->name, name, strlen(name) + 1);
    }
    s->serving = serving && !health->stopping;
    for (watcher *w = health->watchers; w != NULL; w = w->next) {
        tell_watcher(w);
    }
    return BT_OK;
}

void bt_health_stop(bt_health *health)
{
    health->stopping = true;
    for (size_t i = 0; i < health->n_services; i++) {
        health->services[i].serving = false;
    }
    for (watcher *w = health->watchers; w != NULL; w = w->next) {
        if (!w->asked && !w->is_over) { /* it may never ask */
            w->is_over = true;
            bt_rpc_call_finish(w->call, BT_RPC_UNAVAILABLE, "the server is shutting down", NULL, 0);
        }
        tell_watcher(w);
    }
}

void bt_health_destroy(bt_health *health)
{
    if (health == NULL) {
        return;
    }
    BT_ASSERT(health->watchers == NULL);
    free(health);
}
