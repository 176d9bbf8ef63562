"""Whether a blend is worth it: what is measured, what is decided, and that a request that is not
worth it is a plain one, under vLLM's real schedulers."""

import unittest
from unittest import mock

from blend_rig import BlendRig, document

from tessera.blend_job import BlendOutcome
from tessera.vllm.messages import TesseraMetadata
from tessera.vllm.stopwatch import Stopwatch
from tessera.vllm.worth import TOKENS_MIN, StepTime, Worth, prompt_tokens

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
        self.kept, self.open, self.last = [], 0, [0.25]

    def begin(self, n_tokens):
        self.open = n_tokens

    def end(self):
        self.kept += [self.open] if self.open else []
        self.open = 0

    def news(self):
        return self.last.pop() if self.last and self.kept else 0.0


def outcome(busy_s, ok=True, stopped=False):
    return BlendOutcome(1, ok, {"n_reused": 1}, 9.0, stopped, busy_s)


class TestStepTime(unittest.TestCase):
    def test_steps_that_decode_do_not_count(self):
        for n_tokens, n_requests, counts in (
            (TOKENS_MIN - 1, 1, 0),
            (TOKENS_MIN, 1, TOKENS_MIN),
            (300, 300, 0),
            (320, 64, 0),  # five tokens each, four of them drafts
            (8192, 64, 8192),
        ):
            self.assertEqual(prompt_tokens(n_tokens, n_requests), counts)

    def test_what_is_computed_before_it_begins_does_not_count(self):
        clock = Clock()
        time = StepTime(Stopwatch(clock))
        for _ in range(3):
            time.begin(1000)
            clock.now += 5
            time.begin(1000)  # again
            clock.now += 2
            time.end()
            clock.now += 7
            time.end()  # again
            time.begin(0)
            clock.now += 9
            time.end()
        self.assertAlmostEqual(time.news(), 0.002)

    def test_the_median_counts_and_is_told_when_it_changes(self):
        clock = Clock()
        time = StepTime(Stopwatch(clock))
        told = []
        for seconds in (60, 1, 1, 1, 1.05, 0.96, 3, 3, 3, 3, 3, 3):
            time.begin(1000)
            clock.now += seconds
            time.end()
            told.append(round(1000 * time.news(), 4))
            self.assertEqual(time.news(), 0)
        # Not before there are three; 1.05 is too near to what was told.
        self.assertEqual(told, [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0])

    def test_a_device_tells_later(self):
        Event.times, Event.done = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5), 0
        time = StepTime(Stopwatch(event=Event))
        for _ in range(3):
            time.begin(500)
            time.end()
            self.assertEqual(time.news(), 0)
        Event.done = 3.5
        time.end()
        self.assertAlmostEqual(time.news(), 0.001)


class TestWorth(unittest.TestCase):
    def worth(self, row_s, busy_s, n=N):
        worth = Worth()
        worth.row_s = row_s
        for _ in range(5):
            worth.note(n, outcome(busy_s))
        return worth

    def test_what_is_not_known_is_tried(self):
        worth = Worth()
        self.assertTrue(worth.pays(N))
        worth.row_s = 1e-6
        worth.note(N, outcome(1))
        worth.note(N, outcome(1))
        self.assertTrue(worth.pays(N))
        worth.note(N, outcome(1))
        self.assertFalse(worth.pays(N))

    def test_failures_say_nothing(self):
        worth = Worth()
        worth.row_s = 1e-6
        for _ in range(3):
            worth.note(N, outcome(1, ok=False))
            worth.note(N, outcome(1, stopped=True))
            worth.note(N, outcome(0.0))
        self.assertTrue(worth.pays(N))

    def test_short_prompts_say_nothing_of_long_ones(self):
        worth = self.worth(1e-4, 0.5)
        self.assertFalse(worth.pays(N))
        self.assertFalse(worth.pays(2 * N))  # nearly as long
        self.assertTrue(worth.pays(2 * N + 1))
        for _ in range(3):
            worth.note(30000, outcome(0.5))
        self.assertTrue(worth.pays(30000))
        self.assertFalse(worth.pays(N))

    def test_the_shortest_are_as_one(self):
        worth = self.worth(1e-4, 0.2, n=10)
        self.assertFalse(worth.pays(TOKENS_MIN))
        self.assertFalse(worth.pays(2))

    def test_one_that_compiled_does_not_count(self):
        worth = Worth()
        worth.row_s = 1e-4
        worth.note(N, outcome(30))
        for _ in range(2):
            worth.note(N, outcome(0.001))
        self.assertTrue(worth.pays(N))

    def test_without_a_step_of_vllm_some_are_computed(self):
        worth = self.worth(0, 1)
        told = [worth.pays(N) for _ in range(16)]
        self.assertEqual(told.count(False), 2)
        self.assertTrue(all(worth.pays(TOKENS_MIN - 1) for _ in range(16)))  # says nothing
        worth.row_s = 1e-6
        self.assertFalse(worth.pays(N))

    def test_tries_take_a_hundredth_of_the_time(self):
        whole_s, blend_s = N * 1e-4, 0.5
        worth = self.worth(1e-4, blend_s)
        n = 900
        tries = sum(worth.pays(N) for _ in range(n))
        self.assertGreater(tries, 0)
        self.assertLessEqual(tries * blend_s, 0.01 * n * whole_s)

    def test_the_dearest_are_tried_again_some_day(self):
        worth = self.worth(1e-6, 60)
        self.assertEqual(sum(worth.pays(N) for _ in range(3000)), 3)

    def test_a_try_that_pays_is_believed(self):
        worth = self.worth(1e-4, 5)
        worth.note(30000, outcome(1))
        self.assertFalse(worth.pays(N))
        worth.note(N, outcome(0.01))
        for _ in range(4):
            self.assertTrue(worth.pays(N))
            worth.note(N, outcome(0.01))
        self.assertEqual(sum(n == 30000 for n, _s in worth._seen), 1)


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
            rig.blending.worth.note(TOKENS_MIN, outcome(1))

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

    def test_a_first_one_teaches_whether_it_pays_or_not(self):
        rig = self.rig()
        self.dear(rig)
        rig.blending.segment_matcher = lambda *_asked: 0
        told = self.ask(rig)
        self.assertTrue(told["first"])
        self.assertEqual(rig.counters["blend_first"], 1)
        self.assertEqual(rig.counters.get("blend_costly", 0), 0)

    def test_workers_measure_prompts(self):
        for runner in (1, 2):
            rig = self.rig(runner)
            time = rig.ranks[0].connector._step_time = Recorded()
            rig.ask("plain", document(1, 300), wishes={"blend": False})
            with mock.patch("tessera.vllm.marks.prompt_tokens", lambda n, _requests: n):
                rig.run_all()
            self.assertGreaterEqual(sum(time.kept), 300)
            self.assertEqual(rig.blending.worth.row_s, 0.25)
            time.kept.clear()
            self.ask(rig)  # its question and its answer are short
            self.assertEqual(time.kept, [])
            self.assertEqual(rig.blending.worth.row_s, 0.25)  # nothing new was told

    def test_after_a_forward_nothing_of_ours_is_counted(self):
        """As in model runner V2 without loads that a step waits for."""
        rig = self.rig()
        connector = rig.ranks[0].connector
        calls = []
        connector._step_time = mock.Mock(begin=calls.append, end=lambda: calls.append("end"))
        connector._start = lambda meta: calls.append("ours")
        meta = TesseraMetadata(n_tokens=300)
        for sync in (False, True):
            connector.bind_connector_metadata(meta)
            connector.start_load_kv(None, scheduler_output=mock.Mock(has_sync_kv_loads=sync))
            connector.wait_for_save()
        after = [300, "end", "ours", "end"]
        before = [300, "ours", 300, "end"]
        self.assertEqual(calls, after + before)
        connector.clear_connector_metadata()


if __name__ == "__main__":
    unittest.main()
