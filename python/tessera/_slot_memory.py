"""An engine's KV memory by slots: where its planes are, which device they are on, and whose queue
of work they belong to. KvCache and KvPool describe theirs with it."""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from . import _c as c
from ._buffers import Block, as_block
from .cache import Space

__all__ = ["SlotMemory"]


class SlotMemory:
    """planes[i][layer], each shaped [slot, head, dim]: K and V, or one latent plane. `layout`
    points into it, so it lives as long as the library uses that."""

    def __init__(self, space: Space, planes: Sequence[Sequence[Any]], rope_dims: int = 0) -> None:
        tensors = [one for layers in planes for one in layers]
        self.device, self.device_number = "cpu", 0
        device = _device_of(tensors)
        self._current_stream: Callable[[], Any] | None = None
        if device is not None:
            streams = getattr(sys.modules["torch"], device.type)  # torch.cuda, torch.npu
            self.device, self.device_number = device.type, device.index or 0
            self._current_stream = lambda: streams.current_stream(device)
        blocks = [[_block(one) for one in layers] for layers in planes]
        self.layout, self._keep = _layout(blocks, space, rope_dims)
        self._keep.append(tensors)

    def follow_stream(self) -> None:
        """What torch has queued may still write or read the slots. The library copies on a stream
        of its own, which knows nothing of that."""
        if self._current_stream is not None:
            self._current_stream().synchronize()

    def places(self, slots: Any) -> array[int]:
        """Slots as the library takes them; -1: skipped."""
        places = array("q", slots.tolist() if hasattr(slots, "tolist") else slots)
        if any(not -1 <= slot < self.layout.n_slots for slot in places):
            raise ValueError(f"a slot is outside the {self.layout.n_slots} of the KV memory")
        return places


def _device_of(planes: Sequence[Any]) -> Any:
    """The torch device of the planes; None: the processor has written what it has written."""
    devices = {
        plane.device
        for plane in planes
        if hasattr(plane, "data_ptr") and plane.device.type != "cpu"
    }
    if len(devices) > 1:
        raise ValueError(f"planes on several devices: {', '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else None


def _block(data: Any) -> tuple[Block, bool]:
    """Where a plane is, and whether that is device memory."""
    if isinstance(data, Block):
        return data, False
    device = getattr(data, "device", None)
    if device is not None and hasattr(data, "data_ptr") and device.type != "cpu":
        item = data.element_size()
        strides = tuple(step * item for step in data.stride())
        return Block(data.data_ptr(), tuple(data.shape), strides, item, data), True
    return as_block(data, True), False


def _layout(
    planes: Sequence[Sequence[tuple[Block, bool]]], space: Space, rope_dims: int
) -> tuple[c.KvLayout, list[Any]]:
    shape = space._desc
    first = planes[0][0][0]
    if len(first.shape) != 3:
        raise ValueError(f"a plane has shape {first.shape}, not [slot, head, dim]")
    on_device = {device for layers in planes for _block, device in layers}
    if len(on_device) != 1:
        raise ValueError("some planes are in host memory and some are not")
    layout = c.KvLayout(
        size=ctypes.sizeof(c.KvLayout),
        memory=c.MEMORY_DEVICE if on_device.pop() else c.MEMORY_HOST,
        n_layers=shape.n_layers,
        n_planes=len(planes),
        n_slots=first.shape[0],
    )
    keep: list[Any] = [planes]
    for i, layers in enumerate(planes):
        one = layers[0][0]
        blocks = [block for block, _device in layers]
        if any(block.shape != one.shape or block.strides != one.strides for block in blocks):
            raise ValueError("planes of different shapes")
        if any(block.item != space._item_bytes for block in blocks):
            raise ValueError(
                f"elements of {one.item} bytes, those of the space have {space._item_bytes}"
            )
        pointers = (ctypes.c_void_p * len(blocks))(*[block.address for block in blocks])
        keep.append(pointers)
        layout.planes[i] = c.KvPlane(
            layers=pointers,
            layer_bytes=one.extent,
            token_stride=one.strides[0],
            head_stride=one.strides[1],
            element_stride=one.strides[2],
            dtype=shape.dtype,
            n_heads=one.shape[1],
            dim=one.shape[2],
            rope_dims=rope_dims if i == 0 else 0,
        )
    return layout, keep
