"""TesseraConnector: Tessera as a KV connector of vLLM.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "TesseraConnector",
        "kv_connector_module_path": "tessera.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"host_size": "8G", "disk_path": "/var/cache/tessera"}}'

Its two sides, scheduler.py and worker.py, translate: vLLM's objects into numbers for the halves
of connector.h, and back. The halves decide what is looked up, loaded and saved, and when. A
failure here costs a log line and the cache, never a request: the connector turns itself off, and
vLLM runs as without it. docs/engines.md has the settings and what was tested.
"""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA

from .scheduler import SchedulerSide
from .worker import WorkerSide

__all__ = ["TesseraConnector"]


class TesseraConnector(SchedulerSide, WorkerSide, SupportsHMA):
    """vLLM makes one for its scheduler and one for each worker."""
