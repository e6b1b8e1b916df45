/* SPDX-License-Identifier: Apache-2.0 */
/* The model computes what a float32 reference computes (tests/golden): the reference path
 * within 1e-3, every other path of this CPU within the bounds of 16-bit weights. Short prompts
 * here; bench/run golden has all. Skipped without the demo model (BATON_TEST_MODEL). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "tests/support/golden_run.h"

#define GOLDEN_PATH "tests/golden/smollm2.bin"
#define N_PATHS_MAX 16

#ifdef BT_SLOW_CHECKS /* sanitizers: thirty times slower, and what they look for shows in one step \
                       */
#define N_PROMPTS_REFERENCE 1u
#define N_PROMPTS_FAST 1u
#define N_PROMPTS_PORTABLE 0u
#define TOKENS_MAX_REFERENCE 1u
#define TOKENS_MAX_FAST 1u
#else
#define N_PROMPTS_REFERENCE 3u
#define N_PROMPTS_FAST 12u
#define N_PROMPTS_PORTABLE 2u
#define TOKENS_MAX_REFERENCE 40u
#define TOKENS_MAX_FAST 80u
#endif

static void run_or_skip(const char *kernels, bt_kv_format format, size_t prompts_max,
                        size_t prompt_tokens_max, bt_golden_report *report)
{
    const char *model = getenv("BATON_TEST_MODEL");
    if (model == NULL || access(model, R_OK) != 0) {
        skip();
    }
    bt_golden *golden = NULL;
    bt_error err = {""};
    bt_status status = bt_golden_open(GOLDEN_PATH, &golden, &err);
    if (status == BT_OK) {
        const bt_golden_run_options options = {
            .model_path = model,
            .kernels = kernels,
            .kv_format = format,
            .n_threads = 2,
            .chunk = 64,
            .prompts_max = prompts_max,
            .prompt_tokens_max = prompt_tokens_max,
        };
        status = bt_golden_run(golden, &options, report, &err);
    }
    bt_golden_close(golden);
    if (status != BT_OK) {
        fail_msg("%s: %s", kernels, err.text);
    }
}

static void reference_path_is_within_a_thousandth_of_float32(void **state)
{
    (void)state;
    bt_golden_report report;
    run_or_skip("reference", BT_KV_FORMAT_F32, N_PROMPTS_REFERENCE, TOKENS_MAX_REFERENCE, &report);
    assert_int_equal(report.n_prompts, N_PROMPTS_REFERENCE);
    if (!bt_golden_is_exact(&report)) {
        fail_msg("largest difference %g, %zu clear misses", (double)report.max_abs,
                 report.n_clear_misses);
    }
}

static void fast_paths_choose_the_tokens_of_float32(void **state)
{
    (void)state;
    const char *paths[N_PATHS_MAX];
    const size_t n_paths = bt_cpu_backend_paths(paths, N_PATHS_MAX);
    for (size_t i = 0; i < n_paths; i++) {
        if (strcmp(paths[i], "reference") == 0) {
            continue;
        }
        /* Plain C pays for the rounding in software: fewer prompts. */
        const size_t prompts_max =
            strcmp(paths[i], "portable") == 0 ? N_PROMPTS_PORTABLE : N_PROMPTS_FAST;
        if (prompts_max == 0) {
            continue;
        }
        bt_golden_report report;
        run_or_skip(paths[i], BT_KV_FORMAT_BF16, prompts_max, TOKENS_MAX_FAST, &report);
        if (!bt_golden_is_close(&report)) {
            fail_msg("%s: same argmax at %zu of %zu, largest gap elsewhere %g, mean KL %g",
                     paths[i], report.n_same_argmax, report.n_positions, (double)report.gap_max,
                     report.kl_sum / (double)report.n_positions);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_path_is_within_a_thousandth_of_float32),
        cmocka_unit_test(fast_paths_choose_the_tokens_of_float32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
