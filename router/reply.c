/* SPDX-License-Identifier: Apache-2.0 */
/* How it works. Two lanes, prompt and output, each with the results and the text that wait for
 * the client. A result enters its lane when its index is the next one; results that come too
 * early wait in a short unordered array. Invariants:
 *   1. output.ids holds every output token released so far: what a retry needs;
 *   2. lane.n_released = lane.n_taken + lane.n_results;
 *   3. no early result has an index below output.n_released;
 *   4. output is offered to the client only when the whole prompt was (if one is expected): two
 *      workers send them, and the one that decodes may be first.
 * Consuming moves the rest of a lane to its front; a client that keeps up leaves nothing. */
#include "router/reply.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "engine/detokenizer.h"
#include "router/text_stream.h"

enum {
    RESULTS_PER_PIECE = 4096,
    RESULTS_PER_PIECE_LOGPROBS = 256, /* keeps a message far below 1 MiB */
    TEXT_PER_PIECE = 1 << 20,
};

typedef struct lane {
    bt_token_result *results; /* not taken yet */
    uint32_t n_results;
    uint32_t capacity;
    uint32_t n_released;
    uint32_t n_taken;
    bt_text text; /* not taken yet */
    bt_detokenizer detokenizer;
} lane;

typedef struct early_result {
    uint32_t index;
    bt_token_result result;
} early_result;

struct bt_router_reply {
    const bt_tokenizer *tokenizer;
    bool logprobs;
    bool ignore_eos;
    uint32_t n_stop_tokens;
    int32_t stop_tokens[BT_STOP_TOKENS_MAX];
    bt_router_text_stream *stream;
    lane prompt;
    uint32_t n_prompt; /* expected; 0: no echo */
    lane output;
    bt_token_list ids; /* of the output */
    early_result *early;
    uint32_t n_early;
    uint32_t early_capacity;
    uint64_t n_mismatches;
    bool finished;
    bt_text scratch; /* of one token */
};

bt_status bt_router_reply_create(const bt_router_reply_options *options, bt_router_reply **out,
                                 bt_error *err)
{
    bt_router_reply *reply = calloc(1, sizeof *reply);
    if (reply == NULL) {
        return BT_ENOMEM;
    }
    const bt_status status =
        bt_router_text_stream_create(options->stops, options->stop_lens, options->n_stops,
                                     options->include_stop, &reply->stream, err);
    if (status != BT_OK) {
        free(reply);
        return status;
    }
    const bt_sampling *sampling = options->sampling;
    BT_ASSERT(sampling->n_stop_tokens <= BT_STOP_TOKENS_MAX);
    reply->tokenizer = options->tokenizer;
    reply->logprobs = sampling->logprobs;
    reply->ignore_eos = sampling->ignore_eos;
    reply->n_stop_tokens = sampling->n_stop_tokens;
    memcpy(reply->stop_tokens, sampling->stop_tokens, sizeof reply->stop_tokens);
    bt_detokenizer_init(&reply->prompt.detokenizer, reply->tokenizer,
                        BT_DETOKENIZE_SPECIAL | BT_DETOKENIZE_TEXT_START);
    bt_detokenizer_init(&reply->output.detokenizer, reply->tokenizer, 0);
    *out = reply;
    return BT_OK;
}

static void deinit_lane(lane *l)
{
    free(l->results);
    bt_text_deinit(&l->text);
}

void bt_router_reply_destroy(bt_router_reply *reply)
{
    if (reply == NULL) {
        return;
    }
    bt_router_text_stream_destroy(reply->stream);
    deinit_lane(&reply->prompt);
    deinit_lane(&reply->output);
    bt_token_list_deinit(&reply->ids);
    free(reply->early);
    bt_text_deinit(&reply->scratch);
    free(reply);
}

void bt_router_reply_expect_prompt(bt_router_reply *reply, uint32_t n)
{
    BT_ASSERT(reply->prompt.n_released == 0);
    reply->n_prompt = n;
}

static bt_status append_result(lane *l, const bt_token_result *result)
{
    if (l->n_results == l->capacity) {
        const uint32_t capacity = l->capacity == 0 ? 4 : l->capacity * 2;
        bt_token_result *grown = realloc(l->results, capacity * sizeof *grown);
        if (grown == NULL) {
            return BT_ENOMEM;
        }
        l->results = grown;
        l->capacity = capacity;
    }
    l->results[l->n_results++] = *result;
    l->n_released++;
    return BT_OK;
}

/* Tokens that end a generation are reported but never shown. */
static bool is_shown(const bt_router_reply *reply, int32_t token)
{
    for (uint32_t i = 0; i < reply->n_stop_tokens; i++) {
        if (reply->stop_tokens[i] == token) {
            return false;
        }
    }
    return reply->ignore_eos || !bt_tokenizer_is_end(reply->tokenizer, token);
}

/* The next output token. After a failure the reply is of no further use. */
static bt_status release(bt_router_reply *reply, const bt_token_result *result)
{
    bt_status status = bt_token_list_append(&reply->ids, &result->token, 1);
    if (status != BT_OK) {
        return status;
    }
    if (is_shown(reply, result->token)) {
        reply->scratch.len = 0;
        status = bt_detokenizer_push(&reply->output.detokenizer, result->token, &reply->scratch);
        bool stopped = false;
        if (status == BT_OK && reply->scratch.len > 0) {
            status = bt_router_text_stream_push(reply->stream, reply->scratch.bytes,
                                                reply->scratch.len, &reply->output.text, &stopped);
        }
    }
    if (status == BT_OK) {
        status = append_result(&reply->output, result);
    }
    if (status != BT_OK) {
        reply->ids.n--;
    }
    return status;
}

static bt_status keep_early(bt_router_reply *reply, uint32_t index, const bt_token_result *result)
{
    for (uint32_t i = 0; i < reply->n_early; i++) {
        if (reply->early[i].index == index) {
            reply->n_mismatches += reply->early[i].result.token != result->token;
            return BT_OK;
        }
    }
    if (reply->n_early == BT_ROUTER_EARLY_TOKENS_MAX) {
        return BT_EPROTOCOL;
    }
    if (reply->n_early == reply->early_capacity) {
        const uint32_t capacity = reply->early_capacity == 0 ? 4 : reply->early_capacity * 2;
        early_result *grown = realloc(reply->early, capacity * sizeof *grown);
        if (grown == NULL) {
            return BT_ENOMEM;
        }
        reply->early = grown;
        reply->early_capacity = capacity;
    }
    reply->early[reply->n_early++] = (early_result){.index = index, .result = *result};
    return BT_OK;
}

/* Releases early results for as long as the next index is among them (invariant 3). */
static bt_status release_early(bt_router_reply *reply)
{
    uint32_t i = 0;
    while (i < reply->n_early && bt_router_reply_stop_idx(reply) < 0) {
        if (reply->early[i].index != reply->output.n_released) {
            i++;
            continue;
        }
        const bt_status status = release(reply, &reply->early[i].result);
        if (status != BT_OK) {
            return status;
        }
        reply->early[i] = reply->early[--reply->n_early];
        i = 0;
    }
    return BT_OK;
}

static bool is_known(const bt_router_reply *reply, int32_t token)
{
    return token >= 0 && (uint32_t)token < bt_tokenizer_vocab_size(reply->tokenizer);
}

bt_status bt_router_reply_push(bt_router_reply *reply, uint32_t first_index,
                               const bt_token_result *results, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (reply->finished || bt_router_reply_stop_idx(reply) >= 0) {
            return BT_OK;
        }
        if (!is_known(reply, results[i].token) || first_index > UINT32_MAX - n) {
            return BT_EPROTOCOL;
        }
        const uint32_t index = first_index + i;
        bt_status status = BT_OK;
        if (index < reply->output.n_released) {
            reply->n_mismatches += reply->ids.ids[index] != results[i].token;
        } else if (index > reply->output.n_released) {
            status = keep_early(reply, index, &results[i]);
        } else {
            status = release(reply, &results[i]);
            if (status == BT_OK && reply->n_early > 0) {
                status = release_early(reply);
            }
        }
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

bt_status bt_router_reply_push_prompt(bt_router_reply *reply, uint32_t first_index,
                                      const bt_token_result *results, uint32_t n,
                                      uint32_t skip_text)
{
    lane *l = &reply->prompt;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_known(reply, results[i].token) || first_index > UINT32_MAX - n ||
            first_index + i > l->n_released) {
            return BT_EPROTOCOL;
        }
        if (first_index + i < l->n_released) {
            continue;
        }
        bt_status status = BT_OK;
        if (first_index + i >= skip_text) {
            status = bt_detokenizer_push(&l->detokenizer, results[i].token, &l->text);
        }
        if (status == BT_OK) {
            status = append_result(l, &results[i]);
        }
        if (status == BT_OK && l->n_released == reply->n_prompt) {
            status = bt_detokenizer_flush(&l->detokenizer, &l->text);
        }
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

bt_status bt_router_reply_finish(bt_router_reply *reply)
{
    if (reply->finished) {
        return BT_OK;
    }
    bt_status status = bt_detokenizer_flush(&reply->prompt.detokenizer, &reply->prompt.text);
    if (status == BT_OK && bt_router_reply_stop_idx(reply) < 0) {
        reply->scratch.len = 0;
        status = bt_detokenizer_flush(&reply->output.detokenizer, &reply->scratch);
        bool stopped = false;
        if (status == BT_OK) {
            status = bt_router_text_stream_push(reply->stream, reply->scratch.bytes,
                                                reply->scratch.len, &reply->output.text, &stopped);
        }
        if (status == BT_OK && !stopped) {
            status = bt_router_text_stream_finish(reply->stream, &reply->output.text);
        }
    }
    reply->finished = status == BT_OK;
    return status;
}

bool bt_router_reply_has_end(const bt_router_reply *reply)
{
    return reply->ids.n > 0 && !is_shown(reply, reply->ids.ids[reply->ids.n - 1]);
}

const int32_t *bt_router_reply_tokens(const bt_router_reply *reply, uint32_t *n)
{
    *n = (uint32_t)reply->ids.n;
    return reply->ids.ids;
}

uint32_t bt_router_reply_prompt_count(const bt_router_reply *reply)
{
    return reply->prompt.n_released;
}

bool bt_router_reply_lacks_prompt(const bt_router_reply *reply)
{
    return reply->prompt.n_released < reply->n_prompt;
}

bool bt_router_reply_has_gap(const bt_router_reply *reply)
{
    return bt_router_reply_lacks_prompt(reply) ||
           (reply->n_early > 0 && bt_router_reply_stop_idx(reply) < 0);
}

int bt_router_reply_stop_idx(const bt_router_reply *reply)
{
    return bt_router_text_stream_stop_idx(reply->stream);
}

uint64_t bt_router_reply_mismatches(const bt_router_reply *reply)
{
    return reply->n_mismatches;
}

size_t bt_router_reply_pending_bytes(const bt_router_reply *reply)
{
    return reply->output.text.len + reply->output.n_results * sizeof *reply->output.results;
}

/* Longest beginning of `text` of at most `max` bytes that ends at a whole character. */
static size_t whole_characters(const bt_text *text, size_t max)
{
    if (text->len <= max) {
        return text->len;
    }
    size_t n = max;
    while (n > 0 && ((unsigned char)text->bytes[n] & 0xC0) == 0x80) {
        n--;
    }
    return n;
}

bool bt_router_reply_peek(const bt_router_reply *reply, bt_router_piece *piece)
{
    const bool is_prompt = reply->prompt.n_results > 0 || reply->prompt.text.len > 0;
    const lane *l = is_prompt ? &reply->prompt : &reply->output;
    if (l->n_results == 0 && l->text.len == 0) {
        return false;
    }
    if (!is_prompt && bt_router_reply_lacks_prompt(reply) && !reply->finished) {
        return false;
    }
    const uint32_t n_max = reply->logprobs ? RESULTS_PER_PIECE_LOGPROBS : RESULTS_PER_PIECE;
    const uint32_t n = l->n_results < n_max ? l->n_results : n_max;
    /* Text waits for the last of its tokens. */
    const size_t text_len = n == l->n_results ? whole_characters(&l->text, TEXT_PER_PIECE) : 0;
    const bool lane_ends = n == l->n_results && text_len == l->text.len;
    *piece = (bt_router_piece){
        .is_prompt = is_prompt,
        .first_index = l->n_taken,
        .results = l->results,
        .n_results = n,
        .text = l->text.bytes,
        .text_len = text_len,
        .is_all = lane_ends &&
                  (!is_prompt || (reply->output.n_results == 0 && reply->output.text.len == 0)),
    };
    return true;
}

void bt_router_reply_consume(bt_router_reply *reply, const bt_router_piece *piece)
{
    lane *l = piece->is_prompt ? &reply->prompt : &reply->output;
    BT_ASSERT(piece->n_results <= l->n_results);
    BT_ASSERT(piece->text_len <= l->text.len);
    l->n_results -= piece->n_results;
    l->n_taken += piece->n_results;
    if (l->n_results > 0) {
        memmove(l->results, l->results + piece->n_results, l->n_results * sizeof *l->results);
    }
    l->text.len -= piece->text_len;
    if (l->text.len > 0) {
        memmove(l->text.bytes, l->text.bytes + piece->text_len, l->text.len);
    }
}
