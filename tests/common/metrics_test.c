/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the exposition text line by line, that many threads lose no update, and that a
 * label invented without end stays bounded. */
#include "common/metrics.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/fault.h"

static int setup(void **state)
{
    bt_metrics *m;
    assert_int_equal(bt_metrics_create(&m), BT_OK);
    *state = m;
    return 0;
}

static int teardown(void **state)
{
    bt_metrics_destroy(*state);
    return 0;
}

static void assert_text(bt_metrics *m, const char *expected)
{
    char *text;
    size_t len;
    assert_int_equal(bt_metrics_render(m, &text, &len), BT_OK);
    assert_string_equal(text, expected);
    assert_int_equal(len, strlen(expected));
    free(text);
}

static void counters_and_gauges_are_shown(void **state)
{
    bt_metrics *m = *state;
    bt_counter *ok = bt_metrics_counter(m, "baton_requests_total", "Requests ended.",
                                        BT_LABELS({"code", "OK"}, {"role", "both"}));
    bt_counter *failed = bt_metrics_counter(m, "baton_requests_total", "Requests ended.",
                                            BT_LABELS({"code", "EPEER"}, {"role", "both"}));
    bt_gauge *blocks = bt_metrics_gauge(m, "baton_blocks", "Blocks free.", BT_NO_LABELS);
    bt_counter_add(ok, 3);
    bt_counter_add(failed, UINT64_C(1) << 60);
    bt_gauge_set(blocks, 2.5);
    bt_gauge_add(blocks, -4);
    assert_int_equal(bt_counter_value(ok), 3);
    assert_true(bt_gauge_value(blocks) == -1.5);
    assert_text(m, "# HELP baton_requests_total Requests ended.\n"
                   "# TYPE baton_requests_total counter\n"
                   "baton_requests_total{code=\"OK\",role=\"both\"} 3\n"
                   "baton_requests_total{code=\"EPEER\",role=\"both\"} 1152921504606846976\n"
                   "# HELP baton_blocks Blocks free.\n"
                   "# TYPE baton_blocks gauge\n"
                   "baton_blocks -1.5\n");
}

static void histograms_cumulate_and_end_in_infinity(void **state)
{
    bt_metrics *m = *state;
    const double upper[] = {0.1, 0.5, 2};
    const bt_metric_bounds bounds = {upper, 3};
    bt_histogram *h =
        bt_metrics_histogram(m, "step_seconds", "Time.", bounds, BT_LABELS({"phase", "decode"}));
    bt_histogram_observe(h, 0.1); /* a bound belongs to its bucket */
    bt_histogram_observe(h, 0.25);
    bt_histogram_observe_ns(h, 250000000);
    bt_histogram_observe(h, 1e9);
    assert_int_equal(bt_histogram_count(h), 4);
    assert_text(m, "# HELP step_seconds Time.\n"
                   "# TYPE step_seconds histogram\n"
                   "step_seconds_bucket{phase=\"decode\",le=\"0.1\"} 1\n"
                   "step_seconds_bucket{phase=\"decode\",le=\"0.5\"} 3\n"
                   "step_seconds_bucket{phase=\"decode\",le=\"2\"} 3\n"
                   "step_seconds_bucket{phase=\"decode\",le=\"+Inf\"} 4\n"
                   "step_seconds_sum{phase=\"decode\"} 1000000000.6\n"
                   "step_seconds_count{phase=\"decode\"} 4\n");
}

static void foreign_text_is_escaped(void **state)
{
    bt_metrics *m = *state;
    bt_counter_add(bt_metrics_counter(m, "a_total", "Back\\slash\nand \"quotes\".",
                                      BT_LABELS({"v", "x\"y\\z\nw\xFF"})),
                   1);
    assert_text(m, "# HELP a_total Back\\\\slash\\nand \"quotes\".\n"
                   "# TYPE a_total counter\n"
                   "a_total{v=\"x\\\"y\\\\z\\nw\xEF\xBF\xBD\"} 1\n");
}

static void special_doubles_have_names(void **state)
{
    bt_metrics *m = *state;
    bt_gauge *g = bt_metrics_gauge(m, "g", "G.", BT_NO_LABELS);
    bt_gauge_set(g, 1.0 / 0.0);
    assert_text(m, "# HELP g G.\n# TYPE g gauge\ng +Inf\n");
    bt_gauge_set(g, -1.0 / 0.0);
    assert_text(m, "# HELP g G.\n# TYPE g gauge\ng -Inf\n");
    bt_gauge_set(g, 0.1 + 0.2);
    assert_text(m, "# HELP g G.\n# TYPE g gauge\ng 0.30000000000000004\n");
}

static void the_same_name_and_labels_are_one_object(void **state)
{
    bt_metrics *m = *state;
    bt_counter *a = bt_metrics_counter(m, "n_total", "N.", BT_LABELS({"w", "1"}));
    bt_counter *b = bt_metrics_counter(m, "n_total", "N.", BT_LABELS({"w", "2"}));
    assert_ptr_equal(a, bt_metrics_counter(m, "n_total", "N.", BT_LABELS({"w", "1"})));
    assert_ptr_not_equal(a, b);
}

static void invented_labels_fold_into_other(void **state)
{
    bt_metrics *m = *state;
    char value[32];
    for (int i = 0; i < BT_METRICS_SERIES_MAX + 50; i++) {
        (void)snprintf(value, sizeof value, "tenant-%d", i);
        bt_counter_add(bt_metrics_counter(m, "t_total", "T.", BT_LABELS({"tenant", value})), 1);
    }
    char *text;
    size_t len;
    assert_int_equal(bt_metrics_render(m, &text, &len), BT_OK);
    assert_non_null(strstr(text, "t_total{tenant=\"tenant-255\"} 1\n"));
    assert_null(strstr(text, "tenant-256"));
    assert_non_null(strstr(text, "t_total{tenant=\"other\"} 50\n"));
    free(text);
}

static void metrics_that_are_off_take_everything(void **state)
{
    (void)state;
    bt_counter *c = bt_metrics_counter(NULL, "n_total", "N.", BT_NO_LABELS);
    bt_gauge *g = bt_metrics_gauge(NULL, "g", "G.", BT_NO_LABELS);
    bt_histogram *h = bt_metrics_histogram(NULL, "h", "H.", bt_metric_bounds_latency, BT_NO_LABELS);
    assert_null(c);
    bt_counter_add(c, 1);
    bt_gauge_set(g, 1);
    bt_gauge_add(g, 1);
    bt_histogram_observe(h, 1);
    assert_int_equal(bt_counter_value(c), 0);
    assert_int_equal(bt_histogram_count(h), 0);
    bt_metrics_add_process(NULL);
    bt_metrics_destroy(NULL);
    assert_text(NULL, "");
}

static void set_from_hook(void *ctx)
{
    bt_gauge_add(ctx, 1);
}

static void hooks_run_before_each_render(void **state)
{
    bt_metrics *m = *state;
    bt_gauge *g = bt_metrics_gauge(m, "g", "G.", BT_NO_LABELS);
    assert_int_equal(bt_metrics_on_render(m, set_from_hook, g), BT_OK);
    assert_text(m, "# HELP g G.\n# TYPE g gauge\ng 1\n");
    assert_text(m, "# HELP g G.\n# TYPE g gauge\ng 2\n");
}

static void the_process_shows_itself(void **state)
{
    bt_metrics *m = *state;
    char *text;
    size_t len;
    bt_metrics_add_process(m);
    assert_int_equal(bt_metrics_render(m, &text, &len), BT_OK);
    assert_non_null(strstr(text, "# TYPE process_cpu_seconds_total counter\n"));
    assert_non_null(strstr(text, "\nprocess_resident_memory_bytes "));
    assert_null(strstr(text, "\nprocess_resident_memory_bytes 0\n"));
    assert_null(strstr(text, "\nprocess_open_fds 0\n"));
    free(text);
}

typedef struct updater {
    bt_metrics *m;
    bt_counter *counter;
    bt_gauge *gauge;
    bt_histogram *histogram;
} updater;

enum {
    N_THREADS = 4,
    N_UPDATES = 5000,
};

static void *update(void *ctx)
{
    updater *u = ctx;
    for (int i = 0; i < N_UPDATES; i++) {
        bt_counter_add(u->counter, 2);
        bt_gauge_add(u->gauge, 1);
        bt_histogram_observe(u->histogram, i % 2 ? 0.001 : 100);
    }
    char *text;
    size_t len;
    if (bt_metrics_render(u->m, &text, &len) == BT_OK) { /* beside other threads' updates */
        free(text);
    }
    return NULL;
}

static void no_update_is_lost_between_threads(void **state)
{
    bt_metrics *m = *state;
    updater u = {
        .m = m,
        .counter = bt_metrics_counter(m, "c_total", "C.", BT_NO_LABELS),
        .gauge = bt_metrics_gauge(m, "g", "G.", BT_NO_LABELS),
        .histogram = bt_metrics_histogram(m, "h", "H.", bt_metric_bounds_latency, BT_NO_LABELS),
    };
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, update, &u), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(bt_counter_value(u.counter), 2 * N_THREADS * N_UPDATES);
    assert_true(bt_gauge_value(u.gauge) == N_THREADS * N_UPDATES);
    assert_int_equal(bt_histogram_count(u.histogram), N_THREADS * N_UPDATES);
}

static void lack_of_memory_gives_objects_that_do_nothing(void **state)
{
    bt_metrics *m = *state;
    if (!bt_fault_available()) {
        skip();
    }
    for (size_t n = 1;; n++) {
        bt_fault_fail_nth(n);
        bt_histogram *h = bt_metrics_histogram(m, "h", "H.", bt_metric_bounds_count,
                                               BT_LABELS({"a", "1"}, {"b", "2"}));
        if (!bt_fault_disarm()) {
            assert_non_null(h);
            break;
        }
        assert_null(h);
    }
    for (size_t n = 1;; n++) {
        char *text = NULL;
        size_t len;
        bt_fault_fail_nth(n);
        const bt_status status = bt_metrics_render(m, &text, &len);
        if (!bt_fault_disarm()) {
            free(text);
            break;
        }
        assert_int_equal(status, BT_ENOMEM);
    }
}

#define metrics_test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        metrics_test(counters_and_gauges_are_shown),
        metrics_test(histograms_cumulate_and_end_in_infinity),
        metrics_test(foreign_text_is_escaped),
        metrics_test(special_doubles_have_names),
        metrics_test(the_same_name_and_labels_are_one_object),
        metrics_test(invented_labels_fold_into_other),
        cmocka_unit_test(metrics_that_are_off_take_everything),
        metrics_test(hooks_run_before_each_render),
        metrics_test(the_process_shows_itself),
        metrics_test(no_update_is_lost_between_threads),
        metrics_test(lack_of_memory_gives_objects_that_do_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
