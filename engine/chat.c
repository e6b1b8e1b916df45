/* SPDX-License-Identifier: Apache-2.0 */
/* A rendering is a row of marks and runs of text. Text between two special tokens is
 * tokenized in one piece, as the reference does: "user\n" and a content that begins with
 * "\n" may share a token.
 */
#include "engine/chat.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/utf8.h"
#include "engine/chat_int.h"

#define KNOWN_TEMPLATES "ChatML (SmolLM2, Qwen2), Llama-2, Llama-3, Llama-3.1, Mistral"

typedef enum chat_role {
    ROLE_SYSTEM,
    ROLE_USER,
    ROLE_ASSISTANT,
} chat_role;

static const char *const role_names[] = {"system", "user", "assistant"};

static bt_status check_marks(const bt_chat *chat, bt_error *err)
{
    static const char *const marks[][4] = {
        [BT_CHAT_CHATML] = {"<|im_start|>", "<|im_end|>"},
        [BT_CHAT_LLAMA2] = {NULL},
        [BT_CHAT_LLAMA3] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
        [BT_CHAT_LLAMA31] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
        [BT_CHAT_MISTRAL] = {NULL},
    };
    for (const char *const *mark = marks[chat->kind]; *mark; mark++) {
        if (bt_tokenizer_find_special(chat->tokenizer, *mark) < 0) {
            return bt_error_set(err, BT_EINVAL,
                                "the chat template needs the special token '%s', which the "
                                "vocabulary doesn't have",
                                *mark);
        }
    }
    if (chat->adds_bos && bt_tokenizer_bos(chat->tokenizer) < 0) {
        return bt_error_set(err, BT_EINVAL,
                            "the chat template needs a BOS token, which the file doesn't name");
    }
    const bool ends = chat->kind == BT_CHAT_LLAMA2 || chat->kind == BT_CHAT_MISTRAL;
    if (ends && bt_tokenizer_eos(chat->tokenizer) < 0) {
        return bt_error_set(err, BT_EINVAL,
                            "the chat template needs an EOS token, which the file doesn't name");
    }
    return BT_OK;
}

bt_status bt_chat_create(const bt_gguf *gguf, const bt_tokenizer *tokenizer, bt_chat **out,
                         bt_error *err)
{
    bt_gguf_string source;
    bt_status status = bt_gguf_get_string(gguf, "tokenizer.chat_template", &source, err);
    if (status != BT_OK) {
        return status;
    }
    bt_chat *chat = calloc(1, sizeof *chat);
    if (!chat) {
        return bt_error_set(err, BT_ENOMEM, "out of memory for the chat template");
    }
    chat->tokenizer = tokenizer;
    status = chat_template_recognize(source, chat);
    if (status != BT_OK) {
        bt_error_set(
            err, status,
            status == BT_ENOMEM
                ? "out of memory for the chat template"
                : "the model's chat template isn't supported; supported are: " KNOWN_TEMPLATES
                  ". Send a raw prompt instead of messages.");
    } else {
        status = check_marks(chat, err);
    }
    if (status != BT_OK) {
        bt_chat_destroy(chat);
        return status;
    }
    *out = chat;
    return BT_OK;
}

/* --- writing ----------------------------------------------------------------------- */

typedef struct chat_writer {
    const bt_chat *chat;
    bt_text run; /* text since the last special token */
    bool after_special;
    bt_token_list *out;
    bt_status status; /* the first failure; nothing is written after it */
} chat_writer;

static void put_bytes(chat_writer *writer, const char *bytes, size_t len)
{
    if (writer->status == BT_OK) {
        writer->status = bt_text_append(&writer->run, bytes, len);
    }
}

static void put_text(chat_writer *writer, const char *text)
{
    put_bytes(writer, text, strlen(text));
}

static void end_run(chat_writer *writer)
{
    if (writer->status == BT_OK && writer->run.len > 0) {
        writer->status =
            bt_tokenizer_encode_piece(writer->chat->tokenizer, writer->run.bytes, writer->run.len,
                                      BT_TOKENIZE_PLAIN, writer->after_special, writer->out, NULL);
        writer->run.len = 0;
        writer->after_special = false;
    }
}

static void put_token(chat_writer *writer, int32_t id)
{
    end_run(writer);
    if (writer->status == BT_OK) {
        writer->status = bt_token_list_append(writer->out, &id, 1);
        writer->after_special = true;
    }
}

/* A mark of the template: a special token where the vocabulary has it, else text. */
static void put_mark(chat_writer *writer, const char *name)
{
    const int32_t id = bt_tokenizer_find_special(writer->chat->tokenizer, name);
    if (id >= 0) {
        put_token(writer, id);
    } else {
        put_text(writer, name);
    }
}

/* Length of the white space character (as Python's str.strip() has it) at bytes[0], or 0. */
static size_t space_at(const char *bytes, size_t len)
{
    static const char *const wide[] = {
        "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
        "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
        "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
        "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80",
    };
    const unsigned char c = (unsigned char)bytes[0];
    if (c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F)) {
        return 1;
    }
    for (size_t i = 0; i < BT_ARRAY_LEN(wide); i++) {
        const size_t n = strlen(wide[i]);
        if (n <= len && memcmp(bytes, wide[i], n) == 0) {
            return n;
        }
    }
    return 0;
}

/* Narrows bytes[0..*len-1] of checked UTF-8 to what is inside the white space. */
static const char *trim(const char *bytes, size_t *len)
{
    size_t n;
    while (*len > 0 && (n = space_at(bytes, *len)) > 0) {
        bytes += n;
        *len -= n;
    }
    while (*len > 0) {
        size_t start = *len - 1;
        while (start > 0 && ((unsigned char)bytes[start] & 0xC0) == 0x80) {
            start--;
        }
        if (space_at(bytes + start, *len - start) == 0) {
            break;
        }
        *len = start;
    }
    return bytes;
}

static void put_content(chat_writer *writer, const bt_chat_message *message, bool trims)
{
    size_t len = message->content_len;
    const char *content = message->content;
    if (trims) {
        content = trim(content, &len);
    }
    put_bytes(writer, content, len);
}

/* --- the families ------------------------------------------------------------------ */

static chat_role role_of(const bt_chat_message *message)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(role_names); i++) {
        if (message->role_len == strlen(role_names[i]) &&
            memcmp(message->role, role_names[i], message->role_len) == 0) {
            return (chat_role)i;
        }
    }
    return (chat_role)BT_ARRAY_LEN(role_names);
}

static void render_chatml(chat_writer *writer, const bt_chat_message *messages, size_t n,
                          bool add_generation_prompt)
{
    const bt_chat *chat = writer->chat;
    if (chat->has_default && role_of(&messages[0]) != ROLE_SYSTEM) {
        put_mark(writer, "<|im_start|>");
        put_text(writer, "system\n");
        put_bytes(writer, chat->default_system.bytes, chat->default_system.len);
        put_mark(writer, "<|im_end|>");
        put_text(writer, "\n");
    }
    for (size_t i = 0; i < n; i++) {
        put_mark(writer, "<|im_start|>");
        put_text(writer, role_names[role_of(&messages[i])]);
        put_text(writer, "\n");
        put_content(writer, &messages[i], chat->trims);
        put_mark(writer, "<|im_end|>");
        put_text(writer, "\n");
    }
    if (add_generation_prompt) {
        put_mark(writer, "<|im_start|>");
        put_text(writer, "assistant\n");
    }
}

static void put_header(chat_writer *writer, const char *role)
{
    put_mark(writer, "<|start_header_id|>");
    put_text(writer, role);
    put_mark(writer, "<|end_header_id|>");
    put_text(writer, "\n\n");
}

static void render_llama3(chat_writer *writer, const bt_chat_message *messages, size_t n,
                          bool add_generation_prompt)
{
    const bt_chat *chat = writer->chat;
    size_t first = 0;
    if (chat->kind == BT_CHAT_LLAMA31) {
        put_header(writer, "system");
        put_bytes(writer, chat->default_system.bytes, chat->default_system.len);
        if (role_of(&messages[0]) == ROLE_SYSTEM) {
            put_content(writer, &messages[0], chat->trims);
            first = 1;
        }
        put_mark(writer, "<|eot_id|>");
    }
    for (size_t i = first; i < n; i++) {
        put_header(writer, role_names[role_of(&messages[i])]);
        put_content(writer, &messages[i], chat->trims);
        put_mark(writer, "<|eot_id|>");
    }
    if (add_generation_prompt || chat->always_prompts) {
        put_header(writer, "assistant");
    }
}

/* The system message goes inside the first user message; both are trimmed as one text. */
static void put_llama2_user(chat_writer *writer, const bt_chat_message *system,
                            const bt_chat_message *user)
{
    static const char open[] = "<<SYS>>\n";
    static const char close[] = "\n<</SYS>>\n\n";
    if (!system) {
        put_content(writer, user, true);
        return;
    }
    bt_text whole = {0};
    bt_status status = bt_text_append(&whole, open, strlen(open));
    if (status == BT_OK) {
        status = bt_text_append(&whole, system->content, system->content_len);
    }
    if (status == BT_OK) {
        status = bt_text_append(&whole, close, strlen(close));
    }
    if (status == BT_OK) {
        status = bt_text_append(&whole, user->content, user->content_len);
    }
    if (status == BT_OK) {
        size_t len = whole.len;
        const char *text = trim(whole.bytes, &len);
        put_bytes(writer, text, len);
    } else if (writer->status == BT_OK) {
        writer->status = status;
    }
    bt_text_deinit(&whole);
}

static void render_llama2(chat_writer *writer, const bt_chat_message *messages, size_t n,
                          bool add_generation_prompt)
{
    (void)add_generation_prompt; /* a user message ends where the reply begins */
    const bt_chat_message *system = role_of(&messages[0]) == ROLE_SYSTEM ? messages : NULL;
    const size_t first = system ? 1 : 0;
    for (size_t i = first; i < n; i++) {
        if (role_of(&messages[i]) == ROLE_USER) {
            put_token(writer, bt_tokenizer_bos(writer->chat->tokenizer));
            put_mark(writer, "[INST]");
            put_text(writer, " ");
            put_llama2_user(writer, i == first ? system : NULL, &messages[i]);
            put_text(writer, " ");
            put_mark(writer, "[/INST]");
        } else {
            put_text(writer, " ");
            put_content(writer, &messages[i], true);
            put_text(writer, " ");
            put_token(writer, bt_tokenizer_eos(writer->chat->tokenizer));
        }
    }
}

static void render_mistral(chat_writer *writer, const bt_chat_message *messages, size_t n,
                           bool add_generation_prompt)
{
    (void)add_generation_prompt; /* a user message ends where the reply begins */
    const bt_chat *chat = writer->chat;
    const bt_chat_message *system = role_of(&messages[0]) == ROLE_SYSTEM ? messages : NULL;
    const size_t first = system ? 1 : 0;
    for (size_t i = first; i < n; i++) {
        if (role_of(&messages[i]) == ROLE_USER) {
            put_text(writer, chat->inst_open);
            put_mark(writer, "[INST]");
            put_text(writer, chat->inst_after_open);
            if (system && i == (chat->system == SYSTEM_LAST ? n - 1 : first)) {
                put_content(writer, system, false);
                put_text(writer, "\n\n");
            }
            put_content(writer, &messages[i], false);
            put_text(writer, chat->inst_before_close);
            put_mark(writer, "[/INST]");
        } else {
            put_text(writer, chat->reply_before);
            put_content(writer, &messages[i], chat->trims_reply);
            put_token(writer, bt_tokenizer_eos(chat->tokenizer));
            put_text(writer, chat->reply_after_eos);
        }
    }
}

typedef struct family_row {
    const char *name;
    void (*render)(chat_writer *writer, const bt_chat_message *messages, size_t n,
                   bool add_generation_prompt);
    bool takes_turns;   /* system first or not at all, then user and assistant in turns */
    bool bos_each_user; /* else BOS, if any, comes once at the start */
} family_row;

static const family_row families[] = {
    [BT_CHAT_CHATML] = {"chatml", render_chatml, false, false},
    [BT_CHAT_LLAMA2] = {"llama-2", render_llama2, true, true},
    [BT_CHAT_LLAMA3] = {"llama-3", render_llama3, false, false},
    [BT_CHAT_LLAMA31] = {"llama-3.1", render_llama3, false, false},
    [BT_CHAT_MISTRAL] = {"mistral", render_mistral, true, false},
};

/* --- render ------------------------------------------------------------------------ */

static bt_status check_turns(const bt_chat *chat, const bt_chat_message *messages, size_t n,
                             bt_error *err)
{
    const size_t first = role_of(&messages[0]) == ROLE_SYSTEM ? 1 : 0;
    if (first == 1 && chat->kind == BT_CHAT_MISTRAL && chat->system == SYSTEM_NOWHERE) {
        return bt_error_set(err, BT_EINVAL,
                            "message 0: the model's chat template takes no system message");
    }
    if (n == first) {
        return bt_error_set(err, BT_EINVAL,
                            "the model's chat template needs a user message after the system one");
    }
    for (size_t i = first; i < n; i++) {
        const chat_role wanted = (i - first) % 2 == 0 ? ROLE_USER : ROLE_ASSISTANT;
        if (role_of(&messages[i]) != wanted) {
            return bt_error_set(err, BT_EINVAL,
                                "message %zu is from '%s', but the model's chat template wants "
                                "'%s' there (user and assistant in turns)",
                                i, role_names[role_of(&messages[i])], role_names[wanted]);
        }
    }
    return BT_OK;
}

static bt_status check_messages(const bt_chat *chat, const bt_chat_message *messages, size_t n,
                                bt_error *err)
{
    if (n == 0) {
        return bt_error_set(err, BT_EINVAL, "the chat has no messages");
    }
    for (size_t i = 0; i < n; i++) {
        size_t bad_at = 0;
        if ((size_t)role_of(&messages[i]) == BT_ARRAY_LEN(role_names)) {
            return bt_error_set(err, BT_EINVAL,
                                "message %zu has an unknown role; it must be 'system', 'user' or "
                                "'assistant'",
                                i);
        }
        if (!bt_utf8_valid(messages[i].content, messages[i].content_len, &bad_at)) {
            return bt_error_set(err, BT_EINVAL,
                                "message %zu isn't UTF-8: byte 0x%02X at offset %zu", i,
                                (unsigned)(unsigned char)messages[i].content[bad_at], bad_at);
        }
    }
    return families[chat->kind].takes_turns ? check_turns(chat, messages, n, err) : BT_OK;
}

bt_status bt_chat_render(const bt_chat *chat, const bt_chat_message *messages, size_t n,
                         bool add_generation_prompt, bt_token_list *out, bt_error *err)
{
    const bt_status status = check_messages(chat, messages, n, err);
    if (status != BT_OK) {
        return status;
    }
    const size_t before = out->n;
    chat_writer writer = {.chat = chat, .after_special = true, .out = out};
    if (chat->adds_bos && !families[chat->kind].bos_each_user) {
        put_token(&writer, bt_tokenizer_bos(chat->tokenizer));
    }
    families[chat->kind].render(&writer, messages, n, add_generation_prompt);
    end_run(&writer);
    bt_text_deinit(&writer.run);
    if (writer.status != BT_OK) {
        out->n = before;
        return bt_error_set(err, writer.status, "cannot tokenize the chat: %s",
                            bt_status_text(writer.status));
    }
    return BT_OK;
}

bt_chat_template bt_chat_kind(const bt_chat *chat)
{
    return chat->kind;
}

const char *bt_chat_template_name(bt_chat_template kind)
{
    return (size_t)kind < BT_ARRAY_LEN(families) ? families[kind].name : "?";
}

void bt_chat_destroy(bt_chat *chat)
{
    if (!chat) {
        return;
    }
    bt_text_deinit(&chat->default_system);
    free(chat);
}
