/* SPDX-License-Identifier: Apache-2.0 */
/* The client of the cluster: it keeps all of an answer, and allows no token lost, none twice and
 * nothing behind the end. */
#include "tests/support/cluster.h"

#include <stdio.h>
#include <string.h>

#include "proto/generation.pb-c.h"
#include "tests/support/cluster_int.h"

enum { REQUEST_BYTES_MAX = 8192 };

static uint64_t varint(const uint8_t *data, size_t len, size_t *at)
{
    uint64_t value = 0;
    for (unsigned shift = 0; *at < len && shift < 64; shift += 7) {
        const uint8_t byte = data[(*at)++];
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            break;
        }
    }
    return value;
}

/* Field 2 as it is on the wire: text may hold a NUL, at which protobuf-c's strings end. */
static void take_text(bt_cluster_request *r, const uint8_t *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        const uint64_t tag = varint(data, len, &at);
        EXPECT(tag % 8 == 2 || tag % 8 == 0);
        const uint64_t n = varint(data, len, &at);
        if (tag == (2 << 3 | 2)) {
            EXPECT(r->text_len + n <= sizeof r->text && at + n <= len);
            memcpy(r->text + r->text_len, data + at, n);
            r->text_len += n;
        }
        at += tag % 8 == 2 ? n : 0;
    }
}

static void take_logprobs(bt_cluster_request *r, const Baton__V1__GenerateReply *reply)
{
    for (size_t i = 0; i < reply->n_logprobs; i++) {
        EXPECT(r->n_logprobs < BT_CLUSTER_TOKENS_MAX);
        r->logprob[r->n_logprobs++] = reply->logprobs[i]->logprob;
    }
}

static void take_finish(bt_cluster_request *r, const Baton__V1__Finish *finish)
{
    EXPECT(!r->finished); /* one end */
    r->finished = true;
    r->reason = (int)finish->reason;
    r->usage_prompt = finish->usage->prompt_tokens;
    r->usage_generated = finish->usage->generated_tokens;
    r->attempts = finish->route->attempts;
}

static void take_reply(bt_cluster_request *r, const Baton__V1__GenerateReply *reply,
                       const uint8_t *data, size_t len)
{
    EXPECT(!r->finished); /* nothing comes behind the end */
    if (reply->is_prompt) {
        EXPECT(reply->n_token_ids == 0 || reply->first_index == r->n_echoed);
        r->n_echoed += (uint32_t)reply->n_token_ids;
    } else {
        /* No token is lost, none comes twice. */
        EXPECT(reply->n_token_ids == 0 || reply->first_index == r->n_tokens);
        for (size_t i = 0; i < reply->n_token_ids; i++) {
            EXPECT(r->n_tokens < BT_CLUSTER_TOKENS_MAX);
            r->tokens[r->n_tokens++] = reply->token_ids[i];
        }
        take_text(r, data, len);
        take_logprobs(r, reply);
    }
    if (reply->finish != NULL) {
        take_finish(r, reply->finish);
    }
}

static void on_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    bt_cluster_request *r = ctx;
    if (end) {
        return;
    }
    Baton__V1__GenerateReply *reply = baton__v1__generate_reply__unpack(NULL, len, data);
    EXPECT(reply != NULL);
    take_reply(r, reply, data, len);
    baton__v1__generate_reply__free_unpacked(reply, NULL);
    if (r->hold) {
        r->starved = true;
    } else {
        bt_rpc_call_recv(call);
    }
    bt_cluster_tell_seen(r->cluster);
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    bt_cluster_request *r = ctx;
    EXPECT(!r->done); /* one end */
    r->call = NULL;
    r->done = true;
    r->code = (int)code;
    snprintf(r->message, sizeof r->message, "%s", message == NULL ? "" : message);
    EXPECT(r->cluster->n_calls > 0);
    r->cluster->n_calls--;
    bt_cluster_tell_seen(r->cluster);
}

static const bt_rpc_callbacks client_callbacks = {.on_message = on_message, .on_done = on_done};

static size_t pack(const bt_cluster_request *r, uint8_t out[REQUEST_BYTES_MAX])
{
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    Baton__V1__TokenIds ids = BATON__V1__TOKEN_IDS__INIT;
    char *stop = (char *)(uintptr_t)r->stop;
    ids.n_ids = r->n_prompt;
    ids.ids = (uint32_t *)(uintptr_t)r->prompt;
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    request.token_ids = &ids;
    request.sampling = &sampling;
    request.cache_salt = (char *)(uintptr_t)(r->salt != NULL ? r->salt : "");
    sampling.temperature = r->temperature;
    sampling.repetition_penalty = r->repetition_penalty;
    sampling.seed_presence_case = BATON__V1__SAMPLING__SEED_PRESENCE_SEED;
    sampling.seed = r->seed;
    sampling.max_tokens_presence_case = BATON__V1__SAMPLING__MAX_TOKENS_PRESENCE_MAX_TOKENS;
    sampling.max_tokens = r->max_tokens;
    sampling.ignore_eos = true;
    sampling.logprobs = r->logprobs;
    sampling.echo = r->echo;
    sampling.n_stop = r->stop != NULL ? 1 : 0;
    sampling.stop = &stop;
    const size_t n = baton__v1__generate_request__get_packed_size(&request);
    EXPECT(n <= REQUEST_BYTES_MAX);
    return baton__v1__generate_request__pack(&request, out);
}

void bt_cluster_send(bt_cluster *cluster, bt_cluster_request *r)
{
    EXPECT(r->call == NULL);
    uint8_t bytes[REQUEST_BYTES_MAX];
    const size_t n = pack(r, bytes);
    r->cluster = cluster;
    const bt_rpc_start start = {
        .path = "/baton.v1.Generation/Generate",
        .deadline_ns = r->deadline_ns,
        .wait_for_ready = true,
    };
    bt_cluster_must(bt_rpc_channel_start(cluster->channel, &start, &client_callbacks, r, &r->call),
                    NULL, "a call");
    cluster->n_calls++;
    bt_rpc_call_send(r->call, bytes, n);
    bt_rpc_call_close_send(r->call);
    bt_rpc_call_recv(r->call);
}

void bt_cluster_cancel(bt_cluster_request *request)
{
    if (request->call != NULL) {
        bt_rpc_call_cancel(request->call);
    }
}

void bt_cluster_resume(bt_cluster_request *request)
{
    request->hold = false;
    if (request->call != NULL && request->starved) {
        bt_rpc_call_recv(request->call);
    }
    request->starved = false;
}

const char *bt_cluster_compare(const bt_cluster_request *r, const bt_cluster_request *truth)
{
    if (!r->done || r->code != BT_RPC_OK || !r->finished) {
        return "it did not end well";
    }
    if (r->n_tokens != truth->n_tokens) {
        return "the number of tokens";
    }
    if (memcmp(r->tokens, truth->tokens, r->n_tokens * sizeof r->tokens[0]) != 0) {
        return "the tokens";
    }
    if (r->text_len != truth->text_len || memcmp(r->text, truth->text, r->text_len) != 0) {
        return "the text";
    }
    if (r->n_logprobs != truth->n_logprobs ||
        memcmp(r->logprob, truth->logprob, r->n_logprobs * sizeof r->logprob[0]) != 0) {
        return "the logprobs";
    }
    if (r->reason != truth->reason) {
        return "the reason of the end";
    }
    if (r->n_echoed != truth->n_echoed) {
        return "the number of echoed tokens";
    }
    if (r->usage_prompt != truth->usage_prompt || r->usage_generated != truth->usage_generated) {
        return "the usage";
    }
    return NULL;
}
