#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden vectors of the demo model: what a float32 reference computes for fixed prompts.

    make_golden.py MODEL.gguf [OUT_DIR]

The reference is transformers' LlamaForCausalLM in float32 on the dequantized weights of the same GGUF file. Greedy
tokens come from its incremental run; the logits are those of one teacher-forced pass over prompt and answer, and the
two have to agree. Writes, into OUT_DIR (the folder of this script unless given):

    smollm2.bin    logits; the layout is described in tests/support/golden.h
    prompts.json   the prompts: name, text, token ids, and the greedy answer as ids and text
    sky.json       the quick start's chat prompt with the first 32 tokens of its answer and the gap at each

Needs, in a virtual environment outside the project: gguf, torch, transformers (5), jinja2. Takes about three minutes on
two cores. Nothing in the build or in the tests runs it.
"""
import hashlib
import json
import os
import struct
import sys

import jinja2
import numpy as np
import torch
from gguf import GGUFReader, dequantize
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

N_STEPS = 64  # greedy tokens, and teacher-forced positions, of each prompt
N_TOP = 32
N_PROBE = 32
PROBE_SEED = 20250101
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

# ---------------------------------------------------------------------------------------------- prompts


def story(n_parts):
    """A long text that repeats its sentences with changed words and numbers."""
    people = ["Anna", "the miller", "Captain Reyes", "old Tomas", "a boy from the harbour", "Dr. Okafor", "the twins", "Mei"]
    things = ["a lantern", "three letters", "a broken clock", "the map of the marsh", "a jar of honey", "two ropes", "a radio"]
    places = ["the lighthouse", "the north bridge", "the market square", "the empty mill", "the railway station", "the river mouth"]
    weather = ["It rained.", "The wind turned to the east.", "Snow lay on the roofs.", "The night was clear and cold.", "Fog came in."]
    out = []
    for i in range(n_parts):
        out.append(
            f"On day {i + 1}, {people[i * 3 % len(people)]} carried {things[i * 5 % len(things)]} to "
            f"{places[i * 7 % len(places)]} and met {people[(i * 5 + 2) % len(people)]} there. {weather[i * 2 % len(weather)]} "
            f"They counted {i * 37 % 91 + 2} steps and wrote the number {i * i + 11} on the wall.")
    return " ".join(out)


def table(n_rows):
    rows = ["date,city,temperature_c,rain_mm,wind_kmh"]
    cities = ["Oslo", "Lagos", "Lima", "Osaka", "Perth", "Quito", "Turin"]
    for i in range(n_rows):
        rows.append(f"2024-{i // 28 % 12 + 1:02d}-{i % 28 + 1:02d},{cities[i % 7]},{(i * 13) % 35 - 4},{(i * 7) % 19}.{i % 10},{(i * 11) % 60}")
    return "\n".join(rows) + "\n"


def logfile(n_lines):
    levels = ["INFO", "INFO", "WARN", "DEBUG", "ERROR"]
    what = ["request done", "cache miss", "slow disk", "retry", "connection closed by peer"]
    return "\n".join(
        f"{8 + i // 60:02d}:{i % 60:02d}:{(i * 17) % 60:02d} {levels[i * 3 % 5]} worker-{i % 4} {what[i * 2 % 5]} id={i * 7919 % 65536:04x} took={(i * 31) % 997}ms"
        for i in range(n_lines)) + "\n"


def prompts(chat):
    """(name, text); `chat` renders messages with the model's own template."""
    user = lambda text: [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    yield "sky", chat(user("Why is the sky blue?"))
    yield "one_token", "The"
    yield "capital", "The capital of France is"
    yield "chat_turns", chat(user("Name three rivers in Europe.") + [
        {"role": "assistant", "content": "The Danube, the Rhine and the Vistula."},
        {"role": "user", "content": "Which of them is the longest, and where does it end?"}])
    yield "chat_code", chat(user("Write a Python function that tells whether a string is a palindrome, ignoring case and spaces."))
    yield "chat_system", chat([{"role": "system", "content": "You answer as a pirate, in one short sentence."},
                               {"role": "user", "content": "How do I boil an egg?"}])
    yield "python", ("def read_config(path):\n    \"\"\"Reads key=value lines; '#' starts a comment.\"\"\"\n    result = {}\n"
                     "    with open(path) as f:\n        for line in f:\n            line = line.split('#')[0].strip()\n")
    yield "c_code", ("#include <stdio.h>\n#include <stdlib.h>\n\ntypedef struct node {\n\tint value;\n\tstruct node *next;\n} node;\n\n"
                     "/* Reverses the list in place. */\nnode *reverse(node *head)\n{\n")
    yield "json", ('{"users": [{"id": 1, "name": "Ada", "tags": ["admin", "ops"]}, {"id": 2, "name": "Linus", "tags": []}, {"id": 3,')
    yield "sql", ("-- Customers who ordered more than five times in 2023, with their total.\nSELECT c.name, COUNT(*) AS orders, SUM(o.amount) AS total\nFROM")
    yield "math", "Question: A train leaves at 9:40 and arrives at 13:05. It stops twice, 7 minutes each. How long does it move?\nAnswer: Let us count."
    yield "german", "Der Fluss trat im Frühjahr über die Ufer, und die Bewohner der kleinen Stadt mussten ihre Häuser verlassen. Am nächsten Morgen"
    yield "french", "Il était une fois, dans un village près de la mer, une vieille femme qui collectionnait des coquillages étranges. Un jour, elle"
    yield "chinese", "从前有一座山，山上有一座庙，庙里住着一位老和尚和一个小和尚。有一天，"
    yield "japanese", "東京の朝は早い。駅のホームには、まだ眠そうな顔をした人々が並んでいる。電車が"
    yield "russian", "Зимой река замерзает, и жители деревни ходят по льду в соседний город. Старый рыбак сказал:"
    yield "arabic", "كان يا ما كان في قديم الزمان رجل يعيش في مدينة صغيرة بجانب البحر"
    yield "hindi", "एक समय की बात है, एक छोटे से गाँव में एक किसान रहता था। उसके पास"
    yield "emoji", "Weather today: ☀️ 24°C 🌤️ wind 💨 12 km/h. Tomorrow: 🌧️⛈️ 18°C. Packing list for 👨‍👩‍👧‍👦: ☂️ 🥾 🧥 and"
    yield "spaces", "name        qty     price\n----        ---     -----\napple         3      1.20\npear         12      0.80\n\n\n    \t total"
    yield "markdown", ("# Release notes\n\n## 2.4.0\n\n- **New**: exports to CSV and JSON (#412)\n- *Fixed*: the clock no longer runs backwards on 29 February\n"
                        "- Removed: `--legacy-mode`\n\n## 2.3.1\n\n")
    yield "story_250", story(5)
    yield "log_500", logfile(18)
    yield "table_1000", table(41)
    yield "story_2000", story(43)


# ---------------------------------------------------------------------------------------------- the reference


def load_reference(reader):
    """LlamaForCausalLM in float32 from the dequantized tensors."""
    value = lambda key: reader.fields[key].contents()
    weights = {t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).astype(np.float32)) for t in reader.tensors}
    heads = int(value("llama.attention.head_count"))
    kv_heads = int(value("llama.attention.head_count_kv"))
    config = LlamaConfig(
        vocab_size=weights["token_embd.weight"].shape[0],
        hidden_size=int(value("llama.embedding_length")),
        intermediate_size=int(value("llama.feed_forward_length")),
        num_hidden_layers=int(value("llama.block_count")),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=float(value("llama.attention.layer_norm_rms_epsilon")),
        rope_parameters={"rope_type": "default", "rope_theta": float(value("llama.rope.freq_base"))},
        max_position_embeddings=int(value("llama.context_length")),
        tie_word_embeddings="output.weight" not in weights,
        attn_implementation="eager")

    def unpair(w, n_heads):
        # GGUF keeps the two channels of a rotary pair side by side in Q and K; transformers half a head apart.
        head_dim = w.shape[0] // n_heads
        return w.view(n_heads, head_dim // 2, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)

    state = {
        "model.embed_tokens.weight": weights["token_embd.weight"],
        "model.norm.weight": weights["output_norm.weight"],
        "lm_head.weight": weights.get("output.weight", weights["token_embd.weight"]),
    }
    for i in range(config.num_hidden_layers):
        source, target = f"blk.{i}.", f"model.layers.{i}."
        state[target + "input_layernorm.weight"] = weights[source + "attn_norm.weight"]
        state[target + "post_attention_layernorm.weight"] = weights[source + "ffn_norm.weight"]
        state[target + "self_attn.q_proj.weight"] = unpair(weights[source + "attn_q.weight"], heads)
        state[target + "self_attn.k_proj.weight"] = unpair(weights[source + "attn_k.weight"], kv_heads)
        state[target + "self_attn.v_proj.weight"] = weights[source + "attn_v.weight"]
        state[target + "self_attn.o_proj.weight"] = weights[source + "attn_output.weight"]
        for mine, theirs in (("ffn_gate", "gate_proj"), ("ffn_up", "up_proj"), ("ffn_down", "down_proj")):
            state[target + f"mlp.{theirs}.weight"] = weights[source + mine + ".weight"]
    model = LlamaForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    return model


@torch.no_grad()
def greedy_rows(model, ids):
    """(64 greedy tokens, their 64 logits rows [64, n_vocab] float32 of one teacher-forced pass)."""
    answer, cache = [], None
    step = torch.tensor([ids])
    for _ in range(N_STEPS):
        out = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        answer.append(int(out.logits[0, -1].argmax()))
        step = torch.tensor([[answer[-1]]])
    fed = torch.tensor([ids + answer[:-1]])
    hidden = model.model(input_ids=fed, use_cache=False).last_hidden_state[0, len(ids) - 1:]
    rows = model.lm_head(hidden).float().numpy()
    forced = rows.argmax(axis=1).tolist()
    if forced != answer:
        raise SystemExit(f"incremental and teacher-forced runs differ: {answer} {forced}")
    return answer, rows


@torch.no_grad()
def deviation_from_float64(model64, ids, answer, rows):
    """How far float32 itself is from float64: largest difference of a logit."""
    fed = torch.tensor([ids + answer[:-1]])
    hidden = model64.model(input_ids=fed, use_cache=False).last_hidden_state[0, len(ids) - 1:]
    return float(np.abs(model64.lm_head(hidden).numpy() - rows).max())


# ---------------------------------------------------------------------------------------------- output


def top_of(row):
    """The 32 largest, larger first, ties to the lower id."""
    order = np.lexsort((np.arange(row.size), -row))
    return order[:N_TOP]


def log_sum_exp(row):
    wide = row.astype(np.float64)
    return float(wide.max() + np.log(np.exp(wide - wide.max()).sum()))


def main():
    model_path = sys.argv[1]
    out_dir = sys.argv[2] if len(sys.argv) > 2 else os.path.dirname(os.path.abspath(__file__))
    torch.manual_seed(0)
    reader = GGUFReader(model_path)
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
        reader.fields["tokenizer.chat_template"].contents())
    tokenizer = AutoTokenizer.from_pretrained(os.path.dirname(os.path.abspath(model_path)), gguf_file=os.path.basename(model_path))
    # Its reader of GGUF files leaves out what SmolLM2's own tokenizer.json begins with: digits stand alone.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    chat = lambda messages: template.render(messages=messages, add_generation_prompt=True)
    model = load_reference(reader)
    model64 = load_reference(reader).double() if os.environ.get("CHECK64") else None
    n_vocab = model.config.vocab_size
    probe = np.sort(np.random.RandomState(PROBE_SEED).choice(n_vocab, N_PROBE, replace=False))
    with open(model_path, "rb") as f:
        digest = hashlib.sha256(f.read()).digest()

    listing, bodies, gaps = [], [], []
    for name, text in prompts(chat):
        ids = tokenizer.encode(text, add_special_tokens=False)
        answer, rows = greedy_rows(model, ids)
        if not np.isfinite(rows).all():
            raise SystemExit(f"{name}: a logit is not finite")
        body = struct.pack("<24sII", name.encode(), len(ids), 0) + np.array(ids, "<u2").tobytes()
        body += b"\0" * (-len(body) % 4)
        mine = []
        for row, token in zip(rows, answer):
            top = top_of(row)
            assert top[0] == token
            mine.append(float(row[top[0]] - row[top[1]]))
            body += top.astype("<u2").tobytes() + row[top].astype("<f4").tobytes()
            body += struct.pack("<f", log_sum_exp(row)) + row[probe].astype("<f4").tobytes()
        bodies.append(body)
        gaps += mine
        entry = {"name": name, "text": text, "ids": ids, "answer_ids": answer, "answer_text": tokenizer.decode(answer)}
        listing.append(entry)
        if name == "sky":
            sky = {"question": "Why is the sky blue?", "system": SYSTEM, "text": text, "ids": ids, "answer_ids": answer[:32],
                   "answer_text": tokenizer.decode(answer[:32]), "gaps": [round(g, 5) for g in mine[:32]]}
        note = f" float64 differs by {deviation_from_float64(model64, ids, answer, rows):.2e}" if model64 else ""
        print(f"{name:12} {len(ids):5} tokens, smallest gap {min(mine):.5f}{note}\n    ...{text[-60:]!r}\n    -> {entry['answer_text']!r}", flush=True)

    header = struct.pack("<8s6I32s", b"BTGOLDEN", 1, n_vocab, len(bodies), N_STEPS, N_TOP, N_PROBE, digest)
    with open(os.path.join(out_dir, "smollm2.bin"), "wb") as f:
        f.write(header + probe.astype("<u2").tobytes() + b"".join(bodies))
    with open(os.path.join(out_dir, "prompts.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(e, ensure_ascii=False) for e in listing) + "\n]\n")
    with open(os.path.join(out_dir, "sky.json"), "w", encoding="utf-8") as f:
        json.dump(sky, f, ensure_ascii=False, indent=1)
        f.write("\n")
    gaps = np.array(gaps)
    print(f"{len(listing)} prompts, {gaps.size} positions; gap: median {np.median(gaps):.3f}, "
          f"below 0.1: {(gaps < 0.1).sum()}, below 2e-3: {(gaps < 2e-3).sum()}, smallest {gaps.min():.2e}")


if __name__ == "__main__":
    main()
