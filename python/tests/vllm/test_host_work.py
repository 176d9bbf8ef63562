"""What a layer of a blend costs the host: on a GPU a blend of few rows takes as long as the host
needs to queue its operations. Counted on a CPU, in pages, with the model of test_places.py: torch's
operations around the model's own modules, the kernel that writes pages and the attention kernel,
which do not count."""

import sys
import unittest
from array import array
from collections import Counter

import torch
from test_places import (
    BLOCK,
    BLOCKS,
    CONTEXT,
    LAYERS,
    QUESTION,
    Cache,
    caches_of,
    pages_of,
    parts_of,
    prompt,
)
from torch.utils._python_dispatch import TorchDispatchMode

from tessera.blend import Ask, Blend
from tessera.compute.attention import Attention
from tessera.compute.executor import BlendExecutor
from tessera.vllm.model import model_info

# Operations that only describe memory: no kernel is queued for them.
VIEWS = set(
    "alias as_strided chunk detach empty empty_like empty_strided expand permute select slice "
    "split split_with_sizes squeeze t transpose unbind unsqueeze view _reshape_alias".split()
)


class Operations(TorchDispatchMode):
    """Counts torch's operations, and Python's calls, unless something of vLLM's runs."""

    def __init__(self):
        super().__init__()
        self.names, self.calls, self.pauses = Counter(), 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not self.pauses:
            self.names[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

    def call(self, frame, event, _argument):
        mine = "/python/tessera/" in frame.f_code.co_filename
        self.calls += mine and event == "call" and not self.pauses

    def pause(self, *_args):
        self.pauses += 1

    def resume(self, *_args):
        self.pauses -= 1

    @property
    def kernels(self):
        return Counter({name: n for name, n in self.names.items() if name not in VIEWS})


class Counted(BlendExecutor):
    """Counts every layer but a pass's first, which works out what the others use. Its last one
    counts for questions alone: of other rows not all is computed there."""

    found = ()

    def layer(self, layer, mass):
        n, seen = len(self._rows), Operations()
        handles = []
        for module in self._parts.layers[layer].modules():
            if not list(module.children()):
                handles.append(module.register_forward_pre_hook(seen.pause))
                handles.append(module.register_forward_hook(seen.resume))
        impl = self._parts.layers[layer].self_attn.attn.impl
        write = type(impl).do_kv_cache_update

        def unseen(*args):
            seen.pause()
            write(impl, *args)
            seen.resume()

        impl.do_kv_cache_update = unseen
        sys.setprofile(seen.call)
        try:
            with seen:
                super().layer(layer, mass)
        finally:
            sys.setprofile(None)
            for handle in handles:
                handle.remove()
        if 0 < layer < LAYERS - (mass is None):
            self.found = (*self.found, (n, mass is not None, seen))


def nothing(q, keys, values, counts, bias, scale, out):
    """Attention that does nothing."""


class TestHostWork(unittest.TestCase):
    def setUp(self):
        self.parts = parts_of()
        cache = Cache()
        self.addCleanup(cache.close)
        self.pages = pages_of(self.parts, caches_of(False))
        info = model_info(self.parts, "plain", bytes(32), bytes(16))
        self.blend = Blend(cache.handle, info, None, 0, b"work")
        self.addCleanup(self.blend.close)

    @torch.inference_mode()
    def run_blend(self, order, ratio, asked):
        tokens, segments = prompt(order)
        blocks = [(7 * i + 3) % BLOCKS for i in range(-(-CONTEXT // BLOCK))]
        self.pages.prepare(blocks, BLOCK, CONTEXT, QUESTION)
        how = dict(ratio=ratio, selector=asked)
        ask = Ask(array("I", tokens).tobytes(), segments, True, CONTEXT, **how)
        attention = Attention(self.parts.n_kv_heads, self.parts.scale, nothing)
        executor = Counted(self.parts, self.pages, attention)
        self.blend.run(ask, self.pages.layout(), executor, self.pages.paged())
        return executor.found

    def test_a_layer_queues_little_around_the_model(self):
        self.run_blend((0, 1, 2), 0.0, "none")
        limits = {"question, attention asked": 23, "question": 5, "recomputed": 2}
        seen = {}
        for n, asked, one in self.run_blend((2, 0, 1), 0.2, "query"):
            kind = "question" if n == QUESTION else "recomputed"
            seen[kind + ", attention asked" * asked] = one
        for kind, one in seen.items():
            print(f"    {kind}: {one.kernels.total()} kernels, {one.names.total()} operations of "
                  f"torch, {one.calls} calls of ours: {dict(one.kernels)}")  # fmt: skip
            self.assertLessEqual(one.kernels.total(), limits[kind], kind)
        self.assertIn("recomputed", seen)


if __name__ == "__main__":
    unittest.main()
