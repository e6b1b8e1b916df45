/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <string.h>

int bt_cli_configure(const bt_config_spec *spec, int argc, char **argv, void *target,
                     bt_config **out)
{
    bt_config *config = NULL;
    bt_error err = {""};
    const bt_status status = bt_config_parse(spec, argc, argv, target, &config, &err);
    if (status != BT_OK) {
        const char *space = strchr(spec->command, ' '); /* "baton bench serve" */
        return bt_cli_fail(space ? space + 1 : spec->command, status, &err, true);
    }
    switch (bt_config_wanted(config)) {
    case BT_CONFIG_HELP:
        bt_config_print_help(spec, stdout);
        break;
    case BT_CONFIG_PRINT:
        bt_config_print(config, stdout);
        break;
    case BT_CONFIG_RUN:
        *out = config;
        return BT_CLI_RUN;
    }
    bt_config_destroy(config);
    return BT_CLI_OK;
}
