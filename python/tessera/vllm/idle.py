"""The connector's class for the vLLM that is there: TesseraConnector, or, in a version that it was
not checked with or that lacks something it needs, one that does nothing but say so.

An engine that names the connector in its configuration starts in any case: vLLM makes the class
that `tessera.vllm` exports, and must be able to.
"""

from __future__ import annotations

import inspect
from typing import Any

from .versions import unknown


def connector_class() -> Any:
    """Never fails as long as vLLM has a base class for connectors."""
    import vllm

    why = unknown(str(getattr(vllm, "__version__", "without a version")))
    if why is None:
        try:
            from .connector import TesseraConnector

            why = _differs(TesseraConnector)
            if why is None:
                return TesseraConnector
        except Exception as error:
            why = f"vLLM {vllm.__version__}: {type(error).__name__}: {error}"
    return idle_connector(why)


def _differs(connector: Any) -> str | None:
    """A hook that this vLLM calls in another way than the connector expects; None: there is none.
    Forks of a version may have changed it."""
    if inspect.isabstract(connector):
        return f"vLLM wants {', '.join(sorted(connector.__abstractmethods__))}"
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    for name, theirs in vars(KVConnectorBase_V1).items():
        ours = inspect.getattr_static(connector, name)
        if not inspect.isfunction(theirs) or name.startswith("_") or ours is theirs:
            continue
        if not _accepts(getattr(connector, name), theirs):
            return f"vLLM calls {name}{inspect.signature(theirs)}"
    return None


def _accepts(ours: Any, theirs: Any) -> bool:
    """Whether a call of their method, by position or by name, is one of ours."""
    mine = inspect.signature(ours).parameters
    positional = [p.name for p in mine.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    kinds = {p.kind for p in mine.values()}
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
        return True
    for i, (name, p) in enumerate(inspect.signature(theirs).parameters.items()):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            if p.kind not in kinds:
                return False
        elif i >= len(positional) or positional[i] != name:
            return False
    return True


def idle_connector(why: str) -> Any:
    """A connector for any vLLM: finds nothing, saves nothing, holds nothing."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        base.KVConnectorBase_V1.__init__(self, *args, **kwargs)
        if getattr(getattr(self, "_role", None), "name", "SCHEDULER") == "SCHEDULER":
            _say(why)

    methods = {
        "__doc__": idle_connector.__doc__,
        "__module__": __name__,
        "__init__": init,
        "requires_kv_delivery": property(lambda self: False),
        "get_num_new_matched_tokens": lambda self, *args, **kwargs: (0, False),
        "build_connector_meta": lambda self, *args, **kwargs: base.KVConnectorMetadata(),
        "request_finished": lambda self, *args, **kwargs: (False, None),
        "request_finished_all_groups": lambda self, *args, **kwargs: (False, None),
    }
    bases = [base.KVConnectorBase_V1]
    if hasattr(base, "SupportsHMA"):  # else vLLM would manage the KV cache in another way
        bases.append(base.SupportsHMA)
    for one in bases:
        for name in getattr(one, "__abstractmethods__", ()):
            methods.setdefault(name, _nothing)
    return type("TesseraConnector", tuple(bases), methods)


def _nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    return None


def _say(why: str) -> None:
    try:
        from vllm.logger import init_logger as logger
    except ImportError:
        from logging import getLogger as logger
    logger("vllm.tessera").warning("tessera: off, vLLM runs without it: %s", why)
