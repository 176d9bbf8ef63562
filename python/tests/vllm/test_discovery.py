"""What another machine has stored in Redis is found by a plain request, and a Redis that is slow or
away costs nobody more than a moment. vLLM's real scheduler, a fake model (rig.py), a real Redis."""

import signal
import unittest

from redis_server import SERVER, Redis, blocked
from rig import BLOCK, Rig

from tessera._lib import check, library

PROMPT = [3 + 7 * i % 4000 for i in range(8 * BLOCK + 5)]
WAIT_MS = 20000  # that nobody needs: a busy machine is no failure


@unittest.skipUnless(SERVER, "redis-server is not installed")
class TestDiscovery(unittest.TestCase):
    def setUp(self):
        self.redis = Redis()
        self.addCleanup(self.redis.close)

    def rig(self, wait_ms=WAIT_MS, **more):
        options = {"redis_address": self.redis.address, "discover_wait_ms": wait_ms}
        rig = Rig({**options, **more}, False)
        self.addCleanup(rig.close)
        return rig

    def ask(self, rig, name, tokens=PROMPT):
        """Tokens that were found. What is loaded is compared with what the model would write."""
        before = rig.scheduler.connector._scheduler.stats()["tokens_hit"]
        rig.add(name, tokens + list(range(5000, 5010)), len(tokens), 4)
        asked = rig.scheduler.connector._live[name].asked_others
        if asked is not None:  # steps without work would run out
            asked.wait()
        rig.drain()
        rig.check_answers()
        return rig.scheduler.connector._scheduler.stats()["tokens_hit"] - before

    def stored(self):
        """An engine of another machine has computed the prompt, and is gone."""
        rig = self.rig()
        self.assertEqual(self.ask(rig, "first"), 0)
        check(library().tsr_cache_flush(rig.scheduler.connector._cache.handle))
        rig.close()

    def test_what_another_machine_has_stored_is_found(self):
        self.stored()
        rig = self.rig()
        self.assertEqual(self.ask(rig, "a"), 8 * BLOCK)
        counters = rig.scheduler.connector._counters()
        self.assertEqual((counters["discovered"], counters["discoveries_skipped"]), (8, 0))
        self.assertEqual(self.ask(rig, "b", PROMPT[: 4 * BLOCK] + [9] * 40), 4 * BLOCK)

    def test_less_than_a_chunk_is_not_asked_for(self):
        rig = self.rig()
        self.assertEqual(self.ask(rig, "a", PROMPT[: BLOCK - 1]), 0)
        self.assertIsNone(rig.scheduler.connector._others)

    def test_off(self):
        self.stored()
        rig = self.rig(0)
        self.assertIsNone(rig.scheduler.connector._discovery)
        self.assertEqual(self.ask(rig, "a"), 0)

    def test_no_shared_tier_is_never_asked(self):
        rig = Rig({}, False)
        self.addCleanup(rig.close)
        self.assertIsNone(rig.scheduler.connector._discovery)

    def test_a_server_that_does_not_answer_costs_a_moment(self):
        self.stored()
        rig = self.rig(50, redis_timeout_ms=3000)
        self.redis.signal(signal.SIGSTOP)
        self.assertEqual(self.ask(rig, "a"), 0)  # and its answer is right
        self.redis.signal(signal.SIGCONT)
        connector = rig.scheduler.connector
        answer = blocked(connector._discovery)
        asked = connector._discovery.ask(lambda: 1)
        self.assertFalse(asked.pending or asked.answered)  # nobody waits for it
        answer.set()

    def test_a_request_that_stays_in_the_queue_is_asked_for(self):
        """Its moment is over, but others are computed before it."""
        self.stored()
        rig = self.rig(1)
        connector = rig.scheduler.connector
        answer = blocked(connector._discovery)
        rig.add("a", PROMPT + list(range(5000, 5010)), len(PROMPT), 4)
        asked = connector._live["a"].asked_others
        self.assertFalse(asked.pending or asked.answered)
        request = connector._live["a"].request
        self.assertEqual(connector.get_num_new_matched_tokens(request, 0), (0, False))
        answer.set()
        self.assertTrue(asked._answered.wait(60))
        rig.drain()
        rig.check_answers()
        self.assertEqual(connector._scheduler.stats()["tokens_hit"], 8 * BLOCK)

    def test_a_request_that_is_computed_is_not_asked_for(self):
        self.stored()
        rig = self.rig(1)
        connector = rig.scheduler.connector
        answer = blocked(connector._discovery)
        rig.add("a", PROMPT + list(range(5000, 5010)), len(PROMPT), 4)
        asked = connector._live["a"].asked_others
        rig.drain()
        rig.check_answers()
        self.assertFalse(asked.wanted or asked.answered)
        answer.set()

    def test_closing_waits_for_no_question(self):
        rig = self.rig()
        connector = rig.scheduler.connector
        cache, answer = connector._cache, blocked(connector._discovery, 0)
        discovery = connector._discovery
        rig.close()
        self.assertIsNotNone(cache._opened)  # the question has it
        ender = discovery._ender
        answer.set()
        ender.join(60)
        self.assertIsNone(cache._opened)


if __name__ == "__main__":
    unittest.main(verbosity=2)
