/* SPDX-License-Identifier: Apache-2.0 */
/* make_seeds FOLDER - writes the seeds of every fuzz target, from valid inputs: FOLDER/TARGET/NAME.
 * tests/fuzz/make_seeds runs it over tests/fuzz/corpus. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/check.h"
#include "kvtransfer/frame.h"
#include "proto/generation.pb-c.h"
#include "proto/link_int.h"
#include "tests/engine/chat_vectors.h"
#include "tests/engine/tokenizer_vectors.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tokenizer_file.h"

enum { PATH_BYTES = 512, SEED_BYTES_MAX = 1 << 16 };

static const char *folder;

typedef struct seed {
    uint8_t bytes[SEED_BYTES_MAX];
    size_t len;
} seed;

static void put(seed *to, const void *bytes, size_t len)
{
    BT_ASSERT(len <= sizeof to->bytes - to->len);
    memcpy(to->bytes + to->len, bytes, len);
    to->len += len;
}

static void put_u8(seed *to, uint8_t byte)
{
    put(to, &byte, 1);
}

static void put_text(seed *to, const char *text)
{
    put(to, text, strlen(text));
}

static void write_bytes(const char *target, const char *name, const void *bytes, size_t len)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", folder, target);
    (void)mkdir(path, 0777);
    (void)snprintf(path, sizeof path, "%s/%s/%s", folder, target, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, len, file) != len || fclose(file) != 0) {
        fprintf(stderr, "make_seeds: cannot write '%s'\n", path);
        exit(1);
    }
}

static void write_seed(const char *target, const char *name, const seed *from)
{
    write_bytes(target, name, from->bytes, from->len);
}

/* ---- text ---- */

static void write_texts(void)
{
    static const struct {
        const char *target;
        const char *name;
        const char *text;
        size_t len;
    } rows[] = {
#define TEXT(target, name, text) {target, name, text, sizeof(text) - 1}
        TEXT("json", "chat",
             "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e9llo\"}],"
             "\"temperature\":0.5,\"stop\":[\"a\",\"b\"],\"n\":1,\"stream\":true,\"x\":null}"),
        TEXT("json", "mixed", "[1,-2,3.5e10,\"\\ud83d\\ude00 \\u0000 \\n\",[[]],{\"a\":{}}]"),
        TEXT("http", "completion",
             "\0{\"model\":\"tiny\",\"prompt\":\"h\\u00e9llo\",\"max_tokens\":5,\"temperature\":0."
             "5,\"n\":2,"
             "\"stop\":[\"a\",\"b\"],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
             "\"logprobs\":2,\"echo\":true,\"seed\":7,\"logit_bias\":{\"5\":-1.5},\"user\":\"u\"}"),
        TEXT("http", "completion_ids",
             "\0{\"prompt\":[[1,2,3],[4,5]],\"top_p\":0.9,\"frequency_penalty\":1,"
             "\"presence_penalty\":-1,\"stop\":\"x\",\"best_of\":1,\"suffix\":null}"),
        TEXT("http", "completion_texts", "\0{\"prompt\":[\"a\",\"b\"],\"max_tokens\":0,\"n\":1}"),
        TEXT("http", "chat",
             "\1{\"model\":\"tiny\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
             "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi <|im_end|>\"}]}],"
             "\"max_completion_tokens\":5,\"logprobs\":true,\"top_logprobs\":3,\"stream\":false,"
             "\"response_format\":{\"type\":\"text\"},\"tools\":[],\"n\":1}"),
        TEXT("keys", "clients",
             "# who may come in\nalice 0123456789abcdef\nbob  fedcba9876543210 share # roles\n"
             "mon\t0000000000000000 metrics\n\nalice 1123456789abcdef\n\0Bearer 0123456789abcdef"),
        TEXT("keys", "any_case", "alice 0123456789abcdef\n\0bEARER  0123456789abcdef"),
        TEXT("keys", "hashed",
             "carol blake2b:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"
             "\0Bearer carol"),
        TEXT("config", "file",
             "text: 0.0.0.0:1\nflag: no\ncount: -2\nratio: 1e-3\npool_bytes: 2GiB\npause: 250ms\n"
             "kind: decode\nname: [a, b]\nfuzz:\n  count: 7\nother:\n  x: 1\n"),
        TEXT("config", "flags",
             "\0--text=\"x: y\"\0--no-flag\0--count\0-5\0--ratio=0.25\0--pool-bytes\0001.5G\0"
             "--pause\0002m\0--kind\0prefill\0--name\0a\0--name=b\0word"),
        TEXT("config", "quoted",
             "text: \"a\\tb # \\u00e9\"\nname:\n  - 'it''s'\n  - \"\"\n\0--print-config"),
        TEXT("config", "help", "count: 1\n\0--help"),
#undef TEXT
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        write_bytes(rows[i].target, rows[i].name, rows[i].text, rows[i].len);
    }
}

/* ---- model files ---- */

static void write_tiny_model(const char *name, const bt_tiny_model *model)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/gguf", folder);
    (void)mkdir(path, 0777);
    (void)snprintf(path, sizeof path, "%s/gguf/%s", folder, name);
    BT_ASSERT(bt_tiny_model_write(model, path) == BT_OK);
}

static void write_vocabulary(const char *name, const bt_tokenizer_file *file)
{
    bt_gguf *gguf = bt_tokenizer_file_open(file);
    BT_ASSERT(gguf != NULL);
    size_t len;
    const void *bytes = bt_gguf_file(gguf, &len);
    write_bytes("gguf", name, bytes, len);
    bt_gguf_close(gguf);
}

static void write_every_type(void)
{
    static const uint8_t raw[16] = {1};
    static const float f32s[] = {1, -2.5F};
    static const int32_t i32s[] = {-1, 2};
    static const char *const strings[] = {"a", "", "c"};
    static const uint64_t dims[] = {32, 2};
    static const uint8_t data[256];
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    bt_gguf_writer *writer = bt_gguf_writer_begin();
    bt_gguf_writer_set_alignment(writer, 64);
    for (uint32_t type = 0; type < BT_ARRAY_LEN(sizes); type++) {
        char key[16];
        (void)snprintf(key, sizeof key, "v.%u", type);
        if (sizes[type] > 0) {
            bt_gguf_writer_add_raw(writer, key, type, raw, sizes[type]);
        }
    }
    bt_gguf_writer_add_string(writer, "v.text", "text");
    bt_gguf_writer_add_strings(writer, "a.strings", strings, BT_ARRAY_LEN(strings));
    bt_gguf_writer_add_f32s(writer, "a.f32s", f32s, BT_ARRAY_LEN(f32s));
    bt_gguf_writer_add_i32s(writer, "a.i32s", i32s, BT_ARRAY_LEN(i32s));
    bt_gguf_writer_add_tensor(writer, "t.f32", BT_GGUF_F32, dims, 2, data);
    bt_gguf_writer_add_tensor(writer, "t.q4_0", BT_GGUF_Q4_0, dims, 2, data);
    bt_gguf_writer_add_tensor(writer, "t.q8_0", BT_GGUF_Q8_0, dims, 1, data);
    uint8_t *bytes;
    size_t len;
    BT_ASSERT(bt_gguf_writer_finish_bytes(writer, &bytes, &len) == BT_OK);
    write_bytes("gguf", "every_type", bytes, len);
    free(bytes);
}

static void write_models(void)
{
    static const bt_tiny_model tied = {.n_layers = 1,
                                       .dim = 8,
                                       .n_heads = 1,
                                       .n_kv_heads = 1,
                                       .head_dim = 8,
                                       .n_ffn = 8,
                                       .context = 64,
                                       .seed = 1,
                                       .tied = true};
    static const bt_tiny_model grouped = {.n_layers = 2,
                                          .dim = 6,
                                          .n_heads = 2,
                                          .n_kv_heads = 1,
                                          .head_dim = 4,
                                          .n_ffn = 10,
                                          .context = 64,
                                          .seed = 2,
                                          .tied = false};
    static const char *const specials[] = {"<|begin_of_text|>", "<|im_start|>", "<|im_end|>"};
    write_tiny_model("tied", &tied);
    write_tiny_model("grouped", &grouped);
    write_vocabulary("bpe", &(bt_tokenizer_file){.pre = "llama-bpe",
                                                 .merges = bpe_merges,
                                                 .n_merges = 16,
                                                 .specials = specials,
                                                 .n_specials = BT_ARRAY_LEN(specials),
                                                 .bos = "<|begin_of_text|>",
                                                 .eos = "<|im_end|>",
                                                 .chat_template = vector_templates[0].source,
                                                 .add_bos = true});
    write_vocabulary("spm", &(bt_tokenizer_file){.pieces = spm_pieces,
                                                 .n_pieces = BT_ARRAY_LEN(spm_pieces),
                                                 .bos = "<s>",
                                                 .eos = "</s>",
                                                 .add_bos = true});
    write_every_type();
}

/* ---- tokenizer and chat ---- */

static void write_tokenizer(void)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(vector_texts); i++) {
        seed made = {.len = 0};
        char name[32];
        (void)snprintf(name, sizeof name, "text_%zu", i);
        put_u8(&made, (uint8_t)(i % 8));
        put_u8(&made, (uint8_t)(i / 8));
        put(&made, vector_texts[i].bytes, bt_size_min(vector_texts[i].len, 2048));
        write_seed("tokenizer", name, &made);
    }
}

static void write_chats(void)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(vector_templates); i++) {
        const vector_template *row = &vector_templates[i];
        const vector_talk *talk = &vector_talks[i % BT_ARRAY_LEN(vector_talks)];
        const bool inst = strstr(row->source, "INST") != NULL;
        seed made = {.len = 0};
        put_u8(&made, (uint8_t)((inst ? 1 : 0) | 2));
        put_text(&made, row->source);
        put_u8(&made, 0xFF);
        for (size_t k = 0; k < talk->n; k++) {
            put_text(&made, talk->messages[k].role);
            put_u8(&made, 0xFE);
            put_text(&made, talk->messages[k].content);
            put_u8(&made, 0xFE);
        }
        write_seed("chat", row->name, &made);
    }
}

/* ---- frames ---- */

static const bt_hash128 wanted[2] = {{{1, 2}}, {{3, 4}}};

static void write_frames(void)
{
    static const uint32_t numbers[] = {7, 8, 9, 10};
    static const bt_plan_rect rect = {.block_idx = 1, .n_blocks = 2, .layer = 0, .n_layers = 2};
    bt_kv_terms terms = {0};
    BT_ASSERT(bt_kv_layout_init(&terms.layout, 2, 2, 8, BT_KV_FORMAT_BF16));
    for (int type = BT_FRAME_HELLO; type < BT_FRAME_TYPE_END; type++) {
        bt_frame frame = {.type = (bt_frame_type)type,
                          .transfer = {.request = {1, 2}, .attempt = 1}};
        switch (frame.type) {
        case BT_FRAME_HELLO:
        case BT_FRAME_WELCOME:
            bt_frame_hello_set(&frame.u.hello, &terms, 33, 50);
            break;
        case BT_FRAME_REFUSE:
        case BT_FRAME_REVOKE:
        case BT_FRAME_END:
            frame.u.end.status = BT_EPEER;
            frame.u.end.text = "gone";
            frame.u.end.text_bytes = 4;
            break;
        case BT_FRAME_PULL:
            frame.u.pull.deadline_ms = 1000;
            break;
        case BT_FRAME_OFFER:
            frame.u.offer.n_tokens = 60;
            frame.u.offer.n_blocks = 4;
            frame.u.offer.n_ids = 4;
            frame.u.offer.ids = numbers;
            break;
        case BT_FRAME_ANNOUNCE:
            frame.u.announce.rect = rect;
            frame.u.announce.sums = numbers;
            break;
        case BT_FRAME_READ:
            frame.u.read.op = 1;
            frame.u.read.rect = rect;
            break;
        case BT_FRAME_DATA:
            frame.u.data.op = 1;
            frame.u.data.bytes = 64;
            break;
        case BT_FRAME_COMPLETE:
            frame.u.complete.blob = "token";
            frame.u.complete.blob_bytes = 5;
            break;
        default: /* all zero */
            break;
        }
        static uint8_t wire[BT_FRAME_BYTES_MAX];
        write_bytes("frame", bt_frame_type_name((uint32_t)type), wire,
                    bt_frame_encode(&frame, 3, wire));
    }
    static uint8_t wire[BT_FRAME_BYTES_MAX];
    const bt_frame cached = {.type = BT_FRAME_PULL,
                             .transfer = {.request = {1, 3}},
                             .u.pull = {.deadline_ms = 1000, .n_wanted = 2, .wanted = wanted}};
    write_bytes("frame", "PULL-cached", wire, bt_frame_encode(&cached, 3, wire));
}

/* ---- KV connections, as kv_fuzz.c reads them ---- */

static void put_frame(seed *to, uint8_t name, const bt_frame *frame)
{
    static uint8_t wire[BT_FRAME_BYTES_MAX];
    const size_t len = bt_frame_encode(frame, 0, wire) - BT_FRAME_HEADER_BYTES;
    const uint8_t head[4] = {(uint8_t)frame->type, name, (uint8_t)len, (uint8_t)(len >> 8)};
    put(to, head, sizeof head);
    put(to, wire + BT_FRAME_HEADER_BYTES, len);
}

static void write_sink(void)
{
    seed made = {.len = 0};
    put_u8(&made, 0);
    bt_frame frame = {.type = BT_FRAME_PULL, .u.pull = {.deadline_ms = 1000}};
    put_frame(&made, 0, &frame);
    frame = (bt_frame){.type = BT_FRAME_PULL,
                       .u.pull = {.deadline_ms = 1000, .n_wanted = 2, .wanted = wanted}};
    put_frame(&made, 1, &frame);
    frame = (bt_frame){.type = BT_FRAME_READ,
                       .u.read = {.op = 0, .rect = {.n_blocks = 2, .layer = 0, .n_layers = 2}}};
    put_frame(&made, 0, &frame);
    frame = (bt_frame){.type = BT_FRAME_RENEW};
    put_frame(&made, 0xFF, &frame);
    frame = (bt_frame){.type = BT_FRAME_END, .u.end = {.status = BT_OK, .text = ""}};
    put_frame(&made, 0, &frame);
    write_seed("kv", "sink", &made);
    made.len = 1; /* of a transfer that is not offered, in its last moment */
    frame = (bt_frame){.type = BT_FRAME_PULL, .u.pull = {.n_wanted = 2, .wanted = wanted}};
    put_frame(&made, 2, &frame);
    write_seed("kv", "sink_late", &made);
}

static void write_source(void)
{
    static const uint32_t sums[2] = {1, 2};
    static const uint8_t part[512];
    seed made = {.len = 0};
    put_u8(&made, 1);
    bt_frame frame = {.type = BT_FRAME_OFFER, .u.offer = {.n_tokens = 90, .n_blocks = 6}};
    put_frame(&made, 0, &frame);
    frame = (bt_frame){.type = BT_FRAME_ANNOUNCE,
                       .u.announce = {.rect = {.n_blocks = 2, .n_layers = 1}, .sums = sums}};
    put_frame(&made, 0, &frame);
    frame = (bt_frame){.type = BT_FRAME_DATA, .u.data = {.op = 0, .bytes = sizeof part}};
    put_frame(&made, 0, &frame);
    const uint8_t raw[4] = {BT_FRAME_TYPE_END, 0, 0, sizeof part >> 8};
    put(&made, raw, sizeof raw);
    put(&made, part, sizeof part);
    frame = (bt_frame){.type = BT_FRAME_COMPLETE, .u.complete = {.blob = "t", .blob_bytes = 1}};
    put_frame(&made, 0, &frame);
    frame = (bt_frame){.type = BT_FRAME_REVOKE,
                       .u.end = {.status = BT_EPEER, .text = "x", .text_bytes = 1}};
    put_frame(&made, 1, &frame);
    write_seed("kv", "source", &made);
}

/* ---- attach stream ---- */

/* Writes what the outbox holds as one message, and empties it. */
static void write_outbox(const char *name, uint8_t side, bt_link_outbox *outbox)
{
    seed made = {.len = 0};
    put_u8(&made, side);
    for (const bt_link_chunk *chunk = outbox->first; chunk; chunk = chunk->next) {
        put(&made, chunk->bytes, chunk->len);
    }
    write_seed("link", name, &made);
    bt_link_outbox_clear(outbox);
}

static void write_events(bt_link_outbox *outbox)
{
    static const uint8_t nonce[BT_PROOF_NONCE_BYTES] = {1};
    static const bt_block_hash ids[2] = {{{1}}, {{2}}};
    static const bt_token_result results[2] = {
        {.token = 5},
        {.token = 6, .has_logprob = true, .logprob = -1, .n_top = 1, .top = {{6, -1}}},
    };
    const bt_link_hello hello = {.protocol_version = BT_LINK_PROTOCOL_VERSION,
                                 .role = BT_LINK_ROLE_DECODE,
                                 .kv = {.name = "d0", .incarnation = 9, .kv_tcp = "127.0.0.1:1"},
                                 .kernels = "portable",
                                 .model = "tiny",
                                 .block_tokens = 16,
                                 .pool_blocks = 64};
    const bt_link_load load = {.blocks_free = 60, .requests_running = 1, .decode_tokens = 77};
    const bt_link_tokens tokens = {.id = {1, 2}, .attempt = 1, .results = results, .n_results = 2};
    const bt_link_finished finished = {.id = {1, 2},
                                       .attempt = 1,
                                       .status = BT_EPEER,
                                       .error = {"the peer is gone"},
                                       .reason = BT_FINISH_ERROR,
                                       .transport = "tcp"};
    BT_ASSERT(bt_link_put_hello(outbox, &hello, nonce));
    write_outbox("hello", 0, outbox);
    BT_ASSERT(bt_link_put_load(outbox, &load));
    write_outbox("load", 0, outbox);
    BT_ASSERT(bt_link_put_tokens(outbox, &tokens));
    BT_ASSERT(bt_link_put_finished(outbox, &finished));
    BT_ASSERT(bt_link_put_pong(outbox, 3));
    write_outbox("tokens_finished", 0, outbox);
    BT_ASSERT(bt_link_put_blocks(outbox, 1, BT_LINK_BLOCKS_STORED, ids, BT_ARRAY_LEN(ids)));
    write_outbox("blocks", 0, outbox);
    static const uint8_t proof[BT_PROOF_BYTES] = {2};
    static const bt_link_timeline timelines[1] = {{.attempt = 1}};
    const bt_link_parked parked = {.id = {1, 2}, .attempt = 1, .generated_tokens = 7};
    BT_ASSERT(bt_link_put_proof(outbox, proof));
    BT_ASSERT(bt_link_put_parked(outbox, &parked));
    const bt_link_fetched fetched = {.id = {1, 3}, .blocks_moved = 2, .bytes_moved = 4096};
    BT_ASSERT(bt_link_put_fetched(outbox, &fetched));
    BT_ASSERT(bt_link_put_explained(outbox, 4, timelines, 1));
    write_outbox("proof_parked_explained", 0, outbox);
}

static void write_commands(bt_link_outbox *outbox)
{
    static const int32_t prompt[] = {1, 2, 3, 4};
    static const bt_sampling sampling = {.temperature = 0.5F,
                                         .top_p = 1,
                                         .repetition_penalty = 1,
                                         .max_tokens = 8,
                                         .n_stop_tokens = 1,
                                         .stop_tokens = {3},
                                         .n_logit_bias = 1,
                                         .logit_bias = {{4, -1}}};
    const bt_link_run run = {.id = {1, 2},
                             .attempt = 1,
                             .mode = BT_LINK_MODE_DECODE,
                             .tokens = prompt,
                             .n_tokens = 4,
                             .n_prompt = 3,
                             .sampling = &sampling,
                             .deadline_left_ns = 1000000000,
                             .has_peer = true,
                             .peer = {.name = "p0", .incarnation = 5, .kv_tcp = "127.0.0.1:2"}};
    BT_ASSERT(bt_link_put_welcome(outbox, "router-0", 500, 3000));
    write_outbox("welcome", 1, outbox);
    BT_ASSERT(bt_link_put_run(outbox, &run) == BT_OK);
    write_outbox("run", 1, outbox);
    BT_ASSERT(bt_link_put_cancel(outbox, (bt_request_id){1, 2}, 1));
    BT_ASSERT(bt_link_put_ping(outbox, 3));
    BT_ASSERT(bt_link_put_send_snapshot(outbox));
    write_outbox("cancel_ping_snapshot", 1, outbox);
    static const uint8_t nonce[BT_PROOF_NONCE_BYTES] = {1};
    static const uint8_t proof[BT_PROOF_BYTES] = {2};
    BT_ASSERT(bt_link_put_challenge(outbox, nonce, proof));
    BT_ASSERT(bt_link_put_explain(outbox, 4, "abc"));
    BT_ASSERT(bt_link_put_park(outbox, (bt_request_id){1, 2}, 1, 2));
    BT_ASSERT(bt_link_put_resume(outbox, (bt_request_id){1, 2}, 1));
    BT_ASSERT(bt_link_put_drain(outbox));
    static const bt_block_hash chain[2] = {{{1, 2}}, {{3, 4}}};
    const bt_link_fetch fetch = {.id = {1, 3},
                                 .peer = {.name = "d1", .incarnation = 5, .kv_tcp = "127.0.0.1:9"},
                                 .ids = chain,
                                 .n_ids = BT_ARRAY_LEN(chain),
                                 .deadline_left_ms = 1000};
    BT_ASSERT(bt_link_put_fetch(outbox, &fetch));
    BT_ASSERT(bt_link_put_leave(outbox));
    write_outbox("challenge_explain_park", 1, outbox);
}

static void write_link(void)
{
    bt_link_outbox outbox = {.max_bytes = SEED_BYTES_MAX};
    write_events(&outbox);
    write_commands(&outbox);
    free(outbox.spare);
}

/* ---- requests of clients ---- */

static void write_request(const char *name, uint8_t kind, const ProtobufCMessage *message)
{
    seed made = {.len = 0};
    put_u8(&made, kind);
    BT_ASSERT(protobuf_c_message_get_packed_size(message) < sizeof made.bytes);
    made.len += protobuf_c_message_pack(message, made.bytes + made.len);
    write_seed("request", name, &made);
}

static void write_requests(void)
{
    static char text[] = "Once upon a time <|im_end|> \xC3\xA9";
    static char role[] = "user";
    static char stop[] = "\n";
    char *stops[] = {stop};
    uint32_t ids[] = {1, 2, 300};
    Baton__V1__Sampling__LogitBiasEntry bias = BATON__V1__SAMPLING__LOGIT_BIAS_ENTRY__INIT;
    bias.key = 5;
    bias.value = -2;
    Baton__V1__Sampling__LogitBiasEntry *biases[] = {&bias, &bias};
    Baton__V1__Sampling sampling = BATON__V1__SAMPLING__INIT;
    sampling.temperature = 0.7F;
    sampling.n_stop = 1;
    sampling.stop = stops;
    sampling.n_stop_token_ids = 1;
    sampling.stop_token_ids = ids;
    sampling.n_logit_bias = 2;
    sampling.logit_bias = biases;
    Baton__V1__GenerateRequest by_text = BATON__V1__GENERATE_REQUEST__INIT;
    by_text.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TEXT;
    by_text.text = text;
    by_text.sampling = &sampling;
    by_text.session_id = role;
    by_text.cache_salt = role;
    by_text.ttft_target_ms = 100;
    write_request("text", 0, &by_text.base);
    Baton__V1__TokenIds token_ids = BATON__V1__TOKEN_IDS__INIT;
    token_ids.n_ids = 3;
    token_ids.ids = ids;
    Baton__V1__GenerateRequest by_ids = BATON__V1__GENERATE_REQUEST__INIT;
    by_ids.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    by_ids.token_ids = &token_ids;
    write_request("ids", 0, &by_ids.base);
    Baton__V1__ChatMessage message = BATON__V1__CHAT_MESSAGE__INIT;
    message.role = role;
    message.content = text;
    Baton__V1__ChatMessage *messages[] = {&message, &message};
    Baton__V1__Chat chat = BATON__V1__CHAT__INIT;
    chat.n_messages = 2;
    chat.messages = messages;
    Baton__V1__GenerateRequest by_chat = BATON__V1__GENERATE_REQUEST__INIT;
    by_chat.prompt_case = BATON__V1__GENERATE_REQUEST__PROMPT_CHAT;
    by_chat.chat = &chat;
    write_request("chat", 0, &by_chat.base);
    Baton__V1__TokenizeRequest tokenize = BATON__V1__TOKENIZE_REQUEST__INIT;
    tokenize.input_case = BATON__V1__TOKENIZE_REQUEST__INPUT_CHAT;
    tokenize.chat = &chat;
    write_request("tokenize", 1, &tokenize.base);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_seeds FOLDER\n");
        return 2;
    }
    folder = argv[1];
    (void)mkdir(folder, 0777);
    write_texts();
    write_models();
    write_tokenizer();
    write_chats();
    write_frames();
    write_sink();
    write_source();
    write_link();
    write_requests();
    return 0;
}
