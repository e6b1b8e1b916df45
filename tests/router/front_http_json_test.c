/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the JSON of the HTTP front without a server: what each field becomes, that wrong ones
 * are refused by name, that garbage does no harm, and that answers have OpenAI's form (read
 * back by the JSON reader). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/gguf.h"
#include "router/front_http_int.h"
#include "tests/support/fault.h"
#include "tests/support/tiny_model.h"

static bt_router_http_error error;

static bt_status parse(const char *body, bool is_chat, bt_router_http_request *out)
{
    /* Exactly as long as it is: a sanitizer sees who reads behind it. */
    const size_t len = strlen(body);
    char *copy = malloc(len + 1);
    assert_non_null(copy);
    memcpy(copy, body, len + 1);
    const bt_status status = bt_router_http_parse(copy, len, is_chat, out, &error);
    memset(copy, 'x', len); /* nothing of it is borrowed */
    free(copy);
    return status;
}

static void parse_good(const char *body, bool is_chat, bt_router_http_request *out)
{
    if (parse(body, is_chat, out) != BT_OK) {
        fail_msg("%s: %s", body, error.text.text);
    }
}

static void absent_fields_have_the_defaults_of_openai(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":\"hi\"}",
        "{\"prompt\":\"hi\",\"model\":null,\"temperature\":null,\"max_tokens\":null,\"stop\":null,"
        "\"seed\":null,\"logprobs\":null,\"stream\":null,\"stream_options\":null,\"n\":null,"
        "\"logit_bias\":null,\"tools\":null,\"echo\":null,\"best_of\":null,\"unknown\":[1,{}]}",
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(bodies); i++) {
        bt_router_http_request r;
        parse_good(bodies[i], false, &r);
        const bt_sampling *s = &r.front.sampling;
        assert_true(s->temperature == 1.0F && s->top_p == 1.0F && s->repetition_penalty == 1.0F);
        assert_true(s->min_p == 0.0F && s->top_k == 0 && s->min_tokens == 0);
        assert_true(r.front.has_max_tokens && s->max_tokens == 16);
        assert_false(r.front.has_seed || s->logprobs || s->echo || s->ignore_eos);
        assert_false(r.stream || r.include_usage);
        assert_null(r.front.model);
        assert_int_equal(r.n, 1);
        assert_int_equal(r.n_prompts, 1);
        assert_string_equal(r.prompts[0].text, "hi");
        assert_int_equal(r.front.deadline_left_ns, INT64_MAX);
        bt_router_http_request_deinit(&r);
    }
    bt_router_http_request r;
    parse_good("{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", true, &r);
    assert_false(r.front.has_max_tokens); /* as many as fit */
    bt_router_http_request_deinit(&r);
}

static void every_field_arrives(void **state)
{
    (void)state;
    bt_router_http_request r;
    parse_good("{\"model\":\"m\",\"prompt\":\"hi\",\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,"
               "\"min_p\":0.125,\"seed\":-7,\"max_tokens\":5,\"min_tokens\":2,\"n\":3,"
               "\"presence_penalty\":-1.5,\"frequency_penalty\":1.5,\"repetition_penalty\":1.25,"
               "\"logit_bias\":{\"50256\":-100,\"7\":2.5},\"stop\":[\"a\",\"b\\u0000c\"],"
               "\"stop_token_ids\":[3,4],\"logprobs\":4,\"echo\":true,\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,\"user\":\"u\","
               "\"cache_salt\":\"s\",\"session_id\":\"t\",\"priority\":-3,\"best_of\":3,"
               "\"include_stop_str_in_output\":true,\"add_special_tokens\":false,"
               "\"ttft_target_ms\":10,\"tpot_target_ms\":20.5,\"refuse_late\":true,"
               "\"timeout_ms\":1500,\"response_format\":{\"type\":\"text\"},\"suffix\":\"\","
               "\"tools\":[],\"tool_choice\":\"none\",\"skip_special_tokens\":true}",
               false, &r);
    const bt_sampling *s = &r.front.sampling;
    assert_string_equal(r.front.model, "m");
    assert_true(s->temperature == 0.5F && s->top_p == 0.25F && s->min_p == 0.125F);
    assert_true(s->presence_penalty == -1.5F && s->frequency_penalty == 1.5F);
    assert_true(s->repetition_penalty == 1.25F);
    assert_true(s->top_k == 40 && s->max_tokens == 5 && s->min_tokens == 2 && r.n == 3);
    assert_true(r.front.has_seed && s->seed == (uint64_t)-7);
    assert_int_equal(s->n_logit_bias, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(s->logit_bias[i].token == 7 ? s->logit_bias[i].bias == 2.5F
                                                : s->logit_bias[i].bias == -100.0F);
    }
    assert_int_equal(r.front.n_stops, 2);
    assert_string_equal(r.front.stops[0], "a");
    assert_int_equal(r.front.stop_lens[1], 3);
    assert_memory_equal(r.front.stops[1], "b\0c", 3);
    assert_true(s->n_stop_tokens == 2 && s->stop_tokens[1] == 4);
    assert_true(s->logprobs && s->n_top_logprobs == 4 && s->echo && s->ignore_eos);
    assert_true(r.stream && r.include_usage && r.front.include_stop);
    assert_string_equal(r.front.cache_salt, "s");
    assert_int_equal(r.front.cache_salt_len, 1);
    assert_string_equal(r.front.session_id, "t");
    assert_int_equal(r.front.priority, -3);
    assert_true(r.prompts[0].no_special);
    assert_true(r.front.ttft_target_ms == 10 && r.front.tpot_target_ms == 20.5);
    assert_true(r.front.refuse_late);
    assert_int_equal(r.front.deadline_left_ns, 1500000000);
    bt_router_http_request_deinit(&r);
}

static void prompts_come_in_four_forms(void **state)
{
    (void)state;
    bt_router_http_request r;
    parse_good("{\"prompt\":[1,2,3]}", false, &r);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].kind, BT_ROUTER_PROMPT_IDS);
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_int_equal(r.prompts[0].ids[2], 3);
    bt_router_http_request_deinit(&r);
    parse_good("{\"prompt\":[\"one\",\"two\"]}", false, &r);
    assert_int_equal(r.n_prompts, 2);
    assert_string_equal(r.prompts[1].text, "two");
    assert_int_equal(r.prompts[1].text_len, 3);
    bt_router_http_request_deinit(&r);
    parse_good("{\"prompt\":[[4294967295],[5,6],\"mixed\"]}", false, &r);
    assert_int_equal(r.n_prompts, 3);
    assert_int_equal(r.prompts[0].ids[0], UINT32_MAX);
    assert_int_equal(r.prompts[1].ids[1], 6);
    assert_string_equal(r.prompts[2].text, "mixed");
    bt_router_http_request_deinit(&r);
}

static void content_is_a_text_or_parts_of_text(void **state)
{
    (void)state;
    bt_router_http_request r;
    parse_good("{\"messages\":[{\"role\":\"developer\",\"content\":\"be \\u00fc\"},"
               "{\"role\":\"user\",\"name\":\"x\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
               "{\"type\":\"text\",\"text\":\"bc\"}]},{\"role\":\"assistant\",\"content\":null},"
               "{\"role\":\"user\",\"content\":[]}],\"max_completion_tokens\":9,"
               "\"logprobs\":true,\"top_logprobs\":2}",
               true, &r);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].kind, BT_ROUTER_PROMPT_CHAT);
    assert_int_equal(r.prompts[0].n_messages, 4);
    const bt_chat_message *m = r.prompts[0].messages;
    assert_memory_equal(m[0].role, "system", m[0].role_len);
    assert_memory_equal(m[0].content, "be \xC3\xBC", m[0].content_len);
    assert_int_equal(m[1].content_len, 3);
    assert_string_equal(m[1].content, "abc");
    assert_int_equal(m[2].content_len, 0);
    assert_int_equal(m[3].content_len, 0);
    assert_true(r.front.has_max_tokens && r.front.sampling.max_tokens == 9);
    assert_true(r.front.sampling.logprobs && r.front.sampling.n_top_logprobs == 2);
    bt_router_http_request_deinit(&r);
}

typedef struct bad_body {
    const char *field; /* put into a body that is right without it */
    const char *param;
    const char *text; /* part of the message */
} bad_body;

static void expect_bad(const bad_body *rows, size_t n, bool is_chat, bt_status status)
{
    for (size_t i = 0; i < n; i++) {
        char body[512];
        (void)snprintf(body, sizeof body, "{%s,%s}",
                       is_chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
                               : "\"prompt\":\"x\"",
                       rows[i].field);
        bt_router_http_request r;
        if (parse(body, is_chat, &r) != status) {
            fail_msg("%s was not refused as it should be: %s", rows[i].field, error.text.text);
        }
        assert_string_equal(error.param, rows[i].param);
        if (strstr(error.text.text, rows[i].text) == NULL) {
            fail_msg("%s: '%s' lacks '%s'", rows[i].field, error.text.text, rows[i].text);
        }
    }
}

static void wrong_fields_are_named(void **state)
{
    (void)state;
    static const bad_body both[] = {
        {"\"model\":7", "model", "must be a string"},
        {"\"model\":\"a\\u0000b\"", "model", "NUL"},
        {"\"temperature\":\"hot\"", "temperature", "must be a number"},
        {"\"top_p\":true", "top_p", "must be a number"},
        {"\"top_k\":-2", "top_k", "must be in [-1, "},
        {"\"top_k\":1.5", "top_k", "must be an integer"},
        {"\"seed\":\"x\"", "seed", "must be an integer"},
        {"\"max_tokens\":-1", "max_tokens", "is -1"},
        {"\"max_tokens\":4294967296", "max_tokens", "is 4294967296"},
        {"\"max_tokens\":1,\"max_completion_tokens\":2", "max_completion_tokens", "differ"},
        {"\"min_tokens\":-1", "min_tokens", "is -1"},
        {"\"n\":0", "n", "must be in [1, 128]"},
        {"\"n\":129", "n", "must be in [1, 128]"},
        {"\"stop\":5", "stop", "must be a string or an array"},
        {"\"stop\":[\"a\",5]", "stop", "must be a string or an array"},
        {"\"stop\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
         "\"a\",\"a\",\"a\",\"a\"]",
         "stop", "has 17 strings: at most 16"},
        {"\"stop_token_ids\":[-1]", "stop_token_ids", "no token id"},
        {"\"stop_token_ids\":7", "stop_token_ids", "must be an array"},
        {"\"logit_bias\":[]", "logit_bias", "must be an object"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias", "has 'x'"},
        {"\"logit_bias\":{\"99999999999\":1}", "logit_bias", "has '99999999999'"},
        {"\"logit_bias\":{\"1\":null}", "logit_bias", "has '1'"},
        {"\"stream\":1", "stream", "must be true or false"},
        {"\"stream_options\":{}", "stream_options", "goes with stream: true"},
        {"\"stream\":true,\"stream_options\":7", "stream_options", "must be an object"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options", "no bool"},
        {"\"priority\":101", "priority", "must be in [-100, 100]"},
        {"\"timeout_ms\":0", "timeout_ms", "must be in (0, "},
        {"\"cache_salt\":{}", "cache_salt", "must be a string"},
        {"\"best_of\":0", "best_of", "must be in [1, "},
    };
    expect_bad(both, BT_ARRAY_LEN(both), false, BT_EINVAL);
    expect_bad(both, BT_ARRAY_LEN(both), true, BT_EINVAL);
    static const bad_body completions[] = {
        {"\"logprobs\":true", "logprobs", "must be an integer"},
        {"\"logprobs\":21", "logprobs", "must be in [0, 20]"},
        {"\"echo\":\"yes\"", "echo", "must be true or false"},
    };
    expect_bad(completions, BT_ARRAY_LEN(completions), false, BT_EINVAL);
    static const bad_body chat[] = {
        {"\"logprobs\":1", "logprobs", "must be true or false"},
        {"\"top_logprobs\":2", "top_logprobs", "goes with logprobs: true"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs", "must be in [0, 20]"},
    };
    expect_bad(chat, BT_ARRAY_LEN(chat), true, BT_EINVAL);
}

static void unserved_fields_are_refused_and_not_ignored(void **state)
{
    (void)state;
    static const bad_body both[] = {
        {"\"tools\":[{\"type\":\"function\"}]", "tools", "is not served"},
        {"\"tool_choice\":\"required\"", "tool_choice", "other than none"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format", "other than text"},
        {"\"modalities\":[\"text\",\"audio\"]", "modalities", "is not served"},
        {"\"best_of\":2", "best_of", "other than with the value of n"},
        {"\"guided_regex\":\"a*\"", "guided_regex", "is not served"},
        {"\"use_beam_search\":true", "use_beam_search", "is not served"},
        {"\"prompt_logprobs\":1", "prompt_logprobs", "is not served"},
        {"\"skip_special_tokens\":false", "skip_special_tokens", "other than true"},
    };
    expect_bad(both, BT_ARRAY_LEN(both), false, BT_EUNSUPPORTED);
    expect_bad(both, BT_ARRAY_LEN(both), true, BT_EUNSUPPORTED);
    static const bad_body completions[] = {{"\"suffix\":\"end\"", "suffix", "is not served"}};
    expect_bad(completions, 1, false, BT_EUNSUPPORTED);
    static const bad_body chat[] = {
        {"\"echo\":true", "echo", "is not served"},
        {"\"add_generation_prompt\":false", "add_generation_prompt", "other than true"},
    };
    expect_bad(chat, BT_ARRAY_LEN(chat), true, BT_EUNSUPPORTED);
}

static void wrong_prompts_and_messages_are_named(void **state)
{
    (void)state;
    static const struct {
        bool is_chat;
        const char *body;
        const char *param;
        bt_status status;
    } rows[] = {
        {false, "{}", "prompt", BT_EINVAL},
        {false, "{\"prompt\":[]}", "prompt", BT_EINVAL},
        {false, "{\"prompt\":7}", "prompt", BT_EINVAL},
        {false, "{\"prompt\":[1,\"x\"]}", "prompt", BT_EINVAL},
        {false, "{\"prompt\":[[1],[-1]]}", "prompt", BT_EINVAL},
        {false, "{\"prompt\":[1.5]}", "prompt", BT_EINVAL},
        {false, "{\"prompt\":[4294967296]}", "prompt", BT_EINVAL},
        {false, "{\"prompt\":[\"a\",\"b\"],\"n\":65}", "prompt", BT_EINVAL},
        {true, "{}", "messages", BT_EINVAL},
        {true, "{\"messages\":[]}", "messages", BT_EINVAL},
        {true, "{\"messages\":{\"role\":\"user\"}}", "messages", BT_EINVAL},
        {true, "{\"messages\":[7]}", "messages[0]", BT_EINVAL},
        {true, "{\"messages\":[{\"content\":\"x\"}]}", "messages[0]", BT_EINVAL},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[0].content",
         BT_EINVAL},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
         "messages[0].content", BT_EINVAL},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[0].content", BT_EUNSUPPORTED},
        {true, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "messages[0]",
         BT_EUNSUPPORTED},
        {true, "[]", "", BT_EINVAL},
        {true, "", "", BT_EINVAL},
        {true, "{\"messages\":", "", BT_EINVAL},
        {true, "{\"a\":1,\"a\":2}", "", BT_EINVAL},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        bt_router_http_request r;
        if (parse(rows[i].body, rows[i].is_chat, &r) != rows[i].status) {
            fail_msg("%s: %s", rows[i].body, error.text.text);
        }
        assert_string_equal(error.param, rows[i].param);
        assert_true(error.text.text[0] != '\0');
    }
}

/* Each byte of two rich bodies cut off, turned over and doubled: no crash, no leak, and either an
 * error or a request. */
static void garbage_does_no_harm(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"model\":\"m\",\"prompt\":[[1,2],\"x\\u00e9\",[3]],\"stop\":[\"a\",\"b\"],"
        "\"logit_bias\":{\"1\":-1.5e2},\"logprobs\":2,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true},\"n\":2,\"seed\":9}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]},"
        "{\"role\":\"assistant\",\"content\":null}],\"tools\":[],\"logprobs\":true,"
        "\"top_logprobs\":3,\"max_tokens\":4,\"response_format\":{\"type\":\"text\"}}",
    };
    for (size_t b = 0; b < BT_ARRAY_LEN(bodies); b++) {
        const size_t len = strlen(bodies[b]);
        for (size_t i = 0; i < len; i++) {
            for (int how = 0; how < 4; how++) {
                char text[1024];
                memcpy(text, bodies[b], len + 1);
                if (how == 0) {
                    text[i] = '\0';
                } else if (how < 3) {
                    text[i] = (char)(text[i] ^ (how == 1 ? 1 : 0x84));
                } else {
                    memmove(text + i + 1, text + i, len - i + 1);
                }
                bt_router_http_request r;
                if (parse(text, b == 1, &r) == BT_OK) {
                    assert_true(r.n_prompts > 0);
                    bt_router_http_request_deinit(&r);
                } else {
                    assert_true(error.text.text[0] != '\0');
                }
            }
        }
    }
}

static void each_allocation_may_fail(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":[[1,2],\"x\"],\"stop\":[\"a\"],\"logit_bias\":{\"1\":2},\"model\":\"m\"}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}]}",
    };
    for (size_t b = 0; b < BT_ARRAY_LEN(bodies) && bt_fault_available(); b++) {
        size_t n_failed = 0;
        for (size_t n = 1;; n++) {
            bt_router_http_request r;
            bt_fault_fail_nth(n);
            const bt_status status =
                bt_router_http_parse(bodies[b], strlen(bodies[b]), b == 1, &r, &error);
            if (!bt_fault_disarm()) {
                assert_int_equal(status, BT_OK);
                bt_router_http_request_deinit(&r);
                break;
            }
            /* The JSON reader can't always tell what went wrong inside of it. */
            assert_true(status == BT_ENOMEM || status == BT_EINVAL);
            assert_true(error.text.text[0] != '\0');
            n_failed++;
        }
        assert_true(n_failed > 5);
    }
}

static void errors_of_the_router_are_told_in_the_words_of_this_door(void **state)
{
    (void)state;
    static const struct {
        bool is_chat;
        const char *text;
        const char *adapted;
        const char *param;
    } rows[] = {
        {false, "sampling.top_p is 2: must be in (0, 1]", "top_p is 2: must be in (0, 1]", "top_p"},
        {false, "sampling.min_tokens is 9: must not exceed sampling.max_tokens, 3",
         "min_tokens is 9: must not exceed max_tokens, 3", "min_tokens"},
        {true, "sampling.n_top_logprobs is 2 without sampling.logprobs",
         "top_logprobs is 2 without logprobs", ""},
        {false, "sampling.stop[2] has 0 bytes: must be 1 to 256",
         "stop[2] has 0 bytes: must be 1 to 256", "stop"},
        {true, "the prompt has 9 tokens: this router takes 8",
         "the prompt has 9 tokens: this router takes 8", "messages"},
        {false, "no worker is ready", "no worker is ready", ""},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        bt_router_http_error err = {.param = ""};
        (void)bt_error_set(&err.text, BT_EINVAL, "%s", rows[i].text);
        bt_router_http_adapt_error(rows[i].is_chat, &err);
        assert_string_equal(err.text.text, rows[i].adapted);
        assert_string_equal(err.param, rows[i].param);
    }
}

/* ---- answers ---- */

static bt_json *read_back(bt_json_writer *w)
{
    size_t len;
    bt_json *json = NULL;
    bt_error err;
    const char *text = bt_json_writer_text(w, &len);
    assert_non_null(text);
    assert_int_equal(bt_json_parse(text, len, &json, &err), BT_OK);
    bt_json_writer_reset(w);
    return json;
}

static const char *string_at(const bt_json *json, const char *key)
{
    return bt_json_as_string(bt_json_get(json, key), NULL);
}

static int64_t int_at(const bt_json *json, const char *key)
{
    int64_t value = -1;
    assert_true(bt_json_as_int(bt_json_get(json, key), &value));
    return value;
}

static const bt_json *choice_of(const bt_json *json)
{
    const bt_json *choices = bt_json_get(json, "choices");
    assert_int_equal(bt_json_len(choices), 1);
    return bt_json_at(choices, 0);
}

static void chunks_have_the_form_of_openai(void **state)
{
    (void)state;
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    uint32_t offset = 0;
    bt_router_http_head head = {.stream = true, .label = "r-1", .model = "m", .created_s = 77};
    bt_router_http_part part = {
        .is_first = true, .text = "a\"b", .text_len = 3, .offset = &offset, .idx = 2};
    bt_router_http_pack_chunk(&w, &head, &part);
    /* To the byte: clients look for these without a JSON reader. */
    assert_string_equal(bt_json_writer_text(&w, NULL),
                        "{\"id\":\"cmpl-r-1\",\"object\":\"text_completion\",\"created\":77,"
                        "\"model\":\"m\",\"choices\":[{\"index\":2,\"text\":\"a\\\"b\","
                        "\"logprobs\":null,\"finish_reason\":null}]}");
    bt_json_writer_reset(&w);
    part.is_last = true;
    part.reason = BT_FINISH_STOP;
    part.stop = "END";
    part.stop_len = 3;
    head.is_chat = true;
    head.include_usage = true;
    bt_router_http_pack_chunk(&w, &head, &part);
    bt_json *json = read_back(&w);
    assert_string_equal(string_at(json, "id"), "chatcmpl-r-1");
    assert_string_equal(string_at(json, "object"), "chat.completion.chunk");
    assert_non_null(bt_json_get(json, "usage")); /* there, and null */
    assert_int_equal(bt_json_type_of(bt_json_get(json, "usage")), BT_JSON_NULL);
    const bt_json *choice = choice_of(json);
    assert_string_equal(string_at(choice, "finish_reason"), "stop");
    assert_string_equal(string_at(choice, "stop_reason"), "END");
    assert_string_equal(string_at(bt_json_get(choice, "delta"), "role"), "assistant");
    assert_string_equal(string_at(bt_json_get(choice, "delta"), "content"), "a\"b");
    bt_json_destroy(json);
    const bt_router_http_usage usage = {
        .prompt_tokens = 5, .cached_tokens = 4, .generated_tokens = 3};
    bt_router_http_pack_usage_chunk(&w, &head, &usage);
    assert_non_null(strstr(bt_json_writer_text(&w, NULL), "\"choices\":[]"));
    json = read_back(&w);
    const bt_json *told = bt_json_get(json, "usage");
    assert_int_equal(int_at(told, "prompt_tokens"), 5);
    assert_int_equal(int_at(told, "completion_tokens"), 3);
    assert_int_equal(int_at(told, "total_tokens"), 8);
    assert_int_equal(int_at(bt_json_get(told, "prompt_tokens_details"), "cached_tokens"), 4);
    bt_json_destroy(json);
    bt_json_writer_deinit(&w);
}

static bt_tokenizer *read_tokenizer(void)
{
    char path[] = "/tmp/front_http_json_test.XXXXXX";
    bt_error err = {""};
    bt_gguf *gguf = NULL;
    bt_tokenizer *tokenizer = NULL;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(bt_tiny_model_write(&bt_tiny_model_odd, path), BT_OK);
    assert_int_equal(bt_gguf_open(path, &gguf, &err), BT_OK);
    assert_int_equal(bt_tokenizer_create(gguf, &tokenizer, &err), BT_OK);
    bt_gguf_close(gguf);
    (void)unlink(path);
    return tokenizer;
}

static void logprobs_have_both_forms(void **state)
{
    (void)state;
    bt_tokenizer *tokenizer = read_tokenizer();
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    /* Tokens below 256 are bytes: 'A', and the first byte of a longer character. */
    const bt_token_result results[] = {
        {.token = 'A'},
        {.token = 0xC3,
         .has_logprob = true,
         .logprob = -0.5F,
         .n_top = 2,
         .top = {{'B', -0.25F}, {'C', -__builtin_inff()}}},
    };
    uint32_t offset = 3;
    const bt_router_http_head head = {.label = "r", .model = "m"};
    bt_router_http_part part = {.is_first = true,
                                .is_last = true,
                                .text = "",
                                .tokenizer = tokenizer,
                                .results = results,
                                .n_results = 2,
                                .offset = &offset};
    const bt_router_http_usage usage = {0};
    bt_router_http_pack_answer(&w, &head, &part, 1, &usage);
    bt_json *json = read_back(&w);
    const bt_json *lists = bt_json_get(choice_of(json), "logprobs");
    assert_string_equal(bt_json_as_string(bt_json_at(bt_json_get(lists, "tokens"), 0), NULL), "A");
    assert_string_equal(bt_json_as_string(bt_json_at(bt_json_get(lists, "tokens"), 1), NULL),
                        "bytes:\\xc3");
    assert_int_equal(bt_json_type_of(bt_json_at(bt_json_get(lists, "token_logprobs"), 0)),
                     BT_JSON_NULL);
    const bt_json *top = bt_json_at(bt_json_get(lists, "top_logprobs"), 1);
    double value = 0;
    assert_int_equal(bt_json_len(top), 3); /* the token itself is among them */
    assert_true(bt_json_as_double(bt_json_get(top, "bytes:\\xc3"), &value) && value == -0.5);
    assert_true(bt_json_as_double(bt_json_get(top, "C"), &value) && value == -9999);
    int64_t at = 0;
    assert_true(bt_json_as_int(bt_json_at(bt_json_get(lists, "text_offset"), 1), &at));
    assert_int_equal(at, 4);
    bt_json_destroy(json);

    const bt_router_http_head chat = {.is_chat = true, .label = "r", .model = "m"};
    bt_router_http_pack_answer(&w, &chat, &part, 1, &usage);
    json = read_back(&w);
    const bt_json *choice = choice_of(json);
    assert_string_equal(string_at(bt_json_get(choice, "message"), "role"), "assistant");
    const bt_json *content = bt_json_get(bt_json_get(choice, "logprobs"), "content");
    assert_int_equal(bt_json_len(content), 2);
    const bt_json *second = bt_json_at(content, 1);
    assert_string_equal(string_at(second, "token"), "\xEF\xBF\xBD");
    assert_true(bt_json_as_int(bt_json_at(bt_json_get(second, "bytes"), 0), &at));
    assert_int_equal(at, 0xC3);
    assert_int_equal(bt_json_len(bt_json_get(second, "top_logprobs")), 2);
    bt_json_destroy(json);
    bt_json_writer_deinit(&w);
    bt_tokenizer_destroy(tokenizer);
}

static void errors_have_the_codes_of_http(void **state)
{
    (void)state;
    static const struct {
        bt_status status;
        unsigned http_code;
        const char *code;
        const char *type;
    } rows[] = {
        {BT_EINVAL, 400, NULL, "invalid_request_error"},
        {BT_EUNSUPPORTED, 400, "unsupported_parameter", "invalid_request_error"},
        {BT_EPERMISSION, 401, "invalid_api_key", "authentication_error"},
        {BT_ENOTFOUND, 404, "model_not_found", "invalid_request_error"},
        {BT_EEXHAUSTED, 429, "rate_limit_exceeded", "rate_limit_error"},
        {BT_EPEER, 503, "unavailable", "server_error"},
        {BT_EDEADLINE, 504, "deadline_exceeded", "server_error"},
        {BT_EINTERNAL, 500, "internal_error", "server_error"},
    };
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        const char *code = "";
        const bt_router_http_error err = {.text = {"no"}, .param = "n"};
        assert_int_equal(bt_router_http_code_of(rows[i].status, &code), rows[i].http_code);
        bt_router_http_pack_error(&w, rows[i].http_code, code, &err);
        bt_json *json = read_back(&w);
        const bt_json *told = bt_json_get(json, "error");
        assert_string_equal(string_at(told, "message"), "no");
        assert_string_equal(string_at(told, "type"), rows[i].type);
        assert_string_equal(string_at(told, "param"), "n");
        if (rows[i].code != NULL) {
            assert_string_equal(string_at(told, "code"), rows[i].code);
        }
        bt_json_destroy(json);
    }
    bt_json_writer_deinit(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_fields_have_the_defaults_of_openai),
        cmocka_unit_test(every_field_arrives),
        cmocka_unit_test(prompts_come_in_four_forms),
        cmocka_unit_test(content_is_a_text_or_parts_of_text),
        cmocka_unit_test(wrong_fields_are_named),
        cmocka_unit_test(unserved_fields_are_refused_and_not_ignored),
        cmocka_unit_test(wrong_prompts_and_messages_are_named),
        cmocka_unit_test(garbage_does_no_harm),
        cmocka_unit_test(each_allocation_may_fail),
        cmocka_unit_test(errors_of_the_router_are_told_in_the_words_of_this_door),
        cmocka_unit_test(chunks_have_the_form_of_openai),
        cmocka_unit_test(logprobs_have_both_forms),
        cmocka_unit_test(errors_have_the_codes_of_http),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
