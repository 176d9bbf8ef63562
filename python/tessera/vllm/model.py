"""A loaded vLLM model taken apart for compute/executor.py. Models that its order of calls is not
true for are refused by name."""

from __future__ import annotations

from typing import Any

import torch

from ..compute.parts import (
    ModelParts,
    Refused,
    architecture_of,
    check_layer_class,
    has_dtype,
    kv_dtype,
    model_info,
    rope_of,
)

__all__ = ["ModelParts", "kv_dtype", "model_info", "take_apart"]


def take_apart(model: torch.nn.Module, vllm_config: Any) -> ModelParts:
    """The parts of a model that vLLM has loaded. Refused, with the name of what is in the way."""
    architecture = architecture_of(model)
    if vllm_config.lora_config is not None:
        raise Refused("adapters (LoRA)")
    config = vllm_config.model_config
    inner: Any = model.model
    layers = tuple(inner.layers)
    for layer in layers:
        _check_layer(layer)
    first = layers[0].self_attn
    dtype = config.dtype
    if not has_dtype(dtype) or first.attn.kv_cache_torch_dtype != dtype:
        raise Refused(f"KV of {first.attn.kv_cache_torch_dtype} in a model of {dtype}")
    return ModelParts(
        architecture=architecture,
        embed=inner.embed_tokens,
        norm=inner.norm,
        logits=model.compute_logits,
        layers=layers,
        n_heads=first.num_heads,
        n_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        scale=first.scaling,
        dtype=dtype,
        device=first.qkv_proj.weight.device,
        n_vocab=config.get_vocab_size(),
        context=config.max_model_len,
        rope=rope_of(first.rotary_emb, config.hf_text_config),
    )


def _check_layer(layer: Any) -> None:
    check_layer_class(layer)
    attn = layer.self_attn.attn
    impl = attn.impl
    if not hasattr(impl, "do_kv_cache_update"):
        raise Refused(f"attention of kind {type(impl).__name__}")
    if str(attn.attn_type) not in ("decoder", "AttentionType.DECODER"):
        raise Refused(f"attention of type {attn.attn_type}")
    unusual = {
        "sliding windows": getattr(attn, "sliding_window", None),
        "ALiBi": getattr(impl, "alibi_slopes", None),
        "attention sinks": getattr(impl, "sinks", None),
        "soft-capped attention": getattr(impl, "logits_soft_cap", None) or None,
        "layers that share KV": getattr(impl, "kv_sharing_target_layer_name", None),
        "dual chunk attention": getattr(layer.self_attn, "dual_chunk_attention_config", None),
    }
    for name, value in unusual.items():
        if value is not None:
            raise Refused(name)
