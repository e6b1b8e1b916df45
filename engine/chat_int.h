/* SPDX-License-Identifier: Apache-2.0 */
/* chat_int.h - what chat_template.c finds out about a template, for chat.c to render by. */
#ifndef BT_ENGINE_CHAT_INT_H
#define BT_ENGINE_CHAT_INT_H

#include "engine/chat.h"

typedef enum system_place {
    SYSTEM_NOWHERE, /* the template refuses a system message */
    SYSTEM_FIRST,   /* before the first user message */
    SYSTEM_LAST,    /* before the last one */
} system_place;

struct bt_chat {
    bt_chat_template kind;
    const bt_tokenizer *tokenizer;
    bool adds_bos;
    bool trims;            /* content loses white space at both ends */
    bool trims_reply;      /* Mistral: that of the assistant does */
    bool always_prompts;   /* Llama-3's first template begins a reply without being asked */
    bool has_default;      /* ChatML: system message when none is given */
    system_place system;   /* Mistral */
    const char *inst_open; /* Mistral: text around the marks */
    const char *inst_after_open;
    const char *inst_before_close;
    const char *reply_before;
    const char *reply_after_eos;
    bt_text default_system; /* ChatML; Llama-3.1: the lines with the dates */
};

/* Fills *chat (zeroed before) but its tokenizer. BT_EUNSUPPORTED: not a known template.
 * BT_ENOMEM. */
BT_MUST_CHECK bt_status chat_template_recognize(bt_gguf_string source, bt_chat *chat);

#endif /* BT_ENGINE_CHAT_INT_H */
