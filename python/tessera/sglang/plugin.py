"""SGLang loads this by its entry point in every process. `--radix-cache-backend tessera` then
selects a radix cache that loads evicted text, or text from before a restart, from Tessera."""

from __future__ import annotations

from typing import Any


def register() -> None:
    from sglang.srt.mem_cache.registry import (
        register_radix_cache_backend,
        registered_radix_cache_backends,
    )

    if "tessera" not in registered_radix_cache_backends():
        register_radix_cache_backend("tessera", build)


def build(context: Any) -> Any:
    """A radix cache for SGLang's scheduler; SGLang's own if Tessera cannot work."""
    from .radix import build as build_radix

    return build_radix(context)
