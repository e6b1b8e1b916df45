/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - the text that a command is given: its arguments, or standard input.
 *
 * Threading: one thread. Memory: the caller frees what it gets.
 */
#ifndef BT_CLI_TEXT_H
#define BT_CLI_TEXT_H

#include "common/config.h"
#include "common/status.h"

/* The arguments joined with spaces; standard input when there are none, or "-" alone. *out is
 * NUL-terminated. BT_EINVAL: it is empty, or over 4 MiB. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_cli_read_text(bt_config_list arguments, char **out, size_t *len,
                                         bt_error *err);

/* Appends n items of `size` bytes to a growing array, with room for one more after them (a NUL).
 * false: no memory; the array is as it was. */
bool bt_cli_append(void **array, size_t *n, const void *more, size_t n_more, size_t size);

#endif /* BT_CLI_TEXT_H */
