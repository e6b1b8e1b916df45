/* SPDX-License-Identifier: Apache-2.0 */
/* Routers' commands: plain structs to worker.proto's messages and back. What comes in is checked
 * here, once: as events are (link_events.c), and sampling parameters in range. */
#include <string.h>

#include "common/check.h"
#include "proto/link_wire_int.h"

typedef Baton__Worker__V1__Command pb_command;

/* ---- small ones ---- */

bool bt_link_put_challenge(bt_link_outbox *outbox, const uint8_t nonce[BT_PROOF_NONCE_BYTES],
                           const uint8_t proof[BT_PROOF_BYTES])
{
    Baton__Worker__V1__Challenge out = BATON__WORKER__V1__CHALLENGE__INIT;
    out.nonce = bt_link_make_bytes(nonce, BT_PROOF_NONCE_BYTES);
    out.proof = bt_link_make_bytes(proof, BT_PROOF_BYTES);
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_CHALLENGE;
    command.challenge = &out;
    return bt_link_outbox_add(outbox, &command.base, true);
}

bool bt_link_get_challenge(const Baton__Worker__V1__Challenge *in,
                           uint8_t nonce[BT_PROOF_NONCE_BYTES], uint8_t proof[BT_PROOF_BYTES])
{
    return bt_link_get_exactly(in->nonce, nonce, BT_PROOF_NONCE_BYTES) &&
           bt_link_get_exactly(in->proof, proof, BT_PROOF_BYTES);
}

bool bt_link_put_welcome(bt_link_outbox *outbox, const char *name, uint32_t ping_ms,
                         uint32_t silence_ms)
{
    Baton__Worker__V1__Welcome out = BATON__WORKER__V1__WELCOME__INIT;
    out.protocol_version = BT_LINK_PROTOCOL_VERSION;
    out.router_name = bt_link_make_text(name);
    out.ping_ms = ping_ms;
    out.silence_ms = silence_ms;
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_WELCOME;
    command.welcome = &out;
    return bt_link_outbox_add(outbox, &command.base, true);
}

bool bt_link_put_cancel(bt_link_outbox *outbox, bt_request_id id, uint32_t attempt)
{
    Baton__Worker__V1__Cancel out = BATON__WORKER__V1__CANCEL__INIT;
    bt_link_pb_id wire_id = bt_link_make_id(id, attempt);
    out.id = &wire_id;
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_CANCEL;
    command.cancel = &out;
    /* Room or not: it is small, there is one for each run, and it frees blocks. */
    return bt_link_outbox_add(outbox, &command.base, true);
}

bool bt_link_put_ping(bt_link_outbox *outbox, uint64_t number)
{
    Baton__Worker__V1__Ping out = BATON__WORKER__V1__PING__INIT;
    out.number = number;
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_PING;
    command.ping = &out;
    return bt_link_outbox_add(outbox, &command.base, false);
}

bool bt_link_put_send_snapshot(bt_link_outbox *outbox)
{
    Baton__Worker__V1__SendSnapshot out = BATON__WORKER__V1__SEND_SNAPSHOT__INIT;
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_SEND_SNAPSHOT;
    command.send_snapshot = &out;
    return bt_link_outbox_add(outbox, &command.base, true);
}

bool bt_link_put_park(bt_link_outbox *outbox, bt_request_id id, uint32_t attempt,
                      uint32_t next_attempt)
{
    Baton__Worker__V1__Park out = BATON__WORKER__V1__PARK__INIT;
    bt_link_pb_id wire_id = bt_link_make_id(id, attempt);
    out.id = &wire_id;
    out.next_attempt = next_attempt;
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_PARK;
    command.park = &out;
    return bt_link_outbox_add(outbox, &command.base, false);
}

bool bt_link_put_resume(bt_link_outbox *outbox, bt_request_id id, uint32_t attempt)
{
    Baton__Worker__V1__Resume out = BATON__WORKER__V1__RESUME__INIT;
    bt_link_pb_id wire_id = bt_link_make_id(id, attempt);
    out.id = &wire_id;
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_RESUME;
    command.resume = &out;
    /* As a cancel: small, one for each park, and a run would stand still without it. */
    return bt_link_outbox_add(outbox, &command.base, true);
}

bool bt_link_put_drain(bt_link_outbox *outbox)
{
    Baton__Worker__V1__Drain out = BATON__WORKER__V1__DRAIN__INIT;
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_DRAIN;
    command.drain = &out;
    return bt_link_outbox_add(outbox, &command.base, true);
}

bool bt_link_put_explain(bt_link_outbox *outbox, uint64_t number, const char *request)
{
    Baton__Worker__V1__Explain out = BATON__WORKER__V1__EXPLAIN__INIT;
    out.number = number;
    out.request = bt_link_make_text(request);
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_EXPLAIN;
    command.explain = &out;
    return bt_link_outbox_add(outbox, &command.base, false);
}

bool bt_link_put_leave(bt_link_outbox *outbox)
{
    Baton__Worker__V1__Leave out = BATON__WORKER__V1__LEAVE__INIT;
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_LEAVE;
    command.leave = &out;
    return bt_link_outbox_add(outbox, &command.base, true);
}

/* ---- run ---- */

#define SAMPLING_FIELDS(X)                                                                         \
    X(temperature)                                                                                 \
    X(top_k)                                                                                       \
    X(top_p)                                                                                       \
    X(min_p)                                                                                       \
    X(repetition_penalty)                                                                          \
    X(presence_penalty)                                                                            \
    X(frequency_penalty)                                                                           \
    X(seed)                                                                                        \
    X(min_tokens)                                                                                  \
    X(max_tokens)                                                                                  \
    X(ignore_eos)                                                                                  \
    X(logprobs)                                                                                    \
    X(n_top_logprobs)                                                                              \
    X(echo)

typedef struct sampling_arrays {
    uint32_t stop_tokens[BT_STOP_TOKENS_MAX];
    uint32_t bias_tokens[BT_LOGIT_BIAS_MAX];
    float bias_values[BT_LOGIT_BIAS_MAX];
} sampling_arrays;

static void split_sampling(const bt_sampling *in, sampling_arrays *arrays,
                           Baton__Worker__V1__Sampling *out)
{
    BT_ASSERT(in->n_stop_tokens <= BT_STOP_TOKENS_MAX);
    BT_ASSERT(in->n_logit_bias <= BT_LOGIT_BIAS_MAX);
#define PUT(field) out->field = in->field;
    SAMPLING_FIELDS(PUT)
#undef PUT
    for (size_t i = 0; i < in->n_stop_tokens; i++) {
        arrays->stop_tokens[i] = (uint32_t)in->stop_tokens[i];
    }
    for (size_t i = 0; i < in->n_logit_bias; i++) {
        arrays->bias_tokens[i] = (uint32_t)in->logit_bias[i].token;
        arrays->bias_values[i] = in->logit_bias[i].bias;
    }
    out->n_stop_tokens = in->n_stop_tokens;
    out->stop_tokens = arrays->stop_tokens;
    out->n_bias_tokens = in->n_logit_bias;
    out->bias_tokens = arrays->bias_tokens;
    out->n_bias_values = in->n_logit_bias;
    out->bias_values = arrays->bias_values;
}

/* Borrows from `in`. */
static Baton__Worker__V1__Peer make_peer(const bt_link_kv_peer *in)
{
    Baton__Worker__V1__Peer peer = BATON__WORKER__V1__PEER__INIT;
    peer.name = bt_link_make_text(in->name);
    peer.incarnation = in->incarnation;
    peer.kv_tcp = bt_link_make_text(in->kv_tcp);
    peer.kv_unix = bt_link_make_text(in->kv_unix);
    peer.boot_id = bt_link_make_bytes(in->boot_id, BT_LINK_ID_BYTES);
    return peer;
}

bt_status bt_link_put_run(bt_link_outbox *outbox, const bt_link_run *run)
{
    BT_ASSERT(run->sampling != NULL);
    bt_link_pb_id id = bt_link_make_id(run->id, run->attempt);
    sampling_arrays arrays;
    Baton__Worker__V1__Sampling sampling = BATON__WORKER__V1__SAMPLING__INIT;
    split_sampling(run->sampling, &arrays, &sampling);
    uint8_t root[BT_BLOCK_HASH_BYTES];
    bt_hash128_to_bytes(run->chain_root, root);
    Baton__Worker__V1__Peer peer = make_peer(&run->peer);

    Baton__Worker__V1__Run out = BATON__WORKER__V1__RUN__INIT;
    out.id = &id;
    out.mode = (Baton__Worker__V1__Mode)run->mode;
    out.n_tokens = run->n_tokens;
    out.tokens = (uint32_t *)(uintptr_t)run->tokens;
    out.n_prompt = run->n_prompt;
    out.sampling = &sampling;
    out.chain_root = bt_link_make_bytes(root, sizeof root);
    out.deadline_left_ns = run->deadline_left_ns > 0 ? (uint64_t)run->deadline_left_ns : 0;
    out.priority = run->priority;
    out.peer = run->has_peer ? &peer : NULL;
    out.ttft_target_ms = run->ttft_target_ms;
    out.tpot_target_ms = run->tpot_target_ms;
    out.label = bt_link_make_text(run->label != NULL ? run->label : "");
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_RUN;
    command.run = &out;
    if (protobuf_c_message_get_packed_size(&command.base) > BT_LINK_EVENT_BYTES_MAX) {
        return BT_EEXHAUSTED;
    }
    return bt_link_outbox_add(outbox, &command.base, false) ? BT_OK : BT_AGAIN;
}

static bool in_range(float value, float low, float high)
{
    return value >= low && value <= high; /* false for NaN */
}

static bool get_sampling(const Baton__Worker__V1__Sampling *in, bt_sampling *out)
{
    if (in == NULL || in->n_stop_tokens > BT_STOP_TOKENS_MAX ||
        in->n_bias_tokens > BT_LOGIT_BIAS_MAX || in->n_bias_tokens != in->n_bias_values ||
        in->n_top_logprobs > BT_TOP_LOGPROBS_MAX ||
        !bt_link_tokens_in_range(in->stop_tokens, in->n_stop_tokens) ||
        !bt_link_tokens_in_range(in->bias_tokens, in->n_bias_tokens)) {
        return false;
    }
    *out = (bt_sampling){0};
#define GET(field) out->field = in->field;
    SAMPLING_FIELDS(GET)
#undef GET
    out->n_stop_tokens = (uint32_t)in->n_stop_tokens;
    for (size_t i = 0; i < in->n_stop_tokens; i++) {
        out->stop_tokens[i] = (int32_t)in->stop_tokens[i];
    }
    out->n_logit_bias = (uint32_t)in->n_bias_tokens;
    for (size_t i = 0; i < in->n_bias_tokens; i++) {
        if (!in_range(in->bias_values[i], -100, 100)) {
            return false;
        }
        out->logit_bias[i].token = (int32_t)in->bias_tokens[i];
        out->logit_bias[i].bias = in->bias_values[i];
    }
    return in_range(out->temperature, 0, 2) && in_range(out->top_p, 0, 1) && out->top_p > 0 &&
           in_range(out->min_p, 0, 1) && in_range(out->repetition_penalty, 0, 2) &&
           out->repetition_penalty > 0 && in_range(out->presence_penalty, -2, 2) &&
           in_range(out->frequency_penalty, -2, 2);
}

static bool get_peer(const Baton__Worker__V1__Peer *in, bt_link_kv_peer *out)
{
    *out = (bt_link_kv_peer){.incarnation = in->incarnation};
    return bt_link_get_text(in->name, out->name, sizeof out->name) &&
           bt_link_get_text(in->kv_tcp, out->kv_tcp, sizeof out->kv_tcp) &&
           bt_link_get_text(in->kv_unix, out->kv_unix, sizeof out->kv_unix) &&
           bt_link_get_bytes(in->boot_id, out->boot_id);
}

bool bt_link_get_run(const Baton__Worker__V1__Run *in, bt_link_run *out, bt_sampling *sampling)
{
    *out = (bt_link_run){
        .mode = (bt_link_mode)in->mode,
        .tokens = (const int32_t *)in->tokens,
        .n_prompt = in->n_prompt,
        .sampling = sampling,
        .deadline_left_ns =
            in->deadline_left_ns > INT64_MAX ? INT64_MAX : (int64_t)in->deadline_left_ns,
        .priority = in->priority,
        .ttft_target_ms = in->ttft_target_ms,
        .tpot_target_ms = in->tpot_target_ms,
        .label = in->label,
        .has_peer = in->peer != NULL,
    };
    uint8_t root[BT_BLOCK_HASH_BYTES];
    if (!bt_link_get_id(in->id, &out->id, &out->attempt) ||
        in->mode < BATON__WORKER__V1__MODE__MODE_PREFILL ||
        in->mode > BATON__WORKER__V1__MODE__MODE_WHOLE || in->n_tokens == 0 ||
        strlen(in->label) >= BT_LINK_LABEL_MAX || in->n_tokens > INT32_MAX || in->n_prompt == 0 ||
        in->n_prompt > in->n_tokens || !bt_link_tokens_in_range(in->tokens, in->n_tokens) ||
        !bt_link_get_bytes(in->chain_root, root) || !get_sampling(in->sampling, sampling)) {
        return false;
    }
    out->n_tokens = (uint32_t)in->n_tokens;
    out->chain_root = bt_hash128_from_bytes(root);
    if (in->peer == NULL) {
        return in->mode != BATON__WORKER__V1__MODE__MODE_DECODE;
    }
    return get_peer(in->peer, &out->peer);
}

/* ---- fetch ---- */

bool bt_link_put_fetch(bt_link_outbox *outbox, const bt_link_fetch *fetch)
{
    BT_ASSERT(fetch->n_ids <= BT_LINK_FETCH_BLOCKS_MAX);
    uint8_t ids[BT_LINK_FETCH_BLOCKS_MAX * BT_BLOCK_HASH_BYTES];
    for (uint32_t i = 0; i < fetch->n_ids; i++) {
        bt_hash128_to_bytes(fetch->ids[i], ids + (size_t)i * BT_BLOCK_HASH_BYTES);
    }
    bt_link_pb_id id = bt_link_make_id(fetch->id, fetch->attempt);
    Baton__Worker__V1__Peer peer = make_peer(&fetch->peer);
    Baton__Worker__V1__Fetch out = BATON__WORKER__V1__FETCH__INIT;
    out.id = &id;
    out.peer = &peer;
    out.ids = bt_link_make_bytes(ids, (size_t)fetch->n_ids * BT_BLOCK_HASH_BYTES);
    out.deadline_left_ms = fetch->deadline_left_ms;
    pb_command command = BATON__WORKER__V1__COMMAND__INIT;
    command.command_case = BATON__WORKER__V1__COMMAND__COMMAND_FETCH;
    command.fetch = &out;
    return bt_link_outbox_add(outbox, &command.base, false);
}

bool bt_link_get_fetch(const Baton__Worker__V1__Fetch *in, bt_link_fetch *out, bt_block_hash *ids)
{
    const size_t n = in->ids.len / BT_BLOCK_HASH_BYTES;
    *out = (bt_link_fetch){
        .ids = ids,
        .n_ids = (uint32_t)n,
        .deadline_left_ms = in->deadline_left_ms,
    };
    if (n == 0 || n > BT_LINK_FETCH_BLOCKS_MAX || in->ids.len % BT_BLOCK_HASH_BYTES != 0 ||
        in->peer == NULL || !bt_link_get_id(in->id, &out->id, &out->attempt)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        ids[i] = bt_hash128_from_bytes(in->ids.data + i * BT_BLOCK_HASH_BYTES);
    }
    return get_peer(in->peer, &out->peer);
}
