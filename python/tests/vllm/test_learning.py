"""Documents stored after the first answer, under vLLM's real schedulers: that answer is vLLM's own,
and the blocks in which documents are computed are nobody else's until they come back. blend_rig.py
has the fake blender, which writes rubbish into them."""

import unittest

from blend_rig import BlendRig, document
from rig import BLOCKS
from vllm.v1.request import RequestStatus

from tessera.discovery import Asked
from tessera.vllm import learning

PROMPT = document(1, 50) + document(2, 45) + [5, 6, 7]
WISHES = {"segments": [[0, 50], [50, 45]]}


class TestLearning(unittest.TestCase):
    def rig(self, *args, known=0, **more):
        rig = BlendRig(*args, **more)
        self.addCleanup(rig.close)
        rig.blending.segment_matcher = lambda *_asked: known
        return rig

    def free(self, rig):
        return rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def test_the_first_answer_is_exact_and_its_documents_are_stored(self):
        for asynchronous in (False, True):
            rig = self.rig(asynchronous)
            rig.ask("a", PROMPT, wishes=WISHES)
            told = rig.run_all()["a"]["tessera"]
            self.assertEqual((told["blended"], told["first"]), (False, True))
            rig.check_answers()
            (job,) = rig.blender.learned
            self.assertEqual((job.n_context, job.given), (95, 95))
            self.assertEqual(job.segments, ((0, 50), (50, 45)))
            self.assertEqual(rig.blender.jobs, [])
            self.assertEqual(rig.counters, {"blend_first": 1, "blend_tokens_learned": 95})
            self.assertEqual(self.free(rig), BLOCKS - 1)

    def test_a_request_waits_while_other_machines_are_asked(self):
        rig = self.rig()
        asked = Asked(lambda: 2, 3600)
        rig.blending._ask_others = lambda *_asked: asked
        rig.ask("a", PROMPT, wishes=WISHES)
        self.assertEqual(rig.blending.matched("a", 0), (None, False))
        self.assertEqual(rig.counters, {})
        rig.blending.segment_matcher = lambda *_asked: 95  # they have it
        asked.end()
        self.assertTrue(rig.run_all()["a"]["tessera"]["blended"])
        self.assertEqual(rig.counters["blend_requests"], 1)

    def test_an_answer_that_comes_late_counts_for_a_request_in_the_queue(self):
        rig = self.rig()
        asked = Asked(lambda: 2, 0)  # its moment is over
        rig.blending._ask_others = lambda *_asked: asked
        rig.ask("a", PROMPT, wishes=WISHES)
        self.assertEqual(rig.blending.matched("a", 0), (0, False))  # all unknown: computed
        self.assertTrue(asked.wanted)
        rig.blending.segment_matcher = lambda *_asked: 95  # they have it
        asked.end()
        self.assertTrue(rig.run_all()["a"]["tessera"]["blended"])
        self.assertEqual(rig.counters.get("blend_first", 0), 0)
        self.assertEqual(rig.counters["blend_requests"], 1)

    def test_half_known_is_blended(self):
        for known, wishes, first in (
            (48, WISHES, False),
            (47, WISHES, True),
            (0, {**WISHES, "ratio": 0.1}, False),  # who says how gets that
            (22, {**WISHES, "system": True}, True),  # a system prompt does not count
            (23, {**WISHES, "system": True}, False),
        ):
            rig = self.rig(known=known)
            rig.ask("a", PROMPT, wishes=wishes)
            told = rig.run_all()["a"]["tessera"]
            self.assertEqual((told["blended"], len(rig.blender.learned)), (not first, int(first)))
        rig = self.rig(blend={"min_tokens": 1, "first": "fill"})
        rig.ask("a", PROMPT, wishes=WISHES)
        self.assertTrue(rig.run_all()["a"]["tessera"]["blended"])

    def test_the_engine_goes_on_until_all_is_stored(self):
        rig = self.rig()
        rig.blender.pieces = 20
        rig.ask("a", PROMPT, wishes=WISHES)
        while "a" in rig.scheduler.requests and not rig.blender.queue:
            rig.step()
        self.assertLess(self.free(rig), BLOCKS - 1)
        self.assertTrue(rig.scheduler.has_requests())
        rig.run_all()
        self.assertEqual(len(rig.blender.learned), 1)
        self.assertEqual(self.free(rig), BLOCKS - 1)

    def test_an_aborted_request_teaches_nothing(self):
        rig = self.rig()
        rig.ask("a", PROMPT, wishes=WISHES)
        rig.step()
        rig.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
        rig.run_all()
        self.assertEqual(rig.blender.learned, [])
        self.assertEqual(self.free(rig), BLOCKS - 1)

    def test_few_requests_keep_their_blocks(self):
        rig = self.rig()
        rig.blender.pieces = 10**6
        rig.blending.learning = learning.Learning(10**6)
        for i in range(3 * learning._REQUESTS_MAX):
            rig.ask(f"r{i}", document(i, 20) + [i, 6, 7], wishes={"segments": [[0, 20]]})
        for _ in range(60):
            rig.step()
        self.assertEqual(len(rig.blender.queue), learning._REQUESTS_MAX)
        rig.blending.reset()  # weights may have changed: what is computed now is other KV
        rig.run_all()
        self.assertEqual(rig.blender.learned, [])
        self.assertEqual(self.free(rig), BLOCKS - 1)

    def test_blocks_that_vllm_lacks_are_given_back(self):
        rig = self.rig()
        rig.blender.pieces = 10**6
        rig.ask("a", PROMPT, wishes=WISHES)
        while not rig.blender.queue:
            rig.step()
        for i in range(40):  # more than the KV memory holds
            rig.ask(f"r{i}", document(3 + i, 64) + [i, 6, 7], n_output=48)
        rig.run_all(2000)
        self.assertGreater(rig.preemptions, 0)
        self.assertEqual(
            (rig.blender.n_dropped + rig.blender.n_stopped, rig.blender.queue), (1, [])
        )
        self.assertEqual(self.free(rig), BLOCKS - 1)
        rig.check_answers()

    def test_large_ones_keep_none(self):
        rig = self.rig()
        rig.blending.learning = learning.Learning(8)
        rig.ask("a", PROMPT, wishes=WISHES)
        rig.run_all()
        self.assertEqual(rig.blender.learned, [])

    def test_a_connector_that_gives_up_keeps_nothing(self):
        for half in ("scheduler", "worker"):
            rig = self.rig()
            rig.blender.pieces = 10**6
            rig.ask("a", PROMPT, wishes=WISHES)
            while not rig.blender.queue:
                rig.step()
            side = rig.scheduler.connector if half == "scheduler" else rig.ranks[0].connector
            side._give_up(RuntimeError("made to fail"))
            rig.ask("b", document(9, 60) + [1, 2, 3])
            rig.run_all()
            rig.check_answers()
            self.assertEqual(self.free(rig), BLOCKS - 1, half)


if __name__ == "__main__":
    unittest.main(verbosity=2)
