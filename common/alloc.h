/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.h - start-up memory: aligned, anonymous and shared (memfd) mappings; how much there is.
 *
 * All of it is for create() and start: nothing here belongs in a step.
 *
 * Threading: any thread; a bt_mapping belongs to one owner.
 * Memory:    that is what it gives.
 */
#ifndef BT_COMMON_ALLOC_H
#define BT_COMMON_ALLOC_H

#include "common/status.h"

/* Zeroed bytes at a multiple of `align` (a power of two, 8 or more); free() gives them
 * back. NULL: out of memory. */
void *bt_alloc_aligned(size_t align, size_t bytes);

/* Zeroed array of n elements, 64-byte-aligned; NULL: out of memory or n * size overflows. */
void *bt_alloc_array(size_t n, size_t element_bytes);

typedef struct bt_mapping {
    void *base;   /* page-aligned (2 MiB for bt_alloc_map_anon of 2 MiB or more); NULL: none */
    size_t bytes; /* whole pages */
    int fd;       /* -1: anonymous */
} bt_mapping;

/* A mapping that is not there; bt_alloc_unmap takes it. */
#define BT_MAPPING_NONE ((bt_mapping){.base = NULL, .bytes = 0, .fd = -1})

/* Anonymous, zeroed, private; transparent huge pages are asked for (and not promised).
 * Pages come when they are touched. BT_ENOMEM, BT_EINVAL. */
BT_MUST_CHECK bt_status bt_alloc_map_anon(size_t bytes, bt_mapping *out, bt_error *err);

typedef struct bt_memfd_options {
    const char *name; /* seen in /proc/PID/maps, "baton-kv-pool" */
    size_t bytes;
    bool huge;  /* reserved 2 MiB pages when the host has enough of them, else normal pages */
    bool touch; /* take every page now, so that a lack shows here and not as SIGBUS later */
} bt_memfd_options;

/* Shared memory with a descriptor to hand to other processes, zeroed, sealed: it can neither
 * shrink nor grow, and only this mapping of it can be written (where the kernel has that seal:
 * Linux 5.1). BT_ENOMEM: also when `touch` finds too little. */
BT_MUST_CHECK bt_status bt_alloc_map_memfd(const bt_memfd_options *options, bt_mapping *out,
                                           bt_error *err);

/* Maps all of another process's memfd read-only. Takes `fd` (closed on failure too).
 * BT_EINVAL: no memfd, its size not sealed (the peer could pull pages away from under a
 * reader), or smaller than `bytes_min`. */
BT_MUST_CHECK bt_status bt_alloc_map_peer(int fd, size_t bytes_min, bt_mapping *out, bt_error *err);

/* Takes every page of the mapping now, zeros stay zeros. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_alloc_touch(const bt_mapping *mapping, bt_error *err);

/* Unmaps, closes the descriptor, and leaves BT_MAPPING_NONE. */
void bt_alloc_unmap(bt_mapping *mapping);

/* Bytes that this process may still take: the least of MemAvailable and what the limits
 * of its cgroup and the ones above it (v1 or v2) leave. Reclaimable page cache counts as free. */
BT_MUST_CHECK bt_status bt_alloc_available(uint64_t *bytes);

/* Test only: the same with `root` before /proc and /sys. */
BT_MUST_CHECK bt_status bt_alloc_available_under(const char *root, uint64_t *bytes);

#endif /* BT_COMMON_ALLOC_H */
