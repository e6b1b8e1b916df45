/* SPDX-License-Identifier: Apache-2.0 */
/* A family is recognized by marks that only its templates have; the few things that differ
 * inside a family (default system message, spaces, trimming) are read from the literals in
 * the template. What goes beyond that is refused, for a prompt that is almost right is worse
 * than an error:
 *  1. Text outside of Jinja's tags: in the known templates all that is written stands in
 *     expressions, and white space around the tags is stripped away.
 *  2. Reasoning sections.
 *  3. Another shape of the literals that a family is known by.
 * Branches for tools don't matter, since tools are never passed.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "engine/chat_int.h"

/* The template with " made ', and a NUL at its end. */
typedef struct template_text {
    char *text;
    size_t len;
} template_text;

static bool has(const template_text *in, const char *part)
{
    return strstr(in->text, part) != NULL;
}

static bool has_any(const template_text *in, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (has(in, parts[i])) {
            return true;
        }
    }
    return false;
}

/* Appends a literal of the template's source: \n is a line feed; other escapes fail. */
static bt_status append_literal(bt_text *out, const char *from, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = from[i];
        if (c == '\\') {
            if (i + 1 == len || from[i + 1] != 'n') {
                return BT_EUNSUPPORTED;
            }
            c = '\n';
            i++;
        }
        const bt_status status = bt_text_append(out, &c, 1);
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

/* ChatML: the text of a whole system message inside one literal. */
static bt_status read_default_system(const template_text *in, bt_chat *chat)
{
    static const char *const heads[] = {"<|im_start|>system\\n", "<|im_start|>system\n"};
    for (size_t i = 0; i < BT_ARRAY_LEN(heads); i++) {
        const char *at = in->text;
        while ((at = strstr(at, heads[i])) != NULL) {
            at += strlen(heads[i]);
            const size_t len = strcspn(at, "'{}<");
            if (strncmp(at + len, "<|im_end|>", strlen("<|im_end|>")) == 0) {
                chat->has_default = true;
                return append_literal(&chat->default_system, at, len);
            }
        }
    }
    return BT_OK;
}

static bt_status recognize_chatml(const template_text *in, bt_chat *chat)
{
    static const char *const ends[] = {"<|im_end|>' + '\\n'", "<|im_end|>'+'\\n'",
                                       "<|im_end|>' + '\n'", "<|im_end|>\\n", "<|im_end|>\n"};
    if (!has(in, "<|im_end|>") || !has_any(in, ends, BT_ARRAY_LEN(ends))) {
        return BT_EUNSUPPORTED;
    }
    chat->kind = BT_CHAT_CHATML;
    chat->adds_bos = has(in, "bos_token");
    return read_default_system(in, chat);
}

static bt_status recognize_llama3(const template_text *in, bt_chat *chat)
{
    if (!has(in, "<|eot_id|>")) {
        return BT_EUNSUPPORTED;
    }
    chat->kind = BT_CHAT_LLAMA3;
    chat->always_prompts = !has(in, "add_generation_prompt");
    chat->adds_bos = has(in, "bos_token") || has(in, "<|begin_of_text|>");
    if (!has(in, "Cutting Knowledge Date")) {
        return BT_OK;
    }
    static const char assignment[] = "date_string = '";
    const char *date = strstr(in->text, assignment);
    if (!has(in, "'Cutting Knowledge Date: December 2023\\n'") || !date) {
        return BT_EUNSUPPORTED;
    }
    static const char head[] = "Cutting Knowledge Date: December 2023\nToday Date: ";
    chat->kind = BT_CHAT_LLAMA31;
    date += strlen(assignment);
    bt_status status = bt_text_append(&chat->default_system, head, strlen(head));
    if (status == BT_OK) {
        status = append_literal(&chat->default_system, date, strcspn(date, "'"));
    }
    if (status == BT_OK) {
        status = bt_text_append(&chat->default_system, "\n\n", 2);
    }
    return status;
}

static bt_status recognize_llama2(const template_text *in, bt_chat *chat)
{
    static const char *const parts[] = {
        "bos_token + '[INST] '",
        "' [/INST]'",
        "'<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content']",
        "content.strip()",
        "eos_token",
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(parts); i++) {
        if (!has(in, parts[i])) {
            return BT_EUNSUPPORTED;
        }
    }
    chat->kind = BT_CHAT_LLAMA2;
    chat->adds_bos = true;
    /* Some have a system message of their own, which only Llama-2's first release used. */
    return has(in, "system_message = '") ? BT_EUNSUPPORTED : BT_OK;
}

static bt_status recognize_mistral(const template_text *in, bt_chat *chat)
{
    static const char *const firsts[] = {"loop.first and system_message",
                                         "loop.index0 == 0 and system_message"};
    static const char *const trims[] = {"|trim + eos_token", "| trim + eos_token"};
    static const char *const spaced[] = {"' ' + message['content']", "' ' + message.content"};
    static const char *const after[] = {"eos_token + ' '", "eos_token+' '"};
    chat->kind = BT_CHAT_MISTRAL;
    chat->adds_bos = true;
    if (has(in, "[SYSTEM_PROMPT]") || !has(in, "bos_token") || !has(in, "[/INST]'")) {
        return BT_EUNSUPPORTED;
    }
    if (has(in, "loop.last and system_message")) {
        chat->system = SYSTEM_LAST;
    } else if (has_any(in, firsts, BT_ARRAY_LEN(firsts))) {
        chat->system = SYSTEM_FIRST;
    } else if (has(in, "system_message")) {
        return BT_EUNSUPPORTED;
    }
    if (has(in, "' [INST] '")) {
        chat->inst_open = " ";
    } else if (has(in, "'[INST] '")) {
        chat->inst_open = "";
    } else {
        /* With a system message these forms are one literal up to the message. */
        chat->inst_open = has(in, "' [INST]") ? " " : "";
    }
    chat->inst_after_open = has(in, "[INST] '") ? " " : "";
    chat->inst_before_close = has(in, "' [/INST]'") ? " " : "";
    chat->reply_before = has_any(in, spaced, BT_ARRAY_LEN(spaced)) ? " " : "";
    chat->reply_after_eos = has_any(in, after, BT_ARRAY_LEN(after)) ? " " : "";
    chat->trims_reply = has_any(in, trims, BT_ARRAY_LEN(trims));
    return BT_OK;
}

/* --- text outside of tags ---------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || (c >= 0x09 && c <= 0x0D);
}

/* The end of the tag that begins at text[at] with "{{", "{%" or "{#": behind its last brace.
 * Strings inside of it are skipped. */
static size_t tag_end(bt_gguf_string source, size_t at)
{
    const char kind = source.bytes[at + 1];
    const char close = kind == '{' ? '}' : kind;
    char quote = '\0';
    for (at += 2; at + 1 < source.len; at++) {
        const char c = source.bytes[at];
        if (quote != '\0') {
            if (c == '\\') {
                at++;
            } else if (c == quote) {
                quote = '\0';
            }
        } else if (c == close && source.bytes[at + 1] == '}') {
            return at + 2;
        } else if (kind != '#' && (c == '\'' || c == '"')) {
            quote = c;
        }
    }
    return source.len;
}

static bool is_tag(bt_gguf_string source, size_t at)
{
    return at + 1 < source.len && source.bytes[at] == '{' &&
           (source.bytes[at + 1] == '{' || source.bytes[at + 1] == '%' ||
            source.bytes[at + 1] == '#');
}

/* Whether text[start..end-1], between two tags or a tag and an edge, shows in the output with
 * the options that chat templates are rendered with (trim_blocks, lstrip_blocks). */
static bool shows(bt_gguf_string source, size_t start, size_t end)
{
    const char *text = source.bytes;
    const bool tag_before = start > 0;
    const bool tag_after = end < source.len;
    const bool is_block = tag_before && text[start - 2] != '}';
    const bool stripped = (tag_before && start >= 3 && text[start - 3] == '-') ||
                          (tag_after && end + 2 < source.len && text[end + 2] == '-');
    if (is_block && start < end && text[start] == '\n') {
        start++; /* trim_blocks */
    }
    if (!tag_after && end > start && text[end - 1] == '\n') {
        end--; /* the last line feed of a template isn't kept */
    }
    for (size_t i = start; i < end; i++) {
        if (!is_space(text[i])) {
            return true;
        }
    }
    if (stripped || start == end) {
        return false;
    }
    /* Only lstrip_blocks can remove what is left: spaces between a line's start and a block. */
    const bool line_start = start == 0 || text[start - 1] == '\n';
    const bool block_after = tag_after && text[end + 1] != '{';
    return !(line_start && block_after && memchr(text + start, '\n', end - start) == NULL);
}

static bool has_loose_text(bt_gguf_string source)
{
    size_t start = 0;
    for (size_t at = 0; at <= source.len;) {
        if (at < source.len && !is_tag(source, at)) {
            at++;
            continue;
        }
        if (shows(source, start, at)) {
            return true;
        }
        if (at == source.len) {
            break;
        }
        at = tag_end(source, at);
        start = at;
    }
    return false;
}

/* --- families ---------------------------------------------------------------------- */

static bt_status recognize(const template_text *in, bt_chat *chat)
{
    static const char *const thinking[] = {"<think>", "enable_thinking", "reasoning_content"};
    static const char *const trims[] = {"'] | trim",    "']|trim",         "content | trim",
                                        "content|trim", "content.strip()", "'].strip()"};
    if (has_any(in, thinking, BT_ARRAY_LEN(thinking))) {
        return BT_EUNSUPPORTED;
    }
    chat->trims = has_any(in, trims, BT_ARRAY_LEN(trims));
    if (has(in, "<|im_start|>")) {
        return recognize_chatml(in, chat);
    }
    if (has(in, "<|start_header_id|>")) {
        return recognize_llama3(in, chat);
    }
    if (has(in, "<<SYS>>")) {
        return recognize_llama2(in, chat);
    }
    return has(in, "[INST]") ? recognize_mistral(in, chat) : BT_EUNSUPPORTED;
}

bt_status chat_template_recognize(bt_gguf_string source, bt_chat *chat)
{
    template_text normal = {malloc(source.len + 1), source.len};
    if (!normal.text) {
        return BT_ENOMEM;
    }
    for (size_t i = 0; i < source.len; i++) {
        normal.text[i] = source.bytes[i] == '"' ? '\'' : source.bytes[i];
    }
    normal.text[source.len] = '\0';
    const bt_status status = has_loose_text(source) ? BT_EUNSUPPORTED : recognize(&normal, chat);
    free(normal.text);
    return status;
}
