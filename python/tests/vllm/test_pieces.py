"""Blends that share steps with other requests: cut after so many rows, and never held by a load or
a store. The model is that of test_places.py."""

import threading
import time
import unittest
from array import array
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from unittest import mock

import torch
from test_places import (
    BLOCK,
    BLOCKS,
    CONTEXT,
    CPU,
    LAYERS,
    Cache,
    caches_of,
    pages_of,
    parts_of,
    prompt,
)

from tessera.blend import Blend, BlendRun
from tessera.blend_job import BlendJob, BlendSettings
from tessera.compute.executor import BlendExecutor
from tessera.vllm import turns
from tessera.vllm.blend import BlendWorker, _Lane
from tessera.vllm.kernels import OwnKernels
from tessera.vllm.learning import LearnTime
from tessera.vllm.model import model_info
from tessera.vllm.places import Rows
from tessera.vllm.turns import Turns


def open_worker(test, places, executors):
    """A worker whose blends are computed by these, all with one space."""
    cache = Cache()
    test.addCleanup(cache.close)
    lanes = [_Lane(*both) for both in zip(places, executors)]
    parts = executors[0]._parts
    worker = BlendWorker.__new__(BlendWorker)
    worker._parts, worker._block, worker._world, worker._ranks = parts, BLOCK, 1, None
    worker._settings, worker._timeout_ms = BlendSettings(), 0
    worker._complaints, worker._blends, worker._ended = set(), {}, []
    worker._used, worker._old = Counter(), set()
    worker._threads, worker._kernels = ThreadPoolExecutor(len(lanes)), OwnKernels(parts)
    worker._lanes = list(lanes)
    worker._turns = Turns(worker._steps, len(lanes), LAYERS, LearnTime(60), worker._complain)
    blend = Blend(cache.handle, model_info(parts, "plain", bytes(32), bytes(16)), None, 0, b"some")
    test.addCleanup(blend.close)
    test.addCleanup(worker._threads.shutdown)
    worker._opened = lambda salt: blend
    return worker, lanes


def job_of(number, order, ratio, first=3, learn=False, selector="query"):
    tokens, segments = prompt(order)
    blocks = tuple((7 * i + first) % BLOCKS for i in range(-(-CONTEXT // BLOCK)))
    packed = array("I", tokens).tobytes()
    how = selector if ratio else "none", ratio
    return BlendJob(number, packed, tuple(segments), True, CONTEXT, blocks, *how, b"", learn=learn)


def kv_of(place):
    rows = Rows(torch.arange(CONTEXT), CPU)
    return torch.stack([torch.stack(place.take(i, rows)) for i in range(LAYERS)])


def kept_kv(worker, jobs, budget):
    """Runs these at once; K and V of each by number, and its report."""
    found, reports = {}, {}
    pages = type(worker._lanes[-1].place)
    hand_over = pages.hand_over

    def watched(place, n):
        block = int(place.slots[0]) // BLOCK
        (number,) = [job.number for job in jobs if job.blocks[0] == block]
        found[number] = kv_of(place)
        hand_over(place, n)

    with mock.patch.object(pages, "hand_over", watched):
        for job in jobs:
            worker.add(job)
        while worker.busy:
            reports.update((one.number, one.report) for one in worker.advance(budget, 5.0))
    return found, reports


# First blocks of prompts that have none in common, as far as there are blocks for.
APART = tuple(7 * -(-CONTEXT // BLOCK) * i for i in range(BLOCKS // -(-CONTEXT // BLOCK)))


class TestPieces(unittest.TestCase):
    LANES = 1

    def setUp(self):
        parts = parts_of()
        places = pages_of(parts, caches_of(False)).lanes(self.LANES, 64)
        executors = [BlendExecutor(parts, place) for place in places]
        self.worker, self.lanes = open_worker(self, places, executors)
        self.turns = self.worker._turns

    def job(self, *what, **more):
        return job_of(*what, **more)

    def advance_all(self, budget, wait_s=5.0):
        """How many calls it takes, and what comes of it."""
        for n in range(1, 10000):
            outcomes = self.worker.advance(budget, wait_s)
            if outcomes:
                return n, outcomes
        raise AssertionError("it never ends")

    def kv(self):
        """Of the blend that has ended last."""
        return kv_of(self.worker._lanes[-1].place)

    def test_pieces_give_what_one_run_gives(self):
        for order, ratio in (((0, 1, 2), 0.0), ((2, 0, 1), 0.4), ((1, 2, 0), 0.0)):
            self.worker.add(self.job(1, order, ratio))
            n, (outcome,) = self.advance_all(20)
            self.assertTrue(outcome.ok)
            self.assertEqual(n > 2, ratio > 0 or order == (0, 1, 2), n)
            pieces = self.kv()
            self.assertTrue(self.worker.run(self.job(2, order, ratio)).ok)
            torch.testing.assert_close(pieces, self.kv(), rtol=1e-4, atol=1e-5)
            self.assertFalse(self.worker.busy)

    def test_a_piece_has_as_many_rows_as_it_may(self):
        self.worker.add(self.job(1, (0, 1, 2), 0.0))  # all documents in one pass
        taken = []
        take = BlendRun.take

        def counted(run):
            taken.append(take(run))
            return taken[-1]

        with mock.patch.object(BlendRun, "take", counted), torch.inference_mode():
            while not self.worker.advance(CONTEXT // 2, 5.0):
                self.assertLessEqual(sum(taken), CONTEXT // 2 * LAYERS + CONTEXT)
                taken.clear()

    def test_nobody_waits_for_a_load(self):
        self.assertTrue(self.worker.run(self.job(1, (0, 1, 2), 0.0)).ok)
        gate = threading.Event()
        waits = BlendRun.next

        def slow(run):
            gate.wait(20)
            return waits(run)

        with mock.patch.object(BlendRun, "next", slow):
            self.worker.add(self.job(2, (2, 0, 1), 0.0))
            start = time.perf_counter()
            for _ in range(10):
                self.assertEqual(self.worker.advance(1000, 0.0), [])
            self.assertLess(time.perf_counter() - start, 5)
            self.assertTrue(self.worker.busy)
            gate.set()
            _n, (outcome,) = self.advance_all(1000)
        self.assertTrue(outcome.ok)

    def test_a_failure_ends_one_blend_and_the_next_goes_on(self):
        self.worker.add(self.job(1, (0, 1, 2), 0.3))
        self.worker.add(self.job(2, (0, 1, 2), 0.3))
        executor = self.worker._lanes[-1].executor  # of the next one
        layer, calls = executor.layer, []

        def broken(*args):
            calls.append(args)
            if len(calls) == 2:
                raise RuntimeError("made to fail")
            return layer(*args)

        executor.layer = broken
        self.assertEqual(sorted(self.ended(10)), [(1, False), (2, True)])

    def ended(self, budget=1000):
        """Everything that ends from now on."""
        found = []
        while self.worker.busy:
            found += [(one.number, one.ok) for one in self.worker.advance(budget, 5.0)]
        return found

    def test_a_dropped_blend_ends_whether_it_was_begun_or_not(self):
        for number in (1, 2, 3):
            self.worker.add(self.job(number, (0, 1, 2), 0.3))
        while not self.layers_of_first():
            self.worker.advance(10, 5.0)
        self.assertEqual([self.worker.drop(n) for n in (1, 2, 2, 9)], [True, True, False, False])
        self.assertEqual(self.ended(), [(3, True)])
        self.assertTrue(self.worker.run(self.job(4, (2, 0, 1), 0.3)).ok)

    def layers_of_first(self):
        """Whether the first blend is in a pass, and waits for nothing."""
        (begun, *_rest) = self.turns._queue
        return begun.rests(5.0) and any(len(lane.executor._hidden) for lane in self.lanes)

    def test_a_dropped_blend_that_waits_ends_when_it_has_waited(self):
        gate = threading.Event()
        waits = BlendRun.next

        def slow(run):
            gate.wait(20)
            return waits(run)

        with mock.patch.object(BlendRun, "next", slow):
            for number in (1, 2):
                self.worker.add(self.job(number, (0, 1, 2), 0.0))
            self.assertEqual(self.worker.advance(1000, 0.0), [])
            self.assertFalse(self.worker.drop(1))
            self.assertEqual(self.worker.advance(1000, 0.0), [], "it was ended while it waited")
            gate.set()
            (first, *rest) = self.advance_all(1000)[1]
            self.assertEqual((first.number, first.ok, first.stopped), (1, False, True))
            self.assertEqual([one.number for one in rest] or [n for n, _ok in self.ended()], [2])
        self.assertEqual(self.worker._complaints, set())

    def told(self, order):
        outcome = self.worker.run(self.job(9, order, 0.0))
        self.assertTrue(outcome.ok)
        return outcome.report

    def test_what_was_learned_is_what_a_fill_stores(self):
        self.worker.add(self.job(1, (0, 1, 2), 0.0, learn=True))
        _n, (outcome,) = self.advance_all(20)
        self.assertTrue(outcome.ok)
        self.assertGreater(outcome.report["n_stored"], CONTEXT - 20)
        report = self.told((2, 0, 1))
        self.assertEqual((report["n_filled"], report["n_new"]), (0, 0))
        learned = self.kv()
        self.worker._opened(b"").clear()
        self.assertGreater(self.told((0, 1, 2))["n_filled"], CONTEXT - 20)
        self.told((2, 0, 1))
        torch.testing.assert_close(learned, self.kv(), rtol=1e-4, atol=1e-5)

    def test_who_waits_comes_before_what_is_learned(self):
        self.worker.add(self.job(1, (0, 1, 2), 0.0, learn=True))
        while not self.layers_of_first():
            self.worker.advance(10, 5.0)
        self.worker.add(self.job(2, (2, 0, 1), 0.0))
        self.worker.add(self.job(3, (1, 2, 0), 0.0, learn=True))
        self.worker.add(self.job(4, (1, 0, 2), 0.0))
        ended = self.ended()
        self.assertEqual(sorted(ended[:2]), [(2, True), (4, True)])
        self.assertEqual(ended[2:], [(1, True), (3, True)])
        self.assertEqual(self.worker._complaints, set())

    def test_a_blend_within_a_step_does_not_wait_for_what_is_learned(self):
        self.worker.add(self.job(1, (0, 1, 2), 0.0, learn=True))
        while not self.layers_of_first():
            self.worker.advance(10, 5.0)
        outcome = self.worker.run(self.job(2, (2, 0, 1), 0.0))
        self.assertEqual((outcome.number, outcome.ok), (2, True))
        self.assertTrue(self.worker.busy)
        self.assertEqual(self.ended(), [(1, True)])

    def test_what_is_learned_beside_others_is_little_a_step(self):
        self.worker.add(self.job(1, (0, 1, 2), 0.0, learn=True))
        with mock.patch("tessera.vllm.turns._LEARN_TOKENS", CONTEXT // 4):
            steps = 0
            while not self.worker.advance(100 * CONTEXT, 0.0):
                begun = self.turns._queue[0]
                steps += begun.rests(5.0)
        self.assertGreaterEqual(steps, LAYERS)  # a layer of all documents is more than a step has

    def test_learning_beside_others_has_its_share_of_the_time_and_alone_all_of_it(self):
        now = [100.0]
        self.turns.learn_time = LearnTime(0.025, lambda: now[0])
        self.turns.learn_time.spend(1.0)
        self.worker.add(self.job(1, (0, 1, 2), 0.0, learn=True))
        for _ in range(10):
            self.assertEqual(self.worker.advance(100 * CONTEXT, 0.0), [])
        self.assertFalse(self.turns._queue[0].started)
        now[0] += 20
        self.assertEqual(self.worker.advance(100 * CONTEXT, 0.0), [])
        self.assertTrue(self.turns._queue[0].started)
        self.turns.learn_time.spend(1.0)
        self.assertEqual(self.ended(), [(1, True)])  # nobody else is there

    def test_a_step_beside_others_waits_a_moment_and_for_the_same_thing_once(self):
        asked, late = [], Future()

        def waits(futures, timeout=None, return_when=None):
            asked.append(timeout)
            return {one for one in futures if one.done()}, set()

        with mock.patch("tessera.vllm.turns.wait", waits):
            self.turns._steps = lambda job: iter([late, 1, 2])
            self.worker.add(self.job(1, (0, 1, 2), 0.3))
            for _ in range(3):
                self.assertEqual(self.worker.advance(10, 0.0), [])
            self.assertEqual(asked, [turns.GRACE_S, 0, 0])
            late.set_result(True)
            self.worker.advance(10, 0.0)
        self.assertEqual(asked[3:], [])
        self.turns._queue.clear()

    def test_closing_ends_what_is_open(self):
        self.worker.add(self.job(1, (0, 1, 2), 0.3))
        self.worker.add(self.job(2, (0, 1, 2), 0.3))
        self.worker.advance(10, 5.0)
        self.worker.close()
        self.assertFalse(self.worker.busy)
        self.assertEqual(self.worker.advance(10, 0.0), [])

    def test_a_blend_within_a_step_leaves_the_others_their_outcomes(self):
        self.worker.add(self.job(1, (0, 1, 2), 0.3))
        self.worker.advance(10, 0.0)
        self.assertEqual(self.worker.run(self.job(2, (2, 0, 1), 0.0)).number, 2)
        self.assertTrue(self.worker.busy)
        self.assertEqual(self.ended(), [(1, True)])

    def test_a_space_is_kept_until_its_last_blend_has_ended(self):
        blend = self.worker._opened(b"")
        closed = []
        with (
            mock.patch.object(blend, "clear", lambda: closed.append("clear")),
            mock.patch.object(blend, "close", lambda: closed.append("close")),
        ):
            self.worker.add(self.job(1, (0, 1, 2), 0.3))
            self.worker.advance(10, 5.0)
            self.worker._drop(blend)
            self.assertEqual(closed, [])
            self.assertEqual(self.ended(), [(1, True)])
            self.assertEqual(closed, ["clear", "close"])


class TestLanes(TestPieces):
    """The same with several under way."""

    LANES = 3

    def test_blends_at_once_give_what_they_give_one_by_one(self):
        self.assertTrue(self.worker.run(self.job(9, (0, 1, 2), 0.0)).ok)
        orders = (2, 0, 1), (1, 2, 0), (1, 0, 2)
        jobs = [job_of(i, *what) for i, what in enumerate(zip(orders, (0.3, 0.0, 0.3), APART))]
        alone = {}
        for job in jobs:
            self.assertTrue(self.worker.run(job).ok)
            alone[job.number] = self.kv()
            self.lanes[0].place._caches[0].fill_(7.0)
        found, _reports = kept_kv(self.worker, jobs, 40)
        for number, kv in alone.items():
            torch.testing.assert_close(found[number], kv, rtol=1e-4, atol=1e-5)

    def test_passes_begin_together(self):
        self.assertTrue(self.worker.run(self.job(9, (0, 1, 2), 0.0)).ok)
        taken, take = [], BlendRun.take

        def watched(run):
            taken.append((id(run), run._step.kind))
            return take(run)

        with mock.patch.object(BlendRun, "take", watched):
            for number in range(self.LANES):
                self.worker.add(self.job(number, (2, 0, 1), 0.3))
            self.assertEqual(len(self.ended()), self.LANES)
        rounds = [taken[i : i + self.LANES] for i in range(0, len(taken), self.LANES)]
        for one in rounds:
            self.assertEqual(len({run for run, _kind in one}), self.LANES)
            self.assertEqual(len({kind for _run, kind in one}), 1)

    def test_time_is_shared_by_those_who_go_on_together(self):
        self.assertTrue(self.worker.run(self.job(9, (0, 1, 2), 0.0)).ok)
        begin = time.perf_counter()
        alone = self.worker.run(self.job(8, (2, 0, 1), 0.3))
        self.assertGreater(alone.busy_s, 0)
        self.assertLessEqual(alone.busy_s, time.perf_counter() - begin)
        begin = time.perf_counter()
        for number in range(self.LANES):
            self.worker.add(self.job(number, (2, 0, 1), 0.3))
        ended = []
        while self.worker.busy:
            ended += self.worker.advance(1000, 5.0)
        self.assertEqual(len(ended), self.LANES)
        self.assertTrue(all(one.busy_s > 0 for one in ended))
        self.assertLessEqual(sum(one.busy_s for one in ended), time.perf_counter() - begin)

    def test_who_waits_for_a_load_holds_up_nobody(self):
        self.assertTrue(self.worker.run(self.job(9, (0, 1, 2), 0.0)).ok)
        gate, waits = threading.Event(), BlendRun.next
        slow = []

        def some_wait(run):
            slow.append(id(run)) if not slow else None
            if id(run) in slow:
                gate.wait(20)
            return waits(run)

        with mock.patch.object(BlendRun, "next", some_wait):
            for number in range(3):
                self.worker.add(self.job(number, (2, 0, 1), 0.3))
            found = []
            while len(found) < 2:
                found += [one.number for one in self.worker.advance(1000, 0.0)]
            self.assertTrue(self.worker.busy)
            gate.set()
            self.assertEqual(len(self.ended()), 1)


if __name__ == "__main__":
    unittest.main()
