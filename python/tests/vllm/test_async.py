"""The connector under vLLM's real schedulers, synchronous and asynchronous, with a fake model.

rig.py has the model: one wrong byte anywhere fails. Requests share beginnings, the KV memory is
small (requests push each other out), prompts are cut into chunks, n-gram drafts are accepted and
rejected, requests are aborted and preempted at any moment, up to four steps are in flight, and the
KV may be spread over two ranks of which one loses what it has.
"""

import itertools
import logging
import os
import random
import time
import unittest
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import engines  # sets the environment first
import torch
from rig import AHEAD_MAX, BLOCK, BLOCKS, LAYERS, MINOR, Rig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from tessera.vllm import TesseraConnector
from tessera.vllm.handover import told
from tessera.vllm.messages import TesseraMetadata
from tessera.why import PROMPTS


def invent(chance, beginnings):
    """(tokens of prompt and answer, tokens of the prompt, tokens to generate). Answers say the same
    over and over, with slips, so that n-gram drafts are right often and wrong often."""
    base = chance.choice(beginnings)[: chance.randrange(0, 160)]
    prompt = base + [chance.randrange(3, 9000) for _ in range(chance.randrange(1, 40))]
    phrases = [[chance.randrange(3, 9000) for _ in range(chance.randrange(3, 9))] for _ in range(3)]
    answer = []
    while len(answer) < 80:  # more than is wanted: steps that are under way at the end go on
        answer += chance.choice(phrases)
        if chance.random() < 0.3:
            answer[-1] = chance.randrange(3, 9000)
    return prompt + answer, len(prompt), chance.randrange(1, 48)


class TestSchedules(unittest.TestCase):
    def run_schedules(self, asynchronous, depth, seed, n_requests, rig_options=None, **options):
        chance = random.Random(seed)
        rig = Rig(options, asynchronous, **(rig_options or {}))
        self.addCleanup(rig.close)
        beginnings = [[chance.randrange(3, 9000) for _ in range(200)] for _ in range(4)]
        waiting = deque((f"r{i}", *invent(chance, beginnings)) for i in range(n_requests))
        self.run_all(rig, chance, waiting, depth)
        rig.drain()
        self.check(rig, n_requests, depth)
        return rig

    def run_all(self, rig, chance, waiting, depth):
        flight = deque()  # [step, who samples in it, what workers made of it], oldest first
        live = []
        while waiting or flight or rig.scheduler.has_requests():
            while waiting and (not live or chance.random() < 0.5):
                name, *rest = waiting.popleft()
                rig.add(name, *rest)
                live.append(name)
            output, sampling = rig.schedule()
            flight.append([output, sampling, None])
            # The workers may run a step at once, or only when its result is wanted.
            if chance.random() < 0.5:
                self.run_flight(rig, flight)
            if len(flight) > depth or not output.num_scheduled_tokens:
                self.run_flight(rig, flight)
                while flight:
                    output, sampling, result = flight.popleft()
                    rig.update(output, result)
                    if len(flight) <= depth and output.num_scheduled_tokens:
                        break
            self.disturb(rig, chance, live, flight)
            live = [name for name in live if name in rig.scheduler.requests]

    def disturb(self, rig, chance, live, flight):
        if live and chance.random() < 0.02:
            gone = live.pop(chance.randrange(len(live)))
            rig.scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
        # Before 0.30 vLLM preempts only within schedule().
        may_preempt = rig.scheduler.running and (AHEAD_MAX > 1 or not flight)
        if may_preempt and chance.random() < 0.02:
            rig.preempt(chance.choice(rig.scheduler.running))
        if len(rig.ranks) > 1 and chance.random() < 0.01:
            rig.evict(chance.randrange(len(rig.ranks)))

    def run_flight(self, rig, flight):
        for entry in flight:
            if entry[2] is None:
                entry[2] = rig.execute(entry[0], entry[1])

    def check(self, rig, n_requests, depth):
        rig.check_answers()
        counters = rig.scheduler.connector._scheduler.stats()
        workers = [one.connector._worker.stats() for one in rig.ranks]
        drafts = f", {rig.accepted} of {rig.proposed} drafts accepted" if rig.proposer else ""
        print(
            f"    {n_requests} requests, {depth} ahead, {counters['steps']} steps, "
            f"{rig.preemptions} preemptions{drafts}, "
            f"{counters['tokens_hit']} of {counters['tokens_asked']} tokens hit, "
            f"{sum(one['tokens_saved'] for one in workers)} saved, {rig.checked} positions compared"
        )
        self.assertGreater(counters["tokens_hit"], 0)
        self.assertGreater(rig.preemptions, 0)
        self.assertEqual(counters["loads_failed"], 0)
        self.assertEqual(rig.scheduler.connector._complaints, set())
        # One rank shares the handle of its scheduler's process; several are clients.
        owner = rig.scheduler.connector._cache.handle.value
        shares = [one.connector._cache.handle.value == owner for one in rig.ranks]
        self.assertEqual(shares, [len(rig.ranks) == 1] * len(rig.ranks))
        for one, worker in zip(rig.ranks, workers):
            self.assertEqual(one.connector._complaints, set())
            if len(rig.ranks) == 1:
                self.assertEqual(worker["chunks_wasted"], 0)
        if rig.proposer:
            self.assertGreater(rig.accepted, 0)
            self.assertGreater(rig.proposed, rig.accepted)
        free = rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self.assertEqual(free, BLOCKS - 1, "blocks were never given back")

    def test_synchronous(self):
        self.run_schedules(False, 0, 1, 120, save_decode=True)

    def test_asynchronous_one_to_four_steps_ahead(self):
        for depth in range(1, AHEAD_MAX + 1):
            with self.subTest(depth=depth):
                self.run_schedules(True, depth, 1 + depth, 160, save_decode=True)

    def test_loads_between_steps(self):
        self.run_schedules(True, 1, 4, 160, save_decode=True, load="async")

    def test_model_runner_v2(self):
        self.run_schedules(False, 0, 40, 120, dict(runner=2), save_decode=True)
        self.run_schedules(True, 1, 41, 120, dict(runner=2), save_decode=True)

    def test_prompts_only_and_larger_chunks(self):
        self.run_schedules(True, 1, 5, 120, chunk_size=2 * BLOCK)

    def test_drafts_synchronous(self):
        self.run_schedules(False, 0, 6, 120, dict(drafts=3), save_decode=True)

    def test_drafts_one_to_four_steps_ahead(self):
        for depth in range(1, AHEAD_MAX + 1):
            with self.subTest(depth=depth):
                rig = dict(drafts=depth)
                self.run_schedules(True, depth, 10 + depth, 120, rig, save_decode=True)

    def test_drafts_and_loads_between_steps(self):
        rig = dict(drafts=4)
        depth = min(3, AHEAD_MAX)
        self.run_schedules(True, depth, 20, 120, rig, save_decode=True, load="async")

    def test_two_ranks(self):
        for depth in (0, min(2, AHEAD_MAX), AHEAD_MAX):
            with self.subTest(depth=depth):
                rig = dict(ranks=2, drafts=3 if depth in (1, 2) else 0)
                self.run_schedules(depth > 0, depth, 30 + depth, 100, rig, save_decode=True)

    def test_pipeline_stages(self):
        for ranks, depth in ((1, 0), (1, min(2, AHEAD_MAX)), (2, 1)):
            with self.subTest(ranks=ranks, depth=depth):
                rig = dict(ranks=ranks, stages=2)
                self.run_schedules(depth > 0, depth, 50 + depth, 100, rig, save_decode=True)


class TestResume(unittest.TestCase):
    def test_preempted_and_resumed_in_one_step_it_is_loaded(self):
        """As vLLM's reset_prefix_cache(reset_running_requests=True) does it."""
        for load in ("sync", "async"):
            with self.subTest(load):
                rig = Rig(dict(load=load), False)
                self.addCleanup(rig.close)
                request = rig.add("r", list(range(10, 10 + 8 * BLOCK)), 3 * BLOCK + 5, 20)
                for _ in range(6):
                    output, sampling = rig.schedule()
                    rig.update(output, rig.execute(output, sampling))
                    rig.worker._worker.drain(10000)
                self.assertEqual(request.status, RequestStatus.RUNNING)
                rig.scheduler.reset_prefix_cache(reset_running_requests=True)
                rig.drain()
                rig.check_answers()
                counters = rig.scheduler.connector._scheduler.stats()
                self.assertEqual(counters["tokens_hit"], 3 * BLOCK)


class TestWhy(unittest.TestCase):
    def test_the_log_says_why_nothing_is_found_once_a_cause(self):
        rig = Rig({}, False)
        self.addCleanup(rig.close)
        with self.assertLogs("vllm.tessera", "INFO") as log:
            for i in range(2):  # a prompt without a whole chunk
                rig.add(f"short {i}", list(range(10, 10 + 8 * BLOCK)), BLOCK - 1, 3)
                rig.drain()
            for i in range(PROMPTS + 1):  # no two begin alike
                rig.add(f"new {i}", list(range(i, i + 8 * BLOCK)), BLOCK + 5, 1)
                rig.drain()
        lines = [line for line in log.output if "why no hit" in line]
        self.assertEqual(len(lines), 2, lines)
        self.assertIn("no whole chunk", lines[0])
        self.assertIn(f"the first {PROMPTS} prompts all begin", lines[1])

    def test_a_cache_that_finds_says_nothing(self):
        rig = Rig({}, False)
        self.addCleanup(rig.close)
        tokens = list(range(10, 10 + 8 * BLOCK))
        with self.assertLogs("vllm.tessera", "INFO") as log:
            logging.getLogger("vllm.tessera").info("assertLogs wants a line")
            for i in range(2):
                rig.add(f"r {i}", tokens, 4 * BLOCK + 5, 3)
                rig.drain()
                rig.worker._worker.drain(10000)
        self.assertEqual([line for line in log.output if "why no hit" in line], [])


class TestWholeHits(unittest.TestCase):
    TOKENS = list(range(10, 10 + 8 * BLOCK))

    def hit(self, rig, name):
        before = rig.scheduler.connector._scheduler.stats()["tokens_hit"]
        rig.add(name, self.TOKENS, 4 * BLOCK + 5, 6)
        rig.drain()
        rig.check_answers()
        return rig.scheduler.connector._scheduler.stats()["tokens_hit"] - before

    def test_the_library_hears_of_them_no_more(self):
        """Nothing is left to save of a prompt that is found: no step names it."""
        rig = Rig({}, False)
        self.addCleanup(rig.close)
        half, rows = rig.scheduler.connector._scheduler, []

        def build(named, *rest, build=half.build):
            rows.extend(named)
            return build(named, *rest)

        half.build = build
        self.assertEqual(self.hit(rig, "first"), 0)
        self.assertGreater(len(rows), 0)
        rows.clear()
        self.assertEqual(self.hit(rig, "again"), 4 * BLOCK)
        self.assertEqual(rows, [])

    def test_what_is_computed_instead_of_a_failed_load_is_saved(self):
        folder = engines.scratch()
        self.addCleanup(folder.cleanup)  # when the engine is closed
        disk = dict(disk_path=folder.name, disk_size="64M", disk_segment_size="4M", load="async")
        rig = Rig(disk, False)
        self.assertEqual(self.hit(rig, "first"), 0)
        rig.close()
        expected = rig.ranks[0].expected["first"]
        self.assertEqual(damage(folder.name, expected[0, 2 * BLOCK : 2 * BLOCK + 2].tobytes()), 1)
        rig = Rig(disk, False)
        self.addCleanup(rig.close)
        rig.ranks[0].may_fail = True
        self.hit(rig, "damaged")
        self.assertEqual(rig.scheduler.connector._scheduler.stats()["loads_failed"], 1)
        self.assertEqual(self.hit(rig, "stored again"), 4 * BLOCK)
        self.assertEqual(rig.scheduler.connector._scheduler.stats()["loads_failed"], 1)


def damage(folder, what):
    """Changes one byte wherever those are in a file of a folder; how often."""
    n = 0
    for file in (os.path.join(root, name) for root, _, names in os.walk(folder) for name in names):
        if not os.path.isfile(file):
            continue
        with open(file, "r+b") as stream:
            data = stream.read()
            at = data.find(what)
            while at >= 0:
                stream.seek(at)
                stream.write(bytes([data[at] ^ 1]))
                n, at = n + 1, data.find(what, at + 1)
    return n


class TestReset(unittest.TestCase):
    def test_what_is_computed_afterwards_is_for_this_engine_only(self):
        tokens = list(range(10, 10 + 8 * BLOCK))

        def hit(rig, name):
            before = rig.scheduler.connector._scheduler.stats()["tokens_hit"]
            rig.add(name, tokens, 4 * BLOCK + 5, 3)
            rig.drain()
            return rig.scheduler.connector._scheduler.stats()["tokens_hit"] - before

        with engines.scratch() as folder:
            disk = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
            rig = Rig(disk, False)
            self.assertEqual(hit(rig, "first"), 0)
            self.assertEqual(hit(rig, "again"), 4 * BLOCK)
            self.assertTrue(rig.scheduler.reset_prefix_cache(True, reset_connector=True))
            deadline = time.monotonic() + 10
            while rig.scheduler.connector._scheduler.stats()["tokens_saved"] == 4 * BLOCK:
                self.assertEqual(hit(rig, f"new {time.monotonic()}"), 0)
                self.assertLess(time.monotonic(), deadline)
            self.assertEqual(hit(rig, "found"), 4 * BLOCK)
            rig.check_answers()
            rig.close()
            restarted = Rig(disk, False)
            found = hit(restarted, "other weights")
            restarted.close()
            self.assertEqual(found, 0)


class TestIdle(unittest.TestCase):
    def test_a_step_with_nothing_under_way_asks_no_worker(self):
        rig = Rig({}, True)
        self.addCleanup(rig.close)
        rig.add("r", list(range(10, 10 + 8 * BLOCK)), 3 * BLOCK + 5, 60)
        calls = []

        class Counting:
            def __init__(self, half):
                self.half = half

            def __getattr__(self, name):
                calls.append(name)
                return getattr(self.half, name)

        n_idle = 0
        for _ in range(40):
            if rig.worker._half is rig.worker._worker:
                rig.worker._half = rig.worker._worker = Counting(rig.worker._worker)
            calls.clear()
            output, sampling = rig.schedule()
            rig.update(output, rig.execute(output, sampling))
            # The rig asks for bad blocks before the step has begun, too.
            asked = [name for name in calls if name not in ("stats", "bad_blocks")]
            data = output.kv_connector_metadata.data
            n_idle += not data
            self.assertEqual(bool(asked), bool(data), (asked, data))
            time.sleep(0.001)  # for saves to end
        self.assertGreater(n_idle, 20)
        rig.drain()
        rig.check_answers()


class TestLayers(unittest.TestCase):
    def test_what_follows_a_wait_for_a_layer_comes_after_its_load(self):
        """A load that cannot fail may only be queued when the wait returns, on the stream that the
        worker was opened with."""
        rig = Rig(dict(layerwise=True), False)
        self.addCleanup(rig.close)
        worker, calls = rig.worker, []
        worker._worker.wait_layer = lambda *at: calls.append(at)
        worker._order_engine = lambda: calls.append("ordered")
        worker.bind_connector_metadata(TesseraMetadata(wait=True))
        for layer in LAYERS:
            worker.wait_for_layer_load(layer)
        self.assertEqual(calls, [(0, 0), "ordered", (0, 1), "ordered"])
        worker.clear_connector_metadata()


class TestGivingUp(unittest.TestCase):
    """A half that fails in the middle of work: nothing wrong is read, nothing waits for ever."""

    def break_half(self, half, name, asynchronous, load, ranks, runner):
        rig = Rig(dict(load=load, save_decode=True), asynchronous, ranks=ranks, runner=runner)
        self.addCleanup(rig.close)
        tokens = list(range(10, 10 + 12 * BLOCK))
        rig.add("first", tokens, 6 * BLOCK, 3)
        rig.drain()
        for one in rig.ranks:
            one.may_fail = True

        def broken(*_args):
            raise OSError("out of order")

        worker = rig.ranks[-1].connector._worker
        setattr(rig.scheduler.connector._scheduler if half == "scheduler" else worker, name, broken)
        with self.assertLogs("vllm.tessera", "WARNING") as log:
            for i in range(6):
                rig.add(f"r{i}", tokens[: 3 * BLOCK] + [i] + tokens[3 * BLOCK :], 6 * BLOCK, 20)
            rig.drain()
        rig.check_answers()
        off = [line for line in log.output if "off, vLLM runs without it" in line]
        self.assertEqual(len(off), 1, log.output)
        self.assertIn("out of order", " ".join(log.output))
        free = rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self.assertEqual(free, BLOCKS - 1, "blocks were never given back")

    def test_calls_that_fail(self):
        calls = (
            ("scheduler", "allocated"),
            ("scheduler", "build"),
            ("scheduler", "finished"),
            ("worker", "start"),
            ("worker", "finished"),
        )
        ways = itertools.product(calls, (False, True), ("sync", "async"), (1, 2), (1, 2))
        for (half, name), asynchronous, load, ranks, runner in ways:
            case = (half, name, asynchronous, load, ranks, runner)
            with self.subTest(case):
                self.break_half(*case)


class TestRanks(unittest.TestCase):
    """A hit is what every rank holds."""

    def setUp(self):
        self.rig = Rig({}, True, ranks=2)
        self.addCleanup(self.rig.close)
        self.asked = 0

    def hit(self):
        """Tokens that a request of always the same prompt finds."""
        before = self.rig.scheduler.connector._scheduler.stats()["tokens_hit"]
        self.asked += 1
        self.rig.add(f"r{self.asked}", list(range(10, 10 + 6 * BLOCK)), 5 * BLOCK + 3, 5)
        self.rig.drain()
        return self.rig.scheduler.connector._scheduler.stats()["tokens_hit"] - before

    def evict(self, rank):
        """All of a rank's chunks; a worker lets go of what it has loaded a moment later."""
        gone, give_up = 0, time.monotonic() + 20
        while gone < 5 and time.monotonic() < give_up:
            gone += self.rig.evict(rank)
            time.sleep(0.001)
        self.assertEqual(gone, 5)

    def test_what_one_rank_has_evicted_is_computed_by_both(self):
        self.assertEqual(self.hit(), 0)
        self.assertEqual(self.hit(), 5 * BLOCK)
        for rank in (1, 0):
            self.evict(rank)
            self.assertEqual(self.hit(), 0, f"rank {rank} has none")
            self.assertEqual(self.hit(), 5 * BLOCK, "stored again by that rank")
        self.rig.check_answers()

    def test_only_the_rank_that_lacks_a_chunk_stores_it_again(self):
        self.hit()
        saved = [one.connector._worker.stats()["tokens_saved"] for one in self.rig.ranks]
        self.evict(1)
        self.hit()
        again = [one.connector._worker.stats()["tokens_saved"] for one in self.rig.ranks]
        self.assertEqual([b - a for a, b in zip(saved, again)], [0, 5 * BLOCK])


class TestKeys(unittest.TestCase):
    """What tokens do not tell is part of every key."""

    def setUp(self):
        self.rig = Rig({}, False)
        self.addCleanup(self.rig.close)
        self.tokens = list(range(10, 10 + 4 * BLOCK + 3))
        self.count = 0

    def found(self, **more):
        """Tokens that a request of this identity finds; what it computes is saved afterwards."""
        self.count += 1
        connector = self.rig.scheduler.connector
        request = Request(
            request_id=f"k{self.count}",
            prompt_token_ids=self.tokens,
            pooling_params=None,
            sampling_params=SamplingParams(max_tokens=1),
            **more,
        )
        connector.on_new_request(request)
        found, _asynchronous = connector.get_num_new_matched_tokens(request, 0)
        blocks = list(range(1, 6))

        class Blocks:
            def get_block_ids(self):
                return (blocks,)

        connector.update_state_after_alloc(request, Blocks(), found)
        self.step()
        request.num_computed_tokens = len(self.tokens)
        request.status = RequestStatus.FINISHED_STOPPED
        connector.request_finished_all_groups(request, (blocks,))
        give_up = time.monotonic() + 20
        while time.monotonic() < give_up:  # the worker saves in a thread of its own
            if not connector.has_pending_push_work():
                return found
            self.step()
            time.sleep(0.001)
        raise AssertionError("it never settles")

    def step(self):
        output = SchedulerOutput.make_empty()
        output.has_sync_kv_loads = True
        output.kv_connector_metadata = self.rig.scheduler.connector.build_connector_meta(output)
        worker = self.rig.worker
        worker.handle_preemptions(output.kv_connector_metadata)
        worker.bind_connector_metadata(output.kv_connector_metadata)
        worker.start_load_kv(None)
        worker.wait_for_save()
        worker.get_transfer_results(set())
        meta = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        self.rig.scheduler.connector.update_connector_output(
            KVConnectorOutput(kv_connector_worker_meta=meta)
        )

    def image(self, digest):
        return [
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=digest,
                mm_position=PlaceholderRange(offset=4, length=8),
            )
        ]

    def test_images_salts_and_adapters(self):
        from vllm.lora.request import LoRARequest

        whole = 4 * BLOCK
        for identity in (
            {},
            dict(mm_features=self.image("cat")),
            dict(mm_features=self.image("dog")),
            dict(cache_salt="tenant"),
            dict(lora_request=LoRARequest("poems", 1, "/nonexistent/poems")),
            dict(lora_request=LoRARequest("prose", 2, "/nonexistent/prose")),
        ):
            self.assertEqual(self.found(**identity), 0, identity)
            self.assertEqual(self.found(**identity), whole, identity)

    def test_prompts_that_tokens_do_not_tell_are_left_alone(self):
        embeds = torch.zeros((len(self.tokens), 4))
        self.assertEqual(self.found(), 0)
        self.assertEqual(self.found(prompt_embeds=embeds), 0)
        self.assertEqual(self.found(), 4 * BLOCK)


class TestRefused(unittest.TestCase):
    """What the connector does not work with: off, by name, and the engine goes on."""

    def off(self, change, options=None):
        rig = Rig({}, False)
        self.addCleanup(rig.close)
        change(rig)
        with self.assertLogs("vllm.tessera", "WARNING") as log:
            connector = TesseraConnector(rig.config, KVConnectorRole.SCHEDULER, rig.kv_config)
        self.assertEqual(len(log.output), 1)
        output = SchedulerOutput.make_empty()
        self.assertEqual(connector.build_connector_meta(output).data, b"")
        self.assertFalse(connector.has_pending_push_work())
        return log.output[0]

    def test_features(self):
        def pipeline(rig):
            rig.config.parallel_config.pipeline_parallel_size = 2

        def context(rig):
            rig.config.parallel_config.decode_context_parallel_size = 2

        def scales(rig):
            rig.config.cache_config.calculate_kv_scales = True

        def heads(rig):
            rig.kv_config.kv_cache_layout = "LHBNC"

        def bytes_apart(rig):
            rig.kv_config.kv_cache_layout = "BHLNC"

        def drafts(rig):
            rig.config.speculative_config = SimpleNamespace(method="draft_model")

        def states(rig):
            (group,) = rig.kv_config.kv_cache_groups
            spec = MambaSpec(
                block_size=BLOCK, shapes=((2, 4),), dtypes=(torch.float32,), mamba_type="mamba2"
            )
            rig.kv_config.kv_cache_groups = [KVCacheGroupSpec(group.layer_names, spec)]

        def precision(rig):
            (group,) = rig.kv_config.kv_cache_groups
            other = replace(group.kv_cache_spec, dtype=torch.float16)
            rig.kv_config.kv_cache_groups = [group, KVCacheGroupSpec(["other"], other)]

        def option(rig):
            rig.config.kv_transfer_config.kv_connector_extra_config["chunk_sise"] = 1

        for change, word in (
            (pipeline, "pipeline parallelism"),
            (context, "context parallelism"),
            (scales, "calculate_kv_scales"),
            (heads, "LHBNC"),
            (bytes_apart, "BHLNC"),
            (drafts, "draft model (draft_model)"),
            (states, "mamba_cache_mode none"),
            (precision, "mixed precision"),
            (option, "chunk_size"),
        ):
            if word in ("LHBNC", "BHLNC") and MINOR < 29:
                continue  # vLLM has no such layouts
            if word == "mixed precision" and MINOR < 32:
                continue  # several groups are refused, or vLLM clears nothing
            with self.subTest(word):
                self.assertIn(word, self.off(change))

    def test_memory_of_another_device(self):
        rig = Rig({}, False)
        self.addCleanup(rig.close)
        worker = TesseraConnector(rig.config, KVConnectorRole.WORKER, rig.kv_config)
        worker.register_kv_caches({name: torch.zeros(4, device="meta") for name in LAYERS})
        handshake = worker.get_handshake_metadata()
        self.assertIn("meta", handshake.trouble)
        with self.assertLogs("vllm.tessera", "WARNING") as log:
            rig.scheduler.connector.set_xfer_handshake_metadata_pp_aware({(0, 0): handshake})
        self.assertIn("a device of kind 'meta'", log.output[0])
        rig.add("r", list(range(100)), 40, 5)
        rig.drain()

    def test_a_library_that_is_not_there(self):
        from tessera import _lib

        loaded, _lib._loaded = _lib._loaded, None
        named = os.environ.pop("TESSERA_LIBRARY")
        os.environ["TESSERA_LIBRARY"] = "/nonexistent/libtessera.so"
        try:
            with self.assertLogs("vllm.tessera", "WARNING") as log:
                rig = Rig({}, False)
            self.assertIn("libtessera.so could not be loaded", log.output[0])
            rig.add("r", list(range(100)), 40, 5)
            rig.drain()
        finally:
            os.environ["TESSERA_LIBRARY"] = named
            _lib._loaded = loaded

    def test_a_disk_that_is_full(self):
        with engines.full_disk() as folder:
            disk = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
            rig = Rig(disk, False)
            with self.assertLogs("vllm.tessera", "WARNING") as log:
                for i in range(8):
                    rig.add(f"r{i}", [i % 4, *range(10, 200)], 100, 5)
                    rig.drain()
                counters = rig.scheduler.connector._scheduler.stats()
                rig.close()
            rig.check_answers()
            self.assertEqual(counters["tokens_hit"], 4 * (100 // BLOCK * BLOCK))
            full = [line for line in log.output if "tier disk: cannot write entries" in line]
            self.assertEqual(len(full), 1, log.output)

    def test_a_store_that_another_process_has(self):
        with engines.scratch() as folder:
            disk = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
            first = Rig(disk, False)
            with self.assertLogs("vllm.tessera", "WARNING") as log:
                second = Rig(disk, False)
            self.assertIn("off", log.output[0])
            second.add("r", list(range(100)), 40, 5)
            second.drain()
            second.close()
            first.close()


@unittest.skipIf(MINOR < 32, "draft models are refused")
class TestDrafts(unittest.TestCase):
    """EAGLE and MTP: the groups in which hits are one block shorter are those of vLLM's own prefix
    cache. What that does is tested in C (connector/test_states)."""

    def coordinator(self, kv_config):
        from vllm.v1.core.kv_cache_coordinator import get_kv_cache_coordinator

        return get_kv_cache_coordinator(
            kv_config, 4096, 4096, True, True, False, 1, 1, BLOCK, BLOCK, num_prefill_lookahead=1
        )

    def test_groups_are_those_of_vllm(self):
        from tessera.vllm.shape import Refused, model_shape

        rig = Rig({}, False)
        self.addCleanup(rig.close)
        drops = True
        rig.config.speculative_config = SimpleNamespace(
            method="eagle",
            use_eagle=lambda: True,
            use_eagle_block_drop=lambda: drops,
            use_multi_module_mtp=lambda: False,
            draft_model_config=rig.config.model_config,
            draft_load_config=None,
        )
        (group,) = rig.kv_config.kv_cache_groups
        plain = model_shape(Rig({}, False).config, rig.kv_config, {}).identity
        for named in ([False], [True], [False, True], [False, False]):
            with self.subTest(named):
                rig.kv_config.kv_cache_groups = [
                    KVCacheGroupSpec([f"layer{i}"], group.kv_cache_spec, is_eagle_group=one)
                    for i, one in enumerate(named)
                ]
                shape = model_shape(rig.config, rig.kv_config, {})
                ours = {i for i, one in enumerate(shape.groups) if one.draft_tokens}
                self.assertEqual(ours, self.coordinator(rig.kv_config).eagle_group_ids)
                self.assertNotEqual(shape.identity, plain)
        drops = False
        with self.assertRaisesRegex(Refused, "disable_eagle_block_drop"):
            model_shape(rig.config, rig.kv_config, {})


@unittest.skipIf(MINOR < 32, "vLLM has no hints")
class TestHints(unittest.TestCase):
    def test_hints_of_vllm_and_of_clients_reach_the_cache(self):
        from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope

        for allowed in (False, True):
            with self.subTest(allowed):
                rig = Rig({"hints": allowed}, False)
                self.addCleanup(rig.close)
                payloads = {"pin": {"seconds": 60}, "ttl": {"seconds": 60}, "prefetch": {}}
                actions = [
                    KvHintAction("id", f"tessera.{kind}", "1", payload)
                    for kind, payload in payloads.items()
                ]
                envelope = KvHintsEnvelope("1", "message", actions)
                rig.add("vllm", list(range(100)), 80, 5, kv_hints=envelope)
                rig.drain()
                counters = rig.scheduler.connector._hints.counters
                # a pin when it comes and when it ends
                self.assertEqual((counters["hints"], counters["hints_refused"]), (4, 0))
                client = {"tessera": {"hints": [{"action": "pin", "seconds": 60}, "nonsense"]}}
                rig.add("client", list(range(100, 200)), 80, 5, params=client)
                rig.drain()
                expected = (6, 1) if allowed else (4, 2)
                self.assertEqual((counters["hints"], counters["hints_refused"]), expected)

    def test_a_setting_that_is_no_switch_does_not_let_clients_in(self):
        from tessera.vllm.shape import Refused, model_shape

        rig = Rig({}, False)
        self.addCleanup(rig.close)
        with self.assertRaisesRegex(Refused, "hints 'false'"):
            model_shape(rig.config, rig.kv_config, {"hints": "false"})


class TestHandover(unittest.TestCase):
    def test_what_has_arrived_is_not_waited_for_although_a_load_leaves_a_token(self):
        """A load within a step leaves the last token to be computed, one of drafts a block."""
        for load in ("sync", "async"):
            with self.subTest(load):
                rig = Rig({"load": load, "save_wait_ms": 20000}, False)
                self.addCleanup(rig.close)
                half = rig.scheduler.connector._scheduler
                n = 4 * half.chunk_tokens
                tokens = list(range(100, 100 + n + 5))
                rig.add("producer", tokens, n, 5)
                number = rig.scheduler.connector._live["producer"].number
                said = told(half, number, n)
                rig.drain()
                start = time.monotonic()
                rig.add("consumer", tokens, n, 5, params=said)
                self.assertIsNotNone(rig.scheduler.connector._live["consumer"].arrival)
                rig.drain(300000)
                self.assertLess(time.monotonic() - start, 10)
                self.assertGreaterEqual(half.stats()["tokens_hit"], n - 1)
                rig.check_answers()


if __name__ == "__main__":
    unittest.main(verbosity=2)
