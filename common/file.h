/* SPDX-License-Identifier: Apache-2.0 */
/* file.h - small files of settings and secrets: read whole, and asked whether they changed.
 *
 * Threading: any thread (no state); calls block as files do.
 * Memory:    what read() returns is the caller's, freed with bt_file_free().
 */
#ifndef BT_COMMON_FILE_H
#define BT_COMMON_FILE_H

#include "common/status.h"

/* What differs once a file was written, replaced, pointed elsewhere or opened to others: device,
 * inode, size, times, mode. All zero: there was none. */
typedef struct bt_file_stamp {
    uint64_t device;
    uint64_t inode;
    uint64_t bytes;
    int64_t modified_ns;
    int64_t changed_ns;
    uint32_t mode; /* permission bits */
} bt_file_stamp;

/* BT_ENOTFOUND, BT_EPERMISSION, BT_EIO; *out is all zero then. */
bt_status bt_file_stamp_of(const char *path, bt_file_stamp *out);
bool bt_file_stamp_equal(const bt_file_stamp *a, const bt_file_stamp *b);

/* The whole file with a NUL behind it; *len may be NULL. BT_ENOTFOUND, BT_EPERMISSION, BT_EIO;
 * BT_EINVAL: more than `max` bytes; BT_ENOMEM. *err has "cannot read 'path': why". */
BT_MUST_CHECK bt_status bt_file_read(const char *path, size_t max, char **out, size_t *len,
                                     bt_error *err);

/* The same for who must not wait, as read() does for what a pipe or a terminal has not said yet:
 * BT_EINVAL too when it is one. */
BT_MUST_CHECK bt_status bt_file_read_regular(const char *path, size_t max, char **out, size_t *len,
                                             bt_error *err);

/* Wipes and frees. NULL is allowed. */
void bt_file_free(char *text, size_t len);

#endif /* BT_COMMON_FILE_H */
