"""Tessera: a KV cache that reuses text at any position. See Cache, and docs/engines.md for vLLM and
SGLang: `tessera.vllm.TesseraConnector`, `tessera.sglang.TesseraStorage`."""

from ._lib import TesseraError, library, library_path, set_logger
from .cache import Cache, Found, Listed, Match, Space, split_text
from .kv_cache import KvCache, Rope
from .kv_pool import KvPool

__all__ = [
    "Cache",
    "Found",
    "KvCache",
    "KvPool",
    "Listed",
    "Match",
    "Rope",
    "Space",
    "TesseraError",
    "library_path",
    "set_logger",
    "split_text",
]


def __getattr__(name: str) -> str:
    """The version of the library, which is loaded on first use."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    version: bytes = library().tsr_version()
    return version.decode()
