"""vLLM engines for the tests: small, in this process where that is enough, on the CPU.

The environment is what docs/engines.md lists for a CPU. The scheduler is in this process, so that
a test can look at the connector's counters; the worker is a process of its own, as always.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import multiprocessing
import os
import subprocess
import tempfile
import time
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ.update(
    VLLM_TARGET_DEVICE="cpu",
    VLLM_CPU_KVCACHE_SPACE=os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_WORKER_MULTIPROC_METHOD="fork",
    VLLM_HOST_IP="127.0.0.1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    GLOO_SOCKET_IFNAME="lo",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
    TOKENIZERS_PARALLELISM="false",
)

from vllm import LLM, SamplingParams, TokensPrompt  # noqa: E402  the environment comes first
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1  # noqa: E402

from tessera import _c as c  # noqa: E402
from tessera._connector import describe  # noqa: E402
from tessera._lib import check, library  # noqa: E402
from tessera.vllm import plugin  # noqa: E402

plugin.register()  # as vLLM does by itself where the package is installed

MODEL = os.environ["TESSERA_TEST_VLLM_MODEL"]
BLOCK = 32


@dataclass
class Answer:
    tokens: list[int]
    logprobs: list[float]
    cached: int  # prompt tokens that were not computed
    told: dict[str, Any] | None = None  # what the connector says of the request


def transfer_config(options: dict[str, Any], role: str = "kv_both") -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="TesseraConnector",
        kv_connector_module_path="tessera.vllm",
        kv_role=role,
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=options,
    )


def sampling(max_tokens: int, wishes: dict[str, Any] | None = None, **more: Any) -> SamplingParams:
    """Greedy; `wishes` are what kv_transfer_params has for Tessera."""
    extra = {"kv_transfer_params": {"tessera": wishes}} if wishes is not None else None
    return SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, extra_args=extra, **more
    )


class Engine:
    """One vLLM; `options` None: without a connector."""

    def __init__(self, options: dict[str, Any] | None, role: str = "kv_both", **more: Any) -> None:
        settings: dict[str, Any] = dict(
            model=MODEL,
            dtype="float32",
            enforce_eager=True,
            max_model_len=4096,
            max_num_seqs=32,
            enable_prefix_caching=False,
            block_size=BLOCK,
            disable_log_stats=True,
        )
        settings.update(more)
        if options is not None:
            settings["kv_transfer_config"] = transfer_config(options, role)
        self.llm = LLM(**settings)
        bare = settings.get("skip_tokenizer_init")
        self.tokenizer = None if bare else self.llm.get_tokenizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        if self.llm is not None:
            self.llm.llm_engine.engine_core.shutdown()
            self.llm = None
            gc.collect()

    @property
    def core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def connector(self) -> Any:
        return self.core.scheduler.connector

    def counters(self) -> dict[str, int]:
        return self.connector._scheduler.stats()

    def settle(self) -> None:
        """Steps until the connector has nothing left to do, as a busy engine would."""
        while self.core.scheduler.has_requests():
            self.core.step_fn()

    def watch(self) -> None:
        """From now on in_calls() counts the time inside the connector, both halves."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self._inside = 0.0
        for connector in (self.connector, get_kv_transfer_group()):
            for name in dir(KVConnectorBase_V1) + ["request_finished_all_groups"]:
                method = getattr(connector, name, None)
                if not name.startswith("_") and callable(method):
                    setattr(connector, name, self._timed(method))

    def _timed(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._inside += time.perf_counter() - start

        return call

    def in_calls(self) -> float:
        """Seconds inside the connector since the last call of this."""
        inside, self._inside = self._inside, 0.0
        return inside

    def first_token(
        self, tokens: list[int], wishes: dict[str, Any] | None = None
    ) -> tuple[float, int]:
        """(seconds to the first token of a prompt, tokens that were not computed)."""
        params = sampling(1, wishes)
        start = time.perf_counter()
        (output,) = self.llm.generate(
            [TokensPrompt(prompt_token_ids=tokens)], params, use_tqdm=False
        )
        return time.perf_counter() - start, output.num_cached_tokens or 0

    def decode(self, prompts: list[list[int]], n_tokens: int) -> list[float]:
        """Seconds of each step in which requests that run at once generate."""
        engine = self.llm.llm_engine
        params = SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True)
        for i, tokens in enumerate(prompts):
            name = f"decode-{time.monotonic_ns()}-{i}"
            engine.add_request(name, TokensPrompt(prompt_token_ids=tokens), params)
        seconds = []
        while engine.has_unfinished_requests():
            start = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - start)
        return seconds

    def beside(
        self, plain: list[list[int]], blended: list[tuple[list[int], dict[str, Any]]], n: int
    ) -> tuple[float, float, float]:
        """Plain requests that generate n tokens each while blended ones come one after another:
        (seconds of all of it, inside the connector, of that on blending itself)."""
        engine = self.llm.llm_engine
        counters = self.connector._blending.counters.values
        before = counters.get("blend_seconds", 0.0)
        self.in_calls()
        names = itertools.count(time.monotonic_ns())
        start = time.perf_counter()
        for tokens in plain:
            prompt = TokensPrompt(prompt_token_ids=tokens)
            engine.add_request(f"plain-{next(names)}", prompt, sampling(n))
        for tokens, wishes in blended:
            prompt = TokensPrompt(prompt_token_ids=tokens)
            engine.add_request(f"blended-{next(names)}", prompt, sampling(2, wishes))
            for _ in range(n // len(blended)):
                engine.step()
        while engine.has_unfinished_requests():
            engine.step()
        seconds = time.perf_counter() - start
        return seconds, self.in_calls(), counters["blend_seconds"] - before

    def tokens_of(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def distribution(self, tokens: list[int], wishes: dict[str, Any] | None = None) -> list[float]:
        """Log-probabilities of the whole vocabulary for the first token of an answer; needs
        max_logprobs=-1."""
        params = sampling(1, wishes, logprobs=-1)
        prompt = TokensPrompt(prompt_token_ids=tokens)
        (output,) = self.llm.generate([prompt], params, use_tqdm=False)
        (row,) = output.outputs[0].logprobs
        return [row[token].logprob for token in range(len(row))]

    def ask(
        self,
        prompts: list[Any],
        max_tokens: int,
        together: bool = False,
        wishes: list[dict[str, Any] | None] | None = None,
        handed: list[dict[str, Any] | None] | None = None,
    ) -> list[Answer]:
        """Greedy answers, one request at a time unless `together`. `handed` is what another engine
        has told of these requests."""
        params = [
            sampling(max_tokens, wish, logprobs=0) for wish in wishes or [None] * len(prompts)
        ]
        for one, told in zip(params, handed or ()):
            one.extra_args = {"kv_transfer_params": told}
        pairs = list(zip(prompts, params))
        batches = [pairs] if together else [[pair] for pair in pairs]
        answers = []
        for batch in batches:
            texts, settings = zip(*batch)
            for output in self.llm.generate(list(texts), list(settings), use_tqdm=False):
                one = output.outputs[0]
                answers.append(
                    Answer(
                        list(one.token_ids),
                        [step[token].logprob for token, step in zip(one.token_ids, one.logprobs)],
                        output.num_cached_tokens or 0,
                        output.kv_transfer_params,
                    )
                )
        return answers


class Remote:
    """The same in a process of its own, forked from this one: vLLM keeps its connector in a global
    variable, so that engines which live at the same time need a process each. Every method of
    Engine that takes and gives plain values may be called."""

    def __init__(self, options: dict[str, Any] | None, role: str = "kv_both", **more: Any) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, options, role, more))
        self._process.start()
        other.close()
        self._receive()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._pipe.send((name, args, kwargs))
            return self._receive()

        return call

    def _receive(self) -> Any:
        kind, value = self._pipe.recv()
        if kind == "error":
            raise RuntimeError(value)
        return value

    def close(self) -> None:
        if self._process is not None:
            self._pipe.send(("close", (), {}))
            self._receive()
            self._process.join(60)
            self._process = None


def _serve(pipe: Any, options: Any, role: str, more: dict[str, Any]) -> None:
    try:
        engine = Engine(options, role, **more)
        pipe.send(("value", None))
        while True:
            name, args, kwargs = pipe.recv()
            pipe.send(("value", getattr(engine, name)(*args, **kwargs)))
            if name == "close":
                return
    except BaseException as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))
        raise


def evict(connector: Any, rank: int) -> int:
    """Drops what one rank has in the cache, leased chunks excepted; how many entries."""
    lib = library()
    desc = describe(connector._shape)
    desc.c.spaces[rank].block_tokens = connector._scheduler.chunk_tokens
    space = ctypes.c_void_p()
    handle = connector._cache.handle
    check(lib.tsr_space_open(ctypes.byref(space), handle, ctypes.byref(desc.c.spaces[rank])))
    order = c.ClearDesc(ctypes.sizeof(c.ClearDesc), space, None, -1)
    try:
        return check(lib.tsr_cache_clear(handle, ctypes.byref(order)))
    finally:
        lib.tsr_space_close(space)


def scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="tessera-vllm-")


@contextlib.contextmanager
def full_disk() -> Iterator[str]:
    """A folder on a file system without room; unittest.SkipTest where none can be mounted."""
    with scratch() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "none", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise unittest.SkipTest(f"no small file system can be mounted: {done.stderr.strip()}")
        try:
            _fill(os.path.join(folder, "ballast"))
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def _fill(file: str) -> None:
    size = 1 << 20
    with open(file, "wb", buffering=0) as stream:
        while size:
            try:
                stream.write(bytes(size))
            except OSError:
                size //= 2


_PLACES = "harbour library mountain station market museum garden factory".split()
_PEOPLE = [
    "a painter",
    "two engineers",
    "an old sailor",
    "the new teacher",
    "a careful baker",
    "three students",
    "the night guard",
    "a young doctor",
]
_DEEDS = [
    "was looking for a map that had been lost for a hundred years",
    "wrote a long letter about the weather and the price of bread",
    "found a small machine which nobody knew how to repair",
    "told everybody that the train would arrive before noon",
    "kept a list of all the birds that came in the autumn",
    "wanted to know why the clock in the tower had stopped",
    "learned to play the violin although the walls were thin",
    "measured the river every day and drew a chart of it",
]


def story(number: int, sentences: int) -> str:
    """Plain English that differs from its first words on; the same for the same numbers."""
    parts = [f"Story number {number}."]
    for i in range(sentences):
        who = _PEOPLE[(number * 3 + i * 5) % 8]
        where = _PLACES[(number // 8 + i * 3 + number) % 8]
        what = _DEEDS[(number + i * (1 + number % 7)) % 8]
        parts.append(f"At the {where} {who} {what}.")
    parts.append("What happened next? The")
    return " ".join(parts)
