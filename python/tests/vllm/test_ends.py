"""Requests that end: whatever fails then, no block is given away while a save may read it, and a
producer tells of nothing that was not saved."""

import unittest
from unittest import mock

from rig import BLOCK, Rig

from tessera.vllm import scheduler
from tessera.vllm.handover import KEY

PROMPT = 2 * BLOCK + 5


class TestEnds(unittest.TestCase):
    def setUp(self):
        self.rig = Rig({}, False)
        self.addCleanup(self.rig.close)
        self.connector = self.rig.scheduler.connector
        self.ended = []
        finished = self.connector.request_finished_all_groups

        def noted(*args):
            self.ended.append(finished(*args))
            return self.ended[-1]

        self.connector.request_finished_all_groups = noted
        self.count = 0

    def run_one(self, n_output=BLOCK):
        """A request from its first to its last step, and until its blocks are free."""
        self.count += 1
        tokens = [1000 * self.count + i for i in range(PROMPT + n_output)]
        self.rig.add(f"r{self.count}", tokens, PROMPT, n_output)
        self.rig.drain()
        self.rig.check_answers()
        return self.ended[-1]

    def test_blocks_are_held_when_the_end_fails(self):
        broken = mock.Mock(side_effect=RuntimeError("broken"))
        with mock.patch.object(self.connector._scheduler, "finished", broken):
            self.assertEqual(self.run_one(1), (True, None))
        self.assertIn("broken", self.connector._trouble)
        self.assertEqual(self.run_one(), (False, None))  # off: vLLM goes on alone

    def test_what_is_told_besides_may_fail(self):
        self.connector._hands_over = True
        with mock.patch.object(scheduler, "told", side_effect=RuntimeError("broken")):
            self.assertEqual(self.run_one(1), (True, None))
        self.assertIsNone(self.connector._trouble)
        self.assertEqual(self.run_one(1)[1][KEY]["tokens"], 2 * BLOCK)

    def test_a_producer_tells_what_is_saved(self):
        self.connector._hands_over = True
        for n_output in (1, BLOCK):  # saved at its end, and long before
            _held, told = self.run_one(n_output)
            self.assertEqual(told[KEY]["tokens"], 2 * BLOCK)
        half = self.connector._scheduler
        finished = half.finished
        with mock.patch.object(half, "finished", lambda *args: (finished(*args)[0], BLOCK)):
            self.assertIsNone(self.run_one()[1])


if __name__ == "__main__":
    unittest.main()
