"""What compat.py makes up for in versions of vLLM that lack it. They are stubs here; the real
schedulers of old versions run in vllm/test_async.py."""

import importlib
import sys
import types
import unittest
from types import SimpleNamespace as Made
from unittest import mock

BASE = "vllm.distributed.kv_transfer.kv_connector.v1"


def compat_of(version):
    """compat.py as a process with this version of vLLM has it."""
    stubs = {name: types.ModuleType(name) for name in ("vllm", BASE)}
    stubs["vllm"].__version__ = version
    stubs[BASE].base = types.SimpleNamespace(KVConnectorTransferResults="theirs")
    with mock.patch.dict(sys.modules, stubs):
        sys.modules.pop("tessera.vllm.compat", None)
        module = importlib.import_module("tessera.vllm.compat")
        del sys.modules["tessera.vllm.compat"]
    return module


def step(new=(), cached=(), resumed=(), **counts):
    return Made(
        scheduled_new_reqs=[Made(req_id=name, block_ids=blocks) for name, blocks in new],
        scheduled_cached_reqs=Made(
            req_ids=[name for name, _ in cached],
            new_block_ids=[blocks for _, blocks in cached],
            resumed_req_ids=set(resumed),
        ),
        num_scheduled_tokens=counts,
    )


class TestBlockTables(unittest.TestCase):
    def test_tables_are_put_together(self):
        tables = compat_of("0.29.0").BlockTables()
        given = ([1, 2],)
        tables.take(step(new=[("a", given), ("b", ([3],))]), {"a"})
        self.assertEqual(tables.of("a"), ([1, 2],))
        self.assertIsNone(tables.of("b"))
        tables.take(step(cached=[("a", ([4],)), ("b", ([5],))]), {"a"})
        tables.take(step(cached=[("a", None)]), {"a"})
        self.assertEqual(tables.of("a"), ([1, 2, 4],))
        self.assertEqual(given, ([1, 2],))
        tables.take(step(cached=[("a", ([7, 8],))], resumed=["a"]), {"a"})
        self.assertEqual(tables.of("a"), ([7, 8],))
        tables.take(step(new=[("a", ([9],))]), {"a"})  # how model runner V2 is told of that
        self.assertEqual(tables.of("a"), ([9],))
        tables.forget("a")
        self.assertIsNone(tables.of("a"))

    def test_tables_that_vllm_tells(self):
        tables = compat_of("0.30.0").BlockTables()
        self.assertIsNone(tables.of("a"))
        state = Made(get_block_ids={"a": ([1],)}.get)
        tables.take(Made(kv_connector_block_state=state), {"a"})
        self.assertEqual(tables.of("a"), ([1],))
        self.assertIsNone(tables.of("b"))


class TestInFlight(unittest.TestCase):
    def counted(self, batches, *steps, **more):
        flight = compat_of("0.25.1").InFlight(Made(max_concurrent_batches=batches))
        for one in steps:
            flight.begun(one)
        return flight.tokens(Made(request_id="a"), **more)

    def test_one_batch_at_a_time_has_nothing_in_flight(self):
        self.assertEqual(self.counted(1), 0)
        self.assertEqual(self.counted(1, step(a=8), step(a=4)), 0)

    def test_an_abort_may_come_before_the_step_is_processed(self):
        self.assertEqual(self.counted(1, step(a=8), step(a=4), aborted=True), 4)
        self.assertEqual(self.counted(2, step(a=8), step(a=4), aborted=True), 12)

    def test_the_last_step_may_be_under_way_when_the_next_is_scheduled(self):
        self.assertEqual(self.counted(2, step(a=8)), 8)
        self.assertEqual(self.counted(2, step(a=8), step(a=4)), 4)
        self.assertEqual(self.counted(2, step(a=8), step(b=4)), 0)
        self.assertEqual(self.counted(3, step(a=8), step(a=4), step(a=2)), 6)

    def test_vllm_counts_itself(self):
        flight = compat_of("0.26.0").InFlight(Made())
        flight.begun(step(a=8))
        self.assertEqual(flight.tokens(Made(num_in_flight_tokens=3)), 3)


class TestLimits(unittest.TestCase):
    def test_what_cannot_be_loaded_is_said_by_name(self):
        for version in ("0.23.0", "0.29.0"):
            compat = compat_of(version)
            self.assertIsNone(compat.cannot_load(1, False))
            self.assertIn(f"several KV groups in vLLM {version}", compat.cannot_load(2, False))
            self.assertIn(f"sliding windows in vLLM {version}", compat.cannot_load(1, True))
        self.assertIsNone(compat_of("0.30.0").cannot_load(2, True))

    def test_results(self):
        old, new = compat_of("0.29.0"), compat_of("0.30.0")
        self.assertFalse(old.FAILED_BY_REQUEST)
        self.assertEqual(old.TransferResults().failed_recving, set())
        self.assertEqual(new.TransferResults, "theirs")

    def test_the_layout_or_what_decides_it(self):
        config = Made(attention_config=Made(backend="FLASH_ATTN"))
        layout = compat_of("0.29.0").kv_layout(config, Made(kv_cache_layout="LBHNC"))
        self.assertEqual(layout, "LBHNC")
        old = compat_of("0.28.0")
        seen = set()
        for named in ("NHD", "HND"):
            with mock.patch.dict("os.environ", VLLM_KV_CACHE_LAYOUT=named):
                seen.add(old.kv_layout(config, Made()))
        self.assertEqual(len(seen), 2)


if __name__ == "__main__":
    unittest.main()
