"""vLLM's own CUDA kernels for modules that are called one by one.

While vLLM compiles a model, its norms, activations and rotary embeddings are written in plain torch
operations, for the compiler to fuse. Called outside what was compiled, they are a dozen small
kernels each, or a compiled function of their own that checks its guards every time. The kernels
that vLLM uses without a compiler are there all the same: they are put in place while we compute, on
the thread that vLLM computes on, and taken back before vLLM goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..compute.parts import ModelParts

__all__ = ["OwnKernels"]

_METHOD = "_forward_method"  # of vLLM's CustomOp: what forward() calls
_NORMS = "rms_norm", "fused_add_rms_norm"  # of vLLM's IR, which chooses among implementations
_CHOICE = ["vllm_c", "native"]


class OwnKernels:
    def __init__(self, parts: ModelParts) -> None:
        self._swaps: list[tuple[dict[str, Any], Callable[..., Any], Callable[..., Any]]] = []
        self._norms: list[Any] = []
        if parts.device.type != "cuda" or torch.version.hip is not None:
            return  # torch names AMD's GPUs cuda, too
        if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
            return  # kernels that were chosen for their results stay
        self._norms = _ir_norms()
        for module in (*parts.layers, parts.norm):
            self._find(module)

    def _find(self, module: torch.nn.Module) -> None:
        for one in module.modules():
            chosen = one.__dict__.get(_METHOD)
            own = getattr(one, "forward_cuda", None)
            if chosen is not None and own is not None and chosen != own:
                self._swaps.append((one.__dict__, own, chosen))

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Whatever our thread computes meanwhile is computed by them."""
        with contextlib.ExitStack() as stack:
            for norm in self._norms:
                stack.enter_context(norm.set_priority(_CHOICE))
            # A module's own way to set an attribute takes longer than all of this.
            for attributes, own, _chosen in self._swaps:
                attributes[_METHOD] = own
            try:
                yield
            finally:
                for attributes, _own, chosen in self._swaps:
                    attributes[_METHOD] = chosen


def _ir_norms() -> list[Any]:
    """Of versions that have them: a worker has loaded them then."""
    ops = getattr(sys.modules.get("vllm.ir"), "ops", None)
    found = (getattr(ops, name, None) for name in _NORMS)
    return [norm for norm in found if norm is not None and "vllm_c" in norm.impls]
