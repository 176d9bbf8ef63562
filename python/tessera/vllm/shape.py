"""What vLLM's configuration says about its KV, as the connector's halves must agree on it.

Both halves call model_shape() with their own copy of the configuration and get the same answer.
What Tessera does not support is refused here, by name, before a byte moves.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from dataclasses import replace
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from .. import _c as c
from .._connector import BOUNDARIES, GroupShape, ModelShape, Planes, Stage, page_layout
from ..compute.parts import Refused as Refused
from ..identity import files_digest
from . import compat, npu

# Keys of kv_connector_extra_config that are not options of the library.
OWN_KEYS = (
    "save_decode",
    "load",
    "boundary",
    "layerwise",
    "salt",
    "load_timeout_ms",
    "save_wait_ms",
    "discover_wait_ms",
    "blend",
    "head_shards",
    "hints",
)
_SPECS = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, MambaSpec)
# Draft models whose KV is in the engine's blocks, and of which vLLM drops the last block of a hit.
_DRAFTS = ("eagle", "eagle3", "mtp")


def split_options(extra: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the connector's own settings, options for the library)."""
    own = {key: value for key, value in extra.items() if key in OWN_KEYS}
    return own, {key: value for key, value in extra.items() if key not in OWN_KEYS}


def model_shape(vllm_config: Any, kv_cache_config: Any, own: dict[str, Any]) -> ModelShape:
    refuse_unsupported(vllm_config, kv_cache_config)
    model = vllm_config.model_config
    parallel = vllm_config.parallel_config
    role = vllm_config.kv_transfer_config
    flags = []
    if not role.is_kv_consumer:
        flags.append("no_load")
    if not role.is_kv_producer:
        flags.append("no_save")
    if own.get("save_decode"):
        flags.append("save_decode")
    if not isinstance(own.get("hints", False), bool):  # "false" must not turn them on
        raise Refused(f"hints {own['hints']!r} is neither true nor false")
    groups = _with_drafts(
        vllm_config, kv_cache_config, tuple(map(_group, _groups(kv_cache_config)))
    )
    if npu.on_npu():
        groups = npu.in_parts(groups, map(_spec, _groups(kv_cache_config)), vllm_config)
    if getattr(kv_cache_config, "has_mixed_precision_kv_cache", False):
        # vLLM clears such blocks when it gives them away, perhaps before a save has read them.
        raise Refused("KV groups of mixed precision")
    why = compat.cannot_load(len(groups), any(group.window_tokens for group in groups))
    if why is not None:
        raise Refused(why)
    load = own.get("load", "auto")
    if load not in ("auto", "sync", "async"):
        raise Refused(f"load '{load}' is not one of auto, sync, async")
    shards = _shards(model, parallel, kv_cache_config, own)
    if parallel.tensor_parallel_size > shards > 0:
        flags.append("shared_spaces")
    if len(groups) > 1 or shards > parallel.tensor_parallel_size:
        load = "async"  # vLLM can be told of a failed load of one of several groups only that way
    if not undoes_steps(vllm_config):  # only loads that cannot fail are within a step
        load = "sure" if load == "auto" else "async"
    if load != "auto":
        flags.append(f"load_{load}")
    boundary = own.get("boundary", "in_flight")
    if boundary not in BOUNDARIES:
        raise Refused(f"boundary '{boundary}' is not one of {', '.join(BOUNDARIES)}")
    return ModelShape(
        model=model.model,
        weights=_weights(model, vllm_config.load_config),
        identity=_identity(vllm_config, kv_cache_config),
        ranks=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
        groups=groups,
        stages=_stages(model, parallel, groups),
        shards=shards,
        shard_identity=_shard_identity(vllm_config, kv_cache_config) if shards else "",
        salt=own.get("salt"),
        boundary=boundary,
        flags=tuple(flags),
        load_timeout_ms=int(own.get("load_timeout_ms", 0)),
        save_wait_ms=int(own.get("save_wait_ms", 0)),
    )


def undoes_steps(vllm_config: Any) -> bool:
    """Whether vLLM (0.32) can compute what a step failed to load. It sets the request's number of
    computed tokens back, and so runs it again, but

    - with asynchronous scheduling it has scheduled the next step on top of this one, keeps what
      that makes, and counts a token that never comes;
    - with pipeline parallelism the next part of a prompt may be scheduled before this step ends;
    - model runner V2 counts the tokens of a running request by itself, and never back: it would
      compute the prompt at positions behind its end, and leave what is wrong in its pages.

    Loads between steps are not concerned: their requests do not run yet."""
    ahead = vllm_config.scheduler_config.async_scheduling
    ahead = ahead or vllm_config.parallel_config.pipeline_parallel_size > 1
    return not (ahead or vllm_config.use_v2_model_runner)


def between_steps(shape: ModelShape) -> ModelShape:
    """The same where no load is sure to succeed."""
    flags = ("load_async" if flag == "load_sure" else flag for flag in shape.flags)
    return replace(shape, flags=tuple(flags))


def as_planes(shape: ModelShape, planes: Planes) -> ModelShape:
    """The same with plain requests kept as K and V; of one group."""
    (group,) = shape.groups
    return replace(shape, groups=(replace(group, planes=planes),))


def refuse_unsupported(vllm_config: Any, kv_cache_config: Any) -> None:
    parallel = vllm_config.parallel_config
    if parallel.pipeline_parallel_size > 1 and not compat.PIPELINES:
        raise Refused(f"pipeline parallelism in vLLM {compat.VERSION}")
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise Refused(f"context parallelism ({name})")
    _refuse_drafts(vllm_config, kv_cache_config)
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise Refused("KV scales computed at run time (calculate_kv_scales)")
    layout = compat.kv_layout(vllm_config, kv_cache_config)
    if layout in ("LHBNC", "BHLNC"):
        raise Refused(f"KV layout {layout}, whose blocks are not contiguous")


def _refuse_drafts(vllm_config: Any, kv_cache_config: Any) -> None:
    draft = vllm_config.speculative_config
    if draft is None:
        return
    if any(isinstance(spec, MambaSpec) for spec in map(_spec, _groups(kv_cache_config))):
        # vLLM moves states of drafts that were refused between blocks.
        raise Refused(f"speculative decoding ({draft.method}) with Mamba or linear attention")
    if draft.method in ("ngram", "ngram_gpu", "suffix"):
        return
    if draft.method not in _DRAFTS:
        raise Refused(f"speculative decoding with a draft model ({draft.method})")
    if not compat.TELLS_DRAFTS:
        raise Refused(f"speculative decoding with {draft.method} in vLLM {compat.VERSION}")
    if not draft.use_eagle_block_drop():
        raise Refused(f"speculative decoding with {draft.method} and disable_eagle_block_drop")


def _with_drafts(
    vllm_config: Any, kv_cache_config: Any, groups: tuple[GroupShape, ...]
) -> tuple[GroupShape, ...]:
    """vLLM's own rule: hits are one block shorter in groups with layers of a draft model, which it
    names; where it names none, in all of them."""
    draft = vllm_config.speculative_config
    if draft is None or draft.method not in _DRAFTS:
        return groups
    named = [group.is_eagle_group for group in _groups(kv_cache_config)]
    n_tokens = max(int(vllm_config.num_prefill_lookahead_tokens), 1)
    return tuple(
        replace(group, draft_tokens=n_tokens) if is_draft or not any(named) else group
        for group, is_draft in zip(groups, named)
    )


def _groups(kv_cache_config: Any) -> list[Any]:
    return list(kv_cache_config.kv_cache_groups)


def _spec(group: Any) -> Any:
    """That of a group's layers."""
    spec = group.kv_cache_spec
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        return spec
    inner = list(spec.kv_cache_specs.values())
    if len({one.page_size_bytes for one in inner}) > 1:
        raise Refused("layers of one KV group with different page sizes")
    return inner[0]


def _group(group: Any) -> GroupShape:
    spec = _spec(group)
    host_resident = getattr(group, "host_resident", False)  # from vLLM 0.30 on
    if not (type(spec) in _SPECS or npu.knows(spec)) or host_resident:
        raise Refused(f"KV groups of kind {type(spec).__name__}")
    moves = getattr(group, "enable_kv_transfer", True)  # from vLLM 0.29 on
    if not moves or spec.page_size_bytes % spec.block_size:
        raise Refused(f"KV groups of kind {type(spec).__name__} with this page layout")
    window = spec.sliding_window if isinstance(spec, SlidingWindowSpec) else 0
    states = isinstance(spec, MambaSpec)
    if states:
        _refuse_states(spec)
    layers = tuple(group.layer_names)
    return GroupShape(layers, spec.block_size, spec.page_size_bytes, window, states=states)


def _refuse_states(spec: Any) -> None:
    """States are saved at the ends of steps, as vLLM hands them over."""
    if spec.mamba_cache_mode != "align":
        raise Refused(
            f"Mamba or linear attention with mamba_cache_mode {spec.mamba_cache_mode}, which keeps "
            "no state that can be reused; use --enable-prefix-caching and align"
        )
    if not compat.HANDS_OVER_STATES:
        raise Refused(f"Mamba or linear attention in vLLM {compat.VERSION}")
    if spec.num_speculative_blocks or spec.num_prefill_checkpoint_blocks:
        raise Refused("Mamba or linear attention with states of drafts or within a step")


def _stages(model: Any, parallel: Any, groups: tuple[GroupShape, ...]) -> tuple[Stage, ...]:
    """The layers of every pipeline stage, which no process of vLLM's is told: the scheduler knows
    those of the first stage and a worker its own. So they follow from vLLM's rule, and each process
    compares it with what it knows."""
    n = parallel.pipeline_parallel_size
    if n == 1:
        return ()
    if len(groups) > 1:
        raise Refused("pipeline parallelism with several KV groups")
    if groups[0].draft_tokens:
        raise Refused("pipeline parallelism with a draft model")
    ends = []
    for stage in range(n):
        there = copy.copy(parallel)
        there.rank = stage * parallel.tensor_parallel_size
        ends.append(model.get_layers_start_end_indices(there))
    first, end = ends[parallel.rank // parallel.tensor_parallel_size % n]
    numbers = [
        [int(part) for part in name.split(".") if part.isdigit()] for name in groups[0].layers
    ]
    if numbers != [[layer] for layer in range(first, end)]:
        raise Refused("pipeline parallelism with stages that are not runs of equal layers")
    return tuple(Stage(first, end - first) for first, end in ends)


def _shards(model: Any, parallel: Any, kv_cache_config: Any, own: dict[str, Any]) -> int:
    """Into how many parts the model's KV heads are cut, so that engines with other numbers of ranks
    find theirs; 0: not at all."""
    wanted = own.get("head_shards", 0)
    if wanted == 0:
        return 0
    if type(wanted) is not int or wanted < 0:
        raise Refused(f"head_shards {wanted!r} is not a number of parts")
    if len(kv_cache_config.kv_cache_groups) > 1:
        raise Refused("head_shards with several KV groups")
    if isinstance(_spec(kv_cache_config.kv_cache_groups[0]), MLAAttentionSpec):
        return 1  # every rank has all of it
    heads, ranks = model.get_total_num_kv_heads(), parallel.tensor_parallel_size
    if heads % wanted:
        raise Refused(f"head_shards {wanted} for {heads} KV heads")
    replicated = wanted == heads and ranks % wanted == 0
    if wanted % ranks and not replicated:
        raise Refused(f"head_shards {wanted} for {ranks} tensor-parallel ranks")
    if wanted > ranks and not compat.FAILED_BY_REQUEST:
        raise Refused(f"head_shards in vLLM {compat.VERSION}")
    return wanted


def shards_of_rank(shape: ModelShape) -> int:
    """How many parts of the heads each rank has."""
    return max(shape.shards // shape.tensor_ranks, 1)


def as_shards(shape: ModelShape, planes: Planes) -> ModelShape:
    """The same with the heads of a rank stored in parts of this form, each of them a group."""
    (group,) = shape.groups
    groups = tuple(
        replace(group, planes=planes, shard=shard) for shard in range(shards_of_rank(shape))
    )
    return replace(shape, groups=groups, identity=shape.shard_identity)


def by_rank(shape: ModelShape) -> ModelShape:
    """The same with everything that a rank has stored as its own."""
    return replace(shape, shards=0, shard_identity="")


def _shard_identity(vllm_config: Any, kv_cache_config: Any) -> str:
    """That of K and V in parts by heads: nothing of it depends on the number of ranks, or on the
    form of a page."""
    spec = _spec(kv_cache_config.kv_cache_groups[0])
    if isinstance(spec, MLAAttentionSpec):
        return ""
    return _identity(vllm_config, kv_cache_config, f"heads of {spec.head_size} {spec.dtype}")


def _identity(vllm_config: Any, kv_cache_config: Any, form: str | None = None) -> str:
    """Everything that changes a page's bytes and is neither weights nor tokens: the model's own
    configuration, dtypes, and how this vLLM on this processor packs a page, or `form`."""
    model = vllm_config.model_config
    cache = vllm_config.cache_config
    specs = [repr(_spec(group)) for group in kv_cache_config.kv_cache_groups]
    facts = {
        "vllm": compat.VERSION,
        "torch": torch.__version__,
        "config": model.hf_config.to_dict(),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "cache_dtype": str(cache.cache_dtype),
        "layout": compat.kv_layout(vllm_config, kv_cache_config),
        "backend": str(vllm_config.attention_config.backend),
        "max_model_len": model.max_model_len if _long_rope(model) else 0,
        "device": current_platform.get_device_name(),
        "processor": _processor(),
        "draft": _draft(vllm_config),
        "specs": specs if form is None else form,
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return "vllm " + hashlib.sha256(text.encode()).hexdigest()


def _draft(vllm_config: Any) -> str:
    """Its layers are in the pages, too."""
    draft = vllm_config.speculative_config
    if draft is None or draft.method not in _DRAFTS:
        return ""
    model = draft.draft_model_config
    weights = _weights(model, draft.draft_load_config or vllm_config.load_config).hex()
    return f"{draft.method} {weights} {json.dumps(model.hf_config.to_dict(), default=str)}"


def _long_rope(model: Any) -> bool:
    """Models whose rotation depends on the longest prompt that the engine allows."""
    rope = getattr(model.hf_text_config, "rope_parameters", None) or {}
    return isinstance(rope, dict) and rope.get("rope_type") in ("longrope", "dynamic")


def _processor() -> str:
    """On a CPU vLLM packs bf16 pages for the processor's matrix unit."""
    if current_platform.device_type != "cpu":
        return ""
    amx = bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())
    return f"{os.uname().machine} {torch.backends.cpu.get_cpu_capability()} amx={amx}"


def _weights(model: Any, load: Any) -> bytes:
    known = [str(model.revision), str(getattr(model.hf_config, "_commit_hash", None))]
    if str(load.load_format) == "dummy":
        known.append(f"dummy {model.seed}")
    return hashlib.sha256("\0".join(known).encode() + files_digest(model.model)).digest()


def group_layout(
    shape: GroupShape, caches: dict[str, torch.Tensor], n_blocks: int
) -> tuple[c.KvLayout, Any]:
    """Where a group's pages are, read from the tensors' own strides."""
    if shape.parts:
        return npu.parts_layout(shape, caches, n_blocks, _page)
    pages = []
    strides = set()
    for name in shape.layers:
        tensor = caches[name]
        page, stride = _page(tensor, n_blocks, shape.page_bytes)
        pages.append(page)
        strides.add(stride)
    if len(strides) != 1:
        raise Refused("layers of one KV group with different block strides")
    device = caches[shape.layers[0]].device.type != "cpu"
    return page_layout(pages, strides.pop(), shape.page_bytes, shape.block_tokens, n_blocks, device)


def _page(tensor: torch.Tensor, n_blocks: int, page_bytes: int) -> tuple[int, int]:
    """(address of block 0, bytes between blocks) of one layer."""
    item = tensor.element_size()
    if tensor.shape[0] % n_blocks:
        raise Refused(f"a KV tensor of shape {tuple(tensor.shape)} for {n_blocks} blocks")
    ratio = tensor.shape[0] // n_blocks  # kernels may see a block as several small ones
    axes = sorted(zip(tensor.stride()[1:], tensor.shape[1:]))
    dense = 1
    for step, n in axes:
        if n != 1 and step != dense:
            raise Refused(f"KV blocks that are not contiguous: strides {tensor.stride()}")
        dense *= n
    if ratio > 1 and tensor.stride(0) != dense:
        raise Refused(f"KV blocks that are not contiguous: strides {tensor.stride()}")
    stride = tensor.stride(0) * ratio * item
    if not dense * ratio * item <= page_bytes <= stride:
        raise Refused(f"KV pages of {dense * ratio * item} bytes where {page_bytes} are expected")
    return tensor.data_ptr(), stride
