"""Tessera inside vLLM: `tessera.vllm` is the module path of TesseraConnector (connector.py).

vLLM imports plugin.py early in each of its processes. The connector needs torch and vLLM itself, so
it is imported when it is asked for. In a vLLM that it does not work with, idle.py stands in for it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import TesseraConnector

__all__ = ["TesseraConnector"]


def __getattr__(name: str) -> Any:
    if name != "TesseraConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .idle import connector_class

    globals()[name] = connector_class()
    return globals()[name]
