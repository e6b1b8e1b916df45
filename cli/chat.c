/* SPDX-License-Identifier: Apache-2.0 */
/* `baton chat`: a conversation in the terminal. Each turn sends all messages so far in one
 * session, so that the cluster finds the earlier turns in its prefix cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "common/hash.h"

enum { SESSION_BYTES = 16 };

typedef struct chat_options {
    bt_client_options client;
    const char *model;
    const char *system;
    int64_t timeout_ns;
    bt_sampling_options sampling;
} chat_options;

static const bt_config_option options_table[] = {
    {.name = "address",
     .type = BT_CONFIG_STRING,
     .group = "Request",
     .fallback = BT_CLIENT_ADDRESS,
     .placeholder = "HOST:PORT",
     .help = "The router.",
     .offset = offsetof(chat_options, client.address)},
    {.name = "model-name",
     .type = BT_CONFIG_STRING,
     .group = "Request",
     .fallback = "",
     .placeholder = "NAME",
     .help = "One of the router's models; its only or first one if not given.",
     .offset = offsetof(chat_options, model)},
    {.name = "system",
     .type = BT_CONFIG_STRING,
     .group = "Request",
     .placeholder = "TEXT",
     .help = "System message at the beginning; the model's own if not given.",
     .offset = offsetof(chat_options, system)},
    {.name = "timeout",
     .type = BT_CONFIG_DURATION,
     .group = "Request",
     .fallback = "0",
     .help = "Deadline of each answer; 0 leaves it to the router.",
     .offset = offsetof(chat_options, timeout_ns)},
    BT_SAMPLING_CONFIG_ROWS(chat_options, sampling),
    BT_CLIENT_CONFIG_ROWS(chat_options, client),
};

static const bt_config_spec spec = {
    .command = "baton chat",
    .section = "chat",
    .summary =
        "Talks with the model. Each line is a message; /new begins a new conversation, /quit\n"
        "or the end of input (Ctrl-D) leaves. Ctrl-C stops an answer.",
    .examples = "  baton chat\n"
                "  baton chat --temperature 0.7 --system 'Answer in one sentence.'\n",
    .options = options_table,
    .n_options = BT_ARRAY_LEN(options_table),
};

/* Messages in order; a message owns its content. */
typedef struct conversation {
    Baton__V1__ChatMessage **messages;
    size_t n;
    char session[2 * SESSION_BYTES + 1];
} conversation;

typedef struct answer {
    void *text; /* [len] bytes */
    size_t len;
    bool failed;
    bool finished;
    Baton__V1__FinishReason reason;
} answer;

static void forget(conversation *talk)
{
    for (size_t i = 0; i < talk->n; i++) {
        free(talk->messages[i]->content);
        free(talk->messages[i]);
    }
    free((void *)talk->messages);
    talk->messages = NULL;
    talk->n = 0;
    uint8_t id[SESSION_BYTES];
    bt_hash_random(id, sizeof id);
    bt_hash_hex(id, sizeof id, talk->session);
}

static bool say(conversation *talk, const char *role, const char *content)
{
    Baton__V1__ChatMessage *message = calloc(1, sizeof *message);
    char *copy = strdup(content);
    Baton__V1__ChatMessage **grown =
        realloc((void *)talk->messages, (talk->n + 1) * sizeof *talk->messages);
    if (grown) {
        talk->messages = grown;
    }
    if (!message || !copy || !grown) {
        free(message);
        free(copy);
        return false;
    }
    baton__v1__chat_message__init(message);
    message->role = (char *)(uintptr_t)role;
    message->content = copy;
    talk->messages[talk->n++] = message;
    return true;
}

static void unsay_last(conversation *talk)
{
    talk->n--;
    free(talk->messages[talk->n]->content);
    free(talk->messages[talk->n]);
}

static void on_reply(void *ctx, const ProtobufCMessage *message)
{
    answer *a = ctx;
    const Baton__V1__GenerateReply *reply = (const void *)message;
    (void)fputs(reply->text, stdout);
    (void)fflush(stdout);
    a->failed |= !bt_cli_append(&a->text, &a->len, reply->text, strlen(reply->text), 1);
    if (reply->finish) {
        a->finished = true;
        a->reason = reply->finish->reason;
        printf("\n");
        if (bt_terminal_is_interactive(stdout)) {
            bt_sampling_print_finish(reply->finish, stdout);
        }
    }
}

/* One turn: BT_OK, BT_ECANCELLED (the partial answer stays in the conversation), or why not. */
static bt_status take_turn(const chat_options *o, bt_client *client, conversation *talk,
                           bt_error *err)
{
    Baton__V1__Chat chat = BATON__V1__CHAT__INIT;
    chat.n_messages = talk->n;
    chat.messages = talk->messages;
    Baton__V1__Sampling sampling;
    bt_sampling_fill(&o->sampling, &sampling);
    Baton__V1__GenerateRequest request = BATON__V1__GENERATE_REQUEST__INIT;
    request.model = (char *)(uintptr_t)o->model;
    request.session_id = talk->session;
    request.sampling = &sampling;
    request.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request.chat = &chat;
    answer a = {0};
    const bt_client_call call = {
        .path = "/baton.v1.Generation/Generate",
        .request = &request.base,
        .reply_type = &baton__v1__generate_reply__descriptor,
        .timeout_ns = o->timeout_ns,
        .on_reply = on_reply,
        .ctx = &a,
    };
    bt_status status = bt_client_run(client, &call, err);
    if (status == BT_ECANCELLED) {
        printf("\n");
    }
    const bool keeps = (status == BT_OK || status == BT_ECANCELLED) && a.len > 0;
    if (keeps) {
        ((char *)a.text)[a.len] = '\0';
    }
    if (a.failed || (keeps && !say(talk, "assistant", a.text))) {
        status = bt_error_set(err, BT_ENOMEM, "no memory for the conversation");
    } else if (!keeps) {
        unsay_last(talk); /* the message can be sent again */
    }
    free(a.text);
    return status;
}

static void prompt_for_line(void)
{
    if (bt_terminal_is_interactive(stdin)) {
        printf("%s> %s", bt_terminal_style_text(stdout, BT_TERMINAL_BOLD),
               bt_terminal_style_text(stdout, BT_TERMINAL_PLAIN));
        (void)fflush(stdout);
    }
}

static bool begin(const chat_options *o, conversation *talk)
{
    forget(talk);
    return !o->system || say(talk, "system", o->system);
}

static int converse(const chat_options *o, bt_client *client, conversation *talk)
{
    char *line = NULL;
    size_t capacity = 0;
    int code = BT_CLI_OK;
    bool goes_on = begin(o, talk);
    while (goes_on) {
        prompt_for_line();
        ssize_t len = getline(&line, &capacity, stdin);
        if (len < 0) {
            break;
        }
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r')) {
            line[--len] = '\0';
        }
        if (strcmp(line, "/quit") == 0) {
            break;
        }
        if (strcmp(line, "/new") == 0) {
            goes_on = begin(o, talk);
            continue;
        }
        if (len == 0) {
            continue;
        }
        if (line[0] == '/' && strpbrk(line, " \t") == NULL && bt_terminal_is_interactive(stdin)) {
            printf("There is no %s. /new begins a new conversation, /quit leaves.\n", line);
            continue;
        }
        bt_error err = {""};
        goes_on = say(talk, "user", line);
        const bt_status status = goes_on ? take_turn(o, client, talk, &err) : BT_ENOMEM;
        if (status != BT_OK && status != BT_ECANCELLED) {
            code = bt_cli_fail("chat", status, &err, false);
            goes_on = goes_on && bt_terminal_is_interactive(stdin);
        }
    }
    free(line);
    return code;
}

static int run(int argc, char **argv)
{
    chat_options o = {.sampling = {.seed = -1}};
    bt_config *config = NULL;
    const int early = bt_cli_configure(&spec, argc, argv, &o, &config);
    if (early != BT_CLI_RUN) {
        return early;
    }
    bt_error err = {""};
    bt_client *client = NULL;
    const bt_status status = bt_client_open(&o.client, &client, &err);
    if (status != BT_OK) {
        bt_config_destroy(config);
        return bt_cli_fail("chat", status, &err, false);
    }
    conversation talk = {0};
    const int code = converse(&o, client, &talk);
    forget(&talk);
    bt_client_close(client);
    bt_config_destroy(config);
    return code;
}

const bt_cli_command bt_cli_chat = {
    .name = "chat",
    .summary = "talk with the model in the terminal",
    .run = run,
};
