"""TesseraConnector: Tessera as a KV connector of vLLM.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "TesseraConnector",
        "kv_connector_module_path": "tessera.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"host_size": "8G", "disk_path": "/var/cache/tessera"}}'

This file translates: vLLM's objects into numbers for the two halves of connector.h, and back. What
is looked up, loaded and saved, and when, is decided there. Whatever goes wrong here costs a line in
the log and the cache, never a request: the connector is then switched off and vLLM runs as without.
docs/engines.md has the settings and what was tested.
"""

from __future__ import annotations

import functools
import itertools
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from . import set_logger
from ._connector import (
    REQUEST_NO_LOAD,
    STEP_RESET_BLOCKS,
    SchedulerHalf,
    WorkerHalf,
)
from .cache import _extras
from .identity import files_digest
from .owner import EngineCache
from .vllm_metrics import TesseraPromMetrics, TesseraStats
from .vllm_shape import group_layout, model_shape, split_options

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.tessera")
_NEVER = 1 << 62
_STATS_SECONDS = 1.0
_CONNECT_MS = 2000
_Result = TypeVar("_Result")


@dataclass
class TesseraMetadata(KVConnectorMetadata):
    """Scheduler to workers, each step: the half's bytes, and names of requests that a worker will
    have to speak of."""

    data: bytes = b""
    names: dict[int, str] = field(default_factory=dict)
    blocks: dict[int, frozenset[tuple[int, int]]] = field(default_factory=dict)
    wait: bool = False


@dataclass
class TesseraWorkerMetadata(KVConnectorWorkerMetadata):
    """Workers to scheduler: the bytes of each."""

    parts: list[bytes]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, TesseraWorkerMetadata)
        return TesseraWorkerMetadata(self.parts + other.parts)


@dataclass
class TesseraHandshake(KVConnectorHandshakeMetadata):
    """Whether a worker is able to work, and if not, why."""

    trouble: str | None = None


class _Live:
    """A request between on_new_request and its end."""

    __slots__ = ("number", "request", "known", "wake", "asynchronous")

    def __init__(self, number: int, request: Request, known: int, wake: int) -> None:
        self.number = number
        self.request = request
        self.known = known  # tokens that the half has been told
        self.wake = wake  # nothing can be saved before so many are computed
        self.asynchronous = False


def _guarded(default: Callable[[], _Result]) -> Callable[..., Any]:
    """A method of a connector that is off answers `default`; one that fails says so, and too."""

    def wrap(method: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(method)
        def call(self: TesseraConnector, *args: Any, **kwargs: Any) -> _Result:
            if self._half is None:
                return default()
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self._complain(method.__name__, error)
                return default()

        return call

    return wrap


class TesseraConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._half: SchedulerHalf | WorkerHalf | None = None
        self._cache: EngineCache | None = None
        self._complaints: set[str] = set()
        self._told: dict[str, int] = {}
        self._told_at = 0.0
        self._live: dict[str, _Live] = {}
        self._numbers = itertools.count(1)
        self._names: dict[int, str] = {}  # scheduler: to be told next; worker: not yet spoken of
        self._blocks: dict[int, frozenset[tuple[int, int]]] = {}
        self._failed: set[int] = set()
        self._layouts: list[tuple[Any, Any]] = []
        self._trouble: str | None = None
        self._stream: torch.cuda.Stream | None = None  # that the worker was opened with
        try:
            self._open(role)
        except Exception as error:
            self._give_up(error)

    def _open(self, role: KVConnectorRole) -> None:
        config = self._vllm_config
        transfer = config.kv_transfer_config
        own, options = split_options(transfer.kv_connector_extra_config)
        set_logger(_log)
        self._layerwise = bool(own.get("layerwise", False))
        self._shape = model_shape(config, self._kv_cache_config, own)
        self._windowed = [group.window_tokens > 0 for group in self._shape.groups]
        self._save_decode = bool(own.get("save_decode"))
        engine = str(transfer.engine_id)
        self._cache = EngineCache(options, engine, role == KVConnectorRole.SCHEDULER)
        if role == KVConnectorRole.SCHEDULER:
            self._half = self._scheduler = SchedulerHalf(self._cache.handle, self._shape)
            if transfer.kv_load_failure_policy != "recompute":
                logger.warning(
                    "tessera: kv_load_failure_policy is '%s': a load that fails will fail its "
                    "request; set it to 'recompute'",
                    transfer.kv_load_failure_policy,
                )
            logger.info(
                "tessera: on, chunks of %d tokens, server at %s",
                self._scheduler.chunk_tokens,
                self._cache.socket,
            )
        # A worker's half is opened when its KV memory is known and the scheduler is there.

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
            logger.warning("tessera: %s failed, going on without: %s", where, error)

    def _close(self) -> None:
        half, self._half = self._half, None
        cache, self._cache = self._cache, None
        if half is not None:
            half.close()
        if cache is not None:
            cache.close()

    # ---- both sides ---------------------------------------------------------------------------

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

    @_guarded(lambda: None)
    def get_kv_connector_stats(self) -> TesseraStats | None:
        now = time.monotonic()
        if now - self._told_at < _STATS_SECONDS:
            return None
        self._told_at = now
        assert self._half is not None
        counters = self._half.stats()
        news = {
            name: value - self._told.get(name, 0)
            for name, value in counters.items()
            if value > self._told.get(name, 0)
        }
        self._told = counters
        return TesseraStats(data=news) if news else None

    def shutdown(self) -> None:
        self._close()

    # ---- scheduler ----------------------------------------------------------------------------

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        for rank, worker in sorted(metadata.items()):
            trouble = getattr(worker, "trouble", "it did not say")
            if trouble and self._half is not None:
                self._give_up(RuntimeError(f"worker {rank}: {trouble}"))

    @_guarded(lambda: None)
    def on_new_request(self, request: Request) -> None:
        if request.prompt_embeds is not None or request.resumable:
            return  # tokens do not tell what these prompts are
        number = next(self._numbers)
        tokens = request.all_token_ids[:]
        flags = REQUEST_NO_LOAD if request.skip_reading_prefix_cache else 0
        self._scheduler.new_request(
            number, tokens, request.num_prompt_tokens, _request_extras(request), flags
        )
        self._live[request.request_id] = _Live(
            number, request, len(tokens), self._scheduler.chunk_tokens
        )

    @_guarded(lambda: (0, False))
    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        live = self._live.get(request.request_id)
        if live is None:
            return 0, False
        self._tell_tokens(live)
        found, live.asynchronous = self._scheduler.matched(live.number, num_computed_tokens)
        return found, live.asynchronous

    def _tell_tokens(self, live: _Live) -> None:
        if live.request.num_tokens > live.known:
            tokens = live.request.all_token_ids[live.known :]
            self._scheduler.append_tokens(live.number, live.known, tokens)
            live.known += len(tokens)

    @_guarded(lambda: None)
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        live = self._live.get(request.request_id)
        if live is None:
            return
        tables = self._tables(blocks.get_block_ids())
        self._scheduler.allocated(live.number, tables, num_external_tokens)
        if num_external_tokens and live.asynchronous:
            self._names[live.number] = request.request_id
            if len(tables) > 1:
                self._blocks[live.number] = frozenset(
                    (group, block) for group, table in enumerate(tables) for block in table
                )

    def _tables(self, block_ids: Iterable[Iterable[int]]) -> list[Any]:
        """Block 0 of a windowed group is nobody's."""
        return [
            [block or -1 for block in table] if windowed else table
            for table, windowed in zip(block_ids, self._windowed)
        ]

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> TesseraMetadata:
        meta = TesseraMetadata(wait=scheduler_output.has_sync_kv_loads)
        if self._half is not None:
            try:
                meta.data = self._build(scheduler_output)
            except Exception as error:
                self._complain("build_connector_meta", error)
        meta.names, self._names = self._names, {}
        meta.blocks, self._blocks = self._blocks, {}
        return meta

    def _build(self, scheduler_output: SchedulerOutput) -> bytes:
        scheduler = self._scheduler
        lives = self._live
        preempted = scheduler_output.preempted_req_ids
        if preempted:
            gone = [lives[name] for name in preempted if name in lives]
            for one in gone:
                one.wake = scheduler.chunk_tokens
            scheduler.preempted(one.number for one in gone)
        rows: list[tuple[int, ...]] = []
        tokens, counts, blocks = array("I"), array("I"), array("i")
        state = scheduler_output.kv_connector_block_state
        for name, n_scheduled in scheduler_output.num_scheduled_tokens.items():
            live = lives.get(name)
            if live is None or live.request.num_computed_tokens < live.wake:
                continue
            tables = state.get_block_ids(name) if state is not None else None
            if tables is None:
                continue
            request = live.request
            news = request.all_token_ids[live.known :] if request.num_tokens > live.known else ()
            tokens.extend(news)
            live.known += len(news)
            for table in self._tables(tables):
                counts.append(len(table))
                blocks.extend(table)
            rows.append(
                (
                    live.number,
                    request.num_computed_tokens,
                    n_scheduled,
                    request.num_output_placeholders,
                    request.num_in_flight_tokens,
                    live.known,
                    len(news),
                    STEP_RESET_BLOCKS,
                    0,
                )
            )
            live.wake = self._next_wake(live)
        return scheduler.build(rows, tokens, counts, blocks)

    def _next_wake(self, live: _Live) -> int:
        """When the half has to hear of this request again: at the next whole chunk."""
        request = live.request
        safe = min(request.num_computed_tokens - request.num_in_flight_tokens, request.num_tokens)
        chunk = self._scheduler.chunk_tokens
        wake = (max(safe, 0) // chunk + 1) * chunk
        return wake if self._save_decode or wake <= request.num_prompt_tokens else _NEVER

    @_guarded(lambda: None)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, TesseraWorkerMetadata):
            for part in meta.parts:
                self._scheduler.worker_output(part)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        held: tuple[bool, dict[str, Any] | None]
        held = self.request_finished_all_groups(request, (block_ids,))
        return held

    @_guarded(lambda: (False, None))
    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        live = self._live.pop(request.request_id, None)
        if live is None:
            return False, None
        held = self._scheduler.finished(
            live.number,
            (
                request.num_computed_tokens,
                request.num_output_placeholders,
                request.num_in_flight_tokens,
            ),
            request.num_tokens,
            request.all_token_ids[live.known :],
            request.status
            not in (
                RequestStatus.FINISHED_STOPPED,
                RequestStatus.FINISHED_LENGTH_CAPPED,
            ),
            self._tables(block_ids),
        )
        if held:
            self._names[live.number] = request.request_id
        return held, None

    @_guarded(lambda: False)
    def has_pending_push_work(self) -> bool:
        return self._scheduler.pending()

    @_guarded(lambda: None)
    def reset_cache(self) -> bool | None:
        self._scheduler.reset()
        return True

    # ---- worker -------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self._cache is None:
            return
        try:
            self._register(kv_caches)
        except Exception as error:
            self._give_up(error)

    def _register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._device = next(iter(kv_caches.values())).device
        if self._device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"KV on a device of kind '{self._device.type}'")
        n_blocks = self._kv_cache_config.num_blocks
        for group in self._shape.groups:
            self._layouts.append(group_layout(group, kv_caches, n_blocks))
        self._layers = {
            name: (g, layer)
            for g, group in enumerate(self._shape.groups)
            for layer, name in enumerate(group.layers)
        }

    def get_handshake_metadata(self) -> TesseraHandshake:
        """Asked when the scheduler is there, and with it the server that this worker is a client
        of, so that the first step finds it connected. A tesserad that is away may come later."""
        if self._layouts and self._half is None and self._cache is not None:
            try:
                self._open_worker()
            except Exception as error:
                self._give_up(error)
        return TesseraHandshake(None if self._half is not None else self._trouble or "no KV memory")

    def _open_worker(self) -> None:
        assert self._cache is not None
        if not self._cache.connected(_CONNECT_MS):
            logger.warning("tessera: nobody answers at %s yet", self._cache.socket)
        device = self._device
        if device.type == "cuda":
            self._stream = torch.cuda.current_stream(device)
        stream = self._stream.cuda_stream if self._stream is not None else 0
        rank = self._vllm_config.parallel_config.rank % self._shape.ranks
        self._worker = WorkerHalf(
            self._cache.handle, self._shape, rank, device.type, device.index or 0, stream
        )
        self._half = self._worker
        self._worker.register([layout for layout, _keep in self._layouts])

    @_guarded(lambda: None)
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, TesseraMetadata)
        if kv_connector_metadata.data:
            self._worker.preemptions(kv_connector_metadata.data)

    @_guarded(lambda: None)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta = self._get_connector_metadata()
        assert isinstance(meta, TesseraMetadata)
        self._names.update(meta.names)
        self._blocks.update(meta.blocks)
        if meta.data:
            self._order_stream()
            self._worker.start(meta.data)
            if meta.wait and not self._layerwise:
                self._worker.wait_loads()

    def _order_stream(self) -> None:
        """vLLM may change to a stream of its own after the worker was opened; what it has queued
        there comes before whatever the worker does in this step."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            if current != self._stream:
                self._stream.wait_stream(current)

    def wait_for_layer_load(self, layer_name: str) -> None:
        meta = self._connector_metadata
        if self._half is None or not isinstance(meta, TesseraMetadata):
            return
        if self._layerwise and meta.wait and layer_name in self._layers:
            self._worker.wait_layer(*self._layers[layer_name])

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        return  # what a step saves was written in earlier steps (connector.h)

    @_guarded(lambda: None)
    def wait_for_save(self) -> None:
        self._worker.wait_save()

    @_guarded(KVConnectorTransferResults)
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = KVConnectorTransferResults()
        if self._blocks:  # several groups: failures are told by request
            bad = self._worker.bad_blocks()
            if bad:
                self._failed |= {n for n, blocks in self._blocks.items() if blocks & bad}
        sent, received = self._worker.finished()
        for number in sent:
            name = self._names.pop(number, None)
            if name is not None:
                results.finished_sending.add(name)
        for number in received:
            name = self._names.pop(number, None)
            self._blocks.pop(number, None)
            if name is not None:
                results.finished_recving.add(name)
                if number in self._failed:
                    results.failed_recving.add(name)
            self._failed.discard(number)
        return results

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending, results.finished_recving

    @_guarded(set)
    def get_block_ids_with_load_errors(self) -> set[int]:
        if len(self._shape.groups) > 1:
            return set()
        return {block for _group, block in self._worker.bad_blocks()}

    @_guarded(lambda: None)
    def build_connector_worker_meta(self) -> TesseraWorkerMetadata | None:
        data = self._worker.output()
        return TesseraWorkerMetadata([data]) if data else None


def _request_extras(request: Request) -> Any:
    """Adapter, cache salt and media of a request: part of every key."""
    adapter = None
    if request.lora_request is not None:
        lora = request.lora_request
        adapter = f"{lora.lora_name}\0{lora.lora_path}\0{files_digest(lora.lora_path).hex()}"
    media = [
        (item.mm_position.offset, item.mm_position.length, item.identifier.encode())
        for item in request.mm_features
    ]
    return _extras(adapter, request.cache_salt, media)


def _log(level: int, text: str) -> None:
    (logger.error, logger.warning, logger.info, logger.debug)[max(0, min(level, 3))](
        "tessera: %s", text
    )
