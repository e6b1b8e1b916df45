/* SPDX-License-Identifier: Apache-2.0 */
/* Start, stop, and the callbacks of the link. Start takes everything in order and stops at the
 * first failure; destroy takes half-made routers. Stop goes through these steps, each begun by
 * the end of the one before:
 *   1. health says not serving, new requests are refused, running ones go on for grace_ms;
 *   2. what still runs then is failed, and the client server ends: with its last call, or cut
 *      after MESSAGE_SLACK_MS;
 *   3. workers are told, and the attach server ends;
 *   4. jobs on the work pool come back (tick looks for it), and done(ctx) is called. */
#include "router/router.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/name.h"
#include "router/router_int.h"

enum {
    TICK_MS = 100,
    CLIENT_IDLE_MS = 15 * 60 * 1000, /* a connection that makes no call is closed */
    ATTACH_GRACE_MS = 1000,
    MESSAGE_SLACK_MS = 1000, /* for statuses of failed requests to leave */
    STOP_POLL_MS = 5,
    REFUSE_NS = 500 * 1000 * 1000, /* after the last stream, while clients still come */
    MS_NS = 1000 * 1000,
};

void bt_router_options_init(bt_router_options *options)
{
    *options = (bt_router_options){
        .client_address = "127.0.0.1:7070",
        .attach_address = "127.0.0.1:7071",
        .name = "router",
        .requests_max = 1024,
        .queue_max = 512,
        .request_bytes_max = 4 << 20,
        .request_time_ms = 600000,
        .queue_time_ms = 30000,
        .client_bytes_max = 64 << 20,
        .slow_client_bytes = 4 << 20,
        .read_time_ms = 30000,
        .http_keepalive_ms = 10000,
        .retry_pushback_ms = 1000,
        .local_prefill = true,
        .attempts_max = 3,
        .recoveries_max = 3,
        .prefix_blocks_max = 1 << 18,
        .drain_prefix_bytes = 256 << 20,
        .worker_timeout_ms = 3000,
        .ring_requests = 1024,
    };
}

/* --------------------------------------------------------------------------- the link ---- */

static const char *role_text(bt_link_role role)
{
    return role == BT_LINK_ROLE_PREFILL  ? "prefill"
           : role == BT_LINK_ROLE_DECODE ? "decode"
                                         : "both";
}

static bt_status on_worker_up(bt_link_peer *peer, const bt_link_hello *hello, void *ctx,
                              bt_error *err)
{
    bt_router *router = ctx;
    uint32_t model_idx;
    bt_status status = bt_router_models_match(router->models, hello, &model_idx, err);
    bt_router_worker *worker = NULL;
    if (status == BT_OK) {
        status = bt_router_registry_add(router->registry, peer, hello, model_idx, bt_clock_now_ns(),
                                        &worker, err);
    }
    if (status != BT_OK) {
        return status;
    }
    bt_link_peer_set_ctx(peer, worker);
    bt_log(BT_INFO,
           "worker attached: worker=%s role=%s model=%s kernels=%s incarnation=%016" PRIx64
           " pool_blocks=%" PRIu32 " address=%s",
           hello->kv.name, role_text(hello->role), hello->model, hello->kernels,
           hello->kv.incarnation, hello->pool_blocks, bt_link_peer_address(peer));
    bt_wake_ring(router->queue_wake);
    return BT_OK;
}

static void on_load(bt_link_peer *peer, const bt_link_load *load, void *ctx)
{
    bt_router *router = ctx;
    bt_router_worker *worker = bt_link_peer_ctx(peer);
    const bool was_stuck = worker->load.stuck_ns > 0;
    bt_router_registry_report(worker, load, bt_clock_now_ns());
    if (was_stuck != (load->stuck_ns > 0)) {
        bt_log(BT_WARN, "worker %s: worker=%s requests=%" PRIu32,
               was_stuck ? "moves again" : "is stuck", worker->hello.kv.name, worker->n_requests);
    }
    if (load->stuck_ns > 0) {
        bt_router_on_worker_lost(router, worker, "its engine does not move", false);
    }
    if (bt_router_worker_is_draining(worker)) {
        bt_router_move_away(router, worker);
        bt_router_hand_over(router, worker);
    }
    if (router->queue_head != NULL) {
        bt_wake_ring(router->queue_wake);
    }
}

static void on_tokens(bt_link_peer *peer, const bt_link_tokens *tokens, void *ctx)
{
    bt_router_on_tokens(ctx, bt_link_peer_ctx(peer), tokens);
}

static void on_finished(bt_link_peer *peer, const bt_link_finished *finished, void *ctx)
{
    bt_router_on_finished(ctx, bt_link_peer_ctx(peer), finished);
}

static void on_parked(bt_link_peer *peer, const bt_link_parked *parked, void *ctx)
{
    bt_router_on_parked(ctx, bt_link_peer_ctx(peer), parked);
}

static void on_fetched(bt_link_peer *peer, const bt_link_fetched *fetched, void *ctx)
{
    bt_router_on_fetched(ctx, bt_link_peer_ctx(peer), fetched);
}

static void on_blocks(bt_link_peer *peer, bt_link_blocks_kind kind, const bt_block_hash *ids,
                      size_t n, void *ctx)
{
    bt_router *router = ctx;
    const bt_router_worker *worker = bt_link_peer_ctx(peer);
    switch (kind) {
    case BT_LINK_BLOCKS_RESET:
        bt_router_prefix_map_drop_worker(router->prefix_map, worker->slot);
        break;
    case BT_LINK_BLOCKS_STORED:
        bt_router_prefix_map_store(router->prefix_map, worker->slot, ids, n);
        break;
    case BT_LINK_BLOCKS_EVICTED:
        bt_router_prefix_map_evict(router->prefix_map, worker->slot, ids, n);
        break;
    }
}

static void on_worker_down(bt_link_peer *peer, const char *reason, void *ctx)
{
    bt_router *router = ctx;
    bt_router_worker *worker = bt_link_peer_ctx(peer);
    bt_log(router->stopping ? BT_INFO : BT_WARN,
           "worker gone: worker=%s requests=%" PRIu32 " why=\"%s\"", worker->hello.kv.name,
           worker->n_requests, reason);
    bt_router_on_worker_lost(router, worker, reason, true);
    bt_router_prefix_map_drop_worker(router->prefix_map, worker->slot);
    const uint64_t session = worker->session;
    bt_router_registry_remove(router->registry, worker);
    bt_router_fetches_lost(router, session);
}

static void on_explained(bt_link_peer *peer, uint64_t number, const bt_link_timeline *timelines,
                         size_t n, void *ctx)
{
    const bt_router *router = ctx;
    bt_router_explains_answer(router->explains, bt_link_peer_ctx(peer), number, timelines, n);
}

static const bt_link_router_callbacks link_callbacks = {
    .on_worker_up = on_worker_up,
    .on_load = on_load,
    .on_tokens = on_tokens,
    .on_finished = on_finished,
    .on_parked = on_parked,
    .on_fetched = on_fetched,
    .on_blocks = on_blocks,
    .on_explained = on_explained,
    .on_worker_down = on_worker_down,
};

/* ------------------------------------------------------------------------------- tick ---- */

bool bt_router_is_ready(const bt_router *router)
{
    if (router->stopping) {
        return false;
    }
    for (size_t i = 0; i < bt_router_models_count(router->models); i++) {
        if (bt_router_model_is_ready(router, (uint32_t)i)) {
            return true;
        }
    }
    return false;
}

static void on_tick(void *ctx)
{
    bt_router *router = ctx;
    bt_router_report_tick(router);
    bt_router_forget_excess(router);
    bt_router_explains_tick(router->explains);
    const bool is_ready = bt_router_is_ready(router);
    if (is_ready == router->was_ready || router->stopping) {
        return;
    }
    router->was_ready = is_ready;
    bt_log(BT_INFO, "readiness changed: ready=%d", (int)is_ready);
    if (bt_health_set(router->health, "", is_ready) != BT_OK ||
        bt_health_set(router->health, "baton.v1.Generation", is_ready) != BT_OK) {
        bt_log(BT_ERROR, "health table is full");
    }
}

/* ------------------------------------------------------------------------------ start ---- */

static bt_status check_range(const char *name, uint64_t value, uint64_t min, uint64_t max,
                             bt_error *err)
{
    if (value >= min && value <= max) {
        return BT_OK;
    }
    return bt_error_set(err, BT_EINVAL,
                        "router option %s is %" PRIu64 ": must be %" PRIu64 " to %" PRIu64, name,
                        value, min, max);
}

static bt_status check_options(const bt_router_options *o, bt_error *err)
{
    const uint64_t day_ms = 86400000;
    const struct {
        const char *name;
        uint64_t value;
        uint64_t min;
        uint64_t max;
    } ranges[] = {
        {"models", o->n_models, 1, BT_ROUTER_MODELS_MAX},
        {"requests_max", o->requests_max, 1, 65536},
        {"queue_max", o->queue_max, 0, 65536},
        {"request_bytes_max", o->request_bytes_max, 1024, 1 << 30},
        {"request_time_ms", o->request_time_ms, 1, day_ms},
        {"queue_time_ms", o->queue_time_ms, 0, day_ms},
        {"ttft_max_ms", o->ttft_max_ms, 0, day_ms},
        {"tpot_max_ms", o->tpot_max_ms, 0, day_ms},
        {"slow_client_bytes", o->slow_client_bytes, 4096, UINT64_MAX},
        {"read_time_ms", o->read_time_ms, 1, day_ms},
        {"http_keepalive_ms", o->http_keepalive_ms, 1, day_ms},
        {"retry_pushback_ms", o->retry_pushback_ms, 0, day_ms},
        {"attempts_max", o->attempts_max, 1, BT_ROUTER_ATTEMPTS_MAX},
        {"recoveries_max", o->recoveries_max, 0, BT_ROUTER_RECOVERIES_MAX},
        {"prefix_blocks_max", o->prefix_blocks_max, 1, 1 << 28},
        {"worker_timeout_ms", o->worker_timeout_ms, 100, day_ms},
        {"ring_requests", o->ring_requests, 0, 1 << 20},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(ranges); i++) {
        const bt_status status =
            check_range(ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max, err);
        if (status != BT_OK) {
            return status;
        }
    }
    return o->name == NULL ? BT_OK
                           : bt_name_check("a router's name", o->name, BT_LINK_NAME_MAX, err);
}

static bt_status read_models(bt_router *router, bt_error *err)
{
    bt_status status = bt_router_models_create(router->options.n_models, &router->models);
    for (size_t i = 0; i < router->options.n_models && status == BT_OK; i++) {
        const bt_router_model *model = &router->options.models[i];
        status = bt_router_models_add(router->models, model->path, model->name, err);
    }
    return status;
}

static bt_status create_state(bt_router *router, bt_metrics *metrics)
{
    bt_status status = bt_router_registry_create(&router->registry);
    if (status == BT_OK) {
        status =
            bt_router_prefix_map_create(router->options.prefix_blocks_max, &router->prefix_map);
    }
    if (status == BT_OK) {
        status = bt_router_hot_create(&router->hot);
    }
    if (status == BT_OK) {
        status = bt_router_clients_create(router->options.requests_max, &router->clients);
    }
    if (status == BT_OK) {
        status = bt_router_requests_create(router);
    }
    if (status == BT_OK) {
        status = bt_router_meters_create(metrics, &router->meters);
    }
    if (status == BT_OK) {
        status =
            bt_router_explains_create(router, router->options.ring_requests, &router->explains);
    }
    if (status == BT_OK) {
        status = bt_wake_create(router->loop, bt_router_queue_drain, router, &router->queue_wake);
    }
    if (status == BT_OK) {
        status = bt_timer_create(router->loop, on_tick, router, &router->tick);
    }
    return status;
}

static bool is_given(const char *text)
{
    return text != NULL && text[0] != '\0';
}

/* `tls` if any of it is given, else NULL: plain text. */
static const bt_rpc_tls *wanted_tls(const bt_rpc_tls *tls)
{
    return is_given(tls->cert) || is_given(tls->key) || is_given(tls->ca) ? tls : NULL;
}

static bt_status create_client_side(bt_router *router, bt_error *err)
{
    const bt_rpc_tls tls = {
        .cert = router->options.tls_cert,
        .key = router->options.tls_key,
        .ca = router->options.tls_client_ca,
    };
    const bt_rpc_server_options options = {
        .address = router->options.client_address,
        .message_bytes_max = router->options.request_bytes_max,
        .idle_ms = CLIENT_IDLE_MS,
        .tls = wanted_tls(&tls),
        .guard = router->options.keys != NULL ? bt_router_guard : NULL,
        .guard_ctx = router,
    };
    bt_status status = bt_rpc_server_create(router->rpc, &options, &router->client_server, err);
    if (status == BT_OK) {
        status = bt_health_create(router->client_server, 0, &router->health);
    }
    if (status == BT_OK) {
        status =
            bt_reflection_create(router->client_server, &bt_reflection_front, &router->reflection);
    }
    if (status == BT_OK) {
        status = bt_router_front_grpc_create(router, &router->front_grpc);
    }
    return status;
}

static bt_status create_attach_side(bt_router *router, bt_error *err)
{
    const bt_rpc_tls tls = {
        .cert = router->options.attach_tls_cert,
        .key = router->options.attach_tls_key,
        .ca = router->options.attach_tls_client_ca,
    };
    const bt_rpc_server_options server_options = {
        .address = router->options.attach_address,
        .message_bytes_max = 16 << 20, /* twice what a worker sends at most */
        .tls = wanted_tls(&tls),
    };
    bt_status status =
        bt_rpc_server_create(router->rpc, &server_options, &router->attach_server, err);
    if (status != BT_OK) {
        return status;
    }
    bt_link_router_options options = {
        .name = router->name,
        .cluster_key = router->options.cluster_key,
        .workers_max = BT_ROUTER_WORKERS_MAX,
        .silence_ms = (uint32_t)router->options.worker_timeout_ms,
        .callbacks = &link_callbacks,
        .ctx = router,
    };
    status =
        bt_link_router_create(router->loop, router->attach_server, &options, &router->link, err);
    return status == BT_OK ? bt_router_admin_register(router) : status;
}

bt_status bt_router_create(bt_loop *loop, bt_rpc *rpc, bt_metrics *metrics,
                           const bt_router_options *options, bt_router **out, bt_error *err)
{
    if (err != NULL) {
        err->text[0] = '\0';
    }
    bt_status status = check_options(options, err);
    if (status != BT_OK) {
        return status;
    }
    bt_router *router = calloc(1, sizeof *router);
    if (router == NULL) {
        return bt_error_set(err, BT_ENOMEM, "the router is out of memory");
    }
    router->loop = loop;
    router->rpc = rpc;
    router->options = *options;
    router->tpot_limit_ns = (int64_t)options->tpot_max_ms * 1000000;
    router->started_ns = bt_clock_now_ns();
    snprintf(router->name, sizeof router->name, "%s",
             options->name == NULL ? "router" : options->name);
    status = read_models(router, err);
    if (status == BT_OK) {
        status = create_state(router, metrics);
    }
    if (status == BT_OK) {
        status = create_client_side(router, err);
    }
    if (status == BT_OK) {
        status = create_attach_side(router, err);
    }
    /* Both ports first: a server that has started can't be taken back from in here. */
    if (status == BT_OK) {
        status = bt_rpc_server_bind(router->client_server, err);
    }
    if (status == BT_OK) {
        status = bt_rpc_server_bind(router->attach_server, err);
    }
    if (status == BT_OK && options->http_address != NULL) {
        const bt_router_front_http_options http = {
            .address = options->http_address,
            .keys = options->keys,
            .tls_cert = is_given(options->tls_cert) ? options->tls_cert : NULL,
            .tls_key = is_given(options->tls_key) ? options->tls_key : NULL,
            .tls_client_ca = is_given(options->tls_client_ca) ? options->tls_client_ca : NULL,
        };
        status = bt_router_front_http_create(router, &http, &router->front_http, err);
    }
    if (status == BT_OK) {
        status = bt_rpc_server_start(router->attach_server, err);
        BT_ASSERT(status == BT_OK);
        status = bt_rpc_server_start(router->client_server, err);
        BT_ASSERT(status == BT_OK);
    }
    if (status != BT_OK) {
        if (err != NULL && err->text[0] == '\0') {
            (void)bt_error_set(err, status, "the router could not start: %s",
                               bt_status_text(status));
        }
        bt_router_destroy(router);
        return status;
    }
    /* Borrowed during create alone. */
    router->options.client_address = NULL;
    router->options.attach_address = NULL;
    router->options.http_address = NULL;
    router->options.name = router->name;
    memset(router->options.models, 0, sizeof router->options.models);
    bt_timer_start(router->tick, 0, TICK_MS);
    *out = router;
    return BT_OK;
}

void bt_router_tick(bt_router *router)
{
    bt_router_requests_tick(router);
    on_tick(router);
}

int bt_router_client_port(const bt_router *router)
{
    return bt_rpc_server_port(router->client_server);
}

int bt_router_attach_port(const bt_router *router)
{
    return bt_rpc_server_port(router->attach_server);
}

int bt_router_http_port(const bt_router *router)
{
    return router->front_http == NULL ? 0 : bt_router_front_http_port(router->front_http);
}

/* ------------------------------------------------------------------------------- stop ---- */

static void on_stop_poll(void *ctx)
{
    bt_router *router = ctx;
    if (router->counts.n_live > 0 || bt_router_front_grpc_is_busy(router->front_grpc)) {
        return;
    }
    bt_timer_stop(router->stop_timer);
    bt_log(BT_INFO, "router stopped: name=%s", router->name);
    router->stop_done(router->stop_ctx);
}

static void on_attach_closed(void *ctx)
{
    bt_router *router = ctx;
    bt_timer_destroy(router->stop_timer);
    router->stop_timer = NULL;
    if (bt_timer_create(router->loop, on_stop_poll, router, &router->stop_timer) != BT_OK) {
        bt_log(BT_ERROR, "router could not wait for its last jobs: out of memory");
        router->stop_done(router->stop_ctx);
        return;
    }
    bt_timer_start(router->stop_timer, 0, STOP_POLL_MS);
}

static void on_http_drained(void *ctx)
{
    bt_router *router = ctx;
    bt_timer_stop(router->tick);
    bt_router_explains_stop(router->explains);
    bt_link_router_stop(router->link, "the router is shutting down");
    bt_rpc_server_shutdown(router->attach_server, ATTACH_GRACE_MS, on_attach_closed, router);
}

/* The last call over gRPC has ended; those over HTTP need the workers still. */
static void on_clients_closed(void *ctx)
{
    bt_router *router = ctx;
    bt_router_front_http_drain(router->front_http, on_http_drained, router);
}

/* Streams end one by one; when none is left, or their time is up, the server goes. Until then it
 * answers: a new request is told UNAVAILABLE, health NOT_SERVING. gRPC's own shutdown would cancel
 * calls that are on their way. */
static void on_drain_poll(void *ctx)
{
    bt_router *router = ctx;
    if (bt_clock_now_ns() >= router->drain_until_ns) {
        bt_router_requests_fail_all(router, "the router is shutting down");
    } else if (router->counts.n_live > 0) {
        return;
    } else if (!bt_rpc_server_is_idle(router->client_server) && router->refused_ns < REFUSE_NS) {
        router->refused_ns += STOP_POLL_MS * MS_NS; /* refusals, and last words, leave */
        return;
    }
    if (router->stop_timer != NULL) {
        bt_timer_stop(router->stop_timer);
    }
    bt_rpc_server_shutdown(router->client_server, MESSAGE_SLACK_MS, on_clients_closed, router);
}

void bt_router_shutdown(bt_router *router, uint64_t grace_ms, bt_loop_fn done, void *ctx)
{
    BT_ASSERT(!router->stopping);
    router->stopping = true;
    router->stop_done = done;
    router->stop_ctx = ctx;
    bt_log(BT_INFO, "router stopping: name=%s requests=%" PRIu32 " grace_ms=%" PRIu64, router->name,
           router->counts.n_live, grace_ms);
    bt_health_stop(router->health);
    bt_reflection_stop(router->reflection);
    router->drain_until_ns = bt_clock_now_ns() + (int64_t)grace_ms * MS_NS;
    if (grace_ms == 0 ||
        bt_timer_create(router->loop, on_drain_poll, router, &router->stop_timer) != BT_OK) {
        router->drain_until_ns = 0;
        on_drain_poll(router);
    } else {
        bt_timer_start(router->stop_timer, 0, STOP_POLL_MS);
    }
}

void bt_router_destroy(bt_router *router)
{
    if (router == NULL) {
        return;
    }
    bt_router_front_http_destroy(router->front_http);
    bt_rpc_server_destroy(router->client_server);
    bt_rpc_server_destroy(router->attach_server);
    bt_link_router_destroy(router->link);
    bt_router_front_grpc_destroy(router->front_grpc);
    bt_reflection_destroy(router->reflection);
    bt_health_destroy(router->health);
    bt_timer_destroy(router->stop_timer);
    bt_timer_destroy(router->tick);
    bt_wake_destroy(router->queue_wake);
    bt_router_requests_destroy(router);
    bt_router_clients_destroy(router->clients);
    bt_router_meters_destroy(router->meters);
    bt_router_explains_destroy(router->explains);
    bt_router_prefix_map_destroy(router->prefix_map);
    bt_router_hot_destroy(router->hot);
    bt_router_registry_destroy(router->registry);
    bt_router_models_destroy(router->models);
    bt_hash_wipe(&router->options.cluster_key, sizeof router->options.cluster_key);
    free(router);
}
