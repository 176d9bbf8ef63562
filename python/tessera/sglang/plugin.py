"""SGLang loads this by its entry point in every process: `--radix-cache-backend tessera` then names
a radix cache that finds what it has lost, or another life has left, in Tessera."""

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
    """A radix cache for SGLang's scheduler; its own where Tessera cannot work."""
    from .radix import build as build_radix

    return build_radix(context)
