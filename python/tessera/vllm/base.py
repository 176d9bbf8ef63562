"""What both roles of the connector share: how it is opened, how it gives up, and that nothing which
goes wrong in it is ever an error of vLLM's. vLLM makes one class for both roles, so the scheduler's
methods and the workers' are two subclasses of this one that vllm.py puts together."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
)
from vllm.logger import init_logger

from .. import set_logger
from .._connector import SchedulerHalf, WorkerHalf
from ..owner import EngineCache, worker_device
from ..settings import own_settings, without_effect
from .metrics import TesseraPromMetrics, TesseraStats
from .shape import between_steps, model_shape, split_options

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm.tessera")
_STATS_SECONDS = 1.0
_Result = TypeVar("_Result")


def guarded(default: Callable[[], _Result]) -> Callable[..., Any]:
    """A method of a connector that is off answers `default`; one that fails says so, and too."""

    def wrap(method: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(method)
        def call(self: ConnectorBase, *args: Any, **kwargs: Any) -> _Result:
            if self._half is None:
                return default()
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self._complain(method.__name__, error)
                return default()

        return call

    return wrap


class ConnectorBase(KVConnectorBase_V1):
    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._half: SchedulerHalf | WorkerHalf | None = None
        self._cache: EngineCache | None = None
        self._complaints: set[str] = set()
        self._told: dict[str, float] = {}
        self._told_at = 0.0
        self._names: dict[int, str] = {}  # scheduler: to be told next; worker: not yet spoken of
        self._blocks: dict[int, frozenset[tuple[int, int]]] = {}
        self._trouble: str | None = None
        try:
            self._open(role)
        except Exception as error:
            self._give_up(error)

    def _open(self, role: KVConnectorRole) -> None:
        config = self._vllm_config
        transfer = config.kv_transfer_config
        own, options = split_options(transfer.kv_connector_extra_config)
        set_logger(_log)
        self._own = own = own_settings(own, options)
        self._options = options
        self._engine = str(transfer.engine_id)
        self._layerwise = bool(own.get("layerwise", False))
        self._shape = model_shape(config, self._kv_cache_config, own)
        if role == KVConnectorRole.SCHEDULER:
            for line in without_effect(options, "vLLM"):
                logger.warning("tessera: %s", line)
            device = worker_device(self._engine) if self._shape.ranks == 1 else None
            if device is None:  # what workers in other processes load may fail
                self._shape = between_steps(self._shape)
            self._cache = EngineCache(options, self._engine, True, device)
            self._open_scheduler()
        # A worker's half is opened when its KV memory is known and the scheduler is there.

    def _open_scheduler(self) -> None:
        raise NotImplementedError

    def _give_up(self, error: Exception) -> None:
        """One clear line, then vLLM runs as if there was no connector. A worker's trouble is told
        by the scheduler, which hears of it before the first request."""
        self._trouble = f"{type(error).__name__}: {error}"
        say = logger.warning if self._role == KVConnectorRole.SCHEDULER else logger.debug
        say("tessera: off, vLLM runs without it: %s", self._trouble)
        self._close()

    def _complain(self, where: str, error: Exception) -> None:
        if where not in self._complaints:
            self._complaints.add(where)
            logger.warning("tessera: %s failed, continuing without it: %s", where, error)

    def _close(self) -> None:
        half, self._half = self._half, None
        cache, self._cache = self._cache, None
        if half is not None:
            half.close()
        if cache is not None:
            self._close_cache(cache)

    def _close_cache(self, cache: EngineCache) -> None:
        cache.close()

    def _counters(self) -> dict[str, float]:
        return {**self._half.own_stats()} if self._half is not None else {}

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: what is lost is a miss

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return bool(extra_config.get("layerwise", False))

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TesseraStats:
        return TesseraStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> TesseraPromMetrics:
        return TesseraPromMetrics(*args, **kwargs)

    @guarded(lambda: None)
    def get_kv_connector_stats(self) -> TesseraStats | None:
        now = time.monotonic()
        if now - self._told_at < _STATS_SECONDS:
            return None
        self._told_at = now
        counters = self._counters()
        news = {
            name: value - self._told.get(name, 0)
            for name, value in counters.items()
            if value > self._told.get(name, 0)
        }
        self._told = counters
        return TesseraStats(data=news) if news else None

    def shutdown(self) -> None:
        self._close()


def _log(level: int, text: str) -> None:
    (logger.error, logger.warning, logger.info, logger.debug)[max(0, min(level, 3))](
        "tessera: %s", text
    )
