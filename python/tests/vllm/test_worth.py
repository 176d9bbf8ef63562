"""Whether a blend is worth it: what is measured, what is decided, and that a request that is not
worth it is a plain one, under vLLM's real schedulers."""

import unittest
from unittest import mock

from blend_rig import BlendRig, document

from tessera.blend_job import BlendOutcome
from tessera.vllm.worth import TOKENS_MIN, StepTime, Worth

N = 4 * TOKENS_MIN


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Event:
    """Of a device that is behind."""

    done = 0  # times of the device so far
    times = ()

    def record(self):
        self.at = Event.times[0]
        Event.times = Event.times[1:]

    def query(self):
        return self.at <= Event.done

    def elapsed_time(self, other):
        return 1000 * (other.at - self.at)


class Recorded:
    """In place of StepTime: the tokens of steps that count."""

    def __init__(self):
        self.kept, self.dropped, self.open, self.last = [], 0, None, [0.25]

    def begin(self, n_tokens):
        self.open = n_tokens

    def drop(self):
        self.dropped += 1
        self.open = None

    def end(self):
        if self.open is not None:
            self.kept.append(self.open)
        self.open = None

    def news(self):
        return self.last.pop() if self.last and self.kept else 0.0


def outcome(fixed_s, growing_s, ok=True, **more):
    report = {"query_s": fixed_s / 2, "draft_s": fixed_s / 2, "blend_s": growing_s, "n_reused": 1}
    return BlendOutcome(1, ok, report, fixed_s + growing_s, **more)


class TestStepTime(unittest.TestCase):
    def test_steps_of_few_tokens_and_with_other_work_do_not_count(self):
        clock = Clock()
        time = StepTime(clock)
        for n_tokens, dropped in ((TOKENS_MIN - 1, False), (TOKENS_MIN, True)):
            time.begin(n_tokens)
            if dropped:
                time.drop()
            clock.now += 1
            time.end()
            self.assertEqual(time.news(), 0)
        time.end()  # that was never begun
        time.begin(1000)
        clock.now += 2
        time.end()
        self.assertAlmostEqual(time.news(), 0.002)

    def test_the_median_counts_and_is_told_when_it_changes(self):
        clock = Clock()
        time = StepTime(clock)
        told = []
        for seconds in (60, 1, 1, 1, 1.05, 0.96, 3, 3, 3, 3, 3, 3):
            time.begin(1000)
            clock.now += seconds
            time.end()
            told.append(round(1000 * time.news(), 4))
        # The median of two is between them; 1.05 is too near to what was told.
        self.assertEqual(told, [60, 30.5, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0])

    def test_a_device_tells_later(self):
        Event.times, Event.done = (1.0, 1.5, 2.0, 2.5), 0
        time = StepTime(event=Event)
        for _ in range(2):
            time.begin(500)
            time.end()
            self.assertEqual(time.news(), 0)
        Event.done = 1.5
        time.end()
        self.assertAlmostEqual(time.news(), 0.001)


class TestWorth(unittest.TestCase):
    def worth(self, row_s, fixed_s, growing_s):
        worth = Worth()
        worth.row_s = row_s
        for _ in range(5):
            worth.note(N, outcome(fixed_s, growing_s))
        return worth

    def test_what_is_not_known_is_tried(self):
        worth = Worth()
        self.assertTrue(worth.pays(N))
        worth.row_s = 1e-6
        worth.note(N, outcome(1, 1))
        worth.note(N, outcome(1, 1))
        self.assertTrue(worth.pays(N))
        worth.note(N, outcome(1, 1))
        self.assertFalse(worth.pays(N))
        self.assertTrue(worth.pays(TOKENS_MIN - 1))  # too short to say

    def test_failures_and_short_prompts_say_nothing(self):
        worth = Worth()
        worth.row_s = 1e-6
        for _ in range(3):
            worth.note(N, outcome(1, 1, ok=False))
            worth.note(N, outcome(1, 1, stopped=True))
            worth.note(TOKENS_MIN - 1, outcome(1, 1))
            worth.note(N, BlendOutcome(1, True))
        self.assertTrue(worth.pays(N))

    def test_long_prompts_pay_where_short_ones_do_not(self):
        # 0.2 s for the drafts; a token takes a fifth of what vLLM takes.
        worth = self.worth(1e-4, 0.2, N * 2e-5)
        border = 0.2 / (1e-4 - 2e-5)
        self.assertFalse(worth.pays(int(border) - 1))
        self.assertTrue(worth.pays(int(border) + 1))

    def test_one_that_compiled_does_not_count(self):
        worth = Worth()
        worth.row_s = 1e-4
        worth.note(N, outcome(30, 1))
        for _ in range(2):
            worth.note(N, outcome(0.001, 0.001))
        self.assertTrue(worth.pays(N))

    def test_without_a_step_of_vllm_some_are_computed(self):
        worth = self.worth(0, 1, 1)
        told = [worth.pays(N) for _ in range(16)]
        self.assertEqual(told.count(False), 2)
        worth.row_s = 1e-6
        self.assertFalse(worth.pays(N))

    def test_tries_take_a_hundredth_of_the_time(self):
        whole_s, blend_s = N * 1e-4, 0.5
        worth = self.worth(1e-4, blend_s, 0)
        n = 1000
        tries = sum(worth.pays(N) for _ in range(n))
        self.assertGreater(tries, 0)
        self.assertLessEqual(tries * blend_s, 0.01 * n * whole_s)


class TestRequests(unittest.TestCase):
    def setUp(self):
        self.prompts = iter(range(1, 100))

    def rig(self, runner=1, **blend):
        rig = BlendRig(runner=runner, blend={"min_tokens": 1, **blend})
        self.addCleanup(rig.close)
        return rig

    def ask(self, rig, **wishes):
        """Whether a new prompt was blended, and what its client was told."""
        number = next(self.prompts)
        prompt = document(number, TOKENS_MIN + 40) + [5, 6, 7]
        wishes = {"segments": [[0, TOKENS_MIN + 40]], **wishes}
        rig.ask(f"r{number}", prompt, wishes=wishes)
        told = rig.run_all()[f"r{number}"]["tessera"]
        rig.check_answers()
        return told

    def dear(self, rig):
        rig.blending.worth.row_s = 1e-6
        for _ in range(3):
            rig.blending.worth.note(N, outcome(1, 1))

    def test_a_costly_one_is_a_plain_request(self):
        for runner in (1, 2):
            rig = self.rig(runner)
            self.assertTrue(self.ask(rig)["blended"])
            self.dear(rig)
            told = self.ask(rig)
            self.assertEqual(told, {"blended": False, "reason": "computing it is faster"})
            self.assertEqual(rig.counters["blend_costly"], 1)
            self.assertEqual(len(rig.blender.jobs), 1)
            # Who says how gets that, and so does an engine that was told not to weigh.
            self.assertTrue(self.ask(rig, ratio=0.1)["blended"])
            self.assertTrue(self.ask(rig, selector="query")["blended"])

    def test_a_costly_one_shares_its_prefix(self):
        """Unlike a blended one, whose blocks nobody else may find."""
        rig = self.rig()
        self.dear(rig)
        with mock.patch("tessera.vllm.marks.isolate") as isolated:
            self.ask(rig)
            isolated.assert_not_called()
            self.ask(rig, ratio=0.1)
            isolated.assert_called_once()

    def test_weighing_can_be_off(self):
        rig = self.rig(weigh=False)
        self.dear(rig)
        self.assertTrue(self.ask(rig)["blended"])

    def test_workers_measure_steps_that_only_vllm_computes_in(self):
        for runner in (1, 2):
            rig = self.rig(runner)
            time = rig.ranks[0].connector._step_time = Recorded()
            rig.ask("plain", document(1, 300), wishes={"blend": False})
            rig.run_all()
            self.assertGreaterEqual(sum(time.kept), 300)
            self.assertEqual((time.dropped, rig.blending.worth.row_s), (0, 0.25))
            time.kept.clear()
            self.ask(rig)
            self.assertGreater(time.dropped, 0)
            self.assertLess(sum(time.kept), 300)  # the question and the answer
            self.assertEqual(rig.blending.worth.row_s, 0.25)  # nothing new was told


if __name__ == "__main__":
    unittest.main()
