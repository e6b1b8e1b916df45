/* SPDX-License-Identifier: Apache-2.0 */
/* terminal.h - colours and progress lines, only where a person looks.
 *
 * Styles are empty strings unless the stream is a terminal, NO_COLOR is unset (no-color.org)
 * and TERM is not "dumb". A progress line is redrawn in place on a terminal (at most ten times
 * a second); elsewhere it is one line at the start and one at the end.
 *
 * Threading: one thread at a time.
 * Memory:    none.
 */
#ifndef BT_CLI_TERMINAL_H
#define BT_CLI_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum bt_terminal_style {
    BT_TERMINAL_PLAIN, /* back to normal */
    BT_TERMINAL_BOLD,
    BT_TERMINAL_DIM,
    BT_TERMINAL_RED,
    BT_TERMINAL_GREEN,
    BT_TERMINAL_YELLOW,
    BT_TERMINAL_CYAN,
} bt_terminal_style;

/* A person looks at this stream. */
bool bt_terminal_is_interactive(FILE *stream);

/* The bytes that switch to `style`; "" where no colours are wanted. */
const char *bt_terminal_style_text(FILE *stream, bt_terminal_style style);

typedef struct bt_progress {
    FILE *stream;
    char label[64];
    const char *unit; /* "" or " MB", behind the numbers */
    int64_t began_ns;
    int64_t drawn_ns;
    uint64_t done;
    uint64_t total; /* 0: not known */
    bool interactive;
    bool quiet;
} bt_progress;

/* Begins a line "label ..." on stderr. `quiet` draws nothing at all. */
void bt_progress_begin(bt_progress *progress, const char *label, bool quiet);

/* How far it is; total 0: not known. */
void bt_progress_update(bt_progress *progress, uint64_t done, uint64_t total);

/* Ends the line: "label: done in 1.2 s", or "label: text" when `text` is not NULL. */
void bt_progress_end(bt_progress *progress, const char *text);

#endif /* BT_CLI_TERMINAL_H */
