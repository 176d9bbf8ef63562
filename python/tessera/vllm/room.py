"""The device pool within what vLLM is given of a GPU.

vLLM takes all memory up to gpu_memory_utilization for its KV, before the cache is opened. So that a
pool of device_pool_share stays within that, it is taken off what vLLM counts as free for its KV.
"""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger

from ..owner import device_pool_share, forbid_pool
from .shape import split_options

__all__ = ["leave_room"]

logger = init_logger("vllm.tessera")
_KEPT = 0.25  # of vLLM's KV, at least


def leave_room(worker: Any, available: int) -> int:
    """What is left for vLLM's KV of `available` bytes. Where there is no room the pool is off: an
    engine that starts without Tessera starts with it."""
    config = worker.vllm_config
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_connector != "TesseraConnector":
        return available
    # Several workers have no pool; who gives vLLM's KV in bytes knows what else needs memory.
    if config.parallel_config.world_size > 1 or config.cache_config.kv_cache_memory_bytes:
        return available
    _own, options = split_options(transfer.kv_connector_extra_config)
    wanted = int(device_pool_share(options) * worker.init_snapshot.total_memory)
    if available - wanted < available * _KEPT:
        forbid_pool(str(transfer.engine_id))
        logger.warning(
            "tessera: no device pool: device_pool_share wants %d of the %d MiB that vLLM has for "
            "its KV",
            wanted >> 20,
            available >> 20,
        )
        return available
    return available - wanted
