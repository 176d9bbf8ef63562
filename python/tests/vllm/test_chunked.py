"""Settings of other caches inside the real vLLM on a CPU: a chunk is found behind another system
prompt and in another order when nothing but the keys of the chunk cache are set, and LMCache's
variables turn blending on."""

import os
import unittest
from unittest import mock

from engines import BLOCK, Engine, story
from test_engine import TIGHT

TOKENS = 4
SETTINGS = dict(TIGHT, enable_prefix_caching=True)
SMALL = {"chunk_size": BLOCK, "host_size": "512M", "blend_min_tokens": 1}
ONE, TWO = story(11, 6), story(12, 6)


class TestChunkCache(unittest.TestCase):
    def told(self, engine, prompt):
        (answer,) = engine.ask([prompt], TOKENS)
        return answer.told["tessera"]

    def test_a_chunk_is_a_hit_behind_another_system_prompt_and_in_another_order(self):
        chunks = {"enable_chunk_cache": True, "chunk_separator": "##", **SMALL}
        with Engine(chunks, **SETTINGS) as engine:
            first = self.told(engine, f"You are helpful.##{ONE}##{TWO}##What is it?")
            self.assertEqual((first["blended"], first["first"]), (False, True), first)
            self.assertEqual(first["n_segments"], 3)
            engine.settle()
            again = self.told(engine, f"You are helpful.##{ONE}##{TWO}##What is it about?")
            self.assertTrue(again["blended"], again)
            self.assertEqual(again["n_filled"], 0)
            other = self.told(engine, f"Different words, please.##{TWO}##{ONE}##Tell me more")
            self.assertTrue(other["blended"], other)
            self.assertLess(other["n_filled"], 20)  # the system prompt
            self.assertGreater(other["n_reused"], 100)
            wrong = self.told(engine, f"##{TWO}##What is it?")
            self.assertFalse(wrong["blended"])
            self.assertRegex(wrong["reason"], "nothing before the separator at token")

    def test_the_environment_of_lmcache_blends(self):
        variables = {
            "LMCACHE_ENABLE_BLENDING": "True",
            "LMCACHE_BLEND_SPECIAL_STR": " # # ",
            "LMCACHE_BLEND_CHECK_LAYERS": "1",
            "LMCACHE_BLEND_RECOMPUTE_RATIOS": "0.15",
            "LMCACHE_BLEND_MIN_TOKENS": "1",
        }
        small = {key: SMALL[key] for key in ("chunk_size", "host_size")}
        with mock.patch.dict(os.environ, variables), Engine(small, **SETTINGS) as engine:
            self.told(engine, f"Hello. # # {ONE} # # {TWO} # # What?")
            engine.settle()
            other = self.told(engine, f"Hello. # # {TWO} # # {ONE} # # Why?")
            self.assertTrue(other["blended"], other)
            self.assertEqual(other["n_filled"], 0)
            self.assertEqual(other["selector"], "hkvd")
            share = other["n_recomputed"] / (other["n_recomputed"] + other["n_reused"])
            self.assertLess(share, 0.25)


if __name__ == "__main__":
    unittest.main(verbosity=2)
