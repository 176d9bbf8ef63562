"""Tessera: the KV cache that finds any text again. See Cache, and docs/engines.md for vLLM and
SGLang: `tessera.vllm.TesseraConnector`, `tessera.sglang.TesseraStorage`."""

from ._lib import TesseraError, library_path, set_logger
from .cache import Cache, Found, Match, Space

__version__ = "0.1.0"
__all__ = ["Cache", "Found", "Match", "Space", "TesseraError", "library_path", "set_logger"]
