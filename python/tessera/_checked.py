"""Structs and arguments of C that refuse what they cannot hold.

ctypes cuts an integer to the width of its field without a word, and C ends a text at its first NUL:
two salts become one, and a count becomes another. Here the one is an OverflowError and the other a
ValueError, in every field of every struct; in an argument of a call both are ArgumentErrors of
ctypes. No message repeats a text: it may be a salt.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["Struct", "Text", "arguments", "check_text", "counters", "packed_rows"]

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
    """Refuses a text that C would see the beginning of only."""
    if text is not None and 0 in text:
        raise ValueError(f"{name}: a text with a NUL in it")


def _check_of(kind: Any) -> Check | None:
    """How a value for a field of that type is checked; None: ctypes itself does all there is."""
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
    """A Structure with such fields. ctypes sets a field in one way, wherever it is given: as an
    argument by place or by name, in a row of an array, or later."""

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
    """An argument that is a text. Plain c_char_p is for bytes whose length is an argument too."""

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
    """An array of structs that hold nothing but integers, from the fields of each, by a
    struct.Struct of the same shape: a tenth of the time where there are many."""
    table = (kind * len(rows))()
    step = ctypes.sizeof(kind)
    try:
        for i, row in enumerate(rows):
            packer.pack_into(table, i * step, *row)
    except struct.error as error:
        raise OverflowError(f"{kind.__name__}: {error}") from None
    return table
