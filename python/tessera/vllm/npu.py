"""KV on Ascend NPUs, as vllm-ascend keeps it. Never run on an NPU: tested with tensors that say
they are on one, over a fake AscendCL (docs/ascend.md).

vllm-ascend gives a connector a tuple of tensors for each layer, K and V, or the latent and the
rotated part of MLA, each [blocks, tokens, heads, dim] ("nd" order). A page is then one part of
each. Some configurations keep pages in "nz" order, where the elements of a token are apart; these
are refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from vllm.platforms import current_platform

from .. import _c as c
from .._connector import GroupShape, page_layout
from ..compute.parts import Refused

__all__ = [
    "current_stream",
    "device_of",
    "in_parts",
    "knows",
    "launch_queued",
    "on_npu",
    "parts_layout",
    "stream",
]

_MLA_SPEC = "AscendMLAAttentionSpec"  # vllm-ascend's own class for MLA
_ND_FORMATS = (-1, 0, 2)  # numbers of torch_npu: undefined, NCHW, ND


def on_npu() -> bool:
    return bool(current_platform.device_type == "npu")


def knows(spec: Any) -> bool:
    """A kind of KV that only vllm-ascend has, and that is understood."""
    return on_npu() and type(spec).__name__ == _MLA_SPEC


# ---- streams ----


def current_stream(device: torch.device) -> Any:
    """Of torch.cuda or torch.npu, which have the same calls."""
    return getattr(torch, device.type).current_stream(device)


def stream(current: Any, device: torch.device) -> int:
    """What the device's runtime knows it by."""
    return int(getattr(current, f"{device.type}_stream"))


def launch_queued(current: Any, device: torch.device) -> None:
    """torch_npu launches from a queue of its own, by another thread. Asking a stream for its handle
    empties that queue: only then is an event of ours behind what the engine has written."""
    if device.type == "npu":
        stream(current, device)


# ---- tensors ----


def _tensors(cache: Any) -> tuple[Any, ...]:
    return tuple(cache) if isinstance(cache, tuple | list) else (cache,)


def device_of(kv_caches: dict[str, Any]) -> torch.device:
    device: torch.device = _tensors(next(iter(kv_caches.values())))[0].device
    return device


def in_parts(
    groups: tuple[GroupShape, ...], specs: Iterable[Any], vllm_config: Any
) -> tuple[GroupShape, ...]:
    """The same with the bytes that a token has in each tensor of a layer."""
    extra = getattr(vllm_config, "additional_config", None) or {}
    if extra.get("enable_kv_nz"):
        raise Refused("KV in nz order (enable_kv_nz); only nd order is known")
    found = []
    for group, spec in zip(groups, specs):
        row = group.page_bytes // group.block_tokens
        first, second = _dims(spec, vllm_config)
        if group.states or (row * first) % (first + second):
            raise Refused(f"KV groups of kind {type(spec).__name__} on an NPU")
        k_bytes = row * first // (first + second)
        found.append(replace(group, parts=(k_bytes, row - k_bytes)))
    return tuple(found)


def _dims(spec: Any, vllm_config: Any) -> tuple[int, int]:
    """Elements of a head in the first and the second tensor."""
    if not knows(spec):
        return int(spec.head_size), int(getattr(spec, "head_size_v", None) or spec.head_size)
    if spec.sparse_head_dim is not None or spec.scale_dim:
        raise Refused("sparse attention (DSA), whose layers have more than two tensors")
    text = vllm_config.model_config.hf_text_config
    latent, rotated = int(text.kv_lora_rank), int(text.qk_rope_head_dim)
    if latent + rotated != spec.head_size:
        raise Refused(f"an MLA row of {spec.head_size} elements, not {latent} + {rotated}")
    return latent, rotated


def _check_format(name: str, tensor: Any) -> None:
    """What torch_npu says about the order of the bytes, and what int8 means there."""
    if tensor.dtype in (torch.int8, torch.uint8):
        raise Refused(f"quantised KV ({name}), which vllm-ascend keeps in nz order")
    asks = getattr(sys.modules.get("torch_npu"), "get_npu_format", None)
    if asks is not None and asks(tensor) not in _ND_FORMATS:
        raise Refused(f"KV in format {asks(tensor)} ({name}), such as nz; only nd order is known")


def parts_layout(
    group: GroupShape,
    caches: dict[str, Any],
    n_blocks: int,
    page: Callable[[Any, int, int], tuple[int, int]],
) -> tuple[c.KvLayout, Any]:
    """Where a group's pages are, one plane for each tensor of a layer. `page` finds the first block
    of a tensor and the bytes from one to the next."""
    layouts = []
    for i, row in enumerate(group.parts):
        pages, strides = [], set()
        for name in group.layers:
            tensors = _tensors(caches[name])
            if len(tensors) != len(group.parts):
                raise Refused(f"{len(tensors)} KV tensors of layer {name}")
            _check_format(name, tensors[i])
            first, stride = page(tensors[i], n_blocks, row * group.block_tokens)
            pages.append(first)
            strides.add(stride)
        if len(strides) != 1:
            raise Refused("layers of one KV group with different block strides")
        size = row * group.block_tokens
        layouts.append(page_layout(pages, strides.pop(), size, group.block_tokens, n_blocks, True))
    whole, keep = layouts[0]
    if len({layout.block_tokens for layout, _keep in layouts}) != 1:
        raise Refused(f"blocks of {group.block_tokens} tokens with gaps")
    for i, (layout, _keep) in enumerate(layouts):
        whole.planes[i] = layout.planes[0]
    whole.n_planes = len(layouts)
    return whole, [keep, layouts]
