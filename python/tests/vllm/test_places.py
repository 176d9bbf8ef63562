"""A blend in pages gives what it gives in a row: a small model of plain torch modules, the library
with a cache, and pages as vLLM has them on a GPU, their blocks out of order."""

import ctypes
import tempfile
import unittest
from array import array
from types import SimpleNamespace

import torch

from tessera import _c as c
from tessera._lib import check, library
from tessera.blend import Ask, Blend
from tessera.cache import configure
from tessera.compute.executor import BlendExecutor
from tessera.vllm.model import ModelParts, model_info
from tessera.vllm.places import Pages, Rows, Staging
from tessera.vllm.shape import Refused

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM, LAYERS, HIDDEN, VOCAB = 4, 2, 32, 3, 64, 500
BLOCK, BLOCKS = 16, 64
SYSTEM, DOCUMENTS, QUESTION = 17, (90, 70, 120), 12
CONTEXT = SYSTEM + sum(DOCUMENTS)
PRIMER = tuple(range(40, 70))


class Norm(torch.nn.Module):
    """As vLLM's on a GPU: in place."""

    def forward(self, x, residual=None):
        def normal(y):
            return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)

        if residual is None:
            return normal(x)
        residual += x
        x.copy_(normal(residual))
        return x, residual


class Linear(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x), None


class Rotary(torch.nn.Module):
    def forward(self, positions, q, k):
        angles = positions[:, None] * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]

        def turn(x):
            a, b = x.view(len(x), -1, DIM).chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).view(x.shape)

        return turn(q), turn(k)


class Impl:
    """Writes as FlashAttention's kernel does."""

    def do_kv_cache_update(self, attn, keys, values, cache, slots):
        rows = torch.cat([keys, values], -1)
        cache.transpose(1, 2)[slots // BLOCK, slots % BLOCK] = rows


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.mlp = torch.nn.Linear(HIDDEN, HIDDEN)
        self.self_attn = torch.nn.Module()
        attn = self.self_attn
        attn.qkv_proj = Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM)
        attn.o_proj = Linear(HEADS * DIM, HIDDEN)
        attn.rotary_emb = Rotary()
        attn.q_size, attn.kv_size = HEADS * DIM, KV_HEADS * DIM
        attn.attn = SimpleNamespace(impl=Impl())


def parts_of():
    torch.manual_seed(3)
    rope = c.Rope(
        size=ctypes.sizeof(c.Rope), pairing=1, dims=DIM, trained=4096, theta=10000.0, factor=1.0
    )
    return ModelParts(
        architecture="llama",
        embed=torch.nn.Embedding(VOCAB, HIDDEN),
        norm=Norm(),
        logits=torch.nn.Linear(HIDDEN, VOCAB),
        layers=tuple(Layer() for _ in range(LAYERS)),
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        head_dim=DIM,
        scale=DIM**-0.5,
        dtype=torch.float32,
        device=CPU,
        n_vocab=VOCAB,
        context=1024,
        rope=rope,
    )


def caches_of(transposed):
    """The same shape in both orders of memory."""
    shape = (BLOCKS, BLOCK, KV_HEADS, 2 * DIM) if transposed else (BLOCKS, KV_HEADS, BLOCK, 2 * DIM)
    caches = [torch.full(shape, 7.0) for _ in range(LAYERS)]
    return [cache.transpose(1, 2) for cache in caches] if transposed else caches


def pages_of(parts, caches):
    return Pages.of(parts, caches, BLOCKS, BLOCK)


class ApartImpl(Impl):
    """Writes K and V in planes of their own, as FlashInfer's pages have them."""

    def do_kv_cache_update(self, attn, keys, values, cache, slots):
        for plane, rows in enumerate((keys, values)):
            cache[slots // BLOCK, plane, slots % BLOCK] = rows


def prompt(order):
    generator = torch.Generator().manual_seed(9)
    texts = [torch.randint(0, VOCAB, (n,), generator=generator) for n in (SYSTEM, *DOCUMENTS)]
    texts = [texts[0]] + [texts[1 + i] for i in order]
    segments, first = [], 0
    for text in texts:
        segments.append((first, len(text)))
        first += len(text)
    question = torch.randint(0, VOCAB, (QUESTION,), generator=generator)
    return torch.cat([*texts, question]).tolist(), segments


class Cache:
    def __init__(self):
        lib, config, self.handle = library(), ctypes.c_void_p(), ctypes.c_void_p()
        check(lib.tsr_config_open(ctypes.byref(config)))
        configure(config, None, True, {"host_size": "64M", "chunk_size": 16})
        check(lib.tsr_cache_open(ctypes.byref(self.handle), config))
        lib.tsr_config_close(config)

    def close(self):
        library().tsr_cache_close(self.handle)


def spy_of(base):
    class Spy(base):
        """Keeps the last logits."""

        def logits(self, keep, out):
            super().logits(keep, out)
            self.last = torch.tensor(list(out)).view(len(keep), -1)[0]

    return Spy


@torch.inference_mode()
def answered(parts, place, cache, order, salt, profile, ratio=None, base=BlendExecutor):
    """Logits of the question's last token, which is computed too; the report; and K and V that are
    in the pages then."""
    tokens, segments = prompt(order)
    info = model_info(parts, "plain", bytes(32), bytes(16))
    blend = Blend(cache.handle, info, profile, 0, salt)
    given = len(tokens) - 1
    blocks = [(7 * i + 3) % BLOCKS for i in range(-(-given // BLOCK))]
    place.prepare(blocks, BLOCK, CONTEXT, QUESTION + blend.n_draft)
    ask = Ask(array("I", tokens).tobytes(), segments, True, CONTEXT, ratio=ratio, question=True,
              gate=ratio is None)  # fmt: skip
    executor = spy_of(base)(parts, place)
    executor.question = CONTEXT
    report = blend.run(ask, place.layout(), executor, place.paged())
    blend.close()
    caches = caches_of(False)
    for layer, cache in zip(parts.layers, caches):
        layer.self_attn.attn.kv_cache = cache  # where Staging writes to
    if isinstance(place, Pages):
        caches = place._caches
    place.hand_over(given)
    slots = torch.tensor(blocks).repeat_interleave(BLOCK) * BLOCK
    slots = (slots + torch.arange(BLOCK).repeat(len(blocks)))[:given]
    rows = [cache.transpose(1, 2)[slots // BLOCK, slots % BLOCK] for cache in caches]
    return executor.last, report, torch.stack(rows)


@torch.inference_mode()
def blended(
    parts, place, cache, order, ratio, selector, salt, profile=None, executor=BlendExecutor
):
    """K and V of the context by token, and the report."""
    tokens, segments = prompt(order)
    info = model_info(parts, "plain", bytes(32), bytes(16))
    blend = Blend(cache.handle, info, profile, 0, salt, PRIMER if profile else ())
    blocks = [(7 * i + 3) % BLOCKS for i in range(-(-CONTEXT // BLOCK))]
    place.prepare(blocks, BLOCK, CONTEXT, QUESTION + blend.n_primer)
    ask = Ask(array("I", tokens).tobytes(), segments, True, CONTEXT, ratio=ratio, selector=selector)
    report = blend.run(ask, place.layout(), executor(parts, place), place.paged())
    blend.close()
    rows = Rows(torch.arange(CONTEXT), CPU)
    kv = torch.stack([torch.stack(place.take(layer, rows)) for layer in range(LAYERS)])
    return kv.clone(), report


class TestPages(unittest.TestCase):
    def setUp(self):
        self.parts = parts_of()
        self.cache = Cache()
        self.addCleanup(self.cache.close)

    def both(self, transposed, order, ratio, selector, profile=None):
        """In pages, and in a row, each with a space of its own."""
        places = {
            b"pages": pages_of(self.parts, caches_of(transposed)),
            b"row": Staging(self.parts),
        }
        how, name = (self.cache, order, ratio, selector), f"{transposed}{profile}".encode()
        return [blended(self.parts, at, *how, kind + name, profile) for kind, at in places.items()]

    def test_every_selector_filled_and_loaded(self):
        for transposed in (False, True):
            for order in ((0, 1, 2), (2, 0, 1)):  # filled; then loaded and turned
                for ratio, selector in ((0.0, "none"), (0.3, "query"), (0.3, "hkvd"),
                                        (0.3, "link"), (1.0, "full")):  # fmt: skip
                    with self.subTest(transposed=transposed, order=order, selector=selector):
                        (got, told), (want, also) = self.both(transposed, order, ratio, selector)
                        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
                        for name in ("n_reused", "n_recomputed", "n_exact", "n_filled"):
                            self.assertEqual(told[name], also[name])
                        if ratio == 0:
                            self.assertEqual(told["n_filled"] > 0, order == (0, 1, 2))

    def test_documents_behind_a_primer(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as profile:
            profile.write("context: primer\n")
            profile.flush()
            for order in ((0, 1, 2), (2, 0, 1)):
                for ratio, selector in ((0.0, "none"), (0.3, "query")):
                    how = True, order, ratio, selector, profile.name
                    (got, told), (want, _also) = self.both(*how)
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
                    self.assertEqual(told["n_filled"] > 0, (order[0], ratio) == (0, 0.0))

    def test_questions_with_a_bias_and_a_gate(self):
        profiles = {
            "bias: [[0, -0.5]]\nratio: 0.2\n": None,
            "gate: {constant: -5}\ngate_limit: 0.5\nrounds: [0.1, 0.3]\ndraft: 5\n": None,
            "ratio: 0.2\n": 1.0,
        }
        found = []
        for text, ratio in profiles.items():
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as profile:
                profile.write(text)
                profile.flush()
                both = []
                for place in (pages_of(self.parts, caches_of(True)), Staging(self.parts)):
                    salt = type(place).__name__.encode() + text.encode().hex().encode()[:40]
                    for order in ((0, 1, 2), (2, 0, 1)):
                        how = self.cache, order, salt, profile.name, ratio
                        logits, told, kv = answered(self.parts, place, *how)
                    both.append((logits, told, kv))
                torch.testing.assert_close(both[0][0], both[1][0], rtol=1e-3, atol=1e-4)
                torch.testing.assert_close(both[0][2], both[1][2], rtol=1e-3, atol=1e-4)
                found.append(both[0])
        biased, gated, full = found
        self.assertEqual(biased[1]["bias"], -0.5)
        self.assertGreater(float((biased[0] - full[0]).abs().max()), 1e-3)
        # A gate that is never sure: drafts, two rounds, then everything.
        self.assertEqual((gated[1]["n_rounds"], gated[1]["sure"]), (2, 1.0))
        self.assertIn("full", gated[1]["reasons"])
        torch.testing.assert_close(gated[0], full[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(gated[2], full[2], rtol=1e-3, atol=1e-4)

    def test_everything_computed_is_a_prefill(self):
        tokens, _segments = prompt((0, 1, 2))
        (full, _), _ = self.both(False, (0, 1, 2), 1.0, "full")
        staging = Staging(self.parts)
        staging.fit(CONTEXT)
        executor = BlendExecutor(self.parts, staging)
        rows = (c.ModelRow * CONTEXT)(*[c.ModelRow(tokens[i], i, i) for i in range(CONTEXT)])
        group = (c.ModelGroup * 1)()
        group[0].n_rows, group[0].n_ranges = CONTEXT, 1
        group[0].sees[0] = c.Range(0, CONTEXT)
        order = c.ModelPass(
            size=ctypes.sizeof(c.ModelPass), rows=rows, n_rows=CONTEXT, n_groups=1, groups=group
        )
        with torch.inference_mode():
            executor.begin(order)
            for layer in range(LAYERS):
                executor.layer(layer, None)
            executor.end()
        want = staging.kv[:, :, :CONTEXT]
        torch.testing.assert_close(full, want, rtol=1e-4, atol=1e-5)

    def test_other_blocks_keep_their_bytes(self):
        caches = caches_of(False)
        pages = pages_of(self.parts, caches)
        blended(self.parts, pages, self.cache, (0, 1, 2), 0.3, "query", b"other")
        mine = set(pages.slots.tolist())
        for cache in caches:
            by_slot = cache.transpose(1, 2).reshape(BLOCKS * BLOCK, -1)
            for slot in range(BLOCKS * BLOCK):
                self.assertEqual(bool((by_slot[slot] == 7.0).all()), slot not in mine)

    def test_the_format_is_proven_and_what_is_not_known_is_refused(self):
        def refused(why, caches):
            with self.assertRaisesRegex(Refused, why):
                pages_of(self.parts, caches)

        refused("KV pages of shape", [torch.empty(2, BLOCKS, BLOCK, KV_HEADS, DIM)] * LAYERS)
        refused("different forms", [*caches_of(True)[1:], caches_of(False)[0]])
        refused("torch.float16", [cache.half() for cache in caches_of(True)])
        impls = [layer.self_attn.attn.impl for layer in self.parts.layers]
        for impl in impls:
            impl.do_kv_cache_update = lambda *args: None
        refused("hold a number 0 times", caches_of(True))
        self.parts.layers[1].self_attn.attn.impl = ApartImpl()
        refused("different forms", caches_of(True))

    def test_keys_and_values_in_planes_of_their_own(self):
        other = parts_of()
        for layer in other.layers:
            layer.self_attn.attn.impl = ApartImpl()
        caches = [torch.full((BLOCKS, 2, BLOCK, KV_HEADS, DIM), 7.0) for _ in range(LAYERS)]
        apart, row = pages_of(other, caches), Staging(self.parts)
        for order in ((0, 1, 2), (2, 0, 1)):
            for ratio, selector in ((0.0, "none"), (0.3, "query"), (0.3, "hkvd"), (1.0, "full")):
                how = self.cache, order, ratio, selector
                got, told = blended(other, apart, *how, b"apart")
                want, _also = blended(self.parts, row, *how, b"in a row")
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        self.assertEqual(told["n_filled"], 0)

    def test_blocks_that_do_not_fit_are_refused(self):
        pages = pages_of(self.parts, caches_of(False))
        with self.assertRaisesRegex(ValueError, "1 blocks"):
            pages.prepare([1], BLOCK, 17, 5)
        with self.assertRaisesRegex(ValueError, "block 64"):
            pages.prepare([64], BLOCK, 16, 5)
        pages.prepare([3, 1], 32, 40, 5)  # blocks of the engine that kernels see as two
        want = [*range(96, 128), *range(32, 40)]
        self.assertEqual(pages.slots.tolist(), want)
        self.assertEqual(pages._blocks.tolist(), [6, 7, 2])


if __name__ == "__main__":
    unittest.main()
