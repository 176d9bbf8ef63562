"""Blending inside the real vLLM on a CPU: equal to vLLM where everything is computed, close to it
where little is, documents found in any order, and nothing approximate in an exact cache.

One engine without a connector says what is right; one with blending, and with vLLM's own prefix
cache, does everything else; a third one comes after a restart over a disk that lies; a fourth has a
primer. Equality is claimed as in test_engine. Tests run in their order and share what they have
computed.
"""

import os
import statistics
import unittest
from pathlib import Path

import rag
from engines import BLOCK, Engine, scratch, story
from test_engine import TIGHT, TOLERANCE, spoil
from vllm import SamplingParams, TokensPrompt

N_PROMPTS = int(os.environ.get("TESSERA_TEST_PROMPTS", "64"))
TOKENS = 6
SETTINGS = dict(TIGHT, max_logprobs=-1, enable_prefix_caching=True)
LONG = story(42, 40) + " Who was it?"  # a question that is computed in several chunks
CHAT = "You are helpful.##{document}##What is it about? It is about"


class Shared:
    """What is right, and the folder of the cache's disk."""

    small = None  # prompts of two documents each, and their answers
    small_answers = None
    large = None  # all documents
    large_rows = None
    long_answer = None
    plain_story = None
    folder = None
    stored = None


def options(**more):
    blend = {"min_tokens": 1, "separators": ["##"], "any_offset": True}
    disk = dict(disk_path=Shared.folder.name, disk_size="1G", disk_segment_size="16M")
    return {"chunk_size": BLOCK, "host_size": "1G", "blend": blend, **disk, **more}


def setUpModule():
    Shared.folder = scratch()


def tearDownModule():
    Shared.folder.cleanup()


def small_prompts(encode):
    """Two documents and a question; no two prompts are the same."""
    made = []
    for i, documents in enumerate(rag.orders(5, N_PROMPTS)):
        question = rag.QUESTIONS[i % len(rag.QUESTIONS)][0]
        made.append(rag.Prompt(encode, documents[:2], rag.question_text(f"({i}) {question}")))
    return made


def tokens_of(made):
    return TokensPrompt(prompt_token_ids=made.tokens)


class BlendTest(unittest.TestCase):
    maxDiff = None

    def assert_same(self, answers, expected):
        worst = 0.0
        for i, (got, want) in enumerate(zip(answers, expected, strict=True)):
            self.assertEqual(got.tokens, want.tokens, f"prompt {i}")
            worst = max(worst, *(abs(a - b) for a, b in zip(got.logprobs, want.logprobs)))
        self.assertLess(worst, TOLERANCE)
        return worst


class Test1Alone(BlendTest):
    def test_vllm_without_a_connector(self):
        with Engine(None, **SETTINGS) as engine:
            encode = engine.tokens_of
            Shared.small = small_prompts(encode)
            Shared.small_answers = engine.ask([tokens_of(p) for p in Shared.small], TOKENS)
            Shared.large = rag.prompts(encode, min(len(rag.QUESTIONS), N_PROMPTS))
            Shared.large_rows = [engine.distribution(p.tokens) for p in Shared.large]
            Shared.long = rag.Prompt(encode, list(rag.DOCUMENTS.values())[:1], LONG)
            (Shared.long_answer,) = engine.ask([tokens_of(Shared.long)], TOKENS)
            (Shared.plain_story,) = engine.ask([story(1, 8)], TOKENS)


class Test2Blended(BlendTest):
    @classmethod
    def setUpClass(cls):
        cls.engine = Engine(options(), **SETTINGS)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def blend(self, made, n=TOKENS, **wishes):
        """The answer to a prompt, and what is told of it."""
        (answer,) = self.engine.ask([tokens_of(made)], n, wishes=[made.wishes(**wishes)])
        return answer, answer.told["tessera"]

    def counters(self):
        return dict(self.engine.connector._blending.counters.values)

    def test_01_everything_computed_is_plain_vllm(self):
        asked = [tokens_of(p) for p in Shared.small]
        answers = self.engine.ask(asked, TOKENS, wishes=[p.wishes(ratio=1) for p in Shared.small])
        worst = self.assert_same(answers, Shared.small_answers)
        print(f"    {len(asked)} prompts, largest difference of a log-probability {worst:.2e}")
        for made, answer in zip(Shared.small, answers):
            self.assertTrue(answer.told["tessera"]["blended"])
            self.assertEqual(answer.told["tessera"]["bias"], 0)
            self.assertEqual(answer.cached, made.n_context)
        self.assertEqual(self.counters()["blend_runs"], len(asked))

    def test_02_a_long_question_is_computed_in_chunks(self):
        self.assertGreater(len(Shared.long.tokens) - Shared.long.n_context, 256)
        answer, told = self.blend(Shared.long, ratio=1)
        self.assert_same([answer], [Shared.long_answer])

    def test_03_shuffled_documents_hit(self):
        for made in Shared.large:  # all are known after the first
            _answer, told = self.blend(made, ratio=0.05)
        self.assertEqual(told["n_filled"], 0)
        self.assertEqual(told["n_new"], 0)
        known = told["n_exact"] + told["n_reused"] + told["n_recomputed"]
        self.assertEqual(known, made.n_context)
        self.assertGreater(told["n_recomputed"], 0)
        self.assertLess(told["n_recomputed"], 0.15 * made.n_context)
        _answer, told = self.blend(Shared.large[0], ratio=0)
        self.assertEqual(told["n_recomputed"], 0)
        print(f"    {told}")

    def test_04_answers_are_close_to_plain_vllm(self):
        """KL(vLLM || blended) of the first token, nothing and a twentieth computed anew."""
        means = {}
        for ratio in (0, 0.05, 1):
            rows = [self.engine.distribution(p.tokens, p.wishes(ratio=ratio)) for p in Shared.large]
            means[ratio] = statistics.mean(map(rag.divergence, Shared.large_rows, rows))
        print(f"    KL at the first token, {len(rows)} questions, by ratio: {means}")
        self.assertLess(means[1], 1e-6)
        self.assertLess(means[0.05], 0.9 * means[0])
        self.assertLess(means[0.05], 0.3)

    def test_05_selectors(self):
        made = Shared.large[0]
        for selector in ("query", "hkvd", "link", "none", "full"):
            _answer, told = self.blend(made, selector=selector, ratio=0.1)
            self.assertEqual(told["selector"], selector)
            self.assertEqual(told["n_recomputed"] == 0, selector == "none", told)

    def test_06_nothing_approximate_is_in_an_exact_cache(self):
        made = Shared.small[0]
        self.blend(made, ratio=0)
        (plain,) = self.engine.ask([tokens_of(made)], TOKENS)
        self.assertEqual(plain.cached, 0)
        self.assert_same([plain], [Shared.small_answers[0]])
        (again,) = self.engine.ask([tokens_of(made)], TOKENS)
        self.assertGreater(again.cached, made.n_context // 2)
        self.assert_same([again], [Shared.small_answers[0]])
        answer, told = self.blend(made, ratio=1)  # and the other way round
        self.assertEqual(answer.cached, made.n_context)
        self.assertIsNone(plain.told)

    def test_07_separators(self):
        """Documents are cut out of a text, stored after its answer, which is plain vLLM's, found
        again behind another one, and reported."""
        document = "Story time. " + story(3, 12)
        encode = self.engine.tokenizer.encode
        told, answers = [], []
        for i in (0, 1, 0):
            tokens = encode(CHAT.format(document=document)) + encode(f" number {i}")
            prompt = TokensPrompt(prompt_token_ids=tokens)
            wishes = [{"blend": False}] if len(answers) == 2 else None
            answers += self.engine.ask([prompt], TOKENS, wishes=wishes)
            told.append((answers[-1].told or {}).get("tessera"))
            self.engine.settle()
        self.assert_same([answers[0]], [answers[2]])
        self.assertEqual([one["n_segments"] for one in told[:2]], [2, 2])
        self.assertTrue(told[0]["first"])
        self.assertEqual((told[1]["blended"], told[1]["n_filled"]), (True, 0))
        self.assertGreater(self.counters()["blend_tokens_learned"], 100)

    def test_08_a_document_behind_another_system_prompt(self):
        """Every chunk for itself, the system prompt too: a miss, then a hit with other texts
        around it and at another place."""
        document = "Story time. " + story(4, 12)
        first = f"You are helpful.##{document}##What is it about?"
        second = f"You are a poet, and patient.##A short note.##{document}##Make it rhyme!"
        wishes = [{"system": False, "ratio": 0.05}]
        (cold,) = self.engine.ask([first], TOKENS, wishes=wishes)
        (warm,) = self.engine.ask([second], TOKENS, wishes=wishes)
        cold, warm = cold.told["tessera"], warm.told["tessera"]
        n_document = len(self.engine.tokens_of(document + "##"))
        self.assertGreaterEqual(cold["n_filled"], n_document)
        self.assertLess(warm["n_filled"], 20)
        self.assertGreater(warm["n_reused"] + warm["n_recomputed"], n_document - 5)

    def test_09_stored_text_at_any_offset(self):
        document = "Story time. " + story(4, 12)  # of the test before
        prompt = f"Somebody wrote this down. {document} And that was all. Was it?"
        answer = self.engine.ask([prompt], TOKENS)[0]
        told = answer.told["tessera"]
        self.assertEqual(told["n_segments"], 0)
        n_document = len(self.engine.tokens_of(document))
        self.assertGreater(told["n_reused"] + told["n_recomputed"], n_document // 2)
        self.assertLess(told["n_new"], 40)

    def test_10_malformed_and_off_are_plain(self):
        made, want = Shared.small[1], Shared.small_answers[1]
        before = self.counters().get("blend_malformed", 0)
        bad = {"segments": [[0, 10], [5, 10]]}
        (answer,) = self.engine.ask([tokens_of(made)], TOKENS, wishes=[bad])
        self.assert_same([answer], [want])
        self.assertFalse(answer.told["tessera"]["blended"])
        self.assertEqual(self.counters()["blend_malformed"], before + 1)
        (answer,) = self.engine.ask([tokens_of(made)], TOKENS, wishes=[made.wishes(blend=False)])
        self.assert_same([answer], [want])
        self.assertIsNone(answer.told)

    def test_11_salts_share_nothing(self):
        made = Shared.small[2]
        filled = []
        for salt in "aab":
            prompt = TokensPrompt(prompt_token_ids=made.tokens, cache_salt=salt)
            (answer,) = self.engine.ask([prompt], TOKENS, wishes=[made.wishes(ratio=0)])
            filled.append(answer.told["tessera"]["n_filled"])
        self.assertEqual(filled, [made.n_context, 0, made.n_context])

    def test_12_blended_and_plain_at_once(self):
        """More than the KV memory holds: chunks, preemptions, and requests that go away."""
        scheduler = self.engine.core.scheduler
        preempted = []
        original = scheduler._preempt_request

        def watched(request, *args, **kwargs):
            preempted.append(self.engine.connector._blending.has(request.request_id))
            return original(request, *args, **kwargs)

        scheduler._preempt_request = watched
        prompts, wishes = [], []
        for i in range(8):
            made = Shared.large[i % len(Shared.large)]
            prompts += [story(1, 8), tokens_of(made)]
            wishes += [None, made.wishes(ratio=0.05)]
        # One after the other goes away, at any moment of its life.
        engine = self.engine.llm.llm_engine
        for i in range(6):
            name = f"gone-{i}"
            params = SamplingParams(
                max_tokens=40, extra_args={"kv_transfer_params": {"tessera": wishes[1]}}
            )
            engine.add_request(name, prompts[1], params)
            for _ in range(i):
                engine.step()
            engine.abort_request([name])
        while engine.has_unfinished_requests():
            engine.step()
        answers = self.engine.ask(prompts, 100, together=True, wishes=wishes)
        scheduler._preempt_request = original
        self.assertEqual([len(answer.tokens) for answer in answers], [100] * len(prompts))
        self.assertTrue(any(preempted), f"{len(preempted)} preempted, none of them blended")
        for plain, blended in zip(answers[::2], answers[1::2]):
            self.assertTrue(blended.told["tessera"]["blended"])
            self.assertIsNone(plain.told)
            self.assertEqual(plain.tokens[:TOKENS], Shared.plain_story.tokens)
        self.engine.settle()
        blending = self.engine.connector._blending
        self.assertEqual((blending._blended, blending._refused), ({}, {}))
        pool = scheduler.kv_cache_manager.block_pool
        self.assertEqual(pool.get_num_free_blocks(), TIGHT["num_gpu_blocks_override"] - 1)
        print(f"    {sum(preempted)} blended of {len(preempted)} preempted; {self.counters()}")
        self.assertNotIn("blend_failed", self.counters())
        self.assertEqual(self.engine.connector._complaints, set())


class Test3Restart(BlendTest):
    """Another engine over the same disk, which has been spoiled meanwhile."""

    def test_a_disk_that_lies_costs_time_only(self):
        spoiled = 0
        for file in Path(Shared.folder.name).rglob("*"):
            if file.is_file() and file.stat().st_size > 1 << 20:
                spoil(file)
                spoiled += 1
        self.assertGreater(spoiled, 0)
        with Engine(options(), **SETTINGS) as engine:
            few = list(zip(Shared.small, Shared.small_answers))[:4]
            for made, want in few:
                wishes = [made.wishes(ratio=1)]
                (answer,) = engine.ask([tokens_of(made)], TOKENS, wishes=wishes)
                self.assert_same([answer], [want])
            made, row = Shared.large[0], Shared.large_rows[0]
            kl = rag.divergence(row, engine.distribution(made.tokens, made.wishes(ratio=0.05)))
            counters = engine.connector._blending.counters.values
            print(f"    KL {kl:.3f}; {counters}")
            self.assertLess(kl, 0.5)
            self.assertGreater(counters["blend_tokens_failed"], 0)
            self.assertNotIn("blend_failed", counters)


class Test4Primer(BlendTest):
    """An engine whose profile has documents computed after a primer."""

    def test_one_document_serves_every_system_prompt(self):
        profile = os.path.join(Shared.folder.name, "primer.yaml")
        Path(profile).write_text("context: primer\n")
        own = os.path.join(Shared.folder.name, "primed")
        blend = {"min_tokens": 1, "separators": ["##"], "any_offset": True, "profile": profile}
        with Engine(options(blend=blend, disk_path=own), **SETTINGS) as engine:
            made, want = Shared.small[0], Shared.small_answers[0]
            (answer,) = engine.ask([tokens_of(made)], TOKENS, wishes=[made.wishes(ratio=1)])
            self.assert_same([answer], [want])
            document = "Story time. " + story(4, 12)
            n_document = len(engine.tokens_of(document + "##"))
            filled = []
            for system in ("You are helpful.", "You are a poet, and patient.", "Be brief."):
                chat = f"{system}##A short note.##{document}##What is it about?"
                (answer,) = engine.ask([chat], TOKENS, wishes=[{"system": True, "ratio": 0}])
                filled.append(answer.told["tessera"]["n_filled"])
            self.assertGreaterEqual(filled[0], n_document)
            self.assertLess(max(filled[1:]), 20)
            prompt = f"Somebody wrote this down. {document} And that was all. Was it?"
            (answer,) = engine.ask([prompt], TOKENS)
            told = answer.told["tessera"]
            self.assertGreater(told["n_reused"] + told["n_recomputed"], n_document // 2)
            counters = engine.connector._blending.counters.values
            self.assertNotIn("blend_failed", counters)


class Test5Corrections(BlendTest):
    """Profiles with a bias or a gate: the worker computes the question too."""

    def engine(self, name, text):
        profile = os.path.join(Shared.folder.name, f"{name}.yaml")
        Path(profile).write_text(text)
        blend = {"min_tokens": 1, "profile": profile, "first": "fill"}
        own = os.path.join(Shared.folder.name, name)
        return Engine(options(blend=blend, disk_path=own), **SETTINGS)

    def test_a_gate_that_is_never_sure_ends_with_the_answer_of_plain_vllm(self):
        gate = "gate: {constant: -9}\ngate_limit: 0.5\nrounds: [0.1, 0.3]\ndraft: 4\n"
        with self.engine("gate", gate) as engine:
            for made, want in zip(Shared.small[:3], Shared.small_answers):
                (answer,) = engine.ask([tokens_of(made)], TOKENS, wishes=[made.wishes()])
                self.assert_same([answer], [want])
                told = answer.told["tessera"]
                self.assertEqual((told["sure"], told["n_rounds"]), (1.0, 2))
                self.assertIn("full", told["reasons"])
                self.assertEqual(answer.cached, len(made.tokens) - 1)
            # A given ratio is one round: the gate judges it and changes nothing.
            made = Shared.small[0]
            (answer,) = engine.ask([tokens_of(made)], TOKENS, wishes=[made.wishes(ratio=0.1)])
            told = answer.told["tessera"]
            self.assertLess(told["sure"], 0.5)
            self.assertEqual(told["n_rounds"], 1)

    def test_the_bias_of_a_profile_acts_and_is_reported(self):
        made = Shared.small[0]
        rows = []
        for bias in (0, -3):
            with self.engine(f"bias{bias}", f"bias: [[0, {bias}]]\n") as engine:
                asked = [tokens_of(made)], TOKENS
                (answer,) = engine.ask(*asked, wishes=[made.wishes(ratio=0)])
                rows.append(answer)
                self.assertEqual(answer.told["tessera"]["bias"], bias)
        worst = max(abs(a - b) for a, b in zip(rows[0].logprobs, rows[1].logprobs))
        self.assertGreater(worst, 1e-3)


if __name__ == "__main__":
    unittest.main(verbosity=2, failfast=False)
