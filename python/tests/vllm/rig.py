"""vLLM's real schedulers over a fake model whose KV shows every wrong byte.

The KV of a token is a digest of all tokens up to it (and of the rank that has it), so whatever is
loaded from the wrong place, saved too early or saved after its block was given away differs from
what is expected: before each step every position that the model would read is compared. Drafts come
from vLLM's own n-gram proposer; those that are rejected leave wrong KV behind, as in a real model.

As a worker does, the rig keeps its own count of the tokens of a request: under asynchronous
scheduling the scheduler's runs ahead by the drafts that it does not know to be rejected yet. With
`runner=2` that count only grows while a request runs, as in vLLM's model runner V2: it stays as it
is when the scheduler's goes back because a load within a step failed.
"""

import copy
import dataclasses
import hashlib
import os
import time
from unittest import mock

import engines  # sets the environment first
import numpy
import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
)
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.spec_decode.ngram_proposer import NgramProposer
from vllm.v1.structured_output import StructuredOutputManager

from tessera.vllm import TesseraConnector
from tessera.vllm.versions import minor

BLOCK, BLOCKS, HEAD = 16, 48, 8
LAYERS = ["model.layers.0.attn", "model.layers.1.attn"]  # of the first pipeline stage
ROW = 2 * HEAD * 4  # bytes of a token in one layer
SEQUENCE_MAX = 512


MINOR = minor(vllm.__version__)
# Steps that may be under way when one is scheduled: before 0.30 vLLM's scheduler loses requests
# that are preempted with more than one, and its engine never has more.
AHEAD_MAX = 4 if MINOR >= 30 else 1


def known(kind, **more):
    """What of it a dataclass of this vLLM has."""
    names = {one.name for one in dataclasses.fields(kind)}
    return {name: value for name, value in more.items() if name in names}


def starts_before(output):
    """Whether a step's loads start before its forward: from 0.29 on only if it needs them."""
    return getattr(output, "has_sync_kv_loads", True)


def layer_names(stage):
    """Of a pipeline stage; each has as many layers."""
    return [f"model.layers.{stage * len(LAYERS) + i}.attn" for i in range(len(LAYERS))]


def expected_kv(tokens, rank=0):
    """[layer, token, byte]: digests of the prefix."""
    out = numpy.zeros((len(LAYERS), len(tokens), ROW), numpy.uint8)
    state = hashlib.blake2b(digest_size=32, person=bytes([rank]))
    for i, token in enumerate(tokens):
        state.update(int(token).to_bytes(4, "little"))
        half = state.digest()
        for layer in range(len(LAYERS)):
            out[layer, i] = numpy.frombuffer(
                half + bytes(b ^ (layer + 1) for b in half), numpy.uint8
            )
    return out


def engine_config(options, budget, drafts, events, prefix_caching):
    more = {}
    if drafts:
        more["speculative_config"] = dict(
            method="ngram", num_speculative_tokens=drafts, prompt_lookup_min=2, prompt_lookup_max=4
        )
    return EngineArgs(
        model=engines.MODEL,
        dtype="float32",
        load_format="dummy",
        max_model_len=SEQUENCE_MAX,
        max_num_seqs=16,
        max_num_batched_tokens=budget,
        block_size=32,
        enable_prefix_caching=prefix_caching,
        enforce_eager=True,
        kv_events_config=events,
        kv_transfer_config=engines.transfer_config(
            {"host_size": "64M", "chunk_size": BLOCK, **options}
        ),
        **more,
    ).create_engine_config()


class Rank:
    """One worker: its connector, and KV memory of its own."""

    def __init__(self, config, kv_config, rank):
        config = copy.deepcopy(config)
        config.parallel_config.rank = rank
        self.rank = rank
        self.stage, self.tensor_rank = divmod(rank, config.parallel_config.tensor_parallel_size)
        layers = layer_names(self.stage)
        kv_config = copy.deepcopy(kv_config)
        for group in kv_config.kv_cache_groups:  # vLLM gives a worker the layers of its stage
            group.layer_names = layers
        self.memory = torch.zeros((len(LAYERS), BLOCKS, 1, BLOCK, 2 * HEAD), dtype=torch.float32)
        self.bytes = self.memory.numpy().view(numpy.uint8).reshape(len(LAYERS), -1, ROW)
        self.connector = TesseraConnector(config, KVConnectorRole.WORKER, kv_config)
        self.connector.register_kv_caches(dict(zip(layers, self.memory)))
        self.expected = {}
        self.bad = set()
        self.may_fail = False

    def begin(self, output):
        connector = self.connector
        connector.handle_preemptions(output.kv_connector_metadata)
        connector.bind_connector_metadata(output.kv_connector_metadata)
        if starts_before(output):
            connector.start_load_kv(None)
        self.bad = connector.get_block_ids_with_load_errors()
        self.check_loads()

    def check_loads(self):
        assert self.may_fail or not self.bad, f"blocks that failed to load: {self.bad}"

    def compare_and_write(self, name, slots, start, right):
        """Reads slots[:start] as attention would; writes the rest, wrong from `right` on. What is
        known not to be there is no surprise, but all that comes of it is wrong."""
        expected = self.expected[name]
        if self.may_fail and self.lacks(slots):
            self.bytes[:, slots[start:]] = 0xA5
            return
        seen = self.bytes[:, slots[:start]]
        if start and not numpy.array_equal(seen, expected[:, :start]):
            wrong = (seen != expected[:, :start]).any(axis=(0, 2))
            raise AssertionError(
                f"{name}, rank {self.rank}: wrong KV at token {int(wrong.argmax())} of {start}"
            )
        self.bytes[:, slots[start:right]] = expected[:, start:right]
        self.bytes[:, slots[right:]] = 0xA5

    def lacks(self, slots):
        return bool(self.bad & set((slots // BLOCK).tolist()))

    def end(self, output):
        connector = self.connector
        if not starts_before(output):
            connector.start_load_kv(None, scheduler_output=output)
        connector.wait_for_save()
        results = connector.get_transfer_results(output.finished_req_ids)
        told = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            **known(KVConnectorOutput, failed_recving=results.failed_recving),
            invalid_block_ids=self.bad | connector.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=connector.build_connector_worker_meta(),
        )
        connector.clear_connector_metadata()
        return told


class Rig:
    """A scheduler, its workers, and a model that writes digests."""

    rank_class = Rank

    def __init__(
        self,
        options,
        asynchronous,
        budget=64,
        drafts=0,
        ranks=1,
        stages=1,
        events=None,
        prefix_caching=False,
        runner=1,
        mla=False,
    ):
        self.runner = runner
        self.config = engine_config(options, budget, drafts, events, prefix_caching)
        self.config.scheduler_config.async_scheduling = asynchronous
        self.config.cache_config.num_gpu_blocks = BLOCKS
        self.config.parallel_config.tensor_parallel_size = ranks
        self.config.parallel_config.pipeline_parallel_size = stages
        ranks *= stages
        self.config.parallel_config.world_size = ranks
        if stages > 1:
            model = self.config.model_config
            model.model_arch_config.total_num_hidden_layers = stages * len(LAYERS)
        self.mla = mla  # every rank has the same KV
        kind, size = (MLAAttentionSpec, 2 * HEAD) if mla else (FullAttentionSpec, HEAD)
        spec = kind(block_size=BLOCK, num_kv_heads=1, head_size=size, dtype=torch.float32)
        self.kv_config = KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(LAYERS, spec)],
            **known(KVCacheConfig, kv_cache_layout="LBHNC"),
        )
        kind = AsyncScheduler if asynchronous else Scheduler
        self.asynchronous = asynchronous
        with mock.patch.dict(os.environ, VLLM_USE_V2_MODEL_RUNNER=str(runner - 1)):
            assert self.config.use_v2_model_runner == (runner == 2)
            self.scheduler = kind(
                self.config, self.kv_config, StructuredOutputManager(self.config), BLOCK, BLOCK
            )
            self.ranks = [self.rank_class(self.config, self.kv_config, i) for i in range(ranks)]
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(
            {
                (one.stage, one.tensor_rank): one.connector.get_handshake_metadata()
                for one in self.ranks
            }
        )
        self.aggregator = KVOutputAggregator(ranks)
        self.proposer = NgramProposer(self.config) if drafts else None
        self.drafts = {}  # by request: proposed at the end of its last step
        self.tables = {}
        self.written = {}  # by request: tokens whose KV is right
        self.sequences = {}
        self.requests = []
        self.checked = self.preemptions = self.proposed = self.accepted = 0

    @property
    def worker(self):
        return self.ranks[0].connector

    def close(self):
        for one in self.ranks:
            one.connector.shutdown()
        self.scheduler.connector.shutdown()

    def add(self, name, sequence, n_prompt, n_output, params=None, **more):
        """A request whose tokens, prompt and answer, are `sequence`; vLLM has its parameters, for
        Tessera too, as `params`."""
        extra = {"kv_transfer_params": params} if params is not None else None
        params = SamplingParams(
            max_tokens=n_output, temperature=0, ignore_eos=True, extra_args=extra
        )
        request = Request(
            request_id=name,
            prompt_token_ids=sequence[:n_prompt],
            sampling_params=params,
            pooling_params=None,
            **more,
        )
        self.sequences[name] = sequence
        for one in self.ranks:
            one.expected[name] = expected_kv(sequence, 0 if self.mla else one.rank)
        self.requests.append(request)
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
        """The workers' side of a step, in the order of vLLM's model runner."""
        starts = self.take_tables(output)
        for one in self.ranks:
            one.begin(output)
        drafted = output.scheduled_spec_decode_tokens
        sampled = [
            self.forward(name, *starts[name], drafted.get(name, ()), name in sampling)
            for name in starts
        ]
        self.propose(list(starts), sampled)
        names = list(starts)
        outputs = [
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=sampled,
                kv_connector_output=one.end(output),
            )
            for one in self.ranks
        ]
        return self.aggregator.aggregate(outputs)

    def take_tables(self, output):
        """Block tables as the worker keeps them; (start, count) of each request of the step."""
        begun = {}
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = list(new.block_ids[0])
            begun[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            news = cached.new_block_ids[i]
            told = cached.num_computed_tokens[i]
            if name in cached.resumed_req_ids:
                self.tables[name] = list(news[0])
                begun[name] = told
            else:
                self.tables[name] += news[0] if news is not None else []
                if self.runner == 1 and any(one.may_fail for one in self.ranks):
                    self.written[name] = min(told, self.written[name])
                    continue
                assert told >= self.written[name], f"{name}: {told}, {self.written[name]} written"
                assert told == self.written[name] or self.proposer, name
        for name in begun:
            self.drafts.pop(name, None)
        self.written.update(begun)
        return {name: (self.written[name], n) for name, n in output.num_scheduled_tokens.items()}

    def forward(self, name, start, count, drafted, samples):
        """Writes a request's KV, accepts what drafts are right; the tokens that are sampled."""
        sequence = self.sequences[name]
        known = start + count - len(drafted)
        if self.asynchronous:  # the scheduler has placeholders, the worker what it proposed
            drafted = self.drafts.pop(name, [])[: len(drafted)]
        accepted = 0
        for draft in drafted:
            if draft != sequence[known + accepted]:
                break
            accepted += 1
        self.proposed += len(drafted)
        self.accepted += accepted
        blocks = numpy.array(self.tables[name])
        places = numpy.arange(start + count)
        slots = blocks[places // BLOCK] * BLOCK + places % BLOCK
        if any(not one.bad.isdisjoint(self.tables[name]) for one in self.ranks):
            # vLLM will throw this step away, and tell a runner that listens to begin again.
            self.written[name] = 0 if self.runner == 1 else known
            return [sequence[known]] if samples else []
        for one in self.ranks:
            one.compare_and_write(name, slots, start, known + accepted)
        self.checked += start * len(self.ranks)
        self.written[name] = known + accepted
        if any(one.may_fail and one.lacks(slots) for one in self.ranks):
            return [1] if samples else []  # as good as any
        return sequence[known : known + accepted + 1] if samples else []

    def propose(self, names, sampled):
        if self.proposer is None:
            return
        lengths = numpy.zeros(len(names), numpy.int32)
        tokens = numpy.zeros((len(names), SEQUENCE_MAX), numpy.int32)
        for i, name in enumerate(names):
            lengths[i] = self.written[name] + 1  # the last one sampled has no KV yet
            tokens[i, : lengths[i]] = self.sequences[name][: lengths[i]]
        counts = [self.proposer.k] if MINOR > 23 else []
        drafts = self.proposer.propose(*counts, sampled, lengths, tokens)
        self.drafts.update((name, list(draft)) for name, draft in zip(names, drafts))

    def update(self, output, result):
        self.scheduler.update_from_output(output, result)
        if self.proposer and not self.asynchronous:
            drafts = [self.drafts.get(name, []) for name in result.req_ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(result.req_ids, drafts))

    def preempt(self, request):
        """What the scheduler does to a request when others need its blocks."""
        scheduler = self.scheduler
        scheduler.running.remove(request)
        scheduler._preempt_request(request, time.monotonic())
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    def drain(self, limit=3000):
        """Runs until nothing is left; the number of steps."""
        for step in range(limit):
            if not self.scheduler.has_requests():
                return step
            output, sampling = self.schedule()
            self.update(output, self.execute(output, sampling))
        raise AssertionError("the engine never comes to rest")

    def check_answers(self):
        """Every token that the scheduler has of a request is the sequence's."""
        for request in self.requests:
            tokens = list(request.all_token_ids)
            assert tokens == self.sequences[request.request_id][: len(tokens)], request.request_id
            if request.status == RequestStatus.FINISHED_LENGTH_CAPPED:
                assert request.num_output_tokens == request.max_tokens, request.request_id

    def evict(self, rank):
        return engines.evict(self.scheduler.connector, rank)
