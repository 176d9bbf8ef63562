"""Tessera: the KV cache that finds any text again. See Cache, and docs/engines.md for vLLM and
SGLang: `tessera.vllm.TesseraConnector`, `tessera.sglang.TesseraStorage`."""

from ._lib import TesseraError, library, library_path, set_logger
from .cache import Cache, Found, Match, Space

__all__ = ["Cache", "Found", "Match", "Space", "TesseraError", "library_path", "set_logger"]


def __getattr__(name: str) -> str:
    """The version is the library's, which is not loaded before something is asked of it."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    version: bytes = library().tsr_version()
    return version.decode()
