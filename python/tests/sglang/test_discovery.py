"""What another machine has stored in Redis is found by SGLang's requests, and a Redis that does not
answer costs a moment. And why nothing is found is told once. Everything of SGLang is real but the
model (radix_kit.py)."""

import signal
import unittest

from radix_kit import CHUNK, Engine
from redis_server import SERVER, Redis, blocked

from tessera._lib import check, library
from tessera.sglang import radix
from tessera.why import PROMPTS

TOKENS = list(range(100, 100 + 5 * CHUNK + 3))
WAIT_MS = 20000  # that nobody needs: a busy machine is no failure


class DiscoveryTest(unittest.TestCase):
    def engine(self, **more):
        engine = Engine(**more)
        self.addCleanup(engine.close)
        self.assertIsInstance(engine.tree, radix.TesseraRadixCache)
        return engine


@unittest.skipUnless(SERVER, "redis-server is not installed")
class TestDiscovery(DiscoveryTest):
    def setUp(self):
        self.redis = Redis()
        self.addCleanup(self.redis.close)
        self.shared = dict(redis_address=self.redis.address, discover_wait_ms=WAIT_MS)
        first = self.engine(**self.shared)  # another machine, which is gone then
        self.assertEqual(first.run(TOKENS), 0)
        first.written()
        check(library().tsr_cache_flush(first.tree._handle()))
        first.close()

    def test_what_another_machine_has_stored_is_found(self):
        engine = self.engine(**self.shared)
        self.assertEqual(engine.run(TOKENS), 5 * CHUNK)
        self.assertEqual(engine.tree._discovery.counters["discovered"], 5)
        engine.lose()
        self.assertEqual(engine.run(TOKENS[: 2 * CHUNK] + [9] * 40), 2 * CHUNK)

    def test_off(self):
        engine = self.engine(**{**self.shared, "discover_wait_ms": 0})
        self.assertIsNone(engine.tree._discovery)
        self.assertEqual(engine.run(TOKENS), 0)

    def test_a_reset_asks_no_more(self):
        engine = self.engine(**self.shared)
        engine.tree.reset()
        self.assertFalse(engine.tree._discovery.is_ready())
        self.assertEqual(engine.run(TOKENS), 0)

    def test_a_server_that_does_not_answer_costs_a_moment(self):
        engine = self.engine(
            redis_address=self.redis.address, discover_wait_ms=50, redis_timeout_ms=3000
        )
        self.redis.signal(signal.SIGSTOP)
        self.assertEqual(engine.run(TOKENS), 0)
        self.redis.signal(signal.SIGCONT)
        discovery = engine.tree._discovery
        answer = blocked(discovery)
        self.assertEqual(engine.run([5] * 40 + TOKENS), 0)
        answer.set()

    def test_an_answer_that_comes_late_is_found_by_a_request_that_waits(self):
        engine = self.engine(**{**self.shared, "discover_wait_ms": 1})
        answer = blocked(engine.tree._discovery)
        req = engine.begin(TOKENS)
        (offer,) = engine.tree._offers.values()
        self.assertEqual(offer.n_tokens, 0)
        answer.set()
        self.assertTrue(offer.asked._answered.wait(60))
        req.init_next_round_input(engine.tree)
        (offer,) = engine.tree._offers.values()
        self.assertEqual(offer.n_tokens, 5 * CHUNK)

    def test_neither_a_reset_nor_the_end_waits_for_a_question(self):
        engine = self.engine(**self.shared)
        tree = engine.tree
        discovery, cache = tree._discovery, tree._cache
        answer = blocked(discovery, 0)
        tree.reset()
        self.assertEqual(engine.run(TOKENS), 0)
        engine.close()
        self.assertTrue(cache._handle)  # the question has it
        ender = discovery._ender
        answer.set()
        ender.join(60)
        self.assertFalse(cache._handle)


class TestWhy(DiscoveryTest):
    def test_prompts_that_share_no_beginning(self):
        engine = self.engine()
        self.assertIsNone(engine.tree._discovery)  # no shared tier
        with self.assertLogs("tessera.sglang.radix", "INFO") as told:
            engine.begin([3] * CHUNK)
            for i in range(PROMPTS):
                engine.tree._forget(engine.begin([i] * (CHUNK + 1)).cache_request_handle)
        self.assertEqual([line.levelname for line in told.records], ["INFO", "WARNING"])
        self.assertIn("has no whole chunk", told.output[0])
        self.assertIn("begin with other", told.output[1])

    def test_a_cache_that_works_says_nothing(self):
        engine = self.engine()
        engine.run(TOKENS)
        engine.lose()
        with self.assertNoLogs("tessera.sglang.radix", "WARNING"):
            self.assertEqual(engine.run(TOKENS), 5 * CHUNK)
            for i in range(PROMPTS):
                engine.tree._forget(engine.begin([i] * (CHUNK + 1)).cache_request_handle)


if __name__ == "__main__":
    unittest.main()
