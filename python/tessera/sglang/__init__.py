"""Tessera inside SGLang: `tessera.sglang` is the module path of TesseraStorage (storage.py).

SGLang imports plugin.py in each of its processes. The storage and the radix cache (radix.py) need
torch and SGLang itself, so they are imported when they are asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .storage import TesseraStorage

__all__ = ["TesseraStorage"]


def __getattr__(name: str) -> Any:
    if name != "TesseraStorage":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .storage import TesseraStorage

    return TesseraStorage
