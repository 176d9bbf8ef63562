"""What vLLM calls in each of its processes (entry point vllm.general_plugins), before it loads a
model: makes {"kv_connector": "TesseraConnector"} known, so that no module path is needed, and takes
hold of the model that a worker loads.

vLLM has no hook for the latter: a connector is made after the model and never gets to see it. So
Worker.load_model is wrapped, which every worker of the versions named here goes through; in any
other version nothing is wrapped, and position-independent reuse is off (blend.py says so). And none
for memory that others need on its device: Worker.determine_available_memory is wrapped (room.py).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any

VERSIONS = ("0.32.",)
_model: weakref.ref[Any] | None = None


def register() -> None:
    """vLLM does not start if a plug-in fails. Every process calls this, also of engines that have
    no connector, so what fails is said by the connector (idle.py, blend.py) and not here."""
    with contextlib.suppress(Exception):
        _register_name()
    with contextlib.suppress(Exception):
        if supported():
            _hold_models()
            _leave_room()


def _register_name() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    with contextlib.suppress(ValueError):  # vLLM calls plug-ins more than once in a process
        KVConnectorFactory.register_connector(
            "TesseraConnector", "tessera.vllm", "TesseraConnector"
        )


def supported() -> bool:
    """Whether blending works with this version of vLLM."""
    import vllm

    return str(vllm.__version__).startswith(VERSIONS)


def loaded_model() -> Any:
    """The model of this process's worker; None: there is none, or nobody held it."""
    return _model() if _model is not None else None


def _hold_models() -> None:
    from vllm.v1.worker.gpu_worker import Worker

    load = Worker.load_model
    if getattr(load, "tessera", False):
        return

    @functools.wraps(load)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _model
        result = load(self, *args, **kwargs)
        _model = weakref.ref(self.get_model())
        return result

    load_model.tessera = True  # type: ignore[attr-defined]
    Worker.load_model = load_model


def _leave_room() -> None:
    from vllm.v1.worker.gpu_worker import Worker

    determine = Worker.determine_available_memory
    if getattr(determine, "tessera", False):
        return

    @functools.wraps(determine)
    def determine_available_memory(self: Any, *args: Any, **kwargs: Any) -> Any:
        available = determine(self, *args, **kwargs)
        with contextlib.suppress(Exception):  # the connector says what is wrong
            from .room import leave_room

            return leave_room(self, available)
        return available

    determine_available_memory.tessera = True  # type: ignore[attr-defined]
    Worker.determine_available_memory = determine_available_memory
