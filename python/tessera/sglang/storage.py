"""TesseraStorage: Tessera as a storage backend of SGLang's hierarchical cache.

    python -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache
        --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
        '{"backend_name": "tessera", "module_path": "tessera.sglang",
          "class_name": "TesseraStorage", "interface_v1": 1,
          "host_size": "8G", "disk_path": "/var/cache/tessera"}'

With interface_v1 pages are copied directly between SGLang's host pool and the cache, a batch per
call. Keys are SGLang's page hashes; model, weights, dtype, layout and the place of this process
among the ranks are part of the space, which the hashes do not tell. The first rank of an engine
owns the cache and serves the others on its machine on a Unix socket; with "owner": "daemon" all are
clients of a tesserad, which ranks on other machines need.
A failure costs a log line and the cache, never a request. Called from several
threads at once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from typing import Any

import sglang
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
)

from .. import set_logger
from ..identity import files_digest
from ..owner import EngineCache
from ..pages import Pages, PageShape
from ..settings import without_effect
from .ranks import replica

__all__ = ["TesseraStorage"]

logger = logging.getLogger(__name__)
# What SGLang itself reads from the extra configuration.
_SGLANG_KEYS = (
    "backend_name module_path class_name interface_v1 prefetch_threshold prefetch_timeout_base "
    "prefetch_timeout_per_ki_token hicache_storage_pass_prefix_keys allocator tp_lcm_size"
).split()
_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")


class TesseraStorage(HiCacheStorage):
    def __init__(
        self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None
    ) -> None:
        self._config = storage_config
        self._cache: EngineCache | None = None
        self._pages: Pages | None = None  # of the host pool, zero-copy
        self._flat: dict[int, Pages] = {}  # of whole pages in tensors, by their size
        self._complained = False
        extra = dict(storage_config.extra_config or {})
        options = {key: value for key, value in extra.items() if key not in _SGLANG_KEYS}
        set_logger(_log)
        try:
            self._cache = EngineCache(options, self._engine(), self._is_first())
            for line in without_effect(options, "SGLang's hierarchical cache"):
                logger.warning("tessera: %s", line)
        except Exception as error:
            self._give_up(error)

    def _engine(self) -> str:
        """All ranks of one server are children of one process, as are those of its replicas. The
        groups of data-parallel attention are one engine: what one of them has stored is right for
        all."""
        return f"sglang {os.getppid()} {self._config.model_name} {replica()}"

    def _is_first(self) -> bool:
        config = self._config
        ranks = (config.tp_rank, config.pp_rank, config.attn_cp_rank, config.dp_rank)
        return ranks == (0, 0, 0, 0)

    def _give_up(self, error: Exception) -> None:
        logger.warning("tessera: off, SGLang runs without it: %s: %s", type(error).__name__, error)
        self.close()

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            logger.warning("tessera: a call failed, continuing without it: %s", error)

    def close(self) -> None:
        for pages in [self._pages, *self._flat.values()]:
            if pages is not None:
                pages.close()
        self._pages = None
        self._flat = {}
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    # ---- the host pool ------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        if self._cache is None:
            return
        try:
            self._pages = self._open(_pool_shape(mem_pool_host), _pool_identity(mem_pool_host))
        except Exception as error:
            self._give_up(error)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != "kv" and self._cache is not None:
            self._give_up(NotImplementedError(f"host pools other than KV ({host_pool_name})"))

    def _open(self, shape: PageShape, identity: dict[str, Any]) -> Pages:
        assert self._cache is not None
        config = self._config
        # Every rank of an MLA model has the same latents: one of them writes for all.
        rank, world = (0, 1) if config.is_mla_model else (config.tp_rank, config.tp_size)
        facts = {
            "sglang": sglang.__version__,
            "pp": (config.pp_rank, config.pp_size),
            "cp": (config.attn_cp_rank, config.attn_cp_size),
            "dcp": (config.dcp_rank, config.dcp_size),
            "split_heads": (config.should_split_heads, config.tp_lcm_size),
            **identity,
        }
        text = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
        model = config.model_name or "unnamed"
        weights = files_digest(model)
        return Pages(self._cache.handle, model, weights, "sglang " + text, shape, rank, world)

    def _addresses(self, host_indices: torch.Tensor, n_keys: int) -> list[int]:
        """Where each page begins; its other pieces are at fixed distances (PageShape)."""
        pointers, _sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        step = len(pointers) // n_keys
        return list(pointers[::step])

    def _move(
        self,
        move: Callable[[Pages, list[str], list[int]], list[bool]],
        keys: list[str],
        host_indices: torch.Tensor,
    ) -> list[bool]:
        if self._pages is None or not keys:
            return [False] * len(keys)
        try:
            return move(self._pages, keys, self._addresses(host_indices, len(keys)))
        except Exception as error:
            self._complain(error)
            return [False] * len(keys)

    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        return self._move(Pages.load, keys, host_indices)

    def batch_set_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        return self._move(Pages.store, keys, host_indices)

    def batch_exists(
        self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        found = self._known(keys)
        return found.index(False) if False in found else len(found)

    def exists(self, key: str) -> bool:
        return self._known([key])[0]

    def _known(self, keys: list[str]) -> list[bool]:
        found = [False] * len(keys)
        zero_copy = bool((self._config.extra_config or {}).get("interface_v1"))
        stores = [self._pages] if zero_copy else list(self._flat.values())
        try:
            for pages in stores:
                if pages is not None and keys:
                    found = [a or b for a, b in zip(found, pages.known(keys))]
        except Exception as error:
            self._complain(error)
        return found

    # ---- whole pages in tensors: without interface_v1 -----------------------------------------

    def _flat_pages(self, tensor: torch.Tensor) -> Pages | None:
        if self._cache is None:
            return None
        n_bytes = tensor.numel() * tensor.element_size()
        if n_bytes not in self._flat:
            identity = {"flat": n_bytes, "dtype": str(tensor.dtype)}
            self._flat[n_bytes] = self._open(PageShape(n_bytes), identity)
        return self._flat[n_bytes]

    def get(
        self, key: str, target_location: Any = None, target_sizes: Any = None
    ) -> torch.Tensor | None:
        results = self.batch_get([key], None if target_location is None else [target_location])
        return results[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        if target_locations is None:
            return [None] * len(keys)
        results: list[torch.Tensor | None] = []
        for key, target in zip(keys, target_locations):
            try:
                pages = self._flat_pages(target)
                hit = (
                    pages is not None
                    and target.is_contiguous()
                    and pages.load([key], [target.data_ptr()])[0]
                )
            except Exception as error:
                self._complain(error)
                hit = False
            results.append(target if hit else None)
        return results

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        if value is None:
            return False
        try:
            value = value.contiguous()
            pages = self._flat_pages(value)
            return pages is not None and pages.store([key], [value.data_ptr()])[0]
        except Exception as error:
            self._complain(error)
            return False

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        return values is not None and all(self.set(key, value) for key, value in zip(keys, values))


def _pool_shape(pool: Any) -> PageShape:
    """The pieces of a page, from the pointers that the pool itself gives for one."""
    if pool.layout not in _LAYOUTS:
        raise NotImplementedError(f"host pool layout {pool.layout}")
    tokens = getattr(pool, "logical_page_size", pool.page_size)
    pointers, sizes = pool.get_page_buffer_meta(torch.arange(tokens, dtype=torch.int64))
    if len(set(sizes)) != 1:
        raise NotImplementedError("pages with pieces of different sizes")
    for planes in (2, 1):
        layers, rest = divmod(len(pointers), planes)
        if rest:
            continue
        plane_stride = pointers[1] - pointers[0] if planes == 2 else 0
        layer_stride = pointers[planes] - pointers[0] if layers > 1 else 0
        expected = [
            pointers[0] + layer * layer_stride + plane * plane_stride
            for layer in range(layers)
            for plane in range(planes)
        ]
        if pointers == expected:
            return PageShape(sizes[0], layers, planes, layer_stride, plane_stride)
    raise NotImplementedError(f"host pool layout {pool.layout} with this page layout")


def _pool_identity(pool: Any) -> dict[str, Any]:
    """What changes a page's bytes: SGLang's hashes tell tokens only."""
    names = "layout dtype page_size layer_num start_layer end_layer head_num head_dim v_head_dim"
    facts = {name: getattr(pool, name, None) for name in names.split()}
    facts["pool"] = type(pool).__name__
    return facts


def _log(level: int, text: str) -> None:
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    logger.log(levels[max(0, min(level, 3))], "tessera: %s", text)
