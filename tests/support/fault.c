/* SPDX-License-Identifier: Apache-2.0 */
/* The replaced functions pass on to glibc's own entries. Their names are reserved ones,
 * which is the price of replacing malloc. */
#include "tests/support/fault.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

bool bt_fault_available(void)
{
    return false;
}

void bt_fault_fail_nth(size_t n)
{
    (void)n;
}

void bt_fault_fail_nth_own(size_t n)
{
    (void)n;
}

bool bt_fault_disarm(void)
{
    return false;
}

size_t bt_fault_count(void)
{
    return 0;
}

void bt_fault_trap(bool on)
{
    (void)on;
}

#else

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *ptr, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static _Thread_local size_t n_allocations;
static _Thread_local size_t countdown; /* 0: not armed */
static _Thread_local bool has_failed;
static _Thread_local bool trapped;
static _Thread_local bool own_only;

/* The linker's: where the program's own code lies. Hidden, for a loader doesn't find them: in a
 * shared object they are its own, and nobody's code is the program's. */
__attribute__((visibility("hidden"))) extern const char __executable_start[];
__attribute__((visibility("hidden"))) extern const char etext[];

/* Counts one allocation, made from `caller`; true if it must fail. */
static bool must_fail(const void *caller)
{
    if (trapped) {
        static const char text[] = "an allocation where none is allowed\n";
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
        abort();
    }
    n_allocations++;
    if (countdown == 0) {
        return false;
    }
    const uintptr_t at = (uintptr_t)caller;
    const bool is_own = at >= (uintptr_t)__executable_start && at < (uintptr_t)etext;
    if ((own_only && !is_own) || --countdown > 0) {
        return false;
    }
    has_failed = true;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return must_fail(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return must_fail(__builtin_return_address(0)) ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *ptr, size_t bytes)
{
    return must_fail(__builtin_return_address(0)) ? NULL : __libc_realloc(ptr, bytes);
}

void *memalign(size_t align, size_t bytes);
void *memalign(size_t align, size_t bytes)
{
    return must_fail(__builtin_return_address(0)) ? NULL : __libc_memalign(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return must_fail(__builtin_return_address(0)) ? NULL : __libc_memalign(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    void *ptr = must_fail(__builtin_return_address(0)) ? NULL : __libc_memalign(align, bytes);
    if (!ptr) {
        return ENOMEM;
    }
    *out = ptr;
    return 0;
}

bool bt_fault_available(void)
{
    return true;
}

void bt_fault_fail_nth(size_t n)
{
    has_failed = false;
    own_only = false;
    countdown = n;
}

void bt_fault_fail_nth_own(size_t n)
{
    bt_fault_fail_nth(n);
    own_only = true;
}

bool bt_fault_disarm(void)
{
    countdown = 0;
    return has_failed;
}

size_t bt_fault_count(void)
{
    return n_allocations;
}

void bt_fault_trap(bool on)
{
    trapped = on;
}

#endif
