/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of completions and chat completions. A field is read by a row of a table, refused by a
 * row of another, or ignored, as OpenAI's servers ignore what they don't know. null is "absent"
 * everywhere.
 *
 * All texts are copied into one buffer of the body's length: a JSON string takes at least its
 * bytes and two quotes in there, so whatever is copied once fits, with its NUL. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "router/front_http_int.h"

enum {
    DEFAULT_MAX_TOKENS = 16, /* OpenAI's, for completions */
    COMPLETIONS = 1,
    CHAT = 2,
    BOTH = 3,
};

typedef struct parser {
    const bt_json *body;
    bt_router_http_request *out;
    bt_router_http_error *err;
} parser;

/* ---- errors ---- */

BT_PRINTF(4, 5)
static bt_status fail(parser *p, bt_status status, const char *param, const char *fmt, ...)
{
    char text[sizeof p->err->text.text];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)snprintf(p->err->param, sizeof p->err->param, "%s", param);
    return bt_error_set(&p->err->text, status, "%s %s", param, text);
}

static bool is_absent(const bt_json *json)
{
    return bt_json_type_of(json) == BT_JSON_NULL;
}

/* ---- texts ---- */

static const char *keep(parser *p, const char *text, size_t len)
{
    bt_router_http_request *out = p->out;
    BT_ASSERT(len < out->texts_capacity - out->texts_len);
    char *to = out->texts + out->texts_len;
    memcpy(to, text, len);
    to[len] = '\0';
    out->texts_len += len + 1;
    return to;
}

static bt_status read_string(parser *p, const char *name, const char **to, size_t *to_len)
{
    const bt_json *json = bt_json_get(p->body, name);
    if (is_absent(json)) {
        return BT_OK;
    }
    size_t len;
    const char *text = bt_json_as_string(json, &len);
    if (text == NULL) {
        return fail(p, BT_EINVAL, name, "must be a string");
    }
    *to = keep(p, text, len);
    *to_len = len;
    return BT_OK;
}

static bt_status read_texts(parser *p)
{
    bt_router_front_request *front = &p->out->front;
    size_t model_len = 0;
    bt_status status = read_string(p, "model", &front->model, &model_len);
    if (status == BT_OK && front->model != NULL && strlen(front->model) != model_len) {
        status = fail(p, BT_EINVAL, "model", "must not have NUL characters");
    }
    if (status == BT_OK) {
        status = read_string(p, "cache_salt", &front->cache_salt, &front->cache_salt_len);
    }
    if (status == BT_OK) {
        status = read_string(p, "session_id", &front->session_id, &front->session_id_len);
    }
    return status;
}

/* ---- numbers and switches ---- */

typedef struct number_row {
    const char *name;
    size_t offset; /* of a float in bt_sampling, or of a double in bt_router_front_request */
} number_row;

#define SAMPLING(field) offsetof(bt_sampling, field)
#define FRONT(field) offsetof(bt_router_front_request, field)

static const number_row floats[] = {
    {"temperature", SAMPLING(temperature)},
    {"top_p", SAMPLING(top_p)},
    {"min_p", SAMPLING(min_p)},
    {"repetition_penalty", SAMPLING(repetition_penalty)},
    {"presence_penalty", SAMPLING(presence_penalty)},
    {"frequency_penalty", SAMPLING(frequency_penalty)},
};

static const number_row doubles[] = {
    {"ttft_target_ms", FRONT(ttft_target_ms)},
    {"tpot_target_ms", FRONT(tpot_target_ms)},
};

/* *to is untouched where the field is absent. */
static bt_status read_number(parser *p, const char *name, double *to)
{
    const bt_json *json = bt_json_get(p->body, name);
    if (!is_absent(json) && !bt_json_as_double(json, to)) {
        return fail(p, BT_EINVAL, name, "must be a number");
    }
    return BT_OK;
}

static bt_status read_bool(parser *p, const char *name, bool *to)
{
    const bt_json *json = bt_json_get(p->body, name);
    if (!is_absent(json) && !bt_json_as_bool(json, to)) {
        return fail(p, BT_EINVAL, name, "must be true or false");
    }
    return BT_OK;
}

/* *is_there (may be NULL) says whether the field was. */
static bt_status read_int(parser *p, const char *name, int64_t min, int64_t max, int64_t *to,
                          bool *is_there)
{
    const bt_json *json = bt_json_get(p->body, name);
    int64_t value;
    if (is_absent(json)) {
        return BT_OK;
    }
    if (!bt_json_as_int(json, &value)) {
        return fail(p, BT_EINVAL, name, "must be an integer");
    }
    if (value < min || value > max) {
        return fail(p, BT_EINVAL, name, "is %lld: must be in [%lld, %lld]", (long long)value,
                    (long long)min, (long long)max);
    }
    *to = value;
    if (is_there != NULL) {
        *is_there = true;
    }
    return BT_OK;
}

static float to_float(double value)
{
    /* Out of every range, and a float still. */
    return fabs(value) > 1e30 ? (value > 0 ? 1e30F : -1e30F) : (float)value;
}

static bt_status read_numbers(parser *p)
{
    bt_status status = BT_OK;
    for (size_t i = 0; status == BT_OK && i < BT_ARRAY_LEN(floats); i++) {
        float *to = (float *)(void *)((char *)&p->out->front.sampling + floats[i].offset);
        double value = (double)*to;
        status = read_number(p, floats[i].name, &value);
        *to = to_float(value);
    }
    for (size_t i = 0; status == BT_OK && i < BT_ARRAY_LEN(doubles); i++) {
        double *to = (double *)(void *)((char *)&p->out->front + doubles[i].offset);
        status = read_number(p, doubles[i].name, to);
    }
    return status;
}

static bt_status read_counts(parser *p)
{
    bt_router_front_request *front = &p->out->front;
    bt_sampling *s = &front->sampling;
    const int64_t tokens_max = UINT32_MAX;
    int64_t top_k = 0;
    int64_t min_tokens = 0;
    int64_t priority = 0;
    int64_t n = 1;
    int64_t seed = 0;
    bt_status status = read_int(p, "top_k", -1, INT32_MAX, &top_k, NULL); /* -1: off, as in vLLM */
    if (status == BT_OK) {
        status = read_int(p, "min_tokens", 0, tokens_max, &min_tokens, NULL);
    }
    if (status == BT_OK) {
        status = read_int(p, "priority", -100, 100, &priority, NULL);
    }
    if (status == BT_OK) {
        status = read_int(p, "n", 1, BT_ROUTER_HTTP_CHOICES_MAX, &n, NULL);
    }
    if (status == BT_OK) {
        status = read_int(p, "seed", INT64_MIN, INT64_MAX, &seed, &front->has_seed);
    }
    s->top_k = top_k < 0 ? 0 : (uint32_t)top_k;
    s->min_tokens = (uint32_t)min_tokens;
    s->seed = (uint64_t)seed;
    front->priority = (int32_t)priority;
    p->out->n = (uint32_t)n;
    return status;
}

static bt_status read_max_tokens(parser *p)
{
    bt_router_front_request *front = &p->out->front;
    int64_t old_name = 0;
    int64_t new_name = 0;
    bool has_old = false;
    bool has_new = false;
    bt_status status = read_int(p, "max_tokens", 0, UINT32_MAX, &old_name, &has_old);
    if (status == BT_OK) {
        status = read_int(p, "max_completion_tokens", 0, UINT32_MAX, &new_name, &has_new);
    }
    if (status == BT_OK && has_old && has_new && old_name != new_name) {
        status =
            fail(p, BT_EINVAL, "max_completion_tokens", "and max_tokens differ: give one of them");
    }
    front->has_max_tokens = has_old || has_new || !p->out->is_chat;
    front->sampling.max_tokens = has_new           ? (uint32_t)new_name
                                 : has_old         ? (uint32_t)old_name
                                 : p->out->is_chat ? 0
                                                   : DEFAULT_MAX_TOKENS;
    return status;
}

static bt_status read_switches(parser *p)
{
    bt_router_front_request *front = &p->out->front;
    bt_status status = read_bool(p, "stream", &p->out->stream);
    if (status == BT_OK) {
        status = read_bool(p, "ignore_eos", &front->sampling.ignore_eos);
    }
    if (status == BT_OK) {
        status = read_bool(p, "include_stop_str_in_output", &front->include_stop);
    }
    if (status == BT_OK) {
        status = read_bool(p, "refuse_late", &front->refuse_late);
    }
    if (status == BT_OK && !p->out->is_chat) {
        status = read_bool(p, "echo", &front->sampling.echo);
    }
    const bt_json *options = bt_json_get(p->body, "stream_options");
    if (status != BT_OK || is_absent(options)) {
        return status;
    }
    if (bt_json_type_of(options) != BT_JSON_OBJECT) {
        return fail(p, BT_EINVAL, "stream_options", "must be an object");
    }
    if (!p->out->stream) {
        return fail(p, BT_EINVAL, "stream_options", "goes with stream: true alone");
    }
    const bt_json *usage = bt_json_get(options, "include_usage");
    if (!is_absent(usage) && !bt_json_as_bool(usage, &p->out->include_usage)) {
        return fail(p, BT_EINVAL, "stream_options", "has an include_usage that is no bool");
    }
    return BT_OK;
}

static bt_status read_timeout(parser *p)
{
    double ms = 0;
    const bt_status status = read_number(p, "timeout_ms", &ms);
    const bool is_there = !is_absent(bt_json_get(p->body, "timeout_ms"));
    if (status != BT_OK || !is_there) {
        return status;
    }
    if (!(ms > 0 && ms <= 86400e3)) {
        return fail(p, BT_EINVAL, "timeout_ms", "is %g: must be in (0, 8.64e+07]", ms);
    }
    p->out->front.deadline_left_ns = (int64_t)(ms * 1e6);
    return BT_OK;
}

/* Completions: how many; chat: whether, and how many by a field of its own. */
static bt_status read_logprobs(parser *p)
{
    bt_sampling *s = &p->out->front.sampling;
    int64_t n_top = 0;
    bt_status status;
    if (!p->out->is_chat) {
        bool wants = false;
        status = read_int(p, "logprobs", 0, BT_TOP_LOGPROBS_MAX, &n_top, &wants);
        s->logprobs = wants;
    } else {
        status = read_bool(p, "logprobs", &s->logprobs);
        if (status == BT_OK) {
            status = read_int(p, "top_logprobs", 0, BT_TOP_LOGPROBS_MAX, &n_top, NULL);
        }
        if (status == BT_OK && n_top > 0 && !s->logprobs) {
            status = fail(p, BT_EINVAL, "top_logprobs", "goes with logprobs: true alone");
        }
    }
    s->n_top_logprobs = (uint32_t)n_top;
    return status;
}

/* ---- lists ---- */

static bt_status add_stop(parser *p, const bt_json *json)
{
    bt_router_front_request *front = &p->out->front;
    size_t len;
    const char *text = bt_json_as_string(json, &len);
    if (text == NULL) {
        return fail(p, BT_EINVAL, "stop", "must be a string or an array of strings");
    }
    front->stops[front->n_stops] = keep(p, text, len);
    front->stop_lens[front->n_stops++] = len;
    return BT_OK;
}

static bt_status read_stops(parser *p)
{
    const bt_json *json = bt_json_get(p->body, "stop");
    if (is_absent(json)) {
        return BT_OK;
    }
    if (bt_json_type_of(json) != BT_JSON_ARRAY) {
        return add_stop(p, json);
    }
    const size_t n = bt_json_len(json);
    if (n > BT_ROUTER_STOP_STRINGS_MAX) {
        return fail(p, BT_EINVAL, "stop", "has %zu strings: at most %d", n,
                    (int)BT_ROUTER_STOP_STRINGS_MAX);
    }
    bt_status status = BT_OK;
    for (size_t i = 0; status == BT_OK && i < n; i++) {
        status = add_stop(p, bt_json_at(json, i));
    }
    return status;
}

static bt_status read_stop_tokens(parser *p)
{
    const char *const name = "stop_token_ids";
    const bt_json *json = bt_json_get(p->body, name);
    bt_sampling *s = &p->out->front.sampling;
    if (is_absent(json)) {
        return BT_OK;
    }
    if (bt_json_type_of(json) != BT_JSON_ARRAY || bt_json_len(json) > BT_STOP_TOKENS_MAX) {
        return fail(p, BT_EINVAL, name, "must be an array of at most %d ids",
                    (int)BT_STOP_TOKENS_MAX);
    }
    for (size_t i = 0; i < bt_json_len(json); i++) {
        int64_t id;
        if (!bt_json_as_int(bt_json_at(json, i), &id) || id < 0 || id > INT32_MAX) {
            return fail(p, BT_EINVAL, name, "has at %zu what is no token id", i);
        }
        s->stop_tokens[s->n_stop_tokens++] = (int32_t)id;
    }
    return BT_OK;
}

static bool read_token_key(const char *key, int32_t *out)
{
    int64_t value = 0;
    if (key[0] == '\0' || strlen(key) > 10 || strspn(key, "0123456789") != strlen(key)) {
        return false;
    }
    for (const char *at = key; *at != '\0'; at++) {
        value = 10 * value + (*at - '0');
    }
    *out = (int32_t)value;
    return value <= INT32_MAX;
}

static bt_status read_bias(parser *p)
{
    const bt_json *json = bt_json_get(p->body, "logit_bias");
    bt_sampling *s = &p->out->front.sampling;
    if (is_absent(json)) {
        return BT_OK;
    }
    if (bt_json_type_of(json) != BT_JSON_OBJECT) {
        return fail(p, BT_EINVAL, "logit_bias", "must be an object of token ids and numbers");
    }
    if (bt_json_len(json) > BT_LOGIT_BIAS_MAX) {
        return fail(p, BT_EINVAL, "logit_bias", "has %zu entries: at most %d", bt_json_len(json),
                    (int)BT_LOGIT_BIAS_MAX);
    }
    void *cursor = NULL;
    const char *key;
    const bt_json *value;
    while (bt_json_next(json, &cursor, &key, &value)) {
        double bias;
        bt_logit_bias *to = &s->logit_bias[s->n_logit_bias];
        if (!read_token_key(key, &to->token) || !bt_json_as_double(value, &bias)) {
            return fail(p, BT_EINVAL, "logit_bias", "has '%.32s': must be a token id and a number",
                        key);
        }
        to->bias = to_float(bias);
        s->n_logit_bias++;
    }
    return BT_OK;
}

/* ---- prompts ---- */

/* Appends an array of ids as one prompt. */
static bt_status add_ids(parser *p, const bt_json *json, size_t idx)
{
    bt_router_http_request *out = p->out;
    const size_t n = bt_json_len(json);
    uint32_t *ids = out->ids + out->n_ids;
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!bt_json_as_int(bt_json_at(json, i), &id) || id < 0 || id > UINT32_MAX) {
            return fail(p, BT_EINVAL, "prompt", "%zu has at %zu what is no token id", idx, i);
        }
        ids[i] = (uint32_t)id;
    }
    out->n_ids += n;
    out->prompts[out->n_prompts++] =
        (bt_router_prompt_input){.kind = BT_ROUTER_PROMPT_IDS, .ids = ids, .n_ids = n};
    return BT_OK;
}

static bt_status add_prompt(parser *p, const bt_json *json, size_t idx, bool no_special)
{
    if (bt_json_type_of(json) == BT_JSON_ARRAY) {
        return add_ids(p, json, idx);
    }
    size_t len;
    const char *text = bt_json_as_string(json, &len);
    if (text == NULL) {
        return fail(p, BT_EINVAL, "prompt",
                    "must be a string, an array of strings, of token ids, or of such arrays");
    }
    p->out->prompts[p->out->n_prompts++] = (bt_router_prompt_input){
        .kind = BT_ROUTER_PROMPT_TEXT,
        .text = keep(p, text, len),
        .text_len = len,
        .no_special = no_special,
    };
    return BT_OK;
}

/* Ids in all, of one array or of arrays in it. */
static size_t count_ids(const bt_json *json)
{
    size_t n = bt_json_type_of(json) == BT_JSON_ARRAY ? bt_json_len(json) : 0;
    const size_t n_items = n;
    for (size_t i = 0; i < n_items; i++) {
        const bt_json *item = bt_json_at(json, i);
        n += bt_json_type_of(item) == BT_JSON_ARRAY ? bt_json_len(item) : 0;
    }
    return n;
}

static bt_status read_prompts(parser *p)
{
    bt_router_http_request *out = p->out;
    const bt_json *json = bt_json_get(p->body, "prompt");
    bool add_special = true;
    bt_status status = read_bool(p, "add_special_tokens", &add_special);
    if (status != BT_OK) {
        return status;
    }
    if (is_absent(json)) {
        return fail(p, BT_EINVAL, "prompt", "is missing");
    }
    const bool is_array = bt_json_type_of(json) == BT_JSON_ARRAY;
    const bool is_list = is_array && bt_json_type_of(bt_json_at(json, 0)) != BT_JSON_INT;
    const size_t n = is_list ? bt_json_len(json) : 1;
    if (n == 0) {
        return fail(p, BT_EINVAL, "prompt", "is empty");
    }
    if (n > BT_ROUTER_HTTP_CHOICES_MAX / out->n) {
        return fail(p, BT_EINVAL, "prompt", "asks for %zu choices with n: at most %d", n * out->n,
                    (int)BT_ROUTER_HTTP_CHOICES_MAX);
    }
    out->prompts = calloc(n, sizeof *out->prompts);
    out->ids = calloc(count_ids(json) + 1, sizeof *out->ids);
    if (out->prompts == NULL || out->ids == NULL) {
        return BT_ENOMEM;
    }
    for (size_t i = 0; status == BT_OK && i < n; i++) {
        status = add_prompt(p, is_list ? bt_json_at(json, i) : json, i, !add_special);
    }
    return status;
}

/* The text of a message's content: a string, or parts that are texts, one behind the other. */
static bt_status read_content(parser *p, size_t idx, const bt_json *json, bt_chat_message *to)
{
    char param[BT_ROUTER_HTTP_PARAM_MAX];
    (void)snprintf(param, sizeof param, "messages[%zu].content", idx);
    size_t len;
    const char *text = bt_json_as_string(json, &len);
    if (text != NULL || is_absent(json)) {
        to->content = keep(p, text == NULL ? "" : text, text == NULL ? 0 : len);
        to->content_len = text == NULL ? 0 : len;
        return BT_OK;
    }
    if (bt_json_type_of(json) != BT_JSON_ARRAY) {
        return fail(p, BT_EINVAL, param, "must be a string or an array of parts");
    }
    to->content = p->out->texts + p->out->texts_len;
    for (size_t i = 0; i < bt_json_len(json); i++) {
        const bt_json *part = bt_json_at(json, i);
        const char *type = bt_json_as_string(bt_json_get(part, "type"), NULL);
        text = bt_json_as_string(bt_json_get(part, "text"), &len);
        if (type == NULL || strcmp(type, "text") != 0) {
            return fail(p, BT_EUNSUPPORTED, param,
                        "has a part of type '%.32s': only 'text' is served",
                        type == NULL ? "" : type);
        }
        if (text == NULL) {
            return fail(p, BT_EINVAL, param, "has a part without a text");
        }
        (void)keep(p, text, len);
        p->out->texts_len--; /* the next part begins where this one's NUL is */
        to->content_len += len;
    }
    (void)keep(p, "", 0);
    return BT_OK;
}

static bt_status read_message(parser *p, size_t idx, const bt_json *json, bt_chat_message *to)
{
    char param[BT_ROUTER_HTTP_PARAM_MAX];
    (void)snprintf(param, sizeof param, "messages[%zu]", idx);
    size_t len;
    const char *role = bt_json_as_string(bt_json_get(json, "role"), &len);
    if (role == NULL) {
        return fail(p, BT_EINVAL, param, "must be an object with a role and a content");
    }
    if (!is_absent(bt_json_get(json, "tool_calls")) || strcmp(role, "tool") == 0 ||
        strcmp(role, "function") == 0) {
        return fail(p, BT_EUNSUPPORTED, param, "is about tools, which are not served");
    }
    if (strcmp(role, "developer") == 0) { /* OpenAI's newer name */
        to->role = "system";
        to->role_len = strlen(to->role);
    } else {
        to->role = keep(p, role, len);
        to->role_len = len;
    }
    return read_content(p, idx, bt_json_get(json, "content"), to);
}

static bt_status read_messages(parser *p)
{
    bt_router_http_request *out = p->out;
    const bt_json *json = bt_json_get(p->body, "messages");
    const size_t n = bt_json_len(json);
    if (bt_json_type_of(json) != BT_JSON_ARRAY || n == 0) {
        return fail(p, BT_EINVAL, "messages", "must be an array of one message or more");
    }
    out->prompts = calloc(1, sizeof *out->prompts);
    out->messages = calloc(n, sizeof *out->messages);
    if (out->prompts == NULL || out->messages == NULL) {
        return BT_ENOMEM;
    }
    bt_status status = BT_OK;
    for (size_t i = 0; status == BT_OK && i < n; i++) {
        status = read_message(p, i, bt_json_at(json, i), &out->messages[i]);
    }
    out->n_prompts = 1;
    out->prompts[0] = (bt_router_prompt_input){
        .kind = BT_ROUTER_PROMPT_CHAT, .messages = out->messages, .n_messages = n};
    return status;
}

/* ---- what is not served ---- */

typedef struct refused_row {
    const char *name;
    int doors;
    const char *harmless; /* a string that asks for nothing, beside null, false, "", [] and {} */
} refused_row;

static const refused_row refused[] = {
    {"tools", BOTH, NULL},
    {"tool_choice", BOTH, "none"},
    {"functions", BOTH, NULL},
    {"function_call", BOTH, "none"},
    {"response_format", BOTH, "text"},
    {"modalities", BOTH, "text"},
    {"audio", BOTH, NULL},
    {"web_search_options", BOTH, NULL},
    {"suffix", COMPLETIONS, NULL},
    {"use_beam_search", BOTH, NULL},
    {"prompt_logprobs", BOTH, NULL},
    {"prompt_embeds", BOTH, NULL},
    {"truncate_prompt_tokens", BOTH, NULL},
    {"guided_json", BOTH, NULL},
    {"guided_regex", BOTH, NULL},
    {"guided_choice", BOTH, NULL},
    {"guided_grammar", BOTH, NULL},
    {"structured_outputs", BOTH, NULL},
    {"grammar", BOTH, NULL},
    {"json_schema", BOTH, NULL},
    {"logits_processors", BOTH, NULL},
    {"return_token_ids", BOTH, NULL},
    {"return_tokens_as_token_ids", BOTH, NULL},
    {"echo", CHAT, NULL},
    {"continue_final_message", CHAT, NULL},
    {"chat_template", CHAT, NULL},
    {"documents", CHAT, NULL},
};

/* "text", {"type": "text"} or ["text"] for harmless "text". */
static bool says(const bt_json *json, const char *harmless)
{
    if (bt_json_type_of(json) == BT_JSON_OBJECT) {
        json = bt_json_get(json, "type");
    } else if (bt_json_type_of(json) == BT_JSON_ARRAY && bt_json_len(json) == 1) {
        json = bt_json_at(json, 0);
    }
    const char *text = bt_json_as_string(json, NULL);
    return text != NULL && harmless != NULL && strcmp(text, harmless) == 0;
}

static bool asks_for_nothing(const bt_json *json)
{
    bool flag = false;
    size_t len = 1;
    switch (bt_json_type_of(json)) {
    case BT_JSON_NULL:
        return true;
    case BT_JSON_BOOL:
        return bt_json_as_bool(json, &flag) && !flag;
    case BT_JSON_STRING:
        return bt_json_as_string(json, &len) != NULL && len == 0;
    case BT_JSON_ARRAY:
    case BT_JSON_OBJECT:
        return bt_json_len(json) == 0;
    default:
        return false;
    }
}

static bt_status refuse_the_unserved(parser *p)
{
    const int door = p->out->is_chat ? CHAT : COMPLETIONS;
    for (size_t i = 0; i < BT_ARRAY_LEN(refused); i++) {
        const refused_row *row = &refused[i];
        const bt_json *json = bt_json_get(p->body, row->name);
        if ((row->doors & door) != 0 && !asks_for_nothing(json) && !says(json, row->harmless)) {
            return fail(p, BT_EUNSUPPORTED, row->name, "is not served%s%s",
                        row->harmless != NULL ? ", other than " : "",
                        row->harmless != NULL ? row->harmless : "");
        }
    }
    int64_t best_of = p->out->n;
    bt_status status = read_int(p, "best_of", 1, BT_ROUTER_HTTP_CHOICES_MAX, &best_of, NULL);
    if (status == BT_OK && best_of != p->out->n) {
        status =
            fail(p, BT_EUNSUPPORTED, "best_of", "is not served, other than with the value of n");
    }
    bool flag = true;
    if (status == BT_OK) {
        status = read_bool(p, "skip_special_tokens", &flag);
    }
    if (status == BT_OK && !flag) {
        status = fail(p, BT_EUNSUPPORTED, "skip_special_tokens", "is not served, other than true");
    }
    if (status == BT_OK && p->out->is_chat) {
        status = read_bool(p, "add_generation_prompt", &flag);
    }
    if (status == BT_OK && !flag) {
        status =
            fail(p, BT_EUNSUPPORTED, "add_generation_prompt", "is not served, other than true");
    }
    return status;
}

/* ---- all of it ---- */

static bt_status parse_body(parser *p)
{
    bt_status (*const steps[])(parser *) = {
        read_texts,      read_numbers,        read_counts,
        read_max_tokens, read_switches,       read_timeout,
        read_logprobs,   read_stops,          read_stop_tokens,
        read_bias,       refuse_the_unserved, p->out->is_chat ? read_messages : read_prompts,
    };
    if (bt_json_type_of(p->body) != BT_JSON_OBJECT) {
        return bt_error_set(&p->err->text, BT_EINVAL, "the body must be a JSON object");
    }
    bt_status status = BT_OK;
    for (size_t i = 0; status == BT_OK && i < BT_ARRAY_LEN(steps); i++) {
        status = steps[i](p);
    }
    return status;
}

bt_status bt_router_http_parse(const char *body, size_t len, bool is_chat,
                               bt_router_http_request *out, bt_router_http_error *err)
{
    *err = (bt_router_http_error){.param = ""};
    *out = (bt_router_http_request){
        .is_chat = is_chat,
        .n = 1,
        .front = {.sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
                  .deadline_left_ns = INT64_MAX},
    };
    bt_json *json = NULL;
    bt_error why = {""};
    bt_status status = bt_json_parse(body, len, &json, &why);
    if (status == BT_EINVAL) {
        (void)bt_error_set(&err->text, status, "the body is no JSON: %.200s", why.text);
    }
    if (status == BT_OK) {
        out->texts_capacity = len + 1;
        out->texts = malloc(out->texts_capacity);
        parser p = {.body = json, .out = out, .err = err};
        status = out->texts == NULL ? BT_ENOMEM : parse_body(&p);
    }
    bt_json_destroy(json);
    if (status == BT_ENOMEM) {
        (void)bt_error_set(&err->text, status, "the router is out of memory");
    }
    if (status != BT_OK) {
        bt_router_http_request_deinit(out);
    }
    return status;
}

void bt_router_http_request_deinit(bt_router_http_request *request)
{
    free(request->texts);
    free(request->ids);
    free(request->messages);
    free(request->prompts);
    request->texts = NULL;
    request->ids = NULL;
    request->messages = NULL;
    request->prompts = NULL;
}

/* Fields that the router's own checks may name first. */
static const char *const checked_fields[] = {
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop_token_ids",
    "stop",
    "max_tokens",
    "min_tokens",
    "priority",
    "ttft_target_ms",
    "tpot_target_ms",
    "session_id",
    "cache_salt",
};

void bt_router_http_adapt_error(bool is_chat, bt_router_http_error *err)
{
    static const char prefix[] = "sampling.";
    static const char top[] = "n_top_logprobs";
    char *text = err->text.text;
    for (char *at = text; (at = strstr(at, prefix)) != NULL;) {
        memmove(at, at + strlen(prefix), strlen(at + strlen(prefix)) + 1);
    }
    for (char *at = text; (at = strstr(at, top)) != NULL;) { /* the other names are shorter */
        const char *name = is_chat ? "top_logprobs" : "logprobs";
        memmove(at + strlen(name), at + strlen(top), strlen(at + strlen(top)) + 1);
        memcpy(at, name, strlen(name));
        at += strlen(name);
    }
    const size_t word = strcspn(text, " [");
    for (size_t i = 0; err->param[0] == '\0' && i < BT_ARRAY_LEN(checked_fields); i++) {
        if (strlen(checked_fields[i]) == word && strncmp(checked_fields[i], text, word) == 0) {
            (void)snprintf(err->param, sizeof err->param, "%s", checked_fields[i]);
        }
    }
    if (strncmp(text, "the prompt ", 11) == 0) {
        (void)snprintf(err->param, sizeof err->param, "%s", is_chat ? "messages" : "prompt");
    }
}
