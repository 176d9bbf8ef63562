"""One document, any system prompt, in the real vLLM on a CPU: with `"any_system": true`, a
document that was computed once is a hit behind every system prompt, in any order, at its first use
and later. A tiny model with random weights, so that every difference shows in an answer.

One engine without a connector says what is right.
"""

import unittest

import small_models
from engines import BLOCK, MODEL, Engine, scratch, story
from test_engine import TOLERANCE

TOKENS = 6
SYSTEMS = {
    "A": "You are a helpful assistant.",
    "B": "You are a poet. Answer in rhymes, and be patient with those who ask.",
    "C": "Be brief.",
}
DOCUMENTS = {name: f"Story {name}. " + story(7 + i, 8) for i, name in enumerate("uvw")}
QUESTION = "What is it about?"


class Shared:
    folder = None
    model = None
    right = {}  # answers of vLLM alone, by system prompt and documents


def setUpModule():
    Shared.folder = scratch()
    Shared.model = small_models.make(Shared.folder.name, "llama", tokenizer=MODEL)


def tearDownModule():
    Shared.folder.cleanup()


def engine(any_system=None, **more):
    options = None
    if any_system is not None:
        blend = {"min_tokens": 1, "separators": ["##"], "any_offset": True, **more}
        blend["any_system"] = any_system
        options = {"chunk_size": BLOCK, "host_size": "256M", "blend": blend}
    return Engine(options, model=Shared.model, max_model_len=2048, num_gpu_blocks_override=128)


def chat(system, documents):
    return "##".join([SYSTEMS[system], *(DOCUMENTS[one] for one in documents), QUESTION])


def ask(of, system, documents, ratio=0):
    (answer,) = of.ask([chat(system, documents)], TOKENS, wishes=[{"ratio": ratio}])
    return answer


class ContextTest(unittest.TestCase):
    def assert_same(self, got, want):
        self.assertEqual(got.tokens, want.tokens)
        self.assertLess(max(abs(a - b) for a, b in zip(got.logprobs, want.logprobs)), TOLERANCE)

    def length(self, of, *parts):
        return sum(len(of.tokenizer.encode(part + "##")) for part in parts)


class Test1Alone(ContextTest):
    def test_vllm_without_a_connector(self):
        with engine() as alone:
            for system, documents in (("B", "vu"), ("C", "wuv")):
                (answer,) = alone.ask([chat(system, documents)], TOKENS)
                Shared.right[system, documents] = answer


class Test2Primer(ContextTest):
    @classmethod
    def setUpClass(cls):
        cls.engine = engine(True)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def filled(self, system, documents):
        return ask(self.engine, system, documents).told["tessera"]["n_filled"]

    def test_1_a_document_is_a_hit_behind_every_system_prompt(self):
        cold = self.filled("A", "uv")
        self.assertGreaterEqual(cold, self.length(self.engine, DOCUMENTS["u"], DOCUMENTS["v"]) - 2)
        for system, documents in (("B", "vu"), ("C", "u"), ("C", "vu"), ("A", "vu"), ("B", "uv")):
            # The system prompt itself may be new.
            most = self.length(self.engine, SYSTEMS[system])
            self.assertLessEqual(self.filled(system, documents), most, (system, documents))
        # One that is new between two that are known.
        most = self.length(self.engine, SYSTEMS["C"], DOCUMENTS["w"])
        self.assertLessEqual(self.filled("C", "uwv"), most)
        self.assertLessEqual(self.filled("A", "wvu"), 0)

    def test_2_no_token_of_a_hit_counts_as_exact(self):
        told = ask(self.engine, "B", "vu").told["tessera"]
        self.assertLessEqual(told["n_exact"], self.length(self.engine, SYSTEMS["B"]))
        known = self.length(self.engine, DOCUMENTS["u"], DOCUMENTS["v"])
        self.assertGreaterEqual(told["n_reused"], known - 8)

    def test_3_everything_computed_is_plain_vllm(self):
        for (system, documents), right in Shared.right.items():
            self.assert_same(ask(self.engine, system, documents, ratio=1), right)

    def test_4_unmarked_documents_are_found_behind_any_system_prompt(self):
        prompt = f"{SYSTEMS['B']} Read this. {DOCUMENTS['w']} {QUESTION}"
        told = self.engine.ask([prompt], TOKENS)[0].told["tessera"]
        known = len(self.engine.tokenizer.encode(DOCUMENTS["w"]))
        self.assertGreater(told["n_reused"] + told["n_recomputed"], known // 2)

    def test_5_what_was_seen_first_changes_nothing(self):
        """The answer behind B is that of an engine that never saw A: the first time, and again."""
        want = ask(self.engine, "B", "vu")
        self.engine.close()
        with engine(True) as fresh:
            first, again = ask(fresh, "B", "vu"), ask(fresh, "B", "vu")
        self.assertGreater(first.told["tessera"]["n_filled"], 100)
        self.assertEqual(again.told["tessera"]["n_filled"], 0)
        self.assertEqual(first.logprobs, again.logprobs)
        self.assertEqual(first.logprobs, want.logprobs)


class Test3Others(ContextTest):
    def test_after_the_system_prompt_another_one_is_a_miss(self):
        """Why it matters: that is the default."""
        with engine(False) as same:
            ask(same, "A", "uv")
            told = ask(same, "B", "vu").told["tessera"]
            known = self.length(same, DOCUMENTS["u"], DOCUMENTS["v"])
            self.assertGreaterEqual(told["n_filled"], known - 2)

    def test_alone_is_a_hit_too(self):
        profile = Shared.folder.name + "/pure.yaml"
        with open(profile, "w") as file:
            file.write("context: pure\n")
        with engine(False, profile=profile) as pure:
            ask(pure, "A", "uv")
            told = ask(pure, "B", "vu").told["tessera"]
            self.assertLessEqual(told["n_filled"], self.length(pure, SYSTEMS["B"]))


if __name__ == "__main__":
    unittest.main(verbosity=2, failfast=False)
