/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/terminal.h"

enum { TEXT_BYTES_MAX = 4 << 20 };

bool bt_cli_append(void **array, size_t *n, const void *more, size_t n_more, size_t size)
{
    void *grown = realloc(*array, (*n + n_more + 1) * size);
    if (!grown) {
        return false;
    }
    if (n_more > 0) {
        memcpy((char *)grown + *n * size, more, n_more * size);
    }
    *array = grown;
    *n += n_more;
    return true;
}

static bool join(bt_config_list arguments, void **text, size_t *len)
{
    for (size_t i = 0; i < arguments.n; i++) {
        const char *item = arguments.items[i];
        if ((i > 0 && !bt_cli_append(text, len, " ", 1, 1)) ||
            !bt_cli_append(text, len, item, strlen(item), 1)) {
            return false;
        }
    }
    return true;
}

static bool read_all(FILE *from, void **text, size_t *len)
{
    char piece[4096];
    size_t n;
    while (*len <= TEXT_BYTES_MAX && !feof(from) && /* a terminal's end would be asked for again */
           (n = fread(piece, 1, sizeof piece, from)) > 0) {
        if (!bt_cli_append(text, len, piece, n, 1)) {
            return false;
        }
    }
    return true;
}

bt_status bt_cli_read_text(bt_config_list arguments, char **out, size_t *len, bt_error *err)
{
    void *text = NULL;
    size_t n = 0;
    const bool from_stdin =
        arguments.n == 0 || (arguments.n == 1 && strcmp(arguments.items[0], "-") == 0);
    if (from_stdin && bt_terminal_is_interactive(stdin)) {
        fprintf(stderr, "Type the text; Ctrl-D on a line of its own ends it.\n");
    }
    const bool complete = from_stdin ? read_all(stdin, &text, &n) : join(arguments, &text, &n);
    bt_status status = BT_OK;
    if (!complete) {
        status = bt_error_set(err, BT_ENOMEM, "no memory for the text");
    } else if (n == 0) {
        status = bt_error_set(err, BT_EINVAL,
                              from_stdin ? "standard input is empty" : "the text is empty");
    } else if (n > TEXT_BYTES_MAX) {
        status = bt_error_set(err, BT_EINVAL, "the text is over %d MiB", TEXT_BYTES_MAX >> 20);
    }
    if (status != BT_OK) {
        free(text);
        return status;
    }
    ((char *)text)[n] = '\0';
    *out = text;
    *len = n;
    return BT_OK;
}
