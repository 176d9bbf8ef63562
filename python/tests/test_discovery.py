"""How long a scheduler stands still for what other machines may have, and when they are asked."""

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from array import array

from redis_server import SERVER, Redis
from sandbox import needs_shared_memory

from tessera import Cache, discovery
from tessera import _c as c
from tessera.cache import _extras
from tessera.discovery import Discovery, Patience, close_discovery, has_shared_tier
from tessera.owner import EngineCache
from tessera.prompts import PromptClient, Text

LONG_MS = 20000  # that nobody needs: a busy machine is no failure


class Slow:
    """A question that is answered after some time of a clock that it moves."""

    def __init__(self, clock, takes_s):
        self.clock, self.takes_s = clock, takes_s

    def wait(self, limit_s):
        self.clock.now += min(self.takes_s, limit_s)
        return self.takes_s <= limit_s


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class TestPatience(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.patience = Patience(50, self.clock)

    def waited(self, takes_s):
        before = self.clock.now
        answered = self.patience.wait(Slow(self.clock, takes_s))
        return self.clock.now - before, answered

    def test_requests_that_come_now_and_then_wait_for_their_answers(self):
        for _ in range(10):
            waited, answered = self.waited(0.04)
            self.assertTrue(answered)
            self.assertAlmostEqual(waited, 0.04)
            self.clock.now += 2

    def test_a_slow_server_and_many_requests_cost_a_share_of_the_time(self):
        begin, stood, n_answered = self.clock.now, 0.0, 0
        for _ in range(1000):
            waited, answered = self.waited(0.04)
            stood += waited
            n_answered += answered
            self.clock.now += 0.01  # a step
        self.assertLess(stood, 0.05 + 0.02 * (self.clock.now - begin) + 1e-6)
        self.assertGreater(n_answered, 4)  # and not only the first ones

    def test_answers_at_once_cost_nothing(self):
        for _ in range(1000):
            self.assertEqual(self.waited(0.0), (0.0, True))


class Slot:
    """A question that is answered when it is told to."""

    def __init__(self, n=1):
        self.n, self.asked, self.answer = n, threading.Event(), threading.Event()

    def __call__(self):
        self.asked.set()
        self.answer.wait()
        return self.n


class TestDiscovery(unittest.TestCase):
    def setUp(self):
        self.slots = []

    def open(self, wait_ms=LONG_MS, look=None, clock=None):
        one = Discovery(wait_ms, look, clock or Clock())
        self.addCleanup(self.let_go, one)
        return one

    def let_go(self, one):
        for slot in self.slots:
            slot.answer.set()
        one.close()
        one._thread.join()

    def slot(self, n=1):
        self.slots.append(Slot(n))
        return self.slots[-1]

    def blocked(self, one):
        """A question that is under way."""
        slot = self.slot(0)
        asked = one.ask(slot)
        slot.asked.wait()
        return slot, asked

    def test_a_request_that_stays_in_the_queue_is_asked_for_later(self):
        one = self.open(wait_ms=1)
        slot, first = self.blocked(one)
        while first.pending:
            pass
        asked = [one.ask(lambda: 2) for _ in range(300)]
        while any(row.pending for row in asked):
            pass  # nobody waits any longer
        self.assertFalse(any(row.answered for row in asked))
        slot.answer.set()
        self.assertTrue(asked[-1]._answered.wait(60))
        self.assertTrue(all(row.answered for row in asked))
        self.assertEqual(one.counters, {"discovered": 600, "discoveries_skipped": 0})

    def test_no_request_waits_for_a_server_that_does_not_answer(self):
        one = self.open(wait_ms=1)
        _slot, first = self.blocked(one)
        while first.pending:
            pass
        one._wait_s = 0.0  # the question takes longer than that by now
        asked = one.ask(lambda: 1)
        self.assertFalse(asked.pending)
        self.assertFalse(asked.answered)

    def test_who_has_left_the_queue_is_not_asked_for(self):
        one = self.open()
        slot, _first = self.blocked(one)
        gone, left = one.ask(lambda: 1), one.ask(lambda: 10)
        gone.forget()
        slot.answer.set()
        self.assertTrue(left.wait())
        self.assertEqual(one.counters, {"discovered": 10, "discoveries_skipped": 1})

    def test_the_queue_has_a_limit_for_those_that_wait(self):
        one = self.open()
        slot, _first = self.blocked(one)
        limit, discovery._WAITING_MAX = discovery._WAITING_MAX, 4
        self.addCleanup(setattr, discovery, "_WAITING_MAX", limit)
        asked = [one.ask(lambda: 1) for _ in range(4)]
        self.assertIsNone(one.ask(lambda: 1))
        asked[0].forget()
        asked.append(one.ask(lambda: 1))
        self.assertIsNone(one.ask(lambda: 1))
        slot.answer.set()
        self.assertTrue(asked[-1].wait())
        self.assertEqual(one.counters, {"discovered": 4, "discoveries_skipped": 2})

    def test_a_question_that_fails_ends_the_waiting(self):
        one = self.open()
        asked = one.ask(lambda: 1 // 0)
        self.assertTrue(asked.wait())
        self.assertEqual(one.counters["discoveries_skipped"], 1)

    def test_a_server_that_comes_late_is_asked(self):
        there, looked, clock = [False], threading.Semaphore(0), Clock()

        def look():
            looked.release()
            return there[0]

        one = self.open(look=look, clock=clock)
        looked.acquire()
        for _ in range(100):
            self.assertIsNone(one.ask(lambda: 1))
        self.assertFalse(looked.acquire(blocking=False))  # at most once a second
        clock.now += 1
        self.assertIsNone(one.ask(lambda: 1))
        looked.acquire()
        there[0] = True
        self.settle(one)
        clock.now += 1
        one.ask(lambda: 1)
        looked.acquire()
        self.settle(one)
        self.assertTrue(one.ask(lambda: 1).wait())
        there[0] = False  # and started again without the tier
        clock.now += 1
        one.ask(lambda: 1)
        looked.acquire()
        self.settle(one)
        self.assertIsNone(one.ask(lambda: 1))

    def settle(self, one):
        """The thread has nothing to do."""
        while one._began or one._wants_look:
            pass

    def test_a_look_that_takes_long_stops_nobody(self):
        slot, clock = self.slot(False), Clock()
        looks = [lambda: False, slot]
        one = self.open(look=lambda: looks.pop(0)(), clock=clock)
        clock.now += 1
        self.assertIsNone(one.ask(lambda: 1))
        slot.asked.wait()
        self.assertIsNone(one.ask(lambda: 1))

    def test_closing_does_not_wait_for_a_question_under_way(self):
        one = self.open()
        slot, _first = self.blocked(one)
        waiting, closed, done = one.ask(lambda: 1), [], threading.Event()
        close_discovery(one, [lambda: closed.append("client")])
        self.assertEqual(closed, [])  # the question uses it
        self.assertTrue(waiting.answered)
        self.assertIsNone(one.ask(lambda: 1))
        # A reset closes what was asked with, the end of the engine the cache: in this order.
        close_discovery(one, [lambda: closed.append("cache"), done.set])
        self.assertEqual(closed, [])
        slot.answer.set()
        self.assertTrue(done.wait(60))
        self.assertEqual(closed, ["client", "cache"])
        self.assertEqual(one.counters["discovered"], 0)

    def test_closing_an_idle_one_closes_at_once(self):
        one = self.open()
        closed = []
        self.assertTrue(one.ask(lambda: 1).wait())
        self.settle(one)
        close_discovery(one, [lambda: 1 // 0, lambda: closed.append(1)])
        self.assertEqual(closed, [1])
        close_discovery(one, [lambda: closed.append(2)])
        close_discovery(None, [lambda: closed.append(3)])
        self.assertEqual(closed, [1, 2, 3])

    def test_python_does_not_exit_before_what_is_to_be_closed_is(self):
        """A cache writes what is queued when it is closed."""
        program = (
            "import threading\n"
            "from tessera.discovery import Discovery, close_discovery\n"
            "asked, answer = threading.Event(), threading.Event()\n"
            "one = Discovery(50)\n"
            "one.ask(lambda: asked.set() or answer.wait() or 0)\n"
            "asked.wait()\n"
            "close_discovery(one, [lambda: print('closed')])\n"
            "print('main')\n"
            "threading.Timer(0.2, answer.set).start()\n"
        )
        out = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        self.assertEqual(out.stdout.split(), ["main", "closed"])


@unittest.skipUnless(SERVER, "redis-server is not installed")
@needs_shared_memory
class TestLateServer(unittest.TestCase):
    """The engine is there first, then a tesserad with a Redis that another machine has filled."""

    TOKENS = array("I", range(64))

    def setUp(self):
        self.redis = Redis()
        self.addCleanup(self.redis.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "s.sock")
        server = self.server()
        with Cache(owner="daemon", server_socket=self.path, chunk_size=16) as other:
            self.assertTrue(server.connected(LONG_MS))
            space = other.space("m", "f32", 1, 1, 4)
            self.assertEqual(space.store(self.TOKENS, array("f", [1.0] * (2 * 64 * 4))), 64)
            other.flush()
        server.close()

    def server(self):
        options = dict(host_size="16M", chunk_size=16, redis_address=self.redis.address)
        cache = EngineCache({**options, "server_socket": self.path}, "unit", True)
        self.addCleanup(cache.close)
        return cache

    def test_it_is_asked_when_it_is_there_and_after_a_restart(self):
        options = dict(owner="daemon", server_socket=self.path, chunk_size=16)
        cache = EngineCache(options, "unit", True)
        self.assertFalse(cache.serves)
        desc = c.SpaceDesc(
            size=ctypes.sizeof(c.SpaceDesc),
            model=b"m",
            dtype=c.DTYPE_F32,
            n_layers=1,
            n_heads=1,
            k_dim=4,
            world=1,
        )
        client = PromptClient(cache.handle, [desc])
        clock = Clock()
        one = Discovery(LONG_MS, lambda: has_shared_tier(cache.handle), clock)
        self.addCleanup(close_discovery, one, [client.close, cache.close])
        text = Text(self.TOKENS, _extras(None, None, ()))
        self.assertIsNone(one.ask(lambda: client.discover(text)))
        for _round in range(2):
            server = self.server()
            self.assertTrue(cache.connected(LONG_MS))
            for _ in range(LONG_MS):
                clock.now += 1
                asked = one.ask(lambda: client.discover(text))  # None: the thread looks
                if asked is not None and asked.wait() and one.counters["discovered"]:
                    break  # each client has a connection of its own
                threading.Event().wait(0.001)
            self.assertEqual(one.counters["discovered"], 4)
            one.counters["discovered"] = 0
            server.close()


if __name__ == "__main__":
    unittest.main()
