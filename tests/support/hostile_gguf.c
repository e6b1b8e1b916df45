/* SPDX-License-Identifier: Apache-2.0 */
/* Three groups. A row of `changes` writes the model with one key or tensor changed; a row of
 * `patches` overwrites a field of the right file behind a name; the rest are the right file cut
 * at even distances, and damaged by bt_mutate(). */
#include "tests/support/hostile_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "engine/gguf.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/mutation.h"

enum { DIM = 16, FFN = 24, VOCAB = 8, N_CUTS = 30, N_MUTATIONS = 60, FLOATS_MAX = FFN * DIM * 2 };

typedef enum op {
    SET,  /* the key has this type and value instead */
    DROP, /* the key or tensor is left out */
    TWICE,
    LIST,  /* the key is an array of n elements of this type, all zero (or empty strings) */
    TEXT,  /* the key is this string */
    SHAPE, /* the tensor has these dimensions, and data to match */
    FILL,  /* every float of the tensor is this one (bits) */
    EXTRA, /* one tensor more */
} op;

typedef struct change {
    const char *name;
    op op;
    const char *key; /* or tensor */
    uint32_t type;   /* bt_gguf_value_type or bt_gguf_type */
    uint64_t value;  /* or number of elements */
    const char *text;
    uint64_t dims[3];
    const char *says;
} change;

#define U32 BT_GGUF_VALUE_U32
#define F32 BT_GGUF_VALUE_F32
#define HEADS "llama.attention.head_count"
#define KV_HEADS "llama.attention.head_count_kv"
#define KEY_LENGTH "llama.attention.key_length"
#define EPSILON "llama.attention.layer_norm_rms_epsilon"
#define ROPE_DIMS "llama.rope.dimension_count"
#define ROPE_BASE "llama.rope.freq_base"
#define TOKENS "tokenizer.ggml.tokens"
#define KINDS "tokenizer.ggml.token_type"
#define MERGES "tokenizer.ggml.merges"

static const change changes[] = {
    {"architecture is missing", DROP, "general.architecture", .says = "general.architecture"},
    {"architecture is unknown", TEXT, "general.architecture", .text = "mamba", .says = "mamba"},
    {"architecture is empty", TEXT, "general.architecture", .text = "", .says = "architecture"},
    {"architecture drives a terminal", TEXT, "general.architecture", .text = "\033[2J\nllama",
     .says = "architecture"},
    {"architecture is a number", SET, "general.architecture", U32, 7, .says = "architecture"},
    {"architecture is a list", LIST, "general.architecture", BT_GGUF_VALUE_STRING, 2,
     .says = "architecture"},
    {"one of two shards", SET, "split.count", U32, 2, .says = "shards"},
    {"shards without end", SET, "split.count", U32, UINT32_MAX, .says = "shards"},
    {"shards are text", TEXT, "split.count", .text = "1", .says = "split.count"},
    {"experts", SET, "llama.expert_count", U32, 8, .says = "experts"},
    {"block_count is missing", DROP, "llama.block_count", .says = "llama.block_count"},
    {"block_count is 0", SET, "llama.block_count", U32, 0, .says = "llama.block_count"},
    {"block_count is 2", SET, "llama.block_count", U32, 2, .says = "blk.1."},
    {"block_count is 1000", SET, "llama.block_count", U32, 1000, .says = "blk.1."},
    {"block_count is huge", SET, "llama.block_count", U32, UINT32_MAX, .says = "block_count"},
    {"block_count is negative", SET, "llama.block_count", BT_GGUF_VALUE_I32, UINT32_MAX,
     .says = "block_count"},
    {"block_count has 64 bits", SET, "llama.block_count", BT_GGUF_VALUE_U64, UINT64_MAX,
     .says = "block_count"},
    {"block_count is a float", SET, "llama.block_count", F32, 0x3F800000, .says = "block_count"},
    {"block_count is a list", LIST, "llama.block_count", U32, 1, .says = "block_count"},
    {"embedding_length is missing", DROP, "llama.embedding_length", .says = "embedding_length"},
    {"embedding_length is 0", SET, "llama.embedding_length", U32, 0, .says = "embedding_length"},
    {"embedding_length is 1", SET, "llama.embedding_length", U32, 1, .says = ""},
    {"embedding_length is 17", SET, "llama.embedding_length", U32, 17, .says = "token_embd"},
    {"embedding_length is huge", SET, "llama.embedding_length", U32, UINT32_MAX,
     .says = "embedding_length"},
    {"feed_forward_length is missing", DROP, "llama.feed_forward_length", .says = "feed_forward"},
    {"feed_forward_length is 0", SET, "llama.feed_forward_length", U32, 0, .says = "feed_forward"},
    {"feed_forward_length is 25", SET, "llama.feed_forward_length", U32, 25, .says = "ffn_"},
    {"feed_forward_length is huge", SET, "llama.feed_forward_length", U32, 0x80000000,
     .says = "feed_forward"},
    {"context_length is missing", DROP, "llama.context_length", .says = "context_length"},
    {"context_length is 0", SET, "llama.context_length", U32, 0, .says = "context_length"},
    {"context_length is huge", SET, "llama.context_length", U32, INT32_MAX, .says = "context"},
    {"context_length is 2^32-1", SET, "llama.context_length", U32, UINT32_MAX, .says = "context"},
    {"context_length is 2^25", SET, "llama.context_length", U32, 1 << 25, .says = "context"},
    {"context_length has 64 bits", SET, "llama.context_length", BT_GGUF_VALUE_U64, 1ULL << 40,
     .says = "context"},
    {"head_count is missing", DROP, HEADS, .says = "head_count"},
    {"head_count is 0", SET, HEADS, U32, 0, .says = "head_count"},
    {"head_count is 3", SET, HEADS, U32, 3, .says = "attn_q"},
    {"head_count is 4", SET, HEADS, U32, 4, .says = "attn_q"},
    {"head_count is 1024", SET, HEADS, U32, 1024, .says = "attn_q"},
    {"head_count is huge", SET, HEADS, U32, UINT32_MAX, .says = "head_count"},
    {"head_count is a list", LIST, HEADS, U32, 1, .says = "head_count"},
    {"head_count_kv is 0", SET, KV_HEADS, U32, 0, .says = "heads"},
    {"head_count_kv is 2", SET, KV_HEADS, U32, 2, .says = "attn_k"},
    {"head_count_kv is huge", SET, KV_HEADS, U32, UINT32_MAX, .says = "heads"},
    {"key_length is 0", SET, KEY_LENGTH, U32, 0, .says = "head size"},
    {"key_length is 7", SET, KEY_LENGTH, U32, 7, .says = "head size"},
    {"key_length is 10", SET, KEY_LENGTH, U32, 10, .says = ""},
    {"key_length is 258", SET, KEY_LENGTH, U32, 258, .says = "head size"},
    {"key_length is huge", SET, KEY_LENGTH, U32, UINT32_MAX - 1, .says = "head size"},
    {"epsilon is missing", DROP, EPSILON, .says = "epsilon"},
    {"epsilon is NaN", SET, EPSILON, F32, 0x7FC00000, .says = "epsilon"},
    {"epsilon is infinite", SET, EPSILON, F32, 0x7F800000, .says = "epsilon"},
    {"epsilon is negative", SET, EPSILON, F32, 0xBF800000, .says = "epsilon"},
    {"epsilon is a whole number", SET, EPSILON, U32, 1, .says = "epsilon"},
    {"rope: 0 dimensions", SET, ROPE_DIMS, U32, 0, .says = "dimension_count"},
    {"rope: 7 dimensions", SET, ROPE_DIMS, U32, 7, .says = "dimension_count"},
    {"rope: more dimensions than a head", SET, ROPE_DIMS, U32, 10, .says = "dimension_count"},
    {"rope: huge dimensions", SET, ROPE_DIMS, U32, UINT32_MAX - 1, .says = "dimension_count"},
    {"rope: base is 0", SET, ROPE_BASE, F32, 0, .says = "freq_base"},
    {"rope: base is 1", SET, ROPE_BASE, F32, 0x3F800000, .says = "freq_base"},
    {"rope: base is NaN", SET, ROPE_BASE, F32, 0x7FC00000, .says = "freq_base"},
    {"rope: base is negative", SET, ROPE_BASE, F32, 0xC61C4000, .says = "freq_base"},
    {"rope: scaling is unknown", TEXT, "llama.rope.scaling.type", .text = "longrope",
     .says = "longrope"},
    {"rope: scaling is a number", SET, "llama.rope.scaling.type", U32, 1, .says = "scaling.type"},
    {"rope: factor is 0", SET, "llama.rope.scale_linear", F32, 0, .says = "scaling"},
    {"rope: factor is NaN", SET, "llama.rope.scale_linear", F32, 0x7FC00000,
     .says = "scale_linear"},
    {"yarn without its context", TEXT, "llama.rope.scaling.type", .text = "yarn",
     .says = "original_context_length"},
    {"alignment is 0", SET, "general.alignment", U32, 0, .says = "alignment"},
    {"alignment is 24", SET, "general.alignment", U32, 24, .says = "alignment"},
    {"alignment is 1", SET, "general.alignment", U32, 1, .says = "alignment"},
    {"alignment is 2^31", SET, "general.alignment", U32, 0x80000000, .says = "alignment"},
    {"alignment is 4096", SET, "general.alignment", U32, 4096, .says = "multiple"},
    {"alignment is text", TEXT, "general.alignment", .text = "32", .says = "alignment"},
    {"a key is there twice", TWICE, "llama.context_length", .says = "twice"},
    {"tokenizer model is missing", DROP, "tokenizer.ggml.model", .says = "tokenizer.ggml.model"},
    {"tokenizer model is unknown", TEXT, "tokenizer.ggml.model", .text = "bert", .says = "bert"},
    {"tokenizer model is another", TEXT, "tokenizer.ggml.model", .text = "llama",
     .says = "tokenizer.ggml.scores"},
    {"tokenizer pre is missing", DROP, "tokenizer.ggml.pre", .says = "tokenizer.ggml.pre"},
    {"tokenizer pre is unknown", TEXT, "tokenizer.ggml.pre", .text = "tekken", .says = "tekken"},
    {"tokens are missing", DROP, TOKENS, .says = "tokenizer.ggml.tokens"},
    {"no tokens", LIST, TOKENS, BT_GGUF_VALUE_STRING, 0, .says = "tokenizer.ggml.tokens"},
    {"one token", LIST, TOKENS, BT_GGUF_VALUE_STRING, 1, .says = "token_type"},
    {"empty tokens", LIST, TOKENS, BT_GGUF_VALUE_STRING, VOCAB, .says = "merges"},
    {"tokens are numbers", LIST, TOKENS, U32, VOCAB, .says = "tokenizer.ggml.tokens"},
    {"more tokens than rows", LIST, TOKENS, BT_GGUF_VALUE_STRING, 100000, .says = "token_type"},
    {"token types are zero", LIST, KINDS, BT_GGUF_VALUE_I32, VOCAB, .says = "token_type"},
    {"token types are few", LIST, KINDS, BT_GGUF_VALUE_I32, 1, .says = "token_type"},
    {"token types are floats", LIST, KINDS, F32, VOCAB, .says = "token_type"},
    {"merges are missing", DROP, MERGES, .says = "merges"},
    {"merges are empty texts", LIST, MERGES, BT_GGUF_VALUE_STRING, 3, .says = "merges"},
    {"merges are numbers", LIST, MERGES, BT_GGUF_VALUE_I32, 3, .says = "merges"},
    {"EOS is past the vocabulary", SET, "tokenizer.ggml.eos_token_id", U32, VOCAB,
     .says = "eos_token_id"},
    {"EOS is negative", SET, "tokenizer.ggml.eos_token_id", BT_GGUF_VALUE_I32, UINT32_MAX,
     .says = "eos_token_id"},
    {"EOS is a list", LIST, "tokenizer.ggml.eos_token_id", U32, 2, .says = "eos_token_id"},
    {"BOS is huge", SET, "tokenizer.ggml.bos_token_id", U32, UINT32_MAX, .says = "bos_token_id"},
    {"EOT is past the vocabulary", SET, "tokenizer.ggml.eot_token_id", U32, 1000,
     .says = "eot_token_id"},
    {"add_bos without BOS", SET, "tokenizer.ggml.add_bos_token", BT_GGUF_VALUE_BOOL, 1,
     .says = "BOS"},
    {"add_bos is a number", SET, "tokenizer.ggml.add_bos_token", U32, 1, .says = "add_bos_token"},
    {"template is unknown", TEXT, "tokenizer.chat_template", .text = "{{ system('id') }}",
     .says = "template"},
    {"template is empty", TEXT, "tokenizer.chat_template", .text = "", .says = "template"},
    {"template is a number", SET, "tokenizer.chat_template", U32, 5, .says = "chat_template"},
    {"template needs tokens that are not there", TEXT, "tokenizer.chat_template",
     .text = "{{ '<|start_header_id|>' }}{{ '<|eot_id|>' }}", .says = "template"},
    {"embedding is missing", DROP, "token_embd.weight", .says = "token_embd"},
    {"embedding is there twice", TWICE, "token_embd.weight", .says = "twice"},
    {"embedding is a vector", SHAPE, "token_embd.weight", BT_GGUF_F32, .dims = {DIM},
     .says = "vocabulary"},
    {"embedding has other rows", SHAPE, "token_embd.weight", BT_GGUF_F32, .dims = {DIM, VOCAB + 3},
     .says = "8 tokens"},
    {"embedding has fewer rows than EOS", SHAPE, "token_embd.weight", BT_GGUF_F32, .dims = {DIM, 2},
     .says = "vocabulary"},
    {"embedding has three dimensions", SHAPE, "token_embd.weight", BT_GGUF_F32,
     .dims = {DIM, VOCAB, 2}, .says = "token_embd"},
    {"embedding is of integers", SHAPE, "token_embd.weight", BT_GGUF_I32, .dims = {DIM, VOCAB},
     .says = "I32"},
    {"embedding is of doubles", SHAPE, "token_embd.weight", BT_GGUF_F64, .dims = {DIM, VOCAB},
     .says = "F64"},
    {"norm is missing", DROP, "output_norm.weight", .says = "output_norm"},
    {"norm is of halves", SHAPE, "output_norm.weight", BT_GGUF_F16, .dims = {DIM}, .says = "F16"},
    {"norm is a matrix", SHAPE, "output_norm.weight", BT_GGUF_F32, .dims = {DIM, 2},
     .says = "output_norm"},
    {"output is of another shape", EXTRA, "output.weight", BT_GGUF_F32, .dims = {DIM, VOCAB + 1},
     .says = "output.weight"},
    {"q is missing", DROP, "blk.0.attn_q.weight", .says = "attn_q"},
    {"q is of another shape", SHAPE, "blk.0.attn_q.weight", BT_GGUF_F32, .dims = {DIM + 1, DIM},
     .says = "attn_q"},
    {"k has the shape of q", SHAPE, "blk.0.attn_k.weight", BT_GGUF_F32, .dims = {DIM, DIM},
     .says = "attn_k"},
    {"v is of a type without kernel", SHAPE, "blk.0.attn_v.weight", BT_GGUF_I8,
     .dims = {DIM, DIM / 2}, .says = "I8"},
    {"down is transposed", SHAPE, "blk.0.ffn_down.weight", BT_GGUF_F32, .dims = {DIM, FFN},
     .says = "ffn_down"},
    {"gate is missing", DROP, "blk.0.ffn_gate.weight", .says = "ffn_gate"},
    {"norm of a layer is long", SHAPE, "blk.0.ffn_norm.weight", BT_GGUF_F32, .dims = {DIM * 2},
     .says = "ffn_norm"},
    {"a bias", EXTRA, "blk.0.attn_q.bias", BT_GGUF_F32, .dims = {DIM}, .says = "attn_q.bias"},
    {"a layer too many", EXTRA, "blk.1.attn_q.weight", BT_GGUF_F32, .dims = {DIM, DIM},
     .says = "blk.1.attn_q"},
    {"a layer of a huge number", EXTRA, "blk.4294967296.attn_q.weight", BT_GGUF_F32,
     .dims = {DIM, DIM}, .says = "blk.4294967296"},
    {"a layer of number -1", EXTRA, "blk.-1.attn_q.weight", BT_GGUF_F32, .dims = {DIM, DIM},
     .says = "blk.-1"},
    {"a layer of number 00", EXTRA, "blk.00.attn_q.weight", BT_GGUF_F32, .dims = {DIM, DIM},
     .says = "blk.00"},
    {"rope factors are few", EXTRA, "rope_freqs.weight", BT_GGUF_F32, .dims = {3},
     .says = "rope_freqs"},
    {"rope factors are 0", EXTRA, "rope_freqs.weight", BT_GGUF_F32, .dims = {4},
     .says = "rope_freqs"},
    {"embedding is NaN", FILL, "token_embd.weight", .value = 0x7FC00000},
    {"embedding is infinite", FILL, "token_embd.weight", .value = 0x7F800000},
    {"norm is NaN", FILL, "output_norm.weight", .value = 0xFFC00000},
    {"q is the largest float", FILL, "blk.0.attn_q.weight", .value = 0x7F7FFFFF},
    {"v is NaN", FILL, "blk.0.attn_v.weight", .value = 0x7FC00000},
    {"down is denormal", FILL, "blk.0.ffn_down.weight", .value = 1},
};

/* ---- the model ---- */

typedef struct key {
    const char *name;
    uint32_t type; /* STRING: text, ARRAY: of texts (kind 0) or numbers */
    uint32_t value;
    const char *text;
} key;

static const key keys[] = {
    {"general.architecture", BT_GGUF_VALUE_STRING, 0, "llama"},
    {"llama.block_count", U32, 1, NULL},
    {"llama.embedding_length", U32, DIM, NULL},
    {"llama.feed_forward_length", U32, FFN, NULL},
    {"llama.context_length", U32, 64, NULL},
    {HEADS, U32, 2, NULL},
    {KV_HEADS, U32, 1, NULL},
    {KEY_LENGTH, U32, 8, NULL},
    {ROPE_DIMS, U32, 8, NULL},
    {EPSILON, F32, 0x3727C5AC, NULL},
    {ROPE_BASE, F32, 0x461C4000, NULL},
    {"tokenizer.ggml.model", BT_GGUF_VALUE_STRING, 0, "gpt2"},
    {"tokenizer.ggml.pre", BT_GGUF_VALUE_STRING, 0, "smollm"},
    {TOKENS, BT_GGUF_VALUE_ARRAY, 0, NULL},
    {KINDS, BT_GGUF_VALUE_ARRAY, 0, NULL},
    {MERGES, BT_GGUF_VALUE_ARRAY, 0, NULL},
    {"tokenizer.ggml.eos_token_id", U32, 4, NULL},
    {"tokenizer.chat_template", BT_GGUF_VALUE_STRING, 0,
     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
     "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
     "{{ '<|im_start|>assistant\\n' }}{% endif %}"},
};

static const struct tensor {
    const char *name;
    uint64_t dims[2];
} tensors[] = {
    {"token_embd.weight", {DIM, VOCAB}},      {"output_norm.weight", {DIM}},
    {"blk.0.attn_norm.weight", {DIM}},        {"blk.0.attn_q.weight", {DIM, DIM}},
    {"blk.0.attn_k.weight", {DIM, DIM / 2}},  {"blk.0.attn_v.weight", {DIM, DIM / 2}},
    {"blk.0.attn_output.weight", {DIM, DIM}}, {"blk.0.ffn_norm.weight", {DIM}},
    {"blk.0.ffn_gate.weight", {DIM, FFN}},    {"blk.0.ffn_up.weight", {DIM, FFN}},
    {"blk.0.ffn_down.weight", {FFN, DIM}},
};

static const uint8_t value_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};

static void add_number(bt_gguf_writer *writer, const char *name, uint32_t type, uint64_t value)
{
    uint8_t raw[8];
    for (size_t i = 0; i < sizeof raw; i++) {
        raw[i] = (uint8_t)(value >> (8 * i));
    }
    bt_gguf_writer_add_raw(writer, name, type, raw, value_bytes[type]);
}

/* n elements, all zero: a string of length 0 is zeros as well. */
static void add_list(bt_gguf_writer *writer, const char *name, uint32_t type, uint64_t n)
{
    const size_t len = 12 + (size_t)n * value_bytes[type];
    uint8_t *raw = calloc(1, len);
    BT_ASSERT(raw != NULL);
    memcpy(raw, &type, 4);
    memcpy(raw + 4, &n, 8);
    bt_gguf_writer_add_raw(writer, name, BT_GGUF_VALUE_ARRAY, raw, len);
    free(raw);
}

static void add_key(bt_gguf_writer *writer, const key *row)
{
    static const char *const tokens[VOCAB] = {"a",          "b",        "ab", "<|im_start|>",
                                              "<|im_end|>", "\304\240", "c",  "\304\212"};
    static const int32_t kinds[VOCAB] = {1, 1, 1, 3, 3, 1, 1, 1};
    static const char *const merges[] = {"a b"};
    if (row->type == BT_GGUF_VALUE_STRING) {
        bt_gguf_writer_add_string(writer, row->name, row->text);
    } else if (row->type != BT_GGUF_VALUE_ARRAY) {
        add_number(writer, row->name, row->type, row->value);
    } else if (strcmp(row->name, TOKENS) == 0) {
        bt_gguf_writer_add_strings(writer, TOKENS, tokens, VOCAB);
    } else if (strcmp(row->name, KINDS) == 0) {
        bt_gguf_writer_add_i32s(writer, KINDS, kinds, VOCAB);
    } else {
        bt_gguf_writer_add_strings(writer, MERGES, merges, 1);
    }
}

static void add_changed_key(bt_gguf_writer *writer, const change *c)
{
    if (c->op == SET) {
        add_number(writer, c->key, c->type, c->value);
    } else if (c->op == LIST) {
        add_list(writer, c->key, c->type, c->value);
    } else if (c->op == TEXT) {
        bt_gguf_writer_add_string(writer, c->key, c->text);
    }
}

static void add_keys(bt_gguf_writer *writer, const change *c)
{
    bool found = false;
    for (size_t i = 0; i < BT_ARRAY_LEN(keys); i++) {
        const bool is_it = c && strcmp(c->key, keys[i].name) == 0;
        found = found || is_it;
        if (is_it && c->op != TWICE) {
            add_changed_key(writer, c);
            continue;
        }
        add_key(writer, &keys[i]);
        if (is_it) {
            add_key(writer, &keys[i]);
        }
    }
    if (c && !found) {
        add_changed_key(writer, c);
    }
}

static void add_tensor(bt_gguf_writer *writer, const char *name, uint32_t type,
                       const uint64_t *dims, const change *fill)
{
    float values[FLOATS_MAX];
    const uint32_t n_dims = dims[1] == 0 ? 1 : dims[2] == 0 ? 2 : 3;
    uint64_t state = 5;
    for (size_t i = 0; i < FLOATS_MAX; i++) {
        values[i] = (float)(int64_t)bt_mutation_random(&state) * 0x1p-65F;
        if (fill) {
            memcpy(&values[i], &fill->value, sizeof values[i]);
        }
        if (strcmp(name, "rope_freqs.weight") == 0) {
            values[i] = 0;
        }
    }
    bt_gguf_writer_add_tensor(writer, name, (bt_gguf_type)type, dims, n_dims, values);
}

static void add_tensors(bt_gguf_writer *writer, const change *c)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(tensors); i++) {
        const uint64_t dims[3] = {tensors[i].dims[0], tensors[i].dims[1]};
        const bool is_it = c && strcmp(c->key, tensors[i].name) == 0;
        if (is_it && c->op == DROP) {
            continue;
        }
        if (is_it && c->op == SHAPE) {
            add_tensor(writer, c->key, c->type, c->dims, NULL);
            continue;
        }
        const change *fill = is_it && c->op == FILL ? c : NULL;
        add_tensor(writer, tensors[i].name, BT_GGUF_F32, dims, fill);
        if (is_it && c->op == TWICE) {
            add_tensor(writer, tensors[i].name, BT_GGUF_F32, dims, NULL);
        }
    }
    if (c && c->op == EXTRA) {
        add_tensor(writer, c->key, c->type, c->dims, NULL);
    }
}

static bt_status make_model(const change *c, uint8_t **bytes, size_t *len)
{
    bt_gguf_writer *writer = bt_gguf_writer_begin();
    if (!writer) {
        return BT_ENOMEM;
    }
    add_keys(writer, c);
    add_tensors(writer, c);
    return bt_gguf_writer_finish_bytes(writer, bytes, len);
}

bt_status bt_hostile_gguf_make_right(uint8_t **bytes, size_t *len)
{
    return make_model(NULL, bytes, len);
}

/* ---- patches ---- */

/* Behind a key's name stand type (4 bytes) and value; behind a matrix's name n_dims (4), two
 * dimensions (8 each), type (4) and offset (8). */
typedef struct patch {
    const char *name;
    const char *after; /* a name; NULL: the file's start */
    size_t skip;
    uint64_t value;
    size_t n_bytes;
    const char *says;
} patch;

#define UP "blk.0.ffn_up.weight"

static const patch patches[] = {
    {"magic is wrong", NULL, 0, 0x46554747 + 1, 4, "not a GGUF file"},
    {"magic is that of GGML", NULL, 0, 0x67676D6C, 4, "not a GGUF file"},
    {"magic is that of a ZIP", NULL, 0, 0x04034B50, 4, "not a GGUF file"},
    {"version is 0", NULL, 4, 0, 4, "version"},
    {"version is 1", NULL, 4, 1, 4, "version"},
    {"version is 4", NULL, 4, 4, 4, "version"},
    {"version is big-endian", NULL, 4, 0x03000000, 4, "big-endian"},
    {"version is huge", NULL, 4, UINT32_MAX, 4, "version"},
    {"no tensors", NULL, 8, 0, 8, "token_embd"},
    {"a tensor too few", NULL, 8, 10, 8, "ffn_down"},
    {"a tensor too many", NULL, 8, 12, 8, "tensor"},
    {"tensors without end", NULL, 8, UINT64_MAX, 8, "tensors"},
    {"2^32 tensors", NULL, 8, 1ULL << 32, 8, "tensors"},
    {"2^61 tensors", NULL, 8, 1ULL << 61, 8, "tensors"},
    {"no keys", NULL, 16, 0, 8, "tensor"},
    {"a key too few", NULL, 16, 17, 8, "tensor"},
    {"a key too many", NULL, 16, 19, 8, ""},
    {"keys without end", NULL, 16, UINT64_MAX, 8, "keys"},
    {"2^60 keys", NULL, 16, 1ULL << 60, 8, "keys"},
    {"first key has no name", NULL, 24, 0, 8, "key 0"},
    {"first key's name is longer than the file", NULL, 24, 1ULL << 40, 8, "key 0"},
    {"first key's name wraps around", NULL, 24, UINT64_MAX - 23, 8, "key 0"},
    {"type of a key is 13", HEADS, 0, 13, 4, HEADS},
    {"type of a key is huge", HEADS, 0, UINT32_MAX, 4, HEADS},
    {"a number becomes text", HEADS, 0, BT_GGUF_VALUE_STRING, 4, HEADS},
    {"a number becomes a list", HEADS, 0, BT_GGUF_VALUE_ARRAY, 4, "key"},
    {"a number becomes wide", HEADS, 0, BT_GGUF_VALUE_U64, 4, "key"},
    {"a text is longer than the file", "tokenizer.ggml.pre", 4, 1ULL << 30, 8, "pre"},
    {"a text wraps around", "tokenizer.ggml.pre", 4, UINT64_MAX, 8, "pre"},
    {"a text is 2^63 long", "tokenizer.ggml.pre", 4, 1ULL << 63, 8, "pre"},
    {"a list of lists", TOKENS, 4, BT_GGUF_VALUE_ARRAY, 4, "arrays of arrays"},
    {"a list of unknown type", TOKENS, 4, 99, 4, TOKENS},
    {"a list without end", TOKENS, 8, UINT64_MAX, 8, TOKENS},
    {"a list of 2^61", TOKENS, 8, 1ULL << 61, 8, TOKENS},
    {"a list of one more", TOKENS, 8, VOCAB + 1, 8, ""},
    {"a text in a list wraps around", TOKENS, 16, UINT64_MAX - 7, 8, TOKENS},
    {"numbers of a list without end", KINDS, 8, 1ULL << 62, 8, KINDS},
    {"numbers of a list wrap around", KINDS, 8, (1ULL << 62) + 2, 8, KINDS},
    {"a tensor of 0 dimensions", UP, 0, 0, 4, "0 dimensions"},
    {"a tensor of 5 dimensions", UP, 0, 5, 4, "5 dimensions"},
    {"a tensor of 2^32-1 dimensions", UP, 0, UINT32_MAX, 4, "dimensions"},
    {"a tensor without columns", UP, 4, 0, 8, "dimension 0 is 0"},
    {"a tensor without rows", UP, 12, 0, 8, "dimension 1 is 0"},
    {"a dimension is 2^64-1", UP, 4, UINT64_MAX, 8, "product"},
    {"dimensions wrap around to right ones", UP, 4, (1ULL << 60) + DIM, 8, "product"},
    {"rows wrap around in bytes", UP, 12, 1ULL << 58, 8, "its size"},
    {"a tensor of a terabyte", UP, 12, 1ULL << 34, 8, "end past"},
    {"a tensor of unknown type", UP, 20, 4, 4, "unknown type"},
    {"a tensor of huge type", UP, 20, UINT32_MAX, 4, "unknown type"},
    {"a tensor of blocks that do not fit", UP, 20, BT_GGUF_Q4_0, 4, "blocks of 32"},
    {"a tensor of larger blocks", UP, 20, BT_GGUF_Q6_K, 4, "blocks of 256"},
    {"a tensor of wider numbers", UP, 20, BT_GGUF_I64, 4, "overlaps"},
    {"a tensor of halves", UP, 20, BT_GGUF_F16, 4, NULL},
    {"a tensor of bytes", UP, 20, BT_GGUF_I8, 4, "I8"},
    {"an offset is odd", UP, 24, 1, 8, "multiple"},
    {"an offset is 2^64-32", UP, 24, UINT64_MAX - 31, 8, "end past"},
    {"an offset is past the end", UP, 24, 1ULL << 20, 8, "end past"},
    {"all at one offset", UP, 24, 0, 8, "overlaps"},
    {"two overlap by half", UP, 24, 32, 8, "overlaps"},
    {"last tensor hangs over the end", "blk.0.ffn_down.weight", 24, 1ULL << 13, 8, "end past"},
};

static bool find_name(const uint8_t *bytes, size_t len, const char *name, size_t *after)
{
    const uint64_t name_len = strlen(name);
    for (size_t at = 0; at + 8 + name_len <= len; at++) {
        if (memcmp(bytes + at, &name_len, 8) == 0 && memcmp(bytes + at + 8, name, name_len) == 0) {
            *after = at + 8 + name_len;
            return true;
        }
    }
    return false;
}

static void apply(const patch *row, uint8_t *bytes, size_t len)
{
    size_t at = 0;
    BT_ASSERT(!row->after || find_name(bytes, len, row->after, &at));
    at += row->skip;
    BT_ASSERT(at + row->n_bytes <= len);
    for (size_t i = 0; i < row->n_bytes; i++) {
        bytes[at + i] = (uint8_t)(row->value >> (8 * i));
    }
}

/* ---- all of them ---- */

size_t bt_hostile_gguf_count(void)
{
    return BT_ARRAY_LEN(changes) + BT_ARRAY_LEN(patches) + N_CUTS + N_MUTATIONS;
}

bt_status bt_hostile_gguf_make(size_t idx, bt_hostile_gguf *out)
{
    bt_hostile_gguf made = {.says = NULL};
    const bool is_change = idx < BT_ARRAY_LEN(changes);
    bt_status status = make_model(is_change ? &changes[idx] : NULL, &made.bytes, &made.len);
    if (status != BT_OK) {
        return status;
    }
    if (is_change) {
        (void)snprintf(made.name, sizeof made.name, "%s", changes[idx].name);
        made.says = changes[idx].says;
        *out = made;
        return BT_OK;
    }
    idx -= BT_ARRAY_LEN(changes);
    if (idx < BT_ARRAY_LEN(patches)) {
        (void)snprintf(made.name, sizeof made.name, "%s", patches[idx].name);
        made.says = patches[idx].says;
        apply(&patches[idx], made.bytes, made.len);
        *out = made;
        return BT_OK;
    }
    idx -= BT_ARRAY_LEN(patches);
    if (idx < N_CUTS) {
        made.len = made.len * idx / N_CUTS;
        made.says = "";
        (void)snprintf(made.name, sizeof made.name, "cut at byte %zu", made.len);
        *out = made;
        return BT_OK;
    }
    idx -= N_CUTS;
    BT_ASSERT(idx < N_MUTATIONS);
    uint8_t *grown = realloc(made.bytes, made.len * 2);
    if (!grown) {
        free(made.bytes);
        return BT_ENOMEM;
    }
    made.bytes = grown;
    made.len = bt_mutate(made.bytes, made.len, made.len * 2, idx);
    (void)snprintf(made.name, sizeof made.name, "mutation %zu", idx);
    *out = made;
    return BT_OK;
}
