"""While we compute, modules call vLLM's own kernels; before and after, what vLLM has chosen."""

import os
import unittest
from dataclasses import replace
from unittest import mock

import torch
import vllm.kernels.vllm_c  # noqa: F401  as in a worker
from test_places import parts_of
from vllm import ir
from vllm.model_executor.custom_op import CustomOp

from tessera.vllm.kernels import OwnKernels


class Activation(CustomOp):
    """As vLLM's while it compiles: the plain form is chosen."""

    name = "tessera_test_activation"

    def __init__(self):
        torch.nn.Module.__init__(self)
        self._forward_method = self.forward_native

    def forward_native(self, x):
        return x + 1

    def forward_cuda(self, x):
        return x + 2


class Without(torch.nn.Module):
    """Nothing to choose from."""

    def forward(self, x):
        return x


def parts_on(device):
    parts = parts_of()
    for layer in parts.layers:
        layer.mlp.act_fn, layer.other = Activation(), Without()
    return replace(parts, device=torch.device(device), norm=Activation())


class TestKernels(unittest.TestCase):
    def called(self, parts):
        x = torch.zeros(1)
        modules = [layer.mlp.act_fn for layer in parts.layers] + [parts.norm]
        return {float(module(x)) for module in modules}

    def test_own_kernels_are_used_inside_alone(self):
        parts = parts_on("cuda")
        kernels = OwnKernels(parts)
        self.assertEqual(self.called(parts), {1.0})
        for _ in range(2):
            with kernels.used():
                self.assertEqual(self.called(parts), {2.0})
            self.assertEqual(self.called(parts), {1.0})
        with self.assertRaises(RuntimeError), kernels.used():
            raise RuntimeError
        self.assertEqual(self.called(parts), {1.0})

    def test_norms_of_the_ir_are_chosen_and_given_back(self):
        norms = ir.ops.rms_norm, ir.ops.fused_add_rms_norm
        before = [norm._priority_impls for norm in norms]
        asked = []
        with mock.patch.object(
            type(norms[0]), "_filter_priority_impls",
            lambda self, priority: asked.append((self.name, priority)) or ["chosen"],
        ):  # fmt: skip
            with OwnKernels(parts_on("cuda")).used():
                self.assertEqual([norm._priority_impls for norm in norms], [["chosen"]] * 2)
        self.assertEqual({priority[0] for _name, priority in asked}, {"vllm_c"})
        self.assertEqual([norm._priority_impls for norm in norms], before)

    def test_other_devices_and_invariant_batches_keep_their_kernels(self):
        parts = parts_on("cpu")
        with OwnKernels(parts).used():
            self.assertEqual(self.called(parts), {1.0})
        parts = parts_on("cuda")
        for other in (
            mock.patch.dict(os.environ, VLLM_BATCH_INVARIANT="1"),
            mock.patch.object(torch.version, "hip", "6.3"),
        ):
            with other:
                kernels = OwnKernels(parts)
            with kernels.used():
                self.assertEqual(self.called(parts), {1.0})


if __name__ == "__main__":
    unittest.main()
