"""Why nothing is found: each cause is told once, and a cache that works says nothing."""

import unittest

from tessera.why import PROMPTS, Why

CHUNK = 16


class TestWhy(unittest.TestCase):
    def setUp(self):
        self.said, self.warned = [], []
        self.why = Why(CHUNK, self.said.append, self.warned.append)

    def miss(self, beginning, n_engine=0, n=3 * CHUNK):
        self.why.missed([beginning] * CHUNK + list(range(n - CHUNK)), n_engine)

    def test_each_cause_is_told_once(self):
        for _ in range(3):
            self.why.unnamed()
            self.why.stores_only()
            self.why.unread()
            self.why.missed(list(range(CHUNK)), 0)
            self.miss(1, n_engine=2 * CHUNK)
        self.assertEqual(len(self.said), 5)
        for line, part in zip(
            self.said, ("embeddings", "kv_producer", "prompt_logprobs", "16 tokens", "own prefix")
        ):
            self.assertIn(part, line)
            self.assertTrue(line.startswith("why no hit: "))
        self.assertEqual(self.warned, [])

    def test_a_prompt_of_a_chunk_and_a_token_is_long_enough(self):
        self.why.missed(list(range(CHUNK + 1)), 0)
        self.assertEqual(self.said, [])

    def test_beginnings_that_all_differ(self):
        for i in range(PROMPTS - 1):
            self.miss(i)
        self.assertEqual(self.warned, [])
        self.miss(-1)
        self.assertEqual(len(self.warned), 1)
        self.assertIn("all begin with other 16 tokens", self.warned[0])
        for i in range(3 * PROMPTS):
            self.miss(1000 + i)
        self.assertEqual(len(self.warned), 1)

    def test_beginnings_that_were_there_before(self):
        for i in range(PROMPTS):
            self.miss(i % 10)
        self.assertEqual(len(self.warned), 1)
        self.assertIn(f"{PROMPTS - 10} of the first {PROMPTS}", self.warned[0])

    def test_one_hit_ends_the_suspicion(self):
        for i in range(PROMPTS - 1):
            self.miss(i)
        self.why.found()
        for i in range(3 * PROMPTS):
            self.miss(1000 + i)
        self.assertEqual((self.said, self.warned), ([], []))

    def test_what_the_engine_had_in_part_does_not_count(self):
        for i in range(3 * PROMPTS):
            self.miss(i, n_engine=CHUNK)
        self.assertEqual((self.said, self.warned), ([], []))


if __name__ == "__main__":
    unittest.main()
