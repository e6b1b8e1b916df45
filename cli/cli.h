/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h - what every command of the `baton` binary looks like to main.c.
 *
 * One file a command (cli/up.c holds bt_cli_up, ...), each with one read-only entry below;
 * main.c finds it by its name. A command reads its options with common/config.h, prints what
 * was asked for on stdout and everything else on stderr, and returns an exit code. It blocks
 * until its work is done and owns all that lives as long as the process.
 *
 * Threading: the main thread.
 */
#ifndef BT_CLI_CLI_H
#define BT_CLI_CLI_H

#include "common/config.h"
#include "common/status.h"

enum {
    BT_CLI_OK = 0,
    BT_CLI_FAILED = 1, /* what was asked for could not be done */
    BT_CLI_USAGE = 2,  /* the command line made no sense */
    BT_CLI_INTERRUPTED = 130,
    BT_CLI_RUN = -1, /* of bt_cli_configure: no exit, go on */
};

typedef struct bt_cli_command {
    const char *name;                  /* "up" */
    const char *summary;               /* one line of `baton --help`, no full stop */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns an exit code */
} bt_cli_command;

extern const bt_cli_command bt_cli_router;
extern const bt_cli_command bt_cli_worker;
extern const bt_cli_command bt_cli_up;
extern const bt_cli_command bt_cli_generate;
extern const bt_cli_command bt_cli_chat;
extern const bt_cli_command bt_cli_tokenize;
extern const bt_cli_command bt_cli_status;
extern const bt_cli_command bt_cli_drain;
extern const bt_cli_command bt_cli_explain;
extern const bt_cli_command bt_cli_bench;

/* Prints "baton COMMAND: text" on stderr; returns BT_CLI_USAGE for BT_EINVAL when `usage`,
 * with a pointer to --help, else BT_CLI_FAILED. */
int bt_cli_fail(const char *command, bt_status status, const bt_error *err, bool usage);

/* Reads the options of a command into *target. BT_CLI_RUN: go on, the caller owns *out (the strings
 * in *target live as long). Otherwise an exit code: --help or --print-config was printed, or what
 * is wrong. */
int bt_cli_configure(const bt_config_spec *spec, int argc, char **argv, void *target,
                     bt_config **out);

/* Splits FILE[=NAME] at the last '='; `text` is written to. *name is NULL without one. */
void bt_cli_split_model(char *text, const char **name);

enum { BT_CLI_ADDRESS_BYTES = 256 };

/* Where HTTP is served: `given`, or without one the host of `listen` and its port and 10 (a free
 * one for port 0), in `kept`. NULL: nowhere ("none", or `listen` is no host and port). */
const char *bt_cli_http_address(const char *given, const char *listen,
                                char kept[BT_CLI_ADDRESS_BYTES]);

#endif /* BT_CLI_CLI_H */
