"""The real vLLM on a CPU weighs blends: it measures its own steps and its blends, and computes what
is computed faster. A tiny model with random weights."""

import random
import unittest

import small_models
from engines import BLOCK, Engine, scratch
from vllm import TokensPrompt


class TestWeighed(unittest.TestCase):
    def test_it_measures_itself_and_computes_what_does_not_pay(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        options = {"chunk_size": BLOCK, "host_size": "64M", "blend": {"min_tokens": 100}}
        chance = random.Random(7)

        def text(n):
            return [chance.randrange(3, small_models.VOCAB) for _ in range(n)]

        documents = [text(170), text(180)]

        def ask(**wishes):
            order = chance.sample(documents, 2)
            tokens, segments = text(40), []
            for one in order:
                segments.append([len(tokens), len(one)])
                tokens = tokens + one
            prompt = TokensPrompt(prompt_token_ids=tokens + text(12))
            told = {"segments": segments, **wishes}
            answers = engine.ask([prompt, prompt], 4, wishes=[told, {"blend": False}])
            engine.settle()
            return answers

        with Engine(
            options,
            model=small_models.make(folder.name, "llama"),
            skip_tokenizer_init=True,
            max_model_len=1024,
            num_gpu_blocks_override=80,
        ) as engine:
            worth = engine.connector._blending.worth
            first, _plain = ask()
            self.assertEqual(first.told["tessera"]["first"], True)
            for _ in range(3):
                ask(blend=False)
            self.assertGreater(worth.row_s, 0)
            ask(ratio=0.2)
            self.assertEqual(len(worth._seen), 0)
            for _ in range(4):
                worth.row_s = 1.0  # as on a slow device
                ask()
            self.assertEqual(len(worth._seen), 4)
            self.assertTrue(all(0 < seconds < 60 for _n, seconds in worth._seen))
            worth.row_s = 1e-9  # as on a fast device
            costly, plain = ask()
            self.assertEqual(costly.told["tessera"]["reason"], "computing it is faster")
            self.assertEqual(costly.tokens, plain.tokens)
            self.assertEqual(costly.logprobs, plain.logprobs)
            worth.row_s = 1.0
            self.assertTrue(ask()[0].told["tessera"]["blended"])


if __name__ == "__main__":
    unittest.main()
