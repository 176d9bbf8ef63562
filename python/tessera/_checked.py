"""C structs and arguments that reject values they cannot hold.

ctypes silently truncates integers to the width of a field, and C ends text at its first NUL: two
salts could become one, and a count another. Here the first is an OverflowError and the second a
ValueError, in every field of every struct; in arguments of calls both are ctypes.ArgumentError.
Messages never repeat the text, because it may be a salt.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["Packed", "Struct", "Text", "arguments", "check_text", "counters", "packed_rows"]

_INTEGERS = (
    ctypes.c_int8,
    ctypes.c_uint8,
    ctypes.c_int16,
    ctypes.c_uint16,
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_int64,
    ctypes.c_uint64,
    ctypes.c_int,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.c_ssize_t,
)
Check = Callable[[str, Any], None]


def _limits(kind: Any) -> tuple[int, int]:
    bits = 8 * ctypes.sizeof(kind)
    signed = kind is not ctypes.c_void_p and kind(-1).value < 0
    return (-1 << bits - 1, (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


# kind: (least, most). Of addresses only those that are given as numbers are looked at.
LIMITS: dict[Any, tuple[int, int]] = {kind: _limits(kind) for kind in (*_INTEGERS, ctypes.c_void_p)}


def check_text(name: str, text: bytes | None) -> None:
    """Rejects text with a NUL, where C would stop reading."""
    if text is not None and 0 in text:
        raise ValueError(f"{name}: text contains a NUL")


def _check_of(kind: Any) -> Check | None:
    """The check for values of a field of that type; None: the check of ctypes is enough."""
    if kind in LIMITS:
        low, high = LIMITS[kind]

        def check_number(name: str, value: Any) -> None:
            if isinstance(value, int) and not low <= value <= high:
                raise OverflowError(f"{name}: {value} is not between {low} and {high}")

        return check_number
    if kind is ctypes.c_char_p:

        def check_pointer(name: str, value: Any) -> None:
            if isinstance(value, bytes):
                check_text(name, value)

        return check_pointer
    if getattr(kind, "_type_", None) is ctypes.c_char:
        room = ctypes.sizeof(kind)

        def check_array(name: str, value: Any) -> None:
            if isinstance(value, bytes):
                check_text(name, value)
                if len(value) >= room:
                    raise ValueError(f"{name}: {len(value)} bytes, at most {room - 1}")

        return check_array
    return None


class Struct(ctypes.Structure):
    """A Structure with such fields. They are checked wherever they are set: as positional or
    keyword arguments, in a row of an array, or later."""

    _sized_: tuple[str, ...] = ()  # bytes whose length is another field: a NUL is a byte there
    _checks_: dict[str, Check] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        checks = {field[0]: _check_of(field[1]) for field in cls.__dict__["_fields_"]}
        cls._checks_ = {
            name: check for name, check in checks.items() if check and name not in cls._sized_
        }

    def __setattr__(self, name: str, value: Any) -> None:
        check = self._checks_.get(name)
        if check is not None:
            check(name, value)
        super().__setattr__(name, value)


def counters(row: Struct) -> dict[str, int]:
    """The fields that are 64-bit numbers."""
    return {name: getattr(row, name) for name, kind, *_ in row._fields_ if kind is ctypes.c_uint64}


class Text(ctypes.c_char_p):
    """A text argument. Plain c_char_p is for bytes with a separate length argument."""

    @classmethod
    def from_param(cls, value: Any) -> Any:
        if isinstance(value, bytes):
            check_text("text", value)
        return ctypes.c_char_p.from_param(value)


def _argument(kind: Any) -> Any:
    low, high = LIMITS[kind]

    class Number:
        @staticmethod
        def from_param(value: Any) -> Any:
            if isinstance(value, int) and not low <= value <= high:
                raise OverflowError(f"{value} is not between {low} and {high}")
            return kind.from_param(value)

    return Number


_ARGUMENTS = {kind: _argument(kind) for kind in _INTEGERS}


def arguments(kinds: Iterable[Any]) -> list[Any]:
    """Argument types of a function, those of numbers checked."""
    return [_ARGUMENTS.get(kind, kind) for kind in kinds]


def packed_rows(kind: type[Struct], packer: struct.Struct, rows: Sequence[Sequence[int]]) -> Any:
    """An array of structs of integers, packed with a struct.Struct of the same shape: ten times
    faster for large arrays."""
    table = (kind * len(rows))()
    step = ctypes.sizeof(kind)
    try:
        for i, row in enumerate(rows):
            packer.pack_into(table, i * step, *row)
    except struct.error as error:
        raise OverflowError(f"{kind.__name__}: {error}") from None
    return table


_LETTERS = {
    ctypes.c_uint32: "I",
    ctypes.c_int32: "i",
    ctypes.c_uint64: "Q",
    ctypes.c_size_t: "N",
    ctypes.c_void_p: "P",
}


class Packed:
    """One struct of numbers and addresses that is filled again for every call. All fields at once
    take a tenth of the time that setting them one by one takes. `ref` is an argument for calls;
    what addresses point to is the caller's to keep."""

    def __init__(self, kind: type[Struct]) -> None:
        letters = [_LETTERS.get(one, "P") for _name, one, *_ in kind._fields_]
        packer, size = struct.Struct("@" + "".join(letters)), ctypes.sizeof(kind)
        if packer.size != size:
            raise TypeError(f"{kind.__name__}: not as C lays it out")
        self._row = kind()
        self.address = ctypes.addressof(self._row)
        self.ref = ctypes.byref(self._row)
        # Take all fields; struct.error: one of them does not fit.
        self.fill = functools.partial(packer.pack_into, self._row, 0)
        # Of a struct that begins with its size: all fields but that one.
        self.fill_sized = functools.partial(packer.pack_into, self._row, 0, size)
