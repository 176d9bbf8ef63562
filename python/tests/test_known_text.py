"""Text that one blend has stored is found anywhere in later prompts, by its own tenant alone."""

import ctypes
import os
import random
import tempfile
import unittest
from array import array

from redis_server import SERVER, Redis
from sandbox import needs_shared_memory
from test_blend import VOCAB, Tiny, prompt

from tessera import Cache
from tessera import _c as c
from tessera._lib import check, library
from tessera.blend import Ask, Blend
from tessera.blend_job import space_salt
from tessera.known_text import KnownText
from tessera.owner import EngineCache


@needs_shared_memory
class TestKnownText(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "s.sock")
        self.cache = EngineCache(dict(host_size="16M", server_socket=path), "unit", True)
        self.tiny = Tiny()
        self.known = KnownText(self.cache.handle, bytes(self.tiny.info), "engine", 1)

    def tearDown(self):
        self.known.close()
        self.known.close()
        self.tiny.close()
        self.cache.close()
        self.folder.cleanup()

    def store(self, salt, profile=None, primer=(), rank=0, world=1):
        """The documents 0, 1 and 2, as a worker's blend stores them."""
        name = space_salt("engine", salt, rank, world)
        blend = Blend(self.cache.handle, self.tiny.info, profile, 0, name, primer)
        tokens, segments = prompt((0, 1, 2))
        ask = Ask(tokens.tobytes(), segments, ratio=0.0)  # behind no system prompt
        blend.run(ask, self.tiny.layout, self.tiny)
        blend.close()
        return tokens, segments

    def test_it_is_found_wherever_it_stands(self):
        tokens, segments = self.store(b"")
        first, n = segments[1]
        text = tokens[first : first + n]
        before, behind = array("I", range(50)), array("I", range(100, 110))
        for place in (0, 7, 50):
            found, end = self.known.find(before[:place] + text + behind, b"")
            self.assertGreaterEqual(found, 63)
            self.assertEqual(end, place + n)
        self.assertEqual(self.known.find(before + behind, b""), (0, 0))

    def test_text_after_the_primer_is_found_by_that_primer(self):
        profile = os.path.join(self.folder.name, "primer.yaml")
        with open(profile, "w") as file:
            file.write("context: primer\n")
        tokens, _segments = self.store(b"", profile, range(40))
        model = bytes(self.tiny.info)
        for primer, least in (((), 0), (range(41), 0), (range(40), 100)):
            known = KnownText(self.cache.handle, model, "engine", 1, primer)
            found, _end = known.find(tokens[1:], b"")
            known.close()
            self.assertGreaterEqual(found, least)
            self.assertEqual(found > 0, least > 0)

    def restart(self, name, redis, world=1):
        """A machine of its own, with an empty memory."""
        self.known.close()
        self.cache.close()
        path = os.path.join(self.folder.name, name)
        options = dict(host_size="16M", server_socket=path, redis_address=redis.address)
        self.cache = EngineCache(options, name, True)
        self.known = KnownText(self.cache.handle, bytes(self.tiny.info), "engine", world)

    @unittest.skipUnless(SERVER, "redis-server is not installed")
    def test_documents_of_all_ranks_are_discovered(self):
        redis = Redis()
        self.addCleanup(redis.close)
        self.restart("a.sock", redis, 2)
        for rank in range(2):
            tokens, segments = self.store(b"one", rank=rank, world=2)
            asked = (tokens, segments, False, b"one")
            known = sum(n for _first, n in segments) if rank else 0
            self.assertEqual(self.known.find_segments(*asked), known)  # what all ranks have
        check(library().tsr_cache_flush(self.cache.handle))
        self.restart("b.sock", redis, 2)
        self.assertEqual(self.known.discover(*asked), 2 * len(segments))
        self.assertEqual(self.known.find_segments(*asked), known)
        self.assertEqual(self.known.discover(*asked), 0)

    @unittest.skipUnless(SERVER, "redis-server is not installed")
    def test_documents_that_another_machine_has_stored_are_discovered(self):
        redis = Redis()
        self.addCleanup(redis.close)
        self.restart("a.sock", redis)
        tokens, segments = self.store(b"one")
        check(library().tsr_cache_flush(self.cache.handle))
        self.restart("b.sock", redis)
        asked = (tokens, segments, False, b"one")
        self.assertEqual(self.known.find_segments(*asked), 0)
        self.assertEqual(self.known.discover(tokens, segments, False, b"two"), 0)
        self.assertEqual(self.known.discover(*asked), len(segments))
        self.assertEqual(self.known.find_segments(*asked), sum(n for _first, n in segments))
        self.assertEqual(self.known.discover(*asked), 0)

    @unittest.skipUnless(SERVER, "redis-server is not installed")
    def test_what_an_engine_forgets_other_machines_keep(self):
        """Also over a server: workers are its clients."""
        redis = Redis()
        self.addCleanup(redis.close)
        for served in (False, True):
            for forgets in (False, True):
                salt = b"%d %d" % (served, forgets)
                self.restart(f"{served}{forgets}a.sock", redis)
                tokens, segments = self.store(salt)
                check(library().tsr_cache_flush(self.cache.handle))
                asked = (tokens, segments, False, salt)
                cache = self.cache
                if served:
                    options = dict(owner="daemon", server_socket=self.cache.socket)
                    cache = EngineCache(options, "client", False)
                    self.assertTrue(cache.connected(20000))
                blend = Blend(cache.handle, self.tiny.info, salt=space_salt("engine", salt))
                if forgets:
                    self.assertEqual(blend.forget(Ask(tokens.tobytes(), segments)), len(segments))
                else:
                    blend.clear()
                blend.close()
                if served:
                    cache.close()
                self.assertEqual(self.known.find_segments(*asked), 0)
                self.restart(f"{served}{forgets}b.sock", redis)
                self.assertEqual(self.known.discover(*asked), len(segments))

    def test_what_was_cleared_is_not_found(self):
        tokens, _segments = self.store(b"one")
        self.store(b"two")
        blend = Blend(self.cache.handle, self.tiny.info, salt=space_salt("engine", b"one"))
        blend.clear()
        blend.close()
        self.assertEqual(self.known.find(tokens, b"one"), (0, 0))
        self.assertGreater(self.known.find(tokens, b"two")[0], 100)

    def test_tenants_share_nothing(self):
        tokens, _segments = self.store(b"one")
        self.assertEqual(self.known.find(tokens, b""), (0, 0))
        self.assertEqual(self.known.find(tokens, b"two"), (0, 0))
        self.assertGreater(self.known.find(tokens, b"one")[0], 100)
        for i in range(200):  # more tenants than are kept
            self.known.find(tokens, b"%d" % i)
        self.assertGreater(self.known.find(tokens, b"one")[0], 100)

    def test_text_of_plain_requests(self):
        """Its exact prefix needs no blend; what is elsewhere does, and only its salt finds it."""
        desc = c.SpaceDesc(size=ctypes.sizeof(c.SpaceDesc), model=b"m", block_tokens=64)
        desc.dtype, desc.n_layers, desc.n_heads, desc.k_dim = c.DTYPE_F32, 1, 1, 4
        model = bytes(self.tiny.info)
        known = KnownText(self.cache.handle, model, "engine", 1, (), [desc])
        chance = random.Random(5)
        text = array("I", [chance.randrange(VOCAB) for _ in range(256)])
        with Cache(owner="daemon", server_socket=self.cache.socket) as client:
            space = client.space(
                model="m", dtype="f32", n_layers=1, n_heads=1, k_dim=4, block_tokens=64
            )
            rows = memoryview(bytes(256 * 2 * 4 * 4)).cast("f", (1, 2, 256, 1, 4))
            self.assertEqual(space.store(text, rows, salt="mine"), 256)
        other = array("I", range(40)) + text[64:192] + array("I", range(20))
        self.assertEqual(known.find(text, b"", "mine"), (0, 0))
        self.assertEqual(known.find(other, b"", "mine"), (128, 168))
        for salt in ("", "hers", "min"):
            self.assertEqual(known.find(other, b"", salt), (0, 0))
        known.close()

    def test_salts_of_spaces(self):
        self.assertIsNone(space_salt(None, b""))
        salts = [
            space_salt("a", b""),
            space_salt(None, b"a"),
            space_salt("a", b"a"),
            space_salt(None, b"", 0, 2),
            space_salt(None, b"", 1, 2),
        ]
        self.assertEqual(len(set(salts)), len(salts))


if __name__ == "__main__":
    unittest.main()
