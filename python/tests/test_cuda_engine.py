"""Both halves of connector.h under a fake engine whose paged KV cache is torch tensors, on a GPU.

The KV of a token is a function of all tokens up to it, computed by kernels on the engine's stream,
which the host never waits for: the device is several steps behind (and sometimes made to sleep), so
a copy that is not ordered with that stream reads what is not written yet, or writes what is still
read. Before each step every position that a model would read is compared on the device with the
function; one wrong element fails. Requests share beginnings, push each other out, are aborted at
any moment, their prompts are cut into chunks, and blocks are given away the moment they are free.

TESSERA_TEST_DEVICE=cpu runs the same over host memory.
"""

import os
import random
import tempfile
import time
import unittest
from array import array
from collections import deque
from dataclasses import dataclass, field

from tessera import _c as c
from tessera._connector import GroupShape, ModelShape, SchedulerHalf, WorkerHalf, page_layout
from tessera.owner import EngineCache

try:
    import torch
except ImportError:
    torch = None

DEVICE = os.environ.get("TESSERA_TEST_DEVICE") or (
    "cuda" if torch and torch.cuda.is_available() else None
)
WHY_NOT = "no torch" if torch is None else "torch sees no CUDA device"
LAYERS, BLOCK, BLOCKS, HEADS, DIM = 4, 16, 56, 2, 32
PAGE = 2 * BLOCK * HEADS * DIM * 2  # bytes of a block in one layer, bf16
LENGTH = 256  # of a request at most
BUDGET, RUNNING_MAX, LOADING_MAX, BEHIND_MAX = 96, 12, 2, 6
NO_EXTRAS = (c.Extra * 0)()


def prefix_hashes(tokens):
    """For each token a number of all tokens up to it, as torch's int64 has it."""
    state, out = 1, []
    for token in tokens:
        state = (state * 0x9E3779B97F4A7C15 + token + 1) & (2**64 - 1)
        state ^= state >> 29
        out.append(state - 2**64 if state >> 63 else state)
    return out + [0] * (LENGTH - len(out))


@dataclass(eq=False)
class Request:
    number: int
    row: int  # of the table of hashes
    tokens: list
    n_prompt: int
    end: int  # how many tokens it has when it stops
    overrun: int  # tokens that are scheduled beyond that before its end is seen
    known: int = 0
    told: int = 0
    table: list = field(default_factory=list)
    n_computed: int = 0
    n_in_flight: int = 0
    n_placeholders: int = 0
    life: int = 0  # preemptions
    loading: int = 0  # tokens
    received: bool = False
    ended: bool = False

    def restart(self):
        self.life += 1
        self.n_computed = self.n_in_flight = self.n_placeholders = 0
        self.table, self.loading, self.received = [], 0, False


class Memory:
    """The paged KV cache, and the kernels over it."""

    def __init__(self, sequences, crossed, default_stream):
        self.cuda = DEVICE == "cuda"
        self.stream = None
        if self.cuda:
            self.stream = torch.cuda.default_stream() if default_stream else torch.cuda.Stream()
        shape = (2, BLOCK, HEADS, DIM)
        if crossed:  # all layers of a block beside each other
            whole = torch.zeros((BLOCKS, LAYERS, *shape), dtype=torch.bfloat16, device=DEVICE)
            self.layers = [whole[:, i] for i in range(LAYERS)]
        else:
            self.layers = [
                torch.zeros((BLOCKS, *shape), dtype=torch.bfloat16, device=DEVICE)
                for _ in range(LAYERS)
            ]
        self.block_stride = self.layers[0].stride(0) * 2
        self.bits = [layer.view(torch.int16) for layer in self.layers]
        noise = torch.Generator().manual_seed(7)
        factors = torch.randint(1, 2**62, (LAYERS, 2, HEADS, DIM), generator=noise)
        self.factors = (factors | 1).to(DEVICE)
        hashes = [prefix_hashes(tokens) for tokens in sequences]
        self.hashes = torch.tensor(hashes, device=DEVICE).flatten()
        self.wrong = torch.zeros((20000, LAYERS), dtype=torch.int64, device=DEVICE)
        self.behind = deque()
        if self.cuda:
            torch.cuda.synchronize()

    def layout(self):
        pages = [layer.data_ptr() for layer in self.layers]
        return page_layout(pages, self.block_stride, PAGE, BLOCK, BLOCKS, self.cuda)

    def upload(self, places):
        """[index of a hash, block, place in the block] of each, without waiting for the device."""
        table = torch.tensor(places, dtype=torch.int64).reshape(-1, 3).t().contiguous()
        if not self.cuda:
            return table
        return table.pin_memory().to(DEVICE, non_blocking=True)

    def content(self, layer, at):
        hashes = self.hashes[at[0]].reshape(-1, 1, 1, 1)
        return ((hashes * self.factors[layer]) >> 24).to(torch.int16)

    def compare(self, step, layer, at):
        differs = self.bits[layer][at[1], :, at[2]] != self.content(layer, at)
        self.wrong[step, layer] += differs.sum()

    def write(self, layer, at):
        self.bits[layer][at[1], :, at[2]] = self.content(layer, at)

    def sleep(self, cycles):
        """The device falls behind the host: 10 ms at most."""
        if self.cuda and cycles:
            torch.cuda._sleep(cycles)

    def step_queued(self):
        if not self.cuda:
            return
        event = torch.cuda.Event()
        event.record(self.stream)
        self.behind.append(event)
        if len(self.behind) > BEHIND_MAX:
            self.behind.popleft().synchronize()

    def verdict(self):
        """(elements that were wrong, the first step in which one was)."""
        if self.cuda:
            torch.cuda.synchronize()
        by_step = self.wrong.sum(dim=1)
        bad = by_step.nonzero()
        return int(by_step.sum()), int(bad[0]) if len(bad) else None


class Engine:
    def __init__(self, caches, shape, requests, seed, crossed=False, stream="own"):
        self.chance = random.Random(seed)
        self.memory = Memory([r.tokens for r in requests], crossed, stream == "default")
        self.scheduler = SchedulerHalf(caches[0].handle, shape)
        self.queue, self.chained = self.memory.stream, stream == "chained"
        if stream in ("wrong", "chained"):
            self.queue = torch.cuda.Stream()
        native = self.queue.cuda_stream if self.queue else 0
        self.worker = WorkerHalf(caches[1].handle, shape, 0, DEVICE, 0, native)
        layout, self.keep = self.memory.layout()
        self.worker.register([layout])
        self.free = list(range(1, BLOCKS))
        self.waiting, self.running = deque(), []
        self.loading, self.held = {}, {}
        self.n_steps = self.n_compared = self.n_preempted = self.n_aborted = 0
        self.spoil = False

    def close(self):
        self.worker.close()
        self.scheduler.close()

    # ---- scheduler ------------------------------------------------------------------------

    def add(self, r):
        self.scheduler.new_request(r.number, r.tokens[: r.n_prompt], r.n_prompt, NO_EXTRAS, 0)
        r.known = r.told = r.n_prompt
        self.waiting.append(r)

    def busy(self):
        return bool(
            self.waiting or self.running or self.loading or self.held or self.scheduler.pending()
        )

    def take_blocks(self, r, n_tokens):
        n = -(-n_tokens // BLOCK) - len(r.table)
        if n > len(self.free):
            return False
        for _ in range(n):
            r.table.append(self.free.pop())  # what was freed last goes first
        return True

    def give_blocks(self, r):
        self.free += r.table
        r.table = []

    def preempt(self, r, preempted):
        self.running.remove(r)
        self.give_blocks(r)
        r.restart()
        self.waiting.appendleft(r)
        preempted.append(r.number)
        self.n_preempted += 1

    def schedule(self):
        """A step: its bytes, what it computes, whether it waits for loads."""
        work, preempted, budget, loads = [], [], BUDGET, False
        for r in list(self.running):
            if r not in self.running or not budget:
                continue
            if r.known + r.n_placeholders >= r.end + r.overrun:
                continue
            n = min(r.known + r.n_placeholders - r.n_computed, budget)
            while r in self.running and not self.take_blocks(r, r.n_computed + n):
                self.preempt(self.running[-1], preempted)
            if r in self.running and n > 0:
                work.append((r, n))
                budget -= n
        while self.waiting and budget and not preempted and len(self.running) < RUNNING_MAX:
            # Those that hold blocks already go first, or they would all wait for each other.
            r = next((x for x in self.waiting if x.received), self.waiting[0])
            external = 0
            if not r.received:
                external, asynchronous = self.find(r)
                if external is None:
                    break
                if asynchronous:
                    if not self.begin_load(r, external):
                        break
                    continue
                r.n_computed = external
            n = min(r.known - r.n_computed, budget)
            if not self.take_blocks(r, r.n_computed + n):
                break
            if not r.received:
                self.scheduler.allocated(r.number, [r.table], external)
                loads = loads or external > 0
            self.waiting.remove(r)
            self.running.append(r)
            work.append((r, n))
            budget -= n
        if preempted:
            self.scheduler.preempted(preempted)
        return self.build(work, loads)

    def find(self, r):
        if r.known > r.told:
            self.scheduler.append_tokens(r.number, r.told, r.tokens[r.told : r.known])
            r.told = r.known
        return self.scheduler.matched(r.number, 0)

    def begin_load(self, r, n):
        if len(self.loading) >= LOADING_MAX or sum(x.received for x in self.waiting) > 1:
            return False
        if not self.take_blocks(r, n):
            return False
        self.scheduler.allocated(r.number, [r.table], n)
        self.waiting.popleft()
        r.loading = n
        self.loading[r.number] = r
        return True

    def build(self, work, loads):
        rows, tokens, counts, blocks, jobs = [], array("I"), array("I"), array("i"), []
        for r, n in work:
            news = r.tokens[r.told : r.known]
            r.told = r.known
            tokens.extend(news)
            counts.append(len(r.table))
            blocks.extend(r.table)
            counters = (r.n_computed, r.n_placeholders, r.n_in_flight)
            rows.append((r.number, *counters, r.known, len(news), 1))
            samples = r.n_computed + n == r.known + r.n_placeholders
            jobs.append((r, r.life, r.n_computed, n, samples, list(r.table)))
            r.n_computed += n
            r.n_in_flight += n
            r.n_placeholders += samples
        return self.scheduler.build(rows, tokens, counts, blocks), jobs, loads

    def process(self, jobs, told):
        """The output of a step."""
        sent, received, output = told
        if output:
            self.scheduler.worker_output(output)
        for number in received:
            r = self.loading.pop(number)
            if r.ended:
                self.give_blocks(r)
                continue
            r.received = True
            r.n_computed = min(r.loading, r.known - 1)
            self.waiting.appendleft(r)
        for number in sent:
            self.give_blocks(self.held.pop(number))
        for r, life, _start, n, samples, _table in jobs:
            if r.ended or r.life != life:
                continue
            r.n_in_flight -= n
            if samples:
                r.n_placeholders -= 1
                r.known += 1
                if r.known == r.end:
                    self.finish(r, False)

    def finish(self, r, aborted):
        r.ended = True
        counters = (r.n_computed, r.n_placeholders, r.n_in_flight)
        news = r.tokens[r.told : r.known]
        held, _saved = self.scheduler.finished(
            r.number, counters, r.known, news, aborted, [r.table]
        )
        self.n_aborted += aborted
        if r.number in self.loading:
            return  # until it is named as received
        (self.running if r in self.running else self.waiting).remove(r)
        if held:
            self.held[r.number] = r
        else:
            self.give_blocks(r)

    # ---- worker ---------------------------------------------------------------------------

    def start(self, data):
        if self.chained:
            self.queue.wait_stream(self.memory.stream)
        self.worker.start(data)

    def execute(self, data, jobs, loads):
        """Queues a step on the engine's stream and waits for nothing but its loads."""
        memory, worker = self.memory, self.worker
        reads, writes = [], []
        for r, _life, start, n, _samples, table in jobs:
            base = r.row * LENGTH
            places = [(base + i, table[i // BLOCK], i % BLOCK) for i in range(start + n)]
            reads += places[:start]
            writes += places[start:]
        self.n_compared += len(reads)
        worker.preemptions(data)
        at_first = loads or self.chance.random() < 0.5
        if at_first:
            self.start(data)
        reads_at, writes_at = memory.upload(reads), memory.upload(writes)
        memory.sleep(self.chance.choice((0, 0, 1_000_000, 20_000_000)))
        for layer in range(LAYERS):
            worker.wait_layer(0, layer)
            if self.spoil and layer == 2 and reads:
                _index, block, place = reads[len(reads) // 2]
                memory.bits[layer][block, 1, place, 1, 5] ^= 1
                self.spoil = False
            if reads:
                memory.compare(self.n_steps, layer, reads_at)
            if writes:
                memory.write(layer, writes_at)
            worker.saved_layer(0, layer)
        memory.step_queued()
        if not at_first:
            self.start(data)
        worker.wait_save()
        sent, received = worker.finished()
        bad = worker.bad_blocks()
        assert not bad, f"blocks that failed to load: {bad}"
        self.n_steps += 1
        return sent, received, worker.output()

    # ---- both -----------------------------------------------------------------------------

    def run(self, requests, depth, aborts=0.02):
        """All requests to their end, up to `depth` steps being scheduled ahead of their outputs."""
        if not self.memory.cuda:
            self.run_all(requests, depth, aborts)
            return
        with torch.cuda.stream(self.memory.stream):
            self.run_all(requests, depth, aborts)

    def run_all(self, requests, depth, aborts):
        chance, coming, flight = self.chance, deque(requests), deque()
        while coming or flight or self.busy():
            assert self.n_steps < 19000, "the engine never comes to rest"
            while coming and (len(self.waiting) < 2 or chance.random() < 0.3):
                self.add(coming.popleft())
            data, jobs, loads = self.schedule()
            if not jobs:
                time.sleep(0.0005)
            flight.append([data, jobs, loads, None])
            if len(flight) > depth or not jobs or chance.random() < 0.5:
                for entry in flight:
                    if entry[3] is None:
                        entry[3] = self.execute(*entry[:3])
            while flight and flight[0][3] and (len(flight) > depth or not jobs):
                entry = flight.popleft()
                self.process(entry[1], entry[3])
            live = [*self.running, *self.waiting, *self.loading.values()]
            live = [r for r in live if not r.ended]
            if live and chance.random() < aborts:
                self.finish(chance.choice(live), True)


def make_requests(seed, n):
    chance = random.Random(seed)

    def some(count):
        return [chance.randrange(3, 9000) for _ in range(count)]

    beginnings = [some(160) for _ in range(6)]
    requests = []
    for i in range(n):
        shared = chance.choice(beginnings)[: chance.randrange(0, 160)]
        prompt = shared + some(chance.randrange(1, 40))
        answer = chance.randrange(1, 48)
        tokens = prompt + some(answer + 4)
        end = len(prompt) + answer
        requests.append(Request(i + 1, i, tokens, len(prompt), end, chance.randrange(3)))
    return requests


def model(**more):
    group = GroupShape(tuple(f"layer{i}" for i in range(LAYERS)), BLOCK, PAGE)
    return ModelShape(
        model="fake",
        weights=b"w",
        identity="bf16 NHD",
        ranks=1,
        groups=(group,),
        **{"chunk_tokens": BLOCK, "flags": ("save_decode",), **more},
    )


@unittest.skipUnless(DEVICE, WHY_NOT)
class TestEngine(unittest.TestCase):
    n_requests = 300 if DEVICE == "cuda" else 120

    def setUp(self):
        self.caches = self.open_caches("1G")

    def open_caches(self, host_size):
        """The scheduler's cache with its server, and the worker's, a client of it."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        options = dict(host_size=host_size, server_socket=os.path.join(folder.name, "s.sock"))
        owner = EngineCache(options, "fake", True)
        self.addCleanup(owner.close)
        client = EngineCache(options, "fake", False, (DEVICE, 0))
        self.addCleanup(client.close)
        self.assertTrue(client.connected(5000))
        return owner, client

    def engine(self, seed, shape, n=None, **more):
        requests = make_requests(seed, n or self.n_requests)
        engine = Engine(self.caches, shape, requests, seed, **more)
        self.addCleanup(engine.close)
        return engine, requests

    def check(self, engine, none_of=("saves_failed", "chunks_wasted")):
        """No wrong byte, nothing lost, nothing kept."""
        scheduler, worker = engine.scheduler.stats(), engine.worker.stats()
        print(
            f"    {DEVICE}: {scheduler['requests']} requests, {engine.n_steps} steps, "
            f"{engine.n_preempted} preemptions, {engine.n_aborted} aborts, "
            f"{scheduler['tokens_hit']} of {scheduler['tokens_asked']} tokens hit, "
            f"{worker['tokens_loaded']} loaded, {worker['tokens_saved']} saved, "
            f"{engine.n_compared} positions compared"
        )
        wrong, step = engine.memory.verdict()
        self.assertEqual(wrong, 0, f"wrong elements, first in step {step}")
        self.assertGreater(worker["tokens_loaded"], 0)
        for name in ("loads_failed", "saves_given_up", *none_of):
            self.assertEqual(worker[name], 0, name)
        self.assertEqual(sorted(engine.free), list(range(1, BLOCKS)), "blocks never given back")
        return scheduler

    def run_schedules(self, seed, depth, shape, none_of=("saves_failed", "chunks_wasted"), **more):
        engine, requests = self.engine(seed, shape, **more)
        engine.run(requests, depth)
        self.check(engine, none_of)
        self.assertGreater(engine.n_preempted, 0)
        self.assertGreater(engine.n_aborted, 0)

    def test_loads_within_the_step(self):
        self.run_schedules(1, 0, model(flags=("load_sync", "save_decode")))

    def test_loads_within_the_step_two_steps_ahead(self):
        self.run_schedules(2, 2, model(flags=("load_sync", "save_decode")), crossed=True)

    def test_loads_between_steps(self):
        self.run_schedules(3, 1, model(flags=("load_async", "save_decode")))

    def test_loads_between_steps_two_steps_ahead(self):
        self.run_schedules(4, 2, model(flags=("load_async", "save_decode")), crossed=True)

    def test_saves_right_behind_the_step_that_wrote(self):
        for seed, load in ((5, "load_sync"), (6, "load_async")):
            shape = model(flags=(load, "save_decode"), boundary="placeholders")
            self.run_schedules(seed, 1, shape)

    def test_larger_chunks_prompts_only(self):
        self.run_schedules(7, 1, model(flags=(), chunk_tokens=2 * BLOCK))

    def test_a_second_engine_loads_what_the_first_has_saved(self):
        shape = model(flags=("load_async", "save_decode"))
        first, requests = self.engine(8, shape, n=60)
        first.run(requests, 1, aborts=0)
        self.check(first)
        second, again = self.engine(8, shape, n=60)
        second.run(again, 1, aborts=0)
        stats = self.check(second)
        whole = sum(r.n_prompt // BLOCK * BLOCK for r in again)
        self.assertGreaterEqual(stats["tokens_hit"], whole)
        self.assertEqual(second.worker.stats()["tokens_saved"], 0)

    def test_a_cache_that_is_too_small(self):
        self.caches = self.open_caches("32M")
        for seed, load in ((12, "load_sync"), (13, "load_async")):
            # What a chunk stands behind may have left, and then it is not saved.
            self.run_schedules(seed, 1, model(flags=(load, "save_decode")), none_of=())

    def test_one_wrong_bit_is_seen(self):
        engine, requests = self.engine(10, model(flags=("load_sync",)), n=20)
        engine.spoil = True
        engine.run(requests, 1)
        wrong, _step = engine.memory.verdict()
        self.assertGreater(wrong, 0)

    @unittest.skipUnless(DEVICE == "cuda", "host memory has no streams")
    def test_an_engine_on_the_default_stream(self):
        for seed, load in ((14, "load_sync"), (15, "load_async")):
            shape = model(flags=(load, "save_decode"), boundary="placeholders")
            self.run_schedules(seed, 1, shape, stream="default")

    @unittest.skipUnless(DEVICE == "cuda", "host memory has no streams")
    def test_a_stream_that_waits_for_the_engines(self):
        shape = model(flags=("load_async", "save_decode"), boundary="placeholders")
        self.run_schedules(11, 2, shape, n=100, stream="chained")

    @unittest.skipUnless(DEVICE == "cuda", "host memory has no streams")
    def test_copies_that_are_not_ordered_with_the_stream_are_seen(self):
        shape = model(flags=("load_async", "save_decode"), boundary="placeholders")
        engine, requests = self.engine(11, shape, n=100, stream="wrong")
        engine.run(requests, 2)
        wrong, _step = engine.memory.verdict()
        self.assertGreater(wrong, 0)


class TestOwnHandle(TestEngine):
    """Both halves in one process: the worker uses the owner's cache, whose pool is page-locked."""

    n_requests = 150 if DEVICE == "cuda" else 60

    def open_caches(self, host_size):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        options = dict(host_size=host_size, server_socket=os.path.join(folder.name, "s.sock"))
        owner = EngineCache(options, "fake", True, (DEVICE, 0))
        self.addCleanup(owner.close)
        worker = EngineCache.join("fake")
        self.addCleanup(worker.close)
        return owner, worker


if __name__ == "__main__":
    unittest.main(verbosity=2)
