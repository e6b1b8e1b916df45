/* SPDX-License-Identifier: Apache-2.0 */
/* The committed vectors can be read and are sane; comparison measures what it says; a damaged
 * file is refused with a text, whatever the damage. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/golden.h"

#define GOLDEN_PATH "tests/golden/smollm2.bin"

static bt_golden *open_golden(void)
{
    bt_golden *golden = NULL;
    bt_error err = {""};
    if (bt_golden_open(GOLDEN_PATH, &golden, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return golden;
}

/* Logits that agree with the row, and are far below it elsewhere. */
static float *logits_of(const bt_golden *golden, const bt_golden_row *row)
{
    const size_t n = bt_golden_n_vocab(golden);
    float *logits = malloc(n * sizeof *logits);
    assert_non_null(logits);
    for (size_t i = 0; i < n; i++) {
        logits[i] = -60.0f;
    }
    for (size_t i = 0; i < BT_GOLDEN_N_PROBE; i++) {
        logits[bt_golden_probe_ids(golden)[i]] = row->probe_logits[i];
    }
    for (size_t i = 0; i < BT_GOLDEN_N_TOP; i++) {
        logits[row->top_ids[i]] = row->top_logits[i];
    }
    return logits;
}

static void committed_vectors_cover_short_and_long_prompts(void **state)
{
    (void)state;
    bt_golden *golden = open_golden();
    size_t least = SIZE_MAX;
    size_t most = 0;
    assert_true(bt_golden_n_prompts(golden) >= 20);
    for (size_t i = 0; i < bt_golden_n_prompts(golden); i++) {
        const size_t n = bt_golden_prompt_at(golden, i)->n_tokens;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    assert_int_equal(least, 1);
    assert_in_range(most, 1900, 2100);
    assert_string_equal(bt_golden_prompt_at(golden, 0)->name, "sky");
    assert_non_null(bt_golden_prompt_named(golden, "emoji"));
    assert_null(bt_golden_prompt_named(golden, "no such prompt"));
    bt_golden_close(golden);
}

static void every_row_is_finite_sorted_and_below_its_log_sum_exp(void **state)
{
    (void)state;
    bt_golden *golden = open_golden();
    for (size_t i = 0; i < bt_golden_n_prompts(golden); i++) {
        for (size_t k = 0; k < BT_GOLDEN_N_STEPS; k++) {
            const bt_golden_row *row = &bt_golden_prompt_at(golden, i)->rows[k];
            assert_true(isfinite(row->log_sum_exp));
            assert_true(row->top_logits[0] <= row->log_sum_exp);
            for (size_t j = 1; j < BT_GOLDEN_N_TOP; j++) {
                assert_true(row->top_logits[j] <= row->top_logits[j - 1]);
                assert_true(isfinite(row->probe_logits[j]));
            }
        }
    }
    bt_golden_close(golden);
}

static void equal_logits_show_no_difference(void **state)
{
    (void)state;
    bt_golden *golden = open_golden();
    const bt_golden_row *row = &bt_golden_prompt_at(golden, 0)->rows[0];
    float *logits = logits_of(golden, row);
    const bt_golden_diff diff = bt_golden_compare(golden, row, logits);
    assert_true(diff.same_argmax);
    assert_true(diff.max_abs == 0.0f);
    assert_true(diff.lost == 0.0f);
    free(logits);
    bt_golden_close(golden);
}

static void another_choice_costs_its_distance_in_the_reference(void **state)
{
    (void)state;
    bt_golden *golden = open_golden();
    const bt_golden_row *row = &bt_golden_prompt_at(golden, 0)->rows[0];
    float *logits = logits_of(golden, row);
    logits[row->top_ids[2]] = row->top_logits[0] + 1.0f;
    const bt_golden_diff diff = bt_golden_compare(golden, row, logits);
    assert_false(diff.same_argmax);
    assert_int_equal(diff.argmax, row->top_ids[2]);
    assert_true(diff.lost == row->top_logits[0] - row->top_logits[2]);
    assert_true(diff.kl > 0);
    logits[row->top_ids[5]] = NAN;
    assert_true(isnan(bt_golden_compare(golden, row, logits).max_abs));
    free(logits);
    bt_golden_close(golden);
}

/* Writes the first n_bytes of the committed file, byte `flip` changed, to a new file. */
static void write_damaged(char *path, size_t n_bytes, size_t flip)
{
    FILE *source = fopen(GOLDEN_PATH, "rb");
    assert_non_null(source);
    unsigned char *bytes = malloc(n_bytes);
    assert_non_null(bytes);
    n_bytes = fread(bytes, 1, n_bytes, source);
    (void)fclose(source);
    if (flip < n_bytes) {
        bytes[flip] ^= 0xff;
    }
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n_bytes), (ssize_t)n_bytes);
    (void)close(fd);
    free(bytes);
}

static void damaged_file_is_refused_with_a_text(void **state)
{
    (void)state;
    static const struct {
        size_t n_bytes, flip;
    } cases[] = {{0, 1},        {10, 100},        {64, 100},     {127, 1000},    {140, 1000},
                 {1000, 2000},  {100000, 200000}, {1 << 22, 0},  {1 << 22, 8},   {1 << 22, 13},
                 {1 << 22, 19}, {1 << 22, 20},    {1 << 22, 24}, {1 << 22, 155}, {1 << 22, 152}};
    for (size_t i = 0; i < BT_ARRAY_LEN(cases); i++) {
        char path[] = "golden_test_XXXXXX";
        write_damaged(path, cases[i].n_bytes, cases[i].flip);
        bt_golden *golden = NULL;
        bt_error err = {""};
        assert_int_not_equal(bt_golden_open(path, &golden, &err), BT_OK);
        assert_null(golden);
        assert_true(strlen(err.text) > 0);
        (void)unlink(path);
    }
    bt_error err = {""};
    bt_golden *golden = NULL;
    assert_int_equal(bt_golden_open("no/such/file", &golden, &err), BT_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_vectors_cover_short_and_long_prompts),
        cmocka_unit_test(every_row_is_finite_sorted_and_below_its_log_sum_exp),
        cmocka_unit_test(equal_logits_show_no_difference),
        cmocka_unit_test(another_choice_costs_its_distance_in_the_reference),
        cmocka_unit_test(damaged_file_is_refused_with_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
