/* SPDX-License-Identifier: Apache-2.0 */
/* children.h - the processes that `baton up` starts, watches and stops.
 *
 * Signals are blocked and taken with bt_children_next_signal(); children get the default mask
 * back, a process group of their own (so that a Ctrl-C reaches the parent alone, which stops them
 * in order), and SIGTERM when the parent dies.
 *
 * Threading: the main thread, before any other thread is started (fork).
 * Memory:    the caller's.
 */
#ifndef BT_CLI_CHILDREN_H
#define BT_CLI_CHILDREN_H

#include <signal.h>
#include <sys/types.h>

#include "common/status.h"

enum {
    BT_CHILDREN_MAX = 65,
    BT_ARGUMENTS_MAX = 40,
    BT_ARGUMENT_BYTES = 4096,
};

/* An argument list under construction; {.n = 0} at first. */
typedef struct bt_arguments {
    char texts[BT_ARGUMENTS_MAX][BT_ARGUMENT_BYTES];
    char *argv[BT_ARGUMENTS_MAX + 1];
    size_t n;
} bt_arguments;

BT_PRINTF(2, 3)
void bt_arguments_add(bt_arguments *args, const char *fmt, ...);

/* "--name value". */
void bt_arguments_add_option(bt_arguments *args, const char *name, const char *value);

typedef struct bt_child {
    char name[32];
    pid_t pid; /* 0: not running */
} bt_child;

typedef struct bt_children {
    bt_child all[BT_CHILDREN_MAX];
    size_t n;
    sigset_t signals; /* SIGINT, SIGTERM, SIGCHLD: blocked from init to deinit */
    sigset_t before;
} bt_children;

void bt_children_init(bt_children *children);

/* After bt_children_stop. */
void bt_children_deinit(bt_children *children);

/* Starts this very program with other arguments. BT_EINTERNAL: no process to be had. */
BT_MUST_CHECK bt_status bt_children_start(bt_children *children, const char *name,
                                          const bt_arguments *args, bt_error *err);

/* Reaps children that ended. BT_EINTERNAL: one did; *err says which and how. */
BT_MUST_CHECK bt_status bt_children_check(bt_children *children, bt_error *err);

/* The next signal within timeout_ns; 0: none came. */
int bt_children_next_signal(const bt_children *children, int64_t timeout_ns);

/* SIGTERM to all, and, at another SIGINT or SIGTERM or after timeout_ns, SIGKILL; returns when all
 * are gone. */
void bt_children_stop(bt_children *children, int64_t timeout_ns);

#endif /* BT_CLI_CHILDREN_H */
