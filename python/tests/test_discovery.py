"""How long a scheduler stands still for what other machines may have."""

import unittest

from tessera.discovery import Patience


class Slow:
    """A question that is answered after some time of a clock that it moves."""

    def __init__(self, clock, takes_s):
        self.clock, self.takes_s = clock, takes_s

    def wait(self, limit_s):
        self.clock.now += min(self.takes_s, limit_s)
        return self.takes_s <= limit_s


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class TestPatience(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.patience = Patience(50, self.clock)

    def waited(self, takes_s):
        before = self.clock.now
        answered = self.patience.wait(Slow(self.clock, takes_s))
        return self.clock.now - before, answered

    def test_requests_that_come_now_and_then_wait_for_their_answers(self):
        for _ in range(10):
            waited, answered = self.waited(0.04)
            self.assertTrue(answered)
            self.assertAlmostEqual(waited, 0.04)
            self.clock.now += 2

    def test_a_slow_server_and_many_requests_cost_a_share_of_the_time(self):
        begin, stood, n_answered = self.clock.now, 0.0, 0
        for _ in range(1000):
            waited, answered = self.waited(0.04)
            stood += waited
            n_answered += answered
            self.clock.now += 0.01  # a step
        self.assertLess(stood, 0.05 + 0.02 * (self.clock.now - begin) + 1e-6)
        self.assertGreater(n_answered, 4)  # and not only the first ones

    def test_answers_at_once_cost_nothing(self):
        for _ in range(1000):
            self.assertEqual(self.waited(0.0), (0.0, True))


if __name__ == "__main__":
    unittest.main()
