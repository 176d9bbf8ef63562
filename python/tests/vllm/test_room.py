"""The device pool within what vLLM is given of a GPU, with a stand-in for its worker."""

import os
import unittest
import unittest.mock
from types import SimpleNamespace

from tessera import owner
from tessera.vllm import plugin
from tessera.vllm.room import leave_room


class TestRoom(unittest.TestCase):
    """The device pool within what vLLM is given: of a worker with 1000 MiB in all."""

    def worker(self, options, ranks=1, kv_bytes=None, connector="TesseraConnector"):
        transfer = SimpleNamespace(
            kv_connector=connector, kv_connector_extra_config=options, engine_id=self.id()
        )
        return SimpleNamespace(
            vllm_config=SimpleNamespace(
                kv_transfer_config=transfer if connector else None,
                parallel_config=SimpleNamespace(world_size=ranks),
                cache_config=SimpleNamespace(kv_cache_memory_bytes=kv_bytes),
            ),
            init_snapshot=SimpleNamespace(total_memory=1000 << 20),
        )

    def left(self, *args, **more):
        return leave_room(self.worker(*args, **more), 600 << 20) >> 20

    def test_a_share_comes_off_the_engines_own(self):
        self.assertEqual(self.left({"device_pool_share": 0.15}), 450)
        chunks = {"chunk_cache_gpu_memory_utilization": "0.15", "enable_chunk_cache": True}
        self.assertEqual(self.left(chunks), 450)
        self.assertEqual(self.left({"device_pool_share": 0.15, "blend": True}), 450)

    def test_there_may_be_nothing_to_take_off(self):
        share = {"device_pool_share": 0.15}
        self.assertEqual(self.left({}), 600)
        for off in ({}, {"enable_chunk_cache": "False"}, {"blend": True}):
            chunks = {"chunk_cache_gpu_memory_utilization": 0.15, **off}
            self.assertEqual(self.left(chunks), 600)
        self.assertEqual(self.left({**share, "device_pool_size": "8M"}), 600)
        self.assertEqual(self.left({**share, "owner": "daemon"}), 600)
        self.assertEqual(self.left(share, ranks=2), 600)
        self.assertEqual(self.left(share, kv_bytes=1 << 30), 600)
        self.assertEqual(self.left(share, connector="OtherConnector"), 600)
        self.assertEqual(self.left(share, connector=None), 600)

    def test_no_room_is_no_pool(self):
        with self.assertLogs("vllm.tessera", "WARNING") as log:
            self.assertEqual(self.left({"device_pool_share": 0.5}), 600)
        self.assertIn("500 of the 600 MiB", log.output[0])
        self.assertIn((self.id(), os.getpid()), owner._poolless)

    def test_vllm_is_told_and_never_fails_for_it(self):
        from vllm.v1.worker.gpu_worker import Worker

        def determine(_self):
            return 600 << 20

        with unittest.mock.patch.object(Worker, "determine_available_memory", determine):
            plugin._leave_room()
            plugin._leave_room()  # plug-ins may be called twice
            wrapped = Worker.determine_available_memory
            self.assertEqual(wrapped(self.worker({"device_pool_share": 0.15})) >> 20, 450)
            self.assertEqual(wrapped(self.worker({"device_pool_share": 7})) >> 20, 600)
            self.assertEqual(wrapped(None) >> 20, 600)


if __name__ == "__main__":
    unittest.main(verbosity=2)
