"""connector.h as ctypes sees it, and one thin class for each half.

Every rule (what is looked up, loaded, saved, and when) is the library's; these classes only turn
Python values into structs and back.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Iterable, Sequence
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass, field
from typing import Any

from ._checked import Struct, packed_rows
from ._lib import Event, Extra, SpaceDesc, check, declare, library

EAGAIN = -4
SCHEDULER_FLAGS = {"no_load": 1, "no_save": 2, "save_decode": 4, "load_sync": 8, "load_async": 16}
BOUNDARIES = {"in_flight": 0, "placeholders": 1}
REQUEST_NO_LOAD, REQUEST_NO_SAVE = 1, 2
STEP_RESET_BLOCKS = 1
EVENT_STORED = 1
_EVENT_ROUNDS = 64
PLANES_MAX = 4


class Group(Struct):
    _fields_ = [("size", c_size_t), ("block_tokens", c_uint32), ("window_tokens", c_uint32)]


class ConnectorDesc(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("n_ranks", c_uint32),
        ("n_groups", c_uint32),
        ("spaces", POINTER(SpaceDesc)),
        ("groups", POINTER(Group)),
        ("chunk_tokens", c_uint32),
        ("boundary", c_uint32),
        ("flags", c_uint32),
        ("load_timeout_ms", c_uint32),
        ("save_timeout_ms", c_uint32),
        ("jobs_max", c_uint32),
    ]


class RequestDesc(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("id", c_uint64),
        ("tokens", c_void_p),
        ("n_tokens", c_uint32),
        ("n_prompt_tokens", c_uint32),
        ("extra", POINTER(Extra)),
        ("n_extra", c_uint32),
        ("flags", c_uint32),
    ]


class Blocks(Struct):
    _fields_ = [("blocks", c_void_p), ("n_blocks", c_void_p)]


class StepRow(Struct):
    _fields_ = [
        ("id", c_uint64),
        ("n_computed", c_uint32),
        ("n_placeholders", c_uint32),
        ("n_in_flight", c_uint32),
        ("n_tokens", c_uint32),
        ("n_new_tokens", c_uint32),
        ("flags", c_uint32),
    ]


_STEP_ROW = struct.Struct("=Q6I")
_N_NEW_TOKENS = 5  # its field


class Step(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("rows", POINTER(StepRow)),
        ("n_rows", c_uint32),
        ("reserved", c_uint32),
        ("new_tokens", c_void_p),
        ("n_new_blocks", c_void_p),
        ("new_blocks", c_void_p),
    ]


class Finish(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("id", c_uint64),
        ("n_computed", c_uint32),
        ("n_placeholders", c_uint32),
        ("n_in_flight", c_uint32),
        ("n_tokens", c_uint32),
        ("new_tokens", c_void_p),
        ("n_new_tokens", c_uint32),
        ("aborted", c_uint32),
        ("blocks", POINTER(Blocks)),
    ]


class WorkerDesc(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_uint32),
        ("flags", c_uint32),
        ("device", c_char_p),
        ("device_number", c_uint32),
        ("n_threads", c_uint32),
        ("stream", c_void_p),
        ("staging_bytes", c_uint64),
    ]


class Plane(Struct):
    _fields_ = [
        ("base", c_void_p),
        ("layers", POINTER(c_void_p)),
        ("layer_bytes", c_uint64),
        ("layer_stride", c_uint64),
        ("block_stride", c_uint64),
        ("token_stride", c_uint64),
        ("head_stride", c_uint64),
        ("element_stride", c_uint64),
        ("dtype", c_uint32),
        ("n_heads", c_uint32),
        ("dim", c_uint32),
        ("rope_first", c_uint32),
        ("rope_dims", c_uint32),
    ]


class Layout(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("memory", c_uint32),
        ("n_layers", c_uint32),
        ("n_planes", c_uint32),
        ("block_tokens", c_uint32),
        ("n_slots", c_uint64),
        ("planes", Plane * PLANES_MAX),
    ]


class Finished(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("sent", POINTER(c_uint64)),
        ("received", POINTER(c_uint64)),
        ("sent_max", c_uint32),
        ("received_max", c_uint32),
        ("n_sent", c_uint32),
        ("n_received", c_uint32),
    ]


class BadBlock(Struct):
    _fields_ = [("group", c_uint32), ("block", c_int32)]


COUNTERS = (
    "requests steps tokens_asked tokens_hit loads loads_failed tokens_loaded bytes_loaded saves "
    "saves_failed saves_given_up saves_skipped tokens_saved bytes_saved chunks_gathered "
    "chunks_wasted chunks_known jobs_in_flight"
).split()


class ConnectorStats(Struct):
    _fields_ = [("size", c_size_t)] + [(name, c_uint64) for name in COUNTERS]


_out = POINTER(c_void_p)
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "tsr_scheduler_open": (c_int, [_out, c_void_p, POINTER(ConnectorDesc)]),
    "tsr_scheduler_close": (None, [c_void_p]),
    "tsr_scheduler_chunk_tokens": (c_uint32, [c_void_p]),
    "tsr_scheduler_on_new_request": (c_int, [c_void_p, POINTER(RequestDesc)]),
    "tsr_scheduler_append_tokens": (c_int, [c_void_p, c_uint64, c_uint32, c_void_p, c_uint32]),
    "tsr_scheduler_get_num_new_matched_tokens": (
        c_int,
        [c_void_p, c_uint64, c_uint32, POINTER(c_uint32)],
    ),
    "tsr_scheduler_update_state_after_alloc": (
        c_int,
        [c_void_p, c_uint64, POINTER(Blocks), c_uint32],
    ),
    "tsr_scheduler_build_connector_meta": (
        c_int,
        [c_void_p, POINTER(Step), POINTER(c_void_p), POINTER(c_size_t)],
    ),
    "tsr_scheduler_update_connector_output": (c_int, [c_void_p, c_char_p, c_size_t]),
    "tsr_scheduler_handle_preemptions": (c_int, [c_void_p, POINTER(c_uint64), c_uint32]),
    "tsr_scheduler_request_finished": (c_int, [c_void_p, POINTER(Finish)]),
    "tsr_scheduler_has_pending_work": (c_int, [c_void_p]),
    "tsr_scheduler_take_events": (c_int, [c_void_p, POINTER(Event), c_uint32]),
    "tsr_scheduler_keys": (c_int, [c_void_p, c_uint64, c_uint32, c_uint32, c_void_p]),
    "tsr_scheduler_reset_cache": (c_int, [c_void_p]),
    "tsr_scheduler_stats": (c_int, [c_void_p, POINTER(ConnectorStats)]),
    "tsr_worker_open": (c_int, [_out, c_void_p, POINTER(ConnectorDesc), POINTER(WorkerDesc)]),
    "tsr_worker_close": (None, [c_void_p]),
    "tsr_worker_register_kv_caches": (c_int, [c_void_p, POINTER(Layout), c_uint32]),
    "tsr_worker_handle_preemptions": (c_int, [c_void_p, c_char_p, c_size_t]),
    "tsr_worker_start_load_kv": (c_int, [c_void_p, c_char_p, c_size_t]),
    "tsr_worker_wait_for_layer_load": (c_int, [c_void_p, c_uint32, c_uint32]),
    "tsr_worker_save_kv_layer": (c_int, [c_void_p, c_uint32, c_uint32]),
    "tsr_worker_wait_for_save": (c_int, [c_void_p]),
    "tsr_worker_get_finished": (c_int, [c_void_p, POINTER(Finished)]),
    "tsr_worker_get_block_ids_with_load_errors": (c_int, [c_void_p, POINTER(BadBlock), c_uint32]),
    "tsr_worker_build_connector_worker_meta": (
        c_int,
        [c_void_p, POINTER(c_void_p), POINTER(c_size_t)],
    ),
    "tsr_worker_drain": (c_int, [c_void_p, c_int]),
    "tsr_worker_stats": (c_int, [c_void_p, POINTER(ConnectorStats)]),
}


def connector_library() -> ctypes.CDLL:
    lib = library()
    if lib.tsr_scheduler_open.argtypes is None:
        declare(lib, _PROTOTYPES)
    return lib


@dataclass(frozen=True)
class GroupShape:
    """Layers that share a block table: opaque pages of page_bytes each."""

    layers: tuple[str, ...]
    block_tokens: int
    page_bytes: int
    window_tokens: int = 0


@dataclass(frozen=True)
class ModelShape:
    """What both halves must agree on; made by both from the engine's configuration."""

    model: str
    weights: bytes
    identity: str  # everything else that changes what a page's bytes mean
    ranks: int
    groups: tuple[GroupShape, ...]
    salt: str | None = None
    chunk_tokens: int = 0
    boundary: str = "in_flight"
    flags: tuple[str, ...] = ()
    load_timeout_ms: int = 0
    save_timeout_ms: int = 0


@dataclass
class _Desc:
    """A struct tsr_connector_desc and everything it points to."""

    c: ConnectorDesc
    keep: list[Any] = field(default_factory=list)


def describe(shape: ModelShape) -> _Desc:
    weights = ctypes.create_string_buffer(shape.weights, len(shape.weights))
    spaces = (SpaceDesc * (shape.ranks * len(shape.groups)))()
    groups = (Group * len(shape.groups))()
    for g, group in enumerate(shape.groups):
        groups[g] = Group(ctypes.sizeof(Group), group.block_tokens, group.window_tokens)
        for rank in range(shape.ranks):
            spaces[rank * len(shape.groups) + g] = SpaceDesc(
                size=ctypes.sizeof(SpaceDesc),
                model=shape.model.encode(),
                weights=ctypes.addressof(weights),
                weights_bytes=len(shape.weights),
                tokenizer=shape.identity.encode(),
                salt=shape.salt.encode() if shape.salt else None,
                dtype=5,
                layout=2,
                n_layers=len(group.layers),
                n_heads=1,
                k_dim=group.page_bytes // group.block_tokens,
                rank=rank,
                world=shape.ranks,
                group=g,
            )
    flags = 0
    for name in shape.flags:
        flags |= SCHEDULER_FLAGS[name]
    desc = ConnectorDesc(
        size=ctypes.sizeof(ConnectorDesc),
        n_ranks=shape.ranks,
        n_groups=len(shape.groups),
        spaces=spaces,
        groups=groups,
        chunk_tokens=shape.chunk_tokens,
        boundary=BOUNDARIES[shape.boundary],
        flags=flags,
        load_timeout_ms=shape.load_timeout_ms,
        save_timeout_ms=shape.save_timeout_ms,
    )
    return _Desc(desc, [weights, spaces, groups])


class SchedulerHalf:
    """struct tsr_scheduler. Used by one thread at a time."""

    def __init__(self, cache: ctypes.c_void_p, shape: ModelShape) -> None:
        self._lib = connector_library()
        self._handle = ctypes.c_void_p()
        desc = describe(shape)
        check(self._lib.tsr_scheduler_open(ctypes.byref(self._handle), cache, ctypes.byref(desc.c)))
        self.n_groups = len(shape.groups)
        self.n_spaces = shape.ranks * len(shape.groups)
        self.chunk_tokens = int(self._lib.tsr_scheduler_chunk_tokens(self._handle))
        self._async = c_uint32()
        self._meta = c_void_p()
        self._meta_bytes = c_size_t()

    def close(self) -> None:
        self._lib.tsr_scheduler_close(self._handle)
        self._handle = ctypes.c_void_p()

    def new_request(
        self, number: int, tokens: Sequence[int], n_prompt: int, extra: Any, flags: int
    ) -> None:
        packed = array("I", tokens)
        desc = RequestDesc(
            size=ctypes.sizeof(RequestDesc),
            id=number,
            tokens=packed.buffer_info()[0],
            n_tokens=len(packed),
            n_prompt_tokens=n_prompt,
            extra=extra,
            n_extra=len(extra),
            flags=flags,
        )
        check(self._lib.tsr_scheduler_on_new_request(self._handle, ctypes.byref(desc)))

    def append_tokens(self, number: int, first: int, tokens: Sequence[int]) -> None:
        packed = array("I", tokens)
        address, count = packed.buffer_info()
        check(self._lib.tsr_scheduler_append_tokens(self._handle, number, first, address, count))

    def matched(self, number: int, n_computed: int) -> tuple[int | None, bool]:
        """(tokens, asynchronous); (None, False): not known yet."""
        found = self._lib.tsr_scheduler_get_num_new_matched_tokens(
            self._handle, number, n_computed, ctypes.byref(self._async)
        )
        if found == EAGAIN:
            return None, False
        return check(found), bool(found and self._async.value)

    def allocated(self, number: int, tables: Sequence[Sequence[int]], n_external: int) -> None:
        blocks, _keep = self._blocks(tables)
        check(
            self._lib.tsr_scheduler_update_state_after_alloc(
                self._handle, number, ctypes.byref(blocks), n_external
            )
        )

    def _blocks(self, tables: Sequence[Sequence[int]]) -> tuple[Blocks, Any]:
        if len(tables) != self.n_groups:
            raise ValueError(f"{len(tables)} tables for {self.n_groups} groups")
        return pack_blocks(tables)

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
            raise ValueError(f"{len(tokens)} new tokens, the rows have others")
        table = packed_rows(StepRow, _STEP_ROW, rows) if rows else None
        step = Step(
            size=ctypes.sizeof(Step),
            rows=table,
            n_rows=len(rows),
            new_tokens=tokens.buffer_info()[0],
            n_new_blocks=counts.buffer_info()[0] if rows else None,
            new_blocks=blocks.buffer_info()[0],
        )
        check(
            self._lib.tsr_scheduler_build_connector_meta(
                self._handle,
                ctypes.byref(step),
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
        tables: Sequence[Sequence[int]],
    ) -> bool:
        """True: the blocks must not be freed until workers have named the request as sent."""
        packed = array("I", new_tokens)
        blocks, _keep = self._blocks(tables)
        desc = Finish(
            size=ctypes.sizeof(Finish),
            id=number,
            n_computed=counters[0],
            n_placeholders=counters[1],
            n_in_flight=counters[2],
            n_tokens=n_tokens,
            new_tokens=packed.buffer_info()[0],
            n_new_tokens=len(packed),
            aborted=int(aborted),
            blocks=ctypes.pointer(blocks),
        )
        return bool(
            check(self._lib.tsr_scheduler_request_finished(self._handle, ctypes.byref(desc)))
        )

    def pending(self) -> bool:
        return bool(self._lib.tsr_scheduler_has_pending_work(self._handle))

    def reset(self) -> int:
        return check(self._lib.tsr_scheduler_reset_cache(self._handle))

    def keys(self, number: int, first: int, count: int) -> list[list[bytes]]:
        """Of each whole chunk from `first` on, its keys in all spaces; at most `count` chunks."""
        rows = ctypes.create_string_buffer(16 * self.n_spaces * count)
        found = check(self._lib.tsr_scheduler_keys(self._handle, number, first, count, rows))
        flat = [rows.raw[i : i + 16] for i in range(0, 16 * self.n_spaces * found, 16)]
        return [flat[i : i + self.n_spaces] for i in range(0, len(flat), self.n_spaces)]

    def events(self) -> list[tuple[int, bytes]]:
        """(kind, key) of what entered and left the cache."""
        taken: list[tuple[int, bytes]] = []
        rows = (Event * 512)()
        for _ in range(_EVENT_ROUNDS):
            count = check(self._lib.tsr_scheduler_take_events(self._handle, rows, len(rows)))
            if not count:
                break
            taken += [(row.kind, bytes(row.key.bytes)) for row in rows[:count]]
        return taken

    def stats(self) -> dict[str, int]:
        return _stats(self._lib.tsr_scheduler_stats, self._handle)


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
        self._lib = connector_library()
        self._handle = ctypes.c_void_p()
        self.n_layers = [len(group.layers) for group in shape.groups]
        desc = describe(shape)
        worker = WorkerDesc(
            size=ctypes.sizeof(WorkerDesc),
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
        self._sent = (c_uint64 * 1024)()
        self._received = (c_uint64 * 1024)()
        self._bad = (BadBlock * 4096)()
        self._meta = c_void_p()
        self._meta_bytes = c_size_t()

    def close(self) -> None:
        self._lib.tsr_worker_close(self._handle)
        self._handle = ctypes.c_void_p()

    def register(self, layouts: Sequence[Layout]) -> None:
        table = (Layout * len(layouts))(*layouts)
        check(self._lib.tsr_worker_register_kv_caches(self._handle, table, len(layouts)))

    def preemptions(self, data: bytes) -> None:
        check(self._lib.tsr_worker_handle_preemptions(self._handle, data, len(data)))

    def start(self, data: bytes) -> None:
        check(self._lib.tsr_worker_start_load_kv(self._handle, data, len(data)))

    def wait_layer(self, group: int, layer: int) -> None:
        check(self._lib.tsr_worker_wait_for_layer_load(self._handle, group, layer))

    def wait_loads(self) -> None:
        """All layers of the step's loads that are not asynchronous."""
        for group, count in enumerate(self.n_layers):
            for layer in range(count):
                self.wait_layer(group, layer)

    def saved_layer(self, group: int, layer: int) -> None:
        check(self._lib.tsr_worker_save_kv_layer(self._handle, group, layer))

    def wait_save(self) -> None:
        check(self._lib.tsr_worker_wait_for_save(self._handle))

    def finished(self) -> tuple[list[int], list[int]]:
        """(sent, received) request numbers."""
        sent: list[int] = []
        received: list[int] = []
        while True:
            order = Finished(
                ctypes.sizeof(Finished),
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
        """What is to be told to the scheduler half; empty: nothing."""
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


def pack_blocks(tables: Sequence[Sequence[int]]) -> tuple[Blocks, Any]:
    counts = array("I", [len(table) for table in tables])
    flat = array("i")
    for table in tables:
        flat.extend(table)
    return Blocks(flat.buffer_info()[0], counts.buffer_info()[0]), (counts, flat)


def page_layout(
    pages: Sequence[int],
    block_stride: int,
    page_bytes: int,
    block_tokens: int,
    n_blocks: int,
    device: bool,
) -> tuple[Layout, Any]:
    """A group whose layers are opaque pages: pages[i] is where layer i's first block begins."""
    pointers = (c_void_p * len(pages))(*pages)
    layout = Layout(
        size=ctypes.sizeof(Layout),
        memory=2 if device else 0,
        n_layers=len(pages),
        n_planes=1,
        block_tokens=block_tokens,
        n_slots=n_blocks * block_tokens,
    )
    row = page_bytes // block_tokens
    layout.planes[0] = Plane(
        layers=pointers,
        layer_bytes=(n_blocks - 1) * block_stride + page_bytes,
        block_stride=block_stride,
        token_stride=row,
        head_stride=row,
        element_stride=1,
        dtype=5,
        n_heads=1,
        dim=row,
    )
    return layout, pointers


def _stats(function: Any, handle: ctypes.c_void_p) -> dict[str, int]:
    row = ConnectorStats(size=ctypes.sizeof(ConnectorStats))
    check(function(handle, ctypes.byref(row)))
    return {name: getattr(row, name) for name in COUNTERS}
