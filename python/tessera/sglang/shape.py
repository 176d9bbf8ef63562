"""Where the tokens of SGLang's KV pools are, and what identifies their bytes.

MHATokenToKVPool has K and V by token and head. MLATokenToKVPool has one latent row per token and
layer, the same on every rank: rank 0 writes, and all ranks read that space.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sglang
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

from .._kvpool import PoolPlane, PoolShape
from ..compute.parts import Refused
from ..identity import files_digest
from .ranks import Ranks

__all__ = ["Refused", "pool_shape"]

_DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}


def pool_shape(pool: Any, context: Any, ranks: Ranks) -> PoolShape:
    """Where the pool's tokens are, from the tensors' own strides."""
    mla = type(pool) is MLATokenToKVPool
    if not mla and type(pool) is not MHATokenToKVPool:
        raise Refused(f"a KV pool of kind {type(pool).__name__}")
    if mla and pool.use_dsa:
        raise Refused("sparse attention (DSA), whose index keys are in another pool")
    if pool.layer_shard_enabled:
        raise Refused("layers that are spread over ranks")
    if pool.store_dtype not in _DTYPES:
        raise Refused(f"KV of dtype {pool.store_dtype}")
    buffers = (pool.kv_buffer,) if mla else (pool.k_buffer, pool.v_buffer)
    first = buffers[0][0]
    if first.dim() != 3 or first.device.type not in ("cpu", "cuda"):
        raise Refused(f"KV of shape {tuple(first.shape)} on {first.device.type}")
    stream = 0
    if first.device.type == "cuda":
        # Models run on this stream, or without overlap on the scheduler's own, which is waited for
        # when slots are read (_places in radix.py).
        stream = context.tp_worker.model_runner.forward_stream.cuda_stream
    model = context.model_config
    return PoolShape(
        model=model.model_path,
        weights=files_digest(model.model_path),
        identity="sglang " + _digest(pool, context, ranks),
        dtype=_DTYPES[pool.store_dtype],
        planes=tuple(_plane(layers) for layers in buffers),
        n_slots=first.shape[0],
        device=first.device.type,
        device_number=first.device.index or 0,
        stream=stream,
        mla=mla,
        rank=0 if mla else ranks.rank,
        world=1 if mla else ranks.world,
    )


def _digest(pool: Any, context: Any, ranks: Ranks) -> str:
    """Everything else that changes KV. Sums of other sizes of tensor parallelism round differently,
    so the size is part of it also where every rank has the same KV."""
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
    if ranks.world > 1:
        facts["ranks"] = ranks.world
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


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
