"""The C library: found, loaded, declared as _c.py says, and its errors as exceptions.

The library is looked for in this order: TESSERA_LIBRARY (a file), the
copy that `pip install ./python` bundles, the build folder of a source tree, the system's loader.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import _c as c
from ._checked import arguments

__all__ = [
    "TesseraError",
    "check",
    "default_logger",
    "library",
    "library_path",
    "quietly",
    "set_logger",
]


class TesseraError(Exception):
    """A failed call: `code` is one of enum tsr_err, the text is the message of the library."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


_DEBUG = 3  # TSR_LOG_DEBUG
_loaded: ctypes.CDLL | None = None
_logger: Any = None  # the callback must live as long as the library may call it
_quiet = threading.local()


def _candidates() -> list[str]:
    named = os.environ.get("TESSERA_LIBRARY")
    if named:
        return [named]
    here = Path(__file__).resolve().parent
    places = [here / "lib" / "libtessera.so", here.parents[1] / "build" / "lib" / "libtessera.so"]
    return [str(path) for path in places if path.exists()] + ["libtessera.so.0"]


def library() -> ctypes.CDLL:
    """The library, loaded once per process. OSError lists what was tried if it is missing."""
    global _loaded
    if _loaded is None:
        tried = []
        for name in _candidates():
            try:
                lib = ctypes.CDLL(name)
            except OSError as error:
                tried.append(str(error))
                continue
            try:
                declare(lib, c.FUNCTIONS)
            except AttributeError as error:  # it is of another version
                tried.append(str(error))
                continue
            _loaded = lib
            break
        else:
            raise OSError("libtessera.so could not be loaded: " + "; ".join(tried))
    return _loaded


def declare(lib: ctypes.CDLL, prototypes: dict[str, tuple[Any, list[Any]]]) -> None:
    for name, (result, kinds) in prototypes.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments(kinds)


def library_path() -> str:
    """The file that library() has loaded, as passed to the loader."""
    return str(library()._name)


def check(result: int) -> int:
    """Returns the result of a successful call; raises TesseraError with the message otherwise."""
    if result < 0:
        lib = library()
        text = lib.tsr_errmsg() or lib.tsr_strerror(result)
        raise TesseraError(result, text.decode("utf-8", "replace"))
    return result


def rope_text(rope: c.Rope) -> bytes:
    """The parameters of a rope, as they are part of a space's identity."""
    lib = library()
    need = check(lib.tsr_rope_text(ctypes.byref(rope), None, 0))
    text = ctypes.create_string_buffer(need + 1)
    check(lib.tsr_rope_text(ctypes.byref(rope), text, need + 1))
    return text.value


def set_logger(function: Any, level_max: int = 2) -> None:
    """Sends log lines of the library to function(level, text); None: discards them."""
    global _logger
    if function is None:
        callback = c.LogFn()
    else:

        def tell(_arg: Any, level: int, text: bytes) -> None:
            level = max(level, _DEBUG) if getattr(_quiet, "on", False) else level
            function(level, text.decode("utf-8", "replace"))

        callback = c.LogFn(tell)
    library().tsr_log_set(callback, None, level_max)
    _logger = callback


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """What this thread's calls would log is for debugging: another process says the same."""
    _quiet.on = True
    try:
        yield
    finally:
        _quiet.on = False


def default_logger() -> None:
    """Log lines go to logging.getLogger("tessera"), unless set_logger() was called before."""
    if _logger is not None:
        return
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    target = logging.getLogger("tessera")
    set_logger(lambda level, text: target.log(levels[max(0, min(level, 3))], "%s", text))
    atexit.register(set_logger, None)  # threads of the library may outlive the interpreter
