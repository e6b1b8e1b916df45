/* SPDX-License-Identifier: Apache-2.0 */
/* A registry is a list of families (one name each), a family a list of series (one label
 * set each). Both lists only grow, at their end, under one mutex, which rendering takes
 * too; updates touch nothing but their series, with relaxed atomics: a metric orders
 * nothing, and a scrape may see one number before another.
 *
 * A histogram keeps one counter for each bucket, not cumulated; rendering adds them up,
 * so that count and buckets of one scrape always agree. Doubles are kept as their bits
 * and added with a compare-and-swap loop. */
#include "common/metrics.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"
#include "common/utf8.h"

enum {
    LINE_BYTES = 64,
    HOOKS_MAX = 16,
    NUMBER_BYTES = 32,
};

typedef enum kind {
    KIND_COUNTER,
    KIND_GAUGE,
    KIND_HISTOGRAM,
    KIND_FLOAT_COUNTER, /* a gauge inside, shown as a counter: CPU seconds */
} kind;

typedef struct family family;

/* All numbers: any thread, relaxed. */
struct bt_counter {
    _Atomic uint64_t n;
};

struct bt_gauge {
    _Atomic uint64_t bits; /* of the double */
};

struct bt_histogram {
    const family *family; /* has the bounds */
    _Atomic uint64_t sum_bits;
    _Atomic uint64_t *buckets; /* [n_bounds + 1], behind the series */
};

typedef struct series {
    struct series *next;
    char *values[BT_METRICS_LABELS_MAX]; /* fixed after create */
    /* the one that the family's kind says */
    bt_counter counter;
    bt_gauge gauge;
    bt_histogram histogram;
} series;

struct family {
    family *next;
    kind kind;
    char *name;
    char *help;
    size_t n_labels;
    char *labels[BT_METRICS_LABELS_MAX];
    size_t n_bounds;
    double bounds[BT_METRICS_BOUNDS_MAX];
    size_t n_series; /* without `other` */
    series *first;
    series *last;
    series *other; /* in the list as well; NULL until the limit is met */
};

typedef struct hook {
    void (*fn)(void *ctx);
    void *ctx;
} hook;

typedef struct process_gauges {
    bt_gauge *cpu_seconds;
    bt_gauge *resident_bytes;
    bt_gauge *virtual_bytes;
    bt_gauge *open_fds;
} process_gauges;

struct bt_metrics {
    pthread_mutex_t mutex;
    family *first; /* under mutex, like all below */
    family *last;
    hook hooks[HOOKS_MAX];
    size_t n_hooks;
    process_gauges process;
};

static const double latency_bounds[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                        0.2,    0.35,  0.5,   0.75,  1,    1.5,  2,    3,
                                        5,      7.5,   10,    15,    20,   30,   60};
static const double count_bounds[] = {1,   2,    4,    8,    16,   32,    64,    128,  256,
                                      512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};

const bt_metric_bounds bt_metric_bounds_latency = {latency_bounds, BT_ARRAY_LEN(latency_bounds)};
const bt_metric_bounds bt_metric_bounds_count = {count_bounds, BT_ARRAY_LEN(count_bounds)};

static const bt_metric_bounds no_bounds = {NULL, 0};

/* ---- doubles in atomics ---- */

static uint64_t bits_of(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static double of_bits(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static void add_double(_Atomic uint64_t *number, double delta)
{
    uint64_t seen = atomic_load_explicit(number, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(number, &seen, bits_of(of_bits(seen) + delta),
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* ---- registry ---- */

static bool name_is_good(const char *name, bool colons)
{
    for (size_t i = 0; name[i]; i++) {
        const char c = name[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        const bool digit = c >= '0' && c <= '9';
        if (!letter && !(digit && i > 0) && !(colons && c == ':')) {
            return false;
        }
    }
    return name[0] != '\0';
}

bt_status bt_metrics_create(bt_metrics **out)
{
    bt_metrics *m = calloc(1, sizeof *m);
    if (!m) {
        return BT_ENOMEM;
    }
    if (pthread_mutex_init(&m->mutex, NULL) != 0) {
        free(m);
        return BT_ENOMEM;
    }
    *out = m;
    return BT_OK;
}

static void free_series(series *s)
{
    if (s) {
        for (size_t i = 0; i < BT_METRICS_LABELS_MAX; i++) {
            free(s->values[i]);
        }
        free(s);
    }
}

static void free_family(family *f)
{
    for (series *s = f->first; s;) {
        series *next = s->next;
        free_series(s);
        s = next;
    }
    for (size_t i = 0; i < BT_METRICS_LABELS_MAX; i++) {
        free(f->labels[i]);
    }
    free(f->name);
    free(f->help);
    free(f);
}

void bt_metrics_destroy(bt_metrics *m)
{
    if (!m) {
        return;
    }
    for (family *f = m->first; f;) {
        family *next = f->next;
        free_family(f);
        f = next;
    }
    pthread_mutex_destroy(&m->mutex);
    free(m);
}

static void check_same_shape(const family *f, kind k, const bt_metric_label *labels,
                             size_t n_labels)
{
    BT_ASSERT(f->kind == k);
    BT_ASSERT(f->n_labels == n_labels);
    for (size_t i = 0; i < n_labels; i++) {
        BT_ASSERT(strcmp(f->labels[i], labels[i].name) == 0);
    }
}

static family *make_family(const char *name, const char *help, kind k, bt_metric_bounds bounds,
                           const bt_metric_label *labels, size_t n_labels)
{
    BT_ASSERT(name_is_good(name, true));
    BT_ASSERT(n_labels <= BT_METRICS_LABELS_MAX);
    BT_ASSERT(bounds.n <= BT_METRICS_BOUNDS_MAX);
    family *f = calloc(1, sizeof *f);
    if (!f) {
        return NULL;
    }
    f->kind = k;
    f->name = strdup(name);
    f->help = strdup(help);
    f->n_labels = n_labels;
    f->n_bounds = bounds.n;
    bool complete = f->name && f->help;
    for (size_t i = 0; i < bounds.n; i++) {
        BT_ASSERT(i == 0 || bounds.upper[i - 1] < bounds.upper[i]);
        f->bounds[i] = bounds.upper[i];
    }
    for (size_t i = 0; i < n_labels; i++) {
        BT_ASSERT(name_is_good(labels[i].name, false));
        f->labels[i] = strdup(labels[i].name);
        complete = complete && f->labels[i];
    }
    if (!complete) {
        free_family(f);
        return NULL;
    }
    return f;
}

/* Under the mutex. NULL: out of memory. */
static family *get_family(bt_metrics *m, const char *name, const char *help, kind k,
                          bt_metric_bounds bounds, const bt_metric_label *labels, size_t n_labels)
{
    for (family *f = m->first; f; f = f->next) {
        if (strcmp(f->name, name) == 0) {
            check_same_shape(f, k, labels, n_labels);
            return f;
        }
    }
    family *f = make_family(name, help, k, bounds, labels, n_labels);
    if (!f) {
        return NULL;
    }
    if (m->last) {
        m->last->next = f;
    } else {
        m->first = f;
    }
    m->last = f;
    return f;
}

static bool same_values(const family *f, const series *s, const bt_metric_label *labels)
{
    for (size_t i = 0; i < f->n_labels; i++) {
        if (strcmp(s->values[i], labels[i].value) != 0) {
            return false;
        }
    }
    return true;
}

/* labels NULL: all values are "other". */
static series *add_series(family *f, const bt_metric_label *labels)
{
    const size_t n_buckets = f->kind == KIND_HISTOGRAM ? f->n_bounds + 1 : 0;
    const size_t bytes =
        bt_align_up(sizeof(series) + n_buckets * sizeof(_Atomic uint64_t), LINE_BYTES);
    series *s = aligned_alloc(LINE_BYTES, bytes); /* threads that update two never share a line */
    if (!s) {
        return NULL;
    }
    memset(s, 0, bytes);
    s->histogram.family = f;
    s->histogram.buckets = (void *)(s + 1);
    for (size_t i = 0; i < f->n_labels; i++) {
        s->values[i] = strdup(labels ? labels[i].value : "other");
        if (!s->values[i]) {
            free_series(s);
            return NULL;
        }
    }
    if (f->last) {
        f->last->next = s;
    } else {
        f->first = s;
    }
    f->last = s;
    return s;
}

/* Under the mutex. NULL: out of memory. */
static series *get_series(family *f, const bt_metric_label *labels)
{
    for (series *s = f->first; s; s = s->next) {
        if (same_values(f, s, labels)) {
            return s;
        }
    }
    if (f->n_series >= BT_METRICS_SERIES_MAX) {
        if (!f->other) {
            f->other = add_series(f, NULL);
        }
        return f->other;
    }
    series *s = add_series(f, labels);
    f->n_series += s ? 1 : 0;
    return s;
}

static series *get(bt_metrics *m, const char *name, const char *help, kind k,
                   bt_metric_bounds bounds, const bt_metric_label *labels, size_t n_labels)
{
    if (!m) {
        return NULL;
    }
    pthread_mutex_lock(&m->mutex);
    family *f = get_family(m, name, help, k, bounds, labels, n_labels);
    series *s = f ? get_series(f, labels) : NULL;
    pthread_mutex_unlock(&m->mutex);
    return s;
}

bt_counter *bt_metrics_counter(bt_metrics *m, const char *name, const char *help,
                               const bt_metric_label *labels, size_t n_labels)
{
    series *s = get(m, name, help, KIND_COUNTER, no_bounds, labels, n_labels);
    return s ? &s->counter : NULL;
}

bt_gauge *bt_metrics_gauge(bt_metrics *m, const char *name, const char *help,
                           const bt_metric_label *labels, size_t n_labels)
{
    series *s = get(m, name, help, KIND_GAUGE, no_bounds, labels, n_labels);
    return s ? &s->gauge : NULL;
}

bt_histogram *bt_metrics_histogram(bt_metrics *m, const char *name, const char *help,
                                   bt_metric_bounds bounds, const bt_metric_label *labels,
                                   size_t n_labels)
{
    BT_ASSERT(bounds.n > 0);
    series *s = get(m, name, help, KIND_HISTOGRAM, bounds, labels, n_labels);
    return s ? &s->histogram : NULL;
}

/* ---- updates ---- */

void bt_counter_add(bt_counter *counter, uint64_t n)
{
    if (counter) {
        atomic_fetch_add_explicit(&counter->n, n, memory_order_relaxed);
    }
}

void bt_gauge_set(bt_gauge *gauge, double value)
{
    if (gauge) {
        atomic_store_explicit(&gauge->bits, bits_of(value), memory_order_relaxed);
    }
}

void bt_gauge_add(bt_gauge *gauge, double delta)
{
    if (gauge) {
        add_double(&gauge->bits, delta);
    }
}

void bt_histogram_observe(bt_histogram *histogram, double value)
{
    if (!histogram || isnan(value)) {
        return;
    }
    const family *f = histogram->family;
    size_t i = 0;
    while (i < f->n_bounds && value > f->bounds[i]) {
        i++;
    }
    atomic_fetch_add_explicit(&histogram->buckets[i], 1, memory_order_relaxed);
    add_double(&histogram->sum_bits, value);
}

void bt_histogram_observe_ns(bt_histogram *histogram, int64_t ns)
{
    bt_histogram_observe(histogram, (double)ns / 1e9);
}

uint64_t bt_counter_value(const bt_counter *counter)
{
    return counter ? atomic_load_explicit(&counter->n, memory_order_relaxed) : 0;
}

double bt_gauge_value(const bt_gauge *gauge)
{
    return gauge ? of_bits(atomic_load_explicit(&gauge->bits, memory_order_relaxed)) : 0;
}

uint64_t bt_histogram_count(const bt_histogram *histogram)
{
    uint64_t count = 0;
    for (size_t i = 0; histogram && i <= histogram->family->n_bounds; i++) {
        count += atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
    }
    return count;
}

double bt_histogram_sum(const bt_histogram *histogram)
{
    return histogram ? of_bits(atomic_load_explicit(&histogram->sum_bits, memory_order_relaxed))
                     : 0;
}

bt_status bt_metrics_on_render(bt_metrics *m, void (*fn)(void *ctx), void *ctx)
{
    if (!m) {
        return BT_OK;
    }
    pthread_mutex_lock(&m->mutex);
    const bool room = m->n_hooks < HOOKS_MAX;
    if (room) {
        m->hooks[m->n_hooks++] = (hook){.fn = fn, .ctx = ctx};
    }
    pthread_mutex_unlock(&m->mutex);
    return room ? BT_OK : BT_EEXHAUSTED;
}

/* ---- the process's own ---- */

static size_t count_open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    size_t n = 0;
    while (dir && readdir(dir)) {
        n++;
    }
    if (dir) {
        (void)closedir(dir);
    }
    return n > 3 ? n - 3 : 0; /* ".", ".." and the folder itself */
}

static void read_process(void *ctx)
{
    const process_gauges *p = ctx;
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        const double us = (double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec;
        bt_gauge_set(p->cpu_seconds,
                     (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec + us / 1e6);
    }
    FILE *statm = fopen("/proc/self/statm", "re");
    if (statm) {
        unsigned long total_pages;
        unsigned long resident_pages;
        if (fscanf(statm, "%lu %lu", &total_pages, &resident_pages) == 2) {
            const double page = (double)sysconf(_SC_PAGESIZE);
            bt_gauge_set(p->virtual_bytes, (double)total_pages * page);
            bt_gauge_set(p->resident_bytes, (double)resident_pages * page);
        }
        (void)fclose(statm);
    }
    bt_gauge_set(p->open_fds, (double)count_open_fds());
}

void bt_metrics_add_process(bt_metrics *m)
{
    if (!m) {
        return;
    }
    series *cpu = get(m, "process_cpu_seconds_total", "User and system CPU time spent in seconds.",
                      KIND_FLOAT_COUNTER, no_bounds, BT_NO_LABELS);
    m->process = (process_gauges){
        .cpu_seconds = cpu ? &cpu->gauge : NULL,
        .resident_bytes = bt_metrics_gauge(m, "process_resident_memory_bytes",
                                           "Resident memory size in bytes.", BT_NO_LABELS),
        .virtual_bytes = bt_metrics_gauge(m, "process_virtual_memory_bytes",
                                          "Virtual memory size in bytes.", BT_NO_LABELS),
        .open_fds = bt_metrics_gauge(m, "process_open_fds", "Number of open file descriptors.",
                                     BT_NO_LABELS),
    };
    bt_gauge *start =
        bt_metrics_gauge(m, "process_start_time_seconds",
                         "Start time of the process since unix epoch in seconds.", BT_NO_LABELS);
    bt_gauge_set(start, (double)time(NULL));
    const bt_status status = bt_metrics_on_render(m, read_process, &m->process);
    BT_ASSERT(status == BT_OK); /* called once, at start */
}

/* ---- text ---- */

typedef struct text {
    char *bytes;
    size_t len;
    size_t capacity;
    bool failed;
} text;

static void put(text *t, const char *bytes, size_t n)
{
    if (t->failed) {
        return;
    }
    if (n >= t->capacity - t->len) {
        const size_t capacity = bt_size_max(2 * t->capacity, t->len + n + 4096);
        char *grown = realloc(t->bytes, capacity);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->bytes = grown;
        t->capacity = capacity;
    }
    memcpy(t->bytes + t->len, bytes, n);
    t->len += n;
    t->bytes[t->len] = '\0';
}

static void put_text(text *t, const char *s)
{
    put(t, s, strlen(s));
}

/* Help escapes backslash and newline, label values the quote as well. */
static void put_escaped(text *t, const char *s, bool quote)
{
    const size_t n = strlen(s);
    for (size_t i = 0; i < n;) {
        bool valid;
        const size_t len = bt_utf8_step(s + i, n - i, &valid);
        if (!valid) {
            put_text(t, BT_UTF8_REPLACEMENT);
        } else if (s[i] == '\\') {
            put_text(t, "\\\\");
        } else if (s[i] == '\n') {
            put_text(t, "\\n");
        } else if (s[i] == '"' && quote) {
            put_text(t, "\\\"");
        } else {
            put(t, s + i, len);
        }
        i += len;
    }
}

static void put_double(text *t, double v)
{
    char number[NUMBER_BYTES];
    if (isnan(v)) {
        put_text(t, "NaN");
    } else if (isinf(v)) {
        put_text(t, v > 0 ? "+Inf" : "-Inf");
    } else {
        (void)snprintf(number, sizeof number, "%.15g", v);
        if (strtod(number, NULL) != v) {
            (void)snprintf(number, sizeof number, "%.17g", v);
        }
        put_text(t, number);
    }
}

static void put_uint(text *t, uint64_t v)
{
    char number[NUMBER_BYTES];
    (void)snprintf(number, sizeof number, "%" PRIu64, v);
    put_text(t, number);
}

/* name + suffix, then {labels, le="bound"}, then a space. `bound` NULL: no le. */
static void put_series_name(text *t, const family *f, const series *s, const char *suffix,
                            const double *bound)
{
    put_text(t, f->name);
    put_text(t, suffix);
    const char *separator = "{";
    for (size_t i = 0; i < f->n_labels; i++) {
        put_text(t, separator);
        put_text(t, f->labels[i]);
        put_text(t, "=\"");
        put_escaped(t, s->values[i], true);
        put_text(t, "\"");
        separator = ",";
    }
    if (bound) {
        put_text(t, separator);
        put_text(t, "le=\"");
        put_double(t, *bound);
        put_text(t, "\"");
    }
    put_text(t, f->n_labels > 0 || bound ? "} " : " ");
}

static void put_histogram(text *t, const family *f, const series *s)
{
    uint64_t count = 0;
    for (size_t i = 0; i <= f->n_bounds; i++) {
        const double bound = i < f->n_bounds ? f->bounds[i] : INFINITY;
        count += atomic_load_explicit(&s->histogram.buckets[i], memory_order_relaxed);
        put_series_name(t, f, s, "_bucket", &bound);
        put_uint(t, count);
        put_text(t, "\n");
    }
    put_series_name(t, f, s, "_sum", NULL);
    put_double(t, bt_histogram_sum(&s->histogram));
    put_text(t, "\n");
    put_series_name(t, f, s, "_count", NULL);
    put_uint(t, count);
    put_text(t, "\n");
}

static void put_family(text *t, const family *f)
{
    static const char *const types[] = {
        [KIND_COUNTER] = " counter\n",
        [KIND_GAUGE] = " gauge\n",
        [KIND_HISTOGRAM] = " histogram\n",
        [KIND_FLOAT_COUNTER] = " counter\n",
    };
    put_text(t, "# HELP ");
    put_text(t, f->name);
    put_text(t, " ");
    put_escaped(t, f->help, false);
    put_text(t, "\n# TYPE ");
    put_text(t, f->name);
    put_text(t, types[f->kind]);
    for (const series *s = f->first; s; s = s->next) {
        if (f->kind == KIND_HISTOGRAM) {
            put_histogram(t, f, s);
            continue;
        }
        put_series_name(t, f, s, "", NULL);
        if (f->kind == KIND_COUNTER) {
            put_uint(t, bt_counter_value(&s->counter));
        } else {
            put_double(t, bt_gauge_value(&s->gauge));
        }
        put_text(t, "\n");
    }
}

bt_status bt_metrics_render(bt_metrics *m, char **out, size_t *len)
{
    text t = {.bytes = malloc(1), .capacity = 1};
    if (!t.bytes) {
        return BT_ENOMEM;
    }
    t.bytes[0] = '\0';
    if (m) {
        pthread_mutex_lock(&m->mutex);
        const size_t n_hooks = m->n_hooks;
        pthread_mutex_unlock(&m->mutex);
        /* Outside the mutex: a hook may ask for a metric. Hooks are never taken away. */
        for (size_t i = 0; i < n_hooks; i++) {
            m->hooks[i].fn(m->hooks[i].ctx);
        }
        pthread_mutex_lock(&m->mutex);
        for (const family *f = m->first; f; f = f->next) {
            put_family(&t, f);
        }
        pthread_mutex_unlock(&m->mutex);
    }
    if (t.failed) {
        free(t.bytes);
        return BT_ENOMEM;
    }
    *out = t.bytes;
    *len = t.len;
    return BT_OK;
}
