/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/router/router_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/hash.h"
#include "tests/support/tiny_model.h"

static const int64_t second_ns = 1000000000;

/* ------------------------------------------------------------------------------- loop ---- */

typedef struct rig_waiting {
    bool (*cond)(void *ctx);
    void *ctx;
    int64_t deadline_ns;
    bool held;
} waiting;

/* Real time, also beside a fake clock: a test that hangs ends. */
static int64_t real_now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * second_ns + ts.tv_nsec;
}

static void on_poll(void *ctx)
{
    const rig *r = ctx;
    waiting *w = r->waiting;
    if (w->cond(w->ctx)) {
        w->held = true;
    }
    if (w->held || real_now_ns() > w->deadline_ns) {
        bt_loop_stop(r->loop);
    }
}

static bool run_until(rig *r, bool (*cond)(void *ctx), void *ctx, int64_t limit_ns)
{
    waiting w = {.cond = cond, .ctx = ctx, .deadline_ns = real_now_ns() + limit_ns};
    r->waiting = &w;
    bt_timer_start(r->poll, 0, 1);
    bt_loop_run(r->loop);
    bt_timer_stop(r->poll);
    r->waiting = NULL;
    return w.held;
}

void rig_wait(rig *r, bool (*cond)(void *ctx), void *ctx)
{
    if (!run_until(r, cond, ctx, 10 * second_ns)) {
        fail_msg("a condition did not come about within ten seconds");
    }
}

static bool never(void *ctx)
{
    (void)ctx;
    return false;
}

void rig_idle(rig *r)
{
    (void)run_until(r, never, NULL, second_ns / 20);
}

typedef struct counting {
    const uint32_t *count;
    uint32_t n;
} counting;

static bool has_counted(void *ctx)
{
    const counting *c = ctx;
    return *c->count >= c->n;
}

void rig_wait_runs(rig_worker *w, uint32_t n)
{
    counting c = {&w->n_runs, n};
    rig_wait(w->rig, has_counted, &c);
}

typedef struct park_wait {
    const rig_worker *w;
    uint32_t run;
    uint32_t n;
} park_wait;

static bool has_parks(void *ctx)
{
    const park_wait *wait = ctx;
    return wait->w->n_runs > wait->run && wait->w->runs[wait->run].n_parks >= wait->n;
}

void rig_wait_parks(rig_worker *w, uint32_t run, uint32_t n)
{
    park_wait wait = {w, run, n};
    rig_wait(w->rig, has_parks, &wait);
}

void rig_wait_cancels(rig_worker *w, uint32_t n)
{
    counting c = {&w->n_cancels, n};
    rig_wait(w->rig, has_counted, &c);
}

static bool is_done(void *ctx)
{
    return ((const rig_client *)ctx)->done;
}

void rig_wait_done(rig_client *c)
{
    rig_wait(c->rig, is_done, c);
}

typedef struct token_wait {
    const rig_client *c;
    uint32_t n;
} token_wait;

static bool has_tokens(void *ctx)
{
    const token_wait *t = ctx;
    return t->c->ids.n >= t->n || t->c->done;
}

void rig_wait_tokens(rig_client *c, uint32_t n)
{
    token_wait t = {c, n};
    rig_wait(c->rig, has_tokens, &t);
    assert_true(c->ids.n >= n);
}

static bool is_ready(void *ctx)
{
    return bt_router_is_ready(((const rig *)ctx)->router);
}

static bool is_not_ready(void *ctx)
{
    return !is_ready(ctx);
}

void rig_wait_ready(rig *r, bool ready)
{
    rig_wait(r, ready ? is_ready : is_not_ready, r);
}

static bool is_up(void *ctx)
{
    return ((const rig_worker *)ctx)->up;
}

void rig_wait_up(rig_worker *w)
{
    rig_wait(w->rig, is_up, w);
}

typedef struct metric_wait {
    const rig *r;
    const char *line;
} metric_wait;

static bool has_metric(void *ctx)
{
    const metric_wait *m = ctx;
    char line[128];
    snprintf(line, sizeof line, "\n%s\n", m->line);
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(bt_metrics_render(m->r->metrics, &text, &len), BT_OK);
    const bool found = strstr(text, line) != NULL;
    free(text);
    return found;
}

void rig_wait_metric(rig *r, const char *line)
{
    metric_wait m = {r, line};
    rig_wait(r, has_metric, &m);
}

/* ----------------------------------------------------------------------- fake workers ---- */

static rig_run *find_run(rig_worker *w, bt_request_id id, uint32_t attempt)
{
    for (uint32_t i = 0; i < w->n_runs; i++) {
        rig_run *run = &w->runs[i];
        if (run->id.hi == id.hi && run->id.lo == id.lo && run->attempt == attempt) {
            return run;
        }
    }
    return NULL;
}

float rig_logprob(uint32_t index)
{
    return -1.0F - (float)index;
}

static bt_token_result result_of(const rig_worker *w, const rig_run *run, uint32_t index)
{
    const char *reply = w->rig->reply;
    bt_token_result result = {
        .token = index < strlen(reply) ? (uint8_t)reply[index] : RIG_EOS,
        .has_logprob = run->logprobs,
        .logprob = run->logprobs ? rig_logprob(index) : 0,
        .n_top = run->logprobs ? w->n_top : 0,
    };
    for (uint32_t i = 0; i < result.n_top; i++) {
        result.top[i] = (bt_token_logprob){.token = (int32_t)i, .logprob = -2.0F};
    }
    return result;
}

static void emit(rig_worker *w, const rig_run *run, uint32_t index, bool is_prompt,
                 const bt_token_result *result)
{
    const bt_link_tokens tokens = {
        .id = run->id,
        .attempt = run->attempt,
        .first_index = index,
        .is_prompt = is_prompt,
        .results = result,
        .n_results = 1,
    };
    bt_link_worker_tokens(w->link, &tokens);
    if (w->repeat) {
        bt_link_worker_tokens(w->link, &tokens);
    }
}

static void finish(rig_worker *w, rig_run *run, bt_status status, bt_finish_reason reason)
{
    if (run->finished) {
        return;
    }
    run->finished = true;
    if (w->mute) {
        return;
    }
    bt_link_finished finished = {
        .id = run->id,
        .attempt = run->attempt,
        .status = status,
        .draining = status != BT_OK && w->fail_drains,
        .reason = reason,
        .prompt_tokens = run->n_tokens,
        .cached_tokens = w->cached_tokens,
        .generated_tokens = run->next_index,
        .queue_ns = 1000000,
        .prefill_ns = 2000000,
        .transfer_ns = 3000000,
        .blocks_total = 5,
        .blocks_moved = run->mode == BT_LINK_MODE_DECODE ? 4 : 0,
        .blocks_skipped = run->mode == BT_LINK_MODE_DECODE ? 1 : 0,
        .bytes_moved = run->mode == BT_LINK_MODE_DECODE ? 4096 : 0,
    };
    snprintf(finished.transport, sizeof finished.transport, "%s",
             run->mode == BT_LINK_MODE_DECODE ? "loopback" : "");
    if (reason == BT_FINISH_STOP) {
        finished.has_stop_token = true;
        finished.stop_token = RIG_EOS;
    }
    if (status != BT_OK) {
        (void)bt_error_set(&finished.error, status, "%s",
                           w->fail_text != NULL ? w->fail_text : "as the test wants it");
    }
    bt_link_worker_finished(w->link, &finished);
}

void rig_say_finished(rig_worker *w, rig_run *run, bt_status status, bt_finish_reason reason)
{
    finish(w, run, status, reason);
    bt_link_worker_flush(w->link);
}

void rig_say_tokens(rig_worker *w, const rig_run *run, uint32_t index, const char *text)
{
    for (uint32_t i = 0; text[i] != '\0'; i++) {
        const bt_token_result result = {.token = (uint8_t)text[i]};
        emit(w, run, index + i, false, &result);
    }
    bt_link_worker_flush(w->link);
}

static void echo_prompt(rig_worker *w, const rig_run *run)
{
    for (uint32_t i = 0; i < run->n_prompt && i < 64; i++) {
        const bt_token_result result = {
            .token = run->tokens[i], .has_logprob = i > 0, .logprob = -0.5F};
        emit(w, run, i, true, &result);
    }
}

/* Goes on with a run as far as the script allows. */
static void advance(rig_worker *w, rig_run *run)
{
    const bool is_prefill = run->mode == BT_LINK_MODE_PREFILL;
    if (run->mode == BT_LINK_MODE_DECODE &&
        result_of(w, run, run->next_index - 1).token == RIG_EOS) {
        finish(w, run, BT_OK, BT_FINISH_NONE); /* the prefill worker's first token is the last */
    }
    while (!run->finished && !run->cancelled && !run->parked) {
        const uint32_t n_made = run->next_index;
        if (run->max_tokens == 0) {
            finish(w, run, BT_OK, BT_FINISH_LENGTH);
            break;
        }
        if (w->emit_max > 0 && n_made >= w->emit_max) {
            break;
        }
        const bt_token_result result = result_of(w, run, n_made);
        emit(w, run, n_made, false, &result);
        if (w->wrong_duplicates) {
            const bt_token_result wrong = {.token = '?'};
            emit(w, run, n_made, false, &wrong);
        }
        run->next_index++;
        if (result.token == RIG_EOS) {
            finish(w, run, BT_OK, BT_FINISH_STOP);
        } else if (run->next_index >= run->max_tokens) {
            finish(w, run, BT_OK, BT_FINISH_LENGTH);
        } else if (is_prefill) {
            finish(w, run, BT_OK, BT_FINISH_NONE);
        }
    }
    bt_link_worker_flush(w->link);
}

static void on_run(const bt_link_run *in, void *ctx)
{
    rig_worker *w = ctx;
    assert_true(w->n_runs < RIG_RUNS_MAX);
    rig_run *run = &w->runs[w->n_runs];
    *run = (rig_run){
        .id = in->id,
        .attempt = in->attempt,
        .mode = in->mode,
        .n_tokens = in->n_tokens,
        .n_prompt = in->n_prompt,
        .max_tokens = in->sampling->max_tokens,
        .seed = in->sampling->seed,
        .echo = in->sampling->echo,
        .logprobs = in->sampling->logprobs,
        .has_peer = in->has_peer,
        .chain_root = in->chain_root,
        .deadline_left_ns = in->deadline_left_ns,
        .next_index = in->n_tokens - in->n_prompt + (in->mode == BT_LINK_MODE_DECODE ? 1 : 0),
    };
    memcpy(run->peer, in->peer.name, sizeof run->peer);
    memcpy(run->tokens, in->tokens,
           (in->n_tokens < 64 ? in->n_tokens : 64) * sizeof run->tokens[0]);
    w->n_runs++;
    if (w->fail != BT_OK) {
        finish(w, run, w->fail, BT_FINISH_ERROR);
        bt_link_worker_flush(w->link);
        return;
    }
    if (w->drops) {
        finish(w, run, BT_OK, BT_FINISH_NONE);
        bt_link_worker_flush(w->link);
        return;
    }
    if (run->echo && !w->hold_echo) {
        echo_prompt(w, run);
    }
    if (!w->hold) {
        advance(w, run);
    }
}

static void on_cancel(bt_request_id id, uint32_t attempt, void *ctx)
{
    rig_worker *w = ctx;
    w->n_cancels++;
    rig_run *run = find_run(w, id, attempt);
    assert_non_null(run);
    run->cancelled = true;
    finish(w, run, BT_ECANCELLED, BT_FINISH_CANCELLED);
    bt_link_worker_flush(w->link);
}

void rig_say_parked(rig_worker *w, rig_run *run, bt_status status)
{
    bt_link_parked parked = {
        .id = run->id,
        .attempt = run->attempt,
        .status = status,
        .generated_tokens = run->next_index,
    };
    if (status != BT_OK) {
        (void)bt_error_set(&parked.error, status, "as the test wants it");
    }
    run->parked = status == BT_OK;
    bt_link_worker_parked(w->link, &parked);
    bt_link_worker_flush(w->link);
}

void rig_drain(rig_worker *w)
{
    w->load.draining = true;
    bt_link_worker_load(w->link, &w->load);
    bt_link_worker_flush(w->link);
}

static void on_park(bt_request_id id, uint32_t attempt, uint32_t next_attempt, void *ctx)
{
    rig_worker *w = ctx;
    rig_run *run = find_run(w, id, attempt);
    assert_non_null(run);
    run->n_parks++;
    run->next_attempt = next_attempt;
    if (!w->hold_park) {
        rig_say_parked(w, run, w->park);
    }
}

static void on_resume(bt_request_id id, uint32_t attempt, void *ctx)
{
    rig_worker *w = ctx;
    rig_run *run = find_run(w, id, attempt);
    assert_non_null(run);
    assert_true(run->parked);
    run->parked = false;
    run->n_resumes++;
    advance(w, run);
}

static void on_drain(void *ctx)
{
    rig_worker *w = ctx;
    w->n_drains++;
}

static void on_fetch(uint32_t router, const bt_link_fetch *fetch, void *ctx)
{
    (void)router;
    rig_worker *w = ctx;
    assert_true(w->n_fetches < BT_ARRAY_LEN(w->fetches));
    rig_fetch *f = &w->fetches[w->n_fetches++];
    *f = (rig_fetch){
        .id = fetch->id, .n_ids = fetch->n_ids, .deadline_left_ms = fetch->deadline_left_ms};
    memcpy(f->peer, fetch->peer.name, sizeof f->peer);
    memcpy(f->ids, fetch->ids, bt_size_min(fetch->n_ids, BT_ARRAY_LEN(f->ids)) * sizeof f->ids[0]);
}

static void on_leave(void *ctx)
{
    rig_worker *w = ctx;
    w->n_leaves++;
}

uint32_t rig_store(rig_worker *w, const rig_run *run, bt_block_hash ids[4])
{
    const uint32_t n = run->n_prompt < 64 ? run->n_prompt : 64;
    const uint32_t n_ids = (uint32_t)bt_block_id_chain(&run->chain_root, run->tokens, n, ids);
    bt_link_worker_blocks(w->link, BT_LINK_BLOCKS_STORED, ids, n_ids);
    bt_link_worker_flush(w->link);
    return n_ids;
}

void rig_say_fetched(rig_worker *w, uint32_t i, bt_status status)
{
    const rig_fetch *f = &w->fetches[i];
    bt_link_fetched fetched = {.id = f->id, .status = status};
    if (status == BT_OK) {
        fetched.blocks_moved = f->n_ids;
        bt_link_worker_blocks(w->link, BT_LINK_BLOCKS_STORED, f->ids, f->n_ids);
    } else {
        (void)bt_error_set(&fetched.error, status, "as the test wants it");
    }
    bt_link_worker_fetched(w->link, 0, &fetched);
    bt_link_worker_flush(w->link);
}

void rig_wait_fetches(rig_worker *w, uint32_t n)
{
    counting c = {&w->n_fetches, n};
    rig_wait(w->rig, has_counted, &c);
    assert_int_equal(w->n_fetches, n);
}

void rig_wait_leaves(rig_worker *w, uint32_t n)
{
    counting c = {&w->n_leaves, n};
    rig_wait(w->rig, has_counted, &c);
}

static void on_router_up(uint32_t router, void *ctx)
{
    (void)router;
    ((rig_worker *)ctx)->up = true;
}

static void on_router_down(uint32_t router, const char *reason, void *ctx)
{
    (void)router;
    rig_worker *w = ctx;
    w->up = false;
    snprintf(w->down_reason, sizeof w->down_reason, "%s", reason);
}

static const bt_link_worker_callbacks worker_callbacks = {
    .on_run = on_run,
    .on_cancel = on_cancel,
    .on_park = on_park,
    .on_resume = on_resume,
    .on_drain = on_drain,
    .on_fetch = on_fetch,
    .on_leave = on_leave,
    .on_router_up = on_router_up,
    .on_router_down = on_router_down,
};

bt_link_hello rig_hello(const rig *r, const char *name, bt_link_role role)
{
    bt_link_hello hello = {
        .role = role,
        .kernels = "fake",
        .model = "tiny",
        .block_tokens = BT_BLOCK_HASH_TOKENS,
        .pool_blocks = RIG_CONTEXT / BT_BLOCK_HASH_TOKENS + 16,
        .block_bytes = 1024,
        .requests_max = 64,
        .context_tokens = RIG_CONTEXT,
        .step_tokens_max = 512,
    };
    snprintf(hello.kv.name, sizeof hello.kv.name, "%s", name);
    snprintf(hello.kv.kv_tcp, sizeof hello.kv.kv_tcp, "127.0.0.1:1");
    bt_hash_random(&hello.kv.incarnation, sizeof hello.kv.incarnation);
    memset(hello.numerics_id, 7, sizeof hello.numerics_id);
    memcpy(hello.tokenizer_hash, r->tokenizer_hash, sizeof hello.tokenizer_hash);
    return hello;
}

rig_worker *rig_dial(rig *r, const bt_link_hello *hello)
{
    assert_true(r->n_workers < RIG_WORKERS_MAX);
    rig_worker *w = &r->workers[r->n_workers++];
    *w = (rig_worker){.rig = r, .hello = *hello, .load = {.blocks_free = hello->pool_blocks}};
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", bt_router_attach_port(r->router));
    const char *const routers[] = {address};
    const bt_link_worker_options options = {
        .hello = &w->hello,
        .routers = routers,
        .n_routers = 1,
        .cluster_key = r->options.cluster_key,
        .load_ms = 20,
        .callbacks = &worker_callbacks,
        .ctx = w,
    };
    bt_error err;
    assert_int_equal(bt_link_worker_create(r->loop, r->rpc, &options, &w->link, &err), BT_OK);
    bt_link_worker_load(w->link, &w->load);
    return w;
}

rig_worker *rig_add_worker(rig *r, const char *name, bt_link_role role)
{
    const bt_link_hello hello = rig_hello(r, name, role);
    rig_worker *w = rig_dial(r, &hello);
    rig_wait_up(w);
    return w;
}

void rig_kill(rig_worker *w)
{
    bt_link_worker_destroy(w->link);
    w->link = NULL;
    w->up = false;
}

void rig_resume(rig_worker *w, uint32_t emit_max)
{
    w->hold = false;
    w->emit_max = emit_max;
    for (uint32_t i = 0; i < w->n_runs; i++) {
        advance(w, &w->runs[i]);
    }
}

/* ---------------------------------------------------------------------------- clients ---- */

static void append_ids(bt_token_list *list, const Baton__V1__GenerateReply *reply)
{
    for (size_t i = 0; i < reply->n_token_ids; i++) {
        const int32_t id = (int32_t)reply->token_ids[i];
        assert_int_equal(bt_token_list_append(list, &id, 1), BT_OK);
    }
}

static void take_reply(rig_client *c, const uint8_t *data, size_t len)
{
    Baton__V1__GenerateReply *reply = baton__v1__generate_reply__unpack(NULL, len, data);
    assert_non_null(reply);
    assert_null(c->last);
    if (reply->start != NULL) {
        assert_int_equal(c->n_messages, 1);
        c->has_start = true;
        snprintf(c->request_id, sizeof c->request_id, "%s", reply->start->request_id);
        snprintf(c->model, sizeof c->model, "%s", reply->start->model);
        c->seed = reply->start->seed;
        c->prompt_tokens = reply->start->prompt_tokens;
    }
    bt_text *text = reply->is_prompt ? &c->prompt_text : &c->text;
    bt_token_list *ids = reply->is_prompt ? &c->prompt_ids : &c->ids;
    c->index_error = c->index_error || (reply->n_token_ids > 0 && reply->first_index != ids->n);
    assert_int_equal(bt_text_append(text, reply->text, strlen(reply->text)), BT_OK);
    append_ids(ids, reply);
    c->n_logprobs += (uint32_t)reply->n_logprobs;
    for (size_t i = 0; i < reply->n_logprobs; i++) {
        c->n_top += (uint32_t)reply->logprobs[i]->n_top;
        c->logprob_error = c->logprob_error ||
                           (!reply->is_prompt && reply->logprobs[i]->logprob !=
                                                     rig_logprob(reply->first_index + (uint32_t)i));
    }
    if (reply->finish != NULL) {
        c->last = reply;
        return;
    }
    baton__v1__generate_reply__free_unpacked(reply, NULL);
}

static void copy_meta(const bt_rpc_call *call, const char *key, char *out, size_t capacity)
{
    const char *value = bt_rpc_call_meta(call, key);
    if (value != NULL) {
        snprintf(out, capacity, "%s", value);
    }
}

static void on_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    rig_client *c = ctx;
    if (end) {
        return;
    }
    c->n_messages++;
    copy_meta(call, "x-request-id", c->label_meta, sizeof c->label_meta);
    if (c->is_generate) {
        take_reply(c, data, len);
    } else {
        assert_int_equal(bt_text_append(&c->unary, (const char *)data, len), BT_OK);
    }
    if (!c->hold) {
        bt_rpc_call_recv(call);
    }
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    rig_client *c = ctx;
    copy_meta(call, "x-request-id", c->label_meta, sizeof c->label_meta);
    copy_meta(call, "grpc-retry-pushback-ms", c->pushback_meta, sizeof c->pushback_meta);
    c->done = true;
    c->call = NULL;
    c->code = code;
    snprintf(c->message, sizeof c->message, "%s", message == NULL ? "" : message);
}

static const bt_rpc_callbacks client_callbacks = {.on_message = on_message, .on_done = on_done};

rig_client *rig_call(rig *r, const char *path, const ProtobufCMessage *message,
                     const bt_rpc_meta *meta, size_t n_meta, int64_t deadline_ns)
{
    assert_true(r->n_clients < RIG_CLIENTS_MAX);
    rig_client *c = &r->clients[r->n_clients++];
    *c = (rig_client){.rig = r, .is_generate = strstr(path, "/Generate") != NULL};
    const bt_rpc_start start = {
        .path = path, .deadline_ns = deadline_ns, .meta = meta, .n_meta = n_meta};
    assert_int_equal(bt_rpc_channel_start(r->channel, &start, &client_callbacks, c, &c->call),
                     BT_OK);
    const size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(n + 1);
    assert_non_null(bytes);
    protobuf_c_message_pack(message, bytes);
    bt_rpc_call_send(c->call, bytes, n);
    free(bytes);
    bt_rpc_call_close_send(c->call);
    bt_rpc_call_recv(c->call);
    return c;
}

rig_client *rig_generate(rig *r, const Baton__V1__GenerateRequest *request)
{
    return rig_call(r, "/baton.v1.Generation/Generate", &request->base, NULL, 0, 0);
}

Baton__V1__GenerateRequest rig_request(const char *prompt, Baton__V1__Sampling *sampling)
{
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = (char *)(uintptr_t)prompt;
    request.sampling = sampling;
    return request;
}

rig_client *rig_generate_text(rig *r, const char *prompt)
{
    const Baton__V1__GenerateRequest request = rig_request(prompt, NULL);
    return rig_generate(r, &request);
}

void rig_expect_ok(rig_client *c, const char *text)
{
    rig_wait_done(c);
    if (c->code != BT_RPC_OK) {
        fail_msg("code %d: %s", (int)c->code, c->message);
    }
    assert_int_equal(c->text.len, strlen(text));
    if (c->text.len > 0) {
        assert_memory_equal(c->text.bytes, text, c->text.len);
    }
    assert_false(c->index_error);
    assert_true(c->has_start);
    assert_non_null(c->last);
}

void rig_expect_error(rig_client *c, bt_rpc_code code, const char *part_of_message)
{
    rig_wait_done(c);
    if (c->code != code || strstr(c->message, part_of_message) == NULL) {
        fail_msg("code %d, wanted %d: %s", (int)c->code, (int)code, c->message);
    }
}

/* ------------------------------------------------------------------------- life cycle ---- */

static void read_tokenizer_hash(rig *r)
{
    bt_gguf *gguf = NULL;
    bt_tokenizer *tokenizer = NULL;
    bt_error err;
    assert_int_equal(bt_gguf_open(r->model_path, &gguf, &err), BT_OK);
    assert_int_equal(bt_tokenizer_create(gguf, &tokenizer, &err), BT_OK);
    bt_tokenizer_fingerprint(tokenizer, r->tokenizer_hash);
    bt_tokenizer_destroy(tokenizer);
    bt_gguf_close(gguf);
}

int rig_setup(void **state)
{
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    assert_int_equal(bt_loop_create(&r->loop), BT_OK);
    assert_int_equal(bt_rpc_create(r->loop, &r->rpc), BT_OK);
    assert_int_equal(bt_metrics_create(&r->metrics), BT_OK);
    assert_int_equal(bt_timer_create(r->loop, on_poll, r, &r->poll), BT_OK);
    snprintf(r->model_path, sizeof r->model_path, "/tmp/router_rig_XXXXXX");
    const int fd = mkstemp(r->model_path);
    assert_true(fd >= 0);
    close(fd);
    bt_tiny_model model = bt_tiny_model_odd;
    model.context = RIG_CONTEXT;
    assert_int_equal(bt_tiny_model_write(&model, r->model_path), BT_OK);
    read_tokenizer_hash(r);
    bt_router_options_init(&r->options);
    r->options.client_address = "127.0.0.1:0";
    r->options.attach_address = "127.0.0.1:0";
    r->options.models[0] = (bt_router_model){.path = r->model_path, .name = "tiny"};
    r->options.n_models = 1;
    r->options.requests_max = 16;
    r->options.queue_max = 8;
    r->options.prefix_blocks_max = 1024;
    assert_int_equal(bt_cluster_key_init(&r->options.cluster_key, "0123456789abcdef", 16, NULL),
                     BT_OK);
    r->reply = "Hello, world";
    *state = r;
    return 0;
}

void rig_start(rig *r)
{
    bt_error err;
    if (bt_router_create(r->loop, r->rpc, r->metrics, &r->options, &r->router, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", bt_router_client_port(r->router));
    const bt_rpc_channel_options options = {.address = address};
    assert_int_equal(bt_rpc_channel_create(r->rpc, &options, &r->channel), BT_OK);
}

rig_worker *rig_start_full(rig *r)
{
    rig_start(r);
    bt_link_hello hello = rig_hello(r, "both", BT_LINK_ROLE_BOTH);
    hello.requests_max = 1;
    rig_worker *w = rig_dial(r, &hello);
    rig_wait_ready(r, true);
    w->hold = true;
    (void)rig_generate_text(r, "a");
    rig_wait_runs(w, 1);
    return w;
}

static void on_stopped(void *ctx)
{
    ((rig *)ctx)->stopped = true;
}

static bool has_stopped(void *ctx)
{
    return ((const rig *)ctx)->stopped;
}

void rig_stop_router(rig *r, uint64_t grace_ms)
{
    bt_router_shutdown(r->router, grace_ms, on_stopped, r);
    rig_wait(r, has_stopped, r);
    bt_router_destroy(r->router);
    r->router = NULL;
}

static bool all_done(void *ctx)
{
    const rig *r = ctx;
    for (uint32_t i = 0; i < r->n_clients; i++) {
        if (!r->clients[i].done) {
            return false;
        }
    }
    return true;
}

int rig_teardown(void **state)
{
    rig *r = *state;
    for (uint32_t i = 0; i < r->n_workers; i++) {
        bt_link_worker_destroy(r->workers[i].link);
    }
    bt_rpc_channel_destroy(r->channel);
    rig_wait(r, all_done, r);
    if (r->router != NULL) {
        rig_stop_router(r, 0);
    }
    for (uint32_t i = 0; i < r->n_clients; i++) {
        rig_client *c = &r->clients[i];
        bt_text_deinit(&c->text);
        bt_text_deinit(&c->prompt_text);
        bt_text_deinit(&c->unary);
        bt_token_list_deinit(&c->ids);
        bt_token_list_deinit(&c->prompt_ids);
        if (c->last != NULL) {
            baton__v1__generate_reply__free_unpacked(c->last, NULL);
        }
    }
    bt_timer_destroy(r->poll);
    bt_rpc_destroy(r->rpc);
    bt_loop_destroy(r->loop);
    bt_metrics_destroy(r->metrics);
    unlink(r->model_path);
    free(r);
    return 0;
}

/* -------------------------------------------------------------------------- fake clock ---- */

int rig_setup_timed(void **state)
{
    bt_fake_clock *clock = calloc(1, sizeof *clock);
    assert_non_null(clock);
    bt_fake_clock_install(clock, 1000 * second_ns);
    const int failed = rig_setup(state);
    rig *r = *state;
    r->clock = clock;
    r->options.worker_timeout_ms = 86400000;
    return failed;
}

int rig_teardown_timed(void **state)
{
    bt_fake_clock *clock = ((rig *)*state)->clock;
    const int failed = rig_teardown(state);
    bt_fake_clock_uninstall();
    free(clock);
    return failed;
}

void rig_pass(rig *r, int64_t ns)
{
    bt_fake_clock_advance(r->clock, ns);
    bt_router_tick(r->router);
}
