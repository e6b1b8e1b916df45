/* SPDX-License-Identifier: Apache-2.0 */
/* `baton tokenize`: text to token ids, as a model file's own tokenizer makes them; no router. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "common/json.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"

typedef struct tokenize_options {
    const char *model;
    bool special;
    bool json;
} tokenize_options;

static const bt_config_option options_table[] = {
    {.name = "model",
     .type = BT_CONFIG_STRING,
     .group = "Model",
     .placeholder = "FILE",
     .help = "GGUF file; its metadata alone is read.",
     .offset = offsetof(tokenize_options, model)},
    {.name = "special",
     .type = BT_CONFIG_BOOL,
     .group = "Model",
     .fallback = "true",
     .help = "Recognizes special tokens that are written in the text, and puts the "
             "begin-of-text token in front if the model wants one.",
     .offset = offsetof(tokenize_options, special)},
    {.name = "json",
     .type = BT_CONFIG_BOOL,
     .group = "Output",
     .fallback = "false",
     .help = "Prints a JSON array of ids alone.",
     .offset = offsetof(tokenize_options, json)},
};

static const bt_config_spec spec = {
    .command = "baton tokenize",
    .section = "tokenize",
    .summary = "Prints the tokens of a text, one a line: id and bytes. The text is the arguments,\n"
               "or standard input for '-' or when there are none.",
    .arguments = "[TEXT...]",
    .examples = "  baton tokenize --model model.gguf 'Hello, world'\n"
                "  baton tokenize --model model.gguf --json < text.txt\n",
    .options = options_table,
    .n_options = BT_ARRAY_LEN(options_table),
};

static void print_piece(const bt_tokenizer *tokenizer, int32_t token)
{
    size_t len;
    const char *bytes = bt_tokenizer_piece(tokenizer, token, &len);
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    bt_json_string_n(&w, bytes, len);
    const char *quoted = bt_json_writer_text(&w, NULL);
    printf("%7d  %s\n", token, quoted ? quoted : "?");
    bt_json_writer_deinit(&w);
}

static void print_json(const int32_t *tokens, size_t n)
{
    bt_json_writer w;
    bt_json_writer_init(&w, 0);
    bt_json_array_begin(&w);
    for (size_t i = 0; i < n; i++) {
        bt_json_int(&w, tokens[i]);
    }
    bt_json_array_end(&w);
    const char *text = bt_json_writer_text(&w, NULL);
    puts(text ? text : "[]");
    bt_json_writer_deinit(&w);
}

static bt_status tokenize(const tokenize_options *o, const char *text, size_t len, bt_error *err)
{
    bt_gguf *gguf;
    bt_status status = bt_gguf_open(o->model, &gguf, err);
    if (status != BT_OK) {
        return status;
    }
    bt_tokenizer *tokenizer = NULL;
    bt_token_list list = {0};
    status = bt_tokenizer_create(gguf, &tokenizer, err);
    bt_gguf_close(gguf);
    if (status == BT_OK) {
        const unsigned flags =
            o->special ? BT_TOKENIZE_SPECIAL | BT_TOKENIZE_ADD : BT_TOKENIZE_PLAIN;
        status = bt_tokenizer_encode(tokenizer, text, len, flags, &list, err);
    }
    if (status == BT_OK && o->json) {
        print_json(list.ids, list.n);
    }
    for (size_t i = 0; status == BT_OK && !o->json && i < list.n; i++) {
        print_piece(tokenizer, list.ids[i]);
    }
    if (status == BT_OK && !o->json) {
        fprintf(stderr, "%s%zu tokens%s\n", bt_terminal_style_text(stderr, BT_TERMINAL_DIM), list.n,
                bt_terminal_style_text(stderr, BT_TERMINAL_PLAIN));
    }
    bt_token_list_deinit(&list);
    bt_tokenizer_destroy(tokenizer);
    return status;
}

static int run(int argc, char **argv)
{
    tokenize_options o = {0};
    bt_config *config = NULL;
    const int early = bt_cli_configure(&spec, argc, argv, &o, &config);
    if (early != BT_CLI_RUN) {
        return early;
    }
    bt_error err = {""};
    char *text = NULL;
    size_t len = 0;
    bt_status status = BT_OK;
    if (!o.model) {
        status = bt_error_set(&err, BT_EINVAL, "--model FILE is missing");
    }
    if (status == BT_OK) {
        status = bt_cli_read_text(bt_config_arguments(config), &text, &len, &err);
    }
    int code = status == BT_OK ? BT_CLI_OK : bt_cli_fail("tokenize", status, &err, true);
    if (status == BT_OK) {
        status = tokenize(&o, text, len, &err);
        code = status == BT_OK ? BT_CLI_OK : bt_cli_fail("tokenize", status, &err, false);
    }
    free(text);
    bt_config_destroy(config);
    return code;
}

const bt_cli_command bt_cli_tokenize = {
    .name = "tokenize",
    .summary = "print the tokens of a text",
    .run = run,
};
