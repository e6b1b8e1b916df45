/* SPDX-License-Identifier: Apache-2.0 */
/* Messages from clients. protobuf-c takes any bytes as a string and forgets what follows a NUL,
 * so before it unpacks, the encoded message is walked along its descriptor and every string
 * field is looked at: the error can then name the field ("chat.messages[2].content") and the
 * byte. It also counts what unpacking would make a piece of memory of: four megabytes of empty
 * messages would hold the loop for a second. The walk keeps its own stack; what it can't make
 * sense of, unpacking refuses. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "router/front_grpc_int.h"

enum {
    DEPTH_MAX = 8,
    FIELDS_MAX = 32,
    PARTS_MAX = 1 << 17, /* strings and messages: each is memory of its own, and takes its time */
    PATH_BYTES = 160,
};

typedef struct frame {
    const ProtobufCMessageDescriptor *descriptor;
    const uint8_t *at;
    const uint8_t *end;
    size_t path_len;             /* of this message's own path */
    uint32_t counts[FIELDS_MAX]; /* elements seen of each repeated field */
} frame;

typedef struct walk {
    frame frames[DEPTH_MAX];
    size_t depth; /* of the open frames */
    uint32_t n_parts;
    char path[PATH_BYTES];
} walk;

static bool read_varint(frame *f, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && f->at < f->end; shift += 7) {
        const uint8_t byte = *f->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool skip(frame *f, uint64_t n)
{
    if (n > (uint64_t)(f->end - f->at)) {
        return false;
    }
    f->at += n;
    return true;
}

/* Puts "field" or "field[3]" behind the frame's path; returns the new length. */
static size_t set_path(walk *w, frame *f, const ProtobufCFieldDescriptor *field)
{
    char *to = w->path + f->path_len;
    const size_t room = sizeof w->path - f->path_len;
    const char *dot = f->path_len > 0 ? "." : "";
    const size_t idx = (size_t)(field - f->descriptor->fields);
    if (field->label == PROTOBUF_C_LABEL_REPEATED && idx < FIELDS_MAX) {
        snprintf(to, room, "%s%s[%" PRIu32 "]", dot, field->name, f->counts[idx]++);
    } else {
        snprintf(to, room, "%s%s", dot, field->name);
    }
    return f->path_len + strlen(to);
}

static bt_status check_string(const walk *w, const uint8_t *bytes, size_t len, bt_error *err)
{
    size_t offset;
    if (!bt_utf8_valid((const char *)bytes, len, &offset)) {
        return bt_error_set(err, BT_EINVAL, "%s: invalid UTF-8 at byte %zu", w->path, offset);
    }
    const uint8_t *nul = len == 0 ? NULL : memchr(bytes, 0, len);
    if (nul != NULL) {
        return bt_error_set(err, BT_EINVAL, "%s: NUL at byte %zu, which text here can't have",
                            w->path, (size_t)(nul - bytes));
    }
    return BT_OK;
}

/* One field of the innermost open message. false: the walk ends, *status says how. */
static bool step(walk *w, bt_status *status, bt_error *err)
{
    frame *f = &w->frames[w->depth - 1];
    if (f->at == f->end) {
        w->depth--;
        return w->depth > 0;
    }
    uint64_t tag;
    uint64_t value;
    if (!read_varint(f, &tag)) {
        return false;
    }
    switch (tag & 7) {
    case 0:
        return read_varint(f, &value);
    case 1:
        return skip(f, 8);
    case 5:
        return skip(f, 4);
    case 2:
        break;
    default:
        return false;
    }
    if (!read_varint(f, &value) || value > (uint64_t)(f->end - f->at)) {
        return false;
    }
    const uint8_t *bytes = f->at;
    (void)skip(f, value);
    const ProtobufCFieldDescriptor *field =
        tag >> 3 > UINT32_MAX
            ? NULL
            : protobuf_c_message_descriptor_get_field(f->descriptor, (unsigned)(tag >> 3));
    if (field == NULL ||
        (field->type != PROTOBUF_C_TYPE_STRING && field->type != PROTOBUF_C_TYPE_MESSAGE)) {
        return true;
    }
    if (++w->n_parts > PARTS_MAX) {
        *status = bt_error_set(err, BT_EINVAL, "the request has more than %d strings and messages",
                               (int)PARTS_MAX);
        return false;
    }
    if (field->type == PROTOBUF_C_TYPE_STRING) {
        (void)set_path(w, f, field);
        *status = check_string(w, bytes, (size_t)value, err);
        return *status == BT_OK;
    }
    if (w->depth < DEPTH_MAX) {
        w->frames[w->depth] = (frame){
            .descriptor = field->descriptor,
            .at = bytes,
            .end = bytes + value,
            .path_len = set_path(w, f, field),
        };
        w->depth++;
    }
    return true;
}

bt_status bt_router_front_grpc_unpack(const ProtobufCMessageDescriptor *descriptor,
                                      const uint8_t *bytes, size_t len, ProtobufCMessage **out,
                                      bt_error *err)
{
    walk w = {.depth = 1};
    w.frames[0] = (frame){.descriptor = descriptor, .at = bytes, .end = bytes + len};
    bt_status status = BT_OK;
    if (len > 0) {
        while (step(&w, &status, err)) {
        }
    }
    if (status != BT_OK) {
        return status;
    }
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, NULL, len, bytes);
    if (message == NULL) {
        return bt_error_set(err, BT_EINVAL, "the request is no %s message", descriptor->short_name);
    }
    *out = message;
    return BT_OK;
}

bt_status bt_router_front_grpc_chat(const Baton__V1__Chat *chat, bt_chat_message **out)
{
    bt_chat_message *messages = calloc(chat->n_messages + 1, sizeof *messages);
    if (messages == NULL) {
        return BT_ENOMEM;
    }
    for (size_t i = 0; i < chat->n_messages; i++) {
        const Baton__V1__ChatMessage *from = chat->messages[i];
        messages[i] = (bt_chat_message){
            .role = from->role,
            .role_len = strlen(from->role),
            .content = from->content,
            .content_len = strlen(from->content),
        };
    }
    *out = messages;
    return BT_OK;
}

static bt_status parse_stops(const Baton__V1__Sampling *from, bt_router_front_request *out,
                             bt_error *err)
{
    if (from->n_stop > BT_ROUTER_STOP_STRINGS_MAX) {
        return bt_error_set(err, BT_EINVAL, "sampling.stop has %zu strings: at most %d",
                            from->n_stop, (int)BT_ROUTER_STOP_STRINGS_MAX);
    }
    for (size_t i = 0; i < from->n_stop; i++) {
        out->stops[i] = from->stop[i];
        out->stop_lens[i] = strlen(from->stop[i]);
    }
    out->n_stops = from->n_stop;
    return BT_OK;
}

/* Ids above what fits are -1 from here on, which no vocabulary has. */
static int32_t token_of(uint32_t id)
{
    return id > INT32_MAX ? -1 : (int32_t)id;
}

static bt_status parse_token_lists(const Baton__V1__Sampling *from, bt_sampling *to, bt_error *err)
{
    if (from->n_stop_token_ids > BT_STOP_TOKENS_MAX) {
        return bt_error_set(err, BT_EINVAL, "sampling.stop_token_ids has %zu ids: at most %d",
                            from->n_stop_token_ids, (int)BT_STOP_TOKENS_MAX);
    }
    for (size_t i = 0; i < from->n_stop_token_ids; i++) {
        to->stop_tokens[i] = token_of(from->stop_token_ids[i]);
    }
    to->n_stop_tokens = (uint32_t)from->n_stop_token_ids;
    if (from->n_logit_bias > BT_LOGIT_BIAS_MAX) {
        return bt_error_set(err, BT_EINVAL, "sampling.logit_bias has %zu entries: at most %d",
                            from->n_logit_bias, (int)BT_LOGIT_BIAS_MAX);
    }
    for (size_t i = 0; i < from->n_logit_bias; i++) {
        /* On the wire a map may name a key twice: the last one counts. */
        const int32_t token = token_of(from->logit_bias[i]->key);
        uint32_t k = 0;
        while (k < to->n_logit_bias && to->logit_bias[k].token != token) {
            k++;
        }
        to->logit_bias[k] = (bt_logit_bias){.token = token, .bias = from->logit_bias[i]->value};
        to->n_logit_bias += k == to->n_logit_bias;
    }
    return BT_OK;
}

static bt_status parse_sampling(const Baton__V1__Sampling *from, bt_router_front_request *out,
                                bt_error *err)
{
    bt_sampling *to = &out->sampling;
    *to = (bt_sampling){.top_p = 1, .repetition_penalty = 1};
    if (from == NULL) {
        return BT_OK;
    }
    to->temperature = from->temperature;
    to->top_k = from->top_k;
    to->top_p = from->top_p == 0 ? 1 : from->top_p;
    to->min_p = from->min_p;
    to->repetition_penalty = from->repetition_penalty == 0 ? 1 : from->repetition_penalty;
    to->presence_penalty = from->presence_penalty;
    to->frequency_penalty = from->frequency_penalty;
    to->min_tokens = from->min_tokens;
    to->ignore_eos = from->ignore_eos != 0;
    to->logprobs = from->logprobs != 0;
    to->n_top_logprobs = from->n_top_logprobs;
    to->echo = from->echo != 0;
    out->include_stop = from->include_stop != 0;
    if (from->seed_presence_case == BATON__V1__SAMPLING__SEED_PRESENCE_SEED) {
        out->has_seed = true;
        to->seed = from->seed;
    }
    if (from->max_tokens_presence_case == BATON__V1__SAMPLING__MAX_TOKENS_PRESENCE_MAX_TOKENS) {
        out->has_max_tokens = true;
        to->max_tokens = from->max_tokens;
    }
    const bt_status status = parse_stops(from, out, err);
    return status != BT_OK ? status : parse_token_lists(from, to, err);
}

static bt_status parse_prompt(const Baton__V1__GenerateRequest *message,
                              bt_router_prompt_input *out, bt_chat_message **messages,
                              bt_error *err)
{
    switch (message->prompt_case) {
    case BATON__V1__GENERATE_REQUEST__PROMPT_TEXT:
        out->kind = BT_ROUTER_PROMPT_TEXT;
        out->text = message->text;
        out->text_len = strlen(message->text);
        return BT_OK;
    case BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS:
        out->kind = BT_ROUTER_PROMPT_IDS;
        out->ids = message->token_ids->ids;
        out->n_ids = message->token_ids->n_ids;
        return BT_OK;
    case BATON__V1__GENERATE_REQUEST__PROMPT_CHAT: {
        const bt_status status = bt_router_front_grpc_chat(message->chat, messages);
        out->kind = BT_ROUTER_PROMPT_CHAT;
        out->messages = *messages;
        out->n_messages = message->chat->n_messages;
        return status;
    }
    default:
        return bt_error_set(err, BT_EINVAL,
                            "prompt is missing: set one of text, token_ids and chat");
    }
}

bt_status bt_router_front_grpc_request(const Baton__V1__GenerateRequest *message,
                                       bt_router_front_request *out, bt_chat_message **messages,
                                       bt_error *err)
{
    *messages = NULL;
    *out = (bt_router_front_request){
        .model = message->model,
        .priority = message->priority,
        .ttft_target_ms = message->ttft_target_ms,
        .tpot_target_ms = message->tpot_target_ms,
        .refuse_late = message->refuse_late != 0,
        .session_id = message->session_id,
        .session_id_len = strlen(message->session_id),
        .cache_salt = message->cache_salt,
        .cache_salt_len = strlen(message->cache_salt),
        .deadline_left_ns = INT64_MAX,
    };
    const bt_status status = parse_sampling(message->sampling, out, err);
    return status != BT_OK ? status : parse_prompt(message, &out->prompt, messages, err);
}
