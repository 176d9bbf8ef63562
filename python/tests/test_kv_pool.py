"""KV by slots from Python, over plain memory and, where they are installed, numpy and torch: what
is stored comes back to other slots, byte by byte, behind what the engine has."""

import array
import ctypes
import random
import re
import sys
import textwrap
import types
import unittest
from pathlib import Path
from unittest import mock

from test_connector import NONE
from test_kv_cache import Device, Stream, Tensor

import tessera
from tessera import _c as c
from tessera._kvpool import PoolPlane, PoolShape, RadixPool

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

LAYERS, HEADS, DIM, SLOTS, CHUNK = 3, 2, 4, 512, 16
ROW = HEADS * DIM
SHAPE = dict(model="pool", dtype="f32", n_layers=LAYERS, n_heads=HEADS, k_dim=DIM)
TOKENS = [1000 + i for i in range(100)]  # six chunks and four tokens
WHOLE = 96
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "engines.md"


CHANCE = random.Random(1)


def noise(n):
    """Different for every plane."""
    return array.array("f", [CHANCE.random() for _ in range(n)])


class Buffers:
    """Planes of a kind of array, and what is in their slots."""

    def plane(self):
        return memoryview(noise(SLOTS * ROW)).cast("B").cast("f", (SLOTS, HEADS, DIM))

    def rows(self, plane, slots):
        return [plane[slot, h, d] for slot in slots for h in range(HEADS) for d in range(DIM)]

    def clear(self, plane):
        plane.cast("B")[:] = bytes(4 * SLOTS * ROW)

    def numbers(self, values):
        return list(values)


class Arrays(Buffers):
    def plane(self):
        return numpy.frombuffer(noise(SLOTS * ROW), numpy.float32).copy().reshape(SLOTS, HEADS, DIM)

    def rows(self, plane, slots):
        return plane[list(slots)].ravel().tolist()

    def clear(self, plane):
        plane[:] = 0

    def numbers(self, values):
        return numpy.array(values, dtype=numpy.int64)


class Tensors(Arrays):
    def plane(self):
        """With the heads first, which are not contiguous then."""
        return torch.tensor(noise(SLOTS * ROW)).reshape(HEADS, SLOTS, DIM).transpose(0, 1)

    def rows(self, plane, slots):
        return plane[list(slots)].flatten().tolist()

    def numbers(self, values):
        return torch.tensor(values, dtype=torch.int64)


class WithPool(unittest.TestCase):
    kind: Buffers = Buffers()

    def setUp(self):
        self.cache = tessera.Cache(host_size="16M", chunk_size=CHUNK)
        self.addCleanup(self.cache.close)
        self.space = self.cache.space(**SHAPE)
        self.planes = [[self.kind.plane() for _layer in range(LAYERS)] for _plane in "kv"]
        self.pool = tessera.KvPool(self.space, *self.planes)
        self.addCleanup(self.pool.close)

    def rows(self, slots):
        return [self.kind.rows(one, slots) for layers in self.planes for one in layers]

    def clear(self):
        for layers in self.planes:
            for one in layers:
                self.kind.clear(one)

    def numbers(self, values):
        return self.kind.numbers(values)


class TestBuffers(WithPool):
    def setUp(self):
        super().setUp()
        self.slots = list(range(300, 500, 2))  # scattered

    def store(self):
        return self.pool.store_kv(self.numbers(TOKENS), self.numbers(self.slots))

    def test_what_was_stored_comes_to_other_slots(self):
        self.assertEqual(self.pool.chunk_size(), CHUNK)
        tokens, free = self.numbers(TOKENS), list(range(100))[::-1]
        self.assertEqual(self.pool.load_kv(tokens, self.numbers(free)), 0)
        self.assertEqual((self.store(), self.store()), (WHOLE, 0))
        want = self.rows(self.slots[:WHOLE])
        self.clear()
        self.assertEqual(self.pool.load_kv(tokens, self.numbers(free)), WHOLE)
        self.assertEqual(self.rows(free[:WHOLE]), want)
        untouched = [*free[WHOLE:], *range(100, SLOTS)]
        self.assertEqual({x for row in self.rows(untouched) for x in row}, {0.0})

    def test_what_the_engine_has_is_not_written(self):
        """As SGLang calls it: -1 for what it has of the chunk in which that ends."""
        self.store()
        for n_cached in (16, 20, 95):
            want = self.rows(self.slots[n_cached:WHOLE])
            n_pad = n_cached % self.pool.chunk_size()
            free = list(range(len(TOKENS) - n_cached))
            before = self.rows(range(len(free), SLOTS))
            loaded = self.pool.load_kv(
                self.numbers(TOKENS), self.numbers([-1] * n_pad + free), offset=n_cached - n_pad
            )
            self.assertEqual(loaded - n_pad, WHOLE - n_cached)
            self.assertEqual(self.rows(free[: WHOLE - n_cached]), want)
            self.assertEqual(self.rows(range(len(free), SLOTS)), before)

    def test_a_store_begins_at_its_offset(self):
        """Slots before it are given, and not read."""
        tokens = self.numbers(TOKENS)
        self.assertEqual(self.pool.store_kv(tokens[:32], self.numbers(self.slots[:32])), 32)
        mapping = self.numbers([-1] * 32 + self.slots[32:])
        self.assertEqual(self.pool.store_kv(tokens, mapping, offset=32), WHOLE - 32)
        want = self.rows(self.slots[:WHOLE])
        self.clear()
        self.assertEqual(self.pool.load_kv(tokens, self.numbers(range(100))), WHOLE)
        self.assertEqual(self.rows(range(WHOLE)), want)

    def test_a_reset_drops_everything(self):
        self.store()
        self.assertEqual(self.pool.reset(), WHOLE // CHUNK)
        self.assertEqual(self.pool.load_kv(TOKENS, range(100)), 0)
        self.assertEqual(self.store(), WHOLE)


@unittest.skipIf(numpy is None, "numpy is not installed")
class TestNumpy(TestBuffers):
    kind = Arrays()

    def test_a_read_only_pool_is_refused(self):
        self.planes[0][1].flags.writeable = False
        with self.assertRaisesRegex(TypeError, "read-only"):
            tessera.KvPool(self.space, *self.planes)


@unittest.skipIf(torch is None, "torch is not installed")
class TestTorch(TestBuffers):
    kind = Tensors()


class TestPool(WithPool):
    def test_the_space_finds_what_the_pool_stores(self):
        self.pool.store_kv(TOKENS, range(100))
        found, n = self.space.lookup(TOKENS), len(TOKENS) * ROW
        flat = array.array("f", bytes(4 * LAYERS * 2 * n))
        out = memoryview(flat).cast("B").cast("f", (LAYERS, 2, len(TOKENS), ROW))
        self.assertEqual(self.space.load(found, out), WHOLE)
        for i, row in enumerate(self.rows(range(WHOLE))):  # K of all layers, V of all layers
            at = (i % LAYERS * 2 + i // LAYERS) * n
            self.assertTrue(flat[at : at + WHOLE * ROW].tolist() == row)
        self.space.clear()
        self.assertEqual(self.pool.load_kv(TOKENS, range(100)), 0)

    def test_salts_and_adapters_share_nothing(self):
        self.assertEqual(self.pool.store_kv(TOKENS, range(100), salt="a"), WHOLE)
        self.assertEqual(self.pool.store_kv(TOKENS, range(100), adapter="a"), WHOLE)
        for other in ({}, {"salt": "b"}, {"adapter": "b"}):
            self.assertEqual(self.pool.load_kv(TOKENS, range(100), **other), 0)
        for own in ({"salt": "a"}, {"adapter": "a"}):
            self.assertEqual(self.pool.load_kv(TOKENS, range(100), **own), WHOLE)

    def test_a_pool_has_the_weights_of_its_space(self):
        """They are part of the identity, and must live as long as the space does."""
        self.pool.store_kv(TOKENS, range(100))
        for weights, known in ((b"w" * 4096, 0), (b"", WHOLE)):
            space = self.cache.space(weights=weights, **SHAPE)
            with tessera.KvPool(space, *self.planes) as pool:
                self.assertEqual(pool.load_kv(TOKENS, range(100)), known)
                pool.store_kv(TOKENS, range(100))
            self.assertEqual(space.lookup(TOKENS).prefix_tokens, WHOLE)

    def test_latent_rows_are_one_plane(self):
        space = self.cache.space("mla", "f32", LAYERS, 1, ROW, layout="mla")
        rows = [one.cast("B").cast("f", (SLOTS, 1, ROW)) for one in self.planes[0]]
        with tessera.KvPool(space, rows) as pool:
            self.assertEqual(pool.store_kv(TOKENS, range(100)), WHOLE)
            want = [one[i, 0, k] for one in rows for i in range(WHOLE) for k in range(ROW)]
            self.assertEqual(pool.load_kv(TOKENS, range(200, 300)), WHOLE)
            got = [one[200 + i, 0, k] for one in rows for i in range(WHOLE) for k in range(ROW)]
            self.assertEqual(got, want)
        with self.assertRaisesRegex(ValueError, "latent rows of 3 layers"):
            tessera.KvPool(space, rows, rows)

    def test_mistakes_are_refused_before_memory_is_touched(self):
        for call, offset, n in (("load_kv", 0, 99), ("load_kv", 16, 100), ("store_kv", 16, 84)):
            with self.assertRaisesRegex(ValueError, f"{n} slots for"):
                getattr(self.pool, call)(TOKENS, range(n), offset=offset)
        for offset in (-16, 112):
            with self.assertRaisesRegex(ValueError, f"offset {offset} in 100 tokens"):
                self.pool.load_kv(TOKENS, range(100), offset=offset)
        with self.assertRaisesRegex(tessera.TesseraError, "does not begin a chunk of 16"):
            self.pool.load_kv(TOKENS, range(96), offset=4)
        with self.assertRaisesRegex(ValueError, "outside the 512"):
            self.pool.store_kv(TOKENS, range(SLOTS - 99, SLOTS + 1))
        with self.assertRaisesRegex(tessera.TesseraError, "token 0 has no slot"):
            self.pool.store_kv(TOKENS, [-1, *range(99)])
        with self.assertRaisesRegex(ValueError, "K and V of 3 layers"):
            tessera.KvPool(self.space, self.planes[0])
        with self.assertRaisesRegex(ValueError, "K and V of 3 layers"):
            tessera.KvPool(self.space, self.planes[0], self.planes[1][:2])
        flat = [memoryview(noise(SLOTS * ROW)) for _layer in range(LAYERS)]
        with self.assertRaisesRegex(ValueError, "not \\[slot, head, dim\\]"):
            tessera.KvPool(self.space, flat, flat)
        self.pool.close()
        self.pool.close()
        for call in (self.pool.chunk_size, self.pool.reset):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()
        with self.assertRaisesRegex(ValueError, "closed"):
            self.pool.load_kv(TOKENS, range(100))

    def test_the_example_of_the_documents(self):
        code = re.search(
            r"^    pool = tessera\.KvPool.*\n(?:    .*\n)+", DOCUMENT.read_text("utf-8"), re.M
        )
        names = dict(
            tessera=tessera,
            space=self.space,
            k_pool=self.planes[0],
            v_pool=self.planes[1],
            token_ids=TOKENS,
            slot_mapping=list(range(100)),
            n_cached=20,
            free=list(range(200, 280)),
        )
        want = self.rows(range(20, WHOLE))
        exec(textwrap.dedent(code.group()), names)
        self.assertEqual(names["n_new"], WHOLE - 20)
        self.assertEqual(self.rows(range(200, 200 + WHOLE - 20)), want)


class TestStreams(unittest.TestCase):
    """What torch has queued comes before what a call reads and writes."""

    def test_calls_wait_for_the_current_stream(self):
        stream = Stream()
        device = Device()
        fake = types.SimpleNamespace(current_stream=lambda of: stream)
        planes = [[Buffers().plane() for _layer in range(LAYERS)] for _plane in "kv"]
        with (
            mock.patch.dict(sys.modules, torch=types.SimpleNamespace(fake=fake)),
            tessera.Cache(host_size="16M", chunk_size=CHUNK) as cache,
        ):
            space = cache.space(**SHAPE)
            with self.assertRaisesRegex(tessera.TesseraError, "fake"):
                tessera.KvPool(space, *[[Tensor(one, device) for one in of] for of in planes])
            with tessera.KvPool(space, *planes) as pool:
                pool._memory._current_stream = lambda: stream
                done = []
                for call in (pool.store_kv, pool.load_kv):
                    stream.queued.append(lambda: done.append(1))
                    self.assertEqual(call(TOKENS, range(100)), WHOLE)
                self.assertEqual((len(done), stream.queued), (2, []))


class TestRadixPool(WithPool):
    """The same below SGLang's radix tree: stores that nobody waits for, leases."""

    def test_a_tree_stores_and_loads_by_nodes(self):
        planes = tuple(
            PoolPlane(
                [ctypes.addressof(ctypes.c_char.from_buffer(one)) for one in layers],
                4 * SLOTS * ROW,
                4 * ROW,
                4 * DIM,
                4,
                HEADS,
                DIM,
            )
            for layers in self.planes
        )
        shape = PoolShape("m", b"w", "test", c.DTYPE_F32, planes, SLOTS)
        pool = RadixPool(self.cache._open(), shape)
        self.addCleanup(pool.close)
        tokens, slots = array.array("I", TOKENS), array.array("q", range(100, 200))
        self.assertTrue(pool.store_start(tokens, slots, NONE, 1))
        self.assertTrue(pool.drain(5000))
        self.assertEqual(pool.written(), [1])
        self.assertEqual(pool.match(tokens, NONE, 9), WHOLE)
        for n_cached in (0, 16, 20):
            here = array.array("q", range(300, 300 + WHOLE - n_cached))
            loaded = pool.load(tokens, WHOLE, n_cached, here, NONE)
            self.assertEqual(loaded, WHOLE - n_cached)
            self.assertEqual(self.rows(here), self.rows(slots[n_cached:WHOLE]))
        pool.release(9)


if __name__ == "__main__":
    unittest.main()
