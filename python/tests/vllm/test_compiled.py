"""The Triton kernels compile for GPUs, as they are called. Other tests interpret them, and the
interpreter takes what the compiler refuses. Needs no GPU."""

import inspect
import unittest
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tessera.vllm import fused, paged

OPTIONS = "num_warps", "num_stages"
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def type_of(value):
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    return "i32" if isinstance(value, int) else "fp32"


class Calls:
    """Takes the place of a kernel, and keeps how it was called."""

    def __init__(self, kernel, found):
        self._kernel, self._found = kernel, found

    def __getitem__(self, _grid):
        return lambda *args, **more: self._found.append((self._kernel, args, more))


def compiled(kernel, args, more, arch):
    names = list(inspect.signature(kernel.fn).parameters)
    constants = {name: value for name, value in more.items() if name not in OPTIONS}
    signature = {name: type_of(value) for name, value in zip(names, args)}
    signature.update({name: "constexpr" for name in constants})
    if set(signature) != set(names):
        raise AssertionError(
            f"{kernel.fn.__name__} is called without {set(names) - set(signature)}"
        )
    at = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, at)
    options = {name: more[name] for name in OPTIONS if name in more}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


class TestCompiled(unittest.TestCase):
    def calls(self, dtype, n, group, dim):
        """Of every kernel, for so many rows."""
        n_kv, block, found = 2, 16, []
        names = ("_kernel", fused), ("merge", fused), ("_attend", paged), ("_look", paged)
        with (
            mock.patch.multiple(fused, **self.watched(names, fused, found)),
            mock.patch.multiple(paged, **self.watched((*names, ("merge", paged)), paged, found)),
        ):
            q = torch.zeros(n, n_kv * group, dim, dtype=dtype)
            pages = torch.zeros(9, block, n_kv, 2 * dim, dtype=dtype).split(dim, -1)
            behind = torch.zeros(2, 3 * 64, n_kv, dim, dtype=dtype)
            at = paged.Keys(*pages, *behind, torch.zeros(3, 40, dtype=torch.int64))
            lanes, counts = torch.zeros(2, n, dtype=torch.int32)
            facts = torch.zeros(3, len(paged.Facts._fields), dtype=torch.int32)
            whole = paged.attend(q, at, lanes, counts, facts, 0.1, torch.empty_like(q))
            paged.look(q, at, counts, facts, 0.1, whole, torch.zeros(3, 900))
            keys, values = torch.zeros(2000, n_kv, 2 * dim, dtype=dtype).split(dim, -1)
            for bias in (None, mock.Mock(by_key=torch.zeros(2000), first=0)):
                fused.attend(q, keys, values, counts, bias, 0.1, torch.empty_like(q))
        return found

    def watched(self, names, module, found):
        return {
            name: Calls(getattr(module, name), found) for name, where in names if where is module
        }

    def test_for_ampere_and_hopper(self):
        for arch, dtype, n, group, dim in (
            (90, torch.bfloat16, 16, 4, 128),
            (80, torch.float16, 300, 7, 64),
        ):
            calls = self.calls(dtype, n, group, dim)
            self.assertEqual(len({kernel.fn.__name__ for kernel, _args, _more in calls}), 4)
            for kernel, args, more in calls:
                with self.subTest(kernel=kernel.fn.__name__, arch=arch):
                    compiled(kernel, args, more, arch)


if __name__ == "__main__":
    unittest.main()
