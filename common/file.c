/* SPDX-License-Identifier: Apache-2.0 */
/* An editor's rename, a Kubernetes secret's new symlink target and a write in place all show in one
 * of the stamp's fields; stat follows links. */
#include "common/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/hash.h"

static const int64_t second_ns = 1000000000;

static bt_status status_of(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return BT_ENOTFOUND;
    case EACCES:
    case EPERM:
        return BT_EPERMISSION;
    default:
        return BT_EIO;
    }
}

static bt_file_stamp stamp_from(const struct stat *st)
{
    return (bt_file_stamp){
        .device = st->st_dev,
        .inode = st->st_ino,
        .bytes = (uint64_t)st->st_size,
        .modified_ns = st->st_mtim.tv_sec * second_ns + st->st_mtim.tv_nsec,
        .changed_ns = st->st_ctim.tv_sec * second_ns + st->st_ctim.tv_nsec,
        .mode = st->st_mode & 07777,
    };
}

bt_status bt_file_stamp_of(const char *path, bt_file_stamp *out)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        *out = (bt_file_stamp){0};
        return status_of(errno);
    }
    *out = stamp_from(&st);
    return BT_OK;
}

bool bt_file_stamp_equal(const bt_file_stamp *a, const bt_file_stamp *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->modified_ns == b->modified_ns && a->changed_ns == b->changed_ns && a->mode == b->mode;
}

bt_status bt_file_read(const char *path, size_t max, char **out, size_t *len, bt_error *err)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        const int error = errno;
        return bt_error_set(err, status_of(error), "cannot read '%s': %s", path, strerror(error));
    }
    char *text = malloc(max + 1);
    if (text == NULL) {
        fclose(file);
        return bt_error_set(err, BT_ENOMEM, "cannot read '%s': out of memory", path);
    }
    (void)setvbuf(file, NULL, _IONBF, 0); /* no second copy of a secret, which nobody would wipe */
    errno = 0;
    const size_t n = fread(text, 1, max + 1, file);
    const int error = ferror(file) ? errno : 0;
    fclose(file);
    if (error != 0 || n > max) {
        bt_file_free(text, n);
        return error != 0 ? bt_error_set(err, status_of(error), "cannot read '%s': %s", path,
                                         strerror(error))
                          : bt_error_set(err, BT_EINVAL,
                                         "cannot read '%s': it has more than %zu bytes", path, max);
    }
    text[n] = '\0';
    *out = text;
    if (len != NULL) {
        *len = n;
    }
    return BT_OK;
}

void bt_file_free(char *text, size_t len)
{
    if (text != NULL) {
        bt_hash_wipe(text, len);
    }
    free(text);
}
