/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "cli/terminal.h"

int bt_cli_fail(const char *command, bt_status status, const bt_error *err, bool usage)
{
    const bool has_text = err != NULL && err->text[0] != '\0';
    fprintf(stderr, "%sbaton %s:%s %s\n", bt_terminal_style_text(stderr, BT_TERMINAL_RED), command,
            bt_terminal_style_text(stderr, BT_TERMINAL_PLAIN),
            has_text ? err->text : bt_status_text(status));
    if (usage && status == BT_EINVAL) {
        fprintf(stderr, "'baton %s --help' lists the options.\n", command);
        return BT_CLI_USAGE;
    }
    return status == BT_ECANCELLED ? BT_CLI_INTERRUPTED : BT_CLI_FAILED;
}

void bt_cli_split_model(char *text, const char **name)
{
    char *equals = strrchr(text, '=');
    *name = NULL;
    if (equals != NULL && equals != text && equals[1] != '\0') {
        *equals = '\0';
        *name = equals + 1;
    }
}
