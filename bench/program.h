/* SPDX-License-Identifier: Apache-2.0 */
/* program.h - what the main functions of all benchmarks share: options, report, exit code.
 *
 * Threading: the main thread.
 */
#ifndef BT_BENCH_PROGRAM_H
#define BT_BENCH_PROGRAM_H

#include "bench/report.h"
#include "common/config.h"

/* --json FILE, for the head of every table of options; `options_type` has a field `json`. */
#define BT_PROGRAM_JSON_OPTION(options_type)                                                       \
    {                                                                                              \
        .name = "json", .type = BT_CONFIG_STRING, .group = "Output", .placeholder = "FILE",        \
        .help = "Writes the figures as JSON too.", .offset = offsetof(options_type, json)          \
    }

/* --model FILE, filled from BATON_TEST_MODEL by bt_program_model(). */
#define BT_PROGRAM_MODEL_OPTION(options_type)                                                      \
    {                                                                                              \
        .name = "model", .type = BT_CONFIG_STRING, .group = "Work", .placeholder = "FILE",         \
        .help = "GGUF file; the demo model of tools/setup if not given.",                          \
        .offset = offsetof(options_type, model)                                                    \
    }

/* --kernels NAME, for programs that run on one path. */
#define BT_PROGRAM_KERNELS_OPTION(options_type)                                                    \
    {                                                                                              \
        .name = "kernels", .type = BT_CONFIG_STRING, .group = "Work", .placeholder = "NAME",       \
        .fallback = "auto", .help = "Kernel path.", .offset = offsetof(options_type, kernels)      \
    }

/* Measures and adds rows; `options` is what main() gave. */
typedef bt_status (*bt_program_fn)(void *options, bt_report *report, bt_error *err);

typedef struct bt_program {
    const char *name; /* "kernels" */
    const bt_config_spec *spec;
    void *options;           /* the options' struct, with defaults set */
    const char *const *json; /* its field for --json */
    bt_program_fn run;
} bt_program;

/* Parses, runs, writes the report; returns the exit code. */
int bt_program_main(const bt_program *program, int argc, char **argv);

/* `model`, or the demo model: BATON_TEST_MODEL (bench/run sets it), else its place in the tree. */
const char *bt_program_model(const char *model);

#endif /* BT_BENCH_PROGRAM_H */
