"""What the documents that Tessera grew out of promise, each with its settings and scenarios: the
chunk cache of vLLM, LMCache in SGLang, UCM's blend, LMCache with asynchronous scheduling, and the
blend server of LMCache. No engine is needed: tokens and KV memory are made up here. The scenarios
of the chunk cache itself, which need a model, are in tests/blend/test_chunked.c."""

import os
import re
import tempfile
import unittest
from array import array
from pathlib import Path
from unittest import mock

import test_connector
import test_kv_cache
from sandbox import needs_shared_memory
from test_connector import BLOCK, NONE

import tessera
from tessera.blend_job import blend_settings
from tessera.settings import own_settings

FIXTURES = Path(__file__).resolve().parents[2] / "tests" / "config" / "fixtures"


def exports(name):
    """The variables of a shell file."""
    rows = re.findall(
        r"^export (\w+)=(\"[^\"]*\"|'[^']*'|\S+)", (FIXTURES / name).read_text(), re.M
    )
    return {key: value.strip("\"'") for key, value in rows}


def settings_of(env):
    with mock.patch.dict(os.environ, env):
        return own_settings({}, {})


class TestChunkCache(unittest.TestCase):
    """Position-independent chunks between separators, in vLLM."""

    def test_its_file_and_its_environment_turn_chunks_on(self):
        text = (FIXTURES / "chunk_cache.yaml").read_text()
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text.replace("enable_chunk_cache: False", "enable_chunk_cache: True"))
            file.flush()
            settings = blend_settings(settings_of({"TESSERA_CONFIG_FILE": file.name}))
        self.assertEqual((settings.separators, settings.any_system), (("##",), True))
        self.assertIsNone(
            blend_settings(settings_of({"LMCACHE_CONFIG_FILE": str(FIXTURES / "chunk_cache.yaml")}))
        )
        settings = blend_settings(settings_of(exports("chunk_cache.env")))
        self.assertEqual(settings.separators, ("##",))

    def test_keys_lists_pins_and_evictions(self):
        with tessera.Cache(host_size="8M", policy="lru") as cache:
            space = cache.space("m", "f32", n_layers=1, n_heads=1, k_dim=4, block_tokens=16)
            chunks = [list(range(50 * i, 50 * i + 16)) for i in range(3)]
            for chunk in chunks:
                space.store(chunk, array("f", bytes(4 * 2 * 16 * 4)), kind="segment")
            listed = cache.lru_list()
            self.assertEqual([one.kind for one in listed], ["segment"] * 3)
            count, where = cache.batched_contains(one.key for one in listed)
            self.assertEqual((count, len(where["host"])), (3, 3))
            self.assertEqual(cache.evict_keys(1 << 40), [one.key for one in listed])
            self.assertEqual(cache.stats()["evicted"], 3)


class TestSglang(unittest.TestCase):
    """LMCache in SGLang: load_kv and store_kv by slots, with an offset and -1 for what the engine
    has of a chunk."""

    HEADS, DIM, LAYERS, SLOTS = 2, 4, 2, 512

    def setUp(self):
        self.cache = tessera.Cache(file=str(FIXTURES / "lmcache_config.yaml"), host_size="16M")
        self.addCleanup(self.cache.close)
        space = self.cache.space("m", "f32", self.LAYERS, self.HEADS, self.DIM)
        row = self.HEADS * self.DIM
        self.memory = [
            [array("f", bytes(4 * self.SLOTS * row)) for _layer in range(self.LAYERS)]
            for _plane in range(2)
        ]
        k_pool, v_pool = (
            [memoryview(one).cast("B").cast("f", (self.SLOTS, self.HEADS, self.DIM)) for one in of]
            for of in self.memory
        )
        self.pool = tessera.KvPool(space, k_pool, v_pool)
        self.addCleanup(self.pool.close)

    def rows(self, slots):
        row = self.HEADS * self.DIM
        return [
            list(plane[slot * row : (slot + 1) * row])
            for layers in self.memory
            for plane in layers
            for slot in slots
        ]

    def test_text_is_stored_and_loaded_behind_what_the_engine_has(self):
        self.assertEqual(self.pool.chunk_size(), 64)  # of the file
        tokens = list(range(1000, 1200))
        for p, layers in enumerate(self.memory):
            for n, plane in enumerate(layers):
                for i in range(len(plane)):
                    plane[i] = p * 7 + n * 3 + i / 8
        slots = range(100, 300)
        want = self.rows(slots)
        self.assertEqual(self.pool.store_kv(tokens, slots), 192)
        for n_cached in (0, 64, 70):
            n_pad = n_cached % self.pool.chunk_size()
            free = range(300, 500 - n_cached)
            for layers in self.memory:
                for plane in layers:
                    plane[300 * 8 :] = array("f", bytes(4 * (len(plane) - 300 * 8)))
            loaded = self.pool.load_kv(tokens, [-1] * n_pad + list(free), offset=n_cached - n_pad)
            self.assertEqual(loaded, n_pad + 192 - n_cached)
            expected = [
                row
                for k in range(2 * self.LAYERS)
                for row in want[k * 200 + n_cached : k * 200 + 192]
            ]
            self.assertEqual(self.rows(free[: 192 - n_cached]), expected)
        self.assertEqual(self.pool.reset(), 3)
        self.assertEqual(self.pool.load_kv(tokens, slots), 0)


class TestUcm(unittest.TestCase):
    """Chunks of a prompt that are known, nearly known, and new."""

    def setUp(self):
        self.cache = tessera.Cache(file=str(FIXTURES / "ucm_blend.yaml"), host_size="16M")
        self.addCleanup(self.cache.close)
        self.space = self.cache.space("m", "f32", n_layers=1, n_heads=1, k_dim=4)
        self.text = [(i * i * 7 + i * 31) % 30011 for i in range(640)]
        kv = array("f", bytes(4 * 2 * 640 * 4))
        self.space.store(self.text, kv, kind="segment")

    def kinds(self, prompt):
        found = self.space.lookup(prompt, any_offset=True)
        return found.tokens, {match.coverage for match in found.matches}

    def test_full_partial_and_none(self):
        new = list(range(40000, 40100))
        self.assertEqual(self.kinds(new + self.text + new), (640, {"full"}))
        edited = self.text[:]
        edited[320:324] = [50001, 50002, 50003, 50004]
        tokens, kinds = self.kinds(new + edited)
        self.assertGreaterEqual(tokens, 600)
        self.assertEqual(kinds, {"partial"})
        self.assertEqual(self.kinds(new * 3), (0, set()))

    def test_its_file_and_its_connector_blend_at_any_offset(self):
        for name in ("ucm_blend.yaml", "ucm_connector.yaml"):
            settings = blend_settings(settings_of({"TESSERA_CONFIG_FILE": str(FIXTURES / name)}))
            self.assertTrue(settings.any_offset and settings.from_traffic)


@needs_shared_memory
class TestAsynchronousScheduling(unittest.TestCase):
    """Tokens that are scheduled and not there yet are never saved."""

    def test_placeholders_are_not_saved_and_their_tokens_are_later(self):
        with mock.patch.dict(os.environ, exports("lmcache_async.env")):
            folder = tempfile.TemporaryDirectory()
            self.addCleanup(folder.cleanup)
            shape = test_connector.shape(
                boundary="placeholders", flags=("load_sync", "save_decode")
            )
            engine = test_connector.Engine(folder.name, shape)
        self.addCleanup(engine.close)
        half, blocks = engine.scheduler, [3, 4, 5]
        prompt = list(range(500, 520))
        answer = list(range(900, 914))
        half.new_request(1, prompt, len(prompt), NONE, 0)
        self.assertEqual(half.matched(1, 0), (0, False))
        half.allocated(1, [blocks], 0)
        engine.step()
        everything = prompt + answer
        engine.compute(everything, blocks, 2 * BLOCK)
        # 33 are scheduled, two of them have no value yet: 31 are real, one chunk.
        engine.step([(1, 33, 2, 0, 31, 11, 0)], answer[:11], [[]])
        engine.settle()
        self.assertEqual(self.known(engine, 2, everything), BLOCK)
        # 34 are scheduled and one has no value: 33 are real, two chunks.
        engine.step([(1, 34, 1, 0, 33, 2, 0)], answer[11:13], [[]])
        engine.settle()
        self.assertEqual(self.known(engine, 3, everything), 2 * BLOCK)

    def known(self, engine, number, tokens):
        half = engine.scheduler
        half.new_request(number, tokens, len(tokens), NONE, 0)
        found, _asynchronous = half.matched(number, 0)
        half.finished(number, (0, 0, 0), len(tokens), (), True, [[]])
        return found


class TestBlendServer(test_kv_cache.TestBlendServer):
    """Documents computed ahead, in another order, and the blended prompt as a whole."""

    def test_its_environment_blends_at_its_separator(self):
        settled = settings_of(exports("lmcache_blend.env"))
        self.assertEqual(blend_settings(settled).separators, (" # # ",))

    def test_documents_in_another_order_and_the_final(self):
        a, b = list(range(1000, 1060)), list(range(2000, 2070))
        separator, question = [1, 2, 1], [70, 71, 72]
        for document in (a, b):
            text = document + separator
            self.memory.compute(text, range(len(text)), 0)
            self.assertEqual(self.kv.store_pre_computed(text, range(len(text))), len(text))
        system = [60, 61] + separator
        prompt = system + b + separator + a + separator + question
        segments = [(5, 73), (78, 63)]
        found = self.kv.lookup_pre_computed(prompt, request=1, segments=segments)
        self.assertEqual(found.tokens, 73 + 63)
        slots = range(len(prompt))
        self.assertEqual(self.kv.retrieve_pre_computed(found, slots), segments)
        expected = test_kv_cache.Memory()
        expected.compute(prompt, slots, 0)
        self.memory.compute(prompt[:5], slots[:5], 0)
        self.memory.compute(question, slots[-3:], len(prompt) - 3)
        self.assertLess(self.memory.differs(expected), 1e-4)
        self.assertEqual(self.kv.store_final(prompt, slots, b"r0"), len(prompt))
        again = self.kv.lookup_pre_computed(prompt, request=2, recipe=b"r0")
        self.assertEqual((again.tokens, again.matches[0].kind), (len(prompt), "blended"))


if __name__ == "__main__":
    unittest.main()
