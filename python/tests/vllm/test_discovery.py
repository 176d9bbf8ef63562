"""What another machine has stored in Redis is found by a plain request, and a Redis that is slow or
away costs nobody more than a moment. vLLM's real scheduler, a fake model (rig.py), a real Redis."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from array import array

from rig import BLOCK, Rig

from tessera._lib import check, library
from tessera.vllm.prompts import Text

PROMPT = [3 + 7 * i % 4000 for i in range(8 * BLOCK + 5)]
# redis-tools of Debian has the server under another name; what it does depends on argv[0].
SERVER = shutil.which("redis-server") or shutil.which("redis-check-rdb")
WAIT_MS = 20000  # that nobody needs: a busy machine is no failure


class Redis:
    def __init__(self):
        with contextlib.closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = tempfile.TemporaryDirectory()
        settings = ["--bind", "127.0.0.1", "--save", "", "--dir", self.folder.name]
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), *settings],
            executable=SERVER,
            stdout=subprocess.DEVNULL,
        )
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            assert self.process.poll() is None
            time.sleep(0.01)

    def signal(self, number):
        os.kill(self.process.pid, number)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


@unittest.skipUnless(SERVER, "redis-server is not installed")
class TestDiscovery(unittest.TestCase):
    def setUp(self):
        self.redis = Redis()
        self.addCleanup(self.redis.close)

    def rig(self, wait_ms=WAIT_MS, **more):
        options = {"redis_address": f"127.0.0.1:{self.redis.port}", "discover_wait_ms": wait_ms}
        rig = Rig({**options, **more}, False)
        self.addCleanup(rig.close)
        return rig

    def ask(self, rig, name, tokens=PROMPT):
        """Tokens that were found. What is loaded is compared with what the model would write."""
        before = rig.scheduler.connector._scheduler.stats()["tokens_hit"]
        rig.add(name, tokens + list(range(5000, 5010)), len(tokens), 4)
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
        connector = rig.scheduler.connector
        skipped = connector._counters()["discoveries_skipped"]
        self.assertIsNone(connector._discovery.ask(Text(array("I", PROMPT), ())))
        self.assertEqual(connector._counters()["discoveries_skipped"], skipped + 1)
        self.redis.signal(signal.SIGCONT)

    def test_too_many_are_not_asked_for(self):
        rig = self.rig(50)
        discovery = rig.scheduler.connector._discovery
        self.assertIsNone(discovery.ask(Text(array("I", PROMPT[: BLOCK - 1]), ())))
        stuck = discovery._queue.maxsize
        discovery._queue.maxsize = 1
        discovery._find = lambda text: time.sleep(0.02)
        asked = [discovery.ask(Text(array("I", PROMPT), ())) for _ in range(50)]
        self.assertIn(None, asked)
        discovery._queue.maxsize = stuck


if __name__ == "__main__":
    unittest.main(verbosity=2)
