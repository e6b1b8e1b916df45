/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates and what they render, made by tests/golden/make_tokenizer_vectors.py with
 * tokenizers 0.23.3, sentencepiece 0.2.3, jinja2 3.1.6. Don't edit.
 */
#ifndef BT_TESTS_ENGINE_CHAT_VECTORS_H
#define BT_TESTS_ENGINE_CHAT_VECTORS_H

#include <stddef.h>
#include <stdint.h>

typedef struct vector_message {
    const char *role;
    const char *content;
} vector_message;

static const vector_message talk_0[] = {
    {"user", "Hello"},
};

static const vector_message talk_1[] = {
    {"system", "Be brief."},
    {"user", "  Why is the sky blue\077\012"},
};

static const vector_message talk_2[] = {
    {"user", "Hi"},
    {"assistant", " \011Hello there! \343\200\200"},
    {"user", "\012\012And in \344\270\255\346\226\207\077 \360\237\231\202 "},
};

static const vector_message talk_3[] = {
    {"system", " Speak\012like a pirate. "},
    {"user", "1"},
    {"assistant", "2"},
    {"user", "3"},
    {"assistant", "4"},
    {"user", "5"},
};

static const vector_message talk_4[] = {
    {"user", ""},
    {"assistant", ""},
    {"user", " "},
};

static const vector_message talk_5[] = {
    {"user", "a"},
    {"assistant", "b"},
};

typedef struct vector_talk {
    const vector_message *messages;
    size_t n;
} vector_talk;

static const vector_talk vector_talks[] = {
    {talk_0, 1},
    {talk_1, 2},
    {talk_2, 3},
    {talk_3, 6},
    {talk_4, 3},
    {talk_5, 2},
};

/* rendered[2 * talk + with generation prompt]; NULL: refused. */
typedef struct vector_template {
    const char *name;
    const char *source;
    const char *rendered[12];
} vector_template;

static const vector_template vector_templates[] = {
    {"chatml",
     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\134n' + message['content'] + '<|im_end|>' + '\134n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\134n' }}{% endif %}",
     {
         "<|im_start|>user\012Hello<|im_end|>\012",
         "<|im_start|>user\012Hello<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012Be brief.<|im_end|>\012<|im_start|>user\012  Why is the sky blue\077\012<|im_end|>\012",
         "<|im_start|>system\012Be brief.<|im_end|>\012<|im_start|>user\012  Why is the sky blue\077\012<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>user\012Hi<|im_end|>\012<|im_start|>assistant\012 \011Hello there! \343\200\200<|im_end|>\012<|im_start|>user\012\012\012And in \344\270\255\346\226\207\077 \360\237\231\202 <|im_end|>\012",
         "<|im_start|>user\012Hi<|im_end|>\012<|im_start|>assistant\012 \011Hello there! \343\200\200<|im_end|>\012<|im_start|>user\012\012\012And in \344\270\255\346\226\207\077 \360\237\231\202 <|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012 Speak\012like a pirate. <|im_end|>\012<|im_start|>user\0121<|im_end|>\012<|im_start|>assistant\0122<|im_end|>\012<|im_start|>user\0123<|im_end|>\012<|im_start|>assistant\0124<|im_end|>\012<|im_start|>user\0125<|im_end|>\012",
         "<|im_start|>system\012 Speak\012like a pirate. <|im_end|>\012<|im_start|>user\0121<|im_end|>\012<|im_start|>assistant\0122<|im_end|>\012<|im_start|>user\0123<|im_end|>\012<|im_start|>assistant\0124<|im_end|>\012<|im_start|>user\0125<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>user\012<|im_end|>\012<|im_start|>assistant\012<|im_end|>\012<|im_start|>user\012 <|im_end|>\012",
         "<|im_start|>user\012<|im_end|>\012<|im_start|>assistant\012<|im_end|>\012<|im_start|>user\012 <|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>user\012a<|im_end|>\012<|im_start|>assistant\012b<|im_end|>\012",
         "<|im_start|>user\012a<|im_end|>\012<|im_start|>assistant\012b<|im_end|>\012<|im_start|>assistant\012",
     }},
    {"chatml-lf",
     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\012' + message['content'] + '<|im_end|>' + '\012'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\012' }}{% endif %}",
     {
         "<|im_start|>user\012Hello<|im_end|>\012",
         "<|im_start|>user\012Hello<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012Be brief.<|im_end|>\012<|im_start|>user\012  Why is the sky blue\077\012<|im_end|>\012",
         "<|im_start|>system\012Be brief.<|im_end|>\012<|im_start|>user\012  Why is the sky blue\077\012<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>user\012Hi<|im_end|>\012<|im_start|>assistant\012 \011Hello there! \343\200\200<|im_end|>\012<|im_start|>user\012\012\012And in \344\270\255\346\226\207\077 \360\237\231\202 <|im_end|>\012",
         "<|im_start|>user\012Hi<|im_end|>\012<|im_start|>assistant\012 \011Hello there! \343\200\200<|im_end|>\012<|im_start|>user\012\012\012And in \344\270\255\346\226\207\077 \360\237\231\202 <|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012 Speak\012like a pirate. <|im_end|>\012<|im_start|>user\0121<|im_end|>\012<|im_start|>assistant\0122<|im_end|>\012<|im_start|>user\0123<|im_end|>\012<|im_start|>assistant\0124<|im_end|>\012<|im_start|>user\0125<|im_end|>\012",
         "<|im_start|>system\012 Speak\012like a pirate. <|im_end|>\012<|im_start|>user\0121<|im_end|>\012<|im_start|>assistant\0122<|im_end|>\012<|im_start|>user\0123<|im_end|>\012<|im_start|>assistant\0124<|im_end|>\012<|im_start|>user\0125<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>user\012<|im_end|>\012<|im_start|>assistant\012<|im_end|>\012<|im_start|>user\012 <|im_end|>\012",
         "<|im_start|>user\012<|im_end|>\012<|im_start|>assistant\012<|im_end|>\012<|im_start|>user\012 <|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>user\012a<|im_end|>\012<|im_start|>assistant\012b<|im_end|>\012",
         "<|im_start|>user\012a<|im_end|>\012<|im_start|>assistant\012b<|im_end|>\012<|im_start|>assistant\012",
     }},
    {"smollm2",
     "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\134nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\134n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\134n' + message['content'] + '<|im_end|>' + '\134n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\134n' }}{% endif %}",
     {
         "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\012Hello<|im_end|>\012",
         "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\012Hello<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012Be brief.<|im_end|>\012<|im_start|>user\012  Why is the sky blue\077\012<|im_end|>\012",
         "<|im_start|>system\012Be brief.<|im_end|>\012<|im_start|>user\012  Why is the sky blue\077\012<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\012Hi<|im_end|>\012<|im_start|>assistant\012 \011Hello there! \343\200\200<|im_end|>\012<|im_start|>user\012\012\012And in \344\270\255\346\226\207\077 \360\237\231\202 <|im_end|>\012",
         "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\012Hi<|im_end|>\012<|im_start|>assistant\012 \011Hello there! \343\200\200<|im_end|>\012<|im_start|>user\012\012\012And in \344\270\255\346\226\207\077 \360\237\231\202 <|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012 Speak\012like a pirate. <|im_end|>\012<|im_start|>user\0121<|im_end|>\012<|im_start|>assistant\0122<|im_end|>\012<|im_start|>user\0123<|im_end|>\012<|im_start|>assistant\0124<|im_end|>\012<|im_start|>user\0125<|im_end|>\012",
         "<|im_start|>system\012 Speak\012like a pirate. <|im_end|>\012<|im_start|>user\0121<|im_end|>\012<|im_start|>assistant\0122<|im_end|>\012<|im_start|>user\0123<|im_end|>\012<|im_start|>assistant\0124<|im_end|>\012<|im_start|>user\0125<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\012<|im_end|>\012<|im_start|>assistant\012<|im_end|>\012<|im_start|>user\012 <|im_end|>\012",
         "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\012<|im_end|>\012<|im_start|>assistant\012<|im_end|>\012<|im_start|>user\012 <|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\012a<|im_end|>\012<|im_start|>assistant\012b<|im_end|>\012",
         "<|im_start|>system\012You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\012<|im_start|>user\012a<|im_end|>\012<|im_start|>assistant\012b<|im_end|>\012<|im_start|>assistant\012",
     }},
    {"qwen2.5",
     "{%- if messages[0]['role'] == 'system' %}\012    {{- '<|im_start|>system\134n' + messages[0]['content'] + '<|im_end|>\134n' }}\012{%- else %}\012    {{- '<|im_start|>system\134nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\134n' }}\012{%- endif %}\012{%- for message in messages %}\012    {%- if not (message.role == \042system\042 and loop.first) %}\012        {{- '<|im_start|>' + message.role + '\134n' + message.content + '<|im_end|>' + '\134n' }}\012    {%- endif %}\012{%- endfor %}\012{%- if add_generation_prompt %}\012    {{- '<|im_start|>assistant\134n' }}\012{%- endif %}\012",
     {
         "<|im_start|>system\012You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\012<|im_start|>user\012Hello<|im_end|>\012",
         "<|im_start|>system\012You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\012<|im_start|>user\012Hello<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012Be brief.<|im_end|>\012<|im_start|>user\012  Why is the sky blue\077\012<|im_end|>\012",
         "<|im_start|>system\012Be brief.<|im_end|>\012<|im_start|>user\012  Why is the sky blue\077\012<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\012<|im_start|>user\012Hi<|im_end|>\012<|im_start|>assistant\012 \011Hello there! \343\200\200<|im_end|>\012<|im_start|>user\012\012\012And in \344\270\255\346\226\207\077 \360\237\231\202 <|im_end|>\012",
         "<|im_start|>system\012You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\012<|im_start|>user\012Hi<|im_end|>\012<|im_start|>assistant\012 \011Hello there! \343\200\200<|im_end|>\012<|im_start|>user\012\012\012And in \344\270\255\346\226\207\077 \360\237\231\202 <|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012 Speak\012like a pirate. <|im_end|>\012<|im_start|>user\0121<|im_end|>\012<|im_start|>assistant\0122<|im_end|>\012<|im_start|>user\0123<|im_end|>\012<|im_start|>assistant\0124<|im_end|>\012<|im_start|>user\0125<|im_end|>\012",
         "<|im_start|>system\012 Speak\012like a pirate. <|im_end|>\012<|im_start|>user\0121<|im_end|>\012<|im_start|>assistant\0122<|im_end|>\012<|im_start|>user\0123<|im_end|>\012<|im_start|>assistant\0124<|im_end|>\012<|im_start|>user\0125<|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\012<|im_start|>user\012<|im_end|>\012<|im_start|>assistant\012<|im_end|>\012<|im_start|>user\012 <|im_end|>\012",
         "<|im_start|>system\012You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\012<|im_start|>user\012<|im_end|>\012<|im_start|>assistant\012<|im_end|>\012<|im_start|>user\012 <|im_end|>\012<|im_start|>assistant\012",
         "<|im_start|>system\012You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\012<|im_start|>user\012a<|im_end|>\012<|im_start|>assistant\012b<|im_end|>\012",
         "<|im_start|>system\012You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\012<|im_start|>user\012a<|im_end|>\012<|im_start|>assistant\012b<|im_end|>\012<|im_start|>assistant\012",
     }},
    {"llama-2",
     "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\134n' + system_message + '\134n<</SYS>>\134n\134n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
     {
         "<s>[INST] Hello [/INST]",
         "<s>[INST] Hello [/INST]",
         "<s>[INST] <<SYS>>\012Be brief.\012<</SYS>>\012\012  Why is the sky blue\077 [/INST]",
         "<s>[INST] <<SYS>>\012Be brief.\012<</SYS>>\012\012  Why is the sky blue\077 [/INST]",
         "<s>[INST] Hi [/INST] Hello there! </s><s>[INST] And in \344\270\255\346\226\207\077 \360\237\231\202 [/INST]",
         "<s>[INST] Hi [/INST] Hello there! </s><s>[INST] And in \344\270\255\346\226\207\077 \360\237\231\202 [/INST]",
         "<s>[INST] <<SYS>>\012 Speak\012like a pirate. \012<</SYS>>\012\0121 [/INST] 2 </s><s>[INST] 3 [/INST] 4 </s><s>[INST] 5 [/INST]",
         "<s>[INST] <<SYS>>\012 Speak\012like a pirate. \012<</SYS>>\012\0121 [/INST] 2 </s><s>[INST] 3 [/INST] 4 </s><s>[INST] 5 [/INST]",
         "<s>[INST]  [/INST]  </s><s>[INST]  [/INST]",
         "<s>[INST]  [/INST]  </s><s>[INST]  [/INST]",
         "<s>[INST] a [/INST] b </s>",
         "<s>[INST] a [/INST] b </s>",
     }},
    {"llama-3",
     "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\012\012'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\012\012' }}{% endif %}",
     {
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012Hello<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012Why is the sky blue\077<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012Why is the sky blue\077<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012Hello there!<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012And in \344\270\255\346\226\207\077 \360\237\231\202<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012Hello there!<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012And in \344\270\255\346\226\207\077 \360\237\231\202<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Speak\012like a pirate.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0121<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0122<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0123<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0124<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0125<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Speak\012like a pirate.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0121<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0122<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0123<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0124<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0125<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012a<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012b<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012a<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012b<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
     }},
    {"llama-3-first",
     "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\012\012'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\012\012' }}",
     {
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012Why is the sky blue\077<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012Why is the sky blue\077<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012Hello there!<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012And in \344\270\255\346\226\207\077 \360\237\231\202<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012Hello there!<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012And in \344\270\255\346\226\207\077 \360\237\231\202<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Speak\012like a pirate.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0121<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0122<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0123<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0124<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0125<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Speak\012like a pirate.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0121<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0122<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0123<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0124<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0125<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012a<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012b<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\012\012a<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012b<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
     }},
    {"llama-3.1",
     "{{- bos_token }}\012{%- if not date_string is defined %}\012    {%- set date_string = \04226 Jul 2024\042 %}\012{%- endif %}\012\012{#- The system message's place is fixed. #}\012{%- if messages[0]['role'] == 'system' %}\012    {%- set system_message = messages[0]['content']|trim %}\012    {%- set messages = messages[1:] %}\012{%- else %}\012    {%- set system_message = \042\042 %}\012{%- endif %}\012\012{{- \042<|start_header_id|>system<|end_header_id|>\134n\134n\042 }}\012{{- \042Cutting Knowledge Date: December 2023\134n\042 }}\012{{- \042Today Date: \042 + date_string + \042\134n\134n\042 }}\012{{- system_message }}\012{{- \042<|eot_id|>\042 }}\012\012{%- for message in messages %}\012    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\134n\134n'+ message['content'] | trim + '<|eot_id|>' }}\012{%- endfor %}\012{%- if add_generation_prompt %}\012    {{- '<|start_header_id|>assistant<|end_header_id|>\134n\134n' }}\012{%- endif %}\012",
     {
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012Hello<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012Why is the sky blue\077<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012Why is the sky blue\077<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012Hello there!<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012And in \344\270\255\346\226\207\077 \360\237\231\202<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012Hello there!<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012And in \344\270\255\346\226\207\077 \360\237\231\202<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012Speak\012like a pirate.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0121<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0122<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0123<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0124<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0125<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012Speak\012like a pirate.<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0121<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0122<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0123<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\0124<|eot_id|><|start_header_id|>user<|end_header_id|>\012\0125<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012a<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012b<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\012\012Cutting Knowledge Date: December 2023\012Today Date: 26 Jul 2024\012\012<|eot_id|><|start_header_id|>user<|end_header_id|>\012\012a<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012b<|eot_id|><|start_header_id|>assistant<|end_header_id|>\012\012",
     }},
    {"mistral-1",
     "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}",
     {
         "<s>[INST] Hello [/INST]",
         "<s>[INST] Hello [/INST]",
         NULL,
         NULL,
         "<s>[INST] Hi [/INST] \011Hello there! \343\200\200</s> [INST] \012\012And in \344\270\255\346\226\207\077 \360\237\231\202  [/INST]",
         "<s>[INST] Hi [/INST] \011Hello there! \343\200\200</s> [INST] \012\012And in \344\270\255\346\226\207\077 \360\237\231\202  [/INST]",
         NULL,
         NULL,
         "<s>[INST]  [/INST]</s> [INST]   [/INST]",
         "<s>[INST]  [/INST]</s> [INST]   [/INST]",
         "<s>[INST] a [/INST]b</s> ",
         "<s>[INST] a [/INST]b</s> ",
     }},
    {"mistral-2",
     "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\012{%- else %}{% set loop_messages = messages %}{% endif %}{{- bos_token }}{%- for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{%- if message['role'] == 'user' %}{%- if loop.first and system_message is defined %}{{- ' [INST] ' + system_message + '\134n\134n' + message['content'] + ' [/INST]' }}{%- else %}{{- ' [INST] ' + message['content'] + ' [/INST]' }}{%- endif %}{%- elif message['role'] == 'assistant' %}{{- ' ' + message['content'] + eos_token}}{%- endif %}{%- endfor %}\012",
     {
         "<s> [INST] Hello [/INST]",
         "<s> [INST] Hello [/INST]",
         "<s> [INST] Be brief.\012\012  Why is the sky blue\077\012 [/INST]",
         "<s> [INST] Be brief.\012\012  Why is the sky blue\077\012 [/INST]",
         "<s> [INST] Hi [/INST]  \011Hello there! \343\200\200</s> [INST] \012\012And in \344\270\255\346\226\207\077 \360\237\231\202  [/INST]",
         "<s> [INST] Hi [/INST]  \011Hello there! \343\200\200</s> [INST] \012\012And in \344\270\255\346\226\207\077 \360\237\231\202  [/INST]",
         "<s> [INST]  Speak\012like a pirate. \012\0121 [/INST] 2</s> [INST] 3 [/INST] 4</s> [INST] 5 [/INST]",
         "<s> [INST]  Speak\012like a pirate. \012\0121 [/INST] 2</s> [INST] 3 [/INST] 4</s> [INST] 5 [/INST]",
         "<s> [INST]  [/INST] </s> [INST]   [/INST]",
         "<s> [INST]  [/INST] </s> [INST]   [/INST]",
         "<s> [INST] a [/INST] b</s>",
         "<s> [INST] a [/INST] b</s>",
     }},
    {"mistral-3",
     "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% endif %}{{- bos_token }}\012{%- for message in loop_messages %}\012    {%- if message[\042role\042] == \042user\042 %}\012        {%- if loop.last and system_message is defined %}\012            {{- \042[INST] \042 + system_message + \042\134n\134n\042 + message[\042content\042] + \042[/INST]\042 }}\012        {%- else %}\012            {{- \042[INST] \042 + message[\042content\042] + \042[/INST]\042 }}\012        {%- endif %}\012    {%- elif message[\042role\042] == \042assistant\042 %}\012        {{- \042 \042 + message[\042content\042]|trim + eos_token}}\012    {%- endif %}\012{%- endfor %}\012",
     {
         "<s>[INST] Hello[/INST]",
         "<s>[INST] Hello[/INST]",
         "<s>[INST] Be brief.\012\012  Why is the sky blue\077\012[/INST]",
         "<s>[INST] Be brief.\012\012  Why is the sky blue\077\012[/INST]",
         "<s>[INST] Hi[/INST] Hello there!</s>[INST] \012\012And in \344\270\255\346\226\207\077 \360\237\231\202 [/INST]",
         "<s>[INST] Hi[/INST] Hello there!</s>[INST] \012\012And in \344\270\255\346\226\207\077 \360\237\231\202 [/INST]",
         "<s>[INST] 1[/INST] 2</s>[INST] 3[/INST] 4</s>[INST]  Speak\012like a pirate. \012\0125[/INST]",
         "<s>[INST] 1[/INST] 2</s>[INST] 3[/INST] 4</s>[INST]  Speak\012like a pirate. \012\0125[/INST]",
         "<s>[INST] [/INST] </s>[INST]  [/INST]",
         "<s>[INST] [/INST] </s>[INST]  [/INST]",
         "<s>[INST] a[/INST] b</s>",
         "<s>[INST] a[/INST] b</s>",
     }},
};

#endif
