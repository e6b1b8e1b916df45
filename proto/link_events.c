/* SPDX-License-Identifier: Apache-2.0 */
/* Workers' events: plain structs to worker.proto's messages and back. What comes in is checked
 * here, once: sizes of ids, lengths of arrays that belong together, token ids in range, strings
 * that fit. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "proto/link_wire_int.h"

typedef Baton__Worker__V1__Event pb_event;

static bool add_event(bt_link_outbox *outbox, const pb_event *event)
{
    return bt_link_outbox_add(outbox, &event->base, false);
}

/* A text of any length is cut to what a bt_error holds. */
static bool get_status(int32_t code, const char *text, bt_status *status, bt_error *error)
{
    *status = bt_error_set(error, (bt_status)code, "%s", text);
    return strcmp(bt_status_name(*status), "?") != 0;
}

/* ---- hello, proofs ---- */

bool bt_link_put_hello(bt_link_outbox *outbox, const bt_link_hello *hello,
                       const uint8_t nonce[BT_PROOF_NONCE_BYTES])
{
    Baton__Worker__V1__Hello out = BATON__WORKER__V1__HELLO__INIT;
    out.protocol_version = hello->protocol_version;
    out.name = bt_link_make_text(hello->kv.name);
    out.role = (Baton__Worker__V1__Role)hello->role;
    out.incarnation = hello->kv.incarnation;
    out.numerics_id = bt_link_make_bytes(hello->numerics_id, BT_LINK_ID_BYTES);
    out.kernels = bt_link_make_text(hello->kernels);
    out.model = bt_link_make_text(hello->model);
    out.model_fingerprint = bt_link_make_bytes(hello->model_fingerprint, BT_LINK_ID_BYTES);
    out.tokenizer_hash = bt_link_make_bytes(hello->tokenizer_hash, BT_LINK_ID_BYTES);
    out.kv_tcp = bt_link_make_text(hello->kv.kv_tcp);
    out.kv_unix = bt_link_make_text(hello->kv.kv_unix);
    out.boot_id = bt_link_make_bytes(hello->kv.boot_id, BT_LINK_ID_BYTES);
    out.block_tokens = hello->block_tokens;
    out.pool_blocks = hello->pool_blocks;
    out.block_bytes = hello->block_bytes;
    out.requests_max = hello->requests_max;
    out.context_tokens = hello->context_tokens;
    out.step_tokens_max = hello->step_tokens_max;
    out.nonce = bt_link_make_bytes(nonce, BT_PROOF_NONCE_BYTES);
    pb_event event = BATON__WORKER__V1__EVENT__INIT;
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_HELLO;
    event.hello = &out;
    return add_event(outbox, &event);
}

bool bt_link_get_hello(const Baton__Worker__V1__Hello *in, bt_link_hello *out,
                       uint8_t nonce[BT_PROOF_NONCE_BYTES])
{
    *out = (bt_link_hello){
        .protocol_version = in->protocol_version,
        .role = (bt_link_role)in->role,
        .kv.incarnation = in->incarnation,
        .block_tokens = in->block_tokens,
        .pool_blocks = in->pool_blocks,
        .block_bytes = in->block_bytes,
        .requests_max = in->requests_max,
        .context_tokens = in->context_tokens,
        .step_tokens_max = in->step_tokens_max,
    };
    /* The version first: a peer of another version may differ in all the rest. */
    if (out->protocol_version != BT_LINK_PROTOCOL_VERSION) {
        (void)bt_link_get_name(in->name, out->kv.name, sizeof out->kv.name);
        return true;
    }
    return in->role >= BATON__WORKER__V1__ROLE__ROLE_PREFILL &&
           in->role <= BATON__WORKER__V1__ROLE__ROLE_BOTH &&
           bt_link_get_name(in->name, out->kv.name, sizeof out->kv.name) &&
           bt_link_get_text(in->kernels, out->kernels, sizeof out->kernels) &&
           bt_link_get_text(in->model, out->model, sizeof out->model) &&
           bt_link_get_text(in->kv_tcp, out->kv.kv_tcp, sizeof out->kv.kv_tcp) &&
           bt_link_get_text(in->kv_unix, out->kv.kv_unix, sizeof out->kv.kv_unix) &&
           bt_link_get_bytes(in->numerics_id, out->numerics_id) &&
           bt_link_get_bytes(in->model_fingerprint, out->model_fingerprint) &&
           bt_link_get_bytes(in->tokenizer_hash, out->tokenizer_hash) &&
           bt_link_get_bytes(in->boot_id, out->kv.boot_id) &&
           bt_link_get_exactly(in->nonce, nonce, BT_PROOF_NONCE_BYTES);
}

bool bt_link_put_proof(bt_link_outbox *outbox, const uint8_t proof[BT_PROOF_BYTES])
{
    Baton__Worker__V1__Proof out = BATON__WORKER__V1__PROOF__INIT;
    out.proof = bt_link_make_bytes(proof, BT_PROOF_BYTES);
    pb_event event = BATON__WORKER__V1__EVENT__INIT;
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_PROOF;
    event.proof = &out;
    return add_event(outbox, &event);
}

bool bt_link_get_proof(const Baton__Worker__V1__Proof *in, uint8_t proof[BT_PROOF_BYTES])
{
    return bt_link_get_exactly(in->proof, proof, BT_PROOF_BYTES);
}

/* ---- load ---- */

/* X(field): same name on both sides. */
#define LOAD_FIELDS(X)                                                                             \
    X(requests_parked)                                                                             \
    X(runs_handed_over)                                                                            \
    X(blocks_free)                                                                                 \
    X(blocks_cached)                                                                               \
    X(requests_running)                                                                            \
    X(requests_waiting)                                                                            \
    X(waiting_tokens)                                                                              \
    X(prefill_tokens)                                                                              \
    X(recomputed_tokens)                                                                           \
    X(decode_tokens)                                                                               \
    X(prefix_hit_tokens)                                                                           \
    X(prefix_miss_tokens)                                                                          \
    X(preemptions)                                                                                 \
    X(pulls)                                                                                       \
    X(partial_pulls)                                                                               \
    X(blocks_pulled)                                                                               \
    X(bytes_pulled)                                                                                \
    X(pulls_failed)                                                                                \
    X(bytes_served)                                                                                \
    X(step_ns)                                                                                     \
    X(prefill_token_ns)                                                                            \
    X(oldest_waiting_ns)                                                                           \
    X(step_age_ns)                                                                                 \
    X(stuck_ns)                                                                                    \
    X(requests_decoding)                                                                           \
    X(running_max)                                                                                 \
    X(last_step_ns)                                                                                \
    X(blocks_stored)                                                                               \
    X(blocks_evicted)                                                                              \
    X(prefix_queries)                                                                              \
    X(prefix_hits)                                                                                 \
    X(slots_written)                                                                               \
    X(slots_allocated)

bool bt_link_put_load(bt_link_outbox *outbox, const bt_link_load *load)
{
    Baton__Worker__V1__Load out = BATON__WORKER__V1__LOAD__INIT;
#define PUT(field) out.field = load->field;
    LOAD_FIELDS(PUT)
#undef PUT
    out.draining = load->draining;
    pb_event event = BATON__WORKER__V1__EVENT__INIT;
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_LOAD;
    event.load = &out;
    return add_event(outbox, &event);
}

void bt_link_get_load(const Baton__Worker__V1__Load *in, bt_link_load *out)
{
    *out = (bt_link_load){0};
#define GET(field) out->field = in->field;
    LOAD_FIELDS(GET)
#undef GET
    out->draining = in->draining != 0;
}

/* ---- tokens ---- */

/* A few results at a time, so that the arrays fit the stack. */
typedef struct token_arrays {
    uint32_t tokens[BT_LINK_TOKENS_PER_EVENT];
    float logprobs[BT_LINK_TOKENS_PER_EVENT];
    uint32_t n_top[BT_LINK_TOKENS_PER_EVENT];
    uint32_t top_tokens[BT_LINK_TOKENS_PER_EVENT * BT_TOP_LOGPROBS_MAX];
    float top_logprobs[BT_LINK_TOKENS_PER_EVENT * BT_TOP_LOGPROBS_MAX];
} token_arrays;

static void split_results(const bt_token_result *results, size_t n, token_arrays *arrays,
                          Baton__Worker__V1__Tokens *out)
{
    bool any_logprob = false;
    size_t n_top = 0;
    for (size_t i = 0; i < n; i++) {
        const bt_token_result *r = &results[i];
        BT_ASSERT(r->n_top <= BT_TOP_LOGPROBS_MAX);
        arrays->tokens[i] = (uint32_t)r->token;
        arrays->logprobs[i] = r->has_logprob ? r->logprob : NAN;
        any_logprob |= r->has_logprob;
        arrays->n_top[i] = r->n_top;
        for (size_t t = 0; t < r->n_top; t++) {
            arrays->top_tokens[n_top] = (uint32_t)r->top[t].token;
            arrays->top_logprobs[n_top] = r->top[t].logprob;
            n_top++;
        }
    }
    out->n_tokens = n;
    out->tokens = arrays->tokens;
    out->n_logprobs = any_logprob ? n : 0;
    out->logprobs = arrays->logprobs;
    out->n_n_top = n_top > 0 ? n : 0;
    out->n_top = arrays->n_top;
    out->n_top_tokens = n_top;
    out->top_tokens = arrays->top_tokens;
    out->n_top_logprobs = n_top;
    out->top_logprobs = arrays->top_logprobs;
}

bool bt_link_put_tokens(bt_link_outbox *outbox, const bt_link_tokens *tokens)
{
    token_arrays arrays;
    bt_link_pb_id id = bt_link_make_id(tokens->id, tokens->attempt);
    for (size_t at = 0; at < tokens->n_results; at += BT_LINK_TOKENS_PER_EVENT) {
        const size_t n = bt_size_min(tokens->n_results - at, BT_LINK_TOKENS_PER_EVENT);
        Baton__Worker__V1__Tokens out = BATON__WORKER__V1__TOKENS__INIT;
        out.id = &id;
        out.first_index = tokens->first_index + (uint32_t)at;
        out.is_prompt = tokens->is_prompt;
        split_results(tokens->results + at, n, &arrays, &out);
        pb_event event = BATON__WORKER__V1__EVENT__INIT;
        event.event_case = BATON__WORKER__V1__EVENT__EVENT_TOKENS;
        event.tokens = &out;
        if (!add_event(outbox, &event)) {
            return false;
        }
    }
    return true;
}

bool bt_link_get_tokens(const Baton__Worker__V1__Tokens *in, bt_link_tokens *out)
{
    *out = (bt_link_tokens){.first_index = in->first_index, .is_prompt = in->is_prompt != 0};
    if (!bt_link_get_id(in->id, &out->id, &out->attempt) ||
        (in->n_logprobs != 0 && in->n_logprobs != in->n_tokens) ||
        (in->n_n_top != 0 && in->n_n_top != in->n_tokens) ||
        in->n_top_tokens != in->n_top_logprobs || in->n_tokens > BT_LINK_TOKENS_PER_EVENT ||
        in->n_tokens > UINT32_MAX - in->first_index ||
        !bt_link_tokens_in_range(in->tokens, in->n_tokens) ||
        !bt_link_tokens_in_range(in->top_tokens, in->n_top_tokens)) {
        return false;
    }
    size_t n_top = 0;
    for (size_t i = 0; i < in->n_n_top; i++) {
        if (in->n_top[i] > BT_TOP_LOGPROBS_MAX) {
            return false;
        }
        n_top += in->n_top[i];
    }
    out->n_results = (uint32_t)in->n_tokens;
    return n_top == in->n_top_tokens;
}

void bt_link_get_results(const Baton__Worker__V1__Tokens *in, bt_token_result *results)
{
    size_t at_top = 0;
    for (size_t i = 0; i < in->n_tokens; i++) {
        bt_token_result *r = &results[i];
        *r = (bt_token_result){.token = (int32_t)in->tokens[i]};
        if (in->n_logprobs > 0 && !isnan(in->logprobs[i])) {
            r->has_logprob = true;
            r->logprob = in->logprobs[i];
        }
        r->n_top = in->n_n_top > 0 ? in->n_top[i] : 0;
        for (size_t t = 0; t < r->n_top; t++, at_top++) {
            r->top[t].token = (int32_t)in->top_tokens[at_top];
            r->top[t].logprob = in->top_logprobs[at_top];
        }
    }
    BT_ASSERT(at_top == in->n_top_tokens);
}

/* ---- finished ---- */

#define FINISHED_FIELDS(X)                                                                         \
    X(prompt_tokens)                                                                               \
    X(cached_tokens)                                                                               \
    X(generated_tokens)                                                                            \
    X(queue_ns)                                                                                    \
    X(prefill_ns)                                                                                  \
    X(transfer_ns)                                                                                 \
    X(decode_ns)                                                                                   \
    X(blocks_total)                                                                                \
    X(blocks_moved)                                                                                \
    X(blocks_skipped)                                                                              \
    X(bytes_moved)                                                                                 \
    X(preemptions)

bool bt_link_put_finished(bt_link_outbox *outbox, const bt_link_finished *finished)
{
    Baton__Worker__V1__Finished out = BATON__WORKER__V1__FINISHED__INIT;
    bt_link_pb_id id = bt_link_make_id(finished->id, finished->attempt);
    out.id = &id;
    out.status = finished->status;
    out.text = bt_link_make_text(finished->error.text);
    out.draining = finished->draining;
    out.reason = finished->reason;
    out.has_stop_token = finished->has_stop_token;
    out.stop_token = (uint32_t)finished->stop_token;
    out.transport = bt_link_make_text(finished->transport);
#define PUT(field) out.field = finished->field;
    FINISHED_FIELDS(PUT)
#undef PUT
    pb_event event = BATON__WORKER__V1__EVENT__INIT;
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_FINISHED;
    event.finished = &out;
    return add_event(outbox, &event);
}

bool bt_link_get_finished(const Baton__Worker__V1__Finished *in, bt_link_finished *out)
{
    *out = (bt_link_finished){
        .draining = in->draining != 0,
        .reason = (bt_finish_reason)in->reason,
        .has_stop_token = in->has_stop_token != 0,
        .stop_token = (int32_t)in->stop_token,
    };
#define GET(field) out->field = in->field;
    FINISHED_FIELDS(GET)
#undef GET
    return bt_link_get_id(in->id, &out->id, &out->attempt) && in->reason <= BT_FINISH_ERROR &&
           in->stop_token <= INT32_MAX &&
           get_status(in->status, in->text, &out->status, &out->error) &&
           bt_link_get_text(in->transport, out->transport, sizeof out->transport);
}

/* ---- parked ---- */

bool bt_link_put_parked(bt_link_outbox *outbox, const bt_link_parked *parked)
{
    Baton__Worker__V1__Parked out = BATON__WORKER__V1__PARKED__INIT;
    bt_link_pb_id id = bt_link_make_id(parked->id, parked->attempt);
    out.id = &id;
    out.status = parked->status;
    out.text = bt_link_make_text(parked->error.text);
    out.generated_tokens = parked->generated_tokens;
    pb_event event = BATON__WORKER__V1__EVENT__INIT;
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_PARKED;
    event.parked = &out;
    return add_event(outbox, &event);
}

bool bt_link_get_parked(const Baton__Worker__V1__Parked *in, bt_link_parked *out)
{
    *out = (bt_link_parked){
        .generated_tokens = in->generated_tokens,
    };
    return bt_link_get_id(in->id, &out->id, &out->attempt) &&
           get_status(in->status, in->text, &out->status, &out->error);
}

/* ---- fetched ---- */

bool bt_link_put_fetched(bt_link_outbox *outbox, const bt_link_fetched *fetched)
{
    Baton__Worker__V1__Fetched out = BATON__WORKER__V1__FETCHED__INIT;
    bt_link_pb_id id = bt_link_make_id(fetched->id, fetched->attempt);
    out.id = &id;
    out.status = fetched->status;
    out.text = bt_link_make_text(fetched->error.text);
    out.blocks_moved = fetched->blocks_moved;
    out.blocks_skipped = fetched->blocks_skipped;
    out.bytes_moved = fetched->bytes_moved;
    pb_event event = BATON__WORKER__V1__EVENT__INIT;
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_FETCHED;
    event.fetched = &out;
    return add_event(outbox, &event);
}

bool bt_link_get_fetched(const Baton__Worker__V1__Fetched *in, bt_link_fetched *out)
{
    *out = (bt_link_fetched){
        .blocks_moved = in->blocks_moved,
        .blocks_skipped = in->blocks_skipped,
        .bytes_moved = in->bytes_moved,
    };
    return bt_link_get_id(in->id, &out->id, &out->attempt) &&
           get_status(in->status, in->text, &out->status, &out->error);
}

/* ---- blocks, pong ---- */

bool bt_link_put_blocks(bt_link_outbox *outbox, uint64_t number, bt_link_blocks_kind kind,
                        const bt_block_hash *ids, size_t n)
{
    BT_ASSERT(n <= BT_LINK_BLOCKS_PER_EVENT);
    uint8_t bytes[BT_LINK_BLOCKS_PER_EVENT * BT_BLOCK_HASH_BYTES];
    for (size_t i = 0; i < n; i++) {
        bt_hash128_to_bytes(ids[i], bytes + i * BT_BLOCK_HASH_BYTES);
    }
    Baton__Worker__V1__Blocks out = BATON__WORKER__V1__BLOCKS__INIT;
    out.number = number;
    out.kind = (Baton__Worker__V1__BlocksKind)kind;
    out.ids = bt_link_make_bytes(bytes, n * BT_BLOCK_HASH_BYTES);
    pb_event event = BATON__WORKER__V1__EVENT__INIT;
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_BLOCKS;
    event.blocks = &out;
    return add_event(outbox, &event);
}

bool bt_link_put_pong(bt_link_outbox *outbox, uint64_t number)
{
    Baton__Worker__V1__Pong out = BATON__WORKER__V1__PONG__INIT;
    out.number = number;
    pb_event event = BATON__WORKER__V1__EVENT__INIT;
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_PONG;
    event.pong = &out;
    return add_event(outbox, &event);
}

/* ---- explained ---- */

void bt_link_request_hex(bt_request_id id, char out[BT_HASH128_HEX_BYTES])
{
    (void)snprintf(out, BT_HASH128_HEX_BYTES, "%016" PRIx64 "%016" PRIx64, id.hi, id.lo);
}

bool bt_link_is_request(const char *request, bt_request_id id, const char *label)
{
    char hex[BT_HASH128_HEX_BYTES];
    bt_link_request_hex(id, hex);
    return strcmp(request, hex) == 0 || (label[0] != '\0' && strcmp(request, label) == 0);
}

#define TIMELINE_FIELDS(X)                                                                         \
    X(arrived_unix_ns)                                                                             \
    X(started_ns)                                                                                  \
    X(computed_ns)                                                                                 \
    X(transferred_ns)                                                                              \
    X(first_token_ns)                                                                              \
    X(ended_ns)                                                                                    \
    X(prompt_tokens)                                                                               \
    X(cached_tokens)                                                                               \
    X(generated_tokens)                                                                            \
    X(blocks_moved)                                                                                \
    X(blocks_skipped)                                                                              \
    X(bytes_moved)                                                                                 \
    X(preemptions)

bool bt_link_put_explained(bt_link_outbox *outbox, uint64_t number,
                           const bt_link_timeline *timelines, size_t n)
{
    BT_ASSERT(n <= BT_LINK_TIMELINES_MAX);
    bt_link_pb_id ids[BT_LINK_TIMELINES_MAX];
    Baton__Worker__V1__Timeline items[BT_LINK_TIMELINES_MAX];
    Baton__Worker__V1__Timeline *list[BT_LINK_TIMELINES_MAX];
    for (size_t i = 0; i < n; i++) {
        const bt_link_timeline *t = &timelines[i];
        Baton__Worker__V1__Timeline *item = &items[i];
        baton__worker__v1__timeline__init(item);
        ids[i] = bt_link_make_id(t->id, t->attempt);
        item->id = &ids[i];
        item->label = bt_link_make_text(t->label);
        item->mode = (Baton__Worker__V1__Mode)t->mode;
        item->open = t->open;
        item->status = t->status;
        item->text = bt_link_make_text(t->error.text);
        item->reason = t->reason;
        item->transport = bt_link_make_text(t->transport);
        item->peer = bt_link_make_text(t->peer);
#define PUT(field) item->field = t->field;
        TIMELINE_FIELDS(PUT)
#undef PUT
        list[i] = item;
    }
    Baton__Worker__V1__Explained out = BATON__WORKER__V1__EXPLAINED__INIT;
    out.number = number;
    out.n_timelines = n;
    out.timelines = list;
    pb_event event = BATON__WORKER__V1__EVENT__INIT;
    event.event_case = BATON__WORKER__V1__EVENT__EVENT_EXPLAINED;
    event.explained = &out;
    return add_event(outbox, &event);
}

static bool get_timeline(const Baton__Worker__V1__Timeline *in, bt_link_timeline *out)
{
    *out = (bt_link_timeline){
        .mode = (bt_link_mode)in->mode,
        .open = in->open != 0,
        .reason = (bt_finish_reason)in->reason,
    };
#define GET(field) out->field = in->field;
    TIMELINE_FIELDS(GET)
#undef GET
    return bt_link_get_id(in->id, &out->id, &out->attempt) &&
           in->mode >= BATON__WORKER__V1__MODE__MODE_PREFILL &&
           in->mode <= BATON__WORKER__V1__MODE__MODE_WHOLE && in->reason <= BT_FINISH_ERROR &&
           get_status(in->status, in->text, &out->status, &out->error) &&
           bt_link_get_text(in->label, out->label, sizeof out->label) &&
           bt_link_get_text(in->transport, out->transport, sizeof out->transport) &&
           bt_link_get_text(in->peer, out->peer, sizeof out->peer);
}

bool bt_link_get_explained(const Baton__Worker__V1__Explained *in, bt_link_timeline *timelines)
{
    if (in->n_timelines > BT_LINK_TIMELINES_MAX) {
        return false;
    }
    for (size_t i = 0; i < in->n_timelines; i++) {
        if (!get_timeline(in->timelines[i], &timelines[i])) {
            return false;
        }
    }
    return true;
}
