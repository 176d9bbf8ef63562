"""Hints of requests: what is read of them, and that pins, times to live and prefetches act."""

import time
import unittest
from array import array
from types import SimpleNamespace
from unittest import mock

import tessera
from tessera._connector import GroupShape, ModelShape, space_of
from tessera._lib import TesseraError
from tessera.cache import _extras
from tessera.vllm import hints as h

CHUNK = 16
PAGE = 64  # bytes of a token
SHAPE = ModelShape("m", b"w", "test", 1, (GroupShape(("layer",), CHUNK, PAGE * CHUNK),))


def envelope(*actions):
    rows = [
        SimpleNamespace(action_id="a", action_type=kind, action_version=version, payload=payload)
        for kind, version, payload in actions
    ]
    return SimpleNamespace(protocol_version="1", message_id="m", actions=rows)


def client(*hints):
    return {"tessera": {"hints": list(hints)}}


class TestReading(unittest.TestCase):
    def test_actions_of_ours_are_read_and_others_left_alone(self):
        found, n_bad = h.read_hints(
            envelope(
                ("tessera.pin", "1", {"seconds": 5, "tokens": 100}),
                ("tessera.ttl", "1", {"seconds": 0.5}),
                ("tessera.prefetch", "1", {"tokens": [1, 2, 3]}),
                ("other.pin", "9", {"anything": None}),
            ),
            None,
            False,
        )
        self.assertEqual(n_bad, 0)
        self.assertEqual(
            found,
            [h.Hint("pin", 5.0, 100), h.Hint("ttl", 0.5), h.Hint("prefetch", tokens=(1, 2, 3))],
        )

    def test_clients_need_to_be_allowed(self):
        given = client({"action": "pin"}, {"action": "prefetch"})
        self.assertEqual(h.read_hints(None, given, False), ([], 2))
        wanted = [h.Hint("pin", h.PIN_SECONDS), h.Hint("prefetch")]
        self.assertEqual(h.read_hints(None, given, True), (wanted, 0))

    def test_what_is_no_hint_is_refused(self):
        nan, inf = float("nan"), float("inf")
        for payload in (
            None,
            [],
            {"seconds": -1},
            {"seconds": 0},
            {"seconds": nan},
            {"seconds": inf},
            {"seconds": 10**400},
            {"seconds": True},
            {"seconds": "5"},
            {"seconds": h.SECONDS_MAX + 1},
            {"seconds": 1, "tokens": -1},
            {"seconds": 1, "tokens": "all"},
            {"seconds": 1, "what": 1},
        ):
            with self.subTest(payload):
                got = h.read_hints(envelope(("tessera.pin", "1", payload)), None, False)
                self.assertEqual(got, ([], 1))
        for tokens in ("abc", [1, -1], [1 << 33], [None], [1.5], 7, range(h.TOKENS_MAX + 1)):
            with self.subTest(tokens):
                got = h.read_hints(
                    envelope(("tessera.prefetch", "1", {"tokens": tokens})), None, False
                )
                self.assertEqual(got, ([], 1))
        for action in (
            ("tessera.pin", "2", {}),
            ("tessera.fly", "1", {}),
            ("tessera.ttl", "1", {}),
        ):
            with self.subTest(action):
                self.assertEqual(h.read_hints(envelope(action), None, False), ([], 1))
        for given in ("x", {}, 5, [None], [{"action": 3}], [{"seconds": 1}]):
            with self.subTest(given):
                _found, n_bad = h.read_hints(None, {"tessera": {"hints": given}}, True)
                self.assertEqual(n_bad, 1)

    def test_there_are_not_too_many(self):
        found, n_bad = h.read_hints(None, client(*[{"action": "pin"}] * 10000), True)
        self.assertEqual(len(found), h.HINTS_MAX)
        self.assertEqual(n_bad, h.HINTS_MAX)


class TestActing(unittest.TestCase):
    def setUp(self):
        self.cache = tessera.Cache(host_size="1M", host_page_size="4K", policy="lru")
        self.addCleanup(self.cache.close)
        desc, self._keep = space_of(SHAPE, 0, 0)
        desc.block_tokens = CHUNK
        self.space = tessera.cache.Space(self.cache, desc)
        self.addCleanup(self.space.close)
        self.hints = h.Hints(self.cache._open(), SHAPE, CHUNK)
        self.addCleanup(self.hints.close)

    def text(self, first, n=64):
        return h.Text(array("I", range(first, first + n)), _extras(None, None, ()))

    def store(self, text):
        self.space.store(list(text.tokens), bytes(PAGE * len(text.tokens)))

    def found(self, text):
        return self.hints.known(text)

    def press(self):
        """As much other text as pushes out whatever may go."""
        for i in range(400):
            self.store(self.text(100000 + i * 1000))

    def until(self, condition):
        end = time.monotonic() + 20
        while not condition() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertTrue(condition())

    def pins(self):
        return sum(row.pins > 0 for row in self.cache.lru_list())

    def test_a_pin_keeps_a_prompt_until_its_time_is_over(self):
        kept, other = self.text(1000), self.text(2000)
        self.store(kept)
        self.store(other)
        self.hints.arrived(kept, [h.Hint("pin", 3600.0)])
        self.until(lambda: self.pins() == 4)
        self.press()
        self.assertEqual((self.found(kept), self.found(other)), (64, 0))

    def test_a_pin_ends_by_itself(self):
        text = self.text(1000)
        self.store(text)
        self.hints.arrived(text, [h.Hint("pin", 0.3)])
        self.until(lambda: self.pins() == 4)
        self.until(lambda: self.pins() == 0)

    def test_a_pin_waits_for_what_is_being_saved_and_takes_the_first_tokens_only(self):
        text = self.text(1000)
        self.hints.ended(text, [h.Hint("pin", 3600.0, 40)], 0)
        time.sleep(0.3)
        self.store(text)
        self.until(lambda: self.pins() == 2)

    def test_pins_take_half_of_host_memory_at_most(self):
        for i in range(30):
            text = self.text(i * 10000, 512)  # 32 KiB each
            self.hints.arrived(text, [h.Hint("pin", 3600.0)])
        self.assertEqual(self.hints.counters["hints"], 16)
        self.assertEqual(self.hints.counters["hints_refused"], 14)

    def test_a_time_to_live_drops_what_the_request_added(self):
        shared = self.text(1000, 32)
        longer = h.Text(shared.tokens + array("I", range(5000, 5032)), shared.extra)
        self.store(shared)
        before = self.hints.known(longer)
        self.store(longer)
        self.hints.ended(longer, [h.Hint("ttl", 0.2)], before)
        self.assertEqual(self.found(longer), 64)
        self.until(lambda: self.found(longer) == 32)
        self.assertEqual(self.hints.counters["hints_dropped"], 2)

    def test_a_time_to_live_ends_with_the_engine_at_the_latest(self):
        text = self.text(1000)
        self.store(text)
        self.hints.ended(text, [h.Hint("ttl", 3600.0)], 0)
        self.hints.close()
        self.assertEqual(self.space.lookup(list(text.tokens)).prefix_tokens, 0)

    def test_hints_that_wait_have_a_limit(self):
        text = self.text(1000)
        for _ in range(h.LIVE_MAX + 10):
            self.hints.ended(text, [h.Hint("ttl", 3600.0)], 0)
        self.assertEqual(self.hints.counters["hints_refused"], 10)
        self.hints._drops.clear()

    def test_the_tokens_of_hints_that_wait_have_a_limit(self):
        text = h.Text(array("I", bytes(4 << 18)), _extras(None, None, ()))
        n = h.WAITING_TOKENS_MAX >> 18
        for _ in range(n + 3):
            self.hints.ended(text, [h.Hint("ttl", 3600.0)], 0)
        self.assertEqual(self.hints.counters["hints"], n)
        self.assertEqual(self.hints.counters["hints_refused"], 3)
        self.hints._drops.clear()

    def test_a_pin_that_fails_gives_its_share_back(self):
        text, lookup = self.text(1000, 512), self.hints._lookup
        failures = []

        def fail(*_args):
            failures.append(1)
            raise TesseraError(-1, "no server")

        self.hints._lookup = fail
        with mock.patch.object(h, "_RETRY_S", 0.001):
            for i in range(30):  # more than half of the memory if none were given back
                self.hints.arrived(text, [h.Hint("pin", 3600.0)])
                self.until(lambda n=i + 1: self.hints.counters["hints_refused"] == n)
        self.assertEqual(self.hints._pinned, {})
        self.assertEqual(self.hints._n_waiting, 0)
        self.assertGreater(len(failures), 30)  # a server that is away for a moment is asked again
        self.hints._lookup = lookup
        self.store(text)
        self.hints.arrived(text, [h.Hint("pin", 3600.0)])
        self.until(lambda: self.pins() == 32)


class TestPrefetch(unittest.TestCase):
    def test_a_prompt_comes_up_from_disk(self):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            disk = dict(disk_path=folder, disk_size="64M", disk_segment_size="16M")
            tokens = list(range(64))
            for round_ in range(2):
                with tessera.Cache(host_size="1M", host_page_size="4K", **disk) as cache:
                    desc, _keep = space_of(SHAPE, 0, 0)
                    desc.block_tokens = CHUNK
                    space = tessera.cache.Space(cache, desc)
                    if round_ == 0:
                        space.store(tokens, bytes(PAGE * 64))
                        cache.flush()
                    else:
                        keys = space.keys(tokens)
                        self.assertEqual(set(cache.contains(keys)), {1})
                        hints = h.Hints(cache._open(), SHAPE, CHUNK)
                        other = h.Text(array("I", [7]), _extras(None, None, ()))
                        hints.arrived(other, [h.Hint("prefetch", tokens=tuple(tokens))])
                        end = time.monotonic() + 20
                        while set(cache.contains(keys)) != {0} and time.monotonic() < end:
                            time.sleep(0.02)
                        self.assertEqual(set(cache.contains(keys)), {0})
                        hints.close()
                    space.close()


if __name__ == "__main__":
    unittest.main()
