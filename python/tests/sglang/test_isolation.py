"""Blended requests in SGLang's radix tree: their KV is approximate, and no other request may ever
find it, in the tree or in Tessera. The blends here are marked bytes (radix_kit.py)."""

import unittest

from radix_kit import CHUNK, Engine, expected_kv

from tessera.sglang.blend import Blended

MARKED = 8999  # a prompt with this token is blended
N_CONTEXT = 4 * CHUNK + 5


class MarkedBlends:
    """Writes bytes that are right for nobody else, or fails."""

    def __init__(self, engine):
        self.engine = engine
        self.fails = False
        self.runs = []

    def mark(self, req):
        if MARKED not in req.origin_input_ids:
            return None
        return Blended(((0, N_CONTEXT),), False, N_CONTEXT, None, None, b"")

    def run(self, req, mark, slots, first):
        self.runs.append((first, len(slots)))
        known = expected_kv(list(req.origin_input_ids), rank=9)
        end = first + len(slots)
        for layer, planes in enumerate(self.engine.bytes):
            for half, kv in enumerate(planes):
                kv[slots] = known[layer, half, first:end]
        return not self.fails

    def take_askers(self):
        return []

    def reset(self):
        pass

    close = reset


class TestIsolation(unittest.TestCase):
    tokens = [*range(100, 100 + 5 * CHUNK), MARKED, 7, 8]

    def engine(self, page):
        engine = Engine(page=page)
        self.addCleanup(engine.close)
        engine.tree._blends = self.blends = MarkedBlends(engine)
        return engine

    def blended(self, engine, fails=False):
        """Asks; every byte is compared with that of a blend, or of the whole prompt computed."""
        self.blends.fails = fails
        req = engine.begin(self.tokens)
        found = engine.admit(req)
        engine.kv_rank = 0 if fails else 9
        engine.finish(req, found)
        engine.kv_rank = 0
        return found

    def plain(self, engine):
        engine.tree._blends = None
        found = engine.run(self.tokens)
        engine.tree._blends = self.blends
        return found

    def test_nobody_else_finds_what_was_blended(self):
        for page in (1, 4, 16):
            with self.subTest(page=page):
                engine = self.engine(page)
                n = N_CONTEXT // page * page
                self.assertEqual(self.blended(engine), n)
                self.assertEqual(self.blended(engine), n)  # not even the same prompt
                self.assertEqual(self.blends.runs, [(0, n)] * 2)
                engine.written()
                self.assertEqual(engine.tree._pool.match(*self.lookup()), 0)
                self.assertEqual(self.plain(engine), 0)
                engine.lose()
                self.assertEqual(self.plain(engine), 5 * CHUNK)
                self.assertEqual(self.blended(engine), n)  # nor are they given exact KV
                engine.lose()
                self.assertEqual(engine.slots.available_size(), 512)

    def lookup(self):
        from array import array

        from sglang.srt.mem_cache.radix_cache import RadixKey

        from tessera.sglang import radix

        key = RadixKey(array("q", self.tokens))
        return radix._tokens(key), radix._extra(key), 99

    def test_a_blend_that_fails_is_computed_and_loses_no_slot(self):
        engine = self.engine(4)
        self.assertEqual(self.blended(engine, fails=True), 0)
        engine.lose()
        self.assertEqual(engine.slots.available_size(), 512)
        self.assertEqual(self.plain(engine), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
