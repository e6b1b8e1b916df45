/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory is a memfd whose size is sealed before anybody else sees it: a peer
 * that maps it can rely on every page being there. Our own mapping is the last one that can be
 * written (F_SEAL_FUTURE_WRITE, Linux 5.1; older kernels leave it at the size).
 *
 * Pages are taken with MADV_POPULATE_WRITE (Linux 5.14), which reports a lack as an
 * error and leaves contents alone; older kernels get a loop that rewrites one byte of
 * each page, which is why touching belongs to start, before others write.
 *
 * How much memory there is: MemAvailable is the machine's own estimate. A cgroup's
 * limit counts for it and all below, so the way from the process's group up to the
 * root is walked and the least rest wins. In a container without a cgroup namespace
 * the lower steps of that path are not there and are skipped; the mounted root is
 * then the container's own group. */
#include "common/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/check.h"

enum {
    HUGE_BYTES = 2 << 20,
    LINE_BYTES = 64,
    STAT_BLOCK_BYTES = 512, /* unit of st_blocks */
    FILE_BYTES_MAX = 16384, /* of the files of /proc and /sys that are read here */
    PATH_BYTES_MAX = 4096,
};

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

void *bt_alloc_aligned(size_t align, size_t bytes)
{
    BT_ASSERT(align >= 8 && (align & (align - 1)) == 0);
    if (bytes > SIZE_MAX - align) {
        return NULL;
    }
    const size_t rounded = bt_align_up(bt_size_max(bytes, 1), align);
    void *ptr = aligned_alloc(align, rounded);
    if (ptr) {
        memset(ptr, 0, rounded);
    }
    return ptr;
}

void *bt_alloc_array(size_t n, size_t element_bytes)
{
    size_t bytes;
    return bt_size_mul(n, element_bytes, &bytes) ? bt_alloc_aligned(LINE_BYTES, bytes) : NULL;
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* `bytes` in whole steps, or 0 when that is no size for a mapping. */
static size_t whole(size_t bytes, size_t step)
{
    return bytes == 0 || bytes > SIZE_MAX / 2 ? 0 : bt_align_up(bytes, step);
}

static bt_status map_failed(size_t bytes, int error, bt_error *err)
{
    const bt_status status = error == ENOMEM || error == ENOSPC ? BT_ENOMEM : BT_EIO;
    return bt_error_set(err, status, "cannot map %zu bytes of memory: %s", bytes, strerror(error));
}

bt_status bt_alloc_map_anon(size_t bytes, bt_mapping *out, bt_error *err)
{
    const size_t rounded = whole(bytes, page_bytes());
    if (rounded == 0) {
        return bt_error_set(err, BT_EINVAL, "cannot map %zu bytes of memory", bytes);
    }
    /* Room to begin at a multiple of the huge page; what is left over goes back. */
    const size_t slack = rounded >= HUGE_BYTES ? HUGE_BYTES : 0;
    unsigned char *start = mmap(NULL, rounded + slack, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        return map_failed(rounded, errno, err);
    }
    unsigned char *base = start;
    if (slack > 0) {
        base = start + (bt_align_up((uintptr_t)start, HUGE_BYTES) - (uintptr_t)start);
        const size_t before = (size_t)(base - start);
        if (before > 0) {
            (void)munmap(start, before);
        }
        if (slack > before) {
            (void)munmap(base + rounded, slack - before);
        }
        (void)madvise(base, rounded, MADV_HUGEPAGE); /* a wish */
    }
    *out = (bt_mapping){.base = base, .bytes = rounded, .fd = -1};
    return BT_OK;
}

static bool seal(int fd)
{
    const int size = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    return fcntl(fd, F_ADD_SEALS, size | F_SEAL_FUTURE_WRITE) == 0 ||
           (errno == EINVAL && fcntl(fd, F_ADD_SEALS, size) == 0);
}

/* A sealed, mapped memfd, or the errno of what failed. */
static int make_memfd(const char *name, size_t bytes, unsigned extra_flags, bt_mapping *out)
{
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | extra_flags);
    if (fd < 0) {
        return errno;
    }
    if (ftruncate(fd, (off_t)bytes) == 0) {
        void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base != MAP_FAILED && seal(fd)) {
            *out = (bt_mapping){.base = base, .bytes = bytes, .fd = fd};
            return 0;
        }
        if (base != MAP_FAILED) {
            const int error = errno;
            (void)munmap(base, bytes);
            errno = error;
        }
    }
    const int error = errno;
    (void)close(fd);
    return error;
}

bt_status bt_alloc_map_memfd(const bt_memfd_options *options, bt_mapping *out, bt_error *err)
{
    bt_mapping made = BT_MAPPING_NONE;
    const size_t huge = whole(options->bytes, HUGE_BYTES);
    const size_t normal = whole(options->bytes, page_bytes());
    if (huge == 0) {
        return bt_error_set(err, BT_EINVAL, "cannot map %zu bytes of memory", options->bytes);
    }
    /* With too few pages reserved mmap itself says so, before anything is touched. */
    if (!options->huge || make_memfd(options->name, huge, MFD_HUGETLB, &made) != 0) {
        const int error = make_memfd(options->name, normal, 0, &made);
        if (error != 0) {
            return map_failed(normal, error, err);
        }
        (void)madvise(made.base, made.bytes, MADV_HUGEPAGE); /* a wish */
    }
    if (options->touch) {
        const bt_status status = bt_alloc_touch(&made, err);
        if (status != BT_OK) {
            bt_alloc_unmap(&made);
            return status;
        }
    }
    *out = made;
    return BT_OK;
}

bt_status bt_alloc_map_peer(int fd, size_t bytes_min, bt_mapping *out, bt_error *err)
{
    struct stat st;
    bt_status status;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &st) != 0) {
        status = bt_error_set(err, BT_EINVAL, "cannot map a peer's memory: not a memfd");
        goto fail;
    }
    if (!(seals & F_SEAL_SHRINK)) {
        status = bt_error_set(err, BT_EINVAL, "cannot map a peer's memory: its size is not sealed");
        goto fail;
    }
    if (st.st_size <= 0 || (uint64_t)st.st_size < bytes_min) {
        status = bt_error_set(err, BT_EINVAL,
                              "cannot map a peer's memory: it has %jd bytes, %zu are needed",
                              (intmax_t)st.st_size, bytes_min);
        goto fail;
    }
    const size_t bytes = (size_t)st.st_size;
    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        status = map_failed(bytes, errno, err);
        goto fail;
    }
    *out = (bt_mapping){.base = base, .bytes = bytes, .fd = fd};
    return BT_OK;

fail:
    if (fd >= 0) {
        (void)close(fd);
    }
    return status;
}

bt_status bt_alloc_touch(const bt_mapping *mapping, bt_error *err)
{
    uint64_t available = 0;
    struct stat st;
    /* Without this look the kernel would kill a process over a lack. Reserved huge pages
     * count as taken already. */
    if (mapping->fd >= 0 && fstat(mapping->fd, &st) == 0 && st.st_blksize < HUGE_BYTES &&
        bt_alloc_available(&available) == BT_OK) {
        const uint64_t taken = (uint64_t)st.st_blocks * STAT_BLOCK_BYTES;
        if (mapping->bytes > taken && mapping->bytes - taken > available) {
            return bt_error_set(err, BT_ENOMEM,
                                "cannot take %zu MiB of memory: %" PRIu64 " MiB are available",
                                (mapping->bytes - (size_t)taken) >> 20, available >> 20);
        }
    }
    int rc;
    do {
        rc = madvise(mapping->base, mapping->bytes, MADV_POPULATE_WRITE);
    } while (rc != 0 && (errno == EINTR || errno == EAGAIN));
    if (rc == 0) {
        return BT_OK;
    }
    if (errno != EINVAL) {
        return bt_error_set(err, BT_ENOMEM, "cannot take %zu MiB of memory: %s",
                            mapping->bytes >> 20, strerror(errno));
    }
    volatile unsigned char *bytes = mapping->base;
    const size_t step = page_bytes();
    for (size_t i = 0; i < mapping->bytes; i += step) {
        bytes[i] = bytes[i];
    }
    return BT_OK;
}

void bt_alloc_unmap(bt_mapping *mapping)
{
    if (mapping->base) {
        (void)munmap(mapping->base, mapping->bytes);
    }
    if (mapping->fd >= 0) {
        (void)close(mapping->fd);
    }
    *mapping = BT_MAPPING_NONE;
}

/* ---- how much there is ---- */

/* Reads a small file whole, NUL-terminated; false if it is not there. */
static bool read_file(const char *path, char text[FILE_BYTES_MAX])
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    size_t len = 0;
    ssize_t n = 1;
    while (n > 0 && len < FILE_BYTES_MAX - 1) {
        n = read(fd, text + len, FILE_BYTES_MAX - 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    (void)close(fd);
    text[len] = '\0';
    return n >= 0;
}

/* The number after "key" at the start of a line; false without. */
static bool find_number(const char *text, const char *key, uint64_t *out)
{
    const size_t key_len = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, key_len) == 0) {
            char *end;
            const char *digits = line + key_len;
            const unsigned long long v = strtoull(digits, &end, 10);
            if (end != digits) {
                *out = v;
                return true;
            }
        }
    }
    return false;
}

/* The files of a memory controller, v2 and v1. */
typedef struct cgroup_files {
    const char *limit; /* "max" or "9223372036854771712" where there is none */
    const char *usage;
    const char *reclaimable; /* key in memory.stat */
} cgroup_files;

static const cgroup_files files_v2 = {"memory.max", "memory.current", "inactive_file "};
static const cgroup_files files_v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                      "total_inactive_file "};

static bool read_number(const char *dir, const char *file, const char *key, uint64_t *out)
{
    char path[PATH_BYTES_MAX];
    char text[FILE_BYTES_MAX];
    const int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    return n > 0 && (size_t)n < sizeof path && read_file(path, text) && find_number(text, key, out);
}

/* What the group at `dir` leaves; UINT64_MAX without a limit. */
static uint64_t group_rest(const char *dir, const cgroup_files *files)
{
    uint64_t limit;
    uint64_t usage;
    uint64_t reclaimable = 0;
    if (!read_number(dir, files->limit, "", &limit) ||
        !read_number(dir, files->usage, "", &usage)) {
        return UINT64_MAX;
    }
    (void)read_number(dir, "memory.stat", files->reclaimable, &reclaimable);
    const uint64_t held = usage > reclaimable ? usage - reclaimable : 0;
    return limit > held ? limit - held : 0;
}

/* The least rest on the way from mount + path up to mount. */
static uint64_t groups_rest(const char *mount, const char *path, const cgroup_files *files)
{
    char dir[PATH_BYTES_MAX];
    const size_t mount_len = strlen(mount);
    const int n = snprintf(dir, sizeof dir, "%s%s", mount, strcmp(path, "/") == 0 ? "" : path);
    if (n < 0 || (size_t)n >= sizeof dir) {
        return UINT64_MAX;
    }
    uint64_t least = UINT64_MAX;
    for (size_t len = (size_t)n; len >= mount_len;) {
        dir[len] = '\0';
        const uint64_t rest = group_rest(dir, files);
        least = rest < least ? rest : least;
        if (len == mount_len) {
            break;
        }
        do {
            len--;
        } while (len > mount_len && dir[len] != '/');
    }
    return least;
}

/* The group's path in a line of /proc/self/cgroup, "ID:CONTROLLERS:PATH", if the line
 * is about memory; *v2 says of which kind. Cuts the line at its end. */
static char *memory_path(char *line, bool *v2)
{
    char *first = strchr(line, ':');
    char *second = first ? strchr(first + 1, ':') : NULL;
    if (!second) {
        return NULL;
    }
    *first = '\0';
    *second = '\0';
    *v2 = strcmp(line, "0") == 0 && first[1] == '\0';
    bool memory = *v2;
    for (char *save = NULL, *word = strtok_r(first + 1, ",", &save); word;
         word = strtok_r(NULL, ",", &save)) {
        memory = memory || strcmp(word, "memory") == 0;
    }
    return memory ? second + 1 : NULL;
}

bt_status bt_alloc_available_under(const char *root, uint64_t *bytes)
{
    char path[PATH_BYTES_MAX];
    char text[FILE_BYTES_MAX];
    uint64_t available_kib;
    (void)snprintf(path, sizeof path, "%s/proc", root);
    if (!read_number(path, "meminfo", "MemAvailable:", &available_kib)) {
        return BT_EIO;
    }
    uint64_t least = available_kib * 1024;
    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (read_file(path, text)) {
        char *save = NULL;
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            bool v2;
            const char *group = memory_path(line, &v2);
            if (!group) {
                continue;
            }
            (void)snprintf(path, sizeof path, "%s/sys/fs/cgroup%s", root, v2 ? "" : "/memory");
            const uint64_t rest = groups_rest(path, group, v2 ? &files_v2 : &files_v1);
            least = rest < least ? rest : least;
        }
    }
    *bytes = least;
    return BT_OK;
}

bt_status bt_alloc_available(uint64_t *bytes)
{
    return bt_alloc_available_under("", bytes);
}
