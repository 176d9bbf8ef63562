"""Text that one blend has stored is found anywhere in later prompts, by its own tenant alone."""

import os
import tempfile
import unittest
from array import array

from sandbox import needs_shared_memory
from test_blend import Tiny, prompt

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

    def store(self, salt, profile=None, primer=()):
        """The documents 0, 1 and 2, as a worker's blend stores them."""
        name = space_salt("engine", salt)
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
