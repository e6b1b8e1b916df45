# SPDX-License-Identifier: Apache-2.0
"""Twenty seeded schedules of faults on a cluster of real processes (chaos.py); a failure names its seed."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from chaos import Chaos  # noqa: E402

SCHEDULES = 20


class ChaosTest(unittest.TestCase):
    def test_no_schedule_of_faults_loses_or_changes_a_token(self):
        chaos = Chaos()
        self.addCleanup(chaos.members.close)
        for seed in range(1, SCHEDULES + 1):
            chaos.run(seed)
        chaos.close()


if __name__ == "__main__":
    unittest.main()
