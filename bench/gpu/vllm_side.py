"""One vLLM engine for bench/gpu/vllm, in a process of its own.

    vllm_side.py SETTINGS      a JSON object, see Settings

Reads one JSON request per line from standard input and answers each with one JSON line on what was
standard output: {"op": "ask", ...} calls Side.ask. Whatever vLLM prints goes to standard error. The
engine is AsyncLLM with its engine process, as `vllm serve` has it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def prompt_tokens(seed: int, n_tokens: int, vocabulary: int) -> list[int]:
    """The same tokens for the same seed in every engine."""
    chance = random.Random(seed)
    return [chance.randrange(10, vocabulary - 300) for _ in range(n_tokens)]


def processor_seconds() -> dict[str, float]:
    """Seconds of processor time by thread name: this process and all below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it has ended
            parents[int(entry.name)] = int(fields[1])
    mine = {os.getpid()}
    while True:
        more = {one for one, parent in parents.items() if parent in mine} - mine
        if not more:
            break
        mine |= more
    seconds: dict[str, float] = {}
    for pid in mine:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                name = (task / "comm").read_text().strip()
                spent = int((task / "schedstat").read_text().split()[0]) / 1e9
            except OSError:
                continue
            seconds[name] = seconds.get(name, 0.0) + spent
    return seconds


class Side:
    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import SamplingParams
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM

        self.vocabulary = settings["vocabulary"]
        self.names = itertools.count()
        self.params = lambda n, **more: SamplingParams(
            temperature=0,
            max_tokens=n,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            **more,
        )
        arguments = settings["engine"]
        if settings["connector"]:
            arguments["kv_transfer_config"] = KVTransferConfig(
                kv_role="kv_both", kv_load_failure_policy="recompute", **settings["connector"]
            )
        self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    def prompt(self, seed: int, n_tokens: int) -> Any:
        from vllm import TokensPrompt

        return TokensPrompt(prompt_token_ids=prompt_tokens(seed, n_tokens, self.vocabulary))

    async def first(self, prompt: Any, wishes: Any = None) -> dict[str, Any]:
        """`wishes`: what the request says to Tessera."""
        params = self.params(1 if wishes is None else 3)  # the report needs a step after the first
        if wishes is not None:
            params.extra_args = {"kv_transfer_params": {"tessera": wishes}}
        start = time.perf_counter()
        seconds, found, token, told = 0.0, 0, None, None
        async for output in self.llm.generate(prompt, params, f"r{next(self.names)}"):
            if token is None and output.outputs[0].token_ids:
                seconds, token = time.perf_counter() - start, output.outputs[0].token_ids[0]
                found = output.num_cached_tokens or 0
            told = (getattr(output, "kv_transfer_params", None) or {}).get("tessera", told)
        return {"seconds": seconds, "found": found, "token": token, "told": told}

    async def documents(
        self,
        seed: int,
        question: int,
        order: list[int],
        n_tokens: int,
        n_question: int,
        wishes: dict[str, Any] | None = None,
        pause_s: float = 0.0,
    ) -> dict[str, Any]:
        """Time to the first token of a prompt of documents in this order, and a question."""
        from vllm import TokensPrompt

        tokens: list[int] = []
        segments = []
        for i in order:
            segments.append((len(tokens), n_tokens))
            tokens += prompt_tokens(seed + i, n_tokens, self.vocabulary)
        tokens += prompt_tokens(question, n_question, self.vocabulary)
        marks = None if wishes is None else {**wishes, "segments": segments}
        answer = await self.first(TokensPrompt(prompt_token_ids=tokens), marks)
        await asyncio.sleep(pause_s)
        return answer

    async def ask(self, seed: int, n_tokens: int) -> dict[str, Any]:
        """Time to the first token of a prompt, and how many tokens were not computed."""
        return await self.first(self.prompt(seed, n_tokens))

    async def again(self, seed: int, n_tokens: int, pause_s: float) -> list[dict[str, Any]]:
        """The same prompt twice, the second time pause_s after the first answer."""
        prompt = self.prompt(seed, n_tokens)
        first = await self.first(prompt)
        await asyncio.sleep(pause_s)
        return [first, await self.first(prompt)]

    async def until_found(
        self, seed: int, n_tokens: int, least: int, limit_s: float
    ) -> dict[str, Any]:
        """Asks a new prompt and repeats it every 2 s until `least` tokens are found."""
        prompt = self.prompt(seed, n_tokens)
        answer = await self.first(prompt)
        deadline = time.perf_counter() + limit_s
        while answer["found"] < least and time.perf_counter() < deadline:
            await asyncio.sleep(2)
            answer = await self.first(prompt)
        return answer

    async def stream(self, prompt: Any, n_out: int, gaps: list[float]) -> None:
        last = None
        async for output in self.llm.generate(prompt, self.params(n_out), f"r{next(self.names)}"):
            now = time.perf_counter()
            if last is not None and output.outputs[0].token_ids:
                gaps.append(now - last)
            last = now

    async def decode(
        self, seed: int, n_requests: int, n_out: int, n_arriving: int, period_s: float
    ) -> dict[str, Any]:
        """Requests that generate n_out tokens each while a new prompt of n_arriving tokens comes
        every period_s: the times between tokens, and how many prompts came."""
        gaps: list[float] = []
        running = [
            asyncio.create_task(self.stream(self.prompt(seed + i, 128), n_out, gaps))
            for i in range(n_requests)
        ]
        arrived: list[asyncio.Task[Any]] = []
        prompts = (self.prompt(seed + 100 + i, n_arriving) for i in itertools.count())
        while n_arriving and not all(task.done() for task in running):
            prompt = next(prompts)
            arrived.append(asyncio.create_task(self.first(prompt)))
            await asyncio.wait(running, timeout=period_s)
        await asyncio.gather(*running, *arrived)
        ordered = sorted(gaps)
        return {
            "p50": statistics.median(ordered),
            "p99": ordered[int(len(ordered) * 0.99)],
            "gaps": len(gaps),
            "arrived": len(arrived),
        }

    async def beside(
        self,
        seed: int,
        n_requests: int,
        n_out: int,
        period_s: float,
        documents: dict[str, int] | None,
        wishes: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Requests that generate n_out tokens each while a prompt of the same documents in another
        order comes every period_s: the times between tokens, and what became of the prompts."""
        gaps: list[float] = []
        running = [
            asyncio.create_task(self.stream(self.prompt(seed + i, 128), n_out, gaps))
            for i in range(n_requests)
        ]
        arrived: list[asyncio.Task[Any]] = []
        chance = random.Random(seed)
        while documents is not None and not all(task.done() for task in running):
            await asyncio.wait(running, timeout=period_s)
            order = chance.sample(range(documents["n"]), documents["n"])
            question, sizes = (
                seed + 500 + len(arrived),
                (documents["n_tokens"], documents["n_question"]),
            )
            one = self.documents(documents["seed"], question, order, *sizes, wishes)
            arrived.append(asyncio.create_task(one))
        await asyncio.gather(*running, *arrived)
        answers = [task.result() for task in arrived]
        ordered = sorted(gaps)
        return {
            "p50": statistics.median(ordered),
            "p99": ordered[int(len(ordered) * 0.99)],
            "gaps": len(gaps),
            "arrived": len(arrived),
            "blended": sum(bool((one["told"] or {}).get("blended")) for one in answers),
            "first_s": statistics.median(one["seconds"] for one in answers) if answers else 0.0,
        }

    async def many(
        self,
        requests: list[dict[str, Any]],
        n_out: int,
        in_flight: int,
        best: int = 0,
        ends: list[int] | None = None,
    ) -> dict[str, Any]:
        """Requests with their tokens and wishes, in_flight at a time: what each of them answered,
        with the `best` tokens of every step if wanted. `ends`: tokens that end an answer."""
        from vllm import TokensPrompt

        answers: list[dict[str, Any]] = [{} for _ in requests]
        places = asyncio.Semaphore(in_flight)

        async def one(number: int, request: dict[str, Any]) -> None:
            params = self.params(n_out, logprobs=best or None, stop_token_ids=ends or [])
            if request["wishes"] is not None:
                params.extra_args = {"kv_transfer_params": {"tessera": request["wishes"]}}
            prompt = TokensPrompt(prompt_token_ids=request["tokens"])
            answer: dict[str, Any] = {"first_s": None, "tokens": [], "best": [], "found": 0}
            told = None
            async with places:
                start = time.perf_counter()
                async for output in self.llm.generate(prompt, params, f"r{next(self.names)}"):
                    made = output.outputs[0]
                    if answer["first_s"] is None and made.token_ids:
                        answer["first_s"] = time.perf_counter() - start
                        answer["found"] = output.num_cached_tokens or 0
                    answer["tokens"] += made.token_ids
                    for step in made.logprobs or ():
                        answer["best"].append([(t, row.logprob) for t, row in step.items()])
                    told = (getattr(output, "kv_transfer_params", None) or {}).get("tessera", told)
            answers[number] = dict(answer, told=told)

        start = time.perf_counter()
        await asyncio.gather(*(one(i, request) for i, request in enumerate(requests)))
        return {"seconds": time.perf_counter() - start, "answers": answers}

    async def spent(self) -> float:
        """Seconds of processor time of this engine so far."""
        return sum(processor_seconds().values())

    async def batch(
        self, seed: int, n_prompts: int, n_tokens: int, n_out: int, in_flight: int
    ) -> dict[str, Any]:
        """Seconds for n_prompts new prompts, in_flight at a time, n_out tokens each; and the
        processor time that each kind of thread took."""
        prompts = [self.prompt(seed + i, n_tokens) for i in range(n_prompts)]
        places = asyncio.Semaphore(in_flight)

        async def one(prompt: Any) -> None:
            async with places:
                async for _ in self.llm.generate(
                    prompt, self.params(n_out), f"r{next(self.names)}"
                ):
                    pass

        before = processor_seconds()
        start = time.perf_counter()
        await asyncio.gather(*map(one, prompts))
        seconds = time.perf_counter() - start
        after = processor_seconds()
        spent = {name: round(value - before.get(name, 0), 6) for name, value in after.items()}
        return {"seconds": seconds, "threads": {k: v for k, v in spent.items() if v > 0}}


async def serve(settings: dict[str, Any], answers: Any) -> None:
    side = Side(settings)
    loop = asyncio.get_running_loop()

    def tell(kind: str, value: Any) -> None:
        print(json.dumps([kind, value]), file=answers, flush=True)

    tell("ready", None)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        op = request.pop("op")
        if op == "close":
            break
        try:
            tell("value", await getattr(side, op)(**request))
        except Exception as error:
            traceback.print_exc()
            tell("error", f"{type(error).__name__}: {error}")
    side.llm.shutdown()
    tell("value", None)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(serve(json.loads(sys.argv[1]), answers))
