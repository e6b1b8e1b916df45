/* SPDX-License-Identifier: Apache-2.0 */
/* Proves alignment and zeroes of mappings, that shared memory is sealed and seen by both
 * sides, that a peer's descriptor is checked before it is trusted, and that limits of
 * cgroups are found in made-up /proc and /sys trees. */
#include "common/alloc.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { HUGE_BYTES = 2 << 20 };

static void heap_memory_is_aligned_and_zeroed(void **state)
{
    (void)state;
    for (size_t align = 8; align <= 4096; align *= 2) {
        unsigned char *bytes = bt_alloc_aligned(align, 100);
        assert_non_null(bytes);
        assert_int_equal((uintptr_t)bytes % align, 0);
        for (size_t i = 0; i < 100; i++) {
            assert_int_equal(bytes[i], 0);
        }
        free(bytes);
    }
    uint32_t *numbers = bt_alloc_array(10, sizeof *numbers);
    assert_non_null(numbers);
    assert_int_equal((uintptr_t)numbers % 64, 0);
    free(numbers);
    assert_null(bt_alloc_array(SIZE_MAX / 2, 4));
    assert_null(bt_alloc_aligned(64, SIZE_MAX - 3));
}

static void anonymous_mappings_begin_at_a_huge_page(void **state)
{
    (void)state;
    bt_mapping m;
    bt_error err;
    const size_t sizes[] = {1, 5000, HUGE_BYTES, 3 * HUGE_BYTES + 1};
    for (size_t i = 0; i < BT_ARRAY_LEN(sizes); i++) {
        assert_int_equal(bt_alloc_map_anon(sizes[i], &m, &err), BT_OK);
        assert_true(m.bytes >= sizes[i]);
        assert_int_equal(m.fd, -1);
        const size_t step = sizes[i] >= HUGE_BYTES ? HUGE_BYTES : 4096;
        assert_int_equal((uintptr_t)m.base % step, 0);
        unsigned char *bytes = m.base;
        assert_int_equal(bytes[0] | bytes[m.bytes - 1], 0);
        bytes[0] = bytes[m.bytes - 1] = 1;
        bt_alloc_unmap(&m);
        assert_null(m.base);
        bt_alloc_unmap(&m); /* nothing is there any more */
    }
    assert_int_equal(bt_alloc_map_anon(0, &m, &err), BT_EINVAL);
    assert_int_equal(bt_alloc_map_anon(SIZE_MAX / 2 - 1, &m, &err), BT_ENOMEM);
    assert_non_null(strstr(err.text, "cannot map"));
}

static void shared_memory_is_sealed_and_seen_by_a_reader(void **state)
{
    (void)state;
    const bt_memfd_options options = {.name = "test-pool", .bytes = 100000, .touch = true};
    bt_mapping pool;
    bt_mapping peer;
    bt_error err;
    assert_int_equal(bt_alloc_map_memfd(&options, &pool, &err), BT_OK);
    assert_int_equal(pool.bytes, bt_align_up(100000, 4096));
    assert_int_equal(ftruncate(pool.fd, 0), -1);
    assert_int_equal(ftruncate(pool.fd, 1 << 20), -1);
    assert_int_equal(bt_alloc_map_peer(dup(pool.fd), pool.bytes, &peer, &err), BT_OK);
    assert_int_equal(peer.bytes, pool.bytes);
    ((unsigned char *)pool.base)[77777] = 42;
    assert_int_equal(((const unsigned char *)peer.base)[77777], 42);
    assert_int_equal(((const unsigned char *)peer.base)[0], 0);
    assert_int_equal(bt_alloc_touch(&pool, &err), BT_OK); /* again, contents stay */
    assert_int_equal(((const unsigned char *)peer.base)[77777], 42);
    bt_alloc_unmap(&peer);
    bt_alloc_unmap(&pool);
}

/* A peer that has the descriptor, or opens it again for writing, gets no way to write; our own
 * mapping goes on to be written, touched and seen. */
static void only_the_owner_writes_shared_memory(void **state)
{
    (void)state;
    const bt_memfd_options options = {.name = "test-pool", .bytes = 8192};
    bt_mapping pool;
    char path[64];
    assert_int_equal(bt_alloc_map_memfd(&options, &pool, NULL), BT_OK);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", pool.fd);
    const int again = open(path, O_RDWR | O_CLOEXEC);
    assert_true(again >= 0);
    const int fds[] = {pool.fd, again};
    for (size_t i = 0; i < BT_ARRAY_LEN(fds); i++) {
        assert_ptr_equal(mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0),
                         MAP_FAILED);
        assert_int_equal(pwrite(fds[i], "x", 1, 0), -1);
        void *reader = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fds[i], 0);
        assert_true(reader != MAP_FAILED);
        assert_int_equal(mprotect(reader, 8192, PROT_READ | PROT_WRITE), -1);
        ((unsigned char *)pool.base)[5000] = (unsigned char)(7 + i);
        assert_int_equal(((const unsigned char *)reader)[5000], 7 + i);
        assert_int_equal(munmap(reader, 8192), 0);
    }
    assert_int_equal(bt_alloc_touch(&pool, NULL), BT_OK);
    assert_int_equal(close(again), 0);
    bt_alloc_unmap(&pool);
}

/* With reserved pages or without: the answer is a mapping either way. */
static void huge_pages_are_a_wish(void **state)
{
    (void)state;
    const bt_memfd_options options = {.name = "test-huge", .bytes = 100, .huge = true};
    bt_mapping pool;
    bt_error err;
    assert_int_equal(bt_alloc_map_memfd(&options, &pool, &err), BT_OK);
    assert_true(pool.bytes == 4096 || pool.bytes == HUGE_BYTES);
    bt_alloc_unmap(&pool);
}

static void absurd_pools_are_refused_before_they_are_touched(void **state)
{
    (void)state;
    bt_memfd_options options = {.name = "test-pool", .bytes = 0};
    bt_mapping pool;
    bt_error err;
    assert_int_equal(bt_alloc_map_memfd(&options, &pool, &err), BT_EINVAL);
    options.bytes = (size_t)1 << 44;
    options.touch = true;
    assert_int_equal(bt_alloc_map_memfd(&options, &pool, &err), BT_ENOMEM);
    assert_non_null(strstr(err.text, "of memory"));
}

static void a_peers_descriptor_is_checked(void **state)
{
    (void)state;
    bt_mapping peer;
    bt_error err;
    assert_int_equal(bt_alloc_map_peer(open("/dev/null", O_RDONLY), 1, &peer, &err), BT_EINVAL);
    assert_int_equal(bt_alloc_map_peer(-1, 1, &peer, &err), BT_EINVAL);
    int fd = memfd_create("unsealed", MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(bt_alloc_map_peer(dup(fd), 1, &peer, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "not sealed"));
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(bt_alloc_map_peer(dup(fd), 4097, &peer, &err), BT_EINVAL);
    assert_non_null(strstr(err.text, "4097 are needed"));
    assert_int_equal(bt_alloc_map_peer(fd, 4096, &peer, &err), BT_OK);
    bt_alloc_unmap(&peer);
}

/* ---- how much there is ---- */

static char root[64];

static void put_file(const char *path, const char *text)
{
    char whole[256];
    assert_true(snprintf(whole, sizeof whole, "%s%s", root, path) > 0);
    for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *to = fopen(whole, "w");
    assert_non_null(to);
    assert_true(fputs(text, to) >= 0);
    assert_int_equal(fclose(to), 0);
}

static int make_root(void **state)
{
    (void)state;
    const char *base = getenv("TEST_TMPDIR");
    (void)snprintf(root, sizeof root, "%.40s/allocXXXXXX",
                   base && strlen(base) < 40 ? base : "/tmp");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

static uint64_t available(void)
{
    uint64_t bytes = 0;
    assert_int_equal(bt_alloc_available_under(root, &bytes), BT_OK);
    return bytes;
}

static void without_cgroups_meminfo_decides(void **state)
{
    (void)state;
    uint64_t bytes;
    assert_int_equal(bt_alloc_available_under(root, &bytes), BT_EIO);
    put_file("/proc/meminfo", "MemTotal:       9000 kB\nMemFree:  1 kB\nMemAvailable:   8000 kB\n");
    assert_int_equal(available(), 8000 * 1024);
}

static void the_tightest_v2_group_on_the_way_up_decides(void **state)
{
    (void)state;
    put_file("/proc/meminfo", "MemAvailable: 8000 kB\n");
    put_file("/proc/self/cgroup", "0::/outer/inner\n");
    put_file("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
    put_file("/sys/fs/cgroup/outer/inner/memory.current", "1000\n");
    assert_int_equal(available(), 8000 * 1024);
    put_file("/sys/fs/cgroup/outer/memory.max", "100000\n");
    put_file("/sys/fs/cgroup/outer/memory.current", "30000\n");
    assert_int_equal(available(), 70000);
    put_file("/sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 20000\nfile 9\n");
    assert_int_equal(available(), 90000);
    put_file("/sys/fs/cgroup/outer/inner/memory.max", "1500\n");
    assert_int_equal(available(), 500);
    put_file("/sys/fs/cgroup/outer/inner/memory.max", "900\n");
    assert_int_equal(available(), 0);
}

static void a_v1_limit_counts_and_a_containers_root_is_found(void **state)
{
    (void)state;
    put_file("/proc/meminfo", "MemAvailable: 8000 kB\n");
    /* the path is the host's, the mount is the container's */
    put_file("/proc/self/cgroup", "12:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n0::/x\n");
    put_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "50000\n");
    put_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "20000\n");
    put_file("/sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 5000\n");
    assert_int_equal(available(), 35000);
    put_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(available(), 8000 * 1024);
}

static void this_machine_has_memory(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    assert_int_equal(bt_alloc_available(&bytes), BT_OK);
    assert_true(bytes > 1 << 20);
}

#define tree_test(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heap_memory_is_aligned_and_zeroed),
        cmocka_unit_test(anonymous_mappings_begin_at_a_huge_page),
        cmocka_unit_test(shared_memory_is_sealed_and_seen_by_a_reader),
        cmocka_unit_test(only_the_owner_writes_shared_memory),
        cmocka_unit_test(huge_pages_are_a_wish),
        cmocka_unit_test(absurd_pools_are_refused_before_they_are_touched),
        cmocka_unit_test(a_peers_descriptor_is_checked),
        tree_test(without_cgroups_meminfo_decides),
        tree_test(the_tightest_v2_group_on_the_way_up_decides),
        tree_test(a_v1_limit_counts_and_a_containers_root_is_found),
        cmocka_unit_test(this_machine_has_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
