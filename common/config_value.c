/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options: text to number and back, and whether they are in range. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/config_int.h"

enum { RANGE_BYTES = 96 };

typedef struct suffix {
    const char *text;
    uint64_t factor;
} suffix;

#define KI (UINT64_C(1) << 10)
#define MI (UINT64_C(1) << 20)
#define GI (UINT64_C(1) << 30)
#define TI (UINT64_C(1) << 40)
#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SEC UINT64_C(1000000000)

static const suffix size_suffixes[] = {
    {"", 1},     {"B", 1},  {"K", KI},   {"KiB", KI}, {"M", MI},  {"MiB", MI}, {"G", GI},
    {"GiB", GI}, {"T", TI}, {"TiB", TI}, {"kB", US},  {"MB", MS}, {"GB", SEC}, {"TB", SEC * 1000},
};

static const suffix time_suffixes[] = {
    {"ns", 1},       {"us", US},        {"ms", MS},         {"s", SEC},
    {"m", 60 * SEC}, {"h", 3600 * SEC}, {"d", 86400 * SEC},
};

/* "12", "1.5" and the like, up to *end: whole part and the rest as a fraction of one. */
static bool read_decimal(const char *text, uint64_t *whole, double *fraction, const char **end)
{
    if (*text < '0' || *text > '9') {
        return false; /* strtoull would take spaces and signs */
    }
    char *at;
    errno = 0;
    *whole = strtoull(text, &at, 10);
    if (errno != 0) {
        return false;
    }
    *fraction = 0;
    if (*at == '.') {
        double place = 0.1;
        const char *digits = ++at;
        for (; *at >= '0' && *at <= '9'; at++, place /= 10) {
            *fraction += (*at - '0') * place;
        }
        if (at == digits) {
            return false;
        }
    }
    *end = at;
    return true;
}

static bool parse_scaled(const char *text, const suffix *suffixes, size_t n_suffixes, uint64_t max,
                         uint64_t *out)
{
    uint64_t whole;
    double fraction;
    const char *end;
    if (!read_decimal(text, &whole, &fraction, &end)) {
        return false;
    }
    for (size_t i = 0; i < n_suffixes; i++) {
        if (strcasecmp(end, suffixes[i].text) != 0) {
            continue;
        }
        const uint64_t factor = suffixes[i].factor;
        const uint64_t rest = (uint64_t)(fraction * (double)factor + 0.5);
        if (whole > max / factor || whole * factor > max - bt_size_min(rest, max)) {
            return false;
        }
        *out = whole * factor + rest;
        return true;
    }
    return false;
}

bt_status bt_config_parse_bytes(const char *text, uint64_t *bytes)
{
    const size_t n = BT_ARRAY_LEN(size_suffixes);
    return parse_scaled(text, size_suffixes, n, UINT64_MAX, bytes) ? BT_OK : BT_EINVAL;
}

bt_status bt_config_parse_duration(const char *text, int64_t *ns)
{
    uint64_t v;
    if (strcmp(text, "0") == 0) {
        *ns = 0;
        return BT_OK;
    }
    if (!parse_scaled(text, time_suffixes, BT_ARRAY_LEN(time_suffixes), INT64_MAX, &v)) {
        return BT_EINVAL;
    }
    *ns = (int64_t)v;
    return BT_OK;
}

static void format_scaled(uint64_t v, const suffix *largest_first, size_t n, char out[32])
{
    for (size_t i = 0; i < n; i++) {
        if (v != 0 && v % largest_first[i].factor == 0) {
            (void)snprintf(out, 32, "%" PRIu64 "%s", v / largest_first[i].factor,
                           largest_first[i].text);
            return;
        }
    }
    (void)snprintf(out, 32, "%" PRIu64, v);
}

void bt_config_format_bytes(uint64_t bytes, char out[32])
{
    static const suffix shown[] = {{"TiB", TI}, {"GiB", GI}, {"MiB", MI}, {"KiB", KI}};
    format_scaled(bytes, shown, BT_ARRAY_LEN(shown), out);
}

void bt_config_format_duration(int64_t ns, char out[32])
{
    static const suffix shown[] = {{"h", 3600 * SEC}, {"m", 60 * SEC}, {"s", SEC},
                                   {"ms", MS},        {"us", US},      {"ns", 1}};
    BT_ASSERT(ns >= 0);
    format_scaled((uint64_t)ns, shown, BT_ARRAY_LEN(shown), out);
}

static void format_limit(const bt_config_option *option, int64_t v, char out[32])
{
    if (option->type == BT_CONFIG_BYTES) {
        bt_config_format_bytes((uint64_t)v, out);
    } else if (option->type == BT_CONFIG_DURATION) {
        bt_config_format_duration(v, out);
    } else {
        (void)snprintf(out, 32, "%" PRId64, v);
    }
}

void bt_config_range_text(const bt_config_option *option, char *out, size_t out_bytes)
{
    char low[32];
    char high[32];
    const char *gap = option->unit ? " " : "";
    const char *unit = option->unit ? option->unit : "";
    out[0] = '\0';
    if (option->type == BT_CONFIG_FLOAT) {
        if (option->float_min < option->float_max) {
            (void)snprintf(out, out_bytes, "%g to %g%s%s", option->float_min, option->float_max,
                           gap, unit);
        }
        return;
    }
    const bool ranged = option->type == BT_CONFIG_INT || option->type == BT_CONFIG_BYTES ||
                        option->type == BT_CONFIG_DURATION;
    if (!ranged || (option->min == 0 && option->max == 0)) {
        return;
    }
    format_limit(option, option->min, low);
    format_limit(option, option->max, high);
    if (option->max == INT64_MAX) {
        (void)snprintf(out, out_bytes, "%s%s%s or more", low, gap, unit);
    } else {
        (void)snprintf(out, out_bytes, "%s to %s%s%s", low, high, gap, unit);
    }
}

/* ---- one converter for each type ---- */

static bt_status no_value(const char *text, const char *what, const char *example, bt_error *err)
{
    return bt_error_set(err, BT_EINVAL, "'%.60s' is no %s; write e.g. %s", text, what, example);
}

static bt_status check_range(const bt_config_option *option, const char *text, bool inside,
                             bt_error *err)
{
    if (inside) {
        return BT_OK;
    }
    char range[RANGE_BYTES];
    bt_config_range_text(option, range, sizeof range);
    return bt_error_set(err, BT_EINVAL, "'%.60s' is out of range; it must be %s", text, range);
}

static bool in_limits(const bt_config_option *option, int64_t v)
{
    return (option->min == 0 && option->max == 0) || (v >= option->min && v <= option->max);
}

static bt_status convert_bool(const char *text, bool *field, bt_error *err)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (size_t i = 0; i < BT_ARRAY_LEN(words); i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *field = i % 2 == 1;
            return BT_OK;
        }
    }
    return bt_error_set(err, BT_EINVAL, "'%.60s' is neither true nor false", text);
}

static bt_status convert_int(const bt_config_option *option, const char *text, int64_t *field,
                             bt_error *err)
{
    const bool starts = (*text >= '0' && *text <= '9') || *text == '-';
    char *end = NULL;
    errno = 0;
    const long long v = starts ? strtoll(text, &end, 10) : 0;
    if (!starts || end == text || *end != '\0' || errno == EINVAL) {
        return bt_error_set(err, BT_EINVAL, "'%.60s' is no whole number", text);
    }
    const bt_status status = check_range(option, text, errno == 0 && in_limits(option, v), err);
    if (status == BT_OK) {
        *field = v;
    }
    return status;
}

static bt_status convert_float(const bt_config_option *option, const char *text, double *field,
                               bt_error *err)
{
    char *end = NULL;
    const bool starts = strchr("0123456789.-", *text) && *text;
    const double v = starts ? strtod(text, &end) : 0;
    if (!starts || end == text || *end != '\0' || !isfinite(v)) {
        return no_value(text, "number", "0.5", err);
    }
    const bool any = !(option->float_min < option->float_max);
    const bt_status status =
        check_range(option, text, any || (v >= option->float_min && v <= option->float_max), err);
    if (status == BT_OK) {
        *field = v;
    }
    return status;
}

static bt_status convert_bytes(const bt_config_option *option, const char *text, uint64_t *field,
                               bt_error *err)
{
    uint64_t v;
    if (bt_config_parse_bytes(text, &v) != BT_OK) {
        return no_value(text, "size", "512M or 2GiB", err);
    }
    const bool any = option->min == 0 && option->max == 0;
    const bool inside = any || (v <= INT64_MAX && in_limits(option, (int64_t)v));
    const bt_status status = check_range(option, text, inside, err);
    if (status == BT_OK) {
        *field = v;
    }
    return status;
}

static bt_status convert_duration(const bt_config_option *option, const char *text, int64_t *field,
                                  bt_error *err)
{
    int64_t v;
    if (bt_config_parse_duration(text, &v) != BT_OK) {
        return no_value(text, "time", "250ms, 10s or 5m", err);
    }
    const bt_status status = check_range(option, text, in_limits(option, v), err);
    if (status == BT_OK) {
        *field = v;
    }
    return status;
}

static bt_status convert_enum(const bt_config_option *option, const char *text, int *field,
                              bt_error *err)
{
    char all[128] = "";
    size_t len = 0;
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(text, option->choices[i]) == 0) {
            *field = i;
            return BT_OK;
        }
        const int n =
            snprintf(all + len, sizeof all - len, "%s%s", i > 0 ? ", " : "", option->choices[i]);
        len = bt_size_min(len + (size_t)bt_size_max((size_t)n, 0), sizeof all - 1);
    }
    return bt_error_set(err, BT_EINVAL, "'%.60s' is not possible here; choose from %s", text, all);
}

bt_status bt_config_convert(const bt_config_option *option, const char *text, void *field,
                            bt_error *err)
{
    union {
        const char *text;
        bool boolean;
        int64_t integer;
        double number;
        uint64_t bytes;
        int choice;
    } scratch;
    void *to = field ? field : &scratch;
    switch (option->type) {
    case BT_CONFIG_STRING:
        *(const char **)to = text;
        return BT_OK;
    case BT_CONFIG_BOOL:
        return convert_bool(text, to, err);
    case BT_CONFIG_INT:
        return convert_int(option, text, to, err);
    case BT_CONFIG_FLOAT:
        return convert_float(option, text, to, err);
    case BT_CONFIG_BYTES:
        return convert_bytes(option, text, to, err);
    case BT_CONFIG_DURATION:
        return convert_duration(option, text, to, err);
    case BT_CONFIG_ENUM:
        return convert_enum(option, text, to, err);
    case BT_CONFIG_STRINGS:
        break;
    }
    BT_ASSERT(!"a list has no single value");
    return BT_EINTERNAL;
}
