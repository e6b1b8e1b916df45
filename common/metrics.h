/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - counters, gauges and histograms, read as Prometheus text.
 *
 *   bt_counter *done = bt_metrics_counter(m, "baton_requests_total", "Requests ended.",
 *                                         BT_LABELS({"code", "OK"}));
 *   bt_counter_add(done, 1);
 *
 * Asking again for the same name and labels gives the same object. Names and labels
 * follow Prometheus: snake_case, base units (seconds, bytes), counters end in _total;
 * a wrong name, or one name with two types or other label names, is a bug and asserted.
 * A name may have BT_METRICS_SERIES_MAX label sets; further ones share one whose values
 * are all "other", so that no peer can fill memory by inventing values.
 *
 * Where metrics are off (`m` is NULL) or memory is out, the object is NULL; all updates
 * take NULL and do nothing.
 *
 * Threading: any thread. Updates are lock-free (histograms: a compare-and-swap loop);
 *            getting an object takes a lock and allocates: do it at start and keep it.
 * Memory:    objects live until bt_metrics_destroy().
 */
#ifndef BT_COMMON_METRICS_H
#define BT_COMMON_METRICS_H

#include "common/status.h"

enum {
    BT_METRICS_SERIES_MAX = 256, /* label sets of one name, without "other" */
    BT_METRICS_LABELS_MAX = 6,
    BT_METRICS_BOUNDS_MAX = 32, /* of one histogram, without +Inf */
};

typedef struct bt_metrics bt_metrics;
typedef struct bt_counter bt_counter;     /* whole number that only grows */
typedef struct bt_gauge bt_gauge;         /* double that goes up and down */
typedef struct bt_histogram bt_histogram; /* counts of doubles by upper bound */

typedef struct bt_metric_label {
    const char *name;  /* [a-zA-Z_][a-zA-Z0-9_]* */
    const char *value; /* any text; copied */
} bt_metric_label;

/* The last two arguments of the calls below: BT_LABELS({"role", "prefill"}, ...). */
#define BT_LABELS(...)                                                                             \
    (const bt_metric_label[]){__VA_ARGS__}, BT_ARRAY_LEN(((const bt_metric_label[]){__VA_ARGS__}))
#define BT_NO_LABELS NULL, 0

/* Upper bounds in increasing order; +Inf is added. */
typedef struct bt_metric_bounds {
    const double *upper;
    size_t n; /* 1 .. BT_METRICS_BOUNDS_MAX */
} bt_metric_bounds;

/* Seconds, 0.5 ms to 60 s: for latencies. */
extern const bt_metric_bounds bt_metric_bounds_latency;

/* 1, 2, 4 ... 65,536: for tokens, blocks, rows. */
extern const bt_metric_bounds bt_metric_bounds_count;

BT_MUST_CHECK bt_status bt_metrics_create(bt_metrics **out);
void bt_metrics_destroy(bt_metrics *m);

/* `name` and `help` are copied; labels in the same order at each call. */
bt_counter *bt_metrics_counter(bt_metrics *m, const char *name, const char *help,
                               const bt_metric_label *labels, size_t n_labels);
bt_gauge *bt_metrics_gauge(bt_metrics *m, const char *name, const char *help,
                           const bt_metric_label *labels, size_t n_labels);
bt_histogram *bt_metrics_histogram(bt_metrics *m, const char *name, const char *help,
                                   bt_metric_bounds bounds, const bt_metric_label *labels,
                                   size_t n_labels);

void bt_counter_add(bt_counter *counter, uint64_t n);
void bt_gauge_set(bt_gauge *gauge, double value);
void bt_gauge_add(bt_gauge *gauge, double delta);
void bt_histogram_observe(bt_histogram *histogram, double value);

/* For times kept in ns and shown in seconds. */
void bt_histogram_observe_ns(bt_histogram *histogram, int64_t ns);

/* Now; 0 for NULL. */
uint64_t bt_counter_value(const bt_counter *counter);
double bt_gauge_value(const bt_gauge *gauge);
uint64_t bt_histogram_count(const bt_histogram *histogram);
double bt_histogram_sum(const bt_histogram *histogram);

/* fn(ctx) runs at the start of each render, on the rendering thread: it may set gauges
 * from what other threads have published. Register before the first render. */
BT_MUST_CHECK bt_status bt_metrics_on_render(bt_metrics *m, void (*fn)(void *ctx), void *ctx);

/* Adds the process's own: CPU seconds, resident and virtual bytes, open descriptors,
 * start time, as Prometheus's client libraries name them. */
void bt_metrics_add_process(bt_metrics *m);

/* Text exposition format 0.0.4, in order of registration, NUL-terminated; the caller
 * frees *text. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_metrics_render(bt_metrics *m, char **text, size_t *len);

#endif /* BT_COMMON_METRICS_H */
