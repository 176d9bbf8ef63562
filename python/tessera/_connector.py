"""connector.h: one thin class for each half.

The library decides what is looked up, loaded and saved, and when; these classes only convert
Python values to structs and back.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

from . import _c as c
from ._checked import Packed, counters, packed_rows
from ._lib import check, library

SCHEDULER_FLAGS = {
    "no_load": c.CONNECTOR_NO_LOAD,
    "no_save": c.CONNECTOR_NO_SAVE,
    "save_decode": c.CONNECTOR_SAVE_DECODE,
    "load_sync": c.CONNECTOR_LOAD_SYNC,
    "load_async": c.CONNECTOR_LOAD_ASYNC,
    "load_sure": c.CONNECTOR_LOAD_SURE,
    "shared_spaces": c.CONNECTOR_SHARED_SPACES,
}
BOUNDARIES = {"in_flight": c.BOUNDARY_IN_FLIGHT, "placeholders": c.BOUNDARY_PLACEHOLDERS}
_EVENT_ROUNDS = 64
# Of struct tsr_connector_stats: workers count these, and the scheduler what they report of them.
_OF_WORKERS = frozenset(("loads", "loads_failed", "saves", "saves_failed", "steps", "tokens_saved"))


_STEP_ROW = struct.Struct("=Q6I")  # struct tsr_step_row
_N_NEW_TOKENS = 5  # its field


@dataclass(frozen=True)
class Planes:
    """K and V of a layer as rows of known shape, which can be moved to other positions."""

    dtype: int  # enum tsr_dtype
    n_heads: int
    head_dim: int
    rope: bytes  # tsr_rope_text()


@dataclass(frozen=True)
class GroupShape:
    """Layers that share a block table: opaque pages of page_bytes each, or planes."""

    layers: tuple[str, ...]
    block_tokens: int
    page_bytes: int
    window_tokens: int = 0
    planes: Planes | None = None
    draft_tokens: int = 0  # that a draft model among the layers looks ahead
    states: bool = False  # a block holds the state after its last token
    shard: int = 0  # of the rank's, where its heads are stored in parts
    parts: tuple[int, ...] = ()  # bytes of a token in each of two tensors of a layer; (): one


@dataclass(frozen=True)
class Stage:
    """The layers of a pipeline stage."""

    layer_first: int
    n_layers: int


@dataclass(frozen=True)
class ModelShape:
    """What both halves must agree on; made by both from the engine's configuration.

    With pipeline parallelism `groups` are those of the caller's own stage, and all stages are in
    `stages`. Rank r is tensor-parallel rank r % tensor_ranks of stage r // tensor_ranks."""

    model: str
    weights: bytes
    identity: str  # everything else that changes what a page's bytes mean
    ranks: int  # of all stages
    groups: tuple[GroupShape, ...]
    stages: tuple[Stage, ...] = ()  # empty: one, with all layers
    # The model's KV heads are stored in so many equal parts, whichever rank has them, and a group
    # is one part; 0: by rank. Ranks that outnumber them have the same part.
    shards: int = 0
    shard_identity: str = ""  # the identity of the parts; empty: there is nothing to cut
    salt: str | None = None
    chunk_tokens: int = 0
    boundary: str = "in_flight"
    flags: tuple[str, ...] = ()
    load_timeout_ms: int = 0
    save_timeout_ms: int = 0
    save_wait_ms: int = 0

    @property
    def tensor_ranks(self) -> int:
        """Of one stage."""
        return self.ranks // max(len(self.stages), 1)


def space_of(shape: ModelShape, g: int, rank: int) -> tuple[c.SpaceDesc, Any]:
    """The space of a group on a rank, and what it points to; the connector adds block_tokens."""
    group = shape.groups[g]
    stage, tensor_rank = divmod(rank, shape.tensor_ranks)
    layers = shape.stages[stage] if shape.stages else Stage(0, len(group.layers))
    weights = ctypes.create_string_buffer(shape.weights, len(shape.weights))
    desc = c.SpaceDesc(
        size=ctypes.sizeof(c.SpaceDesc),
        model=shape.model.encode(),
        weights=ctypes.addressof(weights),
        weights_bytes=len(shape.weights),
        tokenizer=shape.identity.encode(),
        salt=shape.salt.encode() if shape.salt else None,
        n_layers=layers.n_layers,
        layer_first=layers.layer_first,
        rank=tensor_rank,
        world=shape.tensor_ranks,
        group=g,
    )
    if shape.shards:
        desc.rank = tensor_rank * shape.shards // shape.tensor_ranks + group.shard
        desc.world, desc.group = shape.shards, 0
    if group.planes is None:
        desc.dtype, desc.layout = c.DTYPE_OPAQUE, c.LAYOUT_OPAQUE
        desc.n_heads, desc.k_dim = 1, group.page_bytes // group.block_tokens
        if group.parts:
            desc.k_dim, desc.v_dim = group.parts
    else:
        desc.dtype, desc.layout = group.planes.dtype, c.LAYOUT_STANDARD
        desc.n_heads, desc.k_dim = group.planes.n_heads, group.planes.head_dim
        desc.rope = group.planes.rope or None
    return desc, weights


@dataclass
class _Desc:
    """A struct tsr_connector_desc and everything it points to."""

    c: c.ConnectorDesc
    keep: list[Any] = field(default_factory=list)


def describe(shape: ModelShape) -> _Desc:
    numbers = range(len(shape.groups))
    rows = [space_of(shape, g, rank) for rank in range(shape.ranks) for g in numbers]
    spaces = (c.SpaceDesc * len(rows))(*[desc for desc, _keep in rows])
    groups = (c.Group * len(shape.groups))()
    for g, group in enumerate(shape.groups):
        groups[g] = c.Group(
            ctypes.sizeof(c.Group),
            group.block_tokens,
            group.window_tokens,
            group.draft_tokens,
            c.GROUP_STATE if group.states else 0,
        )
    flags = 0
    for name in shape.flags:
        flags |= SCHEDULER_FLAGS[name]
    desc = c.ConnectorDesc(
        size=ctypes.sizeof(c.ConnectorDesc),
        n_ranks=shape.ranks,
        n_groups=len(shape.groups),
        spaces=spaces,
        groups=groups,
        chunk_tokens=shape.chunk_tokens,
        boundary=BOUNDARIES[shape.boundary],
        flags=flags,
        load_timeout_ms=shape.load_timeout_ms,
        save_timeout_ms=shape.save_timeout_ms,
        save_wait_ms=shape.save_wait_ms,
    )
    return _Desc(desc, [rows, spaces, groups])


class SchedulerHalf:
    """struct tsr_scheduler. Used by one thread at a time."""

    def __init__(self, cache: ctypes.c_void_p, shape: ModelShape) -> None:
        self._lib = library()
        self._handle = ctypes.c_void_p()
        desc = describe(shape)
        check(self._lib.tsr_scheduler_open(ctypes.byref(self._handle), cache, ctypes.byref(desc.c)))
        self.n_groups = len(shape.groups)
        self.n_spaces = shape.ranks * len(shape.groups)
        self.chunk_tokens = int(self._lib.tsr_scheduler_chunk_tokens(self._handle))
        self._async = c_uint32()
        self._async_ref = ctypes.byref(self._async)
        self._saved = c_uint32()
        self._saved_at = ctypes.addressof(self._saved)
        self._request, self._step = Packed(c.RequestDesc), Packed(c.StepDesc)
        self._finish, self._tables = Packed(c.FinishDesc), Packed(c.Blocks)
        self._counts = array("I", [0] * self.n_groups)  # blocks of each table
        self._counts_at = self._counts.buffer_info()[0]
        self._tokens: ctypes.Array[c_uint32] = (c_uint32 * 0)()  # of a call
        self._meta = c_void_p()
        self._meta_bytes = c_size_t()

    def close(self) -> None:
        self._lib.tsr_scheduler_close(self._handle)
        self._handle = ctypes.c_void_p()

    def new_request(
        self, number: int, tokens: Sequence[int], n_prompt: int, extra: Any, flags: int
    ) -> None:
        address, count = self._pack(tokens), len(tokens)
        n_extra = len(extra)
        extras = ctypes.addressof(extra) if n_extra else 0
        self._request.fill_sized(number, address, count, n_prompt, extras, n_extra, flags)
        check(self._lib.tsr_scheduler_on_new_request(self._handle, self._request.ref))

    def append_tokens(self, number: int, first: int, tokens: Sequence[int]) -> None:
        address, count = self._pack(tokens), len(tokens)
        check(self._lib.tsr_scheduler_append_tokens(self._handle, number, first, address, count))

    def _pack(self, tokens: Sequence[int]) -> int:
        """Their address, until the next call: the library copies them. An array made of a list
        takes half as long again. struct.error: one of them is no token."""
        n = len(tokens)
        if n > len(self._tokens):
            self._tokens = (c_uint32 * max(n, 2 * len(self._tokens)))()
        struct.pack_into(f"{n}I", self._tokens, 0, *tokens)
        return ctypes.addressof(self._tokens)

    def matched(self, number: int, n_computed: int) -> tuple[int | None, bool]:
        """(tokens, asynchronous); (None, False): unknown yet."""
        found = self._lib.tsr_scheduler_get_num_new_matched_tokens(
            self._handle, number, n_computed, self._async_ref
        )
        if found == c.EAGAIN:
            return None, False
        return check(found), bool(found and self._async.value)

    def allocated(self, number: int, tables: Sequence[Sequence[int]], n_external: int) -> None:
        _keep = self._fill_blocks(tables)
        check(
            self._lib.tsr_scheduler_update_state_after_alloc(
                self._handle, number, self._tables.ref, n_external
            )
        )

    def _fill_blocks(self, tables: Sequence[Sequence[int]]) -> Any:
        """Puts them where self._tables is; they are valid as long as the result is kept."""
        if len(tables) != self.n_groups:
            raise ValueError(f"{len(tables)} tables for {self.n_groups} groups")
        blocks = array("i", tables[0])
        self._counts[0] = len(tables[0])
        for i in range(1, self.n_groups):
            self._counts[i] = len(tables[i])
            blocks.extend(tables[i])
        self._tables.fill(blocks.buffer_info()[0], self._counts_at)
        return blocks

    def preempted(self, numbers: Iterable[int]) -> None:
        ids = array("Q", numbers)
        rows = (c_uint64 * len(ids)).from_buffer(ids)
        check(self._lib.tsr_scheduler_handle_preemptions(self._handle, rows, len(ids)))

    def build(
        self,
        rows: Sequence[tuple[int, ...]],
        tokens: array[int],
        counts: array[int],
        blocks: array[int],
    ) -> bytes:
        """The bytes of a step; each row is the fields of struct tsr_step_row."""
        # The library cannot see how long these are.
        if (tokens.typecode, counts.typecode, blocks.typecode) != ("I", "I", "i"):
            raise TypeError("tokens and counts are uint32, blocks int32")
        if len(counts) != len(rows) * self.n_groups or sum(counts) != len(blocks):
            raise ValueError(f"{len(counts)} tables of {len(blocks)} blocks for {len(rows)} rows")
        if sum(row[_N_NEW_TOKENS] for row in rows) != len(tokens):
            raise ValueError(f"{len(tokens)} new tokens, which is not what the rows say")
        table = packed_rows(c.StepRow, _STEP_ROW, rows) if rows else None
        self._step.fill_sized(
            ctypes.addressof(table) if table is not None else 0,
            len(rows),
            0,
            tokens.buffer_info()[0],
            counts.buffer_info()[0] if rows else 0,
            blocks.buffer_info()[0],
        )
        check(
            self._lib.tsr_scheduler_build_connector_meta(
                self._handle,
                self._step.ref,
                ctypes.byref(self._meta),
                ctypes.byref(self._meta_bytes),
            )
        )
        return ctypes.string_at(self._meta.value or 0, self._meta_bytes.value)

    def worker_output(self, data: bytes) -> None:
        check(self._lib.tsr_scheduler_update_connector_output(self._handle, data, len(data)))

    def finished(
        self,
        number: int,
        counters: tuple[int, int, int],
        n_tokens: int,
        new_tokens: Sequence[int],
        aborted: bool,
        tables: Sequence[Sequence[int]] | None,
    ) -> tuple[bool, int]:
        """(held, tokens that are there or being saved). Held: the blocks must not be freed until
        workers have named the request as sent. tables None: as known."""
        address, count = self._pack(new_tokens) if new_tokens else 0, len(new_tokens)
        keep, blocks = None, 0
        if tables is not None:
            keep, blocks = self._fill_blocks(tables), self._tables.address
        ended = int(aborted)
        self._finish.fill_sized(
            number, *counters, n_tokens, address, count, ended, blocks, self._saved_at
        )
        held = check(self._lib.tsr_scheduler_request_finished(self._handle, self._finish.ref))
        del keep  # until here
        return bool(held), self._saved.value

    def pending(self) -> bool:
        return bool(self._lib.tsr_scheduler_has_pending_work(self._handle))

    def reset(self) -> int:
        return check(self._lib.tsr_scheduler_reset_cache(self._handle))

    def keys(self, number: int, first: int, count: int) -> list[list[bytes]]:
        """The keys in all spaces of each whole chunk from `first` on, at most `count` chunks."""
        rows = (c.Key * (self.n_spaces * count))()
        found = check(self._lib.tsr_scheduler_keys(self._handle, number, first, count, rows))
        flat = [bytes(row.bytes) for row in rows[: self.n_spaces * found]]
        return [flat[i : i + self.n_spaces] for i in range(0, len(flat), self.n_spaces)]

    def events(self) -> list[tuple[int, bytes]]:
        """(kind, key) of entries that entered or left the cache."""
        taken: list[tuple[int, bytes]] = []
        rows = (c.Event * 512)()
        for _ in range(_EVENT_ROUNDS):
            count = check(self._lib.tsr_scheduler_take_events(self._handle, rows, len(rows)))
            if not count:
                break
            taken += [(row.kind, bytes(row.key.bytes)) for row in rows[:count]]
        return taken

    def stats(self) -> dict[str, int]:
        return _stats(self._lib.tsr_scheduler_stats, self._handle)

    def own_stats(self) -> dict[str, int]:
        """Without what workers count, too: an engine adds up the numbers of both sides."""
        return {name: n for name, n in self.stats().items() if name not in _OF_WORKERS}


class WorkerHalf:
    """struct tsr_worker. Used by one thread at a time."""

    def __init__(
        self,
        cache: ctypes.c_void_p,
        shape: ModelShape,
        rank: int,
        device: str,
        device_number: int = 0,
        stream: int = 0,
    ) -> None:
        self._lib = library()
        self._handle = ctypes.c_void_p()
        self.chunk_tokens = 0
        self.n_layers = [len(group.layers) for group in shape.groups]
        desc = describe(shape)
        worker = c.WorkerDesc(
            size=ctypes.sizeof(c.WorkerDesc),
            rank=rank,
            device=device.encode(),
            device_number=device_number,
            stream=stream or None,
        )
        check(
            self._lib.tsr_worker_open(
                ctypes.byref(self._handle), cache, ctypes.byref(desc.c), ctypes.byref(worker)
            )
        )
        self.chunk_tokens = int(self._lib.tsr_worker_chunk_tokens(self._handle))
        self._sent = (c_uint64 * 1024)()
        self._received = (c_uint64 * 1024)()
        self._bad = (c.BadBlock * 4096)()
        self._meta = c_void_p()
        self._meta_bytes = c_size_t()

    def close(self) -> None:
        self._lib.tsr_worker_close(self._handle)
        self._handle = ctypes.c_void_p()

    def register(self, layouts: Sequence[c.KvLayout]) -> None:
        table = (c.KvLayout * len(layouts))(*layouts)
        check(self._lib.tsr_worker_register_kv_caches(self._handle, table, len(layouts)))

    def preemptions(self, data: bytes) -> None:
        check(self._lib.tsr_worker_handle_preemptions(self._handle, data, len(data)))

    def mark_queue(self, data: bytes) -> None:
        check(self._lib.tsr_worker_mark_queue(self._handle, data, len(data)))

    def start(self, data: bytes) -> None:
        check(self._lib.tsr_worker_start_load_kv(self._handle, data, len(data)))

    def wait_layer(self, group: int, layer: int) -> None:
        check(self._lib.tsr_worker_wait_for_layer_load(self._handle, group, layer))

    def wait_loads(self) -> None:
        """All layers of the step's loads that are not asynchronous."""
        for group, count in enumerate(self.n_layers):
            self.wait_layer(group, count - 1)

    def saved_layer(self, group: int, layer: int) -> None:
        check(self._lib.tsr_worker_save_kv_layer(self._handle, group, layer))

    def wait_save(self) -> None:
        check(self._lib.tsr_worker_wait_for_save(self._handle))

    def finished(self) -> tuple[list[int], list[int]]:
        """(sent, received) request numbers."""
        sent: list[int] = []
        received: list[int] = []
        while True:
            order = c.Finished(
                ctypes.sizeof(c.Finished),
                self._sent,
                self._received,
                len(self._sent),
                len(self._received),
                0,
                0,
            )
            check(self._lib.tsr_worker_get_finished(self._handle, ctypes.byref(order)))
            sent += self._sent[: order.n_sent]
            received += self._received[: order.n_received]
            if order.n_sent < len(self._sent) and order.n_received < len(self._received):
                return sent, received

    def bad_blocks(self) -> set[tuple[int, int]]:
        """(group, block) of loads that failed."""
        bad: set[tuple[int, int]] = set()
        while True:
            count = check(
                self._lib.tsr_worker_get_block_ids_with_load_errors(
                    self._handle, self._bad, len(self._bad)
                )
            )
            bad.update((row.group, row.block) for row in self._bad[:count])
            if count < len(self._bad):
                return bad

    def output(self) -> bytes:
        """The report for the scheduler half; empty: nothing to report."""
        check(
            self._lib.tsr_worker_build_connector_worker_meta(
                self._handle, ctypes.byref(self._meta), ctypes.byref(self._meta_bytes)
            )
        )
        if not self._meta_bytes.value:
            return b""
        return ctypes.string_at(self._meta.value or 0, self._meta_bytes.value)

    def drain(self, timeout_ms: int) -> None:
        check(self._lib.tsr_worker_drain(self._handle, timeout_ms))

    def stats(self) -> dict[str, int]:
        return _stats(self._lib.tsr_worker_stats, self._handle)

    def own_stats(self) -> dict[str, int]:
        return self.stats()


def page_layout(
    pages: Sequence[int],
    block_stride: int,
    page_bytes: int,
    block_tokens: int,
    n_blocks: int,
    device: bool,
) -> tuple[c.KvLayout, Any]:
    """A group whose layers are opaque pages: pages[i] is where layer i's first block begins."""
    pointers = (c_void_p * len(pages))(*pages)
    layout = c.KvLayout(
        size=ctypes.sizeof(c.KvLayout),
        memory=c.MEMORY_DEVICE if device else c.MEMORY_HOST,
        n_layers=len(pages),
        n_planes=1,
        block_tokens=block_tokens,
        n_slots=n_blocks * block_tokens,
    )
    if block_tokens & (block_tokens - 1) and block_stride == page_bytes:
        layout.block_tokens = 0  # without gaps, blocks may have any size
    row = page_bytes // block_tokens
    layout.planes[0] = c.KvPlane(
        layers=pointers,
        layer_bytes=(n_blocks - 1) * block_stride + page_bytes,
        block_stride=block_stride,
        token_stride=row,
        head_stride=row,
        element_stride=1,
        dtype=c.DTYPE_OPAQUE,
        n_heads=1,
        dim=row,
    )
    return layout, pointers


@dataclass(frozen=True)
class Strides:
    """Where K or V is in a layer's memory, in elements: of token t in block b, head h, element i at
    first + b * block + t * token + h * head + i * element."""

    first: int
    block: int
    token: int
    head: int
    element: int


def prompt_spaces(shape: ModelShape, chunk_tokens: int) -> Iterator[c.SpaceDesc]:
    """Where all ranks and groups keep plain requests. Those of states have no chunks."""
    for rank in range(shape.ranks):
        for g, group in enumerate(shape.groups):
            if not group.states:
                desc, _keep = space_of(shape, g, rank)
                desc.block_tokens = chunk_tokens
                yield desc


def traffic_spaces(shape: ModelShape, chunk_tokens: int) -> list[tuple[c.SpaceDesc, Any]]:
    """Where each rank keeps plain requests, in the form that blends read; of one group."""
    rows = [space_of(shape, 0, rank) for rank in range(shape.ranks)]
    for desc, _keep in rows:
        desc.block_tokens = chunk_tokens
    return rows


def plane_layout(
    layers: Sequence[int],
    strides: Sequence[Strides],
    planes: Planes,
    item_bytes: int,
    block_tokens: int,
    n_blocks: int,
    device: bool,
    rope_dims: int,
) -> tuple[c.KvLayout, Any]:
    """A group whose layers are K and V: layers[i] is where layer i's memory begins."""
    layout = c.KvLayout(
        size=ctypes.sizeof(c.KvLayout),
        memory=c.MEMORY_DEVICE if device else c.MEMORY_HOST,
        n_layers=len(layers),
        n_planes=len(strides),
        block_tokens=block_tokens,
        n_slots=n_blocks * block_tokens,
    )
    keep = []
    for p, at in enumerate(strides):
        pointers = (c_void_p * len(layers))(*[one + at.first * item_bytes for one in layers])
        keep.append(pointers)
        last = (
            (n_blocks - 1) * at.block
            + (block_tokens - 1) * at.token
            + (planes.n_heads - 1) * at.head
            + (planes.head_dim - 1) * at.element
        )
        layout.planes[p] = c.KvPlane(
            layers=pointers,
            layer_bytes=(last + 1) * item_bytes,
            block_stride=at.block * item_bytes,
            token_stride=at.token * item_bytes,
            head_stride=at.head * item_bytes,
            element_stride=at.element * item_bytes,
            dtype=planes.dtype,
            n_heads=planes.n_heads,
            dim=planes.head_dim,
            rope_dims=rope_dims if p == 0 else 0,
        )
    return layout, keep


def _stats(function: Any, handle: ctypes.c_void_p) -> dict[str, int]:
    row = c.ConnectorStats(size=ctypes.sizeof(c.ConnectorStats))
    check(function(handle, ctypes.byref(row)))
    return counters(row)
