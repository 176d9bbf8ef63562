"""Pipeline stages under vLLM's scheduler, with the fake model of rig.py."""

import unittest

from rig import BLOCK, Rig
from vllm.v1.request import RequestStatus

from tessera._connector import space_of
from tessera.vllm.shape import undoes_steps


class TestStages(unittest.TestCase):
    """A pipeline stage keeps its own layers, and a hit is one in all stages."""

    def setUp(self):
        self.rig = Rig({}, False, ranks=2, stages=2)
        self.addCleanup(self.rig.close)
        self.tokens = list(range(10, 10 + 5 * BLOCK))

    def found(self):
        """Tokens of the prompt that are loaded."""
        request = self.rig.add(f"r{len(self.rig.requests)}", self.tokens, len(self.tokens) - 1, 1)
        hits = self.rig.scheduler.connector._scheduler.stats()["tokens_hit"]
        self.rig.drain()
        self.rig.check_answers()
        self.assertEqual(request.status, RequestStatus.FINISHED_LENGTH_CAPPED)
        return self.rig.scheduler.connector._scheduler.stats()["tokens_hit"] - hits

    def test_no_two_workers_share_a_space(self):
        shapes = [one.connector._shape for one in self.rig.ranks]
        shapes.append(self.rig.scheduler.connector._shape)
        self.assertEqual(len(shapes), 5)
        for shape in shapes:
            spaces = [space_of(shape, 0, rank)[0] for rank in range(4)]
            self.assertEqual(
                [(one.layer_first, one.n_layers, one.rank, one.world) for one in spaces],
                [(0, 2, 0, 2), (0, 2, 1, 2), (2, 2, 0, 2), (2, 2, 1, 2)],
            )

    def test_what_one_worker_has_lost_is_computed_and_saved_again(self):
        self.assertEqual(self.found(), 0)
        self.assertEqual(self.found(), 4 * BLOCK)
        for rank in range(4):
            with self.subTest(rank=rank):
                self.assertEqual(self.rig.evict(rank), 4)
                self.assertEqual(self.found(), 0)
                self.assertEqual(self.found(), 4 * BLOCK)

    def test_loads_are_between_steps(self):
        """The next part of a prompt may be scheduled before a step has ended."""
        self.assertIn("load_async", self.rig.scheduler.connector._shape.flags)
        self.assertFalse(undoes_steps(self.rig.config))


if __name__ == "__main__":
    unittest.main()
