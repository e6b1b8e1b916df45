/* SPDX-License-Identifier: Apache-2.0 */
/* An editor's rename, a Kubernetes secret's new symlink target and a write in place all show in one
 * of the stamp's fields; stat follows links. */
#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* Does not wait for somebody to open a pipe's other end: it is empty then. *mode is the file's. */
static int open_file(const char *path, mode_t *mode)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && fcntl(fd, F_SETFL, 0) == 0) {
        *mode = st.st_mode;
        return fd;
    }
    const int error = errno;
    if (fd >= 0) {
        (void)close(fd);
    }
    errno = error;
    return -1;
}

/* All that there is, `max` bytes at most; -1: errno. */
static ssize_t read_all(int fd, char *to, size_t max)
{
    size_t n = 0;
    while (n < max) {
        const ssize_t got = read(fd, to + n, max - n);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -1 : (ssize_t)n;
        }
        n += (size_t)got;
    }
    return (ssize_t)n;
}

static bt_status read_open(int fd, const char *path, size_t max, char **out, size_t *len,
                           bt_error *err)
{
    char *text = malloc(max + 1);
    if (text == NULL) {
        return bt_error_set(err, BT_ENOMEM, "cannot read '%s': out of memory", path);
    }
    const ssize_t n = read_all(fd, text, max + 1);
    if (n < 0 || (size_t)n > max) {
        const int error = errno;
        bt_file_free(text, max + 1);
        return n < 0 ? bt_error_set(err, status_of(error), "cannot read '%s': %s", path,
                                    strerror(error))
                     : bt_error_set(err, BT_EINVAL, "cannot read '%s': it has more than %zu bytes",
                                    path, max);
    }
    text[n] = '\0';
    *out = text;
    if (len != NULL) {
        *len = (size_t)n;
    }
    return BT_OK;
}

static bt_status read_path(const char *path, bool is_regular, size_t max, char **out, size_t *len,
                           bt_error *err)
{
    mode_t mode;
    const int fd = open_file(path, &mode);
    if (fd < 0) {
        const int error = errno;
        return bt_error_set(err, status_of(error), "cannot read '%s': %s", path, strerror(error));
    }
    const bool is_refused = is_regular && !S_ISREG(mode) && !S_ISDIR(mode);
    const bt_status status =
        is_refused ? bt_error_set(err, BT_EINVAL, "cannot read '%s': it is no regular file", path)
                   : read_open(fd, path, max, out, len, err);
    (void)close(fd);
    return status;
}

bt_status bt_file_read(const char *path, size_t max, char **out, size_t *len, bt_error *err)
{
    return read_path(path, false, max, out, len, err);
}

bt_status bt_file_read_regular(const char *path, size_t max, char **out, size_t *len, bt_error *err)
{
    return read_path(path, true, max, out, len, err);
}

void bt_file_free(char *text, size_t len)
{
    if (text != NULL) {
        bt_hash_wipe(text, len);
    }
    free(text);
}
