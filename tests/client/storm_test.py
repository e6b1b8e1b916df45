# SPDX-License-Identifier: Apache-2.0
"""A short storm (storm.py): what tools/test --soak runs with 10,000 requests."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import storm  # noqa: E402


class StormTest(unittest.TestCase):
    def test_nothing_leaks_and_every_request_ends_once_while_workers_are_killed(self):
        measured = storm.run(n_requests=400, concurrency=64, batch=200, kills=True, seed=1, say=lambda line: None)
        self.assertGreater(measured["ends"]["cancel/CANCELLED"], 0)
        self.assertGreater(measured["ends"]["deadline/DEADLINE_EXCEEDED"], 0)

    def test_nothing_grows_without_kills(self):
        storm.run(n_requests=400, concurrency=64, batch=200, kills=False, seed=2, say=lambda line: None)


if __name__ == "__main__":
    unittest.main()
