"""TesseraRadixCache: SGLang's radix tree over its pool of tokens, and Tessera below it.

    TESSERA_HOST_SIZE=8G TESSERA_DISK_PATH=/var/cache/tessera
    python -m sglang.launch_server --model-path MODEL --radix-cache-backend tessera

A request is matched in the tree first. SGLang sees what Tessera has beyond that as a host hit:
when the request is admitted, slots are allocated and filled, and the tree gets a node. If only a
part of it could be loaded, the tree gets that part, and SGLang computes the rest. When a request
has finished, its part of the tree is stored in the background; its node stays locked until the
writer has read the slots. A failure costs a log line and the cache: SGLang then uses its own tree.

With tensor parallelism every rank has such a tree, and all trees must stay the same: whatever
depends on the cache is agreed on first (ranks.py). Nothing between two agreements may fail on one
rank alone, so calls of the cache are guarded one by one. Used by the scheduler's thread.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import secrets
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

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
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.registry import default_radix_cache_factory

from .. import set_logger
from .._kvpool import PoolShape, RadixPool, pool_space
from ..blend_job import blend_settings
from ..cache import Cache, _extras
from ..discovery import (
    WAIT_MS,
    Asked,
    Closer,
    Discovery,
    Patience,
    close_discovery,
    has_shared_tier,
)
from ..owner import EngineCache
from ..prompts import PromptClient, Text
from ..settings import own_settings, without_effect
from ..why import Why
from .blend import Blended, Blends, isolate
from .ranks import Ranks, engine_name
from .shape import Refused, pool_shape

__all__ = ["TesseraRadixCache", "build"]

logger = logging.getLogger(__name__)
_WAIT_MS = 2000  # for the writer, where SGLang needs the slots that it reads
_MATCHES_PER_SETTLE = 16  # of several ranks
_WAIT_NAME = "TESSERA_DISCOVER_WAIT_MS"
_MARK = "tessera_blended"  # of a request: how it is blended; None: it is not
_Result = TypeVar("_Result")


def build(context: Any) -> Any:
    """For register_radix_cache_backend. Where Tessera cannot work: SGLang's own choice, on all
    ranks."""
    ranks: Ranks | None = None
    tree: TesseraRadixCache | None = None
    why = "another rank could not start it"
    try:
        set_logger(_log)
        _refuse(context)  # the same on all ranks, as is the next line
        ranks = Ranks(context)
    except Exception as error:
        return _without(context, f"{type(error).__name__}: {error}")
    for owns in (True, False):  # clients come when the owner is there
        if ranks.first == owns:
            try:
                tree = _open(context, ranks)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
        chunk = 0 if tree is None else tree.chunk_tokens
        if owns:
            ranks.least(chunk)
    least, most = ranks.least(chunk, -chunk)
    if tree is None or least != chunk or -most != chunk or not chunk:
        if tree is not None:
            tree.shutdown()
        return _without(context, why)
    logger.info("tessera: on, chunks of %d tokens", chunk)
    return tree


def _without(context: Any, why: str) -> Any:
    logger.warning("tessera: off, SGLang runs without it: %s", why)
    return default_radix_cache_factory(context)


def _open(context: Any, ranks: Ranks) -> TesseraRadixCache:
    pool = context.params.token_to_kv_pool_allocator.get_kvcache()
    shape = pool_shape(pool, context, ranks)
    tree = TesseraRadixCache(context.params, shape, ranks, engine_name(context))
    try:
        tree.open_blends(context)
    except Exception as error:
        logger.warning("tessera: no blending, exact prefixes are reused: %s", error)
    return tree


def _refuse(context: Any) -> None:
    params = context.params
    for name, wrong in (
        ("a disabled radix cache", params.disable or context.disable_radix_cache),
        (
            "the hierarchical cache: use --hicache-storage-backend",
            context.enable_hierarchical_cache,
        ),
        ("pipeline parallelism", params.pp_size > 1),
        ("context parallelism", params.attn_cp_size > 1),
        (
            "decode context parallelism",
            (getattr(context.server_args, "dcp_size", 1) or 1) > 1,
        ),
        ("sliding windows", context.is_hybrid_swa),
        ("Mamba", context.is_hybrid_ssm),
        ("EAGLE", params.is_eagle),
    ):
        if wrong:
            raise Refused(name)


@dataclass
class _Offer:
    """What Tessera has of a request, until it is loaded or the request ends."""

    lease: int  # 0: nothing is held, as the tree has as much
    tokens: array[int]
    key: RadixKey
    n_asked: int
    n_tokens: int = 0  # that every rank has, from the first on
    asked: Asked | None = None  # other machines; it was not answered in time

    def is_late(self) -> bool:
        """Whether there is an answer since it was looked up."""
        return self.asked is not None and self.asked.answered

    def answers(self, n_asked: int, n_in_tree: int) -> bool:
        return n_asked == self.n_asked and (self.lease != 0 or self.n_tokens <= n_in_tree)


def _guarded(default: Callable[[], _Result]) -> Callable[..., Any]:
    """For calls of the cache: logs a failure once, and then answers as SGLang would without it."""

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
                    name = method.__name__.strip("_")
                    logger.warning("tessera: %s failed, continuing without it: %s", name, error)
                return default()

        return call

    return wrap


class TesseraRadixCache(RadixCache):
    def __init__(
        self, params: Any, shape: PoolShape, ranks: Ranks, engine: str, **options: Any
    ) -> None:
        self._pool: RadixPool | None = None
        self._cache: Cache | EngineCache | None = None
        self._complained = False
        self._ranks = ranks
        self._writer = ranks.rank == 0 or not shape.mla
        self._leases = itertools.count(1)
        self._numbers = itertools.count(1)
        self._n_matches = 0
        self._offers: dict[CacheRequestHandle, _Offer] = {}
        self._writes: dict[int, Any] = {}  # the tree's nodes that a writer reads, oldest first
        self._ended: set[int] = set()  # of these, writes that have ended on this rank
        self._blends: Blends | None = None
        self._discovery: Discovery | None = None  # if there is a tier that other machines fill
        self._others: PromptClient | None = None  # that it asks with
        super().__init__(params)
        self._shape = shape
        if ranks.processes == 1:
            self._cache = Cache(env=True, **_device(shape), **options)
        else:
            device = shape.device, shape.device_number
            self._cache = EngineCache(options, engine, ranks.first, device)
            if not ranks.first:
                self._cache.connected(_WAIT_MS)  # until then lookups miss
        if ranks.first:
            for line in without_effect(options, "SGLang"):
                logger.warning("tessera: %s", line)
        try:
            self._pool = RadixPool(self._handle(), shape)
            self.chunk_tokens = self._pool.chunk_tokens
            if self.chunk_tokens % self.page_size:
                raise Refused(
                    f"chunk_size {self.chunk_tokens} is not a multiple of the page size "
                    f"{self.page_size} tokens"
                )
            self._why = Why(
                self.chunk_tokens,
                lambda line: logger.info("tessera: %s", line),
                lambda line: logger.warning("tessera: %s", line),
            )
            self._open_discovery()
        except Exception:
            self.shutdown()
            raise

    def _open_discovery(self) -> None:
        """What is wrong with it costs what other machines have."""
        try:
            wait_ms = int(os.environ.get(_WAIT_NAME, WAIT_MS))
            cache = self._cache
            if wait_ms <= 0 or not isinstance(cache, Cache):
                return  # of several ranks the schedulers would wait one after another
            look = functools.partial(has_shared_tier, cache._open())
            if not cache._served and not look():
                return
            space, _keep = pool_space(self._shape)
            self._others = PromptClient(cache._open(), [space])
            self._patience = Patience(wait_ms)
            # The tiers of a tesserad may come later or change.
            self._discovery = Discovery(wait_ms, look if cache._served else None)
        except Exception as error:
            logger.warning("tessera: shared tiers are not asked for prompts: %s", error)

    def _askers(self) -> list[Closer]:
        """What is asked with, from now on for nothing but to be closed."""
        others, self._others = self._others, None
        more = self._blends.take_askers() if self._blends is not None else []
        return [others.close, *more] if others is not None else more

    def _handle(self) -> Any:
        cache = self._cache
        assert cache is not None
        return cache.handle if isinstance(cache, EngineCache) else cache._open()

    def open_blends(self, context: Any) -> None:
        """If options say so. Raises what is in the way."""
        settings = blend_settings(own_settings({}, {}))
        if settings is not None:
            if settings.first == "exact":
                raise Refused("blend: first is exact: SGLang computes unknown documents first")
            self._blends = Blends(context, settings, self._handle(), self._shape, self._ranks)
            logger.info("tessera: documents are blended")

    def shutdown(self) -> None:
        """Waits for what is being written, and for no question. May be called twice."""
        closers = self._askers()
        if self._blends is not None:
            self._blends.close()
            self._blends = None
        pool, self._pool = self._pool, None
        cache, self._cache = self._cache, None
        if pool is not None:
            pool.close()
        if cache is not None:
            closers.append(cache.close)
        close_discovery(self._discovery, closers)

    release_host_resources = shutdown

    # ---- finding and loading ------------------------------------------------------------------

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        req = params.req
        if req is None:
            return super().match_prefix(params)
        self._settle_for(len(params.key))
        mark = self._marked(req)
        if mark is None:
            found = super().match_prefix(params)
            more = self._offer(params, found)
        else:
            found = super().match_prefix(replace(params, key=_isolated(params.key, req)))
            more = self._offer_blend(mark, len(params.key), found)
        return found._replace(host_hit_length=more) if more else found

    def _offer(self, params: MatchPrefixParams, found: MatchResult) -> int:
        """How many more tokens of a request Tessera has than the tree; kept for its load. A request
        that waits is matched again and again; it is looked up once, and once more when an answer
        of other machines came too late for that."""
        handle = params.req.cache_request_handle
        key = params.key.page_aligned(self.page_size)
        before = int(found.device_prefix_len)
        if len(key) // self.chunk_tokens * self.chunk_tokens <= before:
            self._forget(handle)
            self._why.missed(params.req.origin_input_ids, before)
            return 0
        offer = self._offers.get(handle)
        late = offer is not None and offer.is_late()
        if offer is None or late or not offer.answers(len(key), before):
            self._forget(handle)
            tokens = _tokens(key)
            if tokens is None:
                return 0
            offer = _Offer(next(self._leases), tokens, key, len(key))
            offer.n_tokens = self._ranks.least(self._find(offer, not late))[0]
            if offer.n_tokens:
                self._why.found()
            elif not late:
                self._why.missed(params.req.origin_input_ids, before)
            offer.key = _copy(key, offer.n_tokens)
            if offer.n_tokens <= before:
                self._release(offer.lease)
                offer.lease = 0
            self._offers[handle] = offer
        return max(0, offer.n_tokens - before)

    @_guarded(lambda: 0)
    def _find(self, offer: _Offer, ask: bool) -> int:
        """Tokens from the first on. What is not known here is asked for."""
        assert self._pool is not None
        extra = _extra(offer.key)
        found = self._pool.match(offer.tokens, extra, offer.lease)
        whole = offer.n_asked // self.chunk_tokens * self.chunk_tokens
        if not ask or self._discovery is None or self._others is None or found >= whole:
            return found
        if not self._discovery.is_ready():
            return found
        text = Text(offer.tokens, extra)
        asked = self._discovery.ask(functools.partial(self._others.discover, text))
        if not self._waited_for(asked):
            offer.asked = asked
            return found
        self._pool.release(offer.lease)
        return self._pool.match(offer.tokens, extra, offer.lease)

    @_guarded(lambda: None)
    def _release(self, lease: int) -> None:
        assert self._pool is not None
        self._pool.release(lease)

    def init_load_back(self, params: InitLoadBackParams) -> tuple[int, Any]:
        """Loads what was promised. SGLang takes all of it or nothing; a part is therefore counted
        as if the tree had had it when the request was matched, and SGLang computes the rest."""
        req, node = params.req, params.best_match_node
        mark: Blended | None = getattr(req, _MARK, None)
        if mark is not None:
            return self._blend_back(req, mark, node, params.host_hit_length)
        offer = self._offers.get(req.cache_request_handle) if req is not None else None
        if offer is None:
            return 0, node
        before = self.path_device_indices(node)
        promised = offer.n_tokens - len(before)
        loaded, last = 0, node
        if promised > 0 and params.host_hit_length == promised:
            loaded, last = self._load_back(offer, node, before)
        self._forget(req.cache_request_handle)
        if loaded == promised or not loaded:
            return loaded, last
        if req.prefix_len != len(before):
            return 0, node
        req.prefix_len += loaded
        return 0, last

    def _load_back(self, offer: _Offer, node: Any, before: torch.Tensor) -> tuple[int, Any]:
        """Fills slots and adds to the tree what every rank has loaded."""
        allocator = self.token_to_kv_pool_allocator
        count = offer.n_tokens - len(before)
        slots = self._allocate(count, node)
        if slots is None:
            return 0, node
        loaded = self._ranks.least(self._fill(offer, len(before), slots))[0]
        loaded = min(loaded, count) // self.page_size * self.page_size
        if loaded < count:
            allocator.free(slots[loaded:])
        if not loaded:
            return 0, node
        end = len(before) + loaded
        result = self.insert(
            InsertParams(key=_copy(offer.key, end), value=torch.cat([before, slots[:loaded]]))
        )
        if result.prefix_len > len(before):  # another request of this batch has loaded it, too
            allocator.free(slots[: result.prefix_len - len(before)])
        return loaded, result.last_device_node

    # A request that is blended has its mark as an attribute, and a salt of its own.

    def _marked(self, req: Any) -> Blended | None:
        """Looks at a request once, before the tree does."""
        if self._blends is None:
            return None
        if not hasattr(req, _MARK):
            mark = self._blends.mark(req)
            setattr(req, _MARK, mark)
            if mark is not None:
                self._discover_documents(self._blends, req, mark)
                isolate(req)
        return getattr(req, _MARK)  # type: ignore[no-any-return]

    @_guarded(lambda: None)
    def _discover_documents(self, blends: Blends, req: Any, mark: Blended) -> None:
        if self._discovery is not None and self._discovery.is_ready():
            mark.asked = blends.ask_others(self._discovery, req, mark)
            self._waited_for(mark.asked)

    def _waited_for(self, asked: Asked | None) -> bool:
        """SGLang has no queue for requests that wait for a moment, so its scheduler waits with
        them. Whether there is an answer."""
        if asked is None or not asked.pending:
            return asked is not None and asked.answered
        return self._patience.wait(asked)

    def _offer_blend(self, mark: Blended, n_key: int, found: MatchResult) -> int:
        if mark.failed:
            return 0
        n: int = min(mark.n_context, n_key) // self.page_size * self.page_size
        return max(0, n - int(found.device_prefix_len))

    def _blend_back(self, req: Any, mark: Blended, node: Any, count: int) -> tuple[int, Any]:
        mark.forget_asked()  # the blend finds what is known by now
        before = self.path_device_indices(node)
        slots = self._allocate(count, node)
        if slots is None:
            return 0, node
        if self._blends is None or not self._blends.run(req, mark, slots, len(before)):
            mark.failed = True
            self.token_to_kv_pool_allocator.free(slots)
            return 0, node
        tokens = req.origin_input_ids[: len(before) + count]
        key = RadixKey(tokens, req.extra_key, cache_salt=req.cache_salt)
        result = self.insert(InsertParams(key=key, value=torch.cat([before, slots])))
        return count, result.last_device_node

    def _allocate(self, count: int, node: Any) -> torch.Tensor | None:
        """Slots, for which others may be evicted, but not those of `node` and before it."""
        allocator = self.token_to_kv_pool_allocator
        lacking = count - allocator.available_size()
        self.inc_lock_ref(node)
        try:
            if lacking > 0:
                self.evict(EvictParams(num_tokens=lacking))
            slots: torch.Tensor | None = allocator.alloc(count)
        finally:
            self.dec_lock_ref(node)
        return slots

    @_guarded(lambda: 0)
    def _fill(self, offer: _Offer, n_cached: int, slots: torch.Tensor) -> int:
        assert self._pool is not None
        return self._pool.load(
            offer.tokens, offer.n_tokens, n_cached, _places(slots), _extra(offer.key)
        )

    def _forget(self, handle: CacheRequestHandle) -> None:
        offer = self._offers.pop(handle, None)
        if offer is None:
            return
        if offer.asked is not None:
            offer.asked.forget()
        if offer.lease:
            self._release(offer.lease)

    def release_aborted_request(self, handle: CacheRequestHandle) -> None:
        self._forget(handle)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        self._forget(req.cache_request_handle)
        mark: Blended | None = getattr(req, _MARK, None)
        if mark is not None:
            mark.forget_asked()

    # ---- storing ------------------------------------------------------------------------------

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        super().checkpoint(req, up_to=up_to, **kwargs)
        if not self.disable and req.finished():
            self._store(req, up_to)

    def _store(self, req: Any, up_to: int) -> None:
        """The part of a finished request in the tree whose KV is known to be written: the last
        sampled token has not been computed, and drafts beyond it may be wrong."""
        self._settle()
        if req.input_embeds is not None or req.positional_embed_overrides is not None:
            return  # tokens do not tell what these prompts are
        if getattr(req, _MARK, None) is not None:
            return  # approximate
        n_answer = max(len(req.output_ids) - 1, 0)
        written = min(up_to, req.kv.kv_committed_len, len(req.origin_input_ids) + n_answer)
        slots = self.path_device_indices(req.last_node)
        count = min(written, len(slots)) // self.chunk_tokens * self.chunk_tokens
        if not count:
            return
        key = RadixKey(
            req.full_untruncated_fill_ids[:count], req.extra_key, cache_salt=req.cache_salt
        )
        number = next(self._numbers)
        self.inc_lock_ref(req.last_node)
        self._writes[number] = req.last_node
        if not self._start_write(key, slots[:count], number):
            self._ended.add(number)

    @_guarded(lambda: False)
    def _start_write(self, key: RadixKey, slots: torch.Tensor, number: int) -> bool:
        assert self._pool is not None
        tokens = _tokens(key)
        if not self._writer or tokens is None:
            return False
        return self._pool.store_start(tokens, _places(slots), _extra(key), number)

    @_guarded(list)
    def _take_written(self) -> list[int]:
        assert self._pool is not None
        return self._pool.written()

    def _settle(self) -> None:
        """Unlocks nodes that have been read on every rank, oldest first."""
        if not self._writes:
            return
        self._ended.update(self._take_written())
        done = (number in self._ended or self._pool is None for number in self._writes)
        count = self._ranks.least(sum(itertools.takewhile(bool, done)))[0]
        for number in list(itertools.islice(self._writes, count)):
            self._ended.discard(number)
            self.dec_lock_ref(self._writes.pop(number))

    def _settle_for(self, n_tokens: int) -> None:
        """Nodes that a writer reads cannot be evicted. A request that needs their slots is not
        admitted, and is matched again. To agree takes ranks a message, so they do it only where
        memory is short, and every now and then: what other requests will take is not known here.
        """
        self._n_matches += 1
        free = self.token_to_kv_pool_allocator.available_size() + self.evictable_size()
        short = free < n_tokens + self.page_size
        if short or self._ranks.world == 1 or self._n_matches % _MATCHES_PER_SETTLE == 0:
            self._settle()

    @_guarded(lambda: None)
    def _drain(self) -> None:
        assert self._pool is not None
        self._pool.drain(_WAIT_MS)

    def evict(self, params: EvictParams) -> EvictResult:
        self._settle()
        result = super().evict(params)
        lacking = params.num_tokens - result.num_tokens_evicted
        if lacking > 0 and self._writes:
            self._drain()
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
        self._ended.clear()
        if self._blends is not None:
            self._blends.reset()
        if self._cache is not None:  # not while the tree is being made
            # The same on all ranks, as those of an MLA model share a space.
            salt = self._ranks.least(secrets.randbits(62))[0]
            self._start_anew(f"{salt:x}")

    def _start_anew(self, salt: str) -> None:
        if self._pool is None:
            return
        if self._discovery is not None:  # nobody else has anything under the new salt
            close_discovery(self._discovery, self._askers())
        try:
            self._pool.reset()
            self._pool.close()
            self._pool = None
            self._pool = RadixPool(self._handle(), replace(self._shape, salt=salt))
        except Exception as error:
            # Lookups miss from now on, and so they do on the other ranks.
            logger.warning("tessera: off, SGLang runs without it: %s", error)


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


def _tokens(key: RadixKey) -> array[int] | None:
    """None: there are images among them, whose places SGLang fills with wider numbers."""
    try:
        return array("I", key.raw_token_ids())
    except OverflowError:
        return None


def _copy(key: RadixKey, count: int) -> RadixKey:
    """A request's own tokens go on growing."""
    return RadixKey(key.raw_token_ids()[:count], key.extra_key, cache_salt=key.cache_salt)


def _isolated(key: RadixKey, req: Any) -> RadixKey:
    return RadixKey(key.token_ids, key.extra_key, limit=key.limit, cache_salt=req.cache_salt)


def _extra(key: RadixKey) -> Any:
    return _extras(key.extra_key, key.cache_salt, ())


def _log(level: int, text: str) -> None:
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    logger.log(levels[max(0, min(level, 3))], "tessera: %s", text)
