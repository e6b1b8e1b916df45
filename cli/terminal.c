/* SPDX-License-Identifier: Apache-2.0 */
/* A progress line on a terminal begins with a carriage return and ends with "erase to the end of
 * the line" (ECMA-48 EL), so that a shorter line leaves nothing behind. */
#include "cli/terminal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

enum {
    REDRAW_NS = 100 * 1000 * 1000,
    BAR_CELLS = 24,
};

static const char *const styles[] = {
    [BT_TERMINAL_PLAIN] = "\033[0m",  [BT_TERMINAL_BOLD] = "\033[1m",
    [BT_TERMINAL_DIM] = "\033[2m",    [BT_TERMINAL_RED] = "\033[31m",
    [BT_TERMINAL_GREEN] = "\033[32m", [BT_TERMINAL_YELLOW] = "\033[33m",
    [BT_TERMINAL_CYAN] = "\033[36m",
};

bool bt_terminal_is_interactive(FILE *stream)
{
    const char *term = getenv("TERM");
    return isatty(fileno(stream)) == 1 && (term == NULL || strcmp(term, "dumb") != 0);
}

const char *bt_terminal_style_text(FILE *stream, bt_terminal_style style)
{
    const char *no_color = getenv("NO_COLOR");
    const bool plain = no_color != NULL && no_color[0] != '\0';
    return plain || !bt_terminal_is_interactive(stream) ? "" : styles[style];
}

static void draw(bt_progress *p)
{
    fprintf(p->stream, "\r%s ", p->label);
    if (p->total > 0) {
        const uint64_t done = p->done < p->total ? p->done : p->total;
        const int cells = (int)((double)done / (double)p->total * BAR_CELLS);
        fprintf(p->stream, "[%.*s%*s] %3d%%", cells, "########################", BAR_CELLS - cells,
                "", (int)((double)done / (double)p->total * 100));
    }
    fprintf(p->stream, " %.1f s\033[K", (double)(p->drawn_ns - p->began_ns) / 1e9);
    fflush(p->stream);
}

void bt_progress_begin(bt_progress *progress, const char *label, bool quiet)
{
    *progress = (bt_progress){
        .stream = stderr,
        .began_ns = bt_clock_now_ns(),
        .interactive = bt_terminal_is_interactive(stderr),
        .quiet = quiet,
    };
    snprintf(progress->label, sizeof progress->label, "%s", label);
    progress->drawn_ns = progress->began_ns;
    if (!quiet && progress->interactive) {
        draw(progress);
    } else if (!quiet) {
        fprintf(progress->stream, "%s ...\n", label);
    }
}

void bt_progress_update(bt_progress *progress, uint64_t done, uint64_t total)
{
    progress->done = done;
    progress->total = total;
    const int64_t now_ns = bt_clock_now_ns();
    if (progress->quiet || !progress->interactive || now_ns - progress->drawn_ns < REDRAW_NS) {
        return;
    }
    progress->drawn_ns = now_ns;
    draw(progress);
}

void bt_progress_end(bt_progress *progress, const char *text)
{
    if (progress->quiet) {
        return;
    }
    const double took_s = (double)(bt_clock_now_ns() - progress->began_ns) / 1e9;
    const char *begin = progress->interactive ? "\r" : "";
    const char *end = progress->interactive ? "\033[K\n" : "\n";
    if (text != NULL) {
        fprintf(progress->stream, "%s%s: %s%s", begin, progress->label, text, end);
    } else {
        fprintf(progress->stream, "%s%s: done in %.1f s%s", begin, progress->label, took_s, end);
    }
    fflush(progress->stream);
}
