"""TesseraRadixCache: SGLang's radix tree over its pool of tokens, and Tessera below it.

    TESSERA_HOST_SIZE=8G TESSERA_DISK_PATH=/var/cache/tessera
    python -m sglang.launch_server --model-path MODEL --radix-cache-backend tessera

A request is matched in the tree first. SGLang sees what Tessera has beyond that as a host hit:
when the request is admitted, slots are allocated and filled, and the tree gets a node. When a
request has finished, its part of the tree is stored in the background; its node stays locked
until the writer has read the slots. A failure costs a log line and the cache: SGLang then uses
its own tree. Used by the scheduler's thread.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import uuid
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import sglang
import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    EvictParams,
    EvictResult,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.registry import default_radix_cache_factory

from .. import set_logger
from .._kvpool import KvPool, PoolPlane, PoolShape
from ..cache import Cache, _extras
from ..identity import files_digest
from ..settings import without_effect

__all__ = ["TesseraRadixCache", "build"]

logger = logging.getLogger(__name__)
_DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}
_WAIT_MS = 2000  # for the writer, where SGLang needs the slots that it reads
_Result = TypeVar("_Result")


class Refused(Exception):
    """A feature of the engine that is not supported."""


def build(context: Any) -> Any:
    """For register_radix_cache_backend. Where Tessera cannot work: SGLang's own choice."""
    set_logger(_log)
    try:
        _refuse(context)
        pool = context.params.token_to_kv_pool_allocator.get_kvcache()
        shape = pool_shape(pool, context)
        return TesseraRadixCache(context.params, shape)
    except Exception as error:
        logger.warning("tessera: off, SGLang runs without it: %s: %s", type(error).__name__, error)
        return default_radix_cache_factory(context)


def _refuse(context: Any) -> None:
    params = context.params
    for name, wrong in (
        ("a disabled radix cache", params.disable or context.disable_radix_cache),
        (
            "the hierarchical cache: use --hicache-storage-backend",
            context.enable_hierarchical_cache,
        ),
        ("tensor parallelism", context.tp_size > 1),
        ("pipeline parallelism", params.pp_size > 1),
        ("context parallelism", params.attn_cp_size > 1),
        ("sliding windows", context.is_hybrid_swa),
        ("Mamba", context.is_hybrid_ssm),
        ("EAGLE", params.is_eagle),
    ):
        if wrong:
            raise Refused(name)


def pool_shape(pool: Any, context: Any) -> PoolShape:
    """Where the pool's tokens are, from the tensors' own strides."""
    if type(pool) is not MHATokenToKVPool:
        raise Refused(f"a KV pool of kind {type(pool).__name__}")
    if pool.store_dtype not in _DTYPES:
        raise Refused(f"KV of dtype {pool.store_dtype}")
    first = pool.k_buffer[0]
    if first.dim() != 3 or first.device.type not in ("cpu", "cuda"):
        raise Refused(f"KV of shape {tuple(first.shape)} on {first.device.type}")
    stream = 0
    if first.device.type == "cuda":
        # Models run on this stream, or without overlap on the scheduler's own, which is waited for
        # when slots are read (_places).
        stream = context.tp_worker.model_runner.forward_stream.cuda_stream
    model = context.model_config
    facts = {
        "sglang": sglang.__version__,
        "torch": torch.__version__,
        "config": model.hf_config.to_dict(),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "layers": (pool.start_layer, pool.end_layer),
        "attention": str(getattr(context.server_args, "attention_backend", None)),
        "revision": str(getattr(context.server_args, "revision", None)),
        "commit": str(getattr(model.hf_config, "_commit_hash", None)),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return PoolShape(
        model=model.model_path,
        weights=files_digest(model.model_path),
        identity="sglang " + digest,
        dtype=_DTYPES[pool.store_dtype],
        planes=(_plane(pool.k_buffer), _plane(pool.v_buffer)),
        n_slots=first.shape[0],
        device=first.device.type,
        device_number=first.device.index or 0,
        stream=stream,
    )


def _plane(layers: list[torch.Tensor]) -> PoolPlane:
    first = layers[0]
    if any(one.shape != first.shape or one.stride() != first.stride() for one in layers):
        raise Refused("layers of different shapes")
    token, head, element = (step * first.element_size() for step in first.stride())
    _slots, n_heads, dim = first.shape
    return PoolPlane(
        layers=[one.data_ptr() for one in layers],
        layer_bytes=first.shape[0] * token,
        token_stride=token,
        head_stride=head,
        element_stride=element,
        n_heads=n_heads,
        dim=dim,
    )


@dataclass
class _Offer:
    """What match_prefix has found for a request, until it is loaded or the request ends."""

    lease: int
    tokens: array[int]
    key: RadixKey
    n_tokens: int  # that Tessera has, from the first on


def _guarded(default: Callable[[], _Result]) -> Callable[..., Any]:
    """Logs a failure once, and then answers as SGLang would without Tessera."""

    def wrap(method: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(method)
        def call(self: TesseraRadixCache, *args: Any) -> _Result:
            if self._pool is None:
                return default()
            try:
                return method(self, *args)
            except Exception as error:
                if not self._complained:
                    self._complained = True
                    logger.warning(
                        "tessera: %s failed, continuing without it: %s", method.__name__, error
                    )
                return default()

        return call

    return wrap


class TesseraRadixCache(RadixCache):
    def __init__(self, params: Any, shape: PoolShape, **options: Any) -> None:
        self._pool: KvPool | None = None
        self._cache: Cache | None = None
        self._complained = False
        self._numbers = itertools.count(1)
        self._offers: dict[CacheRequestHandle, _Offer] = {}
        self._writes: dict[int, Any] = {}  # the tree's nodes that the writer reads
        super().__init__(params)
        self._shape = shape
        self._cache = Cache(env=True, **_device(shape), **options)
        for line in without_effect(options, "SGLang"):
            logger.warning("tessera: %s", line)
        try:
            self._pool = KvPool(self._cache._open(), shape)
            if self._pool.chunk_tokens % self.page_size:
                raise Refused(
                    f"chunk_size {self._pool.chunk_tokens} is not a multiple of the page size "
                    f"{self.page_size} tokens"
                )
        except Exception:
            self.shutdown()
            raise
        logger.info("tessera: on, chunks of %d tokens", self._pool.chunk_tokens)

    def shutdown(self) -> None:
        """Waits for what is being written. May be called twice."""
        pool, self._pool = self._pool, None
        cache, self._cache = self._cache, None
        if pool is not None:
            pool.close()
        if cache is not None:
            cache.close()

    release_host_resources = shutdown

    # ---- finding and loading ------------------------------------------------------------------

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        found = super().match_prefix(params)
        if params.req is None:
            return found
        more: int = self._offer(params, found)
        return found._replace(host_hit_length=more) if more else found

    @_guarded(lambda: 0)
    def _offer(self, params: MatchPrefixParams, found: MatchResult) -> int:
        """How many more tokens of a request Tessera has than the tree; kept for its load."""
        assert self._pool is not None
        self._forget(params.req.cache_request_handle)
        key = params.key.page_aligned(self.page_size)
        chunk = self._pool.chunk_tokens
        if len(key) // chunk * chunk <= found.device_prefix_len:
            return 0
        offer = _Offer(next(self._numbers), _tokens(key), key, 0)
        offer.n_tokens = self._pool.match(offer.tokens, _extra(key), offer.lease)
        more = int(offer.n_tokens - found.device_prefix_len)
        if more <= 0:
            self._pool.release(offer.lease)
            return 0
        offer.key = _copy(key, offer.n_tokens)
        self._offers[params.req.cache_request_handle] = offer
        return more

    def init_load_back(self, params: InitLoadBackParams) -> tuple[int, Any]:
        """Loads all that was promised, or nothing, as SGLang requires."""
        node = params.best_match_node
        loaded: tuple[int, Any] | None = self._load_back(params)
        if params.req is not None:
            self._forget(params.req.cache_request_handle)
        return loaded or (0, node)

    @_guarded(lambda: None)
    def _load_back(self, params: InitLoadBackParams) -> tuple[int, Any] | None:
        assert self._pool is not None and params.req is not None
        offer = self._offers.get(params.req.cache_request_handle)
        before = self.path_device_indices(params.best_match_node)
        if offer is None or len(before) + params.host_hit_length != offer.n_tokens:
            return None
        count = offer.n_tokens - len(before)
        self.inc_lock_ref(params.best_match_node)
        try:
            slots = self._allocate(count)
            if slots is None:
                return None
            if self._fill(offer, len(before), slots) < count:
                self.token_to_kv_pool_allocator.free(slots)
                return None
        finally:
            self.dec_lock_ref(params.best_match_node)
        result = self.insert(InsertParams(key=offer.key, value=torch.cat([before, slots])))
        if result.prefix_len > len(before):  # another request of this batch has loaded it, too
            self.token_to_kv_pool_allocator.free(slots[: result.prefix_len - len(before)])
        return count, result.last_device_node

    def _allocate(self, count: int) -> torch.Tensor | None:
        allocator = self.token_to_kv_pool_allocator
        lacking = count - allocator.available_size()
        if lacking > 0:
            self.evict(EvictParams(num_tokens=lacking))
        slots: torch.Tensor | None = allocator.alloc(count)
        return slots

    def _fill(self, offer: _Offer, n_cached: int, slots: torch.Tensor) -> int:
        assert self._pool is not None
        places = _places(slots)
        try:
            return self._pool.load(
                offer.tokens, offer.n_tokens, n_cached, places, _extra(offer.key)
            )
        except Exception:
            self.token_to_kv_pool_allocator.free(slots)
            raise

    def _forget(self, handle: CacheRequestHandle) -> None:
        offer = self._offers.pop(handle, None)
        if offer is not None and self._pool is not None:
            self._pool.release(offer.lease)

    def release_aborted_request(self, handle: CacheRequestHandle) -> None:
        self._forget(handle)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        self._forget(req.cache_request_handle)

    # ---- storing ------------------------------------------------------------------------------

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        super().checkpoint(req, up_to=up_to, **kwargs)
        if not self.disable and req.finished():
            self._store(req, up_to)

    @_guarded(lambda: None)
    def _store(self, req: Any, up_to: int) -> None:
        """The part of a finished request in the tree whose KV is known to be written: the last
        sampled token has not been computed, and drafts beyond it may be wrong."""
        assert self._pool is not None
        self._settle()
        if req.input_embeds is not None or req.positional_embed_overrides is not None:
            return  # tokens do not tell what these prompts are
        n_answer = max(len(req.output_ids) - 1, 0)
        written = min(up_to, req.kv.kv_committed_len, len(req.origin_input_ids) + n_answer)
        slots = self.path_device_indices(req.last_node)
        count = min(written, len(slots)) // self._pool.chunk_tokens * self._pool.chunk_tokens
        if not count:
            return
        key = RadixKey(
            req.full_untruncated_fill_ids[:count], req.extra_key, cache_salt=req.cache_salt
        )
        number = next(self._numbers)
        places = _places(slots[:count])
        if self._pool.store_start(_tokens(key), places, _extra(key), number):
            self.inc_lock_ref(req.last_node)
            self._writes[number] = req.last_node

    @_guarded(lambda: None)
    def _settle(self) -> None:
        """Unlocks nodes that have been read."""
        assert self._pool is not None
        for number in self._pool.written():
            node = self._writes.pop(number, None)
            if node is not None:
                self.dec_lock_ref(node)

    def evict(self, params: EvictParams) -> EvictResult:
        self._settle()
        result = super().evict(params)
        lacking = params.num_tokens - result.num_tokens_evicted
        if lacking > 0 and self._writes and self._pool is not None:
            self._pool.drain(_WAIT_MS)
            self._settle()
            more = super().evict(replace(params, num_tokens=lacking))
            result.num_tokens_evicted += more.num_tokens_evicted
        return result

    def check_hicache_events(self) -> None:
        self._settle()

    def reset(self) -> None:
        """SGLang forgets everything, perhaps because its weights have changed: what is stored from
        now on is for this process alone."""
        super().reset()
        self._offers.clear()
        self._writes.clear()
        if self._pool is not None:
            self._start_anew()

    def _start_anew(self) -> None:
        assert self._pool is not None and self._cache is not None
        try:
            self._pool.reset()
            self._pool.close()
            self._pool = None
            shape = replace(self._shape, salt=uuid.uuid4().hex)
            self._pool = KvPool(self._cache._open(), shape)
        except Exception as error:
            logger.warning("tessera: off, SGLang runs without it: %s", error)
            self.shutdown()


def _device(shape: PoolShape) -> dict[str, Any]:
    """The cache's device is the pool's: KV then goes straight between pages and slots."""
    if shape.device == "cpu":
        return {}
    return {"device": shape.device, "device_number": shape.device_number}


def _places(slots: torch.Tensor) -> array[int]:
    """The numbers in a tensor. Waits for the current stream."""
    places = array("q")
    places.frombytes(slots.to("cpu", torch.int64).contiguous().numpy().tobytes())
    return places


def _tokens(key: RadixKey) -> array[int]:
    return array("I", key.raw_token_ids())


def _copy(key: RadixKey, count: int) -> RadixKey:
    """A request's own tokens go on growing."""
    return RadixKey(key.raw_token_ids()[:count], key.extra_key, cache_salt=key.cache_salt)


def _extra(key: RadixKey) -> Any:
    return _extras(key.extra_key, key.cache_salt, ())


def _log(level: int, text: str) -> None:
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    logger.log(levels[max(0, min(level, 3))], "tessera: %s", text)
