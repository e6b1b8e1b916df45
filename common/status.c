/* SPDX-License-Identifier: Apache-2.0 */
#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

typedef struct status_row {
    bt_status status;
    bt_status_scope scope;
    const char *name;
    const char *text;
} status_row;

static const status_row rows[] = {
#define STATUS_ROW(name, value, scope, text) {BT_##name, BT_STATUS_SCOPE_##scope, #name, text},
    BT_STATUS_LIST(STATUS_ROW)
#undef STATUS_ROW
};

static const status_row *find_row(bt_status status)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        if (rows[i].status == status) {
            return &rows[i];
        }
    }
    return NULL;
}

/* Parts of a text may come from a file or a peer: it stays one line and can't drive a terminal.
 * Also drops the beginning of a UTF-8 character that snprintf cut at the end. */
static void make_one_line(char *text, size_t capacity, size_t wanted)
{
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7F) {
            *c = '?';
        }
    }
    if (wanted < capacity) {
        return;
    }
    size_t len = strlen(text);
    size_t start = len;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80) {
        start--;
    }
    if (start == 0) {
        return;
    }
    const unsigned char lead = (unsigned char)text[start - 1];
    const size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (len - (start - 1) < need) {
        text[start - 1] = '\0';
    }
}

const char *bt_status_name(bt_status status)
{
    const status_row *row = find_row(status);
    return row ? row->name : "?";
}

const char *bt_status_text(bt_status status)
{
    const status_row *row = find_row(status);
    return row ? row->text : "unknown status";
}

bt_status_scope bt_status_scope_of(bt_status status)
{
    const status_row *row = find_row(status);
    return row ? row->scope : BT_STATUS_SCOPE_WORKER;
}

bt_status bt_error_set(bt_error *err, bt_status status, const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        const int wanted = vsnprintf(err->text, sizeof err->text, fmt, args);
        va_end(args);
        make_one_line(err->text, sizeof err->text, wanted < 0 ? 0 : (size_t)wanted);
    }
    return status;
}

void bt_error_prefix(bt_error *err, const char *fmt, ...)
{
    if (!err) {
        return;
    }
    char joined[sizeof err->text];
    va_list args;
    va_start(args, fmt);
    int used = vsnprintf(joined, sizeof joined, fmt, args);
    va_end(args);
    size_t at = used < 0 ? 0 : bt_size_min((size_t)used, sizeof joined - 1);
    const int more = snprintf(joined + at, sizeof joined - at, ": %s", err->text);
    make_one_line(joined, sizeof joined, at + (more < 0 ? 0 : (size_t)more));
    memcpy(err->text, joined, sizeof joined);
}

void bt_check_failed(const char *file, int line, const char *text)
{
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, text);
    abort();
}
