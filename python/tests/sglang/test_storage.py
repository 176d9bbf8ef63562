"""Tessera behind SGLang's real storage contract: its factory, its host pools in every layout, and
its cache controller with its threads. (A whole server needs a GPU: device copies do.)"""

import os
import tempfile
import threading
import time
import unittest

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

PAGE, LAYERS, HEADS, DIM, TOKENS = 16, 3, 2, 8, 512
LAYOUTS = ["layer_first", "page_first", "page_first_direct", "page_head"]


def device_pool():
    return MHATokenToKVPool(
        size=TOKENS,
        page_size=PAGE,
        dtype=torch.float32,
        head_num=HEADS,
        head_dim=DIM,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
        enable_alt_stream=False,
    )


def host_pool(layout, device=None):
    device = device or device_pool()
    return MHATokenToKVPoolHost(
        device._mha_buffer_info(),
        host_to_device_ratio=2.0,
        host_size=0,
        page_size=PAGE,
        layout=layout,
        pin_memory=False,
        device="cpu",
        device_capacity_tokens=TOKENS,
        start_layer=0,
        end_layer=LAYERS,
    )


def config(extra, model="unit", **more):
    values = dict(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name=model,
    )
    values.update(more)
    settings = dict(
        backend_name="tessera",
        module_path="tessera.sglang",
        class_name="TesseraStorage",
        interface_v1=1,
        host_size="32M",
    )
    settings.update(extra)
    return HiCacheStorageConfig(**values, extra_config=settings)


def keys(count, salt=0):
    return [f"{salt * 100000 + i:064x}" for i in range(count)]


def indices(first_page, pages):
    return torch.arange(first_page * PAGE, (first_page + pages) * PAGE, dtype=torch.int64)


class StorageTest(unittest.TestCase):
    def disk(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)  # runs after the storages have been closed
        return dict(disk_path=folder.name, disk_size="64M", disk_segment_size="4M")

    def storage(self, pool, extra=None, **more):
        made = StorageBackendFactory.create_backend("dynamic", config(extra or {}, **more), pool)
        made.register_mem_pool_host(pool)
        made.on_host_pools_registered()
        self.addCleanup(made.close)
        return made


class TestZeroCopy(StorageTest):
    def test_pages_come_back_in_every_layout(self):
        for layout in LAYOUTS:
            with self.subTest(layout=layout):
                pool = host_pool(layout)
                pool.kv_buffer.copy_(torch.rand_like(pool.kv_buffer))
                wanted = pages_at(pool, indices(0, 8))
                storage = self.storage(pool, model=layout)
                self.assertEqual(storage.batch_exists(keys(8)), 0)
                self.assertEqual(storage.batch_set_v1(keys(8), indices(0, 8)), [True] * 8)
                self.assertEqual(storage.batch_exists(keys(8)), 8)
                pool.kv_buffer.zero_()
                self.assertEqual(storage.batch_get_v1(keys(8), indices(0, 8)), [True] * 8)
                for got, want in zip(pages_at(pool, indices(0, 8)), wanted, strict=True):
                    self.assertTrue(torch.equal(got, want))
                # Behind the eight pages nothing was touched.
                self.assertEqual(float(pool.get_data_page(8 * PAGE).abs().sum()), 0.0)

    def test_pages_go_to_other_places_than_they_came_from(self):
        pool = host_pool("page_first")
        pool.kv_buffer.copy_(torch.rand_like(pool.kv_buffer))
        storage = self.storage(pool)
        storage.batch_set_v1(keys(4), indices(0, 4))
        self.assertEqual(storage.batch_get_v1(keys(4), indices(10, 4)), [True] * 4)
        for i in range(4):
            self.assertTrue(
                torch.equal(pool.get_data_page((10 + i) * PAGE), pool.get_data_page(i * PAGE))
            )

    def test_a_gap_ends_the_hit_and_leaves_its_page_alone(self):
        pool = host_pool("page_first")
        pool.kv_buffer.fill_(1.0)
        storage = self.storage(pool)
        some = keys(6)
        storage.batch_set_v1(some[:2] + some[3:], indices(0, 5))
        pool.kv_buffer.fill_(7.0)
        self.assertEqual(storage.batch_exists(some), 2)
        loaded = storage.batch_get_v1(some, indices(0, 6))
        self.assertEqual(loaded, [True, True, False, True, True, True])
        self.assertTrue(bool((pool.get_data_page(2 * PAGE) == 7.0).all()))

    def test_a_batch_of_128_pages(self):
        pool = host_pool("page_first_direct")
        storage = self.storage(pool)
        many = keys(60, 5)
        self.assertTrue(all(storage.batch_set_v1(many, indices(0, 60))))
        self.assertEqual(storage.batch_exists(many + keys(68, 9)), 60)

    def test_models_ranks_and_layouts_share_nothing(self):
        disk = self.disk()
        pool = host_pool("page_first")
        first = self.storage(pool, disk, model="a")
        first.batch_set_v1(keys(4), indices(0, 4))
        self.assertEqual(first.batch_exists(keys(4)), 4)
        socket = first._cache.socket
        shared = dict(owner="daemon", server_socket=socket)
        same = self.storage(host_pool("page_first"), shared, model="a")
        self.assertEqual(same.batch_exists(keys(4)), 4)
        for other in (
            self.storage(host_pool("page_first"), shared, model="b"),
            self.storage(host_pool("page_first"), shared, model="a", tp_rank=1, tp_size=2),
            self.storage(host_pool("page_first_direct"), shared, model="a"),
        ):
            self.assertEqual(other.batch_exists(keys(4)), 0)

    def test_groups_of_data_parallel_attention_share_one_cache(self):
        disk = self.disk()  # which one process can have
        pool = host_pool("page_first")
        pool.kv_buffer.copy_(torch.rand_like(pool.kv_buffer))
        wanted = pool.get_data_page(PAGE).clone()
        first = self.storage(pool, disk)
        self.assertEqual(first.batch_set_v1(keys(4), indices(0, 4)), [True] * 4)
        other_pool = host_pool("page_first")
        other = self.storage(other_pool, disk, dp_rank=1)
        self.assertEqual(other.batch_exists(keys(4)), 4)
        self.assertEqual(other.batch_get_v1(keys(4), indices(0, 4)), [True] * 4)
        self.assertTrue(torch.equal(other_pool.get_data_page(PAGE), wanted))

    def test_pages_survive_a_restart(self):
        disk = self.disk()
        pool = host_pool("page_first")
        pool.kv_buffer.copy_(torch.rand_like(pool.kv_buffer))
        wanted = pool.get_data_page(PAGE).clone()
        storage = self.storage(pool, disk)
        storage.batch_set_v1(keys(4), indices(0, 4))
        storage.close()
        pool.kv_buffer.zero_()
        again = self.storage(pool, disk)
        self.assertEqual(again.batch_exists(keys(4)), 4)
        self.assertEqual(again.batch_get_v1(keys(4), indices(0, 4)), [True] * 4)
        self.assertTrue(torch.equal(pool.get_data_page(PAGE), wanted))


class TestPlain(StorageTest):
    """Without interface_v1: pages in tensors."""

    def test_tensors_come_back(self):
        pool = host_pool("page_first")
        storage = self.storage(pool, dict(interface_v1=0))
        page = torch.rand(PAGE * LAYERS * HEADS * DIM * 2)
        self.assertFalse(storage.exists("some key"))
        self.assertTrue(storage.set("some key", page))
        self.assertTrue(storage.exists("some key"))
        self.assertTrue(torch.equal(storage.get("some key", torch.zeros_like(page)), page))
        self.assertIsNone(storage.get("another", torch.zeros_like(page)))
        self.assertTrue(storage.batch_set(["a", "b"], [page, page + 1]))
        both = storage.batch_get(["b", "c"], [torch.zeros_like(page), torch.zeros_like(page)])
        self.assertTrue(torch.equal(both[0], page + 1))
        self.assertIsNone(both[1])


class TestBroken(StorageTest):
    def test_a_backend_that_cannot_open_answers_with_misses(self):
        pool = host_pool("page_first")
        with self.assertLogs("tessera.sglang", "WARNING") as log:
            storage = self.storage(pool, dict(host_sise="1G"))
        self.assertEqual(len(log.output), 1)
        self.assertIn("host_size", log.output[0])
        self.assertEqual(storage.batch_exists(keys(3)), 0)
        self.assertEqual(storage.batch_get_v1(keys(3), indices(0, 3)), [False] * 3)
        self.assertEqual(storage.batch_set_v1(keys(3), indices(0, 3)), [False] * 3)

    def test_a_daemon_that_is_away_is_a_miss(self):
        with tempfile.TemporaryDirectory() as folder:
            extra = dict(owner="daemon", server_socket=os.path.join(folder, "nobody.sock"))
            storage = self.storage(host_pool("page_first"), extra)
            self.assertEqual(storage.batch_exists(keys(3)), 0)
            self.assertEqual(storage.batch_get_v1(keys(3), indices(0, 3)), [False] * 3)

    def test_other_pools_are_refused_by_name(self):
        pool = host_pool("page_first")
        storage = self.storage(pool)
        with self.assertLogs("tessera.sglang", "WARNING") as log:
            storage.register_mem_host_pool_v2(pool, "mamba")
        self.assertIn("mamba", log.output[0])
        self.assertEqual(storage.batch_exists(keys(3)), 0)


class TestController(unittest.TestCase):
    """SGLang's own controller: hashes, backup thread, hit query, prefetch threads."""

    def setUp(self):
        from sglang.srt.runtime_context import get_parallel

        get_parallel().override_permanently(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_dcp_size=1, attn_dcp_rank=0
        )
        if not torch.distributed.is_initialized():
            with tempfile.NamedTemporaryFile(delete=False) as file:
                torch.distributed.init_process_group(
                    "gloo", init_method=f"file://{file.name}", rank=0, world_size=1
                )

    def test_what_is_backed_up_is_prefetched(self):
        from sglang.srt.managers.cache_controller import HiCacheController, get_storage_hash_str

        device = device_pool()
        pool = host_pool("page_first", device)

        class Allocator:
            def get_kvcache(self):
                return device

        controller = HiCacheController(
            Allocator(),
            pool,
            PAGE,
            torch.distributed.group.WORLD,
            threading.Event(),
            write_policy="write_through",
            io_backend="kernel",
            storage_backend="dynamic",
            prefetch_threshold=PAGE,
            model_name="unit",
            storage_backend_extra_config=dict(config({}).extra_config),
        )
        self.addCleanup(controller.detach_storage_backend)
        tokens = list(range(1000, 1000 + 8 * PAGE))
        pool.kv_buffer.copy_(torch.rand_like(pool.kv_buffer))
        source = pool.alloc(8 * PAGE)
        wanted = pages_at(pool, source)
        hashes = get_storage_hash_str(tokens, None, page_size=PAGE)
        controller.write_storage(source, tokens, hashes)
        controller.ack_backup_queue.get(timeout=30)
        pool.kv_buffer.zero_()

        # Twice as many tokens as there are: the hit is what was backed up.
        operation = controller.prefetch("one", tokens + [7] * (8 * PAGE))
        controller.prefetch_hit_queue.get(timeout=30)
        self.assertEqual(operation.storage_hit_count, 8 * PAGE)
        operation.host_indices = pool.alloc(8 * PAGE)
        controller.prefetch_buffer.put(operation)
        wait_for(lambda: controller.ack_prefetch_queue.qsize() >= 2)
        ack = controller.ack_prefetch_queue.get()
        self.assertEqual(ack.completed_tokens, 8 * PAGE)
        for got, want in zip(pages_at(pool, operation.host_indices), wanted, strict=True):
            self.assertTrue(torch.equal(got, want))


def pages_at(pool, places):
    return [pool.get_data_page(int(places[i])).clone() for i in range(0, len(places), PAGE)]


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen")
        time.sleep(0.05)


if __name__ == "__main__":
    unittest.main(verbosity=1)
