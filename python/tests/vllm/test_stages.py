"""Pipeline stages, and KV that does not depend on the number of ranks (head_shards), under vLLM's
scheduler with the fake model of rig.py."""

import unittest

import engines
from rig import BLOCK, Rig
from vllm.v1.request import RequestStatus

from tessera._connector import space_of
from tessera.vllm.shape import undoes_steps


def found(test, rig, tokens):
    """Tokens of a prompt that are loaded; all but its last token are the prompt."""
    request = rig.add(f"r{len(rig.requests)}", tokens, len(tokens) - 1, 1)
    hits = rig.scheduler.connector._scheduler.stats()["tokens_hit"]
    rig.drain()
    rig.check_answers()
    test.assertEqual(request.status, RequestStatus.FINISHED_LENGTH_CAPPED)
    return rig.scheduler.connector._scheduler.stats()["tokens_hit"] - hits


class TestStages(unittest.TestCase):
    """A pipeline stage keeps its own layers, and a hit is one in all stages."""

    def setUp(self):
        self.rig = Rig({}, False, ranks=2, stages=2)
        self.addCleanup(self.rig.close)
        self.tokens = list(range(10, 10 + 5 * BLOCK))

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
        self.assertEqual(found(self, self.rig, self.tokens), 0)
        self.assertEqual(found(self, self.rig, self.tokens), 4 * BLOCK)
        for rank in range(4):
            with self.subTest(rank=rank):
                self.assertEqual(self.rig.evict(rank), 4)
                self.assertEqual(found(self, self.rig, self.tokens), 0)
                self.assertEqual(found(self, self.rig, self.tokens), 4 * BLOCK)

    def test_loads_are_between_steps(self):
        """The next part of a prompt may be scheduled before a step has ended."""
        self.assertIn("load_async", self.rig.scheduler.connector._shape.flags)
        self.assertFalse(undoes_steps(self.rig.config))


class TestShards(unittest.TestCase):
    """Heads in parts. Whole engines are in test_workers.py."""

    def setUp(self):
        self.tokens = list(range(10, 10 + 5 * BLOCK))

    def rig(self, **more):
        options = dict(head_shards=more.pop("head_shards"))
        rig = Rig(options, False, **more)
        self.addCleanup(rig.close)
        return rig

    def test_mla_is_stored_once_and_serves_any_number_of_ranks(self):
        with engines.scratch() as folder:
            options = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
            for ranks, wanted in ((2, 0), (1, 4 * BLOCK), (4, 4 * BLOCK)):
                rig = Rig(dict(options, head_shards=1), False, ranks=ranks, mla=True)
                try:
                    self.assertEqual(found(self, rig, self.tokens), wanted)
                    self.assertEqual(found(self, rig, self.tokens), 4 * BLOCK)
                    saved = [one.connector._worker.stats()["tokens_saved"] for one in rig.ranks]
                    self.assertEqual(saved, [4 * BLOCK - wanted] + [0] * (ranks - 1))
                finally:
                    rig.close()

    def test_pages_of_unknown_form_are_stored_by_rank(self):
        with self.assertLogs("vllm.tessera", "WARNING") as log:
            rig = self.rig(head_shards=3)
        self.assertIn("stored by rank", log.output[0])
        self.assertEqual(rig.scheduler.connector._shape.shards, 0)
        self.assertEqual(found(self, rig, self.tokens), 0)
        self.assertEqual(found(self, rig, self.tokens), 4 * BLOCK)

    def test_parts_that_do_not_fit_are_refused_by_name(self):
        """The model has three KV heads."""
        for n, ranks, why in (
            (2, 1, "head_shards 2 for 3 KV heads"),
            (3, 2, "head_shards 3 for 2 tensor-parallel ranks"),
            ("many", 1, "head_shards 'many' is not a number of parts"),
        ):
            with self.subTest(n), self.assertLogs("vllm.tessera", "WARNING") as log:
                self.rig(head_shards=n, ranks=ranks)
            self.assertIn(why, "\n".join(log.output))


if __name__ == "__main__":
    unittest.main()
