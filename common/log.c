/* SPDX-License-Identifier: Apache-2.0 */
/* A line is built on the stack and leaves in one write(2), so lines of several
 * threads never mix and no lock is held while the message is formatted.
 *
 * Text:  2026-01-31T12:00:00.000001Z INFO  router pull done: req=8f21 blocks=40
 * JSON:  {"time":"...","level":"info","who":"router","event":"pull done","req":"8f21",...}
 *
 * In JSON the message is taken apart: the event is what stands before the first ": ",
 * then each word with a '=' is a member; a value may be "quoted with spaces". Numbers
 * stay numbers, but for identities (req, id, *_id), whose hex digits may look like one.
 * A message of another form becomes the event as a whole.
 *
 * The settings are process-wide and written before other threads start. */
#include "common/log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/utf8.h"

enum {
    LINE_BYTES_MAX = 1024,
    WHO_BYTES_MAX = 48,
    NS_PER_US = 1000,
    LEFT_OUT_BYTES = 32, /* " left_out=N" */
};

typedef struct settings {
    bt_log_level level;
    bt_log_format format;
    char who[WHO_BYTES_MAX];
} settings;

static settings now_set = {.level = BT_INFO, .format = BT_LOG_FORMAT_TEXT};
static pthread_mutex_t limit_mutex = PTHREAD_MUTEX_INITIALIZER;

static const char *const level_words[] = {"error", "warn", "info", "debug"};
static const char *const level_texts[] = {"ERROR", "WARN ", "INFO ", "DEBUG"};

/* A line in the making; what does not fit is left out. */
typedef struct line {
    size_t len;
    char text[LINE_BYTES_MAX];
} line;

/* Room kept for what must close the line: quote, brace, newline. */
enum { CLOSING_BYTES = 4 };

static bool put(line *l, const char *bytes, size_t n)
{
    if (n > sizeof l->text - CLOSING_BYTES - l->len) {
        return false;
    }
    memcpy(l->text + l->len, bytes, n);
    l->len += n;
    return true;
}

static bool put_text(line *l, const char *text)
{
    return put(l, text, strlen(text));
}

/* Puts a message with control characters and broken UTF-8 shown as '?', so that what
 * a peer sent can neither start a line nor drive a terminal. In JSON, quotes are escaped. */
static void put_clean(line *l, const char *bytes, size_t n, bool json)
{
    size_t i = 0;
    bool fits = true;
    while (i < n && fits) {
        bool valid;
        const size_t len = bt_utf8_step(bytes + i, n - i, &valid);
        const unsigned char c = (unsigned char)bytes[i];
        if (!valid || c < 0x20 || c == 0x7F) {
            fits = put(l, "?", 1);
        } else if (json && (c == '"' || c == '\\')) {
            const char pair[2] = {'\\', (char)c};
            fits = put(l, pair, 2);
        } else {
            fits = put(l, bytes + i, len);
        }
        i += len;
    }
}

static void put_time(line *l)
{
    const int64_t wall_ns = bt_clock_wall_ns();
    const time_t seconds = (time_t)(wall_ns / 1000000000);
    struct tm utc;
    char text[80];
    if (!gmtime_r(&seconds, &utc)) {
        return;
    }
    const int n = snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%06" PRId64 "Z",
                           utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min,
                           utc.tm_sec, wall_ns % 1000000000 / NS_PER_US);
    (void)put(l, text, (size_t)n);
}

/* JSON's own grammar, without exponent: nothing that a reader could take otherwise. */
static bool is_number(const char *s, size_t n)
{
    size_t i = n > 0 && s[0] == '-' ? 1 : 0;
    const size_t whole_start = i;
    while (i < n && s[i] >= '0' && s[i] <= '9') {
        i++;
    }
    const size_t whole = i - whole_start;
    if (whole == 0 || whole > 15 || (whole > 1 && s[whole_start] == '0')) {
        return false;
    }
    if (i < n && s[i] == '.') {
        const size_t frac_start = ++i;
        while (i < n && s[i] >= '0' && s[i] <= '9') {
            i++;
        }
        if (i == frac_start) {
            return false;
        }
    }
    return i == n;
}

static bool is_identity(const char *key, size_t n)
{
    return (n == 3 && memcmp(key, "req", 3) == 0) || (n == 2 && memcmp(key, "id", 2) == 0) ||
           (n > 3 && memcmp(key + n - 3, "_id", 3) == 0);
}

static void put_json_string(line *l, const char *s, size_t n)
{
    (void)put(l, "\"", 1);
    put_clean(l, s, n, true);
    l->text[l->len++] = '"'; /* CLOSING_BYTES are kept for it */
}

/* Puts ,"key":value whole or not at all. */
static void put_member(line *l, const char *key, size_t key_len, const char *value,
                       size_t value_len)
{
    /* 2 bytes for each character at worst, and punctuation */
    if (2 * (key_len + value_len) + 8 > sizeof l->text - CLOSING_BYTES - l->len) {
        return;
    }
    (void)put(l, ",", 1);
    put_json_string(l, key, key_len);
    (void)put(l, ":", 1);
    if (is_number(value, value_len) && !is_identity(key, key_len)) {
        (void)put(l, value, value_len);
    } else {
        put_json_string(l, value, value_len);
    }
}

/* The key=value words after the event; false if some word is no pair. With `l` NULL
 * it only looks. */
static bool walk_pairs(line *l, const char *s)
{
    while (*s) {
        s += strspn(s, " ");
        if (!*s) {
            break;
        }
        const size_t key_len = strcspn(s, "= ");
        if (key_len == 0 || s[key_len] != '=') {
            return false;
        }
        const char *value = s + key_len + 1;
        size_t value_len = strcspn(value, " ");
        const char *end = value + value_len;
        if (*value == '"') {
            const char *quote = strchr(value + 1, '"');
            if (quote) {
                value++;
                value_len = (size_t)(quote - value);
                end = quote + 1;
            }
        }
        if (l) {
            put_member(l, s, key_len, value, value_len);
        }
        s = end;
    }
    return true;
}

static void build_json(line *l, bt_log_level level, const char *message)
{
    (void)put_text(l, "{\"time\":\"");
    put_time(l);
    (void)put_text(l, "\",\"level\":\"");
    (void)put_text(l, level_words[level]);
    (void)put_text(l, "\"");
    if (now_set.who[0]) {
        (void)put_text(l, ",\"who\":");
        put_json_string(l, now_set.who, strlen(now_set.who));
    }
    (void)put_text(l, ",\"event\":");
    const char *colon = strstr(message, ": ");
    if (colon && walk_pairs(NULL, colon + 2)) {
        put_json_string(l, message, (size_t)(colon - message));
        (void)walk_pairs(l, colon + 2);
    } else {
        put_json_string(l, message, strlen(message));
    }
    l->text[l->len++] = '}';
}

static void build_text(line *l, bt_log_level level, const char *message)
{
    put_time(l);
    (void)put_text(l, " ");
    (void)put_text(l, level_texts[level]);
    (void)put_text(l, " ");
    if (now_set.who[0]) {
        put_clean(l, now_set.who, strlen(now_set.who), false);
        (void)put_text(l, " ");
    }
    put_clean(l, message, strlen(message), false);
}

static void emit(bt_log_level level, const char *message)
{
    line l;
    l.len = 0;
    if (now_set.format == BT_LOG_FORMAT_JSON) {
        build_json(&l, level, message);
    } else {
        build_text(&l, level, message);
    }
    l.text[l.len++] = '\n';
    while (write(STDERR_FILENO, l.text, l.len) < 0 && errno == EINTR) {
    }
}

void bt_log_init(bt_log_level level, bt_log_format format, const char *who)
{
    now_set.level = level;
    now_set.format = format;
    (void)snprintf(now_set.who, sizeof now_set.who, "%s", who ? who : "");
}

bool bt_log_enabled(bt_log_level level)
{
    return level <= now_set.level;
}

void bt_log(bt_log_level level, const char *fmt, ...)
{
    if (!bt_log_enabled(level)) {
        return;
    }
    char message[LINE_BYTES_MAX];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    if (n >= 0) {
        emit(level, message);
    }
}

/* Counts this line; true if it may be written, then *dropped is what was left out
 * since the last one. */
static bool admit(bt_log_limit *state, uint32_t per_s, uint32_t *dropped)
{
    const int64_t now_ns = bt_clock_now_ns();
    pthread_mutex_lock(&limit_mutex);
    if (state->n_in_window == 0 || now_ns - state->window_start_ns >= 1000000000) {
        state->window_start_ns = now_ns;
        state->n_in_window = 0;
    }
    const bool allowed = state->n_in_window < per_s;
    if (allowed) {
        state->n_in_window++;
        *dropped = state->n_dropped;
        state->n_dropped = 0;
    } else {
        state->n_dropped++;
    }
    pthread_mutex_unlock(&limit_mutex);
    return allowed;
}

void bt_log_limited(bt_log_limit *state, uint32_t per_s, bt_log_level level, const char *fmt, ...)
{
    uint32_t dropped = 0;
    if (!bt_log_enabled(level) || !admit(state, per_s, &dropped)) {
        return;
    }
    char message[LINE_BYTES_MAX];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    if (n < 0) {
        return;
    }
    if (dropped > 0) {
        const size_t at = bt_size_min((size_t)n, sizeof message - LEFT_OUT_BYTES);
        (void)snprintf(message + at, sizeof message - at, " left_out=%" PRIu32, dropped);
    }
    emit(level, message);
}
