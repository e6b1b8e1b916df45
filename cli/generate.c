/* SPDX-License-Identifier: Apache-2.0 */
/* `baton generate`: one prompt, its answer streamed to stdout, a line about it on stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/sampling.h"
#include "cli/text.h"
#include "common/json.h"

typedef struct generate_options {
    bt_client_options client;
    const char *model;
    const char *system;
    bool chat;
    bool json;
    int64_t timeout_ns;
    bt_sampling_options sampling;
} generate_options;

static const bt_config_option options_table[] = {
    {.name = "address",
     .type = BT_CONFIG_STRING,
     .group = "Request",
     .fallback = BT_CLIENT_ADDRESS,
     .placeholder = "HOST:PORT",
     .help = "The router.",
     .offset = offsetof(generate_options, client.address)},
    {.name = "model-name",
     .type = BT_CONFIG_STRING,
     .group = "Request",
     .fallback = "",
     .placeholder = "NAME",
     .help = "One of the router's models; its only or first one if not given.",
     .offset = offsetof(generate_options, model)},
    {.name = "chat",
     .type = BT_CONFIG_BOOL,
     .group = "Request",
     .fallback = "false",
     .help = "Takes the prompt as a user's message and answers with the model's chat template.",
     .offset = offsetof(generate_options, chat)},
    {.name = "system",
     .type = BT_CONFIG_STRING,
     .group = "Request",
     .placeholder = "TEXT",
     .help = "System message before the user's; for --chat.",
     .offset = offsetof(generate_options, system)},
    {.name = "timeout",
     .type = BT_CONFIG_DURATION,
     .group = "Request",
     .fallback = "0",
     .help = "Deadline of the request; 0 leaves it to the router.",
     .offset = offsetof(generate_options, timeout_ns)},
    {.name = "json",
     .type = BT_CONFIG_BOOL,
     .group = "Output",
     .fallback = "false",
     .help = "Prints one JSON object when all is done, in place of the text.",
     .offset = offsetof(generate_options, json)},
    BT_SAMPLING_CONFIG_ROWS(generate_options, sampling),
    BT_CLIENT_CONFIG_ROWS(generate_options, client),
};

static const bt_config_spec spec = {
    .command = "baton generate",
    .section = "generate",
    .summary = "Sends one prompt to a router and prints the answer as it comes. The prompt is the\n"
               "arguments, or standard input for '-' or when there are none.",
    .arguments = "[PROMPT...]",
    .examples = "  baton generate 'The capital of France is'\n"
                "  baton generate --chat --temperature 0.7 --seed 1 'Why is the sky blue?'\n"
                "  baton generate --json --max-tokens 16 < prompt.txt\n",
    .options = options_table,
    .n_options = BT_ARRAY_LEN(options_table),
};

/* What has come so far. */
typedef struct answer {
    bool streams; /* text goes out as it comes */
    void *text;   /* [len] bytes */
    size_t len;
    void *tokens; /* [n_tokens] uint32_t */
    size_t n_tokens;
    uint64_t seed;
    char request_id[80];
    Baton__V1__Finish *finish; /* a copy */
    bool failed;
} answer;

static Baton__V1__Finish *copy_finish(const Baton__V1__Finish *finish)
{
    const size_t len = baton__v1__finish__get_packed_size(finish);
    uint8_t *bytes = malloc(len + 1);
    if (!bytes) {
        return NULL;
    }
    (void)baton__v1__finish__pack(finish, bytes);
    Baton__V1__Finish *copy = baton__v1__finish__unpack(NULL, len, bytes);
    free(bytes);
    return copy;
}

static void on_reply(void *ctx, const ProtobufCMessage *message)
{
    answer *a = ctx;
    const Baton__V1__GenerateReply *reply = (const void *)message;
    if (reply->start) {
        a->seed = reply->start->seed;
        (void)strncpy(a->request_id, reply->start->request_id, sizeof a->request_id - 1);
    }
    const size_t len = strlen(reply->text);
    if (a->streams) {
        (void)fwrite(reply->text, 1, len, stdout);
        (void)fflush(stdout);
    }
    a->failed |= !bt_cli_append(&a->text, &a->len, reply->text, len, 1) ||
                 !bt_cli_append(&a->tokens, &a->n_tokens, reply->token_ids, reply->n_token_ids,
                                sizeof(uint32_t));
    if (reply->finish) {
        a->finish = copy_finish(reply->finish);
        a->failed |= a->finish == NULL;
    }
}

static void print_json(const answer *a)
{
    bt_json_writer w;
    bt_json_writer_init(&w, 2);
    bt_json_object_begin(&w);
    bt_json_key(&w, "request_id");
    bt_json_string(&w, a->request_id);
    bt_json_key(&w, "text");
    bt_json_string_n(&w, a->text ? a->text : "", a->len);
    const uint32_t *tokens = a->tokens;
    bt_json_key(&w, "token_ids");
    bt_json_array_begin(&w);
    for (size_t i = 0; i < a->n_tokens; i++) {
        bt_json_uint(&w, tokens[i]);
    }
    bt_json_array_end(&w);
    bt_json_key(&w, "seed");
    bt_json_uint(&w, a->seed);
    bt_sampling_write_finish(a->finish, &w);
    bt_json_object_end(&w);
    const char *text = bt_json_writer_text(&w, NULL);
    puts(text ? text : "{}");
    bt_json_writer_deinit(&w);
}

static bt_status generate(const generate_options *o, const char *prompt, answer *a, bt_error *err)
{
    Baton__V1__ChatMessage system = BATON__V1__CHAT_MESSAGE__INIT;
    system.role = (char *)(uintptr_t) "system";
    system.content = (char *)(uintptr_t)o->system;
    Baton__V1__ChatMessage user = BATON__V1__CHAT_MESSAGE__INIT;
    user.role = (char *)(uintptr_t) "user";
    user.content = (char *)(uintptr_t)prompt;
    Baton__V1__ChatMessage *messages[2] = {&system, &user};
    Baton__V1__Chat chat = BATON__V1__CHAT__INIT;
    chat.n_messages = o->system ? 2 : 1;
    chat.messages = o->system ? messages : messages + 1;
    Baton__V1__Sampling sampling;
    bt_sampling_fill(&o->sampling, &sampling);
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    request.model = (char *)(uintptr_t)o->model;
    request.sampling = &sampling;
    if (o->chat) {
        request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_CHAT;
        request.chat = &chat;
    } else {
        request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TEXT;
        request.text = (char *)(uintptr_t)prompt;
    }
    bt_client *client;
    bt_status status = bt_client_open(&o->client, &client, err);
    if (status != BT_OK) {
        return status;
    }
    const bt_client_call call = {
        .path = "/baton.v1.Generation/Generate",
        .request = &request.base,
        .reply_type = &baton__v1__generate_reply__descriptor,
        .timeout_ns = o->timeout_ns,
        .on_reply = on_reply,
        .ctx = a,
    };
    status = bt_client_run(client, &call, err);
    bt_client_close(client);
    if (status == BT_OK && (a->failed || !a->finish)) {
        status = bt_error_set(err, BT_EPROTOCOL, "the answer ended without its last message");
    }
    return status;
}

static int run(int argc, char **argv)
{
    generate_options o = {.sampling = {.seed = -1}};
    bt_error err = {""};
    bt_config *config = NULL;
    const int early = bt_cli_configure(&spec, argc, argv, &o, &config);
    if (early != BT_CLI_RUN) {
        return early;
    }
    char *prompt = NULL;
    size_t prompt_len = 0;
    bt_status status = bt_cli_read_text(bt_config_arguments(config), &prompt, &prompt_len, &err);
    if (status == BT_OK && o.system && !o.chat) {
        status = bt_error_set(&err, BT_EINVAL, "--system is for --chat");
    }
    if (status != BT_OK) {
        free(prompt);
        bt_config_destroy(config);
        return bt_cli_fail("generate", status, &err, true);
    }
    answer a = {.streams = !o.json};
    status = generate(&o, prompt, &a, &err);
    if (a.streams && a.len > 0 && ((const char *)a.text)[a.len - 1] != '\n') {
        putchar('\n');
    }
    (void)fflush(stdout); /* before what stderr says about it */
    int code = BT_CLI_OK;
    if (status != BT_OK) {
        code = status == BT_ECANCELLED ? BT_CLI_INTERRUPTED
                                       : bt_cli_fail("generate", status, &err, false);
    } else if (o.json) {
        print_json(&a);
    } else {
        bt_sampling_print_finish(a.finish, stderr);
    }
    if (a.finish) {
        baton__v1__finish__free_unpacked(a.finish, NULL);
    }
    free(a.text);
    free(a.tokens);
    free(prompt);
    bt_config_destroy(config);
    return code;
}

const bt_cli_command bt_cli_generate = {
    .name = "generate",
    .summary = "send one prompt and print the answer as it comes",
    .run = run,
};
