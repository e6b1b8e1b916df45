/* SPDX-License-Identifier: Apache-2.0 */
/* `baton`: finds the command and runs it. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/terminal.h"

static const bt_cli_command *const commands[] = {
    &bt_cli_up,    &bt_cli_generate, &bt_cli_chat,  &bt_cli_tokenize, &bt_cli_status,
    &bt_cli_drain, &bt_cli_explain,  &bt_cli_bench, &bt_cli_router,   &bt_cli_worker,
};

static void print_help(FILE *to)
{
    const char *bold = bt_terminal_style_text(to, BT_TERMINAL_BOLD);
    const char *plain = bt_terminal_style_text(to, BT_TERMINAL_PLAIN);
    fprintf(to,
            "Baton serves large language models with prefill and decode on separate workers.\n\n"
            "Usage: baton COMMAND [OPTIONS]\n\n%sCommands%s\n",
            bold, plain);
    for (size_t i = 0; i < BT_ARRAY_LEN(commands); i++) {
        fprintf(to, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    }
    fprintf(to, "\n'baton COMMAND --help' explains a command, its options and their defaults.\n");
}

/* A typing error is often one letter: the command that shares the longest beginning. */
static const char *nearest(const char *word)
{
    const char *best = NULL;
    size_t best_len = 1;
    for (size_t i = 0; i < BT_ARRAY_LEN(commands); i++) {
        size_t len = 0;
        while (word[len] != '\0' && word[len] == commands[i]->name[len]) {
            len++;
        }
        if (len > best_len) {
            best = commands[i]->name;
            best_len = len;
        }
    }
    return best;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return BT_CLI_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_help(stdout);
        return BT_CLI_OK;
    }
    for (size_t i = 0; i < BT_ARRAY_LEN(commands); i++) {
        if (strcmp(word, commands[i]->name) == 0) {
            return commands[i]->run(argc - 1, argv + 1);
        }
    }
    const char *near = nearest(word);
    fprintf(stderr, "baton: there is no command '%s'.%s%s%s\n", word,
            near != NULL ? " Did you mean '" : " 'baton --help' lists them.",
            near != NULL ? near : "", near != NULL ? "'?" : "");
    return BT_CLI_USAGE;
}
