"""Tessera below SGLang's radix tree: real requests, tree, allocators and a KV pool on the CPU, with
a model whose KV of a token is a digest of all tokens up to it. One wrong byte fails."""

import hashlib
import os
import random
import tempfile
import unittest
from array import array
from types import SimpleNamespace

import numpy
import torch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InitLoadBackParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.registry import get_radix_cache_factory
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

import tessera.sglang.plugin
from tessera.sglang import radix

LAYERS, HEADS, DIM, CHUNK = 3, 2, 8, 16
ROW = HEADS * DIM * 4
tessera.sglang.plugin.register()
get_context().set_server_args(
    ServerArgs(model_path=os.environ["TESSERA_TEST_VLLM_MODEL"], device="cpu")
)


def expected_kv(tokens):
    """[layer, K or V, token, byte]: digests of the prefix."""
    out = numpy.zeros((LAYERS, 2, len(tokens), ROW), numpy.uint8)
    state = hashlib.blake2b(digest_size=64)
    for i, token in enumerate(tokens):
        state.update(int(token).to_bytes(4, "little"))
        digest = numpy.frombuffer(state.digest(), numpy.uint8)
        for layer in range(LAYERS):
            out[layer, 0, i] = digest ^ (2 * layer)
            out[layer, 1, i] = digest ^ (2 * layer + 1)
    return out


class Engine:
    """SGLang's memory, its tree by the registry, and requests as its scheduler runs them."""

    def __init__(self, size=512, page=1, model="unit", **options):
        self.pool = MHATokenToKVPool(
            size=size,
            page_size=page,
            dtype=torch.float32,
            head_num=HEADS,
            head_dim=DIM,
            layer_num=LAYERS,
            device="cpu",
            enable_memory_saver=False,
            enable_alt_stream=False,
        )
        layers = zip(self.pool.k_buffer, self.pool.v_buffer)
        self.bytes = [
            [half.view(torch.uint8).numpy().reshape(-1, ROW) for half in pair] for pair in layers
        ]
        if page == 1:
            self.slots = TokenToKVPoolAllocator(size, torch.float32, "cpu", self.pool, False)
        else:
            self.slots = PagedTokenToKVPoolAllocator(
                size, page, torch.float32, "cpu", self.pool, False
            )
        self.page = page
        self.rows = ReqToTokenPool(8, 1024, "cpu", False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.slots,
            page_size=page,
        )
        self.context = SimpleNamespace(
            params=params,
            server_args=SimpleNamespace(attention_backend=None, revision=None),
            disable_radix_cache=False,
            enable_hierarchical_cache=False,
            is_hybrid_swa=False,
            is_hybrid_ssm=False,
            tp_size=1,
            model_config=SimpleNamespace(
                model_path=model,
                dtype=torch.float32,
                quantization=None,
                hf_config=SimpleNamespace(to_dict=lambda: {}),
            ),
        )
        self.open(options)
        self.count = self.checked = 0

    def open(self, options):
        settings = dict(host_size="32M", chunk_size=CHUNK, **options)
        names = {f"TESSERA_{key.upper()}": str(value) for key, value in settings.items()}
        os.environ.update(names)
        try:
            self.tree = get_radix_cache_factory("tessera")(self.context)
        finally:
            for name in names:
                del os.environ[name]

    def close(self):
        self.tree.shutdown()

    def take(self, count):
        """Slots, as SGLang's scheduler gets them: it evicts where there are none left."""
        lacking = count - self.slots.available_size()
        if lacking > 0:
            self.tree.evict(EvictParams(num_tokens=lacking))
        slots = self.slots.alloc(count)
        assert slots is not None, "no memory left"
        return slots

    def begin(self, tokens, **more):
        """A request that waits, matched."""
        self.count += 1
        params = SamplingParams(max_new_tokens=4)
        req = Req(f"r{self.count}", "", array("q", tokens), params, **more)
        req.init_next_round_input(self.tree)
        return req

    def admit(self, req):
        """Tokens of its prompt that need not be computed."""
        tree = self.tree
        if req.host_hit_length:
            lock = tree.lock(req.last_node)
            order = InitLoadBackParams(
                best_match_node=req.best_match_node, host_hit_length=req.host_hit_length, req=req
            )
            loaded, req.last_node = tree.init_load_back(order)
            tree.unlock(lock)
            assert loaded in (0, req.host_hit_length)
            req.prefix_len += loaded
            req.kv.cache_protected_len = req.prefix_len
        req.lock = tree.lock(req.last_node)
        return req.prefix_len

    def compute(self, req, tokens, first, prefix):
        """Compares what is there, writes the rest."""
        known = expected_kv(tokens)
        slots = prefix.tolist()
        self.compare(known, slots)
        count = len(tokens) - first
        padded = -(-count // self.page) * self.page
        news = self.take(padded)[:count]
        for layer in range(LAYERS):
            for half in range(2):
                self.bytes[layer][half][news.numpy()] = known[layer, half, first:]
        return news

    def compare(self, known, slots):
        for layer in range(LAYERS):
            for half in range(2):
                seen = self.bytes[layer][half][slots]
                assert numpy.array_equal(seen, known[layer, half, : len(slots)]), "wrong KV"
        self.checked += len(slots)

    def finish(self, req, n_found):
        tokens = list(req.origin_input_ids)
        prefix = self.tree.path_device_indices(req.last_node)[:n_found]
        # Whole pages, of which the answer takes what is left.
        n_answer = -len(tokens) % self.page
        answer = [7000 + i for i in range(n_answer + 1)]
        news = self.compute(req, tokens + answer[:-1], n_found, prefix)
        self.rows.alloc([req])
        row = req.kv.req_pool_idx
        total = len(tokens) + n_answer
        self.rows.write((row, slice(0, n_found)), prefix)
        self.rows.write((row, slice(n_found, total)), news)
        req.kv.kv_committed_len = req.kv.kv_allocated_len = total
        req.output_ids.extend(answer)
        req.finished_reason = FINISH_LENGTH(len(answer))
        release_kv_cache(req, self.tree, checkpoint=True)

    def run(self, tokens, **more):
        """Tokens of a request's prompt that were not computed."""
        req = self.begin(tokens, **more)
        found = self.admit(req)
        self.finish(req, found)
        sizes = self.tree.evictable_size(), self.tree.protected_size(), self.slots.available_size()
        assert sum(sizes) == self.pool.size, f"lost slots: {sizes}"  # as SGLang checks when idle
        return found

    def written(self):
        self.tree._pool.drain(10000)
        self.tree._settle()

    def lose(self):
        """The tree forgets everything, as it does under pressure."""
        self.written()
        self.tree.evict(EvictParams(num_tokens=1 << 30))


class TestRadix(unittest.TestCase):
    tokens = list(range(100, 100 + 5 * CHUNK + 3))

    def engine(self, **more):
        engine = Engine(**more)
        self.addCleanup(engine.close)
        self.assertIsInstance(engine.tree, radix.TesseraRadixCache)
        return engine

    def disk(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.options = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
        return self.options

    def test_what_the_tree_has_lost_is_loaded(self):
        for page in (1, 4, 16):
            with self.subTest(page=page):
                engine = self.engine(page=page)
                self.assertEqual(engine.run(self.tokens), 0)
                self.assertGreaterEqual(engine.run(self.tokens), 5 * CHUNK)  # of the tree itself
                engine.lose()
                self.assertEqual(engine.run(self.tokens), 5 * CHUNK)
                engine.written()
                self.assertEqual(engine.slots.available_size() + engine.tree.evictable_size(), 512)

    def test_the_tree_has_a_part_and_tessera_the_rest(self):
        engine = self.engine()
        engine.run(self.tokens)
        engine.lose()
        engine.run(self.tokens[: 2 * CHUNK + 5])
        req = engine.begin(self.tokens)
        self.assertGreater(req.prefix_len, 2 * CHUNK)
        self.assertEqual(req.prefix_len + req.host_hit_length, 5 * CHUNK)
        self.assertEqual(engine.admit(req), 5 * CHUNK)
        engine.finish(req, 5 * CHUNK)

    def test_two_requests_of_one_batch_load_the_same_and_lose_no_slot(self):
        engine = self.engine()
        engine.run(self.tokens)
        engine.lose()
        two = [engine.begin(self.tokens), engine.begin(self.tokens)]
        found = [engine.admit(req) for req in two]
        self.assertEqual(found, [5 * CHUNK] * 2)
        for req in two:
            engine.finish(req, 5 * CHUNK)
        engine.lose()
        self.assertEqual(engine.slots.available_size(), 512)

    def test_hits_survive_a_restart_through_the_disk(self):
        first = Engine(**self.disk())
        first.run(self.tokens)
        first.close()
        second = Engine(**self.options)
        self.assertEqual(second.run(self.tokens), 5 * CHUNK)
        second.close()
        other = self.engine(model="another", **self.options)
        self.assertEqual(other.run(self.tokens), 0)

    def test_adapters_and_salts_share_nothing(self):
        engine = self.engine()
        for more in ({}, dict(extra_key="poems"), dict(cache_salt="a"), dict(cache_salt="b")):
            self.assertEqual(engine.run(self.tokens, **more), 0, more)
            engine.lose()
        for more in ({}, dict(extra_key="poems"), dict(cache_salt="a"), dict(cache_salt="b")):
            self.assertEqual(engine.run(self.tokens, **more), 5 * CHUNK, more)

    def test_under_pressure(self):
        chance = random.Random(1)
        beginnings = [[chance.randrange(9000) for _ in range(150)] for _ in range(4)]
        for page in (1, 4):
            engine = self.engine(size=256, page=page)
            found = 0
            for _ in range(150):
                tokens = chance.choice(beginnings)[: chance.randrange(150)]
                tokens = tokens + [chance.randrange(9000) for _ in range(chance.randrange(1, 40))]
                found += engine.run(tokens)
            engine.lose()
            print(f"    pages of {page}: {found} tokens found, {engine.checked} compared")
            self.assertGreater(found, 3000)
            self.assertEqual(engine.slots.available_size(), 256)
            self.assertEqual(engine.tree._writes, {})
            self.assertEqual(engine.tree._offers, {})
            self.assertFalse(engine.tree._complained)

    def test_slots_that_are_being_read_are_not_given_away(self):
        engine = self.engine()
        started = []
        store = engine.tree._pool.store_start

        def watched(*args):
            started.append(store(*args))
            return started[-1]

        engine.tree._pool.store_start = watched
        engine.tree._pool.written = lambda: []
        engine.run(self.tokens)
        self.assertEqual(started, [True])
        self.assertGreater(engine.tree.protected_size(), 0)
        del engine.tree._pool.written
        engine.lose()
        self.assertEqual(engine.tree.protected_size(), 0)

    def test_a_request_that_is_aborted_lets_go(self):
        engine = self.engine()
        engine.run(self.tokens)
        engine.lose()
        req = engine.begin(self.tokens)
        self.assertEqual(len(engine.tree._offers), 1)
        engine.tree.release_aborted_request(req.cache_request_handle)
        self.assertEqual(engine.tree._offers, {})

    def test_a_flush_forgets_and_what_comes_then_is_not_for_others(self):
        first = Engine(**self.disk())
        first.run(self.tokens)
        first.tree.reset()
        first.slots.clear()
        self.assertEqual(first.run(self.tokens), 0)
        first.lose()
        self.assertEqual(first.run(self.tokens), 5 * CHUNK)
        first.close()
        second = self.engine(**self.options)
        self.assertEqual(second.run(self.tokens), 0)


class TestBroken(unittest.TestCase):
    tokens = TestRadix.tokens

    def test_a_load_that_fails_is_computed(self):
        engine = Engine()
        self.addCleanup(engine.close)
        engine.run(self.tokens)
        engine.lose()
        engine.tree._pool.load = lambda *args: 3 * CHUNK
        self.assertEqual(engine.run(self.tokens), 0)
        engine.lose()
        self.assertEqual(engine.slots.available_size(), 512)

    def test_calls_that_fail_cost_a_line(self):
        engine = Engine()
        self.addCleanup(engine.close)

        def broken(*args):
            raise OSError("gone")

        for name in ("match", "load", "store_start", "written"):
            setattr(engine.tree._pool, name, broken)
        with self.assertLogs("tessera.sglang.radix", "WARNING") as log:
            self.assertEqual(engine.run(self.tokens), 0)
            self.assertGreater(engine.run(self.tokens), 5 * CHUNK - 1)  # the tree's own
        self.assertEqual(len(log.output), 1, log.output)

    def test_a_store_of_another_process_and_what_is_refused_give_sglangs_own_tree(self):
        from sglang.srt.mem_cache.radix_cache import RadixCache

        plain = radix.default_radix_cache_factory
        radix.default_radix_cache_factory = lambda context: RadixCache(context.params)
        self.addCleanup(setattr, radix, "default_radix_cache_factory", plain)
        with tempfile.TemporaryDirectory() as folder:
            disk = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
            first = Engine(**disk)
            for options, change in (
                (disk, {}),
                (dict(host_sise="1G"), {}),
                ({}, dict(tp_size=2)),
                ({}, dict(is_hybrid_swa=True)),
            ):
                with self.assertLogs("tessera.sglang.radix", "WARNING") as log:
                    engine = Engine(**({} if change else options))
                    if change:
                        engine.close()
                        engine.context.__dict__.update(change)
                        engine.open({})
                self.assertEqual(len(log.output), 1)
                self.assertIn("off, SGLang runs without it", log.output[0])
                self.assertIs(type(engine.tree), RadixCache)
            first.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
