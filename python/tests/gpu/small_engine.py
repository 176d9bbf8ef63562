"""Real vLLM with random weights and few layers, whose KV the tests can read byte by byte.

Scheduler and worker are in this process. TESSERA_TEST_DEVICE=cpu runs the same over vLLM for CPUs.
Model runner V2 needs Triton, which vLLM lacks there: its interpreter runs the kernels.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CPU = os.environ.get("TESSERA_TEST_DEVICE") == "cpu"
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
)
if CPU:
    os.environ.update(
        VLLM_TARGET_DEVICE="cpu",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_HOST_IP="127.0.0.1",
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
    )
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
        os.environ["TRITON_INTERPRET"] = "1"
        from triton.backends import backends

        backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))

import numpy  # noqa: E402  the environment comes first
import torch  # noqa: E402
from vllm import LLM, SamplingParams, TokensPrompt  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

from tessera.vllm import TesseraConnector  # noqa: E402

BLOCKS = 613  # a prime: the dimension of a tensor that counts blocks is known by its size
VOCABULARY = 4000
_TEXT = dict(
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    vocab_size=VOCABULARY,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    torch_dtype="float32" if CPU else "bfloat16",
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
MODELS: dict[str, dict[str, Any]] = {
    "llama": dict(
        _TEXT,
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        rope_theta=500000.0,
        hidden_act="silu",
        attention_bias=False,
    ),
    # More bytes for each token: a load takes milliseconds.
    "wide": dict(
        _TEXT,
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        num_attention_heads=8,
        num_key_value_heads=8,
        num_hidden_layers=16,
        rope_theta=500000.0,
        hidden_act="silu",
        attention_bias=False,
    ),
    # Multi-head latent attention without experts: every layer is dense.
    "mla": dict(
        {key: value for key, value in _TEXT.items() if key != "head_dim"},
        architectures=["DeepseekV2ForCausalLM"],
        model_type="deepseek_v2",
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        first_k_dense_replace=4,
        moe_layer_freq=1,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        n_group=1,
        topk_group=1,
        hidden_act="silu",
        rope_theta=10000.0,
        attention_bias=False,
    ),
    # Two KV groups: windows of 128 tokens and full attention.
    "windows": dict(
        _TEXT,
        architectures=["Gemma3ForCausalLM"],
        model_type="gemma3_text",
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=128,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
        tie_word_embeddings=True,
    ),
}


def tokens_of(seed: int, n_tokens: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(10, VOCABULARY - 10) for _ in range(n_tokens)]


Pages = dict[tuple[str, int], Any]  # a block's bytes, by layer and number of tokens to its end


@dataclass
class Seen:
    """A request, with the pages of its prompt before its blocks are given back."""

    found: int  # tokens that were not computed
    answer: list[int]
    pages: Pages  # when its first token came
    last: Pages  # when its last token but one came; it may have been preempted in between


class Engine:
    """One vLLM with Tessera. `options` are Tessera's, `more` are vLLM's."""

    def __init__(self, model: str, options: dict[str, Any], **more: Any) -> None:
        folder = Path(os.environ.get("TESSERA_TEST_MODELS") or tempfile.mkdtemp()) / model
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(MODELS[model]))
        self.tensors: dict[str, Any] = {}
        self._watch_registration()
        settings: dict[str, Any] = dict(
            model=str(folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=4096,
            max_num_seqs=16,
            max_num_batched_tokens=4096,
            # Given, not found by profiling: other tests run beside this one.
            gpu_memory_utilization=0.1,
            kv_cache_memory_bytes=4 << 30,
            enable_prefix_caching=False,
            enforce_eager=True,
            num_gpu_blocks_override=BLOCKS,
            disable_log_stats=True,
            seed=0,
        )
        if CPU:
            settings["block_size"] = 32
            del settings["gpu_memory_utilization"], settings["kv_cache_memory_bytes"]
        settings.update(more)
        settings["kv_transfer_config"] = KVTransferConfig(
            kv_connector="TesseraConnector",
            kv_connector_module_path="tessera.vllm",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=options,
        )
        self.llm = LLM(**settings)
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.kv = self.scheduler.kv_cache_manager.kv_cache_config
        self.n_blocks = self.kv.num_blocks
        self.count = 0
        trouble = self.scheduler.connector._trouble
        assert trouble is None, f"Tessera is off: {trouble}"

    def _watch_registration(self) -> None:
        """Tensors by layer, as the engine hands them to a connector."""
        original, tensors = TesseraConnector.register_kv_caches, self.tensors

        def register(connector: Any, kv_caches: dict[str, Any]) -> Any:
            tensors.update(kv_caches)
            return original(connector, kv_caches)

        TesseraConnector.register_kv_caches = register

    @property
    def counters(self) -> dict[str, float]:
        return self.scheduler.connector._counters()

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()

    def settle(self) -> None:
        """Steps until nothing is left to save or to load."""
        for _ in range(200000):
            if not self.scheduler.has_requests():
                return
            self.core.step_fn()
        raise AssertionError("the engine never comes to rest")

    def blocks_of(self, layer: str) -> Any:
        """The tensor of a layer with its blocks in front, as bytes: [block, bytes]."""
        tensor = self.tensors[layer]
        for dim, size in enumerate(tensor.shape):
            if size % self.n_blocks == 0 and size:
                front = tensor.movedim(dim, 0)
                rows = front.reshape(self.n_blocks, -1)
                return rows.view(torch.uint8)
        raise AssertionError(f"{layer}: no dimension of {tuple(tensor.shape)} counts blocks")

    def scribble(self) -> None:
        """Overwrites every block: what a later request reads was loaded or computed for it."""
        self.settle()
        for layer, tensor in self.tensors.items():
            for dim, size in enumerate(tensor.shape):
                if size % self.n_blocks == 0 and size:
                    step = size // self.n_blocks
                    tensor.movedim(dim, 0)[step:].fill_(7.0 if tensor.is_floating_point() else 91)
                    break
            else:
                raise AssertionError(layer)
        self.synchronize()

    def synchronize(self) -> None:
        if not CPU:
            torch.cuda.synchronize()

    def params(self, n_out: int, wishes: dict[str, Any] | None) -> SamplingParams:
        extra = {"kv_transfer_params": {"tessera": wishes}} if wishes is not None else None
        return SamplingParams(
            temperature=0, max_tokens=n_out, ignore_eos=True, detokenize=False, extra_args=extra
        )

    def ask(self, tokens: list[int], n_out: int = 4, wishes: dict[str, Any] | None = None) -> Seen:
        """One request alone; its pages are taken when its first token comes. `wishes`: what it
        says to Tessera."""
        (seen,) = self.ask_all([tokens], n_out, [wishes])
        return seen

    def ask_all(
        self,
        prompts: list[list[int]],
        n_out: int = 4,
        wishes: Sequence[dict[str, Any] | None] = (),
    ) -> list[Seen]:
        """Requests at once."""
        engine = self.llm.llm_engine
        lengths = {}
        for tokens, wish in zip_longest(prompts, wishes):
            self.count += 1
            lengths[f"q{self.count}-"] = len(tokens)
            prompt = TokensPrompt(prompt_token_ids=tokens)
            engine.add_request(f"q{self.count}-", prompt, self.params(n_out, wish))
        first: dict[str, Pages] = {}
        last: dict[str, Pages] = {}
        done: dict[str, Any] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                name, n_tokens = output.request_id, len(output.outputs[0].token_ids)
                if output.finished:
                    done[name] = output
                elif n_tokens and name not in first:
                    first[name] = self.pages(name, lengths[name])
                elif n_tokens == n_out - 1:
                    last[name] = self.pages(name, lengths[name])
        return [
            Seen(
                done[name].num_cached_tokens or 0,
                list(done[name].outputs[0].token_ids),
                first.get(name, {}),
                last.get(name, {}),
            )
            for name in lengths
        ]

    def pages(self, name: str, n_tokens: int) -> Pages:
        """Bytes of the blocks that hold only tokens before the last one of the prompt, which every
        request computes itself. None of a request that was preempted meanwhile."""
        self.synchronize()
        (request,) = [r for key, r in self.scheduler.requests.items() if key.startswith(name)]
        if request.status != RequestStatus.RUNNING or request.num_computed_tokens < n_tokens:
            return {}
        table = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)
        found = {}
        for group, ids in zip(self.kv.kv_cache_groups, table):
            size = group.kv_cache_spec.block_size
            n_full = (n_tokens - 1) // size
            wanted = [((at + 1) * size, block) for at, block in enumerate(ids[:n_full]) if block]
            if not wanted:
                continue
            places = torch.tensor([block for _, block in wanted])
            for layer in group.layer_names:
                blocks = self.blocks_of(layer)
                rows = blocks[places.to(blocks.device)].cpu().numpy()
                for (end, _), row in zip(wanted, rows):
                    found[layer, end] = row
        return found


def up_to(pages: Pages, n_tokens: int) -> Pages:
    return {key: page for key, page in pages.items() if key[1] <= n_tokens}


def wrong_pages(right: Pages, seen: Pages) -> list[tuple[str, int]]:
    """Pages of both that differ in any byte."""
    both = right.keys() & seen.keys()
    assert both, "no page to compare"
    return [key for key in sorted(both) if not numpy.array_equal(right[key], seen[key])]


def far_pages(right: Pages, seen: Pages, dtype: Any) -> list[tuple[str, int]]:
    """Pages of both that differ by more than computing in another batch explains. Pages of other
    tokens, or of none, differ by as much as the values themselves."""

    def values(page: Any) -> Any:
        return torch.from_numpy(page.copy()).view(dtype).float()

    both = right.keys() & seen.keys()
    assert both, "no page to compare"
    pairs = {key: (values(right[key]), values(seen[key])) for key in sorted(both)}
    return [key for key, (one, two) in pairs.items() if not (one - two).norm() <= 0.1 * one.norm()]
