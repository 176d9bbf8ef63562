"""Where the K and V of a prompt are while it is blended. Tokens are numbered from 0 on, the prompt
first and then the primer; these numbers are the slots of a pass (blend.h)."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import torch

from .. import _c as c
from .parts import ModelParts, kv_dtype

__all__ = ["Contiguous", "Place", "Rows", "kv_layout", "sent"]

_KEPT_BYTES = 1 << 30  # of memory for prompts, between them


def sent(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same on the device, without waiting for what that has to do before."""
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


class Rows:
    """The slots of a pass's rows, ascending, here and on the device. What every layer needs of them
    is worked out once and kept here: `places` by Pages, `counts` by Attention."""

    def __init__(
        self, slots: torch.Tensor, device: torch.device, there: torch.Tensor | None = None
    ) -> None:
        """`there`: the same slots on the device, if they are there already."""
        self.host = slots
        self.device = slots.to(device) if there is None else there
        self.first, self.last = int(slots[0]), int(slots[-1])
        self.places: Any = None
        self.counts: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.host)

    def behind(self, cut: int) -> Rows:
        """Without the first so many."""
        return Rows(self.host[cut:], self.device.device, self.device[cut:])

    def chosen(self, kept: torch.Tensor, there: torch.Tensor) -> Rows:
        """Those with these numbers, given here and on the device."""
        return Rows(self.host[kept], self.device.device, self.device[there])

    @property
    def dense(self) -> bool:
        return self.last - self.first + 1 == len(self.host)


class Place(Protocol):
    """What an executor needs."""

    def put(self, layer: int, rows: Rows, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes K and V [rows, heads, dim]."""

    def take(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [rows, heads, dim] as they are."""

    def seen(self, layer: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V by slot, of which [first, end) are valid until the next call."""


class Contiguous:
    """Contiguous K and V: slot i in row i of every layer. Grows, and is kept for the next prompt
    unless it is large."""

    def __init__(self, parts: ModelParts) -> None:
        self._parts = parts
        self.n_slots = 0
        self.kv = torch.empty(0)

    def fit(self, n_slots: int) -> None:
        if n_slots <= self.n_slots:
            return
        parts = self._parts
        self.n_slots = min(-(-n_slots // 1024) * 1024, max(parts.context, n_slots))
        self.kv = torch.empty(0)  # the old one goes before the new one comes
        shape = (len(parts.layers), 2, self.n_slots, parts.n_kv_heads, parts.head_dim)
        self.kv = torch.empty(shape, dtype=parts.dtype, device=parts.device)

    def use(self, kv: torch.Tensor) -> None:
        """Memory that somebody else keeps, maybe a part of a larger one: [layers, 2, slots, heads,
        dim]"""
        self.kv, self.n_slots = kv, kv.shape[2]

    def paged(self) -> None:
        """Token i is in slot i of the layout."""

    def rest(self) -> None:
        """No prompt is in work: memory that is worth having back is given back."""
        if self.kv.numel() * self.kv.element_size() > _KEPT_BYTES:
            self.n_slots = 0
            self.kv = torch.empty(0)

    def put(self, layer: int, rows: Rows, keys: torch.Tensor, values: torch.Tensor) -> None:
        for plane, fresh in zip(self.kv[layer], (keys, values)):
            if rows.dense:
                plane[rows.first : rows.last + 1] = fresh
            else:
                plane.index_copy_(0, rows.device, fresh)

    def take(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.kv[layer]
        return keys.index_select(0, rows.device), values.index_select(0, rows.device)

    def seen(self, layer: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.kv[layer]
        return keys, values

    def layout(self) -> c.KvLayout:
        """Where it is, for the library."""
        parts = self._parts
        item = self.kv.element_size()
        layout = kv_layout(parts, self.n_slots)
        for i in range(2):
            plane = layout.planes[i]
            plane.base = self.kv[:, i].data_ptr()
            end = (len(self.kv) - 1) * self.kv.stride(0) + self.n_slots * self.kv.stride(2)
            plane.layer_bytes = end * item
            plane.layer_stride = self.kv.stride(0) * item
            plane.token_stride = self.kv.stride(2) * item
            plane.head_stride = self.kv.stride(3) * item
            plane.element_stride = item
        return layout


def kv_layout(parts: ModelParts, n_slots: int) -> c.KvLayout:
    layout = c.KvLayout(
        size=ctypes.sizeof(c.KvLayout),
        memory=c.MEMORY_HOST if parts.device.type == "cpu" else c.MEMORY_DEVICE,
        n_layers=len(parts.layers),
        n_planes=2,
        n_slots=n_slots,
    )
    for i in range(2):
        plane = layout.planes[i]
        plane.dtype = kv_dtype(parts)
        plane.n_heads = parts.n_kv_heads
        plane.dim = parts.head_dim
        plane.rope_dims = parts.rope.dims if i == 0 else 0
    return layout
