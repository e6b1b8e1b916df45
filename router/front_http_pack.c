/* SPDX-License-Identifier: Apache-2.0 */
/* Answers in OpenAI's form. A token that is not whole characters shows in completions as
 * "bytes:\xe2\x82", as OpenAI's did, so that such tokens stay apart; in chat its bytes are given
 * beside it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/utf8.h"
#include "router/front_http_int.h"

enum {
    TOKEN_TEXT_BYTES = 1024, /* longer ones are cut */
    HTTP_INVALID = 400,
    HTTP_UNAUTHORIZED = 401,
    HTTP_NOT_FOUND = 404,
    HTTP_TOO_LARGE = 413,
    HTTP_TOO_MANY = 429,
    HTTP_CLIENT_CLOSED = 499,
    HTTP_INTERNAL = 500,
    HTTP_UNAVAILABLE = 503,
    HTTP_DEADLINE = 504,
};

static const float no_logprob = -9999; /* OpenAI's number for what can't be */

/* ---- logprobs ---- */

static void put_logprob(bt_json_writer *w, float logprob)
{
    bt_json_double(w, (double)(isfinite(logprob) ? logprob : no_logprob));
}

/* A token as one string; distinct bytes give distinct strings. */
static const char *token_text(const bt_tokenizer *tokenizer, int32_t token,
                              char buffer[TOKEN_TEXT_BYTES])
{
    size_t len = 0;
    const char *bytes = bt_tokenizer_piece(tokenizer, token, &len);
    if (len < TOKEN_TEXT_BYTES && bt_utf8_valid(bytes, len, NULL) &&
        (len == 0 || memchr(bytes, '\0', len) == NULL)) {
        memcpy(buffer, len == 0 ? "" : bytes, len);
        buffer[len] = '\0';
        return buffer;
    }
    int n = snprintf(buffer, TOKEN_TEXT_BYTES, "bytes:");
    for (size_t i = 0; i < len && n + 5 < TOKEN_TEXT_BYTES; i++) {
        n += snprintf(buffer + n, TOKEN_TEXT_BYTES - (size_t)n, "\\x%02x",
                      (unsigned)(unsigned char)bytes[i]);
    }
    return buffer;
}

static bool same_piece(const bt_tokenizer *tokenizer, int32_t a, int32_t b)
{
    size_t a_len = 0;
    size_t b_len = 0;
    const char *a_bytes = bt_tokenizer_piece(tokenizer, a, &a_len);
    const char *b_bytes = bt_tokenizer_piece(tokenizer, b, &b_len);
    return a == b || (a_len == b_len && memcmp(a_bytes, b_bytes, a_len) == 0);
}

/* {"token": logprob}: the likeliest and the token itself. Of two tokens with one text (a byte
 * token and the character) the likelier one stands, for keys are unique. */
static void put_top_object(bt_json_writer *w, const bt_router_http_part *part,
                           const bt_token_result *result)
{
    char buffer[TOKEN_TEXT_BYTES];
    bool has_itself = false;
    bt_json_object_begin(w);
    for (uint32_t i = 0; i < result->n_top; i++) {
        const int32_t token = result->top[i].token;
        bool is_double = false;
        for (uint32_t k = 0; k < i && !is_double; k++) {
            is_double = same_piece(part->tokenizer, token, result->top[k].token);
        }
        has_itself = has_itself || same_piece(part->tokenizer, token, result->token);
        if (!is_double) {
            bt_json_key(w, token_text(part->tokenizer, token, buffer));
            put_logprob(w, result->top[i].logprob);
        }
    }
    if (!has_itself) {
        bt_json_key(w, token_text(part->tokenizer, result->token, buffer));
        put_logprob(w, result->logprob);
    }
    bt_json_object_end(w);
}

static uint32_t count_characters(const bt_tokenizer *tokenizer, int32_t token)
{
    size_t len = 0;
    uint32_t n = 0;
    const char *bytes = bt_tokenizer_piece(tokenizer, token, &len);
    for (size_t i = 0; i < len; i++) {
        n += ((unsigned char)bytes[i] & 0xC0) != 0x80; /* not a character's later byte */
    }
    return n;
}

static void put_logprob_lists(bt_json_writer *w, const bt_router_http_part *part)
{
    char buffer[TOKEN_TEXT_BYTES];
    bt_json_object_begin(w);
    bt_json_key(w, "tokens");
    bt_json_array_begin(w);
    for (size_t i = 0; i < part->n_results; i++) {
        bt_json_string(w, token_text(part->tokenizer, part->results[i].token, buffer));
    }
    bt_json_array_end(w);
    bt_json_key(w, "token_logprobs");
    bt_json_array_begin(w);
    for (size_t i = 0; i < part->n_results; i++) {
        if (part->results[i].has_logprob) {
            put_logprob(w, part->results[i].logprob);
        } else {
            bt_json_null(w);
        }
    }
    bt_json_array_end(w);
    bt_json_key(w, "top_logprobs");
    bt_json_array_begin(w);
    for (size_t i = 0; i < part->n_results; i++) {
        if (part->results[i].has_logprob) {
            put_top_object(w, part, &part->results[i]);
        } else {
            bt_json_null(w);
        }
    }
    bt_json_array_end(w);
    bt_json_key(w, "text_offset");
    bt_json_array_begin(w);
    for (size_t i = 0; i < part->n_results; i++) {
        bt_json_uint(w, *part->offset);
        if (i >= part->n_skipped) {
            *part->offset += count_characters(part->tokenizer, part->results[i].token);
        }
    }
    bt_json_array_end(w);
    bt_json_object_end(w);
}

static void put_token(bt_json_writer *w, const bt_tokenizer *tokenizer, int32_t token,
                      float logprob)
{
    size_t len = 0;
    const char *bytes = bt_tokenizer_piece(tokenizer, token, &len);
    bt_json_key(w, "token");
    bt_json_string_n(w, bytes, len);
    bt_json_key(w, "logprob");
    put_logprob(w, logprob);
    bt_json_key(w, "bytes");
    bt_json_array_begin(w);
    for (size_t i = 0; i < len; i++) {
        bt_json_uint(w, (unsigned char)bytes[i]);
    }
    bt_json_array_end(w);
}

static void put_logprob_content(bt_json_writer *w, const bt_router_http_part *part)
{
    bt_json_object_begin(w);
    bt_json_key(w, "content");
    bt_json_array_begin(w);
    for (size_t i = 0; i < part->n_results; i++) {
        const bt_token_result *result = &part->results[i];
        bt_json_object_begin(w);
        put_token(w, part->tokenizer, result->token,
                  result->has_logprob ? result->logprob : no_logprob);
        bt_json_key(w, "top_logprobs");
        bt_json_array_begin(w);
        for (uint32_t k = 0; k < result->n_top; k++) {
            bt_json_object_begin(w);
            put_token(w, part->tokenizer, result->top[k].token, result->top[k].logprob);
            bt_json_object_end(w);
        }
        bt_json_array_end(w);
        bt_json_object_end(w);
    }
    bt_json_array_end(w);
    bt_json_key(w, "refusal");
    bt_json_null(w);
    bt_json_object_end(w);
}

/* ---- choices ---- */

static void put_content(bt_json_writer *w, bool is_chat, bool stream,
                        const bt_router_http_part *part)
{
    if (!is_chat) {
        bt_json_key(w, "text");
        bt_json_string_n(w, part->text, part->text_len);
        return;
    }
    bt_json_key(w, stream ? "delta" : "message");
    bt_json_object_begin(w);
    if (part->is_first) {
        bt_json_key(w, "role");
        bt_json_string(w, "assistant");
    }
    if (part->is_first || part->text_len > 0 || !part->is_last) {
        bt_json_key(w, "content");
        bt_json_string_n(w, part->text, part->text_len);
    }
    if (!stream) {
        bt_json_key(w, "refusal");
        bt_json_null(w);
    }
    bt_json_object_end(w);
}

static void put_choice(bt_json_writer *w, bool is_chat, bool stream,
                       const bt_router_http_part *part)
{
    bt_json_object_begin(w);
    bt_json_key(w, "index");
    bt_json_uint(w, part->idx);
    put_content(w, is_chat, stream, part);
    bt_json_key(w, "logprobs");
    if (part->results == NULL || part->n_results == 0) {
        bt_json_null(w);
    } else if (is_chat) {
        put_logprob_content(w, part);
    } else {
        put_logprob_lists(w, part);
    }
    bt_json_key(w, "finish_reason");
    bt_json_string(w, !part->is_last ? NULL : part->reason == BT_FINISH_LENGTH ? "length" : "stop");
    if (part->is_last) {
        bt_json_key(w, "stop_reason");
        if (part->stop != NULL) {
            bt_json_string_n(w, part->stop, part->stop_len);
        } else if (part->has_stop_token) {
            bt_json_int(w, part->stop_token);
        } else {
            bt_json_null(w);
        }
    }
    bt_json_object_end(w);
}

static void begin_object(bt_json_writer *w, const bt_router_http_head *head)
{
    char id[BT_ROUTER_LABEL_MAX + 16];
    (void)snprintf(id, sizeof id, "%s-%s", head->is_chat ? "chatcmpl" : "cmpl", head->label);
    bt_json_object_begin(w);
    bt_json_key(w, "id");
    bt_json_string(w, id);
    bt_json_key(w, "object");
    bt_json_string(w, !head->is_chat ? "text_completion"
                      : head->stream ? "chat.completion.chunk"
                                     : "chat.completion");
    bt_json_key(w, "created");
    bt_json_int(w, head->created_s);
    bt_json_key(w, "model");
    bt_json_string(w, head->model);
}

static void put_usage(bt_json_writer *w, const bt_router_http_usage *usage)
{
    bt_json_key(w, "usage");
    bt_json_object_begin(w);
    bt_json_key(w, "prompt_tokens");
    bt_json_uint(w, usage->prompt_tokens);
    bt_json_key(w, "completion_tokens");
    bt_json_uint(w, usage->generated_tokens);
    bt_json_key(w, "total_tokens");
    bt_json_uint(w, usage->prompt_tokens + usage->generated_tokens);
    bt_json_key(w, "prompt_tokens_details");
    bt_json_object_begin(w);
    bt_json_key(w, "cached_tokens");
    bt_json_uint(w, usage->cached_tokens);
    bt_json_object_end(w);
    bt_json_object_end(w);
}

void bt_router_http_pack_chunk(bt_json_writer *w, const bt_router_http_head *head,
                               const bt_router_http_part *part)
{
    begin_object(w, head);
    bt_json_key(w, "choices");
    bt_json_array_begin(w);
    put_choice(w, head->is_chat, true, part);
    bt_json_array_end(w);
    if (head->include_usage) {
        bt_json_key(w, "usage");
        bt_json_null(w);
    }
    bt_json_object_end(w);
}

void bt_router_http_pack_usage_chunk(bt_json_writer *w, const bt_router_http_head *head,
                                     const bt_router_http_usage *usage)
{
    begin_object(w, head);
    bt_json_key(w, "choices");
    bt_json_array_begin(w);
    bt_json_array_end(w);
    put_usage(w, usage);
    bt_json_object_end(w);
}

void bt_router_http_pack_answer(bt_json_writer *w, const bt_router_http_head *head,
                                const bt_router_http_part *parts, size_t n,
                                const bt_router_http_usage *usage)
{
    begin_object(w, head);
    bt_json_key(w, "choices");
    bt_json_array_begin(w);
    for (size_t i = 0; i < n; i++) {
        put_choice(w, head->is_chat, false, &parts[i]);
    }
    bt_json_array_end(w);
    put_usage(w, usage);
    bt_json_object_end(w);
}

/* ---- errors ---- */

unsigned bt_router_http_code_of(bt_status status, const char **code)
{
    static const struct {
        bt_status status;
        unsigned http_code;
        const char *code;
    } rows[] = {
        {BT_EINVAL, HTTP_INVALID, NULL},
        {BT_ERANGE, HTTP_INVALID, NULL},
        {BT_EUNSUPPORTED, HTTP_INVALID, "unsupported_parameter"},
        {BT_EPERMISSION, HTTP_UNAUTHORIZED, "invalid_api_key"},
        {BT_ENOTFOUND, HTTP_NOT_FOUND, "model_not_found"},
        {BT_EEXHAUSTED, HTTP_TOO_MANY, "rate_limit_exceeded"},
        {BT_ECANCELLED, HTTP_CLIENT_CLOSED, "cancelled"},
        {BT_EDEADLINE, HTTP_DEADLINE, "deadline_exceeded"},
        {BT_EPEER, HTTP_UNAVAILABLE, "unavailable"},
        {BT_EABORTED, HTTP_UNAVAILABLE, "aborted"},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        if (rows[i].status == status) {
            *code = rows[i].code;
            return rows[i].http_code;
        }
    }
    *code = "internal_error";
    return HTTP_INTERNAL;
}

static const char *type_of(unsigned http_code)
{
    return http_code == HTTP_UNAUTHORIZED ? "authentication_error"
           : http_code == HTTP_TOO_MANY   ? "rate_limit_error"
           : http_code < HTTP_INTERNAL    ? "invalid_request_error"
                                          : "server_error";
}

void bt_router_http_pack_error(bt_json_writer *w, unsigned http_code, const char *code,
                               const bt_router_http_error *err)
{
    bt_json_object_begin(w);
    bt_json_key(w, "error");
    bt_json_object_begin(w);
    bt_json_key(w, "message");
    bt_json_string(w, err->text.text);
    bt_json_key(w, "type");
    bt_json_string(w, type_of(http_code));
    bt_json_key(w, "param");
    bt_json_string(w, err->param[0] == '\0' ? NULL : err->param);
    bt_json_key(w, "code");
    bt_json_string(w, code);
    bt_json_object_end(w);
    bt_json_object_end(w);
}

/* ---- models ---- */

void bt_router_http_pack_model(bt_json_writer *w, const bt_router_model_card *card,
                               int64_t created_s)
{
    bt_json_object_begin(w);
    bt_json_key(w, "id");
    bt_json_string(w, card->name);
    bt_json_key(w, "object");
    bt_json_string(w, "model");
    bt_json_key(w, "created");
    bt_json_int(w, created_s);
    bt_json_key(w, "owned_by");
    bt_json_string(w, "baton");
    bt_json_key(w, "max_model_len");
    bt_json_uint(w, card->context_tokens);
    bt_json_object_end(w);
}

void bt_router_http_pack_models(bt_json_writer *w, const bt_router_models *models,
                                int64_t created_s)
{
    bt_json_object_begin(w);
    bt_json_key(w, "object");
    bt_json_string(w, "list");
    bt_json_key(w, "data");
    bt_json_array_begin(w);
    for (size_t i = 0; i < bt_router_models_count(models); i++) {
        bt_router_http_pack_model(w, bt_router_models_at(models, i), created_s);
    }
    bt_json_array_end(w);
    bt_json_object_end(w);
}
