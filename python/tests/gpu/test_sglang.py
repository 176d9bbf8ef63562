"""Tessera inside SGLang on a GPU: SGLang's own pools, allocators, requests, radix tree and host
pools on CUDA, every byte compared, and the rate of a load against the bus.

    python3 python/tests/gpu/test_sglang.py        PYTHONPATH: this tree's python/, and SGLang

Not SGLang's: the model (radix_kit.py), and what sglang_stubs.py names. TESSERA_TEST_DEVICE=cpu runs
everything but the measurement over host memory.
"""

import os
import random
import re
import statistics
import sys
import tempfile
import time
import unittest
from array import array

import sglang_stubs

try:
    import torch
except ImportError:
    torch = None

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "sglang"))
sglang_stubs.install()
DEVICE = os.environ.get("TESSERA_TEST_DEVICE") or (
    "cuda" if torch and torch.cuda.is_available() else None
)
WHY_NOT = "no torch" if torch is None else "torch sees no CUDA device"
if DEVICE:
    try:
        import sglang
    except ModuleNotFoundError as error:
        DEVICE, WHY_NOT = None, f"SGLang does not import: {error}"
CUDA = DEVICE == "cuda"
# A load of this shape is measured: 32 layers, 8 KV heads of 128, bf16.
BIG_LAYERS, BIG_HEADS, BIG_DIM, BIG_TOKENS = 32, 8, 128, 32768
BUS_PART = 0.85


@unittest.skipUnless(DEVICE, WHY_NOT)
class TestRadix(unittest.TestCase):
    """Below the radix tree."""

    def engine(self, **more):
        from radix_kit import Engine

        from tessera.sglang import radix

        engine = Engine(device=DEVICE, **more)
        self.addCleanup(engine.close)
        self.assertIsInstance(engine.tree, radix.TesseraRadixCache)
        return engine

    def check(self, engine):
        engine.lose()
        engine.check()
        self.assertEqual(engine.slots.available_size(), engine.size)
        self.assertEqual(engine.tree._writes, {})
        self.assertEqual(engine.tree._offers, {})
        self.assertFalse(engine.tree._complained)

    def test_what_the_tree_has_lost_is_loaded(self):
        tokens = list(range(100, 183))
        for page in (1, 4, 16):
            with self.subTest(page=page):
                engine = self.engine(page=page)
                self.assertEqual(engine.run(tokens), 0)
                engine.lose()
                self.assertEqual(engine.run(tokens), 80)
                self.check(engine)

    def test_under_pressure(self):
        for page in (1, 4, 16):
            for seed in (1, 2, 3):
                with self.subTest(page=page, seed=seed):
                    engine = self.engine(size=256, page=page)
                    found = engine.run_under_pressure(150, seed)
                    print(f"    pages of {page}: {found} found, {engine.checked} compared")
                    self.assertGreater(found, 3000)
                    self.check(engine)
                    engine.close()

    def test_what_the_cache_has_evicted_is_computed(self):
        engine = self.engine(size=256)
        for seed in range(3):
            engine.run_under_pressure(60, seed)
            engine.tree._cache.evict(1 << 30)
            engine.run_under_pressure(20, seed)
        self.check(engine)

    def test_hits_survive_a_restart_through_the_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            disk = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
            tokens = list(range(100, 183))
            first = self.engine(**disk)
            first.run(tokens)
            first.close()
            second = self.engine(**disk)
            self.assertEqual(second.run(tokens), 80)
            self.check(second)
            second.close()

    @unittest.skipUnless(CUDA, "host memory has no streams")
    def test_copies_that_are_not_ordered_with_the_model_are_seen(self):
        engine = self.engine(size=256, stream=torch.cuda.Stream())
        with self.assertRaisesRegex(AssertionError, "bytes of KV were wrong"):
            engine.run_under_pressure(150)

    def test_one_wrong_byte_is_seen(self):
        engine = self.engine(size=256)
        tokens = list(range(100, 183))
        engine.run(tokens)
        engine.check()
        engine.bytes[1][0][:] ^= 1
        with self.assertRaisesRegex(AssertionError, "bytes of KV were wrong"):
            engine.run(tokens)
            engine.check()


@unittest.skipUnless(DEVICE, WHY_NOT)
class TestStorage(unittest.TestCase):
    """Below the hierarchical cache: device pool, pinned host pool, Tessera, and back."""

    PAGE, LAYERS, HEADS, DIM, TOKENS = 16, 3, 2, 16, 512

    def device_pool(self):
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return MHATokenToKVPool(
            size=self.TOKENS,
            page_size=self.PAGE,
            dtype=torch.bfloat16,
            head_num=self.HEADS,
            head_dim=self.DIM,
            layer_num=self.LAYERS,
            device=DEVICE,
            enable_memory_saver=False,
            enable_alt_stream=False,
        )

    def host_pool(self, device, layout):
        from sglang.srt.mem_cache.pool_host import base, mha

        base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # 10 GB, which a test need not leave free
        pool = mha.MHATokenToKVPoolHost(
            device._mha_buffer_info(),
            host_to_device_ratio=2.0,
            host_size=0,
            page_size=self.PAGE,
            layout=layout,
            pin_memory=CUDA,
            device="cpu",
            device_capacity_tokens=self.TOKENS,
            start_layer=0,
            end_layer=self.LAYERS,
        )
        if not CUDA:  # SGLang imports them for CUDA alone
            mha.transfer_kv_direct = sglang_stubs._layers_to_layers
            mha.transfer_kv_all_layer_direct_lf_pf = sglang_stubs._layers_to_pages
            mha.transfer_kv_per_layer_direct_pf_lf = sglang_stubs._pages_to_layer
        return pool

    def storage(self, pool, layout):
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

        from tessera.sglang import TesseraStorage

        config = HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=layout != "layer_first",
            model_name=layout,
            extra_config=dict(interface_v1=1, host_size="32M"),
        )
        made = TesseraStorage(config)
        made.register_mem_pool_host(pool)
        self.addCleanup(made.close)
        return made

    def test_pages_come_back_to_the_device(self):
        """Random batches: device to host to Tessera, and to other places on both."""
        for layout in ("layer_first", "page_first_direct"):
            with self.subTest(layout=layout):
                self.run_layout(layout)

    def run_layout(self, layout):
        device = self.device_pool()
        host = self.host_pool(device, layout)
        storage = self.storage(host, layout)
        buffers = [*device.k_buffer, *device.v_buffer]
        for buffer in buffers:
            buffer.view(torch.int16).random_(-30000, 30000)
        chance = random.Random(3)
        pages = self.TOKENS // self.PAGE
        kept = {}
        for round_ in range(30):
            some = chance.sample(range(pages), chance.randrange(1, 9))
            keys = [f"{round_ * 1000 + page:064x}" for page in some]
            places = chance.sample(range(2 * pages), len(some))
            on_device, on_host = self.tokens(some), self.tokens(places)
            host.backup_from_device_all_layer(device, on_host, on_device.to(DEVICE), "direct")
            self.assertEqual(storage.batch_set_v1(keys, on_host), [True] * len(keys))
            rows = on_device.to(DEVICE)
            for i, key in enumerate(keys):
                part = rows[i * self.PAGE : (i + 1) * self.PAGE]
                kept[key] = [buffer[part].clone() for buffer in buffers]
            if round_ % 3 == 2:
                self.bring_back(chance, kept, device, host, storage)

    def bring_back(self, chance, kept, device, host, storage):
        pages = self.TOKENS // self.PAGE
        keys = chance.sample(sorted(kept), min(8, len(kept)))
        on_host = self.tokens(chance.sample(range(2 * pages), len(keys)))
        on_device = self.tokens(chance.sample(range(pages), len(keys))).to(DEVICE)
        host.kv_buffer.zero_()
        self.assertEqual(storage.batch_exists(keys), len(keys))
        self.assertEqual(storage.batch_get_v1(keys, on_host), [True] * len(keys))
        for layer in range(self.LAYERS):
            host.load_to_device_per_layer(device, on_host, on_device, layer, "direct")
        buffers = [*device.k_buffer, *device.v_buffer]
        for i, key in enumerate(keys):
            part = on_device[i * self.PAGE : (i + 1) * self.PAGE]
            for buffer, wanted in zip(buffers, kept[key], strict=True):
                same = torch.equal(buffer[part].view(torch.int16), wanted.view(torch.int16))
                self.assertTrue(same, "a page of KV is wrong")

    def tokens(self, pages):
        """The slots of pages; the device pool's first page is SGLang's own."""
        starts = torch.tensor(pages, dtype=torch.int64) * self.PAGE
        return (starts[:, None] + torch.arange(self.PAGE)).flatten()


@unittest.skipUnless(CUDA, WHY_NOT if not DEVICE else "host memory has no bus")
class TestRate(unittest.TestCase):
    """A load into SGLang's pool, and one copy of as many bytes out of pinned memory."""

    def test_a_load_is_as_fast_as_the_bus(self):
        for scattered in (False, True):
            with self.subTest(scattered=scattered):
                self.measure(scattered)

    def measure(self, scattered):
        from radix_kit import Engine
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        from tessera.sglang import radix

        size = 2 * BIG_TOKENS + 64
        pool = MHATokenToKVPool(
            size=size,
            page_size=1,
            dtype=torch.bfloat16,
            head_num=BIG_HEADS,
            head_dim=BIG_DIM,
            layer_num=BIG_LAYERS,
            device=DEVICE,
            enable_memory_saver=False,
            enable_alt_stream=False,
        )
        engine = Engine(size=64, device=DEVICE)  # for its context
        engine.close()
        shape = radix.pool_shape(pool, engine.context)
        tokens = array("I", (random.Random(5).randrange(9000) for _ in range(BIG_TOKENS)))
        n_bytes = BIG_TOKENS * BIG_LAYERS * BIG_HEADS * BIG_DIM * 2 * 2
        cache = radix.Cache(host_size=f"{n_bytes // 2**30 + 2}G", **radix._device(shape))
        self.addCleanup(cache.close)
        kv = radix.RadixPool(cache._open(), shape)
        self.addCleanup(kv.close)
        wait_until_locked(cache)
        order = torch.randperm(size - 1) + 1 if scattered else torch.arange(1, size)
        sources, targets = order[:BIG_TOKENS], order[BIG_TOKENS : 2 * BIG_TOKENS]
        buffers = [*pool.k_buffer, *pool.v_buffer]
        for buffer in buffers:
            buffer.view(torch.int16).random_(-30000, 30000)
        torch.cuda.synchronize()
        started = time.perf_counter()
        self.assertTrue(kv.store_start(tokens, radix._places(sources), no_extra(), 1))
        self.assertTrue(kv.drain(60000))
        store_s = time.perf_counter() - started

        places, load_s = radix._places(targets), []
        for _ in range(11):
            for buffer in buffers:
                buffer[targets.to(DEVICE)] = 0
            torch.cuda.synchronize()
            started = time.perf_counter()
            loaded = kv.load(tokens, BIG_TOKENS, 0, places, no_extra())
            load_s.append(time.perf_counter() - started)
            self.assertEqual(loaded, BIG_TOKENS)
        for buffer in buffers:
            got, want = buffer[targets.to(DEVICE)], buffer[sources.to(DEVICE)]
            self.assertTrue(torch.equal(got.view(torch.int16), want.view(torch.int16)))
        bus_s = bus_time(n_bytes)
        load = statistics.median(load_s)
        print(
            f"    {BIG_TOKENS} tokens, {n_bytes / 1e9:.2f} GB, "
            f"{'scattered' if scattered else 'contiguous'} slots: load {load * 1e3:.1f} ms "
            f"({n_bytes / load / 1e9:.1f} GB/s), one pinned copy {bus_s * 1e3:.1f} ms "
            f"({n_bytes / bus_s / 1e9:.1f} GB/s): {bus_s / load:.3f} of the bus; "
            f"store {store_s * 1e3:.1f} ms ({n_bytes / store_s / 1e9:.1f} GB/s)"
        )
        self.assertGreaterEqual(bus_s / load, BUS_PART)


def no_extra():
    from tessera.cache import _extras

    return _extras(None, None, ())


def wait_until_locked(cache, seconds=120):
    """Host memory is page-locked in the background; until then loads are staged."""
    end = time.monotonic() + seconds
    while True:
        locked, all_of_it = gauge(cache, "host_locked_bytes"), gauge(cache, "host_bytes")
        if locked >= all_of_it:
            return
        if time.monotonic() > end:
            raise AssertionError(f"only {locked} of {all_of_it} bytes are page-locked")
        time.sleep(0.05)


def gauge(cache, name):
    found = re.search(rf"^tessera_{name} (\S+)$", cache.stats_text(), re.MULTILINE)
    return float(found[1])


def bus_time(n_bytes):
    """Seconds for one copy of so many bytes from pinned host memory."""
    source = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(n_bytes, dtype=torch.uint8, device=DEVICE)
    times = []
    for _ in range(11):
        torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    if DEVICE:
        print(f"SGLang {sglang.__version__}, torch {torch.__version__}, {DEVICE}")
    unittest.main(verbosity=2)
