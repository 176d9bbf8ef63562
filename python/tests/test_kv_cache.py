"""The five calls of a blend server from Python, over plain memory and over a server."""

import array
import ctypes
import math
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

from sandbox import needs_shared_memory

import tessera
from tessera._lib import check, library

LAYERS, HEADS, DIM, SLOTS = 2, 2, 4, 256
SHAPE = dict(model="kv", dtype="f32", n_layers=LAYERS, n_heads=HEADS, k_dim=DIM)
ROPE = tessera.Rope(theta=10000.0, dims=DIM)
ROW = HEADS * DIM


def value(token, layer, plane, j):
    return math.sin(token * 0.7 + layer + 3 * plane + j)


def rotated(row, position):
    """One row of K at a position, element i with i + dims / 2."""
    out = list(row)
    half = DIM // 2
    for head in range(HEADS):
        for i in range(half):
            angle = position * 10000.0 ** (-2 * i / DIM)
            x, y = row[head * DIM + i], row[head * DIM + half + i]
            out[head * DIM + i] = x * math.cos(angle) - y * math.sin(angle)
            out[head * DIM + half + i] = x * math.sin(angle) + y * math.cos(angle)
    return out


class Memory:
    """An engine's KV: K and V of each layer, [slot, head, dim]."""

    def __init__(self):
        zeros = bytes(4 * SLOTS * ROW)
        self.planes = [[array.array("f", zeros) for _plane in range(2)] for _layer in range(LAYERS)]

    @property
    def layers(self):
        return [
            tuple(memoryview(p).cast("B").cast("f", (SLOTS, HEADS, DIM)) for p in pair)
            for pair in self.planes
        ]

    def compute(self, tokens, slots, position):
        for layer, pair in enumerate(self.planes):
            for plane, values in enumerate(pair):
                for i, (token, slot) in enumerate(zip(tokens, slots)):
                    row = [value(token, layer, plane, j) for j in range(ROW)]
                    if plane == 0:
                        row = rotated(row, position + i)
                    values[slot * ROW : (slot + 1) * ROW] = array.array("f", row)

    def differs(self, other):
        return max(
            abs(x - y)
            for a, b in zip(self.planes, other.planes)
            for p, q in zip(a, b)
            for x, y in zip(p, q)
        )


class TestBlendServer(unittest.TestCase):
    def open(self):
        return tessera.Cache(host_size="8M")

    def setUp(self):
        self.cache = self.open()
        self.addCleanup(self.cache.close)
        self.space = self.cache.space(rope=ROPE.text, **SHAPE)
        self.memory = Memory()
        self.kv = tessera.KvCache(self.space, self.memory.layers, ROPE)
        self.addCleanup(self.kv.unregister)
        self.document = list(range(100, 164))

    def store(self, slots=range(64)):
        self.memory.compute(self.document, slots, 0)
        return self.kv.store_pre_computed(self.document, slots)

    def test_what_was_computed_ahead_comes_to_its_place_in_any_prompt(self):
        self.assertEqual(self.store(), 64)
        self.assertEqual(self.store(), 0)
        for ahead, offset in ((0, 0), (20, 0), (20, 13)):
            prompt = list(range(9000, 9000 + ahead)) + self.document + [7, 8, 9]
            found = self.kv.lookup_pre_computed(prompt, request=5)
            self.assertEqual((found.tokens, found.matches[0].offset), (64, ahead))
            slots = [200 - i for i in range(len(prompt))]
            for pair in self.memory.planes:
                for plane in pair:
                    plane[:] = array.array("f", bytes(4 * len(plane)))
            got = self.kv.retrieve_pre_computed(found, slots, position_offset=offset)
            self.assertEqual(got, [(ahead, 64)])
            expected = Memory()
            expected.compute(self.document, slots[ahead : ahead + 64], ahead + offset)
            self.assertLess(self.memory.differs(expected), 1e-4)
            self.cache.release(5)

    def test_a_final_is_found_by_its_recipe_only(self):
        prompt = list(range(500, 580))
        self.memory.compute(prompt, range(80), 0)
        self.assertEqual(self.kv.store_final(prompt, range(80), recipe=b"hkvd 0.15"), 80)
        self.assertFalse(self.kv.lookup_pre_computed(prompt, request=1))
        self.assertFalse(self.kv.lookup_pre_computed(prompt, request=2, recipe=b"hkvd 0.3"))
        again = self.kv.lookup_pre_computed(prompt, request=3, recipe=b"hkvd 0.15")
        self.assertEqual((again.tokens, again.matches[0].kind), (80, "blended"))
        with self.assertRaises(ValueError):
            self.kv.store_final(prompt, range(80), recipe=b"")

    def test_a_text_with_separators_is_one_entry(self):
        """It was computed as one text: what follows a separator has seen what is before it."""
        self.space.set_separators([7])
        self.document[32] = 7
        self.assertEqual(self.store(), 64)
        self.assertEqual(self.cache.stats()["entries"], 1)
        part = self.document[33:]
        self.assertFalse(self.space.lookup(part, segments=[(0, len(part))]))
        found = self.kv.lookup_pre_computed([1, 2, 3, *self.document, 4], request=1)
        self.assertEqual(found.tokens, 64)

    def test_mistakes_are_refused_before_memory_is_touched(self):
        with self.assertRaisesRegex(ValueError, "63 slots for 64 tokens"):
            self.kv.store_pre_computed(self.document, range(63))
        with self.assertRaisesRegex(ValueError, "outside the 256"):
            self.kv.store_pre_computed(self.document, range(200, 264))
        with self.assertRaisesRegex(tessera.TesseraError, "request_id"):
            self.kv.lookup_pre_computed(self.document, request=0)
        twice = [
            tuple(
                memoryview(bytearray(8 * SLOTS * ROW)).cast("d", (SLOTS, HEADS, DIM)) for _ in "kv"
            )
            for _layer in range(LAYERS)
        ]
        with self.assertRaisesRegex(ValueError, "8 bytes"):
            tessera.KvCache(self.space, twice, ROPE)
        with self.assertRaisesRegex(ValueError, "another rope"):
            tessera.KvCache(self.space, self.memory.layers, tessera.Rope(theta=5e5, dims=DIM))
        with self.assertRaisesRegex(ValueError, "2 layers"):
            tessera.KvCache(self.space, self.memory.layers[:1])
        self.kv.unregister()
        with self.assertRaisesRegex(ValueError, "unregistered"):
            self.kv.store_pre_computed(self.document, range(64))

    def test_a_load_rotates_to_a_position_offset(self):
        self.store()
        prompt = [1, 2, 3] + self.document + [4]
        found = self.space.lookup(prompt, segments=[(3, 64)])
        flat = array.array("f", bytes(4 * LAYERS * 2 * len(prompt) * ROW))
        out = memoryview(flat).cast("B").cast("f", (LAYERS, 2, len(prompt), HEADS, DIM))
        self.assertEqual(self.space.load(found, out, rope=ROPE, position_offset=10), 64)
        for i, token in enumerate(self.document):
            at = (3 + i) * ROW
            want = rotated([value(token, 0, 0, j) for j in range(ROW)], 13 + i)
            for x, y in zip(flat[at : at + ROW], want):
                self.assertAlmostEqual(x, y, places=4)
        with self.assertRaisesRegex(ValueError, "needs the rope"):
            self.space.load(found, out, position_offset=10)


@needs_shared_memory
class TestBlendServerServed(TestBlendServer):
    """The same calls as a client of a server."""

    def open(self):
        lib = library()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "sock")
        config, handle, server = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        check(lib.tsr_config_open(ctypes.byref(config)))
        for key, text in (("host_size", "8M"), ("owner", "embedded"), ("server_socket", path)):
            check(lib.tsr_config_set(config, key.encode(), text.encode()))
        check(lib.tsr_cache_open(ctypes.byref(handle), config))
        self.addCleanup(lib.tsr_cache_close, handle)
        check(lib.tsr_server_open(ctypes.byref(server), handle, config))
        self.addCleanup(lib.tsr_server_close, server)
        lib.tsr_config_close(config)
        cache = tessera.Cache(owner="daemon", server_socket=path)
        self.assertTrue(cache.connected(5000))
        return cache


class Device:
    """As torch has it; the memory is the processor's, so that no accelerator is needed."""

    type, index = "fake", 0

    def __str__(self):
        return "fake:0"


class Tensor:
    """A plane whose memory a stream writes."""

    def __init__(self, view, device):
        self.view, self.device, self.shape = view, device, view.shape
        self.data = ctypes.addressof(ctypes.c_char.from_buffer(view))

    def data_ptr(self):
        return self.data

    def element_size(self):
        return self.view.itemsize

    def stride(self):
        return tuple(step // self.view.itemsize for step in self.view.strides)


class Stream:
    """Work is done when somebody waits for it, and no sooner."""

    def __init__(self):
        self.queued = []

    def synchronize(self):
        while self.queued:
            self.queued.pop(0)()


class TestStreams(unittest.TestCase):
    """What torch has queued comes before what a call reads and writes."""

    def setUp(self):
        self.stream = Stream()
        device = self.device = Device()
        asked = self.asked = []

        def current_stream(of):
            asked.append(of)
            return self.stream

        torch = types.SimpleNamespace(fake=types.SimpleNamespace(current_stream=current_stream))
        patch = mock.patch.dict(sys.modules, torch=torch)
        patch.start()
        self.addCleanup(patch.stop)
        self.cache = tessera.Cache(host_size="8M", device="cpu")
        self.addCleanup(self.cache.close)
        space = self.cache.space(rope=ROPE.text, **SHAPE)
        self.memory = Memory()
        layers = [tuple(Tensor(one, device) for one in pair) for pair in self.memory.layers]
        self.kv = tessera.KvCache(space, layers, ROPE)
        self.addCleanup(self.kv.unregister)
        self.document = list(range(100, 164))

    def test_a_store_reads_what_was_queued_before_it(self):
        for store in (
            self.kv.store_pre_computed,
            lambda tokens, slots: self.kv.store_final(tokens, slots, recipe=b"r"),
        ):
            self.stream.queued.append(lambda: self.memory.compute(self.document, range(64), 0))
            self.assertEqual(store(self.document, range(64)), 64)
            self.assertEqual(self.stream.queued, [])
        self.assertEqual(set(self.asked), {self.device})
        expected = Memory()
        expected.compute(self.document, range(100, 164), 0)
        expected.compute(self.document, range(64), 0)
        found = self.kv.lookup_pre_computed(self.document, request=1)
        self.assertEqual(self.kv.retrieve_pre_computed(found, range(100, 164)), [(0, 64)])
        self.assertLess(self.memory.differs(expected), 1e-4)

    def test_a_load_comes_after_what_was_queued_before_it(self):
        """An older kernel still writes the slots: it must not do so after the load."""
        self.memory.compute(self.document, range(64), 0)
        self.kv.store_pre_computed(self.document, range(64))
        found = self.kv.lookup_pre_computed(self.document, request=1)
        noise = list(range(5000, 5064))
        self.stream.queued.append(lambda: self.memory.compute(noise, range(100, 164), 9))
        self.assertEqual(self.kv.retrieve_pre_computed(found, range(100, 164)), [(0, 64)])
        self.stream.synchronize()
        expected = Memory()
        expected.compute(self.document, range(64), 0)
        expected.compute(self.document, range(100, 164), 0)
        self.assertLess(self.memory.differs(expected), 1e-4)

    def test_the_stream_is_the_current_one_of_each_call(self):
        self.memory.compute(self.document, range(64), 0)
        self.kv.store_pre_computed(self.document, range(64))
        self.stream = Stream()  # torch.cuda.stream(...)
        self.stream.queued.append(lambda: self.memory.compute(self.document[:8], range(8), 0))
        self.kv.store_pre_computed(self.document[:8], range(8))
        self.assertEqual(self.stream.queued, [])

    def test_planes_of_two_devices_are_refused(self):
        layers = [tuple(Tensor(one, Device()) for one in pair) for pair in self.memory.layers]
        with self.assertRaisesRegex(ValueError, "several devices"):
            tessera.KvCache(self.kv._space, layers, ROPE)


if __name__ == "__main__":
    unittest.main()
