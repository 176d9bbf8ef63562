"""Exact reuse for a hybrid model in the real vLLM: attention beside layers with a recurrent state.

vLLM's own prefix cache is the judge. It resumes a prompt at the same token as Tessera does and then
computes the rest in the same shapes, so answers and log-probabilities must be equal to the bit. The
model is random and small, and every layer matters: a state of other text changes the answer.
"""

import unittest

import small_models
from engines import Engine, scratch
from small_models import BLOCK, SETTINGS, text

from tessera.vllm.shape import Refused, model_shape


def prompts():
    """Lengths around blocks and steps, and prompts that part in the middle."""
    common = text(1, 700)
    return [text(n, n) for n in (31, 64, 65, 300, 512, 513, 777)] + [
        common[:n] + text(n, 150) for n in (256, 500, 512, 600)
    ]


class HybridTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch()
        cls.model = small_models.make_hybrid(cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def engine(self, options, **more):
        return Engine(options, **{**SETTINGS, "model": self.model, **more})

    def ask(self, engine, texts, together=False):
        texts = [{"prompt_token_ids": one} for one in texts]
        return engine.ask(texts, 4, together)

    def assert_equal_answers(self, got, wanted, where):
        for i, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
            self.assertEqual(mine.cached, theirs.cached, f"{where}, prompt {i}")
            self.assertEqual(mine.tokens, theirs.tokens, f"{where}, prompt {i}")
            self.assertEqual(mine.logprobs, theirs.logprobs, f"{where}, prompt {i}")

    def test_a_prompt_seen_before_resumes_where_vllm_would(self):
        texts = prompts()
        with self.engine(None) as plain:
            cold = self.ask(plain, texts)
            warm = self.ask(plain, texts)
        self.assertEqual(warm[-1].cached, 736)
        disk = {"disk_path": self.folder.name + "/store", "disk_size": "1G"}
        with self.engine({"chunk_size": BLOCK, "host_size": "64M", **disk}) as engine:
            self.assertIsNone(engine.connector._trouble)
            first = self.ask(engine, texts)
            self.assert_equal_answers(first, cold, "first")
            engine.llm.reset_prefix_cache()
            self.assert_equal_answers(self.ask(engine, texts), warm, "from host memory")
            engine.settle()
            counters = engine.counters()
            self.assertEqual(counters["loads_failed"] + counters["saves_failed"], 0)
        with self.engine({"chunk_size": BLOCK, "host_size": "64M", **disk}) as engine:
            self.assert_equal_answers(self.ask(engine, texts), warm, "from disk")

    def test_a_mode_that_keeps_no_states_is_refused(self):
        with self.engine({"host_size": "64M"}, enable_prefix_caching=False) as engine:
            self.assertIn("mamba_cache_mode none", engine.connector._trouble)
            self.assertEqual(len(self.ask(engine, [text(1, 100)])[0].tokens), 4)
            config = engine.llm.llm_engine.vllm_config
            with self.assertRaisesRegex(Refused, "mamba_cache_mode none"):
                model_shape(config, engine.core.scheduler.kv_cache_config, {})


if __name__ == "__main__":
    unittest.main()
