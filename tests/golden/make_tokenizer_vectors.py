#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the vectors of the tokenizer and chat tests with the reference libraries.

    python3 tests/golden/make_tokenizer_vectors.py MODEL.gguf

writes tests/engine/tokenizer_vectors.h and tests/engine/chat_vectors.h. MODEL.gguf is the demo
model. Needs: tokenizers, sentencepiece, jinja2, gguf (versions used: see the headers).

Three oracles:
  * Hugging Face's tokenizers, for each pre-tokenizer, over a small byte-level vocabulary that is
    trained here without any pre-tokenizer: its tokens cross the borders of words, so a text that
    is split at another place gets other ids.
  * the same library over the demo model's own vocabulary.
  * SentencePiece over a small model that is trained here.
Chat templates are rendered by jinja2 with the options that transformers uses. They have the
shape of the models' own, without the branches for tools.
"""

import io
import sys

import gguf
import jinja2
import jinja2.sandbox
import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

TEXTS = [
    "",
    " ",
    "  ",
    "   \t \n\n  x",
    "Hello world",
    " Hello  World!\n",
    "The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX!",
    "I'm sure they're here, we've won, it'd rain, she'll see; THEY'RE 'S 'Tis",
    "a1b22c333d4444e55555 1,234.56 0x1F600 3.14159e-10",
    "½ ² ³ Ⅷ ⅳ ٣٤٥ १२३ 五六七",
    "for (int i = 0; i < n; i++) {\n\tsum += a[i] * b[i];\n}\n",
    "def f(x):\n    return {'k': x ** 2}  # square\n\n\nprint(f(3))\r\n",
    "<div class=\"a-b_c\">&amp;</div><!-- ??= ??/ -->",
    "https://example.org/path?q=1&r=%20#frag user@example.org",
    "!!!???...,,,;;;:::---___###$$$%%%^^^&&&***",
    "        eight spaces        then    four\t\ttabs\t",
    " " * 70 + "x" + " " * 33,
    "\n" * 9 + " \n \n  \n\r\n\r\n",
    "中文字符测试，不知道。こんにちは世界！カタカナ 한국어 텍스트",
    "שלום עולם! مرحبا بالعالم، كيف الحال؟ \u200fRTL\u200e",
    "Привет, мир! Γειά σου Κόσμε. Zażółć gęślą jaźń",
    "हिन्दी में लिखा हुआ पाठ ภาษาไทยไม่มีช่องว่าง தமிழ்",
    "🙂😀 👩‍💻👨‍👩‍👧‍👦 🇩🇪🇯🇵 👍🏽 ✈️ ☃",
    "e\u0301 \u0301 a\u0323\u0307 a\u0307\u0323 q\u0307\u0323 \u1e69 s\u0323\u0307 ﬁ Å K Å",
    "각 각 가나다 \u1100\u1161\u11a8",
    "𝒳𝓎𝓏 𐍈 𓀀 \U0001f9ff \uf8ff \U0010fffd",
    "zero\u200bwidth\u200cjoin\u200d \ufeffbom \u00adsoft",
    "nbsp\u00a0here\u2003em\u3000ideographic\u2028line\u2029para\x85nel",
    "nul\x00tab\tesc\x1b[0m del\x7f \x04\x06\x13\x14\x16\x1d end",
    "I\u0307stanbul İstanbul ıI ſt ß ẞ Ǆ ǆ",
    "▁under▁score ▁▁ double",
    "<|im_start|>user\nhi<|im_end|>",
    "<|endoftext|> <|endoftext |> <s> </s> <unk> [INST] <0x41>",
    "<repo_name>a<file_sep>b<jupyter_code>c <|im_start|><|im_start|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "pneumonoultramicroscopicsilicovolcanoconiosis antidisestablishmentarianism",
    "CamelCaseAndsnake_case_andSCREAMING_CASE x86_64 UTF-8 C++17",
    "Mixed: \"quotes\" ‘single’ “double” «guillemets» — dash – en … ellipsis",
    "€100 £5 ¥2000 50% 20°C 5′10″ ±1 ∑∫√∞≠≤≥ →⇒ © ® ™",
    "end with space ",
    "end with spaces   ",
    "\ttab first",
    "'s't're've'm'll'd 'S'T'RE'VE'M'LL'D",
    "don't   can't\n\nwon't 'twas o'clock rock'n'roll",
    "1 12 123 1234 12345 123456 1234567",
    "\U000e0041\U000e0042 tag \U0001f3f4\U000e0067\U000e0062",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


DIGITS = pre_tokenizers.Digits(individual_digits=True)
PRE = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence([DIGITS, pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "llama-bpe": pre_tokenizers.Sequence([split(CONTRACTIONS + r"\p{N}{1,3}" + REST), BYTES]),
    "qwen2": pre_tokenizers.Sequence([split(CONTRACTIONS + r"\p{N}" + REST), BYTES]),
    "deepseek-coder": pre_tokenizers.Sequence(
        [split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"),
         split("[一-龥ࠀ-一가-퟿]+"), DIGITS, BYTES]),
}


def literal(text):
    """A C string literal; octal escapes, since they end by themselves."""
    data = text if isinstance(text, bytes) else text.encode()
    out = []
    for byte in data:
        char = chr(byte)
        if 0x20 <= byte < 0x7F and char not in "\"\\?":
            out.append(char)
        else:
            out.append("\\%03o" % byte)
    return '"' + "".join(out) + '"'


def wrap(items, out):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 98:
            out.write(line + "\n")
            line = "   "
        line += " " + item + ","
    if line.strip():
        out.write(line + "\n")


def write_strings(out, name, strings):
    out.write("\nstatic const char *const %s[] = {\n" % name)
    wrap([literal(s) for s in strings], out)
    out.write("};\n")


def write_ids(out, name, rows):
    out.write("\nstatic const int32_t %s[] = {\n" % name)
    wrap([str(i) for row in rows for i in list(row) + [-1]], out)
    out.write("};\n")


def letters():
    """Byte-level BPE's letter of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def make_bpe(out):
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 420, min_frequency=1, max_token_length=8, show_progress=False,
        initial_alphabet=list(letters().values()))
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = BYTES
    corpus = [t for t in TEXTS if t] * 2
    trained.train_from_iterator(corpus, trainer)
    import json
    merges = [tuple(m) for m in json.loads(trained.to_str())["model"]["merges"]]
    tokens = [letters()[b] for b in range(256)] + ["<|endoftext|>"]
    kept = []
    for left, right in merges:
        if left + right not in tokens:
            tokens.append(left + right)
            kept.append((left, right))
    out.write("\n/* Token ids: 0-255 bytes, 256 <|endoftext|>, then what each merge makes. */")
    write_strings(out, "bpe_merges", [" ".join(m) for m in kept])
    vocabulary = {t: i for i, t in enumerate(tokens)}
    for name, pre in PRE.items():
        model = models.BPE(vocab=vocabulary, merges=kept, ignore_merges=name == "llama-bpe")
        reference = Tokenizer(model)
        reference.pre_tokenizer = pre
        if name == "qwen2":
            reference.normalizer = normalizers.NFC()
        write_ids(out, "bpe_%s_ids" % name.replace("-", "_"),
                  [reference.encode(t, add_special_tokens=False).ids for t in TEXTS])


def make_demo(out, path):
    reader = gguf.GGUFReader(path)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    reference = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    reference.pre_tokenizer = PRE["smollm"]
    write_ids(out, "demo_plain_ids",
              [reference.encode(t, add_special_tokens=False).ids for t in TEXTS])
    reference.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == 3])
    write_ids(out, "demo_special_ids",
              [reference.encode(t, add_special_tokens=False).ids for t in TEXTS])


def make_spm(out):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([t.replace("\n", " ").replace("\x00", "") for t in TEXTS if t] * 2),
        model_writer=written, model_type="bpe", vocab_size=700, byte_fallback=True,
        normalization_rule_name="identity", add_dummy_prefix=True,
        remove_extra_whitespaces=False, character_coverage=0.98, num_threads=1,
        minloglevel=2, hard_vocab_limit=False, max_sentence_length=10000)
    reference = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    n = reference.get_piece_size()
    out.write("\n/* 0 <unk>, 1 <s>, 2 </s>, 3-258 <0x00> to <0xFF>, then these; scores 0, -1, -2, ... */")
    assert [reference.id_to_piece(i) for i in (0, 1, 2, 3, 258)] == [
        "<unk>", "<s>", "</s>", "<0x00>", "<0xFF>"]
    assert [reference.get_score(i) for i in range(259, n)] == [-float(i) for i in range(n - 259)]
    write_strings(out, "spm_pieces", [reference.id_to_piece(i) for i in range(259, n)])
    write_ids(out, "spm_ids", [reference.encode(t) for t in TEXTS])


def header(out, what, guard):
    out.write("/* SPDX-License-Identifier: Apache-2.0 */\n")
    out.write("/* %s, made by tests/golden/make_tokenizer_vectors.py with\n" % what)
    out.write(" * tokenizers %s, sentencepiece %s, jinja2 %s. Don't edit.\n */\n" % (
        tokenizers.__version__, sentencepiece.__version__, jinja2.__version__))
    out.write("#ifndef %s\n#define %s\n\n#include <stddef.h>\n#include <stdint.h>\n" % (guard, guard))


def make_tokenizer_vectors(model):
    with open("tests/engine/tokenizer_vectors.h", "w") as out:
        header(out, "Texts and their ids (each list ends with -1)",
               "BT_TESTS_ENGINE_TOKENIZER_VECTORS_H")
        out.write("\ntypedef struct vector_text {\n    const char *bytes;\n    size_t len;\n} vector_text;\n")
        out.write("\nstatic const vector_text vector_texts[] = {\n")
        for text in TEXTS:
            out.write("    {%s, %d},\n" % (literal(text), len(text.encode())))
        out.write("};\n")
        make_bpe(out)
        make_spm(out)
        make_demo(out, model)
        out.write("\n#endif\n")


# --- chat --------------------------------------------------------------------------------

ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('roles must alternate') }}{% endif %}")
SYSTEM_APART = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
                "{% set system_message = messages[0]['content'] %}{% else %}"
                "{% set loop_messages = messages %}")
CHATML = ("{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
MISTRAL_3_USER = ("{{- \"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}",
                  "{{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}")
TEMPLATES = {
    "chatml": "{% for message in messages %}" + CHATML,
    "chatml-lf": "{% for message in messages %}" + CHATML.replace("\\n", "\n"),
    "smollm2": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
               "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by "
               "Hugging Face<|im_end|>\\n' }}{% endif %}" + CHATML,
    "qwen2.5": "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + "
               "messages[0]['content'] + '<|im_end|>\\n' }}\n{%- else %}\n    {{- '<|im_start|>system\\n"
               "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}\n"
               "{%- endif %}\n{%- for message in messages %}\n    {%- if not (message.role == \"system\" "
               "and loop.first) %}\n        {{- '<|im_start|>' + message.role + '\\n' + "
               "message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n"
               "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
    "llama-2": SYSTEM_APART + "{% set system_message = false %}{% endif %}"
               "{% for message in loop_messages %}" + ALTERNATE +
               "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + "
               "system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
               "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
               "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
               "{% elif message['role'] == 'assistant' %}"
               "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "llama-3": "{% set loop_messages = messages %}{% for message in loop_messages %}"
               "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
               "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
               "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
               "{% endif %}",
    "llama-3-first": "{% set loop_messages = messages %}{% for message in loop_messages %}"
                     "{% set content = '<|start_header_id|>' + message['role'] + "
                     "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}"
                     "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
                     "{{ content }}{% endfor %}"
                     "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
    "llama-3.1": "{{- bos_token }}\n{%- if not date_string is defined %}\n"
                 "    {%- set date_string = \"26 Jul 2024\" %}\n{%- endif %}\n\n"
                 "{#- The system message's place is fixed. #}\n"
                 "{%- if messages[0]['role'] == 'system' %}\n"
                 "    {%- set system_message = messages[0]['content']|trim %}\n"
                 "    {%- set messages = messages[1:] %}\n{%- else %}\n"
                 "    {%- set system_message = \"\" %}\n{%- endif %}\n\n"
                 "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n"
                 "{{- \"Cutting Knowledge Date: December 2023\\n\" }}\n"
                 "{{- \"Today Date: \" + date_string + \"\\n\\n\" }}\n{{- system_message }}\n"
                 "{{- \"<|eot_id|>\" }}\n\n{%- for message in messages %}\n"
                 "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
                 "message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n"
                 "{%- if add_generation_prompt %}\n"
                 "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n",
    "mistral-1": "{{ bos_token }}{% for message in messages %}" + ALTERNATE +
                 "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
                 "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}"
                 "{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}",
    "mistral-2": SYSTEM_APART.replace("{% else %}", "\n{%- else %}") + "{% endif %}{{- bos_token }}"
                 "{%- for message in loop_messages %}" + ALTERNATE +
                 "{%- if message['role'] == 'user' %}"
                 "{%- if loop.first and system_message is defined %}"
                 "{{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}"
                 "{%- else %}{{- ' [INST] ' + message['content'] + ' [/INST]' }}{%- endif %}"
                 "{%- elif message['role'] == 'assistant' %}"
                 "{{- ' ' + message['content'] + eos_token}}{%- endif %}{%- endfor %}\n",
    "mistral-3": SYSTEM_APART + "{% endif %}{{- bos_token }}\n{%- for message in loop_messages %}\n"
                 "    {%- if message[\"role\"] == \"user\" %}\n"
                 "        {%- if loop.last and system_message is defined %}\n            " +
                 MISTRAL_3_USER[0] + "\n        {%- else %}\n            " + MISTRAL_3_USER[1] +
                 "\n        {%- endif %}\n    {%- elif message[\"role\"] == \"assistant\" %}\n"
                 "        {{- \" \" + message[\"content\"]|trim + eos_token}}\n    {%- endif %}\n"
                 "{%- endfor %}\n",
}

TALKS = [
    [("user", "Hello")],
    [("system", "Be brief."), ("user", "  Why is the sky blue?\n")],
    [("user", "Hi"), ("assistant", " \tHello there! \u3000"), ("user", "\n\nAnd in 中文? 🙂 ")],
    [("system", " Speak\nlike a pirate. "), ("user", "1"), ("assistant", "2"), ("user", "3"),
     ("assistant", "4"), ("user", "5")],
    [("user", ""), ("assistant", ""), ("user", " ")],
    [("user", "a"), ("assistant", "b")],
]


def render(template, talk, prompt):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(text):
        raise jinja2.exceptions.TemplateError(text)

    environment.globals["raise_exception"] = refuse
    llama3 = "start_header_id" in template
    try:
        return environment.from_string(template).render(
            messages=[{"role": r, "content": c} for r, c in talk], add_generation_prompt=prompt,
            bos_token="<|begin_of_text|>" if llama3 else "<s>", eos_token="</s>")
    except jinja2.exceptions.TemplateError:
        return None


def make_chat_vectors():
    with open("tests/engine/chat_vectors.h", "w") as out:
        header(out, "Chat templates and what they render", "BT_TESTS_ENGINE_CHAT_VECTORS_H")
        out.write("\ntypedef struct vector_message {\n    const char *role;\n    const char *content;\n"
                  "} vector_message;\n")
        for i, talk in enumerate(TALKS):
            out.write("\nstatic const vector_message talk_%d[] = {\n" % i)
            for role, content in talk:
                out.write("    {%s, %s},\n" % (literal(role), literal(content)))
            out.write("};\n")
        out.write("\ntypedef struct vector_talk {\n    const vector_message *messages;\n    size_t n;\n"
                  "} vector_talk;\n\nstatic const vector_talk vector_talks[] = {\n")
        for i, talk in enumerate(TALKS):
            out.write("    {talk_%d, %d},\n" % (i, len(talk)))
        out.write("};\n\n/* rendered[2 * talk + with generation prompt]; NULL: refused. */\n"
                  "typedef struct vector_template {\n    const char *name;\n    const char *source;\n"
                  "    const char *rendered[%d];\n} vector_template;\n" % (2 * len(TALKS)))
        out.write("\nstatic const vector_template vector_templates[] = {\n")
        for name, template in TEMPLATES.items():
            out.write("    {%s,\n     %s,\n     {\n" % (literal(name), literal(template)))
            for talk in TALKS:
                for prompt in (False, True):
                    text = render(template, talk, prompt)
                    out.write("         %s,\n" % ("NULL" if text is None else literal(text)))
            out.write("     }},\n")
        out.write("};\n\n#endif\n")


if __name__ == "__main__":
    make_tokenizer_vectors(sys.argv[1])
    make_chat_vectors()
