/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/program.h"

#include <stdio.h>
#include <stdlib.h>

static bt_status run(const bt_program *program, int argc, char **argv, bt_error *err)
{
    bt_report *report = NULL;
    bt_status status = bt_report_create(program->name, argc, argv, *program->json, &report);
    if (status != BT_OK) {
        return bt_error_set(err, status, "out of memory");
    }
    status = program->run(program->options, report, err);
    if (status == BT_OK) {
        status = bt_report_finish(report, err);
    }
    bt_report_destroy(report);
    return status;
}

int bt_program_main(const bt_program *program, int argc, char **argv)
{
    bt_config *config = NULL;
    bt_error err = {""};
    bt_status status = bt_config_parse(program->spec, argc, argv, program->options, &config, &err);
    if (status == BT_OK && bt_config_wanted(config) == BT_CONFIG_HELP) {
        bt_config_print_help(program->spec, stdout);
    } else if (status == BT_OK && bt_config_wanted(config) == BT_CONFIG_PRINT) {
        bt_config_print(config, stdout);
    } else if (status == BT_OK) {
        status = run(program, argc, argv, &err);
    }
    if (status != BT_OK) {
        (void)fprintf(stderr, "bench/run %s: %s\n", program->name,
                      err.text[0] ? err.text : bt_status_text(status));
    }
    bt_config_destroy(config);
    return status == BT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

const char *bt_program_model(const char *model)
{
    const char *demo = getenv("BATON_TEST_MODEL");
    if (model != NULL) {
        return model;
    }
    return demo ? demo : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
}
