/* SPDX-License-Identifier: Apache-2.0 */
/* A thousand seeded schedules of faults, each on a whole cluster in one process: nothing is lost,
 * doubled, changed or left behind (schedule.h says what is checked).
 *
 * Seeds are dealt to a few child processes, which run side by side: most of a schedule is waiting
 * for somebody to dial again. A schedule that fails prints its seed, and what was done;
 *
 *   schedules_test --seed N [--repeat K]   runs that one alone, on a new cluster, with the log
 *   schedules_test --first N --count M   runs others (tools/test --soak)
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log.h"
#include "tests/fault/schedule.h"

enum {
    CHILDREN = 4,
#ifdef BT_SLOW_CHECKS
    SCHEDULES = 80, /* sanitizers take many times as long */
#else
    SCHEDULES = 1000,
#endif
};

typedef struct plan {
    uint64_t first;
    uint64_t count;
    bool alone;       /* in this process */
    uint64_t repeats; /* of each seed, with alone */
} plan;

/* For the signal handler: an assertion of the code under test must name the seed too. */
static uint64_t seed_now;
static char text_now[BT_SCHEDULE_TEXT_BYTES];

static void on_fatal(int number)
{
    char line[160];
    const int n =
        snprintf(line, sizeof line,
                 "\nschedule %llu failed (signal %d): ", (unsigned long long)seed_now, number);
    (void)!write(STDERR_FILENO, line, (size_t)n);
    (void)!write(STDERR_FILENO, text_now, strlen(text_now));
    (void)!write(STDERR_FILENO, "\n", 1);
    signal(number, SIG_DFL);
    raise(number);
}

/* Every `step`-th seed from `first` on. */
static void run_seeds(const plan *p, uint64_t first, uint64_t step)
{
    bt_schedule_asks *asks = calloc(1, sizeof *asks);
    assert_non_null(asks);
    bt_schedule_asks_init(asks);
    bt_cluster_options options;
    bt_schedule_cluster_options(first, &options);
    bt_cluster *cluster = bt_cluster_create(&options);
    bt_schedule_counts counts = {0};
    for (uint64_t seed = first; seed < p->first + p->count; seed += step) {
        seed_now = seed;
        for (uint64_t n = 0; n < p->repeats; n++) {
            const char *wrong = bt_schedule_run(cluster, asks, seed, text_now, &counts);
            if (wrong != NULL) {
                fprintf(stderr, "%s\n", wrong);
                abort();
            }
        }
        if (p->alone) {
            fprintf(stderr, "schedule %llu: %s\n", (unsigned long long)seed, text_now);
        }
    }
    bt_cluster_wait_attached(cluster);
    bt_cluster_wait_idle(cluster);
    bt_cluster_destroy(cluster);
    free(asks);
    fprintf(stderr,
            "schedules=%llu requests=%llu ok=%llu errors=%llu retried=%llu allocations_failed=%llu "
            "idle_ms_max=%lld\n",
            (unsigned long long)counts.schedules, (unsigned long long)counts.requests,
            (unsigned long long)counts.ended_ok, (unsigned long long)counts.ended_otherwise,
            (unsigned long long)counts.retried, (unsigned long long)counts.allocations_failed,
            (long long)counts.idle_ms_max);
}

static void nothing_is_lost_in_any_seeded_schedule(void **state)
{
    const plan *p = *state;
    if (p->alone) {
        run_seeds(p, p->first, 1);
        return;
    }
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            run_seeds(p, p->first + (uint64_t)i, CHILDREN);
            _exit(0);
        }
    }
    int n_failed = 0;
    for (int i = 0; i < CHILDREN; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        n_failed += status != 0;
    }
    assert_int_equal(n_failed, 0);
}

static uint64_t number_of(int argc, char **argv, const char *name, uint64_t otherwise)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return strtoull(argv[i + 1], NULL, 10);
        }
    }
    return otherwise;
}

int main(int argc, char **argv)
{
    plan p = {
        .first = number_of(argc, argv, "--first", 1),
        .count = number_of(argc, argv, "--count", SCHEDULES),
        .repeats = 1,
    };
    const uint64_t seed = number_of(argc, argv, "--seed", 0);
    if (seed != 0) {
        p = (plan){.first = seed, .count = 1, .alone = true, .repeats = 1};
        p.repeats = number_of(argc, argv, "--repeat", 1);
    } else {
        bt_log_init(BT_ERROR, BT_LOG_FORMAT_TEXT, "test");
    }
    signal(SIGABRT, on_fatal);
    signal(SIGSEGV, on_fatal);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(nothing_is_lost_in_any_seeded_schedule, &p),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
