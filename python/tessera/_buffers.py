"""Arrays of other packages as addresses and strides, without importing those packages.

numpy arrays are known by __array_interface__, torch tensors by data_ptr(), everything else by the
buffer protocol. KV is never copied here; tokens always are.
"""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass
from typing import Any

from . import _c as c

__all__ = ["Block", "as_block", "as_tokens", "as_view"]


@dataclass(frozen=True)
class Block:
    """Memory of another package: its address, shape, and strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int
    keep: Any  # whoever owns the memory

    @property
    def extent(self) -> int:
        """Bytes from the first to behind the last element."""
        if 0 in self.shape:
            return 0
        return self.item + sum((n - 1) * s for n, s in zip(self.shape, self.strides))


def as_block(data: Any, writable: bool = False) -> Block:
    """The memory of an array. TypeError if the CPU cannot access it."""
    if hasattr(data, "data_ptr"):  # torch
        if data.device.type != "cpu":
            raise TypeError(f"the tensor is on {data.device}, but must be in host memory")
        item = data.element_size()
        strides = tuple(step * item for step in data.stride())
        return _checked(Block(data.data_ptr(), tuple(data.shape), strides, item, data))
    if hasattr(data, "__array_interface__"):  # numpy
        face = data.__array_interface__
        address, readonly = face["data"]
        if writable and readonly:
            raise TypeError("the array is read-only")
        item = int(face["typestr"][2:])
        shape = tuple(face["shape"])
        strides = face.get("strides") or _packed(shape, item)
        return _checked(Block(address, shape, tuple(strides), item, data))
    view = memoryview(data)
    if writable and view.readonly:
        raise TypeError("the buffer is read-only")
    if not view.c_contiguous:
        raise TypeError("the buffer is not contiguous")
    if view.readonly:
        whole = bytes(view)
        address = ctypes.cast(ctypes.c_char_p(whole), ctypes.c_void_p).value or 0
        return Block(
            address, tuple(view.shape or ()), tuple(view.strides or ()), view.itemsize, whole
        )
    first = ctypes.c_char.from_buffer(view)
    address = ctypes.addressof(first)
    return Block(
        address, tuple(view.shape or ()), tuple(view.strides or ()), view.itemsize, (data, first)
    )


def _packed(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    strides = []
    for n in reversed(shape):
        strides.append(item)
        item *= n
    return tuple(reversed(strides))


def _checked(block: Block) -> Block:
    if any(step < 0 for step in block.strides):
        raise TypeError("negative strides are not supported")
    return block


def as_tokens(tokens: Any) -> tuple[int, int, Any]:
    """(address, count, owner) of a copy of tokens as uint32. A later load uses the prompt again,
    and the original may have grown, moved or changed by then."""
    face = getattr(tokens, "__array_interface__", None)
    plain = face is not None and face["typestr"] == "<u4" and len(face["shape"]) == 1
    if face is not None and plain and face.get("strides") in (None, (4,)):
        packed = array("I", ctypes.string_at(face["data"][0], 4 * face["shape"][0]))
    elif isinstance(tokens, array) and tokens.typecode == "I":
        packed = tokens[:]
    else:
        packed = array("I", tokens.tolist() if hasattr(tokens, "tolist") else tokens)
    address, count = packed.buffer_info()
    return address, count, packed


def as_view(
    data: Any, rows: int, row_bytes: int, planes: int, writable: bool
) -> tuple[c.View, Any]:
    """A tsr_view over an array of KV: [layer, plane, token, ...row], [layer, token, ...row] where
    there is one plane, or any contiguous memory that is packed like the former."""
    block = as_block(data, writable)
    lead = 3 if planes == 2 else 2
    extent = block.extent
    if len(block.shape) > lead:
        shape, strides = block.shape, block.strides
        if planes == 2 and shape[1] != 2:
            raise ValueError(f"axis 1 is K and V and must have length 2, not {shape[1]}")
        if shape[lead - 1] < rows:
            raise ValueError(f"{rows} tokens are required, the array has {shape[lead - 1]}")
        inner = block.item
        for n, step in zip(reversed(shape[lead:]), reversed(strides[lead:])):
            if n != 1 and step != inner:
                raise ValueError("the rows of the array are not contiguous")
            inner *= n
        if inner != row_bytes:
            raise ValueError(f"a row of the array is {inner} bytes, of the space {row_bytes}")
        plane = strides[1] if planes == 2 else 0
        return c.View(block.address, extent, strides[0], plane, strides[lead - 1]), block.keep
    if block.strides != _packed(block.shape, block.item):
        raise ValueError("the array is neither contiguous nor shaped [layer, plane, token, ...]")
    return c.View(block.address, extent, 0, 0, 0), block.keep
