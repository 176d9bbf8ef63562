"""Two tensor-parallel workers that blend, on one GPU or on a CPU: what the case of cases.py checks.

vLLM wants a GPU for each worker, and NCCL refuses two ranks on one. Here vLLM is told of two, both
are the same, and gloo carries what the ranks exchange. vLLM was not made for that, so an engine
that does not start is a reason to skip.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from small_engine import CPU, MODELS, tokens_of, torch

RANKS = 2
SHARED_GPU = {
    "VLLM_DISABLE_PYNCCL": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}


class NoEngine(Exception):
    """vLLM did not start with two workers; why."""


def plugins(folder: Path) -> None:
    """What pip would install: workers call these, however vLLM starts them."""
    made = folder / "two_ranks-0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: two-ranks\nVersion: 0\n")
    (made / "entry_points.txt").write_text(
        "[vllm.general_plugins]\n"
        "tessera = tessera.vllm.plugin:register\n"
        "two_ranks = two_ranks:share_the_gpu\n"
    )
    os.environ["PYTHONPATH"] = f"{folder}:{os.environ['PYTHONPATH']}"
    sys.path.insert(0, str(folder))


def share_the_gpu() -> None:
    if CPU:
        return
    from vllm.platforms import current_platform

    kind: Any = type(current_platform)
    kind.dist_backend = "gloo"
    kind.device_count = classmethod(lambda cls: RANKS)
    kind.logical_device_id_to_visible_device_id = classmethod(lambda cls, number: 0)
    torch.accelerator.device_count = lambda: RANKS


def _strong(worker: Any) -> int:
    from blending import strong_weights

    from tessera.vllm import plugin

    strong_weights(plugin.loaded_model())
    return int(worker.rank)


class Engine:
    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        from tessera.vllm import plugin

        os.environ.update(SHARED_GPU)
        plugins(folder)
        plugin.register()
        share_the_gpu()
        (folder / "config.json").write_text(json.dumps(MODELS["llama"]))
        try:
            self.llm = self._start(str(folder), options)
        except Exception as error:
            raise NoEngine(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
        ranks = self.llm.collective_rpc(_strong)
        assert sorted(ranks) == list(range(RANKS)), ranks

    def _start(self, folder: str, options: dict[str, Any]) -> Any:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        more: dict[str, Any] = dict(gpu_memory_utilization=0.1, kv_cache_memory_bytes=2 << 30)
        if CPU:
            more = dict(block_size=32, num_gpu_blocks_override=200)
        return LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=4096,
            max_num_seqs=4,
            max_num_batched_tokens=4096,
            enable_prefix_caching=False,
            enforce_eager=True,
            disable_log_stats=True,
            disable_custom_all_reduce=True,
            tensor_parallel_size=RANKS,
            distributed_executor_backend="mp",
            kv_transfer_config=KVTransferConfig(
                kv_connector="TesseraConnector",
                kv_connector_module_path="tessera.vllm",
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
                kv_connector_extra_config=options,
            ),
            **more,
        )

    def ask(self, tokens: list[int], wishes: dict[str, Any] | None) -> tuple[list[int], Any]:
        from vllm import SamplingParams, TokensPrompt

        extra = {"kv_transfer_params": {"tessera": wishes}} if wishes is not None else None
        params = SamplingParams(
            temperature=0, max_tokens=4, ignore_eos=True, detokenize=False, extra_args=extra
        )
        prompt = TokensPrompt(prompt_token_ids=tokens)
        (output,) = self.llm.generate([prompt], params, use_tqdm=False)
        told = (output.kv_transfer_params or {}).get("tessera", {})
        return list(output.outputs[0].token_ids), told

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


def blends(engine: Engine, orders: Any, prompt_of: Any) -> None:
    """Both ranks blend; everything computed is what vLLM computes; a load gives the same twice."""
    first, second = (prompt_of(order) for order in orders)
    plain, _told = engine.ask(second.tokens, None)
    full, told = engine.ask(second.tokens, second.wishes(1.0, "full"))
    print(f"all computed: answers {full} and {plain}, blended {told.get('blended')}")
    assert told.get("blended"), told
    n_sure = len(plain) if CPU else 1  # bf16 rounds differently in other batches
    assert full[:n_sure] == plain[:n_sure], "a prefill of ours is not one of vLLM"
    engine.ask(first.tokens, first.wishes(0.0, "none"))
    for ratio, selector in ((0.0, "none"), (0.3, "query"), (0.3, "hkvd")):
        answers = [engine.ask(second.tokens, second.wishes(ratio, selector)) for _ in range(2)]
        print(
            f"{selector} {ratio}: {answers[0][0]}, {answers[1][1].get('n_recomputed')} recomputed"
        )
        for _answer, told in answers:
            assert told.get("blended") and not told.get("n_filled"), told
        assert answers[0][0] == answers[1][0], "the same load gives another answer"
    again, _told = engine.ask(tokens_of(1, 200), None)
    assert len(again) == 4
