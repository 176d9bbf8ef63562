"""Speculation with a draft model in the real vLLM: methods eagle, eagle3 and mtp, small random
targets and small random drafts, whose layers are in the pages as well.

vLLM's own prefix cache is the judge. By its rule a hit ends one block earlier: the draft's KV of a
token depends on the next token, too, which is not known of the last one found. Answers do not
depend on the draft, so what it proposes is compared, too: it depends on every row of the draft's
own KV.
"""

import unittest

import small_models
from engines import Engine, scratch
from small_models import BLOCK, text

SETTINGS = dict(small_models.SETTINGS, async_scheduling=False)


def prompts():
    """Lengths around blocks and steps, and prompts that part in the middle. None ends with a block:
    see the test of one that does."""
    common = text(1, 700)
    return [text(n, n) for n in (31, 63, 65, 97, 511, 777)] + [
        common[:n] + text(n, 150) for n in (256, 500, 512)
    ]


class DraftTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = scratch()
        self.addCleanup(self.folder.cleanup)

    def engine(self, options):
        engine = Engine(options, **SETTINGS, model=self.model, speculative_config=self.drafts)
        self.proposed = []
        scheduler = engine.core.scheduler
        update = scheduler.update_draft_token_ids

        def watched(drafts):
            self.proposed.append([list(one) for one in drafts.draft_token_ids])
            update(drafts)

        scheduler.update_draft_token_ids = watched
        return engine

    def ask(self, engine, texts):
        """Answers, and what the draft proposed meanwhile."""
        self.proposed.clear()
        answers = engine.ask([{"prompt_token_ids": one} for one in texts], 6)
        return answers, list(self.proposed)

    def assert_equal(self, got, wanted, where):
        for i, (mine, theirs) in enumerate(zip(got[0], wanted[0], strict=True)):
            self.assertEqual(mine.cached, theirs.cached, f"{where}, prompt {i}")
            self.assertEqual(mine.tokens, theirs.tokens, f"{where}, prompt {i}")
            self.assertEqual(mine.logprobs, theirs.logprobs, f"{where}, prompt {i}")
        self.assertTrue(any(any(step) for step in wanted[1]), "the draft proposed nothing")
        self.assertEqual(got[1], wanted[1], f"{where}: the draft proposes something else")

    def test_eagle(self):
        self.model = small_models.make(self.folder.name, "llama")
        draft = small_models.make_draft(self.folder.name, self.model, "eagle")
        self.drafts = dict(method="eagle", model=draft, num_speculative_tokens=2)
        self.check()

    def test_eagle3(self):
        self.model = small_models.make(self.folder.name, "llama")
        draft = small_models.make_draft(self.folder.name, self.model, "eagle3")
        self.drafts = dict(method="eagle3", model=draft, num_speculative_tokens=2)
        self.check()

    def test_mtp(self):
        self.model = small_models.make_mtp(self.folder.name)
        self.drafts = dict(method="mtp", num_speculative_tokens=1)
        self.check()

    def check(self):
        """Hits end where vLLM's own do, and the draft proposes the same."""
        texts = prompts()
        with self.engine(None) as plain:
            cold = self.ask(plain, texts)
            warm = self.ask(plain, texts)
        # 777 tokens are 24 whole blocks; one of them is the draft's.
        self.assertEqual(warm[0][5].cached, 23 * BLOCK)
        disk = {"disk_path": self.folder.name + "/store", "disk_size": "1G"}
        options = {"chunk_size": BLOCK, "host_size": "64M", **disk}
        with self.engine(options) as engine:
            self.assertIsNone(engine.connector._trouble)
            self.assert_equal(self.ask(engine, texts), cold, "first")
            engine.llm.reset_prefix_cache()
            self.assert_equal(self.ask(engine, texts), warm, "from host memory")
            self.end_with_a_block(engine)
            engine.settle()
            counters = engine.counters()
            self.assertEqual(counters["loads_failed"] + counters["saves_failed"], 0)
        with self.engine(options) as engine:
            self.assert_equal(self.ask(engine, texts), warm, "from disk")

    def end_with_a_block(self, engine):
        """vLLM leaves the last token out, and with it a block, before it drops one more. Tessera
        has compared that block, so it drops no other."""
        whole = [text(5000, 4 * BLOCK)]
        first, _proposed = self.ask(engine, whole)
        engine.llm.reset_prefix_cache()
        loaded, _proposed = self.ask(engine, whole)
        self.assertEqual(loaded[0].cached, 3 * BLOCK)
        self.assertEqual(loaded[0].tokens, first[0].tokens)


if __name__ == "__main__":
    unittest.main()
