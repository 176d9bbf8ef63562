"""Prefill in one engine, decode in another: a kv_producer and a kv_consumer with one tesserad give
the answers of one engine, whether the KV arrives or not."""

import os
import subprocess
import threading
import time
import unittest
from pathlib import Path

from engines import BLOCK, Engine, Remote, scratch, story

from tessera._lib import TesseraError
from tessera.vllm.handover import KEY, expected, told

TOLERANCE = 1e-4
TOKENS = 8
WAIT_MS = 3000
PROMPTS = [story(i, 12 + i) for i in range(6)]
BINARIES = Path(os.environ["TESSERA_LIBRARY"]).resolve().parents[1] / "bin"
STEP = 256  # tokens of one step
SMALL = dict(num_gpu_blocks_override=129, max_num_batched_tokens=STEP, max_model_len=1024)


class Half:
    """A scheduler half that knows the keys of one prompt."""

    chunk_tokens = 16

    def __init__(self, n_chunks):
        self.n_chunks = n_chunks

    def keys(self, number, first, count):
        if self.n_chunks < 0:
            raise TesseraError(-1, "no server")
        return [[bytes([number, i] * 8)] for i in range(first, self.n_chunks)][:count]


class TestTerms(unittest.TestCase):
    def test_what_is_told_is_what_is_expected(self):
        self.assertIsNone(told(Half(0), 1, 15))
        said = told(Half(3), 1, 50)
        self.assertEqual(said[KEY]["tokens"], 48)
        self.assertEqual(expected(Half(3), 1, said, 100).n_tokens, 48)
        self.assertEqual(expected(Half(9), 1, said, 100).n_tokens, 48)

    def test_nobody_waits_for_what_will_not_come(self):
        said = told(Half(3), 1, 50)
        self.assertIsNone(expected(Half(3), 2, said, 100))  # another model, prompt or salt
        self.assertIsNone(expected(Half(2), 1, said, 100))  # a shorter prompt
        self.assertIsNone(expected(Half(3), 1, None, 100))
        self.assertIsNone(expected(Half(-1), 1, said, 100))  # the server is unreachable
        self.assertIsNone(told(Half(-1), 1, 50))
        for given in (7, {}, {"tokens": "48"}, {"tokens": True}, {"tokens": -48}, {"tokens": 40}):
            self.assertIsNone(expected(Half(3), 1, {KEY: given}, 100), given)
        huge = {**said[KEY], "tokens": 48 + (16 << 32)}  # which is 48 in 32 bits
        self.assertIsNone(expected(Half(1 << 40), 1, {KEY: huge}, 100))

    def test_a_wait_ends(self):
        arrival = expected(Half(3), 1, told(Half(3), 1, 50), 60)
        self.assertFalse(arrival.too_early())
        self.assertTrue(arrival.waits(32))
        self.assertTrue(arrival.too_early())  # not in every step
        self.assertFalse(arrival.waits(48))
        time.sleep(0.08)
        self.assertFalse(arrival.too_early())
        self.assertFalse(arrival.waits(32))


class TestEngines(unittest.TestCase):
    def assert_same(self, got, want):
        self.assertEqual(got.tokens, want.tokens)
        worst = max(abs(a - b) for a, b in zip(got.logprobs, want.logprobs))
        self.assertLess(worst, TOLERANCE)

    def test_two_engines_are_one(self):
        with Engine(None, **SMALL) as engine:
            self.plain = engine.ask(PROMPTS, TOKENS)
            self.lengths = [len(engine.tokens_of(text)) for text in PROMPTS]
            self.whole = [n // BLOCK * BLOCK for n in self.lengths]
        with scratch() as folder:
            socket = os.path.join(folder, "tesserad.sock")
            command = [str(BINARIES / "tesserad"), f"--server-socket={socket}", "--host-size=256M"]
            options = dict(
                owner="daemon",
                server_socket=socket,
                server_deadline=5000,  # a busy machine is no miss here
                chunk_size=BLOCK,
                save_wait_ms=WAIT_MS,
            )
            daemon = subprocess.Popen(command)
            try:
                with (
                    Remote(options, "kv_producer", **SMALL) as self.producer,
                    Remote(options, "kv_consumer", **SMALL) as self.consumer,
                ):
                    self.arrives()
                    self.does_not_arrive()
                    self.keeps_to_its_role()
                    daemon.kill()
                    daemon.wait()
                    self.outlives_it()
            finally:
                daemon.kill()
                daemon.wait()

    def prefill(self, i):
        """What the producer tells of a prompt. It has stored it when it has settled, which a server
        does by itself."""
        (answer,) = self.producer.ask([PROMPTS[i]], 1)
        self.assertEqual(answer.tokens, self.plain[i].tokens[:1])
        self.assertEqual(answer.cached, 0)
        self.assertEqual(answer.told[KEY]["tokens"], self.whole[i])
        return answer.told

    def decode(self, i, said, cached):
        (answer,) = self.consumer.ask([PROMPTS[i]], TOKENS, handed=[said])
        self.assert_same(answer, self.plain[i])
        self.assertEqual(answer.cached, min(cached, self.lengths[i] - 1))  # one is computed

    def arrives(self):
        self.said = None
        for i in range(3):  # stored before the consumer hears of it
            said = self.prefill(i)
            self.producer.settle()
            self.decode(i, said, self.whole[i])
            self.said = said if i == 1 else self.said
        said = self.prefill(3)  # and while it waits
        late = threading.Timer(0.3, self.producer.settle)
        late.start()
        start = time.monotonic()
        self.decode(3, said, self.whole[3])
        print(f"    waited and decoded in {time.monotonic() - start:.2f} s")
        late.join()

    def does_not_arrive(self):
        said = self.prefill(4)
        early = (self.lengths[4] - 1) // STEP * STEP  # what a step computed the next one saves
        self.assertLess(0, early)
        self.assertLess(early, self.whole[4])
        start = time.monotonic()
        self.decode(4, said, early)
        self.assertGreaterEqual(time.monotonic() - start, WAIT_MS / 1000)
        self.producer.settle()
        self.decode(4, None, self.whole[4])

    def keeps_to_its_role(self):
        self.decode(5, None, 0)
        self.decode(5, None, 0)  # a consumer saves nothing
        self.assertEqual(self.consumer.counters()["tokens_saved"], 0)
        self.prefill(0)  # a producer loads nothing, and saves nothing twice
        saved = self.producer.counters()["tokens_saved"]
        self.producer.settle()
        self.assertEqual(self.producer.counters()["tokens_saved"], saved)

    def outlives_it(self):
        (answer,) = self.producer.ask([PROMPTS[1]], TOKENS)
        self.assert_same(answer, self.plain[1])
        self.assertIsNone(answer.told)
        start = time.monotonic()
        self.decode(1, self.said, 0)
        self.decode(1, self.said, 0)
        print(f"    two prompts without the daemon: {time.monotonic() - start:.2f} s")


if __name__ == "__main__":
    unittest.main()
