/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that each member of a team runs once in each round, that the caller sees what they wrote,
 * and that members who fell asleep between rounds wake up. */
#include "engine/cpu/team.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

enum { MEMBERS_MAX = 4 };

typedef struct counts {
    uint32_t n[MEMBERS_MAX]; /* plain: the team orders the accesses */
} counts;

static void count(void *ctx, uint32_t member, uint32_t n_members)
{
    counts *c = ctx;
    c->n[member]++;
    assert_true(member < n_members);
}

static void each_member_runs_once_in_each_round(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MEMBERS_MAX; n++) {
        bt_team *team = NULL;
        assert_int_equal(bt_team_create(n, &team), BT_OK);
        assert_int_equal(bt_team_size(team), n);
        counts c = {{0}};
        for (uint32_t round = 1; round <= 500; round++) {
            bt_team_run(team, count, &c);
            for (uint32_t i = 0; i < MEMBERS_MAX; i++) {
                assert_int_equal(c.n[i], i < n ? round : 0);
            }
        }
        bt_team_destroy(team);
    }
}

/* The spin is over long before: this only makes it likely that members sleep; the claim holds
 * either way. */
static void sleeping_members_wake_up(void **state)
{
    (void)state;
    bt_team *team = NULL;
    assert_int_equal(bt_team_create(3, &team), BT_OK);
    counts c = {{0}};
    for (uint32_t round = 1; round <= 3; round++) {
        const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
        (void)nanosleep(&pause, NULL);
        bt_team_run(team, count, &c);
        assert_int_equal(c.n[0] + c.n[1] + c.n[2], 3 * round);
    }
    bt_team_destroy(team);
}

static void a_team_of_nobody_is_refused(void **state)
{
    (void)state;
    bt_team *team = NULL;
    assert_int_equal(bt_team_create(0, &team), BT_EINVAL);
    bt_team_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_member_runs_once_in_each_round),
        cmocka_unit_test(sleeping_members_wake_up),
        cmocka_unit_test(a_team_of_nobody_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
