/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/children.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"

static const int64_t second_ns = 1000000000;

void bt_arguments_add(bt_arguments *args, const char *fmt, ...)
{
    BT_ASSERT(args->n < BT_ARGUMENTS_MAX);
    va_list list;
    va_start(list, fmt);
    (void)vsnprintf(args->texts[args->n], BT_ARGUMENT_BYTES, fmt, list);
    va_end(list);
    args->argv[args->n] = args->texts[args->n];
    args->argv[++args->n] = NULL;
}

void bt_arguments_add_option(bt_arguments *args, const char *name, const char *value)
{
    bt_arguments_add(args, "--%s", name);
    bt_arguments_add(args, "%s", value);
}

void bt_children_init(bt_children *children)
{
    children->n = 0;
    (void)sigemptyset(&children->signals);
    (void)sigaddset(&children->signals, SIGINT);
    (void)sigaddset(&children->signals, SIGTERM);
    (void)sigaddset(&children->signals, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &children->signals, &children->before);
}

void bt_children_deinit(bt_children *children)
{
    (void)sigprocmask(SIG_SETMASK, &children->before, NULL);
}

/* In the child: never returns. */
static void become(const bt_arguments *args, const sigset_t *signals)
{
    (void)sigprocmask(SIG_UNBLOCK, signals, NULL);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)execv("/proc/self/exe", args->argv);
    fprintf(stderr, "cannot start '%s': %s\n", args->argv[1], strerror(errno));
    _exit(127);
}

bt_status bt_children_start(bt_children *children, const char *name, const bt_arguments *args,
                            bt_error *err)
{
    BT_ASSERT(children->n < BT_CHILDREN_MAX);
    bt_child *child = &children->all[children->n];
    (void)snprintf(child->name, sizeof child->name, "%s", name);
    const pid_t pid = fork();
    if (pid < 0) {
        return bt_error_set(err, BT_EINTERNAL, "cannot fork for %s: %s", name, strerror(errno));
    }
    if (pid == 0) {
        become(args, &children->signals);
    }
    child->pid = pid;
    children->n++;
    return BT_OK;
}

static bt_status tell_end(const bt_child *child, int how, bt_error *err)
{
    if (WIFSIGNALED(how)) {
        return bt_error_set(err, BT_EINTERNAL, "%s was ended by signal %d (%s)", child->name,
                            WTERMSIG(how), strsignal(WTERMSIG(how)));
    }
    if (WEXITSTATUS(how) == 0) {
        return bt_error_set(
            err, BT_EINTERNAL,
            "%s was told to end, by `baton drain` or SIGTERM. Its cluster ends with "
            "it: `baton up` replaces nobody",
            child->name);
    }
    return bt_error_set(err, BT_EINTERNAL,
                        "%s ended with exit code %d. Its last lines above say why", child->name,
                        WEXITSTATUS(how));
}

bt_status bt_children_check(bt_children *children, bt_error *err)
{
    bt_status status = BT_OK;
    for (size_t i = 0; i < children->n; i++) {
        bt_child *child = &children->all[i];
        int how;
        if (child->pid == 0 || waitpid(child->pid, &how, WNOHANG) != child->pid) {
            continue;
        }
        child->pid = 0;
        if (status == BT_OK) {
            status = tell_end(child, how, err);
        }
    }
    return status;
}

int bt_children_next_signal(const bt_children *children, int64_t timeout_ns)
{
    const struct timespec timeout = {.tv_sec = timeout_ns / second_ns,
                                     .tv_nsec = timeout_ns % second_ns};
    const int signum = sigtimedwait(&children->signals, NULL, &timeout);
    return signum > 0 ? signum : 0;
}

static size_t signal_all(const bt_children *children, int signum)
{
    size_t n = 0;
    for (size_t i = 0; i < children->n; i++) {
        if (children->all[i].pid != 0) {
            (void)kill(children->all[i].pid, signum);
            n++;
        }
    }
    return n;
}

void bt_children_stop(bt_children *children, int64_t timeout_ns)
{
    size_t n_running = signal_all(children, SIGTERM);
    const int64_t deadline_ns = bt_clock_now_ns() + timeout_ns;
    while (n_running > 0) {
        const int signum = bt_children_next_signal(children, second_ns / 10);
        const bool now = signum == SIGINT || signum == SIGTERM || bt_clock_now_ns() > deadline_ns;
        /* How they ended was asked for, so it is no news. */
        if (bt_children_check(children, NULL) != BT_OK || now) {
            n_running = signal_all(children, now ? SIGKILL : 0);
        }
    }
}
