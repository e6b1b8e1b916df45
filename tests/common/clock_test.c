/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that the clock never goes back and that a test can take its place. */
#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/fake_clock.h"

static void real_clock_never_goes_back(void **state)
{
    (void)state;
    int64_t last = bt_clock_now_ns();
    assert_true(last > 0);
    for (int i = 0; i < 1000; i++) {
        const int64_t now = bt_clock_now_ns();
        assert_true(now >= last);
        last = now;
    }
    assert_true(bt_clock_wall_ns() > INT64_C(1577836800000000000)); /* after 2020 */
}

static void fake_clock_moves_only_when_told(void **state)
{
    (void)state;
    bt_fake_clock clock;
    bt_fake_clock_install(&clock, 100);
    assert_int_equal(bt_clock_now_ns(), 100);
    assert_int_equal(bt_clock_now_ns(), 100);
    bt_fake_clock_advance(&clock, 23);
    assert_int_equal(bt_clock_now_ns(), 123);
    bt_fake_clock_uninstall();
    assert_true(bt_clock_now_ns() != 123);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_clock_never_goes_back),
        cmocka_unit_test(fake_clock_moves_only_when_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
