/* SPDX-License-Identifier: Apache-2.0 */
/* bench golden: all golden prompts on one kernel path after the other, against the float32
 * reference of tests/golden. Fails when a bound of the project is broken. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/program.h"
#include "engine/backend.h"
#include "tests/support/golden_run.h"

#define N_PATHS_MAX 16

typedef struct golden_options {
    const char *json;
    const char *model;
    const char *kernels;
    int64_t n_threads;
    int64_t chunk;
    int64_t prompt_tokens_max;
} golden_options;

static const bt_config_option OPTIONS[] = {
    BT_PROGRAM_JSON_OPTION(golden_options),
    BT_PROGRAM_MODEL_OPTION(golden_options),
    {.name = "kernels",
     .type = BT_CONFIG_STRING,
     .group = "Work",
     .placeholder = "NAME",
     .fallback = "all",
     .help = "Kernel path; \"all\" runs each that this CPU has.",
     .offset = offsetof(golden_options, kernels)},
    {.name = "threads",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "threads",
     .min = 1,
     .max = 64,
     .help = "Threads of the model; all CPUs if not given.",
     .offset = offsetof(golden_options, n_threads)},
    {.name = "chunk",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "tokens",
     .min = 16,
     .max = 4096,
     .fallback = "256",
     .help = "Tokens of a step; a multiple of 16.",
     .offset = offsetof(golden_options, chunk)},
    {.name = "prompt-tokens-max",
     .type = BT_CONFIG_INT,
     .group = "Work",
     .unit = "tokens",
     .max = 100000,
     .fallback = "0",
     .help = "Leaves longer prompts out; 0: none.",
     .offset = offsetof(golden_options, prompt_tokens_max)},
};

static const bt_config_spec SPEC = {
    .command = "bench/run golden",
    .summary = "Compares the model's logits with those of a float32 reference, teacher-forced.",
    .options = OPTIONS,
    .n_options = BT_ARRAY_LEN(OPTIONS),
};

static void print_prompt(void *ctx, const bt_golden_prompt *prompt, const bt_golden_report *r)
{
    (void)ctx;
    printf("    %-12s %5zu tokens  max |d| %.2e  same argmax %2zu/%zu  lost %.3f  mean KL %.2e\n",
           prompt->name, prompt->n_tokens, (double)r->max_abs, r->n_same_argmax, r->n_positions,
           (double)r->lost_max, r->kl_sum / (double)r->n_positions);
    (void)fflush(stdout);
}

static void add_row(bt_report *report, const char *path, const char *what, double value,
                    const char *unit)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%s: %s", path, what);
    bt_report_add(report, &(bt_report_row){.name = name, .value = value, .unit = unit});
}

static void add_rows(bt_report *report, const char *path, const bt_golden_report *r)
{
    const double n = (double)r->n_positions;
    add_row(report, path, "positions", n, "");
    add_row(report, path, "largest logit difference", (double)r->max_abs, "nat");
    add_row(report, path, "same argmax", 100.0 * (double)r->n_same_argmax / n, "%");
    add_row(report, path, "other argmax though the gap exceeds 2e-3", (double)r->n_clear_misses,
            "");
    add_row(report, path, "largest gap where the argmax is another", (double)r->gap_max, "nat");
    add_row(report, path, "most that another argmax costs", (double)r->lost_max, "nat");
    add_row(report, path, "mean KL divergence", r->kl_sum / n, "nat");
    add_row(report, path, "largest KL divergence", r->kl_max, "nat");
}

static bt_status run_path(const golden_options *options, const bt_golden *golden, const char *path,
                          bt_report *report, bool *within, bt_error *err)
{
    const bool is_reference = strcmp(path, "reference") == 0;
    const bt_golden_run_options run = {
        .model_path = bt_program_model(options->model),
        .kernels = path,
        .kv_format = is_reference ? BT_KV_FORMAT_F32 : BT_KV_FORMAT_BF16,
        .n_threads = (uint32_t)options->n_threads,
        .chunk = (uint32_t)options->chunk,
        .prompt_tokens_max = (size_t)options->prompt_tokens_max,
        .each = print_prompt,
    };
    bt_report_heading(report, is_reference ? "reference, f32 KV" : path);
    bt_golden_report sum;
    const bt_status status = bt_golden_run(golden, &run, &sum, err);
    if (status != BT_OK) {
        return status;
    }
    add_rows(report, path, &sum);
    *within = is_reference ? bt_golden_is_exact(&sum) : bt_golden_is_close(&sum);
    printf("  %s: %s\n", path, *within ? "within bounds" : "OUT OF BOUNDS");
    return BT_OK;
}

static bt_status run_golden(void *ctx, bt_report *report, bt_error *err)
{
    const golden_options *options = ctx;
    const char *paths[N_PATHS_MAX] = {options->kernels};
    const size_t n_paths =
        strcmp(options->kernels, "all") == 0 ? bt_cpu_backend_paths(paths, N_PATHS_MAX) : 1;
    if (options->chunk % BT_KV_BLOCK_TOKENS != 0) {
        return bt_error_set(err, BT_EINVAL, "--chunk is no multiple of %d", BT_KV_BLOCK_TOKENS);
    }
    bt_golden *golden = NULL;
    bt_status status = bt_golden_open("tests/golden/smollm2.bin", &golden, err);
    size_t n_outside = 0;
    for (size_t i = 0; i < n_paths && status == BT_OK; i++) {
        bool within = false;
        status = run_path(options, golden, paths[i], report, &within, err);
        n_outside += !within;
    }
    bt_golden_close(golden);
    if (status == BT_OK && n_outside > 0) {
        return bt_error_set(err, BT_EMISMATCH, "%zu kernel path(s) are out of bounds", n_outside);
    }
    return status;
}

int main(int argc, char **argv)
{
    bt_machine machine;
    bt_machine_describe(&machine);
    golden_options options = {.n_threads = machine.n_cpus < 64 ? machine.n_cpus : 64};
    const bt_program program = {"golden", &SPEC, &options, &options.json, run_golden};
    return bt_program_main(&program, argc, argv);
}
