"""What options of the library mean for the connectors of engines.

Options come from TESSERA_CONFIG_FILE, the environment and the engine's own configuration, under
our names or those of LMCache, UCM and the chunk cache of vLLM (docs/config.md). Some of them are
for the Python side: whether documents are blended, where prompts are split, and whether generated
tokens are saved. An engine's own keys ("blend", "save_decode") win over them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from ._lib import check, library
from .cache import configure

__all__ = ["option_texts", "own_settings", "without_effect"]

_READ = (
    "blend",
    "blend_any_offset",
    "blend_from_traffic",
    "blend_min_tokens",
    "chunked",
    "save_decode",
    "save_partial",
    "separator",
)
_WHOLE = "whole chunks are saved; set a smaller chunk_size"
_EXACT = "exact prefixes are reused there; --radix-cache-backend tessera blends"
_UNABLE = {
    "vLLM": {"save_partial": _WHOLE},
    "SGLang": {"save_partial": _WHOLE},
    "SGLang's hierarchical cache": {
        "chunked": _EXACT,
        "blend": _EXACT,
        "save_partial": _WHOLE,
    },
}


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """The values of the options that this module reads. Opens no cache and logs nothing."""
    lib = library()
    config = ctypes.c_void_p()
    check(lib.tsr_config_open(ctypes.byref(config)))
    try:
        configure(config, None, True, options)
        return {name: lib.tsr_config_get(config, name.encode()).decode() for name in _READ}
    finally:
        lib.tsr_config_close(config)


def own_settings(own: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's own keys, completed by options: "save_decode", and "blend" as an object."""
    texts = option_texts(options)
    settled = dict(own)
    settled.setdefault("save_decode", texts["save_decode"] == "true")
    on = texts["blend"] == "true" or texts["chunked"] == "true"
    blend = own.get("blend", on)
    if blend is True or (isinstance(blend, Mapping) and blend):
        given = {} if blend is True else dict(blend)
        derived: dict[str, Any] = {
            "any_offset": texts["blend_any_offset"] == "true",
            "any_system": texts["chunked"] == "true",
            "from_traffic": texts["blend_from_traffic"] == "true",
            "min_tokens": int(texts["blend_min_tokens"]),
        }
        if texts["separator"]:
            derived["separators"] = [texts["separator"]]
        blend = {**derived, **given}
    settled["blend"] = blend
    return settled


def without_effect(options: Mapping[str, Any], engine: str) -> list[str]:
    """Options that are on and that this engine's connector cannot follow, each with the reason."""
    texts = option_texts(options)
    return [
        f"{name}: no effect in {engine}: {why}"
        for name, why in _UNABLE[engine].items()
        if texts[name] == "true"
    ]
