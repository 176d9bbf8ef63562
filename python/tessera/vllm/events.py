"""What enters and leaves the cache, as vLLM's KV events: for routers that send a request to the
engine which has the beginning of its prompt.

Tessera's own events have a key and no tokens. So chunks of requests are remembered here by their
keys, with the block hashes and tokens that vLLM's events are made of: a chunk is announced when all
ranks have it, and taken back when the first of them has lost it. What is remembered is bounded;
chunks that have to be forgotten are taken back, too. Only an engine that has the cache itself gives
events: a tesserad's are for whoever takes them first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import (
    MEDIUM_CPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    resolve_block_hashes,
    to_event_extra_keys,
)

from .. import _c as c
from .._connector import SchedulerHalf

if TYPE_CHECKING:
    from vllm.v1.request import Request

_CHUNKS_MAX = 32768


class _Chunk:
    """What an event says of a chunk, and which spaces have it."""

    __slots__ = ("keys", "hashes", "parent", "tokens", "about", "spaces", "announced")

    def __init__(self, keys: list[bytes], hashes: list[Any], parent: Any, tokens: Any) -> None:
        self.keys = keys
        self.hashes = hashes
        self.parent = parent
        self.tokens = tokens
        self.about: dict[str, Any] = {}
        self.spaces = 0  # bits
        self.announced = False


class KvEvents:
    """Used by the scheduler's thread."""

    def __init__(self, half: SchedulerHalf, block_tokens: int, hash_tokens: int) -> None:
        self._half = half
        self._block = block_tokens
        self._hash = hash_tokens
        self._all = (1 << half.n_spaces) - 1
        self._chunks: OrderedDict[bytes, _Chunk] = OrderedDict()  # by the key in the first space
        self._keys: dict[bytes, tuple[_Chunk, int]] = {}  # (chunk, bit) of every key
        self._queue: list[KVCacheEvent] = []

    def remember(self, number: int, request: Request, first: int, end: int) -> int:
        """Chunks [first, end) of a request, as far as their tokens and hashes are known. Returns
        the first that was not."""
        per_chunk = self._half.chunk_tokens // self._hash
        end = min(end, len(request.block_hashes) // per_chunk)
        if end <= first:
            return first
        for i, keys in enumerate(self._half.keys(number, first, end - first), first):
            known = self._chunks.get(keys[0])
            if known is not None:
                self._chunks.move_to_end(keys[0])
                continue
            chunk = self._describe(request, i, keys)
            self._chunks[keys[0]] = chunk
            self._keys.update((key, (chunk, 1 << bit)) for bit, key in enumerate(keys))
        while len(self._chunks) > _CHUNKS_MAX:
            _key, oldest = self._chunks.popitem(last=False)
            for key in oldest.keys:
                del self._keys[key]
            self._take_back(oldest)
        return end

    def _describe(self, request: Request, index: int, keys: list[bytes]) -> _Chunk:
        size = self._half.chunk_tokens
        first = index * size // self._hash
        raw = request.block_hashes[first : first + size // self._hash]
        hashes = [
            maybe_convert_block_hash(one)
            for one in resolve_block_hashes(raw, self._hash, self._block)
        ]
        parent = maybe_convert_block_hash(request.block_hashes[first - 1]) if first else None
        start = index * size
        tokens = array("I", request.all_token_ids[start : start + size])
        chunk = _Chunk(keys, hashes, parent, tokens)
        extra = [
            generate_block_hash_extra_keys(request, at, at + self._block, 0)[0]
            for at in range(start, start + size, self._block)
        ]
        lora = request.lora_request
        chunk.about = dict(
            lora_id=lora.adapter_id if lora is not None else None,
            lora_name=lora.name if lora is not None else None,
            extra_keys=to_event_extra_keys(extra),
            session_id=getattr(request, "session_id", None),
        )
        return chunk

    def found(self, number: int, n_tokens: int) -> None:
        """All ranks have this much of a request: also what is on a disk since another life."""
        for keys in self._half.keys(number, 0, n_tokens // self._half.chunk_tokens):
            chunk = self._chunks.get(keys[0])
            if chunk is not None:
                self._has(chunk, self._all)

    def cleared(self) -> None:
        """The cache was emptied, and vLLM's own with it."""
        self._half.events()
        self._chunks.clear()
        self._keys.clear()
        self._queue = [AllBlocksCleared()]

    def take(self) -> Iterable[KVCacheEvent]:
        for kind, key in self._half.events():
            chunk, bit = self._keys.get(key, (None, 0))
            if chunk is None:
                continue
            if kind == c.EVENT_STORED:
                self._has(chunk, bit)
            else:
                chunk.spaces &= ~bit
                self._take_back(chunk)
        queue, self._queue = self._queue, []
        return queue

    def _has(self, chunk: _Chunk, bits: int) -> None:
        chunk.spaces |= bits
        if chunk.announced or chunk.spaces != self._all:
            return
        chunk.announced = True
        self._queue.append(
            BlockStored(
                block_hashes=chunk.hashes,
                parent_block_hash=chunk.parent,
                token_ids=chunk.tokens.tolist(),
                block_size=self._block,
                medium=MEDIUM_CPU,
                group_idx=0,
                **chunk.about,
            )
        )

    def _take_back(self, chunk: _Chunk) -> None:
        if chunk.announced:
            chunk.announced = False
            self._queue.append(
                BlockRemoved(block_hashes=chunk.hashes, medium=MEDIUM_CPU, group_idx=0)
            )
