/* SPDX-License-Identifier: Apache-2.0 */
/* bench limits: what this machine can do at most. Its output is the head of RESULTS.md. */
#include <stdio.h>

#include "bench/machine.h"
#include "bench/peak.h"
#include "bench/program.h"

typedef struct limits_options {
    const char *json;
    int64_t n_threads;
} limits_options;

static const bt_config_option OPTIONS[] = {
    BT_PROGRAM_JSON_OPTION(limits_options),
    {.name = "threads",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "threads",
     .min = 1,
     .max = 64,
     .help = "Most threads; all CPUs if not given.",
     .offset = offsetof(limits_options, n_threads)},
};

static const bt_config_spec SPEC = {
    .command = "bench/run limits",
    .summary = "Measures what this machine can do at most: memory, arithmetic, loopback.",
    .options = OPTIONS,
    .n_options = BT_ARRAY_LEN(OPTIONS),
};

static void add(bt_report *report, unsigned n_threads, const char *what, double value, double scale,
                const char *unit)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%s, %u thread%s", what, n_threads, n_threads > 1 ? "s" : "");
    bt_report_add(report, &(bt_report_row){.name = name, .value = value / scale, .unit = unit});
}

static bt_status measure_threads(bt_report *report, unsigned n)
{
    double rate = 0;
    bt_status status = bt_machine_read_rate(n, ((size_t)1 << 30) / n, &rate);
    if (status != BT_OK) {
        return status;
    }
    add(report, n, "read memory", rate, 1e9, "GB/s");
    status = bt_machine_read_rate(n, ((size_t)8 << 20) / n, &rate);
    if (status != BT_OK) {
        return status;
    }
    add(report, n, "read 8 MiB in cache", rate, 1e9, "GB/s");
    status = bt_machine_copy_rate(n, ((size_t)512 << 20) / n, &rate);
    if (status != BT_OK) {
        return status;
    }
    add(report, n, "memcpy, memory to memory", rate, 1e9, "GB/s");
    const bt_peak_set *set = bt_peak_best();
    const bool amx = bt_peak_amx_is_there();
    const struct {
        const char *name;
        const bt_peak_loop *loop;
    } peaks[] = {
        {"f32 multiply-add", &set->f32},
        {"bf16 dot product", &set->bf16},
        {"int8 dot product", &set->int8},
        {"bf16 tiles (AMX)", amx ? &bt_peak_amx.bf16 : NULL},
        {"int8 tiles (AMX)", amx ? &bt_peak_amx.int8 : NULL},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(peaks); i++) {
        if (peaks[i].loop == NULL || peaks[i].loop->run == NULL) {
            continue;
        }
        status = bt_machine_compute_rate(n, peaks[i].loop, &rate);
        if (status != BT_OK) {
            return status;
        }
        add(report, n, peaks[i].name, rate, 1e9, "Gop/s");
    }
    return BT_OK;
}

static bt_status measure(void *ctx, bt_report *report, bt_error *err)
{
    const limits_options *options = ctx;
    const unsigned n_threads = (unsigned)options->n_threads;
    bt_report_fact(report, "peak", bt_peak_best()->name);
    bt_status status = measure_threads(report, 1);
    if (status == BT_OK && n_threads > 1) {
        status = measure_threads(report, n_threads);
    }
    if (status != BT_OK) {
        return bt_error_set(err, status, "cannot measure the memory: %s", bt_status_text(status));
    }
    double rate = 0;
    status = bt_machine_tcp_rate((size_t)1 << 20, &rate, err);
    if (status != BT_OK) {
        return status;
    }
    add(report, 1, "loopback TCP, writes of 1 MiB", rate, 1e9, "GB/s");
    status = bt_machine_shm_copy_rate((size_t)256 << 20, &rate, err);
    if (status == BT_OK) {
        add(report, 1, "memcpy between shared mappings, cold", rate, 1e9, "GB/s");
    }
    return status;
}

int main(int argc, char **argv)
{
    bt_machine machine;
    bt_machine_describe(&machine);
    limits_options options = {.n_threads = machine.n_cpus < 64 ? machine.n_cpus : 64};
    const bt_program program = {"limits", &SPEC, &options, &options.json, measure};
    return bt_program_main(&program, argc, argv);
}
