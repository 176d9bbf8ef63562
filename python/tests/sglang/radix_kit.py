"""SGLang's memory, tree, allocators and requests, with a model whose KV of a token is a digest of
all tokens up to it. One wrong byte fails.

On a GPU the model runs as SGLang runs it with overlap: on a stream of its own, behind the
scheduler's, which the host never waits for. It is slow at times, so that a copy which is not
ordered with it reads KV that is not written yet, or overwrites KV that is still to be read. What
was wrong is counted on the device (Engine.check).
"""

import hashlib
import os
import random
import tempfile
import time
from array import array
from contextlib import nullcontext
from types import SimpleNamespace

import numpy
import torch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.memory_pool import (
    MHATokenToKVPool,
    MLATokenToKVPool,
    ReqToTokenPool,
)
from sglang.srt.mem_cache.registry import get_radix_cache_factory
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

import tessera.sglang.plugin

LAYERS, HEADS, CHUNK = 3, 2, 16
ROW = 64  # bytes: a digest
CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
"intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 9000}"""


def prepare():
    """What requests and pools ask SGLang's server for: its arguments. They are those of a CPU, as
    those of a GPU want kernels that are not tested here."""
    tessera.sglang.plugin.register()
    folder = tempfile.TemporaryDirectory()
    with open(os.path.join(folder.name, "config.json"), "w") as file:
        file.write(CONFIG)
    get_context().set_server_args(ServerArgs(model_path=folder.name, device="cpu"))
    return folder


_model = prepare()


def expected_kv(tokens, rank=0):
    """[layer, K or V, token, byte]: digests of the prefix, others on each rank."""
    out = numpy.zeros((LAYERS, 2, len(tokens), ROW), numpy.uint8)
    state = hashlib.blake2b(digest_size=ROW, person=bytes([rank]))
    for i, token in enumerate(tokens):
        state.update(int(token).to_bytes(8, "little"))
        digest = numpy.frombuffer(state.digest(), numpy.uint8)
        for layer in range(LAYERS):
            out[layer, 0, i] = digest ^ (2 * layer)
            out[layer, 1, i] = digest ^ (2 * layer + 1)
    return torch.from_numpy(out)


class Engine:
    """SGLang's memory, its tree by the registry, and requests as its scheduler runs them. With a
    group, one rank of several: each runs the same requests in a process of its own."""

    def __init__(
        self,
        size=512,
        page=1,
        model="unit",
        device="cpu",
        stream=None,
        mla=False,
        group=None,
        **options,
    ):
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.group = group
        self.rank = torch.distributed.get_rank(group) if group else 0
        self.kv_rank = 0 if mla else self.rank
        common = dict(
            size=size,
            page_size=page,
            dtype=dtype,
            layer_num=LAYERS,
            device=device,
            enable_memory_saver=False,
        )
        if mla:
            rope = ROW // 4 // dtype.itemsize
            self.pool = MLATokenToKVPool(
                kv_lora_rank=ROW // dtype.itemsize - rope, qk_rope_head_dim=rope, **common
            )
            layers = zip(self.pool.kv_buffer)
        else:
            self.pool = MHATokenToKVPool(
                head_num=HEADS,
                head_dim=ROW // HEADS // dtype.itemsize,
                enable_alt_stream=False,
                **common,
            )
            layers = zip(self.pool.k_buffer, self.pool.v_buffer)
        self.bytes = [[half.view(torch.uint8).reshape(-1, ROW) for half in pair] for pair in layers]
        if page == 1:
            self.slots = TokenToKVPoolAllocator(size, dtype, device, self.pool, False)
        else:
            self.slots = PagedTokenToKVPoolAllocator(size, page, dtype, device, self.pool, False)
        self.page, self.device, self.size = page, device, size
        self.rows = ReqToTokenPool(8, 1024, device, False)
        self.cuda = device != "cpu"
        self.forward = torch.cuda.Stream() if self.cuda else None
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)
        self.chance = random.Random(size * 31 + page)
        self.count = self.checked = self.waited = 0
        self.context = self.build_context(dtype, model, stream or self.forward)
        self.open(options)

    def build_context(self, dtype, model, stream):
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.slots,
            page_size=self.page,
            tp_cache_group=self.group,
            attn_tp_cache_group=self.group,
        )
        return SimpleNamespace(
            params=params,
            server_args=SimpleNamespace(attention_backend=None, revision=None, nnodes=1),
            disable_radix_cache=False,
            enable_hierarchical_cache=False,
            is_hybrid_swa=False,
            is_hybrid_ssm=False,
            tp_size=torch.distributed.get_world_size(self.group) if self.group else 1,
            tp_rank=self.rank,
            tp_worker=SimpleNamespace(model_runner=SimpleNamespace(forward_stream=stream)),
            model_config=SimpleNamespace(
                model_path=model,
                dtype=dtype,
                quantization=None,
                hf_config=SimpleNamespace(to_dict=lambda: {}),
            ),
        )

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
        """Tokens of its prompt that need not be computed. A request that finds no memory waits and
        is matched again, as SGLang's scheduler does it."""
        for _ in range(2000):
            adder = PrefillAdder(
                page_size=self.page,
                tree_cache=self.tree,
                token_to_kv_pool_allocator=self.slots,
                running_batch=None,
                new_token_ratio=0.5,
                rem_input_tokens=1 << 20,
                rem_chunk_tokens=None,
            )
            adder.add_one_req(req, has_chunked_req=False, truncation_align_size=None)
            if adder.can_run_list:
                return req.prefix_len
            self.waited += 1
            time.sleep(0.001)
            req.init_next_round_input(self.tree)
        raise AssertionError("a request was never admitted")

    def compute(self, tokens, first, prefix):
        """Compares what is there, writes the rest."""
        count = len(tokens) - first
        padded = -(-count // self.page) * self.page
        news = self.take(padded)[:count]
        known = expected_kv(tokens, self.kv_rank)
        if self.cuda:
            known = known.pin_memory().to(self.device, non_blocking=True)
            self.forward.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.forward) if self.cuda else nullcontext():
            if self.cuda:
                torch.cuda._sleep(self.chance.choice((0, 0, 1_000_000, 10_000_000)))
            for layer, planes in enumerate(self.bytes):
                for half, kv in enumerate(planes):
                    right = known[layer, half]
                    self.wrong += (kv[prefix] != right[: len(prefix)]).sum()
                    kv[news] = right[first:]
        for tensor in (known, prefix, news):
            if self.cuda:
                tensor.record_stream(self.forward)
        self.checked += len(prefix)
        if not self.cuda:
            self.check()
        return news

    def check(self):
        """Nothing that was read so far was wrong."""
        if self.cuda:
            torch.cuda.synchronize()
        assert int(self.wrong) == 0, f"{int(self.wrong)} bytes of KV were wrong"

    def finish(self, req, n_found):
        tokens = list(req.origin_input_ids)
        prefix = self.tree.path_device_indices(req.last_node)[:n_found]
        # Whole pages, of which the answer takes what is left.
        n_answer = -len(tokens) % self.page
        answer = [7000 + i for i in range(n_answer + 1)]
        news = self.compute(tokens + answer[:-1], n_found, prefix)
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

    def run_under_pressure(self, n_requests, seed=1):
        """Requests that share beginnings, in a pool that is too small. Returns tokens found."""
        chance = random.Random(seed)
        beginnings = [[chance.randrange(9000) for _ in range(150)] for _ in range(4)]
        found = 0
        for _ in range(n_requests):
            tokens = chance.choice(beginnings)[: chance.randrange(150)]
            tokens = tokens + [chance.randrange(9000) for _ in range(chance.randrange(1, 40))]
            found += self.run(tokens)
        self.lose()
        self.check()
        return found

    def written(self):
        self.tree._pool.drain(10000)
        self.tree._settle()

    def lose(self):
        """The tree forgets everything, as it does under pressure."""
        self.written()
        self.tree.evict(EvictParams(num_tokens=1 << 30))
