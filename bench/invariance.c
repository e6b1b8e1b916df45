/* SPDX-License-Identifier: Apache-2.0 */
/* bench invariance: the same tokens and the same bits of logits on the real model (DESIGN.md,
 * section 1). 16 requests, 4 of them with a context of 4,000, are run alone and then together
 * through a prefill and a decode scheduler with a hand-over between them: other chunks, prefix
 * hits, partial pulls, preemption in a pool too small for all, 1 and 2 threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/program.h"
#include "tests/support/golden.h"
#include "tests/support/pair.h"

enum {
    N_REQUESTS = 16,
    N_LONG = 4,
    LONG_CONTEXT = 4000,
    N_ANSWER = 40,
    ROWS_MAX = 640,
    N_PATHS_MAX = 16,
};

typedef struct invariance_options {
    const char *json;
    const char *model;
    const char *kernels;
} invariance_options;

static const bt_config_option OPTIONS[] = {
    BT_PROGRAM_JSON_OPTION(invariance_options),
    BT_PROGRAM_MODEL_OPTION(invariance_options),
    {.name = "kernels",
     .type = BT_CONFIG_STRING,
     .group = "Work",
     .placeholder = "NAME",
     .fallback = "all",
     .help =
         "Kernel path; \"all\": each that this CPU has, but the reference and the portable one, "
         "which take an hour.",
     .offset = offsetof(invariance_options, kernels)},
};

static const bt_config_spec SPEC = {
    .command = "bench/run invariance",
    .summary = "Runs requests in many ways and compares tokens and logits bit for bit.",
    .options = OPTIONS,
    .n_options = BT_ARRAY_LEN(OPTIONS),
};

typedef struct variant {
    const char *name;
    uint32_t n_threads;
    uint32_t chunk;
    uint32_t token_budget;
    uint32_t decode_blocks;
    bool cache;
} variant;

static const variant VARIANTS[] = {
    {"1 thread, chunks of 64, prefix cache, small pool", 1, 64, 160, 540, true},
    {"2 threads, chunks of 512, no cache", 2, 512, 640, 1600, false},
};

typedef struct workload {
    int32_t *prompts; /* [N_REQUESTS][LONG_CONTEXT] */
    bt_pair_request requests[N_REQUESTS];
    bt_pair_output alone[N_REQUESTS];
} workload;

/* Fills a prompt with golden prompts one after the other, from number `first` on. */
static void chain_prompts(const bt_golden *golden, size_t first, int32_t *out, size_t n)
{
    size_t at = 0;
    for (size_t i = first; at < n; i++) {
        const bt_golden_prompt *p = bt_golden_prompt_at(golden, i % bt_golden_n_prompts(golden));
        for (size_t k = 0; k < p->n_tokens && at < n; k++) {
            out[at++] = (int32_t)p->tokens[k];
        }
    }
}

/* Long requests begin with the same 2,000 tokens and differ after; two short ones are equal. */
static void make_requests(const bt_golden *golden, workload *work)
{
    const size_t n_golden = bt_golden_n_prompts(golden);
    for (size_t i = 0; i < N_REQUESTS; i++) {
        int32_t *prompt = work->prompts + i * LONG_CONTEXT;
        size_t n = LONG_CONTEXT - N_ANSWER;
        if (i < N_LONG) {
            chain_prompts(golden, n_golden - 1, prompt, 2000);
            chain_prompts(golden, i * 3, prompt + 2000, n - 2000);
        } else {
            n = 30 + (i * 53) % 300;
            chain_prompts(golden, i == N_REQUESTS - 1 ? i - 1 : i, prompt, n);
        }
        work->requests[i] = (bt_pair_request){
            .prompt = prompt,
            .n_prompt = (uint32_t)n,
            .sampling = {.temperature = i % 2 ? 0.8f : 0.0f,
                         .top_p = 1.0f,
                         .repetition_penalty = 1.0f,
                         .seed = 1000 + i,
                         .max_tokens = N_ANSWER,
                         .ignore_eos = true},
            .whole = i == 5,
        };
    }
}

static bt_status load(const invariance_options *options, const char *path, uint32_t n_threads,
                      bt_model **out, bt_error *err)
{
    const bt_model_options model = {
        .path = bt_program_model(options->model),
        .kernels = path,
        .kv_format = BT_KV_FORMAT_BF16,
        .n_threads = n_threads,
        .rows_max = ROWS_MAX,
        .spans_max = N_REQUESTS,
        .logits_max = N_REQUESTS,
    };
    return bt_model_load(&model, out, err);
}

/* Prints the first difference; 1 when there is one. */
static unsigned differs(const bt_pair_output *alone, const bt_pair_output *other, size_t request)
{
    for (uint32_t i = 0; i < alone->n; i++) {
        if (i >= other->n || alone->tokens[i] != other->tokens[i] ||
            !bt_hash128_equal(alone->rows[i], other->rows[i])) {
            printf("    request %zu differs first at token %u\n", request, i);
            return 1;
        }
    }
    return alone->n != other->n;
}

static void add(bt_report *report, const char *path, const char *variant_name, const char *what,
                double value)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%s, %s: %s", path, variant_name, what);
    bt_report_add(report, &(bt_report_row){.name = name, .value = value, .unit = ""});
}

static unsigned run_variant(bt_report *report, bt_model *model, workload *work, const char *path,
                            const variant *v)
{
    const bt_pair_options options = {
        .model = model,
        .prefill_blocks = 1600,
        .decode_blocks = v->decode_blocks,
        .chunk = v->chunk,
        .token_budget = v->token_budget,
        .running_max = N_REQUESTS,
        .cache = v->cache,
    };
    bt_pair_output outputs[N_REQUESTS] = {{0}};
    bt_pair_counters counters;
    bt_pair_run(&options, work->requests, N_REQUESTS, N_REQUESTS, outputs, &counters);
    unsigned n_different = 0;
    for (size_t i = 0; i < N_REQUESTS; i++) {
        n_different += differs(&work->alone[i], &outputs[i], i);
        bt_pair_output_free(&outputs[i]);
    }
    add(report, path, v->name, "requests that differ", n_different);
    add(report, path, v->name, "preemptions", (double)counters.decode.n_preemptions);
    add(report, path, v->name, "partial pulls", (double)counters.decode.n_partial_pulls);
    add(report, path, v->name, "prompt tokens cached",
        (double)(counters.prefill.n_cached_tokens + counters.decode.n_cached_tokens));
    return n_different;
}

static bt_status run_path(const invariance_options *options, bt_report *report, workload *work,
                          const char *path, unsigned *n_different, bt_error *err)
{
    bt_report_heading(report, path);
    for (size_t i = 0; i < BT_ARRAY_LEN(VARIANTS); i++) {
        bt_model *model = NULL;
        const bt_status status = load(options, path, VARIANTS[i].n_threads, &model, err);
        if (status != BT_OK) {
            return status;
        }
        for (size_t k = 0; k < N_REQUESTS && i == 0; k++) {
            bt_pair_run_alone(model, &work->requests[k], &work->alone[k]);
        }
        *n_different += run_variant(report, model, work, path, &VARIANTS[i]);
        bt_model_destroy(model);
    }
    for (size_t k = 0; k < N_REQUESTS; k++) {
        bt_pair_output_free(&work->alone[k]);
        work->alone[k] = (bt_pair_output){0};
    }
    return BT_OK;
}

static bt_status run_invariance(void *ctx, bt_report *report, bt_error *err)
{
    const invariance_options *options = ctx;
    const bool all = strcmp(options->kernels, "all") == 0;
    const char *paths[N_PATHS_MAX] = {options->kernels};
    const size_t n_paths = all ? bt_cpu_backend_paths(paths, N_PATHS_MAX) : 1;
    workload work = {.prompts = calloc((size_t)N_REQUESTS * LONG_CONTEXT, sizeof(int32_t))};
    if (work.prompts == NULL) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    bt_golden *golden = NULL;
    bt_status status = bt_golden_open("tests/golden/smollm2.bin", &golden, err);
    if (status == BT_OK) {
        make_requests(golden, &work);
    }
    unsigned n_different = 0;
    for (size_t i = 0; i < n_paths && status == BT_OK; i++) {
        const bool slow = strcmp(paths[i], "reference") == 0 || strcmp(paths[i], "portable") == 0;
        if (!all || !slow) {
            status = run_path(options, report, &work, paths[i], &n_different, err);
        }
    }
    bt_golden_close(golden);
    free(work.prompts);
    if (status == BT_OK && n_different > 0) {
        return bt_error_set(err, BT_EMISMATCH, "%u runs of a request differ", n_different);
    }
    return status;
}

int main(int argc, char **argv)
{
    invariance_options options = {.json = NULL};
    const bt_program program = {"invariance", &SPEC, &options, &options.json, run_invariance};
    return bt_program_main(&program, argc, argv);
}
