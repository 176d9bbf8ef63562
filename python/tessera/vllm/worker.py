"""A worker's side of the connector: vLLM's KV memory and steps for the worker half of connector.h,
which copies, and contexts to blend for blend.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
)

from .._connector import WorkerHalf, traffic_spaces
from ..blend_job import BlendJob, BlendOutcome, blend_settings
from ..owner import EngineCache, announce_worker, worker_gone
from . import compat, npu
from .base import ConnectorBase, guarded, logger
from .blend import BlendWorker
from .messages import TesseraHandshake, TesseraMetadata, TesseraWorkerMetadata
from .planes import group_planes, shard_planes
from .shape import as_planes, as_shards, by_rank, group_layout, shards_of_rank
from .stopwatch import Stopwatch
from .worth import StepTime, device_events

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_CONNECT_MS = 2000
_ALONE_WAIT_S = 0.05  # that a step without other requests waits for a blend


class WorkerSide(ConnectorBase):
    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        self._failed: set[int] = set()
        self._arriving: set[int] = set()  # requests with a load between steps
        self._unloaded: set[int] = set()  # blocks of loads that were not begun
        self._told_off = False
        self._idle = False  # nothing is under way in this step: the half is not asked
        self._layouts: list[tuple[Any, Any]] = []
        self._kv_caches: dict[str, torch.Tensor] = {}
        self._place: tuple[str, int] | None = (
            None  # device and number; None: off, or no KV memory yet
        )
        self._stream: Any = None  # of torch, that the worker was opened with
        self._blender: BlendWorker | None = None
        self._retired: BlendWorker | None = None  # of the time before this worker gave up
        self._blend_trouble: str | None = "blending is off"
        self._traffic = False  # plain requests are stored for blends
        self._bad_blends: set[int] = set()
        self._outcomes: list[BlendOutcome] = []
        self._open_blends: dict[int, BlendJob] = {}  # that vLLM waits for
        self._learned: list[int] = []  # whose blocks are vLLM's again
        self._arrived: list[int] = []  # of these, those that have ended
        self._step_time: StepTime | None = None  # of an engine that blends
        super().__init__(vllm_config, role, kv_cache_config)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self._trouble is not None:
            return
        try:
            self._register(kv_caches)
        except Exception as error:
            self._give_up(error)

    def _register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._device = npu.device_of(kv_caches)
        if self._device.type not in ("cpu", "cuda", "npu"):
            raise RuntimeError(f"KV on a device of kind '{self._device.type}'")
        self._kv_caches = kv_caches
        n_blocks = self._kv_cache_config.num_blocks
        for group in self._shape.groups:
            self._layouts.append(group_layout(group, kv_caches, n_blocks))
        self._layers = {
            name: (g, layer)
            for g, group in enumerate(self._shape.groups)
            for layer, name in enumerate(group.layers)
        }
        self._place = self._device.type, self._device.index or 0
        announce_worker(self._engine, self._place)

    def get_handshake_metadata(self) -> TesseraHandshake:
        """Asked when the scheduler is there, and with it the cache: in this process, or behind a
        server that this worker connects to now, so that the first step finds it connected. A
        tesserad that is away may come later."""
        if self._place is not None and self._half is None:
            try:
                self._open_worker()
            except Exception as error:
                self._give_up(error)
        trouble = None if self._half is not None else self._trouble or "no KV memory"
        planes = self._shape.groups[0].planes if self._half is not None else None
        if self._blender is None:
            return TesseraHandshake(trouble, self._blend_trouble, planes=planes)
        return TesseraHandshake(trouble, None, self._blender.model, planes)

    def _open_worker(self) -> None:
        self._cache = self._open_cache()
        if not self._cache.connected(_CONNECT_MS):
            logger.warning("tessera: no server at %s yet", self._cache.socket)
        device = self._device
        if device.type != "cpu":
            self._stream = npu.current_stream(device)
        stream = npu.stream(self._stream, device) if self._stream is not None else 0
        rank = self._vllm_config.parallel_config.rank % self._shape.ranks  # of all stages
        self._open_blender()
        if self._shape.shard_identity:
            self._cut_heads()
        self._worker = WorkerHalf(
            self._cache.handle, self._shape, rank, device.type, device.index or 0, stream
        )
        self._half = self._worker
        self._worker.register([layout for layout, _keep in self._layouts])
        if self._blender is not None and self._traffic:
            self._blender.traffic = traffic_spaces(self._shape, self._worker.chunk_tokens)[rank]

    def _open_cache(self) -> EngineCache:
        """One rank may be in the process of its scheduler, and then uses the owner's handle."""
        shared = EngineCache.join(self._engine) if self._shape.ranks == 1 else None
        return shared or EngineCache(self._options, self._engine, False, self._place)

    def _open_blender(self) -> None:
        """What stands in the way of blending leaves exact reuse as it is."""
        assert self._cache is not None
        try:
            settings = blend_settings(self._own)
            if settings is not None and self._shape.stages:
                raise ValueError("pipeline parallelism")
            if settings is not None:
                n_blocks = self._kv_cache_config.num_blocks
                self._blender = BlendWorker(
                    self._vllm_config, self._shape, settings, self._cache, n_blocks
                )
                if settings.weigh and self._vllm_config.parallel_config.rank == 0:
                    self._step_time = StepTime(Stopwatch(event=device_events(self._device)))
                if settings.from_traffic and self._shape.shards:
                    logger.warning("tessera: blends do not find plain requests: head_shards is set")
                elif settings.from_traffic:
                    self._use_planes(self._blender)
        except Exception as error:
            self._blend_trouble = f"{type(error).__name__}: {error}"

    def _use_planes(self, blender: BlendWorker) -> None:
        """Keeps plain requests as K and V, which blends can move. A form of pages that is not
        understood leaves them as they are."""
        try:
            (group,) = self._shape.groups
            planes, layout = group_planes(
                group, blender.parts, self._kv_caches, self._kv_cache_config.num_blocks
            )
        except Exception as error:
            logger.warning("tessera: blends do not find plain requests: %s", error)
            return
        self._shape, self._layouts = as_planes(self._shape, planes), [layout]
        self._traffic = True

    def _cut_heads(self) -> None:
        """Stores K and V in parts by heads, which engines with other numbers of ranks find. Pages
        whose form is not understood stay as they are, for engines with as many ranks."""
        (group,) = self._shape.groups
        layers = self._vllm_config.compilation_config.static_forward_context
        try:
            planes, layouts = shard_planes(
                group,
                [layers[name] for name in group.layers],
                shards_of_rank(self._shape),
                self._kv_caches,
                self._kv_cache_config.num_blocks,
            )
        except Exception as error:
            logger.warning("tessera: KV is stored by rank, head_shards has no effect: %s", error)
            self._shape = by_rank(self._shape)
            return
        self._shape, self._layouts = as_shards(self._shape, planes), layouts

    def _close(self) -> None:
        if self._blender is not None:
            self._blender.close()
            self._retired, self._blender = self._blender, None
        if self._place is not None:
            worker_gone(self._engine, self._place)
            self._place = None
        super()._close()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, TesseraMetadata)
        if kv_connector_metadata.off and self._half is not None:
            self._abandon("the scheduler side is off")
        if self._half is None or not kv_connector_metadata.data:
            return
        try:
            self._worker.preemptions(kv_connector_metadata.data)
        except Exception as error:
            self._abandon(str(error))

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Model runner V2 queues a step between this call and start_load_kv: loads and saves need
        not wait for it. What it clears in new blocks is queued before."""
        super().bind_connector_metadata(connector_metadata)
        self._mark_queue(connector_metadata)
        self._begin_step(connector_metadata)

    @guarded(lambda: None)
    def _mark_queue(self, meta: KVConnectorMetadata) -> None:
        if self._stream is not None and isinstance(meta, TesseraMetadata) and meta.data:
            self._order_stream()
            self._worker.mark_queue(meta.data)

    @guarded(lambda: None)
    def _begin_step(self, meta: KVConnectorMetadata) -> None:
        if self._step_time is not None and isinstance(meta, TesseraMetadata):
            self._step_time.begin(0 if meta.wait and self._layerwise else meta.n_tokens)

    @guarded(lambda: None)
    def _end_step(self) -> None:
        if self._step_time is not None:
            self._step_time.end()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Before vLLM's forward, or after it, in model runner V2 and without a load that the step
        waits for. Either way what is blended here is not counted as vLLM's."""
        meta = self._get_connector_metadata()
        assert isinstance(meta, TesseraMetadata)
        output = kwargs.get("scheduler_output")
        if getattr(output, "has_sync_kv_loads", True):
            self._start(meta)
            self._begin_step(meta)
        else:
            self._end_step()
            self._start(meta)

    def _start(self, meta: TesseraMetadata) -> None:
        if not (meta.data or meta.names or meta.loads or meta.blends or self._names):
            self._idle = not self._outcomes
            return
        for job in meta.blends:
            if job.number in meta.names:  # between steps: vLLM waits for it
                self._open_blends[job.number] = job
                if not job.learn:
                    self._arriving.add(job.number)
            else:  # until it has been blended
                self._bad_blends.update(self._context_blocks(job))
        self._names.update(meta.names)
        self._blocks.update(meta.blocks)
        self._arriving.update(number for number, blocks in meta.loads.items() if blocks is None)
        filled = {block for blocks in meta.loads.values() for block in blocks or ()}
        self._unloaded |= filled  # until the load has begun
        if self._begin(meta):
            self._unloaded -= filled
        self._blend_all(meta)
        self._idle = False

    def _begin(self, meta: TesseraMetadata) -> bool:
        """Loads and saves of a step; False: they were not begun, and never will be."""
        if self._half is None or not meta.data:
            if meta.loads and self._half is not None:
                self._abandon("a step arrived without its loads")
            return False
        try:
            self._order_stream()
            self._worker.start(meta.data)
            if meta.wait and not self._layerwise:
                self._worker.wait_loads()
                self._order_engine()
            return True
        except Exception as error:
            self._abandon(str(error))
            return False

    def _abandon(self, why: str) -> None:
        """Gives up in the middle of work: saves are ended, and whatever vLLM waits for is named by
        get_transfer_results as failed. The scheduler's side is told and gives up, too."""
        self._give_up(RuntimeError(why))

    def _blend_all(self, meta: TesseraMetadata) -> None:
        for job in meta.blends:
            try:
                if self._blender is None:
                    if self._retired is not None:
                        self._retired.decline()  # other ranks may be about to do it
                elif job.number in self._open_blends:
                    self._blender.add(job)
                else:
                    self._run_blend(self._blender, job)
            except Exception as error:
                self._complain("blending", error)
        for number in meta.aborted:
            if self._blender is not None and self._blender.drop(number):
                self._blend_ended(BlendOutcome(number, True, stopped=True))
        self._advance_blends(meta)

    def _advance_blends(self, meta: TesseraMetadata) -> None:
        """Blends between steps, cut in pieces that share steps with other requests."""
        if self._blender is None:
            self._end_blends()
            return
        try:
            wait_s = _ALONE_WAIT_S if meta.alone else 0.0
            for outcome in self._blender.advance(meta.budget, wait_s):
                self._blend_ended(outcome)
        except Exception as error:
            self._complain("blending", error)
        if not self._blender.busy:
            self._end_blends()

    def _blend_ended(self, outcome: BlendOutcome) -> None:
        job = self._open_blends.pop(outcome.number, None)
        learn = job is not None and job.learn
        if learn or not outcome.stopped:  # of the others the scheduler knows that they stop
            self._outcomes.append(outcome)
        if learn:
            self._learned.append(outcome.number)
        elif job is not None:
            self._arrived.append(outcome.number)
            if not (outcome.ok or outcome.stopped):
                self._bad_blends.update(self._context_blocks(job))

    def _end_blends(self) -> None:
        """Whatever is still open will not be blended."""
        for number, job in list(self._open_blends.items()):
            if not job.learn:
                self._bad_blends.update(self._context_blocks(job))
            self._blend_ended(BlendOutcome(number, False, stopped=True))

    def _run_blend(self, blender: BlendWorker, job: BlendJob) -> None:
        outcome = blender.run(job)
        self._outcomes.append(outcome)
        if outcome.ok:
            self._bad_blends.difference_update(self._context_blocks(job))

    def _context_blocks(self, job: BlendJob) -> tuple[int, ...]:
        return job.context_blocks(self._shape.groups[0].block_tokens)

    def _order_stream(self) -> None:
        """vLLM may change to a stream of its own after the worker was opened; what it has queued
        there comes before whatever the worker does in this step."""
        if self._stream is not None:
            current = npu.current_stream(self._device)
            if current != self._stream:
                self._stream.wait_stream(current)
            npu.launch_queued(self._stream, self._device)

    def _order_engine(self) -> None:
        """The other way round: loads within the step are queued before what follows."""
        if self._stream is not None:
            current = npu.current_stream(self._device)
            if current != self._stream:
                current.wait_stream(self._stream)

    def wait_for_layer_load(self, layer_name: str) -> None:
        meta = self._connector_metadata
        if self._half is None or not isinstance(meta, TesseraMetadata):
            return
        if self._layerwise and meta.wait and layer_name in self._layers:
            self._worker.wait_layer(*self._layers[layer_name])
            self._order_engine()

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        return  # what a step saves was written in earlier steps (connector.h)

    def wait_for_save(self) -> None:
        self._end_step()
        self._wait_for_save()

    @guarded(lambda: None)
    def _wait_for_save(self) -> None:
        if not self._idle:
            self._worker.wait_save()

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        if self._half is None:
            return self._give_back()
        if self._idle:
            return compat.TransferResults()
        try:
            return self._results()
        except Exception as error:
            self._abandon(str(error))
            return self._give_back()

    def _give_back(self) -> Any:
        """Everything that vLLM waits for, of a worker that has given up."""
        self._end_blends()
        self._arrived, self._learned = [], []
        results = compat.TransferResults()
        for number, name in self._names.items():
            if number in self._arriving:
                results.finished_recving.add(name)
                results.failed_recving.add(name)
                if not compat.FAILED_BY_REQUEST:
                    self._unloaded.update(block for _, block in self._blocks.get(number, ()))
            else:
                results.finished_sending.add(name)
        self._names = {}
        self._blocks = {}
        self._arriving = set()
        return results

    def _results(self) -> Any:
        results = compat.TransferResults()
        if len(self._shape.groups) > 1 and self._blocks:  # failures are told by request
            bad = self._worker.bad_blocks()
            if bad:
                self._failed |= {n for n, blocks in self._blocks.items() if blocks & bad}
        sent, received = self._worker.finished()
        learned, self._learned = self._learned, []
        for number in sent + learned:
            name = self._names.pop(number, None)
            if name is not None:
                results.finished_sending.add(name)
        arrived, self._arrived = self._arrived, []
        for number in received + arrived:
            name = self._names.pop(number, None)
            self._blocks.pop(number, None)
            self._arriving.discard(number)
            if name is not None:
                results.finished_recving.add(name)
                if number in self._failed:
                    results.failed_recving.add(name)
            self._failed.discard(number)
        return results

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending, results.finished_recving

    def get_block_ids_with_load_errors(self) -> set[int]:
        bad = self._bad_blends | self._unloaded
        self._bad_blends = set()
        self._unloaded = set()
        failed: set[int] = set() if self._idle else self._failed_loads()
        return bad | failed

    @guarded(set)
    def _failed_loads(self) -> set[int]:
        if len(self._shape.groups) > 1:
            return set()
        return {block for _group, block in self._worker.bad_blocks()}

    def build_connector_worker_meta(self) -> TesseraWorkerMetadata | None:
        if self._half is None and self._layouts and not self._told_off:
            self._told_off = True
            return TesseraWorkerMetadata([], [], self._trouble)
        meta: TesseraWorkerMetadata | None = self._build_meta()
        return meta

    @guarded(lambda: None)
    def _build_meta(self) -> TesseraWorkerMetadata | None:
        row_s = self._step_time.news() if self._step_time is not None else 0.0
        if self._idle:
            return TesseraWorkerMetadata([], row_s=row_s) if row_s else None
        data = self._worker.output()
        outcomes, self._outcomes = self._outcomes, []
        if not data and not outcomes and not row_s:
            return None
        return TesseraWorkerMetadata([data] if data else [], outcomes, row_s=row_s)
