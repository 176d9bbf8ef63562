"""Text of plain requests in the real vLLM on a CPU: documents that nobody marked are found in other
prompts, also with edits, exact reuse stays exact, and tenants share nothing. A tiny model with
random weights.

One engine without a connector says what is right. Tests run in their order and share what they have
computed.
"""

import random
import unittest
from types import SimpleNamespace

import small_models
import torch
from engines import BLOCK, Engine, scratch
from test_engine import TOLERANCE
from vllm import TokensPrompt

from tessera.vllm.planes import find_strides
from tessera.vllm.shape import Refused

TOKENS = 6
DOCUMENT = 200
BLEND = {"any_offset": True, "from_traffic": True, "min_tokens": 100}


def text(seed, n):
    chance = random.Random(seed)
    return [chance.randrange(3, small_models.VOCAB) for _ in range(n)]


FIRST, SECOND = text("first", DOCUMENT), text("second", DOCUMENT)
PLAIN = text("system A", 45) + FIRST + SECOND + text("question A", 12)
TURNED = text("system B", 70) + SECOND + FIRST + text("question B", 15)
# What users of UCM have in kv_connector_extra_config, and its three cases: a text that is known,
# nearly known, and new.
UCM = {
    "blend_chunk_size": 64,
    "min_match_ratio": 0.8,
    "position_correction": True,
    "recompute_boundary": 2,
}
LONG, SYSTEM = text("long", 640), 70
STORED = text("system A", 45) + LONG + text("question A", 83)  # whole chunks of 256


def edited(places):
    """LONG with other tokens at some places."""
    return [t ^ 1 if i in places else t for i, t in enumerate(LONG)]


def asked(document):
    return text("system E", SYSTEM) + document + text("question E", 15)


FEW = range(318, 322)
OFTEN = range(10, 640, 40)  # no 63 equal tokens in a row


class Shared:
    folder = None
    model = None
    plain = turned = few = often = None  # what vLLM says alone


def setUpModule():
    Shared.folder = scratch()
    Shared.model = small_models.make(Shared.folder.name, "llama")


def tearDownModule():
    Shared.folder.cleanup()


def engine(options, **more):
    return Engine(
        options,
        model=Shared.model,
        skip_tokenizer_init=True,
        max_model_len=1024,
        enable_prefix_caching=True,
        num_gpu_blocks_override=80,
        **more,
    )


def options(blend):
    disk = dict(disk_path=Shared.folder.name + "/store", disk_size="64M", disk_segment_size="16M")
    return {"chunk_size": BLOCK, "host_size": "64M", "blend": blend, **disk}


def ask(of, tokens, wishes=None, salt=None):
    prompt = TokensPrompt(prompt_token_ids=tokens)
    if salt is not None:
        prompt["cache_salt"] = salt
    (answer,) = of.ask([prompt], TOKENS, wishes=[wishes])
    of.settle()
    return answer


class TrafficTest(unittest.TestCase):
    def assert_same(self, got, want):
        self.assertEqual(got.tokens, want.tokens)
        self.assertLess(max(abs(a - b) for a, b in zip(got.logprobs, want.logprobs)), TOLERANCE)


class Test1Alone(TrafficTest):
    def test_vllm_without_a_connector(self):
        with engine(None) as alone:
            Shared.plain = ask(alone, PLAIN)
            Shared.turned = ask(alone, TURNED)
            Shared.few = ask(alone, asked(edited(FEW)))
            Shared.often = ask(alone, asked(edited(OFTEN)))


class Test2Traffic(TrafficTest):
    @classmethod
    def setUpClass(cls):
        cls.engine = engine(options(BLEND))

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def forget(self):
        """vLLM's own prefix cache, so that Tessera's is asked."""
        self.engine.llm.reset_prefix_cache()

    def test_1_plain_requests_stay_exact(self):
        first = ask(self.engine, PLAIN)
        self.assertIsNone(first.told)
        self.assert_same(first, Shared.plain)
        self.forget()
        again = ask(self.engine, PLAIN)
        self.assertIsNone(again.told)  # all of it is an exact prefix: nothing to blend
        self.assertEqual(again.cached, len(PLAIN) // BLOCK * BLOCK)
        self.assert_same(again, Shared.plain)

    def test_2_documents_that_nobody_marked_are_found(self):
        answer = ask(self.engine, TURNED, {"ratio": 1})
        self.assert_same(answer, Shared.turned)  # everything was recomputed
        self.assertTrue(answer.told["tessera"]["blended"])
        told = ask(self.engine, TURNED, {"ratio": 0}).told["tessera"]
        self.assertGreater(told["n_other"], 300)
        self.assertEqual(told["n_other"], told["n_reused"])
        self.assertEqual(told["n_exact"], 0)
        self.assertEqual((told["n_stored"], told["n_failed"]), (0, 0))
        counters = self.engine.connector._blending.counters.values
        self.assertGreater(counters["blend_tokens_other"], 300)
        self.assertNotIn("blend_failed", counters)

    def test_3_nothing_approximate_is_kept(self):
        self.forget()
        plain = ask(self.engine, TURNED, {"blend": False})
        self.assertEqual(plain.cached, 0)
        self.assert_same(plain, Shared.turned)

    def test_4_an_exact_beginning_stays_exact_in_a_blend(self):
        """A known prompt, with a known document after it."""
        longer = PLAIN[:-12] + text("between", 20) + SECOND + text("question C", 9)
        told = ask(self.engine, longer, {"ratio": 0}).told["tessera"]
        self.assertEqual(told["n_exact"], (len(PLAIN) - 12) // BLOCK * BLOCK)
        self.assertGreater(told["n_other"], 100)

    def test_5_a_neighbour_reads_nothing(self):
        """Other salts, with the very prompt and with the documents turned."""
        self.forget()
        for i, tokens in enumerate((TURNED, PLAIN, TURNED, PLAIN)):
            answer = ask(self.engine, tokens, salt=f"neighbour {i}")
            self.assertIsNone(answer.told)
            self.assertEqual(answer.cached, 0)

    def test_6_a_salt_finds_its_own(self):
        mine = text("system M", 20) + FIRST + text("question M", 12)
        other = text("system N", 50) + FIRST + text("question N", 12)
        ask(self.engine, mine, salt="mine")
        told = ask(self.engine, other, {"ratio": 0}, salt="mine").told["tessera"]
        self.assertGreater(told["n_other"], 100)

    def test_7_nothing_of_before_a_reset_is_found(self):
        self.engine.llm.reset_prefix_cache(reset_connector=True)
        answer = ask(self.engine, text("system R", 30) + SECOND + text("question R", 9))
        self.assertIsNone(answer.told)
        self.assertEqual(self.engine.connector._complaints, set())


class Test3Restart(TrafficTest):
    def test_what_was_plain_is_found_after_a_restart(self):
        """First exactly, from the disk, and then at any offset."""
        with engine(options(BLEND)) as first:
            ask(first, PLAIN)
        with engine(options(BLEND)) as again:
            answer = ask(again, PLAIN)
            self.assertEqual(answer.cached, len(PLAIN) // BLOCK * BLOCK)
            self.assert_same(answer, Shared.plain)
            told = ask(again, TURNED, {"ratio": 0}).told["tessera"]
            self.assertGreater(told["n_other"], 300)

    def test_it_is_off_by_default(self):
        blend = {key: value for key, value in BLEND.items() if key != "from_traffic"}
        with engine(options(blend)) as of:
            self.assertIsNone(of.connector._shape.groups[0].planes)
            ask(of, PLAIN)
            self.assertIsNone(ask(of, TURNED).told)


class Test4Ranks(TrafficTest):
    def test_two_workers_find_it_too(self):
        """Each keeps and finds its own heads."""
        with engine(
            {"chunk_size": BLOCK, "host_size": "64M", "blend": BLEND},
            tensor_parallel_size=2,
            distributed_executor_backend="mp",
        ) as two:
            self.assert_same(ask(two, PLAIN), Shared.plain)
            self.assert_same(ask(two, TURNED, {"ratio": 1}), Shared.turned)
            told = ask(two, TURNED, {"ratio": 0}).told["tessera"]
            self.assertGreater(told["n_other"], 300)
            self.assertIsNone(ask(two, TURNED, salt="neighbour").told)
            two.llm.reset_prefix_cache()
            self.assert_same(ask(two, PLAIN), Shared.plain)
            counters = two.connector._blending.counters.values
            self.assertNotIn("blend_failed", counters)


class Test5Edits(TrafficTest):
    """UCM's settings: a text of which some tokens were replaced is reused around them."""

    @classmethod
    def setUpClass(cls):
        cls.engine = engine({"host_size": "64M", **UCM})
        ask(cls.engine, STORED)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def told(self, document):
        """The report of a prompt of which nothing but edits and their edges is computed."""
        before = dict(self.engine.connector._blending.counters.values)
        told = ask(self.engine, asked(document), {"ratio": 0}).told["tessera"]
        after = self.engine.connector._blending.counters.values
        for name in ("reused", "other", "recomputed", "new"):
            grown = after.get(f"blend_tokens_{name}", 0) - before.get(f"blend_tokens_{name}", 0)
            self.assertEqual(grown, told[f"n_{name}"])
        self.assertNotIn("blend_failed", after)
        return told

    def assert_parts(self, told, n_edits, n_edges):
        """All of the document but its edits is reused, two tokens at each edge excepted."""
        n_edges *= UCM["recompute_boundary"]
        self.assertEqual(told["n_new"], SYSTEM + n_edits)
        self.assertEqual(told["n_recomputed"], n_edges)
        self.assertEqual(told["n_reused"], len(LONG) - n_edits - n_edges)
        self.assertEqual(told["n_other"], told["n_reused"])

    def test_1_full(self):
        self.assert_parts(self.told(LONG), 0, 2)

    def test_2_partial(self):
        for places, n_edges, alone in ((FEW, 4, Shared.few), (OFTEN, 34, Shared.often)):
            with self.subTest(places=places):
                self.assert_parts(self.told(edited(places)), len(places), n_edges)
                answer = ask(self.engine, asked(edited(places)), {"ratio": 1})
                self.assertTrue(answer.told["tessera"]["blended"])
                self.assert_same(answer, alone)  # everything was recomputed

    def test_3_none(self):
        before = dict(self.engine.connector._blending.counters.values)
        answer = ask(self.engine, text("another", 725))
        self.assertIsNone(answer.told)
        self.assertEqual(answer.cached, 0)
        self.assertEqual(self.engine.connector._blending.counters.values, before)


HEADS, DIM, SIZE = 2, 8, 16
PARTS = SimpleNamespace(n_kv_heads=HEADS, head_dim=DIM, dtype=torch.float32)


def attention(place):
    """A kernel that writes element i of head h of token t of block b of plane p to place(...)."""

    def update(_attn, keys, values, cache, slots):
        flat = cache.view(-1)
        for p, rows in enumerate((keys, values)):
            for row, slot in zip(rows, slots.tolist()):
                for h in range(HEADS):
                    for i in range(DIM):
                        flat[place(p, slot // SIZE, slot % SIZE, h, i)] = row[h, i]

    return SimpleNamespace(impl=SimpleNamespace(do_kv_cache_update=update))


class TestStrides(unittest.TestCase):
    page = 2 * SIZE * HEADS * DIM
    tensor = torch.zeros(5, 2, SIZE, HEADS, DIM)

    def strides(self, place):
        return find_strides(attention(place), self.tensor, 5, SIZE, PARTS)

    def test_rows_of_tokens(self):
        k, v = self.strides(lambda p, b, t, h, i: (((b * 2 + p) * SIZE + t) * HEADS + h) * DIM + i)
        self.assertEqual((k.first, k.block, k.token, k.head, k.element), (0, 512, 16, 8, 1))
        self.assertEqual(v.first, self.page // 2)

    def test_keys_that_are_transposed(self):
        def place(p, b, t, h, i):
            at = b * self.page + (h * 2 + p) * SIZE * DIM
            return at + (i * SIZE + t if p == 0 else t * DIM + i)

        k, v = self.strides(place)
        self.assertEqual((k.token, k.head, k.element), (1, 256, 16))
        self.assertEqual((v.token, v.head, v.element), (8, 256, 1))

    def test_packed_pages_are_refused(self):
        """As for a matrix unit: four tokens beside each other, and then the next element."""

        def place(p, b, t, h, i):
            inner = (t // 4) * 4 * DIM + i * 4 + t % 4
            return b * self.page + (h * 2 + p) * SIZE * DIM + inner

        with self.assertRaises(Refused):
            self.strides(place)

    def test_numbers_that_are_changed_are_refused(self):
        def update(_attn, keys, values, cache, slots):
            cache.view(-1)[slots] = keys[:, 0, 0] * 2

        attn = SimpleNamespace(impl=SimpleNamespace(do_kv_cache_update=update))
        with self.assertRaises(Refused):
            find_strides(attn, self.tensor, 5, SIZE, PARTS)


if __name__ == "__main__":
    unittest.main(verbosity=2, failfast=False)
