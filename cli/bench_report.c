/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench_report.h"

#include <stdlib.h>

#include "common/json.h"

enum { STATUSES_MAX = 16 };

/* One distribution. */
typedef struct series {
    const char *name;
    const char *title;
    double *values; /* [n] sorted */
    size_t n;
    double sum;
} series;

typedef enum series_kind {
    SERIES_TTFT,
    SERIES_TPOT,
    SERIES_E2E,
    SERIES_GAP,
    N_SERIES,
} series_kind;

typedef struct summary {
    series all[N_SERIES];
    size_t n_ok;
    size_t n_met;
    uint64_t n_prompt;
    uint64_t n_cached;
    uint64_t n_output;
    double seconds;
} summary;

double bt_bench_percentile(const double *sorted, size_t n, double p)
{
    if (n == 0) {
        return 0;
    }
    const double at = p * (double)(n - 1);
    const size_t below = (size_t)at;
    const size_t above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (sorted[above] - sorted[below]) * (at - (double)below);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add(series *s, double value)
{
    s->values[s->n++] = value;
    s->sum += value;
}

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static void take(summary *s, const bt_bench_result *r, const bt_bench_targets *targets)
{
    if (r->status != BT_OK || r->first_ns == 0) {
        return;
    }
    const double ttft = ms(r->first_ns - r->scheduled_ns);
    const double tpot = r->n_output > 1 ? ms(r->last_ns - r->first_ns) / (r->n_output - 1) : 0;
    s->n_ok++;
    s->n_prompt += r->n_prompt;
    s->n_cached += r->n_cached;
    s->n_output += r->n_output;
    add(&s->all[SERIES_TTFT], ttft);
    add(&s->all[SERIES_E2E], ms(r->last_ns - r->scheduled_ns));
    if (r->n_output > 1) {
        add(&s->all[SERIES_TPOT], tpot);
        add(&s->all[SERIES_GAP], ms(r->gap_max_ns));
    }
    s->n_met += (targets->ttft_ms <= 0 || ttft <= targets->ttft_ms) &&
                (targets->tpot_ms <= 0 || tpot <= targets->tpot_ms);
}

static bt_status summarize(const bt_bench_report *report, summary *s)
{
    static const char *const names[N_SERIES] = {"ttft_ms", "tpot_ms", "e2e_ms", "gap_max_ms"};
    static const char *const titles[N_SERIES] = {"TTFT", "TPOT", "end to end", "worst gap"};
    for (size_t i = 0; i < N_SERIES; i++) {
        s->all[i].name = names[i];
        s->all[i].title = titles[i];
        s->all[i].values = calloc(report->n + 1, sizeof(double));
        if (!s->all[i].values) {
            return BT_ENOMEM;
        }
    }
    for (size_t i = 0; i < report->n; i++) {
        take(s, &report->results[i], &report->targets);
    }
    for (size_t i = 0; i < N_SERIES; i++) {
        qsort(s->all[i].values, s->all[i].n, sizeof(double), by_value);
    }
    s->seconds = (double)(report->ended_ns - report->began_ns) / 1e9;
    return BT_OK;
}

static double attainment(const bt_bench_report *report, const summary *s)
{
    return report->n > 0 ? (double)s->n_met / (double)report->n : 0;
}

static void print_text(const bt_bench_report *report, const summary *s, FILE *to)
{
    fprintf(to, "%zu requests in %.1f s: %zu complete, %zu not\n", report->n, s->seconds, s->n_ok,
            report->n - s->n_ok);
    fprintf(to,
            "%llu prompt tokens (%llu cached), %llu output tokens; %.2f requests/s, %.1f "
            "output tokens/s\n",
            (unsigned long long)s->n_prompt, (unsigned long long)s->n_cached,
            (unsigned long long)s->n_output, (double)s->n_ok / s->seconds,
            (double)s->n_output / s->seconds);
    fprintf(to, "%-12s %10s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p95", "p99",
            "max");
    for (size_t i = 0; i < N_SERIES; i++) {
        const series *x = &s->all[i];
        fprintf(
            to, "%-12s %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n", x->title,
            x->n > 0 ? x->sum / (double)x->n : 0, bt_bench_percentile(x->values, x->n, 0.5),
            bt_bench_percentile(x->values, x->n, 0.9), bt_bench_percentile(x->values, x->n, 0.95),
            bt_bench_percentile(x->values, x->n, 0.99), bt_bench_percentile(x->values, x->n, 1));
    }
    if (report->targets.ttft_ms > 0 || report->targets.tpot_ms > 0) {
        fprintf(to, "targets TTFT %.0f ms, TPOT %.0f ms: met by %.1f%% of all requests\n",
                report->targets.ttft_ms, report->targets.tpot_ms, 100 * attainment(report, s));
    }
    fprintf(to, "client: %.0f%% of a core\n", 100 * report->client_cpu);
}

static void write_double(bt_json_writer *w, const char *key, double value)
{
    bt_json_key(w, key);
    bt_json_double(w, value);
}

static void write_uint(bt_json_writer *w, const char *key, uint64_t value)
{
    bt_json_key(w, key);
    bt_json_uint(w, value);
}

static void write_series(bt_json_writer *w, const series *x)
{
    bt_json_key(w, x->name);
    bt_json_object_begin(w);
    write_double(w, "mean", x->n > 0 ? x->sum / (double)x->n : 0);
    write_double(w, "p50", bt_bench_percentile(x->values, x->n, 0.5));
    write_double(w, "p90", bt_bench_percentile(x->values, x->n, 0.9));
    write_double(w, "p95", bt_bench_percentile(x->values, x->n, 0.95));
    write_double(w, "p99", bt_bench_percentile(x->values, x->n, 0.99));
    write_double(w, "max", bt_bench_percentile(x->values, x->n, 1));
    bt_json_object_end(w);
}

/* How the misses ended, by status. */
static void write_failures(bt_json_writer *w, const bt_bench_report *report)
{
    bt_json_key(w, "failures");
    bt_json_object_begin(w);
    bt_status seen[STATUSES_MAX];
    size_t n_seen = 0;
    for (size_t i = 0; i < report->n; i++) {
        const bt_status status = report->results[i].status;
        size_t at = 0;
        while (at < n_seen && seen[at] != status) {
            at++;
        }
        if (status == BT_OK || at < n_seen || n_seen == STATUSES_MAX) {
            continue;
        }
        seen[n_seen++] = status;
        uint64_t n = 0;
        for (size_t j = i; j < report->n; j++) {
            n += report->results[j].status == status;
        }
        write_uint(w, bt_status_name(status), n);
    }
    bt_json_object_end(w);
}

static bt_status print_json(const bt_bench_report *report, const summary *s, FILE *to)
{
    bt_json_writer w;
    bt_json_writer_init(&w, 2);
    bt_json_object_begin(&w);
    write_uint(&w, "requests", report->n);
    write_uint(&w, "complete", s->n_ok);
    write_failures(&w, report);
    write_double(&w, "seconds", s->seconds);
    write_double(&w, "requests_per_s", (double)s->n_ok / s->seconds);
    write_double(&w, "output_tokens_per_s", (double)s->n_output / s->seconds);
    write_uint(&w, "prompt_tokens", s->n_prompt);
    write_uint(&w, "cached_tokens", s->n_cached);
    write_uint(&w, "output_tokens", s->n_output);
    for (size_t i = 0; i < N_SERIES; i++) {
        write_series(&w, &s->all[i]);
    }
    write_double(&w, "ttft_target_ms", report->targets.ttft_ms);
    write_double(&w, "tpot_target_ms", report->targets.tpot_ms);
    write_double(&w, "attainment", attainment(report, s));
    write_double(&w, "client_cpu", report->client_cpu);
    bt_json_object_end(&w);
    const char *text = bt_json_writer_text(&w, NULL);
    if (text) {
        fprintf(to, "%s\n", text);
    }
    bt_json_writer_deinit(&w);
    return text ? BT_OK : BT_ENOMEM;
}

bt_status bt_bench_report_print(const bt_bench_report *report, bool json, FILE *to)
{
    summary s = {0};
    bt_status status = summarize(report, &s);
    if (status == BT_OK && json) {
        status = print_json(report, &s, to);
    } else if (status == BT_OK) {
        print_text(report, &s, to);
    }
    for (size_t i = 0; i < N_SERIES; i++) {
        free(s.all[i].values);
    }
    return status;
}
