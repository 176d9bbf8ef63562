"""How much of the time documents that nobody waits for take beside other requests."""

import unittest

from tessera.vllm.learning import LearnTime

HELD_S = 0.025


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class TestLearnTime(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.time = LearnTime(HELD_S, self.clock)

    def steps(self, n, step_s, piece_s):
        """Steps of other requests, and pieces of learning for as long as they may: (time that
        learning took, longest time that it held a step)."""
        took = longest = 0.0
        for _ in range(n):
            held = 0.0
            while self.time.left_s() > 0:
                self.clock.now += piece_s
                self.time.spend(piece_s)
                held += piece_s
            self.clock.now += step_s
            took += held
            longest = max(longest, held)
        return took, longest

    def test_it_takes_a_tenth_of_the_time(self):
        for step_s, piece_s in ((0.01, 0.001), (0.01, 0.004), (0.2, 0.002), (0.005, 0.1)):
            begin = self.clock.now
            took, _longest = self.steps(2000, step_s, piece_s)
            share = took / (self.clock.now - begin)
            self.assertLess(share, 0.105 + (HELD_S + piece_s) / (self.clock.now - begin))
            self.assertGreater(share, 0.09)  # and it goes on

    def test_it_holds_no_step_for_longer_than_it_may(self):
        self.clock.now += 3600  # nobody learned: that does not add up
        _took, longest = self.steps(1000, 0.01, 0.001)
        self.assertLess(longest, HELD_S / 0.9 + 0.0011)

    def test_a_long_piece_is_paid_for(self):
        self.time.spend(1.0)
        for _ in range(9):
            self.clock.now += 1
            self.assertLess(self.time.left_s(), 0)
        self.clock.now += 1
        self.assertGreater(self.time.left_s(), 0)


class Event:
    """Of a stream that computes later than it is asked."""

    def __init__(self, stream):
        self.stream = stream

    def record(self):
        self.at = max(self.stream.queued_until, self.stream.clock.now)

    def query(self):
        return self.stream.clock.now >= self.at

    def elapsed_time(self, other):
        return (other.at - self.at) * 1000


class Stream:
    def __init__(self, clock):
        self.clock, self.queued_until = clock, clock.now

    def compute(self, seconds):
        self.queued_until = max(self.queued_until, self.clock.now) + seconds


class TestDevice(unittest.TestCase):
    def test_what_a_device_computes_later_counts(self):
        """Asking takes a fifth of the time that computing does."""
        clock = Clock()
        stream = Stream(clock)
        learning = LearnTime(HELD_S, clock, lambda: Event(stream))
        begin, computed = clock.now, 0.0
        for _ in range(5000):
            while learning.left_s() > 0:
                with learning.piece():
                    clock.now += 0.0002
                    stream.compute(0.001)
                    computed += 0.001
            clock.now = max(clock.now + 0.01, stream.queued_until)  # a step, which waits for it
        share = computed / (clock.now - begin)
        self.assertLess(share, 0.12)
        self.assertGreater(share, 0.08)

    def test_a_device_that_hangs_takes_no_memory(self):
        clock = Clock()
        stream = Stream(clock)
        learning = LearnTime(HELD_S, clock, lambda: Event(stream))
        stream.compute(1e9)
        for _ in range(10000):
            with learning.piece():
                stream.compute(1.0)
        self.assertLess(len(learning._queued), 2000)

    def test_a_piece_that_fails_is_paid_for(self):
        clock = Clock()
        learning = LearnTime(HELD_S, clock)
        with self.assertRaises(StopIteration), learning.piece():
            clock.now += 1
            raise StopIteration
        self.assertLess(learning.left_s(), -0.8)


if __name__ == "__main__":
    unittest.main()
