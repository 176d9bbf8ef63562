"""The connector under vLLM's real schedulers, synchronous and asynchronous, with a fake model.

The fake model's KV of a token is a digest of all tokens up to it, so whatever is loaded from the
wrong place, saved too early or saved after its block was given away shows as a wrong byte: before
each step every position that the model would read is compared. Requests share beginnings, the KV
memory is small (requests push each other out), prompts are cut into chunks, requests are aborted
at any moment, and up to two steps are in flight.
"""

import hashlib
import os
import random
import time
import unittest
from collections import deque

import engines  # sets the environment first
import numpy
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tessera.vllm import TesseraConnector

BLOCK, BLOCKS, HEAD = 16, 48, 8
LAYERS = ["model.layers.0.attn", "model.layers.1.attn"]
ROW = 2 * HEAD * 4  # bytes of a token in one layer


def expected_kv(tokens):
    """[layer, token, byte]: digests of the prefix."""
    out = numpy.zeros((len(LAYERS), len(tokens), ROW), numpy.uint8)
    state = hashlib.blake2b(digest_size=32)
    for i, token in enumerate(tokens):
        state.update(int(token).to_bytes(4, "little"))
        half = state.digest()
        for layer in range(len(LAYERS)):
            out[layer, i] = numpy.frombuffer(
                half + bytes(b ^ (layer + 1) for b in half), numpy.uint8
            )
    return out


class Rig:
    """A scheduler, a worker's connector, KV memory, and a model that writes digests."""

    def __init__(self, options, asynchronous, budget=64):
        args = EngineArgs(
            model=engines.MODEL,
            skip_tokenizer_init=True,
            dtype="float32",
            load_format="dummy",
            max_model_len=512,
            max_num_seqs=16,
            max_num_batched_tokens=budget,
            block_size=32,
            enable_prefix_caching=False,
            enforce_eager=True,
            kv_transfer_config=engines.transfer_config(
                {"host_size": "64M", "chunk_size": BLOCK, **options}
            ),
        )
        self.config = args.create_engine_config()
        self.config.scheduler_config.async_scheduling = asynchronous
        self.config.cache_config.num_gpu_blocks = BLOCKS
        spec = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=HEAD, dtype=torch.float32
        )
        self.kv_config = KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(LAYERS, spec)],
            kv_cache_layout="LBHNC",
        )
        kind = AsyncScheduler if asynchronous else Scheduler
        self.scheduler = kind(
            self.config, self.kv_config, StructuredOutputManager(self.config), BLOCK, BLOCK
        )
        self.memory = torch.zeros((len(LAYERS), BLOCKS, 1, BLOCK, 2 * HEAD), dtype=torch.float32)
        self.bytes = self.memory.numpy().view(numpy.uint8).reshape(len(LAYERS), -1, ROW)
        self.worker = TesseraConnector(self.config, KVConnectorRole.WORKER, self.kv_config)
        self.worker.register_kv_caches(dict(zip(LAYERS, self.memory)))
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(
            {(0, 0): self.worker.get_handshake_metadata()}
        )
        self.tables = {}
        self.sequences = {}
        self.checked = self.preemptions = 0

    def close(self):
        self.worker.shutdown()
        self.scheduler.connector.shutdown()

    def add(self, name, sequence, n_prompt, n_output, **more):
        """A request whose tokens, prompt and answer, are `sequence`."""
        params = SamplingParams(max_tokens=n_output, temperature=0, ignore_eos=True)
        request = Request(
            request_id=name,
            prompt_token_ids=sequence[:n_prompt],
            sampling_params=params,
            pooling_params=None,
            **more,
        )
        self.sequences[name] = (sequence, expected_kv(sequence))
        self.scheduler.add_request(request)
        return request

    def schedule(self):
        """A step as the scheduler makes it, and which requests sample in it."""
        output = self.scheduler.schedule()
        self.preemptions += len(output.preempted_req_ids or ())
        sampling = {
            name
            for name in output.num_scheduled_tokens
            if not self.scheduler.requests[name].is_prefill_chunk
        }
        return output, sampling

    def execute(self, output, sampling):
        """The worker's side of a step, in the order of vLLM's model runner."""
        worker = self.worker
        worker.handle_preemptions(output.kv_connector_metadata)
        starts = self.take_tables(output)
        worker.bind_connector_metadata(output.kv_connector_metadata)
        if output.has_sync_kv_loads:
            worker.start_load_kv(None)
        bad = worker.get_block_ids_with_load_errors()
        assert not bad, f"blocks that failed to load: {bad}"
        sampled = [self.forward(name, *starts[name], name in sampling) for name in starts]
        if not output.has_sync_kv_loads:
            worker.start_load_kv(None)
        worker.wait_for_save()
        results = worker.get_transfer_results(output.finished_req_ids)
        told = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        names = list(starts)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=told,
        )

    def take_tables(self, output):
        """Block tables as the worker keeps them; (start, count) of each request of the step."""
        starts = {}
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = list(new.block_ids[0])
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            news = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                self.tables[name] = list(news[0])
            elif news is not None:
                self.tables[name] += news[0]
            starts[name] = cached.num_computed_tokens[i]
        return {name: (starts[name], n) for name, n in output.num_scheduled_tokens.items()}

    def forward(self, name, start, count, samples):
        sequence, expected = self.sequences[name]
        blocks = numpy.array(self.tables[name])
        places = numpy.arange(start + count)
        slots = blocks[places // BLOCK] * BLOCK + places % BLOCK
        if start and not numpy.array_equal(self.bytes[:, slots[:start]], expected[:, :start]):
            wrong = (self.bytes[:, slots[:start]] != expected[:, :start]).any(axis=(0, 2))
            raise AssertionError(f"{name}: wrong KV at token {int(wrong.argmax())} of {start}")
        self.checked += start
        self.bytes[:, slots[start:]] = expected[:, start : start + count]
        return [sequence[start + count]] if samples else []

    def drain(self, limit=3000):
        """Runs until nothing is left; the number of steps."""
        for step in range(limit):
            if not self.scheduler.has_requests():
                return step
            output, sampling = self.schedule()
            self.scheduler.update_from_output(output, self.execute(output, sampling))
        raise AssertionError("the engine never comes to rest")


class TestSchedules(unittest.TestCase):
    def run_schedules(self, asynchronous, depth, seed, n_requests, **options):
        chance = random.Random(seed)
        rig = Rig(options, asynchronous)
        self.addCleanup(rig.close)
        beginnings = [[chance.randrange(3, 9000) for _ in range(200)] for _ in range(4)]
        waiting = deque()
        for i in range(n_requests):
            base = chance.choice(beginnings)[: chance.randrange(0, 160)]
            own = [chance.randrange(3, 9000) for _ in range(chance.randrange(1, 40))]
            n_prompt = len(base + own)
            answer = [chance.randrange(3, 9000) for _ in range(60)]
            waiting.append((f"r{i}", base + own + answer, n_prompt, chance.randrange(1, 48)))
        flight = deque()
        live = []
        while waiting or flight or rig.scheduler.has_requests():
            while waiting and (not live or chance.random() < 0.5):
                name, *rest = waiting.popleft()
                rig.add(name, *rest)
                live.append(name)
            output, sampling = rig.schedule()
            flight.append([output, sampling, None])
            # The worker may run a step at once, or only when its result is wanted.
            if chance.random() < 0.5:
                self.run_flight(rig, flight)
            if len(flight) > depth or not output.num_scheduled_tokens:
                self.run_flight(rig, flight)
                while flight:
                    output, sampling, result = flight.popleft()
                    rig.scheduler.update_from_output(output, result)
                    if len(flight) <= depth and output.num_scheduled_tokens:
                        break
            if live and chance.random() < 0.02:
                rig.scheduler.finish_requests(live.pop(), RequestStatus.FINISHED_ABORTED)
            live = [name for name in live if name in rig.scheduler.requests]
        rig.drain()
        counters = {**rig.scheduler.connector._scheduler.stats()}
        worker = rig.worker._worker.stats()
        print(
            f"    {n_requests} requests, {counters['steps']} steps, {rig.preemptions} preemptions, "
            f"{counters['tokens_hit']} of {counters['tokens_asked']} tokens hit, "
            f"{worker['tokens_saved']} saved, {rig.checked} positions compared"
        )
        self.assertGreater(counters["tokens_hit"], 0)
        self.assertGreater(rig.preemptions, 0)
        self.assertEqual(worker["chunks_wasted"], 0)
        self.assertEqual(counters["loads_failed"], 0)
        self.assertEqual(rig.scheduler.connector._complaints, set())
        self.assertEqual(rig.worker._complaints, set())
        free = rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self.assertEqual(free, BLOCKS - 1, "blocks were never given back")

    def run_flight(self, rig, flight):
        for entry in flight:
            if entry[2] is None:
                entry[2] = rig.execute(entry[0], entry[1])

    def test_synchronous(self):
        self.run_schedules(False, 0, 1, 120, save_decode=True)

    def test_asynchronous_one_step_ahead(self):
        self.run_schedules(True, 1, 2, 160, save_decode=True)

    def test_asynchronous_two_steps_ahead(self):
        self.run_schedules(True, 2, 3, 160, save_decode=True)

    def test_loads_between_steps(self):
        self.run_schedules(True, 1, 4, 160, save_decode=True, load="async")

    def test_prompts_only_and_larger_chunks(self):
        self.run_schedules(True, 1, 5, 120, chunk_size=2 * BLOCK)


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

        def option(rig):
            rig.config.kv_transfer_config.kv_connector_extra_config["chunk_sise"] = 1

        for change, word in (
            (pipeline, "pipeline parallelism"),
            (context, "context parallelism"),
            (scales, "calculate_kv_scales"),
            (heads, "LHBNC"),
            (option, "chunk_size"),
        ):
            with self.subTest(word):
                self.assertIn(word, self.off(change))

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


if __name__ == "__main__":
    unittest.main(verbosity=2)
