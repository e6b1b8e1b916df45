/* SPDX-License-Identifier: Apache-2.0 */
/* front_http_int.h - the HTTP front's own parts: JSON in (front_http_parse.c), JSON out
 * (front_http_pack.c). Both are pure, so that tests and fuzzers call them alone.
 *
 * Threading: any thread. Memory: heap, bounded by the body and by the tokens of the answer.
 */
#ifndef BT_ROUTER_FRONT_HTTP_INT_H
#define BT_ROUTER_FRONT_HTTP_INT_H

#include "common/json.h"
#include "router/front.h"

enum {
    BT_ROUTER_HTTP_CHOICES_MAX = 128, /* of one request: prompts times n */
    BT_ROUTER_HTTP_PARAM_MAX = 48,
};

/* What went wrong, for the client. */
typedef struct bt_router_http_error {
    bt_error text;
    char param[BT_ROUTER_HTTP_PARAM_MAX]; /* the field, or "" */
} bt_router_http_error;

/* ---- in ---- */

/* A body of /v1/completions or /v1/chat/completions; everything in it points to memory of its
 * own, so the JSON is gone by then. */
typedef struct bt_router_http_request {
    bt_router_front_request front; /* all but prompt, label, client and peer */
    bool is_chat;
    bool stream;
    bool include_usage;
    uint32_t n;                      /* choices for each prompt */
    bt_router_prompt_input *prompts; /* one at least */
    size_t n_prompts;

    char *texts; /* private from here on */
    size_t texts_len;
    size_t texts_capacity;
    uint32_t *ids;
    size_t n_ids;
    bt_chat_message *messages;
} bt_router_http_request;

/* BT_EINVAL, BT_EUNSUPPORTED (a field that is known and not served): *err names the field and what
 * it may be; BT_ENOMEM. Ranges of numbers are bt_router_front_check's business. On BT_OK the
 * caller calls deinit. */
BT_MUST_CHECK bt_status bt_router_http_parse(const char *body, size_t len, bool is_chat,
                                             bt_router_http_request *out,
                                             bt_router_http_error *err);
void bt_router_http_request_deinit(bt_router_http_request *request);

/* A text of the router's own ("sampling.top_p is 2: ...") in the words of this door: fields lose
 * "sampling.", and the one that it begins with is the param. */
void bt_router_http_adapt_error(bool is_chat, bt_router_http_error *err);

/* ---- out ---- */

/* What all chunks and the whole answer of one request begin with. */
typedef struct bt_router_http_head {
    bool is_chat;
    bool stream;
    bool include_usage;
    const char *label; /* the id without its prefix */
    const char *model;
    int64_t created_s; /* since 1970 */
} bt_router_http_head;

typedef struct bt_router_http_usage {
    uint64_t prompt_tokens;
    uint64_t cached_tokens;
    uint64_t generated_tokens;
} bt_router_http_usage;

/* A part of a choice, or all of it. */
typedef struct bt_router_http_part {
    uint32_t idx;  /* of the choice */
    bool is_first; /* chat: tells the role */
    const char *text;
    size_t text_len;
    const bt_tokenizer *tokenizer;
    const bt_token_result *results; /* with logprobs; NULL: without */
    size_t n_results;
    uint32_t *offset;   /* characters of the text before these tokens; moved on */
    uint32_t n_skipped; /* of results: leading tokens without text (an added BOS) */
    /* the end of the choice */
    bool is_last;
    bt_finish_reason reason;
    const char *stop; /* the stop string that ended it, or NULL */
    size_t stop_len;
    bool has_stop_token;
    int32_t stop_token;
} bt_router_http_part;

/* Each writes one JSON value; look at bt_json_writer_text() for failure. */
void bt_router_http_pack_chunk(bt_json_writer *w, const bt_router_http_head *head,
                               const bt_router_http_part *part);
void bt_router_http_pack_usage_chunk(bt_json_writer *w, const bt_router_http_head *head,
                                     const bt_router_http_usage *usage);
void bt_router_http_pack_answer(bt_json_writer *w, const bt_router_http_head *head,
                                const bt_router_http_part *parts, size_t n,
                                const bt_router_http_usage *usage);
void bt_router_http_pack_error(bt_json_writer *w, unsigned http_code, const char *code,
                               const bt_router_http_error *err);
void bt_router_http_pack_model(bt_json_writer *w, const bt_router_model_card *card,
                               int64_t created_s);
void bt_router_http_pack_models(bt_json_writer *w, const bt_router_models *models,
                                int64_t created_s);

/* How a status shows: HTTP code, and OpenAI's `code` (NULL: none). */
unsigned bt_router_http_code_of(bt_status status, const char **code);

#endif /* BT_ROUTER_FRONT_HTTP_INT_H */
