"""Several ranks blend as one does: two workers of vLLM with half of the heads each give the answers
of one, select the same rows, draft the same answers, let a gate decide the same, and find together
again when one of them has lost what it had."""

import ctypes
import dataclasses
import multiprocessing
import os
import random
import tempfile
import unittest
from array import array
from collections import Counter
from types import SimpleNamespace

import engines
import small_models
import torch
from vllm import LLM, SamplingParams, TokensPrompt

from tessera import _c as c
from tessera.blend import Ask, Blend
from tessera.blend_job import BlendJob, BlendSettings, space_salt
from tessera.vllm import TesseraConnector, plugin
from tessera.vllm.blend import BlendWorker, _Agreed, _Apart, _Lane

plugin.register()
TOLERANCE = 1e-4
DOCUMENTS = (150, 90, 130)
SETTINGS = ((1.0, "full"), (0.0, "none"), (0.3, "query"), (0.3, "hkvd"))
# A bias, a draft of the answer, and a gate: one that accepts nothing, and one that accepts all.
PROFILE = """selector: query
context: same
ratio: 0.2
query_rows: 9
rounds: [0.2, 0.5]
bias: [[0, -0.7], [0.5, -0.4]]
draft: 4
draft_selects: 1
gate_limit: 0.5
gate: {{constant: {}, agree: 0.1}}
"""
STRICT, LAX = -9, 9
_start_blending = TesseraConnector._start_blending
_models = []  # what workers have said of theirs


def _noted(self, model):
    _models.append(model)
    _start_blending(self, model)


TesseraConnector._start_blending = _noted


def prompt(order):
    """(tokens, segments)"""
    source = random.Random(1)
    text = [[source.randrange(small_models.VOCAB) for _ in range(n)] for n in (17, *DOCUMENTS, 9)]
    tokens, segments = [], []
    for one in (text[0], *(text[1 + i] for i in order)):
        segments.append((len(tokens), len(one)))
        tokens += one
    return tokens + text[-1], segments


class Engine:
    def __init__(self, model, ranks, profile=None):
        blend = {"min_tokens": 0, "first": "fill", "weigh": False}
        if profile is not None:
            blend["profile"] = profile
        self.llm = LLM(
            model=model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=4,
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            block_size=engines.BLOCK,
            disable_log_stats=True,
            tensor_parallel_size=ranks,
            distributed_executor_backend="mp" if ranks > 1 else None,
            kv_transfer_config=engines.transfer_config({"host_size": "64M", "blend": blend}),
        )

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()

    @property
    def connector(self):
        return self.llm.llm_engine.engine_core.engine_core.scheduler.connector

    def filled(self):
        return self.connector._counters().get("blend_tokens_filled", 0)

    def ask(self, tokens, segments=None, ratio=0.0, selector=None):
        """(tokens, log-probabilities, tokens that vLLM did not compute)"""
        marks = {"segments": segments, "system": True, "ratio": ratio, "selector": selector}
        extra = {"kv_transfer_params": {"tessera": marks}} if segments is not None else None
        params = SamplingParams(
            temperature=0,
            max_tokens=5,
            logprobs=0,
            ignore_eos=True,
            detokenize=False,
            extra_args=extra,
        )
        (output,) = self.llm.generate(
            [TokensPrompt(prompt_token_ids=tokens)], params, use_tqdm=False
        )
        self.told = (output.kv_transfer_params or {}).get("tessera", {})
        one = output.outputs[0]
        weights = [step[token].logprob for token, step in zip(one.token_ids, one.logprobs)]
        return list(one.token_ids), weights, output.num_cached_tokens

    def answers(self):
        """Plain ones first, then those of every setting, for two orders of the documents."""
        found = []
        for order in ((0, 1, 2), (2, 0, 1)):
            tokens, segments = prompt(order)
            found.append(self.ask(tokens))
            found += [self.ask(tokens, segments, *setting) for setting in SETTINGS]
        return found

    def judged(self):
        """What the profile makes of two orders, the second of them known: answers and reports."""
        found = []
        for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
            tokens, segments = prompt(order)
            answer = self.ask(tokens, segments, None)
            keys = ("blended", "n_recomputed", "n_reused", "reasons", "bias", "sure")
            found.append((answer, {key: self.told.get(key) for key in keys}))
        return found


class TestEngines(unittest.TestCase):
    def assert_same(self, got, want):
        self.assertEqual(got[0], want[0])
        self.assertLess(max(abs(a - b) for a, b in zip(got[1], want[1])), TOLERANCE)

    def test_two_ranks_are_one(self):
        with tempfile.TemporaryDirectory() as folder:
            model = small_models.make(folder, "llama")
            engine = Engine(model, 1)
            alone = engine.answers()
            engine.close()
            engine = Engine(model, 2)
            try:
                pair = engine.answers()
                for i, (got, want) in enumerate(zip(pair, alone, strict=True)):
                    with self.subTest(i):
                        self.assert_same(got, want)
                n = len(SETTINGS) + 1
                for first in (0, n):
                    self.assert_same(pair[first + 1], pair[first])  # all computed is a prefill
                    for one in pair[first + 1 : first + n]:
                        self.assertEqual(one[2], 17 + sum(DOCUMENTS))
                self.one_rank_loses(engine, alone[n + 2])
                self.both_learn(engine, pair[0])
            finally:
                engine.close()

    def test_two_ranks_judge_as_one(self):
        with tempfile.TemporaryDirectory() as folder:
            model = small_models.make(folder, "llama")
            for constant in (STRICT, LAX):
                profile = os.path.join(folder, f"{constant}.yaml")
                with open(profile, "w") as file:
                    file.write(PROFILE.format(constant))
                found = []
                for ranks in (1, 2):
                    engine = Engine(model, ranks, profile)
                    try:
                        found.append(engine.judged())
                    finally:
                        engine.close()
                for i, ((want, alone), (got, pair)) in enumerate(zip(*found, strict=True)):
                    with self.subTest(constant=constant, prompt=i):
                        print(f"    gate {constant}: {pair}")
                        self.assert_same(got, want)
                        self.assertAlmostEqual(alone.pop("sure"), pair.pop("sure"), 3)
                        self.assertEqual(pair, alone)
                        self.assertTrue(pair["blended"])
                        self.assertEqual("full" in pair["reasons"], constant == STRICT)

    def both_learn(self, engine, plain):
        """After a first answer, which is vLLM's own, both have the documents."""
        core = engine.llm.llm_engine.engine_core.engine_core
        blending = engine.connector._blending
        blending.settings = dataclasses.replace(blending.settings, first=None)
        blending.reset()
        tokens, segments = prompt((0, 1, 2))
        self.assert_same(engine.ask(tokens, segments, None), plain)
        self.assertTrue(engine.told["first"])
        while core.scheduler.has_requests():
            core.step_fn()
        self.assertGreaterEqual(blending.counters.values["blend_tokens_learned"], sum(DOCUMENTS))
        engine.ask(tokens, segments, None)
        self.assertEqual((engine.told["blended"], engine.told["n_filled"]), (True, 0))

    def one_rank_loses(self, engine, want):
        """What is gone for one of them is computed by both, once."""
        tokens, segments = prompt((2, 0, 1))
        connector = engine.connector
        info = c.ModelInfo.from_buffer_copy(_models[-1])
        blend = Blend(connector._cache.handle, info, salt=space_salt(None, b"", 1, 2))
        ask = Ask(array("I", tokens).tobytes(), segments, True)
        self.assertEqual(blend.forget(ask), 4)
        blend.close()
        before = engine.filled()
        self.assert_same(engine.ask(tokens, segments, 0.0, "none"), want)
        again = engine.filled()
        self.assertGreater(again, before)
        self.assert_same(engine.ask(tokens, segments, 0.0, "none"), want)
        self.assertEqual(engine.filled(), again)


def _rank(number, path, steps, results):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=number, world_size=2
    )
    agreed = _Agreed(None, torch.distributed.group.WORLD, 2)
    try:
        for step in steps[number]:
            agreed.agree(*step)
        results.put((number, "together"))
    except _Apart:
        results.put((number, "apart"))
    torch.distributed.destroy_process_group()


class _Speaker:
    """An executor of a rank whose logits are its own."""

    def __init__(self, number):
        self.number = number

    def logits(self, keep, out):
        if self.number != 1 or len(keep) < 2:  # the other rank may have none
            out[:] = [float(self.number + i) for i in range(len(out))]


def _speaks(number, path, keeps, results):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=number, world_size=2
    )
    agreed = _Agreed(_Speaker(number), torch.distributed.group.WORLD, 2)
    keep = (ctypes.c_uint32 * len(keeps[number]))(*keeps[number])
    out = (ctypes.c_float * (3 * len(keep)))()
    try:
        agreed.logits(keep, out)
        results.put((number, list(out)))
    except _Apart:
        results.put((number, "apart"))
    torch.distributed.destroy_process_group()


class _Stub:
    """The blend and the memory of a rank that is about to blend."""

    n_primer = 0

    def __init__(self, ranks, forgets):
        self.ranks = ranks
        self.forgets = forgets

    def prepare(self, *what):
        pass

    def layout(self):
        pass

    def paged(self):
        pass

    def run(self, ask, layout, executor, paged):
        self.ranks.agree(1, 2, 3)
        return {}

    def forget(self, ask):
        if not self.forgets:
            raise OSError("no answer")


def _worker(number, path, kinds, results):
    """A rank that blends, has given up, gets no space, or cannot forget."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=number, world_size=2
    )
    kind = kinds[number]
    worker = BlendWorker.__new__(BlendWorker)
    worker._ranks = _Agreed(None, torch.distributed.group.WORLD, 2)
    worker._settings, worker._timeout_ms = BlendSettings(), 0
    worker._block, worker._used, worker._old = 32, Counter(), set()
    lane = _Lane(_Stub(worker._ranks, kind != "forgets not"), SimpleNamespace())

    def opened(salt):
        if kind == "no space":
            raise OSError("no space")
        return lane.place

    worker._opened, worker._turns = opened, SimpleNamespace(beside=False)
    job = BlendJob(1, bytes(40), (), False, 5, (0,), None, None, b"")
    try:
        if kind == "gone":
            worker.decline()
        else:
            for _piece in worker._blend(job, lane):
                pass
        results.put((number, "done"))
    except (OSError, _Apart) as error:
        results.put((number, type(error).__name__))
    torch.distributed.destroy_process_group()


class TestAgreement(unittest.TestCase):
    def outcome(self, *steps, target=_rank):
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "meet")
            ranks = [
                context.Process(target=target, args=(i, path, steps, results)) for i in range(2)
            ]
            for rank in ranks:
                rank.start()
            found = dict(results.get(timeout=120) for _ in ranks)
            for rank in ranks:
                rank.join()
        return found[0], found[1]

    def test_ranks_go_on_together_and_give_up_together(self):
        same = [(1, 2, 3), (2, 0), (2, 1), (5,)]
        self.assertEqual(self.outcome(same, same), ("together", "together"))
        other = same[:2] + [(1, 2, 4)]  # begins anew where the other runs its next layer
        self.assertEqual(self.outcome(same, other), ("apart", "apart"))

    def test_the_first_ranks_logits_count(self):
        for keep in ([4], [4, 5]):
            want = [float(i) for i in range(3 * len(keep))]
            self.assertEqual(self.outcome(keep, keep, target=_speaks), (want, want))
        self.assertEqual(self.outcome([4], [5], target=_speaks), ("apart", "apart"))

    def test_no_rank_waits_for_one_that_will_not_come(self):
        for kinds, want in {
            ("blends", "blends"): ("done", "done"),
            ("blends", "gone"): ("_Apart", "done"),
            ("gone", "gone"): ("done", "done"),
            ("blends", "no space"): ("_Apart", "OSError"),
            ("gone", "no space"): ("done", "OSError"),
            ("forgets not", "gone"): ("OSError", "done"),
            ("forgets not", "no space"): ("OSError", "OSError"),
        }.items():
            with self.subTest(kinds=kinds):
                self.assertEqual(self.outcome(*kinds, target=_worker), want)


if __name__ == "__main__":
    unittest.main()
