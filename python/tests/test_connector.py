"""Both halves of connector.h through their Python classes, over memory of a fake engine: a
scheduler with the server in this process, and a worker that is its client."""

import ctypes
import os
import struct
import tempfile
import time
import unittest
from array import array

from sandbox import needs_shared_memory

from tessera import _c as c
from tessera._connector import GroupShape, ModelShape, SchedulerHalf, WorkerHalf, page_layout
from tessera.owner import EngineCache

BLOCK, BLOCKS, LAYERS, ROW = 16, 32, 3, 8
PAGE = BLOCK * ROW


def shape(**more):
    group = GroupShape(tuple(f"layer{i}" for i in range(LAYERS)), BLOCK, PAGE)
    return ModelShape(
        model="unit",
        weights=b"w",
        identity="test",
        ranks=1,
        groups=(group,),
        **{"chunk_tokens": BLOCK, "flags": ("load_sync",), **more},
    )


class Engine:
    """KV memory in which a block's bytes are a function of its tokens, and both halves."""

    def __init__(self, folder, model):
        self.memory = bytearray(LAYERS * BLOCKS * PAGE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        options = dict(host_size="16M", server_socket=os.path.join(folder, "s.sock"))
        self.owner = EngineCache(options, "unit", True)
        self.client = EngineCache(options, "unit", False)
        assert self.client.connected(5000)
        self.scheduler = SchedulerHalf(self.owner.handle, model)
        self.worker = WorkerHalf(self.client.handle, model, 0, "cpu")
        pages = [self.base + layer * BLOCKS * PAGE for layer in range(LAYERS)]
        layout, self.keep = page_layout(pages, PAGE, PAGE, BLOCK, BLOCKS, False)
        self.worker.register([layout])

    def close(self):
        self.worker.close()
        self.scheduler.close()
        self.client.close()
        self.owner.close()

    def page(self, layer, block):
        start = (layer * BLOCKS + block) * PAGE
        return self.memory[start : start + PAGE]

    def compute(self, tokens, blocks, n):
        """The KV of tokens[:n], as whole blocks."""
        for i in range(n // BLOCK):
            for layer in range(LAYERS):
                self.memory[self.at(layer, blocks[i])] = content(tokens[: (i + 1) * BLOCK], layer)

    def at(self, layer, block):
        start = (layer * BLOCKS + block) * PAGE
        return slice(start, start + PAGE)

    def step(self, rows=(), tokens=(), tables=()):
        """One engine step without computing: returns what the worker says of it."""
        counts, blocks = array("I"), array("i")
        for table in tables:
            counts.append(len(table))
            blocks.extend(table)
        data = self.scheduler.build(list(rows), array("I", tokens), counts, blocks)
        self.worker.preemptions(data)
        self.worker.start(data)
        self.worker.wait_loads()
        self.worker.wait_save()
        sent, received = self.worker.finished()
        bad = self.worker.bad_blocks()
        output = self.worker.output()
        if output:
            self.scheduler.worker_output(output)
        return sent, received, bad

    def settle(self):
        """Steps until nothing is left to do; the requests whose blocks became free."""
        free, end = [], time.monotonic() + 20
        while self.scheduler.pending():
            assert time.monotonic() < end, "it never settles"
            free += self.step()[0]
            time.sleep(0.002)
        return free


def content(prefix, layer):
    seed = hash(tuple(prefix)) + layer
    return bytes((seed * (i + 1) >> 7) & 255 for i in range(PAGE))


@needs_shared_memory
class TestHalves(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.engine = Engine(folder.name, shape())
        self.addCleanup(self.engine.close)

    def test_every_whole_chunk_has_a_key(self):
        scheduler, tokens = self.engine.scheduler, list(range(3 * BLOCK + 5))
        scheduler.new_request(1, tokens, len(tokens), NONE, 0)
        keys = scheduler.keys(1, 0, 8)
        self.assertEqual([[len(key) for key in row] for row in keys], [[16]] * 3)
        self.assertEqual(len({row[0] for row in keys}), 3)
        self.assertEqual(scheduler.keys(1, 1, 1), keys[1:2])

    def test_tokens_are_those_of_their_own_call(self):
        half, tokens, other = self.engine.scheduler, list(range(4 * BLOCK)), [7] * BLOCK
        half.new_request(1, tokens, len(tokens), NONE, 0)
        half.new_request(2, other, len(other), NONE, 0)
        half.new_request(3, tokens[:BLOCK], BLOCK, NONE, 0)
        half.append_tokens(3, BLOCK, tokens[BLOCK:])
        self.assertEqual(half.keys(3, 0, 8), half.keys(1, 0, 8))
        self.assertNotEqual(half.keys(2, 0, 1), half.keys(1, 0, 1))
        for bad in (-1, 1 << 32):
            with self.assertRaises(struct.error):
                half.new_request(4, [1, bad], 2, NONE, 0)

    def run_request(self, number, tokens, blocks):
        """A request from its lookup to its end; how many tokens were loaded."""
        engine, half = self.engine, self.engine.scheduler
        half.new_request(number, tokens, len(tokens), NONE, 0)
        found, asynchronous = half.matched(number, 0)
        self.assertFalse(asynchronous)
        half.allocated(number, [blocks], found)
        _sent, _received, bad = engine.step()
        self.assertEqual(bad, set())
        loaded = found
        for i in range(found // BLOCK):
            for layer in range(LAYERS):
                want = content(tokens[: (i + 1) * BLOCK], layer)
                self.assertEqual(bytes(engine.page(layer, blocks[i])), want)
        engine.compute(tokens, blocks, len(tokens))
        n = len(tokens)
        engine.step([(number, n, 0, 0, n, 0, 1)], (), [blocks])
        held, _saved = half.finished(number, (n, 0, 0), n, (), False, [blocks])
        freed = engine.settle()
        self.assertEqual(freed, [number] if held else [])
        return loaded

    def test_what_one_request_computes_another_loads(self):
        tokens = list(range(100, 100 + 3 * BLOCK + 5))
        self.assertEqual(self.run_request(1, tokens, [3, 4, 5, 6]), 0)
        self.assertEqual(self.engine.scheduler.stats()["saves_failed"], 0)
        self.assertEqual(self.engine.worker.stats()["chunks_gathered"], 3)
        self.assertEqual(self.run_request(2, tokens, [10, 11, 12, 13]), 3 * BLOCK)
        self.assertEqual(
            self.run_request(3, tokens[: 2 * BLOCK] + [9] * 20, [20, 21, 22, 23]), 2 * BLOCK
        )
        self.assertEqual(self.engine.worker.stats()["chunks_wasted"], 0)

    def test_a_prompt_that_is_all_cached_leaves_a_token_and_loads_its_block(self):
        tokens = list(range(3 * BLOCK))
        self.run_request(1, tokens, [3, 4, 5])
        half = self.engine.scheduler
        half.new_request(2, tokens, len(tokens), NONE, 0)
        found, _ = half.matched(2, 0)
        self.assertEqual(found, 3 * BLOCK - 1)
        half.allocated(2, [[10, 11, 12]], found)
        self.engine.step()
        for i, block in enumerate([10, 11, 12]):
            want = content(tokens[: (i + 1) * BLOCK], 1)
            self.assertEqual(bytes(self.engine.page(1, block)), want)

    def test_lists_that_do_not_fit_each_other_are_refused(self):
        half, rows = self.engine.scheduler, [(1, 0, 2, 0, 0, 2, 2, 1, 0)]
        for tokens, counts, blocks in (
            ([1], [1], [5]),
            ([1, 2], [2], [5]),
            ([1, 2], [1, 1], [5, 6]),
            ([1, 2], [], []),
        ):
            with self.assertRaises(ValueError):
                half.build(rows, array("I", tokens), array("I", counts), array("i", blocks))
        with self.assertRaises(TypeError):
            half.build(rows, array("H", [1, 2]), array("I", [1]), array("i", [5]))
        with self.assertRaises(ValueError):
            half.allocated(1, [[5], [6]], 0)
        with self.assertRaises(ValueError):
            half.finished(1, (0, 0, 0), 2, (), True, [])

    def counted(self):
        """As vLLM's page shows them: the scheduler's and the workers', added up."""
        engine = self.engine
        own, workers = engine.scheduler.own_stats(), engine.worker.own_stats()
        twice = [name for name in own if own[name] and workers[name] and name != "size"]
        self.assertEqual(twice, [])
        return {name: own.get(name, 0) + workers[name] for name in workers}

    def test_what_both_halves_count_is_told_once(self):
        tokens = list(range(3 * BLOCK + 5))
        self.run_request(1, tokens, [3, 4, 5, 6])
        self.run_request(2, tokens, [10, 11, 12, 13])
        counted = self.counted()
        self.assertEqual((counted["tokens_saved"], counted["saves_failed"]), (3 * BLOCK, 0))
        self.assertEqual((counted["tokens_loaded"], counted["tokens_hit"]), (3 * BLOCK, 3 * BLOCK))
        self.assertEqual(counted["loads_failed"], 0)
        half = self.engine.scheduler
        half.new_request(3, tokens, len(tokens), NONE, 0)
        found, _ = half.matched(3, 0)
        half.allocated(3, [[20, 21, 22, 23]], found)
        self.engine.owner._opened.close_server()
        self.engine.step()
        self.assertEqual(half.stats()["loads_failed"], 1)
        self.assertEqual(self.counted()["loads_failed"], 1)
        half.new_request(4, [7] * 20, 20, NONE, 0)
        self.engine.step([(4, 20, 0, 0, 20, 0, 1)], (), [[24, 25]])
        self.engine.settle()
        self.counted()

    def test_an_owner_that_dies_is_blocks_to_recompute(self):
        tokens = list(range(2 * BLOCK + 3))
        self.run_request(1, tokens, [3, 4, 5])
        half = self.engine.scheduler
        half.new_request(2, tokens, len(tokens), NONE, 0)
        found, _ = half.matched(2, 0)
        half.allocated(2, [[10, 11, 12]], found)
        self.engine.owner._opened.close_server()
        _sent, _received, bad = self.engine.step()
        self.assertEqual(bad, {(0, 10), (0, 11)})

    def test_preempted_requests_begin_again(self):
        tokens = list(range(2 * BLOCK + 3))
        half = self.engine.scheduler
        half.new_request(1, tokens, len(tokens), NONE, 0)
        self.assertEqual(half.matched(1, 0), (0, False))
        half.allocated(1, [[3, 4, 5]], 0)
        self.engine.step()
        self.engine.compute(tokens, [3, 4, 5], 2 * BLOCK)
        self.engine.step([(1, len(tokens), 0, 0, len(tokens), 0, 1)], (), [[3, 4, 5]])
        half.preempted([1])
        self.engine.step()
        self.engine.settle()
        self.assertEqual(half.matched(1, 0), (2 * BLOCK, False))
        ended = half.finished(1, (0, 0, 0), len(tokens), (), True, [[]])
        self.assertEqual(ended, (False, 0))


NONE = (c.Extra * 0)()


if __name__ == "__main__":
    unittest.main()
