"""The scheduler's side of the connector: vLLM's requests and steps as numbers for the scheduler
half of connector.h, which decides, and marked requests for marks.py, which has them blended."""

from __future__ import annotations

import functools
import itertools
import os
from array import array
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.request import RequestStatus

from .. import _c as c
from .._connector import Planes, SchedulerHalf, prompt_spaces, traffic_spaces
from ..blend_job import BlendJob, blend_settings
from ..cache import _extras
from ..discovery import WAIT_MS, Asked, Closer, Discovery, close_discovery, has_shared_tier
from ..identity import files_digest
from ..prompts import PromptClient, Text
from ..why import Why
from . import compat, plugin
from .base import ConnectorBase, guarded, logger
from .handover import KEY, Arrival, expected, told
from .hints import Hint, Hints, read_hints
from .marks import Blending
from .messages import TesseraMetadata, TesseraWorkerMetadata
from .shape import as_planes, as_shards, by_rank

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from ..owner import EngineCache
    from .events import KvEvents

_NEVER = 1 << 62
_NO_STATES: Mapping[tuple[int, int], int] = {}
_NO_EXTRAS = _extras(None, None, ())
_WAIT_MS = 2000  # save_wait_ms of connector.h
_ENDED = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


class _Live:
    """A request between on_new_request and its end."""

    __slots__ = (
        "number",
        "request",
        "known",
        "wake",
        "asynchronous",
        "preemptions",
        "told",
        "asked",
        "states",
        "arrival",
        "asked_others",
        "hints",
        "before",
        "looked_up",
        "found",
    )

    def __init__(self, number: int, request: Request, known: int, wake: int) -> None:
        self.number = number
        self.request = request
        self.known = known  # tokens that the half has been told
        self.wake = wake  # nothing can be saved before so many are computed
        self.asynchronous = False
        self.preemptions = request.num_preemptions  # that the half has been told
        self.told = 0  # chunks that KV events know of
        self.asked = 0  # tokens that vLLM had itself when it was looked up
        # By group and number of tokens: the block in which vLLM has the state after these.
        self.states: Mapping[tuple[int, int], int] = _NO_STATES
        self.arrival: Arrival | None = None  # what it waits for
        self.hints: Sequence[Hint] = ()
        self.asked_others: Asked | None = None  # what other machines may have stored of it
        self.looked_up = False  # and nothing was found
        self.found = 0  # tokens, when it was last looked up
        self.before = 0  # tokens that the cache had when it came; known if it has a time to live

    def forget_asked(self) -> None:
        """It has left the queue."""
        if self.asked_others is not None:
            self.asked_others.forget()
            self.asked_others = None


class SchedulerSide(ConnectorBase):
    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        self._live: dict[str, _Live] = {}
        # Those of which something may still be saved: a step looks at no others, of which there may
        # be a thousand that generate.
        self._awake: dict[str, _Live] = {}
        self._numbers = itertools.count(1)
        self._blending: Blending | None = None
        self._unblended: list[BlendJob] = []  # that vLLM counts on since this side has given up
        self._events: KvEvents | None = None
        self._hints: Hints | None = None  # from the first hint on
        self._discovery: Discovery | None = None  # if there is a tier that other machines fill
        self._others: PromptClient | None = None  # that it asks with
        self._askers: list[Closer] = []  # what it may be asking with still
        self._loads: dict[int, tuple[int, ...] | None] = {}
        self._block_tables = compat.BlockTables()
        self._since = ""  # begins every salt since the last reset
        self._step_tokens = int(vllm_config.scheduler_config.max_num_batched_tokens)
        super().__init__(vllm_config, role, kv_cache_config)

    def _open_scheduler(self) -> None:
        assert self._cache is not None
        self._in_flight = compat.InFlight(self._vllm_config)
        self._save_decode = bool(self._own.get("save_decode"))
        self._loads_any = "no_load" not in self._shape.flags
        self._hands_over = not self._loads_any  # what a producer stores is for others
        self._wait_ms = self._shape.save_wait_ms or _WAIT_MS
        self._open_half()
        policy = self._vllm_config.kv_transfer_config.kv_load_failure_policy
        if policy != "recompute":
            logger.warning(
                "tessera: kv_load_failure_policy is '%s': a failed load will fail its request; "
                "set it to 'recompute'",
                policy,
            )
        logger.info(
            "tessera: on, chunks of %d tokens, server at %s",
            self._scheduler.chunk_tokens,
            self._cache.socket,
        )
        self._why = Why(
            self._scheduler.chunk_tokens,
            lambda line: logger.info("tessera: %s", line),
            lambda line: logger.warning("tessera: %s", line),
        )
        self._open_discovery()
        self._open_blending()

    def _open_discovery(self) -> None:
        """What is wrong with it costs what other machines have."""
        assert self._cache is not None
        wait_ms = int(self._own.get("discover_wait_ms", WAIT_MS))
        try:
            if wait_ms <= 0 or not self._loads_any:
                return
            look = functools.partial(has_shared_tier, self._cache.handle)
            if not self._cache.serves:  # a tesserad's, which may come later or change
                self._discovery = Discovery(wait_ms, look)
            elif look():
                self._discovery = Discovery(wait_ms)
        except Exception as error:
            self._complain("discovery", error)

    def _open_half(self) -> None:
        assert self._cache is not None
        self._half = self._scheduler = SchedulerHalf(self._cache.handle, self._shape)
        # Block 0 of these is nobody's.
        self._sparse = [group.window_tokens > 0 or group.states for group in self._shape.groups]
        self._whole = not any(self._sparse) and not self._shape.shards  # vLLM's tables are ours
        self._state_blocks = {
            g: group.block_tokens for g, group in enumerate(self._shape.groups) if group.states
        }
        self._open_events()

    def _open_events(self) -> None:
        wanted = self._vllm_config.kv_events_config
        if wanted is None or not wanted.enable_kv_cache_events:
            return
        assert self._cache is not None
        if not self._cache.serves:
            logger.warning("tessera: no KV events: the cache belongs to a tesserad")
        elif len(self._shape.groups) > 1:
            logger.warning("tessera: no KV events: several KV groups")
        else:
            self._give_events()

    def _give_events(self) -> None:
        try:
            from .events import KvEvents
        except ImportError as error:
            logger.warning("tessera: no KV events: vLLM %s: %s", compat.VERSION, error)
            return
        block = self._shape.groups[0].block_tokens
        hashed = getattr(self._kv_cache_config, "hash_block_size", None) or block
        self._events = KvEvents(self._scheduler, block, hashed)

    def _open_blending(self) -> None:
        """What is wrong with it costs blending, not the cache."""
        try:
            assert self._cache is not None
            settings = blend_settings(self._own)
            if settings is None:
                return
            if not plugin.supported():
                known = ", ".join(version + "*" for version in plugin.VERSIONS)
                raise ValueError(f"vLLM {compat.VERSION}: blending needs {known}")
            if self._shape.stages:
                raise ValueError("pipeline parallelism")
            role = self._vllm_config.kv_transfer_config
            if not (role.is_kv_producer and role.is_kv_consumer):
                raise ValueError(f"kv_role is {role.kv_role}: blending needs to load and save")
            blending = Blending(settings, self._kv_cache_config.num_blocks)
            blending.open(self._cache, self._vllm_config)
            self._blending = blending
        except Exception as error:
            self._blend_off(str(error))

    def _blend_off(self, why: str) -> None:
        blending, self._blending = self._blending, None
        if blending is not None:
            self._askers += blending.close()
        logger.warning("tessera: no blending, exact reuse only: %s", why)

    def _close(self) -> None:
        blending, self._blending = self._blending, None
        if blending is not None:
            self._unblended += blending.take_jobs()
            self._askers += blending.close()
        hints, self._hints = self._hints, None
        if hints is not None:
            hints.close()
        others, self._others = self._others, None
        if others is not None:
            self._askers.append(others.close)
        super()._close()

    def _close_cache(self, cache: EngineCache) -> None:
        """A question under way needs what it asks with, and the cache."""
        discovery, self._discovery = self._discovery, None
        askers, self._askers = self._askers, []
        close_discovery(discovery, [*askers, cache.close])

    def _counters(self) -> dict[str, float]:
        counters = super()._counters()
        if self._blending is not None:
            counters.update(self._blending.counters.values)
        for one in (self._hints, self._discovery):
            if one is not None:
                counters.update(one.counters)
        return counters

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """By pipeline stage and tensor-parallel rank."""
        n = self._vllm_config.parallel_config.tensor_parallel_size
        ranks = {stage * n + rank: worker for (stage, rank), worker in metadata.items()}
        self.set_xfer_handshake_metadata(ranks)

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        for rank, worker in sorted(metadata.items()):
            trouble = getattr(worker, "trouble", "no reason given")
            if trouble and self._half is not None:
                self._give_up(RuntimeError(f"worker {rank}: {trouble}"))
            why = getattr(worker, "blend_trouble", "no reason given")
            if why and self._blending is not None:
                self._blend_off(f"worker {rank}: {why}")
        if self._half is not None:
            self._keep_as({getattr(worker, "planes", None) for worker in metadata.values()})
        if self._blending is not None:
            self._start_blending(getattr(metadata.get(0), "blend_model", b""))

    def _keep_as(self, forms: set[Planes | None]) -> None:
        """Workers know how vLLM's pages are made: they say whether plain requests are kept as K
        and V or as pages. Before the first request."""
        planes = forms.pop() if len(forms) == 1 else None
        try:
            if forms:
                raise RuntimeError("workers keep plain requests in different forms")
            if planes is None and not self._shape.shard_identity:
                return
            self._scheduler.close()
            self._half = None
            if planes is None:
                self._shape = by_rank(self._shape)
            elif self._shape.shard_identity:
                self._shape = as_shards(self._shape, planes)
            else:
                self._shape = as_planes(self._shape, planes)
                logger.info("tessera: plain requests are stored for blending, too")
            self._open_half()
        except Exception as error:
            self._give_up(error)

    def _start_blending(self, model: bytes) -> None:
        assert self._blending is not None and self._cache is not None
        try:
            rows = []
            if self._shape.groups[0].planes is not None and not self._shape.shards:
                rows = traffic_spaces(self._shape, self._scheduler.chunk_tokens)
            spaces = [desc for desc, _keep in rows]
            self._blending.start(
                self._cache, model, self._shape.salt, self._shape.ranks, spaces, self._discovery
            )
            logger.info("tessera: blending marked requests")
        except Exception as error:
            self._blend_off(str(error))

    @guarded(lambda: None)
    def on_new_request(self, request: Request) -> None:
        if request.prompt_embeds is not None or request.resumable:
            self._why.unnamed()
            return  # tokens do not tell what these prompts are
        number = next(self._numbers)
        if self._blending is not None and self._blend(request, number):
            return
        tokens = request.prompt_token_ids
        flags = c.REQUEST_NO_LOAD if request.skip_reading_prefix_cache else 0
        self._scheduler.new_request(
            number, tokens, len(tokens), _request_extras(request, self._since), flags
        )
        if not self._loads_any:
            self._why.stores_only()
        elif flags:
            self._why.unread()
        live = _Live(number, request, len(tokens), self._scheduler.chunk_tokens)
        params = request.kv_transfer_params
        if self._loads_any and not flags:
            if params:
                live.arrival = expected(self._scheduler, number, params, self._wait_ms)
            if self._discovery is not None:
                live.asked_others = self._ask_others(self._discovery, live)
        self._live[request.request_id] = self._awake[request.request_id] = live
        if self._events is not None:
            self._remember(live)
        if params or getattr(request, "kv_hints", None):  # from vLLM 0.32 on
            self._take_hints(live)

    def _ask_others(self, discovery: Discovery, live: _Live) -> Asked | None:
        """Asks for a prompt what other machines have stored of it."""
        assert self._cache is not None
        if live.known < self._scheduler.chunk_tokens or not discovery.is_ready():
            return None
        if self._others is None:  # not before workers have said in which form KV is kept
            spaces = prompt_spaces(self._shape, self._scheduler.chunk_tokens)
            self._others = PromptClient(self._cache.handle, spaces)
        others, request = self._others, live.request
        extras = _request_extras(request, self._since)
        # The tokens are copied when they are asked for: many may wait in the queue.
        return discovery.ask(
            lambda: others.discover(Text(array("I", request.prompt_token_ids), extras))
        )

    def _take_hints(self, live: _Live) -> None:
        """What is wrong with a hint costs the hint."""
        request = live.request
        try:
            allowed = bool(self._own.get("hints"))
            hints, n_bad = read_hints(
                getattr(request, "kv_hints", None), request.kv_transfer_params, allowed
            )
            if not hints and not n_bad:
                return
            if self._hints is None:
                assert self._cache is not None
                chunk = self._scheduler.chunk_tokens
                self._hints = Hints(self._cache.handle, self._shape, chunk)
            self._hints.refused(n_bad)
            live.hints = [hint for hint in hints if hint.kind != "prefetch"]  # for its end
            text = self._text(live)
            if any(hint.kind == "ttl" for hint in hints):
                live.before = self._hints.known(text)
            self._hints.arrived(text, hints)
        except Exception as error:
            self._complain("hints", error)

    def _text(self, live: _Live) -> Text:
        request = live.request
        tokens = request.all_token_ids[:] if self._save_decode else request.prompt_token_ids
        return Text(array("I", tokens), _request_extras(live.request, self._since))

    def _end_hints(self, live: _Live) -> None:
        try:
            if self._hints is not None:
                self._hints.ended(self._text(live), live.hints, live.before)
        except Exception as error:
            self._complain("hints", error)

    def _remember(self, live: _Live, n_found: int = 0) -> None:
        """Chunks that may be saved from now on, and what was found, for KV events."""
        if self._events is None:
            return
        known = live.known if self._save_decode else min(live.known, live.request.num_prompt_tokens)
        end = known // self._scheduler.chunk_tokens
        try:
            if end > live.told:
                live.told = self._events.remember(live.number, live.request, live.told, end)
            if n_found:
                self._events.found(live.number, n_found)
        except Exception as error:
            self._events = None
            self._complain("KV events", error)

    def _blend(self, request: Request, number: int) -> bool:
        assert self._blending is not None
        try:
            return self._blending.new_request(request, number)
        except Exception as error:
            self._complain("blending", error)
            return False

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self._blending is not None and self._blending.has(request.request_id):
            return self._blending.matched(request.request_id, num_computed_tokens)
        live = self._live.get(request.request_id)
        if live is None:
            return 0, False
        if live.asked_others is not None and live.asked_others.pending:
            return None, False
        if live.arrival is not None and live.arrival.too_early():
            return None, False
        if request.num_preemptions != live.preemptions:
            self._tell_preemptions([live])
        self._tell_tokens(live)
        live.asked = num_computed_tokens
        found, live.asynchronous = self._scheduler.matched(live.number, num_computed_tokens)
        if found is None:
            return None, False
        live.found = found
        if live.arrival is not None and self._awaits(live.arrival, num_computed_tokens + found):
            return None, False
        live.arrival = None
        if found:
            self._why.found()
            if self._events is not None:
                self._remember(live, num_computed_tokens + found)
        elif not live.looked_up:
            self._tell_why(live, num_computed_tokens)
        return found, live.asynchronous

    def _tell_why(self, live: _Live, num_computed_tokens: int) -> None:
        live.looked_up = True
        if self._loads_any and not live.request.skip_reading_prefix_cache:
            self._why.missed(live.request.prompt_token_ids, num_computed_tokens)

    def _awaits(self, arrival: Arrival, n_there: int) -> bool:
        """Whether a request waits for more that a producer is storing."""
        assert self._cache is not None
        waits = arrival.waits(n_there) and self._cache.connected(0)
        return waits and not self._has_arrived(arrival)

    def _has_arrived(self, arrival: Arrival) -> bool:
        assert self._cache is not None
        groups = self._shape.groups  # states have no chunks
        keys = [key for i, key in enumerate(arrival.keys) if not groups[i % len(groups)].states]
        return self._cache.has_all(keys)

    def _tell_preemptions(self, lives: Iterable[_Live]) -> None:
        """At the latest before a request is looked up again: vLLM may preempt and resume it in one
        step, and what is found then is a load that must not be forgotten with the blocks."""
        gone = [live for live in lives if live.request.num_preemptions != live.preemptions]
        for one in gone:
            one.preemptions = one.request.num_preemptions
            one.wake = self._scheduler.chunk_tokens
            self._awake[one.request.request_id] = one
            one.states = _NO_STATES
        if gone:
            self._scheduler.preempted(one.number for one in gone)

    def _tell_tokens(self, live: _Live) -> None:
        if live.request.num_tokens > live.known:
            tokens = live.request.all_token_ids[live.known :]
            self._scheduler.append_tokens(live.number, live.known, tokens)
            live.known += len(tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """vLLM counts on what it loads from here on: a failure is told to the workers, which name
        its blocks."""
        if self._half is None:
            return
        try:
            self._allocated(request, blocks, num_external_tokens)
        except Exception as error:
            self._give_up(error)

    def _allocated(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        if self._blending is not None and self._blending.has(request.request_id):
            (table,) = blocks.get_block_ids()
            job = self._blending.allocated(request.request_id, table, num_external_tokens)
            if job is not None and self._blending.between_steps:
                self._names[job.number] = request.request_id
            return
        live = self._live.get(request.request_id)
        if live is not None:
            live.forget_asked()  # as long as it was in the queue, the answer was of use
        if live is None or not live.found:
            return  # of a miss the half hears with the first save
        tables = self._tables(blocks.get_block_ids())
        if num_external_tokens:
            self._note_load(live, tables, num_external_tokens)
        self._scheduler.allocated(live.number, tables, num_external_tokens)
        # Of most prompts that are found nothing is left to save. If a load fails, what is computed
        # instead is saved when the request ends.
        if not self._state_blocks and self._next_wake(request, live.asked + live.found) == _NEVER:
            self._awake.pop(request.request_id, None)

    def _note_load(self, live: _Live, tables: Sequence[Any], n_tokens: int) -> None:
        size = self._shape.groups[0].block_tokens
        filled = tuple(tables[0][live.asked // size : -(-(live.asked + n_tokens) // size)])
        if not live.asynchronous:
            self._loads[live.number] = filled
            return
        self._loads[live.number] = None
        self._names[live.number] = live.request.request_id
        if len(tables) > 1:
            self._blocks[live.number] = frozenset(
                (group, block) for group, table in enumerate(tables) for block in table
            )
        elif not compat.FAILED_BY_REQUEST:
            self._blocks[live.number] = frozenset((0, block) for block in filled)

    def _tables(self, block_ids: Sequence[Sequence[int]]) -> Sequence[Any]:
        if self._whole:
            return block_ids
        if len(self._shape.groups) > 1 and self._shape.shards:
            (table,) = block_ids  # parts of the heads have the blocks of them all
            return [table] * len(self._shape.groups)
        return [
            [block or -1 for block in table] if sparse else table
            for table, sparse in zip(block_ids, self._sparse)
        ]

    def _saved_tables(self, live: _Live, block_ids: Sequence[Sequence[int]]) -> Sequence[Any]:
        """Tables for saves: of states, only blocks that vLLM has handed over for the tokens before
        them, and that are still in their place."""
        if self._whole:
            return block_ids
        if not self._state_blocks:
            return self._tables(block_ids)
        tables = list(self._tables(block_ids))
        for group, size in self._state_blocks.items():
            kept = [-1] * len(tables[group])
            for (of_group, n_tokens), block in live.states.items():
                at = n_tokens // size - 1
                if of_group == group and at < len(kept) and tables[group][at] == block:
                    kept[at] = block
            tables[group] = kept
        return tables

    def _take_states(
        self, handed: dict[str, list[tuple[int, int, int]]], scheduled: Container[str]
    ) -> None:
        """States that there are once the step has run, and so from the next step on. Who is not in
        the step has been preempted, and has no blocks any more."""
        for name, states in handed.items():
            live = self._live.get(name)
            if live is None or name not in scheduled:
                continue
            request = live.request
            done = request.num_computed_tokens - self._in_flight.tokens(request)
            kept = {key: block for key, block in live.states.items() if key[1] >= done}
            for group, block, n_tokens in states:
                size = self._state_blocks.get(group)
                if size and n_tokens % size == 0:
                    kept[group, n_tokens] = block
            live.states = kept

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> TesseraMetadata:
        meta = TesseraMetadata()
        if self._half is not None:
            try:
                meta.data = self._build(scheduler_output)
            except Exception as error:
                self._complain("build_connector_meta", error)
            self._in_flight.begun(scheduler_output)
        meta.names, self._names = self._names, {}
        meta.blocks, self._blocks = self._blocks, {}
        meta.loads, self._loads = self._loads, {}
        meta.wait = any(blocks is not None for blocks in meta.loads.values())
        meta.off = self._half is None
        meta.blends, self._unblended = self._unblended, []
        if self._blending is not None:
            n_scheduled = scheduler_output.total_num_scheduled_tokens
            n_requests = len(scheduler_output.num_scheduled_tokens)
            self._blending.tell(meta, n_scheduled, n_requests, self._step_tokens - n_scheduled)
        return meta

    def _build(self, scheduler_output: SchedulerOutput) -> bytes:
        scheduler = self._scheduler
        lives = self._live
        preempted = scheduler_output.preempted_req_ids
        if preempted and self._blending is not None:
            self._blending.learning.stop()  # vLLM lacks blocks
        if preempted:
            self._tell_preemptions(lives[name] for name in preempted if name in lives)
        rows: list[tuple[int, ...]] = []
        tokens, counts, blocks = array("I"), array("I"), array("i")
        self._block_tables.take(scheduler_output, lives)
        scheduled = scheduler_output.num_scheduled_tokens
        for name, live in list(self._awake.items()):
            if live.request.num_computed_tokens < live.wake or name not in scheduled:
                continue
            tables = self._block_tables.of(name)
            if tables is None:
                continue
            request = live.request
            n_news = request.num_tokens - live.known
            if n_news:
                tokens.extend(request.all_token_ids[live.known :])
                live.known += n_news
            in_flight = self._in_flight.tokens(request)
            for table in self._saved_tables(live, tables):
                counts.append(len(table))
                blocks.extend(table)
            rows.append(
                (
                    live.number,
                    request.num_computed_tokens,
                    request.num_output_placeholders,
                    in_flight,
                    live.known,
                    n_news,
                    c.ROW_RESET_BLOCKS,
                )
            )
            written = min(request.num_computed_tokens - in_flight, request.num_tokens)
            live.wake = self._next_wake(request, max(written, 0))
            if live.wake == _NEVER:
                del self._awake[name]
        if self._state_blocks:
            self._take_states(self._block_tables.states(), scheduled)
        data = scheduler.build(rows, tokens, counts, blocks)
        if not scheduler.pending():
            data = b""  # most steps: workers have nothing to do, and nothing to tell
        if self._events is not None:
            for name in scheduler_output.num_scheduled_tokens:
                if name in lives:
                    self._remember(lives[name])
        return data

    def _next_wake(self, request: Request, n_there: int) -> int:
        """When the half has to hear again of a request of which so many tokens are written: at the
        next whole chunk."""
        chunk = self._scheduler.chunk_tokens
        wake = (n_there // chunk + 1) * chunk
        return wake if self._save_decode or wake <= request.num_prompt_tokens else _NEVER

    @guarded(lambda: None)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, TesseraWorkerMetadata) and meta.trouble:
            self._give_up(RuntimeError(f"a worker: {meta.trouble}"))
        elif isinstance(meta, TesseraWorkerMetadata):
            for part in meta.parts:
                self._scheduler.worker_output(part)
            if self._blending is not None:
                self._blending.told(meta)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        held: tuple[bool, dict[str, Any] | None]
        held = self.request_finished_all_groups(request, (block_ids,))
        return held

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        live = self._live.pop(request.request_id, None)
        if live is not None:
            live.forget_asked()
        if self._half is not None:
            try:
                return self._finished(live, request, block_ids)
            except Exception as error:
                self._give_up(error)
        if live is None:
            return False, None
        # Workers may be saving it still. They give up with the next step and name the request then.
        self._names[live.number] = request.request_id
        return True, None

    def _finished(
        self, live: _Live | None, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        name = request.request_id
        ended = request.status in _ENDED
        awake = self._awake.pop(name, None) is not None
        self._block_tables.forget(name)
        report: dict[str, Any] | None = None
        if self._blending is not None:
            learns, report = self._end_blend(self._blending, name, block_ids[0], ended)
            if live is None:
                return learns, report
        elif live is None:
            return False, None
        handover = None
        if live.hints or self._events is not None or self._hands_over:
            handover = self._end_extras(live, ended)
        news: Sequence[int] = ()
        tables: Sequence[Any] | None = None
        if awake or self._state_blocks:  # of others all that is ever saved is saved
            news = request.all_token_ids[live.known :]
            tables = self._saved_tables(live, block_ids)
        held, n_saved = self._scheduler.finished(
            live.number,
            (
                request.num_computed_tokens,
                request.num_output_placeholders,
                self._in_flight.tokens(request, not ended),
            ),
            live.known + len(news),
            news,
            not ended,
            tables,
        )
        if held:
            self._names[live.number] = name
        if handover is not None and handover[KEY]["tokens"] <= n_saved:
            report = handover
        return held, report

    def _end_blend(
        self, blending: Blending, name: str, table: Sequence[int], ended: bool
    ) -> tuple[bool, dict[str, Any] | None]:
        """(whether workers store documents of it now, and name it then; what is told of it)."""
        learns = False
        try:
            job = blending.learn(name, table) if ended else None
            if job is not None:
                self._names[job.number] = name
                learns = True
            return learns, blending.finished(name)
        except Exception as error:
            self._complain("blending", error)
            return learns, None

    def _end_extras(self, live: _Live, ended: bool) -> dict[str, Any] | None:
        """What is told besides of a request that ends; what is wrong with that costs no more. Then
        what a producer says of it if it is saved."""
        if live.hints:
            self._end_hints(live)
        try:
            if self._events is not None:
                self._tell_tokens(live)
                self._remember(live)
            if not self._hands_over or not ended:
                return None
            ahead = max(group.draft_tokens for group in self._shape.groups)  # not saved yet
            n_saved = live.request.num_prompt_tokens - max(ahead - 1, 0)
            return told(self._scheduler, live.number, n_saved)
        except Exception as error:
            self._complain("request_finished", error)
            return None

    @guarded(lambda: False)
    def has_pending_push_work(self) -> bool:
        learns = self._blending is not None and self._blending.learning.busy
        return learns or self._scheduler.pending()

    @guarded(lambda: None)
    def reset_cache(self) -> bool | None:
        # Weights may have changed, and nothing tells how. What is computed from now on is for this
        # engine only: no other one, nor this one after a restart, knows the salt.
        self._since = os.urandom(16).hex()
        self._scheduler.reset()
        if self._blending is not None:
            self._blending.reset()
            self._blending.since = self._since
        if self._events is not None:
            self._events.cleared()
            for live in self._live.values():
                live.told = 0
                self._remember(live)
        return True

    @guarded(tuple)
    def take_events(self) -> Iterable[KVCacheEvent]:
        return self._events.take() if self._events is not None else ()


def _request_extras(request: Request, since: str) -> Any:
    """Adapter, salts and media of a request: part of every key."""
    adapter = None
    if request.lora_request is None and not request.mm_features:
        salt = since + (request.cache_salt or "")
        return _extras(None, salt, ()) if salt else _NO_EXTRAS
    if request.lora_request is not None:
        lora = request.lora_request
        adapter = f"{lora.lora_name}\0{lora.lora_path}\0{files_digest(lora.lora_path).hex()}"
    media = [
        (item.mm_position.offset, item.mm_position.length, item.identifier.encode())
        for item in request.mm_features
    ]
    return _extras(adapter, since + (request.cache_salt or ""), media)
