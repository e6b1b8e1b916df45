/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
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

const char *bt_cli_http_address(const char *given, const char *listen,
                                char kept[BT_CLI_ADDRESS_BYTES])
{
    enum { PORTS_APART = 10, PORT_MAX = 65535 };
    if (given != NULL) {
        return strcmp(given, "none") == 0 ? NULL : given;
    }
    const char *colon = strrchr(listen, ':');
    if (colon == NULL || strncmp(listen, "unix:", 5) == 0) {
        return NULL;
    }
    const int port = atoi(colon + 1);
    const int http_port = port > 0 && port <= PORT_MAX - PORTS_APART ? port + PORTS_APART : 0;
    (void)snprintf(kept, BT_CLI_ADDRESS_BYTES, "%.*s:%d", (int)(colon - listen), listen, http_port);
    return kept;
}
