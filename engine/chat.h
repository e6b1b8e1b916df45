/* SPDX-License-Identifier: Apache-2.0 */
/* chat.h - chat messages to token ids by the model's own template.
 *
 * The template's language is not interpreted: the file's tokenizer.chat_template is
 * recognized as one of the known families and rendered by code of our own, straight to
 * ids. Marks of the template become special tokens; content never does, whatever it says.
 * (Llama-2's and the older Mistral's [INST] are plain text, which content can imitate: so
 * these models were made.)
 *
 * Threading: any thread (immutable once created).
 */
#ifndef BT_ENGINE_CHAT_H
#define BT_ENGINE_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"

typedef enum bt_chat_template {
    BT_CHAT_CHATML,  /* <|im_start|>role\ncontent<|im_end|>\n; with the template's own system
                        message where it has one and none is given (SmolLM2, Qwen2) */
    BT_CHAT_LLAMA2,  /* [INST] <<SYS>>\nsystem\n<</SYS>>\n\nuser [/INST] reply </s> */
    BT_CHAT_LLAMA3,  /* <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|> */
    BT_CHAT_LLAMA31, /* the same, with the dates that Llama 3.1's system message begins with;
                        "today" is the template's own default, so that prompts can be cached */
    BT_CHAT_MISTRAL, /* [INST] user [/INST]reply</s>, with the spaces of its version */
} bt_chat_template;

/* Text is borrowed for the call; not NUL-terminated. */
typedef struct bt_chat_message {
    const char *role; /* "system", "user" or "assistant" */
    size_t role_len;
    const char *content;
    size_t content_len;
} bt_chat_message;

typedef struct bt_chat bt_chat;

/* Recognizes the template of `gguf`; borrows `tokenizer` until destroy.
 * BT_ENOTFOUND: the file has no template. BT_EUNSUPPORTED: it isn't a known one; *err names
 * those that are. BT_EINVAL: the vocabulary lacks the template's special tokens. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_chat_create(const bt_gguf *gguf, const bt_tokenizer *tokenizer,
                                       bt_chat **out, bt_error *err);

/* Appends the ids of the whole conversation, BOS included where the template has one.
 * With `add_generation_prompt` the ids end where the assistant's reply begins.
 * BT_EINVAL: no message, an unknown role, an order that the template refuses (Llama-2 and
 * Mistral: user and assistant in turns), or text that isn't UTF-8 (*err names the message
 * and the byte). BT_ENOMEM. On failure *out keeps what it held before. */
BT_MUST_CHECK bt_status bt_chat_render(const bt_chat *chat, const bt_chat_message *messages,
                                       size_t n, bool add_generation_prompt, bt_token_list *out,
                                       bt_error *err);

bt_chat_template bt_chat_kind(const bt_chat *chat);

/* "chatml", "llama-3", ... */
const char *bt_chat_template_name(bt_chat_template kind);

/* NULL is allowed. */
void bt_chat_destroy(bt_chat *chat);

#endif /* BT_ENGINE_CHAT_H */
