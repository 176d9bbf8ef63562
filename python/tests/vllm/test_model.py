"""Models taken apart compute what whole models compute: against transformers with the same random
weights, for every architecture that is supported, over all, some and isolated rows.

The models are loaded by vLLM as it loads any other; one engine for each architecture.
"""

import ctypes
import gc
import tempfile
import unittest
from array import array

import engines  # noqa: F401  its environment comes first
import small_models
import torch
from transformers import AutoModelForCausalLM
from vllm import LLM
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from tessera import _c as c
from tessera.blend import Ask, Blend
from tessera.compute.executor import BlendExecutor
from tessera.vllm import plugin
from tessera.vllm.model import model_info, take_apart
from tessera.vllm.places import Staging
from tessera.vllm.shape import Refused

plugin.register()
SYSTEM, DOCUMENTS, QUESTION = 17, (150, 90, 130), 21
CONTEXT = SYSTEM + sum(DOCUMENTS)
CLOSE = dict(rtol=2e-4, atol=2e-4)


def tokens_of(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, small_models.VOCAB, (n,), generator=generator)


class Loaded:
    """An architecture in vLLM and in transformers."""

    def __init__(self, folder, architecture, dtype="float32"):
        path = small_models.make(folder, architecture)
        self.llm = LLM(
            model=path,
            dtype=dtype,
            enforce_eager=True,
            max_model_len=1024,
            skip_tokenizer_init=True,
            block_size=32,
            disable_log_stats=True,
        )
        self.config = self.llm.llm_engine.vllm_config
        self.parts = take_apart(plugin.loaded_model(), self.config)
        self.reference = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        )
        self.staging = Staging(self.parts)
        self.staging.fit(1024)
        self.executor = BlendExecutor(self.parts, self.staging)

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()
        gc.collect()

    def computed(self, tokens):
        """K and V [layer, K or V, token, head, dim] and attention by transformers."""
        with torch.no_grad():
            out = self.reference(tokens[None], use_cache=True, output_attentions=True)
        rows = [
            torch.stack([layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1)])
            for layer in out.past_key_values.layers
        ]
        return torch.stack(rows), [layer[0] for layer in out.attentions]

    @torch.inference_mode()
    def run(self, rows, groups, n_mass=0, mass=None, keep=None):
        """One pass. rows: (token, position, slot); groups: (rows, [(first, end), ...]);
        keep: (layer, rows) to go on with."""
        table = (c.ModelRow * len(rows))(*[c.ModelRow(*(int(x) for x in row)) for row in rows])
        listed = (c.ModelGroup * len(groups))()
        for group, (n, sees) in zip(listed, groups):
            group.n_rows, group.n_ranges = n, len(sees)
            for i, (first, end) in enumerate(sees):
                group.sees[i] = c.Range(first, end - first)
        order = c.ModelPass(
            size=ctypes.sizeof(c.ModelPass),
            rows=table,
            n_rows=len(rows),
            n_groups=len(groups),
            groups=listed,
            n_mass_rows=n_mass,
        )
        self.executor.begin(order)
        for layer in range(len(self.parts.layers)):
            if keep is not None and keep[0] == layer:
                deviations = [(ctypes.c_float * len(rows))() for _ in range(2)]
                pointers = [ctypes.cast(d, ctypes.POINTER(ctypes.c_float)) for d in deviations]
                self.executor.deviation(layer, *pointers)
                self.deviations = [torch.tensor(list(d)) for d in deviations]
                self.executor.narrow((ctypes.c_uint32 * len(keep[1]))(*keep[1]))
            self.executor.layer(layer, mass)
        self.executor.end()

    def blended(self, tokens, segments, ratio, selector=None):
        """The context by way of the library, which has no cache; K and V of it."""
        info = model_info(self.parts, "small", bytes(32), bytes(16))
        blend = Blend(None, info, min_tokens=0)
        ask = Ask(
            array("I", tokens.tolist()).tobytes(), segments, True, ratio=ratio, selector=selector
        )
        with torch.inference_mode():
            self.report = blend.run(ask, self.staging.layout(), self.executor)
        blend.close()
        return self.staging.kv[:, :, : segments[-1][0] + segments[-1][1]].clone()


def prompt():
    tokens = tokens_of(CONTEXT + QUESTION, 5)
    segments, first = [], 0
    for n in (SYSTEM, *DOCUMENTS):
        segments.append((first, n))
        first += n
    return tokens, segments


class Architecture:
    """The tests, once for each."""

    architecture = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.it = Loaded(cls.folder.name, cls.architecture)

    @classmethod
    def tearDownClass(cls):
        cls.it.close()
        cls.folder.cleanup()

    def close(self, got, want):
        torch.testing.assert_close(got, want, **CLOSE)

    def test_a_pass_of_all_rows_is_a_prefill(self):
        tokens = tokens_of(200, 1)
        self.it.run([(t, i, i) for i, t in enumerate(tokens)], [(200, [(0, 200)])])
        self.close(self.it.staging.kv[:, :, :200], self.it.computed(tokens)[0])

    def test_rows_may_come_in_any_number_of_passes(self):
        tokens = tokens_of(200, 2)
        rows = [(t, i, i) for i, t in enumerate(tokens)]
        want = self.it.computed(tokens)[0]
        for cut in (1, 63, 64, 199):
            self.it.staging.kv.zero_()
            self.it.run(rows[:cut], [(cut, [(0, 200)])])
            self.it.run(rows[cut:], [(200 - cut, [(0, 200)])])
            self.close(self.it.staging.kv[:, :, :200], want)

    def test_scattered_rows_over_keys_that_stand_there(self):
        tokens = tokens_of(300, 3)
        want = self.it.computed(tokens)[0]
        self.it.staging.kv[:, :, :300] = want
        chosen = sorted(set(range(0, 300, 3)) | {298, 299})
        self.it.staging.kv[:, :, chosen] = 0
        self.it.run([(tokens[i], i, i) for i in chosen], [(len(chosen), [(0, 300)])])
        self.close(self.it.staging.kv[:, :, :300], want)

    def test_isolated_rows_see_a_system_prompt_and_themselves(self):
        tokens = tokens_of(140, 4)
        system, one, two = tokens[:20], tokens[20:80], tokens[80:]
        rows = [(t, i, i) for i, t in enumerate(tokens[:80])]
        rows += [(t, 20 + i, 80 + i) for i, t in enumerate(two)]  # as if it stood behind system
        self.it.run(rows, [(20, [(0, 20)]), (60, [(0, 80)]), (60, [(0, 20), (80, 140)])])
        kv = self.it.staging.kv
        self.close(kv[:, :, :80], self.it.computed(torch.cat([system, one]))[0])
        self.close(kv[:, :, 80:140], self.it.computed(torch.cat([system, two]))[0][:, :, 20:])

    def test_rows_see_a_range_that_follows_them_whole(self):
        tokens = tokens_of(140, 8)
        primer, one, two = tokens[:20], tokens[20:80], tokens[80:]
        rows = [(t, 20 + i, i) for i, t in enumerate(one)]
        rows += [(t, 20 + i, 60 + i) for i, t in enumerate(two)]
        self.it.run([(t, i, 200 + i) for i, t in enumerate(primer)], [(20, [(200, 220)])])
        behind = (200, 220)
        self.it.run(rows, [(60, [behind, (0, 60)]), (60, [behind, (60, 120)])])
        kv = self.it.staging.kv
        for first, text in ((0, one), (60, two)):
            want = self.it.computed(torch.cat([primer, text]))[0]
            self.close(kv[:, :, first : first + 60], want[:, :, 20:])

    def test_attention_of_the_last_rows(self):
        tokens = tokens_of(150, 6)
        want, weights = self.it.computed(tokens)
        self.it.staging.kv[:, :, :150] = want
        mass = (ctypes.c_float * 140)()
        self.it.run(
            [(tokens[i], i, i) for i in range(110, 150)], [(40, [(0, 150)])], n_mass=9, mass=mass
        )
        heads = sum(layer.mean(0) for layer in weights)
        self.close(torch.tensor(list(mass)), heads[-9:].sum(0)[:140])
        self.close(self.it.staging.kv[:, :, :150], want)

    def test_deviation_and_rows_that_are_let_go(self):
        tokens = tokens_of(120, 7)
        want = self.it.computed(tokens)[0]
        stands = want + 0.5 * torch.randn(want.shape, generator=torch.manual_seed(1))
        self.it.staging.kv[:, :, :120] = stands
        rows = [(t, i, i) for i, t in enumerate(tokens)]
        self.it.run(rows, [(40, [(0, 40)]), (80, [(0, 120)])], keep=(1, range(0, 120, 2)))
        apart = (want[1, 0] - stands[1, 0]).square().sum((1, 2))
        got = self.it.deviations[0]
        torch.testing.assert_close(got, apart, rtol=1e-3, atol=1e-2)
        kv = self.it.staging.kv[:, :, :120]
        self.close(kv[0], want[0])
        self.close(kv[1][:, ::2], want[1][:, ::2])
        self.close(kv[1:][:, :, 1::2], stands[1:][:, :, 1::2])  # as they were
        self.assertGreater(float((kv[2][:, ::2] - stands[2][:, ::2]).abs().max()), 0.1)

    def test_everything_computed_through_the_library_is_a_prefill(self):
        tokens, segments = prompt()
        kv = self.it.blended(tokens, segments, 1.0)
        self.assertEqual(self.it.report["n_reused"], 0)
        self.close(kv, self.it.computed(tokens[:CONTEXT])[0])

    def test_nothing_computed_anew_is_each_document_alone(self):
        tokens, segments = prompt()
        kv = self.it.blended(tokens, segments, 0.0)
        system = tokens[:SYSTEM]
        for first, n in segments[1:]:
            alone = self.it.computed(torch.cat([system, tokens[first : first + n]]))[0]
            self.close(kv[:, 1, first : first + n], alone[:, 1, SYSTEM:])
        # K of the first layer depends on nothing but its position: the library has turned it.
        self.close(kv[0], self.it.computed(tokens[:CONTEXT])[0][0])

    def test_selectors_come_nearer_to_a_prefill(self):
        tokens, segments = prompt()
        want = self.it.computed(tokens[:CONTEXT])[0]

        def far(kv):
            return float((kv - want).square().mean())

        none = far(self.it.blended(tokens, segments, 0.0))
        for selector in ("query", "hkvd", "link"):
            some = far(self.it.blended(tokens, segments, 0.5, selector))
            self.assertLess(some, none)
            self.assertGreater(some, 0)


class TestLlama(Architecture, unittest.TestCase):
    architecture = "llama"

    def test_every_rotary_embedding_is_turned_as_vllm_turns_it(self):
        tokens, segments = prompt()
        config = self.it.config.model_config.hf_text_config
        layers = self.it.parts.layers
        plain = layers[0].self_attn.rotary_emb, config.rope_parameters
        for rope in small_models.ROPES.values():
            with set_current_vllm_config(self.it.config):
                rotary = get_rope(32, 2048, True, dict(rope), torch.float32)
            for layer in layers:
                layer.self_attn.rotary_emb = rotary
            config.rope_parameters = dict(rope)
            before, self.it.parts = (
                self.it.parts,
                take_apart(plugin.loaded_model(), self.it.config),
            )
            turned = self.it.blended(tokens, segments, 0.0)[0]
            computed = self.it.blended(tokens, segments, 1.0)[0]
            with self.subTest(rope["rope_type"]):
                self.close(turned, computed)
            self.it.parts = before
        config.rope_parameters = plain[1]
        for layer in layers:
            layer.self_attn.rotary_emb = plain[0]

    def test_what_cannot_be_taken_apart_is_refused_by_name(self):
        model = plugin.loaded_model()
        with self.assertRaisesRegex(Refused, "class Linear"):
            take_apart(torch.nn.Linear(1, 1), self.it.config)
        attn = model.model.layers[1].self_attn.attn
        attn.sliding_window = 64
        with self.assertRaisesRegex(Refused, "sliding windows"):
            take_apart(model, self.it.config)
        attn.sliding_window = None


class TestHalfPrecision(unittest.TestCase):
    def test_bfloat16_is_near(self):
        """In vLLM itself as little is equal in this type, so all that can be said is how near."""
        with tempfile.TemporaryDirectory() as folder:
            it = Loaded(folder, "qwen3", "bfloat16")
            try:
                tokens, segments = prompt()
                want = it.computed(tokens[:CONTEXT])[0]
                computed = it.blended(tokens, segments, 1.0).float()
                turned = it.blended(tokens, segments, 0.0).float()
            finally:
                it.close()

        def apart(got, right):
            return float((got - right).square().mean().sqrt() / right.square().mean().sqrt())

        self.assertLess(apart(computed, want), 0.05)
        self.assertLess(apart(turned[0], want[0]), 0.01)
        self.assertGreater(apart(turned, want), 0.1)  # documents that do not see each other


class TestQwen2(Architecture, unittest.TestCase):
    architecture = "qwen2"


class TestQwen3(Architecture, unittest.TestCase):
    architecture = "qwen3"


if __name__ == "__main__":
    unittest.main()
