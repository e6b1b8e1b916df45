/* SPDX-License-Identifier: Apache-2.0 */
/* Rows are written to the JSON writer as they come; a failure there is remembered and told in
 * finish(). */
#include "bench/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/check.h"
#include "common/json.h"

struct bt_report {
    bt_json_writer json;
    char *json_path; /* NULL: no file */
    bool in_rows;    /* the array "rows" is open */
};

static void write_machine(bt_json_writer *w, const bt_machine *machine)
{
    bt_json_key(w, "machine");
    bt_json_object_begin(w);
    bt_json_key(w, "cpu");
    bt_json_string(w, machine->cpu);
    bt_json_key(w, "cpus");
    bt_json_uint(w, machine->n_cpus);
    bt_json_key(w, "l3_bytes");
    bt_json_uint(w, machine->l3_bytes);
    bt_json_key(w, "ram_bytes");
    bt_json_uint(w, machine->ram_bytes);
    bt_json_key(w, "os");
    bt_json_string(w, machine->os);
    bt_json_key(w, "compiler");
    bt_json_string(w, machine->compiler);
    bt_json_key(w, "peak");
    bt_json_string(w, machine->peak);
    bt_json_object_end(w);
}

static void write_command(bt_json_writer *w, int argc, char *const argv[])
{
    bt_json_key(w, "arguments");
    bt_json_array_begin(w);
    for (int i = 1; i < argc; i++) {
        bt_json_string(w, argv[i]);
    }
    bt_json_array_end(w);
}

bt_status bt_report_create(const char *benchmark, int argc, char *const argv[],
                           const char *json_path, bt_report **out)
{
    bt_report *report = calloc(1, sizeof *report);
    char *path = json_path ? strdup(json_path) : NULL;
    if (report == NULL || (json_path != NULL && path == NULL)) {
        free(report);
        free(path);
        return BT_ENOMEM;
    }
    report->json_path = path;
    bt_json_writer_init(&report->json, 1);

    bt_machine machine;
    bt_machine_describe(&machine);
    char date[32];
    const time_t now = time(NULL);
    struct tm utc;
    (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    printf("# %s, %s\n# %s, %u CPUs, L3 %.0f MiB, %.1f GiB, %s, %s\n", benchmark, date, machine.cpu,
           machine.n_cpus, (double)machine.l3_bytes / 1048576.0,
           (double)machine.ram_bytes / 1073741824.0, machine.os, machine.compiler);

    bt_json_writer *w = &report->json;
    bt_json_object_begin(w);
    bt_json_key(w, "benchmark");
    bt_json_string(w, benchmark);
    bt_json_key(w, "date");
    bt_json_string(w, date);
    write_command(w, argc, argv);
    write_machine(w, &machine);
    *out = report;
    return BT_OK;
}

void bt_report_fact(bt_report *report, const char *name, const char *text)
{
    BT_ASSERT(!report->in_rows);
    printf("# %s: %s\n", name, text);
    bt_json_key(&report->json, name);
    bt_json_string(&report->json, text);
}

void bt_report_heading(const bt_report *report, const char *text)
{
    (void)report;
    printf("\n%s\n", text);
}

void bt_report_add(bt_report *report, const bt_report_row *row)
{
    printf("  %-52s %10.4g %-9s", row->name, row->value, row->unit);
    if (row->limit > 0) {
        printf(" %5.1f%% of %s (%.4g)", 100.0 * row->value / row->limit, row->limit_name,
               row->limit);
    }
    printf("\n");
    (void)fflush(stdout);

    bt_json_writer *w = &report->json;
    if (!report->in_rows) {
        bt_json_key(w, "rows");
        bt_json_array_begin(w);
        report->in_rows = true;
    }
    bt_json_object_begin(w);
    bt_json_key(w, "name");
    bt_json_string(w, row->name);
    bt_json_key(w, "value");
    bt_json_double(w, row->value);
    bt_json_key(w, "unit");
    bt_json_string(w, row->unit);
    if (row->limit > 0) {
        bt_json_key(w, "limit");
        bt_json_double(w, row->limit);
        bt_json_key(w, "limit_name");
        bt_json_string(w, row->limit_name);
    }
    bt_json_object_end(w);
}

static bt_status write_file(const char *path, const char *text, size_t n, bt_error *err)
{
    FILE *file = fopen(path, "w");
    bool ok = file != NULL && fwrite(text, 1, n, file) == n && fputc('\n', file) != EOF;
    if (file != NULL && fclose(file) != 0) {
        ok = false;
    }
    return ok ? BT_OK : bt_error_set(err, BT_EIO, "cannot write '%s': %s", path, strerror(errno));
}

bt_status bt_report_finish(bt_report *report, bt_error *err)
{
    if (report->in_rows) {
        bt_json_array_end(&report->json);
    }
    bt_json_object_end(&report->json);
    size_t n = 0;
    const char *text = bt_json_writer_text(&report->json, &n);
    if (text == NULL) {
        return bt_error_set(err, BT_ENOMEM, "cannot keep the figures: out of memory");
    }
    return report->json_path ? write_file(report->json_path, text, n, err) : BT_OK;
}

void bt_report_destroy(bt_report *report)
{
    if (report != NULL) {
        bt_json_writer_deinit(&report->json);
        free(report->json_path);
        free(report);
    }
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

double bt_report_median(double *values, size_t n)
{
    BT_ASSERT(n > 0);
    qsort(values, n, sizeof *values, compare_doubles);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}
