"""Differences between the versions of vLLM that the connector works with, all of them, so that the
rest of the package is written once. docs/engines.md says what each version can do.

| from | vLLM has                                       | before                                |
| ---- | ---------------------------------------------- | ------------------------------------- |
| 0.26 | Request.num_in_flight_tokens                   | counted here, by steps                |
| 0.29 | KVCacheConfig.kv_cache_layout                  | the settings that decide it           |
| 0.30 | KVConnectorBlockState.get_block_ids            | tables are put together here, and     |
|      |                                                | sliding windows refused               |
| 0.30 | get_transfer_results, which names failed loads | their blocks are named, and several   |
|      |                                                | KV groups refused                     |
| 0.31 | to_event_extra_keys                            | no KV events                          |
| 0.32 | what blending needs                            | no blending (plugin.py)               |
| 0.32 | boundary_state_offloads, which names the       | Mamba and linear attention refused    |
|      | blocks of states                               |                                       |
| 0.32 | num_prefill_lookahead_tokens                   | draft models refused                  |
| 0.32 | reports of every pipeline stage, checked here  | pipeline parallelism is refused       |

What the package uses of vLLM is listed in python/tests/vllm_uses.py, and compared there with the
sources of every version.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base

from .versions import minor

__all__ = [
    "FAILED_BY_REQUEST",
    "HANDS_OVER_STATES",
    "PIPELINES",
    "TELLS_DRAFTS",
    "VERSION",
    "BlockTables",
    "InFlight",
    "TransferResults",
    "cannot_load",
    "kv_layout",
]

VERSION = str(vllm.__version__)
_MINOR = minor(VERSION) or 0
_COUNTS_IN_FLIGHT = _MINOR >= 26
_TELLS_LAYOUT = _MINOR >= 29
_TELLS_BLOCKS = _MINOR >= 30
FAILED_BY_REQUEST = _MINOR >= 30
HANDS_OVER_STATES = _MINOR >= 32
TELLS_DRAFTS = _MINOR >= 32
PIPELINES = _MINOR >= 32


@dataclass
class _Results:
    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


TransferResults: Any = base.KVConnectorTransferResults if FAILED_BY_REQUEST else _Results


def cannot_load(n_groups: int, windowed: bool) -> str | None:
    """Why this version of vLLM cannot do without computing such KV groups; None: it can."""
    if n_groups > 1 and not FAILED_BY_REQUEST:
        return f"several KV groups in vLLM {VERSION}, which cannot be told of their failed loads"
    if windowed and not _TELLS_BLOCKS:
        return f"sliding windows in vLLM {VERSION}, which does not tell their blocks"
    return None


def kv_layout(vllm_config: Any, kv_cache_config: Any) -> str:
    """How a block's bytes are arranged; where vLLM does not say, what it decides that by."""
    if _TELLS_LAYOUT:
        return str(kv_cache_config.kv_cache_layout)
    attention = vllm_config.attention_config
    trtllm = getattr(attention, "use_trtllm_attention", None)
    return f"{attention.backend} {trtllm} {os.environ.get('VLLM_KV_CACHE_LAYOUT')}"


class BlockTables:
    """The blocks of each request that a step schedules."""

    def __init__(self) -> None:
        self._state: Any = None
        self._tables: dict[str, tuple[list[int], ...]] = {}

    def take(self, scheduler_output: Any, wanted: Iterable[str]) -> None:
        """A step, before of() is asked about its requests."""
        if _TELLS_BLOCKS:
            self._state = scheduler_output.kv_connector_block_state
            return
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id in wanted:
                self._tables[new.req_id] = tuple(list(table) for table in new.block_ids)
        cached = scheduler_output.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids):
            if blocks is None or name not in wanted:
                continue
            if name in cached.resumed_req_ids:
                self._tables[name] = tuple(list(table) for table in blocks)
                continue
            for table, more in zip(self._tables.get(name, ()), blocks):
                table.extend(more)

    def of(self, name: str) -> tuple[list[int], ...] | None:
        if _TELLS_BLOCKS:
            tables: tuple[list[int], ...] | None = None
            if self._state is not None:
                tables = self._state.get_block_ids(name)
            return tables
        return self._tables.get(name)

    def states(self) -> dict[str, list[tuple[int, int, int]]]:
        """Of this step, by request: group, block, and after how many tokens its state will be, once
        the step has run."""
        if self._state is None or not HANDS_OVER_STATES:
            return {}
        handed: dict[str, list[tuple[int, int, int]]] = self._state.boundary_state_offloads
        return handed

    def forget(self, name: str) -> None:
        self._tables.pop(name, None)


class InFlight:
    """Tokens of a request in steps whose output has not been processed."""

    def __init__(self, vllm_config: Any) -> None:
        depth = 0 if _COUNTS_IN_FLIGHT else int(vllm_config.max_concurrent_batches)
        self._steps: deque[dict[str, int]] = deque(maxlen=depth)

    def begun(self, scheduler_output: Any) -> None:
        """A step that has been scheduled; tokens() did not count it yet."""
        self._steps.append(scheduler_output.num_scheduled_tokens)

    def tokens(self, request: Any, aborted: bool = False) -> int:
        """When vLLM schedules a step, or processes one, at most max_concurrent_batches - 1 others
        are under way. It aborts requests before it processes one: that one counts then, too."""
        if _COUNTS_IN_FLIGHT:
            return int(request.num_in_flight_tokens)
        steps = list(self._steps)
        if not aborted and len(steps) == self._steps.maxlen:
            del steps[0]
        return sum(step.get(request.request_id, 0) for step in steps)
