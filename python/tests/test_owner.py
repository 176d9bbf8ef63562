"""Who has the cache of an engine: its own process, which all halves in it share, or a server."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import unittest

from sandbox import needs_shared_memory

import tessera
from tessera import owner
from tessera._connector import GroupShape, ModelShape, SchedulerHalf, WorkerHalf
from tessera._lib import TesseraError, check, library
from tessera.owner import EngineCache, announce_worker, worker_device, worker_gone

SHAPE = ModelShape("unit", b"w", "test", 1, (GroupShape(("layer",), 16, 128),), chunk_tokens=16)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "s.sock")
        self.options = dict(host_size="16M", server_socket=self.path)

    def open(self, serve, engine="unit"):
        cache = EngineCache(self.options, engine, serve)
        self.addCleanup(cache.close)
        return cache

    def join(self, engine="unit"):
        cache = EngineCache.join(engine)
        self.addCleanup(cache.close)
        return cache


@needs_shared_memory
class TestSharing(Folder):
    def test_a_half_in_the_process_of_the_owner_has_its_handle(self):
        cache = self.open(True)
        shared = self.join()
        self.assertEqual(shared.handle.value, cache.handle.value)
        self.assertEqual((shared.socket, shared.serves), (self.path, True))
        self.assertTrue(shared.connected(0))

    def test_only_an_owner_of_the_same_engine_is_shared(self):
        self.assertIsNone(EngineCache.join("unit"))
        self.open(True)
        self.assertIsNone(EngineCache.join("another"))
        self.open(False, "client")
        self.assertIsNone(EngineCache.join("client"))

    def test_an_engine_without_room_has_no_pool(self):
        self.options["device_pool_share"] = 0.01
        self.assertEqual(owner.device_pool_share(self.options), 0.01)
        forms = [dict(device_pool_size="8M"), dict(owner="daemon"), dict(device_pool_share=0)]
        for more in forms:
            self.assertEqual(owner.device_pool_share({**self.options, **more}), 0)
        chunks = dict(device_pool_share=0, chunk_cache_gpu_memory_utilization=0.02)
        for on, share in ((False, 0), (True, 0.02)):
            given = {**self.options, **chunks, "enable_chunk_cache": on}
            self.assertEqual(owner.device_pool_share(given), share)
        self.options["device"] = "cpu"
        self.assertGreater(self.pool_bytes("roomy"), 0)
        owner.forbid_pool("unit")
        self.addCleanup(owner._poolless.clear)
        self.assertEqual(self.pool_bytes("unit"), 0)

    def pool_bytes(self, engine):
        text = ctypes.create_string_buffer(1 << 16)
        cache = EngineCache(self.options, engine, True)
        check(library().tsr_cache_stats_text(cache.handle, b"json", text, len(text)))
        cache.close()
        return json.loads(text.value)["device_pool_bytes"]

    def test_settings_without_effect_are_named_by_the_owner_alone(self):
        lines = []
        tessera.set_logger(lambda level, text: lines.append((level, text)))
        self.addCleanup(tessera.set_logger, None)
        self.options["enable_p2p"] = True
        self.open(True)
        told = [level for level, text in lines if "enable_p2p" in text]
        self.assertEqual(told, [1])
        self.assertTrue(self.open(False).connected(5000))
        told = [level for level, text in lines if "enable_p2p" in text]
        self.assertEqual(told, [1, 3])  # a warning, and one for debugging

    def test_the_server_is_there_for_others(self):
        self.open(True)
        self.join()
        client = self.open(False)
        self.assertTrue(client.connected(5000))
        self.assertFalse(client.serves)

    def test_the_last_user_closes_the_cache(self):
        for first in ("worker", "scheduler"):
            with self.subTest(first=first):
                users = {"scheduler": self.open(True), "worker": self.join()}
                halves = {
                    "scheduler": SchedulerHalf(users["scheduler"].handle, SHAPE),
                    "worker": WorkerHalf(users["worker"].handle, SHAPE, 0, "cpu"),
                }
                second = "scheduler" if first == "worker" else "worker"
                halves[first].close()
                users[first].close()
                users[first].close()
                self.assertTrue(self.open(False).connected(5000))
                self.assertTrue(users[second].connected(0))
                halves[second].close()
                users[second].close()
                self.assertFalse(os.path.exists(self.path))

    def test_an_owner_that_is_closed_gets_no_new_users(self):
        cache = self.open(True)
        shared = self.join()
        cache.close()
        self.assertIsNone(EngineCache.join("unit"))
        shared.close()

    def test_closing_an_old_owner_leaves_the_new_one(self):
        old = self.open(True)
        self.options["server_socket"] = self.path + "2"
        new = self.open(True)
        old.close()
        self.assertEqual(self.join().handle.value, new.handle.value)

    def test_an_owner_that_did_not_open_is_not_found(self):
        self.options["host_size"] = "nonsense"
        with self.assertRaises(TesseraError):
            EngineCache(self.options, "unit", True)
        self.assertIsNone(EngineCache.join("unit"))

    def test_a_forked_child_has_no_owner(self):
        self.open(True)
        child = os.fork()
        if child == 0:
            os._exit(0 if EngineCache.join("unit") is None else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


class TestDevices(unittest.TestCase):
    def test_the_device_of_the_one_worker_in_this_process(self):
        self.assertIsNone(worker_device("e"))
        announce_worker("e", ("cuda", 3))
        self.assertEqual(worker_device("e"), ("cuda", 3))
        self.assertIsNone(worker_device("f"))
        announce_worker("e", ("cuda", 4))
        self.assertIsNone(worker_device("e"))
        worker_gone("e", ("cuda", 4))
        self.assertEqual(worker_device("e"), ("cuda", 3))
        worker_gone("e", ("cuda", 3))
        self.assertIsNone(worker_device("e"))
        self.assertEqual(owner._workers, {})
        worker_gone("e", ("cuda", 3))

    def chosen(self, worker, **options):
        lib = library()
        config = ctypes.c_void_p()
        check(lib.tsr_config_open(ctypes.byref(config)))
        try:
            owner.configure(config, None, False, options)
            owner._choose_device(config, options, worker)
            return tuple(lib.tsr_config_get(config, key) for key in (b"device", b"device_number"))
        finally:
            lib.tsr_config_close(config)

    def test_the_worker_decides_unless_the_configuration_does(self):
        self.assertEqual(self.chosen(None), (b"", b"0"))
        self.assertEqual(self.chosen(("cpu", 0)), (b"", b"0"))
        self.assertEqual(self.chosen(("cuda", 3)), (b"cuda", b"3"))
        self.assertEqual(self.chosen(("cuda", 3), device="cuda"), (b"cuda", b"3"))
        self.assertEqual(self.chosen(("cuda", 3), device_number=1), (b"cuda", b"1"))
        self.assertEqual(self.chosen(("cuda", 3), device="cpu"), (b"cpu", b"0"))

    def test_a_scheduler_beside_a_tesserad_has_no_device(self):
        options = {"owner": "daemon", "server_socket": "/nonexistent/tesserad.sock"}
        EngineCache(options, "unit", True, ("no-such-device", 0)).close()
        with self.assertRaises(TesseraError):
            EngineCache(options, "unit", False, ("no-such-device", 0))

    def test_no_torch(self):
        code = "import sys, tessera.owner; sys.exit('torch' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
