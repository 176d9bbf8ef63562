"""A KV cache for Python programs: the calls of tessera.h over numpy arrays and torch tensors.

    with tessera.Cache(host_size="256M") as cache:
        space = cache.space(model="m", dtype="f16", n_layers=2, n_heads=4, k_dim=64)
        space.store(tokens, kv)                # kv[layer, K or V, token, head, dim]
        found = space.lookup(tokens)
        loaded = space.load(found, kv)         # tokens whose KV is in place now

Every method may be called from any thread; close() only when no other thread is inside a call.
"""

from __future__ import annotations

import ctypes
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import _c as c
from ._buffers import Block, as_block, as_tokens, as_view
from ._checked import check_text, counters
from ._lib import check, default_logger, library

if TYPE_CHECKING:
    from .kv_cache import Rope

__all__ = ["Cache", "Found", "Listed", "Match", "Space", "split_text"]

DTYPES = {
    "f16": c.DTYPE_F16,
    "bf16": c.DTYPE_BF16,
    "f32": c.DTYPE_F32,
    "int8": c.DTYPE_INT8,
    "opaque": c.DTYPE_OPAQUE,
}
_DTYPE_BYTES = {c.DTYPE_F16: 2, c.DTYPE_BF16: 2, c.DTYPE_F32: 4, c.DTYPE_INT8: 1, c.DTYPE_OPAQUE: 1}
LAYOUTS = {"standard": c.LAYOUT_STANDARD, "mla": c.LAYOUT_MLA, "opaque": c.LAYOUT_OPAQUE}
KINDS = {"prefix": c.KIND_PREFIX, "segment": c.KIND_SEGMENT, "blended": c.KIND_BLENDED}
_KIND_NAMES = {number: name for name, number in KINDS.items()}
_CONTEXTS = {c.CONTEXT_SAME: "same", c.CONTEXT_PURE: "pure", c.CONTEXT_OTHER: "other"}
_COVERAGES = {c.COVERAGE_FULL: "full", c.COVERAGE_PARTIAL: "partial", c.COVERAGE_RUN: "run"}
_EVENTS = {c.EVENT_STORED: "stored", c.EVENT_EVICTED: "evicted", c.EVENT_DROPPED: "dropped"}

_SEGMENTS_MAX = 4096  # of the option segments_max

CLEAR_ALL, CLEAR_OWN = c.CLEAR_ALL, c.CLEAR_OWN  # for clear(): tiers

Media = tuple[int, int, bytes]  # offset, tokens, hash


@dataclass(frozen=True)
class Match:
    """The tokens of a prompt that one entry covers (struct tsr_match)."""

    offset: int
    n_tokens: int
    kind: str
    context: str
    coverage: str
    tier: int
    entry_offset: int
    edits: bool  # fewer than 63 tokens, found around frequent edits
    base: int | None  # where its first K was turned to; None: known when it was loaded


class Found:
    """The result of a lookup. Pass it to load(); `tokens` is the number of tokens covered."""

    def __init__(self, prompt: _Prompt, rows: Any, count: int, tokens: int, prefix: int) -> None:
        self._prompt = prompt
        self._rows = rows
        self.tokens = tokens
        self.prefix_tokens = prefix
        self.matches = [_match(rows[i]) for i in range(count)]

    def __bool__(self) -> bool:
        return self.tokens > 0


@dataclass(frozen=True)
class Listed:
    """An entry in host memory (struct tsr_listed)."""

    key: bytes
    space: bytes  # fingerprint
    n_tokens: int
    kind: str
    pins: int


class _Prompt:
    """A struct tsr_prompt and everything it points to."""

    def __init__(
        self,
        tokens: Any,
        adapter: str | None,
        salt: str | None,
        media: Sequence[Media],
        flags: int = 0,
        segments: Sequence[tuple[int, int]] | None = None,  # None: between separators, if at all
        context: Any = (),
    ) -> None:
        self.recipe = b""  # that c.recipe points to
        address, count, self._tokens = as_tokens(tokens)
        context_address, n_context, self._context = as_tokens(context)
        self._extra = _extras(adapter, salt, media)
        rows = [c.Range(*pair) for pair in segments or ()]
        self._segments = (c.Range * len(rows))(*rows)
        self.c = c.Prompt(
            size=ctypes.sizeof(c.Prompt),
            tokens=address,
            n_tokens=count,
            flags=flags,
            segments=None if segments is None else self._segments,
            n_segments=len(rows),
            n_extra=len(self._extra),
            extra=self._extra,
            context=context_address if n_context else None,
            n_context=n_context,
        )


class Cache:
    """A cache: host memory, and the tiers that its options name. Options are listed in
    docs/config.md. `file` is a YAML file. With `env`, TESSERA_* variables override the file, and
    options override both."""

    def __init__(self, file: str | None = None, env: bool = False, **options: Any) -> None:
        default_logger()
        self._lib = library()
        self._handle = ctypes.c_void_p()
        self._client = ctypes.c_void_p()
        self._spaces: list[Space] = []
        config = ctypes.c_void_p()
        check(self._lib.tsr_config_open(ctypes.byref(config)))
        try:
            configure(config, file, env, options)
            self._served = self._lib.tsr_config_get(config, b"owner") == b"daemon"
            check(self._lib.tsr_cache_open(ctypes.byref(self._handle), config))
        finally:
            self._lib.tsr_config_close(config)
        try:
            check(self._lib.tsr_client_open(ctypes.byref(self._client), self._handle))
        except Exception:
            self._lib.tsr_cache_close(self._handle)
            raise

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes queued entries and closes all spaces. May be called twice."""
        for space in self._spaces:
            space.close()
        self._lib.tsr_client_close(self._client)
        self._lib.tsr_cache_close(self._handle)
        self._client = ctypes.c_void_p()
        self._handle = ctypes.c_void_p()

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("the cache is closed")
        return self._handle

    def space(
        self,
        model: str,
        dtype: str,
        n_layers: int,
        n_heads: int,
        k_dim: int,
        v_dim: int = 0,
        layout: str = "standard",
        weights: bytes = b"",
        tokenizer: str | None = None,
        adapter: str | None = None,
        salt: str | None = None,
        rope: str | None = None,
        layer_first: int = 0,
        rank: int = 0,
        world: int = 1,
        group: int = 0,
        block_tokens: int = 0,
    ) -> Space:
        """A model, or one rank's part of it: everything that must agree before KV is shared."""
        keep = ctypes.create_string_buffer(weights, len(weights)) if weights else None
        desc = c.SpaceDesc(
            size=ctypes.sizeof(c.SpaceDesc),
            model=model.encode(),
            weights=ctypes.addressof(keep) if keep is not None else None,
            weights_bytes=len(weights),
            tokenizer=_text(tokenizer),
            adapter=_text(adapter),
            salt=_text(salt),
            rope=_text(rope),
            dtype=_named(DTYPES, dtype, "dtype"),
            layout=_named(LAYOUTS, layout, "layout"),
            n_layers=n_layers,
            layer_first=layer_first,
            n_heads=n_heads,
            k_dim=k_dim,
            v_dim=v_dim,
            rank=rank,
            world=world,
            group=group,
            block_tokens=block_tokens,
        )
        space = Space(self, desc, keep)
        self._spaces.append(space)
        return space

    def release(self, request: int) -> int:
        """Releases the leases that lookups took under this id."""
        return check(self._lib.tsr_client_release(self._client, request))

    def flush(self) -> None:
        """Waits until everything stored so far is in its tiers. Raises an error if some of it could
        not be written; the next flush retries what is still in memory."""
        check(self._lib.tsr_cache_flush(self._open()))

    def evict(self, free_bytes: int) -> int:
        """Evicts until so many bytes of host memory are free; returns how many entries went."""
        return check(self._lib.tsr_cache_evict(self._open(), free_bytes))

    def evict_keys(self, free_bytes: int) -> list[bytes]:
        """The same, with the keys of what went, in that order."""
        gone: list[bytes] = []
        rows = (c.Key * 256)()
        while True:
            call = self._lib.tsr_cache_evict_keys
            count = check(call(self._open(), free_bytes, rows, len(rows)))
            gone += [bytes(row.bytes) for row in rows[:count]]
            if count < len(rows):
                return gone

    def lru_list(self) -> list[Listed]:
        """The entries in host memory, the next to be evicted first: with policy lru, the least
        recently used one."""
        need = check(self._lib.tsr_cache_list(self._open(), None, 0))
        while True:
            rows = (c.Listed * max(need, 1))()
            count = check(self._lib.tsr_cache_list(self._open(), rows, len(rows)))
            if count <= len(rows):
                break
            need = count  # it grew in between
        return [
            Listed(
                key=bytes(row.key.bytes),
                space=bytes(row.space),
                n_tokens=row.n_tokens,
                kind=_KIND_NAMES.get(row.kind, "unknown"),
                pins=row.pins,
            )
            for row in rows[:count]
        ]

    def freeze(self, frozen: bool = True) -> None:
        self._lib.tsr_cache_freeze(self._open(), int(frozen))

    def clear(self, tier: int = CLEAR_ALL) -> int:
        """Drops every entry that is not in use; `tier` 0: from host memory only, CLEAR_OWN: from
        everywhere but tiers that other machines fill."""
        order = c.ClearDesc(size=ctypes.sizeof(c.ClearDesc), tier=tier)
        return check(self._lib.tsr_cache_clear(self._open(), ctypes.byref(order)))

    def contains(self, keys: Iterable[bytes]) -> list[int]:
        """The tier of each key: 0 host memory, 1.. lower tiers, -1 none."""
        wanted = list(keys)
        if any(len(key) != 16 for key in wanted):
            raise ValueError("a key is 16 bytes")
        rows = (c.Key * len(wanted))(*[c.Key((ctypes.c_uint8 * 16)(*key)) for key in wanted])
        tiers = (ctypes.c_int8 * len(wanted))()
        check(self._lib.tsr_cache_contains(self._open(), rows, len(wanted), tiers))
        return list(tiers)

    def batched_contains(self, keys: Iterable[bytes]) -> tuple[int, dict[str, list[bytes]]]:
        """How many of the keys the cache has, and which ones each tier has, by its name."""
        wanted = list(keys)
        names = [one["name"] for one in self.stats()["tiers"]]
        where: dict[str, list[bytes]] = {}
        for key, tier in zip(wanted, self.contains(wanted)):
            if tier >= 0:
                where.setdefault(names[tier], []).append(key)
        return sum(map(len, where.values())), where

    def stats(self) -> dict[str, Any]:
        """Counters of struct tsr_stats. "tiers": name, entries, tokens, bytes and bytes_max of each
        tier, host memory first; "tier_entries" and "tier_bytes" are the same as lists."""
        row = c.Stats(size=ctypes.sizeof(c.Stats))
        check(self._lib.tsr_cache_stats(self._open(), ctypes.byref(row)))
        result: dict[str, Any] = counters(row)
        result["tier_entries"] = list(row.tier_entries)
        result["tier_bytes"] = list(row.tier_bytes)
        result["tiers"] = [
            {
                "name": name.text.decode(),
                "entries": row.tier_entries[i],
                "tokens": row.tier_tokens[i],
                "bytes": row.tier_bytes[i],
                "bytes_max": row.tier_bytes_max[i],
            }
            for i, name in enumerate(row.tier_names)
            if name.text
        ]
        return result

    def stats_text(self, form: str = "prometheus") -> str:
        """Every metric as text, "prometheus" or "json"."""
        need = check(self._lib.tsr_cache_stats_text(self._open(), form.encode(), None, 0))
        while True:
            text = ctypes.create_string_buffer(need + 1)
            got = check(self._lib.tsr_cache_stats_text(self._open(), form.encode(), text, need + 1))
            if got <= need:
                return text.value.decode()
            need = got  # it grew in between

    def events(self, most: int = 1024) -> list[dict[str, Any]]:
        """Entries stored, evicted or dropped since the last call, oldest first."""
        rows = (c.Event * most)()
        count = check(self._lib.tsr_cache_events(self._open(), rows, most))
        return [
            {
                "event": _EVENTS.get(row.kind, "unknown"),
                "key": bytes(row.key.bytes),
                "space": bytes(row.space),
                "n_tokens": row.n_tokens,
                "kind": _KIND_NAMES.get(row.entry_kind, "unknown"),
                "tier": row.tier,
            }
            for row in rows[:count]
        ]

    def connected(self, timeout_ms: int = 0) -> bool:
        """With owner="daemon": whether the server is reachable."""
        return bool(self._lib.tsr_cache_connected(self._open(), timeout_ms) == 0)


class Space:
    """Holds the KV of one model; created by Cache.space()."""

    def __init__(self, cache: Cache, desc: c.SpaceDesc, keep: Any = None) -> None:
        """`keep`: the weights that `desc` points to."""
        self._cache, self._keep = cache, keep
        self._lib = library()
        self._handle = ctypes.c_void_p()
        check(
            self._lib.tsr_space_open(ctypes.byref(self._handle), cache._open(), ctypes.byref(desc))
        )
        self._desc = desc
        k_dim = desc.k_dim
        self._planes = 2 if desc.layout == 0 or desc.v_dim else 1
        self._item_bytes = _DTYPE_BYTES[desc.dtype]
        self._row_bytes = desc.n_heads * k_dim * self._item_bytes
        if self._planes == 2 and desc.v_dim not in (0, k_dim):
            self._row_bytes = -1  # rows of K and V differ: only packed memory describes that
        self.token_bytes = int(self._lib.tsr_space_token_bytes(self._handle))

    def close(self) -> None:
        """Entries stay in the cache. May be called twice."""
        self._lib.tsr_space_close(self._handle)
        self._handle = ctypes.c_void_p()

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("the space is closed")
        return self._handle

    @property
    def fingerprint(self) -> bytes:
        out = (ctypes.c_uint8 * 16)()
        self._lib.tsr_space_fingerprint(self._open(), out)
        return bytes(out)

    def store(
        self,
        tokens: Any,
        kv: Any,
        kind: str = "prefix",
        start: int = 0,
        context: Any = (),
        base: int = 0,
        adapter: str | None = None,
        salt: str | None = None,
        media: Sequence[Media] = (),
        cost_s: float = 0.0,
    ) -> int:
        """Stores KV and returns the number of new tokens. `kv` begins at token `start`, a block
        boundary; `context` is the text before a segment when it was computed."""
        address, count, _keep = as_tokens(tokens)
        context_address, n_context, _keep_context = as_tokens(context)
        extra = _extras(adapter, salt, media)
        view, _keep_kv = as_view(kv, count - start, self._row_bytes, self._planes, False)
        order = c.StoreDesc(
            size=ctypes.sizeof(c.StoreDesc),
            space=self._open(),
            kind=_named(KINDS, kind, "kind"),
            n_tokens=count,
            tokens=address,
            from_=start,
            n_context=n_context,
            context=context_address if n_context else None,
            n_extra=len(extra),
            base=base,
            extra=extra,
            cost_s=cost_s,
            view=view,
        )
        return check(self._lib.tsr_client_store(self._cache._client, ctypes.byref(order)))

    def lookup(
        self,
        tokens: Any,
        segments: Sequence[tuple[int, int]] | None = None,
        any_offset: bool = False,
        other_context: bool = False,
        context: Any = (),
        adapter: str | None = None,
        salt: str | None = None,
        media: Sequence[Media] = (),
        request: int = 0,
    ) -> Found:
        """Finds the cached parts of a prompt: its prefix and, on request, `segments` (offset,
        length) or text at any offset; `context` is the text that segments may have been computed
        after. With neither, option chunked decides about documents between separators. With
        `request`, matches stay until Cache.release()."""
        flags = c.PROMPT_SEGMENTS if segments is not None else 0
        flags |= (c.PROMPT_ANY if any_offset or other_context else 0) | (
            c.PROMPT_OTHER if other_context else 0
        )
        flags |= c.PROMPT_PREFIX if flags else 0  # 0: what the library's options say
        prompt = _Prompt(tokens, adapter, salt, media, flags, segments, context)
        most = max(prompt.c.n_tokens, 1)
        rows = (c.Match * most)()
        spaces = (ctypes.c_void_p * 1)(self._open())
        order = c.LookupDesc(
            size=ctypes.sizeof(c.LookupDesc),
            spaces=spaces,
            n_spaces=1,
            matches_max=most,
            matches=rows,
            request_id=request,
        )
        covered = check(
            self._lib.tsr_client_lookup(
                self._cache._client, ctypes.byref(prompt.c), ctypes.byref(order)
            )
        )
        return Found(prompt, rows, order.n_matches, covered, order.n_prefix_tokens)

    def load(
        self,
        found: Found,
        out: Any,
        prefix_only: bool = True,
        rope: Rope | None = None,
        position_offset: int = 0,
    ) -> int:
        """Copies the matches into `out`, which has room for the whole prompt: token i of the prompt
        becomes token i of `out`. Returns the number of tokens loaded from the start without a gap,
        or with prefix_only=False the total. Tokens that are no longer cached are left untouched.
        K keeps the position where it was computed, `base` of each loaded match; with `rope`, K of
        all matches is rotated to its place in the prompt, and `position_offset` further."""
        if rope is not None:
            return self._load_rotated(found, out, rope, position_offset)
        if position_offset:
            raise ValueError("position_offset needs the rope of the model")
        rows = [
            i for i, match in enumerate(found.matches) if match.kind == "prefix" or not prefix_only
        ]
        if not rows:
            return 0
        count = found._prompt.c.n_tokens
        view, _keep = as_view(out, count, self._row_bytes, self._planes, True)
        if not view.token_stride:
            raise ValueError("the array to load into must be shaped [layer, plane, token, ...]")
        orders = (c.LoadDesc * len(rows))()
        for order, i in zip(orders, rows):
            order.size = ctypes.sizeof(c.LoadDesc)
            order.space = self._open()
            order.match = ctypes.pointer(found._rows[i])
            order.prompt = ctypes.pointer(found._prompt.c)
            skip = found.matches[i].offset * view.token_stride
            order.view = type(view)(
                view.data + skip,
                view.bytes - skip,
                view.layer_stride,
                view.plane_stride,
                view.token_stride,
            )
        check(self._lib.tsr_client_load(self._cache._client, orders, len(orders)))
        total = 0
        for order, i in zip(orders, rows):
            if order.result == 0:
                found.matches[i] = replace(found.matches[i], base=order.base)
                total += found.matches[i].n_tokens
            elif prefix_only:
                break
        return total

    def _load_rotated(self, found: Found, out: Any, rope: Rope, position_offset: int) -> int:
        from .kv_cache import KvCache

        block = as_block(out, True)
        if len(block.shape) != 5 or block.shape[1] != 2:
            raise ValueError("the array to load into must be [layer, K or V, token, head, dim]")
        count = found._prompt.c.n_tokens
        if block.shape[2] < count:
            raise ValueError(f"{count} tokens are required, the array has {block.shape[2]}")

        def plane(layer: int, i: int) -> Block:
            address = block.address + layer * block.strides[0] + i * block.strides[1]
            return Block(address, block.shape[2:], block.strides[2:], block.item, block.keep)

        layers = [(plane(layer, 0), plane(layer, 1)) for layer in range(block.shape[0])]
        with KvCache(self, layers, rope) as kv:
            arrived = kv.retrieve_pre_computed(found, range(count), position_offset)
        return sum(n for _offset, n in arrived)

    def set_separators(self, *spellings: Sequence[int]) -> None:
        """Sets the tokens that stand between documents, in each way a tokenizer may spell them.
        With the option chunked, calls with a prompt that holds one also mean its documents."""
        rows = [array("I", row) for row in spellings]
        tokens, lengths = array("I"), array("I", map(len, rows))
        for row in rows:
            tokens.extend(row)
        address, counts = tokens.buffer_info()[0], lengths.buffer_info()[0]
        check(self._lib.tsr_separators_set(self._open(), address, counts, len(rows)))

    def split(self, tokens: Any) -> list[tuple[int, int]]:
        """(offset, tokens) of the parts of a prompt between its separators, each with the one
        after it; the last part is the question. TesseraError says which token is malformed."""
        address, count, _keep = as_tokens(tokens)
        ranges = (c.Range * (_SEGMENTS_MAX + 1))()
        n = check(self._lib.tsr_space_split(self._open(), address, count, ranges, len(ranges)))
        return [(one.offset, one.n_tokens) for one in ranges[:n]]

    def keys(
        self,
        tokens: Any,
        adapter: str | None = None,
        salt: str | None = None,
        segments: Sequence[tuple[int, int]] | None = None,
        context: Any = (),
    ) -> list[bytes]:
        """The keys of a prompt's prefix blocks, then of its `segments`: the ones that they have
        after `context`, or alone. Between separators that is after the system prompt."""
        prompt = _parts(tokens, segments, context, adapter, salt)
        most = max(prompt.c.n_tokens, 1) + prompt.c.n_segments
        rows = (c.Key * most)()
        count = check(self._lib.tsr_space_keys(self._open(), ctypes.byref(prompt.c), rows, most))
        return [bytes(row.bytes) for row in rows[:count]]

    def prefetch(self, tokens: Any, **parts: Any) -> int:
        """Loads the parts of a prompt that lower tiers have into host memory, in the background.
        `parts`: segments, context, adapter and salt, as in keys()."""
        prompt = _parts(tokens, **parts)
        return check(
            self._lib.tsr_client_prefetch(self._cache._client, self._open(), ctypes.byref(prompt.c))
        )

    def pin(self, tokens: Any, **parts: Any) -> int:
        """Keeps the parts of a prompt in host memory until they are unpinned as often. Returns how
        many entries that are, like unpin() and touch(). `parts`: as in prefetch()."""
        return self._each("tsr_space_pin", tokens, parts)

    def unpin(self, tokens: Any, **parts: Any) -> int:
        return self._each("tsr_space_unpin", tokens, parts)

    def touch(self, tokens: Any, **parts: Any) -> int:
        """Marks the parts of a prompt as just used."""
        return self._each("tsr_space_touch", tokens, parts)

    def clear(self, tokens: Any = None, tier: int = CLEAR_ALL, **parts: Any) -> int:
        """Drops the entries of a prompt, or all of this space. `parts`: as in prefetch()."""
        prompt = None if tokens is None else _parts(tokens, **parts)
        order = c.ClearDesc(
            size=ctypes.sizeof(c.ClearDesc),
            space=self._open(),
            prompt=ctypes.pointer(prompt.c) if prompt else None,
            tier=tier,
        )
        return check(self._lib.tsr_cache_clear(self._cache._open(), ctypes.byref(order)))

    def _each(self, name: str, tokens: Any, parts: Mapping[str, Any]) -> int:
        prompt = _parts(tokens, **parts)
        return check(getattr(self._lib, name)(self._open(), ctypes.byref(prompt.c)))


def split_text(text: str, separator: str) -> list[str]:
    """Cuts the text of a prompt at a separator: system prompt, documents, question, with
    their blanks. TesseraError: no separator, or an empty part, with its byte."""
    raw = text.encode()
    parts = (c.TextPart * (_SEGMENTS_MAX + 1))()
    call = library().tsr_text_split
    n = check(call(raw, len(raw), separator.encode(), parts, len(parts)))
    return [raw[one.offset : one.offset + one.bytes].decode() for one in parts[:n]]


def _parts(
    tokens: Any,
    segments: Sequence[tuple[int, int]] | None = None,
    context: Any = (),
    adapter: str | None = None,
    salt: str | None = None,
) -> _Prompt:
    """What a call without a lookup acts on: the prefix of a prompt and, if given, its segments."""
    flags = 0 if segments is None else c.PROMPT_PREFIX | c.PROMPT_SEGMENTS
    return _Prompt(tokens, adapter, salt, (), flags, segments, context)


def configure(
    config: ctypes.c_void_p, file: str | None, env: bool, options: Mapping[str, Any]
) -> None:
    """Fills a struct tsr_config: the file, then the environment, then the options."""
    lib = library()
    if file is not None:
        check(lib.tsr_config_load_file(config, file.encode()))
    if env:
        check(lib.tsr_config_load_env(config))
    for key, value in options.items():
        if value is None:
            continue  # the default
        lists = isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value)
        if lists or isinstance(value, Mapping):  # keys below a key, as in a file
            text = json.dumps({key: value}, allow_nan=False).encode()
            check(lib.tsr_config_load_text(config, text, len(text), key.encode()))
            continue
        text = _option_text(value).encode()
        check_text(key, text)
        check(lib.tsr_config_set(config, key.encode(), text))


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(_option_text, value))
    return str(value)


def _match(row: c.Match) -> Match:
    return Match(
        offset=row.prompt_offset,
        n_tokens=row.n_tokens,
        kind=_KIND_NAMES[row.kind],
        context=_CONTEXTS.get(row.context, "pure"),
        coverage=_COVERAGES.get(row.coverage, "full"),
        tier=row.tier,
        entry_offset=row.entry_offset,
        edits=bool(row.edits),
        base=None if row.base == c.BASE_UNKNOWN else row.base,
    )


def _extras(adapter: str | None, salt: str | None, media: Sequence[Media]) -> Any:
    rows = []
    if adapter:
        rows.append(c.Extra(c.EXTRA_ADAPTER, 0, 0, len(adapter.encode()), adapter.encode()))
    if salt:
        rows.append(c.Extra(c.EXTRA_SALT, 0, 0, len(salt.encode()), salt.encode()))
    for offset, n_tokens, digest in media:
        rows.append(c.Extra(c.EXTRA_MEDIA, offset, n_tokens, len(digest), digest))
    return (c.Extra * len(rows))(*rows)


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _named(table: Mapping[str, int], name: str, what: str) -> int:
    if name not in table:
        raise ValueError(f"{what} '{name}' is not one of {', '.join(table)}")
    return table[name]
