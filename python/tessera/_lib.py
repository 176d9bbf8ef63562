"""The C library as ctypes sees it: structs, prototypes, errors. Nothing here decides anything.

The names, fields and meanings are those of include/tessera/{tessera,client,server}.h; this file
only repeats their shapes. The library is looked for in this order: TESSERA_LIBRARY (a file), the
copy that `pip install ./python` bundles, the build folder of a source tree, the system's loader.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    POINTER,
    c_char_p,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from ._checked import Struct, Text, arguments

__all__ = ["TesseraError", "check", "library", "library_path", "set_logger"]


class TesseraError(Exception):
    """A call that the library refused: `code` is one of enum tsr_err, the text is its own words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SpaceDesc(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("model", c_char_p),
        ("weights", c_void_p),
        ("weights_bytes", c_size_t),
        ("tokenizer", c_char_p),
        ("adapter", c_char_p),
        ("salt", c_char_p),
        ("rope", c_char_p),
        ("dtype", c_uint32),
        ("layout", c_uint32),
        ("n_layers", c_uint32),
        ("layer_first", c_uint32),
        ("n_heads", c_uint32),
        ("k_dim", c_uint32),
        ("v_dim", c_uint32),
        ("rank", c_uint32),
        ("world", c_uint32),
        ("group", c_uint32),
        ("block_tokens", c_uint32),
    ]


class Extra(Struct):
    _sized_ = ("data",)
    _fields_ = [
        ("kind", c_uint32),
        ("offset", c_uint32),
        ("n_tokens", c_uint32),
        ("bytes", c_uint32),
        ("data", c_char_p),
    ]


class Range(Struct):
    _fields_ = [("offset", c_uint32), ("n_tokens", c_uint32)]


class Prompt(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("tokens", c_void_p),
        ("n_tokens", c_uint32),
        ("flags", c_uint32),
        ("segments", POINTER(Range)),
        ("n_segments", c_uint32),
        ("n_extra", c_uint32),
        ("extra", POINTER(Extra)),
        ("recipe", c_void_p),
        ("recipe_bytes", c_size_t),
    ]


BASE_UNKNOWN = 0xFFFFFFFF  # TSR_BASE_UNKNOWN


class MatchRow(Struct):
    _fields_ = [
        ("entry", c_uint64),
        ("epoch", c_uint64),
        ("prompt_offset", c_uint32),
        ("entry_offset", c_uint32),
        ("n_tokens", c_uint32),
        ("kind", c_uint8),
        ("context", c_uint8),
        ("tier", c_uint8),
        ("verified", c_uint8),
        ("base", c_uint32),
        ("freq_set", c_uint32),
        ("entry_tokens", c_uint32),
        ("coverage", c_uint8),
        ("reserved", c_uint8 * 3),
    ]


class Lookup(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("spaces", POINTER(c_void_p)),
        ("n_spaces", c_uint32),
        ("matches_max", c_uint32),
        ("matches", POINTER(MatchRow)),
        ("request_id", c_uint64),
        ("n_matches", c_uint32),
        ("n_prefix_tokens", c_uint32),
    ]


class View(Struct):
    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("layer_stride", c_size_t),
        ("plane_stride", c_size_t),
        ("token_stride", c_size_t),
    ]


class Load(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("space", c_void_p),
        ("match", POINTER(MatchRow)),
        ("prompt", POINTER(Prompt)),
        ("offset", c_uint32),
        ("n_tokens", c_uint32),
        ("layer_first", c_uint32),
        ("n_layers", c_uint32),
        ("view", View),
        ("result", c_int),
        ("base", c_uint32),
        ("freq_set", c_uint32),
    ]


class Store(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("space", c_void_p),
        ("kind", c_uint32),
        ("n_tokens", c_uint32),
        ("tokens", c_void_p),
        ("from_", c_uint32),
        ("n_context", c_uint32),
        ("context", c_void_p),
        ("n_extra", c_uint32),
        ("base", c_uint32),
        ("extra", POINTER(Extra)),
        ("recipe", c_void_p),
        ("recipe_bytes", c_size_t),
        ("freq_set", c_uint32),
        ("cost_s", c_float),
        ("view", View),
    ]


class Key(Struct):
    _fields_ = [("bytes", c_uint8 * 16)]


class Clear(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("space", c_void_p),
        ("prompt", POINTER(Prompt)),
        ("tier", c_int32),
    ]


COUNTERS = (
    "lookups tokens_asked tokens_reused loads load_misses load_bytes stores stores_new "
    "stores_refused store_bytes evicted dropped collisions corrupt entries pinned host_bytes "
    "host_bytes_used"
).split()


class Stats(Struct):
    _fields_ = (
        [("size", c_size_t)]
        + [(name, c_uint64) for name in COUNTERS]
        + [("tier_entries", c_uint64 * 8), ("tier_bytes", c_uint64 * 8)]
    )


class Event(Struct):
    _fields_ = [
        ("key", Key),
        ("space", c_uint8 * 16),
        ("n_tokens", c_uint32),
        ("kind", c_uint8),
        ("entry_kind", c_uint8),
        ("tier", c_uint8),
        ("reserved", c_uint8),
    ]


LogFn = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
_out = POINTER(c_void_p)

# name: (result, arguments)
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "tsr_strerror": (c_char_p, [c_int]),
    "tsr_errmsg": (c_char_p, []),
    "tsr_version": (c_char_p, []),
    "tsr_log_set": (None, [LogFn, c_void_p, c_int]),
    "tsr_config_open": (c_int, [_out]),
    "tsr_config_close": (None, [c_void_p]),
    "tsr_config_set": (c_int, [c_void_p, Text, Text]),
    "tsr_config_get": (c_char_p, [c_void_p, Text]),
    "tsr_config_load_file": (c_int, [c_void_p, Text]),
    "tsr_config_load_env": (c_int, [c_void_p]),
    "tsr_open": (c_int, [_out, c_void_p]),
    "tsr_close": (None, [c_void_p]),
    "tsr_space_open": (c_int, [_out, c_void_p, POINTER(SpaceDesc)]),
    "tsr_space_close": (None, [c_void_p]),
    "tsr_space_fingerprint": (None, [c_void_p, POINTER(c_uint8 * 16)]),
    "tsr_space_token_bytes": (c_size_t, [c_void_p]),
    "tsr_client_open": (c_int, [_out, c_void_p]),
    "tsr_client_close": (None, [c_void_p]),
    "tsr_release": (c_int, [c_void_p, c_uint64]),
    "tsr_lookup": (c_int, [c_void_p, POINTER(Prompt), POINTER(Lookup)]),
    "tsr_keys": (c_int, [c_void_p, POINTER(Prompt), POINTER(Key), c_uint32]),
    "tsr_contains": (c_int, [c_void_p, POINTER(Key), c_uint32, POINTER(c_int8)]),
    "tsr_load": (c_int, [c_void_p, POINTER(Load), c_uint32]),
    "tsr_store": (c_int, [c_void_p, POINTER(Store)]),
    "tsr_prefetch": (c_int, [c_void_p, c_void_p, POINTER(Prompt)]),
    "tsr_discover": (c_int, [c_void_p, c_void_p, POINTER(Prompt)]),
    "tsr_flush": (c_int, [c_void_p]),
    "tsr_pin": (c_int, [c_void_p, POINTER(Prompt)]),
    "tsr_unpin": (c_int, [c_void_p, POINTER(Prompt)]),
    "tsr_touch": (c_int, [c_void_p, POINTER(Prompt)]),
    "tsr_evict": (c_int, [c_void_p, c_size_t]),
    "tsr_clear": (c_int, [c_void_p, POINTER(Clear)]),
    "tsr_freeze": (None, [c_void_p, c_int]),
    "tsr_stats_get": (c_int, [c_void_p, POINTER(Stats)]),
    "tsr_stats_text": (c_int, [c_void_p, Text, c_char_p, c_size_t]),
    "tsr_events": (c_int, [c_void_p, POINTER(Event), c_uint32]),
    "tsr_connected": (c_int, [c_void_p, c_int]),
    "tsr_server_open": (c_int, [_out, c_void_p, c_void_p]),
    "tsr_server_close": (None, [c_void_p]),
    "tsr_server_path": (c_char_p, [c_void_p]),
}

_loaded: ctypes.CDLL | None = None
_logger: Any = None  # the callback must live as long as the library may call it


def _candidates() -> list[str]:
    named = os.environ.get("TESSERA_LIBRARY")
    if named:
        return [named]
    here = Path(__file__).resolve().parent
    places = [here / "lib" / "libtessera.so", here.parents[1] / "build" / "lib" / "libtessera.so"]
    return [str(path) for path in places if path.exists()] + ["libtessera.so.0"]


def library() -> ctypes.CDLL:
    """The library, loaded once in each process. OSError: what was tried when it is not there."""
    global _loaded
    if _loaded is None:
        tried = []
        for name in _candidates():
            try:
                lib = ctypes.CDLL(name)
            except OSError as error:
                tried.append(str(error))
                continue
            declare(lib, _PROTOTYPES)
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
    """The file that library() has loaded, as it was named to the loader."""
    return str(library()._name)


def check(result: int) -> int:
    """The result of a call that succeeded; the library's message as an exception otherwise."""
    if result < 0:
        lib = library()
        text = lib.tsr_errmsg() or lib.tsr_strerror(result)
        raise TesseraError(result, text.decode("utf-8", "replace"))
    return result


def set_logger(function: Any, level_max: int = 2) -> None:
    """Sends the library's log lines to function(level, text); None: nowhere."""
    global _logger
    if function is None:
        callback = LogFn()
    else:
        callback = LogFn(lambda _arg, level, text: function(level, text.decode("utf-8", "replace")))
    library().tsr_log_set(callback, None, level_max)
    _logger = callback
