"""The programs of the package: `tessera` and `tesserad` of a `pip install`.

They are C programs in tessera/bin. A command of a Python package must be a Python function, so
these functions replace their process by the program.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["program", "tessera", "tesserad"]


def program(name: str) -> Path:
    """The file of a program in this package; FileNotFoundError if it was built without programs."""
    path = Path(__file__).resolve().parent / "bin" / name
    if not path.exists():
        raise FileNotFoundError(f"{path}: this package was built without programs")
    return path


def _become(name: str) -> None:
    try:
        path = program(name)
        os.execv(path, [name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {error}")


def tessera() -> None:
    _become("tessera")


def tesserad() -> None:
    _become("tesserad")
