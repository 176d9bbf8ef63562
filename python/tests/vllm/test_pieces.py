"""Blends that share steps with other requests: cut after so many rows, and never held by a load or
a store. The model is that of test_places.py."""

import threading
import time
import unittest
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
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
from tessera.vllm.blend import BlendWorker
from tessera.vllm.learning import LearnTime
from tessera.vllm.model import model_info
from tessera.vllm.places import Rows


class TestPieces(unittest.TestCase):
    def setUp(self):
        cache = Cache()
        self.addCleanup(cache.close)
        parts = parts_of()
        worker = self.worker = BlendWorker.__new__(BlendWorker)
        worker._parts, worker._block, worker._world, worker._ranks = parts, BLOCK, 1, None
        worker._settings, worker._timeout_ms = BlendSettings(), 0
        worker._complaints, worker._queue, worker._blends = set(), deque(), {}
        worker._thread, worker._learn_time = ThreadPoolExecutor(1), LearnTime(60)
        worker._place = pages_of(parts, caches_of(False))
        worker._executor = BlendExecutor(parts, worker._place)
        info = model_info(parts, "plain", bytes(32), bytes(16))
        blend = Blend(cache.handle, info, None, 0, b"pieces")
        self.addCleanup(blend.close)
        self.addCleanup(worker._thread.shutdown)
        worker._opened = lambda salt: blend

    def job(self, number, order, ratio, first=3, learn=False):
        tokens, segments = prompt(order)
        blocks = tuple((7 * i + first) % BLOCKS for i in range(-(-CONTEXT // BLOCK)))
        selector = "query" if ratio else "none"
        packed = array("I", tokens).tobytes()
        return BlendJob(
            number,
            packed,
            tuple(segments),
            True,
            CONTEXT,
            blocks,
            selector,
            ratio,
            b"",
            learn=learn,
        )

    def advance_all(self, budget, wait_s=5.0):
        """How many calls it takes, and what comes of it."""
        for n in range(1, 10000):
            outcomes = self.worker.advance(budget, wait_s)
            if outcomes:
                return n, outcomes
        raise AssertionError("it never ends")

    def kv(self):
        rows = Rows(torch.arange(CONTEXT), CPU)
        return torch.stack([torch.stack(self.worker._place.take(i, rows)) for i in range(LAYERS)])

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
        layer, calls = self.worker._executor.layer, []

        def broken(*args):
            calls.append(args)
            if len(calls) == 2:
                raise RuntimeError("made to fail")
            return layer(*args)

        self.worker._executor.layer = broken
        _n, (first, *rest) = self.advance_all(10)
        self.assertFalse(first.ok)
        second = rest[0] if rest else self.advance_all(10)[1][0]
        self.assertEqual((second.number, second.ok), (2, True))

    def ended(self):
        """Everything that ends from now on."""
        found = []
        while self.worker.busy:
            found += [(one.number, one.ok) for one in self.worker.advance(1000, 5.0)]
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
        (begun, *_rest) = self.worker._queue
        return begun.rests(5.0) and len(self.worker._executor._hidden) > 0

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
        self.assertEqual(self.ended(), [(2, True), (4, True), (1, True), (3, True)])
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
        with mock.patch("tessera.vllm.blend._LEARN_TOKENS", CONTEXT // 4):
            steps = 0
            while not self.worker.advance(100 * CONTEXT, 0.0):
                begun = self.worker._queue[0]
                steps += begun.rests(5.0)
        self.assertGreaterEqual(steps, LAYERS)  # a layer of all documents is more than a step has

    def test_learning_beside_others_has_its_share_of_the_time_and_alone_all_of_it(self):
        now = [100.0]
        self.worker._learn_time = LearnTime(0.025, lambda: now[0])
        self.worker._learn_time.spend(1.0)
        self.worker.add(self.job(1, (0, 1, 2), 0.0, learn=True))
        for _ in range(10):
            self.assertEqual(self.worker.advance(100 * CONTEXT, 0.0), [])
        self.assertFalse(self.worker._queue[0].started)
        now[0] += 20
        self.assertEqual(self.worker.advance(100 * CONTEXT, 0.0), [])
        self.assertTrue(self.worker._queue[0].started)
        self.worker._learn_time.spend(1.0)
        self.assertEqual(self.ended(), [(1, True)])  # nobody else is there

    def test_closing_ends_what_is_open(self):
        self.worker.add(self.job(1, (0, 1, 2), 0.3))
        self.worker.add(self.job(2, (0, 1, 2), 0.3))
        self.worker.advance(10, 5.0)
        self.worker.close()
        self.assertFalse(self.worker.busy)
        self.assertEqual(self.worker.advance(10, 0.0), [])


if __name__ == "__main__":
    unittest.main()
